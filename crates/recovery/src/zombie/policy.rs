//! The configuration of zombie recovery, and the consent of a pod's owner.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use salvor_api::config::{
    Configuration, DisruptedPods, FailureRecoveryRule, LostPods, RemoveTaint, TaintNodeOutOfService,
    TerminateAction, TerminatePod,
};
use salvor_api::names::annotations;
use salvor_api::{Controller, Gate, Labels};

use super::views::{AskedWait, ConsentAnnotations};
use crate::job::JobPolicy;
use crate::moments::after;
use crate::one_actor::NodeActors;

/// The part of the configuration that zombie recovery needs.
#[derive(Clone, Debug)]
pub struct ZombiePolicy {
    /// Why nothing is recovered at all, if so.
    pub disabled: Option<Disabled>,
    /// A node must have been unreachable for this long before a pod on it is recovered.
    pub minimum_unreachable: SignedDuration,
    pub dry_run: bool,
    /// What to do about Jobs that would fail because of their lost pods.
    pub lost_pods: LostPods,
    /// The settings of our own Job controller.
    job: JobPolicy,
    /// The wait for annotated pods that ask for none.
    annotated_wait: SignedDuration,
    /// The shortest wait that such a pod may ask for.
    shortest_wait: SignedDuration,
    /// When annotated pods that ask for nothing are given up, counted from the loss of their node.
    evict_after: Option<SignedDuration>,
    /// The shortest such time that counts.
    shortest_evict_after: SignedDuration,
    /// True if our taint is removed from a node only after its machine rebooted.
    pub(super) wants_reboot: bool,
    /// The other recoveries that act on nodes.
    pub(super) actors: NodeActors,
    pod_rules: Vec<(usize, TerminatePod)>,
    node_rules: Vec<(usize, TaintNodeOutOfService)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disabled {
    Gate,
    /// The list of controllers omits it.
    Controllers,
}

/// Permission to recover a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consent {
    pub source: ConsentSource,
    pub action: TerminateAction,
    /// The wait after the pod's own grace period.
    pub wait: SignedDuration,
    pub wait_by: WaitBy,
    /// When the pod is given up whether or not it is being deleted.
    pub evict: Option<EvictAfter>,
}

/// How long after its node became unreachable a pod is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictAfter {
    pub after: SignedDuration,
    pub by: EvictBy,
}

/// The source of that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictBy {
    Annotation,
    /// The administrator's minimum, because the pod's annotation asks for less.
    Floor {
        /// The requested time.
        asked: SignedDuration,
    },
    /// The administrator's setting for annotated pods.
    Setting,
}

/// The source of a pod's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitBy {
    /// The rule that permits the recovery.
    Rule,
    /// The administrator's setting for annotated pods.
    Setting,
    Annotation,
    /// The administrator's minimum, because the pod's annotation asks for less.
    Floor {
        /// The requested wait.
        asked: SignedDuration,
    },
    /// The administrator's setting, because the pod's annotation cannot be read.
    SettingInstead,
}

/// The source of a permission. `Display` gives the trigger named in conditions and events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsentSource {
    /// An annotation on the pod.
    Annotation(&'static str),
    /// A rule of the configuration, by its position.
    Rule(usize),
}

impl fmt::Display for ConsentSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotation(key) => write!(f, "{key} annotation"),
            Self::Rule(index) => write!(f, "failureRecoveryPolicy.rules[{index}]"),
        }
    }
}

impl ZombiePolicy {
    pub fn new(configuration: &Configuration) -> Self {
        let policy = &configuration.failure_recovery_policy;
        let mut pod_rules = Vec::new();
        let mut node_rules = Vec::new();
        for (index, rule) in policy.rules.iter().enumerate() {
            match rule {
                FailureRecoveryRule::TerminatePod(rule) => pod_rules.push((index, rule.clone())),
                FailureRecoveryRule::TaintNodeOutOfService(rule) => {
                    node_rules.push((index, rule.clone()));
                }
            }
        }
        let disabled = if !configuration.feature_gates.enabled(Gate::FailureRecoveryPolicy) {
            Some(Disabled::Gate)
        } else if !configuration.controllers.enabled(Controller::Zombie) {
            Some(Disabled::Controllers)
        } else {
            None
        };
        Self {
            disabled,
            minimum_unreachable: policy.minimum_unreachable_duration.into(),
            dry_run: configuration.dry_run,
            lost_pods: policy.jobs.lost_pods,
            job: JobPolicy::new(configuration),
            annotated_wait: policy.annotated_pods.forceful_termination_grace_period.into(),
            shortest_wait: policy.annotated_pods.minimum_forceful_termination_grace_period.into(),
            evict_after: policy.annotated_pods.evict_after.map(Into::into),
            shortest_evict_after: policy.minimum_evict_after.into(),
            wants_reboot: configuration.eviction.remove_taint == RemoveTaint::BootChanged,
            actors: NodeActors::new(configuration),
            pod_rules,
            node_rules,
        }
    }

