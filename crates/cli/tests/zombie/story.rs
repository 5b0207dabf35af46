//! The story of the seed, all parts real but the machines: a training Job whose nodes are lost comes back. On a real
//! control plane only: the embedded cluster has no Job controller of its own.

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use salvor_nodes::{Fault, Fleet};
use salvor_testkit::{
    ControlPlane, Part, wait,
    workloads::{PodShape, job},
};
use serde_json::json;

use crate::stage::Stage;

const RULE: &str = "
failureRecoveryPolicy:
  rules:
  - terminatePod:
      podLabelSelector: {matchLabels: {app: train}}
      forcefulTerminationGracePeriod: 2s
";

fn training() -> ListParams {
    ListParams::default().labels("app=train")
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn node_of(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default()
}

fn finished(job: &Job, kind: &str) -> bool {
    let conditions = job.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == kind && c.status == "True")
}

/// Five nodes, an Indexed Job of five workers with `podReplacementPolicy: Failed`, one worker on each node; two nodes
/// are lost. Without Salvor the Job stays stuck. With it, every index runs again and the Job completes.
async fn play(fault: Fault) -> Fleet {
    let plane =
        ControlPlane::builder().with(Part::ControllerManager).with(Part::Scheduler).start().await.unwrap();
    let stage = Stage::on(plane);
    let arena = stage.plane.real().arena("story").await;
    let fleet = arena.fleet(5).await;
    let jobs: Api<Job> = Api::default_namespaced(arena.client());
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let spec = json!({
        "completions": 5, "parallelism": 5, "completionMode": "Indexed", "podReplacementPolicy": "Failed",
        "backoffLimit": 20,
    });
    let spread = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "train"}},
    }]);
    let shape = PodShape::new().script("run-for", "30s").spec("topologySpreadConstraints", spread);
    jobs.create(&PostParams::default(), &job("train", spec, &shape)).await.unwrap();
    let running = wait::for_list(&pods, &training(), "five workers run", |all: &[Pod]| {
        all.len() == 5 && all.iter().all(is_ready)
    })
    .await;
    let lost: Vec<String> = running.iter().take(2).map(node_of).collect();
    let victims: Vec<&Pod> = running.iter().filter(|p| lost.contains(&node_of(p))).collect();
    for node in &lost {
        fleet.inject(node, fault).await.unwrap();
    }
    wait::for_list(&pods, &training(), "the workers on lost nodes are marked", |all: &[Pod]| {
        victims
            .iter()
            .all(|v| all.iter().any(|p| p.uid() == v.uid() && p.metadata.deletion_timestamp.is_some()))
    })
    .await;

    // Without Salvor: nobody is replaced. One that only looks says when it would have acted.
    let onlooker = stage.salvor(&format!("dryRun: true\n{RULE}")).await;
    for victim in &victims {
        onlooker.says(&format!("patch the status of pod {}/{}", arena.namespace(), victim.name_any())).await;
    }
    let stuck = jobs.get("train").await.unwrap();
    assert!(!finished(&stuck, "Complete"));
    assert_eq!(stuck.status.as_ref().unwrap().terminating, i32::try_from(victims.len()).ok(), "{stuck:?}");
    let all = pods.list(&training()).await.unwrap();
    assert_eq!(all.items.len(), 5, "nobody was replaced");
    drop(onlooker);

    let salvor = stage.salvor(RULE).await;
    wait::for_object(&jobs, "train", "the Job is complete", |j| finished(j, "Complete")).await;
    assert_eq!(salvor.count("phase Failed"), victims.len(), "{}", salvor.program.output());
    fleet
}

#[tokio::test]
async fn a_job_on_crashed_nodes_comes_back_and_nothing_ever_runs_twice() {
    let fleet = play(Fault::Crash).await;
    assert_eq!(fleet.truth().overlaps(fleet.clock().now()), []);
}

#[tokio::test]
async fn a_job_on_partitioned_nodes_comes_back_and_the_truth_says_what_ran_twice() {
    let fleet = play(Fault::Partition).await;
    // The machines run on where nobody can see them: that is what consent means, and the truth tells for how long.
    let twice = fleet.truth().ran_twice(fleet.clock().now());
    assert!(twice.is_positive(), "a partitioned machine was still at work when its index began again");
    eprintln!("with partitioned nodes, the same index ran twice for {:.1} s in all", twice.as_secs_f64());
}
