//! Builds the cluster of a scenario.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use kube::Client;
use salvor_api::crds;
use salvor_cluster::{LocalCluster, StartError};
use salvor_nodes::{Fleet, FleetError, NodePool, NodeProfile};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{
    Condition, Machines, Node, Pool, RACK, Scenario,
    objects::{DEFINITIONS, NODES, REPAIR_POLICIES, post},
};

/// The resource name of an accelerator, and the key of the taint of its nodes.
pub const ACCELERATOR: &str = "nvidia.com/gpu";
/// The condition by which an agent on a node reports whether its accelerator works.
pub(super) const ACCELERATOR_WORKS: &str = "AcceleratedHardwareReady";

/// A kubelet renews its Lease this often.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// The number of slots within that time at which nodes register.
const STEPS: u32 = 100;

/// The condition of a node whose accelerator has failed.
pub fn accelerator_condition() -> Condition {
    Condition { kind: ACCELERATOR_WORKS.into(), status: "False".into(), reason: "NvidiaXID79Error".into() }
}

/// Adds all nodes at the same time.
pub async fn raise(cluster: &mut LocalCluster, scenario: &Scenario) -> Result<(), StartError> {
    cluster.fleet().add(profiles(scenario)).await?;
    add_pools(cluster, scenario, Duration::ZERO).await
}

/// Adds the nodes at times within one heartbeat interval, drawn by the seed. Their heartbeats are spread as in a
/// cluster whose machines were started at different times: the moment at which a lost node is noticed depends on them.
pub async fn raise_spread(
    cluster: &mut LocalCluster,
    scenario: &Scenario,
    seed: u64,
) -> Result<(), StartError> {
    join_spread(cluster.fleet(), scenario, seed).await?;
    add_pools(cluster, scenario, HEARTBEAT).await
}

/// Like [`raise_spread`], for the nodes of pools without machines, in any cluster.
pub async fn join_spread(fleet: &Fleet, scenario: &Scenario, seed: u64) -> Result<(), FleetError> {
    let mut rng = Rng::with_seed(seed);
    let mut groups: BTreeMap<u32, Vec<NodeProfile>> = BTreeMap::new();
    for profile in profiles(scenario) {
        groups.entry(rng.u32(..STEPS)).or_default().push(profile);
    }
    let origin = Instant::now();
    for (step, group) in groups {
        sleep_until(origin + HEARTBEAT * step / STEPS).await;
        fleet.add(group).await?;
    }
    Ok(())
}

/// A time within one heartbeat interval, drawn by the seed, so that failures do not happen in step with periodic work
/// of the cluster.
pub fn moment(seed: u64) -> Duration {
    HEARTBEAT * Rng::with_seed(!seed).u32(..1000) / 1000
}

async fn add_pools(
    cluster: &mut LocalCluster,
    scenario: &Scenario,
    spread: Duration,
) -> Result<(), StartError> {
    for pool in &scenario.pools {
        let Some(machines) = pool.machines else { continue };
        let mut own = scenario.nodes.iter().filter(|node| node.pool == pool.name);
        let Some(first) = own.next() else { continue };
        let nodes = u32::try_from(own.count()).unwrap_or(u32::MAX).saturating_add(1);
        let (name, template) = (pool.name.clone(), profile(first, pool));
        let Machines { shutdown, boot } = machines;
        let apart = spread / nodes;
        cluster.add_pool(NodePool { name, nodes, template, shutdown, boot, apart }).await?;
    }
    Ok(())
}

/// The nodes of pools without machines.
fn profiles(scenario: &Scenario) -> impl Iterator<Item = NodeProfile> {
    scenario.nodes.iter().filter_map(|node| {
        let pool = scenario.pool(&node.pool).filter(|pool| pool.machines.is_none())?;
        Some(profile(node, pool))
    })
}

/// Creates the CRDs that Salvor needs and the NodeRepairPolicies; without Salvor there are no policies.
///
/// # Errors
/// If the cluster refuses a policy.
pub async fn introduce(
    client: &Client,
    repair_policies: Option<&BTreeMap<String, Value>>,
) -> kube::Result<()> {
    define(client, crds::APPWRAPPER).await?;
    if let Some(policies) = repair_policies {
        define(client, crds::NODE_REPAIR_POLICY).await?;
        for (name, spec) in policies {
            let policy = json!({
                "apiVersion": "salvor.dev/v1alpha1", "kind": "NodeRepairPolicy",
                "metadata": { "name": name }, "spec": spec,
            });
            post(client, REPAIR_POLICIES, &policy).await?;
        }
    }
    Ok(())
}

fn profile(node: &Node, pool: &Pool) -> NodeProfile {
    let mut profile = NodeProfile::named(&node.name).in_zone(&node.zone);
    for (key, value) in &pool.labels {
        profile = profile.labelled(key, value);
    }
    if let Some(rack) = &node.rack {
        profile = profile.labelled(RACK, rack);
    }
    if pool.spot {
        profile = profile.labelled("karpenter.sh/capacity-type", "spot");
    }
    for (resource, amount) in &pool.capacity {
        profile = profile.with_capacity(resource, amount);
    }
    for taint in &pool.taints {
        let super::Taint { key, value, effect } = taint.clone();
        profile = profile.tainted(Taint { key, value, effect, ..Taint::default() });
    }
    profile
}

async fn define(client: &Client, definition: &str) -> kube::Result<()> {
    let definition: Value =
        serde_saphyr::from_str(definition).map_err(|error| kube::Error::Service(error.to_string().into()))?;
    post(client, DEFINITIONS, &definition).await
}

/// Writes a condition on a node, as an agent on it does: unhealthy if `is_sick`, else healthy.
///
/// # Errors
/// If there is no such node.
pub async fn tell_condition(
    client: &Client,
    node: &str,
    condition: &Condition,
    is_sick: bool,
    now: Timestamp,
) -> kube::Result<()> {
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let is_accelerator = condition.kind == ACCELERATOR_WORKS;
    let (status, reason, message) = match (is_sick, is_accelerator) {
        (true, true) => {
            (condition.status.as_str(), condition.reason.as_str(), "the accelerator has fallen off the bus")
        }
        (true, false) => (condition.status.as_str(), condition.reason.as_str(), "the node is sick"),
        (false, true) => ("True", "AcceleratorIsReady", "the accelerator works"),
        (false, false) if condition.status == "True" => ("False", "Well", "the node is well"),
        (false, false) => ("True", "Well", "the node is well"),
    };
    let condition = json!({ "type": condition.kind, "status": status, "reason": reason, "message": message,
        "lastHeartbeatTime": now, "lastTransitionTime": now });
    let body = json!({ "status": { "conditions": [condition] } }).to_string().into_bytes();
    let request = Request::patch(format!("{NODES}/{node}/status"))
        .header("content-type", "application/strategic-merge-patch+json");
    client.request_text(request.body(body).map_err(kube::Error::HttpError)?).await.map(|_| ())
}
