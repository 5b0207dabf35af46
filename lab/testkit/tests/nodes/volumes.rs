//! Volumes: attached before a pod starts, in use while it runs, detached before it starts elsewhere.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Node, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use salvor_nodes::Storage;
use salvor_testkit::{
    Site, wait,
    workloads::{PodShape, stateful_set},
};

use crate::{condition, node_of};

fn in_use(node: &Node) -> usize {
    let status = node.status.as_ref();
    status.and_then(|s| s.volumes_in_use.as_ref()).map_or(0, Vec::len)
}

async fn a_stateful_set_gets_its_volumes_and_takes_them_to_another_node(site: Site) {
    let arena = site.arena("volumes").await;
    let fleet = arena.fleet(2).await;
    let storage = Storage::start(arena.client(), &format!("{}.csi", arena.zone())).await.unwrap();
    let sets: Api<StatefulSet> = Api::default_namespaced(arena.client());
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let nodes: Api<Node> = Api::all(arena.client());
    let attachments: Api<VolumeAttachment> = Api::all(arena.client());
    let set = stateful_set("db", 2, storage.class(), &PodShape::new());
    sets.create(&PostParams::default(), &set).await.unwrap();
    wait::for_object(&sets, "db", "both replicas are ready", |s| {
        s.status.as_ref().and_then(|s| s.ready_replicas) == Some(2)
    })
    .await;
    let pod = pods.get("db-0").await.unwrap();
    let node = node_of(&pod).to_owned();
    wait::for_object(&nodes, &node, "its volume is in use", |n| in_use(n) > 0).await;

    arena.kubectl().run(&["cordon", &node]).await.unwrap();
    pods.delete("db-0", &DeleteParams::default()).await.unwrap();
    let moved = wait::for_object(&pods, "db-0", "it runs on the other node", |p| {
        p.metadata.uid != pod.metadata.uid && condition(p, "Ready") == Some("True")
    })
    .await;
    assert_ne!(node_of(&moved), node);
    let mine = |a: &&VolumeAttachment| a.spec.attacher == storage.class();
    wait::for_list(&attachments, &ListParams::default(), "nothing is attached to the old node", |all| {
        let stays = all.iter().filter(mine).any(|a| a.spec.node_name == node);
        !stays
    })
    .await;
    assert_eq!(fleet.truth().overlaps(fleet.clock().now()), []);
    storage.stop().await;
}

salvor_testkit::on_both!(a_stateful_set_gets_its_volumes_and_takes_them_to_another_node);
