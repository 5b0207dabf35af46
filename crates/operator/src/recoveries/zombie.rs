//! Zombie recovery: pods with consent that are terminating or have evict-after, and all nodes. A change of either
//! requeues the affected pods.

mod entry;
mod explain;
mod jobs;
pub(crate) mod pod_verdict;
mod recheck;
mod subject;
#[cfg(test)]
mod tests;
mod unconsented_pods;
mod wire;

pub(super) use entry::ENTRY;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use salvor_api::{config::LostPods, names::reasons};
use salvor_recovery::{
    Decision,
    ids::{NodeName, Uid},
    liveness::{Heartbeat, Lease},
    objects::{JobRef, Ready},
    zombie::{
        AskedWait, JobSight, NodeView, PodView, PodWhy, Relative, Stage, Step, ZombiePolicy, decide_node,
        decide_pod, is_due,
    },
};

use self::{
    jobs::Jobs,
    recheck::Recheck,
    subject::{Subject, Why},
    unconsented_pods::UnconsentedPods,
    wire::{PodsInQuestion, SeenNode, SeenPod},
};
use crate::{
    client::{live::NodeLease, recent_reads::RecentReads},
    engine::recovery::{After, Course, Ended, Recovery, View},
    execute::Written,
    watch_set::{
        feeds::Feed,
        leases::{self, Heartbeats, Wanted},
        watch::{Change, Target, WatchHealth},
    },
};

/// Only bound pods: an unbound pod has no kubelet, so it cannot be a zombie.
fn bound_pods() -> Target {
    Target::fields("pods", "/api/v1/pods", "spec.nodeName!=")
}

/// True if the kubelet of a node may have gone silent: its Lease is read from now on, so that nothing waits for it when
/// its pods are due.
fn may_be_lost(node: &NodeView) -> bool {
    node.unreachable.is_some() || node.ready != Ready::True
}

#[derive(Debug)]
pub(crate) enum News {
    Pod(Change<SeenPod>),
    Node(Change<SeenNode>),
    Lease { node: NodeName, lease: Option<NodeLease> },
    Job { job: JobRef, sight: JobSight },
}

#[derive(Debug)]
pub(crate) struct Zombies {
    policy: Arc<ZombiePolicy>,
    pods: BTreeMap<Uid, PodView>,
    pods_of_node: BTreeMap<NodeName, BTreeSet<Uid>>,
    pods_of_job: BTreeMap<Uid, BTreeSet<Uid>>,
    jobs: Jobs,
    /// Pods for which an event about the wait for their Job is recorded.
    job_told: BTreeSet<Uid>,
    /// Pods without consent.
    unconsented_pods: UnconsentedPods,
    nodes: BTreeMap<NodeName, NodeView>,
    looks: RecentReads<NodeView>,
    /// The heartbeats of unreachable nodes' kubelets.
    heartbeats: Heartbeats,
    leases: Wanted,
    node_of_uid: BTreeMap<Uid, NodeName>,
    /// Subjects whose event is known to be recorded.
    announced: BTreeSet<Uid>,
    /// Nodes whose event about a return without a reboot is known to be recorded.
    returns_told: BTreeSet<Uid>,
    /// Pods whose invalid wait was reported, with its value at that time.
    wait_told: BTreeMap<Uid, AskedWait>,
    /// The same for evict-after.
    evict_told: BTreeMap<Uid, AskedWait>,
    /// True if the watches are declared: they do not change.
    declared: bool,
}

impl Zombies {
    pub(crate) fn new(policy: Arc<ZombiePolicy>) -> Self {
        Self {
            policy,
            pods: BTreeMap::new(),
            pods_of_node: BTreeMap::new(),
            pods_of_job: BTreeMap::new(),
            jobs: Jobs::default(),
            job_told: BTreeSet::new(),
            unconsented_pods: UnconsentedPods::default(),
            nodes: BTreeMap::new(),
            looks: RecentReads::default(),
            heartbeats: Heartbeats::default(),
            leases: Wanted::default(),
            node_of_uid: BTreeMap::new(),
            announced: BTreeSet::new(),
            returns_told: BTreeSet::new(),
            wait_told: BTreeMap::new(),
            evict_told: BTreeMap::new(),
            declared: false,
        }
    }

    /// Applies a pod. Returns the subject that it is or was, if any.
    fn apply_pod(&mut self, pod: SeenPod, now: Timestamp) -> Option<Subject> {
        match pod {
            SeenPod::Consenting(pod) => {
                self.unconsented_pods.remove(&pod.pod.uid);
                Some(self.insert_pod(*pod, now))
            }
            SeenPod::UnconsentedPod(unconsented_pod) => {
                // Its owner may have withdrawn the consent.
                let before = self.remove_pod(&unconsented_pod.uid);
                self.unconsented_pods.insert(unconsented_pod);
                before
            }
        }
    }

