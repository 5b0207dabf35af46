//! Decides whether a pod is marked Failed: the rules of KEP-6757, in the order in which a person would ask them.

use jiff::{SignedDuration, Timestamp};
use salvor_api::config::TerminateAction;
use salvor_api::names::annotations::{SAFE_TO_FORCEFULLY_DELETE, SAFE_TO_FORCEFULLY_TERMINATE};
use salvor_api::names::{conditions, events, reasons, taints};

use super::jobs::ask_the_job;
use super::policy::{Consent, WaitBy, ZombiePolicy};
use super::reasons::{PodWhy, Terms, ZombieFacts};
use super::steps::Step;
use super::views::{AskedWait, Mark, NodeView, PodView, Unreachable};
use crate::event::{Condition, EventNote, EventType};
use crate::fnv::Fnv;
use crate::ids::NodeName;
use crate::moments::{ANNOUNCE_WITHIN, after, to_the_second};
use crate::objects::{Deletion, PodPhase, Ready};
use crate::verdict::Verdict::{self, Ignore};
use crate::verdict::{Decision, judge};

/// Decides on one pod. `node` is the Node that the pod names, if it exists; `now` is the API server's time.
///
/// An unread Lease does not block here: it is read live, and the pod decided on again, before anything is done.
pub fn decide_pod(
    pod: &PodView,
    node: Option<&NodeView>,
    policy: &ZombiePolicy,
    now: Timestamp,
) -> Decision<PodWhy, Step> {
    judge(|ask| {
        ask.none("Is zombie recovery switched on?", policy.switch(), policy.disabled)
            .map_err(|by| Ignore(PodWhy::Disabled(by)))?;
        let deletion = ask
            .some("Is the pod being deleted?", see_deletion(pod), pod.deletion)
            .ok_or(Ignore(PodWhy::NotTerminating))?;
        let consent = policy.consent(&pod.consent, &pod.labels);
        let consent = ask
            .some("Has its owner consented?", see_consent(consent, pod), consent)
            .ok_or_else(|| Ignore(PodWhy::NotOptedIn { near_miss: near_miss(pod) }))?;

        // Checked before any clock: a force delete moves the deletionTimestamp of a pod with a finalizer, so that
        // without our own mark it would come due again and again.
        let missing = MissingSteps::of(pod, deletion, consent, now);
        ask.that("Is anything left to do to it?", see_mark(pod, missing), missing.on_the_pod())
            .ok_or_else(|| already_recovered(pod, deletion, consent, missing))?;
        let may_delete = consent.action == TerminateAction::FailAndDelete;
        let phase = pod.phase;
        ask.that("Has it not ended, or may it be deleted?", phase, !phase.is_terminal() || may_delete)
            .ok_or(Ignore(PodWhy::AlreadyTerminal { phase }))?;

        let bound_to = pod.node_name.as_ref().filter(|name| !name.is_empty());
        let name = ask
            .some("Is it bound to a node?", bound_to.map_or("no", NodeName::as_str), bound_to)
            .ok_or(Ignore(PodWhy::NotScheduled))?;
        let node = ask
            .some("Does that Node exist?", if node.is_some() { "yes" } else { "no" }, node)
            .ok_or_else(|| Ignore(PodWhy::NodeMissing { node: name.clone() }))?;
        let lost = ask
            .some("Is the node unreachable?", see_taint(node), node.unreachable)
            .ok_or_else(|| Ignore(PodWhy::NodeReachable { node: name.clone() }))?;

        // The taint stays for seconds after the node's return; the kubelet reports Ready earlier.
        ask.that(
            "Is the node not Ready?",
            format_args!("Ready is {:?}", node.ready),
            node.ready != Ready::True,
        )
        .ok_or_else(|| Ignore(PodWhy::NodeReady { node: name.clone() }))?;

        let terms = Terms::of(pod, consent);
        if consent.wait_by == WaitBy::SettingInstead && !pod.wait_told {
            return Ok(tell_of_wait(pod, terms));
        }
        let (until, why) = wait(name, pod, deletion, consent, lost, policy);
        ask.that("Is the wait over?", format_args!("until {until}, it is {now}; {terms}"), now >= until)
            .ok_or(Verdict::Wait { until, why })?;
        let alive = node.heartbeat.alive_until(now);
        ask.none("Is its kubelet silent?", format_args!("{}; it is {now}", node.heartbeat), alive).map_err(
            |until| {
                let why = PodWhy::KubeletAlive { node: name.clone(), heartbeat: node.heartbeat.into() };
                Verdict::Wait { until, why }
            },
        )?;

        let fails_now = missing.mark && !pod.phase.is_terminal();
        let job_event = if fails_now { ask_the_job(ask, pod, policy, now)? } else { None };

        let facts = facts(pod, deletion, consent);
        let patch = missing.mark.then(|| mark_failed(pod, consent, &facts, now));
        let event = missing.event.then(|| event(pod, consent, &facts));
        let delete = missing.delete.then(|| Step::ForceDeletePod {
            pod: pod.pod.clone(),
            resource_version: pod.resource_version.clone(),
        });
        // A marked pod is not decided on again, so the event about its Job must be recorded first.
        Ok(Verdict::Act {
            actions: [job_event, patch, event, delete].into_iter().flatten().collect(),
            why: if missing.mark { PodWhy::Zombie(facts) } else { PodWhy::HalfRecovered(facts) },
        })
    })
}

