//! Describes what happens to nodes, for display.

use super::{Deed, Fault, raise::ACCELERATOR_WORKS};

/// A line names at most this many nodes.
const NAMED: usize = 4;

impl Deed {
    pub fn told(&self, nodes: &[String]) -> String {
        let names = some_of(nodes);
        let is = if nodes.len() == 1 { "is" } else { "are" };
        match self {
            Self::Fault(Fault::Crash) => format!("{names} {is} switched off"),
            Self::Fault(Fault::Partition) => format!("{names} {is} cut off"),
            Self::Fault(Fault::KubeletStop) => format!("The kubelet of {names} stops"),
            Self::Fault(Fault::Slow(_)) => format!("{names} {is} slow"),
            Self::Fault(Fault::Flapping { .. }) => format!("The network of {names} comes and goes"),
            Self::Fault(Fault::Sick(condition)) if condition.kind == ACCELERATOR_WORKS => {
                format!("The accelerator of {names} fails")
            }
            Self::Fault(Fault::Sick(condition)) => {
                format!("{names} {is} sick: {} is {}", condition.kind, condition.status)
            }
            Self::Fault(Fault::Reboot) => format!("{names} {is} restarted"),
            Self::Heal => format!("{names} {is} healed"),
        }
    }
}

/// The first names, and the number of the others.
fn some_of(nodes: &[String]) -> String {
    let shown = &nodes[..nodes.len().min(NAMED)];
    match nodes.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Condition, accelerator_condition};

    #[test]
    fn a_line_does_not_list_a_hundred_nodes() {
        let nodes = |count: usize| (1..=count).map(|n| format!("n{n}")).collect::<Vec<_>>();
        assert_eq!(some_of(&nodes(1)), "n1");
        assert_eq!(some_of(&nodes(4)), "n1, n2, n3, n4");
        assert_eq!(some_of(&nodes(5)), "n1, n2, n3, n4 and 1 more");
        assert_eq!(some_of(&nodes(100)), "n1, n2, n3, n4 and 96 more");
    }

    #[test]
    fn a_sick_node_is_told_with_its_condition() {
        let one = ["n1".to_owned()];
        let told = |condition| Deed::Fault(Fault::Sick(condition)).told(&one);
        assert_eq!(told(accelerator_condition()), "The accelerator of n1 fails");
        let disk = Condition { kind: "DiskReady".into(), status: "False".into(), reason: "x".into() };
        assert_eq!(told(disk), "n1 is sick: DiskReady is False");
    }
}
