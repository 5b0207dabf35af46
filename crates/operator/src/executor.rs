//! The only code that writes to the objects that are judged. Every write is guarded, bounded in time by the lease,
//! counted, and never repeated behind anybody's back. It carries out plain values, and knows no recovery.

mod failure;
mod mentions;
mod request;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use kube::Client;
use salvor_recovery::{
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
    mentions::Mentions,
    request::{Signature, answer_is_read, path, right},
};
use crate::{
    crash::CrashPoint,
    departure::{Condition, NotSent},
    incoming::Incoming,
    leader::{Leadership, Term},
    live,
    looks::LOOK_HOLDS,
    metrics::Metrics,
    time::{Time, within},
};

pub(crate) use self::failure::{Failure, Refusal};

/// A write that is not answered by then has an unknown outcome, and is judged anew.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Events that are recorded by themselves, in flight at once: they must not hold up the work that they tell of.
const EVENTS_AT_ONCE: usize = 2;
/// Writes that were not answered before and are sent again, under way at once.
const AGAIN_AT_ONCE: usize = 2;
/// Objects that are read at once for one write.
const READS_AT_ONCE: usize = 8;

/// The result of a write.
#[derive(Debug)]
pub(crate) enum Written {
    /// The object as the server now has it.
    Object(String),
    /// Nothing that anybody would read: an event was told, or an object is going.
    Nothing,
}

/// Whose writes wait for each other. Each lane has limits of its own, so that what one does never holds up another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Recoveries: zombies and evictions.
    Recovery,
    /// Writes for Jobs, of which tenants can cause any number.
    Jobs,
    /// What AppWrappers want, of which the same is true.
    AppWrappers,
    /// Events that are told by themselves, and not as a step of some work.
    Events,
}

impl Lane {
    /// True if a write that was not answered is looked for before it is sent again. An AppWrapper may be large: a server that is sent the
    /// same again and again while it still works on it runs out of memory.
    pub(crate) fn reads_back(self) -> bool {
        match self {
            Self::AppWrappers => true,
            Self::Recovery | Self::Jobs | Self::Events => false,
        }
    }
}

/// The conditions of a write. It is not sent if one of them does not hold any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Basis {
    /// The term in which it was judged.
    pub(crate) term: Term,
    /// When the second look was sent; none if the write needs none.
    pub(crate) looked: Option<Instant>,
}

