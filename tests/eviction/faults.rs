//! Each rule and each fault, observed from outside. The test plays every controller except Salvor.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::future::join_all;
use k8s_openapi::api::{core::v1::Pod, events::v1::Event, storage::v1::VolumeAttachment};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use salvor_testkit::{Hold, Recorder, Site, wait};
use serde_json::{Value, json};

use crate::{
    hand_made::{Stage, both, claiming, owned_by, tolerating},
    stage::{
        annotate, condition, effects, events_about, is_finished, phase, progress, taint, taint_with, untaint,
    },
};

fn held() -> Value {
    json!({"metadata": {"finalizers": ["test.salvor.dev/hold"]}})
}

fn in_use(node: &k8s_openapi::api::core::v1::Node) -> Vec<String> {
    node.status.as_ref().and_then(|s| s.volumes_in_use.clone()).unwrap_or_default()
}

/// Ends the process before and after every write. A second process must reach the same result and record no event
/// twice.
async fn a_crash_between_any_two_writes_leads_to_the_same_end(site: Site) {
    let stage = Stage::new(site).await;
    let events: Api<Event> = Api::all(stage.client.clone());
    let mut crashed = 0;
    for (when, number) in (1..).flat_map(|n| [("before", n), ("after", n)]) {
        let (node, pod) = (format!("node-{when}-{number}"), format!("pod-{when}-{number}"));
        let volume = stage.claimed_volume(&pod).await;
        stage.dead_node(&node, &[&volume]).await;
        let of_pod = stage.pod(&pod, &node, both(held(), claiming(&pod))).await;
        let at = format!("{when}:{number}");
        let first = stage.salvor("", &[("SALVOR_TEST_CRASH", &at)]);
        taint(&stage.client, &node, "INC-1", &["NoSchedule"]).await;
        let end = format!("record the Normal event Finished on node {node}");
        let ended = async {
            tokio::select! {
                code = first.program.exit_code() => code,
                () = first.says(&end) => None,
            }
        };
        // No crash means that there was no such write, so all have been tested.
        let Some(code) = ended.await else { break };
        assert_eq!(code, 86, "{at}: {}", first.program.output());
        crashed += 1;
        let second = stage.salvor("", &[]);
        let left = wait::for_object(&stage.nodes(), &node, "its eviction is finished", is_finished).await;
        assert_eq!(effects(&left), ["NoSchedule", "NoExecute"], "{at}");
        assert_eq!(in_use(&left), Vec::<String>::new(), "{at}");
        assert_eq!(condition(&left, "ForceEviction"), Some(("False".into(), "Finished".into())), "{at}");
        let failed = stage.pods().get(&pod).await.unwrap();
        assert_eq!(
            (phase(&failed), failed.metadata.deletion_grace_period_seconds),
            ("Failed", Some(0)),
            "{at}"
        );
        wait::for_list(&events, &ListParams::default(), "each event is there once", |all: &[Event]| {
            let mut told: BTreeMap<String, usize> = BTreeMap::new();
            for event in all {
                let uid = event.regarding.as_ref().and_then(|r| r.uid.clone()).unwrap_or_default();
                // The event of a node has the node's name as UID.
                if uid == node || Some(&uid) == of_pod.metadata.uid.as_ref() {
                    *told.entry(event.reason.clone().unwrap_or_default()).or_default() += 1;
                }
            }
            assert!(told.values().all(|times| *times == 1), "{at}: {told:?}");
            told.keys().map(String::as_str).eq(["Finished", "ForceEvictionBySalvor", "NodeDown"])
        })
        .await;
        assert!(!second.program.has_ended(), "{at}");
        // The next process would decide about finished work again.
        stage.nodes().delete(&node, &DeleteParams::default()).await.unwrap();
    }
    // Mark, its event, pod, its event, its deletion, volumes, end, its event. The condition in between is written only
    // if the node is reconciled while pods are left.
    assert!(crashed >= 16, "only {crashed} crashes");
}

