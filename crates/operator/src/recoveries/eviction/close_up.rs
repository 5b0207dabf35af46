//! Looking closely at the few nodes that are being emptied: a watch of the pods of each, and its Lease every other second.
//!
//! All pods of a cluster are many, and all its Leases change all the time; of these nodes there are few.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use kube::Client;
use salvor_recovery::eviction::PodView;
use tokio::{
    sync::{Notify, mpsc},
    task::{AbortHandle, JoinSet},
    time::MissedTickBehavior,
};

use super::{News, wire::Pods};
use crate::{
    live,
    watch::{Change, Target, WatchHealth, follow},
};

/// How often a Lease is read. A kubelet renews it every ten seconds.
const LEASE_PERIOD: Duration = Duration::from_secs(2);

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

    fn state(&self) -> MutexGuard<'_, CloseUps> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows what is wanted until nobody listens any more.
pub(crate) async fn look(client: Client, wanted: Wanted, news: mpsc::Sender<News>) {
    let mut watches = JoinSet::new();
    let mut watched: BTreeMap<String, (u64, AbortHandle)> = BTreeMap::new();
    let mut read: BTreeSet<String> = BTreeSet::new();
    let mut period = tokio::time::interval(LEASE_PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now_wanted = wanted.now();
        watched.retain(|node, (number, watch)| {
            let stays = now_wanted.pods.get(node) == Some(number);
            if !stays {
                watch.abort();
            }
            stays
        });
        for (node, number) in &now_wanted.pods {
            if !watched.contains_key(node) {
                let run = watch_pods(client.clone(), node.clone(), *number, news.clone());
                watched.insert(node.clone(), (*number, watches.spawn(run)));
            }
        }
        // What is new is read at once, all the rest by the clock.
        let unread: Vec<String> = now_wanted.leases.difference(&read).cloned().collect();
        read_leases(&client, unread, &news).await;
        read = now_wanted.leases;
        tokio::select! {
            biased;
            () = news.closed() => return,
            () = wanted.0.1.notified() => {}
            _ = period.tick() => read_leases(&client, read.iter().cloned().collect(), &news).await,
            // Only to take note of those that ended.
            Some(_) = watches.join_next(), if !watches.is_empty() => {}
        }
    }
}

async fn watch_pods(client: Client, node: String, number: u64, news: mpsc::Sender<News>) {
    let selector = format!("spec.nodeName={node}");
    let target = Target {
        resource: "pods of evicted nodes",
        path: "/api/v1/pods",
        field_selector: Some(selector.into()),
    };
    let (sender, mut changes) = mpsc::channel::<Change<PodView>>(64);
    let watch = follow(client, target, Pods, WatchHealth::new("pods of evicted nodes"), sender);
    let pass_on = async {
        while let Some(change) = changes.recv().await {
            if news.send(News::Pod { node: node.clone(), number, change }).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        () = watch => {}
        () = pass_on => {}
    }
}

async fn read_leases(client: &Client, nodes: Vec<String>, news: &mpsc::Sender<News>) {
    let reads = nodes.into_iter().map(|node| async move {
        match live::node_lease(client, &node).await {
            // Nobody listens any more: then nobody needs to know.
            Ok(lease) => drop(news.send(News::Lease { node, lease }).await),
            Err(error) => {
                let error = live::brief(&error);
                tracing::warn!(
                    recovery = "eviction",
                    node,
                    error,
                    "its Lease cannot be read; tried again soon"
                );
            }
        }
    });
    join_all(reads).await;
}
