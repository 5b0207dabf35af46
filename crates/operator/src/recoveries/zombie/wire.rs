//! The kept fields of pods and nodes, and how they are decoded.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use salvor_api::{
    Labels,
    names::{
        conditions,
        job::{COMPLETION_INDEX, INDEX_FAILURE_COUNT},
        taints,
    },
};
use salvor_recovery::{
    ids::{NodeName, ResourceVersion, Uid},
    job::Tracking,
    liveness::{Heartbeat, NodeLease},
    objects::{JobRef, NodeRef, PodPhase, PodRef, Ready, Taint},
    one_actor::EvictionSign,
    zombie::{
        ConsentAnnotations, JobSight, Mark, Member, NodeView, OfJob, OutOfServiceMark, PodView, Unreachable,
        ZombiePolicy,
    },
};
use serde::Deserialize;

use super::unconsented_pods::UnconsentedPod;
use crate::{
    client::wire::{Condition, ContainerStatus, Object, bad_exits, condition, node_ready},
    watch_set::{nodes::NodeWire, watch::Project},
};

/// Keeps a pod only while it is being deleted, or while it would be given up without that: all others cost nothing.
/// Little is kept of a pod without consent.
pub(super) struct PodsInQuestion(pub(super) Arc<ZombiePolicy>);

#[derive(Clone, Debug)]
pub(crate) enum SeenPod {
    /// It may be recovered.
    Consenting(Box<PodView>),
    /// It has no consent.
    UnconsentedPod(UnconsentedPod),
}

impl SeenPod {
    pub(super) fn uid(&self) -> &Uid {
        match self {
            Self::Consenting(pod) => &pod.pod.uid,
            Self::UnconsentedPod(unconsented_pod) => &unconsented_pod.uid,
        }
    }
}

impl Project for PodsInQuestion {
    type Wire = PodWire;
    type Kept = SeenPod;

    fn keep(&self, wire: PodWire) -> Option<SeenPod> {
        let pod = wire.view_in_question(&self.0)?;
        if self.0.consent(&pod.consent, &pod.labels).is_some() {
            return Some(SeenPod::Consenting(Box::new(pod)));
        }
        // A terminated pod waits for a finalizer, and not for its node.
        let node = pod.node_name.filter(|_| !pod.phase.is_terminal())?;
        Some(SeenPod::UnconsentedPod(UnconsentedPod { uid: pod.pod.uid, node }))
    }
}

type Annotations = BTreeMap<String, String>;

