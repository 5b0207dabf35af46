use proptest::prelude::*;
use salvor_api::config::AtMostOne;

use super::*;

const TERMINATE: &str = "kueue.x-k8s.io/safe-to-forcefully-terminate";
const DELETE: &str = "kueue.x-k8s.io/safe-to-forcefully-delete";
const EVICT_AFTER_KEY: &str = "salvor.dev/evict-after";

/// As without flags, except for these.
fn asked(
    object: &Value,
    consent: Option<Consent>,
    evict_after: Option<GoDuration>,
    claims: &Claims,
) -> Result<Plan, Problem> {
    let owners = AtMostOne::default().owners;
    let how = OptIn { consent, evict_after, at_most_one_owners: &owners, claims };
    opt_in(Kind::of(object).expect("a known kind"), object, &how)
}

fn plan(object: &Value) -> Plan {
    asked(object, None, None, &Claims::default()).unwrap()
}

fn opted_in(object: &Value) -> Value {
    plan(object).applied(object)
}

fn opted_out(object: &Value) -> Value {
    opt_out(Kind::of(object).unwrap(), object).unwrap().applied(object)
}

/// Why it is refused.
fn refused(object: &Value) -> String {
    asked(object, None, None, &Claims::default()).unwrap_err().to_string()
}

fn pod_spec() -> Value {
    json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]})
}

fn template() -> Value {
    json!({"spec": pod_spec()})
}

/// A pod template with the annotations of opting in.
fn with(consent: &str) -> Value {
    json!({"metadata": annotated(consent), "spec": pod_spec()})
}

fn annotated(consent: &str) -> Value {
    json!({"annotations": {consent: "true", EVICT_AFTER_KEY: "30s"}})
}

fn object(api_version: &str, kind: &str, spec: Value) -> Value {
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}});
    object["spec"] = spec;
    object
}

fn job(more: &[(&str, Value)]) -> Value {
    let mut job = object("batch/v1", "Job", json!({"template": template()}));
    for (field, value) in more {
        job["spec"][*field] = value.clone();
    }
    job
}

fn rule() -> Value {
    json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]})
}

/// What a Job has after opting in.
fn job_spec(template: Value) -> Value {
    let mut spec = json!({"podReplacementPolicy": "Failed", "podFailurePolicy": {"rules": [rule()]}});
    spec["template"] = template;
    spec
}

