//! One watch of one kind, for all loops.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::TryStreamExt as _;
use kube::Client;
use kube::api::WatchEvent;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::signal::Signal;

use super::world::{Change, Delta, HasMeta, Kind, Place, World};

/// How long a watch lasts before it is opened anew, in seconds.
const WATCH_SECONDS: u32 = 290;
/// After a failure the watch begins anew after this, doubled each time up to the longest. Without jitter: one seed must
/// give one history.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// The wait before attempt number `attempt`, counted from one.
pub(crate) fn retry_after(attempt: u32) -> Duration {
    FIRST_RETRY.saturating_mul(2u32.saturating_pow(attempt.saturating_sub(1).min(16))).min(LONGEST_RETRY)
}

/// The world, and who wants to hear of it.
#[derive(Debug)]
pub(crate) struct Shared {
    world: Mutex<World>,
    listeners: Vec<mpsc::UnboundedSender<Change>>,
    bell: Signal<()>,
}

impl Shared {
    pub(crate) fn new(listeners: Vec<mpsc::UnboundedSender<Change>>) -> Self {
        Self { world: Mutex::default(), listeners, bell: Signal::default() }
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the world is as wanted.
    pub(crate) async fn until(&self, is_so: impl Fn(&World) -> bool) {
        let mut bell = self.bell.listen();
        while !is_so(&self.world()) {
            bell.changed().await;
        }
    }

    fn tell<V>(&self, change: fn(Delta<V>) -> Change, act: impl FnOnce(&mut World) -> Vec<Delta<V>>) {
        let mut world = self.world();
        let changes: Vec<Change> = act(&mut world).into_iter().map(change).collect();
        for change in &changes {
            world.index(change);
        }
        drop(world);
        for change in changes {
            for listener in &self.listeners {
                // A loop that has ended hears nothing more.
                let _ = listener.send(change.clone());
            }
        }
        self.bell.set(());
    }
}

#[derive(Deserialize)]
struct List<V> {
    metadata: ListMeta,
    #[serde(default = "Vec::new")]
    items: Vec<V>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
}

/// Which kind to follow, and where it goes.
pub(crate) struct Follow<V> {
    pub(crate) kind: Kind,
    /// Only this namespace; all where it is empty.
    pub(crate) namespace: &'static str,
    pub(crate) place: Place<V>,
    pub(crate) change: fn(Delta<V>) -> Change,
}

impl<V: HasMeta + Clone + DeserializeOwned + Send + 'static> Follow<V> {
    /// Follows the kind for ever.
    pub(crate) async fn run(self, client: Client, shared: Arc<Shared>) {
        let mut failures = 0;
        loop {
            match self.list(&client, &shared).await {
                Ok(revision) => {
                    failures = 0;
                    self.watch(&client, &shared, revision).await;
                }
                Err(error) => tracing::debug!(kind = self.kind.name(), %error, "list failed"),
            }
            failures += 1;
            sleep(retry_after(failures)).await;
        }
    }

    async fn list(&self, client: &Client, shared: &Shared) -> kube::Result<String> {
        let request = http::Request::get(self.kind.path(self.namespace)).body(Vec::new());
        let list: List<V> = client.request(request.map_err(kube::Error::HttpError)?).await?;
        let revision = list.metadata.resource_version;
        let number = revision.parse().unwrap_or(0);
        shared.tell(self.change, |world| world.replace(self.kind, self.place, list.items, number));
        Ok(revision)
    }

    /// Watches from a revision for as long as the server lets us.
    async fn watch(&self, client: &Client, shared: &Shared, mut revision: String) {
        let path = self.kind.path(self.namespace);
        let mut empty_in_a_row = 0;
        loop {
            let uri = format!(
                "{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={revision}"
            );
            let before = revision.clone();
            let Ok(request) = http::Request::get(uri).body(Vec::new()) else { return };
            let Ok(events) = client.request_events::<V>(request).await else { return };
            let mut events = std::pin::pin!(events);
            loop {
                match events.try_next().await {
                    Ok(Some(event)) => match self.take(event, shared) {
                        Some(seen) => revision = seen,
                        None => return,
                    },
                    Ok(None) => break,
                    Err(error) => {
                        tracing::debug!(kind = self.kind.name(), %error, "watch broke off");
                        break;
                    }
                }
            }
            // A server that closes watches at once must not be asked without a pause.
            empty_in_a_row = if before == revision { empty_in_a_row + 1 } else { 0 };
            if empty_in_a_row > 1 {
                sleep(retry_after(empty_in_a_row)).await;
            }
        }
    }

    /// Takes an event in; the revision it brings, or none when the watch must begin anew.
    fn take(&self, event: WatchEvent<V>, shared: &Shared) -> Option<String> {
        let (kind, place) = (self.kind, self.place);
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let revision = object.meta().resource_version.clone();
                shared.tell(self.change, |world| world.put(kind, place, object));
                Some(revision)
            }
            WatchEvent::Deleted(object) => {
                let revision = object.meta().resource_version.clone();
                shared.tell(self.change, |world| world.remove(kind, place, object.meta()));
                Some(revision)
            }
            WatchEvent::Bookmark(bookmark) => {
                let revision = bookmark.metadata.resource_version;
                shared.tell(self.change, |world| {
                    world.saw(kind, revision.parse().unwrap_or(0));
                    Vec::new()
                });
                Some(revision)
            }
            WatchEvent::Error(status) => {
                tracing::debug!(kind = kind.name(), error = status.message, "watch is over");
                None
            }
        }
    }
}
