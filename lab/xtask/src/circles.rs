//! No files of a crate import each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use crate::modules::{self, Arrows};
use crate::{Outcome, entries};

pub(crate) fn check(root: &Path) -> Result<Outcome, String> {
    let complaints: Vec<String> =
        graphs(root)?.iter().flat_map(|(name, arrows)| complaints(name, arrows)).collect();
    Ok(Outcome { report: format!("{} circles of imports\n", complaints.len()), complaints })
}

/// The arrows in each crate that a user's cluster runs.
fn graphs(root: &Path) -> Result<BTreeMap<String, Arrows>, String> {
    let crates = entries(&root.join("crates")).into_iter().filter(|path| path.join("src").is_dir());
    crates
        .map(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok((name, modules::arrows(&path.join("src"))?))
        })
        .collect()
}

/// One for each circle, with the name that closes each of its arrows.
fn complaints(name: &str, arrows: &Arrows) -> Vec<String> {
    let complaint = |files: BTreeSet<String>| {
        let listed: Vec<&str> = files.iter().map(String::as_str).collect();
        let listed = listed.join(" ");
        format!("these files import each other in a circle\n{name}: {listed}\n{}", drawn(&files, arrows))
    };
    circles(arrows).into_iter().map(complaint).collect()
}

/// Sets of files each of which leads to every other one.
fn circles(arrows: &Arrows) -> BTreeSet<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        arrows.keys().map(|file| (file, reached_from(file, arrows))).collect();
    let circle_of = |file: &String| -> BTreeSet<String> {
        let back = |other: &&&String| reached.get(**other).is_some_and(|there| there.contains(file));
        reached[file].iter().filter(back).map(|other| (*other).clone()).collect()
    };
    arrows.keys().map(circle_of).filter(|circle| circle.len() > 1).collect()
}

fn reached_from<'a>(file: &'a String, arrows: &'a Arrows) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut next = vec![file];
    while let Some(file) = next.pop() {
        for to in arrows.get(file).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(to) {
                next.push(to);
            }
        }
    }
    reached
}

/// The arrows within a circle, a line for each.
fn drawn(files: &BTreeSet<String>, arrows: &Arrows) -> String {
    let mut text = String::new();
    for from in files {
        for (to, name) in arrows.get(from).into_iter().flatten().filter(|(to, _)| files.contains(*to)) {
            let _ = writeln!(text, "    {from} -> {to} ({name})");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows_of(pairs: &[(&str, &str)]) -> Arrows {
        let mut arrows = Arrows::new();
        for (from, to) in pairs {
            arrows.entry((*to).to_owned()).or_default();
            arrows.entry((*from).to_owned()).or_default().insert((*to).to_owned(), "X".to_owned());
        }
        arrows
    }

    fn found(pairs: &[(&str, &str)]) -> Vec<String> {
        circles(&arrows_of(pairs)).into_iter().map(|files| Vec::from_iter(files).join(" ")).collect()
    }

    #[test]
    fn files_that_lead_to_each_other_are_a_circle() {
        assert!(found(&[("a", "b"), ("b", "c"), ("a", "c")]).is_empty());
        assert_eq!(found(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]), ["a b c"]);
        assert_eq!(found(&[("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "c")]), ["a b", "c d"]);
        // Two that share a file are one.
        assert_eq!(found(&[("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")]), ["a b c"]);
    }

    #[test]
    fn a_complaint_names_the_arrows_of_its_circle() {
        let arrows = arrows_of(&[("a", "b"), ("b", "a"), ("b", "c")]);
        let expected =
            "these files import each other in a circle\nwhy: a b\n    a -> b (X)\n    b -> a (X)\n";
        assert_eq!(complaints("why", &arrows), [expected]);
    }
}
