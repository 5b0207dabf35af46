//! Counts the pods on nodes, only where the count decides which node is repaired next.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::Client;
use salvor_recovery::ids::NodeName;
use tokio::sync::Notify;

use crate::{
    client::{
        live,
        wire::{Nothing, Object},
    },
    recoveries::repair::{news::News, recheck::on_node, subjects::Key},
    watch_set::feeds::Outbox,
};

/// Timeout of a count. Without one, the node counts as having many pods, so that no node waits for it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The counts, and the nodes whose pods are to be counted. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct State {
    wanted: BTreeMap<Key, BTreeSet<NodeName>>,
    counts: BTreeMap<NodeName, u32>,
}

impl Counted {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests the counts of these nodes, which decide the order of repairs in a policy.
    pub(crate) fn want(&self, key: &Key, nodes: &BTreeSet<NodeName>) {
        let mut state = self.state();
        if nodes.is_empty() {
            state.wanted.remove(key);
        } else if state.wanted.get(key) != Some(nodes) {
            state.wanted.insert(key.clone(), nodes.clone());
            self.0.bell.notify_one();
        }
    }

    pub(crate) fn of(&self, node: &NodeName) -> Option<u32> {
        self.state().counts.get(node).copied()
    }

    pub(crate) fn counted(&self, node: &NodeName, pods: u32) {
        self.state().counts.insert(node.clone(), pods);
    }

    pub(crate) fn forget(&self, node: &NodeName) {
        self.state().counts.remove(node);
    }

    /// A node whose count is wanted and missing.
    fn next(&self) -> Option<NodeName> {
        let state = self.state();
        state.wanted.values().flatten().find(|node| !state.counts.contains_key(*node)).cloned()
    }
}

/// Counts the wanted nodes, one after the other, until the receiver is gone.
pub(crate) async fn count(client: Client, counted: Counted, news: Outbox<News>) {
    loop {
        let Some(node) = counted.next() else {
            tokio::select! {
                biased;
                () = news.closed() => return,
                () = counted.0.bell.notified() => continue,
            }
        };
        let selector = on_node(&node);
        let pods = live::list(&client, "/api/v1/pods", &selector, |_: Object<Nothing, Nothing>| Some(()));
        let pods = match tokio::time::timeout(TIMEOUT, pods).await {
            Ok(Ok(pods)) => u32::try_from(pods.len()).unwrap_or(u32::MAX),
            Ok(Err(_)) | Err(_) => u32::MAX,
        };
        counted.counted(&node, pods);
        if news.send(News::Pods { node, pods }).await.is_err() {
            return;
        }
    }
}
