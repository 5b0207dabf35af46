//! The only code that writes to the objects that are judged. Every write is guarded, bounded in time by the lease,
//! counted, and never repeated behind anybody's back.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::{
    Method, Request,
    header::{ACCEPT, CONTENT_TYPE},
};
use jiff::Timestamp;
use kube::{Client, core::Status};
use salvor_api::names::annotations;
use salvor_recovery::{
    Action,
    action::{EventNote, NodeCondition, Subject},
    eviction::{AttachmentView, Claim, Progress},
    objects::{JobRef, NodeRef, PodPhase, PodRef, Taint},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
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

/// What the API server records as the writer.
const FIELD_MANAGER: &str = "salvor";
/// A write that is not answered by then has an unknown outcome, and is judged anew.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Merges lists by their keys.
const STRATEGIC: &str = "application/strategic-merge-patch+json";
/// A pause longer than this is a mistake of whoever asks for it.
const LONGEST_PAUSE: u64 = 300;
/// The answers to events and to most deletes are read by nobody, and the answer to a delete is the whole object.
const BRIEFLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json";
/// Events that are told by themselves, in flight at once: they must not hold up the work that they tell of.
const EVENTS_AT_ONCE: usize = 2;
/// Of those that wait for their turn no more are kept: by then nobody can read them.
const MOST_MENTIONS: usize = 1000;
/// How long one of those waits before it is told again, if the server did not take it.
const MENTIONED_AGAIN_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
/// Volumes that are looked up at once.
const READS_AT_ONCE: usize = 8;
/// An event's note may not be longer.
const LONGEST_NOTE: usize = 1024;

const EVENTS: &str = "events";

/// How a write failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The object has changed since it was judged.
    #[error("it has changed since it was judged")]
    Stale,
    /// The object is not there any more.
    #[error("it is not there any more")]
    Gone,
    /// This process does not lead, or is not sure to, or has led in another term since.
    #[error("this replica does not lead (any more)")]
    NotLeading,
    /// The second look was over before the write could leave.
    #[error(
        "no answer within {LOOK_HOLDS:?} to a look at the live objects, or no time left to write after it"
    )]
    LookTooOld,
    /// A dry run writes nothing.
    #[error("this is a dry run")]
    DryRun,
    /// The server asks for a pause.
    #[error("the API server asks to wait {0:?}")]
    Throttled(Duration),
    /// The server refuses, and will again until somebody changes something.
    #[error("not allowed to {verb} {resource}: {message}")]
    Forbidden { verb: &'static str, resource: &'static str, message: String },
    /// A person has stopped everything.
    #[error("Salvor is paused")]
    Paused,
    /// Meanwhile the server told another time than before.
    #[error("the API server told different times, and this cannot be taken back")]
    ClockUnsettled,
    /// No answer in time: it may or may not have been done.
    #[error("no answer within {0:?}; it may or may not have been done")]
    Unanswered(Duration),
    /// Anything else.
    #[error("{}", live::brief(.0))]
    Api(kube::Error),
}

impl Failure {
    fn code(&self) -> &'static str {
        match self {
            Self::Stale => "conflict",
            Self::Gone => "gone",
            Self::NotLeading => "not_leading",
            Self::LookTooOld => "look_too_old",
            Self::DryRun => "dry_run",
            Self::Throttled(_) => "throttled",
            Self::Forbidden { .. } => "forbidden",
            Self::Paused => "paused",
            Self::ClockUnsettled => "clock_unsettled",
            Self::Unanswered(_) => "unanswered",
            Self::Api(_) => "error",
        }
    }

    fn of(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 429 => {
                let seconds = status.details.map_or(1, |details| details.retry_after_seconds);
                Self::Throttled(Duration::from_secs(u64::from(seconds).clamp(1, LONGEST_PAUSE)))
            }
            other => Self::Api(other),
        }
    }

    /// The server's words on a step, if asking again as before will not help. A pod that cannot be made, or deleted, holds up
    /// only that, whoever refuses it: a webhook that is not there is the server's fault by its code.
    pub(crate) fn words_on(&self, step: &Action) -> Option<String> {
        match (step, self) {
            (Action::CreatePod { .. } | Action::DeletePod { .. }, Self::Api(kube::Error::Api(status))) => {
                Some(status.message.clone())
            }
            _ => self.refusal(),
        }
    }

    /// The server's words, if it understood the request and said no to what is in it: asking again will not help
    /// before something else has changed.
    fn refusal(&self) -> Option<String> {
        match self {
            Self::Forbidden { message, .. } => Some(message.clone()),
            // Of these, too many requests is the only one that passes by itself.
            Self::Api(kube::Error::Api(status))
                if (400..500).contains(&status.code) && status.code != 429 =>
            {
                Some(status.message.clone())
            }
            _ => None,
        }
    }
}

