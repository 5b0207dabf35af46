//! The rights that an installation needs: for each enabled recovery what it reads and writes, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::PolicyRule;
use salvor_api::config::Configuration;
use salvor_operator::webhooks::{CONFIGURATION, SERVICE, Webhook, WebhookKind};
use salvor_operator::{Resource, Right, Scope, Verb, recoveries};

/// Rights by where they hold. What several recoveries need is there once.
#[derive(Debug, Default)]
pub(super) struct Rights(BTreeMap<Scope, BTreeMap<Resource, BTreeSet<Verb>>>);

impl Rights {
    /// The rights that an installation with this configuration needs.
    pub(super) fn of(configuration: &Configuration, webhooks: &[Webhook]) -> Self {
        let mut rights = Self::default();
        for (_, Right { scope, resource, verbs }) in needed(configuration, webhooks) {
            rights.0.entry(scope).or_default().entry(resource).or_default().extend(verbs);
        }
        rights
    }

    /// The rules of each role.
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

/// Each right that an installation needs, and who needs it.
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
        // An object that is not there yet cannot be named in a rule.
        Resource::LEASES.within(&election.lease_namespace, &[Verb::Create]),
        the_lease.within(&election.lease_namespace, &[Verb::Get, Verb::Update]),
    ]
}

/// The rights to fill in the certificate authority and the token of the path, and to share them and the keys of stamps. The objects come with the manifests, so that each right is to one object by
/// name, and nothing may be created.
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
