//! The custom kinds of this suite.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::ResourceExt;

pub(crate) use crate::custom::{Condition, Object};
use crate::custom::{Kind, condition, kinds};

kinds! {
    NodeRepairPolicy = OfPolicy, ClusterResourceScope, "salvor.dev", "v1alpha1", "noderepairpolicies";
    NodeClaim = OfNodeClaim, ClusterResourceScope, "karpenter.sh", "v1", "nodeclaims";
    NodePool = OfNodePool, ClusterResourceScope, "karpenter.sh", "v1", "nodepools";
    KWOKNodeClass = OfNodeClass, ClusterResourceScope, "karpenter.kwok.sh", "v1alpha1", "kwoknodeclasses";
    Machine = OfMachine, NamespaceResourceScope, "cluster.x-k8s.io", "v1beta2", "machines";
}

pub(crate) type NodeRepairPolicy = Object<OfPolicy>;
pub(crate) type NodeClaim = Object<OfNodeClaim>;
pub(crate) type NodePool = Object<OfNodePool>;
pub(crate) type KWOKNodeClass = Object<OfNodeClass>;
pub(crate) type Machine = Object<OfMachine>;

impl<K: Kind> Object<K> {
    pub(crate) fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

pub(crate) fn node_condition(node: &Node, kind: &str) -> Option<Condition> {
    condition(&serde_json::to_value(node.status.as_ref()?).ok()?, kind)
}

impl NodeClaim {
    pub(crate) fn node(&self) -> &str {
        self.status["nodeName"].as_str().unwrap_or_default()
    }

    /// The time by which its node must be gone, as Karpenter reads it.
    pub(crate) fn termination(&self) -> Option<String> {
        self.annotations().get(crate::stage::TERMINATION).cloned()
    }
}
