//! The eviction of a node: when it begins, continues, finishes or stops, and when the node is Ready again.

use serde_json::json;

use super::super::{Step, writes};
use super::*;
use crate::step::{Step as _, Verb};

fn begins(node: &NodeView, now: i64) -> String {
    say(&judge_node(node, &[], &[], now))
}

#[test]
fn an_eviction_begins_only_on_a_node_that_is_down() {
    let start = "Act NodeDown: StartEviction, EmitEvent";
    let alive =
        Lease::Renewed { written: at(-5), heard: at(-5), lasts: SignedDuration::from_secs(40), moves: true };
    let refused = NodeView { ready: Ready::False, lease: lease(-5), ..node() };
    let told = || told_by(&judge_node(&refused, &[], &[], 0));
    let asked_by = |taints: Vec<Taint>| NodeView { taints, ..node() };
    let cases = [
        ("asked for, silent", node(), start),
        (
            "said by the kubelet to be not ready, then silent",
            NodeView { ready: Ready::False, ..node() },
            start,
        ),
        ("no Lease at all", NodeView { lease: Lease::None, ..node() }, start),
        ("no request", asked_by(vec![]), "Ignore NotRequested"),
        ("another's taint", asked_by(vec![taint("x", "", "NoExecute")]), "Ignore NotRequested"),
        ("asked for with NoExecute", asked_by(vec![taint(KEY, "", "NoExecute")]), start),
        ("a trigger", asked_by(vec![taint(SHUTDOWN, "", "NoSchedule")]), start),
        ("Lease not read", NodeView { lease: Lease::Unread, ..node() }, "Ignore LeaseUnread"),
        // The kubelet itself reports that it is not ready, and keeps renewing: it is alive.
        (
            "Lease renewed",
            NodeView { ready: Ready::False, lease: lease(-5), ..node() },
            "Act KubeletAlive: EmitEvent",
        ),
        (
            "Lease renewed, told",
            NodeView { ready: Ready::False, lease: lease(-5), told: told(), ..node() },
            "Wait KubeletAlive until 35",
        ),
        (
            "Lease renewed, told of another request",
            NodeView {
                ready: Ready::False,
                lease: lease(-5),
                told: told(),
                ..asked_by(vec![taint(KEY, "INC-2", "NoSchedule")])
            },
            "Act KubeletAlive: EmitEvent",
        ),
        // Scenario 3.
        (
            "Ready and alive",
            NodeView { ready: Ready::True, lease: alive, ..node() },
            "Act NodeReady: EndEviction, EmitEvent",
        ),
        (
            "Ready without a Lease",
            NodeView { ready: Ready::True, lease: Lease::None, ..node() },
            "Act NodeReady: EndEviction, EmitEvent",
        ),
        (
            "Ready and alive, by a taint of others",
            NodeView {
                ready: Ready::True,
                lease: alive,
                ..asked_by(vec![taint(SHUTDOWN, "", "NoSchedule")])
            },
            "Ignore NodeReady",
        ),
        (
            "Ready, and its Lease was renewed just now",
            NodeView { ready: Ready::True, lease: lease(-19), ..node() },
            "Act NodeReady: EndEviction, EmitEvent",
        ),
        // Switched off a moment ago: the control plane has not noticed yet, and the request must not be lost.
        (
            "Ready, but its Lease is overdue",
            NodeView { ready: Ready::True, lease: lease(-20), ..node() },
            "Wait StillReady until 20",
        ),
        ("Ready, but silent", NodeView { ready: Ready::True, ..node() }, "Ignore StillReady"),
    ];
    for (case, node, expected) in cases {
        assert_eq!(begins(&node, 0), expected, "{case}");
    }
    let off = policy("controllers: [zombie]\n");
    let (pods, attachments) = (Some(Vec::new()), Some(Vec::new()));
    let node = node();
    let scene = Scene { node: &node, pods, attachments, zone: NodeCounts::default() };
    assert_eq!(say(&decide_node(&scene, &off, at(0))), "Ignore Disabled");
}

#[test]
fn the_taint_that_is_added_keeps_the_value_of_the_request() {
    let added = |taints: Vec<Taint>| {
        let decision = judge_node(&NodeView { taints, ..node() }, &[], &[], 0);
        match &decision.verdict.actions()[0] {
            Step::StartEviction { taint, progress, .. } => {
                (taint.as_ref().map(ToString::to_string), progress.request.clone())
            }
            other => panic!("{other}"),
        }
    };
    let ours = taint(KEY, "INC-1", "NoSchedule");
    let no_execute = taint(KEY, "INC-2", "NoExecute");
    let adds = |text: &str| Some(text.to_owned());
    assert_eq!(
        added(vec![ours.clone()]),
        (adds("salvor.dev/force-eviction=INC-1:NoExecute"), ours.to_string())
    );
    assert_eq!(added(vec![no_execute.clone()]), (None, no_execute.to_string()));
    assert_eq!(added(vec![no_execute, ours.clone()]), (None, ours.to_string()));
    let shutdown = taint(SHUTDOWN, "", "NoSchedule");
    assert_eq!(
        added(vec![shutdown.clone()]),
        (adds("salvor.dev/force-eviction=shutdown:NoExecute"), shutdown.to_string())
    );
}

