//! Private control planes of a test: flags, crashes, and several at once.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use salvor_testkit::{ControlPlane, Part, PlaneError, Recorder, wait};
use support::{config_map, step};

fn config_maps(client: Client) -> Api<ConfigMap> {
    Api::default_namespaced(client)
}

#[tokio::test]
async fn what_was_written_survives_a_crash_of_every_part_that_keeps_it() {
    let plane = ControlPlane::builder().start().await.unwrap();
    let arena = plane.arena("crash").await;
    let config_maps = config_maps(arena.client());
    config_maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let recorder = Recorder::start(&config_maps, &ListParams::default()).await;

    let first = plane.pid(Part::ApiServer);
    plane.crash(Part::ApiServer).await.unwrap();
    assert_eq!(plane.pid(Part::ApiServer), None);
    config_maps.get("a").await.expect_err("a dead API server has answered");
    plane.restart(Part::ApiServer).await.unwrap();
    assert_ne!(plane.pid(Part::ApiServer), first);
    assert_eq!(step(&config_maps.get("a").await.unwrap()), Some("1"));

    config_maps.replace("a", &PostParams::default(), &config_map("a", "2")).await.unwrap();
    let pid = plane.pid(Part::Etcd);
    plane.restart(Part::Etcd).await.unwrap();
    assert_ne!(plane.pid(Part::Etcd), pid);
    // The API server takes a moment to reconnect to etcd.
    wait::for_object(&config_maps, "a", "step 2", |map| step(map) == Some("2")).await;
    plane.restart(Part::ApiServer).await.unwrap();
    config_maps.replace("a", &PostParams::default(), &config_map("a", "3")).await.unwrap();

    // Watches have survived it all, if not without gaps.
    let changes = recorder.changes_despite_gaps().await;
    let steps: Vec<_> = changes.iter().filter_map(|change| change.object["data"]["step"].as_str()).collect();
    assert!(steps.is_sorted(), "{steps:?}");
    assert_eq!((steps.first(), steps.last()), (Some(&"1"), Some(&"3")));
}

#[tokio::test]
async fn parts_start_on_demand_and_only_once() {
    let plane = ControlPlane::builder().start().await.unwrap();
    assert_eq!(plane.pid(Part::Scheduler), None);
    assert!(matches!(plane.crash(Part::Scheduler).await, Err(PlaneError::NotRunning(Part::Scheduler))));
    plane.start(Part::Scheduler).await.unwrap();
    assert!(plane.pid(Part::Scheduler).is_some());
    assert!(matches!(plane.start(Part::Scheduler).await, Err(PlaneError::Running(Part::Scheduler))));
}

#[tokio::test]
async fn a_flag_replaces_the_one_of_the_testkit() {
    let plane = ControlPlane::builder()
        .flag(Part::ApiServer, "--authorization-mode=AlwaysAllow")
        .start()
        .await
        .unwrap();
    let arena = plane.arena("flags").await;
    let nobody = arena.admin().service_account(arena.namespace(), "nobody", Vec::new()).await.unwrap();
    let config_maps = config_maps(nobody.client("nobody"));
    config_maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
}

#[tokio::test]
async fn a_part_that_does_not_start_says_why() {
    let outcome = ControlPlane::builder().flag(Part::ApiServer, "--no-such-flag").start().await;
    let message = outcome.unwrap_err().to_string();
    assert!(
        message.contains("kube-apiserver ended") && message.contains("unknown flag: --no-such-flag"),
        "{message}"
    );
}

#[tokio::test]
async fn two_control_planes_know_nothing_of_each_other() {
    let (one, other) = tokio::join!(ControlPlane::builder().start(), ControlPlane::builder().start());
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_ne!(one.folder(), other.folder());
    let mine = config_maps(one.admin().client("one"));
    let theirs = config_maps(other.admin().client("other"));
    mine.create(&PostParams::default(), &config_map("mine", "1")).await.unwrap();
    assert!(theirs.get_opt("mine").await.unwrap().is_none());

    let folder = one.folder().to_owned();
    drop(one);
    assert!(!folder.exists());
    theirs.create(&PostParams::default(), &config_map("theirs", "1")).await.unwrap();
}
