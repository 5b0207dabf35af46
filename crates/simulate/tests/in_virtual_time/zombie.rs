//! One zombie, recovered by the real operator.

use std::time::Duration;

use jiff::SignedDuration;
use salvor_cluster::{LocalCluster, zoned};
use salvor_embedded::Faults;
use salvor_nodes::Fault;
use salvor_simulate::{Line, Process, in_virtual_time};
use tokio::time::sleep;

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
        sleep(Duration::from_secs(600)).await;
        assert_eq!(stage.phase("zombie").await, "Failed");
        let failed = stage
            .first(|h| h.resource == "pods" && h.object["status"]["phase"] == "Failed")
            .unwrap()
            .duration_since(marked);
        assert!(failed >= SignedDuration::from_secs(61), "{failed}");
        assert!(failed < SignedDuration::from_secs(63), "{failed}");
        assert!(salvor.metrics().contains("\nsalvor_leader 1\n"), "{}", salvor.metrics());
        salvor.stop().await;
    });
}

/// The same with all parts: a simulated machine crashes, node lifecycle gives it up, taint eviction deletes its pod.
#[test]
fn a_machine_that_crashed_takes_its_pod_along_and_nothing_ran_when_it_was_declared_dead() {
    in_virtual_time(async {
        let world = LocalCluster::start(salvor_simulate::cluster(1)).await.unwrap();
        world.fleet().add(zoned(4, 2)).await.unwrap();
        let (line, faults) = (Line::default(), Faults::default());
        let salvor = Process::start(world.api(), "salvor", &configuration(""), line, &faults);
        let stage = Stage::of(world.api());
        stage.scheduled_pod("work", annotated(TERMINATE)).await;
        sleep(Duration::from_secs(60)).await;
        let running = world.fleet().truth().running();
        let [run] = running.as_slice() else { panic!("it runs once: {running:?}") };
        world.fleet().inject(&run.node, Fault::Crash).await.unwrap();
        // 40 s to Unknown, 300 s of tolerated unreachability, the pod's grace of a second and the wait of a minute.
        sleep(Duration::from_secs(380)).await;
        assert_eq!(stage.phase("work").await, "Running", "as far as anybody knows");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(stage.phase("work").await, "Failed");
        assert_eq!(world.fleet().truth().running(), []);
        salvor.stop().await;
        world.stop().await;
    });
}
