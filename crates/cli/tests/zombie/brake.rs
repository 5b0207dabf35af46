//! What holds everything back, seen from outside: the brake and its memory, the clock, and the pause switch.

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod, events::v1::Event};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use salvor_embedded::{Effect, Fault};
use salvor_testkit::{FaultyServer, Site, wait};
use serde_json::json;

use crate::stage::{AT_ONCE, Stage, phase};

fn labelled(value: &str) -> serde_json::Value {
    json!({"metadata": {"labels": {"salvor": value}}})
}

/// A partition that heals: with the first node back, fewer than too many are lost, and the others follow one by one.
async fn while_nodes_come_back_none_of_their_pods_is_declared_dead(site: Site) {
    let stage = Stage::new(site).await;
    for number in 0..4 {
        stage.lost_node(&format!("lost-{number}")).await;
    }
    stage.node("fine-0").await;
    stage.node("fine-1").await;
    let salvor = stage.salvor(&format!("{AT_ONCE}\nbrake: {{settlePeriod: 20s}}\n")).await;
    for number in 0..4 {
        stage.terminating(&format!("zombie-{number}"), &format!("lost-{number}"), labelled("delete")).await;
    }
    salvor.shows("salvor_held_total{recovery=\"zombie\",by=\"MaxUnreachablePercent\"} 4").await;
    for number in 0..4 {
        stage.set_taints(&format!("lost-{number}"), json!([])).await;
        if number == 0 {
            salvor.shows("salvor_held_total{recovery=\"zombie\",by=\"Settling\"} 3").await;
        }
    }
    // Whatever is still due is done by then.
    salvor.until_answer("/metrics", "salvor_brake_engaged 0").await;
    stage.lost_node("lost-later").await;
    stage.until_all_is_judged("lost-later").await;
    for number in 0..4 {
        let pod = stage.pods().get(&format!("zombie-{number}")).await.unwrap();
        assert_eq!(phase(&pod), "Running", "zombie-{number}");
    }
}

/// One API server of several is two hours ahead, and it is the one that answers the renewals of the Lease.
async fn a_server_whose_clock_is_ahead_ends_no_wait(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    let server = FaultyServer::before(&stage.plane.admin()).await;
    server.faults().add(Fault::new(Effect::ClockAhead(7200)).path("/leases/salvor"));
    let an_hour = "
  - terminatePod:
      podLabelSelector: {matchLabels: {salvor: hour}}
      forcefulTerminationGracePeriod: 1h
";
    let salvor = stage.salvor_as(server.admin(), &format!("{AT_ONCE}{an_hour}"), &[], &[]).await;
    salvor.shows("salvor_server_clocks 2").await;
    stage.terminating("in-an-hour", "node", labelled("hour")).await;
    stage.terminating("due", "node", labelled("fail")).await;
    salvor.shows("salvor_held_total{recovery=\"zombie\",by=\"ClockUnsettled\"} 1").await;
    assert_eq!(salvor.count(&["the earlier one counts"]), 1, "{}", salvor.program.output());
    // That it goes on afterwards is played in virtual time.
    for name in ["in-an-hour", "due"] {
        assert_eq!(phase(&stage.pods().get(name).await.unwrap()), "Running", "{name}");
    }
}

const QUICK_ELECTION: &str = "leaderElection: {leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 500ms}\n";

/// The budget is spent, the leader dies, and somebody writes nonsense where the next one looks for what was spent.
async fn nonsense_in_the_brakes_memory_is_no_new_budget(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    let gate = "featureGates: {FailureRecoveryPolicy: true}\n";
    let configuration = format!("{gate}{AT_ONCE}{QUICK_ELECTION}brake: {{maxPodsPerMinute: 5}}\n");
    let first = stage.salvor_as(&stage.plane.admin(), &configuration, &[], &[]).await;
    first.says("\"leading\"").await;
    for number in 0..10 {
        stage.terminating(&format!("zombie-{number}"), "node", labelled("fail")).await;
    }
    let failed = |all: &[Pod]| all.iter().filter(|pod| phase(pod) == "Failed").count();
    wait::for_list(&stage.pods(), &ListParams::default(), "the budget is spent", |all| failed(all) == 5)
        .await;
    first.program.kill().await;
    let leases: Api<Lease> = Api::namespaced(stage.client.clone(), "salvor-system");
    let nonsense = Patch::Merge(json!({"metadata": {"annotations": {"salvor.dev/brake": "nonsense"}}}));
    leases.patch("salvor", &PatchParams::default(), &nonsense).await.unwrap();

    let second = stage.salvor_as(&stage.plane.admin(), &configuration, &[], &[]).await;
    second.shows("salvor_held_total{recovery=\"zombie\",by=\"BrakeMemoryLost\"} 5").await;
    let events: Api<Event> = Api::namespaced(stage.client.clone(), "salvor-system");
    wait::for_list(&events, &ListParams::default(), "it is said on the Lease", |all: &[Event]| {
        all.iter().any(|event| event.reason.as_deref() == Some("BrakeMemoryLost"))
    })
    .await;
    let kept = wait::for_object(&leases, "salvor", "the nonsense is kept", |lease: &Lease| {
        lease.annotations().get("salvor.dev/brake-unreadable").is_some_and(|text| text == "nonsense")
    })
    .await;
    assert!(kept.annotations()["salvor.dev/brake"].contains("lost"), "{kept:?}");
    let pods = stage.pods().list(&ListParams::default()).await.unwrap().items;
    assert_eq!(failed(&pods), 5);
    let held = pods.iter().find(|pod| phase(pod) == "Running").unwrap().name_any();
    let said = second.explain("pod", &format!("default/{held}")).await;
    assert!(said.contains("BLOCKED") && said.contains("a whole budget counts as spent"), "{said}");
}

salvor_testkit::on_both!(
    nonsense_in_the_brakes_memory_is_no_new_budget,
    while_nodes_come_back_none_of_their_pods_is_declared_dead,
    a_server_whose_clock_is_ahead_ends_no_wait,
);
