#![allow(clippy::needless_pass_by_value, reason = "values are made where they are passed")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use salvor_api::config::AppWrapperSettings;
use serde_json::json;

use super::*;
use crate::appwrapper::podsets::tests::any_json;

const UID: &str = "8da0fcfe-6d7f-4f44-b433-d91d22cc1b8c";

fn user() -> User {
    let extra = BTreeMap::from([("scopes".to_owned(), vec!["a".to_owned()])]);
    User {
        username: "limited-user".into(),
        uid: UID.into(),
        groups: vec!["system:authenticated".into()],
        extra,
    }
}

fn policy() -> AdmissionPolicy {
    let settings = AppWrapperSettings {
        default_queue_name: "system-default-queue".into(),
        ..AppWrapperSettings::default()
    };
    AdmissionPolicy::new(&settings)
}

fn pod_template() -> Value {
    json!({"spec": {"containers": [{"name": "main", "image": "busybox"}]}})
}

fn pod() -> Value {
    let mut pod = pod_template();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"] = json!({"generateName": "pod-"});
    json!({ "template": pod })
}

fn named(api_version: &str, kind: &str, spec: Value) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"generateName": "x-"}, "spec": spec})
}

fn deployment(replicas: u32) -> Value {
    json!({"template": named("apps/v1", "Deployment", json!({"replicas": replicas, "template": pod_template()}))})
}

fn service() -> Value {
    json!({"template": named("v1", "Service", json!({"ports": [{"port": 80}]}))})
}

fn job(parallelism: u32, completions: u32) -> Value {
    let spec = json!({"parallelism": parallelism, "completions": completions, "template": pod_template()});
    json!({"template": named("batch/v1", "Job", spec)})
}

fn job_set() -> Value {
    let job = |replicas: u32| json!({"name": "r", "replicas": replicas, "template": {"spec": {"parallelism": 2, "completions": 2, "template": pod_template()}}});
    json!({"template": named("jobset.x-k8s.io/v1alpha2", "JobSet", json!({"replicatedJobs": [job(1), job(2)]}))})
}

fn pytorch_job(workers: u32) -> Value {
    let specs = json!({"Master": {"replicas": 1, "template": pod_template()}, "Worker": {"replicas": workers, "template": pod_template()}});
    json!({"template": named("kubeflow.org/v1", "PyTorchJob", json!({"pytorchReplicaSpecs": specs}))})
}

fn ray(workers: u32) -> Value {
    json!({
        "headGroupSpec": {"template": pod_template()},
        "workerGroupSpecs": [{"replicas": workers, "template": pod_template()}],
    })
}

fn ray_cluster(workers: u32) -> Value {
    json!({"template": named("ray.io/v1", "RayCluster", ray(workers))})
}

fn ray_job(workers: u32) -> Value {
    json!({"template": named("ray.io/v1", "RayJob", json!({"rayClusterSpec": ray(workers)}))})
}

fn declaring(mut component: Value, sets: &[(&str, Option<i32>)]) -> Value {
    let set = |(path, replicas): &(&str, Option<i32>)| json!({"path": path, "replicas": replicas});
    component["podSets"] = sets.iter().map(set).collect();
    component
}

fn wrapper(components: &[Value]) -> Value {
    json!({
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": "aw", "namespace": "default"},
        "spec": {"suspend": true, "components": components},
    })
}

fn creation(object: &Value) -> Answer {
    let user = user();
    validate(&Request { operation: Operation::Create, namespace: "default", user: &user, object }, &policy())
}

fn update(old: &Value, new: &Value) -> Answer {
    let user = User { username: "somebody-else".into(), ..user() };
    validate(
        &Request { operation: Operation::Update { old }, namespace: "default", user: &user, object: new },
        &policy(),
    )
}

fn refusal(answer: Answer) -> String {
    match answer {
        Answer::Refused(refusal) => refusal.to_string(),
        Answer::Allowed | Answer::Ask(_) => panic!("{answer:?}"),
    }
}

