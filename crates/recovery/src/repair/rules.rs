//! The rules of the repair recovery, in the order in which a person would ask them.
//!
//! [`decide_policy`] looks at all nodes of a policy together: it decides which node has its turn, and records that.
//! [`decide_node`] looks at one node. It touches a node only if the policy's status, or the NodePool's annotation,
//! lists it among the repairs under way. That list is written with the resourceVersion on which the decision is based,
//! so a second writer or a stale cache gets a conflict. Therefore no more nodes are under repair than the budget
//! allows, whatever happens in between.
//!
//! "Node Auto Repair" in the comments is Karpenter's design of that name. Questions without it are Salvor's own.

mod policy;
mod report;
mod scene;
mod undo;

use jiff::Timestamp;
use salvor_api::names::repair::{CONDITION, REBOOT_CONDITION, reasons};

pub use policy::{COUNTS_EVERY, decide_policy};
pub use scene::{KeptBy, Place, PolicyScene, Scene};

use self::report::{NodeContext, NodeVerdict, Told, mention};
use self::undo::{take_back_termination, uncordon};
use super::action::Action;
use super::counts::Survey;
use super::holds::Hold;
use super::ladder::{Turn, turn};
use super::limits::Asked;
use super::member::{Course, Member};
use super::next::Next;
use super::policy::Policy;
use super::progress::Progress;
use super::reasons::NodeWhy;
use super::sickness::{Diagnosis, Settings, Sick, diagnose};
use super::steps::Step;
use super::veto::Veto;
use super::views::{Backend, NodeView};
use crate::brake::{Held, RepairLimit};
use crate::event::{EventType, NodeCondition};
use crate::moments::to_the_second;
use crate::objects::ObjectRef;
use crate::step::Step as _;
use crate::verdict::{Decision, Trace, Verdict, judge};

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
    // Node Auto Repair, RepairSpec: without a policy, nothing is repaired.
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

    // Node Auto Repair, workflow 2: conditions are matched with the provider's repair statements. Conditions that users
    // name are one of its future considerations.
    let Some(sick) = ask.some("Is it sick?", see_sick(&diagnosis), diagnosis.sick.as_ref()) else {
        return Err(context.healthy());
    };
    // Node Auto Repair, workflow 3: the policy's toleration for the condition, the policy's default, the provider's.
    let due = sick.deadline <= now;
    ask.that("Is it sick for longer than is tolerated?", format!("until {}", sick.deadline), due)
        .ok_or_else(|| context.tolerated(sick))?;
    let veto = member.veto(now);
    let seen = veto.as_ref().map_or("no veto".to_owned(), |veto| veto.by.clone());
    ask.none("Is its repair allowed?", seen, veto).map_err(|veto| context.vetoed(sick, veto))?;

    // Node Auto Repair, workflow 4 and "Forceful termination": the NodeClaim is terminated. Graceful termination and
    // reboots are among its future considerations.
    let turn = turn(sick, diagnosis.memory.tried.as_ref(), now);
    let case = context.case();
    let (step, seen, hold) = match case.next(sick, turn) {
        Next::Write(step) => (Some(*step), None, None),
        Next::Reboot { rung, attempt } => {
            (Some(case.reboot(&diagnosis.memory, sick, rung, attempt)), None, None)
        }
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
    // Node Auto Repair, future considerations: the resilience of availability zones.
    let asked = Asked { member, sick, action, repair: place.repair() };
    let hold = survey.hold(policy, &asked, now);
    ask.none("Do the policy's limits allow it?", see_hold(survey, hold.as_ref()), hold)
        .map_err(|hold| context.held(sick, &hold))?;
    // Node Auto Repair, future considerations: budgets.
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

impl NodeContext<'_> {
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
            mention(name, regarding, EventType::Warning, reasons::NODE_REPAIR_BLOCKED, why.to_string());
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

    fn tolerated(&self, sick: &Sick) -> NodeVerdict {
        let why = NodeWhy::TolerationRunning { sick: Box::new(sick.clone()) };
        self.report(Told::Waiting(sick), Verdict::Wait { until: sick.deadline, why })
    }

    fn vetoed(&self, sick: &Sick, veto: Veto) -> NodeVerdict {
        let (until, why) =
            (veto.until, NodeWhy::Vetoed { sick: Box::new(sick.clone()), veto: Box::new(veto) });
        let verdict = match until {
            Some(until) => Verdict::Wait { until, why },
            None => Verdict::Ignore(why),
        };
        self.report(Told::Vetoed, verdict)
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
