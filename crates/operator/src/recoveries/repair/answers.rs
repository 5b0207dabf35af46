//! Applies completed steps: what the server's answers show, and what is counted.

use jiff::Timestamp;
use salvor_recovery::{
    Step as _,
    objects::NodeRef,
    repair::{Action, End, Ended, Step},
};

use super::{
    Repairs,
    store::owners::MACHINE_VERSIONS,
    subjects::{Key, Subject},
    wire,
};
use crate::{
    client::{revision::Told, wire::read},
    engine::recovery::View,
    execute::Written,
    watch_set::nodes::NodeWire,
};

impl Repairs {
    pub(super) fn done(&mut self, subject: &Subject, step: &Step, answer: &Written, now: Timestamp) -> View {
        if let Subject::Node(name) = subject
            && let Some(node) = self.nodes.get(name)
        {
            self.refused.remove(&node.node.uid.clone());
            if step.is_disruptive() {
                self.braked.remove(&node.node.uid);
            }
        }
        self.count_start(step);
        let text = match answer {
            Written::Object(text) => text.as_str(),
            Written::Nothing => {
                return if step.tells().is_some() { View::Synced } else { View::Lagging };
            }
        };
        match step {
            Step::Report { .. }
            | Step::Tell { .. }
            | Step::RequestReboot { .. }
            | Step::Cordon { .. }
            | Step::Uncordon { .. }
            | Step::PutBack { .. }
            | Step::Forget { .. } => {
                let Ok(wire) = read::<NodeWire>(text) else { return View::Lagging };
                let node = Box::new(self.reader.node(&wire));
                // If the watch reported its deletion before the answer arrived, the node must not come back.
                if !self.uids.contains_key(&node.node.uid) {
                    return View::Lagging;
                }
                if let Some(watch) = &self.node_watch {
                    watch.saw(node.resource_version.revision());
                }
                self.see_node(node, Told::Alone, now);
                View::Synced
            }
            Step::TightenTermination { .. } | Step::TakeBackTermination { .. } => {
                let Ok(claim) = read(text).map(|wire| self.reader.claim(wire)) else { return View::Lagging };
                self.claims.take(claim);
                self.generation += 1;
                View::Synced
            }
            Step::RemediateMachine { machine, .. } => {
                let version = usize::from(machine.kind.version != MACHINE_VERSIONS[0]);
                let Ok(wire) = read(text) else { return View::Lagging };
                self.machines[version].take(self.reader.machine(wire, MACHINE_VERSIONS[version]));
                self.generation += 1;
                View::Synced
            }
            Step::KeepNode { .. } | Step::ForgetNode { .. } => {
                let policy = read::<serde_json::Value>(text).ok().and_then(|object| wire::policy(&object));
                let Some(policy) = policy else { return View::Lagging };
                self.policies.take(policy, Told::Alone);
                self.generation += 1;
                View::Synced
            }
            Step::WritePolicy { over, .. } => {
                let Subject::Policy(key) = subject else { return View::Lagging };
                self.written.insert(key.clone(), now);
                self.count_ends(key, over, now);
                let frees = self.frees;
                for Ended { repair, .. } in over.iter().filter(|_| frees) {
                    let node = NodeRef { name: repair.node.clone(), uid: repair.uid.clone() };
                    if let Some(owner) =
                        repair.owner.as_ref().filter(|_| !self.nodes.contains_key(&node.name))
                    {
                        self.pods_on_nodes.bury(node, owner, now);
                    }
                }
                // The watch delivers it, and thereby requeues the nodes that have their turn now.
                View::Lagging
            }
            Step::FailPod { .. } => {
                let (Subject::Pod(subject), Ok(pod)) = (subject, read(text).map(|it| self.reader.pod(it)))
                else {
                    return View::Lagging;
                };
                self.pods_on_nodes.saw(&subject.node, pod);
                View::Synced
            }
            Step::DeleteOwner { .. }
            | Step::DeleteNode { .. }
            | Step::EvictPod { .. }
            | Step::ForceDeletePod { .. } => View::Lagging,
            Step::Mention(_) => View::Synced,
        }
    }

    fn count_start(&self, step: &Step) {
        let (action, begun) = match step {
            Step::DeleteOwner { begun, .. } | Step::RemediateMachine { begun, .. } => {
                (Action::Replace.to_string(), begun)
            }
            Step::Cordon { begun, .. } => ("Drain".to_owned(), begun),
            Step::DeleteNode { begun, .. } => ("DeleteNode".to_owned(), begun),
            Step::RequestReboot { begun, .. } => (Action::Reboot.to_string(), begun),
            Step::Report { .. }
            | Step::Tell { .. }
            | Step::WritePolicy { .. }
            | Step::TightenTermination { .. }
            | Step::TakeBackTermination { .. }
            | Step::Uncordon { .. }
            | Step::Forget { .. }
            | Step::KeepNode { .. }
            | Step::ForgetNode { .. }
            | Step::PutBack { .. }
            | Step::EvictPod { .. }
            | Step::FailPod { .. }
            | Step::ForceDeletePod { .. }
            | Step::Mention(_) => return,
        };
        self.metrics.started(&begun.policy, &action, &begun.condition);
    }

    fn count_ends(&self, key: &Key, over: &[Ended], now: Timestamp) {
        let Some(policy) = self.policy(key) else { return };
        for Ended { repair, end } in over {
            let action = match end {
                End::Replaced => Action::Replace.to_string(),
                End::Rebooted => Action::Reboot.to_string(),
                // Its machine was not touched.
                End::NodeGone => continue,
            };
            let seconds = repair.sick.map(|sick| now.duration_since(sick).as_secs_f64());
            self.metrics.repaired(&policy.name(), &action, seconds);
        }
    }
}
