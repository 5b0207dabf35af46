//! Tests each rule and timer of CodeFlare's controller by itself.

use super::*;
use crate::in_virtual_time;
use crate::scenario::introduce;

/// An AppWrapper with a Job of two pods. The test plays the other controllers by hand.
struct Scene {
    wrappers: Api<DynamicObject>,
    jobs: Api<Job>,
    pods: Api<Pod>,
}

impl Scene {
    async fn new() -> Self {
        let cluster = Cluster::new(crate::cluster(1).api);
        introduce(&cluster.client(), None).await.unwrap();
        let controller = AppWrapperController::new(&cluster);
        let (wrappers, jobs, pods) =
            (controller.wrappers.clone(), controller.jobs.clone(), controller.pods.clone());
        let wrapper = json!({
            "apiVersion": names::API_VERSION, "kind": names::KIND, "metadata": { "name": "gang" },
            "spec": { "suspend": false, "components": [{ "template": {
                "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "gang" },
                "spec": { "parallelism": 2, "completions": 2, "template": { "spec": {
                    "restartPolicy": "Never", "containers": [{ "name": "main", "image": "demo" }] } } },
            } }] },
        });
        wrappers.create(&PostParams::default(), &serde_json::from_value(wrapper).unwrap()).await.unwrap();
        tokio::spawn(controller.run());
        Self { wrappers, jobs, pods }
    }

    async fn pass(&self, seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    /// Creates a pod of the Job, as the Job controller would, with this phase.
    async fn pod(&self, name: &str, phase: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "labels": { names::MEMBER_LABEL: "gang" } },
            "spec": { "nodeName": "machine", "restartPolicy": "Never", "containers": [{ "name": "main", "image": "demo" }] },
        });
        self.pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        self.becomes(name, phase).await;
    }

    async fn becomes(&self, name: &str, phase: &str) {
        let patch = Patch::Merge(json!({ "status": { "phase": phase } }));
        self.pods.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn remove(&self, name: &str) {
        self.pods.delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }

    async fn phase(&self) -> String {
        let wrapper = self.wrappers.get("gang").await.unwrap();
        wrapper.data["status"]["phase"].as_str().unwrap_or_default().to_owned()
    }

    async fn has_job(&self) -> bool {
        self.jobs.get_opt("gang").await.unwrap().is_some()
    }
}

#[test]
fn a_failed_pod_is_found_after_a_minute_and_resets_after_another() {
    in_virtual_time(async {
        let scene = Scene::new().await;
        scene.pass(2).await;
        assert!(scene.has_job().await && scene.phase().await == "Running");
        scene.pod("a", "Running").await;
        scene.pod("b", "Running").await;
        scene.pass(10).await;
        // All pods ran at its last reconcile, so the next is a minute later.
        scene.becomes("b", "Failed").await;
        scene.pass(50).await;
        assert_eq!(scene.phase().await, "Running");
        scene.pass(55).await;
        assert_eq!(scene.phase().await, "Running", "the failure grace runs since it was found");
        scene.pass(20).await;
        assert_eq!(scene.phase().await, "Resetting");
        // The pause counts from when the failure was found; the Job is back after it.
        for pod in ["a", "b"] {
            scene.remove(pod).await;
        }
        scene.pass(10).await;
        assert!(!scene.has_job().await);
        scene.pass(30).await;
        assert!(scene.has_job().await, "90 seconds after it was found");
        assert_eq!(scene.phase().await, "Running");
        let status = &scene.wrappers.get("gang").await.unwrap().data["status"];
        assert_eq!(status["resettingCount"], 1);
    });
}

#[test]
fn a_pod_that_is_told_to_go_in_mid_run_resets_without_grace() {
    in_virtual_time(async {
        let scene = Scene::new().await;
        scene.pass(2).await;
        scene.pod("a", "Running").await;
        scene.pod("b", "Running").await;
        scene.pass(6 * 60).await;
        scene.remove("b").await;
        scene.pass(62).await;
        assert_eq!(scene.phase().await, "Resetting");
    });
}

#[test]
fn pods_that_never_run_fail_it_after_three_resets() {
    in_virtual_time(async {
        let scene = Scene::new().await;
        scene.pass(50).await;
        assert_eq!(scene.phase().await, "Running", "the admission grace is a minute");
        scene.pass(20).await;
        assert_eq!(scene.phase().await, "Resetting");
        scene.pass(20 * 60).await;
        assert_eq!(scene.phase().await, "Failed");
        assert!(!scene.has_job().await);
    });
}

#[test]
fn pods_that_do_not_go_are_forced_after_ten_minutes() {
    in_virtual_time(async {
        let scene = Scene::new().await;
        scene.pass(2).await;
        scene.pod("a", "Running").await;
        scene.pass(75).await;
        assert_eq!(scene.phase().await, "Resetting");
        scene.pass(9 * 60).await;
        assert!(scene.pods.get_opt("a").await.unwrap().is_some());
        scene.pass(2 * 60).await;
        assert!(scene.pods.get_opt("a").await.unwrap().is_none());
    });
}
