//! The cost of diagnosing everything in a large cluster.

use std::{process::Stdio, time::Duration};

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use salvor_testkit::{
    EmbeddedPlane, Site,
    accounting::Verb,
    workloads::{PodShape, job},
};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::stage::{SALVOR, Stage, running};

const JOBS: usize = 100;
const PODS_OF_A_JOB: usize = 100;
/// The number of running pods of each Job.
const RUN: usize = 10;
const MEGABYTE: u64 = 1024;

/// Runs a command to its end. Returns its output and its peak memory in kilobytes.
async fn measured(stage: &Stage, arguments: &[&str]) -> (String, u64) {
    let mut child = tokio::process::Command::new(SALVOR)
        .args(arguments)
        .env("KUBECONFIG", stage.kubeconfig())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id().unwrap());
    let mut output = child.stdout.take().unwrap();
    let mut said = String::new();
    let mut most = 0;
    let peak = async {
        loop {
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let now = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse().ok());
            most = most.max(now.unwrap_or(0));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        read = output.read_to_string(&mut said) => drop(read.unwrap()),
        () = peak => {}
    }
    assert!(child.wait().await.unwrap().success());
    (said, most)
}

#[tokio::test]
async fn ten_thousand_pods_cost_one_list_per_kind_and_little_memory() {
    if !Site::Embedded.is_chosen() {
        return;
    }
    let plane = EmbeddedPlane::start(false).await;
    let stage = Stage::new(&plane.admin(), plane.kubectl(), "default");
    // Without the network: this is only the setup.
    let client = plane.cluster().client();
    stage.node("well", "True").await;
    stage.node("lost", "Unknown").await;
    let jobs: Api<Job> = Api::namespaced(client.clone(), "default");
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let ready = Patch::Merge(json!({"status": running()}));
    for number in 0..JOBS {
        let name = format!("train-{number}");
        let spec = json!({"parallelism": PODS_OF_A_JOB, "completions": PODS_OF_A_JOB});
        let job = jobs.create(&PostParams::default(), &job(&name, spec, &PodShape::new())).await.unwrap();
        for index in 0..PODS_OF_A_JOB {
            let runs = index < RUN;
            let pod = json!({
                "metadata": {
                    "name": format!("{name}-{index}"),
                    "labels": {"batch.kubernetes.io/job-name": name, "app": "train", "team": "a-team-with-a-long-name"},
                    "annotations": {"example.com/what-a-template-has": "x".repeat(200)},
                    "ownerReferences": [{
                        "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job.uid().unwrap(), "controller": true,
                    }],
                },
                "spec": {
                    "nodeName": if runs { "well" } else { "lost" }, "restartPolicy": "Never",
                    "containers": [{
                        "name": "main", "image": "registry.example.com/team/train:v1", "args": ["--epochs=90", "--data=/data"],
                        "resources": {"requests": {"cpu": "4", "memory": "16Gi"}},
                        "env": [{"name": "RANK", "value": index.to_string()}],
                    }],
                },
            });
            let pod: Pod = serde_json::from_value(pod).unwrap();
            pods.create(&PostParams::default(), &pod).await.unwrap();
            if runs {
                pods.patch_status(&pod.name_any(), &PatchParams::default(), &ready).await.unwrap();
            }
        }
    }

    let accounting = plane.accounting();
    let mark = accounting.mark().await;
    let (said, most) = measured(&stage, &["why", "--all", "-A", "-o", "json"]).await;
    let table = accounting.since(&mark).await;
    let all: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(all["groups"].as_array().unwrap().len(), 1, "{:#}", all["groups"][0]["rootCause"]);
    assert_eq!(all["groups"][0]["rootCause"]["code"], "NodeLost");
    assert_eq!(all["groups"][0]["workloads"].as_array().unwrap().len(), JOBS);
    let missing = format!("{} of {PODS_OF_A_JOB} pods", PODS_OF_A_JOB - RUN);
    assert_eq!(all["groups"][0]["workloads"][0]["missing"], missing.as_str());

    let ours = |verb: Verb, resource: &str| {
        table.count(|request| {
            request.user_agent.starts_with("salvor/") && request.verb == verb && request.resource == resource
        })
    };
    // Pages of 250. Every other kind fits into one page.
    assert_eq!(ours(Verb::List, "pods"), 40, "{table}");
    for kind in
        ["jobs", "nodes", "deployments", "replicasets", "statefulsets", "daemonsets", "cronjobs", "leases"]
    {
        assert_eq!(ours(Verb::List, kind), 1, "{kind}: {table}");
    }
    assert_eq!(ours(Verb::Get, "pods") + ours(Verb::Get, "jobs") + ours(Verb::Get, "nodes"), 0, "{table}");
    let total = table.count(|request| request.user_agent.starts_with("salvor/"));
    assert!(total < 80, "{table}");
    assert!(most < 60 * MEGABYTE, "{most} kB");
    eprintln!("10,000 pods: {total} requests, {most} kB");
}
