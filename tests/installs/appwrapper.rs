//! The CRD of AppWrappers, in a real API server and in the embedded one: users' objects are accepted, malformed ones
//! are refused with the field, and `status.resets` keeps its content.

use std::fs;
use std::path::Path;
use std::process::Command;

use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use salvor_api::config::AppWrapperSettings;
use salvor_recovery::appwrapper::admission::{
    AdmissionPolicy, Answer, Operation, Request, User, refusal_without_webhook, validate,
};
use salvor_testkit::{Kubectl, Plane, Site, on_both};
use serde_json::{Value, json};

const SAMPLES: &str = include_str!("samples.yaml");

fn samples() -> Vec<Value> {
    SAMPLES.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn manifests() -> Vec<u8> {
    let output = Command::new(env!("CARGO_BIN_EXE_salvor"))
        .env_clear()
        .args(["manifests", "--controllers", "appwrapper"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// An API server with everything that `salvor manifests --controllers appwrapper` prints, installed by one apply.
async fn installed(site: Site, folder: &Path) -> (Plane, Kubectl) {
    let plane = site.api_server().await;
    let file = folder.join("install.yaml");
    fs::write(&file, manifests()).unwrap();
    let kubectl = plane.kubectl();
    let everywhere = kubectl.clone().in_namespace("");
    let install = file.to_str().unwrap();
    let told = everywhere.run(&["apply", "--server-side", "-f", install]).await.unwrap();
    let first = told.lines().next().unwrap_or_default();
    assert_eq!(
        first,
        "customresourcedefinition.apiextensions.k8s.io/appwrappers.workload.codeflare.dev serverside-applied"
    );
    assert!(told.lines().all(|line| line.ends_with(" serverside-applied")), "{told}");
    let definition = "crd/appwrappers.workload.codeflare.dev";
    kubectl.run(&["wait", "--for=condition=Established", "--timeout=60s", definition]).await.unwrap();
    // No webhooks are served here. The test only concerns the CRD.
    let configurations = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
    everywhere.run(&["delete", configurations, "salvor"]).await.unwrap();
    (plane, kubectl)
}

fn wrappers(client: Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("workload.codeflare.dev", "v1beta2", "AppWrapper");
    Api::namespaced_with(client, "default", &ApiResource::from_gvk(&kind))
}

async fn users_samples_are_taken_as_they_are(site: Site) {
    let folder = tempfile::tempdir().unwrap();
    let (plane, kubectl) = installed(site, folder.path()).await;
    let file = folder.path().join("samples.yaml");
    fs::write(&file, SAMPLES).unwrap();
    let told = kubectl.run(&["apply", "--validate=strict", "-f", file.to_str().unwrap()]).await.unwrap();
    assert_eq!(told.lines().count(), samples().len(), "{told}");
    assert!(told.lines().all(|line| line.ends_with(" created")), "{told}");

    let api = wrappers(plane.admin().client("reader"));
    for sample in samples() {
        let name = sample["metadata"]["name"].as_str().unwrap();
        let stored = api.get(name).await.unwrap();
        // Nothing is added and nothing is removed.
        assert_eq!(stored.data["spec"], sample["spec"], "{name}");
    }
    let status = json!({"status": {
        "phase": "Running",
        "conditions": [{
            "type": "QuotaReserved", "status": "True", "reason": "Resuming", "message": "", "lastTransitionTime": "2026-11-16T09:00:00Z",
        }],
    }});
    let patched =
        api.patch_status("wrapped-pod", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    assert_eq!(patched.data["status"]["phase"], "Running");
    // By its short name, with its columns.
    let table = kubectl.run(&["get", "aw", "wrapped-pod"]).await.unwrap();
    let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(
        lines.next().unwrap(),
        ["NAME", "STATUS", "QUOTA", "RESERVED", "RESOURCES", "DEPLOYED", "UNHEALTHY", "AGE"]
    );
    assert_eq!(lines.next().unwrap()[..3], ["wrapped-pod", "Running", "True"]);
}

/// A component around a Pod, with changes.
fn wrapper(name: &str, change: impl Fn(&mut Value)) -> Value {
    let mut object = json!({
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": name},
        "spec": {"components": [{
            "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"anything": {"goes": [1]}}},
        }]},
    });
    change(&mut object);
    object
}

async fn malformed_wrappers_are_refused_with_their_field(site: Site) {
    let folder = tempfile::tempdir().unwrap();
    let (plane, _) = installed(site, folder.path()).await;
    let api = wrappers(plane.admin().client("writer"));
    let set = |pointer: &'static str, value: Value| {
        wrapper("bad", |object| {
            let (outer, field) = pointer.rsplit_once('/').unwrap();
            object.pointer_mut(outer).unwrap()[field] = value.clone();
        })
    };
    let unnamed_gate = json!([{"schedulingGates": [{}]}]);
    let cases = [
        (set("/spec", json!({})), "spec.components: Required value"),
        (set("/spec/components", json!("x")), "spec.components: Invalid value"),
        (set("/spec/suspend", json!("yes")), "spec.suspend: Invalid value"),
        (set("/spec/managedBy", json!(1)), "spec.managedBy: Invalid value"),
        (set("/spec/components", json!([{}])), "spec.components[0].template: Required value"),
        (set("/spec/components/0/template", json!("x")), "spec.components[0].template: Invalid value"),
        (
            set("/spec/components/0/template", json!({"kind": "Pod"})),
            "spec.components[0].template.apiVersion: Required value",
        ),
        (
            set("/spec/components/0/template", json!({"apiVersion": "v1"})),
            "spec.components[0].template.kind: Required value",
        ),
        (
            set("/spec/components/0/podSets", json!([{}])),
            "spec.components[0].podSets[0].path: Required value",
        ),
        (
            set("/spec/components/0/podSets", json!([{"path": "template", "replicas": "2"}])),
            "spec.components[0].podSets[0].replicas: Invalid value",
        ),
        (
            set("/spec/components/0/podSets", json!([{"path": "template", "annotations": {"a": 1}}])),
            "spec.components[0].podSets[0].annotations.a: Invalid value",
        ),
        (
            set("/spec/components/0/podSetInfos", unnamed_gate),
            "spec.components[0].podSetInfos[0].schedulingGates[0].name: Required value",
        ),
        (
            set("/spec/components/0/podSetInfos", json!([{"tolerations": [{"tolerationSeconds": "x"}]}])),
            "spec.components[0].podSetInfos[0].tolerations[0].tolerationSeconds: Invalid value",
        ),
    ];
    for (object, expected) in cases {
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let error = api.create(&PostParams::default(), &object).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{object:?}\n gave {error}\n not {expected}");
    }
    // The spec is optional, as in CodeFlare's CRD. The webhook refuses a missing one.
    let empty = wrapper("empty", |object| {
        object.as_object_mut().unwrap().remove("spec");
    });
    api.create(&PostParams::default(), &serde_json::from_value(empty).unwrap()).await.unwrap();
}

async fn the_status_is_held_to_its_schema_and_keeps_the_history(site: Site) {
    let folder = tempfile::tempdir().unwrap();
    let (plane, _) = installed(site, folder.path()).await;
    let api = wrappers(plane.admin().client("writer"));
    let object = wrapper("aw", |object| {
        object["status"] = json!({"phase": "Running"});
        object["spec"]["unknown"] = json!(1);
    });
    let created = api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    // The status has its own subresource, and unknown fields are dropped, except inside templates.
    assert_eq!(created.data.get("status"), None);
    assert_eq!(created.data["spec"].get("unknown"), None);
    assert_eq!(created.data["spec"]["components"][0]["template"]["spec"], json!({"anything": {"goes": [1]}}));

    let patch = |status: Value| {
        let api = api.clone();
        async move {
            api.patch_status("aw", &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await
        }
    };
    let condition = |changes: Value| {
        let mut condition = json!({
            "type": "Unhealthy", "status": "True", "reason": "FoundFailedPods", "message": "", "lastTransitionTime": "2026-11-16T09:00:00Z",
        });
        for (key, value) in changes.as_object().unwrap() {
            condition[key] = value.clone();
        }
        json!({"conditions": [condition]})
    };
    let cases = [
        (json!({"phase": 1}), "status.phase: Invalid value"),
        (json!({"resettingCount": "1"}), "status.resettingCount: Invalid value"),
        (condition(json!({"reason": ""})), "status.conditions[0].reason"),
        (condition(json!({"reason": "two words"})), "status.conditions[0].reason: Invalid value"),
        (condition(json!({"status": "Maybe"})), "status.conditions[0].status: Unsupported value: \"Maybe\""),
        (condition(json!({"message": null})), "status.conditions[0].message: Required value"),
        (
            json!({"componentStatus": [{"name": "a", "kind": "b", "apiVersion": "c"}]}),
            "status.componentStatus[0].podSets: Required value",
        ),
        (
            json!({"componentStatus": [{"name": "a", "kind": "b", "apiVersion": "c", "podSets": [{}]}]}),
            "status.componentStatus[0].podSets[0].path: Required value",
        ),
    ];
    for (status, expected) in cases {
        let error = patch(status.clone()).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{status}\n gave {error}\n not {expected}");
    }
    let status = json!({
        "phase": "Resetting",
        "resettingCount": 1,
        "componentStatus": [{"name": "", "kind": "", "apiVersion": "", "podSets": []}],
        "resets": [{
            "time": "2026-11-16T09:00:00Z",
            "cause": "FoundFailedPods",
            "counted": true,
            "pods": [{"name": "p", "node": "n", "exitCode": 137, "signal": 9}],
        }],
    });
    let stored = patch(status.clone()).await.unwrap();
    assert_eq!(stored.data["status"], status);
}

on_both!(
    users_samples_are_taken_as_they_are,
    malformed_wrappers_are_refused_with_their_field,
    the_status_is_held_to_its_schema_and_keeps_the_history,
);

/// Samples that work are admitted. For the one that needs a setting of the administrator, the error names the line to
/// add.
#[test]
fn users_samples_are_admitted() {
    let user = User { username: "somebody".into(), ..User::default() };
    let mut settings = AppWrapperSettings::default();
    let by_default = AdmissionPolicy::new(&settings);
    settings.wrapped_kinds.push("LeaderWorkerSet.leaderworkerset.x-k8s.io".into());
    settings.wrapped_kinds_without_webhooks = settings.wrapped_kinds.clone();
    let generous = AdmissionPolicy::new(&settings);
    for object in samples() {
        let request =
            Request { operation: Operation::Create, namespace: "default", user: &user, object: &object };
        let answer = validate(&request, &by_default);
        if object["metadata"]["name"] == "wrapped-leader-worker-set" {
            let Answer::Refused(refusal) = answer else { panic!("{answer:?}") };
            assert!(
                refusal.to_string().contains("\"- LeaderWorkerSet.leaderworkerset.x-k8s.io\""),
                "{refusal}"
            );
        } else {
            assert!(matches!(answer, Answer::Ask(_)), "{answer:?}");
        }
        assert!(matches!(validate(&request, &generous), Answer::Ask(_)));
        assert_eq!(refusal_without_webhook(&object, &generous), None);
    }
}
