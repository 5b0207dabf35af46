//! Values that are well formed but cannot work together.

use super::problem::{ConfigError, Path, Problem};
use super::{
    AnnotatedPods, Configuration, EvictionSettings, FailureRecoveryRule, JobSettings, LeaderElection,
    TaintNodeOutOfService, TerminatePod,
};
use crate::label_selector::{is_dns_subdomain, key_defect, value_defect};
use crate::{GoDuration, LabelSelector, SelectorField, names};

/// client-go spreads its retries by this factor, and a leader must fit at least one retry into its deadline.
const RETRY_JITTER_TENTHS: i128 = 12;

/// The longest name of a Lease or namespace.
const LONGEST_NAME: usize = 253;

impl Configuration {
    /// Checks the values against each other, for a configuration that flags have changed after it was read.
    ///
    /// # Errors
    /// Everything that cannot work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::unless_empty(self.problems())
    }

    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut found = Found(Vec::new());
        found.identity(self);
        for (index, unknown) in self.controllers.unknown() {
            found.note(Path::of("controllers").index(index), unknown.to_string());
        }
        found.leader_election(&self.leader_election);
        if self.concurrency.writes == 0 {
            found.note(Path::of("concurrency.writes"), "0 lets nothing be written: set it to at least 1");
        }
        found.staleness(self);
        let policy = &self.failure_recovery_policy;
        found.not_negative(
            "failureRecoveryPolicy.minimumUnreachableDuration",
            policy.minimum_unreachable_duration,
        );
        found.annotated_pods(&policy.annotated_pods);
        for (index, rule) in policy.rules.iter().enumerate() {
            let path = Path::of("failureRecoveryPolicy.rules").index(index);
            match rule {
                FailureRecoveryRule::TerminatePod(rule) => {
                    found.terminate_pod(rule, &path.field("terminatePod"));
                }
                FailureRecoveryRule::TaintNodeOutOfService(rule) => {
                    found.taint_node(rule, &path.field("taintNodeOutOfService"));
                }
            }
        }
        found.job(&self.job);
        found.eviction(&self.eviction);
        found.0.extend(self.appwrapper.problems());
        let percent = self.brake.max_unreachable_percent;
        if percent > 100 {
            found.note(
                Path::of("brake.maxUnreachablePercent"),
                format!("{percent} is no share: set it from 0 to 100"),
            );
        }
        found.not_negative("brake.settlePeriod", self.brake.settle_period);
        found.not_negative("brake.countNodesReadyWithin", self.brake.count_nodes_ready_within);
        found.0
    }
}

struct Found(Vec<Problem>);

impl Found {
    fn note(&mut self, path: Path, message: impl Into<String>) {
        self.0.push(Problem::new(path, message));
    }

    fn identity(&mut self, configuration: &Configuration) {
        let fields = [
            ("apiVersion", &configuration.api_version, names::configuration::API_VERSION),
            ("kind", &configuration.kind, names::configuration::KIND),
        ];
        for (path, value, expected) in fields {
            if value != expected {
                self.note(Path::of(path), format!("{value:?} cannot be used: set it to {expected}"));
            }
        }
    }

    fn leader_election(&mut self, election: &LeaderElection) {
        let LeaderElection { lease_duration, renew_deadline, retry_period, .. } = *election;
        self.object_name("leaderElection.leaseName", &election.lease_name);
        self.object_name("leaderElection.leaseNamespace", &election.lease_namespace);
        self.positive("leaderElection.leaseDuration", lease_duration);
        self.positive("leaderElection.renewDeadline", renew_deadline);
        self.positive("leaderElection.retryPeriod", retry_period);
        if lease_duration.as_nanos() % 1_000_000_000 != 0 {
            // A Lease holds whole seconds: others would see less than we count on.
            let message = format!("{lease_duration} must be whole seconds, such as 15s");
            self.note(Path::of("leaderElection.leaseDuration"), message);
        }
        if lease_duration <= renew_deadline {
            let message =
                format!("{lease_duration} must be longer than renewDeadline, which is {renew_deadline}");
            self.note(Path::of("leaderElection.leaseDuration"), message);
        }
        if i128::from(renew_deadline.as_nanos()) * 10
            <= i128::from(retry_period.as_nanos()) * RETRY_JITTER_TENTHS
        {
            let message = format!(
                "{renew_deadline} must be longer than 1.2 times retryPeriod, which is {retry_period}"
            );
            self.note(Path::of("leaderElection.renewDeadline"), message);
        }
    }