async fn status_comes_before_the_delete_and_finalizers_and_late_pods_do_not_keep_it_open(site: Site) {
    let stage = Stage::new(site).await;
    stage.dead_node("node", &[]).await;
    stage.pod("held", "node", held()).await;
    let done = Patch::Strategic(json!({"status": {"phase": "Succeeded"}}));
    stage.pod("succeeded", "node", held()).await;
    stage.pods().patch_status("succeeded", &PatchParams::default(), &done).await.unwrap();
    let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "hash"}}});
    stage.pod("static", "node", mirror).await;
    stage.pod("daemon", "node", json!({"spec": {"tolerations": [{"operator": "Exists"}]}})).await;
    stage.pod("plain", "node", json!({})).await;
    let recorder = Recorder::start(&stage.pods(), &ListParams::default()).await;
    let salvor = stage.salvor("", &[]);
    let node = stage.evict("node").await;
    assert_eq!(progress(&node)["request"], "salvor.dev/force-eviction=INC-1:NoSchedule");
    wait::for_absence(&stage.pods(), "plain").await;
    let left: BTreeMap<String, String> = stage
        .pods()
        .list(&ListParams::default())
        .await
        .unwrap()
        .iter()
        .map(|p| (p.name_any(), phase(p).to_owned()))
        .collect();
    let expected =
        [("daemon", "Running"), ("held", "Failed"), ("static", "Running"), ("succeeded", "Succeeded")];
    assert_eq!(left, expected.map(|(name, phase)| (name.to_owned(), phase.to_owned())).into());

    stage.pod("late", "node", json!({})).await;
    wait::for_absence(&stage.pods(), "late").await;
    // A process that starts after the end also handles them.
    drop(salvor);
    let _salvor = stage.salvor("", &[]);
    stage.pod("later", "node", json!({})).await;
    wait::for_absence(&stage.pods(), "later").await;
    // A process that has observed this change has observed all changes of the late pod.
    let last = Patch::Merge(json!({"metadata": {"annotations": {"last": "change"}}}));
    stage.pods().patch("daemon", &PatchParams::default(), &last).await.unwrap();
    for name in ["held", "plain", "late", "later"] {
        let changes = recorder.changes().await;
        let of_pod = || changes.iter().filter(|c| c.name == name);
        let failed = of_pod().position(|c| c.object["status"]["phase"] == "Failed").unwrap();
        let deleted = of_pod().position(|c| !c.object["metadata"]["deletionTimestamp"].is_null());
        assert!(deleted.is_none_or(|deleted| failed <= deleted), "{name}: {failed} {deleted:?}");
        let seen = of_pod().nth(failed).unwrap();
        let conditions = seen.object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let target = conditions.iter().find(|c| c["type"] == "DisruptionTarget").unwrap();
        assert_eq!((&target["status"], &target["reason"]), (&json!("True"), &json!("ForceEvictionBySalvor")));
    }
}

async fn a_person_who_takes_the_taint_off_in_the_middle_stops_it(site: Site) {
    let stage = Stage::new(site).await;
    stage.dead_node("node", &[]).await;
    stage.pod("patient", "node", tolerating(Some(3600))).await;
    stage.pod("quick", "node", json!({})).await;
    let salvor = stage.salvor("", &[]);
    taint(&stage.client, "node", "", &["NoSchedule"]).await;
    wait::for_absence(&stage.pods(), "quick").await;
    wait::for_object(&stage.nodes(), "node", "it waits for the other pod", |n| {
        condition(n, "ForceEviction") == Some(("True".into(), "WaitingForPods".into()))
    })
    .await;
    untaint(&stage.client, "node").await;
    let stopped =
        wait::for_object(&stage.nodes(), "node", "nothing is remembered", |n| progress(n).is_null()).await;
    assert_eq!(effects(&stopped), Vec::<String>::new());
    assert_eq!(condition(&stopped, "ForceEviction"), Some(("False".into(), "Stopped".into())));
    salvor.says("record the Normal event Stopped").await;
    stage.pod("later", "node", json!({})).await;
    stage.until_all_is_judged().await;
    for name in ["patient", "later"] {
        assert_eq!(phase(&stage.pods().get(name).await.unwrap()), "Running", "{name}");
    }
    assert_eq!(events_about(&stage.client, "node").await, ["NodeDown", "Stopped"]);
}

