//! Nodes: lost, sick, or cordoned and not to be emptied.

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::{annotations, taints};
use serde_json::Value;

use crate::{
    answer::{Object, Remedy},
    code::Code,
    diagnosis::{Diagnosis, Finding, Rules},
    json::{
        condition, controller, entry, has_ended, is_terminating, is_true, list, name, named, namespace,
        number, selects, since, text, time,
    },
    kinds::{BUDGET, NODE},
    salvor::{by_namespace, silent},
    world::Seen,
};

/// So many pods are named in one command.
const MOST_PODS: usize = 20;

/// What a node is like, to a pod on it.
pub(crate) enum NodeState<'a> {
    /// Nobody hears of its kubelet.
    Lost {
        node: &'a Value,
        since: Option<Timestamp>,
    },
    /// There is no such Node.
    Gone,
    /// Its own kubelet says that it is not Ready.
    Sick {
        since: Option<Timestamp>,
        says: String,
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

    fn state_of<'a>(&self, node: &'a Value) -> NodeState<'a> {
        let ready = condition(node, "Ready");
        let taint =
            list(node, "/spec/taints").iter().find(|taint| text(taint, "/key") == taints::UNREACHABLE);
        match ready.map(|ready| text(ready, "/status")) {
            Some("True") => NodeState::Fine,
            Some("False") => {
                NodeState::Sick { since: ready.and_then(since), says: ready.map(told).unwrap_or_default() }
            }
            Some("Unknown") => self.lost(node, ready.and_then(since)),
            // A node that was never Ready has no such condition, and nobody has lost it.
            _ => match taint {
                Some(taint) => self.lost(node, time(taint, "/timeAdded")),
                None => NodeState::Fine,
            },
        }
    }

    fn lost<'a>(&self, node: &'a Value, noticed: Option<Timestamp>) -> NodeState<'a> {
        NodeState::Lost { node, since: self.silent_since(name(node)).or(noticed) }
    }

    /// Why a pod on a bad node does not run; none if its node is well, or unknown.
    pub(crate) fn by_its_node(&self, pod: &Value) -> Option<Finding> {
        let on = text(pod, "/spec/nodeName");
        let finding = match self.node_state(on) {
            NodeState::Lost { node, since } if is_terminating(pod) => self.stuck(pod, node, since),
            NodeState::Lost { node, since } => {
                let goes = match evicted_at(pod, node) {
                    Some(at) => format!("it is to be evicted at {at:.0}"),
                    None => "nobody has asked for its deletion".to_owned(),
                };
                let message =
                    format!("{}; pod {} is not marked for deletion, {goes}", silent(on, since), name(pod));
                Finding::new(Code::NodeLost, named("Node", node), message).since(since)
            }
            NodeState::Gone => {
                let message =
                    format!("there is no node {on} any more, and pod {} is still bound to it", name(pod));
                Finding::new(Code::NodeLost, Object::of("Node", "", on), message)
            }
            NodeState::Sick { since, says } => {
                let message = format!("node {on} is not Ready by its own kubelet's word: {says}");
                Finding::new(Code::NodeSick, Object::of("Node", "", on), message)
                    .since(since)
                    .advice(format!("Repair node {on}: its kubelet says what is wrong"))
                    .remedy(Remedy::command(
                        "Look at what its kubelet says",
                        format!("kubectl describe node {on}"),
                    ))
            }
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

    /// What can be done about a node, for all the pods that wait for it.
    pub(crate) fn remedies_on_node(&self, finding: &Finding) -> Vec<Remedy> {
        let node = &finding.cause.object.name;
        if finding.cause.object.kind != "Node" {
            return Vec::new();
        }
        let back = Remedy::text(format!(
            "Bring node {node} back (power its machine on, or restart its kubelet): what was on it then ends or goes on by itself"
        ));
        match finding.cause.code {
            Code::NodeLost => {
                let taint = format!(
                    "kubectl taint node {node} {}={}:{}",
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
                for (namespace, pods) in by_namespace(&finding.pods) {
                    let pods = pods.iter().take(MOST_PODS).copied().collect::<Vec<_>>().join(" ");
                    remedies.push(Remedy::command(
                        "Consent, as the owner: Salvor then ends and deletes the pod after its wait (if the machine still runs, its work may run twice)",
                        format!("kubectl annotate pod {pods} -n {namespace} --overwrite {}={}", annotations::SAFE_TO_FORCEFULLY_DELETE, annotations::CONSENT),
                    ));
                }
                remedies
            }
            Code::NobodyLeads | Code::RecoveryOff | Code::BrakeHolds | Code::GraceRunning => vec![back],
            _ => Vec::new(),
        }
    }

    pub(crate) fn asked_node(&self, node: &Value) -> Diagnosis {
        let object = named("Node", node);
        let on = &object.name;
        let pods = self.world.pods_on(on).unwrap_or_default();
        let pods: Vec<&Value> =
            pods.into_iter().filter(|pod| !has_ended(pod) || is_terminating(pod)).collect();
        match self.state_of(node) {
            NodeState::Lost { since, .. } => {
                let mut findings: Vec<Finding> = Vec::new();
                for pod in &pods {
                    let ending = is_terminating(pod);
                    let found = if ending { self.ending(pod).into_iter().next() } else { None };
                    findings.extend(found.map(|finding| cut_to(finding, &object, on)));
                }
                let waiting = pods.len();
                if findings.is_empty() {
                    let message = format!(
                        "{}; {waiting} pods are on it, none of them marked for deletion",
                        silent(on, since)
                    );
                    findings.push(Finding::new(Code::NodeLost, object.clone(), message).since(since));
                }
                Diagnosis::phrase(
                    format!("its kubelet: nobody has heard of it, and {waiting} pods are on it"),
                    findings,
                )
            }
            NodeState::Sick { since, says } => {
                let message = format!("node {on} is not Ready by its own kubelet's word: {says}");
                let finding = Finding::new(Code::NodeSick, object.clone(), message)
                    .since(since)
                    .advice(format!("Repair node {on}: its kubelet says what is wrong"));
                Diagnosis::phrase("its readiness", vec![finding])
            }
            NodeState::Fine | NodeState::Gone | NodeState::Unknown
                if is_true(node, "/spec/unschedulable") =>
            {
                let findings = self.kept_by_budgets(&object, &pods);
                if findings.is_empty() {
                    return Diagnosis::default();
                }
                Diagnosis::phrase(
                    format!("room to empty it: a budget keeps {} of its pods", findings.len()),
                    findings,
                )
            }
            NodeState::Fine | NodeState::Gone | NodeState::Unknown => Diagnosis::default(),
        }
    }

    /// The pods of a cordoned node that must not be evicted now.
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

/// A pod that an eviction takes away: not a DaemonSet's, and not the node's own.
fn stays(pod: &Value) -> bool {
    controller(pod).is_none_or(|owner| text(owner, "/kind") != "DaemonSet")
        && entry(pod, "/metadata/annotations", "kubernetes.io/config.mirror").is_none()
}

/// The chain of a node that was asked about begins at the node, and ends there if the cause lies in it.
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

/// When the control plane asks for the pod's deletion, by what it tolerates.
fn evicted_at(pod: &Value, node: &Value) -> Option<Timestamp> {
    let taint = list(node, "/spec/taints").iter().find(|taint| {
        text(taint, "/key") == taints::UNREACHABLE && text(taint, "/effect") == taints::NO_EXECUTE
    })?;
    let tolerated = list(pod, "/spec/tolerations").iter().filter(|toleration| {
        matches!(text(toleration, "/key"), "" | taints::UNREACHABLE)
            && matches!(text(toleration, "/effect"), "" | taints::NO_EXECUTE)
    });
    let seconds = tolerated.filter_map(|toleration| number(toleration, "/tolerationSeconds")).min()?;
    time(taint, "/timeAdded")?.checked_add(SignedDuration::from_secs(seconds)).ok()
}