/// The labels after the patch.
fn labels(object: &Value, user: &User, policy: &AdmissionPolicy) -> Value {
    let request = Request { operation: Operation::Create, namespace: "default", user, object };
    let mut labels = object["metadata"]["labels"].clone();
    let is_of_labels = |patch: &PatchOperation| !patch.path.starts_with("/metadata/finalizers");
    for PatchOperation { op, path, value } in mutate(&request, policy).into_iter().filter(is_of_labels) {
        assert_eq!(op, "add");
        match path.strip_prefix("/metadata/labels/") {
            Some(label) => labels[label.replace("~1", "/")] = value,
            None => {
                assert_eq!(path, "/metadata/labels");
                labels = value;
            }
        }
    }
    labels
}

#[test]
fn queue_and_user_are_set() {
    let user_label = "workload.codeflare.dev/user";
    let id_label = "workload.codeflare.dev/userid";
    let queue = "kueue.x-k8s.io/queue-name";
    let no_queue = AdmissionPolicy { default_queue: String::new(), ..policy() };
    let mut object = wrapper(&[pod()]);
    let user = user();
    assert_eq!(
        labels(&object, &user, &policy()),
        json!({queue: "system-default-queue", user_label: "limited-user", id_label: UID})
    );
    object["metadata"]["labels"] = json!({queue: "user-queue", user_label: "bad", id_label: "bad", "a": "b"});
    assert_eq!(
        labels(&object, &user, &policy()),
        json!({queue: "user-queue", user_label: "limited-user", id_label: UID, "a": "b"})
    );
    object["metadata"]["labels"] = json!({});
    let nobody = User { uid: String::new(), ..user.clone() };
    assert_eq!(labels(&object, &nobody, &no_queue), json!({user_label: "limited-user", id_label: ""}));
    // Nothing is set on an update, and nothing if there are no labels to add to.
    let request = Request {
        operation: Operation::Update { old: &object },
        namespace: "default",
        user: &user,
        object: &object,
    };
    assert_eq!(mutate(&request, &policy()), []);
    object["metadata"]["labels"] = json!("text");
    let request =
        Request { operation: Operation::Create, namespace: "default", user: &user, object: &object };
    assert_eq!(mutate(&request, &policy()), []);
}

#[test]
fn whoever_runs_at_once_has_the_finalizer_from_the_beginning() {
    let ours = "workload.codeflare.dev/finalizer";
    let whole = |names: Value| Some(("/metadata/finalizers".to_owned(), names));
    let one_more = Some(("/metadata/finalizers/-".to_owned(), json!(ours)));
    let cases = [
        (json!({"suspend": false}), json!(null), whole(json!([ours]))),
        (json!({}), json!(null), whole(json!([ours]))),
        (json!({"suspend": false}), json!([]), one_more.clone()),
        (json!({"suspend": false}), json!(["example.com/other"]), one_more),
        (json!({"suspend": false}), json!([ours]), None),
        // An AppWrapper that never ran can be deleted at once, and AppWrappers of other controllers are left alone.
        (json!({"suspend": true}), json!(null), None),
        (json!({"suspend": false, "managedBy": "kueue.x-k8s.io/multikueue"}), json!(null), None),
        (
            json!({"suspend": false, "managedBy": "workload.codeflare.dev/appwrapper-controller"}),
            json!(null),
            whole(json!([ours])),
        ),
        (json!({"suspend": false}), json!("text"), None),
    ];
    for (spec, finalizers, wanted) in cases {
        let mut object = wrapper(&[pod()]);
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        if spec.get("suspend").is_none() {
            object["spec"].as_object_mut().unwrap().remove("suspend");
        }
        object["metadata"]["finalizers"] = finalizers.clone();
        let user = user();
        let request =
            Request { operation: Operation::Create, namespace: "default", user: &user, object: &object };
        let patch = mutate(&request, &policy()).into_iter().find(|it| it.path.contains("finalizers"));
        assert_eq!(patch.map(|it| (it.path, it.value)), wanted, "{spec} {finalizers}");
    }
}

#[test]
fn users_become_label_values() {
    let long = "x".repeat(100);
    let cases = [
        ("limited-user", "limited-user"),
        ("system:serviceaccount:a:b", "system_serviceaccount_a_b"),
        ("me@example.com", "me_example.com"),
        ("--._me_.--", "me"),
        ("", ""),
        ("@@@", ""),
        ("käthe", "k_the"),
        (&long, &long[..63]),
    ];
    for (name, value) in cases {
        assert_eq!(label_value(name), value, "{name:?}");
    }
    // The cut is at bytes, even within a character: each remaining byte becomes one character.
    let cut = format!("{}äx", "x".repeat(62));
    assert_eq!(label_value(&cut), "x".repeat(62));
    assert_eq!(label_value(&format!("{}äx", "x".repeat(60))), format!("{}_x", "x".repeat(60)));
}

