//! Checks values that are well formed but cannot work together.

use super::found::Found;
use super::problem::{ConfigError, Path, Problem};
use super::{Configuration, LeaderElection, at_most_one, webhooks};
use crate::{Controller, names};

/// client-go spreads its retries by this factor. At least one retry of the leader must fit into its deadline.
const RETRY_JITTER_TENTHS: i128 = 12;

impl Configuration {
    /// Checks the values against each other, for a configuration that flags changed after it was parsed.
    ///
    /// # Errors
    /// All contradictions.
    pub fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::unless_empty(self.problems())
    }

    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut found = Found::default();
        identity(&mut found, self);
        for (index, unknown) in self.controllers.unknown() {
            found.note(Path::of("controllers").index(index), unknown.to_string());
        }
        leader_election(&mut found, &self.leader_election);
        webhooks::check(&self.webhooks, &mut found);
        if self.concurrency.writes == 0 {
            found.note(Path::of("concurrency.writes"), "0 lets nothing be written: set it to at least 1");
        }
        staleness(&mut found, self);
        at_most_one::check(&self.at_most_one, self.eviction.at_most_one_owners.as_deref(), &mut found);
        for controller in Controller::ALL {
            self.check_section(*controller, &mut found);
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
        found.problems()
    }
}

fn identity(found: &mut Found, configuration: &Configuration) {
    let fields = [
        ("apiVersion", &configuration.api_version, names::configuration::API_VERSION),
        ("kind", &configuration.kind, names::configuration::KIND),
    ];
    for (path, value, expected) in fields {
        if value != expected {
            found.note(Path::of(path), format!("{value:?} cannot be used: set it to {expected}"));
        }
    }
}

fn leader_election(found: &mut Found, election: &LeaderElection) {
    let LeaderElection { lease_duration, renew_deadline, retry_period, .. } = *election;
    found.object_name("leaderElection.leaseName", &election.lease_name);
    found.object_name("leaderElection.leaseNamespace", &election.lease_namespace);
    found.positive("leaderElection.leaseDuration", lease_duration);
    found.positive("leaderElection.renewDeadline", renew_deadline);
    found.positive("leaderElection.retryPeriod", retry_period);
    if lease_duration.as_nanos() % 1_000_000_000 != 0 {
        // A Lease stores whole seconds, so other replicas would see less than this one relies on.
        let message = format!("{lease_duration} must be whole seconds, such as 15s");
        found.note(Path::of("leaderElection.leaseDuration"), message);
    }
    if lease_duration <= renew_deadline {
        let message =
            format!("{lease_duration} must be longer than renewDeadline, which is {renew_deadline}");
        found.note(Path::of("leaderElection.leaseDuration"), message);
    }
    if i128::from(renew_deadline.as_nanos()) * 10 <= i128::from(retry_period.as_nanos()) * RETRY_JITTER_TENTHS
    {
        let message =
            format!("{renew_deadline} must be longer than 1.2 times retryPeriod, which is {retry_period}");
        found.note(Path::of("leaderElection.renewDeadline"), message);
    }
}

fn staleness(found: &mut Found, configuration: &Configuration) {
    let ready = configuration.staleness.ready_limit;
    let irreversible = configuration.staleness.irreversible_action_limit;
    found.positive("staleness.readyLimit", ready);
    found.positive("staleness.irreversibleActionLimit", irreversible);
    if irreversible > ready {
        let message = format!("{irreversible} must be at most readyLimit, which is {ready}");
        found.note(Path::of("staleness.irreversibleActionLimit"), message);
    }
}
