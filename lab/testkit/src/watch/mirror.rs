//! The current state of some objects, followed by one watch for any number of readers.

use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use kube::Resource;
use kube::api::{Api, ListParams};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::replica::{Replica, follow};
use super::wait::{self, Watched};

/// Follows until it is dropped, on the async runtime that started it. Many tests can read it all the time without a
/// single request.
#[derive(Debug)]
pub struct Mirror<K> {
    replica: Arc<Mutex<Replica<K>>>,
    task: JoinHandle<()>,
}

impl<K: Watched<DynamicType = ()>> Mirror<K> {
    /// Starts to follow the selected objects; returns when the existing ones have been listed.
    ///
    /// # Panics
    /// If the API server does not answer.
    pub async fn start(api: &Api<K>, selection: &ListParams) -> Self {
        let replica = Arc::new(Mutex::new(Replica::default()));
        let (tell_listed, mut listed) = watch::channel(false);
        let task = tokio::spawn({
            let mut events = follow(api, selection);
            let replica = Arc::clone(&replica);
            async move {
                // The watch recovers from errors by itself.
                while let Some(event) = events.next().await {
                    if let Ok(event) = event {
                        let mut replica = lock(&replica);
                        replica.take(event);
                        tell_listed.send_if_modified(|was| {
                            !std::mem::replace(was, replica.objects().is_some()) && *was
                        });
                    }
                }
            }
        });
        let mirror = Self { replica, task };
        let begun = wait::patience().until(listed.wait_for(|listed| *listed)).await;
        assert!(begun.is_some(), "{}s cannot be followed: the API server does not list them", K::kind(&()));
        mirror
    }

    /// The objects of a namespace whose names have this prefix, as last seen, ordered by name.
    pub fn named_like(&self, namespace: &str, prefix: &str) -> Vec<K> {
        lock(&self.replica).named_like(namespace, prefix).to_vec()
    }
}

impl<K> Drop for Mirror<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<K: Resource>(replica: &Mutex<Replica<K>>) -> std::sync::MutexGuard<'_, Replica<K>> {
    replica.lock().unwrap_or_else(PoisonError::into_inner)
}
