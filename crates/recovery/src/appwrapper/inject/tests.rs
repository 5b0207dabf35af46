#![allow(clippy::needless_pass_by_value, reason = "values are made where they are passed")]

use std::sync::LazyLock;

use proptest::prelude::*;
use salvor_api::config::{ResourceTaint, TaintEffect};
use serde_json::json;

use super::*;
use crate::appwrapper::podsets::pod_sets;
use crate::ids::Uid;

static UID: LazyLock<Uid> = LazyLock::new(|| "uid-1".into());
static OWNER: LazyLock<Owner<'static>> =
    LazyLock::new(|| Owner { namespace: "team", name: "wrapper", uid: &UID });

fn policy() -> InjectionPolicy {
    let mut settings = AppWrapperSettings::default();
    let taints = settings.autopilot.resource_taints.get_mut("nvidia.com/gpu").unwrap();
    let extra =
        |key: &str, value: &str, effect| ResourceTaint { key: key.into(), value: value.into(), effect };
    taints.push(extra("extra", "test", TaintEffect::NoExecute));
    taints.push(extra("extra2", "test2", TaintEffect::PreferNoSchedule));
    InjectionPolicy::new(&settings)
}

/// Kueue's additions from upstream's tests.
fn info() -> Value {
    json!({
        "labels": {"testkey1": "value1"},
        "annotations": {"test2": "test2"},
        "nodeSelector": {"nodeName": "myNode"},
        "tolerations": [{"key": "aKey", "operator": "Exists", "effect": "NoSchedule"}],
        "schedulingGates": [{"name": "aGate"}],
    })
}

fn pod(name: &str, resources: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "busybox", "resources": resources}]},
    })
}

fn made(component: &Value) -> Result<Value, FieldError> {
    made_with(component, &policy())
}

fn made_with(component: &Value, policy: &InjectionPolicy) -> Result<Value, FieldError> {
    let sets = pod_sets(component).unwrap();
    object(Component { spec: component, index: 0, pod_sets: &sets, attempt: 0 }, *OWNER, policy)
}

fn avoided(values: &[(&str, &[&str])]) -> Value {
    let expression =
        |(key, values): &(&str, &[&str])| json!({"key": key, "operator": "NotIn", "values": values});
    values.iter().map(expression).collect()
}

#[test]
fn a_minimal_pod_gets_everything() {
    let gpu = pod("a", json!({"limits": {"nvidia.com/gpu": 1}}));
    let made = made(&json!({"template": gpu, "podSetInfos": [info()]})).unwrap();
    let required = avoided(&[("autopilot.ibm.com/gpuhealth", &["TESTING", "EVICT"]), ("extra", &["test"])]);
    let preferred = avoided(&[("autopilot.ibm.com/gpuhealth", &["WARN"]), ("extra2", &["test2"])]);
    assert_eq!(
        made,
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "a",
                "namespace": "team",
                "labels": {"workload.codeflare.dev/appwrapper": "wrapper", "testkey1": "value1"},
                "annotations": {"test2": "test2"},
                "ownerReferences": [{
                    "apiVersion": "workload.codeflare.dev/v1beta2",
                    "kind": "AppWrapper",
                    "name": "wrapper",
                    "uid": "uid-1",
                    "controller": true,
                    "blockOwnerDeletion": true,
                }],
            },
            "spec": {
                "containers": [{"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": 1}}}],
                "nodeSelector": {"nodeName": "myNode"},
                "tolerations": [{"key": "aKey", "operator": "Exists", "effect": "NoSchedule"}],
                "schedulingGates": [{"name": "aGate"}],
                "affinity": {"nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": required}]},
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 50, "preference": {"matchExpressions": preferred}},
                    ],
                }},
            },
        })
    );
}

#[test]
fn pods_without_the_resource_stay_where_they_are() {
    for resources in
        [json!({}), json!({"requests": {"nvidia.com/gpu": "0"}}), json!({"limits": {"cpu": 1}}), json!(null)]
    {
        let made = made(&json!({"template": pod("a", resources)})).unwrap();
        assert_eq!(made["spec"].get("affinity"), None);
        assert_eq!(made["metadata"]["labels"], json!({"workload.codeflare.dev/appwrapper": "wrapper"}));
    }
    let mut settings = AppWrapperSettings::default();
    settings.autopilot.inject_anti_affinities = false;
    let gpu = json!({"template": pod("a", json!({"limits": {"nvidia.com/gpu": 1}}))});
    let made = made_with(&gpu, &InjectionPolicy::new(&settings)).unwrap();
    assert_eq!(made["spec"].get("affinity"), None);
}

