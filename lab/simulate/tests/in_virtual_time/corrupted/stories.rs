//! Recoveries in progress, and their fields that may be corrupted. Those of AppWrappers and of repairs are beside their
//! worlds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use salvor_api::names::{annotations, conditions, job, node_conditions, taints};
use salvor_apiserver::{ChangeKind, Faults};
use salvor_simulate::{Line, Process};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Corruption, Spot, Story, assert_withstood};
use crate::stage::{Stage, TERMINATE, annotated, configuration};

const NODE: &str = "/api/v1/nodes/node";
/// The pod that is recovered last.
const LAST_POD: &str = "/api/v1/namespaces/default/pods/pod-3";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/salvor-system/leases/salvor";
const JOB: &str = "/apis/batch/v1/namespaces/default/jobs/work";
const PODS: usize = 4;

/// Renewals of the Lease are most of the events in a run, so they are rare.
const ELECTION: &str = "leaderElection: {leaseDuration: 60s, renewDeadline: 40s, retryPeriod: 20s}\n";

fn start(stage: &Stage, lines: &str) -> Process {
    let configuration = configuration(&format!("{ELECTION}{lines}"));
    Process::start(&stage.cluster, "salvor", &configuration, Line::default(), &Faults::default())
}

fn pod_names() -> impl Iterator<Item = String> {
    (0..PODS).map(|number| format!("pod-{number}"))
}

/// How often each pod became Failed, or was deleted, and whether the budget of one pod a minute was kept.
fn deeds(stage: &Stage) -> Value {
    let mut times = Vec::new();
    let mut failed: BTreeMap<String, usize> = BTreeMap::new();
    let mut is_failed: BTreeSet<String> = BTreeSet::new();
    for it in stage.happenings().iter().filter(|it| it.resource == "pods") {
        let name = it.name();
        if it.object["status"]["phase"] != "Failed" {
            is_failed.remove(&name);
        } else if is_failed.insert(name.clone()) {
            *failed.entry(name).or_default() += 1;
            times.push(it.at);
        }
    }
    let is_slow = times.windows(2).all(|two| two[1].duration_since(two[0]) >= SignedDuration::from_secs(60));
    json!({"failed": failed, "a pod a minute": is_slow})
}

fn events(stage: &Stage, reason: &str) -> usize {
    let is = |it: &&crate::stage::Happening| {
        it.change == ChangeKind::Added && it.resource == "events" && it.object["reason"] == reason
    };
    stage.happenings().iter().filter(is).count()
}

// ---- zombies ------------------------------------------------------------------------------------------------------

/// Four pods on a lost node, of which one is recovered per minute. Two already were.
struct Zombies(Stage);

impl Zombies {
    async fn begin() -> (Self, Process) {
        let stage = Stage::new(1).await;
        stage.node("node").await;
        stage.lose("node").await;
        let process = start(&stage, "controllers: [zombie]\nbrake: {maxPodsPerMinute: 1}\n");
        for pod in pod_names() {
            stage.terminating(&pod, "node", annotated(TERMINATE)).await;
        }
        sleep(Duration::from_secs(130)).await;
        (Self(stage), process)
    }
}

impl Story for Zombies {
    fn stage(&self) -> &Stage {
        &self.0
    }

    async fn is_over(&self) -> bool {
        let pods = self.0.pods().list(&ListParams::default()).await.unwrap();
        pods.items.iter().all(|pod| phase(pod) == "Failed")
    }

