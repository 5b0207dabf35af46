//! A repair policy: a NodeRepairPolicy, or the block `spec.repair` of a NodePool.

pub(super) mod amounts;
pub(super) mod cron;

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use regex::{Regex, RegexBuilder};
use salvor_api::{GoDuration, LabelSelector, Labelled};
use serde_json::Value;

use self::amounts::Amount;
use self::cron::Schedule;
use super::action::Action;
use super::provider;
use super::status::PolicyStatus;
use super::views::Status;
use crate::ids::ResourceVersion;
use crate::objects::ObjectRef;

/// The default share of sick nodes up to which repairs continue, as in Karpenter.
const UNHEALTHY_LIMIT: Amount = Amount::Percent(20);
/// The default limit of nodes under repair at once.
pub(super) const DEFAULT_BUDGET: Amount = Amount::Percent(10);
/// The default duration of a graceful termination.
const GRACE_PERIOD: SignedDuration = SignedDuration::from_mins(15);
/// How long the drain of an unowned node may take under a Forceful termination before the repair counts as blocked. It
/// leaves time for one request to the Eviction API per pod.
const FORCEFUL_DRAIN: SignedDuration = SignedDuration::from_secs(10);
/// The default timeout of each attempt of a ladder.
const RUNG_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);
/// Patterns that need more memory than this are refused: anyone who may write policies could write one.
const PATTERN_SIZE: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    pub action: Action,
    pub attempts: u32,
    /// How long each attempt waits for the node to become healthy.
    pub timeout: SignedDuration,
}

/// The ladder of a condition that has none of its own.
pub(super) const REPLACE: &[Rung] = &[Rung { action: Action::Replace, attempts: 1, timeout: RUNG_TIMEOUT }];

#[derive(Clone, Debug)]
pub struct Entry {
    pub kind: String,
    /// The sick status. None means any status that the node's provider, another provider or Kubernetes considers sick.
    pub status: Option<Status>,
    /// The pattern for the condition's reason. None matches every reason.
    pub reason: Option<Regex>,
    pub toleration: Option<SignedDuration>,
    /// The actions in order. Empty if nothing is done.
    pub ladder: Vec<Rung>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    /// Does not wait for pods.
    Forceful,
    /// Drains first, for at most this long.
    Graceful(SignedDuration),
}

impl Termination {
    /// The time that the termination may take.
    pub fn grace(self) -> SignedDuration {
        match self {
            Self::Forceful => SignedDuration::ZERO,
            Self::Graceful(period) => period,
        }
    }
}

impl fmt::Display for Termination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forceful => f.write_str("Forceful"),
            Self::Graceful(period) => write!(f, "Graceful, {}", shown(*period)),
        }
    }
}

/// The handling of a node that nothing owns, so that nothing replaces its machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnownedNodes {
    /// Cordon and drain. After that a person is needed.
    #[default]
    Drain,
    /// Cordon and drain, then delete the Node object where that cannot make work run twice.
    DeleteNode,
}

impl UnownedNodes {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "Drain",
            Self::DeleteNode => "DeleteNode",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    pub nodes: Amount,
    /// When the limit applies, as a schedule and a duration. None means always.
    pub window: Option<(Schedule, SignedDuration)>,
}

#[derive(Clone, Debug)]
pub struct Policy {
    pub object: ObjectRef,
    pub resource_version: ResourceVersion,
    pub generation: i64,
    /// Of two policies that select the same node, the older one counts.
    pub created: Timestamp,
    pub selector: LabelSelector,
    /// If true, no repair begins.
    pub paused: bool,
    pub entries: Vec<Entry>,
    /// The toleration of conditions that have none of their own.
    pub default_toleration: Option<SignedDuration>,
    pub termination: Termination,
    pub unowned: UnownedNodes,
    /// No repair begins while more nodes than this are past their toleration.
    pub unhealthy_limit: Amount,
    /// Limits of nodes under repair at once.
    pub budgets: Vec<Budget>,
    /// A node that is not initialized after this time is sick.
    pub startup_timeout: Option<SignedDuration>,
    /// Errors in the spec. With errors, nothing is done to the selected nodes. If the selector itself cannot be read,
    /// the policy selects no node.
    pub defects: Vec<String>,
    /// Parts of the spec that can never apply and are ignored.
    pub idle_parts: Vec<String>,
    /// The status read from the object.
    pub status: PolicyStatus,
}

impl Policy {
    /// A time that may be written into the policy's status. Times older than the policy are rejected on reading, and an
    /// API server's clock may be behind.
    pub(super) fn not_before(&self, now: Timestamp) -> Timestamp {
        if self.created == Timestamp::MAX { now } else { now.max(self.created) }
    }

