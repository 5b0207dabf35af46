//! A Kubernetes API in memory: a cluster for tests, demonstrations and simulations, without a separate process.
//!
//! [`Core`] is the server without a socket: a request and the time go in, an answer comes out. [`Cluster`] puts it
//! behind a [`tower::Service`], so that a [`kube::Client`] works on it in process, also under a paused clock:
//!
//! ```
//! # use k8s_openapi::api::core::v1::Namespace;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), kube::Error> {
//! use salvor_apiserver::{Cluster, Settings};
//!
//! let cluster = Cluster::new(Settings::default());
//! let namespaces: kube::Api<Namespace> = kube::Api::all(cluster.client());
//! assert_eq!(namespaces.list(&Default::default()).await?.items.len(), 4);
//! # Ok(())
//! # }
//! ```
//!
//! The real server is the reference: `tests/transcripts` are sent to both and must get the same answers.
//!
//! The modules [`object`], [`propagation`], [`quantity`] and [`signal`] are shared with the controllers that run on it.

mod admission;
mod cluster;
mod core;
mod custom;
mod environment;
mod faults;
mod handlers;
mod kinds;
pub mod object;
mod patch;
pub mod propagation;
mod protocol;
pub mod quantity;
mod schema;
mod server;
pub mod signal;
mod state;
mod store;

pub use admission::webhooks::{WebhookAnswer, WebhookRequest};
pub use cluster::{Backup, Body, Change, ChangeKind, Cluster, Settings};
pub use environment::Environment;
pub use faults::{Cut, Effect, Fault, Faults, Faulty, FaultyBody};
pub use protocol::request::Request;
pub use protocol::response::{Reply, Response};
pub use protocol::status::Refusal;
pub use server::{Server, ServerError};
pub use state::Core;
pub use store::watch::Watch;