    async fn end(&self) -> Value {
        deeds(&self.0)
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

fn condition(kind: &str) -> Value {
    let at = "2026-01-01T00:00:00Z";
    json!({"type": kind, "status": "True", "reason": "Somebody", "message": "said", "lastTransitionTime": at})
}

pub(super) fn of_zombies() -> Vec<Vec<Spot>> {
    let pause = json!(r#"{"since":"2026-11-16T03:00:00Z","by":"jane","reason":"network work"}"#);
    let acknowledged = json!(r#"{"by":"salvor","at":"2026-11-16T03:00:00Z","of":"0"}"#);
    let of_pod = |kind: &'static str| {
        let way: &'static [&'static str] = match kind {
            conditions::KUEUE_FAILURE_RECOVERY => &["status", "conditions", "type=KueueFailureRecovery"],
            _ => &["status", "conditions", "type=DisruptionTarget"],
        };
        Spot::field(LAST_POD, kind, way).example(condition(kind))
    };
    let of_lease = |field: &'static str| Spot::field(LEASE, field, &["spec", field]);
    let of_the_pod = vec![
        // A missing consent is no error: `salvor explain` shows it.
        Spot::annotation(LAST_POD, annotations::SAFE_TO_FORCEFULLY_TERMINATE),
        Spot::annotation(LAST_POD, annotations::SAFE_TO_FORCEFULLY_DELETE),
        of_pod(conditions::KUEUE_FAILURE_RECOVERY),
        of_pod(conditions::DISRUPTION_TARGET),
    ];
    let wait = Spot::annotation(LAST_POD, annotations::TERMINATION_GRACE_AFTER);
    let evict = Spot::annotation(LAST_POD, annotations::EVICT_AFTER);
    let of_the_lease = vec![
        // The process's own memory counts, and the annotation is written again.
        Spot::annotation(LEASE, annotations::BRAKE).told(Corruption::UNREADABLE),
        Spot::annotation(LEASE, annotations::BRAKE_UNREADABLE),
        Spot::annotation(LEASE, annotations::PAUSED_ACKNOWLEDGED).example(acknowledged),
        Spot::annotation(LEASE, annotations::STATUS),
        of_lease("leaseDurationSeconds"),
        of_lease("acquireTime"),
        of_lease("renewTime"),
        of_lease("leaseTransitions"),
    ];
    vec![
        of_the_pod,
        vec![wait.example(json!("2m")).told(&Corruption::ALL)],
        vec![evict.example(json!("2h")).told(&Corruption::ALL)],
        of_the_lease,
        vec![Spot::annotation(LEASE, annotations::PAUSED).example(pause).told(Corruption::UNREADABLE)],
        vec![of_lease("holderIdentity").told(&[Corruption::Garbage, Corruption::Huge]).by("holds it")],
    ]
}

#[test]
fn zombies_and_the_lease() {
    assert_withstood(Zombies::begin, &of_zombies());
}

// ---- nodes out of service -----------------------------------------------------------------------------------------

/// A node that was tainted out-of-service, and comes back.
struct OutOfService {
    stage: Stage,
    is_back: bool,
}

impl OutOfService {
    async fn begin() -> (Self, Process) {
        let stage = Stage::new(1).await;
        stage.node("node").await;
        stage.boots("node", "first").await;
        let rule = "{nodeSelector: {matchLabels: {pool: batch}}, unreachableNodeTimeout: 1m}";
        let rules = format!("failureRecoveryPolicy: {{rules: [{{taintNodeOutOfService: {rule}}}]}}\n");
        let process = start(&stage, &format!("controllers: [zombie]\n{rules}"));
        stage.lose("node").await;
        sleep(Duration::from_secs(150)).await;
        let node = stage.nodes().get("node").await.unwrap();
        assert!(node.annotations().contains_key(annotations::OUT_OF_SERVICE_SINCE));
        (Self { stage, is_back: false }, process)
    }
}

impl Story for OutOfService {
    fn stage(&self) -> &Stage {
        &self.stage
    }

    async fn beat(&mut self) {
        if self.is_back {
            self.stage.renews("node").await;
        }
    }

    async fn mended(&mut self) {
        self.stage.boots("node", "second").await;
        self.stage.comes_back("node").await;
        self.is_back = true;
    }

    async fn is_over(&self) -> bool {
        let node = self.stage.nodes().get("node").await.unwrap();
        let left = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        let ours = [annotations::OUT_OF_SERVICE_SINCE, annotations::OUT_OF_SERVICE_BOOT];
        left.is_empty() && !ours.iter().any(|mark| node.annotations().contains_key(*mark))
    }

    async fn end(&self) -> Value {
        let told = ["NodeOutOfService", "NodeBackInService"].map(|reason| events(&self.stage, reason));
        json!({ "told": told })
    }
}

pub(super) fn of_nodes_out_of_service() -> Vec<Vec<Spot>> {
    let taint = ["spec", "taints", "key=node.kubernetes.io/out-of-service", "value"];
    vec![vec![
        // The value is for users. The presence of the annotation shows that the taint is ours.
        Spot::annotation(NODE, annotations::OUT_OF_SERVICE_SINCE),
        Spot::annotation(NODE, annotations::OUT_OF_SERVICE_BOOT),
        Spot::field(NODE, taints::OUT_OF_SERVICE, &taint),
    ]]
}

#[test]
fn a_node_out_of_service() {
    assert_withstood(OutOfService::begin, &of_nodes_out_of_service());
}

// ---- evictions ----------------------------------------------------------------------------------------------------

/// A node from which one pod is evicted per minute, and that comes back when it is empty.
struct Eviction {
    stage: Stage,
    is_back: bool,
}

impl Eviction {
    async fn begin() -> (Self, Process) {
        let stage = Stage::new(1).await;
        for node in ["node", "other"] {
            stage.node(node).await;
        }
        for pod in pod_names() {
            stage.pod(&pod, "node", json!({})).await;
        }
        sleep(Duration::from_secs(60)).await;
        stage.lose("node").await;
        let process = start(&stage, "controllers: [eviction]\nbrake: {maxPodsPerMinute: 1}\n");
        sleep(Duration::from_secs(60)).await;
        let mut node = stage.nodes().get("node").await.unwrap();
        let request = json!({"key": taints::FORCE_EVICTION, "value": "INC-1", "effect": "NoSchedule"});
        let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
        taints.push(serde_json::from_value(request).unwrap());
        stage.nodes().replace("node", &PostParams::default(), &node).await.unwrap();
        sleep(Duration::from_secs(80)).await;
        let left = stage.pods().list(&ListParams::default()).await.unwrap().items.len();
        assert!((1..PODS).contains(&left), "{left} pods are left");
        (Self { stage, is_back: false }, process)
    }

    fn is_clean(node: &k8s_openapi::api::core::v1::Node) -> bool {
        let left = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        left.is_empty() && !node.annotations().contains_key(annotations::EVICTION)
    }
}

impl Story for Eviction {
    fn stage(&self) -> &Stage {
        &self.stage
    }

    async fn beat(&mut self) {
        if self.is_back {
            self.stage.renews("node").await;
        } else if self.stage.pods().list(&ListParams::default()).await.unwrap().items.is_empty() {
            self.stage.comes_back("node").await;
            self.is_back = true;
        }
    }

    async fn is_over(&self) -> bool {
        self.is_back && Self::is_clean(&self.stage.nodes().get("node").await.unwrap())
    }

    async fn end(&self) -> Value {
        let node = self.stage.nodes().get("node").await.unwrap();
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        let ours = conditions.into_iter().flatten().find(|it| it.type_ == node_conditions::FORCE_EVICTION);
        json!({"deeds": deeds(&self.stage), "clean": Self::is_clean(&node), "evicting": ours.map(|it| &it.status)})
    }
}

pub(super) fn of_evictions() -> Vec<Vec<Spot>> {
    let taint = ["spec", "taints", "key=salvor.dev/force-eviction", "value"];
    let condition = ["status", "conditions", "type=ForceEviction"];
    let asked = json!(r#"{"value":"INC-1","renewed":"2026-01-01T00:00:00Z"}"#);
    // Without it an outage blocks the eviction, and there is no outage here.
    let word = json!(r#"{"by":"jane","at":"2026-01-01T00:00:00Z"}"#);
    vec![
        vec![Spot::annotation(NODE, annotations::EVICTION).told(&Corruption::ALL)],
        vec![Spot::annotation(NODE, annotations::EVICTION_ASKED).example(asked).told(Corruption::UNREADABLE)],
        vec![
            Spot::annotation(NODE, annotations::DESPITE_ZONE_OUTAGE).example(word),
            Spot::field(NODE, taints::FORCE_EVICTION, &taint),
            Spot::field(NODE, node_conditions::FORCE_EVICTION, &condition),
        ],
    ]
}

#[test]
fn an_eviction() {
    assert_withstood(Eviction::begin, &of_evictions());
}

// ---- Jobs ---------------------------------------------------------------------------------------------------------

/// An Indexed Job whose pods end one after the other; the first pod of each index fails.
struct Work {
    stage: Stage,
    ended: BTreeSet<String>,
}

impl Work {
    async fn begin() -> (Self, Process) {
        let stage = Stage::new(1).await;
        let job = json!({
            "metadata": {"name": "work"},
            "spec": {
                "managedBy": job::CONTROLLER_NAME, "completions": 3, "parallelism": 1, "completionMode": "Indexed",
                "backoffLimitPerIndex": 1, "podReplacementPolicy": "Failed",
                "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work"}]}},
            },
        });
        let job: Job = serde_json::from_value(job).unwrap();
        let jobs: Api<Job> = Api::default_namespaced(stage.client.clone());
        jobs.create(&PostParams::default(), &job).await.unwrap();
        let process = start(&stage, "controllers: [job]\n");
        let mut work = Self { stage, ended: BTreeSet::new() };
        // The first pod has failed, and the second one of its index runs.
        for _ in 0..5 {
            sleep(Duration::from_secs(5)).await;
            if work.ended.is_empty() {
                work.beat().await;
            }
        }
        assert_eq!(work.pods().await.len(), 2);
        (work, process)
    }

