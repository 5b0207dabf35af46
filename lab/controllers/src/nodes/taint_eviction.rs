//! Taint eviction: deletes pods from a node with a `NoExecute` taint that they do not tolerate, now or when their
//! toleration ends.

use std::collections::BTreeMap;

use jiff::Timestamp;
use salvor_apiserver::object;
use serde_json::json;

use super::taints::{Stay, stay};
use crate::calls::{Call, Note, Part, Ref};
use crate::driver::{Control, Errand, Plan, Queue};
use crate::world::collection::Kind;
use crate::world::views::{Node, Pod};
use crate::world::{Change, World};

const COMPONENT: &str = "taint-eviction-controller";

/// When a pod's toleration began, and when it ends.
#[derive(Debug, Clone, Copy)]
struct Patience {
    since: Timestamp,
    until: Timestamp,
}

#[derive(Debug, Default)]
pub(crate) struct TaintEviction {
    queue: Queue,
    /// Nodes whose taints have changed: all their pods are reconciled.
    nodes: std::collections::BTreeSet<String>,
    patience: BTreeMap<String, Patience>,
}

impl Control for TaintEviction {
    fn follows(&self) -> &'static [Kind] {
        &[Kind::Pod, Kind::Node]
    }

    fn observe(&mut self, change: &Change) {
        match change {
            Change::Pod(delta) => {
                if let (Some(old), None) = (&delta.old, &delta.new) {
                    self.patience.remove(&old.metadata.uid);
                } else if let Some(pod) = &delta.new
                    && pod.is_bound()
                    && delta.old.as_ref().is_none_or(|old| {
                        old.spec.node_name != pod.spec.node_name
                            || old.spec.tolerations != pod.spec.tolerations
                    })
                {
                    self.queue.add(pod.metadata.key());
                }
            }
            Change::Node(delta) => {
                let taints = |node: Option<&std::sync::Arc<Node>>| {
                    node.map(|node| node.spec.taints.clone()).unwrap_or_default()
                };
                if taints(delta.old.as_ref()) != taints(delta.new.as_ref())
                    && let Some(node) = delta.last()
                {
                    self.nodes.insert(node.metadata.name.clone());
                }
            }
            _ => {}
        }
    }

    fn again(&mut self, subject: &str) {
        self.queue.add(subject);
    }

    fn decide(&mut self, world: &World, now: Timestamp) -> Plan {
        for node in std::mem::take(&mut self.nodes) {
            for pod in world.pods_on(&node) {
                self.queue.add(pod.metadata.key());
            }
        }
        let mut errands = Vec::new();
        for subject in self.queue.take(now) {
            let Some(pod) = world.pods.get(&subject) else { continue };
            let Some(node) = world.nodes.get(&pod.spec.node_name) else { continue };
            if pod.metadata.is_terminating() {
                self.patience.remove(&pod.metadata.uid);
                continue;
            }
            match self.judge(pod, stay(&node.spec.taints, &pod.spec.tolerations), now) {
                Verdict::Stays => {}
                Verdict::Waits(until) => self.queue.at(until, &subject),
                Verdict::Goes => errands.push(Errand::new(subject, evict(pod, now))),
            }
        }
        Plan { errands, wake: self.queue.wake() }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Stays,
    Waits(Timestamp),
    Goes,
}

impl TaintEviction {
    /// A toleration counts from the moment at which a pod was first seen under the taint, not from the taint's own
    /// time: it starts again when the loop does. Later changes can only shorten it.
    fn judge(&mut self, pod: &Pod, stay: Stay, now: Timestamp) -> Verdict {
        let uid = &pod.metadata.uid;
        let known = self.patience.get(uid).copied();
        let patience = match (stay, known) {
            (Stay::Untouched, _) => {
                self.patience.remove(uid);
                return Verdict::Stays;
            }
            (Stay::No, _) => return Verdict::Goes,
            (Stay::Forever, None) => return Verdict::Stays,
            (Stay::Forever, Some(known)) => known,
            (Stay::For(limit), None) => Patience { since: now, until: now + limit },
            (Stay::For(limit), Some(known)) => {
                Patience { since: known.since, until: known.until.min(known.since + limit) }
            }
        };
        if patience.until <= now {
            return Verdict::Goes;
        }
        self.patience.insert(uid.clone(), patience);
        Verdict::Waits(patience.until)
    }
}

