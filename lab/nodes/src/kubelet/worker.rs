//! One pod on a node: its state in the API, its containers, and the status to report.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Taint};
use serde_json::Value;

use super::Volume;
use super::taints::tolerates;
use crate::{
    pod::{PodSpecView, PodView, TerminalPhase},
    runtime::PodRuntime,
    status::{self, Conditions, Phase, Placement, Refusal},
    truth::Work,
};

/// The taint of a node whose pods are evicted by force.
const FORCE_EVICTION: &str = "salvor.dev/force-eviction";

#[derive(Debug)]
pub(super) enum Volumes {
    Unknown,
    Known(Vec<Volume>),
}

/// The origin of a pod determines who may end it.
#[derive(Debug)]
pub(super) enum Origin {
    Api,
    /// From the node's own disk. The API has a mirror of it, which is created again when it is removed.
    Static {
        manifest: Box<Pod>,
    },
}

/// A status that the API has accepted, as text: the value takes ten times as much memory, and every pod has one.
#[derive(Debug)]
pub(super) struct Acknowledged {
    text: Box<str>,
    ready: Option<bool>,
    revision: u64,
}

impl Acknowledged {
    pub(super) fn new(status: &Value, revision: u64) -> Self {
        Self { text: status.to_string().into(), ready: reported_ready(status), revision }
    }

    pub(super) fn is(&self, status: &Value) -> bool {
        *self.text == *status.to_string()
    }
}

#[derive(Debug)]
pub(super) struct Worker {
    /// The API's object; for a static pod its mirror. `None` when the API has none.
    pub(super) api: Option<PodView>,
    pub(super) origin: Origin,
    pub(super) spec: Arc<PodSpecView>,
    pub(super) runtime: Option<PodRuntime>,
    pub(super) refusal: Option<Refusal>,
    pub(super) volumes: Volumes,
    pub(super) conditions: Conditions,
    pub(super) start_time: Timestamp,
    pub(super) pod_ip: String,
    /// The status that the API is known to have.
    pub(super) acknowledged: Option<Acknowledged>,
    /// Its removal was requested already; a finalizer may still keep the object.
    pub(super) removal_asked: bool,
    pub(super) wake: Option<Timestamp>,
}

impl Worker {
    /// Updates the pod to its state in the API.
    pub(super) fn hear(&mut self, view: &PodView, now: Timestamp) {
        let mut view = view.clone();
        if let Some(known) = &self.api
            && known.id.uid == view.id.uid
        {
            if view.state.resource_version < known.state.resource_version {
                // The API went back to a backup: it has lost the statuses reported since.
                self.acknowledged = None;
                self.removal_asked = false;
            } else {
                // Nothing leads out of a terminal phase, whatever a late event shows.
                view.state.terminal = view.state.terminal.or(known.state.terminal);
            }
        }
        let overwritten = self.acknowledged.as_ref().is_some_and(|known| {
            view.state.resource_version > known.revision && view.state.ready != known.ready
        });
        if overwritten {
            self.acknowledged = None;
        }
        let over_by_others = view.state.terminal.is_some() && !self.is_over();
        if let (Origin::Api, Some(runtime)) = (&self.origin, &mut self.runtime) {
            if let Some(grace) = view.state.deletion {
                runtime.stop(now, grace);
            } else if over_by_others && !runtime.is_stopping() {
                runtime.stop(now, self.spec.grace);
            }
        }
        self.api = Some(view);
    }

    /// True if it may start on a node that is being evicted, or that has not read its Node yet: a static pod, or one
    /// that tolerates the taint.
    pub(super) fn starts_anywhere(&self) -> bool {
        let eviction =
            Taint { key: FORCE_EVICTION.to_owned(), effect: "NoExecute".to_owned(), ..Taint::default() };
        let tolerates_it = |view: &PodView| view.state.tolerations.iter().any(|t| tolerates(t, &eviction));
        matches!(self.origin, Origin::Static { .. }) || self.api.as_ref().is_some_and(tolerates_it)
    }

    pub(super) fn is_over(&self) -> bool {
        self.runtime.as_ref().is_none_or(|r| r.terminal().is_some())
    }

    /// True if this pod no longer needs its volumes.
    pub(super) fn has_let_go(&self) -> bool {
        match &self.runtime {
            None => true,
            Some(runtime) => runtime.is_quiet() && runtime.terminal().is_some(),
        }
    }

    pub(super) fn mount_if_attached(&mut self, attached: &BTreeSet<String>, now: Timestamp) {
        if let (Volumes::Known(volumes), Some(runtime)) = (&self.volumes, &mut self.runtime)
            && volumes.iter().all(|v| attached.contains(&v.unique_name))
        {
            let writer = |claim: String| Work::VolumeWriter { claim };
            let claims = volumes.iter().filter_map(|v| v.exclusive_claim.clone());
            runtime.mounted(now, claims.map(writer).collect());
        }
    }

    pub(super) fn enforce_active_deadline(
        &mut self,
        now: Timestamp,
        next: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let (Some(limit), Some(runtime)) = (self.spec.active_deadline, &mut self.runtime) else {
            return next;
        };
        if runtime.is_stopping() || runtime.terminal().is_some() {
            return next;
        }
        let deadline = self.start_time + limit;
        if now < deadline {
            return Some(next.map_or(deadline, |n| n.min(deadline)));
        }
        self.refusal = Some(Refusal {
            reason: "DeadlineExceeded",
            message: "Pod was active on the node longer than the specified deadline".to_owned(),
        });
        runtime.stop(now, self.spec.grace);
        Some(now)
    }

    /// The status that the API should have; `None` if others have already set it.
    pub(super) fn status(&mut self, host_ip: &str, now: Timestamp) -> Option<Value> {
        let ended_by_others = self.api.as_ref().and_then(|v| v.state.terminal);
        let Some(runtime) = &self.runtime else {
            let refusal = self.refusal.as_ref().filter(|_| ended_by_others.is_none())?;
            return Some(status::of_refused(refusal, self.start_time));
        };
        let own = runtime.terminal();
        let phase = match (&self.refusal, own, ended_by_others) {
            (Some(_), _, Some(_)) => Phase::KeptByOthers,
            (Some(refusal), _, None) => Phase::Refused(refusal),
            (None, Some(TerminalPhase::Succeeded), Some(TerminalPhase::Failed))
            | (None, Some(TerminalPhase::Failed), Some(TerminalPhase::Succeeded))
            | (None, None, Some(_)) => Phase::KeptByOthers,
            (None, Some(own), _) => Phase::Terminal(own),
            (None, None, None) => Phase::Computed,
        };
        let place = Placement { host_ip, pod_ip: &self.pod_ip, start_time: self.start_time };
        Some(status::of_running(runtime, phase, &mut self.conditions, &place, now))
    }
}

fn reported_ready(status: &Value) -> Option<bool> {
    let ready = status["conditions"].as_array()?.iter().find(|c| c["type"] == "Ready")?;
    Some(ready["status"] == "True")
}
