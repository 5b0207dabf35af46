//! With the real Kueue: admission, preemption, and a quota that is always accurate.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Node, Pod},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use salvor_nodes::{Fleet, FleetOptions};
use salvor_testkit::{
    Plane, Recorder, Site,
    nodes::QUICK,
    peers::{Kueue, RunningPeer},
    recorder::ChangeKind,
    wait,
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{
    controller::{Controller, Settings, cases, install_workloads},
    objects::{
        AppWrapper, ClusterQueue, LocalQueue, Object, OfPyTorchJob, OfTopology, ResourceFlavor, Workload,
        condition,
    },
    stage::{Run, Stage, Wrap, phases},
};

/// A control plane with Kueue and an AppWrapper controller, shared by all cases of a process.
pub(crate) struct World {
    pub(crate) plane: Plane,
    _kueue: RunningPeer,
    _controller: Controller,
}

impl World {
    pub(crate) async fn start(frameworks: Option<&'static [&'static str]>) -> Self {
        let plane = Site::Real.control_plane().await;
        let admin = plane.admin();
        // Kueue serves the kinds that exist when it starts.
        install_workloads(&admin).await;
        let controller = Controller::start(Site::Real, &admin, &Settings::default()).await;
        let kueue = Kueue::build().unwrap_or_else(|error| panic!("{error}"));
        let kueue = match frameworks {
            Some(frameworks) => kueue.only_for(frameworks),
            None => kueue,
        };
        kueue.install(&admin, true).await.unwrap();
        let kueue = kueue.start(&admin, &[]).unwrap().ready().await.unwrap_or_else(|error| panic!("{error}"));
        let flavors: Api<ResourceFlavor> = Api::all(admin.client("stage"));
        let flavor = ResourceFlavor::named("default-flavor", json!({}));
        // Its webhooks answer shortly after it is ready.
        let made = wait::patience().until(async {
            while let Err(error) = flavors.create(&PostParams::default(), &flavor).await {
                assert!(error.to_string().contains("webhook"), "{error}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        });
        made.await.expect("Kueue's webhooks answer");
        let client = admin.client("stage");
        for (name, value) in [("low", 10), ("high", 100)] {
            let class = json!({
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": name},
                "value": value,
            });
            let request = http::Request::post("/apis/kueue.x-k8s.io/v1beta2/workloadpriorityclasses")
                .header("content-type", "application/json")
                .body(class.to_string().into_bytes())
                .unwrap();
            client.request_text(request).await.unwrap();
        }
        Self { plane, _kueue: kueue, _controller: controller }
    }
}

async fn world() -> &'static World {
    static WORLD: OnceCell<World> = OnceCell::const_new();
    WORLD.get_or_init(|| World::start(None)).await
}

/// A namespace with its own queue of this much CPU.
async fn queue(name: &str, cpu: &str) -> Stage<'static> {
    let world = world().await;
    let stage = Stage::beside(Site::Real, world.plane.arena(name).await, 2).await;
    with_queue(stage.arena.client(), stage.arena.namespace(), "default-flavor", cpu, json!({})).await;
    stage
}

/// Gives a namespace a queue with this much CPU of a flavor, and extra fields in its spec.
pub(crate) async fn with_queue(client: Client, own: &str, flavor: &str, cpu: &str, more: Value) {
    let mut spec = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": own}},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{
            "coveredResources": ["cpu"],
            "flavors": [{"name": flavor, "resources": [{"name": "cpu", "nominalQuota": cpu}]}],
        }],
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let queues: Api<ClusterQueue> = Api::all(client.clone());
    queues.create(&PostParams::default(), &ClusterQueue::named(own, spec)).await.unwrap();
    let local: Api<LocalQueue> = Api::namespaced(client, own);
    let spec = json!({ "clusterQueue": own });
    local.create(&PostParams::default(), &LocalQueue::named("queue", spec)).await.unwrap();
    let active =
        |queue: &ClusterQueue| condition(&queue.status, "Active").is_some_and(|c| c.status == "True");
    wait::for_object(&queues, own, "it is active", active).await;
}

pub(crate) fn queued(wrap: Wrap) -> Wrap {
    wrap.label("kueue.x-k8s.io/queue-name", "queue")
}

fn run(cpu: &str) -> Run {
    Run::on().requests("cpu", cpu)
}

fn workloads(stage: &Stage<'_>) -> Api<Workload> {
    Api::default_namespaced(stage.arena.client())
}

