//! Decides whether a Job fails because its lost pods become `Failed`, and what is done about that first.
//!
//! A Job counts failed pods, and fails for good past its limit, together with all of its healthy pods. Without a
//! recovery it would only have waited.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use salvor_api::config::LostPods;
use salvor_api::names::{events, reasons};

use super::job_facts::{Doom, JobFacts, JobSight, OfJob, READ_EVERY, Raised, Relative, Stage};
use super::policy::ZombiePolicy;
use super::reasons::PodWhy;
use super::steps::Step;
use super::views::PodView;
use crate::event::{EventNote, EventType};
use crate::ids::Uid;
use crate::job::FailureAction;
use crate::moments::after;
use crate::objects::JobRef;
use crate::verdict::{Trace, Verdict};

/// How long a requested read of a Job may take before it is requested again.
const READ_WITHIN: SignedDuration = SignedDuration::from_secs(10);
/// The decision on one pod raises the limit for all. The other pods are decided on again this soon.
const RAISED_WITHIN: SignedDuration = SignedDuration::from_secs(1);
/// Pods that the record of a raised limit names at once: all annotations of an object have 256 KiB.
const RECORDED_AT_ONCE: usize = 500;

/// What happens to a Job if a pod is marked now.
enum Outlook {
    /// It continues, or ends anyway.
    Unharmed(String),
    Falls(Doom),
}

/// What happens to the Job if this pod, and all others that are given up now, are marked.
fn outlook(facts: &JobFacts, pod: &PodView, of: &OfJob, policy: &ZombiePolicy) -> Outlook {
    let unharmed = |why: &str| Outlook::Unharmed(why.to_owned());
    if let Some(settled) = facts.settled {
        return unharmed(settled);
    }
    let is_deleted = pod.deletion.is_some();
    if facts.counts_at_deletion && is_deleted {
        return unharmed("the Job counts pods when they are deleted (podReplacementPolicy)");
    }
    let rule = facts.rule(&of.member);
    match rule {
        Some(FailureAction::Ignore) => return unharmed("its podFailurePolicy ignores the failure"),
        Some(action @ (FailureAction::FailJob | FailureAction::FailIndex)) => {
            return Outlook::Falls(Doom::Rule(action));
        }
        Some(FailureAction::Count) | None => {}
    }
    if rule.is_none() && policy.job_ignores_disrupted(facts.managed_by.as_deref()) {
        return unharmed("job.disruptedPods is Ignore");
    }
    let member = of.member.clone();
    let me = Relative { uid: pod.pod.uid.clone(), member, stage: Stage::Due, is_deleted };
    if !facts.counts(&me) {
        return unharmed("the Job does not count the pod, or has counted it");
    }
    if let Some((index, limits)) = of.member.index.zip(facts.indexes.as_ref()) {
        let settled = limits.failed.contains(index) || limits.completed.contains(index);
        if !settled && of.member.earlier_failures >= limits.limit {
            let failed = limits.failed.len().saturating_add(1);
            let exceeded = limits.max_failed.filter(|max| failed > *max).map(|max| (failed, max));
            return Outlook::Falls(Doom::Index { index, limit: limits.limit, exceeded });
        }
    }
    let given_up: BTreeSet<&Uid> =
        of.family.iter().filter(|relative| facts.counts(relative)).map(|relative| &relative.uid).collect();
    let others = given_up.iter().filter(|uid| **uid != &pod.pod.uid).count();
    let more = u32::try_from(others).unwrap_or(u32::MAX).saturating_add(1);
    let (failures, limit) = (facts.failed.saturating_add(more), facts.backoff_limit);
    if failures > limit {
        return Outlook::Falls(Doom::Limit { failures, limit });
    }
    Outlook::Unharmed(format!("{failures} pods would count as failed, and backoffLimit is {limit}"))
}

/// Checks what happens to the pod's Job. Returns the event about a raised limit that belongs to this pod, if any.
///
/// # Errors
/// The step to do first, or the wait.
pub(super) fn ask_the_job(
    ask: &mut Trace,
    pod: &PodView,
    policy: &ZombiePolicy,
    now: Timestamp,
) -> Result<Option<Step>, Verdict<PodWhy, Step>> {
    const QUESTION: &str = "Does its Job survive that?";
    let Some(of) = &pod.job else { return Ok(None) };
    let raises = match policy.lost_pods {
        LostPods::Count => return Ok(None),
        LostPods::RaiseLimit => true,
        LostPods::Hold => false,
    };
    let name = &of.job;
    let (facts, at) = match &of.sight {
        JobSight::Seen { job, at } => (job, *at),
        JobSight::Gone => {
            ask.that(QUESTION, format_args!("Job {name} is gone"), true);
            return Ok(None);
        }
        JobSight::Unread => {
            ask.that(QUESTION, format_args!("Job {name} is not read yet"), false);
            let why = PodWhy::JobUnread { job: Box::new(name.clone()) };
            return Err(Verdict::Wait { until: after(now, READ_WITHIN), why });
        }
        JobSight::Unreadable { error, at } => {
            ask.that(QUESTION, error, false);
            let why = PodWhy::JobUnreadable { job: Box::new(name.clone()), error: error.clone() };
            return Err(hold(pod, of, *at, ("job-unreadable", reasons::JOB_UNREADABLE), why, now));
        }
    };
    if raises && facts.raised.pods.contains(&pod.pod.uid) {
        ask.that(QUESTION, format_args!("its backoffLimit was raised to {}", facts.backoff_limit), true);
        // The process that raised it may have crashed before it recorded the event.
        let first = facts.raised.pods.first() == Some(&pod.pod.uid);
        return Ok(first.then(|| tell_of_raise(name, facts.raised.pods.len(), facts.backoff_limit)));
    }
    let doom = match outlook(facts, pod, of, policy) {
        Outlook::Unharmed(seen) => {
            ask.that(QUESTION, seen, true);
            return Ok(None);
        }
        Outlook::Falls(doom) => doom,
    };
    // The Job's owner wrote such a rule for exactly this case.
    let goes_on = raises && matches!(doom, Doom::Rule(_));
    ask.that(QUESTION, &doom, goes_on);
    match doom {
        Doom::Rule(_) if raises => Ok(None),
        Doom::Limit { .. } if raises => Err(raise(facts, pod, of, now)),
        doom @ (Doom::Limit { .. } | Doom::Index { .. } | Doom::Rule(_)) => {
            let why = PodWhy::JobWouldFail { job: Box::new(name.clone()), doom };
            Err(hold(pod, of, at, ("job-would-fail", reasons::JOB_WOULD_FAIL), why, now))
        }
    }
}

