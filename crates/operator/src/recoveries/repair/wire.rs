//! Decodes nodes, policies and NodePools.

use jiff::Timestamp;
use salvor_api::{Labels, config::Configuration, names::repair::annotations};
use salvor_recovery::{
    eviction::Memory,
    gate::GatePolicy,
    ids::{ResourceVersion, Uid},
    objects::{Kind, NodeRef, ObjectRef, Ready, Taint},
    one_actor::{EvictionSign, NodeActors, NodeSigns},
    proof::{Machine, ProofPolicy, Statements},
    repair::{
        ConditionView, Head, NODE_POOL, NODE_REPAIR_POLICY, NodeLabels, NodeMarks, NodeView, Policy,
        PolicyStatus, PoolView, Progress, Status, Words,
    },
};
use serde_json::Value;

use super::store::Kept;
use crate::{
    client::{
        revision::Revision,
        wire::{Condition, Whole, node_ready},
    },
    watch_set::{
        interned::Interned,
        nodes::{NodeWire, RepairAnnotations},
        watch::Project,
    },
};

/// Decodes objects, and stores values that many of them share only once.
#[derive(Debug)]
pub(super) struct Reader {
    actors: NodeActors,
    proof: ProofPolicy,
    pub(super) gate: GatePolicy,
    pub(super) texts: Interned<str>,
    labels: Interned<Labels>,
    words: Interned<Words>,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new(&Configuration::default())
    }
}

impl Reader {
    pub(super) fn new(configuration: &Configuration) -> Self {
        Self {
            actors: NodeActors::new(configuration),
            proof: ProofPolicy::new(configuration),
            gate: GatePolicy::new(configuration),
            texts: Interned::default(),
            labels: Interned::default(),
            words: Interned::default(),
        }
    }

    pub(super) fn node(&self, wire: &NodeWire) -> NodeView {
        self.node_of(wire, wire.node())
    }

    /// As `node`, for a node whose name and UID are already kept.
    pub(super) fn node_of(&self, wire: &NodeWire, node: NodeRef) -> NodeView {
        let NodeWire { metadata, spec, status } = wire;
        let of = &metadata.annotations;
        let taints: Vec<Taint> = spec.taints.iter().map(Taint::from).collect();
        let eviction = Memory::read(of.eviction.as_deref(), of.eviction_asked.as_deref());
        let signs = NodeSigns {
            taints: &taints,
            eviction: EvictionSign::in_memory(&eviction),
            out_of_service: of.out_of_service_since.is_some(),
        };
        let statements = Statements {
            taints: &taints,
            progress: eviction.progress.as_ref(),
            // A request from while its kubelet was alive says nothing about later.
            remembered: None,
            is_damaged: eviction.damage.is_some(),
            out_of_service: signs.out_of_service,
        };
        let none = RepairAnnotations::default();
        let repair = of.repair.as_deref().unwrap_or(&none);
        let read =
            repair.progress.as_deref().map(|text| Progress::read_of(text, metadata.creation_timestamp));
        let boxed = |text: &Option<String>| text.as_deref().map(Box::from);
        let machine = repair.cluster_namespace.as_deref().zip(repair.machine.as_deref());
        let marks = NodeMarks {
            do_not_repair: boxed(&repair.do_not_repair),
            karpenter_do_not_repair: boxed(&repair.karpenter_do_not_repair),
            damage: read.as_ref().and_then(|read| read.as_ref().err()).map(|problem| problem.as_str().into()),
            machine: machine.map(|(namespace, name)| (namespace.into(), name.into())),
            reboot_done: boxed(&repair.reboot_done),
            deleting: metadata.deletion_timestamp,
            off: match self.proof.machine(&statements) {
                Machine::Off(proof) if node_ready(&status.conditions) != Ready::True => Some(proof),
                Machine::Off(_) | Machine::MayRun => None,
            },
        };
        let mut conditions: Vec<ConditionView> =
            status.conditions.iter().filter_map(|it| self.condition(it)).collect();
        conditions.shrink_to_fit();
        NodeView {
            resource_version: metadata.resource_version.clone(),
            created: metadata.creation_timestamp,
            zone: self.texts.one(wire.zone().as_str()),
            labels: NodeLabels::new(&metadata.labels, &node.name, |labels| self.labels.one(labels)),
            node,
            provider_id: spec.provider_id.clone(),
            conditions,
            progress: read.and_then(Result::ok).map(Box::new),
            marks: marks.unless_none(),
            boot_id: status.node_info.boot_id.clone(),
            system_uuid: status.node_info.system_uuid.clone(),
            unschedulable: spec.unschedulable,
            other_actor: self.actors.before_a_repair(signs),
        }
    }

    fn condition(&self, condition: &Condition) -> Option<ConditionView> {
        let words = Words {
            kind: condition.kind.as_str().into(),
            status: Status::from_api(&condition.status)?,
            reason: condition.reason.as_str().into(),
        };
        Some(ConditionView::new(self.words.one(words), condition.last_transition_time))
    }
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

pub(super) fn policy(object: &Value) -> Option<Policy> {
    let status = PolicyStatus::read(object.get("status"));
    let head = head_of(&NODE_REPAIR_POLICY, object, status)?;
    Some(Policy::read(head, object.get("spec").unwrap_or(&Value::Null)))
}

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

/// Decodes a NodePool, whether or not it has a block `spec.repair`.
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

/// `None` for a NodePool without a block `spec.repair`.
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

pub(super) struct Policies;

impl Project for Policies {
    type Wire = Whole;
    type Kept = Policy;

    fn keep(&self, wire: Whole) -> Option<Policy> {
        policy(&wire.object)
    }
}

pub(super) struct Pools;

impl Project for Pools {
    type Wire = Whole;
    type Kept = SeenPool;

    fn keep(&self, wire: Whole) -> Option<SeenPool> {
        seen_pool(&wire.object)
    }
}