/// The machine was switched off just before the request: the control plane has not noticed yet.
#[test]
fn a_request_that_was_taken_off_early_is_remembered_until_the_kubelet_is_heard_of() {
    let declined = judge_node(&NodeView { ready: Ready::True, lease: lease(-5), ..node() }, &[], &[], 0);
    let Step::EndEviction { asked, .. } = &declined.verdict.actions()[0] else { panic!("{declined:?}") };
    let asked = asked.clone().unwrap();
    assert_eq!(asked, Asked { value: "INC-1".into(), renewed: at(-5) });
    let text = serde_json::to_string(&asked).unwrap();
    assert_eq!(Asked::from_annotation(&text), Ok(asked.clone()));
    let remembered = |ready, lease, now| {
        let node = NodeView { taints: vec![], asked: Some(asked.clone()), ready, lease, ..node() };
        begins(&node, now)
    };
    let renewed =
        Lease::Renewed { written: at(-5), heard: at(-5), lasts: SignedDuration::from_secs(40), moves: true };
    let cases = [
        ("still called Ready", Ready::True, lease(-5), 1, "Wait StillReady until 35"),
        ("called Ready for long", Ready::True, lease(-5), 60, "Ignore StillReady"),
        ("lost, but its Lease counts", Ready::Unknown, lease(-5), 30, "Act KubeletAlive: EmitEvent"),
        ("lost", Ready::Unknown, lease(-5), 35, "Act NodeDown: StartEviction, EmitEvent"),
        ("it lives", Ready::True, renewed, 6, "Act Forgotten: EndEviction"),
        ("it lived, seen by another process", Ready::True, lease(5), 6, "Act Forgotten: EndEviction"),
        ("it lived, and was lost later", Ready::Unknown, lease(5), 100, "Act Forgotten: EndEviction"),
        ("it has no Lease any more", Ready::Unknown, Lease::None, 100, "Act Forgotten: EndEviction"),
    ];
    for (case, ready, lease, now, expected) in cases {
        assert_eq!(remembered(ready, lease, now), expected, "{case}");
    }
    // The eviction continues while our taint stays, and does not begin again afterwards.
    let progress = Progress { request: "salvor.dev/force-eviction=INC-1:NoSchedule".into(), ..started() };
    let with = |progress: Progress, taints| NodeView {
        progress: Some(progress),
        asked: Some(asked.clone()),
        taints,
        ..begun("EvictingPods")
    };
    let added = || vec![taint(KEY, "INC-1", "NoExecute")];
    let going_on = with(progress.clone(), added());
    assert_eq!(say(&judge_node(&going_on, &[pod()], &[], 1)), "Ignore EvictingPods");
    let finished = Progress { finished: Some(at(30)), ..progress };
    assert_eq!(
        say(&judge_node(&with(finished.clone(), added()), &[], &[], 31)),
        "Act Finished: ReportEviction"
    );
    let untainted = say(&judge_node(&with(finished, vec![]), &[], &[], 31));
    assert_eq!(untainted, "Act Forgotten: EndEviction");
}

#[test]
fn a_taint_that_another_recovery_of_ours_put_on_asks_for_nothing_but_a_person_goes_before_it() {
    let out = "node.kubernetes.io/out-of-service";
    let triggers = format!(
        "featureGates: {{FailureRecoveryPolicy: true}}\neviction: {{triggers: [{{key: {out}, proof: true}}]}}\n"
    );
    let judged = |taints: Vec<Taint>, out_of_service| {
        let node = NodeView { taints, out_of_service, ..node() };
        let zone = NodeCounts::default();
        let scene = Scene { node: &node, pods: Some(vec![]), attachments: Some(vec![]), zone };
        say(&decide_node(&scene, &policy(&triggers), at(0)))
    };
    let start = "Act NodeDown: StartEviction, EmitEvent";
    let by_rule = || taint(out, "nodeshutdown", "NoExecute");
    assert_eq!(judged(vec![by_rule()], false), start, "somebody else put it there");
    assert_eq!(judged(vec![by_rule()], true), "Ignore AnotherRecoveryActs");
    assert_eq!(judged(vec![by_rule(), taint(KEY, "", "NoSchedule")], true), start);
}

#[test]
fn what_we_add_for_a_trigger_is_no_persons_word_when_our_memory_is_lost() {
    let lost = taint("example.com/lost", "", "NoSchedule");
    let node = |value| NodeView { taints: vec![lost.clone(), taint(KEY, value, "NoExecute")], ..node() };
    let request = |node| policy(TRIGGERS).request(&node).unwrap();
    assert_eq!(request(node("lost")), Request { taint: lost.clone(), proof: false, remembered: false });
    assert!(request(node("INC-1")).proof, "but this is");
}

#[test]
fn nothing_begins_while_a_whole_zone_is_down() {
    let held = |unreachable, total, percent: u8, told: bool| {
        let mut node = node();
        let zone = NodeCounts { unreachable, total };
        let policy = policy(&format!("brake: {{maxUnreachablePercent: {percent}}}\n"));
        let judge = |node: &NodeView| {
            decide_node(&Scene { node, pods: Some(vec![]), attachments: None, zone }, &policy, at(0))
        };
        if told {
            node.told = told_by(&judge(&node));
        }
        say(&judge(&node))
    };
    let start = "Act NodeDown: StartEviction, EmitEvent";
    assert_eq!(held(2, 2, 50, false), start, "two nodes are an everyday failure");
    assert_eq!(held(3, 6, 50, false), start);
    assert_eq!(held(4, 6, 50, false), "Act NodeDown: EmitEvent", "it is said");
    assert_eq!(held(4, 6, 50, true), "Blocked NodeDown", "and then held");
    assert_eq!(held(6, 6, 0, false), start, "no limit");
}

