//! Decides the next steps for an AppWrapper. There is one function for each phase, in the order in which an AppWrapper
//! goes through them.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::conditions::Gone;
use super::creation::{self, Creation, Hindrance};
use super::deletion;
use super::health::{Picture, deployed_since, own_pods};
use super::moves::{Machine, Turn, Turned, create_failed};
use super::names::CONTROLLER_NAME;
use super::names::conditions::{DELETING_RESOURCES, PODS_READY, QUOTA_RESERVED, RESOURCES_DEPLOYED};
use super::policy::{AppWrapperPolicy, Timers};
use super::reasons::AppWrapperWhy as Why;
use super::status::Phase;
use super::steps::{Stakes, Step};
use super::views::{AppWrapperView, PodView};
use crate::moments::after;
use crate::verdict::Verdict::Ignore;
use crate::verdict::{Decision, Trace, judge};

/// Pods often run within a second after their creation. Then one status write covers both.
const SETTLING: SignedDuration = SignedDuration::from_secs(1);
/// The maximum wait for pods that do not exist yet: the controllers that create them may be busy.
const PODS_APPEAR_WITHIN: SignedDuration = SignedDuration::from_secs(5);

/// Decides about one AppWrapper. `now` is the API server's time.
pub fn decide(
    view: &AppWrapperView,
    policy: &AppWrapperPolicy,
    now: Timestamp,
) -> Decision<super::AppWrapperWhy, Step> {
    judge(|ask| {
        ask.that("Is the controller switched on?", policy.enabled, policy.enabled)
            .ok_or(Ignore(Why::Disabled))?;
        let foreign = view.managed_by.as_deref().filter(|it| *it != CONTROLLER_NAME);
        ask.none("Is the AppWrapper ours?", foreign.unwrap_or("yes"), foreign)
            .map_err(|it| Ignore(Why::NotOurs { managed_by: it.into() }))?;
        ask.that("Are all its pods known?", view.pods_known, view.pods_known)
            .ok_or(Ignore(Why::PodsUnknown))?;

        let timers = Timers::of(&view.annotations, policy);
        let (count, limit) = (view.status.resetting_count, timers.retry_limit.max(0));
        let seen = format_args!("{}; {count} of {limit} retries used", view.status.phase);
        ask.that("Which phase is it in, and which retries has it had?", seen, true);
        let mut machine = Machine { view, policy, timers: &timers, now, next: view.status.clone() };
        let unrecorded = machine.read_annotations();
        let (Ok(turn) | Err(turn)) = machine.turn(ask);
        Ok(machine.conclude(turn, unrecorded))
    })
}

