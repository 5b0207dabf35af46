//! A cluster with NodeClaims, in which the test plays Karpenter and every kubelet.

use std::time::Duration;

use kube::{
    Api,
    api::{DynamicObject, PostParams},
};
use salvor_api::config::Configuration;
use salvor_simulate::{Karpenter, Machine, define, objects};
use serde_json::{Value, json};

use super::audit::{Audit, audit, is_sick};
use crate::stage::{Stage, configuration};
use crate::troubles::Salvor;

/// The interval at which the simulated world reconciles.
pub(super) const BEAT: Duration = Duration::from_secs(5);
pub(super) const TOLERATION: Duration = Duration::from_secs(300);
/// Every story is over after this many beats.
const MOST_BEATS: usize = 600;
/// An end must last for this many beats.
const QUIET: usize = 20;

/// Renewals of a Lease are most of the events in a run, so they are rare.
pub(super) fn settings() -> Configuration {
    with_settings("")
}

/// Like `settings`, with these fields of the section `repair`.
pub(super) fn with_settings(fields: &str) -> Configuration {
    configuration(&format!(
        "controllers: [repair]
repair: {{{fields}}}
leaderElection: {{leaseDuration: 60s, renewDeadline: 40s, retryPeriod: 20s}}"
    ))
}

/// What defines the repair of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// A NodeRepairPolicy for the condition `BadNode`.
    Policy,
    /// The block `spec.repair` of their NodePool, for `Ready`.
    Pool,
}

impl By {
    /// The condition that makes nodes unhealthy.
    pub(super) fn condition(self) -> &'static str {
        match self {
            Self::Policy => "BadNode",
            Self::Pool => "Ready",
        }
    }
}

pub(super) struct World {
    pub(super) stage: Stage,
    karpenter: Karpenter,
    pub(super) policies: Api<DynamicObject>,
    pub(super) by: By,
    budget: usize,
    /// True if Karpenter does nothing.
    pub(super) karpenter_is_down: bool,
    /// True if replacements are unhealthy from the beginning.
    pub(super) new_ones_ail: bool,
    /// The revision at which Karpenter had nothing to do.
    idle: Option<usize>,
}

impl World {
    /// This many nodes, and a policy with this budget.
    pub(super) async fn new(nodes: usize, budget: usize) -> Self {
        Self::with(By::Policy, nodes, budget).await
    }

    /// Like `new`, by a policy, or by a NodePool, whose budget is the default.
    pub(super) async fn with(by: By, nodes: usize, budget: usize) -> Self {
        let stage = Stage::new(1).await;
        let definition = salvor_api::crds::NODE_REPAIR_POLICY;
        define(&stage.client, "noderepairpolicies.salvor.dev", definition).await.unwrap();
        let policies =
            objects(&stage.client, "salvor.dev", "v1alpha1", "NodeRepairPolicy", "noderepairpolicies");
        let karpenter = Karpenter::install(&stage.cluster, "kwok").await.unwrap();
        let mut world = Self {
            karpenter,
            policies,
            stage,
            by,
            budget,
            karpenter_is_down: false,
            new_ones_ail: false,
            idle: None,
        };
        for _ in 0..nodes {
            world.launch().await;
        }
        let policy = json!({
            "apiVersion": "salvor.dev/v1alpha1", "kind": "NodeRepairPolicy", "metadata": {"name": "gpu"},
            "spec": {
                "nodeSelector": {"matchLabels": {"karpenter.sh/nodepool": "gpu"}},
                "policies": [{"conditionType": "BadNode", "conditionStatus": "False", "toleration": "5m"}],
                "unhealthyLimit": "100%", "budgets": [{"nodes": budget}],
            },
        });
        let mut pool = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "gpu"}, "spec": {},
        });
        match by {
            By::Policy => {
                let policy = serde_json::from_value(policy).unwrap();
                world.policies.create(&PostParams::default(), &policy).await.unwrap();
            }
            By::Pool => {
                pool["spec"]["repair"] =
                    json!({"policies": [{"conditionType": "Ready", "toleration": "5m"}]});
            }
        }
        world
            .karpenter
            .pools()
            .create(&PostParams::default(), &serde_json::from_value(pool).unwrap())
            .await
            .unwrap();
        world
    }

    /// Karpenter launches a machine, and its kubelet registers.
    async fn launch(&mut self) -> String {
        let machine = Machine { pool: "gpu".to_owned(), zone: String::new() };
        let name = self.karpenter.order(machine).await.unwrap();
        self.karpenter.register(&name).await.unwrap();
        self.karpenter.initialize(&name).await.unwrap();
        name
    }

    /// Sets a condition of a node, if the node exists.
    pub(super) async fn condition(&self, node: &str, kind: &str, status: &str) {
        let _ = self.karpenter.condition(node, kind, status).await;
    }

    pub(super) async fn sick(&self, node: &str) {
        self.condition(node, self.by.condition(), "False").await;
    }

    pub(super) async fn well(&self, node: &str) {
        self.condition(node, self.by.condition(), "True").await;
    }

    /// Karpenter reconciles once.
    pub(super) async fn beat(&mut self) {
        self.stage.settle().await;
        let revision = self.stage.revision();
        if self.karpenter_is_down || self.idle == Some(revision) {
            return;
        }
        for _ in self.karpenter.beat().await.unwrap().gone {
            let name = self.launch().await;
            if self.new_ones_ail {
                self.sick(&name).await;
            }
        }
        let is_idle = self.karpenter.is_idle() && self.stage.revision() == revision;
        self.idle = is_idle.then_some(revision);
    }

    /// The policy; for a NodePool, what would be its status.
    pub(super) fn policy(&self) -> Value {
        match self.by {
            By::Policy => Value::clone(&self.stage.objects("noderepairpolicies")["gpu"]),
            By::Pool => {
                let pool = &self.stage.objects("nodepools")["gpu"];
                let kept = pool["metadata"]["annotations"]["repair.salvor.dev/repairs"].as_str();
                let status: Value = kept.map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
                json!({ "status": status })
            }
        }
    }

    pub(super) fn sick_nodes(&self) -> usize {
        let nodes = self.stage.objects("nodes");
        nodes.values().filter(|node| is_sick(node, self.by.condition())).count()
    }

    /// Whether no node is unhealthy and no repair is in progress.
    pub(super) fn is_over(&self) -> bool {
        let status = self.policy()["status"].clone();
        self.sick_nodes() == 0 && status["repairs"].as_array().is_none_or(Vec::is_empty)
    }

    /// Runs the world until no node is unhealthy, and a while longer. Returns whether it got there.
    pub(super) async fn until_over(&mut self, salvor: &mut Salvor<'_>) -> bool {
        let mut quiet = 0;
        for _ in 0..MOST_BEATS {
            salvor.live(BEAT).await;
            self.beat().await;
            quiet = if self.is_over() { quiet + 1 } else { 0 };
            if quiet > QUIET {
                return true;
            }
        }
        false
    }

    /// All problems in its history.
    pub(super) fn problems(&self) -> Vec<String> {
        self.audit().wrong
    }

    pub(super) fn audit(&self) -> Audit {
        audit(&self.stage.happenings(), self.by, self.budget, TOLERATION)
    }
}
