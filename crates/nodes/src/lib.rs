//! Simulated nodes: ordinary clients of a Kubernetes API that register, heartbeat, run pods, die, come back,
//! and keep the ground truth of what really ran.
//!
//! To kube-scheduler and kube-controller-manager they are nodes like any other. Nothing here knows of Salvor.
//!
//! - [`Fleet`] runs any number of nodes with one watch of pods and one of nodes.
//! - [`NodeProfile`] says what a node is like; [`Fault`] what may happen to it.
//! - [`script`] lists the annotations by which a pod says how its containers behave.
//! - [`GroundTruth`] tells what ran where and when, and whether the same work ever ran twice at once.
//! - [`Karpenter`] keeps the nodes of a pool: it ends the node of a NodeClaim that is deleted, and launches another.
//! - [`Storage`] is a simulated CSI driver: it makes volumes for claims and attaches them.

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
