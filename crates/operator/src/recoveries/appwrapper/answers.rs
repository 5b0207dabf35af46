//! Applies completed, refused and failed steps: what the server's answers show, and what the rules must know of.

use jiff::Timestamp;
use salvor_recovery::{
    appwrapper::{AppWrapperRef, AppWrapperStatus, CreateFailure, FoundComponent, Step},
    event::EventNote,
    objects::ObjectRef,
};

use super::{
    AppWrappers,
    wire::{App, answered},
};
use crate::{
    client::{discovery::Kind, revision::Told},
    engine::recovery::{Refused, View},
    execute::{Failure, Refusal, Written},
};

impl AppWrappers {
    /// Applies a completed step, with the server's answer.
    pub(super) fn done(
        &mut self,
        subject: &AppWrapperRef,
        step: &Step,
        answer: &Written,
        now: Timestamp,
    ) -> View {
        match step {
            Step::PatchStatus { status, .. } => {
                if let Some(known) = self.apps.get_mut(&subject.uid) {
                    known.memory.wrote(status, now);
                }
                let known = self.apps.get_mut(&subject.uid).filter(|known| known.counted != status.phase);
                if let Some(known) = known {
                    known.counted.clone_from(&status.phase);
                    self.metrics.entered(&subject.namespace, &status.phase);
                }
                self.app_answered(subject, Some(status), answer)
            }
            Step::AddFinalizer { .. } | Step::RemoveFinalizer { .. } => {
                self.app_answered(subject, None, answer)
            }
            Step::CreateComponent { .. } => self.created(subject, step, answer, now),
            Step::DeleteComponent { object, .. } => match self.component_answered(object, answer) {
                Some(_) => View::Synced,
                None => View::Lagging,
            },
            Step::DeletePod { .. } | Step::FailPod { .. } => View::Lagging,
            // Its steps are reported one by one.
            Step::AtOnce { .. } => View::Synced,
            Step::RecordEvent(note) => {
                if let Some(known) = self.apps.get_mut(&subject.uid) {
                    known.memory.told.insert(note.name.clone());
                }
                View::Synced
            }
        }
    }

    /// Records that a component cannot be created, so that the rules report it.
    pub(super) fn refused(
        &mut self,
        subject: &AppWrapperRef,
        step: &Step,
        refusal: &Refusal,
        now: Timestamp,
    ) -> Refused {
        if let Step::RecordEvent(note) = step {
            return self.not_told(subject, note);
        }
        let words = match refusal.words.as_str() {
            "" => format!("the API server answered {} and gave no reason", refusal.code),
            words => words.to_owned(),
        };
        let how =
            if CreateFailure::is_fatal_answer(refusal.code) { Failing::ForGood } else { Failing::ForNow };
        self.not_created(subject, step, &words, how, now)
    }

    /// Records that the creation of a component failed for now, or may have, so that the rules know how long that
    /// lasts.
    pub(super) fn failed(
        &mut self,
        subject: &AppWrapperRef,
        step: &Step,
        failure: &Failure,
        now: Timestamp,
    ) -> Refused {
        if let Step::RecordEvent(note) = step {
            return self.not_told(subject, note);
        }
        match failure {
            Failure::Gone => self.not_created(subject, step, &failure.to_string(), Failing::ForNow, now),
            Failure::Unanswered(_) => {
                self.not_created(subject, step, &failure.to_string(), Failing::Unanswered, now)
            }
            // These back off and say nothing about the component. An error without an answer may come from the second
            // look, and too many requests are not the workload's fault.
            Failure::Api(_)
            | Failure::Throttled(_)
            | Failure::Stale
            | Failure::NotLeading
            | Failure::LookTooOld
            | Failure::DryRun
            | Failure::Forbidden { .. }
            | Failure::NamespaceTerminating(_)
            | Failure::Paused
            | Failure::ClockUnsettled
            | Failure::JustRestored => Refused::Waits,
        }
    }

    /// The work must not wait for an event that cannot be recorded: the engine keeps it and records it later.
    fn not_told(&mut self, subject: &AppWrapperRef, note: &EventNote) -> Refused {
        if let Some(known) = self.apps.get_mut(&subject.uid) {
            known.memory.told.insert(note.name.clone());
        }
        Refused::Judged(None)
    }

    fn not_created(
        &mut self,
        subject: &AppWrapperRef,
        step: &Step,
        words: &str,
        how: Failing,
        now: Timestamp,
    ) -> Refused {
        let Step::CreateComponent { index, .. } = step else { return Refused::Waits };
        let Some(known) = self.apps.get_mut(&subject.uid) else { return Refused::Waits };
        let attempts = known.memory.creation.get(index).map_or(0, |failure| failure.attempts);
        let failure = CreateFailure {
            message: words.to_owned(),
            fatal: how == Failing::ForGood,
            unanswered: how == Failing::Unanswered,
            at: now,
            attempts: attempts.saturating_add(1),
        };
        known.memory.creation.insert(*index, failure);
        Refused::Judged(None)
    }

    /// Applies an AppWrapper from the answer to a write. `wrote` is the status that was written.
    fn app_answered(
        &mut self,
        subject: &AppWrapperRef,
        wrote: Option<&AppWrapperStatus>,
        answer: &Written,
    ) -> View {
        let Written::Object(text) = answer else { return View::Lagging };
        let Ok((app, _)) = App::parse(text, &self.rules) else { return View::Lagging };
        // If the watch reported its deletion before the answer arrived, it must not come back.
        if let Some(known) = self.apps.get_mut(&subject.uid)
            && app.appwrapper.uid == subject.uid
        {
            if wrote.is_some_and(|status| status.admitted.is_some()) && app.status.admitted.is_none() {
                tracing::warn!(
                    %subject,
                    "AppWrapper CRD outdated: no status.admitted, apply the manifests of this version"
                );
                known.memory.record_is_dropped = true;
            }
            self.app_watch.saw(app.revision());
            self.take(app, Told::Alone);
        }
        View::Synced
    }

    /// Applies a component from the answer to a write; `None` if the answer is something else.
    fn component_answered(&mut self, object: &ObjectRef, answer: &Written) -> Option<FoundComponent> {
        let Written::Object(text) = answer else { return None };
        let kind = Kind {
            group: object.kind.group.clone().into_owned(),
            version: object.kind.version.clone().into_owned(),
            kind: object.kind.kind.clone().into_owned(),
        };
        let found = answered(&kind, &object.kind.resource, text)?;
        if let Some(store) = self.kinds.get_mut(&kind) {
            store.take(found.clone(), Told::Alone);
        }
        Some(found)
    }

    fn created(&mut self, subject: &AppWrapperRef, step: &Step, answer: &Written, now: Timestamp) -> View {
        let Step::CreateComponent { index, object, .. } = step else { return View::Synced };
        let Some(found) = self.component_answered(object, answer) else { return View::Lagging };
        let Some(known) = self.apps.get_mut(&subject.uid) else { return View::Synced };
        if found.owner_uid.as_ref() == Some(&subject.uid) {
            known.memory.creation.remove(index);
        } else {
            // It existed already and belongs to another owner.
            let message = format!("{object} exists and is not owned by this AppWrapper");
            let failure = CreateFailure { message, fatal: true, unanswered: false, at: now, attempts: 1 };
            known.memory.creation.insert(*index, failure);
        }
        View::Synced
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failing {
    /// A retry is useless.
    ForGood,
    /// The server refused it for now.
    ForNow,
    /// There was no answer: it may have been applied.
    Unanswered,
}
