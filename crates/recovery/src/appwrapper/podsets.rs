//! The pod templates of a component: their paths, and how many pods each creates.
//!
//! For common kinds they are known. For other kinds the user declares them; otherwise an AppWrapper has no pods to
//! count.

mod field_error;
mod path;
mod pod_template;

use std::collections::BTreeMap;

use salvor_api::names::appwrapper::annotations;
use salvor_api::names::job;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use field_error::{FieldError, FieldErrorKind};
pub use path::PathError;
pub(super) use path::find_mut;

/// A pod template in a component, with the number of its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodSet {
    /// Annotations about topology, for Kueue.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// 1 if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The path of the template, beginning with `template`.
    pub path: String,
}

impl PodSet {
    /// The declared number of pods.
    pub fn count(&self) -> i32 {
        self.replicas.unwrap_or(1)
    }

    /// The number of pods to expect, never negative.
    pub fn expected(&self) -> usize {
        usize::try_from(self.count()).unwrap_or(0)
    }
}

/// The group, version and kind of a template, from its `apiVersion` and `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateKind<'t> {
    /// Empty for the core group.
    pub group: &'t str,
    /// For example `v1`.
    pub version: &'t str,
    /// For example `Pod`.
    pub kind: &'t str,
}

impl<'t> TemplateKind<'t> {
    /// # Errors
    /// The field that is missing or invalid.
    pub fn of(template: &'t Value) -> Result<Self, FieldError> {
        if !template.is_object() {
            return Err(FieldError::invalid("template", template, "must be a Kubernetes object"));
        }
        let text = |field: &str, detail: &str| {
            let place = format!("template.{field}");
            match template.get(field) {
                Some(Value::String(text)) if !text.is_empty() => Ok(text.as_str()),
                None | Some(Value::Null | Value::String(_)) => Err(FieldError::required(place, detail)),
                Some(other) => Err(FieldError::invalid(place, other, "must be a string")),
            }
        };
        let kind = text("kind", "name the kind to create, for example Job")?;
        let api_version = text("apiVersion", "name its group and version, for example batch/v1")?;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if version.is_empty() || version.contains('/') || (group.is_empty() && api_version.contains('/')) {
            let detail = "write group/version, for example batch/v1, or v1 for the core group";
            return Err(FieldError::invalid("template.apiVersion", api_version, detail));
        }
        Ok(Self { group, version, kind })
    }
}

/// The PodSets of a component: the declared ones, or those that its kind is known to have.
///
/// # Errors
/// The field, relative to the component, because of which they cannot be determined.
pub fn pod_sets(component: &Value) -> Result<Vec<PodSet>, FieldError> {
    let declared = declared(component)?;
    if !declared.is_empty() {
        return Ok(declared);
    }
    infer(component.get("template").unwrap_or(&Value::Null))
}

/// The PodSets that the user declared.
///
/// # Errors
/// The first field that does not match the schema.
pub fn declared(component: &Value) -> Result<Vec<PodSet>, FieldError> {
    let list = match component.get("podSets") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(FieldError::invalid("podSets", other, "must be a list")),
    };
    let read = |(index, item): (usize, &Value)| {
        let place = |field: &str| format!("podSets[{index}]{field}");
        if !item.is_object() {
            return Err(FieldError::invalid(place(""), item, "must be an object with path and replicas"));
        }
        let path = match item.get("path") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(path)) => path.clone(),
            Some(other) => return Err(FieldError::invalid(place(".path"), other, "must be a string")),
        };
        let replicas = match item.get("replicas") {
            None | Some(Value::Null) => None,
            Some(value) => Some(whole(value).ok_or_else(|| {
                let detail = format!("must be a whole number from 0 to {}", i32::MAX);
                FieldError::invalid(place(".replicas"), value, detail)
            })?),
        };
        let annotations = match item.get("annotations") {
            None | Some(Value::Null) => BTreeMap::new(),
            Some(value) => BTreeMap::deserialize(value)
                .map_err(|_| FieldError::invalid(place(".annotations"), value, "must be a map of strings"))?,
        };
        Ok(PodSet { annotations, replicas, path })
    };
    list.iter().enumerate().map(read).collect()
}

