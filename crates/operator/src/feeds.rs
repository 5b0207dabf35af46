//! Declared watches. A recovery says as values what it listens to; the operator runs the tasks, and keeps how they are doing.
//!
//! A recovery declares all its feeds anew whenever its wishes change. A feed that was declared before goes on undisturbed.
//! A feed that is declared no more is stopped, and nothing that it has told is heard from then on, even if it was under way:
//! what was known from it is the recovery's to forget. A feed that is declared later under the same key begins with a list.
//!
//! A watch either lasts, and then readiness waits for its first list, or comes and goes. All that come and go under one name are
//! one entry in the metrics: as old as the oldest of them.
//!
//! A kind that is known only at run time is looked up first. If it is not served, may not be read, or cannot be read for
//! [`kind::KIND_PATIENCE`], its watch counts no more and the recovery is told: other kinds, and readiness, are not held up by it.

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
    brake_keeper::BrakeKeeper,
    discovery::Discovery,
    nodes::{Needs, NeedsVolumes, Node, NodeFeed},
    tasks,
    watch::{Change, Project, Source, Target, WatchHealth, WatchSet, follow},
};
pub(crate) use kind::{KindLost, KindTarget, OfKind};

/// News that may wait to be taken in; past that, watches wait.
const NEWS: usize = 1024;
/// Changes of one watch that may wait to be passed on.
const CHANGES: usize = 64;
/// First lists at once of watches that come and go. A list is several times as large while it is read; of many that are begun
/// at once, all together would be most of the memory that this process ever needs.
const LISTS_AT_ONCE: usize = 4;
/// A first list that takes longer than this does not keep others waiting.
const LIST_TURN: Duration = Duration::from_secs(5);
/// One thing that a recovery listens to.
pub(crate) struct Feed<News> {
    key: Key,
    health: Health,
    /// True if nothing is judged in a new term before it was listed.
    listed_to_lead: bool,
    start: Start<News>,
}

type Start<News> = Box<dyn FnOnce(Stage<News>) -> BoxFuture<'static, ()> + Send>;

/// Which feed. Two declarations with one key are the same feed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Watch(Target, u64),
    Kind(&'static str, KindTarget, u64),
    Nodes,
    Reads(&'static str),
    Group(&'static str),
}

/// The role of a feed for freshness, readiness and metrics.
enum Health {
    /// From the beginning.
    Lasting(Arc<WatchHealth>),
    /// As one of those that come and go under this name.
    OneOfMany(&'static str),
    /// As the one watch of nodes.
    Nodes,
    /// Not at all: it is no watch.
    None,
}

impl<News: Send + 'static> Feed<News> {
    /// A watch for as long as the recovery runs. The recovery may keep a hand on its health.
    pub(crate) fn watch<P: Project>(
        target: Target,
        projection: P,
        health: &Arc<WatchHealth>,
        wrap: impl Fn(Change<P::Kept>) -> News + Send + 'static,
    ) -> Self {
        Self::watch_in_parts(target, projection, health, move |change| [wrap(change)])
    }

    /// The same for a watch one change of which is several news.
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

    /// A watch that comes and goes. The number tells it from an earlier one of the same objects.
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

    /// The nodes of the cluster, each in the form that the recovery keeps. All recoveries share one watch of them.
    pub(crate) fn nodes<T: Send + 'static>(
        volumes: Option<NeedsVolumes>,
        form: impl Fn(&Node) -> T + Send + Sync + 'static,
        wrap: impl Fn(Change<T>) -> News + Send + 'static,
    ) -> Self {
        Self::nodes_with(Needs { volumes, conditions: false }, form, wrap)
    }

    /// The same for a recovery that needs more of them.
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

    /// Reads that are no watch, for as long as the recovery runs.
    pub(crate) fn reads<Run: Future<Output = ()> + Send + 'static>(
        name: &'static str,
        run: impl FnOnce(Client, Outbox<News>) -> Run + Send + 'static,
    ) -> Self {
        let start = move |stage: Stage<News>| run(stage.hub.source.client, stage.outbox).boxed();
        Self { key: Key::Reads(name), health: Health::None, listed_to_lead: false, start: Box::new(start) }
    }

    /// Watches under this name may come: metrics show it also while there is none.
    pub(crate) fn group(name: &'static str) -> Self {
        let start = |_| std::future::ready(()).boxed();
        Self {
            key: Key::Group(name),
            health: Health::OneOfMany(name),
            listed_to_lead: false,
            start: Box::new(start),
        }
    }

    /// Begins only when something else is over. Its health counts from the beginning.
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

    /// Nothing is judged in a new term before this watch was listed in it. That is for whoever counts, or takes what is not there
    /// for not existing: whoever led before us wrote until now, and of two watches one may show a write of it and the other
    /// not yet another. A step that names the revision it judged, or that is looked at live before, needs no such list; so zombie
    /// and eviction recovery begin at once. A list that a cache of the server may answer would prove nothing: this one is read
    /// from the store.
    pub(crate) fn listed_to_lead(self) -> Self {
        Self { listed_to_lead: true, ..self }
    }
}

