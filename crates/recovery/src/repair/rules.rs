//! The rules of the repair recovery, in the order in which a person would ask them.
//!
//! [`decide_policy`] looks at all nodes of a policy together: it decides which node has its turn, and records that.
//! [`decide_node`] looks at one node. It touches a node only if the policy's status, or the NodePool's annotation,
//! lists it among the repairs under way. That list is written with the resourceVersion on which the decision is based,
//! so a second writer or a stale cache gets a conflict. Therefore no more nodes are under repair than the budget
//! allows, whatever happens in between.

use jiff::Timestamp;
use salvor_api::names::repair::{CONDITION, REBOOT_CONDITION, REPAIR_CONTROLLER, REPAIR_NODE, reasons};

use super::action::Action;
use super::holds::Hold;
use super::kept::Kept;
use super::ladder::{Turn, turn};
use super::limits::Asked;
use super::next::{Case, Next};
use super::policy::Policy;
use super::progress::{Progress, Tried};
use super::reasons::{NodeWhy, PolicyWhy};
use super::sickness::{Diagnosis, Settings, Sick, diagnose};
use super::status::{End, Ended, PolicyStatus, Repair};
use super::steps::{Begun, Step};
use super::survey::{Course, Member, Survey};
use super::views::{Backend, NodeView};
use crate::brake::{Held, RepairLimit};
use crate::event::{EventNote, EventType, NodeCondition};
use crate::moments::{after, to_the_second};
use crate::objects::ObjectRef;
use crate::step::Step as _;
use crate::verdict::{Decision, Trace, Verdict, judge};

#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// The policy's status lists the repair.
    Reserved(&'a Repair),
    /// The repair would be listed now. For dry runs and explanations.
    Planned(&'a Repair),
    /// The node has no turn.
    None,
}

impl<'a> Place<'a> {
    fn repair(self) -> Option<&'a Repair> {
        match self {
            Self::Reserved(repair) | Self::Planned(repair) => Some(repair),
            Self::None => None,
        }
    }
}

/// A node with everything its verdict depends on.
pub struct Scene<'a> {
    pub member: Member<'a>,
    /// The policy that counts for the node.
    pub policy: Option<&'a Policy>,
    pub survey: Option<&'a Survey>,
    pub place: Place<'a>,
    /// The brake's last decision about this node.
    pub braked: Option<&'a Held>,
    /// The saved metadata of the machine's previous Node, which Salvor deleted.
    pub kept: Option<KeptBy<'a>>,
}

/// The saved metadata of a deleted Node, and the policy whose status holds it.
#[derive(Clone, Copy, Debug)]
pub struct KeptBy<'a> {
    pub policy: &'a Policy,
    pub kept: &'a Kept,
}

type NodeVerdict = Verdict<NodeWhy, Step>;

/// Decides whether a node is repaired.
pub fn decide_node(scene: &Scene<'_>, settings: &Settings, now: Timestamp) -> Decision<NodeWhy, Step> {
    judge(|ask| node_rules(ask, scene, settings, now))
}

