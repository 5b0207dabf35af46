//! The repair recovery: all nodes, the policies that select them, and the NodeClaims and Machines behind them.
//!
//! A policy is a subject, and so is every node. The policy gives turns by writing them down; a node that has its turn is acted on.
//! Whatever changes on a node wakes it and its policy, and the nodes whose repair is held: nothing is polled.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use salvor_api::{Controller, config::Configuration};
use salvor_recovery::{
    Judgement, Reason, Step as _, Verdict,
    brake::Held,
    ids::{NodeName, Uid},
    objects::{NodeRef, PodRef},
    one_actor::NodeActors,
    repair::{
        Action, Backend, Hold, LaunchTrouble, Member, NODE_CLAIM, NodeView, NodeWhy, Place, PodPlace,
        PodView, PodWhy, Policy, PolicyScene, PolicyWhy, Refusal, Repair, Scene, Scope, Settings, Step,
        Survey, Termination, decide_node, decide_pod, decide_policy, diagnose, drained_until, survey,
    },
};

use self::{
    look::{Inquiry, PodQuestion},
    metrics::RepairMetrics,
    pods::Counted,
    residents::{Residents, pod_view},
    store::{Store, Turn},
    wire::{Claims, Machines, Policies, Pools, SeenOwner, SeenPool, node_view},
};
use crate::{
    discovery::Kind,
    executor::Written,
    feeds::{Feed, KindTarget, OfKind},
    nodes::{Needs, NodeWire},
    recovery::{After, Ended, Recovery, Refused, View},
    revision::{Revision, Told},
    watch::{Change, WatchHealth},
    wire::read,
};

mod entry;
mod explain;
mod look;
mod metrics;
mod pods;
mod residents;
mod store;
mod wire;

pub(super) use entry::ENTRY;

/// A write that the server refused is tried again after this time.
const REFUSED_FOR: SignedDuration = SignedDuration::from_mins(1);
/// The same of a server that failed.
const FAILED_FOR: SignedDuration = SignedDuration::from_secs(15);
/// So much of the server's words on it is passed on.
const LONGEST_WORDS: usize = 400;
/// The versions in which Cluster API serves Machines, the newest first.
const MACHINE_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

/// The policy or NodePool that counts for a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// A NodeRepairPolicy.
    Policy(String),
    /// A NodePool with a block `spec.repair`.
    Pool(String),
}

/// An object that the repair recovery judges.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// A node, by name.
    Node(NodeName),
    /// A policy.
    Policy(Key),
    /// A pod of a node that is drained, or was replaced.
    Pod(PodSubject),
}

/// A pod, and the node that it is bound to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodSubject {
    node: NodeName,
    pod: PodRef,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node {name}"),
            Self::Policy(Key::Policy(name)) => write!(f, "noderepairpolicy {name}"),
            Self::Policy(Key::Pool(name)) => write!(f, "nodepool {name}"),
            Self::Pod(PodSubject { pod, .. }) => write!(f, "pod {pod}"),
        }
    }
}

/// Why a node, a policy or a pod is judged as it is.
#[derive(Clone, Debug)]
pub(crate) enum Why {
    Node(NodeWhy),
    Policy(PolicyWhy),
    Pod(PodWhy),
}

impl Why {
    fn reason(&self) -> &dyn Reason {
        match self {
            Self::Node(why) => why,
            Self::Policy(why) => why,
            Self::Pod(why) => why,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.reason(), f)
    }
}

impl Reason for Why {
    fn code(&self) -> &'static str {
        self.reason().code()
    }

    fn what_would_change_it(&self) -> String {
        self.reason().what_would_change_it()
    }
}

/// A change from the watches and reads.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "policies are few, and nodes need no allocation of their own")]
pub(crate) enum News {
    Node(Change<NodeView>),
    Policy(OfKind<Policy>),
    Pool(OfKind<SeenPool>),
    Claim(OfKind<SeenOwner>),
    /// Of the version with this number.
    Machine(usize, OfKind<SeenOwner>),
    /// Of the watch with this number of the pods of a node.
    Pod {
        node: NodeName,
        number: u64,
        change: Change<PodView>,
    },
    /// The pods of a node were counted, as far as they could be.
    Pods {
        node: NodeName,
        pods: u32,
    },
}

/// What was computed for a policy, and for how long it holds.
#[derive(Debug)]
struct Surveyed {
    generation: u64,
    at: Timestamp,
    survey: Arc<Survey>,
}

/// What judging remembers.
#[derive(Debug, Default)]
struct Cache {
    surveys: BTreeMap<Key, Surveyed>,
    /// Since when repairs, by the UID of their node, are not needed any more.
    idle: BTreeMap<Uid, Timestamp>,
}

/// The nodes, and all that repairs them.
#[derive(Debug)]
pub(crate) struct Repairs {
    settings: Arc<Settings>,
    actors: Arc<NodeActors>,
    enabled: bool,
    /// True if a node counts as having its turn as soon as it is due: nothing is written down in a dry run.
    plans: bool,
    metrics: RepairMetrics,
    nodes: BTreeMap<NodeName, NodeView>,
    /// Names by UID.
    uids: BTreeMap<Uid, NodeName>,
    nodes_listed: bool,
    node_watch: Option<Arc<WatchHealth>>,
    policies: Store<Policy>,
    pools: Store<SeenPool>,
    claims: Store<SeenOwner>,
    /// UIDs of NodeClaims by providerID.
    by_provider: BTreeMap<String, BTreeSet<Uid>>,
    machines: [Store<SeenOwner>; 2],
    /// The policy that counts for each node.
    assigned: BTreeMap<NodeName, Key>,
    members: BTreeMap<Key, BTreeSet<NodeName>>,
    /// Nodes that a policy selects and for which an older one counts, with its name.
    overlaps: BTreeMap<Key, BTreeMap<NodeName, String>>,
    /// NodeClaims and Machines that went before they became nodes: their pool, and when that was seen.
    lost_launches: Vec<(String, Timestamp)>,
    refused: BTreeMap<Uid, Refusal>,
    written: BTreeMap<Key, Timestamp>,
    pods: Counted,
    residents: Residents,
    /// True if pods are freed whose node and machine are gone: the eviction recovery is switched on.
    frees: bool,
    /// The brake's last word on nodes.
    braked: BTreeMap<Uid, Held>,
    cache: Mutex<Cache>,
    /// Changes with everything that a survey rests on.
    generation: u64,
    declared: Option<bool>,
}

