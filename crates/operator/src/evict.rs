//! Emptying a node by hand: what is on it, whether it is silent, the taint, and how far it has come.
//!
//! The taint is all that is written here. The operator does the rest, whoever put the taint there.

use std::collections::{BTreeMap, BTreeSet};

use futures::{FutureExt, future::BoxFuture};
use http::{Method, Request, header::CONTENT_TYPE};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::Client;
use salvor_api::names::taints;
use salvor_recovery::{
    eviction::{Lease, NodeView, leaves},
    objects::Ready,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{explain::ExplainError, live, recoveries::eviction, time::Time};

/// A cluster in which a node may be emptied.
#[derive(Clone)]
pub struct EvictionDesk {
    client: Client,
    time: Time,
}

/// What is on a node, and whether it is silent.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Survey {
    /// The node.
    pub node: String,
    /// Its `Ready` condition.
    pub ready: &'static str,
    /// When its kubelet was last heard of.
    pub lease_renewed: Option<Timestamp>,
    /// Why it must not be emptied now; nothing if it is silent.
    pub alive: Option<String>,
    /// Whether somebody has asked for it already.
    pub requested: bool,
    /// Its pods.
    pub pods: Vec<SurveyedPod>,
    /// Volumes that are attached to it.
    pub volumes: Vec<SurveyedVolume>,
}

/// A pod on a node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SurveyedPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The controller that replaces it, as kind and name; nothing if it will be lost.
    pub owner: Option<String>,
    /// That controller's UID.
    #[serde(skip)]
    pub owner_uid: Option<String>,
    /// The claims that it uses.
    pub claims: Vec<String>,
    /// Whether it goes.
    pub leaves: bool,
}

/// A volume that is attached to a node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SurveyedVolume {
    /// The PersistentVolume, or the attachment if there is none.
    pub volume: String,
    /// The driver.
    pub driver: String,
}

/// How far it has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// What the node's condition says; nothing before the operator has taken it up.
    pub phase: Option<String>,
    /// Pods that have to go and are still there.
    pub pods_left: usize,
    /// Volumes that are still attached.
    pub volumes_left: usize,
    /// How it ended, if it did.
    pub end: Option<End>,
}

/// How an eviction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum End {
    /// Pods and volumes are gone.
    Finished,
    /// The taint is gone: the node is Ready, or somebody took it off.
    TaintGone,
}

impl EvictionDesk {
    /// Goes to a cluster.
    ///
    /// # Errors
    /// If no client can be made of this configuration.
    pub fn open(config: kube::Config) -> Result<Self, ExplainError> {
        let time = Time::system();
        let client = crate::client::connect(config, &time).map_err(|e| failed("the API", e))?;
        Ok(Self { client, time })
    }