#[test]
fn bad_wrappers_are_refused_with_all_that_is_wrong() {
    let at = |component: &Value, path: &str| declaring(component.clone(), &[(path, None)]);
    let jobs = "template.spec.replicatedJobs";
    let mut elsewhere = pod();
    elsewhere["template"]["metadata"]["namespace"] = json!("test");
    let nested = json!({"template": wrapper(&[pod()])});
    let config_map = json!({"template": named("v1", "ConfigMap", json!({}))});
    let leader = json!({"template": named("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", json!({}))});
    let unnamed = json!({"template": {"apiVersion": "v1", "kind": "Pod", "spec": pod_template()["spec"]}});
    let mut stolen = job(1, 1);
    stolen["template"]["metadata"]["labels"] = json!({"workload.codeflare.dev/appwrapper": "other"});
    let mut strange = job(1, 1);
    strange["template"]["spec"]["template"]["metadata"] = json!({"labels": "text"});
    let mut owned = pod();
    owned["template"]["metadata"]["ownerReferences"] = json!([{"controller": true, "uid": "x"}]);
    let nine: Vec<_> = (0..9).map(|_| pod()).collect();
    let path = "spec.components[0].podSets[0].path: Invalid value: ";
    let cases: Vec<(Vec<Value>, &str)> = vec![
        (vec![], "spec.components: Invalid value: \"0 pod sets\": there must be 1 to 8 pod sets"),
        (vec![service()], "spec.components: Invalid value: \"0 pod sets\""),
        (nine, "spec.components: Invalid value: \"9 pod sets\""),
        (vec![at(&deployment(1), "template.spec.missing")], path),
        (vec![at(&deployment(1), "")], "[spec.components[0].podSets[0].path: Required value: name the path"),
        (vec![at(&deployment(1), "template.spec.template.metadata")], path),
        (vec![at(&job_set(), &format!("{jobs}.template.spec.template"))], path),
        (vec![at(&job_set(), jobs)], path),
        (vec![at(&job_set(), &format!("{jobs}[0].template[0].spec.template"))], path),
        (vec![at(&job_set(), &format!("{jobs}[10].template.spec.template"))], path),
        (vec![at(&job_set(), &format!("{jobs}[-1].template.spec.template"))], path),
        (vec![at(&job_set(), &format!("{jobs}[a10].template.spec.template"))], path),
        (vec![at(&job_set(), &format!("{jobs}[1"))], path),
        (vec![at(&job_set(), &format!("{jobs}[1]].template.spec.template"))], path),
        (
            vec![elsewhere],
            "spec.components[0].template.metadata.namespace: Forbidden: AppWrappers cannot create objects in other namespaces",
        ),
        (vec![pod(), nested], "spec.components[1].template: Forbidden: Nested AppWrappers are forbidden"),
        (
            vec![pod(), config_map],
            "spec.components[1].template: Forbidden: ConfigMap is not among the kinds that may be wrapped: an administrator \
             can add the line \"- ConfigMap\" to appwrapper.wrappedKinds",
        ),
        (
            vec![pod(), leader],
            "add the line \"- LeaderWorkerSet.leaderworkerset.x-k8s.io\" to appwrapper.wrappedKinds",
        ),
        (
            vec![unnamed],
            "spec.components[0].template.metadata.name: Required value: set name or generateName",
        ),
        (
            vec![stolen],
            "spec.components[0].template.metadata.labels[workload.codeflare.dev/appwrapper]: Invalid value",
        ),
        (
            vec![json!({})],
            "spec.components[0].template: Invalid value: \"null\": must be a Kubernetes object",
        ),
        (vec![json!(7)], "spec.components[0].template: Invalid value"),
        (
            vec![json!({"template": {"kind": "Pod"}})],
            "spec.components[0].template.apiVersion: Required value",
        ),
        (
            vec![declaring(deployment(3), &[("template.spec.template", Some(2))])],
            "spec.components[0].podSets[0].replicas: Invalid value: \"2\": the template has 3",
        ),
        (
            vec![declaring(
                deployment(1),
                &[("template.spec.template", None), ("template.spec.template", None)],
            )],
            "spec.components[0].podSets[1].path: Duplicate value: \"template.spec.template\"",
        ),
        (
            vec![
                json!({"template": named("apps/v1", "Deployment", json!({"replicas": "x", "template": pod_template()}))}),
            ],
            "spec.components[0].template.spec.replicas: Invalid value",
        ),
    ];
    for (components, expected) in cases {
        let told = refusal(creation(&wrapper(&components)));
        assert!(told.contains(expected), "{components:?}\n gave {told}\n not {expected}");
    }
    let told = refusal(creation(&json!({"metadata": {"name": "aw"}})));
    assert!(told.contains("0 pod sets"), "{told}");
    let told = refusal(creation(&json!({"spec": {"components": {"a": 1}}})));
    assert!(told.starts_with("spec.components: Invalid value: \"{\\\"a\\\":1}\": must be a list"), "{told}");
}

