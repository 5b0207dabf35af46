//! The eviction recovery in the registry.

use std::sync::Arc;

use salvor_api::{
    Controller,
    config::{Configuration, EvictionSettings, FailureRecoveryRule, RemoveTaint},
    names::events::EVICTION_CONTROLLER,
};
use salvor_recovery::eviction::EvictionPolicy;

use super::{
    Evictions, explain,
    metrics::{EvictionMetrics, METRICS},
};
use crate::{
    engine::running::at_once,
    explain::{Explains, NODE, POD},
    metrics::Metrics,
    recoveries::{
        RecoveryEntry, Start,
        rights::{Resource, Right, Verb, node_leases},
        work,
    },
};

pub(crate) static ENTRY: RecoveryEntry = RecoveryEntry {
    controller: Controller::Eviction,
    gate: None,
    settings,
    memory: 32,
    definitions: &[],
    rights,
    reporter: EVICTION_CONTROLLER,
    explains: &[
        Explains { kind: &POD, explain: explain::pod },
        Explains { kind: &NODE, explain: explain::node },
    ],
    metrics: METRICS,
    webhooks: None,
    prepare,
};

fn settings(configuration: &Configuration) -> Option<String> {
    let mut settings = configuration.eviction.clone();
    // A rule of zombie recovery also taints nodes, and removes that taint by the same setting.
    let taints = |rule: &FailureRecoveryRule| matches!(rule, FailureRecoveryRule::TaintNodeOutOfService(_));
    if configuration.controllers.enabled(Controller::Zombie)
        && configuration.failure_recovery_policy.rules.iter().any(taints)
    {
        settings.remove_taint = RemoveTaint::default();
    }
    (settings != EvictionSettings::default()).then(|| "eviction is set".to_owned())
}

fn rights(configuration: &Configuration) -> Vec<Right> {
    let mut rights = vec![
        Resource::NODES.everywhere(&Verb::READ),
        Resource::PODS.everywhere(&Verb::READ),
        Resource::of("storage.k8s.io", "volumeattachments").everywhere(&[Verb::List, Verb::Watch]),
        node_leases(),
    ];
    rights.extend(work::rights());
    if configuration.dry_run {
        return rights;
    }
    rights.extend([
        Resource::EVENTS.everywhere(&[Verb::Create]),
        Resource::NODES.everywhere(&[Verb::Patch]),
        Resource::of("", "nodes/status").everywhere(&[Verb::Patch]),
        Resource::POD_STATUS.everywhere(&[Verb::Patch]),
        Resource::PODS.everywhere(&[Verb::Delete]),
        // A volume that must stay is identified by the claim that it is bound to.
        Resource::of("", "persistentvolumes").everywhere(&[Verb::Get]),
    ]);
    rights
}

fn prepare(metrics: &Metrics) -> Start {
    let metrics = metrics.own(EvictionMetrics::register);
    Box::new(|running, configuration| {
        let policy = Arc::new(EvictionPolicy::new(configuration));
        let evictions = Evictions::new(policy, metrics);
        running.start(evictions, at_once(configuration.concurrency.writes));
    })
}
