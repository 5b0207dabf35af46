//! What Salvor thinks of an object now, from the live objects, by the same `decide` that acts.

use std::collections::BTreeSet;

use futures::{FutureExt, future::BoxFuture};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use salvor_api::config::Configuration;
use salvor_recovery::{
    Action, Judgement, Reason, Report,
    brake::{Brake, Held, Outage},
    eviction::{self as evicting, EvictionPolicy, NodeView, Scene},
    job::{JobPolicy, Waiting, decide, recollect, waiting},
    liveness::Pulse,
    pause::Pause,
    zombie::{NodeView as ZombieNode, ZombiePolicy, decide_node, decide_pod},
};
use serde::{Deserialize, Serialize};

use crate::{
    leader::brake_of,
    live,
    pause::paused,
    recoveries::{eviction, job, zombie},
    time::Time,
};

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
        /// What was read.
        what: String,
        /// What went wrong.
        error: kube::Error,
    },
}

/// What each recovery says about an object now, and what was already done about it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The object, such as `pod ns/name`.
    pub subject: String,
    /// One verdict per recovery that may concern the object, with the recovery's name.
    pub recoveries: Vec<RecoveryReport>,
    /// What each index of a Job waits for, lowest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Waiting>,
    /// What was already done, oldest first.
    pub history: Vec<String>,
}

/// What one recovery says about an object.
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

/// What Salvor thinks of a pod now.
pub fn explain_pod<'a>(
    config: kube::Config,
    configuration: &'a Configuration,
    namespace: &'a str,
    name: &'a str,
) -> BoxFuture<'a, Result<Explanation, ExplainError>> {
    async move {
        let subject = format!("pod {namespace}/{name}");
        let (client, time) = connect(config)?;
        let pod = zombie::pod(&client, namespace, name).await.map_err(|e| cannot_read(&subject, e))?;
        let mut pod = pod.ok_or_else(|| ExplainError::NotFound(subject.clone()))?;
        let history =
            history(&client, namespace, &pod.pod.uid).await.map_err(|e| cannot_read("events", e))?;
        pod.announced = !history.is_empty();
        pod.wait_told = true;
        let node = match &pod.node_name {
            None => None,
            Some(node) => {
                let read = zombie::node_at_first_sight(&client, node, time.server()).await;
                let mut view = read.map_err(|e| cannot_read(&format!("node {node}"), e))?;
                // Only a lost node's kubelet is in question, and not everybody may read Leases.
                if let Some(view) = view.as_mut().filter(|view| view.unreachable.is_some()) {
                    view.pulse = pulse(&client, view, &time).await?;
                }
                view
            }
        };
        let policy = ZombiePolicy::new(configuration);
        let judgement = decide_pod(&pod, node.as_ref(), &policy, time.server());
        let mut recoveries =
            vec![reviewed("zombie", &client, configuration, &time, judgement, Outage::Holds).await];
        if let Some(name) = &pod.node_name {
            let policy = EvictionPolicy::new(configuration);
            let read = concerned_node(&client, &policy, name, &time).await;
            if let Some(node) = read.map_err(|e| cannot_read(&format!("node {name}"), e))? {
                let policy = policy.trusting(&node);
                let read = eviction::read_pod(&client, namespace, &pod.pod.name).await;
                let pod = read.map_err(|e| cannot_read(&subject, e))?;
                let mut pod = pod.ok_or_else(|| ExplainError::NotFound(subject.clone()))?;
                eviction::read_claims(&client, &policy, &node, std::slice::from_mut(&mut pod)).await;
                let judgement = evicting::decide_pod(&pod, Some(&node), &policy, time.server());
                let outage = eviction::outage(Some(&node), time.server());
                recoveries.push(reviewed("eviction", &client, configuration, &time, judgement, outage).await);
            }
        }
        Ok(Explanation { subject, recoveries, waiting: Vec::new(), history })
    }
    .boxed()
}

