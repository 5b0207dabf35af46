use std::collections::BTreeMap;

use super::*;
use crate::script::{PREFIX, PodScript};

const BACKOFF: RestartBackoff = RestartBackoff {
    base: Duration::from_secs(10),
    max: Duration::from_secs(40),
    reset_after: Duration::from_secs(600),
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A run as (container, start, end with exit code), in seconds.
type Seen = (String, i64, Option<(i64, i32)>);

/// A pod of the given containers, in a world with its own ground truth.
struct Bench {
    pod: PodRuntime,
    truth: GroundTruth,
    kubelet_runs: bool,
}

impl Bench {
    fn new(policy: RestartPolicy, containers: &[(&str, Role)], script: &[(&str, &str)]) -> Self {
        let annotations: BTreeMap<_, _> =
            script.iter().map(|(k, v)| (format!("{PREFIX}{k}"), (*v).to_owned())).collect();
        let script = PodScript::parse(&annotations).unwrap();
        let spec = PodSpecView {
            containers: containers
                .iter()
                .map(|&(name, role)| ContainerSpec {
                    name: name.into(),
                    image: "image".into(),
                    role,
                    script: script.container(name),
                })
                .collect(),
            restart_policy: policy,
            grace: Duration::from_secs(30),
            active_deadline: None,
            claims: vec![],
            work: vec![Work::Job { job: "job".into() }],
            script_error: None,
        };
        let id = PodId { namespace: "ns".into(), name: "pod".into(), uid: "uid".into() };
        let mut pod = PodRuntime::new(&id, &spec, at(0));
        pod.mounted(at(0), vec![]);
        Self { pod, truth: GroundTruth::default(), kubelet_runs: true }
    }

    fn advance(&mut self, second: i64) -> Option<i64> {
        let world =
            World { node: "node", truth: &self.truth, backoff: BACKOFF, kubelet_runs: self.kubelet_runs };
        self.pod.advance(at(second), &world).map(Timestamp::as_second)
    }

    fn runs(&self) -> Vec<Seen> {
        let run = |r: Run| (r.container, r.from.as_second(), r.ended.map(|(t, c)| (t.as_second(), c)));
        self.truth.runs().into_iter().map(run).collect()
    }
}

fn run(container: &str, from: i64, end: Option<(i64, i32)>) -> Seen {
    (container.to_owned(), from, end)
}

#[test]
fn a_container_ends_at_its_own_instant_however_late_anybody_looks() {
    let mut bench = Bench::new(RestartPolicy::Never, &[("main", Role::Main)], &[("run-for", "5s")]);
    assert_eq!(bench.advance(0), Some(5));
    assert!(bench.pod.is_ready());
    assert_eq!(bench.advance(1000), None);
    assert_eq!(bench.runs(), [run("main", 0, Some((5, 0)))]);
    assert_eq!(bench.pod.terminal(), Some(TerminalPhase::Succeeded));
}

#[test]
fn a_start_delay_and_an_image_error_hold_the_start_back() {
    let script = [("start-delay", "3s"), ("image-error", "slow=9s")];
    let mut bench = Bench::new(RestartPolicy::Never, &[("main", Role::Main), ("slow", Role::Main)], &script);
    assert_eq!(bench.advance(3), Some(9));
    assert!(!bench.pod.is_ready());
    bench.advance(9);
    assert_eq!(bench.runs(), [run("main", 3, None), run("slow", 9, None)]);
}

#[test]
fn init_containers_run_in_turn_and_sidecars_beside_the_rest() {
    let containers =
        [("fetch", Role::Init), ("log", Role::Sidecar), ("warm", Role::Init), ("main", Role::Main)];
    let script = [("run-for", "fetch=2s,warm=3s,main=4s"), ("ignore-sigterm", "log=1s")];
    let mut bench = Bench::new(RestartPolicy::Never, &containers, &script);
    bench.advance(4);
    assert!(!bench.pod.is_initialized());
    bench.advance(100);
    assert_eq!(
        bench.runs(),
        [
            run("fetch", 0, Some((2, 0))),
            run("log", 2, Some((10, 143))),
            run("warm", 2, Some((5, 0))),
            run("main", 5, Some((9, 0))),
        ]
    );
    assert_eq!(bench.pod.terminal(), Some(TerminalPhase::Succeeded));
}

#[test]
fn a_failed_init_container_ends_a_pod_that_never_restarts() {
    let containers = [("init", Role::Init), ("main", Role::Main)];
    let mut bench = Bench::new(RestartPolicy::Never, &containers, &[("exit-code", "init=2")]);
    bench.advance(10);
    assert_eq!(bench.pod.terminal(), Some(TerminalPhase::Failed));
    assert_eq!(bench.runs(), [run("init", 0, Some((0, 2)))]);
}

#[test]
fn restarts_back_off_and_follow_the_policy() {
    let script = [("run-for", "1s"), ("exit-code", "1")];
    let mut bench = Bench::new(RestartPolicy::OnFailure, &[("main", Role::Main)], &script);
    bench.advance(80);
    let starts: Vec<i64> = bench.runs().iter().map(|r| r.1).collect();
    // The first restart is immediate, then 10, 20, 40 seconds after each end.
    assert_eq!(starts, [0, 1, 12, 33, 74]);
    assert_eq!(bench.pod.terminal(), None);
    let mut done = Bench::new(RestartPolicy::OnFailure, &[("main", Role::Main)], &[("run-for", "1s")]);
    done.advance(80);
    assert_eq!(done.runs().len(), 1);
    assert_eq!(done.pod.terminal(), Some(TerminalPhase::Succeeded));
}

#[test]
fn the_first_runs_fail_if_the_script_says_so() {
    let script = [("run-for", "1s"), ("fail-first", "2")];
    let mut bench = Bench::new(RestartPolicy::OnFailure, &[("main", Role::Main)], &script);
    bench.advance(1000);
    let codes: Vec<_> = bench.runs().iter().map(|r| r.2.unwrap().1).collect();
    assert_eq!(codes, [1, 1, 0]);
}

#[test]
fn sigterm_is_obeyed_or_ignored_until_the_grace_is_over() {
    for (script, end) in [
        (vec![], (10, 143)),
        (vec![("ignore-sigterm", "5s")], (15, 143)),
        (vec![("ignore-sigterm", "forever")], (40, 137)),
        (vec![("sigterm-exit-code", "0")], (10, 0)),
        (vec![("ignore-sigterm", "forever"), ("run-for", "12s")], (12, 0)),
    ] {
        let mut bench = Bench::new(RestartPolicy::Always, &[("main", Role::Main)], &script);
        bench.advance(10);
        bench.pod.stop(at(10), Duration::from_secs(30));
        bench.advance(1000);
        assert_eq!(bench.runs(), [run("main", 0, Some(end))], "{script:?}");
        assert!(bench.pod.terminal().is_some());
    }
}

#[test]
fn a_shorter_grace_wins_and_a_longer_one_does_not() {
    let script = [("ignore-sigterm", "forever")];
    for (second_grace, killed_at) in [(3, 15), (300, 40)] {
        let mut bench = Bench::new(RestartPolicy::Never, &[("main", Role::Main)], &script);
        bench.advance(10);
        bench.pod.stop(at(10), Duration::from_secs(30));
        bench.advance(12);
        bench.pod.stop(at(12), Duration::from_secs(second_grace));
        bench.advance(1000);
        assert_eq!(bench.runs(), [run("main", 0, Some((killed_at, 137)))]);
    }
}

#[test]
fn without_a_kubelet_containers_end_but_none_is_started() {
    let mut bench = Bench::new(RestartPolicy::Always, &[("main", Role::Main)], &[("run-for", "5s")]);
    bench.advance(2);
    bench.kubelet_runs = false;
    assert_eq!(bench.advance(50), None);
    assert_eq!(bench.runs(), [run("main", 0, Some((5, 0)))]);
    bench.kubelet_runs = true;
    bench.advance(50);
    assert_eq!(bench.runs()[1], run("main", 50, None), "restarted when the kubelet looks, not in the past");
}

#[test]
fn power_off_ends_everything_at_that_instant() {
    let mut bench = Bench::new(RestartPolicy::Never, &[("main", Role::Main)], &[]);
    bench.advance(7);
    bench.pod.power_off(at(7), &bench.truth);
    assert_eq!(bench.runs(), [run("main", 0, Some((7, 255)))]);
    assert_eq!(bench.pod.terminal(), Some(TerminalPhase::Failed));
}
