//! Declared watches. A recovery declares its watches as values; the operator runs the tasks and tracks their health.
//!
//! A recovery declares all its feeds again whenever they change. A feed that was declared before keeps running. A feed
//! that is no longer declared is stopped, and its changes are dropped from then on, even those already in flight; the
//! recovery discards what it knew from it. A feed that is declared later under the same key starts with a list.
//!
//! A watch is either lasting, and then readiness waits for its first list, or passing. All passing watches under one
//! name share one metric: the staleness of the oldest of them.
//!
//! A kind that is known only at run time goes through discovery first. If it is not served, may not be read, or cannot
//! be read for [`kind::KIND_PATIENCE`], its watch no longer counts and the recovery receives [`OfKind::Lost`]. Other
//! kinds and readiness do not wait for it.

mod kind;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use kube::Client;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    client::discovery::{Discovery, Kind, Versions},
    engine::brake_keeper::BrakeKeeper,
    tasks,
    watch_set::{
        nodes::{Needs, NeedsVolumes, Node, NodeFeed},
        watch::{Change, Project, Source, Target, WatchHealth, WatchSet, follow},
    },
};
pub(crate) use kind::{KindLost, OfKind};

/// Changes that may be queued for a recovery; when the queue is full, watches wait.
const NEWS: usize = 1024;
/// Changes of one watch that may be queued before they are passed on.
const CHANGES: usize = 64;
/// Limit on concurrent first lists of passing watches. A list needs several times its size in memory while it is read,
/// so many concurrent lists would dominate the peak memory of the process.
const LISTS_AT_ONCE: usize = 4;
/// A first list that takes longer than this gives up its turn, so that others do not wait for it.
const LIST_TURN: Duration = Duration::from_secs(5);
/// One source of changes for a recovery.
pub(crate) struct Feed<News> {
    key: Key,
    health: Health,
    /// True if a new term decides nothing before this watch is listed in it.
    listed_to_lead: bool,
    start: Start<News>,
}

type Start<News> = Box<dyn FnOnce(Stage<News>) -> BoxFuture<'static, ()> + Send>;

