//! Decides whether a node is evicted, and a pod marked Failed: the steps of KEP-36, in the order in which a person
//! would ask them.
//!
//! 1. A taint says that the machine is off ([`begin`]). Salvor checks: if the node is Ready, or renews its Lease, it is
//!    not.
//! 2. Each pod that does not tolerate the eviction is failed and deleted ([`decide_pod`]).
//! 3. Volumes that no remaining pod needs are released, and the eviction waits for their detachment ([`go_on`]).
//! 4. Everything is gone: the eviction is finished. Our taint is removed when the node is back, and only after a reboot
//!    if its volumes were released ([`take_back`]).
//! 5. The node comes back before that: nothing is forced any more ([`come_back`]).

use jiff::Timestamp;
use salvor_api::config::RemoveTaint;

use super::memory::Progress;
use super::pod_ending::{PodEnding, count};
use super::policy::{EvictionPolicy, Request, asked_in_person};
use super::reasons::{NodeWhy, PodWhy};
use super::seen::{
    drivers, see_age, see_attached, see_boot, see_damage, see_end, see_gate, see_known, see_lease, see_pods,
    see_progress, see_ready, see_request, see_taints, see_tolerance, see_volumes, see_waiting, see_zone,
};
use super::steps::Step;
use super::tolerations::Tolerance;
use super::views::{self, AttachmentView, Lease, NodeView, PodView, Refusal, Scene};
use super::writes;
use crate::brake::Held;
use crate::gate::{Claim, Gate};
use crate::moments::{CLOCKS_DIFFER, after, to_the_second};
use crate::objects::{Ready, Taint};
use crate::one_actor::{NodeActor, see_actor};
use crate::proof::{Machine, Proof};
use crate::step::Step as _;
use crate::verdict::Verdict::{self, Ignore};
use crate::verdict::{Decision, Trace, judge};

/// Rules that end early with their verdict.
type Rules<Why> = Result<Verdict<Why, Step>, Verdict<Why, Step>>;

/// Decides on one node. `now` is the API server's time.
pub fn decide_node(scene: &Scene<'_>, policy: &EvictionPolicy, now: Timestamp) -> Decision<NodeWhy, Step> {
    let node = scene.node;
    judge(|ask| {
        ask.that("Is the eviction recovery switched on?", policy.switch(), policy.enabled)
            .ok_or(Ignore(NodeWhy::Disabled))?;
        let damage = views::damage(node, now);
        ask.none("Are our annotations on it valid?", see_damage(damage.as_ref()), damage)
            .map_err(|damage| writes::unreadable(node, &damage, now))?;
        let request = policy.request(node);
        // While a requested write is refused, the reported problem is not over.
        let is_over =
            node.reports_a_trouble() && (request.is_none() || !node.refused.iter().any(Refusal::is_of_work));
        let (Ok(verdict) | Err(verdict)) = match &node.progress {
            None if is_over => Ok(writes::trouble_is_over(node, now)),
            None => begin(ask, scene, request, policy, now),
            Some(progress) if progress.stopped.is_some() => match request {
                // A person requests it again.
                Some(request) if request.is_ours() => begin(ask, scene, Some(request), policy, now),
                request => stay_stopped(ask, node, request.as_ref(), now),
            },
            Some(progress) if progress.finished.is_some() => match request {
                // Our taint was removed, and a person requests the eviction again.
                Some(request) if asked_in_person(node).is_some() && node.no_execute().is_none() => {
                    begin(ask, scene, Some(request), policy, now)
                }
                _ => take_back(ask, node, progress, policy, now),
            },
            Some(progress) if is_new_word(node, progress, now) => begin(ask, scene, request, policy, now),
            Some(progress) => go_on(ask, scene, progress, request.as_ref(), policy, now),
        };
        Ok(unless_refused(ask, node, verdict, now))
    })
}

