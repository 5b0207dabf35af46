//! One pass over a namespace that is being deleted: deletes its content, reports what is left, and removes the
//! finalizer when it is empty.

use std::collections::BTreeMap;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request};
use jiff::Timestamp;
use kube::Client;
use salvor_apiserver::object;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::calls::CallError;
use crate::world::collection::{Kind, Resource};
use crate::world::follow::Shared;
use crate::world::served::{METADATA_LIST, Served};
use crate::world::views::{Bare, Namespace};

/// The finalizer in `spec.finalizers` of every namespace until it is empty.
pub(crate) const FINALIZER: &str = "kubernetes";

/// The assumed time for finalizers of objects in a namespace, in seconds.
const FINALIZERS_TAKE: i64 = 15;

/// A pass that has not ended by then has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// The conditions of a namespace that is being deleted: their types, and their reasons and messages when there is no
/// problem.
const CONDITIONS: [(&str, &str, &str); 5] = [
    ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    (CONTENT_FAILURE, "ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
    (CONTENT_REMAINING, "ContentRemoved", "All content successfully removed"),
    (FINALIZERS_REMAINING, "ContentHasNoFinalizers", "All content-preserving finalizers finished"),
];
const CONTENT_FAILURE: &str = "NamespaceDeletionContentFailure";
const CONTENT_REMAINING: &str = "NamespaceContentRemaining";
const FINALIZERS_REMAINING: &str = "NamespaceFinalizersRemaining";

/// Makes one pass. A pass that leaves something behind returns when the next one is due.
pub(crate) async fn pass(
    client: &Client,
    shared: &Shared,
    name: &str,
    now: Timestamp,
) -> Result<(), CallError> {
    let pass = Pass { client, name, now };
    timeout(PATIENCE, pass.make(shared)).await.map_err(|_| CallError::NoAnswer)?
}

struct Pass<'p> {
    client: &'p Client,
    name: &'p str,
    now: Timestamp,
}