impl From<NotSent> for Failure {
    fn from(why: NotSent) -> Self {
        match why {
            NotSent::LookTooOld => Self::LookTooOld,
            NotSent::NotLeading => Self::NotLeading,
        }
    }
}

/// Whether a 429 is about this one object and not about the server's load. The server refuses what is too much for it
/// before it looks at the request, in plain text. A webhook may answer anything, but its name is put before its words; and
/// what limits the making of an object answers with a Status.
fn is_admissions(status: &Status, creates: bool) -> bool {
    status.message.starts_with("admission webhook ") || (creates && !status.reason.is_empty())
}

/// What a write left behind.
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
    /// What recovers: zombies and evictions.
    Recovery,
    /// What Jobs want, which tenants can make as much as they like.
    Jobs,
    /// Events that are told by themselves, and not as a step of some work.
    Events,
}

/// What a write rests on. It does not leave when that is not so any more.
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

/// What had to be read for a write before the second look: afterwards there is no time for it.
#[derive(Debug)]
pub(crate) enum Prepared {
    Nothing,
    /// A node whole: its taints are one list to the API, which is written back whole.
    Node(Value),
    /// The volumes that a node still uses and those that stay, for these volumes of an eviction.
    Volumes {
        of: Volumes,
        left: Vec<String>,
        kept: Vec<String>,
    },
}

/// The volumes of an eviction.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Volumes {
    in_use: Vec<String>,
    attached: Vec<AttachmentView>,
    attached_names: Vec<String>,
    keep: Vec<Claim>,
}

impl Volumes {
    fn of(in_use: &[String], attached: &[AttachmentView], attached_names: &[String], keep: &[Claim]) -> Self {
        Self {
            in_use: in_use.to_vec(),
            attached: attached.to_vec(),
            attached_names: attached_names.to_vec(),
            keep: keep.to_vec(),
        }
    }
}

/// Carries out actions. Clones share their limits.
#[derive(Clone)]
pub(crate) struct Executor(Arc<Inner>);

/// Events that are told in passing.
#[derive(Default)]
struct Mentions {
    waiting: VecDeque<(EventNote, Term)>,
    /// Tasks that tell them, one after the other.
    tellers: usize,
}

struct Inner {
    client: Client,
    time: Time,
    leadership: Leadership,
    metrics: Metrics,
    instance: String,
    dry_run: bool,
    recovery: Limits,
    jobs: Limits,
    events: Limits,
    mentions: Mutex<Mentions>,
    crash: CrashPoint,
}

