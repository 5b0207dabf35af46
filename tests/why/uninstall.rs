//! `salvor uninstall`: all marks of Salvor are removed, other marks stay, and nothing is touched while an operator may
//! act.

use http::Method;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use salvor_apiserver::{Effect, Fault};
use salvor_testkit::{FaultyServer, Site};
use serde_json::{Value, json};

use crate::stage::{Stage, running};

const FINALIZER: &str = "job.salvor.dev/tracking";
const WRAPPER_FINALIZER: &str = "workload.codeflare.dev/finalizer";
const OUR_CONTROLLER: &str = "workload.codeflare.dev/appwrapper-controller";
const CRD: &str = "apiextensions.k8s.io";

/// All marks that Salvor may leave on a node, and marks of others.
async fn marked_node(stage: &Stage, name: &str) {
    stage.node(name, "True").await;
    let nodes = stage.nodes();
    let marks = json!({
        "metadata": {"annotations": {
            "zombie.salvor.dev/out-of-service-since": "2026-11-16T10:00:00Z",
            "eviction.salvor.dev/progress": "not even JSON",
            "eviction.salvor.dev/asked": "{}",
            "salvor.dev/despite-zone-outage": "{}",
            "repair.salvor.dev/progress": "{}",
            "salvor.dev/reboot-requested": "2026-11-16T10:00:00Z",
            "salvor.dev/reboot-done": "2026-11-16T10:00:00Z",
            "salvor.dev/do-not-repair": "true",
            "example.com/theirs": "x",
        }},
        "spec": {"unschedulable": true, "taints": [
            {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"},
            {"key": "salvor.dev/force-eviction", "value": "INC-1", "effect": "NoExecute"},
            {"key": "salvor.dev/force-eviction", "effect": "NoSchedule"},
            {"key": "example.com/theirs", "effect": "NoSchedule"},
        ]},
    });
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(marks)).await.unwrap();
    let condition =
        |kind: &str, reason: &str| json!({"type": kind, "status": "True", "reason": reason, "message": "m"});
    let status = json!({"status": {"conditions": [
        condition("SalvorRepair", "Repairing"), condition("NodeReboot", "RebootRequested"), condition("ForceEviction", "Evicting"),
    ]}});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
}

async fn node(stage: &Stage, name: &str) -> Value {
    serde_json::to_value(stage.nodes().get(name).await.unwrap()).unwrap()
}

/// A Job that Salvor runs or ran.
async fn job(stage: &Stage, name: &str, finished: bool) {
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work"}]}});
    let job = json!({
        "metadata": {"name": name, "annotations": {"job.salvor.dev/used-pod-names": "{}"}},
        "spec": {"managedBy": "salvor.dev/job-controller", "template": template},
    });
    stage.create("batch", "Job", job).await;
    if finished {
        let at = "2026-11-16T10:00:00Z";
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": at});
        let status = json!({"status": {
            "startTime": at, "completionTime": at, "succeeded": 1, "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
        }});
        let patch = Patch::Merge(status);
        stage.api("batch", "v1", "Job").patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }
}

fn wrappers(stage: &Stage) -> kube::Api<DynamicObject> {
    stage.api("workload.codeflare.dev", "v1beta2", "AppWrapper")
}

async fn wrapper(stage: &Stage, name: &str, writer: &str, managed_by: Option<&str>) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {}});
    let object: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper",
        "metadata": {"name": name, "finalizers": [WRAPPER_FINALIZER]},
        "spec": {"components": [{"template": pod}], "managedBy": managed_by.unwrap_or(OUR_CONTROLLER)},
    }))
    .unwrap();
    let by = PostParams { field_manager: Some(writer.to_owned()), ..PostParams::default() };
    wrappers(stage).create(&by, &object).await.unwrap();
}

/// A minimal CRD of Karpenter's NodePools, and an object.
async fn node_pool(stage: &Stage) {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "nodepools.karpenter.sh"},
        "spec": {
            "group": "karpenter.sh", "scope": "Cluster", "names": {"plural": "nodepools", "kind": "NodePool"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    });
    let definition = stage.write("nodepools.json", &definition.to_string());
    let pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
        "metadata": {"name": "gpu", "annotations": {"repair.salvor.dev/repairs": "[]", "example.com/theirs": "x"}},
    });
    let pool = stage.write("pool.json", &pool.to_string());
    stage.shell(&format!("kubectl apply -f {}", definition.display())).await;
    stage.shell("kubectl wait --for=condition=Established --timeout=60s crd/nodepools.karpenter.sh").await;
    stage.shell(&format!("kubectl apply -f {}", pool.display())).await;
}

