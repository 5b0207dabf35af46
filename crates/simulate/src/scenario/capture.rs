//! A scenario from the objects of a live cluster: its nodes as pools, its workloads, and Salvor's configuration.

use std::collections::{BTreeMap, BTreeSet};

use salvor_api::{
    config::Configuration,
    names::{annotations, taints},
};
use serde_json::{Map, Value, json};

use super::{API_VERSION, KIND};

/// Labels that differ from node to node, or that a scenario sets itself.
const OWN_LABELS: [&str; 6] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/rack",
    "karpenter.sh/capacity-type",
    "pool",
];
const ZONE: &str = "topology.kubernetes.io/zone";
/// The resources that the scheduler counts, besides those with a domain.
const RESOURCES: [&str; 3] = ["cpu", "memory", "pods"];

/// Objects as the API has them.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Nodes.
    pub nodes: Vec<Value>,
    /// Pods.
    pub pods: Vec<Value>,
    /// Jobs.
    pub jobs: Vec<Value>,
    /// StatefulSets.
    pub stateful_sets: Vec<Value>,
    /// Deployments.
    pub deployments: Vec<Value>,
    /// ReplicaSets, by which pods of Deployments are found.
    pub replica_sets: Vec<Value>,
    /// AppWrappers.
    pub app_wrappers: Vec<Value>,
    /// PodDisruptionBudgets.
    pub budgets: Vec<Value>,
    /// Salvor's configuration, if it runs there.
    pub configuration: Option<Configuration>,
}

/// How names are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// As they are.
    Plain,
    /// As hashes, so that the file can be shown to others.
    Hashed,
}

/// A scenario, and what of the cluster is not in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Captured {
    /// The scenario, without failures.
    pub scenario: Value,
    /// What was left out or guessed.
    pub notes: Vec<String>,
}

/// Makes a scenario of a cluster.
pub fn capture(objects: &Objects, names: Names) -> Captured {
    let mut notes = Vec::new();
    let (pools, pool_of) = pools(objects, names, &mut notes);
    let workloads = workloads(objects, names, &pool_of, &mut notes);
    let mut scenario = json!({
        "apiVersion": API_VERSION, "kind": KIND,
        "title": "Taken from a cluster",
        "pools": pools, "workloads": workloads,
    });
    match &objects.configuration {
        Some(configuration) => {
            let mut config = serde_json::to_value(configuration).unwrap_or_default();
            without_nulls(&mut config);
            scenario["salvor"] = json!({ "config": config });
        }
        None => {
            scenario["salvor"] = json!({ "enabled": false });
            notes.push("no configuration of Salvor was found in the cluster: it is played without Salvor; write salvor.config, or use --compare".into());
        }
    }
    if !objects.budgets.is_empty() {
        notes.push(format!(
            "{} PodDisruptionBudgets are not simulated: no recovery of a dead node asks them",
            objects.budgets.len()
        ));
    }
    Captured { scenario, notes }
}

/// A node's kind: nodes that are alike are one pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    capacity: BTreeMap<String, String>,
    taints: Vec<(String, Option<String>, String)>,
    spot: bool,
    node_pool: String,
}

fn class(node: &Value) -> Class {
    let counted = |name: &str| RESOURCES.contains(&name) || name.contains('/');
    let capacity = strings(&node["status"]["allocatable"]);
    let label = |key: &str| node["metadata"]["labels"][key].as_str().unwrap_or_default().to_owned();
    let mut marks: Vec<_> = list(&node["spec"]["taints"])
        .filter(|taint| !text(&taint["key"]).starts_with("node.kubernetes.io/"))
        .map(|taint| {
            (text(&taint["key"]), taint["value"].as_str().map(str::to_owned), text(&taint["effect"]))
        })
        .collect();
    marks.sort();
    Class {
        capacity: capacity.into_iter().filter(|(name, _)| counted(name)).collect(),
        taints: marks,
        spot: label("karpenter.sh/capacity-type") == "spot",
        node_pool: label("karpenter.sh/nodepool"),
    }
}

