//! Karpenter's part in a simulation: it turns NodeClaims into machines, and ends a machine when its NodeClaim is
//! deleted. Its own node repair is not part of it.

use std::collections::{BTreeMap, BTreeSet};

use http::Request;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams,
    },
};
use salvor_apiserver::Cluster;
use serde_json::{Value, json};

const FINALIZER: &str = "karpenter.sh/termination";
/// A machine is gone this many beats after its NodeClaim is being deleted.
const TERMINATION: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub pool: String,
    /// Empty if it has no zone.
    pub zone: String,
}

/// The NodeClaims that changed since the last beat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Those whose deletion began since the last beat.
    pub told_to_go: Vec<String>,
    /// Those that are gone, with their machines.
    pub gone: Vec<(String, Machine)>,
}

/// Karpenter without the controllers that decide: the caller says what is launched and when it is ready.
///
/// NodeClaims and Nodes have the same names. All calls return the errors of the API.
pub struct Karpenter {
    cluster: Cluster,
    claims: Api<DynamicObject>,
    pools: Api<DynamicObject>,
    nodes: Api<Node>,
    provider: &'static str,
    made: usize,
    machines: BTreeMap<String, Machine>,
    /// The number of beats since each NodeClaim is being deleted.
    going: BTreeMap<String, usize>,
    stuck: BTreeSet<String>,
}

impl Karpenter {
    /// Installs Karpenter's CRDs. `provider` is the scheme of providerIDs, for example `aws` or `kwok`.
    pub async fn install(cluster: &Cluster, provider: &'static str) -> Result<Self, kube::Error> {
        let client = cluster.client();
        for (kind, plural) in [("NodeClaim", "nodeclaims"), ("NodePool", "nodepools")] {
            define(&client, &format!("{plural}.karpenter.sh"), &definition(kind, plural)).await?;
        }
        Ok(Self {
            cluster: cluster.clone(),
            claims: objects(&client, "karpenter.sh", "v1", "NodeClaim", "nodeclaims"),
            pools: objects(&client, "karpenter.sh", "v1", "NodePool", "nodepools"),
            nodes: Api::all(client),
            provider,
            made: 0,
            machines: BTreeMap::new(),
            going: BTreeMap::new(),
            stuck: BTreeSet::new(),
        })
    }

    pub fn pools(&self) -> &Api<DynamicObject> {
        &self.pools
    }

