//! The status that the leader publishes on its Lease: its version and configuration.
//!
//! `salvor explain`, `why` and `evict` read it there, so that they decide by the configuration in the cluster and not
//! by a file on the user's machine. The Lease's renew time shows whether the leader is healthy: it is only renewed
//! while the working thread makes progress.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use salvor_api::{
    config::{Configuration, LeaderElection},
    names::annotations,
};
use salvor_recovery::{
    brake::Held,
    pause::{Pause, PauseAcknowledged, pause_token},
};
use serde::{Deserialize, Serialize};

use crate::{
    client::live,
    lead::{brake_of, pause::paused},
    time::Time,
};

/// A Lease whose annotations are larger than 256 KiB cannot be renewed; the brake state and a pause need room too.
const LONGEST: usize = 64 * 1024;

/// The status of the leader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Published {
    pub version: String,
    /// `None` if it is too long.
    pub configuration: Option<Configuration>,
}

impl Published {
    pub(crate) fn of(configuration: &Configuration) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { version, configuration: Some(configuration.clone()) }
    }

    /// The annotation's value, never longer than a Lease has room for.
    pub(crate) fn to_text(&self) -> String {
        let text = |told: &Self| serde_json::to_string(told).unwrap_or_default();
        let whole = text(self);
        if whole.len() <= LONGEST {
            return whole;
        }
        text(&Self { configuration: None, ..self.clone() })
    }

    /// The published status of a Lease, if there is one that can be decoded.
    pub fn read(lease: &Lease) -> Option<Self> {
        let text = lease.metadata.annotations.as_ref()?.get(annotations::STATUS)?;
        serde_json::from_str(text).ok()
    }

    /// The holder of a Lease, if by the Lease's own times it has not expired.
    pub fn leader(lease: &Lease, now: Timestamp) -> Option<&str> {
        let spec = lease.spec.as_ref()?;
        let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())?;
        let lasts = SignedDuration::from_secs(spec.lease_duration_seconds.unwrap_or(0).into());
        let renewed = spec.renew_time.as_ref()?.0;
        renewed.checked_add(lasts).is_ok_and(|until| now <= until).then_some(holder)
    }
}

/// The operator of a cluster, as its Lease describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InCluster {
    /// The status of the current or last leader, if there is one.
    pub published: Option<Published>,
    pub leader: Option<String>,
    /// Whether a leader election has ever taken place here.
    pub was_led: bool,
    /// When the leader acquired the Lease.
    pub leads_since: Option<Timestamp>,
    pub pause: Option<Pause>,
    /// The leader's confirmation that it has stopped, if it confirms this pause.
    pub stopped: Option<PauseAcknowledged>,
    /// What would hold one more pod of any zone, by the brake's saved state.
    pub held: Option<Held>,
    /// The zones in which the brake holds everything, by its saved state.
    pub zones_held: BTreeSet<String>,
    /// Which configuration a reader decides by, in one line.
    pub told: String,
}

