//! The parts' logs, for the reader of a failed test.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Part;

/// At most this many lines per part: more would not be read.
const TAIL: usize = 60;

pub(crate) fn path(folder: &Path, part: Part) -> PathBuf {
    folder.join(format!("{part}.log"))
}

/// The length of each part's log at some moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lengths(BTreeMap<Part, u64>);

impl Lengths {
    pub(crate) fn now(folder: &Path) -> Self {
        let length = |part| Some((part, fs::metadata(path(folder, part)).ok()?.len()));
        Self(Part::ALL.into_iter().filter_map(length).collect())
    }
}

/// The last lines of each part since then, with a header per part.
pub(crate) fn since(folder: &Path, then: &Lengths) -> String {
    let mut text = String::new();
    for part in Part::ALL {
        let Ok(bytes) = fs::read(path(folder, part)) else {
            continue;
        };
        let start = then.0.get(&part).copied().unwrap_or_default().min(bytes.len() as u64) as usize;
        let written = String::from_utf8_lossy(&bytes[start..]);
        let lines: Vec<&str> = written.lines().collect();
        let shown = &lines[lines.len().saturating_sub(TAIL)..];
        // Writing to a string cannot fail.
        let _ = writeln!(text, "---- {part}: the last {} of {} lines ----", shown.len(), lines.len());
        for line in shown {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

pub(crate) fn tail(folder: &Path, part: Part) -> String {
    let text = fs::read(path(folder, part)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_since_is_shown_and_of_that_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let log = path(folder.path(), Part::Scheduler);
        fs::write(&log, "before\n").unwrap();
        let then = Lengths::now(folder.path());
        let lines: String = (1..=100).map(|number| format!("line {number}\n")).collect();
        fs::write(&log, format!("before\n{lines}")).unwrap();

        let text = since(folder.path(), &then);
        assert!(text.starts_with("---- kube-scheduler: the last 60 of 100 lines ----\nline 41\n"), "{text}");
        assert!(text.ends_with("line 100\n"), "{text}");
    }
}
