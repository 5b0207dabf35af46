//! Reports a decision on a node: in its condition, in the memory, and in events.

use jiff::Timestamp;
use salvor_api::names::repair::{CONDITION, REBOOT_CONDITION, REPAIR_CONTROLLER, REPAIR_NODE, reasons};

use super::scene::Scene;
use super::undo::{take_back_termination, uncordon};
use crate::event::{EventNote, EventType, NodeCondition};
use crate::moments::to_the_second;
use crate::objects::ObjectRef;
use crate::repair::holds::Hold;
use crate::repair::next::Case;
use crate::repair::policy::Policy;
use crate::repair::progress::Progress;
use crate::repair::reasons::NodeWhy;
use crate::repair::sickness::{Diagnosis, Settings, Sick};
use crate::repair::steps::Step;
use crate::repair::views::{NodeView, Status};
use crate::verdict::Verdict;

pub(super) type NodeVerdict = Verdict<NodeWhy, Step>;

/// The state that a node's condition reports.
#[derive(Clone, Copy)]
pub(super) enum Told<'a> {
    Waiting(&'a Sick),
    Vetoed,
    Blocked(&'a Hold),
    Repairing { stuck: bool },
    Rebooting,
    Recovered,
    Repaired,
}

impl Told<'_> {
    /// A short text that changes when the condition has to be written again.
    pub(super) fn token(&self) -> String {
        match self {
            Self::Waiting(sick) => format!("{} {} {}", self.reason(), sick.key, sick.deadline),
            Self::Blocked(hold) => hold.token(),
            Self::Repairing { stuck: true } => format!("{} stuck", self.reason()),
            Self::Vetoed
            | Self::Repairing { stuck: false }
            | Self::Rebooting
            | Self::Recovered
            | Self::Repaired => self.reason().to_owned(),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Waiting(_) => reasons::WAITING,
            Self::Vetoed => reasons::VETOED,
            Self::Blocked(_) => reasons::BLOCKED,
            Self::Repairing { .. } => reasons::REPAIRING,
            Self::Rebooting => reasons::REBOOTING,
            Self::Recovered => reasons::RECOVERED,
            Self::Repaired => reasons::REPAIRED,
        }
    }

    /// True while something is done to the node.
    fn holds(&self) -> bool {
        matches!(self, Self::Repairing { .. } | Self::Rebooting)
    }
}

/// Everything needed to report a decision on a node.
pub(super) struct NodeContext<'a> {
    pub(super) scene: &'a Scene<'a>,
    pub(super) policy: &'a Policy,
    pub(super) diagnosis: &'a Diagnosis,
    pub(super) settings: &'a Settings,
    pub(super) now: Timestamp,
}

