//! The common part of all loops: they receive changes, decide, have errands run, and decide again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use kube::Client;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::calls::{Call, CallError};
use crate::cleanup::emptying;
use crate::world::collection::Kind;
use crate::world::follow::{Shared, retry_after};
use crate::world::{Change, World};

/// If this many errands for a subject succeed within one instant, they do not help: the subject backs off as if they
/// had failed. Under a paused clock, time would otherwise stand still forever.
const ERRANDS_AT_ONCE: u32 = 20;
/// The number of concurrent errands; more would only queue in the API server.
const ERRANDS: usize = 32;

/// The time source of the loops. It must pass as tokio's does.
#[derive(Clone)]
pub(crate) struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    pub(crate) fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.0)()
    }

    fn instant(&self, at: Timestamp) -> Instant {
        Instant::now() + Duration::try_from(at.duration_since(self.now())).unwrap_or_default()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}

/// Calls for one subject, made one after the other; the first failure ends them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Errand {
    pub(crate) subject: String,
    pub(crate) calls: Vec<Call>,
    /// The namespace that is emptied afterwards: the calls for that are not known in advance.
    pub(crate) empties: Option<String>,
}

impl Errand {
    pub(crate) fn new(subject: impl Into<String>, calls: Vec<Call>) -> Self {
        Self { subject: subject.into(), calls, empties: None }
    }

    /// Empties a namespace that is being deleted, as far as possible now.
    pub(crate) fn emptying(namespace: &str) -> Self {
        let name = namespace.to_owned();
        Self { subject: name.clone(), calls: Vec::new(), empties: Some(name) }
    }
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) errands: Vec<Errand>,
    /// When it wants to decide again even if nothing changes.
    pub(crate) wake: Option<Timestamp>,
}

/// The rules of one control loop: no I/O, no clock.
pub(crate) trait Control: Send + 'static {
    /// The kinds that must be listed before it decides anything.
    fn follows(&self) -> &'static [Kind];
    /// True if all objects of all served kinds must be listed first.
    fn follows_everything(&self) -> bool {
        false
    }
    fn observe(&mut self, change: &Change);
    /// An errand for this subject has begun. No other one begins before this one is over.
    fn began(&mut self, _subject: &str) {}
    /// An errand for this subject is over, successful or not: the loop must decide again.
    fn again(&mut self, subject: &str);
    /// An errand for this subject is to be repeated at this time.
    fn later(&mut self, _subject: &str, _at: Timestamp) {}
    fn decide(&mut self, world: &World, now: Timestamp) -> Plan;
}

/// Subjects to reconcile, now or later.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    due: BTreeSet<String>,
    alarms: BTreeSet<(Timestamp, String)>,
    /// Subjects with an errand in progress. They are reconciled when it is over; earlier would be needless.
    held: BTreeSet<String>,
}

impl Queue {
    pub(crate) fn add(&mut self, subject: impl Into<String>) {
        self.due.insert(subject.into());
    }

    /// True if there is nothing to reconcile, now or later.
    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty() && self.alarms.is_empty()
    }

    pub(crate) fn at(&mut self, time: Timestamp, subject: &str) {
        self.alarms.insert((time, subject.to_owned()));
    }

    pub(crate) fn hold(&mut self, subject: &str) {
        self.held.insert(subject.to_owned());
    }

    pub(crate) fn release(&mut self, subject: &str) {
        self.held.remove(subject);
        self.due.insert(subject.to_owned());
    }

    pub(crate) fn holds(&self, subject: &str) -> bool {
        self.held.contains(subject)
    }

    /// All subjects that are due now.
    pub(crate) fn take(&mut self, now: Timestamp) -> BTreeSet<String> {
        while let Some((at, _)) = self.alarms.first()
            && *at <= now
            && let Some((_, subject)) = self.alarms.pop_first()
        {
            self.due.insert(subject);
        }
        let mut due = std::mem::take(&mut self.due);
        if !self.held.is_empty() {
            due.retain(|subject| !self.held.contains(subject));
        }
        due
    }

    pub(crate) fn wake(&self) -> Option<Timestamp> {
        self.alarms.first().map(|(at, _)| *at)
    }
}

pub(crate) struct Driver {
    pub(crate) name: &'static str,
    pub(crate) client: Client,
    pub(crate) shared: Arc<Shared>,
    pub(crate) clock: Clock,
    pub(crate) inbox: mpsc::UnboundedReceiver<Change>,
}

