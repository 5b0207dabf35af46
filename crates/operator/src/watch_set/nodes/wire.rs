//! A node as the API sends it, and the fields of it that recoveries use.

use std::fmt;

use salvor_api::names::{annotations, node_conditions, repair::annotations as repair};
use salvor_recovery::{brake::NodeStanding, liveness::NodeLease, objects::NodeRef};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use crate::client::wire::{Condition, NodeSpec, Object, condition, standing};

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";

/// All fields that any recovery reads of a node.
pub(crate) type NodeWire = Object<NodeSpec, NodeStatus, NodeAnnotations>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeStatus {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) volumes_in_use: Vec<String>,
    pub(crate) volumes_attached: Vec<AttachedVolume>,
    pub(crate) node_info: NodeInfo,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct NodeInfo {
    #[serde(rename = "bootID")]
    pub(crate) boot_id: Box<str>,
    #[serde(rename = "systemUUID")]
    pub(crate) system_uuid: Box<str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct AttachedVolume {
    pub(crate) name: String,
}

/// The annotations that recoveries read. All others are skipped: a node may have many, and long ones.
#[derive(Default)]
pub(crate) struct NodeAnnotations {
    pub(crate) eviction: Option<String>,
    pub(crate) eviction_asked: Option<String>,
    pub(crate) despite_zone_outage: Option<String>,
    pub(crate) out_of_service_since: Option<String>,
    pub(crate) out_of_service_boot: Option<String>,
    /// Boxed, because most nodes have none.
    pub(crate) repair: Option<Box<RepairAnnotations>>,
}

/// The annotations that only node repair reads.
#[derive(Default)]
pub(crate) struct RepairAnnotations {
    pub(crate) progress: Option<String>,
    pub(crate) do_not_repair: Option<String>,
    pub(crate) karpenter_do_not_repair: Option<String>,
    pub(crate) machine: Option<String>,
    pub(crate) cluster_namespace: Option<String>,
    pub(crate) reboot_done: Option<String>,
}

impl<'de> Deserialize<'de> for NodeAnnotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Ours;
        impl<'de> Visitor<'de> for Ours {
            type Value = NodeAnnotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<NodeAnnotations, M::Error> {
                let mut ours = NodeAnnotations::default();
                while let Some(key) = map.next_key::<String>()? {
                    let place = match key.as_str() {
                        annotations::EVICTION => &mut ours.eviction,
                        annotations::EVICTION_ASKED => &mut ours.eviction_asked,
                        annotations::DESPITE_ZONE_OUTAGE => &mut ours.despite_zone_outage,
                        annotations::OUT_OF_SERVICE_SINCE => &mut ours.out_of_service_since,
                        annotations::OUT_OF_SERVICE_BOOT => &mut ours.out_of_service_boot,
                        repair::PROGRESS => &mut ours.repair.get_or_insert_default().progress,
                        repair::DO_NOT_REPAIR => &mut ours.repair.get_or_insert_default().do_not_repair,
                        repair::KARPENTER_DO_NOT_REPAIR => {
                            &mut ours.repair.get_or_insert_default().karpenter_do_not_repair
                        }
                        repair::MACHINE => &mut ours.repair.get_or_insert_default().machine,
                        repair::CLUSTER_NAMESPACE => {
                            &mut ours.repair.get_or_insert_default().cluster_namespace
                        }
                        repair::REBOOT_DONE => &mut ours.repair.get_or_insert_default().reboot_done,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    *place = Some(map.next_value()?);
                }
                Ok(ours)
            }
        }
        deserializer.deserialize_map(Ours)
    }
}

/// The zone of a node that another caller has read, and what decides whether the brake counts it; `None` if it is no
/// node.
pub fn standing_of(node: &serde_json::Value) -> Option<(String, NodeStanding)> {
    let wire = NodeWire::deserialize(node).ok()?;
    Some((wire.zone(), wire.standing()))
}

impl NodeWire {
    /// Empty if it has none. The node lifecycle controller treats zones of one name in two regions as two.
    pub(crate) fn zone(&self) -> String {
        let label = |key| self.metadata.labels.get(key).unwrap_or_default();
        let parts = [label(REGION), label(ZONE)].into_iter().filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join("/")
    }

    pub(crate) fn node(&self) -> NodeRef {
        NodeRef { name: self.metadata.name.as_str().into(), uid: self.metadata.uid.clone() }
    }

    /// The heartbeat of its `Ready` condition, for a kubelet without a Lease.
    pub(crate) fn ready_heartbeat(&self) -> Option<NodeLease> {
        let ready = condition(&self.status.conditions, "Ready")?;
        let lost = ready.last_transition_time.filter(|_| ready.status == "Unknown");
        ready.last_heartbeat_time.map(|at| NodeLease::of_heartbeat(at, lost))
    }

    /// The fields that decide whether the brake counts it.
    pub(crate) fn standing(&self) -> NodeStanding {
        standing(&self.metadata.labels, &self.spec.taints, &self.status.conditions)
    }

    /// Drops what no recovery needs.
    pub(super) fn slim(&mut self, keeps_volumes: bool, keeps_conditions: bool) {
        let status = &mut self.status;
        if !keeps_conditions {
            status.conditions.retain(|c| c.kind == "Ready" || c.kind == node_conditions::FORCE_EVICTION);
        }
        if !keeps_volumes {
            status.volumes_in_use = Vec::new();
            status.volumes_attached = Vec::new();
        }
        status.conditions.shrink_to_fit();
        self.metadata.finalizers = Vec::new();
        self.metadata.owner_references = Vec::new();
    }
}
