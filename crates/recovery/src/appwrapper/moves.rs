//! Checks and transitions that several phases of an AppWrapper share.

use jiff::{SignedDuration, Timestamp};

use super::admitted::Comparison;
use super::conditions::Gone;
use super::creation;
use super::deletion::{self, Plan, Progress};
use super::health::own_pods;
use super::names::conditions::{DELETING_RESOURCES, RESOURCES_DEPLOYED};
use super::names::reasons::DELETION_PAUSED;
use super::notes;
use super::policy::{AppWrapperPolicy, Timers};
use super::reasons::AppWrapperWhy as Why;
use super::resets::{Cause, Course, Evidence, record};
use super::status::{AppWrapperStatus, Phase};
use super::steps::{Stakes, Step};
use super::views::{AppWrapperView, Authorship, FoundComponent};
use crate::event::EventNote;
use crate::moments::{ANNOUNCE_WITHIN, after};
use crate::verdict::Trace;
use crate::verdict::Verdict::{self, Ignore};

/// How long to wait before checking again for keys that were not read yet. They are read at process start.
const KEYS_WITHIN: SignedDuration = SignedDuration::from_secs(1);
/// Retry interval for a suspended AppWrapper, for which nothing is created. There may be thousands.
const KEYS_WITHIN_WHILE_SUSPENDED: SignedDuration = SignedDuration::from_secs(15);
const KEYS_UNREAD: &str = "the keys of stamps were not read yet";

/// The result of one decision about an AppWrapper.
pub(super) enum Turn {
    /// These steps, after the status write if the status changes.
    Do { stakes: Stakes, notes: Vec<EventNote>, steps: Vec<Step>, why: Why },
    /// Only this step, without a status write: the step changes the AppWrapper's resourceVersion, on which the status
    /// write would depend.
    Only { step: Box<Step>, why: Why },
    /// Nothing before that time.
    Wait { until: Timestamp, why: Why },
    /// Nothing before something changes.
    Rest(Why),
}

pub(super) type Turned = Result<Turn, Turn>;

pub(super) struct Machine<'a> {
    pub(super) view: &'a AppWrapperView,
    pub(super) policy: &'a AppWrapperPolicy,
    pub(super) timers: &'a Timers,
    pub(super) now: Timestamp,
    /// The status after this decision.
    pub(super) next: AppWrapperStatus,
}

