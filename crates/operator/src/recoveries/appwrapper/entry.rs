//! The AppWrapper recovery in the registry.

use std::sync::Arc;

use salvor_api::{
    Controller,
    config::{AppWrapperSettings, Configuration},
    crds,
    names::appwrapper::EVENT_COMPONENT,
};
use salvor_recovery::appwrapper::AppWrapperPolicy;

use super::{
    AppWrappers, explain,
    metrics::{AppWrapperMetrics, METRICS},
    webhooks,
    wire::Rules,
};
use crate::{
    engine::running::at_once,
    explain::Explains,
    metrics::Metrics,
    recoveries::{
        RecoveryEntry, Start, Webhooks,
        rights::{Resource, Right, Verb, node_leases},
        work,
    },
};

pub(crate) static ENTRY: RecoveryEntry = RecoveryEntry {
    controller: Controller::AppWrapper,
    gate: None,
    settings,
    // Components are kept whole.
    memory: 64,
    definitions: &[crds::APPWRAPPER],
    rights,
    reporter: EVENT_COMPONENT,
    explains: &[Explains { kind: &explain::APPWRAPPER, explain: explain::appwrapper }],
    metrics: METRICS,
    webhooks: Some(Webhooks { declared: webhooks::declared, handlers: webhooks::handlers }),
    prepare,
};

fn settings(configuration: &Configuration) -> Option<String> {
    (configuration.appwrapper != AppWrapperSettings::default()).then(|| "appwrapper is set".to_owned())
}

const GROUP: &str = "workload.codeflare.dev";

fn rights(configuration: &Configuration) -> Vec<Right> {
    let settings = &configuration.appwrapper;
    let writes = !configuration.dry_run;
    let mut rights = vec![
        Resource::of(GROUP, "appwrappers").everywhere(&Verb::READ),
        Resource::PODS.everywhere(&Verb::READ),
        Resource::NODES.everywhere(&Verb::READ),
        // A node that is marked unreachable may have a live kubelet.
        node_leases(),
    ];
    // Claims and Jobs decide whether pods may be force deleted.
    rights.extend(work::rights());
    for kind in settings.kinds() {
        let wrapped = Resource { group: kind.group.into(), plural: kind.plural.into(), name: None };
        rights.push(wrapped.clone().everywhere(&Verb::READ));
        if writes {
            rights.push(wrapped.everywhere(&[Verb::Create, Verb::Delete]));
        }
    }
    if !writes {
        return rights;
    }
    if settings.user_rbac_admission_check && configuration.webhooks.enabled {
        // The webhook checks a user's permissions, and so does the controller before a creation.
        rights.push(Resource::of("authorization.k8s.io", "subjectaccessreviews").everywhere(&[Verb::Create]));
    }
    rights.extend([
        Resource::EVENTS.everywhere(&[Verb::Create]),
        // To add and remove the finalizer.
        Resource::of(GROUP, "appwrappers").everywhere(&[Verb::Update, Verb::Patch]),
        Resource::of(GROUP, "appwrappers/status").everywhere(&[Verb::Patch]),
        // An owner reference with `blockOwnerDeletion` requires permission to update the owner's finalizers.
        Resource::of(GROUP, "appwrappers/finalizers").everywhere(&[Verb::Update]),
        // What is left after the grace period is force deleted, including pods that others created.
        Resource::PODS.everywhere(&[Verb::Delete]),
        Resource::POD_STATUS.everywhere(&[Verb::Patch]),
    ]);
    rights
}

fn prepare(metrics: &Metrics) -> Start {
    let metrics = metrics.own(AppWrapperMetrics::register);
    Box::new(|running, configuration| {
        let policy = Arc::new(AppWrapperPolicy::new(configuration));
        let rules = Arc::new(Rules::new(configuration, &running.keyring));
        let appwrappers = AppWrappers::new(policy, rules, metrics);
        running.start(appwrappers, at_once(configuration.concurrency.writes));
    })
}
