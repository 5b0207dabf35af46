//! What a check found.

use salvor_why::NotSeen;
use serde::Serialize;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Check {
    Versions,
    Rights,
    Actors,
    Brake,
}
