//! Validation of a definition, in the real server's order and with its messages.
//!
//! The real server reports a value that all versions share as if it were written once, above them: a shared schema is
//! `spec.validation`, and shared columns are `spec.additionalPrinterColumns`.

use serde_json::{Value, json};

use super::structure;
use crate::kinds::metadata::{dns_1035_label_problem, subdomain_problem};
use crate::object;
use crate::protocol::status::Cause;

const APPROVAL: &str = "api-approved.kubernetes.io";
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];

/// Checks a definition, and what may not change since `old`.
pub(crate) fn check(definition: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let text = |pointer: &str| object::text(definition, pointer);
    let name = object::name(definition);
    if old.is_none() && name != format!("{}.{}", text("/spec/names/plural"), text("/spec/group")) {
        let why = "must be spec.names.plural+\".\"+spec.group";
        causes.push(Cause::invalid("metadata.name", &json!(name), why));
    }
    causes.extend(spec(definition));
    for field in ["scope", "names.kind", "group", "names.plural"] {
        let pointer = format!("/spec/{}", field.replace('.', "/"));
        if old.is_some_and(|old| object::text(old, &pointer) != text(&pointer)) {
            causes.push(Cause::invalid(
                format!("spec.{field}"),
                &json!(text(&pointer)),
                "field is immutable",
            ));
        }
    }
    causes.extend(stored_versions(definition));
    causes.extend(approval(definition, old));
    if definition.pointer("/spec/preserveUnknownFields") == Some(&json!(true)) {
        causes.push(Cause::invalid(
            "spec.preserveUnknownFields",
            &json!(true),
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ));
    }
    causes
}

fn spec(definition: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let group = object::text(definition, "/spec/group");
    if group.is_empty() {
        causes.push(Cause::required("spec.group", ""));
    } else if let Some(why) = subdomain_problem(group) {
        causes.push(Cause::invalid("spec.group", &json!(group), why));
    } else if !group.contains('.') {
        causes.push(Cause::invalid("spec.group", &json!(group), "should be a domain with at least one dot"));
    }
    match object::text(definition, "/spec/scope") {
        "" => causes.push(Cause::required("spec.scope", "")),
        "Cluster" | "Namespaced" => {}
        other => causes.push(Cause::unsupported("spec.scope", other, &["Cluster", "Namespaced"])),
    }
    let versions = object::list(definition, "/spec/versions");
    for (index, version) in versions.iter().enumerate() {
        if version.pointer("/schema/openAPIV3Schema").is_none() {
            causes.push(Cause::required(format!("spec.versions[{index}].schema.openAPIV3Schema"), ""));
        }
    }
    for (index, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{index}]");
        let name = object::text(version, "/name");
        if let Some(why) = dns_1035_label_problem(name) {
            causes.push(Cause::invalid(format!("{at}.name"), &json!(name), &why));
        }
        if !is_shared(versions, "schema") {
            causes.extend(schema(version, &format!("{at}.schema")));
        }
        if !is_shared(versions, "additionalPrinterColumns") {
            causes.extend(columns(version, &at));
        }
    }
    causes.extend(version_list(versions));
    if let Some(first) = versions.first() {
        let name = object::text(first, "/name");
        if let Some(why) = dns_1035_label_problem(name).filter(|_| !name.is_empty()) {
            causes.push(Cause::invalid("spec.version", &json!(name), &why));
        }
    }
    causes.extend(names(definition));
    if let Some(first) = versions.first() {
        if is_shared(versions, "schema") {
            causes.extend(schema(first, "spec.validation"));
        }
        if is_shared(versions, "additionalPrinterColumns") {
            causes.extend(columns(first, "spec"));
        }
    }
    causes
}

/// True if all versions have the same value for a key.
fn is_shared(versions: &[Value], key: &str) -> bool {
    versions.windows(2).all(|pair| pair[0].get(key) == pair[1].get(key))
}