/// Two declarations with the same key are the same feed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Watch(Target, u64),
    Kind(&'static str, KindTarget, u64),
    Nodes,
    Reads(&'static str),
    Group(&'static str),
}

/// The objects of a kind that is known only at run time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KindTarget {
    pub(crate) kind: Kind,
    pub(crate) versions: Versions,
    /// All namespaces if none is given.
    pub(crate) namespace: Option<String>,
    pub(crate) field_selector: Option<String>,
    pub(crate) label_selector: Option<String>,
}

/// How a feed counts for freshness, readiness and metrics.
enum Health {
    /// Counts from the start.
    Lasting(Arc<WatchHealth>),
    /// Counts as one of the passing watches under this name.
    OneOfMany(&'static str),
    /// Counts as the shared watch of nodes.
    Nodes,
    /// Does not count, because it is not a watch.
    None,
}

impl<News: Send + 'static> Feed<News> {
    /// A watch that lasts as long as the recovery. The recovery may keep a reference to its health.
    pub(crate) fn watch<P: Project>(
        target: Target,
        projection: P,
        health: &Arc<WatchHealth>,
        wrap: impl Fn(Change<P::Kept>) -> News + Send + 'static,
    ) -> Self {
        Self::watch_in_parts(target, projection, health, move |change| [wrap(change)])
    }

    /// A lasting watch whose changes are each split into several messages.
    pub(crate) fn watch_in_parts<P: Project, Parts>(
        target: Target,
        projection: P,
        health: &Arc<WatchHealth>,
        split: impl Fn(Change<P::Kept>) -> Parts + Send + 'static,
    ) -> Self
    where
        Parts: IntoIterator<Item = News>,
        Parts::IntoIter: Send,
    {
        let key = Key::Watch(target.clone(), 0);
        let kept = health.clone();
        let start = move |stage: Stage<News>| {
            async move {
                let (changes, inbox) = mpsc::channel(CHANGES);
                let watch = follow(stage.hub.source, target, projection, kept, changes);
                relay(watch, inbox, &stage.outbox, split).await;
            }
            .boxed()
        };
        Self { key, health: Health::Lasting(health.clone()), listed_to_lead: false, start: Box::new(start) }
    }

    /// A passing watch. The number distinguishes it from an earlier watch of the same objects.
    pub(crate) fn passing_watch<P: Project>(
        target: Target,
        number: u64,
        projection: P,
        wrap: impl Fn(Change<P::Kept>) -> News + Send + 'static,
    ) -> Self {
        let (name, key) = (target.resource, Key::Watch(target.clone(), number));
        let start = move |stage: Stage<News>| {
            async move {
                let turn = stage.turn().await;
                let health = stage.health.member();
                let (changes, inbox) = mpsc::channel(CHANGES);
                let watch = follow(stage.hub.source, target, projection, health, changes);
                relay(watch, in_turn(turn, inbox), &stage.outbox, move |change| [wrap(change)]).await;
            }
            .boxed()
        };
        Self { key, health: Health::OneOfMany(name), listed_to_lead: false, start: Box::new(start) }
    }

    /// The nodes of the cluster, each in the form that the recovery keeps. All recoveries share one watch.
    pub(crate) fn nodes<T: Send + 'static>(
        volumes: Option<NeedsVolumes>,
        form: impl Fn(&Node) -> T + Send + Sync + 'static,
        wrap: impl Fn(Change<T>) -> News + Send + 'static,
    ) -> Self {
        Self::nodes_with(Needs { volumes, conditions: false }, form, wrap)
    }

    /// As `nodes`, with more of each node's fields.
    pub(crate) fn nodes_with<T: Send + 'static>(
        needs: Needs,
        form: impl Fn(&Node) -> T + Send + Sync + 'static,
        wrap: impl Fn(Change<T>) -> News + Send + 'static,
    ) -> Self {
        let start = move |stage: Stage<News>| {
            let changes = stage.hub.nodes.listen(needs);
            async move {
                let split = move |change: Change<Arc<Node>>| [wrap(change.map(|node| form(&node)))];
                relay(std::future::pending::<()>(), changes, &stage.outbox, split).await;
            }
            .boxed()
        };
        Self { key: Key::Nodes, health: Health::Nodes, listed_to_lead: false, start: Box::new(start) }
    }

    /// Reads other than a watch, running as long as the recovery.
    pub(crate) fn reads<Run: Future<Output = ()> + Send + 'static>(
        name: &'static str,
        run: impl FnOnce(Client, Outbox<News>) -> Run + Send + 'static,
    ) -> Self {
        let start = move |stage: Stage<News>| run(stage.hub.source.client, stage.outbox).boxed();
        Self { key: Key::Reads(name), health: Health::None, listed_to_lead: false, start: Box::new(start) }
    }

    /// Declares a name for passing watches, so that metrics show it even while there is none.
    pub(crate) fn group(name: &'static str) -> Self {
        let start = |_| std::future::ready(()).boxed();
        Self {
            key: Key::Group(name),
            health: Health::OneOfMany(name),
            listed_to_lead: false,
            start: Box::new(start),
        }
    }

    /// Starts the feed when `first` completes. Its health counts from the start.
    pub(crate) fn after(self, first: impl Future<Output = ()> + Send + 'static) -> Self {
        let start = self.start;
        let start = move |stage| {
            async move {
                first.await;
                start(stage).await;
            }
            .boxed()
        };
        Self { start: Box::new(start), ..self }
    }

    /// A new term decides nothing before this watch is listed in it. This is for recoveries that count objects or treat
    /// a missing object as deleted: the previous leader wrote until now, and of two watches one may already show its
    /// latest write while the other is still behind. A step with a resourceVersion precondition or a live recheck needs
    /// no such list, so zombie and eviction recovery begin at once. A list from the API server's cache would prove
    /// nothing: this one is a consistent read.
    pub(crate) fn listed_to_lead(self) -> Self {
        Self { listed_to_lead: true, ..self }
    }
}

struct Stage<News> {
    hub: Hub,
    /// Shared by all passing watches under this name.
    health: Arc<WatchHealth>,
    turns: Arc<Semaphore>,
    outbox: Outbox<News>,
}

