//! The writes that the rules request, and their events. Every event has one name for all attempts.

use jiff::Timestamp;
use salvor_api::names::{conditions, events, node_conditions, reasons, taints};

use super::memory::{Asked, Damage, Progress, Released};
use super::policy::Request;
use super::reasons::{NodeWhy, PodWhy};
use super::steps::Step;
use super::views::{AttachmentView, DespiteOutage, Lease, NodeView, PodView, Refusal};
use crate::brake::Held;
use crate::event::{Condition, EventNote, EventType, NodeCondition};
use crate::fnv::Fnv;
use crate::gate::Claim;
use crate::moments::{ANNOUNCE_WITHIN, after, to_the_second};
use crate::objects::{PodPhase, Taint};
use crate::step::Step as _;
use crate::verdict::{Reason, Verdict};

/// Writes the progress, and the taint that makes a returning kubelet refuse pods, in one request.
pub(super) fn start(node: &NodeView, request: &Request, now: Timestamp) -> Verdict<NodeWhy, Step> {
    let despite = node.despite_outage(now);
    let taint = node.no_execute().is_none().then(|| Taint {
        key: taints::FORCE_EVICTION.into(),
        value: request.value().into(),
        effect: taints::NO_EXECUTE.into(),
    });
    let started = node.not_before(to_the_second(now));
    // The containers of the pods that an earlier eviction ended may still run, if the machine has not rebooted since.
    let earlier = node.progress.as_ref().filter(|earlier| earlier.may_still_use_volumes(node));
    let progress = Progress {
        started,
        request: request.taint.to_string(),
        boot_id: node.boot_to_remember().or_else(|| earlier.and_then(|earlier| earlier.boot_id.clone())),
        returned: None,
        released: earlier.map(|_| Released::earlier(started)),
        finished: None,
        stopped: None,
    };
    let note = self::started(node, &progress);
    let start = Step::StartEviction {
        node: node.node.clone(),
        resource_version: node.resource_version.clone(),
        taint,
        progress,
        zone: node.zone.clone(),
    };
    let why = NodeWhy::NodeDown { request: request.taint.to_string() };
    let despite = despite.map(|word| Step::EmitEvent(despite_outage(node, word)));
    let actions = [Some(start), Some(Step::EmitEvent(note)), despite];
    Verdict::Act { actions: actions.into_iter().flatten().collect(), why }
}

/// The event that names the person who began the eviction despite an outage.
fn despite_outage(node: &NodeView, word: &DespiteOutage) -> EventNote {
    let name = format!("node-eviction-despite-outage.{}.{}", node.node.uid, word.at.as_second());
    EventNote {
        message: format!(
            "Eviction does not wait for the end of an outage around the node: {} said so at {}",
            word.by, word.at
        ),
        reason: reasons::DESPITE_ZONE_OUTAGE.into(),
        ..note(node, name, EventType::Warning, &NodeWhy::NotRequested)
    }
}

/// The node is Ready: removes our taint and touches nothing else.
pub(super) fn decline(node: &NodeView, request: &Request) -> Verdict<NodeWhy, Step> {
    let why = NodeWhy::NodeReady { request: request.taint.to_string() };
    // The resourceVersion distinguishes this refusal from the next one.
    let name = format!("node-eviction-declined.{}.{}", node.node.uid, node.resource_version);
    let told = note(node, name, EventType::Normal, &why);
    let asked = match node.heartbeat() {
        Lease::Renewed { written, moves: false, .. } => {
            Some(Asked { value: request.taint.value.clone(), renewed: written })
        }
        Lease::Renewed { moves: true, .. } | Lease::None | Lease::Unread => None,
    };
    let decline = Step::EndEviction {
        node: node.node.clone(),
        resource_version: node.resource_version.clone(),
        progress: None,
        asked,
    };
    Verdict::Act { actions: vec![decline, Step::EmitEvent(told)], why }
}

/// Releases the volumes attached to the node, except those that remaining pods have claimed.
pub(super) fn release(
    node: &NodeView,
    progress: &Progress,
    attachments: &[&AttachmentView],
    keep: Vec<Claim>,
    now: Timestamp,
) -> Verdict<NodeWhy, Step> {
    let why = NodeWhy::ReleasingVolumes { in_use: node.volumes_in_use.len(), kept: keep.len() };
    let before = progress.released.as_ref();
    let kept_all = before.is_none_or(|before| before.kept_all);
    let released = Released { kept_all, ..Released::keeping(&keep, now) };
    let release = Step::ReleaseVolumes {
        node: node.node.clone(),
        resource_version: node.resource_version.clone(),
        in_use: node.volumes_in_use.clone(),
        attached: attachments.iter().copied().cloned().collect(),
        attached_names: node.volumes_attached.clone(),
        keep,
        progress: Progress { released: Some(released), ..progress.clone() },
    };
    Verdict::Act { actions: vec![release], why }
}

