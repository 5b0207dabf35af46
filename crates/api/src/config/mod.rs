//! The configuration file, `config.salvor.dev/v1alpha1` `Configuration`.
//!
//! [`parse`] checks every field against the table in [`fields`](FIELDS), and then the values against each other. It
//! reports all problems together, each with its field, its line and a correct form.

mod appwrapper;
mod at_most_one;
mod document;
mod eviction;
mod examples;
mod fields;
mod found;
mod job;
mod parse;
mod problem;
mod repair;
mod schema;
mod section;
mod validate;
mod webhooks;
mod zombie;

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

pub use appwrapper::{
    AppWrapperSettings, AutopilotSettings, FaultTolerance, ParseWrappedKindError, ResourceTaint, WrappedKind,
};
pub use at_most_one::AtMostOne;
pub use eviction::{EvictionSettings, EvictionTrigger, RemoveTaint, TaintEffect};
pub use fields::{FIELDS, defaults_yaml, reference};
pub use job::{DisruptedPods, JobSettings};
pub use parse::parse;
pub use problem::{ConfigError, Path, Problem, Segment};
pub use repair::{ClusterApiRepair, RepairProvider, RepairSettings};
pub use section::{Field, Kind, Presence};
pub use webhooks::WebhookSettings;
pub use zombie::{
    AnnotatedPods, FailureRecoveryPolicy, FailureRecoveryRule, LostPods, PodsOfJobs, TaintNodeOutOfService,
    TerminateAction, TerminatePod,
};

use self::found::Found;
use self::section::Section;
use crate::{Controller, ControllerList, FeatureGates, GoDuration, names};

/// The section of each recovery. The file has them in the order of [`Controller::ALL`].
const fn section_of(controller: Controller) -> &'static Section {
    match controller {
        Controller::Zombie => &zombie::SECTION,
        Controller::Job => &job::SECTION,
        Controller::Eviction => &eviction::SECTION,
        Controller::AppWrapper => &appwrapper::SECTION,
        Controller::Repair => &repair::SECTION,
    }
}

/// The name of a recovery's section.
pub const fn section_name(controller: Controller) -> &'static str {
    section_of(controller).fields[0].path
}

/// All settings of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Configuration {
    /// The group and version of this file.
    pub api_version: String,
    /// The kind of this file.
    pub kind: String,
    /// Features that are switched on or off.
    pub feature_gates: FeatureGates,
    /// Which recoveries run.
    pub controllers: ControllerList,
    /// Whether this is a dry run: Salvor decides and reports, but does not write to the objects it decides about.
    pub dry_run: bool,
    /// The leader election.
    pub leader_election: LeaderElection,
    /// The address of metrics and health checks.
    pub bind: SocketAddr,
    /// The web page that shows the cluster.
    pub page: PageSettings,
    /// The admission webhooks.
    pub webhooks: WebhookSettings,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// The limits of parallel writes.
    pub concurrency: Concurrency,
    /// How old the view of the cluster may be.
    pub staleness: Staleness,
    /// Workloads that must never run twice.
    pub at_most_one: AtMostOne,
    /// The rules of zombie recovery.
    pub failure_recovery_policy: FailureRecoveryPolicy,
    /// The settings of the Job controller.
    pub job: JobSettings,
    /// The settings of the eviction recovery.
    pub eviction: EvictionSettings,
    /// The settings of AppWrappers.
    pub appwrapper: AppWrapperSettings,
    /// The settings of node repair.
    pub repair: RepairSettings,
    /// The brake: the limits that block all recoveries when too much fails at once.
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
            webhooks: WebhookSettings::default(),
            log_format: LogFormat::Text,
            concurrency: Concurrency::default(),
            staleness: Staleness::default(),
            at_most_one: AtMostOne::default(),
            failure_recovery_policy: FailureRecoveryPolicy::default(),
            job: JobSettings::default(),
            eviction: EvictionSettings::default(),
            appwrapper: AppWrapperSettings::default(),
            repair: RepairSettings::default(),
            brake: BrakeLimits::default(),
        }
    }
}

impl Configuration {
    /// The kinds of owners whose pods must never run twice: from `atMostOne.owners`, or from its former place.
    pub fn at_most_one_owners(&self) -> &[String] {
        self.eviction.at_most_one_owners.as_ref().unwrap_or(&self.at_most_one.owners)
    }

    /// Records values in the section of a recovery that cannot work.
    fn check_section(&self, controller: Controller, found: &mut Found) {
        match controller {
            Controller::Zombie => zombie::check(&self.failure_recovery_policy, found),
            Controller::Job => job::check(&self.job, found),
            Controller::Eviction => eviction::check(&self.eviction, found),
            Controller::AppWrapper => appwrapper::check(&self.appwrapper, found),
            Controller::Repair => repair::check(&self.repair, found),
        }
    }
}

/// The leader election.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LeaderElection {
    /// Whether replicas elect a leader.
    pub enabled: bool,
    /// The name of the Lease.
    pub lease_name: String,
    /// The namespace of the Lease.
    pub lease_namespace: String,
    /// The Lease expires this long after its last renewal.
    pub lease_duration: GoDuration,
    /// The leader stops if it cannot renew for this long.
    pub renew_deadline: GoDuration,
    /// The time between two attempts.
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

/// The web page that shows the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PageSettings {
    /// Whether the page is served.
    pub enabled: bool,
    /// The address of the page.
    pub bind: SocketAddr,
}

impl Default for PageSettings {
    fn default() -> Self {
        Self { enabled: false, bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 8081)) }
    }
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people to read.
    Text,
    /// One JSON object per line.
    Json,
}

/// The limits of parallel writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Concurrency {
    /// The maximum number of writes in flight: this many for recoveries, and as many again for Jobs.
    pub writes: u32,
}

impl Default for Concurrency {
    fn default() -> Self {
        Self { writes: 32 }
    }
}

/// How old the view of the cluster may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Staleness {
    /// If a watch is silent for longer, `/readyz` fails.
    pub ready_limit: GoDuration,
    /// If a watch is silent for longer, no irreversible action is allowed.
    pub irreversible_action_limit: GoDuration,
}

impl Default for Staleness {
    fn default() -> Self {
        Self { ready_limit: GoDuration::from_secs(180), irreversible_action_limit: GoDuration::from_secs(90) }
    }
}

/// The brake: the limits that block all recoveries when too much fails at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct BrakeLimits {
    /// At most this many pods are recovered in any minute; 0 sets no limit.
    pub max_pods_per_minute: u32,
    /// At most this many evictions of nodes start in any minute; 0 sets no limit.
    pub max_nodes_per_minute: u32,
    /// Nothing is recovered while more than this share of nodes is unreachable; 0 sets no limit.
    pub max_unreachable_percent: u8,
    /// Afterwards, nothing is recovered until the number of unreachable nodes has not fallen for this long; 0 does not
    /// wait.
    pub settle_period: GoDuration,
    /// Only nodes that were Ready within this time count; 0 counts every node.
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
