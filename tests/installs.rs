//! A real API server accepts the output of `salvor manifests` and of the Helm chart.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "installs/appwrapper.rs"]
mod appwrapper;
#[path = "installs/chart.rs"]
mod chart;

use std::fs;
use std::path::Path;
use std::process::Command;

use salvor_testkit::ControlPlane;
use serde_json::{Value, json};

const CONFIG: &str = "apiVersion: config.salvor.dev/v1alpha1
kind: Configuration
controllers: ['*']
featureGates: {FailureRecoveryPolicy: true}
failureRecoveryPolicy:
  rules:
  - taintNodeOutOfService:
      nodeSelector: {matchLabels: {pool: gpu}}
      unreachableNodeTimeout: 5m
";

fn manifests(config: &Path) -> Vec<u8> {
    let output = Command::new(env!("CARGO_BIN_EXE_salvor"))
        .env_clear()
        .arg("manifests")
        .arg("--config")
        .arg(config)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

#[tokio::test]
async fn every_object_is_valid_and_the_pods_pass_the_restricted_standard() {
    let plane = ControlPlane::builder().start().await.unwrap();
    // Only the namespaces in the objects count.
    let kubectl = plane.kubectl().in_namespace("");
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(file("config.yaml"), CONFIG).unwrap();
    let yaml = manifests(Path::new(&file("config.yaml")));
    fs::write(file("install.yaml"), yaml).unwrap();

    let install = file("install.yaml");
    let apply = ["apply", "--validate=strict", "-f", &install];
    let first = kubectl.run(&apply).await.unwrap();
    assert_eq!(first.lines().count(), 12, "{first}");
    assert!(first.lines().all(|line| line.ends_with(" created")), "{first}");
    // The server's defaults are not mistaken for changes. (kubectl always replaces the selector of a budget.)
    let second = kubectl.run(&apply).await.unwrap();
    let same = |line: &str| line.ends_with(" unchanged") || line.starts_with("poddisruptionbudget");
    assert!(second.lines().all(same), "{second}");

    let there = kubectl.in_namespace("salvor-system");
    let deployment = there.run(&["get", "deployment", "salvor", "-o", "json"]).await;
    let deployment: Value = serde_json::from_str(&deployment.unwrap()).unwrap();
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "trial", "namespace": "salvor-system"},
        "spec": deployment["spec"]["template"]["spec"],
    });
    fs::write(file("pod.json"), pod.to_string()).unwrap();
    there.run(&["create", "--dry-run=server", "-f", &file("pod.json")]).await.unwrap();
}
