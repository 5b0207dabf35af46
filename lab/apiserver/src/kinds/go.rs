//! Formats values like error messages of the real server that print Go structures instead of the API's.

use serde_json::Value;

use crate::object;

/// A field of a Go structure: unset pointers and slices are `null`.
fn field(value: &Value, key: &str) -> String {
    value.get(key).unwrap_or(&Value::Null).to_string()
}

fn each(value: &Value, key: &str, show: impl Fn(&Value) -> String) -> String {
    match value.get(key) {
        Some(Value::Array(elements)) => {
            let shown: Vec<String> = elements.iter().map(show).collect();
            format!("[{}]", shown.join(","))
        }
        _ => "null".to_owned(),
    }
}

pub(crate) fn success_policy(policy: &Value) -> String {
    let rules = each(policy, "rules", |rule| {
        format!(
            r#"{{"SucceededIndexes":{},"SucceededCount":{}}}"#,
            field(rule, "succeededIndexes"),
            field(rule, "succeededCount")
        )
    });
    format!(r#"{{"Rules":{rules}}}"#)
}

pub(crate) fn failure_policy(policy: &Value) -> String {
    let rules = each(policy, "rules", |rule| {
        let codes = rule.get("onExitCodes").map_or_else(
            || "null".to_owned(),
            |codes| {
                format!(
                    r#"{{"ContainerName":{},"Operator":{},"Values":{}}}"#,
                    field(codes, "containerName"),
                    field(codes, "operator"),
                    field(codes, "values")
                )
            },
        );
        let conditions = each(rule, "onPodConditions", |condition| {
            format!(r#"{{"Type":{},"Status":{}}}"#, field(condition, "type"), field(condition, "status"))
        });
        format!(
            r#"{{"Action":{},"OnExitCodes":{codes},"OnPodConditions":{conditions}}}"#,
            serde_json::json!(object::text(rule, "/action"))
        )
    });
    format!(r#"{{"Rules":{rules}}}"#)
}

pub(crate) fn uncounted_pods(uncounted: &Value) -> String {
    format!(r#"{{"Succeeded":{},"Failed":{}}}"#, field(uncounted, "succeeded"), field(uncounted, "failed"))
}

pub(crate) fn budget_spec(spec: &Value) -> String {
    format!(
        r#"{{"MinAvailable":{},"Selector":{},"MaxUnavailable":{},"UnhealthyPodEvictionPolicy":{}}}"#,
        field(spec, "minAvailable"),
        field(spec, "selector"),
        field(spec, "maxUnavailable"),
        field(spec, "unhealthyPodEvictionPolicy")
    )
}

pub(crate) fn role(reference: &Value) -> String {
    format!(
        r#"{{"APIGroup":{},"Kind":{},"Name":{}}}"#,
        field(reference, "apiGroup"),
        field(reference, "kind"),
        field(reference, "name")
    )
}

/// A label selector as Go's protobuf library prints it.
pub(crate) fn label_selector(selector: &Value) -> String {
    let labels = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let labels: String =
        labels.map(|(key, value)| format!("{key}: {},", value.as_str().unwrap_or(""))).collect();
    let expressions: String = object::list(selector, "/matchExpressions")
        .iter()
        .map(|expression| {
            format!(
                "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{}],}},",
                object::text(expression, "/key"),
                object::text(expression, "/operator"),
                object::strings(expression, "/values").join(" ")
            )
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

pub(crate) fn addresses(addresses: &[&str]) -> String {
    let shown: Vec<String> =
        addresses.iter().map(|address| format!(r#"{{"IP":{}}}"#, serde_json::json!(address))).collect();
    format!("[{}]", shown.join(","))
}

/// An owner reference, in the order of its fields.
pub(crate) fn owner_reference(reference: &Value) -> String {
    let keys = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    // Texts are always printed, other fields only if set.
    let shown: Vec<String> = keys
        .iter()
        .filter_map(|key| match reference.get(*key) {
            None | Some(Value::Null) => (keys[..4].contains(key)).then(|| format!(r#""{key}":"""#)),
            Some(field) => Some(format!(r#""{key}":{field}"#)),
        })
        .collect();
    format!("{{{}}}", shown.join(","))
}