/// What holds up the writes of a lane.
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
    /// `writes` requests of what recovers, and as many of Jobs, are under way at once. A dry run sends none.
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
            events: Limits::new(EVENTS_AT_ONCE),
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

    fn limits(&self, lane: Lane) -> &Limits {
        match lane {
            Lane::Recovery => &self.0.recovery,
            Lane::Jobs => &self.0.jobs,
            Lane::Events => &self.0.events,
        }
    }

    /// Carries out an action that rests on no look, or on one that was just taken.
    pub(crate) async fn perform(
        &self,
        lane: Lane,
        action: &Action,
        basis: Basis,
    ) -> Result<Written, Failure> {
        let permit = self.permit(lane, basis.term).await?;
        let prepared = permit.prepare(action).await?;
        permit.write(action, &prepared, basis).await
    }

    /// How much longer the server asks a lane to wait. What it asks of recoveries it asks of all; what it asks of Jobs must not
    /// hold up recoveries.
    pub(crate) fn pause(&self, lane: Lane) -> Option<Duration> {
        // One after the other: they may be the same.
        let lanes = *self.limits(lane).quiet_until();
        let everybodys = *self.0.recovery.quiet_until();
        lanes.max(everybodys)?.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// What became of a step whose objects could not be read.
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

    /// Records an event of a term, some time soon, if it can be.
    pub(crate) fn mention(&self, note: EventNote, term: Term) {
        {
            let mut mentions = self.mentions();
            if mentions.waiting.len() >= MOST_MENTIONS {
                return tracing::debug!(event = note.name, "more events than can be recorded: left out");
            }
            mentions.waiting.push_back((note, term));
            if mentions.tellers >= EVENTS_AT_ONCE {
                return;
            }
            mentions.tellers += 1;
        }
        let this = self.clone();
        tokio::spawn(async move {
            while let Some((note, term)) = this.next_mention() {
                this.tell(&Action::EmitEvent(note), term).await;
            }
        });
    }

    /// Records an event, and tries again if that may help. Its name is given, so it is never there twice.
    async fn tell(&self, event: &Action, term: Term) {
        let mut pauses = MENTIONED_AGAIN_AFTER.into_iter();
        while let Err(failure) = self.perform(Lane::Events, event, Basis { term, looked: None }).await {
            tracing::debug!(%failure, "an event could not be recorded");
            let may_help =
                matches!(failure, Failure::Throttled(_) | Failure::Unanswered(_) | Failure::Api(_));
            match pauses.next().filter(|_| may_help && failure.refusal().is_none()) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return,
            }
        }
    }

    /// The next event to be told by a teller, which goes if there is none.
    fn next_mention(&self) -> Option<(EventNote, Term)> {
        let mut mentions = self.mentions();
        let next = mentions.waiting.pop_front();
        if next.is_none() {
            mentions.tellers -= 1;
            mentions.waiting.shrink_to_fit();
        }
        next
    }

    fn mentions(&self) -> MutexGuard<'_, Mentions> {
        self.0.mentions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- what must be read for a write -----------------------------------------------------------

    async fn read_for(&self, action: &Action) -> Result<Prepared, Failure> {
        match action {
            Action::TaintNode { node, .. }
            | Action::UntaintNode { node, .. }
            | Action::StartEviction { node, .. }
            | Action::EndEviction { node, .. } => {
                let found = self.read(&format!("/api/v1/nodes/{}", node.name)).await?;
                Ok(Prepared::Node(found.ok_or(Failure::Stale)?))
            }
            Action::ReleaseVolumes { in_use, attached, attached_names, keep, .. } => {
                let (left, kept) = self.rest_in_use(in_use, attached, attached_names, keep).await?;
                Ok(Prepared::Volumes { of: Volumes::of(in_use, attached, attached_names, keep), left, kept })
            }
            Action::PatchPodStatus { .. }
            | Action::EmitEvent(_)
            | Action::ForceDeletePod { .. }
            | Action::AtOnce(_)
            | Action::Mention(_)
            | Action::CreatePod { .. }
            | Action::PatchJobStatus { .. }
            | Action::RemoveFinalizer { .. }
            | Action::DeletePod { .. }
            | Action::EvictPod { .. }
            | Action::AdoptPod { .. }
            | Action::ReleasePod { .. }
            | Action::DeleteJob { .. }
            | Action::ReportEviction { .. } => Ok(Prepared::Nothing),
        }
    }
}

impl Permit<'_> {
    /// Reads what a step needs besides what it is given.
    pub(crate) async fn prepare(&self, step: &Action) -> Result<Prepared, Failure> {
        self.unless_paused()?;
        let read = tokio::time::timeout(WRITE_TIMEOUT, self.executor.read_for(step)).await;
        match read {
            Ok(Ok(prepared)) => Ok(prepared),
            Ok(Err(failure)) => self.note(step, Err(failure)),
            Err(_) => self.note(step, Err(Failure::Unanswered(WRITE_TIMEOUT))),
        }
    }

    /// Writes a step. Never waits out a pause that the server asked for: by then the judgement would be old.
    pub(crate) async fn write(
        &self,
        step: &Action,
        prepared: &Prepared,
        basis: Basis,
    ) -> Result<Written, Failure> {
        self.note(step, self.try_to_write(step, prepared, basis).await)
    }

    /// Counts how a step ended, and heeds what the server asks for.
    fn note<T>(&self, action: &Action, result: Result<T, Failure>) -> Result<T, Failure> {
        let code = result.as_ref().map_or_else(Failure::code, |_| "ok");
        self.executor.0.metrics.wrote(action.name(), code);
        result.inspect_err(|failure| self.executor.obey(failure, self.lane))
    }

    fn unless_paused(&self) -> Result<(), Failure> {
        self.executor.pause(self.lane).map_or(Ok(()), |left| Err(Failure::Throttled(left)))
    }

    async fn try_to_write(
        &self,
        step: &Action,
        prepared: &Prepared,
        basis: Basis,
    ) -> Result<Written, Failure> {
        let inner = &*self.executor.0;
        if inner.dry_run {
            return Err(Failure::DryRun);
        }
        // Whoever forgot to look has no look that counts.
        if step.needs_a_second_look() && basis.looked.is_none() {
            return Err(Failure::LookTooOld);
        }
        self.unless_paused()?;
        // The answer to a second look may have been the first to tell another time.
        if step.is_irreversible() && inner.time.unsettled().is_some() {
            return Err(Failure::ClockUnsettled);
        }
        let left = inner.leadership.time_left(basis.term).ok_or(Failure::NotLeading)?;
        let limit = left.min(WRITE_TIMEOUT);
        let number = inner.crash.before_write();
        let writing = Writing { inner, basis };
        let result =
            within(limit, writing.write(step, prepared)).await.unwrap_or(Err(Failure::Unanswered(limit)));
        inner.crash.after_write(number);
        result
    }
}

