//! The verdicts of zombie recovery for `salvor explain`.

use std::collections::BTreeMap;

use futures::FutureExt;
use salvor_api::{Controller, config::LostPods};
use salvor_recovery::{
    brake::Outage,
    ids::NodeName,
    liveness::Heartbeat,
    zombie::{NodeView, OfJob, Relative, Stage, ZombiePolicy, decide_node, decide_pod, is_due},
};

use super::{
    jobs,
    recheck::{heartbeat_at_first_sight, node_at_first_sight, parse_pod, see_at_first_sight},
    wire::PodWire,
};
use crate::{
    client::live,
    explain::{Answering, ExplainError, Question, cannot_read},
};

pub(super) fn pod<'a>(question: &'a Question<'a>) -> Answering<'a> {
    async move {
        let now = || question.time.server();
        let mut pod = parse_pod(question.object).map_err(|e| question.cannot_read_it(e))?;
        pod.announced = !question.history.is_empty();
        (pod.wait_told, pod.evict_told) = (true, true);
        let node = match &pod.node_name {
            None => None,
            Some(node) => {
                let read = node_at_first_sight(question.client, node, now()).await;
                let mut view = read.map_err(|e| cannot_read(&format!("node {node}"), e))?;
                // Only the kubelet of a lost node is in question, and not every user may read Leases.
                if let Some(view) = view.as_mut().filter(|view| view.unreachable.is_some()) {
                    view.heartbeat = heartbeat(question, view).await?;
                }
                view
            }
        };
        let policy = ZombiePolicy::new(question.configuration);
        let is_due = node.as_ref().is_some_and(|node| is_due(&pod, node, &policy, now()));
        match pod.job.take().filter(|_| is_due && policy.lost_pods != LostPods::Count) {
            Some(mut of) => {
                let read = jobs::read(question.client, &of.job, now()).await;
                of.sight = read.map_err(|e| cannot_read(&format!("job {}", of.job), e))?;
                of.family = family(question, &of, &policy).await;
                of.told = true;
                pod.job = Some(of);
            }
            None => pod.job = None,
        }
        let decision = decide_pod(&pod, node.as_ref(), &policy, now());
        Ok(Some(question.reviewed(Controller::Zombie, decision, Outage::Holds).await.into()))
    }
    .boxed()
}

/// The other pods of the same Job, as far as they can be read: without them the pod is decided as the only lost one.
async fn family(question: &Question<'_>, of: &OfJob, policy: &ZombiePolicy) -> Vec<Relative> {
    let now = question.time.server();
    let path = format!("/api/v1/namespaces/{}/pods", of.job.namespace);
    let selector = live::percent_encode(&format!("batch.kubernetes.io/controller-uid={}", of.job.uid));
    let keep = |wire: PodWire| wire.view_in_question(policy);
    let pods = live::list(question.client, &path, &format!("&labelSelector={selector}"), keep).await;
    let mut nodes: BTreeMap<NodeName, Option<NodeView>> = BTreeMap::new();
    let mut family = Vec::new();
    for pod in pods.unwrap_or_default() {
        let Some(member) = pod.job.as_ref().filter(|it| it.job.uid == of.job.uid).map(|it| it.member.clone())
        else {
            continue;
        };
        let name = pod.node_name.clone().unwrap_or_default();
        if !nodes.contains_key(&name) {
            let mut node = node_at_first_sight(question.client, &name, now).await.ok().flatten();
            if let Some(node) = &mut node {
                node.heartbeat = heartbeat(question, node).await.unwrap_or(node.heartbeat);
            }
            nodes.insert(name.clone(), node);
        }
        let node = nodes.get(&name).and_then(Option::as_ref);
        let stage = if pod.phase.is_terminal() {
            Stage::Ended(pod.phase)
        } else if node.is_some_and(|node| is_due(&pod, node, policy, now)) {
            Stage::Due
        } else {
            Stage::Waits
        };
        family.push(Relative { uid: pod.pod.uid, member, stage, is_deleted: pod.deletion.is_some() });
    }
    family
}

pub(super) fn node<'a>(question: &'a Question<'a>) -> Answering<'a> {
    async move {
        let seen = see_at_first_sight(question.object, question.time.server());
        let mut node = seen.map_err(|e| question.cannot_read_it(e))?;
        node.announced = !question.history.is_empty();
        node.heartbeat = heartbeat(question, &node).await?;
        let policy = ZombiePolicy::new(question.configuration);
        let decision = decide_node(&node, &policy, question.time.server());
        Ok(Some(question.reviewed(Controller::Zombie, decision, Outage::Holds).await.into()))
    }
    .boxed()
}

async fn heartbeat(question: &Question<'_>, node: &NodeView) -> Result<Heartbeat, ExplainError> {
    let read = heartbeat_at_first_sight(question.client, node, question.time.server()).await;
    read.map_err(|e| cannot_read(&format!("the Lease of node {}", node.node), e))
}
