//! A simulated Job with its pods, and an API server that carries out the decisions.

use super::super::Step;
use crate::ids::Uid;
use crate::step::Step as _;
use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use salvor_api::Labels;
use salvor_api::config::Configuration;
use salvor_api::names::job::{
    COMPLETION_INDEX, CONTROLLER_NAME, INDEX_FAILURE_COUNT, INDEX_IGNORED_FAILURE_COUNT,
};
use serde_json::{Value, json};

use super::status_rules;
use crate::job::{
    Deletion, IndexFailures, JobPolicy, JobStatus, JobView, JobWhy, Memory, PodView, Ready, Selected, Stray,
    Tracking, Uncounted, UsedNames, decide, recollect, remember,
};
use crate::objects::{JobRef, PodPhase, PodRef};
use crate::{Decision, Verdict};

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

#[derive(Clone)]
pub(super) struct World {
    pub(super) job: JobView,
    pub(super) pods: Vec<PodView>,
    pub(super) strays: Vec<PodView>,
    pub(super) memory: Memory,
    pub(super) policy: JobPolicy,
    pub(super) now: Timestamp,
    /// Pods that a foreign finalizer blocks.
    pub(super) blocked: BTreeSet<Uid>,
    pub(super) blocks_new_pods: bool,
    /// Names of the writes, in order.
    pub(super) writes: Vec<&'static str>,
    /// Reasons and messages of the recorded events.
    pub(super) told: Vec<(String, String)>,
    /// Bodies of the created pods.
    pub(super) created: Vec<Value>,
    /// How often each pod was recorded as ended, by UID: never more than once.
    pub(super) listed: BTreeMap<Uid, u32>,
    /// Names of all pods ever created: no name is reused.
    pub(super) names: BTreeSet<String>,
    revision: u64,
}

impl World {
    /// A Job with this spec, just created, and a cluster without pods.
    pub(super) fn new(mut spec: Value) -> Self {
        spec["managedBy"] = CONTROLLER_NAME.into();
        if spec["template"].is_null() {
            spec["template"] = json!({
                "metadata": {"labels": {"job": "j"}},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work"}]},
            });
        }
        Self {
            job: JobView {
                job: JobRef { namespace: "ns".into(), name: "j".into(), uid: "job-uid".into() }.into(),
                resource_version: "1".into(),
                deleting: false,
                spec: serde_json::from_str(&spec.to_string()).unwrap(),
                status: JobStatus::default(),
                used_names: None,
            },
            pods: Vec::new(),
            strays: Vec::new(),
            memory: Memory::default(),
            policy: JobPolicy::new(&Configuration::default()),
            now: at(0),
            blocked: BTreeSet::new(),
            blocks_new_pods: false,
            writes: Vec::new(),
            told: Vec::new(),
            created: Vec::new(),
            listed: BTreeMap::new(),
            names: BTreeSet::new(),
            revision: 1,
        }
    }

    /// Adds pods of these kinds, created an hour ago: `a`ctive, `r`eady, `s`ucceeded, `f`ailed, `t`erminating; a digit
    /// after a letter is the pod's index.
    pub(super) fn with(mut self, kinds: &str) -> Self {
        for kind in kinds.split_whitespace() {
            let (letter, index) = kind.split_at(1);
            self.add(letter, index.parse().ok());
        }
        self
    }

    /// A Job that finishes counts its last pods in the same write: those still tracked and not yet listed.
    fn count_the_last(&mut self, before: &Uncounted, status: &JobStatus) {
        let number = |n: usize| i32::try_from(n).unwrap();
        let failed = status.failed - self.job.status.failed - number(before.failed.len());
        let succeeded = status.succeeded - self.job.status.succeeded - number(before.succeeded.len());
        for (phase, counted) in [(PodPhase::Succeeded, succeeded), (PodPhase::Failed, failed)] {
            let is_new =
                |pod: &&PodView| pod.is_tracked() && pod.phase == phase && !before.contains(&pod.pod.uid);
            let last: Vec<Uid> = self.pods.iter().filter(is_new).map(|pod| pod.pod.uid.clone()).collect();
            match (phase, self.job.spec.is_indexed()) {
                (PodPhase::Succeeded, true) => continue,
                (PodPhase::Succeeded, false) => assert_eq!(counted, number(last.len()), "{last:?}"),
                // Some failures are ignored.
                _ => assert!((0..=number(last.len())).contains(&counted), "{counted} of {last:?}"),
            }
            for uid in last.into_iter().take(usize::try_from(counted).unwrap()) {
                *self.listed.entry(uid).or_default() += 1;
            }
        }
    }

