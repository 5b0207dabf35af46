//! The seed's scenarios. Everything is real except the machines and their disks.

use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{Node, Pod},
    events::v1::Event,
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use salvor_nodes::{Fault, Storage, StorageFault};
use salvor_testkit::{
    Site, wait,
    workloads::{PodShape, deployment, stateful_set},
};

use crate::stage::{
    UNPROVEN, arena_with_salvor, attachments_to, condition, effects, is_finished, is_ready, is_running,
    node_of, phase, progress, taint, taint_with,
};

/// Scenario 1, the main purpose: a StatefulSet with a volume on a machine that is off.
async fn a_stateful_set_on_a_dead_machine_runs_elsewhere_with_its_volume(site: Site) {
    let (arena, _salvor) = arena_with_salvor(site, "scenario-1").await;
    let fleet = arena.fleet(3).await;
    let client = arena.client();
    let storage = Storage::start(client.clone(), &format!("{}.csi", arena.zone())).await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let sets: Api<StatefulSet> = Api::default_namespaced(client.clone());
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let attachments: Api<VolumeAttachment> = Api::all(client.clone());
    let set = stateful_set("db", 1, storage.class(), &PodShape::new());
    sets.create(&PostParams::default(), &set).await.unwrap();
    let first = wait::for_object(&pods, "db-0", "it runs", is_running).await;
    let node = node_of(&first).to_owned();
    deployments.create(&PostParams::default(), &deployment("web", 4, &PodShape::new())).await.unwrap();
    let web = ListParams::default().labels("app=web");
    wait::for_list(&pods, &web, "all four run", |all: &[Pod]| {
        all.iter().filter(|pod| is_running(pod)).count() == 4
    })
    .await;
    wait::for_object(&nodes, &node, "its volume is in use", |n| {
        n.status.as_ref().and_then(|s| s.volumes_in_use.as_ref()).is_some_and(|v| !v.is_empty())
    })
    .await;

    fleet.inject(&node, Fault::Crash).await.unwrap();
    taint(&client, &node, "INC-1", &["NoSchedule"]).await;
    let moved = wait::for_object(&pods, "db-0", "it runs on another node", |p| {
        p.uid() != first.uid() && is_running(p)
    })
    .await;
    assert_ne!(node_of(&moved), node);
    let left = wait::for_object(&nodes, &node, "its eviction is finished", is_finished).await;
    // The request is gone if the node was still Ready when it came: then it was only recorded.
    assert!(
        effects(&left).contains(&"NoExecute".to_owned()),
        "ours stays while the machine is off: {left:?}"
    );
    assert_eq!(condition(&left, "ForceEviction"), Some(("False".into(), "Finished".into())));
    assert_eq!(attachments_to(&client, &node).await.len(), 0);
    let on_it = pods.list(&ListParams::default()).await.unwrap();
    assert!(on_it.iter().all(|p| node_of(p) != node), "a pod is left on {node}");
    assert!(!is_ready(&left));

    fleet.heal(&node).await.unwrap();
    let back = wait::for_object(&nodes, &node, "it is back in service", |n| effects(n).is_empty()).await;
    assert!(is_ready(&back));
    assert!(progress(&back).is_null(), "nothing is remembered: {}", progress(&back));
    assert_eq!(fleet.truth().overlaps(fleet.clock().now()), []);
    wait::for_list(&attachments, &ListParams::default(), "the volume is attached once", |all| {
        all.iter().filter(|a| a.spec.attacher == storage.class()).count() == 1
    })
    .await;
    storage.stop().await;
}

/// Scenario 2: the machine starts again, but its network does not.
async fn a_machine_that_starts_cut_off_starts_nothing_that_was_evicted(site: Site) {
    let (arena, _salvor) = arena_with_salvor(site, "scenario-2").await;
    let fleet = arena.fleet(3).await;
    let client = arena.client();
    let storage = Storage::start(client.clone(), &format!("{}.csi", arena.zone())).await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let sets: Api<StatefulSet> = Api::default_namespaced(client.clone());
    let set = stateful_set("db", 2, storage.class(), &PodShape::new());
    sets.create(&PostParams::default(), &set).await.unwrap();
    wait::for_object(&pods, "db-1", "it runs", is_running).await;
    let first = wait::for_object(&pods, "db-0", "it runs", is_running).await;
    let node = node_of(&first).to_owned();
    fleet.inject(&node, Fault::Crash).await.unwrap();
    wait::for_object(&nodes, &node, "it is lost", |n| !is_ready(n)).await;
    fleet.boot_cut_off(&node).await.unwrap();
    taint(&client, &node, "", &["NoSchedule"]).await;
    wait::for_object(&pods, "db-0", "it runs on another node", |p| p.uid() != first.uid() && is_running(p))
        .await;
    wait::for_object(&nodes, &node, "its eviction is finished", is_finished).await;
    fleet.heal(&node).await.unwrap();
    wait::for_object(&nodes, &node, "it is back in service", |n| is_ready(n) && effects(n).is_empty()).await;
    assert_eq!(fleet.truth().overlaps(fleet.clock().now()), []);
    storage.stop().await;
}

