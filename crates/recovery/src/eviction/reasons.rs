//! The reasons of the eviction recovery, with all their sentences.

use std::fmt;

use jiff::Timestamp;
use salvor_api::names::taints;

use super::policy::EvictionPolicy;
use crate::ids::NodeName;
use crate::one_actor::NodeActor;
use crate::verdict::Reason;

/// The reasons for a node. Their codes are the reasons of the condition on a node that is being evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeWhy {
    Disabled,
    /// No taint requests it.
    NotRequested,
    AnotherRecoveryActs {
        who: NodeActor,
    },
    LeaseUnread,
    PodsUnread,
    AttachmentsUnread,
    NodeReady {
        request: String,
    },
    /// The node is Ready, but has not renewed its Lease for a while.
    StillReady,
    KubeletAlive {
        request: String,
    },
    /// The node is down, as the request says.
    NodeDown {
        request: String,
    },
    /// Pods are being failed and deleted.
    EvictingPods {
        left: usize,
    },
    ReleasingVolumes {
        /// The number of volumes that the node has in use.
        in_use: usize,
        /// Claims whose volumes stay.
        kept: usize,
    },
    /// Some remaining pods go later.
    WaitingForPods {
        left: usize,
    },
    DetachingVolumes {
        left: usize,
    },
    /// Volumes are not detached in time.
    VolumesHang {
        left: usize,
        drivers: String,
        /// Since when the eviction waits for them.
        since: Timestamp,
    },
    /// Pods and volumes are gone, and the node is not back.
    Finished {
        since: Timestamp,
    },
    /// Pods and volumes are gone, and the taint is removed at once.
    TaintRemoved,
    /// Pods and volumes are gone, and the node is back.
    BackInService,
    /// The node came back before the eviction finished.
    NodeReturned {
        /// Pods that its kubelet has to end.
        left: usize,
    },
    /// The node is back without a reboot, and its volumes were released.
    NotRebooted {
        node: NodeName,
    },
    /// A taint was removed before the eviction finished.
    Stopped,
    /// The request is gone.
    Forgotten,
    /// One of our annotations on the node cannot be trusted.
    AnnotationUnreadable {
        node: NodeName,
        annotation: &'static str,
        problem: String,
    },
    /// The API server refuses a write.
    WriteRefused {
        what: String,
        /// The server's message.
        words: String,
        /// True if the eviction had begun before.
        begun: bool,
    },
    /// A reported problem is over, and the eviction has not begun.
    NotBegun,
}

impl NodeWhy {
    /// True if an eviction that has begun is still under way with this reason.
    pub fn is_under_way(&self) -> bool {
        matches!(
            self,
            Self::NodeDown { .. }
                | Self::KubeletAlive { .. }
                | Self::EvictingPods { .. }
                | Self::ReleasingVolumes { .. }
                | Self::WaitingForPods { .. }
                | Self::DetachingVolumes { .. }
                | Self::VolumesHang { .. }
                | Self::WriteRefused { begun: true, .. }
        )
    }
}

