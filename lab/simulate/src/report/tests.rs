use crate::{
    play::{Ended, IncidentRecord, Millis, NodeLife, PodLife, Record, RunLife, WorkloadFacts},
    report::{Comparison, Phases, Report, Summary, comparison_table, report_table},
    scenario::{Consent, Fault},
};

const SECOND: Millis = 1000;

fn facts(name: &str, units: u32) -> WorkloadFacts {
    WorkloadFacts {
        name: name.to_owned(),
        kind: "IndexedJob",
        units,
        takes: None,
        checkpoint_every: None,
        accumulates: true,
        consent: Consent::Terminate,
    }
}

fn pod(name: &str, node: &str, unit: Option<&str>, created: Millis) -> PodLife {
    PodLife {
        uid: format!("uid-{name}"),
        name: name.to_owned(),
        unit: unit.map(str::to_owned),
        node: Some(node.to_owned()),
        created,
        scheduled: Some(created + 1),
        ..PodLife::default()
    }
}

fn run(pod: usize, node: &str, from: Millis, ended: Option<(Millis, i32)>) -> RunLife {
    RunLife { pod, node: node.to_owned(), from, ended }
}

fn incident(fault: Fault, at: Millis, until: Option<Millis>) -> IncidentRecord {
    IncidentRecord { at, until, fault, nodes: vec!["a".to_owned()], named: "a".to_owned() }
}

/// A node dies at 100 s. It is marked at 150, the pod is deleted at 180, Salvor has something to do at 250 and marks
/// the pod Failed at 251. The new pod is created at 252 and runs at 255.
fn crashed() -> Record {
    let s = |seconds: Millis| seconds * SECOND;
    let mut old = pod("w-0-old", "a", Some("w/0"), -s(10));
    old.deleted = Some(s(180));
    old.over = Some((s(251), Ended::Failed));
    let mut new = pod("w-0-new", "b", Some("w/0"), s(252));
    new.scheduled = Some(s(253));
    let node = NodeLife { unreachable: vec![(s(150), None)], ..NodeLife::default() };
    Record {
        seed: 1,
        policy: "salvor".to_owned(),
        end: s(1000),
        back_soon: s(300),
        workloads: vec![facts("w", 1)],
        incidents: vec![incident(Fault::Crash, s(100), None)],
        nodes: [("a".to_owned(), node)].into(),
        pods: vec![old, new],
        runs: vec![run(0, "a", -s(5), Some((s(100), 137))), run(1, "b", s(255), None)],
        due: [("pod default/w-0-old".to_owned(), vec![s(250)])].into(),
        ..Record::default()
    }
}

#[test]
fn a_recovery_is_told_in_its_phases() {
    let report = Report::of(&crashed());
    let seconds = Phases { detect: 50, evict: 30, wait: 70, decide: 1, replace: 1, schedule: 1, start: 2 };
    assert_eq!(report.total.phases.all().map(|time| time / SECOND), seconds.all());
    assert_eq!(report.total.time_to_recovery.max, Some(155 * SECOND));
    assert_eq!((report.total.lost, report.total.replaced), (1, 1));
    assert_eq!(report.failures[0].recovery, report.total);
    assert_eq!(report.workloads[0].recovery, report.total);
}

#[test]
fn a_pod_that_is_replaced_at_once_waits_for_nobody() {
    let mut record = crashed();
    record.pods[1].created = 180 * SECOND;
    record.pods[1].scheduled = Some(181 * SECOND);
    record.runs[1].from = 182 * SECOND;
    let phases = Report::of(&record).total.phases;
    let expected = Phases { detect: 50, evict: 30, wait: 0, decide: 0, replace: 0, schedule: 1, start: 1 };
    assert_eq!(phases.all().map(|time| time / SECOND), expected.all());
}

