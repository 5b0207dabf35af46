//! Owners and dependents as the collector sees them, one change after the other.

use std::sync::Arc;

use super::*;
use crate::world::collection::Resource;
use crate::world::served::Served;
use crate::world::views::Bare;

struct Stage {
    control: GarbageCollector,
    world: World,
    revision: u64,
    served: Vec<Arc<Resource>>,
}

impl Stage {
    /// A cluster that serves ConfigMaps and PriorityClasses.
    fn new() -> Self {
        let mut stage = Self {
            control: GarbageCollector::default(),
            world: World::default(),
            revision: 0,
            served: Vec::new(),
        };
        for kind in Kind::WATCHED {
            stage.world.saw(kind, 1);
        }
        stage.serve(&[
            ("configmaps", "ConfigMap", "Namespaced"),
            ("priorityclasses", "PriorityClass", "Cluster"),
        ]);
        stage
    }

    fn serve(&mut self, resources: &[(&str, &str, &str)]) {
        let resources: Vec<Value> = resources
            .iter()
            .map(|(plural, kind, scope)| {
                json!({ "resource": plural, "responseKind": { "kind": kind }, "scope": scope, "verbs": ["list", "watch"] })
            })
            .collect();
        let document = json!({ "items": [{ "versions": [{ "version": "v1", "resources": resources }] }] });
        let served = Served::read("/api", document);
        let known = std::mem::replace(&mut self.served, served.others().cloned().collect());
        self.world.serve(served);
        for resource in self.served.iter().filter(|resource| !known.contains(resource)) {
            self.world.replace_others(resource, Vec::new());
        }
        self.control.observe(&Change::Served);
    }

    fn resource(&self, plural: &str) -> Arc<Resource> {
        self.served.iter().find(|resource| resource.plural == plural).unwrap().clone()
    }

    /// Adds or changes an object. Its UID is its name.
    #[expect(clippy::needless_pass_by_value, reason = "calls read as the JSON they mean")]
    fn put(&mut self, plural: &str, name: &str, owners: &[&str], rest: Value) {
        self.revision += 1;
        let references: Vec<Value> = owners.iter().map(|owner| reference(owner)).collect();
        let mut metadata = json!({
            "name": name, "uid": name, "resourceVersion": self.revision.to_string(), "ownerReferences": references,
        });
        if plural != "priorityclasses" {
            metadata["namespace"] = json!("d");
        }
        for (key, value) in rest.as_object().unwrap() {
            metadata[key] = value.clone();
        }
        let object: Bare = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        let resource = self.resource(plural);
        for delta in self.world.put_other(&resource, object) {
            self.control.observe(&Change::Other(resource.clone(), delta));
        }
    }

    fn config(&mut self, name: &str, owners: &[&str]) {
        self.put("configmaps", name, owners, json!({}));
    }

    fn remove(&mut self, name: &str) {
        let resource = self.resource("configmaps");
        let gone = Meta { name: name.to_owned(), namespace: "d".to_owned(), ..Meta::default() };
        for delta in self.world.remove_other(&resource, &gone) {
            self.control.observe(&Change::Other(resource.clone(), delta));
        }
    }

    /// The errands that are run now.
    fn done(&mut self) -> Vec<String> {
        let plan = self.control.decide(&self.world, Timestamp::UNIX_EPOCH);
        plan.errands.into_iter().flat_map(|errand| errand.calls).map(|call| shown(&call)).collect()
    }
}

/// `name` blocks its owner, `name?` does not.
fn reference(owner: &str) -> Value {
    let name = owner.trim_end_matches('?');
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": name, "blockOwnerDeletion": owner == name })
}

fn shown(call: &Call) -> String {
    match call {
        Call::Collect { seen, propagation } => format!("{propagation:?} {}", seen.name),
        Call::Amend { seen, metadata } => {
            let mut changes: Vec<String> = Vec::new();
            if let Some(owners) = metadata.get("ownerReferences") {
                let owner = |owner: &Value| {
                    let soft = if owner["blockOwnerDeletion"] == json!(true) { "" } else { "?" };
                    format!("{}{soft}", owner["name"].as_str().unwrap())
                };
                let owners: Vec<String> = owners.as_array().into_iter().flatten().map(owner).collect();
                changes.push(format!("owners {}", owners.join(",")));
            }
            if let Some(finalizers) = metadata.get("finalizers") {
                changes.push(format!("finalizers {finalizers}"));
            }
            format!("{}: {}", seen.name, changes.join(", "))
        }
        Call::ExpectGone { collection, namespace, name, .. } => {
            format!("unless {}/{name}", collection.path(namespace))
        }
        other => panic!("{other:?} is none of its calls"),
    }
}

