//! The loop of a fleet: one watch of pods, one of nodes, and everything that happens to the nodes in turn.

mod news;
mod work;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use tokio::{
    sync::{Semaphore, mpsc},
    time::sleep_until,
};
use tokio_util::sync::CancellationToken;

use super::{Command, FleetError, FleetOptions, FleetStats, Reply, RetryBackoff};
use crate::{
    calls::{Calls, Outcome},
    clock::Clock,
    kubelet::{Kubelet, PodKey, Volume},
    pod::PodView,
    profile::{Fault, NodeProfile, Timers},
    truth::GroundTruth,
};

/// The number of concurrent pod calls; more would only queue in the API server.
const POD_CALLS: usize = 64;
/// Heartbeats have their own limit, so that a storm of pods cannot make healthy nodes look dead.
const HEARTBEATS: usize = 64;
/// The timeout of a watch; after it the watch is opened again.
const WATCH_SECONDS: u32 = 60;

/// Why the loop handles something at a certain time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wake {
    Pod(String, PodKey),
    /// A call for this pod failed in this life of the node and is retried.
    PodAgain(String, PodKey, u64),
    Heartbeat(String),
    NodeStatus(String),
    Register(String),
    Flap(String, u64),
}

impl Wake {
    fn node(&self) -> &str {
        match self {
            Self::Pod(node, _)
            | Self::PodAgain(node, _, _)
            | Self::Heartbeat(node)
            | Self::NodeStatus(node)
            | Self::Register(node)
            | Self::Flap(node, _) => node,
        }
    }
}

/// The end of a call.
#[derive(Debug)]
enum Done {
    Registered(kube::Result<()>),
    Renewed(kube::Result<()>),
    NodeReported(BTreeSet<String>, kube::Result<u64>),
    PodReported(PodKey, serde_json::Value, Outcome<u64>),
    PodRemoved(PodKey, Outcome<()>),
    Mirrored(PodKey, kube::Result<()>),
    Resolved(PodKey, kube::Result<Option<Vec<Volume>>>),
}

/// One node with its calls in progress.
struct Slot {
    kubelet: Kubelet,
    /// Incremented whenever the node's connection changes; answers to an earlier life are ignored.
    life: u64,
    calls: CancellationToken,
    registered: bool,
    renewing: bool,
    reporting: bool,
    /// The volumes that were last reported to the API, and the revision; `None` if they must be reported again.
    reported: Option<(BTreeSet<String>, u64)>,
    busy: BTreeSet<PodKey>,
    attempts: BTreeMap<PodKey, u32>,
    flap: Option<(Duration, Duration)>,
    added: Option<Arc<Adding>>,
}

/// Answers an `add` when the last of its nodes drops it.
#[derive(Debug)]
struct Adding(std::sync::Mutex<Option<Reply>>);

impl Drop for Adding {
    fn drop(&mut self) {
        if let Ok(Some(reply)) = self.0.get_mut().map(Option::take) {
            // The caller may have stopped waiting; the nodes are added all the same.
            let _ = reply.send(Ok(()));
        }
    }
}

pub(super) struct Driver {
    calls: Calls,
    clock: Clock,
    rng: fastrand::Rng,
    timers: Timers,
    truth: GroundTruth,
    stop: CancellationToken,
    slots: BTreeMap<String, Slot>,
    /// The API's objects by node, for a node that is reconnected.
    pods: BTreeMap<String, BTreeMap<String, PodView>>,
    wakes: BinaryHeap<Reverse<(Timestamp, Wake)>>,
    pod_lane: Arc<Semaphore>,
    heartbeat_lane: Arc<Semaphore>,
    done: mpsc::UnboundedSender<(String, u64, Done)>,
    done_inbox: mpsc::UnboundedReceiver<(String, u64, Done)>,
    failed_calls: u64,
    /// The number of nodes that were ever added: each has its own addresses.
    added: usize,
}

impl Driver {
    pub(super) fn new(
        client: Client,
        options: &FleetOptions,
        truth: GroundTruth,
        stop: CancellationToken,
    ) -> Self {
        let (done, done_inbox) = mpsc::unbounded_channel();
        Self {
            calls: Calls::new(client),
            clock: options.clock,
            rng: fastrand::Rng::with_seed(options.seed),
            timers: options.timers,
            truth,
            stop,
            slots: BTreeMap::new(),
            pods: BTreeMap::new(),
            wakes: BinaryHeap::new(),
            pod_lane: Arc::new(Semaphore::new(POD_CALLS)),
            heartbeat_lane: Arc::new(Semaphore::new(HEARTBEATS)),
            done,
            done_inbox,
            failed_calls: 0,
            added: 0,
        }
    }