fn node_rules(
    ask: &mut Trace,
    scene: &Scene<'_>,
    settings: &Settings,
    now: Timestamp,
) -> Result<NodeVerdict, NodeVerdict> {
    let Scene { member, policy, survey, place, braked, kept } = scene;
    let node = member.node;
    let kept = kept.filter(|_| node.deleting().is_none());
    let seen = kept.map_or("yes".to_owned(), |by| format!("its Node was deleted at {}", by.kept.at));
    ask.none("Has it all that stood on it before?", seen, kept).map_err(|by| put_back(node, by))?;
    let known = policy.zip(*survey);
    let seen = policy.map_or("none".to_owned(), Policy::name);
    let (policy, survey) =
        ask.some("Does a repair policy select the node?", seen, known).ok_or_else(|| not_selected(member))?;
    let defect = policy.defects.first();
    let seen = defect.map_or("yes".to_owned(), Clone::clone);
    ask.none("Can that policy be read?", seen, defect)
        .map_err(|defect| Verdict::Ignore(NodeWhy::InvalidPolicy { defect: defect.clone() }))?;
    let diagnosis = diagnose(node, member.backend.owner(), policy, settings, now);
    let context = NodeContext { scene, policy, diagnosis: &diagnosis, settings, now };
    // A node that is well and schedulable needs no memory, so a damaged annotation does not matter.
    let damage = node.marks().damage.as_ref().filter(|_| diagnosis.sick.is_some() || node.unschedulable);
    ask.none("Can our annotation on it be read?", damage.map_or("yes", |problem| problem), damage)
        .map_err(|problem| context.unreadable(problem))?;

    let Some(sick) = ask.some("Is it sick?", see_sick(&diagnosis), diagnosis.sick.as_ref()) else {
        return Err(context.healthy());
    };
    let due = sick.deadline <= now;
    ask.that("Is it sick for longer than is tolerated?", format!("until {}", sick.deadline), due)
        .ok_or_else(|| {
            context.report(
                Told::Waiting(sick),
                Verdict::Wait {
                    until: sick.deadline,
                    why: NodeWhy::TolerationRunning { sick: Box::new(sick.clone()) },
                },
            )
        })?;
    let veto = member.veto(now);
    let seen = veto.as_ref().map_or("no veto".to_owned(), |veto| veto.by.clone());
    ask.none("Is its repair allowed?", seen, veto).map_err(|veto| {
        let (until, why) =
            (veto.until, NodeWhy::Vetoed { sick: Box::new(sick.clone()), veto: Box::new(veto) });
        let verdict = match until {
            Some(until) => Verdict::Wait { until, why },
            None => Verdict::Ignore(why),
        };
        context.report(Told::Vetoed, verdict)
    })?;

    let turn = turn(sick, diagnosis.memory.tried.as_ref(), now);
    let case = context.case();
    let (step, seen, hold) = match case.next(sick, turn) {
        Next::Write(step) => (Some(*step), None, None),
        Next::Reboot { rung, attempt } => (Some(context.reboot(sick, rung, attempt)), None, None),
        Next::UnderWay => (None, Some(see_turn(turn)), None),
        Next::Held(hold) => (None, Some(format!("no: {hold}")), Some(hold)),
    };
    let seen = seen.or_else(|| step.as_ref().map(ToString::to_string)).unwrap_or_default();
    let step = ask.some("Is there something left to do?", seen, step).ok_or_else(|| match hold {
        // A limit of the policy takes precedence in the report: it concerns more than this node.
        Some(Hold::NoBackend(why)) => {
            let asked = Asked { member, sick, action: turn.action(), repair: place.repair() };
            context.held(sick, &survey.hold(policy, &asked, now).unwrap_or(Hold::NoBackend(why)))
        }
        Some(hold) => context.held(sick, &hold),
        None => context.under_way(turn),
    })?;
    let action = if matches!(step, Step::RequestReboot { .. }) { Action::Reboot } else { turn.action() };

    let not_reserved = || NodeWhy::NotReserved { sick: Box::new(sick.clone()) };
    let has_lapsed = place
        .repair()
        .is_some_and(|repair| Course::of(repair, Some(member), None, policy, settings, now).has_lapsed(now));
    // Preparations are undone before another node gets the turn.
    if has_lapsed && let Some(step) = context.take_back() {
        return Err(Verdict::Act { actions: vec![step], why: not_reserved() });
    }
    let asked = Asked { member, sick, action, repair: place.repair() };
    let hold = survey.hold(policy, &asked, now);
    ask.none("Do the policy's limits allow it?", see_hold(survey, hold.as_ref()), hold)
        .map_err(|hold| context.held(sick, &hold))?;
    let seen = format!("{} of {} under repair", shown_count(survey.used), survey.allowed);
    ask.some("Is it its turn?", seen, place.repair().filter(|_| !has_lapsed)).ok_or_else(|| {
        // A node whose turn has lapsed waits for its next turn, even if the budget has room.
        match survey.budget_hold().filter(|_| !has_lapsed) {
            Some(hold) => context.held(sick, &hold),
            None => Verdict::Ignore(not_reserved()),
        }
    })?;

    // The node's condition reports the brake once. After that the step goes to the brake each time.
    let braked = braked.filter(|held| step.is_disruptive() && held.until().is_none_or(|until| now < until));
    if let Some(held) = braked
        && let told @ Verdict::Act { .. } = context.held(sick, &Hold::Brake(held.clone()))
    {
        return Err(told);
    }
    let why = NodeWhy::Sick { sick: Box::new(sick.clone()), action };
    let mut actions = vec![step];
    actions.extend(context.events(sick, &actions[0]));
    Ok(Verdict::Act { actions, why })
}

