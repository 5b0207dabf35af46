//! The rules as tables, beside the seed's scenarios, and as properties.

mod memory;
mod model;
mod nodes;
mod pods;
mod properties;

use super::Step;
use crate::step::Step as _;
use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use salvor_api::config::parse;

use super::*;
use crate::brake::NodeCounts;
use crate::gate::{Claim, Copies, Owner, Work};
use crate::objects::{Deletion, NodeRef, PodPhase, PodRef, Ready, Taint};
use crate::verdict::{Decision, Reason, Verdict};

const KEY: &str = "salvor.dev/force-eviction";
const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
const TRIGGERS: &str = "eviction: {triggers: [{key: example.com/lost}, {key: node.cloudprovider.kubernetes.io/shutdown, proof: true}]}\n";

/// The tables count seconds from a fixed instant.
fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn policy(rest: &str) -> EvictionPolicy {
    let header = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
    EvictionPolicy::new(&parse(&format!("{header}{rest}")).unwrap())
}

fn taint(key: &str, value: &str, effect: &str) -> Taint {
    Taint { key: key.into(), value: value.into(), effect: effect.into() }
}

fn lease(renewed: i64) -> Lease {
    Lease::Renewed {
        written: at(renewed),
        heard: at(renewed),
        lasts: SignedDuration::from_secs(40),
        moves: false,
    }
}

/// A node that fell silent ten minutes before time 0, with a request for its eviction.
fn node() -> NodeView {
    NodeView {
        node: NodeRef { name: "node-a".into(), uid: "node-uid".into() },
        resource_version: "3".into(),
        created: Some(at(-86_400)),
        zone: "zone-a".into(),
        taints: vec![taint(KEY, "INC-1", "NoSchedule")],
        ready: Ready::Unknown,
        lease: lease(-600),
        boot_id: "boot-1".into(),
        ready_heartbeat: Lease::None,
        progress: None,
        asked: None,
        damage: None,
        refused: Vec::new(),
        out_of_service: false,
        despite_outage: None,
        condition: None,
        volumes_in_use: Vec::new(),
        volumes_attached: Vec::new(),
        told: BTreeSet::new(),
    }
}

fn started() -> Progress {
    Progress {
        started: at(0),
        request: "salvor.dev/force-eviction=INC-1:NoSchedule".into(),
        returned: None,
        released: None,
        finished: None,
        boot_id: Some("boot-1".into()),
        stopped: None,
    }
}

/// The same, after its eviction began at time 0, with all events of `phase` recorded.
fn begun(phase: &str) -> NodeView {
    let told = ["started", "finished", "volumes-hang", "node-returned", "not-rebooted"];
    NodeView {
        taints: vec![taint(KEY, "INC-1", "NoSchedule"), taint(KEY, "INC-1", "NoExecute")],
        progress: Some(started()),
        condition: Some(phase.into()),
        told: told
            .iter()
            .map(|step| format!("node-eviction-{step}.node-uid.{}", at(0).as_second()))
            .collect(),
        ..node()
    }
}

/// A pod of a Deployment that runs on that node, as its kubelet last reported.
fn pod() -> PodView {
    PodView {
        pod: PodRef { namespace: "ns".into(), name: "pod-a".into(), uid: "uid-a".into() },
        resource_version: "7".into(),
        phase: PodPhase::Running,
        deletion: None,
        is_mirror: false,
        created: Some(at(-3600)),
        work: work(),
        tolerations: Vec::new(),
        own_claims: Vec::new(),
        announced: false,
    }
}

fn work() -> Work {
    Work {
        owners: vec![owner("ReplicaSet", "apps")],
        in_leader_worker_set: false,
        claims: Vec::new(),
        job: None,
        copies: Copies::Allowed,
        consent: None,
    }
}

fn claiming(claims: Vec<Claim>) -> Work {
    Work { claims, ..work() }
}

fn owned_by(owners: Vec<Owner>) -> Work {
    Work { owners, ..work() }
}

fn owner(kind: &str, group: &str) -> Owner {
    Owner { kind: kind.into(), group: group.into(), controls: true }
}

fn stateful() -> PodView {
    PodView { work: owned_by(vec![owner("StatefulSet", "apps")]), ..pod() }
}

/// A toleration of our key for so long.
fn toleration(seconds: Option<i64>) -> Toleration {
    Toleration {
        key: KEY.into(),
        operator: "Exists".into(),
        effect: "NoExecute".into(),
        seconds,
        ..Toleration::default()
    }
}

fn claim(name: &str) -> Claim {
    Claim { namespace: "ns".into(), name: name.into() }
}

fn attachment(volume: &str) -> AttachmentView {
    AttachmentView {
        name: format!("csi-{volume}"),
        node: "node-a".into(),
        driver: "disk.example.com".into(),
        volume: Some(volume.into()),
    }
}

/// The names of the events that a decision requests.
fn told_by<Why: Reason>(decision: &Decision<Why, Step>) -> BTreeSet<String> {
    let name = |action: &Step| match action {
        Step::EmitEvent(note) => Some(note.name.clone()),
        _ => None,
    };
    decision.verdict.actions().iter().filter_map(name).collect()
}

/// A decision as `verdict reason: steps`.
fn say<Why: Reason>(decision: &Decision<Why, Step>) -> String {
    let verdict = &decision.verdict;
    let steps: Vec<&str> = verdict.actions().iter().map(Step::name).collect();
    let until = match verdict {
        Verdict::Wait { until, .. } => format!(" until {}", until.as_second() - at(0).as_second()),
        _ => String::new(),
    };
    let steps = if steps.is_empty() { String::new() } else { format!(": {}", steps.join(", ")) };
    format!("{} {}{until}{steps}", verdict.name(), verdict.why().code())
}

fn judge_node(
    node: &NodeView,
    pods: &[PodView],
    attachments: &[AttachmentView],
    now: i64,
) -> Decision<NodeWhy, Step> {
    let scene = Scene {
        node,
        pods: Some(pods.iter().collect()),
        attachments: Some(attachments.iter().collect()),
        zone: NodeCounts { unreachable: 1, total: 10 },
    };
    decide_node(&scene, &policy(TRIGGERS), at(now))
}
