//! The verdict of the repair recovery for `salvor explain`.

use std::sync::Arc;

use futures::FutureExt;
use jiff::SignedDuration;
use kube::Client;
use salvor_api::{Controller, GoDuration};
use salvor_recovery::{
    brake::Outage,
    ids::NodeName,
    repair::{NodeView, Policy, Provider, diagnose, resolve},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    Repairs, metrics::RepairMetrics, news::News, recheck::on_node, store::owners::MACHINE_VERSIONS, wire,
};
use crate::{
    client::live,
    engine::recovery::Recovery,
    explain::{Answer, Answering, Detail, DetailLine, Question, cannot_read},
    recoveries::work::read_copies_or_why_not,
    watch_set::{
        feeds::{KindLost, OfKind},
        nodes::{NODES, NodeWire},
        watch::{Change, Moment},
    },
};

pub(super) fn node<'a>(question: &'a Question<'a>) -> Answering<'a> {
    async move {
        let asked: NodeWire =
            crate::client::wire::read(question.object).map_err(|error| question.cannot_read_it(error))?;
        let name = NodeName::from(asked.metadata.name.clone());
        let mut world = Repairs::new(&Arc::new(question.configuration.clone()), RepairMetrics::unread());
        // A node that would get its turn now is reported as such.
        world.plans = true;
        let read = read_world(&mut world, question).await;
        read.map_err(|error| cannot_read("nodes, repair policies, NodeClaims and Machines", error))?;
        let pods = read_pods(&mut world, question, &name).await;
        pods.map_err(|error| cannot_read("the pods of the node", error))?;
        let lease = read_lease(&mut world, question, &name, &asked).await;
        lease.map_err(|error| cannot_read("the Lease of the node", error))?;
        let now = question.time.server();
        let Some(decision) = world.judge_node(&name, now) else { return Ok(None) };
        let details = world.node(&name).map(|node| details(&world, node, now)).unwrap_or_default();
        let report = question.reviewed(Controller::Repair, decision, Outage::Holds).await;
        Ok(Some(Answer { report, details }))
    }
    .boxed()
}

/// Reads everything that the verdict on a node depends on.
async fn read_world(world: &mut Repairs, question: &Question<'_>) -> kube::Result<()> {
    let (client, now) = (question.client, question.time.server());
    let reader = world.reader.clone();
    let nodes =
        live::list(client, &NODES.path, "", |wire: NodeWire| Some(Box::new(reader.node(&wire)))).await?;
    world.on_change(News::Node(reset(nodes)), now);
    let whole = |wire: crate::client::wire::Whole| Some(wire.object);
    let policies = list(client, "/apis/salvor.dev/v1alpha1/noderepairpolicies", whole).await?;
    world.on_change(News::Policy(kind(policies, |object| wire::policy(&object))), now);
    let pools = list(client, "/apis/karpenter.sh/v1/nodepools", whole).await?;
    world.on_change(News::Pool(kind(pools, |object| wire::seen_pool(&object))), now);
    let claims = list(client, "/apis/karpenter.sh/v1/nodeclaims", |it| Some(reader.claim(it))).await?;
    world.on_change(News::Claim(kind(claims, Some)), now);
    for (number, version) in MACHINE_VERSIONS.into_iter().enumerate() {
        let path = format!("/apis/cluster.x-k8s.io/{version}/machines");
        let machines = list(client, &path, |it| Some(reader.machine(it, version))).await?;
        world.on_change(News::Machine(number, kind(machines, Some)), now);
    }
    Ok(())
}

/// Reads the pods that are left on a node that is being drained.
async fn read_pods(world: &mut Repairs, question: &Question<'_>, name: &NodeName) -> kube::Result<()> {
    if !world.drained().contains(name) {
        return Ok(());
    }
    let reader = world.reader.clone();
    let client = question.client;
    let mut pods = live::list(client, "/api/v1/pods", &on_node(name), |it| Some(reader.pod(it))).await?;
    for pod in pods.iter_mut().filter(|pod| pod.holds_a_drain() && reader.gate.must_read(&pod.work)) {
        pod.work.copies = read_copies_or_why_not(client, &pod.work).await;
    }
    world.pods_on_nodes.list(name, pods);
    world.generation += 1;
    Ok(())
}