/// Every kind, as it is written and as it opts in.
fn kinds() -> Vec<(Value, Value)> {
    let both = |api_version: &str, kind: &str, before: Value, after: Value| {
        (object(api_version, kind, before), object(api_version, kind, after))
    };
    let ray = |template: Value| json!({"headGroupSpec": {"template": template}, "workerGroupSpecs": [{"template": template}]});
    let patch = json!([{"manager": "salvor.dev/opt-in", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [
        {"name": "node", "template": {"spec": {"template": {"metadata": annotated(DELETE)}}}}]}}}}]);
    let bare = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod_spec()});
    let mut bare_after = bare.clone();
    bare_after["metadata"]["annotations"] = annotated(DELETE)["annotations"].clone();
    vec![
        (bare, bare_after),
        both("apps/v1", "Deployment", json!({"template": template()}), json!({"template": with(DELETE)})),
        both("batch/v1", "Job", json!({"template": template()}), job_spec(with(TERMINATE))),
        both(
            "batch/v1",
            "CronJob",
            json!({"jobTemplate": {"spec": {"template": template()}}}),
            json!({"jobTemplate": {"spec": job_spec(with(TERMINATE))}}),
        ),
        both(
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            json!({"replicatedJobs": [{"name": "a", "template": {"spec": {"template": template()}}},
                                      {"name": "b", "template": {"spec": {"template": template()}}}]}),
            json!({"replicatedJobs": [{"name": "a", "template": {"spec": job_spec(with(DELETE))}},
                                      {"name": "b", "template": {"spec": job_spec(with(DELETE))}}]}),
        ),
        both(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            json!({"leaderWorkerTemplate": {"leaderTemplate": template(), "workerTemplate": template()}}),
            json!({"leaderWorkerTemplate": {"leaderTemplate": with(DELETE), "workerTemplate": with(DELETE)}}),
        ),
        both(
            "trainer.kubeflow.org/v1alpha1",
            "TrainJob",
            json!({"runtimeRef": {"name": "torch-distributed"}}),
            json!({"runtimeRef": {"name": "torch-distributed"}, "runtimePatches": patch}),
        ),
        both(
            "trainer.kubeflow.org/v1alpha1",
            "TrainJob",
            json!({"podTemplateOverrides": [{"targetJobs": [{"name": "launcher"}], "spec": {"serviceAccountName": "s"}}]}),
            json!({"podTemplateOverrides": [
                {"targetJobs": [{"name": "launcher"}], "spec": {"serviceAccountName": "s"}, "metadata": annotated(DELETE)},
                {"targetJobs": [{"name": "node"}], "metadata": annotated(DELETE)}]}),
        ),
        both(
            "kubeflow.org/v1",
            "PyTorchJob",
            json!({"pytorchReplicaSpecs": {"Master": {"template": template()}, "Worker": {"template": template()}}}),
            json!({"pytorchReplicaSpecs": {"Master": {"template": with(DELETE)}, "Worker": {"template": with(DELETE)}}}),
        ),
        both("ray.io/v1", "RayCluster", ray(template()), ray(with(DELETE))),
        both(
            "ray.io/v1",
            "RayJob",
            json!({"rayClusterSpec": ray(template()), "submitterPodTemplate": template()}),
            json!({"rayClusterSpec": ray(with(DELETE)), "submitterPodTemplate": with(DELETE)}),
        ),
        both(
            "workload.codeflare.dev/v1beta2",
            "AppWrapper",
            json!({"components": [
                {"template": job(&[])},
                {"template": {"apiVersion": "v1", "kind": "Service"}},
                {"template": object("example.com/v1", "Gang", json!({"groups": [{"pod": template()}]})),
                 "podSets": [{"path": "template.spec.groups[0].pod"}]},
                {"template": object("trainer.kubeflow.org/v1alpha1", "TrainJob", json!({"suspend": false}))}]}),
            json!({"components": [
                {"template": object("batch/v1", "Job", job_spec(with(TERMINATE)))},
                {"template": {"apiVersion": "v1", "kind": "Service"}},
                {"template": object("example.com/v1", "Gang", json!({"groups": [{"pod": with(DELETE)}]})),
                 "podSets": [{"path": "template.spec.groups[0].pod"}]},
                {"template": object("trainer.kubeflow.org/v1alpha1", "TrainJob", json!({"suspend": false, "runtimePatches": patch}))}]}),
        ),
    ]
}

#[test]
fn every_kind_gets_what_it_needs_once_and_loses_it_again() {
    for (before, after) in kinds() {
        let kind = before["kind"].clone();
        assert_eq!(opted_in(&before), after, "{kind}");
        assert_eq!(plan(&after).edits, [], "{kind}: a second time");
        assert_eq!(opted_out(&after), before, "{kind}: back");
        assert_eq!(
            opt_out(Kind::of(&before).unwrap(), &before).unwrap().edits,
            [],
            "{kind}: nothing to undo"
        );
    }
}

#[test]
fn other_groups_are_other_kinds() {
    for (api_version, kind) in
        [("v1", "Job"), ("example.com/v1", "Job"), ("apps/v1", "DaemonSet"), ("v1", "Service")]
    {
        assert_eq!(Kind::of(&json!({"apiVersion": api_version, "kind": kind})), None, "{api_version} {kind}");
    }
    assert_eq!(Kind::of(&json!({"kind": "Job"})), None);
    assert_eq!(Kind::of(&json!("Job")), None);
}

