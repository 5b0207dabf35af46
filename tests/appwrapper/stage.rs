//! A namespace for one case, with simulated nodes and an AppWrapper controller.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{Event, Node, Pod},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use salvor_nodes::Fleet;
use salvor_testkit::{Arena, Plane, Recorder, Site, wait};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{
    controller::{Controller, Settings, install_workloads},
    objects::{AppWrapper, Condition, Namespaced, Object},
};

pub(crate) const MEMBER: &str = "workload.codeflare.dev/appwrapper";
pub(crate) const FINALIZER: &str = "workload.codeflare.dev/finalizer";
pub(crate) const OURS: &str = "workload.codeflare.dev/appwrapper-controller";
const TIMERS: &str = "workload.codeflare.dev.appwrapper/";
/// A finalizer of the test, which keeps an object.
const BLOCK: &str = "fake.example.com/block-deletion";

/// The setup of one case.
pub(crate) struct Stage<'p> {
    pub(crate) site: Site,
    pub(crate) arena: Arena<'p>,
    pub(crate) wrappers: Api<AppWrapper>,
    pub(crate) pods: Api<Pod>,
    pub(crate) jobs: Api<Job>,
    pub(crate) fleet: Fleet,
    controller: Option<Running>,
}

/// The controller of a case: its own, or the one that all cases on the shared control plane use.
enum Running {
    Shared(&'static Controller),
    Own(Box<Controller>),
}

impl Stage<'static> {
    /// In a cluster with all controllers and this many nodes, with the settings that all cases share.
    pub(crate) async fn new(site: Site, name: &str, nodes: usize) -> Self {
        static SHARED: OnceCell<Controller> = OnceCell::const_new();
        let arena = site.arena(name).await;
        let admin = arena.admin();
        let controller = match site {
            Site::Real => {
                let start = async || {
                    install_workloads(&admin).await;
                    Controller::start(site, &admin, &Settings::default()).await
                };
                Running::Shared(SHARED.get_or_init(start).await)
            }
            Site::Embedded => {
                Running::Own(Box::new(Controller::start(site, &admin, &Settings::default()).await))
            }
        };
        Self::on(site, arena, nodes, Some(controller)).await
    }
}

impl<'p> Stage<'p> {
    /// In its own cluster, with its own settings.
    pub(crate) async fn alone(site: Site, plane: &'p Plane, nodes: usize, settings: &Settings) -> Self {
        let stage = Self::unattended(site, plane, nodes).await;
        let controller = Controller::start(site, &plane.admin(), settings).await;
        Self { controller: Some(Running::Own(Box::new(controller))), ..stage }
    }

    /// In its own cluster without an AppWrapper controller.
    pub(crate) async fn unattended(site: Site, plane: &'p Plane, nodes: usize) -> Self {
        Self::on(site, plane.arena("alone").await, nodes, None).await
    }

    /// In a namespace of a cluster that already has a controller.
    pub(crate) async fn beside(site: Site, arena: Arena<'p>, nodes: usize) -> Self {
        Self::on(site, arena, nodes, None).await
    }

    async fn on(site: Site, arena: Arena<'p>, nodes: usize, controller: Option<Running>) -> Self {
        let fleet = arena.fleet(nodes).await;
        Self {
            site,
            wrappers: Api::default_namespaced(arena.client()),
            pods: Api::default_namespaced(arena.client()),
            jobs: Api::default_namespaced(arena.client()),
            fleet,
            arena,
            controller,
        }
    }

    pub(crate) fn controller(&self) -> &Controller {
        match self.controller.as_ref().unwrap() {
            Running::Shared(controller) => controller,
            Running::Own(controller) => controller,
        }
    }

    /// Installs the CRDs of workloads with other controllers. The shared control plane already has them.
    pub(crate) async fn with_workloads(&self) {
        if self.site == Site::Embedded {
            install_workloads(&self.arena.admin()).await;
        }
    }

