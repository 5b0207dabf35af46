//! Discovery: versions, groups, resources, health and OpenAPI.

use std::collections::BTreeMap;

use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::reviews;
use crate::kinds::table::{Resource, Subresource};
use crate::object;
use crate::protocol::request::Request;
use crate::protocol::response::Reply;
use crate::schema;
use crate::state::Core;

/// The version of Kubernetes that is imitated.
const VERSION: &str = "v1.37.1";

/// Answers a request that is not about objects.
pub(crate) fn answer(core: &Core, request: &Request) -> Option<Reply> {
    if !matches!(request.method, Method::GET | Method::HEAD) {
        return None;
    }
    let parts: Vec<&str> = request.path.split('/').filter(|part| !part.is_empty()).collect();
    let aggregated = request.accept.contains("as=APIGroupDiscoveryList");
    let value = match parts.as_slice() {
        [] => {
            json!({ "paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"] })
        }
        ["version"] => version(),
        ["healthz" | "livez" | "readyz", ..] => return Some(Reply::text(StatusCode::OK, "ok")),
        ["api"] if aggregated => return Some(aggregated_reply(core, true)),
        ["apis"] if aggregated => return Some(aggregated_reply(core, false)),
        ["api"] => json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{ "clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:6443" }],
        }),
        ["apis"] => {
            let groups: Vec<Value> =
                groups(core).into_iter().map(|(group, versions)| api_group(&group, &versions)).collect();
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
        }
        ["api", version] if serves(core, "", version) => resource_list(core, "", version),
        ["apis", group] => {
            let Some(versions) = groups(core).remove(*group) else {
                return Some(Reply::text(StatusCode::NOT_FOUND, "404 page not found\n"));
            };
            let mut value = api_group(group, &versions);
            value["kind"] = json!("APIGroup");
            value["apiVersion"] = json!("v1");
            value
        }
        ["apis", group, version] if serves(core, group, version) => resource_list(core, group, version),
        ["openapi", "v3"] => openapi_index(core),
        ["openapi", "v3", "api", version] if core.table.serves("", version) => openapi(core, "", version),
        ["openapi", "v3", "apis", group, version] if core.table.serves(group, version) => {
            openapi(core, group, version)
        }
        ["apis", group, ..] if !knows(core, group) => {
            return Some(Reply::text(StatusCode::NOT_FOUND, "404 page not found\n"));
        }
        ["api" | "apis", ..] => return None,
        _ => return Some(Reply::text(StatusCode::NOT_FOUND, "404 page not found\n")),
    };
    Some(Reply::new(StatusCode::OK, object::encode(&value)))
}

fn version() -> Value {
    let mut parts = VERSION.trim_start_matches('v').split('.');
    let mut next = || parts.next().unwrap_or("0").to_owned();
    json!({
        "major": next(), "minor": next(), "gitVersion": format!("{VERSION}+salvor"), "gitCommit": "", "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc", "platform": "linux/amd64",
    })
}

/// A resource that can only be created, and is not stored.
struct Question {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    namespaced: bool,
}

fn questions() -> impl Iterator<Item = Question> {
    let binding =
        Question { group: "", version: "v1", kind: "Binding", plural: "bindings", namespaced: true };
    let reviews = reviews::ALL.iter().map(|review| Question {
        group: review.group,
        version: reviews::VERSION,
        kind: review.kind,
        plural: review.plural,
        namespaced: review.namespaced,
    });
    std::iter::once(binding).chain(reviews)
}

fn knows(core: &Core, group: &str) -> bool {
    core.table.iter().any(|resource| resource.group == group)
        || questions().any(|question| question.group == group)
}

fn serves(core: &Core, group: &str, version: &str) -> bool {
    core.table.serves(group, version)
        || questions().any(|question| question.group == group && question.version == version)
}

/// Named groups and their versions, the preferred one first.
fn groups(core: &Core) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for question in questions().filter(|question| !question.group.is_empty()) {
        groups.insert(question.group.to_owned(), vec![question.version.to_owned()]);
    }
    for resource in core.table.iter().filter(|resource| !resource.group.is_empty()) {
        let versions = groups.entry(resource.group.clone()).or_default();
        if !versions.contains(&resource.version) {
            versions.push(resource.version.clone());
        }
    }
    for versions in groups.values_mut() {
        versions.sort_by_key(|version| std::cmp::Reverse(rank(version)));
    }
    groups
}

