//! The repair recovery: all nodes, the policies that select them, and the NodeClaims and Machines behind them.
//!
//! A policy is a subject, and so is every node. The policy grants turns by recording them in its status; only a node
//! with a turn is repaired. Any change on a node requeues it, its policy, and the nodes whose repair is blocked:
//! nothing is polled.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use jiff::{SignedDuration, Timestamp};
use salvor_api::{Controller, config::Configuration};
use salvor_recovery::{
    Decision, Step as _,
    brake::Held,
    ids::{NodeName, Uid},
    repair::{Hold, Left, NodeView, Policy, Refusal, Settings, Step},
};

use self::{
    metrics::RepairMetrics,
    news::{News, WorkKey},
    recheck::{PodQuestion, Recheck},
    store::{
        Store,
        owners::{Claims, MACHINE_VERSIONS, Machines, Owners},
        pods::{self, Counted},
        pods_on_nodes::PodsOnNodes,
    },
    subjects::{Key, Subject, Why},
    surveys::cache::Cache,
    wire::{Policies, Pools, Reader, SeenPool},
};
use crate::{
    client::{
        discovery::{Kind, Versions},
        revision::Told,
    },
    engine::recovery::{After, Ended, Recovery, Refused},
    execute::Failure,
    recoveries::work::WorkReads,
    watch_set::{
        feeds::{Feed, KindTarget},
        leases::{self, Heartbeats, Wanted},
        nodes::Needs,
        watch::{Change, WatchHealth},
    },
};

mod answers;
mod deciding;
mod entry;
mod explain;
mod metrics;
mod news;
mod on_change;
mod recheck;
mod store;
mod subjects;
mod surveys;
mod wire;

pub(super) use entry::ENTRY;

/// Delay before a refused write is retried.
const REFUSED_FOR: SignedDuration = SignedDuration::from_mins(1);
/// Delay before a write is retried that failed with a server error.
const FAILED_FOR: SignedDuration = SignedDuration::from_secs(15);
/// After this many consecutive requests without an answer, the node reports it.
const SILENT_TIMES: u32 = 2;
/// Limit on the part of the server's message that is passed on.
const LONGEST_WORDS: usize = 400;
#[derive(Debug)]
pub(crate) struct Repairs {
    settings: Arc<Settings>,
    reader: Arc<Reader>,
    enabled: bool,
    /// True if a node counts as having its turn as soon as it is due, because a dry run records no turns.
    plans: bool,
    metrics: RepairMetrics,
    /// Boxed, because the leaves of such a map are half empty.
    nodes: BTreeMap<NodeName, Box<NodeView>>,
    /// Names by UID.
    uids: BTreeMap<Uid, NodeName>,
    nodes_listed: bool,
    node_watch: Option<Arc<WatchHealth>>,
    policies: Store<Policy>,
    pools: Store<SeenPool>,
    claims: Owners,
    machines: [Owners; 2],
    /// The policy that applies to each node.
    assigned: BTreeMap<NodeName, Key>,
    members: BTreeMap<Key, BTreeSet<NodeName>>,
    /// Nodes that a policy selects but that belong to an older policy, with its name.
    overlaps: BTreeMap<Key, BTreeMap<NodeName, Arc<str>>>,
    /// NodeClaims and Machines that were deleted before they became nodes: their pool, and when that was seen.
    lost_launches: Vec<(Arc<str>, Timestamp)>,
    refused: BTreeMap<Uid, Refusal>,
    /// Consecutive disruptive requests for each node that the server did not answer.
    silent: BTreeMap<Uid, u32>,
    written: BTreeMap<Key, Timestamp>,
    pods: Counted,
    pods_on_nodes: PodsOnNodes,
    works: WorkReads<WorkKey>,
    leases: Wanted,
    heartbeats: Heartbeats,
    /// True if pods of nodes that are gone with their machine are force deleted: the eviction recovery is enabled.
    frees: bool,
    /// The brake's last block of each node.
    braked: BTreeMap<Uid, Held>,
    cache: Mutex<Cache>,
    /// Incremented with every change that a survey depends on.
    generation: u64,
    declared: Option<bool>,
}

