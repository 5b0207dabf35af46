//! A real Kubernetes control plane for tests: etcd, kube-apiserver, kube-controller-manager and kube-scheduler as
//! child processes that cannot outlive the test process.
//!
//! Most tests share one control plane per test process and work in an [`Arena`], their own part of it:
//!
//! ```no_run
//! # async fn test() {
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::api::Api;
//! use salvor_testkit::{arena, wait};
//!
//! let arena = arena("greeting").await;
//! let config_maps: Api<ConfigMap> = Api::default_namespaced(arena.client());
//! wait::for_object(&config_maps, "kube-root-ca.crt", "the root certificate is published", |_| true).await;
//! # }
//! ```
//!
//! Tests in [`on_both!`] run on the embedded cluster as well; `SALVOR_CLUSTER` selects one of the two.
//!
//! A test that needs its own flags, or that breaks things, starts its own [`ControlPlane`].

pub mod access;
pub mod accounting;
mod arena;
mod assets;
mod audit;
pub mod browser;
mod credentials;
mod embedded;
mod faulty;
pub mod kubectl;
mod logs;
pub mod mirror;
pub mod nodes;
mod part;
pub mod peers;
mod plane;
mod ports;
mod program;
mod prometheus;
pub mod proxy;
mod random;
pub mod recorder;
mod replica;
mod salvor;
mod site;
mod supervised;
pub mod wait;
pub mod workloads;

pub use access::Access;
pub use accounting::Accounting;
pub use arena::{Arena, arena, shared};
pub use assets::{AssetsError, kubernetes_minor, program_of};
pub use browser::Browser;
pub use embedded::EmbeddedPlane;
pub use faulty::FaultyServer;
pub use kubectl::Kubectl;
pub use mirror::Mirror;
pub use nodes::Kubelets;
pub use part::Part;
pub use plane::{Builder, ControlPlane, PlaneError};
pub use ports::free as free_port;
pub use program::Program;
pub use prometheus::promtool;
pub use proxy::Proxy;
pub use recorder::Recorder;
pub use salvor::{Hold, Ours, Salvor};
pub use site::{Backup, Plane, Site};