/// Reads the Lease of a node whose machine is said to be off.
async fn read_lease(
    world: &mut Repairs,
    question: &Question<'_>,
    name: &NodeName,
    wire: &NodeWire,
) -> kube::Result<()> {
    let said = world.node(name).filter(|node| node.marks().off.is_some()).map(|node| node.node.clone());
    let Some(node) = said else { return Ok(()) };
    let read = live::node_lease(question.client, name).await?;
    world.heartbeats.note(&node, read.or(wire.ready_heartbeat()), question.time.server());
    world.generation += 1;
    Ok(())
}

/// All objects of a kind; `None` if it is not served.
async fn list<W: DeserializeOwned, T>(
    client: &Client,
    path: &str,
    keep: impl Fn(W) -> Option<T>,
) -> kube::Result<Option<Vec<T>>> {
    match live::list(client, path, "", keep).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        other => other.map(Some),
    }
}

fn reset<T>(all: Vec<T>) -> Change<T> {
    Change::Reset { all, revision: Moment::from(""), asked: 0 }
}

fn kind<T, U>(all: Option<Vec<T>>, read: impl Fn(T) -> Option<U>) -> OfKind<U> {
    match all {
        Some(all) => OfKind::Change(reset(all.into_iter().filter_map(read).collect())),
        None => OfKind::Lost(KindLost::NotServed),
    }
}

fn shown(duration: Option<SignedDuration>) -> Value {
    let text = duration
        .map(|it| GoDuration::from_nanos(i64::try_from(it.as_nanos()).unwrap_or(i64::MAX)).to_string());
    text.map_or(Value::Null, Value::String)
}

/// The policy, the three steps that lead to each toleration, and the limits.
fn details(world: &Repairs, node: &NodeView, now: jiff::Timestamp) -> Vec<Detail> {
    let Some(key) = world.assigned.get(&node.node.name) else { return Vec::new() };
    let Some(policy) = world.policy(key) else { return Vec::new() };
    let survey = world.survey(key, policy, now);
    let provider = Provider::of(world.settings.provider, &node.provider_id);
    let member = world.member(node);
    let diagnosis = diagnose(node, member.backend.owner(), policy, &world.settings, now);
    let line = |text: String| DetailLine { text, until: None };
    let mut lines = vec![
        line(format!("policy {}, provider {provider}, {}", policy.name(), policy.termination)),
        line(format!("repaired by {}", member.backend)),
    ];
    let mut conditions = Vec::new();
    for condition in &node.conditions {
        let Some(found) = resolve(condition, policy, provider) else { continue };
        let key = format!("{}={}", condition.kind, condition.status);
        let since = diagnosis.memory.sick.get(&key).map(|clock| clock.since);
        let deadline = since.zip(found.toleration).map(|(since, (toleration, _))| since + toleration);
        let from = found.toleration.map(|(_, from)| from.word());
        let step = |it: Option<SignedDuration>| shown(it).as_str().map_or("-".to_owned(), str::to_owned);
        lines.push(DetailLine {
            text: format!(
                "{key}: policy {}, default {}, provider {}: tolerated for {} ({})",
                step(found.by_policy),
                step(found.by_default),
                step(found.by_provider),
                step(found.toleration.map(|(toleration, _)| toleration)),
                from.unwrap_or("nobody says"),
            ),
            until: deadline,
        });
        conditions.push(json!({
            "type": &*condition.kind,
            "status": condition.status.as_str(),
            "reason": &*condition.reason,
            "lastTransitionTime": condition.since,
            "since": since,
            "policy": shown(found.by_policy),
            "default": shown(found.by_default),
            "provider": shown(found.by_provider),
            "toleration": shown(found.toleration.map(|(toleration, _)| toleration)),
            "from": from,
            "deadline": deadline,
            "actions": found.ladder.iter().map(|rung| rung.action).collect::<Vec<_>>(),
        }));
    }
    lines.push(line(format!(
        "{} of {} nodes are past their toleration, {} may be; {} under repair, {} may be",
        survey.unhealthy, survey.base, survey.limit, survey.used, survey.allowed
    )));
    let value = json!({
        "policy": policy.name(),
        "provider": provider.to_string(),
        "backend": member.backend.to_string(),
        "termination": policy.termination.to_string(),
        "conditions": conditions,
        "startupTimeout": shown(policy.startup_timeout),
        "unhealthy": {"count": survey.unhealthy, "limit": survey.limit, "nodes": survey.base},
        "budget": {"allowed": survey.allowed, "used": survey.used},
        "repairs": repairs(policy),
    });
    vec![Detail { key: "repair", value, title: "Repair".to_owned(), lines }]
}

fn repairs(policy: &Policy) -> Vec<&str> {
    policy.status.repairs.iter().map(|repair| repair.node.as_str()).collect()
}