    pub(crate) fn of<K: Namespaced>(&self) -> Api<Object<K>> {
        Api::default_namespaced(self.arena.client())
    }

    pub(crate) async fn create(&self, wrap: Wrap) -> AppWrapper {
        let wrapper = wrap.object();
        self.wrappers.create(&PostParams::default(), &wrapper).await.unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) async fn get(&self, name: &str) -> AppWrapper {
        self.wrappers.get(name).await.unwrap()
    }

    pub(crate) async fn change(&self, name: &str, patch: Value) -> AppWrapper {
        self.wrappers.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
    }

    pub(crate) async fn suspend(&self, name: &str, suspend: bool) {
        self.change(name, json!({"spec": {"suspend": suspend}})).await;
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.wrappers.delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn until(
        &self,
        name: &str,
        what: &str,
        condition: impl FnMut(&AppWrapper) -> bool,
    ) -> AppWrapper {
        wait::for_object(&self.wrappers, name, what, condition).await
    }

    pub(crate) async fn phase(&self, name: &str, phase: &str) -> AppWrapper {
        self.until(name, &format!("its phase is {phase}"), |wrapper| wrapper.phase() == phase).await
    }

    /// Waits until it is Running with all its pods ready.
    pub(crate) async fn ready(&self, name: &str) -> AppWrapper {
        let is_ready = |wrapper: &AppWrapper| wrapper.phase() == "Running" && wrapper.is("PodsReady");
        self.until(name, "it runs and its pods are ready", is_ready).await
    }

    /// Waits until it is in this phase, with no resources left and its quota released.
    pub(crate) async fn released(&self, name: &str, phase: &str) -> AppWrapper {
        let what = format!("it is {phase}, and holds neither resources nor quota");
        let wrapper = self
            .until(name, &what, |wrapper| {
                wrapper.phase() == phase && !wrapper.is("ResourcesDeployed") && !wrapper.is("QuotaReserved")
            })
            .await;
        assert_eq!(self.pod_names(name).await, Vec::<String>::new());
        wrapper
    }

    pub(crate) async fn gone(&self, name: &str) {
        wait::for_absence(&self.wrappers, name).await;
        assert_eq!(self.pod_names(name).await, Vec::<String>::new());
    }

    pub(crate) async fn pods_of(&self, name: &str) -> Vec<Pod> {
        self.pods.list(&members(name)).await.unwrap().items
    }

    pub(crate) async fn pod_names(&self, name: &str) -> Vec<String> {
        self.pods_of(name).await.iter().map(ResourceExt::name_any).collect()
    }

    /// Waits until the pods of an AppWrapper meet a condition.
    pub(crate) async fn pods_until(
        &self,
        name: &str,
        what: &str,
        condition: impl FnMut(&[Pod]) -> bool,
    ) -> Vec<Pod> {
        wait::for_list(&self.pods, &members(name), what, condition).await
    }

    pub(crate) async fn record(&self) -> Recorder<AppWrapper> {
        Recorder::start(&self.wrappers, &ListParams::default()).await
    }

    /// Waits for an event about an AppWrapper with this reason.
    pub(crate) async fn event(&self, name: &str, reason: &str, text: &str) -> Event {
        let events: Api<Event> = Api::default_namespaced(self.arena.client());
        let is_it = |event: &Event| {
            event.involved_object.name.as_deref() == Some(name)
                && event.reason.as_deref() == Some(reason)
                && event.message.as_deref().unwrap_or_default().contains(text)
        };
        let what = format!("an event of {name} says {reason}: {text}");
        let all = ListParams::default();
        let mut told =
            wait::for_list(&events, &all, &what, |events: &[Event]| events.iter().any(is_it)).await;
        told.retain(is_it);
        told.remove(0)
    }

    pub(crate) async fn label_node(&self, node: &str, key: &str, value: Value) {
        let nodes: Api<Node> = Api::all(self.arena.client());
        let patch = Patch::Merge(json!({"metadata": {"labels": {key: value}}}));
        nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Adds a taint to a node and keeps the others.
    pub(crate) async fn taint_node(&self, node: &str, key: &str, value: &str, effect: &str) {
        let nodes: Api<Node> = Api::all(self.arena.client());
        let taints = json!([{"key": key, "value": value, "effect": effect}]);
        let patch = Patch::Strategic(json!({"spec": {"taints": taints}}));
        nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Cordons or uncordons the first node of the case.
    pub(crate) async fn cordon(&self, cordoned: bool) {
        let nodes: Api<Node> = Api::all(self.arena.client());
        let patch = Patch::Merge(json!({"spec": {"unschedulable": cordoned}}));
        nodes.patch(&self.arena.node_name(0), &PatchParams::default(), &patch).await.unwrap();
    }

    /// A Job for the Job controller of this cluster.
    pub(crate) fn job(&self, name: &str, spec: Value, run: &Run) -> Value {
        let mut spec = spec;
        if self.site == Site::Embedded {
            spec["managedBy"] = "salvor.dev/job-controller".into();
        }
        if spec["backoffLimit"].is_null() {
            spec["backoffLimit"] = 0.into();
        }
        let mut run = run.clone();
        run.spec["restartPolicy"] = "Never".into();
        spec["template"] = run.template();
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
    }

    /// Removes the finalizer that [`Run::blocked`] sets.
    pub(crate) async fn unblock(&self, pod: &str) {
        let patch = Patch::Strategic(json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [BLOCK]}}));
        self.pods.patch(pod, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Plays the operator of a custom workload: creates a pod from a template of its object, which owns the pod.
    pub(crate) async fn make_pod<K: Namespaced>(
        &self,
        owner: &Object<K>,
        name: &str,
        template: &Value,
    ) -> Pod {
        let mut pod = template.clone();
        pod["metadata"]["name"] = name.into();
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": format!("{}/{}", K::GROUP, K::VERSION),
            "kind": K::KIND,
            "name": owner.name_any(),
            "uid": owner.uid().unwrap(),
            "controller": true,
        }]);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.pods.create(&PostParams::default(), &pod).await.unwrap()
    }

    /// Plays the operator of a custom workload: sets its status.
    pub(crate) async fn set_status<K: Namespaced>(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        let api = self.of::<K>();
        if api.patch_status(name, &PatchParams::default(), &patch).await.is_err() {
            // Not every kind has the subresource.
            api.patch(name, &PatchParams::default(), &patch).await.unwrap();
        }
    }
}