/// Waits before retrying a write that the server just refused, and the verdict says so.
fn unless_refused(
    ask: &mut Trace,
    node: &NodeView,
    verdict: Verdict<NodeWhy, Step>,
    now: Timestamp,
) -> Verdict<NodeWhy, Step> {
    let asks_again = |step: &str| verdict.actions().iter().any(|action| action.name() == step);
    let refusal = node.refused.iter().find(|refusal| now < refusal.until && asks_again(refusal.step));
    let Some(refusal) = refusal else { return verdict };
    ask.that("Did the API server accept it at the last attempt?", &refusal.words, false);
    writes::refused_by_the_server(node, refusal, now)
}

/// Step 1: a taint requests it. Is the node really down?
fn begin(
    ask: &mut Trace,
    scene: &Scene<'_>,
    request: Option<Request>,
    policy: &EvictionPolicy,
    now: Timestamp,
) -> Rules<NodeWhy> {
    let node = scene.node;
    let request = ask
        .some("Does a taint ask for it?", see_request(request.as_ref()), request)
        .ok_or(Ignore(NodeWhy::NotRequested))?;
    let another = policy.actors.another(NodeActor::Eviction, node.signs());
    ask.none("Does no other recovery act on it?", see_actor(another), another)
        .map_err(|who| Ignore(NodeWhy::AnotherRecoveryActs { who }))?;
    ask.that("Was its Lease read?", node.lease, node.lease != Lease::Unread)
        .ok_or(Ignore(NodeWhy::LeaseUnread))?;
    let heard = request.remembered
        && node.asked.as_ref().is_some_and(|it| node.heartbeat().was_renewed_since(it.renewed));
    ask.that("Has its kubelet been silent since then?", see_lease(node, now), !heard)
        .ok_or_else(|| writes::forget(node, now))?;
    ask.that("Is it not Ready?", see_ready(node), node.ready != Ready::True)
        .ok_or_else(|| ready(node, &request, now))?;
    let alive = node.heartbeat().fresh_until().filter(|until| now < *until);
    ask.none("Is its kubelet silent?", see_lease(node, now), alive)
        .map_err(|until| refuse(node, &request, until))?;
    ask.none("Is the rest of its zone up?", see_zone(scene, now), zone_down(scene, policy, now))
        .map_err(|by| hold(node, &request, by))?;
    // Nothing about the pods matters here, but the steps that follow must not wait for them.
    ask.that("Are its pods known?", see_pods(scene), scene.pods.is_some())
        .ok_or(Ignore(NodeWhy::PodsUnread))?;
    Ok(writes::start(node, &request, now))
}

/// Scenario 3: the node is Ready, so nothing is touched, and a request of ours is removed if the kubelet keeps renewing
/// its Lease. A node that was switched off a moment ago still shows Ready, and its request must not be lost: it is
/// remembered until the kubelet shows life.
fn ready(node: &NodeView, request: &Request, now: Timestamp) -> Verdict<NodeWhy, Step> {
    let lives = node.heartbeat().is_kept_up(now) || node.heartbeat() == Lease::None;
    if lives && request.is_ours() && !request.remembered {
        return writes::decline(node, request);
    }
    if lives && !request.is_ours() {
        return Ignore(NodeWhy::NodeReady { request: request.taint.to_string() });
    }
    match node.heartbeat().fresh_until().filter(|until| now < *until) {
        Some(until) => Verdict::Wait { until, why: NodeWhy::StillReady },
        None => Ignore(NodeWhy::StillReady),
    }
}

/// A node that renews its Lease is alive, despite its taint.
fn refuse(node: &NodeView, request: &Request, until: Timestamp) -> Verdict<NodeWhy, Step> {
    let why = NodeWhy::KubeletAlive { request: request.taint.to_string() };
    writes::tell_once(node, writes::refused(node, request, &why), why.clone())
        .unwrap_or(Verdict::Wait { until, why })
}

/// When a whole zone goes down, suspect the observer before the nodes.
fn hold(node: &NodeView, request: &Request, by: Held) -> Verdict<NodeWhy, Step> {
    let why = NodeWhy::NodeDown { request: request.taint.to_string() };
    writes::tell_once(node, writes::held(node, request, &by), why.clone())
        .unwrap_or(Verdict::Blocked { by, why })
}

