//! The memory of a contender in a large idle cluster.

use salvor_testkit::ControlPlane;

use super::{
    Sizes,
    contender::Contender,
    pids,
    world::{self, TERMINATE, WantedPod},
};
use crate::{
    process::{Disturbance, Watchman},
    running::settled_memory,
};

/// Resident memory in MB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) settled: f64,
    pub(crate) peak: f64,
    /// A pod's size as JSON.
    pub(crate) pod_bytes: usize,
    pub(crate) disturbance: Disturbance,
}

/// Creates the nodes and the pods. Returns a pod's size as JSON.
pub(crate) async fn fill(plane: &ControlPlane, sizes: &Sizes) -> Result<usize, String> {
    eprintln!("memory: making {} pods on {} nodes", sizes.pods, sizes.nodes);
    let client = plane.admin().client("bench-world");
    let node = |i: usize| format!("node-{i:04}");
    world::make_nodes(&client, (0..sizes.nodes).map(node).collect(), "True").await?;
    let spacing = (sizes.pods / sizes.opted_in.max(1)).max(1);
    let pods = (0..sizes.pods).map(|i| WantedPod {
        name: format!("training-{i:05}"),
        node: node(i % sizes.nodes.max(1)),
        annotation: (i % spacing == 0 && i / spacing < sizes.opted_in).then_some((TERMINATE, "true")),
    });
    let made = world::make_pods(&client, "default", pods.collect()).await?;
    Ok(made.iter().map(|pod| pod.bytes).sum::<usize>() / made.len().max(1))
}

/// Runs a contender until its memory has settled.
pub(crate) async fn measure(
    plane: &ControlPlane,
    contender: &Contender,
    pod_bytes: usize,
) -> Result<Memory, String> {
    eprintln!("memory: of {}", contender.name());
    let watchman = Watchman::begin(&pids(plane));
    let running = contender.start(plane).await?;
    let pid = running.program.pid();
    let (settled, peak) = settled_memory(pid).await;
    if running.program.has_ended() {
        return Err(format!("{} ended:\n{}", contender.name(), running.tail()));
    }
    Ok(Memory { settled, peak, pod_bytes, disturbance: watchman.end(Some(pid)) })
}