pub(super) type PodWire = Object<PodSpec, PodStatus, Annotations>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpec {
    node_name: Option<NodeName>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodStatus {
    phase: String,
    conditions: Vec<Condition>,
    container_statuses: Vec<ContainerStatus>,
    init_container_statuses: Vec<ContainerStatus>,
}

impl PodWire {
    /// The view of a pod that is being deleted, or that would be given up without that; none of any other.
    pub(super) fn view_in_question(self, policy: &ZombiePolicy) -> Option<PodView> {
        if self.metadata.deletion_timestamp.is_some() {
            return Some(self.view());
        }
        let consent = ConsentAnnotations::from_annotations(&self.metadata.annotations);
        if !policy.watches_before_deletion(&consent) {
            return None;
        }
        // A pod that ended by itself has nothing to give up.
        Some(self.view()).filter(|pod| !pod.phase.is_terminal() || pod.mark.is_some())
    }

    pub(super) fn view(self) -> PodView {
        let PodWire { metadata, spec, status } = self;
        let of_kind = |kind| condition(&status.conditions, kind);
        let mark = of_kind(conditions::KUEUE_FAILURE_RECOVERY)
            .and_then(|c| Mark::from_condition(&c.status, &c.reason, c.last_transition_time));
        let job = metadata.controller().filter(|owner| owner.is_job()).map(|owner| {
            let number = |key| metadata.annotations.get(key).and_then(|text| text.parse().ok());
            let member = Member {
                index: number(COMPLETION_INDEX),
                earlier_failures: number(INDEX_FAILURE_COUNT).unwrap_or(0),
                tracked: Tracking::of(&metadata.finalizers, true).is_some(),
                exit_codes: bad_exits(
                    status.container_statuses.iter().chain(&status.init_container_statuses),
                ),
                conditions: status.conditions.iter().map(|c| (c.kind.clone(), c.status.clone())).collect(),
            };
            let (namespace, name) = (metadata.namespace.clone(), owner.name.clone());
            Box::new(OfJob {
                job: JobRef { namespace, name, uid: owner.uid.clone() },
                member: Arc::new(member),
                sight: JobSight::Unread,
                family: Vec::new(),
                told: false,
            })
        });
        PodView {
            job,
            consent: ConsentAnnotations::from_annotations(&metadata.annotations),
            phase: PodPhase::from_api(&status.phase),
            deletion: metadata.pod_deletion(),
            node_name: spec.node_name.filter(|n| !n.is_empty()),
            mark,
            disruption_target: of_kind(conditions::DISRUPTION_TARGET).is_some_and(|c| c.status == "True"),
            announced: false,
            wait_told: false,
            evict_told: false,
            pod: PodRef { namespace: metadata.namespace, name: metadata.name, uid: metadata.uid },
            resource_version: metadata.resource_version,
            labels: metadata.labels,
        }
    }
}

/// A node as read. Since when it is unreachable may depend on when that was first seen.
#[derive(Clone, Debug)]
pub(crate) struct SeenNode {
    pub(super) node: NodeRef,
    resource_version: ResourceVersion,
    labels: Labels,
    unreachable_taints: Vec<Option<Timestamp>>,
    ready: Ready,
    boot_id: Box<str>,
    ready_heartbeat: Option<Timestamp>,
    /// Since when its kubelet is silent.
    silent_since: Option<Timestamp>,
    out_of_service: Vec<Taint>,
    out_of_service_mark: Option<OutOfServiceMark>,
    taints: Vec<Taint>,
    eviction: EvictionSign,
}

impl From<&NodeWire> for SeenNode {
    fn from(NodeWire { metadata, spec, status }: &NodeWire) -> Self {
        let unreachable = spec.taints.iter().filter(|taint| taint.key == taints::UNREACHABLE);
        let mark = metadata.annotations.out_of_service_since.as_deref();
        let boot = metadata.annotations.out_of_service_boot.as_deref();
        let ready = condition(&status.conditions, "Ready");
        let silent = ready.filter(|ready| ready.status == "Unknown");
        Self {
            ready_heartbeat: ready.and_then(|ready| ready.last_heartbeat_time),
            ready: node_ready(&status.conditions),
            silent_since: silent.and_then(|ready| ready.last_transition_time),
            unreachable_taints: unreachable.map(|taint| taint.time_added).collect(),
            taints: spec.taints.iter().map(Taint::from).collect(),
            eviction: EvictionSign::read(
                metadata.annotations.eviction.as_deref(),
                metadata.annotations.eviction_asked.as_deref(),
            ),
            out_of_service_mark: mark.map(|since| OutOfServiceMark::from_annotations(since, boot)),
            boot_id: status.node_info.boot_id.clone(),
            out_of_service: spec
                .taints
                .iter()
                .filter(|taint| taint.key == taints::OUT_OF_SERVICE)
                .map(Taint::from)
                .collect(),
            node: NodeRef { name: metadata.name.as_str().into(), uid: metadata.uid.clone() },
            resource_version: metadata.resource_version.clone(),
            labels: metadata.labels.clone(),
        }
    }
}

impl SeenNode {
    /// The view of a caller that has not watched the node: a taint without a time counts from the kubelet's last sign
    /// of life, if that is known.
    pub(super) fn view_at_first_sight(self, now: Timestamp) -> NodeView {
        let observed = self.silent_since.unwrap_or(now);
        self.view(observed)
    }

    pub(super) fn view(self, observed: Timestamp) -> NodeView {
        NodeView {
            unreachable: Unreachable::from_taints(self.unreachable_taints, observed),
            node: self.node,
            resource_version: self.resource_version,
            labels: self.labels,
            ready: self.ready,
            boot_id: self.boot_id,
            ready_heartbeat: self.ready_heartbeat.map(|at| NodeLease::of_heartbeat(at, self.silent_since)),
            heartbeat: Heartbeat::UNREAD,
            out_of_service: self.out_of_service,
            out_of_service_mark: self.out_of_service_mark,
            taints: self.taints,
            eviction: self.eviction,
            announced: false,
            return_told: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn force_deleted(finalizers: &str) -> PodView {
        let pod = format!(
            r#"{{"metadata": {{"name": "p", "uid": "u", "resourceVersion": "1", "finalizers": {finalizers},
                "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}}}}"#
        );
        serde_json::from_str::<PodWire>(&pod).unwrap().view()
    }

    #[test]
    fn a_force_delete_that_was_cut_short_is_not_taken_for_one_that_finalizers_hold() {
        let grace = |pod: PodView| pod.deletion.unwrap().grace_seconds;
        assert_eq!(grace(force_deleted(r#"["example.com/hold"]"#)), Some(0));
        assert_eq!(grace(force_deleted("[]")), None);
    }
}
