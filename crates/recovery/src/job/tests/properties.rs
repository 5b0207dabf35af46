//! Whatever happens to a Job and its pods, in any order: every status write follows the API server's rules, every pod
//! is recorded at most once, and in the end the counters are right.

use super::super::Step;
use crate::step::Step as _;
use std::collections::BTreeMap;

use jiff::SignedDuration;
use proptest::prelude::*;
use serde_json::json;

use super::world::World;
use crate::Verdict;
use crate::fuzz::cases;
use crate::job::Memory;
use crate::objects::PodPhase;

#[derive(Clone, Debug)]
enum Happening {
    Succeed(usize),
    Fail(usize),
    Delete(usize),
    Suspend,
    Resume,
    Parallelism(i32),
    Resize(i32),
    SwitchPolicy,
    SwitchGate,
    /// The process ends after so many writes of the next decision, and restarts without its memory.
    CrashAfter(usize),
    Wait(i64),
    Settle,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => (0usize..8).prop_map(Happening::Succeed),
        4 => (0usize..8).prop_map(Happening::Fail),
        3 => (0usize..8).prop_map(Happening::Delete),
        1 => Just(Happening::Suspend),
        2 => Just(Happening::Resume),
        1 => (0i32..5).prop_map(Happening::Parallelism),
        1 => (1i32..5).prop_map(Happening::Resize),
        1 => Just(Happening::SwitchPolicy),
        1 => Just(Happening::SwitchGate),
        3 => (0usize..4).prop_map(Happening::CrashAfter),
        4 => (0i64..20).prop_map(Happening::Wait),
        8 => Just(Happening::Settle),
    ]
}

#[derive(Clone, Debug)]
struct Start {
    parallelism: i32,
    completions: Option<i32>,
    indexed: bool,
    backoff_limit: i32,
    per_index: Option<i32>,
    max_failed_indexes: Option<i32>,
    succeeded_count: Option<i32>,
    deadline: Option<i64>,
    only_failed: Option<bool>,
    blocks: bool,
    uncounted: usize,
}

prop_compose! {
    fn start()(
        parallelism in 1i32..5,
        completions in prop::option::weighted(0.9, 1i32..5),
        indexed in any::<bool>(),
        backoff_limit in 0i32..6,
        per_index in prop::option::of(0i32..3),
        max_failed_indexes in prop::option::of(0i32..3),
        succeeded_count in prop::option::weighted(0.3, 1i32..3),
        deadline in prop::option::weighted(0.2, 20i64..200),
        only_failed in prop::option::of(any::<bool>()),
        blocks in any::<bool>(),
        uncounted in 1usize..4,
    ) -> Start {
        let indexed = indexed && completions.is_some();
        Start {
            parallelism, completions, indexed, backoff_limit, deadline, only_failed, blocks, uncounted,
            per_index: per_index.filter(|_| indexed),
            max_failed_indexes: max_failed_indexes.filter(|_| indexed && per_index.is_some()),
            succeeded_count: succeeded_count.filter(|_| indexed),
        }
    }
}

impl Start {
    fn world(&self) -> World {
        let mut spec = json!({"parallelism": self.parallelism, "completions": self.completions, "backoffLimit": self.backoff_limit});
        spec["completionMode"] = if self.indexed { "Indexed" } else { "NonIndexed" }.into();
        spec["backoffLimitPerIndex"] = json!(self.per_index);
        spec["maxFailedIndexes"] = json!(self.max_failed_indexes);
        spec["activeDeadlineSeconds"] = json!(self.deadline);
        spec["podReplacementPolicy"] =
            json!(self.only_failed.map(|only| if only { "Failed" } else { "TerminatingOrFailed" }));
        if let Some(count) = self.succeeded_count {
            spec["successPolicy"] = json!({"rules": [{"succeededCount": count}]});
        }
        let mut world = World::new(spec);
        world.policy.max_uncounted_pods = self.uncounted;
        world.blocks_new_pods = self.blocks;
        world
    }
}

/// Carries out so many single steps of the next decision and stops, like a crash.
fn crash_after(world: &mut World, writes: usize) {
    if let Verdict::Act { actions, .. } = world.judge().verdict {
        let steps: Vec<Step> = actions.iter().flat_map(|a| a.steps().to_vec()).collect();
        for step in steps.iter().take(writes) {
            world.carry_out(step);
        }
    }
    world.memory = Memory::default();
}

