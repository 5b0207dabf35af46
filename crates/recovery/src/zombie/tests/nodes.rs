use super::super::Step;
use super::*;
use crate::event::EventType;
use crate::objects::Taint;
use crate::step::Step as _;
use crate::verdict::{Reason, Verdict};

const RULES: &str = "
failureRecoveryPolicy:
  rules:
  - terminatePod: {podLabelSelector: {matchLabels: {a: b}}, forcefulTerminationGracePeriod: 5m}
  - taintNodeOutOfService: {nodeSelector: {matchLabels: {pool: metal}}, unreachableNodeTimeout: 10m}
  - taintNodeOutOfService: {nodeSelector: {matchLabels: {pool: cloud}}, unreachableNodeTimeout: 1m}
";

fn metal() -> NodeView {
    NodeView { labels: labels(&[("pool", "metal")]), ..node() }
}

fn verdict(node: &NodeView, now: Timestamp) -> Verdict<NodeWhy, Step> {
    decide_node(node, &policy(RULES), now).verdict
}

fn outline(verdict: &Verdict<NodeWhy, Step>) -> String {
    let steps: Vec<_> = verdict.actions().iter().map(Step::name).collect();
    format!("{} {} {}", verdict.name(), verdict.why().code(), steps.join("+")).trim_end().to_owned()
}

fn out_of_service() -> Taint {
    Taint {
        key: "node.kubernetes.io/out-of-service".into(),
        value: "nodeshutdown".into(),
        effect: "NoExecute".into(),
    }
}

fn force_eviction() -> Taint {
    Taint { key: "salvor.dev/force-eviction".into(), value: String::new(), effect: "NoSchedule".into() }
}

#[test]
fn which_nodes_are_declared_out_of_service() {
    let taken_by_others = Taint { value: "by-hand".into(), ..out_of_service() };
    let cases = [
        ("lost for long enough", metal(), 200, "Act NodeLost TaintNode+EmitEvent"),
        ("lost for less than its timeout", metal(), 199, "Wait UnreachableTooBriefly"),
        ("no rule", node(), 9_999, "Ignore NoRule"),
        ("not lost", NodeView { unreachable: None, ..metal() }, 9_999, "Ignore NodeReachable"),
        ("tainted but Ready", NodeView { ready: Ready::True, ..metal() }, 9_999, "Ignore NodeReady"),
        (
            "tainted and not Ready",
            NodeView { ready: Ready::False, ..metal() },
            9_999,
            "Act NodeLost TaintNode+EmitEvent",
        ),
        (
            "asked to be evicted",
            NodeView { taints: vec![force_eviction()], ..metal() },
            9_999,
            "Ignore AnotherRecoveryActs",
        ),
        (
            "being evicted",
            NodeView { eviction: EvictionSign::UnderWay, ..metal() },
            9_999,
            "Ignore AnotherRecoveryActs",
        ),
        (
            "its eviction was stopped",
            NodeView { eviction: EvictionSign::Stopped, ..metal() },
            9_999,
            "Act NodeLost TaintNode+EmitEvent",
        ),
        ("its kubelet still renews", NodeView { heartbeat: heard(190), ..metal() }, 200, "Wait LeaseFresh"),
        (
            "no Lease at all",
            NodeView { heartbeat: no_lease(), ..metal() },
            200,
            "Act NodeLost TaintNode+EmitEvent",
        ),
        (
            "Lease not read yet: read before it is done",
            NodeView { heartbeat: Heartbeat::UNREAD, ..metal() },
            200,
            "Act NodeLost TaintNode+EmitEvent",
        ),
        (
            "by somebody else",
            NodeView { out_of_service: vec![taken_by_others], ..metal() },
            9_999,
            "Ignore TaintedByOthers",
        ),
    ];
    for (case, node, now, expected) in cases {
        assert_eq!(outline(&verdict(&node, at(now))), expected, "{case}");
    }
    let off = ZombiePolicy::new(&Configuration::default());
    assert_eq!(
        decide_node(&metal(), &off, at(9_999)).verdict,
        Verdict::Ignore(NodeWhy::Disabled(Disabled::Gate))
    );
}

#[test]
fn waits_end_exactly_when_the_later_of_both_ends() {
    assert_eq!(verdict(&metal(), at(0)).wake_at(), Some(at(200)));
    let cloud = NodeView { labels: labels(&[("pool", "cloud")]), ..node() };
    assert_eq!(verdict(&cloud, at(-341)).wake_at(), Some(at(-340)));
    let renewed = NodeView { heartbeat: heard(190), ..metal() };
    assert_eq!(verdict(&renewed, at(0)).wake_at(), Some(at(230)));
    assert_eq!(outline(&verdict(&renewed, at(230))), "Act NodeLost TaintNode+EmitEvent");
}

