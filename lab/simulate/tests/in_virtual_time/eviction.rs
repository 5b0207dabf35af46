//! A node is evicted, with all parts: simulated machines and disks, the control loops, and the real operator. The
//! machine comes back, or the operator dies, at every write there is.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Node, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use salvor_apiserver::Faults;
use salvor_cluster::{LocalCluster, zoned};
use salvor_nodes::{Fault, Storage};
use salvor_simulate::{CrashPoint, Line, Process, in_virtual_time};
use serde_json::json;
use tokio::time::sleep;

use crate::stage::configuration;

const KEY: &str = "salvor.dev/force-eviction";
const DRIVER: &str = "disk.example.com";

/// What happens at a write.
#[derive(Clone, Copy, Debug)]
enum Event {
    Nothing,
    /// The machine starts again while this write is in flight.
    Return(u32),
    /// The operator dies, and another one takes over.
    Crash(CrashPoint),
    /// Both: the machine is back when the other operator starts.
    CrashAndReturn(u32),
}

/// Plays it to its end. Returns the number of writes of the first operator.
async fn play(event: Event) -> u32 {
    let world = LocalCluster::start(salvor_simulate::cluster(1)).await.unwrap();
    world.fleet().add(zoned(4, 2)).await.unwrap();
    let client = world.api().client();
    let storage = Storage::start(client.clone(), DRIVER).await.unwrap();
    let sets: Api<StatefulSet> = Api::default_namespaced(client.clone());
    let (pods, nodes): (Api<Pod>, Api<Node>) =
        (Api::default_namespaced(client.clone()), Api::all(client.clone()));
    let attachments: Api<VolumeAttachment> = Api::all(client);
    sets.create(&PostParams::default(), &database()).await.unwrap();
    sleep(Duration::from_secs(30)).await;
    let truth = world.fleet().truth();
    let running = truth.running();
    assert_eq!(running.len(), 3, "{running:?}");
    let node = running[0].node.clone();
    world.fleet().inject(&node, Fault::Crash).await.unwrap();
    sleep(Duration::from_secs(70)).await;

    let line = match event {
        Event::Nothing => Line::default(),
        Event::Return(write) => Line::holding(write),
        Event::Crash(point) => Line::dying(point),
        Event::CrashAndReturn(write) => Line::dying(CrashPoint::After(write)),
    };
    let faults = Faults::default();
    let election =
        "controllers: [eviction]\nleaderElection: {leaseDuration: 6s, renewDeadline: 4s, retryPeriod: 1s}\n";
    let configuration = configuration(election);
    let mut process = Process::start(world.api(), "salvor-1", &configuration, line.clone(), &faults);
    sleep(Duration::from_secs(10)).await;
    let taint = json!({"key": KEY, "value": "INC-1", "effect": "NoSchedule"});
    let mut found = nodes.get(&node).await.unwrap();
    let taints = found.spec.get_or_insert_default().taints.get_or_insert_default();
    taints.push(serde_json::from_value(taint).unwrap());
    nodes.replace(&node, &PostParams::default(), &found).await.unwrap();
    match event {
        Event::Nothing => {}
        Event::Return(_) => {
            line.held().await;
            world.fleet().heal(&node).await.unwrap();
            sleep(Duration::from_secs(3)).await;
            line.let_go();
        }
        Event::Crash(_) | Event::CrashAndReturn(_) => {
            line.died().await;
            if let Event::CrashAndReturn(_) = event {
                world.fleet().heal(&node).await.unwrap();
                sleep(Duration::from_secs(3)).await;
            }
            process = Process::start(world.api(), "salvor-2", &configuration, Line::default(), &faults);
        }
    }
    sleep(Duration::from_secs(120)).await;

    let all = pods.list(&ListParams::default()).await.unwrap();
    let homes: Vec<(String, String)> = all
        .iter()
        .map(|pod| (pod.name_any(), pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default()))
        .collect();
    assert_eq!(truth.overlaps(world.fleet().clock().now()), [], "{event:?}");
    let running = truth.running();
    assert_eq!(running.len(), 3, "{event:?}: {running:?} {homes:?}");
    for run in &running {
        assert!(homes.contains(&(run.pod.clone(), run.node.clone())), "{event:?}: {run:?} {homes:?}");
    }
    // Every volume is attached where its pod runs, and nowhere else.
    let attached = attachments.list(&ListParams::default()).await.unwrap();
    let mut places: Vec<&str> = attached.iter().map(|a| a.spec.node_name.as_str()).collect();
    let mut wanted: Vec<&str> = homes.iter().map(|(_, node)| node.as_str()).collect();
    places.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(places, wanted, "{event:?}");

    // The machine is back in the end, and no mark of ours is left on its node.
    if matches!(event, Event::Nothing | Event::Crash(_)) {
        assert!(nodes.get(&node).await.unwrap().annotations().contains_key("eviction.salvor.dev/progress"));
        assert!(homes.iter().all(|(_, home)| *home != node), "{event:?}: {homes:?}");
        world.fleet().heal(&node).await.unwrap();
        sleep(Duration::from_secs(60)).await;
    }
    let back = nodes.get(&node).await.unwrap();
    let left = back.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
    assert!(left.iter().all(|taint| taint.key != KEY), "{event:?}: {left:?}");
    assert!(!back.annotations().contains_key("eviction.salvor.dev/progress"), "{event:?}");
    let conditions = back.status.as_ref().and_then(|s| s.conditions.as_ref());
    let open = conditions.into_iter().flatten().any(|c| c.type_ == "ForceEviction" && c.status == "True");
    assert!(!open, "{event:?}");
    assert_eq!(truth.overlaps(world.fleet().clock().now()), [], "{event:?}");
    process.stop().await;
    storage.stop().await;
    world.stop().await;
    line.writes()
}

fn database() -> StatefulSet {
    let tolerates = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute"});
    serde_json::from_value(json!({
        "metadata": {"name": "db"},
        "spec": {
            "replicas": 3,
            "serviceName": "db",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "db"}},
            "template": {
                "metadata": {"labels": {"app": "db"}},
                "spec": {
                    "containers": [{
                        "name": "main", "image": "work", "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    }],
                    // Only our recovery evicts them.
                    "tolerations": [
                        tolerates("node.kubernetes.io/unreachable"), tolerates("node.kubernetes.io/not-ready"),
                    ],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": DRIVER,
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }],
        },
    }))
    .unwrap()
}

fn writes() -> u32 {
    let writes = in_virtual_time(play(Event::Nothing));
    // Mark, its event, condition, the pod, its event and deletion, volumes, condition, end and its event; and at the
    // return the taint and its event.
    assert!((11..30).contains(&writes), "{writes}");
    writes
}

#[test]
fn the_machine_may_come_back_while_any_write_is_on_its_way() {
    // The last two are those of the return itself.
    for write in 1..=writes() - 2 {
        in_virtual_time(play(Event::Return(write)));
    }
}

#[test]
fn the_operator_may_die_at_any_write_and_the_machine_may_come_back_then() {
    for write in 1..=writes() - 2 {
        in_virtual_time(play(Event::Crash(CrashPoint::Before(write))));
        in_virtual_time(play(Event::Crash(CrashPoint::After(write))));
        in_virtual_time(play(Event::CrashAndReturn(write)));
    }
}
