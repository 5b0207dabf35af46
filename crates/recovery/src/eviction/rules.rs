//! May this node be emptied, and this pod be declared dead? The steps of KEP-36, in the order in which a person would
//! ask them.
//!
//! 1. Somebody says that the machine is off ([`begin`]). We look ourselves: Ready, or a Lease that is renewed, says no.
//! 2. Each pod that does not tolerate it is failed and deleted ([`decide_pod`]).
//! 3. Volumes that no pod left there needs are let go, and waited for ([`go_on`]).
//! 4. All gone: the eviction is finished; our taint goes when the node is back ([`take_back`]).
//! 5. The node comes back in the middle: nothing is forced any more ([`come_back`]).

use jiff::Timestamp;
use salvor_api::config::RemoveTaint;

use super::policy::{EvictionPolicy, Request, asked_in_person};
use super::reasons::{NodeWhy, PodWhy};
use super::seen::{
    see_attached, see_end, see_known, see_lease, see_pods, see_progress, see_proof, see_ready, see_request,
    see_taints, see_tolerance, see_volumes, see_waiting, see_zone,
};
use super::tolerations::Tolerance;
use super::views::{AttachmentView, Claim, Lease, NodeView, Owner, PodView, Progress, Scene};
use super::writes;
use crate::brake::Held;
use crate::moments::{after, to_the_second};
use crate::objects::Ready;
use crate::verdict::Verdict::{self, Ignore};
use crate::verdict::{Inquiry, Judgement, judge};

/// Rules that end early with their verdict.
type Rules<Why> = Result<Verdict<Why>, Verdict<Why>>;

/// Judges one node. `now` is the API server's time.
pub fn decide_node(scene: &Scene<'_>, policy: &EvictionPolicy, now: Timestamp) -> Judgement<NodeWhy> {
    let node = scene.node;
    judge(|ask| {
        ask.that("Is the eviction recovery switched on?", policy.switch(), policy.enabled)
            .ok_or(Ignore(NodeWhy::Disabled))?;
        let request = policy.request(node);
        match &node.progress {
            None => begin(ask, scene, request, policy, now),
            Some(progress) if progress.stopped.is_some() => match request {
                // Somebody asks again, in person.
                Some(request) if request.is_ours() => begin(ask, scene, Some(request), policy, now),
                request => stay_stopped(ask, node, request.as_ref(), now),
            },
            Some(progress) if progress.finished.is_some() => match request {
                // Our taint was taken off, and a person puts the request on anew.
                Some(request) if asked_in_person(node).is_some() && node.no_execute().is_none() => {
                    begin(ask, scene, Some(request), policy, now)
                }
                _ => take_back(ask, node, progress, policy, now),
            },
            Some(progress) => go_on(ask, scene, progress, request.as_ref(), policy, now),
        }
    })
}

/// Step 1: a taint asks for it. Is the node really down?
fn begin(
    ask: &mut Inquiry,
    scene: &Scene<'_>,
    request: Option<Request>,
    policy: &EvictionPolicy,
    now: Timestamp,
) -> Rules<NodeWhy> {
    let node = scene.node;
    let request = ask
        .some("Does a taint ask for it?", see_request(request.as_ref()), request)
        .ok_or(Ignore(NodeWhy::NotRequested))?;
    ask.that("Was its Lease read?", node.lease, node.lease != Lease::Unread)
        .ok_or(Ignore(NodeWhy::LeaseUnread))?;
    let heard =
        request.remembered && node.asked.as_ref().is_some_and(|it| node.lease.was_renewed_since(it.renewed));
    ask.that("Was its kubelet not heard of since?", see_lease(node, now), !heard)
        .ok_or_else(|| writes::forget(node, now))?;
    ask.that("Is it not Ready?", see_ready(node), node.ready != Ready::True)
        .ok_or_else(|| ready(node, &request, now))?;
    let alive = node.lease.fresh_until().filter(|until| now < *until);
    ask.none("Is its kubelet silent?", see_lease(node, now), alive)
        .map_err(|until| refuse(node, &request, until))?;
    ask.none("Is the rest of its zone up?", see_zone(scene, now), zone_down(scene, policy, now))
        .map_err(|by| hold(node, &request, by))?;
    let pods = ask
        .some("Are its pods known?", see_pods(scene), scene.pods.as_deref())
        .ok_or(Ignore(NodeWhy::PodsUnread))?;
    Ok(writes::start(node, &request, claims_of_those_who_go(pods, &request), now))
}