#[test]
fn a_name_must_fit_into_a_label() {
    for (length, good) in [(1, true), (63, true), (64, false), (253, false)] {
        let mut object = wrapper(&[pod()]);
        object["metadata"]["name"] = json!("x".repeat(length));
        match creation(&object) {
            Answer::Ask(_) => assert!(good, "{length}"),
            answer => {
                assert!(!good, "{length}");
                let told = refusal(answer);
                assert!(
                    told.starts_with("metadata.name: Invalid value: ") && told.contains("at most 63"),
                    "{told}"
                );
            }
        }
    }
    // The server generates a name of at most 63 characters from this later.
    let mut object = wrapper(&[pod()]);
    object["metadata"] = json!({"generateName": "x".repeat(200)});
    assert!(matches!(creation(&object), Answer::Ask(_)));
}

#[test]
fn good_wrappers_are_asked_about_once_for_each_kind() {
    let template = "template.spec.template";
    let mut here = pod();
    here["template"]["metadata"]["namespace"] = json!("default");
    let jobs = "template.spec.replicatedJobs";
    let declared = [
        declaring(pod(), &[("template", Some(1))]),
        declaring(deployment(1), &[(template, None)]),
        declaring(here, &[("template", None)]),
        declaring(
            ray_cluster(1),
            &[
                ("template.spec.headGroupSpec.template", None),
                ("template.spec.workerGroupSpecs[0].template", Some(1)),
            ],
        ),
        declaring(
            job_set(),
            &[
                (&format!("{jobs}[1].template.spec.template"), Some(4)),
                (&format!("{jobs}[0].template.spec.template"), Some(2)),
            ],
        ),
    ];
    let inferred = [pod(), deployment(4), pod(), job(2, 4), job(8, 4)];
    let operators = [pytorch_job(4), ray_cluster(7), ray_job(7)];
    let cases: [(&[Value], &[&str]); 4] = [
        (&[pod(), service()], &["pods", "services"]),
        (&declared, &["pods", "deployments", "rayclusters", "jobsets"]),
        (&inferred, &["pods", "deployments", "jobs"]),
        (&operators, &["pytorchjobs", "rayclusters", "rayjobs"]),
    ];
    for (components, expected) in cases {
        let answer = creation(&wrapper(components));
        let Answer::Ask(questions) = answer else { panic!("{answer:?}") };
        let asked: Vec<_> = questions.questions.iter().map(|question| question.resource.as_str()).collect();
        assert_eq!(asked, expected);
        assert_eq!(questions.judge(&vec![Access::Allowed; asked.len()]), Ok(()));
    }
    let trusting = AdmissionPolicy { check_users: false, ..policy() };
    let user = user();
    let object = wrapper(&inferred);
    let request =
        Request { operation: Operation::Create, namespace: "default", user: &user, object: &object };
    assert_eq!(validate(&request, &trusting), Answer::Allowed);
}

