//! Decides whether a node is sick, since when, and until when that is tolerated.
//!
//! The toleration of a condition is, in this order: the policy's toleration for the condition, the policy's default,
//! and the provider's default. A condition that neither the policy nor the provider names never makes a node sick.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use salvor_api::GoDuration;
use salvor_api::config::{ClusterApiRepair, Configuration, RepairProvider};
use salvor_api::names::repair::labels;

use super::policy::{Policy, REPLACE, Rung, shown};
use super::progress::{Healed, Look, Observed, Progress, SickNow, kind_of};
use super::provider::{self, Provider};
use super::views::{ConditionView, NodeView, OwnerView, Status};
use crate::gate::GatePolicy;
use crate::moments::after;

/// The key for a node that never became ready.
pub const STARTUP: &str = "Startup";
/// A registering kubelet dates its conditions right before the Node is created, so the two times are this close. The
/// span must be short: a node that became Ready and lost that shortly after must not pass for a starting node, because
/// starting nodes count for no limit.
const REGISTERS_BEFORE: SignedDuration = SignedDuration::from_secs(5);
/// The same after the creation.
const REGISTERS_AFTER: SignedDuration = SignedDuration::from_secs(2);
/// The node lifecycle controller writes this reason if a kubelet registered a node and never updated it.
const NEVER_UPDATED: &str = "NodeStatusNeverUpdated";

#[derive(Clone, Debug)]
pub struct Settings {
    /// The provider whose defaults apply.
    pub provider: RepairProvider,
    /// How long a condition must be healthy to reset its clock.
    pub healthy_after: SignedDuration,
    /// After this time a repair no longer counts against the budget.
    pub stuck_after: SignedDuration,
    /// After this time a new machine that has not come up counts as a failure.
    pub launch_timeout: SignedDuration,
    /// The share of sick nodes that blocks a zone; none switches this off.
    pub zone_sick_percent: Option<u8>,
    /// The share of nodes with the same sick condition that blocks a pool; none switches this off.
    pub pool_sick_percent: Option<u8>,
    /// How long after its toleration a node stays blocked because of its zone or pool; none for as long as the outage
    /// lasts.
    pub outage_timeout: Option<SignedDuration>,
    /// How long a node that healed by itself keeps counting as sick.
    pub settle_after: SignedDuration,
    /// How long to wait before one more node is tried where replacements do not help; none switches this off.
    pub retry_after: Option<SignedDuration>,
    pub cluster_api: ClusterApiRepair,
    /// Taint keys that declare a machine lost.
    pub lost: Vec<String>,
    /// Decides whether a pod may run twice.
    pub gate: GatePolicy,
}

impl Settings {
    pub fn new(configuration: &Configuration) -> Self {
        let repair = &configuration.repair;
        let unless_zero =
            |duration: GoDuration| Some(SignedDuration::from(duration)).filter(|it| !it.is_zero());
        Self {
            provider: repair.provider,
            healthy_after: repair.healthy_after.into(),
            stuck_after: repair.stuck_after.into(),
            launch_timeout: repair.launch_timeout.into(),
            zone_sick_percent: Some(repair.zone_sick_percent).filter(|percent| *percent > 0),
            pool_sick_percent: Some(repair.pool_sick_percent).filter(|percent| *percent > 0),
            outage_timeout: unless_zero(repair.outage_timeout),
            settle_after: repair.settle_after.into(),
            retry_after: unless_zero(repair.retry_after),
            cluster_api: repair.cluster_api,
            lost: configuration.eviction.triggers.iter().map(|trigger| trigger.key.clone()).collect(),
            gate: GatePolicy::new(configuration),
        }
    }
}

/// The origin of a toleration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The policy's entry for the condition.
    Policy,
    /// The policy's default.
    Default,
    /// The provider's default.
    Provider,
    /// The policy's startupTimeout.
    StartupTimeout,
}

impl Source {
    pub fn word(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Default => "default",
            Self::Provider => "provider",
            Self::StartupTimeout => "startupTimeout",
        }
    }
}

