use super::*;

const NODE: &str = "n";

struct Stage {
    scheduler: Scheduler,
    world: World,
    now: Timestamp,
    revision: u64,
}

impl Stage {
    fn new() -> Self {
        Self {
            scheduler: Scheduler::new(1),
            world: World::default(),
            now: Timestamp::UNIX_EPOCH,
            revision: 0,
        }
    }

    fn node(&mut self, cpu: u32) {
        self.revision += 1;
        let node = json!({"metadata": {"name": NODE, "resourceVersion": self.revision.to_string()},
            "status": {"allocatable": {"cpu": cpu.to_string(), "pods": "110"}}});
        for change in self.world.with(Kind::Node, |world| &mut world.nodes, Change::Node, node) {
            self.scheduler.observe(&change);
        }
    }

    fn pod(&mut self, name: &str, generation: i64) {
        self.revision += 1;
        let pod = json!({
            "metadata": {"name": name, "namespace": "d", "uid": name, "generation": generation,
                "resourceVersion": self.revision.to_string()},
            "spec": {"containers": [{"resources": {"requests": {"cpu": "2"}}}]},
        });
        for change in self.world.with(Kind::Pod, |world| &mut world.pods, Change::Pod, pod) {
            self.scheduler.observe(&change);
        }
    }

    /// What is done after this many seconds, and when the scheduler wants to run again.
    fn after(&mut self, seconds: i64) -> (Vec<&'static str>, Option<i64>) {
        self.now += jiff::SignedDuration::from_secs(seconds);
        let plan = self.scheduler.decide(&self.world, self.now);
        let mut deeds = Vec::new();
        for errand in &plan.errands {
            deeds.push(match errand.calls[0] {
                Call::Bind { .. } => "bind",
                Call::Event(_) => "say why",
                _ => "?",
            });
        }
        for errand in plan.errands {
            self.scheduler.again(&errand.subject);
        }
        (deeds, plan.wake.map(Timestamp::as_second))
    }
}

#[test]
fn the_rest_after_a_failed_attempt_grows() {
    let rests: Vec<u64> = (0..7).map(|count| rest_after(count).as_secs()).collect();
    assert_eq!(rests, [1, 2, 4, 8, 10, 10, 10]);
}

#[test]
fn a_pod_without_a_node_rests_between_attempts_and_is_tried_when_something_changes() {
    let mut stage = Stage::new();
    stage.node(1);
    stage.pod("p", 1);
    assert_eq!(stage.after(0), (vec!["say why"], None));
    assert_eq!(stage.after(0), (vec![], Some(1)), "it was said, and it rests");
    // The condition is not written in this test, so every attempt records the reason.
    assert_eq!(stage.after(1).0, ["say why"]);
    stage.node(1);
    assert_eq!(stage.after(1), (vec![], Some(3)), "two seconds after the second attempt");
    stage.node(2);
    assert_eq!(stage.after(0), (vec![], Some(3)));
    assert_eq!(stage.after(1).0, ["bind"]);
}

#[test]
fn a_pod_that_somebody_changes_is_tried_at_once() {
    let mut stage = Stage::new();
    stage.node(1);
    stage.pod("p", 1);
    assert_eq!(stage.after(0).0, ["say why"]);
    stage.pod("p", 1);
    assert_eq!(stage.after(0).0, [""; 0], "its own condition is no reason");
    stage.pod("p", 2);
    assert_eq!(stage.after(0).0, ["say why"]);
    stage.node(4);
    stage.pod("q", 1);
    assert_eq!(stage.after(0).0, ["bind"], "others do not wait for it");
}