/// The pools, and the pool of each node by its name in the cluster.
fn pools(objects: &Objects, names: Names, notes: &mut Vec<String>) -> (Vec<Value>, BTreeMap<String, String>) {
    let mut classes: BTreeMap<Class, Vec<&Value>> = BTreeMap::new();
    for node in &objects.nodes {
        classes.entry(class(node)).or_default().push(node);
    }
    let configuration = serde_json::to_string(&objects.configuration).unwrap_or_default();
    let (mut pools, mut pool_of) = (Vec::new(), BTreeMap::new());
    for (number, (class, nodes)) in (1..).zip(classes) {
        let name = match (names, class.node_pool.as_str()) {
            (Names::Hashed, _) | (Names::Plain, "") => format!("pool{number}"),
            (Names::Plain, own) => format!("{}-{number}", plain(own, 20)),
        };
        let mut zones: BTreeMap<String, usize> = BTreeMap::new();
        for node in &nodes {
            let zone = node["metadata"]["labels"][ZONE].as_str().unwrap_or("none");
            *zones.entry(named(zone, names, 24)).or_default() += 1;
            pool_of.insert(text(&node["metadata"]["name"]), name.clone());
        }
        let counts: BTreeSet<usize> = zones.values().copied().collect();
        if counts.last().zip(counts.first()).is_some_and(|(most, least)| most - least > 1) {
            let each: Vec<String> = zones.iter().map(|(zone, count)| format!("{zone} {count}")).collect();
            notes.push(format!(
                "the nodes of {name} are dealt out evenly to its zones; in the cluster they are {}",
                each.join(", ")
            ));
        }
        let mut pool = json!({ "name": name, "nodes": nodes.len(), "zones": zones.keys().collect::<Vec<_>>(), "capacity": class.capacity });
        let labels: Map<String, Value> = common_labels(&nodes)
            .into_iter()
            .filter(|(key, _)| names == Names::Plain || configuration.contains(&format!("\"{key}\"")))
            .map(|(key, value)| (key, value.into()))
            .collect();
        if !labels.is_empty() {
            pool["labels"] = labels.into();
        }
        if !class.taints.is_empty() {
            let taints = class.taints.iter().map(|(key, value, effect)| match value {
                Some(value) => json!({ "key": key, "value": value, "effect": effect }),
                None => json!({ "key": key, "effect": effect }),
            });
            pool["taints"] = taints.collect();
        }
        if class.spot {
            pool["spot"] = true.into();
        }
        pools.push(pool);
    }
    (pools, pool_of)
}

fn common_labels(nodes: &[&Value]) -> BTreeMap<String, String> {
    let mut all = nodes.iter().map(|node| strings(&node["metadata"]["labels"]));
    let mut common = all.next().unwrap_or_default();
    common.retain(|key, _| !OWN_LABELS.contains(&key.as_str()));
    for labels in all {
        common.retain(|key, value| labels.get(key) == Some(value));
    }
    common
}

fn workloads(
    objects: &Objects,
    names: Names,
    pool_of: &BTreeMap<String, String>,
    notes: &mut Vec<String>,
) -> Vec<Value> {
    let mut pods: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    let deployment_of: BTreeMap<String, String> = objects
        .replica_sets
        .iter()
        .filter_map(|set| Some((text(&set["metadata"]["uid"]), controller(set)?)))
        .collect();
    let mut alone = 0;
    for pod in &objects.pods {
        let is_over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        match controller(pod) {
            _ if is_over => {}
            Some(owner) => {
                pods.entry(deployment_of.get(&owner).cloned().unwrap_or(owner)).or_default().push(pod);
            }
            None => alone += 1,
        }
    }
    let mut used = BTreeSet::new();
    let mut found = Vec::new();
    let mut add = |object: &Value, kind: &str, count: u64, template: &Value, more: Value| {
        if count == 0 {
            return;
        }
        let own = pods.get(&text(&object["metadata"]["uid"])).cloned().unwrap_or_default();
        let full =
            format!("{}-{}", text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
        let mut name = named(&full, names, 36);
        while !used.insert(name.clone()) {
            name = format!("{}-{}", plain(&name, 27), &hash(&format!("{full}{}", used.len()))[8..]);
        }
        let mut workload = of_template(template);
        workload["name"] = name.into();
        workload["kind"] = kind.into();
        workload["pods"] = count.into();
        let on: BTreeSet<&String> =
            own.iter().filter_map(|pod| pool_of.get(pod["spec"]["nodeName"].as_str()?)).collect();
        let pools: BTreeSet<&String> = pool_of.values().collect();
        if let (Some(only), true, true) = (on.first(), on.len() == 1, pools.len() > 1) {
            workload["pool"] = only.as_str().into();
        }
        for (key, value) in more.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
            workload[key] = value.clone();
        }
        found.push(workload);
    };
    for job in objects.jobs.iter().filter(|job| !is_finished(job) && !is_wrapped(job)) {
        let (parallelism, completions) =
            (job["spec"]["parallelism"].as_u64().unwrap_or(1), job["spec"]["completions"].as_u64());
        let pods = completions.unwrap_or(parallelism);
        let kind = if job["spec"]["completionMode"] == "Indexed" { "IndexedJob" } else { "Job" };
        let more = json!({ "parallelism": parallelism.clamp(1, pods.max(1)), "podReplacementPolicy": job["spec"]["podReplacementPolicy"] });
        add(job, kind, if parallelism == 0 { 0 } else { pods }, &job["spec"]["template"], more);
    }
    for set in &objects.stateful_sets {
        let claim = &set["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"];
        let replicas = set["spec"]["replicas"].as_u64().unwrap_or(1);
        add(set, "StatefulSet", replicas, &set["spec"]["template"], json!({ "volume": claim }));
    }
    for deployment in &objects.deployments {
        let replicas = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
        add(deployment, "Deployment", replicas, &deployment["spec"]["template"], json!({}));
    }
    for wrapper in &objects.app_wrappers {
        let name = &wrapper["metadata"]["name"];
        let is_own = |pod: &&Value| {
            pod["metadata"]["labels"]["workload.codeflare.dev/appwrapper"] == *name
                && pod["metadata"]["namespace"] == wrapper["metadata"]["namespace"]
        };
        let own: Vec<&Value> = objects.pods.iter().filter(is_own).collect();
        if let Some(first) = own.first() {
            add(wrapper, "AppWrapper", own.len() as u64, first, json!({}));
        }
    }
    if alone > 0 {
        notes.push(format!("{alone} pods without a controller are left out"));
    }
    let daemons = objects
        .pods
        .iter()
        .filter(|pod| list(&pod["metadata"]["ownerReferences"]).any(|it| it["kind"] == "DaemonSet"))
        .count();
    if daemons > 0 {
        notes
            .push(format!("{daemons} pods of DaemonSets are left out: what they request is free for others"));
    }
    if found.iter().any(|it| ["Job", "IndexedJob"].contains(&it["kind"].as_str().unwrap_or_default())) {
        notes.push("nobody can see how long Jobs take and when they save their work: they run on; write takes and checkpointEvery".into());
    }
    found
}