fn going(finalizers: &[&str]) -> Value {
    json!({ "deletionTimestamp": "2024-01-01T00:00:00Z", "finalizers": finalizers })
}

#[test]
fn what_has_lost_its_owner_goes() {
    let mut stage = Stage::new();
    stage.config("owner", &[]);
    stage.config("dependent", &["owner"]);
    assert_eq!(stage.done(), Vec::<String>::new());
    stage.remove("owner");
    assert_eq!(stage.done(), ["Background dependent"]);
    stage.control.again("dependent");
    assert_eq!(stage.done(), ["Background dependent"], "until it is seen to go");
    stage.put("configmaps", "dependent", &["owner"], going(&["example.com/hold"]));
    assert_eq!(stage.done(), Vec::<String>::new(), "that is for others to end");
    stage.remove("dependent");
    assert!(stage.control.spots.is_empty() && stage.control.dependents.is_empty());
    assert!(stage.control.gone.is_empty(), "nobody names it any more");
}

#[test]
fn an_owner_that_was_never_seen_is_looked_for() {
    let mut stage = Stage::new();
    stage.config("dependent", &["nobody"]);
    assert_eq!(stage.done(), ["unless /api/v1/namespaces/d/configmaps/nobody", "Background dependent"]);
    // The event was only late.
    stage.config("nobody", &[]);
    stage.control.again("dependent");
    assert_eq!(stage.done(), Vec::<String>::new());
}

#[test]
fn another_object_of_the_same_name_is_not_the_owner() {
    let mut stage = Stage::new();
    stage.put("configmaps", "owner", &[], json!({ "uid": "other" }));
    stage.config("dependent", &["owner"]);
    assert_eq!(stage.done(), ["unless /api/v1/namespaces/d/configmaps/owner", "Background dependent"]);
}

#[test]
fn one_owner_is_enough_and_the_others_are_forgotten() {
    let mut stage = Stage::new();
    stage.config("a", &[]);
    stage.config("b", &[]);
    stage.config("both", &["a", "b?"]);
    stage.remove("a");
    assert_eq!(stage.done(), ["both: owners b?"]);
    stage.config("both", &["b?"]);
    assert_eq!(stage.done(), Vec::<String>::new());
    stage.remove("b");
    assert_eq!(stage.done(), ["Background both"]);
}

#[test]
fn whoever_is_kept_by_one_owner_does_not_hold_up_another() {
    let mut stage = Stage::new();
    stage.config("a", &[]);
    stage.put("configmaps", "b", &[], going(&[FOREGROUND]));
    stage.config("both", &["a", "b"]);
    assert_eq!(stage.done(), ["both: owners a"], "b waits as long as it is named");
    stage.config("both", &["a"]);
    assert_eq!(stage.done(), ["b: finalizers null"]);
}

#[test]
fn an_owner_in_the_foreground_goes_after_those_that_block_it() {
    let mut stage = Stage::new();
    stage.config("owner", &[]);
    stage.config("blocks", &["owner"]);
    stage.config("does-not", &["owner?"]);
    stage.config("has-its-own", &["owner"]);
    stage.config("below", &["has-its-own"]);
    stage.done();
    stage.put("configmaps", "owner", &[], going(&["example.com/first", FOREGROUND]));
    assert_eq!(stage.done(), ["Background blocks", "Background does-not", "Foreground has-its-own"]);
    stage.remove("blocks");
    stage.put("configmaps", "has-its-own", &["owner"], going(&[FOREGROUND]));
    assert_eq!(stage.done(), ["Background below"]);
    stage.remove("below");
    assert_eq!(stage.done(), ["has-its-own: finalizers null"]);
    stage.remove("has-its-own");
    assert_eq!(stage.done(), ["owner: finalizers [\"example.com/first\"]"], "does-not is there still");
}

#[test]
fn orphans_forget_their_owner_before_it_goes() {
    let mut stage = Stage::new();
    stage.config("owner", &[]);
    stage.config("one", &["owner"]);
    stage.config("two", &["other", "owner"]);
    stage.config("other", &[]);
    stage.put("configmaps", "owner", &[], going(&[ORPHAN]));
    assert_eq!(stage.done(), ["one: owners ", "two: owners other"]);
    stage.config("one", &[]);
    stage.config("two", &["other"]);
    assert_eq!(stage.done(), ["owner: finalizers null"]);
    stage.remove("owner");
    assert_eq!(stage.done(), Vec::<String>::new());
}

