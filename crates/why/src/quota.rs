//! Finds the ResourceQuota that has no room for a pod, by the quota's own numbers.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    admission::between,
    answer::Remedy,
    code::Code,
    diagnosis::{Finding, Rules},
    json::{list, name, named, namespace, text},
    kinds::QUOTA,
};

/// Smaller amounts are rounding errors.
const NOTHING: f64 = 1e-9;

impl Rules<'_> {
    /// The quota that has no room for a pod of this template. `refusal` is the API server's message, which includes
    /// defaults that the template lacks.
    pub(crate) fn quota(
        &self,
        owner: &Value,
        template: &Value,
        refusal: &str,
        lacking: usize,
    ) -> Option<Finding> {
        let quotas = self.world.list(&QUOTA, namespace(owner), "", "")?;
        let mut asked = requests(template);
        for (resource, amount) in requested_in(refusal) {
            let known = asked.entry(resource).or_default();
            *known = known.max(amount);
        }
        let refused_by =
            between(refusal, "exceeded quota: ", ",").or_else(|| between(refusal, "failed quota: ", ":"));
        let mut full: Vec<(&Value, Finding)> = Vec::new();
        for quota in quotas {
            // The quota that refused saw the pod with all defaults applied. The template does not have them.
            if namespace(quota) == namespace(owner)
                && (Some(name(quota)) == refused_by || concerns(quota, template))
                && let Some(finding) = no_room(quota, &asked, lacking)
            {
                full.push((quota, finding));
            }
        }
        let named_one = full.iter().position(|(quota, _)| Some(name(quota)) == refused_by).unwrap_or(0);
        if named_one < full.len() {
            return Some(full.swap_remove(named_one).1);
        }
        // Such a quota refuses pods that do not state their requests or limits, whatever its numbers are.
        let must = refusal.contains("must specify").then_some(refused_by).flatten()?;
        let quota = self.world.get(&QUOTA, namespace(owner), must).here()?;
        Some(
            Finding::new(Code::QuotaExceeded, named("ResourceQuota", quota), refusal)
                .advice("Let the containers of the pod template say what they need, as the message names it"),
        )
    }
}

fn no_room(quota: &Value, asked: &BTreeMap<String, f64>, lacking: usize) -> Option<Finding> {
    let hard = quota.pointer("/status/hard").or_else(|| quota.pointer("/spec/hard"))?.as_object()?;
    for (resource, hard) in hard {
        let hard_text = hard.as_str().unwrap_or_default();
        let used_text = quota
            .pointer("/status/used")
            .and_then(|used| used.get(resource))
            .and_then(Value::as_str)
            .unwrap_or("0");
        let (Some(hard), Some(used)) = (quantity(hard_text), quantity(used_text)) else { continue };
        let needs = asked.get(plain(resource)).copied().unwrap_or(0.0);
        if needs < NOTHING || used + needs <= hard + NOTHING {
            continue;
        }
        let message = format!(
            "quota {} allows {resource}: {hard_text}, of which {used_text} is used; one more pod needs {}",
            name(quota),
            shown(plain(resource), needs)
        );
        let enough = shown(plain(resource), used + needs * lacking as f64);
        let patch = serde_json::json!({"spec": {"hard": {resource.as_str(): enough}}});
        let finding = Finding::new(Code::QuotaExceeded, named("ResourceQuota", quota), message).remedy(
            Remedy::command(
                format!("Raise the quota to {enough}, if you may; or delete what uses it and is not needed"),
                format!(
                    "kubectl patch resourcequota {} -n {} --type=merge -p '{patch}'",
                    name(quota),
                    namespace(quota)
                ),
            ),
        );
        return Some(finding);
    }
    None
}

/// The plain name of a quota's resource, as it appears in a pod's requests.
fn plain(resource: &str) -> &str {
    match resource {
        "count/pods" => "pods",
        "cpu" => "requests.cpu",
        "memory" => "requests.memory",
        "ephemeral-storage" => "requests.ephemeral-storage",
        other => other,
    }
}

/// What a pod of this template requests, by the resource names of quotas.
fn requests(template: &Value) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::from([("pods".to_owned(), 1.0)]);
    for (kind, path) in [("requests", "/resources/requests"), ("limits", "/resources/limits")] {
        let of = |container: &Value| -> BTreeMap<String, f64> {
            let at = |path| container.pointer(path).and_then(Value::as_object).into_iter().flatten();
            // A container with only a limit requests as much as the limit.
            let limits = at("/resources/limits").filter(|_| kind == "requests");
            let all = limits.chain(at(path));
            all.filter_map(|(resource, amount)| Some((format!("{kind}.{resource}"), amount_of(amount)?)))
                .collect()
        };
        for container in list(template, "/spec/containers") {
            for (resource, amount) in of(container) {
                *all.entry(resource).or_default() += amount;
            }
        }
        for container in list(template, "/spec/initContainers") {
            for (resource, amount) in of(container) {
                let known = all.entry(resource).or_default();
                *known = known.max(amount);
            }
        }
    }
    all
}

