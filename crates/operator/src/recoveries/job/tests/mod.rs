//! The view: which changes it applies, and which it ignores as outdated.

use salvor_api::config::Configuration;
use salvor_recovery::Step as _;
use salvor_recovery::{Verdict, objects::PodPhase};
use serde_json::{Value, json};

use super::{
    wire::{read_job, read_pod},
    *,
};
use crate::{
    client::recent_reads::ReadAge,
    engine::recovery::{Known, LiveRecheck, Refused, View},
    execute::{Refusal, Written},
    metrics::Metrics,
    testing::fake_api::{Answer, FakeApi},
    time::Time,
    watch_set::watch::{Moment, Project},
};

mod adoption;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn jobs() -> Jobs {
    let policy = JobPolicy::new(&Configuration::default());
    Jobs::new(Arc::new(policy), Metrics::new(&Time::system()).own(JobMetrics::register))
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

fn ours(job: &Value) -> SeenJob {
    SeenJob::Ours(Box::new(read_job(&job.to_string()).unwrap()))
}

fn with_job() -> (Jobs, Subject) {
    let mut jobs = jobs();
    jobs.on_change(News::Pod(Change::Reset { all: Vec::new(), revision: "1".into(), asked: 0 }), now());
    let all = vec![ours(&job(1))];
    let woken = jobs.on_change(News::Job(Change::Reset { all, revision: "1".into(), asked: 0 }), now());
    (jobs, woken[0].clone())
}

fn applied(pod: &Value) -> News {
    News::Pod(Change::Applied(read_pod(&pod.to_string(), false).unwrap()))
}

fn view(pod: &Value) -> PodView {
    match read_pod(&pod.to_string(), false).unwrap() {
        SeenPod::OfJob { pod, .. } => *pod,
        other => panic!("{other:?}"),
    }
}

/// The names of the steps that are requested now.
fn asked(jobs: &Jobs, subject: &Subject) -> Vec<&'static str> {
    let actions = match jobs.judge(subject, now()).map(|decision| decision.verdict) {
        Some(Verdict::Act { actions, .. }) => actions,
        _ => Vec::new(),
    };
    actions.iter().flat_map(Step::steps).map(Step::name).filter(|name| *name != "Mention").collect()
}

fn create(jobs: &Jobs, subject: &Subject) -> Step {
    let decision = jobs.judge(subject, now()).unwrap();
    decision.verdict.actions()[0].clone()
}

#[test]
fn the_answer_to_our_own_write_is_seen_at_once() {
    let (mut jobs, subject) = with_job();
    let step = create(&jobs, &subject);
    assert_eq!(step.name(), "CreatePod");
    let view = jobs.done(&subject, &step, &Written::Object(pod("a", 5, "Pending").to_string()), now());
    assert_eq!((view, asked(&jobs, &subject)), (View::Synced, vec!["PatchJobStatus"]));
}

#[test]
fn between_two_rounds_of_pods_the_status_is_written() {
    let (mut jobs, subject) = with_job();
    let mut wide = job(2);
    wide["spec"]["parallelism"] = 2.into();
    wide["spec"]["completions"] = 2.into();
    jobs.on_change(News::Job(Change::Applied(ours(&wide))), now());
    let step = create(&jobs, &subject);
    jobs.done(&subject, &step, &Written::Object(pod("a", 5, "Pending").to_string()), now());
    assert_eq!(asked(&jobs, &subject), ["PatchJobStatus"]);
    let step = create(&jobs, &subject);
    wide["metadata"]["resourceVersion"] = "6".into();
    wide["status"] = json!({"startTime": now(), "active": 1});
    jobs.done(&subject, &step, &Written::Object(wide.to_string()), now());
    assert_eq!(asked(&jobs, &subject), ["CreatePod"]);
    assert!(!jobs.jobs["job"].memory.made_pods, "pods come first again");
}

