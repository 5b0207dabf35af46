//! The writes that recoveries ask for, as data. Each names exactly the object that was judged.

use std::{borrow::Cow, fmt, sync::Arc};

use jiff::Timestamp;
use salvor_api::names::job::conditions::{FAILED, FAILURE_TARGET};
use serde::Serialize;

use crate::eviction::{Asked, AttachmentView, Claim, Progress};
use crate::job::JobStatus;
use crate::objects::{JobRef, NodeRef, PodPhase, PodRef, Taint};

/// Claims whose volumes stay that are named where an action is told.
const CLAIMS_NAMED: usize = 5;

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "kind")]
pub enum Subject {
    /// A pod.
    Pod(PodRef),
    /// A node.
    Node(NodeRef),
    /// A Job.
    Job(Arc<JobRef>),
    /// The Lease that Salvor's replicas share: Salvor itself.
    Lease {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl Subject {
    /// The namespace in which events about it are kept.
    pub fn event_namespace(&self) -> &str {
        match self {
            Self::Pod(pod) => &pod.namespace,
            Self::Job(job) => &job.namespace,
            // Where Kubernetes keeps the events of objects without a namespace.
            Self::Node(_) => "default",
            Self::Lease { namespace, .. } => namespace,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) => write!(f, "pod {pod}"),
            Self::Node(node) => write!(f, "node {node}"),
            Self::Job(job) => write!(f, "job {job}"),
            Self::Lease { namespace, name } => write!(f, "lease {namespace}/{name}"),
        }
    }
}

/// A condition to set to `True`, replacing one of the same type and leaving all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its reason.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
    /// Since when, to the second.
    pub last_transition_time: Timestamp,
}

/// A condition to set on a node, replacing one of the same type and leaving all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// Its reason.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
    /// Since when, to the second.
    pub last_transition_time: Timestamp,
}

/// How loudly an event speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum EventType {
    /// Something that should happen.
    Normal,
    /// Something that a person should know.
    Warning,
}

/// An event to record once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventNote {
    /// The event's own name, the same on every attempt, so that the API server refuses a second one.
    pub name: String,
    /// What it is about.
    pub regarding: Subject,
    /// How loudly it speaks.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// Why it was recorded. Of a Job's end this is whatever its conditions say.
    pub reason: Cow<'static, str>,
    /// What was done.
    pub action: &'static str,
    /// Who reports it.
    pub reporting_controller: &'static str,
    /// What a person reads.
    pub message: String,
}

/// Why a Job gets another pod, as the metric of Kubernetes' own controller names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CreationReason {
    /// No pod came before it.
    New,
    /// A pod is being deleted or has failed.
    RecreateTerminatingOrFailed,
    /// A pod has failed, and only such pods are replaced.
    RecreateFailed,
}

impl CreationReason {
    /// The metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::RecreateTerminatingOrFailed => "recreate_terminating_or_failed",
            Self::RecreateFailed => "recreate_failed",
        }
    }
}

