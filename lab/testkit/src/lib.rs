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
mod network;
pub mod nodes;
pub mod peers;
mod plane;
mod programs;
mod random;
mod watch;
pub mod workloads;

pub use access::Access;
pub use network::faulty::FaultyServer;
pub use network::ports::free as free_port;
pub use network::proxy::{self, Proxy};
pub use nodes::Kubelets;
pub use plane::accounting::{self, Accounting};
pub use plane::arena::{Arena, arena, shared};
pub use plane::assets::{AssetsError, kubernetes_minor, program_of};
pub use plane::embedded::EmbeddedPlane;
pub use plane::part::Part;
pub use plane::site::{Backup, Plane, Site};
pub use plane::{Builder, ControlPlane, PlaneError};
pub use programs::browser::{self, Browser};
pub use programs::kubectl::{self, Kubectl};
pub use programs::program::Program;
pub use programs::prometheus::promtool;
pub use programs::salvor::{Hold, Ours, Salvor};
pub use watch::mirror::{self, Mirror};
pub use watch::recorder::{self, Recorder};
pub use watch::wait;
