//! Settings that only Salvor has, and the output of `salvor explain`.

use salvor_nodes::Fault;
use salvor_testkit::{Site, wait};
use serde_json::json;

use crate::{
    controller::{Settings, cases},
    objects::AppWrapper,
    stage::{Run, Stage, Wrap, phases, service},
};

/// Without webhooks the user is unknown, so only the kinds that the administrator lists for this case are created.
async fn without_webhooks_the_controller_refuses(site: Site) {
    let plane = site.control_plane().await;
    let settings = Settings::default().without_webhooks().with("wrappedKindsWithoutWebhooks", json!(["Pod"]));
    let stage = Stage::alone(site, &plane, 1, &settings).await;
    stage.create(Wrap::new("allowed").of(Run::on().pod("p"))).await;
    stage.ready("allowed").await;

    let nine = (0..9).fold(Wrap::new("nine"), |wrap, number| wrap.of(Run::on().pod(&format!("n{number}"))));
    for (name, wrap, word) in [
        ("kind", Wrap::new("kind").of(Run::on().pod("k")).of(Run::on().deployment("d", 1)), "Deployment"),
        ("service", Wrap::new("service").of(service("s")), "Service"),
        ("nine", nine, ""),
        (
            "nested",
            Wrap::new("nested").of(json!(Wrap::new("inner").of(Run::on().pod("i")).object())),
            "Nested",
        ),
    ] {
        stage.create(wrap).await;
        let says_so = |wrapper: &AppWrapper| {
            let conditions = wrapper.status["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|condition| {
                let message = condition["message"].as_str().unwrap_or_default();
                !message.is_empty() && message != "Suspend is false" && message.contains(word)
            })
        };
        stage.until(name, "a condition says that it is refused", says_so).await;
        assert!(stage.pod_names(name).await.is_empty(), "{name}");
        assert_ne!(stage.get(name).await.phase(), "Running", "{name}");
        stage.delete(name).await;
        stage.gone(name).await;
    }
}

/// Pods on an unreachable node do not wait for their eviction.
async fn pods_on_an_unreachable_node_are_a_cause(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 2, &Settings::default()).await;
    // It tolerates every taint forever, so nothing evicts it.
    let stays = Run::on().spec("tolerations", json!([{"operator": "Exists"}]));
    let wrap = Wrap::new("w")
        .of(stays.pod("p"))
        .set("failureGracePeriodDuration", "0s")
        .set("retryPausePeriodDuration", "0s")
        .set("forcefulDeletionGracePeriodDuration", "1s");
    stage.create(wrap).await;
    stage.ready("w").await;
    let recorder = stage.record().await;
    let node = stage.pods.get("p").await.unwrap().spec.unwrap().node_name.unwrap();
    stage.fleet.inject(&node, Fault::Partition).await.unwrap();
    stage.until("w", "it is reset", |w| w.phase() == "Resetting").await;
    assert!(!phases(&recorder, "w").await.contains(&"Failed".to_owned()));
}

/// A pod on a lost node is deleted before the grace period ends. The history still mentions the node.
async fn the_history_tells_of_a_lost_node_although_its_pod_is_gone(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 2, &Settings::default()).await;
    let stays = Run::on().spec("tolerations", json!([{"operator": "Exists"}]));
    let wrap = Wrap::new("w")
        .of(stays.pod("p"))
        .set("failureGracePeriodDuration", "1h")
        .set("retryPausePeriodDuration", "0s")
        .set("forcefulDeletionGracePeriodDuration", "1s");
    stage.create(wrap).await;
    stage.ready("w").await;
    let node = stage.pods.get("p").await.unwrap().spec.unwrap().node_name.unwrap();
    stage.fleet.inject(&node, Fault::Partition).await.unwrap();
    stage.until("w", "its node is the cause", |w| w.reason("Unhealthy") == "NodeLost").await;
    // As Kubernetes does after the pod's toleration seconds.
    stage.pods.delete("p", &Default::default()).await.unwrap();
    let reset = stage.until("w", "it is reset", |w| !w.status["resets"].is_null()).await;
    let record = &reset.status["resets"][0];
    assert_eq!((&record["cause"], &record["phase"]), (&json!("NodeLost"), &json!("Resetting")), "{record}");
    assert_eq!(record["nodes"], json!([node]), "{record}");
    assert_ne!(record["counted"], true, "{record}");
}

