//! Finds needless kills: the machine was back soon after.

use super::count;
use crate::play::{Ended, IncidentRecord, Millis, Record};

/// Needless kills, each with the index of the failure that led to it.
#[derive(Debug, Default)]
pub(super) struct Vain {
    /// Pods that were deleted or marked Failed, before their work was done, on a node that was healthy again soon
    /// after.
    pub(super) pods: Vec<usize>,
    /// Nodes that were given up although they were healthy again soon after, or had not failed.
    pub(super) nodes: Vec<Option<usize>>,
    /// The number of nodes that were given up.
    pub(super) given_up: u64,
}

impl Vain {
    pub(super) fn of(record: &Record) -> Self {
        let pods = record.pods.iter().filter_map(|pod| {
            let failed = pod.over.filter(|(_, ended)| *ended == Ended::Failed).map(|(at, _)| at);
            let (node, killed) = (pod.node.as_ref()?, [pod.deleted, failed].into_iter().flatten().min()?);
            // Kubernetes also deletes completed pods from a node that it gives up.
            if pod.over.is_some_and(|(at, ended)| ended == Ended::Succeeded && at <= killed) {
                return None;
            }
            let of_node = during(record, node, killed).into_iter().chain(still_marked(record, node, killed));
            of_node.into_iter().find(|position| is_back_soon(record, *position, killed))
        });
        let pods = pods.collect();
        let mut vain = Self { pods, ..Self::default() };
        for (name, node) in &record.nodes {
            let kills = node.out_of_service.iter().copied().chain(node.claim_deleted);
            let mut kills: Vec<Millis> = kills.filter(|at| *at >= 0).collect();
            kills.sort_unstable();
            kills.dedup();
            vain.given_up += count(kills.iter());
            for killed in kills {
                let failures = during(record, name, killed);
                if failures.iter().all(|position| is_back_soon(record, *position, killed)) {
                    let over = still_marked(record, name, killed);
                    vain.nodes.push(failures.first().copied().or(over));
                }
            }
        }
        vain
    }
}

/// The failures that a node has at a time.
fn during(record: &Record, node: &str, at: Millis) -> Vec<usize> {
    let is_active =
        |it: &IncidentRecord| it.at <= at && it.until.is_none_or(|until| until > at) && hits(it, node);
    let all = record.incidents.iter().enumerate();
    all.filter(|(_, it)| is_active(it)).map(|(position, _)| position).collect()
}

/// A failure that is already over although the node is still marked unreachable for it.
fn still_marked(record: &Record, node: &str, at: Millis) -> Option<usize> {
    let mut marks = record.nodes.get(node)?.unreachable.iter();
    let (since, _) = marks.find(|(from, to)| *from <= at && to.is_none_or(|to| to >= at))?;
    let is_over = |it: &IncidentRecord| {
        it.at <= *since && it.until.is_some_and(|until| until >= *since && until <= at) && hits(it, node)
    };
    record.incidents.iter().rposition(is_over)
}

fn hits(incident: &IncidentRecord, node: &str) -> bool {
    incident.nodes.iter().any(|name| name == node)
}

fn is_back_soon(record: &Record, position: usize, killed: Millis) -> bool {
    record.incidents[position].until.is_some_and(|until| until <= killed + record.back_soon)
}
