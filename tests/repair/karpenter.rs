//! Simulates Karpenter for hand-made nodes: the finalizer of a NodeClaim, the termination of its node, and the node
//! that replaces it. It needs no controller of the cluster.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use tokio::{sync::Notify, task::JoinHandle};

use crate::objects::{NodeClaim, Object};
use crate::stage::BAD;

pub(crate) const FINALIZER: &str = "karpenter.sh/termination";
pub(crate) const POOL: &str = "karpenter.sh/nodepool";
/// The label of this test's nodes and their NodeClaims, whatever owns them.
pub(crate) const MEMBER: &str = "repair.test/pool";
pub(crate) const ZONE: &str = "topology.kubernetes.io/zone";

/// What the simulated Karpenter does with deleted NodeClaims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Terminates the node at once and launches another.
    Replaces,
    /// Terminates the node at once and launches nothing.
    Ends,
    /// Terminates the node and launches a NodeClaim whose node never registers.
    LaunchFails,
    /// Terminates the node at once and launches another that is sick from the start.
    ReplacesInVain,
}

/// A simulated Karpenter of one pool. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct SimulatedKarpenter {
    held: Arc<Hold>,
    task: JoinHandle<()>,
}

/// Deletions wait while it is closed.
#[derive(Debug, Default)]
struct Hold {
    closed: AtomicBool,
    opened: Notify,
}

impl SimulatedKarpenter {
    pub(crate) fn start(client: Client, pool: &str, manner: Manner) -> Self {
        let held = Arc::new(Hold::default());
        let player = Player {
            nodes: Api::all(client.clone()),
            claims: Api::all(client.clone()),
            pool: pool.to_owned(),
            manner,
            launched: AtomicUsize::new(0),
            held: Arc::clone(&held),
            ended: Mutex::default(),
        };
        let player = Arc::new(player);
        let config = watcher::Config::default().labels(&format!("{MEMBER}={pool}")).timeout(60);
        let mut news =
            watcher(Api::<NodeClaim>::all(client), config).default_backoff().applied_objects().boxed();
        let task = tokio::spawn(async move {
            while let Some(claim) = news.next().await {
                let Ok(claim) = claim else { continue };
                let is_new = || player.ended.lock().unwrap().insert(claim.uid().unwrap_or_default());
                if claim.is_deleting() && is_new() {
                    let player = Arc::clone(&player);
                    tokio::spawn(async move { player.end(&claim).await });
                }
            }
        });
        Self { held, task }
    }

    /// Lets deletions hang from now on, as with a drain that does not end.
    pub(crate) fn hang(&self) {
        self.held.closed.store(true, Ordering::SeqCst);
    }

    /// Completes the hanging deletions.
    pub(crate) fn go_on(&self) {
        self.held.closed.store(false, Ordering::SeqCst);
        self.held.opened.notify_waiters();
    }
}

impl Drop for SimulatedKarpenter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Player {
    nodes: Api<Node>,
    claims: Api<NodeClaim>,
    pool: String,
    manner: Manner,
    launched: AtomicUsize,
    held: Arc<Hold>,
    ended: Mutex<BTreeSet<String>>,
}

impl Player {
    async fn end(&self, claim: &NodeClaim) {
        loop {
            let opened = self.held.opened.notified();
            if !self.held.closed.load(Ordering::SeqCst) {
                break;
            }
            opened.await;
        }
        // Another node may have its name by now.
        let is_its = |node: &Node| {
            node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref())
                == claim.status["providerID"].as_str()
        };
        let node = self.nodes.get_opt(claim.node()).await.unwrap().filter(is_its);
        if let Some(node) = &node {
            let uid = Preconditions { uid: node.uid(), resource_version: None };
            let params = DeleteParams { preconditions: Some(uid), ..DeleteParams::default() };
            // It may already be gone.
            let _ = self.nodes.delete(claim.node(), &params).await;
        }
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let _ = self.claims.patch(&claim.name_any(), &PatchParams::default(), &patch).await;
        let zone = node.and_then(|node| node.labels().get(ZONE).cloned()).unwrap_or_default();
        let number = self.launched.fetch_add(1, Ordering::SeqCst);
        let name = format!("{}-new-{number}", self.pool);
        match self.manner {
            Manner::Replaces => {
                launch(&self.nodes, &self.claims, &Launch::new(&self.pool, &name, &zone)).await;
            }
            Manner::ReplacesInVain => {
                // A machine takes a moment to boot, and API times have no fractions.
                tokio::time::sleep(Duration::from_millis(1100)).await;
                let mut sick = Launch::new(&self.pool, &name, &zone);
                sick.sick = true;
                launch(&self.nodes, &self.claims, &sick).await;
            }
            Manner::Ends => {}
            Manner::LaunchFails => {
                let launch = Launch::new(&self.pool, &name, &zone);
                self.claims.create(&PostParams::default(), &launch.claim()).await.unwrap();
            }
        }
    }
}

