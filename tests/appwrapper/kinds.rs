//! Workloads of other controllers: the test plays their operators, and their pods run on simulated nodes.

use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::ListParams};
use salvor_testkit::{Recorder, Site, wait};
use serde_json::{Value, json};

use crate::{
    controller::cases,
    objects::{
        AppWrapper, Namespaced, Object, OfJobSet, OfLeaderWorkerSet, OfPyTorchJob, OfRayCluster, OfRayJob,
    },
    stage::{Run, Stage, Wrap, phases},
};

async fn made<K: Namespaced>(stage: &Stage<'_>, name: &str) -> Object<K> {
    wait::for_object(&stage.of::<K>(), name, "it is made", |_| true).await
}

/// Plays an operator: creates as many pods of a template as requested.
async fn pods_of<K: Namespaced>(
    stage: &Stage<'_>,
    owner: &Object<K>,
    template: &Value,
    role: &str,
    count: usize,
) {
    for number in 0..count {
        stage.make_pod(owner, &format!("{}-{role}-{number}", owner.name_any()), template).await;
    }
}

fn done(kind: &str) -> Value {
    json!({"conditions": [{
        "type": kind, "status": "True", "reason": "Told", "message": "told by its operator",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]})
}

async fn a_py_torch_job_runs_with_all_its_pods(site: Site) {
    let stage = Stage::new(site, "torch", 1).await;
    stage.with_workloads().await;
    stage.create(Wrap::new("w").of(Run::on().py_torch_job("t", true, 2))).await;
    let job = made::<OfPyTorchJob>(&stage, "t").await;
    let specs = &job.spec["pytorchReplicaSpecs"];
    pods_of(&stage, &job, &specs["Worker"]["template"], "worker", 2).await;
    let waiting = stage.phase("w", "Running").await;
    assert!(!waiting.is("PodsReady"), "the master is not there yet");
    pods_of(&stage, &job, &specs["Master"]["template"], "master", 1).await;
    let ready = stage.ready("w").await;
    let sets = ready.status["componentStatus"][0]["podSets"].as_array().unwrap();
    let sets: Vec<_> = sets
        .iter()
        .map(|set| (set["path"].as_str().unwrap(), set["replicas"].as_i64().unwrap_or(1)))
        .collect();
    assert_eq!(
        sets,
        [
            ("template.spec.pytorchReplicaSpecs.Master.template", 1),
            ("template.spec.pytorchReplicaSpecs.Worker.template", 2),
        ]
    );
    let tas = &ready.status["componentStatus"][0]["podSets"][0]["annotations"];
    assert_eq!(
        tas["workload.codeflare.dev.appwrapper/tas-pod-index-label"], "training.kubeflow.org/replica-index",
        "Kueue reads it there"
    );
}

async fn a_ray_cluster_and_a_ray_job_run(site: Site) {
    let stage = Stage::new(site, "ray", 1).await;
    stage.with_workloads().await;
    stage.create(Wrap::new("cluster").of(Run::on().ray_cluster("c", 2))).await;
    stage.create(Wrap::new("job").of(Run::on().ray_job("r", 1))).await;
    let cluster = made::<OfRayCluster>(&stage, "c").await;
    let job = made::<OfRayJob>(&stage, "r").await;
    pods_of(&stage, &cluster, &cluster.spec["headGroupSpec"]["template"], "head", 1).await;
    pods_of(&stage, &cluster, &cluster.spec["workerGroupSpecs"][0]["template"], "worker", 2).await;
    pods_of(&stage, &job, &job.spec["rayClusterSpec"]["headGroupSpec"]["template"], "head", 1).await;
    pods_of(&stage, &job, &job.spec["rayClusterSpec"]["workerGroupSpecs"][0]["template"], "worker", 1).await;
    for name in ["cluster", "job"] {
        stage.ready(name).await;
    }
    // A temporary state is no failure (#174).
    stage.set_status::<OfRayCluster>("c", json!({"state": "failed"})).await;
    let recorder = stage.record().await;
    stage.create(Wrap::new("clock").of(Run::to_end("2s", 0).pod("clock"))).await;
    stage.phase("clock", "Succeeded").await;
    assert_eq!(phases(&recorder, "cluster").await, ["Running"]);
}

/// It succeeds without a reset. Afterwards no pod is left that could use its quota.
async fn succeeds_without_pods(stage: &Stage<'_>, recorder: &Recorder<AppWrapper>) {
    stage.phase("w", "Succeeded").await;
    let pods = stage.pods.list(&ListParams::default()).await.unwrap().items;
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
    let active: Vec<_> = pods.iter().filter(|pod| !["Succeeded", "Failed"].contains(&&*phase(pod))).collect();
    assert!(active.is_empty(), "quota is free, and these use it: {active:?}");
    assert!(!phases(recorder, "w").await.contains(&"Resetting".to_owned()));
}

/// The cluster of a RayJob keeps running after the job unless its spec says otherwise, and nothing else ends its pods
/// (6.2, 4).
async fn a_ray_job_that_says_succeeded_is_done(site: Site) {
    let stage = Stage::new(site, "raydone", 1).await;
    stage.with_workloads().await;
    let recorder = stage.record().await;
    stage.create(Wrap::new("w").of(Run::on().ray_job("r", 1)).set("failureGracePeriodDuration", "1s")).await;
    let job = made::<OfRayJob>(&stage, "r").await;
    pods_of(&stage, &job, &job.spec["rayClusterSpec"]["headGroupSpec"]["template"], "head", 1).await;
    pods_of(&stage, &job, &job.spec["rayClusterSpec"]["workerGroupSpecs"][0]["template"], "worker", 1).await;
    stage.ready("w").await;
    stage
        .set_status::<OfRayJob>("r", json!({"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"}))
        .await;
    succeeds_without_pods(&stage, &recorder).await;
}

async fn a_job_set_with_a_generated_name_runs(site: Site) {
    let stage = Stage::new(site, "set", 1).await;
    stage.with_workloads().await;
    let mut set = Run::on().job_set("s", 2, 1);
    set["metadata"] = json!({"generateName": "s-"});
    stage.create(Wrap::new("w").of(set)).await;
    let sets = stage.of::<OfJobSet>();
    let all = ListParams::default();
    let set = wait::for_list(&sets, &all, "it is made", |sets: &[Object<OfJobSet>]| sets.len() == 1)
        .await
        .remove(0);
    pods_of(&stage, &set, &set.spec["replicatedJobs"][0]["template"]["spec"]["template"], "worker", 2).await;
    let ready = stage.ready("w").await;
    assert_eq!(ready.status["componentStatus"][0]["name"], set.name_any());
    let tas = &ready.status["componentStatus"][0]["podSets"][0]["annotations"];
    let key =
        |name: &str| tas[format!("workload.codeflare.dev.appwrapper/{name}")].as_str().unwrap_or_default();
    assert_eq!(key("tas-pod-index-label"), "batch.kubernetes.io/job-completion-index");
    assert_eq!(key("tas-sub-group-index-label"), "jobset.sigs.k8s.io/job-index");
    assert_eq!(key("tas-sub-group-count"), "2");
}

/// Only the JobSet itself decides about its success: one of several Jobs may be enough (#423).
async fn a_job_set_that_says_completed_is_done(site: Site) {
    let stage = Stage::new(site, "completed", 1).await;
    stage.with_workloads().await;
    let recorder = stage.record().await;
    stage
        .create(Wrap::new("w").of(Run::on().job_set("s", 2, 1)).set("failureGracePeriodDuration", "1s"))
        .await;
    let set = made::<OfJobSet>(&stage, "s").await;
    pods_of(&stage, &set, &set.spec["replicatedJobs"][0]["template"]["spec"]["template"], "worker", 2).await;
    stage.ready("w").await;
    stage.set_status::<OfJobSet>("s", done("Completed")).await;
    succeeds_without_pods(&stage, &recorder).await;
}

async fn a_job_set_that_says_failed_is_reset_without_grace(site: Site) {
    let stage = Stage::new(site, "failedset", 1).await;
    stage.with_workloads().await;
    let wrap = Wrap::new("w")
        .of(Run::on().job_set("s", 1, 1))
        .set("failureGracePeriodDuration", "1h")
        .set("retryPausePeriodDuration", "0s");
    stage.create(wrap).await;
    let set = made::<OfJobSet>(&stage, "s").await;
    pods_of(&stage, &set, &set.spec["replicatedJobs"][0]["template"]["spec"]["template"], "worker", 1).await;
    stage.ready("w").await;
    stage.set_status::<OfJobSet>("s", done("Failed")).await;
    stage.until("w", "it was reset", |w| w.resets() == 1).await;
}

/// An unknown kind: the user declares where its pods are.
async fn declared_pod_sets_stand_for_what_is_not_known(site: Site) {
    let stage = Stage::new(site, "lws", 1).await;
    stage.with_workloads().await;
    let template = Run::on().template();
    let set = json!({
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "l"},
        "spec": {"replicas": 1, "leaderWorkerTemplate": {
            "size": 3, "leaderTemplate": template, "workerTemplate": template,
        }},
    });
    let path = |part: &str| format!("template.spec.leaderWorkerTemplate.{part}");
    let component = json!({
        "template": set,
        "podSets": [
            {"replicas": 1, "path": path("leaderTemplate")},
            {"replicas": 2, "path": path("workerTemplate")},
        ],
    });
    stage.create(Wrap::new("w").component(component)).await;
    let set = made::<OfLeaderWorkerSet>(&stage, "l").await;
    let templates = &set.spec["leaderWorkerTemplate"];
    pods_of(&stage, &set, &templates["leaderTemplate"], "leader", 1).await;
    pods_of(&stage, &set, &templates["workerTemplate"], "worker", 2).await;
    let ready = stage.ready("w").await;
    assert_eq!(ready.condition("PodsReady").unwrap().message, "3 pods running; 0 pods succeeded");
    stage.delete("w").await;
    stage.gone("w").await;
}