/// Steps 2 and 3: the eviction has begun.
fn go_on(
    ask: &mut Trace,
    scene: &Scene<'_>,
    progress: &Progress,
    request: Option<&Request>,
    policy: &EvictionPolicy,
    now: Timestamp,
) -> Rules<NodeWhy> {
    let node = scene.node;
    let stands = request.filter(|_| node.no_execute().is_some());
    let request = ask
        .some("Do the taints still stand?", see_taints(node), stands)
        .ok_or_else(|| writes::stop(node, progress, policy.foreign_request(node), to_the_second(now)))?;
    let pods = ask
        .some("Are its pods known?", see_pods(scene), scene.pods.as_deref())
        .ok_or(Ignore(NodeWhy::PodsUnread))?;
    ask.that("Is it still not Ready?", see_ready(node), node.ready != Ready::True)
        .ok_or_else(|| come_back(node, progress, request, pods, policy, now))?;
    ask.that("Was its Lease read?", node.lease, node.lease != Lease::Unread)
        .ok_or(Ignore(NodeWhy::LeaseUnread))?;
    let alive = node.heartbeat().fresh_until().filter(|until| now < *until);
    ask.none("Is its kubelet still silent?", see_lease(node, now), alive).map_err(|until| {
        let why = NodeWhy::KubeletAlive { request: request.taint.to_string() };
        writes::return_phase(node, progress, request, why, now, refuse(node, request, until))
    })?;

    let machine = policy.machine(node);
    let all: Vec<(&PodView, PodEnding)> =
        pods.iter().map(|pod| (*pod, ending(pod, node, progress, policy, &machine, now))).collect();
    // Pods may still be bound to the node. They are evicted, but nothing waits for them.
    let endings: Vec<(&PodView, PodEnding)> =
        all.iter().copied().filter(|(pod, _)| !is_straggler(pod, progress)).collect();
    let leaving = count(&endings, |ending| matches!(ending, PodEnding::Leaves));
    ask.that("Are all pods that must go failed and deleted?", format_args!("{leaving} left"), leaving == 0)
        .ok_or_else(|| {
        let why = NodeWhy::EvictingPods { left: leaving };
        writes::phase(node, progress, why.clone(), now, Ignore(why))
    })?;

    let attachments = ask
        .some("Are the attached volumes known?", see_known(scene), scene.attachments.as_deref())
        .ok_or(Ignore(NodeWhy::AttachmentsUnread))?;
    let keep = claims_of_the_rest(&all);
    let released = progress.released.as_ref().filter(|released| released.kept(&keep));
    let holds = !node.volumes_in_use.is_empty() || !keep.is_empty();
    ask.that("Were its volumes released?", see_volumes(node, progress), released.is_some() || !holds)
        .ok_or_else(|| writes::release(node, progress, attachments, keep, to_the_second(now)))?;

    ask.none("Is no other pod waited for?", see_waiting(&endings), first_to_wait_for(&endings)).map_err(
        |until| {
            let why = NodeWhy::WaitingForPods { left: count(&endings, PodEnding::is_waited_for) };
            let then = match until {
                Some(until) => Verdict::Wait { until, why: why.clone() },
                None => Ignore(why.clone()),
            };
            writes::phase(node, progress, why, now, then)
        },
    )?;

    let kept = released.map(|released| released.volumes.as_slice()).unwrap_or_default();
    let attached: Vec<&AttachmentView> =
        attachments.iter().copied().filter(|a| a.volume.as_ref().is_none_or(|v| !kept.contains(v))).collect();
    ask.that("Are its volumes detached?", see_attached(&attached), attached.is_empty()).ok_or_else(|| {
        let since = released.map_or(progress.started, |released| released.at);
        let until = after(since, policy.detach_warning_after);
        if now < until {
            let why = NodeWhy::DetachingVolumes { left: attached.len() };
            let then = Verdict::Wait { until, why: why.clone() };
            writes::phase(node, progress, why, now, then)
        } else {
            let why = NodeWhy::VolumesHang { left: attached.len(), drivers: drivers(&attached), since };
            writes::phase(node, progress, why.clone(), now, Ignore(why))
        }
    })?;
    Ok(writes::finish(node, progress, to_the_second(now)))
}

