//! Workloads run on simulated nodes as on any others.

use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use salvor_nodes::Work;
use salvor_testkit::{
    Site, arena, wait,
    workloads::{PodShape, deployment, job, pod},
};
use serde_json::{Value, json};

use crate::{condition, is_ready, is_terminating, of_app, phase};

fn finished(job: &Job, kind: &str) -> bool {
    let conditions = job.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == kind && c.status == "True")
}

fn json_of<K: serde::Serialize>(object: &K) -> Value {
    serde_json::to_value(object).unwrap()
}

async fn nodes_become_ready_and_keep_their_leases(site: Site) {
    let arena = site.arena("ready").await;
    let _fleet = arena.fleet(3).await;
    let nodes: Api<Node> = Api::all(arena.client());
    let zone = ListParams::default().labels(&format!("topology.kubernetes.io/zone={}", arena.zone()));
    let no_taints = |n: &Node| n.spec.as_ref().and_then(|s| s.taints.as_ref()).is_none_or(Vec::is_empty);
    wait::for_list(&nodes, &zone, "three ready nodes without taints", |nodes| {
        nodes.len() == 3 && nodes.iter().all(|n| is_ready(n) && no_taints(n))
    })
    .await;
    let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
        Api::namespaced(arena.client(), "kube-node-lease");
    let first = leases.get(&arena.node_name(0)).await.unwrap();
    wait::for_object(&leases, &arena.node_name(0), "the Lease is renewed", |lease| {
        lease.resource_version() != first.resource_version()
    })
    .await;
}

async fn a_deployment_becomes_available_scales_and_goes(site: Site) {
    let arena = site.arena("deploy").await;
    let fleet = arena.fleet(2).await;
    let deployments: Api<Deployment> = Api::default_namespaced(arena.client());
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    deployments.create(&PostParams::default(), &deployment("web", 4, &PodShape::new())).await.unwrap();
    wait::for_object(&deployments, "web", "four available replicas", |d| {
        d.status.as_ref().and_then(|s| s.available_replicas) == Some(4)
    })
    .await;
    let scale = Patch::Merge(json!({"spec": {"replicas": 1}}));
    deployments.patch_scale("web", &PatchParams::default(), &scale).await.unwrap();
    wait::for_list(&pods, &of_app("web"), "one pod is left", |pods| pods.len() == 1).await;
    deployments.delete("web", &DeleteParams::foreground()).await.unwrap();
    wait::for_list(&pods, &of_app("web"), "no pod is left", <[Pod]>::is_empty).await;
    let running = fleet.truth().running();
    assert_eq!(running, [], "a removed pod has no container left");
}

#[tokio::test]
async fn jobs_of_each_kind_complete() {
    let arena = arena("jobs").await;
    let fleet = arena.fleet(2).await;
    let jobs: Api<Job> = Api::default_namespaced(arena.client());
    let quick = PodShape::new().script("run-for", "200ms");
    let kinds = [
        ("one", json!({})),
        ("fixed", json!({"completions": 5, "parallelism": 2})),
        ("queue", json!({"parallelism": 3})),
        ("indexed", json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed"})),
    ];
    for (name, spec) in &kinds {
        jobs.create(&PostParams::default(), &job(name, spec.clone(), &quick)).await.unwrap();
    }
    for (name, _) in &kinds {
        wait::for_object(&jobs, name, "the Job is complete", |j| finished(j, "Complete")).await;
    }
    let indexed = jobs.get("indexed").await.unwrap().status.unwrap();
    assert_eq!(indexed.completed_indexes.as_deref(), Some("0-3"));
    let now = fleet.clock().now();
    assert_eq!(fleet.truth().overlaps(now), [], "no index ran twice");
    let indexes = fleet.truth().runs().iter().flat_map(|r| r.work.clone()).filter(Work::is_exclusive).count();
    assert_eq!(indexes, 4);
}

#[tokio::test]
async fn a_job_retries_what_fails_and_gives_up_at_its_limit() {
    let arena = arena("retry").await;
    let _fleet = arena.fleet(2).await;
    let jobs: Api<Job> = Api::default_namespaced(arena.client());
    let fails_once = PodShape::new().script("run-for", "100ms").script("fail-first", "1");
    let spec =
        json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 2});
    jobs.create(&PostParams::default(), &job("once", spec, &fails_once)).await.unwrap();
    let fails = PodShape::new().script("run-for", "100ms").script("exit-code", "3");
    jobs.create(&PostParams::default(), &job("always", json!({"backoffLimit": 0}), &fails)).await.unwrap();
    let failed = wait::for_object(&jobs, "always", "the Job has failed", |j| finished(j, "Failed")).await;
    assert_eq!(failed.status.unwrap().failed, Some(1));
    let once = wait::for_object(&jobs, "once", "the Job is complete", |j| finished(j, "Complete")).await;
    assert_eq!(once.status.unwrap().failed, Some(2), "each index failed once");
}