/// A kind that is not installed cannot be created, and this is reported.
async fn a_kind_that_is_not_installed_fails_the_whole(site: Site) {
    let stage = Stage::new(site, "unknown", 0).await;
    let unknown =
        json!({"apiVersion": "example.com/v1", "kind": "Nothing", "metadata": {"name": "n"}, "spec": {}});
    // Includes a known kind as well: either admission refuses the unknown one, or the controller notices.
    let wrap = Wrap::new("w").of(Run::on().pod("p")).of(unknown);
    match stage.wrappers.create(&Default::default(), &wrap.object()).await {
        Ok(_) => {
            let failed = stage.phase("w", "Failed").await;
            assert_eq!(failed.reason("Unhealthy"), "CreateFailed");
            stage.released("w", "Failed").await;
        }
        Err(error) => assert!(error.to_string().contains("example.com"), "{error}"),
    }
}

cases!(
    Both, on both sites:
    a_py_torch_job_runs_with_all_its_pods,
    a_ray_cluster_and_a_ray_job_run,
    a_job_set_with_a_generated_name_runs,
    declared_pod_sets_stand_for_what_is_not_known,
    a_kind_that_is_not_installed_fails_the_whole,
);
cases!(
    Salvor, on both sites:
    a_ray_job_that_says_succeeded_is_done,
    a_job_set_that_says_completed_is_done,
    a_job_set_that_says_failed_is_reset_without_grace,
);