fn whole(value: &Value) -> Option<i32> {
    value.as_i64().and_then(|number| i32::try_from(number).ok()).filter(|number| *number >= 0)
}

/// Checks that a path in a template leads to a pod template.
///
/// # Errors
/// `Required` if the path is empty, otherwise what is wrong with it or behind it. The error names `field`.
pub fn check_path(template: &Value, path: &str, field: &str) -> Result<(), FieldError> {
    if path.is_empty() {
        return Err(FieldError::required(
            field,
            "name the path of a pod template, for example template.spec.template",
        ));
    }
    let value = path::find(template, path)
        .map_err(|error| FieldError::invalid(field, path, format!("the path {error}")))?;
    pod_template::check(value).map_err(|inner| {
        FieldError::invalid(field, path, format!("there is no pod template: {}", inner.within(path)))
    })
}

/// Errors in the declared PodSets of a component, compared with those that its kind is known to have.
pub fn contradictions(declared: &[PodSet], inferred: &[PodSet]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, set) in declared.iter().enumerate() {
        if declared[..index].iter().any(|other| other.path == set.path) {
            errors.push(FieldError::duplicate(format!("podSets[{index}].path"), &set.path));
        }
    }
    if declared.is_empty() || inferred.is_empty() {
        return errors;
    }
    if declared.len() != inferred.len() {
        let detail = format!("this kind has {} pod sets, and all of them must be declared", inferred.len());
        errors.push(FieldError::invalid("podSets", format!("{} pod sets", declared.len()), detail));
    }
    for known in inferred {
        match declared.iter().position(|set| set.path == known.path) {
            None => {
                let detail =
                    format!("declare {} with {} replicas, or declare no pod set", known.path, known.count());
                errors.push(FieldError::required("podSets", detail));
            }
            Some(index) if declared[index].count() != known.count() => {
                let detail = format!("the template has {}", known.count());
                errors.push(FieldError::invalid(
                    format!("podSets[{index}].replicas"),
                    declared[index].count(),
                    detail,
                ));
            }
            Some(_) => {}
        }
    }
    errors
}

/// The PodSets that a kind is known to have; none for an unknown kind.
///
/// # Errors
/// The field, relative to the component, that is not a pod template or not a number.
pub fn infer(template: &Value) -> Result<Vec<PodSet>, FieldError> {
    let kind = TemplateKind::of(template)?;
    let at = |pointer: &str| template.pointer(pointer).filter(|value| !value.is_null());
    let sets = match (kind.group, kind.version, kind.kind) {
        ("", "v1", "Pod") => vec![set("template", 1, &[])],
        // An object without a template creates no pods, and its own API refuses it.
        ("apps", "v1", "Deployment" | "StatefulSet") if at("/spec/template").is_none() => Vec::new(),
        ("apps", "v1", "Deployment" | "StatefulSet") => {
            let replicas = replicas(at("/spec/replicas"), "template.spec.replicas")?;
            vec![set("template.spec.template", replicas, &[])]
        }
        ("batch", "v1", "Job") => {
            let index = (annotations::TAS_POD_INDEX_LABEL, job::COMPLETION_INDEX);
            vec![set("template.spec.template", at_once(at("/spec")), &[index])]
        }
        ("jobset.x-k8s.io", "v1alpha2", "JobSet") => job_set(at("/spec/replicatedJobs"))?,
        ("kubeflow.org", "v1", "PyTorchJob") => pytorch_job(at("/spec/pytorchReplicaSpecs"))?,
        ("ray.io", "v1", "RayCluster") => ray_cluster(at("/spec"), "template.spec")?,
        ("ray.io", "v1", "RayJob") => {
            ray_cluster(at("/spec/rayClusterSpec"), "template.spec.rayClusterSpec")?
        }
        _ => Vec::new(),
    };
    for set in &sets {
        check_path(template, &set.path, &set.path)?;
    }
    Ok(sets)
}

