//! Builds a new pod of a Job: its template, plus the fields that tie it to this Job and index.

use std::borrow::Cow;

use salvor_api::names::job::{
    COMPLETION_INDEX, COMPLETION_INDEX_ENV, INDEX_FAILURE_COUNT, INDEX_IGNORED_FAILURE_COUNT,
    TRACKING_FINALIZER,
};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value, json, value::RawValue};

use super::views::{IndexFailures, JobView};
use crate::ids::Uid;

/// What all new pods of a Job share, parsed once from its template.
pub(super) struct ParsedTemplate<'a> {
    job: &'a JobView,
    given: GivenMetadata,
    /// The spec as JSON text.
    spec: Cow<'a, str>,
}

/// The parsed part of a pod template.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Given<'a> {
    metadata: Option<GivenMetadata>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct GivenMetadata {
    labels: Option<Map<String, Value>>,
    annotations: Option<Map<String, Value>>,
    finalizers: Option<Vec<String>>,
}

impl<'a> ParsedTemplate<'a> {
    pub(super) fn of(job: &'a JobView) -> Self {
        let Given { metadata, spec } = serde_json::from_str(&job.spec.template.0).unwrap_or_default();
        let spec = spec.map_or("{}", RawValue::get);
        let spec = if job.spec.is_indexed() { with_index_variables(spec).into() } else { spec.into() };
        let mut given = metadata.unwrap_or_default();
        given.finalizers.get_or_insert_default().push(TRACKING_FINALIZER.into());
        Self { job, given, spec }
    }

    pub(super) fn pod(&self, name: &str, index: Option<u32>, failures: IndexFailures) -> String {
        let job = &self.job.job;
        let index_text = index.map(|index| (COMPLETION_INDEX, index.to_string()));
        let counted = self.job.spec.backoff_limit_per_index.and(index);
        let counted = counted.map(|_| (INDEX_FAILURE_COUNT, failures.counted.to_string()));
        let ignored = counted.as_ref().filter(|_| failures.ignored > 0);
        let ignored = ignored.map(|_| (INDEX_IGNORED_FAILURE_COUNT, failures.ignored.to_string()));
        let pod = NewPod {
            api_version: "v1",
            kind: "Pod",
            metadata: NewMetadata {
                name,
                namespace: &job.namespace,
                labels: Together {
                    given: self.given.labels.as_ref(),
                    ours: [index_text.as_ref(), None, None],
                },
                annotations: Together {
                    given: self.given.annotations.as_ref(),
                    ours: [index_text.as_ref(), counted.as_ref(), ignored.as_ref()],
                },
                finalizers: self.given.finalizers.as_deref().unwrap_or_default(),
                owner_references: [Owner {
                    api_version: "batch/v1",
                    kind: "Job",
                    name: &job.name,
                    uid: &job.uid,
                    controller: true,
                    block_owner_deletion: true,
                }],
            },
        };
        // Strings and maps of them always have a JSON form.
        let mut text = serde_json::to_string(&pod).unwrap_or_default();
        text.pop();
        text.push_str(r#","spec":"#);
        match (index, self.spec.strip_prefix('{')) {
            (Some(index), Some(rest)) => {
                let hostname = Value::from(format!("{}-{index}", job.name));
                text.push_str(&format!(r#"{{"hostname":{hostname}"#));
                text.push_str(if rest == "}" { "" } else { "," });
                text.push_str(rest);
            }
            _ => text.push_str(&self.spec),
        }
        text.push('}');
        text
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NewPod<'a> {
    api_version: &'a str,
    kind: &'a str,
    metadata: NewMetadata<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NewMetadata<'a> {
    name: &'a str,
    namespace: &'a str,
    labels: Together<'a>,
    annotations: Together<'a>,
    finalizers: &'a [String],
    owner_references: [Owner<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Owner<'a> {
    api_version: &'a str,
    kind: &'a str,
    name: &'a str,
    uid: &'a Uid,
    controller: bool,
    block_owner_deletion: bool,
}

/// Merges the template's values with ours. Ours win.
struct Together<'a> {
    given: Option<&'a Map<String, Value>>,
    ours: [Option<&'a (&'static str, String)>; 3],
}

impl Serialize for Together<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ours = || self.ours.into_iter().flatten();
        let given = self.given.into_iter().flatten();
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in given.filter(|(key, _)| !ours().any(|(other, _)| other == key)) {
            map.serialize_entry(key, value)?;
        }
        for (key, value) in ours() {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// Sets the index variable in every container, and removes the hostname, which Salvor sets.
fn with_index_variables(spec: &str) -> String {
    let mut spec: Map<String, Value> = serde_json::from_str(spec).unwrap_or_default();
    spec.remove("hostname");
    for containers in ["initContainers", "containers"] {
        for container in spec.get_mut(containers).and_then(Value::as_array_mut).into_iter().flatten() {
            add_index_variable(container);
        }
    }
    Value::Object(spec).to_string()
}

/// Sets the index variable of a container, unless the user has set it.
fn add_index_variable(container: &mut Value) {
    if container["env"].is_null() {
        container["env"] = json!([]);
    }
    let Some(variables) = container["env"].as_array_mut() else { return };
    if variables.iter().any(|variable| variable["name"] == COMPLETION_INDEX_ENV) {
        return;
    }
    let path = format!("metadata.labels['{COMPLETION_INDEX}']");
    let from_label =
        json!({ "name": COMPLETION_INDEX_ENV, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    variables.push(from_label);
}
