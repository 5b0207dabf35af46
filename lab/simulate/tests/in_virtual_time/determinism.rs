//! One seed gives one history: an hour of a cluster with failing nodes, played twice.

use std::{thread, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use salvor_apiserver::Faults;
use salvor_cluster::{LocalCluster, zoned};
use salvor_nodes::Fault;
use salvor_simulate::{History, Line, Process, in_virtual_time};
use serde_json::json;
use tokio::time::sleep;

use crate::stage::{DELETE, TERMINATE, configuration};

const NODES: usize = 50;
const HOUR: u64 = 3600;
/// At this interval, in seconds, something happens to a node, and new work arrives.
const ROUND: u64 = 30;

/// Batch work that consents to its recovery, on nodes that crash, are partitioned and come back. There are two replicas
/// of the operator; the leader is killed now and then.
async fn play(seed: u64, seconds: u64) -> Vec<u8> {
    let world = LocalCluster::start(salvor_simulate::cluster(seed)).await.unwrap();
    let history = History::of(world.api());
    world.fleet().add(zoned(NODES, 3)).await.unwrap();
    let configuration = configuration("");
    let replica = |life: u64| {
        let name = format!("salvor-{life}");
        Process::start(world.api(), &name, &configuration, Line::default(), &Faults::default())
    };
    let mut replicas = [replica(1), replica(2)];
    let pods: Api<Pod> = Api::default_namespaced(world.client());
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut down: Vec<String> = Vec::new();
    for round in 1..=seconds / ROUND {
        for _ in 0..3 {
            let consent = if chance.bool() { TERMINATE } else { DELETE };
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {
                    "generateName": "work-",
                    "annotations": {consent: "true", "sim.salvor.dev/run-for": format!("{}s", chance.u32(60..1200))},
                },
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": chance.i64(1..30),
                    "containers": [{"name": "main", "image": "work", "resources": {"requests": {"cpu": "1"}}}],
                    "tolerations": [{
                        "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute",
                        "tolerationSeconds": 30,
                    }],
                },
            }))
            .unwrap();
            pods.create(&PostParams::default(), &pod).await.unwrap();
        }
        let node = format!("node-{}", chance.usize(1..=NODES));
        if down.len() > 4 {
            world.fleet().heal(&down.remove(0)).await.unwrap();
        } else if !down.contains(&node) {
            let fault = match chance.u8(0..4) {
                0 => Fault::Crash,
                1 => Fault::KubeletStop,
                2 => Fault::Flap { down: Duration::from_secs(70), up: Duration::from_secs(45) },
                _ => Fault::Partition,
            };
            world.fleet().inject(&node, fault).await.unwrap();
            down.push(node);
        }
        if round % 20 == 0 {
            replicas[chance.usize(0..2)] = replica(round);
        }
        sleep(Duration::from_secs(ROUND)).await;
    }
    history.bytes()
}

fn play_on_a_thread(seed: u64, seconds: u64) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || in_virtual_time(play(seed, seconds)))
}

fn lines(history: &[u8]) -> impl Iterator<Item = std::borrow::Cow<'_, str>> {
    history.split(|byte| *byte == b'\n').map(String::from_utf8_lossy)
}

#[test]
fn an_hour_with_failing_nodes_is_the_same_again_to_the_byte() {
    let again = play_on_a_thread(7, HOUR);
    let once = in_virtual_time(play(7, HOUR));
    let again = again.join().unwrap();
    let recovered = lines(&once).filter(|line| {
        line.contains("KueueForcefully") && line.contains(r#""Added","group":"","resource":"events""#)
    });
    let recovered = recovered.count();
    assert!(recovered > 10, "{recovered} pods were recovered in {} changes", lines(&once).count());
    for (number, (a, b)) in lines(&once).zip(lines(&again)).enumerate() {
        assert_eq!(a, b, "the histories part at change {number}");
    }
    assert!(once == again, "one history is longer");
    // Another seed gives another history.
    assert_ne!(in_virtual_time(play(8, HOUR / 12)), in_virtual_time(play(7, HOUR / 12)));
}
