//! Every write of the zombie recovery, a crash before and after it, and each of those under every fault: the end is the
//! same as without, and nothing is written twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::Method;
use salvor_api::config::Configuration;
use salvor_embedded::{Effect, Fault, Faults};
use salvor_simulate::{CrashPoint, Line, Process, in_virtual_time};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use crate::stage::{DELETE, Stage, TERMINATE, annotated, configuration};

/// How a recovery goes, and how many writes that takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// The pod becomes Failed.
    Terminate,
    /// It is deleted as well.
    Delete,
    /// The same with a finalizer that holds it.
    DeleteHeld,
    /// The node is declared out of service, and taken back when it is heard again.
    OutOfService,
}

impl Flow {
    fn writes(self) -> u32 {
        match self {
            // Status and event.
            Self::Terminate => 2,
            // Status, event and delete.
            Self::Delete | Self::DeleteHeld => 3,
            // Taint and event; later the other way round.
            Self::OutOfService => 4,
        }
    }

    /// No crash, and a crash on either side of every write.
    fn crash_points(self) -> Vec<Option<CrashPoint>> {
        let of_write = |n| [Some(CrashPoint::Before(n)), Some(CrashPoint::After(n))];
        [None].into_iter().chain((1..=self.writes()).flat_map(of_write)).collect()
    }

    fn configuration(self) -> Configuration {
        let rules = match self {
            Self::OutOfService => {
                "[{taintNodeOutOfService: {nodeSelector: {matchLabels: {pool: batch}}, unreachableNodeTimeout: 60s}}]"
            }
            _ => "[]",
        };
        // A new process must wait for the lease of the one that died. Renewals are most of what happens here, so few.
        configuration(&format!(
            "leaderElection: {{leaseDuration: 60s, renewDeadline: 40s, retryPeriod: 20s}}
failureRecoveryPolicy: {{rules: {rules}}}"
        ))
    }
}

/// What goes wrong besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    /// Every kind of call is struck by this once in the life of a process.
    Struck(Effect),
    /// Whoever takes an old answer gets one; Salvor must not be among them.
    Stale,
    /// Nothing is answered while the recovery comes due.
    Pause,
}

/// Longer than any time-out of the operator's.
const VERY_LATE: Duration = Duration::from_secs(100);

const TROUBLES: [Trouble; 16] = [
    Trouble::None,
    Trouble::Struck(Effect::Delay(Duration::from_secs(3))),
    Trouble::Struck(Effect::Delay(VERY_LATE)),
    Trouble::Struck(Effect::Conflict),
    Trouble::Struck(Effect::TooManyRequests(7)),
    Trouble::Struck(Effect::InternalError),
    Trouble::Struck(Effect::Unavailable),
    Trouble::Struck(Effect::AnswerLost),
    Trouble::Struck(Effect::RequestLost),
    Trouble::Struck(Effect::Unanswered { carried_out: true }),
    Trouble::Struck(Effect::Unanswered { carried_out: false }),
    Trouble::Struck(Effect::CutAfter(0)),
    Trouble::Struck(Effect::CutAfter(1)),
    Trouble::Struck(Effect::Expired),
    Trouble::Stale,
    Trouble::Pause,
];

impl Trouble {
    /// Whether something may be done that the process never learns of.
    fn hides_answers(self) -> bool {
        matches!(self, Self::Struck(Effect::AnswerLost | Effect::Unanswered { carried_out: true }))
    }

    /// Brings it upon a process that starts now.
    fn begin(self, faults: &Faults) {
        faults.clear();
        let strike = |effect: Effect, method: Method, path: &str, times: u32| {
            faults.add(Fault::new(effect).method(method).path(path).times(times));
        };
        match self {
            Self::None => {}
            Self::Struck(effect) => {
                strike(effect, Method::PATCH, "/status", 1);
                strike(effect, Method::PATCH, "/nodes/", 1);
                strike(effect, Method::POST, "/events", 1);
                strike(effect, Method::DELETE, "/pods/", 1);
                strike(effect, Method::PUT, "/leases/salvor", 1);
                // A read meets no conflict.
                if effect != Effect::Conflict {
                    strike(effect, Method::GET, "/leases/", 2);
                    strike(effect, Method::GET, "/nodes/node", 1);
                    strike(effect, Method::GET, "limit=", 2);
                    strike(effect, Method::GET, "watch=true", 4);
                }
            }
            Self::Stale => strike(Effect::Stale(20), Method::GET, "", u32::MAX),
            Self::Pause => {
                let faults = faults.clone();
                tokio::spawn(async move {
                    sleep(Duration::from_secs(55)).await;
                    faults.pause();
                    sleep(Duration::from_secs(40)).await;
                    faults.resume();
                });
            }
        }
    }
}