    /// How long after its cordon the pods of an unowned node may take to leave.
    pub(super) fn drain_time(&self) -> SignedDuration {
        match self.termination {
            Termination::Forceful => FORCEFUL_DRAIN,
            Termination::Graceful(period) => period,
        }
    }

    /// True if the policy is a NodePool's `spec.repair`.
    pub fn is_pool(&self) -> bool {
        self.object.kind == super::views::NODE_POOL
    }

    pub fn selects(&self, labels: &impl Labelled) -> bool {
        !self.selector.is_empty() && self.selector.matches(labels)
    }

    /// The name in metrics and messages.
    pub fn name(&self) -> String {
        if self.is_pool() { format!("nodepool/{}", self.object.name) } else { self.object.name.clone() }
    }

    fn of(head: Head) -> Self {
        Self {
            object: head.object,
            resource_version: head.resource_version,
            generation: head.generation,
            created: head.created,
            selector: LabelSelector::default(),
            paused: false,
            entries: Vec::new(),
            default_toleration: None,
            termination: Termination::Forceful,
            unowned: UnownedNodes::default(),
            unhealthy_limit: UNHEALTHY_LIMIT,
            budgets: vec![Budget { nodes: DEFAULT_BUDGET, window: None }],
            startup_timeout: None,
            defects: Vec::new(),
            idle_parts: Vec::new(),
            status: head.status,
        }
    }

    /// Reads the `spec` of a NodeRepairPolicy. The object may be older than the schema that the API server validates
    /// now, so everything is checked again.
    pub fn read(head: Head, spec: &Value) -> Self {
        let mut policy = Self::of(head);
        let mut defects = Defects::default();
        defects.read_spec(&mut policy, spec);
        policy.defects = defects.0;
        policy
    }

    /// Reads the block `spec.repair` of a NodePool. It selects nodes by the label with the NodePool's name.
    pub fn read_pool(head: Head, repair: &Value) -> Self {
        let mut policy = Self::of(head);
        let mut defects = Defects::default();
        let label = salvor_api::names::repair::labels::NODE_POOL.to_owned();
        policy.selector.match_labels.insert(label, policy.object.name.clone());
        policy.default_toleration = defects.duration(repair, "spec.repair", "defaultTolerationDuration");
        if let Some(other) = repair.get("policies").filter(|it| !it.is_null() && !it.is_array()) {
            defects.note(format!("spec.repair.policies is {}: write a list", brief(other)));
        }
        for (index, entry) in list(repair, "policies").iter().enumerate() {
            let path = format!("spec.repair.policies[{index}]");
            let Some(kind) = defects.text(entry, &path, "conditionType") else { continue };
            let toleration = defects.duration(entry, &path, "toleration");
            let toleration = toleration.or_else(|| defects.duration(entry, &path, "tolerationDuration"));
            if toleration.is_none() {
                defects.note(format!("{path}.toleration must be set, for example to 10m"));
            }
            let given = entry.get("conditionStatus").filter(|given| !given.is_null());
            let status = given.and_then(Value::as_str).and_then(Status::from_api);
            match given {
                Some(given) if status.is_none() => defects.note(format!(
                    "{path}.conditionStatus is {}: write \"True\", \"False\" or \"Unknown\"",
                    brief(given)
                )),
                None if !provider::is_known(&kind) => policy.idle_parts.push(format!(
                    "{path}.conditionType is {kind:?}, and it is not known which status of it is sick, so it is ignored: \
                     set conditionStatus beside it, or write a NodeRepairPolicy"
                )),
                Some(_) | None => {}
            }
            policy.entries.push(Entry { kind, status, reason: None, toleration, ladder: REPLACE.to_vec() });
        }
        policy.defects = defects.0;
        policy
    }
}

/// The identity and status of the object from which a policy is read.
#[derive(Clone, Debug)]
pub struct Head {
    pub object: ObjectRef,
    pub resource_version: ResourceVersion,
    pub generation: i64,
    pub created: Timestamp,
    pub status: PolicyStatus,
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Shortens a value for an error message.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    let end = text.floor_char_boundary(80);
    if end < text.len() { format!("{}...", &text[..end]) } else { text }
}

/// Formats a duration as Go does.
pub(super) fn shown(duration: SignedDuration) -> String {
    let nanos = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    GoDuration::from_nanos(nanos).to_string()
}

/// Errors in a policy. Each names the field, its value and a correct value.
#[derive(Default)]
struct Defects(Vec<String>);

impl Defects {
    fn note(&mut self, defect: String) {
        self.0.push(defect);
    }

