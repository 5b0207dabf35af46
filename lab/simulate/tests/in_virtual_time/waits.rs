//! Waits and time-outs of minutes and hours, which are too long for real time.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use salvor_apiserver::Faults;
use salvor_simulate::{Line, Process, in_virtual_time};
use serde_json::json;
use tokio::time::sleep;

use crate::stage::{Stage, TERMINATE, annotated, configuration};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Without leader election: renewing a Lease is nearly all that would happen in a quiet hour.
fn start(stage: &Stage, lines: &str) -> Process {
    let configuration = configuration(&format!("leaderElection: {{enabled: false}}\n{lines}"));
    Process::start(&stage.cluster, "salvor", &configuration, Line::default(), &Faults::default())
}

/// When each pod became Failed, in order.
fn failures(stage: &Stage) -> Vec<Timestamp> {
    let mut seen = std::collections::BTreeSet::new();
    let all = stage.happenings().into_iter();
    let failed = all.filter(|h| h.resource == "pods" && h.object["status"]["phase"] == "Failed");
    failed.filter(|h| seen.insert(h.name())).map(|h| h.at).collect()
}

fn assert_within(at: Timestamp, since: Timestamp, from: Duration, to: Duration) {
    let passed = at.duration_since(since);
    let (from, to) = (SignedDuration::try_from(from).unwrap(), SignedDuration::try_from(to).unwrap());
    assert!(from <= passed && passed < to, "after {passed}, not from {from} to {to}");
}

#[test]
fn nothing_is_recovered_before_the_node_was_unreachable_for_the_minimum() {
    in_virtual_time(async {
        let stage = Stage::new(1).await;
        for node in ["lost", "back-in-time"] {
            stage.node(node).await;
        }
        let _salvor = start(&stage, "failureRecoveryPolicy: {minimumUnreachableDuration: 30m}");
        stage.terminating("on-lost", "lost", annotated(TERMINATE)).await;
        stage.terminating("on-the-other", "back-in-time", annotated(TERMINATE)).await;
        sleep(HOUR).await;
        let lost = stage.cluster.now();
        for node in ["lost", "back-in-time"] {
            stage.lose(node).await;
        }
        sleep(29 * MINUTE).await;
        stage.comes_back("back-in-time").await;
        sleep(24 * HOUR).await;
        let failures = failures(&stage);
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert_within(failures[0], lost, 30 * MINUTE, 30 * MINUTE + Duration::from_secs(5));
        assert_eq!(stage.phase("on-the-other").await, "Running");
    });
}

#[test]
fn a_node_is_out_of_service_after_the_hour_that_its_rule_asks_for() {
    in_virtual_time(async {
        let stage = Stage::new(1).await;
        stage.node("node").await;
        let rule = "{nodeSelector: {matchLabels: {pool: batch}}, unreachableNodeTimeout: 1h}";
        let _salvor =
            start(&stage, &format!("failureRecoveryPolicy: {{rules: [{{taintNodeOutOfService: {rule}}}]}}"));
        let tainted = || {
            stage.first(|h| {
                h.resource == "nodes" && h.object["spec"]["taints"].to_string().contains("out-of-service")
            })
        };
        // Lost and found again: this must not count.
        stage.lose("node").await;
        sleep(59 * MINUTE).await;
        stage.comes_back("node").await;
        sleep(MINUTE).await;
        let lost = stage.cluster.now();
        stage.lose("node").await;
        sleep(59 * MINUTE).await;
        assert_eq!(tainted(), None);
        sleep(HOUR).await;
        assert_within(tainted().unwrap(), lost, HOUR, HOUR + Duration::from_secs(5));
    });
}

/// Across changes of leader: in no minute more than the budget, and all of them in the end.
#[test]
fn the_budget_of_a_minute_holds_over_crashes_of_the_leader() {
    in_virtual_time(async {
        let stage = Stage::new(1).await;
        stage.node("node").await;
        stage.lose("node").await;
        for number in 0..40 {
            stage.terminating(&format!("zombie-{number}"), "node", annotated(TERMINATE)).await;
        }
        let lines = "brake: {maxPodsPerMinute: 5}\nleaderElection: {leaseDuration: 5s, renewDeadline: 3s, retryPeriod: 1s}";
        let configuration = configuration(lines);
        for life in 0..60 {
            let name = format!("salvor-{life}");
            let salvor =
                Process::start(&stage.cluster, &name, &configuration, Line::default(), &Faults::default());
            sleep(Duration::from_secs(37)).await;
            // Admissions are recorded with the next renewal; another test covers a kill before that.
            drop(salvor);
        }
        let failures = failures(&stage);
        assert_eq!(failures.len(), 40);
        for window in failures.windows(6) {
            let passed = window[5].duration_since(window[0]);
            assert!(passed >= SignedDuration::from_secs(60), "six pods within {passed}");
        }
    });
}

