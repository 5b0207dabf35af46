//! A scripted server, paused time: everything that can go wrong on a watch, in no time.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::body::Body;
use futures::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use serde_json::{Value, json};

use super::*;

/// Keeps an object's UID and a number that some objects lack.
struct Numbered;

#[derive(Deserialize)]
struct Thing {
    metadata: ThingMeta,
    number: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ThingMeta {
    uid: String,
    resource_version: String,
}

impl Identified for Thing {
    fn uid(&self) -> &str {
        &self.metadata.uid
    }

    fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Project for Numbered {
    type Wire = Thing;
    type Kept = (String, u64);

    fn keep(&self, thing: Thing) -> Option<(String, u64)> {
        (thing.number > 0).then_some((thing.metadata.uid, thing.number))
    }
}

/// What the server answers to one request.
enum Answer {
    /// A list: objects, its revision, the token of the next page.
    List(Vec<Value>, u64, &'static str),
    Status(StatusCode),
    /// Chunks of a watch, then its end.
    Chunks(Vec<String>),
    /// Chunks of a watch, and then nothing more, for ever.
    Hangs(Vec<String>),
}

fn object(uid: &str, revision: u64, number: u64) -> Value {
    json!({"metadata": {"name": uid, "uid": uid, "resourceVersion": revision.to_string()}, "number": number})
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn bookmark(revision: u64) -> String {
    event("BOOKMARK", &json!({"metadata": {"resourceVersion": revision.to_string()}}))
}

fn gone() -> String {
    event("ERROR", &json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}))
}

/// The server, what it was asked, and the watch that asks it.
struct Bench {
    asked: Arc<Mutex<Vec<String>>>,
    changes: mpsc::Receiver<Change<(String, u64)>>,
    health: Arc<WatchHealth>,
}

impl Bench {
    /// Answers by the script; when it is used up, watches hang.
    fn new(script: Vec<Answer>) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let script = Arc::new(Mutex::new(VecDeque::from(script)));
        let heard = asked.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            heard.lock().unwrap().push(request.uri().query().unwrap_or("").to_owned());
            let answer = script.lock().unwrap().pop_front().unwrap_or(Answer::Hangs(vec![]));
            std::future::ready(Ok::<_, Infallible>(respond(answer)))
        });
        let (tx, changes) = mpsc::channel(64);
        let health = WatchHealth::new("things");
        let target = Target { resource: "things", path: "/things", field_selector: Some("a!=".into()) };
        tokio::spawn(follow(Client::new(service, "default"), target, Numbered, health.clone(), tx));
        Self { asked, changes, health }
    }

    async fn next(&mut self) -> Change<(String, u64)> {
        self.changes.recv().await.unwrap()
    }

    async fn reset(&mut self) -> Vec<(String, u64)> {
        match self.next().await {
            Change::Reset { all, .. } => all,
            other => panic!("not a reset: {other:?}"),
        }
    }

    /// The revisions that watches were asked from, so far.
    fn watched_from(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        let from =
            |q: &String| q.split("resourceVersion=").nth(1).map(|r| r.split('&').next().unwrap().to_owned());
        asked.iter().filter(|q| q.contains("watch=true")).filter_map(from).collect()
    }

    fn lists(&self) -> usize {
        self.asked.lock().unwrap().iter().filter(|q| !q.contains("watch=true")).count()
    }
}

fn respond(answer: Answer) -> Response<Body> {
    let chunks = |chunks: Vec<String>| stream::iter(chunks.into_iter().map(Ok::<_, Infallible>));
    match answer {
        Answer::List(items, revision, next) => {
            let metadata = json!({"resourceVersion": revision.to_string(), "continue": next});
            Response::new(Body::from(json!({"metadata": metadata, "items": items}).to_string()))
        }
        Answer::Status(code) => {
            let body = json!({"kind": "Status", "status": "Failure", "code": code.as_u16(), "message": "no", "reason": "x"});
            Response::builder().status(code).body(Body::from(body.to_string())).unwrap()
        }
        Answer::Chunks(all) => Response::new(Body::from_stream(chunks(all))),
        Answer::Hangs(all) => Response::new(Body::from_stream(chunks(all).chain(stream::pending()))),
    }
}