#[test]
fn an_answer_that_comes_after_the_pod_is_gone_does_not_bring_it_back() {
    let (mut jobs, subject) = with_job();
    let step = create(&jobs, &subject);
    jobs.on_change(
        News::Pod(Change::Applied(read_pod(&pod("a", 5, "Pending").to_string(), false).unwrap())),
        now(),
    );
    jobs.on_change(News::Pod(Change::Gone("a".into())), now());
    jobs.done(&subject, &step, &Written::Object(pod("a", 5, "Pending").to_string()), now());
    assert!(jobs.pods.get(&"a".into()).is_none());
}

#[test]
fn an_answer_that_comes_after_the_job_is_gone_does_not_bring_it_back() {
    let (mut jobs, subject) = with_job();
    jobs.on_change(applied(&pod("a", 5, "Running")), now());
    let step = create(&jobs, &subject);
    assert_eq!(step.name(), "PatchJobStatus");
    jobs.on_change(News::Job(Change::Gone("job".into())), now());
    jobs.done(&subject, &step, &Written::Object(job(6).to_string()), now());
    jobs.on_change(News::Pod(Change::Gone("a".into())), now());
    assert_eq!(asked(&jobs, &subject), Vec::<&str>::new());
}

#[test]
fn nothing_is_judged_before_both_lists_are_in() {
    let mut jobs = jobs();
    let all = vec![ours(&job(1))];
    let woken = jobs.on_change(News::Job(Change::Reset { all, revision: "1".into(), asked: 0 }), now());
    assert!(jobs.judge(&woken[0], now()).is_none(), "its pods may be there");
    jobs.on_change(News::Pod(Change::Reset { all: Vec::new(), revision: "1".into(), asked: 0 }), now());
    assert_eq!(asked(&jobs, &woken[0]), ["CreatePod"]);
}

#[test]
fn a_list_that_is_older_than_our_pod_does_not_take_it_away() {
    let (mut jobs, subject) = with_job();
    let step = create(&jobs, &subject);
    jobs.done(&subject, &step, &Written::Object(pod("a", 5, "Pending").to_string()), now());
    jobs.on_change(News::Pod(Change::Reset { all: Vec::new(), revision: "4".into(), asked: 0 }), now());
    assert!(jobs.pods.get(&"a".into()).is_some());
    jobs.on_change(News::Pod(Change::Reset { all: Vec::new(), revision: "6".into(), asked: 0 }), now());
    assert!(jobs.pods.get(&"a".into()).is_none());
}

#[test]
fn what_is_older_than_what_is_known_is_no_news() {
    let (mut jobs, subject) = with_job();
    assert_eq!(jobs.on_change(applied(&pod("a", 9, "Succeeded")), now()), std::slice::from_ref(&subject));
    assert_eq!(jobs.on_change(applied(&pod("a", 7, "Running")), now()), []);
    assert_eq!(asked(&jobs, &subject), ["PatchJobStatus"], "it has succeeded");
    let old = ours(&job(1));
    assert_eq!(jobs.on_change(News::Job(Change::Applied(old)), now()), []);
}

