//! The Job recovery: the Jobs that we manage, and the pods that they own or may adopt. A change of a pod requeues its
//! Job.
//!
//! The view applies the server's answer to each of our writes, so it is never behind our own steps, and a Job goes from
//! one step to the next without waiting for the watch.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use salvor_recovery::{
    Decision,
    event::EventNote,
    ids::Uid,
    job::{
        JobPolicy, JobStatus, JobView, JobWhy, Memory, PodView, Step, UsedNames, decide, decide_leftovers,
        decide_once_pods_are_found, remember, remember_names,
    },
    objects::JobRef,
};

use self::{
    feeds::{OurJobs, PodsOfJobs, in_parts},
    metrics::JobMetrics,
    news::{News, Part, SeenJob},
    pods::{
        absence::{Gone, Heard},
        by_owner::ByOwner,
        interest::{Interest, Progress},
        lookup::{Lookups, look_up},
        selectors::is_generated,
        strays::Strays,
    },
    recheck::Recheck,
    subject::Subject,
    wire::SeenPod,
};
use crate::{
    client::revision::{Revision, Told},
    engine::recovery::{After, Ended, Recovery},
    execute::Lane,
    watch_set::{
        feeds::Feed,
        watch::{Change, Target, WatchHealth},
    },
};

mod answers;
mod entry;
mod explain;
mod feeds;
mod metrics;
mod news;
mod pods;
mod recheck;
mod subject;
mod wire;

pub(super) use entry::ENTRY;

const JOBS: Target = Target::all("jobs", "/apis/batch/v1/jobs");
const PODS: Target = Target::all("job pods", "/api/v1/pods");

/// A decision about a Job takes about this long per pod.
const EFFORT_PER_POD: Duration = Duration::from_nanos(500);

#[derive(Debug)]
struct KnownJob {
    view: JobView,
    memory: Memory,
    /// Consecutive refusals to create pods, and to delete pods.
    refusals: u32,
    undeleted: u32,
    /// The status up to which metrics are counted; `None` once its end is. The view may show our next status before its
    /// answer arrives.
    counted: Option<Box<JobStatus>>,
}

/// The status from which metrics may still grow; `None` if it is finished.
fn uncounted_yet(status: &JobStatus) -> Option<Box<JobStatus>> {
    status.finished().is_none().then(|| Box::new(status.clone()))
}

#[derive(Debug)]
pub(crate) struct Jobs {
    policy: Arc<JobPolicy>,
    metrics: JobMetrics,
    jobs: BTreeMap<Uid, Box<KnownJob>>,
    /// Jobs with another `managedBy`, so that each is counted once.
    others: BTreeSet<Uid>,
    /// True once listed. Before that nothing is decided: a missing object may only be unseen.
    jobs_listed: bool,
    pods_listed: bool,
    /// The epochs of the histories in which they were listed. Between the two lists after revisions went backwards,
    /// Jobs that never existed would get pods.
    jobs_epoch: u64,
    pods_epoch: u64,
    /// How many lists of Jobs had been requested when the last one was read. One is requested when a term begins.
    asked: u64,
    /// UIDs in the list that is being received.
    jobs_in_list: Option<BTreeSet<Uid>>,
    pods_in_list: Option<BTreeSet<Uid>>,
    pods: ByOwner<Arc<JobRef>, PodView>,
    strays: Strays,
    gone: Gone,
    interest: Interest,
    lookups: Lookups,
    /// The names that were known when everything else was dropped: a name is not used again even if its pod was never
    /// created.
    old_names: BTreeMap<Uid, UsedNames>,
    job_watch: Arc<WatchHealth>,
    pod_watch: Arc<WatchHealth>,
}

impl Jobs {
    pub(crate) fn new(policy: Arc<JobPolicy>, metrics: JobMetrics) -> Self {
        Self {
            policy,
            metrics,
            jobs: BTreeMap::new(),
            others: BTreeSet::new(),
            jobs_listed: false,
            pods_listed: false,
            jobs_epoch: 0,
            pods_epoch: 0,
            asked: 0,
            jobs_in_list: None,
            pods_in_list: None,
            pods: ByOwner::default(),
            strays: Strays::default(),
            gone: Gone::default(),
            interest: Interest::default(),
            lookups: Lookups::default(),
            old_names: BTreeMap::new(),
            job_watch: WatchHealth::new(JOBS.resource),
            pod_watch: WatchHealth::new(PODS.resource),
        }
    }

