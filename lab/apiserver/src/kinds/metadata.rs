//! Rules for `metadata` that apply to every kind.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::table::{Generation, Resource, Subresource};
use super::{Names, go};
use crate::environment::Environment;
use crate::object;
use crate::propagation::{FOREGROUND, ORPHAN};
use crate::protocol::status::{Cause, Refusal};

/// Leaves room for the suffix of a generated name in a name of at most 63 characters.
const GENERATED_BASE: usize = 58;

const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const QUALIFIED_NAME: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_KEY: &str = "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const PREFIX: &str = "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

/// Fills in what the server decides about a new object.
pub(crate) fn fill_in(value: &mut Value, resource: &Resource, environment: &mut Environment<'_>) {
    let generate = object::text(value, "/metadata/generateName").to_owned();
    if object::name(value).is_empty() && !generate.is_empty() {
        let base: String = generate.chars().take(GENERATED_BASE).collect();
        let name = format!("{base}{}", environment.suffix());
        object::set_metadata(value, "name", json!(name));
    }
    let uid = environment.uid();
    object::set_metadata(value, "uid", json!(uid));
    object::set_metadata(value, "creationTimestamp", json!(object::time(environment.now)));
    let generation = match resource.generation {
        Generation::None => Value::Null,
        Generation::Of(_) | Generation::Everything => json!(1),
    };
    // A kind without generations keeps the client's value.
    if resource.generation != Generation::None {
        object::set_metadata(value, "generation", generation);
    }
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        object::set_metadata(value, key, Value::Null);
    }
}

pub(crate) fn check(value: &Value, resource: &Resource) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = object::name(value);
    let generate = object::text(value, "/metadata/generateName");
    if !generate.is_empty()
        && let Some(why) = name_problem(resource, generate.trim_end_matches('-'))
    {
        causes.push(Cause::invalid("metadata.generateName", &json!(generate), why));
    }
    if name.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    } else if let Some(why) = name_problem(resource, name) {
        causes.push(Cause::invalid("metadata.name", &json!(name), why));
    }
    causes.extend(check_common(value));
    if knows_finalizers(resource) {
        causes.extend(check_finalizers(value));
    }
    causes
}

/// The checks of new and changed objects of all kinds.
fn check_common(value: &Value) -> Vec<Cause> {
    let mut causes = check_maps(value, "/metadata", "metadata");
    causes.extend(check_owners(value));
    let finalizers = object::finalizers(value);
    for finalizer in &finalizers {
        let problems = qualified_name_problems(finalizer).into_iter();
        causes.extend(problems.map(|why| Cause::invalid("metadata.finalizers", &json!(finalizer), why)));
    }
    if [ORPHAN, FOREGROUND].iter().all(|policy| finalizers.iter().any(|finalizer| finalizer == policy)) {
        let why = format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set");
        causes.push(Cause::invalid("metadata.finalizers", &json!(finalizers), &why));
    }
    causes
}

/// True if the server checks finalizers without a domain for this kind. It does so for kinds with older validation
/// code.
fn knows_finalizers(resource: &Resource) -> bool {
    let others = [
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "coordination.k8s.io",
        "events.k8s.io",
        "node.k8s.io",
        "policy",
    ];
    resource.custom.is_none() && !others.contains(&resource.group.as_str()) && !resource.is("", "Event")
}

/// Finalizers without a domain must be those that Kubernetes itself knows.
fn check_finalizers(value: &Value) -> Vec<Cause> {
    let finalizers = object::finalizers(value).into_iter().enumerate();
    finalizers
        .filter_map(|(index, finalizer)| {
            check_finalizer(&format!("metadata.finalizers[{index}]"), &finalizer)
        })
        .collect()
}

/// Refuses a finalizer that is neither known nor has a domain.
pub(crate) fn check_finalizer(field: &str, finalizer: &str) -> Option<Cause> {
    let is_fine = finalizer.contains('/') || [ORPHAN, FOREGROUND, "kubernetes"].contains(&finalizer);
    (!is_fine).then(|| {
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        Cause::invalid(field, &json!(finalizer), why)
    })
}

fn check_owners(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let owners = object::list(value, "/metadata/ownerReferences");
    let mut controller: Option<String> = None;
    for (index, owner) in owners.iter().enumerate() {
        let field = format!("metadata.ownerReferences[{index}]");
        let text = |key: &str| object::text(owner, &format!("/{key}"));
        let version = text("apiVersion");
        if !version.is_empty() && (version.matches('/').count() > 1 || version.ends_with('/')) {
            let why = "must be <group>/<version> or <version>";
            causes.push(Cause::invalid(format!("{field}.apiVersion"), &json!(version), why));
        }
        for key in ["apiVersion", "kind", "name", "uid"].into_iter().filter(|key| text(key).is_empty()) {
            causes.push(Cause::required(format!("{field}.{key}"), "must not be empty"));
        }
        if (version, text("kind")) == ("v1", "Event") {
            let why = "/v1, Kind=Event is disallowed from being an owner";
            causes.push(Cause::invalid_text(field, &go::owner_reference(owner), why));
        }
        if owner.get("controller") == Some(&json!(true)) {
            let name = format!("{}/{}", text("kind"), text("name"));
            match &controller {
                None => controller = Some(name),
                Some(first) => {
                    let why = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                    );
                    let shown: Vec<String> = owners.iter().map(go::owner_reference).collect();
                    let shown = format!("[{}]", shown.join(","));
                    causes.push(Cause::invalid_text("metadata.ownerReferences", &shown, &why));
                }
            }
        }
    }
    causes
}

