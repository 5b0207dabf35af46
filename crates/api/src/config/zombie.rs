//! The section `failureRecoveryPolicy`: the rules of zombie recovery.

use serde::{Deserialize, Serialize};

use super::examples::EXAMPLE_RULES;
use super::found::Found;
use super::problem::Path;
use super::section::Kind::{Choice, Duration, List, Object, OneOf, Selector};
use super::section::Presence::{self, Optional, Parent, Required};
use super::section::{Field, Section, field};
use crate::{GoDuration, LabelSelector};

pub(super) const SECTION: Section =
    Section { fields: FIELDS, examples: &[("failureRecoveryPolicy.rules", EXAMPLE_RULES)] };

/// The rules of zombie recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct FailureRecoveryPolicy {
    /// How long a node must have been unreachable before anything on it is recovered.
    pub minimum_unreachable_duration: GoDuration,
    /// The shortest `salvor.dev/evict-after` that counts.
    pub minimum_evict_after: GoDuration,
    /// The settings for pods with an opt-in annotation.
    pub annotated_pods: AnnotatedPods,
    /// The settings for pods of Jobs.
    pub jobs: PodsOfJobs,
    /// Rules for pods and nodes without annotations. The first match applies.
    pub rules: Vec<FailureRecoveryRule>,
}

/// The settings for pods with an opt-in annotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AnnotatedPods {
    /// The wait between the end of a pod's own grace period and its recovery, for pods that do not set one.
    pub forceful_termination_grace_period: GoDuration,
    /// The shortest wait that a pod may set.
    pub minimum_forceful_termination_grace_period: GoDuration,
    /// How long after its node became unreachable a pod is given up, for pods that do not say so themselves.
    pub evict_after: Option<GoDuration>,
}

impl Default for AnnotatedPods {
    /// One minute, as in KEP-6757.
    fn default() -> Self {
        Self {
            forceful_termination_grace_period: GoDuration::from_secs(60),
            minimum_forceful_termination_grace_period: GoDuration::ZERO,
            evict_after: None,
        }
    }
}

/// The settings for pods of Jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PodsOfJobs {
    /// What happens to a Job that would fail because of its lost pods.
    pub lost_pods: LostPods,
}

/// What happens to a Job that would fail because its lost pods become `Failed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LostPods {
    /// Salvor first raises the `backoffLimit` by the number of pods that it gives up.
    #[default]
    RaiseLimit,
    /// The pods count, and the Job fails.
    Count,
    /// The pods are not recovered.
    Hold,
}

/// One rule of zombie recovery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailureRecoveryRule {
    /// Recovers stuck pods one by one.
    TerminatePod(TerminatePod),
    /// Declares a whole node out of service.
    TaintNodeOutOfService(TaintNodeOutOfService),
}

/// Recovers stuck pods with certain labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TerminatePod {
    /// The pods that the rule applies to.
    pub pod_label_selector: LabelSelector,
    /// The wait between the end of a pod's own grace period and its recovery.
    pub forceful_termination_grace_period: GoDuration,
    /// What happens to the pods.
    #[serde(default)]
    pub action: TerminateAction,
}

/// The action on a stuck pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TerminateAction {
    /// Salvor marks the pod `Failed`.
    #[default]
    Fail,
    /// Salvor marks the pod `Failed` and then force deletes it.
    FailAndDelete,
}

/// Declares nodes with certain labels out of service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaintNodeOutOfService {
    /// The nodes that the rule applies to.
    pub node_selector: LabelSelector,
    /// How long a node must have been unreachable.
    pub unreachable_node_timeout: GoDuration,
}

