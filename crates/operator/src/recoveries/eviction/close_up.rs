//! Reads about the few nodes that are being evicted: the Lease of each every few seconds, and the claims of those pods about
//! which they decide.
//!
//! All Leases of a cluster change all the time; of these nodes there are few.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::Client;
use salvor_recovery::{
    eviction::{Access, Claim},
    ids::{NodeName, Uid},
};
use tokio::{
    sync::{Notify, Semaphore},
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use super::{News, claims::read_access_as_far_as_can_be};
use crate::{feeds::Outbox, live, tasks::of_this_operator};

/// A Lease is read this often. A kubelet renews it every ten seconds, and it is read again before anything is done to a pod.
const LEASE_PERIOD: Duration = Duration::from_secs(2);
/// Of many nodes each is read less often, so that all together are read no more often than this.
const BETWEEN_LEASES: Duration = Duration::from_millis(100);
/// A read that is not answered by then is made again.
const LEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pods whose claims are read at once.
const CLAIMS_AT_ONCE: usize = 4;
/// Claims of a pod that are not read by then cannot be read for now.
const CLAIMS_TIMEOUT: Duration = Duration::from_secs(20);
/// A claim that cannot be read is read again after this time. It may be created later, or the right to read it granted.
const CLAIMS_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// The nodes that are read. A number tells a new look at a node from an earlier one at a node of the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CloseUps {
    /// Nodes whose Lease is read.
    pub(crate) leases: BTreeSet<NodeName>,
    /// Pods whose claims are read, by their UID and the number of the look at their node.
    pub(crate) claims: BTreeMap<(Uid, u64), ClaimsOf>,
}

/// The claims of a pod on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimsOf {
    pub(crate) node: NodeName,
    pub(crate) claims: Vec<Claim>,
}

/// The reads that the recovery wants, and that the readers carry out. Clones share it.
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

    /// The reads that are wanted now.
    pub(crate) fn now(&self) -> CloseUps {
        self.state().clone()
    }

    /// The time between two reads of each Lease.
    fn lease_period(&self) -> Duration {
        let nodes = u32::try_from(self.state().leases.len()).unwrap_or(u32::MAX);
        LEASE_PERIOD.max(BETWEEN_LEASES.saturating_mul(nodes))
    }

    fn state(&self) -> MutexGuard<'_, CloseUps> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows what is wanted until nobody listens any more.
pub(crate) async fn look(client: Client, wanted: Wanted, news: Outbox<News>) {
    let mut looks = JoinSet::new();
    let mut read: BTreeMap<NodeName, AbortHandle> = BTreeMap::new();
    let claim_turns = Arc::new(Semaphore::new(CLAIMS_AT_ONCE));
    let mut claimed: BTreeMap<(Uid, u64), AbortHandle> = BTreeMap::new();
    loop {
        let CloseUps { leases, claims } = wanted.now();
        read.retain(|node, reads| stays(leases.contains(node), reads));
        claimed.retain(|pod, reads| stays(claims.contains_key(pod), reads));
        for node in leases {
            read.entry(node).or_insert_with_key(|node| {
                let read = read_lease(client.clone(), node.clone(), wanted.clone(), news.clone());
                looks.spawn(of_this_operator(read))
            });
        }
        for (pod, of) in claims {
            claimed.entry(pod).or_insert_with_key(|(uid, number)| {
                let (client, turns, news) = (client.clone(), claim_turns.clone(), news.clone());
                looks.spawn(of_this_operator(read_claims(client, uid.clone(), *number, of, turns, news)))
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

/// Reads a Lease now, and then by the clock. Each node has reads of its own, so that one that hangs holds up no other.
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
                "its Lease cannot be read; tried again soon"
            );
        }
        tokio::time::sleep_until(began + wanted.lease_period()).await;
    }
}

/// Reads the claims of a pod, and again those that cannot be read, for as long as anybody wants to know.
async fn read_claims(
    client: Client,
    uid: Uid,
    number: u64,
    ClaimsOf { node, claims }: ClaimsOf,
    turns: Arc<Semaphore>,
    news: Outbox<News>,
) {
    loop {
        // Nobody closes it.
        let Ok(turn) = turns.acquire().await else { return };
        let reading = read_access_as_far_as_can_be(&client, &claims);
        let access = match tokio::time::timeout(CLAIMS_TIMEOUT, reading).await {
            Ok(access) => access,
            Err(_) => Access::Unreadable(format!("its claims were not read within {CLAIMS_TIMEOUT:?}")),
        };
        drop(turn);
        let told = News::Claims { node: node.clone(), number, uid: uid.clone(), access };
        if news.send(told).await.is_err() {
            return;
        }
        tokio::time::sleep(CLAIMS_AGAIN_AFTER).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_leases_are_read_less_often_each() {
        let period_of = |nodes: usize| {
            let wanted = Wanted::default();
            let leases = (0..nodes).map(|node| node.to_string().into()).collect();
            wanted.set(CloseUps { leases, ..CloseUps::default() });
            wanted.lease_period()
        };
        assert_eq!([0, 1, 20].map(period_of), [LEASE_PERIOD; 3]);
        assert_eq!(period_of(50), Duration::from_secs(5));
    }
}
