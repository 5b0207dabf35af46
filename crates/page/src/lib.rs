//! The web page: workloads that do not recover, nodes by zone, their pods, stuck pods with the reason, and a timeline.
//! It has no dependencies, is embedded in the binary and works offline.
//!
//! [`Page`] keeps the state. Its own watches ([`Page::follow`]), the operator's notices ([`Page::listen`]) and the
//! rules of `salvor why` ([`Page::look_for_missing`]) update it. Browsers read it through [`Page::serve`], and
//! terminals through [`Page::moments`]. [`Recording`] records a history, and [`Replay`] shows it at any point in time.

mod objects;
mod replay;
mod server;
mod timeline;
mod world;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use kube::Client;
use salvor_operator::{
    Notice, story,
    watch::{Change, Source, WatchHealth, follow, follow_while_served},
};
use salvor_recovery::appwrapper::AppWrapperPolicy;
use salvor_why::{Judge, Reader};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout},
};

use crate::{
    objects::{APP_WRAPPERS, AllAppWrappers, AllNodes, AllPods, NODES, PODS},
    world::{World, missing::Missing},
};

pub use replay::{Episode, Recording, Replay, Story};
pub use server::{Fault, ServeOptions, Wish};
pub use timeline::{Kind, Moment};
pub use world::Caption;

/// At most this many changes are applied before browsers are notified.
const BATCH: usize = 512;
/// How often a cluster is asked again that does not serve AppWrappers, or denies access to them.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// The timeout of one diagnosis of the whole cluster.
const LONGEST_LOOK: Duration = Duration::from_secs(60);
/// After a diagnosis, the next one waits this many times as long as it took, to limit the load on large clusters.
const REST: u32 = 10;

/// The state of the page. Clones share it.
#[derive(Clone)]
pub struct Page(Arc<Inner>);

struct Inner {
    world: Mutex<World>,
    clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    changed: watch::Sender<u64>,
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").field("version", &*self.0.changed.borrow()).finish_non_exhaustive()
    }
}

impl Page {
    /// An empty page. `clock` returns the cluster's time.
    pub fn new(clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let inner = Inner { world: Mutex::default(), clock: Box::new(clock), changed: watch::Sender::new(0) };
        Self(Arc::new(inner))
    }

