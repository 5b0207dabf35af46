//! Simulated nodes: ordinary clients of a Kubernetes API that register, send heartbeats, run pods, die, come back, and
//! keep the ground truth of what really ran.
//!
//! kube-scheduler and kube-controller-manager treat them like any other nodes. Nothing here depends on Salvor.
//!
//! - [`Fleet`] runs any number of nodes with one watch of pods and one of nodes.
//! - [`NodeProfile`] describes a node; [`Fault`] what may happen to it.
//! - [`script`] lists the annotations that define how a pod's containers behave.
//! - [`GroundTruth`] records what ran where and when, and whether the same work ever ran twice at once.
//! - [`Karpenter`] maintains the nodes of a pool: it terminates the node of a NodeClaim that is deleted, and launches
//!   another.
//! - [`Storage`] is a simulated CSI driver: it creates volumes for claims and attaches them.

mod calls;
mod clock;
mod fleet;
mod karpenter;
mod kubelet;
mod pod;
mod profile;
mod runtime;
pub mod script;
mod status;
mod storage;
mod truth;

pub use clock::Clock;
pub use fleet::{Fleet, FleetError, FleetOptions, FleetStats};
pub use karpenter::{Karpenter, KarpenterError, NodePool};
pub use profile::{Fault, NodeProfile, Timers};
pub use runtime::RestartBackoff;
pub use storage::{Storage, StorageFault};
pub use truth::{GroundTruth, Overlap, Run, Work};
