//! When the pods of a root cause are expected back: reads the facts, and lets [`expected_back`] compute.

use jiff::{SignedDuration, Timestamp};
use salvor_api::{
    Controller,
    names::{annotations, taints},
};
use salvor_operator::{Next, PodObjects, pod_verdict};
use salvor_recovery::expected::{
    DEFAULT_GRACE, DeletionRequest, ExpectedBack, FORCE_DETACH, LostNode, LostPod, PhaseName, Replaced,
    Salvor, expected_back,
};
use serde_json::{Value, json};

use crate::{
    code::Code,
    diagnosis::{Finding, Rules, clean},
    json::{
        deletion_asked, has_ended, is_terminating, job_of, list, name, namespace, number, owner_kind, text,
    },
    kinds::{ATTACHMENT, CLAIM, JOB, LEASE, NODE, POD, VOLUME},
    nodes::{eviction, noticed},
    presence::Presence,
    salvor::NODE_LEASES,
    volumes::{claims, is_shared},
    world::Seen,
};

impl Rules<'_> {
    /// When the work of a pod on a lost or deleted node is back.
    pub(crate) fn expected_of_lost(&self, pod: &Value, node: Option<&Value>) -> ExpectedBack {
        let now = self.world.now;
        let grace = number(pod, "/metadata/deletionGracePeriodSeconds").filter(|_| is_terminating(pod));
        let grace = grace.or_else(|| number(pod, "/spec/terminationGracePeriodSeconds"));
        let grace = grace.map_or(DEFAULT_GRACE, |seconds| SignedDuration::from_secs(seconds.max(0)));
        let detected = node.map_or(now, |node| noticed(node).unwrap_or(now));
        let deletion = match deletion_asked(pod) {
            Some(asked) => DeletionRequest::At(asked),
            None => eviction(pod, detected),
        };
        let state = match node {
            None => LostNode::Deleted,
            Some(node) if self.is_known_to_be_off(node) => LostNode::OutOfService,
            Some(_) => LostNode::Silent,
        };
        let salvor = match (node, state) {
            (Some(node), LostNode::Silent) => self.salvor_on(pod, node, deletion, grace),
            (Some(_) | None, _) => Salvor::Ends(now),
        };
        let lost = LostPod {
            pod: name(pod).to_owned(),
            node: state,
            detected,
            deletion,
            grace,
            replaced: self.replaced(pod),
            salvor,
            holds_volume: self.holds_volume(pod),
        };
        expected_back(&lost, now)
    }

    /// The out-of-service taint counts for Kubernetes, and Salvor's own taint where the leader has eviction enabled.
    fn is_known_to_be_off(&self, node: &Value) -> bool {
        let has = |key: &str| list(node, "/spec/taints").iter().any(|taint| text(taint, "/key") == key);
        has(taints::OUT_OF_SERVICE)
            || (has(taints::FORCE_EVICTION)
                && matches!(self.judge.presence(self.world), Presence::Here(installed)
                    if !installed.no_leader && installed.configuration.controllers.enabled(Controller::Eviction)))
    }

    /// What Salvor does with the pod, now or after its eviction.
    fn salvor_on(
        &self,
        pod: &Value,
        node: &Value,
        deletion: DeletionRequest,
        grace: SignedDuration,
    ) -> Salvor {
        let on = name(node);
        let back_or_off = format!("node {on}: it has to come back, or a person has to know that it is off");
        let installed = match self.judge.presence(self.world) {
            Presence::Here(installed) => installed,
            Presence::Absent | Presence::Unknown => return Salvor::DependsOn(back_or_off),
        };
        let lease = self.world.get(&LEASE, NODE_LEASES, on).here().map(Value::to_string);
        let node_text = node.to_string();
        let verdict = |pod: &Value| {
            let pod = pod.to_string();
            let seen = PodObjects {
                pod: &pod,
                node: Some(&node_text),
                node_lease: lease.as_deref(),
                election: installed.lease.as_ref(),
            };
            pod_verdict(seen, &installed.configuration, self.world.now).ok()
        };
        let Some(mut found) = verdict(pod) else { return Salvor::DependsOn(back_or_off) };
        let mut given_up = !is_terminating(pod);
        if let (true, Next::Nothing, DeletionRequest::At(requested)) = (given_up, found.next, deletion) {
            // The verdict on the pod as it will be after its eviction.
            given_up = false;
            let mut deleted = pod.clone();
            let ends = requested.checked_add(grace).unwrap_or(Timestamp::MAX);
            deleted["metadata"]["deletionTimestamp"] = json!(ends.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
            deleted["metadata"]["deletionGracePeriodSeconds"] = json!(grace.as_secs());
            match verdict(&deleted) {
                Some(later) => found = later,
                None => return Salvor::DependsOn(back_or_off),
            }
        }
        if found.without_consent.is_some() {
            return Salvor::DependsOn(format!(
                "the owner of pod {}, who has not consented, or node {on}, which has to come back",
                name(pod)
            ));
        }
        if installed.no_leader {
            return Salvor::DependsOn("a person: no replica of Salvor leads".to_owned());
        }
        if let Some(off) = found.off {
            return Salvor::DependsOn(format!("a person: zombie recovery is off ({off})"));
        }
        let acts = |at| if given_up { Salvor::GivesUp(at) } else { Salvor::Ends(at) };
        match found.next {
            Next::Waits(until) => acts(until),
            Next::Acts => match self.waits_for_job(pod) {
                Some(why) => Salvor::DependsOn(format!("its Job: {why}")),
                None => acts(self.world.now),
            },
            Next::Held { paused: true, .. } => Salvor::DependsOn("a person, who resumes Salvor".to_owned()),
            Next::Held { until: Some(until), .. } => Salvor::Held(until),
            Next::Held { until: None, .. } => {
                Salvor::DependsOn("the brake: too many nodes are lost".to_owned())
            }
            Next::Done => Salvor::DependsOn(format!(
                "the owner of pod {}, who has not consented to {}",
                name(pod),
                annotations::SAFE_TO_FORCEFULLY_DELETE
            )),
            Next::Nothing => Salvor::DependsOn(format!("node {on}: {}", found.message)),
        }
    }

    fn replaced(&self, pod: &Value) -> Replaced {
        match owner_kind(pod) {
            "" => Replaced::Never,
            "ReplicaSet" | "ReplicationController" => Replaced::WhenDeleted,
            "DaemonSet" | "Node" => Replaced::WithItsNode,
            "Job" => {
                let job = job_of(pod).map(|job| self.world.get(&JOB, namespace(pod), job));
                match job.and_then(Seen::here) {
                    Some(job)
                        if text(job, "/spec/podReplacementPolicy") != "Failed"
                            && job.pointer("/spec/podFailurePolicy").is_none() =>
                    {
                        Replaced::WhenDeleted
                    }
                    Some(_) | None => Replaced::WhenEnded,
                }
            }
            // Others need the name of the pod, or are not known.
            _ => Replaced::WhenEnded,
        }
    }

    /// Whether a volume that only one node may have is attached to the pod's node. A claim that cannot be read counts.
    fn holds_volume(&self, pod: &Value) -> bool {
        let on = text(pod, "/spec/nodeName");
        claims(pod).iter().any(|claim| {
            let volume = match self.world.get(&CLAIM, namespace(pod), claim) {
                Seen::Here(claim) => text(claim, "/spec/volumeName"),
                Seen::Absent => return false,
                Seen::Unknown => return true,
            };
            if volume.is_empty() {
                return false;
            }
            if let Seen::Here(volume) = self.world.get(&VOLUME, "", volume)
                && is_shared(volume)
            {
                return false;
            }
            let holds = |attachment: &&Value| {
                text(attachment, "/spec/source/persistentVolumeName") == volume
                    && text(attachment, "/spec/nodeName") == on
            };
            self.world.list(&ATTACHMENT, "", "", "").is_none_or(|all| all.iter().any(holds))
        })
    }

    /// When a volume is released by a node that is lost or deleted. Its wait begins when the last pod that used it there
    /// has ended, which is about when the pod that wants it was created.
    pub(crate) fn volume_released(
        &self,
        claim: &Value,
        holder: &str,
        wanted_since: Option<Timestamp>,
    ) -> ExpectedBack {
        if let Seen::Here(node) = self.world.get(&NODE, "", holder)
            && self.is_known_to_be_off(node)
        {
            return ExpectedBack::after(PhaseName::VolumeReleased, self.world.now);
        }
        let pods = self.world.list(&POD, namespace(claim), "", "").unwrap_or_default();
        let uses = |pod: &&&Value| {
            text(pod, "/spec/nodeName") == holder
                && !has_ended(pod)
                && claims(pod).iter().any(|used| used == name(claim))
        };
        if let Some(user) = pods.iter().find(uses) {
            return ExpectedBack::depends(format!(
                "pod {} on node {holder}, which has not ended",
                name(user)
            ));
        }
        match wanted_since.and_then(|since| since.checked_add(FORCE_DETACH).ok()) {
            Some(until) if until > self.world.now => ExpectedBack::after(PhaseName::VolumeReleased, until),
            Some(_) | None => ExpectedBack::depends(format!(
                "the attach/detach controller, which has to take the volume from node {holder}"
            )),
        }
    }
}

