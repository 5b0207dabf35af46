//! The observations of the rules, in words.

use jiff::Timestamp;

use super::memory::{Damage, Progress};
use super::pod_ending::{PodEnding, count};
use super::policy::Request;
use super::tolerations::Tolerance;
use super::views::{AttachmentView, Lease, NodeView, PodView, Scene};
use crate::gate::{By, Gate};
use crate::proof::Machine;

pub(super) fn see_request(request: Option<&Request>) -> String {
    match request {
        None => "none".into(),
        Some(Request { taint, remembered: true, .. }) => {
            format!("{taint}, which was taken off while the node was called Ready")
        }
        Some(Request { taint, proof: true, .. }) => {
            format!("{taint}, which is proof that the machine is off")
        }
        Some(Request { taint, proof: false, .. }) => {
            format!("{taint}, which is no proof that the machine is off")
        }
    }
}

pub(super) fn see_ready(node: &NodeView) -> String {
    format!("Ready is {:?}", node.ready)
}

pub(super) fn see_lease(node: &NodeView, now: Timestamp) -> String {
    match (node.lease, node.ready_heartbeat) {
        (Lease::None, Lease::Renewed { heard, .. }) => {
            format!("no Lease; heartbeat of Ready at {heard}; it is {now}")
        }
        (lease, _) => format!("{lease}; it is {now}"),
    }
}

pub(super) fn see_damage(damage: Option<&Damage>) -> String {
    damage.map_or("yes".into(), |Damage { annotation, problem, .. }| format!("{annotation}: {problem}"))
}

pub(super) fn see_age(pod: &PodView, progress: &Progress) -> String {
    let made = pod.created.map_or("at an unknown time".into(), |created| format!("at {created}"));
    let back = progress.returned.map_or("has not been back".into(), |at| format!("was back at {at}"));
    format!("it was made {made}; the eviction began at {}, and the node {back}", progress.started)
}

pub(super) fn see_zone(scene: &Scene<'_>, now: Timestamp) -> String {
    let zone = if scene.node.zone.is_empty() { "no zone" } else { &scene.node.zone };
    let word = match (scene.node.despite_outage(now), &scene.node.despite_outage) {
        (Some(word), _) => format!("; {} said at {} that it does not matter", word.by, word.at),
        (None, Some(word)) => format!("; what {} said at {} no longer counts", word.by, word.at),
        (None, None) => String::new(),
    };
    format!("{zone}: {} of {} nodes unreachable{word}", scene.zone.unreachable, scene.zone.total)
}

pub(super) fn see_taints(node: &NodeView) -> String {
    let taints: Vec<String> = node.taints.iter().map(ToString::to_string).collect();
    if taints.is_empty() { "no taints".into() } else { taints.join(", ") }
}

pub(super) fn see_pods(scene: &Scene<'_>) -> String {
    scene.pods.as_ref().map_or("not yet".into(), |pods| format!("{} pods", pods.len()))
}

pub(super) fn see_known(scene: &Scene<'_>) -> &'static str {
    if scene.attachments.is_some() { "yes" } else { "not yet" }
}

pub(super) fn see_volumes(node: &NodeView, progress: &Progress) -> String {
    let in_use = node.volumes_in_use.len();
    match &progress.released {
        Some(released) => format!("at {}; {in_use} in use since", released.at),
        None => format!("{in_use} in use"),
    }
}

pub(super) fn see_boot(node: &NodeView, progress: &Progress) -> String {
    let now = match &*node.boot_id {
        "" => "none",
        boot => boot,
    };
    match (progress.released.as_ref().filter(|released| !released.kept_all), &progress.boot_id) {
        (None, _) => "no volumes were released".into(),
        (Some(_), None) => {
            format!("volumes were released; its boot then is not known, {now} is its boot now")
        }
        (Some(_), Some(boot)) => format!("volumes were released; boot {boot} then, {now} now"),
    }
}

pub(super) fn see_waiting(endings: &[(&PodView, PodEnding)]) -> String {
    let later = count(endings, |ending| matches!(ending, PodEnding::LeavesAt(_)));
    let unproven = count(endings, |ending| ending == PodEnding::NeedsProof);
    format!("{later} tolerate it for a while, {unproven} need proof that the machine is off")
}

pub(super) fn see_attached(attached: &[&AttachmentView]) -> String {
    if attached.is_empty() {
        "none attached".into()
    } else {
        format!("{} attached by {}", attached.len(), drivers(attached))
    }
}

pub(super) fn see_progress(node: Option<&NodeView>) -> String {
    match node.and_then(|node| node.progress.as_ref()) {
        None => "no".into(),
        Some(Progress { stopped: Some(at), .. }) => format!("stopped at {at}"),
        Some(progress) => format!("since {}", progress.started),
    }
}

pub(super) fn see_tolerance(tolerance: Tolerance) -> String {
    match tolerance {
        Tolerance::None => "no toleration fits".into(),
        Tolerance::Until(until) => format!("it does until {until}"),
        Tolerance::Forever => "it does".into(),
    }
}

pub(super) fn see_end(pod: &PodView) -> String {
    match pod.deletion {
        None => pod.phase.to_string(),
        Some(_) => format!("{}, being deleted", pod.phase),
    }
}

pub(super) fn see_gate(pod: &PodView, machine: &Machine, gate: &Gate) -> String {
    let two = match gate {
        Gate::Yes(By::Proof(_)) => return "known to be off".into(),
        Gate::No(because) => format!("two must not run: {because}"),
        Gate::Yes(by @ (By::Consent(_) | By::NothingRuns | By::Kubelet)) => by.to_string(),
        Gate::Yes(By::MayRunTwice) => match pod.work.owners.iter().find(|owner| owner.controls) {
            None => "nothing replaces the pod".into(),
            Some(owner) => format!("a {}'s pod", owner.kind),
        },
    };
    match machine {
        Machine::Off(_) => format!("known to be off; {two}"),
        Machine::MayRun => format!("not known to be off; {two}"),
    }
}

pub(super) fn drivers(attached: &[&AttachmentView]) -> String {
    let mut drivers: Vec<&str> = attached.iter().map(|a| a.driver.as_str()).collect();
    drivers.sort_unstable();
    drivers.dedup();
    drivers.join(", ")
}
