//! Each bug that `tools/planted-bugs` plants has exactly one place in the code.

use std::fs;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn value<'a>(bug: &'a str, key: &str) -> &'a str {
    let of_line = |line: &'a str| line.strip_prefix(key)?.strip_prefix(": ");
    bug.lines().find_map(of_line).unwrap_or_else(|| panic!("{key} is missing:\n{bug}"))
}

#[test]
fn every_planted_bug_has_its_one_place() {
    let list = fs::read_to_string(format!("{ROOT}/tools/planted-bugs.txt")).unwrap();
    let bugs: Vec<&str> = list.split("\n\n").filter(|part| part.starts_with("bug: ")).collect();
    assert!(bugs.len() >= 40, "{}", bugs.len());
    for bug in &bugs {
        let (file, old, new) = (value(bug, "in"), value(bug, "old"), value(bug, "new"));
        let source = fs::read_to_string(format!("{ROOT}/{file}")).unwrap();
        assert_eq!(
            source.matches(old).count(),
            1,
            "{}: {file} has this not exactly once: {old}",
            value(bug, "bug")
        );
        assert_ne!(old, new);
        assert!(value(bug, "test").contains(" -- ") && !value(bug, "means").is_empty(), "{bug}");
    }
}
