//! The rules as tables: the cases of Karpenter's own tests, cases that Karpenter lacks, and the limits.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use salvor_api::{Labels, config::Configuration};
use serde_json::{Value, json};

use super::*;
use crate::brake::Held;
use crate::gate::{Copies, GatePolicy, Owner, Work};
use crate::ids::{NodeName, Uid};
use crate::liveness::Lease;
use crate::objects::{NodeRef, ObjectRef, PodPhase, PodRef};
use crate::verdict::{Decision, Reason, Verdict};

mod limits;
mod nodes;
mod outages;
mod pods;
mod policies;
mod properties;
mod relapses;

/// The zero point of `at`. Most tests act half an hour later or more.
const START: i64 = 1_800_000_000;

fn at(minutes: i64) -> Timestamp {
    Timestamp::from_second(START + minutes * 60).unwrap()
}

fn seconds(seconds: i64) -> Timestamp {
    Timestamp::from_second(START + seconds).unwrap()
}

fn settings() -> Settings {
    Settings::new(&Configuration::default())
}

fn head(name: &str, created: Timestamp) -> Head {
    Head {
        object: ObjectRef {
            uid: format!("uid-{name}").into(),
            kind: NODE_REPAIR_POLICY.clone(),
            namespace: None,
            name: name.to_owned(),
        },
        resource_version: "7".into(),
        generation: 1,
        created,
        status: PolicyStatus::default(),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "calls read better")]
fn policy_of(spec: Value) -> Policy {
    let mut whole = json!({"nodeSelector": {"matchLabels": {"pool": "a"}}});
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    Policy::read(head("gpu", at(-1000)), &whole)
}

/// A policy with wide limits that tolerates Karpenter's test condition for 30 minutes.
fn policy() -> Policy {
    let policy = policy_of(json!({
        "policies": [{"conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m"}],
        "unhealthyLimit": "100%", "budgets": [{"nodes": "100%"}],
    }));
    assert!(policy.defects.is_empty(), "{:?}", policy.defects);
    policy
}

fn labels(all: &[(&str, &str)]) -> NodeLabels {
    let all: Labels = all.iter().copied().collect();
    NodeLabels::new(&all, &NodeName::default(), Arc::new)
}

fn condition(kind: &str, status: Status, since: Timestamp) -> ConditionView {
    ConditionView::new(Words { kind: kind.into(), status, reason: "Because".into() }, Some(since))
}

/// A node that has been Ready for long.
fn node(name: &str) -> NodeView {
    NodeView {
        node: NodeRef { name: name.into(), uid: format!("uid-{name}").into() },
        resource_version: "1".into(),
        created: Some(at(-1000)),
        zone: "".into(),
        labels: labels(&[
            ("pool", "a"),
            ("karpenter.sh/nodepool", "a"),
            ("karpenter.sh/initialized", "true"),
        ]),
        provider_id: format!("fake://{name}").into(),
        conditions: vec![condition("Ready", Status::True, at(-999))],
        progress: None,
        marks: None,
        boot_id: "boot-1".into(),
        system_uuid: format!("machine-{name}").into(),
        unschedulable: false,
        other_actor: None,
    }
}

fn marks(node: &mut NodeView) -> &mut NodeMarks {
    node.marks.get_or_insert_default()
}

/// A node with the test condition, which began at minute `since`.
fn sick(name: &str, since: i64) -> NodeView {
    let mut node = node(name);
    node.conditions.push(condition("BadNode", Status::False, at(since)));
    node
}

/// This many pods that a drain has left.
fn left(pods: usize) -> Option<Left> {
    Some(Left { pods: (0..pods).map(|number| pod_of(number, twice())).collect() })
}

/// Work that may run twice.
fn twice() -> Work {
    let (owners, claims) = (Vec::new(), Vec::new());
    Work { owners, in_leader_worker_set: false, claims, job: None, copies: Copies::Allowed, consent: None }
}

fn pod_of(number: usize, work: Work) -> PodView {
    let name = format!("db-{number}");
    PodView {
        pod: PodRef { uid: format!("uid-{number}").into(), namespace: "default".into(), name },
        resource_version: "5".into(),
        phase: PodPhase::Running,
        deletion: None,
        stays: None,
        work,
        without_grace: false,
    }
}

fn claim(node: &NodeView) -> OwnerView {
    OwnerView {
        object: ObjectRef {
            uid: format!("claim-{}", node.node.name).into(),
            kind: NODE_CLAIM.clone(),
            namespace: None,
            name: node.node.name.to_string(),
        },
        resource_version: "3".into(),
        deleting: None,
        pool: "a".into(),
        termination: None,
        termination_before: None,
        remediated: false,
        veto: None,
        do_not_repair: None,
        karpenter_do_not_repair: None,
        initialized: Some(true),
    }
}

/// Nodes under one policy, with the rest of the cluster that they depend on.
struct World {
    policy: Policy,
    settings: Settings,
    nodes: Vec<(NodeView, Backend)>,
    launches: BTreeMap<String, LaunchTrouble>,
    idle: BTreeMap<Uid, Timestamp>,
    gone: bool,
    pods: BTreeMap<NodeName, u32>,
    pool: Option<PoolView>,
    /// Nodes that exist and are no longer selected.
    left_alone: Vec<Uid>,
    /// The pods that a drain waits for.
    left: Option<Left>,
    /// What the Leases of all nodes show.
    lease: Lease,
    /// The brake's last decision.
    braked: Option<Held>,
}

