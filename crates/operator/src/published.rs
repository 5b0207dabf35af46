//! What whoever leads tells on its Lease about itself: the version, and the configuration that it runs with.
//!
//! `salvor explain`, `why` and `evict` read it there, so that they judge by what runs in the cluster and not by a file on
//! the machine where they are called. That it is healthy is told by the Lease's own time: the Lease is only renewed while the
//! thread that works turns.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use salvor_api::{
    config::{Configuration, LeaderElection},
    names::annotations,
};
use serde::{Deserialize, Serialize};

use crate::{live, time::Time};

/// A Lease whose annotations are larger than 256 KiB cannot be renewed; the brake's memory and a pause need room too.
const LONGEST: usize = 64 * 1024;

/// What whoever leads tells about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Published {
    /// Its version.
    pub version: String,
    /// The configuration that it runs with; none if that is too long.
    pub configuration: Option<Configuration>,
}

impl Published {
    /// What a replica with this configuration tells.
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

    /// What stands on a Lease, if anything that can be read.
    pub fn read(lease: &Lease) -> Option<Self> {
        let text = lease.metadata.annotations.as_ref()?.get(annotations::STATUS)?;
        serde_json::from_str(text).ok()
    }

    /// Who holds a Lease now, by its own times; none if nobody does.
    pub fn leader(lease: &Lease, now: Timestamp) -> Option<&str> {
        let spec = lease.spec.as_ref()?;
        let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())?;
        let lasts = SignedDuration::from_secs(spec.lease_duration_seconds.unwrap_or(0).into());
        let renewed = spec.renew_time.as_ref()?.0;
        renewed.checked_add(lasts).is_ok_and(|until| now <= until).then_some(holder)
    }
}

/// What runs in a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InCluster {
    /// What whoever leads, or led last, tells; none if nobody does.
    pub published: Option<Published>,
    /// The same in one line.
    pub told: String,
}

impl InCluster {
    /// Reads it from the Lease of an election.
    ///
    /// Whatever keeps it from being read is told, and is no error: whoever asks has other things to tell as well.
    pub async fn read(config: kube::Config, election: &LeaderElection) -> Self {
        let LeaderElection { lease_namespace, lease_name, .. } = election;
        let name = format!("Lease {lease_namespace}/{lease_name}");
        let unknown = |error: kube::Error| Self {
            published: None,
            told: format!(
                "{name} cannot be read, so nobody can tell from here how Salvor runs: {}",
                live::in_full(&error)
            ),
        };
        let time = Time::system();
        let client = match crate::client::connect(config, &time) {
            Ok(client) => client,
            Err(error) => return unknown(error),
        };
        let leases: Api<Lease> = Api::namespaced(client, lease_namespace);
        match leases.get_opt(lease_name).await {
            Err(error) => unknown(error),
            Ok(None) => Self {
                published: None,
                told: format!("There is no {name}: no operator runs with leader election here"),
            },
            Ok(Some(lease)) => {
                let published = Published::read(&lease);
                let version = published.as_ref().map(|told| format!(" {}", told.version)).unwrap_or_default();
                let told = match Published::leader(&lease, time.server()) {
                    Some(leader) => {
                        format!("Judged by what runs in the cluster: Salvor{version}, led by {leader}")
                    }
                    None => format!("Salvor{version} is installed, but nobody leads it: {name} has run out"),
                };
                Self { published, told }
            }
        }
    }
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
}
