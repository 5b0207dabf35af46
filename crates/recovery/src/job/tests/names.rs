//! Names of pods: none is reused, and no pod is created twice, whatever is lost, late or unseen.

use super::super::Step;
use crate::ids::Uid;
use crate::step::Step as _;
use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use proptest::prelude::*;
use salvor_api::names::job::{COMPLETION_INDEX, INDEX_FAILURE_COUNT, INDEX_IGNORED_FAILURE_COUNT};
use serde_json::{Value, json};

use super::status_rules;
use super::world::{World, at};
use crate::fuzz::cases;
use crate::job::names::{Name, Naming};
use crate::job::{
    Deletion, IndexFailures, JobView, Memory, PodReplacementPolicy, PodView, Selected, Stray, Tracking,
    UsedNames, decide, remember,
};
use crate::objects::PodPhase;

#[derive(Clone, Copy, Debug)]
enum Request {
    Answered,
    /// Carried out, but the response is lost.
    AnswerLost,
    /// Never carried out.
    Lost,
    /// A new pod is created only later, under any leader.
    Late,
}

#[derive(Clone, Debug)]
enum Happening {
    /// The controller decides on the Job once. The outcomes apply to its requests in turn, cyclically.
    Look(Vec<Request>),
    /// The watch delivers all changes of pods, or of the Job.
    SeePods,
    SeeJob,
    /// The process ends. The next one lists everything and remembers nothing.
    Crash,
    /// A delayed request arrives.
    Arrives,
    Succeed(usize),
    Fail(usize, i32),
    Delete(usize),
    /// A pod without finalizers is gone.
    Collect(usize),
    /// The selector stops matching it, or matches it again.
    Relabel(usize),
    Suspend(bool),
    Size(i32),
    SwitchPolicy,
    Wait(i64),
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        8 => Just(Request::Answered),
        2 => Just(Request::AnswerLost),
        1 => Just(Request::Lost),
        1 => Just(Request::Late),
    ]
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        20 => prop::collection::vec(request(), 1..4).prop_map(Happening::Look),
        4 => Just(Happening::SeePods),
        4 => Just(Happening::SeeJob),
        3 => Just(Happening::Crash),
        3 => Just(Happening::Arrives),
        2 => (0usize..8).prop_map(Happening::Succeed),
        4 => ((0usize..8), prop_oneof![Just(1), Just(7)]).prop_map(|(nth, code)| Happening::Fail(nth, code)),
        3 => (0usize..8).prop_map(Happening::Delete),
        4 => (0usize..8).prop_map(Happening::Collect),
        1 => (0usize..8).prop_map(Happening::Relabel),
        3 => any::<bool>().prop_map(Happening::Suspend),
        2 => (1i32..5).prop_map(Happening::Size),
        1 => Just(Happening::SwitchPolicy),
        3 => (0i64..30).prop_map(Happening::Wait),
    ]
}

fn labels(matching: bool) -> Selected {
    Selected::Unasked([("mine", if matching { "yes" } else { "no" })].into_iter().collect())
}

/// A server with its pods, a controller that sees a part of it, and the requests between them.
struct Cluster {
    /// The objects, and the time.
    world: World,
    /// Pods that the Job released, or that others created.
    strays: Vec<PodView>,
    /// What the controller sees.
    job: JobView,
    seen: BTreeMap<Uid, PodView>,
    seen_strays: Vec<PodView>,
    memory: Memory,
    under_way: Vec<Step>,
    ever: BTreeSet<String>,
    made: u32,
    most_wanted: i32,
}

impl Cluster {
    fn new(spec: Value) -> Self {
        let world = World::new(spec);
        let most_wanted = world.job.spec.parallelism.unwrap();
        Self {
            job: world.job.clone(),
            world,
            strays: Vec::new(),
            seen: BTreeMap::new(),
            seen_strays: Vec::new(),
            memory: Memory::default(),
            under_way: Vec::new(),
            ever: BTreeSet::new(),
            made: 0,
            most_wanted,
        }
    }

