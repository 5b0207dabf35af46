//! Nodes that die, and how Kubernetes reacts.

use k8s_openapi::api::{
    batch::v1::Job,
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use salvor_nodes::{Fault, Fleet};
use salvor_testkit::{
    Arena, ControlPlane, Part, Recorder, Site, arena, wait,
    workloads::{PodShape, deployment, job, pod},
};
use serde_json::json;

use crate::{condition, has_taint, is_ready, is_terminating, node_of, of_app, phase};

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// A training Job of three indexes that never end by themselves, running on three nodes of an arena of five.
async fn training(arena: &Arena<'_>, policy: &str) -> (Fleet, Vec<Pod>) {
    let fleet = arena.fleet(5).await;
    let jobs: Api<Job> = Api::default_namespaced(arena.client());
    let spec = json!({
        "completions": 3, "parallelism": 3, "completionMode": "Indexed",
        "podReplacementPolicy": policy, "backoffLimit": 100,
    });
    jobs.create(&PostParams::default(), &job("train", spec, &PodShape::new())).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let pods = wait::for_list(&pods, &of_app("train"), "three ready pods", |pods| {
        pods.len() == 3 && pods.iter().all(|p| condition(p, "Ready") == Some("True"))
    })
    .await;
    (fleet, pods)
}

#[tokio::test]
async fn a_partitioned_node_is_tainted_and_its_pods_are_marked_and_healing_ends_them() {
    let arena = arena("partition").await;
    let (fleet, running) = training(&arena, "Failed").await;
    let victim = &running[0];
    let node = node_of(victim);
    fleet.inject(node, Fault::Partition).await.unwrap();
    let nodes: Api<Node> = Api::all(arena.client());
    wait::for_object(&nodes, node, "it is tainted unreachable", |n| {
        !is_ready(n) && has_taint(n, UNREACHABLE)
    })
    .await;
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let marked =
        wait::for_object(&pods, &victim.name_any(), "it is marked for deletion", is_terminating).await;
    assert_eq!(condition(&marked, "DisruptionTarget"), Some("True"));
    assert_eq!(phase(&marked), "Running", "a silent kubelet confirms nothing");
    assert!(fleet.truth().running().iter().any(|r| Some(&r.pod_uid) == victim.metadata.uid.as_ref()));

    fleet.heal(node).await.unwrap();
    wait::for_object(&nodes, node, "it is ready again", |n| is_ready(n) && !has_taint(n, UNREACHABLE)).await;
    let uid = victim.metadata.uid.clone();
    wait::for_list(&pods, &of_app("train"), "the index is replaced", |pods| {
        pods.len() == 3 && pods.iter().all(|p| p.metadata.uid != uid && condition(p, "Ready") == Some("True"))
    })
    .await;
    assert_eq!(fleet.truth().overlaps(fleet.clock().now()), [], "the kubelet had confirmed the end first");
}

/// The problem that Salvor solves: with `podReplacementPolicy: Failed` a lost node blocks its index forever.
#[tokio::test]
async fn with_policy_failed_a_lost_node_blocks_its_index_for_ever() {
    let arena = arena("stuck").await;
    let (fleet, running) = training(&arena, "Failed").await;
    let victim = &running[0];
    fleet.inject(node_of(victim), Fault::Crash).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    wait::for_object(&pods, &victim.name_any(), "it is marked for deletion", is_terminating).await;

    // "Forever" ends here when the same control plane has meanwhile done this for other pods: replaced a failed pod of
    // this very Job, and evicted the pods of another lost node.
    let until = async {
        let other = &running[1];
        let failed = Patch::Merge(json!({"status": {"phase": "Failed"}}));
        pods.patch_status(&other.name_any(), &PatchParams::default(), &failed).await.unwrap();
        wait::for_list(&pods, &of_app("train"), "the failed pod is replaced", |pods| {
            pods.iter().any(|p| {
                index(p) == index(other)
                    && p.name_any() != other.name_any()
                    && condition(p, "Ready") == Some("True")
            })
        })
        .await;
        let bystander = pod("bystander", &PodShape::new());
        let bystander = pods.create(&PostParams::default(), &bystander).await.unwrap().name_any();
        let bound =
            wait::for_object(&pods, &bystander, "it runs", |p| condition(p, "Ready") == Some("True")).await;
        fleet.inject(node_of(&bound), Fault::Partition).await.unwrap();
        wait::for_object(&pods, &bystander, "it is evicted", is_terminating).await;
    };
    let stuck = index(victim);
    let name = victim.name_any();
    wait::never(
        &pods,
        &of_app("train"),
        "the index of the lost pod is replaced",
        |p| index(p) == stuck && p.name_any() != name,
        until,
    )
    .await;
    let jobs: Api<Job> = Api::default_namespaced(arena.client());
    let status = jobs.get("train").await.unwrap().status.unwrap();
    assert!(status.terminating >= Some(1), "{status:?}");
    let left = pods.get(&name).await.unwrap();
    assert!(is_terminating(&left) && phase(&left) == "Running");
}

/// The opposite policy is no remedy: the same index runs twice while its first node is only partitioned.
#[tokio::test]
async fn with_policy_terminating_or_failed_a_partition_runs_the_same_index_twice() {
    let arena = arena("twice").await;
    let (fleet, running) = training(&arena, "TerminatingOrFailed").await;
    let victim = &running[0];
    fleet.inject(node_of(victim), Fault::Partition).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    wait::for_list(&pods, &of_app("train"), "the index runs on another node", |pods| {
        pods.iter().any(|p| {
            index(p) == index(victim)
                && p.name_any() != victim.name_any()
                && condition(p, "Ready") == Some("True")
        })
    })
    .await;
    let twice = fleet.truth().overlaps(fleet.clock().now());
    assert_eq!(twice.len(), 1, "{twice:?}");
    assert!(twice[0].lasted.is_positive());
    assert!(twice[0].first.contains(&victim.name_any()), "{}", twice[0]);
    eprintln!("as expected of this policy: {}", twice[0]);

    // A machine that is really off runs nothing twice under the same policy.
    let crashed = &running[1];
    fleet.inject(node_of(crashed), Fault::Crash).await.unwrap();
    wait::for_list(&pods, &of_app("train"), "the crashed index runs on another node", |pods| {
        pods.iter().any(|p| {
            index(p) == index(crashed)
                && p.name_any() != crashed.name_any()
                && condition(p, "Ready") == Some("True")
        })
    })
    .await;
    let twice = fleet.truth().overlaps(fleet.clock().now());
    assert!(!twice.iter().any(|o| o.first.contains(&crashed.name_any())), "{twice:?}");
}

#[tokio::test]
async fn the_out_of_service_taint_frees_the_pods_of_a_lost_node() {
    let arena = arena("oos").await;
    let (fleet, running) = training(&arena, "Failed").await;
    let victim = &running[0];
    let node = node_of(victim);
    fleet.inject(node, Fault::Crash).await.unwrap();
    let nodes: Api<Node> = Api::all(arena.client());
    wait::for_object(&nodes, node, "it is not ready", |n| !is_ready(n)).await;
    arena
        .kubectl()
        .run(&["taint", "node", node, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"])
        .await
        .unwrap();
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    wait::for_list(&pods, &of_app("train"), "every index runs again", |pods| {
        pods.len() == 3
            && pods
                .iter()
                .all(|p| condition(p, "Ready") == Some("True") && p.metadata.uid != victim.metadata.uid)
    })
    .await;
    assert_eq!(fleet.truth().overlaps(fleet.clock().now()), [], "the machine was really off");

    // When it comes back it finds the taint, and none of its own pods.
    fleet.heal(node).await.unwrap();
    wait::for_object(&nodes, node, "it is ready again", is_ready).await;
    let running = fleet.truth().running();
    assert!(!running.iter().any(|r| r.node == node), "{running:?}");
}

async fn a_returning_kubelet_refuses_what_does_not_tolerate_its_taints(site: Site) {
    let arena = site.arena("refuse").await;
    let fleet = arena.fleet(2).await;
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let node = arena.node_name(0);
    let tolerant = json!([{"operator": "Exists"}]);
    let bound = |shape: PodShape| shape.spec("nodeName", json!(node));
    let shapes = [
        ("tolerant", bound(PodShape::new().spec("tolerations", tolerant))),
        ("plain", bound(PodShape::new())),
    ];
    for (name, shape) in &shapes {
        pods.create(&PostParams::default(), &pod(name, shape)).await.unwrap();
        wait::for_object(&pods, name, "it runs", |p| condition(p, "Ready") == Some("True")).await;
    }
    fleet.inject(&node, Fault::KubeletStop).await.unwrap();
    // Added while the kubelet is away. Taint eviction must not remove the pod here, so a finalizer blocks its deletion.
    let hold = Patch::Merge(json!({"metadata": {"finalizers": ["test.salvor.dev/hold"]}}));
    pods.patch("plain", &PatchParams::default(), &hold).await.unwrap();
    arena.kubectl().run(&["taint", "node", &node, "example.com/maintenance=:NoExecute"]).await.unwrap();
    wait::for_object(&pods, "plain", "the control plane marks it", is_terminating).await;
    fleet.heal(&node).await.unwrap();
    let refused = wait::for_object(&pods, "plain", "the kubelet refuses it", |p| phase(p) == "Failed").await;
    let status = refused.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("TaintToleration"));
    let kept = pods.get("tolerant").await.unwrap();
    assert_eq!(phase(&kept), "Running");
    let mut late = pod("late", &bound(PodShape::new()));
    late.metadata.finalizers = Some(vec!["test.salvor.dev/hold".to_owned()]);
    pods.create(&PostParams::default(), &late).await.unwrap();
    wait::for_object(&pods, "late", "a new pod is refused as well", |p| phase(p) == "Failed").await;
}

async fn a_pod_that_was_force_deleted_while_its_node_was_away_is_killed_when_it_returns(site: Site) {
    let arena = site.arena("ghost").await;
    let fleet = arena.fleet(2).await;
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    pods.create(&PostParams::default(), &pod("ghost", &PodShape::new())).await.unwrap();
    let bound = wait::for_object(&pods, "ghost", "it runs", |p| condition(p, "Ready") == Some("True")).await;
    fleet.inject(node_of(&bound), Fault::Partition).await.unwrap();
    pods.delete("ghost", &DeleteParams::default().grace_period(0)).await.unwrap();
    wait::for_absence(&pods, "ghost").await;
    assert_eq!(fleet.truth().running().len(), 1, "gone from the API, not from the machine");
    fleet.heal(node_of(&bound)).await.unwrap();
    // A pod that runs after this one on the same node shows that the kubelet has synced.
    let next = pod("next", &PodShape::new().spec("nodeName", json!(node_of(&bound))));
    pods.create(&PostParams::default(), &next).await.unwrap();
    wait::for_object(&pods, "next", "it runs", |p| condition(p, "Ready") == Some("True")).await;
    let running = fleet.truth().running();
    assert!(running.iter().all(|r| r.pod == "next"), "{running:?}");
}

async fn after_a_reboot_containers_start_again_or_are_reported_lost(site: Site) {
    let arena = site.arena("reboot").await;
    let fleet = arena.fleet(1).await;
    let node = arena.node_name(0);
    let nodes: Api<Node> = Api::all(arena.client());
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let boot_id = |n: &Node| n.status.clone().unwrap().node_info.unwrap().boot_id;
    let before = boot_id(&nodes.get(&node).await.unwrap());
    let never = PodShape::new().spec("restartPolicy", json!("Never"));
    pods.create(&PostParams::default(), &pod("never", &never)).await.unwrap();
    pods.create(&PostParams::default(), &pod("always", &PodShape::new())).await.unwrap();
    for name in ["never", "always"] {
        wait::for_object(&pods, name, "it runs", |p| condition(p, "Ready") == Some("True")).await;
    }
    fleet.reboot(&node).await.unwrap();
    let lost = wait::for_object(&pods, "never", "it has failed", |p| phase(p) == "Failed").await;
    let exit = |p: &Pod| serde_json::to_value(p).unwrap()["status"]["containerStatuses"][0].clone();
    assert_eq!(exit(&lost)["state"]["terminated"]["exitCode"], 255);
    wait::for_object(&pods, "always", "it runs again", |p| {
        condition(p, "Ready") == Some("True") && exit(p)["restartCount"] == 1
    })
    .await;
    wait::for_object(&nodes, &node, "it has a new boot ID", |n| boot_id(n) != before).await;
}

/// The longest pause of this process while something ran.
async fn longest_pause_during(what: impl Future<Output = ()>) -> std::time::Duration {
    const TICK: std::time::Duration = std::time::Duration::from_millis(100);
    let longest = std::cell::Cell::new(std::time::Duration::ZERO);
    let ticking = async {
        loop {
            let before = std::time::Instant::now();
            tokio::time::sleep(TICK).await;
            longest.set(longest.get().max(before.elapsed()));
        }
    };
    tokio::select! {
        () = what => longest.get(),
        () = ticking => unreachable!(),
    }
}

async fn a_slow_node_stays_ready_and_a_flapping_one_comes_and_goes(site: Site) {
    let arena = site.arena("flap").await;
    let fleet = arena.fleet(3).await;
    let nodes: Api<Node> = Api::all(arena.client());
    let [slow, flapping, sound] = [0, 1, 2].map(|number| arena.node_name(number));
    for name in [&slow, &flapping, &sound] {
        wait::for_object(&nodes, name, "it is ready", is_ready).await;
    }
    let recorder = Recorder::start(&nodes, &ListParams::default()).await;
    fleet.inject(&slow, Fault::Slow(std::time::Duration::from_millis(500))).await.unwrap();
    let flap =
        Fault::Flap { down: std::time::Duration::from_secs(12), up: std::time::Duration::from_secs(4) };
    fleet.inject(&flapping, flap).await.unwrap();
    let comes_and_goes = async {
        for _ in 0..2 {
            wait::for_object(&nodes, &flapping, "it is lost", |n| !is_ready(n)).await;
            wait::for_object(&nodes, &flapping, "it is back", is_ready).await;
        }
    };
    let stood_still = longest_pause_during(comes_and_goes).await;
    let changes = recorder.changes().await;
    let is_lost = |name: &str| {
        let of_node = changes.iter().filter(|change| change.name == name);
        of_node.clone().any(|change| {
            let node: Node = serde_json::from_value(change.object.clone()).unwrap();
            !is_ready(&node)
        })
    };
    assert!(is_lost(&flapping), "the recorder sees it");
    // If the machine was paused, any node may have been lost.
    assert!(
        !is_lost(&slow) || is_lost(&sound) || stood_still > std::time::Duration::from_secs(4),
        "the slow node is lost"
    );
    fleet.heal(&flapping).await.unwrap();
    wait::for_object(&nodes, &flapping, "it is back for good", is_ready).await;
}

async fn an_unknown_node_is_named_and_a_second_one_of_the_same_name_refused(site: Site) {
    let arena = site.arena("names").await;
    let fleet = arena.fleet(1).await;
    let error = fleet.inject("nowhere", Fault::Crash).await.unwrap_err().to_string();
    assert!(error.contains("\"nowhere\"") && error.contains(&arena.node_name(0)), "{error}");
    let error = fleet.add([arena.node(0)]).await.unwrap_err().to_string();
    assert!(error.contains(&arena.node_name(0)), "{error}");
}

#[tokio::test]
async fn when_the_api_server_crashes_and_comes_back_the_nodes_go_on() {
    // However long the outage is, no node is marked unreachable for it.
    let plane = ControlPlane::builder()
        .with(Part::ControllerManager)
        .flag(Part::ControllerManager, "--node-monitor-grace-period=10m")
        .with(Part::Scheduler);
    let plane = plane.start().await.unwrap();
    let arena = plane.arena("outage").await;
    let fleet = arena.fleet(2).await;
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> = Api::default_namespaced(arena.client());
    deployments.create(&PostParams::default(), &deployment("web", 3, &PodShape::new())).await.unwrap();
    let available = |n| {
        move |d: &k8s_openapi::api::apps::v1::Deployment| {
            d.status.as_ref().and_then(|s| s.available_replicas) == Some(n)
        }
    };
    wait::for_object(&deployments, "web", "three replicas", available(3)).await;
    let before = fleet.truth().running();
    plane.crash(Part::ApiServer).await.unwrap();
    plane.restart(Part::ApiServer).await.unwrap();
    let leases: Api<Lease> = Api::namespaced(arena.client(), "kube-node-lease");
    for i in 0..2 {
        let seen = leases.get(&arena.node_name(i)).await.unwrap().resource_version();
        wait::for_object(&leases, &arena.node_name(i), "the Lease is renewed", |l| {
            l.resource_version() != seen
        })
        .await;
    }
    let scale = Patch::Merge(json!({"spec": {"replicas": 4}}));
    deployments.patch_scale("web", &PatchParams::default(), &scale).await.unwrap();
    wait::for_object(&deployments, "web", "four replicas", available(4)).await;
    let after = fleet.truth().running();
    assert!(before.iter().all(|r| after.contains(r)), "an outage of the API ends no container");
}

fn index(pod: &Pod) -> Option<&String> {
    pod.annotations().get("batch.kubernetes.io/job-completion-index")
}

/// The kubelet's half of KEP-36: it starts with a heartbeat. Until it has read its Node, or while that is tainted, it
/// starts only static pods and pods that tolerate an eviction.
async fn a_kubelet_that_starts_asks_its_node_which_pods_it_may_start(site: Site) {
    let arena = site.arena("starts").await;
    let fleet = arena.fleet(2).await;
    let mut manifest = pod("proxy", &PodShape::new());
    manifest.metadata.namespace = Some(arena.namespace().to_owned());
    fleet.add([arena.node(2).with_static_pod(manifest)]).await.unwrap();
    let (nodes, pods): (Api<Node>, Api<Pod>) =
        (Api::all(arena.client()), Api::default_namespaced(arena.client()));
    let node = arena.node_name(2);
    wait::for_object(&nodes, &node, "it is ready", is_ready).await;
    let evicted = "salvor.dev/force-eviction";
    let all = ["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready", evicted];
    let tolerating = |keys: &[&str]| {
        let tolerations =
            keys.iter().map(|key| json!({"key": key, "operator": "Exists"})).collect::<Vec<_>>();
        PodShape::new().spec("nodeName", json!(node)).spec("tolerations", json!(tolerations))
    };
    for (name, keys) in [("plain", &all[..2]), ("tolerant", &all[..])] {
        pods.create(&PostParams::default(), &pod(name, &tolerating(keys))).await.unwrap();
        wait::for_object(&pods, name, "it runs", |p| condition(p, "Ready") == Some("True")).await;
    }
    let runs_of = |name: &str| fleet.truth().runs().iter().filter(|run| run.pod.starts_with(name)).count();
    fleet.inject(&node, Fault::Crash).await.unwrap();
    assert!(fleet.truth().running().iter().all(|run| run.node != node));

    // While partitioned, it cannot know what it may start.
    fleet.boot_cut_off(&node).await.unwrap();
    let started = wait::patience().until(async {
        while runs_of("tolerant") < 2 || runs_of("proxy") < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    assert!(started.await.is_some(), "{:?}", fleet.truth().runs());
    wait::for_object(&nodes, &node, "it is lost", |n| !is_ready(n)).await;
    assert_eq!(runs_of("plain"), 1);

    // While tainted, it refuses pods that do not tolerate that.
    arena.kubectl().run(&["taint", "node", &node, &format!("{evicted}:NoExecute")]).await.unwrap();
    fleet.heal(&node).await.unwrap();
    wait::for_object(&nodes, &node, "it is ready", is_ready).await;
    wait::for_absence(&pods, "plain").await;
    assert_eq!(runs_of("plain"), 1, "it never started again");
    assert!(fleet.truth().running().iter().any(|run| run.pod == "tolerant"));
}

salvor_testkit::on_both!(
    a_kubelet_that_starts_asks_its_node_which_pods_it_may_start,
    a_returning_kubelet_refuses_what_does_not_tolerate_its_taints,
    a_pod_that_was_force_deleted_while_its_node_was_away_is_killed_when_it_returns,
    after_a_reboot_containers_start_again_or_are_reported_lost,
    a_slow_node_stays_ready_and_a_flapping_one_comes_and_goes,
    an_unknown_node_is_named_and_a_second_one_of_the_same_name_refused,
);
