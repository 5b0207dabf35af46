//! What happens to Jobs whose pods are given up, by their limits and policies.

use std::sync::Arc;

use proptest::prelude::*;
use salvor_api::names::conditions;
use serde_json::{Value, json};

use super::super::Step;
use super::*;
use crate::event::EventNote;
use crate::fuzz::cases;
use crate::ids::Uid;
use crate::job::JobView;
use crate::objects::JobRef;
use crate::step::{Step as _, Verb};
use crate::verdict::{Reason, Verdict};

const RAISE: &str = "";
const HOLD: &str = "failureRecoveryPolicy: {jobs: {lostPods: Hold}}\n";
const COUNT: &str = "failureRecoveryPolicy: {jobs: {lostPods: Count}}\n";
const DUE: i64 = 60;

fn job_ref() -> JobRef {
    JobRef { namespace: "ns".into(), name: "train".into(), uid: "job-uid".into() }
}

/// A Job that replaces only pods that have failed, with these additional fields.
#[expect(clippy::needless_pass_by_value, reason = "a table reads better without borrows")]
fn job(spec: Value, status: Value) -> JobView {
    let mut all = json!({"podReplacementPolicy": "Failed", "parallelism": 20, "completions": 20, "template": {}, "selector": {}});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    JobView {
        job: Arc::new(job_ref()),
        resource_version: "40".into(),
        deleting: false,
        spec: serde_json::from_value(all).unwrap(),
        status: serde_json::from_value(status).unwrap(),
        used_names: None,
    }
}

fn seen(job: &JobView) -> JobSight {
    JobSight::of(job, None, at(DUE))
}

fn member() -> Member {
    Member { tracked: true, ..Member::default() }
}

fn relative(number: usize, stage: Stage) -> Relative {
    Relative { uid: uid(number), member: Arc::new(member()), stage, is_deleted: true }
}

fn uid(number: usize) -> Uid {
    format!("uid-{number:04}").into()
}

/// Pod 0 of a Job of which so many pods are given up now.
fn of_job(sight: JobSight, member: Member, due: usize) -> PodView {
    let all_alike = Arc::new(member.clone());
    let one = |number| Relative {
        uid: uid(number),
        member: all_alike.clone(),
        stage: Stage::Due,
        is_deleted: true,
    };
    in_family(sight, member, (0..due).map(one).collect())
}

fn in_family(sight: JobSight, member: Member, family: Vec<Relative>) -> PodView {
    let of = OfJob { job: job_ref(), member: Arc::new(member), sight, family, told: true };
    PodView { pod: PodRef { uid: uid(0), ..pod().pod }, job: Some(Box::new(of)), ..pod() }
}

fn verdict(pod: &PodView, settings: &str) -> Verdict<PodWhy, Step> {
    decide_pod(pod, Some(&node()), &policy(settings), at(DUE)).verdict
}

fn outline(pod: &PodView, settings: &str) -> String {
    let verdict = verdict(pod, settings);
    let steps: Vec<_> = verdict.actions().iter().map(Step::name).collect();
    format!("{} {} {}", verdict.name(), verdict.why().code(), steps.join("+")).trim_end().to_owned()
}

const MARKED: &str = "Act Zombie PatchPodStatus+EmitEvent";
const RAISED: &str = "Act RaisesBackoffLimit RaiseBackoffLimit+EmitEvent";
const HELD: &str = "Wait JobWouldFail";

