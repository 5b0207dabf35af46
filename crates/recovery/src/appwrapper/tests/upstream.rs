//! The cases of CodeFlare's own unit tests: two bare Pods, no grace periods, no retries, no time to live.

use serde_json::json;

use super::*;

fn upstream() -> Cluster {
    let mut it = Cluster::two_pods();
    it.policy.failure_grace = secs(0);
    it.policy.retry_pause = secs(0);
    it.policy.retry_limit = 0;
    it.policy.success_ttl = secs(0);
    it
}

fn resuming() -> Cluster {
    let mut it = upstream();
    it.settle();
    assert_eq!(it.phase(), Phase::Suspended);
    assert!(!it.view.has_finalizer && it.view.status.conditions.is_empty());
    it.view.suspend = false;
    it.carry_out(&it.judge(), 9);
    it.carry_out(&it.judge(), 9);
    assert_eq!(it.phase(), Phase::Resuming);
    assert!(it.view.has_finalizer && it.holds("ResourcesDeployed") && it.holds("QuotaReserved"));
    it
}

fn fully_running() -> Cluster {
    let mut it = resuming();
    it.settle();
    it.after(1);
    it.settle();
    assert_eq!((it.phase(), it.view.pods.len()), (Phase::Running, 2));
    it.set_pod(0, PodPhase::Running);
    it.settle();
    assert_eq!((it.phase(), it.holds("PodsReady")), (Phase::Running, false));
    it.set_pod(1, PodPhase::Running);
    it.settle();
    assert_eq!(
        it.condition("PodsReady"),
        ("True", "SufficientPodsReady", "2 pods running; 0 pods succeeded")
    );
    it
}

fn deleted(mut it: Cluster) {
    it.view.deleting = true;
    it.settle();
    assert!(it.gone && it.view.pods.is_empty());
}

#[test]
fn happy_path() {
    let mut it = fully_running();
    it.set_pod(0, PodPhase::Succeeded);
    it.settle();
    assert_eq!(it.phase(), Phase::Running);
    it.set_pod(1, PodPhase::Succeeded);
    it.carry_out(&it.judge(), 9);
    assert_eq!(it.phase(), Phase::Succeeded);
    let message = "2 pods succeeded and no running, pending, or failed pods";
    assert_eq!(it.condition("QuotaReserved"), ("False", "Succeeded", message));
    assert_eq!(it.condition("ResourcesDeployed"), ("True", "Succeeded", message));
    it.run_for(1);
    assert_eq!(
        it.condition("ResourcesDeployed"),
        ("False", "Succeeded", "Time to live after success of 0s expired")
    );
    deleted(it);
}

#[test]
fn suspend_while_running() {
    let mut it = fully_running();
    it.view.suspend = true;
    it.carry_out(&it.judge(), 9);
    assert_eq!(it.phase(), Phase::Suspending);
    assert!(it.holds("ResourcesDeployed") && it.holds("QuotaReserved"));
    it.settle();
    assert_eq!(it.phase(), Phase::Suspended);
    assert_eq!(it.condition("ResourcesDeployed"), ("False", "Suspended", "Suspend is true"));
    assert_eq!(it.condition("QuotaReserved"), ("False", "Suspended", "Suspend is true"));
    assert_eq!(it.condition("PodsReady"), ("False", "Suspended", ""));
    assert!(it.view.pods.is_empty());
    assert_eq!(it.events, ["Suspending: Externally suspended while in the Running phase"]);
    deleted(it);
}

#[test]
fn pod_failure() {
    let mut it = fully_running();
    it.set_pod(0, PodPhase::Failed);
    it.carry_out(&it.judge(), 9);
    assert_eq!(it.phase(), Phase::Failed);
    assert!(it.holds("ResourcesDeployed") && it.holds("QuotaReserved"));
    assert_eq!(it.events, ["Unhealthy: FoundFailedPods: 1 failed pods"]);
    assert_eq!(it.condition("Unhealthy"), ("True", "FoundFailedPods", ""));
    it.settle();
    assert_eq!(it.phase(), Phase::Failed);
    assert_eq!(
        it.condition("ResourcesDeployed"),
        ("False", "Failed", "Resources deleted for failed AppWrapper")
    );
    assert_eq!(it.condition("QuotaReserved"), ("False", "Failed", "No resources deployed"));
    deleted(it);
}

#[test]
fn creation_failure_leaves_the_first_pod() {
    let mut it = resuming();
    let decision = it.judge();
    assert_eq!(decision.verdict.actions().len(), 2, "both in one go: {decision:?}");
    it.carry_out(&decision, 1);
    it.create_error = Some(true);
    it.apply(&decision.verdict.actions()[1]);
    it.carry_out(&it.judge(), 9);
    assert_eq!(it.phase(), Phase::Failed);
    assert!(it.holds("ResourcesDeployed") && it.holds("QuotaReserved") && !it.holds("PodsReady"));
    assert_eq!(it.condition("Unhealthy"), ("True", "CreateFailed", "error creating components: refused"));
    assert_eq!(it.events, ["Unhealthy: CreateFailed: error creating components: refused"]);
    assert_eq!(it.view.pods.len(), 1);
    let reasons: Vec<_> =
        it.view.status.component_status.iter().map(|it| it.conditions[0].reason.clone()).collect();
    assert_eq!(reasons, ["ComponentCreationInitiated", "ComponentCreationErrored"]);
    deleted(it);
}

/// The status as CodeFlare's controller 1.2 writes it: only its own fields, a random name, and Unhealthy that outlives
/// a reset.
#[test]
fn one_that_codeflares_controller_left_in_mid_run_goes_on() {
    for phase in ["Running", "Resetting"] {
        let mut it = Cluster::of(&[(job(), 2)]).running();
        let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": it.now});
        let deleting = if phase == "Resetting" { "True" } else { "False" };
        let component = json!({
            "name": "job-x7k2p", "kind": "Job", "apiVersion": "batch/v1",
            "podSets": [{"path": "template.spec.template", "replicas": 2,
                         "annotations": {"workload.codeflare.dev.appwrapper/tas-pod-index-label": "l"}}],
            "conditions": [condition("ResourcesDeployed", "True", "ComponentCreatedSuccessfully")],
        });
        let status = json!({
            "phase": phase, "resettingCount": 1, "componentStatus": [component],
            "conditions": [
                condition("QuotaReserved", "True", "Resuming"),
                condition("ResourcesDeployed", "True", "Resuming"),
                condition("PodsReady", "True", "SufficientPodsReady"),
                condition("Unhealthy", "True", "FoundFailedPods"),
                condition("DeletingResources", deleting, "DeletionInitiated"),
            ],
        });
        it.view.status = serde_json::from_value(status).unwrap();
        it.found(0).object.name = "job-x7k2p".into();
        it.deeds.clear();
        if phase == "Running" {
            it.run_for(3_600);
            assert_eq!((it.phase(), it.code(), it.deeds.len()), (Phase::Running, "Healthy", 0));
            assert_eq!(it.view.name_of(0), Some("job-x7k2p"));
            it.says(0, ComponentState::Succeeded);
            it.set_pods(PodPhase::Succeeded);
            it.settle();
            assert_eq!(it.phase(), Phase::Succeeded);
        } else {
            it.run_for(93);
            it.set_pods(PodPhase::Running);
            it.run_for(2);
            assert_eq!((it.phase(), it.code()), (Phase::Running, "Healthy"), "{:?}", it.deeds);
            assert_eq!((it.deeds.len(), it.view.status.resetting_count), (2, 1), "{:?}", it.deeds);
        }
    }
}
