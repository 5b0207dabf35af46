//! Pods that must never run twice: they are evicted only if a person has confirmed that the machine is off.

use kube::api::ListParams;
use salvor_testkit::{Site, wait};
use serde_json::{Value, json};

use crate::{
    hand_made::{Stage, both, claiming, owned_by_any},
    stage::{condition, phase, taint, taint_with},
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

salvor_testkit::on_both!(
    what_must_not_run_twice_waits_for_proof_whoever_owns_it,
    the_kinds_that_need_proof_are_a_setting,
);
