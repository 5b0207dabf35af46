//! Explanations: the verdict of each recovery on a live object, by the same `decide` that acts.
//!
//! This file is the frame that all recoveries share. Each recovery answers a [`Question`] in its own `explain.rs`, and
//! `explainer.rs` asks them.

use std::fmt;

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use salvor_api::{Controller, config::Configuration};
use salvor_recovery::{
    Judgement, Reason, Report, Step,
    brake::{Brake, Held, Outage},
    pause::Pause,
};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::{leader::brake_of, live, pause::paused, time::Time};

/// A lease that was not renewed for so long has no holder, however its clock differs from the server's.
const HELD_FOR: SignedDuration = SignedDuration::from_mins(5);

/// Why an explanation cannot be given.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// There is no such object.
    #[error("there is no {0}")]
    NotFound(String),
    /// The API did not answer as it should.
    #[error("cannot read {what}: {}", live::in_full(.error))]
    Api {
        /// The object or list that was read.
        what: String,
        /// The error.
        error: kube::Error,
    },
}

/// The verdict of each recovery on an object now, and everything that was done about it before.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The object, such as `pod ns/name`.
    pub subject: String,
    /// One verdict per recovery that may concern the object, with the recovery's name.
    pub recoveries: Vec<RecoveryReport>,
    /// Further details of recoveries; in JSON, each is a field of its own.
    #[serde(flatten, serialize_with = "as_fields")]
    pub details: Vec<Detail>,
    /// Everything that was done before, oldest first.
    pub history: Vec<String>,
}

/// The verdict of one recovery on an object.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryReport {
    /// The recovery's name, as in `--controllers`.
    pub recovery: &'static str,
    /// Its verdict, rule by rule.
    #[serde(flatten)]
    pub report: Report,
    /// Why nobody can tell from here whether the brake holds what the verdict asks for; none if it is known, or does not matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub brake_unknown: Option<String>,
}

/// Something that a recovery tells about an object beside its verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Detail {
    /// Its field in JSON.
    pub key: &'static str,
    /// All of it, for machines.
    pub value: Value,
    /// Its heading, for people.
    pub title: String,
    /// All of it, for people.
    pub lines: Vec<DetailLine>,
}

/// One line of a detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetailLine {
    /// The line.
    pub text: String,
    /// Until when it holds, if that is known.
    pub until: Option<Timestamp>,
}

fn as_fields<S: Serializer>(details: &[Detail], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(details.iter().map(|detail| (detail.key, &detail.value)))
}

/// A kind of object that can be explained.
#[derive(Debug)]
pub struct ObjectKind {
    /// The word for it behind `salvor explain`, and in the explanation.
    pub word: &'static str,
    /// The same in a sentence, for help.
    pub title: &'static str,
    /// True if its objects are in namespaces.
    pub namespaced: bool,
    /// The path of its group and version, such as `/api/v1`.
    pub(crate) path: &'static str,
    /// Its name in paths.
    pub(crate) plural: &'static str,
    /// The kind and group under which events name such an object.
    pub(crate) involved: Involved,
}

/// The name that events use for the object they are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Involved {
    /// By its UID.
    Uid,
    /// By its name in place of its UID, as kubelets do it for nodes.
    Name,
}

/// Pods.
pub(crate) static POD: ObjectKind = ObjectKind {
    word: "pod",
    title: "A pod",
    path: "/api/v1",
    plural: "pods",
    namespaced: true,
    involved: Involved::Uid,
};

/// Nodes.
pub(crate) static NODE: ObjectKind = ObjectKind {
    word: "node",
    title: "A node",
    path: "/api/v1",
    plural: "nodes",
    namespaced: false,
    involved: Involved::Name,
};

/// An object of a kind, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName {
    /// Its namespace, if its kind has namespaces.
    pub namespace: Option<String>,
    /// Its name.
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
    /// Answers the question; nothing if the recovery has nothing to do with the object.
    pub(crate) explain: for<'a> fn(&'a Question<'a>) -> Answering<'a>,
}

/// The answer of a recovery, once it has read what it needs.
pub(crate) type Answering<'a> = BoxFuture<'a, Result<Option<Answer>, ExplainError>>;

/// An object that a recovery is asked about.
pub(crate) struct Question<'a> {
    pub(crate) client: &'a Client,
    pub(crate) configuration: &'a Configuration,
    pub(crate) time: &'a Time,
    /// The object as a person names it, such as `pod ns/name`.
    pub(crate) subject: &'a str,
    /// The object as the API answered, a moment ago.
    pub(crate) object: &'a str,
    /// Salvor's events about it, oldest first.
    pub(crate) history: &'a [String],
}

/// A recovery's answer.
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
    /// The judgement as the leader would have it, with the pause and the brake's memory from the lease.
    pub(crate) async fn reviewed<Why: Reason, S: Step>(
        &self,
        recovery: Controller,
        judgement: Judgement<Why, S>,
        outage: Outage,
    ) -> RecoveryReport {
        reviewed(recovery.name(), self.client, self.configuration, self.time, judgement, outage).await
    }

    /// The error of a recovery that cannot make sense of the object.
    pub(crate) fn cannot_read_it(&self, error: kube::Error) -> ExplainError {
        cannot_read(self.subject, error)
    }
}

pub(crate) fn cannot_read(what: &str, error: kube::Error) -> ExplainError {
    ExplainError::Api { what: what.to_owned(), error }
}

/// The judgement as the leader would have it, with the brake's memory from the lease.
async fn reviewed<Why: Reason, S: Step>(
    recovery: &'static str,
    client: &Client,
    configuration: &Configuration,
    time: &Time,
    judgement: Judgement<Why, S>,
    outage: Outage,
) -> RecoveryReport {
    if let Some(paused) = lease(client, configuration).await.ok().flatten().as_ref().and_then(paused) {
        let judgement = judgement.held_back(Held::Paused { pause: Box::new(Pause::read(paused)) });
        return RecoveryReport { recovery, report: judgement.report(), brake_unknown: None };
    }
    let (brake, unknown) = match brake_memory(client, configuration, time.server()).await {
        Ok(brake) => (brake, None),
        Err(unknown) => (brake_of(configuration.brake.clone(), None, time.server()), Some(unknown)),
    };
    let judgement = brake.review(time.server(), judgement, outage);
    let may_be_held = judgement.verdict.actions().iter().any(Step::is_disruptive);
    RecoveryReport { recovery, report: judgement.report(), brake_unknown: unknown.filter(|_| may_be_held) }
}

/// The Lease of Salvor's replicas, if there is one.
async fn lease(client: &Client, configuration: &Configuration) -> kube::Result<Option<Lease>> {
    let settings = &configuration.leader_election;
    let leases: Api<Lease> = Api::namespaced(client.clone(), &settings.lease_namespace);
    leases.get_opt(&settings.lease_name).await
}

/// The state of the running operator's brake, read from the lease; or the reason why it cannot be known from here.
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
