//! The rules as tables, played in a small cluster, and as properties.

mod annotations;
mod authors;
mod changed;
mod cluster;
mod components;
mod crash;
mod defects;
mod deletion;
mod health;
mod phases;
mod picture;
mod properties;
mod upstream;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::policy::Counting;
use super::status::{Condition, PodSet};
use super::*;
use crate::gate::{Copies, Owner, Work};
use crate::liveness::{Heartbeat, NodeLease};
use crate::moments::after;
use crate::objects::{Deletion, PodPhase, PodRef};
use crate::proof::{Machine, Proof};
use crate::step::Step as _;
use crate::verdict::{Decision, Reason, Verdict};
use crate::zombie::ConsentSource;
use cluster::Cluster;

/// The heartbeat of a kubelet whose node has neither a Lease nor a heartbeat.
fn silent() -> Heartbeat {
    Heartbeat::UNREAD.then(None, at(0))
}

/// The time zero of the tables, plus seconds.
fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn secs(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

const PREFIX: &str = "workload.codeflare.dev.appwrapper/";

/// The annotations of an AppWrapper, by the last part of their keys.
fn annotated(pairs: &[(&str, &str)]) -> Annotations {
    let all: BTreeMap<String, String> =
        pairs.iter().map(|(key, value)| (format!("{PREFIX}{key}"), (*value).into())).collect();
    Annotations::pick(|key| all.get(key).map(String::as_str))
}

fn kind(group: &str, version: &str, kind: &str) -> ComponentKind {
    let resource = format!("{}s", kind.to_lowercase());
    ComponentKind { group: group.into(), version: version.into(), kind: kind.into(), resource }
}

fn job() -> ComponentKind {
    kind("batch", "v1", "Job")
}

fn bare_pod() -> ComponentKind {
    kind("", "v1", "Pod")
}

fn deployment() -> ComponentKind {
    kind("apps", "v1", "Deployment")
}