    fn insert_pod(&mut self, mut pod: PodView, now: Timestamp) -> Subject {
        pod.announced = self.announced.contains(&pod.pod.uid);
        // A dry run records no events, and must not wait for them.
        pod.wait_told = self.policy.dry_run || self.wait_told.get(&pod.pod.uid) == Some(&pod.consent.wait);
        pod.evict_told =
            self.policy.dry_run || self.evict_told.get(&pod.pod.uid) == Some(&pod.consent.evict_after);
        if self.policy.lost_pods == LostPods::Count {
            pod.job = None;
        }
        if let Some(of) = &mut pod.job {
            of.told = self.policy.dry_run || self.job_told.contains(&pod.pod.uid);
            self.pods_of_job.entry(of.job.uid.clone()).or_default().insert(pod.pod.uid.clone());
        }
        let subject = Subject::pod(&pod.pod);
        let node = pod.node_name.clone();
        if let Some(node) = &node {
            self.pods_of_node.entry(node.clone()).or_default().insert(pod.pod.uid.clone());
        }
        let (uid, job) = (pod.pod.uid.clone(), pod.job.as_ref().map(|of| of.job.uid.clone()));
        let before = self.pods.insert(uid.clone(), pod).and_then(|before| before.job);
        if let Some(before) = before.filter(|of| Some(&of.job.uid) != job.as_ref()) {
            self.leave_job(&uid, &before.job.uid);
        }
        if let Some(node) = &node {
            self.track_lease(node, now);
        }
        subject
    }

    /// Requests that a node's Lease is read while its kubelet is in question and a read may reveal something new.
    fn track_lease(&self, name: &NodeName, now: Timestamp) {
        let silent = self.nodes.get(name).filter(|node| may_be_lost(node));
        let concerns = |node: &&NodeView| {
            self.pods_of_node.contains_key(name) || self.policy.node_rule(&node.labels).is_some()
        };
        let unsettled = |node: &NodeView| !self.heartbeats.of(&node.node).is_settled(now);
        self.leases.set(name, silent.filter(concerns).is_some_and(unsettled));
    }

    fn on_lease(&mut self, name: &NodeName, lease: Option<NodeLease>, now: Timestamp) -> Vec<Subject> {
        let Some(view) = self.nodes.get(name) else { return Vec::new() };
        let before = self.heartbeats.of(&view.node);
        let heartbeat = self.heartbeats.note(&view.node, view.heartbeat_in(lease, now), now);
        self.track_lease(name, now);
        // A dead node's Lease does not change, and a live one affects its pods only if that was unknown.
        let was_known = before.lease != Lease::Unread;
        if was_known && before.alive_until(now).is_some() == heartbeat.alive_until(now).is_some() {
            return Vec::new();
        }
        let mut woken = self.pods_on(name);
        woken.push(Subject::Node { name: name.clone() });
        woken
    }

    fn remove_pod(&mut self, uid: &Uid) -> Option<Subject> {
        self.announced.remove(uid);
        self.wait_told.remove(uid);
        self.evict_told.remove(uid);
        self.job_told.remove(uid);
        let pod = self.pods.remove(uid)?;
        if let Some(of) = &pod.job {
            self.leave_job(uid, &of.job.uid);
        }
        let node = pod.node_name.unwrap_or_default();
        if let Some(pods) = self.pods_of_node.get_mut(&node) {
            pods.remove(uid);
            if pods.is_empty() {
                self.pods_of_node.remove(&node);
            }
        }
        Some(Subject::pod(&pod.pod))
    }

    /// A pod is gone, or belongs to another Job.
    fn leave_job(&mut self, pod: &Uid, job: &Uid) {
        let Some(pods) = self.pods_of_job.get_mut(job) else { return };
        pods.remove(pod);
        if pods.is_empty() {
            self.pods_of_job.remove(job);
            self.jobs.forget(job);
        }
    }