/// A backup was restored: the cluster is back in an earlier state, and revisions continue from there.
#[test]
fn after_revisions_went_backwards_only_what_the_new_lists_show_is_known() {
    let read = |pod: &Value| read_pod(&pod.to_string(), false).unwrap();
    let restored =
        |all: Vec<SeenPod>| News::Pod(Change::Reset { all, revision: Moment::new_history("20"), asked: 0 });
    for pods_first in [true, false] {
        let (mut jobs, subject) = with_job();
        let mut finished = job(90);
        finished["status"] = json!({"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]});
        jobs.on_change(applied(&pod("deleted", 50, "Running")), now());
        jobs.on_change(News::Pod(Change::Gone("deleted".into())), now());
        jobs.on_change(applied(&pod("made-since", 95, "Running")), now());
        jobs.on_change(News::Job(Change::Applied(ours(&finished))), now());
        assert_eq!(asked(&jobs, &subject), ["RemoveFinalizer"]);

        let all = vec![ours(&job(10))];
        let jobs_again = News::Job(Change::Reset { all, revision: Moment::new_history("20"), asked: 0 });
        let pods_again = restored(vec![read(&pod("deleted", 9, "Running"))]);
        let both = if pods_first { [pods_again, jobs_again] } else { [jobs_again, pods_again] };
        for (number, news) in both.into_iter().enumerate() {
            assert!(jobs.on_change(news, now()).contains(&subject));
            assert_eq!(
                jobs.judge(&subject, now()).is_some(),
                number == 1,
                "one list alone is half the truth"
            );
        }
        assert!(jobs.pods.get(&"made-since".into()).is_none(), "in this history it was never made");
        assert!(jobs.pods.get(&"deleted".into()).is_some(), "in this history it was never deleted");
        assert_eq!(asked(&jobs, &subject), ["PatchJobStatus"], "it runs, and has one pod");
        // Events from now on have lower revisions than the known ones.
        assert_eq!(jobs.on_change(applied(&pod("deleted", 21, "Succeeded")), now()).len(), 1);
        assert_eq!(jobs.pods.get(&"deleted".into()).map(|(_, pod)| pod.phase), Some(PodPhase::Succeeded));
    }
}

/// If the restore went unnoticed: revisions are as high as before, but the history is another one.
#[test]
fn a_list_is_believed_even_where_it_shows_an_earlier_state_than_the_one_known() {
    let (mut jobs, subject) = with_job();
    let mut suspended = job(90);
    suspended["spec"]["suspend"] = true.into();
    jobs.on_change(News::Job(Change::Applied(ours(&suspended))), now());
    jobs.on_change(applied(&pod("a", 91, "Succeeded")), now());
    jobs.on_change(applied(&pod("b", 92, "Running")), now());
    jobs.on_change(News::Pod(Change::Gone("b".into())), now());
    let all = ["a", "b"].map(|uid| read_pod(&pod(uid, 70, "Running").to_string(), false).unwrap()).into();
    jobs.on_change(News::Pod(Change::Reset { all, revision: "100".into(), asked: 0 }), now());
    let all = vec![ours(&job(80))];
    jobs.on_change(News::Job(Change::Reset { all, revision: "100".into(), asked: 0 }), now());
    assert_eq!(jobs.jobs["job"].view.resource_version, "80");
    assert_eq!(jobs.pods.get(&"a".into()).map(|(_, pod)| pod.phase), Some(PodPhase::Running));
    assert!(jobs.pods.get(&"b".into()).is_some(), "what a list shows was not deleted before");
    assert!(jobs.judge(&subject, now()).is_some());
    // The answer to our own write, which is later than the list, stays.
    jobs.on_change(applied(&pod("a", 103, "Failed")), now());
    let all = vec![read_pod(&pod("a", 70, "Running").to_string(), false).unwrap()];
    jobs.on_change(News::Pod(Change::Reset { all, revision: "102".into(), asked: 0 }), now());
    assert_eq!(jobs.pods.get(&"a".into()).map(|(_, pod)| pod.phase), Some(PodPhase::Failed));
}

#[test]
fn a_pod_of_somebody_else_under_our_name_is_stepped_around() {
    let (mut jobs, subject) = with_job();
    let step = create(&jobs, &subject);
    let mut foreign = pod("a", 5, "Running");
    foreign["metadata"]["ownerReferences"] = json!([]);
    jobs.done(&subject, &step, &Written::Object(foreign.to_string()), now());
    let again = create(&jobs, &subject);
    let name = |step: &Step| match step {
        Step::CreatePod { name, .. } => name.clone(),
        other => panic!("{other}"),
    };
    assert_ne!(name(&step), name(&again));
}

/// A name may be reused once its pod is gone, and is then another pod's.
#[test]
fn each_pod_that_is_made_is_told_of_once() {
    let (jobs, subject) = with_job();
    let step = create(&jobs, &subject);
    let told = |step: &Step, pod: &Value| {
        jobs.worth_telling(&subject, step, &Written::Object(pod.to_string()))
            .map(|note| (note.name, note.message))
    };
    let mut second = pod("a", 7, "Pending");
    second["metadata"]["uid"] = "b".into();
    let message = "Created pod: a".to_owned();
    assert_eq!(told(&step, &pod("a", 5, "Pending")), Some(("created.a.job".into(), message.clone())));
    assert_eq!(told(&step, &pod("a", 6, "Running")), Some(("created.a.job".into(), message.clone())));
    assert_eq!(told(&step, &second), Some(("created.b.job".into(), message)));
    let mut foreign = pod("a", 5, "Running");
    foreign["metadata"]["ownerReferences"] = json!([]);
    assert_eq!(told(&step, &foreign), None);
    let Step::CreatePod { job, name, body, reason, .. } = step else { panic!("{step}") };
    let unrecorded = Step::CreatePod { job, name, body, reason, told: false };
    assert_eq!(told(&unrecorded, &second), None, "nobody reads the hundredth");
}

#[test]
fn pods_of_a_job_that_is_gone_are_let_go_once_the_jobs_are_known() {
    let mut jobs = jobs();
    let all = vec![read_pod(&pod("a", 5, "Running").to_string(), false).unwrap()];
    let woken = jobs.on_change(News::Pod(Change::Reset { all, revision: "6".into(), asked: 0 }), now());
    assert_eq!(asked(&jobs, &woken[0]), [""; 0], "its Job may not be listed yet");
    let woken =
        jobs.on_change(News::Job(Change::Reset { all: Vec::new(), revision: "6".into(), asked: 0 }), now());
    assert_eq!(asked(&jobs, &woken[0]), ["RemoveFinalizer"]);
}

#[test]
fn pods_that_were_orphaned_before_the_end_of_their_job_was_told_are_let_go() {
    let (mut jobs, subject) = with_job();
    let mut selecting = job(2);
    selecting["spec"]["selector"] = json!({"matchLabels": {"job": "j"}});
    jobs.on_change(News::Job(Change::Applied(ours(&selecting))), now());
    let mut orphan = pod("a", 5, "Running");
    orphan["metadata"]["labels"] = json!({"job": "j"});
    jobs.on_change(applied(&orphan), now());
    orphan["metadata"]["resourceVersion"] = "6".into();
    orphan["metadata"]["ownerReferences"] = json!([]);
    assert!(
        jobs.on_change(applied(&orphan), now()).iter().all(|woken| *woken == subject),
        "it might adopt it"
    );
    let woken = jobs.on_change(News::Job(Change::Gone("job".into())), now());
    let let_go = woken.iter().filter(|subject| asked(&jobs, subject) == ["RemoveFinalizer"]).count();
    assert_eq!(let_go, 1, "{woken:?}");
}

#[test]
fn a_refused_pod_pauses_the_making_of_pods_and_nothing_else() {
    let (mut jobs, subject) = with_job();
    let step = create(&jobs, &subject);
    let Refused::Judged(Some(note)) =
        jobs.refused(&subject, &step, &Refusal::saying("exceeded quota"), now())
    else {
        panic!()
    };
    assert_eq!((&*note.reason, note.message.as_str()), ("FailedCreate", "Error creating: exceeded quota"));
    assert_eq!(asked(&jobs, &subject), ["PatchJobStatus"]);
}

#[test]
fn pods_of_the_built_in_controller_are_kept_by_who_stands_in_for_it_and_those_of_others_by_nobody() {
    let seen = |finalizers: Value, owner: Option<(&str, bool)>, stands_in: bool| {
        let mut pod = pod("a", 1, "Running");
        pod["metadata"]["finalizers"] = finalizers;
        match owner {
            Some((kind, controller)) => {
                pod["metadata"]["ownerReferences"][0]["kind"] = kind.into();
                pod["metadata"]["ownerReferences"][0]["controller"] = controller.into();
            }
            None => pod["metadata"]["ownerReferences"] = json!([]),
        }
        PodsOfJobs { stands_in, interest: Interest::default() }.keep(serde_json::from_value(pod).unwrap())
    };
    let ours = json!(["job.salvor.dev/tracking"]);
    let built_in = json!(["batch.kubernetes.io/job-tracking"]);
    for (finalizers, owner, kept, kept_by_who_stands_in) in [
        (&ours, Some(("Job", true)), true, true),
        (&ours, Some(("ReplicaSet", true)), true, true),
        (&built_in, Some(("Job", true)), false, true),
        (&built_in, Some(("ReplicaSet", true)), false, false),
        (&json!([]), Some(("Job", true)), true, true),
        (&json!([]), Some(("ReplicaSet", true)), false, false),
        (&json!([]), Some(("ConfigMap", false)), false, false),
        (&json!([]), None, false, false),
        (&ours, None, true, true),
    ] {
        let matters = |seen: Option<SeenPod>| seen.is_some_and(|seen| !matches!(seen, SeenPod::Bare { .. }));
        let is_kept = |stands_in| matters(seen(finalizers.clone(), owner, stands_in));
        let expected = (kept, kept_by_who_stands_in);
        assert_eq!((is_kept(false), is_kept(true)), expected, "{finalizers} {owner:?}");
    }
    for (owner, adoptable) in [(("ConfigMap", false), true), (("ReplicaSet", true), false)] {
        let Some(SeenPod::Stray(stray)) = seen(ours.clone(), Some(owner), false) else { panic!("{owner:?}") };
        assert_eq!(stray.adoptable, adoptable, "who is no controller does not look after it: {owner:?}");
    }
}

/// A Job that the built-in controller ran until it was disabled.
#[tokio::test]
async fn pods_that_the_built_in_controller_made_are_their_jobs_unless_another_controller_is_named() {
    for (managed_by, expected) in [
        (json!(null), vec!["PatchJobStatus"]),
        (json!("kubernetes.io/job-controller"), vec!["PatchJobStatus"]),
        (json!("example.com/controller"), vec![]),
    ] {
        let mut live = job(1);
        live["spec"]["managedBy"] = managed_by.clone();
        let policy = JobPolicy { unmanaged_jobs: true, ..JobPolicy::new(&Configuration::default()) };
        let policy = Arc::new(policy);
        let mut jobs = Jobs::new(policy.clone(), Metrics::new(&Time::system()).own(JobMetrics::register));
        let mut built_in = pod("a", 5, "Running");
        built_in["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
        let kept = PodsOfJobs { stands_in: true, interest: Interest::default() };
        let all = vec![kept.keep(serde_json::from_value(built_in).unwrap()).unwrap()];
        jobs.on_change(News::Pod(Change::Reset { all, revision: "5".into(), asked: 0 }), now());
        let all = OurJobs(policy).keep(serde_json::from_value(live.clone()).unwrap());
        let all = all.into_iter().collect();
        let woken = jobs.on_change(News::Job(Change::Reset { all, revision: "5".into(), asked: 0 }), now());
        assert_eq!(asked(&jobs, &woken[0]), expected, "{managed_by}");
        let api = FakeApi::new(move |_| Answer::Json(200, live.clone()));
        let decision = jobs
            .recheck(&woken[0], now())
            .ask(&api.client, Known::Nothing, now(), &mut ReadAge::default())
            .await;
        let steps = decision.unwrap().unwrap().verdict.actions().to_vec();
        assert_eq!(steps.iter().map(Step::name).collect::<Vec<_>>(), expected, "{managed_by}, live");
    }
}

/// A pod failure policy also applies to a Terminating pod, if its Job fails meanwhile.
#[test]
fn conditions_are_kept_of_pods_that_have_failed_or_are_being_deleted() {
    for (phase, deleted, kept) in
        [("Running", false, 0), ("Running", true, 1), ("Failed", false, 1), ("Succeeded", false, 0)]
    {
        let mut pod = pod("a", 1, phase);
        pod["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True"}]);
        if deleted {
            pod["metadata"]["deletionTimestamp"] = "2027-01-15T08:01:00Z".into();
        }
        assert_eq!(view(&pod).conditions.len(), kept, "{phase} {deleted}");
    }
}

#[test]
fn a_pod_that_nobody_owns_is_let_go_when_it_is_deleted_although_a_job_matches_it() {
    let (mut jobs, subject) = with_job();
    let mut selecting = job(2);
    selecting["spec"]["selector"] = json!({"matchLabels": {"job": "j"}});
    jobs.on_change(News::Job(Change::Applied(ours(&selecting))), now());
    let mut stray = pod("a", 5, "Running");
    stray["metadata"]["labels"] = json!({"job": "j"});
    stray["metadata"]["ownerReferences"] = json!([]);
    assert_eq!(jobs.on_change(applied(&stray), now()), [subject], "it might adopt it");
    stray["metadata"]["resourceVersion"] = "6".into();
    stray["metadata"]["deletionTimestamp"] = "2027-01-15T08:01:00Z".into();
    let woken = jobs.on_change(applied(&stray), now());
    let let_go = |woken: &[Subject]| {
        woken.iter().filter(|subject| asked(&jobs, subject) == ["RemoveFinalizer"]).count()
    };
    assert_eq!(let_go(&woken), 1, "{woken:?}");
    assert_eq!(let_go(&jobs.subjects()), 1, "also when all are looked at");
}

/// Its pods lose their finalizer if the Job is gone, or was ours only while we managed Jobs without `managedBy`; not if
/// it is ours.
#[tokio::test]
async fn leftovers_are_let_go_only_after_a_live_look_at_their_job() {
    for (live, lets_go) in [
        (Some(Some("salvor.dev/job-controller")), false),
        (Some(None), true),
        (Some(Some("example.com/controller")), true),
        (None, true),
    ] {
        let api = FakeApi::new(move |_| match live {
            Some(managed_by) => {
                let mut job = job(9);
                job["spec"]["managedBy"] = json!(managed_by);
                Answer::Json(200, job)
            }
            None => Answer::Refused(404, "not found"),
        });
        let mut jobs = jobs();
        jobs.on_change(News::Job(Change::Reset { all: Vec::new(), revision: "1".into(), asked: 0 }), now());
        jobs.on_change(News::Pod(Change::Reset { all: Vec::new(), revision: "1".into(), asked: 0 }), now());
        let woken = jobs.on_change(applied(&pod("a", 5, "Running")), now());
        assert_eq!(asked(&jobs, &woken[0]), ["RemoveFinalizer"]);
        let decision = jobs
            .recheck(&woken[0], now())
            .ask(&api.client, Known::Nothing, now(), &mut ReadAge::default())
            .await;
        let actions = decision.unwrap().unwrap().verdict.actions().to_vec();
        assert_eq!(actions.iter().any(|a| a.name() == "RemoveFinalizer"), lets_go, "{live:?}: {actions:?}");
    }
}

#[test]
fn jobs_of_other_controllers_are_counted_once_each() {
    let metrics = Metrics::new(&Time::system());
    let mut jobs =
        Jobs::new(Arc::new(JobPolicy::new(&Configuration::default())), metrics.own(JobMetrics::register));
    let foreign = |uid: &str, managed_by: String| {
        let mut job = job(1);
        job["metadata"]["uid"] = uid.into();
        job["spec"]["managedBy"] = managed_by.into();
        OurJobs(jobs.policy.clone()).keep(serde_json::from_value(job).unwrap())
    };
    assert!(foreign("c", "kubernetes.io/job-controller".into()).is_none());
    let kueue = foreign("k", "kueue.x-k8s.io/multikueue".into());
    // Any user who may create Jobs can make names up.
    let many = (0..3000).map(|n| foreign(&n.to_string(), format!("x/y{n}")));
    let twice = (0..5).map(|n| foreign(&n.to_string(), format!("x/y{n}")));
    let all: Vec<SeenJob> = many.chain(twice).chain([kueue]).map(Option::unwrap).collect();
    for seen in all {
        assert!(jobs.on_change(News::Job(Change::Applied(seen)), now()).is_empty());
    }
    let text = metrics.render();
    let name = "job_controller_jobs_by_external_controller_total";
    let mut lines: Vec<&str> = text.lines().filter(|line| line.starts_with(name)).collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            format!("{name}{{controller_name=\"kueue.x-k8s.io/multikueue\"}} 1"),
            format!("{name}{{controller_name=\"other\"}} 3000"),
        ]
    );
}

