//! Reads the Leases of nodes that may be lost and whose pods are in question, for all recoveries that need them: now,
//! and then every few seconds while they are wanted.
//!
//! All Leases of a cluster change all the time, so they are not watched. But one read does not show whether a Lease is
//! still renewed. So it is read early, while its pods still wait, and the second look before a write has something to
//! compare with.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use kube::Client;
use salvor_recovery::{
    ids::NodeName,
    liveness::{Heartbeat, NodeLease},
    objects::NodeRef,
};
use tokio::{
    sync::{Notify, Semaphore},
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use crate::{client::live, tasks::of_this_operator, watch_set::feeds::Outbox};

/// A Lease is read this often: as often as a kubelet renews it.
const PERIOD: Duration = Duration::from_secs(10);
/// With many nodes each is read less often, so that all reads together keep this distance.
const BETWEEN_READS: Duration = Duration::from_millis(100);
/// Limit on concurrent reads, for when a whole rack is lost.
const READS_AT_ONCE: usize = 8;
/// Timeout of a read, after which it is repeated.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The heartbeat of each node's kubelet. Clones share it, so that the read of a second look is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heartbeats(Arc<Mutex<BTreeMap<NodeName, (NodeRef, Heartbeat)>>>);

impl Heartbeats {
    /// The heartbeat of exactly this node, by name and UID.
    pub(crate) fn of(&self, node: &NodeRef) -> Heartbeat {
        let known = self.known();
        known
            .get(&node.name)
            .filter(|(of, _)| of == node)
            .map_or(Heartbeat::UNREAD, |(_, heartbeat)| *heartbeat)
    }

    /// Records a read.
    pub(crate) fn note(&self, node: &NodeRef, read: Option<NodeLease>, now: Timestamp) -> Heartbeat {
        let mut known = self.known();
        let (of, heartbeat) =
            known.entry(node.name.clone()).or_insert_with(|| (node.clone(), Heartbeat::UNREAD));
        if of != node {
            // Another node of the same name: earlier heartbeats say nothing about it.
            (*of, *heartbeat) = (node.clone(), Heartbeat::UNREAD);
        }
        *heartbeat = heartbeat.then(read, now);
        *heartbeat
    }

    /// The node is no longer in question. The next incident starts from nothing.
    pub(crate) fn forget(&self, node: &NodeName) {
        self.known().remove(node);
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<NodeName, (NodeRef, Heartbeat)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The nodes whose Leases are wanted: the recovery sets them and the reader follows. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted(Arc<(Mutex<BTreeSet<NodeName>>, Notify)>);

impl Wanted {
    pub(crate) fn set(&self, node: &NodeName, wanted: bool) {
        let changed = if wanted { self.nodes().insert(node.clone()) } else { self.nodes().remove(node) };
        if changed {
            self.0.1.notify_one();
        }
    }

    pub(crate) fn now(&self) -> BTreeSet<NodeName> {
        self.nodes().clone()
    }

    fn period(&self) -> Duration {
        let nodes = u32::try_from(self.nodes().len()).unwrap_or(u32::MAX);
        PERIOD.max(BETWEEN_READS.saturating_mul(nodes))
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeSet<NodeName>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Turns a Lease into a message of the recovery.
pub(crate) type Tell<News> = fn(NodeName, Option<NodeLease>) -> News;

/// Reads the wanted Leases until the receiver is gone. `recovery` is used in log messages.
pub(crate) async fn read<News: Send + 'static>(
    recovery: &'static str,
    client: Client,
    wanted: Wanted,
    news: Outbox<News>,
    tell: Tell<News>,
) {
    let mut tasks = JoinSet::new();
    let turns = Arc::new(Semaphore::new(READS_AT_ONCE));
    let mut reading: BTreeMap<NodeName, AbortHandle> = BTreeMap::new();
    loop {
        let nodes = wanted.now();
        reading.retain(|node, task| {
            let stays = nodes.contains(node);
            if !stays {
                task.abort();
            }
            stays
        });
        for node in nodes {
            reading.entry(node).or_insert_with_key(|node| {
                let reader = Reader {
                    recovery,
                    client: client.clone(),
                    wanted: wanted.clone(),
                    turns: turns.clone(),
                    news: news.clone(),
                    tell,
                };
                tasks.spawn(of_this_operator(reader.read(node.clone())))
            });
        }
        tokio::select! {
            biased;
            () = news.closed() => return,
            () = wanted.0.1.notified() => {}
            // Only to collect the tasks that ended.
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
        }
    }
}

/// Reads the Lease of one node. Each node has its own task, so that a hanging read delays few others.
struct Reader<News> {
    recovery: &'static str,
    client: Client,
    wanted: Wanted,
    turns: Arc<Semaphore>,
    news: Outbox<News>,
    tell: Tell<News>,
}

impl<News> Reader<News> {
    async fn read(self, node: NodeName) {
        loop {
            // The semaphore is never closed.
            let Ok(turn) = self.turns.acquire().await else { return };
            let began = Instant::now();
            let answer = tokio::time::timeout(TIMEOUT, live::node_lease(&self.client, &node)).await;
            drop(turn);
            // A missing answer does not mean a silent kubelet: the state stays unknown.
            let error = match answer {
                Ok(Ok(lease)) => {
                    if self.news.send((self.tell)(node.clone(), lease)).await.is_err() {
                        return;
                    }
                    None
                }
                Ok(Err(error)) => Some(live::brief(&error)),
                Err(_) => Some(format!("no answer within {TIMEOUT:?}")),
            };
            if let Some(error) = error {
                let recovery = self.recovery;
                tracing::warn!(recovery, node = node.as_str(), error, "node lease read failed, retrying");
            }
            tokio::time::sleep_until(began + self.wanted.period()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn node(uid: &str) -> NodeRef {
        NodeRef { name: "a".into(), uid: uid.into() }
    }

    #[test]
    fn a_new_node_of_the_same_name_is_looked_at_anew() {
        let heartbeats = Heartbeats::default();
        let read = |seconds| Some(NodeLease::new(at(seconds), SignedDuration::from_secs(40)));
        let first = heartbeats.note(&node("1"), read(-600), at(0));
        assert_eq!(heartbeats.of(&node("1")), first);
        assert_eq!(heartbeats.of(&node("2")), Heartbeat::UNREAD);
        let moved = heartbeats.note(&node("1"), read(-590), at(10));
        assert_eq!(moved.silent_from(), Some(at(50)));
        let other = heartbeats.note(&node("2"), read(-580), at(20));
        assert_eq!(other.silent_from(), Some(at(40)), "not seen to move: first sight");
        assert_eq!(heartbeats.of(&node("1")), Heartbeat::UNREAD);
        heartbeats.forget(&"a".into());
        assert_eq!(heartbeats.of(&node("2")), Heartbeat::UNREAD);
    }

    #[test]
    fn many_leases_are_read_less_often_each() {
        let period_of = |nodes: usize| {
            let wanted = Wanted::default();
            (0..nodes).for_each(|node| wanted.set(&node.to_string().into(), true));
            wanted.period()
        };
        assert_eq!([0, 1, 100].map(period_of), [PERIOD; 3]);
        assert_eq!(period_of(500), Duration::from_secs(50));
    }
}
