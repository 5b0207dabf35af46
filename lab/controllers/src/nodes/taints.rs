//! Taints and tolerations, for the scheduler and taint eviction.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Taint, Toleration};

pub(crate) const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub(crate) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
pub(crate) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
pub(crate) const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

pub(crate) const NO_SCHEDULE: &str = "NoSchedule";
pub(crate) const NO_EXECUTE: &str = "NoExecute";
pub(crate) const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";

/// Longer than any cluster lives, and short enough to be added to a time.
const LIFETIME: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// True if a toleration matches a taint.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (key, effect) = (text(&toleration.key), text(&toleration.effect));
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    if !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        Some("Equal") | None | Some("") => text(&toleration.value) == text(&taint.value),
        Some(_) => false,
    }
}

/// The first taint with one of these effects that is not tolerated.
pub(crate) fn untolerated<'t>(
    taints: &'t [Taint],
    tolerations: &[Toleration],
    effects: &[&str],
) -> Option<&'t Taint> {
    taints.iter().find(|taint| {
        effects.contains(&taint.effect.as_str()) && !tolerations.iter().any(|one| tolerates(one, taint))
    })
}

/// The time that a pod may stay on a tainted node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stay {
    /// The node has no `NoExecute` taint.
    Untouched,
    /// The pod tolerates all of them without limit.
    Forever,
    /// The pod tolerates all of them, for this long.
    For(Duration),
    /// The pod does not tolerate one of them.
    No,
}

/// The effect of a node's `NoExecute` taints on a pod: for each taint the first matching toleration is used, and the
/// shortest of those counts.
pub(crate) fn stay(taints: &[Taint], tolerations: &[Toleration]) -> Stay {
    let mut limit: Option<Duration> = None;
    let mut any = false;
    for taint in taints.iter().filter(|taint| taint.effect == NO_EXECUTE) {
        any = true;
        let Some(used) = tolerations.iter().find(|one| tolerates(one, taint)) else { return Stay::No };
        if let Some(seconds) = used.toleration_seconds {
            let stays = Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).min(LIFETIME);
            limit = Some(limit.map_or(stays, |limit| limit.min(stays)));
        }
    }
    match (any, limit) {
        (false, _) => Stay::Untouched,
        (true, None) => Stay::Forever,
        (true, Some(Duration::ZERO)) => Stay::No,
        (true, Some(limit)) => Stay::For(limit),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn taints(taints: Value) -> Vec<Taint> {
        serde_json::from_value(taints).unwrap()
    }

    fn tolerations(tolerations: Value) -> Vec<Toleration> {
        serde_json::from_value(tolerations).unwrap()
    }

    #[test]
    fn a_toleration_fits_by_key_value_and_effect() {
        let taint = taints(json!([{"key": "k", "value": "v", "effect": "NoExecute"}])).remove(0);
        for (toleration, fits) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}), false),
            (json!({"key": "k", "operator": "Equal", "value": "v"}), true),
            (json!({"key": "k", "value": "v", "effect": "NoExecute"}), true),
            (json!({"key": "k", "value": "other"}), false),
            (json!({"key": "other", "operator": "Exists"}), false),
            (json!({"key": "k", "operator": "Gt", "value": "1"}), false),
        ] {
            let one = tolerations(json!([toleration])).remove(0);
            assert_eq!(tolerates(&one, &taint), fits, "{toleration}");
        }
    }

    #[test]
    fn a_pod_stays_as_long_as_its_least_patient_toleration() {
        let lost = json!({"key": UNREACHABLE, "effect": "NoExecute"});
        let fenced = json!({"key": "fenced", "effect": "NoExecute"});
        let quiet = json!({"key": "quiet", "effect": "NoSchedule"});
        let for_lost = |seconds: i64| json!({"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        for (on_node, on_pod, expected) in [
            (json!([]), json!([]), Stay::Untouched),
            (json!([quiet]), json!([]), Stay::Untouched),
            (json!([lost]), json!([]), Stay::No),
            (json!([lost]), json!([for_lost(0)]), Stay::No),
            (json!([lost]), json!([for_lost(-5)]), Stay::No),
            (json!([lost]), json!([for_lost(300)]), Stay::For(Duration::from_secs(300))),
            (json!([lost]), json!([{"operator": "Exists"}]), Stay::Forever),
            (json!([lost, fenced]), json!([for_lost(300)]), Stay::No),
            (
                json!([lost, fenced]),
                json!([for_lost(300), {"key": "fenced", "operator": "Exists", "tolerationSeconds": 60, "effect": "NoExecute"}]),
                Stay::For(Duration::from_secs(60)),
            ),
        ] {
            assert_eq!(stay(&taints(on_node), &tolerations(on_pod)), expected);
        }
    }
}
