//! The same history of a Job, once under the built-in controller and once under ours: they must end alike.
//!
//! A history is a Job's spec and what happens to it and its pods, drawn from a seed. `SALVOR_TEST_HISTORIES` plays more of
//! them, `SALVOR_TEST_SEED` others. What differs on purpose is listed in `docs/jobs.md`.

use std::{env, fmt, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::api::DeleteParams;
use salvor_testkit::wait;
use serde_json::{Value, json};

use crate::stage::{Stage, blocked_template, conditions, index, is_over};

/// Histories under way at once: enough to keep two cores busy, most of them wait.
const AT_ONCE: usize = 40;

/// What happens to a Job or to the n-th of its pods that are alive.
#[derive(Clone, Debug)]
enum Happening {
    Succeeds(usize),
    Fails(usize, i32),
    IsDisrupted(usize),
    IsDeleted(usize),
    /// The n-th of the pods that are terminating ends.
    Ends(usize, i32),
    /// All that is terminating goes away.
    Vanish,
    Suspend,
    Resume,
    Parallelism(i32),
    Resize(i32),
    Policy(&'static str),
}

#[derive(Clone, Debug)]
struct History {
    seed: u64,
    spec: Value,
    happenings: Vec<Happening>,
}

/// A small generator of numbers, the same from the same seed everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn up_to(&mut self, most: u64) -> i32 {
        i32::try_from(self.roll(most + 1)).unwrap()
    }

    fn happens(&mut self, times: u64, of: u64) -> bool {
        self.roll(of) < times
    }

    fn position(&mut self) -> usize {
        usize::try_from(self.roll(8)).unwrap()
    }
}

impl History {
    fn draw(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let indexed = dice.happens(1, 2);
        let mut spec = json!({
            "parallelism": 1 + dice.up_to(2), "completions": 1 + dice.up_to(3), "backoffLimit": dice.up_to(5),
            "template": blocked_template(),
        });
        if indexed {
            spec["completionMode"] = "Indexed".into();
            if dice.happens(1, 3) {
                spec["parallelism"] = spec["completions"].clone();
            }
            if dice.happens(1, 3) {
                spec["backoffLimitPerIndex"] = dice.up_to(2).into();
                if dice.happens(1, 2) {
                    spec["maxFailedIndexes"] = dice.up_to(1).into();
                }
            }
            if dice.happens(1, 4) {
                spec["successPolicy"] = json!({"rules": [{"succeededCount": 1}]});
            }
        } else if dice.happens(1, 5) {
            spec["completions"] = Value::Null;
        }
        if dice.happens(1, 4) {
            spec["podFailurePolicy"] = json!({"rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
            ]});
        } else if dice.happens(1, 2) {
            spec["podReplacementPolicy"] =
                if dice.happens(1, 2) { "Failed" } else { "TerminatingOrFailed" }.into();
        }
        let resizes = indexed && spec["parallelism"] == spec["completions"];
        let any_policy = spec["podFailurePolicy"].is_null();
        let happenings = (0..3 + dice.roll(6))
            .map(|_| match dice.roll(20) {
                0..=5 => Happening::Succeeds(dice.position()),
                6..=9 => Happening::Fails(dice.position(), if dice.happens(1, 3) { 42 } else { 1 }),
                10 => Happening::IsDisrupted(dice.position()),
                11..=13 => Happening::IsDeleted(dice.position()),
                14 => Happening::Ends(dice.position(), dice.up_to(1)),
                15 => Happening::Vanish,
                16 => Happening::Suspend,
                17 => Happening::Resume,
                18 if resizes => Happening::Resize(1 + dice.up_to(3)),
                18 => Happening::Parallelism(1 + dice.up_to(3)),
                _ if any_policy => {
                    Happening::Policy(if dice.happens(1, 2) { "Failed" } else { "TerminatingOrFailed" })
                }
                _ => Happening::Succeeds(dice.position()),
            })
            .collect();
        Self { seed, spec, happenings }
    }
}

/// All of a Job that its users see.
#[derive(Clone, PartialEq, Eq)]
struct Seen {
    counts: String,
    conditions: String,
    completed: String,
    failed: String,
    started: bool,
    alive: Vec<Option<u32>>,
    terminating: Vec<Option<u32>>,
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counts, conditions, completed, failed, started, alive, terminating } = self;
        write!(
            f,
            "{counts} [{conditions}] completed={completed:?} failed={failed:?} started={started} alive={alive:?} terminating={terminating:?}"
        )
    }
}

fn seen(job: &Job, pods: &[Pod]) -> Seen {
    let status = job.status.clone().unwrap_or_default();
    let mut conditions: Vec<String> = conditions(job).split(' ').map(Into::into).collect();
    conditions.sort();
    let places = |terminating: bool| {
        let open =
            pods.iter().filter(|p| !is_over(p) && p.metadata.deletion_timestamp.is_some() == terminating);
        let mut places: Vec<_> = open.map(index).collect();
        places.sort_unstable();
        places
    };
    Seen {
        counts: crate::stage::counts(job),
        conditions: conditions.join(" "),
        completed: status.completed_indexes.unwrap_or_default(),
        failed: status.failed_indexes.unwrap_or_default(),
        started: status.start_time.is_some(),
        alive: places(false),
        terminating: places(true),
    }
}

/// Whether a controller still owes the Job something that can be seen from outside.
fn is_at_rest(job: &Job, pods: &[Pod]) -> bool {
    let status = job.status.clone().unwrap_or_default();
    let uncounted = status.uncounted_terminated_pods.unwrap_or_default();
    let listed = |list: Option<Vec<String>>| list.unwrap_or_default().len();
    let alive = pods.iter().filter(|p| !is_over(p) && p.metadata.deletion_timestamp.is_none()).count();
    listed(uncounted.failed) + listed(uncounted.succeeded) == 0
        && status.active.unwrap_or(0) == i32::try_from(alive).unwrap()
        && status.ready.is_some()
}

