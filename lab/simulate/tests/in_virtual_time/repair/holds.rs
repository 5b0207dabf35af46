//! Repairs that do not help, and zones that come back, whatever fails meanwhile.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use salvor_simulate::{Line, in_virtual_time};
use serde_json::{Value, json};

use super::world::{BEAT, By, World, settings};
use crate::troubles::{Salvor, TROUBLES, Trouble, assert_none, at_every_write};

async fn run(world: &mut World, salvor: &mut Salvor<'_>, minutes: u64) {
    for _ in 0..minutes * 60 / BEAT.as_secs() {
        salvor.live(BEAT).await;
        world.beat().await;
    }
}

/// The record of replacements on the policy or NodePool.
async fn replacements(world: &World) -> Value {
    world.policy()["status"]["replacements"].clone()
}

/// A bad image: every replacement is unhealthy again. The second node becomes unhealthy when the first one has been
/// replaced.
async fn bad_image(by: By, line: Line, trouble: Trouble) -> (Vec<String>, u32) {
    let mut world = World::with(by, 8, 1).await;
    world.new_ones_ail = true;
    world.sick("node-1").await;
    let stage = world.stage.clone();
    let mut salvor = Salvor::start(&stage, settings(), line, trouble, Duration::from_secs(290));
    run(&mut world, &mut salvor, 12).await;
    world.sick("node-3").await;
    // Half an hour after the first replacement, one more is tried.
    run(&mut world, &mut salvor, 43).await;
    let mut wrong = world.problems();
    let deleted = world.audit().deleted;
    if deleted.len() != 2 {
        wrong.push(format!("{deleted:?} were deleted"));
    }
    let kept = replacements(&world).await;
    if kept[0]["retries"] != 1 {
        wrong.push(format!("the memory is {kept}"));
    }
    // The next one is tried an hour later.
    run(&mut world, &mut salvor, 30).await;
    let later = world.audit().deleted;
    if later.len() != 2 {
        wrong.push(format!("{later:?} were deleted in the end"));
    }
    (wrong, salvor.stop().await.1)
}

#[test]
fn repairs_that_do_not_help_stop_whichever_write_a_crash_comes_at() {
    assert_none(&at_every_write(15, |line| bad_image(By::Policy, line, Trouble::None)));
}

#[test]
fn repairs_that_do_not_help_stop_for_a_nodepool() {
    assert_none(&at_every_write(15, |line| bad_image(By::Pool, line, Trouble::None)));
}

#[test]
fn repairs_that_do_not_help_stop_in_every_trouble() {
    let mut wrong = Vec::new();
    for trouble in TROUBLES {
        let (found, _) = in_virtual_time(bad_image(By::Policy, Line::default(), trouble));
        wrong.extend(found.into_iter().map(|it| format!("{trouble:?}: {it}")));
    }
    assert_none(&wrong);
}

/// The image is fixed: the next try shows it, and all others follow.
#[test]
fn a_try_that_helps_is_followed_by_the_others() {
    in_virtual_time(async {
        let mut world = World::new(10, 2).await;
        world.new_ones_ail = true;
        let stage = world.stage.clone();
        let mut salvor = Salvor::start(&stage, settings(), Line::default(), Trouble::None, Duration::ZERO);
        world.sick("node-0").await;
        run(&mut world, &mut salvor, 6).await;
        for node in ["node-1", "node-2", "node-3"] {
            world.sick(node).await;
        }
        run(&mut world, &mut salvor, 28).await;
        assert_eq!(world.audit().deleted, ["node-0"]);
        let held = world.stage.nodes().get("node-2").await.unwrap().status.unwrap().conditions.unwrap();
        let held = held.into_iter().find(|it| it.type_ == "SalvorRepair").unwrap().message.unwrap();
        assert!(held.contains("RepairsDoNotHelp") && held.contains("tried again at"), "{held}");
        world.new_ones_ail = false;
        run(&mut world, &mut salvor, 3).await;
        assert_eq!(world.audit().deleted.len(), 2, "{:?}", world.audit().deleted);
        assert!(world.until_over(&mut salvor).await, "{}", world.policy());
        let audit = world.audit();
        assert_eq!((audit.deleted.len(), audit.wrong), (5, Vec::new()));
        salvor.stop().await;
    });
}

/// A user writes nonsense into the record, with times from a wrong clock.
#[test]
fn garbage_in_the_memory_of_replacements_stops_nothing_for_ever() {
    in_virtual_time(async {
        let mut world = World::new(6, 1).await;
        let stage = world.stage.clone();
        let mut salvor = Salvor::start(&stage, settings(), Line::default(), Trouble::None, Duration::ZERO);
        run(&mut world, &mut salvor, 1).await;
        let far = "9999-01-01T00:00:00Z";
        let row = |pool: &str| json!({"pool": pool, "condition": "BadNode", "first": "1970-01-01T00:00:00Z", "last": far, "retries": 2_000_000_000});
        let garbage = json!({"status": {"replacements": [row("gpu"), row("nobody")]}});
        let patch = Patch::Merge(garbage);
        world.policies.patch_status("gpu", &PatchParams::default(), &patch).await.unwrap();
        // All nodes were created after 1970, so an unhealthy one counts against replacements.
        world.sick("node-2").await;
        run(&mut world, &mut salvor, 10).await;
        assert_eq!(world.audit().deleted, Vec::<String>::new());
        // Eight hours are the longest wait.
        salvor.live(Duration::from_secs(8 * 60 * 60)).await;
        run(&mut world, &mut salvor, 2).await;
        assert_eq!(world.audit().deleted, ["node-2"], "{}", replacements(&world).await);
        salvor.stop().await;
    });
}
