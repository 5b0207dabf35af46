//! The second look: a Job or a stray pod decided again from live reads, and these reads.

use std::sync::Arc;

use jiff::Timestamp;
use kube::Client;
use salvor_api::names::job::CONTROLLER_NAME;
use salvor_recovery::{
    Decision,
    job::{JobPolicy, JobView, JobWhy, Memory, PodView, Step, Stray, decide, decide_leftovers},
};

use super::{
    subject::Subject,
    wire::{PodWire, SeenPod, read_job, read_pod},
};
use crate::{
    client::{live, recent_reads::ReadAge},
    engine::recovery::{Known, LiveRecheck},
};

/// The second look at a Job: is it really gone, or still as it was decided?
#[derive(Debug)]
pub(crate) struct Recheck {
    pub(super) subject: Subject,
    pub(super) pods: Vec<PodView>,
    pub(super) strays: Vec<Stray>,
    pub(super) memory: Memory,
    /// When it was decided. At a later time another rule may apply first, but the requested step is still wanted.
    pub(super) judged: Timestamp,
    pub(super) policy: Arc<JobPolicy>,
}

impl LiveRecheck for Recheck {
    type Why = JobWhy;
    type Step = Step;

    async fn ask(
        &self,
        client: &Client,
        _: Known<'_>,
        _: Timestamp,
        _: &mut ReadAge,
    ) -> kube::Result<Option<Decision<JobWhy, Step>>> {
        match &self.subject {
            Subject::Job(job) => {
                let live = read_live(client, &job.namespace, &job.name).await?;
                let live = live.filter(|live| live.job.uid == job.uid);
                let is_ours = |live: &JobView| self.policy.manages(live.spec.managed_by.as_deref());
                Ok(Some(match live {
                    Some(live) if is_ours(&live) => {
                        decide(&live, &self.pods, &self.strays, &self.memory, &self.policy, self.judged)
                    }
                    anothers => {
                        let tracked = self.pods.iter().filter_map(PodView::tracked);
                        decide_leftovers(tracked, anothers.is_some(), &self.policy)
                    }
                }))
            }
            Subject::Pod { namespace, name, uid } => {
                let text = live::get(client, &format!("/api/v1/namespaces/{namespace}/pods/{name}")).await?;
                let seen = text
                    .map(|text| read_pod(&text, self.policy.unmanaged_jobs).map_err(kube::Error::SerdeError))
                    .transpose()?;
                let Some(SeenPod::Stray(stray)) = seen.filter(|seen| seen.uid() == uid) else {
                    return Ok(None);
                };
                Ok(Some(decide_leftovers(stray.tracked().into_iter(), false, &self.policy)))
            }
        }
    }
}

async fn read_live(client: &Client, namespace: &str, name: &str) -> kube::Result<Option<JobView>> {
    let text = live::get(client, &format!("/apis/batch/v1/namespaces/{namespace}/jobs/{name}")).await?;
    text.map(|text| parse_live(&text)).transpose()
}

pub(super) fn parse_live(text: &str) -> kube::Result<JobView> {
    read_job(text).map_err(kube::Error::SerdeError)
}

pub(super) async fn read_live_pods(client: &Client, job: &JobView) -> kube::Result<Vec<PodView>> {
    let path = format!("/api/v1/namespaces/{}/pods", job.job.namespace);
    // A Job that does not name us in `managedBy` is ours only if we replace the built-in controller.
    let stands_in = job.spec.managed_by.as_deref() != Some(CONTROLLER_NAME);
    let owned = |wire: PodWire| match SeenPod::new(wire, stands_in) {
        SeenPod::OfJob { owner, pod } if owner.uid == job.job.uid => Some(*pod),
        SeenPod::OfJob { .. } | SeenPod::Stray(_) | SeenPod::Bare { .. } => None,
    };
    live::list(client, &path, "", owned).await
}