    fn insert_node(&mut self, seen: SeenNode, now: Timestamp) -> Vec<Subject> {
        let name = seen.node.name.clone();
        let known = self.nodes.get(&name);
        // A taint without a time counts from when it was first seen.
        let observed = known.and_then(|n| n.unreachable).map_or(now, |u| u.since);
        let announced = self.announced.contains(&seen.node.uid);
        let return_told = self.policy.dry_run || self.returns_told.contains(&seen.node.uid);
        let view = NodeView { announced, return_told, ..seen.view(observed) };
        let concerns_pods = known.is_none_or(|old| {
            old.unreachable != view.unreachable || old.ready != view.ready || old.node != view.node
        });
        if !may_be_lost(&view) && view.out_of_service_mark.is_none() {
            self.heartbeats.forget(&name);
        }
        self.unconsented_pods.see_node(&name, view.unreachable.is_some());
        self.node_of_uid.insert(view.node.uid.clone(), name.clone());
        self.nodes.insert(name.clone(), view);
        self.track_lease(&name, now);
        let mut woken = if concerns_pods { self.pods_on(&name) } else { Vec::new() };
        woken.push(Subject::Node { name });
        woken
    }

    fn pods_on(&self, node: &NodeName) -> Vec<Subject> {
        self.subjects_of(self.pods_of_node.get(node))
    }

    fn subjects_of(&self, uids: Option<&BTreeSet<Uid>>) -> Vec<Subject> {
        let uids = uids.into_iter().flatten();
        uids.filter_map(|uid| self.pods.get(uid)).map(|p| Subject::pod(&p.pod)).collect()
    }

    /// A node with the heartbeat of its kubelet.
    fn node_of(&self, pod: &PodView) -> Option<NodeView> {
        let node = pod.node_name.as_ref().and_then(|name| self.nodes.get(name))?;
        Some(NodeView { heartbeat: self.heartbeats.of(&node.node), ..node.clone() })
    }

    /// A pod with everything that is known of its Job, if that matters now.
    fn in_its_family(&self, pod: &PodView, node: Option<&NodeView>, now: Timestamp) -> PodView {
        let mut pod = pod.clone();
        let due = node.is_some_and(|node| is_due(&pod, node, &self.policy, now));
        if let Some(of) = pod.job.as_mut().filter(|_| due) {
            of.sight = self.jobs.of(&of.job);
            of.family = self.family(&of.job.uid, now);
        }
        pod
    }

    /// The pods of a Job that may be recovered, and their stage.
    fn family(&self, job: &Uid, now: Timestamp) -> Vec<Relative> {
        let mut nodes: BTreeMap<&NodeName, Option<NodeView>> = BTreeMap::new();
        let pods = self.pods_of_job.get(job).into_iter().flatten().filter_map(|uid| self.pods.get(uid));
        let relative = |pod: &PodView, node: Option<&NodeView>| {
            let stage = if pod.phase.is_terminal() {
                Stage::Ended(pod.phase)
            } else if node.is_some_and(|node| is_due(pod, node, &self.policy, now)) {
                Stage::Due
            } else {
                Stage::Waits
            };
            let member = pod.job.as_ref()?.member.clone();
            Some(Relative { uid: pod.pod.uid.clone(), member, stage, is_deleted: pod.deletion.is_some() })
        };
        let mut family = Vec::new();
        for pod in pods {
            let node = match &pod.node_name {
                Some(name) => nodes.entry(name).or_insert_with(|| self.node_of(pod)).as_ref(),
                None => None,
            };
            family.extend(relative(pod, node));
        }
        family
    }

    /// Requests that the Job of a pod is read if the verdict on the pod needs it.
    fn see_to_job(&self, pod: &PodView, why: &PodWhy, now: Timestamp) {
        let Some(of) = &pod.job else { return };
        let waits = matches!(why, PodWhy::JobWouldFail { .. } | PodWhy::JobUnreadable { .. });
        let is_outdated = || of.sight.outdated_at().is_none_or(|at| at <= now);
        if matches!(why, PodWhy::JobUnread { .. }) || (waits && is_outdated()) {
            self.jobs.want(&of.job, now);
        }
    }
}

impl Recovery for Zombies {
    const NAME: &'static str = "zombie";
    type Subject = Subject;
    type Why = Why;
    type Step = Step;
    type News = News;
    type Recheck = Recheck;

    fn watches(&mut self) -> Option<Vec<Feed<News>>> {
        if std::mem::replace(&mut self.declared, true) {
            return None;
        }
        let pods = WatchHealth::new("pods");
        let in_question = PodsInQuestion(self.policy.clone());
        let leases = self.leases.clone();
        let jobs = self.jobs.clone();
        let tell_job = |job, sight| News::Job { job, sight };
        let reads_jobs = self.policy.lost_pods != LostPods::Count;
        let jobs =
            reads_jobs.then(|| Feed::reads("jobs", move |client, news| jobs.read_on(client, news, tell_job)));
        let feeds = [
            Feed::watch(bound_pods(), in_question, &pods, News::Pod),
            Feed::nodes(None, |node| SeenNode::from(&node.wire), News::Node),
            Feed::reads("leases", |client, news| {
                let tell = |node, lease| News::Lease { node, lease };
                leases::read(Self::NAME, client, leases, news, tell)
            }),
        ];
        Some(feeds.into_iter().chain(jobs).collect())
    }

