#![allow(clippy::needless_pass_by_value, reason = "values are made where they are passed")]

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn pod_template() -> Value {
    json!({"spec": {"containers": [{"name": "main", "image": "busybox"}]}})
}

fn job_spec(parallelism: Value, completions: Value) -> Value {
    json!({"parallelism": parallelism, "completions": completions, "template": pod_template()})
}

fn object(api_version: &str, kind: &str, spec: Value) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec})
}

fn job(parallelism: Value, completions: Value) -> Value {
    object("batch/v1", "Job", job_spec(parallelism, completions))
}

fn inferred(template: &Value) -> Vec<(String, i32)> {
    let sets = infer(template).unwrap_or_else(|error| panic!("{error}: {template}"));
    sets.into_iter().map(|set| (set.path.clone(), set.count())).collect()
}

fn replicated(replicas: Value, parallelism: Value, completions: Value) -> Value {
    json!({"name": "r", "replicas": replicas, "template": {"spec": job_spec(parallelism, completions)}})
}

fn job_set() -> Value {
    let jobs = json!([
        replicated(json!(2), json!(2), json!(2)),
        replicated(Value::Null, Value::Null, Value::Null),
        {"name": "no template"},
        replicated(json!(3), json!(5), json!(1)),
    ]);
    object("jobset.x-k8s.io/v1alpha2", "JobSet", json!({"replicatedJobs": jobs}))
}

fn pytorch_job() -> Value {
    let specs = json!({
        "Worker": {"replicas": 4, "template": pod_template()},
        "Master": {"template": pod_template()},
        "Launcher": {"template": "is nobody's"},
    });
    object("kubeflow.org/v1", "PyTorchJob", json!({"pytorchReplicaSpecs": specs}))
}

fn ray_spec() -> Value {
    json!({
        "headGroupSpec": {"replicas": 5, "template": pod_template()},
        "workerGroupSpecs": [
            {"replicas": 7, "minReplicas": 1, "maxReplicas": 90, "template": pod_template()},
            {"template": pod_template()},
            {"replicas": "of nothing"},
        ],
    })
}

#[test]
fn the_pod_sets_of_each_known_kind() {
    let template = "template.spec.template";
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod_template()["spec"]});
    let scaled = |kind, replicas: Value| {
        object("apps/v1", kind, json!({"replicas": replicas, "template": pod_template()}))
    };
    let null = Value::Null;
    let cases: Vec<(Value, Vec<(&str, i32)>)> = vec![
        (pod, vec![("template", 1)]),
        (scaled("Deployment", json!(3)), vec![(template, 3)]),
        (scaled("Deployment", json!(0)), vec![(template, 0)]),
        (scaled("Deployment", null.clone()), vec![(template, 1)]),
        (scaled("StatefulSet", json!(2)), vec![(template, 2)]),
        (job(null.clone(), null.clone()), vec![(template, 1)]),
        (job(json!(2), json!(4)), vec![(template, 2)]),
        (job(json!(8), json!(4)), vec![(template, 4)]),
        (job(null.clone(), json!(4)), vec![(template, 1)]),
        (job(json!(5), null.clone()), vec![(template, 5)]),
        (job(json!("many"), json!([])), vec![(template, 1)]),
        (
            job_set(),
            vec![
                ("template.spec.replicatedJobs[0].template.spec.template", 4),
                ("template.spec.replicatedJobs[1].template.spec.template", 1),
                ("template.spec.replicatedJobs[3].template.spec.template", 3),
            ],
        ),
        (
            pytorch_job(),
            vec![
                ("template.spec.pytorchReplicaSpecs.Master.template", 1),
                ("template.spec.pytorchReplicaSpecs.Worker.template", 4),
            ],
        ),
        (
            object("ray.io/v1", "RayCluster", ray_spec()),
            vec![
                ("template.spec.headGroupSpec.template", 1),
                ("template.spec.workerGroupSpecs[0].template", 7),
                ("template.spec.workerGroupSpecs[1].template", 1),
            ],
        ),
        (
            object("ray.io/v1", "RayJob", json!({"rayClusterSpec": ray_spec()})),
            vec![
                ("template.spec.rayClusterSpec.headGroupSpec.template", 1),
                ("template.spec.rayClusterSpec.workerGroupSpecs[0].template", 7),
                ("template.spec.rayClusterSpec.workerGroupSpecs[1].template", 1),
            ],
        ),
        (object("v1", "Service", json!({})), vec![]),
        (object("apps/v1", "Deployment", json!({"replicas": 3})), vec![]),
        (
            object(
                "kubeflow.org/v1",
                "PyTorchJob",
                json!({"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": 7}}),
            ),
            vec![],
        ),
        // Group, version and kind must all match.
        (object("apps/v1beta1", "Deployment", json!({})), vec![]),
        (object("example.com/v1", "Job", json!({})), vec![]),
        (object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", json!({})), vec![]),
    ];
    for (template, expected) in cases {
        let expected: Vec<_> = expected.into_iter().map(|(path, count)| (path.to_owned(), count)).collect();
        assert_eq!(inferred(&template), expected, "{template}");
    }
}