async fn containers_are_restarted_by_policy_and_counted(site: Site) {
    let arena = site.arena("restart").await;
    let _fleet = arena.fleet(1).await;
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let shape = PodShape::new().script("run-for", "100ms").script("fail-first", "1");
    let shape = shape.spec("restartPolicy", json!("OnFailure"));
    pods.create(&PostParams::default(), &pod("p", &shape)).await.unwrap();
    let done = wait::for_object(&pods, "p", "the pod has succeeded", |p| phase(p) == "Succeeded").await;
    let status = json_of(&done)["status"]["containerStatuses"][0].clone();
    assert_eq!(status["restartCount"], 1);
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 1);
    assert_eq!(status["state"]["terminated"]["exitCode"], 0);
}

async fn init_containers_and_sidecars_are_shown_as_a_kubelet_shows_them(site: Site) {
    let arena = site.arena("init").await;
    let _fleet = arena.fleet(1).await;
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let shape = PodShape::new()
        .script("run-for", "prepare=300ms,main=300ms")
        .spec("restartPolicy", json!("Never"))
        .spec(
            "initContainers",
            json!([
                {"name": "log", "image": "log", "restartPolicy": "Always"},
                {"name": "prepare", "image": "prepare"},
            ]),
        );
    pods.create(&PostParams::default(), &pod("p", &shape)).await.unwrap();
    let done = wait::for_object(&pods, "p", "the pod has succeeded", |p| phase(p) == "Succeeded").await;
    let statuses = json_of(&done)["status"]["initContainerStatuses"].clone();
    assert_eq!(statuses[0]["name"], "log");
    assert_eq!(statuses[0]["state"]["terminated"]["exitCode"], 143, "stopped after the last main container");
    assert_eq!(statuses[1]["state"]["terminated"]["reason"], "Completed");
    assert_eq!(condition(&done, "Initialized"), Some("True"));
}