impl Repairs {
    pub(crate) fn new(configuration: &Arc<Configuration>, metrics: RepairMetrics) -> Self {
        Self {
            settings: Arc::new(Settings::new(configuration)),
            reader: Arc::new(Reader::new(configuration)),
            enabled: configuration.controllers.enabled(Controller::Repair),
            plans: configuration.dry_run,
            metrics,
            nodes: BTreeMap::new(),
            uids: BTreeMap::new(),
            nodes_listed: false,
            node_watch: None,
            policies: Store::new(),
            pools: Store::new(),
            claims: Owners::new(),
            machines: [Owners::new(), Owners::new()],
            assigned: BTreeMap::new(),
            members: BTreeMap::new(),
            overlaps: BTreeMap::new(),
            lost_launches: Vec::new(),
            refused: BTreeMap::new(),
            silent: BTreeMap::new(),
            written: BTreeMap::new(),
            pods: Counted::default(),
            pods_on_nodes: PodsOnNodes::default(),
            works: WorkReads::default(),
            leases: Wanted::default(),
            heartbeats: Heartbeats::default(),
            frees: configuration.controllers.enabled(Controller::Eviction),
            braked: BTreeMap::new(),
            cache: Mutex::default(),
            generation: 0,
            declared: None,
        }
    }
}

/// A kind that is watched in all namespaces, if it is served.
fn target(group: &str, version: &str, kind: &str) -> KindTarget {
    KindTarget {
        versions: Versions::Named,
        kind: Kind { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() },
        namespace: None,
        field_selector: None,
        label_selector: None,
    }
}

impl Recovery for Repairs {
    const NAME: &'static str = "repair";
    type Subject = Subject;
    type Why = Why;
    type Step = Step;
    type News = News;
    type Recheck = Recheck;

    fn watches(&mut self) -> Option<Vec<Feed<News>>> {
        // The old version of Machines is watched only where the new one is not served.
        let old_machines = self.machines[0].is_not_served();
        let drained = self.drained();
        self.want_leases(&drained);
        let pods_change = self.pods_on_nodes.watch(drained);
        if self.declared.replace(old_machines) == Some(old_machines) && !pods_change {
            return None;
        }
        if !old_machines {
            self.machines[1] = Owners::new();
        }
        let reader = self.reader.clone();
        let (counts, works, wanted) = (self.pods.clone(), self.works.clone(), self.leases.clone());
        let mut feeds = vec![
            Feed::nodes_with(
                Needs { conditions: true, volumes: None },
                move |node| Box::new(reader.node_of(&node.wire, node.counted.node.clone())),
                News::Node,
            ),
            Feed::kind(
                "noderepairpolicies",
                target("salvor.dev", "v1alpha1", "NodeRepairPolicy"),
                0,
                Policies,
                News::Policy,
            ),
            Feed::kind("nodepools", target("karpenter.sh", "v1", "NodePool"), 0, Pools, News::Pool),
            Feed::kind(
                "nodeclaims",
                target("karpenter.sh", "v1", "NodeClaim"),
                0,
                Claims(self.reader.clone()),
                News::Claim,
            ),
            Feed::reads("pod counts", |client, news| pods::count(client, counts, news)),
            Feed::reads("works", |client, news| {
                works.run(client, news, |pod, copies| News::Work { pod, copies })
            }),
            Feed::reads("leases", |client, news| {
                leases::read(Self::NAME, client, wanted, news, |node, lease| News::Lease { node, lease })
            }),
        ];
        feeds.extend(self.pods_on_nodes.feeds(&self.reader));
        let versions = MACHINE_VERSIONS.into_iter().enumerate().take(if old_machines { 2 } else { 1 });
        feeds.extend(versions.map(|(number, version)| {
            Feed::kind(
                "machines",
                target("cluster.x-k8s.io", version, "Machine"),
                0,
                Machines(version, self.reader.clone()),
                move |news| News::Machine(number, news),
            )
        }));
        Some(feeds)
    }