#[test]
fn the_write_is_guarded_marked_and_irreversible() {
    let verdict = verdict(&metal(), at(200));
    let [taint, Step::EmitEvent(event)] = verdict.actions() else { panic!("{verdict:?}") };
    assert_eq!(
        *taint,
        Step::TaintNode {
            node: metal().node,
            resource_version: "3".into(),
            taint: out_of_service(),
            mark: "zombie.salvor.dev/out-of-service-since",
            since: at(200),
            boot: Some("boot-1".into()),
        }
    );
    assert!(taint.needs_a_second_look() && taint.is_disruptive());
    assert_eq!((event.kind, &*event.reason), (EventType::Warning, "NodeOutOfService"));
    assert_eq!(event.name, "node-out-of-service.node-uid.1800000200");
    assert_eq!(event.regarding.event_namespace(), "default");
    assert_eq!(
        event.message,
        "Node unreachable since 2027-01-15T07:53:20Z, tainted out-of-service (triggered by \
         `failureRecoveryPolicy.rules[1]`)"
    );
}

fn ours() -> NodeView {
    NodeView {
        out_of_service: vec![out_of_service()],
        out_of_service_mark: Some(OutOfServiceMark { since: Some(at(200)), boot_id: Some("boot-1".into()) }),
        announced: true,
        ..metal()
    }
}

#[test]
fn the_taint_is_taken_off_where_we_put_it_when_the_node_is_back() {
    let back = || NodeView {
        ready: Ready::True,
        heartbeat: heard(1_000),
        unreachable: None,
        boot_id: "boot-2".into(),
        ..ours()
    };
    let untainted = "Act BackInService UntaintNode+EmitEvent";
    let read = |renewed| Some(NodeLease::new(at(renewed), SignedDuration::from_secs(40)));
    let behind = Heartbeat::UNREAD.then(read(400), at(1_000));
    let moved = behind.then(read(410), at(1_010));
    let cases = [
        ("still lost", ours(), 1_001, "Ignore OutOfService"),
        ("Ready with a fresh Lease", back(), 1_001, untainted),
        ("Ready with a stale Lease", back(), 1_040, "Ignore OutOfService"),
        ("Ready without a Lease", NodeView { heartbeat: no_lease(), ..back() }, 1_001, untainted),
        ("Ready, Lease not read yet", NodeView { heartbeat: Heartbeat::UNREAD, ..back() }, 1_001, untainted),
        (
            "Ready, ten minutes behind, not seen to move",
            NodeView { heartbeat: behind, ..back() },
            1_001,
            "Ignore OutOfService",
        ),
        ("Ready, ten minutes behind, moves", NodeView { heartbeat: moved, ..back() }, 1_011, untainted),
        (
            "Ready, moved, then fell silent",
            NodeView { heartbeat: moved, ..back() },
            1_050,
            "Ignore OutOfService",
        ),
        (
            "not Ready, no Lease",
            NodeView { heartbeat: no_lease(), ready: Ready::Unknown, ..back() },
            1_001,
            "Ignore OutOfService",
        ),
        (
            "not Ready, not read",
            NodeView { heartbeat: Heartbeat::UNREAD, ready: Ready::Unknown, ..back() },
            1_001,
            "Ignore OutOfService",
        ),
        ("fresh Lease, not Ready", NodeView { ready: Ready::False, ..back() }, 1_001, "Ignore OutOfService"),
        (
            "being evicted: what we put on is ours to take off",
            NodeView { eviction: EvictionSign::UnderWay, ..back() },
            1_001,
            untainted,
        ),
        ("rule gone, still ours", NodeView { labels: Labels::default(), ..back() }, 1_001, untainted),
        ("taint gone, mark left", NodeView { out_of_service: vec![], ..back() }, 1_001, untainted),
        (
            "not ours",
            NodeView { out_of_service_mark: None, unreachable: Some(Unreachable { since: at(0) }), ..back() },
            1_001,
            "Ignore TaintedByOthers",
        ),
        (
            "taken off by somebody while lost",
            NodeView { out_of_service: vec![], ..ours() },
            1_001,
            "Ignore OutOfService",
        ),
        ("not told yet", NodeView { announced: false, ..ours() }, 201, "Act Unannounced EmitEvent"),
        ("not told in time", NodeView { announced: false, ..ours() }, 800, "Ignore OutOfService"),
    ];
    for (case, node, now, expected) in cases {
        assert_eq!(outline(&verdict(&node, at(now))), expected, "{case}");
    }
    let verdict = verdict(&back(), at(1_001));
    assert!(
        verdict.actions().iter().all(|action| !action.is_disruptive()),
        "the brake must not keep a node out"
    );
}

