//! Gauges of stuck pods: how many wait, are blocked, or lack consent.

use salvor_testkit::{Site, on_both};
use serde_json::json;

use crate::stage::{AT_ONCE, Stage};

const WITHOUT: &str = "salvor_stuck_without_consent{recovery=\"zombie\"}";

async fn gauges_show_what_is_stuck_and_why(site: Site) {
    let stage = Stage::new(site).await;
    for name in ["lost-a", "lost-b"] {
        stage.lost_node(name).await;
    }
    stage.node("well").await;
    let salvor = stage.salvor(AT_ONCE).await;
    salvor.shows(&format!("{WITHOUT} 0")).await;

    // Three of them lack consent, one of which is on a healthy node.
    for (name, node) in [("a", "lost-a"), ("b", "lost-b"), ("c", "well")] {
        stage.terminating(name, node, json!({})).await;
    }
    salvor.shows(&format!("{WITHOUT} 2")).await;
    // One has to wait.
    let patient = json!({"kueue.x-k8s.io/safe-to-forcefully-terminate": "true", "salvor.dev/termination-grace-after": "1h"});
    stage.terminating("patient", "lost-a", json!({"metadata": {"annotations": patient}})).await;
    salvor.shows("salvor_waiting{recovery=\"zombie\",reason=\"GraceRunning\"} 1").await;

    // With a third lost node the brake engages and blocks what is due.
    stage.lost_node("lost-c").await;
    salvor.shows("salvor_brake_engaged 1").await;
    let labelled = json!({"metadata": {"labels": {"salvor": "fail"}}});
    stage.terminating("due", "lost-a", labelled).await;
    salvor.shows("salvor_blocked{recovery=\"zombie\",by=\"MaxUnreachablePercent\"} 1").await;

    // The owner consents, and a node comes back.
    let consent =
        json!({"metadata": {"annotations": {"kueue.x-k8s.io/safe-to-forcefully-terminate": "true"}}});
    let patch = kube::api::Patch::Merge(consent);
    stage.pods().patch("a", &kube::api::PatchParams::default(), &patch).await.unwrap();
    salvor.shows(&format!("{WITHOUT} 1")).await;
    stage.set_taints("lost-b", json!([])).await;
    salvor.shows(&format!("{WITHOUT} 0")).await;
    stage.remove_all_pods().await;
    for line in [
        "salvor_waiting{recovery=\"zombie\",reason=\"GraceRunning\"} 0",
        "salvor_blocked{recovery=\"zombie\",by=\"MaxUnreachablePercent\"} 0",
    ] {
        salvor.shows(line).await;
    }
}

on_both!(gauges_show_what_is_stuck_and_why);
