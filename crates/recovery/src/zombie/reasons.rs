//! The reasons of zombie recovery, with all their sentences.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use salvor_api::GoDuration;
use salvor_api::config::TerminateAction;
use salvor_api::names::{annotations, taints};

use super::job_facts::Doom;
use super::policy::{Consent, ConsentSource, Disabled, EvictAfter, EvictBy, WaitBy};
use super::views::{AskedWait, PodView};
use crate::ids::NodeName;
use crate::liveness::Heartbeat;
use crate::objects::{JobRef, PodPhase};
use crate::one_actor::NodeActor;
use crate::verdict::Reason;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodWhy {
    Disabled(Disabled),
    /// The pod is not being deleted.
    NotTerminating {
        /// Why its annotation about evict-after does not count, if it has one.
        evict_after: Option<Box<str>>,
    },
    /// Neither annotation nor rule permits it.
    NotOptedIn {
        /// An annotation that exists with a value that does not consent.
        near_miss: Option<(&'static str, String)>,
    },
    /// Everything was done before.
    AlreadyRecovered {
        action: TerminateAction,
    },
    /// Everything was done before except the event.
    Unannounced,
    /// The pod has ended, and only its deletion would be left, for which there is no consent.
    AlreadyTerminal {
        phase: PodPhase,
    },
    NotScheduled,
    /// The pod's Node is gone.
    NodeMissing {
        node: NodeName,
    },
    /// The node does not have the unreachable taint.
    NodeReachable {
        node: NodeName,
    },
    /// The node is Ready, despite its taint.
    NodeReady {
        node: NodeName,
    },
    /// The pod's own annotation about its wait cannot be read, and that was not reported yet.
    UnreadableWait(Box<Terms>),
    /// The pod's own annotation about evict-after cannot be read, and that was not reported yet.
    UnreadableEvictAfter(Box<str>),
    /// The node may still come back before the pod is given up.
    EvictAfterRunning {
        node: NodeName,
        /// When the pod is given up.
        due: Timestamp,
        consent: ConsentSource,
        terms: Box<EvictTerms>,
    },
    /// The pod may still end on its own.
    GraceRunning {
        /// When it counts as stuck.
        due: Timestamp,
        consent: ConsentSource,
        terms: Box<Terms>,
    },
    /// The node has not been lost for long enough.
    UnreachableTooBriefly {
        node: NodeName,
        since: Timestamp,
        /// The required time.
        minimum: SignedDuration,
    },
    /// The node's kubelet renews its Lease, or may, so it can end the pod.
    KubeletAlive {
        node: NodeName,
        heartbeat: Box<Heartbeat>,
    },
    /// The effect of the failure on the pod's Job is not known yet.
    JobUnread {
        job: Box<JobRef>,
    },
    /// The effect of the failure on the pod's Job cannot be known.
    JobUnreadable {
        job: Box<JobRef>,
        error: Box<str>,
    },
    /// The pod's Job would fail for good.
    JobWouldFail {
        job: Box<JobRef>,
        doom: Doom,
    },
    /// The limit of the pod's Job is raised first, because the Job would fail otherwise.
    RaisesBackoffLimit {
        job: Box<JobRef>,
        from: u32,
        to: u32,
    },
    /// The decision on another pod raises the limit of their Job first.
    AwaitsBackoffLimit {
        job: Box<JobRef>,
    },
    /// The pod is stuck.
    Zombie(ZombieFacts),
    /// The pod is stuck, and an earlier recovery stopped half-way.
    HalfRecovered(ZombieFacts),
}

/// The wait after a pod's own grace period, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    wait: SignedDuration,
    by: WaitBy,
    asked: AskedWait,
}

