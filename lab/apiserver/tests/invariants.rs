//! Whatever clients do, in whatever order: revisions grow, a replayed watch equals a list, finalizers block removal,
//! and no update is lost.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;

use bytes::Bytes;
use http::Method;
use proptest::{prelude::*, test_runner::RngSeed};
use salvor_apiserver::{Core, Environment, Request, Response};
use serde_json::{Value, json};

/// One action of a client on one of a few objects.
#[derive(Debug, Clone)]
enum Step {
    Create {
        name: u8,
        finalizer: bool,
    },
    Write {
        name: u8,
        value: u8,
    },
    StaleWrite {
        name: u8,
        value: u8,
    },
    Label {
        name: u8,
        web: bool,
    },
    /// Increments a number, based on a read now or on a read when the object was created.
    Count {
        name: u8,
        from_memory: bool,
    },
    Delete {
        name: u8,
        forced: bool,
    },
    Release {
        name: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..4_u8;
    prop_oneof![
        (name.clone(), any::<bool>()).prop_map(|(name, finalizer)| Step::Create { name, finalizer }),
        (name.clone(), 0..3_u8).prop_map(|(name, value)| Step::Write { name, value }),
        (name.clone(), 0..3_u8).prop_map(|(name, value)| Step::StaleWrite { name, value }),
        (name.clone(), any::<bool>()).prop_map(|(name, web)| Step::Label { name, web }),
        (name.clone(), any::<bool>()).prop_map(|(name, from_memory)| Step::Count { name, from_memory }),
        (name.clone(), any::<bool>()).prop_map(|(name, forced)| Step::Delete { name, forced }),
        name.prop_map(|name| Step::Release { name }),
    ]
}

struct World {
    core: Core,
    rng: fastrand::Rng,
    now: jiff::Timestamp,
}

impl World {
    fn new() -> Self {
        let mut rng = fastrand::Rng::with_seed(1);
        let now = jiff::Timestamp::UNIX_EPOCH;
        let core = Core::new(&mut Environment::new(now, &mut rng));
        Self { core, rng, now }
    }

    fn send(&mut self, method: Method, path: &str, kind: &str, body: &Value) -> (u16, Value) {
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let mut request = Request::new(method, &format!("/api/v1/namespaces/default/{path}"), bytes);
        kind.clone_into(&mut request.content_type);
        let mut environment = Environment::new(self.now, &mut self.rng);
        match self.core.handle(&request, &mut environment) {
            Response::Whole(reply) => (reply.code.as_u16(), serde_json::from_slice(&reply.body).unwrap()),
            Response::Watch(_) => panic!("{path} is no watch"),
        }
    }

    fn list(&mut self, query: &str) -> (u64, BTreeMap<String, Value>) {
        let (_, list) =
            self.send(Method::GET, &format!("configmaps{query}"), "application/json", &Value::Null);
        let items = list["items"].as_array().unwrap();
        let items =
            items.iter().map(|item| (item["metadata"]["name"].as_str().unwrap().to_owned(), item.clone()));
        (revision(&list), items.collect())
    }

