//! A seed as plain data: a small cluster, its workloads, the configuration, and a schedule of faults and people's acts.
//!
//! Each seed switches most kinds of faults off, so that the few that are left meet each other often.

use std::{fmt, ops::Range};

use fastrand::Rng;

use super::{
    deed::{Deed, Move},
    drills::drill,
    kinds::Kind,
};

/// Faults happen for this long, in seconds.
pub const TROUBLE: u64 = 720;

/// Everything that follows from a seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Ordinary nodes, `node-1` and so on, dealt out to two zones.
    pub nodes: usize,
    /// Nodes with NodeClaims under a NodeRepairPolicy, `gpu-1` and so on; none if there is no such pool.
    pub pool: usize,
    /// The number of replicas of the operator.
    pub replicas: usize,
    /// The workloads.
    pub workloads: Workloads,
    /// The configuration.
    pub settings: Settings,
    /// What happens, in order.
    pub moves: Vec<Move>,
}

/// The workloads of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Workloads {
    /// Plain pods, `pod-1` and so on.
    pub pods: Vec<PodPlan>,
    /// Jobs that Salvor manages, `job-1` and so on.
    pub jobs: Vec<JobPlan>,
    /// The replicas of a StatefulSet with volumes, `db`; none if there is no such set.
    pub set: usize,
    /// AppWrappers, `app-1` and so on.
    pub apps: usize,
    /// What each of them wraps.
    pub wrapped: Wrapped,
}

/// What an AppWrapper wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wrapped {
    /// A Job that Salvor manages, with consent.
    #[default]
    Job,
    /// A StatefulSet with volumes, without consent.
    StatefulSet,
    /// A StatefulSet whose pods belong to a LeaderWorkerSet, without volumes and consent.
    LeaderWorkerSet,
    /// A Pod with a volume, without consent.
    Pod,
}

impl Wrapped {
    /// True if the work ends by itself.
    pub(super) fn ends(self) -> bool {
        match self {
            Self::Job => true,
            Self::StatefulSet | Self::LeaderWorkerSet | Self::Pod => false,
        }
    }
}

/// A NodeRepairPolicy over the nodes that nothing owns.
#[derive(Clone, Copy, Debug)]
pub struct UnownedPolicy {
    /// True if nodes are terminated gracefully.
    pub graceful: bool,
    /// True if Node objects may be deleted.
    pub deletes: bool,
}

/// The consent of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// None.
    None,
    /// It may be marked Failed.
    Terminate,
    /// It may be marked Failed and deleted.
    Delete,
}

/// A plain pod.
#[derive(Clone, Copy, Debug)]
pub struct PodPlan {
    /// Its consent.
    pub consent: Consent,
    /// Its grace period in seconds.
    pub grace: u32,
    /// It stays for so many seconds on a lost node.
    pub tolerates: u32,
}

/// A Job.
#[derive(Clone, Copy, Debug)]
pub struct JobPlan {
    /// Its pods.
    pub pod: PodPlan,
    /// True if it has indexes.
    pub indexed: bool,
    /// Pods that must succeed.
    pub completions: u32,
    /// Pods at once.
    pub parallelism: u32,
    /// True if a pod is replaced only when it is over.
    pub waits_for_the_end: bool,
    /// The seconds that a pod takes.
    pub takes: u32,
    /// The first runs that fail.
    pub fails: u32,
}

/// The configuration of the operator, as far as it differs between seeds.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The recovery runs.
    pub zombie: bool,
    /// The recovery runs.
    pub eviction: bool,
    /// The recovery runs; always if something needs it.
    pub repair: bool,
    /// Pods that may be recovered in a minute; 0 is no limit.
    pub pods_per_minute: u32,
    /// Writes at once.
    pub writes: u32,
    /// Lost nodes are tainted out-of-service after so many seconds; none without that rule.
    pub out_of_service: Option<u32>,
    /// Nodes of the pool that may be under repair at once.
    pub budget: usize,
    /// The seconds for which a sick node is tolerated.
    pub toleration: u32,
    /// The policy over the nodes that nothing owns, if there is one.
    pub unowned: Option<UnownedPolicy>,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Self {
        // Streams of their own, so that one more workload does not change every fault.
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

    /// The same with other moves.
    #[must_use]
    pub fn with(&self, moves: Vec<Move>) -> Self {
        Self { moves, ..self.clone() }
    }

    /// The names of all nodes that it begins with.
    pub(super) fn node_names(&self) -> Vec<String> {
        let plain = (1..=self.nodes).map(|number| format!("node-{number}"));
        plain.chain((1..=self.pool).map(|number| format!("gpu-{number}"))).collect()
    }

    /// True if a deed of this kind is in it.
    pub(super) fn has(&self, deed: impl Fn(&Deed) -> bool) -> bool {
        self.moves.iter().any(|it| deed(&it.deed))
    }
}

/// The seconds after the loss of a node in which most of its pods are recovered.
const COME_DUE: Range<u64> = 70..200;

/// True if the budget and the term should outlast this.
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

/// Lets things meet: most happens in the minutes after a node is lost, when recoveries come due; people mostly ask for the eviction of
/// nodes that are down; and nodes often become sick together.
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
