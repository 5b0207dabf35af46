//! One watch of nodes for all listeners.

use std::time::Duration;

use serde_json::{Value, json};

use super::{table::Table, *};
use crate::{
    testing::fake_api::{Answer, FakeApi},
    watch_set::feeds::{Feed, Feeds, Hub, tests::keeper},
};

fn node(name: &str, lost: bool) -> Value {
    let taints = if lost {
        json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}])
    } else {
        json!([])
    };
    json!({
        "metadata": {
            "name": name, "uid": name, "resourceVersion": "5", "labels": {"topology.kubernetes.io/zone": "z"},
            "annotations": {"zombie.salvor.dev/out-of-service-since": "x", "example.com/long": "y".repeat(1000)},
        },
        "spec": {"taints": taints},
        "status": {
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "Unknown"}],
            "volumesInUse": ["v"], "volumesAttached": [{"name": "v"}],
        },
    })
}

fn api() -> FakeApi {
    FakeApi::new(|asked| {
        if asked.query.contains("watch=true") {
            return Answer::Never;
        }
        let items: Vec<Value> = (0..5).map(|n| node(&format!("n{n}"), n < 3)).collect();
        Answer::Json(200, json!({"metadata": {"resourceVersion": "7"}, "items": items}))
    })
}

fn count(change: Change<String>) -> String {
    match change {
        Change::Reset { all, .. } => all.join(" "),
        Change::Applied(one) => one,
        Change::Gone(uid) => uid.into(),
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_are_watched_once_for_all_who_listen_and_not_at_all_for_none() {
    let api = api();
    let keeper = keeper(&api);
    let hub = Hub::new(Source::new(api.client.clone()), keeper.clone());
    let (mut first, mut inbox) = Feeds::<String>::new(hub.clone());
    let (mut second, mut other) = Feeds::<String>::new(hub.clone());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(api.asked().is_empty(), "nobody listens");
    let names = |node: &Node| node.wire.metadata.name.clone();
    let volumes = |node: &Node| node.wire.status.volumes_in_use.len().to_string();
    let needs: NeedsVolumes = Arc::new(|wire| wire.metadata.name == "n2");
    first.declare(vec![Feed::nodes(None, names, count)]);
    second.declare(vec![Feed::nodes(Some(needs), volumes, count)]);
    assert_eq!(hub.watches.all().len(), 1, "one watch, whoever listens");
    let list = inbox.recv().await.and_then(|item| first.open(item));
    assert_eq!(list.as_deref(), Some("n0 n1 n2 n3 n4"));
    assert!(keeper.holds_all(), "the brake knew of them before");
    let list = other.recv().await.and_then(|item| second.open(item));
    assert_eq!(list.as_deref(), Some("0 0 1 0 0"), "volumes only of nodes of which somebody needs them");
    assert_eq!(api.count(&http::Method::GET), 2, "one list, one watch: {:?}", api.asked());
    assert!(!first.watches().is_stale(Duration::from_secs(60)));
    assert!(!second.watches().is_stale(Duration::from_secs(60)));
}

#[tokio::test(start_paused = true)]
async fn a_list_counts_as_known_only_when_all_who_listen_have_taken_it_in() {
    let api = api();
    let feed = NodeFeed::new(Source::new(api.client.clone()), keeper(&api));
    let (mut quick, mut slow) = (feed.listen(Needs::default()), feed.listen(Needs::default()));
    drop(quick.recv().await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!feed.health().is_synced());
    drop(slow.recv().await);
    assert!(feed.health().is_synced());
    // A late listener receives everything, and so do the others again.
    let mut late = feed.listen(Needs::default());
    for listener in [&mut quick, &mut slow, &mut late] {
        assert!(matches!(listener.recv().await, Some(Change::Reset { all, .. }) if all.len() == 5));
    }
}

#[test]
fn what_is_kept_of_a_node_is_small_and_a_node_that_stays_as_it_was_is_not_counted_again() {
    // The size in transit, and the size kept as long as the node exists; two strings and a zone come on top.
    assert!(size_of::<Node>() <= 528, "{}", size_of::<Node>());
    assert!(size_of::<CountedNode>() <= 104, "{}", size_of::<CountedNode>());
    let listeners = Arc::default();
    let keep =
        |value: Value| AllNodes(Arc::clone(&listeners)).keep(serde_json::from_value(value).unwrap()).unwrap();
    let kept = keep(node("a", true));
    assert_eq!(kept.wire.status.conditions.len(), 1);
    assert!(kept.wire.status.volumes_in_use.is_empty());
    assert_eq!(kept.wire.metadata.annotations.out_of_service_since.as_deref(), Some("x"));
    let mut table = Table::default();
    assert!(table.apply(&Change::Applied(kept)));
    assert!(!table.apply(&Change::Applied(keep(node("a", true)))));
    assert!(table.apply(&Change::Applied(keep(node("a", false)))));
    assert!(!table.apply(&Change::Gone("b".into())));
    // The name belongs to another node by now.
    let mut other = node("a", false);
    other["metadata"]["uid"] = "b".into();
    table.apply(&Change::Applied(keep(other)));
    assert!(!table.apply(&Change::Gone("a".into())));
    assert!(table.apply(&Change::Gone("b".into())));
}