#[test]
fn an_init_container_uses_resources_too() {
    let mut template = pod("a", json!({}));
    template["spec"]["initContainers"] =
        json!([{"name": "i", "resources": {"requests": {"nvidia.com/gpu": "2"}}}]);
    assert!(made(&json!({ "template": template })).unwrap()["spec"]["affinity"].is_object());
}

#[test]
fn a_pod_keeps_what_it_has() {
    let mut template = pod("a", json!({"requests": {"nvidia.com/gpu": 1}}));
    let own = json!({"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["badHost1"]});
    template["metadata"]["labels"] = json!({"own": "label", "testkey1": "value1"});
    template["metadata"]["annotations"] = json!({"own": "annotation"});
    template["metadata"]["ownerReferences"] = json!([{"kind": "ConfigMap", "name": "c", "uid": "u"}]);
    template["spec"]["nodeSelector"] = json!({"own": "selector"});
    template["spec"]["tolerations"] = json!([{"key": "own"}]);
    template["spec"]["schedulingGates"] = json!([{"name": "own"}, {"name": "aGate"}]);
    template["spec"]["schedulerName"] = json!("own-scheduler");
    template["spec"]["affinity"] = json!({"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [own]}]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
    }});
    let settings = AppWrapperSettings { scheduler_name: "ours".into(), ..AppWrapperSettings::default() };
    let component = json!({"template": template, "podSetInfos": [info()]});
    let made = made_with(&component, &InjectionPolicy::new(&settings)).unwrap();
    let labels =
        json!({"own": "label", "testkey1": "value1", "workload.codeflare.dev/appwrapper": "wrapper"});
    assert_eq!(made["metadata"]["labels"], labels);
    assert_eq!(made["metadata"]["annotations"], json!({"own": "annotation", "test2": "test2"}));
    assert_eq!(made["metadata"]["ownerReferences"].as_array().unwrap().len(), 2);
    let spec = &made["spec"];
    assert_eq!(spec["nodeSelector"], json!({"own": "selector", "nodeName": "myNode"}));
    assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!(spec["schedulingGates"], json!([{"name": "own"}, {"name": "aGate"}]));
    assert_eq!(spec["schedulerName"], "own-scheduler");
    let affinity = &spec["affinity"]["nodeAffinity"];
    let terms =
        affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].as_array().unwrap();
    assert_eq!(terms.len(), 1);
    let mut expected = vec![own];
    expected.extend(
        avoided(&[("autopilot.ibm.com/gpuhealth", &["TESTING", "EVICT"])]).as_array().unwrap().clone(),
    );
    assert_eq!(terms[0]["matchExpressions"], json!(expected));
    assert_eq!(affinity["preferredDuringSchedulingIgnoredDuringExecution"].as_array().unwrap().len(), 2);
}

#[test]
fn every_alternative_keeps_away() {
    let mut template = pod("a", json!({"requests": {"nvidia.com/gpu": 1}}));
    let terms = json!([{"matchFields": []}, {"matchExpressions": [{"key": "a", "operator": "Exists"}]}]);
    template["spec"]["affinity"] = json!({"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
    }});
    let made = made(&json!({ "template": template })).unwrap();
    let terms = &made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let counts: Vec<_> = terms
        .as_array()
        .unwrap()
        .iter()
        .map(|term| term["matchExpressions"].as_array().unwrap().len())
        .collect();
    assert_eq!(counts, [2, 3]);
}

/// Upstream crashes on these.
#[test]
fn what_is_null_is_not_there() {
    let mut template = pod("a", json!({"requests": {"nvidia.com/gpu": 1}}));
    template["metadata"]["labels"] = Value::Null;
    template["metadata"]["ownerReferences"] = Value::Null;
    template["metadata"]["namespace"] = json!("");
    for field in ["tolerations", "schedulingGates", "nodeSelector", "affinity", "schedulerName"] {
        template["spec"][field] = Value::Null;
    }
    let made = made(&json!({"template": template, "podSetInfos": [info()]})).unwrap();
    assert_eq!(made["spec"]["tolerations"].as_array().unwrap().len(), 1);
    assert_eq!(made["spec"]["schedulingGates"], json!([{"name": "aGate"}]));
    assert_eq!(made["metadata"]["namespace"], "team");
}