impl Terms {
    pub(super) fn of(pod: &PodView, consent: Consent) -> Box<Self> {
        Box::new(Self { wait: consent.wait, by: consent.wait_by, asked: pod.consent.wait.clone() })
    }
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const KEY: &str = annotations::TERMINATION_GRACE_AFTER;
        write!(f, "{} after its grace period", in_words(self.wait))?;
        match (self.by, &self.asked) {
            (WaitBy::Rule, AskedWait::Unset) | (WaitBy::Setting, _) => Ok(()),
            (WaitBy::Rule, _) => {
                write!(f, ", by the rule: annotation {KEY} counts only beside an opt-in annotation")
            }
            (WaitBy::Annotation, _) => write!(f, ", by annotation {KEY}"),
            (WaitBy::Floor { asked }, _) => write!(
                f,
                ", by failureRecoveryPolicy.annotatedPods.minimumForcefulTerminationGracePeriod: annotation {KEY} asks for {}",
                in_words(asked)
            ),
            (WaitBy::SettingInstead, AskedWait::Unreadable { value, defect }) => {
                write!(
                    f,
                    ", by failureRecoveryPolicy.annotatedPods.forcefulTerminationGracePeriod: annotation {KEY} is {value:?}, which {defect}"
                )
            }
            (WaitBy::SettingInstead, AskedWait::Unset | AskedWait::For(_)) => Ok(()),
        }
    }
}

/// How long after the loss of its node a pod is given up, and the source of that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictTerms {
    evict: EvictAfter,
    asked: AskedWait,
}

impl EvictTerms {
    pub(super) fn of(pod: &PodView, evict: EvictAfter) -> Self {
        Self { evict, asked: pod.consent.evict_after.clone() }
    }
}

impl fmt::Display for EvictTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const KEY: &str = annotations::EVICT_AFTER;
        write!(f, "{} after its node became unreachable, by ", in_words(self.evict.after))?;
        match self.evict.by {
            EvictBy::Annotation => write!(f, "annotation {KEY}"),
            EvictBy::Floor { asked } => write!(
                f,
                "failureRecoveryPolicy.minimumEvictAfter: annotation {KEY} asks for {}",
                in_words(asked)
            ),
            EvictBy::Setting => {
                f.write_str("failureRecoveryPolicy.annotatedPods.evictAfter")?;
                unreadable_evict_after(&self.asked).map_or(Ok(()), |defect| write!(f, ": {defect}"))
            }
        }
    }
}

/// Why the pod's annotation about evict-after cannot be read; none if it can, or is not set.
pub(super) fn unreadable_evict_after(asked: &AskedWait) -> Option<String> {
    match asked {
        AskedWait::Unreadable { value, defect } => {
            Some(format!("annotation {} is {value:?}, which {defect}", annotations::EVICT_AFTER))
        }
        AskedWait::Unset | AskedWait::For(_) => None,
    }
}

/// The facts that make a pod a zombie. `Display` gives the message of its condition and event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZombieFacts {
    pub node: NodeName,
    pub waited: Waited,
    pub consent: ConsentSource,
}

/// What a pod was given before it was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Its own grace period plus the wait after it.
    Grace(SignedDuration),
    /// This long from the loss of its node: `salvor.dev/evict-after`.
    EvictAfter(SignedDuration),
}

/// After a grace period, the text follows KEP-6757 to the letter, backticks included; only the grace period and the
/// trigger vary.
impl fmt::Display for ZombieFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, waited, consent } = self;
        match waited {
            Waited::Grace(grace) => write!(
                f,
                "Pod forcefully terminated after {} grace period due to unreachable node `{node}` (triggered by `{consent}`)",
                in_seconds(*grace)
            ),
            Waited::EvictAfter(after) => write!(
                f,
                "Pod forcefully terminated {} after its node `{node}` became unreachable (triggered by `{consent}` with `{}`)",
                in_seconds(*after),
                annotations::EVICT_AFTER
            ),
        }
    }
}

/// `90s` and not `1m30s`, as KEP-6757 prints it; fractions of a second only if there are any.
fn in_seconds(span: SignedDuration) -> String {
    if span.subsec_nanos() == 0 { format!("{}s", span.as_secs()) } else { in_words(span) }
}

