//! What happens to a cluster in a seed: faults of nodes, requests and processes, and actions of users.

use std::{fmt, time::Duration};

use http::Method;
use salvor_apiserver::Effect;

use crate::{CrashPoint, Side};

/// Something that happens at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Seconds since the beginning.
    pub at: u64,
    pub deed: Deed,
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4} s  {}", self.at, self.deed)
    }
}

/// One fault, or one action of a user. Each deed contains its own duration in seconds, so that each can be left out by
/// itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A machine or its kubelet fails.
    Node {
        node: String,
        fault: NodeFault,
        /// Seconds until it heals; without it, when all faults cease.
        lasts: Option<u64>,
    },
    /// A machine restarts.
    Reboot {
        /// Name of the node.
        node: String,
    },
    /// A user deletes a Node, and its machine restarts and registers again.
    ReplaceNode {
        /// Name of the node.
        node: String,
    },
    /// One watch of a replica delivers no events, while other watches do.
    Stall {
        /// Index of the replica.
        replica: usize,
        watch: Watched,
        /// Seconds.
        lasts: u64,
    },
    /// A replica can neither list nor watch one kind of object.
    Unlisted {
        /// Index of the replica.
        replica: usize,
        watch: Watched,
        /// The answer to each request.
        effect: Effect,
        /// Seconds.
        lasts: u64,
    },
    /// Some requests of a replica fail.
    Strike {
        /// Index of the replica.
        replica: usize,
        call: Call,
        effect: Effect,
        /// The number of requests that fail.
        times: u32,
    },
    /// A replica cannot renew the Lease of the leader election, while everything else works.
    Unrenewed {
        /// Index of the replica.
        replica: usize,
        /// The answer to each request.
        effect: Effect,
        /// Seconds.
        lasts: u64,
    },
    /// A webhook or a quota refuses certain writes of all replicas.
    Refused {
        call: Call,
        /// The answer to each request.
        effect: Effect,
        /// Seconds.
        lasts: u64,
    },
    /// Every request, or every write, of a replica takes longer.
    Slow {
        /// Index of the replica.
        replica: usize,
        /// True if only writes are slow.
        writes: bool,
        /// Milliseconds.
        delay: u64,
        /// Seconds.
        lasts: u64,
    },
    /// Revisions go backwards for a replica: its lists return an older state, with its resourceVersion.
    Backwards {
        /// Index of the replica.
        replica: usize,
        /// How many revisions the lists go back.
        revisions: u64,
        /// Seconds.
        lasts: u64,
    },
    /// All watches of a replica are cut.
    Cut {
        /// Index of the replica.
        replica: usize,
    },
    /// The API compacts its history.
    Compact,
    /// The API is backed up, and later goes back to that state, revisions included, as when etcd is restored.
    Restore {
        /// Seconds from the backup to the restore.
        lasts: u64,
    },
    /// The API server that answers these requests of a replica has a clock that is ahead or behind.
    Clock {
        /// Index of the replica.
        replica: usize,
        call: Call,
        /// Seconds ahead; negative if behind.
        ahead: i64,
        /// Seconds.
        lasts: u64,
    },
    /// A replica is partitioned: nothing reaches it, and nothing leaves it.
    Asleep {
        /// Index of the replica.
        replica: usize,
        /// Seconds.
        lasts: u64,
    },
    /// Nothing in a replica runs, while time goes on: SIGSTOP, or a suspended machine.
    Stop {
        /// Index of the replica.
        replica: usize,
        /// Seconds.
        lasts: u64,
    },
    /// A replica is killed, and started again.
    Kill {
        /// Index of the replica.
        replica: usize,
    },
    /// A replica is killed before or after a later write, and started again.
    Crash {
        /// Index of the replica.
        replica: usize,
        /// The write, counted from now.
        point: CrashPoint,
    },
    /// A replica is killed before or after its next write of the Lease, and started again.
    CrashAtRenewal {
        /// Index of the replica.
        replica: usize,
        side: Side,
    },
    /// A replica stops gracefully and is started again.
    Restart {
        /// Index of the replica.
        replica: usize,
    },
    /// All replicas are configured for a dry run, and later back.
    DryRun {
        /// Seconds.
        lasts: u64,
    },
    /// A user pauses everything.
    Pause {
        /// Seconds.
        lasts: u64,
    },
    /// A user requests the eviction of a node, and perhaps stops it.
    Evict {
        node: String,
        /// Seconds until it is stopped.
        stops: Option<u64>,
    },
    /// A user deletes a pod.
    DeletePod {
        /// Name of the pod.
        pod: String,
    },
    /// A user force-deletes a pod and creates another with the same name.
    ReplacePod {
        /// Name of the pod.
        pod: String,
    },
    /// A user deletes a Job, and perhaps creates it again.
    DeleteJob {
        job: String,
        /// Seconds until it is created again.
        again: Option<u64>,
    },
    /// A user suspends an AppWrapper for a while.
    Suspend {
        app: String,
        /// Seconds.
        lasts: u64,
    },
    /// A user deletes an AppWrapper, and perhaps creates it again.
    DeleteApp {
        app: String,
        /// Seconds until it is created again.
        again: Option<u64>,
    },
    /// An agent reports that a node is unhealthy, and perhaps that it is healthy again.
    Sick {
        node: String,
        /// Seconds until it is healthy again.
        lasts: Option<u64>,
    },
    /// A user vetoes the repair of a node for a while.
    Veto {
        node: String,
        /// Seconds.
        lasts: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFault {
    /// The machine is off.
    Crash,
    /// The machine is partitioned; its containers keep running.
    Partition,
    /// The kubelet is dead; the containers keep running.
    KubeletStop,
    /// The machine alternates between partitioned and reachable.
    Flap,
    /// Its requests take this many seconds longer.
    Slow(u64),
}

/// A kind that operators watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    Pods,
    Nodes,
    Jobs,
    AppWrappers,
    NodeClaims,
    Policies,
    Attachments,
}

