//! Terminating pods without consent: nothing is done about them, but they are counted while their node is lost. Nothing
//! else is kept of them.

use std::collections::{BTreeMap, BTreeSet};

use salvor_recovery::ids::{NodeName, Uid};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnconsentedPod {
    pub(super) uid: Uid,
    pub(super) node: NodeName,
}

/// All of them, and how many are stuck.
#[derive(Debug, Default)]
pub(super) struct UnconsentedPods {
    node_of: BTreeMap<Uid, NodeName>,
    on_node: BTreeMap<NodeName, usize>,
    lost: BTreeSet<NodeName>,
    stuck: usize,
}

impl UnconsentedPods {
    /// The number on nodes that are lost.
    pub(super) fn stuck(&self) -> usize {
        self.stuck
    }

    pub(super) fn insert(&mut self, UnconsentedPod { uid, node }: UnconsentedPod) {
        if self.node_of.get(&uid) == Some(&node) {
            return;
        }
        self.remove(&uid);
        *self.on_node.entry(node.clone()).or_default() += 1;
        self.stuck += usize::from(self.lost.contains(&node));
        self.node_of.insert(uid, node);
    }

    pub(super) fn remove(&mut self, uid: &Uid) {
        let Some(node) = self.node_of.remove(uid) else { return };
        self.stuck = self.stuck.saturating_sub(usize::from(self.lost.contains(&node)));
        if let Some(number) = self.on_node.get_mut(&node) {
            *number = number.saturating_sub(1);
            if *number == 0 {
                self.on_node.remove(&node);
            }
        }
    }

    pub(super) fn retain(&mut self, present: &BTreeSet<Uid>) {
        let gone: Vec<Uid> = self.node_of.keys().filter(|uid| !present.contains(*uid)).cloned().collect();
        for uid in gone {
            self.remove(&uid);
        }
    }

    /// Records whether a node is lost; a deleted node is not.
    pub(super) fn see_node(&mut self, name: &NodeName, is_lost: bool) {
        let number = self.on_node.get(name).copied().unwrap_or(0);
        if is_lost {
            if self.lost.insert(name.clone()) {
                self.stuck += number;
            }
        } else if self.lost.remove(name) {
            self.stuck = self.stuck.saturating_sub(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_stuck_while_their_node_is_lost() {
        let mut all = UnconsentedPods::default();
        let unconsented_pod = |uid: &str, node: &str| UnconsentedPod { uid: uid.into(), node: node.into() };
        let (a, b): (NodeName, NodeName) = ("a".into(), "b".into());
        all.insert(unconsented_pod("1", "a"));
        all.insert(unconsented_pod("1", "a"));
        all.insert(unconsented_pod("2", "b"));
        assert_eq!(all.stuck(), 0);
        all.see_node(&a, true);
        all.see_node(&a, true);
        assert_eq!(all.stuck(), 1);
        all.insert(unconsented_pod("3", "a"));
        all.see_node(&b, true);
        assert_eq!(all.stuck(), 3);
        all.remove(&"1".into());
        all.remove(&"1".into());
        assert_eq!(all.stuck(), 2);
        all.see_node(&b, false);
        assert_eq!(all.stuck(), 1);
        all.retain(&BTreeSet::new());
        assert_eq!((all.stuck(), all.node_of.len(), all.on_node.len()), (0, 0, 0));
        all.insert(unconsented_pod("4", "a"));
        assert_eq!(all.stuck(), 1);
    }
}
