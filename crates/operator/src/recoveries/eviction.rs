//! The eviction recovery: basic data of all nodes, and full data of those whose eviction is requested, with their pods,
//! Leases and attached volumes. Any change on such a node requeues it; its pods are requeued when their verdicts may
//! change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use salvor_recovery::{
    Decision,
    brake::{Census, NodeCounts, Outage},
    eviction::{
        AttachmentView, DespiteOutage, EvictionPolicy, Lease, NodeView, PodView, PodWhy, Scene, Step,
        asked_in_person, decide_node, decide_pod,
    },
    gate::{Copies, Work},
    ids::{NodeName, Uid},
    objects::{Ready, Taint},
};

use self::{
    kubelet::{beat, seen},
    lease_reads::Wanted,
    metrics::EvictionMetrics,
    news::{News, WorkKey},
    recheck::Recheck,
    subject::{Subject, Why},
    wire::{ATTACHMENTS, Attachments, Pods, SeenNode},
};
use crate::{
    client::{live::NodeLease, recent_reads::RecentReads, revision::Told},
    engine::recovery::{After, Ended, Recovery},
    recoveries::work::WorkReads,
    watch_set::{
        feeds::Feed,
        nodes::{CountedNode, NeedsVolumes},
        watch::{Change, Target, WatchHealth},
    },
};

mod answers;
pub(crate) mod by_hand;
mod entry;
mod explain;
mod kubelet;
mod lease_reads;
mod metrics;
mod news;
mod recheck;
mod subject;
mod wire;

pub(super) use entry::ENTRY;
pub(crate) use recheck::{parse_node, read_attachments, read_lease, read_node, read_pods};
use recheck::{parse_pod, read_works, read_zone};

/// The watches of pods, one for each node that is being evicted.
const PODS: &str = "pods of evicted nodes";

/// A node whose eviction is requested, and its pods.
#[derive(Debug)]
struct Subjected {
    view: NodeView,
    /// Distinguishes this watch of its pods from an earlier one.
    number: u64,
    pods: BTreeMap<Uid, PodView>,
    pods_listed: bool,
    /// The state for which its pods were last requeued.
    woken_for: Option<Basis>,
}

/// The fields of a node that its pods' verdicts depend on, besides its Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Basis {
    ready: Ready,
    taints: Vec<Taint>,
    damaged: bool,
    progress: Option<(Timestamp, [bool; 3])>,
    despite_outage: Option<DespiteOutage>,
}

impl Basis {
    fn of(view: &NodeView) -> Self {
        let progress = view.progress.as_ref();
        Self {
            ready: view.ready,
            taints: view.taints.clone(),
            damaged: view.damage.is_some(),
            despite_outage: view.despite_outage.clone(),
            progress: progress
                .map(|p| (p.started, [&p.returned, &p.finished, &p.stopped].map(Option::is_some))),
        }
    }
}

impl Subjected {
    fn pod_subjects(&self) -> impl Iterator<Item = Subject> {
        self.pods.values().map(|pod| Subject::pod(&self.view.node.name, &pod.pod))
    }
}

#[derive(Debug)]
pub(crate) struct Evictions {
    policy: Arc<EvictionPolicy>,
    metrics: EvictionMetrics,
    /// The fields of every node that are needed to count it.
    counted: BTreeMap<NodeName, Arc<CountedNode>>,
    nodes: BTreeMap<NodeName, Subjected>,
    attachments: BTreeMap<Uid, AttachmentView>,
    attachments_listed: bool,
    wanted_leases: Wanted,
    works: WorkReads<WorkKey>,
    /// Nodes whose pods are watched, with the number that distinguishes this watch from an earlier one.
    watched: BTreeMap<NodeName, u64>,
    /// True if the wanted watches are declared.
    declared: bool,
    looks: RecentReads<NodeView>,
    next_number: u64,
    /// The watch of nodes, once it has delivered something.
    node_watch: Option<Arc<WatchHealth>>,
    attachment_watch: Arc<WatchHealth>,
}

