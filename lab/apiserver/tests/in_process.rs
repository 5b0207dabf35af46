//! kube's own client, watcher and controller work on the cluster in process, under a paused clock.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::{Controller, WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use salvor_apiserver::{Cluster, Settings};
use serde_json::json;

fn pod(name: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "nodeName": "somewhere", "containers": [{ "name": "main", "image": "main:1" }] },
    }))
    .unwrap()
}

fn pods(client: &Client) -> Api<Pod> {
    Api::namespaced(client.clone(), "default")
}

#[tokio::test(start_paused = true)]
async fn objects_live_and_die() {
    let cluster = Cluster::new(Settings::default());
    let api = pods(&cluster.client());
    let created = api.create(&PostParams::default(), &pod("a")).await.unwrap();
    assert_eq!(created.status.unwrap().phase.as_deref(), Some("Pending"));

    let patch = json!({ "status": { "phase": "Running" } });
    api.patch_status("a", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let list = api.list(&ListParams::default().fields("status.phase=Running")).await.unwrap();
    assert_eq!(list.items.len(), 1);

    let marked = api.delete("a", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(marked.metadata.deletion_grace_period_seconds, Some(30));
    api.delete("a", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert!(api.get_opt("a").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_stale_write_is_refused() {
    let cluster = Cluster::new(Settings::default());
    let api: Api<ConfigMap> = Api::default_namespaced(cluster.client());
    let first: ConfigMap =
        serde_json::from_value(json!({ "metadata": { "name": "a" }, "data": { "k": "1" } })).unwrap();
    let stored = api.create(&PostParams::default(), &first).await.unwrap();
    let mut winner = stored.clone();
    winner.data.get_or_insert_default().insert("k".to_owned(), "2".to_owned());
    api.replace("a", &PostParams::default(), &winner).await.unwrap();
    let error = api.replace("a", &PostParams::default(), &stored).await.unwrap_err();
    let kube::Error::Api(status) = error else { panic!("{error}") };
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
}

#[tokio::test(start_paused = true)]
async fn a_watcher_follows_changes_and_a_compaction() {
    let cluster = Cluster::new(Settings::default());
    let api = pods(&cluster.client());
    for name in ["a", "b"] {
        api.create(&PostParams::default(), &pod(name)).await.unwrap();
    }
    let mut seen =
        watcher(api.clone(), watcher::Config::default()).default_backoff().touched_objects().boxed();
    let mut next = async || seen.next().await.unwrap().unwrap().name_any();
    assert_eq!(next().await, "a");
    assert_eq!(next().await, "b");
    api.create(&PostParams::default(), &pod("c")).await.unwrap();
    assert_eq!(next().await, "c");
    cluster.compact();
    api.create(&PostParams::default(), &pod("d")).await.unwrap();
    let mut after: Vec<String> = Vec::new();
    while !after.contains(&"d".to_owned()) {
        after.push(next().await);
    }
}

#[tokio::test(start_paused = true)]
async fn the_streaming_list_ends_with_its_bookmark() {
    let cluster = Cluster::new(Settings::default());
    let api = pods(&cluster.client());
    api.create(&PostParams::default(), &pod("a")).await.unwrap();
    let events: Vec<watcher::Event<Pod>> = watcher(api, watcher::Config::default().streaming_lists())
        .take(3)
        .map(Result::unwrap)
        .collect()
        .await;
    assert!(matches!(
        events.as_slice(),
        [watcher::Event::Init, watcher::Event::InitApply(_), watcher::Event::InitDone]
    ));
}

/// The log of a controller during virtual hours.
async fn hours_of_reconciling(seed: u64) -> (u64, Vec<String>) {
    let cluster = Cluster::new(Settings { seed, ..Settings::default() });
    let nodes: Api<Node> = Api::all(cluster.client());
    let reconciles = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&reconciles);
    let controller = Controller::new(nodes.clone(), watcher::Config::default())
        .run(
            move |_: Arc<Node>, _: Arc<()>| {
                counter.fetch_add(1, Ordering::Relaxed);
                async { Ok::<_, std::convert::Infallible>(Action::requeue(Duration::from_secs(3600))) }
            },
            |_, _, _| Action::await_change(),
            Arc::new(()),
        )
        .for_each(|_| futures::future::ready(()));
    let life = async {
        for minute in 0..240 {
            let node: Node =
                serde_json::from_value(json!({ "metadata": { "generateName": "node-" } })).unwrap();
            if minute % 10 == 0 {
                nodes.create(&PostParams::default(), &node).await.unwrap();
            }
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    };
    tokio::select! {
        biased;
        () = controller => {}
        () = life => {}
    }
    let log = nodes.list(&ListParams::default()).await.unwrap();
    let log = log
        .iter()
        .map(|node| format!("{} {:?} {:?}", node.name_any(), node.uid(), node.creation_timestamp()))
        .collect();
    (reconciles.load(Ordering::Relaxed), log)
}

#[test]
fn one_seed_is_one_history() {
    let play = |seed| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(hours_of_reconciling(seed))
    };
    let (reconciles, log) = play(1);
    assert_eq!(log.len(), 24);
    assert!(reconciles > 24, "{reconciles} reconciles are too few for 24 nodes and hourly requeues");
    assert_eq!(play(1).1, log);
    assert_ne!(play(2).1, log);
}