#[test]
fn the_limited_user_may_wrap_pods_only() {
    let object = wrapper(&[pod(), deployment(1), pod(), deployment(2)]);
    let Answer::Ask(questions) = creation(&object) else { panic!() };
    assert_eq!(
        questions.reviews()[1],
        json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "resourceAttributes": {
                    "namespace": "default",
                    "verb": "create",
                    "group": "apps",
                    "version": "v1",
                    "resource": "deployments",
                },
                "user": "limited-user",
                "uid": UID,
                "groups": ["system:authenticated"],
                "extra": {"scopes": ["a"]},
            },
        })
    );
    let refused = questions.judge(&[Access::Allowed, Access::Denied]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "[spec.components[1].template: Forbidden: User limited-user is not authorized to create deployments in default, \
         spec.components[3].template: Forbidden: User limited-user is not authorized to create deployments in default]"
    );
    assert_eq!(refused.code(), 403);
    let unknown =
        questions.judge(&[Access::Allowed, Access::Unknown("the server is gone".into())]).unwrap_err();
    assert!(
        unknown.to_string().contains(
            "Internal error: cannot ask whether the user may create deployments: the server is gone"
        )
    );
    assert_eq!(unknown.code(), 500);
    // A missing answer allows nothing.
    assert_eq!(questions.judge(&[Access::Allowed]).unwrap_err().code(), 500);
    assert_eq!(questions.judge(&[]).unwrap_err().0.len(), 4);
}

#[test]
fn only_a_plain_yes_is_a_yes() {
    let cases = [
        (json!({"status": {"allowed": true}}), Access::Allowed),
        (json!({"status": {"allowed": true, "denied": false}}), Access::Allowed),
        (json!({"status": {"allowed": true, "denied": true}}), Access::Denied),
        (json!({"status": {"allowed": true, "denied": "no"}}), Access::Denied),
        (json!({"status": {"allowed": false}}), Access::Denied),
        (json!({"status": {"allowed": false, "evaluationError": "x"}}), Access::Denied),
        (json!({"status": {"allowed": "true"}}), Access::Unknown("the answer has no status.allowed".into())),
        (json!({}), Access::Unknown("the answer has no status.allowed".into())),
        (json!([]), Access::Unknown("the answer has no status.allowed".into())),
    ];
    for (review, access) in cases {
        assert_eq!(Access::read(&review), access, "{review}");
    }
}

#[test]
fn nobody_can_make_us_ask_for_ever() {
    let mut components = vec![pod()];
    for version in 0..100 {
        let mut component = service();
        component["template"]["apiVersion"] = json!(format!("v{version}"));
        components.push(component);
    }
    let told = refusal(creation(&wrapper(&components)));
    assert!(
        told.starts_with(
            "spec.components: Forbidden: wraps 101 different kinds and versions: wrap at most 32"
        ),
        "{told}"
    );
}

#[test]
fn what_was_admitted_stays_and_the_rest_may_change() {
    let components = [declaring(deployment(2), &[("template.spec.template", Some(2))]), pod()];
    let mut old = wrapper(&components);
    old["metadata"]["labels"] =
        json!({"workload.codeflare.dev/user": "me", "workload.codeflare.dev/userid": "1"});
    let changed = |pointer: &str, value: Value| {
        let mut new = old.clone();
        let (outer, field) = pointer.rsplit_once('/').unwrap();
        let outer = new.pointer_mut(outer).unwrap();
        match field.parse::<usize>() {
            Ok(index) => outer[index] = value,
            Err(_) => outer[field.replace("~1", "/")] = value,
        }
        new
    };
    let set = |path: &str, replicas: Option<i32>| json!({"path": path, "replicas": replicas});
    let template = "template.spec.template";
    let first = "/spec/components/0";
    let free = [
        changed("/spec/suspend", json!(false)),
        changed(&format!("{first}/podSetInfos"), json!([{"labels": {"a": "b"}}])),
        changed(&format!("{first}/annotations"), json!({"a": "b"})),
        changed(&format!("{first}/podSets/0/annotations"), json!({"a": "b"})),
        changed("/metadata/annotations", json!({"workload.codeflare.dev.appwrapper/retryLimit": "7"})),
        changed("/metadata/labels/kueue.x-k8s.io~1queue-name", json!("other")),
        changed("/metadata/finalizers", json!(["workload.codeflare.dev/finalizer"])),
        changed("/metadata/name", json!("x".repeat(100))),
        old.clone(),
    ];
    for new in free {
        assert_eq!(update(&old, &new), Answer::Allowed, "{new}");
    }
    let mut more = old.clone();
    more["spec"]["components"].as_array_mut().unwrap().push(service());
    let mut no_label = old.clone();
    no_label["metadata"]["labels"] = json!({});
    let fixed = [
        (
            changed("/metadata/labels/workload.codeflare.dev~1user", json!("you")),
            "metadata.labels[workload.codeflare.dev/user]",
        ),
        (
            changed("/metadata/labels/workload.codeflare.dev~1userid", json!("2")),
            "metadata.labels[workload.codeflare.dev/userid]",
        ),
        (no_label, "metadata.labels[workload.codeflare.dev/user]"),
        (changed("/spec/managedBy", json!("somebody")), "spec.managedBy"),
        (changed(&format!("{first}/template"), pod()["template"].clone()), "spec.components[0].template"),
        (changed(&format!("{first}/template/spec/replicas"), json!(3)), "spec.components[0].template"),
        (changed("/spec/components", json!([])), "spec.components"),
        (more, "spec.components"),
        (
            changed(&format!("{first}/podSets"), json!([set(template, Some(2)), set(template, Some(2))])),
            "spec.components[0].podSets",
        ),
        (
            changed(&format!("{first}/podSets/0"), set("template", Some(2))),
            "spec.components[0].podSets[0].path",
        ),
        (
            changed(&format!("{first}/podSets/0"), set(template, Some(3))),
            "spec.components[0].podSets[0].replicas",
        ),
        (
            changed(&format!("{first}/podSets/0"), set(template, None)),
            "spec.components[0].podSets[0].replicas",
        ),
        (changed(&format!("{first}/podSets/0"), json!("x")), "spec.components[0].podSets"),
        (changed("/spec/components/1/podSets", json!([set("template", None)])), "spec.components[1].podSets"),
    ];
    for (new, field) in fixed {
        let told = refusal(update(&old, &new));
        assert!(told.contains(&format!("{field}: Forbidden: attempt to change immutable field")), "{told}");
    }
    // Unset replicas count as 1.
    let one = wrapper(&[declaring(deployment(1), &[(template, Some(1))])]);
    let unset = wrapper(&[declaring(deployment(1), &[(template, None)])]);
    assert_eq!(update(&one, &unset), Answer::Allowed);
}