    async fn pods(&self) -> Vec<Pod> {
        self.stage.pods().list(&ListParams::default()).await.unwrap().items
    }
}

impl Story for Work {
    fn stage(&self) -> &Stage {
        &self.stage
    }

    /// `pod` is the pod that runs.
    async fn path(&self, object: &str) -> String {
        if object != "pod" {
            return object.to_owned();
        }
        let pods = self.pods().await;
        let pod = pods.iter().find(|pod| phase(pod) == "Pending").unwrap();
        format!("/api/v1/namespaces/default/pods/{}", pod.name_any())
    }

    async fn beat(&mut self) {
        for pod in self.pods().await {
            let uid = pod.uid().unwrap();
            if phase(&pod) != "Pending" || pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let is_first = self.ended.is_empty();
            self.ended.insert(uid);
            let now = self.stage.cluster.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let code = i32::from(is_first);
            let container = json!({
                "name": "main", "image": "work", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": code, "finishedAt": now, "startedAt": now}},
            });
            let phase = if is_first { "Failed" } else { "Succeeded" };
            let patch =
                Patch::Strategic(json!({"status": {"phase": phase, "containerStatuses": [container]}}));
            self.stage.pods().patch_status(&pod.name_any(), &PatchParams::default(), &patch).await.unwrap();
            return;
        }
    }

