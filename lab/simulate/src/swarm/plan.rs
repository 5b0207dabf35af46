//! A seed as plain data: a small cluster, its workloads, the configuration, and a schedule of faults and user actions.
//!
//! Each seed switches most kinds of faults off, so that the few remaining ones often coincide.

use std::{fmt, ops::Range};

use fastrand::Rng;

use super::{
    deed::{Deed, Move},
    drills::drill,
    kinds::Kind,
};

/// Faults happen for this many seconds.
pub const TROUBLE: u64 = 720;

/// Everything that follows from a seed.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Ordinary nodes, `node-1` and so on, spread over two zones.
    pub nodes: usize,
    /// Nodes with NodeClaims under a NodeRepairPolicy, `gpu-1` and so on; 0 if there is no such pool.
    pub pool: usize,
    pub replicas: usize,
    pub workloads: Workloads,
    pub settings: Settings,
    /// What happens, in order.
    pub moves: Vec<Move>,
}

#[derive(Clone, Debug, Default)]
pub struct Workloads {
    /// Bare pods, `pod-1` and so on.
    pub pods: Vec<PodPlan>,
    /// Jobs that Salvor manages, `job-1` and so on.
    pub jobs: Vec<JobPlan>,
    /// The replicas of the StatefulSet `db` with volumes; 0 if there is none.
    pub set: usize,
    /// AppWrappers, `app-1` and so on.
    pub apps: usize,
    pub wrapped: Wrapped,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wrapped {
    /// A Job that Salvor manages, with consent.
    #[default]
    Job,
    /// A StatefulSet with volumes, without consent.
    StatefulSet,
    /// A StatefulSet whose pods belong to a LeaderWorkerSet, without volumes and without consent.
    LeaderWorkerSet,
    /// A Pod with a volume, without consent.
    Pod,
}

impl Wrapped {
    /// True if the work completes by itself.
    pub(super) fn ends(self) -> bool {
        match self {
            Self::Job => true,
            Self::StatefulSet | Self::LeaderWorkerSet | Self::Pod => false,
        }
    }
}

/// A NodeRepairPolicy for the nodes without an owner.
#[derive(Clone, Copy, Debug)]
pub struct UnownedPolicy {
    /// True if nodes are terminated gracefully.
    pub graceful: bool,
    /// True if Node objects may be deleted.
    pub deletes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    None,
    /// It may be marked Failed.
    Terminate,
    /// It may be marked Failed and deleted.
    Delete,
}

/// A bare pod.
#[derive(Clone, Copy, Debug)]
pub struct PodPlan {
    pub consent: Consent,
    /// Its grace period in seconds.
    pub grace: u32,
    /// How many seconds it tolerates a lost node.
    pub tolerates: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct JobPlan {
    pub pod: PodPlan,
    pub indexed: bool,
    /// Pods that must succeed.
    pub completions: u32,
    /// Pods at once.
    pub parallelism: u32,
    /// True if a pod is replaced only when it is terminal.
    pub waits_for_the_end: bool,
    /// The seconds that a pod takes.
    pub takes: u32,
    /// The number of first runs that fail.
    pub fails: u32,
}

/// The configuration of the operator, as far as it differs between seeds.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub zombie: bool,
    pub eviction: bool,
    /// Always true if something in the plan needs it.
    pub repair: bool,
    /// Pods that may be recovered in a minute; 0 means no limit.
    pub pods_per_minute: u32,
    /// Writes at once.
    pub writes: u32,
    /// Lost nodes are tainted out-of-service after this many seconds; `None` disables that rule.
    pub out_of_service: Option<u32>,
    /// Nodes of the pool that may be under repair at once.
    pub budget: usize,
    /// How many seconds an unhealthy node is tolerated.
    pub toleration: u32,
    /// The policy for the nodes without an owner, if there is one.
    pub unowned: Option<UnownedPolicy>,
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        // Separate random streams, so that one more workload does not change every fault.
        let stream = |name: u64| Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ name);
        let (mut shape, mut schedule) = (stream(1), stream(2));
        let rng = &mut shape;
        let pool = if rng.u8(..3) == 0 { 3 } else { 0 };
        let mut plan = Self {
            seed,
            nodes: rng.usize(3..=4),
            pool,
            replicas: rng.usize(1..=2),
            workloads: workloads(rng),
            settings: settings(rng, pool > 0),
            moves: Vec::new(),
        };
        let kinds = Kind::some(&mut schedule, &plan);
        let count = schedule.usize(3..=12);
        let mut moves: Vec<Move> = (0..count)
            .filter_map(|_| {
                let kind = kinds[schedule.usize(..kinds.len())];
                Some(Move { at: schedule.u64(20..TROUBLE), deed: kind.deed(&mut schedule, &plan)? })
            })
            .collect();
        aim(&mut moves, &mut schedule);
        moves.sort_by_key(|it| it.at);
        plan.moves = moves;
        drill(&mut plan, &mut stream(3));
        plan
    }

    /// The same plan with other moves.
    #[must_use]
    pub fn with(&self, moves: Vec<Move>) -> Self {
        Self { moves, ..self.clone() }
    }

    /// The names of all nodes that it begins with.
    pub(super) fn node_names(&self) -> Vec<String> {
        let plain = (1..=self.nodes).map(|number| format!("node-{number}"));
        plain.chain((1..=self.pool).map(|number| format!("gpu-{number}"))).collect()
    }

    pub(super) fn has(&self, deed: impl Fn(&Deed) -> bool) -> bool {
        self.moves.iter().any(|it| deed(&it.deed))
    }
}

