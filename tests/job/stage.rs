//! A namespace for one test, which plays the kubelet, and a `salvor run` process.

use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{Event, Node, Pod},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use salvor_testkit::{Access, Arena, Ours, Salvor, Site, wait};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

pub(crate) const FINALIZER: &str = "job.salvor.dev/tracking";
/// A finalizer of the test, which keeps a deleted pod Terminating.
const BLOCK: &str = "fake.example.com/block-deletion";
/// The node whose kubelet the test plays.
const NODE: &str = "its-kubelet-is-the-test";

/// As fast as the integration tests of the built-in controller, with the same counting.
pub(crate) const QUICK: &str = "job: {backoffBase: 100ms, batchPeriod: 100ms, disruptedPods: Count}\n";

/// Starts `salvor run` as a user with this configuration. It elects a leader only if the configuration has an election.
pub(crate) fn salvor_as(who: &Access, configuration: &str, environment: &[(&str, &str)]) -> Salvor {
    let elects = format!("--leader-elect={}", configuration.contains("leaderElection"));
    Salvor::start(env!("CARGO_BIN_EXE_salvor"), who, configuration, &[&elects], environment)
}

/// The setup of one test.
pub(crate) struct Stage<'p> {
    pub(crate) arena: Arena<'p>,
    pub(crate) jobs: Api<Job>,
    pub(crate) pods: Api<Pod>,
    ours: Option<Ours>,
}

impl Stage<'static> {
    /// In a cluster with all controllers, and a Salvor that runs Jobs.
    pub(crate) async fn new(site: Site, name: &str) -> Self {
        static SHARED: OnceCell<Salvor> = OnceCell::const_new();
        let stage = Self::on(site.arena(name).await);
        let start = || stage.salvor(&format!("controllers: [job]\n{QUICK}"), &[]);
        let ours = Ours::at(site, &SHARED, start).await;
        Self { ours: Some(ours), ..stage }
    }
}

impl<'p> Stage<'p> {
    pub(crate) fn on(arena: Arena<'p>) -> Self {
        let client: Client = arena.client();
        let (jobs, pods) = (Api::default_namespaced(client.clone()), Api::default_namespaced(client));
        Self { arena, jobs, pods, ours: None }
    }

    pub(crate) fn salvor(&self, configuration: &str, environment: &[(&str, &str)]) -> Salvor {
        salvor_as(&self.arena.admin(), configuration, environment)
    }

    /// The Salvor that this stage started with.
    pub(crate) fn ours(&self) -> &Salvor {
        self.ours.as_ref().unwrap()
    }

    /// Creates a Job for Salvor. `spec` may have a template. The default template has one container.
    pub(crate) async fn job(&self, name: &str, spec: Value) -> Job {
        let mut spec = spec;
        if spec["managedBy"].is_null() {
            spec["managedBy"] = "salvor.dev/job-controller".into();
        }
        if spec["template"].is_null() {
            spec["template"] = template();
        }
        if spec["template"]["spec"]["nodeName"] == NODE {
            self.node_exists().await;
        }
        let job: Job = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        self.jobs.create(&PostParams::default(), &job).await.unwrap()
    }

