//! Plays the example scenarios of the docs, and checks what the docs say about them.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::{
    cell::RefCell,
    fs,
    io::Write as _,
    path::PathBuf,
    sync::{Arc, Mutex, Once},
};

use jiff::Timestamp;
use salvor_apiserver::Change;
use salvor_operator::Notice;
use salvor_simulate::{
    play::{Audience, Peer, Policy, Record, play, play_before},
    report::{Comparison, Page, Report, Summary, html, report_table},
    scenario::{Scenario, Source},
};
use salvor_why::Overview;

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/scenarios"))
}

fn scenario(name: &str) -> Scenario {
    let text = fs::read_to_string(folder().join(name)).unwrap();
    Scenario::read(&text, &Source { folder: folder() }).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn played(scenario: &Scenario, policy: &Policy, seed: u64) -> (Record, Report) {
    let record = play(scenario, policy, seed).unwrap();
    let report = Report::of(&record);
    (record, report)
}

fn seconds(time: Option<i64>) -> i64 {
    time.expect("it is back") / 1000
}

#[test]
fn all_examples_can_be_read() {
    let mut names = Vec::new();
    for part in ["", "truth/", "choosing/"] {
        let files = fs::read_dir(folder().join(part)).unwrap();
        let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.extend(files.filter(|name| name.ends_with(".yaml")).map(|name| format!("{part}{name}")));
    }
    assert!(names.len() >= 15, "{names:?}");
    for name in names {
        scenario(&name);
    }
}

/// Detection takes 40 to 55 seconds, the toleration 30, the grace period 10, plus the minute of KEP-6757.
#[test]
fn a_crash_is_recovered_in_the_time_that_the_rules_take() {
    let scenario = scenario("crash.yaml");
    let (_, report) = played(&scenario, &Policy::of(&scenario), 1);
    let text = report_table("crash", &report);
    let train = &report.workloads[0].recovery;
    assert!(train.lost >= 1 && train.replaced == train.lost, "{text}");
    assert!((135..=170).contains(&seconds(train.time_to_recovery.max)), "{text}");
    let phases = &train.phases;
    assert!((39_000..=56_000).contains(&phases.detect), "{text}");
    assert!((29_000..=32_000).contains(&phases.evict) && (69_000..=72_000).contains(&phases.wait), "{text}");
    assert_eq!(
        (report.double_run, report.at_most_once_violations, report.total.not_recovered),
        (0, 0, 0),
        "{text}"
    );
    assert!(report.stuck.is_empty() && report.work.lost > 0 && report.api_calls.writes > 0, "{text}");

    let (_, alone) = played(&scenario, &Policy::peer(Peer::Kubernetes), 1);
    let text = report_table("crash", &alone);
    assert_eq!(alone.workloads[0].recovery.not_recovered, alone.workloads[0].recovery.lost, "{text}");
    assert_eq!(alone.workloads[1].recovery.not_recovered, 0, "{text}");
    assert!(!alone.stuck.is_empty() && alone.api_calls.all() == 0, "{text}");
    assert!(alone.work.goodput < report.work.goodput, "{text}");
}

const EVICTED_AFTER: &str = "\
title: Work that is to be back soon
pools: [{name: cpu, nodes: 6}]
workloads:
- {name: at-once, kind: IndexedJob, pods: 6, consent: terminate, evictAfter: 0s, podReplacementPolicy: Failed, requests: {cpu: 500m}}
- {name: soon, kind: Deployment, pods: 6, consent: delete, evictAfter: 30s, requests: {cpu: 500m}}
- {name: patient, kind: Deployment, pods: 6, consent: delete, requests: {cpu: 500m}}
failures:
- {kind: crash, at: 5m, target: {pool: cpu}, pick: 1}
end: 30m
";

/// Detection takes 40 to 55 seconds. Neither the toleration nor the grace period nor the minute nor a first look at the
/// Lease comes on top.
#[test]
fn work_with_evict_after_is_back_as_soon_as_its_node_is_known_to_be_lost() {
    let scenario = Scenario::read(EVICTED_AFTER, &Source::default()).unwrap();
    let mut tried = 0;
    for seed in 1..=3 {
        let (_, report) = played(&scenario, &Policy::of(&scenario), seed);
        let text = report_table("evict-after", &report);
        for (workload, least, most) in [(0, 39, 60), (1, 69, 90), (2, 300, 600)] {
            let recovery = &report.workloads[workload].recovery;
            if recovery.lost == 0 {
                continue;
            }
            tried += 1;
            assert_eq!(recovery.not_recovered, 0, "{text}");
            assert!((least..=most).contains(&seconds(recovery.time_to_recovery.max)), "{text}");
        }
        assert_eq!((report.double_run, report.at_most_once_violations), (0, 0), "{text}");
    }
    assert!(tried >= 6, "{tried}");
}

/// A Lease is up to ten seconds old when its machine fails, and node lifecycle checks every five seconds: 40 to 55
/// seconds, drawn by the seed and by each node. In step, all seeds would have the same.
#[test]
fn nodes_are_noticed_at_times_that_differ() {
    let scenario = scenario("truth/partition.yaml");
    let policy = Policy::of(&scenario);
    let mut noticed = Vec::new();
    for seed in 1..=6 {
        let (record, _) = played(&scenario, &policy, seed);
        let failed = record.incidents[0].at;
        let lost = record.nodes.values().filter_map(|node| node.unreachable.first());
        noticed.extend(lost.map(|(from, _)| (from - failed) / 1000));
    }
    assert_eq!(noticed.len(), 3 * 6);
    let (first, last) = (noticed.iter().min().unwrap(), noticed.iter().max().unwrap());
    assert!(*first >= 39 && *last <= 56 && last - first >= 8, "{noticed:?}");
    let mean = noticed.iter().sum::<i64>() / 18;
    assert!((44..=51).contains(&mean), "{noticed:?}");
}

#[test]
fn a_partition_runs_opted_in_work_twice_and_no_other() {
    let scenario = scenario("partition.yaml");
    let (record, report) = played(&scenario, &Policy::of(&scenario), 3);
    let text = report_table("partition", &report);
    assert!(report.double_run > 0 && report.at_most_once_violations == 0, "{text}");
    assert!(record.double_runs.iter().all(|it| it.workload == "train" && it.consented), "{text}");
    assert!(report.pods_killed_in_vain > 0 && report.total.not_recovered == 0, "{text}");
}

#[test]
fn a_job_that_does_not_wait_runs_twice_without_consent() {
    let scenario = scenario("jobs.yaml");
    let (record, report) = played(&scenario, &Policy::of(&scenario), 1);
    let text = report_table("jobs", &report);
    let [careful, hasty] = &report.workloads[..] else { panic!("{text}") };
    assert!(hasty.recovery.time_to_recovery.max < careful.recovery.time_to_recovery.max, "{text}");
    assert!(report.at_most_once_violations > 0, "{text}");
    assert!(record.double_runs.iter().any(|it| it.workload == "hasty" && !it.consented), "{text}");
    // Work continues from the last checkpoint: every index is done before the end.
    assert!(report.stuck.is_empty() && careful.work.lost < 4 * 60_000 * 4, "{text}");
}

#[test]
fn the_brake_holds_everything_back_until_few_enough_nodes_are_lost() {
    let scenario = scenario("brake.yaml");
    let policy = Policy::of(&scenario);
    let (_, report) = played(&scenario, &policy, 1);
    let text = report_table("brake", &report);
    assert!(report.held.iter().any(|held| held.recovery == "zombie" && held.times > 0), "{text}");
    let (_, loose) = played(&scenario, &policy.with("brake.maxUnreachablePercent", "0").unwrap(), 1);
    let loose_text = report_table("brake", &loose);
    assert!(loose.held.is_empty() && loose.double_run > report.double_run, "{text}{loose_text}");
    assert!(loose.total.time_to_recovery.p50 < report.total.time_to_recovery.p50, "{text}{loose_text}");
}

#[test]
fn a_database_waits_for_its_volume() {
    let scenario = scenario("database.yaml");
    let (_, report) = played(&scenario, &Policy::of(&scenario), 1);
    let text = report_table("database", &report);
    assert_eq!((report.total.not_recovered, report.at_most_once_violations), (0, 0), "{text}");
    let (_, alone) = played(&scenario, &Policy::peer(Peer::Kubernetes), 1);
    assert!(alone.total.not_recovered == alone.total.lost, "{}", report_table("database", &alone));
}

#[test]
fn one_seed_gives_one_record_and_another_seed_another() {
    let mut scenario = scenario("fleet.yaml");
    scenario.end = Some(std::time::Duration::from_secs(45 * 60));
    let policy = Policy::of(&scenario);
    let (first, report) = played(&scenario, &policy, 7);
    assert_eq!(first, played(&scenario, &policy, 7).0);
    assert_ne!(first, played(&scenario, &policy, 8).0);
    assert_eq!(report.seed, 7);
}

/// Records everything that happens.
#[derive(Default)]
struct Log(Vec<u8>);

impl Audience for Log {
    fn change(&mut self, change: &Change<'_>) {
        let Change { at, revision, group, resource, kind, object, .. } = change;
        write!(self.0, "{at} {revision} {kind:?} {group} {resource} ").unwrap();
        self.0.extend_from_slice(object);
        self.0.push(b'\n');
    }

    fn notice(&mut self, at: Timestamp, notice: &Notice) {
        writeln!(self.0, "{at} {notice:?}").unwrap();
    }

    fn began(&mut self, at: Timestamp) {
        writeln!(self.0, "{at} began").unwrap();
    }

    fn ended(&mut self, at: Timestamp, missing: &Overview) {
        writeln!(self.0, "{at} ended {missing:?}").unwrap();
    }
}

thread_local! {
    /// Lines that the program logged on this thread; a play runs entirely on one thread.
    static LOGGED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct Lines;

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOGGED.with_borrow_mut(|lines| lines.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One subscriber for all threads: whether a line is logged must not depend on what other tests do meanwhile.
fn log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).without_time();
        let subscriber = subscriber.with_ansi(false).with_writer(|| Lines).finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
    });
}

