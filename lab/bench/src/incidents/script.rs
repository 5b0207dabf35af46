//! The elements of an incident: what really happens, which the contenders cannot see.

use salvor_simulate::Machine;
/// The conditions that make a node unhealthy, and how long each is tolerated. Both contenders use the same ones.
pub(super) use salvor_simulate::peers::{SICK_CONDITIONS as CONDITIONS, SickCondition as Condition};

/// The kubelet reports that it is not ready.
pub(super) const NOT_READY: &Condition = &CONDITIONS[0];
/// The kubelet sends no heartbeats.
pub(super) const LOST: &Condition = &CONDITIONS[1];
/// The accelerator is broken, or an agent reports that.
pub(super) const GPU: &Condition = &CONDITIONS[2];
/// Minutes after which a registered node should be ready for pods.
pub(super) const STARTUP: u64 = 30;

/// Why a node is unhealthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The machine: only another one helps.
    Machine,
    /// Something else, which passes: another machine does not help.
    Elsewhere,
}

/// Something that happens. Nodes are identified by their number in the order of their creation.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// The machine of a node breaks.
    Breaks(usize, &'static Condition),
    /// Nodes report that they are unhealthy, but their machines are not.
    Ails(Vec<usize>, &'static Condition),
    /// From now on every new node of this pool reports the same.
    NewOnesAil(&'static str, &'static Condition),
    /// All nodes with this condition are healthy again.
    Passes(&'static Condition),
    /// One node with this condition is healthy again.
    Heals(usize, &'static Condition),
    /// All nodes of a zone are lost. New machines come up elsewhere.
    ZoneLost(&'static str, Cause),
    /// The agent of a node rewrites the condition, with a lastTransitionTime of now.
    Rewritten(usize, &'static Condition),
    /// The agent of a node restarts, and reports for a moment that everything is fine.
    AgentRestarts(usize, &'static Condition),
    /// A user cordons nodes.
    Cordoned(Vec<usize>),
    /// A number of new nodes, which stay not Ready for this many minutes after they have registered.
    ScaleUp(Machine, usize, u64),
    /// A new node that registers, is Ready, and is never initialized.
    NeverInitialized(Machine),
    /// From now on the machine of this node never terminates.
    Sticks(usize),
    /// Whether the cloud has machines.
    Capacity(bool),
}

pub(super) struct Incident {
    pub(super) name: &'static str,
    /// What happens, for the page.
    pub(super) story: &'static str,
    /// The nodes at its beginning, all of them healthy.
    pub(super) nodes: Vec<Machine>,
    /// What happens after how many seconds, in order.
    pub(super) events: Vec<(u64, Event)>,
    /// Minutes until the end of the play.
    pub(super) minutes: u64,
}

/// Machines of a pool, spread over zones.
pub(super) fn pool(name: &str, nodes: usize, zones: &[&str]) -> Vec<Machine> {
    let zones = zones.iter().cycle().take(nodes);
    zones.map(|zone| Machine { pool: name.to_owned(), zone: (*zone).to_owned() }).collect()
}
