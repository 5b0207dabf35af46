//! Plans for cases that random plans seldom reach: a budget that must survive restarts, more nodes to repair than the
//! repair budget allows, an API that goes back to a backup, AppWrappers of work that must not run twice, and repairs of
//! nodes without an owner.

use fastrand::Rng;

use super::{
    deed::{Deed, Move, NodeFault},
    plan::{Consent, Plan, PodPlan, TROUBLE, UnownedPolicy, Wrapped},
};
use crate::{CrashPoint, Side};

/// One in this many seeds is a drill, for each kind of drill.
const ONE_IN: u8 = 8;
/// At most this many moves of the original plan are kept: drills meet other faults too.
const KEPT: usize = 2;

/// Turns some plans into drills, and leaves all others unchanged.
pub(super) fn drill(plan: &mut Plan, rng: &mut Rng) {
    let moves = match rng.u8(..ONE_IN) {
        0 => {
            // With these deeds, a restart may admit the budget twice.
            plan.moves.retain(|it| !it.deed.is_counted_late());
            restarts(plan, rng)
        }
        1 => repairs(plan, rng),
        3 => wrapped(plan, rng),
        4 => unowned(plan, rng),
        // Machines that were launched or terminated since the backup would need separate handling.
        2 if plan.pool == 0 => {
            let restore = Deed::Restore { lasts: rng.u64(20..90) };
            plan.moves.push(Move { at: rng.u64(60..600), deed: restore });
            return plan.moves.sort_by_key(|it| it.at);
        }
        _ => return,
    };
    let mut kept = std::mem::take(&mut plan.moves);
    kept.retain(|it| !matches!(it.deed, Deed::Node { .. } | Deed::Sick { .. }));
    rng.shuffle(&mut kept);
    kept.truncate(rng.usize(..=KEPT));
    plan.moves = moves;
    plan.moves.extend(kept);
    plan.moves.sort_by_key(|it| it.at);
}

/// The pods of two nodes become due at once, for several minutes of the budget, and the leader is restarted repeatedly.
fn restarts(plan: &mut Plan, rng: &mut Rng) -> Vec<Move> {
    let consent = [Consent::Terminate, Consent::Delete][rng.usize(..2)];
    let pod = PodPlan { consent, grace: rng.u32(1..10), tolerates: rng.u32(1..10) };
    plan.workloads.pods = vec![pod; 10];
    plan.pool = 0;
    plan.settings.repair = false;
    plan.settings.zombie = true;
    plan.settings.pods_per_minute = rng.u32(1..=2);
    plan.settings.out_of_service = None;
    let lost = rng.u64(30..150);
    let crash = |number| Deed::Node { node: format!("node-{number}"), fault: NodeFault::Crash, lasts: None };
    let mut moves: Vec<Move> = (1..=2).map(|number| Move { at: lost, deed: crash(number) }).collect();
    // The node is lost after 40 to 50 seconds; the toleration, the grace period and the wait of a minute follow.
    let mut at = lost + rng.u64(115..150);
    for _ in 0..rng.usize(4..=7) {
        let replica = rng.usize(..plan.replicas);
        let deeds = match rng.u8(..6) {
            0 => vec![Deed::Kill { replica }],
            1 => vec![Deed::Crash { replica, point: CrashPoint::After(rng.u32(1..=3)) }],
            2 => vec![Deed::CrashAtRenewal { replica, side: Side::After }],
            // A rollout.
            _ => (0..plan.replicas).map(|replica| Deed::Restart { replica }).collect(),
        };
        moves.extend(deeds.into_iter().map(|deed| Move { at: at.min(TROUBLE - 1), deed }));
        // A new process watches a Lease for 20 seconds before it acts: the minute of the previous process is not over
        // by then.
        at += rng.u64(25..50);
    }
    moves
}

/// Nodes are partitioned, or die, under an AppWrapper whose work must not run twice, or may.
fn wrapped(plan: &mut Plan, rng: &mut Rng) -> Vec<Move> {
    plan.workloads.apps = 1;
    plan.workloads.wrapped =
        [Wrapped::StatefulSet, Wrapped::StatefulSet, Wrapped::Pod, Wrapped::LeaderWorkerSet][rng.usize(..4)];
    plan.settings.out_of_service = None;
    lost_nodes(plan, rng)
}

/// Nodes without an owner are partitioned, or die, under a repair policy.
fn unowned(plan: &mut Plan, rng: &mut Rng) -> Vec<Move> {
    plan.pool = 0;
    plan.workloads.set = 2;
    plan.settings.repair = true;
    plan.settings.unowned = Some(UnownedPolicy { graceful: rng.bool(), deletes: rng.bool() });
    plan.settings.toleration = rng.u32(60..240);
    plan.settings.out_of_service = None;
    lost_nodes(plan, rng)
}

/// Two nodes are lost, one after the other; most come back.
fn lost_nodes(plan: &Plan, rng: &mut Rng) -> Vec<Move> {
    let faults = [NodeFault::Partition, NodeFault::Partition, NodeFault::KubeletStop, NodeFault::Crash];
    let mut numbers: Vec<usize> = (1..=plan.nodes).collect();
    rng.shuffle(&mut numbers);
    let lost = |number: &usize| {
        let fault = faults[rng.usize(..faults.len())];
        let lasts = (rng.u8(..4) > 0).then(|| rng.u64(200..600));
        Move { at: rng.u64(30..200), deed: Deed::Node { node: format!("node-{number}"), fault, lasts } }
    };
    numbers.iter().take(2).map(lost).collect()
}

/// One more node becomes unhealthy than the budget allows.
fn repairs(plan: &mut Plan, rng: &mut Rng) -> Vec<Move> {
    plan.pool = 4;
    plan.settings.repair = true;
    plan.settings.budget = rng.usize(1..=2);
    plan.settings.toleration = rng.u32(60..240);
    let at = rng.u64(30..200);
    let sick = |number| Deed::Sick { node: format!("gpu-{number}"), lasts: None };
    (0..=plan.settings.budget).map(|number| Move { at: at + rng.u64(..15), deed: sick(number + 1) }).collect()
}
