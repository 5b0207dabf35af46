//! Candidates for one Lease, in paused time: whatever the network and the wall clocks do, at most one leads.

use http::Method;
use jiff::{SignedDuration, Timestamp};
use salvor_api::config::BrakeLimits;
use salvor_recovery::brake::{BrakeState, NodeCounts};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::testing::fake_api::{Answer, Asked, FakeApi, soon};

const LEASE_DURATION: Duration = Duration::from_secs(15);
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RETRY_PERIOD: Duration = Duration::from_secs(2);

impl Leadership {
    /// Leads for the duration that the test passes, and follows when the test passes `None`.
    pub(crate) fn scripted() -> (Self, impl Fn(Option<Duration>) + Send + Sync + 'static) {
        let leadership = Self::new(Tenure::Follows);
        let told = leadership.clone();
        let tell = move |lasts: Option<Duration>| match lasts {
            Some(lasts) => {
                told.lead_until(Instant::now() + lasts, Claim::Renewed);
            }
            None => told.follow(),
        };
        (leadership, tell)
    }
}

/// The one Lease, with the API server's optimistic concurrency.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<(u64, Option<Value>)>>);

impl Store {
    fn answer(&self, asked: &Asked) -> Answer {
        let mut guard = self.0.lock().unwrap();
        let (revision, lease) = &mut *guard;
        let mut keep = |mut body: Value| {
            *revision += 1;
            body["metadata"]["resourceVersion"] = revision.to_string().into();
            body
        };
        match (&asked.method, &*lease) {
            (&Method::GET, Some(lease)) => Answer::Json(200, lease.clone()),
            (&Method::GET | &Method::PUT, None) => Answer::Refused(404, "not found"),
            (&Method::POST, None) => {
                let body = keep(asked.body.clone());
                *lease = Some(body.clone());
                Answer::Json(201, body)
            }
            (&Method::PUT, Some(known))
                if known["metadata"]["resourceVersion"] == asked.body["metadata"]["resourceVersion"] =>
            {
                let body = keep(asked.body.clone());
                *lease = Some(body.clone());
                Answer::Json(200, body)
            }
            (&Method::POST | &Method::PUT, Some(_)) => Answer::Refused(409, "changed"),
            other => panic!("{other:?}"),
        }
    }

    fn api(&self) -> FakeApi {
        let store = self.clone();
        FakeApi::new(move |asked| store.answer(asked))
    }

    fn get(&self) -> Option<Value> {
        self.0.lock().unwrap().1.clone()
    }

    fn holder(&self) -> String {
        self.get().map(|l| l["spec"]["holderIdentity"].as_str().unwrap().to_owned()).unwrap_or_default()
    }

    fn delete(&self) {
        self.0.lock().unwrap().1 = None;
    }

    /// Goes back to an earlier state, including its resourceVersion.
    fn restore(&self, backup: (u64, Option<Value>)) {
        *self.0.lock().unwrap() = backup;
    }

    /// Writes a Lease as a holder that is not our elector.
    fn renew_as(&self, holder: &str, renewed: Timestamp) {
        let mut guard = self.0.lock().unwrap();
        guard.0 += 1;
        guard.1 = Some(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "salvor", "namespace": "salvor-system", "resourceVersion": guard.0.to_string()},
            "spec": {
                "holderIdentity": holder, "leaseDurationSeconds": LEASE_DURATION.as_secs(), "leaseTransitions": 0,
                "renewTime": MicroTime(renewed), "acquireTime": MicroTime(renewed),
            },
        }));
    }
}

