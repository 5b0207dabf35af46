//! What goes wrong around a process, and the end that a story must reach all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use http::Method;
use salvor_api::config::Configuration;
use salvor_apiserver::{Effect, Fault, Faults};
use salvor_simulate::{CrashPoint, Line, Process, in_virtual_time};
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use crate::stage::Stage;

/// What goes wrong besides crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    None,
    /// Every kind of call meets this effect once in the life of a process.
    Struck(Effect),
    /// Every call is delayed.
    Slow(Duration),
    /// Callers that accept a stale answer get one; Salvor must not be among them.
    Stale,
    /// Nothing is answered from the moment at which the recovery becomes due.
    Pause,
}

/// Longer than any time-out of the operator.
const VERY_LATE: Duration = Duration::from_secs(100);

pub(crate) const TROUBLES: [Trouble; 17] = [
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
    Trouble::Slow(Duration::from_millis(300)),
    Trouble::Stale,
    Trouble::Pause,
];

impl Trouble {
    /// True if a write may succeed without the process learning of it.
    pub(crate) fn hides_answers(self) -> bool {
        matches!(self, Self::Struck(Effect::AnswerLost | Effect::Unanswered { carried_out: true }))
    }

    /// True if a leader may lose its lease because of it.
    pub(crate) fn deposes(self) -> bool {
        matches!(self, Self::Struck(Effect::Delay(VERY_LATE) | Effect::Unanswered { .. }) | Self::Pause)
    }

    /// Applies it to a process that starts now and whose recovery becomes due after `due`.
    fn begin(self, faults: &Faults, due: Duration) {
        faults.clear();
        let strike = |effect: Effect, method: Method, path: &str, times: u32| {
            faults.add(Fault::new(effect).method(method).path(path).times(times));
        };
        match self {
            Self::None => {}
            Self::Struck(effect) => {
                strike(effect, Method::PATCH, "/status", 1);
                strike(effect, Method::PATCH, "/pods/", 1);
                strike(effect, Method::PATCH, "/nodes/", 2);
                strike(effect, Method::POST, "/events", 1);
                strike(effect, Method::DELETE, "/pods/", 1);
                strike(effect, Method::PATCH, "/appwrappers/", 2);
                strike(effect, Method::POST, "/jobs", 1);
                strike(effect, Method::DELETE, "/jobs/", 1);
                strike(effect, Method::PATCH, "/nodeclaims/", 1);
                strike(effect, Method::DELETE, "/nodeclaims/", 1);
                strike(effect, Method::PATCH, "/noderepairpolicies/", 2);
                strike(effect, Method::PUT, "/leases/salvor", 1);
                // A read meets no conflict.
                if effect != Effect::Conflict {
                    strike(effect, Method::GET, "/leases/", 2);
                    strike(effect, Method::GET, "/nodes/node", 1);
                    strike(effect, Method::GET, "/appwrappers/", 2);
                    strike(effect, Method::GET, "/nodeclaims/", 1);
                    strike(effect, Method::GET, "/noderepairpolicies/", 1);
                    strike(effect, Method::GET, "limit=", 2);
                    strike(effect, Method::GET, "watch=true", 4);
                }
            }
            Self::Slow(delay) => faults.add(Fault::new(Effect::Delay(delay))),
            Self::Stale => strike(Effect::Stale(20), Method::GET, "", u32::MAX),
            Self::Pause => {
                let faults = faults.clone();
                tokio::spawn(async move {
                    sleep(due).await;
                    faults.pause();
                    sleep(Duration::from_secs(40)).await;
                    faults.resume();
                });
            }
        }
    }
}

/// A Salvor in trouble: a process that dies is restarted.
pub(crate) struct Salvor<'a> {
    stage: &'a Stage,
    configuration: Configuration,
    trouble: Trouble,
    due: Duration,
    faults: Faults,
    process: Process,
    lives: u32,
}

impl<'a> Salvor<'a> {
    /// The first process has this connection; its recovery becomes due after the given time.
    pub(crate) fn start(
        stage: &'a Stage,
        configuration: Configuration,
        line: Line,
        trouble: Trouble,
        due: Duration,
    ) -> Self {
        let faults = Faults::default();
        trouble.begin(&faults, due);
        let process = Process::start(&stage.cluster, "salvor-1", &configuration, line, &faults);
        Self { stage, configuration, trouble, due, faults, process, lives: 1 }
    }

