//! The Job recovery: Jobs that are ours, and the pods that they own or might own. A pod wakes its Job.
//!
//! The view takes in the server's answer to every write of ours, so it is never behind our own steps, and a Job goes from
//! one step to the next without waiting for the watch.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use salvor_api::names::job::{BUILT_IN_CONTROLLER, CONTROLLER_NAME, conditions};
use salvor_recovery::{
    Action, Judgement,
    action::EventNote,
    brake::Tally,
    job::{
        JobPolicy, JobStatus, JobView, JobWhy, Memory, PodView, created_note, decide, decide_leftovers,
        failure_action, refused_note, remember,
    },
    objects::{JobRef, PodRef},
};
use tokio::sync::mpsc;

use self::wire::{JobWire, PodWire, SeenPod, read_job, read_pod};
use crate::{
    executor::Written,
    live,
    metrics::{JobMetrics, SyncAction},
    recovery::{Feed, Known as KnownAlready, LiveInquiry, LookedAfter, Recovery, Refused, View, relay},
    watch::{Change, Project, Target, WatchHealth, follow},
};

mod wire;

const JOBS: Target = Target { resource: "jobs", path: "/apis/batch/v1/jobs", field_selector: None };
const PODS: Target = Target { resource: "job pods", path: "/api/v1/pods", field_selector: None };

/// UIDs of pods that are gone, remembered because the answer to our own write may still be on its way: taken in after
/// the pod's end it would bring it back for ever. Far more than can be under way at once.
const GONE_REMEMBERED: usize = 16_384;
/// Why a pod is not kept any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absence {
    /// It is deleted.
    Deleted,
    /// Its Job has ended and let it go. Should the Job leave it behind, another one may adopt it.
    OfNoUse,
}

/// The pause after the first pod that the server refused, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What is judged: a Job that is there or was, or a pod that nobody owns and that still has our finalizer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Subject {
    Job(Arc<JobRef>),
    Pod { namespace: String, name: String, uid: String },
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(job) => write!(f, "job {job}"),
            Self::Pod { namespace, name, .. } => write!(f, "pod {namespace}/{name}"),
        }
    }
}

/// A change of a Job or of a pod.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all of it is about pods")]
pub(crate) enum News {
    Job(Change<SeenJob>),
    Pod(Change<SeenPod>),
}

/// A Job that is ours, or that another controller is named for.
#[derive(Debug)]
pub(crate) enum SeenJob {
    Ours(Box<JobView>),
    Others { uid: String, controller: String },
}

impl SeenJob {
    fn uid(&self) -> &str {
        match self {
            Self::Ours(view) => &view.job.uid,
            Self::Others { uid, .. } => uid,
        }
    }
}

/// With whom a pod is kept. All pods of one home share its text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Home {
    /// With its Job.
    Job(Arc<JobRef>),
    /// With all pods of its namespace that nobody controls.
    Nobody(Arc<str>),
}

/// Pods by whom they are kept with, each home's in a row, to be judged as a slice.
#[derive(Debug, Default)]
struct Pods {
    of: BTreeMap<Home, Vec<PodView>>,
    /// Where each pod is, by UID.
    places: BTreeMap<String, (Home, usize)>,
}

impl Pods {
    fn at(&self, home: &Home) -> &[PodView] {
        self.of.get(home).map_or(&[], Vec::as_slice)
    }

    fn get(&self, uid: &str) -> Option<(&Home, &PodView)> {
        let (home, at) = self.places.get(uid)?;
        Some((home, self.at(home).get(*at)?))
    }

    /// Puts a pod where none of this UID is, or in its own place.
    fn insert(&mut self, home: Home, pod: PodView) {
        if let Some((known, at)) = self.places.get(&pod.pod.uid)
            && *known == home
        {
            if let Some(place) = self.of.get_mut(known).and_then(|pods| pods.get_mut(*at)) {
                *place = pod;
            }
            return;
        }
        let home = self.of.get_key_value(&home).map_or(home, |(shared, _)| shared.clone());
        let pods = self.of.entry(home.clone()).or_default();
        self.places.insert(pod.pod.uid.clone(), (home, pods.len()));
        pods.push(pod);
    }