/// A quota that admits this many pods to the namespace.
impl Stage<'_> {
    pub(crate) async fn at_most_pods(&self, pods: usize) {
        let quotas: Api<k8s_openapi::api::core::v1::ResourceQuota> =
            Api::default_namespaced(self.arena.client());
        let quota = json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": pods.to_string()}}});
        quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
        let counted = |quota: &k8s_openapi::api::core::v1::ResourceQuota| {
            quota.status.as_ref().is_some_and(|status| status.used.is_some())
        };
        wait::for_object(&quotas, "few", "it is in force", counted).await;
    }

    pub(crate) async fn no_quota(&self) {
        let quotas: Api<k8s_openapi::api::core::v1::ResourceQuota> =
            Api::default_namespaced(self.arena.client());
        quotas.delete("few", &DeleteParams::default()).await.unwrap();
    }
}

pub(crate) fn members(name: &str) -> ListParams {
    ListParams::default().labels(&format!("{MEMBER}={name}"))
}

/// The phases that an AppWrapper went through, in order.
pub(crate) async fn phases(recorder: &Recorder<AppWrapper>, name: &str) -> Vec<String> {
    let mut phases: Vec<String> = Vec::new();
    for change in recorder.changes().await.iter().filter(|change| change.name == name) {
        let phase = change.object["status"]["phase"].as_str().unwrap_or_default();
        if !phase.is_empty() && phases.last().is_none_or(|last| last != phase) {
            phases.push(phase.to_owned());
        }
    }
    phases
}