    fn take_in(&mut self, pod: &PodView) {
        remember(&mut self.memory, &self.job, pod, &self.world.policy);
        self.seen.insert(pod.pod.uid.clone(), pod.clone());
    }

    fn see_pods(&mut self) {
        self.seen.clear();
        for pod in self.world.pods.clone() {
            self.take_in(&pod);
        }
        self.seen_strays = self.strays.clone();
    }

    fn see_job(&mut self) {
        self.job = self.world.job.clone();
        if let Some(names) = &self.job.used_names {
            self.memory.names.merge(&UsedNames::read(names).unwrap());
        }
    }

    fn touch(&mut self) {
        self.world.touch_job();
    }

    /// One decision and its steps, until a request fails.
    fn look(&mut self, requests: &[Request]) {
        let pods: Vec<PodView> = self.seen.values().cloned().collect();
        let stray = |pod: &PodView| Stray {
            pod: pod.pod.clone(),
            resource_version: pod.resource_version.clone(),
            labels: match &pod.selected {
                Selected::Unasked(labels) => labels.clone(),
                Selected::Yes | Selected::No => unreachable!(),
            },
            tracking: pod.tracking,
            adoptable: pod.deletion.is_none(),
        };
        let strays: Vec<Stray> = self.seen_strays.iter().map(stray).collect();
        let decision = decide(&self.job, &pods, &strays, &self.memory, &self.world.policy, self.world.now);
        let mut next = requests.iter().copied().cycle();
        for action in decision.verdict.actions() {
            let mut failed = false;
            for step in action.steps() {
                failed |= !self.send(step, next.next().unwrap());
            }
            if failed {
                return;
            }
        }
    }

    /// True if the request was answered with success.
    fn send(&mut self, step: &Step, request: Request) -> bool {
        match (request, step) {
            (Request::Lost, _) => return false,
            (Request::Late, Step::CreatePod { .. }) => {
                self.under_way.push(step.clone());
                return false;
            }
            _ => {}
        }
        let answered = !matches!(request, Request::AnswerLost);
        match step {
            Step::CreatePod { name, body, .. } => {
                let pod = self.create(name, body);
                if answered {
                    match pod {
                        Some(pod) => self.take_in(&pod),
                        None => drop(self.memory.taken_names.insert(name.clone())),
                    }
                }
            }
            Step::PatchJobStatus { resource_version, status, used_names, .. } => {
                if *resource_version != self.world.job.resource_version {
                    self.see_job();
                    return false;
                }
                let job = &mut self.world.job;
                let broken = status_rules::broken(&job.spec, &job.status, status);
                assert!(broken.is_empty(), "{broken:?}");
                job.status = (**status).clone();
                if let Some(names) = used_names {
                    job.used_names = Some(names.as_str().into());
                }
                self.touch();
                if answered {
                    self.see_job();
                    self.memory.status_written = Some(self.world.now);
                    self.memory.made_pods = false;
                }
            }
            Step::RemoveFinalizer { pod, .. } => {
                self.change(&pod.uid, answered, |pod| pod.tracking = None);
            }
            Step::DeletePod { pod } => {
                let deletion = Deletion { timestamp: self.world.now, grace_seconds: 0 };
                self.change(&pod.uid, answered, |pod| {
                    pod.deletion.get_or_insert(deletion);
                });
            }
            Step::ReleasePod { pod, .. } => {
                if let Some(at) = self.world.pods.iter().position(|p| p.pod.uid == pod.uid) {
                    let mut pod = self.world.pods.remove(at);
                    pod.tracking = None;
                    self.strays.push(pod);
                }
                if answered {
                    self.seen.remove(&pod.uid);
                    self.seen_strays = self.strays.clone();
                }
            }
            Step::AdoptPod { pod, .. } => {
                if let Some(at) = self.strays.iter().position(|p| p.pod.uid == pod.uid) {
                    let mut pod = self.strays.remove(at);
                    pod.tracking = Some(Tracking::Ours);
                    self.world.pods.push(pod.clone());
                    if answered {
                        self.take_in(&pod);
                    }
                }
                self.seen_strays.retain(|p| p.pod.uid != pod.uid);
            }
            Step::Mention(_) => return true,
            other => panic!("not a step of this test: {other}"),
        }
        answered
    }

