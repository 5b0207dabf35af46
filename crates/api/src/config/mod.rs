//! The configuration file, `config.salvor.dev/v1alpha1` `Configuration`.
//!
//! [`parse`] reads it: every field against the table in [`fields`](FIELDS), then the values against each other.
//! Everything that is wrong is reported at once, each problem with its field, its line and what would be right.

mod appwrapper;
mod document;
mod fields;
mod problem;
mod schema;
mod validate;

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

pub use appwrapper::{
    AppWrapperSettings, AutopilotSettings, FaultTolerance, ParseWrappedKindError, ResourceTaint, WrappedKind,
};
pub use fields::{FIELDS, Field, Kind, Presence, defaults_yaml, reference};
pub use problem::{ConfigError, Path, Problem, Segment};

use crate::{ControllerList, FeatureGates, GoDuration, LabelSelector, names};

/// Reads a configuration file's text.
///
/// # Errors
/// All problems that were found. Errors of YAML syntax stop the reading, so they come alone; errors in a field's form
/// may hide errors between fields.
pub fn parse(text: &str) -> Result<Configuration, ConfigError> {
    let document = document::read(text)?;
    let (value, mut problems) = schema::check(&document);
    let typed = serde_json::from_value::<Configuration>(value);
    if let Ok(configuration) = &typed {
        let mut contradictions = configuration.problems();
        // A value that was refused is missing in the typed configuration: what is said about its surroundings may be wrong.
        contradictions.retain(|found| !problems.iter().any(|refused| found.path.leads_to(&refused.path)));
        problems.extend(contradictions);
    }
    for problem in &mut problems {
        problem.line = document.line_of(&problem.path);
    }
    match typed {
        Ok(configuration) if problems.is_empty() => Ok(configuration),
        // The schema is stricter than the types, so this is a gap in the schema; still the user's file is refused, not us.
        Err(error) if problems.is_empty() => Err(ConfigError::whole_file(error.to_string())),
        _ => Err(ConfigError { problems }),
    }
}

/// Everything that an administrator can set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Configuration {
    /// The group and version of this file.
    pub api_version: String,
    /// The kind of this file.
    pub kind: String,
    /// Features switched on or off.
    pub feature_gates: FeatureGates,
    /// Which recoveries run.
    pub controllers: ControllerList,
    /// Whether to judge and report, but not to write to the objects judged.
    pub dry_run: bool,
    /// How replicas agree on the one that acts.
    pub leader_election: LeaderElection,
    /// Where metrics and health are served.
    pub bind: SocketAddr,
    /// The page that shows the cluster.
    pub page: PageSettings,
    /// The form of log lines.
    pub log_format: LogFormat,
    /// How much is done at once.
    pub concurrency: Concurrency,
    /// How old a view of the cluster may be.
    pub staleness: Staleness,
    /// The rules of zombie recovery.
    pub failure_recovery_policy: FailureRecoveryPolicy,
    /// How Jobs are run.
    pub job: JobSettings,
    /// How nodes that are down are emptied.
    pub eviction: EvictionSettings,
    /// How AppWrappers are run.
    pub appwrapper: AppWrapperSettings,
    /// What holds all recoveries back when too much fails at once.
    pub brake: BrakeLimits,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            api_version: names::configuration::API_VERSION.into(),
            kind: names::configuration::KIND.into(),
            feature_gates: FeatureGates::default(),
            controllers: ControllerList::default(),
            dry_run: false,
            leader_election: LeaderElection::default(),
            bind: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080)),
            page: PageSettings::default(),
            log_format: LogFormat::Text,
            concurrency: Concurrency::default(),
            staleness: Staleness::default(),
            failure_recovery_policy: FailureRecoveryPolicy::default(),
            job: JobSettings::default(),
            eviction: EvictionSettings::default(),
            appwrapper: AppWrapperSettings::default(),
            brake: BrakeLimits::default(),
        }
    }
}