/// Checks the labels and annotations of metadata. In templates, error messages name the field without `metadata`.
pub(crate) fn check_maps(value: &Value, metadata: &str, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let labels = object::at(value, &format!("{metadata}/labels")).and_then(Value::as_object);
    for (key, label) in labels.into_iter().flatten() {
        let problems = qualified_name_problems(key).into_iter();
        causes.extend(problems.map(|why| Cause::invalid(format!("{field}.labels"), &json!(key), why)));
        let label = label.as_str().unwrap_or("");
        if let Some(why) = label_value_problem(label) {
            causes.push(Cause::invalid(format!("{field}.labels"), &json!(label), why));
        }
    }
    const ANNOTATIONS_SIZE: usize = 256 * 1024;
    let annotations = object::at(value, &format!("{metadata}/annotations")).and_then(Value::as_object);
    let size: usize = annotations
        .into_iter()
        .flatten()
        .map(|(key, text)| key.len() + text.as_str().map_or(0, str::len))
        .sum();
    for key in annotations.into_iter().flat_map(serde_json::Map::keys) {
        let problems = qualified_name_problems(&key.to_lowercase()).into_iter();
        causes.extend(problems.map(|why| Cause::invalid(format!("{field}.annotations"), &json!(key), why)));
    }
    if size > ANNOTATIONS_SIZE {
        causes.push(Cause::too_long(format!("{field}.annotations"), ANNOTATIONS_SIZE));
    }
    causes
}

pub(crate) fn label_value_problem(value: &str) -> Option<&'static str> {
    if value.len() > 63 {
        return Some("must be no more than 63 bytes");
    }
    (!value.is_empty() && !is_word(value)).then_some(LABEL_VALUE)
}

pub(crate) fn label_key_problem(key: &str) -> Option<&'static str> {
    qualified_name_problems(key).into_iter().next()
}

/// What keeps a text from being a qualified name, for example a label key or a finalizer.
pub(crate) fn qualified_name_problems(text: &str) -> Vec<&'static str> {
    let mut problems = Vec::new();
    let name = match text.split('/').collect::<Vec<&str>>().as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty");
            } else if !is_subdomain(prefix) {
                problems.push(PREFIX);
            }
            *name
        }
        _ => return vec![LABEL_KEY],
    };
    match name.len() {
        0 => problems.push("name part must be non-empty"),
        64.. => problems.push("name part must be no more than 63 bytes"),
        _ => {}
    }
    if !is_word(name) {
        problems.push(QUALIFIED_NAME);
    }
    problems
}

fn is_word(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    edge(text.as_bytes().first())
        && edge(text.as_bytes().last())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn is_label(text: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.as_bytes().first().is_some_and(plain)
        && text.as_bytes().last().is_some_and(plain)
        && text.bytes().all(|byte| plain(&byte) || byte == b'-')
}

pub(crate) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

pub(crate) fn subdomain_problem(text: &str) -> Option<&'static str> {
    if text.len() > 253 {
        return Some("must be no more than 253 bytes");
    }
    (!is_subdomain(text)).then_some(SUBDOMAIN)
}

/// Why a text is no RFC 1035 label, which begins with a letter.
pub(crate) fn dns_1035_label_problem(text: &str) -> Option<String> {
    let begins_with_letter = text.starts_with(|first: char| first.is_ascii_lowercase());
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push("must be no more than 63 bytes");
    }
    if !is_label(text) || !begins_with_letter {
        problems.push(LABEL_1035);
    }
    (!problems.is_empty()).then(|| problems.join(","))
}

fn name_problem(resource: &Resource, name: &str) -> Option<&'static str> {
    const LONG: &str = "must be no more than 63 bytes";
    let names = resource.built_in.map_or(Names::Subdomain, |kind| kind.names);
    match names {
        Names::Subdomain => subdomain_problem(name),
        Names::PathSegment if name == "." || name == ".." => Some("may not be '.' or '..'"),
        Names::PathSegment => (name.contains('/') || name.contains('%')).then_some("may not contain '/'"),
        Names::Label | Names::Label1035 if name.len() > 63 => Some(LONG),
        Names::Label => (!is_label(name)).then_some(LABEL),
        Names::Label1035 => (!is_label(name) || name.as_bytes()[0].is_ascii_digit()).then_some(LABEL_1035),
    }
}

