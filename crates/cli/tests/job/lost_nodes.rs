//! Together with the zombie recovery: a pod that will never end is declared failed, and then replaced once.

use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::ListParams};
use salvor_nodes::Fault;
use salvor_testkit::{
    Site, wait,
    workloads::{PodShape, job},
};
use serde_json::json;

use crate::stage::{QUICK, Stage, condition, counts};

async fn a_job_whose_node_is_lost_comes_back_and_its_work_runs_once(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::on(plane.arena("lost").await);
    let rule = "featureGates: {FailureRecoveryPolicy: true}
failureRecoveryPolicy:
  rules:
  - terminatePod:
      podLabelSelector: {matchLabels: {app: train}}
      forcefulTerminationGracePeriod: 2s
";
    let _salvor = stage.salvor(&format!("{QUICK}{rule}"), &[]);
    let fleet = stage.arena.fleet(2).await;
    let spec = json!({
        "completions": 2, "parallelism": 2, "completionMode": "Indexed", "podReplacementPolicy": "Failed",
        "managedBy": "salvor.dev/job-controller",
    });
    let spread = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "train"}},
    }]);
    let shape = PodShape::new().script("run-for", "20s").spec("topologySpreadConstraints", spread);
    stage.jobs.create(&Default::default(), &job("train", spec, &shape)).await.unwrap();
    stage.counts("train", "A2 R2 S0 F0 T0").await;
    let victim = stage.alive_at("train", 1).await;
    let node = victim.spec.as_ref().unwrap().node_name.clone().unwrap();
    fleet.inject(&node, Fault::Crash).await.unwrap();
    wait::for_object(&stage.jobs, "train", "a pod hangs", |j| counts(j).ends_with("T1")).await;
    let why = stage.explain("train").await;
    assert!(why.contains(&format!("index 1: pod {} on node {node}", victim.name_any())), "{why}");
    let done =
        wait::for_object(&stage.jobs, "train", "it is complete", |j| condition(j, "Complete").is_some())
            .await;
    let status = done.status.as_ref().unwrap();
    assert_eq!((status.succeeded, status.failed), (Some(2), Some(1)));
    let of_index_1 = |pods: Vec<Pod>| pods.into_iter().filter(|p| crate::stage::index(p) == Some(1)).count();
    assert_eq!(of_index_1(stage.pods.list(&ListParams::default()).await.unwrap().items), 2, "replaced once");
    assert_eq!(fleet.truth().overlaps(fleet.clock().now()), []);
}

salvor_testkit::on_both!(a_job_whose_node_is_lost_comes_back_and_its_work_runs_once,);
