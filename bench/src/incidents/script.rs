//! The words of which an incident is written: what really happens, which no contender is told.

use salvor_simulate::Machine;
/// The conditions that make a node sick, and how long each is tolerated. Both contenders have the same ones.
pub(super) use salvor_simulate::peers::{SICK_CONDITIONS as CONDITIONS, SickCondition as Condition};

/// The kubelet says that it is not ready.
pub(super) const NOT_READY: &Condition = &CONDITIONS[0];
/// The kubelet is not heard.
pub(super) const LOST: &Condition = &CONDITIONS[1];
/// The accelerator is broken, or an agent says so.
pub(super) const GPU: &Condition = &CONDITIONS[2];
/// Minutes after which a node that has registered should be ready for pods.
pub(super) const STARTUP: u64 = 30;

/// Why a node is sick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The machine: only another one helps.
    Machine,
    /// Something else, which passes: another machine does not help.
    Elsewhere,
}

/// Something that happens. Nodes are named by their number in the order of their creation.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// The machine of a node breaks.
    Breaks(usize, &'static Condition),
    /// Nodes say that they are sick, and their machines are not.
    Ails(Vec<usize>, &'static Condition),
    /// From now on every node of this pool that comes up ails as well.
    NewOnesAil(&'static str, &'static Condition),
    /// All nodes that ailed so are well.
    Passes(&'static Condition),
    /// One node that ailed so is well.
    Heals(usize, &'static Condition),
    /// All nodes of a zone are lost. New machines come up elsewhere.
    ZoneLost(&'static str, Cause),
    /// The agent of a node writes the sick condition anew, with a lastTransitionTime of now.
    Rewritten(usize, &'static Condition),
    /// The agent of a node restarts, and says for a moment that all is well.
    AgentRestarts(usize, &'static Condition),
    /// Somebody cordons nodes.
    Cordoned(Vec<usize>),
    /// So many nodes more, which stay not Ready for so many minutes after they have registered.
    ScaleUp(Machine, usize, u64),
    /// One node more, which registers, is Ready, and is never initialized.
    NeverInitialized(Machine),
    /// From now on the machine of this node never ends.
    Sticks(usize),
    /// The cloud has machines, or has none.
    Capacity(bool),
}

/// An incident.
pub(super) struct Incident {
    pub(super) name: &'static str,
    /// What happens, for the page.
    pub(super) story: &'static str,
    /// The nodes at its beginning, all of them well.
    pub(super) nodes: Vec<Machine>,
    /// What happens after so many seconds, in order.
    pub(super) events: Vec<(u64, Event)>,
    /// Minutes until everything is counted.
    pub(super) minutes: u64,
}

/// So many machines of a pool, spread over zones.
pub(super) fn pool(name: &str, nodes: usize, zones: &[&str]) -> Vec<Machine> {
    let zones = zones.iter().cycle().take(nodes);
    zones.map(|zone| Machine { pool: name.to_owned(), zone: (*zone).to_owned() }).collect()
}
