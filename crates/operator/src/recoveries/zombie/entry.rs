//! Zombie recovery in the registry.

use std::sync::Arc;

use salvor_api::{
    Controller, Gate,
    config::{Configuration, FailureRecoveryPolicy, FailureRecoveryRule, LostPods},
    names::events::POD_TERMINATION_CONTROLLER,
};
use salvor_recovery::zombie::ZombiePolicy;

use super::{Zombies, explain};
use crate::{
    engine::running::at_once,
    explain::{Explains, NODE, POD},
    metrics::Metrics,
    recoveries::{
        RecoveryEntry, Start,
        rights::{Resource, Right, Verb, node_leases},
    },
};

pub(crate) static ENTRY: RecoveryEntry = RecoveryEntry {
    controller: Controller::Zombie,
    gate: Some(Gate::FailureRecoveryPolicy),
    settings,
    memory: 32,
    definitions: &[],
    rights,
    reporter: POD_TERMINATION_CONTROLLER,
    explains: &[
        Explains { kind: &POD, explain: explain::pod },
        Explains { kind: &NODE, explain: explain::node },
    ],
    metrics: &[],
    webhooks: None,
    prepare,
};

const JOBS: Resource = Resource::of("batch", "jobs");

fn settings(configuration: &Configuration) -> Option<String> {
    let policy = &configuration.failure_recovery_policy;
    if *policy == FailureRecoveryPolicy::default() {
        return None;
    }
    Some(match policy.rules.len() {
        0 => "failureRecoveryPolicy is set".to_owned(),
        1 => "failureRecoveryPolicy.rules has 1 rule".to_owned(),
        rules => format!("failureRecoveryPolicy.rules has {rules} rules"),
    })
}

fn rights(configuration: &Configuration) -> Vec<Right> {
    let mut rights = vec![
        Resource::PODS.everywhere(&Verb::READ),
        Resource::NODES.everywhere(&Verb::READ),
        // A node is lost only if its Lease is expired, too.
        node_leases(),
    ];
    let lost_pods = configuration.failure_recovery_policy.jobs.lost_pods;
    match lost_pods {
        // The Job decides whether it would fail.
        LostPods::RaiseLimit | LostPods::Hold => rights.push(JOBS.everywhere(&[Verb::Get])),
        LostPods::Count => {}
    }
    if configuration.dry_run {
        return rights;
    }
    if lost_pods == LostPods::RaiseLimit {
        rights.push(JOBS.everywhere(&[Verb::Patch]));
    }
    rights.extend([
        Resource::EVENTS.everywhere(&[Verb::Create]),
        Resource::POD_STATUS.everywhere(&[Verb::Patch]),
        // Any owner may consent to a force delete by annotation, whatever the rules say.
        Resource::PODS.everywhere(&[Verb::Delete]),
    ]);
    let rules = &configuration.failure_recovery_policy.rules;
    if rules.iter().any(|rule| matches!(rule, FailureRecoveryRule::TaintNodeOutOfService(_))) {
        rights.push(Resource::NODES.everywhere(&[Verb::Patch]));
    }
    rights
}

fn prepare(_: &Metrics) -> Start {
    Box::new(|running, configuration| {
        let zombies = Zombies::new(Arc::new(ZombiePolicy::new(configuration)));
        running.start(zombies, at_once(configuration.concurrency.writes));
    })
}
