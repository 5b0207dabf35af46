//! No files of a crate name each other in a circle, except for those in `circles.txt`, which only gets shorter.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use crate::modules::{self, Arrows};
use crate::{Outcome, entries, read};

const LIST: &str = "lab/xtask/circles.txt";

/// A crate, and files of it that all lead to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Circle {
    name: String,
    files: BTreeSet<String>,
}

impl Circle {
    /// One line of the list: `why: jobs.rs owners.rs`.
    fn parse(line: &str) -> Option<Self> {
        let (name, files) = line.split_once(':')?;
        Some(Self { name: name.to_owned(), files: files.split_whitespace().map(str::to_owned).collect() })
    }

    fn line(&self) -> String {
        let files: Vec<&str> = self.files.iter().map(String::as_str).collect();
        format!("{}: {}", self.name, files.join(" "))
    }

    fn is_part_of(&self, other: &Self) -> bool {
        self.name == other.name && self.files.is_subset(&other.files)
    }
}

pub(crate) fn check(root: &Path) -> Result<Outcome, String> {
    let graphs = graphs(root)?;
    let found = all(&graphs);
    let mut listed = Vec::new();
    for (number, line) in read(&root.join(LIST))?.lines().enumerate() {
        if !line.is_empty() && !line.starts_with('#') {
            let circle = Circle::parse(line);
            let circle = circle.ok_or_else(|| format!("{LIST}:{}: not `crate: files`", number + 1))?;
            listed.push((number + 1, circle));
        }
    }
    let files: usize = found.iter().map(|circle| circle.files.len()).sum();
    let report = format!("{} circles of imports with {files} files\n", found.len());
    Ok(Outcome { report, complaints: differences(&found, &listed, &graphs) })
}

/// Every circle, with the arrows in it: what to look at to open one.
pub(crate) fn arrows(root: &Path) -> Result<Outcome, String> {
    let graphs = graphs(root)?;
    let all = all(&graphs);
    let report =
        all.iter().map(|circle| format!("{}\n{}", circle.line(), drawn(circle, &graphs[&circle.name])));
    Ok(Outcome { report: report.collect(), ..Outcome::default() })
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

fn all(graphs: &BTreeMap<String, Arrows>) -> Vec<Circle> {
    let of = |(name, arrows): (&String, &Arrows)| {
        let circle = |files| Circle { name: name.clone(), files };
        circles(arrows).into_iter().map(circle).collect::<Vec<_>>()
    };
    graphs.iter().flat_map(of).collect()
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
fn drawn(circle: &Circle, arrows: &Arrows) -> String {
    let mut text = String::new();
    for from in &circle.files {
        for (to, name) in arrows.get(from).into_iter().flatten().filter(|(to, _)| circle.files.contains(*to))
        {
            let _ = writeln!(text, "    {from} -> {to} ({name})");
        }
    }
    text
}

/// What is wrong: circles that are not in the list, and lines of the list that say more than there is.
fn differences(
    found: &[Circle],
    listed: &[(usize, Circle)],
    graphs: &BTreeMap<String, Arrows>,
) -> Vec<String> {
    let mut complaints = Vec::new();
    for circle in found.iter().filter(|circle| !listed.iter().any(|(_, known)| circle.is_part_of(known))) {
        let arrows = graphs.get(&circle.name).map(|arrows| drawn(circle, arrows)).unwrap_or_default();
        complaints.push(format!("these files import each other in a circle\n{}\n{arrows}", circle.line()));
    }
    for (number, known) in listed.iter().filter(|(_, known)| !found.contains(known)) {
        let left: Vec<String> =
            found.iter().filter(|circle| circle.is_part_of(known)).map(Circle::line).collect();
        complaints.push(if left.is_empty() {
            format!("this circle is gone or has grown: delete line {number} of {LIST}\n{}", known.line())
        } else {
            format!("this circle is smaller now: replace line {number} of {LIST} by\n{}", left.join("\n"))
        });
    }
    complaints
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
        all(&BTreeMap::from([("why".to_owned(), arrows_of(pairs))])).iter().map(Circle::line).collect()
    }

    #[test]
    fn files_that_lead_to_each_other_are_a_circle() {
        assert!(found(&[("a", "b"), ("b", "c"), ("a", "c")]).is_empty());
        assert_eq!(found(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]), ["why: a b c"]);
        assert_eq!(
            found(&[("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "c")]),
            ["why: a b", "why: c d"]
        );
        // Two that share a file are one.
        assert_eq!(found(&[("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")]), ["why: a b c"]);
    }

    #[test]
    fn the_list_of_circles_only_gets_shorter() {
        let graphs = BTreeMap::from([(
            "why".to_owned(),
            arrows_of(&[("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")]),
        )]);
        let complaints = |lines: &[&str]| {
            let listed: Vec<(usize, Circle)> =
                lines.iter().zip(1..).map(|(line, n)| (n, Circle::parse(line).unwrap())).collect();
            differences(&all(&graphs), &listed, &graphs)
        };
        assert!(complaints(&["why: a b", "why: c d"]).is_empty());
        assert!(
            complaints(&["why: b a"])[0].starts_with("these files import each other in a circle\nwhy: c d\n")
        );
        let smaller = complaints(&["why: a b c d e"]);
        assert_eq!(smaller.len(), 1);
        assert!(smaller[0].ends_with("replace line 1 of lab/xtask/circles.txt by\nwhy: a b\nwhy: c d"));
        let gone = complaints(&["why: a b", "why: c d", "why: e f"]);
        assert!(gone[0].contains("delete line 3") && gone.len() == 1, "{gone:?}");
        assert_eq!(complaints(&["why: a b", "page: c d"]).len(), 2);
    }
}
