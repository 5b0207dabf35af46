//! The fields of nodes and pods that the page keeps.

use jiff::Timestamp;
use salvor_api::names::{
    appwrapper::{MEMBER_LABEL, annotations::RETRY_LIMIT},
    repair::{self, labels::NODE_POOL, reasons},
};
use salvor_operator::{
    watch::{Project, Target},
    wire::{Meta, NodeSpec, Object, Owner},
};
use salvor_recovery::appwrapper::{Annotations, AppWrapperPolicy, Phase as WrapperPhase, Timers};
use serde::{Deserialize, Serialize};

const ZONE: &str = "topology.kubernetes.io/zone";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

pub(crate) const NODES: Target = Target::all("nodes", "/api/v1/nodes");
pub(crate) const PODS: Target = Target::all("pods", "/api/v1/pods");
pub(crate) const APP_WRAPPERS: Target =
    Target::all("appwrappers", "/apis/workload.codeflare.dev/v1beta2/appwrappers");

/// In characters. Longer messages are cut.
const LONGEST_MESSAGE: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NodeState {
    Ready,
    /// Its Ready condition is not True, and it has no unreachable taint.
    NotReady,
    Unreachable,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) uid: String,
    pub(crate) name: String,
    pub(crate) zone: String,
    pub(crate) state: NodeState,
    /// Salvor or a person may have set the taint.
    pub(crate) out_of_service: bool,
    pub(crate) cordoned: bool,
    pub(crate) created: Option<Timestamp>,
    /// The Karpenter NodePool.
    pub(crate) pool: Option<String>,
    /// `None` if the node was never sick.
    pub(crate) repair: Option<Repair>,
}

impl Node {
    pub(crate) fn repair_state(&self) -> Option<RepairState> {
        self.repair.as_ref().map(|repair| repair.state)
    }
}

/// The repair of a node, as its condition `SalvorRepair` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repair {
    pub(crate) state: RepairState,
    pub(crate) message: String,
    /// When a repair last started or ended.
    pub(crate) since: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum RepairState {
    Waiting,
    Blocked,
    Vetoed,
    Repairing,
    Rebooting,
    Repaired,
    Recovered,
}

impl RepairState {
    /// Reasons of later versions are unknown and not shown.
    fn of(reason: &str) -> Option<Self> {
        match reason {
            reasons::WAITING => Some(Self::Waiting),
            reasons::BLOCKED | reasons::UNREADABLE => Some(Self::Blocked),
            reasons::VETOED => Some(Self::Vetoed),
            reasons::REPAIRING => Some(Self::Repairing),
            reasons::REBOOTING => Some(Self::Rebooting),
            reasons::REPAIRED => Some(Self::Repaired),
            reasons::RECOVERED => Some(Self::Recovered),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) node: Option<String>,
    pub(crate) phase: Phase,
    pub(crate) deleted: Option<Timestamp>,
    pub(crate) workload: Workload,
    /// A key that a pod and its replacement share.
    pub(crate) work: String,
    pub(crate) wrapper: Option<String>,
}

/// The Job, Deployment or other owner of pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Workload {
    pub(crate) kind: String,
    pub(crate) name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AppWrapper {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) phase: WrapperPhase,
    /// The resets that counted towards the retry limit.
    pub(crate) retries: i32,
    pub(crate) retry_limit: i32,
    /// All recorded resets, whether they counted or not.
    pub(crate) resets: usize,
    /// Why it was last reset, or why it failed for good.
    pub(crate) last_reset: Option<String>,
    pub(crate) unhealthy: Option<String>,
}

pub(crate) struct AllNodes;

impl Project for AllNodes {
    type Wire = NodeWire;
    type Kept = Node;

    fn keep(&self, wire: NodeWire) -> Option<Node> {
        let NodeWire { metadata, spec, status } = wire;
        let tainted = |key: &str| spec.taints.iter().any(|t| t.key == key);
        let is_ready = status.conditions.iter().any(|c| c.kind == "Ready" && c.status == "True");
        let repair = status.conditions.iter().find(|c| c.kind == repair::CONDITION);
        Some(Node {
            repair: repair.and_then(|it| {
                let state = RepairState::of(&it.reason)?;
                Some(Repair { state, message: brief(&it.message), since: it.last_transition_time })
            }),
            created: metadata.creation_timestamp,
            pool: metadata.labels.get(NODE_POOL).filter(|pool| !pool.is_empty()).map(str::to_owned),
            state: match (tainted(UNREACHABLE), is_ready) {
                (true, _) => NodeState::Unreachable,
                (false, true) => NodeState::Ready,
                (false, false) => NodeState::NotReady,
            },
            out_of_service: tainted(OUT_OF_SERVICE),
            cordoned: spec.unschedulable,
            zone: metadata.labels.get(ZONE).unwrap_or_default().to_owned(),
            uid: metadata.uid.into(),
            name: metadata.name,
        })
    }
}

pub(crate) struct AllPods;

impl Project for AllPods {
    type Wire = PodWire;
    type Kept = Pod;

