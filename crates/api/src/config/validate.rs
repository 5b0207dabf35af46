//! Checks values that are well formed but cannot work together.

use super::problem::{ConfigError, Path, Problem};
use super::{Configuration, LeaderElection, WebhookSettings, at_most_one, section_of};
use crate::{Controller, GoDuration, LabelSelector, SelectorField, names};

/// client-go spreads its retries by this factor. At least one retry of the leader must fit into its deadline.
const RETRY_JITTER_TENTHS: i128 = 12;

/// The maximum length of the name of a Lease or namespace.
const LONGEST_NAME: usize = 253;

impl Configuration {
    /// Checks the values against each other, for a configuration that flags changed after it was parsed.
    ///
    /// # Errors
    /// All contradictions.
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
        found.webhooks(&self.webhooks);
        if self.concurrency.writes == 0 {
            found.note(Path::of("concurrency.writes"), "0 lets nothing be written: set it to at least 1");
        }
        found.staleness(self);
        at_most_one::check(self, &mut found);
        for controller in Controller::ALL {
            (section_of(*controller).check)(self, &mut found);
        }
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

pub(super) struct Found(Vec<Problem>);

impl Found {
    pub(super) fn note(&mut self, path: Path, message: impl Into<String>) {
        self.0.push(Problem::new(path, message));
    }

    pub(super) fn add(&mut self, problem: Problem) {
        self.0.push(problem);
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
            // A Lease stores whole seconds, so other replicas would see less than this one relies on.
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

    fn webhooks(&mut self, webhooks: &WebhookSettings) {
        if let Some(url) = webhooks.url.as_deref().filter(|_| webhooks.url_host().is_none()) {
            let message = format!(
                "{url:?} cannot be called: write https://HOST:PORT, with a DNS name or IP address, for example https://10.0.0.1:9443"
            );
            self.note(Path::of("webhooks.url"), message);
        }
    }

    /// Names of Leases and namespaces are DNS names. The API server decides in the end; this check catches typing
    /// errors.
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

    pub(super) fn selector(&mut self, selector: &LabelSelector, path: &Path) {
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

    pub(super) fn positive(&mut self, path: &str, value: GoDuration) {
        if value <= GoDuration::ZERO {
            self.note(Path::of(path), format!("{value} must be more than 0s"));
        }
    }

    pub(super) fn not_negative(&mut self, path: &str, value: GoDuration) {
        if value.is_negative() {
            self.note(Path::of(path), format!("{value} must not be negative"));
        }
    }
}
