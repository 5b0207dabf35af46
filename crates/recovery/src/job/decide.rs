//! Decides the next step of a Job: one sync of a Job controller, as questions. The first "no" gives the step.

use jiff::{SignedDuration, Timestamp};

use super::job_end::{JobEnd, deadline};
use super::memory::Memory;
use super::missing_pods::{MissingPods, wanted};
use super::names::Chooser;
use super::new_pod::ParsedTemplate;
use super::notes::{deleted_note, news, unknown_mode_note, unreadable_note};
use super::policy::JobPolicy;
use super::read_back::ReadBack;
use super::reasons::{JobWhy, WaitingPod};
use super::record::Record;
use super::status;
use super::steps::{CreationReason, Step};
use super::tally::{Ending, Outcome, Tally};
use super::unreadable::Unreadable;
use super::views::{
    CompletionMode, IndexFailures, JobCondition, JobStatus, JobView, PodView, Stray, Tracking,
};
use crate::event::EventNote;
use crate::moments::after;
use crate::objects::PodRef;
use crate::step::Step as _;
use crate::verdict::Verdict::{self, Act, Ignore, Wait};
use crate::verdict::{Decision, judge};

/// Up to this many pods created together get an event each. More events would not be read, and the API server would
/// store them all.
const MENTIONED: usize = 25;

/// `pods` are those that the Job owns, `strays` those that it may adopt.
pub fn decide(
    job: &JobView,
    pods: &[PodView],
    strays: &[Stray],
    memory: &Memory,
    policy: &JobPolicy,
    now: Timestamp,
) -> Decision<JobWhy, Step> {
    judge(|ask| {
        let managed_by = job.spec.managed_by.as_deref();
        ask.that("Is the controller switched on?", policy.enabled, policy.enabled)
            .ok_or(Ignore(JobWhy::Disabled))?;
        ask.that("Is the Job ours?", managed_by.unwrap_or("no managedBy"), policy.manages(managed_by))
            .ok_or_else(|| Ignore(JobWhy::NotOurs { managed_by: managed_by.map(Into::into) }))?;
        let mode = job.spec.completion_mode.as_str();
        ask.that(
            "Is its completion mode known?",
            mode,
            !matches!(job.spec.completion_mode, CompletionMode::Unknown(_)),
        )
        .ok_or_else(|| {
            once(unknown_mode_note(&job.job), memory, JobWhy::UnknownMode { mode: mode.into() })
        })?;
        ask.none("Is it unfinished?", see_end(job), job.status.finished())
            .map_err(|end| after_the_end(job, pods, end, policy, now))?;
        let read = ReadBack::of(job, pods);
        let seen = read.as_ref().err().map_or_else(|| "yes".into(), Unreadable::to_string);
        ask.that("Can its status and annotations be read?", seen, read.is_ok());
        let read = read.map_err(|unreadable| held(job, pods, unreadable, memory))?;
        let record = Record::of(job, read.names.clone(), pods, memory);
        let claims = claims(job, pods, strays, &record, policy);
        ask.none("Are its pods those that its selector matches?", see_verdict(&claims), claims)?;

        let tally = Tally::of(job, &read, pods, memory, policy);
        let job_end = JobEnd::of(&tally, now).or_else(|| JobEnd::by_completions(&tally));
        let next = status::next(&tally, job_end.as_ref(), policy.max_uncounted_pods, policy, now);

        // Written before any action: after a crash the same pods, half of them ended by us, could look different.
        let unwritten = job_end.as_ref().filter(|job_end| !job_end.written);
        ask.none(
            "Is its end still open, or written in its status?",
            see_job_end(job_end.as_ref()),
            unwritten,
        )
        .map_err(|job_end| write(job, &next, &record, JobWhy::Decided { reason: job_end.reason.clone() }))?;
        let too_many = pods_too_many(&tally, job_end.as_ref(), &record, policy);
        // A pod that cannot be deleted now delays nothing else.
        let undeletable =
            memory.deletion_paused_until.filter(|until| now < *until).filter(|_| too_many.is_some());
        let too_many = too_many.filter(|_| undeletable.is_none());
        let seen = format_args!("{} active, {} terminating", tally.active.len(), tally.terminating.len());
        ask.none("Has it no pod too many?", seen, too_many)?;

        let batched =
            batched_until(&tally, &next, job_end.as_ref(), memory, policy).filter(|until| now < *until);
        let counted = counted(&tally, &read, job_end.as_ref(), batched.is_some());
        let names_due =
            job_end.is_none() && !job.deleting && counted.iter().any(|pod| !record.is_written(pod));
        let due = match batched {
            None => (next != job.status || names_due).then_some(next),
            // A count that has begun is finished: released pods are counted, and no others are added.
            Some(_) => (tally.all_listed_are_free() || names_due)
                .then(|| status::next(&tally, job_end.as_ref(), 0, policy, now)),
        };
        let counted = let_go(counted.into_iter().filter_map(PodView::tracked), false);
        // Users wait for pods, so these come first. But where pods end as fast as they are created, some are always
        // missing, so the rest gets its turn between two rounds of them.
        let rest_has_its_turn = memory.made_pods && (due.is_some() || counted.is_some());
        let need = if job_end.is_some() || job.deleting || rest_has_its_turn {
            Need::Nothing
        } else {
            need(&tally, &record, memory, policy, now)
        };
        let (pods_to_make, waits) = match need {
            Need::Pods(actions) => (Some(actions), None),
            Need::Later(until, why) => (None, Some((Some(until), why))),
            Need::Others(why) => (None, Some((None, why))),
            Need::Nothing => (None, None),
        };
        ask.none("Has it all pods that it may have now?", see_need(&tally, waits.as_ref()), pods_to_make)
            .map_err(|actions| Act { actions, why: JobWhy::NeedsPods { wanted: wanted(&tally) } })?;
        ask.none("Is its status up to date?", see_status(due.as_ref().unwrap_or(&job.status)), due)
            .map_err(|next| write(job, &next, &record, JobWhy::StatusChanged))?;
        ask.none("Is the finalizer of every counted pod removed?", see_some(&counted), counted)
            .map_err(|actions| Act { actions, why: JobWhy::Counted })?;

        let deadline = deadline(&tally).filter(|_| job_end.is_none());
        let put_off = batched.map(|until| (None, JobWhy::Batching { until }));
        let refused = undeletable.map(|until| (None, JobWhy::DeletionRefused { until }));
        let waits = waits.or(refused).or(put_off);
        let (until, why) = waits.unwrap_or_else(|| (None, at_rest(&tally, job_end.as_ref())));
        let until = [until, deadline, batched, undeletable].into_iter().flatten().min();
        Ok(match until {
            Some(until) => Wait { until, why },
            None => Ignore(why),
        })
    })
}

