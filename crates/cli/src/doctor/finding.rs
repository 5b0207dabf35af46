//! What a check found.

use std::cmp::Reverse;

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
    /// All checks that were made, with and without findings.
    pub(super) checked: Vec<Checked>,
    /// What a lost node costs, by class of workload.
    pub(super) lost_node: Vec<Cost>,
    pub(super) not_seen: Vec<NotSeen>,
}

impl Checkup {
    /// Adds the findings of these checks.
    pub(super) fn add(&mut self, checks: &[Check], findings: Vec<Finding>) {
        self.checked.splice(0..0, Checked::of(checks, &findings));
        self.findings.extend(findings);
        self.findings.sort_by_key(|finding| Reverse(finding.severity));
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Checked {
    pub(super) check: Check,
    /// What holds if it passes.
    pub(super) what: &'static str,
    /// Whether there is no error and no warning.
    pub(super) passed: bool,
}

impl Checked {
    /// The outcome of these checks.
    pub(super) fn of(checks: &[Check], findings: &[Finding]) -> Vec<Self> {
        let outcome = |check: &Check| Self {
            check: *check,
            what: check.what(),
            passed: !findings
                .iter()
                .any(|finding| finding.check == *check && finding.severity > Severity::Info),
        };
        checks.iter().map(outcome).collect()
    }
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
    Running,
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
    /// The checks of a cluster, in the order in which they are listed.
    pub(super) const OF_CLUSTER: [Self; 8] = [
        Self::Versions,
        Self::Rights,
        Self::Actors,
        Self::Rules,
        Self::Consents,
        Self::Clocks,
        Self::Timings,
        Self::Brake,
    ];

    /// What holds if nothing is found.
    fn what(self) -> &'static str {
        match self {
            Self::Running => "a replica leads, and Salvor is not paused",
            Self::Versions => "the API server has the features that the enabled recoveries need",
            Self::Rights => "every right that the enabled recoveries need is granted",
            Self::Actors => "nothing else acts on the same objects",
            Self::Rules => "rules, triggers and repair policies match what they should",
            Self::Consents => "what consents can be recovered",
            Self::Clocks => "the clocks of API servers and kubelets agree",
            Self::Timings => "Leases, tolerations and node monitoring fit each other",
            Self::Brake => "few enough nodes are unreachable",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
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
