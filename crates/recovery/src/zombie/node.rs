//! Decides whether a node is tainted out-of-service, or the taint is removed: the rule `taintNodeOutOfService`.

use jiff::{SignedDuration, Timestamp};
use salvor_api::config::TaintNodeOutOfService;
use salvor_api::names::{annotations, events, reasons, taints};

use super::policy::{ConsentSource, ZombiePolicy};
use super::reasons::NodeWhy;
use super::steps::Step;
use super::views::{NodeView, OutOfServiceMark, Unreachable, out_of_service_taint};
use crate::event::{EventNote, EventType};
use crate::liveness::Lease;
use crate::moments::{ANNOUNCE_WITHIN, after, to_the_second};
use crate::objects::Ready;
use crate::one_actor::{NodeActor, see_actor};
use crate::verdict::Verdict::{self, Ignore};
use crate::verdict::{Decision, judge};

/// Decides on one node. `now` is the API server's time.
///
/// An unread Lease does not block here: it is read live, and the node decided on again, before anything is done.
pub fn decide_node(node: &NodeView, policy: &ZombiePolicy, now: Timestamp) -> Decision<NodeWhy, Step> {
    judge(|ask| {
        ask.none("Is zombie recovery switched on?", policy.switch(), policy.disabled)
            .map_err(|by| Ignore(NodeWhy::Disabled(by)))?;
        // Salvor removes its own taint, whether or not a rule still asks for it.
        let mark = node.out_of_service_mark.as_ref();
        ask.none("Did Salvor not taint it out-of-service?", see_mark(node), mark)
            .map_err(|mark| take_back(node, mark, policy, now))?;

        let rule = policy.node_rule(&node.labels);
        let (index, rule) =
            ask.some("Does a rule match its labels?", see_rule(rule), rule).ok_or(Ignore(NodeWhy::NoRule))?;
        let lost = ask
            .some("Is it unreachable?", see_taint(node), node.unreachable)
            .ok_or(Ignore(NodeWhy::NodeReachable))?;
        ask.none(
            "Is it not tainted out-of-service by others?",
            see_out_of_service(node),
            node.out_of_service.first(),
        )
        .map_err(|_| Ignore(NodeWhy::TaintedByOthers))?;
        ask.that("Is it not Ready?", format_args!("Ready is {:?}", node.ready), node.ready != Ready::True)
            .ok_or(Ignore(NodeWhy::NodeReady))?;

        let another = policy.actors.another(NodeActor::OutOfService, node.signs());
        ask.none("Does no other recovery act on it?", see_actor(another), another)
            .map_err(|who| Ignore(NodeWhy::AnotherRecoveryActs { who }))?;

        let (until, why) = wait(node, lost, rule);
        let observed = format!("{}; until {until}, it is {now}", node.heartbeat);
        ask.that("Is its kubelet silent for long enough?", observed, now >= until)
            .ok_or(Verdict::Wait { until, why })?;

        let why = NodeWhy::NodeLost { since: lost.since, rule: index };
        let since = to_the_second(now);
        let taint = Step::TaintNode {
            node: node.node.clone(),
            resource_version: node.resource_version.clone(),
            taint: out_of_service_taint(),
            mark: annotations::OUT_OF_SERVICE_SINCE,
            since,
            boot: node.boot_to_remember(),
        };
        let event = tell_out_of_service(node, since, why.to_string());
        Ok(Verdict::Act { actions: vec![taint, event], why })
    })
}

/// The node must be lost for long enough, and its kubelet silent. Waits for the later of the two, so one wake-up is
/// enough.
fn wait(node: &NodeView, lost: Unreachable, rule: &TaintNodeOutOfService) -> (Timestamp, NodeWhy) {
    let timeout = SignedDuration::from(rule.unreachable_node_timeout);
    let due = after(lost.since, timeout);
    match node.heartbeat.silent_from() {
        Some(silent) if silent > due => (silent, NodeWhy::LeaseFresh { heartbeat: node.heartbeat }),
        _ => (due, NodeWhy::UnreachableTooBriefly { since: lost.since, timeout }),
    }
}

