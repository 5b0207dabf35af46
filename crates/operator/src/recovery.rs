//! What the operator asks of a recovery: what it watches, whom a change concerns, and its judgement.

use std::{fmt::Display, future::Future, sync::Arc};

use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;
use salvor_recovery::{Action, Judgement, Reason, brake::NodeCounts};
use tokio::sync::mpsc;

use crate::watch::WatchHealth;

/// A watch, ready to run: what it feeds is the recovery's own kind of news.
pub(crate) struct Feed {
    pub(crate) health: Arc<WatchHealth>,
    pub(crate) run: BoxFuture<'static, ()>,
}

/// One recovery, as the engine drives it. Everything in here is synchronous and keeps only what it judges by.
pub(crate) trait Recovery: Send + Sync + 'static {
    /// Its name, as in `--controllers`.
    const NAME: &'static str;
    /// What is judged: a pod, a node.
    type Subject: Subject;
    /// Why a verdict is as it is.
    type Why: Reason + Send + Sync;
    /// What its watches tell.
    type News: Send + 'static;
    /// A question to the live API about one subject, free of the recovery itself.
    type Inquiry: LiveInquiry<Why = Self::Why>;

    /// The watches that it needs.
    fn feeds(&self, client: &Client, news: &mpsc::Sender<Self::News>) -> Vec<Feed>;

    /// Takes in a change; who must be judged again because of it.
    fn hear(&mut self, news: Self::News, now: Timestamp) -> Vec<Self::Subject>;

    /// The judgement of a subject as it was last seen; `None` when it is not there any more.
    fn judge(&self, subject: &Self::Subject, now: Timestamp) -> Option<Judgement<Self::Why>>;

    /// Everything that may have to be judged.
    fn subjects(&self) -> Vec<Self::Subject>;

    /// The nodes as last seen, for the brake; `None` before they are all known, or if this recovery does not watch them.
    fn node_counts(&self) -> Option<NodeCounts>;

    /// Asks the live API about a subject, before a step that cannot be taken back.
    fn inquiry(&self, subject: &Self::Subject) -> Self::Inquiry;

    /// An action about the subject was carried out.
    fn done(&mut self, subject: &Self::Subject, action: &Action);
}

/// What is judged. Prints as a person would name it.
pub(crate) trait Subject: Clone + Ord + Display + Send + Sync + 'static {}

impl<T: Clone + Ord + Display + Send + Sync + 'static> Subject for T {}

/// What is known of the subject itself without reading it again.
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
pub(crate) trait LiveInquiry: Send + 'static {
    /// Why the verdict is as it is.
    type Why: Reason;

    /// Judges again.
    fn ask(
        &self,
        client: &Client,
        known: Known<'_>,
        now: Timestamp,
    ) -> impl Future<Output = kube::Result<Option<Judgement<Self::Why>>>> + Send;
}