#[test]
fn kueue_is_told_the_topology_of_jobs() {
    let annotations = |template: &Value, index: usize| {
        serde_json::to_value(&infer(template).unwrap()[index].annotations).unwrap()
    };
    let pod_index = "workload.codeflare.dev.appwrapper/tas-pod-index-label";
    assert_eq!(
        annotations(&job(Value::Null, Value::Null), 0),
        json!({pod_index: "batch.kubernetes.io/job-completion-index"})
    );
    assert_eq!(annotations(&pytorch_job(), 1), json!({pod_index: "training.kubeflow.org/replica-index"}));
    assert_eq!(
        annotations(&job_set(), 2),
        json!({
            pod_index: "batch.kubernetes.io/job-completion-index",
            "workload.codeflare.dev.appwrapper/tas-sub-group-index-label": "jobset.sigs.k8s.io/job-index",
            "workload.codeflare.dev.appwrapper/tas-sub-group-count": "3",
        })
    );
    // The format in the status.
    assert_eq!(
        serde_json::to_value(&infer(&job(json!(2), Value::Null)).unwrap()[0]).unwrap(),
        json!({
            "path": "template.spec.template",
            "replicas": 2,
            "annotations": {pod_index: "batch.kubernetes.io/job-completion-index"},
        })
    );
}

