//! Looking closely at the few nodes that are being emptied: a watch of the pods of each, and its Lease every few seconds.
//!
//! All pods of a cluster are many, and all its Leases change all the time; of these nodes there are few.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use salvor_recovery::eviction::PodView;
use tokio::{
    sync::{Notify, Semaphore, mpsc},
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use super::{News, wire::Pods};
use crate::{
    live,
    watch::{Change, Source, Target, WatchHealth, follow},
};

/// How often a Lease is read. A kubelet renews it every ten seconds, and before anything is done to a pod it is read anyway.
const LEASE_PERIOD: Duration = Duration::from_secs(2);
/// Of many nodes each is read less often, so that all together are read no more often than this.
const BETWEEN_LEASES: Duration = Duration::from_millis(100);
/// A read that is not answered by then is made again.
const LEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// First lists of pods at once. A list is as large as a node is full, several times over while it is read; when a whole
/// rack is to be emptied, all of them together would be most of the memory that this process ever needs.
const LISTS_AT_ONCE: usize = 4;
/// What these watches are called.
pub(crate) const PODS: &str = "pods of evicted nodes";
/// A list that takes longer than this does not keep others waiting.
const LIST_TURN: Duration = Duration::from_secs(5);

/// Which nodes are looked at closely. A number tells a new look from an earlier one at a node of that name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CloseUps {
    /// Nodes whose pods are watched.
    pub(crate) pods: BTreeMap<String, u64>,
    /// Nodes whose Lease is read.
    pub(crate) leases: BTreeSet<String>,
}

/// What is wanted, as the recovery says and the looks follow. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted(Arc<(Mutex<CloseUps>, Notify)>);

impl Wanted {
    /// Wants this from now on.
    pub(crate) fn set(&self, wanted: CloseUps) {
        let mut now = self.state();
        if *now != wanted {
            *now = wanted;
            self.0.1.notify_one();
        }
    }

    /// What is wanted now.
    pub(crate) fn now(&self) -> CloseUps {
        self.state().clone()
    }

    /// How long each Lease is left alone between two reads.
    fn lease_period(&self) -> Duration {
        let nodes = u32::try_from(self.state().leases.len()).unwrap_or(u32::MAX);
        LEASE_PERIOD.max(BETWEEN_LEASES.saturating_mul(nodes))
    }

    fn state(&self) -> MutexGuard<'_, CloseUps> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows what is wanted until nobody listens any more.
pub(crate) async fn look(source: Source, wanted: Wanted, health: Arc<WatchHealth>, news: mpsc::Sender<News>) {
    let mut looks = JoinSet::new();
    let turns = Arc::new(Semaphore::new(LISTS_AT_ONCE));
    let mut watched: BTreeMap<String, (u64, AbortHandle)> = BTreeMap::new();
    let mut read: BTreeMap<String, AbortHandle> = BTreeMap::new();
    loop {
        let CloseUps { pods, leases } = wanted.now();
        watched.retain(|node, (number, watch)| stays(pods.get(node) == Some(number), watch));
        read.retain(|node, reads| stays(leases.contains(node), reads));
        for (node, number) in pods {
            watched.entry(node).or_insert_with_key(|node| {
                let (source, turns, news) = (source.clone(), turns.clone(), news.clone());
                let run = watch_pods(source, node.clone(), number, turns, health.clone(), news);
                (number, looks.spawn(run))
            });
        }
        for node in leases {
            read.entry(node).or_insert_with_key(|node| {
                looks.spawn(read_lease(source.client.clone(), node.clone(), wanted.clone(), news.clone()))
            });
        }
        tokio::select! {
            biased;
            () = news.closed() => return,
            () = wanted.0.1.notified() => {}
            // Only to take note of those that ended.
            Some(_) = looks.join_next(), if !looks.is_empty() => {}
        }
    }
}

fn stays(is_wanted: bool, look: &AbortHandle) -> bool {
    if !is_wanted {
        look.abort();
    }
    is_wanted
}

async fn watch_pods(
    source: Source,
    node: String,
    number: u64,
    turns: Arc<Semaphore>,
    health: Arc<WatchHealth>,
    news: mpsc::Sender<News>,
) {
    // Nobody closes it.
    let Ok(turn) = turns.acquire().await else { return };
    let selector = format!("spec.nodeName={node}");
    let target = Target { resource: PODS, path: "/api/v1/pods", field_selector: Some(selector.into()) };
    let (sender, mut changes) = mpsc::channel::<Change<PodView>>(64);
    let watch = follow(source, target, Pods, health.member(), sender);
    let pass_on = async {
        let first = tokio::time::timeout(LIST_TURN, changes.recv()).await;
        drop(turn);
        let mut next = match first {
            Ok(first) => first,
            Err(_) => changes.recv().await,
        };
        while let Some(change) = next {
            if news.send(News::Pod { node: node.clone(), number, change }).await.is_err() {
                return;
            }
            next = changes.recv().await;
        }
    };
    tokio::select! {
        biased;
        () = watch => {}
        () = pass_on => {}
    }
}

/// Reads a Lease now, and then by the clock. Each node has reads of its own, so that one that hangs holds up no other.
async fn read_lease(client: kube::Client, node: String, wanted: Wanted, news: mpsc::Sender<News>) {
    loop {
        let began = Instant::now();
        let error = match tokio::time::timeout(LEASE_TIMEOUT, live::node_lease(&client, &node)).await {
            Ok(Ok(lease)) => {
                if news.send(News::Lease { node: node.clone(), lease }).await.is_err() {
                    return;
                }
                None
            }
            Ok(Err(error)) => Some(live::brief(&error)),
            Err(_) => Some(format!("no answer within {LEASE_TIMEOUT:?}")),
        };
        if let Some(error) = error {
            tracing::warn!(recovery = "eviction", node, error, "its Lease cannot be read; tried again soon");
        }
        tokio::time::sleep_until(began + wanted.lease_period()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_leases_are_read_less_often_each() {
        let period_of = |nodes: usize| {
            let wanted = Wanted::default();
            let leases = (0..nodes).map(|node| node.to_string()).collect();
            wanted.set(CloseUps { leases, ..CloseUps::default() });
            wanted.lease_period()
        };
        assert_eq!([0, 1, 20].map(period_of), [LEASE_PERIOD; 3]);
        assert_eq!(period_of(50), Duration::from_secs(5));
    }
}
