//! The pods of nodes that are drained, and of nodes that were replaced and are gone. Only these are watched, node by
//! node.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use salvor_recovery::{
    gate::{Copies, GatePolicy, Work},
    ids::{NodeName, Uid},
    objects::{NodeRef, ObjectRef, PodPhase, PodRef},
    repair::{Grave, Left, PodView, Refusal, Stays},
};
use serde::Deserialize;

use crate::{
    client::wire::Object,
    recoveries::{
        repair::{
            news::{News, WorkKey},
            subjects::{PodSubject, Subject},
            wire::Reader,
        },
        work::{VolumeWire, WorkAnnotations, work},
    },
    watch_set::{
        feeds::Feed,
        watch::{Change, Project, Target},
    },
};

/// The name of the watches of pods in metrics.
const PODS: &str = "pods";
/// After this time, the pods of a node that is gone are left to the pod garbage collector.
const GRAVE_LASTS: SignedDuration = SignedDuration::from_mins(2);
/// Limit on gone nodes whose pods are handled at once.
const MOST_GRAVES: usize = 100;
/// Backoff after a refused eviction. It doubles with each further refusal.
const FIRST_RETRY: SignedDuration = SignedDuration::from_secs(5);
/// Maximum of this backoff.
const LAST_RETRY: SignedDuration = SignedDuration::from_mins(1);

#[derive(Debug)]
struct NodePods {
    /// The number of the watch.
    number: u64,
    listed: bool,
    pods: BTreeMap<Uid, PodView>,
}

/// A node that is gone, and since when.
#[derive(Debug)]
struct Buried {
    grave: Grave,
    since: Timestamp,
}

#[derive(Debug, Default)]
pub(crate) struct PodsOnNodes {
    nodes: BTreeMap<NodeName, NodePods>,
    graves: BTreeMap<NodeName, Buried>,
    /// Deleted NodeClaims and Machines of repairs, and since when, until their repair is over.
    owners: BTreeMap<Uid, (ObjectRef, Timestamp)>,
    /// Refused evictions and their number, by the pod's UID.
    refused: BTreeMap<Uid, (Refusal, u32)>,
    watches: u64,
}

impl PodsOnNodes {
    /// The owner of a repair's machine is gone.
    pub(crate) fn owner_is_gone(&mut self, owner: &ObjectRef, now: Timestamp) {
        self.owners.retain(|_, (_, since)| now < lasts(*since));
        self.owners.insert(owner.uid.clone(), (owner.clone(), now));
    }

    /// A repair is over. If we saw the deletion of its NodeClaim or Machine, its pods are force deleted.
    pub(crate) fn bury(&mut self, node: NodeRef, owner: &Uid, now: Timestamp) {
        let Some((owner, _)) = self.owners.remove(owner) else { return };
        if self.graves.len() < MOST_GRAVES {
            let name = node.name.clone();
            self.graves.insert(name, Buried { grave: Grave { node, owner }, since: now });
        }
    }

    /// A node of this name exists: its kubelet decides about its pods.
    pub(crate) fn node_is_there(&mut self, name: &NodeName) {
        self.graves.remove(name);
    }