#[test]
fn work_that_may_run_only_once_is_refused_unless_its_owner_says_consent() {
    let volumes = |volume: Value| {
        let mut object = object("apps/v1", "Deployment", json!({"template": template()}));
        object["spec"]["template"]["spec"]["volumes"] = json!([volume]);
        object
    };
    let claim = json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}});
    let mut owned = json!({"apiVersion": "v1", "kind": "Pod", "spec": pod_spec()});
    owned["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "name": "pg"}]);
    let mut group = object(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        json!({"leaderWorkerTemplate": {"workerTemplate": template()}}),
    );
    group["spec"]["leaderWorkerTemplate"]["volumeClaimTemplates"] =
        json!([{"metadata": {"name": "disk"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]);
    let database = object("apps/v1", "StatefulSet", json!({"template": template()}));
    let wrapped = object(
        "workload.codeflare.dev/v1beta2",
        "AppWrapper",
        json!({"components": [{"template": database}]}),
    );
    for (object, why) in [
        (database.clone(), "spec.template: two copies of it must not run: it belongs to a StatefulSet.apps"),
        (
            wrapped,
            "spec.components[0].template.spec.template: two copies of it must not run: it belongs to a StatefulSet.apps",
        ),
        (owned, "two copies of it must not run: it belongs to a Cluster.postgresql.cnpg.io"),
        (
            group,
            "spec.leaderWorkerTemplate.workerTemplate: two copies of it must not run: each pod has a claim \"disk\" for one node",
        ),
        (volumes(claim.clone()), "claim data may be for one node: nothing here says its access modes"),
        (volumes(json!({"name": "v", "rbd": {}})), "volume \"v\" is a disk for one node"),
    ] {
        assert!(refused(&object).contains(why), "{}", refused(&object));
        let consented = asked(&object, Some(Consent::Delete), None, &Claims::default()).unwrap();
        let consented = consented.applied(&object);
        assert!(consented.to_string().contains(DELETE), "{consented}");
        // The manifest itself says it from then on.
        assert_eq!(plan(&consented).edits, []);
    }
    for volume in
        [json!({"name": "e", "emptyDir": {}}), json!({"name": "e", "ephemeral": {"volumeClaimTemplate": {}}})]
    {
        assert_ne!(plan(&volumes(volume)).edits, []);
    }
    for (modes, may) in [
        (json!(["ReadWriteMany"]), true),
        (json!(["ReadWriteMany", "ReadWriteOnce"]), false),
        (json!([]), false),
    ] {
        let mut claims = Claims::default();
        claims.learn(
            &json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
                             "spec": {"accessModes": modes}}),
        );
        let found = asked(&volumes(claim.clone()), None, None, &claims);
        assert_eq!(found.is_ok(), may, "{modes}: {found:?}");
        // A claim of another namespace is another claim.
        let mut elsewhere = volumes(claim.clone());
        elsewhere["metadata"]["namespace"] = "other".into();
        assert!(asked(&elsewhere, None, None, &claims).is_err());
    }
}

#[test]
fn what_the_owner_has_said_stays() {
    let says = |annotations: Value| {
        let mut job = job(&[]);
        job["spec"]["template"]["metadata"] = json!({"annotations": annotations});
        job
    };
    let after = |object: &Value, consent, wait| {
        let plan = asked(object, consent, wait, &Claims::default()).unwrap();
        plan.applied(object)["spec"]["template"]["metadata"]["annotations"].clone()
    };
    let ten = Some(GoDuration::from_secs(10));
    for (before, consent, wait, expected) in [
        (json!({DELETE: "true"}), None, None, json!({DELETE: "true", EVICT_AFTER_KEY: "30s"})),
        (
            json!({DELETE: "true"}),
            Some(Consent::Terminate),
            None,
            json!({DELETE: "true", EVICT_AFTER_KEY: "30s"}),
        ),
        (
            json!({TERMINATE: "true"}),
            Some(Consent::Delete),
            None,
            json!({TERMINATE: "true", DELETE: "true", EVICT_AFTER_KEY: "30s"}),
        ),
        (json!({EVICT_AFTER_KEY: "5m"}), None, None, json!({EVICT_AFTER_KEY: "5m", TERMINATE: "true"})),
        (json!({EVICT_AFTER_KEY: "5m"}), None, ten, json!({EVICT_AFTER_KEY: "10s", TERMINATE: "true"})),
        (json!({"a": "b"}), None, ten, json!({"a": "b", EVICT_AFTER_KEY: "10s", TERMINATE: "true"})),
        // Anything but "true" is no consent, and nothing is forced on its owner.
        (json!({TERMINATE: "false"}), Some(Consent::Delete), ten, json!({TERMINATE: "false"})),
    ] {
        assert_eq!(after(&says(before.clone()), consent, wait), expected, "{before}");
    }
    let no = says(json!({DELETE: "no"}));
    assert_eq!(plan(&no).edits, []);
    assert!(plan(&no).notes[0].contains("which is no consent"), "{:?}", plan(&no).notes);
}

