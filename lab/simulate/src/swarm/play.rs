//! Plays a plan.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until};

use super::{
    check::{Checker, Deeds, Invariant, Violation},
    deed::{Deed, Move},
    eventually, panics,
    plan::{Plan, TROUBLE},
    replica::locked,
    world::{World, WorldError},
};
use crate::{History, in_virtual_time};

/// Dead machines stay dead for this long after the faults, if there are any.
const DEAD_STAY_DEAD: Duration = Duration::from_secs(600);
/// Everything has finished this long after the faults, except for the remaining work.
const ALL_IS_OVER: Duration = Duration::from_secs(1680);
/// The interval of that check, from the third time on: it notices marks that are set again right after their removal.
const ASK_EVERY: Duration = Duration::from_secs(60);

/// The result of a plan.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// In order.
    pub violations: Vec<Violation>,
    /// What the operator did.
    pub deeds: Deeds,
    /// The same for every run of the same plan.
    pub digest: u64,
}

/// Plays a plan on this thread, in virtual time.
pub fn play(plan: &Plan) -> Outcome {
    play_and_tell(plan, None)
}

/// Like [`play`], and records the history.
pub fn play_and_tell(plan: &Plan, history: Option<&History>) -> Outcome {
    panics::watch();
    let mut outcome = in_virtual_time(run(plan, history)).unwrap_or_else(|error| {
        let at = jiff::Timestamp::UNIX_EPOCH;
        let text = format!("the plan cannot be played: {error}");
        Outcome {
            violations: vec![Violation::new(Invariant::Panic, at, text)],
            deeds: Deeds::default(),
            digest: 0,
        }
    });
    let panicked = panics::take().into_iter();
    let at = jiff::Timestamp::UNIX_EPOCH;
    outcome.violations.extend(panicked.map(|text| Violation::new(Invariant::Panic, at, text)));
    outcome
}

async fn run(plan: &Plan, history: Option<&History>) -> Result<Outcome, WorldError> {
    let mut told = None;
    let world = World::new(plan, history.cloned(), |site, ledger| {
        let checker = Arc::new(Mutex::new(Checker::new(plan, ledger, site.dry())));
        told = Some(checker.clone());
        checker
    });
    let world = world.await?;
    let Some(checker) = told else { unreachable!("a world has a checker") };
    let mut twice = None;
    trouble(&world, plan, &mut twice).await;

    world.calm_the_wire();
    let calm = Instant::now();
    // Users withdraw their requests; machines stay as they are.
    let (machines, people): (Vec<&Move>, Vec<&Move>) =
        plan.moves.iter().partition(|it| is_of_a_machine(&it.deed, plan));
    for it in people {
        end(&world, plan, &it.deed, &mut twice).await;
    }
    if machines.into_iter().any(outlasts_the_trouble) {
        sleep(DEAD_STAY_DEAD).await;
        let now = world.cluster.api().now();
        let found = eventually::unrecovered(locked(&checker).known(), plan, now);
        found.into_iter().for_each(|violation| locked(&checker).report(violation));
        world.heal_all(&plan.node_names()).await;
    }
    sleep(ASK_EVERY * 2).await;
    let found = loop {
        sleep(ASK_EVERY).await;
        let now = world.cluster.api().now();
        let found = eventually::unfinished(locked(&checker).known(), plan, now);
        if found.is_empty() || calm.elapsed() >= ALL_IS_OVER + eventually::most_work_left(plan) {
            break found;
        }
    };
    let twice = twice.unwrap_or_else(|| ran_twice(&world, plan));
    found.into_iter().chain(twice).for_each(|violation| locked(&checker).report(violation));
    let deaths = world.site.deaths();
    let (violations, deeds, digest) = locked(&checker).finish(&deaths);
    world.stop().await;
    Ok(Outcome { violations, deeds, digest })
}

/// An eviction request that no recovery carries out is withdrawn like any other.
fn is_of_a_machine(deed: &Deed, plan: &Plan) -> bool {
    matches!(deed, Deed::Node { .. } | Deed::Sick { .. })
        || plan.settings.eviction && matches!(deed, Deed::Evict { .. })
}

fn outlasts_the_trouble(it: &Move) -> bool {
    it.deed.lasts().is_none_or(|lasts| it.at + lasts.as_secs() >= TROUBLE)
}

/// Work that ran twice until now.
fn ran_twice(world: &World, plan: &Plan) -> Vec<Violation> {
    eventually::ran_twice(world.cluster.fleet().truth(), plan, world.cluster.api().now())
}

/// Ends a deed. After a restore a pod that was moved is back in its old place, and no process remembers the move, so
/// `twice` gets what ran twice until then.
async fn end(world: &World, plan: &Plan, deed: &Deed, twice: &mut Option<Vec<Violation>>) {
    if matches!(deed, Deed::Restore { .. }) && twice.is_none() {
        *twice = Some(ran_twice(world, plan));
    }
    world.end(deed).await;
}

async fn trouble(world: &World, plan: &Plan, twice: &mut Option<Vec<Violation>>) {
    let began = Instant::now();
    let mut agenda = Vec::new();
    for it in &plan.moves {
        agenda.push((it.at, true, &it.deed));
        agenda.extend(it.deed.lasts().map(|lasts| (it.at + lasts.as_secs(), false, &it.deed)));
    }
    agenda.sort_by_key(|(at, ..)| *at);
    for (at, begins, deed) in agenda.into_iter().filter(|(at, ..)| *at < TROUBLE) {
        sleep_until(began + Duration::from_secs(at)).await;
        if begins {
            world.begin(deed).await;
        } else {
            end(world, plan, deed, twice).await;
        }
    }
    sleep_until(began + Duration::from_secs(TROUBLE)).await;
}