async fn uninstall(stage: &Stage, flags: &[&str]) -> (i32, Value) {
    let (code, said) = stage.run(&[&["uninstall", "-o", "json"], flags].concat()).await;
    (code, serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}")))
}

fn texts(report: &Value, field: &str) -> String {
    let list = report[field].as_array().unwrap().iter();
    list.map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned)).collect::<Vec<_>>().join("\n")
}

async fn lease(stage: &Stage, renewed: &str) {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "salvor", "namespace": "salvor-system", "annotations": {"salvor.dev/brake": "{}"}},
        "spec": {"holderIdentity": "salvor-7", "leaseDurationSeconds": 3600, "acquireTime": renewed, "renewTime": renewed},
    });
    let file = stage.write("lease.json", &lease.to_string());
    stage.shell(&format!("kubectl apply -f {}", file.display())).await;
}

async fn a_cluster_is_released_before_salvor_is_removed(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::new(&plane.admin(), plane.kubectl(), "default");

    // Nothing is installed yet.
    let (code, said) = stage.run(&["uninstall"]).await;
    assert_eq!((code, said.as_str()), (0, "Nothing of Salvor's is on any object\n"));

    // An installation whose webhooks are not served, and its marks everywhere.
    let (_, all) = stage.run(&["manifests", "--controllers", "appwrapper,repair,job"]).await;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&all).unwrap();
    let definitions = documents.iter().filter(|one| one["kind"] == "CustomResourceDefinition");
    let definitions = definitions.map(Value::to_string).collect::<Vec<_>>().join("\n---\n");
    let apply = |file: std::path::PathBuf| format!("kubectl apply --server-side -f {}", file.display());
    stage.shell(&apply(stage.write("crds.yaml", &definitions))).await;
    stage
        .shell(
            "kubectl wait --for=condition=Established --timeout=60s crd/appwrappers.workload.codeflare.dev",
        )
        .await;
    for name in ["ours", "leaving"] {
        wrapper(&stage, name, "salvor", None).await;
    }
    // The embedded cluster has no managedFields, so there the configuration says that Salvor runs the AppWrappers.
    let (other, config) = match site {
        Site::Real => (None, None),
        Site::Embedded => {
            let text =
                "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\ncontrollers: [appwrapper]\n";
            let file = stage.write("config.yaml", text).display().to_string();
            (Some("kueue.x-k8s.io/multikueue"), Some(format!("--config={file}")))
        }
    };
    wrapper(&stage, "theirs", "manager", other).await;
    let uninstall = async |flags: &[&str]| {
        let config = config.as_deref();
        uninstall(&stage, &flags.iter().copied().chain(config).collect::<Vec<_>>()).await
    };
    wrappers(&stage).delete("leaving", &DeleteParams::default()).await.unwrap();
    stage.shell(&apply(stage.write("all.yaml", &all))).await;
    marked_node(&stage, "marked").await;
    stage.node("clean", "True").await;
    node_pool(&stage).await;
    for (name, finalizers) in
        [("stuck", json!([FINALIZER])), ("runs", json!([FINALIZER, "example.com/theirs"]))]
    {
        stage.pod(name, "clean", json!({"metadata": {"finalizers": finalizers}}), running()).await;
    }
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    stage.api("", "v1", "Pod").delete("stuck", &at_once).await.unwrap();
    job(&stage, "over", true).await;
    job(&stage, "open", false).await;
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string();
    lease(&stage, &now).await;

    // A dry run reports everything and changes nothing.
    let before = node(&stage, "marked").await;
    let (code, report) = uninstall(&[]).await;
    assert_eq!((code, &report["dryRun"]), (0, &json!(true)), "{report:#}");
    let titles: Vec<String> = report["released"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| format!("{} {}", one["kind"].as_str().unwrap(), one["name"].as_str().unwrap()))
        .collect();
    for title in [
        "MutatingWebhookConfiguration salvor",
        "ValidatingWebhookConfiguration salvor",
        "Job over",
        "Job open",
        "AppWrapper ours",
        "AppWrapper leaving",
        "Pod stuck",
        "Pod runs",
        "Node marked",
        "NodePool gpu",
        "Lease salvor",
    ] {
        assert!(titles.iter().any(|found| found == title), "no {title}: {report:#}");
    }
    assert_eq!(titles.len(), 11, "{report:#}");
    let blocked = texts(&report, "blocked");
    for reason in [
        "salvor-7 leads (Lease salvor-system/salvor)",
        "asks for 2 replicas",
        "Job default/open",
        "AppWrapper default/ours",
    ] {
        assert!(blocked.contains(reason), "no {reason}: {blocked}");
    }
    assert!(texts(&report, "stays").contains("kubectl uncordon marked"), "{report:#}");

    // While an operator leads, it is refused with the name of the leader.
    let (code, report) = uninstall(&["--yes", "--abandon-workloads"]).await;
    assert_eq!(code, 1, "{report:#}");
    assert!(texts(&report, "blocked").contains("salvor-7 leads"), "{report:#}");
    stage
        .shell(
            "kubectl patch deployment salvor -n salvor-system --type=merge -p '{\"spec\":{\"replicas\":0}}'",
        )
        .await;
    lease(&stage, "2026-01-01T00:00:00.000000Z").await;
    let (code, report) = uninstall(&["--yes"]).await;
    assert_eq!((code, report["blocked"].as_array().unwrap().len()), (1, 1), "{report:#}");
    assert_eq!(node(&stage, "marked").await, before);

    let (code, report) = uninstall(&["--yes", "--abandon-workloads"]).await;
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(report["released"].as_array().unwrap().len(), 11, "{report:#}");
    let node = node(&stage, "marked").await;
    let left = json!({"salvor.dev/do-not-repair": "true", "example.com/theirs": "x"});
    assert_eq!(node["metadata"]["annotations"], left, "{node:#}");
    let taints: Vec<&Value> =
        node["spec"]["taints"].as_array().unwrap().iter().map(|taint| &taint["key"]).collect();
    assert!(taints.contains(&&json!("example.com/theirs")), "{node:#}");
    assert!(
        !taints
            .iter()
            .any(|key| **key == "salvor.dev/force-eviction" || **key == "node.kubernetes.io/out-of-service"),
        "{node:#}"
    );
    let conditions: Vec<&Value> =
        node["status"]["conditions"].as_array().unwrap().iter().map(|one| &one["type"]).collect();
    assert_eq!(conditions, [&json!("Ready")], "{node:#}");
    let pods = stage.api("", "v1", "Pod");
    assert!(pods.get_opt("stuck").await.unwrap().is_none());
    assert_eq!(pods.get("runs").await.unwrap().metadata.finalizers.unwrap(), ["example.com/theirs"]);
    for name in ["over", "open"] {
        let job = stage.api("batch", "v1", "Job").get(name).await.unwrap();
        assert!(job.metadata.annotations.unwrap_or_default().is_empty());
    }
    assert!(wrappers(&stage).get_opt("leaving").await.unwrap().is_none());
    assert!(wrappers(&stage).get("ours").await.unwrap().metadata.finalizers.unwrap_or_default().is_empty());
    // CodeFlare's controller still needs its own finalizer.
    assert_eq!(
        wrappers(&stage).get("theirs").await.unwrap().metadata.finalizers.unwrap(),
        [WRAPPER_FINALIZER]
    );
    let pool = stage.cluster_api("karpenter.sh", "v1", "NodePool").get("gpu").await.unwrap();
    assert!(!pool.metadata.annotations.unwrap().contains_key("repair.salvor.dev/repairs"));
    let webhooks = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
    stage.shell(&format!("kubectl get {webhooks} -o name | grep salvor; test $? = 1")).await;
    stage.shell("kubectl get lease -n salvor-system -o name | grep salvor; test $? = 1").await;

    // A second run has nothing to do. A CRD is deleted on request if none of its objects is left.
    let (code, report) = uninstall(&["--yes", "--abandon-workloads", "--delete-crds"]).await;
    assert_eq!(code, 1, "{report:#}");
    assert!(
        texts(&report, "failed").contains("kubectl delete appwrappers.workload.codeflare.dev -A --all"),
        "{report:#}"
    );
    let crds = stage.cluster_api(CRD, "v1", "CustomResourceDefinition");
    assert!(crds.get_opt("appwrappers.workload.codeflare.dev").await.unwrap().is_some());
    let no_finalizers = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    wrappers(&stage).patch("theirs", &PatchParams::default(), &no_finalizers).await.unwrap();
    stage.shell("kubectl delete appwrappers.workload.codeflare.dev -A --all").await;
    let (code, report) = uninstall(&["--yes", "--abandon-workloads", "--delete-crds"]).await;
    assert_eq!(code, 0, "{report:#}");
    assert!(texts(&report, "released").contains("appwrappers.workload.codeflare.dev"), "{report:#}");
    stage.shell("kubectl wait --for=delete --timeout=60s crd/appwrappers.workload.codeflare.dev crd/noderepairpolicies.salvor.dev").await;

    // With the same flags as before, the rest of the installation is deleted without the CRDs.
    stage.shell("salvor manifests --controllers appwrapper,repair,job --skip-crds | kubectl delete --ignore-not-found --wait=false -f -").await;
    let (_, report) = uninstall(&["--abandon-workloads"]).await;
    assert_eq!(report["released"], json!([]), "{report:#}");
}

