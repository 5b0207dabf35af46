//! The wait for annotated pods.

use k8s_openapi::api::core::v1::Pod;
use salvor_testkit::Site;
use serde_json::{Value, json};

use crate::stage::{Stage, TERMINATE, phase};

const WAIT: &str = "salvor.dev/termination-grace-after";
const CONFIGURATION: &str = "
featureGates: {FailureRecoveryPolicy: true}
leaderElection: {enabled: false}
failureRecoveryPolicy:
  annotatedPods: {forcefulTerminationGracePeriod: 6s, minimumForcefulTerminationGracePeriod: 3s}
";

fn asking(wait: &str) -> Value {
    json!({"metadata": {"annotations": {TERMINATE: "true", WAIT: wait}}})
}

/// The seconds from the end of its grace period to its recovery.
fn waited(pod: &Pod) -> i64 {
    let conditions = pod.status.as_ref().unwrap().conditions.iter().flatten();
    let marked =
        conditions.filter(|c| c.type_ == "KueueFailureRecovery").find_map(|c| c.last_transition_time.clone());
    marked.unwrap().0.duration_since(pod.metadata.deletion_timestamp.as_ref().unwrap().0).as_secs()
}

async fn a_pod_asks_for_its_wait_the_administrator_bounds_it_and_nonsense_is_reported(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    let salvor = stage.salvor(CONFIGURATION).await;
    let unset = json!({"metadata": {"annotations": {TERMINATE: "true"}}});
    stage.terminating("unset", "node", unset).await;
    let mut pods = Vec::new();
    for (name, wait) in
        [("short", "0s"), ("exact", "4s"), ("soon", "soon"), ("negative", "-5s"), ("long", "9999999999h")]
    {
        pods.push(stage.terminating(name, "node", asking(wait)).await);
    }
    let long = salvor.explain("pod", "default/long").await;
    assert!(
        long.contains("WAIT until") && long.contains("by annotation salvor.dev/termination-grace-after"),
        "{long}"
    );

    for (name, least, seconds) in
        [("unset", 6, "7s"), ("short", 3, "4s"), ("exact", 4, "5s"), ("soon", 6, "7s"), ("negative", 6, "7s")]
    {
        let failed = stage.until_failed(name).await;
        assert!(waited(&failed) >= least, "{name}: never early, but {}s", waited(&failed));
        // Its own grace period of a second, and the wait.
        let conditions = failed.status.as_ref().unwrap().conditions.iter().flatten();
        let message = conditions
            .filter_map(|c| c.message.clone())
            .find(|m| m.contains("forcefully terminated"))
            .unwrap();
        assert!(message.contains(&format!("after {seconds} grace period")), "{name}: {message}");
    }
    assert_eq!(phase(&stage.pods().get("long").await.unwrap()), "Running");
    for (pod, said) in
        [(&pods[2], "is \"soon\", which is not a duration"), (&pods[3], "is \"-5s\", which is negative")]
    {
        let events = stage.events_about(pod).await;
        let invalid: Vec<_> =
            events.iter().filter(|e| e.reason.as_deref() == Some("InvalidTerminationGraceAfter")).collect();
        assert_eq!(invalid.len(), 1, "{events:?}");
        assert!(invalid[0].note.as_deref().unwrap().contains(said), "{events:?}");
    }
    for pod in [&pods[0], &pods[1], &pods[4]] {
        let events = stage.events_about(pod).await;
        assert!(
            events.iter().all(|e| e.reason.as_deref() != Some("InvalidTerminationGraceAfter")),
            "{events:?}"
        );
    }
}

salvor_testkit::on_both!(a_pod_asks_for_its_wait_the_administrator_bounds_it_and_nonsense_is_reported);