struct Candidate {
    leadership: Leadership,
    brake: Arc<Mutex<Brake>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Candidate {
    fn start(api: &FakeApi, identity: &str) -> Self {
        Self::minding(api, identity, &History::default(), Watchdog::of_this_thread())
    }

    fn minding(api: &FakeApi, identity: &str, history: &History, watchdog: Watchdog) -> Self {
        let time = Time::system();
        let metrics = Metrics::new(&time);
        let limits = BrakeLimits { max_pods_per_minute: 10, ..BrakeLimits::default() };
        let brake = Arc::new(Mutex::new(Brake::new(limits, BrakeState::default())));
        let (elector, leadership) = Elector::new(
            api.client.clone(),
            LeaderElection::default(),
            identity.to_owned(),
            time,
            metrics,
            brake.clone(),
        );
        let stop = CancellationToken::new();
        let task = tokio::spawn(elector.minding(history.clone()).heeding(watchdog).run(stop.clone()));
        Self { leadership, brake, stop, task }
    }

    fn leads(&self) -> bool {
        self.leadership.term().is_some()
    }

    fn time_left(&self) -> Option<Duration> {
        self.leadership.term().and_then(|term| self.leadership.time_left(term))
    }

    async fn until_it_leads(&self) {
        soon(self.leadership.clone().changed(None)).await;
        assert!(self.leads());
    }
}

fn just() -> Duration {
    Duration::from_millis(1)
}

/// A small seeded generator, good enough to vary a schedule.
fn random(state: &Mutex<u64>, below: u64) -> u64 {
    let mut state = state.lock().unwrap();
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}

#[test]
fn the_defaults_are_what_these_tests_count_with() {
    let settings = LeaderElection::default();
    assert_eq!(std_duration(settings.lease_duration), LEASE_DURATION);
    assert_eq!(std_duration(settings.renew_deadline), RENEW_DEADLINE);
    assert_eq!(std_duration(settings.retry_period), RETRY_PERIOD);
}

#[tokio::test(start_paused = true)]
async fn at_most_one_leads_for_an_hour_of_a_bad_network() {
    const STEP: Duration = Duration::from_millis(100);
    let mut changes = 0;
    for seed in 1..=3u64 {
        let store = Store::default();
        let dice = Arc::new(Mutex::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        // Mostly quick; sometimes so slow that a renewal arrives after its sender has given up, or its answer gets
        // lost.
        let pause = |dice: &Mutex<u64>| {
            let slow = random(dice, 12) == 0;
            Duration::from_millis(random(dice, if slow { 25_000 } else { 40 }))
        };
        let api = || {
            let (store, way, back) = (store.clone(), dice.clone(), dice.clone());
            FakeApi::behind(move || pause(&way), move |asked| store.answer(asked).late(pause(&back)))
        };
        let (one, other) = (api(), api());
        let candidates = [Candidate::start(&one, "one"), Candidate::start(&other, "other")];
        let (mut led, mut last, mut steps) = (0u32, None, 0u32);
        let end = Instant::now() + Duration::from_secs(3600);
        while Instant::now() < end {
            tokio::time::sleep(STEP).await;
            let leaders: Vec<usize> = (0..2).filter(|i| candidates[*i].leads()).collect();
            assert!(leaders.len() <= 1, "both lead, seed {seed}");
            steps += 1;
            if let [leader] = leaders[..] {
                led += 1;
                changes += u32::from(last.replace(leader).is_some_and(|before| before != leader));
            }
        }
        assert!(led > steps / 2, "seed {seed}: somebody led in only {led} of {steps} steps");
        for candidate in candidates {
            candidate.task.abort();
        }
    }
    assert!(changes > 4, "the network was too good to show anything: {changes} changes");
}

#[tokio::test(start_paused = true)]
async fn a_silent_holder_is_replaced_only_after_the_lease_was_seen_unchanged_for_its_duration() {
    let store = Store::default();
    let api = store.api();
    let holder = Candidate::start(&api, "holder");
    holder.until_it_leads().await;
    let next = Candidate::start(&api, "next");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(holder.leads() && !next.leads(), "a holder that renews keeps it");
    // As kill -9 would: the Lease is not released.
    holder.task.abort();
    let renewed = *api.times(&Method::PUT).last().unwrap();
    next.until_it_leads().await;
    let silence = renewed.elapsed();
    assert!(silence >= LEASE_DURATION, "taken over after {silence:?}");
    assert!(silence <= LEASE_DURATION + 2 * RETRY_PERIOD, "taken over only after {silence:?}");
    assert!(!holder.leads(), "the old one knew before");
    assert_eq!(store.get().unwrap()["spec"]["leaseTransitions"], 1, "it has changed hands once");
}

#[tokio::test(start_paused = true)]
async fn wall_clocks_change_nothing() {
    for hours in [-1, 0, 1] {
        let store = Store::default();
        let off = || Time::system().local() + SignedDuration::from_hours(hours);
        store.renew_as("other", off());
        let api = store.api();
        let candidate = Candidate::start(&api, "us");
        for _ in 0..20 {
            tokio::time::sleep(LEASE_DURATION - just()).await;
            assert!(!candidate.leads(), "{hours} h off, and renewed");
            store.renew_as("other", off());
        }
        let last = Instant::now();
        candidate.until_it_leads().await;
        let silence = last.elapsed();
        assert!(silence >= LEASE_DURATION, "{hours} h off: taken over after {silence:?}");
        assert!(
            silence <= LEASE_DURATION + 2 * RETRY_PERIOD,
            "{hours} h off: taken over only after {silence:?}"
        );
        candidate.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_given_back_is_anothers_at_the_next_try() {
    let store = Store::default();
    let api = store.api();
    let holder = Candidate::start(&api, "holder");
    holder.until_it_leads().await;
    let next = Candidate::start(&api, "next");
    tokio::time::sleep(Duration::from_secs(7)).await;
    holder.stop.cancel();
    holder.task.await.unwrap();
    assert!(holder.leadership.term().is_none());
    assert_eq!(store.holder(), "");
    let given_back = Instant::now();
    next.until_it_leads().await;
    assert!(given_back.elapsed() <= RETRY_PERIOD, "{:?}", given_back.elapsed());
    assert_eq!(store.holder(), "next");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_given_back_also_when_the_stop_comes_in_the_middle_of_a_renewal() {
    let store = Store::default();
    let answers = store.clone();
    let api = FakeApi::new(move |asked| answers.answer(asked).late(Duration::from_millis(700)));
    let holder = Candidate::start(&api, "holder");
    holder.until_it_leads().await;
    tokio::time::sleep(RETRY_PERIOD + Duration::from_millis(100)).await;
    assert_eq!(api.count(&Method::PUT), 1, "the first renewal is on its way");
    holder.stop.cancel();
    holder.task.await.unwrap();
    assert_eq!(store.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn who_never_led_gives_nothing_back() {
    let store = Store::default();
    let api = store.api();
    let holder = Candidate::start(&api, "holder");
    holder.until_it_leads().await;
    let other = store.api();
    let follower = Candidate::start(&other, "follower");
    tokio::time::sleep(Duration::from_secs(7)).await;
    follower.stop.cancel();
    follower.task.await.unwrap();
    assert_eq!(store.holder(), "holder");
    assert_eq!(other.count(&Method::PUT), 0);
}

#[tokio::test(start_paused = true)]
async fn the_time_left_counts_from_when_the_last_good_renewal_was_sent() {
    let store = Store::default();
    let broken = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (answers, is_broken) = (store.clone(), broken.clone());
    let api = FakeApi::new(move |asked| {
        if is_broken.load(std::sync::atomic::Ordering::Relaxed) {
            return Answer::Never;
        }
        answers.answer(asked).late(Duration::from_millis(700))
    });
    let holder = Candidate::start(&api, "holder");
    holder.until_it_leads().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    // Right after a renewal was answered.
    soon(holder.leadership.0.changed.notified()).await;
    broken.store(true, std::sync::atomic::Ordering::Relaxed);
    let sent = *api.times(&Method::PUT).last().unwrap();
    assert_eq!(sent.elapsed(), Duration::from_millis(700));
    assert_eq!(holder.time_left(), Some(RENEW_DEADLINE - sent.elapsed()));
    tokio::time::sleep_until(sent + RENEW_DEADLINE - just()).await;
    assert_eq!(holder.time_left(), Some(just()));
    tokio::time::sleep_until(sent + RENEW_DEADLINE).await;
    assert_eq!(holder.time_left(), None, "although nobody has said so yet");
    broken.store(false, std::sync::atomic::Ordering::Relaxed);
    holder.until_it_leads().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_ends_the_tenure_and_is_made_anew() {
    let store = Store::default();
    let api = store.api();
    let holder = Candidate::start(&api, "holder");
    holder.until_it_leads().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    store.delete();
    let deleted = Instant::now();
    soon(holder.leadership.clone().changed(holder.leadership.term())).await;
    assert!(!holder.leads());
    assert!(deleted.elapsed() <= RETRY_PERIOD, "{:?}", deleted.elapsed());
    holder.until_it_leads().await;
    assert_eq!(store.holder(), "holder");
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_finds_the_lease_deleted_does_not_lead_beside_its_holder() {
    // The offset decides which of the two comes first after the deletion.
    for offset in [100, 700, 1300, 1900] {
        let store = Store::default();
        let api = store.api();
        let holder = Candidate::start(&api, "holder");
        holder.until_it_leads().await;
        tokio::time::sleep(Duration::from_millis(offset)).await;
        let follower = Candidate::start(&api, "follower");
        tokio::time::sleep(Duration::from_secs(20)).await;
        for _ in 0..8 {
            store.delete();
            for _ in 0..970 {
                tokio::time::sleep(Duration::from_millis(10)).await;
                assert!(!(holder.leads() && follower.leads()), "both lead, {offset} ms apart");
            }
        }
        tokio::time::sleep(LEASE_DURATION).await;
        assert!(holder.leads() || follower.leads(), "and somebody leads again");
        holder.task.abort();
        follower.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_brake_remembers_goes_to_the_next_leader() {
    for gives_back in [true, false] {
        let store = Store::default();
        let api = store.api();
        let holder = Candidate::start(&api, "holder");
        holder.until_it_leads().await;
        let now = Time::system().local();
        {
            let mut brake = holder.brake.lock().unwrap();
            brake.admit(now, 7).unwrap();
            brake.observe(now, NodeCounts { unreachable: 3, total: 5 });
        }
        // Visible with the next renewal at the latest, or when the Lease is released.
        let next = Candidate::start(&api, "next");
        if gives_back {
            holder.stop.cancel();
        } else {
            tokio::time::sleep(RETRY_PERIOD + just()).await;
            holder.task.abort();
        }
        next.until_it_leads().await;
        let (before, after) = (holder.brake.lock().unwrap().clone(), next.brake.lock().unwrap().clone());
        assert!(after.engaged().is_some());
        assert_eq!(before.state(), after.state(), "given back: {gives_back}");
        next.task.abort();
    }
}

/// Writes or removes an annotation of the Lease, as a user with kubectl would.
fn annotate(store: &Store, key: &str, value: Option<&str>) {
    let mut guard = store.0.lock().unwrap();
    guard.0 += 1;
    let revision = guard.0.to_string();
    let lease = guard.1.as_mut().unwrap();
    lease["metadata"]["resourceVersion"] = revision.into();
    if !lease["metadata"]["annotations"].is_object() {
        lease["metadata"]["annotations"] = json!({});
    }
    match value {
        Some(value) => lease["metadata"]["annotations"][key] = value.into(),
        None => {
            lease["metadata"]["annotations"].as_object_mut().unwrap().remove(key);
        }
    }
}

fn annotated(store: &Store, key: &str) -> Option<String> {
    store.get()?["metadata"]["annotations"][key].as_str().map(str::to_owned)
}

#[tokio::test(start_paused = true)]
async fn a_memory_of_the_brake_that_cannot_be_read_counts_as_all_spent_for_every_leader_that_follows() {
    for garbage in [Some("garbage"), Some("{}"), Some(""), None] {
        let store = Store::default();
        let api = store.api();
        let holder = Candidate::start(&api, "holder");
        holder.until_it_leads().await;
        assert!(annotated(&store, annotations::BRAKE).is_some(), "from the first moment on");
        holder.brake.lock().unwrap().admit(Time::system().local(), 7).unwrap();
        holder.task.abort();
        annotate(&store, annotations::BRAKE, garbage);
        let next = Candidate::start(&api, "next");
        next.until_it_leads().await;
        let now = || Time::system().local();
        let held = next.brake.lock().unwrap().check(now(), 1).unwrap_err();
        assert_eq!(held.code(), "BrakeMemoryLost", "{garbage:?}");
        // Long before its next renewal is due, the following leader knows too, and nothing is overwritten silently.
        tokio::time::sleep(SOONEST_RENEWAL + just()).await;
        assert_eq!(annotated(&store, annotations::BRAKE_UNREADABLE).as_deref(), garbage);
        next.task.abort();
        let third = Candidate::start(&api, "third");
        third.until_it_leads().await;
        let held_on = third.brake.lock().unwrap().check(now(), 1).unwrap_err();
        assert_eq!((held_on.code(), held_on.until()), ("BrakeMemoryLost", held.until()), "{garbage:?}");
        assert_eq!(third.brake.lock().unwrap().check(held.until().unwrap(), 1), Ok(()));
        third.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn what_somebody_does_to_the_brakes_memory_while_we_lead_is_undone() {
    let store = Store::default();
    let api = store.api();
    let holder = Candidate::start(&api, "holder");
    holder.until_it_leads().await;
    holder.brake.lock().unwrap().admit(Time::system().local(), 7).unwrap();
    for garbage in [Some("garbage"), None] {
        tokio::time::sleep(RETRY_PERIOD + just()).await;
        let ours = annotated(&store, annotations::BRAKE);
        annotate(&store, annotations::BRAKE, garbage);
        tokio::time::sleep(RETRY_PERIOD + just()).await;
        assert_eq!(annotated(&store, annotations::BRAKE), ours);
        assert_eq!(annotated(&store, annotations::BRAKE_UNREADABLE).as_deref(), Some("garbage"));
        assert!(holder.leads());
    }
    assert_eq!(holder.brake.lock().unwrap().check(Time::system().local(), 1), Ok(()));
}

/// The holder may have spent the whole budget, and its brake state is gone with the Lease.
#[tokio::test(start_paused = true)]
async fn who_makes_a_deleted_lease_anew_takes_the_budget_for_spent() {
    let store = Store::default();
    let api = store.api();
    let holder = Candidate::start(&api, "holder");
    holder.until_it_leads().await;
    let next = Candidate::start(&api, "next");
    tokio::time::sleep(RETRY_PERIOD).await;
    holder.task.abort();
    store.delete();
    next.until_it_leads().await;
    let held = next.brake.lock().unwrap().check(Time::system().local(), 1).unwrap_err();
    assert_eq!(held.code(), "BrakeMemoryLost");
    // The creator of the very first Lease starts with the full budget.
    let first = Candidate::start(&Store::default().api(), "first");
    first.until_it_leads().await;
    assert_eq!(first.brake.lock().unwrap().check(Time::system().local(), 1), Ok(()));
}

const SAID: &str = r#"{"since":"2026-11-16T03:00:00Z","by":"jane","reason":"network work"}"#;

fn acknowledged_by(store: &Store) -> Option<String> {
    let text = annotated(store, annotations::PAUSED_ACKNOWLEDGED)?;
    Some(serde_json::from_str::<Value>(&text).unwrap()["by"].as_str().unwrap().to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_seen_by_every_replica_and_acknowledged_by_the_leader_when_it_has_stopped() {
    for text in [SAID, "garbage", ""] {
        let store = Store::default();
        let api = store.api();
        let holder = Candidate::start(&api, "holder");
        holder.until_it_leads().await;
        let follower = Candidate::start(&api, "follower");
        tokio::time::sleep(RETRY_PERIOD).await;
        let under_way = holder.leadership.pause().enter().unwrap();
        annotate(&store, annotations::PAUSED, Some(text));
        tokio::time::sleep(RETRY_PERIOD + just()).await;
        for replica in [&holder, &follower] {
            assert!(replica.leadership.pause().held().is_some(), "{text:?}");
            assert!(replica.leadership.pause().enter().is_none(), "{text:?}");
        }
        assert_eq!(acknowledged_by(&store), None, "a write is under way");
        drop(under_way);
        tokio::time::sleep(RETRY_PERIOD + just()).await;
        assert_eq!(acknowledged_by(&store).as_deref(), Some("holder"));
        assert_eq!(
            annotated(&store, annotations::PAUSED).as_deref(),
            Some(text),
            "it is nobody's but the person's"
        );

        // The next leader is paused before it leads, and acknowledges the pause.
        holder.task.abort();
        soon(follower.leadership.clone().changed(None)).await;
        assert!(follower.leadership.pause().held().is_some());
        tokio::time::sleep(RETRY_PERIOD + just()).await;
        assert_eq!(acknowledged_by(&store).as_deref(), Some("follower"));

        // Deleting the Lease does not resume.
        store.delete();
        tokio::time::sleep(2 * RETRY_PERIOD + just()).await;
        assert!(follower.leads());
        assert_eq!(annotated(&store, annotations::PAUSED).as_deref(), Some(text));
        annotate(&store, annotations::PAUSED, None);
        tokio::time::sleep(RETRY_PERIOD + just()).await;
        assert!(follower.leadership.pause().enter().is_some());
        assert_eq!(acknowledged_by(&store), None);
        follower.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_made_to_pause_is_led_and_paused() {
    let store = Store::default();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "salvor", "resourceVersion": "1", "annotations": {annotations::PAUSED: SAID}},
    });
    *store.0.lock().unwrap() = (1, Some(lease));
    let api = store.api();
    let holder = Candidate::start(&api, "holder");
    holder.until_it_leads().await;
    assert!(holder.leadership.pause().enter().is_none());
    assert_eq!(holder.brake.lock().unwrap().lost(Time::system().local()), None, "nobody has led before");
    tokio::time::sleep(RETRY_PERIOD + just()).await;
    assert_eq!(acknowledged_by(&store).as_deref(), Some("holder"));
}

/// Without an election, the pause switch is read all the same.
#[tokio::test(start_paused = true)]
async fn where_nobody_is_elected_the_switch_is_looked_at_and_acknowledged() {
    let store = Store::default();
    let api = store.api();
    let time = Time::system();
    let leadership = Leadership::alone();
    leadership.pause().wait_until_read();
    let watch = crate::lead::pause::SwitchWatch {
        client: api.client.clone(),
        settings: LeaderElection::default(),
        identity: "alone".to_owned(),
        metrics: Metrics::new(&time),
        time,
        switch: leadership.pause().clone(),
    };
    let task = tokio::spawn(watch.run());
    assert!(leadership.pause().enter().is_none(), "not read yet");
    tokio::time::sleep(just()).await;
    assert!(leadership.pause().enter().is_some(), "there is no lease, and so no pause");
    assert_eq!(api.count(&Method::PUT) + api.count(&Method::POST), 0, "and none is made");
    store.renew_as("", Time::system().local());
    annotate(&store, annotations::PAUSED, Some(SAID));
    tokio::time::sleep(RETRY_PERIOD + just()).await;
    assert!(leadership.pause().enter().is_none());
    assert_eq!(acknowledged_by(&store).as_deref(), Some("alone"));
    tokio::time::sleep(10 * RETRY_PERIOD).await;
    assert_eq!(api.count(&Method::PUT), 1, "once is enough");
    annotate(&store, annotations::PAUSED, None);
    tokio::time::sleep(RETRY_PERIOD + just()).await;
    assert!(leadership.pause().enter().is_some());
    task.abort();
}

/// An unavailable server says nothing about a pause. A server that forbids the read was never meant to pause us.
#[tokio::test(start_paused = true)]
async fn where_nobody_is_elected_and_the_switch_cannot_be_read() {
    for (code, writes) in [(403, true), (500, false)] {
        let api = FakeApi::new(move |_| Answer::Refused(code, "no"));
        let time = Time::system();
        let leadership = Leadership::alone();
        leadership.pause().wait_until_read();
        let watch = crate::lead::pause::SwitchWatch {
            client: api.client.clone(),
            settings: LeaderElection::default(),
            identity: "alone".to_owned(),
            metrics: Metrics::new(&time),
            time,
            switch: leadership.pause().clone(),
        };
        let task = tokio::spawn(watch.run());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(leadership.pause().enter().is_some(), writes, "{code}");
        task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_brake_lets_through_is_known_to_the_next_leader_in_a_moment() {
    let store = Store::default();
    let api = store.api();
    let holder = Candidate::start(&api, "holder");
    holder.until_it_leads().await;
    for _ in 0..100 {
        holder.brake.lock().unwrap().admit(Time::system().local(), 0).unwrap();
        holder.leadership.renew_soon();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    holder.brake.lock().unwrap().admit(Time::system().local(), 7).unwrap();
    holder.leadership.renew_soon();
    let renewals = api.count(&Method::PUT);
    assert!(renewals <= 5, "{renewals} renewals in half a second");
    tokio::time::sleep(SOONEST_RENEWAL + just()).await;
    holder.task.abort();
    let next = Candidate::start(&api, "next");
    next.until_it_leads().await;
    let (before, after) = (holder.brake.lock().unwrap().clone(), next.brake.lock().unwrap().clone());
    assert_eq!(before.state(), after.state());
    next.task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_makes_nobody_lead_and_is_asked_again() {
    for code in [403, 404, 409, 500] {
        let api = FakeApi::new(move |_| Answer::Refused(code, "no"));
        let candidate = Candidate::start(&api, "us");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!candidate.leads(), "{code}");
        let tries = api.asked().iter().filter(|a| a.method == Method::GET).count();
        assert!((20..=31).contains(&tries), "{code}: {tries} tries in a minute");
        candidate.task.abort();
    }
}

/// A replica sleeps while another leads, and wakes after that one has released the Lease.
#[tokio::test(start_paused = true)]
async fn whoever_leads_again_after_another_leads_in_another_term() {
    let store = Store::default();
    let api = store.api();
    let us = Candidate::start(&api, "us");
    us.until_it_leads().await;
    let first = us.leadership.term();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(us.leadership.term(), first, "a renewal begins no term");
    // Other clients may write fields that do not belong to the election: that ends no term.
    {
        let mut guard = store.0.lock().unwrap();
        guard.0 += 1;
        let revision = guard.0.to_string();
        let lease = guard.1.as_mut().unwrap();
        lease["metadata"]["resourceVersion"] = revision.into();
        lease["metadata"]["annotations"]["example.com/note"] = "a person was here".into();
    }
    tokio::time::sleep(2 * RETRY_PERIOD).await;
    assert_eq!(us.leadership.term(), first);
    // Another replica led and released the Lease between two of our renewals, while our own clock stood still.
    {
        let mut guard = store.0.lock().unwrap();
        guard.0 += 2;
        let revision = guard.0.to_string();
        let lease = guard.1.as_mut().unwrap();
        lease["metadata"]["resourceVersion"] = revision.into();
        lease["spec"]["holderIdentity"] = "".into();
        lease["spec"]["leaseTransitions"] = (lease["spec"]["leaseTransitions"].as_i64().unwrap() + 1).into();
    }
    let judged_in = first.unwrap();
    tokio::time::sleep(2 * RETRY_PERIOD).await;
    assert_eq!(store.holder(), "us");
    assert_ne!(us.leadership.term(), first);
    assert!(us.leads() && us.leadership.time_left(judged_in).is_none());
    us.task.abort();
}

/// The Lease names us, but others have held it since: a user put our name back, or it comes from a backup.
#[tokio::test(start_paused = true)]
async fn a_lease_of_ours_that_changed_hands_meanwhile_is_another_term() {
    for (field, value) in
        [("leaseTransitions", json!(7)), ("acquireTime", json!("2020-01-01T00:00:00.000000Z"))]
    {
        let store = Store::default();
        let us = Candidate::start(&store.api(), "us");
        us.until_it_leads().await;
        let first = us.leadership.term();
        {
            let mut guard = store.0.lock().unwrap();
            guard.0 += 2;
            let revision = guard.0.to_string();
            let lease = guard.1.as_mut().unwrap();
            lease["metadata"]["resourceVersion"] = revision.into();
            lease["spec"][field] = value;
        }
        tokio::time::sleep(2 * RETRY_PERIOD).await;
        assert!(us.leads() && us.leadership.term() != first, "{field}");
        us.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenure_that_lapsed_and_was_renewed_is_another_term() {
    let store = Store::default();
    let broken = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (answers, is_broken) = (store.clone(), broken.clone());
    let api = FakeApi::new(move |asked| match is_broken.load(std::sync::atomic::Ordering::Relaxed) {
        true => Answer::Refused(500, "no"),
        false => answers.answer(asked),
    });
    let us = Candidate::start(&api, "us");
    us.until_it_leads().await;
    let first = us.leadership.term();
    broken.store(true, std::sync::atomic::Ordering::Relaxed);
    soon(us.leadership.clone().changed(first)).await;
    broken.store(false, std::sync::atomic::Ordering::Relaxed);
    us.until_it_leads().await;
    assert_ne!(us.leadership.term(), first);
    us.task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_writes_of_the_lease_only_who_holds_it() {
    let store = Store::default();
    let api = store.api();
    let time = Time::system();
    let brake = Arc::new(Mutex::new(Brake::new(BrakeLimits::default(), BrakeState::default())));
    let (elector, leadership) = Elector::new(
        api.client.clone(),
        LeaderElection::default(),
        "us".to_owned(),
        time.clone(),
        Metrics::new(&time),
        brake.clone(),
    );
    let stop = CancellationToken::new();
    let task = tokio::spawn(elector.in_dry_run().run(stop.clone()));
    soon(leadership.changed(None)).await;
    brake.lock().unwrap().admit(time.local(), 7).unwrap();
    brake.lock().unwrap().observe(time.local(), NodeCounts { unreachable: 3, total: 5 });
    tokio::time::sleep(Duration::from_secs(30)).await;
    stop.cancel();
    task.await.unwrap();
    let lease = store.get().unwrap();
    assert!(lease["metadata"]["annotations"].as_object().is_none_or(serde_json::Map::is_empty), "{lease}");
    assert_eq!(store.holder(), "");
}

/// The leader writes the Lease every few seconds, so it is the first object to fall behind a revision that was seen.
#[tokio::test(start_paused = true)]
async fn a_lease_that_goes_back_to_an_earlier_revision_tells_of_a_restored_backup() {
    let store = Store::default();
    let api = store.api();
    let (histories, mut candidates) = ([History::default(), History::default()], Vec::new());
    for (identity, history) in ["leads", "follows"].iter().zip(&histories) {
        candidates.push(Candidate::minding(&api, identity, history, Watchdog::of_this_thread()));
        tokio::time::sleep(RETRY_PERIOD * 3).await;
    }
    let backup = store.0.lock().unwrap().clone();
    tokio::time::sleep(RETRY_PERIOD * 5).await;
    assert_eq!(histories.each_ref().map(History::epoch), [0, 0], "a lease that is renewed goes forward");
    store.restore(backup);
    tokio::time::sleep(RETRY_PERIOD * 2).await;
    assert_eq!(histories[0].epoch(), 1);
    assert!(candidates[0].leads(), "it holds the lease in this history, too");
    tokio::time::sleep(RETRY_PERIOD * 20).await;
    assert_eq!(histories[0].epoch(), 1, "noticed once");
    assert!(histories[1].epoch() <= 1);
    candidates.iter().for_each(|candidate| candidate.task.abort());
}

/// The election goes on while the working thread hangs, but not for ever.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_work_stands_still_keeps_the_lease_for_a_minute_and_then_gives_it_back() {
    let store = Store::default();
    let api = store.api();
    let watchdog = Watchdog::new();
    let beating = tokio::spawn(watchdog.clone().beat());
    let first = Candidate::minding(&api, "first", &History::default(), watchdog.clone());
    first.until_it_leads().await;
    let second = Candidate::start(&api, "second");
    beating.abort();
    tokio::time::sleep(Duration::from_secs(55)).await;
    assert_eq!((store.holder().as_str(), first.leads()), ("first", true), "it may come to an end yet");
    second.until_it_leads().await;
    assert!(!first.leads(), "whatever the work wakes up to, it may not write");
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(store.holder(), "second");
    // It works again, and campaigns like any other replica.
    let beating = tokio::spawn(watchdog.beat());
    second.stop.cancel();
    second.task.await.unwrap();
    first.until_it_leads().await;
    first.stop.cancel();
    first.task.await.unwrap();
    assert_eq!(store.holder(), "");
    beating.abort();
}

#[tokio::test(start_paused = true)]
async fn who_is_told_to_stop_while_its_work_stands_still_stops() {
    let store = Store::default();
    let candidate = Candidate::minding(&store.api(), "us", &History::default(), Watchdog::new());
    candidate.until_it_leads().await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(store.holder(), "");
    candidate.stop.cancel();
    soon(candidate.task).await.unwrap();
}