impl Evictions {
    pub(crate) fn new(policy: Arc<EvictionPolicy>, metrics: EvictionMetrics) -> Self {
        Self {
            policy,
            metrics,
            counted: BTreeMap::new(),
            nodes: BTreeMap::new(),
            attachments: BTreeMap::new(),
            attachments_listed: false,
            wanted_leases: Wanted::default(),
            works: WorkReads::default(),
            watched: BTreeMap::new(),
            declared: false,
            looks: RecentReads::default(),
            next_number: 0,
            node_watch: None,
            attachment_watch: WatchHealth::new(ATTACHMENTS.resource),
        }
    }

    fn apply_node(&mut self, seen: SeenNode, told: Told, now: Timestamp) -> BTreeSet<Subject> {
        let SeenNode { counted, view } = seen;
        let name = counted.node.name.clone();
        let mut woken = BTreeSet::from([Subject::Node { name: name.clone() }]);
        let before = self.counted.insert(name.clone(), counted.clone());
        if before.as_ref().is_none_or(|b| b.standing != counted.standing || b.zone != counted.zone) {
            let zones: BTreeSet<&str> =
                before.iter().chain([&counted]).map(|counted| &*counted.zone).collect();
            woken.extend(zones.into_iter().flat_map(|zone| self.requests_in(zone)));
        }
        match view {
            Some(view) => self.apply_evicted_node(*view, told, now),
            None => woken.extend(self.forget(&name)),
        }
        self.look_closely();
        woken
    }

    fn apply_evicted_node(&mut self, mut view: NodeView, told: Told, now: Timestamp) {
        let name = view.node.name.clone();
        match self.nodes.get_mut(&name).filter(|known| known.view.node.uid == view.node.uid) {
            Some(known) => {
                let revision = |view: &NodeView| view.resource_version.revision();
                if !told.replaces(revision(&view), revision(&known.view)) {
                    return;
                }
                view.lease = known.view.lease;
                view.ready_heartbeat = beat(known.view.ready_heartbeat, view.ready_heartbeat, now);
                view.told = std::mem::take(&mut known.view.told);
                view.refused = std::mem::take(&mut known.view.refused);
                known.view = view;
            }
            None => {
                view.ready_heartbeat = beat(Lease::Unread, view.ready_heartbeat, now);
                self.next_number += 1;
                let new = Subjected {
                    view,
                    number: self.next_number,
                    pods: BTreeMap::new(),
                    pods_listed: false,
                    woken_for: None,
                };
                self.nodes.insert(name, new);
            }
        }
    }

    /// The pods of a node, if the state that their verdicts depend on has changed since they were last requeued.
    fn wake_pods(&mut self, name: &NodeName) -> Vec<Subject> {
        let Some(node) = self.nodes.get_mut(name) else { return Vec::new() };
        let basis = Some(Basis::of(&node.view));
        if node.woken_for == basis {
            return Vec::new();
        }
        node.woken_for = basis;
        node.pod_subjects().collect()
    }

    /// Drops a node. Its pods are requeued once more, so that they are dropped too.
    fn forget(&mut self, name: &NodeName) -> Vec<Subject> {
        self.nodes.remove(name).map(|node| node.pod_subjects().collect()).unwrap_or_default()
    }

    /// Requests that may wait in a zone: those of nodes that are not being evicted.
    fn requests_in(&self, zone: &str) -> Vec<Subject> {
        let waiting =
            self.nodes.values().filter(|n| n.view.zone == zone && !recheck::is_being_emptied(&n.view));
        waiting.map(|n| Subject::node(&n.view.node.name)).collect()
    }

    /// Updates the watches and reads that the nodes need now.
    fn look_closely(&mut self) {
        let watched: BTreeMap<NodeName, u64> =
            self.nodes.iter().map(|(name, n)| (name.clone(), n.number)).collect();
        if self.watched != watched {
            self.watched = watched;
            self.declared = false;
        }
        // Until a finished node is Ready or requested again, its Lease reveals nothing new.
        let matters = |n: &&Subjected| {
            let finished = n.view.progress.as_ref().is_some_and(|p| p.finished.is_some());
            let asked_again = || asked_in_person(&n.view).is_some() && n.view.no_execute().is_none();
            !finished || n.view.ready == Ready::True || n.view.lease == Lease::Unread || asked_again()
        };
        self.wanted_leases
            .set(self.nodes.values().filter(matters).map(|n| n.view.node.name.clone()).collect());
        self.works.set(self.nodes.iter().flat_map(|(name, n)| self.works_to_read(name, n)).collect());
    }