#[test]
fn what_cannot_be_counted_is_refused_with_its_field() {
    let deployment = |replicas: Value| {
        object("apps/v1", "Deployment", json!({"replicas": replicas, "template": pod_template()}))
    };
    let with_pod = |pod: Value| object("batch/v1", "Job", json!({"template": pod}));
    let in_spec = |spec: Value| with_pod(json!({ "spec": spec }));
    let cases = [
        (
            deployment(json!("3")),
            "template.spec.replicas: Invalid value: \"\\\"3\\\"\": must be a whole number from 0",
        ),
        (deployment(json!(1.5)), "template.spec.replicas: Invalid value: \"1.5\""),
        (deployment(json!(-1)), "template.spec.replicas: Invalid value: \"-1\""),
        (deployment(json!(3_000_000_000_u64)), "template.spec.replicas: Invalid value: \"3000000000\""),
        (
            object(
                "jobset.x-k8s.io/v1alpha2",
                "JobSet",
                json!({"replicatedJobs": [replicated(json!(100_000), json!(100_000), Value::Null)]}),
            ),
            "template.spec.replicatedJobs[0].replicas: Invalid value: \"100000\": 100000 jobs of 100000 pods are more than",
        ),
        (
            object(
                "kubeflow.org/v1",
                "PyTorchJob",
                json!({"pytorchReplicaSpecs": {"Master": {"replicas": true, "template": pod_template()}}}),
            ),
            "template.spec.pytorchReplicaSpecs.Master.replicas: Invalid value: \"true\"",
        ),
        (object("ray.io/v1", "RayCluster", json!({})), "template.spec.headGroupSpec.template: Invalid value"),
        (
            object("ray.io/v1", "RayJob", json!({})),
            "template.spec.rayClusterSpec.headGroupSpec.template: Invalid",
        ),
        (
            with_pod(json!("x")),
            "template.spec.template: Invalid value: \"template.spec.template\": there is no pod template",
        ),
        (with_pod(json!({})), "there is no pod template: template.spec.template.spec: Required value"),
        (in_spec(json!([])), "template.spec.template.spec: Invalid value: \"[]\": is no pod spec"),
        (
            in_spec(json!({"containers": [{"name": "a", "imagee": "b"}]})),
            "template.spec.template.spec.containers[0].imagee: Forbidden: Container has no such field",
        ),
        (
            in_spec(json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": []}}}]})),
            "template.spec.template.spec.containers[0].resources.limits[cpu]: Invalid value: \"[]\": must be a number or a string",
        ),
        (
            in_spec(json!({"terminationGracePeriodSeconds": 1.5})),
            "spec.terminationGracePeriodSeconds: Invalid value: \"1.5\": must be a whole number",
        ),
        (
            in_spec(json!({"hostNetwork": "yes"})),
            "spec.hostNetwork: Invalid value: \"\\\"yes\\\"\": must be true or false",
        ),
        (
            in_spec(json!({"nodeSelector": {"a": 1}})),
            "spec.nodeSelector[a]: Invalid value: \"1\": must be a string",
        ),
        (in_spec(json!({"tolerations": {}})), "spec.tolerations: Invalid value: \"{}\": must be a list"),
        (
            in_spec(json!({"affinity": "near"})),
            "spec.affinity: Invalid value: \"\\\"near\\\"\": must be an object",
        ),
        (json!("text"), "template: Invalid value: \"\\\"text\\\"\": must be a Kubernetes object"),
        (json!({"apiVersion": "v1"}), "template.kind: Required value: name the kind"),
        (json!({"kind": "Pod"}), "template.apiVersion: Required value: name its group and version"),
        (json!({"kind": 1, "apiVersion": "v1"}), "template.kind: Invalid value: \"1\": must be a string"),
        (json!({"kind": "Pod", "apiVersion": "a/b/c"}), "template.apiVersion: Invalid value: \"a/b/c\""),
        (json!({"kind": "Pod", "apiVersion": "/v1"}), "template.apiVersion: Invalid value: \"/v1\""),
        (json!({"kind": "Pod", "apiVersion": "apps/"}), "template.apiVersion: Invalid value: \"apps/\""),
    ];
    for (template, expected) in cases {
        let error = infer(&template).unwrap_err().to_string();
        assert!(error.contains(expected), "{template}\n gave {error}\n not {expected}");
    }
}

#[test]
fn everything_that_a_pod_spec_can_have_is_known() {
    let spec = json!({
        "containers": [{
            "name": "main",
            "image": "busybox",
            "command": ["sleep"],
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "ports": [{"containerPort": 80}],
            "readinessProbe": {"httpGet": {"port": "http", "path": "/"}, "periodSeconds": 1},
            "livenessProbe": {"tcpSocket": {"port": 80}},
            "resources": {"requests": {"cpu": "1", "memory": 1024}, "limits": {"nvidia.com/gpu": 1.0}},
            "securityContext": {"capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        }],
        "initContainers": null,
        "volumes": [
            {"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "w", "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"accessModes": ["ReadWriteOnce"]}}}},
        ],
        "restartPolicy": "Never",
        "tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 30}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": "b"}}}],
        "hostnameOverride": "newer",
        "schedulingGates": [],
    });
    assert_eq!(pod_template::check(&json!({ "spec": spec })), Ok(()));
}

fn trees() -> Value {
    object(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        json!({"replicatedJobs": [{"template": {"spec": {"template": pod_template()}}}]}),
    )
}