    fn remove(&mut self, uid: &str) -> Option<(Home, PodView)> {
        let (home, at) = self.places.remove(uid)?;
        let pods = self.of.get_mut(&home)?;
        let pod = pods.swap_remove(at);
        if let Some((_, moved)) = pods.get(at).and_then(|moved| self.places.get_mut(&moved.pod.uid)) {
            *moved = at;
        }
        if pods.is_empty() {
            self.of.remove(&home);
        }
        Some((home, pod))
    }

    fn has_tracked(&self, home: &Home) -> bool {
        self.at(home).iter().any(PodView::is_tracked)
    }
}

/// A Job and what is remembered of it.
#[derive(Debug)]
struct Known {
    view: JobView,
    memory: Memory,
    refusals: u32,
    /// The status whose pods and end are in our figures; none when its end is. The view may show our next one before its
    /// answer is in.
    counted: Option<Box<JobStatus>>,
}

/// What of a status our figures may still grow from.
fn uncounted_yet(status: &JobStatus) -> Option<Box<JobStatus>> {
    status.finished().is_none().then(|| Box::new(status.clone()))
}

/// The Jobs that are ours and the pods around them.
#[derive(Debug)]
pub(crate) struct Jobs {
    policy: Arc<JobPolicy>,
    metrics: JobMetrics,
    jobs: BTreeMap<String, Box<Known>>,
    /// Jobs for which another controller is named, to count each once.
    others: BTreeSet<String>,
    /// Whether a list of each is in since we lead. Before that nothing is judged: what is missing may only be unseen.
    jobs_listed: bool,
    pods_listed: bool,
    /// A list counts if so many had been asked for when it was read.
    lists_needed: u64,
    pods: Pods,
    /// Pods that are not kept any more.
    gone: BTreeMap<Arc<str>, Absence>,
    gone_in_order: VecDeque<Arc<str>>,
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
            lists_needed: 0,
            pods: Pods::default(),
            gone: BTreeMap::new(),
            gone_in_order: VecDeque::new(),
        }
    }

    fn see_job(&mut self, seen: SeenJob) -> Option<Subject> {
        match seen {
            SeenJob::Ours(view) => self.take_job(*view),
            SeenJob::Others { uid, controller } => {
                if self.others.insert(uid) {
                    self.metrics.external_job(&controller);
                }
                None
            }
        }
    }

    /// Takes in a Job unless a later state of it is known.
    fn take_job(&mut self, mut view: JobView) -> Option<Subject> {
        let uid = view.job.uid.clone();
        let finished = view.status.finished().is_some();
        if finished {
            view.forget_its_work();
        }
        let subject = Subject::Job(view.job.clone());
        match self.jobs.get_mut(&uid) {
            Some(known) if !is_newer(&view.resource_version, &known.view.resource_version) => return None,
            Some(known) => known.view = view,
            None => {
                let mut memory = Memory::default();
                for pod in self.pods_of(&view.job) {
                    remember(&mut memory, &view, pod, &self.policy);
                }
                let counted = uncounted_yet(&view.status);
                self.jobs.insert(uid, Box::new(Known { view, memory, refusals: 0, counted }));
            }
        }
        if finished && let Subject::Job(job) = &subject {
            self.forget_free_pods(job);
        }
        Some(subject)
    }

    /// Of a Job that has come to its end, only pods that still have our finalizer matter.
    fn forget_free_pods(&mut self, job: &Arc<JobRef>) {
        let free = self.pods_of(job).iter().filter(|pod| !pod.is_tracked());
        for uid in free.map(|pod| pod.pod.uid.clone()).collect::<Vec<_>>() {
            self.forget_pod(&uid, Absence::OfNoUse);
        }
    }

    fn drop_job(&mut self, uid: &str) -> Vec<Subject> {
        self.others.remove(uid);
        let Some(known) = self.jobs.remove(uid) else { return Vec::new() };
        let job = known.view.job;
        // Pods that it might have adopted may have been orphaned with it, and told before its end was.
        let mut woken = self.tracked_strays(&Home::Nobody(job.namespace.as_str().into()));
        woken.push(Subject::Job(job));
        woken
    }

    /// Takes in a pod unless a later state of it is known, or its end.
    fn take_pod(&mut self, seen: SeenPod) -> Vec<Subject> {
        let SeenPod { pod, owner } = seen;
        let uid = pod.pod.uid.as_str();
        match self.gone.get(uid) {
            Some(Absence::OfNoUse) if owner.is_none() => {
                self.gone.remove(uid);
            }
            Some(_) => return Vec::new(),
            None => {}
        }
        let home = match owner {
            Some(owner) => Home::Job(owner),
            None => Home::Nobody(pod.pod.namespace.as_str().into()),
        };
        let mut woken = Vec::new();
        let mut was_owed = false;
        if let Some((before, known)) = self.pods.get(uid) {
            if !is_newer(&pod.resource_version, &known.resource_version) {
                return Vec::new();
            }
            was_owed = is_owed(known);
            if *before != home {
                woken.extend(self.remove_pod(uid));
                was_owed = false;
            }
        }
        // Pods of Jobs that are not ours are many. Ours have the finalizer, or come after their Job.
        if let Home::Job(job) = &home
            && self.jobs_listed
            && !pod.is_tracked()
            && !self.jobs.contains_key(&job.uid)
        {
            woken.extend(self.remove_pod(uid));
            return woken;
        }
        if let Home::Job(job) = &home
            && let Some(known) = self.jobs.get_mut(&job.uid)
        {
            if known.view.status.finished().is_some() && !pod.is_tracked() {
                let uid = uid.to_owned();
                woken.extend(self.forget_pod(&uid, Absence::OfNoUse));
                return woken;
            }
            remember(&mut known.memory, &known.view, &pod, &self.policy);
        }
        woken.extend(self.woken_by(&home, &pod));
        match (was_owed, is_owed(&pod)) {
            (false, true) => self.metrics.ended_pod_tracked("add"),
            (true, false) => self.metrics.ended_pod_tracked("delete"),
            _ => {}
        }
        self.pods.insert(home, pod);
        woken
    }

    fn woken_by(&self, home: &Home, pod: &PodView) -> Vec<Subject> {
        match home {
            Home::Job(job) => vec![Subject::Job(job.clone())],
            Home::Nobody(_) => {
                let PodRef { namespace, name, uid } = pod.pod.clone();
                // Whoever may adopt it, and if nobody does, it is let go. What is being deleted is never adopted.
                let jobs = self.jobs.values().filter(|known| {
                    let selector = &known.view.spec.selector;
                    pod.deletion.is_none()
                        && known.view.job.namespace == namespace
                        && !selector.is_empty()
                        && selector.matches(&pod.labels)
                });
                let mut woken: Vec<_> = jobs.map(|known| Subject::Job(known.view.job.clone())).collect();
                if pod.is_tracked() && woken.is_empty() {
                    woken.push(Subject::Pod { namespace, name, uid });
                }
                woken
            }
        }
    }

    /// Whom pods that nobody owns and that still have our finalizer concern.
    fn tracked_strays(&self, home: &Home) -> Vec<Subject> {
        let pods = self.pods.at(home).iter();
        pods.filter(|pod| pod.is_tracked()).flat_map(|pod| self.woken_by(home, pod)).collect()
    }

    fn remove_pod(&mut self, uid: &str) -> Option<Subject> {
        let (home, pod) = self.pods.remove(uid)?;
        if is_owed(&pod) {
            self.metrics.ended_pod_tracked("delete");
        }
        match home {
            Home::Job(job) => Some(Subject::Job(job)),
            Home::Nobody(_) => None,
        }
    }

    fn pod_is_gone(&mut self, uid: &str) -> Option<Subject> {
        self.forget_pod(uid, Absence::Deleted)
    }

    fn forget_pod(&mut self, uid: &str, why: Absence) -> Option<Subject> {
        // Pods that were never ours come and go by the thousand.
        self.pods.get(uid)?;
        let woken = self.remove_pod(uid);
        let uid: Arc<str> = uid.into();
        if self.gone.insert(uid.clone(), why).is_none() {
            self.gone_in_order.push_back(uid);
        }
        if self.gone_in_order.len() > GONE_REMEMBERED
            && let Some(oldest) = self.gone_in_order.pop_front()
        {
            self.gone.remove(&oldest);
        }
        woken
    }

    fn pods_of(&self, job: &Arc<JobRef>) -> &[PodView] {
        self.pods.at(&Home::Job(job.clone()))
    }

    fn strays_in(&self, namespace: &str) -> &[PodView] {
        self.pods.at(&Home::Nobody(namespace.into()))
    }

    /// A pod that nobody controls.
    fn stray(&self, uid: &str) -> Option<&PodView> {
        self.pods.get(uid).filter(|(home, _)| matches!(home, Home::Nobody(_))).map(|(_, pod)| pod)
    }

    fn pod_answered(&mut self, uid: &str, answer: &Written) {
        match answer {
            Written::Nothing => {
                self.pod_is_gone(uid);
            }
            Written::Object(text) => {
                if let Ok(seen) = read_pod(text, self.policy.unmanaged_jobs) {
                    self.take_pod(seen);
                }
            }
        }
    }
}

