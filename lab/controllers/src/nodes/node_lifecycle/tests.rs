//! A cluster of nodes as node lifecycle sees it, one check after the other.

use jiff::SignedDuration;

use super::*;

struct Stage {
    control: NodeLifecycle,
    world: World,
    now: Timestamp,
    revision: u64,
}

impl Stage {
    /// This many ready nodes in each zone: `a-0`, `a-1`, `b-0` and so on.
    fn of(zones: &[(&str, usize)]) -> Self {
        let mut stage = Self {
            control: NodeLifecycle::new(NodeLifecycleTimers::default()),
            world: World::default(),
            now: Timestamp::from_second(1_000_000).unwrap(),
            revision: 0,
        };
        for (zone, count) in zones {
            for index in 0..*count {
                stage.node(&format!("{zone}-{index}"), "True", json!([]));
            }
        }
        stage
    }

    #[expect(clippy::needless_pass_by_value, reason = "calls read as the JSON they mean")]
    fn node(&mut self, name: &str, ready: &str, taints: Value) {
        self.revision += 1;
        let zone = name.split('-').next().unwrap();
        let node = json!({
            "metadata": {
                "name": name, "uid": name, "resourceVersion": self.revision.to_string(),
                "labels": {"topology.kubernetes.io/zone": zone},
            },
            "spec": {"taints": taints},
            "status": {"conditions": [
                {"type": "Ready", "status": ready, "lastTransitionTime": object::time(self.now)},
                {"type": "MemoryPressure", "status": if ready == "Unknown" { "Unknown" } else { "False" }},
                {"type": "DiskPressure", "status": if ready == "Unknown" { "Unknown" } else { "False" }},
                {"type": "PIDPressure", "status": if ready == "Unknown" { "Unknown" } else { "False" }},
            ]},
        });
        for change in self.world.with(Kind::Node, |w| &mut w.nodes, Change::Node, node) {
            self.control.observe(&change);
        }
    }

    fn renew(&mut self, name: &str) {
        self.revision += 1;
        let lease = json!({
            "metadata": {"name": name, "namespace": "kube-node-lease", "resourceVersion": self.revision.to_string()},
            "spec": {"renewTime": self.now},
        });
        self.world.with(Kind::Lease, |w| &mut w.leases, Change::Lease, lease);
    }

    /// Lets time pass; these nodes renew their leases.
    fn pass(&mut self, seconds: i64, alive: &[&str]) -> Vec<Errand> {
        let mut errands = Vec::new();
        for _ in 0..seconds {
            self.now += SignedDuration::from_secs(1);
            for name in alive {
                self.renew(name);
            }
            errands.extend(self.control.decide(&self.world, self.now).errands);
        }
        errands
    }

