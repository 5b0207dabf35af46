//! The states that components report.

use serde_json::{Value, json};

use super::super::components::{PodOrigin, Waves, component_of};
use super::*;
use crate::ids::Uid;

fn condition(kind: &str) -> Value {
    json!({"conditions": [{"type": "Other", "status": "True"}, {"type": kind, "status": "True", "message": "m"}]})
}

#[test]
fn each_kind_by_its_own_word() {
    use ComponentState::{Active, Silent, Succeeded};
    let failed = |message: &str| ComponentState::Failed { message: message.into() };
    let jobset = kind("jobset.x-k8s.io", "v1alpha2", "JobSet");
    let pytorch = kind("kubeflow.org", "v1", "PyTorchJob");
    let rayjob = kind("ray.io", "v1", "RayJob");
    let cases = [
        (job(), json!({}), Active),
        (job(), Value::Null, Active),
        (job(), json!({"conditions": "garbage"}), Active),
        (job(), condition("Complete"), Succeeded),
        (job(), condition("Failed"), failed("m")),
        (job(), condition("FailureTarget"), Active),
        (job(), json!({"conditions": [{"type": "Failed", "status": "False"}]}), Active),
        (job(), json!({"succeeded": 2}), Active),
        (jobset.clone(), condition("Completed"), Succeeded),
        (jobset.clone(), condition("Failed"), failed("m")),
        (jobset, condition("Complete"), Active),
        (pytorch.clone(), condition("Succeeded"), Succeeded),
        (pytorch.clone(), condition("Failed"), failed("m")),
        (pytorch, condition("Running"), Active),
        (rayjob.clone(), json!({"jobDeploymentStatus": "Running", "jobStatus": "FAILED"}), Active),
        (rayjob.clone(), json!({"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}), Succeeded),
        (
            rayjob.clone(),
            json!({"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED", "message": "by hand"}),
            ComponentState::Stopped { message: "by hand".into() },
        ),
        (rayjob.clone(), json!({"jobDeploymentStatus": "Suspended", "jobStatus": "STOPPED"}), Active),
        (rayjob, json!({"jobDeploymentStatus": "Failed", "message": "why"}), failed("why")),
        (kind("ray.io", "v1", "RayCluster"), json!({"state": "failed"}), Silent),
        (kind("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"), json!({}), Silent),
        (deployment(), json!({"readyReplicas": 1}), Silent),
        (kind("apps", "v1", "StatefulSet"), json!({}), Silent),
        (bare_pod(), json!({"phase": "Succeeded"}), Succeeded),
        (bare_pod(), json!({"phase": "Failed"}), Active),
        (kind("", "v1", "Service"), json!({}), Silent),
        (kind("example.com", "v1", "Job"), condition("Failed"), Silent),
    ];
    for (kind, status, expected) in cases {
        assert_eq!(ComponentState::read(&kind, &status), expected, "{kind} {status}");
    }
}

#[test]
fn the_pods_that_a_job_still_has_to_run() {
    let read = |spec: Value, status: Value| Waves::read(&job(), &json!({"spec": spec, "status": status}));
    let cases = [
        (json!({"completions": 4}), json!({}), 0, 1),
        (json!({"completions": 4, "parallelism": 2}), json!({"succeeded": 1}), 0, 2),
        (json!({"completions": 4, "parallelism": 2}), json!({"succeeded": 3}), 0, 1),
        (json!({"completions": 4, "parallelism": 2}), json!({"succeeded": 2}), 3, 1),
        (json!({"completions": 4, "parallelism": 2}), json!({"succeeded": 4}), 0, 0),
        (json!({"completions": 4, "parallelism": 0}), json!({}), 0, 0),
        // Indexes that have failed for good are not run again.
        (
            json!({"completions": 9, "parallelism": 9}),
            json!({"succeeded": 1, "failedIndexes": "0,3-5,8"}),
            0,
            3,
        ),
        (
            json!({"completions": 9, "parallelism": 9}),
            json!({"failedIndexes": "5-3,x,-,0-99999999999999999999"}),
            0,
            9,
        ),
        (json!({"completions": 4, "parallelism": 2}), condition("SuccessCriteriaMet"), 0, 0),
        (json!({"completions": 4, "parallelism": 2}), condition("FailureTarget"), 0, 0),
        (json!({"completions": 4, "parallelism": -2}), json!({"succeeded": -7}), 0, 1),
    ];
    for (spec, status, ended, wanted) in cases {
        let waves = read(spec.clone(), status.clone()).unwrap();
        assert_eq!(waves.wanted(ended), wanted, "{spec} {status} {ended}");
    }
    assert_eq!(read(json!({"parallelism": 3}), json!({"succeeded": 1})), None, "a work queue");
    assert_eq!(Waves::read(&deployment(), &json!({"spec": {"completions": 3}})), None);
    assert_eq!(Waves::read(&job(), &Value::Null), None);
}

#[test]
fn pods_are_told_apart_by_controller_or_by_label() {
    let jobset = kind("jobset.x-k8s.io", "v1alpha2", "JobSet");
    let (first, second) = (Uid::from("u0"), Uid::from("u1"));
    let all = [(0, &jobset, "set", &first), (1, &jobset, "other", &second)];
    let of = |controller: Option<&str>, named| {
        let controller_uid = controller.map(Uid::from);
        let origin = PodOrigin { uid: &"p".into(), controller_uid: controller_uid.as_ref(), named };
        component_of(origin, all)
    };
    assert_eq!(of(Some("u1"), None), Some(1));
    assert_eq!(of(Some("a-job"), Some(("jobset.sigs.k8s.io/jobset-name", "set"))), Some(0));
    assert_eq!(of(Some("a-job"), Some(("ray.io/cluster", "set"))), None);
    assert_eq!(of(None, None), None);
}
