//! Annotations on a node, and evictions whose annotations cannot be read or whose writes the server refuses.

use super::super::Step;
use super::*;

const STARTED: &str = r#""started":"2027-01-15T08:00:00Z""#;
const REQUEST: &str = r#""request":"salvor.dev/force-eviction=INC-1:NoSchedule""#;

fn read(fields: &str) -> Result<Progress, String> {
    Progress::from_annotation(&format!("{{{fields}}}"))
}

#[test]
fn only_what_this_version_understands_is_believed() {
    let text = serde_json::to_string(&started()).unwrap();
    assert_eq!(text, format!(r#"{{{STARTED},{REQUEST},"bootID":"boot-1"}}"#));
    assert_eq!(Progress::from_annotation(&text), Ok(started()));
    let full = Progress {
        returned: Some(at(5)),
        released: Some(Released { volumes: vec!["v".into()], ..Released::keeping(&[claim("a")], at(6)) }),
        finished: Some(at(7)),
        stopped: Some(at(8)),
        ..started()
    };
    assert_eq!(Progress::from_annotation(&serde_json::to_string(&full).unwrap()), Ok(full));
    // Annotations of earlier versions: the kept claims are unknown, so volumes are released once more.
    let before = format!(
        r#"{STARTED},{REQUEST},"claims":[{{"namespace":"ns","name":"a"}}],
           "released":{{"at":"2027-01-15T08:00:06Z","kept":[{{"namespace":"ns","name":"a"}}],"volumes":["v"]}}"#
    );
    let released = read(&before).unwrap().released.unwrap();
    assert!(!released.kept_all, "an earlier version does not say that every volume stayed");
    assert_eq!((released.kept_hash, released.volumes), (None, vec!["v".to_owned()]));
    let released = Released { kept_all: true, ..Released::keeping(&[], at(6)) };
    assert_eq!(serde_json::to_string(&released).unwrap(), r#"{"at":"2027-01-15T08:00:06Z","keptAll":true}"#);

    let huge = format!(r#"{STARTED},"request":"{}:NoSchedule""#, "x".repeat(200_000));
    let deep = format!(r#"{STARTED},{REQUEST},"claims":{}"#, "[".repeat(100_000));
    let cases = [
        ("", "missing field `started`"),
        (REQUEST, "missing field `started`"),
        (STARTED, "missing field `request`"),
        (r#""started":"yesterday","request":"a:NoSchedule""#, "failed to parse"),
        (r#""started":1,"request":"a:NoSchedule""#, "invalid type"),
        (&format!(r#"{STARTED},"request":"somebody""#), "not a taint"),
        (&format!(r#"{STARTED},"request":"a:Sometimes""#), "not a taint"),
        (&huge, "not a taint"),
        (&deep, "recursion limit"),
        (&format!(r#"{STARTED},{REQUEST},"paused":true"#), "unknown field `paused`"),
        (&format!(r#"{STARTED},{REQUEST},"version":2"#), "unknown field `version`"),
        (
            &format!(r#"{STARTED},{REQUEST},"released":{{"at":"2027-01-15T08:00:06Z","x":1}}"#),
            "unknown field `x`",
        ),
        (&format!(r#"{STARTED},{REQUEST},"stopped":"soon""#), "failed to parse"),
    ];
    for (fields, problem) in cases {
        let found = read(fields).unwrap_err();
        assert!(found.contains(problem), "{problem}: {found}");
        assert!(found.len() <= 200, "{found}");
    }
    for text in ["", "yesterday", "null", "[]", "{", "{}x", "\u{0}", "💥"] {
        assert!(
            Progress::from_annotation(text).is_err() && Asked::from_annotation(text).is_err(),
            "{text:?}"
        );
    }
    for (value, good) in [("", true), ("INC-1", true), ("no label", false), ("x".repeat(64).as_str(), false)]
    {
        let asked = format!(r#"{{"value":"{value}","renewed":"2027-01-15T08:00:00Z"}}"#);
        assert_eq!(Asked::from_annotation(&asked).is_ok(), good, "{value}");
    }
}

#[test]
fn damage_in_one_annotation_leaves_nothing_of_the_other() {
    let good = serde_json::to_string(&started()).unwrap();
    let asked = r#"{"value":"INC-1","renewed":"2027-01-15T08:00:00Z"}"#;
    let both = Memory::read(Some(&good), Some(asked));
    assert!(both.progress.is_some() && both.asked.is_some() && both.damage.is_none());
    for (progress, asked, damaged) in [
        (good.as_str(), "x", "eviction.salvor.dev/asked"),
        ("x", asked, "eviction.salvor.dev/progress"),
        ("x", "x", "eviction.salvor.dev/progress"),
    ] {
        let Memory { progress, asked, damage } = Memory::read(Some(progress), Some(asked));
        assert_eq!((progress, asked, damage.unwrap().annotation), (None, None, damaged));
    }
    assert_eq!(Memory::read(None, None), Memory::default());
}

/// The clock of an API server is an hour behind for a while: times recorded then are still trusted afterwards.
#[test]
fn an_eviction_that_starts_by_a_clock_before_its_node_was_made_is_no_damage() {
    let young = NodeView { created: Some(at(0)), lease: lease(-4200), ..node() };
    let started = judge_node(&young, &[], &[], 600 - 3600);
    let Step::StartEviction { progress, .. } = &started.verdict.actions()[0] else { panic!("{started:?}") };
    assert_eq!(progress.started, at(0));
    let both = vec![taint(KEY, "INC-1", "NoSchedule"), taint(KEY, "INC-1", "NoExecute")];
    let begun = NodeView { progress: Some(progress.clone()), taints: both, ..young };
    let goes_on = say(&judge_node(&begun, &[pod()], &[], 660));
    assert!(goes_on.starts_with("Act EvictingPods"), "{goes_on}");
}

fn damaged() -> NodeView {
    let damage = Damage {
        annotation: "eviction.salvor.dev/progress",
        problem: "expected value at line 1 column 1".into(),
        until: None,
    };
    NodeView { progress: None, damage: Some(damage), told: BTreeSet::new(), ..begun("EvictingPods") }
}

/// The eviction may have been stopped: whatever the taints say, nothing is done, and an event says what a person can
/// do.
#[test]
fn damage_holds_everything_and_is_said_once_on_the_node() {
    let trigger = taint("example.com/lost", "", "NoSchedule");
    let nodes = [
        damaged(),
        NodeView { taints: vec![], ..damaged() },
        NodeView { taints: vec![trigger.clone()], ..damaged() },
        NodeView { ready: Ready::True, lease: lease(0), ..damaged() },
        NodeView { lease: Lease::Unread, ..damaged() },
    ];
    for node in nodes {
        let first = judge_node(&node, &[pod()], &[], 1);
        assert_eq!(say(&first), "Act AnnotationUnreadable: ReportEviction, EmitEvent");
        let Step::ReportEviction { condition, progress: None, .. } = &first.verdict.actions()[0] else {
            panic!("{first:?}")
        };
        assert!(!condition.holds);
        for word in [
            "eviction.salvor.dev/progress is not valid: expected value",
            "and does nothing",
            "kubectl taint node node-a salvor.dev/force-eviction-",
            "kubectl annotate node node-a eviction.salvor.dev/progress-",
        ] {
            assert!(condition.message.contains(word), "{}", condition.message);
        }
        let told = told_by(&first);
        let said = NodeView { condition: Some("AnnotationUnreadable".into()), told, ..node.clone() };
        assert_eq!(say(&judge_node(&said, &[pod()], &[], 2)), "Ignore AnnotationUnreadable");
        assert_eq!(
            say(&decide_pod(&pod(), Some(&node), &policy(TRIGGERS), at(1))),
            "Ignore AnnotationUnreadable"
        );
        // Another defect gets another event.
        let mut other = said.clone();
        other.damage.as_mut().unwrap().problem = "EOF".into();
        assert_eq!(say(&judge_node(&other, &[], &[], 2)), "Act AnnotationUnreadable: EmitEvent");
    }
}

#[test]
fn what_is_mended_goes_on_and_what_is_taken_off_begins_anew_or_is_over() {
    let after = |progress: Option<Progress>, taints: Vec<Taint>| NodeView {
        progress,
        taints,
        condition: Some("AnnotationUnreadable".into()),
        ..begun("")
    };
    let both = || vec![taint(KEY, "INC-1", "NoSchedule"), taint(KEY, "INC-1", "NoExecute")];
    let judged = |node: &NodeView| say(&judge_node(node, &[pod()], &[], 5));
    let mended = after(Some(started()), both());
    assert_eq!(judged(&mended), "Act EvictingPods: ReportEviction");
    let stopped =
        Progress { stopped: Some(at(3)), request: "example.com/lost:NoSchedule".into(), ..started() };
    let still_stopped = after(Some(stopped), vec![taint("example.com/lost", "", "NoSchedule")]);
    assert_eq!(judged(&still_stopped), "Ignore Stopped", "the stop is not forgotten");
    let over = "Act NotBegun: ReportEviction";
    for taints in [vec![], both()] {
        let removed = after(None, taints.clone());
        assert_eq!(judged(&removed), over);
        let corrected = NodeView { condition: Some("NotBegun".into()), ..removed };
        let then =
            if taints.is_empty() { "Ignore NotRequested" } else { "Act NodeDown: StartEviction, EmitEvent" };
        assert_eq!(judged(&corrected), then);
    }
}

#[test]
fn times_that_cannot_be_are_not_believed() {
    let progress = |change: &dyn Fn(&mut Progress)| {
        let mut progress = started();
        change(&mut progress);
        NodeView { progress: Some(progress), ..begun("EvictingPods") }
    };
    let released = |seconds| Some(Released::keeping(&[], at(seconds)));
    let ages = Timestamp::UNIX_EPOCH;
    let hold = "Act AnnotationUnreadable: ReportEviction, EmitEvent";
    let go_on = "believed";
    let cases = [
        ("as it should be", progress(&|_| {}), go_on),
        ("a clock a little ahead", progress(&|p| p.started = at(60)), go_on),
        ("began in the future", progress(&|p| p.started = at(62)), hold),
        ("began in another age", progress(&|p| p.started = Timestamp::MAX), hold),
        ("began before there were computers", progress(&|p| p.started = Timestamp::MIN), hold),
        ("began in 1970", progress(&|p| p.started = ages), hold),
        ("began before the Node was made", progress(&|p| p.started = at(-86_461)), hold),
        ("began with the Node", progress(&|p| p.started = at(-86_401)), go_on),
        ("returned in the future", progress(&|p| p.returned = Some(at(62))), hold),
        ("finished in the future", progress(&|p| p.finished = Some(at(62))), hold),
        ("finished before it began", progress(&|p| p.finished = Some(at(-61))), hold),
        ("stopped in the future", progress(&|p| p.stopped = Some(at(62))), hold),
        ("stopped before it began", progress(&|p| p.stopped = Some(ages)), hold),
        ("let go in the future", progress(&|p| p.released = released(62)), hold),
        ("let go before it began", progress(&|p| p.released = released(-61)), hold),
    ];
    for (case, node, expected) in cases {
        let of_node = say(&judge_node(&node, &[pod()], &[], 1));
        assert_eq!(of_node == hold, expected == hold, "{case}: {of_node}");
        let of_pod = say(&decide_pod(&pod(), Some(&node), &policy(TRIGGERS), at(1)));
        assert_eq!(of_pod == "Ignore AnnotationUnreadable", expected == hold, "{case}: {of_pod}");
    }
    // Once the time has passed, it is trusted.
    let mut ahead = progress(&|p| p.started = at(100));
    let first = judge_node(&ahead, &[pod()], &[], 1);
    ahead.told.extend(told_by(&first));
    ahead.condition = Some("AnnotationUnreadable".into());
    assert_eq!(say(&judge_node(&ahead, &[pod()], &[], 1)), "Wait AnnotationUnreadable until 40");
    assert!(say(&judge_node(&ahead, &[pod()], &[], 40)).starts_with("Act EvictingPods: ReportEviction"));
}

#[test]
fn a_start_that_the_server_refuses_is_said_and_tried_again_later() {
    let start = "Act NodeDown: StartEviction, EmitEvent";
    let refusal = |step| Refusal {
        step,
        what: "begin to evict node node-a".into(),
        words: "metadata.annotations: Too long: may not be more than 262144 bytes".into(),
        until: at(60),
    };
    let mut node = NodeView { refused: vec![refusal("StartEviction")], ..node() };
    let first = judge_node(&node, &[], &[], 1);
    assert_eq!(say(&first), "Act WriteRefused: ReportEviction, EmitEvent");
    let message = first.verdict.why().to_string();
    assert!(
        message.contains("does not allow Salvor to begin to evict node node-a: metadata.annotations"),
        "{message}"
    );
    let Step::ReportEviction { condition, .. } = &first.verdict.actions()[0] else { panic!("{first:?}") };
    assert!(!condition.holds, "it has not begun");
    node.told = told_by(&first);
    node.condition = Some("WriteRefused".into());
    assert_eq!(say(&judge_node(&node, &[], &[], 1)), "Wait WriteRefused until 60");
    assert_eq!(say(&judge_node(&node, &[], &[], 60)), start, "tried again");
    // The person gives up, and the condition is cleared.
    let mut given_up = NodeView { taints: vec![], ..node.clone() };
    assert_eq!(say(&judge_node(&given_up, &[], &[], 2)), "Act NotBegun: ReportEviction");
    given_up.refused.push(refusal("ReportEviction"));
    assert_eq!(say(&judge_node(&given_up, &[], &[], 2)), "Wait WriteRefused until 60");
    assert_eq!(say(&judge_node(&given_up, &[], &[], 60)), "Act NotBegun: ReportEviction", "tried again");
    // If the server refuses every write, each of them is retried once in a while, not in turn.
    let deaf = NodeView {
        refused: vec![refusal("StartEviction"), refusal("ReportEviction")],
        condition: None,
        ..node.clone()
    };
    assert_eq!(say(&judge_node(&deaf, &[], &[], 1)), "Wait WriteRefused until 60");
    assert_eq!(say(&judge_node(&deaf, &[], &[], 60)), start);
    // A stop does not wait for a refused write.
    let stopped = NodeView { refused: vec![refusal("ReleaseVolumes")], taints: vec![], ..begun("Stopped") };
    assert_eq!(say(&judge_node(&stopped, &[], &[], 2)), "Act Stopped: EndEviction, EmitEvent");
    // A problem that cannot be written to the condition gets an event only.
    let mute = NodeView { refused: vec![refusal("ReportEviction")], ..begun("x") };
    assert_eq!(say(&judge_node(&mute, &[pod()], &[], 2)), "Act WriteRefused: EmitEvent");
}

#[test]
fn what_is_written_has_a_bound_whatever_tenants_claim() {
    let many: Vec<Claim> = (0..10_000).map(|i| claim(&format!("{i}-{}", "x".repeat(200)))).collect();
    let pods = [
        PodView { work: claiming(many.clone()), phase: PodPhase::Pending, ..pod() },
        PodView {
            tolerations: vec![toleration(None)],
            work: claiming(many.clone()),
            own_claims: many,
            ..pod()
        },
    ];
    let start = judge_node(&node(), &pods, &[], 0);
    let Step::StartEviction { progress, .. } = &start.verdict.actions()[0] else { panic!("{start:?}") };
    assert!(serde_json::to_string(progress).unwrap().len() < 1000);
    let release = judge_node(&NodeView { volumes_in_use: vec!["v".into()], ..begun("") }, &pods[1..], &[], 1);
    let [release @ Step::ReleaseVolumes { progress, .. }] = release.verdict.actions() else { panic!() };
    assert!(serde_json::to_string(progress).unwrap().len() < 1000);
    assert!(release.to_string().len() < 5000, "{release}");
    // The hash distinguishes sets of claims.
    let kept = Released::keeping(&[claim("ab"), claim("c")], at(0));
    assert!(kept.kept(&[claim("ab"), claim("c")]));
    for other in [vec![], vec![claim("ab")], vec![claim("a"), claim("bc")]] {
        assert!(!kept.kept(&other), "{other:?}");
    }
    assert!(Released::keeping(&[], at(0)).kept(&[]));
}
