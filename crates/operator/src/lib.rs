//! The operator: watches, slim stores, queues, the executor, leader election, metrics, events and health.
//!
//! ```text
//! watch ──► recovery (index, decide) ──► engine (queue, timers, brake) ──► executor ──► API server
//! ```
//!
//! `recoveries` is the registry of recoveries; everything else is the same for all of them.

#[cfg(test)]
mod any_step;
mod brake_keeper;
mod broadcast;
mod client;
mod crash;
#[cfg_attr(not(test), allow(dead_code, reason = "see `feeds::kind`"))]
mod discovery;
mod engine;
mod evict;
mod executor;
mod explain;
mod explainer;
#[cfg(test)]
mod fake_api;
mod feeds;
#[cfg(test)]
mod fuzz;
mod http;
mod incoming;
mod interned;
mod leader;
mod leases;
mod live;
mod metrics;
mod nodes;
mod notices;
mod operator;
mod packed;
mod pause;
mod pause_client;
mod published;
mod recent_reads;
mod recoveries;
mod recovery;
mod revision;
mod rights;
mod running;
mod send_guard;
pub mod serve;
mod shared;
mod surroundings;
mod tasks;
mod time;
pub mod watch;
mod watchdog;
pub mod webhooks;
pub mod wire;
mod work;

pub use evict::{
    End, EvictClient, EvictError, EvictionRequest, Standing, Survey, SurveyedPod, SurveyedVolume,
};
pub use explain::{Detail, DetailLine, ExplainError, Explanation, ObjectKind, ObjectName, RecoveryReport};
pub use explainer::{explain, explained_kinds};
pub use live::story;
pub use metrics::{CheckAtStart, reference::reference as metrics_reference};
pub use nodes::standing_of;
pub use notices::{Notice, Notices};
pub use operator::{Operator, RunError, run};
pub use pause_client::{PauseClient, PauseError, Paused};
pub use published::{InCluster, Published};
pub use recoveries::zombie::pod_verdict::{
    Next, PodObjects, PodVerdict, heartbeat_of_kubelet, pod_verdict, why_off,
};
pub use recoveries::{Off, RecoveryEntry, recoveries, webhooks::in_effect as webhooks_in_effect};
pub use rights::{Resource, Right, Scope, Verb};
pub use surroundings::Surroundings;
pub use tasks::Sleep;