#[test]
fn work_since_the_last_checkpoint_is_lost_and_time_without_a_pod_is_down() {
    let mut record = crashed();
    let report = Report::of(&record);
    // 100 s within the play are lost, no pod ran for 155 s, 745 s count.
    let totals = &report.work;
    assert_eq!([totals.useful, totals.lost, totals.down].map(|it| it / SECOND), [745, 100, 155]);
    assert!((totals.goodput - 0.745).abs() < 1e-9, "{totals:?}");
    // It had run for 105 s, so 15 s beyond the last of three checkpoints.
    record.workloads[0].checkpoint_every = Some(30 * SECOND);
    assert_eq!(Report::of(&record).work.lost, 15 * SECOND);
    record.workloads[0].accumulates = false;
    assert_eq!(Report::of(&record).work.lost, 0);
}

/// Seconds that are useful, lost, done twice, and without a pod.
fn parts(record: &Record) -> [Millis; 4] {
    let work = Report::of(record).work;
    [work.useful, work.lost, work.doubled, work.down].map(|time| time / SECOND)
}

/// A is partitioned and runs from 0 to 65 s; B takes its place at 30 s and runs to the end at 100 s.
fn copied() -> Record {
    let mut record = cut_off(60);
    (record.end, record.double_runs) = (100 * SECOND, Vec::new());
    record.pods[0].deleted = Some(25 * SECOND);
    record.pods[0].over = Some((25 * SECOND, Ended::Failed));
    record.runs[0] = run(0, "a", 0, Some((65 * SECOND, 137)));
    record.runs[1] = run(1, "b", 30 * SECOND, None);
    record
}

#[test]
fn work_of_two_copies_counts_once_and_is_not_lost_twice() {
    let mut record = copied();
    // Without checkpoints nothing of A counts. While both ran, one of them was redundant.
    assert_eq!(parts(&record), [70, 30, 35, 0]);
    // B continues from the 20 s that A had saved when B began; the 10 s after that were done again.
    record.workloads[0].checkpoint_every = Some(20 * SECOND);
    assert_eq!(parts(&record), [90, 10, 35, 0]);
    // A database has no progress to lose.
    record.workloads[0].accumulates = false;
    assert_eq!(parts(&record), [100, 0, 35, 0]);
}

#[test]
fn work_is_done_once() {
    let mut record = copied();
    record.workloads[0].takes = Some(65 * SECOND);
    record.runs[0].ended = Some((65 * SECOND, 0));
    record.runs[1].ended = Some((95 * SECOND, 0));
    // A was given up: B's work counts.
    assert_eq!(parts(&record), [65, 30, 35, 0]);
    // A reported its success in time: B's work is wasted.
    record.pods[0].over = Some((66 * SECOND, Ended::Succeeded));
    assert_eq!(parts(&record), [65, 30, 35, 0]);
    record.runs[1].ended = Some((80 * SECOND, 137));
    assert_eq!(parts(&record), [65, 15, 35, 0]);
}

#[test]
fn more_pods_than_there_should_be_do_not_make_up_for_others_that_are_missing() {
    let mut record = copied();
    record.workloads[0] = WorkloadFacts { accumulates: false, ..facts("web", 2) };
    record.pods = vec![pod("x", "a", None, 0), pod("y", "b", None, 0), pod("z", "c", None, 0)];
    // From 30 to 65 there is one pod too many; from 65 to 75 one is missing, and another one for the last 5 s.
    record.runs = vec![
        run(0, "a", 0, Some((65 * SECOND, 137))),
        run(1, "b", 0, Some((95 * SECOND, 137))),
        run(2, "c", 30 * SECOND, Some((65 * SECOND, 0))),
        run(2, "c", 75 * SECOND, None),
    ];
    assert_eq!(parts(&record), [65 * 2 + 10 + 20 * 2 + 5, 0, 0, 15]);
}

