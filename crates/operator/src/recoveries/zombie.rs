//! Zombie recovery: terminating pods with consent, and all nodes. Either kind wakes the pods it concerns.

mod wire;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use futures::FutureExt;
use jiff::Timestamp;
use kube::Client;
use salvor_recovery::{
    Action, Judgement,
    brake::{Census, NodeStanding, Tally},
    objects::{PodRef, Ready},
    zombie::{NodeView, NodeWhy, PodView, PodWhy, ZombiePolicy, decide_node, decide_pod},
};
use tokio::sync::mpsc;

use self::wire::{AllNodes, ConsentingPods, NodeWire, PodWire, SeenNode};
use crate::{
    executor::Written,
    live,
    looks::Looks,
    recovery::{Feed, Known, LiveInquiry, NodeOrPod, Recovery, Refused, View, relay},
    watch::{Change, Target, WatchHealth, follow},
    wire::read,
};

/// Only bound pods: no kubelet, no zombie.
const PODS: Target =
    Target { resource: "pods", path: "/api/v1/pods", field_selector: Some(Cow::Borrowed("spec.nodeName!=")) };
const NODES: Target = Target { resource: "nodes", path: "/api/v1/nodes", field_selector: None };

/// What zombie recovery judges.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Subject {
    /// Shared, because the engine keeps it in several places, and there may be thousands.
    Pod(Arc<PodRef>),
    Node {
        name: String,
    },
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) => write!(f, "pod {}/{}", pod.namespace, pod.name),
            Self::Node { name } => write!(f, "node {name}"),
        }
    }
}

impl Subject {
    fn pod(pod: &PodRef) -> Self {
        Self::Pod(Arc::new(pod.clone()))
    }
}

/// Why a pod or a node is judged as it is.
pub(crate) type Why = NodeOrPod<NodeWhy, PodWhy>;

/// A change of a pod or of a node.
#[derive(Debug)]
pub(crate) enum News {
    Pod(Change<PodView>),
    Node(Change<SeenNode>),
}

/// The pods that might be zombies, and the nodes.
#[derive(Debug)]
pub(crate) struct Zombies {
    policy: Arc<ZombiePolicy>,
    pods: BTreeMap<String, PodView>,
    pods_of_node: BTreeMap<String, BTreeSet<String>>,
    nodes: BTreeMap<String, NodeView>,
    /// What of each of them makes it count.
    standings: BTreeMap<String, NodeStanding>,
    nodes_listed: bool,
    looks: Looks<NodeView>,
    node_of_uid: BTreeMap<String, String>,
    /// Subjects whose event is known to be recorded.
    announced: BTreeSet<String>,
}

impl Zombies {
    pub(crate) fn new(policy: Arc<ZombiePolicy>) -> Self {
        Self {
            policy,
            pods: BTreeMap::new(),
            pods_of_node: BTreeMap::new(),
            nodes: BTreeMap::new(),
            standings: BTreeMap::new(),
            nodes_listed: false,
            looks: Looks::default(),
            node_of_uid: BTreeMap::new(),
            announced: BTreeSet::new(),
        }
    }

    fn insert_pod(&mut self, mut pod: PodView) -> Subject {
        pod.announced = self.announced.contains(&pod.pod.uid);
        let subject = Subject::pod(&pod.pod);
        if let Some(node) = &pod.node_name {
            self.pods_of_node.entry(node.clone()).or_default().insert(pod.pod.uid.clone());
        }
        self.pods.insert(pod.pod.uid.clone(), pod);
        subject
    }

    fn remove_pod(&mut self, uid: &str) -> Option<Subject> {
        self.announced.remove(uid);
        let pod = self.pods.remove(uid)?;
        let node = pod.node_name.unwrap_or_default();
        if let Some(pods) = self.pods_of_node.get_mut(&node) {
            pods.remove(uid);
            if pods.is_empty() {
                self.pods_of_node.remove(&node);
            }
        }
        Some(Subject::pod(&pod.pod))
    }

    fn insert_node(&mut self, seen: SeenNode, now: Timestamp) -> Vec<Subject> {
        let name = seen.node.name.clone();
        let known = self.nodes.get(&name);
        // A taint without a time counts from when it was first seen.
        let observed = known.and_then(|n| n.unreachable).map_or(now, |u| u.since);
        let announced = self.announced.contains(&seen.node.uid);
        self.standings.insert(name.clone(), seen.standing);
        let known = self.nodes.get(&name);
        let view = NodeView { announced, ..seen.view(observed) };
        let concerns_pods =
            known.is_none_or(|old| old.unreachable != view.unreachable || old.node != view.node);
        self.node_of_uid.insert(view.node.uid.clone(), name.clone());
        self.nodes.insert(name.clone(), view);
        let mut woken = if concerns_pods { self.pods_on(&name) } else { Vec::new() };
        woken.push(Subject::Node { name });
        woken
    }

