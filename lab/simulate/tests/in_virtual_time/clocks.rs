//! API servers whose clocks are wrong: no wait ends early, and recoveries continue.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use salvor_apiserver::{Effect, Fault, Faults};
use salvor_simulate::{Line, Process, in_virtual_time};
use serde_json::json;
use tokio::time::sleep;

use crate::stage::{Stage, configuration};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const TWO_HOURS: i64 = 7200;

/// Pods that ask for it are recovered a minute, or an hour, after their own grace period.
const RULES: &str = "failureRecoveryPolicy: {rules: [\
    {terminatePod: {podLabelSelector: {matchLabels: {after: minute}}, forcefulTerminationGracePeriod: 1m}},\
    {terminatePod: {podLabelSelector: {matchLabels: {after: hour}}, forcefulTerminationGracePeriod: 1h}}]}";

/// A lost node with a pod of either kind, and the operator behind these faults.
async fn set_up(faults: &Faults) -> (Stage, Process, Timestamp) {
    let stage = Stage::new(1).await;
    stage.node("node").await;
    stage.lose("node").await;
    let process = Process::start(&stage.cluster, "salvor", &configuration(RULES), Line::default(), faults);
    for after in ["minute", "hour"] {
        stage.terminating(after, "node", json!({"metadata": {"labels": {"after": after}}})).await;
    }
    let made = stage.cluster.now();
    (stage, process, made)
}

/// How long after the beginning a pod was declared dead.
fn failed_after(stage: &Stage, name: &str, since: Timestamp) -> Option<SignedDuration> {
    let is_it = |h: &crate::stage::Happening| {
        h.name() == format!("pods {name}") && h.object["status"]["phase"] == "Failed"
    };
    stage.first(is_it).map(|at| at.duration_since(since))
}

fn assert_within(passed: Option<SignedDuration>, from: Duration, to: Duration) {
    let (from, to) = (SignedDuration::try_from(from).unwrap(), SignedDuration::try_from(to).unwrap());
    assert!(
        passed.is_some_and(|passed| from <= passed && passed < to),
        "{passed:?}, not from {from} to {to}"
    );
}

/// One API server of several, two hours ahead or behind, answers every renewal of the Lease, or a single request.
#[test]
fn a_server_with_a_wrong_clock_ends_no_wait() {
    for (ahead, path, times) in [
        (TWO_HOURS, "/leases/salvor", None),
        (TWO_HOURS, "/leases/salvor", Some(1)),
        (TWO_HOURS, "watch=", Some(1)),
    ] {
        in_virtual_time(async {
            let faults = Faults::default();
            let fault = Fault { times, ..Fault::new(Effect::ClockAhead(ahead)).path(path) };
            faults.add(fault);
            let (stage, process, made) = set_up(&faults).await;
            sleep(10 * MINUTE).await;
            // Irreversible steps wait until the clock settles, and then continue.
            let settled = Duration::from_secs(100);
            assert_within(failed_after(&stage, "minute", made), MINUTE, settled);
            assert_eq!(failed_after(&stage, "hour", made), None);
            let clocks = if times.is_none() { 2 } else { 1 };
            let metrics = process.metrics();
            assert!(metrics.contains(&format!("\nsalvor_server_clocks {clocks}\n")), "{metrics}");
            sleep(2 * HOUR).await;
            assert_within(failed_after(&stage, "hour", made), HOUR, HOUR + MINUTE);
        });
    }
}

/// The first answers, for longer than a minute, all come from the server with the wrong clock.
#[test]
fn not_even_if_its_answers_are_the_first_ones() {
    in_virtual_time(async {
        let faults = Faults::default();
        faults.add(Fault::new(Effect::ClockAhead(TWO_HOURS)));
        let (stage, process, made) = set_up(&faults).await;
        sleep(Duration::from_secs(80)).await;
        assert_eq!(failed_after(&stage, "hour", made), None);
        let metrics = process.metrics();
        assert!(metrics.contains("by=\"ClockUnsettled\""), "{metrics}");
        faults.clear();
        faults.add(Fault::new(Effect::ClockAhead(TWO_HOURS)).path("/leases/salvor"));
        sleep(10 * MINUTE).await;
        assert_within(failed_after(&stage, "minute", made), MINUTE, 4 * MINUTE);
        assert_eq!(failed_after(&stage, "hour", made), None);
    });
}

/// All servers are set forward or back: the new time is adopted in bounded time.
#[test]
fn a_clock_that_is_really_set_is_adopted() {
    for ahead in [TWO_HOURS, -TWO_HOURS] {
        in_virtual_time(async {
            let faults = Faults::default();
            let (stage, process, made) = set_up(&faults).await;
            sleep(10 * MINUTE).await;
            assert_within(failed_after(&stage, "minute", made), MINUTE, 2 * MINUTE);
            faults.add(Fault::new(Effect::ClockAhead(ahead)));
            sleep(20 * MINUTE).await;
            let metrics = process.metrics();
            assert!(metrics.contains("\nsalvor_server_clocks 1\n"), "{metrics}");
            if ahead > 0 {
                assert_within(failed_after(&stage, "hour", made), 15 * MINUTE, 28 * MINUTE);
            } else {
                sleep(150 * MINUTE).await;
                assert_eq!(failed_after(&stage, "hour", made), None);
                sleep(10 * MINUTE).await;
                assert_within(failed_after(&stage, "hour", made), 180 * MINUTE, 182 * MINUTE);
            }
        });
    }
}
