//! Cases from Karpenter's own tests, and behaviour observed in Karpenter 1.14.1.

use kube::api::PostParams;
use serde_json::Value;

use super::*;
use crate::{Karpenter, Machine, in_virtual_time};

/// Nodes of one pool, repaired by Karpenter's rules.
struct Scene {
    cluster: Cluster,
    karpenter: Karpenter,
    claims: Api<DynamicObject>,
}

impl Scene {
    async fn new(nodes: usize) -> Self {
        let cluster = Cluster::new(crate::cluster(1).api);
        let mut karpenter = Karpenter::install(&cluster, "aws").await.unwrap();
        for _ in 0..nodes {
            let machine = Machine { pool: "gpu".to_owned(), zone: String::new() };
            let name = karpenter.order(machine).await.unwrap();
            karpenter.register(&name).await.unwrap();
            karpenter.initialize(&name).await.unwrap();
        }
        let upstream = NodeHealth::new(&cluster);
        let claims = upstream.claims.clone();
        tokio::spawn(upstream.run());
        Self { cluster, karpenter, claims }
    }

    async fn gpu(&self, nodes: &[usize], status: &str) {
        for node in nodes {
            let name = format!("node-{node}");
            self.karpenter.condition(&name, "AcceleratedHardwareReady", status).await.unwrap();
        }
    }

    async fn pass(&self, seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    /// NodeClaims that are being deleted.
    async fn deleted(&self) -> Vec<String> {
        let claims = self.claims.list(&ListParams::default()).await.unwrap().items;
        let deleted = claims.into_iter().filter(|claim| claim.metadata.deletion_timestamp.is_some());
        deleted.map(|claim| claim.name_any()).collect()
    }

    async fn annotation(&self, claim: &str) -> Option<String> {
        self.claims.get(claim).await.unwrap().annotations().get(TERMINATION).cloned()
    }
}

#[test]
fn a_sick_node_is_deleted_when_its_toleration_ends_and_not_before() {
    in_virtual_time(async {
        let scene = Scene::new(3).await;
        scene.gpu(&[1], "False").await;
        scene.pass(10 * 60 - 1).await;
        assert_eq!(scene.deleted().await, Vec::<String>::new());
        scene.pass(3).await;
        // One of three is more than 20%, but the limit is rounded up.
        assert_eq!(scene.deleted().await, ["node-1"]);
    });
}

#[test]
fn a_condition_or_status_that_no_policy_names_is_no_sickness() {
    in_virtual_time(async {
        let scene = Scene::new(3).await;
        scene.karpenter.condition("node-0", "DiskPressure", "True").await.unwrap();
        scene.gpu(&[1], "Unknown").await;
        scene.pass(60 * 60).await;
        assert_eq!(scene.deleted().await, Vec::<String>::new());
    });
}

#[test]
fn more_than_a_fifth_holds_all_and_is_looked_at_every_five_minutes() {
    in_virtual_time(async {
        let scene = Scene::new(10).await;
        // Nodes within their toleration count as well.
        scene.gpu(&[0], "False").await;
        scene.pass(5 * 60).await;
        scene.gpu(&[1, 2], "False").await;
        scene.pass(6 * 60).await;
        assert_eq!(scene.deleted().await, Vec::<String>::new());
        scene.gpu(&[1], "True").await;
        scene.pass(3 * 60).await;
        assert_eq!(scene.deleted().await, Vec::<String>::new(), "minute 14: nothing wakes it");
        scene.pass(2 * 60).await;
        assert_eq!(scene.deleted().await, ["node-0", "node-2"], "minute 16");
    });
}

#[test]
fn a_node_that_terminates_still_counts() {
    in_virtual_time(async {
        let mut scene = Scene::new(5).await;
        scene.karpenter.stick("node-0");
        scene.gpu(&[0], "False").await;
        scene.pass(11 * 60).await;
        for _ in 0..5 {
            scene.karpenter.beat().await.unwrap();
        }
        scene.gpu(&[1], "False").await;
        scene.pass(60 * 60).await;
        assert_eq!(scene.deleted().await, ["node-0"]);
    });
}

#[test]
fn a_new_transition_time_starts_the_wait_anew() {
    in_virtual_time(async {
        let scene = Scene::new(3).await;
        for _ in 0..12 {
            scene.gpu(&[1], "False").await;
            scene.pass(9 * 60).await;
        }
        assert_eq!(scene.deleted().await, Vec::<String>::new());
    });
}

#[test]
fn the_time_of_the_forced_termination_is_set_unless_it_has_passed() {
    in_virtual_time(async {
        let scene = Scene::new(10).await;
        let early = "2025-12-31T00:00:00Z";
        for (claim, at) in [("node-0", early), ("node-1", "2030-01-01T00:00:00Z")] {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {TERMINATION: at}}}));
            scene.claims.patch(claim, &PatchParams::default(), &patch).await.unwrap();
        }
        scene.gpu(&[0, 1], "False").await;
        scene.pass(10 * 60 + 2).await;
        assert_eq!(scene.deleted().await, ["node-0", "node-1"]);
        assert_eq!(scene.annotation("node-0").await.as_deref(), Some(early));
        let set: Timestamp = scene.annotation("node-1").await.unwrap().parse().unwrap();
        assert!(set <= scene.cluster.now(), "{set}");
    });
}

#[test]
fn a_node_without_exactly_one_nodeclaim_is_left_alone() {
    in_virtual_time(async {
        let scene = Scene::new(3).await;
        let other: Value = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "other"}, "spec": {},
        });
        let other = serde_json::from_value(other).unwrap();
        scene.claims.create(&PostParams::default(), &other).await.unwrap();
        let patch = Patch::Merge(json!({"status": {"providerID": "aws://node-1"}}));
        scene.claims.patch_status("other", &PatchParams::default(), &patch).await.unwrap();
        scene.gpu(&[1], "False").await;
        scene.pass(60 * 60).await;
        assert_eq!(scene.deleted().await, Vec::<String>::new());
    });
}