/// What Salvor thinks of a Job now.
pub fn explain_job<'a>(
    config: kube::Config,
    configuration: &'a Configuration,
    namespace: &'a str,
    name: &'a str,
) -> BoxFuture<'a, Result<Explanation, ExplainError>> {
    async move {
        let subject = format!("job {namespace}/{name}");
        let (client, time) = connect(config)?;
        let read = job::read_live(&client, namespace, name).await.map_err(|e| cannot_read(&subject, e))?;
        let view = read.ok_or_else(|| ExplainError::NotFound(subject.clone()))?;
        let pods = job::read_live_pods(&client, &view).await;
        let pods = pods.map_err(|e| cannot_read(&format!("the pods of {subject}"), e))?;
        let history =
            history(&client, namespace, &view.job.uid).await.map_err(|e| cannot_read("events", e))?;
        let policy = JobPolicy::new(configuration);
        let memory = recollect(&view, &pods, &policy);
        let now = time.server();
        let judgement = decide(&view, &pods, &[], &memory, &policy, now);
        let report = reviewed("job", &client, configuration, &time, judgement, Outage::Holds).await;
        let waiting = waiting(&view, &pods, &memory, &policy, now);
        Ok(Explanation { subject, recoveries: vec![report], waiting, history })
    }
    .boxed()
}

/// What Salvor thinks of a node now.
pub fn explain_node<'a>(
    config: kube::Config,
    configuration: &'a Configuration,
    name: &'a str,
) -> BoxFuture<'a, Result<Explanation, ExplainError>> {
    async move {
        let subject = format!("node {name}");
        let (client, time) = connect(config)?;
        // First, because nothing is known of the server's clock before its first answer.
        let history = history(&client, "default", name).await.map_err(|e| cannot_read("events", e))?;
        let read = zombie::node_at_first_sight(&client, name, time.server())
            .await
            .map_err(|e| cannot_read(&subject, e))?;
        let mut node = read.ok_or_else(|| ExplainError::NotFound(subject.clone()))?;
        node.announced = !history.is_empty();
        node.pulse = pulse(&client, &node, &time).await?;
        let policy = ZombiePolicy::new(configuration);
        let judgement = decide_node(&node, &policy, time.server());
        let of_zombie = reviewed("zombie", &client, configuration, &time, judgement, Outage::Holds).await;
        let of_eviction = explain_eviction(&client, configuration, name, !history.is_empty(), &time)
            .await
            .map_err(|e| cannot_read(&subject, e))?;
        let recoveries = [Some(of_zombie), of_eviction].into_iter().flatten().collect();
        Ok(Explanation { subject, recoveries, waiting: Vec::new(), history })
    }
    .boxed()
}

/// What the eviction recovery says about a node; `None` if the node is gone by now.
async fn explain_eviction(
    client: &Client,
    configuration: &Configuration,
    name: &str,
    announced: bool,
    time: &Time,
) -> kube::Result<Option<RecoveryReport>> {
    let Some(mut node) = eviction::read_node(client, name).await? else { return Ok(None) };
    let policy = EvictionPolicy::new(configuration).trusting(&node);
    eviction::read_lease(client, &mut node, time.server()).await?;
    let mut pods = eviction::read_pods(client, name).await?;
    eviction::read_claims(client, &policy, &node, &mut pods).await;
    let attachments = eviction::read_attachments(client, name).await?;
    let zone = eviction::read_zone(client, &node.zone, &policy, time.server()).await?;
    let judge = |node: &NodeView| {
        let (pods, attachments) = (Some(pods.iter().collect()), Some(attachments.iter().collect()));
        evicting::decide_node(&Scene { node, pods, attachments, zone }, &policy, time.server())
    };
    let mut judgement = judge(&node);
    // Which events were recorded is known to who recorded them; here they count as told if any were.
    if announced {
        node.told = told_by(judgement.verdict.actions());
        judgement = judge(&node);
    }
    let outage = eviction::outage(Some(&node), time.server());
    Ok(Some(reviewed("eviction", client, configuration, time, judgement, outage).await))
}

fn told_by(actions: &[Action]) -> BTreeSet<String> {
    let note = |action: &Action| match action {
        Action::EmitEvent(note) => Some(note.name.clone()),
        _ => None,
    };
    actions.iter().filter_map(note).collect()
}

/// A node that has anything to do with evictions, with its Lease.
async fn concerned_node(
    client: &Client,
    policy: &EvictionPolicy,
    name: &str,
    time: &Time,
) -> kube::Result<Option<NodeView>> {
    let Some(mut node) = eviction::read_node(client, name).await? else { return Ok(None) };
    if !node.is_remembered() && !node.taints.iter().any(|taint| policy.concerns(taint)) {
        return Ok(None);
    }
    eviction::read_lease(client, &mut node, time.server()).await?;
    Ok(Some(node))
}

async fn pulse(client: &Client, node: &ZombieNode, time: &Time) -> Result<Pulse, ExplainError> {
    let read = zombie::pulse_at_first_sight(client, node, time.server()).await;
    read.map_err(|e| cannot_read(&format!("the Lease of node {}", node.node), e))
}

