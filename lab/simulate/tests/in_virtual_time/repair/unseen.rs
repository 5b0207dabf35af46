//! The watch of one kind of object is broken for ten minutes, while the others work.

use http::Method;
use salvor_apiserver::{Effect, Fault, Faults};
use salvor_simulate::{Line, Process, in_virtual_time};
use tokio::time::sleep;

use super::world::{BEAT, World, settings};

async fn run(world: &mut World, beats: usize) {
    for _ in 0..beats {
        sleep(BEAT).await;
        world.beat().await;
    }
}

async fn play(watch: &str, effect: Effect, recovers: bool) -> Vec<String> {
    let mut world = World::new(8, 1).await;
    let faults = Faults::default();
    let process = Process::start(&world.stage.cluster, "salvor", &settings(), Line::default(), &faults);
    for node in ["node-1", "node-3", "node-4"] {
        world.sick(node).await;
        run(&mut world, 2).await;
    }
    run(&mut world, 50).await;
    // Lists and watches; requests for one object are answered.
    faults.add(Fault::new(effect).method(Method::GET).path(watch));
    faults.cut_watches();
    if recovers {
        world.well("node-3").await;
    }
    run(&mut world, 120).await;
    faults.clear();
    faults.cut_watches();
    for _ in 0..300 {
        run(&mut world, 1).await;
        if world.is_over() {
            break;
        }
    }
    let mut wrong = world.problems();
    if !world.is_over() {
        wrong.push(format!("it came to no end: {}", world.policy()["status"]));
    }
    let expected = if recovers { 2 } else { 3 };
    let deleted = world.audit().deleted;
    if deleted.len() != expected {
        wrong.push(format!("{deleted:?} were deleted"));
    }
    drop(process);
    wrong
}

#[test]
fn a_watch_that_is_not_heard_breaks_no_budget() {
    let mut wrong = Vec::new();
    for watch in ["/nodes?", "/nodeclaims?", "/noderepairpolicies?", "/nodepools?"] {
        for effect in [Effect::Unavailable, Effect::Unanswered { carried_out: false }, Effect::Stale(40)] {
            for recovers in [false, true] {
                let found = in_virtual_time(play(watch, effect, recovers));
                wrong.extend(
                    found.into_iter().map(|it| format!("{watch} {effect:?}, recovers {recovers}: {it}")),
                );
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
