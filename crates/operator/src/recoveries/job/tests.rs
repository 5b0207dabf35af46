//! The view: what it takes in, and what it is too late for.

use salvor_api::config::Configuration;
use salvor_recovery::Verdict;
use serde_json::{Value, json};

use super::*;
use crate::time::Time;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn jobs() -> Jobs {
    let policy = JobPolicy::new(&Configuration::default());
    Jobs::new(Arc::new(policy), Metrics::new(&Time::system()))
}

fn job(revision: u64) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "j", "uid": "job", "resourceVersion": revision.to_string()},
        "spec": {"managedBy": "salvor.dev/job-controller", "parallelism": 1, "completions": 1, "template": {"spec": {}}},
    })
}

fn pod(uid: &str, revision: u64, phase: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "ns", "name": uid, "uid": uid, "resourceVersion": revision.to_string(),
            "creationTimestamp": "2027-01-15T08:00:00Z", "finalizers": ["job.salvor.dev/tracking"],
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job", "controller": true}],
        },
        "status": {"phase": phase},
    })
}

fn with_job() -> (Jobs, Subject) {
    let mut jobs = jobs();
    jobs.hear(News::Pod(Change::Reset { all: Vec::new(), revision: "1".into(), asked: 0 }), now());
    let all = vec![read_job(&job(1).to_string()).unwrap()];
    let woken = jobs.hear(News::Job(Change::Reset { all, revision: "1".into(), asked: 0 }), now());
    (jobs, woken[0].clone())
}

fn applied(pod: &Value) -> News {
    News::Pod(Change::Applied(read_pod(&pod.to_string()).unwrap()))
}

/// What is asked for now, by name.
fn asked(jobs: &Jobs, subject: &Subject) -> Vec<&'static str> {
    let actions = match jobs.judge(subject, now()).map(|judgement| judgement.verdict) {
        Some(Verdict::Act { actions, .. }) => actions,
        _ => Vec::new(),
    };
    actions.iter().flat_map(Action::steps).map(Action::name).filter(|name| *name != "Mention").collect()
}

fn create(jobs: &Jobs, subject: &Subject) -> Action {
    let judgement = jobs.judge(subject, now()).unwrap();
    judgement.verdict.actions()[0].clone()
}

#[test]
fn the_answer_to_our_own_write_is_seen_at_once() {
    let (mut jobs, subject) = with_job();
    let step = create(&jobs, &subject);
    assert_eq!(step.name(), "CreatePod");
    let view = jobs.done(&subject, &step, &Written::Object(pod("a", 5, "Pending").to_string()), now());
    assert_eq!((view, asked(&jobs, &subject)), (View::Shows, vec!["PatchJobStatus"]));
}

#[test]
fn an_answer_that_comes_after_the_pod_is_gone_does_not_bring_it_back() {
    let (mut jobs, subject) = with_job();
    let step = create(&jobs, &subject);
    jobs.hear(News::Pod(Change::Applied(read_pod(&pod("a", 5, "Pending").to_string()).unwrap())), now());
    jobs.hear(News::Pod(Change::Gone("a".into())), now());
    jobs.done(&subject, &step, &Written::Object(pod("a", 5, "Pending").to_string()), now());
    assert_eq!(asked(&jobs, &subject), ["CreatePod"]);
}

#[test]
fn nothing_is_judged_before_both_lists_are_in() {
    let mut jobs = jobs();
    let all = vec![read_job(&job(1).to_string()).unwrap()];
    let woken = jobs.hear(News::Job(Change::Reset { all, revision: "1".into(), asked: 0 }), now());
    assert!(jobs.judge(&woken[0], now()).is_none(), "its pods may be there");
    jobs.hear(News::Pod(Change::Reset { all: Vec::new(), revision: "1".into(), asked: 0 }), now());
    assert_eq!(asked(&jobs, &woken[0]), ["CreatePod"]);
}

