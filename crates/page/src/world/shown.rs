//! The JSON that browsers receive, and the values that it is made of.

use std::collections::VecDeque;

use jiff::Timestamp;
use salvor_recovery::{Report, appwrapper::Phase};
use serde::{Serialize, Serializer};

use super::missing::Missing;
use crate::{
    objects::{AppWrapper, Node, NodeState, Pod, Repair, RepairState, Workload},
    timeline::{Kind, Moment},
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Delta<'a> {
    pub(super) version: u64,
    pub(super) now: i64,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) reset: bool,
    pub(super) leads: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) paused: Option<&'a str>,
    pub(super) recovered: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) nodes: Vec<NodeShown<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) pods: Vec<PodShown<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) app_wrappers: Vec<WrapperShown<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) verdicts: Vec<VerdictShown<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) moments: Vec<MomentShown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) replacements: Option<&'a VecDeque<Replacement>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) missing: Option<&'a Missing>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) caption: Option<&'a Caption>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) gone_nodes: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) gone_pods: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) gone_app_wrappers: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) gone_verdicts: Vec<(&'a str, &'a str)>,
}

// `serde` requires a reference.
fn is_false(value: &bool) -> bool {
    !value
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeShown<'a> {
    name: &'a str,
    zone: &'a str,
    state: NodeState,
    since: i64,
    #[serde(skip_serializing_if = "is_false")]
    out_of_service: bool,
    #[serde(skip_serializing_if = "is_false")]
    cordoned: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    repair: Option<RepairShown<'a>>,
}

#[derive(Serialize)]
struct RepairShown<'a> {
    state: RepairState,
    message: &'a str,
    since: Option<i64>,
}

impl<'a> NodeShown<'a> {
    pub(super) fn new(node: &'a Node, since: Timestamp) -> Self {
        let Node { name, zone, state, out_of_service, cordoned, repair, .. } = node;
        let (out_of_service, cordoned) = (*out_of_service, *cordoned);
        let repair = repair.as_ref().map(|Repair { state, message, since }| RepairShown {
            state: *state,
            message,
            since: since.map(Timestamp::as_millisecond),
        });
        Self { name, zone, state: *state, since: since.as_millisecond(), out_of_service, cordoned, repair }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodShown<'a> {
    uid: &'a str,
    namespace: &'a str,
    name: &'a str,
    node: Option<&'a str>,
    state: PodState,
    workload: &'a Workload,
    #[serde(skip_serializing_if = "Option::is_none")]
    app_wrapper: Option<&'a str>,
}

impl<'a> PodShown<'a> {
    pub(super) fn new(pod: &'a Pod, state: PodState) -> Self {
        let Pod { uid, namespace, name, node, workload, wrapper, .. } = pod;
        let (node, app_wrapper) = (node.as_deref(), wrapper.as_deref());
        Self { uid, namespace, name, node, state, workload, app_wrapper }
    }
}

#[derive(Serialize)]
pub(super) struct VerdictShown<'a> {
    pub(super) subject: &'a str,
    pub(super) recovery: &'a str,
    #[serde(flatten)]
    pub(super) report: &'a Report,
}

#[derive(Serialize)]
pub(super) struct MomentShown {
    number: u64,
    at: i64,
    kind: Kind,
    text: String,
    count: usize,
}

impl MomentShown {
    pub(super) fn new(moment: &Moment) -> Self {
        Self {
            number: moment.number,
            at: moment.at.as_millisecond(),
            kind: moment.kind,
            text: moment.text(),
            count: moment.subjects.len().max(1),
        }
    }
}

/// The current chapter of the demo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Caption {
    pub title: String,
    pub text: String,
    /// Counts from 1.
    pub chapter: usize,
    pub chapters: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Replacement {
    /// The old node.
    pub(super) node: String,
    #[serde(skip)]
    pub(super) uid: String,
    #[serde(skip)]
    pub(super) pool: Option<String>,
    #[serde(serialize_with = "milliseconds")]
    pub(super) began: Timestamp,
    /// The new node, as far as it can be identified: the next new node of the pool. It may appear before the old node
    /// is gone.
    pub(super) by: Option<String>,
    /// When the last of these changes happened.
    #[serde(serialize_with = "milliseconds")]
    pub(super) at: Timestamp,
}

fn milliseconds<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(at.as_millisecond())
}

/// An AppWrapper, with the part of its history that is shown.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) wrapper: AppWrapper,
    /// When it entered its phase, as far as the page saw it.
    pub(super) since: Timestamp,
    /// When the unfinished reset began.
    pub(super) reset: Option<Timestamp>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WrapperShown<'a> {
    uid: &'a str,
    namespace: &'a str,
    name: &'a str,
    /// As in the API. Empty if the controller has not reconciled it yet.
    phase: &'a Phase,
    since: i64,
    retries: i32,
    retry_limit: i32,
    resets: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_reset: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unhealthy: Option<&'a str>,
}

impl<'a> WrapperShown<'a> {
    pub(super) fn new(Followed { wrapper, since, .. }: &'a Followed) -> Self {
        let AppWrapper { uid, namespace, name, phase, retries, retry_limit, resets, last_reset, unhealthy } =
            wrapper;
        Self {
            uid,
            namespace,
            name,
            phase,
            since: since.as_millisecond(),
            retries: *retries,
            retry_limit: *retry_limit,
            resets: *resets,
            last_reset: last_reset.as_deref(),
            unhealthy: unhealthy.as_deref(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PodState {
    Pending,
    Running,
    /// Its node is unreachable, so its real state is unknown.
    Silent,
    Ending,
    /// Terminating on an unreachable node: no kubelet can end it.
    Stuck,
    Succeeded,
    Failed,
}
