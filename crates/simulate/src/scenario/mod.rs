//! A scenario: which nodes and work there are, what fails, and how Salvor is set. `salvor demo` and `salvor simulate` play the same files.
//!
//! [`Scenario::read`] reads a file. [`Scenario::incidents`] draws its failures by a seed. [`raise`] and [`create`] build its cluster
//! and its work, and [`missing`] says what of the work does not run.

mod capture;
mod choice;
mod csv;
mod failures;
mod file;
mod missing;
mod objects;
mod raise;
mod read;
mod salvor;
mod schema;
#[cfg(test)]
mod tests;
mod words;
mod workloads;

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use salvor_api::config::Configuration;
use serde::Serialize;
use serde_json::Value;

pub use capture::{Captured, Names, Objects, capture};
pub use failures::{Failure, Incident, Lasting, Timing, Unit};
pub use file::other_files;
pub use missing::{Missing, missing};
pub use objects::{Wrapping, create};
pub use raise::{
    ACCELERATOR, accelerator_condition, introduce, join_spread, moment, raise, raise_spread, tell_condition,
};
pub use salvor::{built_in as built_in_configuration, in_simulation};
pub use schema::schema;
pub use workloads::{Amount, Budget, Consent, Shape, Workload};

/// The story that `salvor demo` plays when no other is given.
pub const DEMO: &str = include_str!("zone-outage.yaml");
/// The version of the format.
pub const API_VERSION: &str = "salvor.dev/v1alpha1";
/// The kind of the format.
pub const KIND: &str = "Scenario";

/// The pool of the nodes with an accelerator in the short form. They are named after it.
pub const GPU_POOL: &str = "gpu";
/// The label of the rack of a node.
pub const RACK: &str = "topology.kubernetes.io/rack";

/// Why a file is no scenario.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// The text is no YAML, or has a field that the format does not know.
    #[error("{0}")]
    Yaml(String),
    /// A value cannot be used.
    #[error("line {line}: {field}: {problem}")]
    Value {
        /// The line, from 1.
        line: u64,
        /// The path of the field.
        field: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
}

/// A scenario that can be played.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Its name: the first chapter of a story.
    pub title: String,
    /// A sentence or two about it.
    pub say: String,
    /// The pools of nodes.
    pub pools: Vec<Pool>,
    /// All nodes of the beginning, in order.
    pub nodes: Vec<Node>,
    /// The work.
    pub workloads: Vec<Workload>,
    /// Chapters, each with the time after the one before.
    pub steps: Vec<Step>,
    /// What fails besides.
    pub failures: Vec<Failure>,
    /// How Salvor is set.
    pub salvor: Settings,
    /// Without `end`, this long after the last failure the play ends. Everything must have recovered by then.
    pub patience: Duration,
    /// The play ends at this time.
    pub end: Option<Duration>,
    /// A kill is in vain if the machine was back within this time after it.
    pub back_soon: Duration,
}

/// How Salvor is set in a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// False plays without Salvor.
    pub enabled: bool,
    /// Its configuration.
    pub configuration: Configuration,
    /// The `spec` of each NodeRepairPolicy, by name.
    pub repair_policies: BTreeMap<String, Value>,
}

/// Nodes that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name, which is the label `pool` of its nodes.
    pub name: String,
    /// Labels of its nodes.
    pub labels: BTreeMap<String, String>,
    /// Taints of its nodes.
    pub taints: Vec<Taint>,
    /// Resources of each node.
    pub capacity: BTreeMap<String, String>,
    /// True if the nodes may be taken away by their owner.
    pub spot: bool,
    /// Its nodes have NodeClaims, and a simulated Karpenter replaces them.
    pub machines: Option<Machines>,
}

/// The taint of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Option<String>,
    /// Its effect.
    pub effect: String,
}

/// How long the machines of a pool need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machines {
    /// From the order to end until the end.
    pub shutdown: Duration,
    /// From the launch until the node registers.
    pub boot: Duration,
}

/// A node of the beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The name of its pool.
    pub pool: String,
    /// Its zone.
    pub zone: String,
    /// Its rack, if there are any.
    pub rack: Option<String>,
}

/// The condition that makes a node sick.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its type.
    pub kind: String,
    /// Its status while the node is sick.
    pub status: String,
    /// Its reason while the node is sick.
    pub reason: String,
}

/// The way in which a node fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The machine is off.
    Crash,
    /// Nothing gets through either way; its containers run on.
    Partition,
    /// The kubelet is dead; its containers run on.
    KubeletStop,
    /// Every call of its kubelet takes this much longer.
    Slow(Duration),
    /// Cut off and back in turn.
    Flapping {
        /// It is cut off for this long each time.
        down: Duration,
        /// It is back for this long each time.
        up: Duration,
    },
    /// An agent says that something on the node does not work. Its pods run and make no progress.
    Sick(Condition),
    /// The machine restarts.
    Reboot,
}

impl Fault {
    /// Its name in a file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Partition => "partition",
            Self::KubeletStop => "kubeletStop",
            Self::Slow(_) => "slow",
            Self::Flapping { .. } => "flapping",
            Self::Sick(_) => "sick",
            Self::Reboot => "reboot",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Something that happens to nodes in a chapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// They fail.
    Fault(Fault),
    /// Whatever they suffer from is over.
    Heal,
}

impl Deed {
    /// Its name in a file.
    fn name(&self) -> &'static str {
        match self {
            Self::Fault(Fault::Sick(_)) => "failAccelerator",
            Self::Fault(fault) => fault.name(),
            Self::Heal => "heal",
        }
    }
}

/// One chapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The time after the step before.
    pub after: Duration,
    /// Its title.
    pub title: String,
    /// Its text.
    pub say: String,
    /// All work must run by now.
    pub expect_recovered: bool,
    /// The deed, and its nodes.
    pub strike: Option<(Deed, Vec<String>)>,
}

/// Where a scenario comes from: files that it names are beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The folder of the file.
    pub folder: PathBuf,
}

impl Scenario {
    /// Reads a scenario. Files that it names are looked for in the folder of `source`.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn read(text: &str, source: &Source) -> Result<Self, ScenarioError> {
        read::scenario(text, source)
    }

    /// Adds a failure that is written in one line: its kind, its target, and for how long, such as `partition zone=b 15m`. It happens
    /// after five minutes, or at a time such as `at=10m`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn fail(&mut self, line: &str) -> Result<(), String> {
        let failure = csv::line(self, line)?;
        self.failures.push(failure);
        Ok(())
    }

    /// Plays of scenarios with the same fingerprint, by the same version, can be joined.
    pub fn fingerprint(&self) -> String {
        capture::hash(&format!("{} {self:?}", env!("CARGO_PKG_VERSION")))
    }

    /// The pool of a node.
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == name)
    }

    /// The node of a name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }
}
