//! Whole evictions in a model of a cluster, with the node returning and falling silent between any two writes.

use proptest::prelude::*;

use super::super::Step;
use super::*;
use crate::step::Step as _;

/// A node with its pods and volumes, the attach/detach controller, and a kubelet that is there or not.
struct Model {
    node: NodeView,
    pods: Vec<PodView>,
    attachments: Vec<AttachmentView>,
    policy: EvictionPolicy,
    now: i64,
    revision: u64,
    writes: usize,
    /// The writes before which the node returns, or falls silent again.
    turns: Vec<usize>,
    /// True if the machine never reboots: its network comes and goes.
    cut_off: bool,
    /// Writes while the node was alive that must not have happened.
    harm: Vec<String>,
}

impl Model {
    fn new(pods: Vec<PodView>, turns: Vec<usize>) -> Self {
        let claims = pods.iter().flat_map(|pod| pod.work.claims.clone());
        let volumes: Vec<String> = claims.map(|claim| claim.name).collect();
        Self {
            // One of the volumes belongs to no known pod.
            node: NodeView {
                volumes_in_use: volumes.iter().cloned().chain(["nobody's".into()]).collect(),
                ..node()
            },
            pods,
            attachments: volumes.iter().map(|volume| attachment(volume)).collect(),
            policy: policy(""),
            now: 0,
            revision: 10,
            writes: 0,
            turns,
            cut_off: false,
            harm: Vec::new(),
        }
    }

    fn is_alive(&self) -> bool {
        self.node.ready == Ready::True
    }

    fn turn(&mut self) {
        if self.is_alive() {
            self.node.ready = Ready::Unknown;
            self.node.lease = lease(-600);
        } else {
            self.node.ready = Ready::True;
            if !self.cut_off {
                self.node.boot_id = format!("boot-{}", self.revision).into();
            }
        }
        self.touch();
    }

    fn touch(&mut self) {
        self.revision += 1;
        self.node.resource_version = self.revision.to_string().into();
        if self.is_alive() {
            let lasts = SignedDuration::from_secs(40);
            self.node.lease =
                Lease::Renewed { written: at(self.now), heard: at(self.now), lasts, moves: true };
        }
    }

    fn verdicts(&self) -> Vec<Vec<Step>> {
        let scene = Scene {
            node: &self.node,
            pods: Some(self.pods.iter().collect()),
            attachments: Some(self.attachments.iter().collect()),
            zone: NodeCounts::default(),
        };
        let of_node = decide_node(&scene, &self.policy, at(self.now));
        let of_pods =
            self.pods.iter().map(|pod| decide_pod(pod, Some(&self.node), &self.policy, at(self.now)));
        let mut all = vec![of_node.verdict.actions().to_vec()];
        all.extend(of_pods.map(|decision| decision.verdict.actions().to_vec()));
        all
    }

    /// Carries out one verdict like the engine: each step after a second look, and only if its precondition still
    /// holds.
    fn carry_out(&mut self, actions: Vec<Step>) {
        for action in actions {
            if self.turns.contains(&self.writes) {
                self.turns.retain(|turn| *turn != self.writes);
                self.turn();
            }
            let again: Vec<Step> = self.verdicts().into_iter().flatten().collect();
            let still = again.iter().any(|other| other.is_same_step(&action));
            if action.needs_a_second_look() && !still {
                return;
            }
            self.writes += 1;
            if !self.write(action) {
                return;
            }
            self.react();
        }
    }

