//! A cluster with one AppWrapper. Steps change it as the API server and the workload controllers would.

use super::*;
use crate::ids::Uid;

/// One AppWrapper, its objects, and the time.
#[derive(Clone)]
pub(super) struct Cluster {
    pub(super) view: AppWrapperView,
    pub(super) policy: AppWrapperPolicy,
    pub(super) now: Timestamp,
    /// True if the AppWrapper is gone.
    pub(super) gone: bool,
    /// A finalizer keeps objects that are deleted.
    pub(super) stuck_objects: bool,
    /// Pods stay Terminating when their owner is gone, until they are deleted by force.
    pub(super) stuck_pods: bool,
    /// The API server's error for creations: true if it is fatal.
    pub(super) create_error: Option<bool>,
    /// All phases that it went through, and all events.
    pub(super) phases: Vec<Phase>,
    pub(super) events: Vec<String>,
    /// The number of all writes.
    pub(super) writes: usize,
    /// Every step that deleted or created something.
    pub(super) deeds: Vec<String>,
    /// Names of the events that the API server has.
    recorded: BTreeSet<String>,
    serial: usize,
}

impl Cluster {
    /// An AppWrapper with these kinds and numbers of pods, created at time 0 and suspended.
    pub(super) fn of(components: &[(ComponentKind, i32)]) -> Self {
        let component = |(index, (kind, pods)): (usize, &(ComponentKind, i32))| ComponentView {
            kind: kind.clone(),
            name: format!("c{index}"),
            pod_sets: vec![PodSet { path: "template".into(), replicas: Some(*pods), ..PodSet::default() }],
            seen: Seen::Absent { last: None },
        };
        let view = AppWrapperView {
            appwrapper: AppWrapperRef { uid: "aw-uid".into(), namespace: "ns".into(), name: "aw".into() },
            resource_version: "1".into(),
            created: at(0),
            deleting: false,
            has_finalizer: false,
            other_finalizers: Vec::new(),
            suspend: true,
            managed_by: None,
            annotations: Annotations::default(),
            refused: None,
            authorship: Authorship::Fine,
            admitted: Comparison::Same,
            components: components.iter().enumerate().map(component).collect(),
            strays: Vec::new(),
            pods: Vec::new(),
            pods_known: true,
            nodes: BTreeMap::from([("n1".into(), NodeView::default())]),
            nodes_known: true,
            status: AppWrapperStatus::default(),
            memory: Memory::default(),
        };
        Self {
            view,
            policy: AppWrapperPolicy::default(),
            now: at(0),
            gone: false,
            stuck_objects: false,
            stuck_pods: false,
            create_error: None,
            phases: Vec::new(),
            events: Vec::new(),
            writes: 0,
            deeds: Vec::new(),
            recorded: BTreeSet::new(),
            serial: 0,
        }
    }

    /// One Job with two pods.
    pub(super) fn job() -> Self {
        Self::of(&[(job(), 2)])
    }

    pub(super) fn two_pods() -> Self {
        Self::of(&[(bare_pod(), 1), (bare_pod(), 1)])
    }

    pub(super) fn annotate(mut self, pairs: &[(&str, &str)]) -> Self {
        self.view.annotations = annotated(pairs);
        self
    }

    /// All its pods run.
    pub(super) fn running(mut self) -> Self {
        self.view.suspend = false;
        self.settle();
        self.after(1);
        self.set_pods(PodPhase::Running);
        self.settle();
        assert_eq!(self.phase(), Phase::Running);
        assert!(self.holds("PodsReady"));
        self
    }

    pub(super) fn judge(&self) -> Decision<AppWrapperWhy, Step> {
        decide(&self.view, &self.policy, self.now)
    }

    /// Decides and acts until there is nothing to do now. Returns the last decision.
    pub(super) fn settle(&mut self) -> Decision<AppWrapperWhy, Step> {
        for _ in 0..200 {
            let decision = self.judge();
            if self.gone || decision.verdict.actions().is_empty() {
                return decision;
            }
            self.carry_out(&decision, usize::MAX);
        }
        panic!("it never comes to rest: {:?}", self.judge().verdict);
    }

    /// Carries out the first steps of a decision, as if the process ended after them.
    pub(super) fn carry_out(&mut self, decision: &Decision<AppWrapperWhy, Step>, steps: usize) {
        for step in decision.verdict.actions().iter().take(steps) {
            if !self.apply(step) {
                break;
            }
        }
    }

