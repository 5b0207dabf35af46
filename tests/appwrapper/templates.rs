//! From a template to an object: the injected fields, and invalid templates.

use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::DeleteParams};
use salvor_testkit::{Site, wait};
use serde_json::{Value, json};

use crate::{
    controller::{Settings, cases},
    stage::{MEMBER, Run, Stage, Wrap},
};

/// What Kueue writes into a component on admission, with the markers of CodeFlare's unit tests.
fn marker() -> Value {
    json!({
        "labels": {"testkey1": "value1"},
        "annotations": {"test2": "test2"},
        "nodeSelector": {"nodeName": "myNode"},
        "tolerations": [{"key": "aKey", "operator": "Exists", "effect": "NoSchedule"}],
        "schedulingGates": [{"name": "aGate"}],
    })
}

async fn marked(stage: &Stage<'_>, runs: [(&str, Run); 2]) -> [Pod; 2] {
    let component = |template: Value| json!({"template": template, "podSetInfos": [marker()]});
    let [(first, one), (second, two)] = runs;
    stage
        .create(Wrap::new("w").component(component(one.pod(first))).component(component(two.pod(second))))
        .await;
    stage.phase("w", "Running").await;
    let pods = [stage.pods.get(first).await.unwrap(), stage.pods.get(second).await.unwrap()];
    for pod in &pods {
        assert_eq!(pod.labels()[MEMBER], "w");
        assert_eq!(pod.labels()["testkey1"], "value1");
        assert_eq!(pod.annotations()["test2"], "test2");
        let spec = serde_json::to_value(&pod.spec).unwrap();
        assert_eq!(spec["nodeSelector"]["nodeName"], "myNode");
        let has = |list: &str, entry: Value| spec[list].as_array().is_some_and(|all| all.contains(&entry));
        assert!(
            has("tolerations", json!({"key": "aKey", "operator": "Exists", "effect": "NoSchedule"})),
            "{spec}"
        );
        assert!(has("schedulingGates", json!({"name": "aGate"})), "{spec}");
    }
    pods
}

fn affinity(pod: &Pod) -> Value {
    serde_json::to_value(pod.spec.as_ref().and_then(|spec| spec.affinity.clone())).unwrap()
}

/// Keys and values that required terms exclude.
fn excluded(term: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |rule: &Value| rule["values"].as_array().cloned().unwrap_or_default().into_iter();
    let rules = term["matchExpressions"].as_array().cloned().unwrap_or_default();
    rules
        .iter()
        .flat_map(|rule| {
            of(rule)
                .map(|value| (text(&rule["operator"]), text(&rule["key"]), text(&value)))
                .collect::<Vec<_>>()
        })
        .collect()
}

const HEALTH: &str = "autopilot.ibm.com/gpuhealth";

fn assert_keeps_away(pod: &Pod, more: &[(&str, &str)]) {
    let node = &affinity(pod)["nodeAffinity"];
    let terms = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        .as_array()
        .cloned()
        .unwrap();
    assert_eq!(terms.len(), 1, "{node}");
    let found = excluded(&terms[0]);
    for (key, value) in [(HEALTH, "TESTING"), (HEALTH, "EVICT"), ("extra", "test")].iter().chain(more) {
        let rule = ("NotIn".to_owned(), (*key).to_owned(), (*value).to_owned());
        assert!(found.contains(&rule), "{key}={value} is not kept away from: {node}");
    }
    let preferred = node["preferredDuringSchedulingIgnoredDuringExecution"].as_array().cloned().unwrap();
    let found: Vec<_> = preferred.iter().flat_map(|term| excluded(&term["preference"])).collect();
    for (key, value) in [(HEALTH, "WARN"), ("extra2", "test2")] {
        assert!(found.contains(&("NotIn".to_owned(), key.to_owned(), value.to_owned())), "{node}");
    }
    assert!(preferred.iter().all(|term| term["weight"] == 50), "{node}");
}