fn happen(world: &mut World, what: &Happening) {
    let chosen = |world: &World, nth: usize| {
        let open = world.open();
        (!open.is_empty()).then(|| open[nth % open.len()])
    };
    let unfinished = world.job.status.finished().is_none();
    match what {
        Happening::Succeed(nth) => {
            if let Some(position) = chosen(world, *nth) {
                world.end(position, PodPhase::Succeeded);
                world.sweep();
            }
        }
        Happening::Fail(nth) => {
            if let Some(position) = chosen(world, *nth) {
                world.end(position, PodPhase::Failed);
                world.sweep();
            }
        }
        Happening::Delete(nth) => {
            if let Some(position) = chosen(world, *nth) {
                if world.pod(position).deletion.is_none() {
                    world.delete(position);
                }
                world.sweep();
            }
        }
        Happening::Suspend if unfinished => world.job.spec.suspend = true,
        Happening::Resume => world.job.spec.suspend = false,
        Happening::Parallelism(n) if !world.job.spec.is_indexed() => world.job.spec.parallelism = Some(*n),
        Happening::Resize(n)
            if world.job.spec.is_indexed() && world.job.spec.parallelism == world.job.spec.completions =>
        {
            (world.job.spec.parallelism, world.job.spec.completions) = (Some(*n), Some(*n));
        }
        Happening::SwitchPolicy => {
            use crate::job::PodReplacementPolicy::{Failed, TerminatingOrFailed};
            let next = if world.job.spec.pod_replacement_policy == Some(Failed) {
                TerminatingOrFailed
            } else {
                Failed
            };
            world.job.spec.pod_replacement_policy = Some(next);
        }
        Happening::SwitchGate => world.policy.replacement_policy = !world.policy.replacement_policy,
        Happening::CrashAfter(writes) => crash_after(world, *writes),
        Happening::Wait(seconds) => {
            world.now = world.now.checked_add(SignedDuration::from_secs(*seconds)).unwrap();
        }
        Happening::Settle => {
            world.settle();
        }
        Happening::Suspend | Happening::Parallelism(_) | Happening::Resize(_) => {}
    }
    world.touch_job();
}

/// Lets everything finish: blocked pods lose their finalizer, and enough time passes.
fn come_to_rest(world: &mut World) {
    world.policy.replacement_policy = true;
    for _ in 0..4 {
        world.unblock();
        world.later(3);
    }
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn counts_never_lie(start in start(), history in prop::collection::vec(happening(), 1..40)) {
        let mut world = start.world();
        let mut ever = BTreeMap::new();
        for what in &history {
            happen(&mut world, what);
            for pod in &world.pods {
                ever.insert(pod.pod.uid.clone(), pod.phase);
            }
        }
        come_to_rest(&mut world);
        // The world checks every status write against the API server's rules.
        let status = &world.job.status;
        prop_assert!(world.listed.values().all(|n| *n == 1), "a pod was written down twice: {:?}", world.listed);
        let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
        let counted = world.listed.len() - uncounted.len();
        if !world.job.spec.is_indexed() {
            prop_assert_eq!(usize::try_from(status.succeeded + status.failed).unwrap(), counted);
            let succeeded = ever.values().filter(|phase| **phase == PodPhase::Succeeded).count();
            prop_assert!(usize::try_from(status.succeeded).unwrap() <= succeeded);
        } else {
            prop_assert_eq!(usize::try_from(status.failed).unwrap(), counted);
        }
        if status.finished().is_some() {
            prop_assert!(world.pods.iter().all(|p| !p.is_tracked() && p.phase.is_terminal()), "{:?}", world.pods);
        } else {
            let active = world.pods.iter().filter(|p| !p.phase.is_terminal() && p.deletion.is_none()).count();
            prop_assert_eq!(usize::try_from(status.active).unwrap(), active);
        }
    }

    /// Every Job finishes as long as its pods succeed.
    #[test]
    fn every_job_can_end(start in start(), history in prop::collection::vec(happening(), 0..20)) {
        let mut world = start.world();
        for what in &history {
            happen(&mut world, what);
        }
        world.job.spec.suspend = false;
        if world.job.spec.parallelism == Some(0) {
            world.job.spec.parallelism = Some(1);
        }
        for _ in 0..40 {
            world.unblock();
            world.later(700);
            while let Some(position) = world.open().first() {
                world.end(*position, PodPhase::Succeeded);
                world.sweep();
            }
        }
        prop_assert!(world.job.status.finished().is_some(), "{:?} {:?}", world.job, world.judge());
    }

    /// Judged on an old view of the pods, a Job asks for nothing that would be there twice.
    #[test]
    fn an_old_view_makes_no_second_pod(start in start(), history in prop::collection::vec(happening(), 0..10)) {
        let mut world = start.world();
        for what in &history {
            happen(&mut world, what);
        }
        let names = |world: &World| -> Vec<String> {
            let steps = world.judge().verdict.actions().to_vec().into_iter().flat_map(|a| a.steps().to_vec());
            steps.filter_map(|a| if let Step::CreatePod { name, .. } = a { Some(name) } else { None }).collect()
        };
        let before = names(&world);
        let mut after = world.clone();
        if let Verdict::Act { actions, .. } = after.judge().verdict {
            for action in &actions {
                after.carry_out(action);
            }
        }
        let known: Vec<_> = after.pods.iter().map(|p| p.pod.name.clone()).collect();
        prop_assert!(before.iter().all(|name| known.contains(name)));
        prop_assert_eq!(names(&world), before, "the old view asks for the same names again");
    }
}
