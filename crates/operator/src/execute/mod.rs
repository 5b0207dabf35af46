//! The only code that writes to the objects of the recoveries. Every write has preconditions, is bounded in time by the
//! Lease, is counted, and is never repeated silently. It carries out plain values and knows no recovery.

mod crash;
mod event_queue;
mod failure;
mod request;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use kube::Client;
use salvor_recovery::{
    event::EventNote,
    objects::Object,
    step::{Patch, SecondLook, Verb, Write},
};
use serde_json::Value;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

use self::{
    failure::{has_cause, is_about, is_admissions},
    request::{Signature, answer_is_read, path, right},
};
use crate::{
    client::{
        incoming::Incoming,
        live,
        recent_reads::READ_VALID_FOR,
        send_guard::{NotSent, SendGuard},
    },
    execute::crash::CrashPoint,
    lead::{Leadership, Term},
    metrics::Metrics,
    time::{Time, within},
};

pub(crate) use self::failure::{Failure, Refusal};

/// A write without an answer in this time has an unknown outcome, and the subject is decided again.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit on concurrent events outside of an attempt. They must not delay the work that they describe.
const EVENTS_AT_ONCE: usize = 2;
/// Limit on concurrent retries of unanswered writes.
const AGAIN_AT_ONCE: usize = 2;
/// Limit on concurrent reads for one write.
const READS_AT_ONCE: usize = 8;

#[derive(Debug)]
pub(crate) enum Written {
    /// The object as the server now has it.
    Object(String),
    /// Nothing of use: an event was recorded, or an object is being deleted.
    Nothing,
}

/// Writes of one lane wait for each other. Each lane has its own limits, so that no lane delays another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Recoveries from lost and sick nodes.
    Recovery,
    /// Writes that tenants can cause in any number.
    Tenants,
    /// The same, of objects that may be large.
    LargeObjects,
    /// Events that are not a step of an attempt.
    Events,
}

impl Lane {
    /// True if the outcome of an unanswered write is read before it is sent again. A server that receives a large
    /// object again and again while it still processes it runs out of memory.
    pub(crate) fn reads_back(self) -> bool {
        match self {
            Self::LargeObjects => true,
            Self::Recovery | Self::Tenants | Self::Events => false,
        }
    }
}

/// The preconditions of a write. It is not sent if one of them no longer holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Basis {
    pub(crate) term: Term,
    /// When the second look was sent; `None` if the write needs none.
    pub(crate) looked: Option<Instant>,
}

impl Basis {
    fn condition(self, leadership: &Leadership) -> SendGuard {
        let leadership = leadership.clone();
        SendGuard::new(move || {
            if self.looked.is_some_and(|looked| looked.elapsed() >= READ_VALID_FOR) {
                return Err(NotSent::LookTooOld);
            }
            leadership.time_left(self.term).map(|_| ()).ok_or(NotSent::NotLeading)
        })
    }
}

/// Carries out writes. Clones share their limits.
#[derive(Clone)]
pub(crate) struct Executor(Arc<Inner>);

struct Inner {
    client: Client,
    time: Time,
    leadership: Leadership,
    metrics: Metrics,
    instance: String,
    dry_run: bool,
    recovery: Limits,
    tenants: Limits,
    large_objects: Limits,
    events: Limits,
    again: Semaphore,
    event_queue: Mutex<EventQueue>,
    crash: CrashPoint,
}

/// Events that wait to be recorded in the background.
#[derive(Default)]
struct EventQueue {
    waiting: VecDeque<(EventNote, Term)>,
    /// Running tasks that record events one after the other.
    recorders: usize,
}

struct Limits {
    permits: Semaphore,
    /// Until when the server asked us to back off.
    quiet_until: Mutex<Option<Instant>>,
}

impl Limits {
    fn new(at_once: usize) -> Self {
        Self { permits: Semaphore::new(at_once), quiet_until: Mutex::default() }
    }

    fn quiet_until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.quiet_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to send a write. Its holder takes the second look and writes at once.
pub(crate) struct Permit<'a> {
    executor: &'a Executor,
    lane: Lane,
    _held: SemaphorePermit<'a>,
}

struct Writing<'a> {
    inner: &'a Inner,
    basis: Basis,
}

impl Executor {
    /// Limits concurrent writes of each lane but the one of events to `writes`. A dry run sends none.
    pub(crate) fn new(
        client: Client,
        time: Time,
        leadership: Leadership,
        metrics: Metrics,
        instance: String,
        writes: u32,
        dry_run: bool,
    ) -> Self {
        let writes = usize::try_from(writes).unwrap_or(1).clamp(1, Semaphore::MAX_PERMITS);
        Self(Arc::new(Inner {
            client,
            time,
            leadership,
            metrics,
            instance,
            dry_run,
            recovery: Limits::new(writes),
            tenants: Limits::new(writes),
            large_objects: Limits::new(writes),
            events: Limits::new(EVENTS_AT_ONCE),
            again: Semaphore::new(AGAIN_AT_ONCE),
            event_queue: Mutex::default(),
            crash: CrashPoint::from_environment(),
        }))
    }