async fn workloads_until(
    stage: &Stage<'_>,
    what: &str,
    condition: impl FnMut(&[Workload]) -> bool,
) -> Vec<Workload> {
    wait::for_list(&workloads(stage), &ListParams::default(), what, condition).await
}

fn holds(workload: &Workload, kind: &str) -> bool {
    condition(&workload.status, kind).is_some_and(|c| c.status == "True")
}

/// The CPU that the queue counts as used.
fn used(queue: &ClusterQueue) -> String {
    let total = &queue.status["flavorsUsage"][0]["resources"][0]["total"];
    total.as_str().map_or_else(|| total.to_string(), str::to_owned)
}

/// After Kueue's own end-to-end test of a Job.
async fn an_admitted_one_runs_and_its_workload_finishes(_: Site) {
    let stage = queue("admitted", "2").await;
    let recorder = stage.record().await;
    let mut ends = Run::to_end("4s", 0);
    ends = ends.requests("cpu", "1");
    let made = stage.create(queued(Wrap::new("w").of(stage.job("j", json!({}), &ends)))).await;
    assert_eq!(made.spec["suspend"], true, "Kueue's webhook suspends it until it is admitted");
    let ready = stage.ready("w").await;
    assert_ne!(ready.spec["suspend"], true);
    assert!(ready.spec["components"][0]["podSetInfos"].is_array(), "{}", ready.spec);
    let mine = workloads_until(&stage, "its Workload knows that it is ready", |all| {
        all.len() == 1 && holds(&all[0], "Admitted")
    })
    .await;
    assert_eq!(mine[0].owner_references()[0].kind, "AppWrapper");
    let name = mine[0].name_any();
    stage.phase("w", "Succeeded").await;
    wait::for_object(&workloads(&stage), &name, "it is finished", |w| holds(w, "Finished")).await;
    let seen = phases(&recorder, "w").await;
    assert_eq!(seen.first().map(String::as_str), Some("Suspended"), "{seen:?}");
    stage.delete("w").await;
    stage.gone("w").await;
}

/// After Kueue's own end-to-end test of a Deployment, and CodeFlare's recognition of children.
async fn children_are_not_queued_again(_: Site) {
    let stage = queue("children", "2").await;
    let torch = run("500m").py_torch_job("t", false, 2);
    for (name, wrap) in [
        ("job", Wrap::new("job").of(stage.job("j", json!({}), &run("2")))),
        ("deployment", Wrap::new("deployment").of(run("500m").deployment("d", 4))),
        (
            "mixed",
            Wrap::new("mixed")
                .of(stage.job("mj", json!({}), &run("500m")))
                .of(torch)
                .of(run("250m").deployment("md", 2)),
        ),
    ] {
        // Each fills the queue exactly. Anything counted twice would not fit.
        stage.create(queued(wrap)).await;
        if name == "mixed" {
            let made = wait::for_object(&stage.of::<OfPyTorchJob>(), "t", "it is made", |_| true).await;
            for number in 0..2 {
                let template = &made.spec["pytorchReplicaSpecs"]["Worker"]["template"];
                stage.make_pod(&made, &format!("t-{number}"), template).await;
            }
        }
        stage.ready(name).await;
        let all = workloads(&stage).list(&ListParams::default()).await.unwrap().items;
        let owners: Vec<_> = all.iter().map(|w| w.owner_references()[0].name.clone()).collect();
        assert_eq!(owners, [name], "exactly one Workload");
        stage.delete(name).await;
        stage.gone(name).await;
        workloads_until(&stage, "its Workload is gone", <[Workload]>::is_empty).await;
    }
}

/// Basic queuing, from CodeFlare's end-to-end tests.
async fn one_waits_until_there_is_room(_: Site) {
    let stage = queue("waits", "2").await;
    for name in ["first", "second"] {
        stage.create(queued(Wrap::new(name).of(run("500m").deployment(name, 2)))).await;
        stage.ready(name).await;
    }
    stage.create(queued(Wrap::new("third").of(run("250m").deployment("third", 2)))).await;
    stage.phase("third", "Suspended").await;
    workloads_until(&stage, "Kueue has no room for it", |all| {
        let waits = |w: &Workload| condition(&w.status, "QuotaReserved").is_some_and(|c| c.status == "False");
        all.iter().any(|w| w.owner_references()[0].name == "third" && waits(w))
    })
    .await;
    assert!(stage.pods_of("third").await.is_empty());
    stage.delete("first").await;
    stage.ready("third").await;
    stage.gone("first").await;
}