#[test]
fn a_person_who_knows_better_may_say_so_for_a_day() {
    let zone = NodeCounts { unreachable: 6, total: 6 };
    let judge = |word: Option<&str>, now| {
        let word = word.and_then(DespiteOutage::from_annotation);
        let node = NodeView { despite_outage: word, ..node() };
        let scene = Scene { node: &node, pods: Some(vec![]), attachments: None, zone };
        decide_node(&scene, &policy(""), at(now))
    };
    let said = format!("{{\"by\":\"jane\",\"at\":\"{}\"}}", at(-60));
    let begun = judge(Some(&said), 0);
    assert_eq!(say(&begun), "Act NodeDown: StartEviction, EmitEvent, EmitEvent");
    let Step::EmitEvent(note) = &begun.verdict.actions()[2] else { panic!() };
    assert_eq!(note.reason, "DespiteZoneOutage");
    assert!(note.message.contains("jane said so at 2027-01-15T07:59:00Z"), "{}", note.message);
    assert_eq!(say(&judge(Some(&said), 24 * 3600 - 61)), "Act NodeDown: StartEviction, EmitEvent, EmitEvent");
    let held = "Act NodeDown: EmitEvent";
    assert_eq!(say(&judge(Some(&said), 24 * 3600 - 60)), held, "too old");
    let to_come = format!("{{\"by\":\"jane\",\"at\":\"{}\"}}", at(301));
    assert_eq!(say(&judge(Some(&to_come), 0)), held, "from the future");
    for garbage in
        ["", "yes", "true", "{}", "{\"by\":\"\",\"at\":\"2027-01-15T08:00:00Z\"}", "{\"by\":\"jane\"}", "[]"]
    {
        assert_eq!(say(&judge(Some(garbage), 0)), held, "{garbage}");
    }
    // The permission covers the outage, and nothing else.
    let alive =
        NodeView { lease: lease(-5), despite_outage: DespiteOutage::from_annotation(&said), ..node() };
    let scene = Scene { node: &alive, pods: Some(vec![]), attachments: None, zone };
    assert_eq!(say(&decide_node(&scene, &policy(""), at(0))), "Act KubeletAlive: EmitEvent");
}

#[test]
fn steps_two_to_four() {
    let finalized = PodView {
        phase: PodPhase::Failed,
        deletion: Some(Deletion { timestamp: at(1), grace_seconds: Some(0) }),
        ..pod()
    };
    let tolerant =
        PodView { tolerations: vec![toleration(None)], work: claiming(vec![claim("kept")]), ..pod() };
    let later = PodView { tolerations: vec![toleration(Some(60))], ..pod() };
    let mirror = PodView { is_mirror: true, ..pod() };
    let in_use = || vec!["kubernetes.io/csi/disk.example.com^a".to_owned()];
    let released = |kept: Vec<Claim>, volumes: &[&str]| {
        let volumes = volumes.iter().map(ToString::to_string).collect();
        Some(Progress {
            released: Some(Released { volumes, ..Released::keeping(&kept, at(10)) }),
            ..started()
        })
    };
    type Case = (&'static str, NodeView, Vec<PodView>, Vec<AttachmentView>, i64, &'static str);
    let cases: Vec<Case> = vec![
        ("pods are left", begun("EvictingPods"), vec![pod()], vec![], 1, "Ignore EvictingPods"),
        ("that is said first", begun("x"), vec![pod()], vec![], 1, "Act EvictingPods: ReportEviction"),
        (
            "and that it began, if that was lost",
            NodeView { told: BTreeSet::new(), ..begun("EvictingPods") },
            vec![pod()],
            vec![],
            1,
            "Act EvictingPods: EmitEvent",
        ),
        (
            "but not after so long",
            NodeView { told: BTreeSet::new(), ..begun("EvictingPods") },
            vec![pod()],
            vec![],
            601,
            "Ignore EvictingPods",
        ),
        (
            "all was gone before anybody looked at the node, and that it began was lost",
            NodeView { told: BTreeSet::new(), ..begun("EvictingPods") },
            vec![],
            vec![],
            1,
            "Act Finished: EmitEvent, ReportEviction, EmitEvent",
        ),
        (
            "pods are gone, volumes are let go",
            NodeView { volumes_in_use: in_use(), ..begun("EvictingPods") },
            vec![finalized.clone(), mirror.clone()],
            vec![attachment("a")],
            1,
            "Act ReleasingVolumes: ReleaseVolumes",
        ),
        (
            "no volumes are let go under pods that must go",
            NodeView { volumes_in_use: in_use(), ..begun("EvictingPods") },
            vec![pod()],
            vec![attachment("a")],
            1,
            "Ignore EvictingPods",
        ),
        (
            "let go once",
            NodeView { progress: released(vec![], &[]), ..begun("DetachingVolumes") },
            vec![],
            vec![attachment("a")],
            11,
            "Wait DetachingVolumes until 70",
        ),
        (
            "a driver that hangs",
            NodeView { progress: released(vec![], &[]), ..begun("VolumesHang") },
            vec![],
            vec![attachment("a")],
            70,
            "Ignore VolumesHang",
        ),
        (
            "which is said",
            NodeView { progress: released(vec![], &[]), told: BTreeSet::new(), ..begun("DetachingVolumes") },
            vec![],
            vec![attachment("a")],
            700,
            "Act VolumesHang: ReportEviction, EmitEvent",
        ),
        (
            "volumes of pods that stay are kept",
            NodeView { progress: released(vec![claim("kept")], &["a"]), ..begun("DetachingVolumes") },
            vec![tolerant.clone()],
            vec![attachment("a"), attachment("b")],
            11,
            "Wait DetachingVolumes until 70",
        ),
        (
            "and not waited for",
            NodeView { progress: released(vec![claim("kept")], &["a"]), ..begun("DetachingVolumes") },
            vec![tolerant.clone()],
            vec![attachment("a")],
            11,
            "Act Finished: ReportEviction, EmitEvent",
        ),
        (
            "when such a pod is gone, what it used is let go as well",
            NodeView {
                progress: released(vec![claim("kept")], &["a"]),
                volumes_in_use: in_use(),
                ..begun("WaitingForPods")
            },
            vec![],
            vec![attachment("a")],
            20,
            "Act ReleasingVolumes: ReleaseVolumes",
        ),
        (
            "a pod that goes later is waited for",
            begun("WaitingForPods"),
            vec![later],
            vec![],
            1,
            "Wait WaitingForPods until 60",
        ),
        (
            "all gone",
            begun("EvictingPods"),
            vec![finalized, mirror],
            vec![],
            1,
            "Act Finished: ReportEviction, EmitEvent",
        ),
        (
            "a Lease that is renewed stops it half-way, which the condition says",
            NodeView { lease: lease(0), ..begun("EvictingPods") },
            vec![pod()],
            vec![],
            1,
            "Act KubeletAlive: ReportEviction",
        ),
        (
            "and an event",
            NodeView {
                lease: lease(0),
                progress: Some(Progress { returned: Some(at(1)), ..started() }),
                ..begun("KubeletAlive")
            },
            vec![pod()],
            vec![],
            1,
            "Act KubeletAlive: EmitEvent",
        ),
    ];
    for (case, node, pods, attachments, now, expected) in cases {
        assert_eq!(say(&judge_node(&node, &pods, &attachments, now)), expected, "{case}");
    }
    let unknown = |pods, attachments| {
        let node = begun("EvictingPods");
        let scene = Scene { node: &node, pods, attachments, zone: NodeCounts::default() };
        say(&decide_node(&scene, &policy(""), at(1)))
    };
    assert_eq!(unknown(None, Some(vec![])), "Ignore PodsUnread");
    assert_eq!(unknown(Some(vec![]), None), "Ignore AttachmentsUnread");
}

