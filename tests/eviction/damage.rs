//! Annotations on a node that are invalid, do not fit, or are refused by the server.

use k8s_openapi::api::{core::v1::Node, events::v1::Event};
use kube::{Api, api::ListParams};
use salvor_testkit::{Site, wait};
use serde_json::{Value, json};

use crate::{
    hand_made::{Stage, both, claiming, tolerating},
    stage::{
        ASKED, KEY, PROGRESS, annotate, condition, effects, is_finished, phase, progress, taint, taint_with,
        untaint,
    },
};

/// The limit of Kubernetes for all annotations of an object, in bytes.
const ROOM: usize = 256 * 1024;

fn is_held(node: &Node) -> bool {
    condition(node, "ForceEviction") == Some(("False".into(), "AnnotationUnreadable".into()))
}

async fn is_said(stage: &Stage, node: &str, reason: &str, words: &str) {
    let events: Api<Event> = Api::namespaced(stage.client.clone(), "default");
    wait::for_list(&events, &ListParams::default(), "it is said on the node", |all| {
        all.iter().any(|event| {
            let about = event.regarding.as_ref().and_then(|it| it.name.as_deref());
            let says = event.note.as_deref().is_some_and(|note| note.contains(words));
            about == Some(node) && event.reason.as_deref() == Some(reason) && says
        })
    })
    .await;
}

