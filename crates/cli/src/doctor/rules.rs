//! Finds rules that can never match, in the configuration and in NodeRepairPolicies.

use std::collections::BTreeSet;

use salvor_api::{
    Controller, Gate, LabelSelector,
    config::{Configuration, EvictionTrigger, FailureRecoveryRule, TaintEffect},
};
use salvor_recovery::repair::{Policy, Status};

use super::finding::{Check, Finding, Severity, count, some_of};
use super::nodes::Node;
use super::selectors::{contradiction, covers};

/// What the rules are compared with. `None` means that it could not be read or was not requested.
#[derive(Debug, Default)]
pub(super) struct Ground<'a> {
    pub(super) nodes: Option<&'a [Node]>,
    /// The number of pods that each rule of `failureRecoveryPolicy.rules` matches.
    pub(super) pods_of_rule: Option<Vec<usize>>,
    /// NodeRepairPolicies, and NodePools with a `spec.repair` block.
    pub(super) policies: Vec<Policy>,
}

/// A taint as Kubernetes writes it. It has no value unless one is given here.
struct KnownTaint {
    key: &'static str,
    value: &'static str,
    effects: &'static [TaintEffect],
}

const fn known(key: &'static str, effects: &'static [TaintEffect]) -> KnownTaint {
    KnownTaint { key, value: "", effects }
}

const BOTH: &[TaintEffect] = &[TaintEffect::NoSchedule, TaintEffect::NoExecute];
const NO_SCHEDULE: &[TaintEffect] = &[TaintEffect::NoSchedule];