#[test]
fn a_job_without_indexes_waits_for_the_pods_that_died() {
    let mut record = copied();
    record.workloads[0] = WorkloadFacts { takes: Some(50 * SECOND), ..facts("queue", 2) };
    record.pods = vec![pod("x", "a", None, 0), pod("y", "b", None, 0), pod("z", "c", None, 0)];
    record.runs = vec![
        run(0, "a", 0, Some((20 * SECOND, 137))),
        run(1, "b", 0, Some((50 * SECOND, 0))),
        run(2, "c", 45 * SECOND, Some((95 * SECOND, 0))),
    ];
    assert_eq!(parts(&record), [100, 20, 0, 25]);
    // The next pod continues from the checkpoint.
    record.workloads[0].checkpoint_every = Some(15 * SECOND);
    assert_eq!(parts(&record), [115, 5, 0, 25]);
}

#[test]
fn a_sick_node_makes_no_progress() {
    let mut record = crashed();
    record.incidents = vec![
        incident(Fault::Sick(crate::scenario::accelerator_condition()), 20 * SECOND, Some(50 * SECOND)),
        incident(Fault::Sick(crate::scenario::accelerator_condition()), 40 * SECOND, Some(60 * SECOND)),
    ];
    (record.pods[0].deleted, record.pods[0].over, record.end) = (None, None, 100 * SECOND);
    record.runs = vec![run(0, "a", 0, None)];
    assert_eq!(parts(&record), [60, 40, 0, 0]);
}

#[test]
fn harm_is_told_of_the_failure_that_did_it() {
    let mut record = copied();
    record.incidents[0].at = 10 * SECOND;
    record
        .incidents
        .push(IncidentRecord { nodes: vec!["b".to_owned()], ..incident(Fault::Crash, 90 * SECOND, None) });
    record.double_runs = vec![crate::play::DoubleRun {
        workload: "w".to_owned(),
        volume: true,
        consented: true,
        first: "default/w-0-old on a".to_owned(),
        second: "default/w-0-new on b".to_owned(),
        since: 30 * SECOND,
        lasted: 35 * SECOND,
        node: "a".to_owned(),
    }];
    let report = Report::of(&record);
    let told = |index: usize| {
        let it = &report.failures[index];
        (it.work_lost, it.double_run, it.at_most_once_violations, it.pods_killed_in_vain)
    };
    assert_eq!(told(0), (30 * SECOND, 35 * SECOND, 1, 1));
    assert_eq!(told(1), (0, 0, 0, 0));
    assert_eq!((report.double_run, report.at_most_once_violations), (35 * SECOND, 1));
}

#[test]
fn each_loss_is_told_and_its_phases_sum_up_to_its_time() {
    let report = Report::of(&crashed());
    let [loss] = &report.losses[..] else { panic!("{:?}", report.losses) };
    assert_eq!((loss.outcome.as_ref(), loss.by.as_deref()), ("replaced", Some("w-0-new")));
    let phases = loss.phases.as_ref().unwrap();
    assert_eq!(Some(phases.all().iter().sum()), loss.time_to_recovery);
    assert_eq!(report.total.phase_percentiles.p99, *phases);
    // A written report can be read back.
    let again: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(again, report);
}

#[test]
fn a_pod_that_ends_its_work_long_after_a_short_failure_had_resumed() {
    let mut record = cut_off(140);
    record.nodes.get_mut("a").unwrap().unreachable.clear();
    record.pods.truncate(1);
    record.workloads[0].takes = Some(900 * SECOND);
    record.runs = vec![run(0, "a", 0, Some((900 * SECOND, 0)))];
    (record.pods[0].deleted, record.pods[0].over) = (None, Some((900 * SECOND, Ended::Succeeded)));
    assert_eq!(Report::of(&record).total.time_to_recovery.max, Some(40 * SECOND));
}

#[test]
fn a_restarted_machine_takes_the_time_until_its_containers_run() {
    let mut record = crashed();
    record.incidents = vec![incident(Fault::Reboot, 100 * SECOND, Some(100 * SECOND))];
    record.nodes.get_mut("a").unwrap().unreachable.clear();
    record.pods.truncate(1);
    (record.pods[0].deleted, record.pods[0].over) = (None, None);
    record.runs = vec![run(0, "a", 0, Some((100 * SECOND, 137))), run(0, "a", 140 * SECOND, None)];
    let total = Report::of(&record).total;
    assert_eq!((total.resumed, total.time_to_recovery.max), (1, Some(40 * SECOND)));
}

