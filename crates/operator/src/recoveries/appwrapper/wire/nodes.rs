//! Nodes, as far as AppWrappers depend on them.

use salvor_api::names::taints::{FORCE_EVICTION, OUT_OF_SERVICE, UNREACHABLE};
use salvor_recovery::{
    appwrapper::{AppWrapperPolicy, NodeView},
    eviction,
    liveness::{Heartbeat, NodeLease},
    objects::NodeRef,
    one_actor::EvictionSign,
    proof::Machine,
};

use crate::{client::wire::condition, watch_set::nodes::NodeWire};

#[derive(Clone, Debug)]
pub(crate) struct SeenNode {
    pub(crate) node: NodeRef,
    /// Its heartbeats are kept elsewhere: see [`Heartbeats`](crate::watch_set::leases::Heartbeats).
    pub(crate) view: NodeView,
    /// The heartbeat of its `Ready` condition, for a kubelet without a Lease.
    pub(crate) ready_heartbeat: Option<NodeLease>,
}

impl SeenNode {
    pub(crate) fn new(wire: &NodeWire, policy: &AppWrapperPolicy) -> Self {
        let NodeWire { metadata, spec, status } = wire;
        let tainted = |key: &str| spec.taints.iter().any(|taint| taint.key == key);
        let ready = condition(&status.conditions, "Ready");
        let says = |value: &str| ready.is_some_and(|ready| ready.status == value);
        let annotations = &metadata.annotations;
        let out_of_service = spec.taints.iter().find(|taint| taint.key == OUT_OF_SERVICE);
        let machine = if out_of_service.is_some() || wire.may_be_evicted(&policy.eviction) {
            // A request from while its kubelet was alive says nothing about later.
            policy.eviction.machine(&eviction::NodeView { asked: None, ..wire.view() })
        } else {
            Machine::MayRun
        };
        let eviction =
            EvictionSign::read(annotations.eviction.as_deref(), annotations.eviction_asked.as_deref());
        let unreachable = (tainted(UNREACHABLE) || says("Unknown")) && !says("True");
        let lost = ready.filter(|_| says("Unknown")).and_then(|ready| ready.last_transition_time);
        let view = NodeView {
            no_execute: policy.autopilot.no_execute(|key| metadata.labels.get(key)),
            unreachable,
            lost: lost.filter(|_| unreachable),
            force_evicted: tainted(FORCE_EVICTION)
                || out_of_service.is_some()
                || eviction == EvictionSign::UnderWay,
            machine,
            heartbeat: Heartbeat::UNREAD,
        };
        Self { node: wire.node(), view, ready_heartbeat: wire.ready_heartbeat() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use salvor_recovery::proof::Proof;
    use serde_json::json;

    use super::*;

    /// CodeFlare's tests of its node monitor, and the additional checks of Salvor.
    #[test]
    fn nodes_are_read_by_their_labels_taints_and_conditions() {
        let policy = AppWrapperPolicy::default();
        let health = |value: &str| json!({"metadata": {"labels": {"autopilot.ibm.com/gpuhealth": value}}});
        let taint = |key: &str| json!({"spec": {"taints": [{"key": key, "effect": "NoExecute"}]}});
        let ready = |status: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status, "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}});
        let progress =
            |text: &str| json!({"metadata": {"annotations": {"eviction.salvor.dev/progress": text}}});
        let gpu: &[&str] = &["nvidia.com/gpu"];
        let cases = [
            ("healthy", json!({}), &[][..], false, false),
            ("EVICT", health("EVICT"), gpu, false, false),
            ("WARN", health("WARN"), &[], false, false),
            ("TESTING", health("TESTING"), &[], false, false),
            ("unreachable", taint(UNREACHABLE), &[], true, false),
            ("not ready", taint("node.kubernetes.io/not-ready"), &[], false, false),
            ("Ready is Unknown", ready("Unknown"), &[], true, false),
            ("Ready is False", ready("False"), &[], false, false),
            ("out of service", taint(OUT_OF_SERVICE), &[], false, true),
            ("asked to be evicted", taint(FORCE_EVICTION), &[], false, true),
            ("a note of an eviction that nobody can read", progress("?"), &[], false, false),
        ];
        for (case, mut node, no_execute, unreachable, force_evicted) in cases {
            node["metadata"]["name"] = "n1".into();
            node["metadata"]["uid"] = "1".into();
            node["metadata"]["resourceVersion"] = "1".into();
            let wire: NodeWire = serde_json::from_value(node).unwrap();
            let view = SeenNode::new(&wire, &policy).view;
            let expected: BTreeSet<String> = no_execute.iter().map(|it| (*it).to_owned()).collect();
            assert_eq!(
                (view.no_execute, view.unreachable, view.force_evicted),
                (expected, unreachable, force_evicted),
                "{case}"
            );
        }
        let back = json!({
            "metadata": {"name": "n1", "uid": "1", "resourceVersion": "1"},
            "spec": {"taints": [{"key": UNREACHABLE, "effect": "NoExecute"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        let wire: NodeWire = serde_json::from_value(back).unwrap();
        assert!(!SeenNode::new(&wire, &policy).view.unreachable, "its kubelet is back, and the taint goes");
    }

    #[test]
    fn a_taint_proves_that_a_machine_is_off() {
        let settings = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n\
                        eviction: {triggers: [{key: off, proof: true}, {key: sick}, {key: node.kubernetes.io/out-of-service, proof: true}]}\n";
        let policy = AppWrapperPolicy::new(&salvor_api::config::parse(settings).unwrap());
        let taint = |key: &str, effect: &str| json!({"key": key, "value": "v", "effect": effect});
        let asked = json!({"eviction.salvor.dev/asked": r#"{"value":"v","renewed":"2026-01-01T00:00:00Z"}"#});
        let ours = json!({"zombie.salvor.dev/out-of-service-since": "2026-01-01T00:00:00Z"});
        let returned = json!({
            "eviction.salvor.dev/progress": r#"{"started":"2026-01-01T00:00:00Z","request":"sick:NoSchedule","returned":"2026-01-01T00:05:00Z"}"#,
        });
        for (case, taints, annotations, proof) in [
            ("none", json!([]), json!({}), None),
            ("lost", json!([taint(UNREACHABLE, "NoExecute")]), json!({}), None),
            (
                "out of service",
                json!([taint(OUT_OF_SERVICE, "NoExecute")]),
                json!({}),
                Some("node.kubernetes.io/out-of-service=v:NoExecute"),
            ),
            ("out of service by us", json!([taint(OUT_OF_SERVICE, "NoExecute")]), ours.clone(), None),
            (
                "out of service by us, and a person's word",
                json!([taint(OUT_OF_SERVICE, "NoExecute"), taint(FORCE_EVICTION, "NoSchedule")]),
                ours,
                Some("salvor.dev/force-eviction=v:NoSchedule"),
            ),
            (
                "a person's word",
                json!([taint(FORCE_EVICTION, "NoSchedule")]),
                json!({}),
                Some("salvor.dev/force-eviction=v:NoSchedule"),
            ),
            (
                "a trigger with proof",
                json!([taint("off", "NoSchedule")]),
                json!({}),
                Some("off=v:NoSchedule"),
            ),
            ("a trigger without", json!([taint("sick", "NoSchedule")]), json!({}), None),
            (
                "the kubelet returned since",
                json!([taint(OUT_OF_SERVICE, "NoExecute"), taint(FORCE_EVICTION, "NoSchedule")]),
                returned,
                None,
            ),
            (
                "an eviction annotation that cannot be read",
                json!([taint(OUT_OF_SERVICE, "NoExecute")]),
                json!({"eviction.salvor.dev/progress": "?"}),
                None,
            ),
            ("a word from before its kubelet was heard of", json!([]), asked, None),
        ] {
            let node = json!({
                "metadata": {"name": "n1", "uid": "1", "resourceVersion": "1", "annotations": annotations},
                "spec": {"taints": taints},
            });
            let machine = SeenNode::new(&serde_json::from_value(node).unwrap(), &policy).view.machine;
            let expected = proof.map_or(Machine::MayRun, |it| Machine::Off(Proof::Taint(it.to_owned())));
            assert_eq!(machine, expected, "{case}");
        }
    }
}
