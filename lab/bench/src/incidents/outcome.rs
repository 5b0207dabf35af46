//! The results of one incident under one set of rules.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Machines that broke.
    pub(super) broken: u64,
    /// Broken machines whose replacement is ready.
    pub(super) replaced: u64,
    /// Nodes that were killed although their machine was healthy, or although there was no other machine.
    pub(super) in_vain: u64,
    /// Seconds from the end of the toleration of a broken machine until its replacement was ready, summed over all such
    /// machines, while the cloud had machines.
    pub(super) late: u64,
    /// Seconds between the needless kill of a node and its replacement, summed over all nodes.
    pub(super) lost: u64,
    /// Seconds that nodes stayed unhealthy past their toleration, summed over all nodes, for whatever cause.
    pub(super) sick: u64,
    /// Seconds in which only nodes waited whose repair would have been needless.
    pub(super) held: u64,
    /// Seconds in which a broken machine waited, and nothing was done.
    pub(super) frozen: u64,
}
