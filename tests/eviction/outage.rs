//! Many nodes are lost at once: parked nodes do not count, and a person with better knowledge can override the brake.

use k8s_openapi::jiff::Timestamp;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use salvor_testkit::{Site, wait};
use serde_json::{Value, json};

use crate::{
    hand_made::Stage,
    stage::{effects, events_about, is_finished, phase, progress, taint},
};

const WORD: &str = "salvor.dev/despite-zone-outage";

/// Nodes of one zone that the control plane has lost.
async fn lost_zone(stage: &Stage, names: &[&str], metadata: Value, since: Option<Timestamp>) {
    for name in names {
        let mut metadata = metadata.clone();
        metadata["labels"]["topology.kubernetes.io/zone"] = "rack".into();
        stage.node(name, metadata, "Unknown", &[]).await;
        if let Some(since) = since {
            let since = since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let ready = json!({"type": "Ready", "status": "Unknown", "lastTransitionTime": since});
            stage.set_status(name, json!({ "conditions": [ready] })).await;
        }
        stage.lease(name, 120, 40).await;
        let lost = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]);
        let lost = Patch::Merge(json!({"spec": {"taints": lost}}));
        stage.nodes().patch(name, &PatchParams::default(), &lost).await.unwrap();
    }
}

/// A rack burns: its zone and more than half of the cluster are lost.
async fn a_person_who_knows_better_evicts_a_node_of_a_lost_zone(site: Site) {
    let stage = Stage::new(site).await;
    lost_zone(&stage, &["rack-0", "rack-1", "rack-2", "rack-3"], json!({}), None).await;
    stage.node("fine", json!({}), "True", &[]).await;
    stage.pod("on-0", "rack-0", json!({})).await;
    stage.pod("on-1", "rack-1", json!({})).await;
    let salvor = stage.salvor("", &[]);
    taint(&stage.client, "rack-1", "", &["NoSchedule"]).await;
    salvor.says("record the Warning event ZoneDown").await;

    let words = salvor.command(&["evict", "rack-0", "--despite-zone-outage", "--yes"], 0).await;
    assert!(words.contains("is evicted and its volumes are detached"), "{words}");
    let node = stage.nodes().get("rack-0").await.unwrap();
    let word: Value = serde_json::from_str(&node.annotations()[WORD]).unwrap();
    assert!(word["by"].is_string() && word["at"].is_string(), "{word}");
    assert!(events_about(&stage.client, "rack-0").await.contains(&"DespiteZoneOutage".to_owned()));
    // The permission applied only to that node.
    let said = salvor.explain("node", "rack-1").await;
    assert!(said.contains("BLOCKED [eviction: NodeDown]"), "{said}");
    assert_eq!(phase(&stage.pods().get("on-1").await.unwrap()), "Running");

    // The eviction is already requested. Now it gets the permission.
    let words = salvor.command(&["evict", "rack-1", "--despite-zone-outage", "--yes"], 0).await;
    assert!(words.contains("is evicted"), "{words}");
    assert_eq!(effects(&stage.nodes().get("rack-1").await.unwrap()).len(), 2);

    // When the node is back, the permission is removed with the taint.
    stage.lease("rack-0", 0, 3600).await;
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    stage.set_status("rack-0", ready).await;
    let untainted = |node: &k8s_openapi::api::core::v1::Node| effects(node).is_empty();
    let back = wait::for_object(&stage.nodes(), "rack-0", "its taint is taken off", untainted).await;
    assert_eq!(back.annotations().get(WORD), None);
}

/// The permission concerns only the outage: a live node is refused, and an old permission does not count.
async fn a_persons_word_is_no_more_than_that(site: Site) {
    let stage = Stage::new(site).await;
    lost_zone(&stage, &["rack-0", "rack-1", "rack-2", "rack-3"], json!({}), None).await;
    stage.lease("rack-0", 0, 3600).await;
    let salvor = stage.salvor("", &[]);
    let words = salvor.command(&["evict", "rack-0", "--despite-zone-outage", "--yes"], 1).await;
    assert!(words.contains("its kubelet is alive"), "{words}");
    let node = stage.nodes().get("rack-0").await.unwrap();
    assert_eq!((node.annotations().get(WORD), effects(&node).len()), (None, 0));
    for (node, word) in [("rack-1", "yes"), ("rack-2", r#"{"by":"jane","at":"2020-01-01T00:00:00Z"}"#)] {
        let word = Patch::Merge(json!({"metadata": {"annotations": {WORD: word}}}));
        stage.nodes().patch(node, &PatchParams::default(), &word).await.unwrap();
        taint(&stage.client, node, "", &["NoSchedule"]).await;
        salvor.says(&format!("record the Warning event ZoneDown on node {node}")).await;
        assert!(progress(&stage.nodes().get(node).await.unwrap()).is_null());
    }
}

/// Six of eight machines were switched off a week ago, or are labelled as not counting.
async fn parked_machines_do_not_count(site: Site) {
    let week = Timestamp::from_second(Timestamp::now().as_second() - 7 * 86_400).unwrap();
    let excluded = json!({"labels": {"node.kubernetes.io/exclude-disruption": ""}});
    for (metadata, since) in [(json!({}), Some(week)), (excluded, None)] {
        let stage = Stage::new(site).await;
        lost_zone(&stage, &["a", "b", "c", "d", "e", "f"], metadata, since).await;
        lost_zone(&stage, &["dead"], json!({}), None).await;
        stage.node("fine", json!({"labels": {"topology.kubernetes.io/zone": "rack"}}), "True", &[]).await;
        stage.pod("pod", "dead", json!({})).await;
        let _salvor = stage.salvor("", &[]);
        taint(&stage.client, "dead", "", &["NoSchedule"]).await;
        wait::for_object(&stage.nodes(), "dead", "its eviction is finished", is_finished).await;
        wait::for_absence(&stage.pods(), "pod").await;
    }
}

salvor_testkit::on_both!(
    a_person_who_knows_better_evicts_a_node_of_a_lost_zone,
    a_persons_word_is_no_more_than_that,
    parked_machines_do_not_count,
);