#[test]
fn ended_pods_are_counted_when_they_come_to_wait_and_when_they_are_let_go() {
    let metrics = Metrics::new(&Time::system());
    let mut jobs =
        Jobs::new(Arc::new(JobPolicy::new(&Configuration::default())), metrics.own(JobMetrics::register));
    jobs.on_change(applied(&pod("a", 5, "Running")), now());
    jobs.on_change(applied(&pod("a", 6, "Succeeded")), now());
    jobs.on_change(applied(&pod("b", 7, "Failed")), now());
    let mut free = pod("a", 8, "Succeeded");
    free["metadata"]["finalizers"] = json!([]);
    jobs.on_change(applied(&free), now());
    let text = metrics.render();
    let name = "job_controller_terminated_pods_tracking_finalizer_total";
    assert!(text.contains(&format!("{name}{{event=\"add\"}} 2\n")), "{text}");
    assert!(text.contains(&format!("{name}{{event=\"delete\"}} 1\n")), "{text}");
}

#[test]
fn a_write_that_the_watch_shows_before_its_answer_is_counted_all_the_same() {
    let metrics = Metrics::new(&Time::system());
    let mut jobs =
        Jobs::new(Arc::new(JobPolicy::new(&Configuration::default())), metrics.own(JobMetrics::register));
    let subject = jobs.on_change(News::Job(Change::Applied(ours(&job(1)))), now()).remove(0);
    let mut written = job(2);
    written["status"] = json!({"succeeded": 3, "failed": 1});
    let status = read_job(&written.to_string()).unwrap().status;
    jobs.on_change(News::Job(Change::Applied(ours(&written))), now());
    let Subject::Job(reference) = &subject else { panic!() };
    let step = Step::PatchJobStatus {
        job: reference.clone(),
        resource_version: "1".into(),
        status: Box::new(status),
        used_names: None,
    };
    for _ in 0..2 {
        jobs.done(&subject, &step, &Written::Object(written.to_string()), now());
    }
    let text = metrics.render();
    let name = "job_controller_job_pods_finished_total{completion_mode=\"NonIndexed\"";
    assert!(text.contains(&format!("{name},result=\"succeeded\"}} 3\n")), "{text}");
    assert!(text.contains(&format!("{name},result=\"failed\"}} 1\n")), "{text}");
}

