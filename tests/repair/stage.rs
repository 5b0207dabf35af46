//! A hand-made pool of nodes for one test, with a simulated Karpenter and a `salvor run` process.
//!
//! The API server has no controllers, so that a node is exactly as sick as a test sets it. Tests on the real one share
//! it and one Salvor. Each has its own pool and policy.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::PolicyRule;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use salvor_testkit::{Access, Ours, Plane, Program, Recorder, Salvor, Site, peers, peers::Peer, wait};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::karpenter::{Launch, MEMBER, Manner, SimulatedKarpenter, launch, of_pool};
use crate::objects::{Condition, NodeClaim, NodePool, NodeRepairPolicy, Object, node_condition};

pub(crate) const SALVOR: &str = env!("CARGO_BIN_EXE_salvor");
pub(crate) const TERMINATION: &str = "karpenter.sh/nodeclaim-termination-timestamp";
/// The condition that makes nodes sick in these tests, as in Karpenter's own.
pub(crate) const BAD: &str = "BadNode";

/// No brake: tests that run in parallel lose more nodes than it allows.
pub(crate) const CONFIGURATION: &str = "controllers: [repair]\n\
     brake: {maxPodsPerMinute: 0, maxNodesPerMinute: 0, maxUnreachablePercent: 0}\n";

/// Nodes are sick since an hour ago, and no test waits for the end of an outage unless it says so.
const PATIENT: &str = "repair: {outageTimeout: 24h}\n";

#[derive(Clone)]
enum Ground {
    Shared(&'static Plane),
    Own(Arc<Plane>),
}

pub(crate) struct Stage {
    pub(crate) pool: String,
    pub(crate) client: Client,
    pub(crate) nodes: Api<Node>,
    pub(crate) claims: Api<NodeClaim>,
    pub(crate) pools: Api<NodePool>,
    pub(crate) policies: Api<NodeRepairPolicy>,
    pub(crate) karpenter: SimulatedKarpenter,
    salvor: Option<Ours>,
    ground: Ground,
}

impl Stage {
    /// With the Salvor that all tests share, and a Karpenter that replaces nodes.
    pub(crate) async fn new(site: Site, name: &str) -> Self {
        Self::with(site, name, Manner::Replaces).await
    }

    pub(crate) async fn with(site: Site, name: &str, manner: Manner) -> Self {
        static SHARED: OnceCell<Plane> = OnceCell::const_new();
        static SALVOR: OnceCell<Salvor> = OnceCell::const_new();
        let ground = match site {
            Site::Real => Ground::Shared(SHARED.get_or_init(|| cluster(site)).await),
            Site::Embedded => Ground::Own(Arc::new(cluster(site).await)),
        };
        let mut stage = Self::on(ground, name, manner).await;
        let ours = match site {
            Site::Real => {
                let admin = stage.admin();
                let start_it =
                    async || start(&as_installed(&admin).await, &format!("{CONFIGURATION}{PATIENT}"), &[]);
                Ours::Shared(SALVOR.get_or_init(start_it).await)
            }
            Site::Embedded => {
                Ours::Own(Box::new(start(&stage.admin(), &format!("{CONFIGURATION}{PATIENT}"), &[])))
            }
        };
        ours.until_answer("/readyz", " 200 ").await;
        stage.salvor = Some(ours);
        stage
    }

    /// In its own cluster, without a Salvor.
    pub(crate) async fn unattended(site: Site, name: &str, manner: Manner) -> Self {
        Self::on(Ground::Own(Arc::new(cluster(site).await)), name, manner).await
    }

    /// Another pool in the same cluster, without its own Salvor.
    pub(crate) async fn beside(&self, name: &str, manner: Manner) -> Self {
        Self::on(self.ground.clone(), name, manner).await
    }

    async fn on(ground: Ground, name: &str, manner: Manner) -> Self {
        let plane: &Plane = match &ground {
            Ground::Shared(plane) => plane,
            Ground::Own(plane) => plane,
        };
        let suffix = Timestamp::now().as_nanosecond() % 1_000_000_007;
        let pool = format!("{name}-{suffix:x}");
        let client = plane.admin().client(&pool);
        let karpenter = SimulatedKarpenter::start(client.clone(), &pool, manner);
        let stage = Self {
            nodes: Api::all(client.clone()),
            claims: Api::all(client.clone()),
            pools: Api::all(client.clone()),
            policies: Api::all(client.clone()),
            karpenter,
            salvor: None,
            client,
            pool,
            ground,
        };
        stage.create_pool(json!({})).await;
        stage
    }

