//! The longest timers, each to the minute: nothing happens before, and it does happen then.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use salvor_apiserver::ChangeKind;
use salvor_simulate::{Line, Process, in_virtual_time};
use tokio::time::sleep;

use super::{
    audit::{holds, problems},
    play::{BEAT, phase},
    world::{Plot, World, without_election},
};
use crate::troubles::assert_none;

const MINUTE: Duration = Duration::from_secs(60);

/// Runs a world with a controller. It reconciles every few seconds for a while, then only every minute.
async fn run(plot: Plot, timers: &[(&str, &str)], fields: &str, minutes: u64) -> World {
    let mut world = World::new(plot).await;
    world.create(timers).await;
    let configuration = without_election(fields);
    let process =
        Process::start(&world.stage.cluster, "salvor", &configuration, Line::default(), &Default::default());
    for _ in 0..60 {
        sleep(BEAT).await;
        world.beat().await;
    }
    for _ in 0..minutes {
        sleep(MINUTE).await;
        world.beat().await;
    }
    process.stop().await;
    assert_none(&problems(&world.stage.happenings(), 3, &[]));
    world
}

/// When the AppWrapper first had this state.
fn when(world: &World, what: impl Fn(&serde_json::Value) -> bool) -> Timestamp {
    let first = world.stage.first(|it| it.resource == "appwrappers" && what(&it.object));
    first.unwrap_or_else(|| panic!("that never happened"))
}

fn assert_after(from: Timestamp, to: Timestamp, hours: i64) {
    let passed = to.duration_since(from);
    let due = SignedDuration::from_hours(hours);
    // Garbage collector and kubelet reconcile once a minute, one after the other.
    let late = SignedDuration::from_secs(130);
    assert!(passed >= due && passed <= due + late, "{passed:#} instead of {hours} h");
}

#[test]
fn what_succeeded_is_kept_for_seven_days() {
    in_virtual_time(async {
        let world = run(Plot { failures: 0, ends: true }, &[], "", 7 * 24 * 60 + 30).await;
        let succeeded = when(&world, |it| phase(it) == "Succeeded");
        let gone = when(&world, |it| phase(it) == "Succeeded" && !holds(&it["status"], "ResourcesDeployed"));
        assert_after(succeeded, gone, 7 * 24);
        assert_eq!(world.left().await, 0);
    });
}

#[test]
fn what_failed_is_kept_for_as_long_as_may_be_asked_for() {
    in_virtual_time(async {
        let timers = [("retryLimit", "0"), ("deletionOnFailureGracePeriodDuration", "100h")];
        let world = run(Plot { failures: 9, ends: false }, &timers, "", 24 * 60 + 30).await;
        let failed = when(&world, |it| phase(it) == "Failed");
        let gone = when(&world, |it| phase(it) == "Failed" && !holds(&it["status"], "ResourcesDeployed"));
        // The maximum is a day.
        assert_after(failed, gone, 24);
        assert_eq!(world.left().await, 0);
    });
}

#[test]
fn a_pause_and_a_grace_period_of_a_day() {
    in_virtual_time(async {
        let timers = [("failureGracePeriodDuration", "24h"), ("retryPausePeriodDuration", "24h")];
        let world = run(Plot { failures: 1, ends: false }, &timers, "", 2 * 24 * 60 + 60).await;
        let unhealthy = when(&world, |it| holds(&it["status"], "Unhealthy"));
        let reset = when(&world, |it| phase(it) == "Resetting");
        assert_after(unhealthy, reset, 24);
        let gone = when(&world, |it| phase(it) == "Resetting" && !holds(&it["status"], "ResourcesDeployed"));
        let again = when(&world, |it| phase(it) == "Resuming" && it["status"]["resettingCount"] == 1);
        assert_after(gone, again, 24);
        assert_eq!(world.phase(), "Running");
    });
}

#[test]
fn a_pod_that_does_not_go_is_deleted_by_force_after_a_day() {
    in_virtual_time(async {
        let timers = [("forcefulDeletionGracePeriodDuration", "24h"), ("retryLimit", "0")];
        let mut world = World::new(Plot { failures: 1, ends: false }).await;
        world.create(&timers).await;
        let configuration = without_election("");
        let process = Process::start(
            &world.stage.cluster,
            "salvor",
            &configuration,
            Line::default(),
            &Default::default(),
        );
        for _ in 0..4 {
            sleep(BEAT).await;
            world.beat().await;
        }
        // From here on no kubelet sends heartbeats. The controllers keep running.
        world.lost.insert(super::world::NODE.into());
        for _ in 0..24 * 60 + 30 {
            sleep(MINUTE).await;
            world.beat().await;
        }
        process.stop().await;
        assert_none(&problems(&world.stage.happenings(), 0, &[]));
        let began = when(&world, |it| holds(&it["status"], "DeletingResources"));
        let gone = when(&world, |it| phase(it) == "Failed" && !holds(&it["status"], "ResourcesDeployed"));
        assert_after(began, gone, 24);
        assert_eq!(world.left().await, 0);
    });
}

/// Attempts that follow each other within one second, the resolution of Kubernetes timestamps.
#[test]
fn resets_within_a_second() {
    for pace in [10, 50, 130] {
        in_virtual_time(async {
            let mut world = World::new(Plot { failures: usize::MAX, ends: false }).await;
            world.fails_late = true;
            let timers = [
                ("failureGracePeriodDuration", "0s"),
                ("retryPausePeriodDuration", "0s"),
                ("retryLimit", "3"),
            ];
            world.create(&timers).await;
            let configuration = without_election("");
            let process = Process::start(
                &world.stage.cluster,
                "salvor",
                &configuration,
                Line::default(),
                &Default::default(),
            );
            for _ in 0..2000 {
                sleep(Duration::from_millis(pace)).await;
                world.beat().await;
            }
            process.stop().await;
            assert_none(&problems(&world.stage.happenings(), 3, &[]));
            let status = world.app()["status"].clone();
            assert_eq!(status["phase"], "Failed", "{status}");
            assert_eq!(status["resettingCount"], 3, "every {pace} ms: {status}");
            assert_eq!(world.left().await, 0);
            let history = world.stage.happenings();
            let made = history
                .iter()
                .filter(|it| it.change == ChangeKind::Added && it.resource == "jobs")
                .map(|it| it.at);
            let made: Vec<Timestamp> = made.collect();
            let quick =
                made.windows(2).any(|two| two[1].duration_since(two[0]) < SignedDuration::from_secs(1));
            assert!(quick, "no two attempts were within a second: {made:?}");
        });
    }
}