    fn on_change(&mut self, news: News, now: Timestamp) -> Vec<Subject> {
        match news {
            News::Pod(Change::Applied(pod)) => self.apply_pod(pod, now).into_iter().collect(),
            News::Pod(Change::Gone(uid)) => {
                self.unconsented_pods.remove(&uid);
                self.remove_pod(&uid).into_iter().collect()
            }
            News::Pod(Change::Reset { all: pods, .. }) => {
                let mut woken: BTreeSet<Subject> = self.pods.values().map(|p| Subject::pod(&p.pod)).collect();
                // Revisions may have gone backwards.
                self.jobs.forget_all();
                let present: BTreeSet<Uid> = pods.iter().map(|p| p.uid().clone()).collect();
                self.unconsented_pods.retain(&present);
                let gone: Vec<Uid> =
                    self.pods.keys().filter(|uid| !present.contains(*uid)).cloned().collect();
                for uid in gone {
                    self.remove_pod(&uid);
                }
                woken.extend(pods.into_iter().filter_map(|pod| self.apply_pod(pod, now)));
                woken.into_iter().collect()
            }
            News::Node(Change::Applied(node)) => self.insert_node(node, now),
            News::Node(Change::Gone(uid)) => {
                self.announced.remove(&uid);
                self.returns_told.remove(&uid);
                let Some(name) = self.node_of_uid.remove(&uid) else { return Vec::new() };
                // The name may already belong to a newer node.
                if self.nodes.get(&name).is_some_and(|n| n.node.uid == uid) {
                    self.nodes.remove(&name);
                    self.heartbeats.forget(&name);
                    self.unconsented_pods.see_node(&name, false);
                }
                self.track_lease(&name, now);
                let mut woken = self.pods_on(&name);
                woken.push(Subject::Node { name });
                woken
            }
            News::Node(Change::Reset { all: nodes, .. }) => {
                let mut woken: BTreeSet<Subject> = self.subjects().into_iter().collect();
                let present: BTreeSet<Uid> = nodes.iter().map(|n| n.node.uid.clone()).collect();
                self.announced.retain(|uid| present.contains(uid) || self.pods.contains_key(uid));
                self.returns_told.retain(|uid| present.contains(uid));
                let gone = self.nodes.values().filter(|n| !present.contains(&n.node.uid));
                for node in gone {
                    self.heartbeats.forget(&node.node.name);
                    self.unconsented_pods.see_node(&node.node.name, false);
                    self.leases.set(&node.node.name, false);
                }
                self.nodes.retain(|_, n| present.contains(&n.node.uid));
                self.node_of_uid.retain(|uid, _| present.contains(uid));
                for node in nodes {
                    woken.extend(self.insert_node(node, now));
                }
                woken.into_iter().collect()
            }
            News::Lease { node, lease } => self.on_lease(&node, lease, now),
            News::Job { job, sight } => {
                let woken = self.subjects_of(self.pods_of_job.get(&job.uid));
                if !woken.is_empty() {
                    self.jobs.note(&job, sight);
                }
                woken
            }
        }
    }

    fn judge(&self, subject: &Subject, now: Timestamp) -> Option<Decision<Why, Step>> {
        match subject {
            Subject::Pod(subject) => {
                let uid = &subject.uid;
                let pod = self.pods.get(uid)?;
                let node = self.node_of(pod);
                if pod.job.is_none() {
                    return Some(decide_pod(pod, node.as_ref(), &self.policy, now).map_why(Why::Pod));
                }
                let pod = self.in_its_family(pod, node.as_ref(), now);
                let decision = decide_pod(&pod, node.as_ref(), &self.policy, now);
                self.see_to_job(&pod, decision.verdict.why(), now);
                Some(decision.map_why(Why::Pod))
            }
            Subject::Node { name } => {
                let mut node = self.nodes.get(name)?.clone();
                // A ready node's Lease is not read here: the second look does that.
                let is_ready = node.ready == Ready::True;
                node.heartbeat = if is_ready { Heartbeat::UNREAD } else { self.heartbeats.of(&node.node) };
                Some(decide_node(&node, &self.policy, now).map_why(Why::Node))
            }
        }
    }

    fn without_consent(&self) -> usize {
        self.unconsented_pods.stuck()
    }