#[tokio::test(start_paused = true)]
async fn pages_are_one_list_and_changes_follow() {
    let mut bench = Bench::new(vec![
        Answer::List(vec![object("a", 3, 1), object("dull", 4, 0)], 10, "more"),
        Answer::List(vec![object("b", 5, 2)], 10, ""),
        Answer::Hangs(vec![event("MODIFIED", &object("a", 11, 7)), event("MODIFIED", &object("b", 12, 0))]),
    ]);
    assert_eq!(bench.reset().await, [("a".into(), 1), ("b".into(), 2)]);
    assert!(bench.health.is_synced());
    assert!(matches!(bench.next().await, Change::Applied((uid, 7)) if uid == "a"));
    assert!(matches!(bench.next().await, Change::Gone(uid) if uid == "b"), "what matters no longer is gone");
    let asked = bench.asked.lock().unwrap().clone();
    assert!(
        asked[1].contains("continue=more") && asked.iter().all(|q| q.contains("fieldSelector=a%21%3D")),
        "{asked:?}"
    );
    assert_eq!(bench.watched_from(), ["10"]);
}

#[tokio::test(start_paused = true)]
async fn an_expired_revision_is_listed_anew_so_that_no_delete_is_lost() {
    for expired in [Answer::Status(StatusCode::GONE), Answer::Chunks(vec![gone()])] {
        let mut bench = Bench::new(vec![
            Answer::List(vec![object("a", 3, 1), object("b", 4, 2)], 10, ""),
            expired,
            Answer::List(vec![object("b", 4, 2)], 20, ""),
        ]);
        assert_eq!(bench.reset().await.len(), 2);
        assert_eq!(bench.reset().await, [("b".into(), 2)], "a went while nobody looked");
        assert_eq!(bench.lists(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_token_that_expired_starts_the_list_over() {
    let mut bench = Bench::new(vec![
        Answer::List(vec![object("a", 3, 1)], 10, "more"),
        Answer::Status(StatusCode::GONE),
        Answer::List(vec![object("c", 9, 3)], 20, ""),
    ]);
    assert_eq!(bench.reset().await, [("c".into(), 3)], "nothing of the first try is mixed in");
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_from_its_last_bookmark() {
    let mut bench = Bench::new(vec![
        Answer::List(vec![], 10, ""),
        Answer::Chunks(vec![event("ADDED", &object("a", 11, 1)), bookmark(50)]),
        Answer::Hangs(vec![event("ADDED", &object("b", 51, 2))]),
    ]);
    bench.reset().await;
    assert!(matches!(bench.next().await, Change::Applied((uid, _)) if uid == "a"));
    assert!(matches!(bench.next().await, Change::Applied((uid, _)) if uid == "b"));
    assert_eq!(bench.watched_from(), ["10", "50"]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_in_the_middle_of_a_line_loses_nothing() {
    let whole = event("ADDED", &object("b", 12, 2));
    let mut bench = Bench::new(vec![
        Answer::List(vec![], 10, ""),
        Answer::Chunks(vec![event("ADDED", &object("a", 11, 1)), whole[..whole.len() / 2].to_owned()]),
        Answer::Hangs(vec![whole]),
    ]);
    bench.reset().await;
    assert!(matches!(bench.next().await, Change::Applied((uid, _)) if uid == "a"));
    assert!(matches!(bench.next().await, Change::Applied((uid, _)) if uid == "b"));
    assert_eq!(bench.watched_from(), ["10", "11"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_closes_every_watch_at_once_is_not_hammered() {
    let closed_at_once = (0..1000).map(|_| Answer::Chunks(vec![]));
    let mut bench = Bench::new([Answer::List(vec![], 10, "")].into_iter().chain(closed_at_once).collect());
    bench.reset().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let watches = bench.watched_from().len();
    assert!((3..=10).contains(&watches), "{watches} watches in 30 s");
    assert!(bench.health.staleness() >= Duration::from_secs(30), "a watch that says nothing ages the view");
    assert_eq!(bench.lists(), 1, "and nothing is listed again for it");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lets_every_revision_expire_is_not_asked_for_a_list_all_the_time() {
    let expired = (0..1000).flat_map(|_| [Answer::List(vec![], 10, ""), Answer::Chunks(vec![gone()])]);
    let mut bench = Bench::new(expired.collect());
    let read = async {
        loop {
            bench.reset().await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(30), read).await;
    assert!((3..=10).contains(&bench.lists()), "{} lists in 30 s", bench.lists());
}

#[tokio::test(start_paused = true)]
async fn a_line_that_nobody_can_read_is_made_up_for_by_a_list() {
    let mut bench = Bench::new(vec![
        Answer::List(vec![], 10, ""),
        Answer::Chunks(vec!["this is no event\n".to_owned()]),
        Answer::List(vec![object("a", 11, 1)], 20, ""),
    ]);
    bench.reset().await;
    assert_eq!(bench.reset().await, [("a".into(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn watches_that_open_and_stay_silent_let_the_view_grow_old() {
    let silent = (0..10).map(|_| Answer::Hangs(vec![]));
    let mut bench = Bench::new([Answer::List(vec![], 10, "")].into_iter().chain(silent).collect());
    bench.reset().await;
    tokio::time::sleep(SILENCE_ALLOWED * 3).await;
    assert!(bench.watched_from().len() >= 3);
    assert!(bench.health.staleness() >= SILENCE_ALLOWED * 3 - Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn many_watches_are_as_old_as_the_oldest_of_them() {
    let many = WatchHealth::of_many("things");
    assert!(many.is_synced());
    let (old, young) = (many.member(), many.member());
    tokio::time::sleep(Duration::from_secs(10)).await;
    young.is_up_to_date();
    assert_eq!(many.staleness(), Duration::from_secs(10));
    old.restarts.fetch_add(1, Ordering::Relaxed);
    assert_eq!(many.restarts.load(Ordering::Relaxed), 1);
    drop(old);
    assert_eq!(many.staleness(), Duration::ZERO);
    drop(young);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(many.staleness(), Duration::ZERO, "there is none");
}

#[tokio::test(start_paused = true)]
async fn a_half_open_connection_is_seen_to_age_and_given_up() {
    let mut bench = Bench::new(vec![
        Answer::List(vec![], 10, ""),
        Answer::Hangs(vec![bookmark(11)]),
        Answer::Hangs(vec![event("ADDED", &object("late", 12, 1))]),
    ]);
    bench.reset().await;
    tokio::time::sleep(SILENCE_ALLOWED - Duration::from_secs(1)).await;
    assert!(bench.health.staleness() >= SILENCE_ALLOWED - Duration::from_secs(2));
    assert!(matches!(bench.next().await, Change::Applied((uid, _)) if uid == "late"));
    assert!(bench.health.staleness() < Duration::from_secs(1));
    assert_eq!(bench.watched_from(), ["10", "11"]);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_is_counted_and_its_end_is_still_seen() {
    let unreadable =
        json!({"metadata": {"name": "odd", "uid": "odd", "resourceVersion": "11"}, "number": "many"});
    let mut bench = Bench::new(vec![
        Answer::List(vec![object("a", 3, 1), unreadable.clone()], 10, ""),
        Answer::Hangs(vec![
            event("MODIFIED", &unreadable),
            event("MODIFIED", &object("a", 12, 5)),
            event("DELETED", &unreadable),
        ]),
    ]);
    assert_eq!(bench.reset().await, [("a".into(), 1)]);
    assert!(matches!(bench.next().await, Change::Gone(uid) if uid == "odd"));
    assert!(matches!(bench.next().await, Change::Applied((uid, 5)) if uid == "a"), "the watch goes on");
    assert!(matches!(bench.next().await, Change::Gone(uid) if uid == "odd"));
    assert_eq!(bench.health.unreadable.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn errors_are_waited_out_and_the_watch_ends_when_nobody_listens() {
    let mut bench = Bench::new(vec![
        Answer::Status(StatusCode::SERVICE_UNAVAILABLE),
        Answer::Status(StatusCode::TOO_MANY_REQUESTS),
        Answer::List(vec![object("a", 3, 1)], 10, ""),
        Answer::Status(StatusCode::INTERNAL_SERVER_ERROR),
        Answer::Hangs(vec![event("DELETED", &object("a", 12, 1))]),
    ]);
    assert_eq!(bench.reset().await.len(), 1);
    assert!(matches!(bench.next().await, Change::Gone(uid) if uid == "a"));
    assert_eq!(bench.health.restarts.load(Ordering::Relaxed), 3);
    drop(bench.changes);
    while Arc::strong_count(&bench.health) > 1 {
        tokio::task::yield_now().await;
    }
}