impl Writing<'_> {
    async fn write(&self, action: &Action, prepared: &Prepared) -> Result<Written, Failure> {
        match action {
            Action::PatchPodStatus { pod, resource_version, phase, conditions } => {
                let conditions = conditions.iter().map(|c| TrueCondition {
                    kind: c.kind,
                    status: "True",
                    reason: c.reason,
                    message: &c.message,
                    last_transition_time: c.last_transition_time,
                });
                let status =
                    PodStatus { conditions: conditions.collect(), phase: phase.map(PodPhase::as_str) };
                // Strategic: conditions are merged by their type, so those of others stay without being read.
                let body =
                    Guarded { metadata: Guard::judged(&pod.uid, resource_version), status: Some(status) };
                let path = format!("{}/status", pod_path(pod));
                // Its answer spares the read before the delete that follows.
                self.patch(&path, STRATEGIC, json_of(&body)?, "pods/status").await
            }
            Action::EmitEvent(note) => self.emit(note).await,
            Action::ForceDeletePod { pod, resource_version } => {
                let judged = json!({ "uid": pod.uid, "resourceVersion": resource_version });
                let options = json!({ "gracePeriodSeconds": 0, "preconditions": judged });
                self.delete(&pod_path(pod), &options, "pods").await
            }
            Action::DeletePod { pod } => {
                let options = json!({ "preconditions": { "uid": pod.uid } });
                let path = pod_path(pod);
                // It may take its time, and until then it is not gone: what it is now must be known.
                gone_is_fine(
                    self.send(
                        Method::DELETE,
                        &path,
                        "application/json",
                        json_of(&options)?,
                        "delete",
                        "pods",
                    )
                    .await,
                )
            }
            Action::EvictPod { pod, resource_version } => {
                let judged = json!({ "uid": pod.uid, "resourceVersion": resource_version });
                self.delete(&pod_path(pod), &json!({ "preconditions": judged }), "pods").await
            }
            Action::DeleteJob { job, resource_version } => {
                let judged = json!({ "uid": job.uid, "resourceVersion": resource_version });
                let options = json!({ "propagationPolicy": "Foreground", "preconditions": judged });
                self.delete(&job_path(job), &options, "jobs.batch").await
            }
            Action::CreatePod { job, name, body, .. } => self.create_pod(job, name, body).await,
            Action::PatchJobStatus { job, resource_version, status, used_names } => {
                let annotations = used_names.as_deref().map(|names| JobAnnotations { names });
                let metadata = Guard { annotations, ..Guard::judged(&job.uid, resource_version) };
                let body = Guarded { metadata, status: Some(status) };
                let path = format!("{}/status", job_path(job));
                // Not strategic: the whole status was judged, and what is null in it must go.
                self.patch(&path, "application/merge-patch+json", json_of(&body)?, "jobs/status").await
            }
            Action::RemoveFinalizer { pod, finalizer, .. } => {
                let metadata = Guard { without_finalizers: Some([finalizer]), ..Guard::of(&pod.uid) };
                let body = Guarded { metadata, status: None::<()> };
                gone_is_fine(self.patch(&pod_path(pod), STRATEGIC, json_of(&body)?, "pods").await)
            }
            Action::AdoptPod { pod, resource_version, job, finalizer } => {
                let body = json!({
                    "metadata": {
                        "uid": pod.uid,
                        "resourceVersion": resource_version,
                        "finalizers": [finalizer],
                        "ownerReferences": [{
                            "apiVersion": "batch/v1",
                            "kind": "Job",
                            "name": job.name,
                            "uid": job.uid,
                            "controller": true,
                            "blockOwnerDeletion": true,
                        }],
                    },
                });
                gone_is_fine(self.patch(&pod_path(pod), STRATEGIC, json_of(&body)?, "pods").await)
            }
            Action::ReleasePod { pod, job, finalizer } => {
                let body = json!({
                    "metadata": {
                        "uid": pod.uid,
                        "$deleteFromPrimitiveList/finalizers": [finalizer],
                        "ownerReferences": [{ "$patch": "delete", "uid": job.uid }],
                    },
                });
                gone_is_fine(self.patch(&pod_path(pod), STRATEGIC, json_of(&body)?, "pods").await)
            }
            // Taken apart, or told in passing, before it comes to single writes.
            Action::AtOnce(_) | Action::Mention(_) => Ok(Written::Nothing),
            Action::TaintNode { node, resource_version, taint, mark, since } => {
                self.change_taints(node, resource_version, prepared, |taints| {
                    add_taint(taints, taint, *since);
                    json!({ *mark: since.to_string() })
                })
                .await
            }
            Action::StartEviction { node, resource_version, taint, progress, .. } => {
                self.change_taints(node, resource_version, prepared, |taints| {
                    if let Some(taint) = taint {
                        add_taint(taints, taint, progress.started);
                    }
                    json!({ annotations::EVICTION: annotation(progress) })
                })
                .await
            }
            Action::EndEviction { node, resource_version, progress, asked } => {
                self.change_taints(node, resource_version, prepared, |taints| {
                    taints.retain(|t| t["key"] != salvor_api::names::taints::FORCE_EVICTION);
                    json!({
                        annotations::EVICTION: progress.as_ref().map(annotation),
                        annotations::EVICTION_ASKED: asked.as_ref().map(annotation),
                        // A person's word on this eviction is no word on the next one.
                        annotations::DESPITE_ZONE_OUTAGE: null,
                    })
                })
                .await
            }
            Action::ReportEviction { node, resource_version, condition, progress } => {
                let status = json!({ "conditions": [node_condition(condition)] });
                self.patch_node_status(node, resource_version, progress.as_ref(), &status).await
            }
            Action::ReleaseVolumes {
                node,
                resource_version,
                in_use,
                attached,
                attached_names,
                keep,
                progress,
            } => {
                let Prepared::Volumes { of, left, kept } = prepared else { return Err(Failure::Stale) };
                // The second look found others.
                if *of != Volumes::of(in_use, attached, attached_names, keep) {
                    return Err(Failure::Stale);
                }
                let mut progress = progress.clone();
                if let Some(released) = &mut progress.released {
                    released.volumes.clone_from(kept);
                }
                let status = json!({ "volumesInUse": left });
                self.patch_node_status(node, resource_version, Some(&progress), &status).await
            }
            Action::UntaintNode { node, resource_version, taint, mark } => {
                self.change_taints(node, resource_version, prepared, |taints| {
                    // One that somebody has put there with another value since is theirs.
                    taints.retain(|t| !(is(t, taint) && t["value"].as_str().unwrap_or("") == taint.value));
                    json!({ *mark: null })
                })
                .await
            }
        }
    }

    async fn delete(&self, path: &str, options: &Value, resource: &'static str) -> Result<Written, Failure> {
        let kind = "application/json";
        gone_is_fine(
            self.send_unread(Method::DELETE, path, kind, json_of(options)?, "delete", resource).await,
        )
    }

    /// Creates a pod. If there is one of that name, it is the answer: ours, if the request was made before, or another's.
    async fn create_pod(&self, job: &JobRef, name: &str, body: &str) -> Result<Written, Failure> {
        let pods = format!("/api/v1/namespaces/{}/pods", job.namespace);
        let path = format!("{pods}?fieldManager={FIELD_MANAGER}");
        let body = body.as_bytes().to_vec();
        let created = self.send(Method::POST, &path, "application/json", body, "create", "pods").await;
        match created {
            Err(Failure::Stale) => {
                let path = format!("{pods}/{name}");
                let found = live::get(&self.inner.client, &path).await.map_err(Failure::of)?;
                found.map(Written::Object).ok_or(Failure::Stale)
            }
            other => other,
        }
    }

    /// A node's taints are one list to the API: it was read, and is changed and written back whole, if nobody else did.
    async fn change_taints(
        &self,
        node: &NodeRef,
        judged: &str,
        prepared: &Prepared,
        change: impl FnOnce(&mut Vec<Value>) -> Value,
    ) -> Result<Written, Failure> {
        let Prepared::Node(object) = prepared else { return Err(Failure::Stale) };
        let path = format!("/api/v1/nodes/{}", node.name);
        let metadata = &object["metadata"];
        if metadata["uid"] != node.uid.as_str() || metadata["resourceVersion"] != judged {
            return Err(Failure::Stale);
        }
        let mut taints = object["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let marks = change(&mut taints);
        let body = json!({
            "metadata": { "uid": node.uid, "resourceVersion": judged, "annotations": marks },
            "spec": { "taints": taints },
        });
        self.patch(&path, "application/merge-patch+json", json_of(&body)?, "nodes").await
    }

    /// A node's annotations can be written with its status.
    async fn patch_node_status(
        &self,
        node: &NodeRef,
        judged: &str,
        progress: Option<&Progress>,
        status: &Value,
    ) -> Result<Written, Failure> {
        let mut metadata = json!({ "uid": node.uid, "resourceVersion": judged });
        if let Some(progress) = progress {
            metadata["annotations"] = json!({ annotations::EVICTION: annotation(progress) });
        }
        let body = json!({ "metadata": metadata, "status": status });
        let path = format!("/api/v1/nodes/{}/status", node.name);
        // Strategic: conditions are merged by their type; the list of volumes is replaced whole.
        self.patch(&path, STRATEGIC, json_of(&body)?, "nodes/status").await
    }
}