/// Decides on pods that are still tracked although their Job is gone, or is not ours any more. If the Job is
/// `anothers`, its controller may track them by the built-in finalizer, so only our own is removed.
pub fn decide_leftovers<'a>(
    pods: impl Iterator<Item = (&'a PodRef, Tracking)>,
    anothers: bool,
    policy: &JobPolicy,
) -> Decision<JobWhy, Step> {
    judge(|ask| {
        ask.that("Is the controller switched on?", policy.enabled, policy.enabled)
            .ok_or(Ignore(JobWhy::Disabled))?;
        let ours = pods.filter(|(_, tracking)| !anothers || *tracking == Tracking::Ours);
        let left = let_go(ours, true);
        ask.none("Has no pod of a deleted Job our finalizer?", see_some(&left), left)
            .map_err(|actions| Act { actions, why: JobWhy::Leftover })?;
        Ok(Ignore(JobWhy::Leftover))
    })
}

/// Decides on a Job whose selector may match pods that are older than it, until those pods are known: their work must
/// not be done twice.
pub fn decide_once_pods_are_found() -> Decision<JobWhy, Step> {
    judge(|ask| {
        ask.that("Are the pods known that are older than the Job?", "they are being looked for", false)
            .ok_or(Ignore(JobWhy::FindingPods))?;
        Ok(Ignore(JobWhy::FindingPods))
    })
}

// ---- steps ------------------------------------------------------------------------------------------

/// Does nothing, and records an event once, because a person should know.
fn once(note: EventNote, memory: &Memory, why: JobWhy) -> Verdict<JobWhy, Step> {
    match &memory.told {
        Some(told) if *told == note.name => Ignore(why),
        _ => Act { actions: vec![Step::Mention(note)], why },
    }
}

/// Decides on a Job with unreadable data. A Job that is being deleted still releases its pods: they go with it, and it
/// gets no others.
fn held(job: &JobView, pods: &[PodView], unreadable: Unreadable, memory: &Memory) -> Verdict<JobWhy, Step> {
    if !job.deleting {
        return once(unreadable_note(job, &unreadable), memory, JobWhy::UnreadableStatus(unreadable));
    }
    match let_go(pods.iter().filter_map(PodView::tracked), false) {
        Some(actions) => Act { actions, why: JobWhy::BeingDeleted },
        None => Ignore(JobWhy::BeingDeleted),
    }
}