impl Machine<'_> {
    fn turn(&mut self, ask: &mut Trace) -> Turned {
        if self.view.deleting {
            return self.terminating(ask);
        }
        self.see_to_admission();
        match self.view.status.phase.clone() {
            Phase::Empty => self.empty(ask),
            Phase::Suspended => self.suspended(ask),
            Phase::Resuming => self.resuming(ask),
            Phase::Running => self.running(ask),
            Phase::Resetting => self.resetting(ask),
            Phase::Suspending => self.suspending(ask),
            Phase::Succeeded => self.succeeded(ask),
            Phase::Failed => self.failed(ask),
            // Only a manual edit can set this phase on an AppWrapper that is not being deleted.
            Phase::Terminating => Ok(Turn::Rest(Why::UnknownPhase { phase: "Terminating".into() })),
            Phase::Unknown(phase) => Ok(Turn::Rest(Why::UnknownPhase { phase })),
        }
    }

    /// A new AppWrapper: its PodSets are recorded for Kueue.
    fn empty(&mut self, ask: &mut Trace) -> Turned {
        self.record_pod_sets();
        if self.view.suspend {
            ask.that("Is it to run?", "spec.suspend is true", false);
            self.next.phase = Phase::Suspended;
            return Ok(self.write(Stakes::Bookkeeping, Why::New));
        }
        self.suspended(ask)
    }

    /// Nothing of it exists until it is to run.
    fn suspended(&mut self, ask: &mut Trace) -> Turned {
        self.nothing_left_over(ask)?;
        // While it waits, the configuration may be corrected or a change reverted.
        self.record_pod_sets();
        ask.that("Is it to run?", format_args!("spec.suspend is {}", self.view.suspend), !self.view.suspend)
            .ok_or_else(|| self.while_suspended())?;
        // Nothing runs yet, so it fails without a wait: it must not hold quota meanwhile.
        self.unchanged(ask, self.now)?;
        self.admitted(ask)?;
        self.not_refused(ask)?;
        // The finalizer comes before any creation. Without it the AppWrapper could be gone before its components.
        let add = Step::AddFinalizer {
            appwrapper: self.view.appwrapper.clone(),
            resource_version: self.view.resource_version.clone(),
            others: self.view.other_finalizers.clone(),
        };
        ask.that("Does it have its finalizer?", self.view.has_finalizer, self.view.has_finalizer)
            .ok_or(Turn::Only { step: Box::new(add), why: Why::NeedsFinalizer })?;

        self.next.set_creating(&self.view.components, self.now);
        self.next.set_resuming(self.now);
        self.next.phase = Phase::Resuming;
        Ok(self.write(Stakes::Bookkeeping, Why::Resuming))
    }

    /// Creates the components in order.
    fn resuming(&mut self, ask: &mut Trace) -> Turned {
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
            Creation::Hindered { index, error, hindrance } => {
                let why = Why::CreationFailed { error: error.clone() };
                ask.that("Can its components be created?", seen, false);
                let grace = self.timers.admission_grace;
                let (give_up, until) = match hindrance {
                    Hindrance::Refused(retry_at) | Hindrance::Unanswered(retry_at) => {
                        (give_up, retry_at.min(give_up))
                    }
                    // The kind gets the whole grace period to be served.
                    Hindrance::Unserved(since) => {
                        let give_up = give_up.max(after(since, grace));
                        (give_up, give_up)
                    }
                    Hindrance::Other => (give_up, give_up),
                };
                if self.now >= give_up {
                    self.errored(index);
                    let mut evidence = create_failed(&error);
                    evidence.terminal = matches!(hindrance, Hindrance::Unserved(_));
                    return Err(self.reset_or_fail(evidence));
                }
                match hindrance {
                    Hindrance::Refused(_) => self.errored(index),
                    Hindrance::Unanswered(_) | Hindrance::Unserved(_) | Hindrance::Other => {}
                }
                Err(Turn::Wait { until, why })
            }
            Creation::Due { indexes } => {
                ask.that("Are all its components created?", seen, false);
                self.unchanged(ask, give_up)?;
                // Components that already exist stay.
                self.authorized(ask, give_up)?;
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
    fn created(&mut self, ask: &mut Trace, since: Timestamp) -> Turned {
        let resuming = self.next.clone();
        for (index, component) in self.view.components.iter().enumerate() {
            let name = self.view.name_of(index).unwrap_or(&component.name);
            if let Some(status) = self.next.component_status.get_mut(index) {
                status.identify(component, name);
                status.set_created(self.now);
            }
        }
        self.next.phase = Phase::Running;
        // The cause of an earlier unhealthy state is gone, so the new attempt gets its full time.
        self.next.set_healthy(self.now);
        let status = self.next.clone();
        let picture = Picture::of(self.view, &status, self.timers, self.policy, self.now);
        let counts = picture.counts;
        let settled = if counts.all_exist() {
            let newest = own_pods(self.view).map(|pod| pod.created).max().unwrap_or(since);
            after(newest.max(since), SETTLING)
        } else {
            after(since, PODS_APPEAR_WITHIN)
        };
        let settled = settled.min(picture.ready_by().0);
        // A failure is reported at once.
        let starting =
            !counts.are_sufficient() && counts.failed == 0 && picture.failed_components().is_none();
        let early = self.now < settled && self.now >= since && starting;
        if ask.that("Have its pods had a moment to start?", counts, !early).is_none() {
            self.next = resuming;
            return Err(Turn::Wait { until: settled, why: Why::JustCreated });
        }
        self.next.set_pods_ready(&counts, self.now);
        Ok(self.write(Stakes::Bookkeeping, Why::Created))
    }

    /// The components exist. Checks whether they are healthy, done or lost.
    fn running(&mut self, ask: &mut Trace) -> Turned {
        self.next.restore_running(self.view.created);
        self.not_suspended(ask)?;
        self.no_strays(ask)?;
        let status = self.next.clone();
        let picture = Picture::of(self.view, &status, self.timers, self.policy, self.now);
        let counts = picture.counts;
        for index in picture.done() {
            if let Some(component) = self.next.component_status.get_mut(index) {
                component.set_succeeded(self.now);
            }
        }

        let done = picture.is_successful();
        if !done {
            self.next.set_deletion_over(self.now);
        }

        // Nothing else repairs these causes, so they have no grace period.
        self.sound(ask, "Are all its components there?", picture.missing())?;
        self.sound(ask, "Has no component failed?", picture.failed_components())?;

        if done {
            let active: Vec<_> = picture.active_pods().collect();
            let seen = format_args!("done; {} pods have not ended", active.len());
            ask.that("Is its work not done yet?", seen, false);
            if !active.is_empty() {
                return Err(self.finishing(&picture.done().collect(), &active));
            }
            self.next.set_deletion_over(self.now);
            let totals = picture.totals();
            self.next.set_healthy(self.now);
            self.next.set_succeeded(&totals, self.now);
            self.next.phase = Phase::Succeeded;
            return Err(self.write(Stakes::Final, Why::Succeeded { pods: totals.succeeded }));
        }
        ask.that("Is its work not done yet?", counts, true);
        self.sound(ask, "Is no pod on a node that is to be left?", picture.nodes_to_leave())?;

        let next_wave = picture.last_wave().map(|ended| after(ended, PODS_APPEAR_WITHIN));
        if let Some(until) = next_wave.filter(|until| self.now < *until)
            && self.next.holds(PODS_READY)
            && !counts.are_sufficient()
            && counts.failed == 0
        {
            ask.that("Do all its pods run?", counts, false);
            let (_, stage) = picture.ready_by();
            return Err(Turn::Wait { until, why: Why::AwaitingPods { counts, stage } });
        }
        self.next.set_pods_ready(&counts, self.now);
        self.mending(ask, "Are its pods well?", picture.pods_to_mend())?;
        if counts.are_sufficient() {
            ask.that("Do all its pods run?", counts, true);
            self.next.set_healthy(self.now);
            let why = Why::Healthy { counts };
            return Ok(picture
                .next_silence()
                .map_or(Turn::Rest(why.clone()), |until| Turn::Wait { until, why }));
        }
        let status = self.next.clone();
        let picture = Picture::of(self.view, &status, self.timers, self.policy, self.now);
        let (until, stage) = picture.ready_by();
        let late = (self.now >= until).then(|| picture.insufficient());
        self.mending(ask, "Do its pods still have time to run?", late)?;
        self.next.set_healthy(self.now);
        let until = picture.next_silence().map_or(until, |silence| silence.min(until));
        Ok(Turn::Wait { until, why: Why::AwaitingPods { counts, stage } })
    }

    /// All components are done, but some of their pods have not ended. Their own controllers have the failure grace
    /// period to end them. After that the components are deleted, then the pods by force: pods that are not needed must
    /// not hold quota forever.
    fn finishing(&mut self, done: &BTreeSet<usize>, pods: &[&PodView]) -> Turn {
        let why = Why::Finishing { pods: pods.len() };
        let grace = self.timers.failure_grace;
        let until = after(self.next.done_since().unwrap_or(self.view.created), grace);
        if self.now < until && !grace.is_zero() {
            return Turn::Wait { until, why };
        }
        let begun = self.next.set_ending(pods.len(), self.now);
        let plan = deletion::endings(self.view, done, pods, begun, self.timers, self.policy, self.now);
        self.pursue(plan, why)
    }

    /// Deletes everything, pauses, and creates everything again. Quota is kept.
    fn resetting(&mut self, ask: &mut Trace) -> Turned {
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
        self.unchanged(ask, after(until, self.timers.admission_grace))?;

        self.next.set_creating(&self.view.components, self.now);
        self.next.set_reset_complete(self.now);
        self.next.phase = Phase::Resuming;
        Ok(self.write(Stakes::Bookkeeping, Why::Resuming))
    }

    /// Deletes everything, even if `spec.suspend` changes back meanwhile: half of a workload is useless.
    fn suspending(&mut self, ask: &mut Trace) -> Turned {
        self.delete_all(ask, Gone::Suspended)?;
        self.next.set_gone(Gone::Suspended, self.now);
        self.next.phase = Phase::Suspended;
        Ok(self.write(Stakes::Final, Why::Deleted { phase: Phase::Suspended }))
    }

    /// The work is done. The components are kept for a while, counted from the success.
    fn succeeded(&mut self, ask: &mut Trace) -> Turned {
        self.nothing_left_over(ask)?;
        if !self.next.holds(RESOURCES_DEPLOYED) {
            return Ok(Turn::Rest(Why::Ended { phase: Phase::Succeeded }));
        }
        let ttl = self.timers.success_ttl;
        let released = self.next.condition(QUOTA_RESERVED).filter(|it| it.is_false());
        let since = released.map_or(self.view.created, |it| it.last_transition_time);
        let until = after(since, ttl);
        // A deletion that has begun is always completed.
        let due = self.view.suspend || self.next.holds(DELETING_RESOURCES) || self.now >= until;
        ask.that("Is its time to live over?", format_args!("until {until}, it is {}", self.now), due)
            .ok_or(Turn::Wait { until, why: Why::KeptAfterSuccess { since } })?;
        let by_suspending = self.view.suspend && self.now < until;
        self.delete_all(ask, Gone::Succeeded { ttl, by_suspending })?;
        Ok(Turn::Rest(Why::Ended { phase: Phase::Succeeded }))
    }

    /// The AppWrapper has failed. Everything is deleted, possibly after a delay for debugging.
    fn failed(&mut self, ask: &mut Trace) -> Turned {
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

    /// The AppWrapper is being deleted. Everything is deleted without any delay, then the finalizer is removed.
    fn terminating(&mut self, ask: &mut Trace) -> Turned {
        ask.that("Is it to stay?", "it is being deleted", false);
        ask.that("Does it have our finalizer?", self.view.has_finalizer, self.view.has_finalizer)
            .ok_or(Turn::Rest(Why::BeingDeleted))?;
        // If nothing was deployed, only objects that the AppWrapper owns count: anyone may set the label.
        let made = deletion::own_objects(self.view).next().is_some()
            || deletion::pods_left_over(self.view).next().is_some();
        if self.next.holds(RESOURCES_DEPLOYED) || made {
            let phase = std::mem::replace(&mut self.next.phase, Phase::Terminating);
            self.delete_all(ask, Gone::Terminating)?;
            // If nothing is left, it goes at once and keeps its phase.
            self.next.phase = phase;
        }
        if self.next.holds(RESOURCES_DEPLOYED) || self.next.holds(QUOTA_RESERVED) {
            self.next.set_gone(Gone::Terminating, self.now);
            return Err(self.write(Stakes::Final, Why::Deleted { phase: Phase::Terminating }));
        }
        let step = Step::RemoveFinalizer {
            appwrapper: self.view.appwrapper.clone(),
            resource_version: self.view.resource_version.clone(),
            others: self.view.other_finalizers.clone(),
        };
        Ok(Turn::Only { step: Box::new(step), why: Why::Released })
    }
}
