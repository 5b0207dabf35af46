//! Lost nodes whose machines may still run. A pod that must not run twice waits. Any other pod is marked Failed and
//! then deleted.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{ListParams, PostParams},
};
use salvor_nodes::{Fault, Storage};
use salvor_testkit::{Recorder, Site, wait};
use serde_json::{Value, json};

use crate::{
    controller::{Settings, cases},
    objects::AppWrapper,
    stage::{Run, Stage, Wrap},
};

/// Timers with which a reset takes only seconds.
fn hasty(wrap: Wrap) -> Wrap {
    wrap.set("failureGracePeriodDuration", "1s")
        .set("retryPausePeriodDuration", "0s")
        .set("forcefulDeletionGracePeriodDuration", "2s")
}

async fn node_of(stage: &Stage<'_>, pod: &str) -> String {
    stage.pods.get(pod).await.unwrap().spec.unwrap().node_name.unwrap()
}

/// It keeps its quota and waits for a machine, which it names. This does not change while other objects come and go.
async fn is_held(stage: &Stage<'_>, name: &str, pod: &str, node: &str) -> AppWrapper {
    let held = stage
        .until(name, "it waits for the machine", |w| w.reason("DeletingResources") == "MachineMayRun")
        .await;
    assert_eq!(
        (held.phase(), held.is("QuotaReserved"), held.is("ResourcesDeployed")),
        ("Resetting", true, true)
    );
    let message = held.condition("DeletingResources").unwrap().message;
    for word in [pod, node, "salvor evict", "kubectl taint nodes", "kubectl annotate pod"] {
        assert!(message.contains(word), "{word} is not in {message}");
    }
    let only = ListParams::default().fields(&format!("metadata.name={name}"));
    let goes_on = |w: &AppWrapper| w.phase() != "Resetting" || !w.is("QuotaReserved");
    wait::never(&stage.wrappers, &only, "it goes on", goes_on, async {
        let clock = Run::to_end("4s", 0).pod("clock");
        stage.create(Wrap::new("clock").of(clock)).await;
        stage.phase("clock", "Succeeded").await;
    })
    .await;
    stage.event(name, "MachineMayRun", pod).await;
    held
}

/// Checks that every container of these pods ended before the next one started.
fn ran_one_after_another(stage: &Stage<'_>, pods: impl Fn(&str) -> bool) {
    let runs = stage.fleet.truth().runs();
    let mut runs: Vec<_> = runs.iter().filter(|run| pods(&run.pod)).collect();
    runs.sort_by_key(|run| run.from);
    for pair in runs.windows(2) {
        let ended = pair[0].ended.map(|(at, _)| at);
        assert!(ended.is_some_and(|ended| ended <= pair[1].from), "they ran side by side: {pair:?}");
    }
    let uids: BTreeSet<&str> = runs.iter().map(|run| run.pod_uid.as_str()).collect();
    assert_eq!(uids.len(), 2, "it ran on one machine and then on another: {runs:?}");
}

/// A StatefulSet with a volume on a partitioned node. Its copy waits until a person confirms that the machine is off.
async fn a_stateful_set_with_a_volume_waits_for_its_machine(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 2, &Settings::default()).await;
    let driver = format!("{}.csi", stage.arena.zone());
    let storage = Storage::start(stage.arena.client(), &driver).await.unwrap();
    let mut run = Run::on();
    run.spec["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    let mut set = run.stateful_set("db", 1);
    set["spec"]["volumeClaimTemplates"] = json!([{
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": storage.class(),
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }]);
    stage.create(hasty(Wrap::new("w").of(set))).await;
    stage.ready("w").await;
    let node = node_of(&stage, "db-0").await;
    stage.fleet.inject(&node, Fault::Partition).await.unwrap();
    let held = is_held(&stage, "w", "db-0", &node).await;
    let record = &held.status["resets"][0];
    assert_eq!((&record["cause"], &record["counted"]), (&json!("NodeLost"), &json!(false)), "{record}");
    let name = format!("{}/w", stage.arena.namespace());
    let said = stage.controller().salvor().explain("appwrapper", &name).await;
    for word in ["MachineMayRun", "db-0", &node, "kubectl taint nodes"] {
        assert!(said.contains(word), "{word} is not in:\n{said}");
    }

    stage.fleet.inject(&node, Fault::Crash).await.unwrap();
    stage.taint_node(&node, "node.kubernetes.io/out-of-service", "nodeshutdown", "NoExecute").await;
    stage.ready("w").await;
    assert_ne!(node_of(&stage, "db-0").await, node);
    ran_one_after_another(&stage, |pod| pod == "db-0");
    assert_eq!(stage.fleet.truth().overlaps(stage.fleet.clock().now()), []);
    storage.stop().await;
}