pub(super) fn finish(node: &NodeView, progress: &Progress, now: Timestamp) -> Verdict<NodeWhy, Step> {
    let why = NodeWhy::Finished { since: now };
    // All pods may be gone before the first decision on the node, by this process or after a crash of the previous
    // leader.
    let begun = unrecorded_start(node, progress, now);
    let progress = Progress { finished: Some(now), ..progress.clone() };
    let told = phase_event(node, &progress, &why);
    let report = report(node, &why, now, Some(progress));
    let actions = [begun.map(Step::EmitEvent), Some(report), told.map(Step::EmitEvent)];
    Verdict::Act { actions: actions.into_iter().flatten().collect(), why }
}

/// A taint was removed before the eviction finished: removes the rest of ours too, and reports it.
pub(super) fn stop(
    node: &NodeView,
    progress: &Progress,
    foreign: Option<Request>,
    now: Timestamp,
) -> Verdict<NodeWhy, Step> {
    let rest = foreign.map(|_| Progress { stopped: Some(now), ..progress.clone() });
    let then = end(node, rest, NodeWhy::Stopped, progress, now);
    phase(node, progress, NodeWhy::Stopped, now, then)
}

/// Removes our taint, and with it our annotations, except for `rest`.
pub(super) fn end(
    node: &NodeView,
    rest: Option<Progress>,
    why: NodeWhy,
    progress: &Progress,
    now: Timestamp,
) -> Verdict<NodeWhy, Step> {
    let finished = unrecorded_finish(node, now);
    let name = incident(node, progress, "ended");
    let told = note(node, name, EventType::Normal, &why);
    let actions =
        [finished.map(Step::EmitEvent), Some(take_taint_off(node, rest)), Some(Step::EmitEvent(told))];
    Verdict::Act { actions: actions.into_iter().flatten().collect(), why }
}

/// Removes our taint and annotations: there is nothing to remember any more.
pub(super) fn forget(node: &NodeView, now: Timestamp) -> Verdict<NodeWhy, Step> {
    let finished = unrecorded_finish(node, now).map(Step::EmitEvent);
    let actions = finished.into_iter().chain([take_taint_off(node, None)]);
    Verdict::Act { actions: actions.collect(), why: NodeWhy::Forgotten }
}

fn take_taint_off(node: &NodeView, rest: Option<Progress>) -> Step {
    Step::EndEviction {
        node: node.node.clone(),
        resource_version: node.resource_version.clone(),
        progress: rest,
        asked: None,
    }
}

/// Writes the phase to the node's condition and records its event before anything else is done in that phase.
pub(super) fn phase(
    node: &NodeView,
    progress: &Progress,
    why: NodeWhy,
    now: Timestamp,
    then: Verdict<NodeWhy, Step>,
) -> Verdict<NodeWhy, Step> {
    let is_said = node.condition.as_deref() == Some(why.code());
    let condition = (!is_said).then(|| report(node, &why, to_the_second(now), None));
    say_phase(node, progress, why, now, condition, then)
}

/// The same for a phase in which the node's kubelet shows life. Records that it did, so that earlier statements prove
/// nothing any more.
pub(super) fn return_phase(
    node: &NodeView,
    progress: &Progress,
    request: &Request,
    why: NodeWhy,
    now: Timestamp,
    then: Verdict<NodeWhy, Step>,
) -> Verdict<NodeWhy, Step> {
    if progress.returned.is_some() {
        return phase(node, progress, why, now, then);
    }
    let at = to_the_second(now);
    let returned = Progress { returned: Some(at), request: request.taint.to_string(), ..progress.clone() };
    let condition = report(node, &why, at, Some(returned));
    say_phase(node, progress, why, now, Some(condition), then)
}

fn say_phase(
    node: &NodeView,
    progress: &Progress,
    why: NodeWhy,
    now: Timestamp,
    condition: Option<Step>,
    then: Verdict<NodeWhy, Step>,
) -> Verdict<NodeWhy, Step> {
    let recent = now < after(progress.finished.unwrap_or(progress.started), ANNOUNCE_WITHIN);
    let this = phase_event(node, progress, &why)
        .filter(|note| !node.told.contains(&note.name))
        .filter(|_| recent || matches!(why, NodeWhy::VolumesHang { .. } | NodeWhy::NotRebooted { .. }));
    let unrecorded = [unrecorded_start(node, progress, now), this].into_iter().flatten();
    let actions: Vec<Step> = condition.into_iter().chain(unrecorded.map(Step::EmitEvent)).collect();
    if actions.is_empty() { then } else { Verdict::Act { actions, why } }
}