/// Our taint is on the node: is it back? Its volumes were detached by force, so its machine must have rebooted.
fn take_back(
    node: &NodeView,
    mark: &OutOfServiceMark,
    policy: &ZombiePolicy,
    now: Timestamp,
) -> Verdict<NodeWhy, Step> {
    let lease = node.heartbeat.lease;
    let unread = node.ready == Ready::True && lease == Lease::Unread;
    let is_back = unread || lease.is_back(node.ready, now);
    if is_back && policy.wants_reboot && node.may_still_use_volumes(mark) {
        let why = NodeWhy::NotRebooted { node: node.node.name.clone() };
        if node.return_told {
            return Ignore(why);
        }
        return Verdict::Act { actions: vec![tell_not_rebooted(node, mark, why.to_string())], why };
    }
    if is_back {
        let why = NodeWhy::BackInService;
        let untaint = Step::UntaintNode {
            node: node.node.clone(),
            resource_version: node.resource_version.clone(),
            taint: out_of_service_taint(),
            mark: annotations::OUT_OF_SERVICE_SINCE,
        };
        let told = tell_back_in_service(node, mark, why.to_string());
        return Verdict::Act { actions: vec![untaint, told], why };
    }
    match mark.since {
        Some(since) if !node.announced && now < after(since, ANNOUNCE_WITHIN) => {
            let message = NodeWhy::OutOfService { since: Some(since) }.to_string();
            Verdict::Act {
                actions: vec![tell_out_of_service(node, since, message)],
                why: NodeWhy::Unannounced,
            }
        }
        since => Ignore(NodeWhy::OutOfService { since }),
    }
}

fn tell_out_of_service(node: &NodeView, since: Timestamp, message: String) -> Step {
    Step::EmitEvent(EventNote {
        name: format!("node-out-of-service.{}.{}", node.node.uid, since.as_second()),
        regarding: (&node.node).into(),
        kind: EventType::Warning,
        reason: reasons::NODE_OUT_OF_SERVICE.into(),
        action: events::TAINT_NODE,
        reporting_controller: events::POD_TERMINATION_CONTROLLER,
        message,
    })
}

fn tell_not_rebooted(node: &NodeView, mark: &OutOfServiceMark, message: String) -> Step {
    let incident = mark.since.map_or(0, Timestamp::as_second);
    Step::EmitEvent(EventNote {
        name: format!("node-not-rebooted.{}.{incident}", node.node.uid),
        regarding: (&node.node).into(),
        kind: EventType::Warning,
        reason: reasons::NODE_NOT_REBOOTED.into(),
        action: events::UNTAINT_NODE,
        reporting_controller: events::POD_TERMINATION_CONTROLLER,
        message,
    })
}

fn tell_back_in_service(node: &NodeView, mark: &OutOfServiceMark, message: String) -> Step {
    let incident = mark.since.map_or(0, Timestamp::as_second);
    Step::EmitEvent(EventNote {
        name: format!("node-back-in-service.{}.{incident}", node.node.uid),
        regarding: (&node.node).into(),
        kind: EventType::Normal,
        reason: reasons::NODE_BACK_IN_SERVICE.into(),
        action: events::UNTAINT_NODE,
        reporting_controller: events::POD_TERMINATION_CONTROLLER,
        message,
    })
}

fn see_mark(node: &NodeView) -> String {
    match &node.out_of_service_mark {
        None => "no annotation of ours".into(),
        Some(OutOfServiceMark { since, boot_id }) => {
            let since = since.map_or("some time".into(), |since| since.to_string());
            let boot = boot_id.as_deref().unwrap_or("unknown");
            let now = if node.boot_id.is_empty() { "unknown" } else { &node.boot_id };
            format!(
                "by us since {since}, in boot {boot}; Ready is {:?}, {}, boot {now}",
                node.ready, node.heartbeat
            )
        }
    }
}

fn see_rule(rule: Option<(usize, &TaintNodeOutOfService)>) -> String {
    rule.map_or("none".into(), |(index, _)| ConsentSource::Rule(index).to_string())
}

fn see_taint(node: &NodeView) -> String {
    match node.unreachable {
        Some(lost) => format!("taint {} since {}", taints::UNREACHABLE, lost.since),
        None => format!("no taint {}", taints::UNREACHABLE),
    }
}

fn see_out_of_service(node: &NodeView) -> String {
    match node.out_of_service.first() {
        Some(taint) => format!("taint {taint}, not by us"),
        None => format!("no taint {}", taints::OUT_OF_SERVICE),
    }
}