    pub(super) fn add(&mut self, kind: &str, index: Option<u32>) -> Uid {
        let number = self.pods.len();
        let uid = Uid::from(format!("uid-{number}-{}", self.revision));
        let mut pod = PodView {
            pod: PodRef { namespace: "ns".into(), name: format!("j-given-{number}"), uid: uid.clone() },
            resource_version: "1".into(),
            selected: Selected::Unasked(Labels::default()),
            phase: PodPhase::Pending,
            created: at(-3600),
            deletion: None,
            tracking: Some(Tracking::Ours),
            ready: None,
            node: Some("node-a".into()),
            index,
            earlier_failures: IndexFailures::default(),
            unreadable: None,
            restarts: 0,
            finished: None,
            exit_codes: Vec::new(),
            conditions: Vec::new(),
        };
        match kind {
            "a" => pod.phase = PodPhase::Running,
            "p" => {}
            "r" => {
                pod.phase = PodPhase::Running;
                pod.ready = Some(Ready { is_true: true, since: Some(at(-3500)) });
            }
            "s" => pod.phase = PodPhase::Succeeded,
            "f" => pod.phase = PodPhase::Failed,
            "t" => {
                pod.phase = PodPhase::Running;
                pod.deletion = Some(Deletion { timestamp: at(-3500), grace_seconds: 30 });
                self.blocked.insert(uid.clone());
            }
            other => panic!("no such kind of pod: {other}"),
        }
        if pod.phase.is_terminal() {
            pod.finished = Some(at(-3000));
        }
        self.pods.push(pod);
        uid
    }

    pub(super) fn judge(&self) -> Decision<JobWhy, Step> {
        decide(&self.job, &self.pods, &self.references(), &self.memory, &self.policy, self.now)
    }

    fn references(&self) -> Vec<Stray> {
        let stray = |pod: &PodView| Stray {
            pod: pod.pod.clone(),
            resource_version: pod.resource_version.clone(),
            labels: match &pod.selected {
                Selected::Unasked(labels) => labels.clone(),
                Selected::Yes | Selected::No => panic!("of strays the labels are kept"),
            },
            tracking: pod.tracking,
            adoptable: pod.deletion.is_none(),
        };
        self.strays.iter().map(stray).collect()
    }

    /// The decision of a process that has only the objects and no memory.
    pub(super) fn judge_from_outside(&self) -> Decision<JobWhy, Step> {
        let memory = recollect(&self.job, &self.pods, &self.policy);
        decide(&self.job, &self.pods, &self.references(), &memory, &self.policy, self.now)
    }

    /// Decides and carries out until there is nothing to do: what the built-in controller calls a sync.
    pub(super) fn settle(&mut self) -> &mut Self {
        for _ in 0..200 {
            let decision = self.judge();
            let Verdict::Act { actions, .. } = decision.verdict else { return self };
            for action in actions {
                self.carry_out(&action);
            }
        }
        panic!("it never comes to rest: {:?}", self.judge());
    }

    pub(super) fn later(&mut self, seconds: i64) -> &mut Self {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
        self.settle()
    }

    pub(super) fn carry_out(&mut self, action: &Step) {
        self.writes.push(action.name());
        match action {
            Step::AtOnce { steps } => {
                self.writes.pop();
                for step in steps {
                    self.carry_out(step);
                }
            }
            Step::CreatePod { name, body, .. } => {
                self.create(name, body);
                self.memory.made_pods = true;
            }
            Step::PatchJobStatus { resource_version, status, used_names, .. } => {
                if let Some(names) = used_names {
                    self.job.used_names = Some(names.as_str().into());
                }
                assert_eq!(*resource_version, self.job.resource_version, "a write on an old view");
                let broken = status_rules::broken(&self.job.spec, &self.job.status, status);
                assert!(broken.is_empty(), "{broken:?}\nfrom {:?}\nto {status:?}", self.job.status);
                let before = self.job.status.uncounted_terminated_pods.clone().unwrap_or_default();
                let after = status.uncounted_terminated_pods.clone().unwrap_or_default();
                for uid in after.succeeded.iter().chain(&after.failed).filter(|uid| !before.contains(uid)) {
                    *self.listed.entry(uid.clone()).or_default() += 1;
                }
                if status.finished().is_some() {
                    self.count_the_last(&before, status);
                }
                // The written value must be read back unchanged.
                let text = serde_json::to_string(status).unwrap();
                self.job.status = serde_json::from_str(&text).unwrap();
                assert_eq!(self.job.status, **status);
                self.touch_job();
                if let Some(names) = self.job.used_names.as_deref() {
                    self.memory.names.merge(&UsedNames::read(names).unwrap());
                }
                self.memory.status_written = Some(self.now);
                self.memory.made_pods = false;
            }
            Step::RemoveFinalizer { pod, finalizer, .. } => {
                if let Some(known) = self.pods.iter_mut().find(|p| p.pod.uid == pod.uid) {
                    assert_eq!(known.tracking.map(Tracking::finalizer), Some(*finalizer), "{pod}");
                    known.tracking = None;
                }
                self.sweep();
            }
            Step::DeletePod { pod } => {
                let now = self.now;
                if let Some(known) = self.pods.iter_mut().find(|p| p.pod.uid == pod.uid) {
                    known.deletion.get_or_insert(Deletion { timestamp: now, grace_seconds: 0 });
                }
                self.sweep();
            }
            Step::AdoptPod { pod, .. } => {
                let (mut found, rest) = self.strays.drain(..).partition(|p| p.pod.uid == pod.uid);
                self.strays = rest;
                found.iter_mut().for_each(|p: &mut PodView| p.tracking = Some(Tracking::Ours));
                self.pods.append(&mut found);
            }
            Step::ReleasePod { pod, .. } => {
                let (mut lost, rest): (Vec<_>, Vec<_>) =
                    self.pods.drain(..).partition(|p| p.pod.uid == pod.uid);
                self.pods = rest;
                lost.iter_mut().for_each(|p| p.tracking = None);
                self.strays.append(&mut lost);
            }
            Step::DeleteJob { .. } => self.job.deleting = true,
            Step::Mention(note) => {
                self.writes.pop();
                self.told.push((note.reason.clone().into_owned(), note.message.clone()));
                self.memory.told = Some(note.name.clone());
            }
        }
        for pod in &self.pods {
            remember(&mut self.memory, &self.job, pod, &self.policy);
        }
    }

