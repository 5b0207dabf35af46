//! The API calls of simulated nodes. They decode only the fields of an answer that the caller needs.

use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, Request},
};
use serde_json::{Value, json};

use crate::{
    kubelet::Volume,
    pod::{PodId, resource_version},
    status,
};

const LEASE_NAMESPACE: &str = "kube-node-lease";

/// The fields of a written object that are read back.
#[derive(serde::Deserialize)]
struct Written {
    metadata: WrittenMetadata,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenMetadata {
    resource_version: String,
}

/// The outcome of a call whose object may no longer exist.
#[derive(Debug)]
pub(crate) enum Outcome<T> {
    Done(T),
    /// The object does not exist, or another one has its name.
    Gone,
    Failed(kube::Error),
}

impl<T> Outcome<T> {
    fn of(result: kube::Result<T>) -> Self {
        match result {
            Ok(value) => Self::Done(value),
            Err(kube::Error::Api(status)) if is_gone(&status) => Self::Gone,
            Err(error) => Self::Failed(error),
        }
    }
}

/// 404: no such name. 409 on a precondition and 422 on an immutable UID: another object has the name now.
fn is_gone(status: &kube::core::Status) -> bool {
    let other_uid = status.code == 422 && status.message.contains("uid");
    status.code == 404 || status.code == 409 || other_uid
}

/// The API as a kubelet uses it.
#[derive(Clone)]
pub(crate) struct Calls {
    client: Client,
    patch: PatchParams,
}

impl Calls {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            patch: PatchParams { field_manager: Some("kubelet".to_owned()), ..PatchParams::default() },
        }
    }

    async fn patch_status<K: Resource<DynamicType = ()>>(
        &self,
        namespace: Option<&str>,
        name: &str,
        body: &Value,
    ) -> kube::Result<u64> {
        let request = Request::new(K::url_path(&(), namespace));
        let patch = Patch::Strategic(body);
        let request = request
            .patch_subresource("status", name, &self.patch, &patch)
            .map_err(kube::Error::BuildRequest)?;
        let written: Written = self.client.request(request).await?;
        Ok(resource_version(Some(&written.metadata.resource_version)))
    }

    /// Writes a pod's status. Returns the new resourceVersion.
    pub(crate) async fn report_pod(&self, id: &PodId, status: &Value) -> Outcome<u64> {
        let body = status::patch(id, status);
        Outcome::of(self.patch_status::<Pod>(Some(&id.namespace), &id.name, &body).await)
    }

    /// Removes a terminated pod from the API, as a kubelet does at the end.
    pub(crate) async fn remove_pod(&self, id: &PodId) -> Outcome<()> {
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(id.uid.clone()), resource_version: None }),
            ..DeleteParams::default().grace_period(0)
        };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &id.namespace);
        Outcome::of(pods.delete(&id.name, &params).await.map(|_| ()))
    }

    /// Creates the mirror pod of a static pod.
    pub(crate) async fn create_mirror(&self, pod: &Pod) -> kube::Result<()> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        match pods.create(&PostParams::default(), pod).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// The volumes behind claims; `None` while one is not bound yet.
    pub(crate) async fn resolve(
        &self,
        namespace: &str,
        claims: &[String],
    ) -> kube::Result<Option<Vec<Volume>>> {
        let claim_api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let volume_api: Api<PersistentVolume> = Api::all(self.client.clone());
        let mut volumes = Vec::new();
        for name in claims {
            let claim = claim_api.get(name).await?;
            let Some(volume_name) = claim.spec.and_then(|s| s.volume_name) else {
                return Ok(None);
            };
            let spec = volume_api.get(&volume_name).await?.spec.unwrap_or_default();
            let exclusive = spec
                .access_modes
                .iter()
                .flatten()
                .all(|mode| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod");
            // Volumes of other kinds are mounted without an attachment.
            if let Some(csi) = spec.csi {
                volumes.push(Volume {
                    unique_name: format!("kubernetes.io/csi/{}^{}", csi.driver, csi.volume_handle),
                    exclusive_claim: exclusive.then(|| format!("{namespace}/{name}")),
                });
            }
        }
        Ok(Some(volumes))
    }

    /// Registers a node; one that already exists keeps its object.
    pub(crate) async fn register(&self, node: &Value, name: &str) -> kube::Result<()> {
        let request = Request::new(Node::url_path(&(), None));
        let body = serde_json::to_vec(node).map_err(kube::Error::SerdeError)?;
        let request = request.create(&PostParams::default(), body).map_err(kube::Error::BuildRequest)?;
        match self.client.request::<Written>(request).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.report_node(name, &node["status"]).await.map(|_| ())
            }
            other => other.map(|_| ()),
        }
    }

    /// Writes a node's status. Returns the new resourceVersion.
    pub(crate) async fn report_node(&self, name: &str, status: &Value) -> kube::Result<u64> {
        self.patch_status::<Node>(None, name, &json!({ "status": status })).await
    }

    /// Renews a node's Lease, and creates it if there is none.
    pub(crate) async fn renew(&self, node: &str, lasts: u64, now: Timestamp) -> kube::Result<()> {
        let spec = json!({
            "holderIdentity": node,
            "leaseDurationSeconds": lasts,
            "renewTime": status::micro_time(now),
        });
        let path = Lease::url_path(&(), Some(LEASE_NAMESPACE));
        let patch = Patch::Merge(json!({ "spec": spec }));
        let request =
            Request::new(path.clone()).patch(node, &self.patch, &patch).map_err(kube::Error::BuildRequest)?;
        match self.client.request::<Written>(request).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let lease = json!({
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": { "name": node, "namespace": LEASE_NAMESPACE },
                    "spec": spec,
                });
                let body = serde_json::to_vec(&lease).map_err(kube::Error::SerdeError)?;
                let request = Request::new(path)
                    .create(&PostParams::default(), body)
                    .map_err(kube::Error::BuildRequest)?;
                self.client.request::<Written>(request).await.map(|_| ())
            }
            other => other.map(|_| ()),
        }
    }
}