    fn see_job(&mut self, seen: SeenJob, told: Told) -> Vec<Subject> {
        match seen {
            SeenJob::Ours(view) => self.take_job(*view, told),
            SeenJob::Others { uid, controller } => {
                if self.others.insert(uid) {
                    self.metrics.external_job(controller);
                }
                Vec::new()
            }
        }
    }

    /// Applies a Job unless a later state is known.
    fn take_job(&mut self, mut view: JobView, told: Told) -> Vec<Subject> {
        let job = view.job.clone();
        let finished = view.status.finished().is_some();
        if finished {
            view.forget_its_work();
        }
        let adopts = !finished && !view.deleting && !view.spec.selector.is_empty();
        match self.jobs.get_mut(&job.uid) {
            Some(known) if !told.replaces(view.revision(), known.view.revision()) => return Vec::new(),
            Some(known) => {
                remember_names(&mut known.memory, &view);
                known.view = view;
            }
            None => {
                let mut memory = Memory {
                    names: self.old_names.remove(&job.uid).unwrap_or_default(),
                    ..Memory::default()
                };
                remember_names(&mut memory, &view);
                for pod in self.pods.at(&job) {
                    remember(&mut memory, &view, pod, &self.policy);
                }
                let counted = uncounted_yet(&view.status);
                let known = KnownJob { view, memory, refusals: 0, undeleted: 0, counted };
                self.jobs.insert(job.uid.clone(), Box::new(known));
            }
        }
        let progress = if finished { Progress::Finished } else { Progress::Runs };
        self.interest.state().jobs.insert(job.uid.clone(), progress);
        let mut woken = vec![Subject::Job(job.clone())];
        if adopts {
            self.begin_to_adopt(&job);
        } else {
            woken.extend(self.cease_to_adopt(&job));
        }
        if finished {
            self.forget_free_pods(&job);
        }
        woken
    }

    /// From now on the Job may adopt pods, if it could not before. The pods that it finds arrive as a separate message.
    fn begin_to_adopt(&mut self, job: &Arc<JobRef>) {
        let Some(known) = self.jobs.get(&job.uid) else { return };
        let reads_pods = {
            let mut state = self.interest.state();
            if !state.selectors.insert(job, &known.view.spec.selector) {
                return;
            }
            state.is_used()
        };
        let selector = known.view.spec.selector.clone();
        for pod in self.pods.at_mut(job) {
            pod.selected.ask(&selector);
        }
        self.place_those_made_for(&job.uid);
        // Pods that were read before the Job was known are not kept, so they must be looked up.
        if reads_pods && !is_generated(job, &selector) {
            self.lookups.ask(job, &selector);
        }
    }

    fn cease_to_adopt(&mut self, job: &Arc<JobRef>) -> Vec<Subject> {
        self.lookups.give_up(&job.uid);
        let adopted = self.interest.state().selectors.remove(&job.uid);
        if adopted { self.place_those_of(job) } else { Vec::new() }
    }

    fn drop_job(&mut self, uid: &Uid) -> Vec<Subject> {
        self.others.remove(uid);
        let Some(known) = self.jobs.remove(uid) else { return Vec::new() };
        let job = known.view.job;
        self.interest.state().jobs.remove(uid);
        // Pods that it might have adopted may have been orphaned with it, and the watch may have shown that first.
        let mut woken = self.cease_to_adopt(&job);
        woken.push(Subject::Job(job));
        woken
    }

    fn list_jobs(&mut self, Part { all, revision, new_history }: Part<SeenJob>) -> Vec<Subject> {
        let mut woken = Vec::new();
        if self.jobs_in_list.is_none() && new_history {
            let known: Vec<Uid> = self.jobs.keys().cloned().collect();
            for uid in known {
                if let Some(known) = self.jobs.get_mut(&uid) {
                    self.old_names.insert(uid.clone(), std::mem::take(&mut known.memory.names));
                }
                woken.extend(self.drop_job(&uid));
            }
            self.others.clear();
            // Until all parts are in, pods seem to be orphaned if their Job is in a later part.
            self.jobs_listed = false;
        }
        let in_list = self.jobs_in_list.get_or_insert_default();
        in_list.extend(all.iter().map(|job| job.uid().clone()));
        for job in all {
            self.see_job(job, Told::ByListAt(revision));
        }
        woken
    }

