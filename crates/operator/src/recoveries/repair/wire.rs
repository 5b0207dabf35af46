//! What is read of nodes, policies, NodePools, NodeClaims and Machines.

use std::collections::BTreeMap;

use jiff::Timestamp;
use salvor_api::names::repair::{annotations, labels};
use salvor_recovery::{
    ids::{NodeName, ResourceVersion, Uid},
    objects::{Kind, ObjectRef, Taint},
    one_actor::{EvictionSign, NodeActors, NodeSigns},
    repair::{
        ConditionView, Head, NODE_CLAIM, NODE_POOL, NODE_REPAIR_POLICY, NodeView, OwnerView, Policy,
        PolicyStatus, PoolView, Progress, Status,
    },
};
use serde::Deserialize;
use serde_json::Value;

use super::store::Kept;
use crate::{
    nodes::{NodeWire, RepairAnnotations},
    revision::Revision,
    watch::Project,
    wire::{Condition, Nothing, Object, Whole, condition},
};

/// A node as this recovery keeps it.
pub(super) fn node_view(wire: &NodeWire, actors: &NodeActors) -> NodeView {
    let NodeWire { metadata, spec, status } = wire;
    let of = &metadata.annotations;
    let taints: Vec<Taint> = spec.taints.iter().map(Taint::from).collect();
    let signs = NodeSigns {
        taints: &taints,
        eviction: EvictionSign::read(of.eviction.as_deref(), of.eviction_asked.as_deref()),
        out_of_service: of.out_of_service_since.is_some(),
    };
    let none = RepairAnnotations::default();
    let repair = of.repair.as_deref().unwrap_or(&none);
    let read = repair.progress.as_deref().map(|text| Progress::read_of(text, metadata.creation_timestamp));
    let boxed = |text: &Option<String>| text.as_deref().map(Box::from);
    let machine = repair.cluster_namespace.clone().zip(repair.machine.clone());
    NodeView {
        node: wire.node(),
        resource_version: metadata.resource_version.clone(),
        created: metadata.creation_timestamp,
        deleting: metadata.deletion_timestamp.is_some(),
        zone: wire.zone().into(),
        labels: metadata.labels.clone(),
        provider_id: spec.provider_id.clone(),
        conditions: status.conditions.iter().filter_map(condition_view).collect(),
        do_not_repair: boxed(&repair.do_not_repair),
        karpenter_do_not_repair: boxed(&repair.karpenter_do_not_repair),
        damage: read.as_ref().and_then(|read| read.as_ref().err()).map(|problem| problem.as_str().into()),
        progress: read.and_then(Result::ok).map(Box::new),
        machine: machine.map(Box::new),
        boot_id: status.node_info.boot_id.clone(),
        reboot_done: boxed(&repair.reboot_done),
        unschedulable: spec.unschedulable,
        other_actor: actors.before_a_repair(signs),
    }
}

fn condition_view(condition: &Condition) -> Option<ConditionView> {
    Some(ConditionView {
        kind: condition.kind.as_str().into(),
        status: Status::from_api(&condition.status)?,
        reason: condition.reason.as_str().into(),
        since: condition.last_transition_time,
    })
}

fn object_of(kind: &Kind, object: &Value) -> Option<ObjectRef> {
    let metadata = object.get("metadata")?;
    let text = |field: &str| metadata.get(field).and_then(Value::as_str).map(str::to_owned);
    Some(ObjectRef {
        uid: text("uid")?.into(),
        kind: kind.clone(),
        namespace: text("namespace"),
        name: text("name")?,
    })
}

fn head_of(kind: &Kind, object: &Value, status: PolicyStatus) -> Option<Head> {
    let metadata = object.get("metadata")?;
    let text = |field: &str| metadata.get(field).and_then(Value::as_str);
    let created: Option<Timestamp> = text("creationTimestamp").and_then(|time| time.parse().ok());
    Some(Head {
        object: object_of(kind, object)?,
        resource_version: text("resourceVersion")?.into(),
        generation: metadata.get("generation").and_then(Value::as_i64).unwrap_or_default(),
        created: created.unwrap_or(Timestamp::MAX),
        status: match created {
            Some(created) => status.of_object(created),
            None => status,
        },
    })
}

