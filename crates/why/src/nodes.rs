//! Nodes that are lost or sick, and cordoned nodes that cannot be drained.

use std::{cmp::Reverse, collections::BTreeMap};

use jiff::{SignedDuration, Timestamp};
use salvor_api::Controller;
use salvor_api::names::{annotations, repair, taints};
use salvor_operator::heartbeat_of_kubelet;
use salvor_recovery::expected::{DeletionRequest, ExpectedBack};
use serde_json::Value;

use crate::{
    answer::{Object, Remedy},
    code::Code,
    diagnosis::{Consent, Diagnosis, Finding, Rules},
    json::{
        condition, controller, entry, has_ended, is_terminating, is_true, is_unheard, list, name, named,
        namespace, number, selects, since, text, time, unreachable,
    },
    kinds::{BUDGET, LEASE, NODE},
    presence::Presence,
    salvor::{NODE_LEASES, by_namespace, silent},
    words::{counted, verb},
    world::Seen,
};

/// Limits the length of a command.
const MOST_PODS: usize = 20;

/// Reasons of the condition that reports the repair of a node.
const REPAIR_UNDER_WAY: [&str; 3] = ["Waiting", "Repairing", "Rebooting"];
const REPAIR_BLOCKED: [&str; 3] = ["Blocked", "Vetoed", "AnnotationUnreadable"];
/// Annotations that forbid the repair of a Node.
const VETOES: [&str; 2] = [repair::annotations::DO_NOT_REPAIR, repair::annotations::KARPENTER_DO_NOT_REPAIR];

/// The state of a node, as it matters to the pods on it.
pub(crate) enum NodeState<'a> {
    /// Its kubelet sends no heartbeats.
    Lost {
        node: &'a Value,
        since: Option<Timestamp>,
    },
    /// The Node object does not exist.
    Gone,
    /// Not Ready although its kubelet is alive, or called sick by a repair policy.
    Sick {
        node: &'a Value,
        /// A sign of life of its kubelet, set where only that distinguishes it from a lost node.
        heartbeat: Option<String>,
    },
    Fine,
    Unknown,
}

