//! A run in which every recovery acts: all metrics of the rules and the dashboard exist, and every query of the
//! dashboard has a result.

use std::{collections::BTreeSet, process::Command, time::Duration};

use http::Method;
use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{Node, Pod},
    },
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams,
    },
};
use salvor_apiserver::{Effect, Fault};
use salvor_testkit::{FaultyServer, Salvor, Site, free_port, on_both, peers, promtool, wait};
use serde_json::{Value, json};

use crate::files::{metrics_in_use, queries};

const SALVOR: &str = env!("CARGO_BIN_EXE_salvor");

struct Stage {
    client: Client,
}

impl Stage {
    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// A node with this Ready status; `Unknown` adds the unreachable taint.
    async fn node(&self, name: &str, ready: &str) {
        let node =
            serde_json::from_value(json!({"metadata": {"name": name, "labels": {"pool": name}}})).unwrap();
        self.nodes().create(&PostParams::default(), &node).await.unwrap();
        // Older than the node itself: a node whose condition is as old as the node counts as booting.
        let since =
            (Timestamp::now() - SignedDuration::from_hours(1)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let lost =
            json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": since}]);
        let taints = if ready == "Unknown" { lost } else { json!([]) };
        let spec = Patch::Merge(json!({"spec": {"taints": taints}}));
        self.nodes().patch(name, &PatchParams::default(), &spec).await.unwrap();
        let condition = json!({"type": "Ready", "status": ready, "reason": "R", "message": "m", "lastTransitionTime": since});
        let status = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        self.nodes().patch_status(name, &PatchParams::default(), &status).await.unwrap();
    }

    /// A terminating pod on the lost node.
    async fn terminating(&self, name: &str, metadata: Value) {
        let mut metadata = metadata;
        metadata["name"] = name.into();
        let spec = json!({
            "nodeName": "lost", "terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "work"}],
        });
        let pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.unwrap();
        self.phase(name, "Running").await;
        self.pods().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// The machine of a node is in this boot, and its kubelet reports this status.
    async fn boot(&self, name: &str, boot_id: &str, ready: &str) {
        let info = json!({
            "machineID": "", "systemUUID": "", "bootID": boot_id, "kernelVersion": "", "osImage": "",
            "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "", "architecture": "",
        });
        let condition = json!({"type": "Ready", "status": ready});
        let status = Patch::Strategic(json!({"status": {"nodeInfo": info, "conditions": [condition]}}));
        self.nodes().patch_status(name, &PatchParams::default(), &status).await.unwrap();
    }

    async fn phase(&self, pod: &str, phase: &str) {
        let status = Patch::Merge(json!({"status": {"phase": phase}}));
        self.pods().patch_status(pod, &PatchParams::default(), &status).await.unwrap();
    }

    async fn custom(&self, group: &str, version: &str, kind: &str, is_namespaced: bool, object: Value) {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = if is_namespaced {
            Api::default_namespaced_with(self.client.clone(), &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        };
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        // Webhooks take effect a moment after they are configured.
        let mut last = None;
        let created = wait::patience().until(async {
            while let Err(error) = api.create(&PostParams::default(), &object).await {
                last = Some(error);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        assert!(created.await.is_some(), "{last:?}");
    }
}

async fn every_query_of_the_dashboard_has_an_answer(site: Site) {
    let plane = site.api_server().await;
    let admin = plane.admin().in_namespace("default");
    let stage = Stage { client: admin.client("stage") };
    let controllers = "--controllers=zombie,eviction,job,appwrapper,repair";
    let output = Command::new(SALVOR).args(["manifests", controllers]).output().unwrap();
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let crds = documents.iter().filter(|one| one["kind"] == "CustomResourceDefinition");
    for (number, crd) in crds.enumerate() {
        std::fs::write(folder.path().join(format!("{number}.yaml")), crd.to_string()).unwrap();
    }
    peers::install(&admin, folder.path(), |_| ()).await.unwrap();

    // One write fails and is retried.
    let server = FaultyServer::before(&admin).await;
    let once = Fault::new(Effect::InternalError).method(Method::PATCH).path("/pods/first/status").times(1);
    server.faults().add(once);
    stage.node("lost", "Unknown").await;
    stage.node("sick", "False").await;
    stage.boot("sick", "first", "False").await;
    let port = free_port();
    let configuration = format!(
        "featureGates: {{FailureRecoveryPolicy: true}}\n\
         webhooks: {{bind: '127.0.0.1:{port}', url: 'https://127.0.0.1:{port}'}}\n\
         brake: {{maxPodsPerMinute: 1}}\n\
         failureRecoveryPolicy:\n  rules:\n  - terminatePod:\n      podLabelSelector: {{matchLabels: {{salvor: fail}}}}\n      forcefulTerminationGracePeriod: 0s\n"
    );
    let salvor =
        Salvor::start(SALVOR, server.admin(), &configuration, &[controllers, "--leader-elect=false"], &[]);
    salvor.until_answer("/readyz", "200 OK").await;

    // Zombies: one is recovered, one exceeds the limit per minute, one waits, one has no consent.
    let labelled = json!({"labels": {"salvor": "fail"}});
    stage.terminating("first", labelled.clone()).await;
    wait::for_object(&stage.pods(), "first", "it is Failed", |pod: &Pod| {
        pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Failed")
    })
    .await;
    stage.terminating("second", labelled).await;
    let patient = json!({"kueue.x-k8s.io/safe-to-forcefully-terminate": "true", "salvor.dev/termination-grace-after": "1h"});
    stage.terminating("patient", json!({"annotations": patient})).await;
    stage.terminating("stranger", json!({})).await;

    // A finished Job, and one that another controller runs.
    let jobs: Api<Job> = Api::default_namespaced(stage.client.clone());
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work"}]}});
    let job = json!({"metadata": {"name": "job"}, "spec": {"managedBy": "salvor.dev/job-controller", "template": template}});
    jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
    let of_job = ListParams::default().labels("batch.kubernetes.io/job-name=job");
    let pods = wait::for_list(&stage.pods(), &of_job, "it has a pod", |pods: &[Pod]| !pods.is_empty()).await;
    stage.phase(pods[0].metadata.name.as_deref().unwrap(), "Succeeded").await;

    // A workload, through the webhooks, and a node whose machine is rebooted.
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "wrapped"}, "spec": {"containers": [{"name": "main", "image": "work"}]}});
    let component = json!({"podSets": [{"replicas": 1, "path": "template"}], "template": pod});
    let wrapper = json!({"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "metadata": {"name": "wrapper"}, "spec": {"suspend": true, "components": [component]}});
    stage.custom("workload.codeflare.dev", "v1beta2", "AppWrapper", true, wrapper).await;
    let spec = json!({
        "nodeSelector": {"matchLabels": {"pool": "sick"}}, "unhealthyLimit": "100%", "budgets": [{"nodes": "100%"}],
        "policies": [{"conditionType": "Ready", "conditionStatus": "False", "toleration": "0s", "action": "Reboot"}],
    });
    let policy = json!({"apiVersion": "salvor.dev/v1alpha1", "kind": "NodeRepairPolicy", "metadata": {"name": "sick"}, "spec": spec});
    stage.custom("salvor.dev", "v1alpha1", "NodeRepairPolicy", false, policy).await;
    let is_requested = |node: &Node| node.annotations().contains_key("salvor.dev/reboot-requested");
    wait::for_object(&stage.nodes(), "sick", "its reboot is requested", is_requested).await;
    stage.boot("sick", "second", "True").await;

    // All of it is visible in the metrics.
    let wanted = metrics_in_use();
    let (mut text, mut missing) = (String::new(), BTreeSet::new());
    let shown = wait::patience().until(async {
        loop {
            text = salvor.get("/metrics").await;
            let names: BTreeSet<&str> = samples(&text).map(|(series, _)| name_of(series)).collect();
            missing = wanted.iter().filter(|name| !names.contains(name.as_str())).cloned().collect();
            if missing.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    let in_time = shown.await.is_some();
    assert!(in_time, "{missing:?} are never shown:\n{text}\n{}", salvor.program.output());
    for line in [
        "salvor_stuck_without_consent{recovery=\"zombie\"} 1",
        "salvor_waiting{recovery=\"zombie\",reason=\"GraceRunning\"} 1",
        "salvor_blocked{recovery=\"zombie\",by=\"MaxPodsPerMinute\"} 1",
    ] {
        salvor.shows(line).await;
    }
    answers(&text, folder.path());
}

/// The samples of a scrape: series and value. The head of the response is skipped.
fn samples(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    let is_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    lines.filter(move |(series, value)| {
        value.parse::<f64>().is_ok() && !series.is_empty() && name_of(series).chars().all(is_name)
    })
}

fn name_of(series: &str) -> &str {
    series.split('{').next().unwrap_or_default()
}

/// Lets promtool evaluate every query of the dashboard, with these metrics scraped for ten minutes.
fn answers(text: &str, folder: &std::path::Path) {
    let series: Vec<Value> = samples(text)
        .map(|(series, value)| {
            let labelled = match series.strip_suffix('}') {
                Some(head) => format!("{head},instance=\"a\"}}"),
                None => format!("{series}{{instance=\"a\"}}"),
            };
            // Without an exponent, which promtool does not parse there.
            let value: f64 = value.parse().unwrap();
            json!({"series": labelled, "values": format!("{value:.9}x10")})
        })
        .collect();
    let expected = json!([{"labels": "{}", "value": 1}]);
    let asked: Vec<Value> = queries()
        .into_iter()
        .map(|(_, query)| {
            let query = query.replace("$__rate_interval", "5m");
            json!({"expr": format!("count({query}) > bool 0"), "eval_time": "10m", "exp_samples": expected})
        })
        .collect();
    assert!(asked.len() > 30, "{}", asked.len());
    let tests = json!({
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": asked}],
    });
    let file = folder.join("queries.yaml");
    std::fs::write(&file, tests.to_string()).unwrap();
    let output = promtool(["test".as_ref(), "rules".as_ref(), file.as_os_str()]);
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

on_both!(every_query_of_the_dashboard_has_an_answer);