    /// The list is complete: Jobs that are not in it are gone.
    fn jobs_are_listed(&mut self) {
        let in_list = self.jobs_in_list.take().unwrap_or_default();
        let gone: Vec<Uid> = self.jobs.keys().filter(|uid| !in_list.contains(*uid)).cloned().collect();
        for uid in gone {
            self.drop_job(&uid);
        }
        self.others.retain(|uid| in_list.contains(uid));
        self.old_names.clear();
        let foreign =
            self.pods.homes().filter(|job| !self.jobs.contains_key(&job.uid) && !self.pods.has_tracked(job));
        let foreign = foreign.flat_map(|job| self.pods.at(job));
        let foreign: Vec<Uid> = foreign.map(|pod| pod.pod.uid.clone()).collect();
        for uid in foreign {
            self.remove_pod(&uid);
        }
        self.interest.jobs_are_listed();
    }

    fn list_pods(&mut self, Part { all, revision, new_history }: Part<SeenPod>) {
        if self.pods_in_list.is_none() && new_history {
            self.forget_all_pods();
            // Until all parts are in, a Job with pods may seem to have none.
            self.pods_listed = false;
            // The memory of Jobs came from pods that may never have existed.
            for known in self.jobs.values_mut() {
                let names = std::mem::take(&mut known.memory.names);
                known.memory = Memory { names, ..Memory::default() };
            }
        }
        self.lookups.listed();
        for seen in all {
            let uid = seen.uid().clone();
            self.take_pod(seen, Heard::List(revision));
            if self.pods.get(&uid).is_some() || self.strays.get(&uid).is_some() {
                self.pods_in_list.get_or_insert_default().insert(uid);
            }
        }
        self.pods_in_list.get_or_insert_default();
    }

    fn pods_are_listed(&mut self, revision: Revision) {
        let in_list = self.pods_in_list.take().unwrap_or_default();
        self.forget_absent(&in_list, revision);
    }
}

trait Revised {
    fn revision(&self) -> Revision;
}

impl Revised for JobView {
    fn revision(&self) -> Revision {
        self.resource_version.revision()
    }
}

impl Recovery for Jobs {
    const NAME: &'static str = "job";
    const LANE: Lane = Lane::Tenants;
    type Subject = Subject;
    type Why = JobWhy;
    type Step = Step;
    type News = News;
    type Recheck = Recheck;

    fn watches(&mut self) -> Option<Vec<Feed<News>>> {
        // They do not change, so they are declared once.
        let requests = self.lookups.requests()?;
        let stands_in = self.policy.unmanaged_jobs;
        let kept = PodsOfJobs { stands_in, interest: self.interest.clone() };
        let interest = self.interest.clone();
        let jobs = Feed::watch_in_parts(JOBS, OurJobs(self.policy.clone()), &self.job_watch, |change| {
            in_parts(change, News::SomeJobs, News::Job)
        })
        .listed_to_lead();
        let pods = Feed::watch_in_parts(PODS, kept, &self.pod_watch, |change| {
            in_parts(change, News::SomePods, News::Pod)
        });
        // The Jobs decide which pods matter, so they are listed first.
        let pods = pods.listed_to_lead().after(async move { interest.until_jobs_are_listed().await });
        let found = Feed::reads("lookups", move |client, news| look_up(client, requests, stands_in, news));
        Some(vec![jobs, pods, found])
    }