impl Pass<'_> {
    async fn make(&self, shared: &Shared) -> Result<(), CallError> {
        let namespace = match self.send::<Namespace>(Method::GET, self.path(""), None).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            found => found?,
        };
        let Some(deleted) = namespace.metadata.deletion_timestamp else { return Ok(()) };
        if !namespace.spec.finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
            return Ok(());
        }
        let left = self.delete_content(deleted).await?;
        if let Some(conditions) = left.conditions(&namespace.status, self.now) {
            let body = json!({
                "metadata": { "uid": namespace.metadata.uid }, "status": { "conditions": conditions },
            });
            // The condition is only for users, so a failed write does not delay the rest.
            if let Err(error) = self.send::<Bare>(Method::PATCH, self.path("/status"), Some(body)).await {
                tracing::debug!(namespace = self.name, %error, "cannot say what is left");
            }
        }
        if !left.failures.is_empty() {
            return Err(CallError::NotEmptied(left.failures.join(", ")));
        }
        if left.estimate > 0 {
            let seconds = u64::try_from(left.estimate / 2 + 1).unwrap_or(1);
            return Err(CallError::NotYet(Duration::from_secs(seconds)));
        }
        self.release(shared, &namespace.metadata.uid).await
    }

    /// Removes our finalizer, and waits until the watch shows that.
    async fn release(&self, shared: &Shared, uid: &str) -> Result<(), CallError> {
        let mut latest: Value = match self.send(Method::GET, self.path(""), None).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            found => found?,
        };
        if object::uid(&latest) != uid {
            return Ok(());
        }
        let kept: Vec<String> = object::strings(&latest, "/spec/finalizers")
            .into_iter()
            .filter(|finalizer| finalizer != FINALIZER)
            .collect();
        latest["spec"]["finalizers"] = json!(kept);
        match self.send::<Bare>(Method::PUT, self.path("/finalize"), Some(latest)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
        shared
            .until(|world| {
                let found = world.namespaces.get(self.name).filter(|found| found.metadata.uid == uid);
                found.is_none_or(|found| !found.spec.finalizers.iter().any(|known| known == FINALIZER))
            })
            .await;
        Ok(())
    }

    /// Deletes all objects in the namespace: pods first, and the rest only when no pod is left, so that pods can use it
    /// until they end.
    async fn delete_content(&self, deleted: Timestamp) -> Result<Left, CallError> {
        let served = Served::ask(self.client).await?;
        let deletable = |resource: &&Resource| resource.namespaced && resource.can("delete");
        let resources: Vec<&Resource> =
            served.resources().map(|resource| &**resource).filter(deletable).collect();
        let (pods, others): (Vec<&Resource>, Vec<&Resource>) =
            resources.into_iter().partition(|resource| is_pods(resource));
        let mut left = Left::default();
        for resource in pods {
            self.delete_all(resource, deleted, &mut left).await;
        }
        if !left.instances.is_empty() {
            // Remaining pods are not reported: they are expected to end.
            return Ok(Left { instances: BTreeMap::new(), finalizers: BTreeMap::new(), ..left });
        }
        for resource in others {
            self.delete_all(resource, deleted, &mut left).await;
        }
        Ok(left)
    }

    /// Deletes all objects of one resource. A failure does not block the other resources.
    async fn delete_all(&self, resource: &Resource, deleted: Timestamp, left: &mut Left) {
        match self.try_delete_all(resource, deleted, left).await {
            Ok(()) => {}
            // The kind is no longer served, or does not support deletecollection.
            Err(kube::Error::Api(status)) if [404, 405].contains(&status.code) => {}
            Err(error) => left.failures.push(error.to_string()),
        }
    }

    async fn try_delete_all(
        &self,
        resource: &Resource,
        deleted: Timestamp,
        left: &mut Left,
    ) -> kube::Result<()> {
        let path = resource.path(self.name);
        let grace = if is_pods(resource) { self.longest_grace(&path, deleted).await? } else { 0 };
        let options =
            json!({ "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background" });
        if resource.can("deletecollection") {
            self.send::<Value>(Method::DELETE, path.clone(), Some(options)).await?;
        } else {
            for item in self.list::<Bare>(&path, METADATA_LIST).await? {
                let one = format!("{path}/{}", item.metadata.name);
                match self.send::<Value>(Method::DELETE, one, Some(options.clone())).await {
                    Err(kube::Error::Api(status)) if [404, 405].contains(&status.code) => {}
                    outcome => drop(outcome?),
                }
            }
        }
        if resource.can("list") {
            left.count(resource, self.name, grace, &self.list::<Bare>(&path, METADATA_LIST).await?);
        }
        Ok(())
    }

    /// The longest remaining grace period of running pods.
    async fn longest_grace(&self, path: &str, deleted: Timestamp) -> kube::Result<i64> {
        let pods = self.list::<Ending>(path, "application/json").await?;
        let running = pods.iter().filter(|pod| !["Succeeded", "Failed"].contains(&pod.status.phase.as_str()));
        let grace =
            running.filter_map(|pod| pod.spec.termination_grace_period_seconds).max().unwrap_or(0).max(0);
        let is_over = self.now.duration_since(deleted).as_secs() >= grace;
        Ok(if is_over { 0 } else { grace })
    }

    async fn list<V: DeserializeOwned>(&self, path: &str, form: &'static str) -> kube::Result<Vec<V>> {
        let request = Request::get(path).header(ACCEPT, form).body(Vec::new());
        let list: List<V> = self.client.request(request.map_err(kube::Error::HttpError)?).await?;
        Ok(list.items)
    }

    async fn send<V: DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        body: Option<Value>,
    ) -> kube::Result<V> {
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = body.map(|body| object::encode(&body).to_vec()).unwrap_or_default();
        let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, kind).body(body);
        self.client.request(request.map_err(kube::Error::HttpError)?).await
    }

    fn path(&self, below: &str) -> String {
        format!("{}/{}{below}", Kind::Namespace.path(""), self.name)
    }
}

