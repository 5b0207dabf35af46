//! Nodes as the checks read them, and a check of how many more lost nodes the brake allows.

use jiff::{SignedDuration, Timestamp};
use salvor_api::{
    Labels,
    config::Configuration,
    names::{repair::annotations::DO_NOT_REPAIR, repair::annotations::KARPENTER_DO_NOT_REPAIR},
};
use salvor_operator::standing_of;
use salvor_recovery::brake::{Census, NodeCounts, NodeStanding, WasReady};
use serde_json::Value;

use super::finding::{Check, Finding, Severity, count, some_of};

/// A node that has been lost for longer was parked on purpose.
const PARKED_AFTER: SignedDuration = SignedDuration::from_hours(1);

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) labels: Labels,
    /// Type and status of each condition.
    pub(super) conditions: Vec<(String, String)>,
    /// Keys of its taints.
    pub(super) taints: Vec<String>,
    /// Whether an annotation forbids its repair.
    pub(super) vetoed: bool,
    zone: String,
    standing: NodeStanding,
}

impl Node {
    pub(super) fn read(node: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let (zone, standing) = standing_of(node)?;
        let labels = node["metadata"]["labels"].as_object();
        let labels =
            labels.into_iter().flatten().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
        let vetoed = [DO_NOT_REPAIR, KARPENTER_DO_NOT_REPAIR].into_iter().any(|key| {
            // A veto with an end time may have expired when the report is read.
            let value = node["metadata"]["annotations"].get(key).and_then(Value::as_str);
            value.is_some_and(|value| value.is_empty() || value == "true")
        });
        let conditions = list(&node["status"]["conditions"]);
        Some(Self {
            name: text(&node["metadata"]["name"]),
            labels: labels.collect(),
            conditions: conditions.iter().map(|it| (text(&it["type"]), text(&it["status"]))).collect(),
            taints: list(&node["spec"]["taints"]).iter().map(|it| text(&it["key"])).collect(),
            vetoed,
            zone,
            standing,
        })
    }

    pub(super) fn is_ready(&self) -> bool {
        self.standing.ready == WasReady::Now
    }

    fn is_parked(&self, now: Timestamp) -> bool {
        matches!(self.standing.ready, WasReady::Until(time) if now.duration_since(time) > PARKED_AFTER)
    }
}

/// Compares the number of lost nodes with the brake's limit, counted as the brake does.
pub(super) fn check(nodes: &[Node], configuration: &Configuration, now: Timestamp) -> Vec<Finding> {
    let limit = configuration.brake.max_unreachable_percent;
    let within = SignedDuration::from(configuration.brake.count_nodes_ready_within);
    let mut census = Census::new(now, within);
    for node in nodes {
        census.add(&node.zone, &node.standing);
    }
    let tally = census.all();
    let cluster = tally.cluster.unwrap_or_default();
    if cluster.exceed(limit) {
        let finding = held(nodes, "the cluster", cluster, limit, |_| true, now, within);
        return vec![finding];
    }
    let zones = tally.zones.unwrap_or_default().into_iter().filter(|(_, counts)| counts.exceed(limit));
    let zones = zones.filter(|(zone, _)| !zone.is_empty());
    let mut findings: Vec<Finding> = zones
        .map(|(zone, counts)| {
            held(nodes, &format!("zone {zone}"), counts, limit, |node| node.zone == zone, now, within)
        })
        .collect();
    if findings.is_empty() {
        findings.extend(near(nodes, cluster, limit, now, within));
    }
    findings
}

/// The lost nodes that count and match `of`, and whether each is parked.
fn lost(
    nodes: &[Node],
    of: impl Fn(&Node) -> bool,
    now: Timestamp,
    within: SignedDuration,
) -> Vec<(&str, bool)> {
    let counts = |node: &&Node| {
        let mut alone = Census::new(now, within);
        alone.add("", &node.standing);
        alone.zone("").unreachable > 0
    };
    let lost = nodes.iter().filter(|node| of(node)).filter(counts);
    lost.map(|node| (node.name.as_str(), node.is_parked(now))).collect()
}

