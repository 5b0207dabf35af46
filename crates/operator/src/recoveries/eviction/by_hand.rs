//! Evicts a node by hand: surveys its pods and volumes, checks that its kubelet is silent, sets the taint, and reports
//! progress.
//!
//! Only the taint and, on request, an annotation are written here. The operator does the rest, regardless of who set
//! the taint.

use std::collections::{BTreeMap, BTreeSet};

use futures::{FutureExt, future::BoxFuture};
use http::{Method, Request, header::CONTENT_TYPE};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::Client;
use salvor_api::{
    config::Configuration,
    names::{annotations, taints},
};
use salvor_recovery::{
    eviction::{DespiteOutage, Lease, NodeView, PodView, asked_in_person, is_gone, leaves},
    gate::GatePolicy,
    ids::{NodeName, Uid},
    objects::{Ready, Taint},
    taints::Taints,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{client::live, explain::explainer::history, recoveries::eviction, time::Time};

/// The condition reason of a node whose eviction is finished.
const FINISHED: &str = "Finished";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Why a node cannot be read, or its eviction cannot be requested.
#[derive(Debug, thiserror::Error)]
pub enum EvictError {
    #[error("there is no {0}")]
    NotFound(String),
    #[error("cannot read {what}: {}", live::in_full(.error))]
    Read {
        /// The object or list that was read.
        what: String,
        error: kube::Error,
    },
    #[error("cannot write {what}: {}", live::in_full(.error))]
    Write {
        /// The object that was written.
        what: String,
        error: kube::Error,
    },
}

/// Access to a cluster in which a node may be evicted.
#[derive(Clone)]
pub struct EvictClient {
    client: Client,
    time: Time,
}

/// The pods and volumes on a node, and whether its kubelet is alive.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Survey {
    pub node: NodeName,
    /// The status of its `Ready` condition.
    pub ready: &'static str,
    /// When its kubelet last renewed its Lease.
    pub lease_renewed: Option<Timestamp>,
    /// Why it must not be evicted now; `None` if its kubelet is silent.
    pub alive: Option<String>,
    /// True if a user has already requested the eviction.
    pub requested: bool,
    pub pods: Vec<SurveyedPod>,
    pub volumes: Vec<SurveyedVolume>,
    /// The time of the survey on the server's clock.
    #[serde(skip)]
    pub at: Timestamp,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SurveyedPod {
    pub namespace: String,
    pub name: String,
    pub uid: Uid,
    /// The controller that replaces it, as kind and name; `None` if the pod will be lost.
    pub owner: Option<String>,
    #[serde(skip)]
    pub owner_uid: Option<Uid>,
    /// The completion index of an Indexed Job's pod.
    #[serde(skip)]
    pub index: Option<String>,
    /// The PersistentVolumeClaims that it uses.
    pub claims: Vec<String>,
    /// True if the eviction removes it.
    pub leaves: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SurveyedVolume {
    /// The PersistentVolume, or the VolumeAttachment if there is none.
    pub volume: String,
    pub driver: String,
}

/// The progress of an eviction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// The reason of the node's condition; `None` before the operator has begun.
    pub phase: Option<String>,
    /// Pods to evict that have not terminated or are not deleted.
    pub pods_left: usize,
    pub volumes_left: usize,
    pub tainted: bool,
    /// The node was Ready, and the request is remembered until its kubelet shows life.
    pub remembered: bool,
    pub end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictionRequest {
    /// The start of an earlier eviction that is already over, to distinguish it from the requested one.
    before: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum End {
    Finished,
    /// The taint is gone: the node is Ready, or another client removed it.
    TaintGone,
}

impl EvictClient {
    /// Connects to a cluster.
    ///
    /// # Errors
    /// If the configuration yields no client.
    pub fn open(config: kube::Config) -> Result<Self, EvictError> {
        let time = Time::system();
        let client = crate::client::connect(config, &time).map_err(|e| failed("the API", e))?;
        Ok(Self { client, time })
    }

    /// Reads a node with its Lease, pods and volumes.
    ///
    /// # Errors
    /// If there is no such node, or something cannot be read.
    pub fn survey<'a>(&'a self, name: &'a str, value: &'a str) -> BoxFuture<'a, Result<Survey, EvictError>> {
        async move {
            let name = &NodeName::from(name);
            let subject = format!("node {name}");
            let mut node = self.node(name).await?;
            let read = eviction::read_lease(&self.client, &mut node, self.time.server()).await;
            read.map_err(|e| failed(&format!("the Lease of {subject}"), e))?;
            let attached = eviction::read_attachments(&self.client, name).await;
            let volumes = attached
                .map_err(|e| failed("volumeattachments", e))?
                .into_iter()
                .map(|a| SurveyedVolume { volume: a.volume.unwrap_or(a.name), driver: a.driver });
            Ok(Survey {
                node: name.clone(),
                ready: match node.ready {
                    Ready::True => "True",
                    Ready::False => "False",
                    Ready::Unknown => "Unknown",
                },
                lease_renewed: match node.heartbeat() {
                    Lease::Renewed { heard, .. } => Some(heard),
                    Lease::Unread | Lease::None => None,
                },
                alive: alive(&node, self.time.server()),
                requested: asked_in_person(&node).is_some(),
                pods: self.pods_of(name, value).await?,
                volumes: volumes.collect(),
                at: self.time.server(),
            })
        }
        .boxed()
    }

    /// Sets the taint on a node, unless a user's taint is already there. If `despite_zone_outage` names a user, also
    /// sets an annotation that lets the eviction proceed although the node's zone, or most of the cluster, is lost as
    /// well.
    ///
    /// # Errors
    /// If the node is gone, or cannot be written.
    pub fn request<'a>(
        &'a self,
        name: &'a str,
        value: &'a str,
        despite_zone_outage: Option<&'a str>,
    ) -> BoxFuture<'a, Result<EvictionRequest, EvictError>> {
        async move {
            let subject = format!("node {name}");
            let path = format!("/api/v1/nodes/{name}");
            loop {
                let text = live::get(&self.client, &path).await.map_err(|e| failed(&subject, e))?;
                let text = text.ok_or_else(|| EvictError::NotFound(subject.clone()))?;
                let view = eviction::parse_node(&text).map_err(|e| failed(&subject, e))?;
                let is_asked = asked_in_person(&view).is_some();
                if is_asked && despite_zone_outage.is_none() {
                    return Ok(EvictionRequest { before: None });
                }
                // While our taint is present, late pods are still evicted, so that eviction counts as the requested
                // one.
                let over =
                    view.progress.as_ref().filter(|p| p.finished.is_some() && view.no_execute().is_none());
                let before = over.filter(|_| !is_asked).map(|progress| progress.started);
                let asked = EvictionRequest { before };
                let node: Value =
                    serde_json::from_str(&text).map_err(|e| failed(&subject, kube::Error::SerdeError(e)))?;
                let mut taints = Taints::of(&node);
                if !is_asked {
                    let taint = Taint {
                        key: taints::FORCE_EVICTION.to_owned(),
                        value: value.to_owned(),
                        effect: taints::NO_SCHEDULE.to_owned(),
                    };
                    taints = taints.with(&taint, None);
                }
                // The API server rejects the patch if the node was replaced or changed since. Without both fields, the
                // patch would apply to any node of that name.
                let identity = |field: &str| node["metadata"][field].as_str().filter(|text| !text.is_empty());
                let (Some(uid), Some(resource_version)) = (identity("uid"), identity("resourceVersion"))
                else {
                    let missing = "the answer has no metadata.uid or no metadata.resourceVersion";
                    let error = serde::de::Error::custom(missing);
                    return Err(failed(&subject, kube::Error::SerdeError(error)));
                };
                let mut metadata = json!({ "uid": uid, "resourceVersion": resource_version });
                if let Some(by) = despite_zone_outage {
                    let word = DespiteOutage { by: by.to_owned(), at: self.time.server() };
                    // Strings and times always serialize to JSON.
                    let word = serde_json::to_string(&word).unwrap_or_default();
                    metadata["annotations"] = json!({ annotations::DESPITE_ZONE_OUTAGE: word });
                }
                let body = json!({ "metadata": metadata, "spec": { "taints": taints.into_list() } });
                let request = Request::builder()
                    .method(Method::PATCH)
                    .uri(format!("{path}?fieldManager=salvor-evict"))
                    .header(CONTENT_TYPE, "application/merge-patch+json")
                    .body(body.to_string().into_bytes())
                    .map_err(|e| failed(&subject, kube::Error::HttpError(e)))?;
                match self.client.request_text(request).await {
                    // Another client changed the node meanwhile: read it again.
                    Err(kube::Error::Api(status)) if status.code == 409 => {}
                    Err(error) => return Err(EvictError::Write { what: subject, error }),
                    Ok(_) => return Ok(asked),
                }
            }
        }
        .boxed()
    }

    /// The progress of a node's eviction, for the pods and volumes in the survey.
    ///
    /// # Errors
    /// If the node is gone, or something cannot be read.
    pub fn standing<'a>(
        &'a self,
        survey: &'a Survey,
        asked: EvictionRequest,
    ) -> BoxFuture<'a, Result<Standing, EvictError>> {
        async move {
            let name = &survey.node;
            let node = self.node(name).await?;
            let here = self.pod_views(name).await?;
            let alive: BTreeSet<&Uid> =
                here.iter().filter(|pod| !is_gone(pod)).map(|pod| &pod.pod.uid).collect();
            let pods_left = survey.pods.iter().filter(|pod| pod.leaves && alive.contains(&pod.uid)).count();
            let attached = eviction::read_attachments(&self.client, name).await;
            let progress = node.progress.as_ref().filter(|progress| Some(progress.started) != asked.before);
            let tainted = node.taints.iter().any(|taint| taint.key == taints::FORCE_EVICTION);
            // With removeTaint=WhenEvicted the progress is removed with the taint, and only the condition remains.
            let was_finished = pods_left == 0 && node.condition.as_deref() == Some(FINISHED);
            let end =
                if progress.is_some_and(|progress| progress.finished.is_some()) || !tainted && was_finished {
                    Some(End::Finished)
                } else if !tainted {
                    Some(End::TaintGone)
                } else {
                    None
                };
            Ok(Standing {
                phase: if end == Some(End::Finished) {
                    Some(FINISHED.to_owned())
                } else {
                    progress.and(node.condition.clone())
                },
                pods_left,
                volumes_left: attached.map_err(|e| failed("volumeattachments", e))?.len(),
                tainted,
                remembered: node.asked.is_some(),
                end,
            })
        }
        .boxed()
    }

    /// Salvor's last event about a node since the survey, or about a problem that still exists.
    ///
    /// # Errors
    /// If events cannot be read.
    pub fn last_word<'a>(&'a self, survey: &'a Survey) -> BoxFuture<'a, Result<Option<String>, EvictError>> {
        async move {
            let told = history(&self.client, "default", survey.node.as_str())
                .await
                .map_err(|e| failed("events", e))?;
            // Truncated to the second: the time of the survey is only that precise on the server's clock.
            let since = Timestamp::from_second(survey.at.as_second()).unwrap_or(survey.at);
            let is_new = |line: &&String| {
                line.split(' ')
                    .next()
                    .and_then(|at| at.parse::<Timestamp>().ok())
                    .is_some_and(|at| at >= since)
            };
            if let Some(new) = told.iter().rfind(is_new) {
                return Ok(Some(new.clone()));
            }
            // A problem from before the request was reported only once, but still exists.
            let node = self.node(&survey.node).await?;
            let trouble = node.condition.clone().filter(|_| node.reports_a_trouble());
            Ok(trouble
                .map(|reason| told.iter().rfind(|line| line.contains(&reason)).cloned().unwrap_or(reason)))
        }
        .boxed()
    }

    /// Where the work of each evicted pod runs now: in a newer pod of its controller, with the same name or index if
    /// there is one. `None` for pods that return with their node or never.
    ///
    /// # Errors
    /// If pods cannot be read.
    pub fn whereabouts<'a>(
        &'a self,
        survey: &'a Survey,
    ) -> BoxFuture<'a, Result<BTreeMap<String, Option<String>>, EvictError>> {
        async move {
            let node = self.node(&survey.node).await?;
            let began = node.progress.map_or(survey.at, |progress| progress.started.min(survey.at));
            let mut found = BTreeMap::new();
            let namespaces: BTreeSet<&str> = survey.pods.iter().map(|pod| pod.namespace.as_str()).collect();
            for namespace in namespaces {
                let pods: kube::Api<Pod> = kube::Api::namespaced(self.client.clone(), namespace);
                let all = pods.list(&Default::default()).await.map_err(|e| failed("pods", e))?;
                let mut new: Vec<Pod> = all.into_iter().filter(|pod| is_new(pod, began)).collect();
                for old in survey.pods.iter().filter(|pod| pod.leaves && pod.namespace == namespace) {
                    let at = new.iter().position(|pod| replaces(pod, old));
                    found.insert(format!("{namespace}/{}", old.name), at.map(|at| place(&new.remove(at))));
                }
            }
            Ok(found)
        }
        .boxed()
    }

    async fn node(&self, name: &NodeName) -> Result<NodeView, EvictError> {
        let subject = format!("node {name}");
        let read = eviction::read_node(&self.client, name).await.map_err(|e| failed(&subject, e))?;
        read.ok_or(EvictError::NotFound(subject))
    }

    /// The pods on a node. A user vouches that the machine is down, so it does not matter which pods may run twice.
    async fn pod_views(&self, node: &NodeName) -> Result<Vec<PodView>, EvictError> {
        let gate = GatePolicy::new(&Configuration::default());
        eviction::read_pods(&self.client, node, &gate).await.map_err(|e| failed("pods", e))
    }

    async fn pods_of(&self, node: &NodeName, value: &str) -> Result<Vec<SurveyedPod>, EvictError> {
        let views = self.pod_views(node).await?;
        let pods: kube::Api<Pod> = kube::Api::all(self.client.clone());
        let on_it = kube::api::ListParams::default().fields(&format!("spec.nodeName={node}"));
        let whole = pods.list(&on_it).await.map_err(|e| failed("pods", e))?;
        let owners: BTreeMap<&str, &OwnerReference> =
            whole.iter().filter_map(|pod| Some((pod.metadata.uid.as_deref()?, owner(pod)?))).collect();
        let indexes: BTreeMap<&str, &str> =
            whole.iter().filter_map(|pod| Some((pod.metadata.uid.as_deref()?, index(pod)?))).collect();
        let mut pods: Vec<SurveyedPod> = views
            .iter()
            .map(|view| {
                let owner = owners.get(view.pod.uid.as_str());
                SurveyedPod {
                    namespace: view.pod.namespace.clone(),
                    name: view.pod.name.clone(),
                    uid: view.pod.uid.clone(),
                    owner: owner.map(|owner| format!("{}/{}", owner.kind, owner.name)),
                    owner_uid: owner.map(|owner| owner.uid.as_str().into()),
                    index: indexes.get(view.pod.uid.as_str()).map(|index| (*index).to_owned()),
                    claims: view.all_claims().map(|claim| claim.name.clone()).collect(),
                    leaves: leaves(view, value),
                }
            })
            .collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        Ok(pods)
    }
}

