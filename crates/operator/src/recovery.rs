//! The operator's interface to a recovery: its watches, the subjects that a change concerns, and its judgement.

use std::{
    fmt::{self, Display},
    future::Future,
    time::Duration,
};

use jiff::Timestamp;
use kube::Client;
use salvor_recovery::{
    Judgement, Reason, Step,
    brake::{Held, Outage},
    event::EventNote,
};

use crate::{
    executor::{Failure, Lane, Refusal, Written},
    feeds::Feed,
    looks::Sight,
};

/// One recovery, as the engine drives it. Everything in here is synchronous and keeps only what it judges by.
pub(crate) trait Recovery: Send + Sync + 'static {
    /// Its name, as in `--controllers`.
    const NAME: &'static str;
    /// Whose writes its own wait for.
    const LANE: Lane = Lane::Recovery;
    /// The judged object: a pod, a node.
    type Subject: Subject;
    /// Why a verdict is as it is.
    type Why: Reason + Send + Sync;
    /// A write that it asks for.
    type Step: Step;
    /// A change from its watches.
    type News: Send + 'static;
    /// A question to the live API about one subject, free of the recovery itself.
    type Inquiry: LiveInquiry<Why = Self::Why, Step = Self::Step>;

    /// Everything that it listens to from now on; none if nothing has changed since it was asked last. It is asked at the
    /// beginning, and whenever it has heard something or an attempt has ended.
    fn watches(&mut self) -> Option<Vec<Feed<Self::News>>>;

    /// Takes in a change; who must be judged again because of it.
    fn hear(&mut self, news: Self::News, now: Timestamp) -> Vec<Self::Subject>;

    /// The judgement of a subject as it was last seen; `None` when it is not there any more.
    fn judge(&self, subject: &Self::Subject, now: Timestamp) -> Option<Judgement<Self::Why, Self::Step>>;

    /// Everything that may have to be judged.
    fn subjects(&self) -> Vec<Self::Subject>;

    /// True if a verdict to do nothing rests on nothing but that nobody has allowed more.
    fn lacks_consent(_: &Self::Why) -> bool {
        false
    }

    /// About how long a judgement of the subject takes. Under a clock that stands still while there is work, nobody could
    /// measure it.
    fn effort(&self, _: &Self::Subject) -> Duration {
        Duration::ZERO
    }

    /// The number of objects that are stuck because nobody consented, and that are no subjects for that reason.
    fn without_consent(&self) -> usize {
        0
    }

    /// Says whether an outage around the subject blocks it; a person may have excepted it.
    fn outage(&self, _: &Self::Subject, _: Timestamp) -> Outage {
        Outage::Holds
    }

    /// Asks the live API about a subject that was judged at some time, before a step that cannot be taken back.
    fn inquiry(&self, subject: &Self::Subject, judged: Timestamp) -> Self::Inquiry;

    /// The brake, or a pause, holds back what a judgement asked for. True if the subject is judged again at once, because it has
    /// something to say about that.
    fn held(&mut self, _: &Self::Subject, _: &Held, _: Timestamp) -> bool {
        false
    }

    /// A subject was judged, and what that asked for was carried out as far as it could be. What that means is the recovery's
    /// to say.
    fn ended(&mut self, subject: &Self::Subject, end: Ended<'_, Self::Step>, now: Timestamp) -> After;
}

/// The outcome of a judgement: the steps that were carried out, and those that were not.
#[derive(Debug)]
pub(crate) struct Ended<'a, S> {
    /// The steps that were carried out and what the server answered; none if none were asked for.
    pub(crate) done: &'a [(S, Written)],
    /// True if the answers can be compared with what watches tell. An answer from before revisions went backwards would be
    /// taken for later than all that comes now.
    pub(crate) is_current: bool,
    /// The step that the server refused for what it is, not for a conflict or its own trouble.
    pub(crate) refused: Option<(&'a S, &'a Refusal)>,
    /// The step that failed, in whatever way, and how.
    pub(crate) failed: Option<(&'a S, &'a Failure)>,
    /// True if nothing failed.
    pub(crate) worked: bool,
    /// The time that it took.
    pub(crate) took: Duration,
}

/// The consequences of the end of an attempt.
#[derive(Debug)]
pub(crate) struct After {
    /// Says whether the view shows the write already.
    pub(crate) view: View,
    /// Events to record.
    pub(crate) tell: Vec<EventNote>,
    /// True if the subject is judged again at once although a step was refused: the recovery has taken that into account.
    /// Otherwise everything about the subject waits for a while.
    pub(crate) judged_again: bool,
}

impl After {
    /// The view is as it says, nothing is told, and a refusal is waited out.
    pub(crate) fn with(view: View) -> Self {
        Self { view, tell: Vec::new(), judged_again: false }
    }

    /// Takes in what a recovery makes of a refusal.
    pub(crate) fn and(mut self, refused: Refused) -> Self {
        if let Refused::Judged(note) = refused {
            self.judged_again = true;
            self.tell.extend(note.map(|note| *note));
        }
        self
    }
}

impl<S> Ended<'_, S> {
    /// The view after each step was taken in: it lags behind if it does for any of them.
    pub(crate) fn view(&self, mut take_in: impl FnMut(&S, &Written) -> View) -> View {
        let mut view = View::Shows;
        for (step, answer) in self.done {
            if !self.is_current || take_in(step, answer) == View::Lags {
                view = View::Lags;
            }
        }
        view
    }
}

/// Says whether a recovery's view shows its own write already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// The write was taken from the server's answer: the subject can be judged again at once.
    Shows,
    /// The watch will bring it.
    Lags,
}

/// The treatment of a subject after a refusal.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The subject waits, longer every time.
    Waits,
    /// The subject is judged again at once, after this event.
    Judged(Option<Box<EventNote>>),
}

/// Why a verdict is as it is, in a recovery that judges nodes and pods.
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

/// The judged object. Prints as a person would name it.
pub(crate) trait Subject: Clone + Ord + Display + Send + Sync + 'static {}

impl<T: Clone + Ord + Display + Send + Sync + 'static> Subject for T {}

/// The known state of the subject, without reading it again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Known<'a> {
    /// The write names the revision that was judged: if the subject has changed, it is refused. Only what the verdict
    /// rests on besides must be read.
    Guarded,
    /// The subject as the server answered to our last write: as live as any read, and free.
    Written(&'a str),
    /// Nothing.
    Nothing,
}

/// A second look, at the live objects.
pub(crate) trait LiveInquiry: Send + Sync + 'static {
    /// Why the verdict is as it is.
    type Why: Reason;
    /// The steps of the verdict.
    type Step: Step;

    /// Judges again. What others have seen may be used as far as `sight` allows.
    fn ask(
        &self,
        client: &Client,
        known: Known<'_>,
        now: Timestamp,
        sight: &mut Sight,
    ) -> impl Future<Output = kube::Result<Option<Judgement<Self::Why, Self::Step>>>> + Send;
}
