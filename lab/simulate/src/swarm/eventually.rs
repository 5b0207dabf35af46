//! Checks what must be true after faults have ceased.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::{annotations, job::TRACKING_FINALIZER, repair, taints};
use salvor_nodes::{GroundTruth, Overlap, Work};
use serde_json::Value;

use super::{
    check::{Invariant, Known, Violation, condition, has_taint},
    deed::{Deed, NodeFault},
    objects::SICK,
    plan::{Consent, JobPlan, Plan, Wrapped},
};

/// A pod with consent that is being deleted on a lost node is marked Failed or gone after this time, also while dead
/// machines stay dead: the wait of a minute, the rest of its grace period, the budget of the brake, and the settling of
/// the brake.
pub(super) const RECOVERED_WITHIN: SignedDuration = SignedDuration::from_secs(420);

/// The longest backoff of a Job whose pods have failed often.
const LONGEST_BACKOFF: Duration = Duration::from_secs(360);

/// The time that a Job may need after all faults: every completion fails once more, backs off, and takes its time
/// again.
pub(super) fn most_work_left(plan: &Plan) -> Duration {
    let of = |job: &JobPlan| {
        let once = Duration::from_secs(u64::from(job.takes) * 2) + LONGEST_BACKOFF;
        once * job.completions
    };
    plan.workloads.jobs.iter().map(of).max().unwrap_or_default()
}

