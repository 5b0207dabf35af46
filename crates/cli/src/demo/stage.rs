//! The demo's cluster with all that runs in it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use salvor_api::ControllerList;
use salvor_api::config::Configuration;
use salvor_cluster::{LocalCluster, Options};
use salvor_embedded::{LoopOptions, Settings};
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

use super::DemoError;
use super::pace::SharedClock;

/// A running demo.
pub(super) struct Stage {
    pub(super) cluster: LocalCluster,
    pub(super) page: Page,
    operator: Operator,
    configuration: Configuration,
    /// By node: the conditions, by their types, that say whether it is well.
    conditions: Mutex<BTreeMap<String, BTreeMap<String, Condition>>>,
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

    /// Looks for everything that does not come back, for the page, for ever.
    pub(super) async fn look_for_missing(&self, with_salvor: bool, every: Duration) {
        let judge = Judge { file: with_salvor.then(|| self.configuration.clone()) };
        self.page.look_for_missing(self.client(), judge, every).await;
    }

    /// Makes nodes suffer.
    pub(super) async fn strike(&self, deed: &Deed, nodes: &[String]) {
        for node in nodes {
            // Names were checked against the list that the nodes were made from. A node that was replaced since is gone.
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
                    // A node that is gone has nobody who could tell.
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

    /// Grants what people at the page wish, for ever.
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

/// The configuration of the scenario; without Salvor, only that of what any cluster has: a controller for Jobs.
fn configuration(scenario: &Scenario, with_salvor: bool) -> Configuration {
    let mut configuration = scenario.salvor.configuration.clone();
    if !with_salvor {
        configuration.controllers = ControllerList::new(["job"]);
    }
    configuration
}
