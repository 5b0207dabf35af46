//! The cluster of a plan, and what happens in it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::PostParams};
use salvor_api::config::Configuration;
use salvor_apiserver::{Backup, Effect, Fault};
use salvor_cluster::{LocalCluster, StartError};
use salvor_nodes::{Fault as MachineFault, NodePool, NodeProfile};
use serde_json::json;

use super::{
    check::{Checker, Memory},
    deed::{Call, Deed, NodeFault},
    hands::Hands,
    objects,
    plan::Plan,
    recorder::Ledger,
    replica::{Replica, Site, locked},
};
use crate::{History, define};

/// Longer than any run.
const NEVER: Duration = Duration::from_secs(86_400);
/// How long a flapping machine is partitioned, and how long it is reachable.
const FLAP: (Duration, Duration) = (Duration::from_secs(70), Duration::from_secs(45));

#[derive(Debug, thiserror::Error)]
pub(super) enum WorldError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Nodes(#[from] salvor_nodes::FleetError),
    #[error(transparent)]
    Configuration(#[from] salvor_api::config::ConfigError),
}

pub(super) struct World {
    pub(super) cluster: LocalCluster,
    pub(super) site: Site,
    pub(super) hands: Hands,
    replicas: Vec<Replica>,
    plan: Plan,
    wet: Configuration,
    dry: Configuration,
    checker: Arc<Mutex<Checker>>,
    /// The state that the API goes back to, and what the checker knew then.
    backup: Mutex<Option<(Backup, Memory)>>,
}

impl World {
    /// Builds the cluster of a plan and starts everything in it; `checker` sees every change.
    pub(super) async fn new(
        plan: &Plan,
        history: Option<History>,
        checker: impl FnOnce(&Site, Ledger) -> Arc<Mutex<Checker>>,
    ) -> Result<Self, WorldError> {
        let mut cluster = LocalCluster::start(crate::cluster(plan.seed)).await?;
        let ledger = Ledger::default();
        let site = Site::new(cluster.api().clone(), ledger.clone());
        let checker = checker(&site, ledger);
        let told = checker.clone();
        cluster.api().observe(move |change| {
            history.iter().for_each(|history| history.record(change));
            locked(&told).see(change);
        });
        let client = cluster.client();
        let home: Namespace = serde_json::from_value(json!({"metadata": {"name": objects::HOME}}))
            .map_err(kube::Error::SerdeError)?;
        Api::all(client.clone()).create(&PostParams::default(), &home).await?;
        let plain = (1..=plan.nodes).map(|number| {
            let zone = format!("zone-{}", number % 2 + 1);
            NodeProfile::named(format!("node-{number}")).in_zone(&zone).labelled("pool", "batch")
        });
        cluster.fleet().add(plain).await?;
        let hands = Hands::new(&client, cluster.api());
        if plan.settings.repair {
            define(&client, "noderepairpolicies.salvor.dev", salvor_api::crds::NODE_REPAIR_POLICY).await?;
        }
        if let Some(policy) = plan.settings.unowned {
            hands.create_unowned_policy(plan, policy).await?;
        }
        if plan.pool > 0 {
            let template = NodeProfile::named("gpu").in_zone("zone-1");
            // Long enough that repairs would overlap if nothing limited them.
            let (shutdown, boot) = (Duration::from_secs(90), Duration::from_secs(40));
            let apart = Duration::ZERO;
            let nodes = u32::try_from(plan.pool).unwrap_or(u32::MAX);
            cluster.add_pool(NodePool { name: "gpu".into(), nodes, template, shutdown, boot, apart }).await?;
            hands.create_policy(plan).await?;
        }
        if plan.workloads.apps > 0 {
            define(&client, "appwrappers.workload.codeflare.dev", salvor_api::crds::APPWRAPPER).await?;
        }
        let (wet, dry) = (objects::configuration(plan, false)?, objects::configuration(plan, true)?);
        let replicas = (0..plan.replicas)
            .map(|number| Replica::start(site.clone(), format!("salvor-{number}"), wet.clone()))
            .collect();
        hands.create_workloads(plan).await?;
        let (plan, backup) = (plan.clone(), Mutex::default());
        Ok(Self { cluster, site, hands, replicas, plan, wet, dry, checker, backup })
    }

    pub(super) async fn begin(&self, deed: &Deed) {
        let fleet = self.cluster.fleet();
        match deed {
            // A node may have been replaced by now: then the action has no effect, here and below.
            Deed::Node { node, fault, .. } => drop(fleet.inject(node, machine_fault(*fault)).await),
            Deed::Reboot { node } => drop(fleet.reboot(node).await),
            Deed::ReplaceNode { node } => {
                self.hands.delete_node(node).await;
                let _ = fleet.reboot(node).await;
            }
            Deed::Stall { .. } | Deed::Unlisted { .. } | Deed::Backwards { .. } => {
                self.add_faults(deed);
                self.cut(deed);
            }
            Deed::Strike { .. }
            | Deed::Refused { .. }
            | Deed::Unrenewed { .. }
            | Deed::Slow { .. }
            | Deed::Clock { .. } => self.add_faults(deed),
            Deed::Cut { .. } => self.cut(deed),
            Deed::Compact => self.cluster.api().compact(),
            Deed::Restore { .. } => {
                let known = locked(&self.checker).memory();
                *locked(&self.backup) = Some((self.cluster.api().back_up(), known));
            }
            Deed::Asleep { replica, .. } => self.replicas[*replica].faults.pause(),
            Deed::Stop { replica, .. } => self.replicas[*replica].sleep(true),
            Deed::Kill { replica } => self.replicas[*replica].kill(),
            Deed::Crash { replica, point } => self.replicas[*replica].crash(*point),
            Deed::CrashAtRenewal { replica, side } => self.replicas[*replica].crash_at_renewal(*side),
            Deed::Restart { replica } => self.replicas[*replica].restart(),
            Deed::DryRun { .. } => self.configure(&self.dry),
            Deed::Pause { .. } => self.hands.pause(true).await,
            Deed::Evict { node, .. } => self.hands.ask_for_eviction(node, true).await,
            Deed::DeletePod { pod } => self.hands.delete_pod(pod).await,
            Deed::ReplacePod { pod } => self.hands.replace_pod(pod).await,
            Deed::DeleteJob { job, .. } => self.hands.delete_job(job).await,
            Deed::Suspend { app, .. } => self.hands.suspend(app, true).await,
            Deed::DeleteApp { app, .. } => self.hands.delete_app(app).await,
            Deed::Sick { node, .. } => self.hands.sick(node, true).await,
            Deed::Veto { node, .. } => self.hands.veto(node, true).await,
        }
    }

    pub(super) async fn end(&self, deed: &Deed) {
        match deed {
            Deed::Node { node, .. } => drop(self.cluster.fleet().heal(node).await),
            Deed::Stall { .. }
            | Deed::Unlisted { .. }
            | Deed::Refused { .. }
            | Deed::Unrenewed { .. }
            | Deed::Slow { .. }
            | Deed::Backwards { .. }
            | Deed::Clock { .. } => {
                self.remove_faults(deed);
                if matches!(deed, Deed::Stall { .. } | Deed::Backwards { .. }) {
                    self.cut(deed);
                }
            }
            Deed::Restore { .. } => self.restore(),
            Deed::Asleep { replica, .. } => self.replicas[*replica].faults.resume(),
            Deed::Stop { replica, .. } => self.replicas[*replica].sleep(false),
            Deed::DryRun { .. } => self.configure(&self.wet),
            Deed::Pause { .. } => self.hands.pause(false).await,
            Deed::Evict { node, .. } => self.hands.ask_for_eviction(node, false).await,
            Deed::Suspend { app, .. } => self.hands.suspend(app, false).await,
            Deed::Sick { node, .. } => self.hands.sick(node, false).await,
            Deed::Veto { node, .. } => self.hands.veto(node, false).await,
            Deed::DeleteJob { job, again: Some(_) } => self.hands.create_job(job, &self.plan).await,
            Deed::DeleteApp { app, again: Some(_) } => self.hands.create_app(app, &self.plan).await,
            Deed::Reboot { .. }
            | Deed::ReplaceNode { .. }
            | Deed::Strike { .. }
            | Deed::Cut { .. }
            | Deed::Compact
            | Deed::Kill { .. }
            | Deed::Crash { .. }
            | Deed::CrashAtRenewal { .. }
            | Deed::Restart { .. }
            | Deed::DeletePod { .. }
            | Deed::ReplacePod { .. }
            | Deed::DeleteJob { again: None, .. }
            | Deed::DeleteApp { again: None, .. } => {}
        }
    }

    /// Ends all faults of replicas and of the API. Machines stay as they are.
    pub(super) fn calm_the_wire(&self) {
        for replica in &self.replicas {
            replica.faults.clear();
            replica.faults.cut_watches();
        }
    }

    /// Heals all machines that still exist. Those that Salvor may keep out of service because they were only
    /// partitioned are rebooted, as it asks for.
    pub(super) async fn heal_all(&self, nodes: &[String]) {
        for node in nodes {
            let fleet = self.cluster.fleet();
            let _ = if self.hands.is_marked(node).await {
                fleet.reboot(node).await
            } else {
                fleet.heal(node).await
            };
        }
    }

    pub(super) async fn stop(self) {
        for replica in self.replicas {
            replica.stop().await;
        }
        self.cluster.stop().await;
    }

    /// Goes back to the backup, once.
    fn restore(&self) {
        let Some((backup, memory)) = locked(&self.backup).take() else { return };
        let api = self.cluster.api();
        api.restore(&backup);
        locked(&self.checker).restore(memory, api.now());
    }

    fn configure(&self, configuration: &Configuration) {
        self.replicas.iter().for_each(|replica| replica.configure(configuration));
    }

    fn cut(&self, deed: &Deed) {
        if let Deed::Stall { replica, .. }
        | Deed::Unlisted { replica, .. }
        | Deed::Backwards { replica, .. }
        | Deed::Cut { replica } = deed
        {
            self.replicas[*replica].faults.cut_watches();
        }
    }

    fn add_faults(&self, deed: &Deed) {
        let Some((whose, faults)) = faults(deed) else { return };
        for replica in self.replicas_of(whose) {
            faults.iter().for_each(|fault| replica.faults.add(fault.clone()));
        }
    }

    fn remove_faults(&self, deed: &Deed) {
        let Some((whose, over)) = faults(deed) else { return };
        let is_over = |fault: &Fault| {
            over.iter()
                .any(|it| (&it.method, &it.path, it.effect) == (&fault.method, &fault.path, fault.effect))
        };
        for replica in self.replicas_of(whose) {
            replica.faults.retain(|fault| !is_over(fault));
        }
    }

    fn replicas_of(&self, whose: Whose) -> &[Replica] {
        match whose {
            Whose::Everybodys => &self.replicas,
            Whose::Of(replica) => &self.replicas[replica..=replica],
        }
    }
}

/// Whose requests a fault affects.
#[derive(Clone, Copy)]
enum Whose {
    Everybodys,
    Of(usize),
}

/// The request faults of a deed, and whose requests they affect.
fn faults(deed: &Deed) -> Option<(Whose, Vec<Fault>)> {
    let of = |call: Call, effect: Effect| {
        let (method, path) = call.matches();
        Fault { method, ..Fault::new(effect).path(path) }
    };
    Some(match deed {
        Deed::Stall { replica, watch, .. } => (
            Whose::Of(*replica),
            vec![Fault::new(Effect::Lag(NEVER)).method(http::Method::GET).path(watch.path())],
        ),
        Deed::Unlisted { replica, watch, effect, .. } => {
            (Whose::Of(*replica), vec![Fault::new(*effect).method(http::Method::GET).path(watch.path())])
        }
        Deed::Strike { replica, call, effect, times } => {
            (Whose::Of(*replica), vec![of(*call, *effect).times(*times)])
        }
        Deed::Unrenewed { replica, effect, .. } => (Whose::Of(*replica), vec![of(Call::Renewal, *effect)]),
        Deed::Refused { call, effect, .. } => (Whose::Everybodys, vec![of(*call, *effect)]),
        Deed::Slow { replica, writes, delay, .. } => {
            let slow = Fault::new(Effect::Delay(Duration::from_millis(*delay)));
            let methods = [http::Method::PATCH, http::Method::DELETE, http::Method::POST];
            let slow_writes = || methods.into_iter().map(|method| slow.clone().method(method)).collect();
            (Whose::Of(*replica), if *writes { slow_writes() } else { vec![slow] })
        }
        Deed::Backwards { replica, revisions, .. } => {
            (Whose::Of(*replica), vec![Fault::new(Effect::Backwards(*revisions))])
        }
        Deed::Clock { replica, call, ahead, .. } => {
            (Whose::Of(*replica), vec![of(*call, Effect::ClockAhead(*ahead))])
        }
        _ => return None,
    })
}

fn machine_fault(fault: NodeFault) -> MachineFault {
    match fault {
        NodeFault::Crash => MachineFault::Crash,
        NodeFault::Partition => MachineFault::Partition,
        NodeFault::KubeletStop => MachineFault::KubeletStop,
        NodeFault::Flap => MachineFault::Flap { down: FLAP.0, up: FLAP.1 },
        NodeFault::Slow(seconds) => MachineFault::Slow(Duration::from_secs(seconds)),
    }
}
