//! The limits that block an action, with their sentences.

use jiff::Timestamp;
use serde::Serialize;

use super::share::{Engaged, NodeCounts};
use crate::pause::Pause;

/// The limit that blocks an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "limit", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Held {
    /// Too large a share of nodes is unreachable.
    #[error(
        "{} of {} nodes are unreachable, more than brake.maxUnreachablePercent={max_unreachable_percent} allows, since {}",
        engaged.nodes.unreachable, engaged.nodes.total, engaged.since
    )]
    MaxUnreachablePercent {
        /// Since when, and the last count.
        engaged: Engaged,
        max_unreachable_percent: u8,
    },
    /// Too large a share of a zone's nodes is unreachable.
    #[error(
        "{} of {} nodes of zone {zone:?} are unreachable, more than brake.maxUnreachablePercent={max_unreachable_percent} allows",
        nodes.unreachable, nodes.total
    )]
    ZoneDown {
        zone: String,
        /// The counts of the zone.
        nodes: NodeCounts,
        max_unreachable_percent: u8,
    },
    /// Too large a share of nodes was unreachable a moment ago, and more of them may come back.
    #[error(
        "too many nodes{} were unreachable a moment ago, and {lost} still are. Salvor waits until {until}, and longer if more of \
         them become Ready (brake.settlePeriod)",
        of_zone(zone)
    )]
    Settling {
        /// None for the whole cluster.
        #[serde(skip_serializing_if = "Option::is_none")]
        zone: Option<String>,
        /// The number of nodes that are still unreachable.
        lost: u32,
        /// When it passes if no more nodes come back.
        until: Timestamp,
    },
    /// After an outage, recoveries resume gradually.
    #[error(
        "too many nodes{} were unreachable before. Recoveries go on gradually, and this one may go on at {until}",
        of_zone(zone)
    )]
    Gradual {
        /// None for the whole cluster.
        #[serde(skip_serializing_if = "Option::is_none")]
        zone: Option<String>,
        /// The first instant at which there is room.
        until: Timestamp,
    },
    /// A person has paused everything.
    #[error("{pause}")]
    Paused {
        /// The person, the time and the reason.
        pause: Box<Pause>,
    },
    /// The number of recent recoveries is unknown.
    #[error(
        "Salvor does not know what was recovered lately ({why}), so the whole budget counts as spent. It waits until {until}"
    )]
    MemoryLost {
        /// The defect of the saved state.
        why: String,
        /// When a full budget period has passed.
        until: Timestamp,
    },
    /// The API servers' clocks disagree.
    #[error(
        "the API server told different times ({clocks} clocks; the earliest counts). Actions that cannot be undone wait \
         until {until}"
    )]
    ClockUnsettled {
        /// The number of different clocks that recent responses showed.
        clocks: usize,
        /// When it passes if no other clock shows up.
        until: Timestamp,
    },
    /// The API server was restored from a backup a moment ago.
    #[error(
        "the API server went back to an earlier state. Leases in it are old, also those of kubelets that live, so actions that \
         cannot be undone wait until {until}"
    )]
    JustRestored {
        /// By then every living kubelet has renewed its Lease.
        until: Timestamp,
    },
    /// A limit of a node's repair policy.
    #[error("{}: {}", .0.cause, .0.what)]
    RepairPolicy(Box<RepairLimit>),
    /// The node budget of this minute is spent.
    #[error(
        "brake.maxNodesPerMinute={max_nodes_per_minute} evictions and repairs of nodes began within a minute; the next may begin at {until}"
    )]
    MaxNodesPerMinute {
        max_nodes_per_minute: u32,
        /// The first instant at which there is room.
        until: Timestamp,
    },
    /// The pod budget of this minute is spent.
    #[error(
        "brake.maxPodsPerMinute={max_pods_per_minute} pods were recovered within a minute; the next may be recovered at {until}"
    )]
    MaxPodsPerMinute {
        max_pods_per_minute: u32,
        /// The first instant at which there is room.
        until: Timestamp,
    },
}

/// A limit of a node's repair policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RepairLimit {
    /// The limit, as metrics name it.
    pub cause: &'static str,
    /// The sentence for people.
    pub what: String,
    /// When it ends on its own, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

fn of_zone(zone: &Option<String>) -> String {
    zone.as_ref().map(|zone| format!(" of zone {zone:?}")).unwrap_or_default()
}

impl Held {
    /// A stable name for metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::MaxUnreachablePercent { .. } => "MaxUnreachablePercent",
            Self::ZoneDown { .. } => "ZoneDown",
            Self::Settling { .. } => "Settling",
            Self::Gradual { .. } => "Gradual",
            Self::Paused { .. } => "Paused",
            Self::MemoryLost { .. } => "BrakeMemoryLost",
            Self::ClockUnsettled { .. } => "ClockUnsettled",
            Self::JustRestored { .. } => "JustRestored",
            Self::RepairPolicy(limit) => limit.cause,
            Self::MaxNodesPerMinute { .. } => "MaxNodesPerMinute",
            Self::MaxPodsPerMinute { .. } => "MaxPodsPerMinute",
        }
    }

    /// The question that has the answer no.
    pub(crate) fn question(&self) -> &'static str {
        match self {
            Self::Paused { .. } => "Is Salvor not paused?",
            Self::ClockUnsettled { .. } => "Do the clocks of the API servers agree?",
            Self::JustRestored { .. } => {
                "Has every kubelet had time to renew its Lease since the API went back?"
            }
            Self::RepairPolicy(_) => "Do the policy's limits allow it?",
            Self::MaxUnreachablePercent { .. }
            | Self::ZoneDown { .. }
            | Self::Settling { .. }
            | Self::Gradual { .. }
            | Self::MemoryLost { .. }
            | Self::MaxNodesPerMinute { .. }
            | Self::MaxPodsPerMinute { .. } => "Does the brake allow it?",
        }
    }

    /// When it ends on its own; none if that depends on nodes coming back, or on a person.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::MaxUnreachablePercent { .. } | Self::ZoneDown { .. } | Self::Paused { .. } => None,
            Self::RepairPolicy(limit) => limit.until,
            Self::Settling { until, .. }
            | Self::Gradual { until, .. }
            | Self::MemoryLost { until, .. }
            | Self::ClockUnsettled { until, .. }
            | Self::JustRestored { until }
            | Self::MaxPodsPerMinute { until, .. }
            | Self::MaxNodesPerMinute { until, .. } => Some(*until),
        }
    }
}
