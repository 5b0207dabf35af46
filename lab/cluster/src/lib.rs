//! A whole Kubernetes cluster in one process: the embedded API, its control loops, simulated nodes and storage.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), salvor_cluster::StartError> {
//! use salvor_cluster::{LocalCluster, Options, zoned};
//!
//! let cluster = LocalCluster::start(Options::default()).await?;
//! cluster.fleet().add(zoned(3, 1)).await?;
//! cluster.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! On a runtime with paused time, hours of its life pass in seconds, and one seed gives one history.

mod faults;

use std::net::SocketAddr;
use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use kube::Client;
use salvor_apiserver::{Cluster, Server, ServerError, Settings};
use salvor_controllers::{ControlLoops, LoopOptions};
use salvor_nodes::{
    Clock, Fleet, FleetError, FleetOptions, Karpenter, KarpenterError, NodePool, NodeProfile, Storage, Timers,
};
use tower::ServiceExt as _;

pub use faults::{FaultError, NodeFault, Service, UnknownFault, inject};

/// The storage that every local cluster has: a CSI driver, and a StorageClass of the same name.
pub const STORAGE: &str = "local.salvor.dev";

#[derive(Debug, Clone, Default)]
pub struct Options {
    pub api: Settings,
    pub loops: LoopOptions,
    pub kubelets: Timers,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the storage class {STORAGE} cannot be made: {0}")]
    Storage(#[from] kube::Error),
    #[error(transparent)]
    Nodes(#[from] FleetError),
    #[error(transparent)]
    Pool(#[from] KarpenterError),
}

/// A running cluster. Dropping it stops it.
#[derive(Debug)]
pub struct LocalCluster {
    api: Cluster,
    loops: ControlLoops,
    fleet: Arc<Fleet>,
    storage: Storage,
    pools: Vec<Karpenter>,
}

impl LocalCluster {
    /// Starts a cluster without nodes on the current tokio runtime.
    pub fn start(options: Options) -> BoxFuture<'static, Result<Self, StartError>> {
        async move {
            let api = Cluster::new(options.api);
            let seed = options.loops.seed;
            let clock = Clock::starting_at(api.now());
            let fleet_options = FleetOptions { clock, seed, timers: options.kubelets };
            let client = component(&api);
            let fleet = Arc::new(Fleet::start(client.clone(), fleet_options));
            let storage = Storage::start(client.clone(), STORAGE).await?;
            let time = api.clone();
            let loops = ControlLoops::start(&client, move || time.now(), &options.loops);
            Ok(Self { api, loops, fleet, storage, pools: Vec::new() })
        }
        .boxed()
    }

    pub fn api(&self) -> &Cluster {
        &self.api
    }

    /// A client in this process.
    pub fn client(&self) -> Client {
        self.api.client()
    }

    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Adds nodes with NodeClaims, maintained by a simulated Karpenter.
    ///
    /// # Errors
    /// If there is such a pool already.
    pub fn add_pool(&mut self, pool: NodePool) -> BoxFuture<'_, Result<(), StartError>> {
        async move {
            let client = component(&self.api);
            Karpenter::define(&client).await?;
            self.pools.push(Karpenter::start(client, Arc::clone(&self.fleet), pool).await?);
            Ok(())
        }
        .boxed()
    }

    /// The API as a service, with a path by which its nodes can be made to fail.
    pub fn service(&self) -> Service {
        Service::new(self.api.clone(), Arc::clone(&self.fleet))
    }

    /// Serves the API on an address; port 0 chooses a free one.
    ///
    /// # Errors
    /// If the address is not available, or no certificate can be created.
    pub fn serve(&self, address: SocketAddr) -> BoxFuture<'_, Result<Server, ServerError>> {
        async move { Server::start(self.service(), address).await }.boxed()
    }

    /// Stops everything in it, and waits until all calls have ended.
    pub async fn stop(self) {
        self.loops.stop().await;
        self.storage.stop().await;
        for pool in self.pools {
            pool.stop().await;
        }
        // A service that is still being served keeps the nodes; they end with it.
        if let Some(fleet) = Arc::into_inner(self.fleet) {
            fleet.stop().await;
        }
    }
}

/// A client of a component that is restarted when the API goes back to a backup, as etcd's documentation requires. It
/// then begins with a list: a watch from a revision in the future would miss all events before it.
fn component(api: &Cluster) -> Client {
    let server = api.clone();
    let begun_anew = move |mut request: http::Request<kube::client::Body>| {
        if let Some(uri) = from_the_past(request.uri(), server.revision()) {
            *request.uri_mut() = uri;
        }
        request
    };
    Client::new(api.clone().map_request(begun_anew), "default")
}

/// Replaces a revision in the future by a compacted one, so that the watch expires.
fn from_the_past(uri: &http::Uri, reached: u64) -> Option<http::Uri> {
    let query = uri.query().filter(|query| query.contains("watch=true"))?;
    let is_ahead = |part: &&str| {
        part.strip_prefix("resourceVersion=")
            .and_then(|it| it.parse().ok())
            .is_some_and(|it: u64| it > reached)
    };
    let ahead = query.split('&').find(is_ahead)?;
    uri.to_string().replace(ahead, "resourceVersion=1").parse().ok()
}

/// Nodes `node-1` to `node-N`, spread over zones `zone-1` to `zone-M`.
pub fn zoned(nodes: usize, zones: usize) -> impl Iterator<Item = NodeProfile> {
    let zones = zones.max(1);
    (0..nodes).map(move |index| {
        let zone = index % zones + 1;
        NodeProfile::named(format!("node-{}", index + 1)).in_zone(&format!("zone-{zone}"))
    })
}