/// Our own annotation cannot be trusted: nothing is done before it is corrected or gone, and the node's condition says
/// so.
pub(super) fn unreadable(node: &NodeView, damage: &Damage, now: Timestamp) -> Verdict<NodeWhy, Step> {
    let Damage { annotation, problem, until } = damage;
    let why =
        NodeWhy::AnnotationUnreadable { node: node.node.name.clone(), annotation, problem: problem.clone() };
    let then = match until {
        Some(until) => Verdict::Wait { until: *until, why: why.clone() },
        None => Verdict::Ignore(why.clone()),
    };
    say_trouble(node, "unreadable", why, now, then)
}

/// The API server just refused a write: it is retried later, and until then the node's condition says so.
pub(super) fn refused_by_the_server(
    node: &NodeView,
    refusal: &Refusal,
    now: Timestamp,
) -> Verdict<NodeWhy, Step> {
    let Refusal { what, words, until, .. } = refusal;
    let why =
        NodeWhy::WriteRefused { what: what.clone(), words: words.clone(), begun: node.progress.is_some() };
    let then = Verdict::Wait { until: *until, why: why.clone() };
    say_trouble(node, "write-refused", why, now, then)
}

/// Reports once, in the condition and in an event, what blocks the eviction.
fn say_trouble(
    node: &NodeView,
    step: &str,
    why: NodeWhy,
    now: Timestamp,
    then: Verdict<NodeWhy, Step>,
) -> Verdict<NodeWhy, Step> {
    let told = note(node, of_text(node, &why.to_string(), step), EventType::Warning, &why);
    let report = report(node, &why, to_the_second(now), None);
    // The report itself may have been refused a moment ago.
    let may_report = !node.refused.iter().any(|it| it.step == report.name() && now < it.until);
    let condition = Some(report).filter(|_| may_report && node.condition.as_deref() != Some(why.code()));
    let event = (!node.told.contains(&told.name)).then_some(Step::EmitEvent(told));
    let actions: Vec<Step> = condition.into_iter().chain(event).collect();
    if actions.is_empty() { then } else { Verdict::Act { actions, why } }
}

/// The problem that the condition reports is over.
pub(super) fn trouble_is_over(node: &NodeView, now: Timestamp) -> Verdict<NodeWhy, Step> {
    let why = NodeWhy::NotBegun;
    Verdict::Act { actions: vec![report(node, &why, to_the_second(now), None)], why }
}

/// An event on its own, if it is not recorded yet.
pub(super) fn tell_once(node: &NodeView, note: EventNote, why: NodeWhy) -> Option<Verdict<NodeWhy, Step>> {
    (!node.told.contains(&note.name)).then(|| Verdict::Act { actions: vec![Step::EmitEvent(note)], why })
}

/// The request is refused because the kubelet is alive.
pub(super) fn refused(node: &NodeView, request: &Request, why: &NodeWhy) -> EventNote {
    note(node, of_request(node, request, "refused"), EventType::Warning, why)
}

/// The request is blocked because the zone is down.
pub(super) fn held(node: &NodeView, request: &Request, by: &Held) -> EventNote {
    let name = of_request(node, request, "held");
    EventNote {
        message: format!(
            "Eviction is held: {by}. If the machine is off for sure: salvor evict {} --despite-zone-outage",
            node.node.name
        ),
        reason: by.code().into(),
        ..note(node, name, EventType::Warning, &NodeWhy::NotRequested)
    }
}

/// Another request gets an event of its own. Nothing records when a taint was set, so the same taint set again gets
/// none.
fn of_request(node: &NodeView, request: &Request, step: &str) -> String {
    of_text(node, &request.taint.to_string(), step)
}

/// An event name for this text, which may contain characters that a name may not.
fn of_text(node: &NodeView, text: &str, step: &str) -> String {
    let mut hash = Fnv::default();
    hash.add(text.as_bytes());
    format!("node-eviction-{step}.{}.{:016x}", node.node.uid, hash.finish())
}

/// The event about the start, if it may be missing: until the eviction is finished, and only for `ANNOUNCE_WITHIN`.
fn unrecorded_start(node: &NodeView, progress: &Progress, now: Timestamp) -> Option<EventNote> {
    let recent = now < after(progress.started, ANNOUNCE_WITHIN);
    let note = started(node, progress);
    (recent && progress.finished.is_none() && !node.told.contains(&note.name)).then_some(note)
}

