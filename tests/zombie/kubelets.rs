//! A live kubelet ends its pods itself, whatever the taint on its node still says.

use std::time::Duration;

use k8s_openapi::{api::core::v1::Pod, jiff::SignedDuration};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use salvor_apiserver::{Effect, Fault};
use salvor_testkit::{FaultyServer, Salvor, Site, wait};
use serde_json::{Value, json};

use crate::stage::{AT_ONCE, Stage, phase};

const EXACT: SignedDuration = SignedDuration::ZERO;
const BEHIND: SignedDuration = SignedDuration::from_hours(-2);
const AHEAD: SignedDuration = SignedDuration::from_hours(2);
/// The duration of Leases here, in seconds.
const LASTS: u32 = 4;

fn labelled(value: &str) -> Value {
    json!({"metadata": {"labels": {"salvor": value}}})
}

/// The complete configuration, because `explain` gets only the file.
fn configuration() -> String {
    let head = "featureGates: {FailureRecoveryPolicy: true}\nleaderElection: {enabled: false}\nbrake: {maxUnreachablePercent: 0}\n";
    format!("{head}{AT_ONCE}")
}

fn is_touched(pod: &Pod) -> bool {
    pod.name_any().starts_with("work-") && phase(pod) != "Running"
}

/// Checks that no pod named `work-*` is failed or deleted while `until` runs.
async fn untouched<T>(stage: &Stage, until: impl Future<Output = T>) -> T {
    let all = ListParams::default();
    let before = stage.pods().list(&all).await.unwrap().items;
    let result =
        wait::never(&stage.pods(), &all, "a pod is touched that its kubelet can end", is_touched, until)
            .await;
    for pod in before.iter().filter(|pod| pod.name_any().starts_with("work-")) {
        let now = stage.pods().get(&pod.name_any()).await.unwrap();
        assert_eq!((now.uid(), phase(&now)), (pod.uid(), "Running"));
        assert_ne!(now.metadata.deletion_grace_period_seconds, Some(0), "force deleted");
    }
    result
}

