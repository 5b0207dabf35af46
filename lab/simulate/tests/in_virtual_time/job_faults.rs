//! A Job whose controller is killed before and after every single write, also under every fault: it ends the same, and
//! every pod is created once and counted once.

use std::{collections::BTreeSet, time::Duration};

use http::Method;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use salvor_api::config::Configuration;
use salvor_apiserver::{ChangeKind, Effect, Fault, Faults};
use salvor_simulate::{CrashPoint, Line, Process, in_virtual_time};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::stage::Stage;

const FINALIZER: &str = "job.salvor.dev/tracking";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// The interval at which the test, which plays the kubelet, checks the pods.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// By then every Job is over, whatever happens.
const LONG: Duration = Duration::from_secs(1200);
/// More writes than any of these Jobs takes.
const MOST_WRITES: u32 = 60;

/// The Job, and what happens to its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// The first pod of an index fails, all others succeed.
    Indexed,
    /// The first pod fails, all others succeed.
    Plain,
    /// The first pod fails, and that exceeds the limit.
    Fails,
}

impl Flow {
    fn job(self) -> Job {
        let mut spec = json!({
            "managedBy": "salvor.dev/job-controller", "completions": 3, "parallelism": 2,
            "podReplacementPolicy": "Failed",
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work"}]}},
        });
        match self {
            Self::Indexed => spec["completionMode"] = "Indexed".into(),
            Self::Plain => {}
            Self::Fails => spec["backoffLimit"] = 0.into(),
        }
        serde_json::from_value(json!({"metadata": {"name": "work"}, "spec": spec})).unwrap()
    }

    /// The end that it must reach: counters, conditions, and the number of pods.
    fn end(self) -> &'static str {
        match self {
            Self::Indexed => "S3 F1 SuccessCriteriaMet Complete indexes 0-2",
            Self::Plain => "S3 F1 SuccessCriteriaMet Complete indexes ",
            Self::Fails => "S0 F2 FailureTarget Failed indexes ",
        }
    }

    /// The number of pods that are created; none is created twice, none is left out.
    fn pods(self) -> usize {
        match self {
            Self::Indexed | Self::Plain => 4,
            Self::Fails => 2,
        }
    }
}

/// Every kind of call meets each of these once in the life of a process.
const EFFECTS: [Effect; 10] = [
    Effect::Delay(Duration::from_secs(3)),
    Effect::Conflict,
    Effect::TooManyRequests(7),
    Effect::InternalError,
    Effect::AnswerLost,
    Effect::RequestLost,
    Effect::Unanswered { carried_out: true },
    Effect::Unanswered { carried_out: false },
    Effect::CutAfter(1),
    Effect::Lag(Duration::from_secs(30)),
];

fn strike(faults: &Faults, effect: Option<Effect>) {
    faults.clear();
    let Some(effect) = effect else { return };
    let add = |method: Method, path: &str, times: u32| {
        faults.add(Fault::new(effect).method(method).path(path).times(times));
    };
    add(Method::POST, "/pods", 1);
    add(Method::PATCH, "/status", 2);
    add(Method::PATCH, "/pods/", 1);
    add(Method::DELETE, "/pods/", 1);
    if effect != Effect::Conflict {
        add(Method::GET, "limit=", 1);
        add(Method::GET, "watch=true", 2);
    }
}

fn configuration() -> Configuration {
    let lines =
        "controllers: [job]\nleaderElection: {leaseDuration: 60s, renewDeadline: 40s, retryPeriod: 20s}";
    let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
    salvor_api::config::parse(&format!("{head}{lines}")).unwrap()
}

