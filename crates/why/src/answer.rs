//! The answer, in the form that `-o json` prints.

use jiff::Timestamp;
use serde::Serialize;

use crate::code::Code;

/// An object by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Object {
    /// Its kind, such as `Job`.
    pub kind: String,
    /// Its namespace, if its kind has one.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl Object {
    /// An object in a namespace.
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

/// Why something is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RootCause {
    /// Which one of the list.
    pub code: Code,
    /// The object in which it lies.
    pub object: Object,
    /// The same as a sentence.
    pub message: String,
    /// Since when, if that is known.
    pub since: Option<Timestamp>,
    /// Until when, if that is known.
    pub until: Option<Timestamp>,
}

/// One object of the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// The object.
    pub object: Object,
    /// What it says.
    pub says: String,
}

/// Something that can be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// In one line.
    pub text: String,
    /// A command that does it, if there is one.
    pub command: Option<String>,
}

impl Remedy {
    /// A remedy that is no command.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), command: None }
    }

    /// A remedy that is a command.
    pub fn command(text: impl Into<String>, command: impl Into<String>) -> Self {
        Self { text: text.into(), command: Some(command.into()) }
    }
}

/// Something that could not be looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NotSeen {
    /// The thing.
    pub what: String,
    /// The reason.
    pub why: String,
}

/// Why an object does not come back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The object that was asked about.
    pub about: Object,
    /// What is missing, such as `1 of 2 pods`; none if nothing is.
    pub missing: Option<String>,
    /// Why, worst first.
    pub root_causes: Vec<RootCause>,
    /// From what was asked about down to the first root cause's object.
    pub chain: Vec<Link>,
    /// What can be done; what may make work run twice never comes first.
    pub remedies: Vec<Remedy>,
    /// What could not be looked at.
    pub not_seen: Vec<NotSeen>,
}

/// Everything that does not come back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// By root cause and object, worst first.
    pub groups: Vec<Group>,
    /// What could not be looked at.
    pub not_seen: Vec<NotSeen>,
}

/// All that waits for the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// The root cause.
    pub root_cause: RootCause,
    /// Whoever waits.
    pub workloads: Vec<Waiting>,
    /// What can be done.
    pub remedies: Vec<Remedy>,
}

/// A workload that waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Waiting {
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// What is missing of it.
    pub missing: String,
}
