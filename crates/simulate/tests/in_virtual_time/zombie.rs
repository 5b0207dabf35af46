//! One zombie, recovered by the real operator.

use std::time::Duration;

use jiff::SignedDuration;
use salvor_embedded::Faults;
use salvor_nodes::{Fault, NodeProfile};
use salvor_simulate::{Line, Process, World, WorldOptions, in_virtual_time};

use crate::stage::{Stage, TERMINATE, annotated, configuration};

#[test]
fn a_zombie_fails_a_minute_after_its_grace_and_not_a_second_earlier() {
    in_virtual_time(async {
        let stage = Stage::new(1).await;
        stage.node("node").await;
        stage.lose("node").await;
        let (line, faults) = (Line::default(), Faults::default());
        let salvor = Process::start(&stage.cluster, "salvor", &configuration(""), line, &faults);
        let marked = stage.cluster.now();
        stage.terminating("zombie", "node", annotated(TERMINATE)).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(stage.phase("zombie").await, "Failed");
        let failed = stage
            .first(|h| h.resource == "pods" && h.object["status"]["phase"] == "Failed")
            .unwrap()
            .duration_since(marked);
        assert!(failed >= SignedDuration::from_secs(61), "{failed}");
        assert!(failed < SignedDuration::from_secs(63), "{failed}");
        assert!(salvor.metrics().contains("salvor_leader 1"), "{}", salvor.metrics());
        salvor.stop().await;
    });
}

/// The same with a simulated machine that crashes; what notices that it is silent is the test itself.
#[test]
fn a_machine_that_crashed_takes_its_pod_along_and_salvor_says_so() {
    in_virtual_time(async {
        let world = World::new(&WorldOptions::seeded(1));
        world.fleet().add([NodeProfile::named("machine")]).await.unwrap();
        let salvor = world.operator("salvor", &configuration("leaderElection: {enabled: false}"));
        let stage = Stage::of(world.cluster());
        stage.pod("work", "machine", annotated(TERMINATE)).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(world.fleet().truth().running().len(), 1, "it runs");
        world.fleet().inject("machine", Fault::Crash).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        stage.lose("machine").await;
        stage.delete("work").await;
        tokio::time::sleep(Duration::from_secs(55)).await;
        assert_eq!(stage.phase("work").await, "Running", "as far as anybody knows");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(stage.phase("work").await, "Failed");
        assert_eq!(world.fleet().truth().running(), [], "nothing ran when it was declared dead");
        salvor.stop().await;
    });
}