    pub(super) async fn run(mut self, client: Client, mut inbox: mpsc::Receiver<Command>) {
        let bound = watcher::Config::default().fields("spec.nodeName!=").timeout(WATCH_SECONDS);
        let pods = watcher(Api::<Pod>::all(client.clone()), bound).backoff(RetryBackoff::default());
        let all = watcher::Config::default().timeout(WATCH_SECONDS);
        let nodes = watcher(Api::<Node>::all(client), all).backoff(RetryBackoff::default());
        let mut pods = pin!(pods);
        let mut nodes = pin!(nodes);
        let mut listed = Vec::new();
        let stop = self.stop.clone();
        loop {
            let wake = self.wakes.peek().map(|Reverse((at, _))| self.clock.instant(*at));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some((node, life, done)) = self.done_inbox.recv() => self.finish(&node, life, done),
                Some(command) = inbox.recv() => self.obey(command),
                () = maybe_sleep(wake) => self.wake_all_due(),
                Some(event) = pods.next() => match event {
                    Ok(event) => self.pod_event(event, &mut listed),
                    Err(error) => tracing::debug!(%error, "watch of pods"),
                },
                Some(event) = nodes.next() => match event {
                    Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) => self.node_event(&node),
                    Ok(_) => {}
                    Err(error) => tracing::debug!(%error, "watch of nodes"),
                },
            }
        }
    }

    // ---- commands -----------------------------------------------------------------------------

    fn obey(&mut self, command: Command) {
        match command {
            Command::Add(profiles, reply) => self.add(profiles, reply),
            Command::Inject(node, fault, reply) => {
                let result = self.with_new_life(&node, |slot, _, now| {
                    slot.kubelet.suffer(fault, now);
                    slot.flap = match fault {
                        Fault::Flap { down, up } => Some((down, up)),
                        _ => None,
                    };
                });
                if let Fault::Flap { down, .. } = fault {
                    self.wake_flap(&node, down);
                }
                let _ = reply.send(result);
            }
            Command::Heal(node, reply) => {
                let _ = reply.send(self.heal(&node, |slot| slot.flap = None));
            }
            Command::Reboot(node, reply) => {
                let rebooted = self.with_new_life(&node, |slot, boot_id, now| {
                    slot.kubelet.reboot(boot_id, now);
                    slot.flap = None;
                });
                let _ = reply.send(rebooted.map(|()| self.come_back(&node)));
            }
            Command::BootCutOff(node, reply) => {
                let booted = self.with_new_life(&node, |slot, boot_id, now| {
                    slot.kubelet.boot_cut_off(boot_id, now);
                    slot.flap = None;
                });
                let _ = reply.send(booted);
            }
            Command::Remove(node, reply) => {
                let off = self.with_new_life(&node, |slot, _, now| slot.kubelet.suffer(Fault::Crash, now));
                self.slots.remove(&node);
                self.wakes.retain(|Reverse((_, wake))| wake.node() != node);
                let _ = reply.send(off);
            }
            Command::Stats(reply) => {
                let _ = reply.send(FleetStats {
                    nodes: self.slots.len(),
                    pods: self.slots.values().map(|s| s.kubelet.keys().len()).sum(),
                    failed_calls: self.failed_calls,
                });
            }
        }
    }

    fn add(&mut self, profiles: Vec<NodeProfile>, reply: Reply) {
        if let Some(known) = profiles.iter().find(|p| self.slots.contains_key(&p.name)) {
            let _ = reply.send(Err(FleetError::DuplicateNode(known.name.clone())));
            return;
        }
        let adding = Arc::new(Adding(std::sync::Mutex::new(Some(reply))));
        for profile in profiles {
            let name = profile.name.clone();
            let boot_id = self.boot_id();
            let kubelet =
                Kubelet::new(profile, self.added, self.timers, self.truth.clone(), boot_id, self.clock.now());
            let slot = Slot {
                kubelet,
                life: 0,
                calls: self.stop.child_token(),
                registered: false,
                renewing: false,
                reporting: false,
                reported: None,
                busy: BTreeSet::new(),
                attempts: BTreeMap::new(),
                flap: None,
                added: Some(adding.clone()),
            };
            self.added += 1;
            self.slots.insert(name.clone(), slot);
            self.register(&name);
            self.show_pods(&name);
        }
    }

    fn heal(&mut self, node: &str, extra: impl FnOnce(&mut Slot)) -> Result<(), FleetError> {
        self.with_new_life(node, |slot, boot_id, now| {
            slot.kubelet.heal(boot_id, now);
            extra(slot);
        })?;
        self.come_back(node);
        Ok(())
    }

    /// Changes a node's connection: calls in progress are cut, and their answers are ignored.
    fn with_new_life(
        &mut self,
        node: &str,
        change: impl FnOnce(&mut Slot, String, Timestamp),
    ) -> Result<(), FleetError> {
        let boot_id = self.boot_id();
        let now = self.clock.now();
        let Some(slot) = self.slots.get_mut(node) else {
            let known: Vec<_> = self.slots.keys().map(String::as_str).take(10).collect();
            return Err(FleetError::UnknownNode(node.to_owned(), known.join(", ")));
        };
        change(slot, boot_id, now);
        slot.life += 1;
        slot.calls.cancel();
        slot.calls = self.stop.child_token();
        (slot.renewing, slot.reporting) = (false, false);
        slot.busy.clear();
        slot.attempts.clear();
        for key in slot.kubelet.keys() {
            self.drive(node, &key);
        }
        Ok(())
    }

    /// A node that is reachable again: heartbeat first, then the pods as the API has them now.
    fn come_back(&mut self, node: &str) {
        if let Some(slot) = self.slots.get_mut(node) {
            slot.registered = false;
        }
        self.register(node);
        self.show_pods(node);
    }

    fn boot_id(&mut self) -> String {
        format!("{:016x}{:016x}", self.rng.u64(..), self.rng.u64(..))
    }

    // ---- time ---------------------------------------------------------------------------------

    fn wake_all_due(&mut self) {
        let now = self.clock.now();
        while let Some(Reverse((at, _))) = self.wakes.peek()
            && *at <= now
        {
            let Some(Reverse((at, wake))) = self.wakes.pop() else {
                return;
            };
            match wake {
                Wake::Pod(node, key) => {
                    if self.slots.get(&node).is_some_and(|s| s.kubelet.wakes_at(&key, at)) {
                        self.drive(&node, &key);
                    }
                }
                Wake::PodAgain(node, key, life) => {
                    if let Some(slot) = self.slots.get_mut(&node).filter(|s| s.life == life) {
                        slot.busy.remove(&key);
                        self.drive(&node, &key);
                    }
                }
                Wake::Heartbeat(node) => {
                    self.wakes
                        .push(Reverse((now + self.timers.lease_renewal, Wake::Heartbeat(node.clone()))));
                    self.renew(&node);
                }
                Wake::NodeStatus(node) => {
                    self.wakes
                        .push(Reverse((now + self.timers.status_report, Wake::NodeStatus(node.clone()))));
                    self.report_node(&node);
                }
                Wake::Register(node) => self.register(&node),
                Wake::Flap(node, life) => self.flap(&node, life),
            }
        }
    }

    fn flap(&mut self, node: &str, life: u64) {
        let Some(slot) = self.slots.get(node).filter(|s| s.life == life) else {
            return;
        };
        let Some((down, up)) = slot.flap else { return };
        let next = if slot.kubelet.is_connected() {
            // The node is known: it was looked up above.
            let _ = self.with_new_life(node, |slot, _, now| {
                slot.kubelet.suffer(Fault::Flap { down, up }, now);
            });
            down
        } else {
            let _ = self.heal(node, |_| {});
            up
        };
        self.wake_flap(node, next);
    }

    fn wake_flap(&mut self, node: &str, after: Duration) {
        if let Some(slot) = self.slots.get(node) {
            let wake = Wake::Flap(node.to_owned(), slot.life);
            self.wakes.push(Reverse((self.clock.now() + after, wake)));
        }
    }
}

async fn maybe_sleep(until: Option<tokio::time::Instant>) {
    match until {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
