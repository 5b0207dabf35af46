//! The accepted differences between the embedded API and the real one, each with its reason.

/// An accepted difference: in which transcript, at which step, in which field, and why.
pub(crate) struct Accepted {
    title: &'static str,
    step: usize,
    path: &'static str,
    #[expect(dead_code, reason = "it is for the reader")]
    why: &'static str,
}

const ACCEPTED: &[Accepted] = &[Accepted {
    title: "tables: workloads",
    step: 8,
    path: "/rows/0/object/metadata/annotations",
    why: "the deprecated annotation of daemon sets comes from a conversion that tables leave out; nobody reads it",
}];

/// The entry that allows a difference.
pub(crate) fn accepted(title: &str, step: usize, path: &str) -> Option<usize> {
    ACCEPTED.iter().position(|entry| entry.title == title && entry.step == step + 1 && entry.path == path)
}

/// Entries for the played transcripts that were not needed.
pub(crate) fn unused(titles: &[String], used: &[usize]) -> Vec<(&'static str, usize, &'static str)> {
    ACCEPTED
        .iter()
        .enumerate()
        .filter(|(index, entry)| titles.iter().any(|title| title == entry.title) && !used.contains(index))
        .map(|(_, entry)| (entry.title, entry.step, entry.path))
        .collect()
}