#[test]
fn a_job_gets_only_what_its_api_accepts() {
    let fields = |job: &Value| {
        let spec = opted_in(job)["spec"].clone();
        let field = |name: &str| spec.get(name).cloned().unwrap_or_default();
        [field("podReplacementPolicy"), field("podFailurePolicy"), field("backoffLimitPerIndex")]
    };
    let (failed, ours, none) = (json!("Failed"), json!({"rules": [rule()]}), Value::Null);
    let on_failure = json!({"spec": {"restartPolicy": "OnFailure"}});
    let indexed = ("completionMode", json!("Indexed"));
    let exits = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}});
    let counts = json!({"action": "Count", "onPodConditions": [{"type": "DisruptionTarget"}]});
    let cases = [
        (vec![], [failed.clone(), ours.clone(), none.clone()]),
        (vec![indexed.clone()], [failed.clone(), ours.clone(), json!(6)]),
        (vec![indexed.clone(), ("backoffLimit", json!(2))], [failed.clone(), ours.clone(), json!(2)]),
        (vec![indexed.clone(), ("backoffLimitPerIndex", json!(1))], [failed.clone(), ours.clone(), json!(1)]),
        (
            vec![indexed.clone(), ("completions", json!(200_000))],
            [failed.clone(), ours.clone(), none.clone()],
        ),
        (vec![indexed.clone(), ("template", on_failure)], [failed.clone(), none.clone(), none.clone()]),
        (
            vec![indexed, ("podReplacementPolicy", json!("TerminatingOrFailed"))],
            [json!("TerminatingOrFailed"), none.clone(), none.clone()],
        ),
        (
            vec![("podFailurePolicy", json!({"rules": [exits.clone()]}))],
            [failed.clone(), json!({"rules": [rule(), exits]}), none.clone()],
        ),
        (
            vec![("podFailurePolicy", json!({"rules": [counts.clone()]}))],
            [failed, json!({"rules": [counts]}), none],
        ),
    ];
    for (more, expected) in cases {
        let job = job(&more);
        assert_eq!(fields(&job), expected, "{job}");
        assert_eq!(plan(&opted_in(&job)).edits, [], "{job}");
    }
}

#[test]
fn a_job_set_that_restarts_as_a_whole_goes_on_doing_so() {
    let jobs = json!([{"name": "w", "template": {"spec":
        {"backoffLimit": 0, "completionMode": "Indexed", "template": template()}}}]);
    let set = object("jobset.x-k8s.io/v1alpha2", "JobSet", json!({"replicatedJobs": jobs}));
    let spec = &opted_in(&set)["spec"]["replicatedJobs"][0]["template"]["spec"];
    assert_eq!(spec["podReplacementPolicy"], "Failed");
    assert_eq!((&spec["podFailurePolicy"], &spec["backoffLimitPerIndex"]), (&Value::Null, &Value::Null));
}

#[test]
fn undoing_leaves_what_opting_in_does_not_write() {
    let exits = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}});
    let mut theirs = job(&[
        ("completionMode", json!("Indexed")),
        ("backoffLimitPerIndex", json!(3)),
        ("podFailurePolicy", json!({"rules": [exits]})),
    ]);
    theirs["spec"]["template"]["metadata"] = json!({"annotations": {"a": "b"}, "labels": {"l": "m"}});
    assert_eq!(opted_out(&opted_in(&theirs)), theirs);
    // It has not opted in, so the Job's fields are its owner's.
    let by_hand = object("batch/v1", "Job", job_spec(template()));
    assert_eq!(opted_out(&by_hand), by_hand);
    let mut odd = job(&[]);
    odd["spec"]["template"]["metadata"] = json!({"annotations": {DELETE: "yes", EVICT_AFTER_KEY: "soon"}});
    assert_eq!(opted_out(&odd), odd);
}

