//! What Salvor did lately, from its events.

use jiff::{SignedDuration, Timestamp};
use salvor_api::Controller;
use salvor_api::names::{reasons, repair};
use serde::Serialize;
use serde_json::Value;

/// How many actions are shown.
const SHOWN: usize = 10;
/// By default the API server keeps events for as long.
const LATELY: SignedDuration = SignedDuration::from_hours(1);
/// The action of the event about the reset of an AppWrapper.
const RESET: &str = "Reset";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Action {
    pub(super) at: Timestamp,
    pub(super) recovery: &'static str,
    pub(super) reason: String,
    pub(super) kind: String,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) message: String,
    #[serde(skip)]
    recovers: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Recovered {
    pub(super) pods: usize,
    pub(super) nodes: usize,
    pub(super) workloads: usize,
}

/// Whether an event is about a write that recovers something; `None` if Salvor only says something by it.
fn recovers(reason: &str, action: &str, kind: &str) -> Option<bool> {
    match reason {
        reasons::KUEUE_FORCEFULLY_TERMINATED
        | reasons::KUEUE_FORCEFULLY_DELETED
        | reasons::FORCE_EVICTION_BY_SALVOR
        | reasons::NODE_OUT_OF_SERVICE
        | repair::reasons::NODE_REPLACED
        | repair::reasons::NODE_REPAIRED => Some(true),
        reasons::NODE_BACK_IN_SERVICE
        | reasons::BACKOFF_LIMIT_RAISED
        | repair::reasons::NODE_REPAIR_STARTED
        | repair::reasons::NODE_REBOOT_REQUESTED
        | repair::reasons::NODE_DRAINED
        | repair::reasons::NODE_DELETED
        | repair::reasons::NODE_CAME_BACK => Some(false),
        _ if action == RESET && kind == "AppWrapper" => Some(true),
        _ => None,
    }
}

/// The actions that these events of recoveries report, newest first.
pub(super) fn read(events: &[(Controller, Vec<Value>)]) -> Vec<Action> {
    let all =
        events.iter().flat_map(|(controller, events)| events.iter().map(move |event| (controller, event)));
    let mut actions: Vec<Action> =
        all.filter_map(|(controller, event)| action(controller.name(), event)).collect();
    actions.sort_by(|a, b| (b.at, &a.namespace, &a.name).cmp(&(a.at, &b.namespace, &b.name)));
    actions
}

fn action(recovery: &'static str, event: &Value) -> Option<Action> {
    let text = |path: &str| event.pointer(path).and_then(Value::as_str).unwrap_or_default();
    // Kueue and CodeFlare's controller report under the same names, and name no instance.
    if text("/reportingInstance").is_empty() {
        return None;
    }
    let (reason, kind) = (text("/reason"), text("/involvedObject/kind"));
    let recovers = recovers(reason, text("/action"), kind)?;
    let at = ["/lastTimestamp", "/eventTime", "/firstTimestamp"].map(text);
    let at = at.iter().find_map(|at| at.parse().ok())?;
    let namespace = Some(text("/involvedObject/namespace")).filter(|namespace| !namespace.is_empty());
    Some(Action {
        at,
        recovery,
        reason: reason.to_owned(),
        kind: kind.to_owned(),
        namespace: namespace.map(str::to_owned),
        name: text("/involvedObject/name").to_owned(),
        message: text("/message").to_owned(),
        recovers,
    })
}

/// The number of objects that were recovered within the last hour.
pub(super) fn recovered(actions: &[Action], now: Timestamp) -> Recovered {
    let mut count = Recovered::default();
    for action in actions.iter().filter(|action| action.recovers && now.duration_since(action.at) <= LATELY) {
        match action.kind.as_str() {
            "Pod" => count.pods += 1,
            "Node" => count.nodes += 1,
            _ => count.workloads += 1,
        }
    }
    count
}

pub(super) fn last(mut actions: Vec<Action>) -> Vec<Action> {
    actions.truncate(SHOWN);
    actions
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(reason: &str, kind: &str, name: &str, at: &str, instance: &str) -> Value {
        json!({
            "reason": reason, "message": "why", "lastTimestamp": at, "reportingInstance": instance,
            "involvedObject": {"kind": kind, "namespace": "ns", "name": name},
        })
    }

    #[test]
    fn only_what_salvor_did_counts_and_the_newest_comes_first() {
        let (early, late) = ("2026-11-16T08:00:00Z", "2026-11-16T09:59:00Z");
        let mut reset = event("Unhealthy", "AppWrapper", "aw", late, "us");
        reset["action"] = "Reset".into();
        let zombie = vec![
            event("KueueForcefullyTerminated", "Pod", "old", early, "us"),
            event("KueueForcefullyDeleted", "Pod", "new", late, "us"),
            event("KueueForcefullyTerminated", "Pod", "of-kueue", late, ""),
            event("JobWouldFail", "Pod", "left", late, "us"),
            event("NodeOutOfService", "Node", "node", late, "us"),
        ];
        let actions = read(&[(Controller::Zombie, zombie), (Controller::AppWrapper, vec![reset])]);
        let names: Vec<&str> = actions.iter().map(|action| action.name.as_str()).collect();
        assert_eq!(names, ["aw", "new", "node", "old"]);
        let now = "2026-11-16T10:00:00Z".parse().unwrap();
        assert_eq!(recovered(&actions, now), Recovered { pods: 1, nodes: 1, workloads: 1 });
        assert_eq!(last(actions.into_iter().cycle().take(30).collect()).len(), SHOWN);
    }
}