/// A NodeRepairPolicy.
pub(super) fn policy(object: &Value) -> Option<Policy> {
    let status = PolicyStatus::read(object.get("status"));
    let head = head_of(&NODE_REPAIR_POLICY, object, status)?;
    Some(Policy::read(head, object.get("spec").unwrap_or(&Value::Null)))
}

/// A NodePool.
#[derive(Clone, Debug)]
pub(crate) struct SeenPool {
    pub(super) view: PoolView,
    pub(super) resource_version: ResourceVersion,
    /// Its block `spec.repair`, if it has one.
    pub(super) policy: Option<Policy>,
}

impl Kept for SeenPool {
    fn uid(&self) -> &Uid {
        &self.view.object.uid
    }

    fn revision(&self) -> Revision {
        self.resource_version.revision()
    }
}

/// A NodePool, whether it has a block `spec.repair` or not.
pub(super) fn seen_pool(object: &Value) -> Option<SeenPool> {
    let annotation =
        |key: &str| object.pointer("/metadata/annotations")?.get(key)?.as_str().map(str::to_owned);
    let view = PoolView {
        object: object_of(&NODE_POOL, object)?,
        do_not_repair: annotation(annotations::DO_NOT_REPAIR),
        karpenter_do_not_repair: annotation(annotations::KARPENTER_DO_NOT_REPAIR),
    };
    let resource_version = object.pointer("/metadata/resourceVersion")?.as_str()?.into();
    Some(SeenPool { view, resource_version, policy: pool(object) })
}

/// A NodePool with a block `spec.repair`.
pub(super) fn pool(object: &Value) -> Option<Policy> {
    let repair = object.get("spec")?.get("repair").filter(|repair| repair.is_object())?;
    let kept =
        object.pointer("/metadata/annotations").and_then(|all| all.get(annotations::REPAIRS)?.as_str());
    let head = head_of(&NODE_POOL, object, PolicyStatus::read_annotation(kept))?;
    Some(Policy::read_pool(head, repair))
}

impl Kept for Policy {
    fn uid(&self) -> &Uid {
        &self.object.uid
    }

    fn revision(&self) -> Revision {
        self.resource_version.revision()
    }
}

/// All NodeRepairPolicies.
pub(super) struct Policies;

impl Project for Policies {
    type Wire = Whole;
    type Kept = Policy;

    fn keep(&self, wire: Whole) -> Option<Policy> {
        policy(&wire.object)
    }
}

/// All NodePools.
pub(super) struct Pools;

impl Project for Pools {
    type Wire = Whole;
    type Kept = SeenPool;

    fn keep(&self, wire: Whole) -> Option<SeenPool> {
        seen_pool(&wire.object)
    }
}

impl SeenOwner {
    /// True if a NodeClaim stands for this node. Two Node objects may have one providerID, after a rename.
    pub(super) fn is_of(&self, node: &NodeView) -> bool {
        self.provider_id == *node.provider_id && self.node.as_ref().is_none_or(|name| *name == node.node.name)
    }
}

/// A NodeClaim or a Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenOwner {
    pub(super) view: OwnerView,
    /// The providerID of a NodeClaim.
    pub(super) provider_id: String,
    /// The name of its node, if it says.
    pub(super) node: Option<NodeName>,
    pub(super) created: Option<Timestamp>,
    /// True if its machine has become a node.
    pub(super) is_up: bool,
}

impl Kept for SeenOwner {
    fn uid(&self) -> &Uid {
        &self.view.object.uid
    }

    fn revision(&self) -> Revision {
        self.view.resource_version.revision()
    }
}