    fn on_change(&mut self, news: News, now: Timestamp) -> Vec<Subject> {
        self.pods_on_nodes.expire(now);
        let woken = match news {
            News::Node(Change::Applied(node)) => self.see_node(node, Told::Alone, now),
            News::Node(Change::Gone(uid)) => self.drop_node(&uid),
            News::Node(Change::Reset { all, revision, .. }) => {
                self.node_watch = revision.watch().cloned();
                self.list_nodes(all, revision.new_history, revision.revision)
            }
            News::Policy(news) => self.on_policies(news),
            News::Pool(news) => self.on_pools(news),
            News::Claim(news) => self.on_claims(news, now),
            News::Machine(version, news) => self.on_machines(version, news, now),
            News::Work { pod, copies } => {
                let node = pod.0.clone();
                let mut woken = BTreeSet::new();
                if self.pods_on_nodes.learn(&pod, copies) {
                    self.works.set(self.pods_on_nodes.works(&self.reader.gate));
                    self.generation += 1;
                    woken.insert(Subject::Node(node));
                }
                woken
            }
            News::Pod { node, number, change } => {
                let left = self.pods_on_nodes.left(&node);
                let mut woken: BTreeSet<Subject> =
                    self.pods_on_nodes.on_change(&node, number, change).into_iter().collect();
                self.works.set(self.pods_on_nodes.works(&self.reader.gate));
                let left_now = self.pods_on_nodes.left(&node);
                if left_now != left && self.nodes.contains_key(&node) {
                    self.generation += 1;
                    let is_empty = |left: Option<Left>| left.is_some_and(|left| left.pods.is_empty());
                    if is_empty(left_now) == is_empty(left) {
                        woken.insert(Subject::Node(node));
                    } else {
                        // An empty node blocks no other node any more.
                        woken.extend(self.concerned(&node));
                    }
                }
                woken
            }
            News::Lease { node, lease } => {
                let Some(known) = self.node(&node).map(|known| known.node.clone()) else { return Vec::new() };
                self.heartbeats.note(&known, lease, now);
                self.generation += 1;
                BTreeSet::from([Subject::Node(node)])
            }
            News::Pods { node, pods } => {
                self.pods.counted(&node, pods);
                self.generation += 1;
                self.concerned(&node)
            }
        };
        woken.into_iter().collect()
    }

    fn judge(&self, subject: &Subject, now: Timestamp) -> Option<Decision<Why, Step>> {
        match subject {
            Subject::Node(name) => self.judge_node(name, now).map(|decision| decision.map_why(Why::Node)),
            Subject::Policy(key) => self.judge_policy(key, now).map(|decision| decision.map_why(Why::Policy)),
            Subject::Pod(pod) => self.judge_pod(pod, now).map(|decision| decision.map_why(Why::Pod)),
        }
    }

    fn subjects(&self) -> Vec<Subject> {
        // A node that no policy selects any more may still have our annotations or conditions.
        let is_ours = |node: &NodeView| {
            node.has_traces() || self.assigned.contains_key(&node.node.name) || self.is_kept(node)
        };
        let ours = self.nodes.values().filter(|node| is_ours(node));
        let nodes = ours.map(|node| Subject::Node(node.node.name.clone()));
        let policies = self.keys().into_iter().map(Subject::Policy);
        nodes.chain(policies).chain(self.pods_on_nodes.subjects()).collect()
    }

    fn held(&mut self, subject: &Subject, by: &Held, _: Timestamp) -> bool {
        let Subject::Node(name) = subject else { return false };
        // Nothing is written during a pause, and the rules report a policy's own limits.
        if matches!(by, Held::Paused { .. } | Held::RepairPolicy(_)) {
            return false;
        }
        let Some(node) = self.nodes.get(name) else { return false };
        let token = Hold::Brake(by.clone()).token();
        self.braked.insert(node.node.uid.clone(), by.clone());
        node.progress.as_ref().is_none_or(|progress| progress.told != token)
    }