#[test]
fn the_grammar_of_paths() {
    let jobs = "template.spec.replicatedJobs";
    let good = [
        "template.spec.replicatedJobs[0].template.spec.template".to_owned(),
        format!("{jobs}[00].template.spec.template"),
        format!("{jobs}[+0].template.spec.template"),
    ];
    for path in &good {
        assert_eq!(check_path(&trees(), path, "path"), Ok(()), "{path}");
    }
    let missing = |at: &str, field: &str| PathError::Missing { at: at.into(), field: field.into() };
    let index = |index: &str| PathError::Index { index: index.into() };
    let bad = [
        ("spec.template".into(), PathError::Start),
        ("Template".into(), PathError::Start),
        ("templates".into(), PathError::Stray { found: 's' }),
        ("template]".into(), PathError::Stray { found: ']' }),
        ("template spec".into(), PathError::Stray { found: ' ' }),
        ("template.".into(), missing("template", "")),
        ("template..spec".into(), missing("template", "")),
        ("template.spec.missing".into(), missing("template.spec", "missing")),
        (format!("{jobs}.template.spec.template"), PathError::NotAnObject { at: jobs.into() }),
        (
            format!("{jobs}[0].template[0].spec.template"),
            PathError::NotAList { at: format!("{jobs}[0].template") },
        ),
        (format!("{jobs}[10]"), PathError::OutOfBounds { at: jobs.into(), index: 10, length: 1 }),
        (format!("{jobs}[-1]"), PathError::OutOfBounds { at: jobs.into(), index: -1, length: 1 }),
        (format!("{jobs}[a10]"), index("a10")),
        (format!("{jobs}[]"), index("")),
        (format!("{jobs}[ 0]"), index(" 0")),
        (format!("{jobs}[99999999999999999999]"), index("99999999999999999999")),
        (format!("{jobs}[1"), PathError::Unterminated),
        (format!("{jobs}[0]]"), PathError::Stray { found: ']' }),
        (format!("{jobs}[0]x"), PathError::Stray { found: 'x' }),
        ("templateä".into(), PathError::Stray { found: 'ä' }),
    ];
    for (path, error) in bad {
        assert_eq!(path::find(&trees(), &path), Err(error), "{path}");
        let told = check_path(&trees(), &path, "podSets[0].path").unwrap_err();
        assert!(told.to_string().starts_with("podSets[0].path: Invalid value: "), "{told}");
    }
    let empty = check_path(&trees(), "", "podSets[0].path").unwrap_err();
    assert_eq!(empty.kind, FieldErrorKind::Required);
    // The paths exist, but do not lead to a pod template.
    for path in [jobs, "template", "template.metadata", "template.spec"] {
        let error = check_path(&trees(), path, "p").unwrap_err().to_string();
        assert!(error.contains("there is no pod template"), "{path}: {error}");
    }
}

#[test]
fn declared_pod_sets_must_be_those_of_the_kind() {
    let set = |path: &str, replicas| PodSet { path: path.into(), replicas, annotations: BTreeMap::new() };
    let known = [set("a", Some(1)), set("b", Some(4))];
    let cases: Vec<(Vec<PodSet>, &[PodSet], &[&str])> = vec![
        (vec![], &known, &[]),
        (vec![set("b", Some(4)), set("a", None)], &known, &[]),
        (vec![set("c", None)], &[], &[]),
        (vec![set("c", None), set("c", None)], &[], &["podSets[1].path: Duplicate value: \"c\""]),
        (
            vec![set("b", Some(4))],
            &known,
            &[
                "podSets: Invalid value: \"1 pod sets\": this kind has 2",
                "podSets: Required value: declare a with 1",
            ],
        ),
        (
            vec![set("a", Some(2)), set("b", Some(4))],
            &known,
            &["podSets[0].replicas: Invalid value: \"2\": the template has 1"],
        ),
        (
            vec![set("a", None), set("x", Some(4))],
            &known,
            &["podSets: Required value: declare b with 4 replicas"],
        ),
        (
            vec![set("a", None), set("a", None)],
            &known,
            &["podSets[1].path: Duplicate value: \"a\"", "podSets: Required value: declare b"],
        ),
    ];
    for (declared, inferred, expected) in cases {
        let errors: Vec<_> = contradictions(&declared, inferred).iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), expected.len(), "{declared:?}: {errors:?}");
        assert!(
            errors.iter().zip(expected).all(|(is, start)| is.starts_with(start)),
            "{declared:?}: {errors:?}"
        );
    }
}

