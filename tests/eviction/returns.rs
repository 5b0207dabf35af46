//! Nodes that come back during their eviction: old pods end gracefully, new pods are ignored, and a stop stays a stop.

use std::time::Duration;

use kube::api::{ListParams, Patch, PatchParams};
use salvor_apiserver::{Effect, Fault};
use salvor_testkit::{FaultyServer, Salvor, Site, wait};
use serde_json::{Value, json};

use crate::{
    hand_made::{Stage, owned_by_any, seconds},
    stage::{
        PROGRESS, annotate, condition, effects, is_finished, phase, progress, salvor, taint, taint_with,
        untaint,
    },
};

/// Waits until a decision about a pod is dropped because the live objects contradict it.
async fn is_spared(salvor: &Salvor, pod: &str) {
    let spared = wait::patience().until(async {
        while salvor.count(&["write skipped: live objects differ", &format!("pod default/{pod}\"")]) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(spared.await.is_some(), "{pod}: {}", salvor.program.output());
}

/// The watch of nodes is stuck, a person stops the eviction, and pods are created on the node.
async fn a_stop_that_no_watch_shows_is_seen_before_each_pod(site: Site) {
    let stage = Stage::new(site).await;
    let server = FaultyServer::before(&stage.plane.admin()).await;
    server.faults().add(Fault::new(Effect::Lag(Duration::from_secs(3600))).path("/api/v1/nodes?"));
    stage.returned_node("node").await;
    stage.pod("old", "node", json!({})).await;
    let salvor = salvor(server.admin(), "", &[]);
    wait::for_object(&stage.pods(), "old", "it is asked to end", |p| p.metadata.deletion_timestamp.is_some())
        .await;
    untaint(&stage.client, "node").await;
    // The last read of the node is valid for this long.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let names: Vec<String> = (0..4).map(|i| format!("new-{i}")).collect();
    let touched = |pod: &k8s_openapi::api::core::v1::Pod| {
        let is_new = pod.metadata.name.as_deref().is_some_and(|name| name.starts_with("new-"));
        is_new && (pod.metadata.deletion_timestamp.is_some() || phase(pod) == "Failed")
    };
    let all_are_spared = async {
        for name in &names {
            stage.pod(name, "node", json!({})).await;
        }
        for name in &names {
            is_spared(&salvor, name).await;
        }
    };
    wait::never(&stage.pods(), &ListParams::default(), "a new pod is touched", touched, all_are_spared).await;
}

async fn pods_that_come_after_the_eviction_began_are_left_alone_once_the_node_was_back(site: Site) {
    let stage = Stage::new(site).await;
    stage.dead_node("node", &[]).await;
    let db = stage.pod("db", "node", owned_by_any("postgresql.cnpg.io/v1", "Cluster")).await;
    stage.until_later_than(&db).await;
    let salvor = stage.salvor("eviction: {triggers: [{key: example.com/lost}]}\n", &[]);
    taint_with(&stage.client, "node", "example.com/lost", "", &["NoSchedule"]).await;
    wait::for_object(&stage.nodes(), "node", "it waits for proof", |n| {
        condition(n, "ForceEviction") == Some(("True".into(), "WaitingForPods".into()))
    })
    .await;
    stage.lease("node", 0, 3600).await;
    stage.set_status("node", json!({"conditions": [{"type": "Ready", "status": "True"}]})).await;
    wait::for_object(&stage.pods(), "db", "it is asked to end", |p| p.metadata.deletion_timestamp.is_some())
        .await;
    let back = wait::for_object(&stage.nodes(), "node", "its return is written down", |n| {
        progress(n)["returned"].is_string()
    })
    .await;
    assert_eq!(condition(&back, "ForceEviction"), Some(("False".into(), "NodeReturned".into())));
    stage.pod("new", "node", owned_by_any("example.com/v1", "Web")).await;
    stage.until_all_is_judged().await;
    let said = salvor.explain("pod", "default/new").await;
    assert!(said.contains("IGNORE [eviction: CameLate]"), "{said}");
    // The node becomes unreachable again. No request covers the pods that are there now.
    stage.set_status("node", json!({"conditions": [{"type": "Ready", "status": "Unknown"}]})).await;
    stage.lease("node", 120, 40).await;
    stage.until_all_is_judged().await;
    for name in ["new", "db"] {
        assert_eq!(phase(&stage.pods().get(name).await.unwrap()), "Running", "{name}");
    }
    assert!(stage.pods().get("new").await.unwrap().metadata.deletion_timestamp.is_none());
    let said = salvor.explain("pod", "default/db").await;
    assert!(said.contains("[eviction: NeedsProof]"), "{said}");
    // Now a request covers them.
    taint(&stage.client, "node", "INC-1", &["NoSchedule"]).await;
    wait::for_absence(&stage.pods(), "db").await;
    wait::for_absence(&stage.pods(), "new").await;
}

async fn the_brake_counts_pods_that_are_asked_to_end(site: Site) {
    let stage = Stage::new(site).await;
    stage.returned_node("node").await;
    for i in 0..4 {
        stage.pod(&format!("pod-{i}"), "node", json!({})).await;
    }
    let salvor = stage.salvor("brake: {maxPodsPerMinute: 1}\n", &[]);
    // The first is let through, and each of the others is blocked.
    let metric = "salvor_verdicts_total{recovery=\"eviction\",verdict=\"Blocked\",reason=\"NodeReturned\"} ";
    let all_are_held = wait::patience().until(async {
        loop {
            let metrics = salvor.get("/metrics").await;
            let held = metrics.lines().find_map(|line| line.strip_prefix(metric)?.parse::<u32>().ok());
            if held.is_some_and(|held| held >= 3) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(all_are_held.await.is_some(), "{}", salvor.get("/metrics").await);
    let pods = stage.pods().list(&ListParams::default()).await.unwrap();
    let asked = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count();
    assert!(asked <= 1, "{asked} of 4 in a minute");
    salvor.says("evict pod default/pod-").await;
}

/// A kubelet without a Lease, on a machine whose clock is years behind.
async fn the_taint_of_a_node_without_a_lease_goes_when_its_heartbeat_moves(site: Site) {
    let stage = Stage::new(site).await;
    stage.node("node", json!({}), "Unknown", &[]).await;
    stage.pod("pod", "node", json!({})).await;
    let first = stage.salvor("", &[]);
    stage.evict("node").await;
    drop(first);
    let beat = async |at: i64| {
        let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": seconds(at)});
        stage.set_status("node", json!({ "conditions": [ready] })).await;
    };
    let long_ago = 1_600_000_000;
    beat(long_ago).await;
    let salvor = stage.salvor("", &[]);
    stage.until_all_is_judged().await;
    let node = stage.nodes().get("node").await.unwrap();
    assert_eq!(effects(&node), ["NoSchedule", "NoExecute"], "what is written may have been written long ago");
    let said = salvor.explain("node", "node").await;
    assert!(said.contains("no Lease; heartbeat of Ready at"), "{said}");
    beat(long_ago + 10).await;
    wait::for_object(&stage.nodes(), "node", "it is back in service", |n| effects(n).is_empty()).await;
    salvor.says("record the Normal event BackInService").await;
}

/// A kubelet without a Lease that reports itself as not ready is still alive.
async fn a_node_without_a_lease_whose_heartbeat_is_kept_up_is_refused(site: Site) {
    let stage = Stage::new(site).await;
    stage.node("node", json!({}), "False", &[]).await;
    let now = k8s_openapi::jiff::Timestamp::now().as_second();
    let ready = json!({"type": "Ready", "status": "False", "lastHeartbeatTime": seconds(now + 3600)});
    stage.set_status("node", json!({ "conditions": [ready] })).await;
    stage.pod("pod", "node", json!({})).await;
    let salvor = stage.salvor("", &[]);
    taint(&stage.client, "node", "", &["NoSchedule"]).await;
    salvor.says("record the Warning event KubeletAlive").await;
    let words = salvor.command(&["evict", "node", "--yes"], 1).await;
    assert!(words.contains("its kubelet is alive"), "{words}");
    assert_eq!(phase(&stage.pods().get("pod").await.unwrap()), "Running");
    assert!(progress(&stage.nodes().get("node").await.unwrap()).is_null());
}

/// A Node is created again from a copy, with all its annotations.
async fn a_copy_of_a_node_that_was_being_emptied_is_not_believed(site: Site) {
    let stage = Stage::new(site).await;
    let lost = "2020-01-01T00:00:00Z";
    let memory: Value = json!({"started": lost, "request": "salvor.dev/force-eviction:NoSchedule"});
    stage.dead_node("node", &[]).await;
    annotate(&stage.nodes(), "node", json!({ PROGRESS: memory.to_string() })).await;
    taint(&stage.client, "node", "", &["NoSchedule", "NoExecute"]).await;
    stage.pod("pod", "node", json!({})).await;
    let salvor = stage.salvor("", &[]);
    let held = wait::for_object(&stage.nodes(), "node", "it is held", |n| {
        condition(n, "ForceEviction") == Some(("False".into(), "AnnotationUnreadable".into()))
    })
    .await;
    assert_eq!(effects(&held), ["NoSchedule", "NoExecute"]);
    salvor.says("and the Node was made at").await;
    assert_eq!(phase(&stage.pods().get("pod").await.unwrap()), "Running");
    // Without the annotation, the taint is a new request.
    annotate(&stage.nodes(), "node", json!({ PROGRESS: null })).await;
    wait::for_absence(&stage.pods(), "pod").await;
    wait::for_object(&stage.nodes(), "node", "its eviction is finished", is_finished).await;
}

/// The server detects a change of the pod between the second look and the write.
async fn a_pod_that_changes_between_the_look_and_the_eviction_is_judged_anew(site: Site) {
    let stage = Stage::new(site).await;
    let server = FaultyServer::before(&stage.plane.admin()).await;
    stage.returned_node("node").await;
    let first = stage.pod("pod", "node", json!({})).await;
    // Delays the deletion.
    let way = Effect::Delay(Duration::from_secs(1));
    server.faults().add(Fault::new(way).path("/namespaces/default/pods/pod").times(1));
    let salvor = salvor(server.admin(), "", &[]);
    let refused = "salvor_writes_total{action=\"EvictPod\",result=\"conflict\"} ";
    let pods = stage.pods();
    let changes = async {
        for i in 0.. {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"changed": i.to_string()}}}));
            pods.patch("pod", &PatchParams::default(), &patch).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = salvor.until_answer("/metrics", refused) => {}
        () = changes => unreachable!(),
    }
    let asked = wait::for_object(&stage.pods(), "pod", "it is asked to end", |p| {
        p.metadata.deletion_timestamp.is_some()
    })
    .await;
    assert_eq!(asked.metadata.uid, first.metadata.uid);
    assert_ne!(asked.metadata.deletion_grace_period_seconds, Some(0), "with its own grace");
}

salvor_testkit::on_both!(
    a_stop_that_no_watch_shows_is_seen_before_each_pod,
    pods_that_come_after_the_eviction_began_are_left_alone_once_the_node_was_back,
    the_brake_counts_pods_that_are_asked_to_end,
    the_taint_of_a_node_without_a_lease_goes_when_its_heartbeat_moves,
    a_node_without_a_lease_whose_heartbeat_is_kept_up_is_refused,
    a_copy_of_a_node_that_was_being_emptied_is_not_believed,
    a_pod_that_changes_between_the_look_and_the_eviction_is_judged_anew,
);