impl Rules<'_> {
    pub(crate) fn node_state(&self, name: &str) -> NodeState<'_> {
        let node = match self.world.get(&NODE, "", name) {
            Seen::Here(node) => node,
            Seen::Absent => return NodeState::Gone,
            Seen::Unknown => return NodeState::Unknown,
        };
        self.state_of(node)
    }

    pub(crate) fn is_lost(&self, name: &str) -> bool {
        !name.is_empty() && matches!(self.node_state(name), NodeState::Lost { .. })
    }

    pub(crate) fn is_gone(&self, name: &str) -> bool {
        !name.is_empty() && matches!(self.node_state(name), NodeState::Gone)
    }

    fn state_of<'a>(&self, node: &'a Value) -> NodeState<'a> {
        let ready = condition(node, "Ready");
        if is_unheard(node) {
            if let Some(heartbeat) = self.heartbeat(node) {
                return NodeState::Sick { node, heartbeat: Some(heartbeat) };
            }
            let unknown = ready.filter(|ready| text(ready, "/status") == "Unknown").and_then(since);
            let noticed = unknown.or_else(|| time(unreachable(node)?, "/timeAdded"));
            return NodeState::Lost { node, since: self.silent_since(name(node)).or(noticed) };
        }
        let not_ready = ready.is_some_and(|ready| text(ready, "/status") == "False");
        if not_ready || repair(node).is_some() {
            NodeState::Sick { node, heartbeat: None }
        } else {
            NodeState::Fine
        }
    }

    /// A sign of life of a node's kubelet, by the rules that the recoveries use. `None` if it is silent or cannot be
    /// read.
    fn heartbeat(&self, node: &Value) -> Option<String> {
        let lease = match self.world.get(&LEASE, NODE_LEASES, name(node)) {
            Seen::Here(lease) => Some(lease.to_string()),
            Seen::Absent => None,
            Seen::Unknown => return None,
        };
        match heartbeat_of_kubelet(&node.to_string(), lease.as_deref(), self.world.now) {
            Ok(heartbeat) => heartbeat,
            Err(error) => {
                self.world.miss(format!("the pulse of node {}", name(node)), error.to_string());
                None
            }
        }
    }

    /// Why a pod on a bad node does not run. `None` if its node is healthy or unknown.
    pub(crate) fn by_its_node(&self, pod: &Value) -> Option<Finding> {
        let on = text(pod, "/spec/nodeName");
        let finding = match self.node_state(on) {
            NodeState::Lost { node, since } if is_terminating(pod) || self.is_given_up(pod) => {
                self.stuck(pod, node, since).expects(self.expected_of_lost(pod, Some(node)))
            }
            NodeState::Lost { node, since } => {
                let goes = match evicted_at(pod, node) {
                    Some(at) => format!("it is to be evicted at {at:.0}"),
                    None => "nobody has asked for its deletion".to_owned(),
                };
                let message =
                    format!("{}; pod {} is not marked for deletion, {goes}", silent(on, since), name(pod));
                Finding::new(Code::NodeLost, named("Node", node), message)
                    .since(since)
                    .expects(self.expected_of_lost(pod, Some(node)))
            }
            NodeState::Gone => {
                let message =
                    format!("there is no node {on} any more, and pod {} is still bound to it", name(pod));
                Finding::new(Code::NodeLost, Object::of("Node", "", on), message)
                    .expects(self.expected_of_lost(pod, None))
            }
            NodeState::Sick { node, heartbeat } => sick(node, heartbeat.as_deref()),
            NodeState::Fine | NodeState::Unknown => return None,
        };
        let me = named("Pod", pod);
        let says = if is_terminating(pod) {
            format!("is being deleted, on node {on}")
        } else {
            format!("does not run ready, on node {on}")
        };
        Some(finding.waiting(me.clone()).under(me, says))
    }

    /// The remedies for a node, for all pods that wait for it.
    pub(crate) fn remedies_on_node(&self, finding: &Finding) -> Vec<Remedy> {
        let node = &finding.cause.object.name;
        if finding.cause.object.kind != "Node" {
            return Vec::new();
        }
        let back = Remedy::text(format!(
            "Bring node {node} back (power its machine on, or restart its kubelet): what was on it then ends or goes on by itself"
        ));
        match finding.cause.code {
            Code::NodeLost if matches!(self.world.get(&NODE, "", node), Seen::Absent) => {
                vec![Remedy::text(format!(
                    "Wait: there is no node {node} any more, and the control plane removes what was on it by itself"
                ))]
            }
            Code::NodeLost if self.evicts() => vec![back, evict(node)],
            Code::NodeLost => {
                let taint = format!(
                    "kubectl taint node {node} --overwrite {}={}:{}",
                    taints::OUT_OF_SERVICE,
                    taints::OUT_OF_SERVICE_VALUE,
                    taints::NO_EXECUTE
                );
                let off = format!(
                    "If the machine of {node} is off for sure (else its work may run twice), say so: its pods are removed and its volumes freed"
                );
                vec![back, Remedy::command(off, taint)]
            }
            Code::NotOptedIn => {
                let mut remedies = vec![back];
                let needed = self.needed_beside_consent();
                let only_then = if needed.is_empty() { "" } else { " and only with the above" };
                remedies.extend(needed);
                for consent in [Consent::Terminate, Consent::Delete] {
                    let (annotation, then) = match consent {
                        Consent::Terminate => (
                            annotations::SAFE_TO_FORCEFULLY_TERMINATE,
                            "calls the pod Failed after its wait, and its Job replaces it",
                        ),
                        Consent::Delete => (
                            annotations::SAFE_TO_FORCEFULLY_DELETE,
                            "calls the pod Failed and deletes it after its wait",
                        ),
                    };
                    let pods = finding.lacking.iter().filter(|(_, lacking)| *lacking == consent);
                    for (namespace, pods) in by_namespace(pods.map(|(pod, _)| pod)) {
                        let pods = pods.iter().take(MOST_PODS).copied().collect::<Vec<_>>().join(" ");
                        remedies.push(Remedy::command(
                            format!("Consent, as the owner: then{only_then}, Salvor {then} (if the machine still runs, its work may run twice)"),
                            format!("kubectl annotate pod {pods} -n {namespace} --overwrite {annotation}={}", annotations::CONSENT),
                        ));
                    }
                }
                remedies
            }
            Code::NobodyLeads | Code::RecoveryOff | Code::BrakeHolds | Code::GraceRunning => vec![back],
            _ => Vec::new(),
        }
    }

    /// Whether a leader would carry out `salvor evict`.
    pub(crate) fn evicts(&self) -> bool {
        match self.judge.presence(self.world) {
            Presence::Here(installed) => {
                let configuration = &installed.configuration;
                !installed.no_leader
                    && !configuration.dry_run
                    && configuration.controllers.enabled(Controller::Eviction)
            }
            Presence::Absent | Presence::Unknown => false,
        }
    }

    pub(crate) fn asked_node(&self, node: &Value) -> Diagnosis {
        let object = named("Node", node);
        let on = &object.name;
        let pods = self.world.pods_on(on).unwrap_or_default();
        let by_state = by_state(&pods);
        let pods: Vec<&Value> =
            pods.into_iter().filter(|pod| !has_ended(pod) || is_terminating(pod)).collect();
        match self.state_of(node) {
            NodeState::Lost { since, .. } => {
                let mut findings: Vec<Finding> = Vec::new();
                for pod in &pods {
                    let ending = is_terminating(pod);
                    let found = if ending {
                        self.ending(pod).into_iter().next()
                    } else if self.is_given_up(pod) {
                        self.by_its_node(pod)
                    } else {
                        None
                    };
                    findings.extend(found.map(|finding| cut_to(finding, &object, on)));
                }
                let waiting = format!("{} {}", counted(pods.len(), "pod"), verb(pods.len(), "is", "are"));
                if findings.is_empty() {
                    let message = format!("{}; {waiting} on it, not marked for deletion", silent(on, since));
                    let each = pods.iter().map(|pod| self.expected_of_lost(pod, Some(node)));
                    let expected = each.fold(ExpectedBack::default(), ExpectedBack::and);
                    let lost = Finding::new(Code::NodeLost, object.clone(), message);
                    findings.push(lost.since(since).expects(expected));
                }
                Diagnosis::phrase(
                    format!(
                        "its kubelet: nobody has heard of it, and {waiting} on it{}",
                        in_brackets(&by_state)
                    ),
                    findings,
                )
            }
            NodeState::Sick { node, heartbeat } => {
                let mut findings = vec![sick(node, heartbeat.as_deref())];
                if is_true(node, "/spec/unschedulable") {
                    findings.extend(self.kept_by_budgets(&object, &pods));
                }
                Diagnosis::phrase(format!("its health{}", in_brackets(&by_state)), findings)
            }
            NodeState::Fine | NodeState::Gone | NodeState::Unknown
                if is_true(node, "/spec/unschedulable") =>
            {
                let findings = self.kept_by_budgets(&object, &pods);
                if findings.is_empty() {
                    return Diagnosis::note(told_of_pods(&by_state));
                }
                Diagnosis::phrase(
                    format!("room to empty it: a budget keeps {} of its pods", findings.len()),
                    findings,
                )
            }
            NodeState::Fine | NodeState::Gone | NodeState::Unknown => {
                Diagnosis::note(told_of_pods(&by_state))
            }
        }
    }

    /// The pods of a cordoned node whose eviction a PodDisruptionBudget blocks.
    fn kept_by_budgets(&self, node: &Object, pods: &[&Value]) -> Vec<Finding> {
        let mut findings = Vec::new();
        for pod in pods.iter().filter(|pod| !is_terminating(pod) && stays(pod)) {
            let Some(budgets) = self.world.list(&BUDGET, namespace(pod), "", "") else { continue };
            let keeps = |budget: &&&Value| {
                namespace(budget) == namespace(pod)
                    && budget.pointer("/spec/selector").is_some_and(|selector| selects(selector, pod))
                    && number(budget, "/status/disruptionsAllowed").unwrap_or(0) <= 0
            };
            for budget in budgets.iter().filter(keeps) {
                let count = |path| number(budget, path).unwrap_or(0);
                let (healthy, wanted) = (count("/status/currentHealthy"), count("/status/desiredHealthy"));
                let message = format!(
                    "budget {} allows no disruption: {healthy} of its pods are healthy, and {wanted} must be",
                    name(budget)
                );
                let me = named("Pod", pod);
                let finding = Finding::new(
                    Code::DisruptionBudget,
                    named("PodDisruptionBudget", budget),
                    message,
                )
                .advice(format!(
                    "Run more ready replicas of what {} covers, on other nodes: then one may be evicted",
                    name(budget)
                ))
                .waiting(me.clone())
                .under(me, "cannot be evicted")
                .under(node.clone(), "is cordoned");
                findings.push(finding);
            }
        }
        findings
    }
}

