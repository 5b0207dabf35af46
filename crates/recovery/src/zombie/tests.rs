//! The rules as tables, taken from KEP-6757 and from the tests and gaps of Kueue's controller, and as properties.

mod evict_after;
mod jobs;
mod kubelets;
mod nodes;
mod pods;
mod properties;
mod terms;

use jiff::{SignedDuration, Timestamp};
use salvor_api::Labels;
use salvor_api::config::{Configuration, parse};

use super::*;
use crate::liveness::{Heartbeat, NodeLease};
use crate::objects::{Deletion, NodeRef, PodPhase, PodRef, Ready};
use crate::one_actor::EvictionSign;

/// The tables count seconds from a fixed instant.
fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().copied().collect()
}

/// Zombie recovery switched on, with the rest of the configuration file.
fn policy(rest: &str) -> ZombiePolicy {
    ZombiePolicy::new(&configuration(rest))
}

fn configuration(rest: &str) -> Configuration {
    let header = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
    let gate = "featureGates: {FailureRecoveryPolicy: true}\n";
    parse(&format!("{header}{gate}{rest}")).unwrap()
}

fn terminate() -> ConsentAnnotations {
    ConsentAnnotations { terminate: Some("true".into()), ..ConsentAnnotations::default() }
}

fn delete() -> ConsentAnnotations {
    ConsentAnnotations { delete: Some("true".into()), ..ConsentAnnotations::default() }
}

/// A kubelet that last renewed its Lease at that time. The Lease lasts 40s and has been watched for long.
fn heard(seconds: i64) -> Heartbeat {
    let lease = NodeLease::new(at(seconds), SignedDuration::from_secs(40));
    Heartbeat::at_a_glance(Some(lease), at(seconds))
}

fn no_lease() -> Heartbeat {
    Heartbeat::at_a_glance(None, at(0))
}

/// A pod with consent that runs on `node-a`, and whose grace period of 30s ended at time 0.
fn pod() -> PodView {
    PodView {
        pod: PodRef { namespace: "ns".into(), name: "pod-a".into(), uid: "uid-a".into() },
        resource_version: "7".into(),
        labels: Labels::default(),
        consent: terminate(),
        phase: PodPhase::Running,
        deletion: Some(Deletion { timestamp: at(0), grace_seconds: Some(30) }),
        node_name: Some("node-a".into()),
        mark: None,
        disruption_target: false,
        announced: false,
        wait_told: false,
        evict_told: false,
        job: None,
    }
}

/// A node that became unreachable long before time 0.
fn node() -> NodeView {
    NodeView {
        node: NodeRef { name: "node-a".into(), uid: "node-uid".into() },
        resource_version: "3".into(),
        labels: Labels::default(),
        unreachable: Some(Unreachable { since: at(-400) }),
        ready: Ready::Unknown,
        boot_id: "boot-1".into(),
        ready_heartbeat: None,
        heartbeat: heard(-460),
        out_of_service: Vec::new(),
        out_of_service_mark: None,
        taints: Vec::new(),
        eviction: EvictionSign::None,
        announced: false,
        return_told: false,
    }
}

fn healthy_node() -> NodeView {
    NodeView { unreachable: None, ready: Ready::True, heartbeat: heard(0), ..node() }
}