impl Repairs {
    pub(crate) fn new(configuration: &Arc<Configuration>, metrics: RepairMetrics) -> Self {
        Self {
            settings: Arc::new(Settings::new(configuration)),
            actors: Arc::new(NodeActors::new(configuration)),
            enabled: configuration.controllers.enabled(Controller::Repair),
            plans: configuration.dry_run,
            metrics,
            nodes: BTreeMap::new(),
            uids: BTreeMap::new(),
            nodes_listed: false,
            node_watch: None,
            policies: Store::new(),
            pools: Store::new(),
            claims: Store::new(),
            by_provider: BTreeMap::new(),
            machines: [Store::new(), Store::new()],
            assigned: BTreeMap::new(),
            members: BTreeMap::new(),
            overlaps: BTreeMap::new(),
            lost_launches: Vec::new(),
            refused: BTreeMap::new(),
            written: BTreeMap::new(),
            pods: Counted::default(),
            residents: Residents::default(),
            frees: configuration.controllers.enabled(Controller::Eviction),
            braked: BTreeMap::new(),
            cache: Mutex::default(),
            generation: 0,
            declared: None,
        }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Machines in the version that is served; the newest if both are.
    fn machines(&self) -> &Store<SeenOwner> {
        let [new, old] = &self.machines;
        if new.is_not_served() { old } else { new }
    }

    // ---- policies and their nodes -------------------------------------------------------------------

    fn policy(&self, key: &Key) -> Option<&Policy> {
        match key {
            Key::Policy(name) => self.policies.values().find(|policy| policy.object.name == *name),
            Key::Pool(name) => self.pool(name).and_then(|pool| pool.policy.as_ref()),
        }
    }

    fn pool(&self, name: &str) -> Option<&SeenPool> {
        self.pools.values().find(|pool| pool.view.object.name == name)
    }

    /// NodePools with a block `spec.repair`.
    fn pool_policies(&self) -> impl Iterator<Item = &Policy> {
        self.pools.values().filter_map(|pool| pool.policy.as_ref())
    }

    fn keys(&self) -> Vec<Key> {
        let policies = self.policies.values().map(|policy| Key::Policy(policy.object.name.clone()));
        policies.chain(self.pool_policies().map(|pool| Key::Pool(pool.object.name.clone()))).collect()
    }

    /// The policies in the order in which they count: NodeRepairPolicies by age, then NodePools. One that cannot be read keeps the
    /// nodes that it selects, and nothing is done to them: a younger one must not take them over because of a typing error.
    fn by_age(&self) -> Vec<(Key, &Policy)> {
        let mut policies: Vec<&Policy> = self.policies.values().collect();
        policies.sort_by_key(|policy| (policy.created, policy.object.name.clone()));
        let pools = self.pool_policies();
        let policies = policies.into_iter().map(|it| (Key::Policy(it.object.name.clone()), it));
        policies.chain(pools.map(|it| (Key::Pool(it.object.name.clone()), it))).collect()
    }

    /// Finds the policy of a node.
    fn assign(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.get(name) else { return self.unassign(name) };
        let mut selecting =
            self.by_age().into_iter().filter(|(_, policy)| policy.selects(&node.labels)).map(|(key, _)| key);
        let first = selecting.next();
        let others: Vec<Key> = selecting.filter(|key| matches!(key, Key::Policy(_))).collect();
        self.unassign(name);
        let Some(key) = first else { return };
        let (Key::Policy(older) | Key::Pool(older)) = &key;
        for other in others {
            self.overlaps.entry(other).or_default().insert(name.clone(), older.clone());
        }
        self.members.entry(key.clone()).or_default().insert(name.clone());
        self.assigned.insert(name.clone(), key);
    }

    fn unassign(&mut self, name: &NodeName) {
        if let Some(key) = self.assigned.remove(name)
            && let Some(members) = self.members.get_mut(&key)
        {
            members.remove(name);
        }
        for overlap in self.overlaps.values_mut() {
            overlap.remove(name);
        }
        self.overlaps.retain(|_, nodes| !nodes.is_empty());
    }

    fn assign_all(&mut self) {
        self.assigned.clear();
        self.members.clear();
        self.overlaps.clear();
        let names: Vec<NodeName> = self.nodes.keys().cloned().collect();
        for name in names {
            self.assign(&name);
        }
    }

    /// Everybody who is concerned when something changes around a node: the node, its policy, and the nodes whose repair is held.
    fn concerned(&self, name: &NodeName) -> BTreeSet<Subject> {
        let mut woken = BTreeSet::from([Subject::Node(name.clone())]);
        if let Some(key) = self.assigned.get(name) {
            woken.extend(self.concerned_by(key));
        }
        woken
    }

    /// A policy, the nodes that have their turn, and those that are due and have none.
    fn concerned_by(&self, key: &Key) -> BTreeSet<Subject> {
        let mut woken = BTreeSet::from([Subject::Policy(key.clone())]);
        let repairs = self.policy(key).into_iter().flat_map(|policy| &policy.status.repairs);
        woken.extend(repairs.map(|repair| Subject::Node(repair.node.clone())));
        let cache = self.cache();
        let due = cache.surveys.get(key).into_iter().flat_map(|known| &known.survey.due);
        woken.extend(due.map(|name| Subject::Node(name.clone())));
        woken.extend(self.residents.subjects());
        woken
    }

    // ---- news ---------------------------------------------------------------------------------------

    fn see_node(&mut self, node: NodeView, told: Told, now: Timestamp) -> BTreeSet<Subject> {
        let name = node.node.name.clone();
        self.residents.node_is_there(&name);
        let mut woken = BTreeSet::new();
        let mut relabelled = true;
        if let Some(before) = self.nodes.get_mut(&name) {
            if before.node.uid == node.node.uid {
                let revision = node.resource_version.revision();
                if !told.replaces(revision, before.resource_version.revision()) {
                    return woken;
                }
                // Heartbeats concern nobody.
                before.resource_version.clone_from(&node.resource_version);
                if *before == node {
                    return woken;
                }
                relabelled = before.labels != node.labels;
                if !relabelled && self.is_only_told(&name, &node, now) {
                    let subject = Subject::Node(name.clone());
                    self.nodes.insert(name, node);
                    return BTreeSet::from([subject]);
                }
            } else {
                self.uids.remove(&before.node.uid);
            }
        }
        if relabelled {
            woken.extend(self.concerned(&name));
        }
        self.uids.insert(node.node.uid.clone(), name.clone());
        self.nodes.insert(name.clone(), node);
        if relabelled {
            self.assign(&name);
        }
        self.generation += 1;
        woken.extend(self.concerned(&name));
        woken
    }

    /// True if a node that is known has changed only by what we told on it. That concerns nobody else: otherwise a thousand nodes
    /// that are told something would each have the whole policy judged anew.
    fn is_only_told(&self, name: &NodeName, node: &NodeView, now: Timestamp) -> bool {
        let Some(before) = self.nodes.get(name).filter(|before| before.is_same_but_for_us(node)) else {
            return false;
        };
        let Some(policy) = self.assigned.get(name).and_then(|key| self.policy(key)) else { return true };
        let backend = self.backend(before);
        let diagnosed =
            |node: &NodeView| diagnose(node, backend.owner(), policy, &self.settings, now).untold();
        diagnosed(before) == diagnosed(node)
    }

    fn drop_node(&mut self, uid: &Uid) -> BTreeSet<Subject> {
        let Some(name) = self.uids.remove(uid) else { return BTreeSet::new() };
        let woken = self.concerned(&name);
        if self.nodes.get(&name).is_some_and(|node| node.node.uid == *uid) {
            self.nodes.remove(&name);
            self.unassign(&name);
        }
        self.refused.remove(uid);
        self.braked.remove(uid);
        self.pods.forget(&name);
        self.generation += 1;
        woken
    }

    fn list_nodes(&mut self, change: Vec<NodeView>, anew: bool, revision: Revision) -> BTreeSet<Subject> {
        let mut woken: BTreeSet<Subject> = self.subjects().into_iter().collect();
        if anew {
            self.nodes.clear();
            self.uids.clear();
        }
        let present: BTreeSet<&Uid> = change.iter().map(|node| &node.node.uid).collect();
        let gone: Vec<Uid> = self.uids.keys().filter(|uid| !present.contains(*uid)).cloned().collect();
        for uid in gone {
            self.drop_node(&uid);
        }
        for node in change {
            let name = node.node.name.clone();
            self.residents.node_is_there(&name);
            let known = self.nodes.get(&name).filter(|known| known.node.uid == node.node.uid);
            let is_later = known.is_none_or(|known| {
                Told::ByListAt(revision)
                    .replaces(node.resource_version.revision(), known.resource_version.revision())
            });
            if is_later {
                self.uids.insert(node.node.uid.clone(), name.clone());
                self.nodes.insert(name, node);
            }
        }
        self.nodes_listed = true;
        self.assign_all();
        self.generation += 1;
        woken.extend(self.subjects());
        woken
    }

    fn hear_policies(&mut self, news: OfKind<Policy>) -> BTreeSet<Subject> {
        // The echo of our own write wakes those whom it concerns.
        let told = match &news {
            OfKind::Change(Change::Applied(policy)) => Some(key_of(policy)),
            OfKind::Change(Change::Gone(_) | Change::Reset { .. }) | OfKind::Served(_) | OfKind::Lost(_) => {
                None
            }
        };
        let Turn { before, changed, gone, all } = self.policies.hear(news);
        let after: Vec<&Policy> = changed.iter().filter_map(|uid| self.policies.get(uid)).collect();
        let same_spec = |after: &&Policy| {
            before.iter().any(|it| it.object == after.object && it.generation == after.generation)
        };
        let is_same = !all && gone.is_empty() && after.iter().all(same_spec);
        for policy in before.iter().filter(|policy| gone.contains(&policy.object.uid)) {
            self.metrics.forget(&policy.name());
            self.written.remove(&key_of(policy));
        }
        self.selected_anew(told.as_ref(), is_same)
    }

    fn hear_pools(&mut self, news: OfKind<SeenPool>) -> BTreeSet<Subject> {
        let told = match &news {
            OfKind::Change(Change::Applied(pool)) => Some(Key::Pool(pool.view.object.name.clone())),
            OfKind::Change(Change::Gone(_) | Change::Reset { .. }) | OfKind::Served(_) | OfKind::Lost(_) => {
                None
            }
        };
        let Turn { before, changed, gone, all } = self.pools.hear(news);
        let after: Vec<&SeenPool> = changed.iter().filter_map(|uid| self.pools.get(uid)).collect();
        let generation = |pool: &SeenPool| pool.policy.as_ref().map(|policy| policy.generation);
        // Karpenter writes the status of a NodePool often, which concerns nobody.
        let same_spec = |after: &&SeenPool| {
            before.iter().any(|it| it.view == after.view && generation(it) == generation(after))
        };
        let is_same = !all && gone.is_empty() && after.iter().all(same_spec);
        if is_same && after.iter().all(|pool| pool.policy.is_none()) {
            return BTreeSet::new();
        }
        for policy in before
            .iter()
            .filter(|pool| gone.contains(&pool.view.object.uid))
            .filter_map(|it| it.policy.as_ref())
        {
            self.metrics.forget(&policy.name());
            self.written.remove(&key_of(policy));
        }
        self.selected_anew(told.as_ref(), is_same)
    }

    /// Policies have changed; those whom that concerns.
    fn selected_anew(&mut self, told: Option<&Key>, same_spec: bool) -> BTreeSet<Subject> {
        self.generation += 1;
        if same_spec {
            return told.map(|key| self.concerned_by(key)).unwrap_or_default();
        }
        let mut woken: BTreeSet<Subject> = self.subjects().into_iter().collect();
        self.assign_all();
        woken.extend(self.subjects());
        woken
    }

    fn hear_claims(&mut self, news: OfKind<SeenOwner>, now: Timestamp) -> BTreeSet<Subject> {
        let turn = self.claims.hear(news);
        self.note_lost(&turn, now);
        self.generation += 1;
        for claim in &turn.before {
            if let Some(uids) = self.by_provider.get_mut(&claim.provider_id) {
                uids.remove(&claim.view.object.uid);
                if uids.is_empty() {
                    self.by_provider.remove(&claim.provider_id);
                }
            }
        }
        if turn.all {
            self.by_provider.clear();
        }
        let changed =
            self.claims.values().filter(|claim| turn.all || turn.changed.contains(&claim.view.object.uid));
        for claim in changed.filter(|claim| !claim.provider_id.is_empty()) {
            let uids = self.by_provider.entry(claim.provider_id.clone()).or_default();
            uids.insert(claim.view.object.uid.clone());
        }
        if turn.all {
            return self.subjects().into_iter().collect();
        }
        let changed = turn.changed.iter().filter_map(|uid| self.claims.get(uid));
        let of: BTreeSet<&str> =
            turn.before.iter().chain(changed).map(|it| it.provider_id.as_str()).collect();
        let pools: BTreeSet<&str> = turn.before.iter().map(|it| it.view.pool.as_str()).collect();
        let is_theirs = |node: &&NodeView| {
            of.contains(&*node.provider_id)
                || node.pool().is_some_and(|pool| pools.contains(pool) && node.progress.is_some())
        };
        let names: Vec<NodeName> =
            self.nodes.values().filter(is_theirs).map(|node| node.node.name.clone()).collect();
        let mut woken: BTreeSet<Subject> = names.iter().flat_map(|name| self.concerned(name)).collect();
        // The node of a repair may be gone before its owner is.
        woken.extend(self.keys_of_owners(&turn.gone).into_iter().map(Subject::Policy));
        woken.extend(self.keys_in_pools(&turn).into_iter().map(Subject::Policy));
        woken
    }

    /// Policies with nodes in the pools of what changed: a new machine may end a hold.
    fn keys_in_pools(&self, turn: &Turn<SeenOwner>) -> BTreeSet<Key> {
        let changed = turn.changed.iter().filter_map(|uid| self.claims.get(uid));
        let pools: BTreeSet<&str> =
            turn.before.iter().chain(changed).map(|it| it.view.pool.as_str()).collect();
        let in_pool = |key: &&Key| {
            let nodes = self.members.get(key).into_iter().flatten().filter_map(|name| self.nodes.get(name));
            nodes.into_iter().any(|node| node.pool().is_some_and(|pool| pools.contains(pool)))
        };
        self.members.keys().filter(in_pool).cloned().collect()
    }

    fn hear_machines(
        &mut self,
        version: usize,
        news: OfKind<SeenOwner>,
        now: Timestamp,
    ) -> BTreeSet<Subject> {
        let turn = self.machines[version].hear(news);
        self.note_lost(&turn, now);
        self.generation += 1;
        if turn.all {
            return self.subjects().into_iter().collect();
        }
        let changed = turn.changed.iter().filter_map(|uid| self.machines[version].get(uid));
        let names: BTreeSet<NodeName> =
            turn.before.iter().chain(changed).filter_map(|it| it.node.clone()).collect();
        let mut woken: BTreeSet<Subject> = names.iter().flat_map(|name| self.concerned(name)).collect();
        woken.extend(self.keys_of_owners(&turn.gone).into_iter().map(Subject::Policy));
        woken
    }

    fn keys_of_owners(&self, gone: &BTreeSet<Uid>) -> BTreeSet<Key> {
        let concerned = |key: &Key| {
            let repairs = self.policy(key).into_iter().flat_map(|policy| &policy.status.repairs);
            repairs.into_iter().any(|repair| repair.owner.as_ref().is_some_and(|owner| gone.contains(owner)))
        };
        self.keys().into_iter().filter(concerned).collect()
    }

    /// A NodeClaim or Machine that went before its machine became a node is a launch that failed.
    fn note_lost(&mut self, turn: &Turn<SeenOwner>, now: Timestamp) {
        let frees = self.frees;
        for gone in turn.before.iter().filter(|it| frees && turn.gone.contains(&it.view.object.uid)) {
            let owner = &gone.view.object;
            if !self.keys_of_owners(&BTreeSet::from([owner.uid.clone()])).is_empty() {
                self.residents.owner_is_gone(owner, now);
            }
        }
        let lost = turn.before.iter().filter(|it| turn.gone.contains(&it.view.object.uid) && !it.is_up);
        self.lost_launches.extend(lost.map(|it| (it.view.pool.clone(), now)));
        let keep_until =
            |at: Timestamp| at.saturating_add(self.settings.launch_timeout).unwrap_or(Timestamp::MAX);
        self.lost_launches.retain(|(_, at)| now < keep_until(*at));
    }

    // ---- judging ------------------------------------------------------------------------------------

    /// True if nothing is missing that would make a verdict another one.
    fn is_known(&self) -> bool {
        let awaited = self.pools.is_awaited() || self.claims.is_awaited() || self.machines().is_awaited();
        self.nodes_listed && self.policies.is_settled() && !awaited
    }

    /// The backend that repairs a node.
    fn backend(&self, node: &NodeView) -> Backend {
        if let Some(why) = self.claims.unknown() {
            return Backend::Missing(format!("NodeClaims cannot be read: {why}"));
        }
        let uids = self.by_provider.get(&*node.provider_id).filter(|_| !node.provider_id.is_empty());
        let mut claims = uids.into_iter().flatten().filter_map(|uid| self.claims.get(uid));
        match (claims.next(), claims.next()) {
            (Some(claim), None) if claim.is_of(node) => return Backend::Claim(claim.view.clone()),
            (Some(claim), None) => {
                return Backend::Missing(format!("{} stands for another node", claim.view.object));
            }
            (Some(_), Some(_)) => {
                return Backend::Missing(format!(
                    "several NodeClaims have its providerID {}",
                    node.provider_id
                ));
            }
            (None, _) => {}
        }
        if node.pool().is_some() && !self.claims.is_not_served() {
            return Backend::Missing(format!("no NodeClaim has its providerID {:?}", node.provider_id));
        }
        let Some(machine) = node.machine.as_deref() else { return Backend::Node };
        let (namespace, name) = machine;
        if let Some(why) = self.machines().unknown() {
            return Backend::Missing(format!("Machines cannot be read: {why}"));
        }
        let is_it = |it: &&SeenOwner| {
            it.view.object.namespace.as_deref() == Some(namespace) && it.view.object.name == *name
        };
        match self.machines().values().find(is_it) {
            Some(found) if found.node.as_ref() == Some(&node.node.name) => {
                Backend::Machine(found.view.clone())
            }
            Some(_) => Backend::Missing(format!("Machine {namespace}/{name} stands for another node")),
            None => Backend::Missing(format!("there is no Machine {namespace}/{name}")),
        }
    }

    fn member<'a>(&'a self, node: &'a NodeView) -> Member<'a> {
        Member {
            node,
            backend: self.backend(node),
            refused: self.refused.get(&node.node.uid),
            pods: self.pods.of(&node.node.name),
            pool: node.pool().and_then(|name| self.pool(name)).map(|pool| &pool.view),
            left: self.residents.left(&node.node.name),
        }
    }

    /// Pools that have trouble to get new machines, and when that changes by itself.
    fn launches(&self, now: Timestamp) -> (BTreeMap<String, LaunchTrouble>, Option<Timestamp>) {
        let timeout = self.settings.launch_timeout;
        let (mut troubles, mut changes): (BTreeMap<String, LaunchTrouble>, Option<Timestamp>) =
            Default::default();
        for owner in self.claims.values().chain(self.machines().values()) {
            let pool = &owner.view.pool;
            if owner.is_up || owner.view.deleting || pool.is_empty() {
                continue;
            }
            let Some(created) = owner.created else { continue };
            let late = created.saturating_add(timeout).unwrap_or(Timestamp::MAX);
            if now < late {
                changes = changes.into_iter().chain([late]).min();
                continue;
            }
            let what = format!("{} was created at {created} and has no node", owner.view.object);
            troubles.entry(pool.clone()).or_insert(LaunchTrouble { what, until: None });
        }
        for (pool, at) in &self.lost_launches {
            let until = at.saturating_add(timeout).unwrap_or(Timestamp::MAX);
            if now < until {
                changes = changes.into_iter().chain([until]).min();
                let what = format!("a machine went at {at} before it became a node");
                troubles.entry(pool.clone()).or_insert(LaunchTrouble { what, until: Some(until) });
            }
        }
        (troubles, changes)
    }

    /// The state of a policy, which is computed anew if anything that it rests on has changed.
    fn survey(&self, key: &Key, policy: &Policy, now: Timestamp) -> Arc<Survey> {
        let mut cache = self.cache();
        let known = cache.surveys.get(key).filter(|known| {
            let is_over = known.survey.changes_at.is_some_and(|at| at <= now);
            known.generation == self.generation && known.at <= now && !is_over
        });
        if let Some(known) = known {
            return known.survey.clone();
        }
        let (launches, changes) = self.launches(now);
        let members = self.members.get(key).into_iter().flatten().filter_map(|name| self.nodes.get(name));
        let scope = Scope {
            policy,
            members: members.map(|node| self.member(node)).collect(),
            launches: &launches,
            is_gone: &|repair| self.is_gone(repair),
            is_left_alone: &|repair| self.is_left_alone(key, repair),
            idle: &cache.idle,
            settings: &self.settings,
        };
        let mut found = survey(&scope, now);
        found.changes_at = found.changes_at.into_iter().chain(changes).min();
        for repair in &policy.status.repairs {
            if found.idle.contains(&repair.uid) {
                cache.idle.entry(repair.uid.clone()).or_insert(now);
            } else {
                cache.idle.remove(&repair.uid);
            }
        }
        self.pods.want(key, &found.to_count);
        self.metrics.show(&policy.name(), &found, policy.status.repairs.len());
        let survey = Arc::new(found);
        let surveyed = Surveyed { generation: self.generation, at: now, survey: survey.clone() };
        cache.surveys.insert(key.clone(), surveyed);
        survey
    }

    /// True if neither the node nor the owner of a repair is there any more.
    fn is_gone(&self, repair: &Repair) -> bool {
        let owner_is_gone = |owner: &Uid| {
            let known = [&self.claims, &self.machines[0], &self.machines[1]];
            let is_there = known.iter().any(|store| store.get(owner).is_some());
            !is_there && self.claims.is_settled() && self.machines().is_settled()
        };
        self.nodes_listed
            && !self.uids.contains_key(&repair.uid)
            && repair.owner.as_ref().is_none_or(owner_is_gone)
    }

    /// True if the node of a repair is there, is not being deleted, and is not a node of the policy any more.
    fn is_left_alone(&self, key: &Key, repair: &Repair) -> bool {
        let node = self.uids.get(&repair.uid).and_then(|name| self.nodes.get(name));
        node.is_some_and(|node| {
            self.assigned.get(&node.node.name) != Some(key) && !self.member(node).is_deleting()
        })
    }

    fn judge_node(&self, name: &NodeName, now: Timestamp) -> Option<Judgement<NodeWhy, Step>> {
        let node = self.nodes.get(name)?;
        if !self.enabled || !self.is_known() {
            let why = if self.enabled { NodeWhy::NotListed } else { NodeWhy::Disabled };
            return Some(Judgement { verdict: Verdict::Ignore(why), findings: Vec::new() });
        }
        Some(self.in_scene(node, now, |scene| decide_node(scene, &self.settings, now)))
    }

    /// A node with all that its verdict rests on.
    fn in_scene<T>(&self, node: &NodeView, now: Timestamp, look: impl FnOnce(&Scene<'_>) -> T) -> T {
        let name = &node.node.name;
        let key = self.assigned.get(name);
        let policy = key.and_then(|key| self.policy(key));
        let survey = key.zip(policy).map(|(key, policy)| self.survey(key, policy, now));
        let uid = &node.node.uid;
        let reserved = policy.and_then(|policy| policy.status.repair_of(uid));
        let planned =
            survey.as_ref().filter(|_| self.plans).and_then(|it| it.picks.iter().find(|it| it.uid == *uid));
        let place = match (reserved, planned) {
            (Some(repair), _) => Place::Reserved(repair),
            (None, Some(repair)) => Place::Planned(repair),
            (None, None) => Place::None,
        };
        let braked = self.braked.get(uid);
        look(&Scene { member: self.member(node), policy, survey: survey.as_deref(), place, braked })
    }

    fn judge_pod(&self, subject: &PodSubject, now: Timestamp) -> Option<Judgement<PodWhy, Step>> {
        let pod = self.residents.pod(subject)?;
        let place = match (self.residents.grave(&subject.node), self.nodes.get(&subject.node)) {
            (Some(grave), node) => {
                let store = if grave.owner.kind == NODE_CLAIM { &self.claims } else { self.machines() };
                let is_there = store.get(&grave.owner.uid).is_some();
                // Of a kind that is not served, or cannot be read, nobody knows what is there.
                let is_known = store.is_listed();
                PodPlace::Replaced {
                    grave: grave.clone(),
                    node_is_there: node.is_some() || !self.nodes_listed,
                    owner_is_there: is_there || !is_known,
                }
            }
            (None, Some(node)) => {
                let is_judged = self.enabled && self.is_known();
                let drained = |scene: &Scene<'_>| drained_until(scene, &self.settings, now);
                let until = is_judged.then(|| self.in_scene(node, now, drained)).flatten();
                PodPlace::Drained { node: node.node.clone(), until }
            }
            (None, None) => return None,
        };
        Some(decide_pod(pod, &place, self.residents.refusal(&subject.pod.uid), now))
    }

    /// The nodes whose pods are evicted one by one, or will be.
    fn drained(&self) -> BTreeSet<NodeName> {
        let policies = self.policies.values().chain(self.pool_policies());
        let graceful = policies.filter(|policy| matches!(policy.termination, Termination::Graceful(_)));
        let nodes = graceful
            .flat_map(|policy| &policy.status.repairs)
            .filter_map(|repair| self.nodes.get(self.uids.get(&repair.uid)?));
        let drained =
            nodes.filter(|node| node.unschedulable && !node.deleting && self.backend(node) == Backend::Node);
        drained.map(|node| node.node.name.clone()).collect()
    }

    fn judge_policy(&self, key: &Key, now: Timestamp) -> Option<Judgement<PolicyWhy, Step>> {
        let policy = self.policy(key)?;
        if !self.is_known() {
            let verdict = Verdict::Ignore(PolicyWhy::NotListed);
            return Some(Judgement { verdict, findings: Vec::new() });
        }
        let survey = policy.defects.is_empty().then(|| self.survey(key, policy, now));
        let overlap =
            self.overlaps.get(key).and_then(|nodes| Some((nodes.len(), nodes.values().next()?.clone())));
        let written = self.written.get(key).copied();
        let pool_of = |repair: &Repair| {
            let owner = repair.owner.as_ref().and_then(|uid| self.claims.get(uid));
            let node = self.nodes.get(&repair.node);
            let pool = repair.pool.as_deref().or(owner.map(|it| it.view.pool.as_str()));
            let pool = pool.or(node.and_then(NodeView::pool))?;
            self.pool(pool).map(|pool| pool.view.object.clone())
        };
        let scene = PolicyScene { policy, survey: survey.as_deref(), overlap, written, pool_of: &pool_of };
        Some(decide_policy(&scene, now))
    }

    // ---- answers ------------------------------------------------------------------------------------

    /// A step was carried out.
    fn done(&mut self, subject: &Subject, step: &Step, answer: &Written, now: Timestamp) -> View {
        if let Subject::Node(name) = subject {
            if let Some(node) = self.nodes.get(name) {
                self.refused.remove(&node.node.uid.clone());
                if step.is_disruptive() {
                    self.braked.remove(&node.node.uid);
                }
            }
            self.count_start(name, step);
        }
        let text = match answer {
            Written::Object(text) => text.as_str(),
            Written::Nothing => {
                return if step.tells().is_some() { View::Shows } else { View::Lags };
            }
        };
        match step {
            Step::Report { .. }
            | Step::Tell { .. }
            | Step::RequestReboot { .. }
            | Step::Cordon { .. }
            | Step::Uncordon { .. }
            | Step::Forget { .. } => {
                let Ok(wire) = read::<NodeWire>(text) else { return View::Lags };
                let node = node_view(&wire, &self.actors);
                // A node whose end the watch has told before the answer came must not come back.
                if !self.uids.contains_key(&node.node.uid) {
                    return View::Lags;
                }
                if let Some(watch) = &self.node_watch {
                    watch.saw(node.resource_version.revision());
                }
                self.see_node(node, Told::Alone, now);
                View::Shows
            }
            Step::TightenTermination { .. } | Step::TakeBackTermination { .. } => {
                let Ok(claim) = read(text).map(wire::claim) else { return View::Lags };
                self.claims.take(claim, Told::Alone);
                self.generation += 1;
                View::Shows
            }
            Step::RemediateMachine { machine, .. } => {
                let version = usize::from(machine.kind.version != MACHINE_VERSIONS[0]);
                let Ok(wire) = read(text) else { return View::Lags };
                self.machines[version].take(wire::machine(wire, MACHINE_VERSIONS[version]), Told::Alone);
                self.generation += 1;
                View::Shows
            }
            Step::WritePolicy { over, .. } => {
                let Subject::Policy(key) = subject else { return View::Lags };
                self.written.insert(key.clone(), now);
                self.count_ends(key, over, now);
                let frees = self.frees;
                for repair in over.iter().filter(|_| frees) {
                    let node = NodeRef { name: repair.node.clone(), uid: repair.uid.clone() };
                    if let Some(owner) =
                        repair.owner.as_ref().filter(|_| !self.nodes.contains_key(&node.name))
                    {
                        self.residents.bury(node, owner, now);
                    }
                }
                // The watch brings it, and with it wakes the nodes that have their turn now.
                View::Lags
            }
            Step::FailPod { .. } => {
                let (Subject::Pod(subject), Ok(pod)) = (subject, read(text).map(pod_view)) else {
                    return View::Lags;
                };
                self.residents.saw(&subject.node, pod);
                View::Shows
            }
            Step::DeleteOwner { .. }
            | Step::DeleteNode { .. }
            | Step::EvictPod { .. }
            | Step::ForceDeletePod { .. } => View::Lags,
            Step::Mention(_) => View::Shows,
        }
    }

    fn count_start(&self, name: &NodeName, step: &Step) {
        let action = match step {
            Step::DeleteOwner { .. } | Step::RemediateMachine { .. } | Step::DeleteNode { .. } => {
                Action::Replace
            }
            Step::RequestReboot { .. } => Action::Reboot,
            Step::Report { .. }
            | Step::Tell { .. }
            | Step::WritePolicy { .. }
            | Step::TightenTermination { .. }
            | Step::TakeBackTermination { .. }
            | Step::Cordon { .. }
            | Step::Uncordon { .. }
            | Step::Forget { .. }
            | Step::EvictPod { .. }
            | Step::FailPod { .. }
            | Step::ForceDeletePod { .. }
            | Step::Mention(_) => return,
        };
        let Some(policy) = self.assigned.get(name).and_then(|key| self.policy(key)) else { return };
        let repair = policy.status.repairs.iter().find(|repair| repair.node == *name);
        let condition = repair.map_or("", |repair| &repair.condition);
        self.metrics.started(&policy.name(), &action.to_string(), condition);
    }

    fn count_ends(&self, key: &Key, over: &[Repair], now: Timestamp) {
        let Some(policy) = self.policy(key) else { return };
        for repair in over {
            let action = repair.action.unwrap_or(Action::Replace).to_string();
            let seconds = repair.sick.map(|sick| now.duration_since(sick).as_secs_f64());
            self.metrics.repaired(&policy.name(), &action, seconds);
        }
    }
}

fn key_of(policy: &Policy) -> Key {
    let name = policy.object.name.clone();
    if policy.is_pool() { Key::Pool(name) } else { Key::Policy(name) }
}

/// A kind whose objects are watched wherever it is served.
fn target(group: &str, version: &str, kind: &str) -> KindTarget {
    KindTarget {
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
    type Inquiry = Inquiry;

    fn watches(&mut self) -> Option<Vec<Feed<News>>> {
        // The old version of Machines is watched only where there is no new one.
        let old_machines = self.machines[0].is_not_served();
        let drained = self.drained();
        let pods_change = self.residents.watch(drained);
        if self.declared.replace(old_machines) == Some(old_machines) && !pods_change {
            return None;
        }
        if !old_machines {
            self.machines[1] = Store::new();
        }
        let actors = self.actors.clone();
        let counts = self.pods.clone();
        let mut feeds = vec![
            Feed::nodes_with(
                Needs { conditions: true, volumes: None },
                move |node| node_view(&node.wire, &actors),
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
            Feed::kind("nodeclaims", target("karpenter.sh", "v1", "NodeClaim"), 0, Claims, News::Claim),
            Feed::reads("pod counts", |client, news| pods::count(client, counts, news)),
        ];
        feeds.extend(self.residents.feeds());
        let versions = MACHINE_VERSIONS.into_iter().enumerate().take(if old_machines { 2 } else { 1 });
        feeds.extend(versions.map(|(number, version)| {
            Feed::kind(
                "machines",
                target("cluster.x-k8s.io", version, "Machine"),
                0,
                Machines(version),
                move |news| News::Machine(number, news),
            )
        }));
        Some(feeds)
    }

    fn hear(&mut self, news: News, now: Timestamp) -> Vec<Subject> {
        self.residents.expire(now);
        let woken = match news {
            News::Node(Change::Applied(node)) => self.see_node(node, Told::Alone, now),
            News::Node(Change::Gone(uid)) => self.drop_node(&uid),
            News::Node(Change::Reset { all, revision, .. }) => {
                self.node_watch = revision.watch().cloned();
                self.list_nodes(all, revision.anew, revision.revision)
            }
            News::Policy(news) => self.hear_policies(news),
            News::Pool(news) => self.hear_pools(news),
            News::Claim(news) => self.hear_claims(news, now),
            News::Machine(version, news) => self.hear_machines(version, news, now),
            News::Pod { node, number, change } => {
                let left = self.residents.left(&node);
                let mut woken: BTreeSet<Subject> =
                    self.residents.hear(&node, number, change).into_iter().collect();
                if self.residents.left(&node) != left && self.nodes.contains_key(&node) {
                    self.generation += 1;
                    woken.insert(Subject::Node(node));
                }
                woken
            }
            News::Pods { node, pods } => {
                self.pods.counted(&node, pods);
                self.generation += 1;
                self.concerned(&node)
            }
        };
        woken.into_iter().collect()
    }

    fn judge(&self, subject: &Subject, now: Timestamp) -> Option<Judgement<Why, Step>> {
        match subject {
            Subject::Node(name) => self.judge_node(name, now).map(|judgement| judgement.map_why(Why::Node)),
            Subject::Policy(key) => {
                self.judge_policy(key, now).map(|judgement| judgement.map_why(Why::Policy))
            }
            Subject::Pod(pod) => self.judge_pod(pod, now).map(|judgement| judgement.map_why(Why::Pod)),
        }
    }

    fn subjects(&self) -> Vec<Subject> {
        // Something of ours may be on a node that no policy selects any more.
        let is_ours = |node: &&NodeView| node.has_traces() || self.assigned.contains_key(&node.node.name);
        let nodes = self.nodes.values().filter(is_ours).map(|node| Subject::Node(node.node.name.clone()));
        let policies = self.keys().into_iter().map(Subject::Policy);
        nodes.chain(policies).chain(self.residents.subjects()).collect()
    }

    fn held(&mut self, subject: &Subject, by: &Held, _: Timestamp) -> bool {
        let Subject::Node(name) = subject else { return false };
        // Nothing is written during a pause, and a policy's limits are told by the rules.
        if matches!(by, Held::Paused { .. } | Held::RepairPolicy(_)) {
            return false;
        }
        let Some(node) = self.nodes.get(name) else { return false };
        let token = Hold::Brake(by.clone()).token();
        self.braked.insert(node.node.uid.clone(), by.clone());
        node.progress.as_ref().is_none_or(|progress| progress.told != token)
    }

    fn inquiry(&self, subject: &Subject, judged: Timestamp) -> Inquiry {
        let (name, pod) = match subject {
            Subject::Node(name) => (name, None),
            Subject::Policy(_) => return Inquiry::default(),
            Subject::Pod(subject) => {
                let pod = self.residents.pod(subject).cloned();
                let grave = self.residents.grave(&subject.node).cloned();
                (&subject.node, pod.map(|pod| PodQuestion { pod, grave }))
            }
        };
        let key = self.assigned.get(name);
        let policy = key.and_then(|key| self.policy(key));
        let node = self.nodes.get(name);
        Inquiry {
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
            actors: self.actors.clone(),
            pod,
        }
    }

    fn ended(&mut self, subject: &Subject, end: Ended<'_, Step>, now: Timestamp) -> After {
        let after = After::with(end.view(|step, answer| self.done(subject, step, answer, now)));
        let Some((step, refusal)) = end.refused else { return after };
        let name = match subject {
            Subject::Node(name) => name,
            Subject::Policy(_) => return after,
            Subject::Pod(PodSubject { pod, .. }) => {
                let words = refusal.words[..refusal.words.floor_char_boundary(LONGEST_WORDS)].to_owned();
                self.residents.refuse(&pod.uid, words, now);
                return after.and(Refused::Judged(None));
            }
        };
        let Some(node) = self.nodes.get(name).filter(|_| step.is_disruptive()) else { return after };
        // Judged again, which says so on the node; and tried again later.
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

#[cfg(test)]
mod tests;