/// Whether a pod has ended and is not counted for good.
fn is_owed(pod: &PodView) -> bool {
    pod.is_tracked() && pod.phase.is_terminal()
}

/// Whether a revision is later than another. They are numbers that grow; one that is not is taken for news.
fn is_newer(revision: &str, than: &str) -> bool {
    match (revision.parse::<u64>(), than.parse::<u64>()) {
        (Ok(revision), Ok(than)) => revision > than,
        _ => true,
    }
}

impl Recovery for Jobs {
    const NAME: &'static str = "job";
    const LISTS_TO_LEAD: bool = true;
    const UNDER_THE_BRAKE: bool = false;
    type Subject = Subject;
    type Why = JobWhy;
    type News = News;
    type Inquiry = Inquiry;

    fn begin_to_lead(&mut self, asked: u64) {
        self.lists_needed = asked;
        self.jobs_listed = false;
        self.pods_listed = false;
        for known in self.jobs.values_mut() {
            // Who led before us has counted it.
            known.counted = uncounted_yet(&known.view.status);
        }
    }

    fn feeds(&self, client: &Client, news: &mpsc::Sender<News>) -> Vec<Feed> {
        let jobs = WatchHealth::new(JOBS.resource);
        let pods = WatchHealth::new(PODS.resource);
        let (job_tx, job_rx) = mpsc::channel(64);
        let (pod_tx, pod_rx) = mpsc::channel(64);
        let job_watch = follow(client.clone(), JOBS, OurJobs(self.policy.clone()), jobs.clone(), job_tx);
        let kept = PodsOfJobs { stands_in: self.policy.unmanaged_jobs };
        let pod_watch = follow(client.clone(), PODS, kept, pods.clone(), pod_tx);
        vec![
            Feed { health: jobs, run: relay(job_watch, job_rx, news.clone(), News::Job).boxed() },
            Feed { health: pods, run: relay(pod_watch, pod_rx, news.clone(), News::Pod).boxed() },
        ]
    }

