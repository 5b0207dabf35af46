//! A simulated Karpenter of one NodePool. Each of its nodes has a NodeClaim. When a NodeClaim is deleted, the node is
//! drained, its machine is terminated, and another node is launched for it.
//!
//! It drains by deleting pods, and ignores disruption budgets. It launches as many nodes as it terminated, whether pods
//! wait or not.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams, Preconditions, Request,
    },
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::{
    task::{JoinHandle, JoinSet},
    time::sleep,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    fleet::{Fleet, FleetError, RetryBackoff},
    profile::NodeProfile,
};

const GROUP: &str = "karpenter.sh";
const POOL: &str = "karpenter.sh/nodepool";
const FINALIZER: &str = "karpenter.sh/termination";
/// From this time on the drain does not wait for pods of the node.
const FORCED_FROM: &str = "karpenter.sh/nodeclaim-termination-timestamp";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// The grace period, in seconds, of pods that the drain does not wait for.
const FORCED_GRACE: u32 = 1;
/// The interval at which a draining node is checked.
const LOOK: Duration = Duration::from_secs(1);
/// The backoff after a failed call.
const RETRY: Duration = Duration::from_millis(200);

/// A pool of nodes.
#[derive(Clone, Debug)]
pub struct NodePool {
    /// Nodes and NodeClaims are named after it: `gpu-1`, `gpu-2`, ...
    pub name: String,
    /// The number of nodes at the beginning.
    pub nodes: u32,
    /// The properties of each; the name is not used.
    pub template: NodeProfile,
    /// How long a machine takes to terminate.
    pub shutdown: Duration,
    /// How long a machine takes from its launch until its node registers.
    pub boot: Duration,
    /// The interval at which the first nodes register.
    pub apart: Duration,
}

#[derive(Debug, Error)]
pub enum KarpenterError {
    #[error("the simulated Karpenter cannot make its objects: {0}")]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Fleet(#[from] FleetError),
}

/// A running simulated Karpenter. Dropping it stops it. Its nodes stay.
#[derive(Debug)]
pub struct Karpenter {
    task: JoinHandle<()>,
    stop: DropGuard,
}

impl Karpenter {
    /// Creates the CRDs of NodeClaims and NodePools; they accept all fields.
    ///
    /// # Errors
    /// If the API refuses a definition that does not exist yet.
    pub async fn define(client: &Client) -> Result<(), KarpenterError> {
        for (kind, plural) in [("NodeClaim", "nodeclaims"), ("NodePool", "nodepools")] {
            let body = serde_json::to_vec(&definition(kind, plural)).map_err(kube::Error::SerdeError)?;
            let request = Request::new(DEFINITIONS).create(&PostParams::default(), body);
            let request = request.map_err(kube::Error::BuildRequest)?;
            match client.request::<Value>(request).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Creates a NodePool, launches its nodes, and maintains them from now on. Returns when all are registered.
    pub async fn start(client: Client, fleet: Arc<Fleet>, pool: NodePool) -> Result<Self, KarpenterError> {
        let object = DynamicObject::new(&pool.name, &resource("NodePool", "nodepools"));
        let pools = api(&client, "NodePool", "nodepools");
        pools.create(&PostParams::default(), &object.data(json!({ "spec": {} }))).await?;
        let labels = format!("{POOL}={}", pool.name);
        let (nodes, apart) = (pool.nodes, pool.apart);
        let player = Arc::new(Player {
            claims: api(&client, "NodeClaim", "nodeclaims"),
            nodes: Api::all(client.clone()),
            client: client.clone(),
            fleet,
            pool,
            launched: AtomicUsize::new(0),
        });
        for _ in 0..nodes {
            player.launch(Duration::ZERO).await?;
            if !apart.is_zero() {
                sleep(apart).await;
            }
        }
        let stop = CancellationToken::new();
        let running = stop.clone();
        let task = tokio::spawn(async move {
            let mut ends = JoinSet::new();
            running.run_until_cancelled(player.run(&labels, &mut ends)).await;
            ends.shutdown().await;
        });
        Ok(Self { task, stop: stop.drop_guard() })
    }

    /// Stops it and waits until its calls have ended.
    pub async fn stop(self) {
        drop(self.stop);
        // A panic of the task has been printed already, and there is nothing left to stop then.
        let _ = self.task.await;
    }
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1", kind), plural)
}

fn api(client: &Client, kind: &str, plural: &str) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource(kind, plural))
}

fn definition(kind: &str, plural: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{GROUP}") },
        "spec": {
            "group": GROUP, "scope": "Cluster",
            "names": { "kind": kind, "listKind": format!("{kind}List"), "plural": plural,
                "singular": kind.to_lowercase() },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    })
}

struct Player {
    client: Client,
    fleet: Arc<Fleet>,
    claims: Api<DynamicObject>,
    nodes: Api<Node>,
    pool: NodePool,
    launched: AtomicUsize,
}

