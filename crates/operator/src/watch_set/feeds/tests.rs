//! Feeds that come and go, in paused time.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use jiff::SignedDuration;
use salvor_api::config::BrakeLimits;
use salvor_recovery::{
    brake::{Brake, BrakeState},
    objects::ObjectRef,
};
use serde_json::{Value, json};

use super::{
    kind::{KindLost, OfKind},
    *,
};
use crate::{
    client::wire::Whole,
    engine::{notices::Notices, shared::Shared},
    execute::Executor,
    lead::Leadership,
    metrics::Metrics,
    testing::fake_api::{Answer, Asked, FakeApi},
    time::{Time, broadcast::Broadcast},
};

/// A keeper of a brake that blocks nothing.
pub(crate) fn keeper(api: &FakeApi) -> BrakeKeeper {
    let time = Time::system();
    let metrics = Metrics::new(&time);
    let (leadership, lead) = Leadership::scripted();
    lead(Some(Duration::from_secs(86_400)));
    let client = api.client.clone();
    let us = "us".to_owned();
    let executor = Executor::new(client, time.clone(), leadership.clone(), metrics.clone(), us, 1, false);
    let shared = Shared {
        time,
        leadership,
        executor,
        brake: Arc::new(Mutex::new(Brake::new(BrakeLimits::default(), BrakeState::default()))),
        released: Broadcast::default(),
        metrics,
        dry_run: false,
        home: ObjectRef::lease("home", "salvor"),
        at_once: 1,
        freshness: Duration::from_secs(60),
        notices: Notices::default(),
    };
    BrakeKeeper::new(shared, SignedDuration::from_hours(24))
}

struct Names;

impl Project for Names {
    type Wire = Whole;
    type Kept = String;

    fn keep(&self, wire: Whole) -> Option<String> {
        wire.object["metadata"]["name"].as_str().map(str::to_owned)
    }
}

fn list(names: &[&str]) -> Answer {
    let item = |name: &&str| json!({"metadata": {"name": name, "uid": name, "resourceVersion": "5"}});
    let items: Vec<Value> = names.iter().map(item).collect();
    Answer::Json(200, json!({"metadata": {"resourceVersion": "7"}, "items": items}))
}

fn is_watch(asked: &Asked) -> bool {
    asked.query.contains("watch=true")
}

struct Bench {
    feeds: Feeds<String>,
    inbox: Inbox<String>,
    all: WatchSet,
    _api: FakeApi,
}

impl Bench {
    fn new(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let api = FakeApi::new(answer);
        let hub = Hub::new(Source::new(api.client.clone()), keeper(&api));
        let all = hub.watches.clone();
        let (feeds, inbox) = Feeds::new(hub);
        Self { feeds, inbox, all, _api: api }
    }

    async fn next(&mut self) -> String {
        loop {
            let item = self.inbox.recv().await.unwrap();
            if let Some(news) = self.feeds.open(item) {
                return news;
            }
        }
    }

    fn resources(&self) -> Vec<&'static str> {
        self.all.all().iter().map(|watch| watch.resource).collect()
    }
}

fn told(name: &str) -> impl Fn(Change<String>) -> String + Send + use<> {
    let name = name.to_owned();
    move |change| match change {
        Change::Reset { all, .. } => format!("{name}: {}", all.join(" ")),
        Change::Applied(one) => format!("{name}: +{one}"),
        Change::Gone(uid) => format!("{name}: -{uid}"),
    }
}

fn of_kind(told: OfKind<String>) -> String {
    match told {
        OfKind::Served(served) => format!("served at {}", served.path(None)),
        OfKind::Change(change) => self::told("kind")(change),
        OfKind::Lost(KindLost::Unserved) => "unserved".to_owned(),
        OfKind::Lost(KindLost::NotServed) => "not served".to_owned(),
        OfKind::Lost(KindLost::Failed(words)) => format!("failed: {words}"),
    }
}

