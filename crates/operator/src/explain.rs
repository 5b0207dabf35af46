//! What Salvor thinks of an object now, from the live objects, by the same `decide` that acts.

use std::collections::BTreeSet;

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use salvor_api::config::Configuration;
use salvor_recovery::{
    Action, Judgement, Reason, Report,
    brake::{Held, Outage},
    eviction::{self as evicting, EvictionPolicy, NodeView, Scene},
    job::{JobPolicy, Waiting, decide, recollect, waiting},
    pause::Pause,
    zombie::{ZombiePolicy, decide_node, decide_pod},
};
use serde::{Deserialize, Serialize};

use crate::{
    leader::brake_of,
    live,
    pause::paused,
    recoveries::{eviction, job, zombie},
    time::Time,
};

/// Why an explanation cannot be given, or a node cannot be asked to be emptied.
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
    /// The API refused a write.
    #[error("cannot write {what}: {}", live::in_full(.error))]
    Write {
        /// What was written.
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
        let node = match &pod.node_name {
            None => None,
            Some(node) => {
                let read = zombie::node_at_first_sight(&client, node, time.server()).await;
                read.map_err(|e| cannot_read(&format!("node {node}"), e))?
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
                let pod = pod.ok_or_else(|| ExplainError::NotFound(subject.clone()))?;
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
        node.lease_renewed = live::lease_renewed(&client, name)
            .await
            .map_err(|e| cannot_read(&format!("the Lease of node {name}"), e))?;
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
    node.lease = eviction::read_lease(client, name, time.server()).await?;
    let pods = eviction::read_pods(client, name).await?;
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
    if node.progress.is_none() && !node.taints.iter().any(|taint| policy.concerns(taint)) {
        return Ok(None);
    }
    node.lease = eviction::read_lease(client, name, time.server()).await?;
    Ok(Some(node))
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
    let settings = &configuration.leader_election;
    let leases: Api<Lease> = Api::namespaced(client.clone(), &settings.lease_namespace);
    // Without a lease, or without the right to read it, nothing is known to hold anything back.
    let lease = leases.get_opt(&settings.lease_name).await.ok().flatten();
    let brake = brake_of(configuration.brake.clone(), lease.as_ref(), time.server());
    let judgement = match lease.as_ref().and_then(paused) {
        Some(paused) => judgement.held_back(Held::Paused { pause: Box::new(Pause::read(paused)) }),
        None => brake.review(time.server(), judgement, outage),
    };
    RecoveryReport { recovery, report: judgement.report() }
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
    let events: Events = serde_json::from_str(list)?;
    let ours = [
        salvor_api::names::events::POD_TERMINATION_CONTROLLER,
        salvor_api::names::job::events::JOB_CONTROLLER,
        salvor_api::names::events::EVICTION_CONTROLLER,
    ];
    let mut lines: Vec<String> = events
        .items
        .into_iter()
        .filter(|e| ours.contains(&e.reporting_component.as_str()))
        .map(|e| {
            let at = e.event_time.or(e.last_timestamp).unwrap_or_default();
            format!("{at} {}: {}", e.reason, e.message)
        })
        .collect();
    lines.sort();
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_of_either_api_have_a_time() {
        let event = |times: serde_json::Value, by: &str, reason: &str| {
            let mut event = json!({"reportingComponent": by, "reason": reason, "message": "m"});
            event.as_object_mut().unwrap().append(&mut times.as_object().unwrap().clone());
            event
        };
        let core = json!({
            "eventTime": null, "firstTimestamp": "2026-11-15T05:00:01Z", "lastTimestamp": "2026-11-15T05:00:02Z",
        });
        let newer = json!({"eventTime": "2026-11-15T05:00:01.500000Z", "lastTimestamp": null});
        let list = json!({"items": [
            event(core.clone(), "job-controller", "SuccessfulCreate"),
            event(newer, "pod-termination-controller", "Terminated"),
            event(core, "kubelet", "Pulled"),
        ]});
        let expected =
            ["2026-11-15T05:00:01.500000Z Terminated: m", "2026-11-15T05:00:02Z SuccessfulCreate: m"];
        assert_eq!(told_in(&list.to_string()).unwrap(), expected);
    }
}
