//! The seed's scenarios, all parts real but the machines and their disks.

use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{Node, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use salvor_nodes::{Fault, Storage};
use salvor_testkit::{
    arena, wait,
    workloads::{PodShape, deployment, stateful_set},
};

use crate::stage::{
    attachments_to, condition, effects, is_finished, is_ready, is_running, node_of, progress, shared_salvor,
    taint,
};

/// Scenario 1, and what it is all for: a StatefulSet with a volume on a machine that is off.
#[tokio::test]
async fn a_stateful_set_on_a_dead_machine_runs_elsewhere_with_its_volume() {
    let (_, _salvor) = shared_salvor().await;
    let arena = arena("scenario-1").await;
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
    assert_eq!(effects(&left), ["NoSchedule", "NoExecute"], "the taints stay while the machine is off");
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