    fn keep(&self, wire: PodWire) -> Option<Pod> {
        let PodWire { metadata, spec, status } = wire;
        let owner = metadata.controller();
        let workload = workload(&metadata, owner);
        let work = match (owner, metadata.labels.get(COMPLETION_INDEX)) {
            (Some(owner), Some(index)) => format!("{} {index}", lasting(&metadata, owner)),
            (Some(owner), None) if owner.kind == "StatefulSet" => {
                format!("{} {}", lasting(&metadata, owner), metadata.name)
            }
            (Some(owner), None) => lasting(&metadata, owner),
            (None, _) => metadata.uid.to_string(),
        };
        Some(Pod {
            node: spec.node_name.filter(|n| !n.is_empty()),
            phase: match status.phase.as_str() {
                "Running" => Phase::Running,
                "Succeeded" => Phase::Succeeded,
                "Failed" => Phase::Failed,
                _ => Phase::Pending,
            },
            deleted: metadata.deletion_timestamp,
            workload,
            work,
            wrapper: metadata.labels.get(MEMBER_LABEL).map(str::to_owned),
            uid: metadata.uid.into(),
            namespace: metadata.namespace,
            name: metadata.name,
        })
    }
}

/// The owner's UID. Inside an AppWrapper the owner's name, because a reset recreates the owner under the same name.
fn lasting(metadata: &Meta, owner: &Owner) -> String {
    match metadata.labels.get(MEMBER_LABEL) {
        Some(wrapper) => format!("{}/{wrapper} {} {}", metadata.namespace, owner.kind, owner.name),
        None => owner.uid.to_string(),
    }
}

#[derive(Debug, Default)]
pub(crate) struct AllAppWrappers(pub(crate) AppWrapperPolicy);

impl Project for AllAppWrappers {
    type Wire = AppWrapperWire;
    type Kept = AppWrapper;

    fn keep(&self, wire: AppWrapperWire) -> Option<AppWrapper> {
        let AppWrapperWire { metadata, status, .. } = wire;
        let asked = metadata.annotations.retry_limit.as_deref();
        let annotations = Annotations::pick(|key| asked.filter(|_| key == RETRY_LIMIT));
        let unhealthy = status.conditions.iter().find(|it| it.kind == "Unhealthy" && it.status == "True");
        Some(AppWrapper {
            phase: status.phase,
            retries: status.resetting_count,
            retry_limit: Timers::of(&annotations, &self.0).retry_limit.max(0),
            resets: status.resets.iter().filter(|it| it.phase == WrapperPhase::Resetting).count(),
            last_reset: status.resets.last().map(|it| brief(&it.message)),
            unhealthy: unhealthy.map(|it| match it.message.as_str() {
                "" => brief(&it.reason),
                message => brief(message),
            }),
            uid: metadata.uid.into(),
            namespace: metadata.namespace,
            name: metadata.name,
        })
    }
}

pub(crate) fn brief(message: &str) -> String {
    message.chars().take(LONGEST_MESSAGE).collect()
}

/// The name that a person chose. Pods of a Deployment belong to a ReplicaSet, and batch work consists of many Jobs.
fn workload(metadata: &Meta, owner: Option<&Owner>) -> Workload {
    let label = |key: &str| metadata.labels.get(key).filter(|v| !v.is_empty());
    let named = label("app.kubernetes.io/name").or_else(|| label("app")).map(str::to_owned);
    let Some(owner) = owner else {
        return Workload { kind: "Pod".into(), name: named.unwrap_or_else(|| metadata.name.clone()) };
    };
    let hash = label("pod-template-hash").map(|hash| format!("-{hash}"));
    match hash.as_deref().and_then(|hash| owner.name.strip_suffix(hash)) {
        Some(name) if owner.kind == "ReplicaSet" => {
            Workload { kind: "Deployment".into(), name: named.unwrap_or_else(|| name.to_owned()) }
        }
        _ => Workload { kind: owner.kind.clone(), name: named.unwrap_or_else(|| owner.name.clone()) },
    }
}

pub(crate) type NodeWire = Object<NodeSpec, NodeStatus>;

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct NodeStatus {
    conditions: Vec<ToldCondition>,
}

pub(crate) type PodWire = Object<PodSpec, PodStatus>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    node_name: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct PodStatus {
    phase: String,
}

pub(crate) type AppWrapperWire = Object<AppWrapperSpec, AppWrapperStatus, AppWrapperAnnotations>;

#[derive(Deserialize, Default)]
pub(crate) struct AppWrapperSpec {}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AppWrapperStatus {
    phase: WrapperPhase,
    resetting_count: i32,
    conditions: Vec<ToldCondition>,
    resets: Vec<WrapperReset>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ToldCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    message: String,
    last_transition_time: Option<Timestamp>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WrapperReset {
    phase: WrapperPhase,
    message: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct AppWrapperAnnotations {
    #[serde(rename = "workload.codeflare.dev.appwrapper/retryLimit")]
    retry_limit: Option<String>,
}