    /// Watches nodes, pods and, if the cluster serves them, AppWrappers forever. The policy has the retry limits of
    /// AppWrappers.
    pub fn follow(&self, client: Client, policy: AppWrapperPolicy) -> BoxFuture<'_, ()> {
        async move {
            let (node_tx, mut nodes) = mpsc::channel(64);
            let (pod_tx, mut pods) = mpsc::channel(1024);
            let source = Source::new(client);
            let watch_nodes =
                follow(source.clone(), NODES, AllNodes, WatchHealth::new(NODES.resource), node_tx);
            let watch_wrappers = self.follow_wrappers(source.clone(), policy);
            let watch_pods = follow(source, PODS, AllPods, WatchHealth::new(PODS.resource), pod_tx);
            let take_in = async {
                loop {
                    tokio::select! {
                        Some(change) = nodes.recv() => self.take_in(change, &mut nodes, World::on_nodes),
                        Some(change) = pods.recv() => self.take_in(change, &mut pods, World::on_pods),
                        else => return,
                    }
                }
            };
            tokio::join!(watch_nodes, watch_pods, take_in, watch_wrappers);
        }
        .boxed()
    }

    /// Watches AppWrappers forever. The CRD may be installed or removed at any time.
    async fn follow_wrappers(&self, source: Source, policy: AppWrapperPolicy) {
        let projection = Arc::new(AllAppWrappers(policy));
        loop {
            let (sender, mut wrappers) = mpsc::channel(64);
            let health = WatchHealth::new(APP_WRAPPERS.resource);
            let watch = follow_while_served(source.clone(), APP_WRAPPERS, projection.clone(), health, sender);
            let take_in = async {
                while let Some(change) = wrappers.recv().await {
                    self.take_in(change, &mut wrappers, World::on_wrappers);
                }
            };
            tokio::join!(watch, take_in);
            self.change(|world, _| world.forget_wrappers());
            sleep(ASK_AGAIN).await;
        }
    }

    /// Applies the operator's decisions and actions until the channel closes.
    pub async fn listen(&self, mut notices: mpsc::UnboundedReceiver<Notice>) {
        while let Some(notice) = notices.recv().await {
            self.change(|world, now| {
                world.on_notice(notice, now);
                for _ in 0..BATCH {
                    let Ok(next) = notices.try_recv() else { break };
                    world.on_notice(next, now);
                }
            });
        }
    }

    /// Diagnoses the whole cluster by the rules of `salvor why --all` while at least one browser has the page open:
    /// once per `every`, or less often if a diagnosis takes long.
    pub fn look_for_missing(&self, client: Client, judge: Judge, every: Duration) -> BoxFuture<'_, ()> {
        async move {
            loop {
                let began = Instant::now();
                let found = match self.0.changed.receiver_count() {
                    0 => None,
                    _ => Some(look(client.clone(), &judge).await),
                };
                self.change(|world, _| world.on_missing(found));
                sleep(every.max(began.elapsed() * REST)).await;
            }
        }
        .boxed()
    }

    /// Adds a line to the timeline.
    pub fn tell(&self, text: &str) {
        self.change(|world, now| world.tell(text, now));
    }

    /// Shows a chapter of the demo.
    pub fn turn_page(&self, caption: Caption) {
        self.change(|world, _| world.turn_page(caption));
    }

    /// Increases with every change.
    pub fn version(&self) -> u64 {
        self.world().version()
    }

    /// The timeline, oldest first. Only the newest moments are kept.
    pub fn moments(&self) -> Vec<Moment> {
        self.world().moments().cloned().collect()
    }

    fn take_in<T>(
        &self,
        first: Change<T>,
        more: &mut mpsc::Receiver<Change<T>>,
        hear: fn(&mut World, Change<T>, Timestamp),
    ) {
        self.change(|world, now| {
            hear(world, first, now);
            for _ in 0..BATCH {
                let Ok(next) = more.try_recv() else { break };
                hear(world, next, now);
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut World, Timestamp)) {
        let now = (self.0.clock)();
        let version = {
            let mut world = self.world();
            change(&mut world, now);
            world.version()
        };
        self.0.changed.send_if_modified(|told| std::mem::replace(told, version) != version);
    }

    fn world(&self) -> MutexGuard<'_, World> {
        // After a panic during a change, one part of the page may be wrong. That is better than no page.
        self.0.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Diagnoses the cluster once. Uses a new reader, because the cluster may serve new kinds by now.
async fn look(client: Client, judge: &Judge) -> Missing {
    let mut reader = Reader::of(client);
    match timeout(LONGEST_LOOK, reader.everything(judge, None)).await {
        Ok(Ok((overview, _))) => Missing::of(overview),
        Ok(Err(error)) => Missing::unknown(&story(&error)),
        Err(_) => Missing::unknown(&format!("all of it was not read within {} s", LONGEST_LOOK.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::{Request, Response};
    use http_body_util::Full;
    use hyper::body::Bytes;

    use super::*;

    /// A slow, empty cluster that counts how often its pods are listed.
    fn counting(takes: Duration) -> (Client, Arc<AtomicUsize>) {
        let listed = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&listed);
        let answer = move |request: Request<kube::client::Body>| {
            if request.uri().path() == "/api/v1/pods" {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            async move {
                sleep(takes).await;
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"{\"items\": []}"))))
            }
        };
        (Client::new(tower::service_fn(answer), "default"), listed)
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_looks_for_what_is_missing_unless_a_page_is_open_and_never_all_the_time() {
        for (takes, most) in [(Duration::ZERO, 12), (Duration::from_millis(500), 2)] {
            let page = Page::new(Timestamp::now);
            let (client, listed) = counting(takes);
            let looking = page.clone();
            let task = tokio::spawn(async move {
                looking.look_for_missing(client, Judge::default(), Duration::from_secs(5)).await;
            });
            let minute = || sleep(Duration::from_secs(61));
            minute().await;
            assert_eq!(listed.load(Ordering::Relaxed), 0, "nobody looks");
            let browsers = [page.0.changed.subscribe(), page.0.changed.subscribe()];
            minute().await;
            let looks = listed.load(Ordering::Relaxed);
            assert!((1..=most).contains(&looks), "{looks} times with answers after {takes:?}");
            assert!(page.world().delta(None, Timestamp::UNIX_EPOCH).contains("\"missing\""));
            drop(browsers);
            minute().await;
            minute().await;
            let after = listed.load(Ordering::Relaxed);
            minute().await;
            assert_eq!(listed.load(Ordering::Relaxed), after, "they have gone");
            assert!(!page.world().delta(None, Timestamp::UNIX_EPOCH).contains("\"missing\""));
            task.abort();
        }
    }
}