    fn text(&mut self, value: &Value, path: &str, field: &str) -> Option<String> {
        match value.get(field) {
            Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
            Some(other) => {
                self.note(format!("{path}.{field} is {other}: write a string that is not empty"));
                None
            }
            None => {
                self.note(format!("{path}.{field} must be set"));
                None
            }
        }
    }

    fn duration(&mut self, value: &Value, path: &str, field: &str) -> Option<SignedDuration> {
        let given = value.get(field).filter(|given| !given.is_null())?;
        let read = given.as_str().map(str::parse::<GoDuration>);
        match read {
            Some(Ok(duration)) if !duration.is_negative() => Some(duration.into()),
            Some(Ok(duration)) => {
                self.note(format!("{path}.{field} is {duration}: it must not be negative"));
                None
            }
            Some(Err(error)) => {
                self.note(format!("{path}.{field}: {error}"));
                None
            }
            None => {
                self.note(format!("{path}.{field} is {given}: write a duration, for example \"10m\""));
                None
            }
        }
    }

    fn amount(&mut self, value: &Value, path: &str, field: &str) -> Option<Amount> {
        let given = value.get(field).filter(|given| !given.is_null())?;
        match Amount::read(given) {
            Ok(amount) => Some(amount),
            Err(error) => {
                self.note(format!("{path}.{field}: {error}"));
                None
            }
        }
    }

