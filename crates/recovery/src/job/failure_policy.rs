//! The meaning of a failed pod by the Job's own rules.

use super::views::{ExitCodeOperator, FailureAction, JobView, OnExitCodes, PodFailurePolicy, PodView};
use crate::objects::PodPhase;

/// The rule that a failed pod matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matched {
    pub(super) action: FailureAction,
    /// The message when it ends the Job.
    pub(super) message: String,
}

/// The first rule that matches, if there is a policy and one does.
pub(super) fn matched(policy: Option<&PodFailurePolicy>, pod: &PodView) -> Option<Matched> {
    let rules = policy?.rules.iter().enumerate();
    let mut found = rules.filter_map(|(position, rule)| {
        let action = rule.action;
        let by_code = rule.on_exit_codes.as_ref().and_then(|codes| by_exit_code(codes, pod));
        let by_condition = || {
            let patterns = rule.on_pod_conditions.iter();
            let has = |kind: &str, status: &str| pod.conditions.iter().any(|(k, s)| k == kind && s == status);
            patterns.into_iter().find(|pattern| has(&pattern.kind, &pattern.status))
        };
        let pod = &pod.pod;
        let message = match by_code {
            Some((container, code)) => format!(
                "Container {container} for pod {pod} failed with exit code {code} matching {action} rule at index {position}"
            ),
            None => {
                let kind = &by_condition()?.kind;
                format!("Pod {pod} has condition {kind} matching {action} rule at index {position}")
            }
        };
        Some(Matched { action, message })
    });
    found.next()
}

/// The verdict of the Job's pod failure policy on a failed pod; none if no rule matches.
pub fn failure_action(job: &JobView, pod: &PodView) -> Option<FailureAction> {
    let failed = pod.phase == PodPhase::Failed;
    matched(job.spec.pod_failure_policy.as_ref().filter(|_| failed), pod).map(|rule| rule.action)
}

fn by_exit_code<'p>(codes: &OnExitCodes, pod: &'p PodView) -> Option<(&'p str, i32)> {
    let ended_badly = pod.exit_codes.iter();
    let mut found = ended_badly.filter(|(container, code)| {
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