    /// Lets time pass in one go.
    pub(super) fn after(&mut self, seconds: i64) -> &mut Self {
        self.now = crate::moments::after(self.now, secs(seconds));
        self
    }

    /// Lets time pass, and acts whenever a wait is over.
    pub(super) fn run_for(&mut self, seconds: i64) -> Decision<AppWrapperWhy, Step> {
        let end = crate::moments::after(self.now, secs(seconds));
        loop {
            let last = self.settle();
            match last.verdict.wake_at() {
                Some(until) if until <= end && !self.gone => self.now = until.max(self.now),
                _ => {
                    self.now = end;
                    return last;
                }
            }
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.view.status.phase.clone()
    }

    pub(super) fn condition(&self, kind: &str) -> (&str, &str, &str) {
        let it = self.view.status.condition(kind);
        it.map_or(("", "", ""), |it| (&it.status, &it.reason, &it.message))
    }

    pub(super) fn holds(&self, kind: &str) -> bool {
        self.view.status.holds(kind)
    }

    pub(super) fn code(&self) -> &'static str {
        self.judge().verdict.why().code()
    }

    pub(super) fn set_pods(&mut self, phase: PodPhase) {
        for index in 0..self.view.pods.len() {
            self.set_pod(index, phase);
        }
    }

    /// Sets the phase of one pod, and of its bare Pod component.
    pub(super) fn set_pod(&mut self, index: usize, phase: PodPhase) {
        let pod = &mut self.view.pods[index];
        pod.phase = phase;
        if phase == PodPhase::Failed && pod.exit_codes.is_empty() {
            pod.exit_codes = vec![1];
        }
        let uid = pod.pod.uid.clone();
        for component in &mut self.view.components {
            if let Seen::Found(found) = &mut component.seen
                && found.object.uid == uid
                && phase == PodPhase::Succeeded
            {
                found.state = ComponentState::Succeeded;
            }
        }
    }

    pub(super) fn found(&mut self, index: usize) -> &mut FoundComponent {
        match &mut self.view.components[index].seen {
            Seen::Found(found) => found,
            other => panic!("component {index} is {other:?}"),
        }
    }

    /// Sets the state that a component reports.
    pub(super) fn says(&mut self, index: usize, state: ComponentState) {
        self.found(index).state = state;
    }

    /// A component and its pods are gone, and the watch delivered the end.
    pub(super) fn lose(&mut self, index: usize) {
        self.lose_with(index, End::Told);
    }

    /// A component and its pods are gone. `end` says how that became known.
    pub(super) fn lose_with(&mut self, index: usize, end: End) {
        let object = Box::new(self.found(index).clone());
        let uid = object.object.uid.clone();
        self.view.components[index].seen = Seen::Absent { last: Some(Last { object, end }) };
        self.view.pods.retain(|pod| pod.pod.uid != uid && pod.component != Some(index));
    }

    pub(super) fn add_pod(&mut self, component: usize, phase: PodPhase) -> usize {
        self.serial += 1;
        let uid = format!("pod-{}", self.serial);
        self.view.pods.push(pod(&uid, component, phase, self.now));
        self.view.pods.len() - 1
    }

    fn bump(&mut self) {
        let next = self.view.resource_version.revision().number() + 1;
        self.view.resource_version = next.to_string().into();
    }