fn set(path: impl Into<String>, replicas: i32, annotations: &[(&str, &str)]) -> PodSet {
    let annotations = annotations.iter().map(|(key, value)| ((*key).into(), (*value).into()));
    PodSet { path: path.into(), replicas: Some(replicas), annotations: annotations.collect() }
}

/// A field that must be a count if it is set.
fn replicas(value: Option<&Value>, field: &str) -> Result<i32, FieldError> {
    value.map_or(Ok(1), |value| {
        whole(value).ok_or_else(|| {
            FieldError::invalid(field, value, format!("must be a whole number from 0 to {}", i32::MAX))
        })
    })
}

/// How many pods of a Job run at once. The API server refuses values that are not numbers.
fn at_once(spec: Option<&Value>) -> i32 {
    let count = |field: &str| spec.and_then(|spec| spec.get(field)).and_then(whole);
    let parallelism = count("parallelism").unwrap_or(1);
    count("completions").map_or(parallelism, |completions| completions.min(parallelism))
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn job_set(jobs: Option<&Value>) -> Result<Vec<PodSet>, FieldError> {
    let mut sets = Vec::new();
    for (index, job) in list(jobs).iter().enumerate() {
        let Some(template) = job.get("template").filter(|template| !template.is_null()) else { continue };
        let place = format!("template.spec.replicatedJobs[{index}]");
        let groups = job.get("replicas").and_then(whole).unwrap_or(1);
        let pods = at_once(template.get("spec"));
        let Some(all) = groups.checked_mul(pods) else {
            let detail = format!("{groups} jobs of {pods} pods are more than {}", i32::MAX);
            return Err(FieldError::invalid(format!("{place}.replicas"), groups, detail));
        };
        let annotations = [
            (annotations::TAS_POD_INDEX_LABEL, job::COMPLETION_INDEX),
            (annotations::TAS_SUB_GROUP_INDEX_LABEL, "jobset.sigs.k8s.io/job-index"),
            (annotations::TAS_SUB_GROUP_COUNT, &groups.to_string()),
        ];
        sets.push(set(format!("{place}.template.spec.template"), all, &annotations));
    }
    Ok(sets)
}

fn pytorch_job(specs: Option<&Value>) -> Result<Vec<PodSet>, FieldError> {
    let mut sets = Vec::new();
    for role in ["Master", "Worker"] {
        let spec = specs.and_then(|specs| specs.get(role)).filter(|spec| !spec["template"].is_null());
        let Some(spec) = spec else { continue };
        let place = format!("template.spec.pytorchReplicaSpecs.{role}");
        let count = spec.get("replicas").filter(|count| !count.is_null());
        let count = replicas(count, &format!("{place}.replicas"))?;
        let index = (annotations::TAS_POD_INDEX_LABEL, "training.kubeflow.org/replica-index");
        sets.push(set(format!("{place}.template"), count, &[index]));
    }
    Ok(sets)
}

fn ray_cluster(spec: Option<&Value>, place: &str) -> Result<Vec<PodSet>, FieldError> {
    let mut sets = vec![set(format!("{place}.headGroupSpec.template"), 1, &[])];
    let groups = spec.and_then(|spec| spec.get("workerGroupSpecs"));
    for (index, group) in list(groups).iter().enumerate().filter(|(_, group)| !group["template"].is_null()) {
        let place = format!("{place}.workerGroupSpecs[{index}]");
        let count = group.get("replicas").filter(|count| !count.is_null());
        let count = replicas(count, &format!("{place}.replicas"))?;
        sets.push(set(format!("{place}.template"), count, &[]));
    }
    Ok(sets)
}

#[cfg(test)]
pub(crate) mod tests;