/// Objects that change in the meantime are read again, and uncertain outcomes are checked.
async fn a_server_in_trouble_is_asked_again(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::new(&plane.admin(), plane.kubectl(), "default");
    marked_node(&stage, "marked").await;
    stage.pod("stuck", "marked", json!({"metadata": {"finalizers": [FINALIZER]}}), running()).await;
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    stage.api("", "v1", "Pod").delete("stuck", &at_once).await.unwrap();
    stage.create("", "Namespace", json!({"metadata": {"name": "salvor-system"}})).await;
    lease(&stage, "2026-01-01T00:00:00.000000Z").await;

    let server = FaultyServer::before(&plane.admin()).await;
    let troubled = Stage::new(server.admin(), plane.kubectl(), "default");
    let strike = |effect: Effect, path: &str, times: u32| {
        server.faults().add(Fault::new(effect).method(Method::PATCH).path(path).times(times));
    };
    strike(Effect::AnswerLost, "/nodes/marked/status", 1);
    strike(Effect::Conflict, "/nodes/marked?", 2);
    strike(Effect::InternalError, "/pods/stuck", 2);
    let (code, report) = uninstall(&troubled, &["--yes"]).await;
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(uninstall(&stage, &[]).await.1["released"], json!([]));
    assert!(stage.api("", "v1", "Pod").get_opt("stuck").await.unwrap().is_none());

    // What cannot be removed is reported, and the Lease stays until it is.
    marked_node(&stage, "refused").await;
    lease(&stage, "2026-01-01T00:00:00.000000Z").await;
    server.faults().add(Fault::new(Effect::Unavailable).method(Method::PATCH).path("/nodes/refused"));
    let (code, report) = uninstall(&troubled, &["--yes"]).await;
    assert_eq!(code, 1, "{report:#}");
    assert!(texts(&report, "failed").contains("Node refused"), "{report:#}");
    let found = stage.kubectl.run(&[
        "get",
        "lease",
        "salvor",
        "-n",
        "salvor-system",
        "-o",
        "jsonpath={.spec.holderIdentity}",
    ]);
    assert_eq!(found.await.unwrap(), "");
    server.faults().clear();
    assert_eq!(uninstall(&troubled, &["--yes"]).await.0, 0);
}

