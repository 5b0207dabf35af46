//! What a lost node costs with these settings, by class of workload.

use jiff::{SignedDuration, Timestamp};
use salvor_api::{Controller, config::Configuration};
use salvor_operator::why_off;
use salvor_recovery::expected::{
    DEFAULT_GRACE, DEFAULT_TOLERATION, DeletionRequest, ExpectedBack, LostNode, LostPod, Phase, PhaseName,
    Replaced, Salvor, brief, expected_back,
};
use serde::Serialize;

/// The wait that `salvor opt-in` asks for.
const EVICT_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// The time from a crash until a workload is back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Cost {
    workload: &'static str,
    /// `None` if it depends on something that has no time.
    seconds: Option<i64>,
    phases: Vec<Span>,
    depends_on: Option<String>,
    /// With `salvor opt-in`, where that is less.
    opt_in_seconds: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Span {
    name: &'static str,
    seconds: i64,
}

impl Cost {
    fn of(workload: &'static str, expected: &ExpectedBack, opt_in: Option<&ExpectedBack>) -> Self {
        let crash = Timestamp::UNIX_EPOCH;
        let seconds = |expected: &ExpectedBack| expected.at.map(|at| at.duration_since(crash).as_secs());
        let spans = expected.spans(crash).into_iter();
        let phases = spans.map(|(name, took)| Span { name: name.span(), seconds: took.as_secs() });
        let whole = seconds(expected);
        let opt_in_seconds =
            opt_in.and_then(seconds).filter(|opted| whole.is_none_or(|whole| *opted < whole));
        Self {
            workload,
            seconds: whole,
            phases: phases.collect(),
            depends_on: expected.depends_on.clone(),
            opt_in_seconds,
        }
    }

    pub(super) fn told(&self) -> String {
        let lasting = |seconds: i64| brief(SignedDuration::from_secs(seconds));
        let phases: Vec<String> =
            self.phases.iter().map(|span| format!("{} {}", span.name, lasting(span.seconds))).collect();
        let cost = match (self.seconds, &self.depends_on) {
            (Some(seconds), _) => format!("costs {}: {}.", lasting(seconds), phases.join(", ")),
            (None, on) => {
                format!("costs more than any time: it depends on {}.", on.as_deref().unwrap_or("a person"))
            }
        };
        let opt_in =
            self.opt_in_seconds.map(|seconds| format!(" `salvor opt-in` makes it {}.", lasting(seconds)));
        format!("{}: With these settings a lost node {cost}{}", self.workload, opt_in.unwrap_or_default())
    }
}

/// The cost for each class of workload, if detecting a lost node takes this long.
pub(super) fn of_lost_node(detection: SignedDuration, configuration: &Configuration) -> Vec<Cost> {
    let crash = Timestamp::UNIX_EPOCH;
    let detected = after(crash, detection);
    let requested = after(detected, DEFAULT_TOLERATION);
    let settings = &configuration.failure_recovery_policy.annotated_pods;
    let wait = SignedDuration::from(settings.forceful_termination_grace_period);
    let trusted = after(detected, configuration.failure_recovery_policy.minimum_unreachable_duration.into());
    let due = after(after(requested, DEFAULT_GRACE), wait).max(trusted);
    let off = why_off(configuration);
    let ends = match &off {
        None => Salvor::Ends(due),
        Some(off) => Salvor::DependsOn(format!("a person: zombie recovery is off ({off})")),
    };
    let cost = |workload, replaced, holds_volume| {
        let lost = LostPod {
            pod: String::new(),
            node: LostNode::Silent,
            detected,
            deletion: DeletionRequest::At(requested),
            grace: DEFAULT_GRACE,
            replaced,
            salvor: ends.clone(),
            holds_volume,
        };
        let by_default = expected_back(&lost, crash);
        let given_up = Salvor::GivesUp(after(detected, EVICT_AFTER).max(trusted));
        let opted = expected_back(&LostPod { salvor: given_up, ..lost }, crash);
        Cost::of(workload, &by_default, Some(&opted).filter(|_| off.is_none()))
    };
    let mut costs = vec![
        cost("Deployment", Replaced::WhenDeleted, false),
        cost("Job that waits for the end of its pods, with consent", Replaced::WhenEnded, false),
        cost("StatefulSet with consent", Replaced::WhenEnded, false),
        cost("StatefulSet with consent and a volume for one node", Replaced::WhenEnded, true),
    ];
    if configuration.controllers.enabled(Controller::AppWrapper) && !configuration.dry_run {
        costs.push(Cost::of("AppWrapper", &wrapper(detected, configuration), None));
    }
    costs
}

/// An AppWrapper is reset as a whole.
fn wrapper(detected: Timestamp, configuration: &Configuration) -> ExpectedBack {
    let timers = &configuration.appwrapper.fault_tolerance;
    let mut phases = vec![Phase { name: PhaseName::Detect, until: detected }];
    let mut at = detected;
    for (name, lasts) in [
        (PhaseName::FailureGrace, timers.failure_grace_period),
        (PhaseName::ForcefulDeletion, timers.deletion_grace_period),
        (PhaseName::RetryPause, timers.reset_pause),
    ] {
        at = after(at, lasts.into());
        phases.push(Phase { name, until: at });
    }
    ExpectedBack { at: Some(at), phases, depends_on: None }
}

fn after(start: Timestamp, wait: SignedDuration) -> Timestamp {
    start.checked_add(wait).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(rest: &str) -> Vec<String> {
        let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
        let configuration = salvor_api::config::parse(&format!("{head}{rest}\n")).unwrap();
        of_lost_node(SignedDuration::from_secs(47), &configuration).iter().map(Cost::told).collect()
    }

    #[test]
    fn each_class_has_its_price() {
        let on = "featureGates: {FailureRecoveryPolicy: true}\ncontrollers: [zombie, appwrapper]";
        assert_eq!(
            told(on),
            [
                "Deployment: With these settings a lost node costs 5m47s: detect 47s, toleration 5m. `salvor opt-in` makes it 1m17s.",
                "Job that waits for the end of its pods, with consent: With these settings a lost node costs 7m17s: detect 47s, \
                 toleration 5m, grace 30s, wait 1m. `salvor opt-in` makes it 1m17s.",
                "StatefulSet with consent: With these settings a lost node costs 7m17s: detect 47s, toleration 5m, grace 30s, wait 1m. \
                 `salvor opt-in` makes it 1m17s.",
                "StatefulSet with consent and a volume for one node: With these settings a lost node costs 13m17s: detect 47s, \
                 toleration 5m, grace 30s, wait 1m, volume 6m. `salvor opt-in` makes it 7m17s.",
                "AppWrapper: With these settings a lost node costs 13m17s: detect 47s, failure grace 1m, forceful deletion 10m, \
                 retry pause 1m30s.",
            ]
        );
    }

    #[test]
    fn settings_change_the_price_and_what_is_off_has_none() {
        let shorter = "featureGates: {FailureRecoveryPolicy: true}\n\
                       failureRecoveryPolicy: {annotatedPods: {forcefulTerminationGracePeriod: 10s}}";
        assert!(told(shorter)[1].contains("costs 6m27s"), "{:?}", told(shorter));
        let off = told("controllers: [zombie]");
        assert!(off[0].ends_with("costs 5m47s: detect 47s, toleration 5m."), "{off:?}");
        assert!(off[1].contains("depends on a person: zombie recovery is off"), "{off:?}");
    }
}