fn finished(revision: u64) -> Value {
    let mut finished = job(revision);
    finished["status"] = json!({"succeeded": 2, "conditions": [{"type": "Complete", "status": "True"}]});
    finished
}

fn free(uid: &str, revision: u64) -> Value {
    let mut free = pod(uid, revision, "Succeeded");
    free["metadata"]["finalizers"] = json!([]);
    free
}

#[test]
fn of_a_job_that_has_ended_only_pods_with_our_finalizer_are_kept_and_old_news_bring_none_back() {
    let (mut jobs, subject) = with_job();
    for news in [applied(&free("a", 5)), applied(&pod("b", 6, "Succeeded")), applied(&pod("c", 7, "Running"))]
    {
        jobs.on_change(news, now());
    }
    jobs.on_change(News::Job(Change::Applied(ours(&finished(8)))), now());
    assert_eq!(asked(&jobs, &subject), ["RemoveFinalizer", "RemoveFinalizer"], "b and c are let go");
    jobs.on_change(applied(&free("b", 9)), now());
    assert_eq!(asked(&jobs, &subject), ["RemoveFinalizer"]);
    for late in [applied(&pod("a", 4, "Running")), applied(&pod("b", 6, "Succeeded"))] {
        assert!(jobs.on_change(late, now()).is_empty());
    }
    assert_eq!(jobs.pods.uids(), ["c"]);
    // The Job is deleted without its pods: the next Job with this selector may adopt them.
    let mut orphaned = free("a", 10);
    orphaned["metadata"]["ownerReferences"] = json!([]);
    orphaned["metadata"]["labels"] = json!({"controller-uid": "job"});
    jobs.on_change(applied(&orphaned), now());
    assert!(jobs.strays.get(&"a".into()).is_some());
    jobs.on_change(News::Pod(Change::Gone("a".into())), now());
    jobs.pod_answered(&"a".into(), &Written::Object(orphaned.to_string()));
    assert!(jobs.strays.get(&"a".into()).is_none(), "its end is its end");
}