#[test]
fn who_begins_to_lead_judges_nothing_before_it_has_lists_of_its_own() {
    let (mut jobs, subject) = with_job();
    jobs.begin_to_lead(1);
    jobs.hear(News::Pod(Change::Reset { all: Vec::new(), revision: "2".into(), asked: 0 }), now());
    let all = vec![read_job(&job(1).to_string()).unwrap()];
    jobs.hear(News::Job(Change::Reset { all, revision: "2".into(), asked: 1 }), now());
    assert!(jobs.judge(&subject, now()).is_none(), "the list of pods was read before");
    jobs.hear(News::Pod(Change::Reset { all: Vec::new(), revision: "2".into(), asked: 1 }), now());
    assert_eq!(asked(&jobs, &subject), ["CreatePod"]);
}

#[test]
fn a_list_that_is_older_than_our_pod_does_not_take_it_away() {
    let (mut jobs, subject) = with_job();
    let step = create(&jobs, &subject);
    jobs.done(&subject, &step, &Written::Object(pod("a", 5, "Pending").to_string()), now());
    jobs.hear(News::Pod(Change::Reset { all: Vec::new(), revision: "4".into(), asked: 0 }), now());
    assert_eq!(asked(&jobs, &subject), ["PatchJobStatus"]);
    jobs.hear(News::Pod(Change::Reset { all: Vec::new(), revision: "6".into(), asked: 0 }), now());
    assert_eq!(asked(&jobs, &subject), ["CreatePod"]);
}

#[test]
fn what_is_older_than_what_is_known_is_no_news() {
    let (mut jobs, subject) = with_job();
    assert_eq!(jobs.hear(applied(&pod("a", 9, "Succeeded")), now()), std::slice::from_ref(&subject));
    assert_eq!(jobs.hear(applied(&pod("a", 7, "Running")), now()), []);
    assert_eq!(asked(&jobs, &subject), ["PatchJobStatus"], "it has succeeded");
    let old = read_job(&job(1).to_string()).unwrap();
    assert_eq!(jobs.hear(News::Job(Change::Applied(old)), now()), []);
}

#[test]
fn a_pod_of_somebody_else_under_our_name_is_stepped_around() {
    let (mut jobs, subject) = with_job();
    let step = create(&jobs, &subject);
    let mut foreign = pod("a", 5, "Running");
    foreign["metadata"]["ownerReferences"] = json!([]);
    jobs.done(&subject, &step, &Written::Object(foreign.to_string()), now());
    let again = create(&jobs, &subject);
    let name = |step: &Action| match step {
        Action::CreatePod { name, .. } => name.clone(),
        other => panic!("{other}"),
    };
    assert_ne!(name(&step), name(&again));
}

#[test]
fn pods_of_a_job_that_is_gone_are_let_go_once_the_jobs_are_known() {
    let mut jobs = jobs();
    let all = vec![read_pod(&pod("a", 5, "Running").to_string()).unwrap()];
    let woken = jobs.hear(News::Pod(Change::Reset { all, revision: "6".into(), asked: 0 }), now());
    assert_eq!(asked(&jobs, &woken[0]), [""; 0], "its Job may not be listed yet");
    let woken =
        jobs.hear(News::Job(Change::Reset { all: Vec::new(), revision: "6".into(), asked: 0 }), now());
    assert_eq!(asked(&jobs, &woken[0]), ["RemoveFinalizer"]);
}

#[test]
fn a_refused_pod_pauses_the_making_of_pods_and_nothing_else() {
    let (mut jobs, subject) = with_job();
    let step = create(&jobs, &subject);
    let Refused::Judged(Some(note)) = jobs.refused(&subject, &step, "exceeded quota", now()) else {
        panic!()
    };
    assert_eq!((note.reason, note.message.as_str()), ("FailedCreate", "Error creating: exceeded quota"));
    assert_eq!(asked(&jobs, &subject), ["PatchJobStatus"]);
}

#[test]
fn pods_of_the_built_in_controller_and_of_others_are_not_kept() {
    let mut built_in = pod("a", 1, "Running");
    built_in["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
    let may_be_ours = |text: &str| serde_json::from_str::<PodWire>(text).unwrap().may_be_ours();
    assert!(!may_be_ours(&built_in.to_string()));
    let mut replica = pod("a", 1, "Running");
    replica["metadata"]["finalizers"] = json!([]);
    replica["metadata"]["ownerReferences"][0]["kind"] = "ReplicaSet".into();
    assert!(!may_be_ours(&replica.to_string()));
    assert!(may_be_ours(&pod("a", 1, "Running").to_string()));
}