type Annotations = BTreeMap<String, String>;

/// All NodeClaims.
pub(super) struct Claims;

pub(super) type ClaimWire = Object<Nothing, ClaimStatus, Annotations>;

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct ClaimStatus {
    #[serde(rename = "providerID")]
    provider_id: String,
    #[serde(rename = "nodeName")]
    node_name: String,
    conditions: Vec<Condition>,
}

impl Project for Claims {
    type Wire = ClaimWire;
    type Kept = SeenOwner;

    fn keep(&self, wire: ClaimWire) -> Option<SeenOwner> {
        Some(claim(wire))
    }
}

pub(super) fn claim(ClaimWire { metadata, status, .. }: ClaimWire) -> SeenOwner {
    let holds = |kind: &str| condition(&status.conditions, kind).map(|it| it.status == "True");
    let view = OwnerView {
        object: ObjectRef {
            uid: metadata.uid,
            kind: NODE_CLAIM.clone(),
            namespace: None,
            name: metadata.name,
        },
        resource_version: metadata.resource_version,
        deleting: metadata.deletion_timestamp.is_some(),
        pool: metadata.labels.get(labels::NODE_POOL).unwrap_or_default().to_owned(),
        termination: metadata.annotations.get(annotations::TERMINATION_TIMESTAMP).cloned(),
        remediated: false,
        veto: None,
        do_not_repair: metadata.annotations.get(annotations::DO_NOT_REPAIR).cloned(),
        karpenter_do_not_repair: metadata.annotations.get(annotations::KARPENTER_DO_NOT_REPAIR).cloned(),
        initialized: holds("Initialized"),
    };
    SeenOwner {
        // One that says nothing of it has nothing to do with launching.
        is_up: holds("Registered").unwrap_or(!status.provider_id.is_empty()),
        view,
        provider_id: status.provider_id,
        node: Some(status.node_name).filter(|name| !name.is_empty()).map(NodeName::from),
        created: metadata.creation_timestamp,
    }
}

/// All Machines, in a version.
pub(super) struct Machines(pub(super) &'static str);

pub(super) type MachineWire = Object<Nothing, MachineStatus, Annotations>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct MachineStatus {
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
        Some(machine(wire, self.0))
    }
}

/// Cluster API's Machines in a version.
pub(super) const fn machine_kind(version: &'static str) -> Kind {
    Kind::known("cluster.x-k8s.io", version, "Machine", "machines")
}

const MACHINE_POOLS: [&str; 2] = ["cluster.x-k8s.io/deployment-name", "cluster.x-k8s.io/set-name"];

pub(super) fn machine(MachineWire { metadata, status, .. }: MachineWire, version: &'static str) -> SeenOwner {
    let has = |key: &'static str| metadata.annotations.contains_key(key).then_some(key);
    let pool = MACHINE_POOLS.iter().find_map(|label| metadata.labels.get(label));
    let pool = pool.map(|pool| format!("{}/{pool}", metadata.namespace)).unwrap_or_default();
    let node = status.node_ref.map(|node| node.name).filter(|name| !name.is_empty());
    let view = OwnerView {
        resource_version: metadata.resource_version,
        deleting: metadata.deletion_timestamp.is_some(),
        pool,
        termination: None,
        remediated: has(annotations::REMEDIATE_MACHINE).is_some(),
        veto: has(annotations::SKIP_REMEDIATION).or(has(annotations::PAUSED)),
        do_not_repair: metadata.annotations.get(annotations::DO_NOT_REPAIR).cloned(),
        karpenter_do_not_repair: None,
        initialized: None,
        object: ObjectRef {
            uid: metadata.uid,
            kind: machine_kind(version),
            namespace: Some(metadata.namespace),
            name: metadata.name,
        },
    };
    SeenOwner {
        view,
        provider_id: String::new(),
        is_up: node.is_some(),
        node,
        created: metadata.creation_timestamp,
    }
}