impl NodeContext<'_> {
    pub(super) fn node(&self) -> &NodeView {
        self.scene.member.node
    }

    pub(super) fn case(&self) -> Case<'_> {
        Case {
            member: &self.scene.member,
            policy: self.policy,
            settings: self.settings,
            repair: self.scene.place.repair(),
            now: self.now,
        }
    }

    /// The verdict, or first the write that reports it if the node does not show it yet.
    pub(super) fn report(&self, told: Told<'_>, verdict: NodeVerdict) -> NodeVerdict {
        let node = self.node();
        let is_off = matches!(told, Told::Waiting(_) | Told::Vetoed | Told::Recovered | Told::Repaired);
        if let Some(step) = self.take_back().filter(|_| is_off) {
            return Verdict::Act { actions: vec![step], why: verdict.why().clone() };
        }
        let before = node.progress.as_deref();
        let token = told.token();
        let is_over = matches!(told, Told::Recovered | Told::Repaired);
        let shows = node.condition(CONDITION).map(|condition| &*condition.reason);
        let progress = Progress { told: token.clone(), ..self.diagnosis.memory.clone() };
        // On a healthy node only the end of its sickness is remembered.
        let progress = (!is_over || progress.healed.is_some()).then_some(progress);
        let is_told = !self.boot_is_over(&told)
            && shows == Some(told.reason())
            && before.is_none_or(|before| before.told == token || is_over);
        if is_told && before == progress.as_ref() && node.marks().damage.is_none() {
            return verdict;
        }
        let why = verdict.why().clone();
        let mut actions = vec![self.write(&told, &why, progress, !is_told)];
        if let (Told::Blocked(hold), false) = (&told, is_told) {
            actions.extend(self.blocked_events(hold, &why));
            actions.extend(self.drained_event(hold));
        }
        if let (Told::Repairing { stuck: true }, false) = (&told, is_told) {
            let name = format!("salvor-repair-stuck.{}", node.node.uid);
            actions.push(mention(
                name,
                ObjectRef::from(&node.node),
                EventType::Warning,
                reasons::NODE_REPAIR_STUCK,
                why.to_string(),
            ));
        }
        if let (Told::Repaired, false) = (&told, is_told) {
            let name = format!("salvor-repaired.{}.{}", node.node.uid, self.now.as_second());
            actions.push(mention(
                name,
                ObjectRef::from(&node.node),
                EventType::Normal,
                reasons::NODE_REPAIRED,
                why.to_string(),
            ));
        }
        Verdict::Act { actions, why }
    }

    /// The events of a blocked repair: one on the node, one on its NodeClaim or Machine, and one shared by all nodes of
    /// a NodePool with the same hold.
    fn blocked_events(&self, hold: &Hold, why: &NodeWhy) -> Vec<Step> {
        let (member, node) = (&self.scene.member, &self.node().node);
        let code = hold.code().to_lowercase();
        let blocked = |name: String, object: ObjectRef, message: String| {
            mention(name, object, EventType::Warning, reasons::NODE_REPAIR_BLOCKED, message)
        };
        let about = format!("node {}: {why}", node.name);
        let on_node =
            blocked(format!("salvor-repair-blocked.{}.{code}", node.uid), node.into(), why.to_string());
        let owner = member.backend.owner().map(|owner| owner.object.clone());
        let on_owner = owner.map(|owner| {
            blocked(format!("salvor-repair-blocked.{}.{code}", owner.uid), owner, about.clone())
        });
        let pool = member.pool.map(|pool| pool.object.clone());
        let on_pool =
            pool.map(|pool| blocked(format!("salvor-repair-blocked.{}.{code}", pool.uid), pool, about));
        std::iter::once(on_node).chain(on_owner).chain(on_pool).collect()
    }

    /// The event for a drain that has finished. A drain repairs nothing, so the event does not claim a repair.
    fn drained_event(&self, hold: &Hold) -> Option<Step> {
        let is_empty = matches!(hold, Hold::MachineMayRun { left: Some(left), .. } if left.pods.is_empty());
        let node = &self.node().node;
        is_empty.then(|| {
            let name = format!("salvor-repair-drained.{}", node.uid);
            let message = format!(
                "policy {} has drained node {}; its machine was not touched",
                self.policy.name(),
                node.name
            );
            mention(name, node.into(), EventType::Normal, reasons::NODE_DRAINED, message)
        })
    }

    pub(super) fn write(
        &self,
        told: &Told<'_>,
        why: &NodeWhy,
        progress: Option<Progress>,
        tells: bool,
    ) -> Step {
        let node = self.node();
        let holds = told.holds();
        let status = if holds { Status::True } else { Status::False };
        let before = node.condition(CONDITION).filter(|before| before.status == status);
        let now = to_the_second(self.now);
        let rebooted = self.boot_is_over(told);
        Step::Report {
            node: node.node.clone(),
            resource_version: node.resource_version.clone(),
            condition: tells.then(|| NodeCondition {
                kind: CONDITION,
                holds,
                reason: told.reason(),
                message: format!("policy {}: {why}", self.policy.name()),
                last_transition_time: before.and_then(|before| before.since).unwrap_or(now),
            }),
            rebooted: rebooted.then_some(now),
            progress,
        }
    }

    /// True if the node still requests a reboot that is done or no longer needed. An agent that starts after the boot
    /// must not see the request again.
    pub(super) fn boot_is_over(&self, told: &Told<'_>) -> bool {
        let node = self.node();
        let asks = node.condition(REBOOT_CONDITION).is_some_and(|asked| asked.status == Status::True);
        let tried = self.diagnosis.memory.tried.as_ref();
        let is_done = tried.is_none_or(|tried| {
            let booted = !node.boot_id.is_empty() && *node.boot_id != *tried.boot_id;
            booted || node.marks().reboot_done.as_deref() == Some(tried.at.to_string().as_str())
        });
        asks && (is_done || !matches!(told, Told::Rebooting))
    }

    /// Undoes preparations for a repair that is no longer needed.
    pub(super) fn take_back(&self) -> Option<Step> {
        let node = self.node();
        if node.is_cordoned_by_us() && node.deleting().is_none() {
            return Some(uncordon(node, Some(self.diagnosis.memory.clone())));
        }
        take_back_termination(&self.scene.member)
    }

    /// The events of a repair that begins: one on each object.
    pub(super) fn events(&self, sick: &Sick, step: &Step) -> Vec<Step> {
        let member = &self.scene.member;
        let node = self.node();
        let since = self.scene.place.repair().map_or(self.now, |repair| repair.since).as_second();
        let uid = &node.node.uid;
        let policy = self.policy.name();
        match step {
            Step::RequestReboot { at, .. } => {
                let name = format!("salvor-repair-reboot.{uid}.{}", at.as_second());
                let message = format!("policy {policy} asks for a reboot: {sick}");
                let object = ObjectRef::from(&node.node);
                vec![mention(name, object, EventType::Normal, reasons::NODE_REBOOT_REQUESTED, message)]
            }
            Step::Cordon { .. } | Step::DeleteNode { .. } => {
                let (reason, verb, kind) = if matches!(step, Step::Cordon { .. }) {
                    (reasons::NODE_REPAIR_STARTED, "drains", "drain")
                } else {
                    (reasons::NODE_DELETED, "deletes the Node of", "delete")
                };
                let name = format!("salvor-repair-{kind}.{uid}.{since}");
                let message =
                    format!("policy {policy} {verb} {}, whose machine nothing owns: {sick}", node.node.name);
                vec![mention(name, ObjectRef::from(&node.node), EventType::Normal, reason, message)]
            }
            Step::DeleteOwner { .. } | Step::RemediateMachine { .. } => {
                let message = format!("policy {policy} replaces node {}: {sick}", node.node.name);
                let pool = member.pool.map(|pool| pool.object.clone());
                let owner = member.backend.owner().map(|owner| owner.object.clone());
                let objects = [Some(ObjectRef::from(&node.node)), owner, pool];
                let started = |object: ObjectRef| {
                    let kind = object.kind.kind.to_lowercase();
                    let name = format!("salvor-repair-{kind}.{uid}.{since}");
                    mention(name, object, EventType::Normal, reasons::NODE_REPAIR_STARTED, message.clone())
                };
                objects.into_iter().flatten().map(started).collect()
            }
            Step::Report { .. }
            | Step::Tell { .. }
            | Step::WritePolicy { .. }
            | Step::TightenTermination { .. }
            | Step::TakeBackTermination { .. }
            | Step::Uncordon { .. }
            | Step::Forget { .. }
            | Step::KeepNode { .. }
            | Step::ForgetNode { .. }
            | Step::PutBack { .. }
            | Step::EvictPod { .. }
            | Step::FailPod { .. }
            | Step::ForceDeletePod { .. }
            | Step::Mention(_) => Vec::new(),
        }
    }
}

pub(super) fn mention(
    name: String,
    regarding: ObjectRef,
    kind: EventType,
    reason: &'static str,
    message: String,
) -> Step {
    Step::Mention(EventNote {
        name,
        regarding,
        kind,
        reason: reason.into(),
        action: REPAIR_NODE,
        reporting_controller: REPAIR_CONTROLLER,
        message,
    })
}
