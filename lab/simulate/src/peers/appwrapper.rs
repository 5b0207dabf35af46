//! The decisions of CodeFlare's AppWrapper controller 1.2, as a client of the same API.
//!
//! It reacts to new AppWrappers and to pods that succeed. It finds everything else when it requeues: after 5 seconds
//! while pods are missing, and after 60 while all run. An AppWrapper has one component here, a Job.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams,
    },
};
use salvor_api::{GoDuration, names::appwrapper as names};
use salvor_apiserver::Cluster;
use serde_json::json;
use tokio::time::sleep;

use crate::unless_gone;

/// The interval at which it works off its queue.
const SOON: Duration = Duration::from_secs(1);
/// It requeues after this time while pods are missing, and while something is being deleted.
const SHORT: SignedDuration = SignedDuration::from_secs(5);
/// It requeues after this time while all pods run.
const LONG: SignedDuration = SignedDuration::from_secs(60);

/// Timers and limits, with upstream's defaults. Annotations of an AppWrapper override them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Timers {
    admission: SignedDuration,
    warmup: SignedDuration,
    failure: SignedDuration,
    pause: SignedDuration,
    force: SignedDuration,
    retries: u32,
}

impl Timers {
    fn of(wrapper: &DynamicObject) -> Self {
        use names::annotations as keys;
        let time = |key: &str, usual: SignedDuration| {
            let written = wrapper.annotations().get(key).and_then(|text| text.parse::<GoDuration>().ok());
            written.map_or(usual, |it| SignedDuration::from_nanos(it.as_nanos().max(0)))
        };
        let retries = wrapper.annotations().get(keys::RETRY_LIMIT).and_then(|text| text.parse().ok());
        Self {
            admission: time(keys::ADMISSION_GRACE_PERIOD, SignedDuration::from_mins(1)),
            warmup: time(keys::WARMUP_GRACE_PERIOD, SignedDuration::from_mins(5)),
            failure: time(keys::FAILURE_GRACE_PERIOD, SignedDuration::from_mins(1)),
            pause: time(keys::RETRY_PAUSE_PERIOD, SignedDuration::from_secs(90)),
            force: time(keys::FORCEFUL_DELETION_GRACE_PERIOD, SignedDuration::from_mins(10)),
            retries: retries.unwrap_or(3),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Resuming,
    Running,
    Resetting,
    Failed,
    Succeeded,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Resuming => "Resuming",
            Self::Running => "Running",
            Self::Resetting => "Resetting",
            Self::Failed => "Failed",
            Self::Succeeded => "Succeeded",
        }
    }
}

#[derive(Clone, Debug)]
struct State {
    phase: Phase,
    /// When its components were deployed.
    deployed: Timestamp,
    /// When it was first seen to be unhealthy.
    unhealthy: Option<Timestamp>,
    /// When the deletion of its components began.
    deleting: Option<Timestamp>,
    resets: u32,
    /// When it is reconciled again; `None` if only an event triggers that.
    again: Option<Timestamp>,
}

/// The pods of an AppWrapper, by phase. A running pod with a deletionTimestamp counts in none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    pending: usize,
    running: usize,
    succeeded: usize,
    failed: usize,
}

pub struct AppWrapperController {
    cluster: Cluster,
    wrappers: Api<DynamicObject>,
    jobs: Api<Job>,
    pods: Api<Pod>,
    states: BTreeMap<String, State>,
    /// The number of succeeded pods of each AppWrapper at the last reconcile.
    succeeded: BTreeMap<String, usize>,
    revision: u64,
}

