//! Explanations: the verdict of each recovery on a live object, computed by the same `decide` that acts.
//!
//! This file is shared by all recoveries. Each recovery answers a [`Question`] in its own `explain.rs`, and
//! `explainer.rs` asks them.

pub(crate) mod explainer;

use std::fmt;

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use salvor_api::{Controller, config::Configuration};
use salvor_recovery::{
    Decision, Reason, Report, Step,
    brake::{Brake, Held, Outage},
    pause::Pause,
};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::{
    client::live,
    lead::{brake_of, pause::paused},
    time::Time,
};

/// A Lease that was not renewed for this long has no holder, however much the clocks differ.
const HELD_FOR: SignedDuration = SignedDuration::from_mins(5);

#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    #[error("there is no {0}")]
    NotFound(String),
    #[error("cannot read {what}: {}", live::in_full(.error))]
    Api {
        /// The object or list that was read.
        what: String,
        error: kube::Error,
    },
}

/// The verdict of each recovery on an object now, and what was done about it before.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// For example `pod ns/name`.
    pub subject: String,
    /// One verdict per recovery that may concern the object.
    pub recoveries: Vec<RecoveryReport>,
    /// Further details of recoveries; in JSON, each is a field of its own.
    #[serde(flatten, serialize_with = "as_fields")]
    pub details: Vec<Detail>,
    /// Salvor's earlier events, oldest first.
    pub history: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryReport {
    /// The recovery's name, as in `--controllers`.
    pub recovery: &'static str,
    #[serde(flatten)]
    pub report: Report,
    /// Why it cannot be determined whether the brake blocks the verdict's steps; `None` if it is known or does not
    /// matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub brake_unknown: Option<String>,
}

/// Additional information of a recovery about an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Detail {
    /// Its field in JSON.
    pub key: &'static str,
    /// The machine-readable form.
    pub value: Value,
    /// The heading of the human-readable form.
    pub title: String,
    /// The human-readable form.
    pub lines: Vec<DetailLine>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetailLine {
    pub text: String,
    /// Until when it holds, if that is known.
    pub until: Option<Timestamp>,
}

fn as_fields<S: Serializer>(details: &[Detail], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(details.iter().map(|detail| (detail.key, &detail.value)))
}

#[derive(Debug)]
pub struct ObjectKind {
    /// The argument of `salvor explain`, also used in the explanation.
    pub word: &'static str,
    /// For help texts.
    pub title: &'static str,
    pub namespaced: bool,
    /// The path of its group and version, such as `/api/v1`.
    pub(crate) path: &'static str,
    pub(crate) plural: &'static str,
    /// How events refer to such an object.
    pub(crate) involved: Involved,
}

/// What events use as the UID of the object that they are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Involved {
    Uid,
    /// Its name in place of its UID, as kubelets do for nodes.
    Name,
}

pub(crate) static POD: ObjectKind = ObjectKind {
    word: "pod",
    title: "A pod",
    path: "/api/v1",
    plural: "pods",
    namespaced: true,
    involved: Involved::Uid,
};

pub(crate) static NODE: ObjectKind = ObjectKind {
    word: "node",
    title: "A node",
    path: "/api/v1",
    plural: "nodes",
    namespaced: false,
    involved: Involved::Name,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName {
    /// `None` for cluster-scoped kinds.
    pub namespace: Option<String>,
    pub name: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// A kind of object that a recovery has verdicts on.
pub(crate) struct Explains {
    pub(crate) kind: &'static ObjectKind,
    /// Answers the question; `None` if the object does not concern the recovery.
    pub(crate) explain: for<'a> fn(&'a Question<'a>) -> Answering<'a>,
}

pub(crate) type Answering<'a> = BoxFuture<'a, Result<Option<Answer>, ExplainError>>;

pub(crate) struct Question<'a> {
    pub(crate) client: &'a Client,
    pub(crate) configuration: &'a Configuration,
    pub(crate) time: &'a Time,
    /// For example `pod ns/name`.
    pub(crate) subject: &'a str,
    /// The object as the API just returned it.
    pub(crate) object: &'a str,
    /// Salvor's events about it, oldest first.
    pub(crate) history: &'a [String],
}

pub(crate) struct Answer {
    pub(crate) report: RecoveryReport,
    pub(crate) details: Vec<Detail>,
}

impl From<RecoveryReport> for Answer {
    fn from(report: RecoveryReport) -> Self {
        Self { report, details: Vec::new() }
    }
}

impl Question<'_> {
    /// The decision as the leader would make it, with the pause and the brake state from the Lease.
    pub(crate) async fn reviewed<Why: Reason, S: Step>(
        &self,
        recovery: Controller,
        decision: Decision<Why, S>,
        outage: Outage,
    ) -> RecoveryReport {
        reviewed(recovery.name(), self.client, self.configuration, self.time, decision, outage).await
    }

    /// The error of a recovery that cannot decode the object.
    pub(crate) fn cannot_read_it(&self, error: kube::Error) -> ExplainError {
        cannot_read(self.subject, error)
    }
}