    /// Pods of a node that is or was being evicted, whose claims and Job decide about them.
    fn works_to_read<'a>(
        &'a self,
        name: &'a NodeName,
        node: &'a Subjected,
    ) -> impl Iterator<Item = (WorkKey, Work)> {
        let is_begun = node.view.progress.as_ref().is_some_and(|progress| progress.stopped.is_none());
        let decide = move |pod: &&PodView| is_begun && self.policy.must_read_work(pod, &node.view);
        let keyed = move |pod: &PodView| ((name.clone(), node.number, pod.pod.uid.clone()), pod.work.clone());
        node.pods.values().filter(decide).map(keyed)
    }

    fn apply_work(&mut self, (name, number, uid): &WorkKey, copies: Copies) -> Vec<Subject> {
        let node = self.nodes.get_mut(name).filter(|node| node.number == *number);
        let Some(pod) = node.and_then(|node| node.pods.get_mut(uid)) else { return Vec::new() };
        if pod.work.copies == copies {
            return Vec::new();
        }
        pod.work.copies = copies;
        let woken = vec![Subject::node(name), Subject::pod(name, &pod.pod)];
        self.look_closely();
        woken
    }

    fn apply_lease(&mut self, name: &NodeName, lease: Option<NodeLease>, now: Timestamp) -> Vec<Subject> {
        let Some(node) = self.nodes.get_mut(name) else { return Vec::new() };
        let before = node.view.lease;
        node.view.lease = seen(before, lease, now);
        if before == node.view.lease {
            return Vec::new();
        }
        let mut woken = vec![Subject::node(name)];
        // A dead node's Lease does not change, and a live one affects its pods only if that was unknown.
        if before.is_fresh(now) != node.view.lease.is_fresh(now) || before == Lease::Unread {
            woken.extend(node.pod_subjects());
        }
        if before == Lease::Unread {
            self.look_closely();
        }
        woken
    }

    fn apply_pods(&mut self, name: &NodeName, number: u64, change: Change<PodView>) -> Vec<Subject> {
        let Some(node) = self.nodes.get_mut(name).filter(|n| n.number == number) else { return Vec::new() };
        let mut woken: BTreeSet<Subject> = BTreeSet::from([Subject::node(name)]);
        // Most pods need no further reads.
        let is_open = |pod: &PodView| pod.work.copies.is_unknown();
        let has_open_claims = match change {
            Change::Applied(mut pod) => {
                woken.insert(Subject::pod(name, &pod.pod));
                remember(&mut pod, &node.pods);
                let is_open = is_open(&pod);
                node.pods.insert(pod.pod.uid.clone(), pod);
                is_open
            }
            Change::Gone(uid) => {
                let gone = node.pods.remove(&uid);
                woken.extend(gone.as_ref().map(|pod| Subject::pod(name, &pod.pod)));
                gone.is_some_and(|pod| is_open(&pod))
            }
            Change::Reset { all, .. } => {
                woken.extend(node.pod_subjects());
                let known = std::mem::take(&mut node.pods);
                node.pods_listed = true;
                for mut pod in all {
                    remember(&mut pod, &known);
                    woken.insert(Subject::pod(name, &pod.pod));
                    node.pods.insert(pod.pod.uid.clone(), pod);
                }
                true
            }
        };
        if has_open_claims {
            self.look_closely();
        }
        woken.into_iter().collect()
    }

    fn apply_attachment(&mut self, change: Change<(Uid, AttachmentView)>) -> Vec<Subject> {
        let changed = match change {
            Change::Applied((uid, attachment)) => {
                let node = attachment.node.clone();
                self.attachments.insert(uid, attachment);
                Some(node)
            }
            Change::Gone(uid) => match self.attachments.remove(&uid) {
                Some(attachment) => Some(attachment.node),
                None => return Vec::new(),
            },
            Change::Reset { all, .. } => {
                self.attachments = all.into_iter().collect();
                self.attachments_listed = true;
                None
            }
        };
        match changed {
            Some(node) if self.nodes.contains_key(&node) => vec![Subject::Node { name: node }],
            Some(_) => Vec::new(),
            None => self.nodes.keys().map(Subject::node).collect(),
        }
    }

    fn apply_news(&mut self, news: News, now: Timestamp) -> Vec<Subject> {
        match news {
            News::Node(Change::Applied(node)) => {
                let name = node.counted.node.name.clone();
                let mut woken = self.apply_node(node, Told::Alone, now);
                woken.extend(self.wake_pods(&name));
                woken.into_iter().collect()
            }
            News::Node(Change::Gone(uid)) => {
                let gone = self.counted.iter().find(|(_, known)| known.node.uid == uid);
                let Some(name) = gone.map(|(name, _)| name.clone()) else { return Vec::new() };
                let counted = self.counted.remove(&name);
                let mut woken = self.forget(&name);
                self.look_closely();
                woken.push(Subject::node(&name));
                woken.extend(counted.into_iter().flat_map(|node| self.requests_in(&node.zone)));
                woken
            }
            News::Node(Change::Reset { all, revision, .. }) => {
                let mut woken: BTreeSet<Subject> = self.subjects().into_iter().collect();
                if revision.new_history {
                    self.counted.clear();
                    self.nodes.clear();
                }
                let present: BTreeSet<Uid> = all.iter().map(|n| n.counted.node.uid.clone()).collect();
                self.counted.retain(|_, known| present.contains(&known.node.uid));
                self.nodes.retain(|_, node| present.contains(&node.view.node.uid));
                self.node_watch = revision.watch().cloned();
                for node in all {
                    woken.extend(self.apply_node(node, Told::ByListAt(revision.revision), now));
                }
                self.look_closely();
                woken.into_iter().collect()
            }
            News::Attachment(change) => self.apply_attachment(change),
            News::Pod { node, number, change } => self.apply_pods(&node, number, *change),
            News::Lease { node, lease } => self.apply_lease(&node, lease, now),
            News::Work { pod, copies } => self.apply_work(&pod, copies),
        }
    }

    /// Updates the metrics of all evictions.
    fn show(&self) {
        let is = |n: &&Subjected, started: bool, finished: bool| {
            let progress = n.view.progress.as_ref();
            progress.is_some() == started && progress.is_some_and(|p| p.finished.is_some()) == finished
        };
        let count = |started, finished| self.nodes.values().filter(|n| is(n, started, finished)).count();
        let states = [
            ("requested", count(false, false)),
            ("started", count(true, false)),
            ("finished", count(true, true)),
        ];
        self.metrics.evictions(&states, self.nodes.values().map(|n| n.pods.len()).sum());
    }

    fn attached_to(&self, node: &NodeName) -> Option<Vec<&AttachmentView>> {
        self.attachments_listed.then(|| self.attachments.values().filter(|a| a.node == *node).collect())
    }

    fn count(&self, zone: &str, now: Timestamp) -> NodeCounts {
        let mut census = Census::new(now, self.policy.count_nodes_ready_within);
        self.in_zone(zone).for_each(|node| census.add(zone, &node.standing));
        census.zone(zone)
    }

    fn in_zone(&self, zone: &str) -> impl Iterator<Item = &Arc<CountedNode>> {
        self.counted.values().filter(move |node| *node.zone == *zone)
    }
}

