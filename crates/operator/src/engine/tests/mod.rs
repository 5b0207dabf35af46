//! The engine with a scripted recovery, in paused time.

use std::sync::{Arc, Mutex};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use futures::FutureExt;
use http::Method;
use jiff::SignedDuration;
use kube::Client;
use salvor_api::config::BrakeLimits;
use salvor_recovery::{
    brake::{BrakeState, Outage},
    event::{EventNote, EventType},
    job::{self, CreationReason},
    objects::{JobRef, ObjectRef, PodRef},
    zombie,
};
use tokio::task::JoinHandle;

use super::*;
use crate::engine::notices::Notices;
use crate::execute::{Executor, Lane};
use crate::lead::Leadership;
use crate::metrics::Metrics;
use crate::time::Time;
use crate::time::broadcast::Broadcast;
use crate::{
    client::{recent_reads::ReadAge, wire::Whole},
    engine::{
        brake_keeper::BrakeKeeper,
        recovery::{After, Known, LiveRecheck, View},
    },
    testing::{
        any_step::AnyStep,
        fake_api::{Answer, Asked, FakeApi, soon},
    },
    watch_set::{
        feeds::{Feed, Hub, Outbox},
        watch::{Project, Source, Target, WatchHealth, WatchSet},
    },
};

mod turns;

#[derive(Clone, Debug)]
struct AsTold;

impl fmt::Display for AsTold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as told")
    }
}

