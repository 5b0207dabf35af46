//! The kinds of faults and actions, and how a random deed of each is drawn.

use std::time::Duration;

use fastrand::Rng;
use salvor_apiserver::Effect;

use super::{
    deed::{Call, Deed, NodeFault, Watched},
    plan::Plan,
};
use crate::{CrashPoint, Side};

/// A kind of fault or action, which a seed may switch off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Machines that are off.
    Crashes,
    /// Machines that are partitioned.
    Partitions,
    /// Kubelets that are dead.
    KubeletStops,
    /// Machines that come and go.
    Flaps,
    SlowNodes,
    Reboots,
    /// Nodes that are replaced under the same name.
    NodeReplacements,
    /// Single watches that stall.
    Stalls,
    /// Kinds that can be neither listed nor watched.
    Unlisted,
    /// Requests that fail.
    Strikes,
    /// Renewals of the Lease that fail, while everything else works.
    LostRenewals,
    /// Some writes that are refused.
    Refusals,
    /// Webhooks and quotas that refuse for a while.
    Webhooks,
    /// Servers that are slow.
    Slow,
    /// Revisions that go backwards.
    Backwards,
    /// Watches that are cut.
    Cuts,
    Compactions,
    /// Clocks that contradict each other.
    Clocks,
    /// Replicas that are partitioned for a while.
    Sleeps,
    /// Replicas that are stopped for a while, as by SIGSTOP.
    Stops,
    Kills,
    /// Replicas that die at a write.
    CrashPoints,
    /// Replicas that die while they write the Lease.
    RenewalCrashes,
    Restarts,
    /// Dry runs, by a change of the configuration.
    DryRuns,
    Pauses,
    /// Evictions that users request.
    Evictions,
    PodDeletions,
    /// Pods that are replaced under the same name.
    Replacements,
    JobDeletions,
    Suspensions,
    AppDeletions,
    /// Unhealthy nodes.
    Sickness,
    /// Repairs that users veto.
    Vetoes,
}

impl Kind {
    pub const ALL: [Self; 34] = [
        Self::Crashes,
        Self::Partitions,
        Self::KubeletStops,
        Self::Flaps,
        Self::SlowNodes,
        Self::Reboots,
        Self::NodeReplacements,
        Self::Stalls,
        Self::Unlisted,
        Self::Strikes,
        Self::LostRenewals,
        Self::Refusals,
        Self::Webhooks,
        Self::Slow,
        Self::Backwards,
        Self::Cuts,
        Self::Compactions,
        Self::Clocks,
        Self::Sleeps,
        Self::Stops,
        Self::Kills,
        Self::CrashPoints,
        Self::RenewalCrashes,
        Self::Restarts,
        Self::DryRuns,
        Self::Pauses,
        Self::Evictions,
        Self::PodDeletions,
        Self::Replacements,
        Self::JobDeletions,
        Self::Suspensions,
        Self::AppDeletions,
        Self::Sickness,
        Self::Vetoes,
    ];

    /// A few kinds that can happen in this cluster. One that loses nodes is always among them, more than once, since
    /// all others matter little without it.
    pub(super) fn some(rng: &mut Rng, plan: &Plan) -> Vec<Self> {
        let losses = [Self::Crashes, Self::Partitions, Self::KubeletStops, Self::Flaps];
        let loss = losses[rng.usize(..losses.len())];
        let others = Self::ALL.into_iter().filter(|kind| kind.can_happen(plan) && rng.u8(..5) == 0);
        let mut kinds: Vec<Self> = others.collect();
        // Nodes with NodeClaims exist to be repaired, and evictions happen only where users request them.
        if plan.pool > 0 {
            kinds.push(Self::Sickness);
        }
        if plan.settings.eviction && rng.bool() {
            kinds.push(Self::Evictions);
        }
        // Budgets and terms are at risk only when the leader changes.
        let changes = [Self::LostRenewals, Self::Stops, Self::Kills, Self::Restarts];
        if rng.bool() {
            kinds.push(changes[rng.usize(..changes.len())]);
        }
        let more = kinds.len().div_ceil(2).max(1);
        kinds.extend(std::iter::repeat_n(loss, more));
        kinds
    }

