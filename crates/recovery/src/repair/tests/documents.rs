//! The documents name tests by which a reader can check what they say.

use std::collections::BTreeSet;

/// Each test that they name exists.
#[test]
fn every_test_that_the_repair_documents_name_exists() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut folders = vec![std::path::PathBuf::from(root)];
    let mut sources = String::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                sources.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let tests: BTreeSet<&str> =
        sources.split("fn ").skip(1).filter_map(|rest| rest.split('(').next()).collect();
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/repair-tests.md");
    let text = std::fs::read_to_string(document).unwrap();
    let is_test = |it: &&str| {
        it.matches('_').count() >= 2
            && it.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let named: Vec<&str> = text.split('`').skip(1).step_by(2).filter(is_test).collect();
    assert!(named.len() > 40, "it names {} tests", named.len());
    for name in named {
        assert!(tests.contains(name), "{document} names the test {name}, which does not exist");
    }
}