fn job(metadata: Value) -> Value {
    let pod = json!({"spec": {"containers": [{"name": "a", "image": "b"}]}});
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": pod}})
}

#[test]
fn each_pod_set_gets_its_own() {
    let replica = |name: &str| json!({"template": {"spec": {"containers": [{"name": name}]}}});
    let template = json!({
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "p"},
        "spec": {"pytorchReplicaSpecs": {"Master": replica("m"), "Worker": replica("w")}},
    });
    // Kueue may have provided fewer.
    let infos = json!([{"nodeSelector": {"rack": "1"}, "labels": null}]);
    let settings = AppWrapperSettings { scheduler_name: "ours".into(), ..AppWrapperSettings::default() };
    let component = json!({"template": template, "podSetInfos": infos});
    let made = made_with(&component, &InjectionPolicy::new(&settings)).unwrap();
    let specs = &made["spec"]["pytorchReplicaSpecs"];
    assert_eq!(specs["Master"]["template"]["spec"]["nodeSelector"], json!({"rack": "1"}));
    assert_eq!(specs["Worker"]["template"]["spec"].get("nodeSelector"), None);
    for role in ["Master", "Worker"] {
        let template = &specs[role]["template"];
        assert_eq!(template["metadata"]["labels"], json!({"workload.codeflare.dev/appwrapper": "wrapper"}));
        assert_eq!(template["spec"]["schedulerName"], "ours");
    }
    assert_eq!(made["metadata"]["labels"], json!({"workload.codeflare.dev/appwrapper": "wrapper"}));
}

#[test]
fn a_kind_without_pod_sets_gets_owner_and_label() {
    let service =
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": []}});
    let made = made(&json!({ "template": service })).unwrap();
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "uid-1");
    assert_eq!(made["metadata"]["labels"], json!({"workload.codeflare.dev/appwrapper": "wrapper"}));
    assert_eq!(made["spec"], json!({"ports": []}));
}

#[test]
fn what_can_never_be_created_is_refused_with_its_field() {
    let label = "workload.codeflare.dev/appwrapper";
    let with = |change: &dyn Fn(&mut Value)| {
        let mut component = json!({"template": job(json!({"name": "j"})), "podSetInfos": [info()]});
        change(&mut component);
        component
    };
    let pod = "/template/spec/template";
    type Change = Box<dyn Fn(&mut Value)>;
    let set = |pointer: String, value: Value| -> Change {
        Box::new(move |component| {
            let (outer, field) = pointer.rsplit_once('/').unwrap();
            let field = field.replace("~1", "/");
            component.pointer_mut(outer).unwrap()[field] = value.clone();
        })
    };
    let cases: Vec<(Change, &str)> = vec![
        (
            set("/template/metadata/namespace".into(), json!("other")),
            "template.metadata.namespace: Forbidden: AppWrappers cannot create",
        ),
        (set("/template/metadata/namespace".into(), json!(1)), "template.metadata.namespace: Forbidden"),
        (
            set("/template/metadata/name".into(), json!("")),
            "template.metadata.name: Required value: set name or generateName",
        ),
        (
            set("/template/metadata/name".into(), json!(7)),
            "template.metadata.name: Invalid value: \"7\": must be a string",
        ),
        (set("/template/metadata".into(), json!("x")), "template.metadata.name: Required value"),
        (
            set("/template/metadata/labels".into(), json!([])),
            "template.metadata.labels: Invalid value: \"[]\": must be an object",
        ),
        (
            set("/template/metadata/labels".into(), json!({label: "another"})),
            "template.metadata.labels[workload.codeflare.dev/appwrapper]: Invalid value: \"\\\"another\\\"\": must be \"wrapper\"",
        ),
        (
            set("/template/metadata/ownerReferences".into(), json!([{"controller": true, "uid": "x"}])),
            "template.metadata.ownerReferences: Invalid value",
        ),
        (
            set("/template/metadata/ownerReferences".into(), json!({})),
            "template.metadata.ownerReferences: Invalid value: \"{}\": must be a list",
        ),
        (
            set(format!("{pod}/metadata"), json!({"annotations": {"test2": "other"}})),
            "template.spec.template.metadata.annotations[test2]: Invalid value: \"\\\"other\\\"\": must be \"test2\", or not set",
        ),
        (
            set(format!("{pod}/metadata"), json!({"labels": {"testkey1": "other"}})),
            "template.spec.template.metadata.labels[testkey1]: Invalid value",
        ),
        (
            set(format!("{pod}/metadata"), json!({"labels": {label: "another"}})),
            "template.spec.template.metadata.labels[workload.codeflare.dev/appwrapper]: Invalid value",
        ),
        (
            set(format!("{pod}/metadata"), json!([])),
            "template.spec.template.metadata: Invalid value: \"[]\": must be an object",
        ),
        (
            set(format!("{pod}/spec/nodeSelector"), json!({"nodeName": "other"})),
            "template.spec.template.spec.nodeSelector[nodeName]: Invalid value",
        ),
        (set("/podSetInfos".into(), json!("x")), "podSetInfos: Invalid value: \"\\\"x\\\"\": must be a list"),
        (set("/podSetInfos".into(), json!([{"tolerations": ["x"]}])), "podSetInfos[0]: Invalid value"),
        (set("/podSetInfos".into(), json!([{"schedulingGates": [{}]}])), "podSetInfos[0]: Invalid value"),
        (
            set("/podSetInfos".into(), json!([{"labels": {label: "another"}}])),
            "template.spec.template.metadata.labels[workload.codeflare.dev/appwrapper]: Invalid value: \"another\"",
        ),
    ];
    for (change, expected) in cases {
        let component = with(&*change);
        let error = made(&component).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{component}\n gave {error}\n not {expected}");
    }
    let component = json!({"template": job(json!({"name": "j"}))});
    let set = PodSet { path: "template.spec".into(), replicas: None, annotations: BTreeMap::new() };
    let given = Component { spec: &component, index: 0, pod_sets: &[set], attempt: 0 };
    let error = object(given, *OWNER, &policy()).unwrap_err().to_string();
    assert!(
        error.starts_with("podSets[0].path: Invalid value: \"template.spec\": there is no pod template"),
        "{error}"
    );
}

