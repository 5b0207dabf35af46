//! Limits that block everything, observed from outside: the brake and its saved state, the clock, and the pause.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::{batch::v1::Job, coordination::v1::Lease, core::v1::Pod, events::v1::Event};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use salvor_apiserver::{Effect, Fault};
use salvor_testkit::{FaultyServer, Program, Salvor, Site, accounting::Mark, wait};
use serde_json::json;

use crate::stage::{AT_ONCE, SALVOR, Stage, phase};

fn labelled(value: &str) -> serde_json::Value {
    json!({"metadata": {"labels": {"salvor": value}}})
}

/// A partition heals: with the first node back, the number of lost nodes is below the limit, and the others follow one
/// by one.
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
    salvor.until_answer("/metrics", "by=\"MaxUnreachablePercent\"").await;
    for number in 0..4 {
        stage.set_taints(&format!("lost-{number}"), json!([])).await;
        if number == 0 {
            salvor.until_answer("/metrics", "by=\"Settling\"").await;
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

/// One of several API servers is two hours ahead, and it answers the renewals of the Lease.
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
    salvor.until_answer("/metrics", "by=\"ClockUnsettled\"").await;
    assert_eq!(salvor.count(&["the earlier one counts"]), 1, "{}", salvor.program.output());
    // A test in virtual time covers what follows.
    for name in ["in-an-hour", "due"] {
        assert_eq!(phase(&stage.pods().get(name).await.unwrap()), "Running", "{name}");
    }
}

const QUICK_ELECTION: &str = "leaderElection: {leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 500ms}\n";

/// The budget is spent, the leader dies, and the saved state is overwritten with invalid content before the next one
/// reads it.
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
    second.until_answer("/metrics", "by=\"BrakeMemoryLost\"").await;
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
    assert!(said.contains("BLOCKED") && said.contains("the whole budget counts as spent"), "{said}");
}

/// Runs a command of the binary against a cluster. Returns its output if it exits with this code.
async fn command(stage: &Stage, arguments: &[&str], code: i32) -> String {
    let kubeconfig = stage.write("kubeconfig", &stage.plane.admin().kubeconfig());
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let arguments = arguments.iter().map(|&argument| argument.to_owned()).chain([kubeconfig]);
    let program = Program::start(std::path::Path::new(SALVOR), arguments, &[]);
    assert_eq!(program.exit_code().await, Some(code), "{}", program.output());
    program.output()
}

/// Salvor's own writes to pods, nodes and Jobs since a mark.
async fn writes_since(stage: &Stage, mark: &Mark) -> u64 {
    let table = stage.plane.accounting().since(mark).await;
    table.count(|r| {
        r.user_agent.starts_with("salvor/")
            && r.verb.is_write()
            && ["pods", "nodes", "jobs"].contains(&r.resource.as_str())
    })
}

async fn managed_job(stage: &Stage, name: &str) {
    let jobs: Api<Job> = Api::default_namespaced(stage.client.clone());
    let job = json!({
        "metadata": {"name": name},
        "spec": {
            "managedBy": "salvor.dev/job-controller",
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work"}]}},
        },
    });
    jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
}

async fn a_pause_stops_all_recoveries_until_they_are_resumed(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    let configuration = format!("featureGates: {{FailureRecoveryPolicy: true}}\n{AT_ONCE}{QUICK_ELECTION}");
    let start = || Salvor::start(SALVOR, &stage.plane.admin(), &configuration, &[], &[]);
    let (first, second) = (start(), start());
    stage.until_all_is_judged("node").await;

    let said = first.command(&["pause", "--reason", "network work"], 0).await;
    assert!(said.contains("paused: ") && said.contains(" has stopped"), "{said}");
    let mark = stage.plane.accounting().mark().await;
    stage.terminating("zombie", "node", labelled("delete")).await;
    managed_job(&stage, "job").await;
    for replica in [&first, &second] {
        replica.shows("salvor_paused 1").await;
    }
    let leader = if first.get("/metrics").await.contains("\nsalvor_leader 1\n") { &first } else { &second };
    leader.until_answer("/metrics", "salvor_held_total{recovery=\"zombie\",by=\"Paused\"}").await;
    leader.until_answer("/metrics", "salvor_held_total{recovery=\"job\",by=\"Paused\"}").await;
    for (kind, name) in [("pod", "default/zombie"), ("job", "default/job")] {
        let said = leader.explain(kind, name).await;
        assert!(said.contains("BLOCKED") && said.contains("network work"), "{said}");
    }
    let said = first.command(&["pause"], 0).await;
    assert!(said.contains("already") && said.contains("network work"), "{said}");

    // The next leader is paused as well.
    let rest = if std::ptr::eq(leader, &first) { &second } else { &first };
    leader.program.kill().await;
    rest.says("\"leading\"").await;
    let said = rest.command(&["pause", "--wait", "60s"], 0).await;
    assert!(said.contains("has stopped"), "{said}");
    assert_eq!(phase(&stage.pods().get("zombie").await.unwrap()), "Running");
    assert_eq!(writes_since(&stage, &mark).await, 0);

    let said = rest.command(&["resume"], 0).await;
    assert!(said.contains("resumed: it was paused by ") && said.contains("network work"), "{said}");
    wait::for_absence(&stage.pods(), "zombie").await;
    let of_job = ListParams::default().labels("batch.kubernetes.io/job-name=job");
    wait::for_list(&stage.pods(), &of_job, "the Job has its pod", |all: &[Pod]| all.len() == 1).await;
    rest.shows("salvor_paused 0").await;
    assert!(rest.command(&["resume"], 0).await.contains("nobody has paused"));
    let events: Api<Event> = Api::namespaced(stage.client.clone(), "salvor-system");
    wait::for_list(&events, &ListParams::default(), "both are told", |all: &[Event]| {
        let told = |reason: &str| all.iter().filter(|e| e.reason.as_deref() == Some(reason)).count();
        told("Paused") == 1 && told("Resumed") == 1
    })
    .await;
}

