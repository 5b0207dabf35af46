//! Applies the Job's pod failure policy to a failed pod.

use super::views::{ExitCodeOperator, FailureAction, JobView, OnExitCodes, PodFailurePolicy, PodView};
use crate::objects::PodPhase;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matched {
    pub(super) action: FailureAction,
    /// The message of the condition if the rule ends the Job.
    pub(super) message: String,
}

/// The first rule that matches, if there is a policy.
pub(super) fn matched(policy: Option<&PodFailurePolicy>, pod: &PodView) -> Option<Matched> {
    let has = |kind: &str, status: &str| pod.conditions.iter().any(|(k, s)| k == kind && s == status);
    let (position, action, by) = first_match(policy?, &pod.exit_codes, has)?;
    let pod = &pod.pod;
    let message = match by {
        By::Code(container, code) => format!(
            "Container {container} for pod {pod} failed with exit code {code} matching {action} rule at index {position}"
        ),
        By::Condition(kind) => {
            format!("Pod {pod} has condition {kind} matching {action} rule at index {position}")
        }
    };
    Some(Matched { action, message })
}

/// The action of the first rule that matches a failed pod with these exit codes and conditions.
pub fn failure_rule(
    policy: &PodFailurePolicy,
    exit_codes: &[(String, i32)],
    has: impl Fn(&str, &str) -> bool,
) -> Option<FailureAction> {
    first_match(policy, exit_codes, has).map(|(_, action, _)| action)
}

enum By<'a> {
    /// A container and its exit code.
    Code(&'a str, i32),
    /// The type of a condition.
    Condition(&'a str),
}

fn first_match<'a>(
    policy: &'a PodFailurePolicy,
    exit_codes: &'a [(String, i32)],
    has: impl Fn(&str, &str) -> bool,
) -> Option<(usize, FailureAction, By<'a>)> {
    policy.rules.iter().enumerate().find_map(|(position, rule)| {
        let by_code = rule.on_exit_codes.as_ref().and_then(|codes| by_exit_code(codes, exit_codes));
        let by_condition = || {
            let pattern = rule.on_pod_conditions.iter().find(|it| has(&it.kind, &it.status));
            pattern.map(|pattern| By::Condition(&pattern.kind))
        };
        let by = by_code.map(|(container, code)| By::Code(container, code)).or_else(by_condition)?;
        Some((position, rule.action, by))
    })
}

/// The action of the Job's pod failure policy for a failed pod; none if no rule matches.
pub fn failure_action(job: &JobView, pod: &PodView) -> Option<FailureAction> {
    let failed = pod.phase == PodPhase::Failed;
    matched(job.spec.pod_failure_policy.as_ref().filter(|_| failed), pod).map(|rule| rule.action)
}

fn by_exit_code<'p>(codes: &OnExitCodes, ended_badly: &'p [(String, i32)]) -> Option<(&'p str, i32)> {
    let mut found = ended_badly.iter().filter(|(container, code)| {
        let asked = codes.container_name.as_ref().is_none_or(|name| name == container);
        let listed = codes.values.contains(code);
        asked
            && match codes.operator {
                ExitCodeOperator::In => listed,
                ExitCodeOperator::NotIn => !listed,
            }
    });
    found.next().map(|(container, code)| (container.as_str(), *code))
}