async fn small_pods_are_given_what_kueue_and_autopilot_want(site: Site) {
    let stage = Stage::new(site, "small", 0).await;
    let gpu = Run::on().requests("nvidia.com/gpu", "1");
    let [gpu, plain] = marked(&stage, [("gpu", gpu), ("plain", Run::on())]).await;
    assert_keeps_away(&gpu, &[]);
    assert_eq!(affinity(&plain), Value::Null, "only those that use the resource keep away");
}

async fn large_pods_keep_what_they_had(site: Site) {
    let stage = Stage::new(site, "large", 0).await;
    let hostname = json!({"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["badHost1"]});
    let own = |run: Run| {
        run.label("own", "label")
            .annotation("own", "annotation")
            .spec("nodeSelector", json!({"own": "node"}))
            .spec("tolerations", json!([{"key": "own", "operator": "Exists"}]))
            .spec("schedulingGates", json!([{"name": "own"}, {"name": "aGate"}]))
            .spec(
                "affinity",
                json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [hostname]}],
                }}}),
            )
    };
    let gpu = own(Run::on().requests("nvidia.com/gpu", "1"));
    let [gpu, plain] = marked(&stage, [("gpu", gpu), ("plain", own(Run::on()))]).await;
    assert_keeps_away(&gpu, &[("kubernetes.io/hostname", "badHost1")]);
    for pod in [&gpu, &plain] {
        assert_eq!(pod.labels()["own"], "label");
        assert_eq!(pod.annotations()["own"], "annotation");
        let spec = serde_json::to_value(&pod.spec).unwrap();
        assert_eq!(spec["nodeSelector"]["own"], "node");
        let gates: Vec<_> =
            spec["schedulingGates"].as_array().unwrap().iter().map(|gate| gate["name"].clone()).collect();
        assert_eq!(gates, ["own", "aGate"], "none twice");
        assert!(spec["tolerations"].as_array().unwrap().iter().any(|t| t["key"] == "own"));
    }
}

/// An explicit null must not break anything (2.12).
async fn null_lists_are_empty_lists(site: Site) {
    let stage = Stage::new(site, "null", 0).await;
    let run = Run::on().spec("tolerations", Value::Null).spec("schedulingGates", Value::Null);
    let component = json!({"template": run.pod("p"), "podSetInfos": [marker()]});
    stage.create(Wrap::new("w").component(component)).await;
    stage.phase("w", "Running").await;
    assert_eq!(stage.pods.get("p").await.unwrap().labels()["testkey1"], "value1");
}

/// Creation failure, from CodeFlare's unit tests: an invalid object stays invalid.
async fn an_invalid_component_fails_the_whole(site: Site) {
    let stage = Stage::new(site, "invalid", 1).await;
    let mut bad = Run::on().pod("bad");
    bad["spec"]["containers"] = json!([{"name": "main"}]);
    let wrap =
        Wrap::new("w").of(Run::on().pod("good")).of(bad).set("deletionOnFailureGracePeriodDuration", "1h");
    stage.create(wrap).await;
    let failed = stage.phase("w", "Failed").await;
    assert!(failed.is("QuotaReserved") && failed.is("ResourcesDeployed") && !failed.is("PodsReady"));
    assert_eq!(failed.reason("Unhealthy"), "CreateFailed");
    let message = failed.condition("Unhealthy").unwrap().message;
    assert!(message.starts_with("error creating components: "), "{message}");
    assert_eq!(failed.resets(), 0);
    assert_eq!(stage.pod_names("w").await, ["good"], "the other one is kept to be looked at");
    stage.event("w", "Unhealthy", "CreateFailed: error creating components: ").await;
    stage.delete("w").await;
    stage.gone("w").await;
}

/// Without a time for debugging, everything is deleted.
async fn what_was_made_before_an_invalid_component_goes(site: Site) {
    let stage = Stage::new(site, "half", 1).await;
    let mut bad = Run::on().pod("bad");
    bad["spec"]["containers"] = json!([{"name": "main"}]);
    stage.create(Wrap::new("w").of(Run::on().pod("good")).of(bad)).await;
    stage.released("w", "Failed").await;
}

