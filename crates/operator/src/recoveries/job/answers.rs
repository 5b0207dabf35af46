//! Applies completed and refused steps: what the server's answers show, what is told, and what is counted.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::job::conditions;
use salvor_recovery::{
    event::EventNote,
    job::{Step, created_note, failure_action, refused_note, undeleted_note},
};

use super::{
    Jobs, KnownJob, Revised as _,
    metrics::SyncAction,
    pods::absence::Heard,
    subject::Subject,
    uncounted_yet,
    wire::{SeenPod, read_job, read_pod},
};
use crate::{
    client::revision::Told,
    engine::recovery::{Ended, Refused, View},
    execute::{Refusal, Written},
};

/// The backoff after the first pod that the server refused to create or delete, and its maximum.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

impl Jobs {
    pub(super) fn done(&mut self, subject: &Subject, step: &Step, answer: &Written, now: Timestamp) -> View {
        let Subject::Job(job) = subject else {
            if let Step::RemoveFinalizer { pod, .. } = step {
                self.pod_answered(&pod.uid, answer);
            }
            return View::Synced;
        };
        match step {
            Step::CreatePod { name, reason, .. } => {
                self.metrics.pod_created(reason.as_str(), "succeeded");
                let Written::Object(text) = answer else { return View::Lagging };
                let Ok(seen) = read_pod(text, self.policy.unmanaged_jobs) else { return View::Lagging };
                let ours = seen.is_of(job);
                if let Some(known) = self.jobs.get_mut(&job.uid) {
                    known.refusals = 0;
                    known.memory.creation_paused_until = None;
                    known.memory.made_pods |= ours;
                    if !ours {
                        known.memory.taken_names.insert(name.clone());
                    }
                }
                if ours {
                    self.pod_watch.saw(seen.revision());
                    self.take_pod(seen, Heard::Answer);
                }
            }
            Step::RemoveFinalizer { pod, .. } => {
                let known = self.jobs.get(&job.uid).zip(self.pods.get(&pod.uid));
                if let Some(action) = known.and_then(|(known, (_, pod))| failure_action(&known.view, pod)) {
                    self.metrics.failure_handled(action);
                }
                self.pod_answered(&pod.uid, answer);
            }
            Step::DeletePod { pod } => {
                if let Some(known) = self.jobs.get_mut(&job.uid) {
                    known.undeleted = 0;
                    known.memory.deletion_paused_until = None;
                }
                self.pod_answered(&pod.uid, answer);
            }
            Step::AdoptPod { pod, .. } | Step::ReleasePod { pod, .. } => {
                self.pod_answered(&pod.uid, answer);
            }
            Step::Mention(note) => {
                if let Some(known) = self.jobs.get_mut(&job.uid) {
                    known.memory.told = Some(note.name.clone());
                }
            }
            Step::PatchJobStatus { status, .. } => {
                let Written::Object(text) = answer else { return View::Lagging };
                let Ok(view) = read_job(text) else { return View::Lagging };
                // If the watch reported its deletion before the answer arrived, the Job must not come back.
                let Some(known) = self.jobs.get_mut(&job.uid) else { return View::Synced };
                known.memory.status_written = Some(now);
                known.memory.made_pods = false;
                if let Some(counted) = &known.counted {
                    self.metrics.status_written(&known.view.spec, counted, status);
                }
                known.counted = uncounted_yet(status);
                self.job_watch.saw(view.revision());
                self.take_job(view, Told::Alone);
            }
            // The watch reports the deletion.
            Step::DeleteJob { .. } => {}
            // Its steps are reported one by one.
            Step::AtOnce { .. } => {}
        }
        View::Synced
    }

    /// The event about a completed step, if it needs the server's answer.
    pub(super) fn worth_telling(
        &self,
        subject: &Subject,
        step: &Step,
        answer: &Written,
    ) -> Option<EventNote> {
        let (Subject::Job(job), Step::CreatePod { told: true, .. }) = (subject, step) else { return None };
        let Written::Object(text) = answer else { return None };
        let seen = read_pod(text, self.policy.unmanaged_jobs).ok()?;
        // An existing pod of that name with another owner was not created by us.
        match seen {
            SeenPod::OfJob { owner, pod } if owner.uid == job.uid => Some(created_note(job, &pod.pod)),
            SeenPod::OfJob { .. } | SeenPod::Stray(_) | SeenPod::Bare { .. } => None,
        }
    }

    pub(super) fn refused(
        &mut self,
        subject: &Subject,
        step: &Step,
        refusal: &Refusal,
        now: Timestamp,
    ) -> Refused {
        let Subject::Job(job) = subject else { return Refused::Waits };
        let Some(known) = self.jobs.get_mut(&job.uid) else { return Refused::Waits };
        let pause = |refusals: &mut u32| {
            let pause =
                FIRST_PAUSE.saturating_mul(2u32.saturating_pow((*refusals).min(16))).min(LONGEST_PAUSE);
            *refusals = refusals.saturating_add(1);
            now.checked_add(SignedDuration::try_from(pause).unwrap_or(SignedDuration::ZERO)).ok()
        };
        let note = match step {
            Step::CreatePod { reason, .. } => {
                self.metrics.pod_created(reason.as_str(), "failed");
                known.memory.creation_paused_until = pause(&mut known.refusals);
                refused_note(job, &refusal.words, now)
            }
            Step::DeletePod { pod } => {
                known.memory.deletion_paused_until = pause(&mut known.undeleted);
                undeleted_note(job, pod, &refusal.words, now)
            }
            Step::AtOnce { .. }
            | Step::Mention(_)
            | Step::PatchJobStatus { .. }
            | Step::RemoveFinalizer { .. }
            | Step::AdoptPod { .. }
            | Step::ReleasePod { .. }
            | Step::DeleteJob { .. } => return Refused::Waits,
        };
        // Nothing can be created in a terminating namespace, and no user reads events there.
        Refused::Judged((!refusal.namespace_terminates).then(|| Box::new(note)))
    }

    /// Counts one sync of a Job.
    pub(super) fn count(&self, subject: &Subject, end: &Ended<'_, Step>) {
        let Subject::Job(job) = subject else { return };
        let Some(KnownJob { view, .. }) = self.jobs.get(&job.uid).map(Box::as_ref) else { return };
        let any = |is: fn(&Step) -> bool| end.done.iter().any(|(step, _)| is(step));
        let settled = [conditions::SUCCESS_CRITERIA_MET, conditions::FAILURE_TARGET];
        let action = if any(|step| matches!(step, Step::CreatePod { .. })) {
            SyncAction::PodsCreated
        } else if any(|step| matches!(step, Step::DeletePod { .. })) {
            SyncAction::PodsDeleted
        } else if view.deleting || settled.iter().any(|kind| view.status.holds(kind).is_some()) {
            SyncAction::Reconciling
        } else {
            SyncAction::Tracking
        };
        self.metrics.synced(&view.spec.completion_mode, end.worked, action, end.took);
    }
}