impl Basis {
    fn condition(self, leadership: &Leadership) -> Condition {
        let leadership = leadership.clone();
        Condition::new(move || {
            if self.looked.is_some_and(|looked| looked.elapsed() >= LOOK_HOLDS) {
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
    jobs: Limits,
    appwrappers: Limits,
    events: Limits,
    again: Semaphore,
    mentions: Mutex<Mentions>,
    crash: CrashPoint,
}

/// The delay of the writes of a lane.
struct Limits {
    permits: Semaphore,
    /// Until when the server asks to be left alone.
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

/// The right to be under way. Who has it looks, and writes at once.
pub(crate) struct Permit<'a> {
    executor: &'a Executor,
    lane: Lane,
    _held: SemaphorePermit<'a>,
}

/// One write on its way.
struct Writing<'a> {
    inner: &'a Inner,
    basis: Basis,
}

impl Executor {
    /// `writes` requests of what recovers, as many of Jobs, and as many of AppWrappers, are under way at once. A dry run sends none.
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
            jobs: Limits::new(writes),
            appwrappers: Limits::new(writes),
            events: Limits::new(EVENTS_AT_ONCE),
            again: Semaphore::new(AGAIN_AT_ONCE),
            mentions: Mutex::default(),
            crash: CrashPoint::from_environment(),
        }))
    }

    pub(crate) fn client(&self) -> &Client {
        &self.0.client
    }

    /// Waits for the right to be under way in a term. Waiting is fair: whoever asked first goes first.
    pub(crate) async fn permit(&self, lane: Lane, term: Term) -> Result<Permit<'_>, Failure> {
        let held = self.limits(lane).permits.acquire().await.map_err(|_| Failure::NotLeading)?;
        self.0.leadership.time_left(term).ok_or(Failure::NotLeading)?;
        Ok(Permit { executor: self, lane, _held: held })
    }

    /// Waits for the turn to send again what was not answered.
    pub(crate) async fn turn_again(&self) -> Result<SemaphorePermit<'_>, Failure> {
        self.0.again.acquire().await.map_err(|_| Failure::NotLeading)
    }

    fn limits(&self, lane: Lane) -> &Limits {
        match lane {
            Lane::Recovery => &self.0.recovery,
            Lane::Jobs => &self.0.jobs,
            Lane::AppWrappers => &self.0.appwrappers,
            Lane::Events => &self.0.events,
        }
    }

    /// How much longer the server asks a lane to wait. What it asks of recoveries it asks of all; what it asks of Jobs must not
    /// hold up recoveries.
    pub(crate) fn pause(&self, lane: Lane) -> Option<Duration> {
        // One after the other: they may be the same.
        let lanes = *self.limits(lane).quiet_until();
        let everybodys = *self.0.recovery.quiet_until();
        lanes.max(everybodys)?.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// The outcome of a step whose objects could not be read.
    pub(crate) fn failed_to_read(&self, error: kube::Error, lane: Lane) -> Failure {
        let failure = Failure::of(error);
        self.obey(&failure, lane);
        failure
    }

    fn obey(&self, failure: &Failure, lane: Lane) {
        if let Failure::Throttled(pause) = failure {
            // Of two answers that were under way, the longer pause holds.
            let mut quiet = self.limits(lane).quiet_until();
            *quiet = (*quiet).max(Some(Instant::now() + *pause));
        }
    }
    /// Carries out a write that rests on no look, or on one that was just taken, and needs nothing to be read.
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
    /// Reads objects for a step. Afterwards, when the second look has been taken, there is no time for it.
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

    /// Writes. Never waits out a pause that the server asked for: by then the judgement would be old.
    pub(crate) async fn write(&self, write: &Write<'_>, basis: Basis) -> Result<Written, Failure> {
        self.note(write.step, self.try_to_write(write, basis).await)
    }

    /// Counts how a step ended, and heeds what the server asks for.
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
        // Whoever forgot to look has no look that counts.
        if write.effect.second_look != SecondLook::No && basis.looked.is_none() {
            return Err(Failure::LookTooOld);
        }
        self.unless_paused()?;
        // The answer to a second look may have been the first to tell another time.
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
            // The event has a name of its own: there already, it was recorded already. And a namespace that is going away
            // takes no events, and nobody will read them there.
            (Verb::Record(_), Err(Failure::Stale | Failure::NamespaceTerminating(_))) => Ok(Written::Nothing),
            (Verb::Create { .. }, Err(Failure::Stale)) => {
                let found = live::get(&self.inner.client, &path(&write.object)).await;
                found.map_err(Failure::of)?.map(Written::Object).ok_or(Failure::Stale)
            }
            // An object that is gone needs nothing more.
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
        // Asked here, and once more when the first byte leaves: a process may sleep between any two instructions, and a
        // request may wait for its connection.
        let condition = self.basis.condition(&self.inner.leadership);
        condition.check()?;
        request.extensions_mut().insert(condition);
        // Events about earlier steps may still be recorded during a pause. Other writes are under way until they are answered.
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
            // A quota that somebody else changed at the same time; what was to be created is not there.
            409 if creates && status.reason != "AlreadyExists" => {
                Failure::Api(kube::Error::Api(status.boxed()))
            }
            409 => Failure::Stale,
            // The guard's UID is another object's: the API says so as a validation error.
            422 if is_about(&status, "metadata.uid") => Failure::Stale,
            // Gone since it was judged.
            404 => Failure::Gone,
            403 if has_cause(&status, "NamespaceTerminating") => {
                Failure::NamespaceTerminating(status.message)
            }
            403 => {
                let (verb, resource) = right(write);
                Failure::Forbidden { verb, resource, message: status.message }
            }
            // So is the word of a disruption budget, which has a Status as well.
            429 if is_admissions(&status, creates || matches!(write.verb, Verb::Evict(_))) => {
                Failure::Api(kube::Error::Api(status.boxed()))
            }
            _ => Failure::of(kube::Error::Api(status.boxed())),
        })
    }
}

/// An answer as text; it is only copied if it must be mended.
fn text_of(answer: Bytes) -> String {
    String::from_utf8(answer.into())
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests;