/// The condition that reports the repair of a node, if a policy calls the node sick.
fn repair(node: &Value) -> Option<&Value> {
    condition(node, repair::CONDITION).filter(|repair| {
        let reason = text(repair, "/reason");
        REPAIR_UNDER_WAY.contains(&reason) || REPAIR_BLOCKED.contains(&reason)
    })
}

fn sick(node: &Value, heartbeat: Option<&str>) -> Finding {
    let object = named("Node", node);
    let on = object.name.clone();
    let not_ready = condition(node, "Ready").filter(|ready| text(ready, "/status") != "True");
    let repair = repair(node);
    let mut message = match (not_ready, heartbeat) {
        (Some(ready), Some(heartbeat)) => {
            format!("node {on} is not Ready, and its kubelet lives: {heartbeat}; Ready says {}", told(ready))
        }
        (None, Some(heartbeat)) => {
            format!("node {on} is called unreachable, and its kubelet lives: {heartbeat}")
        }
        (Some(ready), None) => format!("node {on} is not Ready by its own kubelet's word: {}", told(ready)),
        (None, None) => format!("node {on} is sick by a repair policy"),
    };
    if let Some(repair) = repair {
        message.push_str(&format!("; its repair: {}", told(repair)));
    }
    let at = not_ready.or(repair).and_then(since);
    let blocked = repair.filter(|repair| REPAIR_BLOCKED.contains(&text(repair, "/reason")));
    let look = Remedy::command("Look at what is known of the node", format!("kubectl describe node {on}"));
    if blocked.is_none() {
        let advice = match repair {
            Some(_) => format!("Nothing needs to be done: the repair of node {on} goes on by itself"),
            None if heartbeat.is_some() => format!(
                "Look why the kubelet of node {on} does not report it as Ready: its machine runs, so what is on it must not be forced"
            ),
            None => format!("Repair node {on}: its kubelet says what is wrong"),
        };
        return Finding::new(Code::NodeSick, object, message).since(at).advice(advice).remedy(look);
    }
    let mut finding = Finding::new(Code::RepairBlocked, object, message).since(at);
    for veto in VETOES.iter().filter(|veto| entry(node, "/metadata/annotations", veto).is_some()) {
        finding = finding.remedy(Remedy::command(
            format!("Allow the repair of node {on} again"),
            format!("kubectl annotate node {on} {veto}-"),
        ));
    }
    finding
        .advice("Put right what holds the repair, as its condition says: it then goes on by itself")
        .remedy(look)
}