/// Step 4: pods and volumes are gone. When is our taint removed?
fn take_back(
    ask: &mut Trace,
    node: &NodeView,
    progress: &Progress,
    policy: &EvictionPolicy,
    now: Timestamp,
) -> Rules<NodeWhy> {
    let finished = progress.finished.unwrap_or(progress.started);
    let foreign = policy.foreign_request(node);
    let tainted = node.ours().next().is_some();
    ask.that("Is there anything to remember?", see_taints(node), tainted || foreign.is_some())
        .ok_or_else(|| writes::forget(node, now))?;
    if policy.remove_taint == RemoveTaint::WhenEvicted && tainted {
        // Kept for as long as another taint would request the same again.
        let rest = foreign.is_some().then(|| progress.clone());
        return Ok(writes::end(node, rest, NodeWhy::TaintRemoved, progress, now));
    }
    let back = node.ready == Ready::True && node.heartbeat().is_fresh(now);
    let seen = format!("{}, {}", see_ready(node), see_lease(node, now));
    ask.that("Is the node Ready again?", seen, back).ok_or_else(|| {
        let why = NodeWhy::Finished { since: finished };
        writes::phase(node, progress, why.clone(), now, Ignore(why))
    })?;
    let stays = tainted && policy.keeps_taint(node, progress);
    ask.that("Is nothing of it left on the machine?", see_boot(node, progress), !stays).ok_or_else(|| {
        let why = NodeWhy::NotRebooted { node: node.node.name.clone() };
        writes::phase(node, progress, why.clone(), now, Ignore(why))
    })?;
    Ok(writes::end(node, None, NodeWhy::BackInService, progress, now))
}

/// Step 5: the node is Ready before the eviction finished. Its kubelet ends the remaining pods; then our taint is
/// removed.
fn come_back(
    node: &NodeView,
    progress: &Progress,
    request: &Request,
    pods: &[&PodView],
    policy: &EvictionPolicy,
    now: Timestamp,
) -> Verdict<NodeWhy, Step> {
    // Time and proof do not matter here: pods from before that do not tolerate the taint at all have to go.
    let off = Machine::Off(Proof::Taint(request.taint.to_string()));
    let must_go = |pod: &&&PodView| {
        !pod.phase.is_terminal()
            && !came_late(pod, progress)
            && matches!(ending(pod, node, progress, policy, &off, now), PodEnding::Leaves)
    };
    let left = pods.iter().filter(must_go).count();
    let is_back = left == 0 && node.heartbeat().is_fresh(now);
    // Also without proof that the machine was off: volumes of pods that consent to a double run, or that several nodes
    // may use, were released all the same.
    if is_back && policy.keeps_taint(node, progress) {
        let why = NodeWhy::NotRebooted { node: node.node.name.clone() };
        return writes::return_phase(node, progress, request, why.clone(), now, Ignore(why));
    }
    let why = NodeWhy::NodeReturned { left };
    let then =
        if is_back { writes::end(node, None, why.clone(), progress, now) } else { Ignore(why.clone()) };
    writes::return_phase(node, progress, request, why, now, then)
}

/// A person stopped it: the taint that requested it then does not start it again.
fn stay_stopped(
    ask: &mut Trace,
    node: &NodeView,
    request: Option<&Request>,
    now: Timestamp,
) -> Rules<NodeWhy> {
    ask.that("Does the same taint still ask for it?", see_request(request), request.is_some())
        .ok_or_else(|| writes::forget(node, now))?;
    Ok(Ignore(NodeWhy::Stopped))
}