    async fn node_exists(&self) {
        let node = json!({"metadata": {"name": NODE}, "spec": {"unschedulable": true}});
        let node: Node = serde_json::from_value(node).unwrap();
        match Api::all(self.arena.client()).create(&PostParams::default(), &node).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            created => drop(created.unwrap()),
        }
    }

    pub(crate) async fn change(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.jobs.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits until the Job's counters are `A1 R0 S2 F0 T0` and as many of its pods are alive. All of them are tracked.
    pub(crate) async fn counts(&self, name: &str, expected: &str) -> Job {
        let what = format!("its counters are {expected}");
        let job = wait::for_object(&self.jobs, name, &what, |job| counts(job) == expected).await;
        let active = job.status.as_ref().and_then(|s| s.active).unwrap_or(0);
        let active = usize::try_from(active).unwrap();
        // The counters may be stale and only look like the expected ones.
        let what = format!("{active} pods of {name} are alive");
        let pods = wait::for_list(&self.pods, &of_job(name), &what, |pods: &[Pod]| {
            pods.iter().filter(|pod| is_alive(pod)).count() == active
        })
        .await;
        for pod in pods.iter().filter(|pod| is_alive(pod)) {
            assert!(has_finalizer(pod), "{} is not tracked", pod.name_any());
        }
        job
    }

    pub(crate) async fn events(&self, reason: &str, count: usize) -> Vec<Event> {
        let events: Api<Event> = Api::default_namespaced(self.arena.client());
        let is_one = |event: &Event| event.reason.as_deref() == Some(reason);
        let what = format!("{count} events tell {reason}");
        let all = ListParams::default();
        let told = wait::for_list(&events, &all, &what, |all: &[Event]| {
            all.iter().filter(|event| is_one(event)).count() == count
        })
        .await;
        told.into_iter().filter(is_one).collect()
    }

    pub(crate) async fn until(&self, name: &str, kind: &str) -> Job {
        wait::for_object(&self.jobs, name, &format!("it is {kind}"), |job| condition(job, kind).is_some())
            .await
    }

    pub(crate) async fn all_pods(&self, job: &str) -> Vec<Pod> {
        let mut pods = self.pods.list(&of_job(job)).await.unwrap().items;
        pods.sort_by_key(|pod| {
            (index(pod), pod.metadata.creation_timestamp.clone().map(|t| t.0), pod.name_any())
        });
        pods
    }

    /// Pods that have not ended and are not being deleted.
    pub(crate) async fn alive(&self, job: &str) -> Vec<Pod> {
        self.all_pods(job).await.into_iter().filter(is_alive).collect()
    }

    pub(crate) async fn alive_at(&self, job: &str, at: u32) -> Pod {
        let pods = self.alive(job).await.into_iter();
        pods.into_iter().find(|pod| index(pod) == Some(at)).unwrap_or_else(|| panic!("no pod at index {at}"))
    }

    /// Plays the kubelet: the pod's only container exits now with this code.
    pub(crate) async fn end(&self, pod: &Pod, code: i32) {
        self.end_with(pod, code, json!([])).await;
    }

    /// The same, dated an hour ago, so that no controller backs off before it replaces the pod.
    pub(crate) async fn end_long_ago(&self, pod: &Pod, code: i32, conditions: Value) {
        let hour = k8s_openapi::jiff::SignedDuration::from_hours(1);
        self.end_at(pod, code, conditions, Timestamp::now() - hour).await;
    }

    pub(crate) async fn end_with(&self, pod: &Pod, code: i32, conditions: Value) {
        self.end_at(pod, code, conditions, Timestamp::now()).await;
    }

    async fn end_at(&self, pod: &Pod, code: i32, conditions: Value, at: Timestamp) {
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let ended = json!({"terminated": {"exitCode": code, "finishedAt": text(at), "startedAt": text(at)}});
        let status = json!({
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": [{
                "name": "main", "image": "work", "imageID": "", "ready": false, "restartCount": 0, "state": ended,
            }],
        });
        self.patch_status(pod, status).await;
    }

    pub(crate) async fn ready(&self, pod: &Pod) {
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": text(Timestamp::now())});
        self.patch_status(pod, json!({"phase": "Running", "conditions": [ready]})).await;
    }

    /// Its container failed this many times and was restarted in place.
    pub(crate) async fn restarted(&self, pod: &Pod, times: i32) {
        let running = json!({"running": {"startedAt": text(Timestamp::now())}});
        let container = json!({
            "name": "main", "image": "work", "imageID": "", "ready": false, "restartCount": times, "state": running,
        });
        self.patch_status(pod, json!({"phase": "Running", "containerStatuses": [container]})).await;
    }

    /// It is not ready since an hour ago, so that no controller backs off before it replaces the pod.
    pub(crate) async fn not_ready_long_ago(&self, pod: &Pod, more: Value) {
        let mut conditions = vec![not_ready_for_an_hour()];
        conditions.extend(more.as_array().cloned().unwrap_or_default());
        self.patch_status(pod, json!({ "conditions": conditions })).await;
    }

    /// Its node is gone, and the pod is marked Failed because of that.
    pub(crate) async fn collected(&self, pod: &Pod, conditions: Value) {
        let mut conditions = conditions.as_array().cloned().unwrap_or_default();
        conditions.push(not_ready_for_an_hour());
        self.patch_status(pod, json!({"phase": "Failed", "conditions": conditions})).await;
    }

    async fn patch_status(&self, pod: &Pod, status: Value) {
        let patch = Patch::Strategic(json!({ "status": status }));
        self.pods.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn delete(&self, pod: &Pod) {
        self.pods.delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
    }

    /// Removes the finalizer of [`blocked_template`].
    pub(crate) async fn unblock(&self, pod: &Pod) {
        let patch = Patch::Strategic(json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [BLOCK]}}));
        // The pod may already be gone.
        let _ = self.pods.patch(&pod.name_any(), &PatchParams::default(), &patch).await;
    }

    /// Waits until the garbage collector knows all pods: it orphans only pods that it has observed. It has observed
    /// them once it has collected a younger one.
    pub(crate) async fn until_the_collector_knows_all_pods(&self) {
        let nobody = json!({
            "apiVersion": "batch/v1", "kind": "Job", "name": "nobody", "uid": "11111111-2222-3333-4444-555555555555",
        });
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "nobodys", "ownerReferences": [nobody]},
            "spec": {"containers": [{"name": "main", "image": "work"}]},
        }));
        self.pods.create(&PostParams::default(), &pod.unwrap()).await.unwrap();
        wait::for_absence(&self.pods, "nobodys").await;
    }

    pub(crate) async fn no_finalizer_is_left(&self, job: &str) {
        let what = "no pod has our finalizer";
        wait::for_list(&self.pods, &of_job(job), what, |pods: &[Pod]| !pods.iter().any(has_finalizer)).await;
    }
}