impl Reason for AsTold {
    fn code(&self) -> &'static str {
        "AsTold"
    }

    fn what_would_change_it(&self) -> String {
        "being told otherwise".to_owned()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wish {
    Patch,
    Tell,
    Delete,
    Create,
}

use Wish::{Create, Delete, Patch, Tell};

#[derive(Clone, Debug)]
enum Want {
    Nothing,
    At(Timestamp),
    Steps(&'static [Wish]),
}

enum News {
    Pod(&'static str, Want),
    Gone(&'static str),
}

type World = Arc<Mutex<BTreeMap<&'static str, Want>>>;

struct Told {
    seen: World,
    /// The state that a second look finds, if it differs.
    live: World,
    told: BTreeSet<&'static str>,
    judged: Arc<Mutex<Vec<&'static str>>>,
    looking: Looking,
    /// Real time that a decision takes.
    judging: Duration,
    /// A watch that must be listed before anything is decided.
    counts: Option<Arc<WatchHealth>>,
}

struct Things;

impl Project for Things {
    type Wire = Whole;
    type Kept = ();

    fn keep(&self, _: Whole) -> Option<()> {
        None
    }
}

/// The duration of each look (the last one repeats), and the number of looks.
#[derive(Clone, Default)]
struct Looking {
    takes: Arc<Mutex<VecDeque<Duration>>>,
    looks: Arc<AtomicUsize>,
}

impl Looking {
    fn takes(&self, millis: &[u64]) {
        *self.takes.lock().unwrap() = millis.iter().copied().map(Duration::from_millis).collect();
    }

    async fn look(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let takes = {
            let mut takes = self.takes.lock().unwrap();
            if takes.len() > 1 { takes.pop_front() } else { takes.front().copied() }
        };
        tokio::time::sleep(takes.unwrap_or_default()).await;
    }
}

impl Told {
    fn new(live: &World, judged: &Arc<Mutex<Vec<&'static str>>>) -> Self {
        let (live, judged) = (Arc::clone(live), Arc::clone(judged));
        Self {
            seen: World::default(),
            live,
            told: BTreeSet::new(),
            judged,
            looking: Looking::default(),
            judging: Duration::ZERO,
            counts: None,
        }
    }
}

fn verdict(name: &str, want: &Want, told: bool) -> Decision<AsTold, AnyStep> {
    let pod = PodRef { namespace: "ns".into(), name: name.into(), uid: name.into() };
    let action = |step: &Wish| -> AnyStep {
        match step {
            Patch => zombie::Step::PatchPodStatus {
                pod: pod.clone(),
                resource_version: "1".into(),
                phase: None,
                conditions: vec![],
                ended: None,
            }
            .into(),
            Tell => zombie::Step::EmitEvent(EventNote {
                name: format!("{name}.told"),
                regarding: (&pod).into(),
                kind: EventType::Normal,
                reason: "Told".into(),
                action: "Tell",
                reporting_controller: "test",
                message: "told".into(),
            })
            .into(),
            Delete => zombie::Step::ForceDeletePod { pod: pod.clone(), resource_version: "1".into() }.into(),
            Create => job::Step::CreatePod {
                job: Arc::new(JobRef { namespace: "ns".into(), name: name.into(), uid: name.into() }),
                name: format!("{name}-0"),
                body: "{}".into(),
                reason: CreationReason::New,
                told: false,
            }
            .into(),
        }
    };
    let verdict = match want {
        Want::Nothing => Verdict::Ignore(AsTold),
        Want::At(until) => Verdict::Wait { until: *until, why: AsTold },
        Want::Steps(steps) => {
            let actions: Vec<AnyStep> = steps.iter().filter(|s| !(told && **s == Tell)).map(action).collect();
            if actions.is_empty() { Verdict::Ignore(AsTold) } else { Verdict::Act { actions, why: AsTold } }
        }
    };
    Decision { verdict, findings: vec![] }
}

/// Finds the state at the time of the look, not at the time of its creation.
struct Look(&'static str, World, Looking);

impl LiveRecheck for Look {
    type Why = AsTold;
    type Step = AnyStep;

    async fn ask(
        &self,
        _: &Client,
        _: Known<'_>,
        _: Timestamp,
        _: &mut ReadAge,
    ) -> kube::Result<Option<Decision<AsTold, AnyStep>>> {
        let everything = Want::Steps(&[Patch, Tell, Delete, Create]);
        let want = self.1.lock().unwrap().get(self.0).cloned().unwrap_or(everything);
        // A look finds the state at the time when it was sent.
        self.2.look().await;
        Ok(Some(verdict(self.0, &want, false)))
    }
}

impl Recovery for Told {
    const NAME: &'static str = "told";
    type Subject = &'static str;
    type Why = AsTold;
    type Step = AnyStep;
    type News = News;
    type Recheck = Look;

    fn watches(&mut self) -> Option<Vec<Feed<News>>> {
        let health = self.counts.take()?;
        let things = Target::all("things", "/things");
        Some(vec![Feed::watch(things, Things, &health, |_| News::Gone("nobody")).listed_to_lead()])
    }

    fn on_change(&mut self, news: News, _: Timestamp) -> Vec<&'static str> {
        let mut seen = self.seen.lock().unwrap();
        match news {
            News::Pod(name, want) => {
                seen.insert(name, want);
                vec![name]
            }
            News::Gone(name) => {
                seen.remove(name);
                vec![name]
            }
        }
    }

    fn judge(&self, subject: &&'static str, now: Timestamp) -> Option<Decision<AsTold, AnyStep>> {
        self.judged.lock().unwrap().push(subject);
        if !self.judging.is_zero() {
            std::thread::sleep(self.judging);
        }
        let want = match self.seen.lock().unwrap().get(subject)?.clone() {
            Want::At(until) if until <= now => Want::Steps(&[Patch]),
            want => want,
        };
        Some(verdict(subject, &want, self.told.contains(subject)))
    }

    fn subjects(&self) -> Vec<&'static str> {
        self.seen.lock().unwrap().keys().copied().collect()
    }

    fn recheck(&self, subject: &&'static str, _: Timestamp) -> Look {
        Look(subject, self.live.clone(), self.looking.clone())
    }

    fn ended(&mut self, subject: &&'static str, end: Ended<'_, AnyStep>, _: Timestamp) -> After {
        After::with(end.view(|step, _| {
            if step.tells().is_some() {
                self.told.insert(subject);
                return View::Synced;
            }
            View::Lagging
        }))
    }
}

struct Bench {
    api: FakeApi,
    time: Time,
    metrics: Metrics,
    shared: Shared,
    news: Outbox<News>,
    live: World,
    judged: Arc<Mutex<Vec<&'static str>>>,
    looking: Looking,
    lead: Box<dyn Fn(Option<Duration>)>,
    stop: CancellationToken,
    engine: JoinHandle<()>,
    keeper: BrakeKeeper,
}

/// Feeds without declarations, with the given watches.
fn feeds(api: &FakeApi, keeper: &BrakeKeeper, watches: &[Arc<WatchHealth>]) -> (Feeds<News>, Inbox<News>) {
    let (feeds, inbox) = Feeds::new(Hub::new(Source::new(api.client.clone()), keeper.clone()));
    watches.iter().for_each(|watch| feeds.watches().add(watch));
    (feeds, inbox)
}

#[derive(Default)]
struct Options {
    dry_run: bool,
    pods_per_minute: u32,
    watches: Vec<Arc<WatchHealth>>,
    notices: Notices,
    /// A watch that must be listed before anything is decided.
    counts: Option<Arc<WatchHealth>>,
    /// Limit on concurrent writes; a high limit if 0.
    writes: u32,
}

const LONG: Option<Duration> = Some(Duration::from_secs(86_400));

impl Bench {
    fn new(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        Self::with(Options::default(), answer)
    }

    /// Leads for a day, with two attempts at once.
    fn with(options: Options, answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let api = FakeApi::new(answer);
        let time = Time::system();
        time.learn(time.local(), time.local(), time.local());
        // After several answers the server's clock is known to a twentieth of a second.
        time.learn(time.local(), time.local(), time.local() - Duration::from_millis(950));
        let metrics = Metrics::new(&time);
        let (leadership, lead) = Leadership::scripted();
        lead(LONG);
        let executor = Executor::new(
            api.client.clone(),
            time.clone(),
            leadership.clone(),
            metrics.clone(),
            "us".to_owned(),
            if options.writes == 0 { 8 } else { options.writes },
            options.dry_run,
        );
        let limits = BrakeLimits { max_pods_per_minute: options.pods_per_minute, ..BrakeLimits::default() };
        let shared = Shared {
            time: time.clone(),
            leadership,
            executor,
            brake: Arc::new(Mutex::new(Brake::new(limits, BrakeState::default()))),
            released: Broadcast::default(),
            metrics: metrics.clone(),
            dry_run: options.dry_run,
            home: ObjectRef::lease("home", "salvor"),
            at_once: 2,
            freshness: Duration::from_secs(60),
            notices: options.notices,
        };
        let keeper = BrakeKeeper::new(shared.clone(), SignedDuration::from_hours(24));
        let kept = keeper.clone();
        tokio::spawn(async move { kept.run().await });
        let (live, judged) = (World::default(), Arc::default());
        let recovery = Told { counts: options.counts, ..Told::new(&live, &judged) };
        let looking = recovery.looking.clone();
        let (feeds, inbox) = feeds(&api, &keeper, &options.watches);
        let news = feeds.outbox();
        let stop = CancellationToken::new();
        let engine = Engine::new(recovery, shared.clone(), feeds).run(inbox, stop.clone());
        let engine = tokio::spawn(engine);
        let lead = Box::new(lead);
        Self { api, time, metrics, shared, news, live, judged, looking, lead, stop, engine, keeper }
    }

    /// Another recovery of the same process.
    fn another(&self) -> Outbox<News> {
        let (feeds, inbox) = feeds(&self.api, &self.keeper, &[]);
        let news = feeds.outbox();
        let recovery = Told::new(&World::default(), &Arc::default());
        tokio::spawn(Engine::new(recovery, self.shared.clone(), feeds).run(inbox, self.stop.clone()));
        news
    }

    async fn want(&self, name: &'static str, steps: &'static [Wish]) {
        self.tell(News::Pod(name, Want::Steps(steps))).await;
    }

    async fn tell(&self, news: News) {
        assert!(self.news.send(news).await.is_ok(), "the engine runs");
    }

    /// Reports that `unreachable` of `total` nodes are lost.
    fn nodes(&self, unreachable: u32, total: u32) {
        self.keeper.see(&[("", unreachable, total)]);
    }

    /// The methods of all writes about pods, events included.
    fn written(&self) -> Vec<String> {
        let of_pods = self.api.asked().into_iter().filter(|a| a.path.contains("/namespaces/ns/"));
        of_pods.map(|a| a.method.to_string()).collect()
    }

    /// The reasons of the events about ourselves.
    fn announced(&self) -> Vec<String> {
        let of_us = self.api.asked().into_iter().filter(|a| a.path.contains("/namespaces/home/"));
        of_us.map(|a| a.body["reason"].as_str().unwrap().to_owned()).collect()
    }
}

/// Lets time pass, and runs everything that is due in it.
async fn pass(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

fn fails_at(method: Method, code: u16) -> impl Fn(&Asked) -> Answer {
    move |asked| if asked.method == method { Answer::Refused(code, "no") } else { Answer::ok() }
}

#[tokio::test(start_paused = true)]
async fn what_is_due_later_is_done_then_and_not_before() {
    let bench = Bench::new(|_| Answer::ok());
    let due = bench.time.server() + Duration::from_secs(60);
    let began = Instant::now();
    bench.tell(News::Pod("a", Want::At(due))).await;
    pass(120.0).await;
    let patched = bench.api.times(&Method::PATCH)[0] - began;
    assert!(patched >= Duration::from_secs(60), "early: {patched:?}");
    assert!(patched <= Duration::from_millis(60_200), "late: {patched:?}");
}

/// As with a Lease, which is not watched: only the second look knows that it is too early, and until when.
#[tokio::test(start_paused = true)]
async fn what_a_second_look_finds_to_be_due_later_is_done_then() {
    let bench = Bench::new(|_| Answer::ok());
    let due = bench.time.server() + Duration::from_secs(40);
    let began = Instant::now();
    bench.live.lock().unwrap().insert("a", Want::At(due));
    bench.want("a", &[Patch]).await;
    pass(39.5).await;
    assert_eq!(bench.written(), Vec::<String>::new());
    bench.live.lock().unwrap().clear();
    pass(60.0).await;
    let patched = bench.api.times(&Method::PATCH)[0] - began;
    assert!((Duration::from_secs(40)..Duration::from_secs(41)).contains(&patched), "{patched:?}");
}

/// The look finds something to wait for. During the look a change reports that this is over, and it does not come
/// again.
#[tokio::test(start_paused = true)]
async fn news_that_came_during_a_look_end_the_wait_that_it_asks_for() {
    let bench = Bench::new(|_| Answer::ok());
    let due = bench.time.server() + Duration::from_secs(600);
    bench.live.lock().unwrap().insert("a", Want::At(due));
    bench.looking.takes(&[500, 0]);
    bench.want("a", &[Patch]).await;
    pass(0.2).await;
    bench.live.lock().unwrap().clear();
    bench.want("a", &[Patch]).await;
    pass(2.0).await;
    assert_eq!(bench.written(), ["PATCH"]);
}

#[tokio::test(start_paused = true)]
async fn whoever_looks_on_is_told_verdicts_deeds_and_ends() {
    let (notices, mut heard) = Notices::channel();
    let bench = Bench::with(Options { notices, ..Options::default() }, |_| Answer::ok());
    let due = bench.time.server() + Duration::from_secs(60);
    bench.tell(News::Pod("a", Want::At(due))).await;
    pass(1.0).await;
    let mut told = || {
        let heard = std::iter::from_fn(|| heard.try_recv().ok());
        heard
            .map(|notice| match notice {
                Notice::Paused(said) => format!("paused: {said:?}"),
                Notice::Leads(leads) => format!("leads {leads}"),
                Notice::Judged { report, .. } => report.verdict.to_owned(),
                Notice::Did { headline, .. } => headline.unwrap_or("everyday work").to_owned(),
                Notice::Forgotten { .. } => "forgotten".to_owned(),
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(told(), ["leads true", "Wait"]);
    pass(120.0).await;
    let done = told();
    assert_eq!(done.first().map(String::as_str), Some("Act"), "{done:?}");
    assert!(done.contains(&"marked Failed".to_owned()), "{done:?}");
    bench.tell(News::Gone("a")).await;
    pass(1.0).await;
    assert_eq!(told().last().map(String::as_str), Some("forgotten"));
}

#[tokio::test(start_paused = true)]
async fn failures_are_tried_again_at_growing_distances() {
    let bench = Bench::new(fails_at(Method::PATCH, 500));
    bench.want("a", &[Patch]).await;
    pass(400.0).await;
    let times = bench.api.times(&Method::PATCH);
    let gaps: Vec<f64> = times.windows(2).map(|w| (w[1] - w[0]).as_secs_f64()).collect();
    let expected = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0, 60.0, 60.0];
    assert_eq!(gaps.len(), expected.len(), "{gaps:?}");
    for (gap, expected) in gaps.iter().zip(expected) {
        assert!((gap - expected).abs() < 0.01, "{gaps:?}");
    }
    assert!(bench.metrics.render().contains("salvor_retries_total{recovery=\"told\"} 14\n"));
}

/// The same recovery for objects that may be large.
struct Large(Told);

impl Recovery for Large {
    const NAME: &'static str = "large";
    const LANE: Lane = Lane::LargeObjects;
    type Subject = &'static str;
    type Why = AsTold;
    type Step = AnyStep;
    type News = News;
    type Recheck = Look;

    fn watches(&mut self) -> Option<Vec<Feed<News>>> {
        self.0.watches()
    }

    fn on_change(&mut self, news: News, now: Timestamp) -> Vec<&'static str> {
        self.0.on_change(news, now)
    }

    fn judge(&self, subject: &&'static str, now: Timestamp) -> Option<Decision<AsTold, AnyStep>> {
        self.0.judge(subject, now)
    }

    fn subjects(&self) -> Vec<&'static str> {
        self.0.subjects()
    }

    fn recheck(&self, subject: &&'static str, judged: Timestamp) -> Look {
        self.0.recheck(subject, judged)
    }

    fn ended(&mut self, subject: &&'static str, end: Ended<'_, AnyStep>, now: Timestamp) -> After {
        self.0.ended(subject, end, now)
    }
}

/// An overloaded server does not receive the same write again and again: the backoff doubles, each retry looks first,
/// and a write that the look finds done is not sent.
#[tokio::test(start_paused = true)]
async fn what_was_not_answered_is_looked_for_and_sent_again_after_seconds_that_double() {
    let bench = Bench::new(|asked| if asked.method == Method::PATCH { Answer::Never } else { Answer::ok() });
    let (feeds, inbox) = feeds(&bench.api, &bench.keeper, &[]);
    let news = feeds.outbox();
    let recovery = Large(Told::new(&bench.live, &Arc::default()));
    let looks = recovery.0.looking.looks.clone();
    tokio::spawn(Engine::new(recovery, bench.shared.clone(), feeds).run(inbox, bench.stop.clone()));
    assert!(news.send(News::Pod("a", Want::Steps(&[Patch]))).await.is_ok());
    pass(80.0).await;
    let times = bench.api.times(&Method::PATCH);
    let gaps: Vec<u64> = times.windows(2).map(|w| (w[1] - w[0]).as_secs()).collect();
    // Each write times out after ten seconds.
    assert_eq!(gaps, [11, 12, 14, 18], "{gaps:?}");
    assert_eq!(looks.load(Ordering::Relaxed), times.len());
    bench.live.lock().unwrap().insert("a", Want::Nothing);
    pass(600.0).await;
    assert_eq!(bench.api.times(&Method::PATCH).len(), times.len(), "the next look finds it done");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_waits_for_news_and_not_for_ever() {
    let bench = Bench::new(fails_at(Method::PATCH, 409));
    bench.want("a", &[Patch]).await;
    pass(1.0).await;
    assert_eq!(bench.api.count(&Method::PATCH), 1, "the same view would conflict again");
    bench.want("a", &[Patch]).await;
    pass(0.1).await;
    assert_eq!(bench.api.count(&Method::PATCH), 2, "news end the wait");
    pass(1.8).await;
    assert_eq!(bench.api.count(&Method::PATCH), 2);
    pass(0.2).await;
    assert_eq!(bench.api.count(&Method::PATCH), 3, "and so does time");
}

#[tokio::test(start_paused = true)]
async fn news_that_came_during_a_conflict_are_judged_at_once() {
    let bench = Bench::new(|asked| match asked.method {
        Method::PATCH => Answer::Refused(409, "changed").late(Duration::from_secs(1)),
        _ => Answer::ok(),
    });
    bench.want("a", &[Patch]).await;
    pass(0.5).await;
    bench.want("a", &[Delete]).await;
    pass(0.6).await;
    assert_eq!(bench.written(), ["PATCH", "DELETE"]);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_fails_holds_nothing_up_and_is_made_up_for() {
    let failures = AtomicUsize::new(0);
    let bench = Bench::new(move |asked| {
        let fails = asked.method == Method::POST && failures.fetch_add(1, Ordering::Relaxed) < 3;
        if fails { Answer::Refused(500, "no") } else { Answer::ok() }
    });
    bench.want("a", &[Patch, Tell, Delete]).await;
    pass(0.05).await;
    assert_eq!(bench.written(), ["PATCH", "POST", "DELETE"]);
    // The pod stays, as one with a finalizer does.
    bench.want("a", &[Tell]).await;
    pass(60.0).await;
    assert_eq!(bench.written(), ["PATCH", "POST", "DELETE", "POST", "POST", "POST"]);
}

#[tokio::test(start_paused = true)]
async fn an_event_about_what_is_gone_meanwhile_is_made_up_for_too() {
    let failures = AtomicUsize::new(0);
    let bench = Bench::new(move |asked| {
        let fails = asked.method == Method::POST && failures.fetch_add(1, Ordering::Relaxed) < 3;
        if fails { Answer::Refused(500, "no") } else { Answer::ok() }
    });
    bench.want("a", &[Patch, Tell, Delete]).await;
    pass(0.05).await;
    bench.tell(News::Gone("a")).await;
    pass(60.0).await;
    assert_eq!(bench.written(), ["PATCH", "POST", "DELETE", "POST", "POST", "POST"]);
}

#[tokio::test(start_paused = true)]
async fn the_delete_never_comes_before_its_patch_and_a_second_look_stops_it() {
    let bench = Bench::new(fails_at(Method::PATCH, 500));
    bench.want("a", &[Patch, Tell, Delete]).await;
    bench.live.lock().unwrap().insert("b", Want::Nothing);
    bench.want("b", &[Delete]).await;
    pass(60.0).await;
    assert!(bench.written().iter().all(|m| m == "PATCH"), "{:?}", bench.written());
}

#[tokio::test(start_paused = true)]
async fn the_brake_holds_and_its_release_wakes_what_was_held() {
    let bench = Bench::new(|_| Answer::ok());
    bench.nodes(3, 5);
    bench.want("a", &[Patch]).await;
    bench.want("b", &[Delete]).await;
    bench.want("c", &[Tell]).await;
    pass(3600.0).await;
    assert_eq!(bench.written(), ["POST"], "what takes nothing away is not held");
    assert_eq!(bench.announced(), ["BrakeEngaged"]);
    let metrics = bench.metrics.render();
    assert!(metrics.contains("salvor_brake_engaged 1\n"), "{metrics}");
    assert!(
        metrics.contains("salvor_held_total{recovery=\"told\",by=\"MaxUnreachablePercent\"} 2\n"),
        "{metrics}"
    );
    bench.nodes(2, 5);
    pass(30.0).await;
    // Another node comes back: the wait starts over.
    bench.nodes(1, 5);
    pass(49.0).await;
    assert_eq!(bench.written(), ["POST"], "more nodes may come back");
    let metrics = bench.metrics.render();
    assert!(metrics.contains("salvor_brake_engaged 1\n"), "{metrics}");
    assert!(metrics.contains("salvor_held_total{recovery=\"told\",by=\"Settling\"}"), "{metrics}");
    assert_eq!(bench.announced(), ["BrakeEngaged"]);
    // After an hour without an answer the server's clock is only known to a few seconds.
    pass(6.0).await;
    assert_eq!(bench.written(), ["POST", "PATCH", "DELETE"]);
    assert_eq!(bench.announced(), ["BrakeEngaged", "BrakeReleased"]);
    assert!(bench.metrics.render().contains("salvor_brake_engaged 0\n"));
}

/// The cluster as a whole is not blocked, so no transition announces the release.
#[tokio::test(start_paused = true)]
async fn a_zone_that_is_let_go_wakes_what_it_held() {
    let bench = Bench::new(|_| Answer::ok());
    let released = bench.shared.released.listen();
    let is_told = || released.notified().now_or_never().is_some();
    bench.keeper.see(&[("a", 3, 5), ("b", 0, 20)]);
    assert!(!is_told());
    bench.keeper.see(&[("a", 4, 5), ("b", 0, 20)]);
    assert!(!is_told(), "it still holds");
    bench.keeper.see(&[("a", 2, 5), ("b", 0, 20)]);
    assert!(is_told(), "now it is known until when it settles");
    bench.keeper.see(&[("a", 3, 5), ("b", 0, 20)]);
    assert!(!is_told());
    bench.keeper.see(&[("b", 0, 20)]);
    assert!(is_told(), "a zone without nodes holds nothing");
    assert_eq!(bench.announced(), Vec::<String>::new());
}

const SAID: &str = r#"{"since":"2026-11-16T03:00:00Z","by":"jane","reason":"network work"}"#;

#[tokio::test(start_paused = true)]
async fn a_pause_holds_everything_and_its_end_wakes_it_without_a_storm() {
    let (notices, mut heard) = Notices::channel();
    let options = Options { notices, pods_per_minute: 2, ..Options::default() };
    let bench = Bench::with(options, |_| Answer::ok());
    bench.shared.leadership.pause().set(Some(SAID));
    for name in ["a", "b", "c", "d"] {
        bench.want(name, &[Patch, Tell, Delete]).await;
    }
    bench.want("e", &[Tell]).await;
    pass(3600.0).await;
    assert!(bench.written().is_empty(), "{:?}", bench.written());
    assert_eq!(bench.announced(), ["Paused"]);
    let metrics = bench.metrics.render();
    assert!(metrics.contains("salvor_held_total{recovery=\"told\",by=\"Paused\"} 5\n"), "{metrics}");
    let mut blocked = 0;
    while let Ok(notice) = heard.try_recv() {
        if let Notice::Judged { report, .. } = notice {
            let by = report.blocked_by.unwrap();
            assert_eq!(by, "paused by jane since 2026-11-16T03:00:00Z: network work");
            assert_eq!(report.findings.last().unwrap().question, "Is Salvor not paused?");
            blocked += 1;
        }
    }
    assert_eq!(blocked, 5);
    bench.shared.leadership.pause().set(None);
    pass(5.0).await;
    let patched = bench.api.asked().iter().filter(|asked| asked.method == Method::PATCH).count();
    assert_eq!(patched, 2, "the brake still counts");
    assert_eq!(bench.announced(), ["Paused", "Resumed"]);
}

/// The pause begins while an attempt is between two of its writes.
#[tokio::test(start_paused = true)]
async fn a_pause_in_the_middle_of_an_attempt_lets_no_other_write_begin() {
    let bench = Bench::new(|asked| {
        let took = if asked.method == Method::PATCH { Duration::from_secs(3) } else { Duration::ZERO };
        Answer::ok().late(took)
    });
    bench.want("a", &[Patch, Tell, Delete]).await;
    pass(1.0).await;
    assert_eq!(bench.written(), ["PATCH"], "it is under way");
    let pause = bench.shared.leadership.pause().clone();
    pause.set(Some(SAID));
    let acknowledged = || {
        let mut annotations = BTreeMap::new();
        pause.acknowledge(&mut annotations, "us", Timestamp::UNIX_EPOCH);
        !annotations.is_empty()
    };
    assert!(!acknowledged(), "it has not ended");
    pass(600.0).await;
    assert!(acknowledged());
    assert_eq!(bench.written(), ["PATCH", "POST"], "what was done is told, and nothing more is done");
    pause.set(None);
    pass(20.0).await;
    assert!(bench.written().contains(&"DELETE".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn while_it_is_not_certain_what_time_it_is_nothing_is_done_that_cannot_be_taken_back() {
    let bench = Bench::new(|_| Answer::ok());
    let lie = bench.time.local() + Duration::from_secs(7200);
    bench.time.learn(bench.time.local(), bench.time.local(), lie);
    bench.want("a", &[Patch]).await;
    bench.want("b", &[Tell]).await;
    pass(89.0).await;
    assert_eq!(bench.written(), ["POST"]);
    let metrics = bench.metrics.render();
    assert!(metrics.contains("salvor_held_total{recovery=\"told\",by=\"ClockUnsettled\"} 1\n"), "{metrics}");
    assert!(metrics.contains("salvor_server_clocks 2\n"), "{metrics}");
    pass(3.0).await;
    assert_eq!(bench.written(), ["POST", "PATCH"]);
}

/// By a clock that is an hour behind, the timer is set as late as possible.
#[tokio::test(start_paused = true)]
async fn nobody_waits_by_a_clock_that_does_not_count_any_more() {
    let bench = Bench::new(|_| Answer::ok());
    let hour = Duration::from_secs(3600);
    let answer = |date: Timestamp| bench.time.learn(bench.time.local(), bench.time.local(), date);
    answer(bench.time.local() - hour);
    bench.tell(News::Pod("a", Want::At(bench.time.local() + Duration::from_secs(30)))).await;
    // From now on only the right clock is observed; after five minutes the other one is dropped.
    for _ in 0..5 {
        pass(61.0).await;
        answer(bench.time.local());
    }
    pass(89.0).await;
    assert!(bench.written().is_empty(), "the clock has not settled");
    pass(3.0).await;
    assert_eq!(bench.written(), ["PATCH"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_held_is_let_through_gradually() {
    let bench = Bench::new(|_| Answer::ok());
    bench.nodes(3, 5);
    for name in ["a", "b", "c", "d", "e"] {
        bench.want(name, &[Patch]).await;
    }
    pass(60.0).await;
    bench.nodes(2, 5);
    pass(52.0).await;
    let patched = || {
        let paths = bench.api.asked().into_iter().map(|asked| asked.path);
        paths.filter(|path| path.contains("/pods/")).collect::<BTreeSet<_>>().len()
    };
    assert_eq!(patched(), 1);
    bench.tell(News::Gone("a")).await;
    // It ends in the middle: nothing more for now, and then a slow start again.
    bench.nodes(1, 5);
    pass(49.0).await;
    assert_eq!(patched(), 1);
    pass(3.0).await;
    assert_eq!(patched(), 2);
    pass(5.0).await;
    assert_eq!(patched(), 4);
    pass(5.0).await;
    assert_eq!(patched(), 5);
}

#[tokio::test(start_paused = true)]
async fn what_one_recovery_sees_of_the_nodes_holds_and_wakes_the_others() {
    let bench = Bench::new(|_| Answer::ok());
    let other = bench.another();
    bench.nodes(3, 5);
    pass(0.1).await;
    bench.want("a", &[Patch]).await;
    pass(3600.0).await;
    assert!(bench.written().is_empty());
    other.send(News::Pod("b", Want::Steps(&[Patch]))).await.unwrap();
    bench.nodes(2, 5);
    pass(52.0).await;
    assert_eq!(bench.written(), ["PATCH"]);
    assert_eq!(bench.announced(), ["BrakeEngaged", "BrakeReleased"]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_was_let_through_once_is_held_all_the_same() {
    let bench = Bench::new(fails_at(Method::PATCH, 500));
    bench.want("a", &[Patch]).await;
    pass(0.1).await;
    assert_eq!(bench.written().len(), 1);
    bench.nodes(3, 5);
    pass(600.0).await;
    assert_eq!(bench.written().len(), 1);
    bench.nodes(0, 5);
    pass(49.0).await;
    assert_eq!(bench.written().len(), 1);
    pass(3.0).await;
    assert!(bench.written().len() > 1);
}

#[tokio::test(start_paused = true)]
async fn no_more_pods_than_the_budget_in_a_minute_and_a_retry_counts_once() {
    let first = AtomicUsize::new(0);
    let bench = Bench::with(Options { pods_per_minute: 2, ..Options::default() }, move |_| {
        if first.fetch_add(1, Ordering::Relaxed) == 0 { Answer::Refused(500, "no") } else { Answer::ok() }
    });
    for name in ["a", "b", "c"] {
        bench.want(name, &[Patch]).await;
    }
    pass(5.0).await;
    assert_eq!(bench.written().len(), 3, "a twice, b once");
    for name in ["a", "b"] {
        bench.tell(News::Pod(name, Want::Nothing)).await;
    }
    pass(54.0).await;
    assert_eq!(bench.written().len(), 3);
    pass(4.0).await;
    assert_eq!(bench.written().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn what_is_done_late_is_not_followed_by_others_within_its_minute() {
    let works = Arc::new(AtomicBool::new(false));
    let answer = works.clone();
    let options = Options { pods_per_minute: 1, ..Options::default() };
    let bench = Bench::with(options, move |_| {
        if answer.load(Ordering::Relaxed) { Answer::ok() } else { Answer::Refused(500, "no") }
    });
    bench.want("a", &[Patch]).await;
    pass(1.0).await;
    bench.want("b", &[Patch]).await;
    let written_to = |name: &str| {
        let path = format!("/pods/{name}");
        bench.api.asked().iter().filter(|asked| asked.path.contains(&path)).count()
    };
    pass(20.0).await;
    works.store(true, Ordering::Relaxed);
    let tries = written_to("a");
    for _ in 0..40 {
        pass(1.0).await;
        if written_to("a") > tries {
            break;
        }
    }
    assert_eq!((written_to("a"), written_to("b")), (tries + 1, 0));
    bench.tell(News::Gone("a")).await;
    pass(58.0).await;
    assert_eq!(written_to("b"), 0, "a was recovered in this minute");
    pass(4.0).await;
    assert_eq!(written_to("b"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_done_for_minutes_is_not_made_up_for_all_at_once() {
    let works = Arc::new(AtomicBool::new(false));
    let answer = works.clone();
    let options = Options { pods_per_minute: 1, ..Options::default() };
    let bench = Bench::with(options, move |_| {
        if answer.load(Ordering::Relaxed) { Answer::ok() } else { Answer::Refused(500, "no") }
    });
    for name in ["a", "b", "c", "d", "e"] {
        bench.want(name, &[Patch]).await;
    }
    pass(600.0).await;
    works.store(true, Ordering::Relaxed);
    let before = bench.written().len();
    pass(60.0).await;
    let done = bench.written().len() - before;
    assert_eq!(done, 1, "the one that was let through before, and the next in a minute from then");
}

#[tokio::test(start_paused = true)]
async fn an_old_view_uses_up_nothing_of_the_budget() {
    let health = WatchHealth::new("pods");
    let options = Options { pods_per_minute: 1, watches: vec![health.clone()], ..Options::default() };
    let bench = Bench::with(options, |_| Answer::ok());
    for name in ["a", "b", "c"] {
        bench.want(name, &[Patch]).await;
    }
    pass(600.0).await;
    assert_eq!(bench.written().len(), 0);
    health.is_up_to_date();
    pass(30.0).await;
    assert_eq!(bench.written().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_between_revisions_that_go_backwards_and_the_list_after_them() {
    let (seen, other) = (WatchHealth::new("pods"), WatchHealth::new("nodes"));
    let watches = vec![seen.clone(), other.clone()];
    let bench = Bench::with(Options { watches, ..Options::default() }, |_| Answer::ok());
    seen.is_up_to_date();
    other.is_up_to_date();
    seen.history().ends(0);
    bench.want("a", &[Patch]).await;
    pass(10.0).await;
    assert_eq!(bench.written().len(), 0);
    seen.is_up_to_date();
    pass(10.0).await;
    assert_eq!(bench.written().len(), 1);
}

/// The answer may be from before the restore. Its revision would then be higher than all new ones.
#[tokio::test(start_paused = true)]
async fn an_answer_to_what_began_before_revisions_went_backwards_is_not_taken_in() {
    for goes_back in [false, true] {
        let health = WatchHealth::new("pods");
        health.is_up_to_date();
        let options = Options { watches: vec![health.clone()], ..Options::default() };
        let bench = Bench::with(options, |_| Answer::ok().late(Duration::from_secs(2)));
        bench.want("a", &[Tell]).await;
        pass(1.0).await;
        if goes_back {
            health.history().ends(0);
            health.is_up_to_date();
        }
        pass(30.0).await;
        let told = bench.api.count(&Method::POST);
        assert_eq!(told > 1, goes_back, "told {told} times: as if it had never been answered");
    }
}

#[test]
fn a_second_look_may_ask_for_the_same_steps_in_any_order() {
    let delete = |name: &&str| {
        let pod = PodRef { namespace: "ns".into(), name: (*name).into(), uid: (*name).into() };
        job::Step::DeletePod { pod }
    };
    let found = |asked: &[&str], live: &[&str]| -> Vec<bool> {
        let actions = vec![job::Step::AtOnce { steps: live.iter().map(delete).collect() }];
        let verdict = Verdict::Act { actions, why: AsTold };
        let mut look = attempt::Look::new(Instant::now(), Some(Decision { verdict, findings: vec![] }));
        asked.iter().map(|name| look.step(&delete(name)).is_ok()).collect()
    };
    assert_eq!(found(&["a", "b", "c"], &["a", "b", "c"]), [true, true, true]);
    assert_eq!(found(&["a", "b", "c"], &["c", "a", "b", "d"]), [true, true, true]);
    assert_eq!(found(&["a", "c"], &["a", "x", "c"]), [true, true]);
    assert_eq!(found(&["a", "b", "c"], &["a", "c"]), [true, false, true]);
    assert_eq!(found(&["a"], &[]), [false]);
}

thread_local! {
    /// Log lines of this thread, which is one test's, that begin with "dry run".
    static DRY_RUN_LINES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts them. It is one global subscriber: one per test may miss callsites that other tests register first.
struct Lines;

struct Message;

impl tracing::field::Visit for Message {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        if field.name() == "message" && format!("{value:?}").starts_with("dry run") {
            DRY_RUN_LINES.set(DRY_RUN_LINES.get() + 1);
        }
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Message);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_sends_nothing_and_says_everything_once() {
    // Only this test sets it, so it is set once.
    tracing::subscriber::set_global_default(Lines).unwrap();
    let bench = Bench::with(Options { dry_run: true, ..Options::default() }, |_| Answer::ok());
    for _ in 0..5 {
        bench.want("a", &[Patch, Tell, Delete]).await;
        pass(30.0).await;
    }
    assert!(bench.api.asked().is_empty());
    assert_eq!(DRY_RUN_LINES.get(), 3, "one line for each step");
}

#[tokio::test(start_paused = true)]
async fn a_follower_keeps_up_and_does_nothing_until_it_leads() {
    let bench = Bench::new(fails_at(Method::PATCH, 500));
    bench.want("a", &[Patch]).await;
    bench.tell(News::Pod("quiet", Want::Nothing)).await;
    // Long enough for the backoff to have grown.
    pass(100.0).await;
    (bench.lead)(None);
    bench.want("b", &[Delete]).await;
    pass(0.1).await;
    let before = bench.written().len();
    pass(3600.0).await;
    assert_eq!(bench.written().len(), before, "a follower wrote");
    bench.judged.lock().unwrap().clear();
    (bench.lead)(LONG);
    pass(0.1).await;
    let judged: BTreeSet<&str> = bench.judged.lock().unwrap().iter().copied().collect();
    assert_eq!(judged, BTreeSet::from(["a", "b", "quiet"]), "everything is judged again");
    let since = bench.written().split_off(before);
    assert_eq!(since.len(), 2, "nothing waits for what an earlier tenure had to wait for: {since:?}");
}

#[tokio::test(start_paused = true)]
async fn a_new_term_waits_for_nothing_that_an_earlier_one_had_to_wait_for() {
    let bench = Bench::new(fails_at(Method::PATCH, 500));
    bench.want("a", &[Patch]).await;
    // Long enough for the backoff to have grown.
    pass(100.0).await;
    (bench.lead)(None);
    pass(0.1).await;
    let before = bench.written().len();
    (bench.lead)(LONG);
    pass(0.1).await;
    assert_eq!(bench.written().len(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_tenure_that_lapsed_unannounced_stops_writes_and_its_renewal_makes_up_for_them() {
    let bench = Bench::new(|_| Answer::ok());
    (bench.lead)(Some(Duration::from_secs(10)));
    pass(20.0).await;
    bench.want("a", &[Patch]).await;
    pass(20.0).await;
    assert!(bench.api.asked().is_empty());
    (bench.lead)(LONG);
    pass(0.1).await;
    assert_eq!(bench.written(), ["PATCH"]);
}

#[tokio::test(start_paused = true)]
async fn no_more_subjects_at_once_than_allowed() {
    let bench = Bench::new(|_| Answer::ok().late(Duration::from_secs(1)));
    for name in ["a", "b", "c", "d", "e"] {
        bench.want(name, &[Patch]).await;
    }
    for expected in [2, 4, 5, 5] {
        pass(0.9).await;
        assert_eq!(bench.written().len(), expected);
        pass(0.1).await;
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_under_way_is_finished_before_the_end_and_nothing_new_is_begun() {
    let bench = Bench::new(|_| Answer::ok().late(Duration::from_secs(3)));
    bench.want("a", &[Patch, Tell, Delete]).await;
    pass(1.0).await;
    let began = Instant::now();
    bench.stop.cancel();
    // The engine need not process it any more.
    let _ = bench.news.send(News::Pod("b", Want::Steps(&[Patch]))).await;
    let Bench { engine, api, .. } = bench;
    soon(engine).await.unwrap();
    assert_eq!(began.elapsed(), Duration::from_secs(8));
    assert_eq!(api.asked().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_changes_while_it_is_acted_on_is_judged_again() {
    let bench = Bench::new(|_| Answer::ok().late(Duration::from_secs(5)));
    bench.want("a", &[Patch]).await;
    pass(1.0).await;
    bench.judged.lock().unwrap().clear();
    bench.want("a", &[Delete]).await;
    pass(3.0).await;
    assert_eq!(bench.judged.lock().unwrap().len(), 0, "not while it is under way");
    assert_eq!(bench.written(), ["PATCH"]);
    pass(1.1).await;
    assert!(!bench.judged.lock().unwrap().is_empty());
    assert_eq!(bench.written(), ["PATCH", "DELETE"], "nobody tells it again, so it is not waited for");
}

/// The watch shows a write before its answer arrives, as happens with the last pod of a force-deleted workload. What is
/// due then is done at once.
#[tokio::test(start_paused = true)]
async fn an_echo_that_comes_before_the_answer_is_not_waited_for() {
    let bench = Bench::new(|asked| match asked.method {
        Method::DELETE => Answer::ok().late(Duration::from_secs(1)),
        _ => Answer::ok(),
    });
    bench.want("a", &[Delete]).await;
    pass(0.5).await;
    assert_eq!(bench.written(), ["DELETE"]);
    bench.want("a", &[Patch]).await;
    pass(0.6).await;
    assert_eq!(bench.written(), ["DELETE", "PATCH"]);
}

/// A change before the answer may be about anything. A decision that then repeats the step has not seen the write yet,
/// so the step is not repeated before the watch has had its time.
#[tokio::test(start_paused = true)]
async fn news_that_came_before_the_answer_and_are_no_echo_lead_to_no_second_write() {
    let bench = Bench::new(|_| Answer::ok().late(Duration::from_secs(1)));
    bench.want("a", &[Delete]).await;
    pass(0.5).await;
    bench.want("a", &[Delete]).await;
    pass(1.5).await;
    assert_eq!(bench.written(), ["DELETE"], "it is behind");
    bench.want("a", &[Patch]).await;
    pass(0.1).await;
    assert_eq!(bench.written(), ["DELETE", "PATCH"], "the echo ends the wait");
}

#[tokio::test(start_paused = true)]
async fn a_view_that_is_not_complete_takes_nothing_away_from_anybody() {
    let watches = vec![WatchHealth::new("pods")];
    let bench = Bench::with(Options { watches, ..Options::default() }, |_| Answer::ok());
    bench.want("a", &[Patch]).await;
    bench.want("b", &[Tell]).await;
    pass(60.0).await;
    assert_eq!(bench.written(), ["POST"]);
    assert!(bench.metrics.render().contains("by=\"StaleView\""));
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_is_forgotten() {
    let bench = Bench::new(fails_at(Method::PATCH, 500));
    bench.want("a", &[Patch]).await;
    pass(10.0).await;
    bench.tell(News::Gone("a")).await;
    pass(0.1).await;
    let before = bench.written().len();
    pass(600.0).await;
    assert_eq!(bench.written().len(), before);
}

/// A pod whose node comes back while its write waits for others.
#[tokio::test(start_paused = true)]
async fn the_look_comes_after_the_wait_for_a_permit() {
    let slow = |asked: &Asked| match asked.path.contains("/pods/a") {
        true => Answer::ok().late(Duration::from_secs(5)),
        false => Answer::ok(),
    };
    let bench = Bench::with(Options { writes: 1, ..Options::default() }, slow);
    bench.want("a", &[Patch]).await;
    bench.want("b", &[Patch]).await;
    pass(4.0).await;
    assert_eq!(bench.written(), ["PATCH"], "b waits for a");
    bench.live.lock().unwrap().insert("b", Want::Nothing);
    pass(60.0).await;
    let paths: Vec<String> = bench.api.asked().into_iter().map(|asked| asked.path).collect();
    assert!(paths.iter().all(|path| path.contains("/pods/a")), "{paths:?}");
}

#[tokio::test(start_paused = true)]
async fn no_write_follows_a_look_that_took_longer_than_it_counts() {
    let bench = Bench::new(|_| Answer::ok());
    bench.looking.takes(&[1200, 1200, 900]);
    bench.want("a", &[Patch]).await;
    let began = Instant::now();
    pass(2.0).await;
    assert_eq!(bench.written(), Vec::<String>::new());
    assert!(bench.metrics.render().contains("salvor_retries_total{recovery=\"told\"} 1\n"));
    pass(10.0).await;
    // Times out after a second, again 0.2 s later, times out, again 0.4 s later: the third is answered in time.
    assert_eq!(bench.written(), ["PATCH"]);
    let written = bench.api.times(&Method::PATCH)[0] - began;
    assert!((3.5..3.6).contains(&written.as_secs_f64()), "{written:?}");
}

#[tokio::test(start_paused = true)]
async fn steps_share_a_look_only_while_it_counts() {
    // The event after the patch is slow; the delete needs a look of its own either way.
    let bench = Bench::new(|asked| match asked.method {
        Method::POST => Answer::ok().late(Duration::from_secs(5)),
        _ => Answer::ok(),
    });
    bench.want("a", &[Patch, Tell, Delete]).await;
    pass(1.0).await;
    assert_eq!(
        (bench.written(), bench.looking.looks.load(Ordering::Relaxed)),
        (vec!["PATCH".into(), "POST".into()], 1)
    );
    bench.live.lock().unwrap().insert("a", Want::Nothing);
    pass(9.0).await;
    assert_eq!(bench.written(), ["PATCH", "POST"], "the node is back");
}

/// Our own patch has changed the pod, so an earlier look says nothing about the delete.
#[tokio::test(start_paused = true)]
async fn a_look_does_not_outlive_a_write_of_ours_to_what_it_saw() {
    let bench = Bench::new(|_| Answer::ok());
    bench.want("a", &[Patch, Delete]).await;
    pass(0.2).await;
    let looks = bench.looking.looks.load(Ordering::Relaxed);
    assert_eq!((bench.written(), looks), (vec!["PATCH".into(), "DELETE".into()], 2));
}

/// Ten pods of a Job, created one after the other on a slow server, while the Job is deleted unnoticed.
#[tokio::test(start_paused = true)]
async fn steps_at_once_do_not_outlive_their_look() {
    let api = FakeApi::new(|_| Answer::ok().late(Duration::from_millis(300)));
    let time = Time::system();
    let metrics = Metrics::new(&time);
    let (leadership, lead) = Leadership::scripted();
    lead(LONG);
    let term = leadership.term().unwrap();
    let executor =
        Executor::new(api.client.clone(), time.clone(), leadership, metrics, "us".into(), 1, false);
    let job = Arc::new(JobRef { namespace: "ns".into(), name: "j".into(), uid: "j".into() });
    let creates = (0..10).map(|number| job::Step::CreatePod {
        job: job.clone(),
        name: format!("j-{number}"),
        body: "{}".into(),
        reason: CreationReason::New,
        told: false,
    });
    let actions = vec![job::Step::AtOnce { steps: creates.collect() }];
    struct Job(Vec<job::Step>, Instant, AtomicUsize);
    impl LiveRecheck for Arc<Job> {
        type Why = AsTold;
        type Step = job::Step;

        async fn ask(
            &self,
            _: &Client,
            _: Known<'_>,
            _: Timestamp,
            _: &mut ReadAge,
        ) -> kube::Result<Option<Decision<AsTold, job::Step>>> {
            self.2.fetch_add(1, Ordering::Relaxed);
            let is_there = self.1.elapsed() < Duration::from_secs(1);
            let verdict = Verdict::Act { actions: self.0.clone(), why: AsTold };
            Ok(is_there.then_some(Decision { verdict, findings: vec![] }))
        }
    }
    let recheck = Arc::new(Job(actions.clone(), Instant::now(), AtomicUsize::new(0)));
    let limits = BrakeLimits::default();
    let attempt = Attempt {
        reads_back: false,
        executor,
        lane: Lane::Tenants,
        time: time.clone(),
        gate: Gate {
            time,
            brake: Arc::new(Mutex::new(Brake::new(limits, BrakeState::default()))),
            watches: WatchSet::default(),
            freshness: Duration::from_secs(60),
            outage: Outage::Holds,
        },
        term,
        recheck: Some(recheck.clone()),
        look: tokio::sync::Mutex::default(),
        actions,
        why: String::new(),
    };
    let (done, outcome) = attempt.run("told", &"j", &mut None).await;
    assert!(matches!(outcome, Outcome::Changed(..)));
    // One at 0, 300, 600 ms; looks again at 900 ms and at 1800 ms: then the Job is gone.
    assert_eq!((done.len(), api.count(&Method::POST)), (6, 6));
    assert_eq!(recheck.2.load(Ordering::Relaxed), 3, "a look serves several steps");
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_permit_is_stopped_by_the_brake_and_by_an_old_view() {
    for by_the_brake in [true, false] {
        let health = WatchHealth::new("pods");
        health.is_up_to_date();
        let slow = |asked: &Asked| match asked.path.contains("/pods/a") {
            true => Answer::ok().late(Duration::from_secs(9)),
            false => Answer::ok(),
        };
        let options = Options { writes: 1, watches: vec![health.clone()], ..Options::default() };
        let bench = Bench::with(options, slow);
        pass(55.0).await;
        bench.want("a", &[Patch]).await;
        bench.want("b", &[Delete]).await;
        bench.want("c", &[Create]).await;
        pass(1.0).await;
        if by_the_brake {
            bench.nodes(3, 5);
            health.is_up_to_date();
        }
        pass(30.0).await;
        let methods = bench.written();
        assert!(!methods.contains(&"DELETE".to_owned()), "{by_the_brake}: {methods:?}");
        assert_eq!(
            methods.contains(&"POST".to_owned()),
            by_the_brake,
            "the brake does not hold Jobs: {methods:?}"
        );
        if by_the_brake {
            bench.nodes(0, 5);
        } else {
            health.is_up_to_date();
        }
        // The brake waits until no more nodes come back, and then releases gradually.
        for _ in 0..4 {
            pass(30.0).await;
            health.is_up_to_date();
        }
        assert!(bench.written().contains(&"DELETE".to_owned()), "{by_the_brake}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_pod_is_made_on_an_old_view_or_for_what_is_gone_unseen() {
    let health = WatchHealth::new("jobs");
    health.is_up_to_date();
    let options = Options { watches: vec![health.clone()], ..Options::default() };
    let bench = Bench::with(options, |_| Answer::ok());
    pass(61.0).await;
    bench.want("a", &[Create]).await;
    pass(139.0).await;
    assert_eq!(bench.written(), Vec::<String>::new());
    assert!(bench.metrics.render().contains("salvor_held_total{recovery=\"told\",by=\"StaleView\"}"));
    bench.live.lock().unwrap().insert("a", Want::Nothing);
    health.is_up_to_date();
    pass(30.0).await;
    assert_eq!(bench.written(), Vec::<String>::new(), "it is gone");
    bench.live.lock().unwrap().clear();
    pass(60.0).await;
    assert!(bench.written().starts_with(&["POST".to_owned()]), "{:?}", bench.written());
}

/// A process that slept through another's tenure sees the end of its term and the next one at the same time.
#[tokio::test(start_paused = true)]
async fn a_term_that_nobody_saw_end_is_another_term() {
    let health = WatchHealth::new("pods");
    health.is_up_to_date();
    let slow = |asked: &Asked| match asked.path.contains("/pods/a") {
        true => Answer::ok().late(Duration::from_secs(9)),
        false => Answer::ok(),
    };
    let options = Options { writes: 1, watches: vec![health], ..Options::default() };
    let bench = Bench::with(options, slow);
    (bench.lead)(Some(Duration::from_secs(8)));
    bench.want("a", &[Patch]).await;
    bench.want("b", &[Patch]).await;
    pass(0.1).await;
    bench.judged.lock().unwrap().clear();
    bench.live.lock().unwrap().insert("b", Want::Nothing);
    // No task runs between the end of the term and the next one.
    tokio::time::advance(Duration::from_secs(8)).await;
    (bench.lead)(LONG);
    pass(0.2).await;
    let judged: BTreeSet<&str> = bench.judged.lock().unwrap().iter().copied().collect();
    assert!(judged.contains("b"), "and judged again: {judged:?}");
}

#[tokio::test(start_paused = true)]
async fn who_begins_to_lead_judges_nothing_before_the_lists_that_it_counts_by_were_read_in_its_term() {
    let health = WatchHealth::new("things");
    let answer = |asked: &Asked| match asked.path.as_str() {
        "/things" if asked.query.contains("watch=true") => Answer::Never,
        "/things" => {
            let list = serde_json::json!({"metadata": {"resourceVersion": "7"}, "items": []});
            Answer::Json(200, list).late(Duration::from_secs(5))
        }
        _ => Answer::ok(),
    };
    let bench = Bench::with(Options { counts: Some(health), ..Options::default() }, answer);
    bench.want("a", &[Patch]).await;
    pass(4.0).await;
    assert!(bench.judged.lock().unwrap().is_empty());
    pass(8.0).await;
    assert_eq!(bench.written(), ["PATCH"]);
    bench.tell(News::Gone("a")).await;
    (bench.lead)(None);
    pass(10.0).await;
    bench.judged.lock().unwrap().clear();
    (bench.lead)(LONG);
    bench.want("b", &[Patch]).await;
    pass(4.0).await;
    assert!(bench.judged.lock().unwrap().is_empty(), "the list was read in another's term");
    pass(3.0).await;
    assert_eq!(bench.written(), ["PATCH", "PATCH"]);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_writes_no_event_of_the_brake_and_asks_for_no_renewal() {
    let bench = Bench::with(Options { dry_run: true, ..Options::default() }, |_| Answer::ok());
    bench.want("a", &[Patch]).await;
    bench.nodes(3, 5);
    pass(10.0).await;
    bench.nodes(0, 5);
    pass(60.0).await;
    assert!(bench.api.asked().is_empty(), "{:?}", bench.api.asked());
    assert!(bench.shared.leadership.renewal_asked_for().now_or_never().is_none());
}

#[tokio::test]
async fn what_took_long_to_judge_and_is_gone_is_forgotten() {
    let api = FakeApi::new(|_| Answer::ok());
    let time = Time::system();
    let metrics = Metrics::new(&time);
    let (leadership, lead) = Leadership::scripted();
    lead(LONG);
    let us = "us".to_owned();
    let executor =
        Executor::new(api.client.clone(), time.clone(), leadership.clone(), metrics.clone(), us, 1, false);
    let shared = Shared {
        time,
        leadership: leadership.clone(),
        executor,
        brake: Arc::new(Mutex::new(Brake::new(BrakeLimits::default(), BrakeState::default()))),
        released: Broadcast::default(),
        metrics,
        dry_run: false,
        home: ObjectRef::lease("home", "salvor"),
        at_once: 2,
        freshness: Duration::from_secs(60),
        notices: Notices::default(),
    };
    let keeper = BrakeKeeper::new(shared.clone(), SignedDuration::ZERO);
    let recovery = Told { judging: 2 * LONG_LOOK, ..Told::new(&World::default(), &Arc::default()) };
    let mut engine = Engine::new(recovery, shared, feeds(&api, &keeper, &[]).0);
    engine.lead(leadership.term());
    engine.on_change(News::Pod("a", Want::Nothing));
    engine.pump();
    assert_eq!(engine.agenda.resting.len(), 1, "it took long");
    engine.recovery.seen.lock().unwrap().clear();
    engine.look_at("a");
    assert!(engine.agenda.resting.is_empty() && engine.tracked.is_empty());
    // A subject whose absence took long to find.
    engine.look_in_turn("b");
    assert!(engine.agenda.resting.is_empty() && engine.tracked.is_empty());
    // A subject that a relist no longer contains, without a deletion event.
    engine.on_change(News::Pod("c", Want::At(Timestamp::MAX)));
    engine.pump();
    engine.recovery.seen.lock().unwrap().clear();
    engine.sweep_at = 0;
    engine.sweep();
    assert!(engine.agenda.resting.is_empty() && engine.tracked.is_empty() && engine.agenda.wakes.is_empty());
}
