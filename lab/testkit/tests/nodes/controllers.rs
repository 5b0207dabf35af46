//! Controllers treat unreachable nodes and new templates the same way on both sites.

use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{Event, Node, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use salvor_nodes::{Fault, Storage};
use salvor_testkit::{
    Arena, Site, wait,
    workloads::{PodShape, deployment, pod, stateful_set},
};
use serde_json::json;

use crate::{condition, has_taint, is_ready, is_terminating, node_of, of_app, phase};

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

fn runs(pod: &Pod) -> bool {
    condition(pod, "Ready") == Some("True") && !is_terminating(pod)
}

async fn three_replicas(arena: &Arena<'_>) -> Vec<Pod> {
    let deployments: Api<Deployment> = Api::default_namespaced(arena.client());
    deployments.create(&PostParams::default(), &deployment("web", 3, &PodShape::new())).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    wait::for_list(&pods, &of_app("web"), "three pods run", |all| all.len() == 3 && all.iter().all(runs))
        .await
}

/// Taints in readable form, sorted.
fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
    let mut all: Vec<String> = taints.iter().map(|t| format!("{}:{}", t.key, t.effect)).collect();
    all.sort();
    all
}

async fn a_lost_node_is_tainted_its_pods_are_marked_and_replaced_and_healing_ends_them(site: Site) {
    let arena = site.arena("lost").await;
    let fleet = arena.fleet(4).await;
    let running = three_replicas(&arena).await;
    let spread: std::collections::BTreeSet<&str> = running.iter().map(node_of).collect();
    assert_eq!(spread.len(), 3, "replicas are spread over nodes: {spread:?}");
    let victim = &running[0];
    let node = node_of(victim);
    fleet.inject(node, Fault::Partition).await.unwrap();

    let nodes: Api<Node> = Api::all(arena.client());
    let lost = wait::for_object(&nodes, node, "it is tainted", |n| {
        taints(n) == [format!("{UNREACHABLE}:NoExecute"), format!("{UNREACHABLE}:NoSchedule")]
    })
    .await;
    let conditions = lost.status.unwrap().conditions.unwrap();
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        let of = conditions.iter().find(|c| c.type_ == kind).unwrap();
        assert_eq!(
            (of.status.as_str(), of.reason.as_deref()),
            ("Unknown", Some("NodeStatusUnknown")),
            "{kind}"
        );
    }
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let marked = wait::for_object(&pods, &victim.name_any(), "it is marked", is_terminating).await;
    assert_eq!(condition(&marked, "DisruptionTarget"), Some("True"));
    assert_eq!(condition(&marked, "Ready"), Some("False"), "nobody vouches for it");
    assert_eq!(phase(&marked), "Running", "a silent kubelet confirms nothing");
    wait::for_list(&pods, &of_app("web"), "it is replaced elsewhere", |all| {
        all.iter().filter(|p| runs(p)).count() == 3
    })
    .await;
    let events: Api<Event> = Api::default_namespaced(arena.client());
    wait::for_list(&events, &ListParams::default(), "people are told", |all| {
        let told = |reason: &str| {
            all.iter().any(|e| {
                e.reason.as_deref() == Some(reason) && e.involved_object.name == victim.metadata.name
            })
        };
        told("NodeNotReady") && told("TaintManagerEviction") && told("Scheduled")
    })
    .await;

    fleet.heal(node).await.unwrap();
    wait::for_object(&nodes, node, "it is ready again", |n| is_ready(n) && taints(n).is_empty()).await;
    wait::for_absence(&pods, &victim.name_any()).await;
}

async fn a_template_is_rolled_out_as_kubectl_sees_it(site: Site) {
    let arena = site.arena("rollout").await;
    let _fleet = arena.fleet(3).await;
    let before = three_replicas(&arena).await;
    let kubectl = arena.kubectl();
    kubectl.run(&["set", "image", "deployment/web", "main=work:2"]).await.unwrap();
    let said = kubectl.run(&["rollout", "status", "deployment/web", "--timeout=180s"]).await.unwrap();
    assert!(said.contains("successfully rolled out"), "{said}");
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let after = wait::for_list(&pods, &of_app("web"), "only the new pods are left", |all| {
        all.len() == 3 && all.iter().all(runs)
    })
    .await;
    let image = |p: &Pod| p.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
    assert!(after.iter().all(|p| image(p) == "work:2"), "{after:?}");
    assert!(after.iter().all(|p| before.iter().all(|b| b.uid() != p.uid())));
    kubectl.run(&["rollout", "undo", "deployment/web"]).await.unwrap();
    kubectl.run(&["rollout", "status", "deployment/web", "--timeout=180s"]).await.unwrap();
    let sets = kubectl.run(&["get", "replicasets", "-o", "jsonpath={.items[*].metadata.annotations}"]).await;
    let sets = sets.unwrap();
    assert!(sets.contains("\"deployment.kubernetes.io/revision\":\"3\""), "{sets}");
    let back = wait::for_list(&pods, &of_app("web"), "the first image is back", |all| {
        all.len() == 3 && all.iter().all(|p| runs(p) && image(p) == "work")
    })
    .await;
    assert_eq!(back.len(), 3);
}

