//! The answer of `salvor status`.

use jiff::Timestamp;
use salvor_api::Controller;
use salvor_api::config::Configuration;
use salvor_api::names::taints;
use salvor_operator::{InCluster, RecoveryEntry, recoveries};
use salvor_recovery::brake::Held;
use salvor_recovery::pause::{Pause, Said};
use salvor_why::{NotSeen, Overview, Stage};
use serde::Serialize;

use super::actions::{Action, Recovered};

/// The answer, in the form that `-o json` prints. A value that cannot be read is null, and `notSeen` says why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    pub(super) leader: Option<String>,
    pub(super) leader_since: Option<Timestamp>,
    /// The version of the current or last leader.
    pub(super) version: Option<String>,
    pub(super) dry_run: Option<bool>,
    /// Null if the leader does not publish its configuration.
    pub(super) recoveries: Option<Vec<RecoverySwitch>>,
    pub(super) brake: BrakeStatus,
    pub(super) paused: Option<PauseStatus>,
    /// Pods that a recovery waits for.
    pub(super) waiting: Option<usize>,
    pub(super) waiting_workloads: Option<usize>,
    /// Pods that no recovery ends before something changes.
    pub(super) blocked: Option<usize>,
    pub(super) blocked_workloads: Option<usize>,
    pub(super) recovered_last_hour: Option<Recovered>,
    /// Newest first.
    pub(super) last_actions: Option<Vec<Action>>,
    /// Who or what would prove that a machine is off.
    pub(super) proven_by: Vec<String>,
    /// How Salvor runs, in one line.
    pub(super) told: String,
    pub(super) not_seen: Vec<NotSeen>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct RecoverySwitch {
    pub(super) name: &'static str,
    pub(super) on: bool,
    /// Why it is off.
    pub(super) why: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BrakeStatus {
    pub(super) holds: bool,
    /// A stable name of the limit.
    pub(super) limit: Option<&'static str>,
    pub(super) why: Option<String>,
    pub(super) until: Option<Timestamp>,
    pub(super) zones: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PauseStatus {
    pub(super) by: Option<String>,
    pub(super) since: Option<Timestamp>,
    /// When it ends by itself.
    pub(super) until: Option<Timestamp>,
    pub(super) reason: Option<String>,
    /// The leader that has stopped; null while none has confirmed.
    pub(super) confirmed_by: Option<String>,
    pub(super) told: String,
}

impl Status {
    /// What the Lease tells.
    pub(super) fn of(running: InCluster) -> Self {
        let InCluster { published, leader, was_led: _, leads_since, pause, stopped, held, zones_held, told } =
            running;
        let (version, configuration) = match published {
            Some(published) => (Some(published.version), published.configuration),
            None => (None, None),
        };
        let confirmed_by = stopped.map(|stopped| stopped.by);
        Self {
            leader,
            leader_since: leads_since,
            version,
            dry_run: configuration.as_ref().map(|configuration| configuration.dry_run),
            recoveries: configuration.as_ref().map(switches),
            brake: BrakeStatus {
                holds: held.is_some() || !zones_held.is_empty(),
                limit: held.as_ref().map(Held::code),
                why: held.as_ref().map(ToString::to_string),
                until: held.as_ref().and_then(Held::until),
                zones: zones_held.into_iter().collect(),
            },
            paused: pause.map(|pause| PauseStatus::of(&pause, confirmed_by)),
            proven_by: configuration.as_ref().map(proven_by).unwrap_or_default(),
            told,
            ..Self::default()
        }
    }

    pub(super) fn count(&mut self, overview: &Overview) {
        let sum = |stage: Stage| {
            let groups =
                overview.groups.iter().filter(move |it| it.root_cause.code.recovery() == Some(stage));
            groups.fold((0, 0), |(pods, workloads), group| {
                (pods + group.pods, workloads + group.workloads.len())
            })
        };
        let (waiting, blocked) = (sum(Stage::Waiting), sum(Stage::Blocked));
        (self.waiting, self.waiting_workloads) = (Some(waiting.0), Some(waiting.1));
        (self.blocked, self.blocked_workloads) = (Some(blocked.0), Some(blocked.1));
        self.not_seen.extend(overview.not_seen.iter().cloned());
    }
}

impl PauseStatus {
    fn of(pause: &Pause, confirmed_by: Option<String>) -> Self {
        let told = pause.to_string();
        let none = Self { by: None, since: None, until: None, reason: None, confirmed_by, told };
        match pause {
            Pause::Said(Said { since, by, reason, until }) => {
                let reason = Some(reason.clone()).filter(|reason| !reason.is_empty());
                Self { by: Some(by.clone()), since: Some(*since), until: *until, reason, ..none }
            }
            Pause::Unreadable(_) | Pause::Unread => none,
        }
    }
}

fn switches(configuration: &Configuration) -> Vec<RecoverySwitch> {
    let switch = |entry: &RecoveryEntry| {
        let off = entry.off(configuration);
        let name = entry.controller.name();
        RecoverySwitch { name, on: off.is_none(), why: off.map(|off| off.to_string()) }
    };
    recoveries().map(switch).collect()
}

/// Who or what would prove that a machine is off, by the configuration. A missing heartbeat is no proof.
fn proven_by(configuration: &Configuration) -> Vec<String> {
    let on = |controller| configuration.controllers.enabled(controller);
    let mut proofs = Vec::new();
    if on(Controller::Eviction) {
        proofs.push(format!("a person: salvor evict NODE (taint {})", taints::FORCE_EVICTION));
    }
    let out_of_service = taints::OUT_OF_SERVICE;
    proofs.push(format!("a person or another controller: taint {out_of_service}"));
    let triggers = configuration.eviction.triggers.iter().enumerate().filter(|(_, trigger)| trigger.proof);
    for (at, trigger) in triggers.filter(|_| on(Controller::Eviction)) {
        let value = trigger.value.as_ref().map(|value| format!("={value}")).unwrap_or_default();
        let effect = trigger.effect.map(|effect| format!(":{}", effect.as_str())).unwrap_or_default();
        proofs.push(format!("taint {}{value}{effect} (eviction.triggers[{at}])", trigger.key));
    }
    if on(Controller::Repair) {
        proofs.push(
            "repair: a machine that Salvor ended, once its Node and its NodeClaim or Machine are gone".into(),
        );
    }
    proofs
}

#[cfg(test)]
mod tests {
    use salvor_api::config::parse;
    use salvor_operator::Published;
    use serde_json::{Value, json};

    use super::*;

    fn configuration(text: &str) -> Configuration {
        parse(&format!("apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n{text}")).unwrap()
    }

    #[test]
    fn a_lease_tells_who_leads_with_what() {
        let text = "controllers: [zombie, eviction]\neviction: {triggers: [{key: example.com/off, proof: true}, {key: example.com/sick}]}\n";
        let published = Published { version: "1.2.3".into(), configuration: Some(configuration(text)) };
        let pause = Pause::Said(Said {
            since: "2026-11-16T09:00:00Z".parse().unwrap(),
            by: "jane".into(),
            reason: String::new(),
            until: None,
        });
        let running = InCluster {
            published: Some(published),
            leader: Some("a".into()),
            pause: Some(pause),
            ..InCluster::default()
        };
        let status = serde_json::to_value(Status::of(running)).unwrap();
        let on = |name: &str| {
            let all = status["recoveries"].as_array().unwrap();
            all.iter().find(|recovery| recovery["name"] == name).unwrap()["on"].clone()
        };
        assert_eq!((&status["leader"], &status["version"]), (&json!("a"), &json!("1.2.3")));
        assert_eq!((on("zombie"), on("eviction")), (json!(false), json!(true)), "a gate is off: {status:#}");
        assert_eq!(status["brake"]["holds"], false);
        assert_eq!((&status["paused"]["by"], &status["paused"]["reason"]), (&json!("jane"), &Value::Null));
        let proofs = status["provenBy"].to_string();
        assert!(proofs.contains("salvor evict NODE") && proofs.contains("example.com/off"), "{proofs}");
        assert!(!proofs.contains("example.com/sick") && !proofs.contains("repair"), "{proofs}");
    }

    #[test]
    fn without_a_lease_nothing_is_claimed() {
        let status = Status::of(InCluster { told: "no operator".into(), ..InCluster::default() });
        assert_eq!((&status.leader, &status.recoveries, status.waiting), (&None, &None, None));
        assert_eq!(status.proven_by, Vec::<String>::new());
    }
}