pub(crate) fn evict(node: &str) -> Remedy {
    Remedy::command(
        format!(
            "If the machine of {node} is off for sure (else its work may run twice), evict the node: its pods are removed and its volumes freed"
        ),
        format!("salvor evict {node} --yes"),
    )
}

/// `2 Running, 1 Terminating`, most first; empty without pods.
fn by_state(pods: &[&Value]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in pods {
        let phase = match text(pod, "/status/phase") {
            _ if is_terminating(pod) => "Terminating",
            "" => "Pending",
            phase => phase,
        };
        *counts.entry(phase).or_default() += 1;
    }
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let told = counts.iter().map(|(state, count)| format!("{count} {state}"));
    told.collect::<Vec<_>>().join(", ")
}

fn in_brackets(by_state: &str) -> String {
    if by_state.is_empty() { String::new() } else { format!(" (pods: {by_state})") }
}

fn told_of_pods(by_state: &str) -> String {
    if by_state.is_empty() { "no pods are on it".to_owned() } else { format!("pods on it: {by_state}") }
}

/// Whether a drain evicts the pod: neither a DaemonSet's pod nor a static pod.
fn stays(pod: &Value) -> bool {
    controller(pod).is_none_or(|owner| text(owner, "/kind") != "DaemonSet")
        && entry(pod, "/metadata/annotations", "kubernetes.io/config.mirror").is_none()
}