    /// The Lease of a node, renewed then and for this many seconds.
    pub(crate) async fn lease(&self, node: &str, renewed: Timestamp, seconds: i64) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-node-lease");
        let renewed = renewed.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node},
            "spec": {"holderIdentity": node, "renewTime": renewed, "leaseDurationSeconds": seconds},
        });
        let force = PatchParams { force: true, ..PatchParams::apply("stage") };
        leases.patch(node, &force, &Patch::Apply(lease)).await.unwrap();
    }

    pub(crate) fn plane(&self) -> &Plane {
        match &self.ground {
            Ground::Shared(plane) => plane,
            Ground::Own(plane) => plane,
        }
    }

    pub(crate) fn admin(&self) -> Access {
        self.plane().admin()
    }

    pub(crate) fn salvor(&self) -> &Salvor {
        self.salvor.as_ref().unwrap()
    }

    /// Starts a Salvor for this test alone.
    pub(crate) fn attend(&self, configuration: &str, environment: &[(&str, &str)]) -> Salvor {
        start(&self.admin(), &format!("{CONFIGURATION}{configuration}"), environment)
    }

    // ---- nodes --------------------------------------------------------------------------------

    pub(crate) fn name(&self, node: &str) -> String {
        format!("{}-{node}", self.pool)
    }

    pub(crate) fn launch(&self, node: &str) -> Launch {
        Launch::new(&self.pool, &self.name(node), "zone-a")
    }

    /// Creates a node and its NodeClaim. Returns its full name.
    pub(crate) async fn make(&self, what: Launch) -> String {
        launch(&self.nodes, &self.claims, &what).await;
        what.name
    }

    /// Healthy nodes `n0`, `n1`, and so on. Returns their full names. Zones differ, so that no zone is sick as a whole.
    pub(crate) async fn healthy(&self, count: usize) -> Vec<String> {
        let mut names = Vec::new();
        for number in 0..count {
            let mut one = self.launch(&format!("n{number}"));
            one.zone = format!("zone-{}", ["a", "b", "c"][number % 3]);
            names.push(self.make(one).await);
        }
        names
    }

    /// Sets a condition of a node with a transition time in the past.
    pub(crate) async fn set(&self, node: &str, kind: &str, status: &str, ago: Duration) {
        self.set_at(node, kind, status, Timestamp::now() - ago).await;
    }

    pub(crate) async fn set_at(&self, node: &str, kind: &str, status: &str, since: Timestamp) {
        self.set_condition(node, kind, status, "Tested", since).await;
    }

    pub(crate) async fn set_condition(
        &self,
        node: &str,
        kind: &str,
        status: &str,
        reason: &str,
        since: Timestamp,
    ) {
        let whole = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap().to_string();
        let condition = json!({
            "type": kind, "status": status, "reason": reason, "message": "written by a test",
            "lastTransitionTime": whole(since), "lastHeartbeatTime": whole(Timestamp::now()),
        });
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        self.nodes.patch_status(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Sick for an hour: longer than every toleration that should have passed in these tests.
    pub(crate) async fn sicken(&self, node: &str) {
        self.set(node, BAD, "False", HOUR).await;
    }

    pub(crate) async fn heal(&self, node: &str) {
        self.set(node, BAD, "True", Duration::ZERO).await;
    }

    pub(crate) async fn annotate(&self, node: &str, annotations: Value) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        self.nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn claim_of(&self, node: &str) -> NodeClaim {
        self.claims.get(&claim_name(node)).await.unwrap()
    }

    pub(crate) async fn claim_of_opt(&self, node: &str) -> Option<NodeClaim> {
        self.claims.get_opt(&claim_name(node)).await.unwrap()
    }

    // ---- policies -----------------------------------------------------------------------------

    /// The policy of this pool, with additional fields: tolerates `BadNode=False` for this long, and repairs all nodes
    /// at once.
    pub(crate) async fn policy(&self, toleration: &str, more: Value) -> NodeRepairPolicy {
        let spec = self.policy_spec(toleration, more);
        self.create_policy(&self.pool, spec).await
    }

    pub(crate) fn policy_spec(&self, toleration: &str, more: Value) -> Value {
        let mut spec = json!({
            "nodeSelector": {"matchLabels": {MEMBER: self.pool}},
            "policies": [{"conditionType": BAD, "conditionStatus": "False", "toleration": toleration}],
            "unhealthyLimit": "100%",
            "budgets": [{"nodes": "100%"}],
        });
        let Value::Object(more) = more else { panic!("{more} has no fields") };
        for (key, value) in more {
            if value.is_null() {
                spec.as_object_mut().unwrap().remove(&key);
            } else {
                spec[key] = value;
            }
        }
        spec
    }

    pub(crate) async fn create_policy(&self, name: &str, spec: Value) -> NodeRepairPolicy {
        let policy: NodeRepairPolicy = Object::named(name, spec);
        let created = self.policies.create(&PostParams::default(), &policy).await;
        created.unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) async fn change_policy(&self, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.policies.patch(&self.pool, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn create_pool(&self, more: Value) {
        let mut spec = json!({
            "template": {"spec": {
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                "requirements": [],
            }},
            "disruption": {"consolidateAfter": "Never"},
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let pool: NodePool = Object::named(&self.pool, spec);
        self.pools.create(&PostParams::default(), &pool).await.unwrap();
    }

    pub(crate) async fn change_pool(&self, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.pools.patch(&self.pool, &PatchParams::default(), &patch).await.unwrap();
    }

    // ---- what comes of it ---------------------------------------------------------------------

    pub(crate) async fn record(&self) -> Recorder<NodeClaim> {
        Recorder::start(&self.claims, &of_pool(&self.pool)).await
    }

    /// Waits until the NodeClaim of a node is gone or being deleted.
    pub(crate) async fn is_terminated(&self, node: &str) {
        let name = claim_name(node);
        let what = format!("the NodeClaim {name} is deleted");
        let ends = |claims: &[NodeClaim]| claims.iter().all(|c| c.name_any() != name || c.is_deleting());
        wait::for_list(&self.claims, &of_pool(&self.pool), &what, ends).await;
    }

    /// Waits until a node and its NodeClaim are gone.
    pub(crate) async fn is_gone(&self, node: &str) {
        wait::for_absence(&self.claims, &claim_name(node)).await;
        wait::for_absence(&self.nodes, node).await;
    }

    /// Waits until the pool has this many nodes that are not being deleted.
    pub(crate) async fn has_nodes(&self, count: usize) -> Vec<Node> {
        let living = |nodes: &[Node]| {
            nodes.len() == count && nodes.iter().all(|node| node.metadata.deletion_timestamp.is_none())
        };
        wait::for_list(&self.nodes, &of_pool(&self.pool), &format!("{} has {count} nodes", self.pool), living)
            .await
    }

    /// Checks that no NodeClaim of these nodes is deleted while `until` runs.
    pub(crate) async fn stays<T>(&self, nodes: &[String], until: impl Future<Output = T>) -> T {
        let names: Vec<String> = nodes.iter().map(|node| claim_name(node)).collect();
        let condemned = |claim: &NodeClaim| claim.is_deleting() && names.contains(&claim.name_any());
        let forbidden = format!("one of {names:?} is deleted");
        let outcome = wait::never(&self.claims, &of_pool(&self.pool), &forbidden, condemned, until).await;
        for name in &names {
            assert!(self.claims.get_opt(name).await.unwrap().is_some(), "{name} is gone");
        }
        outcome
    }

    /// Waits until Salvor's condition of a node has this reason.
    pub(crate) async fn says(&self, node: &str, reason: &str) -> Condition {
        let what = format!("its SalvorRepair has the reason {reason}");
        let found = wait::for_object(&self.nodes, node, &what, |node: &Node| {
            node_condition(node, "SalvorRepair").is_some_and(|condition| condition.reason == reason)
        })
        .await;
        node_condition(&found, "SalvorRepair").unwrap()
    }

    /// The same, with a word in its message.
    pub(crate) async fn is_blocked_by(&self, node: &str, cause: &str) -> Condition {
        let what = format!("it is blocked by {cause}");
        let found = wait::for_object(&self.nodes, node, &what, |node: &Node| {
            node_condition(node, "SalvorRepair")
                .is_some_and(|c| c.reason == "Blocked" && c.message.contains(cause))
        })
        .await;
        node_condition(&found, "SalvorRepair").unwrap()
    }

    pub(crate) async fn policy_says(&self, kind: &str, status: &str, reason: &str) -> NodeRepairPolicy {
        let what = format!("its {kind} is {status}/{reason}");
        wait::for_object(&self.policies, &self.pool, &what, |policy: &NodeRepairPolicy| {
            policy.condition(kind).is_some_and(|c| c.status == status && c.reason == reason)
        })
        .await
    }

    pub(crate) async fn event(&self, kind: &str, name: &str, reason: &str) -> Event {
        let events: Api<Event> = Api::all(self.client.clone());
        let is_it = |event: &Event| {
            let about = event.regarding.clone().unwrap_or_default();
            about.kind.as_deref() == Some(kind)
                && about.name.as_deref() == Some(name)
                && event.reason.as_deref() == Some(reason)
                && event.reporting_controller.as_deref() == Some("salvor-repair")
        };
        let what = format!("an event about {kind} {name} says {reason}");
        let all = ListParams::default();
        let mut told =
            wait::for_list(&events, &all, &what, |events: &[Event]| events.iter().any(is_it)).await;
        told.retain(is_it);
        told.remove(0)
    }

    /// The output of `salvor explain node` in this format.
    pub(crate) async fn explain_as(&self, form: &str, node: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let (kubeconfig, config) = (folder.path().join("kubeconfig"), folder.path().join("config.yaml"));
        self.admin().write_kubeconfig(&kubeconfig).unwrap();
        let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
        std::fs::write(&config, format!("{head}{CONFIGURATION}{PATIENT}")).unwrap();
        let flags = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--config={}", config.display()),
            format!("--output={form}"),
        ];
        let words = ["explain", "node", node].into_iter().chain(flags.iter().map(String::as_str));
        let program = Program::start(Path::new(SALVOR), words, &[]);
        assert_eq!(program.exit_code().await, Some(0), "{}", program.output());
        program.output()
    }

    pub(crate) async fn explain(&self, node: &str) -> Value {
        let text = self.explain_as("json", node).await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    pub(crate) async fn namespace(&self) -> String {
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": self.pool}})).unwrap();
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        self.pool.clone()
    }
}

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn claim_name(node: &str) -> String {
    format!("{node}-claim")
}

pub(crate) fn seconds(from: &str, to: &str) -> i64 {
    let at = |text: &str| {
        text.parse::<Timestamp>().unwrap_or_else(|error| panic!("{text:?}: {error}")).as_second()
    };
    at(to) - at(from)
}

/// An API server without controllers, with the CRDs of Karpenter, of Cluster API and of Salvor.
async fn cluster(site: Site) -> Plane {
    let plane = site.api_server().await;
    install(&plane.admin()).await;
    plane
}

/// Installs all CRDs. NodePools accept the block of the seed, which Karpenter's own CRD does not have yet.
async fn install(access: &Access) {
    let folder = Peer::Machines.folder().unwrap_or_else(|error| panic!("{error}"));
    peers::install(access, &folder.join("crds"), |crd| {
        if crd["spec"]["names"]["kind"] == "NodePool" {
            let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            schema["properties"]["spec"]["properties"]["repair"] =
                json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        }
    })
    .await
    .unwrap();
    install_ours(access).await;
}

/// Everything that `salvor manifests` prints for this recovery.
fn manifests() -> Vec<Value> {
    let output = std::process::Command::new(SALVOR).args(["manifests", "--controllers", "repair"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap()
}

/// The CRD from Salvor's own manifests.
pub(crate) async fn install_ours(access: &Access) {
    let definition = "CustomResourceDefinition";
    let documents = manifests();
    assert_eq!(documents[0]["kind"], definition, "definitions come first, so that one apply is enough");
    let folder = tempfile::tempdir().unwrap();
    for (number, crd) in documents.iter().filter(|d| d["kind"] == definition).enumerate() {
        std::fs::write(folder.path().join(format!("{number}.yaml")), crd.to_string()).unwrap();
    }
    peers::install(access, folder.path(), |_| ()).await.unwrap();
}

/// A user with exactly the rights of the manifests, so that every test shows that they are sufficient.
async fn as_installed(admin: &Access) -> Access {
    let roles = manifests().into_iter().filter(|d| d["kind"] == "ClusterRole" || d["kind"] == "Role");
    let rules = roles.flat_map(|role| role["rules"].as_array().cloned().unwrap_or_default());
    let rules: Vec<PolicyRule> = rules.map(|rule| serde_json::from_value(rule).unwrap()).collect();
    admin.service_account("default", "salvor-as-installed", rules).await.unwrap()
}

/// Starts `salvor run`, which elects a leader only if the configuration has an election.
pub(crate) fn start(access: &Access, configuration: &str, environment: &[(&str, &str)]) -> Salvor {
    let elects = format!("--leader-elect={}", configuration.contains("leaderElection"));
    Salvor::start(SALVOR, access, configuration, &[&elects], environment)
}