impl Finding {
    /// With an expectation by its code, if it has none by what was seen.
    pub(crate) fn with_expectation(mut self) -> Self {
        if self.cause.expected_back.says_nothing() {
            self.cause.expected_back = by_code(&self);
        }
        // It may contain names that other people chose.
        let on = &mut self.cause.expected_back.depends_on;
        *on = on.as_deref().map(clean);
        self
    }
}

/// What it depends on until a cause is gone, or when it goes by itself.
fn by_code(finding: &Finding) -> ExpectedBack {
    let cause = &finding.cause;
    let (kind, name) = (&cause.object.kind, &cause.object.name);
    let on = match cause.code {
        Code::WorkloadFailed | Code::BackoffLimitExceeded | Code::DeadlineExceeded | Code::JobFailed => {
            format!("a person: {kind} {name} has failed, and does not run again")
        }
        Code::PodFailed => format!("the owner of pod {name}, or a person: a failed pod does not run again"),
        Code::NodeLost | Code::NobodyLeads | Code::NotOptedIn | Code::RecoveryOff | Code::BrakeHolds
            if kind == "Node" =>
        {
            format!("node {name}: it has to come back, or a person has to know that it is off")
        }
        Code::NodeLost | Code::NobodyLeads | Code::NotOptedIn | Code::RecoveryOff | Code::BrakeHolds => {
            format!("a person: Salvor does not act on {kind} {name}")
        }
        Code::RepairBlocked => format!("a person: the repair of node {name} is held back"),
        Code::NodeSick => format!("node {name}, which has to be repaired"),
        Code::VolumeAttachedElsewhere => "the node that has the volume, which has to release it".to_owned(),
        Code::FinalizerHolds => format!("the controller whose finalizer holds pod {name}"),
        Code::ControllerAbsent => format!("a person: no controller runs {kind} {name}"),
        Code::ConfigMissing => format!("a person, who creates {kind} {name}"),
        Code::ImagePullFailed => format!("the image of pod {name}, which cannot be pulled"),
        Code::StartFailed => format!("a person: pod {name} cannot start as it is"),
        Code::CrashLooping | Code::NotReady => format!("what runs in pod {name}"),
        Code::VolumeUnbound => format!("a volume for claim {name}"),
        Code::QuotaExceeded => format!("room in quota {name}"),
        Code::AdmissionRefused => format!("a person: {kind} {name} refuses the pods"),
        Code::Unschedulable => "capacity: no node takes the pods".to_owned(),
        Code::KueuePreempted | Code::KueueNotAdmitted => "quota in the queue of Kueue".to_owned(),
        Code::Suspended => format!("a person or the controller that suspended {kind} {name}"),
        Code::DisruptionBudget => format!("PodDisruptionBudget {name}, which allows no disruption"),
        Code::GraceRunning => match cause.until {
            Some(until) => return ExpectedBack::after(PhaseName::Salvor, until),
            None => "Salvor".to_owned(),
        },
        Code::AwaitingTermination => match cause.until {
            Some(until) => return ExpectedBack::after(PhaseName::Grace, until),
            None => format!("the kubelet of pod {name}, which has to end it"),
        },
        Code::BackoffRunning => match cause.until {
            Some(until) => return ExpectedBack::after(PhaseName::Backoff, until),
            None => format!("the backoff of {kind} {name}"),
        },
        Code::WorkloadResetting => format!("the deletion of what {kind} {name} has created"),
        Code::Starting => format!("the kubelet that starts pod {name}: images and volumes take their time"),
        Code::Unknown => "what could not be seen".to_owned(),
    };
    ExpectedBack::depends(on)
}