/// `v2` before `v1` before `v1beta2` before `v1alpha1`.
fn rank(version: &str) -> (u8, u64, u64) {
    let digits = version.trim_start_matches('v');
    let end = digits.find(|character: char| !character.is_ascii_digit()).unwrap_or(digits.len());
    let (major, rest) = digits.split_at(end);
    let major = major.parse().unwrap_or(0);
    let stability = |name: &str| rest.strip_prefix(name).map(|number| number.parse().unwrap_or(0));
    match (rest, stability("beta"), stability("alpha")) {
        ("", _, _) => (3, major, 0),
        (_, Some(number), _) => (2, major, number),
        (_, _, Some(number)) => (1, major, number),
        _ => (0, major, 0),
    }
}

fn api_group(group: &str, versions: &[String]) -> Value {
    let entry =
        |version: &String| json!({ "groupVersion": format!("{group}/{version}"), "version": version });
    let entries: Vec<Value> = versions.iter().map(entry).collect();
    json!({ "name": group, "versions": entries, "preferredVersion": entries.first() })
}

struct SubresourceKind {
    group: &'static str,
    version: &'static str,
    kind: String,
    verbs: &'static [&'static str],
}

fn subresource_kind(resource: &Resource, subresource: Subresource) -> SubresourceKind {
    let own = |verbs| SubresourceKind { group: "", version: "", kind: resource.kind.clone(), verbs };
    match subresource {
        Subresource::Status
        | Subresource::Approval
        | Subresource::Resize
        | Subresource::EphemeralContainers => own(&["get", "patch", "update"]),
        Subresource::Finalize => own(&["update"]),
        Subresource::Log => own(&["get"]),
        Subresource::Binding => SubresourceKind { kind: "Binding".to_owned(), ..own(&["create"]) },
        Subresource::Eviction => SubresourceKind {
            group: "policy",
            version: "v1",
            kind: "Eviction".to_owned(),
            verbs: &["create"],
        },
        Subresource::Scale => SubresourceKind {
            group: "autoscaling",
            version: "v1",
            kind: "Scale".to_owned(),
            verbs: &["get", "patch", "update"],
        },
    }
}

fn asked_for(group: &str, version: &str) -> impl Iterator<Item = Question> {
    questions().filter(move |question| question.group == group && question.version == version)
}

fn resource_list(core: &Core, group: &str, version: &str) -> Value {
    let mut list: Vec<Value> = asked_for(group, version)
        .map(|question| {
            json!({
                "name": question.plural, "singularName": question.kind.to_lowercase(),
                "namespaced": question.namespaced, "kind": question.kind, "verbs": ["create"],
            })
        })
        .collect();
    for resource in
        core.table.iter().filter(|resource| resource.group == group && resource.version == version)
    {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": resource.verbs(),
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            entry["categories"] = json!(resource.categories);
        }
        list.push(entry);
        for &subresource in &resource.subresources {
            let about = subresource_kind(resource, subresource);
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, subresource.path()), "singularName": "",
                "namespaced": resource.namespaced, "kind": about.kind, "verbs": about.verbs,
            });
            if !about.group.is_empty() {
                entry["group"] = json!(about.group);
                entry["version"] = json!(about.version);
            }
            list.push(entry);
        }
    }
    // Subresources stay behind their resource.
    list.sort_by_key(|entry| object::text(entry, "/name").split('/').next().unwrap_or("").to_owned());
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": list })
}

fn aggregated_reply(core: &Core, legacy: bool) -> Reply {
    let named = if legacy { BTreeMap::from([(String::new(), vec!["v1".to_owned()])]) } else { groups(core) };
    let items: Vec<Value> = named
        .iter()
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    json!({
                        "version": version, "freshness": "Current",
                        "resources": aggregated_resources(core, group, version),
                    })
                })
                .collect();
            let mut metadata = json!({});
            if !group.is_empty() {
                metadata["name"] = json!(group);
            }
            json!({ "metadata": metadata, "versions": versions })
        })
        .collect();
    let list = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    });
    Reply {
        content_type: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        ..Reply::new(StatusCode::OK, object::encode(&list))
    }
}

