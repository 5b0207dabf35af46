//! The demo's cluster and everything that runs in it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use salvor_api::ControllerList;
use salvor_api::config::Configuration;
use salvor_apiserver::Settings;
use salvor_cluster::{LocalCluster, Options};
use salvor_controllers::LoopOptions;
use salvor_nodes::{Fault as MachineFault, FleetError, GroundTruth};
use salvor_operator::{Notices, Operator, Surroundings};
use salvor_page::{Fault as WishedFault, Page, Wish};
use salvor_recovery::appwrapper::AppWrapperPolicy;
use salvor_simulate::scenario::{
    self, ACCELERATOR, Condition, Deed, Fault, Scenario, Wrapping, accelerator_condition,
};
use salvor_why::Judge;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::error::DemoError;
use super::pace::SharedClock;

pub(super) struct Stage {
    pub(super) cluster: LocalCluster,
    pub(super) page: Page,
    operator: Operator,
    configuration: Configuration,
    /// By node: the health conditions by type.
    conditions: Mutex<BTreeMap<String, BTreeMap<String, Condition>>>,
    audience: JoinSet<()>,
}

impl Stage {
    /// Starts the cluster with its nodes, its workloads and the operator. Without Salvor, the operator only runs the
    /// Job controller, which any cluster has. The page uses the given clock, or tokio's.
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
        let with_salvor = with_salvor && scenario.salvor.enabled;
        let policies = with_salvor.then_some(&scenario.salvor.repair_policies);
        scenario::raise(&mut cluster, scenario).await?;
        scenario::introduce(&cluster.client(), policies).await?;
        let configuration = configuration(scenario, with_salvor);
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
        scenario::create(&cluster.client(), scenario, wrapping).await?;
        let has_accelerator =
            |name: &str| scenario.pool(name).is_some_and(|pool| pool.capacity.contains_key(ACCELERATOR));
        let nodes = scenario.nodes.iter().filter(|node| has_accelerator(&node.pool));
        let works = accelerator_condition();
        let conditions =
            nodes.map(|node| (node.name.clone(), BTreeMap::from([(works.kind.clone(), works.clone())])));
        let conditions = Mutex::new(conditions.collect());
        Ok(Self { cluster, page, operator, configuration, conditions, audience })
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

    /// Diagnoses the cluster for the page, forever.
    pub(super) async fn look_for_missing(&self, with_salvor: bool, every: Duration) {
        let judge = Judge { file: with_salvor.then(|| self.configuration.clone()) };
        self.page.look_for_missing(self.client(), judge, every).await;
    }

    /// Injects faults into nodes.
    pub(super) async fn strike(&self, deed: &Deed, nodes: &[String]) {
        for node in nodes {
            // The names were checked against the list of created nodes. A node that was replaced since then is gone.
            let _ = self.strike_one(deed, node).await;
        }
    }

    async fn strike_one(&self, deed: &Deed, node: &str) -> Result<(), FleetError> {
        let fleet = self.cluster.fleet();
        let fault = match deed {
            Deed::Heal => {
                fleet.heal(node).await?;
                let conditions = self.conditions(|all| all.get(node).cloned()).unwrap_or_default();
                for condition in conditions.values() {
                    // A node that is gone has no kubelet to report the condition.
                    let _ =
                        scenario::tell_condition(&self.client(), node, condition, false, self.now()).await;
                }
                return Ok(());
            }
            Deed::Fault(Fault::Reboot) => return fleet.reboot(node).await,
            Deed::Fault(Fault::Sick(condition)) => {
                self.conditions(|all| {
                    let of_node = all.entry(node.to_owned()).or_default();
                    of_node.insert(condition.kind.clone(), condition.clone());
                });
                let _ = scenario::tell_condition(&self.client(), node, condition, true, self.now()).await;
                return Ok(());
            }
            Deed::Fault(Fault::Crash) => MachineFault::Crash,
            Deed::Fault(Fault::Partition) => MachineFault::Partition,
            Deed::Fault(Fault::KubeletStop) => MachineFault::KubeletStop,
            Deed::Fault(Fault::Slow(delay)) => MachineFault::Slow(*delay),
            Deed::Fault(Fault::Flapping { down, up }) => MachineFault::Flap { down: *down, up: *up },
        };
        fleet.inject(node, fault).await
    }

    fn conditions<T>(&self, with: impl FnOnce(&mut BTreeMap<String, BTreeMap<String, Condition>>) -> T) -> T {
        with(&mut self.conditions.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Serves the clicks on the page, forever.
    pub(super) async fn grant(&self, mut wishes: mpsc::Receiver<Wish>) {
        while let Some(Wish { node, fault, done }) = wishes.recv().await {
            let (deed, words) = match fault {
                WishedFault::Crash => (Deed::Fault(Fault::Crash), "switched off"),
                WishedFault::Partition => (Deed::Fault(Fault::Partition), "cut off"),
                WishedFault::Heal => (Deed::Heal, "healed"),
            };
            let outcome = self.strike_one(&deed, &node).await;
            if outcome.is_ok() {
                self.page.tell(&format!("You {words} node {node}"));
            }
            // The viewer may have left.
            let _ = done.send(outcome.map_err(|error| error.to_string()));
        }
        std::future::pending::<()>().await;
    }

    /// Stops everything.
    pub(super) async fn strike_set(self) {
        self.operator.stop().await;
        drop(self.audience);
        self.cluster.stop().await;
    }
}

/// The configuration of the scenario. Without Salvor, only the Job controller, which any cluster has.
fn configuration(scenario: &Scenario, with_salvor: bool) -> Configuration {
    let mut configuration = scenario.salvor.configuration.clone();
    if !with_salvor {
        configuration.controllers = ControllerList::new(["job"]);
    }
    configuration
}