fn is_pods(resource: &Resource) -> bool {
    resource.group().is_empty() && resource.plural == "pods"
}

/// The objects that a pass has left.
#[derive(Debug, Default)]
struct Left {
    /// The number of seconds that this is expected to take.
    estimate: i64,
    /// The number of objects of each resource.
    instances: BTreeMap<String, usize>,
    /// The number of objects that each finalizer blocks.
    finalizers: BTreeMap<String, usize>,
    failures: Vec<String>,
}

impl Left {
    fn count(&mut self, resource: &Resource, namespace: &str, grace: i64, items: &[Bare]) {
        if items.is_empty() {
            return;
        }
        self.instances.insert(format!("{}.{}", resource.plural, resource.group()), items.len());
        let mut held = false;
        for finalizer in items.iter().flat_map(|item| &item.metadata.finalizers) {
            *self.finalizers.entry(finalizer.clone()).or_default() += 1;
            held = true;
        }
        if grace > 0 {
            self.estimate = self.estimate.max(grace);
        } else if held {
            self.estimate = self.estimate.max(FINALIZERS_TAKE);
        } else {
            let (group, version) = (resource.group(), resource.version());
            self.failures.push(format!(
                "unexpected items still remain in namespace: {namespace} for gvr: {group}/{version}, Resource={}",
                resource.plural
            ));
        }
    }

    /// The problems: condition type, reason and message.
    fn complaints(&self) -> Vec<(&'static str, &'static str, String)> {
        let mut complaints = Vec::new();
        if !self.failures.is_empty() {
            let mut failures = self.failures.clone();
            failures.sort();
            let message = format!(
                "Failed to delete all resource types, {} remaining: {}",
                failures.len(),
                failures.join(", ")
            );
            complaints.push((CONTENT_FAILURE, "ContentDeletionFailed", message));
        }
        if !self.instances.is_empty() {
            let shown =
                |(resource, count): (&String, &usize)| format!("{resource} has {count} resource instances");
            let shown: Vec<String> = self.instances.iter().map(shown).collect();
            let message = format!("Some resources are remaining: {}", shown.join(", "));
            complaints.push((CONTENT_REMAINING, "SomeResourcesRemain", message));
        }
        if !self.finalizers.is_empty() {
            let shown =
                |(finalizer, count): (&String, &usize)| format!("{finalizer} in {count} resource instances");
            let shown: Vec<String> = self.finalizers.iter().map(shown).collect();
            let message =
                format!("Some content in the namespace has finalizers remaining: {}", shown.join(", "));
            complaints.push((FINALIZERS_REMAINING, "SomeFinalizersRemain", message));
        }
        complaints
    }

    /// The conditions of the namespace, if they have changed.
    fn conditions(&self, status: &Value, now: Timestamp) -> Option<Value> {
        let complaints = self.complaints();
        let known = object::list(status, "/conditions");
        let mut conditions: Vec<Value> = known.to_vec();
        for (kind, fine, all_is_well) in CONDITIONS {
            let complaint = complaints.iter().find(|(about, ..)| *about == kind);
            let (value, reason, message) = match complaint {
                Some((_, reason, message)) => ("True", *reason, message.as_str()),
                None => ("False", fine, all_is_well),
            };
            let mut condition = json!({
                "type": kind, "status": value, "reason": reason, "message": message,
                "lastTransitionTime": object::time(now),
            });
            match conditions.iter_mut().find(|known| object::text(known, "/type") == kind) {
                Some(known) => {
                    if object::text(known, "/status") == value {
                        condition["lastTransitionTime"] = known["lastTransitionTime"].clone();
                    }
                    *known = condition;
                }
                None => conditions.push(condition),
            }
        }
        (conditions != known).then_some(Value::Array(conditions))
    }
}

#[derive(Deserialize)]
struct List<V> {
    #[serde(default = "Vec::new")]
    items: Vec<V>,
}

