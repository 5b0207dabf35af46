//! Checks that every fault affects a client as documented.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use futures::StreamExt as _;
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, Error};
use salvor_apiserver::{Cluster, Effect, Fault, Faults, Settings};
use serde_json::json;
use tokio::time::Instant;

fn faulty() -> (Faults, Api<ConfigMap>, Api<ConfigMap>) {
    let cluster = Cluster::new(Settings::default());
    let faults = Faults::default();
    let client = Client::new(faults.before(cluster.clone()), "default");
    (faults, Api::default_namespaced(client), Api::default_namespaced(cluster.client()))
}

fn config(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap()
}

fn code(error: &Error) -> u16 {
    match error {
        Error::Api(status) => status.code,
        other => panic!("{other} is no answer of a server"),
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_strike_as_often_as_they_are_told() {
    let (faults, api, _) = faulty();
    for (effect, expected) in [
        (Effect::Conflict, 409),
        (Effect::TooManyRequests(1), 429),
        (Effect::InternalError, 500),
        (Effect::Unavailable, 503),
    ] {
        faults.add(Fault::new(effect).method(Method::POST).times(2));
        for _ in 0..2 {
            let error = api.create(&PostParams::default(), &config("a")).await.unwrap_err();
            assert_eq!(code(&error), expected);
        }
        api.list(&ListParams::default()).await.unwrap();
    }
    api.create(&PostParams::default(), &config("a")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_leaves_the_write_done_and_a_lost_request_does_not() {
    let (faults, api, behind) = faulty();
    for (effect, name, is_done) in [(Effect::AnswerLost, "a", true), (Effect::RequestLost, "b", false)] {
        faults.add(Fault::new(effect).times(1));
        let error = api.create(&PostParams::default(), &config(name)).await.unwrap_err();
        assert!(!matches!(error, Error::Api(_)), "{error} is an answer");
        assert_eq!(behind.get_opt(name).await.unwrap().is_some(), is_done, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_never_comes_says_nothing_about_the_write() {
    let (faults, api, behind) = faulty();
    let patience = Duration::from_secs(30);
    for (name, is_done) in [("a", true), ("b", false)] {
        let effect = Effect::Unanswered { carried_out: is_done };
        faults.add(Fault::new(effect).times(1));
        let asked = config(name);
        let parameters = PostParams::default();
        let waiting = tokio::time::timeout(patience, api.create(&parameters, &asked));
        assert!(waiting.await.is_err(), "{effect:?} gave an answer");
        assert_eq!(behind.get_opt(name).await.unwrap().is_some(), is_done, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn stale_answers_are_for_those_who_take_them() {
    let (faults, api, behind) = faulty();
    behind.create(&PostParams::default(), &config("a")).await.unwrap();
    let then = behind.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    behind.create(&PostParams::default(), &config("b")).await.unwrap();
    let change = Patch::Merge(json!({ "data": { "k": "v" } }));
    behind.patch("a", &PatchParams::default(), &change).await.unwrap();
    faults.add(Fault::new(Effect::Stale(2)));
    let names = |list: kube::core::ObjectList<ConfigMap>| -> Vec<String> {
        list.items.into_iter().map(|object| object.metadata.name.unwrap()).collect()
    };

    let old = api.list(&ListParams::default().match_any()).await.unwrap();
    assert_eq!(old.metadata.resource_version.as_ref(), Some(&then));
    assert_eq!(names(old), ["a"]);
    let newest = api.list(&ListParams::default()).await.unwrap();
    assert_eq!(names(newest), ["a", "b"], "who names no revision reads the newest");
    let later = (then.parse::<u64>().unwrap() + 1).to_string();
    let newer = ListParams::default().at(&later).matching(kube::api::VersionMatch::NotOlderThan);
    let newer = api.list(&newer);
    assert_eq!(names(newer.await.unwrap()), ["a", "b"], "never older than asked for");
    let request = http::Request::get("/api/v1/namespaces/default/configmaps/a?resourceVersion=0");
    let object: ConfigMap =
        api.clone().into_client().request(request.body(Vec::new()).unwrap()).await.unwrap();
    assert_eq!(object.data, None, "a single read is as old");
    assert!(api.get("a").await.unwrap().data.is_some());

    // A stale state is followed by all changes since, in order.
    let mut watch = api.watch(&WatchParams::default().timeout(10), "0").await.unwrap().boxed();
    let mut seen = Vec::new();
    while let Some(Ok(event)) = watch.next().await {
        match event {
            WatchEvent::Added(object) => seen.push(format!("+{}", object.metadata.name.unwrap())),
            WatchEvent::Modified(object) => seen.push(format!("~{}", object.metadata.name.unwrap())),
            // The last event of a watch that ends.
            WatchEvent::Bookmark(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, ["+a", "+b", "~a"]);
}

#[tokio::test(start_paused = true)]
async fn revisions_go_backwards_for_lists_and_for_nothing_else() {
    let (faults, api, behind) = faulty();
    behind.create(&PostParams::default(), &config("a")).await.unwrap();
    let then = behind.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    behind.create(&PostParams::default(), &config("b")).await.unwrap();
    faults.add(Fault::new(Effect::Backwards(1)));
    let old = api.list(&ListParams::default().limit(1)).await.unwrap();
    assert_eq!((old.metadata.resource_version, old.items.len()), (Some(then.clone()), 1));
    assert!(api.get_opt("b").await.unwrap().is_some(), "a single read is of now");
    let mut watch = api.watch(&WatchParams::default().timeout(10), &then).await.unwrap().boxed();
    let first = watch.next().await.unwrap().unwrap();
    assert!(matches!(first, WatchEvent::Added(object) if object.metadata.name.as_deref() == Some("b")));
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_open_watches_as_well() {
    let (faults, api, behind) = faulty();
    let version = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut watch = api.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    faults.pause();
    behind.create(&PostParams::default(), &config("a")).await.unwrap();
    assert!(
        tokio::time::timeout(Duration::from_secs(60), watch.next()).await.is_err(),
        "a paused server spoke"
    );
    faults.resume();
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Added(_)))));
}

#[tokio::test(start_paused = true)]
async fn only_what_matches_is_struck() {
    let (faults, api, _) = faulty();
    api.create(&PostParams::default(), &config("a")).await.unwrap();
    faults.add(Fault::new(Effect::Unavailable).path("/configmaps/b"));
    faults.add(Fault::new(Effect::Unavailable).method(Method::DELETE));
    faults.add(Fault::new(Effect::Unavailable).user_agent("somebody else"));
    api.get("a").await.unwrap();
    assert_eq!(code(&api.get("b").await.unwrap_err()), 503);
    assert_eq!(code(&api.delete("a", &Default::default()).await.unwrap_err()), 503);
    faults.clear();
    api.delete("a", &Default::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn delays_and_pauses_take_their_time() {
    let (faults, api, _) = faulty();
    faults.add(Fault::new(Effect::Delay(Duration::from_secs(7))).times(1));
    let before = Instant::now();
    api.list(&ListParams::default()).await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 7);

    faults.pause();
    let resuming = faults.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(30)).await;
        resuming.resume();
    });
    let before = Instant::now();
    api.list(&ListParams::default()).await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn watches_are_cut_when_told_and_after_so_many_lines() {
    let (faults, api, behind) = faulty();
    let version = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut watch = api.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    behind.create(&PostParams::default(), &config("a")).await.unwrap();
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Added(_)))));
    faults.cut_watches();
    assert!(matches!(watch.next().await, Some(Err(_)) | None));

    faults.add(Fault::new(Effect::CutAfter(1)).times(1));
    let mut watch = api.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Added(_)))));
    behind.patch("a", &PatchParams::default(), &Patch::Merge(json!({ "data": { "k": "v" } }))).await.unwrap();
    assert!(matches!(watch.next().await, Some(Err(_)) | None));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_lags_tells_everything_in_its_order_and_equally_late() {
    let (faults, api, behind) = faulty();
    faults.add(Fault::new(Effect::Lag(Duration::from_secs(10))).times(1));
    let version = behind.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut watch = api.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    let before = Instant::now();
    behind.create(&PostParams::default(), &config("a")).await.unwrap();
    api.create(&PostParams::default(), &config("b")).await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 0, "everything else goes on");
    for name in ["a", "b"] {
        let Some(Ok(WatchEvent::Added(told))) = watch.next().await else { panic!("{name} is not told") };
        assert_eq!((told.metadata.name.as_deref(), before.elapsed().as_secs()), (Some(name), 10));
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_watch_says_so_in_its_first_event() {
    let (faults, api, _) = faulty();
    faults.add(Fault::new(Effect::Expired).times(1));
    let mut watch = api.watch(&WatchParams::default(), "1").await.unwrap().boxed();
    let Some(Ok(WatchEvent::Error(status))) = watch.next().await else { panic!("no error event") };
    assert_eq!(status.code, 410);
}

#[tokio::test(start_paused = true)]
async fn a_restored_backup_is_what_was_then_and_counts_on_from_there() {
    let cluster = Cluster::new(Settings::default());
    let api: Api<ConfigMap> = Api::default_namespaced(cluster.client());
    api.create(&PostParams::default(), &config("kept")).await.unwrap();
    let (backup, then) = (cluster.back_up(), cluster.revision());
    for name in ["a", "b", "c"] {
        api.create(&PostParams::default(), &config(name)).await.unwrap();
    }
    let reached = cluster.revision().to_string();
    let mut open = api.watch(&WatchParams::default(), &reached).await.unwrap().boxed();
    cluster.restore(&backup);
    assert!(open.next().await.is_none(), "watches end with their server");
    assert_eq!(cluster.revision(), then);
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 1);
    // From a revision in the future there is nothing to send, not even a bookmark.
    let params = WatchParams::default().timeout(50);
    let mut ahead = api.watch(&params, &reached).await.unwrap().boxed();
    api.create(&PostParams::default(), &config("new")).await.unwrap();
    assert!(ahead.next().await.is_none());
    // The history before is gone.
    let before = (then - 1).to_string();
    let told = api.watch(&params, &before).await.unwrap().boxed().next().await.unwrap();
    assert!(matches!(told, Ok(WatchEvent::Error(status)) if status.code == 410));
}
