//! The Job recovery in the registry.

use std::sync::Arc;

use salvor_api::{
    Controller,
    config::{Configuration, JobSettings},
    names::job::events::JOB_CONTROLLER,
};
use salvor_recovery::job::JobPolicy;

use super::{
    Jobs, explain,
    metrics::{JobMetrics, METRICS},
};
use crate::{
    engine::running::at_once,
    explain::Explains,
    metrics::Metrics,
    recoveries::{
        RecoveryEntry, Start,
        rights::{Resource, Right, Verb},
    },
};

pub(crate) static ENTRY: RecoveryEntry = RecoveryEntry {
    controller: Controller::Job,
    gate: None,
    settings,
    // Pod templates are kept whole.
    memory: 64,
    definitions: &[],
    rights,
    reporter: JOB_CONTROLLER,
    explains: &[Explains { kind: &explain::JOB, explain: explain::job }],
    metrics: METRICS,
    webhooks: None,
    prepare,
};

fn settings(configuration: &Configuration) -> Option<String> {
    (configuration.job != JobSettings::default()).then(|| "job is set".to_owned())
}

fn rights(configuration: &Configuration) -> Vec<Right> {
    let jobs = || Resource::of("batch", "jobs");
    let mut rights = vec![jobs().everywhere(&Verb::READ), Resource::PODS.everywhere(&Verb::READ)];
    if configuration.dry_run {
        return rights;
    }
    rights.extend([
        Resource::EVENTS.everywhere(&[Verb::Create]),
        Resource::of("batch", "jobs/status").everywhere(&[Verb::Patch]),
        // An owner reference with `blockOwnerDeletion` requires permission to update the owner's finalizers.
        Resource::of("batch", "jobs/finalizers").everywhere(&[Verb::Update]),
        Resource::PODS.everywhere(&[Verb::Create, Verb::Patch, Verb::Delete]),
    ]);
    if configuration.job.delete_finished_jobs {
        rights.push(jobs().everywhere(&[Verb::Delete]));
    }
    rights
}

fn prepare(metrics: &Metrics) -> Start {
    let metrics = metrics.own(JobMetrics::register);
    Box::new(|running, configuration| {
        let jobs = Jobs::new(Arc::new(JobPolicy::new(configuration)), metrics);
        running.start(jobs, at_once(configuration.job.concurrent_jobs));
    })
}