/// Carries over facts about a pod that the watch does not deliver. A pod's claims and its Job never change.
fn remember(pod: &mut PodView, known: &BTreeMap<Uid, PodView>) {
    let Some(known) = known.get(&pod.pod.uid) else { return };
    pod.announced = known.announced;
    pod.work.copies = known.work.copies.clone();
}

/// Whether an outage around a node blocks its eviction.
fn outage(node: Option<&NodeView>, now: Timestamp) -> Outage {
    match node.and_then(|node| node.despite_outage(now)) {
        Some(_) => Outage::Ignored,
        None => Outage::Holds,
    }
}

impl Recovery for Evictions {
    const NAME: &'static str = "eviction";
    type Subject = Subject;
    type Why = Why;
    type Step = Step;
    type News = News;
    type Recheck = Recheck;

    fn watches(&mut self) -> Option<Vec<Feed<News>>> {
        if std::mem::replace(&mut self.declared, true) {
            return None;
        }
        let (wanted_leases, works) = (self.wanted_leases.clone(), self.works.clone());
        let (policy, needing) = (self.policy.clone(), self.policy.clone());
        let needs: NeedsVolumes = Arc::new(move |wire| wire.may_be_evicted(&needing));
        let mut feeds = vec![
            Feed::nodes(
                Some(needs),
                move |node| SeenNode::new(&node.wire, &node.counted, &policy),
                News::Node,
            ),
            Feed::group(PODS),
            Feed::reads("close-ups", |client, news| lease_reads::look(client, wanted_leases, news)),
            Feed::reads("works", |client, news| {
                works.run(client, news, |pod, copies| News::Work { pod, copies })
            }),
            Feed::watch(ATTACHMENTS, Attachments, &self.attachment_watch, News::Attachment),
        ];
        feeds.extend(self.watched.iter().map(|(node, number)| {
            let (of, number) = (node.clone(), *number);
            let target = Target::fields(PODS, "/api/v1/pods", format!("spec.nodeName={node}"));
            Feed::passing_watch(target, number, Pods(self.policy.clone()), move |change| News::Pod {
                node: of.clone(),
                number,
                change: Box::new(change),
            })
        }));
        Some(feeds)
    }

