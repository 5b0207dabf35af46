//! The example scenarios of the docs are played, and say what the docs say of them.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::{fs, path::PathBuf};

use salvor_simulate::{
    play::{Peer, Policy, Record, play},
    report::{Report, report_table},
    scenario::{Scenario, Source},
};

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
    let files = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = files.filter(|name| name.ends_with(".yaml")).collect();
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        scenario(&name);
    }
}

/// Detection takes 40 to 50 seconds, the toleration 30, the grace period 10 and the minute of KEP-6757.
#[test]
fn a_crash_is_recovered_in_the_time_that_the_rules_take() {
    let scenario = scenario("crash.yaml");
    let (_, report) = played(&scenario, &Policy::of(&scenario), 1);
    let text = report_table("crash", &report);
    let train = &report.workloads[0].recovery;
    assert!(train.lost >= 1 && train.replaced == train.lost, "{text}");
    assert!((135..=165).contains(&seconds(train.time_to_recovery.max)), "{text}");
    let phases = &train.phases;
    assert!((40_000..=55_000).contains(&phases.detect), "{text}");
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
    // Work goes on from the last checkpoint: every index is done before the end.
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
