//! Match conditions: CEL rules that decide which requests a webhook reviews.

use std::sync::Arc;

use kube_cel::{AdmissionRequest, GroupVersionKind, GroupVersionResource, VapEvaluator, VapExpression};

use super::subject::Subject;
use crate::kinds::table::Resource;
use crate::protocol::user;

/// Marks a condition that is false, as opposed to one that cannot be evaluated.
const NO: &str = "no";

/// Whether all conditions hold. A false one decides alone; otherwise one that cannot be evaluated is an error, or skips
/// a webhook that fails open.
pub(super) fn hold(
    conditions: &[String],
    seen_as: &Arc<Resource>,
    subject: &Subject<'_>,
    fails_open: bool,
) -> Result<bool, String> {
    if conditions.is_empty() {
        return Ok(true);
    }
    let expressions: Vec<VapExpression> = conditions
        .iter()
        .map(|expression| VapExpression {
            expression: expression.clone(),
            message: Some(NO.to_owned()),
            message_expression: None,
        })
        .collect();
    let results = evaluator(seen_as, subject).evaluate(&expressions);
    if results.iter().any(|result| !result.passed && result.message.as_deref() == Some(NO)) {
        return Ok(false);
    }
    let problems: Vec<String> = results
        .into_iter()
        .filter(|result| !result.passed)
        .map(|result| {
            let why = result.message.unwrap_or_default();
            let why = why.strip_prefix("evaluation error: ").unwrap_or(&why);
            let why = why.replacen("No such key", "no such key", 1);
            format!("expression '{}' resulted in error: {why}", result.expression)
        })
        .collect();
    match problems.as_slice() {
        [] => Ok(true),
        _ if fails_open => Ok(false),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

fn evaluator(seen_as: &Arc<Resource>, subject: &Subject<'_>) -> VapEvaluator {
    let (object, old) = subject.shown_as(seen_as);
    let (group, version, kind) = subject.kind_as(seen_as);
    let request = AdmissionRequest {
        operation: subject.operation.name().to_owned(),
        username: user::USER.to_owned(),
        uid: String::new(),
        groups: user::GROUPS.map(str::to_owned).to_vec(),
        name: subject.name.clone(),
        namespace: subject.namespace().to_owned(),
        dry_run: subject.dry_run,
        kind: GroupVersionKind { group, version, kind },
        resource: GroupVersionResource {
            group: seen_as.group.clone(),
            version: seen_as.version.clone(),
            resource: seen_as.plural.clone(),
        },
    };
    let mut builder = VapEvaluator::builder().request(request);
    if let Some(object) = object {
        builder = builder.object(object);
    }
    if let Some(old) = old {
        builder = builder.old_object(old);
    }
    builder.build()
}
