//! The rules themselves. Each returns all errors, not only the first.

use salvor_api::names::appwrapper as names;
use serde_json::Value;

use super::policy::AdmissionPolicy;
use crate::appwrapper::admitted::IMMUTABLE;
use crate::appwrapper::bounds::Size;
use crate::appwrapper::components::components;
use crate::appwrapper::inject::{self, Component, InjectionPolicy, Owner};
use crate::appwrapper::podsets::{self, FieldError, PodSet, TemplateKind};
use crate::appwrapper::stamp::Unstamped;
use crate::ids::Uid;

/// The maximum number of pod templates of an AppWrapper, which is Kueue's limit for one Workload.
const MOST_POD_SETS: usize = 8;
/// The name becomes a label value.
const LONGEST_NAME: usize = 63;

pub(super) fn creation(object: &Value, namespace: &str, policy: &AdmissionPolicy) -> Vec<FieldError> {
    let mut errors = Vec::new();
    // A name that the API server generates from generateName has at most 63 characters.
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if name.chars().count() > LONGEST_NAME {
        let detail = format!(
            "must have at most {LONGEST_NAME} characters, because it becomes the value of the label {}",
            names::MEMBER_LABEL
        );
        errors.push(FieldError::invalid("metadata.name", name, detail));
    }
    if let Some(excess) = Size::of(object).excess() {
        errors.push(excess);
        return errors;
    }
    let list = &object["spec"]["components"];
    if !list.is_array() && !list.is_null() {
        errors.push(FieldError::invalid("spec.components", list, "must be a list of components"));
        return errors;
    }
    let mut pod_sets = 0;
    for (index, component) in components(object).iter().enumerate() {
        let place = format!("spec.components[{index}]");
        let (found, sets) = one_component(component, index, name, namespace, policy);
        errors.extend(found.into_iter().map(|error| error.within(&place)));
        pod_sets += sets;
    }
    if pod_sets == 0 || pod_sets > MOST_POD_SETS {
        let detail = format!("there must be 1 to {MOST_POD_SETS} pod sets in all components together");
        errors.push(FieldError::invalid("spec.components", format!("{pod_sets} pod sets"), detail));
    }
    errors
}

/// The errors of a component, and the number of its PodSets.
fn one_component(
    component: &Value,
    index: usize,
    name: &str,
    namespace: &str,
    policy: &AdmissionPolicy,
) -> (Vec<FieldError>, usize) {
    let template = &component["template"];
    let kind = match TemplateKind::of(template) {
        Ok(kind) => kind,
        Err(error) => return (vec![error], 0),
    };
    let mut errors = Vec::new();
    if kind.group == names::GROUP && kind.kind == names::KIND {
        errors.push(FieldError::forbidden("template", "Nested AppWrappers are forbidden"));
    } else if policy.kind(kind).is_none() {
        errors.push(FieldError::forbidden("template", not_wrapped(kind, "appwrapper.wrappedKinds")));
    }
    let owner = Owner { namespace, name, uid: Uid::unknown() };
    errors.extend(names_of(template, index, owner));

    let declared = podsets::declared(component).unwrap_or_else(|error| {
        errors.push(error);
        Vec::new()
    });
    for (index, set) in declared.iter().enumerate() {
        let field = format!("podSets[{index}].path");
        errors.extend(podsets::check_path(template, &set.path, &field).err());
    }
    let inferred = podsets::infer(template).unwrap_or_else(|error| {
        errors.push(error);
        Vec::new()
    });
    errors.extend(podsets::contradictions(&declared, &inferred));
    let count = declared.len().max(inferred.len());
    // An object that can never be created is refused now, not after the workload has waited in its queue.
    if errors.is_empty() && !name.is_empty() {
        let pod_sets = if declared.is_empty() { inferred } else { declared };
        // Kueue may change its additions at any time, so they are checked when the component is created.
        let mut plain = component.clone();
        if let Some(fields) = plain.as_object_mut() {
            fields.remove("podSetInfos");
        }
        let component = Component { spec: &plain, index, pod_sets: &pod_sets, attempt: 0 };
        errors.extend(inject::object(component, owner, &InjectionPolicy::none()).err());
    }
    (errors, count)
}

