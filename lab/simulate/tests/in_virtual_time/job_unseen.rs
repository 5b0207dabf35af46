//! The watch of Jobs is broken, while the watch of pods works: nothing may be done for a Job that is gone.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use salvor_api::config::Configuration;
use salvor_apiserver::{ChangeKind, Effect, Fault, Faults};
use salvor_simulate::{Line, Process, in_virtual_time};
use serde_json::json;
use tokio::time::sleep;

use crate::stage::Stage;

fn configuration() -> Configuration {
    let lines =
        "controllers: [job]\nleaderElection: {leaseDuration: 60s, renewDeadline: 40s, retryPeriod: 20s}";
    let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
    salvor_api::config::parse(&format!("{head}{lines}")).unwrap()
}

fn job() -> Job {
    serde_json::from_value(json!({
        "metadata": {"name": "work"},
        "spec": {
            "managedBy": "salvor.dev/job-controller",
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work"}]}},
        },
    }))
    .unwrap()
}

/// The Job is deleted and its pod fails, some time after the watch of Jobs has begun to fail. Returns the number of
/// pods that were created, and whether the last one was released in the end.
async fn play(effect: Effect, after: u64) -> (usize, bool) {
    let stage = Stage::new(1).await;
    let jobs: Api<Job> = Api::default_namespaced(stage.client.clone());
    jobs.create(&PostParams::default(), &job()).await.unwrap();
    let faults = Faults::default();
    let process = Process::start(&stage.cluster, "salvor", &configuration(), Line::default(), &faults);
    sleep(Duration::from_secs(60)).await;
    let pods = stage.pods().list(&Default::default()).await.unwrap().items;
    assert_eq!(pods.len(), 1, "{effect:?}");
    // Lists and watches; a request for one Job by its name is answered.
    faults.add(Fault::new(effect).method(Method::GET).path("/apis/batch/v1/jobs?"));
    faults.cut_watches();
    sleep(Duration::from_secs(after)).await;
    jobs.delete("work", &DeleteParams::background()).await.unwrap();
    let ended = json!({"status": {"phase": "Failed"}});
    let pod = pods[0].name_any();
    stage.pods().patch_status(&pod, &PatchParams::default(), &Patch::Strategic(ended)).await.unwrap();
    sleep(Duration::from_secs(200)).await;
    let made = || {
        stage.happenings().iter().filter(|h| h.change == ChangeKind::Added && h.resource == "pods").count()
    };
    assert_eq!(made(), 1, "{effect:?}, {after} s after the watch: a pod was made for a Job that is gone");
    faults.clear();
    sleep(Duration::from_secs(200)).await;
    let left = stage.pods().list(&Default::default()).await.unwrap().items;
    process.stop().await;
    (made(), left.iter().all(|pod| pod.finalizers().is_empty()))
}

#[test]
fn no_pod_is_made_for_a_job_that_is_gone_while_nothing_is_heard_of_jobs() {
    let never = Duration::from_secs(86_400);
    for effect in [Effect::InternalError, Effect::Unavailable, Effect::RequestLost, Effect::Lag(never)] {
        for after in [0, 5, 200] {
            assert_eq!(in_virtual_time(play(effect, after)), (1, true), "{effect:?} {after}");
        }
    }
}