#[test]
fn without_webhooks_only_the_kinds_named_for_it_are_run() {
    let settings = AppWrapperSettings {
        wrapped_kinds_without_webhooks: vec!["Job.batch".into()],
        ..AppWrapperSettings::default()
    };
    let policy = AdmissionPolicy::new(&settings);
    assert_eq!(refusal_without_webhook(&wrapper(&[job(1, 1)]), &policy), None);
    let told = refusal_without_webhook(&wrapper(&[job(1, 1), pod()]), &policy).unwrap().to_string();
    assert_eq!(
        told,
        "spec.components[1].template: Forbidden: Pod is not among the kinds that may be wrapped: an administrator can add the \
         line \"- Pod\" to appwrapper.wrappedKindsWithoutWebhooks, or switch webhooks on"
    );
    // By default no kind is allowed.
    let by_default = AdmissionPolicy::new(&AppWrapperSettings::default());
    assert!(refusal_without_webhook(&wrapper(&[job(1, 1)]), &by_default).is_some());
    // The rules of the webhook apply as well.
    let mut elsewhere = job(1, 1);
    elsewhere["template"]["metadata"]["namespace"] = json!("kube-system");
    let told = refusal_without_webhook(&wrapper(&[elsewhere]), &policy).unwrap().to_string();
    assert!(told.contains("AppWrappers cannot create objects in other namespaces"), "{told}");
    let config_map = json!({"template": named("v1", "ConfigMap", json!({}))});
    let refused = refusal_without_webhook(&wrapper(&[job(1, 1), config_map]), &policy).unwrap();
    assert_eq!(refused.0.len(), 1, "{refused}");
    let mut long = wrapper(&[job(1, 1)]);
    long["metadata"]["name"] = json!("x".repeat(64));
    assert!(refusal_without_webhook(&long, &policy).is_some());
}

#[test]
fn without_a_stamp_only_the_kinds_named_for_it_are_created() {
    let settings = AppWrapperSettings {
        wrapped_kinds_without_webhooks: vec!["Job.batch".into()],
        ..AppWrapperSettings::default()
    };
    let policy = AdmissionPolicy::new(&settings);
    let refused =
        |components: &[Value]| refusal_without_stamp(&wrapper(components), &policy, &Unstamped::Missing);
    assert_eq!(refused(&[job(1, 1)]), None);
    let refusal = refused(&[job(1, 1), pod()]).unwrap();
    assert_eq!(refusal.0.len(), 1, "{refusal}");
    let told = refusal.to_string();
    assert!(told.contains("spec.components[1].template") && told.contains("may create a Pod"), "{told}");
}

