//! One node: which pods it lets in, what it runs, and what it wants to tell the API. Pure: no I/O, no clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};
use serde_json::{Value, json};

use crate::{
    pod::{MIRROR_ANNOTATION, PodId, PodSpecView, PodView, TerminalPhase},
    profile::{Fault, NodeProfile, Timers},
    runtime::{PodRuntime, World},
    status::{self, Conditions, Phase, Placement, Refusal},
    truth::{GroundTruth, Work},
};

/// The taint of a node whose pods are evicted by force.
const FORCE_EVICTION: &str = "salvor.dev/force-eviction";

/// Names one pod on one node: the UID for a pod from the API, the name for a static one.
pub(crate) type PodKey = String;

/// What keeps a node from being an ordinary one.
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

#[derive(Debug)]
enum Volumes {
    Unknown,
    Known(Vec<Volume>),
}

/// Where a pod came from decides who may end it.
#[derive(Debug)]
enum Origin {
    Api,
    /// From the node's own disk. The API holds an image of it, which is remade when it goes.
    Static {
        manifest: Box<Pod>,
    },
}

#[derive(Debug)]
struct Worker {
    /// The API's object; for a static pod its mirror. `None` when the API has none.
    api: Option<PodView>,
    origin: Origin,
    spec: PodSpecView,
    runtime: Option<PodRuntime>,
    refusal: Option<Refusal>,
    volumes: Volumes,
    conditions: Conditions,
    start_time: Timestamp,
    pod_ip: String,
    /// The status that the API is known to have, and the revision that said so.
    acknowledged: Option<(Value, u64)>,
    /// Asked to go already; a finalizer may still hold the object.
    removal_asked: bool,
    wake: Option<Timestamp>,
}

/// What a node wants to do about one of its pods.
#[derive(Debug)]
pub(crate) enum PodStep {
    /// Nothing before this time, or nothing at all until something changes.
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

/// A simulated node.
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
    /// Started, and not yet seen its own Node Ready by the API's word: only what tolerates an eviction may start.
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

