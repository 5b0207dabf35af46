use salvor_api::names::{annotations, taints};

use super::{pools::ZONE, workloads::sum, *};
use crate::scenario::{Amount, Budget, Scenario, Source};

fn node(name: &str, zone: &str, gpu: bool) -> Value {
    let mut node = json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name, ZONE: zone, "team": "blue" } },
        "spec": { "taints": [{ "key": "node.kubernetes.io/unreachable", "effect": "NoExecute" }] },
        "status": { "allocatable": { "cpu": "8", "memory": "32Gi", "pods": "110", "hugepages-2Mi": "0" } },
    });
    if gpu {
        node["status"]["allocatable"]["nvidia.com/gpu"] = "1".into();
        node["spec"]["taints"] = json!([{ "key": "nvidia.com/gpu", "effect": "NoSchedule" }]);
    }
    node
}

fn objects() -> Objects {
    let owner = |uid: &str| json!([{ "kind": "X", "uid": uid, "controller": true }]);
    let template = |marks: Value| {
        json!({ "metadata": { "annotations": marks }, "spec": {
            "terminationGracePeriodSeconds": 20,
            "tolerations": [{ "key": taints::UNREACHABLE, "tolerationSeconds": 45 }],
            "containers": [{ "resources": { "requests": { "cpu": "2", "nvidia.com/gpu": "1" } } }],
        } })
    };
    let meta = |name: &str, uid: &str| json!({ "namespace": "ml", "name": name, "uid": uid });
    Objects {
        nodes: vec![
            node("a", "z1", false),
            node("b", "z2", false),
            node("c", "z1", true),
            node("d", "z1", true),
        ],
        pods: vec![
            json!({ "metadata": { "ownerReferences": owner("j") }, "spec": { "nodeName": "c" } }),
            json!({ "metadata": { "ownerReferences": owner("rs") }, "spec": { "nodeName": "a" } }),
            json!({ "metadata": {}, "spec": { "nodeName": "a" } }),
        ],
        jobs: vec![
            json!({ "metadata": meta("train", "j"), "spec": { "completionMode": "Indexed", "completions": 2, "parallelism": 2,
                "podReplacementPolicy": "Failed", "template": template(json!({ annotations::SAFE_TO_FORCEFULLY_TERMINATE: "true" })) } }),
            json!({ "metadata": meta("done", "k"), "status": { "conditions": [{ "type": "Complete", "status": "True" }] } }),
        ],
        stateful_sets: vec![
            json!({ "metadata": meta("db", "s"), "spec": { "replicas": 2, "template": { "spec": {} },
            "volumeClaimTemplates": [{ "spec": { "resources": { "requests": { "storage": "5Gi" } } } }] } }),
        ],
        deployments: vec![
            json!({ "metadata": meta("web", "d"), "spec": { "replicas": 1, "template": { "spec": {} } } }),
        ],
        replica_sets: vec![json!({ "metadata": { "uid": "rs", "ownerReferences": owner("d") } })],
        budgets: vec![json!({})],
        configuration: Some(Configuration::default()),
        ..Objects::default()
    }
}

#[test]
fn a_cluster_is_a_scenario_that_can_be_read() {
    let Captured { scenario, notes } = capture(&objects(), Names::Plain);
    let read = Scenario::read(&scenario.to_string(), &Source::default())
        .unwrap_or_else(|error| panic!("{error}\n{scenario:#}"));
    assert_eq!((read.pools.len(), read.nodes.len()), (2, 4), "{scenario:#}");
    let told: Vec<_> =
        read.workloads.iter().map(|it| (it.name.as_str(), it.kind(), it.pods, it.pool.as_deref())).collect();
    assert_eq!(
        told,
        [
            ("ml-train", "IndexedJob", 2, Some("pool1")),
            ("ml-db", "StatefulSet", 2, None),
            ("ml-web", "Deployment", 1, Some("pool2")),
        ]
    );
    assert!(read.salvor.enabled && read.pools[0].labels["team"] == "blue", "{scenario:#}");
    for part in ["1 PodDisruptionBudgets", "1 pods without a controller", "how long Jobs take"] {
        assert!(notes.iter().any(|note| note.contains(part)), "{notes:?}");
    }
}

#[test]
fn hashed_names_tell_nothing_and_are_always_the_same() {
    let hashed = capture(&objects(), Names::Hashed).scenario.to_string();
    assert!(["train", "blue", "ml-", "\"z1"].iter().all(|name| !hashed.contains(name)), "{hashed}");
    assert_eq!(hashed, capture(&objects(), Names::Hashed).scenario.to_string());
    assert!(Scenario::read(&hashed, &Source::default()).is_ok());
}

#[test]
fn the_containers_of_a_pod_ask_together() {
    for (one, other, both) in
        [("500m", "1", "1500m"), ("1Gi", "1Gi", "2147483648"), ("1", "2", "3"), ("250m", "750m", "1")]
    {
        assert_eq!(sum(one, other), both);
    }
}

#[test]
fn without_salvor_it_is_played_without() {
    let mut objects = objects();
    objects.configuration = None;
    let Captured { scenario, notes } = capture(&objects, Names::Plain);
    assert_eq!(scenario["salvor"]["enabled"], false);
    assert!(notes.iter().any(|note| note.contains("no configuration of Salvor")), "{notes:?}");
}
