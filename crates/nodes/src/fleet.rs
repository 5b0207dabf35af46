//! Runs any number of simulated nodes against an API: one loop, one watch of pods, one of nodes.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    future::Future,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt,
        utils::Backoff,
        watcher::{self, watcher},
    },
};
use thiserror::Error;
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    task::JoinHandle,
    time::sleep_until,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    calls::{Calls, Outcome},
    clock::Clock,
    kubelet::{Kubelet, PodKey, PodStep, Volume},
    pod::{PodView, resource_version},
    profile::{Fault, NodeProfile, Timers},
    truth::GroundTruth,
};

/// Pod calls under way at once; more would only queue in the API server.
const POD_CALLS: usize = 64;
/// Heartbeats have their own lane, so that a storm of pods cannot make healthy nodes look dead.
const HEARTBEATS: usize = 64;
/// A failed call is tried again after this, doubled each time up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// How long a watch may be silent before it is opened again.
const WATCH_SECONDS: u32 = 60;

/// How a fleet is run.
#[derive(Clone, Copy, Debug)]
pub struct FleetOptions {
    /// Where the nodes read the time.
    pub clock: Clock,
    /// What all that is random follows from.
    pub seed: u64,
    /// The kubelets' clockwork.
    pub timers: Timers,
}

impl Default for FleetOptions {
    /// Wall time and the kubelet's own timers.
    fn default() -> Self {
        Self { clock: Clock::system(), seed: 0, timers: Timers::default() }
    }
}

/// What a fleet cannot do.
#[derive(Debug, Error)]
pub enum FleetError {
    /// No node of this fleet has this name.
    #[error("this fleet has no node {0:?}; its nodes are {1}")]
    UnknownNode(String, String),
    /// A node of this fleet has this name already.
    #[error("this fleet already has a node {0:?}")]
    DuplicateNode(String),
    /// The fleet has been stopped.
    #[error("the fleet has been stopped")]
    Stopped,
}

/// What a fleet is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetStats {
    /// Nodes in the fleet.
    pub nodes: usize,
    /// Pods that its nodes know.
    pub pods: usize,
    /// Calls to the API that failed and were tried again.
    pub failed_calls: u64,
}

/// A running set of simulated nodes. Dropping it stops them all, without a word to the API.
#[derive(Debug)]
pub struct Fleet {
    commands: mpsc::Sender<Command>,
    truth: GroundTruth,
    clock: Clock,
    task: JoinHandle<()>,
    stop: DropGuard,
}

impl Fleet {
    /// Starts an empty fleet on the current tokio runtime.
    pub fn start(client: Client, options: FleetOptions) -> Self {
        let (commands, inbox) = mpsc::channel(64);
        let truth = GroundTruth::default();
        let stop = CancellationToken::new();
        let clock = options.clock;
        let driver = Driver::new(client.clone(), &options, truth.clone(), stop.clone());
        Self {
            commands,
            truth,
            clock,
            task: tokio::spawn(driver.run(client, inbox)),
            stop: stop.drop_guard(),
        }
    }

    /// Adds nodes and waits until each is registered, with its first Lease.
    pub async fn add(&self, profiles: impl IntoIterator<Item = NodeProfile>) -> Result<(), FleetError> {
        let profiles: Vec<_> = profiles.into_iter().collect();
        self.ask(|reply| Command::Add(profiles, reply)).await?
    }

    /// Makes a node suffer.
    pub async fn inject(&self, node: &str, fault: Fault) -> Result<(), FleetError> {
        self.ask(|reply| Command::Inject(node.to_owned(), fault, reply)).await?
    }

    /// Ends whatever a node suffers from. A crashed machine starts again; a partitioned one is heard again.
    pub async fn heal(&self, node: &str) -> Result<(), FleetError> {
        self.ask(|reply| Command::Heal(node.to_owned(), reply)).await?
    }

    /// Restarts a machine: its containers end, its kubelet comes back at once.
    pub async fn reboot(&self, node: &str) -> Result<(), FleetError> {
        self.ask(|reply| Command::Reboot(node.to_owned(), reply)).await?
    }

