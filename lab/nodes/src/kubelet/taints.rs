//! Which taints keep a pod off a node.

use k8s_openapi::api::core::v1::{Taint, Toleration};

use crate::status::Refusal;

pub(super) fn taint_refusal(taint: &Taint) -> Refusal {
    Refusal {
        reason: "TaintToleration",
        message: format!(
            "Pod was rejected: Predicate TaintToleration failed: taint {}:NoExecute is not tolerated",
            taint.key
        ),
    }
}

/// The first NoExecute taint that is not tolerated. A kubelet ignores all other effects.
pub(super) fn untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration]) -> Option<&'a Taint> {
    taints
        .iter()
        .filter(|t| t.effect == "NoExecute")
        .find(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))
}

pub(super) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let unset_or = |of: &Option<String>, is: &str| of.as_deref().is_none_or(|o| o.is_empty() || o == is);
    if !unset_or(&toleration.effect, &taint.effect) || !unset_or(&toleration.key, &taint.key) {
        return false;
    }
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        _ => {
            toleration.key.is_some()
                && toleration.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or("")
        }
    }
}