    /// The final view of a watcher that began at a revision.
    fn replay(&mut self, query: &str, mut state: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
        let request = Request::get(&format!("/api/v1/namespaces/default/configmaps?watch=true{query}"));
        let mut environment = Environment::new(self.now, &mut self.rng);
        let Response::Watch(mut watch) = self.core.handle(&request, &mut environment) else {
            panic!("{query} is no watch")
        };
        let mut last = 0;
        for line in self.core.news(&mut watch, self.now) {
            let event: Value = serde_json::from_slice(&line).unwrap();
            let object = &event["object"];
            // Initial events come in the order of names.
            let is_state = query.contains("sendInitialEvents");
            assert!(is_state || revision(object) > last, "revisions of a watch grow: {object}");
            last = revision(object);
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            let mut plain = object.clone();
            for key in ["apiVersion", "kind"] {
                plain.as_object_mut().unwrap().remove(key);
            }
            match event["type"].as_str().unwrap() {
                "ADDED" => assert!(state.insert(name, plain).is_none(), "added twice: {object}"),
                "MODIFIED" => {
                    assert!(state.insert(name, plain).is_some(), "modified before it was added: {object}");
                }
                "DELETED" => assert!(state.remove(&name).is_some(), "deleted before it was added: {object}"),
                other => panic!("{other}"),
            }
        }
        state
    }
}

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, rng_seed: RngSeed::Fixed(6757), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn invariants_hold(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        let merge = "application/merge-patch+json";
        let (start, nothing) = world.list("");
        let mut known: BTreeMap<u8, u64> = BTreeMap::new();
        let mut remembered: BTreeMap<u8, Value> = BTreeMap::new();
        let mut counted: BTreeMap<u8, u64> = BTreeMap::new();
        let mut marks = vec![(start, nothing.clone())];
        for step in steps {
            let before = world.core.revision();
            let (_, present) = world.list("");
            let (status, answer) = match &step {
                Step::Create { name, finalizer } => {
                    let finalizers = if *finalizer { json!(["example.com/hold"]) } else { json!([]) };
                    let body = json!({ "metadata": { "name": format!("c{name}"), "finalizers": finalizers } });
                    let answer = world.send(Method::POST, "configmaps", "application/json", &body);
                    prop_assert_eq!(answer.0 == 409, present.contains_key(&format!("c{name}")));
                    if answer.0 == 201 {
                        known.insert(*name, revision(&answer.1));
                        remembered.insert(*name, answer.1.clone());
                        counted.insert(*name, 0);
                    }
                    answer
                }
                Step::Write { name, value } => {
                    let body = json!({ "data": { "k": value.to_string() } });
                    world.send(Method::PATCH, &format!("configmaps/c{name}"), merge, &body)
                }
                Step::StaleWrite { name, value } => {
                    let seen = known.get(name).copied().unwrap_or(1);
                    let body = json!({ "metadata": { "resourceVersion": seen.to_string() }, "data": { "k": value.to_string() } });
                    let answer = world.send(Method::PATCH, &format!("configmaps/c{name}"), merge, &body);
                    if let Some(object) = present.get(&format!("c{name}")) {
                        // No lost update: a client that has not seen the newest state cannot write.
                        prop_assert_eq!(answer.0 == 200, revision(object) == seen, "{:?}", answer.1);
                    }
                    answer
                }
                Step::Label { name, web } => {
                    let body = json!({ "metadata": { "labels": { "app": if *web { "web" } else { "db" } } } });
                    world.send(Method::PATCH, &format!("configmaps/c{name}"), merge, &body)
                }
                Step::Count { name, from_memory } => {
                    let path = format!("configmaps/c{name}");
                    let read = if *from_memory {
                        remembered.get(name).cloned()
                    } else {
                        Some(world.send(Method::GET, &path, "application/json", &Value::Null).1)
                    };
                    let mut object = read.unwrap_or_else(|| json!({ "metadata": { "name": format!("c{name}") } }));
                    let count = object["data"]["count"].as_str().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
                    object["data"]["count"] = json!((count + 1).to_string());
                    let answer = world.send(Method::PUT, &path, "application/json", &object);
                    if answer.0 == 200 {
                        *counted.entry(*name).or_default() += 1;
                    }
                    answer
                }
                Step::Delete { name, forced } => {
                    let force = if *forced { "?gracePeriodSeconds=0" } else { "" };
                    let answer = world.send(Method::DELETE, &format!("configmaps/c{name}{force}"), "application/json", &Value::Null);
                    let held = present.get(&format!("c{name}")).is_some_and(|object| object["metadata"].get("finalizers").is_some());
                    let (_, after) = world.list("");
                    prop_assert_eq!(after.contains_key(&format!("c{name}")), held, "finalizers hold");
                    answer
                }
                Step::Release { name } => {
                    let body = json!({ "metadata": { "finalizers": null } });
                    world.send(Method::PATCH, &format!("configmaps/c{name}"), merge, &body)
                }
            };
            let after = world.core.revision();
            prop_assert!(after >= before);
            if status >= 400 {
                prop_assert_eq!(after, before, "a refused request writes nothing: {:?}", answer);
            }
            let (at, now) = world.list("");
            for (name, object) in &present {
                let is_released = matches!(step, Step::Release { name: released } if *name == format!("c{released}"));
                let is_held = object["metadata"].get("finalizers").is_some() && !is_released;
                prop_assert!(now.contains_key(name) || !is_held, "{} went before its finalizers", name);
                if let (Some(now), true) = (now.get(name), is_held) {
                    prop_assert_eq!(&now["metadata"]["uid"], &object["metadata"]["uid"], "another took its place");
                }
            }
            if at % 3 == 0 {
                marks.push((at, now.clone()));
            }
            prop_assert_eq!(after == before, now == present, "a revision is a change, and a change is a revision");
        }
        let (_, all) = world.list("");
        for (from, state) in marks {
            let replayed = world.replay(&format!("&resourceVersion={from}"), state.clone());
            prop_assert_eq!(&replayed, &all, "from {} on", from);
            let (_, past) = world.list(&format!("?resourceVersion={from}&resourceVersionMatch=Exact"));
            prop_assert_eq!(&past, &state, "the past stays as it was");
        }
        let streamed = world.replay("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", BTreeMap::new());
        prop_assert_eq!(&streamed, &all, "a streaming list is a list");
        for (name, object) in &all {
            let name: u8 = name.trim_start_matches('c').parse().unwrap();
            let count = object["data"]["count"].as_str().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
            prop_assert_eq!(count, counted.get(&name).copied().unwrap_or(0), "every update counts");
        }
        let (_, web) = world.list("?labelSelector=app=web");
        let replayed = world.replay(&format!("&resourceVersion={start}&labelSelector=app=web"), BTreeMap::new());
        prop_assert_eq!(&replayed, &web);
        let (_, past) = world.list(&format!("?resourceVersion={start}&resourceVersionMatch=Exact"));
        prop_assert_eq!(past, nothing);
    }
}