async fn pods_of_a_node_that_is_gone_are_collected(site: Site) {
    let arena = site.arena("orphans").await;
    let fleet = arena.fleet(3).await;
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let mut held = pod("held", &PodShape::new());
    held.metadata.finalizers = Some(vec!["test.salvor.dev/hold".to_owned()]);
    pods.create(&PostParams::default(), &held).await.unwrap();
    let bound = wait::for_object(&pods, "held", "it runs", runs).await;
    let node = node_of(&bound).to_owned();
    fleet.inject(&node, Fault::Crash).await.unwrap();
    let nodes: Api<Node> = Api::all(arena.client());
    nodes.delete(&node, &DeleteParams::default()).await.unwrap();
    let gone = wait::for_object(&pods, "held", "it is collected", |p| {
        phase(p) == "Failed" && p.metadata.deletion_grace_period_seconds == Some(0)
    })
    .await;
    let all = gone.status.unwrap().conditions.unwrap();
    let why = all.iter().find(|c| c.type_ == "DisruptionTarget").unwrap();
    assert_eq!(why.reason.as_deref(), Some("DeletionByPodGC"));
    assert_eq!(why.message.as_deref(), Some("PodGC: node no longer exists"));
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    pods.patch("held", &PatchParams::default(), &release).await.unwrap();
    wait::for_absence(&pods, "held").await;
}

/// How a lost node blocks a StatefulSet, and the taint that is the only remedy without Salvor.
async fn a_stateful_set_waits_for_its_lost_pod_and_the_out_of_service_taint_frees_pod_and_volume(site: Site) {
    let arena = site.arena("sts-lost").await;
    let fleet = arena.fleet(4).await;
    let storage = Storage::start(arena.client(), &format!("{}.csi", arena.zone())).await.unwrap();
    let sets: Api<StatefulSet> = Api::default_namespaced(arena.client());
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let nodes: Api<Node> = Api::all(arena.client());
    let set = stateful_set("db", 2, storage.class(), &PodShape::new());
    sets.create(&PostParams::default(), &set).await.unwrap();
    let ready = |n| move |s: &StatefulSet| s.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0) == n;
    wait::for_object(&sets, "db", "both are ready", ready(2)).await;
    let victim = pods.get("db-1").await.unwrap();
    let node = node_of(&victim).to_owned();
    fleet.inject(&node, Fault::Crash).await.unwrap();
    wait::for_object(&pods, "db-1", "it is marked", is_terminating).await;
    wait::for_object(&nodes, &node, "it is lost", |n| has_taint(n, UNREACHABLE)).await;
    let stuck = pods.get("db-1").await.unwrap();
    assert_eq!(stuck.uid(), victim.uid(), "never two of one name");

    let taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
    arena.kubectl().run(&["taint", "node", &node, taint]).await.unwrap();
    let moved =
        wait::for_object(&pods, "db-1", "it runs elsewhere", |p| p.uid() != victim.uid() && runs(p)).await;
    assert_ne!(node_of(&moved), node);
    let attachments: Api<VolumeAttachment> = Api::all(arena.client());
    wait::for_list(&attachments, &ListParams::default(), "nothing is attached to the lost node", |all| {
        all.iter().all(|a| a.spec.attacher != storage.class() || a.spec.node_name != node)
    })
    .await;
    wait::for_object(&sets, "db", "both are ready again", ready(2)).await;
    assert_eq!(fleet.truth().overlaps(fleet.clock().now()), [], "the machine was off");
    storage.stop().await;
}

async fn a_pod_that_fits_nowhere_says_so_until_there_is_room(site: Site) {
    let arena = site.arena("room").await;
    let _fleet = arena.fleet(1).await;
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let large = |name: &str| {
        let resources = json!({"requests": {"cpu": "6"}});
        let shape = PodShape::new()
            .spec("containers", json!([{"name": "main", "image": "work", "resources": resources}]));
        pod(name, &shape)
    };
    pods.create(&PostParams::default(), &large("first")).await.unwrap();
    wait::for_object(&pods, "first", "it runs", runs).await;
    pods.create(&PostParams::default(), &large("second")).await.unwrap();
    let waits = wait::for_object(&pods, "second", "it says that it waits", |p| {
        condition(p, "PodScheduled") == Some("False")
    })
    .await;
    let conditions = waits.status.unwrap().conditions.unwrap();
    let why = conditions.iter().find(|c| c.type_ == "PodScheduled").unwrap();
    assert_eq!(why.reason.as_deref(), Some("Unschedulable"));
    assert!(why.message.as_deref().unwrap_or("").contains("Insufficient cpu"), "{why:?}");
    pods.delete("first", &DeleteParams::default()).await.unwrap();
    wait::for_object(&pods, "second", "it runs", runs).await;
}

salvor_testkit::on_both!(
    a_lost_node_is_tainted_its_pods_are_marked_and_replaced_and_healing_ends_them,
    a_template_is_rolled_out_as_kubectl_sees_it,
    pods_of_a_node_that_is_gone_are_collected,
    a_stateful_set_waits_for_its_lost_pod_and_the_out_of_service_taint_frees_pod_and_volume,
    a_pod_that_fits_nowhere_says_so_until_there_is_room,
);
