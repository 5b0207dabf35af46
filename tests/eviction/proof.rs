//! Pods that must never run twice: they are evicted only if a person has confirmed that the machine is off.

use kube::api::{DeleteParams, ListParams};
use salvor_testkit::{Site, wait};
use serde_json::{Value, json};

use crate::{
    hand_made::{Stage, both, claiming, owned_by_any},
    stage::{condition, effects, phase, progress, taint, taint_with},
};

const UNPROVEN: &str = "example.com/lost";

fn ephemeral() -> Value {
    let claim =
        json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    json!({"spec": {"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": claim}}]}})
}

async fn what_must_not_run_twice_waits_for_proof_whoever_owns_it(site: Site) {
    let stage = Stage::new(site).await;
    stage.dead_node("node", &[]).await;
    stage.unbound_claim("once", &["ReadWriteOnce"]).await;
    stage.unbound_claim("pod", &["ReadWriteOncePod"]).await;
    stage.unbound_claim("mixed", &["ReadWriteMany", "ReadWriteOnce"]).await;
    stage.unbound_claim("many", &["ReadWriteMany"]).await;
    stage.unbound_claim("read", &["ReadOnlyMany"]).await;
    let web = || owned_by_any("example.com/v1", "Web");
    let stays = [
        ("kafka-0", owned_by_any("core.strimzi.io/v1beta2", "StrimziPodSet")),
        ("pg-1", owned_by_any("postgresql.cnpg.io/v1", "Cluster")),
        ("virt-launcher-vm", owned_by_any("kubevirt.io/v1", "VirtualMachineInstance")),
        ("redis-0", owned_by_any("apps.kruise.io/v1beta1", "StatefulSet")),
        ("web-once", both(web(), claiming("once"))),
        ("web-pod", both(web(), claiming("pod"))),
        ("web-mixed", both(web(), claiming("mixed"))),
        ("web-missing", both(web(), claiming("missing"))),
        ("bare-once", claiming("once")),
    ];
    let goes = [
        ("web", web()),
        ("web-many", both(web(), claiming("many"))),
        ("web-read", both(web(), claiming("read"))),
        ("web-scratch", both(web(), ephemeral())),
        ("other-cluster", owned_by_any("example.com/v1", "Cluster")),
    ];
    for (name, extra) in stays.iter().chain(&goes) {
        stage.pod(name, "node", extra.clone()).await;
    }
    let salvor = stage.salvor(&format!("eviction: {{triggers: [{{key: {UNPROVEN}}}]}}\n"), &[]);
    let is_touched = |pod: &k8s_openapi::api::core::v1::Pod| {
        let name = pod.metadata.name.as_deref();
        let stays = stays.iter().any(|(stays, _)| Some(*stays) == name);
        stays && (phase(pod) == "Failed" || pod.metadata.deletion_timestamp.is_some())
    };
    let others_go = async {
        taint_with(&stage.client, "node", UNPROVEN, "", &["NoSchedule"]).await;
        for (name, _) in &goes {
            wait::for_absence(&stage.pods(), name).await;
        }
        wait::for_object(&stage.nodes(), "node", "it waits for proof", |n| {
            condition(n, "ForceEviction") == Some(("True".into(), "WaitingForPods".into()))
        })
        .await;
        stage.until_all_is_judged().await;
    };
    let all = ListParams::default();
    wait::never(&stage.pods(), &all, "a pod goes that must not run twice", is_touched, others_go).await;
    for (pod, because) in [
        ("kafka-0", "it belongs to a StrimziPodSet.core.strimzi.io"),
        ("web-once", "claim default/once is ReadWriteOnce"),
        ("web-mixed", "claim default/mixed is ReadWriteMany, ReadWriteOnce"),
        ("web-missing", "claim default/missing does not exist"),
    ] {
        let said = salvor.explain("pod", &format!("default/{pod}")).await;
        assert!(said.contains("IGNORE [eviction: NeedsProof]") && said.contains(because), "{pod}: {said}");
    }
    // A person confirms that the machine is off.
    taint(&stage.client, "node", "", &["NoSchedule"]).await;
    for (name, _) in &stays {
        wait::for_absence(&stage.pods(), name).await;
    }
}

