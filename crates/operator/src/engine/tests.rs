//! The engine with a recovery that wants what it is told to want, in paused time.

use std::{
    collections::BTreeMap,
    fmt,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use http::Method;
use kube::Client;
use salvor_api::config::BrakeLimits;
use salvor_recovery::{
    action::{EventNote, EventType},
    brake::{BrakeState, NodeCounts, Tally},
    objects::PodRef,
};
use tokio::task::JoinHandle;

use super::*;
use crate::{
    fake_api::{Answer, Asked, FakeApi, soon},
    recovery::Feed,
};

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
enum Step {
    Patch,
    Tell,
    Delete,
}

use Step::{Delete, Patch, Tell};

#[derive(Clone, Debug)]
enum Want {
    Nothing,
    At(Timestamp),
    Steps(&'static [Step]),
}

enum News {
    Pod(&'static str, Want),
    Gone(&'static str),
    Nodes(u32, u32),
}

type World = Arc<Mutex<BTreeMap<&'static str, Want>>>;

struct Told {
    seen: World,
    /// What a second look finds, where it differs.
    live: World,
    told: BTreeSet<&'static str>,
    judged: Arc<Mutex<Vec<&'static str>>>,
    nodes: Option<NodeCounts>,
}

impl Told {
    fn new(live: &World, judged: &Arc<Mutex<Vec<&'static str>>>) -> Self {
        let (live, judged) = (Arc::clone(live), Arc::clone(judged));
        Self { seen: World::default(), live, told: BTreeSet::new(), judged, nodes: None }
    }
}

fn verdict(name: &str, want: &Want, told: bool) -> Judgement<AsTold> {
    let pod = PodRef { namespace: "ns".into(), name: name.into(), uid: name.into() };
    let action = |step: &Step| match step {
        Patch => Action::PatchPodStatus {
            pod: pod.clone(),
            resource_version: "1".into(),
            phase: None,
            conditions: vec![],
        },
        Tell => Action::EmitEvent(EventNote {
            name: format!("{name}.told"),
            regarding: Subject::Pod(pod.clone()),
            kind: EventType::Normal,
            reason: "Told".into(),
            action: "Tell",
            reporting_controller: "test",
            message: "told".into(),
        }),
        Delete => Action::ForceDeletePod { pod: pod.clone() },
    };
    let verdict = match want {
        Want::Nothing => Verdict::Ignore(AsTold),
        Want::At(until) => Verdict::Wait { until: *until, why: AsTold },
        Want::Steps(steps) => {
            let actions: Vec<Action> = steps.iter().filter(|s| !(told && **s == Tell)).map(action).collect();
            if actions.is_empty() { Verdict::Ignore(AsTold) } else { Verdict::Act { actions, why: AsTold } }
        }
    };
    Judgement { verdict, findings: vec![] }
}

struct Look(&'static str, Option<Want>);

impl LiveInquiry for Look {
    type Why = AsTold;

    async fn ask(&self, _: &Client, _: Known<'_>, _: Timestamp) -> kube::Result<Option<Judgement<AsTold>>> {
        Ok(self.1.as_ref().map(|want| verdict(self.0, want, false)))
    }
}

impl Recovery for Told {
    const NAME: &'static str = "told";
    const LISTS_TO_LEAD: bool = false;
    type Subject = &'static str;
    type Why = AsTold;
    type News = News;
    type Inquiry = Look;

    fn begin_to_lead(&mut self, _: u64) {}

    fn feeds(&self, _: &Client, _: &mpsc::Sender<News>) -> Vec<Feed> {
        vec![]
    }

    fn hear(&mut self, news: News, _: Timestamp) -> Vec<&'static str> {
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
            News::Nodes(unreachable, total) => {
                self.nodes = Some(NodeCounts { unreachable, total });
                vec![]
            }
        }
    }

    fn judge(&self, subject: &&'static str, now: Timestamp) -> Option<Judgement<AsTold>> {
        self.judged.lock().unwrap().push(subject);
        let want = match self.seen.lock().unwrap().get(subject)?.clone() {
            Want::At(until) if until <= now => Want::Steps(&[Patch]),
            want => want,
        };
        Some(verdict(subject, &want, self.told.contains(subject)))
    }

    fn subjects(&self) -> Vec<&'static str> {
        self.seen.lock().unwrap().keys().copied().collect()
    }

    fn node_counts(&self, _: Timestamp) -> Option<Tally> {
        self.nodes.map(Tally::from)
    }

    fn inquiry(&self, subject: &&'static str) -> Look {
        let live = self.live.lock().unwrap().get(subject).cloned();
        Look(subject, Some(live.unwrap_or(Want::Steps(&[Patch, Tell, Delete]))))
    }

    fn done(&mut self, subject: &&'static str, step: &Action, _: &Written, _: Timestamp) -> View {
        if matches!(step, Action::EmitEvent(_)) {
            self.told.insert(subject);
            return View::Shows;
        }
        View::Lags
    }

    fn refused(&mut self, _: &&'static str, _: &Action, _: &str, _: Timestamp) -> Refused {
        Refused::Waits
    }
}

struct Bench {
    api: FakeApi,
    time: Time,
    metrics: Metrics,
    shared: Shared,
    news: mpsc::Sender<News>,
    live: World,
    judged: Arc<Mutex<Vec<&'static str>>>,
    lead: Box<dyn Fn(Option<Duration>)>,
    stop: CancellationToken,
    engine: JoinHandle<()>,
}

#[derive(Default)]
struct Options {
    dry_run: bool,
    pods_per_minute: u32,
    watches: Vec<Arc<WatchHealth>>,
    notices: Notices,
}

const LONG: Option<Duration> = Some(Duration::from_secs(86_400));

impl Bench {
    fn new(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        Self::with(Options::default(), answer)
    }

    /// Leads for a day, and does two things at once.
    fn with(options: Options, answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let api = FakeApi::new(answer);
        let time = Time::system();
        time.learn(time.local(), time.local(), time.local());
        // Some answers later, the server's clock is known to a twentieth of a second.
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
            8,
        );
        let limits = BrakeLimits { max_pods_per_minute: options.pods_per_minute, ..BrakeLimits::default() };
        let shared = Shared {
            time: time.clone(),
            leadership,
            executor,
            brake: Arc::new(Mutex::new(Brake::new(limits, BrakeState::default()))),
            released: Released::default(),
            metrics: metrics.clone(),
            dry_run: options.dry_run,
            home: Subject::Lease { namespace: "home".into(), name: "salvor".into() },
            at_once: 2,
            freshness: Duration::from_secs(60),
            notices: options.notices,
        };
        let (live, judged) = (World::default(), Arc::default());
        let recovery = Told::new(&live, &judged);
        let (news, inbox) = mpsc::channel(64);
        let stop = CancellationToken::new();
        let engine = Engine::new(recovery, shared.clone(), options.watches).run(inbox, stop.clone());
        let engine = tokio::spawn(engine);
        Self { api, time, metrics, shared, news, live, judged, lead: Box::new(lead), stop, engine }
    }

    /// Another recovery of the same process.
    fn another(&self) -> mpsc::Sender<News> {
        let (news, inbox) = mpsc::channel(64);
        let recovery = Told::new(&World::default(), &Arc::default());
        tokio::spawn(Engine::new(recovery, self.shared.clone(), Vec::new()).run(inbox, self.stop.clone()));
        news
    }

    async fn want(&self, name: &'static str, steps: &'static [Step]) {
        self.tell(News::Pod(name, Want::Steps(steps))).await;
    }

    async fn tell(&self, news: News) {
        assert!(self.news.send(news).await.is_ok(), "the engine runs");
    }

    /// What was written about pods: the method and the pod or event.
    fn written(&self) -> Vec<String> {
        let of_pods = self.api.asked().into_iter().filter(|a| a.path.contains("/namespaces/ns/"));
        of_pods.map(|a| a.method.to_string()).collect()
    }

    /// Which events were told about ourselves.
    fn announced(&self) -> Vec<String> {
        let of_us = self.api.asked().into_iter().filter(|a| a.path.contains("/namespaces/home/"));
        of_us.map(|a| a.body["reason"].as_str().unwrap().to_owned()).collect()
    }
}

/// Lets some time pass, and everything that is due in it.
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
                Notice::Did { action, .. } => action.name().to_owned(),
                Notice::Forgotten { .. } => "forgotten".to_owned(),
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(told(), ["leads true", "Wait"]);
    pass(120.0).await;
    let done = told();
    assert_eq!(done.first().map(String::as_str), Some("Act"), "{done:?}");
    assert!(done.contains(&"PatchPodStatus".to_owned()), "{done:?}");
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
    // The pod stays, as one held by a finalizer does.
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
    bench.tell(News::Nodes(3, 5)).await;
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
    bench.tell(News::Nodes(2, 5)).await;
    pass(30.0).await;
    // Another node comes back: the wait begins anew.
    bench.tell(News::Nodes(1, 5)).await;
    pass(49.0).await;
    assert_eq!(bench.written(), ["POST"], "more nodes may come back");
    let metrics = bench.metrics.render();
    assert!(metrics.contains("salvor_brake_engaged 1\n"), "{metrics}");
    assert!(metrics.contains("salvor_held_total{recovery=\"told\",by=\"Settling\"}"), "{metrics}");
    assert_eq!(bench.announced(), ["BrakeEngaged"]);
    // After an hour without an answer the server's clock is known to a few seconds only.
    pass(6.0).await;
    assert_eq!(bench.written(), ["POST", "PATCH", "DELETE"]);
    assert_eq!(bench.announced(), ["BrakeEngaged", "BrakeReleased"]);
    assert!(bench.metrics.render().contains("salvor_brake_engaged 0\n"));
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
            assert_eq!(report.findings.last().unwrap().question, "Has nobody paused Salvor?");
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

/// The switch is moved while an attempt is between two of its writes.
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

#[tokio::test(start_paused = true)]
async fn what_was_held_is_let_through_gradually() {
    let bench = Bench::new(|_| Answer::ok());
    bench.tell(News::Nodes(3, 5)).await;
    for name in ["a", "b", "c", "d", "e"] {
        bench.want(name, &[Patch]).await;
    }
    pass(60.0).await;
    bench.tell(News::Nodes(2, 5)).await;
    pass(52.0).await;
    let patched = || {
        let paths = bench.api.asked().into_iter().map(|asked| asked.path);
        paths.filter(|path| path.contains("/pods/")).collect::<BTreeSet<_>>().len()
    };
    assert_eq!(patched(), 1);
    bench.tell(News::Gone("a")).await;
    // It falls in the middle: nothing more for now, and then little again.
    bench.tell(News::Nodes(1, 5)).await;
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
    other.send(News::Nodes(3, 5)).await.unwrap();
    pass(0.1).await;
    bench.want("a", &[Patch]).await;
    pass(3600.0).await;
    assert!(bench.written().is_empty());
    other.send(News::Nodes(2, 5)).await.unwrap();
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
    bench.tell(News::Nodes(3, 5)).await;
    pass(600.0).await;
    assert_eq!(bench.written().len(), 1);
    bench.tell(News::Nodes(0, 5)).await;
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
    assert!((1..=2).contains(&done), "{done} in a minute: the one that was let through before, and the next");
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

#[test]
fn a_second_look_asks_for_the_same_steps_in_any_order() {
    let steps = |names: &[&str]| {
        let pod = |name: &&str| PodRef { namespace: "ns".into(), name: (*name).into(), uid: (*name).into() };
        let steps = names.iter().map(|name| Action::DeletePod { pod: pod(name) }).collect();
        Action::AtOnce(steps)
    };
    let found = |names: &[&str]| Judgement {
        verdict: Verdict::Act { actions: vec![steps(names)], why: AsTold },
        findings: vec![],
    };
    assert!(asks_for(&found(&["a", "b", "c"]), &steps(&["a", "b", "c"])));
    assert!(asks_for(&found(&["c", "a", "b", "d"]), &steps(&["a", "b", "c"])));
    assert!(asks_for(&found(&["a", "x", "c"]), &steps(&["a", "c"])));
    assert!(!asks_for(&found(&["a", "c"]), &steps(&["a", "b", "c"])));
}

/// Counts log lines with a certain beginning.
struct Lines(Arc<AtomicUsize>);

struct Message<'a>(&'a AtomicUsize);

impl tracing::field::Visit for Message<'_> {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        if field.name() == "message" && format!("{value:?}").starts_with("dry run") {
            self.0.fetch_add(1, Ordering::Relaxed);
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
        event.record(&mut Message(&self.0));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_sends_nothing_and_says_everything_once() {
    let lines = Arc::new(AtomicUsize::new(0));
    let _guard = tracing::subscriber::set_default(Lines(lines.clone()));
    let bench = Bench::with(Options { dry_run: true, ..Options::default() }, |_| Answer::ok());
    for _ in 0..5 {
        bench.want("a", &[Patch, Tell, Delete]).await;
        pass(30.0).await;
    }
    assert!(bench.api.asked().is_empty());
    assert_eq!(lines.load(Ordering::Relaxed), 3, "one line for each step");
}

#[tokio::test(start_paused = true)]
async fn a_follower_keeps_up_and_does_nothing_until_it_leads() {
    let bench = Bench::new(fails_at(Method::PATCH, 500));
    bench.want("a", &[Patch]).await;
    bench.tell(News::Pod("quiet", Want::Nothing)).await;
    // Long enough for the distance between two tries to have grown.
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
    // The engine is not obliged to hear of it any more.
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
    pass(ECHO_WITHIN.as_secs_f64()).await;
    assert_eq!(bench.written(), ["PATCH", "DELETE"]);
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
