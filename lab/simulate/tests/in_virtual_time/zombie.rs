//! One zombie, recovered by the real operator.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use salvor_apiserver::{ChangeKind, Faults};
use salvor_cluster::{LocalCluster, zoned};
use salvor_nodes::Fault;
use salvor_simulate::{Line, Process, in_virtual_time};
use serde_json::json;
use tokio::time::sleep;

use crate::stage::{Happening, Stage, TERMINATE, annotated, configuration};

#[test]
fn a_zombie_fails_a_minute_after_its_grace_and_not_a_second_earlier() {
    in_virtual_time(async {
        let stage = Stage::new(1).await;
        stage.node("node").await;
        stage.lose("node").await;
        let (line, faults) = (Line::default(), Faults::default());
        let salvor = Process::start(&stage.cluster, "salvor", &configuration(""), line, &faults);
        let marked = stage.cluster.now();
        stage.terminating("zombie", "node", annotated(TERMINATE)).await;
        sleep(Duration::from_secs(600)).await;
        assert_eq!(stage.phase("zombie").await, "Failed");
        let failed = stage
            .first(|h| h.resource == "pods" && h.object["status"]["phase"] == "Failed")
            .unwrap()
            .duration_since(marked);
        assert!(failed >= SignedDuration::from_secs(61), "{failed}");
        assert!(failed < SignedDuration::from_secs(63), "{failed}");
        assert!(salvor.metrics().contains("\nsalvor_leader 1\n"), "{}", salvor.metrics());
        salvor.stop().await;
    });
}

/// A zombie with all parts: a simulated machine crashes, node lifecycle marks it unreachable, taint eviction deletes
/// its pod.
#[test]
fn a_machine_that_crashed_takes_its_pod_along_and_nothing_ran_when_it_was_declared_dead() {
    in_virtual_time(async {
        let world = LocalCluster::start(salvor_simulate::cluster(1)).await.unwrap();
        world.fleet().add(zoned(4, 2)).await.unwrap();
        let (line, faults) = (Line::default(), Faults::default());
        let salvor = Process::start(world.api(), "salvor", &configuration(""), line, &faults);
        let stage = Stage::of(world.api());
        stage.scheduled_pod("work", annotated(TERMINATE)).await;
        sleep(Duration::from_secs(60)).await;
        let running = world.fleet().truth().running();
        let [run] = running.as_slice() else { panic!("it runs once: {running:?}") };
        world.fleet().inject(&run.node, Fault::Crash).await.unwrap();
        // 40 s to Unknown, 300 s of toleration, the pod's grace period of a second and the wait of a minute.
        sleep(Duration::from_secs(380)).await;
        assert_eq!(stage.phase("work").await, "Running", "as far as anybody knows");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(stage.phase("work").await, "Failed");
        assert_eq!(world.fleet().truth().running(), []);
        salvor.stop().await;
        world.stop().await;
    });
}

/// A story in which a partitioned machine is back, perhaps at the last moment.
struct Return {
    /// When its pod was declared dead, if it was.
    declared_dead: Option<Timestamp>,
    /// True if there was a moment at which the pod was due and kept running, on a node that was Ready and still
    /// tainted.
    spared: bool,
}

fn a_machine_is_back_at(back: Option<Timestamp>, due: Option<Timestamp>) -> Return {
    in_virtual_time(async move {
        let world = LocalCluster::start(salvor_simulate::cluster(1)).await.unwrap();
        world.fleet().add(zoned(4, 2)).await.unwrap();
        let (line, faults) = (Line::default(), Faults::default());
        let salvor = Process::start(world.api(), "salvor", &configuration(""), line, &faults);
        let stage = Stage::of(world.api());
        // It terminates slowly once it receives the signal.
        let slow = json!({
            "metadata": {"annotations": {TERMINATE: "true", "sim.salvor.dev/ignore-sigterm": "30s"}},
            "spec": {"terminationGracePeriodSeconds": 30},
        });
        stage.scheduled_pod("work", slow).await;
        sleep(Duration::from_secs(60)).await;
        let node = world.fleet().truth().running()[0].node.clone();
        world.fleet().inject(&node, Fault::Partition).await.unwrap();
        if let Some(back) = back {
            sleep(Duration::try_from(back.duration_since(world.api().now())).unwrap()).await;
            world.fleet().heal(&node).await.unwrap();
        }
        sleep(Duration::from_secs(if back.is_some() { 20 } else { 500 })).await;
        salvor.stop().await;
        world.stop().await;

        let (mut ready, mut tainted, mut renewed) = (String::new(), false, Timestamp::MIN);
        let mut running = false;
        let mut story = Return { declared_dead: None, spared: false };
        for Happening { at, change, resource, object } in stage.happenings_with_leases() {
            let conditions = |kind: &str| {
                let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
                all.into_iter().find(|condition| condition["type"] == kind)
            };
            let is = object["metadata"]["name"].as_str().unwrap_or("");
            if resource == "pods" {
                running = change != ChangeKind::Removed && object["status"]["phase"] == "Running";
            }
            match resource.as_str() {
                "nodes" if is == node => {
                    ready =
                        conditions("Ready").map_or(String::new(), |c| c["status"].as_str().unwrap().into());
                    tainted = object["spec"]["taints"].to_string().contains("node.kubernetes.io/unreachable");
                }
                "leases" if is == node => {
                    renewed = object["spec"]["renewTime"].as_str().unwrap().parse().unwrap();
                }
                "pods" if conditions("KueueFailureRecovery").is_some() && story.declared_dead.is_none() => {
                    story.declared_dead = Some(at);
                    assert_ne!(ready, "True", "declared dead at {at} on a node that is Ready");
                    let silent = at.duration_since(renewed);
                    assert!(
                        silent >= SignedDuration::from_secs(40),
                        "declared dead {silent} after its Lease was renewed"
                    );
                }
                _ => {}
            }
            let is_due = due.is_some_and(|due| at >= due);
            story.spared |= is_due && running && ready == "True" && tainted;
        }
        story
    })
}

#[test]
fn a_machine_that_is_back_at_the_last_moment_keeps_its_pod_while_its_node_is_still_tainted() {
    let due = a_machine_is_back_at(None, None).declared_dead.unwrap();
    let mut spared = 0;
    for quarters in 0..48 {
        let back = due - Duration::from_millis(250) * quarters;
        spared += u32::from(a_machine_is_back_at(Some(back), Some(due)).spared);
    }
    assert!(spared > 0, "the taint was never there when it mattered: nothing was tried");
}