async fn a_toleration_runs_out_and_a_node_that_is_deleted_is_left_to_pod_gc(site: Site) {
    let stage = Stage::new(site).await;
    stage.dead_node("node", &[]).await;
    stage.dead_node("deleted", &[]).await;
    stage.pod("brief", "node", both(tolerating(Some(3)), held())).await;
    stage.pod("orphan", "deleted", tolerating(Some(20))).await;
    let _salvor = stage.salvor("", &[]);
    taint(&stage.client, "deleted", "", &["NoSchedule"]).await;
    wait::for_object(&stage.nodes(), "deleted", "its eviction has begun", |n| {
        condition(n, "ForceEviction").is_some_and(|(_, reason)| reason == "WaitingForPods")
    })
    .await;
    stage.nodes().delete("deleted", &DeleteParams::default()).await.unwrap();
    // A new Node with the same name: no eviction was requested for it.
    stage.dead_node("deleted", &[]).await;
    let node = stage.evict("node").await;
    let brief = stage.pods().get("brief").await.unwrap();
    assert_eq!(phase(&brief), "Failed");
    let failed = brief.status.as_ref().unwrap().conditions.iter().flatten();
    let failed =
        failed.filter(|c| c.type_ == "DisruptionTarget").find_map(|c| c.last_transition_time.clone());
    let began: k8s_openapi::jiff::Timestamp = progress(&node)["started"].as_str().unwrap().parse().unwrap();
    assert!(failed.unwrap().0.duration_since(began).as_secs() >= 3, "never early");
    // By now the toleration of the other pod is over as well.
    stage.dead_node("after", &[]).await;
    stage.pod("after", "after", tolerating(Some(18))).await;
    stage.evict("after").await;
    assert_eq!(phase(&stage.pods().get("orphan").await.unwrap()), "Running");
}

/// The pod is replaced on another node between the decision and each write.
async fn a_new_pod_of_the_same_name_is_never_touched(site: Site) {
    let stage = Stage::new(site).await;
    stage.node("healthy", json!({}), "True", &[]).await;
    let at_once = DeleteParams::default().grace_period(0);
    let mut replaced = 0;
    for number in 1.. {
        let node = format!("node-{number}");
        stage.dead_node(&node, &[]).await;
        let first = stage.pod("twin", &node, json!({})).await;
        let hold = Hold::before_write(number);
        let salvor = stage.salvor("", &[hold.variable()]);
        taint(&stage.client, &node, "", &["NoSchedule"]).await;
        let end = format!("record the Normal event Finished on node {node}");
        let held = tokio::select! {
            () = hold.reached() => true,
            () = salvor.says(&end) => false,
        };
        // No write was blocked, so there was no such write, and all have been tested.
        if !held {
            break;
        }
        if stage.pods().get_opt("twin").await.unwrap().is_some() {
            replaced += 1;
            // The process is blocked, but requests that it sent earlier may still arrive.
            if let Err(error) = stage.pods().delete("twin", &at_once).await {
                assert!(matches!(&error, kube::Error::Api(status) if status.code == 404), "{error}");
            }
            wait::for_absence(&stage.pods(), "twin").await;
        }
        let second = stage.pod("twin", "healthy", json!({})).await;
        assert_ne!(first.uid(), second.uid());
        hold.let_go();
        wait::for_object(&stage.nodes(), &node, "its eviction is finished", is_finished).await;
        let twin = stage.pods().get("twin").await.unwrap();
        assert_eq!((twin.uid(), phase(&twin)), (second.uid(), "Running"), "write {number}");
        stage.pods().delete("twin", &at_once).await.unwrap();
        wait::for_absence(&stage.pods(), "twin").await;
        drop(salvor);
        stage.nodes().delete(&node, &DeleteParams::default()).await.unwrap();
    }
    // At least the start on the node, the pod's failure and its deletion.
    assert!(replaced >= 3, "only before {replaced} writes was there a pod to replace");
}