impl Watched {
    pub(super) const ALL: [Self; 7] = [
        Self::Pods,
        Self::Nodes,
        Self::Jobs,
        Self::AppWrappers,
        Self::NodeClaims,
        Self::Policies,
        Self::Attachments,
    ];

    /// A part of the path of its lists and watches.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Pods => "/api/v1/pods?",
            Self::Nodes => "/api/v1/nodes?",
            Self::Jobs => "/apis/batch/v1/jobs?",
            Self::AppWrappers => "/appwrappers?",
            Self::NodeClaims => "/nodeclaims?",
            Self::Policies => "/noderepairpolicies?",
            Self::Attachments => "/volumeattachments?",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    PatchStatus,
    PatchNode,
    PatchPod,
    DeletePod,
    CreatePod,
    Event,
    /// Writes of the Lease of the leader election.
    Renewal,
    ReadLease,
    ReadNode,
    List,
    Watch,
    Any,
}

impl Call {
    pub(super) const ALL: [Self; 12] = [
        Self::PatchStatus,
        Self::PatchNode,
        Self::PatchPod,
        Self::DeletePod,
        Self::CreatePod,
        Self::Event,
        Self::Renewal,
        Self::ReadLease,
        Self::ReadNode,
        Self::List,
        Self::Watch,
        Self::Any,
    ];

    /// The method, if only one matches, and a part of the path.
    pub(super) fn matches(self) -> (Option<Method>, &'static str) {
        match self {
            Self::PatchStatus => (Some(Method::PATCH), "/status"),
            Self::PatchNode => (Some(Method::PATCH), "/nodes/"),
            Self::PatchPod => (Some(Method::PATCH), "/pods/"),
            Self::DeletePod => (Some(Method::DELETE), "/pods/"),
            Self::CreatePod => (Some(Method::POST), "/pods"),
            Self::Event => (Some(Method::POST), "/events"),
            Self::Renewal => (Some(Method::PUT), "/leases/salvor"),
            Self::ReadLease => (Some(Method::GET), "/leases/"),
            Self::ReadNode => (Some(Method::GET), "/nodes/"),
            Self::List => (Some(Method::GET), "limit="),
            Self::Watch => (Some(Method::GET), "watch=true"),
            Self::Any => (None, ""),
        }
    }

    pub(super) fn is_read(self) -> bool {
        matches!(self.matches().0, Some(Method::GET))
    }
}

impl Deed {
    /// True if the brake may count a write of a replica later than it was sent. If the answer is lost, the write counts
    /// from when the brake admitted it. If the Lease cannot be written, or goes back to an older state, the next leader
    /// does not know of the write.
    pub(super) fn is_counted_late(&self) -> bool {
        match self {
            Self::Strike { call: Call::Renewal | Call::Any, .. }
            | Self::Strike {
                effect: Effect::Delay(_) | Effect::AnswerLost | Effect::Unanswered { carried_out: true },
                ..
            }
            | Self::Unrenewed { .. }
            | Self::Restore { .. }
            | Self::Slow { .. }
            | Self::Clock { .. }
            | Self::Asleep { .. }
            | Self::Stop { .. } => true,
            Self::Strike { .. }
            | Self::Node { .. }
            | Self::Reboot { .. }
            | Self::ReplaceNode { .. }
            | Self::Stall { .. }
            | Self::Unlisted { .. }
            | Self::Refused { .. }
            | Self::Backwards { .. }
            | Self::Cut { .. }
            | Self::Compact
            | Self::Kill { .. }
            | Self::Crash { .. }
            | Self::CrashAtRenewal { .. }
            | Self::Restart { .. }
            | Self::DryRun { .. }
            | Self::Pause { .. }
            | Self::Evict { .. }
            | Self::DeletePod { .. }
            | Self::ReplacePod { .. }
            | Self::DeleteJob { .. }
            | Self::Suspend { .. }
            | Self::DeleteApp { .. }
            | Self::Sick { .. }
            | Self::Veto { .. } => false,
        }
    }

    /// How long it lasts, if it ends before all faults cease.
    pub(super) fn lasts(&self) -> Option<Duration> {
        let seconds = match self {
            Self::Node { lasts, .. }
            | Self::Sick { lasts, .. }
            | Self::Evict { stops: lasts, .. }
            | Self::DeleteJob { again: lasts, .. }
            | Self::DeleteApp { again: lasts, .. } => *lasts,
            Self::Stall { lasts, .. }
            | Self::Unlisted { lasts, .. }
            | Self::Refused { lasts, .. }
            | Self::Unrenewed { lasts, .. }
            | Self::Slow { lasts, .. }
            | Self::Backwards { lasts, .. }
            | Self::Restore { lasts }
            | Self::Clock { lasts, .. }
            | Self::Asleep { lasts, .. }
            | Self::Stop { lasts, .. }
            | Self::DryRun { lasts }
            | Self::Pause { lasts }
            | Self::Suspend { lasts, .. }
            | Self::Veto { lasts, .. } => Some(*lasts),
            Self::Reboot { .. }
            | Self::ReplaceNode { .. }
            | Self::Strike { .. }
            | Self::Cut { .. }
            | Self::Compact
            | Self::Kill { .. }
            | Self::Crash { .. }
            | Self::CrashAtRenewal { .. }
            | Self::Restart { .. }
            | Self::DeletePod { .. }
            | Self::ReplacePod { .. } => None,
        };
        seconds.map(Duration::from_secs)
    }
}

impl fmt::Display for Deed {
    /// The name and the fields, in short form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