impl fmt::Display for NodeWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str(DISABLED),
            Self::NotRequested => write!(f, "No taint asks for the eviction: neither {} nor one of eviction.triggers.", taints::FORCE_EVICTION),
            Self::AnotherRecoveryActs { who } => write!(f, "Another recovery acts on the node: {who}."),
            Self::LeaseUnread => f.write_str("The node's Lease has not been read yet."),
            Self::PodsUnread => f.write_str("The node's pods have not been read yet."),
            Self::AttachmentsUnread => f.write_str("The volumes attached to the node have not been read yet."),
            Self::NodeReady { request } => {
                write!(f, "The node is Ready, so nothing on it is touched, although the taint {request} says that it is down. If its kubelet never renews its Lease again, the taint was added too early.")
            }
            Self::StillReady => f.write_str(
                "The node is Ready, but its kubelet has not renewed its Lease for a while. Either the kubelet is alive, or the control plane has not noticed the failure yet.",
            ),
            Self::KubeletAlive { request } => {
                write!(f, "The node's kubelet renews its Lease, so the machine is not off, although the taint {request} says so. Nothing is forced.")
            }
            Self::NodeDown { request } => {
                write!(f, "The node is down: taint {request} says so, it is not Ready, and its Lease is not renewed. Its pods are marked Failed and deleted.")
            }
            Self::EvictingPods { left } => write!(f, "Pods that do not tolerate the eviction are marked Failed and deleted; {left} were left at last count."),
            Self::ReleasingVolumes { in_use, kept } => {
                write!(f, "The pods have ended. Of {in_use} volumes in use, those that no pod needs are released; {kept} claims belong to pods that stay.")
            }
            Self::WaitingForPods { left } => {
                write!(f, "{left} pods are left. They tolerate the eviction for a while, or they need proof that the machine is off.")
            }
            Self::DetachingVolumes { left } => write!(f, "The pods are gone; {left} volumes were still attached at last count."),
            Self::VolumesHang { left, drivers, since } => {
                write!(f, "{left} volumes are still attached, although they were released at {since}. Check the CSI driver {drivers}.")
            }
            Self::Finished { since } => write!(f, "Pods and volumes are gone since {since}."),
            Self::TaintRemoved => f.write_str("Pods and volumes are gone. The taint is removed, because removeTaint is WhenEvicted."),
            Self::BackInService => f.write_str("The node is Ready and renews its Lease. The taint is removed."),
            Self::NodeReturned { left } => {
                write!(f, "The node became Ready during its eviction. Nothing was forced from then on. Its kubelet ends the other pods, {left} at last count.")
            }
            Self::NotRebooted { node } => write!(
                f,
                "The node is Ready again, but its machine was not rebooted since the eviction began: it was only cut off. Containers of the \
                 evicted pods may still run on it and use the volumes that were released. The taint stays. Reboot the machine, and the \
                 taint goes by itself. Or make sure that nothing of those pods is left on it, and remove the taint by hand: kubectl taint \
                 node {node} {}-",
                taints::FORCE_EVICTION
            ),
            Self::Stopped => f.write_str("Somebody removed a taint during the eviction. The eviction has stopped."),
            Self::Forgotten => f.write_str("No taint asks for the eviction any more."),
            Self::AnnotationUnreadable { node, annotation, problem } => write!(
                f,
                "The annotation {annotation} is not valid: {problem}. So Salvor does not know the progress of the eviction, or whether somebody \
                 has stopped it, and does nothing. To end it: kubectl taint node {node} {key}- ; kubectl annotate node {node} {annotation}- . \
                 To start it again, remove the annotation only.",
                key = taints::FORCE_EVICTION
            ),
            Self::WriteRefused { what, words, .. } => {
                write!(f, "The API server does not allow Salvor to {what}: {words}. Salvor tries again every minute.")
            }
            Self::NotBegun => f.write_str("The problem that blocked the eviction is over. The eviction has not begun."),
        }
    }
}