fn widgets() -> Feed<String> {
    let kind = Kind { group: "example.com".into(), version: "v1".into(), kind: "Widget".into() };
    let target = KindTarget {
        kind,
        versions: Versions::Any,
        namespace: None,
        field_selector: None,
        label_selector: Some("app=x".into()),
    };
    Feed::kind("children", target, 0, Names, of_kind)
}

fn passing(name: &'static str, number: u64) -> Feed<String> {
    let target = Target::fields("passing", "/things", format!("name={name}"));
    Feed::passing_watch(target, number, Names, told(name))
}

#[tokio::test(start_paused = true)]
async fn a_feed_goes_on_while_it_is_declared_and_is_not_heard_any_more_when_it_is_not() {
    let mut bench = Bench::new(|asked| if is_watch(asked) { Answer::Never } else { list(&["x"]) });
    let health = WatchHealth::new("lasting");
    let lasting = || Feed::watch(Target::all("lasting", "/lasting"), Names, &health, told("lasting"));
    bench.feeds.declare(vec![lasting()]);
    assert_eq!(bench.resources(), ["lasting"]);
    assert!(bench.all.is_stale(Duration::from_secs(60)), "it is not listed yet");
    assert_eq!(bench.next().await, "lasting: x");
    bench.feeds.declare(vec![lasting(), passing("a", 1), passing("b", 1)]);
    assert_eq!(bench.resources(), ["lasting", "passing"]);
    let mut both = [bench.next().await, bench.next().await];
    both.sort();
    assert_eq!(both, ["a: x", "b: x"], "what ran before is not begun again");
    // The list is in flight when the feed is stopped, and the feed is then declared again.
    bench.feeds.declare(vec![lasting(), passing("b", 1), passing("c", 1)]);
    let late = bench.inbox.recv().await.unwrap();
    bench.feeds.declare(vec![lasting(), passing("b", 1)]);
    assert_eq!(bench.feeds.open(late), None, "nobody wants it any more");
    bench.feeds.declare(vec![lasting(), passing("b", 1), passing("c", 2)]);
    assert_eq!(bench.next().await, "c: x");
    bench.feeds.declare(vec![]);
    assert_eq!(bench.resources(), ["passing"], "a name that was shown stays in the metrics");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(bench.all.all()[0].staleness(), Duration::ZERO, "there is none that could be old");
}

#[tokio::test(start_paused = true)]
async fn first_lists_of_many_take_turns_and_one_that_hangs_holds_up_no_other_for_long() {
    let under_way = Arc::new(Mutex::new((0, 0)));
    let counted = under_way.clone();
    let mut bench = Bench::new(move |asked| {
        if is_watch(asked) || asked.query.contains("hangs") {
            return Answer::Never;
        }
        let mut count = counted.lock().unwrap();
        count.0 += 1;
        list(&["x"]).late(Duration::from_secs(1))
    });
    let names: Vec<&'static str> = (0..12).map(|n| if n < 4 { "hangs" } else { "works" }).collect();
    bench.feeds.declare(names.iter().zip(1..).map(|(name, number)| passing(name, number)).collect());
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(under_way.lock().unwrap().0, 0, "all four turns are taken");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(under_way.lock().unwrap().0, 4);
    for _ in 0..8 {
        assert_eq!(bench.next().await, "works: x");
    }
}