impl Executor {
    /// What a node still uses when what is attached to it goes, and the attached volumes that stay, because of these claims.
    ///
    /// What is read is bound by what is attached: anybody may have claims by the thousand.
    async fn rest_in_use(
        &self,
        in_use: &[String],
        attached: &[AttachmentView],
        attached_names: &[String],
        keep: &[Claim],
    ) -> Result<(Vec<String>, Vec<String>), Failure> {
        let mut left = in_use.to_vec();
        // If no pod stays that has a claim, a driver's names are those of what it has attached, unless there are more.
        if keep.is_empty() {
            left.retain(|name| !attached_names.contains(name));
            strike_by_count(&mut left, &attached.iter().collect::<Vec<_>>());
            if left.is_empty() {
                return Ok((left, Vec::new()));
            }
        }
        let volumes = self.volumes_behind(attached).await?;
        // They are in order.
        let stays = |volume: &Volume| volume.claim.as_ref().is_some_and(|it| keep.binary_search(it).is_ok());
        let known = || attached.iter().zip(&volumes).filter_map(|(it, volume)| Some((it, volume.as_ref()?)));
        let names_of = |staying: bool| -> Vec<&String> {
            known().filter(|(_, it)| stays(it) == staying).filter_map(|(_, it)| it.name.as_ref()).collect()
        };
        let (gone, kept_names) = (names_of(false), names_of(true));
        left.retain(|name| kept_names.contains(&name) || !gone.contains(&name));
        // A volume whose PersistentVolume is gone, or is of an in-tree kind, has no name that could be looked up.
        if keep.is_empty() {
            let is_nameless = |volume: &Option<Volume>| volume.as_ref().is_none_or(|it| it.name.is_none());
            let nameless: Vec<&AttachmentView> =
                attached.iter().zip(&volumes).filter(|(_, it)| is_nameless(it)).map(|(it, _)| it).collect();
            strike_by_count(&mut left, &nameless);
        }
        let kept = known().filter(|(_, volume)| stays(volume)).filter_map(|(it, _)| it.volume.clone());
        Ok((left, kept.collect()))
    }