#[test]
fn a_job_that_would_fail_is_raised_held_or_let_fail() {
    let ignores = json!({"podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}});
    let code_first = json!({"podFailurePolicy": {"rules": [
        {"action": "Count", "onExitCodes": {"operator": "In", "values": [7]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]}});
    let fails_job = json!({"podFailurePolicy": {"rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}]}});
    let of_other_condition = json!({"podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "Ready", "status": "False"}]}]}});
    let indexed = |limit: i32, max: Value| json!({"completionMode": "Indexed", "backoffLimitPerIndex": limit, "maxFailedIndexes": max});
    let none = || json!({});
    let plain = member;
    let at_index = |index, earlier_failures| Member { index: Some(index), earlier_failures, ..member() };
    let exited = Member { exit_codes: vec![("main".into(), 7)], ..member() };
    let counted = Member { tracked: false, ..member() };
    // Job, status, pod, pods that are given up, and the outcomes with RaiseLimit and with Hold.
    let table: Vec<(&str, Value, Value, Member, usize, &str, &str)> = vec![
        ("within the limit", none(), none(), plain(), 6, MARKED, MARKED),
        ("one more", none(), none(), plain(), 7, RAISED, HELD),
        ("eight of the seed", none(), none(), plain(), 8, RAISED, HELD),
        ("with earlier failures", none(), json!({"failed": 6}), plain(), 1, RAISED, HELD),
        (
            "with failures that are written down and not counted yet",
            none(),
            json!({"failed": 4, "uncountedTerminatedPods": {"failed": ["a", "b"]}}),
            plain(),
            1,
            RAISED,
            HELD,
        ),
        ("a limit of its own", json!({"backoffLimit": 0}), none(), plain(), 1, RAISED, HELD),
        ("it fails anyway", none(), json!({"failed": 7}), plain(), 1, MARKED, MARKED),
        (
            "it is failing",
            none(),
            json!({"conditions": [{"type": "FailureTarget", "status": "True"}]}),
            plain(),
            8,
            MARKED,
            MARKED,
        ),
        (
            "it has succeeded",
            none(),
            json!({"conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]}),
            plain(),
            8,
            MARKED,
            MARKED,
        ),
        (
            "it counts pods when they are deleted",
            json!({"podReplacementPolicy": "TerminatingOrFailed"}),
            none(),
            plain(),
            8,
            MARKED,
            MARKED,
        ),
        ("the pod is counted", none(), none(), counted, 8, MARKED, MARKED),
        (
            "the pod is written down",
            none(),
            json!({"uncountedTerminatedPods": {"failed": ["uid-0000"]}}),
            plain(),
            8,
            MARKED,
            MARKED,
        ),
        ("a policy ignores disruptions", ignores, none(), plain(), 8, MARKED, MARKED),
        ("unless an earlier rule matches", code_first.clone(), none(), exited, 8, RAISED, HELD),
        ("which it does not here", code_first, none(), plain(), 8, MARKED, MARKED),
        ("a policy that ignores something else", of_other_condition, none(), plain(), 8, RAISED, HELD),
        ("a policy that fails the Job", fails_job, none(), plain(), 1, MARKED, HELD),
        ("by index, within its limit", indexed(1, Value::Null), none(), at_index(3, 0), 19, MARKED, MARKED),
        ("by index, past its limit", indexed(1, Value::Null), none(), at_index(3, 1), 1, HELD, HELD),
        ("by index, with no retry", indexed(0, json!(5)), none(), at_index(3, 0), 1, HELD, HELD),
        (
            "by index, of which this one failed before",
            indexed(0, Value::Null),
            json!({"failedIndexes": "3"}),
            at_index(3, 0),
            1,
            MARKED,
            MARKED,
        ),
        ("at no index", indexed(0, Value::Null), none(), at_index(20, 0), 1, MARKED, MARKED),
    ];
    for (case, spec, status, member, due, raised, held) in table {
        let pod = of_job(seen(&job(spec, status)), member, due);
        assert_eq!(outline(&pod, RAISE), raised, "{case}");
        assert_eq!(outline(&pod, HOLD), held, "{case}, Hold");
        assert_eq!(outline(&pod, COUNT), MARKED, "{case}, Count");
    }
}

#[test]
fn a_job_that_was_not_read_is_read_one_that_is_gone_needs_nothing_and_an_unreadable_one_waits() {
    let unreadable = JobSight::Unreadable { error: "jobs.batch is forbidden".into(), at: at(DUE) };
    for (sight, expected) in [
        (JobSight::Unread, "Wait JobUnread"),
        (JobSight::Gone, MARKED),
        (unreadable.clone(), "Wait JobUnreadable"),
    ] {
        let pod = of_job(sight, member(), 8);
        assert_eq!((outline(&pod, RAISE).as_str(), outline(&pod, HOLD).as_str()), (expected, expected));
        assert_eq!(outline(&pod, COUNT), MARKED, "the Job is not asked for");
    }
    let why = verdict(&of_job(unreadable, member(), 8), RAISE).why().to_string();
    assert!(why.contains("jobs.batch is forbidden"), "{why}");
    let odd =
        job(json!({"completionMode": "Indexed", "backoffLimitPerIndex": 1}), json!({"failedIndexes": "x"}));
    assert!(matches!(seen(&odd), JobSight::Unreadable { .. }));
    assert!(matches!(
        JobSight::of(&job(json!({}), json!({})), Some("8 pods"), at(0)),
        JobSight::Unreadable { .. }
    ));
}

#[test]
fn pods_that_have_ended_and_are_not_counted_yet_count() {
    let family = |ended: usize, phase| {
        let due = (0..3).map(|number| relative(number, Stage::Due));
        due.chain((3..3 + ended).map(|number| relative(number, Stage::Ended(phase)))).collect::<Vec<_>>()
    };
    let outline_of = |family| outline(&in_family(seen(&job(json!({}), json!({}))), member(), family), HOLD);
    assert_eq!(outline_of(family(3, PodPhase::Failed)), MARKED);
    assert_eq!(outline_of(family(4, PodPhase::Failed)), HELD);
    assert_eq!(outline_of(family(4, PodPhase::Succeeded)), MARKED);
    let waits = (0..3).map(|n| relative(n, Stage::Due)).chain((3..9).map(|n| relative(n, Stage::Waits)));
    assert_eq!(outline_of(waits.collect()), MARKED, "what may still end by itself is not given up");
}

/// The step that raises the limit, as it is written.
fn raising(pod: &PodView) -> (u32, Value) {
    let verdict = verdict(pod, RAISE);
    let Some(step @ Step::RaiseBackoffLimit { backoff_limit, .. }) = verdict.actions().first() else {
        panic!("{verdict:?}")
    };
    let write = step.write(&[]).unwrap();
    let Verb::Patch(patch) = &write.verb else { panic!("{write:?}") };
    let record = patch.metadata["annotations"]["salvor.dev/backoff-limit-raised"].as_str().unwrap();
    assert_eq!(patch.content.as_ref().unwrap().1.get(), format!("{{\"backoffLimit\":{backoff_limit}}}"));
    (*backoff_limit, serde_json::from_str(record).unwrap())
}

#[test]
fn the_limit_is_raised_by_all_that_are_given_up_once() {
    let eight = of_job(seen(&job(json!({}), json!({}))), member(), 8);
    let (limit, record) = raising(&eight);
    assert_eq!((limit, &record["raisedBy"], record["pods"].as_array().unwrap().len()), (14, &json!(8), 8));

    // Another pod waits for the first one.
    let mut second = eight.clone();
    second.pod.uid = uid(1);
    assert_eq!(outline(&second, RAISE), "Wait AwaitsBackoffLimit");

    // From then on all of them are marked, also where the Job has counted some of them. The first records the event again,
    // and before its mark: a pod that is marked is not decided on again.
    let raised = job(json!({"backoffLimit": 14}), json!({"failed": 7}));
    let sight = JobSight::of(&raised, Some(&record.to_string()), at(DUE));
    let marked = |number: usize| {
        let mut pod = of_job(sight.clone(), member(), 8);
        pod.pod.uid = uid(number);
        outline(&pod, RAISE)
    };
    let with_event = "Act Zombie EmitEvent+PatchPodStatus+EmitEvent";
    assert_eq!((marked(0).as_str(), marked(7).as_str()), (with_event, MARKED));

    // More pods of the same Job: only they are added, and pods that have ended are dropped.
    let family = (0..8).map(|number| relative(number, Stage::Ended(PodPhase::Failed)));
    let family = family.chain((8..16).map(|number| relative(number, Stage::Due)));
    let mut more = in_family(sight, member(), family.collect());
    more.pod.uid = uid(8);
    let (limit, record) = raising(&more);
    assert_eq!((limit, &record["raisedBy"]), (22, &json!(16)));
    let pods: Vec<String> = serde_json::from_value(record["pods"].clone()).unwrap();
    assert_eq!(pods, (8..16).map(|number| String::from(uid(number))).collect::<Vec<_>>());
}

/// A child Job of a JobSet often has no retry: its first failed pod is meant to restart the whole JobSet. A lost node
/// costs no restart, but the raise covers only the pods that were lost: the next pod that fails by itself fails the Job.
#[test]
fn a_child_of_a_job_set_is_raised_by_what_was_lost_and_no_more() {
    let lost = of_job(seen(&job(json!({"backoffLimit": 0}), json!({}))), member(), 1);
    let (limit, record) = raising(&lost);
    assert_eq!((limit, &record["raisedBy"]), (1, &json!(1)));
    let counted = job(json!({"backoffLimit": limit}), json!({"failed": 1}));
    let sight = JobSight::of(&counted, Some(&record.to_string()), at(DUE));
    let mut next = in_family(sight, member(), vec![relative(1, Stage::Due)]);
    next.pod.uid = uid(1);
    assert_eq!(outline(&next, HOLD), HELD, "one more failure is past the limit");
    // An owner who wants a restart of the JobSet for each lost pod says so in the Job.
    let rule = json!({"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]});
    let restarts = job(json!({"backoffLimit": 0, "podFailurePolicy": {"rules": [rule]}}), json!({}));
    assert_eq!(outline(&of_job(seen(&restarts), member(), 1), RAISE), MARKED);
}

#[test]
fn a_record_has_a_bound() {
    let sight = seen(&job(json!({}), json!({})));
    let (limit, record) = raising(&of_job(sight, member(), 5000));
    assert_eq!((limit, record["pods"].as_array().unwrap().len()), (506, 500));
    let raised = job(json!({"backoffLimit": 506}), json!({}));
    let sight = JobSight::of(&raised, Some(&record.to_string()), at(DUE));
    let mut next = of_job(sight, member(), 5000);
    next.pod.uid = uid(500);
    assert_eq!(outline(&next, RAISE), "Wait AwaitsBackoffLimit", "those of the record are marked first");
}

#[test]
fn a_wait_is_told_once_on_the_pod_and_on_the_job() {
    let mut pod = of_job(seen(&job(json!({}), json!({}))), member(), 8);
    pod.job.as_mut().unwrap().told = false;
    let verdict = verdict(&pod, HOLD);
    let notes: Vec<(&str, &str)> = verdict
        .actions()
        .iter()
        .map(|step| match step {
            Step::Mention(EventNote { reason, regarding, .. }) => (reason.as_ref(), regarding.name.as_str()),
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(notes, [("JobWouldFail", "pod-a"), ("JobWouldFail", "train")]);
    assert_eq!(verdict.why().code(), "JobWouldFail");
}

#[test]
fn our_own_controller_does_not_count_them() {
    let managed = json!({"managedBy": "salvor.dev/job-controller"});
    let pod = of_job(seen(&job(managed, json!({}))), member(), 8);
    let with = |rest: &str| outline(&pod, &format!("controllers: [zombie, job]\n{rest}"));
    assert_eq!(with(""), MARKED);
    assert_eq!(with("job: {disruptedPods: Count}\n"), RAISED);
    assert_eq!(
        outline(&pod, "controllers: [zombie]\n"),
        RAISED,
        "another process runs it, by settings that nobody knows here"
    );
    let others = of_job(seen(&job(json!({"managedBy": "example.com/mine"}), json!({}))), member(), 8);
    assert_eq!(outline(&others, "controllers: [zombie, job]\n"), RAISED, "it counts as Kubernetes does");
}

#[test]
fn a_pod_that_ended_by_itself_asks_no_job() {
    let mut ended = of_job(seen(&job(json!({}), json!({}))), member(), 8);
    ended.phase = PodPhase::Succeeded;
    ended.consent = delete();
    assert_eq!(outline(&ended, HOLD), "Act Zombie PatchPodStatus+EmitEvent+ForceDeletePod");
}

#[test]
fn conditions_that_are_set_with_the_mark_count_as_set() {
    let rule = json!({"podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": conditions::KUEUE_FAILURE_RECOVERY}]}]}});
    assert_eq!(outline(&of_job(seen(&job(rule, json!({}))), member(), 8), HOLD), MARKED);
}

proptest! {
    #![proptest_config(cases(512))]

    /// The short question is the long one.
    #[test]
    fn a_pod_is_due_if_and_only_if_it_would_be_marked(
        pod in super::properties::any_pod(), node in super::properties::any_node(), now in super::properties::present()
    ) {
        let policy = policy("");
        let pod = PodView { wait_told: true, evict_told: true, node_name: Some("node-a".into()), mark: None, job: None, ..pod };
        let marks = decide_pod(&pod, Some(&node), &policy, now).verdict.actions().iter().any(|step| {
            matches!(step, Step::PatchPodStatus { phase: Some(PodPhase::Failed), .. })
        });
        prop_assert_eq!(is_due(&pod, &node, &policy, now), marks);
    }
}
