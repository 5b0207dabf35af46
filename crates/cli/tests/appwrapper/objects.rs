//! Objects of custom kinds, for clients that know them only by name.

use std::borrow::Cow;
use std::fmt::Debug;
use std::marker::PhantomData;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The names of a kind.
pub(crate) trait Kind: Clone + Debug + Send + Sync + 'static {
    const GROUP: &'static str;
    const VERSION: &'static str;
    const KIND: &'static str;
    const PLURAL: &'static str;
}

/// An object of that kind; its fields as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", bound = "")]
pub(crate) struct Object<K: Kind> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) spec: Value,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) status: Value,
    #[serde(skip)]
    of: PhantomData<K>,
}

impl<K: Kind> Object<K> {
    pub(crate) fn new(metadata: ObjectMeta, spec: Value) -> Self {
        Self {
            api_version: format!("{}/{}", K::GROUP, K::VERSION),
            kind: K::KIND.to_owned(),
            metadata,
            spec,
            status: Value::Null,
            of: PhantomData,
        }
    }

    pub(crate) fn named(name: &str, spec: Value) -> Self {
        Self::new(ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }, spec)
    }
}

impl<K: Kind> Resource for Object<K> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        K::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        K::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        K::VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

macro_rules! kinds {
    ($($kind:ident = $marker:ident, $group:literal, $version:literal, $plural:literal;)*) => {
        $(
            #[derive(Clone, Debug)]
            pub(crate) enum $marker {}

            impl Kind for $marker {
                const GROUP: &'static str = $group;
                const VERSION: &'static str = $version;
                const KIND: &'static str = stringify!($kind);
                const PLURAL: &'static str = $plural;
            }

        )*
    };
}

kinds! {
    AppWrapper = OfAppWrapper, "workload.codeflare.dev", "v1beta2", "appwrappers";
    PyTorchJob = OfPyTorchJob, "kubeflow.org", "v1", "pytorchjobs";
    JobSet = OfJobSet, "jobset.x-k8s.io", "v1alpha2", "jobsets";
    RayCluster = OfRayCluster, "ray.io", "v1", "rayclusters";
    RayJob = OfRayJob, "ray.io", "v1", "rayjobs";
    LeaderWorkerSet = OfLeaderWorkerSet, "leaderworkerset.x-k8s.io", "v1", "leaderworkersets";
    Workload = OfWorkload, "kueue.x-k8s.io", "v1beta2", "workloads";
    ClusterQueue = OfClusterQueue, "kueue.x-k8s.io", "v1beta2", "clusterqueues";
    LocalQueue = OfLocalQueue, "kueue.x-k8s.io", "v1beta2", "localqueues";
    ResourceFlavor = OfResourceFlavor, "kueue.x-k8s.io", "v1beta2", "resourceflavors";
    Topology = OfTopology, "kueue.x-k8s.io", "v1beta2", "topologies";
    AdmissionCheck = OfAdmissionCheck, "kueue.x-k8s.io", "v1beta2", "admissionchecks";
    MultiKueueConfig = OfMultiKueueConfig, "kueue.x-k8s.io", "v1beta2", "multikueueconfigs";
    MultiKueueCluster = OfMultiKueueCluster, "kueue.x-k8s.io", "v1beta2", "multikueueclusters";
}

pub(crate) type AppWrapper = Object<OfAppWrapper>;
pub(crate) type Workload = Object<OfWorkload>;
pub(crate) type ClusterQueue = Object<OfClusterQueue>;
pub(crate) type LocalQueue = Object<OfLocalQueue>;
pub(crate) type ResourceFlavor = Object<OfResourceFlavor>;

/// A condition as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// When its status changed last.
    pub(crate) since: String,
}

/// A condition in the status of any object.
pub(crate) fn condition(status: &Value, kind: &str) -> Option<Condition> {
    let conditions = status["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == kind)?;
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some(Condition {
        status: text("status"),
        reason: text("reason"),
        message: text("message"),
        since: text("lastTransitionTime"),
    })
}

impl AppWrapper {
    pub(crate) fn phase(&self) -> &str {
        self.status["phase"].as_str().unwrap_or_default()
    }

    pub(crate) fn condition(&self, kind: &str) -> Option<Condition> {
        condition(&self.status, kind)
    }

    /// Whether a condition is True.
    pub(crate) fn is(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == "True")
    }

    /// The reason of a condition, whatever its status.
    pub(crate) fn reason(&self, kind: &str) -> String {
        self.condition(kind).map(|condition| condition.reason).unwrap_or_default()
    }

    /// How many resets were counted.
    pub(crate) fn resets(&self) -> i64 {
        self.status["resettingCount"].as_i64().unwrap_or(0)
    }
}