/// Nothing is left to do to the pod; perhaps its event is still missing.
fn already_recovered(
    pod: &PodView,
    deletion: Deletion,
    consent: Consent,
    missing: MissingSteps,
) -> Verdict<PodWhy, Step> {
    if missing.event {
        let event = event(pod, consent, &facts(pod, deletion, consent));
        Verdict::Act { actions: vec![event], why: PodWhy::Unannounced }
    } else {
        Ignore(PodWhy::AlreadyRecovered { action: consent.action })
    }
}

/// The pod must have had its time, and the node must be lost for long enough. Waits for the later of the two, so one
/// wake-up is enough.
fn wait(
    node: &NodeName,
    pod: &PodView,
    deletion: Deletion,
    consent: Consent,
    lost: Unreachable,
    policy: &ZombiePolicy,
) -> (Timestamp, PodWhy) {
    let (due, trusted) = waits(pod, deletion, consent, lost, policy);
    if trusted > due {
        let minimum = policy.minimum_unreachable;
        let node = node.clone();
        (trusted, PodWhy::UnreachableTooBriefly { node, since: lost.since, minimum })
    } else {
        (due, PodWhy::GraceRunning { due, consent: consent.source, terms: Terms::of(pod, consent) })
    }
}

/// When the pod has had its time, and from when its node counts as lost.
fn waits(
    pod: &PodView,
    deletion: Deletion,
    consent: Consent,
    lost: Unreachable,
    policy: &ZombiePolicy,
) -> (Timestamp, Timestamp) {
    let due = after(deletion.timestamp, consent.wait);
    // An interrupted force delete has moved the deletionTimestamp; but the pod had had its time when it was marked.
    let due = earlier_recovery(pod, consent).and_then(|mark| mark.since).map_or(due, |since| due.min(since));
    (due, policy.trusts_taint_from(lost.since))
}

/// True if a pod that has not ended is given up now: the checks of [`decide_pod`] up to its Job, for many pods at once.
pub fn is_due(pod: &PodView, node: &NodeView, policy: &ZombiePolicy, now: Timestamp) -> bool {
    let consent = policy.consent(&pod.consent, &pod.labels);
    let (Some(deletion), Some(consent), Some(lost)) = (pod.deletion, consent, node.unreachable) else {
        return false;
    };
    let (due, trusted) = waits(pod, deletion, consent, lost, policy);
    policy.disabled.is_none()
        && !pod.phase.is_terminal()
        && node.ready != Ready::True
        && now >= due.max(trusted)
        && node.heartbeat.alive_until(now).is_none()
}

/// Records once that the pod's annotation about its wait cannot be read, and what counts instead. Nothing waits for
/// this event.
fn tell_of_wait(pod: &PodView, terms: Box<Terms>) -> Verdict<PodWhy, Step> {
    let mut hash = Fnv::default();
    if let AskedWait::Unreadable { value, .. } = &pod.consent.wait {
        hash.add(value.as_bytes());
    }
    let why = PodWhy::UnreadableWait(terms);
    let event = Step::Mention(EventNote {
        name: format!("zombie-wait.{}.{:x}", pod.pod.uid, hash.finish()),
        regarding: (&pod.pod).into(),
        kind: EventType::Warning,
        reason: reasons::INVALID_TERMINATION_GRACE_AFTER.into(),
        action: events::FORCEFUL_TERMINATION,
        reporting_controller: events::POD_TERMINATION_CONTROLLER,
        message: why.to_string(),
    });
    Verdict::Act { actions: vec![event], why }
}

/// The mark of a recovery that has begun. Salvor writes phase and mark together, so a mark on a living pod was written
/// by others and proves nothing.
fn earlier_recovery(pod: &PodView, consent: Consent) -> Option<Mark> {
    pod.mark.filter(|mark| pod.phase.is_terminal() && mark.covers(consent.action))
}

#[derive(Clone, Copy)]
struct MissingSteps {
    mark: bool,
    event: bool,
    delete: bool,
}