/// Decides on one pod. `node` is the Node that it is bound to, if it exists.
pub fn decide_pod(
    pod: &PodView,
    node: Option<&NodeView>,
    policy: &EvictionPolicy,
    now: Timestamp,
) -> Decision<PodWhy, Step> {
    judge(|ask| {
        ask.that("Is the eviction recovery switched on?", policy.switch(), policy.enabled)
            .ok_or(Ignore(PodWhy::Disabled))?;
        let damage = node.and_then(|node| views::damage(node, now));
        ask.none("Are our annotations on its node valid?", see_damage(damage.as_ref()), damage)
            .map_err(|_| Ignore(PodWhy::AnnotationUnreadable))?;
        let under_way = node.and_then(|node| Some((node, under_way(node, policy)?)));
        let (node, progress) = ask
            .some("Is its node being evicted?", see_progress(node), under_way)
            .ok_or(Ignore(PodWhy::NodeNotEvicted))?;
        ask.that("Is it not a static pod?", if pod.is_mirror { "it is" } else { "no" }, !pod.is_mirror)
            .ok_or(Ignore(PodWhy::StaticPod))?;
        let tolerance = tolerance(pod, node, progress);
        ask.that("Does it not tolerate that?", see_tolerance(tolerance), !is_tolerating(tolerance, now))
            .ok_or(match tolerance {
                Tolerance::Until(until) => Verdict::Wait { until, why: PodWhy::ToleratesUntil { until } },
                _ => Ignore(PodWhy::Tolerates),
            })?;
        ask.that("Is anything left to do to it?", see_end(pod), !is_gone(pod))
            .ok_or(Ignore(PodWhy::HeldByFinalizers))?;
        ask.that("Is its node not Ready?", see_ready(node), node.ready != Ready::True)
            .ok_or_else(|| leave_to_the_kubelet(pod, node, progress))?;
        ask.that(
            "Is it not newer than its node's return?",
            see_age(pod, progress),
            !is_left_alone(pod, progress),
        )
        .ok_or(Ignore(PodWhy::CameLate))?;
        ask.that("Was the node's Lease read?", node.lease, node.lease != Lease::Unread)
            .ok_or(Ignore(PodWhy::LeaseUnread))?;
        let alive = node.heartbeat().fresh_until().filter(|until| now < *until);
        ask.none("Is its kubelet silent?", see_lease(node, now), alive)
            .map_err(|until| Verdict::Wait { until, why: PodWhy::KubeletAlive })?;
        let machine = policy.machine(node);
        let gate = policy.may_be_forced(pod, &machine);
        let bar = match &gate {
            Gate::Yes(_) => None,
            Gate::No(because) => Some(because.clone()),
        };
        ask.none(
            "Is the machine known to be off, or may the pod run twice?",
            see_gate(pod, &machine, &gate),
            bar,
        )
        .map_err(|because| Ignore(PodWhy::NeedsProof { because }))?;
        Ok(writes::evict(pod, node, progress, to_the_second(now)))
    })
}

/// Step 5: the kubelet is there to end it.
fn leave_to_the_kubelet(pod: &PodView, node: &NodeView, progress: &Progress) -> Verdict<PodWhy, Step> {
    if pod.deletion.is_some() || pod.phase.is_terminal() {
        Ignore(PodWhy::LeftToKubelet)
    } else if came_late(pod, progress) {
        Ignore(PodWhy::CameLate)
    } else {
        writes::ask_to_end(pod, node)
    }
}

fn ending(
    pod: &PodView,
    node: &NodeView,
    progress: &Progress,
    policy: &EvictionPolicy,
    machine: &Machine,
    now: Timestamp,
) -> PodEnding {
    if pod.is_mirror || is_left_alone(pod, progress) {
        return PodEnding::Stays;
    }
    match tolerance(pod, node, progress) {
        Tolerance::Forever => PodEnding::Stays,
        Tolerance::Until(until) if now < until => PodEnding::LeavesAt(until),
        Tolerance::None | Tolerance::Until(_) if is_gone(pod) => PodEnding::Gone,
        Tolerance::None | Tolerance::Until(_) => match policy.may_be_forced(pod, machine) {
            Gate::Yes(_) => PodEnding::Leaves,
            Gate::No(_) => PodEnding::NeedsProof,
        },
    }
}

/// True if an eviction of its node, with this taint value, would evict this pod now or later: for callers that ask
/// beforehand.
pub fn leaves(pod: &PodView, value: &str) -> bool {
    !pod.is_mirror && Tolerance::of(&pod.tolerations, value, Timestamp::UNIX_EPOCH) != Tolerance::Forever
}

