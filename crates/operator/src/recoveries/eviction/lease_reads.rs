//! Reads the Leases of the nodes that are being evicted, every few seconds.
//!
//! All Leases of a cluster change all the time, so they are not watched; there are few such nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::Client;
use salvor_recovery::ids::NodeName;
use tokio::{
    sync::Notify,
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use super::news::News;
use crate::{client::live, tasks::of_this_operator, watch_set::feeds::Outbox};

/// A Lease is read this often. A kubelet renews it every ten seconds, and it is read again before any write to a pod.
const LEASE_PERIOD: Duration = Duration::from_secs(2);
/// With many nodes each is read less often, so that all reads together keep this distance.
const BETWEEN_LEASES: Duration = Duration::from_millis(100);
/// Timeout of a read, after which it is repeated.
const LEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// The nodes whose Leases the recovery wants, and that the readers follow. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted(Arc<(Mutex<BTreeSet<NodeName>>, Notify)>);

impl Wanted {
    pub(crate) fn set(&self, wanted: BTreeSet<NodeName>) {
        let mut now = self.state();
        if *now != wanted {
            *now = wanted;
            self.0.1.notify_one();
        }
    }

    pub(crate) fn now(&self) -> BTreeSet<NodeName> {
        self.state().clone()
    }

    fn lease_period(&self) -> Duration {
        let nodes = u32::try_from(self.state().len()).unwrap_or(u32::MAX);
        LEASE_PERIOD.max(BETWEEN_LEASES.saturating_mul(nodes))
    }

    fn state(&self) -> MutexGuard<'_, BTreeSet<NodeName>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the wanted Leases until the receiver is gone.
pub(crate) async fn look(client: Client, wanted: Wanted, news: Outbox<News>) {
    let mut looks = JoinSet::new();
    let mut read: BTreeMap<NodeName, AbortHandle> = BTreeMap::new();
    loop {
        let leases = wanted.now();
        read.retain(|node, reads| stays(leases.contains(node), reads));
        for node in leases {
            read.entry(node).or_insert_with_key(|node| {
                let read = read_lease(client.clone(), node.clone(), wanted.clone(), news.clone());
                looks.spawn(of_this_operator(read))
            });
        }
        tokio::select! {
            biased;
            () = news.closed() => return,
            () = wanted.0.1.notified() => {}
            // Only to collect the tasks that ended.
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

/// Reads a Lease now, and then periodically. Each node has its own task, so that a hanging read delays no other.
async fn read_lease(client: kube::Client, node: NodeName, wanted: Wanted, news: Outbox<News>) {
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
            tracing::warn!(
                recovery = "eviction",
                node = node.as_str(),
                error,
                "node lease read failed, retrying"
            );
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
            wanted.set((0..nodes).map(|node| node.to_string().into()).collect());
            wanted.lease_period()
        };
        assert_eq!([0, 1, 20].map(period_of), [LEASE_PERIOD; 3]);
        assert_eq!(period_of(50), Duration::from_secs(5));
    }
}
