//! MultiKueue: the AppWrapper of one cluster runs in another. Kueue copies it there and copies its status back.

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Namespace, Secret},
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use salvor_testkit::{Site, wait};
use serde_json::json;

use crate::{
    controller::cases,
    kueue::{World, queued, with_queue},
    objects::{
        AppWrapper, Object, OfAdmissionCheck, OfMultiKueueCluster, OfMultiKueueConfig, Workload, condition,
    },
    stage::{Run, Stage, Wrap},
};

const MULTIKUEUE: &str = "kueue.x-k8s.io/multikueue";

/// After Kueue's own end-to-end test: the manager's controller ignores it, the worker's controller runs it.
async fn one_runs_in_another_cluster(_: Site) {
    let start = || World::start(Some(&["batch/job", "workload.codeflare.dev/appwrapper"]));
    let (manager, worker) = tokio::join!(start(), start());
    let there = Stage::beside(Site::Real, worker.plane.arena("multi").await, 1).await;
    // MultiKueue uses the namespace of the same name.
    let own = there.arena.namespace().to_owned();
    let here = manager.plane.admin().in_namespace(&own).client("stage");
    let namespace = json!({"metadata": {"name": own}});
    let namespaces: Api<Namespace> = Api::all(here.clone());
    namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    with_queue(there.arena.client(), &own, "default-flavor", "2", json!({})).await;

    let admin = manager.plane.admin();
    let secrets: Api<Secret> = Api::namespaced(admin.client("stage"), "kueue-system");
    let secret = json!({"metadata": {"name": "worker"}, "stringData": {"kubeconfig": worker.plane.admin().kubeconfig()}});
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let clusters: Api<Object<OfMultiKueueCluster>> = Api::all(admin.client("stage"));
    let source = json!({"clusterSource": {"kubeConfig": {"location": "worker", "locationType": "Secret"}}});
    clusters.create(&PostParams::default(), &Object::named("worker", source)).await.unwrap();
    let configs: Api<Object<OfMultiKueueConfig>> = Api::all(admin.client("stage"));
    let config = Object::named("config", json!({"clusters": ["worker"]}));
    configs.create(&PostParams::default(), &config).await.unwrap();
    let checks: Api<Object<OfAdmissionCheck>> = Api::all(admin.client("stage"));
    let check = json!({
        "controllerName": MULTIKUEUE,
        "parameters": {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "config"},
    });
    checks.create(&PostParams::default(), &Object::named("elsewhere", check)).await.unwrap();
    let active = |check: &Object<OfAdmissionCheck>| {
        condition(&check.status, "Active").is_some_and(|c| c.status == "True")
    };
    wait::for_object(&checks, "elsewhere", "it is active", active).await;
    let strategy = json!({"admissionChecksStrategy": {"admissionChecks": [{"name": "elsewhere"}]}});
    with_queue(here.clone(), &own, "default-flavor", "2", strategy).await;

    let ends = Run::to_end("3s", 0).requests("cpu", "1");
    let wrap = queued(Wrap::new("w").of(there.job("j", json!({}), &ends)));
    let wrappers: Api<AppWrapper> = Api::default_namespaced(here.clone());
    let made = wrappers.create(&PostParams::default(), &wrap.object()).await.unwrap();
    assert_eq!(made.spec["managedBy"], MULTIKUEUE, "{}", made.spec);
    let is_done = |wrapper: &AppWrapper| wrapper.phase() == "Succeeded";
    let done = wait::for_object(&wrappers, "w", "its copy has succeeded", is_done).await;
    // Nothing that the manager's own controller could have left exists.
    assert!(done.finalizers().is_empty(), "{:?}", done.finalizers());
    let jobs: Api<Job> = Api::default_namespaced(here.clone());
    assert!(jobs.list(&ListParams::default()).await.unwrap().items.is_empty());
    let workloads: Api<Workload> = Api::default_namespaced(here);
    let finished = |all: &[Workload]| {
        all.iter().any(|w| condition(&w.status, "Finished").is_some_and(|c| c.status == "True"))
    };
    wait::for_list(&workloads, &ListParams::default(), "its Workload is finished", finished).await;
    // Kueue deletes the copy when it is done. Its finalizer deletes everything it created.
    let copies = |all: &[AppWrapper]| all.is_empty();
    wait::for_list(&there.wrappers, &ListParams::default(), "the copy is gone", copies).await;
}

cases!(Both, on the real one: one_runs_in_another_cluster);