/// The three candidates for the toleration of a condition, and the one that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The policy's toleration for the condition.
    pub by_policy: Option<SignedDuration>,
    /// The policy's default.
    pub by_default: Option<SignedDuration>,
    /// The provider's default.
    pub by_provider: Option<SignedDuration>,
    /// The first of the three that is set.
    pub toleration: Option<(SignedDuration, Source)>,
    /// The actions in order. Empty if nothing is done.
    pub ladder: Vec<Rung>,
}

/// None if neither the policy nor the provider names the condition.
pub fn resolve(condition: &ConditionView, policy: &Policy, provider: Provider) -> Option<Resolution> {
    let by_provider = provider.toleration(&condition.kind, condition.status);
    let entry = policy.entries.iter().find(|entry| {
        entry.kind == *condition.kind
            && entry.status.map_or_else(
                || by_provider.is_some() || provider::is_sick(&condition.kind, condition.status),
                |status| status == condition.status,
            )
            && entry.reason.as_ref().is_none_or(|pattern| pattern.is_match(&condition.reason))
    });
    if entry.is_none() && by_provider.is_none() {
        return None;
    }
    let by_policy = entry.and_then(|entry| entry.toleration);
    let by_default = policy.default_toleration;
    let toleration = by_policy
        .map(|it| (it, Source::Policy))
        .or(by_default.map(|it| (it, Source::Default)))
        .or(by_provider.map(|it| (it, Source::Provider)));
    let ladder = entry.map_or(REPLACE.to_vec(), |entry| entry.ladder.clone());
    Some(Resolution { by_policy, by_default, by_provider, toleration, ladder })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sick {
    /// `Type=Status`.
    pub key: String,
    pub reason: String,
    /// When the condition began, by Salvor's clock.
    pub since: Timestamp,
    /// When Salvor first saw it.
    pub seen: Timestamp,
    pub toleration: SignedDuration,
    pub from: Source,
    pub deadline: Timestamp,
    /// The actions in order.
    pub ladder: Vec<Rung>,
}

impl Sick {
    pub fn kind(&self) -> &str {
        kind_of(&self.key)
    }

    /// From when on the repair is overdue and Salvor knows it.
    pub(super) fn overdue_from(&self) -> Timestamp {
        self.deadline.max(self.seen)
    }
}

impl fmt::Display for Sick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, reason, since, toleration, from, .. } = self;
        write!(f, "{key}")?;
        if !reason.is_empty() {
            write!(f, " ({reason})")?;
        }
        write!(f, " since {since}, tolerated for {} ({})", shown(*toleration), from.word())
    }
}

/// The health of a node according to a policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diagnosis {
    /// The sick condition whose toleration ends first.
    pub sick: Option<Sick>,
    /// A sick condition for which nothing is done.
    pub tolerated: Option<String>,
    /// The new memory of the node.
    pub memory: Progress,
    /// When the clock of a condition that is healthy again resets.
    pub resets_at: Option<Timestamp>,
    /// When the healing of the node is forgotten.
    pub forgets_at: Option<Timestamp>,
    /// The last sickness of a healthy node, if it passed by itself.
    pub healed: Option<Healed>,
    /// True if the node has never been ready for pods.
    pub starting: bool,
}

impl Diagnosis {
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.sick.as_ref().is_some_and(|sick| sick.deadline <= now)
    }

    /// The diagnosis without what was already reported on the node, and without the times at which Salvor saw the
    /// sickness.
    #[must_use]
    pub fn unrecorded(mut self) -> Self {
        self.memory.told.clear();
        for clock in self.memory.sick.values_mut() {
            clock.seen = None;
        }
        if let Some(sick) = &mut self.sick {
            sick.seen = sick.since;
        }
        self
    }
}