#[test]
fn while_most_nodes_are_lost_nothing_happens_for_hours_and_then_everything() {
    in_virtual_time(async {
        let stage = Stage::new(1).await;
        let _salvor = start(&stage, "");
        for number in 0..10 {
            stage.node(&format!("node-{number}")).await;
        }
        for number in 0..6 {
            let node = format!("node-{number}");
            stage.lose(&node).await;
            stage.terminating(&format!("zombie-{number}"), &node, annotated(TERMINATE)).await;
        }
        sleep(6 * HOUR).await;
        assert_eq!(failures(&stage), []);
        let found = stage.cluster.now();
        stage.comes_back("node-0").await;
        sleep(HOUR).await;
        let failures = failures(&stage);
        assert_eq!(failures.len(), 5, "all but the one whose node is back");
        let settled = Duration::from_secs(50);
        assert_within(failures[0], found, settled, settled + Duration::from_secs(3));
        assert_within(
            failures[4],
            found,
            settled + Duration::from_secs(10),
            settled + Duration::from_secs(15),
        );
        let told = |name: &str| stage.changes().keys().filter(|what| what.contains(name)).count();
        assert_eq!((told("salvor-brake-engaged"), told("salvor-brake-released")), (1, 1));
    });
}

/// A partition heals: 4 of 6 nodes, two seconds apart. Across changes of leader, no pod on a node that comes back is
/// declared dead, and the pod of the node that stays away is, in the end.
#[test]
fn while_nodes_come_back_one_after_the_other_none_of_their_pods_is_declared_dead() {
    for crash in [false, true] {
        in_virtual_time(async {
            let stage = Stage::new(1).await;
            for number in 0..6 {
                stage.node(&format!("node-{number}")).await;
            }
            let lines = "leaderElection: {leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 1s}";
            let process = |name: &str| {
                let configuration = configuration(lines);
                Process::start(&stage.cluster, name, &configuration, Line::default(), &Faults::default())
            };
            let mut salvor = process("first");
            sleep(MINUTE).await;
            for number in 0..5 {
                let node = format!("node-{number}");
                stage.lose(&node).await;
                stage.terminating(&format!("zombie-{number}"), &node, annotated(TERMINATE)).await;
            }
            sleep(10 * MINUTE).await;
            assert_eq!(failures(&stage), []);
            for number in 0..4 {
                stage.comes_back(&format!("node-{number}")).await;
                sleep(Duration::from_secs(2)).await;
                // With the third one, the number of lost nodes falls below the limit.
                if crash && number == 2 {
                    drop(salvor);
                    salvor = process("second");
                }
            }
            let back = stage.cluster.now();
            sleep(HOUR).await;
            let failures = failures(&stage);
            assert_eq!(failures.len(), 1, "only the pod of the node that stays away: {failures:?}");
            assert_within(failures[0], back, Duration::from_secs(45), MINUTE);
            assert_eq!(stage.phase("zombie-4").await, "Failed");
            drop(salvor);
        });
    }
}

/// A rack loses its switch, and a user requests the eviction of all its nodes; then they come back one after the other.
#[test]
fn while_the_nodes_of_a_zone_come_back_no_eviction_of_the_others_begins() {
    in_virtual_time(async {
        let stage = Stage::new(1).await;
        for (zone, nodes) in [("rack", 6), ("other", 10)] {
            for number in 0..nodes {
                let name = format!("{zone}-{number}");
                stage.node(&name).await;
                let label = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
                let label = kube::api::Patch::Merge(label);
                stage.nodes().patch(&name, &kube::api::PatchParams::default(), &label).await.unwrap();
            }
        }
        let _salvor = start(&stage, "controllers: [eviction]");
        sleep(MINUTE).await;
        for number in 0..6 {
            stage.lose(&format!("rack-{number}")).await;
        }
        for number in 0..6 {
            let name = format!("rack-{number}");
            let mut node = stage.nodes().get(&name).await.unwrap();
            let asked = json!({"key": "salvor.dev/force-eviction", "effect": "NoSchedule"});
            let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
            taints.push(serde_json::from_value(asked).unwrap());
            stage.nodes().replace(&name, &kube::api::PostParams::default(), &node).await.unwrap();
        }
        sleep(10 * MINUTE).await;
        let begun = || {
            let begun = |h: &&crate::stage::Happening| {
                h.resource == "nodes"
                    && h.object["metadata"]["annotations"]["eviction.salvor.dev/progress"].is_string()
            };
            let all = stage.happenings();
            let names: std::collections::BTreeSet<String> =
                all.iter().filter(begun).map(crate::stage::Happening::name).collect();
            (names, all.iter().find(begun).map(|h| h.at))
        };
        assert_eq!(begun().0.len(), 0);
        for number in 0..5 {
            stage.comes_back(&format!("rack-{number}")).await;
            sleep(Duration::from_secs(2)).await;
        }
        let back = stage.cluster.now();
        sleep(10 * MINUTE).await;
        let (names, first) = begun();
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["nodes rack-5"]);
        assert_within(first.unwrap(), back, Duration::from_secs(45), MINUTE);
    });
}