#[test]
fn a_kill_after_the_machine_was_back_is_in_vain_too() {
    let mut record = cut_off(170);
    record.nodes.get_mut("a").unwrap().unreachable = vec![(150 * SECOND, Some(190 * SECOND))];
    assert_eq!(Report::of(&record).pods_killed_in_vain, 1, "it was still marked");
    record.nodes.get_mut("a").unwrap().unreachable = vec![(150 * SECOND, Some(175 * SECOND))];
    assert_eq!(Report::of(&record).pods_killed_in_vain, 0);
}

#[test]
fn seeds_that_are_missing_are_named_as_ranges() {
    let reports = [3, 4, 7].map(|seed| Report::of(&Record { seed, ..crashed() }));
    let comparison = Comparison::of(vec![Summary::of("salvor", "", &reports)]);
    let part = |first, last| super::Part { index: 0, count: 1, first, last };
    assert_eq!(comparison.missing(&[part(1, 9), part(1, 9)]), [(1, 2), (5, 6), (8, 9)]);
    assert_eq!(comparison.missing(&[part(3, 4)]), []);
    assert_eq!(comparison.missing(&[part(0, u64::MAX)]), [(0, 2), (5, 6), (8, u64::MAX)]);
}

#[test]
fn work_that_is_not_back_is_never_back() {
    let mut record = crashed();
    record.pods.pop();
    record.runs.pop();
    let report = Report::of(&record);
    assert_eq!((report.total.not_recovered, report.total.time_to_recovery.p50), (1, None));
    assert!(report_table("t", &report).contains("p50 never"), "{}", report_table("t", &report));
}

/// A node is partitioned, and its pod keeps running.
fn cut_off(until: Millis) -> Record {
    let mut record = crashed();
    record.incidents = vec![incident(Fault::Partition, 100 * SECOND, Some(until * SECOND))];
    record.runs[0].ended = None;
    record
}

#[test]
fn a_pod_that_ends_its_work_while_it_is_cut_off_is_recovered_when_that_is_heard() {
    let mut record = cut_off(300);
    record.pods.truncate(1);
    record.runs.truncate(1);
    record.workloads[0].takes = Some(200 * SECOND);
    record.runs[0].ended = Some((195 * SECOND, 0));
    // Its deletion was requested meanwhile; the kubelet had nothing left to kill.
    (record.pods[0].deleted, record.pods[0].over) =
        (Some(180 * SECOND), Some((305 * SECOND, Ended::Succeeded)));
    let report = Report::of(&record);
    assert_eq!((report.total.resumed, report.total.not_recovered), (1, 0));
    assert_eq!(report.total.time_to_recovery.max, Some(205 * SECOND));
}

#[test]
fn a_pod_that_fails_long_after_its_machine_was_back_had_resumed() {
    let mut record = cut_off(140);
    record.nodes.get_mut("a").unwrap().unreachable.clear();
    (record.pods[0].deleted, record.pods[0].over) = (None, Some((900 * SECOND, Ended::Failed)));
    record.runs[0].ended = Some((900 * SECOND, 1));
    (record.pods[1].created, record.runs[1].from) = (910 * SECOND, 912 * SECOND);
    let report = Report::of(&record);
    assert_eq!((report.total.resumed, report.total.time_to_recovery.max), (1, Some(40 * SECOND)));
    // A pod that ended during the partition had not resumed.
    record.runs[0].ended = Some((120 * SECOND, 1));
    assert_eq!(Report::of(&record).total.replaced, 1);
}

#[test]
fn a_pod_that_was_done_is_not_killed_when_it_is_cleared_away() {
    let mut record = cut_off(300);
    assert_eq!(Report::of(&record).pods_killed_in_vain, 1);
    record.pods[0].over = Some((90 * SECOND, Ended::Succeeded));
    assert_eq!(Report::of(&record).pods_killed_in_vain, 0);
}

