//! The controller is killed before and after every single write, is partitioned, is replaced, and meets every fault:
//! the end is the same, no component is created twice, and no retry is lost or wasted.

use std::time::Duration;

use salvor_apiserver::Effect;
use salvor_simulate::{Line, in_virtual_time};
use tokio::time::sleep;

use super::{
    play::{BEAT, Flow, ending, is_over, play, until},
    world::{World, settings},
};
use crate::troubles::{MOST_WRITES, Salvor, TROUBLES, Trouble, assert_none, at_every_write};

fn all_points_of(flow: Flow, trouble: Trouble) -> Vec<String> {
    let wrong = at_every_write(20, |line| play(flow, line, trouble));
    wrong.into_iter().map(|it| format!("{flow:?}, {trouble:?}, {it}")).collect()
}

#[test]
fn an_appwrapper_that_is_mended_in_two_resets() {
    assert_none(&all_points_of(Flow::Mended, Trouble::None));
}

#[test]
fn an_appwrapper_that_is_given_up() {
    assert_none(&all_points_of(Flow::GivenUp, Trouble::None));
}

#[test]
fn a_lost_answer_and_a_crash_at_any_write() {
    assert_none(&all_points_of(Flow::Mended, Trouble::Struck(Effect::AnswerLost)));
}

#[test]
fn every_trouble_alone() {
    let mut wrong = Vec::new();
    for flow in [Flow::Mended, Flow::GivenUp] {
        for trouble in TROUBLES {
            let (found, _) = in_virtual_time(play(flow, Line::default(), trouble));
            wrong.extend(found.into_iter().map(|it| format!("{flow:?}, {trouble:?}: {it}")));
        }
    }
    assert_none(&wrong);
}

/// The leader is partitioned while one of its writes is in flight, another process takes over, and later that write
/// arrives after all.
async fn overtaken(flow: Flow, write: u32, late: Duration) -> (Vec<String>, u32) {
    let mut world = flow.begin().await;
    let stage = world.stage.clone();
    let line = Line::holding(write);
    let mut salvor = Salvor::start(&stage, settings(), line.clone(), Trouble::None, Duration::ZERO);
    let arrival = tokio::spawn(async move {
        line.held().await;
        line.cut();
        sleep(late).await;
        line.let_go();
    });
    let over = async |world: &World| is_over(&world.app());
    until(&mut world, &mut salvor, over).await;
    while salvor.lives() > 1 && !arrival.is_finished() {
        salvor.live(BEAT).await;
        world.beat().await;
    }
    arrival.abort();
    salvor.live(BEAT * 20).await;
    let wrong = ending(&world, flow).await;
    (wrong, salvor.stop().await.1)
}

#[test]
fn a_leader_whose_last_write_arrives_when_another_one_leads() {
    let mut wrong = Vec::new();
    // Before the other process leads, right when it does, and much later.
    for late in [1, 61, 400].map(Duration::from_secs) {
        for write in 1..MOST_WRITES {
            let (found, lives) = in_virtual_time(overtaken(Flow::Mended, write, late));
            wrong.extend(found.into_iter().map(|it| format!("write {write}, {late:?} late: {it}")));
            if lives == 1 {
                break;
            }
        }
    }
    assert_none(&wrong);
}

/// A new process leads every few beats; the previous one is killed, or stops gracefully.
async fn in_turn(flow: Flow, beats: usize, peace: bool) -> Vec<String> {
    let mut world = flow.begin().await;
    let stage = world.stage.clone();
    let mut number = 0;
    let mut over = false;
    while !over && number < 60 {
        number += 1;
        let line = Line::default();
        let mut salvor = Salvor::start(&stage, settings(), line.clone(), Trouble::None, Duration::ZERO);
        for _ in 0..beats {
            salvor.live(BEAT).await;
            world.beat().await;
        }
        over = is_over(&world.app());
        if peace {
            salvor.stop().await;
        } else {
            line.cut();
        }
    }
    let mut wrong = ending(&world, flow).await;
    if !over {
        wrong.push(format!("{number} processes brought it to no end"));
    }
    wrong
}

#[test]
fn leaders_in_turn() {
    let mut wrong = Vec::new();
    for flow in [Flow::Mended, Flow::GivenUp] {
        // A killed process keeps the Lease for 60 seconds.
        for (beats, peace) in [(3, true), (7, true), (14, false), (17, false), (23, false)] {
            let found = in_virtual_time(in_turn(flow, beats, peace));
            wrong.extend(
                found.into_iter().map(|it| format!("{flow:?}, {beats} beats, in peace {peace}: {it}")),
            );
        }
    }
    assert_none(&wrong);
}
