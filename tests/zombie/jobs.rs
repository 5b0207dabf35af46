//! A Job that the recovery of its pods would fail: most of its pods are on one lost node, and its `backoffLimit` is the
//! default.

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod, events::v1::Event};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use salvor_nodes::Fault;
use salvor_testkit::{
    Arena, Site, wait,
    workloads::{PodShape, job},
};
use serde_json::{Value, json};

use crate::{
    stage::{Stage, phase},
    story::{finished, is_ready, job_controller, node_of},
};

/// Half of them are lost, which is more than six. The others are healthy.
const WORKERS: usize = 16;

/// Recovers the pods of one Job with this setting. The minimum unreachable duration makes all of them due at once,
/// however long their eviction took.
fn settings(app: &str, lost_pods: &str) -> String {
    format!(
        "
failureRecoveryPolicy:
  minimumUnreachableDuration: 30s
  jobs: {{lostPods: {lost_pods}}}
  rules:
  - terminatePod:
      podLabelSelector: {{matchLabels: {{app: {app}}}}}
      forcefulTerminationGracePeriod: 0s
"
    )
}

async fn start(arena: &Arena<'_>, name: &str) {
    let jobs: Api<Job> = Api::default_namespaced(arena.client());
    let spec = json!({"completions": WORKERS, "parallelism": WORKERS, "podReplacementPolicy": "Failed"});
    let spread = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": name}},
    }]);
    let shape = PodShape::new().script("sigterm-exit-code", "0").spec("topologySpreadConstraints", spread);
    jobs.create(&PostParams::default(), &job(name, spec, &shape)).await.unwrap();
}

fn workers<'a>(pods: &'a [Pod], job: &'a str) -> impl Iterator<Item = &'a Pod> {
    pods.iter().filter(move |pod| pod.labels().get("app").is_some_and(|app| app == job))
}

async fn told(arena: &Arena<'_>, reason: &str, name: &str) -> Vec<Event> {
    let events: Api<Event> = Api::default_namespaced(arena.client());
    let is = |event: &Event| {
        event.reason.as_deref() == Some(reason)
            && event.regarding.as_ref().and_then(|it| it.name.as_deref()) == Some(name)
    };
    events.list(&ListParams::default()).await.unwrap().into_iter().filter(is).collect()
}

async fn a_job_survives_the_loss_of_more_pods_than_its_limit_if_that_is_asked_for(site: Site) {
    let stage = Stage::on(site.control_plane().await);
    let _job_controller = (site == Site::Embedded).then(|| job_controller(&stage));
    let arena = stage.plane.arena("limits").await;
    let fleet = arena.fleet(2).await;
    let jobs: Api<Job> = Api::default_namespaced(arena.client());
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let names = ["holds", "counts", "raises"];
    for name in names {
        start(&arena, name).await;
    }
    let all = ListParams::default();
    let running = wait::for_list(&pods, &all, "all workers run", |all: &[Pod]| {
        all.len() == names.len() * WORKERS && all.iter().all(is_ready)
    })
    .await;
    let lost_node = node_of(&running[0]);
    let is_lost = |pod: &&Pod| node_of(pod) == lost_node;
    let lost_of = |name: &str| workers(&running, name).filter(is_lost).count();
    assert!(names.iter().all(|name| (7..WORKERS).contains(&lost_of(name))), "{:?}", names.map(lost_of));
    fleet.inject(&lost_node, Fault::Crash).await.unwrap();
    for name in names {
        let hanging = i32::try_from(lost_of(name)).ok();
        wait::for_object(&jobs, name, "its lost pods hang", |job: &Job| {
            job.status.as_ref().is_some_and(|status| status.terminating == hanging)
        })
        .await;
    }

    // Hold: each pod reports why it waits, and none is given up.
    let salvor = stage.salvor(&settings("holds", "Hold")).await;
    let events: Api<Event> = Api::default_namespaced(arena.client());
    wait::for_list(&events, &all, "every pod that waits says so", |events: &[Event]| {
        let waits = |pod: &Pod| {
            events.iter().any(|event| {
                event.reason.as_deref() == Some("JobWouldFail")
                    && event.regarding.as_ref().and_then(|it| it.uid.clone()) == pod.uid()
            })
        };
        workers(&running, "holds").filter(is_lost).all(waits)
            && events.iter().any(|event| {
                event.reason.as_deref() == Some("JobWouldFail")
                    && event.regarding.as_ref().and_then(|it| it.name.as_deref()) == Some("holds")
            })
    })
    .await;
    salvor
        .shows(&format!("salvor_waiting{{recovery=\"zombie\",reason=\"JobWouldFail\"}} {}", lost_of("holds")))
        .await;
    let now = pods.list(&all.clone().labels("app=holds")).await.unwrap();
    assert!(now.iter().all(|pod| phase(pod) != "Failed"), "{}", salvor.program.output());
    assert_eq!(jobs.get("holds").await.unwrap().spec.unwrap().backoff_limit, Some(6));
    drop(salvor);

    // Count: the Job fails, together with its healthy pods.
    let salvor = stage.salvor(&settings("counts", "Count")).await;
    let failed =
        wait::for_object(&jobs, "counts", "the Job fails", |job| finished(job, "FailureTarget")).await;
    assert_eq!(failed.spec.unwrap().backoff_limit, Some(6));
    drop(salvor);

    // RaiseLimit, the default, with a crash between the raise and the first pod.
    let raise = settings("raises", "RaiseLimit");
    let arguments = &["--leader-elect=false"];
    let crash = &[("SALVOR_TEST_CRASH", "after:1")];
    let first = stage.salvor_as(&stage.plane.admin(), &raise, arguments, crash).await;
    assert_eq!(first.program.exit_code().await, Some(86), "{}", first.program.output());
    let lost = lost_of("raises");
    let limit = i32::try_from(6 + lost).ok();
    let raised = jobs.get("raises").await.unwrap();
    assert_eq!(raised.spec.as_ref().unwrap().backoff_limit, limit, "{}", first.program.output());
    let record: Value =
        serde_json::from_str(&raised.annotations()["salvor.dev/backoff-limit-raised"]).unwrap();
    assert_eq!(
        (record["raisedBy"].as_u64(), record["pods"].as_array().unwrap().len()),
        (u64::try_from(lost).ok(), lost)
    );
    let now = pods.list(&all.clone().labels("app=raises")).await.unwrap();
    assert!(
        now.iter().all(|pod| phase(pod) != "Failed"),
        "the limit is raised before the first pod is given up"
    );

    let second = stage.salvor(&raise).await;
    let survived = wait::for_object(&jobs, "raises", "every loss is counted", |job: &Job| {
        job.status.as_ref().is_some_and(|status| status.failed == i32::try_from(lost).ok())
    })
    .await;
    assert!(!finished(&survived, "FailureTarget") && !finished(&survived, "Failed"), "{survived:?}");
    assert_eq!(survived.spec.as_ref().unwrap().backoff_limit, limit, "it is not raised twice");
    let healthy = i32::try_from(WORKERS - lost).unwrap();
    assert!(survived.status.unwrap().active >= Some(healthy), "its pods that are well run on");
    let events: Api<Event> = Api::default_namespaced(arena.client());
    wait::for_list(&events, &all, "the raise is told", |events: &[Event]| {
        events.iter().any(|event| event.reason.as_deref() == Some("BackoffLimitRaised"))
    })
    .await;
    assert_eq!(told(&arena, "BackoffLimitRaised", "raises").await.len(), 1, "{}", second.program.output());
}

salvor_testkit::on_both!(a_job_survives_the_loss_of_more_pods_than_its_limit_if_that_is_asked_for);