/// Most machines are switched off to save power. They block recoveries for a day, or not at all if they are labelled.
#[test]
fn parked_machines_hold_nothing_up_for_ever() {
    for excluded in [false, true] {
        in_virtual_time(async {
            let stage = Stage::new(1).await;
            for number in 0..10 {
                stage.node(&format!("node-{number}")).await;
            }
            let _salvor = start(&stage, "");
            sleep(MINUTE).await;
            let parked = stage.cluster.now();
            for number in 0..7 {
                let name = format!("node-{number}");
                if excluded {
                    let label =
                        json!({"metadata": {"labels": {"node.kubernetes.io/exclude-disruption": "true"}}});
                    let label = kube::api::Patch::Merge(label);
                    stage.nodes().patch(&name, &kube::api::PatchParams::default(), &label).await.unwrap();
                }
                stage.lose(&name).await;
            }
            sleep(12 * HOUR).await;
            let lost = stage.cluster.now();
            stage.lose("node-9").await;
            stage.terminating("zombie", "node-9", annotated(TERMINATE)).await;
            sleep(36 * HOUR).await;
            let failures = failures(&stage);
            assert_eq!(failures.len(), 1);
            if excluded {
                assert_within(failures[0], lost, MINUTE, 2 * MINUTE);
            } else {
                assert_within(failures[0], parked, 24 * HOUR, 24 * HOUR + 2 * MINUTE);
            }
        });
    }
}

/// A partitioned leader writes nothing from the moment at which another may lead. Its clock is wrong by an hour, which
/// must not matter.
#[test]
fn a_leader_that_is_cut_off_gives_up_before_another_takes_over() {
    in_virtual_time(async {
        let stage = Stage::new(1).await;
        stage.node("node").await;
        stage.lose("node").await;
        let configuration = configuration("");
        let (cut_off, reachable) = (Faults::default(), Faults::default());
        let fast = stage.cluster.now() + SignedDuration::from_hours(1);
        let process = |name: &str, now, faults: &Faults| {
            Process::with_clock(&stage.cluster, now, name, &configuration, Line::default(), faults)
        };
        let first = process("first", fast, &cut_off);
        sleep(Duration::from_secs(5)).await;
        let second = process("second", stage.cluster.now(), &reachable);
        let leads = |process: &Process| process.metrics().contains("\nsalvor_leader 1\n");
        sleep(MINUTE).await;
        assert!(leads(&first) && !leads(&second));
        stage.terminating("zombie", "node", json!({
            "metadata": {"annotations": {TERMINATE: "true"}}, "spec": {"terminationGracePeriodSeconds": 4},
        }))
        .await;
        let marked = stage.cluster.now();
        sleep(Duration::from_secs(55)).await;
        assert_eq!(failures(&stage), [], "not early, although its own clock is an hour ahead");
        // Ten seconds before the zombie becomes due the leader is partitioned.
        cut_off.pause();
        let mut second_led_after = None;
        for second_of_it in 0..60 {
            sleep(Duration::from_secs(1)).await;
            assert!(!(leads(&first) && leads(&second)), "two leaders after {second_of_it} s");
            if leads(&second) && second_led_after.is_none() {
                second_led_after = Some(second_of_it);
            }
        }
        assert!((9..=20).contains(&second_led_after.unwrap()), "{second_led_after:?}");
        let failures_before = failures(&stage);
        assert_eq!(failures_before.len(), 1);
        assert_within(failures_before[0], marked, Duration::from_secs(64), Duration::from_secs(75));
        let writes = first.line().writes();
        cut_off.resume();
        sleep(HOUR).await;
        assert_eq!(first.line().writes(), writes, "the old leader only follows");
        assert_eq!(
            stage.changes().iter().filter(|(what, _)| what.starts_with("Added events zombie")).count(),
            1
        );
        // When the new leader stops gracefully, the old one leads again at once.
        second.stop().await;
        sleep(Duration::from_secs(5)).await;
        assert!(leads(&first));
    });
}

/// A cache that is no longer confirmed is not acted on, however long that lasts.
#[test]
fn on_a_line_that_is_half_open_nothing_is_done_until_it_is_open_again() {
    in_virtual_time(async {
        let stage = Stage::new(1).await;
        stage.node("node").await;
        stage.lose("node").await;
        let faults = Faults::default();
        let configuration = configuration("leaderElection: {enabled: false}");
        let salvor = Process::start(&stage.cluster, "salvor", &configuration, Line::default(), &faults);
        sleep(MINUTE).await;
        stage.terminating("zombie", "node", annotated(TERMINATE)).await;
        sleep(Duration::from_secs(10)).await;
        faults.pause();
        sleep(12 * HOUR).await;
        assert_eq!(failures(&stage), []);
        let writes = salvor.line().writes();
        assert!(writes <= 1, "{writes} writes were tried on an old view");
        faults.resume();
        sleep(10 * MINUTE).await;
        assert_eq!(failures(&stage).len(), 1);
    });
}
