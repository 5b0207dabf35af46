//! A cluster with AppWrappers, in which the test plays Job controller, kubelet and garbage collector.

use std::collections::BTreeSet;

use http::Request;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use salvor_api::config::Configuration;
use serde_json::{Value, json};

use crate::stage::{Stage, configuration};

pub(super) const APP: &str = "work";
pub(super) const MEMBER: &str = "workload.codeflare.dev/appwrapper";
const TIMERS: &str = "workload.codeflare.dev.appwrapper/";
/// Every pod runs here.
pub(super) const NODE: &str = "node";
const WORKERS: usize = 2;

/// Default timers. Renewals of a Lease are most of the events in a run, so they are rare.
pub(super) fn settings() -> Configuration {
    with_settings("")
}

/// Like `settings`, with these fields of the section `appwrapper`.
pub(super) fn with_settings(fields: &str) -> Configuration {
    elected(fields, "leaseDuration: 60s, renewDeadline: 40s, retryPeriod: 20s")
}

/// Like `with_settings`, for stories of days in which nothing crashes: most of their events would be renewals.
pub(super) fn without_election(fields: &str) -> Configuration {
    elected(fields, "enabled: false")
}

fn elected(fields: &str, election: &str) -> Configuration {
    configuration(&format!(
        "controllers: [appwrapper]
webhooks: {{enabled: false}}
appwrapper: {{wrappedKindsWithoutWebhooks: [Job.batch, Pod]{fields}}}
leaderElection: {{{election}}}"
    ))
}

/// What happens to the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plot {
    /// The number of attempts in which the bare pod fails.
    pub(super) failures: usize,
    /// After that everything succeeds if true, or keeps running.
    pub(super) ends: bool,
}

impl Plot {
    /// It runs and never ends.
    pub(super) const RUNS: Self = Self { failures: 0, ends: false };
}

/// The cluster around one AppWrapper with a Job of two pods and a bare pod.
pub(super) struct World {
    pub(super) stage: Stage,
    pub(super) apps: Api<DynamicObject>,
    pub(super) jobs: Api<Job>,
    pub(super) plot: Plot,
    /// Nodes whose kubelets are unreachable.
    pub(super) lost: BTreeSet<String>,
    /// Nothing fails before the AppWrapper reports that it runs.
    pub(super) fails_late: bool,
    runs: bool,
    /// UIDs of the bare pods, one for each attempt.
    attempts: Vec<String>,
    /// The state in which nothing was left to do.
    idle: Option<(usize, usize, Plot, bool)>,
}

impl World {
    pub(super) async fn new(plot: Plot) -> Self {
        let stage = Stage::new(1).await;
        stage.node(NODE).await;
        let definition = Request::patch(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/appwrappers.workload.codeflare.dev?fieldManager=test",
        )
        .header("content-type", "application/apply-patch+yaml")
        .body(salvor_api::crds::APPWRAPPER.as_bytes().to_vec())
        .unwrap();
        stage.client.request_text(definition).await.unwrap();
        let kind = GroupVersionKind::gvk("workload.codeflare.dev", "v1beta2", "AppWrapper");
        let resource = ApiResource::from_gvk_with_plural(&kind, "appwrappers");
        Self {
            apps: Api::default_namespaced_with(stage.client.clone(), &resource),
            jobs: Api::default_namespaced(stage.client.clone()),
            stage,
            plot,
            lost: BTreeSet::new(),
            fails_late: false,
            runs: false,
            attempts: Vec::new(),
            idle: None,
        }
    }

    // ---- the user -----------------------------------------------------------------------------------

    /// Creates the AppWrapper with these timers, named by the last part of their keys.
    pub(super) async fn create(&self, timers: &[(&str, &str)]) {
        let annotations: serde_json::Map<String, Value> =
            timers.iter().map(|(key, value)| (format!("{TIMERS}{key}"), (*value).into())).collect();
        let app = json!({
            "apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper",
            "metadata": {"name": APP, "annotations": annotations},
            "spec": {"suspend": false, "components": [{"template": job()}, {"template": bare_pod()}]},
        });
        let app: DynamicObject = serde_json::from_value(app).unwrap();
        self.apps.create(&PostParams::default(), &app).await.unwrap();
    }