    /// The PersistentVolumes behind attachments, each if it is there.
    async fn volumes_behind(&self, attached: &[AttachmentView]) -> Result<Vec<Option<Volume>>, Failure> {
        let behind = |attachment: &AttachmentView| {
            let path = attachment.volume.as_ref().map(|volume| format!("/api/v1/persistentvolumes/{volume}"));
            async move {
                let Some(path) = path else { return Ok(None) };
                let Some(object) = self.read(&path).await? else { return Ok(None) };
                let (csi, claim) = (&object["spec"]["csi"], &object["spec"]["claimRef"]);
                let (driver, handle) = (text(&csi["driver"]), text(&csi["volumeHandle"]));
                let name =
                    driver.zip(handle).map(|(driver, handle)| format!("{}{handle}", names_begin(&driver)));
                let claim = text(&claim["namespace"]).zip(text(&claim["name"]));
                Ok(Some(Volume { name, claim: claim.map(|(namespace, name)| Claim { namespace, name }) }))
            }
        };
        let reads: Vec<_> = attached.iter().map(behind).collect();
        stream::iter(reads).buffered(READS_AT_ONCE).try_collect().await
    }

    async fn read(&self, path: &str) -> Result<Option<Value>, Failure> {
        let found = live::get(&self.0.client, path).await.map_err(Failure::of)?;
        let parse = |text: String| serde_json::from_str(&text);
        found.map(parse).transpose().map_err(|e| Failure::Api(kube::Error::SerdeError(e)))
    }
}

