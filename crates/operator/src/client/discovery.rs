//! Finds where the objects of a kind are served: one cached read of `/apis/GROUP/VERSION`. A kind that is not served in
//! its version may be served in another version of its group, with the same objects.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::Client;
use serde::Deserialize;
use tokio::time::Instant;

use crate::client::{live, wire::read};

/// A group and version that lacks a kind is not read again sooner than this: any user may name a kind that does not
/// exist.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Timeout of one read.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Limit on cached groups and versions. Only made-up names reach it.
const MOST: usize = 512;
/// Limit on the versions of a group that are read.
const MOST_VERSIONS: usize = 8;

/// A kind, as an object names it.
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

/// A kind without its version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupKind {
    group: String,
    kind: String,
}

impl From<&Kind> for GroupKind {
    fn from(Kind { group, kind, .. }: &Kind) -> Self {
        Self { group: group.clone(), kind: kind.clone() }
    }
}

impl GroupKind {
    /// The kind in the version to read if it is served. Where the status of a component matters, we understand that
    /// of v1.
    pub(crate) fn read_as(&self) -> Kind {
        Kind { group: self.group.clone(), version: "v1".into(), kind: self.kind.clone() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// The path of its group and version.
    root: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) namespaced: bool,
}

impl Served {
    /// A namespaced kind.
    #[cfg(test)]
    pub(crate) fn at(root: &str, resource: &str) -> Self {
        let version = root.rsplit('/').next().unwrap_or_default().to_owned();
        Self { root: root.to_owned(), version, resource: resource.to_owned(), namespaced: true }
    }

    /// The kind in the version in which it is served.
    pub(crate) fn of(&self, kind: &Kind) -> Kind {
        Kind { version: self.version.clone(), ..kind.clone() }
    }

    /// The path of all its objects, or of those in a namespace. A cluster-scoped kind has one path.
    pub(crate) fn path(&self, namespace: Option<&str>) -> String {
        let Self { root, resource, namespaced, .. } = self;
        match namespace.filter(|_| *namespaced) {
            Some(namespace) => format!("{root}/namespaces/{}/{resource}", live::percent_encode(namespace)),
            None => format!("{root}/{resource}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lookup {
    /// `None` if it is not served.
    pub(crate) served: Option<Served>,
    /// When the server was asked.
    pub(crate) asked: Instant,
}

/// Which versions of a kind are acceptable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Versions {
    Named,
    /// The named version, or else any other of the group: the objects are the same.
    Any,
}

/// The kinds that the API server serves, as far as they were requested. Clones share the cache.
#[derive(Clone)]
pub(crate) struct Discovery {
    client: Client,
    known: Arc<Mutex<BTreeMap<String, Known>>>,
    /// The versions of groups, the preferred one first, and when they were read.
    groups: Arc<Mutex<BTreeMap<String, ServedVersions>>>,
}

type ServedVersions = (Vec<String>, Instant);

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
        Self { client, known: Arc::default(), groups: Arc::default() }
    }

    /// Where a kind is served. A kind that was missing is looked up again.
    pub(crate) async fn find(&self, kind: &Kind, versions: Versions) -> kube::Result<Lookup> {
        let named = self.find_in(kind).await?;
        // The core group has one version.
        if named.served.is_some()
            || versions == Versions::Named
            || kind.group.is_empty()
            || root(kind).is_none()
        {
            return Ok(named);
        }
        for version in self.versions(&kind.group).await? {
            if version != kind.version {
                let other = self.find_in(&Kind { version, ..kind.clone() }).await?;
                if other.served.is_some() {
                    return Ok(other);
                }
            }
        }
        Ok(named)
    }