#[test]
fn a_stateful_pod_without_proof_keeps_the_eviction_open() {
    let node = NodeView {
        taints: vec![taint("example.com/lost", "", "NoSchedule"), taint(KEY, "lost", "NoExecute")],
        progress: Some(Progress { request: "example.com/lost:NoSchedule".into(), ..started() }),
        ..begun("WaitingForPods")
    };
    let pods = [stateful()];
    assert_eq!(say(&judge_node(&node, &pods, &[], 1)), "Ignore WaitingForPods");
    // A person's request beside it is proof.
    let mut asked = node;
    asked.taints.push(taint(KEY, "INC-1", "NoSchedule"));
    assert_eq!(say(&judge_node(&asked, &pods, &[], 1)), "Act EvictingPods: ReportEviction");
}

#[test]
fn a_node_that_returns_in_the_middle_is_emptied_gently() {
    let progress = Progress { returned: Some(at(1)), ..started() };
    let returned = || NodeView {
        ready: Ready::True,
        lease: lease(0),
        progress: Some(progress.clone()),
        ..begun("NodeReturned")
    };
    let failed = PodView { phase: PodPhase::Failed, ..pod() };
    let later = PodView { tolerations: vec![toleration(Some(60))], ..pod() };
    let volumes = NodeView { volumes_in_use: vec!["v".into()], ..returned() };
    let cases = [
        (
            "it is said",
            NodeView { condition: None, ..returned() },
            vec![pod()],
            "Act NodeReturned: ReportEviction",
        ),
        ("pods are left to it", returned(), vec![pod()], "Ignore NodeReturned"),
        ("no volume is let go", volumes, vec![pod()], "Ignore NodeReturned"),
        ("what ended does not count", returned(), vec![failed], "Act NodeReturned: EndEviction, EmitEvent"),
        (
            "nor what tolerates it for now",
            returned(),
            vec![later],
            "Act NodeReturned: EndEviction, EmitEvent",
        ),
        ("empty", returned(), vec![], "Act NodeReturned: EndEviction, EmitEvent"),
        (
            "empty, but silent again",
            NodeView { lease: lease(-600), ..returned() },
            vec![],
            "Ignore NodeReturned",
        ),
    ];
    for (case, node, pods, expected) in cases {
        assert_eq!(say(&judge_node(&node, &pods, &[], 1)), expected, "{case}");
    }
}

/// Everything done afterwards must know of it, after a restart too.
#[test]
fn that_the_kubelet_was_heard_of_is_written_down_before_anything_else() {
    let heard = [
        ("Ready", NodeView { ready: Ready::True, lease: lease(0), ..begun("NodeReturned") }),
        ("only its Lease", NodeView { ready: Ready::False, lease: lease(0), ..begun("KubeletAlive") }),
    ];
    for (case, node) in heard {
        let decision = judge_node(&node, &[pod()], &[], 1);
        let [Step::ReportEviction { progress: Some(written), .. }] = decision.verdict.actions() else {
            panic!("{case}: {decision:?}")
        };
        assert_eq!(*written, Progress { returned: Some(at(1)), ..started() }, "{case}");
        let known = NodeView { progress: Some(written.clone()), ..node };
        let again = judge_node(&known, &[pod()], &[], 2);
        assert!(
            !again.verdict.actions().iter().any(|action| action.name() == "ReportEviction"),
            "{case}: {again:?}"
        );
    }
}

