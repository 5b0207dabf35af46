//! The rights that an installation needs: for each enabled recovery what it reads and writes, and nothing else.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::PolicyRule;
use salvor_api::config::{Configuration, FailureRecoveryRule};
use salvor_api::{Controller, Gate};

/// Where kubelets keep the Leases that show they are alive.
const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

/// Where a right holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// In every namespace, and on objects without one.
    Cluster,
    /// In one namespace.
    Namespace(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

/// A kind of object, or one object of it by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Resource {
    group: Cow<'static, str>,
    plural: Cow<'static, str>,
    name: Option<String>,
}

const fn resource(group: &'static str, plural: &'static str) -> Resource {
    Resource { group: Cow::Borrowed(group), plural: Cow::Borrowed(plural), name: None }
}

const PODS: Resource = resource("", "pods");
const POD_STATUS: Resource = resource("", "pods/status");
const NODES: Resource = resource("", "nodes");
const NODE_STATUS: Resource = resource("", "nodes/status");
const CLAIMS: Resource = resource("", "persistentvolumeclaims");
const VOLUMES: Resource = resource("", "persistentvolumes");
const ATTACHMENTS: Resource = resource("storage.k8s.io", "volumeattachments");
const JOBS: Resource = resource("batch", "jobs");
const JOB_STATUS: Resource = resource("batch", "jobs/status");
const JOB_FINALIZERS: Resource = resource("batch", "jobs/finalizers");
/// Events are written as Kubernetes' own controllers do: the newer API has no room for what `kubectl` shows.
const EVENTS: Resource = resource("", "events");
const LEASES: Resource = resource("coordination.k8s.io", "leases");
const APPWRAPPERS: Resource = resource("workload.codeflare.dev", "appwrappers");
const APPWRAPPER_STATUS: Resource = resource("workload.codeflare.dev", "appwrappers/status");
const APPWRAPPER_FINALIZERS: Resource = resource("workload.codeflare.dev", "appwrappers/finalizers");
const ACCESS_REVIEWS: Resource = resource("authorization.k8s.io", "subjectaccessreviews");

/// Rights by where they hold. What several recoveries need is there once.
#[derive(Debug, Default)]
pub(super) struct Rights(BTreeMap<Scope, BTreeMap<Resource, BTreeSet<Verb>>>);

