//! A scenario: the nodes, the work, what fails, and how Salvor is configured. `salvor demo` and `salvor simulate` play
//! the same files.
//!
//! [`Scenario::read`] reads a file. [`Scenario::incidents`] draws its failures by a seed. [`raise`] and [`create`]
//! build its cluster and its work, and [`missing`] finds the work that does not run.

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

/// The story that `salvor demo` plays by default.
pub const DEMO: &str = include_str!("zone-outage.yaml");
pub const API_VERSION: &str = "salvor.dev/v1alpha1";
pub const KIND: &str = "Scenario";

/// The pool of the nodes with an accelerator in the short form, and the prefix of their names.
pub const GPU_POOL: &str = "gpu";
/// The label of the rack of a node.
pub const RACK: &str = "topology.kubernetes.io/rack";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// The text is no YAML, or has an unknown field.
    #[error("{0}")]
    Yaml(String),
    #[error("line {line}: {field}: {problem}")]
    Value {
        /// From 1.
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
    /// Also the title of the first chapter.
    pub title: String,
    /// A sentence or two about it.
    pub say: String,
    pub pools: Vec<Pool>,
    /// All nodes of the beginning, in order.
    pub nodes: Vec<Node>,
    pub workloads: Vec<Workload>,
    /// Chapters, each with its delay after the previous one.
    pub steps: Vec<Step>,
    /// Failures besides those of the chapters.
    pub failures: Vec<Failure>,
    pub salvor: Settings,
    /// Without `end`, the play ends this long after the last failure. Everything must have recovered by then.
    pub patience: Duration,
    pub end: Option<Duration>,
    /// A kill is needless if the machine was back within this time after it.
    pub back_soon: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// False plays without Salvor.
    pub enabled: bool,
    pub configuration: Configuration,
    /// The `spec` of each NodeRepairPolicy, by name.
    pub repair_policies: BTreeMap<String, Value>,
}

/// Identical nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Also the value of the label `pool` of its nodes.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// Resources of each node.
    pub capacity: BTreeMap<String, String>,
    /// True if the provider may reclaim the nodes.
    pub spot: bool,
    /// If set, its nodes have NodeClaims, and a simulated Karpenter replaces them.
    pub machines: Option<Machines>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: Option<String>,
    pub effect: String,
}

/// How long the machines of a pool take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machines {
    /// From the deletion of the NodeClaim until the machine is gone.
    pub shutdown: Duration,
    /// From the launch until the node registers.
    pub boot: Duration,
}

/// A node of the beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub pool: String,
    pub zone: String,
    pub rack: Option<String>,
}

/// The condition that marks a node as unhealthy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    pub kind: String,
    /// While the node is unhealthy.
    pub status: String,
    /// While the node is unhealthy.
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The machine is off.
    Crash,
    /// No traffic gets through in either direction; its containers keep running.
    Partition,
    /// The kubelet is dead; its containers keep running.
    KubeletStop,
    /// Every call of its kubelet takes this much longer.
    Slow(Duration),
    /// Alternates between partitioned and reachable.
    Flapping {
        down: Duration,
        up: Duration,
    },
    /// An agent reports a failing condition. The pods on the node run but make no progress.
    Sick(Condition),
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

/// What happens to nodes in a chapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    Fault(Fault),
    /// All their failures end.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The time after the previous step.
    pub after: Duration,
    pub title: String,
    pub say: String,
    /// All work must run by now.
    pub expect_recovered: bool,
    pub strike: Option<(Deed, Vec<String>)>,
}

/// Where a scenario comes from: files that it names are beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The folder of the file.
    pub folder: PathBuf,
}

impl Scenario {
    /// Reads a scenario. Files that it names are looked up in the folder of `source`.
    ///
    /// # Errors
    /// The first problem, with its line.
    pub fn read(text: &str, source: &Source) -> Result<Self, ScenarioError> {
        read::scenario(text, source)
    }

    /// Adds a failure that is written in one line: its kind, its target, and its duration, for example `partition
    /// zone=b 15m`. It happens after five minutes, or at a given time, for example `at=10m`.
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

    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == name)
    }

    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }
}
