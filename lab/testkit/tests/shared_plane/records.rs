//! Requests to the server, and its answers.

use k8s_openapi::api::core::v1::{ConfigMap, LimitRange};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use salvor_testkit::accounting::Verb;
use salvor_testkit::recorder::ChangeKind;
use salvor_testkit::{Recorder, arena};
use serde_json::json;

use crate::support::config_map;

#[tokio::test]
async fn requests_are_counted_by_verb_resource_and_user_agent() {
    let arena = arena("counting").await;
    let accounting = arena.plane().accounting();
    let limits: Api<LimitRange> = Api::default_namespaced(arena.client());
    let limit = |name: &str| -> LimitRange {
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "limits": [] } })).unwrap()
    };

    limits.create(&PostParams::default(), &limit("before")).await.unwrap();
    let mark = accounting.mark().await;
    // Only this test creates one of these in this process, so the server's own counter can be compared.
    let server_before = accounting.server_total(Verb::Create, "limitranges").await;
    for number in 0..7 {
        limits.create(&PostParams::default(), &limit(&format!("limit-{number}"))).await.unwrap();
    }
    limits.create(&PostParams::default(), &limit("limit-0")).await.unwrap_err();
    limits.get("limit-3").await.unwrap();
    let table = accounting.since(&mark).await;
    let server_after = accounting.server_total(Verb::Create, "limitranges").await;

    let ours = arena.user_agent();
    let created = table.count(|request| {
        (request.verb, request.resource.as_str(), request.user_agent.as_str(), request.code)
            == (Verb::Create, "limitranges", ours, 201)
    });
    assert_eq!(created, 7, "{table}");
    assert_eq!(table.writes_by(ours), 8, "the refused one is a write, too\n{table}");
    assert_eq!(table.by(ours), 9, "{table}");
    assert_eq!(server_after - server_before, 8, "the server counts otherwise\n{table}");
}

#[tokio::test]
async fn the_order_of_writes_is_recorded_with_their_writers() {
    let arena = arena("recording").await;
    let config_maps: Api<ConfigMap> = Api::default_namespaced(arena.client());
    config_maps.create(&PostParams::default(), &config_map("old", "0")).await.unwrap();
    let recorder = Recorder::start(&config_maps, &ListParams::default()).await;

    let by = |manager: &str| PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
    config_maps.create(&by("maker"), &config_map("a", "1")).await.unwrap();
    config_maps.create(&by("maker"), &config_map("b", "2")).await.unwrap();
    let patch = PatchParams { field_manager: Some("mender".to_owned()), ..PatchParams::default() };
    config_maps.patch("a", &patch, &Patch::Merge(json!({ "data": { "step": "3" } }))).await.unwrap();
    config_maps.delete("b", &DeleteParams::default()).await.unwrap();

    let changes = recorder.changes().await;
    let mine: Vec<_> = changes.iter().filter(|change| change.name != "kube-root-ca.crt").collect();
    let seen: Vec<_> = mine
        .iter()
        .map(|change| (change.kind, change.name.as_str(), change.object["data"]["step"].as_str()))
        .collect();
    assert_eq!(
        seen,
        [
            (ChangeKind::Existed, "old", Some("0")),
            (ChangeKind::Added, "a", Some("1")),
            (ChangeKind::Added, "b", Some("2")),
            (ChangeKind::Modified, "a", Some("3")),
            (ChangeKind::Deleted, "b", Some("2")),
        ]
    );
    assert_eq!(mine[1].written_by, ["maker Update"]);
    assert!(mine[3].written_by.contains(&"mender Update".to_owned()), "{:?}", mine[3].written_by);
    assert_eq!(mine[1].uid, mine[3].uid);
    assert!(mine.iter().all(|change| change.object["metadata"].get("managedFields").is_none()));
    let versions: Vec<u64> = mine.iter().map(|change| change.resource_version.parse().unwrap()).collect();
    assert!(versions.is_sorted(), "{versions:?}");
}