/// No statement from before a return is proof, and a person can make another.
#[test]
fn another_word_after_a_return_begins_anew() {
    let trigger = || taint("example.com/lost", "", "NoSchedule");
    let added = || taint(KEY, "lost", "NoExecute");
    let at_return = |taints: Vec<Taint>| {
        let progress = Progress { request: "example.com/lost:NoSchedule".into(), ..started() };
        let node =
            NodeView { taints, progress: Some(progress), ready: Ready::False, lease: lease(0), ..begun("x") };
        let decision = judge_node(&node, &[], &[], 1);
        match &decision.verdict.actions()[0] {
            Step::ReportEviction { progress: Some(written), .. } => written.clone(),
            other => panic!("{other}"),
        }
    };
    let judged = |progress: &Progress, taints: Vec<Taint>, ready, lease| {
        let node =
            NodeView { taints, progress: Some(progress.clone()), ready, lease, ..begun("WaitingForPods") };
        say(&judge_node(&node, &[stateful()], &[], 100))
    };
    let before = at_return(vec![trigger(), added()]);
    assert_eq!(before.request, "example.com/lost:NoSchedule");
    let word = |value: &str| vec![trigger(), added(), taint(KEY, value, "NoSchedule")];
    let (lost, silent) = (Ready::Unknown, lease(-600));
    let start = "Act NodeDown: StartEviction, EmitEvent";
    let wait = "Ignore WaitingForPods";
    assert_eq!(judged(&before, vec![trigger(), added()], lost, silent), wait, "nobody said anything");
    assert_eq!(judged(&before, word("INC-1"), lost, silent), start, "a person says it now");
    let given = at_return(word("INC-1"));
    assert_eq!(given.request, "salvor.dev/force-eviction=INC-1:NoSchedule");
    assert_eq!(judged(&given, word("INC-1"), lost, silent), wait, "it was said before the return");
    assert_eq!(judged(&given, word("INC-2"), lost, silent), start, "said anew");
    // Not while the kubelet shows life.
    assert!(!judged(&before, word("INC-1"), Ready::True, lease(95)).contains("StartEviction"));
    assert!(!judged(&before, word("INC-1"), Ready::False, lease(95)).contains("StartEviction"));
}

/// A tenant who keeps binding pods to the node cannot keep the volumes of others there.
#[test]
fn nothing_waits_for_pods_that_are_put_there_much_later() {
    let in_use = NodeView { volumes_in_use: vec!["v".into()], ..begun("EvictingPods") };
    let judged = |created: i64, owners: Vec<Owner>| {
        let late = PodView {
            created: Some(at(created)),
            work: Work { owners, ..claiming(vec![claim("late")]) },
            ..pod()
        };
        judge_node(&in_use, &[late], &[], 100)
    };
    assert_eq!(say(&judged(60, vec![])), "Ignore EvictingPods");
    let release = judged(61, vec![]);
    let [Step::ReleaseVolumes { keep, .. }] = release.verdict.actions() else { panic!("{release:?}") };
    assert_eq!(*keep, [claim("late")], "its own is kept for it");
    let released = Progress { released: Some(Released::keeping(&[claim("late")], at(90))), ..started() };
    let node = NodeView { progress: Some(released), ..in_use.clone() };
    let late = PodView {
        created: Some(at(61)),
        work: Work { claims: vec![claim("late")], ..stateful().work },
        ..pod()
    };
    assert_eq!(say(&judge_node(&node, &[late], &[], 100)), "Act Finished: ReportEviction, EmitEvent");
}

#[test]
fn pods_that_came_after_the_return_do_not_keep_the_taint_on() {
    let returned = Progress { returned: Some(at(1)), ..started() };
    let back = |progress: &Progress| NodeView {
        ready: Ready::True,
        lease: lease(0),
        progress: Some(progress.clone()),
        ..begun("NodeReturned")
    };
    let late = PodView { created: Some(at(0)), work: claiming(vec![claim("late")]), ..pod() };
    let end = "Act NodeReturned: EndEviction, EmitEvent";
    assert_eq!(say(&judge_node(&back(&returned), std::slice::from_ref(&late), &[], 2)), end);
    // Silent again: they stay with their volumes, and the eviction finishes without them.
    let silent = NodeView { ready: Ready::Unknown, lease: lease(-600), ..back(&returned) };
    let judged = judge_node(&silent, std::slice::from_ref(&late), &[], 100);
    let [Step::ReleaseVolumes { keep, .. }] = judged.verdict.actions() else { panic!("{judged:?}") };
    assert_eq!(*keep, [claim("late")]);
}

