//! The configuration of AppWrapper recovery, and the annotations that override it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::SignedDuration;
use salvor_api::config::Configuration;
use salvor_api::{Controller, GoDuration, ParseGoDurationError};

use super::names::annotations as keys;
use crate::eviction::EvictionPolicy;
use crate::moments::in_go;

/// The part of the configuration that AppWrapper recovery needs.
#[derive(Clone, Debug)]
pub struct AppWrapperPolicy {
    pub enabled: bool,
    /// How long pods may take until all exist.
    pub admission_grace: SignedDuration,
    /// How long pods may take until all run.
    pub warmup_grace: SignedDuration,
    /// How long an unhealthy workload may take to recover by itself.
    pub failure_grace: SignedDuration,
    /// The pause between deletion and creation in a reset.
    pub retry_pause: SignedDuration,
    /// The maximum number of resets.
    pub retry_limit: i32,
    /// How long a deletion may take before it is forced.
    pub forceful_deletion_grace: SignedDuration,
    /// The maximum of every grace period.
    pub grace_ceiling: SignedDuration,
    /// How long the components of a successful workload are kept. Annotations can only shorten it.
    pub success_ttl: SignedDuration,
    pub counting: Counting,
    pub autopilot: Autopilot,
    /// Whether pods on an unreachable node make a workload unhealthy.
    pub unreachable_nodes: bool,
    /// Whether pods on a force-evicted node make a workload unhealthy.
    pub force_evicted_nodes: bool,
    /// Whether resets because of lost nodes count against the retry limit.
    pub count_lost_nodes: bool,
    /// Decides what proves that a machine is off, and which pods must not run twice.
    pub eviction: EvictionPolicy,
}

/// Which resets count against the retry limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counting {
    /// Those that the workload itself caused. Node evacuations, pods lost to eviction, and pods that the scheduler
    /// cannot place do not count; the last two need a limit above 0.
    #[default]
    OwnFaults,
    /// All except evacuations by Autopilot, and even those need a limit that is not reached, as in CodeFlare's
    /// controller.
    AsUpstream,
}

/// The meaning of Autopilot's labels on nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Autopilot {
    /// Whether nodes are checked.
    pub monitor_nodes: bool,
    /// The labels, each with its resource.
    pub taints: Vec<ResourceTaint>,
}

/// A node label with which Autopilot reports that a resource of the node is unhealthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceTaint {
    /// For example `nvidia.com/gpu`.
    pub resource: String,
    pub key: String,
    pub value: String,
    /// `NoExecute`, `NoSchedule` or `PreferNoSchedule`.
    pub effect: String,
}

impl Autopilot {
    /// The resources that pods must leave on a node with these labels. Autopilot uses labels for that, not taints.
    pub fn no_execute<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> BTreeSet<String> {
        if !self.monitor_nodes {
            return BTreeSet::new();
        }
        let flagged = self.taints.iter().filter(|it| it.effect == "NoExecute");
        flagged.filter(|it| label(&it.key) == Some(it.value.as_str())).map(|it| it.resource.clone()).collect()
    }
}

impl AppWrapperPolicy {
    pub fn new(configuration: &Configuration) -> Self {
        let settings = &configuration.appwrapper;
        let times = &settings.fault_tolerance;
        let taints = settings.autopilot.resource_taints.iter().flat_map(|(resource, taints)| {
            taints.iter().map(|taint| ResourceTaint {
                resource: resource.clone(),
                key: taint.key.clone(),
                value: taint.value.clone(),
                effect: format!("{:?}", taint.effect),
            })
        });
        Self {
            enabled: configuration.controllers.enabled(Controller::AppWrapper),
            admission_grace: times.admission_grace_period.into(),
            warmup_grace: times.warmup_grace_period.into(),
            failure_grace: times.failure_grace_period.into(),
            retry_pause: times.reset_pause.into(),
            retry_limit: i32::try_from(times.retry_limit).unwrap_or(i32::MAX),
            forceful_deletion_grace: times.deletion_grace_period.into(),
            grace_ceiling: times.grace_period_ceiling.into(),
            success_ttl: times.success_ttl_ceiling.into(),
            counting: if settings.count_resets_as_upstream {
                Counting::AsUpstream
            } else {
                Counting::OwnFaults
            },
            autopilot: Autopilot {
                monitor_nodes: settings.autopilot.monitor_nodes,
                taints: taints.collect(),
            },
            unreachable_nodes: settings.reset_when_node_unreachable,
            force_evicted_nodes: settings.reset_when_node_force_evicted,
            count_lost_nodes: settings.count_lost_nodes,
            eviction: EvictionPolicy::new(configuration),
        }
    }
}

