//! Decides what is written into the status of a policy: which repairs begin and end, the counts, and the conditions.

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::repair::reasons;

use super::report::mention;
use super::scene::PolicyScene;
use crate::event::EventType;
use crate::moments::{after, to_the_second};
use crate::repair::counts::Survey;
use crate::repair::holds::Hold;
use crate::repair::policy::Policy;
use crate::repair::reasons::PolicyWhy;
use crate::repair::status::{End, Ended, PolicyStatus, Repair};
use crate::repair::steps::Step;
use crate::verdict::{Decision, Trace, Verdict, judge};

/// Status writes that change only counts are at least this far apart.
pub const COUNTS_EVERY: SignedDuration = SignedDuration::from_secs(5);

/// Decides what is written into a policy's status.
pub fn decide_policy(scene: &PolicyScene<'_>, now: Timestamp) -> Decision<PolicyWhy, Step> {
    judge(|ask| policy_rules(ask, scene, now))
}

fn policy_rules(
    ask: &mut Trace,
    scene: &PolicyScene<'_>,
    now: Timestamp,
) -> Result<Verdict<PolicyWhy, Step>, Verdict<PolicyWhy, Step>> {
    let PolicyScene { policy, survey, written, .. } = scene;
    let is_damaged = policy.status.damaged;
    let seen = if is_damaged { "no" } else { "yes" };
    ask.that("Can the list of its repairs be read?", seen, !is_damaged)
        .ok_or(Verdict::Ignore(PolicyWhy::ListDamaged))?;
    let defect = policy.defects.first();
    let is_readable =
        ask.that("Can its spec be read?", defect.map_or("yes", |it| it), defect.is_none()).is_some();
    let empty = Survey::default();
    let survey = survey.filter(|_| is_readable).unwrap_or(&empty);
    let status = status(scene, survey, now);
    let before = &policy.status;
    let (begin, end) = (survey.picks.len(), survey.over.len() + survey.released.len());
    let write = |why: PolicyWhy, events: Vec<Step>| {
        let step = Step::WritePolicy {
            policy: policy.object.clone(),
            resource_version: policy.resource_version.clone(),
            status: Box::new(status.clone()),
            begins: begin > 0,
            over: survey.over.clone(),
        };
        Verdict::Act { actions: std::iter::once(step).chain(events).collect(), why }
    };
    let moves = format!("{begin} begin, {end} end");
    ask.that("Do all repairs stay as they are?", moves, begin + end == 0)
        .ok_or_else(|| write(PolicyWhy::Repairs { begin, end }, ended_events(scene, survey)))?;
    let rests = || match survey.changes_at {
        Some(until) => Verdict::Wait { until, why: PolicyWhy::Settled },
        None => Verdict::Ignore(PolicyWhy::Settled),
    };
    let is_told =
        if policy.is_pool() { before.annotation() == status.annotation() } else { *before == status };
    if ask.that("Is its status up to date?", if is_told { "yes" } else { "no" }, is_told).is_some() {
        return Ok(match defect {
            Some(defect) => Verdict::Ignore(PolicyWhy::Invalid { defect: defect.clone() }),
            None => rests(),
        });
    }
    // Changed conditions are written at once, changed counts at intervals.
    let only_counts =
        before.conditions == status.conditions && before.observed_generation == status.observed_generation;
    let next = written.map(|written| after(written, COUNTS_EVERY)).filter(|next| now < *next && only_counts);
    if let Some(next) = next {
        let until = survey.changes_at.map_or(next, |at| at.min(next));
        return Ok(Verdict::Wait { until, why: PolicyWhy::Counts });
    }
    let problems = problems(policy);
    let events = if problems.is_empty() {
        Vec::new()
    } else {
        let name = format!("salvor-repair-policy.{}.{}", policy.object.uid, policy.generation);
        let message = problems.join("; ");
        vec![mention(name, policy.object.clone(), EventType::Warning, reasons::INVALID_POLICY, message)]
    };
    Ok(write(PolicyWhy::Counts, events))
}

/// Everything in a policy that a person should correct.
fn problems(policy: &Policy) -> Vec<&str> {
    policy.defects.iter().chain(&policy.idle_parts).map(String::as_str).collect()
}

fn ended_events(scene: &PolicyScene<'_>, survey: &Survey) -> Vec<Step> {
    let policy = scene.policy;
    let mut events = Vec::new();
    for Ended { repair, end } in &survey.over {
        let (reason, done) = match end {
            End::Replaced | End::Rebooted => (reasons::NODE_REPAIRED, "is repaired"),
            End::NodeGone => (reasons::NODE_DELETED, "is gone, and its machine was not touched"),
        };
        let message = format!("node {} {done} ({}), policy {}", repair.node, repair.condition, policy.name());
        let pool = (scene.pool_of)(repair).filter(|pool| *pool != policy.object);
        for object in std::iter::once(policy.object.clone()).chain(pool) {
            let kind = object.kind.kind.to_lowercase();
            let name = format!("salvor-repaired-{kind}.{}.{}", repair.uid, repair.since.as_second());
            let note = message.clone();
            events.push(mention(name, object, EventType::Normal, reason, note));
        }
    }
    events
}