impl InCluster {
    /// Derives it from the Lease of an election; `lease` is `None` if there is no such Lease.
    pub fn of(lease: Option<&Lease>, election: &LeaderElection, now: Timestamp) -> Self {
        let name = lease_name(election);
        let Some(lease) = lease else {
            let told = format!(
                "No operator with a leader election runs here (there is no {name}): judged by the default configuration"
            );
            return Self { told, ..Self::default() };
        };
        let published = Published::read(lease);
        let leader = Published::leader(lease, now).map(str::to_owned);
        let configured = published.as_ref().filter(|told| told.configuration.is_some());
        let told = match (&leader, configured) {
            (Some(leader), Some(Published { version, .. })) => {
                format!("Judged by the configuration of the running operator {leader}, version {version}")
            }
            (Some(leader), None) => format!(
                "The running operator {leader} does not publish its configuration, as in a dry run: judged by the default configuration"
            ),
            (None, Some(Published { version, .. })) => format!(
                "Nobody leads ({name} has run out): judged by the configuration of the last operator that led, version {version}"
            ),
            (None, None) => {
                format!("Nobody leads ({name} has run out): judged by the default configuration")
            }
        };
        let leads_since = lease.spec.as_ref().filter(|_| leader.is_some());
        let leads_since = leads_since.and_then(|spec| spec.acquire_time.as_ref()).map(|time| time.0);
        let stopped = acknowledged(lease).filter(|stopped| {
            paused(lease, now).is_some_and(|annotation| pause_token(annotation) == stopped.of)
        });
        let limits = published.as_ref().and_then(|published| published.configuration.as_ref());
        let limits = limits.map(|configuration| configuration.brake.clone()).unwrap_or_default();
        let brake = brake_of(limits, Some(lease), now);
        let was_led = lease.spec.as_ref().is_some_and(|spec| {
            spec.holder_identity.is_some() || spec.acquire_time.is_some() || spec.lease_transitions.is_some()
        });
        Self {
            was_led,
            leads_since,
            pause: paused(lease, now).map(Pause::read),
            stopped,
            held: brake.check(now, 1).err(),
            zones_held: brake.zones_down(),
            published,
            leader,
            told,
        }
    }

    /// Reads it from the Lease of an election.
    ///
    /// A failed read is part of the result and is no error, because the caller has more to show.
    pub async fn read(config: kube::Config, election: &LeaderElection) -> Self {
        let unknown = |error: kube::Error| Self::unseen(election, &live::in_full(&error));
        let time = Time::system();
        let client = match crate::client::connect(config, &time) {
            Ok(client) => client,
            Err(error) => return unknown(error),
        };
        let leases: Api<Lease> = Api::namespaced(client, &election.lease_namespace);
        match leases.get_opt(&election.lease_name).await {
            Err(error) => unknown(error),
            Ok(lease) => Self::of(lease.as_ref(), election, time.server()),
        }
    }

    /// For a Lease that cannot be read.
    pub fn unseen(election: &LeaderElection, why: &str) -> Self {
        let name = lease_name(election);
        let told = format!(
            "{name} cannot be read, so nobody can tell from here how Salvor runs ({why}): judged by the default configuration"
        );
        Self { told, ..Self::default() }
    }
}

/// The leader's confirmation of a pause.
pub(crate) fn acknowledged(lease: &Lease) -> Option<PauseAcknowledged> {
    let annotations = lease.metadata.annotations.as_ref()?;
    serde_json::from_str(annotations.get(annotations::PAUSED_ACKNOWLEDGED)?).ok()
}