/// Plays the kubelet: all pods terminate, the very first one with a failure. Where that ends the Job, the others keep
/// running.
async fn end_pods(stage: &Stage, flow: Flow, ended: &mut BTreeSet<String>) {
    let list = stage.pods().list(&Default::default()).await.unwrap();
    // A crash may have come between the first two.
    if ended.is_empty() && list.items.len() < 2 {
        return;
    }
    for pod in list.items {
        let uid = pod.uid().unwrap();
        let over = pod.status.as_ref().and_then(|s| s.phase.as_deref()).is_some_and(|p| p != "Pending");
        if over || ended.contains(&uid) || pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let code = i32::from(ended.is_empty());
        if code == 0 && flow == Flow::Fails {
            continue;
        }
        ended.insert(uid);
        let now = stage.cluster.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let state = json!({"terminated": {"exitCode": code, "finishedAt": now, "startedAt": now}});
        let container = json!({
            "name": "main", "image": "work", "imageID": "", "ready": false, "restartCount": 0, "state": state,
        });
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let patch = Patch::Strategic(json!({"status": {"phase": phase, "containerStatuses": [container]}}));
        stage.pods().patch_status(&pod.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }
}

/// True if the Job is finished and its pods need no more accounting.
async fn is_over(stage: &Stage, jobs: &Api<Job>) -> bool {
    let end = describe(&jobs.get("work").await.unwrap());
    let pods = stage.pods().list(&Default::default()).await.unwrap();
    (end.contains(" Complete ") || end.contains(" Failed ")) && !pods.items.iter().any(is_tracked)
}

fn is_tracked(pod: &Pod) -> bool {
    pod.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

fn describe(job: &Job) -> String {
    let status: Value = serde_json::to_value(job.status.clone().unwrap_or_default()).unwrap();
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let held = conditions.iter().filter(|c| c["status"] == "True").map(|c| c["type"].as_str().unwrap());
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    let indexes = status["completedIndexes"].as_str().unwrap_or("");
    format!(
        "S{} F{} {} indexes {indexes}",
        number("succeeded"),
        number("failed"),
        held.collect::<Vec<_>>().join(" ")
    )
}

/// Returns all problems of its end, and the number of processes of the controller.
async fn play(flow: Flow, crash: Option<CrashPoint>, effect: Option<Effect>) -> (Vec<String>, u32) {
    let stage = Stage::new(1).await;
    let jobs: Api<Job> = Api::default_namespaced(stage.client.clone());
    jobs.create(&PostParams::default(), &flow.job()).await.unwrap();
    let (configuration, faults) = (configuration(), Faults::default());
    let start = |life: u32, line: Line| {
        strike(&faults, effect);
        Process::start(&stage.cluster, &format!("salvor-{life}"), &configuration, line, &faults)
    };
    let (mut lives, mut process) = (1, start(1, crash.map(Line::dying).unwrap_or_default()));
    let mut ended = BTreeSet::new();
    let began = Instant::now();
    let mut next_look = began + LOOK_EVERY;
    while next_look < began + LONG {
        let line = process.line().clone();
        tokio::select! {
            biased;
            () = line.died() => {
                lives += 1;
                process = start(lives, Line::default());
            }
            () = sleep_until(next_look) => {
                end_pods(&stage, flow, &mut ended).await;
                next_look += LOOK_EVERY;
                if is_over(&stage, &jobs).await {
                    break;
                }
            }
        }
    }
    process.stop().await;

    let mut wrong = Vec::new();
    let end = describe(&jobs.get("work").await.unwrap());
    if end != flow.end() {
        wrong.push(format!("it ended as {end} instead of {}", flow.end()));
    }
    let made = stage.happenings();
    let made = made.iter().filter(|h| h.change == ChangeKind::Added && h.resource == "pods").count();
    if made != flow.pods() {
        wrong.push(format!("{made} pods were made instead of {}", flow.pods()));
    }
    let left: Vec<Pod> = stage.pods().list(&Default::default()).await.unwrap().items;
    for pod in left.iter().filter(|pod| is_tracked(pod)) {
        wrong.push(format!("{} still has the finalizer", pod.name_any()));
    }
    let at = |pod: &Pod| pod.annotations().get(INDEX).cloned();
    let indexed = left.iter().filter(|pod| at(pod).is_some()).count();
    if indexed != if flow == Flow::Indexed { 4 } else { 0 } {
        wrong.push(format!("{indexed} pods have an index"));
    }
    (wrong, lives)
}

fn all_points_of(flow: Flow, effect: Option<Effect>) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut note = |crash: Option<CrashPoint>, wrong: Vec<String>| {
        if !wrong.is_empty() {
            complaints.push(format!("{flow:?}, crash {crash:?}, {effect:?}:\n  {}", wrong.join("\n  ")));
        }
    };
    note(None, in_virtual_time(play(flow, None, effect)).0);
    for write in 1..MOST_WRITES {
        for crash in [CrashPoint::Before(write), CrashPoint::After(write)] {
            let (wrong, lives) = in_virtual_time(play(flow, Some(crash), effect));
            note(Some(crash), wrong);
            if lives == 1 {
                assert!(write > 8, "{flow:?} takes more than {write} writes");
                return complaints;
            }
        }
    }
    panic!("{flow:?} takes {MOST_WRITES} writes");
}

fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "{} endings are wrong:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn a_controller_that_dies_at_any_write_counts_every_pod_once() {
    let flows = [Flow::Indexed, Flow::Plain, Flow::Fails];
    assert_none(&flows.into_iter().flat_map(|flow| all_points_of(flow, None)).collect::<Vec<_>>());
}

#[test]
fn every_fault_alone_changes_nothing() {
    let mut wrong = Vec::new();
    for flow in [Flow::Indexed, Flow::Plain, Flow::Fails] {
        for effect in EFFECTS {
            let found = in_virtual_time(play(flow, None, Some(effect))).0;
            wrong.extend(found.into_iter().map(|problem| format!("{flow:?}, {effect:?}: {problem}")));
        }
    }
    assert_none(&wrong);
}

#[test]
fn a_lost_answer_and_a_crash_at_any_write_change_nothing() {
    assert_none(&all_points_of(Flow::Indexed, Some(Effect::AnswerLost)));
}