/// The reset deletes a Job that replaces pods only after their end. Its successor still waits until the node is back.
async fn a_job_that_awaits_the_end_of_its_pods_waits_for_their_machine(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 2, &Settings::default()).await;
    let spec = json!({
        "completionMode": "Indexed", "completions": 1, "parallelism": 1, "podReplacementPolicy": "Failed",
    });
    stage.create(hasty(Wrap::new("w").of(stage.job("j", spec, &Run::on())))).await;
    stage.ready("w").await;
    let pod = stage.pod_names("w").await.remove(0);
    let node = node_of(&stage, &pod).await;
    stage.fleet.inject(&node, Fault::Partition).await.unwrap();
    is_held(&stage, "w", &pod, &node).await;
    wait::for_absence(&stage.jobs, "j").await;

    stage.fleet.heal(&node).await.unwrap();
    stage.ready("w").await;
    ran_one_after_another(&stage, |pod| pod.starts_with("j-"));
}

/// Pods that may run twice are deleted by force after their grace period, and first marked Failed for observers.
async fn what_may_run_twice_is_marked_failed_and_then_freed(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 2, &Settings::default()).await;
    // Nothing evicts it, so only the reset ends it. No new pod is scheduled to the lost node.
    let stays = Run::on().spec("tolerations", json!([{"operator": "Exists", "effect": "NoExecute"}]));
    stage.create(hasty(Wrap::new("w").of(stage.job("j", json!({}), &stays)))).await;
    stage.ready("w").await;
    let first = stage.pods_of("w").await.remove(0);
    let node = first.spec.as_ref().unwrap().node_name.clone().unwrap();
    let recorder: Recorder<Pod> = Recorder::start(&stage.pods, &ListParams::default()).await;
    stage.fleet.inject(&node, Fault::Partition).await.unwrap();
    let moved = |pods: &[Pod]| {
        pods.len() == 1 && pods[0].spec.as_ref().unwrap().node_name.as_ref().is_some_and(|on| *on != node)
    };
    stage.pods_until("w", "it is on the other node", moved).await;
    let changes = recorder.changes().await;
    let last = changes.iter().rev().find(|it| Some(&it.uid) == first.uid().as_ref()).unwrap();
    assert_eq!(last.object["status"]["phase"], "Failed", "{}", last.object);
    let conditions = last.object["status"]["conditions"].as_array().unwrap();
    let is_target = |it: &&Value| it["type"] == "DisruptionTarget" && it["status"] == "True";
    let target = conditions.iter().find(is_target).unwrap();
    assert_eq!(target["reason"], "AppWrapperDeletionBySalvor", "{target}");
    assert!(stage.get("w").await.status["resets"][0]["pods"][0]["node"] == json!(node));
}

/// A pod that does not terminate on a live node gets its own grace period, whatever the AppWrapper's timers say.
async fn a_pod_on_a_living_node_has_its_own_grace(site: Site) {
    let stage = Stage::new(site, "owngrace", 1).await;
    let slow = Run::on().script("ignore-sigterm", "forever").spec("terminationGracePeriodSeconds", 8.into());
    stage.create(Wrap::new("w").of(slow.pod("p")).set("forcefulDeletionGracePeriodDuration", "1s")).await;
    stage.ready("w").await;
    let recorder: Recorder<Pod> = Recorder::start(&stage.pods, &ListParams::default()).await;
    stage.suspend("w", true).await;
    stage.released("w", "Suspended").await;
    let changes = recorder.changes().await;
    let over = changes.iter().find_map(|it| it.object["metadata"]["deletionTimestamp"].as_str()).unwrap();
    let runs = stage.fleet.truth().runs();
    let run = runs.iter().find(|run| run.pod == "p" && run.namespace == stage.arena.namespace()).unwrap();
    let (ended, _) = run.ended.unwrap();
    assert!(ended >= over.parse().unwrap(), "it ended at {ended}, and its grace at {over}");
}

/// The volumes of a pod with a claim for one node, which is created.
async fn claim_a_volume(stage: &Stage<'_>, storage: &Storage) -> Value {
    let claims: kube::Api<k8s_openapi::api::core::v1::PersistentVolumeClaim> =
        kube::Api::default_namespaced(stage.arena.client());
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": storage.class(),
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
}

