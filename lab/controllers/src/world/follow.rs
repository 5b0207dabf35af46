//! One watch of one kind, shared by all loops.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::TryStreamExt as _;
use http::header::ACCEPT;
use kube::Client;
use kube::api::WatchEvent;
use salvor_apiserver::signal::{Listener, Signal};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::collection::{Kind, Resource};
use super::served::{METADATA, METADATA_LIST};
use super::views::{Bare, Meta};
use super::{Change, Delta, HasMeta, Place, World};

/// A watch lasts for this many seconds, then it is opened again.
const WATCH_SECONDS: u32 = 290;
/// The same for kinds of which only the metadata is read: there are many, and most change rarely.
const QUIET_WATCH_SECONDS: u32 = 3600;
/// The first backoff after a failed watch; it doubles each time up to the longest. Without jitter: one seed must give
/// one history.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// A list that is not answered by then, and a watch that is not opened, is retried.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The wait before attempt number `attempt`, counted from one.
pub(crate) fn retry_after(attempt: u32) -> Duration {
    FIRST_RETRY.saturating_mul(2u32.saturating_pow(attempt.saturating_sub(1).min(16))).min(LONGEST_RETRY)
}

/// The world, and the loops that receive its changes.
#[derive(Debug)]
pub(crate) struct Shared {
    world: Mutex<World>,
    /// Set once, before the first watch.
    listeners: OnceLock<Vec<Ear>>,
    bell: Signal<()>,
    /// Signalled when a CustomResourceDefinition has changed.
    definitions: Signal<()>,
}

/// A loop that receives changes.
#[derive(Debug)]
pub(crate) struct Ear {
    /// The kinds that it follows; `None` if it follows everything.
    pub(crate) kinds: Option<&'static [Kind]>,
    pub(crate) inbox: mpsc::UnboundedSender<Change>,
}

