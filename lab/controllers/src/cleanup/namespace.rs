//! Namespaces that are being deleted: empties them and removes their finalizer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::emptying::FINALIZER;
use crate::driver::{Control, Errand, Plan};
use crate::world::collection::Kind;
use crate::world::views::Namespace;
use crate::world::{Change, World};

/// The delay between a change of a namespace and its reconcile, so that all servers see objects created at the last
/// moment. The real controller has the same.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    /// When each is reconciled.
    due: BTreeMap<String, Timestamp>,
    changed: BTreeSet<String>,
}

impl Namespaces {
    /// The earlier of two times wins.
    fn at(&mut self, name: &str, at: Timestamp) {
        let due = self.due.entry(name.to_owned()).or_insert(at);
        *due = at.min(*due);
    }
}

fn is_ours(namespace: &Namespace) -> bool {
    let finalizers = &namespace.spec.finalizers;
    namespace.metadata.is_terminating() && finalizers.iter().any(|finalizer| finalizer == FINALIZER)
}

impl Control for Namespaces {
    fn follows(&self) -> &'static [Kind] {
        &[Kind::Namespace]
    }

    fn observe(&mut self, change: &Change) {
        if let Change::Namespace(delta) = change
            && let Some(namespace) = &delta.new
            && is_ours(namespace)
        {
            self.changed.insert(namespace.metadata.name.clone());
        }
    }

    fn again(&mut self, subject: &str) {
        self.at(subject, Timestamp::MIN);
    }

    fn later(&mut self, subject: &str, at: Timestamp) {
        self.at(subject, at);
    }

    fn decide(&mut self, world: &World, now: Timestamp) -> Plan {
        for name in std::mem::take(&mut self.changed) {
            self.at(&name, now + GRACE);
        }
        let due: Vec<String> = self.due.extract_if(.., |_, at| *at <= now).map(|(name, _)| name).collect();
        let errands = due
            .iter()
            .filter(|name| world.namespaces.get(name).is_some_and(|namespace| is_ours(namespace)))
            .map(|name| Errand::emptying(name));
        Plan { errands: errands.collect(), wake: self.due.values().min().copied() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// The namespaces that are emptied at a time, after those that changed.
    fn emptied(
        control: &mut Namespaces,
        world: &mut World,
        changed: impl IntoIterator<Item = Value>,
        now: i64,
    ) -> (Vec<String>, Option<i64>) {
        for object in changed {
            for change in world.with(Kind::Namespace, |w| &mut w.namespaces, Change::Namespace, object) {
                control.observe(&change);
            }
        }
        let plan = control.decide(world, at(now));
        let names = plan.errands.into_iter().filter_map(|errand| errand.empties).collect();
        (names, plan.wake.map(Timestamp::as_second))
    }

    fn namespace(revision: u32, terminating: bool, finalizers: &[&str]) -> Value {
        let mut object = json!({
            "metadata": {"name": "n", "uid": "n", "resourceVersion": revision.to_string()},
            "spec": {"finalizers": finalizers},
        });
        if terminating {
            object["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
        }
        object
    }

    #[test]
    fn a_namespace_is_emptied_five_seconds_after_it_changed_and_when_its_content_is_due() {
        let (mut control, mut world) = (Namespaces::default(), World::default());
        let nobody: (Vec<String>, Option<i64>) = (Vec::new(), None);
        let alive = namespace(1, false, &["kubernetes"]);
        assert_eq!(emptied(&mut control, &mut world, [alive], 0), nobody);
        let marked = namespace(2, true, &["kubernetes"]);
        assert_eq!(emptied(&mut control, &mut world, [marked], 1), (Vec::new(), Some(6)));
        assert_eq!(emptied(&mut control, &mut world, [], 6), (vec!["n".to_owned()], None));
        control.later("n", at(22));
        let said_why = namespace(3, true, &["kubernetes"]);
        assert_eq!(emptied(&mut control, &mut world, [said_why], 6), (Vec::new(), Some(11)));
        assert_eq!(emptied(&mut control, &mut world, [], 11), (vec!["n".to_owned()], None));
        control.again("n");
        assert_eq!(emptied(&mut control, &mut world, [], 12), (vec!["n".to_owned()], None));
        control.later("n", at(20));
        let empty = namespace(4, true, &["example.com/others"]);
        assert_eq!(emptied(&mut control, &mut world, [empty], 20), nobody, "the rest is for others to do");
    }
}