impl Machine<'_> {
    // ---- questions that more than one phase asks ----------------------------------------------------

    /// Suspending takes precedence over everything else until the AppWrapper has ended.
    pub(super) fn not_suspended(&mut self, ask: &mut Trace) -> Result<(), Turn> {
        let seen = format_args!("spec.suspend is {}", self.view.suspend);
        if ask.that("Is it still to run?", seen, !self.view.suspend).is_some() {
            return Ok(());
        }
        let phase = std::mem::replace(&mut self.next.phase, Phase::Suspending);
        self.next.set_deleting(self.now);
        let notes = vec![notes::suspending(self.view)];
        let (stakes, steps) = (Stakes::Bookkeeping, Vec::new());
        Err(Turn::Do { stakes, notes, steps, why: Why::Suspending { phase } })
    }

    /// Records what was admitted, once, and reports whether it was changed since or is refused now. The other phases
    /// create nothing, so their condition stays as it was.
    pub(super) fn see_to_admission(&mut self) {
        match self.view.status.phase {
            Phase::Empty | Phase::Suspended | Phase::Resuming | Phase::Running | Phase::Resetting => {}
            Phase::Suspending | Phase::Succeeded | Phase::Failed | Phase::Terminating | Phase::Unknown(_) => {
                return;
            }
        }
        let problem = self.not_as_it_must_be();
        match self.view.authorship {
            Authorship::Fine | Authorship::Refused(_) => {
                self.next.set_components_valid(problem.as_deref(), self.now);
            }
            // While reviews are unanswered, the condition stays as it is.
            Authorship::NoKeys | Authorship::Unanswered { .. } => {}
        }
        match &self.view.admitted {
            Comparison::New(admitted) if problem.is_none() && !self.view.memory.record_is_dropped => {
                self.next.admitted = Some(admitted.clone());
            }
            Comparison::New(_) | Comparison::Same | Comparison::Changed(_) => {}
        }
    }

    /// Records the PodSets once nothing forbids the components: the status of a refused AppWrapper stays small.
    pub(super) fn record_pod_sets(&mut self) {
        if self.not_as_it_must_be().is_none() {
            self.next.init_components(&self.view.components);
        }
    }

    /// Why nothing may be created: the components were changed, the admission rules refuse them, or their author may
    /// not create them.
    pub(super) fn not_as_it_must_be(&self) -> Option<String> {
        let unauthorized = || match &self.view.authorship {
            Authorship::Refused(message) => Some(message.clone()),
            Authorship::Fine | Authorship::NoKeys | Authorship::Unanswered { .. } => None,
        };
        self.view.admitted.refusal().or_else(|| self.view.refused.clone()).or_else(unauthorized)
    }

    /// Components that were changed after admission are not created. The change may be reverted until `give_up`; then
    /// the AppWrapper fails, because it must not hold quota forever.
    pub(super) fn unchanged(&mut self, ask: &mut Trace, give_up: Timestamp) -> Result<(), Turn> {
        let refusal = self.view.admitted.refusal();
        let seen = refusal.as_deref().unwrap_or("yes").to_owned();
        ask.none("Is it as it was admitted?", seen, refusal).map_err(|message| {
            if self.now < give_up {
                return Turn::Wait { until: give_up, why: Why::Changed { message } };
            }
            let forbidden = self.view.admitted.forbidden().unwrap_or(message);
            let mut evidence = Evidence::new(Cause::Refused, forbidden);
            evidence.terminal = true;
            self.reset_or_fail(evidence)
        })
    }

    /// The admission rules are checked before every creation: there may have been no webhook, or other rules at that
    /// time.
    pub(super) fn admitted(&mut self, ask: &mut Trace) -> Result<(), Turn> {
        let refused = self.view.refused.as_deref();
        let message = ask.none("Do the rules of admission allow it?", refused.unwrap_or("yes"), refused);
        message.map_err(|message| {
            let mut evidence = Evidence::new(Cause::Refused, message);
            evidence.terminal = true;
            self.reset_or_fail(evidence)
        })
    }

    /// A suspended AppWrapper waits for its resumption. Before the keys are read it is not known whether it will be
    /// refused then.
    pub(super) fn while_suspended(&self) -> Turn {
        if let Some(message) = self.not_as_it_must_be() {
            return Turn::Rest(Why::SuspendedAndRefused { message });
        }
        match self.view.authorship {
            Authorship::NoKeys => {
                Turn::Wait { until: after(self.now, KEYS_WITHIN_WHILE_SUSPENDED), why: Why::Suspended }
            }
            Authorship::Fine | Authorship::Refused(_) | Authorship::Unanswered { .. } => {
                Turn::Rest(Why::Suspended)
            }
        }
    }

    /// No attempt begins for a refused author. An author whose permissions are unknown has until the end of the
    /// admission grace period, counted from the start of the attempt.
    pub(super) fn not_refused(&mut self, ask: &mut Trace) -> Result<(), Turn> {
        let refused = match &self.view.authorship {
            Authorship::Refused(message) => Some(message.clone()),
            Authorship::Fine | Authorship::NoKeys | Authorship::Unanswered { .. } => None,
        };
        let seen = refused.as_deref().unwrap_or("nothing is known against it").to_owned();
        ask.none("May its author create it?", seen, refused).map_err(|message| {
            let mut evidence = Evidence::new(Cause::Refused, message);
            evidence.terminal = true;
            self.reset_or_fail(evidence)
        })
    }

    /// Salvor creates users' objects with its own rights. So it creates nothing that the author may not create.
    /// Unanswered reviews must not hold quota for ever.
    pub(super) fn authorized(&mut self, ask: &mut Trace, give_up: Timestamp) -> Result<(), Turn> {
        const QUESTION: &str = "Is it known what its author may create?";
        self.not_refused(ask)?;
        let (message, retry_at) = match &self.view.authorship {
            Authorship::Fine | Authorship::Refused(_) => return Ok(()),
            Authorship::NoKeys => (KEYS_UNREAD.to_owned(), after(self.now, KEYS_WITHIN)),
            Authorship::Unanswered { message, retry_at } => {
                self.next.set_author_unknown(message, self.now);
                (message.clone(), *retry_at)
            }
        };
        if self.now >= give_up {
            ask.that(QUESTION, &message, false);
            let error = format!("it is not known what their author may create: {message}");
            return Err(self.reset_or_fail(create_failed(&error)));
        }
        // When the retry is due, the reviews before the creation ask again.
        ask.that(QUESTION, &message, self.now >= retry_at)
            .ok_or(Turn::Wait { until: retry_at.min(give_up), why: Why::AuthorUnknown { message } })
    }

    /// A creation whose answer was lost may take effect after everything was deleted.
    pub(super) fn nothing_left_over(&mut self, ask: &mut Trace) -> Result<(), Turn> {
        if self.next.holds(RESOURCES_DEPLOYED) {
            return Ok(());
        }
        let plan = self.deletions(deletion::own_objects(self.view));
        let pods = deletion::pods_left_over(self.view).count();
        let there = deletion::own_objects(self.view).count() + pods;
        if ask.that("Is nothing left over?", format_args!("{there} objects"), there == 0).is_some() {
            return Ok(());
        }
        let why = match plan.held() {
            Some(held) if plan.steps.is_empty() => Why::MachineMayRun(Box::new(held)),
            Some(_) | None => Why::LeftOver { left: deletion::left(self.view) },
        };
        Err(if plan.steps.is_empty() { Turn::Rest(why) } else { self.act(plan.steps, why) })
    }

    /// An AppWrapper owns its components and nothing else. Any other object was created and not recorded.
    pub(super) fn no_strays(&mut self, ask: &mut Trace) -> Result<(), Turn> {
        let strays: Vec<_> = self.view.strays.iter().filter(|it| self.view.owns(it)).collect();
        let seen = format_args!("{} objects more", strays.len());
        if ask.that("Does it own nothing but its components?", seen, strays.is_empty()).is_some() {
            return Ok(());
        }
        if let Some((index, found)) = creation::adoptable(self.view, &strays) {
            let component = &self.view.components[index];
            if let Some(status) = self.next.component_status.get_mut(index) {
                status.identify(component, &found.object.name);
                status.set_created(self.now);
            }
            let name = found.object.name.clone();
            return Err(self.write(Stakes::Bookkeeping, Why::Adopting { name }));
        }
        // The component was removed from the spec after admission. The workload stays as it was admitted.
        if matches!(self.view.admitted, Comparison::Changed(_)) {
            return Ok(());
        }
        // Strays that are being deleted, or that wait for a machine, block nothing.
        let due = self.deletions(strays.iter().copied()).steps;
        if due.is_empty() { Ok(()) } else { Err(self.act(due, Why::Strays { count: strays.len() })) }
    }

    fn deletions<'a>(&'a self, objects: impl Iterator<Item = &'a FoundComponent>) -> Plan {
        deletion::deletions(self.view, objects, self.policy, self.timers, self.now)
    }

    /// Makes sure that the event about the reset or the failure is recorded, even after a crash.
    pub(super) fn told(&mut self, ask: &mut Trace) -> Result<(), Turn> {
        let Some(last) = self.view.status.resets.last() else { return Ok(()) };
        let recent = last.time.is_some_and(|time| self.now < after(time, ANNOUNCE_WITHIN));
        let note = notes::unhealthy(self.view, last);
        let known = !recent || self.view.memory.told.contains(&note.name);
        ask.that("Was told why?", &last.message, known)
            .ok_or_else(|| self.act(vec![Step::RecordEvent(note)], Why::Untold))
    }

    /// A cause that only Salvor repairs, so it gets no grace period.
    pub(super) fn sound(
        &mut self,
        ask: &mut Trace,
        question: &'static str,
        cause: Option<Evidence>,
    ) -> Result<(), Turn> {
        let seen = cause.as_ref().map_or("yes", |it| it.event.as_str()).to_owned();
        ask.none(question, seen, cause).map_err(|evidence| self.reset_or_fail(evidence))
    }

    /// A cause that the workload's own controllers have time to repair.
    pub(super) fn mending(
        &mut self,
        ask: &mut Trace,
        question: &'static str,
        cause: Option<Evidence>,
    ) -> Result<(), Turn> {
        let seen = cause.as_ref().map_or("yes", |it| it.event.as_str()).to_owned();
        ask.none(question, seen, cause).map_err(|evidence| {
            self.next.set_unhealthy(&evidence, self.now);
            let shown = self.next.unhealthy_since().unwrap_or(self.now);
            // The condition's time is rounded up to a second. The exact time counts, so that the grace period is not
            // longer.
            let since = self.view.memory.moment_behind(shown);
            let grace = self.timers.failure_grace;
            let until = after(since, grace);
            if grace.is_zero() || self.now >= until {
                return self.reset_or_fail(evidence);
            }
            let (cause, message) = (evidence.cause, evidence.condition);
            Turn::Wait { until, why: Why::Unhealthy { cause, message } }
        })
    }

    // ---- what phases lead to ------------------------------------------------------------------------

    pub(super) fn reset_or_fail(&mut self, evidence: Evidence) -> Turn {
        let course = Course::of(&evidence, self.next.resetting_count, self.timers, self.policy);
        self.next.set_unhealthy(&evidence, self.now);
        record(&mut self.next, course, &evidence, self.now);
        let paused = course.phase() == Phase::Failed && self.timers.deletion_on_failure_grace.is_positive();
        if self.next.holds(RESOURCES_DEPLOYED) {
            if paused {
                self.next.set_deletion_paused(self.timers.deletion_on_failure_grace, self.now);
            } else {
                self.next.set_deleting(self.now);
            }
        }
        let notes = self.next.resets.last().map(|it| notes::unhealthy(self.view, it)).into_iter().collect();
        let active = own_pods(self.view).filter(|it| it.is_active()).count();
        let Evidence { cause, event: message, .. } = evidence;
        let (count, limit) = (self.next.resetting_count, self.timers.retry_limit);
        let why = match course {
            Course::Reset { counted } => Why::Reset { cause, message, counted, count, limit },
            Course::Fail(why) => Why::GivenUp { cause, message, why },
        };
        let stakes = if self.next.holds(RESOURCES_DEPLOYED) {
            Stakes::TakesDown { pods: u32::try_from(active).unwrap_or(u32::MAX) }
        } else {
            Stakes::Final
        };
        Turn::Do { stakes, notes, steps: Vec::new(), why }
    }

    /// Deletes what is left. Once nothing is left, records that in the status and lets the phase continue.
    pub(super) fn delete_all(&mut self, ask: &mut Trace, gone: Gone) -> Result<(), Turn> {
        let left = deletion::left(self.view);
        ask.that("Is nothing of it left?", &left, left.count == 0);
        match deletion::advance(self.view, &mut self.next, self.timers, self.policy, self.now) {
            Progress::Done => {
                // Suspension and deletion write this together with the next change.
                let with_the_rest = matches!(gone, Gone::Suspended | Gone::Terminating);
                if self.next.holds(RESOURCES_DEPLOYED) && !with_the_rest {
                    self.next.set_gone(gone, self.now);
                    let phase = self.next.phase.clone();
                    return Err(self.write(Stakes::Final, Why::Deleted { phase }));
                }
                Ok(())
            }
            Progress::UnderWay { plan, left } => {
                let why = Why::Deleting { left, forced: plan.forced };
                Err(self.pursue(plan, why))
            }
        }
    }

    /// Carries out the due part of a deletion, and reports the machines for which the rest waits.
    pub(super) fn pursue(&mut self, plan: Plan, why: Why) -> Turn {
        let held = plan.held();
        let Plan { steps, next, .. } = plan;
        self.next.set_held(held.as_ref(), self.now);
        let known = self.next.condition(DELETING_RESOURCES).filter(|_| held.is_some());
        let note = known.map(|it| notes::machine_may_run(self.view, it.last_transition_time, &it.message));
        let notes: Vec<EventNote> =
            note.into_iter().filter(|note| !self.view.memory.told.contains(&note.name)).collect();
        let why = match held {
            Some(held) if steps.is_empty() => Why::MachineMayRun(Box::new(held)),
            Some(_) | None => why,
        };
        if !steps.is_empty() || !notes.is_empty() {
            return Turn::Do { stakes: Stakes::Bookkeeping, notes, steps, why };
        }
        next.map_or(Turn::Rest(why.clone()), |until| Turn::Wait { until, why })
    }

    /// When the AppWrapper failed, as recorded. For a record of another controller: since when its deletion is paused,
    /// or since when it is unhealthy.
    pub(super) fn failed_at(&self) -> Timestamp {
        let recorded = self.view.status.resets.last().filter(|it| it.phase == Phase::Failed);
        let paused = self.view.status.condition(DELETING_RESOURCES).filter(|it| it.reason == DELETION_PAUSED);
        recorded
            .and_then(|it| it.time)
            .or(paused.map(|it| it.last_transition_time))
            .or(self.view.status.unhealthy_since())
            .unwrap_or(self.view.created)
    }

    pub(super) fn errored(&mut self, index: usize) {
        if let Some(component) = self.next.component_status.get_mut(index) {
            component.set_creation_errored(self.now);
        }
    }

    pub(super) fn read_annotations(&mut self) -> Option<EventNote> {
        self.next.set_annotations_valid(&self.timers.defects, self.now);
        let note = notes::unreadable(self.view, &self.timers.defects);
        (!self.timers.defects.is_empty() && self.next != self.view.status).then_some(note)
    }

    pub(super) fn write(&self, stakes: Stakes, why: Why) -> Turn {
        Turn::Do { stakes, notes: Vec::new(), steps: Vec::new(), why }
    }

    pub(super) fn act(&self, steps: Vec<Step>, why: Why) -> Turn {
        Turn::Do { stakes: Stakes::Bookkeeping, notes: Vec::new(), steps, why }
    }

    /// A changed status is written first: it is true before any step is carried out, and survives a crash.
    pub(super) fn conclude(self, turn: Turn, unrecorded: Option<EventNote>) -> Verdict<Why, Step> {
        let changed = self.next != self.view.status;
        let patch = |stakes| Step::PatchStatus {
            appwrapper: self.view.appwrapper.clone(),
            resource_version: self.view.resource_version.clone(),
            status: Box::new(self.next.clone()),
            stakes,
        };
        let unrecorded = unrecorded.map(Step::RecordEvent);
        match turn {
            Turn::Do { stakes, notes, steps, why } => {
                let notes = notes.into_iter().map(Step::RecordEvent).chain(unrecorded);
                let actions: Vec<Step> =
                    changed.then(|| patch(stakes)).into_iter().chain(notes).chain(steps).collect();
                if actions.is_empty() { Ignore(why) } else { Verdict::Act { actions, why } }
            }
            Turn::Only { step, why } => Verdict::Act { actions: vec![*step], why },
            Turn::Wait { why, .. } | Turn::Rest(why) if changed => {
                let actions = std::iter::once(patch(Stakes::Bookkeeping)).chain(unrecorded).collect();
                Verdict::Act { actions, why }
            }
            Turn::Wait { until, why } => Verdict::Wait { until, why },
            Turn::Rest(why) => Ignore(why),
        }
    }
}

pub(super) fn create_failed(error: &str) -> Evidence {
    Evidence::new(Cause::CreateFailed, format!("error creating components: {error}"))
}
