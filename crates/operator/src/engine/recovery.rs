//! The operator's interface to a recovery: its watches, the subjects that a change affects, and its decision.

use std::{
    fmt::{self, Display},
    future::Future,
    time::Duration,
};

use jiff::Timestamp;
use kube::Client;
use salvor_recovery::{
    Decision, Reason, Step,
    brake::{Held, Outage},
    event::EventNote,
};

use crate::{
    client::recent_reads::ReadAge,
    execute::{Failure, Lane, Refusal, Written},
    watch_set::feeds::Feed,
};

/// One recovery, as the engine drives it. All methods are synchronous, and it keeps only what it decides by.
pub(crate) trait Recovery: Send + Sync + 'static {
    /// The recovery's name, as in `--controllers`.
    const NAME: &'static str;
    /// The lane that its writes share.
    const LANE: Lane = Lane::Recovery;
    /// The object of a decision: a pod or a node, for example.
    type Subject: Subject;
    /// The reason of a verdict.
    type Why: Reason + Send + Sync;
    /// A write that it requests.
    type Step: Step;
    /// A change from its watches.
    type News: Send + 'static;
    /// A second look at one subject through the live API, independent of the recovery's state.
    type Recheck: LiveRecheck<Why = Self::Why, Step = Self::Step>;

    /// All feeds that it needs from now on; `None` if they have not changed since the last call. The engine calls it at
    /// the start, after every change and after every attempt.
    fn watches(&mut self) -> Option<Vec<Feed<Self::News>>>;

    /// Applies a change and returns the subjects that must be decided again.
    fn on_change(&mut self, news: Self::News, now: Timestamp) -> Vec<Self::Subject>;

    /// The decision about a subject as last seen; `None` if it is gone.
    fn judge(&self, subject: &Self::Subject, now: Timestamp) -> Option<Decision<Self::Why, Self::Step>>;

    /// All subjects that may need a decision.
    fn subjects(&self) -> Vec<Self::Subject>;

    /// True if the only reason to do nothing is missing consent.
    fn lacks_consent(_: &Self::Why) -> bool {
        false
    }

    /// Roughly how long a decision about the subject takes. A simulated clock stands still during work, so it cannot be
    /// measured.
    fn effort(&self, _: &Self::Subject) -> Duration {
        Duration::ZERO
    }

    /// The number of objects that are stuck without consent and are no subjects for that reason.
    fn without_consent(&self) -> usize {
        0
    }

    /// When the phases before the subject was due ended, as far as they are known.
    fn course(&self, _: &Self::Subject) -> Course {
        Course::default()
    }

    /// Whether an outage around the subject blocks it; a user may have exempted it.
    fn outage(&self, _: &Self::Subject, _: Timestamp) -> Outage {
        Outage::Holds
    }

    /// A second look at a subject that was decided at `judged`, before a step that cannot be undone.
    fn recheck(&self, subject: &Self::Subject, judged: Timestamp) -> Self::Recheck;

    /// Called when the brake or a pause blocks the steps of a decision. Returns true if the subject must be decided
    /// again at once, because it reports the block.
    fn held(&mut self, _: &Self::Subject, _: &Held, _: Timestamp) -> bool {
        false
    }

    /// Called when an attempt ends, with what was done and what was not. Returns what follows from that.
    fn ended(&mut self, subject: &Self::Subject, end: Ended<'_, Self::Step>, now: Timestamp) -> After;
}

/// The way of a subject before it was due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Course {
    /// When its node was heard of for the last time.
    pub(crate) silent: Option<Timestamp>,
    /// When its node was marked unreachable.
    pub(crate) marked: Option<Timestamp>,
    /// When its deletion was requested.
    pub(crate) requested: Option<Timestamp>,
}

impl Course {
    /// The seconds of each phase whose beginning and end are known, by the names of `salvor simulate`, and their sum.
    pub(crate) fn phases(self, due: Option<Timestamp>, done: Timestamp) -> Vec<(&'static str, f64)> {
        let Self { silent, marked, requested } = self;
        let decided = due.unwrap_or(done);
        let spans = [
            ("detect", silent, marked),
            ("evict", marked, requested),
            ("wait", requested.or(marked), due),
            ("decide", Some(decided), Some(done)),
            ("total", silent.or(marked), Some(done)),
        ];
        let seconds = |from: Timestamp, to: Timestamp| to.duration_since(from).as_secs_f64().max(0.0);
        spans.into_iter().filter_map(|(phase, from, to)| Some((phase, seconds(from?, to?)))).collect()
    }
}