impl MissingSteps {
    fn of(pod: &PodView, deletion: Deletion, consent: Consent, now: Timestamp) -> Self {
        let done = earlier_recovery(pod, consent);
        let told = |since| pod.announced || now >= after(since, ANNOUNCE_WITHIN);
        Self {
            mark: done.is_none(),
            event: done.is_none_or(|mark| !mark.since.is_none_or(told)),
            // With a grace period of 0 the API server has removed everything except finalizers: another delete changes
            // nothing.
            delete: consent.action == TerminateAction::FailAndDelete && deletion.grace_seconds != Some(0),
        }
    }

    fn on_the_pod(self) -> bool {
        self.mark || self.delete
    }
}

fn facts(pod: &PodView, deletion: Deletion, consent: Consent) -> ZombieFacts {
    let own_grace = SignedDuration::from_secs(deletion.grace_seconds.unwrap_or(0).max(0));
    ZombieFacts {
        node: pod.node_name.clone().unwrap_or_default(),
        grace: own_grace.saturating_add(consent.wait),
        consent: consent.source,
    }
}

fn mark_failed(pod: &PodView, consent: Consent, facts: &ZombieFacts, now: Timestamp) -> Step {
    let condition = |kind, reason| Condition {
        kind,
        reason,
        message: facts.to_string(),
        last_transition_time: to_the_second(now),
    };
    let mut conditions = vec![condition(conditions::KUEUE_FAILURE_RECOVERY, reason(consent.action))];
    let fails_now = !pod.phase.is_terminal();
    // A pod that ended on its own was not disrupted, and one that others disrupted should keep their reason.
    if fails_now && !pod.disruption_target {
        conditions.push(condition(conditions::DISRUPTION_TARGET, reasons::TERMINATION_BY_SALVOR));
    }
    Step::PatchPodStatus {
        pod: pod.pod.clone(),
        resource_version: pod.resource_version.clone(),
        phase: fails_now.then_some(PodPhase::Failed),
        conditions,
    }
}

fn event(pod: &PodView, consent: Consent, facts: &ZombieFacts) -> Step {
    let step = match consent.action {
        TerminateAction::Fail => "zombie-terminated",
        TerminateAction::FailAndDelete => "zombie-deleted",
    };
    Step::EmitEvent(EventNote {
        name: format!("{step}.{}", pod.pod.uid),
        regarding: (&pod.pod).into(),
        kind: EventType::Warning,
        reason: reason(consent.action).into(),
        action: events::FORCEFUL_TERMINATION,
        reporting_controller: events::POD_TERMINATION_CONTROLLER,
        message: facts.to_string(),
    })
}

fn reason(action: TerminateAction) -> &'static str {
    match action {
        TerminateAction::Fail => reasons::KUEUE_FORCEFULLY_TERMINATED,
        TerminateAction::FailAndDelete => reasons::KUEUE_FORCEFULLY_DELETED,
    }
}

/// An annotation that exists, but with a value that does not consent.
fn near_miss(pod: &PodView) -> Option<(&'static str, String)> {
    let delete = pod.consent.delete.clone();
    let terminate = pod.consent.terminate.clone();
    delete
        .map(|value| (SAFE_TO_FORCEFULLY_DELETE, value))
        .or(terminate.map(|value| (SAFE_TO_FORCEFULLY_TERMINATE, value)))
}

fn see_deletion(pod: &PodView) -> String {
    match pod.deletion {
        None => "no deletionTimestamp".into(),
        Some(Deletion { timestamp, grace_seconds: None }) => format!("deletionTimestamp {timestamp}"),
        Some(Deletion { timestamp, grace_seconds: Some(grace) }) => {
            format!("deletionTimestamp {timestamp}, which includes its grace of {grace}s")
        }
    }
}

fn see_consent(consent: Option<Consent>, pod: &PodView) -> String {
    match (consent, near_miss(pod)) {
        (Some(Consent { source, action, .. }), _) => format!("yes, by {source}, to {action:?}"),
        (None, Some((key, value))) => format!("annotation {key} is {value:?}"),
        (None, None) => "no annotation, no matching rule".into(),
    }
}

fn see_mark(pod: &PodView, missing: MissingSteps) -> String {
    let done = match pod.mark.and_then(|mark| mark.since) {
        Some(since) => format!("marked at {since}"),
        None if pod.mark.is_some() => "marked".into(),
        None => "not marked".into(),
    };
    let left: Vec<_> = [(missing.mark, "status"), (missing.event, "event"), (missing.delete, "delete")]
        .into_iter()
        .filter_map(|(is_missing, step)| is_missing.then_some(step))
        .collect();
    if left.is_empty() {
        format!("{done}, nothing left")
    } else {
        format!("{done}, left: {}", left.join(", "))
    }
}

fn see_taint(node: &NodeView) -> String {
    match node.unreachable {
        Some(lost) => format!("taint {} since {}", taints::UNREACHABLE, lost.since),
        None => format!("no taint {}, Ready is {:?}", taints::UNREACHABLE, node.ready),
    }
}