/// Taints with a fixed form.
const KNOWN_TAINTS: [KnownTaint; 9] = [
    known("node.kubernetes.io/unreachable", BOTH),
    known("node.kubernetes.io/not-ready", BOTH),
    known("node.kubernetes.io/unschedulable", NO_SCHEDULE),
    known("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    known("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    known("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    known("node.kubernetes.io/network-unavailable", NO_SCHEDULE),
    known("node.cloudprovider.kubernetes.io/shutdown", NO_SCHEDULE),
    KnownTaint { key: "node.cloudprovider.kubernetes.io/uninitialized", value: "true", effects: NO_SCHEDULE },
];

pub(super) fn check(ground: &Ground<'_>, configuration: &Configuration) -> Vec<Finding> {
    let on = |controller| configuration.controllers.enabled(controller);
    let mut findings = Vec::new();
    if on(Controller::Zombie) && configuration.feature_gates.enabled(Gate::FailureRecoveryPolicy) {
        findings.extend(zombie(ground, &configuration.failure_recovery_policy.rules));
    }
    if on(Controller::Eviction) {
        findings.extend(eviction(&configuration.eviction.triggers));
    }
    if on(Controller::Repair) {
        findings.extend(repair(ground));
    }
    findings
}

fn found(severity: Severity, what: String, why: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding::new(severity, Check::Rules, what, why, fix)
}

/// The finding about a selector that contradicts itself.
fn impossible(path: &str, selector: &LabelSelector) -> Option<Finding> {
    let key = contradiction(selector)?;
    Some(found(
        Severity::Error,
        format!("{path} can never match: no value of the label {key} fulfils all that it demands"),
        "nothing is ever done by it",
        format!("Correct what it demands of {key}"),
    ))
}

fn zombie(ground: &Ground<'_>, rules: &[FailureRecoveryRule]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let path = |index: usize| format!("failureRecoveryPolicy.rules[{index}]");
    let (mut of_pods, mut of_nodes): (Vec<(usize, &LabelSelector)>, Vec<_>) = (Vec::new(), Vec::new());
    for (index, rule) in rules.iter().enumerate() {
        let (selector, earlier, field) = match rule {
            FailureRecoveryRule::TerminatePod(rule) => {
                (&rule.pod_label_selector, &mut of_pods, "terminatePod.podLabelSelector")
            }
            FailureRecoveryRule::TaintNodeOutOfService(rule) => {
                (&rule.node_selector, &mut of_nodes, "taintNodeOutOfService.nodeSelector")
            }
        };
        let place = format!("{}.{field}", path(index));
        let first = earlier.iter().find(|(_, before)| covers(before, selector)).map(|(before, _)| *before);
        earlier.push((index, selector));
        if let Some(finding) = impossible(&place, selector) {
            findings.push(finding);
            continue;
        }
        if let Some(before) = first {
            findings.push(found(
                Severity::Warning,
                format!("{place} never counts: {} matches all that it matches", path(before)),
                "the first rule that matches counts, so this one's wait and action are never used",
                "Put it before the other one, or remove it",
            ));
            continue;
        }
        match rule {
            FailureRecoveryRule::TerminatePod(_) => {
                let matched = ground.pods_of_rule.as_ref().and_then(|rules| rules.get(index));
                if matched == Some(&0) {
                    findings.push(found(
                        Severity::Info,
                        format!("{place} matches none of the pods that there are now"),
                        "pods opt in by their labels: nothing is recovered by this rule as it stands",
                        "Nothing, if such pods are still to come; otherwise compare it with the labels of the pods",
                    ));
                }
            }
            FailureRecoveryRule::TaintNodeOutOfService(rule) => {
                let matches = |node: &Node| rule.node_selector.matches(&node.labels);
                if ground.nodes.is_some_and(|nodes| !nodes.iter().any(matches)) {
                    findings.push(found(
                        Severity::Warning,
                        format!("{place} matches no node of this cluster"),
                        "no node is ever declared out of service by this rule",
                        "Compare it with the labels of the nodes: kubectl get nodes --show-labels",
                    ));
                }
            }
        }
    }
    findings
}

fn eviction(triggers: &[EvictionTrigger]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, trigger) in triggers.iter().enumerate() {
        let path = format!("eviction.triggers[{index}]");
        let matches_all_of = |other: &EvictionTrigger| {
            other.key == trigger.key
                && other.value.as_ref().is_none_or(|value| trigger.value.as_ref() == Some(value))
                && other.effect.is_none_or(|effect| trigger.effect == Some(effect))
        };
        let earlier = triggers.iter().take(index).position(matches_all_of);
        if let Some(before) = earlier.filter(|before| triggers[*before].proof != trigger.proof) {
            findings.push(found(
                Severity::Warning,
                format!("{path} and eviction.triggers[{before}] match the same taint, and only one says that it is proof"),
                "whoever reads the one may not know of the other",
                "Keep one of them",
            ));
        }
        let Some(known) = KNOWN_TAINTS.iter().find(|known| known.key == trigger.key) else { continue };
        let value = trigger.value.as_deref().filter(|value| *value != known.value);
        let effect = trigger.effect.filter(|effect| !known.effects.contains(effect));
        let problem = match (value, effect) {
            (Some(value), _) if known.value.is_empty() => format!("has no value, and never {value:?}"),
            (Some(value), _) => format!("has the value {:?}, and never {value:?}", known.value),
            (None, Some(effect)) => format!("never has the effect {}", effect.as_str()),
            (None, None) => continue,
        };
        findings.push(found(
            Severity::Warning,
            format!("{path} can never match: the taint {} as Kubernetes writes it {problem}", trigger.key),
            "no eviction ever begins by this trigger",
            "Leave out value and effect, unless somebody else writes that taint in another form",
        ));
    }
    findings
}

fn repair(ground: &Ground<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut by_age: Vec<&Policy> = ground.policies.iter().collect();
    by_age.sort_by(|a, b| {
        (a.is_pool(), a.created, &a.object.name).cmp(&(b.is_pool(), b.created, &b.object.name))
    });
    if by_age.is_empty() {
        findings.push(found(
            Severity::Info,
            "there is no NodeRepairPolicy, and no NodePool with a block spec.repair, that can be read"
                .to_owned(),
            "the repair recovery touches no node that no policy selects",
            "Write a NodeRepairPolicy, or leave repair out of controllers",
        ));
    }
    for (position, policy) in by_age.iter().enumerate() {
        let name = if policy.is_pool() {
            format!("spec.repair of NodePool {}", policy.object.name)
        } else {
            format!("NodeRepairPolicy {}", policy.object.name)
        };
        if !policy.defects.is_empty() {
            findings.push(found(
                Severity::Error,
                format!("{name} cannot be used: {}", policy.defects.join("; ")),
                "nothing is done to the nodes that it selects",
                "Correct these fields",
            ));
            continue;
        }
        if let Some(finding) = impossible(&format!("spec.nodeSelector of {name}"), &policy.selector) {
            findings.push(finding);
            continue;
        }
        findings.extend(shadowed_entries(policy, &name));
        let Some(nodes) = ground.nodes else { continue };
        let selected: Vec<&Node> = nodes.iter().filter(|node| policy.selects(&node.labels)).collect();
        if selected.is_empty() {
            findings.push(found(
                Severity::Warning,
                format!("{name} selects no node of this cluster"),
                "no node is ever repaired by it",
                "Compare its selector with the labels of the nodes: kubectl get nodes --show-labels",
            ));
            continue;
        }
        let older = &by_age[..position];
        let is_taken = |node: &&Node| older.iter().any(|other| other.selects(&node.labels));
        if selected.iter().all(is_taken) {
            findings.push(found(
                Severity::Warning,
                format!(
                    "{name} never counts: older policies select all of its {}",
                    count(selected.len(), "node")
                ),
                "of two policies that select a node the older one counts",
                "Delete it, or let the selectors exclude each other",
            ));
            continue;
        }
        findings.extend(moot(policy, &name, &selected));
        findings.extend(unknown_conditions(policy, &name, &selected));
    }
    findings
}

/// Entries that an earlier entry always overrides.
fn shadowed_entries(policy: &Policy, name: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, entry) in policy.entries.iter().enumerate() {
        let mut earlier = policy.entries.iter().take(index);
        if earlier.any(|it| it.kind == entry.kind && it.status == entry.status && it.reason.is_none()) {
            findings.push(found(
                Severity::Warning,
                format!(
                    "policies[{index}] of {name} never counts: an earlier entry names {} with every reason",
                    entry.kind
                ),
                "the first entry that fits a condition counts",
                "Put the entry with a reasonPattern first",
            ));
        }
    }
    findings
}