    /// True if the server accepted it.
    fn write(&mut self, action: Step) -> bool {
        let alive = self.is_alive();
        match &action {
            Step::StartEviction { resource_version, .. }
            | Step::ReportEviction { resource_version, .. }
            | Step::ReleaseVolumes { resource_version, .. }
            | Step::EndEviction { resource_version, .. }
                if *resource_version != self.node.resource_version =>
            {
                return false;
            }
            Step::PatchPodStatus { .. } | Step::ForceDeletePod { .. } | Step::ReleaseVolumes { .. }
                if alive =>
            {
                self.harm.push(action.to_string());
            }
            _ => {}
        }
        match action {
            Step::StartEviction { taint, progress, .. } => {
                self.node.taints.extend(taint);
                self.node.progress = Some(progress);
                self.touch();
            }
            Step::ReportEviction { condition, progress, .. } => {
                self.node.condition = Some(condition.reason.into());
                self.node.progress = progress.or(self.node.progress.take());
                self.touch();
            }
            Step::ReleaseVolumes { keep, attached, mut progress, .. } => {
                let kept: Vec<String> = keep.into_iter().map(|claim| claim.name).collect();
                let before = self.node.volumes_in_use.len();
                self.node.volumes_in_use.retain(|volume| {
                    let is_attached = attached.iter().any(|it| it.volume.as_ref() == Some(volume));
                    kept.contains(volume) || !is_attached
                });
                if let Some(released) = &mut progress.released {
                    released.volumes = kept;
                    released.kept_all &= self.node.volumes_in_use.len() == before;
                }
                self.node.progress = Some(progress);
                self.touch();
            }
            Step::EndEviction { progress, asked, .. } => {
                self.node.taints.retain(|taint| taint.key != KEY);
                self.node.progress = progress;
                self.node.asked = asked;
                self.touch();
            }
            Step::PatchPodStatus { pod, resource_version, phase, .. } => {
                let Some(found) = self.pods.iter_mut().find(|p| p.pod.uid == pod.uid) else { return false };
                if found.resource_version != resource_version {
                    return false;
                }
                found.phase = phase.unwrap_or(found.phase);
                found.resource_version = format!("{}+", found.resource_version).into();
            }
            Step::ForceDeletePod { pod, .. } => self.pods.retain(|p| p.pod.uid != pod.uid),
            Step::EvictPod { pod, resource_version } => {
                if self.pods.iter().any(|p| p.pod.uid == pod.uid && p.resource_version != resource_version) {
                    return false;
                }
                for found in self.pods.iter_mut().filter(|p| p.pod.uid == pod.uid) {
                    found.deletion = Some(Deletion { timestamp: at(self.now), grace_seconds: Some(30) });
                }
            }
            Step::EmitEvent(note) => {
                self.node.told.insert(note.name.clone());
                for pod in self.pods.iter_mut().filter(|p| note.name.ends_with(p.pod.uid.as_str())) {
                    pod.announced = true;
                }
            }
        }
        true
    }

    /// The actions of others: unused volumes are detached, and a live kubelet ends deleted pods.
    fn react(&mut self) {
        let used: Vec<String> = self
            .pods
            .iter()
            .filter(|pod| !pod.phase.is_terminal())
            .flat_map(|pod| pod.work.claims.iter().map(|claim| claim.name.clone()))
            .collect();
        let in_use = &self.node.volumes_in_use;
        self.attachments
            .retain(|a| a.volume.as_ref().is_some_and(|v| in_use.contains(v) || used.contains(v)));
        if self.is_alive() {
            self.pods.retain(|pod| pod.deletion.is_none());
        }
    }

    /// Continues until no decision requests anything, however much time that takes.
    fn run(&mut self) {
        let mut idle = 0;
        for _ in 0..500 {
            match self.verdicts().into_iter().find(|actions| !actions.is_empty()) {
                Some(actions) => {
                    self.carry_out(actions);
                    idle = 0;
                }
                None if idle == 100 => return,
                None => idle += 1,
            }
            self.now += 1;
            self.touch();
            self.react();
        }
        panic!("no end: {:?}", self.verdicts());
    }

    fn is_clean(&self) -> bool {
        self.node.taints.is_empty() && self.node.progress.is_none()
    }
}