    /// Whether anything that this node sends arrives, and the other way round.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.condition, Condition::Healthy | Condition::Slow(_))
    }

    /// Whether it hears of its pods: a kubelet that starts reads its Node first.
    pub(crate) fn listens(&self) -> bool {
        self.is_connected() && !self.starting
    }

    /// How much longer every call takes.
    pub(crate) fn delay(&self) -> Duration {
        match self.condition {
            Condition::Slow(delay) => delay,
            _ => Duration::ZERO,
        }
    }

    pub(crate) fn keys(&self) -> Vec<PodKey> {
        self.workers.keys().cloned().collect()
    }

    // ---- what happens to it -------------------------------------------------------------------

    pub(crate) fn suffer(&mut self, fault: Fault, now: Timestamp) {
        self.catch_up(now);
        if self.condition == Condition::Off {
            // A machine that is off cannot be cut off or slowed down; only healing or a reboot turns it on.
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

    /// The fault is over; `boot_id` is used if the machine has to start again.
    /// The caller then shows it the API's pods, as a kubelet's first list would.
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
        // First the heartbeat; then, by the Node that comes back, which pods may start.
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

    // ---- what it hears ------------------------------------------------------------------------

    /// What the Node object says now. Returns the pods that may have waited for it.
    pub(crate) fn see_node(&mut self, taints: Vec<Taint>, attached: BTreeSet<String>) -> Vec<PodKey> {
        self.taints = taints;
        if self.attached == attached {
            return Vec::new();
        }
        self.attached = attached;
        self.keys()
    }

    /// Whether it waits for its Node to be Ready by the API's word before it looks at pods.
    pub(crate) fn is_starting(&self) -> bool {
        self.starting
    }

    /// Its Node is Ready, and these are its pods: each is admitted anew, those whose containers still run among them, and
    /// only then anything starts.
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

    /// The API's pods for this node after a time in which it heard nothing.
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
    pub(crate) fn reported(&mut self, key: &PodKey, status: Value, resource_version: u64) {
        if let Some(worker) = self.workers.get_mut(key) {
            worker.acknowledged = Some((status, resource_version));
        }
    }

    /// The API was asked to remove this pod.
    pub(crate) fn removed(&mut self, key: &PodKey) {
        if let Some(worker) = self.workers.get_mut(key) {
            worker.removal_asked = true;
        }
    }

    /// The claims of a pod lead to these volumes.
    pub(crate) fn resolved(&mut self, key: &PodKey, volumes: Vec<Volume>) {
        if let Some(worker) = self.workers.get_mut(key) {
            worker.volumes = Volumes::Known(volumes);
        }
    }

    // ---- what it does -------------------------------------------------------------------------

    /// Moves one pod up to `now` and says what to do next about it.
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
        let known = worker.acknowledged.as_ref().map(|(status, _)| status);
        if status.is_some() && status.as_ref() != known {
            let status = status.unwrap_or_default();
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

    /// Whether this is still the time at which the pod wants to be looked at.
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
        // Only the API can tell a kubelet that a volume is attached.
        if connected {
            worker.mount_if_attached(&self.attached, now);
        }
        let next = worker.runtime.as_mut()?.advance(now, &world);
        worker.enforce_active_deadline(now, next)
    }

    // ---- admission ----------------------------------------------------------------------------

    fn admit(&mut self, key: &PodKey, view: &PodView, now: Timestamp) {
        let refusal = self.refusal(&view.spec, &view.state.tolerations);
        // A pod that ended before this kubelet knew it is only waiting to be removed.
        let over = view.state.terminal.is_some();
        let runs = refusal.is_none() && !over;
        let pod_ip = self.assign_ip();
        let mut worker = Worker {
            api: None,
            origin: Origin::Api,
            spec: view.spec.clone(),
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

    /// A kubelet that starts admits every pod anew, those whose containers still run among them.
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

    fn start_static_pods(&mut self, now: Timestamp) {
        for mut manifest in self.profile.static_pods.clone() {
            let name =
                format!("{}-{}", manifest.metadata.name.as_deref().unwrap_or("static"), self.profile.name);
            let hash = format!("static-{name}");
            manifest.metadata.name = Some(name.clone());
            manifest.metadata.namespace.get_or_insert_with(|| "default".to_owned());
            let annotations = manifest.metadata.annotations.get_or_insert_default();
            annotations.insert(MIRROR_ANNOTATION.to_owned(), hash.clone());
            annotations.insert("kubernetes.io/config.source".to_owned(), "file".to_owned());
            annotations.insert("kubernetes.io/config.hash".to_owned(), hash.clone());
            let spec = manifest.spec.get_or_insert_default();
            spec.node_name = Some(self.profile.name.clone());
            spec.tolerations.get_or_insert_default().push(Toleration {
                operator: Some("Exists".to_owned()),
                effect: Some("NoExecute".to_owned()),
                ..Toleration::default()
            });
            let mut identified = manifest.clone();
            identified.metadata.uid = Some(hash);
            let Some(view) = PodView::of(&identified) else {
                continue;
            };
            let pod_ip = self.assign_ip();
            let worker = Worker {
                api: None,
                runtime: Some(PodRuntime::new(&view.id, &view.spec, now)),
                spec: view.spec,
                origin: Origin::Static { manifest: Box::new(manifest) },
                refusal: None,
                volumes: Volumes::Known(Vec::new()),
                conditions: Conditions::default(),
                start_time: now,
                pod_ip,
                acknowledged: None,
                removal_asked: false,
                wake: None,
            };
            self.workers.insert(name, worker);
        }
    }

    /// A mirror without a static pod behind it has nothing to show: it is removed once asked to.
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

    // ---- the Node object ----------------------------------------------------------------------

    /// The Node as it registers.
    pub(crate) fn registration(&self, now: Timestamp) -> Value {
        let mut node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.profile.name,
                "labels": self.profile.labels,
                // Without it the attach/detach controller leaves the node's volumes alone.
                "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" },
            },
            "spec": { "taints": self.profile.taints },
        });
        node["status"] = self.node_status(now);
        node
    }

    /// The node's status now, as a strategic merge patch of `status`.
    pub(crate) fn node_status(&self, now: Timestamp) -> Value {
        let condition = |kind: &str, holds: bool, reason: &str, message: &str| {
            json!({
                "type": kind,
                "status": if holds { "True" } else { "False" },
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": status::time(now),
                "lastTransitionTime": status::time(self.ready_since),
            })
        };
        json!({
            "capacity": self.profile.capacity,
            "allocatable": self.profile.capacity,
            "addresses": [
                {"type": "InternalIP", "address": self.host_ip},
                {"type": "Hostname", "address": self.profile.name},
            ],
            "nodeInfo": {
                "machineID": self.profile.name,
                "systemUUID": self.profile.name,
                "bootID": self.boot_id,
                "kernelVersion": "simulated",
                "osImage": "simulated",
                "containerRuntimeVersion": "sim://1",
                "kubeletVersion": "v1.37.1",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
            "conditions": [
                condition("Ready", true, "KubeletReady", "simulated kubelet is posting ready status"),
                condition("MemoryPressure", false, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                condition("DiskPressure", false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                condition("PIDPressure", false, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            ],
            "volumesInUse": self.volumes_in_use(),
        })
    }

    /// Volumes that a pod of this node uses or is about to use.
    pub(crate) fn volumes_in_use(&self) -> BTreeSet<String> {
        self.workers
            .values()
            .filter(|w| !w.has_let_go())
            .filter_map(|w| match &w.volumes {
                Volumes::Known(volumes) => Some(volumes),
                Volumes::Unknown => None,
            })
            .flatten()
            .map(|v| v.unique_name.clone())
            .collect()
    }
}

impl Worker {
    /// The API's word about this pod.
    fn hear(&mut self, view: &PodView, now: Timestamp) {
        let mut view = view.clone();
        if let Some(known) = &self.api
            && known.id.uid == view.id.uid
        {
            // Nothing leads out of a terminal phase, whatever a late event says.
            view.state.terminal = view.state.terminal.or(known.state.terminal);
        }
        let overwritten = self.acknowledged.as_ref().is_some_and(|(status, seen)| {
            view.state.resource_version > *seen && view.state.ready != reported_ready(status)
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

    /// Whether it starts on a node that is being emptied, or that does not know yet: a static pod, or one that tolerates it.
    fn starts_anywhere(&self) -> bool {
        let eviction =
            Taint { key: FORCE_EVICTION.to_owned(), effect: "NoExecute".to_owned(), ..Taint::default() };
        let tolerates_it = |view: &PodView| view.state.tolerations.iter().any(|t| tolerates(t, &eviction));
        matches!(self.origin, Origin::Static { .. }) || self.api.as_ref().is_some_and(tolerates_it)
    }

    fn is_over(&self) -> bool {
        self.runtime.as_ref().is_none_or(|r| r.terminal().is_some())
    }

    /// Whether this pod needs its volumes no longer.
    fn has_let_go(&self) -> bool {
        match &self.runtime {
            None => true,
            Some(runtime) => runtime.is_quiet() && runtime.terminal().is_some(),
        }
    }

    fn mount_if_attached(&mut self, attached: &BTreeSet<String>, now: Timestamp) {
        if let (Volumes::Known(volumes), Some(runtime)) = (&self.volumes, &mut self.runtime)
            && volumes.iter().all(|v| attached.contains(&v.unique_name))
        {
            let writer = |claim: String| Work::VolumeWriter { claim };
            let claims = volumes.iter().filter_map(|v| v.exclusive_claim.clone());
            runtime.mounted(now, claims.map(writer).collect());
        }
    }

    fn enforce_active_deadline(&mut self, now: Timestamp, next: Option<Timestamp>) -> Option<Timestamp> {
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

    /// What the API should say; `None` when that is somebody else's word already.
    fn status(&mut self, host_ip: &str, now: Timestamp) -> Option<Value> {
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

fn taint_refusal(taint: &Taint) -> Refusal {
    Refusal {
        reason: "TaintToleration",
        message: format!(
            "Pod was rejected: Predicate TaintToleration failed: taint {}:NoExecute is not tolerated",
            taint.key
        ),
    }
}

/// The first NoExecute taint that nothing tolerates. A kubelet looks at no other effect.
fn untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration]) -> Option<&'a Taint> {
    taints
        .iter()
        .filter(|t| t.effect == "NoExecute")
        .find(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let unset_or = |of: &Option<String>, is: &str| of.as_deref().is_none_or(|o| o.is_empty() || o == is);
    if !unset_or(&toleration.effect, &taint.effect) || !unset_or(&toleration.key, &taint.key) {
        return false;
    }
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        _ => {
            toleration.key.is_some()
                && toleration.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or("")
        }
    }
}