type Ending = (String, Result<(), CallError>);

impl Driver {
    pub(crate) async fn run(mut self, mut control: impl Control) {
        let (kinds, everything) = (control.follows(), control.follows_everything());
        let is_listed = |world: &World| kinds.iter().all(|kind| world.revision(*kind).is_some());
        self.shared.until(|world| is_listed(world) && (!everything || world.is_complete())).await;
        let mut waiting: VecDeque<Errand> = VecDeque::new();
        let mut busy: BTreeSet<String> = BTreeSet::new();
        let mut running: FuturesUnordered<BoxFuture<'static, Ending>> = FuturesUnordered::new();
        let mut failures: BTreeMap<String, u32> = BTreeMap::new();
        let mut retries = Queue::default();
        let mut instant = Timestamp::MIN;
        let mut successes: BTreeMap<String, u32> = BTreeMap::new();
        loop {
            while let Ok(change) = self.inbox.try_recv() {
                control.observe(&change);
            }
            let now = self.clock.now();
            for subject in retries.take(now) {
                busy.remove(&subject);
                control.again(&subject);
            }
            let plan = control.decide(&self.shared.world(), now);
            for errand in plan.errands {
                // The subject is reconciled again when its errand is over.
                if busy.insert(errand.subject.clone()) {
                    control.began(&errand.subject);
                    waiting.push_back(errand);
                }
            }
            while running.len() < ERRANDS
                && let Some(errand) = waiting.pop_front()
            {
                running.push(Box::pin(self.perform(errand)));
            }
            let wake = plan.wake.into_iter().chain(retries.wake()).min();
            let wake = wake.map(|at| self.clock.instant(at));
            tokio::select! {
                biased;
                Some((subject, ending)) = running.next() => match ending {
                    Ok(()) => {
                        failures.remove(&subject);
                        let now = self.clock.now();
                        if instant != now {
                            successes.clear();
                            instant = now;
                        }
                        let count = successes.entry(subject.clone()).or_default();
                        *count += 1;
                        if *count > ERRANDS_AT_ONCE {
                            tracing::debug!(control = self.name, subject, "goes in circles; it is judged later");
                            retries.at(now + retry_after(*count), &subject);
                        } else {
                            busy.remove(&subject);
                            control.again(&subject);
                        }
                    }
                    Err(CallError::NotYet(wait)) => {
                        failures.remove(&subject);
                        busy.remove(&subject);
                        control.later(&subject, self.clock.now() + wait);
                    }
                    Err(error) => {
                        let attempt = failures.entry(subject.clone()).or_default();
                        *attempt += 1;
                        let pause = retry_after(*attempt);
                        tracing::debug!(control = self.name, subject, %error, "failed; it is judged again");
                        retries.at(self.clock.now() + pause, &subject);
                    }
                },
                change = self.inbox.recv() => match change {
                    Some(change) => control.observe(&change),
                    None => return,
                },
                () = maybe_sleep(wake) => {}
            }
        }
    }

    fn perform(&self, errand: Errand) -> impl Future<Output = Ending> + Send + 'static {
        let (client, shared, clock) = (self.client.clone(), Arc::clone(&self.shared), self.clock.clone());
        async move {
            for call in &errand.calls {
                if let Err(error) = call.make(&client, &shared, clock.now()).await {
                    return (errand.subject, Err(error));
                }
            }
            let ending = match &errand.empties {
                Some(namespace) => emptying::pass(&client, &shared, namespace, clock.now()).await,
                None => Ok(()),
            };
            (errand.subject, ending)
        }
    }
}

async fn maybe_sleep(until: Option<Instant>) {
    match until {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_with_an_errand_is_judged_when_that_is_over() {
        let mut queue = Queue::default();
        let now = Timestamp::UNIX_EPOCH;
        let names = |taken: BTreeSet<String>| taken.into_iter().collect::<Vec<_>>().join(" ");
        queue.add("a");
        queue.add("b");
        assert_eq!(names(queue.take(now)), "a b");
        queue.hold("a");
        queue.add("a");
        queue.at(now, "a");
        queue.add("b");
        assert_eq!(names(queue.take(now)), "b");
        assert!(queue.holds("a") && !queue.holds("b"));
        queue.release("a");
        assert_eq!(names(queue.take(now)), "a", "whatever happened meanwhile");
        assert_eq!(names(queue.take(now)), "");
    }
}