/// Scenario 3: the node is Ready, so nothing is touched, and a request of ours goes if the kubelet keeps its Lease up. A node
/// that was switched off a moment ago is still called Ready, and its request must not be lost: it is remembered until the
/// kubelet is heard of.
fn ready(node: &NodeView, request: &Request, now: Timestamp) -> Verdict<NodeWhy> {
    let lives = node.lease.is_kept_up(now) || node.lease == Lease::None;
    if lives && request.is_ours() && !request.remembered {
        return writes::decline(node, request);
    }
    if lives && !request.is_ours() {
        return Ignore(NodeWhy::NodeReady { request: request.taint.to_string() });
    }
    match node.lease.fresh_until().filter(|until| now < *until) {
        Some(until) => Verdict::Wait { until, why: NodeWhy::StillReady },
        None => Ignore(NodeWhy::StillReady),
    }
}

/// A node that renews its Lease is alive, whatever its taint says.
fn refuse(node: &NodeView, request: &Request, until: Timestamp) -> Verdict<NodeWhy> {
    let why = NodeWhy::KubeletAlive { request: request.taint.to_string() };
    writes::tell_once(node, writes::refused(node, request, &why), why.clone())
        .unwrap_or(Verdict::Wait { until, why })
}

/// When a whole zone goes down, suspect the observer before the nodes.
fn hold(node: &NodeView, request: &Request, by: Held) -> Verdict<NodeWhy> {
    let why = NodeWhy::NodeDown { request: request.taint.to_string() };
    writes::tell_once(node, writes::held(node, request, &by), why.clone())
        .unwrap_or(Verdict::Blocked { by, why })
}