    /// The consent for a pod with these annotations and labels.
    ///
    /// An annotation comes from the pod's own owner and beats every rule, even a stricter one. Of the two annotations,
    /// `-delete` asks for more and wins. Of the rules, the first that matches counts. The wait comes from the rule, or
    /// for annotated pods from their annotation, but is never below the administrator's minimum.
    pub fn consent(&self, marks: &ConsentAnnotations, labels: &Labels) -> Option<Consent> {
        let says_yes = |value: &Option<String>| value.as_deref() == Some(annotations::CONSENT);
        let by_annotation = |key, action| {
            let (wait, wait_by) = self.annotated_wait(&marks.wait);
            let evict = self.evict_after(&marks.evict_after);
            Some(Consent { source: ConsentSource::Annotation(key), action, wait, wait_by, evict })
        };
        if says_yes(&marks.delete) {
            return by_annotation(annotations::SAFE_TO_FORCEFULLY_DELETE, TerminateAction::FailAndDelete);
        }
        if says_yes(&marks.terminate) {
            return by_annotation(annotations::SAFE_TO_FORCEFULLY_TERMINATE, TerminateAction::Fail);
        }
        let (index, rule) =
            self.pod_rules.iter().find(|(_, rule)| rule.pod_label_selector.matches(labels))?;
        Some(Consent {
            source: ConsentSource::Rule(*index),
            action: rule.action,
            wait: rule.forceful_termination_grace_period.into(),
            wait_by: WaitBy::Rule,
            evict: None,
        })
    }

    /// True if a pod with these annotations is given up when its node is lost, although nothing deletes it.
    pub fn gives_up_without_deletion(&self, marks: &ConsentAnnotations) -> bool {
        // Only annotations count for this, and rules select by labels.
        self.consent(marks, &Labels::default()).is_some_and(|consent| consent.evict.is_some())
    }

    /// True if a pod with these annotations is of interest before it is being deleted: it may be given up without that,
    /// or its annotation about it is to be reported.
    pub fn watches_before_deletion(&self, marks: &ConsentAnnotations) -> bool {
        let consents = || self.consent(marks, &Labels::default()).is_some();
        self.gives_up_without_deletion(marks) || (marks.evict_after.is_unreadable() && consents())
    }

    fn evict_after(&self, asked: &AskedWait) -> Option<EvictAfter> {
        match asked {
            AskedWait::Unset | AskedWait::Unreadable { .. } => {
                self.evict_after.map(|after| EvictAfter { after, by: EvictBy::Setting })
            }
            AskedWait::For(asked) if *asked < self.shortest_evict_after => {
                Some(EvictAfter { after: self.shortest_evict_after, by: EvictBy::Floor { asked: *asked } })
            }
            AskedWait::For(asked) => Some(EvictAfter { after: *asked, by: EvictBy::Annotation }),
        }
    }

    fn annotated_wait(&self, asked: &AskedWait) -> (SignedDuration, WaitBy) {
        match asked {
            AskedWait::Unset => (self.annotated_wait, WaitBy::Setting),
            AskedWait::Unreadable { .. } => (self.annotated_wait, WaitBy::SettingInstead),
            AskedWait::For(asked) if *asked < self.shortest_wait => {
                (self.shortest_wait, WaitBy::Floor { asked: *asked })
            }
            AskedWait::For(asked) => (*asked, WaitBy::Annotation),
        }
    }

    /// The first rule for nodes that matches these labels, with its position.
    pub fn node_rule(&self, labels: &Labels) -> Option<(usize, &TaintNodeOutOfService)> {
        self.node_rules
            .iter()
            .find(|(_, rule)| rule.node_selector.matches(labels))
            .map(|(index, rule)| (*index, rule))
    }

    /// True if our own Job controller runs a Job with this `managedBy`, and does not count disrupted pods.
    pub(super) fn job_ignores_disrupted(&self, managed_by: Option<&str>) -> bool {
        self.job.enabled && self.job.manages(managed_by) && self.job.disrupted_pods == DisruptedPods::Ignore
    }

    /// When the taint of a node lost since then begins to count. Without a minimum it counts at once, whatever the
    /// clock of the controller that set it.
    pub(super) fn trusts_taint_from(&self, since: Timestamp) -> Timestamp {
        if self.minimum_unreachable.is_zero() {
            Timestamp::MIN
        } else {
            after(since, self.minimum_unreachable)
        }
    }

    /// True if rules also select pods by their labels, so that annotations alone do not show which pods matter.
    pub fn has_pod_rules(&self) -> bool {
        !self.pod_rules.is_empty()
    }

    /// What the rule about the switch observes.
    pub(super) fn switch(&self) -> &'static str {
        match self.disabled {
            None => "feature gate FailureRecoveryPolicy is on, controller zombie is enabled",
            Some(Disabled::Gate) => "feature gate FailureRecoveryPolicy is off",
            Some(Disabled::Controllers) => "controller zombie is not enabled",
        }
    }
}