pub fn diagnose(
    node: &NodeView,
    owner: Option<&OwnerView>,
    policy: &Policy,
    settings: &Settings,
    now: Timestamp,
) -> Diagnosis {
    let provider = Provider::of(settings.provider, &node.provider_id);
    let mut tolerated = None;
    let mut found: Vec<(String, &ConditionView, Resolution, SignedDuration, Source)> = Vec::new();
    for condition in &node.conditions {
        let Some(resolution) = resolve(condition, policy, provider) else { continue };
        let key = format!("{}={}", condition.kind, condition.status);
        match resolution.toleration {
            Some((toleration, from)) if !resolution.ladder.is_empty() => {
                found.push((key, condition, resolution, toleration, from));
            }
            Some(_) | None => tolerated = Some(key),
        }
    }
    let starting = is_starting(node, owner);
    let nothing = Progress::default();
    let before = node.progress.as_deref().unwrap_or(&nothing);
    let sick: Vec<SickNow<'_>> = found
        .iter()
        .map(|(key, condition, ..)| SickNow { key, kind: &condition.kind, transition: condition.since })
        .collect();
    let look = Look {
        sick: &sick,
        toleration: &|key| toleration_of(key, policy, provider),
        healthy_after: settings.healthy_after,
        settle_after: settings.settle_after,
        starting,
        now,
    };
    let Observed { memory, resets_at, forgets_at } =
        if found.is_empty() && before.is_empty() && before.healed.is_none() {
            let memory = Progress { cordoned: before.cordoned, ..Progress::default() };
            Observed { memory, resets_at: None, forgets_at: None }
        } else {
            before.observe(&look)
        };
    let healed = if found.is_empty() && !starting { memory.last_healed(&look) } else { None };
    let mut all: Vec<Sick> = found
        .into_iter()
        .map(|(key, condition, resolution, toleration, from)| {
            let clock = memory.sick.get(&key);
            let (since, seen) = clock.map_or((now, now), |clock| (clock.since, clock.seen()));
            let deadline = after(since, toleration);
            let reason = condition.reason.to_string();
            Sick { key, reason, since, seen, toleration, from, deadline, ladder: resolution.ladder }
        })
        .collect();
    if starting && let Some((timeout, created)) = policy.startup_timeout.zip(node.created) {
        all.push(Sick {
            key: STARTUP.to_owned(),
            reason: "never ready".to_owned(),
            since: created,
            seen: created,
            toleration: timeout,
            from: Source::StartupTimeout,
            deadline: after(created, timeout),
            ladder: REPLACE.to_vec(),
        });
    }
    // If deadlines are equal, the first in the order of the node's conditions counts.
    let sick =
        all.into_iter().reduce(|first, next| if next.deadline < first.deadline { next } else { first });
    Diagnosis { sick, tolerated, memory, resets_at, forgets_at, healed, starting }
}

/// The toleration of a condition that was sick, by its key.
fn toleration_of(key: &str, policy: &Policy, provider: Provider) -> Option<SignedDuration> {
    let (kind, status) = key.rsplit_once('=')?;
    let status = Status::from_api(status)?;
    let entry =
        policy.entries.iter().find(|entry| entry.kind == kind && entry.status.is_none_or(|it| it == status));
    let by_policy = entry.and_then(|entry| entry.toleration);
    by_policy.or(policy.default_toleration).or_else(|| provider.toleration(kind, status))
}

/// True if the memory says that the node was not Ready when it registered, and it has not been Ready since. If its
/// kubelet dies meanwhile, the Ready condition changes, so the condition alone does not show this.
fn started_so(node: &NodeView) -> bool {
    let clocks = node.progress.iter().flat_map(|progress| &progress.sick);
    clocks
        .into_iter()
        .any(|(key, clock)| kind_of(key) == "Ready" && clock.starting && clock.healthy.is_none())
}

/// True if a node has registered and has never been ready for pods. Karpenter reports that on the node or its
/// NodeClaim. For other nodes the Ready condition shows it: it has not changed since the node was created.
fn is_starting(node: &NodeView, owner: Option<&OwnerView>) -> bool {
    let by_karpenter = owner.and_then(|owner| owner.initialized);
    if node.labels.get(labels::INITIALIZED) == Some("true") || by_karpenter == Some(true) {
        return false;
    }
    let never_ready = match node.condition("Ready") {
        None => true,
        Some(ready) if ready.status == Status::True => false,
        Some(ready) => {
            let registers = ready.since.zip(node.created).is_some_and(|(since, created)| {
                let later = since.duration_since(created);
                (-REGISTERS_BEFORE..=REGISTERS_AFTER).contains(&later)
            });
            &*ready.reason == NEVER_UPDATED || registers || started_so(node)
        }
    };
    never_ready || by_karpenter == Some(false)
}
