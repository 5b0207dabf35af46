//! Why the eviction recovery does what it does. All its sentences are in here.

use std::fmt;

use jiff::Timestamp;
use salvor_api::names::taints;

use super::policy::EvictionPolicy;
use crate::one_actor::NodeActor;
use crate::verdict::Reason;

/// Why a node is, or is not, emptied. The codes of a node that is being emptied are the reasons of its condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeWhy {
    /// The recovery is switched off.
    Disabled,
    /// No taint asks for it.
    NotRequested,
    /// Another recovery acts on the node.
    AnotherRecoveryActs {
        /// Which one.
        who: NodeActor,
    },
    /// The node's Lease was not read yet.
    LeaseUnread,
    /// The node's pods were not read yet.
    PodsUnread,
    /// The volumes attached to the node were not read yet.
    AttachmentsUnread,
    /// The node is Ready.
    NodeReady {
        /// The taint that asks for it.
        request: String,
    },
    /// The node is called Ready, but has not shown for a while that it lives.
    StillReady,
    /// The node's kubelet renews its Lease.
    KubeletAlive {
        /// The taint that asks for it.
        request: String,
    },
    /// The node is down, as somebody said.
    NodeDown {
        /// The taint that asks for it.
        request: String,
    },
    /// Pods are being failed and deleted.
    EvictingPods {
        /// How many are left.
        left: usize,
    },
    /// Volumes are let go.
    ReleasingVolumes {
        /// How many the node has in use.
        in_use: usize,
        /// Claims whose volumes stay.
        kept: usize,
    },
    /// Pods are left that go later.
    WaitingForPods {
        /// How many.
        left: usize,
    },
    /// Volumes are being detached.
    DetachingVolumes {
        /// How many are left.
        left: usize,
    },
    /// Volumes are not detached.
    VolumesHang {
        /// How many are left.
        left: usize,
        /// Their drivers.
        drivers: String,
        /// Since when they are waited for.
        since: Timestamp,
    },
    /// Pods and volumes are gone, and the node is not back.
    Finished {
        /// Since when.
        since: Timestamp,
    },
    /// Pods and volumes are gone, and the taint goes at once.
    TaintRemoved,
    /// Pods and volumes are gone, and the node is back.
    BackInService,
    /// The node came back in the middle.
    NodeReturned {
        /// Pods that its kubelet has to end.
        left: usize,
    },
    /// Somebody took a taint away in the middle.
    Stopped,
    /// Nobody asks any more.
    Forgotten,
    /// One of our annotations on the node cannot be believed.
    AnnotationUnreadable {
        /// The node.
        node: String,
        /// The annotation.
        annotation: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The API server refuses a write.
    WriteRefused {
        /// The write.
        what: String,
        /// What the server says.
        words: String,
        /// Whether the eviction had begun before.
        begun: bool,
    },
    /// A trouble that was reported is over, and the eviction has not begun.
    NotBegun,
}

/// Reasons of the condition on a node whose eviction may not even have begun.
pub(super) const TROUBLES: [&str; 2] = ["AnnotationUnreadable", "WriteRefused"];

