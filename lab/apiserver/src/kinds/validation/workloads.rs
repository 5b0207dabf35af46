//! Validation of controllers of pods, and of disruption budgets.

use serde_json::{Value, json};

use super::{immutable, named, negative, pod_spec};
use crate::kinds::go;
use crate::kinds::metadata::{check_maps, label_value_problem};
use crate::object;
use crate::protocol::status::Cause;
use crate::store::selectors::Labels;

pub(crate) fn selector(value: &Value, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (key, label) in value.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
        causes.extend(named(format!("{field}.matchLabels"), key));
        if let Some(why) = label_value_problem(label.as_str().unwrap_or("")) {
            causes.push(Cause::invalid(format!("{field}.matchLabels"), label, why));
        }
    }
    for (index, expression) in object::list(value, "/matchExpressions").iter().enumerate() {
        let at = format!("{field}.matchExpressions[{index}]");
        let is_empty = object::list(expression, "/values").is_empty();
        match object::text(expression, "/operator") {
            "In" | "NotIn" if is_empty => causes.push(Cause::required(
                format!("{at}.values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            )),
            "Exists" | "DoesNotExist" if !is_empty => causes.push(Cause::forbidden(
                format!("{at}.values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => causes.push(Cause::invalid(
                format!("{at}.operator"),
                &json!(other),
                "not a valid selector operator",
            )),
        }
    }
    causes
}

pub(crate) fn mismatch(template: &Value) -> Cause {
    let labels = template.pointer("/metadata/labels").unwrap_or(&Value::Null);
    Cause::invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
}

/// Unlike for a DaemonSet, the selector is required. Its claims become volumes of its pods, so its template may mount
/// volumes that it does not declare.
pub(in crate::kinds) fn stateful_set(value: &Value) -> Vec<Cause> {
    let mut causes = workload(value, true);
    causes.retain(|cause| !cause.field.contains(".volumeMounts["));
    causes
}

pub(in crate::kinds) fn workload(value: &Value, asks_for_selector: bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    let template = value.pointer("/spec/template").unwrap_or(&Value::Null);
    if let Some(replicas) = value.pointer("/spec/replicas")
        && replicas.as_i64().is_some_and(|replicas| replicas < 0)
    {
        causes.push(negative("spec.replicas".to_owned(), replicas));
    }
    match value.pointer("/spec/selector") {
        None => {
            if asks_for_selector {
                causes.push(Cause::required("spec.selector", ""));
            }
            causes.push(mismatch(template));
        }
        Some(wanted) => {
            causes.extend(selector(wanted, "spec.selector"));
            let labels = Labels::of_object(wanted);
            if labels.is_empty() {
                causes.push(Cause::invalid(
                    "spec.selector",
                    wanted,
                    "empty selector is invalid for deployment",
                ));
            } else if !labels.matches(template) {
                causes.push(mismatch(template));
            }
        }
    }
    causes.extend(check_maps(value, "/spec/template/metadata", "spec.template"));
    let claims = object::list(value, "/spec/volumeClaimTemplates");
    let claims: Vec<&str> = claims.iter().map(|claim| object::text(claim, "/metadata/name")).collect();
    let spec = pod_spec(template.get("spec").unwrap_or(&Value::Null), "spec.template.spec");
    // A StatefulSet creates a volume for each claim template, with the same name.
    let is_claim = |cause: &Cause| {
        cause.field.contains(".volumeMounts[")
            && claims.iter().any(|name| cause.message.contains(&format!("\"{name}\"")))
    };
    causes.extend(spec.into_iter().filter(|cause| !is_claim(cause)));
    let policy = object::text(template, "/spec/restartPolicy");
    if ["OnFailure", "Never"].contains(&policy) {
        causes.push(Cause::unsupported("spec.template.spec.restartPolicy", policy, &["Always"]));
    }
    causes
}

pub(in crate::kinds) fn deployment(value: &Value) -> Vec<Cause> {
    let mut causes = workload(value, true);
    let field = "spec.strategy";
    let rolling = value.pointer("/spec/strategy/rollingUpdate").filter(|update| !update.is_null());
    match object::text(value, "/spec/strategy/type") {
        "Recreate" => {
            if rolling.is_some() {
                let why = "may not be specified when strategy `type` is 'Recreate'";
                causes.push(Cause::forbidden(format!("{field}.rollingUpdate"), why));
            }
        }
        "RollingUpdate" => {
            causes.extend(rolling_update(rolling.unwrap_or(&Value::Null), &format!("{field}.rollingUpdate")));
        }
        other => {
            let mut cause = Cause::unsupported(field, "", &["Recreate", "RollingUpdate"]);
            let shown = format!("{{\"Type\":{},\"RollingUpdate\":null}}", json!(other));
            cause.message = cause.message.replacen("\"\"", &shown, 1);
            causes.push(cause);
        }
    }
    let number = |key: &str| value.pointer(&format!("/spec/{key}")).and_then(Value::as_i64);
    for key in ["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"] {
        if let Some(number) = number(key).filter(|number| *number < 0) {
            causes.push(negative(format!("spec.{key}"), &json!(number)));
        }
    }
    if let Some(deadline) = number("progressDeadlineSeconds")
        && deadline <= number("minReadySeconds").unwrap_or(0)
    {
        let why = "must be greater than minReadySeconds";
        causes.push(Cause::invalid("spec.progressDeadlineSeconds", &json!(deadline), why));
    }
    causes
}

fn rolling_update(update: &Value, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let amount = |key: &str| update.get(key).unwrap_or(&Value::Null);
    for key in ["maxUnavailable", "maxSurge"] {
        let at = format!("{field}.{key}");
        match amount(key) {
            Value::String(text) if percent(text).is_none() => {
                causes.push(Cause::invalid(at, &json!(text), PERCENT));
            }
            number if number.as_i64().is_some_and(|number| number < 0) => causes.push(negative(at, number)),
            _ => {}
        }
    }
    let is_zero = |value: &Value| match value {
        Value::String(text) => percent(text) == Some(0),
        number => number.as_i64() == Some(0),
    };
    let at = format!("{field}.maxUnavailable");
    if is_zero(amount("maxUnavailable")) && is_zero(amount("maxSurge")) {
        causes.push(Cause::invalid(
            at.clone(),
            amount("maxUnavailable"),
            "may not be 0 when `maxSurge` is 0",
        ));
    }
    if let Value::String(text) = amount("maxUnavailable")
        && percent(text).is_some_and(|percent| percent > 100)
    {
        causes.push(Cause::invalid(at, &json!(text), "must not be greater than 100%"));
    }
    causes
}

const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";

/// The number in a text such as `25%`.
fn percent(text: &str) -> Option<u32> {
    let digits = text.strip_suffix('%')?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

pub(in crate::kinds) fn stateful_set_update(current: &Value, new: &Value) -> Vec<Cause> {
    let mut causes =
        immutable(current, new, &["spec.serviceName", "spec.selector", "spec.podManagementPolicy"]);
    let claims = |value: &Value| json!(object::list(value, "/spec/volumeClaimTemplates"));
    if claims(current) != claims(new) {
        causes.push(Cause::invalid("spec.volumeClaimTemplates", &claims(new), "field is immutable"));
    }
    causes
}

pub(in crate::kinds) fn budget(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let (min, max) = (value.pointer("/spec/minAvailable"), value.pointer("/spec/maxUnavailable"));
    if min.is_some() && max.is_some() {
        let shown = go::budget_spec(value.get("spec").unwrap_or(&Value::Null));
        let why = "minAvailable and maxUnavailable cannot be both set";
        causes.push(Cause::invalid_text("spec", &shown, why));
    }
    for (key, field) in [("minAvailable", min), ("maxUnavailable", max)] {
        match field {
            Some(number @ Value::Number(_)) if number.as_i64().is_some_and(|number| number < 0) => {
                causes.push(negative(format!("spec.{key}"), number));
            }
            Some(Value::String(text)) => match percent(text) {
                Some(0..=100) => {}
                Some(_) => causes.push(Cause::invalid(
                    format!("spec.{key}"),
                    &json!(text),
                    "must not be greater than 100%",
                )),
                None => causes.push(Cause::invalid(format!("spec.{key}"), &json!(text), PERCENT)),
            },
            _ => {}
        }
    }
    if let Some(wanted) = value.pointer("/spec/selector") {
        causes.extend(selector(wanted, "spec.selector"));
    }
    causes
}