/// What tells two steps apart besides what they do to which object.
#[derive(PartialEq, Eq)]
enum Detail<'a> {
    None,
    Claims(&'a [Claim]),
    Text(&'a str),
}

/// One guarded write, or some that may be under way together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verb", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Action {
    /// Changes a pod's status, if the pod is still exactly as it was judged.
    PatchPodStatus {
        /// The pod.
        pod: PodRef,
        /// The state that was judged.
        resource_version: String,
        /// The new phase, or none to keep it.
        phase: Option<PodPhase>,
        /// The conditions to set.
        conditions: Vec<Condition>,
    },
    /// Records an event.
    EmitEvent(EventNote),
    /// Deletes a pod at once, with no grace, if it is still exactly as it was judged.
    ForceDeletePod {
        /// The pod.
        pod: PodRef,
        /// The state that was judged.
        resource_version: String,
    },
    /// Adds a taint to a node, and an annotation that says who did, if the node is still exactly as it was judged.
    TaintNode {
        /// The node.
        node: NodeRef,
        /// The state that was judged.
        resource_version: String,
        /// The taint to add.
        taint: Taint,
        /// The annotation's key.
        mark: &'static str,
        /// The annotation's value.
        since: Timestamp,
    },
    /// Takes a taint that we added off a node, and the annotation with it, if the node is still exactly as it was judged.
    UntaintNode {
        /// The node.
        node: NodeRef,
        /// The state that was judged.
        resource_version: String,
        /// The taint to take off, if it is there.
        taint: Taint,
        /// The annotation's key.
        mark: &'static str,
    },
    /// Steps in any order and at the same time; all are tried, and what follows is done if all succeed.
    AtOnce(Vec<Action>),
    /// Records an event in passing: nothing waits for it, and nobody asks whether it was.
    Mention(EventNote),
    /// Creates a pod of a Job. Its name is chosen so that a repeated request is refused.
    CreatePod {
        /// The Job.
        job: Arc<JobRef>,
        /// The pod's name.
        name: String,
        /// The pod, as JSON.
        #[serde(skip)]
        body: String,
        /// Why it is needed.
        reason: CreationReason,
        /// Whether an event tells of it.
        told: bool,
    },
    /// Replaces a Job's status, if the Job is still exactly as it was judged.
    PatchJobStatus {
        /// The Job.
        job: Arc<JobRef>,
        /// The state that was judged.
        resource_version: String,
        /// The new status, whole.
        status: Box<JobStatus>,
        /// The names of pods that are used up, for the Job's annotation, if that changes.
        #[serde(skip_serializing_if = "Option::is_none")]
        used_names: Option<String>,
    },
    /// Takes a finalizer off a pod, if it still has that UID.
    RemoveFinalizer {
        /// The pod.
        pod: PodRef,
        /// The finalizer.
        finalizer: &'static str,
        /// Whether this rests on a Job being gone, so that its absence must be seen live.
        owner_gone: bool,
    },
    /// Deletes a pod with its own grace, if it still has that UID.
    DeletePod {
        /// The pod.
        pod: PodRef,
    },
    /// Deletes a pod with its own grace because its node is emptied, if the pod is still exactly as it was judged.
    EvictPod {
        /// The pod.
        pod: PodRef,
        /// The state that was judged.
        resource_version: String,
    },
    /// Makes a Job the owner of a pod that has none, and puts a finalizer on it.
    AdoptPod {
        /// The pod.
        pod: PodRef,
        /// The state that was judged.
        resource_version: String,
        /// The Job.
        job: Arc<JobRef>,
        /// The finalizer.
        finalizer: &'static str,
    },
    /// Takes a Job's ownership and a finalizer off a pod.
    ReleasePod {
        /// The pod.
        pod: PodRef,
        /// The Job.
        job: Arc<JobRef>,
        /// The finalizer.
        finalizer: &'static str,
    },
    /// Deletes a Job and all that it owns, if it is still exactly as it was judged.
    DeleteJob {
        /// The Job.
        job: Arc<JobRef>,
        /// The state that was judged.
        resource_version: String,
    },
    /// Writes on a node that its eviction has begun, and taints it so that its kubelet refuses pods, if the node is still
    /// exactly as it was judged.
    StartEviction {
        /// The node.
        node: NodeRef,
        /// The state that was judged.
        resource_version: String,
        /// The taint to add, if it is not there.
        taint: Option<Taint>,
        /// What is written.
        progress: Progress,
        /// The node's zone, for the brake.
        zone: String,
    },
    /// Writes the condition of a node's eviction, and how far it has come, if the node is still exactly as it was judged.
    ReportEviction {
        /// The node.
        node: NodeRef,
        /// The state that was judged.
        resource_version: String,
        /// The condition.
        condition: NodeCondition,
        /// How far it has come, if that changes.
        progress: Option<Progress>,
    },
    /// Takes volumes out of what a node has in use, so that they are detached, if the node is still exactly as it was
    /// judged.
    ReleaseVolumes {
        /// The node.
        node: NodeRef,
        /// The state that was judged.
        resource_version: String,
        /// What it has in use.
        in_use: Vec<String>,
        /// What is attached to it.
        attached: Vec<AttachmentView>,
        /// What the node's status says is attached to it.
        attached_names: Vec<String>,
        /// Claims whose volumes stay, in order.
        keep: Vec<Claim>,
        /// How far the eviction has come; the volumes that stay are added to it.
        progress: Progress,
    },
    /// Takes every taint with our key off a node, if the node is still exactly as it was judged.
    EndEviction {
        /// The node.
        node: NodeRef,
        /// The state that was judged.
        resource_version: String,
        /// What is still remembered of the eviction.
        progress: Option<Progress>,
        /// What is remembered of a request that is taken off early.
        asked: Option<Asked>,
    },
}