#[test]
fn a_machine_that_comes_back_in_time_resumes() {
    let mut record = cut_off(140);
    record.nodes.get_mut("a").unwrap().unreachable.clear();
    record.pods.truncate(1);
    record.runs.truncate(1);
    (record.pods[0].deleted, record.pods[0].over) = (None, None);
    let report = Report::of(&record);
    assert_eq!((report.total.resumed, report.total.time_to_recovery.max), (1, Some(40 * SECOND)));
    assert_eq!((report.work.lost, report.work.down, report.pods_killed_in_vain), (0, 0, 0));
    // The control plane notices some seconds later.
    record.nodes.get_mut("a").unwrap().unreachable = vec![(120 * SECOND, Some(145 * SECOND))];
    assert_eq!(Report::of(&record).total.time_to_recovery.max, Some(45 * SECOND));
}

#[test]
fn a_later_silence_of_the_node_is_another_failure() {
    let mut record = cut_off(140);
    record.nodes.get_mut("a").unwrap().unreachable = vec![(500 * SECOND, Some(600 * SECOND))];
    record.pods.truncate(1);
    record.runs.truncate(1);
    (record.pods[0].deleted, record.pods[0].over) = (None, None);
    assert_eq!(Report::of(&record).total.time_to_recovery.max, Some(40 * SECOND));
}

#[test]
fn a_pod_that_has_failed_is_not_evicted() {
    let mut record = crashed();
    record.incidents = vec![incident(Fault::Reboot, 100 * SECOND, Some(100 * SECOND))];
    record.nodes.get_mut("a").unwrap().unreachable.clear();
    record.pods[0].over = Some((100 * SECOND, Ended::Failed));
    record.due.clear();
    let phases = Report::of(&record).total.phases;
    let expected = Phases { replace: 152, schedule: 1, start: 2, ..Phases::default() };
    assert_eq!(phases.all().map(|time| time / SECOND), expected.all());
}

#[test]
fn a_kill_is_in_vain_if_the_machine_was_back_soon() {
    // The pod was deleted at 180; a machine that is back within five minutes makes the kill needless.
    for (until, in_vain) in [(200, 1), (480, 1), (481, 0)] {
        let mut record = cut_off(until);
        record.nodes.get_mut("a").unwrap().out_of_service = vec![181 * SECOND];
        let report = Report::of(&record);
        assert_eq!(report.pods_killed_in_vain, in_vain, "{until}");
        assert_eq!(
            (report.nodes_given_up, report.nodes_killed_in_vain),
            (1, if until <= 481 { 1 } else { 0 }),
            "{until}"
        );
    }
    let mut healthy = crashed();
    healthy
        .nodes
        .insert("b".to_owned(), NodeLife { claim_deleted: Some(500 * SECOND), ..NodeLife::default() });
    let report = Report::of(&healthy);
    assert_eq!((report.nodes_given_up, report.nodes_killed_in_vain), (1, 1), "a node that had not failed");
}

#[test]
fn pods_that_are_alike_replace_one_each() {
    let mut record = crashed();
    record.workloads[0].units = 2;
    record.pods = vec![
        PodLife { deleted: Some(180 * SECOND), ..pod("x1", "a", None, 0) },
        PodLife { deleted: Some(180 * SECOND), ..pod("x2", "a", None, 0) },
        pod("y1", "b", None, 180 * SECOND),
    ];
    record.runs = vec![
        run(0, "a", 0, Some((100 * SECOND, 137))),
        run(1, "a", 0, Some((100 * SECOND, 137))),
        run(2, "b", 185 * SECOND, None),
    ];
    let total = Report::of(&record).total;
    assert_eq!((total.lost, total.replaced, total.not_recovered), (2, 1, 1));
}

fn summary(name: &str, p90: Option<Millis>, twice: f64, in_vain: f64) -> Summary {
    let mut summary = Summary::of(name, "", &[Report::of(&crashed())]);
    summary.time_to_recovery.p90 = p90;
    summary.double_run_seconds.mean = twice;
    summary.killed_in_vain.mean = in_vain;
    summary
}

