//! The repair recovery in the registry.

use std::sync::Arc;

use salvor_api::{
    Controller,
    config::{ClusterApiRepair, Configuration, RepairSettings},
    crds,
    names::repair::{GROUP, REPAIR_CONTROLLER},
};

use super::{
    Repairs, explain,
    metrics::{METRICS, RepairMetrics},
};
use crate::{
    engine::running::at_once,
    explain::{Explains, NODE},
    metrics::Metrics,
    recoveries::{
        RecoveryEntry, Start,
        rights::{Resource, Right, Verb, node_leases},
        work,
    },
};

pub(crate) static ENTRY: RecoveryEntry = RecoveryEntry {
    controller: Controller::Repair,
    gate: None,
    settings,
    memory: 32,
    definitions: &[crds::NODE_REPAIR_POLICY],
    rights,
    reporter: REPAIR_CONTROLLER,
    explains: &[Explains { kind: &NODE, explain: explain::node }],
    metrics: METRICS,
    webhooks: None,
    prepare,
};

fn settings(configuration: &Configuration) -> Option<String> {
    (configuration.repair != RepairSettings::default()).then(|| "repair is set".to_owned())
}

fn rights(configuration: &Configuration) -> Vec<Right> {
    let (claims, pools) =
        (Resource::of("karpenter.sh", "nodeclaims"), Resource::of("karpenter.sh", "nodepools"));
    let machines = Resource::of("cluster.x-k8s.io", "machines");
    let mut rights = vec![
        Resource::of(GROUP, "noderepairpolicies").everywhere(&Verb::READ),
        Resource::NODES.everywhere(&Verb::READ),
        // Among nodes that are due at the same time, the one with the fewest pods comes first. The pods of a node that
        // is drained, or was replaced, are watched.
        Resource::PODS.everywhere(&Verb::READ),
        claims.clone().everywhere(&Verb::READ),
        pools.clone().everywhere(&Verb::READ),
        machines.clone().everywhere(&Verb::READ),
    ];
    // A node that renews its Lease is not off, whatever a person said.
    rights.push(node_leases());
    // Whether two copies of a pod may run decides whether a Node without an owner is deleted.
    rights.extend(work::rights());
    if configuration.dry_run {
        return rights;
    }
    let on_machines: &[Verb] = match configuration.repair.cluster_api {
        ClusterApiRepair::Remediate => &[Verb::Patch],
        ClusterApiRepair::Delete => &[Verb::Delete],
    };
    if configuration.controllers.enabled(Controller::Eviction) {
        // Pods whose node and machine are gone are force deleted.
        rights.extend([
            Resource::POD_STATUS.everywhere(&[Verb::Patch]),
            Resource::PODS.everywhere(&[Verb::Delete]),
        ]);
    }
    rights.extend([
        Resource::of("", "pods/eviction").everywhere(&[Verb::Create]),
        Resource::EVENTS.everywhere(&[Verb::Create]),
        Resource::of(GROUP, "noderepairpolicies/status").everywhere(&[Verb::Patch]),
        // To write conditions, cordon a node, and delete one that has no other owner.
        Resource::of("", "nodes/status").everywhere(&[Verb::Patch]),
        Resource::NODES.everywhere(&[Verb::Patch, Verb::Delete]),
        claims.everywhere(&[Verb::Patch, Verb::Delete]),
        // A NodePool without a NodeRepairPolicy stores its current repairs in an annotation.
        pools.everywhere(&[Verb::Patch]),
        machines.everywhere(on_machines),
    ]);
    rights
}

fn prepare(metrics: &Metrics) -> Start {
    let metrics = metrics.own(RepairMetrics::register);
    Box::new(|running, configuration| {
        let repairs = Repairs::new(&Arc::new(configuration.clone()), metrics);
        running.start(repairs, at_once(configuration.concurrency.writes));
    })
}
