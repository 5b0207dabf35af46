//! The kinds that an API server serves, from its discovery documents.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::ACCEPT;
use kube::Client;
use serde::Deserialize;

use super::collection::{Collection, Kind, Resource};

/// Objects of which only the metadata is requested.
pub(crate) const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
pub(crate) const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A kind as an owner reference names it.
#[derive(Debug, Clone)]
pub(crate) struct NamedKind {
    pub(crate) collection: Collection,
    pub(crate) namespaced: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Served {
    resources: Vec<Arc<Resource>>,
    /// By version and kind, also for versions that are not preferred.
    kinds: BTreeMap<(String, String), NamedKind>,
}

impl Served {
    pub(crate) async fn ask(client: &Client) -> kube::Result<Self> {
        let mut served = Self::default();
        for root in ["/api", "/apis"] {
            let request = http::Request::get(root).header(ACCEPT, DISCOVERY).body(Vec::new());
            let groups: Groups = client.request(request.map_err(kube::Error::HttpError)?).await?;
            served.add(root, groups);
        }
        Ok(served)
    }

    fn add(&mut self, root: &str, groups: Groups) {
        for Group { metadata, versions } in groups.items {
            let group = metadata.name;
            let mut preferred: BTreeMap<String, Arc<Resource>> = BTreeMap::new();
            // The preferred version comes first.
            for Version { version, resources } in versions {
                let api_version =
                    if group.is_empty() { version.clone() } else { format!("{group}/{version}") };
                for found in resources {
                    let resource = preferred.entry(found.resource.clone()).or_insert_with(|| {
                        Arc::new(Resource {
                            prefix: format!("{root}/{api_version}"),
                            plural: found.resource,
                            namespaced: found.scope == "Namespaced",
                            verbs: found.verbs,
                        })
                    });
                    let collection = match Kind::watched(&resource.prefix, &resource.plural) {
                        Some(kind) => Collection::Known(kind),
                        None => Collection::Other(Arc::clone(resource)),
                    };
                    let kind = NamedKind { collection, namespaced: resource.namespaced };
                    self.kinds.insert((api_version.clone(), found.response_kind.kind), kind);
                }
            }
            self.resources.extend(preferred.into_values());
        }
    }

    /// Reads one discovery document, of a test.
    #[cfg(test)]
    pub(crate) fn read(root: &str, document: serde_json::Value) -> Self {
        let mut served = Self::default();
        served.add(root, serde_json::from_value(document).unwrap());
        served
    }

    pub(crate) fn resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.iter()
    }

    /// The resources that can be watched and that no loop knows as a kind.
    pub(crate) fn others(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.iter().filter(|resource| {
            resource.can("list")
                && resource.can("watch")
                && !resource.is_event()
                && Kind::watched(&resource.prefix, &resource.plural).is_none()
        })
    }

    /// The kind that an owner reference names.
    pub(crate) fn kind(&self, api_version: &str, kind: &str) -> Option<&NamedKind> {
        self.kinds.get(&(api_version.to_owned(), kind.to_owned()))
    }
}

#[derive(Deserialize)]
struct Groups {
    items: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    metadata: GroupMeta,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct GroupMeta {
    name: String,
}

#[derive(Deserialize)]
struct Version {
    version: String,
    #[serde(default)]
    resources: Vec<Found>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Found {
    resource: String,
    response_kind: FoundKind,
    scope: String,
    verbs: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct FoundKind {
    kind: String,
}
