//! Documents name tests that prove their claims. This checks that those tests exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Fails if a document names a test that does not exist, or fewer tests than it should. Words in backticks with at
/// least two underscores count as tests.
pub(crate) fn assert_named_tests_exist(document: &str, at_least: usize) {
    let sources = sources();
    // The first piece is before the first function.
    let tests: BTreeSet<&str> =
        sources.split("fn ").skip(1).filter_map(|rest| rest.split('(').next()).collect();
    let text = fs::read_to_string(document).unwrap();
    let is_test = |word: &&str| {
        word.matches('_').count() >= 2
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    // Every second piece is between two backticks.
    let named: Vec<&str> = text.split('`').skip(1).step_by(2).filter(is_test).collect();
    assert!(named.len() > at_least, "{document} names {} tests", named.len());
    for name in named {
        assert!(tests.contains(name), "{document} names the test {name}, which does not exist");
    }
}

/// The text of all crates and end-to-end suites.
fn sources() -> String {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut folders = ["crates", "lab", "tests"].map(|folder| root.join(folder)).to_vec();
    let mut sources = String::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                sources.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    sources
}