/// The values that a condition of an AppWrapper had, in order.
pub(crate) async fn history(recorder: &Recorder<AppWrapper>, name: &str, kind: &str) -> Vec<Condition> {
    let mut seen: Vec<Condition> = Vec::new();
    for change in recorder.changes().await.iter().filter(|change| change.name == name) {
        if let Some(condition) = crate::objects::condition(&change.object["status"], kind)
            && seen.last() != Some(&condition)
        {
            seen.push(condition);
        }
    }
    seen
}

/// Seconds between two API times, which have whole seconds.
pub(crate) fn seconds(from: &str, to: &str) -> i64 {
    let at = |text: &str| {
        text.parse::<Timestamp>().unwrap_or_else(|error| panic!("{text:?}: {error}")).as_second()
    };
    at(to) - at(from)
}

pub(crate) fn ended_at(pod: &Pod) -> Option<String> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    let ended = containers.first()?.state.as_ref()?.terminated.as_ref()?;
    Some(ended.finished_at.as_ref()?.0.to_string())
}

pub(crate) fn pod_phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(crate) fn all_run(count: usize) -> impl FnMut(&[Pod]) -> bool {
    move |pods| pods.len() == count && pods.iter().all(|pod| pod_phase(pod) == "Running")
}

/// A builder of AppWrappers.
#[derive(Clone, Debug)]
pub(crate) struct Wrap {
    metadata: ObjectMeta,
    spec: Value,
}

impl Wrap {
    /// Not suspended, without components.
    pub(crate) fn new(name: &str) -> Self {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        Self { metadata, spec: json!({"suspend": false, "components": []}) }
    }

    /// The same with a name that the API server generates.
    pub(crate) fn generated(prefix: &str) -> Self {
        let metadata = ObjectMeta { generate_name: Some(prefix.to_owned()), ..ObjectMeta::default() };
        Self { metadata, ..Self::new("") }
    }

    /// Adds a component whose pod sets are inferred.
    pub(crate) fn of(self, template: Value) -> Self {
        let mut component = json!({});
        component["template"] = template;
        self.component(component)
    }

    pub(crate) fn component(mut self, component: Value) -> Self {
        self.spec["components"].as_array_mut().unwrap().push(component);
        self
    }

    pub(crate) fn suspended(mut self) -> Self {
        self.spec["suspend"] = true.into();
        self
    }