/// Scenario 3: the node is back before Salvor acts.
async fn a_ready_node_loses_the_taint_and_nothing_else(site: Site) {
    let (arena, salvor) = arena_with_salvor(site, "scenario-3").await;
    let _fleet = arena.fleet(2).await;
    let client = arena.client();
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    deployments.create(&PostParams::default(), &deployment("web", 4, &PodShape::new())).await.unwrap();
    let web = ListParams::default().labels("app=web");
    let before = wait::for_list(&pods, &web, "all four run", |all: &[Pod]| {
        all.iter().filter(|pod| is_running(pod)).count() == 4
    })
    .await;
    let node = node_of(&before[0]).to_owned();
    taint(&client, &node, "INC-1", &["NoSchedule"]).await;
    let untouched = wait::never(
        &pods,
        &web,
        "a pod of a Ready node is touched",
        // Does not check readiness, which the control plane may doubt when the test machine stalls.
        |pod| pod.metadata.deletion_timestamp.is_some() || phase(pod) == "Failed",
        wait::for_object(&nodes, &node, "the taint is gone", |n| effects(n).is_empty()),
    );
    let node = untouched.await;
    assert!(progress(&node).is_null());
    assert_eq!(condition(&node, "ForceEviction"), None);
    salvor.says(&format!("take the taint salvor.dev/force-eviction off node {}", node.name_any())).await;
    let events: Api<Event> = Api::namespaced(client, "default");
    wait::for_list(&events, &ListParams::default(), "it is said why", |all| {
        let about = |e: &Event| e.regarding.as_ref().and_then(|r| r.name.clone()) == Some(node.name_any());
        all.iter().any(|e| about(e) && e.reason.as_deref() == Some("NodeReady"))
    })
    .await;
}

/// The node comes back in the middle: nothing is forced any more, the remaining pods end gracefully, and the taint is
/// removed.
async fn a_node_that_returns_in_the_middle_is_emptied_by_its_own_kubelet(site: Site) {
    let (arena, salvor) = arena_with_salvor(site, "returns").await;
    let fleet = arena.fleet(3).await;
    let client = arena.client();
    let storage = Storage::start(client.clone(), &format!("{}.csi", arena.zone())).await.unwrap();
    storage.inject(StorageFault::DetachHangs);
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let sets: Api<StatefulSet> = Api::default_namespaced(client.clone());
    sets.create(&PostParams::default(), &stateful_set("db", 1, storage.class(), &PodShape::new()))
        .await
        .unwrap();
    let first = wait::for_object(&pods, "db-0", "it runs", is_running).await;
    let node = node_of(&first).to_owned();
    fleet.inject(&node, Fault::Crash).await.unwrap();
    taint(&client, &node, "", &["NoSchedule"]).await;
    // The driver hangs, so the eviction stays open and reports the driver's name.
    wait::for_object(&nodes, &node, "its volume hangs", |n| {
        condition(n, "ForceEviction") == Some(("True".into(), "VolumesHang".into()))
    })
    .await;
    salvor.says(&format!("Check the CSI driver {}", storage.class())).await;
    // A pod that tolerates the taint for a while is alive when the node comes back, and stays.
    fleet.heal(&node).await.unwrap();
    let back =
        wait::for_object(&nodes, &node, "the taint is gone", |n| is_ready(n) && effects(n).is_empty()).await;
    assert_eq!(condition(&back, "ForceEviction"), Some(("False".into(), "NodeReturned".into())));
    storage.inject(StorageFault::None);
    wait::for_object(&pods, "db-0", "it runs again", |p| p.uid() != first.uid() && is_running(p)).await;
    assert_eq!(fleet.truth().overlaps(fleet.clock().now()), []);
    storage.stop().await;
}