fn connect(config: kube::Config) -> Result<(Client, Time), ExplainError> {
    let time = Time::system();
    let client = crate::client::connect(config, &time).map_err(|e| cannot_read("the API", e))?;
    Ok((client, time))
}

fn cannot_read(what: &str, error: kube::Error) -> ExplainError {
    ExplainError::Api { what: what.to_owned(), error }
}

/// The judgement as the leader would have it, with the brake's memory from the lease.
async fn reviewed<Why: Reason>(
    recovery: &'static str,
    client: &Client,
    configuration: &Configuration,
    time: &Time,
    judgement: Judgement<Why>,
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
    let may_be_held = judgement.verdict.actions().iter().any(Action::is_disruptive);
    RecoveryReport { recovery, report: judgement.report(), brake_unknown: unknown.filter(|_| may_be_held) }
}

/// The Lease of Salvor's replicas, if there is one.
async fn lease(client: &Client, configuration: &Configuration) -> kube::Result<Option<Lease>> {
    let settings = &configuration.leader_election;
    let leases: Api<Lease> = Api::namespaced(client.clone(), &settings.lease_namespace);
    leases.get_opt(&settings.lease_name).await
}

/// What the running operator's brake remembers, from the lease; or why that cannot be known from here.
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

/// What Salvor has told about an object, from its events.
pub(crate) async fn history(client: &Client, namespace: &str, uid: &str) -> kube::Result<Vec<String>> {
    let path = format!("/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.uid%3D{uid}");
    let Some(text) = live::get(client, &path).await? else { return Ok(Vec::new()) };
    told_in(&text).map_err(kube::Error::SerdeError)
}

/// The lines of a list of events that are ours, oldest first.
fn told_in(list: &str) -> Result<Vec<String>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Events {
        items: Vec<Event>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Event {
        #[serde(default)]
        metadata: Metadata,
        event_time: Option<String>,
        /// All that an event has that was written by the older API.
        last_timestamp: Option<String>,
        #[serde(default)]
        reason: String,
        #[serde(default)]
        message: String,
        #[serde(default)]
        reporting_component: String,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Metadata {
        resource_version: String,
    }
    let events: Events = serde_json::from_str(list)?;
    let ours = [
        salvor_api::names::events::POD_TERMINATION_CONTROLLER,
        salvor_api::names::job::events::JOB_CONTROLLER,
        salvor_api::names::events::EVICTION_CONTROLLER,
    ];
    let mut told: Vec<(Timestamp, u64, String)> = events
        .items
        .into_iter()
        .filter(|e| ours.contains(&e.reporting_component.as_str()))
        .map(|e| {
            let at = e.event_time.or(e.last_timestamp).unwrap_or_default();
            // Times have no more than seconds; within one, revisions tell what came first.
            let revision = e.metadata.resource_version.parse().unwrap_or(0);
            let time: Timestamp = at.parse().unwrap_or(Timestamp::MIN);
            let second = Timestamp::from_second(time.as_second()).unwrap_or(time);
            (second, revision, format!("{at} {}: {}", e.reason, e.message))
        })
        .collect();
    told.sort();
    Ok(told.into_iter().map(|(_, _, line)| line).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_of_either_api_have_a_time_and_those_of_one_second_an_order() {
        let event = |times: serde_json::Value, by: &str, reason: &str, revision: &str| {
            let metadata = json!({"resourceVersion": revision});
            let mut event =
                json!({"metadata": metadata, "reportingComponent": by, "reason": reason, "message": "m"});
            event.as_object_mut().unwrap().append(&mut times.as_object().unwrap().clone());
            event
        };
        let core = json!({
            "eventTime": null, "firstTimestamp": "2026-11-15T05:00:01Z", "lastTimestamp": "2026-11-15T05:00:02Z",
        });
        let newer = json!({"eventTime": "2026-11-15T05:00:01.500000Z", "lastTimestamp": null});
        let list = json!({"items": [
            event(core.clone(), "salvor-eviction", "Finished", "10"),
            event(core.clone(), "job-controller", "SuccessfulCreate", "9"),
            event(newer, "pod-termination-controller", "Terminated", "8"),
            event(core, "kubelet", "Pulled", "7"),
        ]});
        let expected = [
            "2026-11-15T05:00:01.500000Z Terminated: m",
            "2026-11-15T05:00:02Z SuccessfulCreate: m",
            "2026-11-15T05:00:02Z Finished: m",
        ];
        assert_eq!(told_in(&list.to_string()).unwrap(), expected);
    }
}
