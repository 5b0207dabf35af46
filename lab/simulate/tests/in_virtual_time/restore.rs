//! etcd is restored from a backup while the operator runs: revisions continue from an earlier one.

use std::time::Duration;

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{ConfigMap, Pod},
};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use salvor_apiserver::Faults;
use salvor_simulate::{Line, Process, in_virtual_time};
use serde_json::json;
use tokio::time::sleep;

use crate::stage::{Stage, TERMINATE, annotated, configuration};

/// Whether the new history soon reaches higher revisions than the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Behind,
    /// It does, before the operator sends any request.
    Overtakes,
}

/// Writes of another client.
async fn write(stage: &Stage, times: u64) {
    let maps: Api<ConfigMap> = Api::default_namespaced(stage.client.clone());
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"generateName": "other-"}})).unwrap();
    for _ in 0..times {
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
}

/// Continues after a restore at this pace, from a revision that had been reached before it.
async fn go_on(stage: &Stage, reached: u64, pace: Pace) {
    let behind = reached.checked_sub(stage.cluster.revision()).unwrap();
    assert!(behind > 50);
    if pace == Pace::Overtakes {
        write(stage, behind + 50).await;
    }
}

#[test]
fn what_was_due_in_a_history_that_is_gone_is_not_done_and_what_is_due_in_the_new_one_is() {
    for pace in [Pace::Behind, Pace::Overtakes] {
        for election in ["", "leaderElection: {enabled: false}\n"] {
            in_virtual_time(async {
                let stage = Stage::new(1).await;
                stage.node("node").await;
                stage.pod("work", "node", annotated(TERMINATE)).await;
                let (line, faults) = (Line::default(), Faults::default());
                let salvor =
                    Process::start(&stage.cluster, "salvor", &configuration(election), line, &faults);
                sleep(Duration::from_secs(10)).await;
                let backup = stage.cluster.back_up();
                stage.lose("node").await;
                stage.delete("work").await;
                write(&stage, 100).await;
                sleep(Duration::from_secs(40)).await;
                let reached = stage.cluster.revision();
                stage.cluster.restore(&backup);
                go_on(&stage, reached, pace).await;
                sleep(Duration::from_secs(180)).await;
                assert_eq!(stage.phase("work").await, "Running", "{pace:?} {election}");
                stage.lose("node").await;
                stage.delete("work").await;
                sleep(Duration::from_secs(70)).await;
                assert_eq!(stage.phase("work").await, "Failed", "{pace:?} {election}");
                salvor.stop().await;
            });
        }
    }
}

/// Without leader election a history that has overtaken the old one cannot be distinguished from its continuation.
#[test]
fn a_job_that_is_made_after_the_restore_is_seen_in_seconds() {
    let elects = "controllers: [job]\n";
    let alone = "controllers: [job]\nleaderElection: {enabled: false}\n";
    for (pace, lines) in [(Pace::Behind, elects), (Pace::Overtakes, elects), (Pace::Behind, alone)] {
        in_virtual_time(async {
            let stage = Stage::new(1).await;
            stage.node("node").await;
            let (line, faults) = (Line::default(), Faults::default());
            let salvor = Process::start(&stage.cluster, "salvor", &configuration(lines), line, &faults);
            let jobs: Api<Job> = Api::default_namespaced(stage.client.clone());
            let make = async |name: &str| {
                let job = json!({
                    "metadata": {"name": name},
                    "spec": {
                        "managedBy": "salvor.dev/job-controller", "parallelism": 2, "completions": 2,
                        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work"}]}},
                    },
                });
                jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
            };
            let pods_of = async |job: &str| {
                let pods: Api<Pod> = Api::default_namespaced(stage.client.clone());
                pods.list(&ListParams::default().labels(&format!("job-name={job}")))
                    .await
                    .unwrap()
                    .items
                    .len()
            };
            sleep(Duration::from_secs(10)).await;
            let backup = stage.cluster.back_up();
            make("lost").await;
            write(&stage, 100).await;
            sleep(Duration::from_secs(10)).await;
            assert_eq!(pods_of("lost").await, 2);
            let reached = stage.cluster.revision();
            stage.cluster.restore(&backup);
            make("new").await;
            go_on(&stage, reached, pace).await;
            sleep(Duration::from_secs(10)).await;
            assert_eq!((pods_of("lost").await, pods_of("new").await), (0, 2), "{pace:?} {lines}");
            salvor.stop().await;
        });
    }
}