impl Action {
    /// Whether the objects are read live and judged once more right before this step: it takes something away from a
    /// workload, or cannot be taken back, or what it rests on is not watched.
    pub fn needs_a_second_look(&self) -> bool {
        self.is_disruptive()
            || match self {
                // Leases are not watched.
                Self::UntaintNode { .. } => true,
                // A Job that is gone from the view may only be late in it, and one that is going must not adopt. One that
                // is gone unseen must get no pod: its work would run for nobody.
                Self::DeleteJob { .. } | Self::AdoptPod { .. } | Self::CreatePod { .. } => true,
                // Without the taint a kubelet takes pods again.
                Self::EndEviction { .. } => true,
                Self::RemoveFinalizer { owner_gone, .. } => *owner_gone,
                Self::AtOnce(steps) => steps.iter().any(Self::needs_a_second_look),
                // Disruptive, and so looked at for that.
                Self::PatchPodStatus { .. }
                | Self::ForceDeletePod { .. }
                | Self::EvictPod { .. }
                | Self::TaintNode { .. }
                | Self::StartEviction { .. }
                | Self::ReleaseVolumes { .. } => true,
                Self::EmitEvent(_)
                | Self::Mention(_)
                | Self::PatchJobStatus { .. }
                | Self::DeletePod { .. }
                | Self::ReleasePod { .. }
                | Self::ReportEviction { .. } => false,
            }
    }

    /// Whether the step waits while a watch has been silent for too long: it takes something away from a workload, or it
    /// starts work that may not be wanted any more.
    pub fn needs_a_fresh_view(&self) -> bool {
        self.is_disruptive() || self.steps().iter().any(|step| matches!(step, Self::CreatePod { .. }))
    }

    /// Whether the step changes the object that was judged, so that a look from before it does not show it as it is.
    pub fn changes_what_was_judged(&self) -> bool {
        match self {
            Self::EmitEvent(_) | Self::Mention(_) | Self::CreatePod { .. } => false,
            Self::AtOnce(steps) => steps.iter().any(Self::changes_what_was_judged),
            Self::PatchPodStatus { .. }
            | Self::ForceDeletePod { .. }
            | Self::TaintNode { .. }
            | Self::UntaintNode { .. }
            | Self::EvictPod { .. }
            | Self::PatchJobStatus { .. }
            | Self::RemoveFinalizer { .. }
            | Self::DeletePod { .. }
            | Self::AdoptPod { .. }
            | Self::ReleasePod { .. }
            | Self::DeleteJob { .. }
            | Self::StartEviction { .. }
            | Self::ReportEviction { .. }
            | Self::ReleaseVolumes { .. }
            | Self::EndEviction { .. } => true,
        }
    }

