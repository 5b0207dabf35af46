//! `salvor.dev/evict-after`: pods that are given up when their node is lost, although nothing deleted them.

use k8s_openapi::{
    api::{apps::v1::Deployment, batch::v1::Job, core::v1::Pod},
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use salvor_nodes::Fault;
use salvor_testkit::{
    Site, wait,
    workloads::{PodShape, deployment, job},
};
use serde_json::{Value, json};

use crate::{
    stage::{DELETE, Stage, TERMINATE, conditions, phase},
    story::{is_ready, job_controller, node_of},
};

const EVICT_AFTER: &str = "salvor.dev/evict-after";
const EXACT: SignedDuration = SignedDuration::ZERO;
/// The duration of Leases that the test writes, in seconds.
const LASTS: u32 = 2;
/// The complete configuration, because `explain` gets only the file.
const CONFIGURATION: &str = "
featureGates: {FailureRecoveryPolicy: true}
leaderElection: {enabled: false}
brake: {maxUnreachablePercent: 0}
failureRecoveryPolicy: {minimumEvictAfter: 1s}
";

fn asking(consent: &str, after: &str) -> Value {
    json!({"metadata": {"annotations": {consent: "true", EVICT_AFTER: after}}})
}

fn ready_since(pod: &Pod) -> (String, Timestamp) {
    let conditions = pod.status.as_ref().unwrap().conditions.iter().flatten();
    let ready = conditions.filter(|c| c.type_ == "Ready").find_map(|c| {
        let since = c.last_transition_time.clone()?;
        Some((c.status.clone(), since.0))
    });
    ready.unwrap()
}

/// A Job of two workers that tolerate the loss of their node for five minutes, as is the default. One of their nodes
/// crashes. Nothing deletes the worker there within the patience of a test, and yet it is replaced.
async fn a_job_is_back_without_waiting_for_the_eviction_of_its_pod(site: Site) {
    let stage = Stage::on(site.control_plane().await);
    let _job_controller = (site == Site::Embedded).then(|| job_controller(&stage));
    let arena = stage.plane.arena("evict-after").await;
    let fleet = arena.fleet(3).await;
    let jobs: Api<Job> = Api::default_namespaced(arena.client());
    let pods: Api<Pod> = Api::default_namespaced(arena.client());
    let deployments: Api<Deployment> = Api::default_namespaced(arena.client());
    let patient = json!([
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3600},
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3600},
    ]);
    let shape = PodShape::new()
        .script("sigterm-exit-code", "0")
        .annotation(TERMINATE, "true")
        .annotation(EVICT_AFTER, "1s")
        .spec("tolerations", patient.clone());
    let spec = json!({"completions": 3, "parallelism": 3, "backoffLimit": 20});
    jobs.create(&PostParams::default(), &job("train", spec, &shape)).await.unwrap();
    let shape =
        PodShape::new().annotation(DELETE, "true").annotation(EVICT_AFTER, "0s").spec("tolerations", patient);
    deployments.create(&PostParams::default(), &deployment("web", 3, &shape)).await.unwrap();
    let training = ListParams::default().labels("app=train");
    let web = ListParams::default().labels("app=web");
    let running = |all: &[Pod]| all.len() == 3 && all.iter().all(is_ready);
    let workers = wait::for_list(&pods, &training, "three workers run", running).await;
    let servers = wait::for_list(&pods, &web, "three servers run", running).await;

    let salvor = stage.salvor(CONFIGURATION).await;
    let lost = node_of(&workers[0]);
    fleet.inject(&lost, Fault::Crash).await.unwrap();
    let victims: Vec<&Pod> = workers.iter().filter(|pod| node_of(pod) == lost).collect();
    for victim in &victims {
        let failed = wait::for_object(&pods, &victim.name_any(), "the lost worker is Failed", |p| {
            phase(p) == "Failed"
        })
        .await;
        assert!(failed.metadata.deletion_timestamp.is_none(), "nothing has deleted it");
        let (status, since) = ready_since(&failed);
        let marked = failed.status.as_ref().unwrap().conditions.iter().flatten();
        let marked =
            marked.filter(|c| c.type_ == "KueueFailureRecovery").find_map(|c| c.last_transition_time.clone());
        assert_eq!(status, "False");
        assert!(
            since < marked.unwrap().0,
            "its end is the last sign of life of its node: {}",
            salvor.program.output()
        );
    }
    let alive = |all: &[Pod]| {
        all.iter().filter(|pod| is_ready(pod) && phase(pod) == "Running" && node_of(pod) != lost).count() == 3
    };
    wait::for_list(&pods, &training, "three workers run on nodes that are there", alive).await;
    wait::for_list(&pods, &web, "three servers run on nodes that are there", alive).await;
    for server in servers.iter().filter(|pod| node_of(pod) == lost) {
        wait::for_absence(&pods, &server.name_any()).await;
    }
    assert_eq!(fleet.truth().overlaps(fleet.clock().now()), []);
}

