//! Schedules that once broke an invariant, as found by the swarm or by a person. Seeds change with the swarm; these do
//! not.

use salvor_apiserver::Effect;
use salvor_simulate::swarm::{
    Call, Consent, Deed, Deeds, JobPlan, Move, NodeFault, Plan, PodPlan, Settings, Watched, Workloads, play,
};

/// A pool of two nodes under a NodeRepairPolicy, with these moves.
fn repairs(toleration: u32, moves: Vec<Move>) -> Plan {
    let settings = Settings {
        zombie: true,
        eviction: true,
        repair: true,
        pods_per_minute: 0,
        writes: 32,
        out_of_service: None,
        budget: 1,
        toleration,
        unowned: None,
    };
    Plan { seed: 1, nodes: 3, pool: 2, replicas: 1, workloads: Workloads::default(), settings, moves }
}

/// Like `repairs`, without the pool.
fn no_repairs(workloads: Workloads, moves: Vec<Move>) -> Plan {
    let plan = repairs(900, moves);
    let settings = Settings { repair: false, ..plan.settings };
    Plan { pool: 0, workloads, settings, ..plan }
}

/// A Job of two completions, one after the other, whose first pod fails.
fn two_in_turn(pod: PodPlan, waits_for_the_end: bool, takes: u32) -> Workloads {
    let job =
        JobPlan { pod, indexed: false, completions: 2, parallelism: 1, waits_for_the_end, takes, fails: 1 };
    Workloads { jobs: vec![job], ..Workloads::default() }
}

/// Plays a plan that must break nothing. Returns what was done in it.
fn unbroken(plan: &Plan) -> Deeds {
    let outcome = play(plan);
    assert!(outcome.violations.is_empty(), "{:#?}\n{plan}", outcome.violations);
    outcome.deeds
}

fn holds(plan: &Plan) {
    let deeds = unbroken(plan);
    assert!(deeds.repairs > 0, "nothing was repaired: {deeds:?}");
}

/// Our time is the earliest that the server's clock can show: a transition of this second was mistaken for one of the
/// second before.
#[test]
fn a_repair_begins_no_second_early() {
    let sick = Deed::Sick { node: "gpu-2".into(), lasts: None };
    holds(&repairs(111, vec![Move { at: 42, deed: sick }]));
}

/// By a clock that is an hour behind, a node that becomes unhealthy now does so in an hour. It was recorded as
/// unhealthy since an hour ago, by the right clock, and repaired as soon as the wrong clock was discarded.
#[test]
fn a_clock_that_was_behind_makes_no_repair_early() {
    let behind = Deed::Clock { replica: 0, call: Call::Any, ahead: -3600, lasts: 60 };
    let sick = Deed::Sick { node: "gpu-2".into(), lasts: None };
    holds(&repairs(900, vec![Move { at: 90, deed: behind }, Move { at: 100, deed: sick }]));
}

/// The same by less than a second: our time is the earliest that the server's clock can show, and was mistaken for the
/// time of the transition.
#[test]
fn a_clock_that_is_behind_makes_no_repair_a_second_early() {
    let behind = Deed::Clock { replica: 0, call: Call::Renewal, ahead: -3600, lasts: 83 };
    let sick = Deed::Sick { node: "gpu-1".into(), lasts: None };
    holds(&repairs(263, vec![Move { at: 406, deed: behind }, Move { at: 483, deed: sick }]));
}

/// The same, and the agent rewrites the transition: then our time counted permanently, and was early by the error of
/// that clock.
#[test]
fn an_agent_that_rewrites_a_transition_while_a_clock_is_behind_makes_no_repair_early() {
    let behind = Deed::Clock { replica: 0, call: Call::Any, ahead: -90, lasts: 60 };
    let sick = || Deed::Sick { node: "gpu-2".into(), lasts: None };
    let moves =
        vec![Move { at: 90, deed: behind }, Move { at: 100, deed: sick() }, Move { at: 107, deed: sick() }];
    holds(&repairs(900, moves));
}

