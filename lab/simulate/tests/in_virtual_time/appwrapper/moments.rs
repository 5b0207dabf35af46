//! A user suspends or deletes the AppWrapper at every moment of its life: while each single write is in flight, and at
//! every beat in between, with and without a crash at that moment.

use std::time::Duration;

use salvor_simulate::{Line, in_virtual_time};
use serde_json::Value;

use super::{
    audit::holds,
    play::{BEAT, Flow, is_over, phase, problems_but, until},
    world::{APP, World, settings},
};
use crate::troubles::{MOST_WRITES, Salvor, Trouble, assert_none};

const MOST_BEATS: usize = 150;

/// What a user does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Suspend,
    /// Resumes at once.
    SuspendAndResume,
    Delete,
    /// Creates another one under the same name.
    Replace,
}

const DEEDS: [Deed; 4] = [Deed::Suspend, Deed::SuspendAndResume, Deed::Delete, Deed::Replace];

/// When it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// While this write is in flight.
    Write(u32),
    /// After this many beats.
    Beat(usize),
}

impl Deed {
    async fn carry_out(self, world: &World) {
        match self {
            Self::Suspend => world.suspend(true).await,
            Self::SuspendAndResume => {
                world.suspend(true).await;
                world.suspend(false).await;
            }
            Self::Delete | Self::Replace => world.delete().await,
        }
    }

    /// Whether everything that must follow has happened.
    fn is_done(self, app: &Value, left: usize, old: &Value) -> bool {
        let released = |app: &Value| {
            !holds(&app["status"], "ResourcesDeployed")
                && !holds(&app["status"], "QuotaReserved")
                && left == 0
        };
        match self {
            Self::Suspend => ["Suspended", "Succeeded", "Failed"].contains(&phase(app)) && released(app),
            Self::SuspendAndResume => is_over(app),
            Self::Delete => app.is_null() && left == 0,
            Self::Replace => is_over(app) && app["metadata"]["uid"] != *old,
        }
    }
}

/// Returns all problems, and whether the moment came at all.
async fn play(flow: Flow, deed: Deed, moment: Moment, crash: bool) -> (Vec<String>, bool) {
    let mut world = flow.begin().await;
    let stage = world.stage.clone();
    let line = match moment {
        Moment::Write(write) => Line::holding(write),
        Moment::Beat(_) => Line::default(),
    };
    let mut salvor = Salvor::start(&stage, settings(), line.clone(), Trouble::None, Duration::ZERO);
    let mut came = false;
    for beat in 0..MOST_BEATS {
        tokio::select! {
            biased;
            () = line.held(), if matches!(moment, Moment::Write(_)) => came = true,
            () = salvor.live(BEAT) => {}
        }
        came |= moment == Moment::Beat(beat);
        if came || (matches!(moment, Moment::Write(_)) && is_over(&world.app())) {
            break;
        }
        world.beat().await;
    }
    if !came {
        return (Vec::new(), false);
    }
    let old = world.app()["metadata"]["uid"].clone();
    deed.carry_out(&world).await;
    if crash {
        line.cut();
    }
    line.let_go();
    if deed == Deed::Replace {
        let gone = async |world: &World| world.apps.get_opt(APP).await.unwrap().is_none();
        for _ in 0..MOST_BEATS {
            if gone(&world).await {
                break;
            }
            salvor.live(Duration::from_secs(1)).await;
            world.beat().await;
        }
        world.create(&[("retryLimit", "2")]).await;
    }
    let done = async |world: &World| deed.is_done(&world.app(), world.left().await, &old);
    let ended = until(&mut world, &mut salvor, done).await;
    let mut wrong = problems_but(&world, &[]);
    if !ended {
        let app = world.app();
        wrong.push(format!("it came to {}, with {} left", app["status"], world.left().await));
    }
    salvor.stop().await;
    let tell = |it| format!("{flow:?}, {deed:?} at {moment:?}, crash {crash}: {it}");
    (wrong.into_iter().map(tell).collect(), true)
}

fn at_every_write(deed: Deed, crash: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for flow in [Flow::Mended, Flow::GivenUp] {
        for write in 1..MOST_WRITES {
            let (found, came) = in_virtual_time(play(flow, deed, Moment::Write(write), crash));
            wrong.extend(found);
            if !came {
                assert!(write > 20, "only {write} writes");
                break;
            }
        }
    }
    wrong
}

#[test]
fn suspended_while_any_write_is_on_its_way() {
    assert_none(&at_every_write(Deed::Suspend, false));
}

#[test]
fn suspended_and_resumed_while_any_write_is_on_its_way() {
    assert_none(&at_every_write(Deed::SuspendAndResume, false));
}

#[test]
fn deleted_while_any_write_is_on_its_way() {
    assert_none(&at_every_write(Deed::Delete, false));
}

#[test]
fn replaced_under_its_name_while_any_write_is_on_its_way() {
    assert_none(&at_every_write(Deed::Replace, false));
}

#[test]
fn suspended_and_crashed_while_any_write_is_on_its_way() {
    assert_none(&at_every_write(Deed::Suspend, true));
}

#[test]
fn deleted_and_crashed_while_any_write_is_on_its_way() {
    assert_none(&at_every_write(Deed::Delete, true));
}

#[test]
fn replaced_and_crashed_while_any_write_is_on_its_way() {
    assert_none(&at_every_write(Deed::Replace, true));
}

#[test]
fn at_any_beat_in_between() {
    let mut wrong = Vec::new();
    for deed in DEEDS {
        // A prime step, so that no deed is always in step with waits of a round number of seconds.
        for beat in (1..MOST_BEATS).step_by(7) {
            for crash in [false, true] {
                wrong.extend(in_virtual_time(play(Flow::Mended, deed, Moment::Beat(beat), crash)).0);
            }
        }
    }
    assert_none(&wrong);
}
