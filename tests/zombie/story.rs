//! The story of the seed: a training Job whose nodes are lost recovers. On a real control plane everything is real
//! except the machines. In the embedded cluster, Salvor's own Job recovery runs the Jobs.

use std::collections::BTreeSet;

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use salvor_nodes::{Fault, Fleet};
use salvor_testkit::{
    Salvor, Site, wait,
    workloads::{PodShape, job},
};
use serde_json::json;

use crate::stage::{SALVOR, Stage};

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

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

pub(crate) fn node_of(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default()
}

fn index(pod: &Pod) -> Option<String> {
    pod.annotations().get("batch.kubernetes.io/job-completion-index").cloned()
}

pub(crate) fn finished(job: &Job, kind: &str) -> bool {
    let conditions = job.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == kind && c.status == "True")
}

/// Runs Jobs in a cluster without a Job controller, and counts like the built-in one.
pub(crate) fn job_controller(stage: &Stage) -> Salvor {
    let settings = "controllers: [job]\njob: {unmanagedJobs: true, disruptedPods: Count}\n";
    Salvor::start(SALVOR, &stage.plane.admin(), settings, &["--leader-elect=false"], &[])
}

/// Five nodes, an Indexed Job of five workers with `podReplacementPolicy: Failed`, one worker on each node. Two nodes
/// are lost. Without zombie recovery the Job stays stuck. With it, every index runs again and the Job completes.
async fn play(site: Site, fault: Fault) -> Fleet {
    let stage = Stage::on(site.control_plane().await);
    let _job_controller = (site == Site::Embedded).then(|| job_controller(&stage));
    let arena = stage.plane.arena("story").await;
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
    // The workers run until SIGTERM and then succeed, so that the test does not depend on the speed of the machine.
    let shape = PodShape::new().script("sigterm-exit-code", "0").spec("topologySpreadConstraints", spread);
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
    let hanging = i32::try_from(victims.len()).ok();
    let stuck = wait::for_object(&jobs, "train", "the workers on lost nodes hang", |job| {
        job.status.as_ref().is_some_and(|status| status.terminating == hanging)
    })
    .await;
    assert_eq!(stuck.status.unwrap().failed.unwrap_or(0), 0, "nobody knows that they are dead");

    // No pod is replaced. A Salvor in dry run reports when it would have acted.
    let onlooker = stage.salvor(&format!("dryRun: true\n{RULE}")).await;
    for victim in &victims {
        onlooker.says(&format!("patch the status of pod {}/{}", arena.namespace(), victim.name_any())).await;
    }
    let still = jobs.get("train").await.unwrap().status.unwrap();
    assert_eq!((still.terminating, still.failed.unwrap_or(0)), (hanging, 0));
    let all = pods.list(&training()).await.unwrap();
    assert_eq!(all.items.len(), 5, "nobody was replaced");
    drop(onlooker);

    let salvor = stage.salvor(RULE).await;
    wait::for_list(&pods, &training(), "every index runs on a node that is there", |all: &[Pod]| {
        let alive = all.iter().filter(|pod| is_ready(pod) && pod.metadata.deletion_timestamp.is_none());
        let alive = alive.filter(|pod| !lost.contains(&node_of(pod)));
        alive.filter_map(index).collect::<BTreeSet<_>>().len() == 5
    })
    .await;
    for victim in &victims {
        salvor.says(&format!("patch the status of pod {}/{}", arena.namespace(), victim.name_any())).await;
    }
    assert_eq!(salvor.count(&["phase Failed"]), victims.len(), "{}", salvor.program.output());
    pods.delete_collection(&DeleteParams::default(), &training()).await.unwrap();
    let done = wait::for_object(&jobs, "train", "the Job is complete", |j| finished(j, "Complete")).await;
    let status = done.status.unwrap();
    assert_eq!((status.succeeded, status.failed), (Some(5), hanging), "every loss is counted once");
    fleet
}

async fn a_job_on_crashed_nodes_comes_back_and_nothing_ever_runs_twice(site: Site) {
    let fleet = play(site, Fault::Crash).await;
    assert_eq!(fleet.truth().overlaps(fleet.clock().now()), []);
}

async fn a_job_on_partitioned_nodes_comes_back_and_the_truth_says_what_ran_twice(site: Site) {
    let fleet = play(site, Fault::Partition).await;
    // The partitioned machines keep running. The owners consented to that, and the simulation records for how long.
    let twice = fleet.truth().ran_twice(fleet.clock().now());
    assert!(twice.is_positive(), "a partitioned machine was still at work when its index began again");
    eprintln!("with partitioned nodes, the same index ran twice for {:.1} s in all", twice.as_secs_f64());
}

salvor_testkit::on_both!(
    a_job_on_crashed_nodes_comes_back_and_nothing_ever_runs_twice,
    a_job_on_partitioned_nodes_comes_back_and_the_truth_says_what_ran_twice,
);
