//! A scripted server in paused time: everything that can go wrong on a watch.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::body::Body;
use futures::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use kube::client::ClientBuilder;
use salvor_recovery::ids::{ResourceVersion, Uid};
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
    uid: Uid,
    resource_version: ResourceVersion,
}

impl Identified for Thing {
    fn uid(&self) -> &Uid {
        &self.metadata.uid
    }

    fn resource_version(&self) -> &ResourceVersion {
        &self.metadata.resource_version
    }
}

impl Project for Numbered {
    type Wire = Thing;
    type Kept = (Uid, u64);

    fn keep(&self, thing: Thing) -> Option<(Uid, u64)> {
        (thing.number > 0).then_some((thing.metadata.uid, thing.number))
    }
}

enum Answer {
    /// A list: objects, its revision, the token of the next page.
    List(Vec<Value>, u64, &'static str),
    Status(StatusCode),
    /// Chunks of a watch, then its end.
    Chunks(Vec<String>),
    /// Chunks of a watch, then silence for ever.
    Hangs(Vec<String>),
    /// Chunks of a watch, until its timeout.
    Lasts(Vec<String>),
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

struct Bench {
    asked: Arc<Mutex<Vec<String>>>,
    changes: mpsc::Receiver<Change<(Uid, u64)>>,
    health: Arc<WatchHealth>,
    history: History,
    /// The server's answer when only its current revision is requested.
    now: Arc<Mutex<u64>>,
}

/// True if the request asks only for the server's revision.
fn is_check(query: &str) -> bool {
    query.starts_with("limit=1&")
}

impl Bench {
    /// Answers by the script; when it is used up, watches hang.
    fn new(script: Vec<Answer>) -> Self {
        Self::beside(History::default(), script)
    }

    /// For a watch that shares its history with others.
    fn beside(history: History, script: Vec<Answer>) -> Self {
        let now = Arc::new(Mutex::new(1_000_000));
        let place = now.clone();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let script = Arc::new(Mutex::new(VecDeque::from(script)));
        let heard = asked.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let query = request.uri().query().unwrap_or("").to_owned();
            let answer = if is_check(&query) {
                Answer::List(vec![], *place.lock().unwrap(), "")
            } else {
                script.lock().unwrap().pop_front().unwrap_or(Answer::Hangs(vec![]))
            };
            heard.lock().unwrap().push(query);
            std::future::ready(Ok::<_, Infallible>(respond(answer)))
        });
        let (tx, changes) = mpsc::channel(64);
        let health = WatchHealth::new("things");
        let target = Target::fields("things", "/things", "a!=");
        let source = Source { client: Client::new(service, "default"), history: history.clone() };
        tokio::spawn(follow(source, target, Numbered, health.clone(), tx));
        Self { asked, changes, health, history, now }
    }

    /// The next change. The timeout makes a missing change fail the test; in paused time it would otherwise wait for
    /// ever.
    async fn next(&mut self) -> Change<(Uid, u64)> {
        let change = tokio::time::timeout(Duration::from_secs(86_400), self.changes.recv()).await;
        change.expect("a change within a day").unwrap()
    }

    async fn reset(&mut self) -> Vec<(Uid, u64)> {
        self.list().await.0
    }

    /// The revisions from which watches were requested so far.
    fn watched_from(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        let from =
            |q: &String| q.split("resourceVersion=").nth(1).map(|r| r.split('&').next().unwrap().to_owned());
        asked.iter().filter(|q| q.contains("watch=true")).filter_map(from).collect()
    }