    fn hear(&mut self, news: News, _: Timestamp) -> Vec<Subject> {
        match news {
            News::Job(Change::Applied(job)) => self.see_job(job).into_iter().collect(),
            News::Job(Change::Gone(uid)) => self.drop_job(&uid),
            News::Job(Change::Reset { all: jobs, asked, .. }) => {
                self.jobs_listed |= asked >= self.lists_needed;
                let present: BTreeSet<String> = jobs.iter().map(|job| job.uid().to_owned()).collect();
                self.jobs.retain(|uid, _| present.contains(uid));
                self.others.retain(|uid| present.contains(uid));
                for job in jobs {
                    self.see_job(job);
                }
                let foreign = |home: &Home| {
                    matches!(home, Home::Job(job) if !self.jobs.contains_key(&job.uid))
                        && !self.pods.has_tracked(home)
                };
                let foreign =
                    self.pods.of.iter().filter(|(home, _)| foreign(home)).flat_map(|(_, pods)| pods);
                let foreign: Vec<String> = foreign.map(|pod| pod.pod.uid.clone()).collect();
                for uid in foreign {
                    self.remove_pod(&uid);
                }
                self.subjects()
            }
            News::Pod(Change::Applied(pod)) => self.take_pod(pod),
            News::Pod(Change::Gone(uid)) => self.pod_is_gone(&uid).into_iter().collect(),
            News::Pod(Change::Reset { all: pods, revision, asked }) => {
                self.pods_listed |= asked >= self.lists_needed;
                let present: BTreeSet<&str> = pods.iter().map(|seen| seen.pod.pod.uid.as_str()).collect();
                // A pod that we made after the list was read is not in it.
                let since = |known: &PodView| is_newer(&known.resource_version, &revision);
                let known = self.pods.of.values().flatten();
                let absent = known.filter(|known| !present.contains(known.pod.uid.as_str()) && !since(known));
                let lost: Vec<String> = absent.map(|known| known.pod.uid.clone()).collect();
                for uid in lost {
                    self.remove_pod(&uid);
                }
                for pod in pods {
                    self.take_pod(pod);
                }
                self.subjects()
            }
        }
    }