/// All output of one play: every change and notice, the program's own log, and the report as JSON and as a page.
struct Traces {
    record: Record,
    history: Vec<u8>,
    logged: Vec<u8>,
    json: String,
    page: String,
}

fn traces(scenario: &Scenario, seed: u64) -> Traces {
    log();
    LOGGED.take();
    let seat = Arc::new(Mutex::new(Log::default()));
    let policy = Policy::of(scenario);
    let record = play_before(scenario, &policy, seed, &seat).unwrap();
    let report = Report::of(&record);
    let comparison =
        Comparison::of(vec![Summary::of(&policy.name, &policy.note, std::slice::from_ref(&report))]);
    let page = Page {
        title: &scenario.title,
        say: &scenario.say,
        comparison: &comparison,
        worst: Some((&report, &record)),
        watch: None,
    };
    let page = html(&page);
    let (history, logged) = (std::mem::take(&mut seat.lock().unwrap().0), LOGGED.take());
    Traces { history, logged, json: serde_json::to_string(&report).unwrap(), page, record }
}

#[test]
fn one_seed_leaves_the_same_bytes_whoever_looks_on() {
    let mut scenario = scenario("fleet.yaml");
    scenario.fail("partition zone=b 5m").unwrap();
    scenario.end = Some(std::time::Duration::from_secs(12 * 60));
    let first = traces(&scenario, 7);
    // On another thread, beside another play.
    let second = std::thread::scope(|scope| {
        scope.spawn(|| play(&scenario, &Policy::of(&scenario), 8).unwrap());
        scope.spawn(|| traces(&scenario, 7)).join().unwrap()
    });
    assert!(first.history == second.history, "every change of every object, and every notice");
    assert_eq!(String::from_utf8_lossy(&first.logged), String::from_utf8_lossy(&second.logged));
    assert_eq!((&first.json, &first.page), (&second.json, &second.page));
    assert!(first.history.len() > 100_000 && !first.logged.is_empty(), "{}", first.history.len());
    assert_eq!(first.record, play(&scenario, &Policy::of(&scenario), 7).unwrap(), "nobody looks on");
}