    /// Applies the loop's errands, as the API would. Returns the taints that were added to each node.
    fn obey(&mut self, errands: Vec<Errand>) -> Vec<String> {
        let mut done = Vec::new();
        for errand in errands {
            for call in errand.calls {
                match call {
                    Call::Patch { of, part: Part::Status, .. } if of.kind == Kind::Node => {
                        done.push(format!("{}: Unknown", of.name));
                        let taints = json!(self.world.nodes.get(&of.name).unwrap().spec.taints);
                        self.node(&of.name, "Unknown", taints);
                    }
                    Call::MergeAt { of, body, .. } => {
                        let taints = body["spec"]["taints"].clone();
                        let short = |taint: &Value| {
                            let key = taint["key"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
                            format!("{key}:{}", taint["effect"].as_str().unwrap())
                        };
                        let all: Vec<String> = taints.as_array().unwrap().iter().map(short).collect();
                        done.push(format!("{}: {}", of.name, all.join(" ")));
                        let ready = self.world.nodes.get(&of.name).unwrap().condition("Ready").unwrap();
                        let ready = ready.status.clone();
                        self.node(&of.name, &ready, taints);
                    }
                    other => done.push(format!("{other:?}")),
                }
            }
            self.control.again(&errand.subject);
        }
        done
    }
}

#[test]
fn a_silent_node_is_unknown_then_tainted_and_a_node_that_renews_is_not() {
    let mut stage = Stage::of(&[("a", 3)]);
    let alive = ["a-0", "a-1"];
    let quiet = stage.pass(49, &alive);
    assert_eq!(quiet, [], "within the grace");
    let errands = stage.pass(2, &alive);
    assert_eq!(stage.obey(errands), ["a-2: Unknown"]);
    let errands = stage.pass(1, &alive);
    assert_eq!(stage.obey(errands), ["a-2: unreachable:NoSchedule unreachable:NoExecute"]);
    assert_eq!(stage.pass(30, &alive), []);
}

#[test]
fn a_look_that_is_late_itself_finds_no_node_silent() {
    let mut stage = Stage::of(&[("a", 3)]);
    let alive = ["a-0", "a-1"];
    stage.pass(10, &["a-0", "a-1", "a-2"]);
    // The machine was suspended.
    stage.now += SignedDuration::from_hours(1);
    assert_eq!(stage.pass(49, &alive), []);
    let errands = stage.pass(6, &alive);
    assert_eq!(stage.obey(errands), ["a-2: Unknown"]);
}

#[test]
fn a_node_that_is_ready_again_loses_its_taints_and_keeps_those_of_others() {
    let mut stage = Stage::of(&[("a", 2)]);
    stage.pass(1, &["a-0", "a-1"]);
    stage.node(
        "a-0",
        "True",
        json!([
            {"key": UNREACHABLE, "effect": NO_SCHEDULE}, {"key": UNREACHABLE, "effect": NO_EXECUTE},
            {"key": "node.kubernetes.io/out-of-service", "effect": NO_EXECUTE},
            {"key": "example.com/mine", "effect": NO_SCHEDULE},
        ]),
    );
    let alive = ["a-0", "a-1"];
    let errands = stage.pass(1, &alive);
    let at_once = "a-0: unreachable:NoExecute out-of-service:NoExecute mine:NoSchedule";
    assert_eq!(stage.obey(errands), [at_once], "what keeps pods away goes with the node's own news");
    assert_eq!(
        stage.pass(3, &alive),
        [],
        "what evicts them goes when all nodes are looked at, every five seconds"
    );
    let errands = stage.pass(1, &alive);
    assert_eq!(stage.obey(errands), ["a-0: out-of-service:NoExecute mine:NoSchedule"]);
    assert_eq!(stage.pass(10, &alive), []);
}

#[test]
fn not_ready_and_unreachable_are_swapped_when_the_node_is_next_looked_at() {
    let mut stage = Stage::of(&[("a", 3)]);
    stage.pass(1, &["a-0", "a-1", "a-2"]);
    let unreachable =
        json!([{"key": UNREACHABLE, "effect": NO_SCHEDULE}, {"key": UNREACHABLE, "effect": NO_EXECUTE}]);
    stage.node("a-0", "False", unreachable);
    let errands = stage.pass(1, &["a-0", "a-1", "a-2"]);
    assert_eq!(stage.obey(errands), ["a-0: unreachable:NoExecute not-ready:NoSchedule"]);
    let errands = stage.pass(4, &["a-0", "a-1", "a-2"]);
    assert_eq!(
        stage.obey(errands),
        ["a-0: not-ready:NoSchedule not-ready:NoExecute"],
        "without waiting for a turn"
    );
}

#[test]
fn a_node_whose_turn_comes_when_it_is_ready_again_is_left_alone() {
    let mut stage = Stage::of(&[("a", 4)]);
    let alive = ["a-2", "a-3"];
    let mut done = Vec::new();
    for _ in 0..60 {
        let errands = stage.pass(1, &alive);
        done.extend(stage.obey(errands));
    }
    let given_up =
        |done: &[String]| done.iter().filter(|text| text.contains("unreachable:NoExecute")).count();
    assert_eq!(given_up(&done), 1, "the second waits for its turn: {done:?}");
    let waits = ["a-0", "a-1"]
        .into_iter()
        .find(|name| !done.iter().any(|t| t.starts_with(name) && t.contains("NoExecute")));
    stage.node(waits.unwrap(), "True", json!([]));
    let alive = ["a-2", "a-3", waits.unwrap()];
    let mut done = Vec::new();
    for _ in 0..60 {
        let errands = stage.pass(1, &alive);
        done.extend(stage.obey(errands));
    }
    assert_eq!(given_up(&done), 0, "{done:?}");
}

#[test]
fn a_zone_gives_up_one_node_in_ten_seconds() {
    let mut stage = Stage::of(&[("a", 9)]);
    let alive = ["a-4", "a-5", "a-6", "a-7", "a-8"];
    let mut given_up: Vec<i64> = Vec::new();
    for second in 0..120 {
        let errands = stage.pass(1, &alive);
        let done = stage.obey(errands);
        given_up.extend(done.iter().filter(|text| text.contains("NoExecute")).map(|_| second));
    }
    assert_eq!(given_up.len(), 4, "{given_up:?}");
    assert!(given_up.windows(2).all(|two| two[1] - two[0] >= 9), "{given_up:?}");
}

#[test]
fn when_all_zones_are_lost_nothing_is_given_up_and_all_get_another_grace() {
    let mut stage = Stage::of(&[("a", 2), ("b", 2)]);
    stage.pass(1, &["a-0", "a-1", "b-0", "b-1"]);
    let mut all = Vec::new();
    for _ in 0..100 {
        let errands = stage.pass(1, &[]);
        all.extend(stage.obey(errands));
    }
    assert!(all.iter().any(|text| text == "b-1: Unknown"), "{all:?}");
    let with_execute = stage
        .world
        .nodes
        .iter()
        .filter(|node| node.spec.taints.iter().any(|taint| taint.effect == NO_EXECUTE));
    assert_eq!(with_execute.count(), 0, "{all:?}");
    // One comes back: the others have a whole grace period from then on.
    stage.node("a-0", "True", json!([]));
    let mut later = Vec::new();
    for _ in 0..40 {
        let errands = stage.pass(1, &["a-0"]);
        later.extend(stage.obey(errands));
    }
    let execute = later.iter().filter(|text| text.contains("NoExecute")).count();
    assert!(execute > 0, "they are Unknown already, so they are given up as their turns come: {later:?}");
}

#[test]
fn pods_of_a_lost_node_are_told_once() {
    let mut stage = Stage::of(&[("a", 2)]);
    stage.pass(1, &["a-0", "a-1"]);
    let before = stage.now;
    let pod = |name: &str, since: Timestamp| {
        json!({
            "metadata": {"name": name, "namespace": "d", "uid": name, "resourceVersion": "1"},
            "spec": {"nodeName": "a-0"},
            "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": object::time(since)}]},
        })
    };
    for change in stage.world.with(Kind::Pod, |w| &mut w.pods, Change::Pod, pod("old", before)) {
        stage.control.observe(&change);
    }
    stage.now += SignedDuration::from_secs(10);
    stage.node("a-0", "Unknown", json!([]));
    let later = stage.now + SignedDuration::from_secs(10);
    for change in stage.world.with(Kind::Pod, |w| &mut w.pods, Change::Pod, pod("insists", later)) {
        stage.control.observe(&change);
    }
    let errands = stage.pass(1, &["a-0", "a-1"]);
    let told: Vec<&str> = errands[0]
        .calls
        .iter()
        .filter_map(|call| match call {
            Call::Event(note) if note.reason == "NodeNotReady" => Some(note.about.name.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(told, ["old"], "a kubelet that says so again is believed");
}
