//! What each index waits for.

use serde_json::{Value, json};

use super::world::{World, at};
use crate::job::{Waiting, waiting};
use crate::objects::PodPhase;

const ENDS: &str = "pod j-given-0 on node node-a to end";
const TURN: &str = "its turn: the Job runs as many pods as it may";
const WORK: &str = "its work to be done";

fn told(world: &World) -> Vec<String> {
    let World { job, pods, memory, policy, now, .. } = world;
    let line = |Waiting { indexes, waits_for }: Waiting| {
        let until = waits_for.until().map_or(String::new(), |until| format!(" until {}", until - at(0)));
        format!("{}: {waits_for}{until}", indexes.unwrap_or("-".into()))
    };
    waiting(job, pods, memory, policy, *now).into_iter().map(line).collect()
}

/// Five indexes, three at a time.
fn spec(more: Value) -> Value {
    let mut spec = json!({"parallelism": 3, "completions": 5, "completionMode": "Indexed"});
    spec.as_object_mut().unwrap().append(&mut more.as_object().unwrap().clone());
    spec
}

fn fail_now(world: &mut World, position: usize) {
    world.end(position, PodPhase::Failed);
}

/// The case, the Job, its pods, the events, and the expected text.
type Case = (&'static str, Value, &'static str, fn(&mut World), Vec<String>);

#[test]
fn each_index_says_what_it_waits_for() {
    let nothing: fn(&mut World) = |_| {};
    let second_fails: fn(&mut World) = |world| fail_now(world, 1);
    let only_failed = || spec(json!({"podReplacementPolicy": "Failed"}));
    let per_index = || spec(json!({"podReplacementPolicy": "Failed", "backoffLimitPerIndex": 2}));
    let no_index = json!({"parallelism": 2, "completions": 5, "podReplacementPolicy": "Failed"});
    let cases: Vec<Case> = vec![
        (
            "one ends, one has failed, and the rest waits for them",
            only_failed(),
            "t0 a1 a2",
            second_fails,
            vec![
                format!("0: {ENDS}"),
                "1: its backoff until PT10S".into(),
                format!("2: {WORK}"),
                format!("3,4: {TURN}"),
            ],
        ),
        (
            "each index has a limit of its own",
            per_index(),
            "t0 a1 a2",
            |world| {
                fail_now(world, 1);
                world.now = at(3);
                fail_now(world, 2);
                world.job.spec.parallelism = Some(5);
            },
            vec![
                format!("0: {ENDS}"),
                "1: its backoff until PT10S".into(),
                "2: its backoff until PT13S".into(),
                "3,4: its pod to be created".into(),
            ],
        ),
        (
            "terminating pods hold all places",
            only_failed(),
            "t0 a1 a2",
            nothing,
            vec![format!("0: {ENDS}"), format!("1,2: {WORK}"), format!("3,4: {TURN}")],
        ),
        (
            "a terminating pod is replaced without waiting for it",
            spec(json!({})),
            "t0 a1 a2",
            nothing,
            vec!["0: its pod to be created".into(), format!("1,2: {WORK}"), format!("3,4: {TURN}")],
        ),
        (
            "pods without a node, and with one",
            only_failed(),
            "p0 p1 s2 a3",
            |world| world.pod(0).node = None,
            vec![
                "0: pod j-given-0 to be given a node".into(),
                "1: pod j-given-1 on node node-a to start".into(),
                format!("3: {WORK}"),
                format!("4: {TURN}"),
            ],
        ),
        (
            "a pod was refused",
            only_failed(),
            "a0 a1",
            |world| world.memory.creation_paused_until = Some(at(4)),
            vec![
                format!("0,1: {WORK}"),
                "2: a pause, because the API server refused a pod until PT4S".into(),
                format!("3,4: {TURN}"),
            ],
        ),
        (
            "a suspended Job",
            only_failed(),
            "t0 s1",
            |world| world.job.spec.suspend = true,
            vec![format!("0: {ENDS}"), "2-4: the Job to be resumed".into()],
        ),
        (
            "a Job that is bound to fail waits for its pods alone",
            spec(json!({"backoffLimit": 0})),
            "t0 a1",
            second_fails,
            vec![format!("0: {ENDS}")],
        ),
        (
            "without indexes",
            no_index,
            "t a",
            second_fails,
            vec![format!("-: {ENDS}"), "-: its backoff until PT10S".into()],
        ),
        ("the Job of another", only_failed(), "a0", |world| world.job.spec.managed_by = None, Vec::new()),
    ];
    for (name, spec, kinds, change, expected) in cases {
        let mut world = World::new(spec).with(kinds);
        change(&mut world);
        assert_eq!(told(&world), expected, "{name}");
    }
}