impl Writing<'_> {
    async fn emit(&self, note: &EventNote) -> Result<Written, Failure> {
        let path = format!("/api/v1/namespaces/{}/events", note.regarding.event_namespace());
        let body = json_of(&self.event(note))?;
        match self.send_unread(Method::POST, &path, "application/json", body, "create", EVENTS).await {
            // The event has a name of its own: there already, it was told already.
            Err(Failure::Stale) => Ok(Written::Nothing),
            // A namespace that is going away takes no events, and nobody will read them there.
            Err(Failure::Forbidden { message, .. }) if message.contains("being terminated") => {
                Ok(Written::Nothing)
            }
            other => other,
        }
    }

    /// As Kubernetes' own controllers write it. `kubectl` sorts by the last timestamp and names the source, and the newer API has
    /// no room for either.
    fn event<'a>(&'a self, note: &'a EventNote) -> Event<'a> {
        let at = self.inner.time.local().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Event {
            api_version: "v1",
            kind: "Event",
            metadata: event_metadata(note),
            involved_object: regarding(&note.regarding),
            type_: format!("{:?}", note.kind),
            reason: &note.reason,
            action: note.action,
            message: event_text(note),
            source: EventSource { component: note.reporting_controller },
            first_timestamp: at.clone(),
            last_timestamp: at,
            count: 1,
            reporting_component: note.reporting_controller,
            reporting_instance: &self.inner.instance,
        }
    }

    async fn patch(
        &self,
        path: &str,
        kind: &str,
        body: Vec<u8>,
        resource: &'static str,
    ) -> Result<Written, Failure> {
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        self.send(Method::PATCH, &path, kind, body, "patch", resource).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Vec<u8>,
        verb: &'static str,
        resource: &'static str,
    ) -> Result<Written, Failure> {
        let request = request(method, path, kind, "application/json", body)?;
        let answer = self.answer(request, verb, resource).await?;
        Ok(Written::Object(text_of(answer)))
    }

    async fn send_unread(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Vec<u8>,
        verb: &'static str,
        resource: &'static str,
    ) -> Result<Written, Failure> {
        let request = request(method, path, kind, BRIEFLY, body)?;
        self.answer(request, verb, resource).await.map(|_| Written::Nothing)
    }

    async fn answer(
        &self,
        mut request: Request<Vec<u8>>,
        verb: &'static str,
        resource: &'static str,
    ) -> Result<Bytes, Failure> {
        let creates = request.method() == Method::POST;
        // Asked here, and once more when the first byte leaves: a process may sleep between any two instructions, and a
        // request may wait for its connection.
        let condition = self.basis.condition(&self.inner.leadership);
        condition.check()?;
        request.extensions_mut().insert(condition);
        // What was done before a pause may still be told. All else is under way until its answer is here.
        let _pass = match resource {
            EVENTS => None,
            _ => Some(self.inner.leadership.pause().enter().ok_or(Failure::Paused)?),
        };
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
            // The guard's UID is another pod's: the API says so as a validation error.
            422 if status.message.contains("metadata.uid") => Failure::Stale,
            // Gone since it was judged.
            404 => Failure::Gone,
            403 => Failure::Forbidden { verb, resource, message: status.message },
            429 if is_admissions(&status, creates) => Failure::Api(kube::Error::Api(status.boxed())),
            _ => Failure::of(kube::Error::Api(status.boxed())),
        })
    }
}

/// A PersistentVolume.
struct Volume {
    /// How a node calls it, if it is of a CSI driver.
    name: Option<String>,
    /// The claim that it is bound to.
    claim: Option<Claim>,
}

// ---- bodies that are sent by the thousand, without a tree of values in between ----

/// Changes an object, if it is still the one that was judged.
#[derive(Serialize)]
struct Guarded<'a, S> {
    metadata: Guard<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<S>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Guard<'a> {
    uid: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<&'a str>,
    #[serde(rename = "$deleteFromPrimitiveList/finalizers", skip_serializing_if = "Option::is_none")]
    without_finalizers: Option<[&'a str; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<JobAnnotations<'a>>,
}

/// A Job's annotations can be written with its status.
#[derive(Serialize)]
struct JobAnnotations<'a> {
    #[serde(rename = "job.salvor.dev/used-pod-names")]
    names: &'a str,
}

impl<'a> Guard<'a> {
    fn of(uid: &'a str) -> Self {
        Self { uid, resource_version: None, without_finalizers: None, annotations: None }
    }

    fn judged(uid: &'a str, resource_version: &'a str) -> Self {
        Self { resource_version: Some(resource_version), ..Self::of(uid) }
    }
}

