//! A user corrupts the annotations or the status of an AppWrapper, and reverts that minutes later.

use std::time::Duration;

use salvor_api::names::appwrapper::{annotations, conditions};
use salvor_apiserver::Faults;
use salvor_simulate::{Line, Process};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    play::{BEAT, Flow, describe, is_over},
    world::{Plot, World, settings},
};
use crate::corrupted::{Corruption, Spot, Story, assert_withstood};
use crate::stage::Stage;

const APP: &str = "/apis/workload.codeflare.dev/v1beta2/namespaces/default/appwrappers/work";

/// Starts Salvor, and runs until the AppWrapper is in a phase, and then this many beats.
async fn begin(mut world: World, phase: &str, beats: usize) -> (World, Process) {
    let (line, faults) = (Line::default(), Faults::default());
    let process = Process::start(&world.stage.cluster, "salvor", &settings(), line, &faults);
    let mut waited = 0;
    while world.phase() != phase {
        sleep(Duration::from_secs(1)).await;
        world.beat().await;
        waited += 1;
        assert!(waited < 300, "{phase} was never reached: {}", world.app()["status"]);
    }
    for _ in 0..beats {
        sleep(BEAT).await;
        world.beat().await;
    }
    (world, process)
}

/// An AppWrapper that fails twice, is reset twice, and succeeds. It is in its first reset.
struct Mending(World);

impl Mending {
    async fn begin() -> (Self, Process) {
        let (world, process) = begin(Flow::Mended.begin().await, "Resetting", 0).await;
        (Self(world), process)
    }
}

impl Story for Mending {
    fn stage(&self) -> &Stage {
        &self.0.stage
    }

    async fn beat(&mut self) {
        self.0.beat().await;
    }

    async fn is_over(&self) -> bool {
        is_over(&self.0.app())
    }

    async fn end(&self) -> Value {
        describe(&self.0).await
    }
}

fn of_annotations() -> Vec<Vec<Spot>> {
    let timer = |key| Spot::annotation(APP, key).example(json!("1m")).told(&Corruption::ALL);
    // An empty list names no code.
    let codes = |key| {
        let told = &[Corruption::Garbage, Corruption::Huge, Corruption::Old, Corruption::Future];
        Spot::annotation(APP, key).example(json!("3,10")).told(told)
    };
    // A message has room for a few.
    vec![
        vec![
            timer(annotations::ADMISSION_GRACE_PERIOD),
            timer(annotations::WARMUP_GRACE_PERIOD),
            timer(annotations::FAILURE_GRACE_PERIOD),
            timer(annotations::RETRY_PAUSE_PERIOD),
        ],
        vec![
            timer(annotations::RETRY_LIMIT),
            timer(annotations::FORCEFUL_DELETION_GRACE_PERIOD),
            timer(annotations::DELETION_ON_FAILURE_GRACE_PERIOD),
            timer(annotations::SUCCESS_TTL),
        ],
        vec![codes(annotations::TERMINAL_EXIT_CODES), codes(annotations::RETRYABLE_EXIT_CODES)],
    ]
}

#[test]
fn annotations_of_one_that_is_reset() {
    assert_withstood(Mending::begin, &of_annotations());
}

/// An AppWrapper that runs, and keeps running.
struct Steady(World);

impl Steady {
    async fn begin() -> (Self, Process) {
        let world = World::new(Plot::RUNS).await;
        world.create(&[("retryLimit", "2")]).await;
        let (world, process) = begin(world, "Running", 6).await;
        (Self(world), process)
    }
}

impl Story for Steady {
    fn stage(&self) -> &Stage {
        &self.0.stage
    }

    async fn beat(&mut self) {
        self.0.beat().await;
    }

    async fn is_over(&self) -> bool {
        self.0.phase() == "Running"
    }

    async fn end(&self) -> Value {
        describe(&self.0).await
    }
}

fn of_status() -> Vec<Vec<Spot>> {
    let field = |name: &'static str, way: &[&'static str]| Spot::field(APP, name, way);
    let unknown = &[Corruption::Garbage, Corruption::Huge, Corruption::Old, Corruption::Future];
    let of_conditions = vec![
        field(conditions::QUOTA_RESERVED, &["status", "conditions", "type=QuotaReserved"]),
        field(conditions::RESOURCES_DEPLOYED, &["status", "conditions", "type=ResourcesDeployed"]),
        field(conditions::PODS_READY, &["status", "conditions", "type=PodsReady"]),
        field(conditions::UNHEALTHY, &["status", "conditions", "type=Unhealthy"])
            .example(absent("Unhealthy")),
        field(conditions::DELETING_RESOURCES, &["status", "conditions", "type=DeletingResources"])
            .example(absent("DeletingResources")),
    ];
    vec![
        vec![field("AppWrapper status.phase", &["status", "phase"]).told(unknown).by("status.phase")],
        vec![
            field("AppWrapper status.resettingCount", &["status", "resettingCount"]).example(json!(0)),
            field("AppWrapper status.resets", &["status", "resets"]).example(json!([])),
        ],
        vec![field("AppWrapper status.admitted", &["status", "admitted"]).put_back()],
        vec![field("AppWrapper status.componentStatus", &["status", "componentStatus"])],
        vec![field("AppWrapper status.conditions", &["status", "conditions"]).put_back()],
        of_conditions,
    ]
}

fn absent(kind: &str) -> Value {
    let at = "2026-01-01T00:00:00Z";
    json!({"type": kind, "status": "False", "reason": "Somebody", "message": "said", "lastTransitionTime": at})
}

#[test]
fn the_status_of_one_that_runs() {
    assert_withstood(Steady::begin, &of_status());
}

/// All places of AppWrappers that are corrupted.
pub(crate) fn all_spots() -> Vec<Vec<Spot>> {
    of_annotations().into_iter().chain(of_status()).collect()
}