/// A node without an owner is unhealthy, so Salvor drains it gracefully.
#[test]
fn a_drain_respects_the_budget_of_a_workload() {
    let given_up = |budget: &str| {
        let text = format!(
            "title: t\npools: [{{name: cpu, nodes: 8}}]\n\
             workloads: [{{name: web, kind: Deployment, pods: 8, requests: {{cpu: '3'}}{budget}}}]\n\
             salvor:\n  repairPolicies:\n    all:\n      nodeSelector: {{matchLabels: {{pool: cpu}}}}\n      \
             policies: [{{conditionType: AcceleratedHardwareReady, conditionStatus: 'False', toleration: 1m}}]\n      \
             termination: Graceful\n      gracePeriod: 30m\n\
             failures: [{{kind: sick, at: 1m, target: {{node: cpu-a1}}}}]\nend: 12m\n"
        );
        let scenario =
            Scenario::read(&text, &Source::default()).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let (record, report) = played(&scenario, &Policy::of(&scenario), 1);
        let on_it = record.pods.iter().filter(|pod| pod.node.as_deref() == Some("cpu-a1"));
        let on_it: Vec<bool> = on_it.map(|pod| pod.deleted.is_some()).collect();
        assert!(!on_it.is_empty(), "{}", report_table("drain", &report));
        on_it.into_iter().all(|is_deleted| is_deleted)
    };
    assert!(given_up(""), "without a budget");
    assert!(given_up(", budget: {minAvailable: 50%}"), "there are enough others");
    assert!(!given_up(", budget: {maxUnavailable: 0}"), "none may be away");
}