    /// Drops nodes that have been gone for long, or have no pods left.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        let nodes = &self.nodes;
        self.graves.retain(|name, buried| {
            let is_empty = nodes.get(name).is_some_and(|it| it.listed && it.pods.is_empty());
            !is_empty && now < lasts(buried.since)
        });
    }

    pub(crate) fn grave(&self, name: &NodeName) -> Option<&Grave> {
        self.graves.get(name).map(|buried| &buried.grave)
    }

    /// Watches the pods of these nodes, and of those that are gone. Returns true if that is a change.
    pub(crate) fn watch(&mut self, drained: BTreeSet<NodeName>) -> bool {
        let mut wanted = drained;
        wanted.extend(self.graves.keys().cloned());
        let before = self.nodes.len();
        self.nodes.retain(|name, _| wanted.contains(name));
        let mut changed = self.nodes.len() != before;
        for name in wanted {
            if !self.nodes.contains_key(&name) {
                self.watches += 1;
                let node_pods = NodePods { number: self.watches, listed: false, pods: BTreeMap::new() };
                self.nodes.insert(name, node_pods);
                changed = true;
            }
        }
        if self.nodes.is_empty() {
            self.refused.clear();
        }
        changed
    }

    pub(crate) fn feeds(&self, reader: &Arc<Reader>) -> impl Iterator<Item = Feed<News>> {
        let watches = self.nodes.iter().map(|(node, node_pods)| {
            let (of, number) = (node.clone(), node_pods.number);
            let target = Target::fields(PODS, "/api/v1/pods", format!("spec.nodeName={node}"));
            Feed::passing_watch(target, number, Pods(reader.clone()), move |change| News::Pod {
                node: of.clone(),
                number,
                change,
            })
        });
        std::iter::once(Feed::group(PODS)).chain(watches)
    }

    /// Applies a change and returns the pods to requeue.
    pub(crate) fn on_change(
        &mut self,
        node: &NodeName,
        number: u64,
        change: Change<PodView>,
    ) -> Vec<Subject> {
        let Some(node_pods) = self.nodes.get_mut(node).filter(|it| it.number == number) else {
            return Vec::new();
        };
        match change {
            Change::Applied(mut pod) => {
                let subject = pod_subject(node, &pod);
                remember(&mut pod, &node_pods.pods);
                node_pods.pods.insert(pod.pod.uid.clone(), pod);
                vec![subject]
            }
            Change::Gone(uid) => {
                self.refused.remove(&uid);
                node_pods.pods.remove(&uid).map(|pod| pod_subject(node, &pod)).into_iter().collect()
            }
            Change::Reset { all, .. } => {
                let mut woken: Vec<Subject> =
                    node_pods.pods.values().map(|pod| pod_subject(node, pod)).collect();
                node_pods.listed = true;
                let known = std::mem::take(&mut node_pods.pods);
                let keep = |mut pod: PodView| {
                    remember(&mut pod, &known);
                    (pod.pod.uid.clone(), pod)
                };
                node_pods.pods = all.into_iter().map(keep).collect();
                woken.extend(node_pods.pods.values().map(|pod| pod_subject(node, pod)));
                woken
            }
        }
    }

    /// The pods left by a drain whose claims and Job decide whether two copies may run. A Job that allows it is read
    /// again and again: its `podReplacementPolicy` may change.
    pub(crate) fn works(&self, gate: &GatePolicy) -> BTreeMap<WorkKey, Work> {
        let mut wanted = BTreeMap::new();
        for (node, node_pods) in self.nodes.iter().filter(|(node, _)| !self.graves.contains_key(*node)) {
            let pods = node_pods.pods.values();
            let may_change = |work: &Work| {
                let of_job = work.job.is_some() && work.copies == Copies::Allowed;
                gate.must_read(work)
                    || of_job && gate.must_read(&Work { copies: Copies::Unread, ..work.clone() })
            };
            for pod in pods.filter(|pod| pod.holds_a_drain() && may_change(&pod.work)) {
                let key = (node.clone(), node_pods.number, pod.pod.uid.clone());
                wanted.insert(key, pod.work.clone());
            }
        }
        wanted
    }

    /// Applies the result for the claims and the Job of a pod. Returns true if it changed.
    pub(crate) fn learn(&mut self, (node, number, uid): &WorkKey, copies: Copies) -> bool {
        let node_pods = self.nodes.get_mut(node).filter(|it| it.number == *number);
        let Some(pod) = node_pods.and_then(|it| it.pods.get_mut(uid)) else { return false };
        let is_news = pod.work.copies != copies;
        pod.work.copies = copies;
        is_news
    }

    /// The results for the claims and Jobs of the pods of a node.
    pub(crate) fn copies(&self, node: &NodeName) -> BTreeMap<Uid, Copies> {
        let pods = self.nodes.get(node).into_iter().flat_map(|it| it.pods.values());
        pods.map(|pod| (pod.pod.uid.clone(), pod.work.copies.clone())).collect()
    }

    /// Sets all pods of a node that is not watched.
    pub(crate) fn list(&mut self, node: &NodeName, all: Vec<PodView>) {
        self.watch(BTreeSet::from([node.clone()]));
        if let Some(node_pods) = self.nodes.get_mut(node) {
            node_pods.listed = true;
            node_pods.pods = all.into_iter().map(|pod| (pod.pod.uid.clone(), pod)).collect();
        }
    }

    /// Applies the answer to our own write.
    pub(crate) fn saw(&mut self, node: &NodeName, pod: PodView) {
        if let Some(known) = self.nodes.get_mut(node).and_then(|it| it.pods.get_mut(&pod.pod.uid)) {
            let copies = known.work.copies.clone();
            *known = pod;
            known.work.copies = copies;
        }
    }

    pub(crate) fn pod(&self, subject: &PodSubject) -> Option<&PodView> {
        self.nodes.get(&subject.node)?.pods.get(&subject.pod.uid)
    }

    pub(crate) fn subjects(&self) -> impl Iterator<Item = Subject> {
        self.nodes.iter().flat_map(|(node, it)| it.pods.values().map(|pod| pod_subject(node, pod)))
    }

    /// The pods left by the drain of a node, if they are known.
    pub(crate) fn left(&self, node: &NodeName) -> Option<Left> {
        let node_pods = self.nodes.get(node).filter(|it| it.listed)?;
        Some(left_of(node_pods.pods.values()))
    }

    pub(crate) fn refusal(&self, pod: &Uid) -> Option<&Refusal> {
        self.refused.get(pod).map(|(refusal, _)| refusal)
    }

    /// The API server refused to evict a pod.
    pub(crate) fn refuse(&mut self, pod: &Uid, words: String, now: Timestamp) {
        let times = self.refused.get(pod).map_or(0, |(_, times)| *times).min(10);
        let wait = FIRST_RETRY.saturating_mul(1 << times).min(LAST_RETRY);
        let until = now.saturating_add(wait).unwrap_or(Timestamp::MAX);
        self.refused.insert(pod.clone(), (Refusal { words, until }, times + 1));
    }
}

