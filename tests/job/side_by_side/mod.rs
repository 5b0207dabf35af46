//! Plays the same history of a Job under the built-in controller and under Salvor. After every event both must reach
//! the same state.
//!
//! `SALVOR_TEST_HISTORIES` plays more histories, `SALVOR_TEST_SEED` others. Intended differences are listed in
//! [`OnPurpose`] and explained in `docs/guides/jobs.md`.

use std::{env, panic::AssertUnwindSafe, time::Duration};

use futures::{FutureExt, StreamExt, stream};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use salvor_testkit::{
    Mirror, Site,
    wait::{Patience, patience},
};
use serde_json::json;

use self::{
    history::{Happening, Held, History},
    seen::{OnPurpose, Seen, open},
};
use crate::stage::{Stage, index};

mod history;
mod seen;

/// Histories in parallel: most of them wait, for the built-in controller one second each time.
const AT_ONCE: usize = 64;
/// Histories that differed are played again with less parallelism. A real difference remains.
const AT_ONCE_AGAIN: usize = 4;
/// The number of consecutive reads for which both must be equal and unchanged. Reads and not time, because a test that
/// stalled has read nothing. The built-in controller delays its reaction to a pod by a second. Its pending work is
/// visible in most cases, and then the test waits for it without a limit.
const STEADY: u32 = 14;
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A history must agree within this time at first. Otherwise it is played again with more time.
const FIRST_PATIENCE: Duration = Duration::from_secs(25);

/// Where all histories are played, and the shared watches.
struct Theatre {
    stage: Stage<'static>,
    jobs: Mirror<Job>,
    pods: Mirror<Pod>,
}

impl Theatre {
    async fn open() -> Self {
        let stage = Stage::new(Site::Real, "alike").await;
        let all = ListParams::default();
        let (jobs, pods) = (Mirror::start(&stage.jobs, &all).await, Mirror::start(&stage.pods, &all).await);
        Self { stage, jobs, pods }
    }

    fn pods_of(&self, name: &str) -> Vec<Pod> {
        self.pods.named_like(self.stage.arena.namespace(), &format!("{name}-"))
    }

    fn see(&self, name: &str) -> Option<Seen> {
        let jobs = self.jobs.named_like(self.stage.arena.namespace(), name);
        Some(Seen::of(jobs.first()?, &self.pods_of(name)))
    }
}

/// The states of two Jobs after an event.
enum Agreement {
    Alike(Seen),
    Differ(OnPurpose),
}

struct Play<'a> {
    theatre: &'a Theatre,
    history: History,
    names: [String; 2],
    patience: Patience,
}

impl<'a> Play<'a> {
    fn new(theatre: &'a Theatre, seed: u64, round: &str, patience: Patience) -> Self {
        Self {
            theatre,
            history: History::draw(seed),
            names: [format!("theirs-{round}-{seed:06}"), format!("ours-{round}-{seed:06}")],
            patience,
        }
    }