const SICK: &str = "\
title: A sick node
pools: [{name: gpu, nodes: 5, machines: {shutdown: 30s, boot: 2m}}]
workloads:
- {name: train, kind: IndexedJob, pods: 5, pool: gpu, podReplacementPolicy: Failed, checkpointEvery: 5m, gracePeriod: 5s,
   requests: {cpu: \"5\"}}
failures:
- {kind: sick, at: 1m, target: {node: gpu-1}}
- {kind: sick, at: 30m, target: {node: gpu-2}}
- {kind: sick, at: 35m, target: {node: gpu-3}}
end: 70m
";

/// Karpenter repairs a failed accelerator after 10 minutes. Two of five are more than 20%, so the second wave is
/// blocked permanently.
#[test]
fn karpenter_ends_a_sick_node_after_ten_minutes_and_none_of_two() {
    let scenario = Scenario::read(SICK, &Source::default()).unwrap();
    let (record, report) = played(&scenario, &Policy::peer(Peer::Karpenter), 1);
    let text = report_table("sick", &report);
    let ended = |node: &str| record.nodes[node].claim_deleted.map(|at| at / 1000);
    // Times are written in whole seconds, and its queue runs once a second.
    assert!(ended("gpu-1").is_some_and(|at| (659..=663).contains(&at)), "{:?}\n{text}", ended("gpu-1"));
    assert_eq!((ended("gpu-2"), ended("gpu-3")), (None, None), "{text}");
    assert_eq!((report.nodes_given_up, report.at_most_once_violations), (1, 0), "{text}");
    assert!(record.nodes.contains_key("gpu-6") && report.failures[0].recovery.not_recovered == 0, "{text}");
}

const GANG: &str = "\
title: A gang loses a node
pools: [{name: cpu, nodes: 6}]
workloads:
- {name: gang, kind: AppWrapper, pods: 4, consent: terminate, toleratesUnreachable: 30s, gracePeriod: 5s, requests: {cpu: \"3\"}}
failures:
- {kind: crash, at: 5m, target: {pool: cpu}, pick: 3}
end: 40m
";

/// CodeFlare's controller: a pod that is deleted while it runs resets the whole gang at the next reconcile, at most a
/// minute later; stuck pods are force-deleted after 10 minutes.
#[test]
fn the_appwrapper_controller_resets_the_gang_and_forces_after_ten_minutes() {
    let scenario = Scenario::read(GANG, &Source::default()).unwrap();
    let (record, report) = played(&scenario, &Policy::peer(Peer::AppWrapper), 1);
    let text = report_table("gang", &report);
    let recovery = &report.workloads[0].recovery;
    assert!(recovery.lost >= 1 && recovery.not_recovered == 0, "{text}");
    // Noticed after 40 to 55 s, evicted 30 s later, reconciled within 60 s, force-deleted 10 minutes later.
    let longest = seconds(recovery.time_to_recovery.max);
    assert!((665..=770).contains(&longest), "{text}");
    // The gang restarts as a whole: pods on healthy nodes are deleted, too.
    let deleted = record.pods.iter().filter(|pod| pod.deleted.is_some()).count();
    assert_eq!(deleted, 4, "{text}");
}