#[test]
fn values_of_a_wrong_type_are_named() {
    let with = |place: &str, value: Value| {
        let mut job = job(&[("podFailurePolicy", json!({"rules": []}))]);
        job["spec"]["template"]["metadata"] = json!({"annotations": {}});
        *job.pointer_mut(place).unwrap() = value;
        job
    };
    for (object, told) in [
        (with("/spec/template", json!([])), "spec.template: [] cannot be used: it must be a pod template"),
        (
            with("/spec/template/metadata", json!(7)),
            "spec.template.metadata: 7 cannot be used: it must be an object",
        ),
        (
            with("/spec/template/metadata/annotations", json!("a=b")),
            "spec.template.metadata.annotations: \"a=b\" cannot be used: it must be a map of strings",
        ),
        (
            with("/spec/podFailurePolicy", json!(true)),
            "spec.podFailurePolicy: true cannot be used: it must be an object",
        ),
        (
            with("/spec/podFailurePolicy/rules", json!({})),
            "spec.podFailurePolicy.rules: {} cannot be used: it must be a list",
        ),
    ] {
        assert_eq!(refused(&object), told);
    }
    assert_eq!(plan(&object("batch/v1", "Job", json!({}))).notes, ["it has no pod template"]);
}

#[test]
fn the_seconds_follow_from_the_template() {
    let clocks = |object: &Value| plan(object).clocks.iter().map(ToString::to_string).collect::<Vec<_>>();
    let deployment = object("apps/v1", "Deployment", json!({"template": template()}));
    assert_eq!(
        clocks(&deployment),
        [
            "a lost node costs 1m17s: detect 47s, evict-after 30s; without evict-after it costs 5m47s: detect 47s, toleration 5m"
        ]
    );
    assert_eq!(
        clocks(&job(&[])),
        [
            "a lost node costs 1m17s: detect 47s, evict-after 30s; without evict-after it costs 7m17s: detect 47s, toleration 5m, \
          grace 30s, wait 1m"
        ]
    );
    let mut patient = job(&[]);
    patient["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 3600.into();
    patient["spec"]["template"]["spec"]["tolerations"] = json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 13}]);
    patient["spec"]["template"]["metadata"] =
        json!({"annotations": {EVICT_AFTER_KEY: "0s", "salvor.dev/termination-grace-after": "5s"}});
    assert_eq!(
        clocks(&patient),
        [
            "a lost node costs 47s: detect 47s, evict-after 0s; without evict-after it costs 1h1m5s: detect 47s, toleration 13s, \
          grace 1h, wait 5s"
        ]
    );
    patient["spec"]["template"]["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    assert!(
        clocks(&patient)[0].ends_with("it tolerates unreachable nodes forever"),
        "{:?}",
        clocks(&patient)
    );
}

/// Jobs of all sorts, without anything that opting in writes.
fn jobs() -> impl Strategy<Value = Value> {
    let label = prop::option::of(Just(json!({"labels": {"a": "b"}})));
    let restart = prop::sample::select(vec!["Never", "OnFailure"]);
    let mode = prop::option::of(prop::sample::select(vec!["Indexed", "NonIndexed"]));
    let limit = prop::option::of(0_u64..9);
    (label, restart, mode, limit, any::<bool>()).prop_map(|(metadata, restart, mode, limit, has_rule)| {
        let mut job = job(&[]);
        job["spec"]["template"]["spec"]["restartPolicy"] = restart.into();
        if let Some(metadata) = metadata {
            job["spec"]["template"]["metadata"] = metadata;
        }
        if let Some(mode) = mode {
            job["spec"]["completionMode"] = mode.into();
        }
        if let Some(limit) = limit {
            job["spec"]["backoffLimit"] = limit.into();
        }
        if has_rule && restart == "Never" {
            let rule = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}});
            job["spec"]["podFailurePolicy"] = json!({"rules": [rule]});
        }
        job
    })
}

proptest! {
    #![proptest_config(crate::fuzz::cases(256))]

    #[test]
    fn opting_in_is_done_once_and_can_be_undone(job in jobs()) {
        let after = opted_in(&job);
        prop_assert_eq!(plan(&after).edits, []);
        prop_assert_eq!(opted_out(&after), job);
    }

    /// The API refuses these combinations.
    #[test]
    fn jobs_stay_valid(job in jobs()) {
        let spec = &opted_in(&job)["spec"];
        let never = spec["template"]["spec"]["restartPolicy"] == "Never";
        prop_assert!(spec["podFailurePolicy"].is_null() || (never && spec["podReplacementPolicy"] == "Failed"));
        prop_assert!(spec["backoffLimitPerIndex"].is_null() || (never && spec["completionMode"] == "Indexed"));
    }
}
