//! Collects problems of values, and finds those that many fields can have.

use super::problem::{Path, Problem};
use crate::{GoDuration, LabelSelector, SelectorField};

/// The maximum length of the name of a Lease or namespace.
const LONGEST_NAME: usize = 253;

/// The problems that were found so far.
#[derive(Default)]
pub(super) struct Found(Vec<Problem>);

impl Found {
    pub(super) fn problems(self) -> Vec<Problem> {
        self.0
    }

    pub(super) fn note(&mut self, path: Path, message: impl Into<String>) {
        self.0.push(Problem::new(path, message));
    }

    pub(super) fn add(&mut self, problem: Problem) {
        self.0.push(problem);
    }

    /// Names of Leases and namespaces are DNS names. The API server decides in the end; this check catches typing
    /// errors.
    pub(super) fn object_name(&mut self, path: &str, name: &str) {
        let edge =
            |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        let bytes = name.as_bytes();
        let good = bytes.len() <= LONGEST_NAME
            && edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|byte| edge(Some(byte)) || b"-.".contains(byte));
        if !good {
            let message = format!(
                "{name:?} cannot name an object: use lower-case letters, digits, '-' and '.', at most {LONGEST_NAME}"
            );
            self.note(Path::of(path), message);
        }
    }

    pub(super) fn selector(&mut self, selector: &LabelSelector, path: &Path) {
        for defect in selector.defects() {
            let expression = |index| path.field("matchExpressions").index(index);
            let at = match defect.field {
                SelectorField::MatchLabel(key) => path.field("matchLabels").key(&key),
                SelectorField::Key(index) => expression(index).field("key"),
                SelectorField::Values(index) => expression(index).field("values"),
                SelectorField::Value(index, position) => expression(index).field("values").index(position),
            };
            self.note(at, defect.message);
        }
    }

    pub(super) fn positive(&mut self, path: &str, value: GoDuration) {
        if value <= GoDuration::ZERO {
            self.note(Path::of(path), format!("{value} must be more than 0s"));
        }
    }

    pub(super) fn not_negative(&mut self, path: &str, value: GoDuration) {
        if value.is_negative() {
            self.note(Path::of(path), format!("{value} must not be negative"));
        }
    }
}
