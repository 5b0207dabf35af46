//! A StatefulSet with a volume on a machine that is off: how soon it runs elsewhere, depending on who declares the
//! machine dead.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Node, Pod},
};
use kube::{Api, ResourceExt, api::PostParams};
use salvor_nodes::{Fault, Storage};
use salvor_testkit::{
    ControlPlane, Part,
    wait::{self, Patience},
    workloads::{PodShape, stateful_set},
};

/// Without help the pod is stuck forever; the benchmark stops waiting here.
const FOR_EVER: Duration = Duration::from_secs(60);

/// Who declares that the machine is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Nobody,
    OutOfServiceTaint,
    Salvor,
}

/// Seconds from the taint until the pod runs elsewhere with its volume; `None` if it does not.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) nobody: Option<f64>,
    pub(crate) out_of_service: Option<f64>,
    pub(crate) salvor: Option<f64>,
}

/// One after the other on the same control plane, with the real attach/detach controller and a simulated driver.
pub(crate) async fn measure(salvor: &Path) -> Result<Comparison, String> {
    let plane = ControlPlane::builder().with(Part::ControllerManager).with(Part::Scheduler);
    let plane = plane.start().await.map_err(|e| e.to_string())?;
    let nobody = run(&plane, Word::Nobody).await?;
    let out_of_service = run(&plane, Word::OutOfServiceTaint).await?;
    let _running = super::run::start(&plane, salvor).await?;
    Ok(Comparison { nobody, out_of_service, salvor: run(&plane, Word::Salvor).await? })
}

async fn run(plane: &ControlPlane, word: Word) -> Result<Option<f64>, String> {
    eprintln!("eviction: a StatefulSet on a dead machine, {word:?}");
    let arena = plane.arena("stateful").await;
    let fleet = arena.fleet(3).await;
    let client = arena.client();
    let driver = format!("{}.csi", arena.zone());
    let storage = Storage::start(client.clone(), &driver).await.map_err(|e| e.to_string())?;
    let sets: Api<StatefulSet> = Api::default_namespaced(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let nodes: Api<Node> = Api::all(client);
    let set = stateful_set("db", 1, storage.class(), &PodShape::new());
    sets.create(&PostParams::default(), &set).await.map_err(|e| e.to_string())?;
    let first = wait::for_object(&pods, "db-0", "it runs", runs).await;
    let node = first.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default();
    fleet.inject(&node, Fault::Crash).await.map_err(|e| e.to_string())?;
    // From here on all contenders have the same information.
    wait::for_object(&nodes, &node, "it is lost", |n| !is_ready(n)).await;
    let start = Instant::now();
    let taint = match word {
        Word::Nobody => None,
        Word::OutOfServiceTaint => Some("node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"),
        Word::Salvor => Some("salvor.dev/force-eviction=bench:NoSchedule"),
    };
    if let Some(taint) = taint {
        arena.kubectl().run(&["taint", "node", &node, taint]).await.map_err(|e| e.to_string())?;
    }
    let moved = |pod: &Pod| pod.uid() != first.uid() && runs(pod);
    let elsewhere = async {
        // The pod may be absent for a moment before its replacement exists.
        while !pods.get_opt("db-0").await.ok().flatten().as_ref().is_some_and(moved) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let found = Patience::of(FOR_EVER).until(elsewhere).await;
    storage.stop().await;
    Ok(found.map(|()| start.elapsed().as_secs_f64()))
}

fn runs(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}