/// The workload of lower priority is preempted. Nothing of the other one exists before all preempted pods are gone.
async fn the_lesser_one_gives_way_completely(_: Site) {
    let stage = queue("preempt", "2").await;
    let class = "kueue.x-k8s.io/priority-class";
    let slow = run("1").script("ignore-sigterm", "2s").spec("terminationGracePeriodSeconds", 10.into());
    stage.create(queued(Wrap::new("low").of(slow.deployment("low", 2))).label(class, "low")).await;
    stage.ready("low").await;
    let pods: Recorder<Pod> = Recorder::start(&stage.pods, &ListParams::default()).await;
    let high = Run::to_end("3s", 0).requests("cpu", "2");
    stage.create(queued(Wrap::new("high").of(high.pod("high"))).label(class, "high")).await;
    stage.phase("high", "Succeeded").await;
    let mut low = 2;
    for change in pods.changes().await {
        let of_low = change.name.starts_with("low");
        match change.kind {
            ChangeKind::Deleted if of_low => low -= 1,
            ChangeKind::Added if change.name == "high" => {
                assert_eq!(low, 0, "pods of the lesser one are left");
            }
            ChangeKind::Added | ChangeKind::Deleted | ChangeKind::Modified | ChangeKind::Existed => {}
        }
        if change.name == "high" && change.kind == ChangeKind::Deleted {
            break;
        }
    }
    // There is room again.
    let back = stage.ready("low").await;
    assert_eq!(back.resets(), 0);
    assert!(back.spec["components"][0]["podSetInfos"].is_array());
}

/// The queue counts the workload throughout a reset, so that no other workload takes its place.
async fn quota_is_kept_through_a_reset(_: Site) {
    let stage = queue("kept", "2").await;
    let wrap = Wrap::new("w")
        .of(Run::to_end("2s", 1).requests("cpu", "2").pod("p"))
        .set("failureGracePeriodDuration", "1s")
        .set("retryPausePeriodDuration", "3s")
        .set("retryLimit", "2");
    stage.create(queued(wrap)).await;
    stage.ready("w").await;
    let queues: Api<ClusterQueue> = Api::all(stage.arena.client());
    let own = stage.arena.namespace().to_owned();
    wait::for_object(&queues, &own, "it counts the workload", |queue| used(queue) == "2").await;
    // Another workload that would take its place immediately.
    stage.create(queued(Wrap::new("thief").of(run("2").pod("thief")))).await;
    let only = ListParams::default().fields(&format!("metadata.name={own}"));
    let dropped = |queue: &ClusterQueue| used(queue) != "2";
    wait::never(&queues, &only, "its quota is given away in a reset", dropped, async {
        stage.until("w", "it was reset twice and runs", |w| w.resets() == 2 && w.phase() == "Running").await;
    })
    .await;
    assert_eq!(stage.get("thief").await.phase(), "Suspended");
    // Failed for good: now the other workload is admitted, after the last pod is gone.
    stage.released("w", "Failed").await;
    stage.ready("thief").await;
    let finished =
        |all: &[Workload]| all.iter().any(|w| w.owner_references()[0].name == "w" && holds(w, "Finished"));
    workloads_until(&stage, "the failed one's Workload is finished", finished).await;
}

/// Kueue takes the quota back in the middle of a reset.
async fn an_eviction_in_a_reset_wins(_: Site) {
    let stage = queue("evicted", "2").await;
    let wrap = Wrap::new("w")
        .of(Run::to_end("2s", 1).requests("cpu", "1").pod("p"))
        .set("failureGracePeriodDuration", "0s")
        .set("retryPausePeriodDuration", "1h");
    stage.create(queued(wrap)).await;
    stage.until("w", "it pauses", |w| w.phase() == "Resetting" && !w.is("ResourcesDeployed")).await;
    let mine = workloads(&stage).list(&ListParams::default()).await.unwrap().items.remove(0);
    let stop = Patch::Merge(json!({"spec": {"active": false}}));
    workloads(&stage).patch(&mine.name_any(), &PatchParams::default(), &stop).await.unwrap();
    let suspended = stage.released("w", "Suspended").await;
    assert_eq!(suspended.spec["suspend"], true);
    let queues: Api<ClusterQueue> = Api::all(stage.arena.client());
    let own = stage.arena.namespace().to_owned();
    wait::for_object(&queues, &own, "the queue is empty", |queue| used(queue) == "0").await;
}