/// The outcome of an attempt: the steps that were carried out, and those that were not.
#[derive(Debug)]
pub(crate) struct Ended<'a, S> {
    /// The steps that were carried out with the server's answers; empty if none were requested.
    pub(crate) done: &'a [(S, Written)],
    /// True if the answers are comparable with what the watches show. An answer from before revisions went backwards
    /// would seem later than everything that follows.
    pub(crate) is_current: bool,
    /// The step that the server rejected for its content, not because of a conflict or its own failure.
    pub(crate) refused: Option<(&'a S, &'a Refusal)>,
    /// The step that failed for any reason.
    pub(crate) failed: Option<(&'a S, &'a Failure)>,
    pub(crate) worked: bool,
    /// How long the attempt took.
    pub(crate) took: Duration,
}

/// What follows from the end of an attempt.
#[derive(Debug)]
pub(crate) struct After {
    /// Whether the view already shows the write.
    pub(crate) view: View,
    pub(crate) tell: Vec<EventNote>,
    /// True if the subject is decided again at once although a step was refused, because the recovery has handled that.
    /// Otherwise the subject backs off.
    pub(crate) decide_again: bool,
}

impl After {
    /// With no events, and with backoff after a refusal.
    pub(crate) fn with(view: View) -> Self {
        Self { view, tell: Vec::new(), decide_again: false }
    }

    /// Applies how the recovery handles a refusal.
    pub(crate) fn and(mut self, refused: Refused) -> Self {
        if let Refused::Judged(note) = refused {
            self.decide_again = true;
            self.tell.extend(note.map(|note| *note));
        }
        self
    }
}

impl<S> Ended<'_, S> {
    /// The view after every step was applied: it lags if it does for any of them.
    pub(crate) fn view(&self, mut apply: impl FnMut(&S, &Written) -> View) -> View {
        let mut view = View::Synced;
        for (step, answer) in self.done {
            if !self.is_current || apply(step, answer) == View::Lagging {
                view = View::Lagging;
            }
        }
        view
    }
}

/// Whether a recovery's view already shows its own write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// The write was applied from the server's answer, so the subject can be decided again at once.
    Synced,
    /// The watch will deliver it.
    Lagging,
}

/// How a refusal is handled.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The subject backs off, longer every time.
    Waits,
    /// The subject is decided again at once, after this event.
    Judged(Option<Box<EventNote>>),
}

/// The reason of a verdict, in a recovery that decides about nodes and pods.
#[derive(Clone, Debug)]
pub(crate) enum NodeOrPod<N, P> {
    Node(N),
    Pod(P),
}

impl<N: Reason, P: Reason> NodeOrPod<N, P> {
    fn reason(&self) -> &dyn Reason {
        match self {
            Self::Node(why) => why,
            Self::Pod(why) => why,
        }
    }
}

impl<N: Reason, P: Reason> Display for NodeOrPod<N, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self.reason(), f)
    }
}

impl<N: Reason, P: Reason> Reason for NodeOrPod<N, P> {
    fn code(&self) -> &'static str {
        self.reason().code()
    }

    fn what_would_change_it(&self) -> String {
        self.reason().what_would_change_it()
    }
}

/// The object of a decision. Prints as a user would name it.
pub(crate) trait Subject: Clone + Ord + Display + Send + Sync + 'static {}

impl<T: Clone + Ord + Display + Send + Sync + 'static> Subject for T {}

/// What is known about the subject without reading it again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Known<'a> {
    /// The write has a resourceVersion precondition: if the subject has changed, the write is refused. Only the other
    /// objects behind the verdict must be read.
    Guarded,
    /// The subject as the server returned it to our last write: as live as any read, and free.
    Written(&'a str),
    Nothing,
}

/// A second look, at the live objects.
pub(crate) trait LiveRecheck: Send + Sync + 'static {
    type Why: Reason;
    type Step: Step;

    /// Decides again. Reads of other callers may be used as far as `sight` allows.
    fn ask(
        &self,
        client: &Client,
        known: Known<'_>,
        now: Timestamp,
        sight: &mut ReadAge,
    ) -> impl Future<Output = kube::Result<Option<Decision<Self::Why, Self::Step>>>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other_and_unknown_ones_are_left_out() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let course = Course { silent: Some(at(0)), marked: Some(at(47)), requested: Some(at(347)) };
        let phases = course.phases(Some(at(437)), at(438));
        let expected =
            [("detect", 47.0), ("evict", 300.0), ("wait", 90.0), ("decide", 1.0), ("total", 438.0)];
        assert_eq!(phases, expected);
        // Without a request for its deletion, the wait begins with the mark.
        let given_up = Course { requested: None, ..course }.phases(Some(at(77)), at(78));
        assert_eq!(given_up, [("detect", 47.0), ("wait", 30.0), ("decide", 1.0), ("total", 78.0)]);
        assert_eq!(Course::default().phases(None, at(5)), [("decide", 0.0)]);
        // Clocks may differ, and time does not run backwards.
        let early = Course { silent: Some(at(50)), ..course }.phases(None, at(40));
        assert!(early.iter().all(|(_, seconds)| *seconds >= 0.0), "{early:?}");
    }
}
