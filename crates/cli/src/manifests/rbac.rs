//! The rights of an installation: exactly what each enabled recovery reads and writes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::PolicyRule;
use salvor_api::config::Configuration;
use salvor_operator::webhooks::{CONFIGURATION, SERVICE, Webhook, WebhookKind};
use salvor_operator::{Resource, Right, Scope, Verb, recoveries};

/// Rights by scope. Rights that several recoveries need appear once.
#[derive(Debug, Default)]
pub(super) struct Rights(BTreeMap<Scope, BTreeMap<Resource, BTreeSet<Verb>>>);

impl Rights {
    pub(super) fn of(configuration: &Configuration, webhooks: &[Webhook]) -> Self {
        let mut rights = Self::default();
        for (_, Right { scope, resource, verbs }) in needed(configuration, webhooks) {
            rights.0.entry(scope).or_default().entry(resource).or_default().extend(verbs);
        }
        rights
    }

    pub(super) fn rules(self) -> impl Iterator<Item = (Scope, Vec<PolicyRule>)> {
        self.0.into_iter().map(|(scope, resources)| {
            let rules = resources.into_iter().map(|(resource, verbs)| PolicyRule {
                api_groups: Some(vec![resource.group.into_owned()]),
                resources: Some(vec![resource.plural.into_owned()]),
                resource_names: resource.name.map(|name| vec![name]),
                verbs: verbs.into_iter().map(|verb| verb.name().into()).collect(),
                ..PolicyRule::default()
            });
            (scope, rules.collect())
        })
    }
}

/// Each right that an installation needs, and which part of Salvor needs it.
pub(super) fn needed(configuration: &Configuration, webhooks: &[Webhook]) -> Vec<(String, Right)> {
    let by = |who: &str| {
        let who = who.to_owned();
        move |right| (who.clone(), right)
    };
    let mut all: Vec<_> = leader_election(configuration).map(by("the leader election")).into();
    for entry in recoveries() {
        let who = format!("the recovery {}", entry.controller.name());
        all.extend(entry.rights(configuration).into_iter().map(by(&who)));
    }
    all.extend(for_webhooks(configuration, webhooks).into_iter().map(by("the webhooks")));
    all
}

fn leader_election(configuration: &Configuration) -> [Right; 2] {
    let election = &configuration.leader_election;
    let the_lease = Resource { name: Some(election.lease_name.clone()), ..Resource::LEASES };
    [
        // RBAC rules cannot name an object that does not exist yet.
        Resource::LEASES.within(&election.lease_namespace, &[Verb::Create]),
        the_lease.within(&election.lease_namespace, &[Verb::Get, Verb::Update]),
    ]
}

/// The rights to publish the certificate authority and the path token, and to share them and the signing keys. The
/// manifests create the objects, so each right is limited to one object by name, and nothing may be created.
fn for_webhooks(configuration: &Configuration, webhooks: &[Webhook]) -> Vec<Right> {
    const USED: &[Verb] = &[Verb::Get, Verb::Update];
    let mut rights = Vec::new();
    if !webhooks.is_empty() {
        let secret = Resource { name: Some(SERVICE.into()), ..Resource::of("", "secrets") };
        rights.push(secret.within(&configuration.leader_election.lease_namespace, USED));
    }
    for kind in WebhookKind::ALL {
        if webhooks.iter().any(|webhook| webhook.kind == kind) {
            let ours = Resource::of("admissionregistration.k8s.io", kind.plural());
            rights.push(Resource { name: Some(CONFIGURATION.into()), ..ours }.everywhere(USED));
        }
    }
    rights
}