    /// Names of Leases and namespaces are DNS names; the API server has the last word, this is for typing errors.
    fn object_name(&mut self, path: &str, name: &str) {
        let edge =
            |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        let bytes = name.as_bytes();
        let good = bytes.len() <= LONGEST_NAME
            && edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|byte| edge(Some(byte)) || b"-.".contains(byte));
        if !good {
            let message = format!(
                "{name:?} cannot name an object: use lower-case letters, digits, '-' and '.', at most {LONGEST_NAME}"
            );
            self.note(Path::of(path), message);
        }
    }

    fn staleness(&mut self, configuration: &Configuration) {
        let ready = configuration.staleness.ready_limit;
        let irreversible = configuration.staleness.irreversible_action_limit;
        self.positive("staleness.readyLimit", ready);
        self.positive("staleness.irreversibleActionLimit", irreversible);
        if irreversible > ready {
            let message = format!("{irreversible} must be at most readyLimit, which is {ready}");
            self.note(Path::of("staleness.irreversibleActionLimit"), message);
        }
    }

    fn job(&mut self, job: &JobSettings) {
        for (path, value) in [
            ("job.concurrentJobs", job.concurrent_jobs),
            ("job.maxUncountedPods", job.max_uncounted_pods),
            ("job.maxPodsAtOnce", job.max_pods_at_once),
        ] {
            if value == 0 {
                self.note(Path::of(path), "0 lets no Job go on: set it to at least 1");
            }
        }
        self.not_negative("job.batchPeriod", job.batch_period);
        self.not_negative("job.backoffBase", job.backoff_base);
        if job.backoff_max < job.backoff_base {
            let message =
                format!("{} must be at least backoffBase, which is {}", job.backoff_max, job.backoff_base);
            self.note(Path::of("job.backoffMax"), message);
        }
    }

    fn eviction(&mut self, eviction: &EvictionSettings) {
        self.positive("eviction.detachWarningAfter", eviction.detach_warning_after);
        for (index, trigger) in eviction.triggers.iter().enumerate() {
            let path = Path::of("eviction.triggers").index(index);
            let key = &trigger.key;
            if key == names::taints::FORCE_EVICTION {
                self.note(path.field("key"), format!("{key} always asks for an eviction: leave it out"));
            } else if let Some(defect) = key_defect(key) {
                self.note(path.field("key"), defect);
            }
            if let Some(defect) = trigger.value.as_deref().and_then(value_defect) {
                self.note(path.field("value"), defect);
            }
        }
        for (index, owner) in eviction.at_most_one_owners.iter().enumerate() {
            let (kind, group) =
                owner.split_once('.').map_or((owner.as_str(), None), |(kind, group)| (kind, Some(group)));
            let is_kind = kind.starts_with(|first: char| first.is_ascii_uppercase())
                && kind.chars().all(|character| character.is_ascii_alphanumeric());
            if !is_kind || !group.is_none_or(is_dns_subdomain) {
                let message = format!(
                    "{owner:?} is not a kind: write Kind.group without a version, for example StatefulSet.apps"
                );
                self.note(Path::of("eviction.atMostOneOwners").index(index), message);
            }
        }
    }

    fn annotated_pods(&mut self, pods: &AnnotatedPods) {
        let wait = pods.forceful_termination_grace_period;
        let floor = pods.minimum_forceful_termination_grace_period;
        self.not_negative("failureRecoveryPolicy.annotatedPods.forcefulTerminationGracePeriod", wait);
        self.not_negative("failureRecoveryPolicy.annotatedPods.minimumForcefulTerminationGracePeriod", floor);
        if floor > wait {
            let message = format!("{floor} must be at most forcefulTerminationGracePeriod, which is {wait}");
            let path = "failureRecoveryPolicy.annotatedPods.minimumForcefulTerminationGracePeriod";
            self.note(Path::of(path), message);
        }
    }

    fn terminate_pod(&mut self, rule: &TerminatePod, path: &Path) {
        let selector = path.field("podLabelSelector");
        if !rule.pod_label_selector.demands_a_label() {
            self.note(
                selector.clone(),
                "also matches pods without any label: demand a label with matchLabels, In or Exists, as the consent of the \
                 pod's owner",
            );
        }
        self.selector(&rule.pod_label_selector, &selector);
        let period = rule.forceful_termination_grace_period;
        if period.is_negative() {
            self.note(path.field("forcefulTerminationGracePeriod"), format!("{period} must not be negative"));
        }
    }

    fn taint_node(&mut self, rule: &TaintNodeOutOfService, path: &Path) {
        let selector = path.field("nodeSelector");
        if rule.node_selector.is_empty() {
            let message =
                "is empty and would match every node: name the nodes with matchLabels or matchExpressions";
            self.note(selector.clone(), message);
        }
        self.selector(&rule.node_selector, &selector);
        let timeout = rule.unreachable_node_timeout;
        if timeout <= GoDuration::ZERO {
            self.note(path.field("unreachableNodeTimeout"), format!("{timeout} must be more than 0s"));
        }
    }

    fn selector(&mut self, selector: &LabelSelector, path: &Path) {
        for defect in selector.defects() {
            let expression = |index| path.field("matchExpressions").index(index);
            let at = match defect.field {
                SelectorField::MatchLabel(key) => path.field("matchLabels").key(&key),
                SelectorField::Key(index) => expression(index).field("key"),
                SelectorField::Values(index) => expression(index).field("values"),
                SelectorField::Value(index, position) => expression(index).field("values").index(position),
            };
            self.note(at, defect.message);
        }
    }

    fn positive(&mut self, path: &str, value: GoDuration) {
        if value <= GoDuration::ZERO {
            self.note(Path::of(path), format!("{value} must be more than 0s"));
        }
    }

    fn not_negative(&mut self, path: &str, value: GoDuration) {
        if value.is_negative() {
            self.note(Path::of(path), format!("{value} must not be negative"));
        }
    }
}