const FIELDS: &[Field] = &[
    field(
        "failureRecoveryPolicy",
        Object,
        Parent,
        "The rules of zombie recovery: pods stuck terminating on an unreachable node. Needs the feature gate \
         FailureRecoveryPolicy. Pods that carry an opt-in annotation are recovered whether or not there are rules.",
    ),
    field(
        "failureRecoveryPolicy.minimumUnreachableDuration",
        Duration,
        Presence::Default("0s"),
        "A pod is recovered only after its node had the taint node.kubernetes.io/unreachable for this long. Protects \
         against a taint that comes and goes.",
    ),
    field(
        "failureRecoveryPolicy.minimumEvictAfter",
        Duration,
        Presence::Default("0s"),
        "The shortest time that counts for the annotation salvor.dev/evict-after; if a pod sets less, Salvor waits this long, \
         and salvor explain says so. 0s adds nothing to the time that Kubernetes takes to find that a node is unreachable.",
    ),
    field(
        "failureRecoveryPolicy.annotatedPods",
        Object,
        Parent,
        "The wait for pods with an opt-in annotation.",
    ),
    field(
        "failureRecoveryPolicy.annotatedPods.forcefulTerminationGracePeriod",
        Duration,
        Presence::Default("1m0s"),
        "A stuck pod with an opt-in annotation is recovered this long after the end of its own grace period. The minute is \
         KEP-6757's. The annotation salvor.dev/termination-grace-after on the pod, a duration such as 30s, beats it; a value \
         there that is not a duration, or is negative, is reported in an event on the pod, and this setting counts.",
    ),
    field(
        "failureRecoveryPolicy.annotatedPods.minimumForcefulTerminationGracePeriod",
        Duration,
        Presence::Default("0s"),
        "The shortest wait that the annotation salvor.dev/termination-grace-after may ask for; if a pod asks for \
         less, Salvor waits this long. At most forcefulTerminationGracePeriod.",
    ),
    field(
        "failureRecoveryPolicy.annotatedPods.evictAfter",
        Duration,
        Optional,
        "A pod with an opt-in annotation is given up this long after its node became unreachable, whether or not it is being \
         deleted: marked Failed and, with safe-to-forcefully-delete, deleted. Neither its toleration nor its grace period comes on \
         top. The annotation salvor.dev/evict-after on the pod beats it; a value there that is not a duration, or is negative, is \
         reported in an event on the pod, and this setting counts. If it is not set, only pods with that annotation are given up \
         this way. At least minimumEvictAfter.",
    ),
    field("failureRecoveryPolicy.jobs", Object, Parent, "The treatment of Jobs whose pods are recovered."),
    field(
        "failureRecoveryPolicy.jobs.lostPods",
        Choice(&["RaiseLimit", "Count", "Hold"]),
        Presence::Default("RaiseLimit"),
        "The treatment of a Job that would fail because its lost pods become Failed and exceed its backoffLimit. RaiseLimit \
         first raises spec.backoffLimit by the number of pods that are given up, and records it in the annotation \
         salvor.dev/backoff-limit-raised. Count lets the Job fail, as KEP-6757 does. Hold waits (JobWouldFail). Salvor reads the \
         Job unless this is Count, and patches it only with RaiseLimit. Failures that a podFailurePolicy ignores do not count. An index \
         whose backoffLimitPerIndex would be exceeded waits with RaiseLimit too, because that limit cannot be changed.",
    ),
    field(
        "failureRecoveryPolicy.rules",
        List,
        Presence::Default("[]"),
        "Rules for pods and nodes without annotation. They are checked in order, pods and nodes each by their own \
         kind of rule; the first that matches counts. An annotation on a pod beats every rule: the owner has set it.",
    ),
    field("failureRecoveryPolicy.rules[]", OneOf, Parent, "One rule: exactly one of its kinds is set."),
    field(
        "failureRecoveryPolicy.rules[].terminatePod",
        Object,
        Optional,
        "Recovers stuck pods with certain labels, one by one.",
    ),
    field(
        "failureRecoveryPolicy.rules[].terminatePod.podLabelSelector",
        Selector,
        Required,
        "The pods. The selector must demand that some label is present (matchLabels, In or Exists), because that label is \
         the owner's consent: a selector that unlabelled pods match is refused.",
    ),
    field(
        "failureRecoveryPolicy.rules[].terminatePod.forcefulTerminationGracePeriod",
        Duration,
        Required,
        "A stuck pod is recovered this long after the end of its own grace period. There is no default on purpose: \
         think about how long your nodes may be unreachable and become Ready again.",
    ),
    field(
        "failureRecoveryPolicy.rules[].terminatePod.action",
        Choice(&["Fail", "FailAndDelete"]),
        Presence::Default("Fail"),
        "Fail sets the pod's phase to Failed, which is enough for a Job to replace it. FailAndDelete then force deletes it, \
         which also frees StatefulSet names and foreground deletions.",
    ),
    field(
        "failureRecoveryPolicy.rules[].taintNodeOutOfService",
        Object,
        Optional,
        "Adds the taint node.kubernetes.io/out-of-service=nodeshutdown:NoExecute to unreachable nodes. Kubernetes \
         then deletes every pod of the node that does not tolerate it, and detaches its volumes. Salvor removes the \
         taint when the node is Ready and renews its Lease, if it has one, but only if Salvor added it.",
    ),
    field(
        "failureRecoveryPolicy.rules[].taintNodeOutOfService.nodeSelector",
        Selector,
        Required,
        "The nodes. Must not be empty: this rule acts on all pods of a node, so select the nodes.",
    ),
    field(
        "failureRecoveryPolicy.rules[].taintNodeOutOfService.unreachableNodeTimeout",
        Duration,
        Required,
        "A node must have had the taint node.kubernetes.io/unreachable for this long. Must be more than zero. There is no \
         default on purpose.",
    ),
];