    fn course(&self, subject: &Subject) -> Course {
        let Subject::Pod(subject) = subject else { return Course::default() };
        let Some(pod) = self.pods.get(&subject.uid) else { return Course::default() };
        let node = self.node_of(pod);
        let requested = pod.deletion.and_then(|deletion| {
            let grace = SignedDuration::from_secs(deletion.grace_seconds.unwrap_or(0));
            deletion.timestamp.checked_sub(grace).ok()
        });
        Course {
            silent: node.as_ref().and_then(|node| node.heartbeat.heard()),
            marked: node.and_then(|node| node.unreachable).map(|lost| lost.since),
            requested,
        }
    }

    fn subjects(&self) -> Vec<Subject> {
        let pods = self.pods.values().map(|p| Subject::pod(&p.pod));
        let nodes = self.nodes.keys().map(|name| Subject::Node { name: name.clone() });
        pods.chain(nodes).collect()
    }

    fn recheck(&self, subject: &Subject, judged: Timestamp) -> Recheck {
        let (uid, pod, observed) = match subject {
            Subject::Pod(subject) => {
                let uid = &subject.uid;
                let pod = self.pods.get(uid);
                let node = pod.and_then(|p| p.node_name.as_ref());
                let pod = pod.map(|pod| self.in_its_family(pod, self.node_of(pod).as_ref(), judged));
                (uid.clone(), pod, node.and_then(|n| self.nodes.get(n)))
            }
            Subject::Node { name } => {
                let node = self.nodes.get(name);
                (node.map(|n| n.node.uid.clone()).unwrap_or_default(), None, node)
            }
        };
        Recheck {
            subject: subject.clone(),
            pod,
            announced: self.announced.contains(&uid),
            return_told: self.returns_told.contains(&uid),
            observed: observed.and_then(|n| n.unreachable).map(|u| u.since),
            policy: self.policy.clone(),
            looks: self.looks.clone(),
            heartbeats: self.heartbeats.clone(),
            jobs: self.jobs.clone(),
        }
    }

    fn ended(&mut self, subject: &Subject, end: Ended<'_, Step>, now: Timestamp) -> After {
        After::with(end.view(|step, answer| self.done(subject, step, answer, now)))
    }
}

impl Zombies {
    fn done(&mut self, subject: &Subject, action: &Step, answer: &Written, now: Timestamp) -> View {
        if let (Step::RaiseBackoffLimit { job, .. }, Written::Object(answer)) = (action, answer) {
            self.jobs.written(job, answer, now);
            return View::Synced;
        }
        if let (Subject::Node { name }, Step::TaintNode { .. } | Step::UntaintNode { .. }) = (subject, action)
        {
            // Events from now on are about this incident, not about an earlier one.
            if let Some(node) = self.nodes.get_mut(name) {
                (node.announced, node.return_told) = (false, false);
                self.announced.remove(&node.node.uid);
                self.returns_told.remove(&node.node.uid);
            }
        }
        if let (Subject::Pod(subject), Step::Mention(note)) = (subject, action) {
            if note.reason == reasons::INVALID_EVICT_AFTER {
                if let Some(pod) = self.pods.get_mut(&subject.uid) {
                    pod.evict_told = true;
                    self.evict_told.insert(subject.uid.clone(), pod.consent.evict_after.clone());
                }
                return View::Synced;
            }
            if note.reason != reasons::INVALID_TERMINATION_GRACE_AFTER {
                if let Some(of) = self.pods.get_mut(&subject.uid).and_then(|pod| pod.job.as_mut()) {
                    of.told = true;
                    self.job_told.insert(subject.uid.clone());
                }
                return View::Synced;
            }
            if let Some(pod) = self.pods.get_mut(&subject.uid) {
                pod.wait_told = true;
                self.wait_told.insert(subject.uid.clone(), pod.consent.wait.clone());
            }
            return View::Synced;
        }
        let Step::EmitEvent(note) = action else { return View::Lagging };
        if note.reason == reasons::BACKOFF_LIMIT_RAISED {
            return View::Synced;
        }
        match subject {
            Subject::Node { name } if note.reason == reasons::NODE_NOT_REBOOTED => {
                if let Some(node) = self.nodes.get_mut(name) {
                    node.return_told = true;
                    self.returns_told.insert(node.node.uid.clone());
                }
            }
            Subject::Pod(subject) => {
                let uid = &subject.uid;
                if let Some(pod) = self.pods.get_mut(uid) {
                    pod.announced = true;
                    self.announced.insert(uid.clone());
                }
            }
            Subject::Node { name } => {
                if let Some(node) = self.nodes.get_mut(name) {
                    node.announced = true;
                    self.announced.insert(node.node.uid.clone());
                }
            }
        }
        View::Synced
    }
}