    async fn find_in(&self, kind: &Kind) -> kube::Result<Lookup> {
        let Some(root) = root(kind) else { return Ok(Lookup { served: None, asked: Instant::now() }) };
        let known = self.known().get(&root).cloned();
        if let Some(known) = known {
            let served = known.kinds.get(&kind.kind).cloned();
            if served.is_some() || known.read.elapsed() < AGAIN_AFTER {
                return Ok(Lookup { served, asked: known.read });
            }
        }
        self.read(&root, kind).await
    }

    /// The versions in which a group is served, the preferred one first.
    async fn versions(&self, group: &str) -> kube::Result<Vec<String>> {
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Group {
            versions: Vec<Version>,
            preferred_version: Version,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Version {
            version: String,
        }
        if let Some((versions, _)) = self.groups().get(group).filter(|(_, read)| read.elapsed() < AGAIN_AFTER)
        {
            return Ok(versions.clone());
        }
        let asked = Instant::now();
        let text = self.get(&format!("/apis/{group}")).await?;
        let Group { versions, preferred_version } =
            text.as_deref().map(read).transpose()?.unwrap_or_default();
        let mut versions: Vec<String> = versions.into_iter().map(|it| it.version).collect();
        versions.sort_by_key(|version| *version != preferred_version.version);
        versions.truncate(MOST_VERSIONS);
        let mut groups = self.groups();
        if groups.len() >= MOST {
            groups.clear();
        }
        groups.insert(group.to_owned(), (versions.clone(), asked));
        Ok(versions)
    }

    /// Drops the cached location of a kind in every version, after the server reported that it is not served there.
    pub(crate) fn forget(&self, kind: &Kind) {
        self.groups().remove(&kind.group);
        if kind.group.is_empty() {
            self.known().retain(|root, _| !root.starts_with("/api/"));
        } else {
            let group = format!("/apis/{}/", kind.group);
            self.known().retain(|root, _| !root.starts_with(&group));
        }
    }

    async fn get(&self, path: &str) -> kube::Result<Option<String>> {
        match tokio::time::timeout(TIMEOUT, live::get(&self.client, path)).await {
            Ok(text) => text,
            Err(_) => Err(kube::Error::Service(format!("{path} was not answered within {TIMEOUT:?}").into())),
        }
    }

    async fn read(&self, root: &str, kind: &Kind) -> kube::Result<Lookup> {
        let asked = Instant::now();
        let text = self.get(root).await?;
        let list: ResourceList = text.as_deref().map(read).transpose()?.unwrap_or_default();
        let version = &kind.version;
        // Subresources have a slash in their name, and often the kind of their parent.
        let kinds = list.resources.into_iter().filter(|resource| !resource.name.contains('/'));
        let kinds = kinds.map(|Resource { name, kind, namespaced }| {
            (kind, Served { root: root.to_owned(), version: version.clone(), resource: name, namespaced })
        });
        let kinds: Arc<BTreeMap<String, Served>> = Arc::new(kinds.collect());
        let mut known = self.known();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(root.to_owned(), Known { kinds: kinds.clone(), read: asked });
        Ok(Lookup { served: kinds.get(&kind.kind).cloned(), asked })
    }

    fn groups(&self) -> MutexGuard<'_, BTreeMap<String, (Vec<String>, Instant)>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The path of a group and version; `None` if the names are invalid. Users write these names, and they become part of a
/// path.
fn root(Kind { group, version, .. }: &Kind) -> Option<String> {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    if !is_label(version) || !(group.is_empty() || group.split('.').all(is_label)) || group.len() > 253 {
        return None;
    }
    // The core group has its own prefix.
    Some(if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::fake_api::{Answer, FakeApi};

    fn kind(group: &str, version: &str, kind: &str) -> Kind {
        Kind { group: group.into(), version: version.into(), kind: kind.into() }
    }

    async fn served(discovery: &Discovery, group: &str, version: &str, name: &str) -> Option<Served> {
        served_in(discovery, group, version, name, Versions::Named).await
    }

    async fn served_in(
        discovery: &Discovery,
        group: &str,
        version: &str,
        name: &str,
        versions: Versions,
    ) -> Option<Served> {
        discovery.find(&kind(group, version, name), versions).await.unwrap().served
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
        let job = served(&discovery, "batch", "v1", "Job").await.unwrap();
        assert_eq!(job.path(Some("ns")), "/apis/batch/v1/namespaces/ns/jobs");
        assert_eq!(job.path(None), "/apis/batch/v1/jobs");
        let thing = served(&discovery, "batch", "v1", "Thing").await.unwrap();
        assert_eq!(thing.path(Some("ns")), "/apis/batch/v1/things", "it is in no namespace");
        assert_eq!(api.asked().len(), 1);
        for _ in 0..3 {
            assert_eq!(served(&discovery, "batch", "v1", "Other").await, None);
            assert_eq!(served(&discovery, "none", "v1", "Other").await, None);
        }
        assert_eq!(api.asked().len(), 2, "what is known to be missing is not asked for at once");
        tokio::time::sleep(AGAIN_AFTER).await;
        assert_eq!(served(&discovery, "none", "v1", "Other").await, None);
        assert_eq!(api.asked().len(), 3);
        discovery.forget(&kind("batch", "v1", "Job"));
        assert!(served(&discovery, "batch", "v1", "Job").await.is_some());
        assert_eq!(api.asked().len(), 4);
        assert!(
            discovery.find(&kind("broken", "v1", "X"), Versions::Any).await.is_err(),
            "no answer is not the answer no"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_would_lead_to_another_path_is_no_kind() {
        let api = FakeApi::new(|_| batch());
        let discovery = Discovery::new(api.client.clone());
        for (group, version) in
            [("batch/v1/../..", "v1"), ("", "v1/pods"), ("a..b", "v1"), ("", ""), ("A", "v1")]
        {
            assert_eq!(
                served_in(&discovery, group, version, "Job", Versions::Any).await,
                None,
                "{group} {version}"
            );
        }
        assert!(api.asked().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_whose_version_is_not_served_is_found_in_another_one_if_that_will_do() {
        let api = FakeApi::new(|asked| match asked.path.as_str() {
            "/apis/example.com" => Answer::Json(
                200,
                json!({"versions": [{"version": "v1alpha1"}, {"version": "v2"}, {"version": "v1"}, {"version": "A/b"}],
                       "preferredVersion": {"version": "v1"}}),
            ),
            "/apis/example.com/v1" | "/apis/example.com/v1alpha1" => Answer::Json(
                200,
                json!({"resources": [{"name": "widgets", "kind": "Widget", "namespaced": true}]}),
            ),
            "/apis/example.com/v2" => Answer::Json(200, json!({"resources": []})),
            _ => Answer::Refused(404, "not found"),
        });
        let discovery = Discovery::new(api.client.clone());
        let find =
            async |version, versions| served_in(&discovery, "example.com", version, "Widget", versions).await;
        assert_eq!(find("v1beta1", Versions::Named).await, None);
        for version in ["v1beta1", "v2"] {
            let found = find(version, Versions::Any).await.unwrap();
            assert_eq!(
                (found.path(None).as_str(), found.version.as_str()),
                ("/apis/example.com/v1/widgets", "v1")
            );
        }
        let named = find("v1alpha1", Versions::Any).await.unwrap();
        assert_eq!(named.version, "v1alpha1", "the one that is named comes first");
        assert_eq!(served_in(&discovery, "example.com", "v1", "Gadget", Versions::Any).await, None);
        let asked = api.asked().len();
        assert_eq!(served_in(&discovery, "example.com", "v1", "Gadget", Versions::Any).await, None);
        assert_eq!(api.asked().len(), asked, "what is known to be missing is not asked for at once");
        discovery.forget(&kind("example.com", "v1beta1", "Widget"));
        assert!(find("v1beta1", Versions::Any).await.is_some());
        assert!(api.asked().len() > asked);
    }
}
