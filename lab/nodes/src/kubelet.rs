//! One node: which pods it admits, what it runs, and what it reports to the API. Pure: no I/O, no clock.

mod node_object;
mod static_pods;
mod taints;
mod worker;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};
use serde_json::Value;

use taints::{taint_refusal, untolerated};
use worker::{Acknowledged, Origin, Volumes, Worker};

use crate::{
    pod::{PodId, PodSpecView, PodView},
    profile::{Fault, NodeProfile, Timers},
    runtime::{PodRuntime, World},
    status::{Conditions, Refusal},
    truth::GroundTruth,
};

/// Identifies one pod on one node: the UID for a pod from the API, the name for a static one.
pub(crate) type PodKey = String;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Healthy,
    Slow(Duration),
    Partitioned,
    KubeletStopped,
    Off,
}

/// A volume that must be attached before the pod can start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    /// The name that `volumesInUse` and `volumesAttached` use.
    pub(crate) unique_name: String,
    /// Namespace and name of its claim, if only one node at a time may write to it.
    pub(crate) exclusive_claim: Option<String>,
}

/// A node's next action on one of its pods.
#[derive(Debug)]
pub(crate) enum PodStep {
    /// Nothing before this time, or nothing until something changes.
    Rest(Option<Timestamp>),
    Report {
        id: PodId,
        status: Value,
    },
    Remove {
        id: PodId,
    },
    CreateMirror(Box<Pod>),
    ResolveVolumes {
        namespace: String,
        claims: Vec<String>,
    },
    /// The pod is gone from the API and from the node.
    Forget,
}

#[derive(Debug)]
pub(crate) struct Kubelet {
    profile: NodeProfile,
    timers: Timers,
    truth: GroundTruth,
    host_ip: String,
    ip_prefix: String,
    next_ip: u32,
    boot_id: String,
    condition: Condition,
    /// Started, but the API has not yet shown its own Node as Ready: only static pods and pods that tolerate an
    /// eviction may start.
    starting: bool,
    ready_since: Timestamp,
    taints: Vec<Taint>,
    attached: BTreeSet<String>,
    workers: BTreeMap<PodKey, Worker>,
}

impl Kubelet {
    pub(crate) fn new(
        profile: NodeProfile,
        index: usize,
        timers: Timers,
        truth: GroundTruth,
        boot_id: String,
        now: Timestamp,
    ) -> Self {
        let mut kubelet = Self {
            host_ip: format!("10.{}.{}.1", index / 256 % 256, index % 256),
            ip_prefix: format!("10.{}.{}", index / 256 % 256, index % 256),
            next_ip: 0,
            boot_id,
            condition: Condition::Healthy,
            starting: false,
            ready_since: now,
            taints: profile.taints.clone(),
            attached: BTreeSet::new(),
            workers: BTreeMap::new(),
            profile,
            timers,
            truth,
        };
        kubelet.start_static_pods(now);
        kubelet
    }