    async fn is_over(&self) -> bool {
        let jobs: Api<Job> = Api::default_namespaced(self.stage.client.clone());
        let status = jobs.get("work").await.unwrap().status.unwrap_or_default();
        status.conditions.iter().flatten().any(|it| it.type_ == "Complete" && it.status == "True")
    }

    async fn end(&self) -> Value {
        let jobs: Api<Job> = Api::default_namespaced(self.stage.client.clone());
        let status = jobs.get("work").await.unwrap().status.unwrap_or_default();
        let made = |it: &&crate::stage::Happening| it.change == ChangeKind::Added && it.resource == "pods";
        json!({
            "succeeded": status.succeeded, "failed": status.failed, "completed": status.completed_indexes,
            "made": self.stage.happenings().iter().filter(made).count(),
        })
    }
}

pub(super) fn of_jobs() -> Vec<Vec<Spot>> {
    vec![
        vec![Spot::annotation(JOB, job::USED_NAMES).told(Corruption::UNREADABLE)],
        vec![Spot::annotation("pod", job::INDEX_FAILURE_COUNT).told(&Corruption::ALL)],
        vec![Spot::annotation("pod", job::INDEX_IGNORED_FAILURE_COUNT).told(&Corruption::ALL)],
    ]
}

#[test]
fn a_job() {
    assert_withstood(Work::begin, &of_jobs());
}