    pub(super) fn touch_job(&mut self) {
        self.revision += 1;
        self.job.resource_version = self.revision.to_string().into();
    }

    fn create(&mut self, name: &str, body: &str) {
        let body: Value = serde_json::from_str(body).unwrap();
        assert!(self.names.insert(name.to_owned()), "the name {name} comes back");
        let index =
            body["metadata"]["annotations"][COMPLETION_INDEX].as_str().map(|text| text.parse().unwrap());
        let annotation =
            |key: &str| body["metadata"]["annotations"][key].as_str().map_or(0, |text| text.parse().unwrap());
        let failures = IndexFailures {
            counted: annotation(INDEX_FAILURE_COUNT),
            ignored: annotation(INDEX_IGNORED_FAILURE_COUNT),
        };
        let uid = self.add("p", index);
        let pod = self.pods.last_mut().unwrap();
        pod.pod.name = name.to_owned();
        pod.created = self.now;
        pod.earlier_failures = failures;
        pod.node = None;
        self.revision += 1;
        if self.blocks_new_pods {
            self.blocked.insert(uid);
        }
        self.created.push(body);
    }

    /// Removes pods that are being deleted and have no finalizer. Here kubelets end pods at once.
    pub(super) fn sweep(&mut self) {
        let blocked = self.blocked.clone();
        self.pods.retain(|p| p.deletion.is_none() || p.is_tracked() || blocked.contains(&p.pod.uid));
    }

    // ---- what happens to pods -----------------------------------------------------------------

    pub(super) fn pod(&mut self, position: usize) -> &mut PodView {
        &mut self.pods[position]
    }

    /// The pods that have not ended.
    pub(super) fn open(&self) -> Vec<usize> {
        (0..self.pods.len()).filter(|i| !self.pods[*i].phase.is_terminal()).collect()
    }

    pub(super) fn active_at(&self, index: u32) -> usize {
        let here = |p: &PodView| p.index == Some(index) && p.deletion.is_none() && !p.phase.is_terminal();
        self.pods.iter().position(here).unwrap_or_else(|| panic!("no active pod at index {index}"))
    }

    pub(super) fn end(&mut self, position: usize, phase: PodPhase) {
        let now = self.now;
        let pod = self.pod(position);
        pod.phase = phase;
        pod.ready = None;
        pod.finished = Some(now);
        if phase == PodPhase::Failed && pod.exit_codes.is_empty() {
            pod.exit_codes = vec![("main".into(), 1)];
        }
        self.observe();
    }

    pub(super) fn delete(&mut self, position: usize) {
        let now = self.now;
        self.pod(position).deletion = Some(Deletion { timestamp: now, grace_seconds: 0 });
        self.observe();
    }

    pub(super) fn observe(&mut self) {
        for pod in &self.pods {
            remember(&mut self.memory, &self.job, pod, &self.policy);
        }
    }

    pub(super) fn unblock(&mut self) {
        self.blocked.clear();
        self.blocks_new_pods = false;
        self.sweep();
    }

    // ---- what is seen --------------------------------------------------------------------------

    /// `A1 R0 S2 F0 T0`, the notation of the tables.
    pub(super) fn counts(&self) -> String {
        let JobStatus { active, ready, succeeded, failed, terminating, .. } = &self.job.status;
        let or_dash = |n: &Option<i32>| n.map_or("-".into(), |n| n.to_string());
        format!("A{active} R{} S{succeeded} F{failed} T{}", or_dash(ready), or_dash(terminating))
    }

    /// The conditions that are true, with their reasons.
    pub(super) fn conditions(&self) -> String {
        let all = self.job.status.conditions.iter().filter(|c| c.status == "True");
        all.map(|c| format!("{}({})", c.kind, c.reason)).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn count(&self, write: &str) -> usize {
        self.writes.iter().filter(|w| **w == write).count()
    }

    pub(super) fn active_indexes(&self) -> String {
        let active = self.pods.iter().filter(|p| !p.phase.is_terminal() && p.deletion.is_none());
        active.filter_map(|p| p.index).collect::<crate::job::Indexes>().to_string()
    }
}
