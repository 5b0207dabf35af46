//! The section `repair`: defaults for the repair of sick nodes where no NodeRepairPolicy applies.

use serde::{Deserialize, Serialize};

use super::found::Found;
use super::problem::Path;
use super::section::Kind::{Choice, Duration, Integer, Object};
use super::section::Presence::{self, Parent};
use super::section::{Field, Section, field};
use crate::GoDuration;

pub(super) const SECTION: Section = Section { fields: FIELDS, examples: &[] };

/// The settings of node repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RepairSettings {
    /// The provider whose default conditions and tolerations apply.
    pub provider: RepairProvider,
    /// The toleration of a condition restarts only after the condition was healthy for this long.
    pub healthy_after: GoDuration,
    /// A repair that has not finished or started after this time no longer blocks others.
    pub stuck_after: GoDuration,
    /// A new machine that has not registered after this time blocks repairs of its pool.
    pub launch_timeout: GoDuration,
    /// Repairs in a zone are blocked when at least this share of its nodes is sick; 0 sets no limit.
    pub zone_sick_percent: u8,
    /// Repairs in a pool are blocked when at least this share of its nodes has the same condition; 0 sets no limit.
    pub pool_sick_percent: u8,
    /// A zone, a pool or too many sick nodes block the repair of a node for at most this time after its toleration; 0
    /// sets no limit.
    pub outage_timeout: GoDuration,
    /// A block ends only after no node has recovered for this long.
    pub settle_after: GoDuration,
    /// If replacements did not help, the repair of one node is retried after this time; 0 retries without a pause.
    pub retry_after: GoDuration,
    /// How a Cluster API Machine is repaired.
    #[serde(rename = "clusterAPI")]
    pub cluster_api: ClusterApiRepair,
}

impl Default for RepairSettings {
    fn default() -> Self {
        Self {
            provider: RepairProvider::default(),
            healthy_after: GoDuration::from_secs(60),
            stuck_after: GoDuration::from_secs(15 * 60),
            launch_timeout: GoDuration::from_secs(10 * 60),
            zone_sick_percent: 55,
            pool_sick_percent: 50,
            outage_timeout: GoDuration::from_secs(20 * 60),
            settle_after: GoDuration::from_secs(3 * 60),
            retry_after: GoDuration::from_secs(30 * 60),
            cluster_api: ClusterApiRepair::default(),
        }
    }
}

/// The provider of nodes, whose default conditions and tolerations apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum RepairProvider {
    /// Taken from each node's `spec.providerID`.
    #[default]
    Auto,
    #[serde(rename = "AWS")]
    Aws,
    Azure,
    #[serde(rename = "GCP")]
    Gcp,
    Alibaba,
    #[serde(rename = "OCI")]
    Oci,
    Kwok,
    /// No provider: only the conditions that a policy names count.
    None,
}

/// How a Cluster API Machine is repaired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClusterApiRepair {
    /// An annotation asks the owner of the Machine to replace it.
    #[default]
    Remediate,
    /// The Machine is deleted.
    Delete,
}

const FIELDS: &[Field] = &[
    field(
        "repair",
        Object,
        Parent,
        "The repair of nodes that have been sick for too long. A NodeRepairPolicy, or the block spec.repair of a Karpenter \
         NodePool, says which nodes are repaired and when; without one, no node is.",
    ),
    field(
        "repair.provider",
        Choice(&["Auto", "AWS", "Azure", "GCP", "Alibaba", "OCI", "Kwok", "None"]),
        Presence::Default("Auto"),
        "The provider whose default conditions and tolerations count. Auto tells it from each node's spec.providerID. None: \
         only conditions that a policy names count.",
    ),
    field(
        "repair.healthyAfter",
        Duration,
        Presence::Default("1m0s"),
        "A condition that was sick must be healthy for this long, or for its toleration if that is shorter, before its clock \
         is reset. So an agent that rewrites lastTransitionTime, or restarts, does not put a repair off for ever.",
    ),
    field(
        "repair.stuckAfter",
        Duration,
        Presence::Default("15m0s"),
        "A repair that is not over this long after it began is reported, and its node does not count against the budget any more. \
         One that something holds for this long loses its turn to the next node. The gracePeriod of a Graceful termination \
         comes on top.",
    ),
    field(
        "repair.launchTimeout",
        Duration,
        Presence::Default("10m0s"),
        "A NodeClaim that has not registered, or a Machine that has no node, after this time holds up further repairs of its \
         pool.",
    ),
    field(
        "repair.zoneSickPercent",
        Integer(0, 100),
        Presence::Default("55"),
        "When at least three nodes, and at least this share of a policy's nodes in a zone, are sick, it is taken for one cause \
         and no node of that zone is repaired until outageTimeout. If the policy has nodes in one zone only, they must be more \
         than its unhealthyLimit too. 0 switches this off.",
    ),
    field(
        "repair.poolSickPercent",
        Integer(0, 100),
        Presence::Default("50"),
        "When at least three nodes, at least this share of a policy's nodes in a pool, and more than its unhealthyLimit of them \
         are sick with the same condition, it is taken for one cause and no node of that pool is repaired for that condition \
         until outageTimeout. 0 switches this off.",
    ),
    field(
        "repair.outageTimeout",
        Duration,
        Presence::Default("20m0s"),
        "A node is held because its zone or pool is sick, or because more nodes of its policy are than unhealthyLimit allows, for at \
         most this time after its toleration. Then the nodes of that zone, pool or policy are repaired one at a time. 0 holds them as \
         long as the sickness lasts.",
    ),
    field(
        "repair.settleAfter",
        Duration,
        Presence::Default("3m0s"),
        "While nodes heal by themselves, a hold of a zone, a pool or a whole policy lasts until no node has healed for this \
         long, or for as long as the last one was seen sick if that is shorter. 0 ends it at once.",
    ),
    field(
        "repair.retryAfter",
        Duration,
        Presence::Default("30m0s"),
        "Where replacements in a pool have the condition that they should cure, no further node of it is replaced for that \
         condition. One is tried again after this time, the next one after twice that, and so on, up to sixteen times that. 0 \
         switches this off.",
    ),
    field(
        "repair.clusterAPI",
        Choice(&["Remediate", "Delete"]),
        Presence::Default("Remediate"),
        "How a Machine of Cluster API is repaired. Remediate: by the annotation cluster.x-k8s.io/remediate-machine, which a \
         MachineHealthCheck acts on. Delete: the Machine is deleted.",
    ),
];

pub(super) fn check(repair: &RepairSettings, found: &mut Found) {
    found.not_negative("repair.healthyAfter", repair.healthy_after);
    found.positive("repair.stuckAfter", repair.stuck_after);
    found.positive("repair.launchTimeout", repair.launch_timeout);
    found.not_negative("repair.outageTimeout", repair.outage_timeout);
    found.not_negative("repair.settleAfter", repair.settle_after);
    found.not_negative("repair.retryAfter", repair.retry_after);
    for (field, percent) in [
        ("repair.zoneSickPercent", repair.zone_sick_percent),
        ("repair.poolSickPercent", repair.pool_sick_percent),
    ] {
        if percent > 100 {
            found.note(Path::of(field), format!("{percent} is no share: set it from 0 to 100"));
        }
    }
}