    fn change(&mut self, uid: &Uid, answered: bool, change: impl FnOnce(&mut PodView)) {
        if let Some(pod) = self.world.pods.iter_mut().find(|p| p.pod.uid == *uid) {
            change(pod);
            let pod = pod.clone();
            if answered {
                self.take_in(&pod);
            }
        } else if answered {
            self.seen.remove(uid);
        }
    }

    /// Creates a pod unless the name exists; else returns the Job's own pod of that name, if there is one.
    fn create(&mut self, name: &str, body: &str) -> Option<PodView> {
        let known = self.world.pods.iter().find(|pod| pod.pod.name == name);
        if known.is_some() || self.strays.iter().any(|pod| pod.pod.name == name) {
            return known.cloned();
        }
        assert!(self.ever.insert(name.to_owned()), "{name} comes back");
        let body: Value = serde_json::from_str(body).unwrap();
        let annotation = |key: &str| -> Option<u32> {
            body["metadata"]["annotations"][key].as_str().map(|text| text.parse().unwrap())
        };
        self.world.add("p", annotation(COMPLETION_INDEX));
        self.made += 1;
        let made = self.made;
        let pod = self.world.pods.last_mut().unwrap();
        pod.pod.name = name.to_owned();
        pod.pod.uid = format!("made-{made}").into();
        pod.selected = labels(true);
        pod.earlier_failures = IndexFailures {
            counted: annotation(INDEX_FAILURE_COUNT).unwrap_or(0),
            ignored: annotation(INDEX_IGNORED_FAILURE_COUNT).unwrap_or(0),
        };
        let (pod, active) = (pod.clone(), self.active());
        match pod.index {
            Some(index) => {
                let here = active.iter().filter(|pod| pod.index == Some(index)).count();
                assert_eq!(here, 1, "two pods work at index {index}");
            }
            None => {
                let most = usize::try_from(self.most_wanted).unwrap();
                assert!(active.len() <= most, "{} pods work where {most} are wanted", active.len());
            }
        }
        Some(pod)
    }

    fn active(&self) -> Vec<&PodView> {
        // Released pods belong to no Job, and adopted pods count as surplus.
        let ours = self.world.pods.iter().filter(|pod| self.ever.contains(&pod.pod.name));
        ours.filter(|pod| !pod.phase.is_terminal() && pod.deletion.is_none()).collect()
    }

    fn nth(&self, nth: usize, is: impl Fn(&PodView) -> bool) -> Option<usize> {
        let fitting: Vec<usize> = (0..self.world.pods.len()).filter(|at| is(&self.world.pods[*at])).collect();
        (!fitting.is_empty()).then(|| fitting[nth % fitting.len()])
    }