/// The same for a node that was unhealthy before: its record was moved back by an hour.
#[test]
fn a_clock_that_falls_behind_makes_no_repair_early() {
    let behind = Deed::Clock { replica: 0, call: Call::Any, ahead: -3600, lasts: 60 };
    let sick = Deed::Sick { node: "gpu-2".into(), lasts: None };
    holds(&repairs(900, vec![Move { at: 60, deed: sick }, Move { at: 120, deed: behind }]));
}

/// Most nodes are lost, so the brake blocks a repair that has its turn. It was considered stuck 15 minutes after its
/// turn was given, though it had just begun, and the next one began beside it.
#[test]
fn a_repair_that_the_brake_held_is_not_taken_for_stuck_when_it_begins() {
    let lost = |node: &str| Deed::Node { node: node.into(), fault: NodeFault::Crash, lasts: None };
    let sick = |node: &str| Deed::Sick { node: node.into(), lasts: None };
    let moves = vec![
        Move { at: 119, deed: lost("gpu-1") },
        Move { at: 182, deed: lost("node-4") },
        Move { at: 341, deed: sick("gpu-2") },
        Move { at: 343, deed: sick("gpu-1") },
        Move {
            at: 343,
            deed: Deed::Node { node: "gpu-3".into(), fault: NodeFault::Crash, lasts: Some(367) },
        },
        Move { at: 515, deed: lost("node-2") },
    ];
    holds(&Plan { nodes: 4, pool: 3, ..repairs(215, moves) });
}

/// By a clock that is an hour behind, nothing is due for an hour. Timers were set to their maximum of ten minutes, and
/// fired late after that clock was discarded.
#[test]
fn a_clock_that_was_behind_delays_no_recovery_once_it_is_given_up() {
    let lost = Deed::Node { node: "node-1".into(), fault: NodeFault::Crash, lasts: None };
    let behind = Deed::Clock { replica: 0, call: Call::Any, ahead: -3600, lasts: 400 };
    let pod = PodPlan { consent: Consent::Terminate, grace: 5, tolerates: 5 };
    let workloads = Workloads { pods: vec![pod; 6], ..Workloads::default() };
    let moves = vec![Move { at: 60, deed: behind }, Move { at: 100, deed: lost }];
    let deeds = unbroken(&no_repairs(workloads, moves));
    assert!(deeds.pods_failed > 0, "nothing was recovered: {deeds:?}");
}

/// A repair that began by such a clock was older than its policy. The list of repairs was then never trusted again.
#[test]
fn a_repair_that_begins_while_a_clock_is_behind_is_believed_afterwards() {
    let behind = Deed::Clock { replica: 0, call: Call::Any, ahead: -3600, lasts: 600 };
    let sick = Deed::Sick { node: "gpu-2".into(), lasts: None };
    holds(&repairs(60, vec![Move { at: 20, deed: behind }, Move { at: 100, deed: sick }]));
}

/// The same for an eviction that was older than its Node: it was not trusted, and never finished.
#[test]
fn an_eviction_that_starts_while_a_clock_is_behind_is_believed_afterwards() {
    let lost = Deed::Node { node: "node-1".into(), fault: NodeFault::KubeletStop, lasts: None };
    let behind = Deed::Clock { replica: 0, call: Call::Renewal, ahead: -3600, lasts: 400 };
    let evicted = Deed::Evict { node: "node-1".into(), stops: None };
    let moves =
        vec![Move { at: 139, deed: lost }, Move { at: 263, deed: behind }, Move { at: 334, deed: evicted }];
    let deeds = unbroken(&no_repairs(Workloads::default(), moves));
    assert!(deeds.evictions > 0, "nothing was evicted: {deeds:?}");
}

