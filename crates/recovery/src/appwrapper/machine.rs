//! What does this AppWrapper need next? One function for each phase, in the order in which an AppWrapper goes through them.

use jiff::{SignedDuration, Timestamp};

use super::conditions::Gone;
use super::creation::{self, Creation};
use super::deletion::{self, Progress};
use super::health::{Picture, deployed_since};
use super::names::CONTROLLER_NAME;
use super::names::conditions::{DELETING_RESOURCES, QUOTA_RESERVED, RESOURCES_DEPLOYED};
use super::names::reasons::DELETION_PAUSED;
use super::notes;
use super::policy::{AppWrapperPolicy, Timers};
use super::reasons::AppWrapperWhy as Why;
use super::resets::{Cause, Course, Evidence, record};
use super::status::{AppWrapperStatus, Phase};
use super::steps::{Manner, Note, Stakes, Step};
use super::views::AppWrapperView;
use crate::moments::{ANNOUNCE_WITHIN, after};
use crate::verdict::Verdict::{self, Ignore};
use crate::verdict::{Inquiry, Judgement, judge};

/// Pods often run within the second after their creation: then one write tells both.
const SETTLING: SignedDuration = SignedDuration::from_secs(1);

/// Judges one AppWrapper. `now` is the API server's time.
pub fn decide(
    view: &AppWrapperView,
    policy: &AppWrapperPolicy,
    now: Timestamp,
) -> Judgement<super::AppWrapperWhy, Step> {
    judge(|ask| {
        ask.that("Is the controller switched on?", policy.enabled, policy.enabled)
            .ok_or(Ignore(Why::Disabled))?;
        let foreign = view.managed_by.as_deref().filter(|it| *it != CONTROLLER_NAME);
        ask.none("Is the AppWrapper ours?", foreign.unwrap_or("yes"), foreign)
            .map_err(|it| Ignore(Why::NotOurs { managed_by: it.into() }))?;
        ask.that("Are all its pods known?", view.pods_known, view.pods_known)
            .ok_or(Ignore(Why::PodsUnknown))?;

        let timers = Timers::of(&view.annotations, policy);
        let mut machine = Machine { view, policy, timers: &timers, now, next: view.status.clone() };
        let untold = machine.read_annotations();
        let (Ok(turn) | Err(turn)) = machine.turn(ask);
        Ok(machine.conclude(turn, untold))
    })
}

/// What one look at an AppWrapper leads to.
enum Turn {
    /// These steps, after the status if that changes.
    Do { stakes: Stakes, notes: Vec<Note>, steps: Vec<Step>, why: Why },
    /// This step, and the status stays as it is: the step changes the AppWrapper itself, and with it the state that was judged.
    Only { step: Box<Step>, why: Why },
    /// Nothing before that time.
    Wait { until: Timestamp, why: Why },
    /// Nothing before something changes.
    Rest(Why),
}

type Turned = Result<Turn, Turn>;

struct Machine<'a> {
    view: &'a AppWrapperView,
    policy: &'a AppWrapperPolicy,
    timers: &'a Timers,
    now: Timestamp,
    /// The status as it will be.
    next: AppWrapperStatus,
}