#[test]
fn declared_pod_sets_win_and_bad_ones_are_named() {
    let component = json!({
        "podSets": [{"path": "template.spec.template", "replicas": 3, "annotations": {"a": "b"}}],
        "template": job(json!(8), Value::Null),
    });
    let sets = pod_sets(&component).unwrap();
    assert_eq!((sets[0].count(), sets[0].annotations["a"].as_str(), sets.len()), (3, "b", 1));
    assert_eq!(
        pod_sets(&json!({"podSets": [], "template": job(json!(8), Value::Null)})).unwrap()[0].count(),
        8
    );
    let cases = [
        (json!({"podSets": {}}), "podSets: Invalid value: \"{}\": must be a list"),
        (json!({"podSets": ["x"]}), "podSets[0]: Invalid value"),
        (json!({"podSets": [{"path": 1}]}), "podSets[0].path: Invalid value: \"1\": must be a string"),
        (json!({"podSets": [{"path": "a", "replicas": -1}]}), "podSets[0].replicas: Invalid value: \"-1\""),
        (json!({"podSets": [{"path": "a", "replicas": "2"}]}), "podSets[0].replicas: Invalid value"),
        (
            json!({"podSets": [{"path": "a", "annotations": {"a": 1}}]}),
            "podSets[0].annotations: Invalid value",
        ),
        (json!({}), "template: Invalid value: \"null\""),
    ];
    for (component, expected) in cases {
        let error = pod_sets(&component).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{component}: {error}");
    }
}

#[test]
fn a_huge_value_makes_no_huge_message() {
    let long = "x".repeat(100_000);
    let error = infer(&json!({"apiVersion": long, "kind": "Pod/", "spec": long})).err();
    assert!(error.is_none_or(|error| error.to_string().len() < 1000));
    for path in
        [format!("template.{long}"), format!("template[{long}]"), format!("template{long}"), long.clone()]
    {
        assert!(check_path(&trees(), &path, "p").unwrap_err().to_string().len() < 2000);
    }
    let spec = json!({ "spec": { long.as_str(): 1, "hostname": [long] } });
    assert!(pod_template::check(&spec).unwrap_err().to_string().len() < 1000);
}

/// Any JSON, some of it with field names that are read.
pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z/.]{0,8}".prop_map(Value::from),
        prop_oneof![Just("v1"), Just("Pod"), Just("batch/v1"), Just("Job"), Just("template.spec.template")]
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(8, 64, 6, |inner| {
        let key = prop_oneof![
            Just("spec"),
            Just("template"),
            Just("metadata"),
            Just("containers"),
            Just("replicas"),
            Just("kind"),
            Just("apiVersion"),
            Just("podSets"),
            Just("podSetInfos"),
            Just("path"),
            Just("labels"),
            Just("components"),
            Just("replicatedJobs"),
            Just("affinity"),
            Just("tolerations"),
            Just("ownerReferences"),
            Just("name"),
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key.prop_map(String::from), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(crate::fuzz::cases(512))]

    #[test]
    fn any_component_is_read_or_refused(component in any_json(), path in "(template)?[a-z.\\[\\]0-9+-]{0,20}") {
        let _ = pod_sets(&component).map_err(|error| error.to_string());
        let _ = check_path(&component, &path, "p").map_err(|error| error.to_string());
        let mut changed = component;
        if let Ok(found) = path::find(&changed, &path).cloned() {
            prop_assert_eq!(path::find_mut(&mut changed, &path).map(|value| value.clone()), Ok(found));
        }
    }
}