/// The refusal of one write made eviction forget that of the other, and it sent both in turn, without backoff.
#[test]
fn a_webhook_that_denies_every_patch_of_a_node_is_not_asked_without_end() {
    let denied = Deed::Refused { call: Call::PatchNode, effect: Effect::Denied, lasts: 300 };
    let lost = Deed::Node { node: "node-2".into(), fault: NodeFault::Crash, lasts: None };
    let evicted = Deed::Evict { node: "node-2".into(), stops: None };
    let moves =
        vec![Move { at: 90, deed: denied }, Move { at: 100, deed: lost }, Move { at: 110, deed: evicted }];
    let deeds = unbroken(&no_repairs(Workloads::default(), moves));
    assert!(deeds.evictions > 0, "nothing was evicted: {deeds:?}");
}

/// Lists that are older than the state seen before end a history. So did each watch of the pods of an evicted node,
/// which came and went with every list of nodes: everything was listed again and again, without backoff.
#[test]
fn lists_that_go_back_while_a_node_is_evicted_are_not_asked_for_without_end() {
    let backwards = Deed::Backwards { replica: 0, revisions: 376, lasts: 129 };
    let evicted = Deed::Evict { node: "node-3".into(), stops: Some(78) };
    let pod = PodPlan { consent: Consent::Terminate, grace: 2, tolerates: 1 };
    let workloads = Workloads { pods: vec![pod; 10], ..Workloads::default() };
    let moves = vec![Move { at: 670, deed: backwards }, Move { at: 719, deed: evicted }];
    unbroken(&no_repairs(workloads, moves));
}

/// After a restore the lists of Jobs and pods are trusted when their watches have caught up. That was noticed only with
/// the next watch event, which never came in a quiet cluster.
#[test]
fn a_job_goes_on_after_a_restore_although_nothing_else_happens() {
    let pod = PodPlan { consent: Consent::Delete, grace: 4, tolerates: 9 };
    let workloads = two_in_turn(pod, false, 197);
    let restore = Deed::Restore { lasts: 40 };
    let stopped = Deed::Stop { replica: 0, lasts: 22 };
    let moves = vec![Move { at: 577, deed: restore }, Move { at: 604, deed: stopped }];
    unbroken(&no_repairs(workloads, moves));
}

/// A Lease in a backup is old, also that of a kubelet that has come back since. A node whose eviction had been
/// requested before the backup was evicted seconds after the restore.
#[test]
fn nobody_is_evicted_by_the_leases_of_a_backup() {
    let flaps = Deed::Node { node: "node-3".into(), fault: NodeFault::Flap, lasts: None };
    let evicted = Deed::Evict { node: "node-3".into(), stops: None };
    let restore = Deed::Restore { lasts: 68 };
    let pod = PodPlan { consent: Consent::Delete, grace: 7, tolerates: 7 };
    // More than the budget of the minutes before allows.
    let workloads = Workloads { pods: vec![pod; 15], ..Workloads::default() };
    let moves =
        vec![Move { at: 410, deed: flaps }, Move { at: 451, deed: evicted }, Move { at: 465, deed: restore }];
    let plan = no_repairs(workloads, moves);
    let deeds = unbroken(&Plan { settings: Settings { pods_per_minute: 2, ..plan.settings }, ..plan });
    assert!(deeds.pods_failed > 0, "nobody was evicted: {deeds:?}");
}

/// A list of pods without a resourceVersion was trusted, although others had returned theirs before: it was empty, and
/// a pod too many was created.
#[test]
fn a_list_that_tells_no_revision_is_not_taken_for_the_present() {
    let pod = PodPlan { consent: Consent::Delete, grace: 11, tolerates: 38 };
    let workloads = two_in_turn(pod, true, 139);
    let backwards = Deed::Backwards { replica: 0, revisions: 100_000, lasts: 251 };
    let unrenewed = Deed::Unrenewed { replica: 0, effect: Effect::RequestLost, lasts: 57 };
    let unlisted =
        Deed::Unlisted { replica: 0, watch: Watched::Pods, effect: Effect::InternalError, lasts: 336 };
    let moves = vec![
        Move { at: 146, deed: backwards },
        Move { at: 152, deed: unrenewed },
        Move { at: 208, deed: unlisted },
    ];
    unbroken(&no_repairs(workloads, moves));
}