/// A machine whose Node was deleted has registered again. It gets back the metadata that it lacks, once.
fn put_back(node: &NodeView, KeptBy { policy, kept }: KeptBy<'_>) -> NodeVerdict {
    let why = NodeWhy::CameBack { deleted: kept.at };
    let name = format!("salvor-repair-came-back.{}", node.node.uid);
    let event =
        mention(name, (&node.node).into(), EventType::Normal, reasons::NODE_CAME_BACK, why.to_string());
    let put_back = Step::PutBack {
        node: node.node.clone(),
        resource_version: node.resource_version.clone(),
        kept: Box::new(kept.clone()),
    };
    let forget = Step::ForgetNode {
        policy: policy.object.clone(),
        resource_version: policy.resource_version.clone(),
        kept: policy.status.deleted_nodes.iter().filter(|it| it.uid != kept.uid).cloned().collect(),
    };
    Verdict::Act { actions: vec![put_back, forget, event], why }
}

/// Salvor leaves nothing on a node that no policy selects any more. Preparations are undone first.
fn not_selected(member: &Member<'_>) -> NodeVerdict {
    let (node, why) = (member.node, NodeWhy::NotSelected);
    if !node.has_traces() {
        return Verdict::Ignore(why);
    }
    let (object, resource_version) = (node.node.clone(), node.resource_version.clone());
    let step = if let Some(step) = take_back_termination(member) {
        step
    } else if node.is_cordoned_by_us() {
        uncordon(node, node.progress.as_deref().cloned())
    } else {
        let conditions: Vec<&'static str> = node.our_conditions().collect();
        let rebooting = conditions.contains(&REBOOT_CONDITION);
        Step::Forget { node: object, resource_version, conditions, rebooting }
    };
    Verdict::Act { actions: vec![step], why }
}

/// Removes the forced termination time that Salvor set and that is no longer needed.
fn take_back_termination(member: &Member<'_>) -> Option<Step> {
    let (claim, before) = member.prepared()?;
    // Karpenter fails on anything that is not a timestamp.
    let before = if before.parse::<Timestamp>().is_ok() { before } else { "" };
    Some(Step::TakeBackTermination {
        claim: claim.object.clone(),
        resource_version: claim.resource_version.clone(),
        before: before.to_owned(),
    })
}

fn uncordon(node: &NodeView, progress: Option<Progress>) -> Step {
    Step::Uncordon {
        node: node.node.clone(),
        resource_version: node.resource_version.clone(),
        progress: progress.map(|progress| Progress { cordoned: false, draining_since: None, ..progress }),
    }
}

/// True if the pods of this node are evicted one by one. That applies to a node that nothing owns, from its cordon on
/// and while the policy's status lists its repair, even while the repair is blocked because the machine may run.
pub fn is_drained(scene: &Scene<'_>, settings: &Settings, now: Timestamp) -> bool {
    let Scene { member, policy, survey, place, .. } = scene;
    let (Some((policy, survey)), Backend::Node, Place::Reserved(repair)) =
        (policy.zip(*survey), &member.backend, place)
    else {
        return false;
    };
    let memory = member.node.progress.as_deref();
    let has_begun = member.node.unschedulable && memory.is_some_and(|it| it.draining_since.is_some());
    let is_under_way = || match decide_node(scene, settings, now).verdict.why() {
        NodeWhy::RepairUnderWay { action, .. } => *action == Action::Replace,
        NodeWhy::Held { hold, .. } => matches!(**hold, Hold::MachineMayRun { .. }),
        NodeWhy::Disabled
        | NodeWhy::NotSelected
        | NodeWhy::InvalidPolicy { .. }
        | NodeWhy::NotListed
        | NodeWhy::Healthy
        | NodeWhy::ActionNone { .. }
        | NodeWhy::CameBack { .. }
        | NodeWhy::HealthyAgain { .. }
        | NodeWhy::TolerationRunning { .. }
        | NodeWhy::Vetoed { .. }
        | NodeWhy::NotReserved { .. }
        | NodeWhy::AnnotationUnreadable { .. }
        | NodeWhy::BeingDeleted
        | NodeWhy::Sick { .. } => false,
    };
    let is_free = || {
        let sick = diagnose(member.node, member.backend.owner(), policy, settings, now).sick;
        sick.is_some_and(|sick| {
            let asked = Asked { member, sick: &sick, action: Action::Replace, repair: Some(*repair) };
            survey.hold(policy, &asked, now).is_none()
        })
    };
    has_begun && is_under_way() && is_free()
}