/// Those of the pods that block a drain, in the order of their names.
pub(crate) fn left_of<'a>(pods: impl IntoIterator<Item = &'a PodView>) -> Left {
    let mut pods: Vec<PodView> = pods.into_iter().filter(|pod| pod.holds_a_drain()).cloned().collect();
    pods.sort_by(|a, b| (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name)));
    Left { pods }
}

/// What is known of the claims and the Job of a pod counts until they are read again.
fn remember(pod: &mut PodView, known: &BTreeMap<Uid, PodView>) {
    if let Some(known) = known.get(&pod.pod.uid) {
        pod.work.copies = known.work.copies.clone();
    }
}

fn lasts(since: Timestamp) -> Timestamp {
    since.saturating_add(GRAVE_LASTS).unwrap_or(Timestamp::MAX)
}

fn pod_subject(node: &NodeName, pod: &PodView) -> Subject {
    Subject::Pod(Box::new(PodSubject { node: node.clone(), pod: pod.pod.clone() }))
}

pub(crate) struct Pods(Arc<Reader>);

impl Project for Pods {
    type Wire = PodWire;
    type Kept = PodView;

    fn keep(&self, wire: PodWire) -> Option<PodView> {
        Some(self.0.pod(wire))
    }
}

pub(crate) type PodWire = Object<PodSpec, PodStatus, WorkAnnotations>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    volumes: Vec<VolumeWire>,
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct PodStatus {
    phase: String,
}

impl Reader {
    pub(crate) fn pod(&self, PodWire { metadata, spec, status }: PodWire) -> PodView {
        let is_of_daemon_set = metadata
            .controller()
            .is_some_and(|owner| owner.kind == "DaemonSet" && owner.api_version.starts_with("apps/"));
        PodView {
            phase: PodPhase::from_api(&status.phase),
            deletion: metadata.pod_deletion(),
            stays: match (metadata.annotations.is_mirror(), is_of_daemon_set) {
                (true, _) => Some(Stays::Mirror),
                (false, true) => Some(Stays::DaemonSet),
                (false, false) => None,
            },
            work: work(&metadata, &spec.volumes, &self.gate),
            without_grace: spec.termination_grace_period_seconds == Some(0),
            pod: PodRef { namespace: metadata.namespace, name: metadata.name, uid: metadata.uid },
            resource_version: metadata.resource_version,
        }
    }
}