    fn can_happen(self, plan: &Plan) -> bool {
        match self {
            Self::JobDeletions => !plan.workloads.jobs.is_empty(),
            Self::Suspensions | Self::AppDeletions => plan.workloads.apps > 0,
            Self::Sickness | Self::Vetoes => plan.pool > 0,
            Self::Crashes
            | Self::Partitions
            | Self::KubeletStops
            | Self::Flaps
            | Self::SlowNodes
            | Self::Reboots
            | Self::NodeReplacements
            | Self::Stalls
            | Self::Unlisted
            | Self::Strikes
            | Self::LostRenewals
            | Self::Refusals
            | Self::Webhooks
            | Self::Slow
            | Self::Backwards
            | Self::Cuts
            | Self::Compactions
            | Self::Clocks
            | Self::Sleeps
            | Self::Stops
            | Self::Kills
            | Self::CrashPoints
            | Self::RenewalCrashes
            | Self::Restarts
            | Self::DryRuns
            | Self::Pauses
            | Self::Evictions
            | Self::PodDeletions
            | Self::Replacements => true,
        }
    }

    /// One deed of this kind; `None` if there is no target for it.
    pub(super) fn deed(self, rng: &mut Rng, plan: &Plan) -> Option<Deed> {
        let replica = rng.usize(..plan.replicas);
        let node = one_of(rng, &plan.node_names())?;
        let lasts = rng.u64(20..400);
        Some(match self {
            Self::Crashes => Deed::Node { node, fault: NodeFault::Crash, lasts: perhaps(rng, lasts) },
            Self::Partitions => Deed::Node { node, fault: NodeFault::Partition, lasts: perhaps(rng, lasts) },
            Self::KubeletStops => {
                Deed::Node { node, fault: NodeFault::KubeletStop, lasts: perhaps(rng, lasts) }
            }
            Self::Flaps => Deed::Node { node, fault: NodeFault::Flap, lasts: perhaps(rng, lasts) },
            Self::SlowNodes => {
                Deed::Node { node, fault: NodeFault::Slow(rng.u64(1..15)), lasts: perhaps(rng, lasts) }
            }
            Self::Reboots => Deed::Reboot { node },
            Self::NodeReplacements => Deed::ReplaceNode { node: number(rng, "node", plan.nodes)? },
            Self::Stalls => Deed::Stall { replica, watch: watched(rng), lasts },
            Self::Unlisted => {
                let effects =
                    [Effect::Unavailable, Effect::InternalError, Effect::Unanswered { carried_out: false }];
                Deed::Unlisted { replica, watch: watched(rng), effect: effects[rng.usize(..3)], lasts }
            }
            Self::Strikes => {
                let call = Call::ALL[rng.usize(..Call::ALL.len())];
                Deed::Strike { replica, call, effect: effect(rng, call), times: rng.u32(1..6) }
            }
            Self::LostRenewals => {
                let effects = [
                    Effect::RequestLost,
                    Effect::Unavailable,
                    Effect::InternalError,
                    Effect::Unanswered { carried_out: false },
                ];
                // Longer than a term, and perhaps until another replica leads.
                let lasts = rng.u64(30..200);
                Deed::Unrenewed { replica, effect: effects[rng.usize(..effects.len())], lasts }
            }
            Self::Refusals => {
                let writes: Vec<Call> = Call::ALL.into_iter().filter(|call| !call.is_read()).collect();
                let call = writes[rng.usize(..writes.len() - 1)];
                Deed::Strike { replica, call, effect: Effect::Denied, times: rng.u32(1..20) }
            }
            Self::Webhooks => {
                let calls =
                    [Call::CreatePod, Call::PatchStatus, Call::PatchNode, Call::PatchPod, Call::DeletePod];
                // A webhook that denies, one that cannot be reached, and one that is overloaded.
                let effects = [Effect::Denied, Effect::InternalError, Effect::TooManyRequests(5)];
                let (call, effect) = (calls[rng.usize(..calls.len())], effects[rng.usize(..effects.len())]);
                Deed::Refused { call, effect, lasts }
            }
            Self::Slow => Deed::Slow { replica, writes: rng.bool(), delay: rng.u64(100..3000), lasts },
            Self::Backwards => Deed::Backwards { replica, revisions: rng.u64(1..400), lasts },
            Self::Cuts => Deed::Cut { replica },
            Self::Compactions => Deed::Compact,
            Self::Clocks => {
                let calls = [Call::Any, Call::Renewal, Call::ReadLease, Call::ReadNode, Call::Watch];
                let ahead = [-3600, -90, -7, 3, 30, 120, 7200][rng.usize(..7)];
                Deed::Clock { replica, call: calls[rng.usize(..calls.len())], ahead, lasts }
            }
            Self::Sleeps => Deed::Asleep { replica, lasts: rng.u64(5..90) },
            Self::Stops => Deed::Stop { replica, lasts: rng.u64(2..120) },
            Self::Kills => Deed::Kill { replica },
            Self::CrashPoints => {
                let write = rng.u32(1..8);
                let point = if rng.bool() { CrashPoint::Before(write) } else { CrashPoint::After(write) };
                Deed::Crash { replica, point }
            }
            Self::RenewalCrashes => {
                Deed::CrashAtRenewal { replica, side: if rng.bool() { Side::Before } else { Side::After } }
            }
            Self::Restarts => Deed::Restart { replica },
            Self::DryRuns => Deed::DryRun { lasts },
            Self::Pauses => Deed::Pause { lasts },
            Self::Evictions => Deed::Evict { node, stops: perhaps(rng, lasts) },
            Self::PodDeletions => Deed::DeletePod { pod: number(rng, "pod", plan.workloads.pods.len())? },
            Self::Replacements => Deed::ReplacePod { pod: number(rng, "pod", plan.workloads.pods.len())? },
            Self::JobDeletions => {
                let job = number(rng, "job", plan.workloads.jobs.len())?;
                Deed::DeleteJob { job, again: perhaps(rng, lasts) }
            }
            Self::Suspensions => Deed::Suspend { app: number(rng, "app", plan.workloads.apps)?, lasts },
            Self::AppDeletions => {
                Deed::DeleteApp { app: number(rng, "app", plan.workloads.apps)?, again: perhaps(rng, lasts) }
            }
            Self::Sickness => Deed::Sick { node: number(rng, "gpu", plan.pool)?, lasts: perhaps(rng, lasts) },
            Self::Vetoes => Deed::Veto { node: number(rng, "gpu", plan.pool)?, lasts },
        })
    }
}