fn see_sick(diagnosis: &Diagnosis) -> String {
    match (&diagnosis.sick, &diagnosis.tolerated) {
        (Some(sick), _) => sick.to_string(),
        (None, Some(condition)) => format!("{condition}, for which nothing is done"),
        (None, None) => "healthy".to_owned(),
    }
}

fn see_turn(turn: Turn) -> String {
    match turn {
        Turn::Running { action, until } => format!("{action} has time until {until}"),
        Turn::Try { .. } => "no, it is being done".to_owned(),
        Turn::Exhausted => "no, everything was tried".to_owned(),
    }
}

fn see_hold(survey: &Survey, hold: Option<&Hold>) -> String {
    let Survey { unhealthy, limit, base, .. } = survey;
    hold.map_or_else(
        || format!("{unhealthy} of {base} nodes are past their toleration, {limit} may be"),
        ToString::to_string,
    )
}

fn shown_count(count: usize) -> String {
    if count == usize::MAX { "an unknown number".to_owned() } else { count.to_string() }
}

/// The state that a node's condition reports.
#[derive(Clone, Copy)]
enum Told<'a> {
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
    fn token(&self) -> String {
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
struct NodeContext<'a> {
    scene: &'a Scene<'a>,
    policy: &'a Policy,
    diagnosis: &'a Diagnosis,
    settings: &'a Settings,
    now: Timestamp,
}