/// A policy that repairs nothing.
fn moot(policy: &Policy, name: &str, selected: &[&Node]) -> Option<Finding> {
    if policy.paused {
        return Some(found(
            Severity::Info,
            format!("{name} is paused"),
            "no repair of its nodes begins",
            "Set spec.paused to false when it is to go on",
        ));
    }
    selected.iter().all(|node| node.vetoed).then(|| {
        found(
            Severity::Warning,
            format!(
                "every node of {name} has an annotation that forbids its repair ({})",
                count(selected.len(), "node")
            ),
            "no node is ever repaired by it",
            "Remove salvor.dev/do-not-repair and karpenter.sh/do-not-repair from those that may be repaired",
        )
    })
}

/// Conditions that no node of a policy has, and healthy states that the policy treats as sick.
fn unknown_conditions(policy: &Policy, name: &str, selected: &[&Node]) -> Vec<Finding> {
    let kinds: BTreeSet<&str> =
        selected.iter().flat_map(|node| node.conditions.iter().map(|(kind, _)| kind.as_str())).collect();
    let mut findings = Vec::new();
    let mut told = BTreeSet::new();
    for entry in &policy.entries {
        if !kinds.contains(entry.kind.as_str()) {
            if told.insert(&entry.kind) {
                let known: Vec<&str> = kinds.iter().copied().collect();
                findings.push(found(
                    Severity::Warning,
                    format!("{name} names the condition {}, which no node that it selects has", entry.kind),
                    "no node is ever sick by it, however broken it is",
                    format!(
                        "Install the agent that reports it, or correct its name. These nodes have: {}",
                        some_of(&known)
                    ),
                ));
            }
            continue;
        }
        if entry.ladder.is_empty() {
            continue;
        }
        let is_so = |node: &&&Node| {
            node.conditions.iter().any(|(kind, status)| {
                *kind == entry.kind
                    && Status::from_api(status).is_some()
                    && Status::from_api(status) == entry.status
            })
        };
        let sick = selected.iter().filter(is_so).count();
        if selected.len() > 1 && sick == selected.len() && entry.reason.is_none() {
            let status = entry.status.map(|status| format!("={status:?}")).unwrap_or_default();
            findings.push(found(
                Severity::Warning,
                format!("by {name} every node that it selects is sick: all have {}{status}", entry.kind),
                "if that is how a healthy node looks, only unhealthyLimit keeps them from being repaired",
                "Check conditionStatus of this entry",
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(rest: &str) -> Vec<(Severity, String)> {
        let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
        let configuration = salvor_api::config::parse(&format!("{head}{rest}\n")).unwrap();
        let findings = check(&Ground::default(), &configuration);
        findings.into_iter().map(|finding| (finding.severity, finding.what)).collect()
    }

    #[test]
    fn a_trigger_fits_the_taint_as_kubernetes_writes_it() {
        for (trigger, fits) in [
            ("{key: node.cloudprovider.kubernetes.io/shutdown}", true),
            ("{key: node.cloudprovider.kubernetes.io/shutdown, effect: NoSchedule}", true),
            ("{key: node.cloudprovider.kubernetes.io/shutdown, effect: NoExecute}", false),
            ("{key: node.cloudprovider.kubernetes.io/shutdown, value: 'true'}", false),
            ("{key: node.cloudprovider.kubernetes.io/uninitialized, value: 'true'}", true),
            ("{key: node.cloudprovider.kubernetes.io/uninitialized, value: 'yes'}", false),
            ("{key: node.kubernetes.io/unreachable, effect: NoExecute}", true),
            ("{key: example.com/off, value: anything, effect: PreferNoSchedule}", true),
        ] {
            let found = whats(&format!("eviction: {{triggers: [{trigger}]}}"));
            assert_eq!(found.is_empty(), fits, "{trigger}: {found:?}");
        }
    }

    #[test]
    fn of_two_triggers_for_one_taint_both_say_the_same_of_proof() {
        let two = |second: &str| whats(&format!("eviction: {{triggers: [{{key: a}}, {second}]}}")).len();
        assert_eq!(two("{key: a, value: x, proof: true}"), 1);
        assert_eq!(two("{key: a, value: x}"), 0);
        assert_eq!(two("{key: b, proof: true}"), 0);
    }

    #[test]
    fn rules_of_a_recovery_that_is_off_are_not_looked_at() {
        let rule = "failureRecoveryPolicy: {rules: [{terminatePod: {podLabelSelector: {matchLabels: {a: '1'}, matchExpressions: [{key: a, operator: DoesNotExist}]}, forcefulTerminationGracePeriod: 1m}}]}";
        assert_eq!(whats(rule), []);
        let on = whats(&format!("featureGates: {{FailureRecoveryPolicy: true}}\n{rule}"));
        assert!(on.len() == 1 && on[0].0 == Severity::Error, "{on:?}");
    }
}
