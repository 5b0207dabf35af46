//! Nodes that die, and volumes that stay attached to them: real node lifecycle, scheduler, attach/detach and disruption
//! controllers, simulated machines and disks.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use salvor_nodes::{Fault, Storage};
use salvor_testkit::{
    Site, wait,
    workloads::{PodShape, deployment},
};
use serde_json::{Value, json};

use crate::stage::Stage;

fn runs(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    pod.metadata.deletion_timestamp.is_none()
        && conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
}

fn names_of_chain(answer: &Value) -> Vec<String> {
    let link = |link: &Value| link["object"]["kind"].as_str().unwrap().to_owned();
    answer["chain"].as_array().unwrap().iter().map(link).collect()
}

#[tokio::test]
async fn a_lost_node_and_its_volume_are_told_and_freed_by_the_remedy() {
    if !Site::Real.is_chosen() {
        return;
    }
    let arena = Site::Real.arena("why-nodes").await;
    let stage = Stage::new(&arena.admin(), arena.kubectl(), arena.namespace());
    let fleet = arena.fleet(2).await;
    let class = format!("{}.csi", arena.zone());
    let pods: Api<Pod> = Api::default_namespaced(arena.client());

    // A claim of a StorageClass that does not exist yet.
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}},
    });
    stage.create("", "PersistentVolumeClaim", claim).await;
    let mounts = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    let shape = PodShape::new().spec("volumes", mounts);
    let deployments: Api<Deployment> = Api::default_namespaced(arena.client());
    deployments.create(&PostParams::default(), &deployment("db", 1, &shape)).await.unwrap();
    let answer = stage.until_in("deploy/db", "VolumeUnbound", "PersistentVolumeClaim", "data").await;
    assert_eq!(
        names_of_chain(&answer),
        ["Deployment", "ReplicaSet", "Pod", "PersistentVolumeClaim"],
        "{answer:#}"
    );
    stage.until_in("pvc/data", "VolumeUnbound", "PersistentVolumeClaim", "data").await;
    let storage = Storage::start(arena.client(), &class).await.unwrap();
    stage.until_well("deploy/db").await;
    stage.until_well("pvc/data").await;
    let first =
        wait::for_list(&pods, &ListParams::default(), "it runs", |all: &[Pod]| all.iter().any(runs)).await;
    let first = first.into_iter().find(runs).unwrap();
    let node = first.spec.as_ref().unwrap().node_name.clone().unwrap();
    let about = format!("node/{node}");

    // A budget keeps it on a cordoned node.
    let budget = json!({"metadata": {"name": "keep"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}}});
    stage.create("policy", "PodDisruptionBudget", budget).await;
    stage.kubectl.run(&["cordon", &node]).await.unwrap();
    let answer = stage.until(&about, "DisruptionBudget").await;
    assert_eq!(answer["rootCauses"][0]["object"]["name"], "keep", "{answer:#}");
    assert_eq!(names_of_chain(&answer), ["Node", "Pod", "PodDisruptionBudget"], "{answer:#}");
    stage.kubectl.run(&["uncordon", &node]).await.unwrap();
    stage.until_well(&about).await;
    stage.kubectl.run(&["delete", "pdb", "keep"]).await.unwrap();

    // The machine is off: at first its pod is not even marked for deletion, then it is stuck.
    fleet.inject(&node, Fault::Crash).await.unwrap();
    let of_first = format!("pod/{}", first.name_any());
    let answer = stage.until_in(&of_first, "NodeLost", "Node", &node).await;
    assert_eq!(names_of_chain(&answer), ["Pod", "Node"], "{answer:#}");
    let lease = ["get", "lease", &node, "-n", "kube-node-lease", "-o", "jsonpath={.spec.renewTime}"];
    let renewed: jiff::Timestamp = stage.kubectl.run(&lease).await.unwrap().parse().unwrap();
    let since: jiff::Timestamp = answer["rootCauses"][0]["since"].as_str().unwrap().parse().unwrap();
    assert_eq!(since, renewed, "{answer:#}");
    stage.until_in(&about, "NodeLost", "Node", &node).await;

    // Its replacement waits for the volume until a person confirms that the machine is off.
    let answer = stage.until("deploy/db", "VolumeAttachedElsewhere").await;
    assert_eq!(answer["missing"], "1 of 1 pods", "{answer:#}");
    assert_eq!(
        names_of_chain(&answer),
        ["Deployment", "ReplicaSet", "Pod", "PersistentVolumeClaim", "VolumeAttachment"],
        "{answer:#}"
    );
    stage.until("pvc/data", "VolumeAttachedElsewhere").await;
    let all = stage.all().await;
    assert_eq!(all["groups"][0]["rootCause"]["code"], "VolumeAttachedElsewhere", "{all:#}");
    assert_eq!(all["groups"][0]["workloads"][0]["name"], "db", "{all:#}");
    let command = answer["remedies"][1]["command"].as_str().unwrap();
    assert!(command.contains("node.kubernetes.io/out-of-service"), "{answer:#}");
    stage.carry_out(&answer).await;
    stage.until_well("deploy/db").await;
    storage.stop().await;
}
