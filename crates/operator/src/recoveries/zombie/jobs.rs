//! The Jobs of pods that are about to be recovered. They are not watched: each is read when one of its pods is due, and
//! with every second look, one read for all of its pods.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::Client;
use salvor_recovery::{
    ids::Uid,
    job::{JobSpec, JobStatus, JobView, Template},
    objects::JobRef,
    zombie::JobSight,
};
use serde::Deserialize;
use tokio::sync::Notify;

use crate::{
    client::{
        live,
        recent_reads::{ReadAge, RecentReads},
        wire::Object,
    },
    watch_set::feeds::Outbox,
};

/// Limit on concurrent reads.
const READS_AT_ONCE: usize = 8;
/// Timeout of a read; it is repeated at the next request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What is known of Jobs, and which of them are to be read. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Jobs(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    known: Mutex<BTreeMap<Uid, JobSight>>,
    /// Since when each is requested.
    wanted: Mutex<BTreeMap<JobRef, Timestamp>>,
    asked: Notify,
    looks: RecentReads<JobSight, JobRef>,
}

impl Jobs {
    pub(super) fn of(&self, job: &JobRef) -> JobSight {
        self.known().get(&job.uid).cloned().unwrap_or_default()
    }

    /// Requests one read of a Job now.
    pub(super) fn want(&self, job: &JobRef, now: Timestamp) {
        if lock(&self.0.wanted).insert(job.clone(), now).is_none() {
            self.0.asked.notify_one();
        }
    }

    /// Applies a read, unless a later state is known.
    pub(super) fn note(&self, job: &JobRef, sight: JobSight) {
        let mut known = self.known();
        let is_older = match (known.get(&job.uid), &sight) {
            (Some(JobSight::Seen { job: known, .. }), JobSight::Seen { job: new, .. }) => {
                known.resource_version().revision().is_after(new.resource_version().revision())
            }
            _ => false,
        };
        if !is_older {
            known.insert(job.uid.clone(), sight);
        }
    }

    /// Applies a read of a second look, if the Job is still in question.
    pub(super) fn note_again(&self, job: &JobRef, sight: &JobSight) {
        if self.known().contains_key(&job.uid) {
            self.note(job, sight.clone());
        }
    }

    /// Applies the answer to our own write.
    pub(super) fn written(&self, job: &JobRef, answer: &str, now: Timestamp) {
        self.0.looks.forget(job);
        self.note(job, understood(job, answer, now));
    }

    /// Drops a Job without pods in question.
    pub(super) fn forget(&self, job: &Uid) {
        self.known().remove(job);
    }

    pub(super) fn forget_all(&self) {
        self.known().clear();
    }

    /// The live Job: read now, or by another recent look.
    pub(super) async fn look(
        &self,
        client: &Client,
        job: &JobRef,
        now: Timestamp,
        sight: &mut ReadAge,
    ) -> kube::Result<JobSight> {
        let read = async { read_if_allowed(client, job, now).await.map(Some) };
        Ok(self.0.looks.at(job, sight, read).await?.unwrap_or_default())
    }

    /// Reads the requested Jobs until the receiver is gone.
    pub(super) async fn read_on<News: Send + 'static>(
        self,
        client: Client,
        news: Outbox<News>,
        tell: fn(JobRef, JobSight) -> News,
    ) {
        let (jobs, client, news) = (&self, &client, &news);
        loop {
            let wanted = std::mem::take(&mut *lock(&self.0.wanted));
            let reads = stream::iter(wanted).for_each_concurrent(READS_AT_ONCE, |(job, asked)| async move {
                let mut sight = ReadAge::default();
                let look = jobs.look(client, &job, asked, &mut sight);
                let error = match tokio::time::timeout(TIMEOUT, look).await {
                    Ok(Ok(sight)) => {
                        // If the receiver is gone, the loop notices that.
                        let _ = news.send(tell(job, sight)).await;
                        return;
                    }
                    Ok(Err(error)) => live::brief(&error),
                    Err(_) => format!("no answer within {TIMEOUT:?}"),
                };
                tracing::warn!(recovery = "zombie", %job, error, "job read failed, retrying");
            });
            reads.await;
            tokio::select! {
                biased;
                () = news.closed() => return,
                () = self.0.asked.notified() => {}
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Uid, JobSight>> {
        lock(&self.0.known)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) async fn read(client: &Client, job: &JobRef, now: Timestamp) -> kube::Result<JobSight> {
    let path = format!("/apis/batch/v1/namespaces/{}/jobs/{}", job.namespace, job.name);
    let text = live::get_if_there(client, &path).await?;
    Ok(text.map_or(JobSight::Gone, |text| understood(job, &text, now)))
}

/// For the operator, a forbidden read is a result to report. Every other error is retried.
async fn read_if_allowed(client: &Client, job: &JobRef, now: Timestamp) -> kube::Result<JobSight> {
    match read(client, job, now).await {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let error = live::brief(&kube::Error::Api(status)).into();
            Ok(JobSight::Unreadable { error, at: now })
        }
        other => other,
    }
}

type JobWire = Object<JobSpec, JobStatus, Annotations>;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "salvor.dev/backoff-limit-raised")]
    raised: Option<String>,
}

/// Decodes a Job and checks that it is the expected one.
fn understood(job: &JobRef, text: &str, now: Timestamp) -> JobSight {
    match serde_json::from_str::<JobWire>(text) {
        Err(error) => JobSight::Unreadable { error: error.to_string().into(), at: now },
        // Another Job of the same name: the one that created the pod is gone.
        Ok(wire) if wire.metadata.uid != job.uid => JobSight::Gone,
        Ok(JobWire { metadata, mut spec, status }) => {
            spec.template = Template::default();
            let view = JobView {
                job: Arc::new(job.clone()),
                resource_version: metadata.resource_version,
                deleting: metadata.deletion_timestamp.is_some(),
                spec,
                status,
                used_names: None,
            };
            JobSight::of(&view, metadata.annotations.raised.as_deref(), now)
        }
    }
}
