//! Documents name tests with which a reader can check their claims, and `tools/planted-bugs.txt` names lines of code.
//! Both must exist.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{Outcome, read, rust_files};

/// The page that names tests, and how many at least: fewer mean that they are written in another way now.
const NAMING_TESTS: (&str, usize) = ("docs/guides/from-codeflare.md", 20);

const BUGS: &str = "tools/planted-bugs.txt";

pub(crate) fn check(root: &Path) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    let mut functions = BTreeSet::new();
    for file in ["crates", "lab", "tests"].iter().flat_map(|folder| rust_files(&root.join(folder))) {
        functions.extend(functions_in(&read(&file)?));
    }
    let (document, at_least) = NAMING_TESTS;
    let text = read(&root.join(document))?;
    let named = tests_named_in(&text);
    if named.len() <= at_least {
        outcome.complaints.push(format!("{document} names only {} tests", named.len()));
    }
    let unknown = named.iter().filter(|name| !functions.contains(**name));
    outcome
        .complaints
        .extend(unknown.map(|name| format!("{document} names the test {name}, which does not exist")));
    let bugs = read(&root.join(BUGS))?;
    let bugs: Vec<&str> = bugs.split("\n\n").filter(|part| part.starts_with("bug: ")).collect();
    if bugs.len() < 40 {
        outcome.complaints.push(format!("{BUGS} has only {} bugs", bugs.len()));
    }
    for bug in &bugs {
        let source = value(bug, "in").map(|file| read(&root.join(file))).transpose()?.unwrap_or_default();
        outcome.complaints.extend(wrong_with(bug, &source));
    }
    outcome.report = format!("{document} names {} tests, {} planted bugs\n", named.len(), bugs.len());
    Ok(outcome)
}

fn functions_in(source: &str) -> impl Iterator<Item = String> {
    // The first piece is before the first function.
    source.split("fn ").skip(1).filter_map(|rest| rest.split('(').next()).map(str::to_owned)
}

/// Words in backticks with at least two underscores.
fn tests_named_in(text: &str) -> Vec<&str> {
    let is_test = |word: &&str| {
        word.matches('_').count() >= 2
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    // Every second piece is between two backticks.
    text.split('`').skip(1).step_by(2).filter(is_test).collect()
}

fn value<'a>(bug: &'a str, key: &str) -> Option<&'a str> {
    bug.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
}

/// What is wrong with a planted bug: it has one place in its file, a meaning, and tests.
fn wrong_with(bug: &str, source: &str) -> Option<String> {
    let all = ["bug", "in", "old", "new", "means", "test"].map(|key| value(bug, key));
    let [Some(name), Some(file), Some(old), Some(new), Some(_), Some(test)] = all else {
        return Some(format!("{BUGS}: a line is missing in\n{bug}"));
    };
    if source.matches(old).count() != 1 {
        Some(format!("{BUGS}: {name}: {file} has this not exactly once: {old}"))
    } else if old == new || !test.contains(" -- ") {
        Some(format!("{BUGS}: {name} changes nothing, or names no tests"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_words_with_two_underscores() {
        let text = "`a_pod_waits` and `spec.pod_x`, `two_words`, a_b_c, `x_1_y`";
        assert_eq!(tests_named_in(text), ["a_pod_waits", "x_1_y"]);
        let functions: Vec<String> = functions_in("fn a_pod_waits() {}\n    async fn b(x: u8) {}").collect();
        assert_eq!(functions, ["a_pod_waits", "b"]);
    }

    #[test]
    fn a_planted_bug_has_one_place_a_meaning_and_tests() {
        let bug = "bug: late\nin: a.rs\nold: < 1\nnew: < 2\nmeans: it is late\ntest: -p a -- late";
        let wrong = |bug: &str, source: &str| wrong_with(bug, source).unwrap();
        assert_eq!(wrong_with(bug, "x < 1"), None);
        assert!(wrong(bug, "x < 3").contains("not exactly once"));
        assert!(wrong(bug, "x < 1 && y < 1").contains("not exactly once"));
        assert!(wrong(&bug.replace("means: it is late\n", ""), "x < 1").contains("missing"));
        assert!(wrong(&bug.replace("< 2", "< 1"), "x < 1").contains("changes nothing"));
        assert!(wrong(&bug.replace(" -- late", ""), "x < 1").contains("names no tests"));
    }
}