    fn judge(&self, subject: &Subject, now: Timestamp) -> Option<Judgement<JobWhy>> {
        if !self.jobs_listed || !self.pods_listed {
            return None;
        }
        match subject {
            Subject::Job(job) => {
                let pods = self.pods_of(job);
                if let Some(Known { view, memory, .. }) = self.jobs.get(&job.uid).map(Box::as_ref) {
                    return Some(decide(
                        view,
                        pods,
                        self.strays_in(&job.namespace),
                        memory,
                        &self.policy,
                        now,
                    ));
                }
                let anothers = self.others.contains(&job.uid);
                let left = pods.iter().any(PodView::is_tracked);
                left.then(|| decide_leftovers(pods, anothers, &self.policy))
            }
            Subject::Pod { uid, .. } => {
                let pod = self.stray(uid).filter(|pod| pod.is_tracked())?;
                Some(decide_leftovers(std::slice::from_ref(pod), false, &self.policy))
            }
        }
    }

    fn subjects(&self) -> Vec<Subject> {
        let known = self.jobs.values().map(|known| known.view.job.clone());
        let left = self.pods.of.keys().filter_map(|home| match home {
            Home::Job(job) if self.pods.has_tracked(home) => Some(job.clone()),
            _ => None,
        });
        let jobs: BTreeSet<Arc<JobRef>> = known.chain(left).collect();
        let strays = self.pods.of.keys().filter(|home| matches!(home, Home::Nobody(_)));
        let strays = strays.flat_map(|home| self.tracked_strays(home));
        jobs.into_iter().map(Subject::Job).chain(strays).collect()
    }

    fn node_counts(&self, _: Timestamp) -> Option<Tally> {
        None
    }

    fn inquiry(&self, subject: &Subject) -> Inquiry {
        let (pods, strays, memory) = match subject {
            Subject::Job(job) => {
                let memory = self.jobs.get(&job.uid).map(|known| known.memory.clone());
                let strays = self.strays_in(&job.namespace).to_vec();
                (self.pods_of(job).to_vec(), strays, memory.unwrap_or_default())
            }
            Subject::Pod { uid, .. } => {
                let pod = self.stray(uid).cloned();
                (pod.into_iter().collect(), Vec::new(), Memory::default())
            }
        };
        Inquiry { subject: subject.clone(), pods, strays, memory, policy: self.policy.clone() }
    }

