//! Without webhooks, which would refuse it, a user changes the components of an AppWrapper: at every moment, with and
//! without a crash, and with and without a revert.

use std::time::Duration;

use salvor_apiserver::ChangeKind;
use salvor_simulate::{Line, in_virtual_time};
use serde_json::{Value, json};

use super::{
    audit::holds,
    play::{BEAT, Flow, describe, is_over, problems_but, until},
    world::{World, settings},
};
use crate::stage::Happening;
use crate::troubles::{Salvor, Trouble, assert_none};

/// What a user does to the components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Image,
    /// The bare pod is removed.
    Fewer,
    /// One more Job.
    More,
    /// The Job has another name.
    Renamed,
}

const CHANGES: [Change; 4] = [Change::Image, Change::Fewer, Change::More, Change::Renamed];

impl Change {
    fn of(self, components: &Value) -> Value {
        let mut changed = components.clone();
        match self {
            Self::Image => {
                changed[0]["template"]["spec"]["template"]["spec"]["containers"][0]["image"] =
                    "changed".into();
                changed[1]["template"]["spec"]["containers"][0]["image"] = "changed".into();
            }
            Self::Fewer => drop(changed.as_array_mut().unwrap().pop()),
            Self::More => {
                let mut more = changed[0].clone();
                more["template"]["metadata"]["name"] = "changed".into();
                changed.as_array_mut().unwrap().push(more);
            }
            Self::Renamed => changed[0]["template"]["metadata"]["name"] = "changed".into(),
        }
        changed
    }
}

/// Whether anything was ever created from a changed template.
fn is_made_of_it(it: &Happening) -> bool {
    it.change == ChangeKind::Added
        && ["jobs", "pods"].contains(&it.resource.as_str())
        && it.object.to_string().contains("\"changed\"")
}

fn refused(app: &Value) -> bool {
    let conditions = app["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions
        .iter()
        .any(|it| it["type"] == "ComponentsValid" && it["status"] == "False" && it["reason"] == "Refused")
}

/// Changes the components at beat `at`, and reverts the change after `back` beats; never if that is `None`.
async fn play(change: Change, at: usize, back: Option<usize>, crash: bool) -> Vec<String> {
    let flow = Flow::Mended;
    let mut world = flow.begin().await;
    let stage = world.stage.clone();
    let line = Line::default();
    let mut salvor = Salvor::start(&stage, settings(), line.clone(), Trouble::None, Duration::ZERO);
    for _ in 0..at {
        salvor.live(BEAT).await;
        world.beat().await;
    }
    let mut wrong = Vec::new();
    let before = world.app()["spec"]["components"].clone();
    let made_before = stage.happenings().iter().filter(|it| is_made_of_it(it)).count();
    assert_eq!(made_before, 0);
    if crash {
        // The operator is down when the change is made.
        line.cut();
    }
    world.change(json!({"spec": {"components": change.of(&before)}})).await;
    for beat in 0..back.unwrap_or(1) {
        salvor.live(BEAT).await;
        world.beat().await;
        let app = world.app();
        // After a crash there is no leader for a minute.
        if beat == 8 && !crash && !is_over(&app) && !refused(&app) {
            wrong.push(format!("nobody is told: {}", app["status"]));
        }
    }
    let expected = if back.is_some() {
        world.change(json!({"spec": {"components": before}})).await;
        Some(flow.end())
    } else {
        None
    };
    let over = async |world: &World| is_over(&world.app());
    if !until(&mut world, &mut salvor, over).await {
        wrong.push(format!("it came to no end: {}", world.app()["status"]));
    }
    let (app, end) = (world.app(), describe(&world).await);
    if expected.as_ref().is_some_and(|expected| *expected != end) {
        wrong.push(format!("it ended as {end}"));
    }
    if holds(&app["status"], "QuotaReserved") {
        wrong.push(format!("it keeps its quota: {}", app["status"]));
    }
    wrong.extend(problems_but(&world, &[]));
    if stage.happenings().iter().any(is_made_of_it) {
        wrong.push("what was not admitted was made".into());
    }
    world.delete().await;
    let gone = async |world: &World| world.app().is_null() && world.left().await == 0;
    if !until(&mut world, &mut salvor, gone).await {
        wrong.push(format!("after its deletion {} are left", world.left().await));
    }
    salvor.stop().await;
    let tell = |it| format!("{change:?} at beat {at}, back after {back:?}, crash {crash}: {it}");
    wrong.into_iter().map(tell).collect()
}

/// Beats at which it waits for its pods, runs, waits for the grace period, deletes, pauses, and runs again.
const MOMENTS: [usize; 7] = [1, 5, 12, 17, 24, 33, 47];

#[test]
fn a_change_at_any_beat_and_back_again() {
    let mut wrong = Vec::new();
    for change in CHANGES {
        for at in MOMENTS {
            for crash in [false, true] {
                // Shorter than the pause.
                wrong.extend(in_virtual_time(play(change, at, Some(10), crash)));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn a_change_at_any_beat_that_is_not_taken_back() {
    let mut wrong = Vec::new();
    for change in CHANGES {
        for at in MOMENTS {
            wrong.extend(in_virtual_time(play(change, at, None, at % 2 == 0)));
        }
    }
    assert_none(&wrong);
}