/// What cannot be read is named with the missing right, and nothing is done partially without a report.
async fn missing_rights_are_named(site: Site) {
    if site == Site::Embedded {
        // It has no RBAC.
        return;
    }
    let plane = site.api_server().await;
    let stage = Stage::new(&plane.admin(), plane.kubectl(), "default");
    marked_node(&stage, "marked").await;
    let (code, report) = uninstall(&stage, &["--yes", "--as", "somebody"]).await;
    assert_eq!(code, 1, "{report:#}");
    assert!(
        texts(&report, "blocked").contains("User \"somebody\" cannot get resource \"leases\""),
        "{report:#}"
    );
    let missed = texts(&report, "notSeen");
    for right in [
        "cannot list resource \\\"nodes\\\"",
        "cannot list resource \\\"pods\\\"",
        "cannot list resource \\\"jobs\\\"",
    ] {
        assert!(missed.contains(right), "no {right}: {missed}");
    }
    // A user who may read everything and change nothing.
    let everything = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let rule = PolicyRule {
        api_groups: Some(everything(&["*"])),
        resources: Some(everything(&["*"])),
        verbs: everything(&["get", "list"]),
        ..PolicyRule::default()
    };
    plane.admin().service_account("default", "reader", vec![rule]).await.unwrap();
    let reader = "system:serviceaccount:default:reader";
    let (code, report) = uninstall(&stage, &["--yes", "--as", reader]).await;
    assert_eq!(code, 1, "{report:#}");
    assert!(texts(&report, "failed").contains("cannot patch resource \\\"nodes\\\""), "{report:#}");
}

salvor_testkit::on_both!(
    a_cluster_is_released_before_salvor_is_removed,
    a_server_in_trouble_is_asked_again,
    missing_rights_are_named,
);