    pub(super) async fn change(&self, patch: Value) {
        self.apps.patch(APP, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(super) async fn suspend(&self, suspend: bool) {
        self.change(json!({"spec": {"suspend": suspend}})).await;
    }

    /// A user writes the status by hand. The schema may forbid it.
    pub(super) async fn edit_status(&self, status: &Value) -> Result<(), String> {
        let patch = Patch::Merge(json!({"status": status}));
        let written = self.apps.patch_status(APP, &PatchParams::default(), &patch).await;
        written.map(|_| ()).map_err(|error| error.to_string())
    }

    pub(super) async fn delete(&self) {
        // It may be gone already.
        let _ = self.apps.delete(APP, &DeleteParams::default()).await;
    }

    // ---- the state ----------------------------------------------------------------------------------

    /// The AppWrapper; null if it is gone.
    pub(super) fn app(&self) -> Value {
        self.stage.objects("appwrappers").get(APP).map_or(Value::Null, |app| Value::clone(app))
    }

    pub(super) fn phase(&self) -> String {
        self.app()["status"]["phase"].as_str().unwrap_or_default().to_owned()
    }

    pub(super) async fn all_pods(&self) -> Vec<Pod> {
        self.stage.pods().list(&Default::default()).await.unwrap().items
    }

    async fn all_jobs(&self) -> Vec<Job> {
        self.jobs.list(&Default::default()).await.unwrap().items
    }

    /// The number of components and pods.
    pub(super) async fn left(&self) -> usize {
        self.all_jobs().await.len() + self.all_pods().await.len()
    }

    // ---- all that runs by itself --------------------------------------------------------------------

    /// Every controller and the kubelet reconcile once.
    pub(super) async fn beat(&mut self) {
        self.stage.settle().await;
        let state = (self.stage.revision(), self.lost.len(), self.plot, self.fails_late);
        if self.idle == Some(state) {
            return;
        }
        self.reconcile().await;
        self.idle = (self.stage.revision() == state.0).then_some(state);
    }

    async fn reconcile(&mut self) {
        let (jobs, pods) = (self.all_jobs().await, self.all_pods().await);
        self.runs = self.phase() == "Running";
        let apps: BTreeSet<String> = self
            .apps
            .list(&Default::default())
            .await
            .unwrap()
            .items
            .iter()
            .filter_map(ResourceExt::uid)
            .collect();
        for job in &jobs {
            let orphan = owner(job.owner_references()).is_some_and(|owner| !apps.contains(&owner.uid));
            if orphan {
                let _ = self.jobs.delete(&job.name_any(), &DeleteParams::background()).await;
            } else if job.metadata.deletion_timestamp.is_none() {
                self.run_job(job, &pods).await;
            }
        }
        for pod in &pods {
            let orphan = owner(pod.owner_references()).is_some_and(|owner| {
                !apps.contains(&owner.uid) && !jobs.iter().any(|job| job.uid().as_ref() == Some(&owner.uid))
            });
            if orphan && pod.metadata.deletion_timestamp.is_none() {
                let _ = self.stage.pods().delete(&pod.name_any(), &DeleteParams::default()).await;
            } else {
                self.run_pod(pod).await;
            }
        }
    }

    async fn run_job(&self, job: &Job, pods: &[Pod]) {
        let (name, uid) = (job.name_any(), job.uid().unwrap());
        let is_done = job.status.iter().flat_map(|it| it.conditions.iter().flatten()).next().is_some();
        if is_done {
            return;
        }
        let own: Vec<&Pod> =
            pods.iter().filter(|pod| owner(pod.owner_references()).is_some_and(|it| it.uid == uid)).collect();
        if own.iter().filter(|pod| phase(pod) == "Succeeded").count() == WORKERS {
            let now = self.stage.cluster.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let condition = |kind: &str| json!({"type": kind, "status": "True", "lastProbeTime": now, "lastTransitionTime": now});
            let done = json!({"status": {
                "succeeded": WORKERS, "startTime": now, "completionTime": now,
                "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
            }});
            let patch = Patch::Merge(done);
            self.jobs.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
            return;
        }
        for number in 0..WORKERS {
            let pod_name = format!("{name}-{number}");
            if own.iter().any(|pod| pod.name_any() == pod_name) {
                continue;
            }
            let mut pod = serde_json::to_value(&job.spec.as_ref().unwrap().template).unwrap();
            pod["metadata"]["name"] = pod_name.into();
            pod["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": true,
            }]);
            // A pod of the previous attempt may still have the name.
            let _ =
                self.stage.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await;
        }
    }

    async fn run_pod(&mut self, pod: &Pod) {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap());
        let is_bare = owner(pod.owner_references()).is_some_and(|owner| owner.kind == "AppWrapper");
        if is_bare && !self.attempts.contains(&uid) {
            self.attempts.push(uid.clone());
        }
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        if self.lost.contains(&node) {
            return;
        }
        if pod.metadata.deletion_timestamp.is_some() {
            let params = DeleteParams::default()
                .grace_period(0)
                .preconditions(kube::api::Preconditions { uid: Some(uid), resource_version: None });
            let _ = self.stage.pods().delete(&name, &params).await;
            return;
        }
        let attempt = self.attempts.len().saturating_sub(1);
        let fails = is_bare && attempt < self.plot.failures && (self.runs || !self.fails_late);
        let ends = self.plot.ends && attempt >= self.plot.failures;
        match phase(pod) {
            "Running" if fails => self.set_phase(&name, "Failed", Some(1)).await,
            "Running" if ends => self.set_phase(&name, "Succeeded", Some(0)).await,
            "Running" | "Succeeded" | "Failed" => {}
            _ => self.set_phase(&name, "Running", None).await,
        }
    }

    /// The kubelet reports the state of a pod.
    pub(super) async fn set_phase(&self, name: &str, phase: &str, exit_code: Option<i32>) {
        let now = self.stage.cluster.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let state = match exit_code {
            Some(code) => json!({"terminated": {"exitCode": code, "startedAt": now, "finishedAt": now}}),
            None => json!({"running": {"startedAt": now}}),
        };
        let container = json!({
            "name": "main", "image": "work", "imageID": "", "ready": false, "restartCount": 0, "state": state,
        });
        let patch = Patch::Strategic(json!({"status": {"phase": phase, "containerStatuses": [container]}}));
        // It may be gone by now.
        let _ = self.stage.pods().patch_status(name, &PatchParams::default(), &patch).await;
    }
}

fn owner(references: &[OwnerReference]) -> Option<&OwnerReference> {
    references.iter().find(|reference| reference.controller == Some(true))
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

fn pod_spec() -> Value {
    json!({
        "nodeName": NODE, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "work"}],
    })
}

fn job() -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": "train-"},
        "spec": {"parallelism": WORKERS, "completions": WORKERS, "backoffLimit": 0, "template": {"spec": pod_spec()}},
    })
}

fn bare_pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "side"}, "spec": pod_spec()})
}