    /// True if the node and the API can reach each other.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.condition, Condition::Healthy | Condition::Slow(_))
    }

    /// True if it reads its pods: a kubelet that starts reads its Node first.
    pub(crate) fn listens(&self) -> bool {
        self.is_connected() && !self.starting
    }

    /// The extra latency of every call.
    pub(crate) fn delay(&self) -> Duration {
        match self.condition {
            Condition::Slow(delay) => delay,
            _ => Duration::ZERO,
        }
    }

    pub(crate) fn keys(&self) -> Vec<PodKey> {
        self.workers.keys().cloned().collect()
    }

    // ---- faults -------------------------------------------------------------------------------

    pub(crate) fn suffer(&mut self, fault: Fault, now: Timestamp) {
        self.catch_up(now);
        if self.condition == Condition::Off {
            // A machine that is off cannot be partitioned or slowed down; only healing or a reboot turns it on.
            return;
        }
        match fault {
            Fault::Crash => {
                for worker in self.workers.values_mut() {
                    if let Some(runtime) = &mut worker.runtime {
                        runtime.power_off(now, &self.truth);
                    }
                }
                self.condition = Condition::Off;
            }
            Fault::Partition | Fault::Flap { .. } => self.condition = Condition::Partitioned,
            Fault::KubeletStop => self.condition = Condition::KubeletStopped,
            Fault::Slow(delay) => self.condition = Condition::Slow(delay),
        }
    }

    /// The fault is over; `boot_id` is used if the machine has to start again. The caller then passes it the API's
    /// pods, as a kubelet's first list would.
    pub(crate) fn heal(&mut self, boot_id: String, now: Timestamp) {
        self.catch_up(now);
        let restarted = match self.condition {
            Condition::Off => {
                self.boot_id = boot_id;
                true
            }
            Condition::KubeletStopped => true,
            Condition::Healthy | Condition::Slow(_) | Condition::Partitioned => false,
        };
        self.condition = Condition::Healthy;
        self.ready_since = now;
        for worker in self.workers.values_mut() {
            worker.acknowledged = None;
        }
        // First the heartbeat; the Node that comes back then determines which pods may start.
        self.starting |= restarted;
    }

    /// The machine starts, but its network does not: its kubelet can neither send a heartbeat nor read its Node.
    pub(crate) fn boot_cut_off(&mut self, boot_id: String, now: Timestamp) {
        self.suffer(Fault::Crash, now);
        self.boot_id = boot_id;
        self.condition = Condition::Partitioned;
        self.starting = true;
    }

    /// The machine restarts: containers end now, and the kubelet comes back at once.
    pub(crate) fn reboot(&mut self, boot_id: String, now: Timestamp) {
        self.suffer(Fault::Crash, now);
        self.heal(boot_id, now);
    }

    // ---- watch events -------------------------------------------------------------------------

    /// Reads the Node object. Returns the pods that may have waited for it.
    pub(crate) fn see_node(&mut self, taints: Vec<Taint>, attached: BTreeSet<String>) -> Vec<PodKey> {
        self.taints = taints;
        if self.attached == attached {
            return Vec::new();
        }
        self.attached = attached;
        self.keys()
    }

    /// True if it waits until the API shows its Node as Ready before it reads pods.
    pub(crate) fn is_starting(&self) -> bool {
        self.starting
    }

    /// Its Node is Ready, and these are its pods: each is admitted again, including those whose containers still run,
    /// and only then anything starts.
    pub(crate) fn begin<'a>(&mut self, pods: impl Iterator<Item = &'a PodView>, now: Timestamp) {
        self.admit_again(now);
        self.see_all(pods, now);
        self.starting = false;
    }

    /// A pod of this node as the API has it now.
    pub(crate) fn see_pod(&mut self, view: &PodView, now: Timestamp) -> PodKey {
        let key = if view.is_mirror { view.id.name.clone() } else { view.id.uid.clone() };
        self.catch_up_one(&key, now);
        match self.workers.get_mut(&key) {
            Some(worker) => worker.hear(view, now),
            None if view.is_mirror => self.adopt_stray_mirror(&key, view, now),
            None => self.admit(&key, view, now),
        }
        key
    }

    /// The API no longer has this pod.
    pub(crate) fn see_removal(&mut self, id: &PodId, now: Timestamp) -> Option<PodKey> {
        let of = |(key, w): (&PodKey, &Worker)| {
            w.api.as_ref().is_some_and(|v| v.id.uid == id.uid).then(|| key.clone())
        };
        let key = self.workers.iter().find_map(of)?;
        self.catch_up_one(&key, now);
        let worker = self.workers.get_mut(&key)?;
        worker.api = None;
        worker.acknowledged = None;
        worker.removal_asked = false;
        if let (Origin::Api, Some(runtime)) = (&worker.origin, &mut worker.runtime) {
            runtime.stop(now, worker.spec.grace);
        }
        Some(key)
    }

    /// The API's pods for this node after a time in which it was unreachable.
    pub(crate) fn see_all<'a>(&mut self, pods: impl Iterator<Item = &'a PodView>, now: Timestamp) {
        let mut present = BTreeSet::new();
        for view in pods {
            present.insert(view.id.uid.clone());
            self.see_pod(view, now);
        }
        let gone = |w: &Worker| w.api.as_ref().map(|v| v.id.clone()).filter(|id| !present.contains(&id.uid));
        let gone: Vec<PodId> = self.workers.values().filter_map(gone).collect();
        for id in gone {
            self.see_removal(&id, now);
        }
    }

    /// The API accepted a status at this revision.
    pub(crate) fn reported(&mut self, key: &PodKey, status: &Value, resource_version: u64) {
        if let Some(worker) = self.workers.get_mut(key) {
            worker.acknowledged = Some(Acknowledged::new(status, resource_version));
        }
    }

    /// The API was asked to remove this pod.
    pub(crate) fn removed(&mut self, key: &PodKey) {
        if let Some(worker) = self.workers.get_mut(key) {
            worker.removal_asked = true;
        }
    }

    /// The claims of a pod are resolved to these volumes.
    pub(crate) fn resolved(&mut self, key: &PodKey, volumes: Vec<Volume>) {
        if let Some(worker) = self.workers.get_mut(key) {
            worker.volumes = Volumes::Known(volumes);
        }
    }

    // ---- actions ------------------------------------------------------------------------------

    /// Moves one pod up to `now` and returns the next step for it.
    pub(crate) fn step(&mut self, key: &PodKey, now: Timestamp) -> PodStep {
        let connected = self.is_connected();
        let wake = self.catch_up_one(key, now);
        let starting = self.starting;
        let Some(worker) = self.workers.get_mut(key) else {
            return PodStep::Rest(None);
        };
        worker.wake = wake;
        if starting && !worker.starts_anywhere() {
            return PodStep::Rest(wake);
        }
        let quiet = worker.runtime.as_ref().is_none_or(PodRuntime::is_quiet);
        if !connected {
            return PodStep::Rest(wake);
        }
        let Some(api) = worker.api.clone() else {
            return match &worker.origin {
                Origin::Static { manifest } => PodStep::CreateMirror(manifest.clone()),
                Origin::Api if quiet => {
                    self.workers.remove(key);
                    PodStep::Forget
                }
                Origin::Api => PodStep::Rest(wake),
            };
        };
        if let (Volumes::Unknown, Some(runtime)) = (&worker.volumes, &worker.runtime)
            && !runtime.is_started()
        {
            return PodStep::ResolveVolumes {
                namespace: api.id.namespace,
                claims: worker.spec.claims.clone(),
            };
        }
        let status = worker.status(&self.host_ip, now);
        if let Some(status) = status
            && worker.acknowledged.as_ref().is_none_or(|known| !known.is(&status))
        {
            return PodStep::Report { id: api.id, status };
        }
        let removable = match worker.origin {
            Origin::Api => quiet,
            Origin::Static { .. } => true,
        };
        if api.state.deletion.is_some() && removable && !worker.removal_asked {
            return PodStep::Remove { id: api.id };
        }
        PodStep::Rest(wake)
    }

    /// True if this is still the time at which the pod is due.
    pub(crate) fn wakes_at(&self, key: &PodKey, at: Timestamp) -> bool {
        self.workers.get(key).is_some_and(|w| w.wake == Some(at))
    }

    fn catch_up(&mut self, now: Timestamp) {
        for key in self.keys() {
            self.catch_up_one(&key, now);
        }
    }

    fn catch_up_one(&mut self, key: &PodKey, now: Timestamp) -> Option<Timestamp> {
        let runs = !matches!(self.condition, Condition::Off | Condition::KubeletStopped);
        let connected = self.is_connected();
        let worker = self.workers.get_mut(key)?;
        let world = World {
            node: &self.profile.name,
            truth: &self.truth,
            backoff: self.timers.restart_backoff,
            kubelet_runs: runs && (!self.starting || worker.starts_anywhere()),
        };
        // A kubelet learns only from the API that a volume is attached.
        if connected {
            worker.mount_if_attached(&self.attached, now);
        }
        let next = worker.runtime.as_mut()?.advance(now, &world);
        worker.enforce_active_deadline(now, next)
    }

    // ---- admission ----------------------------------------------------------------------------

    fn admit(&mut self, key: &PodKey, view: &PodView, now: Timestamp) {
        let refusal = self.refusal(&view.spec, &view.state.tolerations);
        // A pod that ended before this kubelet knew it only waits to be removed.
        let over = view.state.terminal.is_some();
        let runs = refusal.is_none() && !over;
        let pod_ip = view.state.pod_ip.clone().unwrap_or_else(|| self.assign_ip());
        let mut worker = Worker {
            api: None,
            origin: Origin::Api,
            spec: Arc::clone(&view.spec),
            runtime: runs.then(|| PodRuntime::new(&view.id, &view.spec, now)),
            refusal: if over { None } else { refusal },
            volumes: if view.spec.claims.is_empty() { Volumes::Known(Vec::new()) } else { Volumes::Unknown },
            conditions: Conditions::default(),
            start_time: view.state.start_time.unwrap_or(now),
            pod_ip,
            acknowledged: None,
            removal_asked: false,
            wake: None,
        };
        worker.hear(view, now);
        self.workers.insert(key.clone(), worker);
    }

    /// A kubelet that starts admits every pod again, including those whose containers still run.
    fn admit_again(&mut self, now: Timestamp) {
        let taints = self.taints.clone();
        for worker in self.workers.values_mut() {
            let Some(api) = &worker.api else { continue };
            if matches!(worker.origin, Origin::Static { .. }) || worker.is_over() {
                continue;
            }
            if let Some(taint) = untolerated(&taints, &api.state.tolerations) {
                worker.refusal = Some(taint_refusal(taint));
                if let Some(runtime) = &mut worker.runtime {
                    runtime.stop(now, worker.spec.grace);
                }
            }
        }
    }

    fn refusal(&self, spec: &PodSpecView, tolerations: &[Toleration]) -> Option<Refusal> {
        if let Some(error) = &spec.script_error {
            return Some(Refusal { reason: "CreateContainerConfigError", message: error.to_string() });
        }
        untolerated(&self.taints, tolerations).map(taint_refusal)
    }

    /// A mirror without a static pod has nothing to show: it is removed on request.
    fn adopt_stray_mirror(&mut self, key: &PodKey, view: &PodView, now: Timestamp) {
        self.admit(key, view, now);
        if let Some(worker) = self.workers.get_mut(key) {
            worker.runtime = None;
            worker.refusal = None;
        }
    }

    fn assign_ip(&mut self) -> String {
        self.next_ip += 1;
        format!("{}.{}", self.ip_prefix, 2 + self.next_ip % 250)
    }
}