/// The description of a node with its NodeClaim.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) pool: String,
    pub(crate) name: String,
    pub(crate) zone: String,
    /// Whether both objects have the label of the pool.
    pub(crate) of_pool: bool,
    pub(crate) has_claim: bool,
    pub(crate) provider_id: String,
    pub(crate) ready: bool,
    /// Whether it has the condition that makes nodes sick in these tests.
    pub(crate) sick: bool,
    pub(crate) labels: Value,
    pub(crate) annotations: Value,
    pub(crate) claim_annotations: Value,
}

impl Launch {
    pub(crate) fn new(pool: &str, name: &str, zone: &str) -> Self {
        Self {
            pool: pool.to_owned(),
            name: name.to_owned(),
            zone: zone.to_owned(),
            of_pool: true,
            has_claim: true,
            provider_id: format!("kwok://{name}"),
            ready: true,
            sick: false,
            labels: json!({}),
            annotations: json!({}),
            claim_annotations: json!({}),
        }
    }

    fn labels(&self) -> Value {
        let mut labels = self.labels.clone();
        labels[MEMBER] = self.pool.as_str().into();
        labels["kubernetes.io/hostname"] = self.name.as_str().into();
        labels[ZONE] = self.zone.as_str().into();
        labels["karpenter.kwok.sh/kwoknodeclass"] = "default".into();
        if self.of_pool {
            labels[POOL] = self.pool.as_str().into();
        }
        if self.has_claim {
            labels["karpenter.sh/registered"] = "true".into();
        }
        if self.has_claim && self.ready {
            labels["karpenter.sh/initialized"] = "true".into();
        }
        labels
    }

    pub(crate) fn node(&self) -> Node {
        let status = if self.ready { "True" } else { "False" };
        let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap().to_string();
        let mut node = json!({
            "metadata": {"name": self.name, "labels": self.labels(), "annotations": self.annotations},
            "spec": {},
            "status": {"conditions": [{
                "type": "Ready", "status": status, "reason": "Test", "message": "",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }]},
        });
        if self.sick {
            node["status"]["conditions"].as_array_mut().unwrap().push(json!({
                "type": BAD, "status": "False", "reason": "Test", "message": "",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }));
        }
        if !self.provider_id.is_empty() {
            node["spec"]["providerID"] = self.provider_id.as_str().into();
        }
        serde_json::from_value(node).unwrap()
    }

    pub(crate) fn claim(&self) -> NodeClaim {
        let mut labels = self.labels();
        labels.as_object_mut().unwrap().remove("kubernetes.io/hostname");
        let spec = json!({
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
            "requirements": [],
        });
        let metadata = json!({
            "name": format!("{}-claim", self.name),
            "labels": labels,
            "annotations": self.claim_annotations,
            "finalizers": [FINALIZER],
        });
        Object::new(serde_json::from_value(metadata).unwrap(), spec)
    }

    fn claim_status(&self) -> Value {
        let now = Timestamp::now().to_string();
        let condition = |kind: &str, holds: bool| {
            json!({
                "type": kind, "status": if holds { "True" } else { "Unknown" }, "reason": kind, "message": "",
                "lastTransitionTime": now,
            })
        };
        json!({
            "nodeName": self.name,
            "providerID": self.provider_id,
            "conditions": [
                condition("Launched", true),
                condition("Registered", true),
                condition("Initialized", self.ready),
            ],
        })
    }
}

/// Creates the objects of a launched node.
pub(crate) async fn launch(nodes: &Api<Node>, claims: &Api<NodeClaim>, launch: &Launch) {
    if launch.has_claim {
        let claim = claims.create(&PostParams::default(), &launch.claim()).await.unwrap();
        let status = Patch::Merge(json!({"status": launch.claim_status()}));
        claims.patch_status(&claim.name_any(), &PatchParams::default(), &status).await.unwrap();
    }
    nodes.create(&PostParams::default(), &launch.node()).await.unwrap();
}

pub(crate) fn of_pool(pool: &str) -> ListParams {
    ListParams::default().labels(&format!("{MEMBER}={pool}"))
}
