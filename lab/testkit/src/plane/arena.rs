//! The control plane that all tests of a process share, and the part of it that belongs to one test.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::sync::OnceCell;

use super::embedded::EmbeddedPlane;
use super::part::Part;
use super::{ControlPlane, logs};
use crate::access::Access;
use crate::programs::kubectl::Kubectl;
use crate::random;

/// The zone label of nodes. Node lifecycle handles each zone by itself, so arenas that are zones do not disturb each
/// other's evictions.
const ZONE: &str = "topology.kubernetes.io/zone";

/// The control plane that all tests of this process share, with all its parts. The first caller starts it, and it ends
/// with the process.
///
/// # Panics
/// If it cannot be started.
pub async fn shared() -> &'static ControlPlane {
    static SHARED: OnceCell<Result<ControlPlane, String>> = OnceCell::const_new();
    let plane = SHARED
        .get_or_init(|| async {
            let everything = ControlPlane::builder().with(Part::ControllerManager).with(Part::Scheduler);
            everything.start().await.map_err(|error| error.to_string())
        })
        .await;
    plane.as_ref().unwrap_or_else(|error| panic!("the shared control plane does not start: {error}"))
}

/// An arena on the [`shared`] control plane for one test. The name is for display, and should be short.
///
/// # Panics
/// If the control plane cannot be started or the namespace cannot be created.
pub async fn arena(name: &str) -> Arena<'static> {
    shared().await.arena(name).await
}

/// One test's part of a control plane: a namespace, a zone for its nodes, and a client with its own user agent.
///
/// Pods of the namespace are only scheduled to nodes of the zone. When a test panics, the logs of the control plane
/// since the arena was opened are printed. The namespace is not removed.
pub struct Arena<'p> {
    ground: Ground<'p>,
    name: String,
    client: Client,
}

enum Ground<'p> {
    Real { plane: &'p ControlPlane, logs: logs::Lengths },
    Embedded(Arc<EmbeddedPlane>),
}

impl<'p> Arena<'p> {
    pub(crate) async fn open(plane: &'p ControlPlane, name: &str) -> Self {
        let logs = logs::Lengths::now(plane.folder());
        let name = format!("{name}-{}", random::suffix(6));
        let client = plane.admin().in_namespace(&name).client(&name);
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                annotations: Some(BTreeMap::from([(
                    "scheduler.alpha.kubernetes.io/node-selector".to_owned(),
                    format!("{ZONE}={name}"),
                )])),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        create(&client, &namespace).await;
        Self { ground: Ground::Real { plane, logs }, name, client }
    }

    pub(crate) async fn embedded(plane: Arc<EmbeddedPlane>, name: &str) -> Self {
        let name = format!("{name}-{}", random::suffix(6));
        let client = plane.admin().in_namespace(&name).client(&name);
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        create(&client, &Namespace { metadata, ..Namespace::default() }).await;
        Self { ground: Ground::Embedded(plane), name, client }
    }

    /// The real control plane around it.
    ///
    /// # Panics
    /// If it is on an embedded cluster.
    pub fn plane(&self) -> &'p ControlPlane {
        match &self.ground {
            Ground::Real { plane, .. } => plane,
            Ground::Embedded(_) => panic!("this test needs a real control plane"),
        }
    }

    pub fn namespace(&self) -> &str {
        &self.name
    }

    /// An admin's client with this arena's [`user_agent`](Self::user_agent) and namespace, on the async runtime that
    /// opened the arena.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The user agent of [`client`](Self::client), which distinguishes its requests from all others.
    pub fn user_agent(&self) -> &str {
        &self.name
    }

    /// Admin access with this arena's namespace.
    pub fn admin(&self) -> Access {
        let admin = match &self.ground {
            Ground::Real { plane, .. } => plane.admin(),
            Ground::Embedded(plane) => plane.admin(),
        };
        admin.in_namespace(&self.name)
    }

    /// The real kubectl in this arena's namespace.
    pub fn kubectl(&self) -> Kubectl {
        let kubectl = match &self.ground {
            Ground::Real { plane, .. } => plane.kubectl(),
            Ground::Embedded(plane) => plane.kubectl(),
        };
        kubectl.in_namespace(&self.name)
    }

    pub fn zone(&self) -> &str {
        &self.name
    }

    /// The labels that a node must have to belong to this arena.
    pub fn node_labels(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(ZONE.to_owned(), self.name.clone())])
    }

    /// A name for the arena's node number `index` that no other arena uses.
    pub fn node_name(&self, index: usize) -> String {
        format!("{}-node-{index}", self.name)
    }
}

impl Drop for Arena<'_> {
    fn drop(&mut self) {
        if let (true, Ground::Real { plane, logs }) = (std::thread::panicking(), &self.ground) {
            plane.show_logs(logs);
        }
    }
}

async fn create(client: &Client, namespace: &Namespace) {
    if let Err(error) = Api::all(client.clone()).create(&PostParams::default(), namespace).await {
        panic!("the namespace {:?} cannot be created: {error}", namespace.metadata.name);
    }
}
