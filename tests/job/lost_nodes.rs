//! With zombie recovery: a pod that will never end is marked Failed and then replaced once.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use salvor_nodes::Fault;
use salvor_testkit::{
    Site, wait,
    workloads::{PodShape, job},
};
use serde_json::json;

use crate::stage::{QUICK, Stage, counts, index};

async fn a_job_whose_node_is_lost_comes_back_and_its_work_runs_once(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::on(plane.arena("lost").await);
    let runs_jobs = stage.salvor(&format!("controllers: [job]\n{QUICK}"), &[]);
    let rule = "controllers: [zombie]
featureGates: {FailureRecoveryPolicy: true}
failureRecoveryPolicy:
  rules:
  - terminatePod:
      podLabelSelector: {matchLabels: {app: train}}
      forcefulTerminationGracePeriod: 2s
";
    let fleet = stage.arena.fleet(2).await;
    let spec = json!({
        "completions": 2, "parallelism": 2, "completionMode": "Indexed", "podReplacementPolicy": "Failed",
        "managedBy": "salvor.dev/job-controller",
    });
    let spread = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "train"}},
    }]);
    // The pods run until SIGTERM and then succeed, so that the test does not depend on the speed of the machine.
    let shape = PodShape::new().script("sigterm-exit-code", "0").spec("topologySpreadConstraints", spread);
    stage.jobs.create(&Default::default(), &job("train", spec, &shape)).await.unwrap();
    stage.counts("train", "A2 R2 S0 F0 T0").await;
    let victim = stage.alive_at("train", 1).await;
    let node = victim.spec.as_ref().unwrap().node_name.clone().unwrap();
    fleet.inject(&node, Fault::Crash).await.unwrap();
    wait::for_object(&stage.jobs, "train", "a pod hangs", |j| counts(j).ends_with("T1")).await;
    let why = runs_jobs.explain("job", &format!("{}/train", stage.arena.namespace())).await;
    assert!(why.contains(&format!("index 1: pod {} on node {node}", victim.name_any())), "{why}");
    let _declares_dead = stage.salvor(rule, &[]);
    stage.counts("train", "A2 R2 S0 F1 T0").await;
    let of_index_1 = |pods: Vec<Pod>| pods.into_iter().filter(|p| index(p) == Some(1)).count();
    assert_eq!(of_index_1(stage.all_pods("train").await), 2, "replaced once");
    stage.pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    let done = stage.until("train", "Complete").await;
    let status = done.status.as_ref().unwrap();
    assert_eq!((status.succeeded, status.failed), (Some(2), Some(1)));
    assert_eq!(fleet.truth().overlaps(fleet.clock().now()), []);
}

salvor_testkit::on_both!(a_job_whose_node_is_lost_comes_back_and_its_work_runs_once,);