/// An object cannot have two values for one label.
async fn conflicting_labels_fail_the_whole(site: Site) {
    let stage = Stage::new(site, "conflict", 0).await;
    let component =
        json!({"template": Run::on().label("testkey1", "other").pod("p"), "podSetInfos": [marker()]});
    stage.create(Wrap::new("w").component(component)).await;
    let failed = stage.phase("w", "Failed").await;
    assert_eq!(failed.reason("Unhealthy"), "CreateFailed");
}

/// An object of another owner is neither taken over nor deleted (upstream deletes it after the failure).
async fn an_object_of_somebody_elses_is_not_taken_over(site: Site) {
    let stage = Stage::new(site, "taken", 1).await;
    let theirs: Pod = serde_json::from_value(Run::on().pod("p")).unwrap();
    let theirs = stage.pods.create(&Default::default(), &theirs).await.unwrap();
    stage.create(Wrap::new("w").of(Run::on().pod("p"))).await;
    let failed = stage.phase("w", "Failed").await;
    assert_eq!(failed.reason("Unhealthy"), "CreateFailed");
    stage.until("w", "its quota is released", |w| !w.is("QuotaReserved")).await;
    assert_eq!(stage.pods.get("p").await.unwrap().uid(), theirs.uid(), "it is still there");
    stage.pods.delete("p", &DeleteParams::default()).await.unwrap();
}

/// The configured scheduler is for pods that name none.
async fn the_configured_scheduler_is_set(site: Site) {
    let plane = site.control_plane().await;
    let settings = Settings::default().with("schedulerName", "sakkara".into());
    let stage = Stage::alone(site, &plane, 0, &settings).await;
    stage
        .create(
            Wrap::new("w").of(Run::on().pod("a")).of(Run::on().spec("schedulerName", "own".into()).pod("b")),
        )
        .await;
    stage.phase("w", "Running").await;
    for (pod, scheduler) in [("a", "sakkara"), ("b", "own")] {
        let pod = wait::for_object(&stage.pods, pod, "it is there", |_| true).await;
        assert_eq!(pod.spec.unwrap().scheduler_name.as_deref(), Some(scheduler));
    }
}

/// Configured timers, as integers of nanoseconds, apply unless an annotation overrides them.
async fn timers_of_the_configuration_are_in_force(site: Site) {
    use crate::controller::SECOND;

    let plane = site.control_plane().await;
    let settings = Settings::default().with(
        "faultTolerance",
        json!({
            "admissionGracePeriod": SECOND, "warmupGracePeriod": 2 * SECOND, "failureGracePeriod": 0, "resetPause": 0,
            "retryLimit": 1, "deletionGracePeriod": SECOND, "gracePeriodCeiling": 60 * SECOND, "successTTLCeiling": SECOND,
        }),
    );
    let stage = Stage::alone(site, &plane, 1, &settings).await;
    stage.create(Wrap::new("fails").of(Run::to_end("1s", 1).stubborn().pod("fails"))).await;
    assert_eq!(stage.released("fails", "Failed").await.resets(), 1);
    let wrap = Wrap::new("succeeds").of(Run::to_end("1s", 0).pod("succeeds")).set("successTTLDuration", "1h");
    stage.create(wrap).await;
    let done = stage.released("succeeds", "Succeeded").await;
    assert_eq!(
        done.condition("ResourcesDeployed").unwrap().message,
        "Time to live after success of 1s expired",
        "an annotation can only shorten it"
    );
}

cases!(
    Both, on both sites:
    small_pods_are_given_what_kueue_and_autopilot_want,
    large_pods_keep_what_they_had,
    an_invalid_component_fails_the_whole,
    what_was_made_before_an_invalid_component_goes,
    conflicting_labels_fail_the_whole,
    the_configured_scheduler_is_set,
    timers_of_the_configuration_are_in_force,
);
cases!(Salvor, on both sites: null_lists_are_empty_lists, an_object_of_somebody_elses_is_not_taken_over);