/// A lost node alone is no cause here. The reset that its evicted pod causes still mentions the node and uses no retry.
async fn a_lost_node_is_told_and_costs_no_retry_also_where_it_is_no_cause(site: Site) {
    let plane = site.control_plane().await;
    let settings = Settings::default().with("resetWhenNodeUnreachable", false.into());
    let stage = Stage::alone(site, &plane, 2, &settings).await;
    // A StatefulSet does not replace a pod before it is gone.
    let wrap = Wrap::new("w")
        .of(Run::on().stateful_set("s", 1))
        .set("admissionGracePeriodDuration", "1s")
        .set("failureGracePeriodDuration", "10s")
        .set("retryLimit", "1");
    stage.create(wrap).await;
    stage.ready("w").await;
    let node = stage.pods.get("s-0").await.unwrap().spec.unwrap().node_name.unwrap();
    stage.fleet.inject(&node, Fault::Partition).await.unwrap();
    let reset = stage.until("w", "it is reset", |w| w.phase() == "Resetting").await;
    let record = &reset.status["resets"][0];
    assert_eq!((&record["cause"], &record["nodes"]), (&json!("NodeLost"), &json!([node])), "{record}");
    assert_eq!(
        (&record["pods"][0]["name"], &record["pods"][0]["node"]),
        (&json!("s-0"), &json!(node)),
        "{record}"
    );
    assert_eq!((reset.resets(), &record["counted"]), (0, &json!(false)), "{record}");
}

/// Opt-in: a person confirms that a machine is off, and its pods are a cause immediately.
async fn pods_on_a_force_evicted_node_are_a_cause_if_that_is_wanted(site: Site) {
    let plane = site.control_plane().await;
    let settings = Settings::default().with("resetWhenNodeForceEvicted", true.into());
    let stage = Stage::alone(site, &plane, 2, &settings).await;
    let stays = Run::on().spec("tolerations", json!([{"operator": "Exists"}]));
    let wrap = Wrap::new("w")
        .of(stays.pod("p"))
        .set("failureGracePeriodDuration", "1h")
        .set("retryPausePeriodDuration", "1h")
        .set("retryLimit", "0")
        .set("forcefulDeletionGracePeriodDuration", "1s");
    stage.create(wrap).await;
    stage.ready("w").await;
    let node = stage.pods.get("p").await.unwrap().spec.unwrap().node_name.unwrap();
    stage.taint_node(&node, "node.kubernetes.io/out-of-service", "nodeshutdown", "NoExecute").await;
    let reset = stage.until("w", "it is reset", |w| w.phase() == "Resetting").await;
    assert_eq!(reset.status["resets"][0]["cause"], "NodeLost", "{}", reset.status);
    assert_eq!(reset.status["resets"][0]["nodes"], json!([node]));
}

/// The old way of counting, for those who rely on it.
async fn resets_can_be_counted_as_upstream_counts(site: Site) {
    let plane = site.control_plane().await;
    let settings = Settings::default().with("countResetsAsUpstream", true.into());
    let stage = Stage::alone(site, &plane, 1, &settings).await;
    let wrap = Wrap::new("w")
        .of(Run::on().requests("cpu", "100").pod("huge"))
        .set("admissionGracePeriodDuration", "1s")
        .set("warmupGracePeriodDuration", "1s")
        .set("failureGracePeriodDuration", "0s")
        .set("retryPausePeriodDuration", "0s")
        .set("retryLimit", "1");
    stage.create(wrap).await;
    assert_eq!(stage.released("w", "Failed").await.resets(), 1);
}

/// `salvor explain` shows what it waits for.
async fn explain_says_what_it_waits_for(site: Site) {
    let stage = Stage::new(site, "explain", 1).await;
    let name = |of: &str| format!("{}/{of}", stage.arena.namespace());
    let wrap = Wrap::new("grace")
        .of(Run::to_end("1s", 1).pod("culprit"))
        .set("failureGracePeriodDuration", "1h")
        .set("retryLimit", "2");
    stage.create(wrap).await;
    stage.until("grace", "it is unhealthy", |w| w.is("Unhealthy")).await;
    let said = stage.controller().salvor().explain("appwrapper", &name("grace")).await;
    for word in ["Running", "culprit", "2"] {
        assert!(said.contains(word), "{word} is not in:\n{said}");
    }

    stage.create(Wrap::new("held").of(Run::on().blocked().pod("held"))).await;
    stage.ready("held").await;
    stage.suspend("held", true).await;
    wait::for_object(&stage.pods, "held", "it is being deleted", |pod| {
        pod.metadata.deletion_timestamp.is_some()
    })
    .await;
    stage.phase("held", "Suspending").await;
    let said = stage.controller().salvor().explain("appwrapper", &name("held")).await;
    for word in ["Suspending", "held", "fake.example.com/block-deletion"] {
        assert!(said.contains(word), "{word} is not in:\n{said}");
    }
    stage.unblock("held").await;
    stage.released("held", "Suspended").await;
}

cases!(
    Salvor, on both sites:
    without_webhooks_the_controller_refuses,
    pods_on_an_unreachable_node_are_a_cause,
    a_lost_node_is_told_and_costs_no_retry_also_where_it_is_no_cause,
    the_history_tells_of_a_lost_node_although_its_pod_is_gone,
    pods_on_a_force_evicted_node_are_a_cause_if_that_is_wanted,
    resets_can_be_counted_as_upstream_counts,
    explain_says_what_it_waits_for,
);
