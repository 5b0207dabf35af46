//! The status patch of a kubelet, built from the containers' real state.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    pod::{PodId, Role, TerminalPhase},
    runtime::{Container, ContainerState, Ended, PodRuntime},
};

/// Remembers the lastTransitionTime of each condition.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions(Vec<(&'static str, bool, Timestamp)>);

impl Conditions {
    fn set(&mut self, kind: &'static str, holds: bool, now: Timestamp) {
        match self.0.iter_mut().find(|(k, ..)| *k == kind) {
            Some((_, held, _)) if *held == holds => {}
            Some(entry) => *entry = (kind, holds, now),
            None => self.0.push((kind, holds, now)),
        }
    }

    fn report(&self) -> Value {
        let one = |(kind, holds, since): &(&str, bool, Timestamp)| {
            json!({
                "type": kind,
                "status": if *holds { "True" } else { "False" },
                "lastTransitionTime": time(*since),
                "reason": null,
                "message": null,
            })
        };
        self.0.iter().map(one).collect()
    }
}

/// The node and addresses of a pod, for its status.
pub(crate) struct Placement<'a> {
    pub(crate) host_ip: &'a str,
    pub(crate) pod_ip: &'a str,
    pub(crate) start_time: Timestamp,
}

/// Why a kubelet refuses or gives up a pod by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// The status of a pod whose containers are (or were) on this node.
pub(crate) fn of_running(
    runtime: &PodRuntime,
    phase: Phase<'_>,
    conditions: &mut Conditions,
    place: &Placement<'_>,
    now: Timestamp,
) -> Value {
    let over = matches!(phase, Phase::Terminal(_) | Phase::Refused(_));
    let ready = runtime.is_ready() && !over;
    conditions.set("PodReadyToStartContainers", runtime.is_started() && !over, now);
    conditions.set("Initialized", runtime.is_initialized(), now);
    conditions.set("ContainersReady", ready, now);
    conditions.set("Ready", ready, now);
    let statuses = |main: bool| -> Vec<Value> {
        let of_kind = |c: &&Container| (c.spec.role == Role::Main) == main;
        runtime.containers.iter().filter(of_kind).map(container_status).collect()
    };
    let mut status = json!({
        "conditions": conditions.report(),
        "startTime": time(place.start_time),
        "hostIP": place.host_ip,
        "hostIPs": [{"ip": place.host_ip}],
        "podIP": place.pod_ip,
        "podIPs": [{"ip": place.pod_ip}],
        "containerStatuses": statuses(true),
    });
    let init = statuses(false);
    if !init.is_empty() {
        status["initContainerStatuses"] = init.into();
    }
    match phase {
        Phase::Computed => {
            let running = runtime.is_initialized() && runtime.containers.iter().any(has_begun);
            status["phase"] = if running { "Running" } else { "Pending" }.into();
        }
        Phase::Terminal(TerminalPhase::Succeeded) => status["phase"] = "Succeeded".into(),
        Phase::Terminal(TerminalPhase::Failed) => status["phase"] = "Failed".into(),
        Phase::Refused(refusal) => refuse(&mut status, refusal),
        Phase::KeptByOthers => {}
    }
    status
}

/// The status of a pod that was never admitted.
pub(crate) fn of_refused(refusal: &Refusal, start_time: Timestamp) -> Value {
    let mut status = json!({ "startTime": time(start_time) });
    refuse(&mut status, refusal);
    status
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase<'a> {
    Computed,
    Terminal(TerminalPhase),
    Refused(&'a Refusal),
    /// Another client wrote a terminal phase: a kubelet never moves a pod out of one.
    KeptByOthers,
}

/// A patch contains the pod's UID, so that the API refuses it for another pod of the same name.
pub(crate) fn patch(id: &PodId, status: &Value) -> Value {
    json!({ "metadata": { "uid": id.uid }, "status": status })
}

fn refuse(status: &mut Value, refusal: &Refusal) {
    status["phase"] = "Failed".into();
    status["reason"] = refusal.reason.into();
    status["message"] = refusal.message.as_str().into();
}

fn has_begun(container: &Container) -> bool {
    container.spec.role == Role::Main
        && (container.restarts > 0 || !matches!(container.state, ContainerState::Waiting { .. }))
}

fn container_status(container: &Container) -> Value {
    let id = |since: Timestamp| format!("sim://{}-{}", container.spec.name, since.as_millisecond());
    let terminated = |e: &Ended| {
        json!({"terminated": {
            "exitCode": e.code,
            "reason": e.reason,
            "startedAt": time(e.since),
            "finishedAt": time(e.at),
            "containerID": id(e.since),
        }})
    };
    let (state, running, started_at) = match &container.state {
        ContainerState::Waiting { reason, .. } => (json!({"waiting": {"reason": reason}}), false, None),
        ContainerState::Running { since, .. } => {
            (json!({"running": {"startedAt": time(*since)}}), true, Some(*since))
        }
        ContainerState::Ended(e) => (terminated(e), false, Some(e.since)),
    };
    let done_init = container.spec.role == Role::Init
        && matches!(&container.state, ContainerState::Ended(e) if e.code == 0);
    let mut status = json!({
        "name": container.spec.name,
        "image": container.spec.image,
        "imageID": format!("sim://{}", container.spec.image),
        "ready": running || done_init,
        "started": running,
        "restartCount": container.restarts,
        "state": state,
    });
    if let Some(last) = &container.last {
        status["lastState"] = terminated(last);
    }
    if let Some(since) = started_at {
        status["containerID"] = id(since).into();
    }
    status
}

/// API times have whole seconds.
pub(crate) fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The precision of Leases.
pub(crate) fn micro_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
