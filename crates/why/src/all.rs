//! All workloads that do not recover, grouped by root cause.

use std::collections::HashMap;

use serde_json::Value;

use crate::{
    answer::{Group, Object, Overview, Waiting},
    code::Code,
    diagnosis::{Diagnosis, Finding, Rules},
    json::{controller, has_ended, is_terminating, is_true, list, named, text},
    kinds::{
        APP_WRAPPER, CRON_JOB, DAEMON_SET, DEPLOYMENT, JOB, JOB_SET, Kind, POD, REPLICA_SET,
        REPLICATION_CONTROLLER, STATEFUL_SET,
    },
    presence::Judge,
    words::{counted, verb},
    world::World,
};

/// The kinds of workloads to diagnose. An object that another of these owns is reported as part of its owner.
pub(crate) static ROOTS: [&Kind; 10] = [
    &APP_WRAPPER,
    &JOB_SET,
    &CRON_JOB,
    &JOB,
    &DEPLOYMENT,
    &STATEFUL_SET,
    &DAEMON_SET,
    &REPLICA_SET,
    &REPLICATION_CONTROLLER,
    &POD,
];

/// Groups all workloads with missing pods by root cause and object. Objects that the rules still need are recorded in
/// the world.
pub fn everything(world: &mut World, judge: &Judge) -> Overview {
    let mut groups: Vec<(Finding, Vec<Waiting>)> = Vec::new();
    let mut known: HashMap<(Code, Object), usize> = HashMap::new();
    for kind in ROOTS {
        for at in 0..world.count(kind) {
            let found = look(&Rules { world, judge }, kind, at);
            world.close();
            let Some((waiting, diagnosis)) = found else { continue };
            let about = Object {
                kind: waiting.kind.clone(),
                namespace: waiting.namespace.clone(),
                name: waiting.name.clone(),
            };
            for finding in diagnosis.merged(&about) {
                let at =
                    *known.entry((finding.cause.code, finding.cause.object.clone())).or_insert(groups.len());
                match groups.get_mut(at) {
                    Some((known, workloads)) => {
                        let expected = std::mem::take(&mut known.cause.expected_back);
                        known.cause.expected_back = expected.and(finding.cause.expected_back);
                        known.pods.extend(finding.pods);
                        known.lacking.extend(finding.lacking);
                        workloads.push(waiting.clone());
                    }
                    None => groups.push((finding, vec![waiting.clone()])),
                }
            }
        }
    }
    let rules = Rules { world, judge };
    groups.sort_by(|(a, of_a), (b, of_b)| (a.cause.code, of_b.len()).cmp(&(b.cause.code, of_a.len())));
    let groups = groups
        .into_iter()
        .map(|(mut finding, mut workloads)| {
            workloads.sort();
            if finding.cause.object.kind == "Node" && finding.cause.code != Code::NodeSick {
                finding.cause.message = format!(
                    "{} of {} {}: {}",
                    counted(finding.pods.len(), "pod"),
                    counted(workloads.len(), "workload"),
                    verb(finding.pods.len(), "waits", "wait"),
                    finding.cause.message
                );
            }
            let remedies = rules.remedies(&finding);
            Group { pods: finding.pods.len(), root_cause: finding.cause, workloads, remedies }
        })
        .collect();
    Overview { groups, not_seen: Vec::new() }
}

/// Diagnoses one workload. Returns `None` if nothing is missing, or if it is reported as part of its owner.
fn look(rules: &Rules<'_>, kind: &Kind, at: usize) -> Option<(Waiting, Diagnosis)> {
    let object = rules.world.at(kind, at)?;
    if is_part_of_another(object) || (*kind == POD && !stands_for_itself(object)) {
        return None;
    }
    let diagnosis = rules.diagnose(kind, object);
    let missing = diagnosis.missing.told()?;
    let Object { kind, namespace, name } = named(&kind.kind, object);
    Some((Waiting { kind, namespace, name, missing }, diagnosis))
}

/// Whether another diagnosed object owns this one.
fn is_part_of_another(object: &Value) -> bool {
    if !text(object, "/owner").is_empty() {
        return true;
    }
    let known = |owner: &Value| ROOTS.iter().any(|kind| kind.kind == text(owner, "/kind"));
    list(object, "/metadata/ownerReferences")
        .iter()
        .any(|owner| is_true(owner, "/controller") && (known(owner) || text(owner, "/kind").is_empty()))
}

/// Whether a pod is reported on its own: it has no owner, or its owner is of a kind that is not diagnosed. A failed pod
/// is history.
fn stands_for_itself(pod: &Value) -> bool {
    if has_ended(pod) && !is_terminating(pod) {
        return false;
    }
    controller(pod).is_none_or(|owner| text(owner, "/kind") != "Node")
}