fn in_words(span: SignedDuration) -> String {
    i64::try_from(span.as_nanos())
        .map_or_else(|_| span.to_string(), |nanos| GoDuration::from_nanos(nanos).to_string())
}

impl fmt::Display for PodWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled(by) => fmt_disabled(*by, f),
            Self::NotTerminating { evict_after: None } => f.write_str("The pod is not being deleted."),
            Self::NotTerminating { evict_after: Some(defect) } => {
                write!(f, "The pod is not being deleted, and {defect}.")
            }
            Self::NotOptedIn { near_miss: None } => {
                f.write_str("The pod's owner has not consented: it has no opt-in annotation, and no terminatePod rule matches its labels.")
            }
            Self::NotOptedIn { near_miss: Some((key, value)) } => {
                write!(f, "The pod's owner has not consented: annotation {key} is {value:?}, and only \"true\" counts.")
            }
            Self::AlreadyRecovered { action: TerminateAction::Fail } => {
                f.write_str("The pod was marked Failed before. Nothing is left to do.")
            }
            Self::AlreadyRecovered { action: TerminateAction::FailAndDelete } => {
                f.write_str("The pod was marked Failed and force deleted before. Only its finalizers keep it.")
            }
            Self::Unannounced => f.write_str("The pod was recovered before, but its event may be missing."),
            Self::AlreadyTerminal { phase } => {
                write!(f, "The pod has already ended ({phase}), and its owner has not consented to deleting it.")
            }
            Self::NotScheduled => f.write_str("The pod was never bound to a node."),
            Self::NodeMissing { node } => write!(f, "Node {node} does not exist. Pod GC removes its pods."),
            Self::NodeReachable { node } => {
                write!(f, "Node {node} does not have the taint {}: its kubelet can end the pod.", taints::UNREACHABLE)
            }
            Self::NodeReady { node } => write!(
                f,
                "Node {node} is Ready, so its kubelet can end the pod. Only the taint {} was not removed yet.",
                taints::UNREACHABLE
            ),
            Self::UnreadableWait(terms) => write!(f, "The pod is waited for {terms}."),
            Self::UnreadableEvictAfter(defect) => {
                write!(f, "The pod is treated as if it did not have the annotation: {defect}.")
            }
            Self::EvictAfterRunning { node, due, consent, terms } => write!(
                f,
                "Node {node} may still come back. The pod is given up from {due} on (by {consent}), {terms}."
            ),
            Self::GraceRunning { due, consent, terms } => {
                write!(f, "The pod may still end by itself. It counts as stuck from {due} on (by {consent}), {terms}.")
            }
            Self::UnreachableTooBriefly { node, since, minimum } => write!(
                f,
                "Node {node} is unreachable since {since}, for less than minimumUnreachableDuration={}.",
                in_words(*minimum)
            ),
            Self::KubeletAlive { node, heartbeat } => {
                write!(f, "The kubelet of node {node} may be alive and can end the pod: {heartbeat}.")
            }
            Self::JobUnread { job } => {
                write!(f, "Job {job} is read first, because it may fail if the pod is marked Failed.")
            }
            Self::JobUnreadable { job, error } => {
                write!(f, "Whether Job {job} would fail if the pod were marked Failed is not known: {error}.")
            }
            Self::JobWouldFail { job, doom } => {
                write!(f, "Job {job} would fail if the pod were marked Failed: {doom}.")
            }
            Self::RaisesBackoffLimit { job, from, to } => write!(
                f,
                "Job {job} would fail because of its lost pods. Its backoffLimit is raised from {from} to {to} first."
            ),
            Self::AwaitsBackoffLimit { job } => write!(
                f,
                "Job {job} would fail because of its lost pods. Its backoffLimit is raised first, for all of them."
            ),
            Self::Zombie(facts) => write!(f, "{facts}"),
            Self::HalfRecovered(facts) => write!(f, "{facts}; an earlier attempt was interrupted"),
        }
    }
}

