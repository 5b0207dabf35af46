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

struct Section {
    /// Its rows in the table of fields. The first row is the section itself.
    fields: &'static [Field],
    /// An example for each list of the section that is not inside another list.
    examples: &'static [(&'static str, &'static str)],
    /// Records values of the section that cannot work.
    check: fn(&Configuration, &mut Found),
}

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

/// Parses the text of a configuration file.
///
/// # Errors
/// All problems that were found. A YAML syntax error stops the parser, so it is reported alone. A malformed field may
/// hide contradictions between fields.
pub fn parse(text: &str) -> Result<Configuration, ConfigError> {
    let document = document::read(text)?;
    let (value, mut problems) = schema::check(&document);
    let typed = serde_json::from_value::<Configuration>(value);
    if let Ok(configuration) = &typed {
        let mut contradictions = configuration.problems();
        // A refused value is missing in the typed configuration, so contradictions around it may be wrong.
        contradictions.retain(|found| !problems.iter().any(|refused| found.path.leads_to(&refused.path)));
        problems.extend(contradictions);
    }
    for problem in &mut problems {
        problem.line = document.line_of(&problem.path);
    }
    match typed {
        Ok(configuration) if problems.is_empty() => Ok(configuration),
        // The schema is stricter than the types, so this is a gap in the schema. Refuse the file instead of panicking.
        Err(error) if problems.is_empty() => Err(ConfigError::whole_file(error.to_string())),
        _ => Err(ConfigError { problems }),
    }
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

/// The admission webhooks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct WebhookSettings {
    /// Whether webhooks are served.
    pub enabled: bool,
    /// The address of the webhooks.
    pub bind: SocketAddr,
    /// The URL that the API server uses to reach this process, if not through a Service.
    pub url: Option<String>,
    /// A folder with the administrator's own certificates.
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
    /// The host name or IP address in `url`, without the brackets of an IPv6 address. `None` if `url` is not set or
    /// does not have the form `https://HOST:PORT`.
    pub fn url_host(&self) -> Option<&str> {
        let authority = self.url.as_deref()?.strip_prefix("https://")?;
        let (host, port) = authority.rsplit_once(':')?;
        // `parse` alone would accept a leading plus sign.
        let is_port =
            port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => address.parse::<Ipv6Addr>().is_ok().then_some(address)?,
            None => is_dns_subdomain(host).then_some(host)?,
        };
        is_port.then_some(host)
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
