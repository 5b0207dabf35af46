//! The answer, in the form that `-o json` prints.

use jiff::Timestamp;
use salvor_recovery::expected::ExpectedBack;
use serde::Serialize;

use crate::code::Code;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Object {
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
}

impl Object {
    pub fn of(kind: &str, namespace: &str, name: &str) -> Self {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        Self { kind: kind.to_owned(), namespace: namespace.map(str::to_owned), name: name.to_owned() }
    }
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.kind)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RootCause {
    pub code: Code,
    /// The object that has the problem.
    pub object: Object,
    pub message: String,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    /// When its pods are back.
    pub expected_back: ExpectedBack,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    pub object: Object,
    pub says: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remedy {
    pub text: String,
    pub command: Option<String>,
}

impl Remedy {
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), command: None }
    }

    pub fn command(text: impl Into<String>, command: impl Into<String>) -> Self {
        Self { text: text.into(), command: Some(command.into()) }
    }
}

/// Something that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NotSeen {
    pub what: String,
    pub why: String,
}

/// The diagnosis of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    pub about: Object,
    /// For example `1 of 2 pods`; `None` if nothing is missing.
    pub missing: Option<String>,
    /// Worst first.
    pub root_causes: Vec<RootCause>,
    /// When nothing is missing any more, by all root causes together.
    pub expected_back: ExpectedBack,
    /// From the requested object down to the object of the first root cause.
    pub chain: Vec<Link>,
    /// A remedy that may make work run twice never comes first.
    pub remedies: Vec<Remedy>,
    pub not_seen: Vec<NotSeen>,
}

/// The diagnosis of all workloads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// Grouped by root cause and object, worst first.
    pub groups: Vec<Group>,
    pub not_seen: Vec<NotSeen>,
}

/// All workloads that wait for the same root cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    pub root_cause: RootCause,
    /// How many pods wait. Pods that were never created are not counted.
    pub pods: usize,
    pub workloads: Vec<Waiting>,
    pub remedies: Vec<Remedy>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Waiting {
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
    pub missing: String,
}