/// The test plays kubelets and controllers. One node is lost; another has the taint, but renews its Lease; a third is
/// only not Ready.
async fn only_pods_with_consent_on_a_silent_node_are_given_up_and_nonsense_is_reported(site: Site) {
    let stage = Stage::new(site).await;
    for name in ["silent", "alive", "not-ready"] {
        stage.node(name).await;
        stage.renew(name, LASTS, EXACT).await;
        stage.ready(name, "True").await;
    }
    let salvor = stage.salvor(CONFIGURATION).await;
    stage.pod("fails", "silent", asking(TERMINATE, "2s")).await;
    stage.pod("goes", "silent", asking(DELETE, "0s")).await;
    stage.pod("later", "silent", asking(TERMINATE, "1h")).await;
    stage.pod("without", "silent", json!({"metadata": {"annotations": {EVICT_AFTER: "0s"}}})).await;
    let nonsense = stage.pod("nonsense", "silent", asking(TERMINATE, "soon")).await;
    for name in ["alive", "not-ready"] {
        stage.pod(&format!("stays-{name}"), name, asking(DELETE, "0s")).await;
    }
    let renewing = async {
        loop {
            stage.renew("alive", LASTS, EXACT).await;
            stage.renew("not-ready", LASTS, EXACT).await;
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
    };
    let given_up = async {
        stage.ready("silent", "Unknown").await;
        stage.ready("alive", "Unknown").await;
        stage.ready("not-ready", "False").await;
        stage.taint("not-ready", "node.kubernetes.io/not-ready").await;
        stage.taint("alive", "node.kubernetes.io/unreachable").await;
        stage.taint("silent", "node.kubernetes.io/unreachable").await;
        let failed = stage.until_failed("fails").await;
        wait::for_absence(&stage.pods(), "goes").await;
        salvor.says("The kubelet of node alive may be alive").await;
        let message = conditions(&failed).into_iter().find(|c| c.0 == "KueueFailureRecovery").unwrap().3;
        assert!(message.contains("2s after its node `silent` became unreachable"), "{message}");
        for (pod, said) in [
            ("later", "WAIT until"),
            ("later", "1h0m0s after its node became unreachable, by annotation salvor.dev/evict-after"),
            ("without", "IGNORE [zombie: NotOptedIn]"),
            (
                "nonsense",
                "annotation salvor.dev/evict-after is \"soon\", which is not a duration such as 30s or 1m30s",
            ),
            ("stays-alive", "[zombie: KubeletAlive]"),
            (
                "stays-alive",
                "by failureRecoveryPolicy.minimumEvictAfter: annotation salvor.dev/evict-after asks for 0s",
            ),
            ("stays-not-ready", "IGNORE [zombie: NodeReachable]"),
        ] {
            let explained = salvor.explain("pod", &format!("default/{pod}")).await;
            assert!(explained.contains(said), "{pod}: {explained}");
        }
    };
    let is_touched = |pod: &Pod| {
        let stays = ["later", "without", "nonsense", "stays-alive", "stays-not-ready"];
        stays.contains(&pod.name_any().as_str()) && phase(pod) == "Failed"
    };
    let all = ListParams::default();
    wait::never(&stage.pods(), &all, "a pod is given up that must stay", is_touched, async {
        tokio::select! {
            () = renewing => {}
            () = given_up => {}
        }
    })
    .await;
    for name in ["later", "without", "nonsense", "stays-alive", "stays-not-ready"] {
        let pod = stage.pods().get(name).await.unwrap();
        assert!(pod.metadata.deletion_timestamp.is_none(), "{name}");
    }
    let events = stage.events_about(&nonsense).await;
    let invalid = events.iter().filter(|e| e.reason.as_deref() == Some("InvalidEvictAfter"));
    assert_eq!(invalid.count(), 1, "{events:?}");
}

salvor_testkit::on_both!(
    a_job_is_back_without_waiting_for_the_eviction_of_its_pod,
    only_pods_with_consent_on_a_silent_node_are_given_up_and_nonsense_is_reported,
);