/// Steps 2 and 3: the eviction has begun.
fn go_on(
    ask: &mut Inquiry,
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
        .ok_or_else(|| come_back(node, progress, pods, now))?;
    ask.that("Was its Lease read?", node.lease, node.lease != Lease::Unread)
        .ok_or(Ignore(NodeWhy::LeaseUnread))?;
    let alive = node.lease.fresh_until().filter(|until| now < *until);
    ask.none("Is its kubelet still silent?", see_lease(node, now), alive).map_err(|until| {
        let why = NodeWhy::KubeletAlive { request: request.taint.to_string() };
        writes::phase(node, progress, why, now, refuse(node, request, until))
    })?;

    let fates: Vec<(&PodView, Fate)> =
        pods.iter().map(|pod| (*pod, fate(pod, node, progress, request.proof, now))).collect();
    let leaving = count(&fates, |fate| matches!(fate, Fate::Leaves));
    ask.that("Are all pods that must go failed and deleted?", format_args!("{leaving} left"), leaving == 0)
        .ok_or_else(|| {
        let why = NodeWhy::EvictingPods { left: leaving };
        writes::phase(node, progress, why.clone(), now, Ignore(why))
    })?;

    let attachments = ask
        .some("Are the attached volumes known?", see_known(scene), scene.attachments.as_deref())
        .ok_or(Ignore(NodeWhy::AttachmentsUnread))?;
    let keep = claims_of_the_rest(&fates);
    let released = progress.released.as_ref().filter(|released| released.kept == keep);
    let holds = !node.volumes_in_use.is_empty() || !keep.is_empty();
    ask.that("Were its volumes let go?", see_volumes(node, progress), released.is_some() || !holds)
        .ok_or_else(|| writes::release(node, progress, attachments, keep, to_the_second(now)))?;

    ask.none("Is no other pod waited for?", see_waiting(&fates), first_to_wait_for(&fates)).map_err(
        |until| {
            let why = NodeWhy::WaitingForPods { left: count(&fates, Fate::is_waited_for) };
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

/// Step 4: pods and volumes are gone. When is our taint taken off?
fn take_back(
    ask: &mut Inquiry,
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
        // Remembered for as long as another taint would ask for the same again.
        let rest = foreign.is_some().then(|| progress.clone());
        return Ok(writes::end(node, rest, NodeWhy::TaintRemoved, progress, now));
    }
    let back = node.ready == Ready::True && node.lease.is_fresh(now);
    let seen = format!("{}, {}", see_ready(node), see_lease(node, now));
    ask.that("Is the node back?", seen, back).ok_or_else(|| {
        let why = NodeWhy::Finished { since: finished };
        writes::phase(node, progress, why.clone(), now, Ignore(why))
    })?;
    Ok(writes::end(node, None, NodeWhy::BackInService, progress, now))
}

/// Step 5: the node is Ready in the middle. Its kubelet ends what is left; our taint goes when nothing is.
fn come_back(node: &NodeView, progress: &Progress, pods: &[&PodView], now: Timestamp) -> Verdict<NodeWhy> {
    // Time and proof do not matter here: what does not tolerate the taint at all has to go.
    let must_go = |pod: &&&PodView| {
        !pod.phase.is_terminal() && matches!(fate(pod, node, progress, true, now), Fate::Leaves)
    };
    let left = pods.iter().filter(must_go).count();
    let why = NodeWhy::NodeReturned { left };
    let then = if left == 0 && node.lease.is_fresh(now) {
        writes::end(node, None, why.clone(), progress, now)
    } else {
        Ignore(why.clone())
    };
    writes::phase(node, progress, why, now, then)
}

/// Somebody stopped it by hand; nothing begins again on the word of the taint that asked for it then.
fn stay_stopped(
    ask: &mut Inquiry,
    node: &NodeView,
    request: Option<&Request>,
    now: Timestamp,
) -> Rules<NodeWhy> {
    ask.that("Does the same taint still ask for it?", see_request(request), request.is_some())
        .ok_or_else(|| writes::forget(node, now))?;
    Ok(Ignore(NodeWhy::Stopped))
}

/// Judges one pod. `node` is the Node that it is bound to, if there is one.
pub fn decide_pod(
    pod: &PodView,
    node: Option<&NodeView>,
    policy: &EvictionPolicy,
    now: Timestamp,
) -> Judgement<PodWhy> {
    judge(|ask| {
        ask.that("Is the eviction recovery switched on?", policy.switch(), policy.enabled)
            .ok_or(Ignore(PodWhy::Disabled))?;
        let under_way = node.and_then(|node| Some((node, under_way(node, policy)?)));
        let (node, progress) = ask
            .some("Is its node being emptied?", see_progress(node), under_way)
            .ok_or(Ignore(PodWhy::NodeNotEvicted))?;
        ask.that("Is it not a static pod?", if pod.is_mirror { "it is" } else { "no" }, !pod.is_mirror)
            .ok_or(Ignore(PodWhy::StaticPod))?;
        let proof = policy.request(node).is_some_and(|request| request.proof);
        let tolerance = tolerance(pod, node, progress);
        ask.that("Does it not tolerate that?", see_tolerance(tolerance), !is_tolerating(tolerance, now))
            .ok_or(match tolerance {
                Tolerance::Until(until) => Verdict::Wait { until, why: PodWhy::ToleratesUntil { until } },
                _ => Ignore(PodWhy::Tolerates),
            })?;
        ask.that("Is anything left to do to it?", see_end(pod), !is_gone(pod))
            .ok_or(Ignore(PodWhy::HeldByFinalizers))?;
        ask.that("Is its node not Ready?", see_ready(node), node.ready != Ready::True)
            .ok_or_else(|| leave_to_the_kubelet(pod, node))?;
        ask.that("Was the node's Lease read?", node.lease, node.lease != Lease::Unread)
            .ok_or(Ignore(PodWhy::LeaseUnread))?;
        let alive = node.lease.fresh_until().filter(|until| now < *until);
        ask.none("Is its kubelet silent?", see_lease(node, now), alive)
            .map_err(|until| Verdict::Wait { until, why: PodWhy::KubeletAlive })?;
        ask.that(
            "Is the machine known to be off, or may two of it run?",
            see_proof(pod, proof),
            may_go(pod, proof),
        )
        .ok_or(Ignore(PodWhy::NeedsProof))?;
        Ok(writes::evict(pod, node, progress, to_the_second(now)))
    })
}

/// Step 5: the kubelet is there to end it.
fn leave_to_the_kubelet(pod: &PodView, node: &NodeView) -> Verdict<PodWhy> {
    if pod.deletion.is_some() || pod.phase.is_terminal() {
        Ignore(PodWhy::LeftToKubelet)
    } else {
        writes::ask_to_end(pod, node)
    }
}

/// What becomes of a pod on a node that is being emptied and is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It has ended and is deleted; at most finalizers hold the object.
    Gone,
    /// It must go, now.
    Leaves,
    /// It must go then.
    LeavesAt(Timestamp),
    /// It must go, but not before somebody says that the machine is off.
    NeedsProof,
    /// It tolerates all that, or is a static pod.
    Stays,
}

impl Fate {
    fn is_waited_for(self) -> bool {
        matches!(self, Self::LeavesAt(_) | Self::NeedsProof)
    }
}

fn fate(pod: &PodView, node: &NodeView, progress: &Progress, proof: bool, now: Timestamp) -> Fate {
    if pod.is_mirror {
        return Fate::Stays;
    }
    match tolerance(pod, node, progress) {
        Tolerance::Forever => Fate::Stays,
        Tolerance::Until(until) if now < until => Fate::LeavesAt(until),
        Tolerance::None | Tolerance::Until(_) if is_gone(pod) => Fate::Gone,
        Tolerance::None | Tolerance::Until(_) if !may_go(pod, proof) => Fate::NeedsProof,
        Tolerance::None | Tolerance::Until(_) => Fate::Leaves,
    }
}

/// Whether this pod goes when its node is emptied on somebody's word, now or later: for those who ask before.
pub fn leaves(pod: &PodView, value: &str) -> bool {
    !pod.is_mirror && Tolerance::of(&pod.tolerations, value, Timestamp::UNIX_EPOCH) != Tolerance::Forever
}

/// A pod that has ended and was deleted with no grace: another delete changes nothing.
pub fn is_gone(pod: &PodView) -> bool {
    pod.phase.is_terminal() && pod.deletion.is_some_and(|deletion| deletion.grace_seconds == Some(0))
}

/// Two pods of one StatefulSet name must never run at once; all others may, or their controllers see to it.
fn may_go(pod: &PodView, proof: bool) -> bool {
    proof || pod.owner != Owner::StatefulSet || pod.phase.is_terminal()
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

/// An eviction that has begun, was not stopped, and whose taint stands: also when it is finished, for pods that are late.
fn under_way<'a>(node: &'a NodeView, policy: &EvictionPolicy) -> Option<&'a Progress> {
    let progress = node.progress.as_ref().filter(|progress| progress.stopped.is_none())?;
    node.no_execute()?;
    (progress.finished.is_some() || policy.request(node).is_some()).then_some(progress)
}