    /// Creates a NodeClaim and returns its name.
    pub async fn order(&mut self, machine: Machine) -> Result<String, kube::Error> {
        let name = format!("node-{}", self.made);
        self.made += 1;
        let claim = object(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": name, "labels": labels(&machine), "finalizers": [FINALIZER]},
            "spec": {},
        }))?;
        self.claims.create(&PostParams::default(), &claim).await?;
        self.tell(&name, json!({"conditions": self.conditions("Unknown", "Unknown")})).await?;
        self.machines.insert(name.clone(), machine);
        Ok(name)
    }

    /// The machine's kubelet registers its Node, which has no conditions yet.
    pub async fn register(&self, name: &str) -> Result<(), kube::Error> {
        let Some(machine) = self.machines.get(name) else { return Ok(()) };
        let provider = format!("{}://{name}", self.provider);
        let conditions = self.conditions("True", "Unknown");
        self.tell(name, json!({"providerID": provider, "nodeName": name, "conditions": conditions})).await?;
        let node = object(json!({
            "metadata": {"name": name, "labels": labels(machine), "finalizers": [FINALIZER]},
            "spec": {"providerID": provider},
        }))?;
        self.nodes.create(&PostParams::default(), &node).await.map(|_| ())
    }

    /// The Node becomes Ready, and Karpenter marks the NodeClaim as initialized.
    pub async fn initialize(&self, name: &str) -> Result<(), kube::Error> {
        let label = json!({"metadata": {"labels": {"karpenter.sh/initialized": "true"}}});
        self.nodes.patch(name, &PatchParams::default(), &Patch::Merge(label)).await?;
        self.condition(name, "Ready", "True").await?;
        self.tell(name, json!({"conditions": self.conditions("True", "True")})).await
    }

    /// The cloud has no machine for this NodeClaim, so Karpenter deletes it.
    pub async fn give_up(&mut self, name: &str) -> Result<(), kube::Error> {
        self.claims.delete(name, &DeleteParams::default()).await?;
        self.release(name).await?;
        self.machines.remove(name);
        Ok(())
    }

    /// An agent on the node, or its kubelet, writes a condition, with a lastTransitionTime of now.
    pub async fn condition(&self, node: &str, kind: &str, status: &str) -> Result<(), kube::Error> {
        let now = self.now();
        let condition =
            json!({"type": kind, "status": status, "reason": "Simulated", "lastTransitionTime": now});
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        self.nodes.patch_status(node, &PatchParams::default(), &patch).await.map(|_| ())
    }

    /// From now on this machine never terminates, even if its NodeClaim is deleted.
    pub fn stick(&mut self, name: &str) {
        self.stuck.insert(name.to_owned());
    }

    /// True if no machine is being terminated, so that it has nothing to do until a NodeClaim is deleted.
    pub fn is_idle(&self) -> bool {
        self.going.is_empty()
    }

    /// Checks all NodeClaims once. One that is being deleted loses its Node and, some beats later, its machine.
    pub async fn beat(&mut self) -> Result<Beat, kube::Error> {
        let mut beat = Beat::default();
        for claim in self.claims.list(&ListParams::default()).await?.items {
            let name = claim.name_any();
            if claim.metadata.deletion_timestamp.is_none() {
                continue;
            }
            let looks = self.going.entry(name.clone()).or_default();
            *looks += 1;
            match *looks {
                1 => {
                    self.nodes
                        .delete(&name, &DeleteParams::default())
                        .await
                        .map(|_| ())
                        .or_else(unless_gone)?;
                    beat.told_to_go.push(name);
                }
                looks if looks >= TERMINATION && !self.stuck.contains(&name) => {
                    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                    let node = self.nodes.patch(&name, &PatchParams::default(), &patch).await;
                    node.map(|_| ()).or_else(unless_gone)?;
                    self.release(&name).await?;
                    self.going.remove(&name);
                    beat.gone.extend(self.machines.remove(&name).map(|machine| (name, machine)));
                }
                _ => {}
            }
        }
        Ok(beat)
    }

    async fn release(&self, name: &str) -> Result<(), kube::Error> {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        self.claims.patch(name, &PatchParams::default(), &patch).await.map(|_| ()).or_else(unless_gone)
    }

    async fn tell(&self, name: &str, status: Value) -> Result<(), kube::Error> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.claims.patch_status(name, &PatchParams::default(), &patch).await.map(|_| ())
    }

    fn conditions(&self, registered: &str, initialized: &str) -> Value {
        let now = self.now();
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": kind, "lastTransitionTime": now});
        json!([condition("Registered", registered), condition("Initialized", initialized)])
    }

    fn now(&self) -> String {
        self.cluster.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

/// Cluster-scoped custom objects.
pub fn objects(client: &Client, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    Api::all_with(client.clone(), &resource)
}

pub async fn define(client: &Client, name: &str, definition: &str) -> Result<(), kube::Error> {
    let path =
        format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}?fieldManager=simulation");
    let request = Request::patch(path)
        .header("content-type", "application/apply-patch+yaml")
        .body(definition.as_bytes().to_vec())
        .map_err(kube::Error::HttpError)?;
    client.request_text(request).await.map(|_| ())
}

/// A Karpenter CRD whose schema accepts everything.
fn definition(kind: &str, plural: &str) -> String {
    let singular = kind.to_lowercase();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.karpenter.sh")},
        "spec": {
            "group": "karpenter.sh", "scope": "Cluster",
            "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
    .to_string()
}

fn labels(Machine { pool, zone }: &Machine) -> Value {
    let mut labels = json!({"karpenter.sh/nodepool": pool});
    if !zone.is_empty() {
        labels["topology.kubernetes.io/zone"] = json!(zone);
    }
    labels
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> Result<K, kube::Error> {
    serde_json::from_value(value).map_err(kube::Error::SerdeError)
}

/// Treats NotFound as success: the object was to be deleted, or no longer needs the change.
pub fn unless_gone(error: kube::Error) -> Result<(), kube::Error> {
    match error {
        kube::Error::Api(status) if status.code == 404 => Ok(()),
        other => Err(other),
    }
}