    fn recheck(&self, subject: &Subject, judged: Timestamp) -> Recheck {
        let (name, pod) = match subject {
            Subject::Node(name) => (name, None),
            Subject::Policy(_) => return Recheck::default(),
            Subject::Pod(subject) => {
                let pod = self.pods_on_nodes.pod(subject).cloned();
                let grave = self.pods_on_nodes.grave(&subject.node).cloned();
                (&subject.node, pod.map(|pod| PodQuestion { pod, grave }))
            }
        };
        let key = self.assigned.get(name);
        let policy = key.and_then(|key| self.policy(key));
        let node = self.node(name);
        Recheck {
            node: node.map(|node| node.node.clone()),
            provider_id: node.map(|node| node.provider_id.to_string()).unwrap_or_default(),
            policy: policy.map(|policy| policy.object.clone()),
            survey: key.zip(policy).map(|(key, policy)| self.survey(key, policy, judged)),
            backend: node.map(|node| self.backend(node)),
            pool: node
                .and_then(NodeView::pool)
                .and_then(|name| self.pool(name))
                .map(|pool| pool.view.clone()),
            settings: Some(self.settings.clone()),
            reader: self.reader.clone(),
            copies: self.pods_on_nodes.copies(name),
            heartbeats: self.heartbeats.clone(),
            pod,
        }
    }

    fn ended(&mut self, subject: &Subject, end: Ended<'_, Step>, now: Timestamp) -> After {
        let after = After::with(end.view(|step, answer| self.done(subject, step, answer, now)));
        if let (Some((step, failure)), Subject::Node(name)) = (end.failed, subject) {
            if let Some(refused) = self.unanswered(name, step, failure, now) {
                return after.and(refused);
            }
        } else if let Subject::Node(name) = subject
            && let Some(node) = self.nodes.get(name)
        {
            self.silent.remove(&node.node.uid);
        }
        let Some((step, refusal)) = end.refused else { return after };
        let name = match subject {
            Subject::Node(name) => name,
            Subject::Policy(_) => return after,
            Subject::Pod(subject) => {
                let words = refusal.words[..refusal.words.floor_char_boundary(LONGEST_WORDS)].to_owned();
                self.pods_on_nodes.refuse(&subject.pod.uid, words, now);
                return after.and(Refused::Judged(None));
            }
        };
        let Some(node) = self.nodes.get(name).filter(|_| step.is_disruptive()) else { return after };
        // Decided again, which reports the refusal on the node; retried later.
        let words = &refusal.words[..refusal.words.floor_char_boundary(LONGEST_WORDS)];
        let wait = if refusal.code >= 500 { FAILED_FOR } else { REFUSED_FOR };
        let refused = Refusal {
            words: format!("{step}: {words}"),
            until: now.saturating_add(wait).unwrap_or(Timestamp::MAX),
        };
        self.refused.insert(node.node.uid.clone(), refused);
        self.generation += 1;
        after.and(Refused::Judged(None))
    }
}

impl Repairs {
    /// True if it may be the Node of a machine that registered again after we deleted its Node.
    fn is_kept(&self, node: &NodeView) -> bool {
        let mut kept = self.policies.values().flat_map(|policy| &policy.status.deleted_nodes);
        kept.any(|kept| kept.is_of(node, kept.at))
    }

    /// Two consecutive requests without an answer are an error that the node reports.
    fn unanswered(
        &mut self,
        name: &NodeName,
        step: &Step,
        failure: &Failure,
        now: Timestamp,
    ) -> Option<Refused> {
        if !matches!(failure, Failure::Unanswered(_) | Failure::LookTooOld) || !step.is_disruptive() {
            return None;
        }
        let node = self.nodes.get(name)?.node.uid.clone();
        let times = self.silent.entry(node.clone()).or_default();
        *times += 1;
        if *times < SILENT_TIMES {
            return None;
        }
        let until = now.saturating_add(FAILED_FOR).unwrap_or(Timestamp::MAX);
        self.refused.insert(node, Refusal { words: format!("{step}: {failure}"), until });
        self.generation += 1;
        Some(Refused::Judged(None))
    }
}

#[cfg(test)]
mod tests;