async fn a_node_that_renews_its_lease_is_refused_whatever_its_taint_says(site: Site) {
    let stage = Stage::new(site).await;
    stage.node("node", json!({}), "False", &[]).await;
    stage.lease("node", 0, 3600).await;
    stage.pod("pod", "node", json!({})).await;
    let salvor = stage.salvor("", &[]);
    taint(&stage.client, "node", "", &["NoSchedule"]).await;
    salvor.says("record the Warning event KubeletAlive").await;
    let said = salvor.explain("node", "node").await;
    assert!(said.contains("WAIT until") && said.contains("[eviction: KubeletAlive]"), "{said}");
    let words = salvor.command(&["evict", "node", "--yes"], 1).await;
    assert!(words.contains("its kubelet is alive"), "{words}");
    let node = stage.nodes().get("node").await.unwrap();
    assert_eq!((effects(&node), progress(&node)), (vec!["NoSchedule".to_owned()], Value::Null));
    assert_eq!(phase(&stage.pods().get("pod").await.unwrap()), "Running");
    // The node becomes unreachable.
    stage.lease("node", 120, 40).await;
    wait::for_absence(&stage.pods(), "pod").await;
}

async fn a_zone_that_goes_down_at_once_is_held_and_said(site: Site) {
    let stage = Stage::new(site).await;
    let lost = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]);
    for name in ["a-0", "a-1", "a-2", "b-0", "b-1", "b-2", "b-3", "b-4"] {
        let zone = json!({"labels": {"topology.kubernetes.io/zone": &name[..1]}});
        stage.node(name, zone, "Unknown", &[]).await;
        if name.starts_with('a') {
            let taints = Patch::Merge(json!({"spec": {"taints": lost}}));
            stage.nodes().patch(name, &PatchParams::default(), &taints).await.unwrap();
        }
    }
    let salvor = stage.salvor("brake: {settlePeriod: 1s}\n", &[]);
    taint(&stage.client, "a-0", "", &["NoSchedule"]).await;
    salvor.says("record the Warning event ZoneDown").await;
    stage.evict("b-0").await;
    assert!(progress(&stage.nodes().get("a-0").await.unwrap()).is_null());
    let said = salvor.explain("node", "a-0").await;
    assert!(said.contains("BLOCKED [eviction: NodeDown]") && said.contains("3 of 3 nodes of zone"), "{said}");
    let back = Patch::Merge(json!({"spec": {"taints": null}}));
    stage.nodes().patch("a-1", &PatchParams::default(), &back).await.unwrap();
    wait::for_object(&stage.nodes(), "a-0", "its eviction is finished", is_finished).await;
}

async fn a_stateful_pod_waits_for_proof_and_a_trigger_of_others_is_left_alone(site: Site) {
    let stage = Stage::new(site).await;
    stage.dead_node("node", &[]).await;
    stage.pod("stateful", "node", owned_by("StatefulSet")).await;
    stage.pod("plain", "node", owned_by("ReplicaSet")).await;
    let triggers = "eviction: {removeTaint: WhenEvicted, triggers: [{key: example.com/lost}]}\n";
    let salvor = stage.salvor(triggers, &[]);
    let lost =
        Patch::Merge(json!({"spec": {"taints": [{"key": "example.com/lost", "effect": "NoSchedule"}]}}));
    stage.nodes().patch("node", &PatchParams::default(), &lost).await.unwrap();
    wait::for_absence(&stage.pods(), "plain").await;
    wait::for_object(&stage.nodes(), "node", "it waits for the other pod", |n| {
        condition(n, "ForceEviction").is_some_and(|(_, reason)| reason == "WaitingForPods")
    })
    .await;
    assert_eq!(phase(&stage.pods().get("stateful").await.unwrap()), "Running");
    let said = salvor.explain("pod", "default/stateful").await;
    assert!(said.contains("IGNORE [eviction: NeedsProof]"), "{said}");
    salvor.shows("salvor_eviction_nodes{state=\"started\"} 1").await;
    taint(&stage.client, "node", "", &["NoSchedule"]).await;
    wait::for_absence(&stage.pods(), "stateful").await;
    let left = wait::for_object(&stage.nodes(), "node", "our taints are gone", |n| {
        is_finished(n) && effects(n).is_empty()
    })
    .await;
    let taints = left.spec.as_ref().unwrap().taints.clone().unwrap();
    assert_eq!(taints.iter().map(|t| t.key.as_str()).collect::<Vec<_>>(), ["example.com/lost"]);
    stage.until_all_is_judged().await;
    let still = stage.nodes().get("node").await.unwrap();
    assert_eq!(progress(&still)["finished"], progress(&left)["finished"], "nothing begins again");
}