impl World {
    fn new(policy: Policy, nodes: impl IntoIterator<Item = NodeView>) -> Self {
        let nodes = nodes.into_iter().map(|node| {
            let backend = Backend::Claim(claim(&node));
            (node, backend)
        });
        Self {
            policy,
            settings: settings(),
            nodes: nodes.collect(),
            launches: BTreeMap::new(),
            idle: BTreeMap::new(),
            gone: false,
            pods: BTreeMap::new(),
            pool: None,
            left_alone: Vec::new(),
            left: None,
            lease: Lease::None,
            braked: None,
        }
    }

    fn owner(&mut self, index: usize) -> &mut OwnerView {
        match &mut self.nodes[index].1 {
            Backend::Claim(owner) | Backend::Machine(owner) => owner,
            Backend::Node | Backend::Missing(_) => panic!("no owner"),
        }
    }

    fn member(&self, index: usize) -> Member<'_> {
        let (node, backend) = &self.nodes[index];
        let pods = self.pods.get(&node.node.name).copied();
        let (left, lease) = (self.left.clone(), self.lease);
        Member { node, backend: backend.clone(), refused: None, pods, pool: self.pool.as_ref(), left, lease }
    }

    fn survey(&self, now: Timestamp) -> Survey {
        let there: Vec<&Uid> = self.nodes.iter().map(|(node, _)| &node.node.uid).collect();
        let scope = Scope {
            policy: &self.policy,
            launches: &self.launches,
            is_gone: &|repair| {
                self.gone || !there.contains(&&repair.uid) && !self.left_alone.contains(&repair.uid)
            },
            owner_deleting: &|_| None,
            is_left_alone: &|repair| self.left_alone.contains(&repair.uid),
            idle: &self.idle,
            settings: &self.settings,
        };
        survey(&scope, (0..self.nodes.len()).map(|index| self.member(index)), now)
    }

    /// Writes the current memory to each node.
    fn remember(&mut self, now: Timestamp) {
        for (node, backend) in &mut self.nodes {
            let memory = diagnose(node, backend.owner(), &self.policy, &self.settings, now).memory;
            let is_empty = memory == Progress::default();
            node.progress = (!is_empty).then(|| Box::new(memory));
        }
    }

    /// Changes the test condition of a node.
    fn turns(&mut self, index: usize, status: Status, now: Timestamp) {
        let (node, _) = &mut self.nodes[index];
        node.conditions.retain(|it| &*it.kind != "BadNode");
        node.conditions.push(condition("BadNode", status, now));
        self.remember(now);
    }

    /// The hold that blocks a node.
    fn hold(&self, index: usize, now: Timestamp) -> Option<Hold> {
        match self.judge(index, now).verdict.why() {
            NodeWhy::Held { hold, .. } => Some((**hold).clone()),
            _ => None,
        }
    }

    /// Writes the turns that the policy gives now into its status.
    fn reserve(&mut self, now: Timestamp) -> Vec<String> {
        let survey = self.survey(now);
        let scene = PolicyScene {
            policy: &self.policy,
            survey: Some(&survey),
            overlap: None,
            written: None,
            pool_of: &|_| None,
        };
        if let Some(Step::WritePolicy { status, .. }) = decide_policy(&scene, now).verdict.actions().first() {
            self.policy.status = (**status).clone();
        }
        survey.picks.into_iter().map(|repair| repair.node.into()).collect()
    }

    fn judge(&self, index: usize, now: Timestamp) -> Decision<NodeWhy, Step> {
        self.with_scene(index, now, |scene| decide_node(scene, &self.settings, now))
    }

    fn with_scene<T>(&self, index: usize, now: Timestamp, look: impl FnOnce(&Scene<'_>) -> T) -> T {
        let survey = self.survey(now);
        let member = self.member(index);
        let repair = self.policy.status.repair_of(&member.node.node.uid);
        look(&Scene {
            member,
            policy: Some(&self.policy),
            survey: Some(&survey),
            place: repair.map_or(Place::None, Place::Reserved),
            braked: self.braked.as_ref(),
            kept: None,
        })
    }

    /// The names of the steps that change a node, after the policy has reserved its repairs. Reports and events do not
    /// count.
    fn deeds(&mut self, index: usize, now: Timestamp) -> Vec<&'static str> {
        self.reserve(now);
        let decision = self.judge(index, now);
        let steps = decision.verdict.actions().iter();
        let deeds =
            steps.filter(|step| !matches!(step, Step::Report { .. } | Step::Tell { .. } | Step::Mention(_)));
        deeds.map(crate::step::Step::name).collect()
    }

    fn reason(&self, index: usize, now: Timestamp) -> &'static str {
        self.judge(index, now).verdict.why().code()
    }
}

const TIGHTEN: [&str; 1] = ["TightenTermination"];
const DELETE: [&str; 1] = ["DeleteNodeOwner"];
const NOTHING: [&str; 0] = [];