async fn an_image_that_cannot_be_pulled_and_a_script_that_means_nothing_are_said(site: Site) {
    let arena = site.arena("image").await;
    let _fleet = arena.fleet(1).await;
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let shape = PodShape::new().script("image-error", "forever");
    pods.create(&PostParams::default(), &pod("no-image", &shape)).await.unwrap();
    wait::for_object(&pods, "no-image", "it waits for its image", |p| {
        json_of(p)["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ImagePullBackOff"
            && phase(p) == "Pending"
    })
    .await;
    let shape = PodShape::new().script("run-for", "soon");
    pods.create(&PostParams::default(), &pod("bad", &shape)).await.unwrap();
    let bad = wait::for_object(&pods, "bad", "it is refused", |p| phase(p) == "Failed").await;
    let message = bad.status.unwrap().message.unwrap();
    assert!(message.contains("run-for") && message.contains("\"soon\""), "{message}");
}

async fn deletion_waits_for_the_containers_within_the_grace(site: Site) {
    let arena = site.arena("grace").await;
    let fleet = arena.fleet(1).await;
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let stubborn =
        PodShape::new().script("ignore-sigterm", "forever").spec("terminationGracePeriodSeconds", json!(3));
    pods.create(&PostParams::default(), &pod("stubborn", &stubborn)).await.unwrap();
    wait::for_object(&pods, "stubborn", "it runs", |p| condition(p, "Ready") == Some("True")).await;
    pods.delete("stubborn", &DeleteParams::default()).await.unwrap();
    wait::for_absence(&pods, "stubborn").await;
    let run = &fleet.truth().runs()[0];
    assert_eq!(run.ended.unwrap().1, 137, "killed at the end of the grace");

    let held = PodShape::new();
    let mut held = pod("held", &held);
    held.metadata.finalizers = Some(vec!["test.salvor.dev/hold".to_owned()]);
    pods.create(&PostParams::default(), &held).await.unwrap();
    wait::for_object(&pods, "held", "it runs", |p| condition(p, "Ready") == Some("True")).await;
    pods.delete("held", &DeleteParams::default()).await.unwrap();
    wait::for_object(&pods, "held", "it has ended and waits for its finalizer", |p| {
        is_terminating(p) && phase(p) == "Failed" && p.metadata.deletion_grace_period_seconds == Some(0)
    })
    .await;
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    pods.patch("held", &PatchParams::default(), &release).await.unwrap();
    wait::for_absence(&pods, "held").await;
}

async fn a_drain_by_kubectl_obeys_the_disruption_budget(site: Site) {
    let arena = site.arena("drain").await;
    let _fleet = arena.fleet(3).await;
    let deployments: Api<Deployment> = Api::default_namespaced(arena.client());
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(arena.client());
    let budget = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 3, "selector": {"matchLabels": {"app": "web"}}},
    }))
    .unwrap();
    budgets.create(&PostParams::default(), &budget).await.unwrap();
    deployments.create(&PostParams::default(), &deployment("web", 4, &PodShape::new())).await.unwrap();
    wait::for_object(&budgets, "web", "one disruption is allowed", |b| {
        b.status.as_ref().is_some_and(|s| s.disruptions_allowed == 1)
    })
    .await;
    let drained = arena.node_name(0);
    let too_few = |all: &[Pod]| all.iter().filter(|p| condition(p, "Ready") == Some("True")).count() < 3;
    let watched = wait::for_list(&pods, &of_app("web"), "four pods", |all| all.len() >= 4).await;
    assert!(!too_few(&watched));
    let kubectl = arena.kubectl();
    kubectl
        .run(&["drain", &drained, "--ignore-daemonsets", "--timeout=180s", "--pod-selector=app=web"])
        .await
        .unwrap();
    let on_node = ListParams::default().fields(&format!("spec.nodeName={drained}"));
    wait::for_list(&pods, &on_node, "nothing is left on the drained node", <[Pod]>::is_empty).await;
    wait::for_object(&deployments, "web", "four available replicas again", |d| {
        d.status.as_ref().and_then(|s| s.available_replicas) == Some(4)
    })
    .await;
}

async fn a_static_pod_has_a_mirror_that_comes_back(site: Site) {
    let arena = site.arena("static").await;
    let fleet = arena.fleet(1).await;
    let mut manifest = pod("proxy", &PodShape::new());
    manifest.metadata.namespace = Some(arena.namespace().to_owned());
    fleet.add([arena.node(1).with_static_pod(manifest)]).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let name = format!("proxy-{}", arena.node_name(1));
    let ready = |p: &Pod| condition(p, "Ready") == Some("True");
    let mirror = wait::for_object(&pods, &name, "the mirror is ready", ready).await;
    assert!(mirror.annotations().contains_key("kubernetes.io/config.mirror"));
    pods.delete(&name, &DeleteParams::default().grace_period(0)).await.unwrap();
    wait::for_object(&pods, &name, "a new mirror is ready", |p| ready(p) && p.uid() != mirror.uid()).await;
    let runs = fleet.truth().runs();
    assert_eq!(runs.len(), 1, "the pod itself ran on: {runs:?}");
}

salvor_testkit::on_both!(
    nodes_become_ready_and_keep_their_leases,
    a_deployment_becomes_available_scales_and_goes,
    containers_are_restarted_by_policy_and_counted,
    init_containers_and_sidecars_are_shown_as_a_kubelet_shows_them,
    an_image_that_cannot_be_pulled_and_a_script_that_means_nothing_are_said,
    deletion_waits_for_the_containers_within_the_grace,
    a_drain_by_kubectl_obeys_the_disruption_budget,
    a_static_pod_has_a_mirror_that_comes_back,
);