async fn a_volume_that_a_pod_on_the_node_still_needs_is_not_let_go(site: Site) {
    let stage = Stage::new(site).await;
    let (shared, own) = (stage.volume("shared", "node").await, stage.volume("own", "node").await);
    // A volume of unknown origin, which Salvor must not release.
    let strange = "kubernetes.io/csi/disk.example.com^strange".to_owned();
    stage.dead_node("node", &[&shared, &own, &strange]).await;
    stage.nfs_claim("logs").await;
    stage.pod("logs", "node", both(tolerating(None), claiming("logs"))).await;
    let attachments: Api<VolumeAttachment> = Api::all(stage.client.clone());
    stage.pod("stays", "node", both(tolerating(None), claiming("shared"))).await;
    stage.pod("goes", "node", claiming("shared")).await;
    stage.pod("goes-too", "node", claiming("own")).await;
    let salvor = stage.salvor("eviction: {detachWarningAfter: 2s}\n", &[]);
    taint(&stage.client, "node", "", &["NoSchedule"]).await;
    let released =
        wait::for_object(&stage.nodes(), "node", "a volume is let go", |n| in_use(n).len() == 2).await;
    assert_eq!(in_use(&released), [shared.clone(), strange.clone()]);
    assert_eq!(progress(&released)["released"]["volumes"], json!(["shared"]));
    salvor.says("record the Warning event VolumesHang").await;
    salvor.says("Check the CSI driver disk.example.com").await;
    attachments.delete("own", &DeleteParams::default()).await.unwrap();
    let left = wait::for_object(&stage.nodes(), "node", "its eviction is finished", is_finished).await;
    assert_eq!(in_use(&left), [shared, strange]);
    assert_eq!(phase(&stage.pods().get("stays").await.unwrap()), "Running");
}

async fn noise_on_the_node_and_on_its_pods_does_not_keep_it_from_its_end(site: Site) {
    let stage = Stage::new(site).await;
    stage.dead_node("node", &["v"]).await;
    stage.pod("held", "node", held()).await;
    let _salvor = stage.salvor("", &[]);
    let (nodes, pods) = (stage.nodes(), stage.pods());
    let noise = async {
        for i in 0.. {
            let began = Instant::now();
            annotate(&nodes, "node", json!({"noise": i.to_string()})).await;
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"noise": i.to_string()}}}));
            pods.patch("held", &PatchParams::default(), &patch).await.unwrap();
            // As fast as a busy cluster, but not as fast as a loop: leaves room for others on a slow server.
            tokio::time::sleep(Duration::from_millis(20).max(began.elapsed() * 4)).await;
        }
    };
    tokio::select! {
        _ = stage.evict("node") => {}
        () = noise => unreachable!(),
    }
    assert_eq!(phase(&stage.pods().get("held").await.unwrap()), "Failed");
}

