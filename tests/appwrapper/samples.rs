//! The samples that users start from, read from the module that ships them.

use kube::ResourceExt;
use salvor_nodes::{Fleet, FleetOptions};
use salvor_testkit::{Site, nodes::QUICK, peers::Peer, wait};
use serde_json::{Value, json};

use crate::{
    controller::cases,
    objects::{AppWrapper, OfJobSet, OfLeaderWorkerSet, OfPyTorchJob},
    stage::Stage,
};

fn sample(name: &str) -> Value {
    let folder = Peer::Workloads.folder().unwrap_or_else(|error| panic!("{error}"));
    let text = std::fs::read_to_string(folder.join("samples").join(format!("wrapped-{name}.yaml"))).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

async fn create(stage: &Stage<'_>, sample: Value) -> String {
    let wrapper: AppWrapper = serde_json::from_value(sample).unwrap();
    stage.wrappers.create(&Default::default(), &wrapper).await.unwrap();
    wrapper.name_any()
}

/// Simulated containers follow annotations, not their commands.
fn plays(template: &mut Value, run_for: &str, code: u8) {
    template["metadata"]["annotations"] =
        json!({"sim.salvor.dev/run-for": run_for, "sim.salvor.dev/exit-code": code.to_string()});
}

fn timers(sample: &mut Value, timers: &[(&str, &str)]) {
    for (name, value) in timers {
        let key = format!("workload.codeflare.dev.appwrapper/{name}");
        sample["metadata"]["annotations"][key] = (*value).into();
    }
}

async fn pods_jobs_and_deployments_run(site: Site) {
    let stage = Stage::new(site, "samples", 2).await;
    let options = FleetOptions { timers: QUICK, ..FleetOptions::default() };
    let nodes = Fleet::start(stage.arena.admin().client("gpu-nodes"), options);
    nodes.add([stage.arena.node(10).with_capacity("nvidia.com/gpu", "4")]).await.unwrap();
    for name in ["pod", "job", "gpu-job", "deployment"] {
        let name = create(&stage, sample(name)).await;
        stage.ready(&name).await;
    }
}

async fn failing_ones_fail_after_their_retries(site: Site) {
    let stage = Stage::new(site, "failing", 1).await;
    let mut job = sample("failing-job");
    plays(&mut job["spec"]["components"][0]["template"]["spec"]["template"], "1s", 1);
    timers(&mut job, &[("failureGracePeriodDuration", "1s"), ("retryPausePeriodDuration", "1s")]);
    let mut pod = sample("failing-pod");
    plays(&mut pod["spec"]["components"][0]["template"], "1s", 1);
    timers(&mut pod, &[("failureGracePeriodDuration", "1s"), ("retryPausePeriodDuration", "1s")]);
    let (job, pod) = (create(&stage, job).await, create(&stage, pod).await);
    assert_eq!(stage.released(&job, "Failed").await.resets(), 3);
    assert_eq!(stage.released(&pod, "Failed").await.resets(), 1);
}

async fn workloads_of_operators_run(site: Site) {
    let stage = Stage::new(site, "operators", 2).await;
    let name = create(&stage, sample("pytorch-job")).await;
    let job = wait::for_object(&stage.of::<OfPyTorchJob>(), "pytorch-simple", "it is made", |_| true).await;
    let specs = &job.spec["pytorchReplicaSpecs"];
    stage.make_pod(&job, "master-0", &specs["Master"]["template"]).await;
    for number in 0..2 {
        stage.make_pod(&job, &format!("worker-{number}"), &specs["Worker"]["template"]).await;
    }
    stage.ready(&name).await;

    let name = create(&stage, sample("jobset")).await;
    let set = wait::for_object(&stage.of::<OfJobSet>(), "sample-jobset", "it is made", |_| true).await;
    for (job, count) in [(0, 4), (1, 1)] {
        let template = &set.spec["replicatedJobs"][job]["template"]["spec"]["template"];
        for number in 0..count {
            stage.make_pod(&set, &format!("set-{job}-{number}"), template).await;
        }
    }
    let ready = stage.ready(&name).await;
    assert_eq!(ready.condition("PodsReady").unwrap().message, "5 pods running; 0 pods succeeded");
}

async fn a_failing_py_torch_job_fails_after_its_retries(site: Site) {
    let stage = Stage::new(site, "torch", 1).await;
    let mut torch = sample("failing-pytorch-job");
    timers(&mut torch, &[("retryPausePeriodDuration", "0s"), ("retryLimit", "1")]);
    let name = create(&stage, torch).await;
    let failed = json!({"conditions": [{
        "type": "Failed", "status": "True", "reason": "Broken", "message": "it broke",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "lastUpdateTime": "2026-01-01T00:00:00Z",
    }]});
    let mut before = None;
    for resets in [1, 1] {
        stage.phase(&name, "Running").await;
        let jobs = stage.of::<OfPyTorchJob>();
        let is_new = |job: &crate::objects::Object<OfPyTorchJob>| job.uid() != before;
        before = wait::for_object(&jobs, "pytorch-simple", "it is made", is_new).await.uid();
        stage.set_status::<OfPyTorchJob>("pytorch-simple", failed.clone()).await;
        stage.until(&name, "that is noticed", |w| w.resets() == resets && w.phase() != "Running").await;
    }
    stage.released(&name, "Failed").await;
}

/// Upstream's own rights do not include this kind. Here the administrator's list must.
async fn a_leader_worker_set_runs(site: Site) {
    let stage = Stage::new(site, "leaders", 2).await;
    let name = create(&stage, sample("leader-worker-set")).await;
    let sets = stage.of::<OfLeaderWorkerSet>();
    let set = wait::for_object(&sets, "nginx-leaderworkerset", "it is made", |_| true).await;
    let templates = &set.spec["leaderWorkerTemplate"];
    for (role, count) in [("leaderTemplate", 2), ("workerTemplate", 3)] {
        for number in 0..count {
            let name = format!("{}-{number}", role.to_lowercase());
            stage.make_pod(&set, &name, &templates[role]).await;
        }
    }
    stage.ready(&name).await;
}

cases!(
    Both, on the real one:
    pods_jobs_and_deployments_run,
    failing_ones_fail_after_their_retries,
    workloads_of_operators_run,
    a_failing_py_torch_job_fails_after_its_retries,
    a_leader_worker_set_runs,
);