impl Reason for PodWhy {
    fn code(&self) -> &'static str {
        match self {
            Self::Disabled(_) => "Disabled",
            Self::NotTerminating { .. } => "NotTerminating",
            Self::NotOptedIn { .. } => "NotOptedIn",
            Self::AlreadyRecovered { .. } => "AlreadyRecovered",
            Self::Unannounced => "Unannounced",
            Self::AlreadyTerminal { .. } => "AlreadyTerminal",
            Self::NotScheduled => "NotScheduled",
            Self::NodeMissing { .. } => "NodeMissing",
            Self::NodeReachable { .. } => "NodeReachable",
            Self::NodeReady { .. } => "NodeReady",
            Self::UnreadableWait(_) => "UnreadableWait",
            Self::UnreadableEvictAfter(_) => "UnreadableEvictAfter",
            Self::EvictAfterRunning { .. } => "EvictAfterRunning",
            Self::GraceRunning { .. } => "GraceRunning",
            Self::UnreachableTooBriefly { .. } => "UnreachableTooBriefly",
            Self::KubeletAlive { .. } => "KubeletAlive",
            Self::JobUnread { .. } => "JobUnread",
            Self::JobUnreadable { .. } => "JobUnreadable",
            Self::JobWouldFail { .. } => "JobWouldFail",
            Self::RaisesBackoffLimit { .. } => "RaisesBackoffLimit",
            Self::AwaitsBackoffLimit { .. } => "AwaitsBackoffLimit",
            Self::Zombie(_) => "Zombie",
            Self::HalfRecovered(_) => "HalfRecovered",
        }
    }

    fn what_would_change_it(&self) -> String {
        match self {
            Self::Disabled(by) => enabling(*by).into(),
            Self::NotTerminating { .. } => format!(
                "The wait starts when the pod is deleted, by a person or by the eviction from its node. With annotation {} and \
                 an opt-in annotation it starts when its node becomes unreachable.",
                annotations::EVICT_AFTER
            ),
            Self::NotOptedIn { .. } => format!(
                "Annotation {} or {} with the value \"true\" on the pod, or a terminatePod rule for its labels, would opt it in.",
                annotations::SAFE_TO_FORCEFULLY_TERMINATE,
                annotations::SAFE_TO_FORCEFULLY_DELETE
            ),
            Self::AlreadyRecovered { action: TerminateAction::Fail } => format!(
                "Annotation {}=\"true\" on the pod would also have it force deleted.",
                annotations::SAFE_TO_FORCEFULLY_DELETE
            ),
            Self::AlreadyRecovered { action: TerminateAction::FailAndDelete } => {
                "The owners of its finalizers must remove them. Salvor never removes a finalizer of others.".into()
            }
            Self::Unannounced => "Salvor records the event again.".into(),
            Self::AlreadyTerminal { .. } => format!(
                "Annotation {}=\"true\" on the pod would have it force deleted.",
                annotations::SAFE_TO_FORCEFULLY_DELETE
            ),
            Self::NotScheduled => {
                "Nothing from Salvor: Pod GC removes Terminating pods without a node.".into()
            }
            Self::NodeMissing { .. } => {
                "Nothing from Salvor: Pod GC removes pods whose Node does not exist.".into()
            }
            Self::NodeReachable { .. } => format!(
                "The taint {} on the node. The node lifecycle controller adds it when the kubelet stops renewing its Lease.",
                taints::UNREACHABLE
            ),
            Self::NodeReady { .. } => "The node's Ready condition becomes Unknown.".into(),
            Self::UnreadableWait(_) => format!(
                "A duration such as 30s in annotation {}.",
                annotations::TERMINATION_GRACE_AFTER
            ),
            Self::UnreadableEvictAfter(_) => {
                format!("A duration such as 30s in annotation {}.", annotations::EVICT_AFTER)
            }
            Self::KubeletAlive { .. } => "The kubelet does not renew its Lease until then.".into(),
            Self::EvictAfterRunning { .. }
            | Self::GraceRunning { .. }
            | Self::UnreachableTooBriefly { .. } => format!(
                "Time. If the taint {} is removed from the node before, or the pod ends, nothing is done.",
                taints::UNREACHABLE
            ),
            Self::JobUnread { .. } | Self::RaisesBackoffLimit { .. } | Self::AwaitsBackoffLimit { .. } => {
                "Time. The Job is asked for at once.".into()
            }
            Self::JobUnreadable { .. } => {
                "Salvor may get jobs.batch, and the Job is as its controller writes it; or an administrator sets \
                 failureRecoveryPolicy.jobs.lostPods to Count."
                    .into()
            }
            Self::JobWouldFail { doom: Doom::Limit { .. }, .. } => {
                "A higher spec.backoffLimit of the Job; or an administrator sets failureRecoveryPolicy.jobs.lostPods to \
                 RaiseLimit, or to Count to let it fail; or the node is Ready again."
                    .into()
            }
            Self::JobWouldFail { doom: Doom::Index { .. } | Doom::Rule(_), .. } => {
                "The node is Ready again; or an administrator sets failureRecoveryPolicy.jobs.lostPods to Count to let it fail. \
                 A podFailurePolicy that ignores DisruptionTarget, in the next Job, avoids it."
                    .into()
            }
            Self::Zombie(_) | Self::HalfRecovered(_) => {
                "Only if, before it is done, the node is Ready again, the owner withdraws the consent, or the brake blocks it.".into()
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeWhy {
    Disabled(Disabled),
    /// Salvor tainted it before, and it is not back.
    OutOfService {
        since: Option<Timestamp>,
    },
    /// Salvor tainted it before, but the event may be missing.
    Unannounced,
    /// Salvor tainted it before, and it is back.
    BackInService,
    /// Salvor tainted it before, and it is back without a reboot.
    NotRebooted {
        node: NodeName,
    },
    /// No rule matches it.
    NoRule,
    NodeReachable,
    /// The out-of-service taint of others is on it.
    TaintedByOthers,
    AnotherRecoveryActs {
        who: NodeActor,
    },
    /// The node is Ready, despite its taint.
    NodeReady,
    /// The node has not been unreachable for long enough.
    UnreachableTooBriefly {
        since: Timestamp,
        /// The required time.
        timeout: SignedDuration,
    },
    /// Its kubelet renews its Lease, or may.
    LeaseFresh {
        heartbeat: Heartbeat,
    },
    NodeLost {
        since: Timestamp,
        /// The position of the rule.
        rule: usize,
    },
}

impl fmt::Display for NodeWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled(by) => fmt_disabled(*by, f),
            Self::OutOfService { since: Some(since) } => {
                write!(f, "The node is out of service since {since} and not Ready yet.")
            }
            Self::OutOfService { since: None } => {
                f.write_str("The node is out of service and not Ready yet.")
            }
            Self::Unannounced => {
                f.write_str("The node was tainted out-of-service, but its event may be missing.")
            }
            Self::BackInService => f.write_str("Node is Ready again, taint out-of-service removed"),
            Self::NotRebooted { node } => write!(
                f,
                "The node is Ready again, but its machine was not rebooted since it was tainted out-of-service: it was only cut off. Its \
                 pods were deleted and its volumes detached by force, and its old containers may still run and use them. The taint stays. \
                 Reboot the machine, and the taint goes by itself. Or make sure that nothing of those pods is left on it, and remove the \
                 taint by hand: kubectl taint node {node} {}-",
                taints::OUT_OF_SERVICE
            ),
            Self::NoRule => f.write_str("No taintNodeOutOfService rule matches the node's labels."),
            Self::NodeReachable => write!(f, "The node does not have the taint {}.", taints::UNREACHABLE),
            Self::TaintedByOthers => {
                write!(f, "Somebody else has added the taint {} to the node.", taints::OUT_OF_SERVICE)
            }
            Self::AnotherRecoveryActs { who } => write!(f, "Another recovery acts on the node: {who}."),
            Self::NodeReady => f.write_str("The node is Ready."),
            Self::UnreachableTooBriefly { since, timeout } => write!(
                f,
                "The node is unreachable since {since}, for less than unreachableNodeTimeout={}.",
                in_words(*timeout)
            ),
            Self::LeaseFresh { heartbeat } => write!(f, "The node's kubelet may be alive: {heartbeat}."),
            Self::NodeLost { since, rule } => write!(
                f,
                "Node unreachable since {since}, tainted out-of-service (triggered by `{}`)",
                ConsentSource::Rule(*rule)
            ),
        }
    }
}