async fn when_the_leader_is_killed_in_the_middle_the_follower_finishes_it(site: Site) {
    let stage = Stage::new(site).await;
    stage.dead_node("node", &["v"]).await;
    let names: Vec<String> = (0..40).map(|i| format!("pod-{i}")).collect();
    join_all(names.iter().map(|name| stage.pod(name, "node", held()))).await;
    // Naming it switches it on.
    let election = "leaderElection: {leaseDuration: 15s}\n";
    let first = stage.salvor(election, &[]);
    first.says("\"leading\"").await;
    let second = stage.salvor(election, &[]);
    second.says("holds it").await;
    taint(&stage.client, "node", "", &["NoSchedule"]).await;
    first.says("with no grace").await;
    first.program.kill().await;
    wait::for_object(&stage.nodes(), "node", "its eviction is finished", is_finished).await;
    let all = stage.pods().list(&ListParams::default()).await.unwrap();
    let is_evicted = |p: &Pod| phase(p) == "Failed" && p.metadata.deletion_grace_period_seconds == Some(0);
    assert!(all.items.len() == 40 && all.iter().all(is_evicted));
    // However much was left, the leader records what happened.
    second.says("\"write succeeded\"").await;
}

async fn the_command_shows_asks_follows_and_says_where_the_work_went(site: Site) {
    let stage = Stage::new(site).await;
    let volume = stage.volume("data", "node").await;
    stage.dead_node("node", &[&volume]).await;
    stage.pod("lost", "node", claiming("data")).await;
    stage.pod("replaced", "node", owned_by("ReplicaSet")).await;
    stage.pod("replacement", "other", owned_by("ReplicaSet")).await;
    let salvor = stage.salvor("", &[]);
    let evict = |arguments: &[&str]| salvor.spawn(arguments);
    let shown = evict(&["evict", "node", "--dry-run"]);
    assert_eq!(shown.exit_code().await, Some(0), "{}", shown.output());
    assert!(
        shown.output().contains("evict  default/lost      no controller: lost  data"),
        "{}",
        shown.output()
    );
    let unasked = evict(&["evict", "node"]);
    assert_eq!(unasked.exit_code().await, Some(1));
    assert!(unasked.output().contains("--yes"), "{}", unasked.output());
    assert_eq!(effects(&stage.nodes().get("node").await.unwrap()), Vec::<String>::new());

    // An interrupt keeps the request and reports that.
    let followed = evict(&["evict", "node", "--yes", "--incident", "INC-7"]);
    wait::for_object(&stage.nodes(), "node", "its volume is let go", |n| in_use(n).is_empty()).await;
    followed.signal("INT");
    assert_eq!(followed.exit_code().await, Some(130), "{}", followed.output());
    assert!(
        followed.output().contains("kubectl taint node node salvor.dev/force-eviction-"),
        "{}",
        followed.output()
    );

    let again = evict(&["evict", "node", "-o", "json"]);
    let attachments: Api<VolumeAttachment> = Api::all(stage.client.clone());
    let counts_down = wait::patience().until(async {
        while !again.output().contains("pods and 1 volumes left") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(counts_down.await.is_some(), "{}", again.output());
    attachments.delete("data", &DeleteParams::default()).await.unwrap();
    assert_eq!(again.exit_code().await, Some(0), "{}", again.output());
    let output = again.output();
    let json: Value = serde_json::from_str(&output[output.find('{').unwrap()..]).unwrap();
    assert_eq!(json["standing"]["end"], "finished", "{output}");
    assert_eq!(
        progress(&stage.nodes().get("node").await.unwrap())["request"],
        "salvor.dev/force-eviction=INC-7:NoSchedule"
    );
    let explained = salvor.explain("node", "node").await;
    assert!(explained.contains("[eviction: Finished]") && explained.contains("NodeDown"), "{explained}");
}

/// Right after power-off the node is still Ready: the request is remembered, and the command follows it to the end.
async fn the_command_waits_for_a_node_that_is_still_ready(site: Site) {
    let stage = Stage::new(site).await;
    stage.node("node", json!({}), "True", &[]).await;
    stage.lease("node", 3600, 40).await;
    stage.pod("pod", "node", json!({})).await;
    let salvor = stage.salvor("", &[]);
    let words = salvor.command(&["evict", "node", "--yes"], 1).await;
    assert!(words.contains("it is Ready") && words.contains("--wait"), "{words}");
    let follows = salvor.spawn(["evict", "node", "--yes", "--wait"]);
    wait::for_object(&stage.nodes(), "node", "the request is left", |n| !effects(n).is_empty()).await;
    assert_eq!(phase(&stage.pods().get("pod").await.unwrap()), "Running");
    let unknown = json!({"type": "Ready", "status": "Unknown", "reason": "test"});
    stage.set_status("node", json!({ "conditions": [unknown] })).await;
    assert_eq!(follows.exit_code().await, Some(0), "{}", follows.output());
    assert!(stage.pods().get_opt("pod").await.unwrap().is_none());
}

/// Without a leader nothing is asked for, unless a person insists; and nothing is followed for ever.
async fn without_a_leader_the_command_is_refused_and_a_timeout_ends_it(site: Site) {
    let stage = Stage::new(site).await;
    stage.dead_node("node", &[]).await;
    let salvor =
        stage.salvor("leaderElection: {leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 500ms}\n", &[]);
    salvor.says("\"leading\"").await;
    salvor.program.kill().await;
    let refused = wait::patience().until(async {
        // The Lease of the leader that was killed has to expire first.
        loop {
            let tried = salvor.spawn(["evict", "node", "--dry-run"]);
            tried.exit_code().await;
            if tried.output().contains("Nobody leads") {
                return salvor.command(&["evict", "node", "--yes"], 1).await;
            }
        }
    });
    let words = refused.await.unwrap_or_default();
    assert!(words.contains("no replica of Salvor leads") && words.contains("--force-request"), "{words}");
    assert_eq!(effects(&stage.nodes().get("node").await.unwrap()), Vec::<String>::new());
    let insists = ["evict", "node", "--yes", "--force-request", "--timeout", "1s"];
    let words = salvor.command(&insists, 1).await;
    assert!(words.contains("The taint stays on node node"), "{words}");
    assert_eq!(effects(&stage.nodes().get("node").await.unwrap()), ["NoSchedule"]);
}

/// Another controller's trigger started it, and the rest waits for a person's confirmation, which the command gives.
async fn the_command_gives_proof_and_knows_an_end_by_either_way_of_taking_the_taint_off(site: Site) {
    let stage = Stage::new(site).await;
    stage.dead_node("node", &[]).await;
    stage.pod("db-0", "node", owned_by("StatefulSet")).await;
    let salvor = stage.salvor("eviction: {triggers: [{key: example.com/lost}]}\n", &[]);
    taint_with(&stage.client, "node", "example.com/lost", "", &["NoSchedule"]).await;
    wait::for_object(&stage.nodes(), "node", "it waits for proof", |n| {
        condition(n, "ForceEviction") == Some(("True".into(), "WaitingForPods".into()))
    })
    .await;
    let explained = salvor.command(&["explain", "node", "node"], 0).await;
    assert!(explained.contains("[eviction: WaitingForPods]"), "without the triggers too: {explained}");
    let output = salvor.command(&["evict", "node", "--yes"], 0).await;
    assert!(output.contains("is evicted") && output.contains("Its taint is removed when"), "{output}");
    assert!(stage.pods().get_opt("db-0").await.unwrap().is_none());
    drop(salvor);

    stage.dead_node("other", &[]).await;
    stage.pod("pod", "other", json!({})).await;
    let salvor = stage.salvor("eviction: {removeTaint: WhenEvicted}\n", &[]);
    let output = salvor.command(&["evict", "other", "--yes"], 0).await;
    assert!(output.contains("is evicted"), "{output}");
    wait::for_object(&stage.nodes(), "other", "its taint is taken off", |n| effects(n).is_empty()).await;
    // A late pod is created there and a new eviction requested: it starts again.
    stage.pod("late", "other", json!({})).await;
    salvor.command(&["evict", "other", "--yes"], 0).await;
    assert!(stage.pods().get_opt("late").await.unwrap().is_none());
}

/// The node comes back after any write. From then on no pod is failed, no volume is released, and no taint remains.
async fn a_node_that_returns_after_any_write_is_forced_no_further(site: Site) {
    let stage = Stage::new(site).await;
    let (mut forced, mut spared) = (0, 0);
    for number in 1.. {
        let (node, at) = (format!("node-{number}"), format!("after:{number}"));
        let names: Vec<String> = (0..2).map(|i| format!("pod-{number}-{i}")).collect();
        let volumes = join_all(names.iter().map(|name| stage.claimed_volume(name))).await;
        stage.dead_node(&node, &volumes.iter().map(String::as_str).collect::<Vec<_>>()).await;
        join_all(names.iter().map(|name| stage.pod(name, &node, claiming(name)))).await;
        let first = stage.salvor("concurrency: {writes: 1}\n", &[("SALVOR_TEST_CRASH", &at)]);
        taint(&stage.client, &node, "", &["NoSchedule"]).await;
        let end = format!("record the Normal event Finished on node {node}");
        let crashed = async {
            tokio::select! {
                code = first.program.exit_code() => code,
                () = first.says(&end) => None,
            }
        };
        // No crash means that there was no such write, so all have been tested.
        if crashed.await.is_none() {
            break;
        }
        stage.set_status(&node, json!({"conditions": [{"type": "Ready", "status": "True"}]})).await;
        stage.lease(&node, 0, 3600).await;
        let before = stage.nodes().get(&node).await.unwrap();
        let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let alive: Vec<Pod> = stage.pods().list(&of_node).await.unwrap().items;
        let alive: Vec<String> =
            alive.iter().filter(|p| phase(p) == "Running").map(ResourceExt::name_any).collect();
        (forced, spared) = (forced + names.len() - alive.len(), spared + alive.len());
        let _second = stage.salvor("", &[]);
        // The kubelet is back and ends the pods that are being deleted.
        let (nodes, pods) = (stage.nodes(), stage.pods());
        let kubelet = async {
            loop {
                for pod in pods.list(&of_node).await.unwrap() {
                    if pod.metadata.deletion_timestamp.is_some() {
                        let now = DeleteParams::default().grace_period(0);
                        // Another actor may have been faster.
                        let _ = pods.delete(&pod.name_any(), &now).await;
                    }
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let back = wait::never(
            &pods,
            &of_node,
            "a pod on a Ready node is failed",
            |pod| alive.contains(&pod.name_any()) && phase(pod) == "Failed",
            wait::for_object(&nodes, &node, "no taint is left", |n| {
                effects(n).is_empty() && progress(n).is_null()
            }),
        );
        let back = tokio::select! {
            back = back => back,
            () = kubelet => unreachable!(),
        };
        assert_eq!(in_use(&back), in_use(&before), "{at}: a volume was let go under a living kubelet");
        assert!(condition(&back, "ForceEviction").is_none_or(|(status, _)| status == "False"), "{at}");
        stage.nodes().delete(&node, &DeleteParams::default()).await.unwrap();
    }
    // The number depends on whether a pod or the node's event is written first.
    assert!(forced > 2 && spared > 2, "{forced} were forced before the return, {spared} were not");
}

salvor_testkit::on_both!(
    a_crash_between_any_two_writes_leads_to_the_same_end,
    status_comes_before_the_delete_and_finalizers_and_late_pods_do_not_keep_it_open,
    a_person_who_takes_the_taint_off_in_the_middle_stops_it,
    a_toleration_runs_out_and_a_node_that_is_deleted_is_left_to_pod_gc,
    a_new_pod_of_the_same_name_is_never_touched,
    a_node_that_renews_its_lease_is_refused_whatever_its_taint_says,
    a_zone_that_goes_down_at_once_is_held_and_said,
    a_stateful_pod_waits_for_proof_and_a_trigger_of_others_is_left_alone,
    a_volume_that_a_pod_on_the_node_still_needs_is_not_let_go,
    noise_on_the_node_and_on_its_pods_does_not_keep_it_from_its_end,
    when_the_leader_is_killed_in_the_middle_the_follower_finishes_it,
    the_command_shows_asks_follows_and_says_where_the_work_went,
    the_command_waits_for_a_node_that_is_still_ready,
    without_a_leader_the_command_is_refused_and_a_timeout_ends_it,
    the_command_gives_proof_and_knows_an_end_by_either_way_of_taking_the_taint_off,
    a_node_that_returns_after_any_write_is_forced_no_further,
);