    fn done(&mut self, subject: &Subject, step: &Action, answer: &Written, now: Timestamp) -> View {
        let Subject::Job(job) = subject else {
            if let Action::RemoveFinalizer { pod, .. } = step {
                self.pod_answered(&pod.uid, answer);
            }
            return View::Shows;
        };
        match step {
            Action::CreatePod { name, reason, .. } => {
                self.metrics.pod_created(reason.as_str(), "succeeded");
                let Written::Object(text) = answer else { return View::Lags };
                let Ok(seen) = read_pod(text, self.policy.unmanaged_jobs) else { return View::Lags };
                let ours = seen.owner.as_ref().is_some_and(|owner| owner.uid == job.uid);
                if let Some(known) = self.jobs.get_mut(&job.uid) {
                    known.refusals = 0;
                    known.memory.creation_paused_until = None;
                    known.memory.made_pods |= ours;
                    if !ours {
                        known.memory.taken_names.insert(name.clone());
                    }
                }
                if ours {
                    self.take_pod(seen);
                }
            }
            Action::RemoveFinalizer { pod, .. } => {
                let known = self.jobs.get(&job.uid).zip(self.pods.get(&pod.uid));
                if let Some(action) = known.and_then(|(known, (_, pod))| failure_action(&known.view, pod)) {
                    self.metrics.failure_handled(action);
                }
                self.pod_answered(&pod.uid, answer);
            }
            Action::DeletePod { pod } | Action::AdoptPod { pod, .. } | Action::ReleasePod { pod, .. } => {
                self.pod_answered(&pod.uid, answer);
            }
            Action::PatchJobStatus { status, .. } => {
                let Written::Object(text) = answer else { return View::Lags };
                let Ok(view) = read_job(text) else { return View::Lags };
                // A Job whose end the watch has told before the answer came must not come back.
                let Some(known) = self.jobs.get_mut(&job.uid) else { return View::Shows };
                known.memory.status_written = Some(now);
                known.memory.made_pods = false;
                if let Some(counted) = &known.counted {
                    self.metrics.status_written(&known.view.spec, counted, status);
                }
                known.counted = uncounted_yet(status);
                self.take_job(view);
            }
            _ => {}
        }
        View::Shows
    }

    fn worth_telling(&self, subject: &Subject, step: &Action, answer: &Written) -> Option<EventNote> {
        let (Subject::Job(job), Action::CreatePod { told: true, .. }) = (subject, step) else { return None };
        let Written::Object(text) = answer else { return None };
        let SeenPod { pod, owner } = read_pod(text, self.policy.unmanaged_jobs).ok()?;
        // Somebody else's pod of that name is nothing that we made.
        owner.filter(|owner| owner.uid == job.uid).map(|_| created_note(job, &pod.pod))
    }

    fn refused(&mut self, subject: &Subject, step: &Action, words: &str, now: Timestamp) -> Refused {
        let (Subject::Job(job), Action::CreatePod { reason, .. }) = (subject, step) else {
            return Refused::Waits;
        };
        self.metrics.pod_created(reason.as_str(), "failed");
        let Some(known) = self.jobs.get_mut(&job.uid) else { return Refused::Waits };
        let pause =
            FIRST_PAUSE.saturating_mul(2u32.saturating_pow(known.refusals.min(16))).min(LONGEST_PAUSE);
        known.refusals += 1;
        let pause = SignedDuration::try_from(pause).unwrap_or(SignedDuration::ZERO);
        known.memory.creation_paused_until = now.checked_add(pause).ok();
        // Nothing can be made in a namespace that is going away, and nobody reads about it there.
        let note = (!words.contains("being terminated")).then(|| refused_note(job, words, now));
        Refused::Judged(note)
    }

    fn looked_after(&self, subject: &Subject, LookedAfter { done, worked, took }: LookedAfter<'_>) {
        let Subject::Job(job) = subject else { return };
        let Some(Known { view, .. }) = self.jobs.get(&job.uid).map(Box::as_ref) else { return };
        let any = |is: fn(&Action) -> bool| done.iter().any(|(step, _)| is(step));
        let settled = [conditions::SUCCESS_CRITERIA_MET, conditions::FAILURE_TARGET];
        let action = if any(|step| matches!(step, Action::CreatePod { .. })) {
            SyncAction::PodsCreated
        } else if any(|step| matches!(step, Action::DeletePod { .. })) {
            SyncAction::PodsDeleted
        } else if view.deleting || settled.iter().any(|kind| view.status.holds(kind).is_some()) {
            SyncAction::Reconciling
        } else {
            SyncAction::Tracking
        };
        self.metrics.synced(view.spec.completion_mode.as_str(), worked, action, took);
    }
}