impl<News> Stage<News> {
    async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        self.turns.clone().acquire_owned().await.ok()
    }
}

#[derive(Debug)]
pub(crate) struct Outbox<News> {
    feed: u64,
    to: mpsc::Sender<Item<News>>,
}

impl<News> Clone for Outbox<News> {
    fn clone(&self) -> Self {
        Self { feed: self.feed, to: self.to.clone() }
    }
}

/// The receiver is gone.
#[derive(Debug)]
pub(crate) struct Unheard;

impl<News> Outbox<News> {
    /// Waits until there is room in the queue.
    pub(crate) async fn send(&self, news: News) -> Result<(), Unheard> {
        self.to.send(Item { feed: self.feed, news }).await.map_err(|_| Unheard)
    }

    /// Waits until the receiver is gone.
    pub(crate) async fn closed(&self) {
        self.to.closed().await;
    }
}

/// A message and the number of the feed that sent it.
#[derive(Debug)]
pub(crate) struct Item<News> {
    feed: u64,
    news: News,
}

/// State shared by the feeds of all recoveries. Clones share it.
#[derive(Clone)]
pub(crate) struct Hub {
    source: Source,
    #[cfg_attr(not(test), allow(dead_code, reason = "see `kind`"))]
    discovery: Discovery,
    nodes: NodeFeed,
    pub(crate) watches: WatchSet,
}

impl Hub {
    /// The `keeper` receives nodes once a recovery listens to them.
    pub(crate) fn new(source: Source, keeper: BrakeKeeper) -> Self {
        let discovery = Discovery::new(source.client.clone());
        let nodes = NodeFeed::new(source.clone(), keeper);
        Self { source, discovery, nodes, watches: WatchSet::default() }
    }
}

pub(crate) struct Feeds<News> {
    hub: Hub,
    turns: Arc<Semaphore>,
    to: mpsc::Sender<Item<News>>,
    running: BTreeMap<Key, Running>,
    /// Numbers of the running feeds; messages of other feeds are dropped.
    heard: BTreeSet<u64>,
    groups: BTreeMap<&'static str, Arc<WatchHealth>>,
    started: u64,
    /// The watches that must be listed before the term decides anything, with the request number of each list.
    awaited: Vec<(Arc<WatchHealth>, u64)>,
    watches: WatchSet,
}

struct Running {
    feed: u64,
    listed_to_lead: bool,
    lasting: Option<Arc<WatchHealth>>,
    _task: AbortOnDropHandle<()>,
}

pub(crate) type Inbox<News> = mpsc::Receiver<Item<News>>;