impl AppWrapperController {
    /// Needs the AppWrapper CRD in the cluster. Handles the AppWrappers of the namespace `default`.
    pub fn new(cluster: &Cluster) -> Self {
        let client: Client = cluster.client();
        let (group, version) = names::API_VERSION.split_once('/').unwrap_or(("", names::API_VERSION));
        let resource = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk(group, version, names::KIND),
            "appwrappers",
        );
        Self {
            cluster: cluster.clone(),
            wrappers: Api::namespaced_with(client.clone(), "default", &resource),
            jobs: Api::namespaced(client.clone(), "default"),
            pods: Api::namespaced(client, "default"),
            states: BTreeMap::new(),
            succeeded: BTreeMap::new(),
            revision: 0,
        }
    }

    /// Runs until the API fails.
    pub async fn run(mut self) -> kube::Error {
        loop {
            if let Err(error) = self.look().await {
                return error;
            }
            sleep(SOON).await;
        }
    }

    async fn look(&mut self) -> kube::Result<()> {
        let now = self.cluster.now();
        let revision = self.cluster.revision();
        let is_due = |state: &State| state.again.is_some_and(|at| at <= now);
        if revision == self.revision && !self.states.values().any(is_due) {
            return Ok(());
        }
        self.revision = revision;
        for wrapper in self.wrappers.list(&ListParams::default()).await?.items {
            let name = wrapper.name_any();
            let Some(state) = self.states.get(&name) else {
                let state = State {
                    phase: Phase::Resuming,
                    deployed: now,
                    unhealthy: None,
                    deleting: None,
                    resets: 0,
                    again: Some(now),
                };
                self.turn(&wrapper, state).await?;
                continue;
            };
            let pods = self.counts(&name).await?;
            let has_succeeded = self.succeeded.insert(name, pods.succeeded).unwrap_or(0) < pods.succeeded;
            if is_due(state) || has_succeeded {
                let state = state.clone();
                self.turn(&wrapper, state).await?;
            }
        }
        Ok(())
    }

    /// Continues until there is something to wait for: each change of phase triggers it again.
    async fn turn(&mut self, wrapper: &DynamicObject, mut state: State) -> kube::Result<()> {
        loop {
            let before = state.phase;
            state.again = None;
            self.reconcile(wrapper, &mut state).await?;
            if state.phase == before && state.again.is_none_or(|at| at > self.cluster.now()) {
                break;
            }
        }
        let status = json!({ "status": { "phase": state.phase.name(), "resettingCount": state.resets } });
        let told = self
            .wrappers
            .patch_status(&wrapper.name_any(), &PatchParams::default(), &Patch::Merge(status))
            .await;
        told.map(|_| ()).or_else(unless_gone)?;
        self.states.insert(wrapper.name_any(), state);
        Ok(())
    }

    async fn reconcile(&self, wrapper: &DynamicObject, state: &mut State) -> kube::Result<()> {
        let now = self.cluster.now();
        let timers = Timers::of(wrapper);
        match state.phase {
            Phase::Resuming => {
                self.create(wrapper).await?;
                state.phase = Phase::Running;
            }
            Phase::Running => self.running(wrapper, state, &timers).await?,
            Phase::Resetting => {
                if !self.deleted(wrapper, state, &timers).await? {
                    return Ok(());
                }
                // The pause counts from when it was first seen to be unhealthy.
                let until = later(state.unhealthy.unwrap_or(now), timers.pause);
                if now < until {
                    state.again = Some(until);
                } else {
                    (state.deployed, state.phase) = (now, Phase::Resuming);
                }
            }
            Phase::Failed => {
                self.deleted(wrapper, state, &timers).await?;
            }
            Phase::Succeeded => {}
        }
        Ok(())
    }

    async fn running(&self, wrapper: &DynamicObject, state: &mut State, timers: &Timers) -> kube::Result<()> {
        let now = self.cluster.now();
        let Some(job) = self.job(wrapper).await?.filter(|job| job.metadata.deletion_timestamp.is_none())
        else {
            state.phase = Phase::Failed;
            return Ok(());
        };
        let reset = |state: &mut State| {
            state.unhealthy.get_or_insert(now);
            state.phase = if state.resets < timers.retries { Phase::Resetting } else { Phase::Failed };
            state.resets += u32::from(state.phase == Phase::Resetting);
        };
        if has_failed(&job) {
            reset(state);
            return Ok(());
        }
        let pods = self.counts(&wrapper.name_any()).await?;
        let expected = expected(&job);
        if pods.succeeded >= expected && pods.pending + pods.running + pods.failed == 0 {
            state.phase = Phase::Succeeded;
            return Ok(());
        }
        if pods.failed > 0 {
            let until = later(*state.unhealthy.get_or_insert(now), timers.failure);
            if now < until {
                state.again = Some(until);
            } else {
                reset(state);
            }
            return Ok(());
        }
        state.unhealthy = None;
        if pods.running + pods.succeeded >= expected {
            state.again = Some(later(now, LONG));
            return Ok(());
        }
        let exist = pods.pending + pods.running + pods.succeeded >= expected;
        if now < later(state.deployed, if exist { timers.warmup } else { timers.admission }) {
            state.again = Some(later(now, SHORT));
        } else {
            reset(state);
        }
        Ok(())
    }

    async fn create(&self, wrapper: &DynamicObject) -> kube::Result<()> {
        let mut job = wrapper.data["spec"]["components"][0]["template"].clone();
        let member = json!(wrapper.name_any());
        job["metadata"]["labels"][names::MEMBER_LABEL] = member.clone();
        job["spec"]["template"]["metadata"]["labels"][names::MEMBER_LABEL] = member;
        job["metadata"]["ownerReferences"] = json!([{
            "apiVersion": names::API_VERSION, "kind": names::KIND, "name": wrapper.name_any(),
            "uid": wrapper.uid(), "controller": true, "blockOwnerDeletion": true,
        }]);
        let job: Job = serde_json::from_value(job).map_err(kube::Error::SerdeError)?;
        self.jobs.create(&PostParams::default(), &job).await.map(|_| ()).or_else(unless_gone)
    }

    /// Deletes what is left and returns whether nothing is: first with the pods' own grace period, after a time by
    /// force.
    async fn deleted(
        &self,
        wrapper: &DynamicObject,
        state: &mut State,
        timers: &Timers,
    ) -> kube::Result<bool> {
        let now = self.cluster.now();
        let since = *state.deleting.get_or_insert(now);
        let job = self.job(wrapper).await?;
        if let Some(job) = &job {
            let gone = self.jobs.delete(&job.name_any(), &DeleteParams::background()).await;
            gone.map(|_| ()).or_else(unless_gone)?;
        }
        let pods = self.members(&wrapper.name_any()).await?;
        if job.is_none() && pods.is_empty() {
            state.deleting = None;
            return Ok(true);
        }
        if now > later(since, timers.force) {
            for pod in pods {
                let gone = self.pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
                gone.map(|_| ()).or_else(unless_gone)?;
            }
        }
        state.again = Some(later(now, SHORT));
        Ok(false)
    }

    async fn job(&self, wrapper: &DynamicObject) -> kube::Result<Option<Job>> {
        let name = wrapper.data["spec"]["components"][0]["template"]["metadata"]["name"].as_str();
        self.jobs.get_opt(name.unwrap_or_default()).await
    }

    async fn members(&self, wrapper: &str) -> kube::Result<Vec<Pod>> {
        let own = ListParams::default().labels(&format!("{}={wrapper}", names::MEMBER_LABEL));
        Ok(self.pods.list(&own).await?.items)
    }

    async fn counts(&self, wrapper: &str) -> kube::Result<Counts> {
        let mut counts = Counts::default();
        for pod in self.members(wrapper).await? {
            let is_leaving = pod.metadata.deletion_timestamp.is_some();
            match pod.status.as_ref().and_then(|it| it.phase.as_deref()) {
                Some("Succeeded") => counts.succeeded += 1,
                Some("Failed") => counts.failed += 1,
                Some("Running") if is_leaving => {}
                Some("Running") => counts.running += 1,
                _ => counts.pending += 1,
            }
        }
        Ok(counts)
    }
}

fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(Timestamp::MAX)
}

fn has_failed(job: &Job) -> bool {
    let conditions = job.status.as_ref().and_then(|it| it.conditions.as_ref());
    conditions.into_iter().flatten().any(|it| it.type_ == "Failed" && it.status == "True")
}

fn expected(job: &Job) -> usize {
    let spec = job.spec.as_ref();
    let at_once = spec.and_then(|it| it.parallelism).unwrap_or(1);
    let in_all = spec.and_then(|it| it.completions).unwrap_or(at_once);
    usize::try_from(at_once.min(in_all)).unwrap_or(0)
}