fn after_the_end(
    job: &JobView,
    pods: &[PodView],
    end: &JobCondition,
    policy: &JobPolicy,
    now: Timestamp,
) -> Verdict<JobWhy, Step> {
    let kind = end.kind.clone();
    if let Some(actions) = let_go(pods.iter().filter_map(PodView::tracked), false) {
        return Act { actions, why: JobWhy::Leftover };
    }
    let ttl = job.spec.ttl_seconds_after_finished.filter(|_| policy.delete_finished && !job.deleting);
    let (Some(ttl), Some(ended)) = (ttl, end.last_transition_time) else {
        return Ignore(JobWhy::Finished { kind });
    };
    let until = after(ended, SignedDuration::from_secs(ttl.max(0)));
    if now < until {
        Wait { until, why: JobWhy::Finished { kind } }
    } else {
        let delete = Step::DeleteJob { job: job.job.clone(), resource_version: job.resource_version.clone() };
        Act { actions: vec![delete], why: JobWhy::Expired { ended } }
    }
}

/// Adopts pods that the selector matches, and releases pods that it does not match. A Job that is being deleted does
/// neither: its pods go with it.
fn claims(
    job: &JobView,
    pods: &[PodView],
    strays: &[Stray],
    record: &Record<'_>,
    policy: &JobPolicy,
) -> Option<Verdict<JobWhy, Step>> {
    let selector = &job.spec.selector;
    if job.deleting || selector.is_empty() {
        return None;
    }
    let finalizer = |tracking: Option<Tracking>| tracking.unwrap_or(Tracking::Ours).finalizer();
    let lost = || pods.iter().filter(|pod| !pod.selected.by(selector)).take(policy.max_pods_at_once);
    if let Some(first) = names_first(job, record, lost()) {
        return Some(first);
    }
    let lost = lost().map(|pod| Step::ReleasePod {
        pod: pod.pod.clone(),
        job: job.job.clone(),
        finalizer: finalizer(pod.tracking),
    });
    let found = strays.iter().filter(|stray| stray.adoptable && selector.matches(&stray.labels));
    let found = found.map(|stray| Step::AdoptPod {
        pod: stray.pod.clone(),
        resource_version: stray.resource_version.clone(),
        job: job.job.clone(),
        finalizer: finalizer(stray.tracking),
    });
    let actions = at_once(lost.chain(found).take(policy.max_pods_at_once).collect())?;
    Some(Act { actions, why: JobWhy::Claiming })
}

/// Records a pod's name as used before its finalizer is removed: once the pod is gone, there is no other trace of the
/// name.
fn names_first<'a>(
    job: &JobView,
    record: &Record<'_>,
    mut pods: impl Iterator<Item = &'a PodView>,
) -> Option<Verdict<JobWhy, Step>> {
    let unwritten = pods.any(|pod| !record.is_written(pod));
    unwritten.then(|| write(job, &job.status, record, JobWhy::RecordingNames))
}

fn write(job: &JobView, next: &JobStatus, record: &Record<'_>, why: JobWhy) -> Verdict<JobWhy, Step> {
    let patch = Step::PatchJobStatus {
        job: job.job.clone(),
        resource_version: job.resource_version.clone(),
        status: Box::new(next.clone()),
        // A finished Job creates no pods.
        used_names: if next.finished().is_some() { None } else { record.news() },
    };
    let mut actions = vec![patch];
    actions.extend(news(job, next).into_iter().map(Step::Mention));
    Act { actions, why }
}

/// Deletes pods that the Job no longer needs.
fn pods_too_many(
    tally: &Tally<'_>,
    job_end: Option<&JobEnd>,
    record: &Record<'_>,
    policy: &JobPolicy,
) -> Option<Verdict<JobWhy, Step>> {
    let job = tally.job;
    let (mut victims, why) = match job_end {
        Some(job_end) => (tally.active.clone(), JobWhy::Decided { reason: job_end.reason.clone() }),
        None if job.deleting => return None,
        None if job.spec.suspend => (tally.active.clone(), JobWhy::Suspending),
        None => (tally.surplus(wanted(tally)), JobWhy::TooManyPods { wanted: wanted(tally) }),
    };
    victims.truncate(policy.max_pods_at_once);
    let deletes = at_once(victims.iter().map(|pod| Step::DeletePod { pod: pod.pod.clone() }).collect())?;
    // A pod that is not needed has not failed, so it loses its finalizer before it is deleted. A pod that ends because
    // the Job has failed is counted with it.
    let counts = job_end.is_some_and(|job_end| job_end.ending == Ending::Failure);
    // A Job whose end is settled creates no more pods.
    if job_end.is_none()
        && let Some(first) = names_first(job, record, victims.iter().copied())
    {
        return Some(first);
    }
    let tracked = victims.iter().filter_map(|pod| pod.tracked());
    let first = if counts { None } else { let_go(tracked, false) };
    let mut actions = first.unwrap_or_default();
    actions.extend(deletes);
    let told = victims.iter().take(MENTIONED);
    actions.extend(told.map(|pod| Step::Mention(deleted_note(&job.job, &pod.pod))));
    Some(Act { actions, why })
}