impl NodeWhy {
    /// Whether a node's eviction that has begun is still under way while this holds.
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
            Self::NotRequested => write!(f, "No taint asks for it: neither {} nor one of eviction.triggers.", taints::FORCE_EVICTION),
            Self::AnotherRecoveryActs { who } => write!(f, "Another recovery acts on the node: {who}."),
            Self::LeaseUnread => f.write_str("The node's Lease has not been read yet."),
            Self::PodsUnread => f.write_str("The node's pods have not been read yet."),
            Self::AttachmentsUnread => f.write_str("The volumes attached to the node have not been read yet."),
            Self::NodeReady { request } => {
                write!(f, "The node is Ready, so nothing on it is touched, whatever the taint {request} says. If its kubelet is never heard of again, that was said too early.")
            }
            Self::StillReady => f.write_str(
                "The node is called Ready, but has not renewed its Lease for a while: either it lives, or that it is lost was not noticed yet.",
            ),
            Self::KubeletAlive { request } => {
                write!(f, "The node's kubelet renews its Lease, so the machine is not off, whatever the taint {request} says: nothing is forced.")
            }
            Self::NodeDown { request } => {
                write!(f, "The node is down by the word of taint {request}, not Ready, and its Lease is not renewed: its pods are failed and deleted.")
            }
            Self::EvictingPods { left } => write!(f, "Pods that do not tolerate the eviction are failed and deleted; {left} were left at last count."),
            Self::ReleasingVolumes { in_use, kept } => {
                write!(f, "The pods have ended: of {in_use} volumes in use those are let go that no pod needs; {kept} claims are of pods that stay.")
            }
            Self::WaitingForPods { left } => {
                write!(f, "{left} pods are left that tolerate the eviction for a while, or that wait for proof that the machine is off.")
            }
            Self::DetachingVolumes { left } => write!(f, "The pods are gone; {left} volumes were still attached at last count."),
            Self::VolumesHang { left, drivers, since } => {
                write!(f, "{left} volumes are still attached, although they were let go at {since}: look at the CSI driver {drivers}.")
            }
            Self::Finished { since } => write!(f, "Pods and volumes are gone since {since}."),
            Self::TaintRemoved => f.write_str("Pods and volumes are gone; the taint is taken off, as removeTaint=WhenEvicted asks."),
            Self::BackInService => f.write_str("The node is Ready with a fresh Lease; the taint is taken off."),
            Self::NodeReturned { left } => {
                write!(f, "The node came back while it was emptied: nothing was forced from then on. Its kubelet ends the rest, {left} pods at last count.")
            }
            Self::Stopped => f.write_str("Somebody took a taint off in the middle: the eviction has stopped."),
            Self::Forgotten => f.write_str("No taint asks for it any more."),
            Self::AnnotationUnreadable { node, annotation, problem } => write!(
                f,
                "The annotation {annotation} cannot be believed: {problem}. Nobody knows how far the eviction has come, or whether somebody \
                 has stopped it, so nothing is done. To end it: kubectl taint node {node} {key}- ; kubectl annotate node {node} {annotation}- . \
                 To begin it anew, take off the annotation only.",
                key = taints::FORCE_EVICTION
            ),
            Self::WriteRefused { what, words, .. } => {
                write!(f, "The API server does not let Salvor {what}: {words}. It is tried again every minute.")
            }
            Self::NotBegun => f.write_str("What kept the eviction from going on is over; it has not begun."),
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
                "The end of what that recovery does. A person's word, as of `salvor evict` or by the taint {}, goes before it.",
                taints::FORCE_EVICTION
            ),
            Self::LeaseUnread | Self::PodsUnread | Self::AttachmentsUnread => {
                "Reading it, which is under way.".into()
            }
            Self::NodeReady { .. } => "The node must not be Ready, and its Lease must not be renewed.".into(),
            Self::StillReady => "A renewal of its Lease, or Ready turning Unknown.".into(),
            Self::KubeletAlive { .. } => {
                "Its Lease running out. If the kubelet lives and the machine must go, switch it off first."
                    .into()
            }
            Self::NodeDown { .. } | Self::EvictingPods { .. } | Self::ReleasingVolumes { .. } => {
                "The node's return, or the taint taken off, before it is done.".into()
            }
            Self::WaitingForPods { .. } => format!(
                "Time, for pods with tolerationSeconds; the taint {} for pods that need proof, with another value if the \
                 kubelet was heard of since it was put on.",
                taints::FORCE_EVICTION
            ),
            Self::DetachingVolumes { .. } => {
                "The attach/detach controller and the CSI drivers detaching them.".into()
            }
            Self::VolumesHang { .. } => {
                "The CSI driver detaching them; Salvor never removes its finalizer.".into()
            }
            Self::Finished { .. } => "The node Ready with a fresh Lease: then the taint goes.".into(),
            Self::TaintRemoved | Self::BackInService => {
                "Only the node's falling silent again before it is done.".into()
            }
            Self::NodeReturned { .. } => {
                "The pods that are left ending, or the node falling silent again.".into()
            }
            Self::Stopped => format!("The taint {} put on again begins it anew.", taints::FORCE_EVICTION),
            Self::Forgotten => "A new taint.".into(),
            Self::AnnotationUnreadable { annotation, .. } => format!(
                "The annotation {annotation} mended or taken off. A taint {} that still stands then begins it anew.",
                taints::FORCE_EVICTION
            ),
            Self::WriteRefused { .. } => "What the API server names being put right.".into(),
            Self::NotBegun => "A taint that asks for it.".into(),
        }
    }
}