impl Player {
    async fn run(self: &Arc<Self>, labels: &str, ends: &mut JoinSet<()>) {
        let config = watcher::Config::default().labels(labels).timeout(60);
        let claims = watcher(self.claims.clone(), config).backoff(RetryBackoff::default()).applied_objects();
        let mut claims = pin!(claims);
        let mut ending = BTreeSet::new();
        loop {
            tokio::select! {
                biased;
                Some(_) = ends.join_next(), if !ends.is_empty() => {}
                // The watch recovers from errors by itself.
                Some(claim) = claims.next() => if let Ok(claim) = claim
                    && claim.metadata.deletion_timestamp.is_some()
                    && ending.insert(claim.uid())
                {
                    let player = Arc::clone(self);
                    ends.spawn(async move { player.replace(&claim).await });
                },
                else => return,
            }
        }
    }

    /// Terminates the node of a NodeClaim, and launches another.
    async fn replace(&self, claim: &DynamicObject) {
        while let Err(error) = self.end(claim).await {
            tracing::debug!(pool = self.pool.name, %error, "call failed; it will be made again");
            sleep(RETRY).await;
        }
        if let Err(error) = self.launch(self.pool.boot).await {
            tracing::error!(pool = self.pool.name, %error, "no node was launched");
        }
    }

    async fn end(&self, claim: &DynamicObject) -> Result<(), KarpenterError> {
        let name = text(&claim.data, "/status/nodeName");
        let provider_id = text(&claim.data, "/status/providerID");
        // Another node may have its name by now.
        let is_its = |node: &Node| {
            node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == Some(provider_id)
        };
        let node = if name.is_empty() { None } else { self.nodes.get_opt(name).await?.filter(is_its) };
        if let Some(node) = node {
            let cordon = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
            unless_gone(self.nodes.patch(name, &PatchParams::default(), &cordon).await)?;
            self.drain(&claim.name_any(), name).await?;
            sleep(self.pool.shutdown).await;
            match self.fleet.remove(name).await {
                // An earlier attempt has done it.
                Ok(()) | Err(FleetError::UnknownNode(..)) => {}
                Err(error) => return Err(error.into()),
            }
            let uid = Preconditions { uid: node.uid(), resource_version: None };
            let params = DeleteParams { preconditions: Some(uid), ..DeleteParams::default() };
            unless_gone(self.nodes.delete(name, &params).await)?;
        }
        let let_go = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        Ok(unless_gone(self.claims.patch(&claim.name_any(), &PatchParams::default(), &let_go).await)?)
    }

    /// Deletes the pods of a node, and waits until they are gone, or until its NodeClaim may be terminated by force.
    async fn drain(&self, claim: &str, node: &str) -> kube::Result<()> {
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        loop {
            let forced_from = self.claims.get_opt(claim).await?.and_then(|claim| {
                claim.annotations().get(FORCED_FROM).and_then(|time| time.parse::<Timestamp>().ok())
            });
            let is_forced = forced_from.is_some_and(|at| at <= self.fleet.clock().now());
            let mut pods = Api::<Pod>::all(self.client.clone()).list(&on_node).await?.items;
            pods.retain(|pod| !is_over(pod) && !is_of_daemon_set(pod));
            for pod in &pods {
                let params = match (is_forced, pod.metadata.deletion_timestamp.is_some()) {
                    (true, _) => DeleteParams::default().grace_period(FORCED_GRACE),
                    (false, false) => DeleteParams::default(),
                    (false, true) => continue,
                };
                let namespace = pod.namespace().unwrap_or_default();
                let api: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
                unless_gone(api.delete(&pod.name_any(), &params).await)?;
            }
            if pods.is_empty() || is_forced {
                return Ok(());
            }
            sleep(LOOK).await;
        }
    }

    async fn launch(&self, boot: Duration) -> Result<(), KarpenterError> {
        let number = self.launched.fetch_add(1, Ordering::Relaxed) + 1;
        let name = format!("{}-{number}", self.pool.name);
        let provider_id = format!("simulated://{name}");
        let mut claim = DynamicObject::new(&name, &resource("NodeClaim", "nodeclaims"));
        claim.metadata.labels = Some([(POOL.to_owned(), self.pool.name.clone())].into());
        claim.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        self.claims.create(&PostParams::default(), &claim.data(json!({ "spec": {} }))).await?;
        let tell = async |is_up: bool| {
            let now = self.fleet.clock().now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let condition = |kind: &str, holds: bool| {
                json!({ "type": kind, "status": if holds { "True" } else { "Unknown" }, "reason": kind,
                    "message": "", "lastTransitionTime": now })
            };
            let conditions = [
                condition("Launched", true),
                condition("Registered", is_up),
                condition("Initialized", is_up),
            ];
            let mut status = json!({ "providerID": provider_id, "conditions": conditions });
            if is_up {
                status["nodeName"] = name.as_str().into();
            }
            let patch = Patch::Merge(json!({ "status": status }));
            self.claims.patch_status(&name, &PatchParams::default(), &patch).await
        };
        tell(false).await?;
        sleep(boot).await;
        let profile = self.pool.template.clone().renamed(&name).provided_as(&provider_id);
        let profile = profile
            .labelled(POOL, &self.pool.name)
            .labelled("karpenter.sh/registered", "true")
            .labelled("karpenter.sh/initialized", "true");
        self.fleet.add([profile]).await?;
        tell(true).await?;
        Ok(())
    }
}

/// Treats a write to an object as successful if others have removed or replaced the object meanwhile.
fn unless_gone<T>(written: kube::Result<T>) -> kube::Result<()> {
    match written {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => other.map(|_| ()),
    }
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn is_of_daemon_set(pod: &Pod) -> bool {
    pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet")
}