/// The fields of a pod that matter for its termination.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Ending {
    spec: EndingSpec,
    status: EndingStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct EndingSpec {
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct EndingStatus {
    phase: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(instances: &[(&str, usize)], finalizers: &[(&str, usize)], failures: &[&str]) -> Left {
        let owned = |counts: &[(&str, usize)]| {
            counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        Left {
            estimate: 0,
            instances: owned(instances),
            finalizers: owned(finalizers),
            failures: failures.iter().map(|&text| text.to_owned()).collect(),
        }
    }

    fn shown(conditions: &Value) -> Vec<String> {
        let line = |condition: &Value| {
            format!(
                "{}={} {}",
                condition["type"].as_str().unwrap(),
                condition["status"].as_str().unwrap(),
                condition["message"].as_str().unwrap()
            )
        };
        conditions.as_array().unwrap().iter().map(line).collect()
    }

    #[test]
    fn a_namespace_says_what_is_left_in_it_and_only_what_is_new() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let some = left(&[("pods.", 2), ("jobs.batch", 1)], &[("example.com/hold", 3)], &["b", "a"]);
        let first = some.conditions(&json!({}), at(0)).unwrap();
        assert_eq!(
            shown(&first),
            [
                "NamespaceDeletionDiscoveryFailure=False All resources successfully discovered",
                "NamespaceDeletionGroupVersionParsingFailure=False All legacy kube types successfully parsed",
                "NamespaceDeletionContentFailure=True Failed to delete all resource types, 2 remaining: a, b",
                "NamespaceContentRemaining=True Some resources are remaining: jobs.batch has 1 resource instances, pods. has 2 resource instances",
                "NamespaceFinalizersRemaining=True Some content in the namespace has finalizers remaining: example.com/hold in 3 resource instances",
            ]
        );
        let status = json!({ "conditions": first });
        assert_eq!(some.conditions(&status, at(9)), None);
        let fewer = left(&[("jobs.batch", 1)], &[], &[]).conditions(&status, at(9)).unwrap();
        let times: Vec<&str> = object::list(&json!({ "c": fewer }), "/c")
            .iter()
            .map(|c| c["lastTransitionTime"].as_str().unwrap().to_owned())
            .map(|t| if t == "1970-01-01T00:00:00Z" { "kept" } else { "new" })
            .collect();
        assert_eq!(times, ["kept", "kept", "new", "kept", "new"]);
        assert!(shown(&fewer)[4].starts_with("NamespaceFinalizersRemaining=False"));
    }

    #[test]
    fn what_is_left_without_a_reason_is_a_failure() {
        let resource = |plural: &str| -> Resource {
            let groups = json!({ "items": [{ "versions": [{ "version": "v1", "resources": [
                { "resource": plural, "responseKind": { "kind": "X" }, "scope": "Namespaced", "verbs": ["delete"] },
            ] }] }] });
            Served::read("/api", groups).resources().next().map(|found| (**found).clone()).unwrap()
        };
        let item = |finalizers: &[&str]| -> Bare {
            serde_json::from_value(json!({ "metadata": { "finalizers": finalizers } })).unwrap()
        };
        let mut graceful = Left::default();
        graceful.count(&resource("pods"), "n", 5, &[item(&["a/b"])]);
        assert_eq!((graceful.estimate, graceful.failures.len()), (5, 0));
        let mut empty = Left::default();
        empty.count(&resource("pods"), "n", 5, &[]);
        assert_eq!((empty.estimate, empty.instances.len()), (0, 0));
        let mut held = Left::default();
        held.count(&resource("secrets"), "n", 0, &[item(&["a/b"]), item(&[])]);
        assert_eq!((held.estimate, held.failures.len(), held.finalizers["a/b"]), (15, 0, 1));
        let mut odd = Left::default();
        odd.count(&resource("secrets"), "n", 0, &[item(&[])]);
        assert_eq!(
            odd.failures,
            ["unexpected items still remain in namespace: n for gvr: /v1, Resource=secrets"]
        );
    }
}