    fn happen(&mut self, what: &Happening) {
        let open = |pod: &PodView| !pod.phase.is_terminal();
        match what {
            Happening::Look(requests) => self.look(requests),
            Happening::SeePods => self.see_pods(),
            Happening::SeeJob => self.see_job(),
            Happening::Crash => {
                self.memory = Memory::default();
                self.see_job();
                self.see_pods();
            }
            Happening::Arrives => {
                if let Some(Step::CreatePod { name, body, .. }) = self.under_way.pop()
                    // A request that arrives after its pod was created, counted and removed cannot be prevented.
                    && !self.ever.contains(&name)
                {
                    self.create(&name, &body);
                }
            }
            Happening::Succeed(nth) => {
                if let Some(at) = self.nth(*nth, open) {
                    let now = self.world.now;
                    let pod = &mut self.world.pods[at];
                    (pod.phase, pod.finished) = (PodPhase::Succeeded, Some(now));
                }
            }
            Happening::Fail(nth, code) => {
                if let Some(at) = self.nth(*nth, open) {
                    let now = self.world.now;
                    let pod = &mut self.world.pods[at];
                    (pod.phase, pod.finished) = (PodPhase::Failed, Some(now));
                    pod.exit_codes = vec![("main".into(), *code)];
                }
            }
            Happening::Delete(nth) => {
                let deletion = Deletion { timestamp: self.world.now, grace_seconds: 0 };
                if let Some(at) = self.nth(*nth, |_| true) {
                    self.world.pods[at].deletion.get_or_insert(deletion);
                }
            }
            Happening::Collect(nth) => {
                if let Some(at) = self.nth(*nth, |pod| !pod.is_tracked()) {
                    self.world.pods.remove(at);
                } else if !self.strays.is_empty() {
                    self.strays.remove(nth % self.strays.len());
                }
            }
            Happening::Relabel(nth) => {
                if let Some(at) = self.nth(*nth, |_| true).filter(|_| self.strays.is_empty()) {
                    self.world.pods[at].selected = labels(false);
                }
                self.strays.iter_mut().for_each(|pod| pod.selected = labels(true));
            }
            Happening::Suspend(suspend) if self.world.job.status.finished().is_none() => {
                self.world.job.spec.suspend = *suspend;
                self.touch();
            }
            Happening::Size(size) => {
                let spec = &mut self.world.job.spec;
                if spec.is_indexed() && spec.completions == spec.parallelism {
                    spec.completions = Some(*size);
                }
                spec.parallelism = Some(*size);
                self.most_wanted = self.most_wanted.max(*size);
                self.touch();
            }
            Happening::SwitchPolicy if self.world.job.spec.pod_failure_policy.is_none() => {
                use PodReplacementPolicy::{Failed, TerminatingOrFailed};
                let policy = &mut self.world.job.spec.pod_replacement_policy;
                *policy = Some(if *policy == Some(Failed) { TerminatingOrFailed } else { Failed });
                self.touch();
            }
            Happening::Wait(seconds) => {
                self.world.now = self.world.now.checked_add(SignedDuration::from_secs(*seconds)).unwrap();
            }
            Happening::Suspend(_) | Happening::SwitchPolicy => {}
        }
    }
}

prop_compose! {
    fn spec()(
        parallelism in 1i32..4,
        completions in 2i32..6,
        mode in 0u8..3,
        ignores in any::<bool>(),
        elastic in any::<bool>(),
    ) -> Value {
        let mut spec = json!({
            "parallelism": parallelism, "completions": completions, "backoffLimit": 1000,
            "selector": {"matchLabels": {"mine": "yes"}},
        });
        if mode > 0 {
            spec["completionMode"] = "Indexed".into();
            if elastic {
                spec["completions"] = parallelism.into();
            }
        }
        if mode > 1 {
            spec["backoffLimitPerIndex"] = 100.into();
        }
        if ignores {
            let codes = json!({"operator": "In", "values": [7]});
            spec["podFailurePolicy"] = json!({"rules": [{"action": "Ignore", "onExitCodes": codes}]});
        }
        spec
    }
}

proptest! {
    #![proptest_config(cases(1500))]

    /// The server asserts it at every pod that it makes.
    #[test]
    fn no_name_comes_back_and_no_pod_is_made_twice(spec in spec(), history in prop::collection::vec(happening(), 20..160)) {
        let mut cluster = Cluster::new(spec);
        cluster.world.policy.backoff_base = SignedDuration::from_secs(2);
        for what in &history {
            cluster.happen(what);
        }
    }

    #[test]
    fn a_name_tells_its_number(uid in "[a-f0-9-]{36}", index in prop::option::of(0u32..200_000), number in any::<u32>(), name in "[a-z]([-a-z0-9]{0,60}[a-z0-9])?") {
        let mode = if index.is_some() { "Indexed" } else { "NonIndexed" };
        let mut world = World::new(json!({"completionMode": mode}));
        let job = std::sync::Arc::make_mut(&mut world.job.job);
        (job.uid, job.name) = (uid.into(), name);
        let naming = Naming::of(&world.job);
        let name = Name { index, number };
        prop_assert_eq!(naming.read(&naming.text(name)), Some(name));
        let usual = naming.text(Name { index, number: number % 14_348_907 });
        prop_assert!(usual.len() <= 63);
    }
}