/// A partitioned machine comes back with a container that could not be proven dead. It ends with its own grace period.
async fn a_pod_that_is_left_when_the_node_returns_ends_with_its_own_grace(site: Site) {
    let (arena, _salvor) = arena_with_salvor(site, "gently").await;
    let fleet = arena.fleet(3).await;
    let client = arena.client();
    let storage = Storage::start(client.clone(), &format!("{}.csi", arena.zone())).await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let sets: Api<StatefulSet> = Api::default_namespaced(client.clone());
    sets.create(&PostParams::default(), &stateful_set("db", 1, storage.class(), &PodShape::new()))
        .await
        .unwrap();
    let first = wait::for_object(&pods, "db-0", "it runs", is_running).await;
    let node = node_of(&first).to_owned();
    fleet.inject(&node, Fault::Partition).await.unwrap();
    taint_with(&client, &node, UNPROVEN, "", &["NoSchedule"]).await;
    wait::for_object(&nodes, &node, "it waits for proof", |n| {
        condition(n, "ForceEviction") == Some(("True".into(), "WaitingForPods".into()))
    })
    .await;
    fleet.heal(&node).await.unwrap();
    wait::for_object(&nodes, &node, "our taint is gone", |n| is_ready(n) && effects(n).is_empty()).await;
    wait::for_object(&pods, "db-0", "it runs again", |p| p.uid() != first.uid() && is_running(p)).await;
    let runs = fleet.truth().runs();
    let ended =
        runs.iter().find(|run| Some(&run.pod_uid) == first.metadata.uid.as_ref()).and_then(|run| run.ended);
    assert_eq!(ended.map(|(_, code)| code), Some(143), "its kubelet asked it to end, and it did");
    assert_eq!(fleet.truth().overlaps(fleet.clock().now()), []);
    storage.stop().await;
}

/// A person was wrong: the machine was only partitioned, and its volumes were released. It keeps the taint until it is
/// rebooted.
async fn a_machine_that_was_only_cut_off_keeps_the_taint_until_it_is_rebooted(site: Site) {
    let (arena, salvor) = arena_with_salvor(site, "same-boot").await;
    let fleet = arena.fleet(3).await;
    let client = arena.client();
    let storage = Storage::start(client.clone(), &format!("{}.csi", arena.zone())).await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let sets: Api<StatefulSet> = Api::default_namespaced(client.clone());
    sets.create(&PostParams::default(), &stateful_set("db", 1, storage.class(), &PodShape::new()))
        .await
        .unwrap();
    let first = wait::for_object(&pods, "db-0", "it runs", is_running).await;
    let node = node_of(&first).to_owned();
    wait::for_object(&nodes, &node, "its volume is in use", |n| {
        n.status.as_ref().and_then(|s| s.volumes_in_use.as_ref()).is_some_and(|v| !v.is_empty())
    })
    .await;
    fleet.inject(&node, Fault::Partition).await.unwrap();
    taint(&client, &node, "INC-1", &["NoSchedule"]).await;
    let left = wait::for_object(&nodes, &node, "its eviction is finished", is_finished).await;
    let boot = left.status.unwrap().node_info.unwrap().boot_id;
    assert_eq!(progress(&nodes.get(&node).await.unwrap())["bootID"], boot.as_str());

    fleet.heal(&node).await.unwrap();
    let back = wait::for_object(&nodes, &node, "it is told that it was not rebooted", |n| {
        condition(n, "ForceEviction") == Some(("False".into(), "NotRebooted".into()))
    })
    .await;
    assert!(is_ready(&back) && effects(&back).contains(&"NoExecute".to_owned()), "{back:?}");
    salvor.says(&format!("kubectl taint node {node} salvor.dev/force-eviction-")).await;
    fleet.reboot(&node).await.unwrap();
    let back = wait::for_object(&nodes, &node, "it is back in service", |n| effects(n).is_empty()).await;
    assert_ne!(back.status.as_ref().unwrap().node_info.as_ref().unwrap().boot_id, boot);
    assert!(progress(&back).is_null(), "nothing is remembered: {}", progress(&back));
    storage.stop().await;
}

salvor_testkit::on_both!(
    a_machine_that_was_only_cut_off_keeps_the_taint_until_it_is_rebooted,
    a_stateful_set_on_a_dead_machine_runs_elsewhere_with_its_volume,
    a_machine_that_starts_cut_off_starts_nothing_that_was_evicted,
    a_ready_node_loses_the_taint_and_nothing_else,
    a_node_that_returns_in_the_middle_is_emptied_by_its_own_kubelet,
    a_pod_that_is_left_when_the_node_returns_ends_with_its_own_grace,
);