/// What a story came to.
#[derive(Debug, PartialEq)]
struct Ending {
    objects: BTreeMap<String, Value>,
    changes: BTreeMap<String, usize>,
}

/// Plays a recovery to its end; a process that dies is started again.
async fn play(flow: Flow, crash: Option<CrashPoint>, trouble: Trouble) -> (Ending, u32) {
    let stage = Stage::new(1).await;
    stage.node("node").await;
    stage.lose("node").await;
    match flow {
        Flow::Terminate => stage.terminating("zombie", "node", annotated(TERMINATE)).await,
        Flow::Delete => stage.terminating("zombie", "node", annotated(DELETE)).await,
        Flow::DeleteHeld => {
            let mut held = annotated(DELETE);
            held["metadata"]["finalizers"] = json!(["test.salvor.dev/hold"]);
            stage.terminating("zombie", "node", held).await;
        }
        Flow::OutOfService => {}
    }
    let configuration = flow.configuration();
    let faults = Faults::default();
    let start = |life: u32, line: Line| {
        trouble.begin(&faults);
        Process::start(&stage.cluster, &format!("salvor-{life}"), &configuration, line, &faults)
    };
    let mut process = start(1, crash.map(Line::dying).unwrap_or_default());
    let mut lives = 1;
    let mut live = async |seconds: u64| {
        let end = Instant::now() + Duration::from_secs(seconds);
        loop {
            let line = process.line().clone();
            tokio::select! {
                biased;
                () = line.died() => {
                    lives += 1;
                    process = start(lives, Line::default());
                }
                () = sleep_until(end) => return,
            }
        }
    };
    live(900).await;
    if flow == Flow::OutOfService {
        trouble.begin(&faults);
        stage.comes_back("node").await;
        // A kubelet goes on renewing its Lease.
        for _ in 0..60 {
            live(10).await;
            stage.renews("node").await;
        }
    }
    process.stop().await;
    (Ending { objects: stage.end(), changes: stage.changes() }, lives)
}

/// What differs between two endings, in a line each.
fn differences(ending: &Ending, undisturbed: &Ending, blinded: bool) -> Vec<String> {
    let mut found = Vec::new();
    let names: BTreeSet<_> = ending.changes.keys().chain(undisturbed.changes.keys()).collect();
    for what in names {
        let times = |of: &Ending| of.changes.get(what).copied().unwrap_or(0);
        // With the taint goes our mark, and with that all that tells of the incident: a process that dies right then, or
        // never learns that the taint is off, leaves the node's return untold.
        let may_be_missing = blinded && what == "Added events node-back-in-service";
        if times(ending) != times(undisturbed) && !(may_be_missing && times(ending) == 0) {
            found.push(format!("{what} {} times instead of {}", times(ending), times(undisturbed)));
        }
    }
    for (name, object) in &undisturbed.objects {
        if ending.objects.get(name).is_some_and(|left| left != object) {
            found.push(format!("in the end {name} is {}\n    instead of {object}", ending.objects[name]));
        }
    }
    found
}

fn all_points_of(flow: Flow) {
    let (undisturbed, _) = in_virtual_time(play(flow, None, Trouble::None));
    let told = undisturbed.changes.iter().filter(|(what, _)| what.starts_with("Added events")).count();
    assert_eq!(told, if flow == Flow::OutOfService { 2 } else { 1 }, "{undisturbed:#?}");
    let mut wrong = Vec::new();
    for trouble in TROUBLES {
        for crash in flow.crash_points() {
            let (ending, lives) = in_virtual_time(play(flow, crash, trouble));
            let mut found = differences(&ending, &undisturbed, crash.is_some() || trouble.hides_answers());
            if lives != 1 + u32::from(crash.is_some()) {
                found.push(format!("{lives} lives"));
            }
            if !found.is_empty() {
                wrong.push(format!("{flow:?}, crash {crash:?}, {trouble:?}:\n  {}", found.join("\n  ")));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} endings are not as without crash and trouble:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn a_pod_that_is_failed() {
    all_points_of(Flow::Terminate);
}

#[test]
fn a_pod_that_is_failed_and_deleted() {
    all_points_of(Flow::Delete);
}

#[test]
fn a_pod_that_is_failed_and_deleted_and_held_by_a_finalizer() {
    all_points_of(Flow::DeleteHeld);
}

#[test]
fn a_node_that_is_taken_out_of_service_and_back() {
    all_points_of(Flow::OutOfService);
}