/// The part of a pod that matters here.
fn of_template(template: &Value) -> Value {
    let spec = &template["spec"];
    let mut requests: BTreeMap<String, String> = BTreeMap::new();
    for container in list(&spec["containers"]) {
        for (name, amount) in strings(&container["resources"]["requests"]) {
            let sum = match requests.get(&name) {
                Some(before) => sum(before, &amount),
                None => amount,
            };
            requests.insert(name, sum);
        }
    }
    requests.entry("cpu".to_owned()).or_insert_with(|| "100m".to_owned());
    let marks = &template["metadata"]["annotations"];
    let consent = if marks[annotations::SAFE_TO_FORCEFULLY_DELETE] == annotations::CONSENT {
        "delete"
    } else if marks[annotations::SAFE_TO_FORCEFULLY_TERMINATE] == annotations::CONSENT {
        "terminate"
    } else {
        "none"
    };
    let mut workload = json!({ "requests": requests, "consent": consent });
    if let Some(grace) = spec["terminationGracePeriodSeconds"].as_u64() {
        workload["gracePeriod"] = format!("{grace}s").into();
    }
    let tolerated = list(&spec["tolerations"]).find(|it| it["key"] == taints::UNREACHABLE);
    if let Some(seconds) = tolerated.and_then(|it| it["tolerationSeconds"].as_u64()) {
        workload["toleratesUnreachable"] = format!("{seconds}s").into();
    }
    if let Some(after) = marks[annotations::TERMINATION_GRACE_AFTER].as_str() {
        workload["annotations"] = json!({ annotations::TERMINATION_GRACE_AFTER: after });
    }
    workload
}

/// Two amounts together, in thousandths if need be.
fn sum(one: &str, other: &str) -> String {
    const UNITS: [(&str, f64); 13] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("", 1.0),
    ];
    let amount = |text: &str| {
        let (number, unit) = UNITS
            .iter()
            .find_map(|(unit, size)| Some((text.strip_suffix(unit)?, size)))
            .unwrap_or((text, &1.0));
        number.parse::<f64>().unwrap_or_default() * unit
    };
    let sum = amount(one) + amount(other);
    if sum.fract() == 0.0 { format!("{sum:.0}") } else { format!("{:.0}m", (sum * 1000.0).ceil()) }
}

fn is_finished(job: &Value) -> bool {
    list(&job["status"]["conditions"])
        .any(|it| (it["type"] == "Complete" || it["type"] == "Failed") && it["status"] == "True")
}

fn is_wrapped(object: &Value) -> bool {
    list(&object["metadata"]["ownerReferences"]).any(|owner| owner["kind"] == "AppWrapper")
}

/// The UID of the controller of an object.
fn controller(object: &Value) -> Option<String> {
    let mut owners = list(&object["metadata"]["ownerReferences"]);
    owners.find(|owner| owner["controller"] == true).map(|owner| text(&owner["uid"]))
}

fn named(name: &str, names: Names, most: usize) -> String {
    match names {
        Names::Plain => plain(name, most),
        Names::Hashed => format!("h{}", &hash(name)[8..]),
    }
}

/// A name that a scenario may have.
fn plain(name: &str, most: usize) -> String {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let safe: String = name.to_lowercase().chars().map(|c| if fits(c) { c } else { '-' }).collect();
    let safe = safe.trim_matches('-');
    if safe.is_empty() {
        return "none".to_owned();
    }
    if safe.len() <= most {
        return safe.to_owned();
    }
    format!("{}-{}", safe[..most - 9].trim_end_matches('-'), &hash(name)[8..])
}

/// FNV-1a: the same in every build.
fn hash(name: &str) -> String {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

fn strings(map: &Value) -> BTreeMap<String, String> {
    let pairs = map.as_object().into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Scenario, Source};

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
        let told: Vec<_> = read
            .workloads
            .iter()
            .map(|it| (it.name.as_str(), it.kind(), it.pods, it.pool.as_deref()))
            .collect();
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
}