struct Play<'a> {
    stage: &'a Stage<'static>,
    history: History,
    names: [String; 2],
}

impl Play<'_> {
    async fn look(&self, name: &str) -> (Job, Vec<Pod>) {
        (self.stage.jobs.get(name).await.unwrap(), self.stage.all_pods(name).await)
    }

    /// Waits until both Jobs are at rest and look alike, and have for longer than the built-in controller ever waits
    /// before it looks at a Job again; what they look like.
    async fn agree(&self, after: &str) -> Result<Seen, String> {
        // Two of its seconds of batching.
        const STEADY: u32 = 9;
        let (mut last, mut steady) = (None, 0);
        let agreed = wait::patience().until(async {
            loop {
                let [(a, a_pods), (b, b_pods)] =
                    [self.look(&self.names[0]).await, self.look(&self.names[1]).await];
                let (left, right) = (seen(&a, &a_pods), seen(&b, &b_pods));
                let alike = left == right && is_at_rest(&a, &a_pods) && is_at_rest(&b, &b_pods);
                let now = Some((left, right));
                steady = if alike && now == last { steady + 1 } else { 0 };
                last = now;
                if steady >= STEADY {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        });
        let finished = agreed.await;
        let (left, right) = last.ok_or("nothing was seen")?;
        match finished {
            Some(()) => Ok(left),
            None => Err(format!(
                "seed {}, after {after}:\n  built-in {left:?}\n  ours     {right:?}\n  {:?}",
                self.history.seed, self.history
            )),
        }
    }

    async fn happen(&self, name: &str, what: &Happening) {
        let stage = self.stage;
        let pods = stage.all_pods(name).await;
        let open = |terminating: bool| {
            let mut open: Vec<&Pod> = pods
                .iter()
                .filter(|p| !is_over(p) && p.metadata.deletion_timestamp.is_some() == terminating)
                .collect();
            open.sort_by_key(|p| (index(p), p.metadata.creation_timestamp.as_ref().map(|t| t.0)));
            open
        };
        let pick = |nth: &usize, terminating: bool| {
            let open = open(terminating);
            (!open.is_empty()).then(|| open[nth % open.len()].clone())
        };
        match what {
            Happening::Succeeds(nth) => {
                if let Some(pod) = pick(nth, false) {
                    stage.end_long_ago(&pod, 0, json!([])).await;
                }
            }
            Happening::Fails(nth, code) => {
                if let Some(pod) = pick(nth, false) {
                    stage.end_long_ago(&pod, *code, json!([])).await;
                }
            }
            Happening::IsDisrupted(nth) => {
                if let Some(pod) = pick(nth, false) {
                    let disrupted = json!([{"type": "DisruptionTarget", "status": "True", "reason": "Test"}]);
                    stage.end_long_ago(&pod, 1, disrupted).await;
                }
            }
            Happening::IsDeleted(nth) => {
                if let Some(pod) = pick(nth, false) {
                    stage.delete(&pod).await;
                }
            }
            Happening::Ends(nth, code) => {
                if let Some(pod) = pick(nth, true) {
                    stage.end_long_ago(&pod, *code, json!([])).await;
                }
            }
            Happening::Vanish => {
                for pod in open(true) {
                    stage.unblock(pod).await;
                }
            }
            Happening::Suspend => stage.change(name, json!({"suspend": true})).await,
            Happening::Resume => stage.change(name, json!({"suspend": false})).await,
            Happening::Parallelism(n) => stage.change(name, json!({"parallelism": n})).await,
            Happening::Resize(n) => stage.change(name, json!({"parallelism": n, "completions": n})).await,
            Happening::Policy(policy) => stage.change(name, json!({"podReplacementPolicy": policy})).await,
        }
    }

    async fn run(&self) -> Result<(), String> {
        for (name, managed_by) in
            self.names.iter().zip(["kubernetes.io/job-controller", "salvor.dev/job-controller"])
        {
            let mut spec = self.history.spec.clone();
            spec["managedBy"] = managed_by.into();
            self.stage.job(name, spec).await;
        }
        let mut seen = self.agree("its creation").await?;
        for what in &self.history.happenings {
            let finished = seen.conditions.contains("Complete(") || seen.conditions.contains("Failed(");
            if finished {
                break;
            }
            for name in &self.names {
                self.happen(name, what).await;
            }
            seen = self.agree(&format!("{what:?}")).await?;
        }
        for name in &self.names {
            self.stage.jobs.delete(name, &DeleteParams::background()).await.unwrap();
            for pod in self.stage.all_pods(name).await {
                self.stage.unblock(&pod).await;
            }
        }
        Ok(())
    }
}

fn number(variable: &str, otherwise: u64) -> u64 {
    env::var(variable).ok().map_or(otherwise, |text| text.parse().unwrap())
}

#[tokio::test]
async fn every_history_ends_as_under_the_built_in_controller() {
    let stage = Stage::new("alike").await;
    let first = number("SALVOR_TEST_SEED", 0);
    let count = number("SALVOR_TEST_HISTORIES", 24);
    let plays = (first..first + count).map(|seed| {
        let play = Play {
            stage: &stage,
            history: History::draw(seed),
            names: [format!("theirs-{seed}"), format!("ours-{seed}")],
        };
        async move { play.run().await }
    });
    let results: Vec<Result<(), String>> = stream::iter(plays).buffer_unordered(AT_ONCE).collect().await;
    let differences: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    assert!(differences.is_empty(), "{} of {count} differ:\n{}", differences.len(), differences.join("\n"));
}
