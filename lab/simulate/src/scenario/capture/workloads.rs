//! Captures the workloads of a cluster.

use std::collections::{BTreeMap, BTreeSet};

use salvor_api::{
    GoDuration,
    names::{annotations, taints},
};
use serde_json::{Value, json};

use super::{
    Objects,
    budgets::Budgets,
    list,
    names::{Names, hash, plain},
    strings, text,
};

pub(super) fn workloads(
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
    let mut budgets = Budgets::of(&objects.budgets);
    let mut used = BTreeSet::new();
    let mut found = Vec::new();
    let mut add = |object: &Value, kind: &str, count: u64, template: &Value, more: Value| {
        if count == 0 {
            return;
        }
        let own = pods.get(&text(&object["metadata"]["uid"])).cloned().unwrap_or_default();
        let full =
            format!("{}-{}", text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
        let mut name = names.of(&full, 36);
        while !used.insert(name.clone()) {
            let another = format!("{full}{}", used.len());
            name = match names {
                Names::Plain => format!("{}-{}", plain(&name, 27), &hash(&another)[8..]),
                Names::Hashed(_) => names.of(&another, 36),
            };
        }
        let mut workload = of_template(template, names);
        if let Some(budget) = budgets.of_template(object, template) {
            workload["budget"] = budget;
        }
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
    budgets.tell(notes);
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

/// The fields of a pod template that a scenario can express.
fn of_template(template: &Value, names: Names) -> Value {
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
    let mut workload = json!({ "requests": names.resources(requests), "consent": consent });
    if let Some(grace) = spec["terminationGracePeriodSeconds"].as_u64() {
        workload["gracePeriod"] = format!("{grace}s").into();
    }
    let tolerated = list(&spec["tolerations"]).find(|it| it["key"] == taints::UNREACHABLE);
    if let Some(seconds) = tolerated.and_then(|it| it["tolerationSeconds"].as_u64()) {
        workload["toleratesUnreachable"] = format!("{seconds}s").into();
    }
    if let Some(after) = marks[annotations::EVICT_AFTER].as_str()
        && consent != "none"
        && after.parse::<GoDuration>().is_ok_and(|after| !after.is_negative())
    {
        workload["evictAfter"] = after.into();
    }
    if let Some(after) = marks[annotations::TERMINATION_GRACE_AFTER].as_str() {
        workload["annotations"] = json!({ annotations::TERMINATION_GRACE_AFTER: after });
    }
    workload
}

/// Adds two amounts, in thousandths if necessary.
pub(super) fn sum(one: &str, other: &str) -> String {
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

fn controller(object: &Value) -> Option<String> {
    let mut owners = list(&object["metadata"]["ownerReferences"]);
    owners.find(|owner| owner["controller"] == true).map(|owner| text(&owner["uid"]))
}