impl<News: Send + 'static> Feeds<News> {
    /// Declared watches are also added to the hub's set.
    pub(crate) fn new(hub: Hub) -> (Self, Inbox<News>) {
        let (to, inbox) = mpsc::channel(NEWS);
        let feeds = Self {
            hub,
            turns: Arc::new(Semaphore::new(LISTS_AT_ONCE)),
            to,
            running: BTreeMap::new(),
            heard: BTreeSet::from([UNDECLARED]),
            groups: BTreeMap::new(),
            started: 0,
            awaited: Vec::new(),
            watches: WatchSet::default(),
        };
        (feeds, inbox)
    }

    /// This set stays the same for the lifetime of these feeds.
    pub(crate) fn watches(&self) -> &WatchSet {
        &self.watches
    }

    /// Runs exactly these feeds from now on and stops all others.
    pub(crate) fn declare(&mut self, feeds: Vec<Feed<News>>) {
        let wanted: BTreeSet<Key> = feeds.iter().map(|feed| feed.key.clone()).collect();
        for (_, stopped) in self.running.extract_if(.., |key, _| !wanted.contains(key)) {
            self.heard.remove(&stopped.feed);
            if let Some(health) = stopped.lasting {
                self.watches.remove(&health);
                self.hub.watches.remove(&health);
            }
        }
        for feed in feeds {
            if !self.running.contains_key(&feed.key) {
                self.start(feed);
            }
        }
    }

    fn start(&mut self, Feed { key, health, listed_to_lead, start }: Feed<News>) {
        self.started += 1;
        let (counts, lasting) = match health {
            Health::Lasting(health) => (Some(health.clone()), Some(health)),
            Health::OneOfMany(name) => {
                let group = self.groups.entry(name).or_insert_with(|| WatchHealth::of_many(name));
                (Some(group.clone()), None)
            }
            // The watch of nodes stays for the other recoveries.
            Health::Nodes => (Some(self.hub.nodes.health().clone()), None),
            Health::None => (None, None),
        };
        if let Some(health) = &counts {
            self.watches.add(health);
            self.hub.watches.add(health);
        }
        let stage = Stage {
            hub: self.hub.clone(),
            health: counts.unwrap_or_else(|| WatchHealth::new("")),
            turns: self.turns.clone(),
            outbox: Outbox { feed: self.started, to: self.to.clone() },
        };
        let task = AbortOnDropHandle::new(tasks::spawn(start(stage)));
        self.heard.insert(self.started);
        self.running.insert(key, Running { feed: self.started, listed_to_lead, lasting, _task: task });
    }

    /// Requests a relist of the watches without which a new term decides nothing.
    pub(crate) fn ask_for_lists(&mut self) {
        let listed = self.running.values().filter(|running| running.listed_to_lead);
        let watches = listed.filter_map(|running| running.lasting.as_ref());
        self.awaited = watches.map(|watch| (watch.clone(), watch.ask_for_list())).collect();
    }

    /// True if the requested lists are fully processed.
    pub(crate) fn are_listed(&mut self) -> bool {
        self.awaited.retain(|(watch, asked)| !watch.has_taken_in(*asked));
        self.awaited.is_empty()
    }

    /// The message, unless its feed is no longer declared.
    pub(crate) fn open(&self, Item { feed, news }: Item<News>) -> Option<News> {
        self.heard.contains(&feed).then_some(news)
    }

    /// For messages that do not come from a feed.
    #[cfg(test)]
    pub(crate) fn outbox(&self) -> Outbox<News> {
        Outbox { feed: UNDECLARED, to: self.to.clone() }
    }
}

/// Feed number of messages that do not come from a feed.
const UNDECLARED: u64 = 0;

/// Runs a watch and passes on its changes until the watch ends or the receiver is gone. Returns how the watch ended.
async fn relay<T, News, Parts, End>(
    watch: impl Future<Output = End>,
    changes: impl Changes<T>,
    outbox: &Outbox<News>,
    mut split: impl FnMut(Change<T>) -> Parts,
) -> Option<End>
where
    Parts: IntoIterator<Item = News>,
{
    let mut changes = changes;
    let pass_on = async {
        while let Some(change) = changes.next().await {
            for news in split(change) {
                if outbox.send(news).await.is_err() {
                    return;
                }
            }
        }
    };
    tokio::select! {
        biased;
        end = watch => Some(end),
        () = pass_on => None,
    }
}

trait Changes<T>: Send {
    fn next(&mut self) -> impl Future<Output = Option<Change<T>>> + Send;
}

impl<T: Send> Changes<T> for mpsc::Receiver<Change<T>> {
    async fn next(&mut self) -> Option<Change<T>> {
        self.recv().await
    }
}

/// Changes of a watch that waited for its turn to list. The turn ends with its first list.
struct InTurn<T> {
    turn: Option<OwnedSemaphorePermit>,
    changes: mpsc::Receiver<Change<T>>,
}

fn in_turn<T>(turn: Option<OwnedSemaphorePermit>, changes: mpsc::Receiver<Change<T>>) -> InTurn<T> {
    InTurn { turn, changes }
}

impl<T: Send> Changes<T> for InTurn<T> {
    async fn next(&mut self) -> Option<Change<T>> {
        if let Some(turn) = self.turn.take() {
            let first = tokio::time::timeout(LIST_TURN, self.changes.recv()).await;
            drop(turn);
            if let Ok(first) = first {
                return first;
            }
        }
        self.changes.recv().await
    }
}

#[cfg(test)]
pub(crate) mod tests;