/// Kubelets without a Lease show life by the heartbeat of their Ready condition.
#[test]
fn without_a_lease_the_heartbeat_counts() {
    let beats = |seconds: i64, moves: bool| Lease::Renewed {
        written: at(seconds),
        heard: at(seconds),
        lasts: SignedDuration::from_secs(40),
        moves,
    };
    let without = |node: NodeView, ready, ready_heartbeat| NodeView {
        lease: Lease::None,
        ready_heartbeat,
        ready,
        ..node
    };
    let finished =
        || NodeView { progress: Some(Progress { finished: Some(at(30)), ..started() }), ..begun("Finished") };
    let told = |node: NodeView| {
        let told = told_by(&judge_node(&node, &[], &[], 100));
        NodeView { told: node.told.iter().cloned().chain(told).collect(), ..node }
    };
    let returned = || {
        let progress = Progress { returned: Some(at(50)), ..started() };
        NodeView { progress: Some(progress), ..begun("NodeReturned") }
    };
    let (ready, lost, sick) = (Ready::True, Ready::Unknown, Ready::False);
    let start = "Act NodeDown: StartEviction, EmitEvent";
    let back = "Act BackInService: EndEviction, EmitEvent";
    let end = "Act NodeReturned: EndEviction, EmitEvent";
    let cases = [
        ("its taint goes when it beats", without(finished(), ready, beats(95, true)), back),
        ("not when it beat long ago", without(finished(), ready, beats(60, true)), "Ignore Finished"),
        ("nor if it never did", without(finished(), ready, Lease::None), "Ignore Finished"),
        ("nor if it is not Ready", without(finished(), sick, beats(95, true)), "Ignore Finished"),
        ("back in the middle", without(returned(), ready, beats(95, true)), end),
        ("back in the middle, and silent", without(returned(), ready, beats(0, true)), "Ignore NodeReturned"),
        ("asked for, and lost", without(node(), lost, beats(0, false)), start),
        (
            "asked for, and it says itself that it is sick",
            told(without(node(), sick, beats(95, true))),
            "Wait KubeletAlive until 135",
        ),
        (
            "asked for, Ready and alive",
            without(node(), ready, beats(95, true)),
            "Act NodeReady: EndEviction, EmitEvent",
        ),
        ("asked for, Ready and silent", without(node(), ready, beats(0, false)), "Ignore StillReady"),
    ];
    for (case, node, expected) in cases {
        assert_eq!(say(&judge_node(&node, &[], &[], 100)), expected, "{case}");
    }
    // Where there is a Lease, that alone counts.
    let kept = NodeView { ready, ready_heartbeat: beats(95, true), ..finished() };
    assert_eq!(say(&judge_node(&kept, &[], &[], 100)), "Ignore Finished");
}

#[test]
fn a_taint_taken_off_in_the_middle_stops_it() {
    let with = |taints: Vec<Taint>, progress: Progress| NodeView {
        taints,
        progress: Some(progress),
        ..begun("Stopped")
    };
    let by_trigger = || Progress { request: "example.com/lost:NoSchedule".into(), ..started() };
    let (request, added) = (taint(KEY, "INC-1", "NoSchedule"), taint(KEY, "INC-1", "NoExecute"));
    let trigger = taint("example.com/lost", "", "NoSchedule");
    let end = "Act Stopped: EndEviction, EmitEvent";
    let cases = [
        ("both", with(vec![], started()), end, None),
        ("the request", with(vec![added.clone()], started()), end, None),
        ("ours", with(vec![request.clone()], started()), end, None),
        ("the trigger", with(vec![added], by_trigger()), end, None),
        ("ours, and the trigger stays", with(vec![trigger.clone()], by_trigger()), end, Some(at(1))),
        (
            "ours, and both requests stay",
            with(vec![trigger.clone(), request.clone()], started()),
            end,
            Some(at(1)),
        ),
    ];
    for (case, node, expected, stopped) in cases {
        let decision = judge_node(&node, &[pod()], &[], 1);
        assert_eq!(say(&decision), expected, "{case}");
        let Step::EndEviction { progress, .. } = &decision.verdict.actions()[0] else { panic!("{case}") };
        assert_eq!(progress.as_ref().and_then(|progress| progress.stopped), stopped, "{case}");
        let first = NodeView { condition: None, ..node };
        assert_eq!(say(&judge_node(&first, &[pod()], &[], 1)), "Act Stopped: ReportEviction", "{case}");
    }
    let stopped = Progress { stopped: Some(at(1)), ..by_trigger() };
    let stays = with(vec![trigger.clone()], stopped.clone());
    assert_eq!(say(&judge_node(&stays, &[pod()], &[], 2)), "Ignore Stopped");
    let over = with(vec![], stopped.clone());
    assert_eq!(say(&judge_node(&over, &[pod()], &[], 2)), "Act Forgotten: EndEviction");
    let again = with(vec![trigger, request], stopped);
    assert_eq!(say(&judge_node(&again, &[pod()], &[], 2)), "Act NodeDown: StartEviction, EmitEvent");
}

