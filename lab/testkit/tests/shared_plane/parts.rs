//! The parts of the control plane do their work together.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use salvor_testkit::{Part, arena, shared, wait};
use serde_json::json;

use crate::support::step;

#[tokio::test]
async fn it_answers_and_all_parts_run() {
    let arena = arena("answers").await;
    let version = arena.client().apiserver_version().await.unwrap();
    assert_eq!(version.major, "1");
    for part in Part::ALL {
        assert!(arena.plane().pid(part).is_some(), "{part} does not run");
    }
}

#[tokio::test]
async fn all_callers_share_one_control_plane_and_no_namespace() {
    let (one, other) = tokio::join!(arena("one"), arena("one"));
    assert!(std::ptr::eq(one.plane(), other.plane()));
    assert!(std::ptr::eq(one.plane(), shared().await));
    assert_ne!(one.namespace(), other.namespace());
    assert_ne!(one.node_name(1), other.node_name(1));
}

/// A Node object as a kubelet would register it, ready for a pod.
async fn ready_node(nodes: &Api<Node>, name: &str, labels: &impl serde::Serialize) {
    let resources = json!({ "cpu": "4", "memory": "8Gi", "pods": "10" });
    let node = json!({ "metadata": { "name": name, "labels": labels } });
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let status = json!({ "status": {
        "capacity": resources,
        "allocatable": resources,
        "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "by hand",
                         "lastHeartbeatTime": jiff::Timestamp::now(), "lastTransitionTime": jiff::Timestamp::now() }],
    }});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

fn job(name: &str) -> Job {
    let job = json!({
        "metadata": { "name": name },
        "spec": { "template": { "spec": {
            "restartPolicy": "Never",
            "containers": [{ "name": "main", "image": "nothing" }],
            // The lease of a manually created node is not renewed.
            "tolerations": [{ "operator": "Exists" }],
        }}},
    });
    serde_json::from_value(job).unwrap()
}

#[tokio::test]
async fn a_job_gets_its_pod_and_the_pod_a_node_of_its_own_arena() {
    // Two arenas at once, each with one node: the scheduler has a choice, and must not use it.
    let (one, other) = tokio::join!(arena("mine"), arena("theirs"));
    for arena in [&one, &other] {
        let nodes: Api<Node> = Api::all(arena.client());
        ready_node(&nodes, &arena.node_name(0), &arena.node_labels()).await;
        let jobs: Api<Job> = Api::default_namespaced(arena.client());
        jobs.create(&PostParams::default(), &job("work")).await.unwrap();
    }
    for arena in [&one, &other] {
        let pods: Api<Pod> = Api::default_namespaced(arena.client());
        let of_the_job = ListParams::default().labels("batch.kubernetes.io/job-name=work");
        let bound = |pods: &[Pod]| {
            let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            pods.iter().filter_map(node).next().is_some()
        };
        let pods = wait::for_list(&pods, &of_the_job, "the Job's pod is bound to a node", bound).await;
        let node = pods[0].spec.as_ref().unwrap().node_name.clone();
        assert_eq!(node, Some(arena.node_name(0)));
    }
}

#[tokio::test]
async fn kubectl_works() {
    let arena = arena("kubectl").await;
    let config_maps: Api<ConfigMap> = Api::default_namespaced(arena.client());
    arena.kubectl().run(&["create", "configmap", "made-by-kubectl", "--from-literal=step=1"]).await.unwrap();
    assert_eq!(step(&config_maps.get("made-by-kubectl").await.unwrap()), Some("1"));

    let failure = arena.kubectl().run(&["get", "configmap", "absent"]).await.unwrap_err().to_string();
    assert!(failure.contains("get configmap absent") && failure.contains("not found"), "{failure}");
}