impl Ear {
    /// True if a change concerns the loop. Hundreds of Leases a second need not wake loops that read none.
    fn hears(&self, change: &Change) -> bool {
        self.kinds.is_none_or(|kinds| change.kind().is_some_and(|kind| kinds.contains(&kind)))
    }
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            world: Mutex::default(),
            listeners: OnceLock::new(),
            bell: Signal::default(),
            definitions: Signal::default(),
        }
    }

    pub(crate) fn listen(&self, listeners: Vec<Ear>) {
        let first = self.listeners.set(listeners);
        debug_assert!(first.is_ok(), "loops are started together");
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the world satisfies a condition.
    pub(crate) async fn until(&self, is_so: impl Fn(&World) -> bool) {
        let mut bell = self.bell.listen();
        while !is_so(&self.world()) {
            bell.changed().await;
        }
    }

    pub(crate) fn definitions(&self) -> Listener<()> {
        self.definitions.listen()
    }

    /// Changes the world, and notifies all loops.
    pub(crate) fn tell(&self, act: impl FnOnce(&mut World) -> Vec<Change>) {
        let mut world = self.world();
        let changes = act(&mut world);
        for change in &changes {
            world.index(change);
        }
        drop(world);
        let listeners = self.listeners.get().map_or(&[][..], Vec::as_slice);
        for change in changes {
            for listener in listeners.iter().filter(|listener| listener.hears(&change)) {
                // A loop that has ended receives nothing more.
                let _ = listener.inbox.send(change.clone());
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

/// Where a watch stores what it receives, and which changes it reports.
pub(crate) trait Shelf: Send + Sync + 'static {
    type View: HasMeta + Clone + DeserializeOwned + Send + 'static;

    fn name(&self) -> &str;
    fn path(&self) -> String;
    /// The query of a watch, without the resourceVersion.
    fn watch(&self) -> String;
    /// The media types of lists and watches, if not the default.
    fn forms(&self) -> Option<(&'static str, &'static str)>;
    fn replace(&self, world: &mut World, objects: Vec<Self::View>, revision: u64) -> Vec<Change>;
    fn put(&self, world: &mut World, object: Self::View) -> Vec<Change>;
    fn remove(&self, world: &mut World, object: &Meta) -> Vec<Change>;
    /// The watch has reached this revision.
    fn saw(&self, world: &mut World, revision: u64);
    fn changed(&self, _: &Shared) {}
}

/// A kind that some loop knows.
pub(crate) struct Known<V> {
    pub(crate) kind: Kind,
    pub(crate) place: Place<V>,
    pub(crate) change: fn(Delta<V>) -> Change,
}

impl<V: HasMeta + Clone + DeserializeOwned + Send + Sync + 'static> Shelf for Known<V> {
    type View = V;

    fn name(&self) -> &str {
        self.kind.name()
    }

    fn path(&self) -> String {
        self.kind.path("")
    }

    fn watch(&self) -> String {
        format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}")
    }

    fn forms(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    fn replace(&self, world: &mut World, objects: Vec<V>, revision: u64) -> Vec<Change> {
        world.replace(self.kind, self.place, objects, revision).into_iter().map(self.change).collect()
    }

    fn put(&self, world: &mut World, object: V) -> Vec<Change> {
        world.put(self.kind, self.place, object).into_iter().map(self.change).collect()
    }

    fn remove(&self, world: &mut World, object: &Meta) -> Vec<Change> {
        world.remove(self.kind, self.place, object).into_iter().map(self.change).collect()
    }

    fn saw(&self, world: &mut World, revision: u64) {
        world.saw(self.kind, revision);
    }
}

/// A resource of which only the metadata is read.
pub(crate) struct Other(pub(crate) Arc<Resource>);

impl Other {
    fn changes(&self, deltas: Vec<Delta<Bare>>) -> Vec<Change> {
        deltas.into_iter().map(|delta| Change::Other(Arc::clone(&self.0), delta)).collect()
    }
}

impl Shelf for Other {
    type View = Bare;

    fn name(&self) -> &str {
        &self.0.plural
    }

    fn path(&self) -> String {
        self.0.path("")
    }

    fn watch(&self) -> String {
        format!("watch=true&timeoutSeconds={QUIET_WATCH_SECONDS}")
    }

    fn forms(&self) -> Option<(&'static str, &'static str)> {
        Some((METADATA_LIST, METADATA))
    }

    fn replace(&self, world: &mut World, objects: Vec<Bare>, _: u64) -> Vec<Change> {
        let mut changes = self.changes(world.replace_others(&self.0, objects));
        // A loop may wait until everything has been listed.
        changes.push(Change::Served);
        changes
    }

    fn put(&self, world: &mut World, object: Bare) -> Vec<Change> {
        self.changes(world.put_other(&self.0, object))
    }

    fn remove(&self, world: &mut World, object: &Meta) -> Vec<Change> {
        self.changes(world.remove_other(&self.0, object))
    }

    fn saw(&self, _: &mut World, _: u64) {}

    fn changed(&self, shared: &Shared) {
        if self.0.is_definition() {
            shared.definitions.set(());
        }
    }
}

pub(crate) async fn follow(shelf: impl Shelf, client: Client, shared: Arc<Shared>) {
    let mut failures = 0;
    loop {
        match list(&shelf, &client, &shared).await {
            Ok(revision) => {
                failures = 0;
                watch(&shelf, &client, &shared, revision).await;
            }
            Err(error) => tracing::debug!(resource = shelf.name(), %error, "list failed"),
        }
        failures += 1;
        sleep(retry_after(failures)).await;
    }
}

fn get(uri: String, form: Option<&'static str>) -> http::Result<http::Request<Vec<u8>>> {
    let mut request = http::Request::get(uri);
    if let Some(form) = form {
        request = request.header(ACCEPT, form);
    }
    request.body(Vec::new())
}

async fn list<S: Shelf>(shelf: &S, client: &Client, shared: &Shared) -> kube::Result<String> {
    let request = get(shelf.path(), shelf.forms().map(|(list, _)| list)).map_err(kube::Error::HttpError)?;
    let Ok(list) = timeout(PATIENCE, client.request::<List<S::View>>(request)).await else {
        return Err(kube::Error::Service("no answer in time".into()));
    };
    let list = list?;
    let revision = list.metadata.resource_version;
    let number = revision.parse().unwrap_or(0);
    shared.tell(|world| shelf.replace(world, list.items, number));
    shelf.changed(shared);
    Ok(revision)
}

/// Watches from a revision for as long as the server allows.
async fn watch<S: Shelf>(shelf: &S, client: &Client, shared: &Shared, mut revision: String) {
    let mut empty_in_a_row = 0;
    loop {
        let uri = format!("{}?{}&resourceVersion={revision}", shelf.path(), shelf.watch());
        let before = revision.clone();
        let Ok(request) = get(uri, shelf.forms().map(|(_, one)| one)) else { return };
        let Ok(Ok(events)) = timeout(PATIENCE, client.request_events::<S::View>(request)).await else {
            return;
        };
        let mut events = std::pin::pin!(events);
        loop {
            match events.try_next().await {
                Ok(Some(event)) => match take(shelf, event, shared) {
                    Some(seen) => revision = seen,
                    None => return,
                },
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(resource = shelf.name(), %error, "watch broke off");
                    break;
                }
            }
        }
        // Back off from a server that closes watches at once.
        empty_in_a_row = if before == revision { empty_in_a_row + 1 } else { 0 };
        if empty_in_a_row > 1 {
            sleep(retry_after(empty_in_a_row)).await;
        }
    }
}

/// Handles an event. Returns its resourceVersion, or `None` if the watch must relist.
fn take<S: Shelf>(shelf: &S, event: WatchEvent<S::View>, shared: &Shared) -> Option<String> {
    match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            let revision = object.meta().resource_version.clone();
            shared.tell(|world| shelf.put(world, object));
            shelf.changed(shared);
            Some(revision)
        }
        WatchEvent::Deleted(object) => {
            let revision = object.meta().resource_version.clone();
            shared.tell(|world| shelf.remove(world, object.meta()));
            shelf.changed(shared);
            Some(revision)
        }
        WatchEvent::Bookmark(bookmark) => {
            let revision = bookmark.metadata.resource_version;
            shared.tell(|world| {
                shelf.saw(world, revision.parse().unwrap_or(0));
                Vec::new()
            });
            Some(revision)
        }
        WatchEvent::Error(status) => {
            tracing::debug!(resource = shelf.name(), error = status.message, "watch is over");
            None
        }
    }
}
