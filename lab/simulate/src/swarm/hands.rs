//! What users and agents do through the API.

use std::sync::Mutex;

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::Job,
    coordination::v1::Lease,
    core::v1::{Node, PersistentVolumeClaim, Pod},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use salvor_api::names::{annotations, appwrapper, repair, taints};
use salvor_apiserver::Cluster;
use serde_json::{Value, json};

use super::{
    objects,
    plan::{Plan, UnownedPolicy, Wrapped},
};

/// Users with a client. An action on an object that no longer exists has no effect.
pub(super) struct Hands {
    cluster: Cluster,
    pub(super) pods: Api<Pod>,
    pub(super) jobs: Api<Job>,
    sets: Api<StatefulSet>,
    claims: Api<PersistentVolumeClaim>,
    pub(super) apps: Api<DynamicObject>,
    policies: Api<DynamicObject>,
    pub(super) nodes: Api<Node>,
    leases: Api<Lease>,
    /// The number of pauses so far, to make each one unique.
    pauses: Mutex<u32>,
}

impl Hands {
    pub(super) fn new(client: &Client, cluster: &Cluster) -> Self {
        let kind = GroupVersionKind::gvk(appwrapper::GROUP, appwrapper::VERSION, appwrapper::KIND);
        let resource = ApiResource::from_gvk_with_plural(&kind, appwrapper::PLURAL);
        Self {
            cluster: cluster.clone(),
            pods: Api::default_namespaced(client.clone()),
            jobs: Api::default_namespaced(client.clone()),
            sets: Api::default_namespaced(client.clone()),
            claims: Api::default_namespaced(client.clone()),
            apps: Api::default_namespaced_with(client.clone(), &resource),
            policies: crate::objects(
                client,
                "salvor.dev",
                "v1alpha1",
                "NodeRepairPolicy",
                "noderepairpolicies",
            ),
            nodes: Api::all(client.clone()),
            leases: Api::namespaced(client.clone(), objects::HOME),
            pauses: Mutex::new(0),
        }
    }

    pub(super) async fn create_policy(&self, plan: &Plan) -> kube::Result<()> {
        self.policies.create(&PostParams::default(), &objects::policy(plan)).await.map(drop)
    }

    pub(super) async fn create_unowned_policy(&self, plan: &Plan, policy: UnownedPolicy) -> kube::Result<()> {
        let policy = objects::unowned_policy(plan, policy);
        self.policies.create(&PostParams::default(), &policy).await.map(drop)
    }

    pub(super) async fn create_workloads(&self, plan: &Plan) -> kube::Result<()> {
        let create = PostParams::default();
        for (number, pod) in plan.workloads.pods.iter().enumerate() {
            self.pods.create(&create, &objects::pod(&format!("pod-{}", number + 1), pod)).await?;
        }
        for (number, job) in plan.workloads.jobs.iter().enumerate() {
            self.jobs.create(&create, &objects::job(&format!("job-{}", number + 1), job)).await?;
        }
        if plan.workloads.set > 0 {
            self.sets.create(&create, &objects::stateful_set("db", plan.workloads.set)).await?;
        }
        for number in 1..=plan.workloads.apps {
            let (name, what) = (format!("app-{number}"), plan.workloads.wrapped);
            if what == Wrapped::Pod {
                self.claims.create(&create, &objects::claim(&name)).await?;
            }
            self.apps.create(&create, &objects::app(&name, what)).await?;
        }
        Ok(())
    }

    /// `salvor pause`, or `salvor resume`.
    pub(super) async fn pause(&self, on: bool) {
        let value = if on {
            let mut pauses = self.pauses.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *pauses += 1;
            json!({"since": self.cluster.now(), "by": "jane", "reason": format!("pause {pauses}")})
                .to_string()
                .into()
        } else {
            Value::Null
        };
        let patch = json!({"metadata": {"annotations": {annotations::PAUSED: value}}});
        let _ = self.leases.patch("salvor", &PatchParams::default(), &Patch::Merge(patch)).await;
    }