    /// Whether the step takes something away from a workload. Then the brake must let it pass, it gets a second look, and
    /// it waits while the view is old.
    pub fn is_disruptive(&self) -> bool {
        match self {
            // A phase of Failed is never taken back, and the node that it rests on may have healed unseen. On an
            // out-of-service node Kubernetes itself force deletes pods and detaches volumes.
            Self::PatchPodStatus { .. } | Self::ForceDeletePod { .. } | Self::TaintNode { .. } => true,
            // A deletion is not taken back either, and the taint that it rests on may be gone unseen.
            Self::EvictPod { .. } => true,
            // What is begun evicts pods, and what is let go is detached.
            Self::StartEviction { .. } | Self::ReleaseVolumes { .. } => true,
            Self::ReportEviction { .. } | Self::EndEviction { .. } => false,
            Self::AtOnce(steps) => steps.iter().any(Self::is_disruptive),
            // What a Job's own controller does to the Job's own pods is the Job's spec, not a recovery from a failure.
            Self::CreatePod { .. }
            | Self::PatchJobStatus { .. }
            | Self::RemoveFinalizer { .. }
            | Self::DeletePod { .. }
            | Self::AdoptPod { .. }
            | Self::ReleasePod { .. }
            | Self::DeleteJob { .. } => false,
            Self::EmitEvent(_) | Self::Mention(_) | Self::UntaintNode { .. } => false,
        }
    }

    /// Whether the step cannot be taken back, so that it waits while it is not certain what time it is.
    pub fn is_irreversible(&self) -> bool {
        match self {
            Self::PatchPodStatus { .. } | Self::ForceDeletePod { .. } => true,
            Self::DeletePod { .. } | Self::EvictPod { .. } => true,
            Self::TaintNode { .. } | Self::StartEviction { .. } | Self::ReleaseVolumes { .. } => true,
            Self::DeleteJob { .. } => true,
            // A Job that has failed stays so, and it may be its deadline that it failed by.
            Self::PatchJobStatus { status, .. } => status.conditions.iter().any(|condition| {
                condition.status == "True" && [FAILED, FAILURE_TARGET].contains(&condition.kind.as_str())
            }),
            Self::AtOnce(steps) => steps.iter().any(Self::is_irreversible),
            Self::UntaintNode { .. } | Self::ReportEviction { .. } | Self::EndEviction { .. } => false,
            Self::CreatePod { .. }
            | Self::RemoveFinalizer { .. }
            | Self::AdoptPod { .. }
            | Self::ReleasePod { .. } => false,
            Self::EmitEvent(_) | Self::Mention(_) => false,
        }
    }

    /// The object that the step is about; none if they are several.
    pub fn subject(&self) -> Option<Subject> {
        match self {
            Self::PatchPodStatus { pod, .. }
            | Self::ForceDeletePod { pod, .. }
            | Self::RemoveFinalizer { pod, .. }
            | Self::DeletePod { pod }
            | Self::EvictPod { pod, .. }
            | Self::AdoptPod { pod, .. }
            | Self::ReleasePod { pod, .. } => Some(Subject::Pod(pod.clone())),
            Self::TaintNode { node, .. }
            | Self::UntaintNode { node, .. }
            | Self::StartEviction { node, .. }
            | Self::ReportEviction { node, .. }
            | Self::ReleaseVolumes { node, .. }
            | Self::EndEviction { node, .. } => Some(Subject::Node(node.clone())),
            Self::CreatePod { job, .. } | Self::PatchJobStatus { job, .. } | Self::DeleteJob { job, .. } => {
                Some(Subject::Job(job.clone()))
            }
            Self::EmitEvent(event) | Self::Mention(event) => Some(event.regarding.clone()),
            Self::AtOnce(_) => None,
        }
    }

    /// Whether another judgement asks for this very step: the same on the same object, for the same reasons as far as they
    /// are part of it.
    pub fn is_same_step(&self, other: &Self) -> bool {
        self.name() == other.name() && self.detail() == other.detail() && self.subject() == other.subject()
    }

