//! Where the objects of a kind are served: one read of `/apis/GROUP/VERSION`, remembered.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::Client;
use serde::Deserialize;
use tokio::time::Instant;

use crate::{live, wire::read};

/// A group and version that lacks a kind is not read again sooner than this: anybody may name a kind that does not exist.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// A group and version that is not read by then cannot be read for now.
const TIMEOUT: Duration = Duration::from_secs(20);
/// So many groups and versions are remembered. Nobody has as many, except somebody who makes names up.
const MOST: usize = 512;

/// A kind of object, as an object names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Kind {
    /// Empty for the core group.
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, version, kind } = self;
        if group.is_empty() { write!(f, "{version} {kind}") } else { write!(f, "{group}/{version} {kind}") }
    }
}

/// Where a kind is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// The path of its group and version.
    root: String,
    /// The plural name in paths.
    pub(crate) resource: String,
    /// True if its objects are in namespaces.
    pub(crate) namespaced: bool,
}

impl Served {
    /// A kind with namespaces.
    #[cfg(test)]
    pub(crate) fn at(root: &str, resource: &str) -> Self {
        Self { root: root.to_owned(), resource: resource.to_owned(), namespaced: true }
    }

    /// The path of all its objects, or of those in a namespace. A kind that is in no namespace has one path.
    pub(crate) fn path(&self, namespace: Option<&str>) -> String {
        let Self { root, resource, namespaced } = self;
        match namespace.filter(|_| *namespaced) {
            Some(namespace) => format!("{root}/namespaces/{}/{resource}", live::percent_encode(namespace)),
            None => format!("{root}/{resource}"),
        }
    }
}

/// The kinds that the API server serves, as far as they were asked for. Clones share them.
#[derive(Clone)]
pub(crate) struct Discovery {
    client: Client,
    known: Arc<Mutex<BTreeMap<String, Known>>>,
}

/// The kinds of a group and version.
#[derive(Clone)]
struct Known {
    kinds: Arc<BTreeMap<String, Served>>,
    read: Instant,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ResourceList {
    resources: Vec<Resource>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Resource {
    name: String,
    kind: String,
    namespaced: bool,
}

impl Discovery {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, known: Arc::default() }
    }

    /// Where a kind is served; none if it is not. A kind that was not there is looked for again.
    pub(crate) async fn find(&self, kind: &Kind) -> kube::Result<Option<Served>> {
        let Some(root) = root(kind) else { return Ok(None) };
        let known = self.known().get(&root).cloned();
        if let Some(known) = known {
            let found = known.kinds.get(&kind.kind).cloned();
            if found.is_some() || known.read.elapsed() < AGAIN_AFTER {
                return Ok(found);
            }
        }
        self.read(&root, kind).await
    }

    /// Forgets where a kind is served: the server said that it is not served there.
    pub(crate) fn forget(&self, kind: &Kind) {
        if let Some(root) = root(kind) {
            self.known().remove(&root);
        }
    }

    async fn read(&self, root: &str, kind: &Kind) -> kube::Result<Option<Served>> {
        let text = match tokio::time::timeout(TIMEOUT, live::get(&self.client, root)).await {
            Ok(text) => text?,
            Err(_) => {
                return Err(kube::Error::Service(
                    format!("{root} was not answered within {TIMEOUT:?}").into(),
                ));
            }
        };
        let list: ResourceList = text.as_deref().map(read).transpose()?.unwrap_or_default();
        // Subresources have a slash in their name, and often the kind of what they belong to.
        let kinds = list.resources.into_iter().filter(|resource| !resource.name.contains('/'));
        let kinds = kinds.map(|Resource { name, kind, namespaced }| {
            (kind, Served { root: root.to_owned(), resource: name, namespaced })
        });
        let kinds: Arc<BTreeMap<String, Served>> = Arc::new(kinds.collect());
        let mut known = self.known();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(root.to_owned(), Known { kinds: kinds.clone(), read: Instant::now() });
        Ok(kinds.get(&kind.kind).cloned())
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The path of a group and version; none for what cannot be one. Users write these names, and they become part of a path.
fn root(Kind { group, version, .. }: &Kind) -> Option<String> {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    if !is_label(version) || !(group.is_empty() || group.split('.').all(is_label)) || group.len() > 253 {
        return None;
    }
    // The core group has one version, and its own place.
    Some(if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake_api::{Answer, FakeApi};

    fn kind(group: &str, version: &str, kind: &str) -> Kind {
        Kind { group: group.into(), version: version.into(), kind: kind.into() }
    }

    fn batch() -> Answer {
        Answer::Json(
            200,
            json!({"resources": [
                {"name": "jobs/status", "kind": "Job", "namespaced": true},
                {"name": "jobs", "kind": "Job", "namespaced": true},
                {"name": "things", "kind": "Thing", "namespaced": false},
            ]}),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_is_looked_up_once_and_a_missing_one_again_after_a_while() {
        let api = FakeApi::new(|asked| match asked.path.as_str() {
            "/apis/batch/v1" => batch(),
            "/apis/broken/v1" => Answer::Refused(503, "no"),
            _ => Answer::Refused(404, "not found"),
        });
        let discovery = Discovery::new(api.client.clone());
        let job = discovery.find(&kind("batch", "v1", "Job")).await.unwrap().unwrap();
        assert_eq!(job.path(Some("ns")), "/apis/batch/v1/namespaces/ns/jobs");
        assert_eq!(job.path(None), "/apis/batch/v1/jobs");
        let thing = discovery.find(&kind("batch", "v1", "Thing")).await.unwrap().unwrap();
        assert_eq!(thing.path(Some("ns")), "/apis/batch/v1/things", "it is in no namespace");
        assert_eq!(api.asked().len(), 1);
        for _ in 0..3 {
            assert_eq!(discovery.find(&kind("batch", "v1", "Other")).await.unwrap(), None);
            assert_eq!(discovery.find(&kind("none", "v1", "Other")).await.unwrap(), None);
        }
        assert_eq!(api.asked().len(), 2, "what is known to be missing is not asked for at once");
        tokio::time::sleep(AGAIN_AFTER).await;
        assert_eq!(discovery.find(&kind("none", "v1", "Other")).await.unwrap(), None);
        assert_eq!(api.asked().len(), 3);
        discovery.forget(&kind("batch", "v1", "Job"));
        assert!(discovery.find(&kind("batch", "v1", "Job")).await.unwrap().is_some());
        assert_eq!(api.asked().len(), 4);
        assert!(discovery.find(&kind("broken", "v1", "X")).await.is_err(), "no answer is not the answer no");
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_would_lead_to_another_path_is_no_kind() {
        let api = FakeApi::new(|_| batch());
        let discovery = Discovery::new(api.client.clone());
        for (group, version) in
            [("batch/v1/../..", "v1"), ("", "v1/pods"), ("a..b", "v1"), ("", ""), ("A", "v1")]
        {
            assert_eq!(
                discovery.find(&kind(group, version, "Job")).await.unwrap(),
                None,
                "{group} {version}"
            );
        }
        assert!(api.asked().is_empty());
    }
}
