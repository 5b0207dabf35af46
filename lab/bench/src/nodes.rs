//! Many simulated nodes and pods in one process, under the real scheduler and node lifecycle.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{ListParams, PartialObjectMeta, PostParams},
};
use salvor_nodes::{Fleet, FleetOptions, NodeProfile};
use salvor_testkit::{
    ControlPlane, Part,
    wait::{self, Patience},
    workloads::{PodShape, pod},
};

use crate::process::{cpu_seconds, memory_mb};

const CREATES_AT_ONCE: usize = 32;

/// Starts the nodes, then the pods, and checks that no node is ever lost; prints what it cost.
pub(crate) async fn run(nodes: usize, pods: usize) -> Result<(), String> {
    let plane = ControlPlane::builder()
        .with(Part::ControllerManager)
        .with(Part::Scheduler)
        // The shipped grace period: the benchmark checks whether nodes with shipped timers stay ready.
        .flag(Part::ControllerManager, "--node-monitor-grace-period=50s")
        .flag(Part::ControllerManager, "--node-startup-grace-period=60s")
        // The benchmark measures the nodes, not how slowly their pods are bound.
        .flag(Part::Scheduler, "--kube-api-qps=1000")
        .flag(Part::Scheduler, "--kube-api-burst=1000")
        .start()
        .await
        .map_err(|e| e.to_string())?;
    let arena = plane.arena("bench").await;
    let own = std::process::id();
    let fleet = Fleet::start(arena.admin().client("bench-nodes"), FleetOptions::default());
    let profile = |i: usize| NodeProfile::named(format!("node-{i:04}")).in_zone(arena.zone());

    let clock = Instant::now();
    fleet.add((0..nodes).map(profile)).await.map_err(|e| e.to_string())?;
    let patience = || Patience::of(Duration::from_secs(900));
    let node_api: Api<Node> = Api::all(arena.client());
    let everything = ListParams::default();
    patience()
        .for_list(&node_api, &everything, "every node is schedulable", |all: &[Node]| {
            all.len() == nodes && all.iter().all(schedulable)
        })
        .await
        .map_err(|e| e.to_string())?;
    let registered = clock.elapsed();

    let start = Instant::now();
    let cpu_before = cpu_seconds(own);
    let pod_api: Api<Pod> = Api::default_namespaced(arena.client());
    let all_run = async {
        let shape = PodShape::new();
        stream::iter(0..pods)
            .map(|i| {
                let (api, pod) = (pod_api.clone(), pod(&format!("pod-{i:05}"), &shape));
                async move { api.create(&PostParams::default(), &pod).await.map(|_| ()) }
            })
            .buffer_unordered(CREATES_AT_ONCE)
            .try_collect::<()>()
            .await
            .map_err(|e| e.to_string())?;
        let running = ListParams::default().fields("status.phase=Running");
        let names: Api<PartialObjectMeta<Pod>> = Api::default_namespaced(arena.client());
        patience()
            .for_list(&names, &running, "every pod runs", |all| all.len() == pods)
            .await
            .map_err(|e| e.to_string())
    };
    wait::never(&node_api, &everything, "a node is lost", |n| !schedulable(n), all_run).await?;
    let started = start.elapsed();

    // A quiet minute: what an idle fleet costs, and that its nodes stay ready.
    let cpu_started = cpu_seconds(own);
    let quiet = Duration::from_secs(60);
    wait::never(&node_api, &everything, "a node is lost", |n| !schedulable(n), tokio::time::sleep(quiet))
        .await;
    let cpu_quiet = cpu_seconds(own) - cpu_started;

    let (now, peak) = memory_mb(own);
    let stats = fleet.stats().await.map_err(|e| e.to_string())?;
    let server = plane.pid(Part::ApiServer).map_or(0.0, cpu_seconds);
    eprintln!("| what | seen |\n|---|---|");
    eprintln!("| nodes, pods | {nodes}, {pods} (known to the fleet: {}, {}) |", stats.nodes, stats.pods);
    eprintln!("| nodes registered and schedulable after | {:.1} s |", registered.as_secs_f64());
    eprintln!("| pods created, scheduled and running after | {:.1} s |", started.as_secs_f64());
    eprintln!(
        "| CPU of this process (nodes, watches of the bench, creates) until then | {:.1} s |",
        cpu_started - cpu_before
    );
    eprintln!("| CPU of this process in a quiet minute | {cpu_quiet:.1} s |");
    eprintln!("| resident memory of this process, now and peak | {now:.0} MB, {peak:.0} MB |");
    eprintln!("| CPU of kube-apiserver in all | {server:.1} s |");
    eprintln!("| calls of nodes that failed and were made again | {} |", stats.failed_calls);
    eprintln!("| nodes lost meanwhile | 0 |");
    Ok(())
}

fn schedulable(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    let tainted = node.spec.as_ref().and_then(|s| s.taints.as_ref()).is_some_and(|t| !t.is_empty());
    ready && !tainted
}
