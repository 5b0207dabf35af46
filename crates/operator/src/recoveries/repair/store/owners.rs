//! The owners of machines: NodeClaims and Machines. There are as many as nodes, so little is kept of each.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::Arc,
};

use jiff::Timestamp;
use salvor_api::names::repair::{annotations, labels};
use salvor_recovery::{
    ids::{NodeName, ResourceVersion, Uid},
    objects::{Kind, ObjectRef},
    repair::{NODE_CLAIM, NodeView, OwnerView},
};
use serde::Deserialize;

use crate::{
    client::{
        revision::{Revision, Told},
        wire::{Condition, Nothing, Object, condition},
    },
    recoveries::repair::{
        store::{Kept, Store, Turn},
        wire::Reader,
    },
    watch_set::{
        feeds::OfKind,
        packed::packed_set,
        watch::{Change, Project},
    },
};

/// The versions in which Cluster API serves Machines, the newest first.
pub(crate) const MACHINE_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

/// A NodeClaim or a Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenOwner {
    pub(crate) uid: Uid,
    kind: OwnerKind,
    name: Box<str>,
    pub(crate) resource_version: ResourceVersion,
    /// How nodes refer to it: the providerID of a NodeClaim, or namespace and name of a Machine. Empty if it has none
    /// yet.
    pub(crate) called: Arc<str>,
    /// The name of its node; empty if unknown.
    pub(crate) node: NodeName,
    /// The NodePool or MachineDeployment that creates its replacement; empty if it has none.
    pub(crate) pool: Arc<str>,
    pub(crate) created: Option<Timestamp>,
    /// True if its machine has become a node.
    pub(crate) is_up: bool,
    remediated: bool,
    initialized: Option<bool>,
    /// Boxed, because most have none.
    marks: Option<Box<Marks>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OwnerKind {
    NodeClaim,
    Machine(Box<Home>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Home {
    version: &'static str,
    namespace: String,
}

/// Fields that affect decisions and that most owners lack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Marks {
    termination: Option<String>,
    termination_before: Option<String>,
    veto: Option<&'static str>,
    do_not_repair: Option<String>,
    karpenter_do_not_repair: Option<String>,
    deleting: Option<Timestamp>,
}

impl Marks {
    fn unless_none(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

impl SeenOwner {
    /// True if a NodeClaim belongs to this node. After a rename, two Node objects may have the same providerID.
    pub(crate) fn is_of(&self, node: &NodeView) -> bool {
        *self.called == *node.provider_id && (self.node.is_empty() || self.node == node.node.name)
    }

    pub(crate) fn deleting(&self) -> Option<Timestamp> {
        self.marks.as_ref()?.deleting
    }

    pub(crate) fn object(&self) -> ObjectRef {
        let (kind, namespace) = match &self.kind {
            OwnerKind::NodeClaim => (NODE_CLAIM.clone(), None),
            OwnerKind::Machine(home) => (machine_kind(home.version), Some(home.namespace.clone())),
        };
        ObjectRef { uid: self.uid.clone(), kind, namespace, name: self.name.to_string() }
    }

    pub(crate) fn view(&self) -> OwnerView {
        let Marks { termination, termination_before, veto, do_not_repair, karpenter_do_not_repair, deleting } =
            self.marks.as_deref().cloned().unwrap_or_default();
        OwnerView {
            object: self.object(),
            resource_version: self.resource_version.clone(),
            deleting,
            pool: self.pool.clone(),
            termination,
            termination_before,
            remediated: self.remediated,
            veto,
            do_not_repair,
            karpenter_do_not_repair,
            initialized: self.initialized,
        }
    }

    /// True if only the resourceVersion differs: Karpenter writes the time of the last pod event to every NodeClaim.
    fn says_the_same_as(&self, other: &Self) -> bool {
        Self { resource_version: other.resource_version.clone(), ..self.clone() } == *other
    }
}

impl Kept for SeenOwner {
    fn uid(&self) -> &Uid {
        &self.uid
    }

    fn revision(&self) -> Revision {
        self.resource_version.revision()
    }
}

/// All NodeClaims, or all Machines.
#[derive(Debug)]
pub(in crate::recoveries::repair) struct Owners {
    all: Store<SeenOwner>,
    /// UIDs by how nodes refer to them.
    called: BTreeSet<(Arc<str>, Uid)>,
}

impl Deref for Owners {
    type Target = Store<SeenOwner>;

    fn deref(&self) -> &Store<SeenOwner> {
        &self.all
    }
}

impl Owners {
    pub(crate) fn new() -> Self {
        Self { all: Store::new(), called: BTreeSet::new() }
    }

    /// The owners that nodes refer to by this name.
    pub(crate) fn called(&self, name: &str) -> impl Iterator<Item = &SeenOwner> {
        let from = (Arc::from(name), Uid::default());
        let theirs = self.called.range(from.clone()..).take_while(move |(called, _)| *called == from.0);
        theirs.filter_map(|(_, uid)| self.all.get(uid))
    }

    /// Applies a change. One that differs only in the resourceVersion counts as none.
    pub(crate) fn on_change(&mut self, news: OfKind<SeenOwner>) -> Turn<SeenOwner> {
        let says_nothing = match &news {
            OfKind::Change(Change::Applied(owner)) => {
                self.all.get(&owner.uid).is_some_and(|known| known.says_the_same_as(owner))
            }
            OfKind::Change(Change::Gone(_) | Change::Reset { .. }) | OfKind::Served(_) | OfKind::Lost(_) => {
                false
            }
        };
        let turn = self.all.on_change(news);
        if says_nothing {
            return Turn::nothing();
        }
        self.index(&turn);
        turn
    }

    /// Applies the answer to our own write.
    pub(crate) fn take(&mut self, owner: SeenOwner) {
        let turn = self.all.take(owner, Told::Alone);
        self.index(&turn);
    }

    fn index(&mut self, turn: &Turn<SeenOwner>) {
        if turn.all {
            self.called.clear();
        }
        for owner in &turn.before {
            self.called.remove(&(owner.called.clone(), owner.uid.clone()));
        }
        let (all, changed) = (self.all.values().filter(|_| turn.all), turn.changed.iter());
        for owner in all.chain(changed.filter_map(|uid| self.all.get(uid))) {
            if !owner.called.is_empty() {
                self.called.insert((owner.called.clone(), owner.uid.clone()));
            }
        }
        if turn.all {
            packed_set(&mut self.called);
        }
    }
}

type Annotations = BTreeMap<String, String>;

pub(crate) struct Claims(pub(crate) Arc<Reader>);

pub(crate) type ClaimWire = Object<Nothing, ClaimStatus, Annotations>;

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct ClaimStatus {
    #[serde(rename = "providerID")]
    provider_id: String,
    #[serde(rename = "nodeName")]
    node_name: NodeName,
    conditions: Vec<Condition>,
}

impl Project for Claims {
    type Wire = ClaimWire;
    type Kept = SeenOwner;

    fn keep(&self, wire: ClaimWire) -> Option<SeenOwner> {
        Some(self.0.claim(wire))
    }
}

pub(crate) struct Machines(pub(crate) &'static str, pub(crate) Arc<Reader>);

pub(crate) type MachineWire = Object<Nothing, MachineStatus, Annotations>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct MachineStatus {
    node_ref: Option<NodeReference>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeReference {
    name: NodeName,
}

impl Project for Machines {
    type Wire = MachineWire;
    type Kept = SeenOwner;

    fn keep(&self, wire: MachineWire) -> Option<SeenOwner> {
        Some(self.1.machine(wire, self.0))
    }
}

const fn machine_kind(version: &'static str) -> Kind {
    Kind::known("cluster.x-k8s.io", version, "Machine", "machines")
}

/// The name by which nodes and their Machine are matched.
pub(crate) fn machine_name(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

const MACHINE_POOLS: [&str; 2] = ["cluster.x-k8s.io/deployment-name", "cluster.x-k8s.io/set-name"];

impl Reader {
    pub(crate) fn claim(&self, ClaimWire { metadata, status, .. }: ClaimWire) -> SeenOwner {
        let holds = |kind: &str| condition(&status.conditions, kind).map(|it| it.status == "True");
        let of = |key: &str| metadata.annotations.get(key).cloned();
        let marks = Marks {
            termination: of(annotations::TERMINATION_TIMESTAMP),
            termination_before: of(annotations::TERMINATION_BEFORE),
            veto: None,
            do_not_repair: of(annotations::DO_NOT_REPAIR),
            karpenter_do_not_repair: of(annotations::KARPENTER_DO_NOT_REPAIR),
            deleting: metadata.deletion_timestamp,
        };
        SeenOwner {
            kind: OwnerKind::NodeClaim,
            pool: self.texts.one(metadata.labels.get(labels::NODE_POOL).unwrap_or_default()),
            remediated: false,
            initialized: holds("Initialized"),
            marks: marks.unless_none(),
            // Without a `Registered` condition, a providerID counts as registered.
            is_up: holds("Registered").unwrap_or(!status.provider_id.is_empty()),
            called: status.provider_id.into(),
            node: status.node_name,
            created: metadata.creation_timestamp,
            uid: metadata.uid,
            name: metadata.name.into(),
            resource_version: metadata.resource_version,
        }
    }

    pub(crate) fn machine(
        &self,
        MachineWire { metadata, status, .. }: MachineWire,
        version: &'static str,
    ) -> SeenOwner {
        let has = |key: &'static str| metadata.annotations.contains_key(key).then_some(key);
        let pool = MACHINE_POOLS.iter().find_map(|label| metadata.labels.get(label));
        let pool = pool.map(|pool| format!("{}/{pool}", metadata.namespace)).unwrap_or_default();
        let node = status.node_ref.map(|node| node.name).unwrap_or_default();
        let marks = Marks {
            termination: None,
            termination_before: None,
            veto: has(annotations::SKIP_REMEDIATION).or(has(annotations::PAUSED)),
            do_not_repair: metadata.annotations.get(annotations::DO_NOT_REPAIR).cloned(),
            karpenter_do_not_repair: None,
            deleting: metadata.deletion_timestamp,
        };
        SeenOwner {
            pool: self.texts.one(pool.as_str()),
            remediated: has(annotations::REMEDIATE_MACHINE).is_some(),
            initialized: None,
            marks: marks.unless_none(),
            is_up: !node.is_empty(),
            called: machine_name(&metadata.namespace, &metadata.name).into(),
            node,
            created: metadata.creation_timestamp,
            uid: metadata.uid,
            kind: OwnerKind::Machine(Box::new(Home { version, namespace: metadata.namespace })),
            name: metadata.name.into(),
            resource_version: metadata.resource_version,
        }
    }
}