fn not_ready_for_an_hour() -> Value {
    let since = Timestamp::now() - k8s_openapi::jiff::SignedDuration::from_hours(1);
    json!({"type": "Ready", "status": "False", "lastTransitionTime": text(since)})
}

fn text(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub(crate) fn template() -> Value {
    json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work"}]}})
}

/// Pods bound to a node. Pod GC would mark terminating pods without a node as Failed.
pub(crate) fn template_on_a_node() -> Value {
    let mut template = template();
    template["spec"]["nodeName"] = NODE.into();
    // The node's Lease is not renewed, and its pods must not be evicted for that.
    template["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    template
}

/// Pods that stay after their deletion, until [`Stage::unblock`].
pub(crate) fn blocked_template() -> Value {
    let mut template = template_on_a_node();
    template["metadata"] = json!({"finalizers": [BLOCK]});
    template["spec"]["terminationGracePeriodSeconds"] = 0.into();
    template
}

/// `A1 R0 S2 F0 T0`, with a dash for counters that are not set.
pub(crate) fn counts(job: &Job) -> String {
    let status = job.status.clone().unwrap_or_default();
    let n = |n: Option<i32>| n.unwrap_or(0);
    let or_dash = |n: Option<i32>| n.map_or("-".to_owned(), |n| n.to_string());
    format!(
        "A{} R{} S{} F{} T{}",
        n(status.active),
        or_dash(status.ready),
        n(status.succeeded),
        n(status.failed),
        or_dash(status.terminating)
    )
}

/// The reason of a condition that is True.
pub(crate) fn condition(job: &Job, kind: &str) -> Option<String> {
    let conditions = job.status.as_ref().and_then(|s| s.conditions.as_ref());
    let found = conditions.into_iter().flatten().find(|c| c.type_ == kind && c.status == "True");
    found.map(|c| c.reason.clone().unwrap_or_default())
}

/// All conditions that are True, with their reasons.
pub(crate) fn conditions(job: &Job) -> String {
    let all = job.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let held = all.into_iter().filter(|c| c.status == "True");
    held.map(|c| format!("{}({})", c.type_, c.reason.unwrap_or_default())).collect::<Vec<_>>().join(" ")
}

pub(crate) fn has_finalizer(pod: &Pod) -> bool {
    pod.finalizers().iter().any(|f| f == FINALIZER)
}

fn of_job(name: &str) -> ListParams {
    ListParams::default().labels(&format!("batch.kubernetes.io/job-name={name}"))
}

fn is_alive(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !is_over(pod)
}

pub(crate) fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// The index of a pod, which must be the same as annotation and as label.
pub(crate) fn index(pod: &Pod) -> Option<u32> {
    let key = "batch.kubernetes.io/job-completion-index";
    let annotation = pod.annotations().get(key)?;
    assert_eq!(pod.labels().get(key), Some(annotation));
    annotation.parse().ok()
}
