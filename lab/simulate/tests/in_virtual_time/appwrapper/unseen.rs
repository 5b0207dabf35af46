//! The watch of one kind of object is broken for ten minutes, while the others work.

use std::time::Duration;

use http::Method;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use salvor_apiserver::{Effect, Fault, Faults};
use salvor_simulate::{Line, Process, in_virtual_time};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    audit::holds,
    play::{BEAT, phase, problems_but},
    world::{APP, MEMBER, NODE, Plot, World, settings},
};
use crate::troubles::assert_none;

/// What happens meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    PodFails,
    Suspend,
    /// Resumes when nothing of it is left, or when nothing has reacted for a while.
    SuspendAndResume,
    Delete,
    Replace,
    JobDeleted,
    /// A pod with the label appears, and the AppWrapper is suspended.
    PodAppears,
}

const JOBS: &str = "/apis/batch/v1/jobs?";

const DEEDS: [Deed; 7] = [
    Deed::PodFails,
    Deed::Suspend,
    Deed::SuspendAndResume,
    Deed::Delete,
    Deed::Replace,
    Deed::JobDeleted,
    Deed::PodAppears,
];

impl Deed {
    async fn carry_out(self, world: &mut World) {
        match self {
            Self::PodFails => world.plot = Plot { failures: 1, ends: false },
            Self::Suspend | Self::SuspendAndResume => world.suspend(true).await,
            Self::Delete | Self::Replace => world.delete().await,
            Self::JobDeleted => {
                let name = world.jobs.list(&Default::default()).await.unwrap().items.remove(0).metadata.name;
                world.jobs.delete(&name.unwrap(), &DeleteParams::background()).await.unwrap();
            }
            Self::PodAppears => {
                let pod = json!({
                    "metadata": {"name": "late", "labels": {MEMBER: APP}, "finalizers": ["test.salvor.dev/hold"]},
                    "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "work"}]},
                });
                let pod = serde_json::from_value(pod).unwrap();
                world.stage.pods().create(&PostParams::default(), &pod).await.unwrap();
                world.suspend(true).await;
            }
        }
    }

    /// Whether everything that must follow has happened, after the watch of these objects was broken.
    fn is_done(self, app: &Value, left: usize, old: &Value, watch: &str) -> bool {
        let deployed = holds(&app["status"], "ResourcesDeployed");
        match self {
            Self::PodFails => phase(app) == "Running" && app["status"]["resettingCount"] == 1 && left == 4,
            Self::Suspend | Self::PodAppears => phase(app) == "Suspended" && !deployed && left == 0,
            Self::SuspendAndResume => phase(app) == "Running" && left == 4,
            Self::Delete => app.is_null() && left == 0,
            Self::Replace => phase(app) == "Running" && left == 4 && app["metadata"]["uid"] != *old,
            // The deletion was not seen: the Job may have ended by itself, so it is tried again.
            Self::JobDeleted if watch == JOBS => {
                phase(app) == "Running" && app["status"]["resettingCount"] == 1 && left == 4
            }
            Self::JobDeleted => phase(app) == "Failed" && !deployed && left == 0,
        }
    }
}

async fn run(world: &mut World, beats: usize) {
    for _ in 0..beats {
        sleep(BEAT).await;
        world.beat().await;
    }
}

async fn play(watch: &str, effect: Effect, deed: Deed, after: usize) -> Vec<String> {
    let mut world = World::new(Plot::RUNS).await;
    world.create(&[]).await;
    let faults = Faults::default();
    let process = Process::start(&world.stage.cluster, "salvor", &settings(), Line::default(), &faults);
    run(&mut world, 10).await;
    assert_eq!(world.phase(), "Running");
    // Lists and watches of all namespaces; requests for one object, or for one namespace, are answered.
    faults.add(Fault::new(effect).method(Method::GET).path(watch));
    faults.cut_watches();
    run(&mut world, after).await;
    let old = world.app()["metadata"]["uid"].clone();
    deed.carry_out(&mut world).await;
    for _ in 0..60 {
        run(&mut world, 1).await;
        let app = world.app();
        if deed == Deed::Replace && app.is_null() {
            world.create(&[]).await;
        }
        if deed == Deed::SuspendAndResume && phase(&app) == "Suspended" {
            world.suspend(false).await;
        }
    }
    let unfinalized = json!({"metadata": {"finalizers": null}});
    let _ = world.stage.pods().patch("late", &PatchParams::default(), &Patch::Merge(unfinalized)).await;
    faults.clear();
    faults.cut_watches();
    for _ in 0..200 {
        run(&mut world, 1).await;
        let app = world.app();
        match deed {
            Deed::Replace if app.is_null() => world.create(&[]).await,
            Deed::SuspendAndResume if !app.is_null() => world.suspend(false).await,
            _ => {}
        }
        if deed.is_done(&app, world.left().await, &old, watch) {
            break;
        }
    }
    let app = world.app();
    let mut wrong = problems_but(&world, &[]);
    if !deed.is_done(&app, world.left().await, &old, watch) {
        wrong.push(format!("it came to {}, with {} left", app["status"], world.left().await));
    }
    process.stop().await;
    let tell = |it| format!("{watch} {effect:?}, {deed:?} {after} beats after: {it}");
    wrong.into_iter().map(tell).collect()
}

fn unseen(watch: &str) {
    let never = Duration::from_secs(86_400);
    let mut wrong = Vec::new();
    for effect in [Effect::Lag(never), Effect::InternalError] {
        for deed in DEEDS {
            for after in [0, 30] {
                wrong.extend(in_virtual_time(play(watch, effect, deed, after)));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn pods() {
    unseen("/api/v1/pods?");
}

#[test]
fn jobs() {
    unseen(JOBS);
}

#[test]
fn appwrappers() {
    unseen("/appwrappers?");
}

#[test]
fn nodes() {
    unseen("/nodes?");
}