fn aggregated_resources(core: &Core, group: &str, version: &str) -> Vec<Value> {
    let kind =
        |group: &str, version: &str, kind: &str| json!({ "group": group, "version": version, "kind": kind });
    let questions = asked_for(group, version).map(|question| {
        json!({
            "resource": question.plural, "responseKind": kind("", "", question.kind),
            "scope": if question.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": question.kind.to_lowercase(), "verbs": ["create"],
        })
    });
    let resources = core
        .table
        .iter()
        .filter(|resource| resource.group == group && resource.version == version)
        .map(|resource| {
            // Built-in kinds omit the group and version that they are listed under.
            let own = if resource.custom.is_some() { (group, version) } else { ("", "") };
            let subresources: Vec<Value> = resource
                .subresources
                .iter()
                .map(|&subresource| {
                    let about = subresource_kind(resource, subresource);
                    let (of_group, of_version) =
                        if about.version.is_empty() { own } else { (about.group, about.version) };
                    json!({
                        "subresource": subresource.path(), "verbs": about.verbs,
                        "responseKind": kind(of_group, of_version, &about.kind),
                    })
                })
                .collect();
            let mut entry = json!({
                "resource": resource.plural, "responseKind": kind(own.0, own.1, &resource.kind),
                "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
                "singularResource": resource.singular, "verbs": resource.verbs(),
            });
            for (key, list) in [("shortNames", &resource.short_names), ("categories", &resource.categories)] {
                if !list.is_empty() {
                    entry[key] = json!(list);
                }
            }
            if !subresources.is_empty() {
                entry["subresources"] = json!(subresources);
            }
            entry
        });
    let mut all: Vec<Value> = questions.chain(resources).collect();
    all.sort_by_key(|entry| object::text(entry, "/resource").to_owned());
    all
}

fn openapi_index(core: &Core) -> Value {
    let mut paths = Map::new();
    for resource in core.table.iter() {
        let path = if resource.group.is_empty() {
            format!("api/{}", resource.version)
        } else {
            format!("apis/{}/{}", resource.group, resource.version)
        };
        let url = format!("/openapi/v3/{path}?hash={}", core.revision_of_schemas());
        paths.insert(path, json!({ "serverRelativeURL": url }));
    }
    json!({ "paths": paths })
}

/// The schemas of one group and version, and enough of its paths for a client to see which options they take.
fn openapi(core: &Core, group: &str, version: &str) -> Value {
    let mut schemas = schema::definitions().clone();
    let mut paths = Map::new();
    for resource in
        core.table.iter().filter(|resource| resource.group == group && resource.version == version)
    {
        let kind = json!({ "group": group, "version": version, "kind": resource.kind });
        if let Some(custom) = &resource.custom {
            let mut schema = custom.schema.clone();
            let properties = schema
                .as_object_mut()
                .map(|members| members.entry("properties").or_insert_with(|| json!({})));
            if let Some(properties) = properties {
                properties["apiVersion"] = json!({ "type": "string" });
                properties["kind"] = json!({ "type": "string" });
                properties["metadata"] =
                    json!({ "$ref": format!("#/components/schemas/{}", schema::OBJECT_META) });
            }
            schema["x-kubernetes-group-version-kind"] = json!([kind]);
            schemas.insert(format!("{}.{version}.{}", reversed(group), resource.kind), schema);
        }
        let base =
            if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let parameters: Vec<Value> = ["dryRun", "fieldManager", "fieldValidation", "force"]
            .iter()
            .map(|name| json!({ "name": name, "in": "query", "schema": { "type": "string" } }))
            .collect();
        let operation = |action: &str| {
            json!({
                "parameters": parameters, "responses": {}, "x-kubernetes-action": action,
                "x-kubernetes-group-version-kind": kind,
            })
        };
        paths.insert(
            format!("{base}{scope}/{}/{{name}}", resource.plural),
            json!({ "get": operation("get"), "put": operation("put"), "patch": operation("patch"), "delete": operation("delete") }),
        );
        paths.insert(
            format!("{base}{scope}/{}", resource.plural),
            json!({ "get": operation("list"), "post": operation("post") }),
        );
    }
    json!({
        "openapi": "3.0.0", "info": { "title": "Kubernetes", "version": VERSION },
        "paths": paths, "components": { "schemas": schemas },
    })
}

fn reversed(group: &str) -> String {
    let mut parts: Vec<&str> = group.split('.').collect();
    parts.reverse();
    parts.join(".")
}

impl Core {
    /// Changes with every change of a definition, so that clients do not cache an old document.
    fn revision_of_schemas(&self) -> String {
        let definitions = ("apiextensions.k8s.io".to_owned(), "customresourcedefinitions".to_owned());
        let newest = self.store.scan(&definitions, "").map(|(_, stored)| stored.revision()).max();
        format!("{:08X}", newest.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::rank;

    #[test]
    fn stable_versions_come_first() {
        let mut versions = ["v1alpha1", "v1", "v1beta2", "v2", "v1beta1"];
        versions.sort_by_key(|version| std::cmp::Reverse(rank(version)));
        assert_eq!(versions, ["v2", "v1", "v1beta2", "v1beta1", "v1alpha1"]);
    }
}
