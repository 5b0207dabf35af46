//! The closed list of root causes. `docs/why.md` has a section for each.

use serde::Serialize;

/// A root cause. Their order is that of an answer: what stays broken until somebody acts comes before what ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Code {
    /// An AppWrapper has given up.
    WorkloadFailed,
    /// A Job has given up after too many failures.
    BackoffLimitExceeded,
    /// A Job ran for too long.
    DeadlineExceeded,
    /// A Job has failed for another reason.
    JobFailed,
    /// A pod has failed, and nobody replaces it.
    PodFailed,
    /// A pod is on a node that is gone, and nobody here may act on it.
    NodeLost,
    /// The same, and no replica of Salvor leads.
    NobodyLeads,
    /// The same, and the pod's owner has not consented.
    NotOptedIn,
    /// The same, and the recovery is switched off.
    RecoveryOff,
    /// The same, and the brake or a pause holds the recovery back.
    BrakeHolds,
    /// A node is sick, and its repair is held back.
    RepairBlocked,
    /// A node is not Ready by its own kubelet's word.
    NodeSick,
    /// A volume is attached to another node.
    VolumeAttachedElsewhere,
    /// A pod has ended, and a finalizer holds it.
    FinalizerHolds,
    /// Nobody runs the Job.
    ControllerAbsent,
    /// A pod needs a ConfigMap or Secret that is not there.
    ConfigMissing,
    /// An image cannot be pulled.
    ImagePullFailed,
    /// A container cannot be started, for another reason that the kubelet tells.
    StartFailed,
    /// A container ends again and again.
    CrashLooping,
    /// A container runs and is not ready.
    NotReady,
    /// A claim has no volume.
    VolumeUnbound,
    /// A quota has no room for a pod.
    QuotaExceeded,
    /// A policy or webhook refuses the pod.
    AdmissionRefused,
    /// No node takes the pod.
    Unschedulable,
    /// Kueue took the workload's quota back.
    KueuePreempted,
    /// Kueue has not admitted the workload.
    KueueNotAdmitted,
    /// Its owner has suspended it.
    Suspended,
    /// A disruption budget keeps a pod on a cordoned node.
    DisruptionBudget,
    /// The wait before a recovery is running.
    GraceRunning,
    /// A pod is still ending.
    AwaitingTermination,
    /// A Job waits before it replaces a failed pod.
    BackoffRunning,
    /// An AppWrapper is being reset.
    WorkloadResetting,
    /// A container is still being started.
    Starting,
    /// Nobody can tell from here.
    Unknown,
}

impl Code {
    /// All of them, worst first.
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

    /// Its name, as in JSON.
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}