/// The seconds after the loss of a node in which most of its pods are recovered.
const COME_DUE: Range<u64> = 70..200;

/// True if the budget and the term should survive this deed.
fn changes_the_leader(deed: &Deed) -> bool {
    matches!(
        deed,
        Deed::Unrenewed { .. }
            | Deed::Asleep { .. }
            | Deed::Stop { .. }
            | Deed::Kill { .. }
            | Deed::Crash { .. }
            | Deed::CrashAtRenewal { .. }
            | Deed::Restart { .. }
    )
}

/// Makes deeds coincide: most happen in the minutes after a node is lost, when recoveries become due; users mostly
/// request the eviction of nodes that are down; and nodes often become unhealthy together.
fn aim(moves: &mut [Move], rng: &mut Rng) {
    let is_down = |it: &Move| match &it.deed {
        Deed::Node { node, .. } => Some((it.at, node.clone())),
        _ => None,
    };
    let down: Vec<(u64, String)> = moves.iter().filter_map(is_down).collect();
    let sick_at = moves.iter().find(|it| matches!(it.deed, Deed::Sick { .. })).map(|it| it.at);
    for it in moves {
        match &mut it.deed {
            Deed::Node { .. } => {}
            Deed::Sick { .. } => {
                let together = sick_at.filter(|_| rng.u8(..3) > 0);
                it.at = together.map_or(it.at, |at| at + rng.u64(..20));
            }
            deed if !down.is_empty() && rng.u8(..3) > 0 => {
                let (at, name) = &down[rng.usize(..down.len())];
                it.at = at + rng.u64(if changes_the_leader(deed) { COME_DUE } else { 30..300 });
                if let Deed::Evict { node, .. } = deed {
                    node.clone_from(name);
                }
            }
            _ => {}
        }
        it.at = it.at.min(TROUBLE - 1);
    }
}

fn workloads(rng: &mut Rng) -> Workloads {
    let mut workloads = Workloads::default();
    for _ in 0..rng.usize(2..=6) {
        let pod = pod(rng);
        workloads.pods.push(pod);
    }
    for _ in 0..rng.usize(0..=2) {
        let completions = rng.u32(1..=3);
        workloads.jobs.push(JobPlan {
            pod: pod(rng),
            indexed: rng.bool(),
            completions,
            parallelism: rng.u32(1..=completions),
            waits_for_the_end: rng.bool(),
            takes: rng.u32(30..200),
            fails: rng.u32(0..=1),
        });
    }
    if rng.u8(..3) == 0 {
        workloads.set = rng.usize(1..=2);
    }
    workloads.apps = usize::from(rng.u8(..3) == 0);
    workloads
}

fn pod(rng: &mut Rng) -> PodPlan {
    let consent = [Consent::None, Consent::Terminate, Consent::Delete, Consent::Delete][rng.usize(..4)];
    PodPlan { consent, grace: rng.u32(1..30), tolerates: rng.u32(1..60) }
}

fn settings(rng: &mut Rng, pool: bool) -> Settings {
    Settings {
        zombie: rng.u8(..10) > 0,
        eviction: rng.u8(..10) > 2,
        repair: pool,
        pods_per_minute: [0, 1, 1, 2][rng.usize(..4)],
        writes: [1, 32][rng.usize(..2)],
        out_of_service: (rng.u8(..5) == 0).then(|| rng.u32(90..400)),
        budget: rng.usize(1..=2),
        toleration: rng.u32(60..600),
        unowned: None,
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, nodes, pool, replicas, workloads, settings, moves } = self;
        writeln!(f, "seed {seed}: {nodes} nodes, {pool} with NodeClaims, {replicas} replicas")?;
        for (number, pod) in workloads.pods.iter().enumerate() {
            writeln!(f, "  pod-{}: {pod:?}", number + 1)?;
        }
        for (number, job) in workloads.jobs.iter().enumerate() {
            writeln!(f, "  job-{}: {job:?}", number + 1)?;
        }
        let Workloads { set, apps, wrapped, .. } = workloads;
        writeln!(f, "  StatefulSet of {set}, {apps} AppWrappers of a {wrapped:?}")?;
        writeln!(f, "  {settings:?}")?;
        moves.iter().try_for_each(|it| writeln!(f, "  {it}"))
    }
}