/// With and without webhooks, only the exceeded limit is reported, whatever else is wrong with the components.
#[test]
fn more_components_or_a_larger_spec_than_the_bounds_allow_are_refused() {
    let services = |count: usize| {
        let mut all = vec![service(); count - 1];
        all.push(job(1, 1));
        wrapper(&all)
    };
    assert!(!matches!(creation(&services(128)), Answer::Refused(_)));
    let broken = wrapper(&vec![json!({"template": "?"}); 129]);
    for object in [services(129), broken] {
        let told = refusal(creation(&object));
        assert!(
            told.starts_with("spec.components: Invalid value: \"129 components\": must have at most 128"),
            "{told}"
        );
        let policy = AdmissionPolicy::new(&AppWrapperSettings::default());
        assert_eq!(refusal_without_webhook(&object, &policy).unwrap().to_string(), told);
    }
    let mut large = wrapper(&[job(1, 1)]);
    large["spec"]["components"][0]["template"]["metadata"]["annotations"]["data"] =
        json!("x".repeat(600_000));
    assert!(refusal(creation(&large)).contains("must have at most 524288 bytes as JSON"));
    // Kueue's additions to a component may change, but unlimited growth is refused.
    let (old, mut new) = (wrapper(&[job(1, 1)]), wrapper(&[job(1, 1)]));
    new["spec"]["components"][0]["podSetInfos"] = json!([{"annotations": {"data": "x".repeat(600_000)}}]);
    assert!(refusal(update(&old, &new)).contains("must have at most 524288 bytes as JSON"));
    assert_eq!(update(&new, &new), Answer::Allowed, "what is too large already may be suspended and deleted");
    assert_eq!(update(&new, &old), Answer::Allowed);
}

#[test]
fn deep_nesting_is_no_trouble() {
    let mut deep = json!("end");
    for _ in 0..5000 {
        deep = Value::Array(vec![deep]);
    }
    let mut component = pod();
    component["template"]["spec"]["hostname"] = deep;
    // Comparing and printing recurse in serde_json; a Value parsed from JSON text is never that deep.
    let told = crate::appwrapper::podsets::infer(&component["template"]).is_err();
    assert!(told);
    std::mem::forget(component);
}

proptest! {
    #![proptest_config(crate::fuzz::cases(512))]

    #[test]
    fn any_object_is_judged(object in any_json(), old in any_json(), components in proptest::collection::vec(any_json(), 0..3)) {
        let user = user();
        for object in [object, wrapper(&components)] {
            let request = Request { operation: Operation::Create, namespace: "default", user: &user, object: &object };
            let _ = mutate(&request, &policy());
            let _ = validate(&request, &policy());
            let _ = validate(&Request { operation: Operation::Update { old: &old }, ..request }, &policy());
            let _ = refusal_without_webhook(&object, &policy()).map(|refusal| refusal.to_string());
        }
    }

    #[test]
    fn any_user_becomes_a_label_value(name in any::<String>()) {
        prop_assert_eq!(salvor_api::value_defect(&label_value(&name)), None);
    }

    /// What is admitted can be made: nothing that is only wrong with the object itself is left to be found later.
    #[test]
    fn what_is_admitted_can_be_made(components in proptest::collection::vec(prop_oneof![
        Just(pod()), Just(deployment(2)), Just(job_set()), Just(pytorch_job(1)), Just(ray_job(2)), Just(service()), any_json(),
    ], 1..4)) {
        use crate::appwrapper::inject::{Component, InjectionPolicy, Owner, object};
        let wrapper = wrapper(&components);
        if let Answer::Ask(_) = creation(&wrapper) {
            let uid = "u".into();
            let owner = Owner { namespace: "default", name: "aw", uid: &uid };
            let injection = InjectionPolicy::new(&AppWrapperSettings::default());
            for (index, spec) in components.iter().enumerate() {
                let pod_sets = crate::appwrapper::podsets::pod_sets(spec).unwrap();
                let made = object(Component { spec, index, pod_sets: &pod_sets, attempt: 0 }, owner, &injection);
                prop_assert!(made.is_ok(), "{:?}", made);
            }
        }
    }
}