impl Reason for NodeWhy {
    fn code(&self) -> &'static str {
        match self {
            Self::Disabled(_) => "Disabled",
            Self::OutOfService { .. } => "OutOfService",
            Self::Unannounced => "Unannounced",
            Self::BackInService => "BackInService",
            Self::NotRebooted { .. } => "NotRebooted",
            Self::NoRule => "NoRule",
            Self::NodeReachable => "NodeReachable",
            Self::TaintedByOthers => "TaintedByOthers",
            Self::AnotherRecoveryActs { .. } => "AnotherRecoveryActs",
            Self::NodeReady => "NodeReady",
            Self::UnreachableTooBriefly { .. } => "UnreachableTooBriefly",
            Self::LeaseFresh { .. } => "LeaseFresh",
            Self::NodeLost { .. } => "NodeLost",
        }
    }

    fn what_would_change_it(&self) -> String {
        match self {
            Self::Disabled(by) => enabling(*by).into(),
            Self::OutOfService { .. } => {
                "When the node is Ready and renews its Lease, if it has one, Salvor removes the taint, after a reboot \
                 (eviction.removeTaint)."
                    .into()
            }
            Self::Unannounced => "Salvor records the event again.".into(),
            Self::BackInService => "Only if the node becomes unreachable again before it is done.".into(),
            Self::NotRebooted { node } => format!(
                "A reboot of the machine, which changes status.nodeInfo.bootID. Or a person removes the taint: kubectl taint node \
                 {node} {}-",
                taints::OUT_OF_SERVICE
            ),
            Self::NoRule => "A taintNodeOutOfService rule that matches the node's labels.".into(),
            Self::NodeReachable => format!("The taint {} on the node.", taints::UNREACHABLE),
            Self::TaintedByOthers => {
                "Whoever added the taint must remove it. Salvor only removes its own taint.".into()
            }
            Self::AnotherRecoveryActs { .. } => {
                "The other recovery ends, or an administrator stops it.".into()
            }
            Self::NodeReady => "The Ready condition becomes Unknown.".into(),
            Self::UnreachableTooBriefly { .. } | Self::LeaseFresh { .. } => {
                format!(
                    "Time. If the taint {} is removed from the node before, nothing is done.",
                    taints::UNREACHABLE
                )
            }
            Self::NodeLost { .. } => "Only if the node is Ready again before it is done.".into(),
        }
    }
}

fn fmt_disabled(by: Disabled, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(match by {
        Disabled::Gate => "Zombie recovery is off: its feature gate FailureRecoveryPolicy is not enabled.",
        Disabled::Controllers => "Zombie recovery is off: it is not in the list of controllers.",
    })
}

fn enabling(by: Disabled) -> &'static str {
    match by {
        Disabled::Gate => "An administrator enables it with --feature-gates=FailureRecoveryPolicy=true.",
        Disabled::Controllers => "An administrator enables it with zombie or * in --controllers.",
    }
}