    /// Carries out one step as the API server would. False if it is refused.
    pub(super) fn apply(&mut self, step: &Step) -> bool {
        if let Step::AtOnce { steps } = step {
            // None of them waits for another.
            let done: Vec<bool> = steps.iter().map(|step| self.apply(step)).collect();
            return done.into_iter().all(|done| done);
        }
        self.writes += 1;
        self.check(step);
        match step {
            Step::AtOnce { .. } => {}
            Step::PatchStatus { appwrapper, resource_version, status, .. } => {
                if *resource_version != self.view.resource_version || *appwrapper != self.view.appwrapper {
                    return false;
                }
                // The status survives the round trip through JSON.
                let wire = serde_json::to_value(status).unwrap();
                self.view.status = serde_json::from_value(wire).unwrap();
                assert_eq!(self.view.status, **status);
                if let (Some(_), Comparison::New(_)) = (&status.admitted, &self.view.admitted) {
                    self.view.admitted = Comparison::Same;
                }
                if self.phases.last() != Some(&status.phase) {
                    self.phases.push(status.phase.clone());
                }
                self.bump();
            }
            Step::AddFinalizer { resource_version, .. } => {
                if *resource_version != self.view.resource_version {
                    return false;
                }
                self.view.has_finalizer = true;
                self.bump();
            }
            Step::RemoveFinalizer { .. } => self.gone = self.view.deleting,
            Step::CreateComponent { index, object, .. } => return self.create(*index, &object.name),
            Step::DeleteComponent { object, manner, .. } => self.delete(&object.uid, *manner),
            Step::DeletePod { pod, manner: manner @ (Manner::Graceful | Manner::Briefly), .. } => {
                self.deeds.push(format!("delete pod {}", pod.name));
                let grace = if *manner == Manner::Briefly { 1 } else { 30 };
                let soft = Deletion {
                    timestamp: crate::moments::after(self.now, secs(grace)),
                    grace_seconds: Some(grace),
                };
                let goes = |it: &PodView| it.goes_at_once() && *manner == Manner::Graceful;
                self.view.pods.retain(|it| it.pod.uid != pod.uid || !goes(it));
                let of = self.view.pods.iter_mut().filter(|it| it.pod.uid == pod.uid);
                of.for_each(|it| it.deletion = Some(soft));
            }
            Step::DeletePod { pod, manner: Manner::Forceful | Manner::Afterwards, .. } => {
                self.deeds.push(format!("force delete pod {}", pod.name));
                let hard = Deletion { timestamp: self.now, grace_seconds: Some(0) };
                let mut is_held = false;
                for component in &mut self.view.components {
                    match &mut component.seen {
                        Seen::Found(found) if found.object.uid == pod.uid && self.stuck_objects => {
                            found.deletion = Some(hard);
                            is_held = true;
                        }
                        Seen::Found(found) if found.object.uid == pod.uid => {
                            component.seen = Seen::Absent { last: None };
                        }
                        Seen::Found(_) | Seen::Absent { .. } | Seen::NoSuchKind | Seen::Unknown(_) => {}
                    }
                }
                self.view.pods.retain(|it| it.pod.uid != pod.uid || is_held);
                let held = self.view.pods.iter_mut().filter(|it| it.pod.uid == pod.uid);
                held.for_each(|it| it.deletion = Some(hard));
            }
            Step::FailPod { pod, conditions, .. } => {
                self.deeds.push(format!("fail pod {}", pod.name));
                for it in self.view.pods.iter_mut().filter(|it| it.pod.uid == pod.uid) {
                    it.phase = PodPhase::Failed;
                    it.disruption = it.disruption.take().or(conditions.first().map(|it| it.reason.into()));
                }
            }
            Step::RecordEvent(note) => {
                self.view.memory.told.insert(note.name.clone());
                if self.recorded.insert(note.name.clone()) {
                    self.events.push(format!("{}: {}", note.reason, note.message));
                }
            }
        }
        true
    }