#[test]
fn the_front_has_what_no_other_beats_and_the_middle_of_it_is_recommended() {
    let comparison = Comparison::of(vec![
        summary("hasty", Some(60_000), 100.0, 9.0),
        summary("middle", Some(80_000), 10.0, 1.0),
        summary("slow", Some(600_000), 0.0, 0.0),
        summary("beaten", Some(90_000), 10.0, 1.0),
        summary("never", None, 0.0, 0.0),
    ]);
    assert_eq!(comparison.pareto_front, ["hasty", "middle", "slow"]);
    let best = comparison.recommendation.clone().unwrap();
    assert_eq!(best.policy, "middle");
    assert!(
        best.reason.contains("within 1m20s (fastest: 1m)") && best.reason.contains("10.0 double-run seconds"),
        "{}",
        best.reason
    );
    assert!(comparison_table("t", &comparison).contains("* is recommended: middle"));
}

#[test]
fn what_must_not_run_twice_is_not_traded_for_speed() {
    let mut hasty = summary("hasty", Some(1_000), 0.0, 0.0);
    hasty.at_most_once_violations = 1;
    let comparison = Comparison::of(vec![hasty, summary("safe", Some(900_000), 50.0, 5.0)]);
    let best = comparison.recommendation.unwrap();
    assert!(
        best.policy == "safe" && best.reason.contains("1 other(s) broke at-most-once more often"),
        "{}",
        best.reason
    );
}

#[test]
fn the_worst_seed_is_the_one_with_most_left_behind() {
    let mut bad = crashed();
    bad.seed = 7;
    bad.pods.pop();
    bad.runs.pop();
    let summary = Summary::of("salvor", "", &[Report::of(&crashed()), Report::of(&bad)]);
    assert_eq!((summary.worst_seed, summary.seeds, summary.lost, summary.not_recovered), (Some(7), 2, 2, 1));
    assert_eq!(summary.each.iter().map(|line| line.seed).collect::<Vec<_>>(), [1, 7]);
}

#[test]
fn a_page_is_one_file_and_treats_names_as_text() {
    let mut record = crashed();
    record.workloads[0].name = "<script>alert(1)</script>".to_owned();
    let report = Report::of(&record);
    let comparison = Comparison::of(vec![Summary::of("salvor", "", std::slice::from_ref(&report))]);
    let page = super::Page {
        title: "A & <b>",
        say: "",
        comparison: &comparison,
        worst: Some((&report, &record)),
        watch: Some("x && y"),
    };
    let text = super::html(&page);
    assert!(!text.contains("<script") && text.contains("&lt;script&gt;"), "{text}");
    assert!(
        !text.contains("http://") && !text.contains("https://") && text.contains("A &amp; &lt;b&gt;"),
        "{text}"
    );
    let plot = super::svg("x", &comparison);
    assert!(plot.starts_with("<svg") && plot.ends_with("</svg>\n"), "{plot}");
}

#[test]
fn shards_are_joined_to_what_one_machine_would_have_said() {
    let reports: Vec<Report> = (1..=4)
        .map(|seed| {
            let mut record = crashed();
            record.seed = seed;
            record.runs[1].from += Millis::try_from(seed).unwrap() * 7 * SECOND;
            Report::of(&record)
        })
        .collect();
    let whole = Comparison::of(vec![Summary::of("salvor", "note", &reports)]);
    let shard = |reports: &[Report]| {
        let part = Comparison::of(vec![Summary::of("salvor", "note", reports)]);
        let mut json = serde_json::to_value(&part).unwrap();
        json["scenario"] = "t".into();
        serde_json::from_value::<super::Shard>(json).unwrap()
    };
    // One seed was played twice, because a pod of the simulation was replaced.
    let joined = Comparison::joined(&[shard(&reports[2..]), shard(&reports[..3])]);
    assert_eq!(joined, whole);
}