pub(crate) fn cannot_read(what: &str, error: kube::Error) -> ExplainError {
    ExplainError::Api { what: what.to_owned(), error }
}

/// The decision as the leader would make it, with the pause and the brake state from the Lease.
async fn reviewed<Why: Reason, S: Step>(
    recovery: &'static str,
    client: &Client,
    configuration: &Configuration,
    time: &Time,
    decision: Decision<Why, S>,
    outage: Outage,
) -> RecoveryReport {
    let election = lease(client, configuration).await.ok().flatten();
    if let Some(paused) = election.as_ref().and_then(|lease| paused(lease, time.server())) {
        let decision = decision.held_back(Held::Paused { pause: Box::new(Pause::read(paused)) });
        return RecoveryReport { recovery, report: decision.report(), brake_unknown: None };
    }
    let (brake, unknown) = match brake_memory(client, configuration, time.server()).await {
        Ok(brake) => (brake, None),
        Err(unknown) => (brake_of(configuration.brake.clone(), None, time.server()), Some(unknown)),
    };
    let decision = brake.review(time.server(), decision, outage);
    let may_be_held = decision.verdict.actions().iter().any(Step::is_disruptive);
    RecoveryReport { recovery, report: decision.report(), brake_unknown: unknown.filter(|_| may_be_held) }
}

/// The Lease of Salvor's replicas, if there is one.
async fn lease(client: &Client, configuration: &Configuration) -> kube::Result<Option<Lease>> {
    let settings = &configuration.leader_election;
    let leases: Api<Lease> = Api::namespaced(client.clone(), &settings.lease_namespace);
    leases.get_opt(&settings.lease_name).await
}

/// The running operator's brake, read from the Lease; or the reason why it is unknown.
async fn brake_memory(
    client: &Client,
    configuration: &Configuration,
    now: Timestamp,
) -> Result<Brake, String> {
    let settings = &configuration.leader_election;
    let name = format!("Lease {}/{}", settings.lease_namespace, settings.lease_name);
    if !settings.enabled {
        return Err(
            "leader election is off, and without it the brake's state is in the operator's memory alone"
                .into(),
        );
    }
    let lease = lease(client, configuration).await;
    let lease = lease.map_err(|error| format!("{name} cannot be read: {}", live::in_full(&error)))?;
    let lease =
        lease.ok_or_else(|| format!("there is no {name}: no operator runs with leader election there"))?;
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
    let renewed = spec.renew_time.map_or(Timestamp::MIN, |renewed| renewed.0);
    if holder.is_none() || renewed.checked_add(HELD_FOR).is_ok_and(|until| until < now) {
        return Err(format!("{name} is held by nobody: no operator runs with leader election there now"));
    }
    Ok(brake_of(configuration.brake.clone(), Some(&lease), now))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn details_are_fields_between_the_verdicts_and_the_history() {
        let detail = |key, value| Detail { key, value, title: String::new(), lines: Vec::new() };
        let mut explanation = Explanation {
            subject: "job ns/j".to_owned(),
            recoveries: Vec::new(),
            details: vec![detail("waiting", json!([{"indexes": "0"}])), detail("retriesLeft", json!(2))],
            history: Vec::new(),
        };
        let text = serde_json::to_string(&explanation).unwrap();
        let expected = r#"{"subject":"job ns/j","recoveries":[],"waiting":[{"indexes":"0"}],"retriesLeft":2,"history":[]}"#;
        assert_eq!(text, expected);
        explanation.details.clear();
        let text = serde_json::to_string(&explanation).unwrap();
        assert_eq!(text, r#"{"subject":"job ns/j","recoveries":[],"history":[]}"#);
    }
}