/// The environment that a feed gets at its start.
struct Stage<News> {
    hub: Hub,
    /// Of all that come and go under its name.
    health: Arc<WatchHealth>,
    turns: Arc<Semaphore>,
    outbox: Outbox<News>,
}

impl<News> Stage<News> {
    async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // Nobody closes it.
        self.turns.clone().acquire_owned().await.ok()
    }
}

/// Where a feed puts its news.
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

/// Nobody listens any more.
#[derive(Debug)]
pub(crate) struct Unheard;

impl<News> Outbox<News> {
    /// Waits until there is room for it.
    pub(crate) async fn send(&self, news: News) -> Result<(), Unheard> {
        self.to.send(Item { feed: self.feed, news }).await.map_err(|_| Unheard)
    }

    /// Waits until nobody listens any more.
    pub(crate) async fn closed(&self) {
        self.to.closed().await;
    }
}

/// News, and the feed that told it.
#[derive(Debug)]
pub(crate) struct Item<News> {
    feed: u64,
    news: News,
}

/// The state that the feeds of all recoveries of an operator share. Clones share it, too.
#[derive(Clone)]
pub(crate) struct Hub {
    source: Source,
    #[cfg_attr(not(test), allow(dead_code, reason = "see `kind`"))]
    discovery: Discovery,
    nodes: NodeFeed,
    /// The watches of the whole operator.
    pub(crate) watches: WatchSet,
}

impl Hub {
    /// Nothing is watched yet. The keeper is told of nodes once anybody listens to them.
    pub(crate) fn new(source: Source, keeper: BrakeKeeper) -> Self {
        let discovery = Discovery::new(source.client.clone());
        let nodes = NodeFeed::new(source.clone(), keeper);
        Self { source, discovery, nodes, watches: WatchSet::default() }
    }
}

/// The feeds of one recovery.
pub(crate) struct Feeds<News> {
    hub: Hub,
    turns: Arc<Semaphore>,
    to: mpsc::Sender<Item<News>>,
    running: BTreeMap<Key, Running>,
    /// The numbers of those that run.
    heard: BTreeSet<u64>,
    groups: BTreeMap<&'static str, Arc<WatchHealth>>,
    started: u64,
    /// The lists without which nothing is judged, and how many of each had been asked for then.
    awaited: Vec<(Arc<WatchHealth>, u64)>,
    /// The watches of this recovery.
    watches: WatchSet,
}

struct Running {
    feed: u64,
    listed_to_lead: bool,
    lasting: Option<Arc<WatchHealth>>,
    _task: AbortOnDropHandle<()>,
}

/// News of feeds, as they come in.
pub(crate) type Inbox<News> = mpsc::Receiver<Item<News>>;

impl<News: Send + 'static> Feeds<News> {
    /// None yet. The watches that are declared are in the hub's set too.
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

    /// The watches as one. It is the same set for as long as these feeds are there.
    pub(crate) fn watches(&self) -> &WatchSet {
        &self.watches
    }

    /// Runs these feeds from now on, and no others.
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
            // It stays with the others who listen.
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

    /// Has those watches listed anew without which nothing is judged in a new term.
    pub(crate) fn ask_for_lists(&mut self) {
        let listed = self.running.values().filter(|running| running.listed_to_lead);
        let watches = listed.filter_map(|running| running.lasting.as_ref());
        self.awaited = watches.map(|watch| (watch.clone(), watch.ask_for_list())).collect();
    }

    /// True if the lists that were asked for are taken in.
    pub(crate) fn are_listed(&mut self) -> bool {
        self.awaited.retain(|(watch, asked)| !watch.has_taken_in(*asked));
        self.awaited.is_empty()
    }

    /// The news, unless it is of a feed that is declared no more.
    pub(crate) fn open(&self, Item { feed, news }: Item<News>) -> Option<News> {
        self.heard.contains(&feed).then_some(news)
    }

    /// For news that no feed tells.
    #[cfg(test)]
    pub(crate) fn outbox(&self) -> Outbox<News> {
        Outbox { feed: UNDECLARED, to: self.to.clone() }
    }
}

/// The number of no feed.
const UNDECLARED: u64 = 0;

/// Runs a watch and passes on what it tells until the watch ends or nobody listens; how the watch ended.
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

/// Changes of a watch, one after the other.
trait Changes<T>: Send {
    fn next(&mut self) -> impl Future<Output = Option<Change<T>>> + Send;
}

impl<T: Send> Changes<T> for mpsc::Receiver<Change<T>> {
    async fn next(&mut self) -> Option<Change<T>> {
        self.recv().await
    }
}

/// Changes of a watch that had to wait for its turn to list, and gives it up with its first list.
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
