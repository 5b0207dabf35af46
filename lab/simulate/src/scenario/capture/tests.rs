use salvor_api::names::{annotations, taints};

use super::*;
use super::{pools::ZONE, workloads::sum};
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
fn hashed_names_tell_nothing_and_are_others_in_each_file() {
    let names = Names::hashed().unwrap();
    let hashed = capture(&objects(), names).scenario.to_string();
    assert!(["train", "blue", "ml-", "\"z1"].iter().all(|name| !hashed.contains(name)), "{hashed}");
    assert_eq!(hashed, capture(&objects(), names).scenario.to_string());
    assert_ne!(hashed, capture(&objects(), Names::hashed().unwrap()).scenario.to_string());
    let digits = |it: &&str| it.len() == 33 && it.starts_with('h');
    assert!(hashed.split('"').any(|it| digits(&it)), "128 bits: {hashed}");
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

/// Two nodes of a NodePool with a NodeClaim each, in two zones; the labels of pods; budgets; and a policy for the
/// NodePool.
fn with_machines() -> Objects {
    let mut objects = objects();
    for (node, machine) in objects.nodes.iter_mut().take(2).zip(["m1", "m2"]) {
        node["metadata"]["labels"]["karpenter.sh/nodepool"] = "secret-pool".into();
        node["spec"]["providerID"] = machine.into();
        node["spec"]["taints"] =
            json!([{ "key": "acme.com/secret-team", "value": "blue", "effect": "NoSchedule" }]);
        node["status"]["allocatable"]["acme.com/secret-card"] = "2".into();
    }
    objects.node_claims =
        vec![json!({ "status": { "providerID": "m1" } }), json!({ "status": { "nodeName": "b" } })];
    let spec = json!({
        "nodeSelector": { "matchLabels": { "karpenter.sh/nodepool": "secret-pool", "team": "blue" } },
        "policies": [{ "conditionType": "Ready", "conditionStatus": "Unknown", "toleration": "10m" }],
        "paused": null,
    });
    objects.repair_policies = vec![json!({ "metadata": { "name": "secret.policy" }, "spec": spec })];
    let app = json!({ "app": "db" });
    objects.stateful_sets[0]["spec"]["template"]["metadata"]["labels"] = app.clone();
    objects.stateful_sets[0]["spec"]["template"]["spec"] =
        json!({ "containers": [{ "resources": { "requests": { "acme.com/secret-card": "1" } } }] });
    let budget = |namespace: &str, selector: Value, spec: Value| {
        let mut budget = json!({ "metadata": { "namespace": namespace }, "spec": spec });
        budget["spec"]["selector"] = selector;
        budget
    };
    objects.budgets = vec![
        budget("ml", json!({ "matchLabels": app }), json!({ "minAvailable": "50%" })),
        budget("other", json!({ "matchLabels": app }), json!({ "maxUnavailable": 0 })),
        budget("ml", Value::Null, json!({ "maxUnavailable": 0 })),
    ];
    objects
}

#[test]
fn budgets_policies_and_machines_are_taken_over() {
    let Captured { scenario, notes } = capture(&with_machines(), Names::Plain);
    let read = Scenario::read(&scenario.to_string(), &Source::default())
        .unwrap_or_else(|error| panic!("{error}\n{scenario:#}"));
    let db = read.workloads.iter().find(|it| it.name == "ml-db").unwrap();
    assert_eq!(db.budget, Some(Budget::MinAvailable(Amount::Percent(50))), "{scenario:#}");
    assert!(read.workloads.iter().filter(|it| it.name != "ml-db").all(|it| it.budget.is_none()));
    // A pool with machines is in one zone, so the NodePool becomes two pools here.
    let machines: Vec<&str> =
        read.pools.iter().filter(|it| it.machines.is_some()).map(|it| it.name.as_str()).collect();
    assert_eq!(machines.len(), 2, "{scenario:#}");
    let policy = &read.salvor.repair_policies["secret-policy"];
    let asked = &policy["nodeSelector"];
    assert_eq!(asked["matchLabels"], json!({ "team": "blue" }), "{policy:#}");
    assert_eq!(
        asked["matchExpressions"],
        json!([{ "key": "karpenter.sh/nodepool", "operator": "In", "values": machines }]),
        "{policy:#}"
    );
    assert_eq!(policy["policies"][0]["toleration"], "10m");
    for part in [
        "1 PodDisruptionBudgets have neither minAvailable nor maxUnavailable, or no selector",
        "1 PodDisruptionBudgets select no workload",
        "2 nodes have NodeClaims",
    ] {
        assert!(notes.iter().any(|note| note.starts_with(part)), "{notes:?}");
    }
}

#[test]
fn keys_of_taints_labels_and_resources_are_hashed_as_names_are() {
    let hashed = capture(&with_machines(), Names::hashed().unwrap()).scenario;
    let text = hashed.to_string();
    for secret in ["secret", "acme", "blue", "\"team\""] {
        assert!(!text.contains(secret), "{secret}: {hashed:#}");
    }
    assert!(text.contains("nvidia.com/gpu"), "what is the same everywhere tells nothing: {hashed:#}");
    let read =
        Scenario::read(&text, &Source::default()).unwrap_or_else(|error| panic!("{error}\n{hashed:#}"));
    // A pod requests the GPU that its node has, and a policy selects the label of its nodes.
    let card = read.pools.iter().find(|it| it.machines.is_some()).unwrap();
    let db = read.workloads.iter().find(|it| it.budget.is_some()).unwrap();
    let asked = db.requests.keys().find(|key| key.starts_with("example.com/")).unwrap();
    assert!(card.capacity.contains_key(asked), "{hashed:#}");
    let policy = read.salvor.repair_policies.values().next().unwrap();
    let (key, value) = policy["nodeSelector"]["matchLabels"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(card.labels.get(key).map(String::as_str), value.as_str(), "{hashed:#}");
}

/// Covers keys under well-known domains, values of known keys, settings and policies: users may write anything there.
#[test]
fn only_known_keys_and_values_are_left_in_a_hashed_file() {
    let mut objects = with_machines();
    for node in &mut objects.nodes {
        node["metadata"]["labels"]["secret-a.kubernetes.io/secret-b"] = "secret-c".into();
        node["metadata"]["labels"]["node.kubernetes.io/instance-type"] = "secret-d".into();
        node["metadata"]["labels"]["kubernetes.io/arch"] = "arm64".into();
        node["spec"]["taints"] =
            json!([{ "key": "nvidia.com/gpu", "value": "secret-e", "effect": "NoSchedule" }]);
    }
    let asks = json!({ "secret-a.kubernetes.io/secret-b": "secret-c", "kubernetes.io/arch": "arm64" });
    objects.repair_policies[0]["spec"]["nodeSelector"]["matchLabels"] = asks;
    objects.repair_policies[0]["spec"]["policies"][0]["conditionType"] = "SecretCondition".into();
    let mut configuration = Configuration::default();
    configuration.leader_election.lease_name = "secret-lease".into();
    configuration.appwrapper.default_queue_name = "secret-queue".into();
    configuration.appwrapper.wrapped_kinds.push("Secret.acme.com".into());
    objects.configuration = Some(configuration);
    let hashed = capture(&objects, Names::hashed().unwrap()).scenario;
    let text = hashed.to_string();
    assert!(!text.to_lowercase().contains("secret") && !text.contains("acme"), "{hashed:#}");
    for known in ["nvidia.com/gpu", "kubernetes.io/arch", "arm64", "10m", "Unknown", "Job.batch"] {
        assert!(text.contains(known), "{known}: {hashed:#}");
    }
    Scenario::read(&text, &Source::default()).unwrap_or_else(|error| panic!("{error}\n{hashed:#}"));
}