/// Raises the Job's limit for all pods that are given up now and not recorded yet. The decision on one pod does it for
/// all.
fn raise(facts: &JobFacts, pod: &PodView, of: &OfJob, now: Timestamp) -> Verdict<PodWhy, Step> {
    let stage = |uid: &Uid| of.family.iter().find(|relative| relative.uid == *uid).map(|it| it.stage);
    let recorded = &facts.raised.pods;
    let is_new = |relative: &&Relative| {
        relative.stage == Stage::Due && facts.counts(relative) && !recorded.contains(&relative.uid)
    };
    let mut new: BTreeSet<Uid> = of.family.iter().filter(is_new).map(|it| it.uid.clone()).collect();
    new.insert(pod.pod.uid.clone());
    // A pod that has ended is not decided on again, so nothing is raised for it twice.
    let mut kept: Vec<Uid> =
        recorded.iter().filter(|uid| !matches!(stage(uid), Some(Stage::Ended(_)))).cloned().collect();
    if kept.len() + new.len() > RECORDED_AT_ONCE {
        kept.retain(|uid| stage(uid).is_some());
    }
    let room = RECORDED_AT_ONCE.saturating_sub(kept.len());
    let new: Vec<Uid> = new.into_iter().take(room).collect();
    if new.first() != Some(&pod.pod.uid) {
        let why = PodWhy::AwaitsBackoffLimit { job: Box::new(of.job.clone()) };
        return Verdict::Wait { until: after(now, RAISED_WITHIN), why };
    }
    let pods = new.len();
    let by = u32::try_from(pods).unwrap_or(u32::MAX);
    let most = i32::MAX.unsigned_abs();
    let to = facts.backoff_limit.saturating_add(by).min(most);
    let raised = Raised {
        raised_by: facts.raised.raised_by.saturating_add(by),
        pods: new.into_iter().chain(kept).collect(),
    };
    let step = Step::RaiseBackoffLimit {
        job: of.job.clone(),
        resource_version: facts.resource_version.clone(),
        backoff_limit: to,
        raised,
    };
    let why = PodWhy::RaisesBackoffLimit { job: Box::new(of.job.clone()), from: facts.backoff_limit, to };
    Verdict::Act { actions: vec![step, tell_of_raise(&of.job, pods, to)], why }
}

fn tell_of_raise(job: &JobRef, pods: usize, to: u32) -> Step {
    Step::EmitEvent(EventNote {
        name: format!("backoff-limit-raised.{}.{to}", job.uid),
        regarding: job.into(),
        kind: EventType::Normal,
        reason: reasons::BACKOFF_LIMIT_RAISED.into(),
        action: events::RAISE_BACKOFF_LIMIT,
        reporting_controller: events::POD_TERMINATION_CONTROLLER,
        message: format!(
            "backoffLimit raised to {to}: {pods} pods on lost nodes are given up, and the Job would have failed because of them"
        ),
    })
}

/// Waits because of the Job, and records that once, on the pod and on the Job.
fn hold(
    pod: &PodView,
    of: &OfJob,
    read: Timestamp,
    (name, reason): (&str, &'static str),
    why: PodWhy,
    now: Timestamp,
) -> Verdict<PodWhy, Step> {
    if of.told {
        let until = after(read, READ_EVERY).max(after(now, READ_WITHIN));
        return Verdict::Wait { until, why };
    }
    let note = |uid: &Uid, regarding| {
        Step::Mention(EventNote {
            name: format!("{name}.{uid}"),
            regarding,
            kind: EventType::Warning,
            reason: reason.into(),
            action: events::FORCEFUL_TERMINATION,
            reporting_controller: events::POD_TERMINATION_CONTROLLER,
            message: why.to_string(),
        })
    };
    let actions = vec![note(&pod.pod.uid, (&pod.pod).into()), note(&of.job.uid, (&of.job).into())];
    Verdict::Act { actions, why }
}