/// The status that the policy should have.
fn status(scene: &PolicyScene<'_>, survey: &Survey, now: Timestamp) -> PolicyStatus {
    let PolicyScene { policy, overlap, .. } = scene;
    let before = &policy.status;
    let now = to_the_second(now);
    let ends = |repair: &&Repair| {
        let is_over = survey.over.iter().any(|ended| ended.repair.uid == repair.uid);
        !is_over && !survey.released.iter().any(|other| other.uid == repair.uid)
    };
    let mut repairs: Vec<Repair> = before.repairs.iter().filter(ends).cloned().collect();
    repairs.extend(survey.picks.iter().cloned());
    let generation = policy.generation;
    let ready = match policy.defects.as_slice() {
        [] => before.condition("Ready", true, "Valid", String::new(), generation, now),
        defects => before.condition("Ready", false, "InvalidSpec", defects.join("; "), generation, now),
    };
    let hold = survey.held_as_a_whole(policy);
    let allowed = if let [defect, ..] = policy.defects.as_slice() {
        before.condition("RepairAllowed", false, "InvalidSpec", defect.clone(), generation, now)
    } else if let Some(hold) = hold {
        before.condition("RepairAllowed", false, hold.code(), told_hold(&hold, policy), generation, now)
    } else if let Some(zone) = survey.zones.keys().next() {
        let message = format!(
            "the nodes of zone {zone} are sick, which looks like one cause; no node of it is repaired"
        );
        before.condition("RepairAllowed", false, Hold::ZONE_OUTAGE, message, generation, now)
    } else if let Some((pool, condition)) = survey.pools.keys().next() {
        let message = format!(
            "the nodes of pool {pool:?} are sick by {condition}, which looks like one cause; no node of it is repaired for that"
        );
        before.condition("RepairAllowed", false, Hold::POOL_OUTAGE, message, generation, now)
    } else if let Some((pool, condition)) = survey.relapses.keys().next() {
        let message = format!(
            "new nodes of pool {pool:?} have {condition} as well; no node of it is replaced for that"
        );
        before.condition("RepairAllowed", false, Hold::REPAIRS_DO_NOT_HELP, message, generation, now)
    } else if let Some(pool) = survey.launches.keys().next() {
        let message = format!("pool {pool} gets no new nodes");
        before.condition("RepairAllowed", false, "LaunchFailures", message, generation, now)
    } else if repairs.len() - survey.given_up >= survey.allowed
        && survey.held.contains_key(Hold::BUDGET_EXHAUSTED)
    {
        let message = "as many nodes are under repair as the budget allows".to_owned();
        before.condition("RepairAllowed", false, Hold::BUDGET_EXHAUSTED, message, generation, now)
    } else {
        before.condition("RepairAllowed", true, "Allowed", String::new(), generation, now)
    };
    let overlaps = match overlap {
        Some((nodes, older)) => {
            let message =
                format!("for {nodes} nodes that this policy selects, an older one counts, such as {older}");
            before.condition("Overlaps", true, "OlderPolicyCounts", message, generation, now)
        }
        None => before.condition("Overlaps", false, "NoOverlap", String::new(), generation, now),
    };
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    PolicyStatus {
        observed_generation: generation,
        nodes: count(survey.nodes),
        healthy: count(survey.healthy),
        waiting: count(survey.waiting),
        blocked: count(survey.held.values().sum::<usize>() + survey.given_up),
        repairing: count(repairs.len() - survey.given_up),
        repaired: before.repaired.saturating_add(survey.repaired() as u64),
        repairs,
        // A policy that cannot be read is not surveyed, so its list stays.
        replacements: if policy.defects.is_empty() {
            survey.replacements.clone()
        } else {
            before.replacements.clone()
        },
        deleted_nodes: before.deleted_nodes.iter().filter(|it| now < it.forgotten_at()).cloned().collect(),
        conditions: vec![ready, allowed, overlaps],
        problem: if policy.is_pool() { problems(policy).join("; ") } else { String::new() },
        damaged: false,
    }
}

/// The hold without numbers that change all the time.
fn told_hold(hold: &Hold, policy: &Policy) -> String {
    match hold {
        Hold::TooManyUnhealthy { .. } => {
            format!(
                "more nodes are past their toleration, or were until lately, than unhealthyLimit {} allows",
                policy.unhealthy_limit
            )
        }
        other => other.to_string(),
    }
}
