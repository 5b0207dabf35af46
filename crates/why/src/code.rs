//! The closed list of root causes. `docs/guides/why.md` has a section for each.

use serde::Serialize;

/// A root cause. Answers list causes in this order: causes that need a person come before causes that resolve by
/// themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Code {
    /// An AppWrapper failed for good.
    WorkloadFailed,
    /// A Job failed after too many pod failures.
    BackoffLimitExceeded,
    /// A Job exceeded its active deadline.
    DeadlineExceeded,
    JobFailed,
    /// A pod failed, and nothing replaces it.
    PodFailed,
    /// A pod is on a lost node, and Salvor may not act on it.
    NodeLost,
    /// A pod is on a lost node, and no replica of Salvor leads.
    NobodyLeads,
    /// A pod is on a lost node, and its owner has not consented.
    NotOptedIn,
    /// A pod is on a lost node, and the recovery is switched off.
    RecoveryOff,
    /// A pod is on a lost node, and the brake or a pause blocks the recovery.
    BrakeHolds,
    /// A node is sick, and its repair is blocked.
    RepairBlocked,
    /// A node is not Ready, as its own kubelet reports.
    NodeSick,
    VolumeAttachedElsewhere,
    /// A pod has ended, and a finalizer blocks its deletion.
    FinalizerHolds,
    /// No controller acts on the Job.
    ControllerAbsent,
    ConfigMissing,
    ImagePullFailed,
    /// A container cannot be started, for any other reason that the kubelet reports.
    StartFailed,
    /// A container exits again and again.
    CrashLooping,
    /// A container runs and is not ready.
    NotReady,
    /// A PersistentVolumeClaim has no volume.
    VolumeUnbound,
    QuotaExceeded,
    AdmissionRefused,
    /// No node accepts the pod.
    Unschedulable,
    /// Kueue preempted the workload and took its quota back.
    KueuePreempted,
    KueueNotAdmitted,
    Suspended,
    /// A PodDisruptionBudget keeps a pod on a cordoned node.
    DisruptionBudget,
    /// The grace period before a recovery is running.
    GraceRunning,
    /// A pod is still terminating.
    AwaitingTermination,
    BackoffRunning,
    WorkloadResetting,
    Starting,
    /// The cause cannot be determined from what this reader may read.
    Unknown,
}

/// How far a recovery is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It acts by itself after a wait.
    Waiting,
    /// Something must change first.
    Blocked,
}

impl Code {
    /// All codes, worst first.
    pub const ALL: [Self; 34] = [
        Self::WorkloadFailed,
        Self::BackoffLimitExceeded,
        Self::DeadlineExceeded,
        Self::JobFailed,
        Self::PodFailed,
        Self::NodeLost,
        Self::NobodyLeads,
        Self::NotOptedIn,
        Self::RecoveryOff,
        Self::BrakeHolds,
        Self::RepairBlocked,
        Self::NodeSick,
        Self::VolumeAttachedElsewhere,
        Self::FinalizerHolds,
        Self::ControllerAbsent,
        Self::ConfigMissing,
        Self::ImagePullFailed,
        Self::StartFailed,
        Self::CrashLooping,
        Self::NotReady,
        Self::VolumeUnbound,
        Self::QuotaExceeded,
        Self::AdmissionRefused,
        Self::Unschedulable,
        Self::KueuePreempted,
        Self::KueueNotAdmitted,
        Self::Suspended,
        Self::DisruptionBudget,
        Self::GraceRunning,
        Self::AwaitingTermination,
        Self::BackoffRunning,
        Self::WorkloadResetting,
        Self::Starting,
        Self::Unknown,
    ];

    /// What a recovery of Salvor does about the cause; `None` if it is none of Salvor's concern.
    pub fn recovery(self) -> Option<Stage> {
        match self {
            Self::GraceRunning | Self::WorkloadResetting => Some(Stage::Waiting),
            Self::NodeLost
            | Self::NobodyLeads
            | Self::NotOptedIn
            | Self::RecoveryOff
            | Self::BrakeHolds
            | Self::RepairBlocked => Some(Stage::Blocked),
            Self::WorkloadFailed
            | Self::BackoffLimitExceeded
            | Self::DeadlineExceeded
            | Self::JobFailed
            | Self::PodFailed
            | Self::NodeSick
            | Self::VolumeAttachedElsewhere
            | Self::FinalizerHolds
            | Self::ControllerAbsent
            | Self::ConfigMissing
            | Self::ImagePullFailed
            | Self::StartFailed
            | Self::CrashLooping
            | Self::NotReady
            | Self::VolumeUnbound
            | Self::QuotaExceeded
            | Self::AdmissionRefused
            | Self::Unschedulable
            | Self::KueuePreempted
            | Self::KueueNotAdmitted
            | Self::Suspended
            | Self::DisruptionBudget
            | Self::AwaitingTermination
            | Self::BackoffRunning
            | Self::Starting
            | Self::Unknown => None,
        }
    }

    pub fn name(self) -> String {
        format!("{self:?}")
    }
}
