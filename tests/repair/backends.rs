//! Nodes of Cluster API, and nodes without an owner.

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use salvor_testkit::{Site, on_both, wait};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::karpenter::{Launch, Manner};
use crate::objects::{Machine, Object};
use crate::stage::Stage;

const REMEDIATE: &str = "cluster.x-k8s.io/remediate-machine";

/// A simulated MachineSet: it replaces each Machine that is marked or gone. Dropping it stops it.
struct MachineSet(JoinHandle<()>);

impl MachineSet {
    fn start(client: Client, namespace: &str, pool: &str) -> Self {
        let machines: Api<Machine> = Api::namespaced(client.clone(), namespace);
        let nodes: Api<Node> = Api::all(client);
        let (namespace, pool) = (namespace.to_owned(), pool.to_owned());
        let config = watcher::Config::default().timeout(60);
        let mut news = watcher(machines.clone(), config).default_backoff().boxed();
        Self(tokio::spawn(async move {
            let mut number = 0;
            while let Some(event) = news.next().await {
                match event {
                    Ok(watcher::Event::Apply(machine)) if machine.annotations().contains_key(REMEDIATE) => {
                        let _ = machines.delete(&machine.name_any(), &DeleteParams::default()).await;
                    }
                    Ok(watcher::Event::Delete(machine)) => {
                        let node = machine.status["nodeRef"]["name"].as_str().unwrap_or_default();
                        let _ = nodes.delete(node, &DeleteParams::default()).await;
                        let name = format!("{pool}-again-{number}");
                        number += 1;
                        make(&nodes, &machines, &namespace, &pool, &name, json!({})).await;
                    }
                    Ok(_) | Err(_) => {}
                }
            }
        }))
    }
}

impl Drop for MachineSet {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Creates a Machine and its Node, as Cluster API does.
async fn make(
    nodes: &Api<Node>,
    machines: &Api<Machine>,
    namespace: &str,
    pool: &str,
    name: &str,
    annotations: Value,
) {
    let mut launch = Launch::new(pool, name, "zone-a");
    (launch.of_pool, launch.has_claim) = (false, false);
    launch.annotations = json!({
        "cluster.x-k8s.io/machine": name,
        "cluster.x-k8s.io/cluster-name": "test",
        "cluster.x-k8s.io/cluster-namespace": namespace,
        "cluster.x-k8s.io/owner-kind": "MachineSet",
        "cluster.x-k8s.io/owner-name": "set",
    });
    let spec = json!({
        "clusterName": "test",
        "bootstrap": {"dataSecretName": "secret"},
        "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "FakeMachine", "name": name},
        "providerID": launch.provider_id,
    });
    let metadata = json!({
        "name": name,
        "annotations": annotations,
        "labels": {"cluster.x-k8s.io/cluster-name": "test"},
        "ownerReferences": [{
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "name": "set",
            "uid": "00000000-0000-0000-0000-000000000001", "controller": true,
        }],
    });
    let machine: Machine = Object::new(serde_json::from_value(metadata).unwrap(), spec);
    machines.create(&PostParams::default(), &machine).await.unwrap();
    let status = Patch::Merge(json!({"status": {"phase": "Running", "nodeRef": {"name": name}}}));
    machines.patch_status(name, &PatchParams::default(), &status).await.unwrap();
    nodes.create(&PostParams::default(), &launch.node()).await.unwrap();
}

struct Machines {
    namespace: String,
    api: Api<Machine>,
    _set: MachineSet,
}

impl Machines {
    async fn on(stage: &Stage) -> Self {
        let namespace = stage.namespace().await;
        let api = Api::namespaced(stage.client.clone(), &namespace);
        let set = MachineSet::start(stage.client.clone(), &namespace, &stage.pool);
        Self { namespace, api, _set: set }
    }

