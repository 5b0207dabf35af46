//! Nodes without heartbeats: their taints, and the pods that those evict.

pub(crate) mod node_lifecycle;
pub(crate) mod taint_eviction;
pub(crate) mod taints;
pub(crate) mod zones;