    fn on_change(&mut self, news: News, _: Timestamp) -> Vec<Subject> {
        match news {
            News::Job(Change::Applied(job)) => self.see_job(job, Told::Alone),
            News::Job(Change::Gone(uid)) => self.drop_job(&uid),
            News::SomeJobs(part) => self.list_jobs(part),
            News::Job(Change::Reset { all, asked, revision: moment }) => {
                // A Job that is no longer in the list is decided a last time.
                let mut woken: BTreeSet<Subject> = self.subjects().into_iter().collect();
                self.list_jobs(Part { all, revision: moment.revision, new_history: moment.new_history });
                self.jobs_are_listed();
                self.jobs_listed = true;
                if std::mem::replace(&mut self.asked, asked) != asked {
                    for known in self.jobs.values_mut() {
                        // The previous leader has counted it.
                        known.counted = uncounted_yet(&known.view.status);
                    }
                }
                self.jobs_epoch = moment.epoch;
                woken.extend(self.subjects());
                woken.into_iter().collect()
            }
            News::Pod(Change::Applied(pod)) => self.take_pod(pod, Heard::Watch),
            News::Pod(Change::Gone(uid)) => self.pod_is_gone(&uid).into_iter().collect(),
            News::SomePods(part) => {
                self.list_pods(part);
                Vec::new()
            }
            News::Pod(Change::Reset { all, revision: moment, .. }) => {
                let mut woken: BTreeSet<Subject> = self.subjects().into_iter().collect();
                self.list_pods(Part { all, revision: moment.revision, new_history: moment.new_history });
                self.pods_are_listed(moment.revision);
                self.pods_listed = true;
                self.pods_epoch = moment.epoch;
                woken.extend(self.subjects());
                woken.into_iter().collect()
            }
            News::Found { wanted, strays } => {
                let (strays, waited) = self.lookups.found(wanted, strays);
                let take = |stray| self.take_pod(SeenPod::Stray(Box::new(stray)), Heard::Lookup);
                let woken: Vec<Subject> = strays.into_iter().flat_map(take).collect();
                woken.into_iter().chain(waited.into_iter().map(Subject::Job)).collect()
            }
        }
    }

    fn judge(&self, subject: &Subject, now: Timestamp) -> Option<Decision<JobWhy, Step>> {
        if !self.jobs_listed || !self.pods_listed || self.jobs_epoch != self.pods_epoch {
            return None;
        }
        match subject {
            Subject::Job(job) => {
                let pods = self.pods.at(job);
                if self.lookups.is_awaited_by(&job.uid) {
                    return Some(decide_once_pods_are_found());
                }
                if let Some(KnownJob { view, memory, .. }) = self.jobs.get(&job.uid).map(Box::as_ref) {
                    return Some(decide(view, pods, self.strays.of(job), memory, &self.policy, now));
                }
                let anothers = self.others.contains(&job.uid);
                let left = pods.iter().any(PodView::is_tracked);
                left.then(|| {
                    decide_leftovers(pods.iter().filter_map(PodView::tracked), anothers, &self.policy)
                })
            }
            Subject::Pod { uid, .. } => {
                let tracked = self.strays.get(uid)?.tracked()?;
                Some(decide_leftovers([tracked].into_iter(), false, &self.policy))
            }
        }
    }

    fn effort(&self, subject: &Subject) -> Duration {
        let pods = match subject {
            Subject::Job(job) => self.pods.at(job).len(),
            Subject::Pod { .. } => 1,
        };
        EFFORT_PER_POD.saturating_mul(u32::try_from(pods).unwrap_or(u32::MAX))
    }

    fn subjects(&self) -> Vec<Subject> {
        let known = self.jobs.values().map(|known| known.view.job.clone());
        let left = self.pods.homes().filter(|job| self.pods.has_tracked(job)).cloned();
        let jobs: BTreeSet<Arc<JobRef>> = known.chain(left).collect();
        let strays = self.strays.to_let_go().map(|stray| Subject::pod(&stray.pod));
        jobs.into_iter().map(Subject::Job).chain(strays).collect()
    }

    fn recheck(&self, subject: &Subject, judged: Timestamp) -> Recheck {
        let (pods, strays, memory) = match subject {
            Subject::Job(job) => {
                let memory = self.jobs.get(&job.uid).map(|known| known.memory.clone());
                let strays = self.strays.of(job).to_vec();
                (self.pods.at(job).to_vec(), strays, memory.unwrap_or_default())
            }
            Subject::Pod { .. } => (Vec::new(), Vec::new(), Memory::default()),
        };
        Recheck { subject: subject.clone(), pods, strays, memory, judged, policy: self.policy.clone() }
    }

    fn ended(&mut self, subject: &Subject, end: Ended<'_, Step>, now: Timestamp) -> After {
        self.count(subject, &end);
        let told = end.done.iter().filter_map(|(step, answer)| self.worth_telling(subject, step, answer));
        let tell: Vec<EventNote> = told.collect();
        let view = end.view(|step, answer| self.done(subject, step, answer, now));
        let after = After { tell, ..After::with(view) };
        match end.refused {
            Some((step, refusal)) => after.and(self.refused(subject, step, refusal, now)),
            None => after,
        }
    }
}

#[cfg(test)]
mod tests;