    fn lists(&self) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|q| !q.contains("watch=true") && !is_check(q)).count()
    }

    fn checks(&self) -> usize {
        self.asked.lock().unwrap().iter().filter(|q| is_check(q)).count()
    }

    /// The next change, which must be a list: its objects, and whether earlier state is invalid.
    async fn list(&mut self) -> (Vec<(Uid, u64)>, bool) {
        match self.next().await {
            Change::Reset { all, revision, .. } => (all, revision.new_history),
            other => panic!("not a reset: {other:?}"),
        }
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
        Answer::Lasts(all) => {
            let end = stream::once(tokio::time::sleep(Duration::from_secs(WATCH_SECONDS)));
            let end = end.filter_map(|()| async { None });
            Response::new(Body::from_stream(chunks(all).chain(end)))
        }
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
async fn a_server_that_opens_and_stays_silent_lets_the_view_grow_old() {
    let silent = (0..10).map(|_| Answer::Hangs(vec![]));
    let mut bench = Bench::new([Answer::List(vec![], 10, "")].into_iter().chain(silent).collect());
    bench.reset().await;
    tokio::time::sleep(SILENCE_ALLOWED * 3).await;
    assert!(bench.watched_from().len() + bench.lists() >= 3);
    assert!(bench.health.staleness() >= SILENCE_ALLOWED * 3 - Duration::from_secs(1));
}

// ---- revisions that go backwards ----------------------------------------------------------------------

/// Whatever shows a revision lower than one that was seen: earlier state is invalid.
#[tokio::test(start_paused = true)]
async fn a_revision_that_goes_backwards_is_followed_by_a_list_that_forgets_what_is_not_in_it() {
    let too_large = || {
        let message = "Too large resource version: 100, current: 7";
        event("ERROR", &json!({"kind": "Status", "code": 504, "reason": "Timeout", "message": message}))
    };
    let cases: Vec<(&str, Answer)> = vec![
        ("an event", Answer::Hangs(vec![event("ADDED", &object("new", 7, 1))])),
        ("the end of an object", Answer::Hangs(vec![event("DELETED", &object("new", 7, 1))])),
        ("a bookmark", Answer::Hangs(vec![bookmark(7)])),
        ("a list after a 410", Answer::Chunks(vec![gone()])),
        ("a list after an HTTP 410", Answer::Status(StatusCode::GONE)),
        ("a list after a 504", Answer::Chunks(vec![too_large()])),
        ("a list after silence", Answer::Lasts(vec![])),
        ("a list after silence without an end", Answer::Hangs(vec![])),
    ];
    for (what, shown) in cases {
        let mut bench = Bench::new(vec![
            Answer::List(vec![object("lost", 90, 1), object("older", 80, 2)], 100, ""),
            shown,
            Answer::List(vec![object("older", 5, 3)], 7, ""),
            Answer::Hangs(vec![event("ADDED", &object("next", 8, 4)), bookmark(8)]),
        ]);
        assert_eq!(bench.list().await, (vec![("lost".into(), 1), ("older".into(), 2)], false), "{what}");
        assert_eq!(bench.list().await, (vec![("older".into(), 3)], true), "{what}");
        assert!(matches!(bench.next().await, Change::Applied((uid, 4)) if uid == "next"), "{what}");
        assert_eq!(bench.watched_from(), ["100", "7"], "{what}");
        assert_eq!(bench.history.epoch(), 1, "{what}");
        tokio::time::sleep(TAKING_IN * 2).await;
        assert!(bench.health.is_synced(), "{what}");
    }
}

/// A list may be old: the watch from it repeats what the server sent before. Until then this view may be older than the
/// views of other resources.
#[tokio::test(start_paused = true)]
async fn a_list_from_before_counts_from_when_its_watch_has_come_to_the_present() {
    let event = |revision| event("ADDED", &object("again", revision, 4));
    let cases: Vec<(&str, Vec<Answer>, bool)> = vec![
        ("nothing is told", vec![Answer::Hangs(vec![])], false),
        ("less than before", vec![Answer::Hangs(vec![event(99)])], false),
        ("as much as before", vec![Answer::Hangs(vec![event(99), event(100)])], true),
        ("more than before", vec![Answer::Hangs(vec![event(120)])], true),
        ("there is no more", vec![Answer::Hangs(vec![event(8), bookmark(9)])], true),
        ("there is no more, and nothing says so", vec![Answer::Lasts(vec![event(8)])], true),
        ("another old list", vec![Answer::Chunks(vec![gone()]), Answer::List(vec![], 60, "")], false),
        (
            "another old list, and all after it",
            vec![Answer::Chunks(vec![gone()]), Answer::List(vec![], 60, ""), Answer::Hangs(vec![event(100)])],
            true,
        ),
        ("a new list", vec![Answer::Chunks(vec![gone()]), Answer::List(vec![], 100, "")], true),
    ];
    for (what, then, counts) in cases {
        let mut script = vec![
            Answer::List(vec![], 100, ""),
            Answer::Chunks(vec![gone()]),
            Answer::List(vec![object("old", 5, 3)], 7, ""),
        ];
        script.extend(then);
        let mut bench = Bench::new(script);
        bench.reset().await;
        assert_eq!(bench.list().await, (vec![("old".into(), 3)], true), "{what}");
        assert!(bench.health.is_outdated(), "{what}");
        for _ in 0..70 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            while bench.changes.try_recv().is_ok() {}
        }
        assert_eq!(bench.health.is_synced(), counts, "{what}");
        assert_eq!(bench.health.is_outdated(), !counts, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_broke_goes_on_only_if_the_server_is_not_behind_it() {
    for (restored, broken) in [
        (false, Answer::Chunks(vec![bookmark(100)])),
        (true, Answer::Chunks(vec![bookmark(100)])),
        (true, Answer::Status(StatusCode::SERVICE_UNAVAILABLE)),
    ] {
        let mut bench = Bench::new(vec![
            Answer::List(vec![object("a", 90, 1)], 100, ""),
            broken,
            if restored {
                Answer::List(vec![], 40, "")
            } else {
                Answer::Hangs(vec![event("ADDED", &object("b", 101, 2))])
            },
        ]);
        // By the time a watch from 100 is requested, 100 may have been reached again.
        *bench.now.lock().unwrap() = if restored { 40 } else { 100 };
        bench.reset().await;
        if restored {
            assert_eq!(bench.list().await, (vec![], true));
        } else {
            assert!(matches!(bench.next().await, Change::Applied((uid, 2)) if uid == "b"));
        }
        assert_eq!((bench.checks(), bench.history.epoch()), (1, u64::from(restored)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_when_its_time_is_over_costs_one_request() {
    let whole = (0..5).map(|n| Answer::Lasts(vec![bookmark(10 + n)]));
    let mut bench = Bench::new([Answer::List(vec![], 10, "")].into_iter().chain(whole).collect());
    bench.reset().await;
    tokio::time::sleep(Duration::from_secs(5 * WATCH_SECONDS + 1)).await;
    assert_eq!((bench.lists(), bench.checks(), bench.watched_from().len()), (1, 0, 6));
}

/// From the moment a decrease is seen until the new list is processed, the view does not count as synced.
#[tokio::test(start_paused = true)]
async fn between_the_decrease_and_the_new_list_no_watch_is_in_step() {
    let history = History::default();
    let slow = vec![
        Answer::List(vec![object("a", 90, 1)], 100, ""),
        Answer::Hangs(vec![bookmark(7)]),
        Answer::Status(StatusCode::SERVICE_UNAVAILABLE),
        Answer::List(vec![], 7, ""),
    ];
    let mut first = Bench::beside(history.clone(), slow);
    let others = vec![
        Answer::List(vec![object("b", 95, 1)], 100, ""),
        Answer::Hangs(vec![]),
        // This watch saw no decrease itself, and by now its revision is reached again.
        Answer::List(vec![object("c", 101, 1)], 102, ""),
    ];
    let mut second = Bench::beside(history.clone(), others);
    second.reset().await;
    first.reset().await;
    history.is_over(0).await;
    assert!(!first.health.is_synced() && !second.health.is_synced());
    let Change::Reset { all, revision, .. } = second.next().await else { panic!() };
    assert_eq!((all, revision.new_history), (vec![("c".into(), 1)], true));
    assert!(!second.health.is_synced(), "it is read, but not taken in");
    drop(revision);
    assert!(second.health.is_synced() && !first.health.is_synced());
    assert_eq!(first.list().await, (vec![], true));
    assert!(!first.health.is_synced(), "more may come");
    assert_eq!(history.epoch(), 1, "both noticed the same");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_began_before_somebody_noticed_is_not_believed() {
    let mut bench = Bench::new(vec![
        Answer::List(vec![object("a", 90, 1)], 100, ""),
        Answer::Status(StatusCode::GONE),
        Answer::List(vec![object("old", 90, 1)], 100, "more"),
    ]);
    bench.reset().await;
    while bench.lists() < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    bench.history.ends(0);
    // The second page hangs; the list is given up in time.
    tokio::time::sleep(LIST_TIMEOUT * 2).await;
    assert!(bench.changes.try_recv().is_err());
    assert!(!bench.health.is_synced());
}

/// The server's answer to a write counts as seen, too.
#[tokio::test(start_paused = true)]
async fn a_list_behind_the_answer_to_a_write_shows_another_history() {
    let mut bench = Bench::new(vec![
        Answer::List(vec![object("a", 90, 1)], 100, ""),
        Answer::Status(StatusCode::GONE),
        Answer::List(vec![object("a", 104, 1)], 105, ""),
    ]);
    bench.reset().await;
    bench.health.saw(ResourceVersion::from("110").revision());
    assert_eq!(bench.list().await, (vec![("a".into(), 1)], true));
}

#[tokio::test(start_paused = true)]
async fn revisions_that_are_no_numbers_are_never_compared() {
    let odd = |revision: &str| json!({"metadata": {"name": "a", "uid": "a", "resourceVersion": revision}, "number": 1});
    let mut bench = Bench::new(vec![
        Answer::List(vec![object("a", 90, 1)], 100, ""),
        Answer::Hangs(vec![event("MODIFIED", &odd("x-7")), event("MODIFIED", &odd("x-6"))]),
    ]);
    bench.reset().await;
    assert!(matches!(bench.next().await, Change::Applied(_)));
    assert!(matches!(bench.next().await, Change::Applied(_)));
    assert_eq!((bench.lists(), bench.history.epoch()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn many_watches_are_in_step_when_each_that_has_begun_is() {
    let many = WatchHealth::of_many("things");
    let (one, other) = (many.member(), many.member());
    let history = History::default();
    one.belongs_to(&history);
    other.belongs_to(&history);
    assert!(many.is_synced(), "none has begun");
    one.is_up_to_date();
    assert!(many.is_synced());
    history.ends(0);
    assert!(!many.is_synced());
    one.is_up_to_date();
    assert!(many.is_synced());
    assert_eq!(
        (many.ask_for_list(), one.asked.load(Ordering::SeqCst), other.asked.load(Ordering::SeqCst)),
        (1, 1, 1)
    );
}

// ---- memory used for what the server sends ------------------------------------------------------------

/// Lists objects of this size in pages of the requested limit, unless the server ignores the limit.
struct BigServer {
    objects: usize,
    size: usize,
    ignores_limit: bool,
}

impl BigServer {
    fn page(&self, query: &str) -> Response<Body> {
        let number = |key: &str| {
            let value = query.split('&').find_map(|pair| pair.strip_prefix(key));
            value.and_then(|value| value.parse::<usize>().ok())
        };
        let (from, limit) = (number("continue=").unwrap_or(0), number("limit=").unwrap());
        let to = if self.ignores_limit { self.objects } else { (from + limit).min(self.objects) };
        let next = if to < self.objects { to.to_string() } else { String::new() };
        let size = self.size;
        let head = format!(r#"{{"metadata":{{"resourceVersion":"10","continue":"{next}"}},"items":["#);
        let objects = (from..to).map(move |n| {
            let comma = if n == from { "" } else { "," };
            let padding = "x".repeat(size);
            format!(
                r#"{comma}{{"metadata":{{"uid":"{n}","resourceVersion":"5"}},"number":1,"padding":"{padding}"}}"#
            )
        });
        let text = [head].into_iter().chain(objects).chain(["]}".to_owned()]);
        // In frames, as a connection delivers it.
        let frames =
            text.flat_map(|text| text.into_bytes().chunks(16 * 1024).map(<[u8]>::to_vec).collect::<Vec<_>>());
        Response::new(Body::from_stream(stream::iter(frames.map(Ok::<_, Infallible>)).then(|frame| async {
            tokio::task::yield_now().await;
            frame
        })))
    }
}

/// Lists with this many watches at the same time. Returns the most bytes held at once, and the requests of each.
async fn hold(server: BigServer, watches: usize) -> (usize, Vec<String>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (heard, expected) = (asked.clone(), server.objects);
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let query = request.uri().query().unwrap_or("").to_owned();
        let answer =
            if query.contains("watch=true") { respond(Answer::Hangs(vec![])) } else { server.page(&query) };
        heard.lock().unwrap().push(query);
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let budget = crate::client::incoming::Budget::default();
    let time = crate::time::Time::starting_at(jiff::Timestamp::UNIX_EPOCH);
    let builder = ClientBuilder::new(service, "default");
    let source = Source::new(crate::client::observe_within(builder, &time, &budget));
    let mut listening = Vec::new();
    for _ in 0..watches {
        let (tx, changes) = mpsc::channel(1);
        let target = Target::all("things", "/things");
        tokio::spawn(follow(source.clone(), target, Numbered, WatchHealth::new("things"), tx));
        listening.push(changes);
    }
    for mut changes in listening {
        let Some(Change::Reset { all, .. }) = changes.recv().await else { panic!("no list") };
        assert_eq!(all.len(), expected);
    }
    let asked = asked.lock().unwrap().clone();
    (budget.most(), asked.into_iter().filter(|q| !q.contains("watch=true")).collect())
}

const MEGABYTE: usize = 1024 * 1024;

#[tokio::test(start_paused = true)]
async fn of_large_objects_one_is_held_at_a_time_whoever_reads() {
    for ignores_limit in [false, true] {
        let (most, _) = hold(BigServer { objects: 30, size: MEGABYTE, ignores_limit }, 5).await;
        assert!((MEGABYTE..2 * MEGABYTE).contains(&most), "{most} bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn pages_are_as_long_as_their_objects_are_small() {
    let limits = |asked: Vec<String>| -> Vec<usize> {
        let limit = |q: &String| q.split('&').next().unwrap()["limit=".len()..].parse().unwrap();
        asked.iter().map(limit).collect()
    };
    let (_, asked) = hold(BigServer { objects: 26, size: MEGABYTE, ignores_limit: false }, 1).await;
    assert_eq!(limits(asked), [20, 1, 1, 1, 1, 1, 1]);
    let (_, asked) = hold(BigServer { objects: 1000, size: 10_000, ignores_limit: false }, 1).await;
    let limits = limits(asked);
    assert_eq!(limits[..2], [20, 80]);
    assert!(limits[2..].iter().all(|limit| (180..220).contains(limit)), "{limits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_pages_expire_is_read_in_larger_ones() {
    let script = (0..3)
        .flat_map(|_| [Answer::List(vec![object("a", 3, 1)], 10, "more"), Answer::Status(StatusCode::GONE)]);
    let last = Answer::List(vec![object("a", 3, 1)], 10, "");
    let mut bench = Bench::new(script.chain([last]).collect());
    bench.reset().await;
    let asked = bench.asked.lock().unwrap().clone();
    let firsts = asked.iter().filter(|q| !q.contains("continue=") && !q.contains("watch=true"));
    let limits: Vec<usize> =
        firsts.map(|q| q.split('&').next().unwrap()["limit=".len()..].parse().unwrap()).collect();
    assert_eq!(limits, [20, 80, 320, 1280]);
}

/// etcd rejects objects of this size, but a server may send one.
#[tokio::test(start_paused = true)]
async fn an_object_that_is_too_large_is_left_out_and_counted() {
    let large = json!({"metadata": {"uid": "large", "resourceVersion": "4"}, "number": 1, "padding": "x".repeat(17 * MEGABYTE)});
    let mut bench = Bench::new(vec![
        Answer::List(vec![object("a", 3, 1), large.clone(), object("b", 5, 2)], 10, ""),
        Answer::Hangs(vec![event("MODIFIED", &large)]),
        Answer::List(vec![object("b", 5, 2)], 20, ""),
    ]);
    assert_eq!(bench.reset().await, [("a".into(), 1), ("b".into(), 2)]);
    assert_eq!(bench.health.unreadable.load(Ordering::Relaxed), 1);
    assert_eq!(bench.reset().await, [("b".into(), 2)], "what a line was that nobody can hold, a list tells");
}

/// A connection that stalls within a large object does not keep others from theirs.
#[tokio::test(start_paused = true)]
async fn a_connection_that_stands_still_in_a_large_object_gives_way() {
    let line = event(
        "ADDED",
        &json!({"metadata": {"uid": "a", "resourceVersion": "11"}, "number": 1, "padding": "x".repeat(MEGABYTE)}),
    );
    let half = line[..line.len() / 2].to_owned();
    let budget = crate::client::incoming::Budget::default();
    let time = crate::time::Time::starting_at(jiff::Timestamp::UNIX_EPOCH);
    let follow_script = |script: Vec<Answer>| {
        let script = Mutex::new(VecDeque::from(script));
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let check = is_check(request.uri().query().unwrap_or(""));
            let next = || script.lock().unwrap().pop_front().unwrap_or(Answer::Hangs(vec![]));
            let answer = if check { Answer::List(vec![], 10, "") } else { next() };
            std::future::ready(Ok::<_, Infallible>(respond(answer)))
        });
        let client = crate::client::observe_within(ClientBuilder::new(service, "default"), &time, &budget);
        let (tx, changes) = mpsc::channel(8);
        let target = Target::fields("things", "/things", "a=");
        tokio::spawn(follow(Source::new(client), target, Numbered, WatchHealth::new("things"), tx));
        changes
    };
    let mut stuck = follow_script(vec![Answer::List(vec![], 10, ""), Answer::Hangs(vec![half])]);
    assert!(matches!(stuck.recv().await, Some(Change::Reset { .. })));
    let mut other = follow_script(vec![Answer::List(vec![], 10, ""), Answer::Hangs(vec![line])]);
    assert!(matches!(other.recv().await, Some(Change::Reset { .. })));
    let told = tokio::time::timeout(Duration::from_secs(30), other.recv()).await;
    assert!(matches!(told, Ok(Some(Change::Applied(_)))), "{told:?}");
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
    let at = |revision: &str| json!({"metadata": {"name": "odd", "uid": "odd", "resourceVersion": revision}, "number": "many"});
    let mut bench = Bench::new(vec![
        Answer::List(vec![object("a", 3, 1), at("9")], 10, ""),
        Answer::Hangs(vec![
            event("MODIFIED", &at("11")),
            event("MODIFIED", &object("a", 12, 5)),
            event("DELETED", &at("13")),
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

/// A watch whose server sends nothing.
fn follower() -> Follower<Numbered> {
    let nobody = tower::service_fn(|_: Request<kube::client::Body>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::empty())))
    });
    Follower {
        client: Client::new(nobody, "default"),
        history: History::default(),
        target: Target::all("things", "/things"),
        projection: Numbered,
        health: WatchHealth::new("things"),
        changes: mpsc::channel(1).0,
        listed: None,
        unconfirmed: None,
    }
}

proptest::proptest! {
    #![proptest_config(crate::testing::fuzz::cases(1024))]

    /// A whole line is an event, a bookmark or a refusal; or it is made up for by a list. It is never passed over.
    #[test]
    fn any_line_of_a_watch_is_understood_or_listed_anew(
        text in proptest::prop_oneof![
            "\\PC{0,60}",
            "[\\[\\]{}\":,a-z0-9]{0,80}",
            "\\{\"type\":\"(ADDED|MODIFIED|DELETED|BOOKMARK|ERROR|X)\",\"object\":[\\[\\]{}\":,a-z0-9]{0,40}\\}",
        ],
        kind in "ADDED|MODIFIED|DELETED|BOOKMARK|ERROR|[A-Z]{0,5}",
        revision in "[0-9]{0,25}|\\PC{0,5}",
        number in "[0-9]{1,3}|-1|null|\"x\"|1e9|\\[\\]",
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _entered = runtime.enter();
        let follower = follower();
        let made = json!({"type": kind, "object": {"metadata": {"uid": "u", "resourceVersion": revision}, "number": "NUMBER"}});
        let made = made.to_string().replace("\"NUMBER\"", &number);
        for line in [text.as_bytes(), made.as_bytes()] {
            let word = follower.read_line(Line::Whole(line));
            proptest::prop_assert!(!matches!(word, Ok(None)), "a whole line was passed over");
        }
        let word = follower.read_line(Line::Whole(made.as_bytes()));
        if kind == "DELETED" && let Ok(Some(Word { seen, change })) = word {
            proptest::prop_assert_eq!(seen.to_string(), revision);
            proptest::prop_assert!(matches!(change, Some(Change::Gone(_))));
        }
    }
}
