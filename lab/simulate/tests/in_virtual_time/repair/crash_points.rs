//! The controller is killed before and after every single write, is partitioned, is replaced, and meets every fault:
//! the end is the same, and there are never more nodes under repair than the budget allows.

use std::time::Duration;

use salvor_apiserver::Effect;
use salvor_simulate::{Line, in_virtual_time};
use tokio::time::sleep;

use super::world::{BEAT, By, World, settings};
use crate::troubles::{MOST_WRITES, Salvor, TROUBLES, Trouble, assert_none, at_every_write};

const BUDGET: usize = 1;

/// The nodes that become unhealthy. A NodePool has the default limit, which is two of six.
fn sick_nodes(by: By) -> &'static [&'static str] {
    match by {
        By::Policy => &["node-1", "node-3", "node-4"],
        By::Pool => &["node-1", "node-3"],
    }
}

/// Some of six nodes become unhealthy, one after the other.
async fn begin(by: By) -> World {
    let world = World::with(by, 6, BUDGET).await;
    for node in sick_nodes(by) {
        world.sick(node).await;
        sleep(Duration::from_secs(7)).await;
    }
    world
}

/// The problems of the end, and of the whole history.
async fn ending(world: &World, over: bool) -> Vec<String> {
    let audit = world.audit();
    let mut wrong = audit.wrong;
    if !over {
        wrong.push(format!("it came to no end: {}", world.policy()["status"]));
    }
    if audit.deleted.len() != sick_nodes(world.by).len() {
        wrong.push(format!("{:?} were deleted", audit.deleted));
    }
    wrong
}

async fn play(by: By, line: Line, trouble: Trouble) -> (Vec<String>, u32) {
    let mut world = begin(by).await;
    let stage = world.stage.clone();
    let mut salvor = Salvor::start(&stage, settings(), line, trouble, Duration::from_secs(290));
    let over = world.until_over(&mut salvor).await;
    (ending(&world, over).await, salvor.stop().await.1)
}

fn all_points(by: By, trouble: Trouble) -> Vec<String> {
    let wrong = at_every_write(15, |line| play(by, line, trouble));
    wrong.into_iter().map(|it| format!("{trouble:?}, {it}")).collect()
}

#[test]
fn a_crash_at_every_write() {
    assert_none(&all_points(By::Policy, Trouble::None));
}

#[test]
fn a_crash_at_every_write_for_a_nodepool() {
    assert_none(&all_points(By::Pool, Trouble::None));
}

#[test]
fn a_lost_answer_and_a_crash_at_any_write() {
    assert_none(&all_points(By::Policy, Trouble::Struck(Effect::AnswerLost)));
}

#[test]
fn every_trouble_alone() {
    let mut wrong = Vec::new();
    for trouble in TROUBLES {
        let (found, _) = in_virtual_time(play(By::Policy, Line::default(), trouble));
        wrong.extend(found.into_iter().map(|it| format!("{trouble:?}: {it}")));
    }
    assert_none(&wrong);
}

/// The leader is partitioned while one of its writes is in flight, another process takes over, and later that write
/// arrives after all.
async fn overtaken(write: u32, late: Duration) -> (Vec<String>, u32) {
    let mut world = begin(By::Policy).await;
    let stage = world.stage.clone();
    let line = Line::holding(write);
    let mut salvor = Salvor::start(&stage, settings(), line.clone(), Trouble::None, Duration::ZERO);
    let arrival = tokio::spawn(async move {
        line.held().await;
        line.cut();
        sleep(late).await;
        line.let_go();
    });
    let over = world.until_over(&mut salvor).await;
    while salvor.lives() > 1 && !arrival.is_finished() {
        salvor.live(BEAT).await;
        world.beat().await;
    }
    arrival.abort();
    salvor.live(BEAT * 20).await;
    (ending(&world, over).await, salvor.stop().await.1)
}

#[test]
fn a_leader_whose_last_write_arrives_when_another_one_leads() {
    let mut wrong = Vec::new();
    // Before the other process leads, right when it does, and much later.
    for late in [1, 61, 400].map(Duration::from_secs) {
        for write in 1..MOST_WRITES {
            let (found, lives) = in_virtual_time(overtaken(write, late));
            wrong.extend(found.into_iter().map(|it| format!("write {write}, {late:?} late: {it}")));
            if lives == 1 {
                break;
            }
        }
    }
    assert_none(&wrong);
}

/// A node recovers while the write that deletes its NodeClaim is in flight, and that write arrives much later.
async fn recovered(write: u32, late: Duration) -> (Vec<String>, u32) {
    let mut world = begin(By::Policy).await;
    let stage = world.stage.clone();
    let line = Line::holding(write);
    let mut salvor = Salvor::start(&stage, settings(), line.clone(), Trouble::None, Duration::ZERO);
    let held = line.clone();
    let watcher = world.stage.clone();
    let arrival = tokio::spawn(async move {
        held.held().await;
        held.cut();
        for node in ["node-1", "node-3", "node-4"] {
            let well = serde_json::json!({"status": {"conditions": [{"type": "BadNode", "status": "True"}]}});
            let patch = kube::api::Patch::Strategic(well);
            let _ = watcher.nodes().patch_status(node, &Default::default(), &patch).await;
        }
        sleep(late).await;
        held.let_go();
    });
    for _ in 0..240 {
        salvor.live(BEAT).await;
        world.beat().await;
    }
    arrival.abort();
    (world.problems(), salvor.stop().await.1)
}

#[test]
fn a_deletion_that_arrives_after_the_node_has_recovered_is_refused() {
    let mut wrong = Vec::new();
    for write in 1..MOST_WRITES {
        let (found, lives) = in_virtual_time(recovered(write, Duration::from_secs(400)));
        wrong.extend(found.into_iter().map(|it| format!("write {write}: {it}")));
        if lives == 1 {
            break;
        }
    }
    assert_none(&wrong);
}

/// A new process leads every few beats; the previous one is killed, or stops gracefully.
async fn in_turn(beats: usize, peace: bool) -> Vec<String> {
    let mut world = begin(By::Policy).await;
    let stage = world.stage.clone();
    let mut over = false;
    for _ in 0..60 {
        let line = Line::default();
        let mut salvor = Salvor::start(&stage, settings(), line.clone(), Trouble::None, Duration::ZERO);
        for _ in 0..beats {
            salvor.live(BEAT).await;
            world.beat().await;
        }
        over = world.is_over();
        if peace {
            salvor.stop().await;
        } else {
            line.cut();
        }
        if over {
            break;
        }
    }
    ending(&world, over).await
}

#[test]
fn leaders_in_turn() {
    let mut wrong = Vec::new();
    // A killed process keeps the Lease for 60 seconds.
    for (beats, peace) in [(3, true), (7, true), (17, false), (23, false)] {
        let found = in_virtual_time(in_turn(beats, peace));
        wrong.extend(found.into_iter().map(|it| format!("{beats} beats, in peace {peace}: {it}")));
    }
    assert_none(&wrong);
}