/// Records an event, sets the condition, and deletes the pod.
fn evict(pod: &Pod, now: Timestamp) -> Vec<Call> {
    let of = Ref::to(Kind::Pod, pod);
    let note = Note {
        // Like kube-controller-manager: by name only.
        about: Ref { uid: String::new(), ..of.clone() },
        component: COMPONENT,
        severity: "Normal",
        reason: "TaintManagerEviction",
        message: format!("Marking for deletion Pod {}", pod.metadata.key()),
    };
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
        "message": "Taint manager: deleting due to NoExecute taint",
        "lastTransitionTime": object::time(now),
    });
    let mut calls = vec![Call::Event(note)];
    if pod.condition("DisruptionTarget").is_none_or(|known| known.status != "True") {
        let body = json!({ "status": { "conditions": [condition] } });
        calls.push(Call::Patch { of: of.clone(), part: Part::Status, body });
    }
    calls.push(Call::Delete { of, grace: None });
    calls
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    struct Stage {
        control: TaintEviction,
        world: World,
        now: Timestamp,
    }

    impl Stage {
        fn new() -> Self {
            let mut stage = Self {
                control: TaintEviction::default(),
                world: World::default(),
                now: Timestamp::UNIX_EPOCH,
            };
            stage.taints(1, json!([]));
            stage
        }

        #[expect(clippy::needless_pass_by_value, reason = "calls read as the JSON they mean")]
        fn taints(&mut self, revision: u64, taints: Value) {
            let node = json!({"metadata": {"name": "n", "resourceVersion": revision.to_string()}, "spec": {"taints": taints}});
            for change in self.world.with(Kind::Node, |w| &mut w.nodes, Change::Node, node) {
                self.control.observe(&change);
            }
        }

        #[expect(clippy::needless_pass_by_value, reason = "calls read as the JSON they mean")]
        fn pod(&mut self, name: &str, tolerations: Value) {
            let pod = json!({"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": {"nodeName": "n", "tolerations": tolerations}});
            for change in self.world.with(Kind::Pod, |w| &mut w.pods, Change::Pod, pod) {
                self.control.observe(&change);
            }
        }

        /// The pods that are evicted after this many seconds, and the next wake-up of the loop.
        fn after(&mut self, seconds: i64) -> (Vec<String>, Option<i64>) {
            self.now += jiff::SignedDuration::from_secs(seconds);
            let plan = self.control.decide(&self.world, self.now);
            let gone = plan.errands.into_iter().map(|errand| errand.subject).collect();
            (gone, plan.wake.map(Timestamp::as_second))
        }
    }

    fn lost() -> Value {
        json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}])
    }

    fn patient(seconds: i64) -> Value {
        json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}])
    }

    #[test]
    fn pods_leave_when_their_patience_ends_and_not_before() {
        let mut stage = Stage::new();
        stage.pod("now", json!([]));
        stage.pod("soon", patient(10));
        stage.pod("later", patient(300));
        stage.pod("never", json!([{"operator": "Exists"}]));
        assert_eq!(stage.after(1), (vec![], None));
        stage.taints(2, lost());
        assert_eq!(stage.after(1), (vec!["d/now".to_owned()], Some(12)));
        assert_eq!(stage.after(9), (vec![], Some(12)));
        assert_eq!(stage.after(1), (vec!["d/soon".to_owned()], Some(302)));
        assert_eq!(stage.after(290), (vec!["d/later".to_owned()], None));
    }

    #[test]
    fn a_node_that_heals_keeps_its_pods_and_a_second_loss_begins_anew() {
        let mut stage = Stage::new();
        stage.pod("p", patient(300));
        stage.taints(2, lost());
        assert_eq!(stage.after(0), (vec![], Some(300)));
        stage.taints(3, json!([]));
        assert_eq!(stage.after(200).0, Vec::<String>::new());
        stage.taints(4, lost());
        assert_eq!(stage.after(150).0, Vec::<String>::new());
        assert_eq!(stage.after(299).0, Vec::<String>::new());
        assert_eq!(stage.after(1).0, ["d/p"]);
    }

    #[test]
    fn a_shorter_toleration_pulls_the_end_in_and_a_longer_one_does_not_push_it_out() {
        let mut stage = Stage::new();
        stage.pod("p", patient(100));
        stage.taints(2, lost());
        assert_eq!(stage.after(0), (vec![], Some(100)));
        let tolerant = |seconds| stage_pod(seconds);
        for change in stage.world.with(Kind::Pod, |w| &mut w.pods, Change::Pod, tolerant(50)) {
            stage.control.observe(&change);
        }
        assert_eq!(stage.after(20).1, Some(50), "from the first sight on");
        assert_eq!(stage.after(30).0, ["d/p"]);
    }

    fn stage_pod(seconds: i64) -> Value {
        json!({"metadata": {"name": "p", "namespace": "d", "uid": "p", "resourceVersion": seconds.to_string()},
               "spec": {"nodeName": "n", "tolerations": patient(seconds)}})
    }

    #[test]
    fn an_eviction_says_marks_and_deletes_in_this_order() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}})).unwrap();
        let calls = evict(&pod, Timestamp::UNIX_EPOCH);
        assert!(matches!(&calls[0], Call::Event(note) if note.reason == "TaintManagerEviction"));
        assert!(matches!(&calls[1], Call::Patch { part: Part::Status, .. }));
        assert!(matches!(&calls[2], Call::Delete { grace: None, of } if of.uid == "u"));
    }
}