fn version_list(versions: &[Value]) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = |version: &Value| object::text(version, "/name").to_owned();
    let is_repeated = |index: usize| versions[..index].iter().any(|v| name(v) == name(&versions[index]));
    if (0..versions.len()).any(is_repeated) {
        let why = "must contain unique version names";
        causes.push(Cause::invalid_text("spec.versions", &shown(versions), why));
    }
    if versions.iter().filter(|version| is_stored(version)).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        causes.push(Cause::invalid_text("spec.versions", &shown(versions), why));
    }
    causes
}

fn is_stored(version: &Value) -> bool {
    version.get("storage") == Some(&json!(true))
}

/// Versions as the real server keeps them in memory, without the values that it moves above them.
fn shown(versions: &[Value]) -> String {
    let versions: Vec<String> = versions
        .iter()
        .map(|version| {
            let flag = |key: &str| version.get(key).and_then(Value::as_bool).unwrap_or(false);
            format!(
                "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\"DeprecationWarning\":{},\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\"SelectableFields\":null}}",
                json!(object::text(version, "/name")),
                flag("served"),
                flag("storage"),
                flag("deprecated"),
                version.get("deprecationWarning").unwrap_or(&Value::Null),
            )
        })
        .collect();
    format!("[{}]", versions.join(","))
}

fn names(definition: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let text = |key: &str| object::text(definition, &format!("/spec/names/{key}"));
    for key in ["plural", "singular", "kind", "listKind"] {
        if text(key).is_empty() {
            causes.push(Cause::required(format!("spec.names.{key}"), ""));
        }
    }
    for key in ["plural", "singular"] {
        if let Some(why) = dns_1035_label_problem(text(key)).filter(|_| !text(key).is_empty()) {
            causes.push(Cause::invalid(format!("spec.names.{key}"), &json!(text(key)), &why));
        }
    }
    for key in ["kind", "listKind"] {
        if let Some(why) = dns_1035_label_problem(&text(key).to_lowercase()).filter(|_| !text(key).is_empty())
        {
            let why = format!("may have mixed case, but should otherwise match: {why}");
            causes.push(Cause::invalid(format!("spec.names.{key}"), &json!(text(key)), &why));
        }
    }
    let list = |key: &str, causes: &mut Vec<Cause>| {
        let names = object::strings(definition, &format!("/spec/names/{key}"));
        for (index, name) in names.iter().enumerate() {
            if let Some(why) = dns_1035_label_problem(name) {
                causes.push(Cause::invalid(format!("spec.names.{key}[{index}]"), &json!(name), &why));
            }
        }
    };
    list("shortNames", &mut causes);
    if !text("kind").is_empty() && text("kind") == text("listKind") {
        let why = "kind and listKind may not be the same";
        causes.push(Cause::invalid("spec.names.listKind", &json!(text("listKind")), why));
    }
    list("categories", &mut causes);
    causes
}

fn schema(version: &Value, at: &str) -> Vec<Cause> {
    let Some(schema) = version.pointer("/schema/openAPIV3Schema") else { return Vec::new() };
    let at = format!("{at}.openAPIV3Schema");
    let mut causes = Vec::new();
    let kind = object::text(schema, "/type");
    if version.pointer("/subresources/status").is_some() && !["", "object"].contains(&kind) {
        let why = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        causes.push(Cause::invalid(format!("{at}.type"), &json!(kind), why));
    }
    if schema.get("nullable") == Some(&json!(true)) {
        causes.push(Cause::forbidden(format!("{at}.nullable"), "nullable cannot be true at the root"));
    }
    causes.extend(structure::check(schema, &at));
    causes
}

