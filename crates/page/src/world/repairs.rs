//! Nodes under repair: their states, and the new nodes that replace them.

use std::collections::VecDeque;

use jiff::Timestamp;

use super::{Entry, LOST_KEPT, Lost, Phase, Why, World, shown::Replacement};
use crate::{
    objects::{Node, NodeState, Pod, RepairState},
    timeline::Kind,
};

const KEPT: usize = 20;

impl World {
    /// Adds changes of a node's repair to the timeline. A node that is seen for the first time adds nothing, but may be
    /// a replacement.
    pub(super) fn follow_repair(&mut self, before: Option<Node>, node: &Node, now: Timestamp) {
        // Between two lists, another node may have registered under the same name.
        let before = match before {
            Some(old) if old.uid != node.uid => {
                self.node_went(&old, now);
                None
            }
            before => before,
        };
        if node.state == NodeState::Ready {
            self.node_is_ready(node, now);
        }
        if node.repair_state() == Some(RepairState::Repairing) {
            self.begin_replacement(node, now);
        }
        let Some(before) = before.filter(|old| old.repair_state() != node.repair_state()) else { return };
        if before.repair_state() == Some(RepairState::Repairing) {
            self.take_back(node);
        }
        let Some(repair) = &node.repair else { return };
        // The page already shows the policy next to the node's repair.
        let message = match repair.message.split_once(": ") {
            Some((policy, why)) if policy.starts_with("policy ") => why,
            _ => &repair.message,
        };
        let (kind, about) = match repair.state {
            RepairState::Waiting => (Kind::Sick, message),
            RepairState::Blocked | RepairState::Vetoed => (Kind::NotRepaired, message),
            RepairState::Repaired => (Kind::Healthy, "healthy again after a repair"),
            RepairState::Recovered => (Kind::Healthy, "healthy again by itself"),
            // The timeline already has the writes of the repair.
            RepairState::Rebooting => return,
            RepairState::Repairing => return self.lose_work_of(&node.name, now),
        };
        self.timeline.add(self.version, now, kind, about, &node.name, None);
    }

    fn begin_replacement(&mut self, node: &Node, now: Timestamp) {
        let known = self.replacements.get_or_insert_with(|| Entry { version: 0, value: VecDeque::new() });
        if known.value.iter().any(|it| it.uid == node.uid) {
            return;
        }
        let began = node.repair.as_ref().and_then(|repair| repair.since).unwrap_or(now);
        let (name, uid, pool) = (node.name.clone(), node.uid.clone(), node.pool.clone());
        known.value.push_back(Replacement { node: name, uid, pool, began, by: None, at: now });
        if known.value.len() > KEPT {
            known.value.pop_front();
        }
        known.version = self.version;
    }

    /// The node is not replaced after all. Its pods keep running unless they are already terminating.
    fn take_back(&mut self, node: &Node) {
        if let Some(known) = &mut self.replacements {
            known.value.retain(|it| it.uid != node.uid);
            known.version = self.version;
        }
        self.keep_work_of(&node.name);
    }

    pub(super) fn node_went(&mut self, node: &Node, now: Timestamp) {
        let Some(known) = &mut self.replacements else { return };
        let Some(replacement) = known.value.iter_mut().find(|it| it.uid == node.uid) else { return };
        if replacement.by.is_none() {
            replacement.at = now;
        }
        known.version = self.version;
        self.timeline.add(self.version, now, Kind::NodeGone, "", &node.name, None);
    }

    /// A node became Ready. It replaces another if it was created after that node's repair began.
    fn node_is_ready(&mut self, node: &Node, now: Timestamp) {
        let (Some(known), Some(created)) = (&mut self.replacements, node.created) else { return };
        if known.value.iter().any(|it| it.by.as_ref() == Some(&node.name)) {
            return;
        }
        let is_awaited =
            |it: &&mut Replacement| it.by.is_none() && it.pool == node.pool && it.began <= created;
        let Some(replacement) = known.value.iter_mut().filter(|it| it.pool.is_some()).find(is_awaited) else {
            return;
        };
        replacement.by = Some(node.name.clone());
        replacement.at = now;
        let (old, away) = (replacement.node.clone(), now.duration_since(replacement.began));
        known.version = self.version;
        self.timeline.add(self.version, now, Kind::Replaced, &old, &node.name, Some(away));
    }

    /// A running pod is being deleted. On a sick node this may be the start of its repair, which the node reports only
    /// later.
    pub(super) fn work_ends(&mut self, pod: &Pod, now: Timestamp) {
        let node = pod.node.as_ref().and_then(|node| self.nodes.get(node)).map(|entry| &entry.value.0);
        let Some(node) = node
            .filter(|node| matches!(node.repair_state(), Some(RepairState::Waiting | RepairState::Blocked)))
        else {
            return;
        };
        let node = node.name.clone();
        let of_work = self.lost.entry(pod.work.clone()).or_default();
        if !of_work.iter().any(|lost| lost.uid == pod.uid) {
            of_work.push_back(Lost { uid: pod.uid.clone(), node, at: now, why: Why::Repair });
        }
    }

    pub(super) fn replaced_since(&self, node: &str) -> Option<Timestamp> {
        let all = &self.replacements.as_ref()?.value;
        all.iter().rev().find(|it| it.node == node).map(|it| it.began)
    }

    /// The pods of a node that is being replaced are expected to run elsewhere.
    fn lose_work_of(&mut self, node: &str, now: Timestamp) {
        self.lost.retain(|_, of_work| {
            of_work.retain(|lost| now.duration_since(lost.at) < LOST_KEPT);
            !of_work.is_empty()
        });
        for uid in self.pods_of.get(node).into_iter().flatten() {
            let Some(Entry { value: pod, .. }) = self.pods.get(uid) else { continue };
            if pod.phase != Phase::Running || pod.workload.kind == "DaemonSet" {
                continue;
            }
            let of_work = self.lost.entry(pod.work.clone()).or_default();
            if !of_work.iter().any(|lost| lost.uid == *uid) {
                let node = node.to_owned();
                of_work.push_back(Lost { uid: uid.clone(), node, at: now, why: Why::Repair });
            }
        }
    }

    fn keep_work_of(&mut self, node: &str) {
        for uid in self.pods_of.get(node).into_iter().flatten() {
            let Some(Entry { value: pod, .. }) = self.pods.get(uid) else { continue };
            if pod.deleted.is_some() {
                continue;
            }
            if let Some(of_work) = self.lost.get_mut(&pod.work) {
                of_work.retain(|lost| lost.uid != *uid || lost.why != Why::Repair);
                if of_work.is_empty() {
                    self.lost.remove(&pod.work);
                }
            }
        }
    }
}