#[derive(Serialize)]
struct PodStatus<'a> {
    conditions: Vec<TrueCondition<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TrueCondition<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    status: &'a str,
    reason: &'a str,
    message: &'a str,
    last_transition_time: Timestamp,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    api_version: &'a str,
    kind: &'a str,
    metadata: EventMetadata<'a>,
    involved_object: Regarding<'a>,
    #[serde(rename = "type")]
    type_: String,
    reason: &'a str,
    action: &'a str,
    message: &'a str,
    source: EventSource<'a>,
    first_timestamp: String,
    last_timestamp: String,
    count: u32,
    reporting_component: &'a str,
    reporting_instance: &'a str,
}

#[derive(Serialize)]
struct EventSource<'a> {
    component: &'a str,
}

#[derive(Serialize)]
struct EventMetadata<'a> {
    name: &'a str,
    namespace: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Regarding<'a> {
    api_version: &'a str,
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<&'a str>,
}

fn event_metadata(note: &EventNote) -> EventMetadata<'_> {
    EventMetadata { name: &note.name, namespace: note.regarding.event_namespace() }
}

fn event_text(note: &EventNote) -> &str {
    &note.message[..note.message.floor_char_boundary(LONGEST_NOTE)]
}

fn regarding(subject: &Subject) -> Regarding<'_> {
    let (api_version, kind, namespace, name, uid) = match subject {
        Subject::Pod(pod) => ("v1", "Pod", Some(&pod.namespace), &pod.name, Some(&pod.uid)),
        Subject::Job(job) => ("batch/v1", "Job", Some(&job.namespace), &job.name, Some(&job.uid)),
        Subject::Lease { namespace, name } => {
            ("coordination.k8s.io/v1", "Lease", Some(namespace), name, None)
        }
        // Kubernetes' own controllers give a node's name as its UID here, and `kubectl describe node` looks for that.
        Subject::Node(node) => ("v1", "Node", None, &node.name, Some(&node.name)),
    };
    Regarding {
        api_version,
        kind,
        namespace: namespace.map(String::as_str),
        name,
        uid: uid.map(String::as_str),
    }
}

fn json_of(body: &impl Serialize) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(body).map_err(|e| Failure::Api(kube::Error::SerdeError(e)))
}

/// An answer as text; it is only copied if it must be mended.
fn text_of(answer: Bytes) -> String {
    String::from_utf8(answer.into())
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn request(
    method: Method,
    path: &str,
    kind: &str,
    accept: &str,
    body: Vec<u8>,
) -> Result<Request<Vec<u8>>, Failure> {
    let request = Request::builder().method(method).uri(path);
    let request = request.header(CONTENT_TYPE, kind).header(ACCEPT, accept).body(body);
    request.map_err(|e| Failure::Api(kube::Error::HttpError(e)))
}

fn pod_path(pod: &PodRef) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}

fn job_path(job: &JobRef) -> String {
    format!("/apis/batch/v1/namespaces/{}/jobs/{}", job.namespace, job.name)
}

/// An object that is gone needs nothing more.
fn gone_is_fine(result: Result<Written, Failure>) -> Result<Written, Failure> {
    match result {
        Err(Failure::Gone) => Ok(Written::Nothing),
        other => other,
    }
}

fn add_taint(taints: &mut Vec<Value>, taint: &Taint, since: Timestamp) {
    taints.retain(|t| !is(t, taint));
    let mut added = json!({ "key": taint.key, "effect": taint.effect, "timeAdded": since });
    if !taint.value.is_empty() {
        added["value"] = taint.value.as_str().into();
    }
    taints.push(added);
}

/// How a node's names for the volumes of a driver begin.
fn names_begin(driver: &str) -> String {
    format!("kubernetes.io/csi/{driver}^")
}

/// Strikes the names of each driver that are not more than what it has attached.
fn strike_by_count(names: &mut Vec<String>, attached: &[&AttachmentView]) {
    for AttachmentView { driver, .. } in attached {
        let begin = names_begin(driver);
        let unknown = names.iter().filter(|name| name.starts_with(&begin)).count();
        if unknown <= attached.iter().filter(|other| other.driver == *driver).count() {
            names.retain(|name| !name.starts_with(&begin));
        }
    }
}

fn annotation(memory: &impl Serialize) -> String {
    // Times and strings always have a JSON form.
    serde_json::to_string(memory).unwrap_or_default()
}

fn node_condition(condition: &NodeCondition) -> Value {
    json!({
        "type": condition.kind,
        "status": if condition.holds { "True" } else { "False" },
        "reason": condition.reason,
        "message": condition.message,
        "lastHeartbeatTime": condition.last_transition_time,
        "lastTransitionTime": condition.last_transition_time,
    })
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn is(taint: &Value, wanted: &Taint) -> bool {
    taint["key"] == wanted.key.as_str() && taint["effect"] == wanted.effect.as_str()
}

#[cfg(test)]
mod tests;