fn names_of(template: &Value, index: usize, owner: Owner<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match &template["metadata"]["namespace"] {
        Value::Null => {}
        Value::String(other) if other.is_empty() || other == owner.namespace => {}
        _ => {
            let detail = "AppWrappers cannot create objects in other namespaces";
            errors.push(FieldError::forbidden("template.metadata.namespace", detail));
        }
    }
    errors.extend(inject::object_name(template, index, 0, owner).err());
    errors
}

fn entry(kind: TemplateKind<'_>) -> String {
    let dot = if kind.group.is_empty() { "" } else { "." };
    format!("{}{dot}{}", kind.kind, kind.group)
}

fn not_wrapped(kind: TemplateKind<'_>, list: &str) -> String {
    let entry = entry(kind);
    format!(
        "{entry} is not among the kinds that may be wrapped: an administrator can add the line \"- {entry}\" to {list}"
    )
}

/// Errors for the kinds that may be wrapped only after a review of their author's rights. `say` gives the message.
fn unasked(
    object: &Value,
    policy: &AdmissionPolicy,
    say: impl Fn(TemplateKind<'_>) -> String,
) -> Vec<FieldError> {
    let unasked = |(index, component): (usize, &Value)| {
        let kind = TemplateKind::of(&component["template"]).ok()?;
        // A kind that may not be wrapped at all was already refused.
        policy.kind(kind)?;
        let named = policy.kinds_without_webhooks.iter().any(|named| named.is(kind.group, kind.kind));
        (!named).then(|| FieldError::forbidden(format!("spec.components[{index}].template"), say(kind)))
    };
    components(object).iter().enumerate().filter_map(unasked).collect()
}

/// The kinds that may not be wrapped where there are no webhooks.
pub(super) fn unasked_kinds(object: &Value, policy: &AdmissionPolicy) -> Vec<FieldError> {
    let list = "appwrapper.wrappedKindsWithoutWebhooks, or switch webhooks on";
    unasked(object, policy, |kind| not_wrapped(kind, list))
}

/// The kinds that may not be wrapped while their author is not known, and why not.
pub(super) fn unstamped_kinds(object: &Value, policy: &AdmissionPolicy, why: &Unstamped) -> Vec<FieldError> {
    unasked(object, policy, |kind| {
        let entry = entry(kind);
        format!(
            "it is not known whether its author may create a {entry}, because {why}. Create the AppWrapper again while the webhooks are \
             asked, or an administrator can add the line \"- {entry}\" to appwrapper.wrappedKindsWithoutWebhooks"
        )
    })
}

pub(super) fn change(old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = Size::of(new).excess_since(Size::of(old)).into_iter().collect();
    let mut immutable = |field: String| errors.push(FieldError::forbidden(field, IMMUTABLE));
    for label in [names::USER_LABEL, names::USER_ID_LABEL] {
        if text(&old["metadata"]["labels"][label]) != text(&new["metadata"]["labels"][label]) {
            immutable(format!("metadata.labels[{label}]"));
        }
    }
    if old["spec"]["managedBy"] != new["spec"]["managedBy"] {
        immutable("spec.managedBy".into());
    }
    let (before, after) = (components(old), components(new));
    if before.len() != after.len() {
        immutable("spec.components".into());
        return errors;
    }
    for (index, (before, after)) in before.iter().zip(after).enumerate() {
        let place = format!("spec.components[{index}]");
        if before["template"] != after["template"] {
            immutable(format!("{place}.template"));
        }
        match (podsets::declared(before), podsets::declared(after)) {
            (Ok(before), Ok(after)) => changed_sets(&before, &after, &place, &mut immutable),
            // The change cannot be described in more detail.
            _ if before["podSets"] != after["podSets"] => immutable(format!("{place}.podSets")),
            _ => {}
        }
    }
    errors
}

fn changed_sets(before: &[PodSet], after: &[PodSet], place: &str, immutable: &mut impl FnMut(String)) {
    if before.len() != after.len() {
        return immutable(format!("{place}.podSets"));
    }
    for (index, (before, after)) in before.iter().zip(after).enumerate() {
        if before.count() != after.count() {
            immutable(format!("{place}.podSets[{index}].replicas"));
        }
        if before.path != after.path {
            immutable(format!("{place}.podSets[{index}].path"));
        }
    }
}

/// A missing label counts as an empty one, as upstream does.
fn text(label: &Value) -> &str {
    label.as_str().unwrap_or_default()
}