/// How replicas agree on the one that acts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LeaderElection {
    /// Whether to elect at all.
    pub enabled: bool,
    /// The Lease's name.
    pub lease_name: String,
    /// The Lease's namespace.
    pub lease_namespace: String,
    /// How long a claim holds without being renewed.
    pub lease_duration: GoDuration,
    /// How long the leader tries to renew before it gives up.
    pub renew_deadline: GoDuration,
    /// The pause between two tries.
    pub retry_period: GoDuration,
}

impl Default for LeaderElection {
    fn default() -> Self {
        Self {
            enabled: true,
            lease_name: "salvor".into(),
            lease_namespace: "salvor-system".into(),
            lease_duration: GoDuration::from_secs(15),
            renew_deadline: GoDuration::from_secs(10),
            retry_period: GoDuration::from_secs(2),
        }
    }
}

/// The page that shows the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PageSettings {
    /// Whether it is served at all.
    pub enabled: bool,
    /// Where.
    pub bind: SocketAddr,
}

impl Default for PageSettings {
    fn default() -> Self {
        Self { enabled: false, bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 8081)) }
    }
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines, one object a line.
    Json,
}

/// How much is done at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Concurrency {
    /// Writes in flight at the same time: of what recovers, and as many of Jobs.
    pub writes: u32,
}

impl Default for Concurrency {
    fn default() -> Self {
        Self { writes: 32 }
    }
}

/// How old a view of the cluster may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Staleness {
    /// A watch silent for longer makes `/readyz` fail.
    pub ready_limit: GoDuration,
    /// A watch silent for longer allows no irreversible action.
    pub irreversible_action_limit: GoDuration,
}

impl Default for Staleness {
    fn default() -> Self {
        Self { ready_limit: GoDuration::from_secs(180), irreversible_action_limit: GoDuration::from_secs(90) }
    }
}

/// The rules of zombie recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct FailureRecoveryPolicy {
    /// How long a node must have been unreachable before anything on it is recovered.
    pub minimum_unreachable_duration: GoDuration,
    /// How pods are treated that carry an opt-in annotation.
    pub annotated_pods: AnnotatedPods,
    /// What is recovered beside annotated pods; the first rule that matches counts.
    pub rules: Vec<FailureRecoveryRule>,
}

/// How pods are treated that carry an opt-in annotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AnnotatedPods {
    /// The wait between the end of a pod's own grace period and its recovery, if it asks for none itself.
    pub forceful_termination_grace_period: GoDuration,
    /// The shortest wait that a pod may ask for.
    pub minimum_forceful_termination_grace_period: GoDuration,
}

impl Default for AnnotatedPods {
    /// The minute of KEP-6757.
    fn default() -> Self {
        Self {
            forceful_termination_grace_period: GoDuration::from_secs(60),
            minimum_forceful_termination_grace_period: GoDuration::ZERO,
        }
    }
}

/// One rule of zombie recovery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailureRecoveryRule {
    /// Recovers stuck pods one by one.
    TerminatePod(TerminatePod),
    /// Declares a whole node out of service.
    TaintNodeOutOfService(TaintNodeOutOfService),
}

/// Recovers stuck pods with certain labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TerminatePod {
    /// Which pods.
    pub pod_label_selector: LabelSelector,
    /// The wait between the end of a pod's own grace period and its recovery.
    pub forceful_termination_grace_period: GoDuration,
    /// What recovery means.
    #[serde(default)]
    pub action: TerminateAction,
}

/// What is done to a stuck pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TerminateAction {
    /// The pod becomes `Failed`.
    #[default]
    Fail,
    /// The pod becomes `Failed` and is then force deleted.
    FailAndDelete,
}

/// Declares nodes with certain labels out of service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaintNodeOutOfService {
    /// Which nodes.
    pub node_selector: LabelSelector,
    /// How long a node must have been unreachable.
    pub unreachable_node_timeout: GoDuration,
}

/// How Jobs are run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct JobSettings {
    /// Whether Jobs are taken too that the built-in controller would run.
    pub unmanaged_jobs: bool,
    /// Whether finished Jobs are deleted after their time to live.
    pub delete_finished_jobs: bool,
    /// Jobs that are worked on at once.
    pub concurrent_jobs: u32,
    /// Ended pods that are written down at once before their finalizers go.
    pub max_uncounted_pods: u32,
    /// Pods created or deleted in one go.
    pub max_pods_at_once: u32,
    /// The least time between two status writes that only move counters.
    pub batch_period: GoDuration,
    /// The wait after the first failure of a pod.
    pub backoff_base: GoDuration,
    /// The longest wait after a failure of a pod.
    pub backoff_max: GoDuration,
}