/// A whole zone that is lost, unless a person knows better.
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

/// What pods that are to go have claimed, whether now or later.
fn claims_of_those_who_go(pods: &[&PodView], request: &Request) -> Vec<Claim> {
    sorted(pods.iter().filter(|pod| leaves(pod, request.value())).flat_map(|pod| pod.claims.iter().cloned()))
}

/// The claims of pods that stay, or are waited for, and have not ended.
fn claims_of_the_rest(fates: &[(&PodView, Fate)]) -> Vec<Claim> {
    let rest = fates.iter().filter(|(pod, fate)| !pod.phase.is_terminal() && *fate != Fate::Gone);
    sorted(rest.flat_map(|(pod, _)| pod.claims.iter().cloned()))
}

fn sorted(claims: impl Iterator<Item = Claim>) -> Vec<Claim> {
    let mut claims: Vec<Claim> = claims.collect();
    claims.sort();
    claims.dedup();
    claims
}

/// The outer option: whether there is a pod to wait for. The inner: until when, if that is only a matter of time.
fn first_to_wait_for(fates: &[(&PodView, Fate)]) -> Option<Option<Timestamp>> {
    let waited_for = fates.iter().any(|(_, fate)| fate.is_waited_for());
    let times = fates.iter().filter_map(|(_, fate)| match fate {
        Fate::LeavesAt(at) => Some(*at),
        _ => None,
    });
    waited_for.then(|| times.min())
}

pub(super) fn count(fates: &[(&PodView, Fate)], is: impl Fn(Fate) -> bool) -> usize {
    fates.iter().filter(|(_, fate)| is(*fate)).count()
}

pub(super) fn drivers(attached: &[&AttachmentView]) -> String {
    let mut drivers: Vec<&str> = attached.iter().map(|a| a.driver.as_str()).collect();
    drivers.sort_unstable();
    drivers.dedup();
    drivers.join(", ")
}
