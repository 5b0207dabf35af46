//! The section `eviction`: how nodes that are down are evicted.

use serde::{Deserialize, Serialize};

use super::found::Found;
use super::problem::Path;
use super::section::Kind::{Bool, Choice, Duration, List, Object, Text, TextList};
use super::section::Presence::{self, Optional, Parent, Required};
use super::section::{Field, Section, field};
use crate::label_selector::{key_defect, value_defect};
use crate::{GoDuration, names};

pub(super) const SECTION: Section =
    Section { fields: FIELDS, examples: &[("eviction.triggers", EXAMPLE_TRIGGERS)] };

/// The settings of the eviction recovery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct EvictionSettings {
    /// Taints of other controllers that also trigger an eviction.
    pub triggers: Vec<EvictionTrigger>,
    /// When Salvor's own taint is removed.
    pub remove_taint: RemoveTaint,
    /// A volume that is still attached after this time is reported.
    pub detach_warning_after: GoDuration,
    /// The former place of `atMostOne.owners`.
    pub at_most_one_owners: Option<Vec<String>>,
}

impl Default for EvictionSettings {
    fn default() -> Self {
        Self {
            triggers: Vec::new(),
            remove_taint: RemoveTaint::default(),
            detach_warning_after: GoDuration::from_secs(60),
            at_most_one_owners: None,
        }
    }
}

/// A taint of another controller that triggers an eviction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvictionTrigger {
    /// The key of the taint.
    pub key: String,
    /// The value of the taint. Any value matches if this is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The effect of the taint. Any effect matches if this is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// Whether the taint proves that the machine is off, so that pods that must never run twice may be replaced.
    #[serde(default)]
    pub proof: bool,
}

/// The effect of a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaintEffect {
    /// The scheduler places no new pods on the node.
    NoSchedule,
    /// The scheduler avoids the node for new pods.
    PreferNoSchedule,
    /// Running pods are evicted.
    NoExecute,
}

impl TaintEffect {
    /// All effects.
    pub const ALL: [Self; 3] = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];

    /// The effect as the Kubernetes API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => names::taints::NO_SCHEDULE,
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => names::taints::NO_EXECUTE,
        }
    }
}

/// When Salvor removes its taint after an eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoveTaint {
    /// When the node is Ready with a fresh Lease again and, if volumes were released, has rebooted.
    #[default]
    BootChanged,
    /// When the node is Ready with a fresh Lease again.
    WhenReady,
    /// As soon as the pods and volumes are gone.
    WhenEvicted,
}

const FIELDS: &[Field] = &[
    field(
        "eviction",
        Object,
        Parent,
        "The eviction of nodes that are surely down: nodes with the taint salvor.dev/force-eviction (any value). \
         With this taint a person says that the machine is off.",
    ),
    field(
        "eviction.triggers",
        List,
        Presence::Default("[]"),
        "Taints of others that ask for an eviction as well. Salvor adds its own taint beside them, and never removes \
         theirs.",
    ),
    field("eviction.triggers[]", Object, Parent, "One taint that asks for an eviction."),
    field("eviction.triggers[].key", Text, Required, "The key that the taint must have."),
    field(
        "eviction.triggers[].value",
        Text,
        Optional,
        "The taint's value; if it is not set, any value counts.",
    ),
    field(
        "eviction.triggers[].effect",
        Choice(&["NoSchedule", "PreferNoSchedule", "NoExecute"]),
        Optional,
        "The taint's effect; if it is not set, any effect counts.",
    ),
    field(
        "eviction.triggers[].proof",
        Bool,
        Presence::Default("false"),
        "True if this taint proves that the machine is off. Without proof, pods that must never run twice stay: \
         those of owners in atMostOne.owners, those with a ReadWriteOnce or ReadWriteOncePod claim, and those of a Job with podReplacementPolicy Failed that do not consent. They are \
         evicted when somebody adds salvor.dev/force-eviction, which always is proof.",
    ),
    field(
        "eviction.removeTaint",
        Choice(&["BootChanged", "WhenReady", "WhenEvicted"]),
        Presence::Default("BootChanged"),
        "When Salvor removes its own taint after pods and volumes are gone. BootChanged: once the node is Ready and \
         renews its Lease and, if its volumes were released, its machine was rebooted since the eviction began \
         (status.nodeInfo.bootID differs): a machine that was only cut off may still run the old containers and have \
         the volumes mounted. The taint out-of-service of zombie recovery follows the same rule. WhenReady: once the \
         node is Ready and renews its Lease, rebooted or not. WhenEvicted: at once, as the text of KEP-36 says.",
    ),
    field(
        "eviction.detachWarningAfter",
        Duration,
        Presence::Default("1m0s"),
        "A volume that is still attached this long after it was released is reported, with its driver. Salvor still \
         waits for it.",
    ),
    field(
        "eviction.atMostOneOwners",
        TextList,
        Optional,
        "The former name of atMostOne.owners, which counts for all recoveries. It is still read; set only one of the two.",
    ),
];

const EXAMPLE_TRIGGERS: &str = "\
triggers:
- key: fencing.example.com/powered-off
  value: \"true\"
  effect: NoSchedule
  proof: true
        ";

pub(super) fn check(eviction: &EvictionSettings, found: &mut Found) {
    found.positive("eviction.detachWarningAfter", eviction.detach_warning_after);
    for (index, trigger) in eviction.triggers.iter().enumerate() {
        let path = Path::of("eviction.triggers").index(index);
        let key = &trigger.key;
        if key == names::taints::FORCE_EVICTION {
            found.note(path.field("key"), format!("{key} always asks for an eviction: leave it out"));
        } else if let Some(defect) = key_defect(key) {
            found.note(path.field("key"), defect);
        }
        if let Some(defect) = trigger.value.as_deref().and_then(value_defect) {
            found.note(path.field("value"), defect);
        }
    }
}
