//! A Job loses a node under it, and the operator dies at any of its writes: the counts in the end are the same, and no
//! pod is created twice.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use kube::{Api, api::PostParams};
use salvor_apiserver::Faults;
use salvor_cluster::{LocalCluster, zoned};
use salvor_nodes::Fault;
use salvor_simulate::{CrashPoint, Line, Process, in_virtual_time};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use crate::stage::{Stage, TERMINATE, configuration};

#[derive(Debug, PartialEq)]
struct Ending {
    /// The Job's status, without times.
    status: Value,
    pods_made: usize,
    /// How often the operator marked a pod Failed.
    recovered: usize,
    overlaps: usize,
}

fn job() -> Job {
    serde_json::from_value(json!({
        "metadata": {"name": "train"},
        "spec": {
            "managedBy": "salvor.dev/job-controller",
            "completions": 3, "parallelism": 3, "completionMode": "Indexed", "podReplacementPolicy": "Failed",
            "template": {
                "metadata": {"annotations": {TERMINATE: "true", "sim.salvor.dev/run-for": "200s"}},
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "main", "image": "work", "resources": {"requests": {"cpu": "6"}}}],
                    "tolerations": [{
                        "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute",
                        "tolerationSeconds": 1,
                    }],
                },
            },
        },
    }))
    .unwrap()
}

/// Three workers on four nodes; the node of one crashes. Also returns the number of writes of the first process, and
/// the number of processes.
async fn play(crash: Option<CrashPoint>) -> (Ending, u32, u32) {
    let world = LocalCluster::start(salvor_simulate::cluster(3)).await.unwrap();
    world.fleet().add(zoned(4, 2)).await.unwrap();
    let stage = Stage::of(world.api());
    stage.home().await;
    let configuration =
        configuration("leaderElection: {leaseDuration: 30s, renewDeadline: 20s, retryPeriod: 10s}");
    let start = |life: u32, line: Line| {
        Process::start(world.api(), &format!("salvor-{life}"), &configuration, line, &Faults::default())
    };
    let mut process = start(1, crash.map(Line::dying).unwrap_or_default());
    let mut lives = 1;
    let mut live = async |seconds: u64| {
        let end = Instant::now() + Duration::from_secs(seconds);
        loop {
            let line = process.line().clone();
            tokio::select! {
                biased;
                () = line.died() => {
                    sleep(Duration::from_secs(1)).await;
                    lives += 1;
                    process = start(lives, Line::default());
                }
                () = sleep_until(end) => return process.line().writes(),
            }
        }
    };
    live(5).await;
    let jobs: Api<Job> = Api::default_namespaced(world.client());
    jobs.create(&PostParams::default(), &job()).await.unwrap();
    live(90).await;
    let running = world.fleet().truth().running();
    assert_eq!(running.len(), 3, "after {crash:?}: {running:?}");
    world.fleet().inject(&running[0].node, Fault::Crash).await.unwrap();
    let writes = live(500).await;
    let status = jobs.get("train").await.unwrap().status.unwrap();
    let conditions: Vec<_> = status.conditions.iter().flatten().map(|c| (&c.type_, &c.status)).collect();
    let changes = stage.changes();
    let of = |what: &str| changes.iter().filter(|(name, _)| name.starts_with(what)).map(|(_, n)| n).sum();
    let ending = Ending {
        status: json!({
            "active": status.active, "succeeded": status.succeeded, "failed": status.failed,
            "indexes": status.completed_indexes, "conditions": conditions,
            "uncounted": status.uncounted_terminated_pods.is_some_and(|u| u.failed.is_some() || u.succeeded.is_some()),
        }),
        pods_made: of("Added pods"),
        recovered: of("Added events train"),
        overlaps: world.fleet().truth().overlaps(world.api().now()).len(),
    };
    (ending, writes, lives)
}

#[test]
fn a_crash_at_any_write_changes_no_count() {
    let (undisturbed, writes, _) = in_virtual_time(play(None));
    assert_eq!(undisturbed.pods_made, 4, "{undisturbed:#?}");
    assert_eq!(undisturbed.overlaps, 0, "{undisturbed:#?}");
    assert_eq!(undisturbed.status["succeeded"], 3, "{undisturbed:#?}");
    assert!(writes > 10, "{writes}");
    let mut wrong = Vec::new();
    for crash in (1..=writes).flat_map(|n| [CrashPoint::Before(n), CrashPoint::After(n)]) {
        let (ending, _, lives) = in_virtual_time(play(Some(crash)));
        if ending != undisturbed || lives != 2 {
            wrong.push(format!("{crash:?}, {lives} lives: {ending:?}"));
        }
    }
    assert!(wrong.is_empty(), "not as {undisturbed:?}:\n{}", wrong.join("\n"));
}
