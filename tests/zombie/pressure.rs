//! Under pressure: slow servers, tenants with large Jobs, and nodes that come back at the worst moment.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::{batch::v1::Job, coordination::v1::Lease, core::v1::Pod, events::v1::Event};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use salvor_apiserver::{Effect, Fault};
use salvor_testkit::{FaultyServer, Hold, Salvor, Site, wait};
use serde_json::{Value, json};

use crate::stage::{AT_ONCE, SALVOR, Stage, phase};

fn labelled(label: &str) -> Value {
    json!({"metadata": {"labels": {"salvor": label}}})
}

fn of_jobs() -> ListParams {
    ListParams::default().labels("batch.kubernetes.io/job-name")
}

/// Tenants' Jobs create pods in batches that double, on a server that is slow for each pod. Hundreds of requests wait,
/// and a zombie is recovered before them.
async fn jobs_of_a_thousand_pods_hold_up_no_recovery(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    let server = FaultyServer::before(&stage.plane.admin()).await;
    let slow = |delay| {
        let fault = Fault::new(Effect::Delay(delay)).method(Method::POST);
        server.faults().clear();
        server.faults().add(fault.path("/api/v1/namespaces/default/pods"));
    };
    slow(Duration::from_millis(200));
    let config = format!("controllers: [zombie, job]\nconcurrency: {{writes: 2}}\n{AT_ONCE}");
    let arguments = ["--leader-elect=false", "--feature-gates=FailureRecoveryPolicy=true"];
    let salvor = Salvor::start(SALVOR, server.admin(), &config, &arguments, &[]);
    let jobs: Api<Job> = Api::default_namespaced(stage.client.clone());
    let containers = json!([{"name": "main", "image": "work"}]);
    let spec = json!({
        "managedBy": "salvor.dev/job-controller", "parallelism": 1000,
        "template": {"spec": {"restartPolicy": "Never", "containers": containers}},
    });
    for tenant in 0..4 {
        let job = json!({"metadata": {"name": format!("tenant-{tenant}")}, "spec": spec});
        jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
    }
    // In the next batches a hundred requests wait for two places.
    wait::for_list(&stage.pods(), &of_jobs(), "a round is made", |pods: &[Pod]| pods.len() >= 30).await;
    slow(Duration::from_secs(4));
    let before = stage.pods().list(&of_jobs()).await.unwrap().items.len();
    stage.terminating("zombie", "node", labelled("delete")).await;
    wait::for_absence(&stage.pods(), "zombie").await;
    let made = stage.pods().list(&of_jobs()).await.unwrap().items.len() - before;
    assert!(made < 20, "{made} pods were made first: {}", salvor.program.output());
}

/// The process is suspended between its second look and the write, as without CPU time, and the node comes back in the
/// meantime. The earlier read no longer counts.
async fn a_node_that_comes_back_between_the_look_and_the_write_keeps_its_pod(site: Site) {
    let stage = Stage::new(site).await;
    // The patch, and the delete that follows it and the event.
    for (write, left) in [(1, "Running"), (3, "Failed")] {
        let node = format!("node-{write}");
        stage.lost_node(&node).await;
        let hold = Hold::before_write(write);
        let elect = ["--leader-elect=false"];
        let salvor = stage.salvor_as(&stage.plane.admin(), AT_ONCE, &elect, &[hold.variable()]).await;
        stage.terminating("zombie", &node, labelled("delete")).await;
        let reached = wait::patience().until(hold.reached()).await;
        assert!(reached.is_some(), "write {write} never came: {}", salvor.program.output());
        stage.set_taints(&node, json!([])).await;
        // Longer than a read is valid.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        hold.let_go();
        salvor.says("write skipped: live objects differ").await;
        let zombie = stage.pods().get("zombie").await.unwrap();
        assert_eq!(phase(&zombie), left, "write {write}: {}", salvor.program.output());
        assert_eq!(zombie.metadata.deletion_grace_period_seconds, Some(1), "write {write}");
        drop(salvor);
        stage.remove_all_pods().await;
    }
}

/// A dry run leads, finds most nodes lost, and reports this only in its log.
async fn a_dry_run_says_nothing_of_the_brake_in_the_cluster(site: Site) {
    let stage = Stage::new(site).await;
    for i in 0..3 {
        stage.lost_node(&format!("lost-{i}")).await;
    }
    stage.node("fine").await;
    let election = "leaderElection: {retryPeriod: 100ms}";
    let config = format!("dryRun: true\n{election}\n{AT_ONCE}");
    let salvor = stage.salvor_as(&stage.plane.admin(), &config, &[], &[]).await;
    salvor.says("3 of 4 nodes are unreachable at once").await;
    let leases: Api<Lease> = Api::namespaced(stage.client.clone(), "salvor-system");
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
    // Two renewals later, everything that would be written is written.
    for _ in 0..2 {
        let before = leases.get("salvor").await.unwrap();
        wait::for_object(&leases, "salvor", "it is renewed", |lease| renewed(lease) != renewed(&before))
            .await;
    }
    assert_eq!(leases.get("salvor").await.unwrap().annotations().len(), 0);
    let events: Api<Event> = Api::all(stage.client.clone());
    let all = events.list(&ListParams::default()).await.unwrap().items;
    let ours = all.iter().filter(|e| e.reason.as_deref() == Some("BrakeEngaged")).count();
    assert_eq!(ours, 0, "{all:?}");
}

salvor_testkit::on_both!(
    jobs_of_a_thousand_pods_hold_up_no_recovery,
    a_node_that_comes_back_between_the_look_and_the_write_keeps_its_pod,
    a_dry_run_says_nothing_of_the_brake_in_the_cluster,
);