fn pods(count: usize) -> Vec<PodView> {
    let named = |i: usize| PodRef {
        namespace: "ns".into(),
        name: format!("pod-{i}"),
        uid: format!("uid-{i}").into(),
    };
    let mut pods: Vec<PodView> = (0..count)
        .map(|i| PodView { pod: named(i), work: claiming(vec![claim(&format!("volume-{i}"))]), ..pod() })
        .collect();
    // One pod stays, and one goes later; both keep their volumes meanwhile.
    pods.push(PodView {
        pod: named(90),
        tolerations: vec![toleration(None)],
        work: claiming(vec![claim("kept")]),
        ..pod()
    });
    pods.push(PodView {
        pod: named(91),
        tolerations: vec![toleration(Some(20))],
        work: claiming(vec![claim("later")]),
        ..pod()
    });
    pods
}

#[test]
fn a_node_that_stays_down_is_emptied_and_one_that_returns_afterwards_is_clean() {
    let mut model = Model::new(pods(3), vec![]);
    model.run();
    assert_eq!(model.pods.len(), 1, "the one that tolerates it");
    assert_eq!(model.attachments.len(), 1);
    assert_eq!(model.node.volumes_in_use, ["kept", "nobody's"]);
    assert!(model.node.progress.as_ref().unwrap().finished.is_some());
    assert_eq!(model.node.condition.as_deref(), Some("Finished"));
    model.turn();
    model.run();
    assert!(model.is_clean(), "{:?}", model.node);
    assert_eq!(model.harm, Vec::<String>::new());
}

#[test]
fn a_machine_that_was_only_cut_off_keeps_the_taint_once_its_volumes_were_released() {
    let undisturbed = {
        let mut model = Model::new(pods(3), vec![]);
        model.run();
        model.writes
    };
    let mut kept = 0;
    for write in 0..=undisturbed {
        let mut model = Model { cut_off: true, ..Model::new(pods(3), vec![write]) };
        model.run();
        model.turns.clear();
        if !model.is_alive() {
            model.turn();
            model.run();
        }
        assert_eq!(model.harm, Vec::<String>::new(), "returned before write {write}");
        let released =
            model.node.volumes_in_use.len() < Model::new(pods(3), vec![]).node.volumes_in_use.len();
        assert_eq!(model.is_clean(), !released, "returned before write {write}: {:?}", model.node);
        if released {
            kept += 1;
            assert_eq!(model.node.condition.as_deref(), Some("NotRebooted"), "returned before write {write}");
            // It waits for the reboot.
            model.cut_off = false;
            model.turn();
            model.turn();
            model.run();
            assert!(model.is_clean(), "returned before write {write}: {:?}", model.node);
        }
    }
    assert!(kept > 1, "some returned before the end, and one after it");
}

#[test]
fn a_return_between_any_two_writes_leaves_nothing_behind() {
    let mut undisturbed = Model::new(pods(3), vec![]);
    undisturbed.run();
    assert!(undisturbed.writes > 15, "{}", undisturbed.writes);
    for write in 0..undisturbed.writes {
        let mut model = Model::new(pods(3), vec![write]);
        model.run();
        assert!(model.is_alive() && model.is_clean(), "returned before write {write}: {:?}", model.node);
        assert_eq!(model.harm, Vec::<String>::new(), "returned before write {write}");
        assert!(model.pods.iter().any(|pod| pod.pod.uid == "uid-90"), "what tolerates it is never touched");
        for pod in model.pods.iter().filter(|pod| !pod.phase.is_terminal()) {
            let volume = &pod.work.claims[0].name;
            assert!(
                model.attachments.iter().any(|a| a.volume.as_ref() == Some(volume)),
                "{write}: {volume} is gone"
            );
        }
    }
}

proptest! {
    #![proptest_config(crate::fuzz::cases(256))]

    #[test]
    fn a_node_that_comes_and_goes_is_never_harmed_while_it_is_there(
        count in 0usize..5,
        turns in proptest::collection::vec(0usize..40, 0..5),
    ) {
        let mut model = Model::new(pods(count), turns);
        model.run();
        model.turns.clear();
        if !model.is_alive() {
            model.turn();
            model.run();
        }
        prop_assert!(model.is_clean(), "{:?}", model.node);
        prop_assert_eq!(&model.harm, &Vec::<String>::new());
        prop_assert!(model.node.condition.as_deref().is_none_or(|c| ["Finished", "NodeReturned"].contains(&c)));
    }
}