    fn pods_on(&self, node: &str) -> Vec<Subject> {
        let uids = self.pods_of_node.get(node).into_iter().flatten();
        uids.filter_map(|uid| self.pods.get(uid)).map(|p| Subject::pod(&p.pod)).collect()
    }
}

impl Recovery for Zombies {
    const NAME: &'static str = "zombie";
    // Every write names the revision that was judged, or is preceded by a second look.
    const LISTS_TO_LEAD: bool = false;
    type Subject = Subject;
    type Why = Why;
    type News = News;
    type Inquiry = Inquiry;

    fn begin_to_lead(&mut self, _: u64) {}

    fn feeds(&self, client: &Client, news: &mpsc::Sender<News>) -> Vec<Feed> {
        let pods = WatchHealth::new(PODS.resource);
        let nodes = WatchHealth::new(NODES.resource);
        let consenting = ConsentingPods(self.policy.clone());
        let (pod_tx, pod_rx) = mpsc::channel(64);
        let (node_tx, node_rx) = mpsc::channel(64);
        let pod_watch = follow(client.clone(), PODS, consenting, pods.clone(), pod_tx);
        let node_watch = follow(client.clone(), NODES, AllNodes, nodes.clone(), node_tx);
        vec![
            Feed { health: pods, run: relay(pod_watch, pod_rx, news.clone(), News::Pod).boxed() },
            Feed { health: nodes, run: relay(node_watch, node_rx, news.clone(), News::Node).boxed() },
        ]
    }

    fn hear(&mut self, news: News, now: Timestamp) -> Vec<Subject> {
        match news {
            News::Pod(Change::Applied(pod)) => vec![self.insert_pod(pod)],
            News::Pod(Change::Gone(uid)) => self.remove_pod(&uid).into_iter().collect(),
            News::Pod(Change::Reset { all: pods, .. }) => {
                let mut woken: BTreeSet<Subject> = self.pods.values().map(|p| Subject::pod(&p.pod)).collect();
                let present: BTreeSet<String> = pods.iter().map(|p| p.pod.uid.clone()).collect();
                let gone: Vec<String> =
                    self.pods.keys().filter(|uid| !present.contains(*uid)).cloned().collect();
                for uid in gone {
                    self.remove_pod(&uid);
                }
                woken.extend(pods.into_iter().map(|pod| self.insert_pod(pod)));
                woken.into_iter().collect()
            }
            News::Node(Change::Applied(node)) => self.insert_node(node, now),
            News::Node(Change::Gone(uid)) => {
                self.announced.remove(&uid);
                let Some(name) = self.node_of_uid.remove(&uid) else { return Vec::new() };
                // The name may belong to a newer node already.
                if self.nodes.get(&name).is_some_and(|n| n.node.uid == uid) {
                    self.nodes.remove(&name);
                    self.standings.remove(&name);
                }
                let mut woken = self.pods_on(&name);
                woken.push(Subject::Node { name });
                woken
            }
            News::Node(Change::Reset { all: nodes, .. }) => {
                let mut woken: BTreeSet<Subject> = self.subjects().into_iter().collect();
                let present: BTreeSet<String> = nodes.iter().map(|n| n.node.uid.clone()).collect();
                self.nodes_listed = true;
                self.announced.retain(|uid| present.contains(uid) || self.pods.contains_key(uid));
                self.nodes.retain(|_, n| present.contains(&n.node.uid));
                self.standings.retain(|name, _| self.nodes.contains_key(name));
                self.node_of_uid.retain(|uid, _| present.contains(uid));
                for node in nodes {
                    woken.extend(self.insert_node(node, now));
                }
                woken.into_iter().collect()
            }
        }
    }

    fn judge(&self, subject: &Subject, now: Timestamp) -> Option<Judgement<Why>> {
        match subject {
            Subject::Pod(subject) => {
                let uid = &subject.uid;
                let pod = self.pods.get(uid)?;
                let node = pod.node_name.as_ref().and_then(|n| self.nodes.get(n));
                Some(decide_pod(pod, node, &self.policy, now).map_why(Why::Pod))
            }
            Subject::Node { name } => {
                let mut node = self.nodes.get(name)?.clone();
                // Leases are not watched: a ready node's is taken to be fresh until the second look reads it.
                node.lease_renewed = (node.ready == Ready::True).then_some(now);
                Some(decide_node(&node, &self.policy, now).map_why(Why::Node))
            }
        }
    }

    fn subjects(&self) -> Vec<Subject> {
        let pods = self.pods.values().map(|p| Subject::pod(&p.pod));
        let nodes = self.nodes.keys().map(|name| Subject::Node { name: name.clone() });
        pods.chain(nodes).collect()
    }

    fn node_counts(&self, now: Timestamp) -> Option<Tally> {
        let mut census = Census::new(now, self.policy.count_nodes_ready_within);
        self.standings.values().for_each(|node| census.add("", node));
        self.nodes_listed.then(|| census.cluster())
    }

