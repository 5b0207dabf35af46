//! The configuration file, `config.salvor.dev/v1alpha1` `Configuration`.
//!
//! [`parse`] reads it: every field against the table in [`fields`](FIELDS), then the values against each other.
//! Everything that is wrong is reported at once, each problem with its field, its line and what would be right.

mod appwrapper;
mod at_most_one;
mod document;
mod eviction;
mod examples;
mod fields;
mod job;
mod problem;
mod repair;
mod schema;
mod validate;
mod zombie;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

pub use appwrapper::{
    AppWrapperSettings, AutopilotSettings, FaultTolerance, ParseWrappedKindError, ResourceTaint, WrappedKind,
};
pub use at_most_one::AtMostOne;
pub use eviction::{EvictionSettings, EvictionTrigger, RemoveTaint, TaintEffect};
pub use fields::{FIELDS, Field, Kind, Presence, defaults_yaml, reference};
pub use job::{DisruptedPods, JobSettings};
pub use problem::{ConfigError, Path, Problem, Segment};
pub use repair::{ClusterApiRepair, RepairProvider, RepairSettings};
pub use zombie::{
    AnnotatedPods, FailureRecoveryPolicy, FailureRecoveryRule, LostPods, PodsOfJobs, TaintNodeOutOfService,
    TerminateAction, TerminatePod,
};

use self::validate::Found;
use crate::label_selector::is_dns_subdomain;
use crate::{Controller, ControllerList, FeatureGates, GoDuration, names};

/// A recovery's own section of the file.
struct Section {
    /// Its rows in the table of fields; the first is the section itself.
    fields: &'static [Field],
    /// For each list in it, outside of other lists, an example as it stands in a file.
    examples: &'static [(&'static str, &'static str)],
    /// Notes the values in it that cannot work.
    check: fn(&Configuration, &mut Found),
}

/// The section of each recovery. The order in the file is that of [`Controller::ALL`].
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
    /// True in a dry run: Salvor judges and reports, but writes to no object that it judges.
    pub dry_run: bool,
    /// The settings of the leader election.
    pub leader_election: LeaderElection,
    /// Where metrics and health are served.
    pub bind: SocketAddr,
    /// The page that shows the cluster.
    pub page: PageSettings,
    /// The admission webhooks of recoveries that have some.
    pub webhooks: WebhookSettings,
    /// The form of log lines.
    pub log_format: LogFormat,
    /// The limits of parallel work.
    pub concurrency: Concurrency,
    /// The limits of the age of a view of the cluster.
    pub staleness: Staleness,
    /// Work of which two copies must never run.
    pub at_most_one: AtMostOne,
    /// The rules of zombie recovery.
    pub failure_recovery_policy: FailureRecoveryPolicy,
    /// The settings of the Job controller.
    pub job: JobSettings,
    /// The settings of the eviction of nodes that are down.
    pub eviction: EvictionSettings,
    /// How AppWrappers are run.
    pub appwrapper: AppWrapperSettings,
    /// The settings of the repair of sick nodes.
    pub repair: RepairSettings,
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

/// The settings of the leader election.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LeaderElection {
    /// True if replicas elect a leader.
    pub enabled: bool,
    /// The Lease's name.
    pub lease_name: String,
    /// The Lease's namespace.
    pub lease_namespace: String,
    /// The lease expires this long after its last renewal.
    pub lease_duration: GoDuration,
    /// The leader gives up if it cannot renew for this long.
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
    /// True if it is served at all.
    pub enabled: bool,
    /// Where.
    pub bind: SocketAddr,
}

impl Default for PageSettings {
    fn default() -> Self {
        Self { enabled: false, bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 8081)) }
    }
}

/// The admission webhooks of recoveries that have some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct WebhookSettings {
    /// True if they are served at all.
    pub enabled: bool,
    /// Where.
    pub bind: SocketAddr,
    /// The URL under which the API server reaches this process, if not through a Service.
    pub url: Option<String>,
    /// A folder with certificates of the administrator's.
    pub cert_dir: Option<String>,
}

impl Default for WebhookSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            bind: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 9443)),
            url: None,
            cert_dir: None,
        }
    }
}

impl WebhookSettings {
    /// The host name or IP address in `url`, without the brackets of an IPv6 address. Nothing if `url` is not set, or is not
    /// of the form `https://HOST:PORT`.
    pub fn url_host(&self) -> Option<&str> {
        let authority = self.url.as_deref()?.strip_prefix("https://")?;
        let (host, port) = authority.rsplit_once(':')?;
        // `parse` alone would take a leading plus sign.
        let is_port =
            port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => address.parse::<Ipv6Addr>().is_ok().then_some(address)?,
            None => is_dns_subdomain(host).then_some(host)?,
        };
        is_port.then_some(host)
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

/// The limits of parallel work.
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

/// The limits of the age of a view of the cluster.
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

/// The brake: the limits that block all recoveries when too much fails at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct BrakeLimits {
    /// At most this many pods are recovered in any minute; 0 sets no limit.
    pub max_pods_per_minute: u32,
    /// At most this many evictions of nodes begin in any minute; 0 sets no limit.
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