    /// Invariants of every write in every test.
    fn check(&self, step: &Step) {
        let view = &self.view;
        let pods = || view.pods.iter().filter(|pod| pod.created >= view.created);
        let objects = super::super::deletion::own_objects(view).count();
        match step {
            Step::PatchStatus { status: next, stakes, .. } => {
                let falls = |kind| view.status.holds(kind) && !next.holds(kind);
                if falls("ResourcesDeployed") {
                    assert_eq!(
                        (pods().count(), objects),
                        (0, 0),
                        "resources are called gone while some are left"
                    );
                    assert_eq!(*stakes, Stakes::Final);
                }
                if falls("QuotaReserved") {
                    assert_eq!(
                        pods().filter(|pod| pod.is_active()).count(),
                        0,
                        "quota is released while pods run"
                    );
                    assert!(next.phase == Phase::Succeeded || (pods().count(), objects) == (0, 0));
                    assert_eq!(*stakes, Stakes::Final);
                }
                let limit = Timers::of(&view.annotations, &self.policy).retry_limit.max(0);
                let (before, after) = (view.status.resetting_count, next.resetting_count);
                assert!(
                    after == before || after == before + 1 && after <= limit,
                    "{before} to {after} of {limit}"
                );
                assert!(next.resets.len() <= resets::HISTORY);
                let starts = view.status.phase != Phase::Running;
                if starts && next.holds("ResourcesDeployed") && !view.status.holds("ResourcesDeployed") {
                    assert!(view.has_finalizer && !view.deleting && !view.suspend);
                    assert_eq!(objects, 0, "it starts anew while something is left");
                }
            }
            Step::CreateComponent { index, .. } => {
                assert_eq!(view.status.phase, Phase::Resuming);
                assert!(
                    view.has_finalizer
                        && !view.suspend
                        && !view.deleting
                        && view.status.holds("QuotaReserved")
                );
                assert!(view.own_component(*index).is_none(), "it is created twice");
                let changed = matches!(view.admitted, Comparison::Changed(_));
                assert!(!changed, "what was not admitted is created");
            }
            Step::DeleteComponent { object, manner, .. } => {
                let index = (0..view.components.len())
                    .find(|index| view.own_component(*index).is_some_and(|it| it.object.uid == object.uid));
                let is_freed = |pod: &&PodView| {
                    let node = pod.node_name.as_ref().and_then(|name| view.nodes.get(name));
                    (pod.component == index || pod.pod.uid == object.uid)
                        && pod.goes_at_once()
                        && *manner != Manner::Briefly
                        && pod.work.consent.is_none()
                        && node.is_some_and(|it| it.is_silent(self.now) && it.machine == Machine::MayRun)
                        && self.policy.eviction.gate().at_most_one(&pod.work).is_some()
                };
                assert!(!pods().any(|pod| is_freed(&pod)), "{step}: a pod may run twice");
                let foreign = view.components.iter().any(|it| match &it.seen {
                    Seen::Found(found) => found.object.uid == object.uid && !view.owns(found),
                    Seen::Absent { .. } | Seen::NoSuchKind | Seen::Unknown(_) => false,
                });
                assert!(!foreign, "somebody else's {object} is deleted");
                let stray = view.strays.iter().any(|it| it.object.uid == object.uid);
                let done = view.components.iter().zip(&view.status.component_status).any(|(it, status)| {
                    matches!(&it.seen, Seen::Found(found) if found.object.uid == object.uid)
                        && status.has_succeeded()
                });
                let may = match view.status.phase {
                    Phase::Running => {
                        stray || view.deleting || done && view.status.holds("DeletingResources")
                    }
                    Phase::Resuming => stray || view.deleting,
                    Phase::Empty | Phase::Suspended => {
                        !view.status.holds("ResourcesDeployed") || view.deleting
                    }
                    Phase::Resetting
                    | Phase::Suspending
                    | Phase::Succeeded
                    | Phase::Failed
                    | Phase::Terminating => true,
                    Phase::Unknown(_) => false,
                };
                assert!(may, "{step} in {}", view.status.phase);
            }
            Step::DeletePod { pod, .. } | Step::FailPod { pod, .. } => {
                let deleting = view.status.condition("DeletingResources").filter(|it| it.is_true()).unwrap();
                let grace = Timers::of(&view.annotations, &self.policy).forceful_deletion_grace;
                let Some(target) = view.pods.iter().find(|it| it.pod == *pod) else { return };
                let node = target.node_name.as_ref().and_then(|name| view.nodes.get(name));
                let lost = node.and_then(NodeView::silent_since).unwrap_or(deleting.last_transition_time);
                let since = lost.min(deleting.last_transition_time);
                assert!(self.now >= crate::moments::after(since, grace));
                assert!(target.created >= view.created);
                let must_not_run_twice = self.policy.eviction.gate().at_most_one(&target.work).is_some();
                let may_run = target.phase != PodPhase::Failed
                    && target.phase != PodPhase::Succeeded
                    && target.node_name.is_some()
                    && !target.terminated
                    && target.work.consent.is_none()
                    && node.is_none_or(|node| node.machine == Machine::MayRun);
                let is_force = match step {
                    Step::DeletePod { manner: Manner::Graceful, .. } => target.goes_at_once(),
                    Step::DeletePod { manner: Manner::Briefly, .. } => false,
                    _ => true,
                };
                assert!(!(is_force && may_run && must_not_run_twice), "{step}: it may run twice");
            }
            Step::RemoveFinalizer { .. } => {
                assert!(view.deleting && objects == 0);
                assert!(!view.status.holds("QuotaReserved") && !view.status.holds("ResourcesDeployed"));
            }
            Step::AddFinalizer { .. } => assert!(!view.deleting),
            Step::AtOnce { .. } => {}
            Step::RecordEvent(note) => assert!(note.message.len() <= 4096 && !note.name.contains(' ')),
        }
    }