/// Volumes were released, and a machine that only lost its network may still use them.
#[test]
fn the_taint_stays_on_a_node_that_is_back_without_a_reboot() {
    let released = || Some(Released::keeping(&[], at(10)));
    let with = |progress: Progress, told: &str| NodeView {
        ready: Ready::True,
        lease: lease(100),
        progress: Some(progress),
        ..begun(told)
    };
    let finished = || Progress { released: released(), finished: Some(at(30)), ..started() };
    let middle = || Progress { released: released(), returned: Some(at(50)), ..started() };
    let kept_all = || released().map(|released| Released { kept_all: true, ..released });
    let lost = "example.com/lost";
    let unproven = |progress: Progress, told: &str| NodeView {
        taints: vec![taint(lost, "", "NoSchedule"), taint(KEY, "lost", "NoExecute")],
        ..with(Progress { request: format!("{lost}:NoSchedule"), ..progress }, told)
    };
    let (back, end) =
        ("Act BackInService: EndEviction, EmitEvent", "Act NodeReturned: EndEviction, EmitEvent");
    let kept = "Ignore NotRebooted";
    let said = |progress| with(progress, "NotRebooted");
    let rebooted = |node: NodeView| NodeView { boot_id: "boot-2".into(), ..node };
    let unknown = |progress: Progress| said(Progress { boot_id: None, ..progress });
    let cases = [
        ("finished, the same boot", said(finished()), kept),
        ("it reports no boot", NodeView { boot_id: "".into(), ..said(finished()) }, kept),
        ("finished, rebooted", rebooted(said(finished())), back),
        ("begun by an older version", unknown(finished()), back),
        ("no volumes were released", said(Progress { released: None, ..finished() }), back),
        ("in the middle, the same boot", said(middle()), kept),
        ("in the middle, rebooted", rebooted(with(middle(), "NodeReturned")), end),
        (
            "in the middle, by an older version",
            NodeView { condition: Some("NodeReturned".into()), ..unknown(middle()) },
            end,
        ),
        ("every volume stayed", said(Progress { released: kept_all(), ..finished() }), back),
        ("in the middle, without proof", unproven(middle(), "NotRebooted"), kept),
        ("without proof, rebooted", rebooted(unproven(middle(), "NodeReturned")), end),
        (
            "without proof, and every volume stayed",
            unproven(Progress { released: kept_all(), ..middle() }, "NodeReturned"),
            end,
        ),
        ("first seen", with(finished(), "Finished"), "Act NotRebooted: ReportEviction"),
        ("not Ready", NodeView { ready: Ready::Unknown, ..with(finished(), "Finished") }, "Ignore Finished"),
        (
            "Ready, and silent",
            NodeView { lease: lease(0), ..with(finished(), "Finished") },
            "Ignore Finished",
        ),
        (
            "a person took the taint off",
            NodeView { taints: vec![], ..said(finished()) },
            "Act Forgotten: EndEviction",
        ),
        (
            "and the trigger is still there",
            NodeView { taints: vec![taint(SHUTDOWN, "", "NoSchedule")], ..said(finished()) },
            back,
        ),
    ];
    for (case, node, expected) in cases {
        assert_eq!(say(&judge_node(&node, &[], &[], 101)), expected, "{case}");
    }
    let judge = |node: &NodeView, setting: &str| {
        let policy = policy(&TRIGGERS.replace("{triggers", &format!("{{removeTaint: {setting}, triggers")));
        let (pods, attachments) = (Some(vec![]), Some(vec![]));
        say(&decide_node(&Scene { node, pods, attachments, zone: NodeCounts::default() }, &policy, at(101)))
    };
    assert_eq!(judge(&said(finished()), "WhenReady"), back);
    assert_eq!(judge(&said(finished()), "WhenEvicted"), "Act TaintRemoved: EndEviction, EmitEvent");
    // It may be back after days, and the event on the node says what a person can do.
    let unrecorded = NodeView { told: BTreeSet::new(), ..said(finished()) };
    let scene = Scene {
        node: &unrecorded,
        pods: Some(vec![]),
        attachments: Some(vec![]),
        zone: NodeCounts::default(),
    };
    let late = NodeView { lease: lease(900_000), ..unrecorded.clone() };
    let judged = decide_node(&Scene { node: &late, ..scene }, &policy(TRIGGERS), at(900_001));
    let [Step::EmitEvent(event)] = judged.verdict.actions() else { panic!("{judged:?}") };
    for words in
        ["may still run", "Reboot the machine", "kubectl taint node node-a salvor.dev/force-eviction-"]
    {
        assert!(event.message.contains(words), "{}", event.message);
    }
}

/// A machine comes back without a reboot, falls silent, and a person says once more that it is off.
#[test]
fn an_eviction_that_begins_again_in_the_same_boot_remembers_the_release() {
    let released = || Some(Released::keeping(&[], at(10)));
    let kept_all = || released().map(|released| Released { kept_all: true, ..released });
    for (case, boot, released, remembers) in [
        ("the same boot", "boot-1", released(), true),
        ("it reports no boot", "", released(), true),
        ("rebooted", "boot-2", released(), false),
        ("nothing was released", "boot-1", None, false),
        ("every volume stayed", "boot-1", kept_all(), false),
    ] {
        let silent = NodeView {
            taints: vec![taint(KEY, "INC-2", "NoSchedule"), taint(KEY, "INC-1", "NoExecute")],
            boot_id: boot.into(),
            lease: lease(60),
            progress: Some(Progress { returned: Some(at(50)), released, ..started() }),
            ..begun("NotRebooted")
        };
        let judged = judge_node(&silent, &[], &[], 200);
        let [Step::StartEviction { progress, .. }, ..] = judged.verdict.actions() else {
            panic!("{case}: {judged:?}")
        };
        assert_eq!(progress.released, remembers.then(|| Released::earlier(at(200))), "{case}");
        // It is released once more, whatever is in use and claimed now.
        assert!(
            !progress.released.as_ref().is_some_and(|it| it.kept(&[]) || it.kept(&[claim("a")])),
            "{case}"
        );
        let finished = Progress { finished: Some(at(210)), ..progress.clone() };
        let back = NodeView {
            ready: Ready::True,
            lease: lease(300),
            progress: Some(finished),
            condition: Some("Finished".into()),
            ..silent
        };
        let expected = if remembers { "NotRebooted" } else { "BackInService" };
        assert_eq!(judge_node(&back, &[], &[], 301).verdict.why().code(), expected, "{case}");
    }
}

