//! A Kubernetes API in memory: a cluster for tests, demonstrations and simulations, without a process beside this one.
//!
//! [`Core`] is the server without a socket: a request and the time go in, an answer comes out. [`Cluster`] puts it
//! behind a [`tower::Service`], so that a [`kube::Client`] works on it in process, also under a paused clock:
//!
//! ```
//! # use k8s_openapi::api::core::v1::Namespace;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), kube::Error> {
//! use salvor_embedded::{Cluster, Settings};
//!
//! let cluster = Cluster::new(Settings::default());
//! let namespaces: kube::Api<Namespace> = kube::Api::all(cluster.client());
//! assert_eq!(namespaces.list(&Default::default()).await?.items.len(), 4);
//! # Ok(())
//! # }
//! ```
//!
//! It is right because the real one says so: `tests/transcripts` are sent to both and must be answered alike.

mod admission;
mod apply;
mod cluster;
mod core;
mod custom;
mod declared;
mod delete;
mod discovery;
mod duplicates;
mod environment;
mod events;
mod faults;
mod fields;
mod kinds;
mod loops;
mod metadata;
mod object;
mod patch;
mod printing;
mod quantity;
mod read;
mod render;
mod request;
mod reviews;
mod schema;
mod selectors;
mod server;
mod signal;
mod status;
mod store;
mod structs;
mod subresources;
mod table;
mod watch;
mod webhooks;
mod wire;
mod write;

pub use cluster::{Backup, Body, Change, ChangeKind, Cluster, Settings};
pub use core::Core;
pub use environment::Environment;
pub use faults::{Cut, Effect, Fault, Faults, Faulty, FaultyBody};
pub use loops::{
    AttachDetachTimers, ControlLoops, EvictionRates, Loop, LoopOptions, NodeLifecycleTimers, PodGcTimers,
    UnknownLoop,
};
pub use request::{Reply, Request, Response};
pub use server::{Server, ServerError};
pub use status::Refusal;
pub use watch::Watch;
pub use webhooks::{WebhookAnswer, WebhookRequest};
