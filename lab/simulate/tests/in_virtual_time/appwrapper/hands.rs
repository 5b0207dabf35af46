//! A user edits the status by hand, or writes annotations that cannot be parsed.

use std::time::Duration;

use salvor_simulate::{Line, in_virtual_time};
use serde_json::{Value, json};

use super::{
    audit::{Rule, problems},
    play::{BEAT, is_over, phase, until},
    world::{Plot, World, settings},
};
use crate::troubles::{Salvor, Trouble, assert_none};

/// Rules that the user's edit breaks by itself.
const BY_HAND: [Rule; 4] = [Rule::Released, Rule::Phases, Rule::Retries, Rule::Undeclared];

fn edits() -> Vec<Value> {
    let now = "2026-01-01T00:00:00Z";
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "Hand", "message": "", "lastTransitionTime": now});
    let phases = [
        "",
        "Suspended",
        "Resuming",
        "Running",
        "Resetting",
        "Suspending",
        "Succeeded",
        "Failed",
        "Terminating",
    ];
    let mut edits: Vec<Value> = phases.iter().map(|phase| json!({"phase": phase})).collect();
    edits.extend(phases.iter().map(|phase| json!({"phase": phase, "conditions": null})));
    edits.extend(phases.iter().map(|phase| json!({"phase": phase, "conditions": [condition("ResourcesDeployed", "False"), condition("QuotaReserved", "False")]})));
    edits.extend([
        json!({"conditions": null}),
        json!({"componentStatus": null}),
        json!({"conditions": null, "componentStatus": null, "phase": null, "resettingCount": null, "resets": null}),
        json!({"resettingCount": -5}),
        json!({"resettingCount": i32::MAX}),
        json!({"resets": null}),
        json!({"admitted": null}),
        json!({"admitted": {"version": 1, "user": "", "userid": "", "components": []}}),
        json!({"admitted": null, "componentStatus": null}),
        json!({"conditions": [condition("ResourcesDeployed", "Unknown")]}),
        json!({"conditions": [condition("DeletingResources", "True"), condition("ResourcesDeployed", "True")]}),
        json!({"conditions": [condition("Unhealthy", "True"), condition("ResourcesDeployed", "True")]}),
        json!({"componentStatus": [{"name": "else", "kind": "Job", "apiVersion": "batch/v1", "podSets": [], "conditions": [condition("ResourcesDeployed", "True")]}]}),
    ]);
    edits
}

/// A user edits the status in a phase. Whatever follows, nothing runs twice, and a deletion leaves nothing behind.
async fn edited(edit: &Value, at: &str) -> Vec<String> {
    let plot = match at {
        "Resetting" => Plot { failures: 1, ends: false },
        "Succeeded" => Plot { failures: 0, ends: true },
        "Failed" => Plot { failures: 9, ends: true },
        _ => Plot::RUNS,
    };
    let mut world = World::new(plot).await;
    world.create(&[("retryLimit", if at == "Failed" { "0" } else { "2" })]).await;
    let stage = world.stage.clone();
    let mut salvor = Salvor::start(&stage, settings(), Line::default(), Trouble::None, Duration::ZERO);
    if at == "Suspended" {
        world.suspend(true).await;
    }
    let mut beats = 0;
    while world.phase() != at {
        salvor.live(Duration::from_secs(1)).await;
        world.beat().await;
        beats += 1;
        assert!(beats < 300, "{at} was never reached: {}", world.app()["status"]);
    }
    if let Err(error) = world.edit_status(edit).await {
        // The schema forbids it.
        assert!(error.contains("nvalid"), "{error}");
        return Vec::new();
    }
    for _ in 0..80 {
        salvor.live(BEAT).await;
        world.beat().await;
    }
    let came_to = world.app()["status"].clone();
    world.delete().await;
    let gone = async |world: &World| world.app().is_null() && world.left().await == 0;
    let mut wrong = Vec::new();
    if !until(&mut world, &mut salvor, gone).await {
        let status = world.app()["status"].clone();
        wrong.push(format!("after its deletion there is {} left, and {status}", world.left().await));
    }
    wrong.extend(problems(&world.stage.happenings(), i64::MAX, &BY_HAND));
    salvor.stop().await;
    let tell = |it| format!("{edit} in {at}, which came to {}: {it}", came_to["phase"]);
    wrong.into_iter().map(tell).collect()
}

fn edited_in(at: &str) {
    let wrong: Vec<String> = edits().iter().flat_map(|edit| in_virtual_time(edited(edit, at))).collect();
    assert_none(&wrong);
}

#[test]
fn a_status_that_is_edited_in_running() {
    edited_in("Running");
}

#[test]
fn a_status_that_is_edited_in_resetting() {
    edited_in("Resetting");
}

#[test]
fn a_status_that_is_edited_in_suspended() {
    edited_in("Suspended");
}

#[test]
fn a_status_that_is_edited_in_succeeded() {
    edited_in("Succeeded");
}

#[test]
fn a_status_that_is_edited_in_failed() {
    edited_in("Failed");
}

/// Every annotation has this value. The workload always fails, so the AppWrapper must come to an end.
async fn annotated(value: &str) -> Vec<String> {
    let mut world = World::new(Plot { failures: usize::MAX, ends: true }).await;
    let keys = [
        "admissionGracePeriodDuration",
        "warmupGracePeriodDuration",
        "failureGracePeriodDuration",
        "retryPausePeriodDuration",
        "retryLimit",
        "forcefulDeletionGracePeriodDuration",
        "deletionOnFailureGracePeriodDuration",
        "successTTL",
        "terminalExitCodes",
        "retryableExitCodes",
    ];
    let all: Vec<(&str, &str)> = keys.iter().map(|key| (*key, value)).collect();
    world.create(&all).await;
    let stage = world.stage.clone();
    let mut salvor = Salvor::start(&stage, settings(), Line::default(), Trouble::None, Duration::ZERO);
    let over = async |world: &World| is_over(&world.app());
    let ended = until(&mut world, &mut salvor, over).await;
    let mut wrong = problems(&world.stage.happenings(), 3, &[]);
    let app = world.app();
    if !ended || phase(&app) != "Failed" {
        wrong.push(format!("it came to {}", app["status"]));
    }
    salvor.stop().await;
    wrong.into_iter().map(|it| format!("{value:.40}: {it}")).collect()
}

#[test]
fn annotations_that_nobody_can_read() {
    let long = "9".repeat(20_000);
    let values =
        ["", " ", "0", "-1", "-1h", "1e9", "NaN", "two", "5 m", "\u{0}", "ß∞", "1,,2", "--", "null", &long];
    let wrong: Vec<String> = values.iter().flat_map(|value| in_virtual_time(annotated(value))).collect();
    assert_none(&wrong);
}