#[tokio::test(start_paused = true)]
async fn a_resource_whose_definition_is_missing_is_known_not_to_be_served_until_it_is() {
    let served = Arc::new(AtomicBool::new(false));
    let serves = served.clone();
    let mut bench = Bench::new(move |asked| match serves.load(Ordering::Relaxed) {
        false => Answer::Refused(404, "the server could not find the requested resource"),
        true if is_watch(asked) => Answer::Never,
        true => list(&["x"]),
    });
    let (defined, core) = (WatchHealth::new("defined"), WatchHealth::new("core"));
    let feed = |health: &Arc<WatchHealth>, path| {
        Feed::watch(Target::all(health.resource, path), Names, health, told(health.resource))
    };
    bench.feeds.declare(vec![feed(&defined, "/apis/example.com/v1/things"), feed(&core, "/api/v1/pods")]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(defined.is_not_served() && !defined.is_synced());
    assert!(!core.is_not_served(), "every server has those");
    served.store(true, Ordering::Relaxed);
    let both = BTreeSet::from([bench.next().await, bench.next().await]);
    assert_eq!(both, BTreeSet::from(["defined: x".to_owned(), "core: x".to_owned()]));
    assert!(!defined.is_not_served());
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_served_is_told_and_holds_nothing_up_until_it_is() {
    let served = Arc::new(AtomicBool::new(false));
    let serves = served.clone();
    let mut bench = Bench::new(move |asked| match asked.path.as_str() {
        "/apis/example.com/v1" if serves.load(Ordering::Relaxed) => Answer::Json(
            200,
            json!({"resources": [{"name": "widgets", "kind": "Widget", "namespaced": true}]}),
        ),
        "/apis/example.com/v1/widgets" if serves.load(Ordering::Relaxed) => {
            assert!(asked.query.contains("labelSelector=app%3Dx"), "{}", asked.query);
            // The watch of a kind whose definition is deleted ends.
            if is_watch(asked) {
                Answer::late(Answer::Json(200, json!({})), Duration::from_secs(30))
            } else {
                list(&["w"])
            }
        }
        _ => Answer::Refused(404, "the server could not find the requested resource"),
    });
    bench.feeds.declare(vec![widgets()]);
    assert_eq!(bench.next().await, "unserved");
    tokio::time::sleep(Duration::from_secs(55)).await;
    assert!(bench.inbox.is_empty(), "two answers are a minute apart");
    assert_eq!(bench.next().await, "not served");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(bench.inbox.is_empty(), "it is told once");
    assert!(!bench.all.is_stale(Duration::from_secs(60)) && !bench.all.is_outdated());
    served.store(true, Ordering::Relaxed);
    assert_eq!(bench.next().await, "served at /apis/example.com/v1/widgets");
    assert_eq!(bench.next().await, "kind: w");
    assert!(!bench.all.is_stale(Duration::from_secs(60)));
    served.store(false, Ordering::Relaxed);
    assert_eq!(bench.next().await, "unserved");
    // Served again a moment later: it was never really gone.
    served.store(true, Ordering::Relaxed);
    assert_eq!(bench.next().await, "served at /apis/example.com/v1/widgets");
    assert_eq!(bench.next().await, "kind: w");
    served.store(false, Ordering::Relaxed);
    let lost = tokio::time::Instant::now();
    assert_eq!(bench.next().await, "unserved");
    assert_eq!(bench.next().await, "not served");
    assert!(lost.elapsed() >= Duration::from_secs(60));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!bench.all.is_stale(Duration::from_secs(60)), "other kinds go on");
    served.store(true, Ordering::Relaxed);
    assert_eq!(bench.next().await, "served at /apis/example.com/v1/widgets");
    assert_eq!(bench.next().await, "kind: w");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_may_not_be_read_or_whose_lists_fail_holds_nothing_up() {
    for (code, within) in [(403, 1), (500, 120)] {
        let mut bench = Bench::new(move |asked| match asked.path.as_str() {
            "/apis/example.com/v1" => Answer::Json(
                200,
                json!({"resources": [{"name": "widgets", "kind": "Widget", "namespaced": true}]}),
            ),
            _ => Answer::Refused(code, "no"),
        });
        bench.feeds.declare(vec![widgets()]);
        let told = tokio::time::timeout(Duration::from_secs(within), bench.next()).await;
        assert_eq!(told.unwrap(), format!("failed: no ({code})"));
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(bench.inbox.is_empty(), "it is told once");
        assert!(!bench.all.is_stale(Duration::from_secs(60)));
    }
}