async fn a_pause_for_a_time_ends_by_itself(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    let configuration = format!("featureGates: {{FailureRecoveryPolicy: true}}\n{AT_ONCE}{QUICK_ELECTION}");
    let salvor = Salvor::start(SALVOR, &stage.plane.admin(), &configuration, &[], &[]);
    stage.until_all_is_judged("node").await;
    let said = salvor.command(&["pause", "--for", "5s", "--reason", "a test"], 0).await;
    assert!(said.contains(" until ") && said.contains("has stopped"), "{said}");
    stage.terminating("zombie", "node", labelled("delete")).await;
    wait::for_absence(&stage.pods(), "zombie").await;
    salvor.shows("salvor_paused 0").await;
    assert!(salvor.command(&["resume"], 0).await.contains("nobody has paused"));
}

/// First without an operator, then with one that finds the pause; without an election, and with an invalid value.
async fn a_pause_before_anybody_runs_is_found_and_nonsense_is_a_pause(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    let said = command(&stage, &["pause", "--wait", "1s"], 1).await;
    assert!(said.contains("no leader has confirmed within 1s"), "{said}");
    stage.terminating("zombie", "node", labelled("fail")).await;
    let salvor = stage.salvor(AT_ONCE).await;
    salvor.until_answer("/metrics", "by=\"Paused\"").await;
    let said = command(&stage, &["pause"], 0).await;
    assert!(said.contains("already") && said.contains("has stopped"), "{said}");
    let leases: Api<Lease> = Api::namespaced(stage.client.clone(), "salvor-system");
    let nonsense = Patch::Merge(json!({"metadata": {"annotations": {"salvor.dev/paused": "false"}}}));
    leases.patch("salvor", &PatchParams::default(), &nonsense).await.unwrap();
    salvor.says("which does not say who paused or why").await;
    assert_eq!(phase(&stage.pods().get("zombie").await.unwrap()), "Running");
    command(&stage, &["resume"], 0).await;
    stage.until_failed("zombie").await;
}

/// A slow write is in flight: the pause is acknowledged when it has ended, and no write starts after that.
async fn no_write_begins_after_a_pause_was_acknowledged(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    let server = FaultyServer::before(&stage.plane.admin()).await;
    let slowly =
        Fault::new(Effect::Delay(Duration::from_secs(5))).method(Method::PATCH).path("/zombie/status");
    server.faults().add(slowly);
    let salvor = stage.salvor_as(server.admin(), AT_ONCE, &["--leader-elect=false"], &[]).await;
    stage.terminating("zombie", "node", labelled("delete")).await;
    salvor.shows("salvor_actions_in_flight{recovery=\"zombie\"} 1").await;
    let said = command(&stage, &["pause"], 0).await;
    assert!(said.contains("has stopped"), "{said}");
    let mark = stage.plane.accounting().mark().await;
    assert_eq!(phase(&stage.pods().get("zombie").await.unwrap()), "Failed", "what had begun has ended");
    salvor.until_answer("/metrics", "by=\"Paused\"").await;
    assert_eq!(writes_since(&stage, &mark).await, 0);
    assert!(stage.pods().get_opt("zombie").await.unwrap().is_some(), "it was not deleted any more");
    command(&stage, &["resume"], 0).await;
    wait::for_absence(&stage.pods(), "zombie").await;
}

salvor_testkit::on_both!(
    a_pause_stops_all_recoveries_until_they_are_resumed,
    a_pause_for_a_time_ends_by_itself,
    a_pause_before_anybody_runs_is_found_and_nonsense_is_a_pause,
    no_write_begins_after_a_pause_was_acknowledged,
    nonsense_in_the_brakes_memory_is_no_new_budget,
    while_nodes_come_back_none_of_their_pods_is_declared_dead,
    a_server_whose_clock_is_ahead_ends_no_wait,
);
