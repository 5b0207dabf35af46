//! Events as people see them: with their source and time.

use kube::api::{ListParams, Patch, PatchParams};
use salvor_testkit::{Site, wait};
use serde_json::{Value, json};

use crate::stage::{AT_ONCE, Stage};

async fn kubectl_shows_who_said_it_and_when(site: Site) {
    let stage = Stage::new(site).await;
    for i in 0..3 {
        stage.lost_node(&format!("lost-{i}")).await;
    }
    for i in 0..3 {
        stage.node(&format!("fine-{i}")).await;
    }
    let rule = "
  - taintNodeOutOfService: {nodeSelector: {matchLabels: {pool: batch}}, unreachableNodeTimeout: 1s}
";
    let salvor = stage.salvor_as(&stage.plane.admin(), &format!("{AT_ONCE}{rule}"), &[], &[]).await;
    stage.terminating("zombie", "lost-0", json!({"metadata": {"labels": {"salvor": "fail"}}})).await;
    stage.until_failed("zombie").await;
    let label = Patch::Merge(json!({"metadata": {"labels": {"pool": "batch"}}}));
    stage.nodes().patch("lost-1", &PatchParams::default(), &label).await.unwrap();
    salvor.says("record the Warning event NodeOutOfService").await;
    stage.lost_node("lost-3").await;
    salvor.says("nodes are unreachable at once").await;
    let events: kube::Api<k8s_openapi::api::events::v1::Event> =
        kube::Api::namespaced(stage.client.clone(), "salvor-system");
    wait::for_list(&events, &ListParams::default(), "the brake's event", |all| !all.is_empty()).await;

    let kubectl = stage.plane.kubectl();
    for (namespace, reason) in [
        ("default", "KueueForcefullyTerminated"),
        ("default", "NodeOutOfService"),
        ("salvor-system", "BrakeEngaged"),
    ] {
        let kubectl = kubectl.clone().in_namespace(namespace);
        let selection = format!("--field-selector=reason={reason}");
        let list = kubectl.run(&["get", "events", &selection, "-o", "json"]).await.unwrap();
        let list: Value = serde_json::from_str(&list).unwrap();
        let event = &list["items"][0];
        assert_eq!(event["source"]["component"], "pod-termination-controller", "{event}");
        assert!(event["firstTimestamp"].is_string() && event["lastTimestamp"].is_string(), "{event}");
        assert_eq!(event["count"], 1, "{event}");
        let table = kubectl.run(&["get", "events", &selection]).await.unwrap();
        let line = table.lines().nth(1).unwrap();
        assert!(line.contains(reason) && !line.contains("<unknown>"), "since when? {table}");
    }
    for (object, reason) in [("pod/zombie", "KueueForcefullyTerminated"), ("node/lost-1", "NodeOutOfService")]
    {
        let described = kubectl.run(&["describe", object]).await.unwrap();
        let told = described
            .lines()
            .find(|line| line.contains(reason) && line.contains("pod-termination-controller"));
        assert!(told.is_some_and(|line| !line.contains("<unknown>")), "{described}");
    }
}

salvor_testkit::on_both!(kubectl_shows_who_said_it_and_when);
