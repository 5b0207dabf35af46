//! Workloads on a whole cluster in virtual time: long waits cost nothing here.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use salvor_cluster::{LocalCluster, NodeFault, Options, STORAGE, zoned};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

async fn cluster(nodes: usize) -> LocalCluster {
    let cluster = LocalCluster::start(Options::default()).await.unwrap();
    cluster.fleet().add(zoned(nodes, 1)).await.unwrap();
    cluster
}

fn from<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// Waits in virtual time, which costs nothing. Returns how long it took.
async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) -> Duration {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < Duration::from_secs(3600), "an hour later still not so: {what}");
        sleep(Duration::from_secs(1)).await;
    }
    began.elapsed()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

async fn ready(pods: &Api<Pod>) -> usize {
    pods.list(&ListParams::default()).await.unwrap().iter().filter(|pod| is_ready(pod)).count()
}

fn template() -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "web:1"}]},
    })
}

fn web(replicas: usize) -> Deployment {
    from(json!({
        "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template()},
    }))
}

#[tokio::test(start_paused = true)]
async fn a_rollout_never_has_too_few_or_too_many_pods() {
    let cluster = cluster(3).await;
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    let deployments: Api<Deployment> = Api::default_namespaced(cluster.client());
    deployments.create(&PostParams::default(), &web(8)).await.unwrap();
    until("eight pods run", || async { ready(&pods).await == 8 }).await;
    let next = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "web:2"}]}}}});
    deployments.patch("web", &PatchParams::default(), &Patch::Strategic(next)).await.unwrap();
    let done = || async {
        let all = pods.list(&ListParams::default()).await.unwrap().items;
        let alive = all.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
        let serving = all.iter().filter(|pod| is_ready(pod)).count();
        assert!(alive <= 10, "a quarter more at most, rounded up: {alive}");
        assert!(serving >= 6, "a quarter fewer at most, rounded down: {serving}");
        let new = |pod: &&Pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("web:2");
        all.len() == 8 && all.iter().filter(|pod| is_ready(pod)).filter(new).count() == 8
    };
    until("all are of the new template", done).await;
    let status = deployments.get("web").await.unwrap().status.unwrap();
    assert_eq!((status.updated_replicas, status.available_replicas), (Some(8), Some(8)));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_makes_no_progress_says_so_after_ten_minutes() {
    let cluster = cluster(1).await;
    let deployments: Api<Deployment> = Api::default_namespaced(cluster.client());
    let mut stuck = web(1);
    let spec = stuck.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
    spec.node_selector = Some([("no".to_owned(), "where".to_owned())].into());
    deployments.create(&PostParams::default(), &stuck).await.unwrap();
    let took = until("it gives up", || async {
        let status = deployments.get("web").await.unwrap().status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        conditions.iter().any(|c| c.reason.as_deref() == Some("ProgressDeadlineExceeded"))
    })
    .await;
    assert!((600..=605).contains(&took.as_secs()), "{took:?}");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn evictions_stop_where_the_budget_says() {
    let cluster = cluster(3).await;
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    let deployments: Api<Deployment> = Api::default_namespaced(cluster.client());
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(cluster.client());
    let budget = from(json!({
        "metadata": {"name": "web"},
        "spec": {"maxUnavailable": "30%", "selector": {"matchLabels": {"app": "web"}}},
    }));
    budgets.create(&PostParams::default(), &budget).await.unwrap();
    deployments.create(&PostParams::default(), &web(3)).await.unwrap();
    until("one may go", || async {
        budgets.get("web").await.unwrap().status.is_some_and(|s| s.disruptions_allowed == 1)
    })
    .await;
    let names: Vec<String> =
        pods.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect();
    pods.evict(&names[0], &EvictParams::default()).await.unwrap();
    let refused = pods.evict(&names[1], &EvictParams::default()).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 429), "{refused}");
    until("it is replaced and another may go", || async {
        ready(&pods).await == 3 && budgets.get("web").await.unwrap().status.unwrap().disruptions_allowed == 1
    })
    .await;
    pods.evict(&names[1], &EvictParams::default()).await.unwrap();
    cluster.stop().await;
}

