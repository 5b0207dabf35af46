//! Reads a cluster for the checks, and records what it cannot read.

use std::collections::BTreeMap;

use http::{Request, header::DATE};
use jiff::{Timestamp, fmt::rfc2822};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, api::PostParams, client::Body};
use salvor_api::{
    Controller,
    config::Configuration,
    names::{appwrapper, repair::GROUP},
};
use salvor_operator::{Published, Right, Scope};
use salvor_recovery::{
    ServerClock,
    ids::ResourceVersion,
    objects::{Kind, ObjectRef},
    repair::{Head, NODE_POOL, NODE_REPAIR_POLICY, Policy, PolicyStatus},
    zombie::ZombiePolicy,
};
use salvor_why::NotSeen;
use serde_json::Value;

use super::actors::Actors;
use super::clocks::{KubeletLease, ServerTime};
use super::consents::Seen;
use super::finding::{Check, Finding, Severity};
use super::nodes::Node;
use super::timings::ControllerManager;
use super::versions::Version;
use crate::cluster::Cluster;
use crate::error::CliError;

/// Objects per page of a list.
const PAGE: usize = 250;
/// How often the server is asked for its time: there may be several servers behind one address.
const TIMES_ASKED: usize = 8;
/// Machine health checks: group and plural.
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

    /// The error of the first request. Without an answer there is nothing to check.
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

    /// Checks for each needed right whether the current user has it.
    pub(super) async fn rights(&mut self, needed: &[(String, Right)]) -> Vec<Finding> {
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
                let answer = match reviews.create(&PostParams::default(), &review).await {
                    Ok(answer) => answer,
                    Err(error) => {
                        self.miss("rights (selfsubjectaccessreviews)", &error);
                        return Vec::new();
                    }
                };
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
        findings.collect()
    }

    /// Passes every object below a path to `show`, page by page. Returns false if not all could be read. A kind that is
    /// not served has no objects.
    async fn each(&mut self, path: &str, what: &str, mut show: impl FnMut(Value)) -> bool {
        let sign = if path.contains('?') { '&' } else { '?' };
        let mut next = String::new();
        loop {
            let more = if next.is_empty() { String::new() } else { format!("&continue={next}") };
            let mut page = match self.get(&format!("{path}{sign}limit={PAGE}{more}")).await {
                Ok(page) => page,
                Err(kube::Error::Api(status)) if status.code == 404 => return true,
                Err(error) => {
                    self.miss(what, &error);
                    return false;
                }
            };
            if let Value::Array(items) = page["items"].take() {
                items.into_iter().for_each(&mut show);
            }
            next = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if next.is_empty() {
                return true;
            }
        }
    }

    /// All objects below a path, as far as they can be read.
    async fn list(&mut self, path: &str, what: &str) -> Vec<Value> {
        let mut all = Vec::new();
        self.each(path, what, |object| all.push(object)).await;
        all
    }

    /// `None` if nodes cannot be read.
    pub(super) async fn nodes(&mut self) -> Option<Vec<Node>> {
        let mut nodes = Vec::new();
        let all = self.each("/api/v1/nodes", "nodes", |node| nodes.extend(Node::read(&node))).await;
        all.then_some(nodes)
    }

    pub(super) async fn kubelet_leases(&mut self, nodes: &[Node]) -> Vec<KubeletLease> {
        let ready: BTreeMap<&str, bool> =
            nodes.iter().map(|node| (node.name.as_str(), node.is_ready())).collect();
        let mut leases = Vec::new();
        let path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        self.each(path, "leases in namespace kube-node-lease", |lease| {
            let ready = lease["metadata"]["name"].as_str().and_then(|name| ready.get(name));
            leases.extend(ready.and_then(|ready| KubeletLease::read(&lease, *ready)));
        })
        .await;
        leases
    }

    /// The time of the API server, or of several behind one address. `None` if it sends no time.
    pub(super) async fn server_time(&mut self) -> Option<ServerTime> {
        let mut clock = ServerClock::default();
        for _ in 0..TIMES_ASKED {
            let request = Request::get("/version").body(Body::empty()).ok()?;
            let sent = Timestamp::now();
            // Not reading the body closes the connection, so the next request may reach another server.
            let answer = match self.client.send(request).await {
                Ok(answer) => answer,
                Err(error) => {
                    self.miss("the time of the API server", &error);
                    return None;
                }
            };
            let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
            if let Some(date) = date.and_then(|date| rfc2822::parse(date).ok()) {
                clock.learn(sent, Timestamp::now(), date.timestamp());
            }
        }
        let local = Timestamp::now();
        let told = clock.now(local).zip(clock.offset(local));
        if told.is_none() {
            let why = "its answers have no Date".to_owned();
            self.not_seen.push(NotSeen { what: "the time of the API server".to_owned(), why });
        }
        told.map(|(now, ahead)| ServerTime { now, ahead, clocks: clock.clocks() })
    }

    /// kube-controller-manager, if it runs as a pod.
    pub(super) async fn controller_manager(&mut self) -> Option<ControllerManager> {
        const WHAT: &str = "the settings of kube-controller-manager";
        let path = "/api/v1/namespaces/kube-system/pods?labelSelector=component%3Dkube-controller-manager";
        let mut found = None;
        let all =
            self.each(path, WHAT, |pod| found = found.take().or_else(|| ControllerManager::read(&pod))).await;
        if all && found.is_none() {
            let why = "no pod in kube-system has the label component=kube-controller-manager, so its defaults are taken for granted";
            self.not_seen.push(NotSeen { what: WHAT.to_owned(), why: why.to_owned() });
        }
        found
    }

    /// NodeRepairPolicies, and NodePools with a `spec.repair` block, if the repair recovery is on.
    pub(super) async fn repair_policies(&mut self, configuration: &Configuration) -> Vec<Policy> {
        if !configuration.controllers.enabled(Controller::Repair) {
            return Vec::new();
        }
        let mut policies = Vec::new();
        let own = format!("/apis/{GROUP}/v1alpha1/noderepairpolicies");
        self.each(&own, "noderepairpolicies", |object| {
            let head = head_of(&NODE_REPAIR_POLICY, &object);
            policies.extend(head.map(|head| Policy::read(head, &object["spec"])));
        })
        .await;
        self.each("/apis/karpenter.sh/v1/nodepools", "nodepools", |object| {
            let repair = object["spec"].get("repair").filter(|repair| repair.is_object());
            let head = repair.and(head_of(&NODE_POOL, &object));
            policies.extend(head.zip(repair).map(|(head, repair)| Policy::read_pool(head, repair)));
        })
        .await;
        policies
    }

    /// Workloads that opted in. Pods and Jobs are processed page by page and not kept.
    pub(super) async fn consents(
        &mut self,
        configuration: &Configuration,
        workloads: &[Value],
    ) -> (Seen, bool) {
        let policy = ZombiePolicy::new(configuration);
        let mut seen = Seen::new(configuration);
        let all_pods = self.each("/api/v1/pods", "pods", |pod| seen.pod(&pod, configuration, &policy)).await;
        for workload in workloads {
            let kind = if workload["spec"].get("jobTemplate").is_some() { "CronJob" } else { "Deployment" };
            seen.workload(kind, workload);
        }
        for (path, what, kind) in [
            ("/apis/apps/v1/statefulsets", "statefulsets", "StatefulSet"),
            ("/apis/batch/v1/jobs", "jobs", "Job"),
        ] {
            self.each(path, what, |workload| seen.workload(kind, &workload)).await;
        }
        let wrappers = format!("/apis/{}/{}", appwrapper::API_VERSION, appwrapper::PLURAL);
        self.each(&wrappers, appwrapper::PLURAL, |wrapper| seen.app_wrapper(&wrapper)).await;
        (seen, all_pods)
    }

    pub(super) async fn actors(&mut self, configuration: &Configuration) -> Actors {
        let mut workloads = self.list("/apis/apps/v1/deployments", "deployments").await;
        workloads.extend(self.list("/apis/batch/v1/cronjobs", "cronjobs").await);
        let mut kueue_settings = Vec::new();
        for namespace in namespaces_of_kueue(&workloads) {
            let path = format!("/api/v1/namespaces/{namespace}/configmaps/kueue-manager-config");
            match self.get(&path).await {
                Ok(map) => {
                    let files = map["data"].as_object().into_iter().flatten();
                    let files = files.filter_map(|(_, text)| text.as_str()).map(without_comments);
                    kueue_settings.extend(files);
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => self.miss(&format!("ConfigMap {namespace}/kueue-manager-config"), &error),
            }
        }
        let mut health_checks = Vec::new();
        for (group, plural) in HEALTH_CHECKS {
            if !self.of_group(group, plural).await.is_empty() {
                health_checks.push(format!("{plural}.{group}"));
            }
        }
        let has_machines = configuration.controllers.enabled(Controller::Repair)
            && !self.of_group("cluster.x-k8s.io", "machines").await.is_empty();
        let other_leaders = self.other_leaders(configuration).await;
        Actors { workloads, kueue_settings, health_checks, has_machines, other_leaders }
    }

    /// All objects of a kind, in the server's preferred version. Empty if the kind is not served.
    async fn of_group(&mut self, group: &str, plural: &str) -> Vec<Value> {
        let Ok(about) = self.get(&format!("/apis/{group}")).await else { return Vec::new() };
        let version = about["preferredVersion"]["version"].as_str().unwrap_or_default();
        self.list(&format!("/apis/{group}/{version}/{plural}"), &format!("{plural}.{group}")).await
    }

    /// The namespaces of other Salvor Leases that have a holder.
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

/// The identity of the object that contains a repair policy.
fn head_of(kind: &Kind, object: &Value) -> Option<Head> {
    let metadata = &object["metadata"];
    let text = |key: &str| metadata[key].as_str();
    Some(Head {
        object: ObjectRef {
            kind: kind.clone(),
            namespace: None,
            name: text("name")?.to_owned(),
            uid: text("uid")?.into(),
        },
        resource_version: text("resourceVersion").map(ResourceVersion::from).unwrap_or_default(),
        generation: metadata["generation"].as_i64().unwrap_or_default(),
        created: text("creationTimestamp").and_then(|time| time.parse().ok()).unwrap_or(Timestamp::MAX),
        status: PolicyStatus::default(),
    })
}

/// A YAML file without its comment lines.
fn without_comments(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.collect::<Vec<_>>().join("\n")
}

fn namespaces_of_kueue(workloads: &[Value]) -> Vec<String> {
    let kueue =
        workloads.iter().filter(|workload| workload["metadata"]["name"] == "kueue-controller-manager");
    kueue.filter_map(|workload| workload["metadata"]["namespace"].as_str().map(str::to_owned)).collect()
}
