//! The demo's cluster with all that runs in it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use kube::Client;
use salvor_api::config::{Configuration, FailureRecoveryRule, TaintNodeOutOfService};
use salvor_api::names::taints;
use salvor_api::{ControllerList, Gate, GoDuration, LabelSelector};
use salvor_cluster::{LocalCluster, NodeFault, Options, StartError};
use salvor_embedded::{LoopOptions, Settings};
use salvor_nodes::{FleetError, GroundTruth, NodePool, NodeProfile};
use salvor_operator::{Notices, Operator, Surroundings};
use salvor_page::{Fault, Page, Wish};
use salvor_recovery::appwrapper::AppWrapperPolicy;
use salvor_why::Judge;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::DemoError;
use super::pace::SharedClock;
use super::scenario::{Deed, GPU_POOL, Scenario};
use super::workloads::{self, ACCELERATOR, Wrapping};

/// The label by which the out-of-service rule selects nodes.
const NODE_LABEL: [&str; 2] = ["pool", "demo"];
/// An unreachable node is tainted out-of-service after this time, so that its volumes can be attached elsewhere.
const OUT_OF_SERVICE_AFTER: GoDuration = GoDuration::from_secs(150);

/// A machine with an accelerator ends, and another one starts, in these times: short, so that the story does not take long.
const MACHINE_ENDS_IN: Duration = Duration::from_secs(10);
const MACHINE_STARTS_IN: Duration = Duration::from_secs(25);

/// A running demo.
pub(super) struct Stage {
    pub(super) cluster: LocalCluster,
    pub(super) page: Page,
    operator: Operator,
    audience: JoinSet<()>,
}

impl Stage {
    /// Starts the cluster with its nodes and its work, and the operator; with all recoveries, or only with what any
    /// cluster has: a controller for Jobs. The page tells the time by the given clock, or by tokio's.
    pub(super) async fn set(
        scenario: &Scenario,
        start: Timestamp,
        clock: Option<SharedClock>,
        with_salvor: bool,
    ) -> Result<Self, DemoError> {
        let options = Options {
            api: Settings { seed: 1, start },
            loops: LoopOptions { seed: 1, ..LoopOptions::default() },
            ..Options::default()
        };
        let mut cluster = LocalCluster::start(options).await?;
        let page = match clock {
            Some(shown) => Page::new(move || shown.now()),
            None => {
                let api = cluster.api().clone();
                Page::new(move || api.now())
            }
        };
        let nodes = scenario.node_names().map(|(zone, node)| {
            let [key, value] = NODE_LABEL;
            NodeProfile::named(node).in_zone(&zone).labelled(key, value)
        });
        cluster.fleet().add(nodes).await.map_err(StartError::from)?;
        if scenario.gpu_nodes > 0 {
            cluster.add_pool(gpu_pool(scenario)).await?;
        }
        workloads::define_app_wrappers(&cluster.client()).await?;
        if with_salvor {
            workloads::define_repair_policies(&cluster.client(), scenario.gpu_nodes > 0).await?;
        }
        let configuration = configuration(with_salvor);
        let (notices, heard) = Notices::channel();
        let surroundings =
            Surroundings::in_process(cluster.api().clone(), cluster.api().now(), "salvor-demo");
        let operator = Operator::start(surroundings.telling(notices), &configuration);
        let mut audience = JoinSet::new();
        let (fed, told, client) = (page.clone(), page.clone(), cluster.client());
        let policy = AppWrapperPolicy::new(&configuration);
        audience.spawn(async move { fed.follow(client, policy).await });
        audience.spawn(async move { told.listen(heard).await });
        let wrapping = if with_salvor { Wrapping::Salvor } else { Wrapping::Nobody };
        workloads::create(&cluster.client(), &scenario.work, wrapping).await?;
        Ok(Self { cluster, page, operator, audience })
    }

    pub(super) fn client(&self) -> Client {
        self.cluster.client()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.cluster.api().now()
    }

    pub(super) fn truth(&self) -> &GroundTruth {
        self.cluster.fleet().truth()
    }

