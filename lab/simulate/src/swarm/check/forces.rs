//! Checks irreversible writes: pods that are marked Failed or force-deleted, and nodes that are tainted out-of-service.

use http::Method;
use jiff::Timestamp;
use salvor_api::names::{annotations, appwrapper, taints};
use salvor_apiserver::ChangeKind;

use super::{
    Seen,
    invariants::{Invariant, Violation},
    known::{Known, has_taint},
    text,
};

/// Checks a write of ours that may be irreversible for a pod or a node.
pub(super) fn see(seen: &Seen<'_>, known: &Known, wrong: &mut Vec<Violation>) {
    let Some(write) = seen.by else { return };
    guarded(seen, wrong);
    let (node, what) = match seen.resource {
        "pods" if is_marked(seen) => (text(&seen.object["spec"]["nodeName"]), "marked Failed"),
        "pods" if is_removed_by_force(seen) => (text(&seen.object["spec"]["nodeName"]), "removed by force"),
        "nodes" if is_taken_out_of_service(seen) => (seen.name(), "taken out of service"),
        _ => return,
    };
    if node.is_empty() {
        return;
    }
    let tell =
        |why: String| format!("{} {} was {what} by {}: {why}", seen.resource, seen.name(), write.sent.by);
    if let Some(alive) = known.alive(node, write.sent.at)
        && !is_overdue_member(seen, write.sent.at)
    {
        wrong.push(Violation::new(Invariant::ForceAlive, seen.at, tell(alive)));
    }
    let is_read = known.looked(&write.sent, &format!("/api/v1/nodes/{node}"));
    if !is_read {
        let why = format!("no look at {node} in the second before {}", write.sent.at);
        wrong.push(Violation::new(Invariant::LookAge, seen.at, tell(why)));
    }
}

/// Every patch and deletion must have a UID precondition.
fn guarded(seen: &Seen<'_>, wrong: &mut Vec<Violation>) {
    let Some(write) = seen.by else { return };
    let named = match write.sent.method {
        Method::PATCH => &write.body["metadata"]["uid"],
        Method::DELETE => &write.body["preconditions"]["uid"],
        _ => return,
    };
    if text(named) != seen.uid() {
        let text = format!(
            "{} {} of {} {} names the UID {named}, and not {}",
            write.sent.method,
            write.sent.path,
            seen.resource,
            seen.name(),
            seen.uid()
        );
        wrong.push(Violation::new(Invariant::JudgedUid, seen.at, text));
    }
}

/// True if this change marks a pod Failed.
pub(super) fn is_marked(seen: &Seen<'_>) -> bool {
    let is_failed = |object: &serde_json::Value| object["status"]["phase"] == "Failed";
    seen.kind == ChangeKind::Modified && is_failed(seen.object) && !seen.before.is_some_and(is_failed)
}

/// True if a pod is deleted without a grace period.
fn is_removed_by_force(seen: &Seen<'_>) -> bool {
    let write = seen.by.filter(|write| write.sent.method == Method::DELETE);
    write.is_some_and(|write| write.body["gracePeriodSeconds"] == 0)
}

/// True if a pod of an AppWrapper is being deleted and its own grace period is over. After ForcefulDeletionGracePeriod an
/// AppWrapper removes such a pod from a living node too; `ran-twice` watches those that must not run twice.
fn is_overdue_member(seen: &Seen<'_>, sent: Timestamp) -> bool {
    let metadata = &seen.before.unwrap_or(seen.object)["metadata"];
    let ends: Option<Timestamp> = text(&metadata["deletionTimestamp"]).parse().ok();
    !metadata["labels"][appwrapper::MEMBER_LABEL].is_null() && ends.is_some_and(|ends| ends <= sent)
}

/// True if this change adds Salvor's out-of-service taint to a node.
pub(super) fn is_taken_out_of_service(seen: &Seen<'_>) -> bool {
    let is_out = |node: &serde_json::Value| {
        has_taint(node, taints::OUT_OF_SERVICE)
            && !node["metadata"]["annotations"][annotations::OUT_OF_SERVICE_SINCE].is_null()
    };
    is_out(seen.object) && !seen.before.is_some_and(is_out)
}