impl Default for AppWrapperPolicy {
    /// The defaults of the configuration: those of CodeFlare's controller, except for lost nodes.
    fn default() -> Self {
        let gpu = |value: &str, effect: &str| ResourceTaint {
            resource: "nvidia.com/gpu".into(),
            key: "autopilot.ibm.com/gpuhealth".into(),
            value: value.into(),
            effect: effect.into(),
        };
        Self {
            enabled: true,
            admission_grace: SignedDuration::from_mins(1),
            warmup_grace: SignedDuration::from_mins(5),
            failure_grace: SignedDuration::from_mins(1),
            retry_pause: SignedDuration::from_secs(90),
            retry_limit: 3,
            forceful_deletion_grace: SignedDuration::from_mins(10),
            grace_ceiling: SignedDuration::from_hours(24),
            success_ttl: SignedDuration::from_hours(7 * 24),
            counting: Counting::OwnFaults,
            autopilot: Autopilot {
                monitor_nodes: true,
                taints: vec![
                    gpu("WARN", "PreferNoSchedule"),
                    gpu("TESTING", "NoSchedule"),
                    gpu("EVICT", "NoExecute"),
                ],
            },
            unreachable_nodes: true,
            force_evicted_nodes: false,
            count_lost_nodes: false,
            eviction: EvictionPolicy::new(&Configuration::default()),
        }
    }
}

/// The raw annotations of an AppWrapper that change its timers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations(BTreeMap<&'static str, String>);

/// The maximum length of a value that is read. Any user who may write annotations can write long ones, and thousands of
/// AppWrappers are kept in memory.
const LONGEST_READ: usize = 1024;
/// How much of an unreadable value is shown: enough to recognise it.
const LONGEST_SHOWN: usize = 64;

impl Annotations {
    const KEYS: [&'static str; 10] = [
        keys::ADMISSION_GRACE_PERIOD,
        keys::WARMUP_GRACE_PERIOD,
        keys::FAILURE_GRACE_PERIOD,
        keys::RETRY_PAUSE_PERIOD,
        keys::RETRY_LIMIT,
        keys::FORCEFUL_DELETION_GRACE_PERIOD,
        keys::DELETION_ON_FAILURE_GRACE_PERIOD,
        keys::SUCCESS_TTL,
        keys::TERMINAL_EXIT_CODES,
        keys::RETRYABLE_EXIT_CODES,
    ];

    /// Selects them from all annotations. One character more than the limit is kept, to detect that a value is too
    /// long.
    pub fn pick<'a>(value_of: impl Fn(&str) -> Option<&'a str>) -> Self {
        let cut = |value: &str| value.chars().take(LONGEST_READ + 1).collect();
        Self(Self::KEYS.into_iter().filter_map(|key| Some((key, cut(value_of(key)?)))).collect())
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

/// An annotation, or a part of one, that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defect {
    pub key: &'static str,
    /// The beginning of the unreadable value or part.
    pub value: String,
    /// What would be correct.
    pub expected: &'static str,
    /// What is used instead.
    pub instead: String,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, expected, instead } = self;
        write!(f, "annotation {key} has {value:?}, which is not {expected}; {instead}")
    }
}

/// The timers of one AppWrapper.
#[derive(Clone, Debug, PartialEq)]
pub struct Timers {
    /// How long pods may take until all exist.
    pub admission_grace: SignedDuration,
    /// How long pods may take until all run.
    pub warmup_grace: SignedDuration,
    /// How long an unhealthy workload may take to recover by itself.
    pub failure_grace: SignedDuration,
    /// The pause between deletion and creation in a reset.
    pub retry_pause: SignedDuration,
    /// The maximum number of resets; 0 or less means none.
    pub retry_limit: i32,
    /// How long a deletion may take before it is forced.
    pub forceful_deletion_grace: SignedDuration,
    /// How long a failed workload is kept for debugging.
    pub deletion_on_failure_grace: SignedDuration,
    /// How long the components of a successful workload are kept.
    pub success_ttl: SignedDuration,
    /// Exit codes after which there is no reset.
    pub terminal_exit_codes: BTreeSet<i64>,
    /// The only exit codes after which there is a reset; empty means any.
    pub retryable_exit_codes: BTreeSet<i64>,
    /// Annotations that could not be read.
    pub defects: Vec<Defect>,
}

const DURATION: &str = "a duration like \"1m30s\"";
const NUMBER: &str = "a whole number like \"3\"";
const CODES: &str = "a list of exit codes like \"3,10\"";