/// A pod that has ended and was deleted with grace period zero: another delete changes nothing.
pub fn is_gone(pod: &PodView) -> bool {
    pod.phase.is_terminal() && pod.deletion.is_some_and(|deletion| deletion.grace_seconds == Some(0))
}

/// True if a pod was created after the eviction began, by the API server's clock. Then it may have come after the node
/// was back, and no earlier statement about the machine applies to it.
fn came_late(pod: &PodView, progress: &Progress) -> bool {
    pod.created.is_none_or(|created| created >= progress.started)
}

/// True if a pod was created so long after the eviction began that it cannot have run there before.
fn is_straggler(pod: &PodView, progress: &Progress) -> bool {
    pod.created.is_some_and(|created| created > after(progress.started, CLOCKS_DIFFER))
}

/// True if a person reports the machine off again after its kubelet showed life: with a taint that was not there then.
fn is_new_word(node: &NodeView, progress: &Progress, now: Timestamp) -> bool {
    let is_silent = node.ready != Ready::True && !node.heartbeat().is_fresh(now);
    let is_new = |taint: &Taint| taint.to_string() != progress.request;
    progress.returned.is_some() && is_silent && asked_in_person(node).is_some_and(is_new)
}

/// While the machine stays silent, a late pod is evicted as well: it cannot run there. Once the kubelet showed life, it
/// can.
fn is_left_alone(pod: &PodView, progress: &Progress) -> bool {
    progress.returned.is_some() && came_late(pod, progress)
}

fn tolerance(pod: &PodView, node: &NodeView, progress: &Progress) -> Tolerance {
    let value = node.no_execute().map_or("", |taint| taint.value.as_str());
    Tolerance::of(&pod.tolerations, value, progress.started)
}

fn is_tolerating(tolerance: Tolerance, now: Timestamp) -> bool {
    match tolerance {
        Tolerance::None => false,
        Tolerance::Until(until) => now < until,
        Tolerance::Forever => true,
    }
}

/// An eviction that has begun, was not stopped, and still has its taint: also a finished one, for pods that are late.
fn under_way<'a>(node: &'a NodeView, policy: &EvictionPolicy) -> Option<&'a Progress> {
    let progress = node.progress.as_ref().filter(|progress| progress.stopped.is_none())?;
    node.no_execute()?;
    (progress.finished.is_some() || policy.request(node).is_some()).then_some(progress)
}

/// A zone that is down, unless a person overrides it.
fn zone_down(scene: &Scene<'_>, policy: &EvictionPolicy, now: Timestamp) -> Option<Held> {
    if scene.node.despite_outage(now).is_some() {
        return None;
    }
    let max_unreachable_percent = policy.max_unreachable_percent;
    let nodes = scene.zone;
    nodes.exceed(max_unreachable_percent).then(|| Held::ZoneDown {
        zone: scene.node.zone.clone(),
        nodes,
        max_unreachable_percent,
    })
}

/// The claims of pods that stay, or go later, and have not ended.
fn claims_of_the_rest(endings: &[(&PodView, PodEnding)]) -> Vec<Claim> {
    let rest = endings.iter().filter(|(pod, ending)| !pod.phase.is_terminal() && *ending != PodEnding::Gone);
    let mut claims: Vec<Claim> = rest.flat_map(|(pod, _)| pod.all_claims().cloned()).collect();
    claims.sort();
    claims.dedup();
    claims
}

/// The outer option: whether there is a pod to wait for. The inner: until when, if only time has to pass.
fn first_to_wait_for(endings: &[(&PodView, PodEnding)]) -> Option<Option<Timestamp>> {
    let waited_for = endings.iter().any(|(_, ending)| ending.is_waited_for());
    let times = endings.iter().filter_map(|(_, ending)| match ending {
        PodEnding::LeavesAt(at) => Some(*at),
        PodEnding::Gone | PodEnding::Leaves | PodEnding::NeedsProof | PodEnding::Stays => None,
    });
    waited_for.then(|| times.min())
}