/// The event about the end, if it may be missing, also only for `ANNOUNCE_WITHIN`. The process that finished the
/// eviction may have crashed right then, and the node may be back, or its taint gone, before the next decision on it.
fn unrecorded_finish(node: &NodeView, now: Timestamp) -> Option<EventNote> {
    let progress = node.progress.as_ref()?;
    let since = progress.finished.filter(|finished| now < after(*finished, ANNOUNCE_WITHIN))?;
    phase_event(node, progress, &NodeWhy::Finished { since }).filter(|note| !node.told.contains(&note.name))
}

fn started(node: &NodeView, progress: &Progress) -> EventNote {
    let why = NodeWhy::NodeDown { request: progress.request.clone() };
    note(node, incident(node, progress, "started"), EventType::Warning, &why)
}

/// The event when a phase is reached. Most phases have only the condition.
fn phase_event(node: &NodeView, progress: &Progress, why: &NodeWhy) -> Option<EventNote> {
    let (step, kind) = match why {
        NodeWhy::Finished { .. } => ("finished", EventType::Normal),
        NodeWhy::VolumesHang { .. } => ("volumes-hang", EventType::Warning),
        NodeWhy::NodeReturned { .. } => ("node-returned", EventType::Normal),
        NodeWhy::NotRebooted { .. } => ("not-rebooted", EventType::Warning),
        _ => return None,
    };
    Some(note(node, incident(node, progress, step), kind, why))
}

fn incident(node: &NodeView, progress: &Progress, step: &str) -> String {
    format!("node-eviction-{step}.{}.{}", node.node.uid, progress.started.as_second())
}

fn note(node: &NodeView, name: String, kind: EventType, why: &NodeWhy) -> EventNote {
    EventNote {
        name,
        regarding: (&node.node).into(),
        kind,
        reason: why.code().into(),
        action: events::EVICT_NODE,
        reporting_controller: events::EVICTION_CONTROLLER,
        message: why.to_string(),
    }
}

fn report(node: &NodeView, why: &NodeWhy, now: Timestamp, progress: Option<Progress>) -> Step {
    Step::ReportEviction {
        node: node.node.clone(),
        resource_version: node.resource_version.clone(),
        condition: node_condition(why, now),
        progress,
    }
}

pub(super) fn node_condition(why: &NodeWhy, now: Timestamp) -> NodeCondition {
    NodeCondition {
        kind: node_conditions::FORCE_EVICTION,
        holds: why.is_under_way(),
        reason: why.code(),
        message: why.to_string(),
        last_transition_time: now,
    }
}

/// A pod on a dead node: first its status, then the delete. Never the other way round.
pub(super) fn evict(
    pod: &PodView,
    node: &NodeView,
    progress: &Progress,
    now: Timestamp,
) -> Verdict<PodWhy, Step> {
    let why = PodWhy::NodeDown { node: node.node.name.clone(), request: progress.request.clone() };
    let patch = (!pod.phase.is_terminal()).then(|| Step::PatchPodStatus {
        pod: pod.pod.clone(),
        resource_version: pod.resource_version.clone(),
        phase: Some(PodPhase::Failed),
        conditions: vec![Condition {
            kind: conditions::DISRUPTION_TARGET,
            reason: reasons::FORCE_EVICTION_BY_SALVOR,
            message: why.to_string(),
            last_transition_time: now,
        }],
    });
    let event = (!pod.announced).then(|| {
        Step::EmitEvent(EventNote {
            name: format!("evicted.{}", pod.pod.uid),
            regarding: (&pod.pod).into(),
            kind: EventType::Warning,
            reason: reasons::FORCE_EVICTION_BY_SALVOR.into(),
            action: events::EVICT_POD,
            reporting_controller: events::EVICTION_CONTROLLER,
            message: why.to_string(),
        })
    });
    let forced = pod.deletion.is_some_and(|deletion| deletion.grace_seconds == Some(0));
    let delete = (!forced).then(|| Step::ForceDeletePod {
        pod: pod.pod.clone(),
        resource_version: pod.resource_version.clone(),
    });
    Verdict::Act { actions: [patch, event, delete].into_iter().flatten().collect(), why }
}

/// A pod on a node that is back: the kubelet ends it, with the pod's own grace period.
pub(super) fn ask_to_end(pod: &PodView, node: &NodeView) -> Verdict<PodWhy, Step> {
    let why = PodWhy::NodeReturned { node: node.node.name.clone() };
    let evict = Step::EvictPod { pod: pod.pod.clone(), resource_version: pod.resource_version.clone() };
    Verdict::Act { actions: vec![evict], why }
}