    fn read_spec(&mut self, policy: &mut Policy, spec: &Value) {
        self.read_selector(policy, spec);
        policy.paused = match spec.get("paused") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(paused)) => *paused,
            Some(other) => {
                self.note(format!("spec.paused is {other}: write true or false"));
                true
            }
        };
        policy.default_toleration = self.duration(spec, "spec", "defaultTolerationDuration");
        policy.startup_timeout = self.duration(spec, "spec", "startupTimeout");
        if let Some(limit) = self.amount(spec, "spec", "unhealthyLimit") {
            policy.unhealthy_limit = limit;
        }
        let grace = self.duration(spec, "spec", "gracePeriod");
        policy.termination = match spec.get("termination").and_then(Value::as_str) {
            None => Termination::Forceful,
            Some("Forceful") if grace.is_none() => Termination::Forceful,
            Some("Forceful") => {
                self.note("spec.gracePeriod needs spec.termination: Graceful".to_owned());
                Termination::Forceful
            }
            Some("Graceful") => Termination::Graceful(grace.unwrap_or(GRACE_PERIOD)),
            Some(other) => {
                self.note(format!("spec.termination is {other:?}: write Forceful or Graceful"));
                Termination::Forceful
            }
        };
        policy.unowned = match spec.get("unownedNodes") {
            None | Some(Value::Null) => UnownedNodes::default(),
            Some(given) => match given.as_str() {
                Some("Drain") => UnownedNodes::Drain,
                Some("DeleteNode") => UnownedNodes::DeleteNode,
                Some(_) | None => {
                    self.note(format!("spec.unownedNodes is {}: write Drain or DeleteNode", brief(given)));
                    UnownedNodes::default()
                }
            },
        };
        for (index, entry) in list(spec, "policies").iter().enumerate() {
            let entry = self.read_entry(entry, &format!("spec.policies[{index}]"));
            policy.entries.extend(entry);
        }
        let budgets = list(spec, "budgets");
        if !budgets.is_empty() {
            policy.budgets.clear();
        }
        for (index, budget) in budgets.iter().enumerate() {
            let budget = self.read_budget(budget, &format!("spec.budgets[{index}]"));
            policy.budgets.extend(budget);
        }
    }

    fn read_selector(&mut self, policy: &mut Policy, spec: &Value) {
        let given = spec.get("nodeSelector").filter(|given| !given.is_null());
        let Some(given) = given else {
            self.note("spec.nodeSelector must be set: it says which nodes this policy is for".to_owned());
            return;
        };
        match serde_json::from_value::<LabelSelector>(given.clone()) {
            Ok(selector) if selector.is_empty() => {
                self.note("spec.nodeSelector is empty, and would select every node: name a label".to_owned());
            }
            Ok(selector) => {
                let defects = selector.defects();
                if defects.is_empty() {
                    policy.selector = selector;
                }
                for defect in defects {
                    self.note(format!("spec.nodeSelector: {}", defect.message));
                }
            }
            Err(error) => self.note(format!("spec.nodeSelector: {error}")),
        }
    }

    fn read_entry(&mut self, entry: &Value, path: &str) -> Option<Entry> {
        let kind = self.text(entry, path, "conditionType")?;
        let status = self.text(entry, path, "conditionStatus")?;
        let Some(status) = Status::from_api(&status) else {
            self.note(format!(
                "{path}.conditionStatus is {status:?}: write \"True\", \"False\" or \"Unknown\""
            ));
            return None;
        };
        let reason = match entry.get("reasonPattern").and_then(Value::as_str) {
            None => None,
            Some(pattern) => match RegexBuilder::new(pattern).size_limit(PATTERN_SIZE).build() {
                Ok(pattern) => Some(pattern),
                Err(error) => {
                    let error = error.to_string();
                    let words = error.lines().last().unwrap_or_default().trim().to_owned();
                    self.note(format!(
                        "{path}.reasonPattern is {pattern:?}, which is no regular expression: {words}"
                    ));
                    None
                }
            },
        };
        let toleration = self.duration(entry, path, "toleration");
        let ladder = match (entry.get("action").and_then(Value::as_str), list(entry, "ladder")) {
            (Some(_), [_, ..]) => {
                self.note(format!("{path} has action and ladder: set one of them"));
                Vec::new()
            }
            (None | Some("Replace"), []) => REPLACE.to_vec(),
            (Some("Reboot"), []) => {
                vec![Rung { action: Action::Reboot, attempts: 1, timeout: RUNG_TIMEOUT }]
            }
            (Some("None"), []) => Vec::new(),
            (Some(other), []) => {
                self.note(format!("{path}.action is {other:?}: write Replace, Reboot or None"));
                Vec::new()
            }
            (None, rungs) => {
                let rung =
                    |(index, rung): (usize, &Value)| self.read_rung(rung, &format!("{path}.ladder[{index}]"));
                rungs.iter().enumerate().filter_map(rung).collect()
            }
        };
        Some(Entry { kind, status: Some(status), reason, toleration, ladder })
    }

    fn read_rung(&mut self, rung: &Value, path: &str) -> Option<Rung> {
        let action = match self.text(rung, path, "action")?.as_str() {
            "Replace" => Action::Replace,
            "Reboot" => Action::Reboot,
            other => {
                self.note(format!("{path}.action is {other:?}: write Replace or Reboot"));
                return None;
            }
        };
        let attempts = match rung.get("attempts").filter(|given| !given.is_null()) {
            None => 1,
            Some(given) => match given.as_u64().and_then(|given| u32::try_from(given).ok()) {
                Some(attempts @ 1..=10) => attempts,
                _ => {
                    self.note(format!("{path}.attempts is {given}: write a number from 1 to 10"));
                    1
                }
            },
        };
        let timeout = self.duration(rung, path, "timeout").unwrap_or(RUNG_TIMEOUT);
        Some(Rung { action, attempts, timeout })
    }

    fn read_budget(&mut self, budget: &Value, path: &str) -> Option<Budget> {
        let Some(nodes) = self.amount(budget, path, "nodes") else {
            if budget.get("nodes").is_none() {
                self.note(format!("{path}.nodes must be set"));
            }
            return None;
        };
        let schedule = budget.get("schedule").and_then(Value::as_str);
        let duration = self.duration(budget, path, "duration");
        let window = match (schedule, duration) {
            (None, None) => None,
            (Some(schedule), Some(duration)) => match Schedule::read(schedule) {
                Ok(schedule) => Some((schedule, duration)),
                Err(error) => {
                    self.note(format!("{path}.schedule: {error}"));
                    None
                }
            },
            (Some(_), None) => {
                self.note(format!("{path}.duration must be set beside schedule"));
                None
            }
            (None, Some(_)) => {
                self.note(format!("{path}.schedule must be set beside duration"));
                None
            }
        };
        Some(Budget { nodes, window })
    }
}

/// The smallest budget that applies now, and when that may change. If none applies, the default budget does, so that
/// nodes are never repaired all at once.
pub fn allowance(budgets: &[Budget], total: usize, now: Timestamp) -> (usize, Option<Timestamp>) {
    let mut smallest: Option<usize> = None;
    let mut changes_at: Option<Timestamp> = None;
    for budget in budgets {
        let holds = match &budget.window {
            None => true,
            Some((schedule, duration)) => {
                let (holds, until) = schedule.is_active(now, *duration);
                changes_at = changes_at.into_iter().chain(until).min();
                holds
            }
        };
        if holds {
            let nodes = at_least_one(budget.nodes, total);
            smallest = Some(smallest.map_or(nodes, |before| before.min(nodes)));
        }
    }
    (smallest.unwrap_or_else(|| at_least_one(DEFAULT_BUDGET, total)), changes_at)
}

fn at_least_one(amount: Amount, total: usize) -> usize {
    if amount.is_nothing() { 0 } else { amount.of(total).max(1) }
}