/// Waits until the log has this many lines with this text.
async fn says_times(salvor: &Salvor, text: &str, times: usize) {
    let said = wait::patience().until(async {
        while salvor.count(&[text]) < times {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let in_time = said.await.is_some();
    assert!(in_time, "salvor did not say {text:?} {times} times:\n{}", salvor.program.output());
}

async fn a_node_that_is_ready_again_keeps_its_pods_although_the_taint_is_still_there(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("lost").await;
    stage.lost_node("back").await;
    stage.ready("back", "Unknown").await;
    stage.renew("back", LASTS, EXACT).await;
    let salvor = stage.salvor(&configuration()).await;
    // It is back, but the node lifecycle controller has not reconciled it yet.
    stage.ready("back", "True").await;
    stage.renew("back", LASTS, EXACT).await;
    stage.terminating("work-fail", "back", labelled("fail")).await;
    stage.terminating("work-delete", "back", labelled("delete")).await;
    untouched(&stage, async {
        stage.until_all_is_judged("lost").await;
        for name in ["work-fail", "work-delete"] {
            let explained = salvor.explain("pod", &format!("default/{name}")).await;
            assert!(explained.contains("IGNORE [zombie: NodeReady]"), "{explained}");
            assert!(explained.contains("Node back is Ready, so its kubelet can end the pod"), "{explained}");
        }
    })
    .await;
    // It dies after all: only its silence is waited for.
    stage.ready("back", "Unknown").await;
    stage.until_failed("work-fail").await;
    wait::for_absence(&stage.pods(), "work-delete").await;
}

async fn a_lease_that_is_renewed_keeps_the_pods_however_wrong_the_kubelets_clock(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("lost").await;
    for (name, clock) in [("behind", BEHIND), ("exact", EXACT), ("ahead", AHEAD)] {
        stage.lost_node(name).await;
        stage.renew(name, LASTS, clock).await;
        stage.terminating(&format!("work-{name}"), name, labelled("delete")).await;
    }
    // Only the Lease is renewed: the kubelet is alive, but has not reported its status yet.
    let renewing = async {
        loop {
            for (name, clock) in [("behind", BEHIND), ("exact", EXACT), ("ahead", AHEAD)] {
                stage.renew(name, LASTS, clock).await;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let salvor = stage.salvor(&configuration()).await;
    let looked_at = async {
        stage.until_all_is_judged("lost").await;
        for name in ["behind", "exact", "ahead"] {
            says_times(&salvor, &format!("The kubelet of node {name} may be alive"), 3).await;
        }
        let explained = salvor.explain("pod", "default/work-exact").await;
        assert!(
            explained.contains("WAIT until") && explained.contains("[zombie: KubeletAlive]"),
            "{explained}"
        );
    };
    untouched(&stage, async {
        tokio::select! {
            () = looked_at => {}
            () = renewing => {}
        }
    })
    .await;
    // They become silent. A Lease time in the future or far in the past makes no difference.
    for name in ["behind", "exact", "ahead"] {
        wait::for_absence(&stage.pods(), &format!("work-{name}")).await;
    }
}

async fn a_lease_that_cannot_be_read_is_no_silence(site: Site) {
    let plane = site.api_server().await;
    let server = FaultyServer::before(&plane.admin()).await;
    let stage = Stage::on(plane);
    stage.lost_node("lost").await;
    stage.lost_node("unread").await;
    stage.renew("unread", 1, EXACT).await;
    let arguments = ["--leader-elect=false"];
    for effect in [
        Effect::InternalError,
        Effect::Unavailable,
        Effect::RequestLost,
        Effect::Unanswered { carried_out: false },
    ] {
        server.faults().add(Fault::new(effect).path("/leases/unread"));
        let salvor = stage.salvor_as(server.admin(), &configuration(), &arguments, &[]).await;
        stage.terminating("work-unread", "unread", labelled("delete")).await;
        untouched(&stage, async {
            stage.until_all_is_judged("lost").await;
            salvor.says("node lease read failed").await;
            says_times(&salvor, "write failed, retrying", 1).await;
        })
        .await;
        server.faults().clear();
        wait::for_absence(&stage.pods(), "work-unread").await;
    }
}

async fn a_taint_that_was_taken_off_unseen_is_seen_before_anything_is_done(site: Site) {
    let plane = site.api_server().await;
    let server = FaultyServer::before(&plane.admin()).await;
    let stage = Stage::on(plane);
    stage.lost_node("lost").await;
    stage.lost_node("healed").await;
    // Watch events of nodes arrive only long after this test.
    server.faults().add(Fault::new(Effect::Lag(Duration::from_secs(3_600))).path("/api/v1/nodes?"));
    let salvor = stage.salvor_as(server.admin(), &configuration(), &["--leader-elect=false"], &[]).await;
    stage.until_all_is_judged("lost").await;
    stage.set_taints("healed", json!([])).await;
    stage.terminating("work-healed", "healed", labelled("delete")).await;
    untouched(&stage, async {
        stage.until_all_is_judged("lost").await;
        says_times(&salvor, "does not have the taint", 2).await;
    })
    .await;
}

async fn a_node_that_was_made_anew_is_judged_by_what_it_is_now(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("lost").await;
    stage.lost_node("anew").await;
    stage.renew("anew", LASTS, EXACT).await;
    let salvor = stage.salvor(&configuration()).await;
    stage.until_all_is_judged("lost").await;
    stage.nodes().delete("anew", &DeleteParams::default()).await.unwrap();
    wait::for_absence(&stage.nodes(), "anew").await;
    // The new node is healthy. Only the taint is there, as a registration may set it.
    stage.lost_node("anew").await;
    stage.ready("anew", "True").await;
    stage.terminating("work-anew", "anew", labelled("delete")).await;
    untouched(&stage, async {
        stage.until_all_is_judged("lost").await;
        let explained = salvor.explain("pod", "default/work-anew").await;
        assert!(explained.contains("[zombie: NodeReady]"), "{explained}");
    })
    .await;
}

async fn the_taint_comes_off_a_node_that_is_back_however_wrong_its_clock(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    stage.renew("node", LASTS, BEHIND).await;
    let label = Patch::Merge(json!({"metadata": {"labels": {"pool": "batch"}}}));
    stage.nodes().patch("node", &PatchParams::default(), &label).await.unwrap();
    let config = "
failureRecoveryPolicy:
  rules:
  - taintNodeOutOfService: {nodeSelector: {matchLabels: {pool: batch}}, unreachableNodeTimeout: 1s}
";
    let salvor = stage.salvor(config).await;
    let has = |n: &k8s_openapi::api::core::v1::Node| {
        let taints = n.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
        taints.iter().any(|t| t.key == "node.kubernetes.io/out-of-service")
    };
    wait::for_object(&stage.nodes(), "node", "it is out of service", has).await;
    // Ready, but with its old Lease: a mistake, or a kubelet that has just come back.
    stage.ready("node", "True").await;
    salvor.says("write skipped: live objects differ").await;
    assert!(has(&stage.nodes().get("node").await.unwrap()));
    let renewing = async {
        loop {
            stage.renew("node", LASTS, BEHIND).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let nodes = stage.nodes();
    tokio::select! {
        _ = wait::for_object(&nodes, "node", "it is back in service", |n| !has(n)) => {}
        () = renewing => {}
    }
}

salvor_testkit::on_both!(
    a_node_that_is_ready_again_keeps_its_pods_although_the_taint_is_still_there,
    a_lease_that_is_renewed_keeps_the_pods_however_wrong_the_kubelets_clock,
    a_lease_that_cannot_be_read_is_no_silence,
    a_taint_that_was_taken_off_unseen_is_seen_before_anything_is_done,
    a_node_that_was_made_anew_is_judged_by_what_it_is_now,
    the_taint_comes_off_a_node_that_is_back_however_wrong_its_clock,
);