    /// Looks for everything that does not come back, for the page, for ever.
    pub(super) async fn look_for_missing(&self, with_salvor: bool, every: Duration) {
        let judge = Judge { file: with_salvor.then(|| configuration(true)) };
        self.page.look_for_missing(self.client(), judge, every).await;
    }

    /// Makes nodes suffer.
    pub(super) async fn strike(&self, deed: Deed, nodes: &[String]) {
        for node in nodes {
            // Names were checked against the list that the nodes were made from. A node that was replaced since is gone.
            let _ = self.strike_one(deed, node).await;
        }
    }

    async fn strike_one(&self, deed: Deed, node: &str) -> Result<(), FleetError> {
        // A node that is gone has nobody who could tell.
        let tell_accelerator = async |works: bool| {
            let _ = workloads::tell_accelerator(&self.client(), node, works, self.now()).await;
        };
        match deed {
            Deed::FailAccelerator => tell_accelerator(false).await,
            Deed::Fault(fault) => {
                fault.strike(self.cluster.fleet(), node).await?;
                let has_accelerator = node.strip_prefix(GPU_POOL).is_some_and(|rest| rest.starts_with('-'));
                if fault == NodeFault::Heal && has_accelerator {
                    tell_accelerator(true).await;
                }
            }
        }
        Ok(())
    }

    /// Grants what people at the page wish, for ever.
    pub(super) async fn grant(&self, mut wishes: mpsc::Receiver<Wish>) {
        while let Some(Wish { node, fault, done }) = wishes.recv().await {
            let (fault, words) = match fault {
                Fault::Crash => (NodeFault::Crash, "switched off"),
                Fault::Partition => (NodeFault::Partition, "cut off"),
                Fault::Heal => (NodeFault::Heal, "healed"),
            };
            let outcome = self.strike_one(Deed::Fault(fault), &node).await;
            if outcome.is_ok() {
                self.page.tell(&format!("You {words} node {node}"));
            }
            // Whoever wished may have gone.
            let _ = done.send(outcome.map_err(|error| error.to_string()));
        }
        std::future::pending::<()>().await;
    }

    /// Ends all that runs.
    pub(super) async fn strike_set(self) {
        self.operator.stop().await;
        drop(self.audience);
        self.cluster.stop().await;
    }
}

/// Nodes that only work with an accelerator is put on. A simulated Karpenter keeps them.
fn gpu_pool(scenario: &Scenario) -> NodePool {
    let taint =
        Taint { key: ACCELERATOR.to_owned(), effect: taints::NO_SCHEDULE.to_owned(), ..Taint::default() };
    let template = NodeProfile::named(GPU_POOL).in_zone(&scenario.gpu_zone());
    NodePool {
        name: GPU_POOL.to_owned(),
        nodes: scenario.gpu_nodes,
        template: template.with_capacity(ACCELERATOR, "1").tainted(taint),
        shutdown: MACHINE_ENDS_IN,
        boot: MACHINE_STARTS_IN,
    }
}

fn configuration(with_salvor: bool) -> Configuration {
    let mut configuration = Configuration::default();
    configuration.leader_election.enabled = false;
    configuration.feature_gates.set(Gate::FailureRecoveryPolicy, true);
    configuration.job.unmanaged_jobs = true;
    let nodes = FailureRecoveryRule::TaintNodeOutOfService(TaintNodeOutOfService {
        node_selector: LabelSelector {
            match_labels: [NODE_LABEL.map(str::to_owned).into()].into(),
            ..LabelSelector::default()
        },
        unreachable_node_timeout: OUT_OF_SERVICE_AFTER,
    });
    configuration.failure_recovery_policy.rules = vec![nodes];
    // All requests in this cluster are the demo's own, so no webhook has to ask what a user may do.
    configuration.webhooks.enabled = false;
    configuration.appwrapper.wrapped_kinds_without_webhooks = vec!["Job.batch".to_owned()];
    configuration.appwrapper.reset_when_node_unreachable = true;
    let controllers: &[&str] = if with_salvor { &["*", "appwrapper", "repair"] } else { &["job"] };
    configuration.controllers = ControllerList::new(controllers.iter().copied());
    configuration
}