    async fn make(&self, stage: &Stage, node: &str, annotations: Value) -> String {
        let name = stage.name(node);
        make(&stage.nodes, &self.api, &self.namespace, &stage.pool, &name, annotations).await;
        name
    }
}

/// Salvor marks the Machine, and its owner does the rest.
async fn a_machine_is_marked_for_its_owner(site: Site) {
    let stage = Stage::new(site, "capi").await;
    let machines = Machines::on(&stage).await;
    let sick = machines.make(&stage, "sick", json!({})).await;
    let well = machines.make(&stage, "well", json!({})).await;
    stage.policy("30m", json!({})).await;
    stage.sicken(&sick).await;
    stage.event("Machine", &sick, "NodeRepairStarted").await;
    wait::for_absence(&machines.api, &sick).await;
    wait::for_absence(&stage.nodes, &sick).await;
    let nodes = stage.has_nodes(2).await;
    assert!(nodes.iter().any(|node| node.name_any() == well));
    assert!(!machines.api.get(&well).await.unwrap().annotations().contains_key(REMEDIATE));
    stage.event("NodeRepairPolicy", &stage.pool, "NodeRepaired").await;
}

/// Cluster API's own vetoes, which MachineHealthChecks obey.
async fn a_machine_may_be_left_out(site: Site) {
    let stage = Stage::new(site, "capiveto").await;
    let machines = Machines::on(&stage).await;
    let skipped = machines.make(&stage, "skipped", json!({"cluster.x-k8s.io/skip-remediation": ""})).await;
    let paused = machines.make(&stage, "paused", json!({"cluster.x-k8s.io/paused": ""})).await;
    let sick = machines.make(&stage, "sick", json!({})).await;
    stage.policy("30m", json!({})).await;
    let marked = |machine: &Machine| {
        machine.name_any() != sick && (machine.annotations().contains_key(REMEDIATE) || machine.is_deleting())
    };
    let all = kube::api::ListParams::default();
    wait::never(&machines.api, &all, "a Machine that is left out is marked", marked, async {
        stage.sicken(&skipped).await;
        stage.sicken(&paused).await;
        stage.says(&skipped, "Vetoed").await;
        stage.says(&paused, "Vetoed").await;
        stage.sicken(&sick).await;
        wait::for_absence(&stage.nodes, &sick).await;
    })
    .await;
    let none =
        Patch::Merge(json!({"metadata": {"annotations": {"cluster.x-k8s.io/skip-remediation": null}}}));
    machines.api.patch(&skipped, &PatchParams::default(), &none).await.unwrap();
    wait::for_absence(&stage.nodes, &skipped).await;
}

/// Or the Machine is deleted, where no controller handles the mark.
async fn a_machine_may_be_deleted_instead(site: Site) {
    let stage = Stage::unattended(site, "capidelete", Manner::Ends).await;
    let machines = Machines::on(&stage).await;
    let sick = machines.make(&stage, "sick", json!({})).await;
    stage.policy("30m", json!({})).await;
    let _salvor = stage.attend("repair: {clusterAPI: Delete}\n", &[]);
    let marked = |machine: &Machine| machine.annotations().contains_key(REMEDIATE);
    let all = kube::api::ListParams::default();
    wait::never(&machines.api, &all, "a Machine is marked", marked, async {
        stage.sicken(&sick).await;
        wait::for_absence(&machines.api, &sick).await;
        wait::for_absence(&stage.nodes, &sick).await;
    })
    .await;
    stage.has_nodes(1).await;
}

/// A node without an owner is cordoned and blocked: nothing replaces its machine.
async fn a_node_that_nothing_owns_is_left(site: Site) {
    let stage = Stage::new(site, "plain").await;
    let mut names = Vec::new();
    for name in ["sick", "well"] {
        let mut one = stage.launch(name);
        (one.of_pool, one.has_claim) = (false, false);
        one.provider_id = String::new();
        names.push(stage.make(one).await);
    }
    stage.policy("30m", json!({})).await;
    stage.sicken(&names[0]).await;
    stage.is_blocked_by(&names[0], "MachineMayRun").await;
    stage.event("Node", &names[0], "NodeRepairStarted").await;
    for (name, is_cordoned) in [(&names[0], Some(true)), (&names[1], None)] {
        let node = stage.nodes.get(name).await.unwrap();
        assert!(node.metadata.deletion_timestamp.is_none());
        assert_eq!(node.spec.unwrap().unschedulable, is_cordoned, "{name}");
    }
}

/// A node of Karpenter whose NodeClaim is not visible is not deleted without Karpenter.
async fn a_node_of_karpenter_without_a_claim_is_left_to_it(site: Site) {
    let stage = Stage::new(site, "orphan").await;
    let mut orphan = stage.launch("orphan");
    orphan.has_claim = false;
    let orphan = stage.make(orphan).await;
    let canary = stage.make(stage.launch("canary")).await;
    stage.policy("30m", json!({})).await;
    stage.sicken(&orphan).await;
    stage.is_blocked_by(&orphan, "NoBackend").await;
    stage.sicken(&canary).await;
    stage.is_gone(&canary).await;
    assert!(stage.nodes.get(&orphan).await.unwrap().metadata.deletion_timestamp.is_none());
}

on_both!(
    a_machine_is_marked_for_its_owner,
    a_machine_may_be_left_out,
    a_machine_may_be_deleted_instead,
    a_node_that_nothing_owns_is_left,
    a_node_of_karpenter_without_a_claim_is_left_to_it,
);
