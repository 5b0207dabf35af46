//! The tables of the built-in controller's own tests: given pods, one sync, and the result.

use serde_json::{Value, json};

use super::world::World;

struct Case {
    name: &'static str,
    spec: Value,
    pods: &'static str,
    counts: &'static str,
    /// Created, deleted, finalizers removed.
    writes: (usize, usize, usize),
    conditions: &'static str,
}

fn spec(parallelism: i32, completions: i32, backoff_limit: i32, more: Value) -> Value {
    let mut spec = json!({"parallelism": parallelism, "backoffLimit": backoff_limit});
    if completions >= 0 {
        spec["completions"] = completions.into();
    }
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

fn failed_only() -> Value {
    json!({"podReplacementPolicy": "Failed"})
}

fn either() -> Value {
    json!({"podReplacementPolicy": "TerminatingOrFailed"})
}

fn indexed(more: Value) -> Value {
    let mut all = json!({"completionMode": "Indexed"});
    for (key, value) in more.as_object().unwrap() {
        all[key] = value.clone();
    }
    all
}

#[test]
fn one_sync() {
    let none = || json!({});
    let cases = [
        Case {
            name: "start",
            spec: spec(2, 5, 6, none()),
            pods: "",
            counts: "A2 R0 S0 F0 T0",
            writes: (2, 0, 0),
            conditions: "",
        },
        Case {
            name: "work queue starts",
            spec: spec(2, -1, 6, none()),
            pods: "",
            counts: "A2 R0 S0 F0 T0",
            writes: (2, 0, 0),
            conditions: "",
        },
        Case {
            name: "as many as wanted",
            spec: spec(2, 5, 6, none()),
            pods: "p r",
            counts: "A2 R1 S0 F0 T0",
            writes: (0, 0, 0),
            conditions: "",
        },
        Case {
            name: "work queue: failed is replaced, under Failed terminating is not yet",
            spec: spec(1, -1, 6, failed_only()),
            pods: "a f t",
            counts: "A1 R0 S0 F1 T1",
            writes: (0, 0, 1),
            conditions: "",
        },
        Case {
            name: "no policy: terminating counts as failed too",
            spec: spec(1, 1, 6, none()),
            pods: "a f t",
            counts: "A1 R0 S0 F2 T1",
            writes: (0, 0, 2),
            conditions: "",
        },
        Case {
            name: "TerminatingOrFailed: terminating counts as failed too",
            spec: spec(1, -1, 6, either()),
            pods: "a f t",
            counts: "A1 R0 S0 F2 T1",
            writes: (0, 0, 2),
            conditions: "",
        },
        // Here deleted pods disappear at once, so they are not seen terminating.
        Case {
            name: "more terminating than parallelism, under Failed",
            spec: spec(1, 1, 6, failed_only()),
            pods: "a a t t t t",
            counts: "A1 R0 S0 F0 T4",
            writes: (0, 1, 1),
            conditions: "",
        },
        Case {
            name: "too many active",
            spec: spec(2, 5, 6, none()),
            pods: "a a a",
            counts: "A2 R0 S0 F0 T0",
            writes: (0, 1, 1),
            conditions: "",
        },
        Case {
            name: "far more active than parallelism",
            spec: spec(2, 100, 6, none()),
            pods: "a a a a a a a a a a",
            counts: "A2 R0 S0 F0 T0",
            writes: (0, 8, 8),
            conditions: "",
        },
        Case {
            name: "more active than completions are left",
            spec: spec(3, 4, 6, none()),
            pods: "a a a s s",
            counts: "A2 R0 S2 F0 T0",
            writes: (0, 1, 3),
            conditions: "",
        },
        Case {
            name: "the ready ones stay",
            spec: spec(1, 5, 6, none()),
            pods: "r p a",
            counts: "A1 R1 S0 F0 T0",
            writes: (0, 2, 2),
            conditions: "",
        },
        Case {
            name: "a work queue with a success leaves the rest running",
            spec: spec(3, -1, 6, none()),
            pods: "a s f",
            counts: "A1 R0 S1 F1 T0",
            writes: (0, 0, 2),
            conditions: "",
        },
        Case {
            name: "a work queue is complete when the rest has ended",
            spec: spec(3, -1, 6, none()),
            pods: "s f",
            counts: "A0 R0 S1 F1 T0",
            writes: (0, 0, 2),
            conditions: "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)",
        },
        Case {
            name: "complete",
            spec: spec(2, 5, 6, none()),
            pods: "s s s s s",
            counts: "A0 R0 S5 F0 T0",
            writes: (0, 0, 5),
            conditions: "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)",
        },
        Case {
            name: "more completed than asked for",
            spec: spec(2, 5, 6, none()),
            pods: "s s s s s s",
            counts: "A0 R0 S6 F0 T0",
            writes: (0, 0, 6),
            conditions: "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)",
        },
        Case {
            name: "no completions wanted",
            spec: spec(2, 0, 6, none()),
            pods: "",
            counts: "A0 R0 S0 F0 T0",
            writes: (0, 0, 0),
            conditions: "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)",
        },
        Case {
            name: "no parallelism wanted",
            spec: spec(0, 5, 6, none()),
            pods: "",
            counts: "A0 R0 S0 F0 T0",
            writes: (0, 0, 0),
            conditions: "",
        },
        Case {
            name: "too many failures end it, and its active pods count as failed",
            spec: spec(2, 5, 0, none()),
            pods: "f r",
            counts: "A0 R0 S0 F2 T0",
            writes: (0, 1, 2),
            conditions: "FailureTarget(BackoffLimitExceeded) Failed(BackoffLimitExceeded)",
        },
        Case {
            name: "failing under Failed waits for the terminating pod",
            spec: spec(2, 5, 0, failed_only()),
            pods: "f t",
            counts: "A0 R0 S0 F2 T1",
            writes: (0, 0, 2),
            conditions: "FailureTarget(BackoffLimitExceeded)",
        },
        Case {
            name: "complete waits for the terminating pod",
            spec: spec(1, 1, 6, either()),
            pods: "s t",
            counts: "A0 R0 S1 F1 T1",
            writes: (0, 0, 2),
            conditions: "SuccessCriteriaMet(CompletionsReached)",
        },
        Case {
            name: "indexed start",
            spec: spec(2, 5, 6, indexed(none())),
            pods: "",
            counts: "A2 R0 S0 F0 T0",
            writes: (2, 0, 0),
            conditions: "",
        },
        Case {
            name: "indexed, one being deleted, Failed: the other index only",
            spec: spec(2, 5, 6, indexed(failed_only())),
            pods: "t1",
            counts: "A1 R0 S0 F0 T1",
            writes: (1, 0, 0),
            conditions: "",
        },
        Case {
            name: "indexed, one being deleted, TerminatingOrFailed: both",
            spec: spec(2, 5, 6, indexed(either())),
            pods: "t1",
            counts: "A2 R0 S0 F1 T1",
            writes: (2, 0, 1),
            conditions: "",
        },
        Case {
            name: "indexed complete",
            spec: spec(2, 3, 6, indexed(none())),
            pods: "s0 s1 s1 s2",
            counts: "A0 R0 S3 F0 T0",
            writes: (0, 0, 4),
            conditions: "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)",
        },
        Case {
            name: "indexed failed",
            spec: spec(2, 3, 0, indexed(none())),
            pods: "s0 f1 a2",
            counts: "A0 R0 S1 F2 T0",
            writes: (0, 1, 3),
            conditions: "FailureTarget(BackoffLimitExceeded) Failed(BackoffLimitExceeded)",
        },
        Case {
            name: "indexed, some running and some completed",
            spec: spec(8, 20, 6, indexed(none())),
            pods: "a0 s2 s4 a5 s6 a7 s8 s9",
            counts: "A8 R0 S5 F0 T0",
            writes: (5, 0, 5),
            conditions: "",
        },
        Case {
            name: "indexed, some failed",
            spec: spec(3, 3, 6, indexed(none())),
            pods: "f0 s1 f2",
            counts: "A2 R0 S1 F2 T0",
            writes: (2, 0, 3),
            conditions: "",
        },
        Case {
            name: "indexed, pods without index go and are not counted",
            spec: spec(2, 5, 6, indexed(none())),
            pods: "a0 a a s f",
            counts: "A2 R0 S0 F0 T0",
            writes: (1, 2, 4),
            conditions: "",
        },
        Case {
            name: "indexed, repeated indexes",
            spec: spec(5, 5, 6, indexed(none())),
            pods: "p0 p1 p1 s2 p2",
            counts: "A4 R0 S1 F0 T0",
            writes: (1, 1, 2),
            conditions: "",
        },
        Case {
            name: "indexed, indexes out of range",
            spec: spec(2, 5, 6, indexed(none())),
            pods: "a0 a5 s6 f7",
            counts: "A2 R0 S0 F0 T0",
            writes: (1, 1, 3),
            conditions: "",
        },
        Case {
            name: "suspending",
            spec: spec(2, 5, 6, json!({"suspend": true})),
            pods: "a r",
            counts: "A0 R0 S0 F0 T0",
            writes: (0, 2, 2),
            conditions: "Suspended(JobSuspended)",
        },
        Case {
            name: "suspended from the beginning, nothing to do",
            spec: spec(2, 0, 6, json!({"suspend": true})),
            pods: "",
            counts: "A0 R0 S0 F0 T0",
            writes: (0, 0, 0),
            conditions: "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)",
        },
    ];
    for case in cases {
        let mut world = World::new(case.spec).with(case.pods);
        world.settle();
        // Lets batched status writes happen.
        world.later(2);
        let writes = (world.count("CreatePod"), world.count("DeletePod"), world.count("RemoveFinalizer"));
        assert_eq!(world.counts(), case.counts, "{}", case.name);
        assert_eq!(writes, case.writes, "{}: created, deleted, let go", case.name);
        assert_eq!(world.conditions(), case.conditions, "{}", case.name);
    }
}

#[test]
fn a_pod_that_still_ends_is_seen_terminating_when_it_is_one_too_many() {
    for (case, counts) in [("a a a", "A2 R0 S0 F0 T1"), ("r r a a a a a a a a", "A2 R2 S0 F0 T8")] {
        let mut world = World::new(spec(2, 50, 6, json!({}))).with(case);
        world.blocked = world.pods.iter().map(|p| p.pod.uid.clone()).collect();
        world.settle();
        assert_eq!(world.counts(), counts, "{case}");
    }
}

#[test]
fn a_job_that_is_being_deleted_lets_go_of_its_pods_and_makes_no_others() {
    let mut world = World::new(spec(3, 5, 6, json!({}))).with("a s f");
    world.job.deleting = true;
    world.settle().later(2);
    assert_eq!(world.count("CreatePod"), 0);
    assert_eq!(world.count("DeletePod"), 0);
    assert!(world.pods.iter().all(|p| !p.is_tracked()));
    assert_eq!(world.counts(), "A1 R0 S1 F1 T0");
}

#[test]
fn conditions_that_somebody_set_to_false_mean_nothing() {
    for kind in ["FailureTarget", "SuccessCriteriaMet"] {
        let mut world = World::new(spec(1, 1, 6, json!({})));
        world.job.status = serde_json::from_value(json!({
            "startTime": "2027-01-15T08:00:00Z",
            "conditions": [{"type": kind, "status": "False"}],
        }))
        .unwrap();
        world.settle();
        assert_eq!((world.counts().as_str(), world.conditions().as_str()), ("A1 R0 S0 F0 T0", ""));
        let position = world.open()[0];
        world.end(position, crate::objects::PodPhase::Succeeded);
        world.settle();
        assert_eq!(world.conditions(), "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)");
    }
}
