//! Looks at a cluster, and notes what cannot be seen.

use std::collections::BTreeMap;

use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, api::PostParams};
use salvor_api::config::Configuration;
use salvor_operator::{Published, Right, Scope};
use salvor_why::NotSeen;
use serde_json::Value;

use super::actors::Actors;
use super::finding::{Check, Finding, Severity};
use super::versions::Version;
use crate::cluster::Cluster;
use crate::error::CliError;

/// So many objects are read at once.
const PAGE: usize = 250;
/// Health checks of machines: group and plural.
const HEALTH_CHECKS: [(&str, &str); 3] = [
    ("remediation.medik8s.io", "nodehealthchecks"),
    ("cluster.x-k8s.io", "machinehealthchecks"),
    ("machine.openshift.io", "machinehealthchecks"),
];

pub(super) struct Looker<'a> {
    cluster: &'a Cluster,
    client: Client,
    not_seen: Vec<NotSeen>,
}

impl<'a> Looker<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Result<Self, CliError> {
        Ok(Self { cluster, client: cluster.client()?, not_seen: Vec::new() })
    }

    pub(super) fn not_seen(self) -> Vec<NotSeen> {
        self.not_seen
    }

    fn miss(&mut self, what: &str, error: &kube::Error) {
        let why = match error {
            kube::Error::Api(status) => status.message.clone(),
            other => other.to_string(),
        };
        self.not_seen.push(NotSeen { what: what.to_owned(), why });
    }

    /// The first thing that is asked: without an answer there is nothing to look at.
    fn failed(&self, error: &kube::Error) -> CliError {
        let cluster = &self.cluster;
        let problem = match error {
            kube::Error::Api(status) => status.message.clone(),
            other => salvor_operator::story(other),
        };
        CliError::Command(format!("{} ({}): {problem}", cluster.config.cluster_url, cluster.origin).into())
    }

    async fn text(&self, path: &str) -> kube::Result<String> {
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        self.client.request_text(request).await
    }

    async fn get(&self, path: &str) -> kube::Result<Value> {
        serde_json::from_str(&self.text(path).await?).map_err(kube::Error::SerdeError)
    }

    pub(super) async fn version(&mut self) -> Result<Version, CliError> {
        let told = self.get("/version").await.map_err(|error| self.failed(&error))?;
        let text = |key: &str| told[key].as_str().unwrap_or_default().to_owned();
        let mut version = Version::new(&text("gitVersion"), &text("minor"));
        if version.worth_asking() {
            match self.text("/metrics").await {
                Ok(metrics) => version.read_metrics(&metrics),
                Err(error) => self.miss("the feature gates of the API server (/metrics)", &error),
            }
        }
        Ok(version)
    }

    /// Asks for each right that somebody needs whether we have it.
    pub(super) async fn rights(&mut self, needed: &[(String, Right)]) -> Result<Vec<Finding>, CliError> {
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let mut missing: BTreeMap<(String, String), Vec<&str>> = BTreeMap::new();
        for (who, Right { scope, resource, verbs }) in needed {
            let place = match scope {
                Scope::Cluster => "in all namespaces".to_owned(),
                Scope::Namespace(namespace) => format!("in namespace {namespace}"),
            };
            for verb in verbs {
                let (plural, part) = match resource.plural.split_once('/') {
                    Some((plural, part)) => (plural, Some(part.to_owned())),
                    None => (&*resource.plural, None),
                };
                let attributes = ResourceAttributes {
                    group: Some(resource.group.to_string()),
                    resource: Some(plural.to_owned()),
                    subresource: part,
                    name: resource.name.clone(),
                    namespace: match scope {
                        Scope::Cluster => None,
                        Scope::Namespace(namespace) => Some(namespace.clone()),
                    },
                    verb: Some(verb.name().to_owned()),
                    ..ResourceAttributes::default()
                };
                let spec = SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(attributes),
                    ..SelfSubjectAccessReviewSpec::default()
                };
                let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
                let answer = reviews.create(&PostParams::default(), &review).await;
                let answer = answer.map_err(|error| self.failed(&error))?;
                if !answer.status.is_some_and(|status| status.allowed) {
                    let group = if resource.group.is_empty() {
                        String::new()
                    } else {
                        format!(".{}", resource.group)
                    };
                    let one = resource.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
                    let what = format!("{}{group}{one} {place}", resource.plural);
                    missing.entry((who.clone(), what)).or_default().push(verb.name());
                }
            }
        }
        let user = self.cluster.config.auth_info.impersonate.clone();
        let whose = user.as_deref().unwrap_or("the user of this command");
        let findings = missing.into_iter().map(|((who, what), verbs)| {
            Finding::new(
                Severity::Error,
                Check::Rights,
                format!("{whose} may not {} {what}", verbs.join(", ")),
                format!("{who} needs that right"),
                "Apply what `salvor manifests` prints for this configuration; to check the rights of an installation, add --as system:serviceaccount:salvor-system:salvor",
            )
        });
        Ok(findings.collect())
    }

    /// All objects below a path, page by page; none if nobody serves them.
    async fn list(&mut self, path: &str, what: &str) -> Vec<Value> {
        let mut all = Vec::new();
        let mut next = String::new();
        loop {
            let more = if next.is_empty() { String::new() } else { format!("&continue={next}") };
            let mut page = match self.get(&format!("{path}?limit={PAGE}{more}")).await {
                Ok(page) => page,
                Err(kube::Error::Api(status)) if status.code == 404 => return all,
                Err(error) => {
                    self.miss(what, &error);
                    return all;
                }
            };
            if let Value::Array(items) = page["items"].take() {
                all.extend(items);
            }
            next = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if next.is_empty() {
                return all;
            }
        }
    }

    pub(super) async fn nodes(&mut self) -> Vec<Value> {
        self.list("/api/v1/nodes", "nodes").await
    }

    pub(super) async fn actors(&mut self, configuration: &Configuration) -> Actors {
        let mut workloads = self.list("/apis/apps/v1/deployments", "deployments").await;
        workloads.extend(self.list("/apis/batch/v1/cronjobs", "cronjobs").await);
        let mut kueue_settings = Vec::new();
        for namespace in namespaces_of_kueue(&workloads) {
            let path = format!("/api/v1/namespaces/{namespace}/configmaps/kueue-manager-config");
            match self.get(&path).await {
                Ok(map) => kueue_settings.push(map["data"].to_string()),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => self.miss(&format!("ConfigMap {namespace}/kueue-manager-config"), &error),
            }
        }
        let mut health_checks = Vec::new();
        for (group, plural) in HEALTH_CHECKS {
            let Ok(about) = self.get(&format!("/apis/{group}")).await else { continue };
            let version = about["preferredVersion"]["version"].as_str().unwrap_or_default();
            let name = format!("{plural}.{group}");
            if !self.list(&format!("/apis/{group}/{version}/{plural}"), &name).await.is_empty() {
                health_checks.push(name);
            }
        }
        let other_leaders = self.other_leaders(configuration).await;
        Actors { workloads, kueue_settings, health_checks, other_leaders }
    }

    /// The namespaces of other Leases of Salvor that somebody holds.
    async fn other_leaders(&mut self, configuration: &Configuration) -> Vec<String> {
        let path = "/apis/coordination.k8s.io/v1/leases?fieldSelector=metadata.name%3Dsalvor";
        let found = match self.get(path).await {
            Ok(found) => found,
            Err(error) => {
                self.miss("leases in all namespaces", &error);
                return Vec::new();
            }
        };
        let leases: Vec<Lease> = serde_json::from_value(found["items"].clone()).unwrap_or_default();
        let ours = configuration.leader_election.lease_namespace.as_str();
        let held = |lease: &Lease| Published::leader(lease, Timestamp::now()).is_some();
        let others = leases.into_iter().filter(held).filter_map(|lease| lease.metadata.namespace);
        others.filter(|namespace| namespace != ours).collect()
    }
}

fn namespaces_of_kueue(workloads: &[Value]) -> Vec<String> {
    let kueue =
        workloads.iter().filter(|workload| workload["metadata"]["name"] == "kueue-controller-manager");
    kueue.filter_map(|workload| workload["metadata"]["namespace"].as_str().map(str::to_owned)).collect()
}