/// The pods that should have been recovered by now.
pub(super) fn unrecovered(known: &Known, plan: &Plan, now: Timestamp) -> Vec<Violation> {
    if !plan.settings.zombie || brake_holds(known, plan) {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for pod in known.all("pods") {
        let metadata = &pod["metadata"];
        let consents = ["terminate", "delete"].iter().any(|what| {
            metadata["annotations"][format!("kueue.x-k8s.io/safe-to-forcefully-{what}")] == "true"
        });
        let is_over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let Some(told) = time(&metadata["deletionTimestamp"]).filter(|_| consents && !is_over) else {
            continue;
        };
        let node = known.all("nodes").find(|node| node["metadata"]["name"] == pod["spec"]["nodeName"]);
        let lost = node.and_then(lost_since);
        if lost.is_some_and(|lost| now.duration_since(lost.max(told)) > RECOVERED_WITHIN) {
            let text = format!(
                "pod {} is told to go since {told}, and its node is lost since {lost:?}",
                metadata["name"]
            );
            wrong.push(Violation::new(Invariant::Eventually, now, text));
        }
    }
    wrong
}

/// True if so many nodes are lost that the brake blocks recoveries, or were a moment ago. If many are lost, not all of
/// them are tainted.
fn brake_holds(known: &Known, plan: &Plan) -> bool {
    let nodes: Vec<&Value> = known.all("nodes").collect();
    let flaps = |name: &Value| {
        plan.has(|deed| matches!(deed, Deed::Node { node, fault: NodeFault::Flap, .. } if name == node))
    };
    let lost = nodes
        .iter()
        .filter(|node| condition(node, "Ready") != Some("True") || flaps(&node["metadata"]["name"]))
        .count();
    lost > 2 && lost * 2 > nodes.len()
}

fn lost_since(node: &Value) -> Option<Timestamp> {
    let taints = node["spec"]["taints"].as_array()?;
    let lost =
        taints.iter().find(|taint| taint["key"] == taints::UNREACHABLE && taint["effect"] == "NoExecute")?;
    time(&lost["timeAdded"])
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// What has not finished, and what is left behind, after everything has been healthy for a while.
pub(super) fn unfinished(known: &Known, plan: &Plan, now: Timestamp) -> Vec<Violation> {
    let mut wrong = Vec::new();
    let mut report = |invariant, text: String| wrong.push(Violation::new(invariant, now, text));
    for pod in known.all("pods") {
        let metadata = &pod["metadata"];
        if !metadata["deletionTimestamp"].is_null() {
            report(
                Invariant::Eventually,
                format!("pod {} is told to go, and is there: {}", metadata["name"], pod["status"]["phase"]),
            );
        }
    }
    for job in known.all("jobs") {
        let name = &job["metadata"]["name"];
        if !is_over(job) && job["spec"]["suspend"] != true {
            report(Invariant::Eventually, format!("job {name} is not over: {}", job["status"]));
        }
        for pod in known.all("pods").filter(|pod| is_over(job) && is_of(pod, job)) {
            let finalizers = pod["metadata"]["finalizers"].as_array();
            if finalizers.into_iter().flatten().any(|it| it == TRACKING_FINALIZER) {
                report(
                    Invariant::LeftBehind,
                    format!("pod {} of {name} has our finalizer", pod["metadata"]["name"]),
                );
            }
        }
    }
    for app in known.all("appwrappers") {
        let phase = app["status"]["phase"].as_str().unwrap_or_default();
        let wanted: &[&str] = if app["spec"]["suspend"] == true {
            &["Suspended", "Succeeded", "Failed"]
        } else if plan.workloads.wrapped.ends() {
            &["Succeeded", "Failed"]
        } else {
            &["Running", "Failed"]
        };
        if !wanted.contains(&phase) {
            report(
                Invariant::Eventually,
                format!(
                    "AppWrapper {} is {phase:?}: {}",
                    app["metadata"]["name"], app["status"]["conditions"]
                ),
            );
        }
    }
    for node in known.all("nodes") {
        marks(node, plan).into_iter().for_each(|mark| {
            report(Invariant::LeftBehind, format!("node {} has {mark}", node["metadata"]["name"]));
        });
        let is_vetoed = !node["metadata"]["annotations"][repair::annotations::DO_NOT_REPAIR].is_null();
        if plan.settings.repair && !is_vetoed && condition(node, SICK) == Some("False") {
            report(
                Invariant::Eventually,
                format!("node {} is still sick: {}", node["metadata"]["name"], node["status"]["conditions"]),
            );
        }
    }
    wrong
}

/// Marks that Salvor should have removed from a healthy node.
fn marks(node: &Value, plan: &Plan) -> Vec<String> {
    let mut marks = Vec::new();
    let notes = &node["metadata"]["annotations"];
    if plan.settings.zombie {
        for mark in [annotations::OUT_OF_SERVICE_SINCE, annotations::OUT_OF_SERVICE_BOOT] {
            marks.extend((!notes[mark].is_null()).then(|| format!("the annotation {mark}: {}", notes[mark])));
        }
    }
    if plan.settings.eviction {
        for mark in [annotations::EVICTION, annotations::EVICTION_ASKED] {
            marks.extend((!notes[mark].is_null()).then(|| format!("the annotation {mark}: {}", notes[mark])));
        }
        marks.extend(
            has_taint(node, taints::FORCE_EVICTION).then(|| format!("the taint {}", taints::FORCE_EVICTION)),
        );
    }
    marks
}

fn is_over(job: &Value) -> bool {
    ["Complete", "Failed"].iter().any(|kind| condition(job, kind) == Some("True"))
}

fn is_of(pod: &Value, owner: &Value) -> bool {
    let owners = pod["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().any(|it| it["uid"] == owner["metadata"]["uid"])
}

/// Work that must not run twice, and did.
///
/// Pods with their own volumes, and pods of a StatefulSet, have no consent here. Only the out-of-service rule for lost
/// nodes terminates them without proof, as its documentation says. A user who requests the eviction of a node asserts
/// that its machine is off.
pub(super) fn ran_twice(truth: &GroundTruth, plan: &Plan, now: Timestamp) -> Vec<Violation> {
    let is_of_app = |overlap: &Overlap| overlap.first.contains("/app-");
    let was_on = |overlap: &Overlap, node: &str| overlap.first.ends_with(&format!(" on {node}"));
    let is_said_to_be_off = |overlap: &Overlap| {
        plan.has(|deed| matches!(deed, Deed::Evict { node, .. } if was_on(overlap, node)))
    };
    // The rule selects all of these nodes, and only these faults make a kubelet silent.
    let is_taken_out = |overlap: &Overlap| {
        let is_lost = |deed: &Deed| matches!(deed, Deed::Node { node, .. } if was_on(overlap, node));
        plan.settings.zombie && plan.settings.out_of_service.is_some() && plan.has(is_lost)
    };
    // Consent includes double runs, and so does a policy that does not wait for the end of a pod.
    let agrees = |overlap: &Overlap| {
        let pod = overlap.first.split('/').nth(1).unwrap_or_default();
        let jobs = plan.workloads.jobs.iter().enumerate();
        let mut own = jobs.filter(|(number, _)| pod.starts_with(&format!("job-{}-", number + 1)));
        // The Job in an AppWrapper has consent.
        own.next().is_none_or(|(_, job)| job.pod.consent != Consent::None || !job.waits_for_the_end)
    };
    let overlaps = truth.overlaps(now).into_iter().filter(|overlap| match overlap.work {
        // A group of a LeaderWorkerSet restarts as a whole: its ordinals may overlap.
        Work::Ordinal { .. } => plan.workloads.wrapped != Wrapped::LeaderWorkerSet || !is_of_app(overlap),
        Work::VolumeWriter { .. } => true,
        Work::JobIndex { .. } => !agrees(overlap),
        Work::Job { .. } | Work::Pod { .. } => false,
    });
    let overlaps = overlaps.filter(|overlap| !is_said_to_be_off(overlap) && !is_taken_out(overlap));
    overlaps.map(|overlap| Violation::new(Invariant::RanTwice, now, overlap.to_string())).collect()
}