async fn the_kinds_that_need_proof_are_a_setting(site: Site) {
    let stage = Stage::new(site).await;
    stage.dead_node("node", &[]).await;
    stage.unbound_claim("once", &["ReadWriteOnce"]).await;
    stage.pod("shard", "node", owned_by_any("example.com/v1", "Shard")).await;
    let stateful = || owned_by_any("apps.kruise.io/v1beta1", "StatefulSet");
    stage.pod("stateful", "node", stateful()).await;
    stage.pod("claims", "node", both(stateful(), claiming("once"))).await;
    let settings = format!("atMostOneOwners: [Shard.example.com], triggers: [{{key: {UNPROVEN}}}]");
    let _salvor = stage.salvor(&format!("eviction: {{{settings}}}\n"), &[]);
    taint_with(&stage.client, "node", UNPROVEN, "", &["NoSchedule"]).await;
    wait::for_absence(&stage.pods(), "stateful").await;
    wait::for_object(&stage.nodes(), "node", "it waits for proof", |n| {
        condition(n, "ForceEviction") == Some(("True".into(), "WaitingForPods".into()))
    })
    .await;
    for name in ["shard", "claims"] {
        assert_eq!(phase(&stage.pods().get(name).await.unwrap()), "Running", "{name}");
    }
}

/// Proof is the same for all recoveries: an eviction that a trigger without proof began goes on by another's statement.
async fn the_out_of_service_taint_of_a_person_is_proof(site: Site) {
    let stage = Stage::new(site).await;
    stage.dead_node("node", &[]).await;
    stage.pod("db", "node", owned_by_any("postgresql.cnpg.io/v1", "Cluster")).await;
    let _salvor = stage.salvor(&format!("eviction: {{triggers: [{{key: {UNPROVEN}}}]}}\n"), &[]);
    taint_with(&stage.client, "node", UNPROVEN, "", &["NoSchedule"]).await;
    wait::for_object(&stage.nodes(), "node", "it waits for proof", |n| {
        condition(n, "ForceEviction") == Some(("True".into(), "WaitingForPods".into()))
    })
    .await;
    assert_eq!(phase(&stage.pods().get("db").await.unwrap()), "Running");
    taint_with(&stage.client, "node", "node.kubernetes.io/out-of-service", "nodeshutdown", &["NoExecute"])
        .await;
    wait::for_absence(&stage.pods(), "db").await;
}

/// Consent ends a pod, but it does not say that its containers have ended: they may still write to its volume.
async fn a_volume_that_was_released_without_proof_keeps_the_taint_until_the_reboot(site: Site) {
    let stage = Stage::new(site).await;
    let volume = stage.volume("data", "node").await;
    stage.dead_node("node", &[&volume]).await;
    stage.set_status("node", json!({"nodeInfo": {"bootID": "boot-1"}})).await;
    let consent =
        json!({"metadata": {"annotations": {"kueue.x-k8s.io/safe-to-forcefully-terminate": "true"}}});
    stage.pod("consents", "node", both(consent, claiming("data"))).await;
    let db = stage.pod("db", "node", owned_by_any("postgresql.cnpg.io/v1", "Cluster")).await;
    stage.until_later_than(&db).await;
    let _salvor = stage.salvor(&format!("eviction: {{triggers: [{{key: {UNPROVEN}}}]}}\n"), &[]);
    taint_with(&stage.client, "node", UNPROVEN, "", &["NoSchedule"]).await;
    wait::for_absence(&stage.pods(), "consents").await;
    let released = wait::for_object(&stage.nodes(), "node", "its volume is released", |n| {
        progress(n)["released"].is_object()
    })
    .await;
    assert!(progress(&released)["released"]["keptAll"].is_null(), "{}", progress(&released));
    stage.lease("node", 0, 3600).await;
    stage.set_status("node", json!({"conditions": [{"type": "Ready", "status": "True"}]})).await;
    wait::for_object(&stage.pods(), "db", "it is asked to end", |p| p.metadata.deletion_timestamp.is_some())
        .await;
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    stage.pods().delete("db", &at_once).await.unwrap();
    let back = wait::for_object(&stage.nodes(), "node", "it is told that it was not rebooted", |n| {
        condition(n, "ForceEviction") == Some(("False".into(), "NotRebooted".into()))
    })
    .await;
    assert!(effects(&back).contains(&"NoExecute".to_owned()), "{back:?}");
    stage.set_status("node", json!({"nodeInfo": {"bootID": "boot-2"}})).await;
    wait::for_object(&stage.nodes(), "node", "our taint is gone", |n| effects(n).is_empty()).await;
}

salvor_testkit::on_both!(
    a_volume_that_was_released_without_proof_keeps_the_taint_until_the_reboot,
    what_must_not_run_twice_waits_for_proof_whoever_owns_it,
    the_out_of_service_taint_of_a_person_is_proof,
    the_kinds_that_need_proof_are_a_setting,
);