    fn create(&mut self, index: usize, name: &str) -> bool {
        if let Some(fatal) = self.create_error {
            let before = self.view.memory.creation.get(&index).map_or(0, |it| it.attempts);
            let failure = CreateFailure {
                message: "refused".into(),
                fatal,
                unanswered: false,
                at: self.now,
                attempts: before + 1,
            };
            self.view.memory.creation.insert(index, failure);
            return false;
        }
        self.view.memory.creation.remove(&index);
        self.deeds.push(format!("create {name}"));
        self.serial += 1;
        let uid = format!("object-{}", self.serial);
        let component = &self.view.components[index];
        let is_pod = component.kind == bare_pod();
        let (kind, pods) = (component.kind.clone(), component.pod_sets.iter().map(PodSet::expected).sum());
        let state =
            if [job(), bare_pod()].contains(&kind) { ComponentState::Active } else { ComponentState::Silent };
        let mut made = object(&uid, kind, name, self.now, state);
        made.node_name = is_pod.then(|| "n1".into());
        self.view.components[index].seen = Seen::Found(Box::new(made));
        if is_pod {
            self.view.pods.push(pod(&uid, index, PodPhase::Pending, self.now));
        } else {
            for _ in 0..pods {
                self.add_pod(index, PodPhase::Pending);
            }
        }
        true
    }

    fn delete(&mut self, uid: &Uid, manner: Manner) {
        self.deeds.push(format!("{manner:?} delete {uid}"));
        let deletion = Deletion { timestamp: self.now, grace_seconds: Some(0) };
        let soft = Deletion { timestamp: self.now, grace_seconds: Some(30) };
        self.view.strays.retain(|it| it.object.uid != *uid);
        for (index, component) in self.view.components.iter_mut().enumerate() {
            let Seen::Found(found) = &mut component.seen else { continue };
            if found.object.uid != *uid {
                continue;
            }
            let is_pod = component.kind == bare_pod();
            let goes_at_once = |it: &PodView| manner == Manner::Graceful && it.goes_at_once();
            let is_asked = match manner {
                Manner::Graceful | Manner::Briefly => {
                    !self.view.pods.iter().any(|it| it.pod.uid == *uid && goes_at_once(it))
                }
                Manner::Forceful | Manner::Afterwards => false,
            };
            let stays = self.stuck_objects || (is_pod && self.stuck_pods && is_asked);
            let found_deletion = Some(if is_pod && is_asked { soft } else { deletion });
            if stays {
                found.deletion = found_deletion;
            } else {
                component.seen = Seen::Absent { last: None };
            }
            let (stuck, of) = (self.stuck_pods, Some(index));
            if stays && is_pod {
                let itself = self.view.pods.iter_mut().filter(|it| it.pod.uid == *uid);
                itself.for_each(|it| it.deletion = found_deletion);
            } else if stuck && !is_pod {
                self.view.pods.retain(|it| it.component != of || !goes_at_once(it));
                self.view.pods.iter_mut().filter(|it| it.component == of).for_each(|it| {
                    it.deletion = Some(soft);
                });
            } else if !stays || !is_pod {
                self.view.pods.retain(|it| it.component != of && it.pod.uid != *uid);
            }
        }
    }
}

/// Work that may run twice.
pub(super) fn work() -> Work {
    Work {
        owners: Vec::new(),
        in_leader_worker_set: false,
        claims: Vec::new(),
        job: None,
        copies: Copies::Allowed,
        consent: None,
    }
}

/// A pod of a component, on node `n1`.
pub(super) fn pod(uid: &str, component: usize, phase: PodPhase, created: Timestamp) -> PodView {
    PodView {
        pod: PodRef { uid: uid.into(), namespace: "ns".into(), name: uid.into() },
        resource_version: "5".into(),
        created,
        phase,
        deletion: None,
        finalizers: Vec::new(),
        node_name: Some("n1".into()),
        component: Some(component),
        ended: None,
        exit_codes: Vec::new(),
        resources: BTreeSet::from(["nvidia.com/gpu".into()]),
        unschedulable: false,
        disruption: None,
        terminated: false,
        without_grace: false,
        work: work(),
    }
}

pub(super) fn object(
    uid: &str,
    kind: ComponentKind,
    name: &str,
    created: Timestamp,
    state: ComponentState,
) -> FoundComponent {
    FoundComponent {
        object: ObjectRef { uid: uid.into(), kind, namespace: "ns".into(), name: name.into() },
        resource_version: "5".into(),
        created,
        owner_uid: Some("aw-uid".into()),
        deletion: None,
        finalizers: Vec::new(),
        state,
        waves: None,
        disruption: None,
        node_name: None,
        without_grace: false,
    }
}