/// Fills in what an update may leave out.
pub(crate) fn carry_over(current: &Value, new: &mut Value) {
    for key in ["uid", "creationTimestamp"] {
        // The client cannot set the creation time.
        if key == "creationTimestamp" || object::text(new, &format!("/metadata/{key}")).is_empty() {
            let kept = object::at(current, &format!("/metadata/{key}")).cloned();
            object::set_metadata(new, key, kept.unwrap_or(Value::Null));
        }
    }
    object::set_metadata(new, "selfLink", Value::Null);
    let generation = object::at(current, "/metadata/generation").cloned();
    object::set_metadata(new, "generation", generation.unwrap_or(Value::Null));
    if object::is_terminating(current) {
        for key in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
            let kept = object::at(current, &format!("/metadata/{key}")).cloned();
            object::set_metadata(new, key, kept.unwrap_or(Value::Null));
        }
    }
}

/// Increments the generation if the change requires it.
pub(crate) fn count_generation(resource: &Resource, current: &Value, new: &mut Value) {
    let changed = match resource.generation {
        Generation::None => false,
        Generation::Of(fields) => {
            fields.iter().any(|field| object::at(current, field) != object::at(new, field))
        }
        Generation::Everything => {
            let without = |value: &Value| {
                let mut value = value.clone();
                if let Some(members) = value.as_object_mut() {
                    members.remove("metadata");
                    if resource.has(Subresource::Status) {
                        members.remove("status");
                    }
                }
                value
            };
            without(current) != without(new)
        }
    };
    if changed {
        let generation = object::at(current, "/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
        object::set_metadata(new, "generation", json!(generation + 1));
    }
}

pub(crate) fn check_update(current: &Value, new: &Value, resource: &Resource) -> Vec<Cause> {
    let mut causes = check_common(new);
    if object::is_terminating(current) {
        let (known, wanted) = (object::finalizers(current), object::finalizers(new));
        let added: BTreeSet<&String> = wanted.iter().filter(|finalizer| !known.contains(finalizer)).collect();
        if !added.is_empty() {
            let listed: Vec<String> = added.iter().map(|name| format!("{name:?}")).collect();
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                listed.join(", ")
            );
            causes.push(Cause::forbidden("metadata.finalizers", &why));
        }
    }
    for key in
        ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"]
    {
        let pointer = format!("/metadata/{key}");
        let new_field = object::at(new, &pointer).unwrap_or(&Value::Null);
        if new_field != object::at(current, &pointer).unwrap_or(&Value::Null) {
            causes.push(Cause::invalid(format!("metadata.{key}"), new_field, "field is immutable"));
        }
    }
    if knows_finalizers(resource) {
        causes.extend(check_finalizers(new));
    }
    causes
}

/// Drops duplicate owner references. Returns the warning for the client.
pub(crate) fn drop_duplicate_owners(value: &mut Value, is_patch: bool) -> Option<String> {
    let owners = object::list(value, "/metadata/ownerReferences");
    let is_first = |(index, owner): &(usize, &Value)| !owners[..*index].contains(owner);
    let (kept, dropped): (Vec<_>, Vec<_>) = owners.iter().enumerate().partition(is_first);
    if dropped.is_empty() {
        return None;
    }
    let uids: Vec<&str> = dropped.iter().map(|(_, owner)| object::text(owner, "/uid")).collect();
    let when = if is_patch { " after mutating admission happens" } else { "" };
    let warning = format!(
        ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        uids.join(", ")
    );
    let kept: Vec<Value> = kept.into_iter().map(|(_, owner)| owner.clone()).collect();
    object::set_metadata(value, "ownerReferences", json!(kept));
    Some(warning)
}

/// Refuses an object whose name or namespace contradicts the path.
pub(crate) fn check_place(
    value: &mut Value,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<(), Refusal> {
    let stated = object::namespace(value);
    if resource.namespaced {
        if stated.is_empty() {
            object::set_metadata(value, "namespace", json!(namespace));
        } else if stated != namespace {
            return Err(Refusal::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
    } else if !stated.is_empty() {
        object::set_metadata(value, "namespace", Value::Null);
    }
    if !name.is_empty() {
        let stated = object::name(value);
        if stated.is_empty() {
            return Err(Refusal::bad_request(format!(
                "the name of the object ({name} based on URL) was undeterminable: name must be provided"
            )));
        }
        if stated != name {
            return Err(Refusal::bad_request(format!(
                "the name of the object ({stated}) does not match the name on the URL ({name})"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Too large for a readable transcript; the real server has the same limit.
    #[test]
    fn annotations_are_measured_together() {
        let causes = |size: usize| {
            let value = json!({ "metadata": { "annotations": { "a": "x".repeat(size - 2), "b": "" } } });
            check_maps(&value, "/metadata", "metadata")
        };
        assert_eq!(causes(262_144), []);
        assert_eq!(causes(262_145), [Cause::too_long("metadata.annotations", 262_144)]);
    }
}