    fn inquiry(&self, subject: &Subject) -> Inquiry {
        let (uid, pod, observed) = match subject {
            Subject::Pod(subject) => {
                let uid = &subject.uid;
                let pod = self.pods.get(uid);
                let node = pod.and_then(|p| p.node_name.as_ref());
                (uid.clone(), pod.cloned(), node.and_then(|n| self.nodes.get(n)))
            }
            Subject::Node { name } => {
                let node = self.nodes.get(name);
                (node.map(|n| n.node.uid.clone()).unwrap_or_default(), None, node)
            }
        };
        Inquiry {
            subject: subject.clone(),
            pod,
            announced: self.announced.contains(&uid),
            observed: observed.and_then(|n| n.unreachable).map(|u| u.since),
            policy: self.policy.clone(),
            looks: self.looks.clone(),
        }
    }

    fn done(&mut self, subject: &Subject, action: &Action, _: &Written, _: Timestamp) -> View {
        if let (Subject::Node { name }, Action::TaintNode { .. } | Action::UntaintNode { .. }) =
            (subject, action)
        {
            // What is told from now on is about this, not about an earlier incident.
            if let Some(node) = self.nodes.get_mut(name) {
                node.announced = false;
                self.announced.remove(&node.node.uid);
            }
        }
        if !matches!(action, Action::EmitEvent(_)) {
            return View::Lags;
        }
        match subject {
            Subject::Pod(subject) => {
                let uid = &subject.uid;
                if let Some(pod) = self.pods.get_mut(uid) {
                    pod.announced = true;
                    self.announced.insert(uid.clone());
                }
            }
            Subject::Node { name } => {
                if let Some(node) = self.nodes.get_mut(name) {
                    node.announced = true;
                    self.announced.insert(node.node.uid.clone());
                }
            }
        }
        View::Shows
    }

    fn refused(&mut self, _: &Subject, _: &Action, _: &str, _: Timestamp) -> Refused {
        Refused::Waits
    }
}

/// A live question about a pod or a node.
#[derive(Debug)]
pub(crate) struct Inquiry {
    subject: Subject,
    /// The pod as it was judged.
    pod: Option<PodView>,
    announced: bool,
    observed: Option<Timestamp>,
    policy: Arc<ZombiePolicy>,
    looks: Looks<NodeView>,
}

impl LiveInquiry for Inquiry {
    type Why = Why;

    async fn ask(
        &self,
        client: &Client,
        known: Known<'_>,
        now: Timestamp,
    ) -> kube::Result<Option<Judgement<Why>>> {
        let observed = self.observed.unwrap_or(now);
        match &self.subject {
            Subject::Pod(subject) => {
                let PodRef { namespace, name, uid } = &**subject;
                let fresh = match known {
                    Known::Guarded => self.pod.clone(),
                    Known::Written(pod) => Some(read::<PodWire>(pod)?.view()),
                    Known::Nothing => pod(client, namespace, name).await?,
                };
                let Some(mut pod) = fresh.filter(|p| p.pod.uid == *uid) else { return Ok(None) };
                pod.announced = self.announced;
                let node = match &pod.node_name {
                    Some(name) => self.looks.at(name, node(client, name, observed)).await?,
                    None => None,
                };
                Ok(Some(decide_pod(&pod, node.as_ref(), &self.policy, now).map_why(Why::Pod)))
            }
            Subject::Node { name } => {
                let Some(mut node) = node(client, name, observed).await? else { return Ok(None) };
                node.announced = self.announced;
                node.lease_renewed = live::lease_renewed(client, name).await?;
                Ok(Some(decide_node(&node, &self.policy, now).map_why(Why::Node)))
            }
        }
    }
}

/// Reads a pod live.
pub(crate) async fn pod(client: &Client, namespace: &str, name: &str) -> kube::Result<Option<PodView>> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let text = live::get(client, &path).await?;
    text.map(|text| Ok(read::<PodWire>(&text)?.view())).transpose()
}

/// Reads a node live, for somebody who has not watched it.
pub(crate) async fn node_at_first_sight(
    client: &Client,
    name: &str,
    now: Timestamp,
) -> kube::Result<Option<NodeView>> {
    let text = live::get(client, &format!("/api/v1/nodes/{name}")).await?;
    text.map(|text| Ok(SeenNode::from(read::<NodeWire>(&text)?).view_at_first_sight(now))).transpose()
}

/// Reads a node live; `observed` is since when it was seen unreachable, for a taint that does not say.
async fn node(client: &Client, name: &str, observed: Timestamp) -> kube::Result<Option<NodeView>> {
    let text = live::get(client, &format!("/api/v1/nodes/{name}")).await?;
    text.map(|text| Ok(SeenNode::from(read::<NodeWire>(&text)?).view(observed))).transpose()
}