#[test]
fn a_generated_name_is_the_same_every_time() {
    let template = job(json!({"generateName": "train-"}));
    let name = |index, attempt, owner| object_name(&template, index, attempt, owner).unwrap();
    let first = name(0, 0, *OWNER);
    assert_eq!(first, name(0, 0, *OWNER));
    assert_eq!(first.len(), "train-".len() + 5);
    let other = Owner { uid: &"uid-2".into(), ..*OWNER };
    let others = [name(1, 0, *OWNER), name(0, 1, *OWNER), name(0, 0, other)];
    assert!(others.iter().all(|name| *name != first), "{others:?}");
    let made = made(&json!({ "template": template })).unwrap();
    assert_eq!(made["metadata"]["name"], first);
    // A component with a fixed name keeps it in every attempt.
    let named = job(json!({"name": "fixed", "generateName": "x-"}));
    assert_eq!(object_name(&named, 3, 9, *OWNER).unwrap(), "fixed");
    for long in ["x".repeat(300), "ä".repeat(300)] {
        let name = object_name(&job(json!({"generateName": long})), 0, 0, *OWNER).unwrap();
        assert!(name.len() <= 63, "{name}");
    }
}

#[test]
fn the_same_input_gives_the_same_object() {
    let component =
        json!({"template": pod("a", json!({"limits": {"nvidia.com/gpu": 1}})), "podSetInfos": [info()]});
    let first = made(&component).unwrap();
    assert_eq!(first.to_string(), made(&component).unwrap().to_string());
    // An object that is read back and created again gets no second owner reference.
    let mut again = component.clone();
    again["template"]["metadata"]["ownerReferences"] = first["metadata"]["ownerReferences"].clone();
    assert_eq!(made(&again).unwrap()["metadata"], first["metadata"]);
}

proptest! {
    #![proptest_config(crate::fuzz::cases(512))]

    #[test]
    fn any_component_is_made_or_refused(component in crate::appwrapper::podsets::tests::any_json(), path in "template(\\.spec|\\.template|\\[0\\]){0,3}") {
        let sets = [PodSet { path, replicas: None, annotations: BTreeMap::new() }];
        let given = Component { spec: &component, index: 0, pod_sets: &sets, attempt: 0 };
        let _ = object(given, *OWNER, &policy()).map_err(|error| error.to_string());
        if let Ok(sets) = pod_sets(&component) {
            let given = Component { spec: &component, index: 0, pod_sets: &sets, attempt: 0 };
            let _ = object(given, *OWNER, &policy()).map_err(|error| error.to_string());
        }
    }
}