    pub(crate) fn managed_by(mut self, who: &str) -> Self {
        self.spec["managedBy"] = who.into();
        self
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.metadata.labels.get_or_insert_default().insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets one of the timers and limits, by the last part of its annotation's name.
    pub(crate) fn set(mut self, name: &str, value: &str) -> Self {
        let annotations: &mut BTreeMap<_, _> = self.metadata.annotations.get_or_insert_default();
        annotations.insert(format!("{TIMERS}{name}"), value.to_owned());
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        let annotations: &mut BTreeMap<_, _> = self.metadata.annotations.get_or_insert_default();
        annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn object(self) -> AppWrapper {
        AppWrapper::new(self.metadata, self.spec)
    }
}

/// What the containers of a pod do.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    metadata: Value,
    pub(crate) spec: Value,
}

impl Run {
    /// Runs until SIGTERM and then exits.
    pub(crate) fn on() -> Self {
        let lost_soon = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2});
        Self {
            metadata: json!({"labels": {}, "annotations": {}}),
            spec: json!({
                "containers": [{"name": "main", "image": "work"}],
                "terminationGracePeriodSeconds": 2,
                "tolerations": [
                    lost_soon("node.kubernetes.io/unreachable"),
                    lost_soon("node.kubernetes.io/not-ready"),
                ],
            }),
        }
    }

    /// Exits by itself.
    pub(crate) fn to_end(after: &str, code: u8) -> Self {
        Self::on()
            .script("run-for", after)
            .script("exit-code", &code.to_string())
            .spec("restartPolicy", "Never".into())
    }

    /// Ignores SIGTERM for as long as a pod may.
    pub(crate) fn stubborn(self) -> Self {
        self.script("ignore-sigterm", "forever").spec("terminationGracePeriodSeconds", 3600.into())
    }

    /// Stays after its deletion until the test removes its finalizer.
    pub(crate) fn blocked(mut self) -> Self {
        self.metadata["finalizers"] = json!([BLOCK]);
        self
    }

    pub(crate) fn script(mut self, name: &str, value: &str) -> Self {
        self.metadata["annotations"][format!("{}{name}", salvor_nodes::script::PREFIX)] = value.into();
        self
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.metadata["labels"][key] = value.into();
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.metadata["annotations"][key] = value.into();
        self
    }

    pub(crate) fn spec(mut self, field: &str, value: Value) -> Self {
        self.spec[field] = value;
        self
    }

    pub(crate) fn requests(mut self, resource: &str, quantity: &str) -> Self {
        let resources = &mut self.spec["containers"][0]["resources"];
        resources["requests"][resource] = quantity.into();
        if resource != "cpu" {
            resources["limits"][resource] = quantity.into();
        }
        self
    }

    pub(crate) fn template(&self) -> Value {
        json!({"metadata": self.metadata, "spec": self.spec})
    }

    pub(crate) fn pod(&self, name: &str) -> Value {
        let mut pod = self.template();
        pod["apiVersion"] = "v1".into();
        pod["kind"] = "Pod".into();
        pod["metadata"]["name"] = name.into();
        pod
    }

    fn selected(&self, kind: &str, name: &str, replicas: usize) -> Value {
        let run = self.clone().label("app", name);
        json!({
            "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": run.template(),
            },
        })
    }

    pub(crate) fn deployment(&self, name: &str, replicas: usize) -> Value {
        self.selected("Deployment", name, replicas)
    }

    pub(crate) fn stateful_set(&self, name: &str, replicas: usize) -> Value {
        let mut set = self.selected("StatefulSet", name, replicas);
        set["spec"]["serviceName"] = name.into();
        set
    }

    /// A PyTorchJob with this many workers, and a master if requested.
    pub(crate) fn py_torch_job(&self, name: &str, master: bool, workers: usize) -> Value {
        let mut run = self.clone();
        run.spec["containers"][0]["name"] = "pytorch".into();
        let replicas =
            |count: usize| json!({"replicas": count, "restartPolicy": "Never", "template": run.template()});
        let mut specs = json!({"Worker": replicas(workers)});
        if master {
            specs["Master"] = replicas(1);
        }
        json!({
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name},
            "spec": {"pytorchReplicaSpecs": specs},
        })
    }

    pub(crate) fn job_set(&self, name: &str, replicas: usize, parallelism: usize) -> Value {
        let mut run = self.clone();
        run.spec["restartPolicy"] = "Never".into();
        json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name},
            "spec": {"replicatedJobs": [{
                "name": "workers", "replicas": replicas,
                "template": {"spec": {
                    "parallelism": parallelism, "completions": parallelism, "backoffLimit": 0, "template": run.template(),
                }},
            }]},
        })
    }

    fn ray(&self, workers: usize) -> Value {
        json!({
            "headGroupSpec": {"rayStartParams": {}, "template": self.template()},
            "workerGroupSpecs": [{
                "groupName": "workers", "replicas": workers, "minReplicas": workers, "maxReplicas": workers,
                "rayStartParams": {}, "template": self.template(),
            }],
        })
    }

    pub(crate) fn ray_cluster(&self, name: &str, workers: usize) -> Value {
        json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name}, "spec": self.ray(workers)})
    }

    pub(crate) fn ray_job(&self, name: &str, workers: usize) -> Value {
        json!({
            "apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": name},
            "spec": {"entrypoint": "work", "rayClusterSpec": self.ray(workers)},
        })
    }
}

/// A Service, which has no pods.
pub(crate) fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
    })
}