fn held(
    nodes: &[Node],
    place: &str,
    counts: NodeCounts,
    limit: u8,
    of: impl Fn(&Node) -> bool,
    now: Timestamp,
    within: SignedDuration,
) -> Finding {
    let lost = lost(nodes, of, now, within);
    let names: Vec<&str> = lost.iter().map(|(name, _)| *name).collect();
    let parked = lost.iter().filter(|(_, parked)| *parked).count();
    let parked =
        if parked == 0 { String::new() } else { format!(" ({parked} of them for more than an hour)") };
    Finding::new(
        Severity::Warning,
        Check::Brake,
        format!(
            "{} of {} nodes of {place} are unreachable{parked}: {}",
            counts.unreachable,
            counts.total,
            some_of(&names)
        ),
        format!("brake.maxUnreachablePercent={limit} holds recoveries there while it is so"),
        "Label machines that are parked node.kubernetes.io/exclude-disruption=true, so that they do not count; look at the power state of the others (their provider, a management controller, a person at the rack): those that are off for sure can be evicted by salvor evict NODE, and their Nodes deleted after that; or raise brake.maxUnreachablePercent",
    )
}

/// Parked machines that count leave little room for real failures.
fn near(
    nodes: &[Node],
    cluster: NodeCounts,
    limit: u8,
    now: Timestamp,
    within: SignedDuration,
) -> Option<Finding> {
    let parked: Vec<&str> = lost(nodes, |_| true, now, within)
        .into_iter()
        .filter_map(|(name, parked)| parked.then_some(name))
        .collect();
    if parked.is_empty() || limit == 0 {
        return None;
    }
    let most = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let more = |more: &u32| {
        let unreachable = cluster.unreachable.saturating_add(*more);
        NodeCounts { unreachable, ..cluster }.exceed(limit)
    };
    let more = (1..=most).find(more)?;
    if usize::try_from(more).is_ok_and(|more| more > parked.len()) {
        return None;
    }
    Some(Finding::new(
        Severity::Info,
        Check::Brake,
        format!("{} unreachable for more than an hour: {}", count(parked.len(), "node"), some_of(&parked)),
        format!(
            "they count for brake.maxUnreachablePercent={limit} until they were not Ready for brake.countNodesReadyWithin: {} more would hold every recovery",
            count(usize::try_from(more).unwrap_or(usize::MAX), "lost node")
        ),
        "If they are parked, label them node.kubernetes.io/exclude-disruption=true",
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> Timestamp {
        "2026-11-16T10:00:00Z".parse().unwrap()
    }

    fn node(zone: &str, lost_at: Option<&str>) -> Value {
        let taints = lost_at.map(|at| json!([{"key": "node.kubernetes.io/unreachable", "timeAdded": at}]));
        let status = if lost_at.is_some() { "Unknown" } else { "True" };
        json!({
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": {"topology.kubernetes.io/zone": zone}},
            "spec": {"taints": taints.unwrap_or(json!([]))},
            "status": {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": lost_at}]},
        })
    }

    fn found(nodes: &[Value]) -> Vec<(Severity, String)> {
        let nodes: Vec<Node> = nodes.iter().map(|node| Node::read(node).unwrap()).collect();
        let findings = check(&nodes, &Configuration::default(), now());
        findings.into_iter().map(|finding| (finding.severity, finding.what)).collect()
    }

    fn of(lost: usize, all: usize, at: &str) -> Vec<Value> {
        (0..all).map(|number| node("a", (number < lost).then_some(at))).collect()
    }

    #[test]
    fn more_lost_nodes_than_the_brake_allows_are_a_warning() {
        let just_now = "2026-11-16T09:59:00Z";
        let number = |lost, all| found(&of(lost, all, just_now)).len();
        assert_eq!((number(0, 4), number(2, 4), number(3, 4), number(1, 1)), (0, 0, 1, 0));
        assert_eq!(found(&of(3, 4, just_now))[0].0, Severity::Warning);
    }

    #[test]
    fn machines_that_were_parked_for_days_do_not_count_as_for_the_brake() {
        assert_eq!(found(&of(3, 4, "2026-11-10T00:00:00Z")), []);
    }

    #[test]
    fn a_zone_is_judged_by_itself() {
        let mut nodes = of(3, 4, "2026-11-16T09:59:00Z");
        nodes.extend((0..10).map(|_| node("b", None)));
        let found = found(&nodes);
        assert!(found.len() == 1 && found[0].1.contains("zone a"), "{found:?}");
    }

    #[test]
    fn parked_machines_that_still_count_are_told_before_they_hold_anything() {
        let found = found(&of(3, 6, "2026-11-16T02:00:00Z"));
        assert!(found.len() == 1 && found[0].0 == Severity::Info, "{found:?}");
    }
}