impl Machine<'_> {
    fn turn(&mut self, ask: &mut Inquiry) -> Turned {
        if self.view.deleting {
            return self.terminating(ask);
        }
        match self.view.status.phase.clone() {
            Phase::Empty => self.empty(ask),
            Phase::Suspended => self.suspended(ask),
            Phase::Resuming => self.resuming(ask),
            Phase::Running => self.running(ask),
            Phase::Resetting => self.resetting(ask),
            Phase::Suspending => self.suspending(ask),
            Phase::Succeeded => self.succeeded(ask),
            Phase::Failed => self.failed(ask),
            // Only somebody's hand can write this phase on an AppWrapper that is not being deleted.
            Phase::Terminating => Ok(Turn::Rest(Why::UnknownPhase { phase: "Terminating".into() })),
            Phase::Unknown(phase) => Ok(Turn::Rest(Why::UnknownPhase { phase })),
        }
    }

    /// It is new: its PodSets are recorded, for Kueue to read.
    fn empty(&mut self, ask: &mut Inquiry) -> Turned {
        self.next.init_components(&self.view.components);
        let suspend = self.view.suspend;
        if suspend && self.view.refused.is_none() {
            ask.that("Is it to run?", "spec.suspend is true", false);
            self.next.phase = Phase::Suspended;
            return Ok(self.write(Stakes::Bookkeeping, Why::New));
        }
        self.suspended(ask)
    }

    /// Nothing of it exists, until it is to run.
    fn suspended(&mut self, ask: &mut Inquiry) -> Turned {
        self.nothing_left_over(ask)?;
        self.admitted(ask)?;
        ask.that("Is it to run?", format_args!("spec.suspend is {}", self.view.suspend), !self.view.suspend)
            .ok_or(Turn::Rest(Why::Suspended))?;
        // Before anything is created: without it the AppWrapper could be gone before what it made.
        let add = Step::AddFinalizer {
            appwrapper: self.view.appwrapper.clone(),
            resource_version: self.view.resource_version.clone(),
        };
        ask.that("Does it have its finalizer?", self.view.has_finalizer, self.view.has_finalizer)
            .ok_or(Turn::Only { step: Box::new(add), why: Why::NeedsFinalizer })?;

        self.next.set_creating(&self.view.components, self.now);
        self.next.set_resuming(self.now);
        self.next.phase = Phase::Resuming;
        Ok(self.write(Stakes::Bookkeeping, Why::Resuming))
    }

    /// Its components are created, in order.
    fn resuming(&mut self, ask: &mut Inquiry) -> Turned {
        self.not_suspended(ask)?;
        self.admitted(ask)?;
        self.no_strays(ask)?;
        let give_up = after(deployed_since(self.view, &self.next), self.timers.admission_grace);
        let creation = Creation::of(self.view, self.now);
        let seen = creation.to_string();
        match creation {
            Creation::Impossible { index, error } => {
                ask.that("Can its components be created?", seen, false);
                let mut evidence = create_failed(&error);
                evidence.terminal = true;
                self.errored(index);
                Err(self.reset_or_fail(evidence))
            }
            Creation::Hindered { index, error, retry_at } => {
                let why = Why::CreationFailed { error: error.clone() };
                let until = retry_at.map_or(give_up, |retry_at| retry_at.min(give_up));
                ask.that("Can its components be created?", seen, false);
                if self.now >= give_up {
                    self.errored(index);
                    return Err(self.reset_or_fail(create_failed(&error)));
                }
                Err(Turn::Wait { until, why })
            }
            Creation::Due { indexes } => {
                ask.that("Are all its components created?", seen, false);
                let steps: Vec<Step> =
                    indexes.iter().map(|index| creation::create(self.view, *index)).collect();
                Err(self.act(steps, Why::Creating { components: indexes.len() }))
            }
            Creation::Complete { since } => {
                ask.that("Are all its components created?", seen, true);
                self.created(ask, since)
            }
        }
    }

    /// All components exist.
    fn created(&mut self, ask: &mut Inquiry, since: Timestamp) -> Turned {
        for (index, component) in self.view.components.iter().enumerate() {
            let name = self.view.name_of(index).unwrap_or(&component.name);
            if let Some(status) = self.next.component_status.get_mut(index) {
                status.identify(component, name);
                status.set_created(self.now);
            }
        }
        self.next.phase = Phase::Running;
        // What made an earlier attempt unhealthy is gone, so that a new one has all its time.
        self.next.set_healthy(self.now);
        let counts = Picture::of(self.view, &self.next, self.timers, self.policy).counts;
        let settled = after(since, SETTLING);
        let early = self.now < settled && self.now >= since && !counts.are_sufficient();
        if ask.that("Have its pods had a second to start?", counts, !early).is_none() {
            self.next = self.view.status.clone();
            return Err(Turn::Wait { until: settled, why: Why::JustCreated });
        }
        self.next.set_pods_ready(&counts, self.now);
        Ok(self.write(Stakes::Bookkeeping, Why::Created))
    }

    /// Its components exist: are they healthy, done, or lost?
    fn running(&mut self, ask: &mut Inquiry) -> Turned {
        self.not_suspended(ask)?;
        self.no_strays(ask)?;
        let status = self.next.clone();
        let picture = Picture::of(self.view, &status, self.timers, self.policy);
        let counts = picture.counts;
        for index in picture.done() {
            if let Some(component) = self.next.component_status.get_mut(index) {
                component.set_succeeded(self.now);
            }
        }

        // Nobody else will mend these, so they have no grace period.
        self.sound(ask, "Are all its components there?", picture.missing())?;
        self.sound(ask, "Has no component failed?", picture.failed_components())?;

        if picture.is_successful() {
            let active = picture.active_pods().count();
            ask.that("Is its work not done yet?", format_args!("done; {active} pods have not ended"), false);
            if active > 0 {
                return Err(Turn::Rest(Why::Finishing { pods: active }));
            }
            let totals = picture.totals();
            self.next.set_healthy(self.now);
            self.next.set_succeeded(&totals, self.now);
            self.next.phase = Phase::Succeeded;
            return Err(self.write(Stakes::Final, Why::Succeeded { pods: totals.succeeded }));
        }
        ask.that("Is its work not done yet?", counts, true);
        self.sound(ask, "Is no pod on a node that is to be left?", picture.nodes_to_leave())?;

        self.next.set_pods_ready(&counts, self.now);
        self.mending(ask, "Are its pods well?", picture.pods_to_mend())?;
        if counts.are_sufficient() {
            ask.that("Do all its pods run?", counts, true);
            self.next.set_healthy(self.now);
            return Ok(Turn::Rest(Why::Healthy { counts }));
        }
        let status = self.next.clone();
        let picture = Picture::of(self.view, &status, self.timers, self.policy);
        let (until, stage) = picture.ready_by();
        let late = (self.now >= until).then(|| picture.insufficient());
        self.mending(ask, "Do its pods still have time to run?", late)?;
        self.next.set_healthy(self.now);
        Ok(Turn::Wait { until, why: Why::AwaitingPods { counts, stage } })
    }

    /// Everything is deleted, a pause, and everything is created again. Quota is kept.
    fn resetting(&mut self, ask: &mut Inquiry) -> Turned {
        self.told(ask)?;
        self.not_suspended(ask)?;
        self.next.clear_pods_ready("Resetting", self.now);
        self.delete_all(ask, Gone::Reset)?;

        let gone = self.next.condition(RESOURCES_DEPLOYED).filter(|it| it.is_false());
        let since = gone.map_or(self.view.created, |it| it.last_transition_time);
        let pause = self.timers.retry_pause;
        let until = after(since, pause);
        ask.that(
            "Is the pause over?",
            format_args!("until {until}, it is {}", self.now),
            pause.is_zero() || self.now >= until,
        )
        .ok_or(Turn::Wait { until, why: Why::Pausing })?;

        self.next.set_creating(&self.view.components, self.now);
        self.next.set_reset_complete(self.now);
        self.next.phase = Phase::Resuming;
        Ok(self.write(Stakes::Bookkeeping, Why::Resuming))
    }

    /// Everything is deleted, whatever `spec.suspend` says meanwhile: half of a workload is of no use.
    fn suspending(&mut self, ask: &mut Inquiry) -> Turned {
        self.delete_all(ask, Gone::Suspended)?;
        self.next.set_gone(Gone::Suspended, self.now);
        self.next.phase = Phase::Suspended;
        Ok(self.write(Stakes::Final, Why::Deleted { phase: Phase::Suspended }))
    }

    /// Its work is done. Components are kept for a while, counted from the success.
    fn succeeded(&mut self, ask: &mut Inquiry) -> Turned {
        self.nothing_left_over(ask)?;
        if !self.next.holds(RESOURCES_DEPLOYED) {
            return Ok(Turn::Rest(Why::Ended { phase: Phase::Succeeded }));
        }
        let ttl = self.timers.success_ttl;
        let released = self.next.condition(QUOTA_RESERVED).filter(|it| it.is_false());
        let since = released.map_or(self.view.created, |it| it.last_transition_time);
        let until = after(since, ttl);
        // Once begun, a deletion is brought to its end.
        let due = self.view.suspend || self.next.holds(DELETING_RESOURCES) || self.now >= until;
        ask.that("Is its time to live over?", format_args!("until {until}, it is {}", self.now), due)
            .ok_or(Turn::Wait { until, why: Why::KeptAfterSuccess { since } })?;
        let by_suspending = self.view.suspend && self.now < until;
        self.delete_all(ask, Gone::Succeeded { ttl, by_suspending })?;
        Ok(Turn::Rest(Why::Ended { phase: Phase::Succeeded }))
    }

    /// It is given up. Everything is deleted, perhaps after a while in which somebody may look at it.
    fn failed(&mut self, ask: &mut Inquiry) -> Turned {
        self.told(ask)?;
        self.nothing_left_over(ask)?;
        if !self.next.holds(RESOURCES_DEPLOYED) {
            if self.next.holds(QUOTA_RESERVED) {
                self.next.release_quota("Failed", self.now);
                return Err(self.write(Stakes::Final, Why::Deleted { phase: Phase::Failed }));
            }
            return Ok(Turn::Rest(Why::Ended { phase: Phase::Failed }));
        }
        let delay = self.timers.deletion_on_failure_grace;
        let since = self.failed_at();
        let until = after(since, delay);
        let begun = self.next.holds(DELETING_RESOURCES);
        let due = delay.is_zero() || begun || self.view.suspend || self.now >= until;
        let seen = format_args!("until {until}, it is {}", self.now);
        if ask.that("Is the time for looking at it over?", seen, due).is_none() {
            self.next.set_deletion_paused(delay, self.now);
            return Err(Turn::Wait { until, why: Why::KeptAfterFailure { since } });
        }
        let by_suspending = delay.is_positive() && self.view.suspend;
        self.delete_all(ask, Gone::Failed { by_suspending })?;
        Ok(Turn::Rest(Why::Ended { phase: Phase::Failed }))
    }

    /// Somebody deletes the AppWrapper: everything is deleted, then it may go. No delay counts.
    fn terminating(&mut self, ask: &mut Inquiry) -> Turned {
        ask.that("Is it to stay?", "it is being deleted", false);
        ask.that("Does it have our finalizer?", self.view.has_finalizer, self.view.has_finalizer)
            .ok_or(Turn::Rest(Why::BeingDeleted))?;
        // Where nothing was deployed, only what the AppWrapper owns counts: a label alone is anybody's to write.
        if self.next.holds(RESOURCES_DEPLOYED) || deletion::own_objects(self.view).next().is_some() {
            let phase = std::mem::replace(&mut self.next.phase, Phase::Terminating);
            self.delete_all(ask, Gone::Terminating)?;
            // Where nothing is left it goes at once, with the phase that it had.
            self.next.phase = phase;
        }
        if self.next.holds(RESOURCES_DEPLOYED) || self.next.holds(QUOTA_RESERVED) {
            self.next.set_gone(Gone::Terminating, self.now);
            return Err(self.write(Stakes::Final, Why::Deleted { phase: Phase::Terminating }));
        }
        let step = Step::RemoveFinalizer {
            appwrapper: self.view.appwrapper.clone(),
            resource_version: self.view.resource_version.clone(),
        };
        Ok(Turn::Only { step: Box::new(step), why: Why::Released })
    }

    // ---- questions that more than one phase asks ----------------------------------------------------

    /// Suspending wins over all else, as long as the AppWrapper has not come to its end.
    fn not_suspended(&mut self, ask: &mut Inquiry) -> Result<(), Turn> {
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

    /// Where no webhook asked the rules of admission, they are asked before anything is created.
    fn admitted(&mut self, ask: &mut Inquiry) -> Result<(), Turn> {
        let refused = self.view.refused.as_deref();
        let message = ask.none("Do the rules of admission allow it?", refused.unwrap_or("yes"), refused);
        message.map_err(|message| {
            let mut evidence = Evidence::new(Cause::Refused, message);
            evidence.terminal = true;
            self.reset_or_fail(evidence)
        })
    }

    /// A creation whose answer was lost may take effect when nothing should exist any more.
    fn nothing_left_over(&mut self, ask: &mut Inquiry) -> Result<(), Turn> {
        if self.next.holds(RESOURCES_DEPLOYED) {
            return Ok(());
        }
        let due = deletion::deletions(self.view, Manner::Graceful);
        let there = deletion::own_objects(self.view).count();
        if ask.that("Is nothing left over?", format_args!("{there} objects"), there == 0).is_some() {
            return Ok(());
        }
        let why = Why::LeftOver { left: deletion::left(self.view) };
        Err(if due.is_empty() { Turn::Rest(why) } else { self.act(due, why) })
    }

    /// An AppWrapper owns its components and nothing else. More can only be what was created and not recorded.
    fn no_strays(&mut self, ask: &mut Inquiry) -> Result<(), Turn> {
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
        let due: Vec<Step> = strays
            .iter()
            .filter(|it| !it.is_deleting())
            .map(|it| Step::DeleteComponent {
                object: it.object.clone(),
                resource_version: it.resource_version.clone(),
                manner: Manner::Graceful,
            })
            .collect();
        // Those that go hold up nothing.
        if due.is_empty() { Ok(()) } else { Err(self.act(due, Why::Strays { count: strays.len() })) }
    }

    /// The event about the reset or the failure is recorded, also after a crash.
    fn told(&mut self, ask: &mut Inquiry) -> Result<(), Turn> {
        let Some(last) = self.view.status.resets.last() else { return Ok(()) };
        let recent = last.time.is_some_and(|time| self.now < after(time, ANNOUNCE_WITHIN));
        let note = notes::unhealthy(self.view, last);
        let known = !recent || self.view.memory.told.contains(&note.name);
        ask.that("Was told why?", &last.message, known)
            .ok_or_else(|| self.act(vec![Step::RecordEvent(note)], Why::Untold))
    }

    /// A cause that nobody but us will mend.
    fn sound(
        &mut self,
        ask: &mut Inquiry,
        question: &'static str,
        cause: Option<Evidence>,
    ) -> Result<(), Turn> {
        let seen = cause.as_ref().map_or("yes", |it| it.event.as_str()).to_owned();
        ask.none(question, seen, cause).map_err(|evidence| self.reset_or_fail(evidence))
    }

    /// A cause that the workload's own controllers have time to mend.
    fn mending(
        &mut self,
        ask: &mut Inquiry,
        question: &'static str,
        cause: Option<Evidence>,
    ) -> Result<(), Turn> {
        let seen = cause.as_ref().map_or("yes", |it| it.event.as_str()).to_owned();
        ask.none(question, seen, cause).map_err(|evidence| {
            self.next.set_unhealthy(&evidence, self.now);
            let since = self.next.unhealthy_since().unwrap_or(self.now);
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

    fn reset_or_fail(&mut self, evidence: Evidence) -> Turn {
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
        let active = super::health::own_pods(self.view).filter(|it| it.is_active()).count();
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

    /// Deletes what is left. When nothing is, the status says so, and the phase goes on.
    fn delete_all(&mut self, ask: &mut Inquiry, gone: Gone) -> Result<(), Turn> {
        let left = deletion::left(self.view);
        ask.that("Is nothing of it left?", &left, left.count == 0);
        match deletion::advance(self.view, &mut self.next, self.timers, self.now) {
            Progress::Done => {
                // Suspending and deletion write it together with what follows.
                let with_the_rest = matches!(gone, Gone::Suspended | Gone::Terminating);
                if self.next.holds(RESOURCES_DEPLOYED) && !with_the_rest {
                    self.next.set_gone(gone, self.now);
                    let phase = self.next.phase.clone();
                    return Err(self.write(Stakes::Final, Why::Deleted { phase }));
                }
                Ok(())
            }
            Progress::Due { steps, manner, left } => {
                Err(self.act(steps, Why::Deleting { left, forced: manner == Manner::Forceful }))
            }
            Progress::Waiting { until, left } => {
                let why = Why::Deleting { left, forced: until.is_none() };
                Err(until.map_or(Turn::Rest(why.clone()), |until| Turn::Wait { until, why }))
            }
        }
    }

    /// When it failed: as recorded, or, by another controller's record, since when its deletion waits or it is unhealthy.
    fn failed_at(&self) -> Timestamp {
        let recorded = self.view.status.resets.last().filter(|it| it.phase == Phase::Failed);
        let paused = self.view.status.condition(DELETING_RESOURCES).filter(|it| it.reason == DELETION_PAUSED);
        recorded
            .and_then(|it| it.time)
            .or(paused.map(|it| it.last_transition_time))
            .or(self.view.status.unhealthy_since())
            .unwrap_or(self.view.created)
    }

    fn errored(&mut self, index: usize) {
        if let Some(component) = self.next.component_status.get_mut(index) {
            component.set_creation_errored(self.now);
        }
    }

    fn read_annotations(&mut self) -> Option<Note> {
        self.next.set_annotations_valid(&self.timers.defects, self.now);
        let note = notes::unreadable(self.view, &self.timers.defects);
        (!self.timers.defects.is_empty() && self.next != self.view.status).then_some(note)
    }

    fn write(&self, stakes: Stakes, why: Why) -> Turn {
        Turn::Do { stakes, notes: Vec::new(), steps: Vec::new(), why }
    }

    fn act(&self, steps: Vec<Step>, why: Why) -> Turn {
        Turn::Do { stakes: Stakes::Bookkeeping, notes: Vec::new(), steps, why }
    }

    /// The status comes first if it changes: what it says is true before anything is done, and survives a crash.
    fn conclude(self, turn: Turn, untold: Option<Note>) -> Verdict<Why, Step> {
        let changed = self.next != self.view.status;
        let patch = |stakes| Step::PatchStatus {
            appwrapper: self.view.appwrapper.clone(),
            resource_version: self.view.resource_version.clone(),
            status: Box::new(self.next.clone()),
            stakes,
        };
        let untold = untold.map(Step::RecordEvent);
        match turn {
            Turn::Do { stakes, notes, steps, why } => {
                let notes = notes.into_iter().map(Step::RecordEvent).chain(untold);
                let actions: Vec<Step> =
                    changed.then(|| patch(stakes)).into_iter().chain(notes).chain(steps).collect();
                if actions.is_empty() { Ignore(why) } else { Verdict::Act { actions, why } }
            }
            Turn::Only { step, why } => Verdict::Act { actions: vec![*step], why },
            Turn::Wait { why, .. } | Turn::Rest(why) if changed => {
                let actions = std::iter::once(patch(Stakes::Bookkeeping)).chain(untold).collect();
                Verdict::Act { actions, why }
            }
            Turn::Wait { until, why } => Verdict::Wait { until, why },
            Turn::Rest(why) => Ignore(why),
        }
    }
}

fn create_failed(error: &str) -> Evidence {
    Evidence::new(Cause::CreateFailed, format!("error creating components: {error}"))
}