impl Rights {
    /// What an installation with this configuration needs.
    pub(super) fn of(configuration: &Configuration) -> Self {
        let mut rights = Self::default();
        rights.leader_election(configuration);
        for controller in Controller::ALL {
            match controller {
                Controller::Zombie => rights.zombie(configuration),
                Controller::Job => rights.job(configuration),
                Controller::Eviction => rights.eviction(configuration),
                Controller::AppWrapper => rights.appwrapper(configuration),
            }
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

    fn grant(&mut self, scope: Scope, resource: Resource, verbs: &[Verb]) {
        let granted = self.0.entry(scope).or_default().entry(resource);
        granted.or_default().extend(verbs);
    }

    fn leader_election(&mut self, configuration: &Configuration) {
        let election = &configuration.leader_election;
        let here = Scope::Namespace(election.lease_namespace.clone());
        // An object that is not there yet cannot be named in a rule.
        self.grant(here.clone(), LEASES, &[Verb::Create]);
        let the_lease = Resource { name: Some(election.lease_name.clone()), ..LEASES };
        self.grant(here, the_lease, &[Verb::Get, Verb::Update]);
    }

    fn zombie(&mut self, configuration: &Configuration) {
        let enabled = configuration.controllers.enabled(Controller::Zombie)
            && configuration.feature_gates.enabled(Gate::FailureRecoveryPolicy);
        if !enabled {
            return;
        }
        let writes = !configuration.dry_run;
        self.grant(Scope::Cluster, PODS, &[Verb::Get, Verb::List, Verb::Watch]);
        self.grant(Scope::Cluster, NODES, &[Verb::Get, Verb::List, Verb::Watch]);
        // A node is lost only if its Lease is silent, too.
        let node_leases = Scope::Namespace(NODE_LEASE_NAMESPACE.into());
        self.grant(node_leases, LEASES, &[Verb::Get]);
        if writes {
            self.grant(Scope::Cluster, EVENTS, &[Verb::Create]);
            self.grant(Scope::Cluster, POD_STATUS, &[Verb::Patch]);
            // Any owner may consent to a force delete by annotation, whatever the rules say.
            self.grant(Scope::Cluster, PODS, &[Verb::Delete]);
        }
        let rules = &configuration.failure_recovery_policy.rules;
        let taints_nodes =
            rules.iter().any(|rule| matches!(rule, FailureRecoveryRule::TaintNodeOutOfService(_)));
        if taints_nodes && writes {
            self.grant(Scope::Cluster, NODES, &[Verb::Patch]);
        }
    }

    fn job(&mut self, configuration: &Configuration) {
        if !configuration.controllers.enabled(Controller::Job) {
            return;
        }
        self.grant(Scope::Cluster, JOBS, &[Verb::Get, Verb::List, Verb::Watch]);
        self.grant(Scope::Cluster, PODS, &[Verb::Get, Verb::List, Verb::Watch]);
        if configuration.dry_run {
            return;
        }
        self.grant(Scope::Cluster, EVENTS, &[Verb::Create]);
        self.grant(Scope::Cluster, JOB_STATUS, &[Verb::Patch]);
        // An owner reference that blocks the owner's deletion needs the right to hold the owner up.
        self.grant(Scope::Cluster, JOB_FINALIZERS, &[Verb::Update]);
        self.grant(Scope::Cluster, PODS, &[Verb::Create, Verb::Patch, Verb::Delete]);
        if configuration.job.delete_finished_jobs {
            self.grant(Scope::Cluster, JOBS, &[Verb::Delete]);
        }
    }

    fn eviction(&mut self, configuration: &Configuration) {
        if !configuration.controllers.enabled(Controller::Eviction) {
            return;
        }
        self.grant(Scope::Cluster, NODES, &[Verb::Get, Verb::List, Verb::Watch]);
        self.grant(Scope::Cluster, PODS, &[Verb::Get, Verb::List, Verb::Watch]);
        self.grant(Scope::Cluster, ATTACHMENTS, &[Verb::List, Verb::Watch]);
        let node_leases = Scope::Namespace(NODE_LEASE_NAMESPACE.into());
        self.grant(node_leases, LEASES, &[Verb::Get]);
        // Whether two of a pod may run is told by its claims.
        self.grant(Scope::Cluster, CLAIMS, &[Verb::Get]);
        if configuration.dry_run {
            return;
        }
        self.grant(Scope::Cluster, EVENTS, &[Verb::Create]);
        self.grant(Scope::Cluster, NODES, &[Verb::Patch]);
        self.grant(Scope::Cluster, NODE_STATUS, &[Verb::Patch]);
        self.grant(Scope::Cluster, POD_STATUS, &[Verb::Patch]);
        self.grant(Scope::Cluster, PODS, &[Verb::Delete]);
        // Which volumes must stay is told by the claims that they are bound to.
        self.grant(Scope::Cluster, VOLUMES, &[Verb::Get]);
    }
    fn appwrapper(&mut self, configuration: &Configuration) {
        if !configuration.controllers.enabled(Controller::AppWrapper) {
            return;
        }
        let settings = &configuration.appwrapper;
        let writes = !configuration.dry_run;
        self.grant(Scope::Cluster, APPWRAPPERS, &[Verb::Get, Verb::List, Verb::Watch]);
        self.grant(Scope::Cluster, PODS, &[Verb::Get, Verb::List, Verb::Watch]);
        self.grant(Scope::Cluster, NODES, &[Verb::Get, Verb::List, Verb::Watch]);
        if settings.reset_when_node_unreachable {
            let node_leases = Scope::Namespace(NODE_LEASE_NAMESPACE.into());
            self.grant(node_leases, LEASES, &[Verb::Get]);
        }
        if settings.user_rbac_admission_check {
            // Asking what a user may do writes nothing.
            self.grant(Scope::Cluster, ACCESS_REVIEWS, &[Verb::Create]);
        }
        for kind in settings.kinds() {
            let wrapped = Resource { group: kind.group.into(), plural: kind.plural.into(), name: None };
            self.grant(Scope::Cluster, wrapped.clone(), &[Verb::Get, Verb::List, Verb::Watch]);
            if writes {
                self.grant(Scope::Cluster, wrapped, &[Verb::Create, Verb::Delete]);
            }
        }
        if !writes {
            return;
        }
        self.grant(Scope::Cluster, EVENTS, &[Verb::Create]);
        // The finalizer is put on and taken off.
        self.grant(Scope::Cluster, APPWRAPPERS, &[Verb::Update, Verb::Patch]);
        self.grant(Scope::Cluster, APPWRAPPER_STATUS, &[Verb::Patch]);
        // An owner reference that blocks the owner's deletion needs the right to hold the owner up.
        self.grant(Scope::Cluster, APPWRAPPER_FINALIZERS, &[Verb::Update]);
        // What is left after the grace period is deleted by force, also pods that others made.
        self.grant(Scope::Cluster, PODS, &[Verb::Delete]);
    }
}
