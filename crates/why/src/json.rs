//! Accessors for objects whose kinds are known only at run time.

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::taints;
use serde_json::Value;

use crate::answer::Object;

/// Empty if there is no text at the path.
pub(crate) fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or("")
}

pub(crate) fn number(object: &Value, path: &str) -> Option<i64> {
    object.pointer(path).and_then(Value::as_i64)
}

pub(crate) fn is_true(object: &Value, path: &str) -> bool {
    object.pointer(path).and_then(Value::as_bool) == Some(true)
}

pub(crate) fn list<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    object.pointer(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(crate) fn time(object: &Value, path: &str) -> Option<Timestamp> {
    text(object, path).parse().ok()
}

pub(crate) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub(crate) fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

pub(crate) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

pub(crate) fn named(kind: &str, object: &Value) -> Object {
    Object::of(kind, namespace(object), name(object))
}

/// An entry of labels or annotations. Their keys may contain slashes, which a JSON pointer would split.
pub(crate) fn entry<'a>(object: &'a Value, map: &str, key: &str) -> Option<&'a str> {
    object.pointer(map)?.get(key)?.as_str()
}

pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list(object, "/status/conditions").iter().find(|condition| text(condition, "/type") == kind)
}

pub(crate) fn holds<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    condition(object, kind).filter(|condition| text(condition, "/status") == "True")
}

pub(crate) fn since(condition: &Value) -> Option<Timestamp> {
    time(condition, "/lastTransitionTime")
}

pub(crate) fn controller(object: &Value) -> Option<&Value> {
    list(object, "/metadata/ownerReferences").iter().find(|owner| is_true(owner, "/controller"))
}

/// The name of the Job that owns a pod. A pod that `slim` shortened keeps only this name of its owner.
pub(crate) fn job_of(pod: &Value) -> Option<&str> {
    let owner = || controller(pod).filter(|owner| text(owner, "/kind") == "Job");
    let kept = Some(text(pod, "/job")).filter(|job| !job.is_empty());
    kept.or_else(|| owner().map(|owner| text(owner, "/name")))
}

/// The kind of a pod's controller; empty without one. A pod that `slim` shortened keeps only this kind.
pub(crate) fn owner_kind(pod: &Value) -> &str {
    match text(pod, "/ownerKind") {
        "" => controller(pod).map_or("", |owner| text(owner, "/kind")),
        kept => kept,
    }
}

pub(crate) fn is_owned_by(object: &Value, owner: &str) -> bool {
    list(object, "/metadata/ownerReferences").iter().any(|reference| text(reference, "/uid") == owner)
}

pub(crate) fn is_terminating(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

/// When the deletion was requested: the deletionTimestamp is the end of the grace period.
pub(crate) fn deletion_asked(pod: &Value) -> Option<Timestamp> {
    let grace = number(pod, "/metadata/deletionGracePeriodSeconds").unwrap_or(0);
    time(pod, "/metadata/deletionTimestamp")?.checked_sub(SignedDuration::from_secs(grace)).ok()
}

pub(crate) fn has_ended(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// Running, Ready and not terminating.
pub(crate) fn is_ready(pod: &Value) -> bool {
    is_true(pod, "/healthy")
        || (!is_terminating(pod) && text(pod, "/status/phase") == "Running" && holds(pod, "Ready").is_some())
}

/// Neither ended nor terminating.
pub(crate) fn is_active(pod: &Value) -> bool {
    !is_terminating(pod) && !has_ended(pod)
}

/// The unreachable taint of the node lifecycle controller.
pub(crate) fn unreachable(node: &Value) -> Option<&Value> {
    list(node, "/spec/taints").iter().find(|taint| text(taint, "/key") == taints::UNREACHABLE)
}

/// Whether a node's kubelet is silent, by the rule of the recoveries: Ready is Unknown, or the node has the unreachable
/// taint and is not Ready. A node that was never Ready has no Ready condition and is not lost without the taint.
pub(crate) fn is_unheard(node: &Value) -> bool {
    match condition(node, "Ready").map_or("", |ready| text(ready, "/status")) {
        "True" => false,
        "Unknown" => true,
        _ => unreachable(node).is_some(),
    }
}

/// When an event was last observed. Events may record this in any of several fields.
pub(crate) fn told_at(event: &Value) -> Option<Timestamp> {
    [
        "/series/lastObservedTime",
        "/lastTimestamp",
        "/eventTime",
        "/firstTimestamp",
        "/metadata/creationTimestamp",
    ]
    .iter()
    .find_map(|path| time(event, path))
}

/// The labels as the text of a label selector.
pub(crate) fn selector(labels: Option<&Value>) -> String {
    let labels = labels.and_then(Value::as_object).into_iter().flatten();
    let pairs: Vec<_> =
        labels.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?))).collect();
    pairs.join(",")
}

pub(crate) fn selects(selector: &Value, object: &Value) -> bool {
    let label = |key: &str| entry(object, "/metadata/labels", key);
    let wanted = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let all = wanted.into_iter().all(|(key, value)| label(key) == value.as_str());
    let expressions = list(selector, "/matchExpressions").iter().all(|expression| {
        let (key, values) = (text(expression, "/key"), list(expression, "/values"));
        let among = label(key).is_some_and(|label| values.iter().any(|value| value.as_str() == Some(label)));
        match text(expression, "/operator") {
            "In" => among,
            "NotIn" => !among,
            "Exists" => label(key).is_some(),
            "DoesNotExist" => label(key).is_none(),
            _ => false,
        }
    });
    all && expressions
}
