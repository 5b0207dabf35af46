//! Builds the object for a component: its template with the additions of the AppWrapper, Kueue and Autopilot.
//!
//! The same input gives the same object, including its name. So a component that was created but not recorded before a
//! crash is found again under its name, by the UID of its owner.

mod affinity;
mod fields;

use std::collections::BTreeMap;

use salvor_api::config::{AppWrapperSettings, AutopilotSettings};
use salvor_api::names::appwrapper as names;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::fields::{list_in, object_at, object_in, place_of};
use super::podsets::{self, FieldError, PodSet, TemplateKind};
use crate::fnv::Fnv;
use crate::ids::Uid;

/// The AppWrapper to which a component belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a Uid,
}

/// The part of the configuration that affects created objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectionPolicy {
    /// For pods without a scheduler name. Empty for none.
    scheduler_name: String,
    /// Set if pods must avoid sick nodes.
    autopilot: Option<AutopilotSettings>,
}

impl InjectionPolicy {
    pub fn new(settings: &AppWrapperSettings) -> Self {
        let autopilot = &settings.autopilot;
        Self {
            scheduler_name: settings.scheduler_name.clone(),
            autopilot: autopilot.inject_anti_affinities.then(|| autopilot.clone()),
        }
    }

    /// A policy that adds nothing.
    pub(super) fn none() -> Self {
        Self { scheduler_name: String::new(), autopilot: None }
    }
}

/// A component in the spec, with what is needed to create it.
#[derive(Clone, Copy, Debug)]
pub struct Component<'a> {
    /// The entry of `spec.components`.
    pub spec: &'a Value,
    /// Its index there.
    pub index: usize,
    /// Its PodSets, as recorded in the status.
    pub pod_sets: &'a [PodSet],
    /// How many times it was created before. Another number gives a template with `generateName` another name.
    pub attempt: u32,
}

/// Kueue's additions to the pods of one PodSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSetInfo {
    annotations: Option<BTreeMap<String, String>>,
    labels: Option<BTreeMap<String, String>>,
    node_selector: Option<BTreeMap<String, String>>,
    tolerations: Option<Vec<Map<String, Value>>>,
    scheduling_gates: Option<Vec<Gate>>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Gate {
    name: String,
}

/// The object to create.
///
/// # Errors
/// The field, relative to the component, because of which it can never be created.
pub fn object(
    component: Component<'_>,
    owner: Owner<'_>,
    policy: &InjectionPolicy,
) -> Result<Value, FieldError> {
    let infos = pod_set_infos(component.spec)?;
    let mut template = component.spec.get("template").cloned().unwrap_or_default();
    TemplateKind::of(&template)?;
    let name = object_name(&template, component.index, component.attempt, owner)?;
    place(&mut template, &name, owner)?;
    for (index, set) in component.pod_sets.iter().enumerate() {
        podsets::check_path(&template, &set.path, &format!("podSets[{index}].path"))?;
        let info = infos.get(index).cloned().unwrap_or_default();
        // `check_path` has shown that the path exists.
        if let Ok(pod) = podsets::find_mut(&mut template, &set.path) {
            into_pod(pod, info, owner, policy).map_err(|error| error.within(&set.path))?;
        }
    }
    Ok(template)
}

fn pod_set_infos(component: &Value) -> Result<Vec<PodSetInfo>, FieldError> {
    let list = match component.get("podSetInfos") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(FieldError::invalid("podSetInfos", other, "must be a list")),
    };
    let read = |(index, info): (usize, &Value)| {
        PodSetInfo::deserialize(info).map_err(|error: serde_json::Error| {
            FieldError::invalid(format!("podSetInfos[{index}]"), info, error.to_string())
        })
    };
    list.iter().enumerate().map(read).collect()
}

/// The longest prefix that Kubernetes keeps of `generateName`, and the length of the suffix.
const LONGEST_PREFIX: usize = 58;
const SUFFIX_LENGTH: u32 = 5;
/// The alphabet of Kubernetes' own random names: no vowels, so no words.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The name of a component's object. A `generateName` is completed here, from the owner's UID instead of at random, so
/// a second attempt finds the object of the first.
///
/// # Errors
/// The template has no name, or one that is not a string.
pub fn object_name(
    template: &Value,
    index: usize,
    attempt: u32,
    owner: Owner<'_>,
) -> Result<String, FieldError> {
    let text = |field: &str| match template.pointer(&format!("/metadata/{field}")) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(other) => {
            Err(FieldError::invalid(format!("template.metadata.{field}"), other, "must be a string"))
        }
    };
    if let Some(name) = text("name")? {
        return Ok(name.clone());
    }
    let Some(prefix) = text("generateName")? else {
        return Err(FieldError::required("template.metadata.name", "set name or generateName"));
    };
    let end = (0..=prefix.len().min(LONGEST_PREFIX)).rev().find(|end| prefix.is_char_boundary(*end));
    let mut hash = Fnv::default();
    hash.add(owner.uid.as_str().as_bytes());
    hash.add(&(index as u64).to_le_bytes());
    hash.add(&attempt.to_le_bytes());
    let mut number = hash.finish();
    let mut name = prefix[..end.unwrap_or_default()].to_owned();
    for _ in 0..SUFFIX_LENGTH {
        let letters = ALPHABET.len() as u64;
        name.push(char::from(ALPHABET[usize::try_from(number % letters).unwrap_or_default()]));
        number /= letters;
    }
    Ok(name)
}

