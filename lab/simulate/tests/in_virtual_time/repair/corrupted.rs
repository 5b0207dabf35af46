//! A user corrupts the records of repairs in progress, and reverts that minutes later.

use kube::api::{Patch, PatchParams};
use salvor_api::names::repair::{self, annotations};
use salvor_apiserver::{ChangeKind, Faults};
use salvor_simulate::{Line, Process};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::world::{BEAT, By, World, settings};
use crate::corrupted::{Corruption, Spot, Story, assert_withstood};
use crate::stage::{Happening, Stage};

const NODE: &str = "/api/v1/nodes/node-1";
const CLAIM: &str = "/apis/karpenter.sh/v1/nodeclaims/node-1";
const POLICY: &str = "/apis/salvor.dev/v1alpha1/noderepairpolicies/gpu";
const POOL: &str = "/apis/karpenter.sh/v1/nodepools/gpu";
/// The toleration of five minutes is over after this many beats.
const SIX_MINUTES: usize = 72;

/// Nodes 1 and 2 are unhealthy, and as many as allowed are under repair: one.
struct Repair(World);

impl Repair {
    async fn begin(mut world: World) -> (Self, Process) {
        let (line, faults) = (Line::default(), Faults::default());
        let process = Process::start(&world.stage.cluster, "salvor", &settings(), line, &faults);
        world.sick("node-1").await;
        for beat in 0..SIX_MINUTES {
            sleep(BEAT).await;
            world.beat().await;
            if beat == 3 {
                world.sick("node-2").await;
            }
        }
        (Self(world), process)
    }

    /// The first is asked to reboot, which does not help; then it is replaced.
    async fn by_reboot() -> (Self, Process) {
        let world = World::new(6, 1).await;
        let ladder = json!({"spec": {"policies": [{
            "conditionType": "BadNode", "conditionStatus": "False", "toleration": "5m",
            "ladder": [{"action": "Reboot", "timeout": "10m"}, {"action": "Replace"}],
        }]}});
        world.policies.patch("gpu", &PatchParams::default(), &Patch::Merge(ladder)).await.unwrap();
        let begun = Self::begin(world).await;
        let node = begun.0.0.stage.nodes().get("node-1").await.unwrap();
        assert!(node.metadata.annotations.unwrap().contains_key(annotations::REBOOT_REQUESTED));
        begun
    }

    /// The first is being replaced, which takes as long as anything is corrupted.
    async fn by_pool() -> (Self, Process) {
        let mut world = World::with(By::Pool, 6, 1).await;
        world.karpenter_is_down = true;
        let begun = Self::begin(world).await;
        assert_eq!(begun.0.0.audit().deleted, ["node-1"]);
        begun
    }
}

impl Story for Repair {
    fn stage(&self) -> &Stage {
        &self.0.stage
    }

    async fn beat(&mut self) {
        self.0.beat().await;
    }

    async fn mended(&mut self) {
        self.0.karpenter_is_down = false;
    }

    async fn is_over(&self) -> bool {
        self.0.is_over()
    }

    async fn end(&self) -> Value {
        let mut audit = self.0.audit();
        audit.deleted.sort();
        let asked = |it: &&Happening| {
            it.change == ChangeKind::Added
                && it.resource == "events"
                && it.object["reason"] == "NodeRebootRequested"
        };
        json!({
            "replaced": audit.deleted, "wrong": audit.wrong,
            "reboots": self.0.stage.happenings().iter().filter(asked).count(),
            "repaired": self.0.policy()["status"]["repaired"],
        })
    }
}

fn of_nodes() -> Vec<Vec<Spot>> {
    let veto = &[Corruption::Garbage, Corruption::Huge, Corruption::Empty, Corruption::Future];
    let condition = |kind: &'static str, way: &[&'static str]| Spot::field(NODE, kind, way);
    let unreadable = &[Corruption::Garbage, Corruption::Huge, Corruption::Empty, Corruption::Old];
    vec![
        vec![Spot::annotation(NODE, annotations::PROGRESS).told(unreadable)],
        // Any value is a veto.
        vec![Spot::annotation(NODE, annotations::DO_NOT_REPAIR).told(veto)],
        vec![Spot::annotation(NODE, annotations::KARPENTER_DO_NOT_REPAIR).told(veto)],
        vec![
            // Only agents read the request. An answer that does not repeat its time is ignored.
            Spot::annotation(NODE, annotations::REBOOT_REQUESTED),
            Spot::annotation(NODE, annotations::REBOOT_DONE),
            condition(repair::CONDITION, &["status", "conditions", "type=SalvorRepair"]),
            condition(repair::REBOOT_CONDITION, &["status", "conditions", "type=NodeReboot"]),
            // Karpenter's annotation. One that cannot be parsed is written again when it is due.
            Spot::annotation(CLAIM, annotations::TERMINATION_TIMESTAMP),
            Spot::annotation(CLAIM, annotations::TERMINATION_BEFORE),
        ],
    ]
}

fn of_policies() -> Vec<Vec<Spot>> {
    let number = |name: &'static str, way: &[&'static str]| Spot::field(POLICY, name, way).example(json!(0));
    let counts = vec![
        number("NodeRepairPolicy status.observedGeneration", &["status", "observedGeneration"]),
        number("NodeRepairPolicy status.nodes", &["status", "nodes"]),
        number("NodeRepairPolicy status.healthy", &["status", "healthy"]),
        number("NodeRepairPolicy status.waiting", &["status", "waiting"]),
        number("NodeRepairPolicy status.blocked", &["status", "blocked"]),
        number("NodeRepairPolicy status.repairing", &["status", "repairing"]),
        number("NodeRepairPolicy status.repaired", &["status", "repaired"]),
    ];
    let at = "2026-01-01T00:00:00Z";
    let replacements = json!([{"pool": "gpu", "condition": "BadNode", "first": at, "last": at}]);
    let deleted =
        json!([{"node": "node-1", "uid": "u", "resourceVersion": "1", "at": at, "labels": {"a": "b"}}]);
    vec![
        counts,
        vec![
            Spot::field(POLICY, "NodeRepairPolicy status.replacements", &["status", "replacements"])
                .example(replacements),
        ],
        vec![
            Spot::field(POLICY, "NodeRepairPolicy status.deletedNodes", &["status", "deletedNodes"])
                .example(deleted),
        ],
        vec![Spot::field(POLICY, "NodeRepairPolicy status.repairs", &["status", "repairs"])],
        vec![Spot::field(POLICY, "NodeRepairPolicy status.conditions", &["status", "conditions"])],
    ]
}

fn of_pools() -> Vec<Vec<Spot>> {
    let unreadable = &[Corruption::Garbage, Corruption::Huge, Corruption::Empty, Corruption::Old];
    vec![
        vec![Spot::annotation(POOL, annotations::REPAIRS).told(unreadable)],
        vec![Spot::annotation(POOL, annotations::DO_NOT_REPAIR)],
    ]
}

#[test]
fn a_node_that_was_asked_to_reboot() {
    assert_withstood(Repair::by_reboot, &of_nodes());
}

#[test]
fn the_status_of_a_policy() {
    assert_withstood(Repair::by_reboot, &of_policies());
}

#[test]
fn the_list_of_repairs_on_a_nodepool() {
    assert_withstood(Repair::by_pool, &of_pools());
}

/// All places of repairs that are corrupted.
pub(crate) fn all_spots() -> Vec<Vec<Spot>> {
    of_nodes().into_iter().chain(of_policies()).chain(of_pools()).collect()
}
