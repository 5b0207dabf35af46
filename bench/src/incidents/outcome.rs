//! The figures of one incident under one set of rules.

/// What an incident came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Machines that broke.
    pub(super) broken: u64,
    /// Those of them whose replacement is ready.
    pub(super) replaced: u64,
    /// Nodes that were killed although their machine was well, or although there was no other machine.
    pub(super) in_vain: u64,
    /// Seconds from the end of the toleration of a broken machine until its replacement was ready, of all such machines together,
    /// while the cloud had machines.
    pub(super) late: u64,
    /// Seconds between the kill of a node in vain and its replacement, of all nodes together.
    pub(super) lost: u64,
    /// Seconds that nodes stayed past their toleration, of all nodes together, for whatever cause.
    pub(super) sick: u64,
    /// Seconds in which only nodes waited for which a repair would have been in vain.
    pub(super) held: u64,
    /// Seconds in which a broken machine waited, and nothing was done.
    pub(super) frozen: u64,
}