    fn on_change(&mut self, news: News, now: Timestamp) -> Vec<Subject> {
        let woken = self.apply_news(news, now);
        self.show();
        woken
    }

    fn lacks_consent(why: &Why) -> bool {
        matches!(why, Why::Pod(PodWhy::NeedsProof { .. }))
    }

    fn judge(&self, subject: &Subject, now: Timestamp) -> Option<Decision<Why, Step>> {
        match subject {
            Subject::Node { name } => {
                let node = self.nodes.get(name)?;
                let scene = Scene {
                    node: &node.view,
                    pods: node.pods_listed.then(|| node.pods.values().collect()),
                    attachments: self.attached_to(name),
                    zone: self.count(&node.view.zone, now),
                };
                Some(decide_node(&scene, &self.policy, now).map_why(Why::Node))
            }
            Subject::Pod(pod) => {
                let node = self.nodes.get(&pod.node)?;
                let pod = node.pods.get(&pod.uid)?;
                Some(decide_pod(pod, Some(&node.view), &self.policy, now).map_why(Why::Pod))
            }
        }
    }

    fn subjects(&self) -> Vec<Subject> {
        let nodes = self.nodes.keys().map(Subject::node);
        nodes.chain(self.nodes.values().flat_map(Subjected::pod_subjects)).collect()
    }

    fn outage(&self, subject: &Subject, now: Timestamp) -> Outage {
        let name = match subject {
            Subject::Node { name } => name,
            Subject::Pod(pod) => &pod.node,
        };
        outage(self.nodes.get(name).map(|node| &node.view), now)
    }

    fn recheck(&self, subject: &Subject, _: Timestamp) -> Recheck {
        let (name, pod) = match subject {
            Subject::Node { name } => (name, None),
            Subject::Pod(pod) => {
                (&pod.node, self.nodes.get(&pod.node).and_then(|n| n.pods.get(&pod.uid)).cloned())
            }
        };
        let node = self.nodes.get(name);
        let of_node = node.filter(|_| matches!(subject, Subject::Node { .. }));
        Recheck {
            subject: subject.clone(),
            pod,
            known: node.map(|n| n.view.clone()),
            pods_listed: of_node.is_some_and(|n| n.pods_listed),
            copies: of_node
                .map(|n| n.pods.iter().map(|(uid, pod)| (uid.clone(), pod.work.copies.clone())).collect())
                .unwrap_or_default(),
            // No pod's verdict depends on these.
            attachments: of_node
                .and_then(|_| self.attached_to(name))
                .map(|all| all.into_iter().cloned().collect()),
            zone: of_node
                .map(|n| self.in_zone(&n.view.zone).map(|c| c.standing).collect())
                .unwrap_or_default(),
            policy: self.policy.clone(),
            looks: self.looks.clone(),
        }
    }

    fn ended(&mut self, subject: &Subject, end: Ended<'_, Step>, now: Timestamp) -> After {
        let after = After::with(end.view(|step, answer| self.done(subject, step, answer, now)));
        match end.refused {
            Some((step, refusal)) => after.and(self.refused(subject, step, refusal, now)),
            None => after,
        }
    }
}

#[cfg(test)]
mod tests;