impl Reason for NodeWhy {
    fn code(&self) -> &'static str {
        match self {
            Self::Disabled => "Disabled",
            Self::NotRequested => "NotRequested",
            Self::AnotherRecoveryActs { .. } => "AnotherRecoveryActs",
            Self::LeaseUnread => "LeaseUnread",
            Self::PodsUnread => "PodsUnread",
            Self::AttachmentsUnread => "AttachmentsUnread",
            Self::NodeReady { .. } => "NodeReady",
            Self::StillReady => "StillReady",
            Self::KubeletAlive { .. } => "KubeletAlive",
            Self::NodeDown { .. } => "NodeDown",
            Self::EvictingPods { .. } => "EvictingPods",
            Self::ReleasingVolumes { .. } => "ReleasingVolumes",
            Self::WaitingForPods { .. } => "WaitingForPods",
            Self::DetachingVolumes { .. } => "DetachingVolumes",
            Self::VolumesHang { .. } => "VolumesHang",
            Self::Finished { .. } => "Finished",
            Self::TaintRemoved => "TaintRemoved",
            Self::BackInService => "BackInService",
            Self::NodeReturned { .. } => "NodeReturned",
            Self::NotRebooted { .. } => "NotRebooted",
            Self::Stopped => "Stopped",
            Self::Forgotten => "Forgotten",
            Self::AnnotationUnreadable { .. } => "AnnotationUnreadable",
            Self::WriteRefused { .. } => "WriteRefused",
            Self::NotBegun => "NotBegun",
        }
    }

    fn what_would_change_it(&self) -> String {
        match self {
            Self::Disabled => ENABLING.into(),
            Self::NotRequested => format!(
                "The taint {}:{} on the node, or `salvor evict`, if the machine is off.",
                taints::FORCE_EVICTION,
                taints::NO_SCHEDULE
            ),
            Self::AnotherRecoveryActs { .. } => format!(
                "The other recovery ends. A person's request, by `salvor evict` or by the taint {}, goes first.",
                taints::FORCE_EVICTION
            ),
            Self::LeaseUnread | Self::PodsUnread | Self::AttachmentsUnread => {
                "Salvor is reading it.".into()
            }
            Self::NodeReady { .. } => "The node is not Ready, and its Lease is not renewed.".into(),
            Self::StillReady => "The kubelet renews its Lease, or Ready becomes Unknown.".into(),
            Self::KubeletAlive { .. } => {
                "Its Lease expires. If the kubelet is alive and the node must be evicted, switch the machine off first."
                    .into()
            }
            Self::NodeDown { .. } | Self::EvictingPods { .. } | Self::ReleasingVolumes { .. } => {
                "Only if, before it is done, the node is Ready again or the taint is removed.".into()
            }
            Self::WaitingForPods { .. } => format!(
                "Time, for pods with tolerationSeconds. The taint {}, for pods that need proof; with another value if the \
                 kubelet was alive after the taint was added.",
                taints::FORCE_EVICTION
            ),
            Self::DetachingVolumes { .. } => {
                "The attach/detach controller and the CSI drivers detach them.".into()
            }
            Self::VolumesHang { .. } => {
                "The CSI driver detaches them. Salvor never removes its finalizer.".into()
            }
            Self::Finished { .. } => {
                "When the node is Ready and renews its Lease, Salvor removes the taint; if volumes were released, only after \
                 a reboot (eviction.removeTaint)."
                    .into()
            }
            Self::TaintRemoved | Self::BackInService => {
                "Only if the node becomes unreachable again before it is done.".into()
            }
            Self::NodeReturned { .. } => {
                "The other pods end, or the node becomes unreachable again.".into()
            }
            Self::NotRebooted { node } => format!(
                "A reboot of the machine, which changes status.nodeInfo.bootID. Or a person removes the taint: kubectl taint node \
                 {node} {}-",
                taints::FORCE_EVICTION
            ),
            Self::Stopped => format!("Add the taint {} again to start it again.", taints::FORCE_EVICTION),
            Self::Forgotten => "A new taint.".into(),
            Self::AnnotationUnreadable { annotation, .. } => format!(
                "Correct or remove the annotation {annotation}. If the taint {} is still there, the eviction then starts again.",
                taints::FORCE_EVICTION
            ),
            Self::WriteRefused { .. } => "Correct what the API server names.".into(),
            Self::NotBegun => "A taint that asks for the eviction.".into(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodWhy {
    Disabled,
    NodeNotEvicted,
    StaticPod,
    Tolerates,
    /// The pod tolerates the eviction for a while.
    ToleratesUntil {
        until: Timestamp,
    },
    /// Everything was done; finalizers keep the object.
    HeldByFinalizers,
    LeaseUnread,
    /// The node is back: the pod is deleted with its own grace period.
    NodeReturned {
        node: NodeName,
    },
    /// The node is back, and the pod has ended or is already being deleted.
    LeftToKubelet,
    KubeletAlive,
    /// The pod was created after the eviction began, and its node was Ready since.
    CameLate,
    AnnotationUnreadable,
    /// Two copies of it must never run, and there is no proof that the machine is off.
    NeedsProof {
        /// Why they must not.
        because: String,
    },
    /// Its node is down. `Display` gives the message of its condition and event.
    NodeDown {
        node: NodeName,
        /// The taint that requested it.
        request: String,
    },
}

impl fmt::Display for PodWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str(DISABLED),
            Self::NodeNotEvicted => f.write_str("The pod's node is not being evicted."),
            Self::StaticPod => f.write_str("The pod is the mirror of a static pod, which belongs to its node."),
            Self::Tolerates => write!(f, "The pod tolerates {}.", taints::FORCE_EVICTION),
            Self::ToleratesUntil { until } => write!(f, "The pod tolerates {} until {until}.", taints::FORCE_EVICTION),
            Self::HeldByFinalizers => f.write_str("The pod was marked Failed and deleted. Only its finalizers keep it."),
            Self::LeaseUnread => f.write_str("The Lease of the pod's node has not been read yet."),
            Self::NodeReturned { node } => write!(f, "Node {node} is Ready again. The pod is deleted gracefully."),
            Self::LeftToKubelet => f.write_str("The pod's node is Ready again. Its kubelet ends the pod."),
            Self::KubeletAlive => f.write_str("The kubelet of the pod's node renews its Lease. Nothing is forced."),
            Self::CameLate => f.write_str(
                "The pod was created after the eviction of its node began, and the node was Ready since then. The pod is not evicted.",
            ),
            Self::AnnotationUnreadable => {
                f.write_str("Salvor's annotation on the pod's node is not valid, so nothing is done there.")
            }
            Self::NeedsProof { because } => {
                write!(f, "The pod must never run twice ({because}), and nothing proves that the machine is off.")
            }
            Self::NodeDown { node, request } => {
                write!(f, "Node {node} is down and its pods were evicted by force (requested by taint {request})")
            }
        }
    }
}