/// The amounts of the refused pod in the API server's message: `requested: pods=1,requests.cpu=2, used: ..`.
fn requested_in(refusal: &str) -> Vec<(String, f64)> {
    let Some(requested) = between(refusal, "requested: ", ", used:") else { return Vec::new() };
    let pairs = requested.split(',').filter_map(|pair| pair.trim().split_once('='));
    pairs.filter_map(|(resource, amount)| Some((plain(resource).to_owned(), quantity(amount)?))).collect()
}

/// Whether a quota's scopes select a pod of this template.
fn concerns(quota: &Value, template: &Value) -> bool {
    let priority = text(template, "/spec/priorityClassName");
    let terminating = template.pointer("/spec/activeDeadlineSeconds").is_some();
    // Only these two resources decide the QoS class of a pod.
    let counts = |resource: &str| resource.ends_with(".cpu") || resource.ends_with(".memory");
    let best_effort = !requests(template).iter().any(|(name, amount)| counts(name) && *amount > NOTHING);
    let holds = |scope: &str| match scope {
        "CrossNamespacePodAffinity" => crosses_namespaces(template),
        // It counts claims, not pods.
        "VolumeAttributesClass" => false,
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => best_effort,
        "NotBestEffort" => !best_effort,
        _ => true,
    };
    let scopes = list(quota, "/spec/scopes").iter().filter_map(Value::as_str).all(holds);
    let expressions = list(quota, "/spec/scopeSelector/matchExpressions").iter().all(|expression| {
        let values = list(expression, "/values");
        let among = values.iter().any(|value| value.as_str() == Some(priority));
        match (text(expression, "/scopeName"), text(expression, "/operator")) {
            ("PriorityClass", "In") => among,
            ("PriorityClass", "NotIn") => !among,
            ("PriorityClass", "Exists") => !priority.is_empty(),
            ("PriorityClass", "DoesNotExist") => priority.is_empty(),
            (scope, _) => holds(scope),
        }
    });
    scopes && expressions
}

/// Whether a pod's affinity terms refer to other namespaces.
fn crosses_namespaces(template: &Value) -> bool {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    ["podAffinity", "podAntiAffinity"].iter().any(|affinity| {
        let of = |when: &str| list(template, &format!("/spec/affinity/{affinity}/{when}")).iter();
        let mut terms = of(required).chain(of(preferred).filter_map(|one| one.get("podAffinityTerm")));
        terms.any(|term| {
            !list(term, "/namespaces").is_empty()
                || term.get("namespaceSelector").is_some_and(Value::is_object)
        })
    })
}

fn amount_of(amount: &Value) -> Option<f64> {
    amount.as_f64().or_else(|| quantity(amount.as_str()?))
}

fn quantity(text: &str) -> Option<f64> {
    let end =
        text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '-' && c != '+').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        "Ti" => 1_099_511_627_776.0,
        "Pi" => 1_125_899_906_842_624.0,
        "Ei" => 1_152_921_504_606_846_976.0,
        exponent => 10_f64.powi(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some(number.parse::<f64>().ok()? * factor)
}

fn shown(resource: &str, amount: f64) -> String {
    if resource.ends_with("memory") || resource.ends_with("storage") {
        return format!("{}Mi", (amount / 1_048_576.0).ceil());
    }
    if (amount - amount.round()).abs() < 1e-6 {
        format!("{}", amount.round())
    } else {
        format!("{}m", (amount * 1000.0).ceil())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_numbers() {
        for (text, expected) in [
            ("2", 2.0),
            ("500m", 0.5),
            ("1Gi", 1_073_741_824.0),
            ("2k", 2000.0),
            ("1e3", 1000.0),
            ("1.5", 1.5),
        ] {
            let read = quantity(text).unwrap();
            assert!((read - expected).abs() < 1e-6, "{text}: {read}");
        }
        for bad in ["", "x", "1Xi", "--"] {
            assert_eq!(quantity(bad), None, "{bad}");
        }
        assert_eq!(shown("requests.cpu", 1.5), "1500m");
        assert_eq!(shown("pods", 3.0), "3");
        assert_eq!(shown("requests.memory", 1_073_741_824.0), "1024Mi");
    }

    #[test]
    fn a_refusal_tells_what_was_asked_for() {
        let refusal = "pods \"a\" is forbidden: exceeded quota: q, requested: cpu=2,pods=1, used: cpu=1,pods=1, limited: cpu=2,pods=5";
        assert_eq!(requested_in(refusal), [("requests.cpu".to_owned(), 2.0), ("pods".to_owned(), 1.0)]);
        assert!(requested_in("nonsense").is_empty());
    }
}