fn lease_name(election: &LeaderElection) -> String {
    format!("Lease {}/{}", election.lease_namespace, election.lease_name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(value: serde_json::Value) -> Lease {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_is_told_is_read_again_and_is_never_too_long() {
        let text = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\nfeatureGates: {FailureRecoveryPolicy: true}\n";
        let mut configuration = salvor_api::config::parse(text).unwrap();
        let told = Published::of(&configuration);
        let on = lease(json!({"metadata": {"annotations": {"salvor.dev/status": told.to_text()}}}));
        assert_eq!(Published::read(&on), Some(told));
        configuration.leader_election.lease_name = "x".repeat(LONGEST);
        let short = Published::of(&configuration).to_text();
        assert!(short.len() < 100, "{short}");
        let on = lease(json!({"metadata": {"annotations": {"salvor.dev/status": "nonsense"}}}));
        assert_eq!(Published::read(&on), None);
    }

    #[test]
    fn nobody_leads_without_a_holder_or_after_the_lease_has_run_out() {
        let now: Timestamp = "2026-11-16T10:00:00Z".parse().unwrap();
        let held = |holder: &str, renewed: &str| {
            let spec = json!({"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15});
            Published::leader(&lease(json!({"metadata": {}, "spec": spec})), now).map(str::to_owned)
        };
        assert_eq!(held("a", "2026-11-16T09:59:50.000000Z").as_deref(), Some("a"));
        assert_eq!(held("a", "2026-11-16T09:59:40.000000Z"), None);
        assert_eq!(held("", "2026-11-16T09:59:59.000000Z"), None);
    }

    #[test]
    fn one_line_tells_by_whose_configuration_is_judged() {
        let now: Timestamp = "2026-11-16T10:00:00Z".parse().unwrap();
        let election = LeaderElection::default();
        let status = Published::of(&Configuration::default()).to_text();
        let held = |renewed: &str, annotations: serde_json::Value| {
            let spec = json!({"holderIdentity": "a", "renewTime": renewed, "leaseDurationSeconds": 15});
            lease(json!({"metadata": {"annotations": annotations}, "spec": spec}))
        };
        let (fresh, old) = ("2026-11-16T09:59:50.000000Z", "2026-11-16T09:00:00.000000Z");
        let publishes = json!({"salvor.dev/status": status});
        let version = env!("CARGO_PKG_VERSION");
        for (lease, told) in [
            (
                Some(held(fresh, publishes.clone())),
                format!("Judged by the configuration of the running operator a, version {version}"),
            ),
            (
                Some(held(fresh, json!({}))),
                "The running operator a does not publish its configuration, as in a dry run: judged by the default configuration".to_owned(),
            ),
            (
                Some(held(old, publishes)),
                format!("Nobody leads (Lease salvor-system/salvor has run out): judged by the configuration of the last operator that led, version {version}"),
            ),
            (
                None,
                "No operator with a leader election runs here (there is no Lease salvor-system/salvor): judged by the default configuration".to_owned(),
            ),
        ] {
            assert_eq!(InCluster::of(lease.as_ref(), &election, now).told, told);
        }
    }

    #[test]
    fn a_lease_tells_of_the_pause_and_of_the_brake() {
        let now: Timestamp = "2026-11-16T10:00:00Z".parse().unwrap();
        let election = LeaderElection::default();
        let pause = r#"{"since":"2026-11-16T09:00:00Z","by":"jane","reason":"network work"}"#;
        let stopped = |of: &str| json!({"by": "a", "at": "2026-11-16T09:00:02Z", "of": of}).to_string();
        let engaged = json!({"since": "2026-11-16T09:59:00Z", "nodes": {"unreachable": 6, "total": 10}});
        let on = |annotations: serde_json::Value| {
            let spec = json!({
                "holderIdentity": "a", "acquireTime": "2026-11-16T08:00:00.000000Z",
                "renewTime": "2026-11-16T09:59:55.000000Z", "leaseDurationSeconds": 15,
            });
            let lease = lease(json!({"metadata": {"annotations": annotations}, "spec": spec}));
            InCluster::of(Some(&lease), &election, now)
        };
        let free = on(json!({"salvor.dev/brake": r#"{"admitted":{}}"#}));
        assert_eq!((free.pause, free.stopped, free.held), (None, None, None));
        assert!(free.was_led);
        let by_a_pause = lease(json!({"metadata": {"annotations": {"salvor.dev/paused": pause}}}));
        assert!(!InCluster::of(Some(&by_a_pause), &election, now).was_led);
        assert_eq!(free.leads_since, Some("2026-11-16T08:00:00Z".parse().unwrap()));
        let paused = on(json!({
            "salvor.dev/paused": pause, "salvor.dev/paused-acknowledged": stopped(&pause_token(pause)),
        }));
        assert!(paused.stopped.is_some_and(|stopped| stopped.by == "a"));
        assert!(paused.pause.is_some_and(|pause| pause.to_string().contains("network work")));
        let former = on(json!({
            "salvor.dev/paused": pause, "salvor.dev/paused-acknowledged": stopped("of another pause"),
        }));
        assert_eq!(former.stopped, None);
        let ended = r#"{"since":"2026-11-16T09:00:00Z","by":"jane","until":"2026-11-16T09:30:00Z"}"#;
        assert_eq!(on(json!({"salvor.dev/paused": ended})).pause, None, "it has ended by itself");
        let held = on(json!({"salvor.dev/brake": json!({"admitted": {}, "engaged": engaged}).to_string()}));
        assert!(held.held.is_some_and(|held| held.code() == "MaxUnreachablePercent"));
    }
}
