//! What a check found.

use salvor_why::NotSeen;
use serde::{Serialize, Serializer};

use super::costs::Cost;

/// Limits how many objects one finding names.
const NAMED: usize = 10;

/// All findings, worst first.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Checkup {
    pub(super) findings: Vec<Finding>,
    /// What a lost node costs, by class of workload.
    pub(super) lost_node: Vec<Cost>,
    pub(super) not_seen: Vec<NotSeen>,
}

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// Good to know.
    Info,
    /// Something does not work as one may expect.
    Warning,
    /// A recovery cannot work, or two controllers act on the same objects.
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

/// The first few names, and the number of the others, in one line.
pub(super) fn some_of<T: AsRef<str>>(names: &[T]) -> String {
    let shown = names.iter().take(NAMED).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// `1 node`, `2 nodes`.
pub(super) fn count(number: usize, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}
