//! What an owner can consent to, and why an object cannot opt in.

use std::fmt;

use salvor_api::names::annotations;
use serde_json::Value;

use super::edit::Path;

/// What the owner of a pod allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    Terminate,
    Delete,
}

impl Consent {
    pub const fn annotation(self) -> &'static str {
        match self {
            Self::Terminate => annotations::SAFE_TO_FORCEFULLY_TERMINATE,
            Self::Delete => annotations::SAFE_TO_FORCEFULLY_DELETE,
        }
    }
}

/// Why an object cannot opt in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Two copies of its work must not run, for this reason.
    AtMostOne { at: Path, why: String },
    /// A value is not what it must be.
    Wrong { at: Path, found: String, right: &'static str },
}

impl Problem {
    pub(super) fn wrong(at: &Path, found: &Value, right: &'static str) -> Self {
        const LONGEST_SHOWN: usize = 60;
        let found = found.to_string();
        let found = match found.char_indices().nth(LONGEST_SHOWN) {
            Some((end, _)) => format!("{}…", &found[..end]),
            None => found,
        };
        Self::Wrong { at: at.clone(), found, right }
    }

    /// This problem, as seen from an object in which the object that has it is at `prefix`.
    pub(super) fn behind(self, prefix: &Path) -> Self {
        match self {
            Self::AtMostOne { at, why } => Self::AtMostOne { at: at.behind(prefix), why },
            Self::Wrong { at, found, right } => Self::Wrong { at: at.behind(prefix), found, right },
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMostOne { at, why } => write!(f, "{}two copies of it must not run: {why}", place(at)),
            Self::Wrong { at, found, right } => write!(f, "{}{found} cannot be used: {right}", place(at)),
        }
    }
}

/// The start of a message about a place. The object itself needs none.
pub(super) fn place(at: &Path) -> String {
    if at.segments().is_empty() { String::new() } else { format!("{at}: ") }
}