/// Cuts the chain so that it begins at the requested node. It ends there if the node is the cause.
fn cut_to(mut finding: Finding, node: &Object, on: &str) -> Finding {
    if finding.cause.object == *node {
        finding.path.retain(|link| link.object == *node);
        finding.path.truncate(1);
        return finding;
    }
    finding.under(node.clone(), format!("{on} is lost"))
}

fn told(condition: &Value) -> String {
    match (text(condition, "/reason"), text(condition, "/message")) {
        (reason, "") => reason.to_owned(),
        ("", message) => message.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

/// When the control plane deletes the pod, by its tolerations. `None` without a taint that evicts.
fn evicted_at(pod: &Value, node: &Value) -> Option<Timestamp> {
    let taint = list(node, "/spec/taints").iter().find(|taint| {
        text(taint, "/key") == taints::UNREACHABLE && text(taint, "/effect") == taints::NO_EXECUTE
    })?;
    match eviction(pod, time(taint, "/timeAdded")?) {
        DeletionRequest::At(at) => Some(at),
        DeletionRequest::Never => None,
    }
}

/// When the control plane marked a node as unreachable. `None` if it has not yet.
pub(crate) fn noticed(node: &Value) -> Option<Timestamp> {
    let unknown =
        || condition(node, "Ready").filter(|ready| text(ready, "/status") == "Unknown").and_then(since);
    unreachable(node).and_then(|taint| time(taint, "/timeAdded")).or_else(unknown)
}

/// When the control plane requests the deletion of a pod, by its tolerations of the unreachable taint.
pub(crate) fn eviction(pod: &Value, tainted: Timestamp) -> DeletionRequest {
    let tolerated: Vec<&Value> = list(pod, "/spec/tolerations")
        .iter()
        .filter(|toleration| {
            matches!(text(toleration, "/key"), "" | taints::UNREACHABLE)
                && matches!(text(toleration, "/effect"), "" | taints::NO_EXECUTE)
        })
        .collect();
    if tolerated.is_empty() {
        return DeletionRequest::At(tainted);
    }
    // Of several, the taint eviction controller uses the shortest, and those without a limit only if no other has one.
    match tolerated.into_iter().filter_map(|toleration| number(toleration, "/tolerationSeconds")).min() {
        Some(seconds) => {
            let lasts = SignedDuration::from_secs(seconds.max(0));
            DeletionRequest::At(tainted.checked_add(lasts).unwrap_or(Timestamp::MAX))
        }
        None => DeletionRequest::Never,
    }
}