    /// Waits until both Jobs are at rest and equal for a while, or differ as intended.
    async fn agree(&self, after: &str) -> Result<Agreement, String> {
        let mut last = None;
        let mut steady = 0;
        let agreed = self.patience.until(async {
            loop {
                if let (Some(theirs), Some(ours)) =
                    (self.theatre.see(&self.names[0]), self.theatre.see(&self.names[1]))
                {
                    let on_purpose = OnPurpose::between(&theirs, &ours);
                    let settled = theirs.agrees_with(&ours) || on_purpose.is_some();
                    let now = Some((theirs, ours));
                    steady = if settled && now == last { steady + 1 } else { 0 };
                    last = now;
                    if steady >= STEADY {
                        return on_purpose;
                    }
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        let agreed = agreed.await;
        let (theirs, ours) = last.ok_or("nothing was seen")?;
        match agreed {
            Some(None) => Ok(Agreement::Alike(ours)),
            Some(Some(on_purpose)) => Ok(Agreement::Differ(on_purpose)),
            None => Err(format!(
                "seed {}, after {after}:\n  built-in {theirs:?}\n  ours     {ours:?}\n  {:?}",
                self.history.seed, self.history
            )),
        }
    }

    async fn happen(&self, name: &str, what: &Happening) {
        let stage = &self.theatre.stage;
        let pods = self.theatre.pods_of(name);
        let nth = |nth: &usize, terminating: bool| {
            let mut open: Vec<&Pod> = open(&pods, terminating).collect();
            // Pods of the same kind at the same position are equivalent for both.
            open.sort_by_key(|p| {
                (index(p), is_ready(p), p.metadata.creation_timestamp.as_ref().map(|t| t.0))
            });
            (!open.is_empty()).then(|| open[nth % open.len()].clone())
        };
        // Without a time the condition would look old, and the disruption controller would remove it.
        let since = k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let disrupted = |reason: &str| json!({"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": since});
        match what {
            Happening::Succeeds(at) => {
                if let Some(pod) = nth(at, false) {
                    stage.end_long_ago(&pod, 0, json!([])).await;
                }
            }
            Happening::Fails(at, code) => {
                if let Some(pod) = nth(at, false) {
                    stage.end_long_ago(&pod, *code, json!([])).await;
                }
            }
            Happening::IsReady(at) => {
                if let Some(pod) = nth(at, false) {
                    stage.ready(&pod).await;
                }
            }
            Happening::Restarts(at, times) => {
                if let Some(pod) = nth(at, false) {
                    stage.restarted(&pod, *times).await;
                }
            }
            Happening::IsDisrupted(at) => {
                if let Some(pod) = nth(at, false) {
                    stage.end_long_ago(&pod, 1, json!([disrupted("Test")])).await;
                }
            }
            Happening::IsDeleted(at) => {
                if let Some(pod) = nth(at, false) {
                    stage.not_ready_long_ago(&pod, json!([])).await;
                    stage.delete(&pod).await;
                }
            }
            Happening::LosesItsNode(at) => {
                if let Some(pod) = nth(at, false) {
                    stage.not_ready_long_ago(&pod, json!([disrupted("DeletionByTaintManager")])).await;
                    stage.delete(&pod).await;
                }
            }
            Happening::Ends(at, code) => {
                if let Some(pod) = nth(at, true) {
                    stage.end_long_ago(&pod, *code, json!([])).await;
                    self.take_away(&pod).await;
                }
            }
            Happening::IsCollected(at) => {
                if let Some(pod) = nth(at, true) {
                    stage.collected(&pod, json!([disrupted("DeletionByPodGC")])).await;
                    self.take_away(&pod).await;
                }
            }
            Happening::Vanish => {
                for pod in open(&pods, true) {
                    self.take_away(pod).await;
                }
            }
            Happening::Suspend => stage.change(name, json!({"suspend": true})).await,
            Happening::Resume => stage.change(name, json!({"suspend": false})).await,
            Happening::Parallelism(n) => stage.change(name, json!({"parallelism": n})).await,
            Happening::Resize(n) => stage.change(name, json!({"parallelism": n, "completions": n})).await,
            Happening::BackoffLimit(n) => stage.change(name, json!({"backoffLimit": n})).await,
            Happening::Deadline => stage.change(name, json!({"activeDeadlineSeconds": 1})).await,
            Happening::Policy(policy) => stage.change(name, json!({"podReplacementPolicy": policy})).await,
        }
    }

    /// Removes what keeps a Terminating pod.
    async fn take_away(&self, pod: &Pod) {
        match self.history.held {
            Held::ByFinalizer => self.theatre.stage.unblock(pod).await,
            Held::ByKubelet => {
                // The pod may already be gone.
                let at_once = DeleteParams::default().grace_period(0);
                let _ = self.theatre.stage.pods.delete(&pod.name_any(), &at_once).await;
            }
        }
    }

    async fn run(&self) -> Result<Option<OnPurpose>, String> {
        let stage = &self.theatre.stage;
        for (name, managed_by) in
            self.names.iter().zip(["kubernetes.io/job-controller", "salvor.dev/job-controller"])
        {
            let mut spec = self.history.spec.clone();
            spec["managedBy"] = managed_by.into();
            stage.job(name, spec).await;
        }
        let mut seen = self.agree("its creation").await?;
        for what in &self.history.happenings {
            match &seen {
                Agreement::Alike(seen) if seen.finished => break,
                Agreement::Alike(_) => {}
                Agreement::Differ(_) => break,
            }
            for name in &self.names {
                self.happen(name, what).await;
            }
            seen = self.agree(&format!("{what:?}")).await?;
        }
        for name in &self.names {
            stage.jobs.delete(name, &DeleteParams::background()).await.unwrap();
            for pod in self.theatre.pods_of(name) {
                self.take_away(&pod).await;
            }
        }
        Ok(match seen {
            Agreement::Alike(_) => None,
            Agreement::Differ(on_purpose) => Some(on_purpose),
        })
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn number(variable: &str, otherwise: u64) -> u64 {
    env::var(variable).ok().map_or(otherwise, |text| text.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_history_ends_as_under_the_built_in_controller() {
    let theatre = Theatre::open().await;
    let first = number("SALVOR_TEST_SEED", 0);
    let count = number("SALVOR_TEST_HISTORIES", 200);
    let play = async |seed: u64, round: &str, patience: Patience| {
        let play = Play::new(&theatre, seed, round, patience);
        // A write to a pod that was read too late may be refused. This says nothing about the controllers either.
        let played = AssertUnwindSafe(play.run()).catch_unwind().await;
        (seed, played.unwrap_or_else(|_| Err(format!("seed {seed}: the test itself failed, see above"))))
    };
    let plays = (first..first + count).map(|seed| play(seed, "a", Patience::of(FIRST_PATIENCE)));
    let played: Vec<_> = stream::iter(plays).buffer_unordered(AT_ONCE).collect().await;
    let doubtful: Vec<u64> =
        played.iter().filter(|(_, result)| result.is_err()).map(|(seed, _)| *seed).collect();
    let again = doubtful.iter().map(|seed| play(*seed, "b", patience()));
    let again: Vec<_> = stream::iter(again).buffer_unordered(AT_ONCE_AGAIN).collect().await;

    let differences: Vec<&str> =
        again.iter().filter_map(|(_, result)| result.as_ref().err()).map(String::as_str).collect();
    assert!(differences.is_empty(), "{} of {count} differ:\n{}", differences.len(), differences.join("\n"));
    let on_purpose = played.iter().chain(&again).filter(|(_, result)| matches!(result, Ok(Some(_)))).count();
    assert!(
        on_purpose * 10 <= played.len(),
        "{on_purpose} of {count} histories show nothing else than what is meant"
    );
}