impl NodeContext<'_> {
    fn node(&self) -> &NodeView {
        self.scene.member.node
    }

    fn case(&self) -> Case<'_> {
        Case {
            member: &self.scene.member,
            policy: self.policy,
            settings: self.settings,
            repair: self.scene.place.repair(),
            now: self.now,
        }
    }

    /// The verdict, or first the write that reports it if the node does not show it yet.
    fn report(&self, told: Told<'_>, verdict: NodeVerdict) -> NodeVerdict {
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
            actions.push(self.mention(
                name,
                ObjectRef::from(&node.node),
                EventType::Warning,
                reasons::NODE_REPAIR_STUCK,
                why.to_string(),
            ));
        }
        if let (Told::Repaired, false) = (&told, is_told) {
            let name = format!("salvor-repaired.{}.{}", node.node.uid, self.now.as_second());
            actions.push(self.mention(
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
            self.mention(name, object, EventType::Warning, reasons::NODE_REPAIR_BLOCKED, message)
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
            self.mention(name, node.into(), EventType::Normal, reasons::NODE_DRAINED, message)
        })
    }

    fn write(&self, told: &Told<'_>, why: &NodeWhy, progress: Option<Progress>, tells: bool) -> Step {
        let node = self.node();
        let holds = told.holds();
        let status = if holds { super::views::Status::True } else { super::views::Status::False };
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
    fn boot_is_over(&self, told: &Told<'_>) -> bool {
        let node = self.node();
        let asks =
            node.condition(REBOOT_CONDITION).is_some_and(|asked| asked.status == super::views::Status::True);
        let tried = self.diagnosis.memory.tried.as_ref();
        let is_done = tried.is_none_or(|tried| {
            let booted = !node.boot_id.is_empty() && *node.boot_id != *tried.boot_id;
            booted || node.marks().reboot_done.as_deref() == Some(tried.at.to_string().as_str())
        });
        asks && (is_done || !matches!(told, Told::Rebooting))
    }

    /// The memory cannot be read, so it is unknown what was tried and who cordoned the node. The node's condition
    /// reports that once.
    fn unreadable(&self, problem: &str) -> NodeVerdict {
        let node = self.node();
        let why = NodeWhy::AnnotationUnreadable { problem: problem.into() };
        if node.deleting().is_some()
            || node.condition(CONDITION).is_some_and(|told| &*told.reason == reasons::UNREADABLE)
        {
            return Verdict::Ignore(why);
        }
        let condition = NodeCondition {
            kind: CONDITION,
            holds: false,
            reason: reasons::UNREADABLE,
            message: format!("policy {}: {why}", self.policy.name()),
            last_transition_time: to_the_second(self.now),
        };
        let (object, resource_version) = (node.node.clone(), node.resource_version.clone());
        let tell = Step::Tell { node: object, resource_version, condition };
        let name = format!("salvor-repair-unreadable.{}", node.node.uid);
        let regarding = ObjectRef::from(&node.node);
        let event =
            self.mention(name, regarding, EventType::Warning, reasons::NODE_REPAIR_BLOCKED, why.to_string());
        Verdict::Act { actions: vec![tell, event], why }
    }

    fn healthy(&self) -> NodeVerdict {
        let node = self.node();
        if self.scene.member.is_deleting() {
            return Verdict::Ignore(NodeWhy::BeingDeleted);
        }
        if let Some(step) = self.take_back() {
            return Verdict::Act { actions: vec![step], why: NodeWhy::Healthy };
        }
        if let Some(until) = self.diagnosis.resets_at {
            let verdict = Verdict::Wait { until, why: NodeWhy::HealthyAgain { until } };
            // A drain that has stopped is not reported as a repair until the clocks reset.
            if node.condition(CONDITION).is_some_and(|told| &*told.reason == reasons::REPAIRING) {
                let (told, why) = (Told::Recovered, NodeWhy::HealthyAgain { until });
                let progress = Progress { told: told.token(), ..self.diagnosis.memory.clone() };
                return Verdict::Act { actions: vec![self.write(&told, &why, Some(progress), true)], why };
            }
            let before = node.progress.as_deref();
            let told = before.map(|before| before.told.clone()).unwrap_or_default();
            let progress = Progress { told, ..self.diagnosis.memory.clone() };
            let rebooted = self.boot_is_over(&Told::Recovered);
            if before == Some(&progress) && !rebooted {
                return verdict;
            }
            let step = Step::Report {
                node: node.node.clone(),
                resource_version: node.resource_version.clone(),
                condition: None,
                rebooted: rebooted.then(|| to_the_second(self.now)),
                progress: Some(progress),
            };
            return Verdict::Act { actions: vec![step], why: NodeWhy::HealthyAgain { until } };
        }
        let why = match &self.diagnosis.tolerated {
            Some(condition) => NodeWhy::ActionNone { condition: condition.clone() },
            None => NodeWhy::Healthy,
        };
        let verdict = match self.diagnosis.forgets_at {
            Some(until) => Verdict::Wait { until, why },
            None => Verdict::Ignore(why),
        };
        match node.condition(CONDITION).map(|condition| &*condition.reason) {
            None if node.progress.is_none() && node.marks().damage.is_none() => verdict,
            Some(reasons::REBOOTING | reasons::REPAIRED) => self.report(Told::Repaired, verdict),
            None | Some(_) => self.report(Told::Recovered, verdict),
        }
    }

    /// Undoes preparations for a repair that is no longer needed.
    fn take_back(&self) -> Option<Step> {
        let node = self.node();
        if node.is_cordoned_by_us() && node.deleting().is_none() {
            return Some(uncordon(node, Some(self.diagnosis.memory.clone())));
        }
        take_back_termination(&self.scene.member)
    }

    fn held(&self, sick: &Sick, hold: &Hold) -> NodeVerdict {
        let by = Held::RepairPolicy(Box::new(RepairLimit {
            cause: hold.code(),
            what: hold.to_string(),
            until: hold.until(),
        }));
        let why = NodeWhy::Held { sick: Box::new(sick.clone()), hold: Box::new(hold.clone()) };
        self.report(Told::Blocked(hold), Verdict::Blocked { by, why })
    }

    fn under_way(&self, turn: Turn) -> NodeVerdict {
        if let Turn::Running { action, until } = turn {
            let since = self.diagnosis.memory.tried.as_ref().map_or(self.now, |tried| tried.at);
            let why = NodeWhy::RepairUnderWay { action, since, stuck: false };
            return self.report(Told::Rebooting, Verdict::Wait { until, why });
        }
        let Some(repair) = self.scene.place.repair() else { return Verdict::Ignore(NodeWhy::BeingDeleted) };
        let course = Course::of(repair, Some(&self.scene.member), None, self.policy, self.settings, self.now);
        let (next, stuck) = match course {
            Course::Begun { stuck_at } => (stuck_at, stuck_at <= self.now),
            Course::NotBegun { lapses_at } => (lapses_at, false),
        };
        let why = NodeWhy::RepairUnderWay { action: Action::Replace, since: repair.since, stuck };
        let drain_ends = self.case().drain_ends().filter(|ends| self.now < *ends);
        let verdict = if let Some(until) = drain_ends {
            Verdict::Wait { until, why }
        } else if next <= self.now {
            Verdict::Ignore(why)
        } else {
            Verdict::Wait { until: next, why }
        };
        self.report(Told::Repairing { stuck }, verdict)
    }

    fn reboot(&self, sick: &Sick, rung: usize, attempt: u32) -> Step {
        let node = self.node();
        // Times older than the Node are rejected on reading, and an API server's clock may be behind.
        let now = to_the_second(self.now);
        let at = node.created.map_or(now, |created| now.max(created));
        let tried = Tried {
            condition: sick.key.clone(),
            action: Action::Reboot,
            rung,
            attempt,
            at,
            boot_id: node.boot_id.to_string(),
        };
        Step::RequestReboot {
            node: node.node.clone(),
            resource_version: node.resource_version.clone(),
            at,
            progress: Progress { tried: Some(tried), told: String::new(), ..self.diagnosis.memory.clone() },
            zone: node.zone.to_string(),
            begun: Begun { policy: self.policy.name(), condition: sick.key.clone() },
        }
    }

    /// The events of a repair that begins: one on each object.
    fn events(&self, sick: &Sick, step: &Step) -> Vec<Step> {
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
                vec![self.mention(name, object, EventType::Normal, reasons::NODE_REBOOT_REQUESTED, message)]
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
                vec![self.mention(name, ObjectRef::from(&node.node), EventType::Normal, reason, message)]
            }
            Step::DeleteOwner { .. } | Step::RemediateMachine { .. } => {
                let message = format!("policy {policy} replaces node {}: {sick}", node.node.name);
                let pool = member.pool.map(|pool| pool.object.clone());
                let owner = member.backend.owner().map(|owner| owner.object.clone());
                let objects = [Some(ObjectRef::from(&node.node)), owner, pool];
                let mention = |object: ObjectRef| {
                    let kind = object.kind.kind.to_lowercase();
                    let name = format!("salvor-repair-{kind}.{uid}.{since}");
                    self.mention(
                        name,
                        object,
                        EventType::Normal,
                        reasons::NODE_REPAIR_STARTED,
                        message.clone(),
                    )
                };
                objects.into_iter().flatten().map(mention).collect()
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

    fn mention(
        &self,
        name: String,
        regarding: ObjectRef,
        kind: EventType,
        reason: &'static str,
        message: String,
    ) -> Step {
        mention(name, regarding, kind, reason, message)
    }
}

fn mention(
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

// ---- policies -------------------------------------------------------------------------------------------------------

/// Status writes that change only counts are at least this far apart.
pub const COUNTS_EVERY: jiff::SignedDuration = jiff::SignedDuration::from_secs(5);

/// A policy with everything its verdict depends on.
pub struct PolicyScene<'a> {
    pub policy: &'a Policy,
    /// None if the policy selects nothing.
    pub survey: Option<&'a Survey>,
    /// The number of selected nodes for which an older policy counts, with the name of one such policy.
    pub overlap: Option<(usize, String)>,
    /// When this process last wrote the policy's status.
    pub written: Option<Timestamp>,
    /// The NodePool of a repair, by the UID of its node.
    pub pool_of: &'a dyn Fn(&Repair) -> Option<ObjectRef>,
}

/// Decides what is written into a policy's status.
pub fn decide_policy(scene: &PolicyScene<'_>, now: Timestamp) -> Decision<PolicyWhy, Step> {
    judge(|ask| policy_rules(ask, scene, now))
}

fn policy_rules(
    ask: &mut Trace,
    scene: &PolicyScene<'_>,
    now: Timestamp,
) -> Result<Verdict<PolicyWhy, Step>, Verdict<PolicyWhy, Step>> {
    let PolicyScene { policy, survey, written, .. } = scene;
    let is_damaged = policy.status.damaged;
    let seen = if is_damaged { "no" } else { "yes" };
    ask.that("Can the list of its repairs be read?", seen, !is_damaged)
        .ok_or(Verdict::Ignore(PolicyWhy::ListDamaged))?;
    let defect = policy.defects.first();
    let is_readable =
        ask.that("Can its spec be read?", defect.map_or("yes", |it| it), defect.is_none()).is_some();
    let empty = Survey::default();
    let survey = survey.filter(|_| is_readable).unwrap_or(&empty);
    let status = status(scene, survey, now);
    let before = &policy.status;
    let (begin, end) = (survey.picks.len(), survey.over.len() + survey.released.len());
    let write = |why: PolicyWhy, events: Vec<Step>| {
        let step = Step::WritePolicy {
            policy: policy.object.clone(),
            resource_version: policy.resource_version.clone(),
            status: Box::new(status.clone()),
            begins: begin > 0,
            over: survey.over.clone(),
        };
        Verdict::Act { actions: std::iter::once(step).chain(events).collect(), why }
    };
    let moves = format!("{begin} begin, {end} end");
    ask.that("Do all repairs stay as they are?", moves, begin + end == 0)
        .ok_or_else(|| write(PolicyWhy::Repairs { begin, end }, ended_events(scene, survey)))?;
    let rests = || match survey.changes_at {
        Some(until) => Verdict::Wait { until, why: PolicyWhy::Settled },
        None => Verdict::Ignore(PolicyWhy::Settled),
    };
    let is_told =
        if policy.is_pool() { before.annotation() == status.annotation() } else { *before == status };
    if ask.that("Is its status up to date?", if is_told { "yes" } else { "no" }, is_told).is_some() {
        return Ok(match defect {
            Some(defect) => Verdict::Ignore(PolicyWhy::Invalid { defect: defect.clone() }),
            None => rests(),
        });
    }
    // Changed conditions are written at once, changed counts at intervals.
    let only_counts =
        before.conditions == status.conditions && before.observed_generation == status.observed_generation;
    let next = written.map(|written| after(written, COUNTS_EVERY)).filter(|next| now < *next && only_counts);
    if let Some(next) = next {
        let until = survey.changes_at.map_or(next, |at| at.min(next));
        return Ok(Verdict::Wait { until, why: PolicyWhy::Counts });
    }
    let problems = problems(policy);
    let events = if problems.is_empty() {
        Vec::new()
    } else {
        let name = format!("salvor-repair-policy.{}.{}", policy.object.uid, policy.generation);
        let message = problems.join("; ");
        vec![mention(name, policy.object.clone(), EventType::Warning, reasons::INVALID_POLICY, message)]
    };
    Ok(write(PolicyWhy::Counts, events))
}

/// Everything in a policy that a person should correct.
fn problems(policy: &Policy) -> Vec<&str> {
    policy.defects.iter().chain(&policy.idle_parts).map(String::as_str).collect()
}

fn ended_events(scene: &PolicyScene<'_>, survey: &Survey) -> Vec<Step> {
    let policy = scene.policy;
    let mut events = Vec::new();
    for Ended { repair, end } in &survey.over {
        let (reason, done) = match end {
            End::Replaced | End::Rebooted => (reasons::NODE_REPAIRED, "is repaired"),
            End::NodeGone => (reasons::NODE_DELETED, "is gone, and its machine was not touched"),
        };
        let message = format!("node {} {done} ({}), policy {}", repair.node, repair.condition, policy.name());
        let pool = (scene.pool_of)(repair).filter(|pool| *pool != policy.object);
        for object in std::iter::once(policy.object.clone()).chain(pool) {
            let kind = object.kind.kind.to_lowercase();
            let name = format!("salvor-repaired-{kind}.{}.{}", repair.uid, repair.since.as_second());
            let note = message.clone();
            events.push(mention(name, object, EventType::Normal, reason, note));
        }
    }
    events
}

/// The status that the policy should have.
fn status(scene: &PolicyScene<'_>, survey: &Survey, now: Timestamp) -> PolicyStatus {
    let PolicyScene { policy, overlap, .. } = scene;
    let before = &policy.status;
    let now = to_the_second(now);
    let ends = |repair: &&Repair| {
        let is_over = survey.over.iter().any(|ended| ended.repair.uid == repair.uid);
        !is_over && !survey.released.iter().any(|other| other.uid == repair.uid)
    };
    let mut repairs: Vec<Repair> = before.repairs.iter().filter(ends).cloned().collect();
    repairs.extend(survey.picks.iter().cloned());
    let generation = policy.generation;
    let ready = match policy.defects.as_slice() {
        [] => before.condition("Ready", true, "Valid", String::new(), generation, now),
        defects => before.condition("Ready", false, "InvalidSpec", defects.join("; "), generation, now),
    };
    let hold = survey.held_as_a_whole(policy);
    let allowed = if let [defect, ..] = policy.defects.as_slice() {
        before.condition("RepairAllowed", false, "InvalidSpec", defect.clone(), generation, now)
    } else if let Some(hold) = hold {
        before.condition("RepairAllowed", false, hold.code(), told_hold(&hold, policy), generation, now)
    } else if let Some(zone) = survey.zones.keys().next() {
        let message = format!(
            "the nodes of zone {zone} are sick, which looks like one cause; no node of it is repaired"
        );
        before.condition("RepairAllowed", false, Hold::ZONE_OUTAGE, message, generation, now)
    } else if let Some((pool, condition)) = survey.pools.keys().next() {
        let message = format!(
            "the nodes of pool {pool:?} are sick by {condition}, which looks like one cause; no node of it is repaired for that"
        );
        before.condition("RepairAllowed", false, Hold::POOL_OUTAGE, message, generation, now)
    } else if let Some((pool, condition)) = survey.relapses.keys().next() {
        let message = format!(
            "new nodes of pool {pool:?} have {condition} as well; no node of it is replaced for that"
        );
        before.condition("RepairAllowed", false, Hold::REPAIRS_DO_NOT_HELP, message, generation, now)
    } else if let Some(pool) = survey.launches.keys().next() {
        let message = format!("pool {pool} gets no new nodes");
        before.condition("RepairAllowed", false, "LaunchFailures", message, generation, now)
    } else if repairs.len() - survey.given_up >= survey.allowed
        && survey.held.contains_key(Hold::BUDGET_EXHAUSTED)
    {
        let message = "as many nodes are under repair as the budget allows".to_owned();
        before.condition("RepairAllowed", false, Hold::BUDGET_EXHAUSTED, message, generation, now)
    } else {
        before.condition("RepairAllowed", true, "Allowed", String::new(), generation, now)
    };
    let overlaps = match overlap {
        Some((nodes, older)) => {
            let message =
                format!("for {nodes} nodes that this policy selects, an older one counts, such as {older}");
            before.condition("Overlaps", true, "OlderPolicyCounts", message, generation, now)
        }
        None => before.condition("Overlaps", false, "NoOverlap", String::new(), generation, now),
    };
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    PolicyStatus {
        observed_generation: generation,
        nodes: count(survey.nodes),
        healthy: count(survey.healthy),
        waiting: count(survey.waiting),
        blocked: count(survey.held.values().sum::<usize>() + survey.given_up),
        repairing: count(repairs.len() - survey.given_up),
        repaired: before.repaired.saturating_add(survey.repaired() as u64),
        repairs,
        // A policy that cannot be read is not surveyed, so its list stays.
        replacements: if policy.defects.is_empty() {
            survey.replacements.clone()
        } else {
            before.replacements.clone()
        },
        deleted_nodes: before.deleted_nodes.iter().filter(|it| now < it.forgotten_at()).cloned().collect(),
        conditions: vec![ready, allowed, overlaps],
        problem: if policy.is_pool() { problems(policy).join("; ") } else { String::new() },
        damaged: false,
    }
}

/// The hold without numbers that change all the time.
fn told_hold(hold: &Hold, policy: &Policy) -> String {
    match hold {
        Hold::TooManyUnhealthy { .. } => {
            format!(
                "more nodes are past their toleration, or were until lately, than unhealthyLimit {} allows",
                policy.unhealthy_limit
            )
        }
        other => other.to_string(),
    }
}