/// A person stopped the eviction, and later a tool truncated the annotation.
async fn a_stop_is_not_forgotten_because_nobody_can_read_it(site: Site) {
    let stage = Stage::new(site).await;
    stage.dead_node("node", &[]).await;
    stage.pod("pod", "node", json!({})).await;
    let garbage = r#"{"started":"2027-01-15T08:00:00Z","request":"example.com/lost:NoSchedule","stop"#;
    annotate(&stage.nodes(), "node", json!({ PROGRESS: garbage })).await;
    taint_with(&stage.client, "node", "example.com/lost", "", &["NoSchedule"]).await;
    let salvor = stage.salvor("eviction: {triggers: [{key: example.com/lost, proof: true}]}\n", &[]);
    wait::for_object(&stage.nodes(), "node", "it is held", is_held).await;
    is_said(
        &stage,
        "node",
        "AnnotationUnreadable",
        "kubectl annotate node node eviction.salvor.dev/progress-",
    )
    .await;
    // A person's request does not make it valid either, and the command reports why nothing happens.
    taint(&stage.client, "node", "", &["NoSchedule"]).await;
    let follows = salvor.spawn(["evict", "node", "--yes"]);
    let told = wait::patience().until(async {
        while !follows.output().contains("AnnotationUnreadable") {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
    assert!(told.await.is_some(), "{}", follows.output());
    follows.kill().await;
    stage.until_all_is_judged().await;
    let said = salvor.explain("node", "node").await;
    assert!(said.contains("IGNORE [eviction: AnnotationUnreadable]") && said.contains("EOF"), "{said}");
    assert_eq!(phase(&stage.pods().get("pod").await.unwrap()), "Running");
    let node = stage.nodes().get("node").await.unwrap();
    assert_eq!((effects(&node), annotation(&node, PROGRESS)), (vec!["NoSchedule".to_owned()], Some(garbage)));
    untaint(&stage.client, "node").await;
    // Repaired: the stop counts again. It ends when its trigger is gone.
    let mended = json!({
        "started": started(&stage).await, "request": "example.com/lost:NoSchedule", "stopped": started(&stage).await,
    });
    annotate(&stage.nodes(), "node", json!({ PROGRESS: mended.to_string() })).await;
    stage.until_all_is_judged().await;
    let said = salvor.explain("node", "node").await;
    assert!(said.contains("IGNORE [eviction: Stopped]"), "{said}");
    assert_eq!(phase(&stage.pods().get("pod").await.unwrap()), "Running");
    // Removed: the taints count again.
    annotate(&stage.nodes(), "node", json!({ PROGRESS: null })).await;
    wait::for_absence(&stage.pods(), "pod").await;
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// A time at which an eviction may have started: the creation of the node.
async fn started(stage: &Stage) -> Value {
    json!(stage.nodes().get("node").await.unwrap().metadata.creation_timestamp)
}

async fn each_annotation_that_cannot_be_believed_holds_its_node_and_no_other(site: Site) {
    let stage = Stage::new(site).await;
    let request = format!("{KEY}:NoSchedule");
    let far_ahead = json!({"started": "2999-01-01T00:00:00Z", "request": request}).to_string();
    let newer = json!({"started": "2026-01-01T00:00:00Z", "request": request, "version": 2}).to_string();
    let cases = [
        ("ahead", PROGRESS, far_ahead.as_str()),
        ("newer", PROGRESS, newer.as_str()),
        ("empty", PROGRESS, ""),
        ("asked", ASKED, "yesterday"),
        ("bad-value", ASKED, r#"{"value":"not a label","renewed":"2026-01-01T00:00:00Z"}"#),
    ];
    for (node, key, value) in cases {
        stage.dead_node(node, &[]).await;
        stage.pod(node, node, json!({})).await;
        annotate(&stage.nodes(), node, json!({ key: value })).await;
        taint(&stage.client, node, "", &["NoSchedule"]).await;
    }
    let _salvor = stage.salvor("", &[]);
    for (node, key, _) in cases {
        wait::for_object(&stage.nodes(), node, "it is held", is_held).await;
        is_said(&stage, node, "AnnotationUnreadable", key).await;
    }
    stage.until_all_is_judged().await;
    for (node, key, value) in cases {
        assert_eq!(phase(&stage.pods().get(node).await.unwrap()), "Running", "{node}");
        let held = stage.nodes().get(node).await.unwrap();
        assert_eq!(
            (effects(&held), annotation(&held, key)),
            (vec!["NoSchedule".to_owned()], Some(value)),
            "{node}"
        );
    }
    // After both are removed, the problem is no longer reported.
    untaint(&stage.client, "asked").await;
    annotate(&stage.nodes(), "asked", json!({ ASKED: null })).await;
    wait::for_object(&stage.nodes(), "asked", "nothing is reported", |n| {
        condition(n, "ForceEviction") == Some(("False".into(), "NotBegun".into()))
    })
    .await;
    // After only the annotation is removed, the taint counts.
    annotate(&stage.nodes(), "bad-value", json!({ ASKED: null })).await;
    wait::for_object(&stage.nodes(), "bad-value", "its eviction is finished", is_finished).await;
    assert_eq!(phase(&stage.pods().get("asked").await.unwrap()), "Running");
}

fn many_claims(how_many: usize) -> Value {
    let volume = |i: usize| {
        let claim = format!("{i}-{}", "x".repeat(200));
        json!({"name": format!("v{i}"), "persistentVolumeClaim": {"claimName": claim}})
    };
    json!({"spec": {"volumes": (0..how_many).map(volume).collect::<Vec<_>>()}})
}

/// A tenant binds thousands of pods with claims that do not exist to the node.
async fn a_thousand_claims_do_not_keep_a_node_from_being_emptied(site: Site) {
    let stage = Stage::new(site).await;
    let volume = stage.volume("data", "node").await;
    stage.dead_node("node", &[&volume]).await;
    for i in 0..3 {
        stage.pod(&format!("goes-{i}"), "node", many_claims(1000)).await;
    }
    stage.pod("stays", "node", both(tolerating(None), many_claims(1000))).await;
    stage.pod("db", "node", claiming("data")).await;
    let _salvor = stage.salvor("", &[]);
    taint(&stage.client, "node", "", &["NoSchedule"]).await;
    let let_go = wait::for_object(&stage.nodes(), "node", "the volume is let go", |n| {
        n.status.as_ref().and_then(|s| s.volumes_in_use.as_ref()).is_none_or(Vec::is_empty)
    })
    .await;
    let written = annotation(&let_go, PROGRESS).unwrap();
    assert!(written.len() < 1000, "{written}");
    let attachments: Api<k8s_openapi::api::storage::v1::VolumeAttachment> = Api::all(stage.client.clone());
    attachments.delete("data", &Default::default()).await.unwrap();
    wait::for_object(&stage.nodes(), "node", "its eviction is finished", is_finished).await;
    let left = stage.pods().list(&ListParams::default()).await.unwrap();
    let names: Vec<&str> = left.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
    assert_eq!(names, ["stays"]);
}

/// Other annotations leave no room for Salvor's.
async fn a_start_that_the_server_refuses_is_said_on_the_node(site: Site) {
    let stage = Stage::new(site).await;
    stage.dead_node("node", &[]).await;
    stage.pod("pod", "node", json!({})).await;
    let others = "example.com/others";
    let full = "x".repeat(ROOM - others.len() - 20);
    annotate(&stage.nodes(), "node", json!({ others: full })).await;
    taint(&stage.client, "node", "", &["NoSchedule"]).await;
    let first = stage.salvor("", &[]);
    wait::for_object(&stage.nodes(), "node", "it is said", |n| {
        condition(n, "ForceEviction") == Some(("False".into(), "WriteRefused".into()))
    })
    .await;
    is_said(&stage, "node", "WriteRefused", "metadata.annotations: Too long").await;
    let node = stage.nodes().get("node").await.unwrap();
    assert_eq!((effects(&node), progress(&node)), (vec!["NoSchedule".to_owned()], Value::Null));
    assert_eq!(phase(&stage.pods().get("pod").await.unwrap()), "Running");
    stage.until_all_is_judged().await;
    let tries = first.count(&["write rejected", "node node\""]);
    assert!(
        (1..=2).contains(&tries),
        "it is tried once a minute, not {tries} times:\n{}",
        first.program.output()
    );
    drop(first);
    annotate(&stage.nodes(), "node", json!({ others: null })).await;
    let _second = stage.salvor("", &[]);
    wait::for_object(&stage.nodes(), "node", "its eviction is finished", is_finished).await;
    assert!(stage.pods().get_opt("pod").await.unwrap().is_none());
}

salvor_testkit::on_both!(
    a_stop_is_not_forgotten_because_nobody_can_read_it,
    each_annotation_that_cannot_be_believed_holds_its_node_and_no_other,
    a_thousand_claims_do_not_keep_a_node_from_being_emptied,
    a_start_that_the_server_refuses_is_said_on_the_node,
);
