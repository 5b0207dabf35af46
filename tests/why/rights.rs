//! With few rights: what cannot be read is named, and is no error.

use k8s_openapi::api::rbac::v1::PolicyRule;
use salvor_testkit::{
    Site,
    workloads::{PodShape, job},
};
use serde_json::{Value, json};

use crate::stage::Stage;

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

#[tokio::test]
async fn what_nobody_may_read_is_named() {
    if !Site::Real.is_chosen() {
        return;
    }
    let arena = Site::Real.arena("why-rights").await;
    let stage = Stage::new(&arena.admin(), arena.kubectl(), arena.namespace());
    stage.make(&job("train", json!({"parallelism": 2, "completions": 2}), &PodShape::new())).await;
    stage.until("job/train", "Unschedulable").await;
    let namespace = stage.namespace.clone();
    let admin = arena.admin();
    let one_job = vec![rule("batch", &["jobs"], &["get"])];
    admin.service_account(&namespace, "job-reader", one_job).await.unwrap();
    let jobs_and_pods =
        vec![rule("batch", &["jobs"], &["get", "list"]), rule("", &["pods"], &["get", "list"])];
    admin.service_account(&namespace, "reader", jobs_and_pods).await.unwrap();
    let as_user = |name: &str| format!("--as=system:serviceaccount:{namespace}:{name}");

    // Only the Job is readable: its pods are named as not readable.
    let user = as_user("job-reader");
    let (code, said) = stage.run(&["why", "job/train", "-o", "json", &user]).await;
    assert_eq!(code, 0, "{said}");
    let answer: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(answer["missing"], "2 of 2 pods", "{answer:#}");
    assert_eq!(answer["rootCauses"][0]["code"], "Unknown", "{answer:#}");
    let missed = |answer: &Value, what: &str| {
        let all = answer["notSeen"].as_array().unwrap();
        all.iter().any(|one| {
            one["what"].as_str().unwrap().contains(what) && one["why"].as_str().unwrap().contains("forbidden")
        })
    };
    assert!(missed(&answer, "pods"), "{answer:#}");
    let (code, said) = stage.run(&["why", "job/train", &user]).await;
    assert!(code == 0 && said.contains("Not seen: pods") && said.contains("cannot be read"), "{said}");
    // The requested object itself cannot be read.
    assert_eq!(stage.run(&["why", "pod/train-0", &user]).await.0, 1);
    assert_eq!(stage.run(&["why", "--all", &user]).await.0, 1);
    let (code, said) = stage.run(&["explain", "job/train", &user]).await;
    assert!(code == 1 || said.contains("cannot be read"), "{said}");

    // Jobs and pods are enough for the answer. What else --all needs is named.
    let user = as_user("reader");
    let (code, said) = stage.run(&["why", "job/train", "-o", "json", &user]).await;
    let answer: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &answer["rootCauses"][0]["code"]), (0, &json!("Unschedulable")), "{answer:#}");
    assert_eq!(answer["notSeen"], json!([]), "{answer:#}");
    let (code, said) = stage.run(&["why", "--all", "-o", "json", &user]).await;
    let all: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(code, 0, "{all:#}");
    assert_eq!(all["groups"][0]["workloads"][0]["name"], "train", "{all:#}");
    assert!(missed(&all, "deployments"), "{all:#}");

    // Nodes that cannot be read do not count as gone.
    stage.pod("bound", "somewhere", json!({}), json!({"phase": "Pending"})).await;
    let (code, said) = stage.run(&["why", "--all", "-o", "json", &user]).await;
    let all: Value = serde_json::from_str(&said).unwrap();
    assert!(code == 0 && missed(&all, "nodes"), "{all:#}");
    let groups = all["groups"].as_array().unwrap();
    let of_bound = groups.iter().find(|group| group["workloads"][0]["name"] == "bound");
    assert_eq!(of_bound.unwrap()["rootCause"]["code"], "Starting", "{all:#}");
}