    /// Adds the taint that requests an eviction, or removes all taints with its key.
    pub(super) async fn ask_for_eviction(&self, node: &str, asks: bool) {
        // Another client may write at the same moment.
        for _ in 0..3 {
            let Ok(Some(mut node)) = self.nodes.get_opt(node).await else { return };
            let list = node.spec.get_or_insert_default().taints.get_or_insert_default();
            list.retain(|taint| taint.key != taints::FORCE_EVICTION);
            if asks {
                let request =
                    json!({"key": taints::FORCE_EVICTION, "value": "INC-1", "effect": "NoSchedule"});
                list.extend(serde_json::from_value(request).ok());
            }
            if self.nodes.replace(&node.name_any(), &PostParams::default(), &node).await.is_ok() {
                return;
            }
        }
    }

    pub(super) async fn delete_pod(&self, pod: &str) {
        let _ = self.pods.delete(pod, &DeleteParams::default()).await;
    }

    /// Force-deletes a pod and creates the same again.
    pub(super) async fn replace_pod(&self, pod: &str) {
        let Ok(Some(old)) = self.pods.get_opt(pod).await else { return };
        let _ = self.pods.delete(pod, &DeleteParams::default().grace_period(0)).await;
        let mut spec = old.spec.clone().unwrap_or_default();
        spec.node_name = None;
        let mut new = Pod { spec: Some(spec), ..Pod::default() };
        new.metadata.name = old.metadata.name;
        new.metadata.annotations = old.metadata.annotations;
        let _ = self.pods.create(&PostParams::default(), &new).await;
    }

    pub(super) async fn delete_job(&self, job: &str) {
        let _ = self.jobs.delete(job, &DeleteParams::background()).await;
    }

    pub(super) async fn create_job(&self, job: &str, plan: &Plan) {
        let number = job.rsplit('-').next().and_then(|number| number.parse::<usize>().ok()).unwrap_or(1);
        if let Some(job_plan) = plan.workloads.jobs.get(number - 1) {
            let _ = self.jobs.create(&PostParams::default(), &objects::job(job, job_plan)).await;
        }
    }

    pub(super) async fn create_app(&self, app: &str, plan: &Plan) {
        let _ = self.apps.create(&PostParams::default(), &objects::app(app, plan.workloads.wrapped)).await;
    }

    pub(super) async fn delete_node(&self, node: &str) {
        let _ = self.nodes.delete(node, &DeleteParams::default()).await;
    }

    pub(super) async fn suspend(&self, app: &str, suspend: bool) {
        let patch = Patch::Merge(json!({"spec": {"suspend": suspend}}));
        let _ = self.apps.patch(app, &PatchParams::default(), &patch).await;
    }

    pub(super) async fn delete_app(&self, app: &str) {
        let _ = self.apps.delete(app, &DeleteParams::default()).await;
    }

    /// An agent reports the condition of a node.
    pub(super) async fn sick(&self, node: &str, sick: bool) {
        let now = self.cluster.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let condition = json!({
            "type": objects::SICK, "status": if sick { "False" } else { "True" }, "reason": "Agent",
            "lastTransitionTime": now,
        });
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        let _ = self.nodes.patch_status(node, &PatchParams::default(), &patch).await;
    }

    /// Whether Salvor has tainted a node out-of-service, or evicts it.
    pub(super) async fn is_marked(&self, node: &str) -> bool {
        let marks = [annotations::OUT_OF_SERVICE_SINCE, annotations::EVICTION];
        let node = self.nodes.get(node).await;
        node.is_ok_and(|node| marks.iter().any(|mark| node.annotations().contains_key(*mark)))
    }

    pub(super) async fn veto(&self, node: &str, veto: bool) {
        let value = if veto { json!("true") } else { Value::Null };
        let patch = json!({"metadata": {"annotations": {repair::annotations::DO_NOT_REPAIR: value}}});
        let _ = self.nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await;
    }
}
