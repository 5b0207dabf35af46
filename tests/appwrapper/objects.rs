//! The custom kinds of this suite.

use k8s_openapi::NamespaceResourceScope;

pub(crate) use crate::custom::{Condition, Object, condition};
use crate::custom::{Kind, kinds};

kinds! {
    AppWrapper = OfAppWrapper, NamespaceResourceScope, "workload.codeflare.dev", "v1beta2", "appwrappers";
    PyTorchJob = OfPyTorchJob, NamespaceResourceScope, "kubeflow.org", "v1", "pytorchjobs";
    JobSet = OfJobSet, NamespaceResourceScope, "jobset.x-k8s.io", "v1alpha2", "jobsets";
    RayCluster = OfRayCluster, NamespaceResourceScope, "ray.io", "v1", "rayclusters";
    RayJob = OfRayJob, NamespaceResourceScope, "ray.io", "v1", "rayjobs";
    LeaderWorkerSet = OfLeaderWorkerSet, NamespaceResourceScope, "leaderworkerset.x-k8s.io", "v1", "leaderworkersets";
    Widget = OfWidget, NamespaceResourceScope, "example.com", "v1", "widgets";
    Workload = OfWorkload, NamespaceResourceScope, "kueue.x-k8s.io", "v1beta2", "workloads";
    ClusterQueue = OfClusterQueue, NamespaceResourceScope, "kueue.x-k8s.io", "v1beta2", "clusterqueues";
    LocalQueue = OfLocalQueue, NamespaceResourceScope, "kueue.x-k8s.io", "v1beta2", "localqueues";
    ResourceFlavor = OfResourceFlavor, NamespaceResourceScope, "kueue.x-k8s.io", "v1beta2", "resourceflavors";
    Topology = OfTopology, NamespaceResourceScope, "kueue.x-k8s.io", "v1beta2", "topologies";
    AdmissionCheck = OfAdmissionCheck, NamespaceResourceScope, "kueue.x-k8s.io", "v1beta2", "admissionchecks";
    MultiKueueConfig = OfMultiKueueConfig, NamespaceResourceScope, "kueue.x-k8s.io", "v1beta2", "multikueueconfigs";
    MultiKueueCluster = OfMultiKueueCluster, NamespaceResourceScope, "kueue.x-k8s.io", "v1beta2", "multikueueclusters";
}

pub(crate) trait Namespaced: Kind<Scope = NamespaceResourceScope> {}

impl<K: Kind<Scope = NamespaceResourceScope>> Namespaced for K {}

pub(crate) type AppWrapper = Object<OfAppWrapper>;
pub(crate) type Widget = Object<OfWidget>;
pub(crate) type Workload = Object<OfWorkload>;
pub(crate) type ClusterQueue = Object<OfClusterQueue>;
pub(crate) type LocalQueue = Object<OfLocalQueue>;
pub(crate) type ResourceFlavor = Object<OfResourceFlavor>;

impl AppWrapper {
    pub(crate) fn phase(&self) -> &str {
        self.status["phase"].as_str().unwrap_or_default()
    }

    pub(crate) fn is(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == "True")
    }

    /// The reason of a condition, whatever its status.
    pub(crate) fn reason(&self, kind: &str) -> String {
        self.condition(kind).map(|condition| condition.reason).unwrap_or_default()
    }

    /// The number of counted resets.
    pub(crate) fn resets(&self) -> i64 {
        self.status["resettingCount"].as_i64().unwrap_or(0)
    }
}
