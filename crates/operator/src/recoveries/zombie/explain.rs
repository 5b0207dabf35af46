//! The verdicts of zombie recovery for `salvor explain`.

use futures::FutureExt;
use salvor_api::Controller;
use salvor_recovery::{
    brake::Outage,
    liveness::Pulse,
    zombie::{NodeView, ZombiePolicy, decide_node, decide_pod},
};

use super::{node_at_first_sight, parse_pod, pulse_at_first_sight, see_at_first_sight};
use crate::explain::{Answering, ExplainError, Question, cannot_read};

pub(super) fn pod<'a>(question: &'a Question<'a>) -> Answering<'a> {
    async move {
        let now = || question.time.server();
        let mut pod = parse_pod(question.object).map_err(|e| question.cannot_read_it(e))?;
        pod.announced = !question.history.is_empty();
        pod.wait_told = true;
        let node = match &pod.node_name {
            None => None,
            Some(node) => {
                let read = node_at_first_sight(question.client, node, now()).await;
                let mut view = read.map_err(|e| cannot_read(&format!("node {node}"), e))?;
                // Only a lost node's kubelet is in question, and not everybody may read Leases.
                if let Some(view) = view.as_mut().filter(|view| view.unreachable.is_some()) {
                    view.pulse = pulse(question, view).await?;
                }
                view
            }
        };
        let policy = ZombiePolicy::new(question.configuration);
        let judgement = decide_pod(&pod, node.as_ref(), &policy, now());
        Ok(Some(question.reviewed(Controller::Zombie, judgement, Outage::Holds).await.into()))
    }
    .boxed()
}

pub(super) fn node<'a>(question: &'a Question<'a>) -> Answering<'a> {
    async move {
        let seen = see_at_first_sight(question.object, question.time.server());
        let mut node = seen.map_err(|e| question.cannot_read_it(e))?;
        node.announced = !question.history.is_empty();
        node.pulse = pulse(question, &node).await?;
        let policy = ZombiePolicy::new(question.configuration);
        let judgement = decide_node(&node, &policy, question.time.server());
        Ok(Some(question.reviewed(Controller::Zombie, judgement, Outage::Holds).await.into()))
    }
    .boxed()
}

async fn pulse(question: &Question<'_>, node: &NodeView) -> Result<Pulse, ExplainError> {
    let read = pulse_at_first_sight(question.client, node, question.time.server()).await;
    read.map_err(|e| cannot_read(&format!("the Lease of node {}", node.node), e))
}