/// An AppWrapper that another cluster runs is only observed here.
async fn what_multikueue_manages_is_left_alone(_: Site) {
    let stage = queue("multi", "2").await;
    let theirs =
        queued(Wrap::new("theirs").managed_by("kueue.x-k8s.io/multikueue").of(run("100m").pod("theirs")));
    stage.create(theirs).await;
    let only = ListParams::default().fields("metadata.name=theirs");
    let touched = |w: &AppWrapper| !w.status.is_null() || !w.finalizers().is_empty();
    wait::never(&stage.wrappers, &only, "it is touched", touched, async {
        stage.create(queued(Wrap::new("ours").of(run("100m").pod("ours")))).await;
        stage.ready("ours").await;
    })
    .await;
    assert!(stage.pods_of("theirs").await.is_empty());
}

/// Kueue chooses the rack: its gates, labels and selectors go into the pods, and all of them run in one rack. After
/// Kueue's own end-to-end test of topology-aware scheduling.
async fn pods_are_placed_by_topology(_: Site) {
    const RACK: &str = "example.com/rack";
    let world = world().await;
    let stage = Stage::beside(Site::Real, world.plane.arena("racks").await, 0).await;
    let own = stage.arena.namespace().to_owned();
    let options = FleetOptions { timers: QUICK, ..FleetOptions::default() };
    let fleet = Fleet::start(stage.arena.admin().client("racks"), options);
    let node = |index: usize| {
        let rack = if index < 2 { "a" } else { "b" };
        stage.arena.node(index + 20).labelled(RACK, &format!("{own}-{rack}")).labelled("example.com/of", &own)
    };
    fleet.add((0..4).map(node)).await.unwrap();
    let client = stage.arena.client();
    let topology = json!({"levels": [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]});
    let topologies: Api<Object<OfTopology>> = Api::all(client.clone());
    topologies.create(&PostParams::default(), &Object::named(&own, topology)).await.unwrap();
    let flavor = json!({"nodeLabels": {"example.com/of": own}, "topologyName": own});
    let flavors: Api<ResourceFlavor> = Api::all(client);
    flavors.create(&PostParams::default(), &ResourceFlavor::named(&own, flavor)).await.unwrap();
    with_queue(stage.arena.client(), &own, &own, "32", json!({})).await;

    let wide = run("3").annotation("kueue.x-k8s.io/podset-required-topology", RACK);
    let spec = json!({"parallelism": 4, "completions": 4, "completionMode": "Indexed"});
    stage.create(queued(Wrap::new("w").of(stage.job("j", spec, &wide)))).await;
    let ready = stage.ready("w").await;
    let info = &ready.spec["components"][0]["podSetInfos"][0];
    assert_eq!(info["schedulingGates"][0]["name"], "kueue.x-k8s.io/topology", "{info}");
    let recorded = &ready.status["componentStatus"][0]["podSets"][0]["annotations"];
    let index = "workload.codeflare.dev.appwrapper/tas-pod-index-label";
    assert_eq!(recorded[index], "batch.kubernetes.io/job-completion-index", "{recorded}");
    let nodes: Api<Node> = Api::all(stage.arena.client());
    let mut racks = BTreeSet::new();
    for pod in stage.pods_of("w").await {
        assert!(pod.labels().contains_key("kueue.x-k8s.io/podset"), "{:?}", pod.labels());
        let node = nodes.get(&pod.spec.unwrap().node_name.unwrap()).await.unwrap();
        racks.insert(node.labels()[RACK].clone());
    }
    assert_eq!(racks.len(), 1, "{racks:?}");
}

/// With Kueue, a Job that counts as done between its waves would be suspended for good (9, 8).
async fn all_waves_of_a_job_run(_: Site) {
    let stage = queue("waves", "2").await;
    let ends = Run::to_end("1s", 0).requests("cpu", "1");
    stage
        .create(queued(Wrap::new("w").of(stage.job("j", json!({"completions": 4, "parallelism": 1}), &ends))))
        .await;
    stage.phase("w", "Succeeded").await;
    let job: Job = stage.jobs.get("j").await.unwrap();
    assert_eq!(job.status.unwrap().succeeded, Some(4));
}

cases!(
    Both, on the real one:
    an_admitted_one_runs_and_its_workload_finishes,
    children_are_not_queued_again,
    one_waits_until_there_is_room,
    the_lesser_one_gives_way_completely,
    quota_is_kept_through_a_reset,
    an_eviction_in_a_reset_wins,
    what_multikueue_manages_is_left_alone,
);
cases!(Both, on the real one: pods_are_placed_by_topology);
cases!(Salvor, on the real one: all_waves_of_a_job_run);
