//! The verdicts of the eviction recovery for `salvor explain`.

use std::collections::BTreeSet;

use futures::FutureExt;
use salvor_api::Controller;
use salvor_recovery::{
    Step as _,
    eviction::{EvictionPolicy, NodeView, Scene, Step, decide_node, decide_pod},
    ids::NodeName,
    step::StepEvent,
};
use serde::Deserialize;

use super::{
    outage, parse_node, parse_pod, read_attachments, read_lease, read_node, read_pods, read_works, read_zone,
};
use crate::explain::{Answer, Answering, Question, cannot_read};

/// Only a pod on a node that is involved in an eviction concerns this recovery.
pub(super) fn pod<'a>(question: &'a Question<'a>) -> Answering<'a> {
    async move {
        let policy = EvictionPolicy::new(question.configuration);
        let mut pod = parse_pod(question.object, policy.gate()).map_err(|e| question.cannot_read_it(e))?;
        let name = node_name_of(question.object).map_err(|e| question.cannot_read_it(e))?;
        let Some(name) = name else { return Ok(None) };
        let read = concerned_node(question, &policy, &name).await;
        let Some(node) = read.map_err(|e| cannot_read(&format!("node {name}"), e))? else { return Ok(None) };
        let policy = policy.trusting(&node);
        read_works(question.client, &policy, &node, std::slice::from_mut(&mut pod)).await;
        let now = question.time.server();
        let decision = decide_pod(&pod, Some(&node), &policy, now);
        let outage = outage(Some(&node), question.time.server());
        Ok(Some(question.reviewed(Controller::Eviction, decision, outage).await.into()))
    }
    .boxed()
}

/// The node that a pod is bound to. Pods are watched node by node, so their view does not have it.
fn node_name_of(pod: &str) -> kube::Result<Option<NodeName>> {
    #[derive(Deserialize)]
    struct Pod {
        #[serde(default)]
        spec: Spec,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec {
        node_name: Option<NodeName>,
    }
    let pod: Pod = serde_json::from_str(pod).map_err(kube::Error::SerdeError)?;
    Ok(pod.spec.node_name.filter(|name| !name.is_empty()))
}

pub(super) fn node<'a>(question: &'a Question<'a>) -> Answering<'a> {
    async move {
        let answer = judged_node(question).await.map_err(|e| question.cannot_read_it(e))?;
        Ok(Some(answer))
    }
    .boxed()
}

async fn judged_node(question: &Question<'_>) -> kube::Result<Answer> {
    let (client, time) = (question.client, question.time);
    let mut node = parse_node(question.object)?;
    let name = node.node.name.clone();
    let policy = EvictionPolicy::new(question.configuration).trusting(&node);
    read_lease(client, &mut node, time.server()).await?;
    let mut pods = read_pods(client, &name, policy.gate()).await?;
    read_works(client, &policy, &node, &mut pods).await;
    let attachments = read_attachments(client, &name).await?;
    let zone = read_zone(client, &node.zone, &policy, time.server()).await?;
    let judge = |node: &NodeView| {
        let (pods, attachments) = (Some(pods.iter().collect()), Some(attachments.iter().collect()));
        decide_node(&Scene { node, pods, attachments, zone }, &policy, time.server())
    };
    let mut decision = judge(&node);
    // Only the operator knows which events it recorded; here they count as recorded if there are any.
    if !question.history.is_empty() {
        node.told = told_by(decision.verdict.actions());
        decision = judge(&node);
    }
    let outage = outage(Some(&node), time.server());
    Ok(question.reviewed(Controller::Eviction, decision, outage).await.into())
}

fn told_by(steps: &[Step]) -> BTreeSet<String> {
    let name = |step: &Step| match step.tells() {
        Some(StepEvent::Recorded(note) | StepEvent::BestEffort(note)) => Some(note.name.clone()),
        None => None,
    };
    steps.iter().filter_map(name).collect()
}

/// A node that is involved in an eviction, with its Lease.
async fn concerned_node(
    question: &Question<'_>,
    policy: &EvictionPolicy,
    name: &NodeName,
) -> kube::Result<Option<NodeView>> {
    let Some(mut node) = read_node(question.client, name).await? else { return Ok(None) };
    if !node.is_remembered() && !node.taints.iter().any(|taint| policy.concerns(taint)) {
        return Ok(None);
    }
    read_lease(question.client, &mut node, question.time.server()).await?;
    Ok(Some(node))
}