/// A live question about a Job: is it really gone, or is it still as it was judged?
#[derive(Debug)]
pub(crate) struct Inquiry {
    subject: Subject,
    pods: Vec<PodView>,
    strays: Vec<PodView>,
    memory: Memory,
    policy: Arc<JobPolicy>,
}

impl LiveInquiry for Inquiry {
    type Why = JobWhy;

    async fn ask(
        &self,
        client: &Client,
        _: KnownAlready<'_>,
        now: Timestamp,
    ) -> kube::Result<Option<Judgement<JobWhy>>> {
        match &self.subject {
            Subject::Job(job) => {
                let live = read_live(client, &job.namespace, &job.name).await?;
                let live = live.filter(|live| live.job.uid == job.uid);
                let is_ours = |live: &JobView| self.policy.manages(live.spec.managed_by.as_deref());
                Ok(Some(match live {
                    Some(live) if is_ours(&live) => {
                        decide(&live, &self.pods, &self.strays, &self.memory, &self.policy, now)
                    }
                    anothers => decide_leftovers(&self.pods, anothers.is_some(), &self.policy),
                }))
            }
            Subject::Pod { namespace, name, uid } => {
                let text = live::get(client, &format!("/api/v1/namespaces/{namespace}/pods/{name}")).await?;
                let seen = text
                    .map(|text| read_pod(&text, self.policy.unmanaged_jobs).map_err(kube::Error::SerdeError))
                    .transpose()?;
                let seen = seen.filter(|seen| seen.pod.pod.uid == *uid && seen.owner.is_none());
                Ok(seen.map(|seen| decide_leftovers(&[seen.pod], false, &self.policy)))
            }
        }
    }
}

/// Reads a Job live.
pub(crate) async fn read_live(client: &Client, namespace: &str, name: &str) -> kube::Result<Option<JobView>> {
    let text = live::get(client, &format!("/apis/batch/v1/namespaces/{namespace}/jobs/{name}")).await?;
    text.map(|text| read_job(&text).map_err(kube::Error::SerdeError)).transpose()
}

/// Reads the pods that a Job owns live.
pub(crate) async fn read_live_pods(client: &Client, job: &JobView) -> kube::Result<Vec<PodView>> {
    #[derive(serde::Deserialize)]
    struct List<'a> {
        #[serde(borrow, default)]
        items: Vec<&'a serde_json::value::RawValue>,
    }
    let path = format!("/api/v1/namespaces/{}/pods", job.job.namespace);
    let Some(text) = live::get(client, &path).await? else { return Ok(Vec::new()) };
    let list: List<'_> = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
    // If a Job that does not name us is ours at all, then because we stand in for the built-in controller.
    let stands_in = job.spec.managed_by.as_deref() != Some(CONTROLLER_NAME);
    let mut pods = Vec::new();
    for item in list.items {
        let seen = read_pod(item.get(), stands_in).map_err(kube::Error::SerdeError)?;
        if seen.owner.is_some_and(|owner| owner.uid == job.job.uid) {
            pods.push(seen.pod);
        }
    }
    Ok(pods)
}

// ---- what is kept of Jobs and pods ------------------------------------------------------------------

struct OurJobs(Arc<JobPolicy>);

impl Project for OurJobs {
    type Wire = JobWire;
    type Kept = SeenJob;

    fn keep(&self, wire: JobWire) -> Option<SeenJob> {
        let job = JobView::from(wire);
        if self.0.manages(job.spec.managed_by.as_deref()) {
            return Some(SeenJob::Ours(Box::new(job)));
        }
        let controller = job.spec.managed_by.filter(|name| name != BUILT_IN_CONTROLLER)?;
        Some(SeenJob::Others { uid: job.job.uid.clone(), controller })
    }
}

struct PodsOfJobs {
    /// Whether we stand in for the built-in controller.
    stands_in: bool,
}

impl Project for PodsOfJobs {
    type Wire = PodWire;
    type Kept = SeenPod;

    fn keep(&self, wire: PodWire) -> Option<SeenPod> {
        wire.may_be_ours(self.stands_in).then(|| SeenPod::new(wire, self.stands_in))
    }
}

#[cfg(test)]
mod tests;