enum Need {
    Nothing,
    Pods(Vec<Step>),
    Later(Timestamp, JobWhy),
    Others(JobWhy),
}

fn need(tally: &Tally<'_>, record: &Record<'_>, memory: &Memory, policy: &JobPolicy, now: Timestamp) -> Need {
    let Some(MissingPods { room, pause, turns }) = MissingPods::of(tally, memory, policy, now) else {
        return Need::Nothing;
    };
    if room == 0 {
        return Need::Others(awaiting_termination(tally));
    }
    if let Some((until, why)) = pause {
        return Need::Later(until, why);
    }
    let Some(turns) = turns else {
        return Need::Pods(make_pods(tally, record, memory, policy, &vec![None; room]));
    };
    let due = turns.iter().filter(|turn| turn.rests_until.is_none_or(|until| until <= now));
    let due: Vec<Option<u32>> = due.map(|turn| Some(turn.index)).collect();
    if !due.is_empty() {
        return Need::Pods(make_pods(tally, record, memory, policy, &due));
    }
    match turns.iter().filter_map(|turn| turn.rests_until).min() {
        Some(until) => Need::Later(until, JobWhy::BackingOff { until }),
        None if tally.only_failed && !tally.terminating.is_empty() => {
            Need::Others(awaiting_termination(tally))
        }
        // The remaining indexes have failed for good.
        None => Need::Nothing,
    }
}

/// Larger pod templates than this reduce the number of pods per round. A template may be as large as etcd accepts, and
/// its author also sets the number of pods.
const ORDINARY_BYTES: usize = 4 * 1024;

/// Slow start: one pod, then two, then four; when one is refused, most others would be too. Existing pods show that
/// pods are accepted, as long as none was refused since.
fn make_pods(
    tally: &Tally<'_>,
    record: &Record<'_>,
    memory: &Memory,
    policy: &JobPolicy,
    places: &[Option<u32>],
) -> Vec<Step> {
    let job = tally.job;
    let reason = if tally.only_failed && tally.failed > 0 {
        CreationReason::RecreateFailed
    } else if tally.failed > 0 || !tally.terminating.is_empty() {
        CreationReason::RecreateTerminatingOrFailed
    } else {
        CreationReason::New
    };
    let mut names = Chooser::new(&record.naming, &record.used, &memory.taken_names);
    let parsed_template = ParsedTemplate::of(job);
    // The others follow in the next round.
    let bytes = policy.max_pods_at_once.saturating_mul(ORDINARY_BYTES);
    let at_most = (bytes / job.spec.template.0.len().max(1)).max(1);
    let places = &places[..places.len().min(at_most)];
    let mut creates = places.iter().enumerate().map(|(position, index)| {
        let name = names.choose(*index);
        let failures = index.map_or(IndexFailures::default(), |index| tally.failures_before(index));
        let body = parsed_template.pod(&name, *index, failures);
        Step::CreatePod { job: job.job.clone(), name, body, reason, told: position < MENTIONED }
    });
    let mut actions = Vec::new();
    let mut size = if memory.creation_paused_until.is_none() { tally.active.len().max(1) } else { 1 };
    loop {
        let batch: Vec<Step> = creates.by_ref().take(size).collect();
        let Some(batch) = at_once(batch) else { break };
        actions.extend(batch);
        size *= 2;
    }
    actions
}

/// Pods whose end is recorded in the status, or does not count: their finalizer may be removed.
fn counted<'a>(
    tally: &Tally<'a>,
    read: &ReadBack,
    job_end: Option<&JobEnd>,
    status_is_behind: bool,
) -> Vec<&'a PodView> {
    let uncounted = tally.job.status.uncounted_terminated_pods.as_ref();
    let written = |pod: &&PodView| {
        if uncounted.is_some_and(|lists| lists.contains(&pod.pod.uid)) {
            return true;
        }
        match tally.outcome(pod, job_end.map(|job_end| job_end.ending)) {
            Outcome::Succeeded => {
                tally.job.spec.is_indexed() && pod.index.is_some_and(|index| read.completed.contains(index))
            }
            Outcome::Dropped => !status_is_behind,
            Outcome::Failed | Outcome::Open => false,
        }
    };
    tally.pods.iter().filter(|pod| pod.is_tracked()).filter(written).collect()
}