    /// Starts a machine whose network stays dead: its kubelet can neither send a heartbeat nor read its Node.
    pub async fn boot_cut_off(&self, node: &str) -> Result<(), FleetError> {
        self.ask(|reply| Command::BootCutOff(node.to_owned(), reply)).await?
    }

    /// What the fleet is doing now.
    pub async fn stats(&self) -> Result<FleetStats, FleetError> {
        self.ask(Command::Stats).await
    }

    /// What really ran, where, and when.
    pub fn truth(&self) -> &GroundTruth {
        &self.truth
    }

    /// The clock that the ground truth is written by.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Stops every node and waits until none makes a call any more.
    pub async fn stop(self) {
        drop(self.stop);
        // A panic of the loop has been printed already, and there is nothing left to stop then.
        let _ = self.task.await;
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, FleetError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| FleetError::Stopped)?;
        answer.await.map_err(|_| FleetError::Stopped)
    }
}

type Reply = oneshot::Sender<Result<(), FleetError>>;

#[derive(Debug)]
enum Command {
    Add(Vec<NodeProfile>, Reply),
    Inject(String, Fault, Reply),
    Heal(String, Reply),
    Reboot(String, Reply),
    BootCutOff(String, Reply),
    Stats(oneshot::Sender<FleetStats>),
}

/// Why the loop looks at something at a certain time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wake {
    Pod(String, PodKey),
    /// A call about this pod failed in this life of the node and is tried again.
    PodAgain(String, PodKey, u64),
    Heartbeat(String),
    NodeStatus(String),
    Register(String),
    Flap(String, u64),
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

/// One node with what is under way for it.
struct Slot {
    kubelet: Kubelet,
    /// Grows whenever the node's connection changes; answers to an earlier life are not heard.
    life: u64,
    calls: CancellationToken,
    registered: bool,
    renewing: bool,
    reporting: bool,
    /// What the API was last told of volumes, and at which revision; `None` when it must be told anew.
    reported: Option<(BTreeSet<String>, u64)>,
    busy: BTreeSet<PodKey>,
    attempts: BTreeMap<PodKey, u32>,
    flap: Option<(Duration, Duration)>,
    added: Option<Arc<Adding>>,
}

/// Answers an `add` when the last of its nodes lets go of it.
#[derive(Debug)]
struct Adding(std::sync::Mutex<Option<Reply>>);

impl Drop for Adding {
    fn drop(&mut self) {
        if let Ok(Some(reply)) = self.0.get_mut().map(Option::take) {
            // Nobody waits any more: the nodes are there all the same.
            let _ = reply.send(Ok(()));
        }
    }
}

struct NodeNews {
    taints: Vec<Taint>,
    attached: BTreeSet<String>,
    ready: bool,
    resource_version: u64,
}

struct Driver {
    calls: Calls,
    clock: Clock,
    rng: fastrand::Rng,
    timers: Timers,
    truth: GroundTruth,
    stop: CancellationToken,
    slots: BTreeMap<String, Slot>,
    /// What the API holds, by node: what a node hears when it can hear again.
    pods: BTreeMap<String, BTreeMap<String, PodView>>,
    wakes: BinaryHeap<Reverse<(Timestamp, Wake)>>,
    pod_lane: Arc<Semaphore>,
    heartbeat_lane: Arc<Semaphore>,
    done: mpsc::UnboundedSender<(String, u64, Done)>,
    done_inbox: mpsc::UnboundedReceiver<(String, u64, Done)>,
    failed_calls: u64,
}

