//! The kinds that the embedded server serves, according to its discovery.

use http::Method;
use http_body_util::BodyExt as _;
use salvor_apiserver::{Cluster, Request, Settings};
use serde_json::Value;

/// A kind that can be listed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[allow(dead_code, reason = "not every test needs all of it")]
pub(crate) struct Served {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) plural: String,
    pub(crate) namespaced: bool,
    pub(crate) subresources: Vec<String>,
}

impl Served {
    /// `/apis/apps/v1`.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn below(&self) -> String {
        match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }
}

pub(crate) async fn get(cluster: &Cluster, path: &str) -> Value {
    let answer = cluster.handle(&Request::new(Method::GET, path, bytes::Bytes::new()));
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents that list resources: `/api/v1`, `/apis/apps/v1` and so on.
pub(crate) async fn documents(cluster: &Cluster) -> Vec<String> {
    let groups = get(cluster, "/apis").await;
    let versions = groups["groups"].as_array().unwrap().iter().flat_map(|group| {
        let versions = group["versions"].as_array().unwrap().iter();
        versions.map(|version| format!("/apis/{}", version["groupVersion"].as_str().unwrap()))
    });
    std::iter::once("/api/v1".to_owned()).chain(versions).collect()
}

pub(crate) async fn all() -> Vec<Served> {
    let cluster = Cluster::new(Settings::default());
    let mut all = Vec::new();
    for document in documents(&cluster).await {
        let list = get(&cluster, &document).await;
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or("").to_owned();
        let group_version = text(&list, "groupVersion");
        let (group, version) = group_version.split_once('/').unwrap_or(("", &group_version));
        let resources = list["resources"].as_array().unwrap();
        for resource in resources {
            let plural = text(resource, "name");
            let can_be_listed = resource["verbs"].as_array().unwrap().iter().any(|verb| verb == "list");
            if plural.contains('/') || !can_be_listed {
                continue;
            }
            let subresources = resources.iter().filter_map(|other| {
                other["name"].as_str().unwrap().strip_prefix(&format!("{plural}/")).map(str::to_owned)
            });
            all.push(Served {
                group: group.to_owned(),
                version: version.to_owned(),
                kind: text(resource, "kind"),
                namespaced: resource["namespaced"] == true,
                subresources: subresources.collect(),
                plural,
            });
        }
    }
    all.sort();
    all
}