/// Removes the finalizer of pods.
fn let_go<'a>(pods: impl Iterator<Item = (&'a PodRef, Tracking)>, owner_gone: bool) -> Option<Vec<Step>> {
    let removal = |(pod, tracking): (&PodRef, Tracking)| {
        let finalizer = tracking.finalizer();
        Step::RemoveFinalizer { pod: pod.clone(), finalizer, owner_gone }
    };
    at_once(pods.map(removal).collect())
}

/// Steps that may run together, as one; none if there are none.
fn at_once(mut steps: Vec<Step>) -> Option<Vec<Step>> {
    match steps.len() {
        0 => None,
        1 => steps.pop().map(|only| vec![only]),
        _ => Some(vec![Step::AtOnce { steps }]),
    }
}

// ---- waiting ----------------------------------------------------------------------------------------

/// Until when a write that only changes counters waits to be batched with others; none if it does not wait.
fn batched_until(
    tally: &Tally<'_>,
    next: &JobStatus,
    job_end: Option<&JobEnd>,
    memory: &Memory,
    policy: &JobPolicy,
) -> Option<Timestamp> {
    let now = &tally.job.status;
    // The end of a Job waits until every pod has lost its finalizer, and so for the write before that. After that, the
    // status only counts how the pods disappear.
    let hastens_the_end = job_end.is_some() && tally.pods.iter().any(PodView::is_tracked);
    let urgent = hastens_the_end
        || *now == *next
        || now.conditions != next.conditions
        || now.start_time != next.start_time
        || now.completion_time != next.completion_time;
    memory.status_written.filter(|_| !urgent).map(|written| after(written, policy.batch_period))
}

fn at_rest(tally: &Tally<'_>, job_end: Option<&JobEnd>) -> JobWhy {
    match job_end {
        Some(job_end) => {
            JobWhy::Ending { reason: job_end.reason.clone(), pods: waiting_pods(&tally.terminating) }
        }
        None if tally.job.deleting => JobWhy::BeingDeleted,
        None if tally.job.spec.suspend => JobWhy::Suspended,
        None => JobWhy::Running { active: tally.active.len(), succeeded: tally.succeeded },
    }
}

fn awaiting_termination(tally: &Tally<'_>) -> JobWhy {
    JobWhy::AwaitingTermination { pods: waiting_pods(&tally.terminating) }
}

fn waiting_pods(pods: &[&PodView]) -> Vec<WaitingPod> {
    let mut waiting: Vec<WaitingPod> = pods
        .iter()
        .map(|pod| WaitingPod { index: pod.index, name: pod.pod.name.clone(), node: pod.node.clone() })
        .collect();
    waiting.sort();
    waiting
}

// ---- what was seen ----------------------------------------------------------------------------------

fn see_end(job: &JobView) -> String {
    job.status.finished().map_or_else(|| "no end yet".into(), |end| format!("{}: {}", end.kind, end.reason))
}

fn see_verdict(step: &Option<Verdict<JobWhy, Step>>) -> String {
    see_steps(step.iter().flat_map(Verdict::actions))
}

fn see_some(actions: &Option<Vec<Step>>) -> String {
    see_steps(actions.iter().flatten())
}

fn see_steps<'a>(actions: impl Iterator<Item = &'a Step>) -> String {
    let steps: usize = actions.map(|action| action.steps().len()).sum();
    if steps == 0 { "yes".into() } else { format!("not {steps} of them") }
}

fn see_job_end(job_end: Option<&JobEnd>) -> String {
    match job_end {
        None => "open".into(),
        Some(job_end) => {
            let written = if job_end.written { "written down" } else { "not written down yet" };
            format!("{:?} by {}, {written}", job_end.ending, job_end.reason)
        }
    }
}

fn see_need(tally: &Tally<'_>, waits: Option<&(Option<Timestamp>, JobWhy)>) -> String {
    let (active, wanted) = (tally.active.len(), wanted(tally));
    match waits {
        None => format!("{active} of {wanted}"),
        Some((_, why)) => format!("{active} of {wanted}. {why}"),
    }
}

fn see_status(next: &JobStatus) -> String {
    let JobStatus { active, succeeded, failed, terminating, .. } = next;
    let terminating = terminating.map_or_else(|| "not tracked".into(), |n| n.to_string());
    format!("active {active}, succeeded {succeeded}, failed {failed}, terminating {terminating}")
}