    pub(crate) async fn live(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            let line = self.process.line().clone();
            tokio::select! {
                biased;
                () = line.died() => {
                    self.lives += 1;
                    self.begin_trouble();
                    let name = format!("salvor-{}", self.lives);
                    let (cluster, line) = (&self.stage.cluster, Line::default());
                    self.process = Process::start(cluster, &name, &self.configuration, line, &self.faults);
                }
                () = sleep_until(end) => return,
            }
        }
    }

    /// Applies the same trouble once more.
    pub(crate) fn begin_trouble(&self) {
        self.trouble.begin(&self.faults, self.due);
    }

    /// The number of processes.
    pub(crate) fn lives(&self) -> u32 {
        self.lives
    }

    /// Stops it. Returns the ending, and the number of processes.
    pub(crate) async fn stop(self) -> (Ending, u32) {
        self.process.stop().await;
        (Ending::of(self.stage), self.lives)
    }
}

/// The final state of a story.
#[derive(Debug, PartialEq)]
pub(crate) struct Ending {
    pub(crate) objects: BTreeMap<String, Value>,
    pub(crate) changes: BTreeMap<String, usize>,
}

impl Ending {
    fn of(stage: &Stage) -> Self {
        Self { objects: stage.end(), changes: stage.changes() }
    }

    /// The number of different events that were recorded.
    pub(crate) fn events(&self) -> usize {
        self.changes.keys().filter(|what| what.starts_with("Added events")).count()
    }

    /// The differences from another ending, one line each. Some changes may be missing, or occur any number of times.
    pub(crate) fn differences(
        &self,
        undisturbed: &Self,
        may_be_missing: impl Fn(&str) -> bool,
        counts: impl Fn(&str) -> bool,
    ) -> Vec<String> {
        let mut found = Vec::new();
        let names: BTreeSet<_> = self.changes.keys().chain(undisturbed.changes.keys()).collect();
        for what in names.into_iter().filter(|what| counts(what)) {
            let times = |of: &Ending| of.changes.get(what).copied().unwrap_or(0);
            if times(self) != times(undisturbed) && !(may_be_missing(what) && times(self) == 0) {
                found.push(format!("{what} {} times instead of {}", times(self), times(undisturbed)));
            }
        }
        for (name, object) in &undisturbed.objects {
            if self.objects.get(name).is_some_and(|left| left != object) {
                found.push(format!("in the end {name} is {}\n    instead of {object}", self.objects[name]));
            }
        }
        found
    }
}

/// Plays a story in each of these troubles: without a crash, and with one at each of the given number of writes, or of
/// as many as there are. The story returns its problems and the number of processes.
pub(crate) fn play_all(
    story: impl Debug,
    most_writes: u32,
    troubles: &[Trouble],
    play: impl Fn(Option<CrashPoint>, Trouble) -> (Vec<String>, u32),
) {
    let mut wrong = Vec::new();
    for trouble in troubles.iter().copied() {
        for crash in [None].into_iter().chain(crash_points(most_writes, trouble).into_iter().map(Some)) {
            let (found, lives) = play(crash, trouble);
            if !found.is_empty() {
                wrong.push(format!("{story:?}, crash {crash:?}, {trouble:?}:\n  {}", found.join("\n  ")));
            }
            // That write was never made, so there is none after it.
            if crash.is_some() && lives == 1 {
                break;
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

/// On either side of every write. A crash after a write leaves the same state as one before the next write, so in
/// trouble only one of the two is played.
fn crash_points(writes: u32, trouble: Trouble) -> Vec<CrashPoint> {
    let before = (1..=writes).map(CrashPoint::Before);
    match trouble {
        Trouble::None => before.flat_map(|point| [point, after(point)]).collect(),
        _ => before.chain((writes > 0).then_some(CrashPoint::After(writes))).collect(),
    }
}

fn after(point: CrashPoint) -> CrashPoint {
    let (CrashPoint::Before(write) | CrashPoint::After(write)) = point;
    CrashPoint::After(write)
}

/// More writes than any story takes that is played by [`at_every_write`].
pub(crate) const MOST_WRITES: u32 = 120;

/// Plays a story with a crash before and after each of its writes, until there are no more, and returns all problems.
/// The story has at least the given number of writes, and returns its problems and the number of processes.
pub(crate) fn at_every_write<Played>(least: u32, play: impl Fn(Line) -> Played) -> Vec<String>
where
    Played: Future<Output = (Vec<String>, u32)>,
{
    let mut wrong = Vec::new();
    for write in 1..MOST_WRITES {
        for crash in [CrashPoint::Before(write), CrashPoint::After(write)] {
            let (found, lives) = in_virtual_time(play(Line::dying(crash)));
            wrong.extend(found.into_iter().map(|it| format!("{crash:?}: {it}")));
            if lives == 1 {
                assert!(write > least, "it takes only {write} writes");
                return wrong;
            }
        }
    }
    panic!("it takes {MOST_WRITES} writes");
}

pub(crate) fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