    /// Looks at a node.
    ///
    /// # Errors
    /// If there is no such node, or something cannot be read.
    pub fn survey<'a>(
        &'a self,
        name: &'a str,
        value: &'a str,
    ) -> BoxFuture<'a, Result<Survey, ExplainError>> {
        async move {
            let subject = format!("node {name}");
            let node = self.node(name).await?;
            let lease = eviction::read_lease(&self.client, name, self.time.server()).await;
            let lease = lease.map_err(|e| failed(&format!("the Lease of {subject}"), e))?;
            let attached = eviction::read_attachments(&self.client, name).await;
            let volumes = attached
                .map_err(|e| failed("volumeattachments", e))?
                .into_iter()
                .map(|a| SurveyedVolume { volume: a.volume.unwrap_or(a.name), driver: a.driver });
            Ok(Survey {
                node: name.to_owned(),
                ready: match node.ready {
                    Ready::True => "True",
                    Ready::False => "False",
                    Ready::Unknown => "Unknown",
                },
                lease_renewed: match lease {
                    Lease::Renewed { heard, .. } => Some(heard),
                    Lease::Unread | Lease::None => None,
                },
                alive: alive(&node, lease, self.time.server()),
                requested: is_tainted(&node) || node.progress.is_some(),
                pods: self.pods_of(name, value).await?,
                volumes: volumes.collect(),
            })
        }
        .boxed()
    }

    /// Puts the taint on a node. One that is there already is left as it is.
    ///
    /// # Errors
    /// If the node is gone, or cannot be written.
    pub fn request<'a>(&'a self, name: &'a str, value: &'a str) -> BoxFuture<'a, Result<(), ExplainError>> {
        async move {
            let subject = format!("node {name}");
            let path = format!("/api/v1/nodes/{name}");
            loop {
                let text = live::get(&self.client, &path).await.map_err(|e| failed(&subject, e))?;
                let text = text.ok_or_else(|| ExplainError::NotFound(subject.clone()))?;
                let node: Value =
                    serde_json::from_str(&text).map_err(|e| failed(&subject, kube::Error::SerdeError(e)))?;
                let mut all = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
                if all.iter().any(|taint| taint["key"] == taints::FORCE_EVICTION) {
                    return Ok(());
                }
                let mut taint = json!({ "key": taints::FORCE_EVICTION, "effect": taints::NO_SCHEDULE });
                if !value.is_empty() {
                    taint["value"] = value.into();
                }
                all.push(taint);
                let metadata = &node["metadata"];
                let body = json!({
                    "metadata": { "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"] },
                    "spec": { "taints": all },
                });
                let request = Request::builder()
                    .method(Method::PATCH)
                    .uri(format!("{path}?fieldManager=salvor-evict"))
                    .header(CONTENT_TYPE, "application/merge-patch+json")
                    .body(body.to_string().into_bytes())
                    .map_err(|e| failed(&subject, kube::Error::HttpError(e)))?;
                match self.client.request_text(request).await {
                    // Somebody else wrote to the node meanwhile: looked at anew.
                    Err(kube::Error::Api(status)) if status.code == 409 => {}
                    Err(error) => return Err(ExplainError::Write { what: subject, source: error }),
                    Ok(_) => return Ok(()),
                }
            }
        }
        .boxed()
    }

    /// How far the eviction of a node has come, for pods and volumes that were there before.
    ///
    /// # Errors
    /// If the node is gone, or something cannot be read.
    pub fn standing<'a>(&'a self, survey: &'a Survey) -> BoxFuture<'a, Result<Standing, ExplainError>> {
        async move {
            let name = &survey.node;
            let node = self.node(name).await?;
            let here = eviction::read_pods(&self.client, name).await.map_err(|e| failed("pods", e))?;
            let here: BTreeSet<&str> = here.iter().map(|pod| pod.pod.uid.as_str()).collect();
            let attached = eviction::read_attachments(&self.client, name).await;
            let progress = node.progress.as_ref();
            let end = if progress.is_some_and(|progress| progress.finished.is_some()) {
                Some(End::Finished)
            } else if !is_tainted(&node) {
                Some(End::TaintGone)
            } else {
                None
            };
            Ok(Standing {
                phase: progress.and(node.condition.clone()),
                pods_left: survey
                    .pods
                    .iter()
                    .filter(|pod| pod.leaves && here.contains(pod.uid.as_str()))
                    .count(),
                volumes_left: attached.map_err(|e| failed("volumeattachments", e))?.len(),
                end,
            })
        }
        .boxed()
    }

    /// Where the work of each pod that went runs now: by the pod's controller, or by its name if that is kept.
    ///
    /// # Errors
    /// If pods cannot be read.
    pub fn whereabouts<'a>(
        &'a self,
        survey: &'a Survey,
    ) -> BoxFuture<'a, Result<BTreeMap<String, Vec<String>>, ExplainError>> {
        async move {
            let gone: BTreeSet<&str> = survey.pods.iter().map(|pod| pod.uid.as_str()).collect();
            let mut found = BTreeMap::new();
            let namespaces: BTreeSet<&str> = survey.pods.iter().map(|pod| pod.namespace.as_str()).collect();
            for namespace in namespaces {
                let pods: kube::Api<Pod> = kube::Api::namespaced(self.client.clone(), namespace);
                let all = pods.list(&Default::default()).await.map_err(|e| failed("pods", e))?;
                for old in survey.pods.iter().filter(|pod| pod.leaves && pod.namespace == namespace) {
                    let replaces = |new: &&Pod| {
                        let same_owner =
                            old.owner_uid.is_some() && owner(new).map(|o| &o.uid) == old.owner_uid.as_ref();
                        let same_name = new.metadata.name.as_deref() == Some(old.name.as_str());
                        let keeps_names = old.owner.as_deref().is_some_and(|o| o.starts_with("StatefulSet/"));
                        let is_new = new.metadata.uid.as_deref().is_some_and(|uid| !gone.contains(uid));
                        is_new && same_owner && (same_name || !keeps_names)
                    };
                    let places = all.iter().filter(replaces).map(place).collect();
                    found.insert(format!("{namespace}/{}", old.name), places);
                }
            }
            Ok(found)
        }
        .boxed()
    }

    async fn node(&self, name: &str) -> Result<NodeView, ExplainError> {
        let subject = format!("node {name}");
        let read = eviction::read_node(&self.client, name).await.map_err(|e| failed(&subject, e))?;
        read.ok_or(ExplainError::NotFound(subject))
    }

    async fn pods_of(&self, node: &str, value: &str) -> Result<Vec<SurveyedPod>, ExplainError> {
        let views = eviction::read_pods(&self.client, node).await.map_err(|e| failed("pods", e))?;
        let pods: kube::Api<Pod> = kube::Api::all(self.client.clone());
        let on_it = kube::api::ListParams::default().fields(&format!("spec.nodeName={node}"));
        let whole = pods.list(&on_it).await.map_err(|e| failed("pods", e))?;
        let owners: BTreeMap<&str, &OwnerReference> =
            whole.iter().filter_map(|pod| Some((pod.metadata.uid.as_deref()?, owner(pod)?))).collect();
        let mut pods: Vec<SurveyedPod> = views
            .iter()
            .map(|view| {
                let owner = owners.get(view.pod.uid.as_str());
                SurveyedPod {
                    namespace: view.pod.namespace.clone(),
                    name: view.pod.name.clone(),
                    uid: view.pod.uid.clone(),
                    owner: owner.map(|owner| format!("{}/{}", owner.kind, owner.name)),
                    owner_uid: owner.map(|owner| owner.uid.clone()),
                    claims: view.claims.iter().map(|claim| claim.name.clone()).collect(),
                    leaves: leaves(view, value),
                }
            })
            .collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        Ok(pods)
    }
}

fn failed(what: &str, source: kube::Error) -> ExplainError {
    ExplainError::Api { what: what.to_owned(), source }
}

fn is_tainted(node: &NodeView) -> bool {
    node.taints.iter().any(|taint| taint.key == taints::FORCE_EVICTION)
}

fn alive(node: &NodeView, lease: Lease, now: Timestamp) -> Option<String> {
    if node.ready == Ready::True {
        return Some("it is Ready".to_owned());
    }
    lease.is_fresh(now).then(|| format!("its kubelet lives: {lease}"))
}

fn owner(pod: &Pod) -> Option<&OwnerReference> {
    pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

fn place(pod: &Pod) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending");
    match pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) {
        Some(node) => format!("{name} on {node} ({phase})"),
        None => format!("{name}, not scheduled yet"),
    }
}