    /// What tells two steps of one name on one object apart.
    fn detail(&self) -> Detail<'_> {
        match self {
            Self::ReleaseVolumes { keep, .. } => Detail::Claims(keep),
            Self::CreatePod { name, .. } => Detail::Text(name),
            // Its name may hold a time that another judgement puts differently.
            Self::EmitEvent(note) | Self::Mention(note) => Detail::Text(&note.reason),
            Self::RemoveFinalizer { finalizer, .. }
            | Self::AdoptPod { finalizer, .. }
            | Self::ReleasePod { finalizer, .. } => Detail::Text(finalizer),
            Self::PatchPodStatus { .. }
            | Self::ForceDeletePod { .. }
            | Self::TaintNode { .. }
            | Self::UntaintNode { .. }
            | Self::AtOnce(_)
            | Self::PatchJobStatus { .. }
            | Self::DeletePod { .. }
            | Self::EvictPod { .. }
            | Self::DeleteJob { .. }
            | Self::StartEviction { .. }
            | Self::ReportEviction { .. }
            | Self::EndEviction { .. } => Detail::None,
        }
    }

    /// The single steps in it.
    pub fn steps(&self) -> &[Self] {
        match self {
            Self::AtOnce(steps) => steps,
            one => std::slice::from_ref(one),
        }
    }

    /// The same, taken out of it.
    pub fn into_steps(self) -> Vec<Self> {
        match self {
            Self::AtOnce(steps) => steps,
            one => vec![one],
        }
    }

    /// A stable name for metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::PatchPodStatus { .. } => "PatchPodStatus",
            Self::EmitEvent(_) => "EmitEvent",
            Self::ForceDeletePod { .. } => "ForceDeletePod",
            Self::TaintNode { .. } => "TaintNode",
            Self::UntaintNode { .. } => "UntaintNode",
            Self::AtOnce(_) => "AtOnce",
            Self::Mention(_) => "Mention",
            Self::CreatePod { .. } => "CreatePod",
            Self::PatchJobStatus { .. } => "PatchJobStatus",
            Self::RemoveFinalizer { .. } => "RemoveFinalizer",
            Self::DeletePod { .. } => "DeletePod",
            Self::EvictPod { .. } => "EvictPod",
            Self::AdoptPod { .. } => "AdoptPod",
            Self::ReleasePod { .. } => "ReleasePod",
            Self::DeleteJob { .. } => "DeleteJob",
            Self::StartEviction { .. } => "StartEviction",
            Self::ReportEviction { .. } => "ReportEviction",
            Self::ReleaseVolumes { .. } => "ReleaseVolumes",
            Self::EndEviction { .. } => "EndEviction",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PatchPodStatus { pod, phase, conditions, .. } => {
                write!(f, "patch the status of pod {pod}:")?;
                match phase {
                    Some(phase) => write!(f, " phase {phase},")?,
                    None => f.write_str(" phase kept,")?,
                }
                for (position, condition) in conditions.iter().enumerate() {
                    let separator = if position == 0 { "" } else { "," };
                    write!(f, "{separator} condition {}=True ({})", condition.kind, condition.reason)?;
                }
                Ok(())
            }
            Self::EmitEvent(event) | Self::Mention(event) => {
                write!(f, "record the {:?} event {} on {}", event.kind, event.reason, event.regarding)
            }
            Self::ForceDeletePod { pod, .. } => write!(f, "delete pod {pod} with no grace"),
            Self::TaintNode { node, taint, .. } => write!(f, "taint node {node} with {taint}"),
            Self::UntaintNode { node, taint, .. } => {
                write!(f, "take the taint {taint} off node {node}")
            }
            Self::AtOnce(steps) => {
                let Some(first) = steps.first() else { return f.write_str("nothing") };
                write!(f, "{first}")?;
                if steps.len() > 1 { write!(f, ", and {} more like it", steps.len() - 1) } else { Ok(()) }
            }
            Self::CreatePod { job, name, .. } => write!(f, "create pod {}/{name}", job.namespace),
            Self::PatchJobStatus { job, status, .. } => {
                write!(f, "write the status of job {job}: ")?;
                let JobStatus { active, succeeded, failed, terminating, .. } = &**status;
                write!(f, "active {active}, succeeded {succeeded}, failed {failed}")?;
                if let Some(terminating) = terminating {
                    write!(f, ", terminating {terminating}")?;
                }
                status
                    .conditions
                    .iter()
                    .filter(|c| c.status == "True")
                    .try_for_each(|c| write!(f, ", {}", c.kind))
            }
            Self::RemoveFinalizer { pod, finalizer, .. } => write!(f, "take {finalizer} off pod {pod}"),
            Self::DeletePod { pod } => write!(f, "delete pod {pod}"),
            Self::EvictPod { pod, .. } => write!(f, "evict pod {pod} with its own grace"),
            Self::AdoptPod { pod, job, .. } => write!(f, "adopt pod {pod} into job {job}"),
            Self::ReleasePod { pod, job, .. } => write!(f, "release pod {pod} from job {job}"),
            Self::DeleteJob { job, .. } => write!(f, "delete job {job}"),
            Self::StartEviction { node, taint: Some(taint), .. } => {
                write!(f, "begin to evict node {node}, and taint it with {taint}")
            }
            Self::StartEviction { node, taint: None, .. } => write!(f, "begin to evict node {node}"),
            Self::ReportEviction { node, condition, .. } => {
                write!(
                    f,
                    "report on node {node}: {}={} ({})",
                    condition.kind, condition.holds, condition.reason
                )
            }
            Self::ReleaseVolumes { node, keep, .. } => {
                write!(f, "let the volumes of evicted pods go that node {node} has in use")?;
                // Anybody may have thousands of claims.
                let (named, more) = keep.split_at(keep.len().min(CLAIMS_NAMED));
                named.iter().try_for_each(|claim| write!(f, ", but not that of claim {claim}"))?;
                if more.is_empty() { Ok(()) } else { write!(f, ", nor those of {} more", more.len()) }
            }
            Self::EndEviction { node, .. } => {
                write!(f, "take the taint {} off node {node}", salvor_api::names::taints::FORCE_EVICTION)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> PodRef {
        PodRef { namespace: "ns".into(), name: "p".into(), uid: "u".into() }
    }

    fn create(name: &str) -> Action {
        Action::CreatePod {
            job: Arc::new(JobRef { namespace: "ns".into(), name: "j".into(), uid: "j".into() }),
            name: name.into(),
            body: String::new(),
            reason: CreationReason::New,
            told: false,
        }
    }

    fn event(name: &str, reason: &'static str) -> Action {
        Action::EmitEvent(EventNote {
            name: name.into(),
            regarding: Subject::Pod(pod()),
            kind: EventType::Normal,
            reason: reason.into(),
            action: "Tell",
            reporting_controller: "test",
            message: String::new(),
        })
    }

    fn force_delete(revision: &str) -> Action {
        Action::ForceDeletePod { pod: pod(), resource_version: revision.into() }
    }

    #[test]
    fn steps_at_once_need_what_any_of_them_needs() {
        let at_once = |steps: &[Action]| Action::AtOnce(steps.to_vec());
        let told = event("a", "Told");
        // Whether it is disruptive, needs a second look, and needs a fresh view.
        let cases = [
            (told.clone(), [false, false, false]),
            (create("a"), [false, true, true]),
            (force_delete("1"), [true, true, true]),
            (Action::DeletePod { pod: pod() }, [false, false, false]),
            (at_once(&[told.clone(), create("a")]), [false, true, true]),
            (at_once(&[told.clone(), force_delete("1")]), [true, true, true]),
            (at_once(&[told]), [false, false, false]),
        ];
        for (action, expected) in cases {
            let found = [action.is_disruptive(), action.needs_a_second_look(), action.needs_a_fresh_view()];
            assert_eq!(found, expected, "{action}");
        }
    }

    #[test]
    fn a_step_is_the_same_whatever_state_it_names_and_another_for_another_pod_or_event() {
        assert!(force_delete("1").is_same_step(&force_delete("2")));
        assert!(create("a").is_same_step(&create("a")));
        assert!(!create("a").is_same_step(&create("b")));
        assert!(event("a.1", "Started").is_same_step(&event("a.2", "Started")));
        assert!(!event("a.1", "Started").is_same_step(&event("a.1", "Ended")));
        assert!(!event("a.1", "Started").is_same_step(&force_delete("1")));
    }
}