pub(super) fn check(policy: &FailureRecoveryPolicy, found: &mut Found) {
    found.not_negative(
        "failureRecoveryPolicy.minimumUnreachableDuration",
        policy.minimum_unreachable_duration,
    );
    found.not_negative("failureRecoveryPolicy.minimumEvictAfter", policy.minimum_evict_after);
    annotated_pods(found, &policy.annotated_pods);
    evict_after(found, policy);
    for (index, rule) in policy.rules.iter().enumerate() {
        let path = Path::of("failureRecoveryPolicy.rules").index(index);
        match rule {
            FailureRecoveryRule::TerminatePod(rule) => {
                terminate_pod(found, rule, &path.field("terminatePod"));
            }
            FailureRecoveryRule::TaintNodeOutOfService(rule) => {
                taint_node(found, rule, &path.field("taintNodeOutOfService"));
            }
        }
    }
}

fn annotated_pods(found: &mut Found, pods: &AnnotatedPods) {
    let wait = pods.forceful_termination_grace_period;
    let floor = pods.minimum_forceful_termination_grace_period;
    found.not_negative("failureRecoveryPolicy.annotatedPods.forcefulTerminationGracePeriod", wait);
    found.not_negative("failureRecoveryPolicy.annotatedPods.minimumForcefulTerminationGracePeriod", floor);
    if floor > wait {
        let message = format!("{floor} must be at most forcefulTerminationGracePeriod, which is {wait}");
        let path = "failureRecoveryPolicy.annotatedPods.minimumForcefulTerminationGracePeriod";
        found.note(Path::of(path), message);
    }
}

fn evict_after(found: &mut Found, policy: &FailureRecoveryPolicy) {
    const FIELD: &str = "failureRecoveryPolicy.annotatedPods.evictAfter";
    let Some(after) = policy.annotated_pods.evict_after else { return };
    found.not_negative(FIELD, after);
    let floor = policy.minimum_evict_after;
    if after < floor {
        found.note(Path::of(FIELD), format!("{after} must be at least minimumEvictAfter, which is {floor}"));
    }
}

fn terminate_pod(found: &mut Found, rule: &TerminatePod, path: &Path) {
    let selector = path.field("podLabelSelector");
    if !rule.pod_label_selector.demands_a_label() {
        found.note(
            selector.clone(),
        "also matches pods without any label: demand a label with matchLabels, In or Exists, as the consent of the pod's \
         owner",
        );
    }
    found.selector(&rule.pod_label_selector, &selector);
    let period = rule.forceful_termination_grace_period;
    if period.is_negative() {
        found.note(path.field("forcefulTerminationGracePeriod"), format!("{period} must not be negative"));
    }
}

fn taint_node(found: &mut Found, rule: &TaintNodeOutOfService, path: &Path) {
    let selector = path.field("nodeSelector");
    if rule.node_selector.is_empty() {
        let message =
            "is empty and would match every node: name the nodes with matchLabels or matchExpressions";
        found.note(selector.clone(), message);
    }
    found.selector(&rule.node_selector, &selector);
    let timeout = rule.unreachable_node_timeout;
    if timeout <= GoDuration::ZERO {
        found.note(path.field("unreachableNodeTimeout"), format!("{timeout} must be more than 0s"));
    }
}