fn failed(what: &str, error: kube::Error) -> EvictError {
    EvictError::Read { what: what.to_owned(), error }
}

fn alive(node: &NodeView, now: Timestamp) -> Option<String> {
    if node.ready == Ready::True {
        return Some("it is Ready".to_owned());
    }
    let heartbeat = node.heartbeat();
    heartbeat.is_fresh(now).then(|| match node.lease {
        Lease::None => "its kubelet is alive: it renews the heartbeat of Ready".to_owned(),
        Lease::Unread | Lease::Renewed { .. } => format!("its kubelet is alive: {heartbeat}"),
    })
}

fn owner(pod: &Pod) -> Option<&OwnerReference> {
    pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

fn index(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(INDEX).map(String::as_str)
}

/// True if it was created since, and has not terminated. The API stores times to the second.
fn is_new(pod: &Pod, since: Timestamp) -> bool {
    let made = pod.metadata.creation_timestamp.as_ref().map(|time| time.0.as_second());
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    made.is_some_and(|made| made >= since.as_second()) && !matches!(phase, Some("Succeeded" | "Failed"))
}

fn replaces(new: &Pod, old: &SurveyedPod) -> bool {
    let same_owner = old.owner_uid.is_some()
        && owner(new).map(|o| o.uid.as_str()) == old.owner_uid.as_ref().map(Uid::as_str);
    let same_work = match old.owner.as_deref().and_then(|owner| owner.split_once('/')) {
        Some(("DaemonSet", _)) => false,
        Some(("StatefulSet", _)) => new.metadata.name.as_deref() == Some(old.name.as_str()),
        _ => index(new) == old.index.as_deref(),
    };
    same_owner && same_work && new.metadata.uid.as_deref() != Some(old.uid.as_str())
}

fn place(pod: &Pod) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending");
    match pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) {
        Some(node) => format!("{name} on {node} ({phase})"),
        None => format!("{name}, not scheduled yet"),
    }
}