/// A bare Pod with a volume for one node is a component, and no less a pod: its deletion does not go around the question.
async fn a_bare_pod_with_a_volume_waits_for_its_machine(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 2, &Settings::default()).await;
    let driver = format!("{}.csi", stage.arena.zone());
    let storage = Storage::start(stage.arena.client(), &driver).await.unwrap();
    let volumes = claim_a_volume(&stage, &storage).await;
    stage.create(hasty(Wrap::new("w").of(Run::on().spec("volumes", volumes).pod("p")))).await;
    stage.ready("w").await;
    let node = node_of(&stage, "p").await;
    stage.fleet.inject(&node, Fault::Partition).await.unwrap();
    is_held(&stage, "w", "p", &node).await;
    // Its owner consents to a double run.
    let consent =
        json!({"metadata": {"annotations": {"kueue.x-k8s.io/safe-to-forcefully-terminate": "true"}}});
    let patch = kube::api::Patch::Merge(consent);
    let first = stage.pods.patch("p", &kube::api::PatchParams::default(), &patch).await.unwrap().uid();
    wait::for_object(&stage.pods, "p", "it is another one", |pod| pod.uid() != first).await;
    storage.stop().await;
}

/// A pod that asks for no grace, and that only a reset ends.
fn without_grace() -> Run {
    Run::on()
        .spec("terminationGracePeriodSeconds", 0.into())
        .spec("tolerations", json!([{"operator": "Exists", "effect": "NoExecute"}]))
}

/// The API server takes a pod whose spec asks for no grace away at once, before its kubelet has heard of it.
async fn a_bare_pod_without_grace_waits_for_its_machine(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 2, &Settings::default()).await;
    let driver = format!("{}.csi", stage.arena.zone());
    let storage = Storage::start(stage.arena.client(), &driver).await.unwrap();
    let volumes = claim_a_volume(&stage, &storage).await;
    stage.create(hasty(Wrap::new("w").of(without_grace().spec("volumes", volumes).pod("p")))).await;
    stage.ready("w").await;
    let first = stage.pods.get("p").await.unwrap().uid();
    let node = node_of(&stage, "p").await;
    stage.fleet.inject(&node, Fault::Partition).await.unwrap();
    is_held(&stage, "w", "p", &node).await;
    let pod = stage.pods.get("p").await.unwrap();
    assert_eq!((pod.uid(), pod.metadata.deletion_grace_period_seconds), (first, Some(1)));

    stage.fleet.inject(&node, Fault::Crash).await.unwrap();
    stage.taint_node(&node, "node.kubernetes.io/out-of-service", "nodeshutdown", "NoExecute").await;
    stage.ready("w").await;
    ran_one_after_another(&stage, |pod| pod == "p");
    storage.stop().await;
}

/// The garbage collector deletes the pods of a StatefulSet with the grace of their specs: so the StatefulSet itself waits.
async fn a_stateful_set_whose_pods_have_no_grace_waits_for_their_machine(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 2, &Settings::default()).await;
    stage.create(hasty(Wrap::new("w").of(without_grace().stateful_set("db", 1)))).await;
    stage.ready("w").await;
    let first = stage.pods.get("db-0").await.unwrap().uid();
    let node = node_of(&stage, "db-0").await;
    stage.fleet.inject(&node, Fault::Partition).await.unwrap();
    is_held(&stage, "w", "db-0", &node).await;
    let pod = stage.pods.get("db-0").await.unwrap();
    assert_eq!((pod.uid(), pod.metadata.deletion_timestamp), (first, None));

    stage.fleet.inject(&node, Fault::Crash).await.unwrap();
    stage.taint_node(&node, "node.kubernetes.io/out-of-service", "nodeshutdown", "NoExecute").await;
    stage.ready("w").await;
    ran_one_after_another(&stage, |pod| pod == "db-0");
}

cases!(
    Salvor, on both sites:
    a_stateful_set_with_a_volume_waits_for_its_machine,
    a_job_that_awaits_the_end_of_its_pods_waits_for_their_machine,
    what_may_run_twice_is_marked_failed_and_then_freed,
    a_pod_on_a_living_node_has_its_own_grace,
    a_bare_pod_with_a_volume_waits_for_its_machine,
    a_bare_pod_without_grace_waits_for_its_machine,
    a_stateful_set_whose_pods_have_no_grace_waits_for_their_machine,
);