    pub(crate) fn client(&self) -> &Client {
        &self.0.client
    }

    /// Waits for the right to write in a term, first come, first served.
    pub(crate) async fn permit(&self, lane: Lane, term: Term) -> Result<Permit<'_>, Failure> {
        let held = self.limits(lane).permits.acquire().await.map_err(|_| Failure::NotLeading)?;
        self.0.leadership.time_left(term).ok_or(Failure::NotLeading)?;
        Ok(Permit { executor: self, lane, _held: held })
    }

    /// Waits for the turn to retry an unanswered write.
    pub(crate) async fn turn_again(&self) -> Result<SemaphorePermit<'_>, Failure> {
        self.0.again.acquire().await.map_err(|_| Failure::NotLeading)
    }

    fn limits(&self, lane: Lane) -> &Limits {
        match lane {
            Lane::Recovery => &self.0.recovery,
            Lane::Tenants => &self.0.tenants,
            Lane::LargeObjects => &self.0.large_objects,
            Lane::Events => &self.0.events,
        }
    }

    /// How much longer the server asks a lane to wait. A wait of the recovery lane applies to all lanes, but a wait of
    /// another lane must not delay recoveries.
    pub(crate) fn pause(&self, lane: Lane) -> Option<Duration> {
        // Lock one after the other: they may be the same mutex.
        let lanes = *self.limits(lane).quiet_until();
        let everybodys = *self.0.recovery.quiet_until();
        lanes.max(everybodys)?.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    pub(crate) fn failed_to_read(&self, error: kube::Error, lane: Lane) -> Failure {
        let failure = Failure::of(error);
        self.obey(&failure, lane);
        failure
    }

    fn obey(&self, failure: &Failure, lane: Lane) {
        if let Failure::Throttled(pause) = failure {
            // Of two concurrent answers, the longer pause wins.
            let mut quiet = self.limits(lane).quiet_until();
            *quiet = (*quiet).max(Some(Instant::now() + *pause));
        }
    }
    /// Carries out a write that needs no reads, and either no second look or one that was just taken.
    pub(crate) async fn perform(
        &self,
        lane: Lane,
        write: &Write<'_>,
        basis: Basis,
    ) -> Result<Written, Failure> {
        let permit = self.permit(lane, basis.term).await?;
        permit.write(write, basis).await
    }

    async fn read_all(&self, objects: &[Object<'_>]) -> Result<Vec<Option<Value>>, Failure> {
        let reads: Vec<_> = objects.iter().map(|object| self.read(path(object))).collect();
        stream::iter(reads).buffered(READS_AT_ONCE).try_collect().await
    }

    async fn read(&self, path: String) -> Result<Option<Value>, Failure> {
        let found = live::get(&self.0.client, &path).await.map_err(Failure::of)?;
        let parse = |text: String| serde_json::from_str(&text);
        found.map(parse).transpose().map_err(|e| Failure::Api(kube::Error::SerdeError(e)))
    }
}

impl Permit<'_> {
    /// Reads objects for a step. This comes before the second look, because afterwards there is no time left for it.
    pub(crate) async fn read(
        &self,
        step: &'static str,
        objects: &[Object<'_>],
    ) -> Result<Vec<Option<Value>>, Failure> {
        if objects.is_empty() {
            return Ok(Vec::new());
        }
        self.unless_paused()?;
        match tokio::time::timeout(WRITE_TIMEOUT, self.executor.read_all(objects)).await {
            Ok(Ok(read)) => Ok(read),
            Ok(Err(failure)) => self.note(step, Err(failure)),
            Err(_) => self.note(step, Err(Failure::Unanswered(WRITE_TIMEOUT))),
        }
    }

    /// Writes. Never waits out a pause that the server asked for: by then the decision would be stale.
    pub(crate) async fn write(&self, write: &Write<'_>, basis: Basis) -> Result<Written, Failure> {
        self.note(write.step, self.try_to_write(write, basis).await)
    }

    /// Counts how a step ended, and backs off if the server asks for it.
    fn note<T>(&self, step: &'static str, result: Result<T, Failure>) -> Result<T, Failure> {
        let code = result.as_ref().map_or_else(Failure::code, |_| "ok");
        self.executor.0.metrics.wrote(step, code);
        result.inspect_err(|failure| self.executor.obey(failure, self.lane))
    }

    fn unless_paused(&self) -> Result<(), Failure> {
        self.executor.pause(self.lane).map_or(Ok(()), |left| Err(Failure::Throttled(left)))
    }

    async fn try_to_write(&self, write: &Write<'_>, basis: Basis) -> Result<Written, Failure> {
        let inner = &*self.executor.0;
        if inner.dry_run {
            return Err(Failure::DryRun);
        }
        // A missing look counts as expired.
        if write.effect.second_look != SecondLook::No && basis.looked.is_none() {
            return Err(Failure::LookTooOld);
        }
        self.unless_paused()?;
        // The answer to the second look may have been the first to show another time.
        if write.effect.irreversible && inner.time.clocks_disagree().is_some() {
            return Err(Failure::ClockUnsettled);
        }
        if write.effect.irreversible && inner.time.just_restored().is_some() {
            return Err(Failure::JustRestored);
        }
        let left = inner.leadership.time_left(basis.term).ok_or(Failure::NotLeading)?;
        let limit = left.min(WRITE_TIMEOUT);
        let number = inner.crash.before_write();
        let writing = Writing { inner, basis };
        let result = within(limit, writing.write(write)).await.unwrap_or(Err(Failure::Unanswered(limit)));
        inner.crash.after_write(number);
        result
    }
}

impl Writing<'_> {
    async fn write(&self, write: &Write<'_>) -> Result<Written, Failure> {
        let at = self.inner.time.local().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let request = request::request(write, &Signature { instance: &self.inner.instance, at })?;
        let answer = self.answer(request, write).await;
        match (&write.verb, answer) {
            // The event has a fixed name: if it exists, it was recorded before. A terminating namespace accepts no
            // events and needs none.
            (Verb::Record(_), Err(Failure::Stale | Failure::NamespaceTerminating(_))) => Ok(Written::Nothing),
            (Verb::Create { .. }, Err(Failure::Stale)) => {
                let found = live::get(&self.inner.client, &path(&write.object)).await;
                found.map_err(Failure::of)?.map(Written::Object).ok_or(Failure::Stale)
            }
            // A deleted object needs nothing more.
            (
                Verb::Delete(_) | Verb::Evict(_) | Verb::Patch(Patch { gone_is_fine: true, .. }),
                Err(Failure::Gone),
            ) => Ok(Written::Nothing),
            (verb, Ok(answer)) if answer_is_read(verb) => Ok(Written::Object(text_of(answer))),
            (_, Ok(_)) => Ok(Written::Nothing),
            (_, Err(failure)) => Err(failure),
        }
    }

    async fn answer(&self, mut request: Request<Vec<u8>>, write: &Write<'_>) -> Result<Bytes, Failure> {
        // Checked here, and again when the first byte is sent: a process may sleep between any two instructions, and a
        // request may wait for its connection.
        let condition = self.basis.condition(&self.inner.leadership);
        condition.check()?;
        request.extensions_mut().insert(condition);
        // Events about earlier steps may still be recorded during a pause. Other writes hold the pass until they are
        // answered.
        let _pass = match &write.verb {
            Verb::Record(_) => None,
            Verb::Create { .. } | Verb::Patch(_) | Verb::Delete(_) | Verb::Evict(_) => {
                Some(self.inner.leadership.pause().enter().ok_or(Failure::Paused)?)
            }
        };
        let creates = matches!(write.verb, Verb::Create { .. } | Verb::Record(_));
        let sent = self.inner.client.send(request.map(kube::client::Body::from)).await;
        let answer = sent.map_err(|error| match NotSent::is_why(&error) {
            Some(why) => why.into(),
            None => Failure::Api(error),
        })?;
        let code = answer.status();
        let retry_after = live::retry_after(answer.headers());
        let body = Incoming::of(answer).whole().await.map_err(|error| Failure::Api(error.into()))?;
        if code.is_success() {
            return Ok(body.into());
        }
        let text = text_of(body.into());
        let status = live::refused(code.as_u16(), &text, retry_after);
        Err(match code.as_u16() {
            // A concurrent update of a quota, for example; the object was not created.
            409 if creates && status.reason != "AlreadyExists" => {
                Failure::Api(kube::Error::Api(status.boxed()))
            }
            409 => Failure::Stale,
            // The API reports a UID precondition that does not match as a validation error.
            422 if is_about(&status, "metadata.uid") => Failure::Stale,
            // Deleted since the decision.
            404 => Failure::Gone,
            403 if has_cause(&status, "NamespaceTerminating") => {
                Failure::NamespaceTerminating(status.message)
            }
            403 => {
                let (verb, resource) = right(write);
                Failure::Forbidden { verb, resource, message: status.message }
            }
            // A PodDisruptionBudget also refuses an eviction with 429 and a Status.
            429 if is_admissions(&status, creates || matches!(write.verb, Verb::Evict(_))) => {
                Failure::Api(kube::Error::Api(status.boxed()))
            }
            _ => Failure::of(kube::Error::Api(status.boxed())),
        })
    }
}

/// The answer as text; copied only if it is not valid UTF-8.
fn text_of(answer: Bytes) -> String {
    String::from_utf8(answer.into())
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests;
