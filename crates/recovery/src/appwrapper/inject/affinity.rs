//! Autopilot: keeps pods that use a resource away from nodes where it is sick.

use salvor_api::config::{AutopilotSettings, ResourceTaint, TaintEffect};
use serde_json::{Map, Value, json};

use super::fields::{list_in, object_at};
use crate::appwrapper::podsets::FieldError;

const AFFINITY: &str = "spec.affinity.nodeAffinity";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Adds node affinities to a pod's spec, if the pod uses a resource that can be sick.
pub(super) fn keep_away(
    spec: &mut Map<String, Value>,
    autopilot: &AutopilotSettings,
) -> Result<(), FieldError> {
    let mut required = Vec::new();
    let mut preferred = Vec::new();
    let used = autopilot.resource_taints.iter().filter(|(resource, _)| uses(spec, resource));
    for taint in used.flat_map(|(_, taints)| taints) {
        match taint.effect {
            TaintEffect::NoSchedule | TaintEffect::NoExecute => add(&mut required, taint),
            TaintEffect::PreferNoSchedule => add(&mut preferred, taint),
        }
    }
    if required.is_empty() && preferred.is_empty() {
        return Ok(());
    }
    let affinity = object_at(spec, "affinity", "spec")?;
    let affinity = object_at(affinity, "nodeAffinity", "spec.affinity")?;
    if !required.is_empty() {
        let selector = object_at(affinity, REQUIRED, AFFINITY)?;
        let place = format!("{AFFINITY}.{REQUIRED}");
        let terms = list_in(selector, "nodeSelectorTerms", &place)?;
        if terms.is_empty() {
            terms.push(json!({}));
        }
        // The terms are alternatives, so each needs the expressions.
        for (index, term) in terms.iter_mut().enumerate() {
            let place = format!("{place}.nodeSelectorTerms[{index}]");
            let Value::Object(term) = term else {
                return Err(FieldError::invalid(place, &*term, "must be an object"));
            };
            list_in(term, "matchExpressions", &place)?.extend(expressions(&required));
        }
    }
    if !preferred.is_empty() {
        let terms = list_in(affinity, PREFERRED, AFFINITY)?;
        terms.push(json!({
            "weight": autopilot.prefer_no_schedule_weight,
            "preference": {"matchExpressions": expressions(&preferred).collect::<Vec<_>>()},
        }));
    }
    Ok(())
}

/// Label keys, each with the values that a node must not have, in the order of the configuration.
type Avoided<'c> = Vec<(&'c str, Vec<&'c str>)>;

fn add<'c>(avoided: &mut Avoided<'c>, taint: &'c ResourceTaint) {
    let (key, value) = (taint.key.as_str(), taint.value.as_str());
    match avoided.iter_mut().find(|(other, _)| *other == key) {
        Some((_, values)) if values.contains(&value) => {}
        Some((_, values)) => values.push(value),
        None => avoided.push((key, vec![value])),
    }
}

fn expressions(avoided: &Avoided<'_>) -> impl Iterator<Item = Value> {
    avoided.iter().map(|(key, values)| json!({"key": key, "operator": "NotIn", "values": values}))
}

/// True if a container requests some of a resource or has a limit for it.
fn uses(spec: &Map<String, Value>, resource: &str) -> bool {
    let containers =
        ["containers", "initContainers"].into_iter().filter_map(|field| spec.get(field)?.as_array());
    containers.flatten().any(|container| {
        ["requests", "limits"].into_iter().any(|field| is_positive(&container["resources"][field][resource]))
    })
}

/// True if a quantity is positive: `1`, `500m` and `1e3` are; `0`, `0Gi` and `-1` are not.
fn is_positive(quantity: &Value) -> bool {
    match quantity {
        Value::Number(number) => number.as_f64().is_some_and(|number| number > 0.0),
        Value::String(text) => {
            let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '+').unwrap_or(text.len());
            text[..end].bytes().any(|byte| (b'1'..=b'9').contains(&byte))
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_more_than_nothing_or_not() {
        for positive in [
            json!(1),
            json!(0.5),
            json!("1"),
            json!("500m"),
            json!("+2"),
            json!(".5"),
            json!("1e3"),
            json!("10Gi"),
        ] {
            assert!(is_positive(&positive), "{positive}");
        }
        for nothing in [
            json!(0),
            json!(-1),
            json!("0"),
            json!("0.0Gi"),
            json!("-1"),
            json!(""),
            json!("x1"),
            json!(null),
            json!([1]),
            json!("ä"),
        ] {
            assert!(!is_positive(&nothing), "{nothing}");
        }
    }
}