/// Why a pod is, or is not, evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodWhy {
    /// The recovery is switched off.
    Disabled,
    /// Its node is not being emptied.
    NodeNotEvicted,
    /// It is a static pod's image.
    StaticPod,
    /// It tolerates the eviction.
    Tolerates,
    /// It tolerates the eviction for a while.
    ToleratesUntil {
        /// Until when.
        until: Timestamp,
    },
    /// All was done; finalizers hold it.
    HeldByFinalizers,
    /// The node's Lease was not read yet.
    LeaseUnread,
    /// The node is back: the pod is asked to end.
    NodeReturned {
        /// The node.
        node: String,
    },
    /// The node is back, and the kubelet has been told already.
    LeftToKubelet,
    /// The node's kubelet renews its Lease.
    KubeletAlive,
    /// It was made after the eviction began, and its node was back since.
    CameLate,
    /// One of our annotations on its node cannot be believed.
    AnnotationUnreadable,
    /// Two of it must never run, and nobody has said that the machine is off.
    NeedsProof {
        /// Why they must not.
        because: String,
    },
    /// Its node is down. Prints as the message of its condition and event.
    NodeDown {
        /// The node.
        node: String,
        /// The taint that asked for it.
        request: String,
    },
}

impl fmt::Display for PodWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str(DISABLED),
            Self::NodeNotEvicted => f.write_str("The pod's node is not being emptied."),
            Self::StaticPod => f.write_str("It is the image of a static pod, which belongs to its node."),
            Self::Tolerates => write!(f, "The pod tolerates {}.", taints::FORCE_EVICTION),
            Self::ToleratesUntil { until } => write!(f, "The pod tolerates {} until {until}.", taints::FORCE_EVICTION),
            Self::HeldByFinalizers => f.write_str("The pod has failed and was deleted; only its finalizers hold it."),
            Self::LeaseUnread => f.write_str("The Lease of the pod's node has not been read yet."),
            Self::NodeReturned { node } => write!(f, "Node {node} is Ready again: the pod is deleted gracefully."),
            Self::LeftToKubelet => f.write_str("The pod's node is Ready again: its kubelet ends the pod."),
            Self::KubeletAlive => f.write_str("The kubelet of the pod's node renews its Lease: nothing is forced."),
            Self::CameLate => f.write_str(
                "The pod was made after the eviction of its node began, and the node was back since: it is left alone.",
            ),
            Self::AnnotationUnreadable => {
                f.write_str("What Salvor wrote on the pod's node cannot be believed, so nothing is done there.")
            }
            Self::NeedsProof { because } => {
                write!(f, "Two of the pod must never run ({because}), and nothing proves that the machine is off.")
            }
            Self::NodeDown { node, request } => {
                write!(f, "Node {node} is down and was emptied by force, asked for by taint {request}")
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
            Self::Tolerates => "Nothing: a toleration cannot be taken back. Delete the pod by hand.".into(),
            Self::ToleratesUntil { .. } => {
                "Time. If the node returns before, the pod is left to its kubelet.".into()
            }
            Self::HeldByFinalizers => {
                "Its finalizers' owners must let go of it; Salvor never removes a finalizer of others.".into()
            }
            Self::LeaseUnread => "Reading it, which is under way.".into(),
            Self::NodeReturned { .. } | Self::LeftToKubelet => "The node falling silent again.".into(),
            Self::KubeletAlive => "The Lease running out.".into(),
            Self::CameLate => {
                format!("The taint {} taken off the node and put on again.", taints::FORCE_EVICTION)
            }
            Self::AnnotationUnreadable => "See the node's condition ForceEviction.".into(),
            Self::NeedsProof { .. } => format!(
                "The taint {} on the node, which is a person's word that the machine is off; with another value if its kubelet was \
                 heard of since it was put on.",
                taints::FORCE_EVICTION
            ),
            Self::NodeDown { .. } => "The node's return, or the taint taken off, before it is done.".into(),
        }
    }
}

const DISABLED: &str = "The eviction recovery is off: the list of controllers leaves it out.";
const ENABLING: &str = "The administrator's --controllers list with eviction or * would enable it.";

impl EvictionPolicy {
    /// What the rules say about whether recovery is on.
    pub(super) fn switch(&self) -> &'static str {
        if self.enabled { "controller eviction is enabled" } else { "controller eviction is not enabled" }
    }
}