fn one_of(rng: &mut Rng, names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| names[rng.usize(..names.len())].clone())
}

fn number(rng: &mut Rng, name: &str, count: usize) -> Option<String> {
    (count > 0).then(|| format!("{name}-{}", rng.usize(1..=count)))
}

fn perhaps(rng: &mut Rng, lasts: u64) -> Option<u64> {
    rng.bool().then_some(lasts)
}

fn watched(rng: &mut Rng) -> Watched {
    // Most decisions depend on pods and nodes.
    let all = Watched::ALL;
    if rng.bool() { all[rng.usize(..2)] } else { all[rng.usize(..all.len())] }
}

fn effect(rng: &mut Rng, call: Call) -> Effect {
    let effects = [
        Effect::Delay(Duration::from_millis(rng.u64(200..4000))),
        Effect::Delay(Duration::from_secs(100)),
        Effect::TooManyRequests(rng.u32(1..10)),
        Effect::InternalError,
        Effect::Unavailable,
        Effect::AnswerLost,
        Effect::RequestLost,
        Effect::Unanswered { carried_out: true },
        Effect::Unanswered { carried_out: false },
        Effect::Conflict,
        Effect::Expired,
        Effect::CutAfter(1),
        Effect::Stale(20),
    ];
    // A read meets no conflict; a write can be neither stale nor cut off.
    let (from, to) = if call.is_read() { (0, 9) } else { (0, 10) };
    match call {
        Call::List | Call::Watch if rng.bool() => effects[rng.usize(10..13)],
        _ => effects[rng.usize(from..to)],
    }
}