impl Reason for PodWhy {
    fn code(&self) -> &'static str {
        match self {
            Self::Disabled => "Disabled",
            Self::NodeNotEvicted => "NodeNotEvicted",
            Self::StaticPod => "StaticPod",
            Self::Tolerates => "Tolerates",
            Self::ToleratesUntil { .. } => "ToleratesUntil",
            Self::HeldByFinalizers => "HeldByFinalizers",
            Self::LeaseUnread => "LeaseUnread",
            Self::NodeReturned { .. } => "NodeReturned",
            Self::LeftToKubelet => "LeftToKubelet",
            Self::KubeletAlive => "KubeletAlive",
            Self::CameLate => "CameLate",
            Self::AnnotationUnreadable => "AnnotationUnreadable",
            Self::NeedsProof { .. } => "NeedsProof",
            Self::NodeDown { .. } => "NodeDown",
        }
    }

    fn what_would_change_it(&self) -> String {
        match self {
            Self::Disabled => ENABLING.into(),
            Self::NodeNotEvicted => {
                format!("The taint {} on its node, if the machine is off.", taints::FORCE_EVICTION)
            }
            Self::StaticPod => "Nothing: static pods are never touched.".into(),
            Self::Tolerates => {
                "Nothing: a toleration cannot be removed from a pod. Delete the pod by hand.".into()
            }
            Self::ToleratesUntil { .. } => {
                "Time. If the node is Ready before, its kubelet ends the pod.".into()
            }
            Self::HeldByFinalizers => {
                "The owners of its finalizers must remove them. Salvor never removes a finalizer of others."
                    .into()
            }
            Self::LeaseUnread => "Salvor is reading it.".into(),
            Self::NodeReturned { .. } | Self::LeftToKubelet => "The node becomes unreachable again.".into(),
            Self::KubeletAlive => "The Lease expires.".into(),
            Self::CameLate => {
                format!("Remove the taint {} from the node and add it again.", taints::FORCE_EVICTION)
            }
            Self::AnnotationUnreadable => "See the node's condition ForceEviction.".into(),
            Self::NeedsProof { .. } => format!(
                "The taint {} on the node: a person confirms that the machine is off. Use another value if its kubelet was \
                 alive after the taint was added.",
                taints::FORCE_EVICTION
            ),
            Self::NodeDown { .. } => {
                "Only if, before it is done, the node is Ready again or the taint is removed.".into()
            }
        }
    }
}

const DISABLED: &str = "The eviction recovery is off: it is not in the list of controllers.";
const ENABLING: &str = "An administrator enables it with eviction or * in --controllers.";

impl EvictionPolicy {
    /// What the rule about the switch observes.
    pub(super) fn switch(&self) -> &'static str {
        if self.enabled { "controller eviction is enabled" } else { "controller eviction is not enabled" }
    }
}
