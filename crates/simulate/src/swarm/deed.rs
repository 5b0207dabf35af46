//! What happens to a cluster in a seed: faults of nodes, of the wire and of processes, and what people do.

use std::{fmt, time::Duration};

use http::Method;
use salvor_embedded::Effect;

use crate::{CrashPoint, Side};

/// Something that happens, and when, in seconds since the beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// When.
    pub at: u64,
    /// What.
    pub deed: Deed,
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4} s  {}", self.at, self.deed)
    }
}

/// One fault, or one act of a person. Whatever lasts says for how many seconds, so that each can be left out by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A machine or its kubelet fails.
    Node {
        /// The name of the node.
        node: String,
        /// The fault.
        fault: NodeFault,
        /// It heals after this; without it, when all faults cease.
        lasts: Option<u64>,
    },
    /// A machine restarts.
    Reboot {
        /// The name of the node.
        node: String,
    },
    /// A person deletes a Node, and its machine restarts and registers anew.
    ReplaceNode {
        /// The name of the node.
        node: String,
    },
    /// The events of one watch of a replica do not come, while those of others do.
    Stall {
        /// The number of the replica.
        replica: usize,
        /// The watch.
        watch: Watched,
        /// For so long.
        lasts: u64,
    },
    /// One kind of object can be neither listed nor watched by a replica.
    Unlisted {
        /// The number of the replica.
        replica: usize,
        /// The watch.
        watch: Watched,
        /// Each answer.
        effect: Effect,
        /// For so long.
        lasts: u64,
    },
    /// Some requests of a replica are struck.
    Strike {
        /// The number of the replica.
        replica: usize,
        /// Which requests.
        call: Call,
        /// What happens to them.
        effect: Effect,
        /// How many of them.
        times: u32,
    },
    /// A replica cannot renew the Lease of the election, while all else works.
    Unrenewed {
        /// The number of the replica.
        replica: usize,
        /// Each answer.
        effect: Effect,
        /// For so long.
        lasts: u64,
    },
    /// A webhook or a quota refuses such writes of all replicas.
    Refused {
        /// Which writes.
        call: Call,
        /// Each answer.
        effect: Effect,
        /// For so long.
        lasts: u64,
    },
    /// Every request, or every write, of a replica takes longer.
    Slow {
        /// The number of the replica.
        replica: usize,
        /// Only writes.
        writes: bool,
        /// Milliseconds.
        delay: u64,
        /// For so long.
        lasts: u64,
    },
    /// Revisions go backwards for a replica: its lists are answered as some time ago, and say so.
    Backwards {
        /// The number of the replica.
        replica: usize,
        /// So many revisions ago.
        revisions: u64,
        /// For so long.
        lasts: u64,
    },
    /// All watches of a replica are cut.
    Cut {
        /// The number of the replica.
        replica: usize,
    },
    /// The API forgets its past.
    Compact,
    /// The API is backed up, and goes back to that, its revisions included, as when etcd is restored.
    Restore {
        /// After so long.
        lasts: u64,
    },
    /// The API server that answers these requests of a replica has a clock that is ahead, or behind.
    Clock {
        /// The number of the replica.
        replica: usize,
        /// Which requests.
        call: Call,
        /// Seconds ahead.
        ahead: i64,
        /// For so long.
        lasts: u64,
    },
    /// Nothing reaches a replica, and nothing leaves it.
    Asleep {
        /// The number of the replica.
        replica: usize,
        /// For so long.
        lasts: u64,
    },
    /// Nothing of a replica runs, while time goes on: SIGSTOP, or a machine that sleeps.
    Stop {
        /// The number of the replica.
        replica: usize,
        /// For so long.
        lasts: u64,
    },
    /// A replica is killed, and started again.
    Kill {
        /// The number of the replica.
        replica: usize,
    },
    /// A replica is killed before or after a write to come, and started again.
    Crash {
        /// The number of the replica.
        replica: usize,
        /// Which write, from now on.
        point: CrashPoint,
    },
    /// A replica is killed before or after it next writes the Lease, and started again.
    CrashAtRenewal {
        /// The number of the replica.
        replica: usize,
        /// Before or after.
        side: Side,
    },
    /// A replica stops in peace and is started again.
    Restart {
        /// The number of the replica.
        replica: usize,
    },
    /// All replicas are configured for a dry run, and later back.
    DryRun {
        /// For so long.
        lasts: u64,
    },
    /// A person pauses everything.
    Pause {
        /// For so long.
        lasts: u64,
    },
    /// A person asks for the eviction of a node, and perhaps stops it.
    Evict {
        /// The name of the node.
        node: String,
        /// It is stopped after this.
        stops: Option<u64>,
    },
    /// A person deletes a pod.
    DeletePod {
        /// The name of the pod.
        pod: String,
    },
    /// Somebody removes a pod by force and makes another of its name.
    ReplacePod {
        /// The name of the pod.
        pod: String,
    },
    /// A person deletes a Job, and perhaps makes it again.
    DeleteJob {
        /// The name of the Job.
        job: String,
        /// After so long.
        again: Option<u64>,
    },
    /// A person suspends an AppWrapper for a while.
    Suspend {
        /// The name of the AppWrapper.
        app: String,
        /// For so long.
        lasts: u64,
    },
    /// A person deletes an AppWrapper, and perhaps makes it again.
    DeleteApp {
        /// The name of the AppWrapper.
        app: String,
        /// After so long.
        again: Option<u64>,
    },
    /// An agent says that a node is sick, and perhaps that it is well again.
    Sick {
        /// The name of the node.
        node: String,
        /// It is well after this.
        lasts: Option<u64>,
    },
    /// A person forbids the repair of a node for a while.
    Veto {
        /// The name of the node.
        node: String,
        /// For so long.
        lasts: u64,
    },
}

/// A fault of a machine or its kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFault {
    /// The machine is off.
    Crash,
    /// It is cut off; what runs on it runs on.
    Partition,
    /// The kubelet is dead; what runs on it runs on.
    KubeletStop,
    /// It is cut off and connected in turn.
    Flap,
    /// Its requests take so many seconds longer.
    Slow(u64),
}

/// A kind that operators watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Pods.
    Pods,
    /// Nodes.
    Nodes,
    /// Jobs.
    Jobs,
    /// AppWrappers.
    AppWrappers,
    /// NodeClaims.
    NodeClaims,
    /// NodeRepairPolicies.
    Policies,
    /// VolumeAttachments.
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

    /// What the path of its lists and watches contains.
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

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Patches of a status.
    PatchStatus,
    /// Patches of nodes.
    PatchNode,
    /// Patches of pods.
    PatchPod,
    /// Deletions of pods.
    DeletePod,
    /// Creations of pods.
    CreatePod,
    /// Events.
    Event,
    /// Writes of the Lease of the election.
    Renewal,
    /// Reads of Leases.
    ReadLease,
    /// Reads of one node.
    ReadNode,
    /// Lists.
    List,
    /// Watches.
    Watch,
    /// Everything.
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

    /// Its method, if only one counts, and what its path contains.
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
    /// True if the brake may not count a write of a replica from when it was sent. If its answer is lost, it counts from when the
    /// brake let it through. If the Lease cannot be written, or goes back to an older state, the next leader does not know of it.
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

    /// For how long it lasts, if it ends before all faults cease.
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
    /// The name and the fields, as short as they can be read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
