//! Kills that would not have been needed: the machine was back soon after.

use std::collections::BTreeSet;

use super::count;
use crate::play::{Ended, IncidentRecord, Millis, Record};

/// Pods that were deleted or marked Failed, before their work was done, on a node that was well again soon after.
pub(super) fn pods(record: &Record) -> u64 {
    count(record.pods.iter().filter(|pod| {
        let failed = pod.over.filter(|(_, ended)| *ended == Ended::Failed).map(|(at, _)| at);
        let killed = [pod.deleted, failed].into_iter().flatten().min();
        let (Some(node), Some(killed)) = (&pod.node, killed) else { return false };
        // Kubernetes also deletes pods that are long done from a node that it gives up.
        if pod.over.is_some_and(|(at, ended)| ended == Ended::Succeeded && at <= killed) {
            return false;
        }
        during(record, node, killed).iter().any(|incident| is_back_soon(record, incident, killed))
    }))
}

/// Nodes that were given up, and those of them for which it was in vain.
pub(super) fn nodes(record: &Record) -> (u64, u64) {
    let mut given_up = BTreeSet::new();
    let mut in_vain = BTreeSet::new();
    for (name, node) in &record.nodes {
        let kills = node.out_of_service.iter().copied().chain(node.claim_deleted);
        for killed in kills.filter(|at| *at >= 0) {
            given_up.insert((name, killed));
            let incidents = during(record, name, killed);
            if incidents.is_empty() || incidents.iter().all(|incident| is_back_soon(record, incident, killed))
            {
                in_vain.insert((name, killed));
            }
        }
    }
    (count(given_up.iter()), count(in_vain.iter()))
}

/// The failures of a node at a time.
fn during<'a>(record: &'a Record, node: &str, at: Millis) -> Vec<&'a IncidentRecord> {
    let is_active = |it: &&IncidentRecord| {
        it.at <= at && it.until.is_none_or(|until| until > at) && it.nodes.iter().any(|name| name == node)
    };
    record.incidents.iter().filter(is_active).collect()
}

fn is_back_soon(record: &Record, incident: &IncidentRecord, killed: Millis) -> bool {
    incident.until.is_some_and(|until| until <= killed + record.back_soon)
}