impl Default for JobSettings {
    fn default() -> Self {
        Self {
            unmanaged_jobs: false,
            delete_finished_jobs: false,
            concurrent_jobs: 32,
            max_uncounted_pods: 500,
            max_pods_at_once: 500,
            batch_period: GoDuration::from_secs(1),
            backoff_base: GoDuration::from_secs(10),
            backoff_max: GoDuration::from_secs(600),
        }
    }
}

/// How nodes that are down are emptied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct EvictionSettings {
    /// Taints of others that ask for an eviction too.
    pub triggers: Vec<EvictionTrigger>,
    /// When Salvor's own taint is taken off.
    pub remove_taint: RemoveTaint,
    /// How long a volume may take to be detached before that is reported.
    pub detach_warning_after: GoDuration,
    /// Kinds of owners of whose pods two must never run, as `Kind.group`.
    pub at_most_one_owners: Vec<String>,
}

/// Kinds that give each of their pods an identity and make the pods themselves: two pods of one identity break them.
const AT_MOST_ONE_OWNERS: [&str; 6] = [
    "StatefulSet.apps",
    "StatefulSet.apps.kruise.io",
    "StrimziPodSet.core.strimzi.io",
    "Cluster.postgresql.cnpg.io",
    "InstanceSet.workloads.kubeblocks.io",
    "VirtualMachineInstance.kubevirt.io",
];

impl Default for EvictionSettings {
    fn default() -> Self {
        Self {
            triggers: Vec::new(),
            remove_taint: RemoveTaint::default(),
            detach_warning_after: GoDuration::from_secs(60),
            at_most_one_owners: AT_MOST_ONE_OWNERS.map(str::to_owned).to_vec(),
        }
    }
}

/// A taint of others that asks for an eviction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvictionTrigger {
    /// Its key.
    pub key: String,
    /// Its value, if only that one counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Its effect, if only that one counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// Whether it proves that the machine is off, so that pods may be replaced of which two must never run.
    #[serde(default)]
    pub proof: bool,
}

/// The effects that a taint can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaintEffect {
    /// New pods stay away.
    NoSchedule,
    /// New pods stay away if they can.
    PreferNoSchedule,
    /// Running pods are evicted.
    NoExecute,
}

impl TaintEffect {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];

    /// As the API writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => names::taints::NO_SCHEDULE,
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => names::taints::NO_EXECUTE,
        }
    }
}

/// When the taint of a finished eviction is taken off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoveTaint {
    /// When the node is Ready with a fresh Lease again.
    #[default]
    WhenReady,
    /// As soon as pods and volumes are gone.
    WhenEvicted,
}

/// What holds all recoveries back when too much fails at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct BrakeLimits {
    /// At most so many pods are recovered in any minute; 0 sets no limit.
    pub max_pods_per_minute: u32,
    /// At most so many nodes are begun to be emptied in any minute; 0 sets no limit.
    pub max_nodes_per_minute: u32,
    /// Nothing is recovered while more than this share of nodes is unreachable; 0 sets no limit.
    pub max_unreachable_percent: u8,
    /// After that, nothing is recovered until the number of unreachable nodes has not fallen for so long; 0 does not wait.
    pub settle_period: GoDuration,
    /// Nodes count that are Ready, or were within this time; 0 counts every node.
    pub count_nodes_ready_within: GoDuration,
}

impl Default for BrakeLimits {
    fn default() -> Self {
        Self {
            max_pods_per_minute: 1000,
            max_nodes_per_minute: 20,
            max_unreachable_percent: 50,
            settle_period: GoDuration::from_secs(50),
            count_nodes_ready_within: GoDuration::from_secs(24 * 3600),
        }
    }
}

#[cfg(test)]
mod tests;