impl Driver {
    fn new(client: Client, options: &FleetOptions, truth: GroundTruth, stop: CancellationToken) -> Self {
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
        }
    }

    async fn run(mut self, client: Client, mut inbox: mpsc::Receiver<Command>) {
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
            let kubelet = Kubelet::new(
                profile,
                self.slots.len(),
                self.timers,
                self.truth.clone(),
                boot_id,
                self.clock.now(),
            );
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

    /// Changes a node's connection: calls under way are cut, and their answers are not heard any more.
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

    /// A node that can hear again: heartbeat first, then the pods as the API has them now.
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

    // ---- what the watches say -----------------------------------------------------------------

    fn pod_event(&mut self, event: watcher::Event<Pod>, listed: &mut Vec<PodView>) {
        match event {
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(pod) => listed.extend(PodView::of(&pod)),
            watcher::Event::InitDone => {
                self.pods.clear();
                for view in listed.drain(..) {
                    self.pods.entry(view.node.clone()).or_default().insert(view.id.uid.clone(), view);
                }
                for node in self.slots.keys().cloned().collect::<Vec<_>>() {
                    self.show_pods(&node);
                }
            }
            watcher::Event::Apply(pod) => {
                let Some(view) = PodView::of(&pod) else {
                    return;
                };
                let now = self.clock.now();
                let key = self
                    .slots
                    .get_mut(&view.node)
                    .filter(|slot| slot.kubelet.listens())
                    .map(|slot| slot.kubelet.see_pod(&view, now));
                if let Some(key) = key {
                    self.drive(&view.node, &key);
                }
                self.pods.entry(view.node.clone()).or_default().insert(view.id.uid.clone(), view);
            }
            watcher::Event::Delete(pod) => {
                let Some(view) = PodView::of(&pod) else {
                    return;
                };
                if let Some(pods) = self.pods.get_mut(&view.node) {
                    pods.remove(&view.id.uid);
                }
                let now = self.clock.now();
                let key = self
                    .slots
                    .get_mut(&view.node)
                    .filter(|slot| slot.kubelet.listens())
                    .and_then(|slot| slot.kubelet.see_removal(&view.id, now));
                if let Some(key) = key {
                    self.drive(&view.node, &key);
                }
            }
        }
    }

    fn show_pods(&mut self, node: &str) {
        let now = self.clock.now();
        let Some(slot) = self.slots.get_mut(node).filter(|s| s.kubelet.listens()) else {
            return;
        };
        slot.kubelet.see_all(self.pods.get(node).into_iter().flat_map(BTreeMap::values), now);
        for key in slot.kubelet.keys() {
            self.drive(node, &key);
        }
    }

    fn node_event(&mut self, node: &Node) {
        let Some(name) = node.metadata.name.clone() else {
            return;
        };
        let Some(slot) = self.slots.get_mut(&name) else {
            return;
        };
        let news = NodeNews::of(node);
        // Taints are what the API says; a node that hears nothing learns of them when it comes back.
        let mut waiting = slot.kubelet.see_node(news.taints, news.attached);
        if slot.kubelet.is_starting() && news.ready && slot.kubelet.is_connected() {
            let pods = self.pods.get(&name).into_iter().flat_map(BTreeMap::values);
            slot.kubelet.begin(pods, self.clock.now());
            waiting = slot.kubelet.keys();
        }
        let told = slot.reported.as_ref().map_or(u64::MAX, |(_, at)| *at);
        if !news.ready && news.resource_version > told {
            slot.reported = None;
        }
        for key in waiting {
            self.drive(&name, &key);
        }
        self.report_node_if_changed(&name);
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

    // ---- calls --------------------------------------------------------------------------------

    fn register(&mut self, node: &str) {
        let now = self.clock.now();
        let Some(slot) = self.slots.get_mut(node).filter(|s| s.kubelet.is_connected() && !s.registered)
        else {
            return;
        };
        slot.renewing = true;
        let calls = self.calls.clone();
        let body = slot.kubelet.registration(now);
        let name = node.to_owned();
        let lasts = self.timers.lease_duration.as_secs();
        self.spawn(node, self.heartbeat_lane.clone(), async move {
            let registered = match calls.register(&body, &name).await {
                Ok(()) => calls.renew(&name, lasts, now).await,
                Err(error) => Err(error),
            };
            Done::Registered(registered)
        });
    }

    fn renew(&mut self, node: &str) {
        let Some(slot) = self.slots.get_mut(node) else {
            return;
        };
        if slot.renewing || !slot.registered || !slot.kubelet.is_connected() {
            return;
        }
        slot.renewing = true;
        let (calls, clock, name) = (self.calls.clone(), self.clock, node.to_owned());
        let lasts = self.timers.lease_duration.as_secs();
        self.spawn(node, self.heartbeat_lane.clone(), async move {
            Done::Renewed(calls.renew(&name, lasts, clock.now()).await)
        });
    }

    fn report_node_if_changed(&mut self, node: &str) {
        let Some(slot) = self.slots.get(node) else {
            return;
        };
        let in_use = slot.kubelet.volumes_in_use();
        if slot.reported.as_ref().is_none_or(|(told, _)| *told != in_use) {
            self.report_node(node);
        }
    }

    fn report_node(&mut self, node: &str) {
        let now = self.clock.now();
        let Some(slot) = self.slots.get_mut(node) else {
            return;
        };
        if slot.reporting || !slot.registered || !slot.kubelet.is_connected() {
            return;
        }
        slot.reporting = true;
        let in_use = slot.kubelet.volumes_in_use();
        let status = slot.kubelet.node_status(now);
        let (calls, name) = (self.calls.clone(), node.to_owned());
        self.spawn(node, self.heartbeat_lane.clone(), async move {
            Done::NodeReported(in_use, calls.report_node(&name, &status).await)
        });
    }

    /// Lets a node do what it wants to do about a pod next, one call at a time.
    fn drive(&mut self, node: &str, key: &PodKey) {
        let now = self.clock.now();
        let Some(slot) = self.slots.get_mut(node) else {
            return;
        };
        let step = slot.kubelet.step(key, now);
        if let PodStep::Rest(wake) = step {
            if let Some(at) = wake {
                self.wakes.push(Reverse((at, Wake::Pod(node.to_owned(), key.clone()))));
            }
            return self.report_node_if_changed(node);
        }
        if let PodStep::Forget = step {
            slot.attempts.remove(key);
            return self.report_node_if_changed(node);
        }
        if !slot.busy.insert(key.clone()) {
            return;
        }
        let (calls, key, lane) = (self.calls.clone(), key.clone(), self.pod_lane.clone());
        match step {
            PodStep::Report { id, status } => self.spawn(node, lane, async move {
                let outcome = calls.report_pod(&id, &status).await;
                Done::PodReported(key, status, outcome)
            }),
            PodStep::Remove { id } => {
                self.spawn(node, lane, async move { Done::PodRemoved(key, calls.remove_pod(&id).await) });
            }
            PodStep::CreateMirror(pod) => {
                self.spawn(node, lane, async move { Done::Mirrored(key, calls.create_mirror(&pod).await) });
            }
            PodStep::ResolveVolumes { namespace, claims } => self.spawn(node, lane, async move {
                Done::Resolved(key, calls.resolve(&namespace, &claims).await)
            }),
            PodStep::Rest(_) | PodStep::Forget => {}
        }
        self.report_node_if_changed(node);
    }

    fn spawn(&self, node: &str, lane: Arc<Semaphore>, call: impl Future<Output = Done> + Send + 'static) {
        let Some(slot) = self.slots.get(node) else {
            return;
        };
        let (cut, life, delay) = (slot.calls.clone(), slot.life, slot.kubelet.delay());
        let (done, node) = (self.done.clone(), node.to_owned());
        tokio::spawn(cut.run_until_cancelled_owned(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            // The semaphore is never closed; a permit is all that is wanted of it.
            let _permit = lane.acquire_owned().await;
            let end = call.await;
            // The loop may have been stopped meanwhile: then nobody needs to know.
            let _ = done.send((node, life, end));
        }));
    }

    fn finish(&mut self, node: &str, life: u64, done: Done) {
        let Some(slot) = self.slots.get_mut(node).filter(|s| s.life == life) else {
            return;
        };
        match done {
            Done::Registered(result) => {
                slot.renewing = false;
                match result {
                    Ok(()) => self.registered(node),
                    Err(error) => {
                        self.note_failure(node, &error);
                        let again = self.clock.now() + FIRST_RETRY;
                        self.wakes.push(Reverse((again, Wake::Register(node.to_owned()))));
                    }
                }
            }
            Done::Renewed(result) => {
                slot.renewing = false;
                if let Err(error) = result {
                    self.note_failure(node, &error);
                }
            }
            Done::NodeReported(in_use, result) => {
                slot.reporting = false;
                match result {
                    Ok(at) => slot.reported = Some((in_use, at)),
                    Err(error) => {
                        self.note_failure(node, &error);
                        return;
                    }
                }
                self.report_node_if_changed(node);
            }
            Done::PodReported(key, status, outcome) => {
                if let Outcome::Done(at) = &outcome {
                    slot.kubelet.reported(&key, status, *at);
                }
                self.settle(node, key, outcome);
            }
            Done::PodRemoved(key, outcome) => {
                if let Outcome::Done(()) = &outcome {
                    slot.kubelet.removed(&key);
                }
                self.settle(node, key, outcome);
            }
            Done::Mirrored(key, result) => {
                // The mirror itself arrives by the watch; until then it would be made again.
                let outcome = match result {
                    Ok(()) => Outcome::Gone,
                    Err(error) => Outcome::Failed(error),
                };
                self.settle::<()>(node, key, outcome);
            }
            Done::Resolved(key, result) => {
                let outcome = match result {
                    Ok(Some(volumes)) => {
                        slot.kubelet.resolved(&key, volumes);
                        Outcome::Done(())
                    }
                    // A claim that is not bound yet: looked at again soon.
                    Ok(None) => Outcome::Gone,
                    Err(error) => Outcome::Failed(error),
                };
                self.settle(node, key, outcome);
            }
        }
    }

    fn registered(&mut self, node: &str) {
        let now = self.clock.now();
        let (renewal, report) = (self.timers.lease_renewal, self.timers.status_report);
        // Spread out, so that a thousand nodes that start together do not beat together.
        let first = [self.rng.f64(), self.rng.f64()];
        let Some(slot) = self.slots.get_mut(node) else {
            return;
        };
        slot.registered = true;
        slot.reported = None;
        if slot.added.take().is_some() {
            let name = node.to_owned();
            self.wakes.push(Reverse((now + renewal.mul_f64(first[0]), Wake::Heartbeat(name.clone()))));
            self.wakes.push(Reverse((now + report.mul_f64(first[1]), Wake::NodeStatus(name))));
        } else {
            self.report_node(node);
        }
    }

    /// After a call about a pod: go on, or try again later.
    fn settle<T>(&mut self, node: &str, key: PodKey, outcome: Outcome<T>) {
        let Some(slot) = self.slots.get_mut(node) else {
            return;
        };
        if let Outcome::Done(_) = outcome {
            slot.busy.remove(&key);
            slot.attempts.remove(&key);
            return self.drive(node, &key);
        }
        let attempt = slot.attempts.entry(key.clone()).or_default();
        *attempt += 1;
        let wait = retry_after(*attempt);
        let again = Wake::PodAgain(node.to_owned(), key, slot.life);
        self.wakes.push(Reverse((self.clock.now() + wait, again)));
        if let Outcome::Failed(error) = outcome {
            self.note_failure(node, &error);
        }
    }

    fn note_failure(&mut self, node: &str, error: &kube::Error) {
        self.failed_calls += 1;
        tracing::debug!(node, %error, "call failed; it will be made again");
    }
}

impl NodeNews {
    fn of(node: &Node) -> Self {
        let status = node.status.as_ref();
        let attached = status.and_then(|s| s.volumes_attached.as_ref());
        let conditions = status.and_then(|s| s.conditions.as_ref());
        Self {
            taints: node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default(),
            attached: attached.into_iter().flatten().map(|v| v.name.clone()).collect(),
            ready: conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True"),
            resource_version: resource_version(node.metadata.resource_version.as_deref()),
        }
    }
}

fn retry_after(attempt: u32) -> Duration {
    (FIRST_RETRY * 2u32.saturating_pow(attempt.min(16).saturating_sub(1))).min(LONGEST_RETRY)
}

async fn maybe_sleep(until: Option<tokio::time::Instant>) {
    match until {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Without jitter: one process, and one seed must give one history.
#[derive(Default)]
pub(crate) struct RetryBackoff(u32);

impl Iterator for RetryBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0 += 1;
        Some(retry_after(self.0))
    }
}

impl Backoff for RetryBackoff {
    fn reset(&mut self) {
        self.0 = 0;
    }
}