#[test]
fn a_pod_is_found_wherever_others_left_a_place() {
    let mut jobs = jobs();
    for (at, uid) in ["a", "b", "c", "d"].into_iter().enumerate() {
        jobs.on_change(applied(&pod(uid, 10 + at as u64, "Running")), now());
    }
    for gone in ["a", "d"] {
        jobs.on_change(News::Pod(Change::Gone(gone.into())), now());
    }
    jobs.on_change(applied(&pod("c", 20, "Failed")), now());
    let known = |uid: &str| jobs.pods.get(&uid.into()).map(|(_, pod)| (pod.pod.uid.clone(), pod.phase));
    assert_eq!(known("a"), None);
    assert_eq!(known("b"), Some(("b".into(), PodPhase::Running)));
    assert_eq!(known("c"), Some(("c".into(), PodPhase::Failed)));
    assert_eq!(jobs.pods.all().count(), 2);
}

/// The names are duplicated, because a derived decoder needs them as literals.
#[test]
fn what_is_written_to_annotations_is_read_from_them() {
    use salvor_api::names::job::{COMPLETION_INDEX, INDEX_FAILURE_COUNT, INDEX_IGNORED_FAILURE_COUNT};
    let mut annotated = pod("a", 1, "Running");
    annotated["metadata"]["annotations"] =
        json!({COMPLETION_INDEX: "3", INDEX_FAILURE_COUNT: "2", INDEX_IGNORED_FAILURE_COUNT: "1"});
    let seen = view(&annotated);
    let failures = seen.earlier_failures;
    assert_eq!((seen.index, failures.counted, failures.ignored), (Some(3), 2, 1));
    assert!(seen.unreadable.is_none());
    annotated["metadata"]["annotations"][INDEX_FAILURE_COUNT] = "many".into();
    let unreadable = view(&annotated).unreadable.unwrap().to_string();
    assert!(unreadable.contains(INDEX_FAILURE_COUNT) && unreadable.contains("\"many\""), "{unreadable}");
    let mut marked = job(1);
    marked["metadata"]["annotations"] = json!({salvor_api::names::job::USED_NAMES: "{}"});
    assert_eq!(read_job(&marked.to_string()).unwrap().used_names.as_deref(), Some("{}"));
}