fn columns(version: &Value, at: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, column) in object::list(version, "/additionalPrinterColumns").iter().enumerate() {
        let at = format!("{at}.additionalPrinterColumns[{index}]");
        let text = |key: &str| object::text(column, &format!("/{key}"));
        if text("name").is_empty() {
            causes.push(Cause::required(format!("{at}.name"), ""));
        }
        let types = format!("must be one of {}", COLUMN_TYPES.join(","));
        if text("type").is_empty() {
            causes.push(Cause::required(format!("{at}.type"), &types));
        } else if !COLUMN_TYPES.contains(&text("type")) {
            causes.push(Cause::invalid(format!("{at}.type"), &json!(text("type")), &types));
        }
        if !text("format").is_empty() && !COLUMN_FORMATS.contains(&text("format")) {
            let formats = format!("must be one of {}", COLUMN_FORMATS.join(","));
            causes.push(Cause::invalid(format!("{at}.format"), &json!(text("format")), &formats));
        }
        if text("jsonPath").is_empty() {
            causes.push(Cause::required(format!("{at}.JSONPath"), ""));
        } else if !text("jsonPath").starts_with('.') {
            let why = "must be a simple json path starting with .";
            causes.push(Cause::invalid(format!("{at}.JSONPath"), &json!(text("jsonPath")), why));
        }
    }
    causes
}

/// Objects may be stored in any version that ever was the storage version.
fn stored_versions(definition: &Value) -> Vec<Cause> {
    const FIELD: &str = "status.storedVersions";
    let stored = object::strings(definition, "/status/storedVersions");
    if stored.is_empty() {
        return vec![Cause::invalid(FIELD, &Value::Null, "must have at least one stored version")];
    }
    let mut causes = Vec::new();
    let versions = object::list(definition, "/spec/versions");
    for version in versions.iter().filter(|version| is_stored(version)) {
        let name = object::text(version, "/name");
        if !stored.iter().any(|known| known == name) {
            let why = format!("must have the storage version {name}");
            causes.push(Cause::invalid(FIELD, &json!(stored), &why));
        }
    }
    for (index, name) in stored.iter().enumerate() {
        if !versions.iter().any(|version| object::text(version, "/name") == name) {
            let why = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            causes.push(Cause::invalid(format!("{FIELD}[{index}]"), &json!(name), &why));
        }
    }
    causes
}

/// The approval of a definition in a group of the Kubernetes project.
#[derive(PartialEq)]
enum Approval {
    Missing,
    Given,
    Nonsense,
}

fn approval_of(definition: &Value) -> Approval {
    let annotation = annotation(definition);
    let is_url = annotation.split_once("://").is_some_and(|(scheme, rest)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && !rest.is_empty()
    });
    if annotation.is_empty() {
        Approval::Missing
    } else if annotation.starts_with("unapproved") || is_url {
        Approval::Given
    } else {
        Approval::Nonsense
    }
}

fn annotation(definition: &Value) -> &str {
    let annotations = object::at(definition, "/metadata/annotations");
    annotations.and_then(|all| all.get(APPROVAL)).and_then(Value::as_str).unwrap_or("")
}

fn approval(definition: &Value, old: Option<&Value>) -> Option<Cause> {
    let group = object::text(definition, "/spec/group");
    let is_protected =
        ["k8s.io", "kubernetes.io"].iter().any(|own| group == *own || group.ends_with(&format!(".{own}")));
    let state = approval_of(definition);
    // A problem that existed before may stay.
    if !is_protected || old.is_some_and(|old| approval_of(old) == state) {
        return None;
    }
    let field = format!("metadata.annotations[{APPROVAL}]");
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    match state {
        Approval::Given => None,
        Approval::Missing => Some(Cause::required(
            field,
            &format!("protected groups must have approval annotation {APPROVAL:?}, {see}"),
        )),
        Approval::Nonsense => Some(Cause::invalid(
            field,
            &json!(annotation(definition)),
            &format!(
                "protected groups must have approval annotation {APPROVAL:?} with either a URL or a reason starting with \"unapproved\", {see}"
            ),
        )),
    }
}