impl Timers {
    /// The timers from configuration and annotations. The ceiling applies to both.
    pub fn of(annotations: &Annotations, policy: &AppWrapperPolicy) -> Self {
        let mut defects = Vec::new();
        let mut grace = |key, default: SignedDuration| {
            let asked = duration(annotations, key, default, &mut defects);
            asked
                .unwrap_or(default)
                .clamp(SignedDuration::ZERO, policy.grace_ceiling.max(SignedDuration::ZERO))
        };
        let admission_grace = grace(keys::ADMISSION_GRACE_PERIOD, policy.admission_grace);
        let warmup_grace = grace(keys::WARMUP_GRACE_PERIOD, policy.warmup_grace);
        let failure_grace = grace(keys::FAILURE_GRACE_PERIOD, policy.failure_grace);
        let retry_pause = grace(keys::RETRY_PAUSE_PERIOD, policy.retry_pause);
        let forceful_deletion_grace =
            grace(keys::FORCEFUL_DELETION_GRACE_PERIOD, policy.forceful_deletion_grace);
        let deletion_on_failure_grace = grace(keys::DELETION_ON_FAILURE_GRACE_PERIOD, SignedDuration::ZERO);
        let success_ttl = duration(annotations, keys::SUCCESS_TTL, policy.success_ttl, &mut defects)
            .filter(|asked| asked.is_positive() && *asked < policy.success_ttl)
            .unwrap_or(policy.success_ttl);
        Self {
            admission_grace,
            warmup_grace,
            failure_grace,
            retry_pause,
            retry_limit: retry_limit(annotations, policy.retry_limit, &mut defects),
            forceful_deletion_grace,
            deletion_on_failure_grace,
            success_ttl,
            terminal_exit_codes: exit_codes(annotations, keys::TERMINAL_EXIT_CODES, &mut defects),
            retryable_exit_codes: exit_codes(annotations, keys::RETRYABLE_EXIT_CODES, &mut defects),
            defects,
        }
    }

    /// True if a pod that ended with this code must not be retried. A code in both lists is terminal.
    pub fn is_terminal(&self, exit_code: i32) -> bool {
        let code = i64::from(exit_code);
        self.terminal_exit_codes.contains(&code)
            || !(self.retryable_exit_codes.is_empty() || self.retryable_exit_codes.contains(&code))
    }
}

fn shown(value: &str) -> String {
    value.chars().take(LONGEST_SHOWN).collect()
}

/// The duration in an annotation, if it is set and can be read. A duration that overflows becomes the longest possible
/// one.
fn duration(
    annotations: &Annotations,
    key: &'static str,
    default: SignedDuration,
    defects: &mut Vec<Defect>,
) -> Option<SignedDuration> {
    let value = annotations.get(key)?;
    match value.parse::<GoDuration>() {
        Ok(asked) => Some(asked.into()),
        Err(ParseGoDurationError::Overflow { .. }) => {
            Some(if value.starts_with('-') { GoDuration::MIN } else { GoDuration::MAX }.into())
        }
        Err(
            ParseGoDurationError::Invalid { .. }
            | ParseGoDurationError::MissingUnit { .. }
            | ParseGoDurationError::UnknownUnit { .. },
        ) => {
            let instead = format!("{} is used", in_go(default));
            defects.push(Defect { key, value: shown(value), expected: DURATION, instead });
            None
        }
    }
}

fn retry_limit(annotations: &Annotations, default: i32, defects: &mut Vec<Defect>) -> i32 {
    let Some(value) = annotations.get(keys::RETRY_LIMIT) else { return default };
    // A number too large for the field still means a practically unlimited number of retries.
    let limit = value.parse::<i128>().map(|it| it.clamp(i32::MIN.into(), i32::MAX.into()));
    match limit.ok().and_then(|it| i32::try_from(it).ok()) {
        Some(limit) => limit,
        None => {
            let (key, instead) = (keys::RETRY_LIMIT, format!("{default} is used"));
            defects.push(Defect { key, value: shown(value), expected: NUMBER, instead });
            default
        }
    }
}

fn exit_codes(annotations: &Annotations, key: &'static str, defects: &mut Vec<Defect>) -> BTreeSet<i64> {
    let value = annotations.get(key).unwrap_or_default();
    let mut defect = |part: &str, instead: &str| {
        defects.push(Defect { key, value: shown(part), expected: CODES, instead: instead.into() });
    };
    if value.trim().is_empty() {
        return BTreeSet::new();
    }
    if value.chars().count() > LONGEST_READ {
        defect(value, "it is too long, and none of it is used");
        return BTreeSet::new();
    }
    let mut codes = BTreeSet::new();
    for part in value.split(',').map(str::trim) {
        match part.parse::<i64>() {
            Ok(code) => {
                codes.insert(code);
            }
            Err(_) => defect(part, "the other codes are used"),
        }
    }
    codes
}