#[test]
fn a_mark_that_somebody_damaged_is_still_ours() {
    assert_eq!(OutOfServiceMark::from_annotations("yesterday", None).since, None);
    let read = OutOfServiceMark::from_annotations("2027-01-15T08:03:20Z", Some("boot-1"));
    assert_eq!(read, OutOfServiceMark { since: Some(at(200)), boot_id: Some("boot-1".into()) });
    let mark = Some(OutOfServiceMark { since: None, boot_id: None });
    let damaged = NodeView { out_of_service_mark: mark, ..ours() };
    assert_eq!(outline(&verdict(&damaged, at(1_000))), "Ignore OutOfService");
}

/// Volumes were detached by force: a machine that only lost its network may still write to them.
#[test]
fn the_taint_stays_on_a_node_that_is_back_without_a_reboot() {
    let cut_off = || NodeView { ready: Ready::True, heartbeat: heard(1_000), unreachable: None, ..ours() };
    let mark = |boot: Option<&str>| Some(OutOfServiceMark::from_annotations("2027-01-15T08:03:20Z", boot));
    let by_others = Taint { value: "by-hand".into(), ..out_of_service() };
    let untainted = "Act BackInService UntaintNode+EmitEvent";
    let (told, unrecorded) = ("Ignore NotRebooted", "Act NotRebooted EmitEvent");
    let cases = [
        ("the same boot", cut_off(), unrecorded),
        ("the same boot, told", NodeView { return_told: true, ..cut_off() }, told),
        ("Lease not read yet", NodeView { heartbeat: Heartbeat::UNREAD, ..cut_off() }, unrecorded),
        ("it reports no boot", NodeView { boot_id: "".into(), ..cut_off() }, unrecorded),
        ("rebooted", NodeView { boot_id: "boot-2".into(), ..cut_off() }, untainted),
        ("the boot was not known", NodeView { out_of_service_mark: mark(None), ..cut_off() }, untainted),
        (
            "a boot that is too long",
            NodeView { out_of_service_mark: mark(Some(&"b".repeat(129))), ..cut_off() },
            untainted,
        ),
        ("a person took the taint off", NodeView { out_of_service: vec![], ..cut_off() }, untainted),
        ("and put one of theirs on", NodeView { out_of_service: vec![by_others], ..cut_off() }, untainted),
        ("not Ready yet", ours(), "Ignore OutOfService"),
    ];
    for (case, node, expected) in cases {
        assert_eq!(outline(&verdict(&node, at(1_001))), expected, "{case}");
    }
    let when_ready = policy(&format!("{RULES}eviction: {{removeTaint: WhenReady}}\n"));
    assert_eq!(outline(&decide_node(&cut_off(), &when_ready, at(1_001)).verdict), untainted);
    // The event on the node says what a person can do.
    let verdict = verdict(&cut_off(), at(1_001));
    let [Step::EmitEvent(event)] = verdict.actions() else { panic!("{verdict:?}") };
    assert_eq!((event.kind, &*event.reason), (EventType::Warning, "NodeNotRebooted"));
    for words in [
        "may still run",
        "Reboot the machine",
        "kubectl taint node node-a node.kubernetes.io/out-of-service-",
    ] {
        assert!(event.message.contains(words), "{}", event.message);
    }
}

#[test]
fn the_boot_is_written_with_the_taint_and_goes_with_it() {
    let annotations = |verdict: &Verdict<NodeWhy, Step>| {
        let step = &verdict.actions()[0];
        let read = serde_json::json!({"metadata": {"uid": "node-uid", "resourceVersion": "3"}});
        let write = step.write(&[Some(read)]).unwrap();
        format!("{write:?}")
    };
    let tainted = annotations(&verdict(&metal(), at(200)));
    assert!(
        tainted.contains("zombie.salvor.dev/out-of-service-boot") && tainted.contains("boot-1"),
        "{tainted}"
    );
    let back = NodeView { ready: Ready::True, heartbeat: heard(1_000), boot_id: "boot-2".into(), ..ours() };
    let untainted = annotations(&verdict(&back, at(1_001)));
    assert!(
        untainted.contains("zombie.salvor.dev/out-of-service-boot") && !untainted.contains("boot-1"),
        "{untainted}"
    );
}
