//! Is a node sick, since when, and until when is that tolerated?
//!
//! The toleration of a condition is, in this order: that of the policy for the condition, the policy's default, and the
//! provider's default. A condition that neither the policy nor the provider names never makes a node sick.

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

/// The key of a node that never became ready.
pub const STARTUP: &str = "Startup";
/// A kubelet that registers dates its conditions right before the Node is created. So close to it the clocks of kubelet and API server
/// are: a node that became Ready and lost it again shortly after must not pass for one that starts, or it would count for no limit.
const REGISTERS_BEFORE: SignedDuration = SignedDuration::from_secs(5);
/// The same, after the creation.
const REGISTERS_AFTER: SignedDuration = SignedDuration::from_secs(2);
/// Written by the node lifecycle controller for a kubelet that has registered a node, and nothing more.
const NEVER_UPDATED: &str = "NodeStatusNeverUpdated";

/// The settings of this recovery.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whose defaults count.
    pub provider: RepairProvider,
    /// The health that resets a clock.
    pub healthy_after: SignedDuration,
    /// The time after which a repair holds up nobody any more.
    pub stuck_after: SignedDuration,
    /// The time after which a new machine that is not there is a failure.
    pub launch_timeout: SignedDuration,
    /// The share of sick nodes that holds a zone; none if no share does.
    pub zone_sick_percent: Option<u8>,
    /// The share of nodes with the same sick condition that holds a pool; none if no share does.
    pub pool_sick_percent: Option<u8>,
    /// The time after its toleration for which a node is held for its zone or pool; none if as long as it lasts.
    pub outage_timeout: Option<SignedDuration>,
    /// The span after its end in which a sickness that passed by itself counts.
    pub settle_after: SignedDuration,
    /// The time after which one node is tried again where replacements do not help; none if nothing is held.
    pub retry_after: Option<SignedDuration>,
    /// The repair of a Machine.
    pub cluster_api: ClusterApiRepair,
    /// The keys of taints by which somebody says that a machine is lost.
    pub lost: Vec<String>,
    /// Decides whether two of a pod may run.
    pub gate: GatePolicy,
}

impl Settings {
    /// Those of a configuration.
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

/// Which of the three steps gave a toleration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The policy for the condition.
    Policy,
    /// The policy's default.
    Default,
    /// The provider's default.
    Provider,
    /// The policy's startupTimeout.
    StartupTimeout,
}

impl Source {
    /// In one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Default => "default",
            Self::Provider => "provider",
            Self::StartupTimeout => "startupTimeout",
        }
    }
}

/// The three steps that lead to the toleration of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The toleration of the policy for the condition.
    pub by_policy: Option<SignedDuration>,
    /// The policy's default.
    pub by_default: Option<SignedDuration>,
    /// The provider's default.
    pub by_provider: Option<SignedDuration>,
    /// The first of them.
    pub toleration: Option<(SignedDuration, Source)>,
    /// What is done, in order; empty if nothing is.
    pub ladder: Vec<Rung>,
}

/// The toleration of a condition; none if neither the policy nor the provider names it.
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

/// A condition that makes a node sick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sick {
    /// `Type=Status`.
    pub key: String,
    /// Its reason.
    pub reason: String,
    /// Since when, by our clock of it.
    pub since: Timestamp,
    /// Since when we see it.
    pub seen: Timestamp,
    /// How long that is tolerated.
    pub toleration: SignedDuration,
    /// Which of the three steps says so.
    pub from: Source,
    /// Until when it is tolerated.
    pub deadline: Timestamp,
    /// What is done then, in order.
    pub ladder: Vec<Rung>,
}

impl Sick {
    /// The type of the condition.
    pub fn kind(&self) -> &str {
        kind_of(&self.key)
    }

    /// The moment from which on it should have been repaired, and we knew.
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

/// The health of a node, as a policy sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diagnosis {
    /// The sick condition whose toleration ends first.
    pub sick: Option<Sick>,
    /// A condition that is sick, but for which nothing is done.
    pub tolerated: Option<String>,
    /// The memory as it should be from now on.
    pub memory: Progress,
    /// When a clock of a condition that is healthy is reset.
    pub resets_at: Option<Timestamp>,
    /// When it is forgotten that the node healed.
    pub forgets_at: Option<Timestamp>,
    /// The last sickness of a node that is well, if it passed by itself.
    pub healed: Option<Healed>,
    /// True if the node has never been ready for pods.
    pub starting: bool,
}

impl Diagnosis {
    /// True if a sick condition is past its toleration.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.sick.as_ref().is_some_and(|sick| sick.deadline <= now)
    }

    /// The diagnosis without what the node was told of it, and when that was.
    #[must_use]
    pub fn untold(mut self) -> Self {
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

/// The health of a node.
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
    // Of equal deadlines the first in the order of the node's conditions counts.
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

/// True if it is remembered that the node was not Ready when it registered, and it has not been Ready since: its kubelet may have died meanwhile, which
/// changes the condition.
fn started_so(node: &NodeView) -> bool {
    let clocks = node.progress.iter().flat_map(|progress| &progress.sick);
    clocks
        .into_iter()
        .any(|(key, clock)| kind_of(key) == "Ready" && clock.starting && clock.healthy.is_none())
}

/// True if a node has registered, and has never been ready for pods. Karpenter says so on the node or its NodeClaim. Of another
/// node its Ready condition tells: it has not changed since the node was created.
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
