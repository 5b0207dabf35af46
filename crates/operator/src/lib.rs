//! The operator: watches, slim stores, queues, the executor, leader election, metrics, events and health.
//!
//! ```text
//! watch_set ──► a recovery (index, decide) ──► engine (queue, timers, brake) ──► execute ──► API server
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `operator` | assembles all of this and runs it; `surroundings` is what it gets from outside, `tasks` how it spawns |
//! | `watch_set` | declares, runs and monitors watches |
//! | `engine` | drives one recovery: what it must implement, its queue and timers, the brake, attempts to write |
//! | `execute` | writes, with preconditions and limits |
//! | `lead` | leader election, the pause switch, the watchdog |
//! | `serve` | HTTP for untrusted clients; metrics and health |
//! | `webhooks` | admission webhooks and their certificates |
//! | `explain` | asks recoveries for verdicts on a live object |
//! | `recoveries` | the registry of recoveries, and each of them. Everything else is the same for all |
//! | `client` | requests, live reads, discovery, and the decoder of objects |
//! | `time` | the time, here and at the API server |
//! | `metrics` | the metrics that all recoveries share |

mod client;
mod engine;
mod execute;
mod explain;
mod lead;
mod metrics;
mod operator;
mod recoveries;
pub mod serve;
mod surroundings;
mod tasks;
#[cfg(test)]
mod testing;
mod time;
mod watch_set;
pub mod webhooks;

pub use client::{live::story, wire};
pub use engine::notices::{Notice, Notices};
pub use explain::{
    Detail, DetailLine, ExplainError, Explanation, ObjectKind, ObjectName, RecoveryReport,
    explainer::{explain, explained_kinds},
};
pub use lead::{
    pause_client::{PauseClient, PauseError, Paused},
    published::{InCluster, Published},
};
pub use metrics::{CheckAtStart, reference::reference as metrics_reference};
pub use operator::{Operator, RunError, run};
pub use recoveries::{
    Off, RecoveryEntry,
    eviction::by_hand::{
        End, EvictClient, EvictError, EvictionRequest, Standing, Survey, SurveyedPod, SurveyedVolume,
    },
    recoveries,
    rights::{Resource, Right, Scope, Verb},
    webhooks::in_effect as webhooks_in_effect,
    zombie::pod_verdict::{
        Next, PodObjects, PodVerdict, gives_up_without_deletion, heartbeat_of_kubelet, pod_verdict, why_off,
    },
};
pub use surroundings::Surroundings;
pub use tasks::Sleep;
pub use watch_set::{nodes::standing_of, watch};
