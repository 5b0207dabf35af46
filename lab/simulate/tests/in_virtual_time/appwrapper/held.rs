//! A pod cannot go away, because of a finalizer or an unreachable node. The quota is kept until it does.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use salvor_simulate::{CrashPoint, Line, in_virtual_time};
use serde_json::json;

use super::{
    audit::holds,
    play::{BEAT, phase, problems_but, until},
    world::{NODE, Plot, World, settings},
};
use crate::troubles::{Salvor, Trouble, assert_none};

/// Two hours in beats.
const LONG: usize = 1440;

/// Why everything is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Reset,
    Failed,
    Suspend,
    Delete,
}

const REASONS: [Reason; 4] = [Reason::Reset, Reason::Failed, Reason::Suspend, Reason::Delete];

/// What blocks the deletion of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// On a pod of the Job, and on the bare pod.
    Finalizer,
    /// Its kubelet sends no heartbeats.
    LostNode,
}

async fn begin(reason: Reason, holder: Holder) -> World {
    let failures = usize::from(matches!(reason, Reason::Reset | Reason::Failed));
    let world = World::new(Plot { failures, ends: false }).await;
    let limit = if reason == Reason::Failed { "0" } else { "2" };
    // A user may have configured a force deletion that the finalizer never allows.
    let force = if holder == Holder::Finalizer { "5m" } else { "10m" };
    world.create(&[("retryLimit", limit), ("forcefulDeletionGracePeriodDuration", force)]).await;
    world
}

async fn finalizers(world: &World, finalizers: serde_json::Value) {
    for pod in world.all_pods().await {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        let _ = world.stage.pods().patch(&pod.metadata.name.unwrap(), &PatchParams::default(), &patch).await;
    }
}

async fn play(reason: Reason, holder: Holder, crash: Option<CrashPoint>) -> (Vec<String>, u32) {
    let mut world = begin(reason, holder).await;
    let stage = world.stage.clone();
    let line = crash.map(Line::dying).unwrap_or_default();
    let mut salvor = Salvor::start(&stage, settings(), line, Trouble::None, Duration::ZERO);
    // Its pods run, or the bare one has failed.
    let mut beats = 0;
    while phase(&world.app()) != "Running" || world.left().await < 4 {
        salvor.live(BEAT).await;
        world.beat().await;
        beats += 1;
        assert!(beats < 100, "{crash:?}: {}", world.app()["status"]);
    }
    for _ in 0..3 {
        salvor.live(BEAT).await;
        world.beat().await;
    }
    match holder {
        Holder::Finalizer => finalizers(&world, json!(["test.salvor.dev/hold"])).await,
        Holder::LostNode => {}
    }
    match reason {
        Reason::Reset | Reason::Failed => {
            let begun = async |world: &World| holds(&world.app()["status"], "DeletingResources");
            let mut beats = 0;
            while !begun(&world).await && beats < 100 {
                salvor.live(BEAT).await;
                beats += 1;
            }
        }
        Reason::Suspend => world.suspend(true).await,
        Reason::Delete => world.delete().await,
    }
    let mut wrong = Vec::new();
    if holder == Holder::LostNode {
        world.lost.insert(NODE.into());
        stage.lose(NODE).await;
    } else {
        for _ in 0..LONG {
            salvor.live(BEAT).await;
            world.beat().await;
        }
        let app = world.app();
        if !holds(&app["status"], "ResourcesDeployed") || !holds(&app["status"], "QuotaReserved") {
            wrong.push(format!("quota is free while a finalizer holds pods: {}", app["status"]));
        }
        finalizers(&world, json!(null)).await;
    }
    let done = async |world: &World| {
        let (app, left) = (world.app(), world.left().await);
        match reason {
            // On a lost node the new pods do not run, but they exist.
            Reason::Reset => {
                app["status"]["resettingCount"].as_i64() >= Some(1)
                    && left == 4
                    && holds(&app["status"], "ResourcesDeployed")
            }
            Reason::Failed => phase(&app) == "Failed" && left == 0 && !holds(&app["status"], "QuotaReserved"),
            Reason::Suspend => phase(&app) == "Suspended" && left == 0,
            Reason::Delete => app.is_null() && left == 0,
        }
    };
    if !until(&mut world, &mut salvor, done).await {
        wrong.push(format!("it came to {}, with {} left", world.app()["status"], world.left().await));
    }
    wrong.extend(problems_but(&world, &[]));
    let (_, lives) = salvor.stop().await;
    (wrong.into_iter().map(|it| format!("{reason:?}, {holder:?}, {crash:?}: {it}")).collect(), lives)
}

#[test]
fn a_finalizer_holds_quota_for_as_long_as_it_is_there() {
    let all = REASONS.into_iter().flat_map(|reason| in_virtual_time(play(reason, Holder::Finalizer, None)).0);
    assert_none(&all.collect::<Vec<_>>());
}

#[test]
fn a_node_that_is_lost_meanwhile_holds_quota_until_force_is_due() {
    let all = REASONS.into_iter().flat_map(|reason| in_virtual_time(play(reason, Holder::LostNode, None)).0);
    assert_none(&all.collect::<Vec<_>>());
}

#[test]
fn a_crash_at_any_write_while_a_node_is_lost() {
    let mut wrong = Vec::new();
    for reason in REASONS {
        for write in 1..60 {
            let mut lives = 0;
            for crash in [CrashPoint::Before(write), CrashPoint::After(write)] {
                let (found, of) = in_virtual_time(play(reason, Holder::LostNode, Some(crash)));
                wrong.extend(found);
                lives = of;
            }
            if lives == 1 {
                break;
            }
        }
    }
    assert_none(&wrong);
}
