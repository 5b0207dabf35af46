//! Decides whether a pod is marked Failed: the rules of KEP-6757, in the order in which a person would ask them.

use jiff::{SignedDuration, Timestamp};
use salvor_api::config::TerminateAction;
use salvor_api::names::annotations::{EVICT_AFTER, SAFE_TO_FORCEFULLY_DELETE, SAFE_TO_FORCEFULLY_TERMINATE};
use salvor_api::names::{conditions, events, reasons, taints};

use super::jobs::ask_the_job;
use super::policy::{Consent, ConsentSource, EvictAfter, WaitBy, ZombiePolicy};
use super::reasons::{EvictTerms, PodWhy, Terms, Waited, ZombieFacts, unreadable_evict_after};
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
        let consent = policy.consent(&pod.consent, &pod.labels);
        let defect = consent.and_then(|consent| evict_after_defect(pod, consent));
        if let Some(defect) = defect.as_ref().filter(|_| !pod.evict_told) {
            return Ok(tell_of_evict_after(pod, defect));
        }
        let evict = consent.and_then(|consent| evict_after(pod, consent));
        let lacks_only_consent = consent.is_none() && pod.consent.evict_after != AskedWait::Unset;
        if pod.deletion.is_none() && (evict.is_some() || lacks_only_consent) {
            ask.that("May it be given up without a deletion?", see_evict_after(pod, evict), true);
        } else {
            let seen = see_deletion(pod, defect.as_deref());
            ask.some("Is the pod being deleted?", seen, pod.deletion).ok_or_else(|| {
                Ignore(PodWhy::NotTerminating { evict_after: defect.map(String::into_boxed_str) })
            })?;
        }
        let consent = ask
            .some("Has its owner consented?", see_consent(consent, pod), consent)
            .ok_or_else(|| Ignore(PodWhy::NotOptedIn { near_miss: near_miss(pod) }))?;

        // Checked before any clock: a force delete moves the deletionTimestamp of a pod with a finalizer, so that
        // without our own mark it would come due again and again.
        let missing = MissingSteps::of(pod, consent, now);
        ask.that("Is anything left to do to it?", see_mark(pod, missing), missing.on_the_pod())
            .ok_or_else(|| already_recovered(pod, consent, missing))?;
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

        if pod.deletion.is_some() && consent.wait_by == WaitBy::SettingInstead && !pod.wait_told {
            return Ok(tell_of_wait(pod, Terms::of(pod, consent)));
        }
        let due = due(pod, consent, lost, now).ok_or(Ignore(PodWhy::NotTerminating { evict_after: None }))?;
        let (until, why) = wait(name, pod, due, consent, lost, policy);
        let terms = match due.by {
            DueBy::Grace(_) => Terms::of(pod, consent).to_string(),
            DueBy::EvictAfter(evict) => EvictTerms::of(pod, evict).to_string(),
        };
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

        let facts = facts(pod, consent, due.by);
        // The work ended with its node and not with this write. A Job counts the back-off of its next pod from that end.
        let ended = match due.by {
            DueBy::EvictAfter(_) => node.heartbeat.heard(),
            DueBy::Grace(_) => None,
        };
        let patch = missing.mark.then(|| mark_failed(pod, consent, &facts, ended, now));
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
fn already_recovered(pod: &PodView, consent: Consent, missing: MissingSteps) -> Verdict<PodWhy, Step> {
    if missing.event {
        let event = event(pod, consent, &facts(pod, consent, was_due_by(pod, consent)));
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
    due: Due,
    consent: Consent,
    lost: Unreachable,
    policy: &ZombiePolicy,
) -> (Timestamp, PodWhy) {
    let trusted = policy.trusts_taint_from(lost.since);
    let node = node.clone();
    let Due { at: due, by } = due;
    if trusted > due {
        let minimum = policy.minimum_unreachable;
        return (trusted, PodWhy::UnreachableTooBriefly { node, since: lost.since, minimum });
    }
    let consent_by = consent.source;
    let why = match by {
        DueBy::Grace(_) => PodWhy::GraceRunning { due, consent: consent_by, terms: Terms::of(pod, consent) },
        DueBy::EvictAfter(evict) => {
            let terms = Box::new(EvictTerms::of(pod, evict));
            PodWhy::EvictAfterRunning { node, due, consent: consent_by, terms }
        }
    };
    (due, why)
}

/// When a pod has had its time.
#[derive(Clone, Copy)]
struct Due {
    at: Timestamp,
    by: DueBy,
}

#[derive(Clone, Copy)]
enum DueBy {
    /// The end of its grace period and the wait after it.
    Grace(Option<Deletion>),
    /// The loss of its node.
    EvictAfter(EvictAfter),
}

/// When the pod has had its time: by its deletion or by evict-after, whichever is earlier. None if it has neither.
fn due(pod: &PodView, consent: Consent, lost: Unreachable, now: Timestamp) -> Option<Due> {
    let by_deletion = pod.deletion.map(|deletion| {
        let due = after(deletion.timestamp, consent.wait);
        Due { at: due, by: DueBy::Grace(Some(deletion)) }
    });
    let by_loss = evict_after(pod, consent).map(|evict| {
        // No time passes, whatever the clock of the controller that set the taint.
        let at = if evict.after.is_zero() { lost.since.min(now) } else { after(lost.since, evict.after) };
        Due { at, by: DueBy::EvictAfter(evict) }
    });
    let first = by_deletion.into_iter().chain(by_loss).min_by_key(|due| due.at)?;
    // An interrupted force delete has moved the deletionTimestamp; but the pod had had its time when it was marked.
    let marked = earlier_recovery(pod, consent).and_then(|mark| mark.since);
    Some(Due { at: marked.map_or(first.at, |since| first.at.min(since)), ..first })
}

/// What a marked pod had waited for.
fn was_due_by(pod: &PodView, consent: Consent) -> DueBy {
    let marked = pod.mark.and_then(|mark| mark.since);
    let before_its_grace = |deletion: Deletion| {
        marked.is_some_and(|since| since < to_the_second(after(deletion.timestamp, consent.wait)))
    };
    let evict = consent.evict.filter(|_| pod.deletion.is_none_or(before_its_grace));
    evict.map_or(DueBy::Grace(pod.deletion), DueBy::EvictAfter)
}

/// The time after which the pod is given up, deleted or not. A pod that ended by itself has nothing to give up.
fn evict_after(pod: &PodView, consent: Consent) -> Option<EvictAfter> {
    consent.evict.filter(|_| !pod.phase.is_terminal() || pod.mark.is_some())
}

/// Why the pod's annotation about evict-after does not count, if it has one that does not.
fn evict_after_defect(pod: &PodView, consent: Consent) -> Option<String> {
    match consent.source {
        ConsentSource::Annotation(_) => unreadable_evict_after(&pod.consent.evict_after),
        ConsentSource::Rule(_) => None,
    }
}

/// True if a pod that has not ended is given up now: the checks of [`decide_pod`] up to its Job, for many pods at once.
pub fn is_due(pod: &PodView, node: &NodeView, policy: &ZombiePolicy, now: Timestamp) -> bool {
    let consent = policy.consent(&pod.consent, &pod.labels);
    let (Some(consent), Some(lost)) = (consent, node.unreachable) else { return false };
    let Some(due) = due(pod, consent, lost, now) else { return false };
    policy.disabled.is_none()
        && !pod.phase.is_terminal()
        && node.ready != Ready::True
        && now >= due.at.max(policy.trusts_taint_from(lost.since))
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

/// Records once that the pod's annotation about evict-after cannot be read. This does not wait for the loss of its
/// node, so that the owner can correct it in time. Nothing waits for this event.
fn tell_of_evict_after(pod: &PodView, defect: &str) -> Verdict<PodWhy, Step> {
    let mut hash = Fnv::default();
    hash.add(defect.as_bytes());
    let why = PodWhy::UnreadableEvictAfter(defect.into());
    let event = Step::Mention(EventNote {
        name: format!("zombie-evict-after.{}.{:x}", pod.pod.uid, hash.finish()),
        regarding: (&pod.pod).into(),
        kind: EventType::Warning,
        reason: reasons::INVALID_EVICT_AFTER.into(),
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
    fn of(pod: &PodView, consent: Consent, now: Timestamp) -> Self {
        let is_forced = |deletion: Deletion| deletion.grace_seconds == Some(0);
        let done = earlier_recovery(pod, consent);
        let told = |since| pod.announced || now >= after(since, ANNOUNCE_WITHIN);
        Self {
            mark: done.is_none(),
            event: done.is_none_or(|mark| !mark.since.is_none_or(told)),
            // With a grace period of 0 the API server has removed everything except finalizers: another delete changes
            // nothing.
            delete: consent.action == TerminateAction::FailAndDelete && !pod.deletion.is_some_and(is_forced),
        }
    }

    fn on_the_pod(self) -> bool {
        self.mark || self.delete
    }
}

fn facts(pod: &PodView, consent: Consent, by: DueBy) -> ZombieFacts {
    let waited = match by {
        DueBy::Grace(deletion) => {
            let own_grace = deletion.and_then(|deletion| deletion.grace_seconds).unwrap_or(0).max(0);
            Waited::Grace(SignedDuration::from_secs(own_grace).saturating_add(consent.wait))
        }
        DueBy::EvictAfter(evict) => Waited::EvictAfter(evict.after),
    };
    ZombieFacts { node: pod.node_name.clone().unwrap_or_default(), waited, consent: consent.source }
}

fn mark_failed(
    pod: &PodView,
    consent: Consent,
    facts: &ZombieFacts,
    ended: Option<Timestamp>,
    now: Timestamp,
) -> Step {
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
        ended: ended.filter(|_| fails_now).map(to_the_second),
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

fn see_deletion(pod: &PodView, defect: Option<&str>) -> String {
    let seen = match pod.deletion {
        None => "no deletionTimestamp".into(),
        Some(Deletion { timestamp, grace_seconds: None }) => format!("deletionTimestamp {timestamp}"),
        Some(Deletion { timestamp, grace_seconds: Some(grace) }) => {
            format!("deletionTimestamp {timestamp}, which includes its grace of {grace}s")
        }
    };
    match defect {
        Some(defect) => format!("{seen}; {defect}"),
        None if pod.deletion.is_none() && pod.consent.evict_after != AskedWait::Unset => {
            format!(
                "{seen}; annotation {EVICT_AFTER} counts only for a pod that runs, beside an opt-in annotation"
            )
        }
        None => seen,
    }
}

fn see_evict_after(pod: &PodView, evict: Option<EvictAfter>) -> String {
    match evict {
        Some(evict) => EvictTerms::of(pod, evict).to_string(),
        None => format!("annotation {EVICT_AFTER}"),
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