#[test]
fn no_two_of_a_hundred_thousand_pods_have_one_name() {
    let world = World::new(json!({}));
    let naming = Naming::of(&world.job);
    let names: BTreeSet<String> =
        (0..100_000).map(|number| naming.text(Name { index: None, number })).collect();
    assert_eq!(names.len(), 100_000);
}

#[test]
fn names_of_others_are_not_read() {
    let world = World::new(json!({"completionMode": "Indexed"}));
    let naming = Naming::of(&world.job);
    for text in [
        "",
        "j",
        "j-0",
        "j-0-bcdf",
        "j-0-bcdfa",
        "j-x-bcdfg",
        "k-0-bcdfg",
        "j-00-bcdfg",
        "j-+1-bcdfg",
        "j-0-ä",
    ] {
        assert_eq!(naming.read(text), None, "{text}");
    }
    assert!(naming.read("j-0-bcdfg").is_some());
}

fn written(world: &World) -> &str {
    world.job.used_names.as_deref().unwrap_or("")
}

#[test]
fn what_is_used_is_written_down_with_the_status_and_before_a_pod_is_let_go() {
    let mut world = World::new(json!({"parallelism": 2, "completions": 4, "completionMode": "Indexed"}));
    world.settle();
    assert_eq!(written(&world), r#"{"counts":{"1":"0,1"}}"#);
    assert_eq!(world.writes, ["CreatePod", "CreatePod", "PatchJobStatus"], "no write of its own");
    let zero = world.active_at(0);
    world.end(zero, PodPhase::Failed);
    world.later(20).later(2);
    assert_eq!(written(&world), r#"{"counts":{"1":"0,1","2":"0"}}"#);
    // A pod that was unknown when the status was last written.
    world.job.spec.parallelism = Some(3);
    let decision = world.judge();
    for action in decision.verdict.actions() {
        world.carry_out(action);
    }
    world.job.spec.suspend = true;
    world.writes.clear();
    world.settle();
    assert_eq!(world.writes[..2], ["PatchJobStatus", "RemoveFinalizer"], "{:?}", world.writes);
    assert_eq!(written(&world), r#"{"counts":{"1":"0-2","2":"0"}}"#);
    let names = world.names.clone();
    world.job.spec.suspend = false;
    world.settle();
    assert_eq!(world.names.len(), names.len() + 3);
}

#[test]
fn a_pod_that_is_gone_without_our_doing_does_not_bring_its_name_back() {
    let mut world = World::new(json!({"parallelism": 1, "completions": 4}));
    let decision = world.judge();
    for action in decision.verdict.actions() {
        world.carry_out(action);
    }
    world.pods.clear();
    world.settle();
    assert_eq!((world.names.len(), world.pods.len()), (2, 1), "by memory");
    world.later(2);
    world.pods.clear();
    world.memory = Memory::default();
    // Names that were read are remembered.
    world.memory.names.merge(&UsedNames::read(written(&world)).unwrap());
    world.settle();
    assert_eq!((world.names.len(), world.pods.len()), (3, 1), "by what was written down");
    world.job.used_names = None;
    world.pods.clear();
    world.settle();
    assert_eq!((world.names.len(), world.pods.len()), (4, 1), "somebody took that away");
    world.end(0, PodPhase::Failed);
    world.later(2);
    assert_eq!(written(&world), r#"{"numbers":"0-3"}"#);
}

/// If the annotation is removed while no process remembers the names, the failures in the status remain.
#[test]
fn without_anything_else_the_counters_tell_how_many_names_are_used() {
    for (mode, expected) in
        [("NonIndexed", r#"{"numbers":"0-5"}"#), ("Indexed", r#"{"counts":{"5":"0"},"all":4}"#)]
    {
        let mut world = World::new(json!({"parallelism": 1, "completions": 9, "completionMode": mode}));
        world.job.status =
            serde_json::from_value(json!({"startTime": "2027-01-15T08:00:00Z", "failed": 3, "succeeded": 1,
                "completedIndexes": "1", "uncountedTerminatedPods": {"failed": ["x"]}}))
            .unwrap();
        if mode == "NonIndexed" {
            world.job.status.completed_indexes = String::new();
        }
        world.settle().later(2);
        assert_eq!(written(&world), expected, "{mode}");
    }
}

/// A hole is a name that was requested and whose pod was never seen.
#[test]
fn a_name_whose_pod_was_not_seen_is_asked_for_again_first() {
    for mode in ["NonIndexed", "Indexed"] {
        let mut world = World::new(json!({"parallelism": 3, "completions": 9, "completionMode": mode}));
        let names = |world: &World| -> Vec<String> {
            let steps = world.judge().verdict.actions().to_vec().into_iter().flat_map(|a| a.steps().to_vec());
            steps
                .filter_map(|a| if let Step::CreatePod { name, .. } = a { Some(name) } else { None })
                .collect()
        };
        let asked = names(&world);
        let decision = world.judge();
        for step in decision.verdict.actions().iter().flat_map(Step::steps) {
            world.carry_out(step);
        }
        let unseen = world.pods.remove(0);
        assert_eq!(unseen.pod.name, asked[0]);
        // All others fail, are counted and are gone before another pod is requested.
        world.memory = Memory { creation_paused_until: Some(at(1000)), ..Memory::default() };
        for position in world.open() {
            world.end(position, PodPhase::Failed);
        }
        world.later(500).later(2);
        world.pods.clear();
        world.memory = Memory::default();
        assert_eq!(
            (world.counts().as_str(), &names(&world)[0]),
            ("A0 R0 S0 F2 T0", &asked[0]),
            "{mode}: {}",
            written(&world)
        );
    }
}

#[test]
fn a_record_that_grows_too_long_is_cut_and_skips_names_only() {
    let mut used = UsedNames::default();
    let mut text = String::from(r#"{"counts":{"1":"0-99999","7":""#);
    text.extend((0..9000).map(|n| format!("{},", n * 3)));
    text.pop();
    text.push_str(r#""}}"#);
    used.merge(&UsedNames::read(&text).unwrap());
    assert_eq!(used.text(), r#"{"all":7}"#);
    let mut numbers = String::from(r#"{"numbers":""#);
    numbers.extend((0..9000).map(|n| format!("{},", n * 2)));
    numbers.push_str(r#"20000"}"#);
    let mut used = UsedNames::default();
    used.merge(&UsedNames::read(&numbers).unwrap());
    assert_eq!(used.text(), r#"{"numbers":"0-20000"}"#);
}

#[test]
fn a_record_says_nothing_twice() {
    let mut used = UsedNames::read(r#"{"counts":{"1":"0-4","2":"0-4","3":"1","9":"7"}}"#).unwrap();
    used.merge(&UsedNames::read(r#"{"counts":{"3":"2"}}"#).unwrap());
    assert_eq!(used.text(), r#"{"counts":{"2":"0-4","3":"1,2","9":"7"}}"#);
    assert_eq!(UsedNames::read(&used.text()), Ok(used));
    for garbage in
        ["", "x", "[]", r#"{"numbers":"a"}"#, r#"{"counts":{"x":"1"}}"#, r#"{"more":1}"#, r#"{"all":-1}"#]
    {
        assert!(UsedNames::read(garbage).is_err(), "{garbage}");
    }
}