/// Sets name, namespace, label and owner.
fn place(template: &mut Value, name: &str, owner: Owner<'_>) -> Result<(), FieldError> {
    let metadata = object_in(template, "metadata", "template")?;
    match metadata.get("namespace") {
        None | Some(Value::Null) => {}
        Some(Value::String(namespace)) if namespace.is_empty() || namespace == owner.namespace => {}
        Some(_) => {
            let detail = "AppWrappers cannot create objects in other namespaces";
            return Err(FieldError::forbidden("template.metadata.namespace", detail));
        }
    }
    metadata.insert("namespace".into(), owner.namespace.into());
    metadata.insert("name".into(), name.into());
    let member = BTreeMap::from([(names::MEMBER_LABEL.to_owned(), owner.name.to_owned())]);
    add_texts(metadata, "labels", member, "template.metadata")?;
    own(metadata, owner)
}

fn own(metadata: &mut Map<String, Value>, owner: Owner<'_>) -> Result<(), FieldError> {
    let field = "template.metadata.ownerReferences";
    let references = list_in(metadata, "ownerReferences", "template.metadata")?;
    let is_ours = |reference: &Value| reference["uid"] == owner.uid.as_str();
    if let Some(other) = references.iter().find(|other| other["controller"] == true && !is_ours(other)) {
        let detail = "a component is controlled by its AppWrapper only: take the reference out";
        return Err(FieldError::invalid(field, other, detail));
    }
    references.retain(|reference| !is_ours(reference));
    references.push(json!({
        "apiVersion": names::API_VERSION,
        "kind": names::KIND,
        "name": owner.name,
        "uid": owner.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    }));
    Ok(())
}

/// Applies the additions to one pod template. Fields in errors are relative to it.
fn into_pod(
    pod: &mut Value,
    info: PodSetInfo,
    owner: Owner<'_>,
    policy: &InjectionPolicy,
) -> Result<(), FieldError> {
    let metadata = object_in(pod, "metadata", "")?;
    add_texts(metadata, "annotations", info.annotations.unwrap_or_default(), "metadata")?;
    let mut labels = info.labels.unwrap_or_default();
    let said = labels.insert(names::MEMBER_LABEL.into(), owner.name.into());
    if let Some(said) = said.filter(|said| said != owner.name) {
        return Err(conflict(format!("metadata.labels[{}]", names::MEMBER_LABEL), &said, owner.name));
    }
    add_texts(metadata, "labels", labels, "metadata")?;

    let spec = object_in(pod, "spec", "")?;
    let selector = info.node_selector.unwrap_or_default();
    add_texts(spec, "nodeSelector", selector, "spec")?;
    let tolerations = info.tolerations.unwrap_or_default();
    if !tolerations.is_empty() {
        let list = list_in(spec, "tolerations", "spec")?;
        list.extend(tolerations.into_iter().map(Value::Object));
    }
    let gates = info.scheduling_gates.unwrap_or_default();
    if !gates.is_empty() {
        let list = list_in(spec, "schedulingGates", "spec")?;
        for Gate { name } in gates {
            if !list.iter().any(|gate| gate["name"] == *name) {
                list.push(json!({ "name": name }));
            }
        }
    }
    let scheduler = spec.get("schedulerName").and_then(Value::as_str).unwrap_or_default();
    if scheduler.is_empty() && !policy.scheduler_name.is_empty() {
        spec.insert("schedulerName".into(), policy.scheduler_name.clone().into());
    }
    if let Some(autopilot) = &policy.autopilot {
        affinity::keep_away(spec, autopilot)?;
    }
    Ok(())
}

/// Adds entries to a map of strings. An existing entry must have the same value.
fn add_texts(
    object: &mut Map<String, Value>,
    field: &str,
    texts: BTreeMap<String, String>,
    outer: &str,
) -> Result<(), FieldError> {
    if texts.is_empty() {
        return Ok(());
    }
    let map = object_at(object, field, outer)?;
    for (key, text) in texts {
        let there = map.entry(key.clone()).or_insert_with(|| text.clone().into());
        if *there != *text {
            let place = format!("{}[{key}]", place_of(outer, field));
            return Err(conflict(place, there, &text));
        }
    }
    Ok(())
}

fn conflict(place: String, there: impl std::fmt::Display, wanted: &str) -> FieldError {
    FieldError::invalid(place, there, format!("must be {wanted:?}, or not set"))
}

#[cfg(test)]
mod tests;