fn database() -> StatefulSet {
    from(json!({
        "metadata": {"name": "db"},
        "spec": {
            "replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "web"}}, "template": template(),
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": STORAGE,
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }],
        },
    }))
}

/// Six minutes must pass before a volume is detached from a lost node, and they begin only when its pod is gone.
#[tokio::test(start_paused = true)]
async fn the_volume_of_a_pod_that_was_forced_away_follows_after_six_minutes() {
    let cluster = cluster(3).await;
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    let sets: Api<StatefulSet> = Api::default_namespaced(cluster.client());
    let attachments: Api<VolumeAttachment> = Api::all(cluster.client());
    sets.create(&PostParams::default(), &database()).await.unwrap();
    until("both run", || async { ready(&pods).await == 2 }).await;
    let node = pods.get("db-0").await.unwrap().spec.unwrap().node_name.unwrap();
    NodeFault::Crash.strike(cluster.fleet(), &node).await.unwrap();
    until("it is marked", || async { pods.get("db-0").await.unwrap().metadata.deletion_timestamp.is_some() })
        .await;
    sleep(Duration::from_secs(1800)).await;
    let held = || async {
        let all = attachments.list(&ListParams::default()).await.unwrap();
        all.iter().any(|attachment| attachment.spec.node_name == node)
    };
    assert!(held().await, "a pod whose containers run as far as anybody knows keeps its volume for ever");
    assert_eq!(ready(&pods).await, 1, "and its name");
    pods.delete("db-0", &DeleteParams::default().grace_period(0)).await.unwrap();
    let took = until("it runs elsewhere with its volume", || async { ready(&pods).await == 2 }).await;
    assert!((355..=370).contains(&took.as_secs()), "{took:?}");
    assert!(!held().await);
    assert_eq!(cluster.fleet().truth().overlaps(cluster.fleet().clock().now()), []);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_in_use_stays_until_its_pod_is_gone_and_the_volume_is_released() {
    let cluster = cluster(1).await;
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    let sets: Api<StatefulSet> = Api::default_namespaced(cluster.client());
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(cluster.client());
    let volumes: Api<PersistentVolume> = Api::all(cluster.client());
    sets.create(&PostParams::default(), &database()).await.unwrap();
    until("both run", || async { ready(&pods).await == 2 }).await;
    let volume = claims.get("data-db-1").await.unwrap().spec.unwrap().volume_name.unwrap();
    claims.delete("data-db-1", &DeleteParams::default()).await.unwrap();
    sleep(Duration::from_secs(600)).await;
    assert!(claims.get_opt("data-db-1").await.unwrap().is_some());
    let scale = Patch::Merge(json!({"spec": {"replicas": 1}}));
    sets.patch("db", &PatchParams::default(), &scale).await.unwrap();
    until("the claim is gone", || async { claims.get_opt("data-db-1").await.unwrap().is_none() }).await;
    until("the volume is released", || async {
        volumes.get(&volume).await.unwrap().status.unwrap().phase.as_deref() == Some("Released")
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_finished_job_goes_when_its_time_is_up() {
    let cluster = cluster(1).await;
    let jobs: Api<Job> = Api::default_namespaced(cluster.client());
    let job = from(json!({
        "metadata": {"name": "done"},
        "spec": {
            "ttlSecondsAfterFinished": 300, "managedBy": "example.com/test",
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work"}]}},
        },
    }));
    jobs.create(&PostParams::default(), &job).await.unwrap();
    let now = cluster.api().now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let complete = json!({"status": {
        "startTime": now, "completionTime": now, "succeeded": 1,
        "conditions": [
            {"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": now},
            {"type": "Complete", "status": "True", "lastTransitionTime": now},
        ],
    }});
    jobs.patch_status("done", &PatchParams::default(), &Patch::Merge(complete)).await.unwrap();
    let took = until("it is gone", || async { jobs.get_opt("done").await.unwrap().is_none() }).await;
    assert!((299..=302).contains(&took.as_secs()), "{took:?}");
    cluster.stop().await;
}
