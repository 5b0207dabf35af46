//! What a check found.

use salvor_why::NotSeen;
use serde::{Serialize, Serializer};

/// So many objects are named in one finding.
const NAMED: usize = 10;

/// All that was found, worst first.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Checkup {
    pub(super) findings: Vec<Finding>,
    pub(super) not_seen: Vec<NotSeen>,
}

/// One thing that somebody should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) check: Check,
    pub(super) what: String,
    /// Why it matters.
    pub(super) why: String,
    pub(super) fix: String,
}

impl Finding {
    pub(super) fn new(
        severity: Severity,
        check: Check,
        what: impl Into<String>,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { severity, check, what: what.into(), why: why.into(), fix: fix.into() }
    }
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// Good to know.
    Info,
    /// Something will not work as one may think.
    Warning,
    /// A recovery cannot do its work, or two actors act on the same objects.
    Error,
}

impl Severity {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Info => "INFO",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
        }
    }
}

/// The check that found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    Versions,
    Rights,
    Actors,
    Rules,
    Consents,
    Clocks,
    Timings,
    Brake,
}

impl Check {
    /// Its name, as in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Versions => "versions",
            Self::Rights => "rights",
            Self::Actors => "actors",
            Self::Rules => "rules",
            Self::Consents => "consents",
            Self::Clocks => "clocks",
            Self::Timings => "timings",
            Self::Brake => "brake",
        }
    }
}

impl Serialize for Check {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Names in one line: the first few, and how many there are besides.
pub(super) fn some_of<T: AsRef<str>>(names: &[T]) -> String {
    let shown = names.iter().take(NAMED).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// A number of things: `1 node`, `2 nodes`.
pub(super) fn count(number: usize, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}