#[test]
fn a_dependents_own_finalizers_say_what_becomes_of_its_dependents() {
    for (finalizer, expected) in [(ORPHAN, "Orphan d"), (FOREGROUND, "Foreground d"), ("a/b", "Background d")]
    {
        let mut stage = Stage::new();
        stage.config("owner", &[]);
        stage.put("configmaps", "d", &["owner"], json!({ "finalizers": [finalizer] }));
        stage.remove("owner");
        assert_eq!(stage.done(), [expected]);
    }
}

#[test]
fn two_that_own_each_other_do_not_wait_for_ever() {
    let mut stage = Stage::new();
    stage.config("a", &["b"]);
    stage.config("b", &["a"]);
    assert_eq!(stage.done(), Vec::<String>::new());
    stage.put("configmaps", "a", &["b"], going(&[FOREGROUND]));
    assert_eq!(stage.done(), ["b: owners a?"]);
    stage.config("b", &["a?"]);
    assert_eq!(stage.done(), ["a: finalizers null", "Foreground b"]);
}

#[test]
fn owners_of_kinds_that_are_not_served_are_waited_for() {
    let mut stage = Stage::new();
    let odd = json!({ "ownerReferences": [{ "apiVersion": "v1", "kind": "Odd", "name": "o", "uid": "o" }] });
    stage.put("configmaps", "dependent", &[], odd);
    stage.put("priorityclasses", "of-the-cluster", &["owner"], json!({}));
    assert_eq!(
        stage.done(),
        Vec::<String>::new(),
        "nor does an object of the cluster say in which namespace"
    );
    stage.serve(&[
        ("configmaps", "ConfigMap", "Namespaced"),
        ("priorityclasses", "PriorityClass", "Cluster"),
        ("odds", "Odd", "Namespaced"),
    ]);
    assert_eq!(stage.done(), ["unless /api/v1/namespaces/d/odds/o", "Background dependent"]);
}

#[test]
fn what_is_served_no_more_holds_nobody_up() {
    let mut stage = Stage::new();
    stage.serve(&[("configmaps", "ConfigMap", "Namespaced"), ("odds", "Odd", "Namespaced")]);
    stage.config("owner", &[]);
    stage.put("odds", "odd", &["owner"], json!({}));
    stage.put("configmaps", "owner", &[], going(&[FOREGROUND]));
    assert_eq!(stage.done(), ["Background odd"]);
    stage.serve(&[("configmaps", "ConfigMap", "Namespaced")]);
    assert_eq!(stage.done(), ["owner: finalizers null"]);
}

#[test]
fn nobody_is_judged_before_everything_is_known() {
    let mut stage = Stage::new();
    stage.config("dependent", &["nobody"]);
    let odd = json!({ "items": [{ "versions": [{ "version": "v1", "resources": [
        { "resource": "configmaps", "responseKind": { "kind": "ConfigMap" }, "scope": "Namespaced", "verbs": ["list", "watch"] },
        { "resource": "odds", "responseKind": { "kind": "Odd" }, "scope": "Namespaced", "verbs": ["list", "watch"] },
    ] }] }] });
    let served = Served::read("/api", odd);
    let odds = served.others().find(|resource| resource.plural == "odds").unwrap().clone();
    stage.world.serve(served);
    assert_eq!(stage.done(), Vec::<String>::new());
    stage.world.replace_others(&odds, Vec::new());
    assert_eq!(stage.done().len(), 2, "what was to be judged is judged then");
}

#[test]
fn changes_that_are_none_of_its_business_cost_nothing() {
    let mut stage = Stage::new();
    stage.config("owner", &[]);
    stage.config("dependent", &["owner"]);
    stage.config("alone", &[]);
    stage.done();
    for _ in 0..3 {
        stage.config("owner", &[]);
        stage.config("dependent", &["owner"]);
        stage.config("alone", &[]);
    }
    stage.remove("alone");
    assert!(stage.control.queue.take(Timestamp::UNIX_EPOCH).is_empty());
    assert_eq!(stage.control.spots.keys().collect::<Vec<_>>(), ["dependent"]);
}