/// What was released once stays released, also if every volume that is in use later stays.
#[test]
fn a_release_remembers_whether_every_volume_has_stayed() {
    let named = |volume: &str| format!("kubernetes.io/csi/disk.example.com^{volume}");
    let object = |name: &str| {
        let csi = json!({"driver": "disk.example.com", "volumeHandle": name});
        Some(json!({"spec": {"csi": csi, "claimRef": {"namespace": "ns", "name": name}}}))
    };
    let before = |kept_all| Some(Released { kept_all, ..Released::keeping(&[claim("gone")], at(1)) });
    for (case, claims, released, kept_all) in [
        ("both stay", &["a", "b"][..], None, true),
        ("both stay again", &["a", "b"], before(true), true),
        ("both stay, and one went before", &["a", "b"], before(false), false),
        ("one goes", &["a"], None, false),
        ("both go", &[], None, false),
    ] {
        let keep: Vec<Claim> = claims.iter().map(|name| claim(name)).collect();
        let (node, progress) = (begun("EvictingPods"), Progress { released, ..started() });
        let node = NodeView { volumes_in_use: ["a", "b"].map(named).to_vec(), ..node };
        let attached = [attachment("a"), attachment("b")];
        let verdict = writes::release(&node, &progress, &attached.each_ref(), keep, at(2));
        let write = verdict.actions()[0].write(&[object("a"), object("b")]).unwrap();
        let Verb::Patch(patch) = write.verb else { panic!("{case}") };
        let text = serde_json::to_string(&patch.metadata).unwrap();
        assert_eq!(text.contains("keptAll"), kept_all, "{case}: {text}");
    }
}

#[test]
fn the_boot_is_remembered_when_an_eviction_begins() {
    for (boot, remembered) in [("boot-1", Some("boot-1")), ("", None), ("b".repeat(129).as_str(), None)] {
        let judged = judge_node(&NodeView { boot_id: boot.into(), ..node() }, &[], &[], 0);
        let [Step::StartEviction { progress, .. }, ..] = judged.verdict.actions() else {
            panic!("{judged:?}")
        };
        assert_eq!(progress.boot_id.as_deref(), remembered);
    }
}

#[test]
fn the_taint_goes_when_the_node_is_back_or_at_once() {
    let finished =
        || NodeView { progress: Some(Progress { finished: Some(at(30)), ..started() }), ..begun("Finished") };
    let back = || NodeView { ready: Ready::True, lease: lease(100), ..finished() };
    let at_once = policy(&TRIGGERS.replace("{triggers", "{removeTaint: WhenEvicted, triggers"));
    let judge = |node: &NodeView, policy: &EvictionPolicy| {
        let (pods, attachments) = (Some(vec![]), Some(vec![]));
        say(&decide_node(&Scene { node, pods, attachments, zone: NodeCounts::default() }, policy, at(101)))
    };
    let when_ready = policy(TRIGGERS);
    assert_eq!(judge(&finished(), &when_ready), "Ignore Finished");
    assert_eq!(judge(&back(), &when_ready), "Act BackInService: EndEviction, EmitEvent");
    let ready_but_silent = NodeView { lease: lease(0), ..back() };
    assert_eq!(judge(&ready_but_silent, &when_ready), "Ignore Finished");
    let unrecorded = NodeView { told: BTreeSet::new(), ..finished() };
    assert_eq!(judge(&unrecorded, &when_ready), "Act Finished: EmitEvent");
    assert_eq!(judge(&finished(), &at_once), "Act TaintRemoved: EndEviction, EmitEvent");
    // Salvor may not remove the trigger, and it would request the same again.
    let mut asked_twice = finished();
    asked_twice.taints.push(taint("example.com/lost", "", "NoSchedule"));
    let scene = Scene {
        node: &asked_twice,
        pods: Some(vec![]),
        attachments: Some(vec![]),
        zone: NodeCounts::default(),
    };
    let decision = decide_node(&scene, &at_once, at(101));
    let Step::EndEviction { progress, .. } = &decision.verdict.actions()[0] else { panic!("{decision:?}") };
    assert_eq!(*progress, asked_twice.progress, "it is remembered that it was done");
    // A person removed all taints, and requests the eviction again.
    let asked_anew = NodeView { taints: vec![taint(KEY, "INC-2", "NoSchedule")], ..finished() };
    for policy in [&when_ready, &at_once] {
        assert_eq!(judge(&asked_anew, policy), "Act NodeDown: StartEviction, EmitEvent");
    }
    let untainted = NodeView { taints: vec![], ..finished() };
    assert_eq!(judge(&untainted, &when_ready), "Act Forgotten: EndEviction", "a person was quicker");
    // The process that finished it crashed before it reported that.
    let unrecorded = |node: NodeView| NodeView { told: BTreeSet::new(), ..node };
    let said = "Act BackInService: EmitEvent, EndEviction, EmitEvent";
    assert_eq!(judge(&unrecorded(back()), &when_ready), said);
    assert_eq!(judge(&unrecorded(untainted), &when_ready), "Act Forgotten: EmitEvent, EndEviction");
    // The foreign taint stays: what it requested is not done again.
    let others = NodeView { taints: vec![taint(SHUTDOWN, "", "NoSchedule")], ..finished() };
    assert_eq!(judge(&others, &at_once), "Ignore Finished");
    let others_back = NodeView { ready: Ready::True, lease: lease(100), ..others };
    assert_eq!(judge(&others_back, &at_once), "Act BackInService: EndEviction, EmitEvent");
}
