//! The causes of an unhealthy workload, their grace periods, and their cost in retries.

use super::*;
use crate::appwrapper::resets::Evidence;
use crate::ids::NodeName;

fn failed() -> ComponentState {
    ComponentState::Failed { message: "BackoffLimitExceeded".into() }
}

#[test]
fn failed_pods_have_the_failure_grace_period() {
    let mut it = Cluster::job().running();
    it.set_pod(0, PodPhase::Failed);
    it.settle();
    assert_eq!(it.condition("Unhealthy"), ("True", "FoundFailedPods", ""));
    assert_eq!(it.judge().verdict.wake_at(), Some(crate::moments::after(it.now, secs(60))));
    it.run_for(59);
    assert_eq!(it.phase(), Phase::Running);
    it.run_for(1);
    assert_eq!(it.phase(), Phase::Resetting);
    assert_eq!(it.view.status.resetting_count, 1);
    assert_eq!(it.events, ["Unhealthy: FoundFailedPods: 1 failed pods"]);
    let record = &it.view.status.resets[0];
    assert_eq!((record.cause.as_str(), record.counted), ("FoundFailedPods", true));
    assert_eq!((record.nodes.as_slice(), record.exit_codes.as_slice()), (&["n1".into()][..], &[1][..]));
    let pod = &record.pods[0];
    assert_eq!(
        (pod.node.as_ref().map(NodeName::as_str), pod.reason.as_str(), pod.exit_code),
        (Some("n1"), "Failed", Some(1))
    );
}

#[test]
fn pods_that_never_exist_have_admission_and_failure_grace() {
    let mut it = Cluster::of(&[(deployment(), 2)]);
    it.view.suspend = false;
    it.settle();
    it.view.pods.truncate(1);
    it.run_for(60);
    assert_eq!(it.code(), "Unhealthy");
    assert_eq!(
        it.condition("Unhealthy"),
        ("True", "InsufficientPodsReady", "1 pods pending; 0 pods running; 0 pods succeeded")
    );
    it.run_for(59);
    assert_eq!(it.phase(), Phase::Running);
    it.run_for(2);
    assert_eq!(it.phase(), Phase::Resetting);
}

#[test]
fn pods_that_never_run_have_warmup_and_failure_grace() {
    let mut it = Cluster::job();
    it.view.suspend = false;
    it.settle();
    it.run_for(299);
    assert_eq!(it.code(), "AwaitingPods");
    it.run_for(1);
    assert_eq!(it.code(), "Unhealthy");
    it.run_for(59);
    assert_eq!(it.phase(), Phase::Running);
    it.run_for(1);
    assert_eq!(it.phase(), Phase::Resetting);
    assert_eq!(
        it.events,
        ["Unhealthy: InsufficientPodsReady: 2 pods pending; 0 pods running; 0 pods succeeded"]
    );
}

#[test]
fn a_workload_that_heals_within_its_grace_is_not_reset() {
    let mut it = Cluster::job();
    it.view.suspend = false;
    it.settle();
    it.run_for(310);
    assert_eq!(it.code(), "Unhealthy");
    it.set_pods(PodPhase::Running);
    it.run_for(600);
    assert_eq!(it.condition("Unhealthy"), ("False", "FoundNoFailedPods", ""));
    assert_eq!((it.code(), it.view.status.resetting_count), ("Healthy", 0));
}

#[test]
fn a_failed_component_has_no_grace() {
    let mut it = Cluster::job().running();
    it.says(0, failed());
    it.settle();
    assert_eq!(it.phase(), Phase::Resetting);
    assert_eq!(it.condition("Unhealthy"), ("True", "FailedComponent", "Found 1 failed components"));
    assert_eq!(it.events, ["Unhealthy: FailedComponent: Found 1 failed components"]);
}

/// `ray job stop`: the pods are deleted with the cluster, and the job must not run again.
#[test]
fn a_component_that_somebody_stopped_is_not_run_again() {
    for pods_stay in [true, false] {
        let mut it = Cluster::of(&[(kind("ray.io", "v1", "RayJob"), 2)]).running();
        it.says(0, ComponentState::Stopped { message: String::new() });
        if !pods_stay {
            it.view.pods.clear();
        }
        it.run_for(3_600);
        assert_eq!((it.phase(), it.view.status.resetting_count), (Phase::Failed, 0));
        let message = "Found 1 failed components; 1 of them were stopped by somebody";
        assert_eq!(it.condition("Unhealthy"), ("True", "FailedComponent", message));
        assert_eq!(it.deeds.iter().filter(|it| it.starts_with("create")).count(), 1, "{:?}", it.deeds);
        assert!(!it.holds("QuotaReserved") && it.view.pods.is_empty());
    }
}

#[test]
fn a_component_that_a_user_deletes_fails_the_appwrapper() {
    let mut it = Cluster::job().running();
    it.lose(0);
    it.settle();
    assert_eq!(it.phase(), Phase::Failed);
    let message = "Only found 0 deployed components, but was expecting 1";
    assert_eq!(it.condition("Unhealthy"), ("True", "MissingComponent", message));
    assert_eq!(it.events, [format!("Unhealthy: MissingComponent: {message}")]);

    let mut it = Cluster::job().running();
    it.found(0).deletion = Some(Deletion { timestamp: at(2), grace_seconds: Some(0) });
    it.settle();
    assert_eq!(it.phase(), Phase::Failed, "one that is being deleted is as good as gone");
}

#[test]
fn a_bare_pod_that_was_evicted_or_lost_its_node_is_reset_and_that_does_not_count() {
    for (how, cause) in [
        ("evicted", "MissingComponent"),
        ("node gone", "NodeLost"),
        ("node unreachable", "NodeLost"),
        ("terminating", "MissingComponent"),
    ] {
        let mut it = Cluster::two_pods().running();
        match how {
            "evicted" => it.found(0).disruption = Some("EvictionByEvictionAPI".into()),
            "node gone" => it.view.nodes.clear(),
            "node unreachable" => it.view.nodes.get_mut("n1").unwrap().unreachable = true,
            _ => {
                it.found(0).disruption = Some("DeletionByTaintManager".into());
                it.found(0).deletion = Some(Deletion { timestamp: at(9), grace_seconds: Some(30) });
            }
        }
        if how != "terminating" {
            it.lose(0);
        }
        it.settle();
        assert_eq!((it.phase(), it.view.status.resetting_count), (Phase::Resetting, 0), "{how}");
        assert_eq!(it.view.status.resets[0].cause, cause, "{how}");
        it.view.nodes.insert("n1".into(), NodeView::default());
        if how == "terminating" {
            it.lose(0);
        }
        it.run_for(95);
        assert_eq!(it.phase(), Phase::Running, "{how}");
    }
}

#[test]
fn a_component_that_nobody_saw_go_is_reset() {
    let mut it = Cluster::job().running();
    it.lose(0);
    it.view.components[0].seen = Seen::Absent { last: None };
    it.settle();
    assert_eq!((it.phase(), it.view.status.resetting_count), (Phase::Resetting, 1));
}

/// The watch had a gap. Meanwhile a Job may have succeeded and been deleted by its own time to live, or a bare Pod may
/// have been evicted.
#[test]
fn a_component_that_went_in_a_gap_of_the_watch_was_not_deleted_by_a_user_as_far_as_anybody_knows() {
    for (kind, how, phase, count) in [
        (job(), "running", Phase::Resetting, 1),
        (bare_pod(), "running", Phase::Resetting, 1),
        (bare_pod(), "evicted", Phase::Resetting, 0),
        (job(), "succeeded", Phase::Succeeded, 0),
        (job(), "failed", Phase::Resetting, 1),
        (bare_pod(), "terminating", Phase::Failed, 0),
    ] {
        let mut it = Cluster::of(&[(kind, 1)]).running();
        match how {
            "evicted" => it.found(0).disruption = Some("EvictionByEvictionAPI".into()),
            "succeeded" => it.says(0, ComponentState::Succeeded),
            "failed" => it.says(0, failed()),
            // A user was seen to delete it.
            "terminating" => {
                it.found(0).deletion = Some(Deletion { timestamp: at(9), grace_seconds: Some(30) });
            }
            _ => {}
        }
        it.lose_with(0, End::Missed);
        it.settle();
        assert_eq!((it.phase(), it.view.status.resetting_count), (phase, count), "{how}");
    }
}

#[test]
fn a_component_that_cannot_be_seen_is_not_missing() {
    let mut it = Cluster::job().running();
    it.view.components[0].seen = Seen::Unknown("its kind is not watched yet".into());
    it.settle();
    assert_eq!(it.code(), "Healthy");
    it.set_pods(PodPhase::Succeeded);
    it.settle();
    assert_eq!(it.phase(), Phase::Running, "nor is it done");
}

#[test]
fn every_step_of_no_return_needs_a_live_look() {
    let mut it = Cluster::job().running();
    it.lose(0);
    assert!(it.judge().verdict.actions()[0].needs_a_second_look());
    let mut it = Cluster::job().running();
    it.set_pods(PodPhase::Succeeded);
    it.says(0, ComponentState::Succeeded);
    assert!(it.judge().verdict.actions()[0].needs_a_second_look());
}

#[test]
fn autopilot_evacuates_at_once_and_that_does_not_count() {
    let mut it = Cluster::job().running();
    let flagged =
        it.policy.autopilot.no_execute(|key| (key == "autopilot.ibm.com/gpuhealth").then_some("EVICT"));
    let warned =
        it.policy.autopilot.no_execute(|key| (key == "autopilot.ibm.com/gpuhealth").then_some("WARN"));
    assert!(warned.is_empty());
    it.view.nodes.get_mut("n1").unwrap().no_execute = flagged;
    it.settle();
    assert_eq!((it.phase(), it.view.status.resetting_count), (Phase::Resetting, 0));
    let message = "Workload contains pods using NoExecute resources on Nodes: map[n1:{}]";
    assert_eq!(it.condition("Unhealthy"), ("True", "AutopilotNoExecute", message));
    assert_eq!(it.events, [format!("Unhealthy: {message}")]);
    assert!(!it.view.status.resets[0].counted);
}

#[test]
fn autopilot_looks_at_pods_that_use_the_resource_and_run() {
    let flag = |it: &mut Cluster| {
        it.view.nodes.get_mut("n1").unwrap().no_execute = BTreeSet::from(["nvidia.com/gpu".into()]);
    };
    let mut it = Cluster::job().running();
    it.view.pods.iter_mut().for_each(|pod| pod.resources.clear());
    flag(&mut it);
    it.settle();
    assert_eq!(it.code(), "Healthy");
    let mut it = Cluster::job().running();
    it.policy.autopilot.monitor_nodes = false;
    flag(&mut it);
    it.settle();
    assert_eq!(it.code(), "Healthy");
}

#[test]
fn without_retries_an_evacuation_ends_in_failed_only_in_the_old_way() {
    for (limit, counting, phase) in [
        (0, Counting::OwnFaults, Phase::Resetting),
        (-1, Counting::OwnFaults, Phase::Resetting),
        (0, Counting::AsUpstream, Phase::Failed),
        (-1, Counting::AsUpstream, Phase::Failed),
    ] {
        let mut it = Cluster::job().running();
        it.policy.retry_limit = limit;
        it.policy.counting = counting;
        it.view.nodes.get_mut("n1").unwrap().no_execute = BTreeSet::from(["nvidia.com/gpu".into()]);
        it.settle();
        assert_eq!(it.phase(), phase);
    }
}

#[test]
fn evacuations_need_no_budget_but_in_the_old_way_they_do() {
    for (counting, expected) in
        [(Counting::OwnFaults, Phase::Resetting), (Counting::AsUpstream, Phase::Failed)]
    {
        let mut it = Cluster::job().running();
        it.policy.counting = counting;
        it.view.status.resetting_count = 3;
        it.view.nodes.get_mut("n1").unwrap().no_execute = BTreeSet::from(["nvidia.com/gpu".into()]);
        it.settle();
        assert_eq!((it.phase(), it.view.status.resetting_count), (expected, 3));
    }
}

#[test]
fn no_room_in_the_cluster_does_not_count_but_in_the_old_way_it_does() {
    for (counting, count) in [(Counting::OwnFaults, 0), (Counting::AsUpstream, 1)] {
        let mut it = Cluster::job();
        it.policy.counting = counting;
        it.view.suspend = false;
        it.settle();
        it.view.pods.iter_mut().for_each(|pod| pod.unschedulable = true);
        it.run_for(361);
        assert_eq!((it.phase(), it.view.status.resetting_count), (Phase::Resetting, count));
    }
}

#[test]
fn failed_pods_that_were_all_preempted_do_not_count() {
    let mut it = Cluster::job().running();
    it.set_pods(PodPhase::Failed);
    it.view.pods.iter_mut().for_each(|pod| pod.disruption = Some("PreemptionByScheduler".into()));
    it.run_for(61);
    assert_eq!((it.phase(), it.view.status.resetting_count), (Phase::Resetting, 0));
    assert_eq!(it.view.status.resets[0].pods[0].reason, "PreemptionByScheduler", "preempted or crashed?");
}

#[test]
fn lost_nodes_count_only_where_the_administrator_says_so() {
    for (unreachable, evicted) in [(true, false), (false, true)] {
        let mut it = Cluster::job().running();
        it.policy.unreachable_nodes = false;
        *it.view.nodes.get_mut("n1").unwrap() =
            NodeView { unreachable, force_evicted: evicted, heartbeat: silent(), ..NodeView::default() };
        it.settle();
        assert_eq!(it.code(), "Healthy");
        it.policy.unreachable_nodes = true;
        it.policy.force_evicted_nodes = true;
        it.settle();
        let at_once = it.phase() == Phase::Resetting;
        assert_eq!(at_once, evicted, "an unreachable node may come back, a force-evicted one does not");
        it.run_for(60);
        assert_eq!((it.phase(), it.view.status.resetting_count), (Phase::Resetting, 0));
        assert_eq!(it.view.status.resets[0].cause, "NodeLost");
        assert_eq!(it.view.status.resets[0].nodes, ["n1"]);
    }
}

/// A lost node costs no retry, unless the administrator configures that. A workload that ends in Failed has used them
/// up.
#[test]
fn lost_nodes_cost_retries_only_if_they_are_to() {
    for (count_lost_nodes, counting, limit, expected, phase) in [
        (false, Counting::OwnFaults, "0", 0, Phase::Resetting),
        (true, Counting::OwnFaults, "2", 1, Phase::Resetting),
        (true, Counting::OwnFaults, "0", 0, Phase::Failed),
        (false, Counting::AsUpstream, "2", 1, Phase::Resetting),
    ] {
        let mut it = Cluster::job().annotate(&[("retryLimit", limit)]).running();
        it.policy = AppWrapperPolicy { count_lost_nodes, counting, ..it.policy };
        lose_node(&mut it);
        it.run_for(61);
        let record = &it.view.status.resets[0];
        assert_eq!((it.phase(), it.view.status.resetting_count), (phase, expected), "{record:?}");
        assert_eq!((&*record.cause, record.counted), ("NodeLost", expected == 1));
        assert_eq!(record.nodes, ["n1"]);
        assert_eq!(record.pods[0].node.as_ref().map(NodeName::as_str), Some("n1"));
    }
}

fn lose_node(it: &mut Cluster) {
    let lost = NodeView { unreachable: true, heartbeat: silent(), ..NodeView::default() };
    it.view.nodes.insert("n1".into(), lost);
}

/// A lost node alone is no cause here. But if its pods are evicted and not replaced, the history names the node, and no
/// retry is used.
#[test]
fn missing_pods_on_lost_nodes_tell_of_the_node_also_where_it_is_no_cause() {
    let evict = |it: &mut Cluster, index: usize| {
        it.view.pods[index].deletion = Some(Deletion { timestamp: it.now, grace_seconds: Some(30) });
    };
    for case in ["evicted", "marked Failed", "replaced, and not started", "not started"] {
        let mut it = Cluster::job().running();
        it.policy.unreachable_nodes = false;
        it.view.nodes.insert("n2".into(), NodeView::default());
        it.view.pods[1].node_name = Some("n2".into());
        lose_node(&mut it);
        it.run_for(600);
        assert_eq!((it.phase(), it.code()), (Phase::Running, "Healthy"), "{case}");
        match case {
            "evicted" => evict(&mut it, 0),
            "marked Failed" => {
                it.view.pods[0].phase = PodPhase::Failed;
                it.view.pods[0].disruption = Some("DeletionByTaintManager".into());
            }
            "replaced, and not started" => {
                evict(&mut it, 0);
                let new = it.add_pod(0, PodPhase::Pending);
                it.view.pods[new].node_name = Some("n2".into());
            }
            _ => it.view.pods[0].phase = PodPhase::Pending,
        }
        // The longest case: five minutes to start, and one to recover.
        it.run_for(362);
        let record = &it.view.status.resets[0];
        assert!(it.phases.contains(&Phase::Resetting), "{case}");
        assert_eq!((&*record.cause, record.counted), ("NodeLost", false), "{case}");
        assert_eq!((it.view.status.resetting_count, &*record.nodes), (0, &["n1".into()][..]), "{case}");
        assert!(record.pods.iter().any(|pod| pod.node == Some("n1".into())), "{case}: {record:?}");
    }

    // One pod is on the lost node, and another one is missing. The node is not the cause of that, but the pod is named.
    let mut it = Cluster::job().running();
    it.policy.unreachable_nodes = false;
    lose_node(&mut it);
    evict(&mut it, 0);
    it.view.pods.pop();
    it.run_for(122);
    let record = &it.view.status.resets[0];
    assert_eq!((&*record.cause, record.counted), ("InsufficientPodsReady", true));
    assert_eq!((&*record.nodes, record.pods.len()), (&["n1".into()][..], 1));

    // The kubelet lives, so its node is not lost.
    let mut it = Cluster::job().running();
    it.policy.unreachable_nodes = false;
    let heartbeat = Heartbeat::UNREAD.then(Some(NodeLease::new(at(3_600), secs(3_600))), it.now);
    it.view.nodes.insert("n1".into(), NodeView { unreachable: true, heartbeat, ..NodeView::default() });
    evict(&mut it, 0);
    evict(&mut it, 1);
    it.run_for(122);
    assert_eq!(it.view.status.resets[0].cause, "InsufficientPodsReady");
}

/// A bare Pod that is evicted from a lost node names the node, although the node alone was no cause before.
#[test]
fn an_evicted_bare_pod_tells_of_its_lost_node_also_where_that_is_no_cause() {
    let mut it = Cluster::two_pods().running();
    it.policy.unreachable_nodes = false;
    lose_node(&mut it);
    it.found(0).deletion = Some(Deletion { timestamp: it.now, grace_seconds: Some(30) });
    it.settle();
    let record = &it.view.status.resets[0];
    assert_eq!((it.phase(), &*record.cause, record.counted), (Phase::Resetting, "NodeLost", false));
    assert_eq!((&*record.nodes, &*record.pods[0].name), (&["n1".into()][..], "c0"));
}

/// The control plane has lost the node, but its kubelet renews its Lease: its pods are fine.
#[test]
fn a_kubelet_that_renews_its_lease_is_not_lost() {
    let mut it = Cluster::job().running();
    let lease = |it: &Cluster| Some(NodeLease::new(it.now, secs(40)));
    let mut node = NodeView { unreachable: true, ..NodeView::default() };
    it.view.nodes.insert("n1".into(), node.clone());
    it.settle();
    assert_eq!(it.code(), "Healthy", "its Lease was not read yet");
    node.heartbeat = node.heartbeat.then(lease(&it), it.now);
    it.view.nodes.insert("n1".into(), node.clone());
    let waits = it.settle();
    assert_eq!(
        waits.verdict.wake_at(),
        Some(crate::moments::after(it.now, secs(40))),
        "it may be silent then"
    );
    it.after(30);
    node.heartbeat = node.heartbeat.then(lease(&it), it.now);
    it.view.nodes.insert("n1".into(), node);
    it.run_for(39);
    assert_eq!(it.code(), "Healthy");
    it.run_for(1 + 59);
    assert_eq!((it.phase(), it.condition("Unhealthy").1), (Phase::Running, "NodeLost"));
    it.run_for(2);
    assert_eq!((it.phase(), &*it.view.status.resets[0].cause), (Phase::Resetting, "NodeLost"));
}

/// A pod on a lost node is evicted before the grace period ends. The node is still the cause, and the history says so.
#[test]
fn a_lost_node_stays_the_cause_when_its_pods_are_evicted() {
    for how in ["marked", "failed", "gone", "gone and the node is back"] {
        let mut it = Cluster::job().running();
        lose_node(&mut it);
        it.run_for(20);
        assert_eq!(it.condition("Unhealthy").1, "NodeLost");
        match how {
            "marked" => {
                it.view.pods[0].deletion = Some(Deletion { timestamp: it.now, grace_seconds: Some(30) });
            }
            "failed" => {
                it.view.pods[0].phase = PodPhase::Failed;
                it.view.pods[0].disruption = Some("DeletionByTaintManager".into());
            }
            "gone" => drop(it.view.pods.remove(0)),
            _ => {
                it.view.pods.clear();
                it.view.nodes.insert("n1".into(), NodeView::default());
            }
        }
        it.run_for(39);
        assert_eq!((it.phase(), it.condition("Unhealthy").1), (Phase::Running, "NodeLost"), "{how}");
        it.run_for(2);
        assert_eq!((it.phase(), it.view.status.resetting_count), (Phase::Resetting, 0), "{how}");
        assert_eq!(it.view.status.resets[0].cause, "NodeLost", "{how}");
        assert_eq!(it.view.status.resets[0].nodes, ["n1"], "{how}");
    }
}

/// The workload's own controller replaces the pods in time, which is the purpose of the grace period.
#[test]
fn pods_that_are_replaced_elsewhere_heal_a_lost_node() {
    let mut it = Cluster::job().running();
    lose_node(&mut it);
    it.view.nodes.insert("n2".into(), NodeView::default());
    it.run_for(20);
    let now = it.now;
    for pod in &mut it.view.pods {
        pod.deletion = Some(Deletion { timestamp: now, grace_seconds: Some(30) });
    }
    for _ in 0..2 {
        let new = it.add_pod(0, PodPhase::Running);
        it.view.pods[new].node_name = Some("n2".into());
    }
    it.run_for(600);
    assert_eq!((it.phase(), it.code(), it.condition("Unhealthy").0), (Phase::Running, "Healthy", "False"));
}

/// A bare Pod is evicted from a lost node. Only Salvor creates it again, and the node is the cause.
#[test]
fn a_bare_pod_that_is_evicted_from_a_lost_node_tells_of_the_node() {
    let mut it = Cluster::two_pods().running();
    lose_node(&mut it);
    it.run_for(20);
    it.found(0).disruption = Some("DeletionByTaintManager".into());
    it.found(0).deletion = Some(Deletion { timestamp: it.now, grace_seconds: Some(30) });
    it.settle();
    let record = &it.view.status.resets[0];
    assert_eq!((it.phase(), &*record.cause, record.counted), (Phase::Resetting, "NodeLost", false));
    assert_eq!(record.nodes, ["n1"]);
    assert_eq!(record.pods[0].reason, "DeletionByTaintManager");
}

#[test]
fn exit_codes_decide_whether_another_attempt_is_of_use() {
    let cases = [
        ("terminalExitCodes", "3, 10", 10, Phase::Failed),
        ("terminalExitCodes", "3, 10", 1, Phase::Resetting),
        ("retryableExitCodes", "10", 10, Phase::Resetting),
        ("retryableExitCodes", "10", 1, Phase::Failed),
    ];
    for (key, codes, code, expected) in cases {
        let mut it = Cluster::job().annotate(&[(key, codes)]).running();
        it.set_pod(0, PodPhase::Failed);
        it.view.pods[0].exit_codes = vec![code];
        it.run_for(60);
        assert_eq!(it.phase(), expected, "{key} {codes} and {code}");
        let mut it = Cluster::job().annotate(&[(key, codes)]).running();
        it.set_pod(0, PodPhase::Failed);
        it.view.pods[0].exit_codes = vec![code];
        it.says(0, failed());
        it.settle();
        assert_eq!(it.phase(), expected, "failed component: {key} {codes} and {code}");
    }
}

#[test]
fn an_evicted_pod_without_exit_code_is_not_terminal() {
    let mut it = Cluster::job().annotate(&[("retryableExitCodes", "10")]).running();
    it.set_pod(0, PodPhase::Failed);
    it.view.pods[0].exit_codes.clear();
    it.run_for(60);
    assert_eq!(it.phase(), Phase::Resetting);
}

#[test]
fn the_retry_limit_ends_in_failed() {
    let mut it = Cluster::job().annotate(&[("retryLimit", "2")]).running();
    for round in 1..=3 {
        it.says(0, failed());
        it.settle();
        let expected = if round <= 2 { Phase::Resetting } else { Phase::Failed };
        assert_eq!((it.phase(), it.view.status.resetting_count), (expected, round.min(2)), "round {round}");
        if round <= 2 {
            it.run_for(92);
            assert_eq!(it.phase(), Phase::Running);
        }
    }
    assert_eq!(it.condition("QuotaReserved"), ("False", "Failed", "No resources deployed"));
    let causes: Vec<_> = it.view.status.resets.iter().map(|it| (it.phase.as_str(), it.counted)).collect();
    assert_eq!(causes, [("Resetting", true), ("Resetting", true), ("Failed", false)]);
}

#[test]
fn the_history_is_bounded() {
    let mut it =
        Cluster::job().annotate(&[("retryLimit", "1000"), ("retryPausePeriodDuration", "0s")]).running();
    for _ in 0..15 {
        for index in 0..40 {
            let index = it.add_pod(0, if index % 2 == 0 { PodPhase::Failed } else { PodPhase::Running });
            it.view.pods[index].exit_codes = vec![i32::try_from(index).unwrap()];
        }
        it.says(0, ComponentState::Failed { message: "x".repeat(5000) });
        it.settle();
        it.run_for(3);
    }
    let resets = &it.view.status.resets;
    assert_eq!((it.view.status.resetting_count, resets.len()), (15, resets::HISTORY));
    assert!(resets.iter().all(|it| it.pods.len() <= 10 && it.exit_codes.len() <= 10));
    assert!(serde_json::to_vec(resets).unwrap().len() < 16_000);
}

#[test]
fn a_creation_that_fails_for_now_is_tried_until_the_admission_grace_ends() {
    let mut it = Cluster::job();
    it.view.suspend = false;
    it.create_error = Some(false);
    it.settle();
    assert_eq!(it.code(), "CreationFailed");
    it.run_for(59);
    assert_eq!(it.phase(), Phase::Resuming);
    let tries = it.view.memory.creation[&0].attempts;
    assert!((5..=8).contains(&tries), "{tries} attempts in a minute");
    it.run_for(1);
    assert_eq!((it.phase(), it.view.status.resetting_count), (Phase::Resetting, 1));
    assert_eq!(it.condition("Unhealthy"), ("True", "CreateFailed", "error creating components: refused"));
    it.create_error = None;
    it.run_for(91);
    it.set_pods(PodPhase::Running);
    it.run_for(2);
    assert_eq!(it.code(), "Healthy");
}

/// Every creation stays unanswered. The grace period ends during a request, or between two attempts.
#[test]
fn a_creation_that_is_never_answered_ends_with_the_admission_grace() {
    let mut it = Cluster::job();
    it.view.suspend = false;
    it.create_error = Some(false);
    it.policy.admission_grace = secs(30);
    for _ in 0..20 {
        let decision = it.judge();
        if it.phase() == Phase::Resetting {
            break;
        }
        let creates =
            decision.verdict.actions().iter().any(|step| matches!(step, Step::CreateComponent { .. }));
        match decision.verdict.wake_at() {
            Some(until) => it.now = until,
            None => it.carry_out(&decision, usize::MAX),
        }
        if creates {
            // The time-out of a request.
            it.after(10);
            let now = it.now;
            it.view.memory.creation.get_mut(&0).unwrap().at = now;
        }
    }
    assert_eq!((it.phase(), &*it.view.status.resets[0].cause), (Phase::Resetting, "CreateFailed"));
    assert!(it.now <= at(45), "{}", it.now);
}

/// The API server was down for longer than the grace period. The failure is old, so the creation is retried once before
/// the reset.
#[test]
fn an_old_failure_does_not_end_a_creation() {
    let mut it = Cluster::job();
    it.view.suspend = false;
    it.create_error = Some(false);
    it.settle();
    assert_eq!((it.phase(), it.code()), (Phase::Resuming, "CreationFailed"));
    it.create_error = None;
    it.after(3_600);
    it.run_for(2);
    assert_eq!((it.phase(), it.view.status.resetting_count), (Phase::Running, 0));
}

#[test]
fn what_can_never_be_created_fails_at_once() {
    for case in ["fatal answer", "a template without a kind", "somebody else's"] {
        let mut it = Cluster::job();
        it.view.suspend = false;
        match case {
            "fatal answer" => it.create_error = Some(true),
            "a template without a kind" => it.view.components[0].seen = Seen::NoSuchKind,
            _ => {
                let mut taken = cluster::object("x", job(), "c0", at(-9), ComponentState::Active);
                taken.owner_uid = Some("an AppWrapper of the same name that is gone".into());
                it.view.components[0].seen = Seen::Found(Box::new(taken));
            }
        }
        it.settle();
        assert_eq!(it.phase(), Phase::Failed, "{case}");
        assert_eq!(it.condition("Unhealthy").1, "CreateFailed", "{case}");
        assert!(!it.holds("QuotaReserved"), "{case}");
        assert!(it.deeds.is_empty(), "nothing of others is deleted: {:?}", it.deeds);
    }
}

/// A kind that is not served gets the whole admission grace period, counted from when it was first missed.
#[test]
fn a_kind_that_is_not_served_has_the_whole_admission_grace() {
    let unserved = |it: &mut Cluster, seen: Seen| {
        it.view.components[0].seen = seen;
        let now = it.now;
        it.view.memory.unserved.entry(0).or_insert(now);
    };
    for (missed_after, fails_at) in [(0, 60), (40, 100)] {
        let mut it = Cluster::job();
        it.view.suspend = false;
        it.view.components[0].seen = Seen::Unknown("not listed yet".into());
        it.run_for(missed_after);
        unserved(&mut it, Seen::Unknown("not served now".into()));
        it.settle();
        assert_eq!((it.phase(), it.code()), (Phase::Resuming, "CreationFailed"));
        assert_eq!(it.judge().verdict.wake_at(), Some(at(fails_at)));
        let mut back = it.clone();
        // The absence of the kind is confirmed, which changes nothing.
        unserved(&mut it, Seen::NoSuchKind);
        it.run_for(fails_at - missed_after - 1);
        assert_eq!(it.phase(), Phase::Resuming);
        it.run_for(1);
        assert_eq!((it.phase(), it.view.status.resetting_count), (Phase::Failed, 0));
        let message = "error creating components: no matches for kind \"Job\" in version \"batch/v1\"";
        assert_eq!(it.condition("Unhealthy"), ("True", "CreateFailed", message));
        assert!(!it.holds("QuotaReserved"));
        back.run_for(20);
        back.view.memory.unserved.clear();
        back.view.components[0].seen = Seen::Absent { last: None };
        back.run_for(9);
        assert_eq!(
            (back.phase(), back.view.status.resets.len()),
            (Phase::Running, 0),
            "it was served in time"
        );
    }
}

/// While a kind is not served, it is unknown whether its component exists. The component counts as gone once the
/// absence of the kind is certain and no pod may belong to it.
#[test]
fn a_component_whose_kind_is_not_served_is_not_gone_while_it_may_have_pods() {
    let mut it = Cluster::of(&[(job(), 2), (deployment(), 1)]).running();
    it.view.components[0].seen = Seen::Unknown("not served now".into());
    it.run_for(3_600);
    assert_eq!((it.phase(), it.code()), (Phase::Running, "Healthy"));
    it.view.components[0].seen = Seen::NoSuchKind;
    it.run_for(3_600);
    assert_eq!((it.phase(), it.code()), (Phase::Running, "Healthy"), "its pods run");
    for pod in &mut it.view.pods {
        // Without their owner, the component of these pods is unknown.
        pod.component = pod.component.filter(|of| *of != 0);
    }
    it.run_for(3_600);
    assert_eq!((it.phase(), it.code()), (Phase::Running, "Healthy"));
    it.view.pods.retain(|pod| pod.component == Some(1));
    it.settle();
    assert_eq!((it.phase(), &*it.view.status.resets[0].cause), (Phase::Resetting, "MissingComponent"));
    assert!(it.holds("QuotaReserved"));
}

/// A status write for each attempt would be one more request that may stay unanswered.
#[test]
fn a_creation_without_an_answer_is_tried_again_after_seconds_that_double_and_costs_no_status() {
    let mut it = Cluster::job();
    it.view.suspend = false;
    it.create_error = Some(false);
    it.settle();
    let before = it.writes;
    for (attempts, seconds) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (9, 16)] {
        let now = it.now;
        it.view.status.component_status[0].conditions.clear();
        it.view.memory.creation.insert(
            0,
            CreateFailure { message: "no answer".into(), fatal: false, unanswered: true, at: now, attempts },
        );
        let verdict = it.judge().verdict;
        assert_eq!(verdict.wake_at(), Some(crate::moments::after(now, secs(seconds))), "{attempts}");
        assert!(verdict.actions().is_empty());
    }
    assert_eq!(it.writes, before);
}

#[test]
fn a_name_that_is_still_being_freed_is_waited_for() {
    let mut it = Cluster::job();
    it.view.suspend = false;
    it.settle();
    it.found(0).deletion = Some(Deletion { timestamp: at(0), grace_seconds: Some(0) });
    assert_eq!((it.code(), it.judge().verdict.wake_at()), ("CreationFailed", Some(at(60))));
    it.view.components[0].seen = Seen::Absent { last: None };
    it.settle();
    assert_eq!(it.code(), "JustCreated");
}

/// Conditions have whole seconds, rounded up. That does not extend the grace period.
#[test]
fn the_grace_counts_from_the_moment_behind_the_condition() {
    let moment = |millis: i64| at(0) + SignedDuration::from_millis(millis);
    let mut memory = Memory::default();
    let mut status = AppWrapperStatus::default();
    let evidence = Evidence::new(Cause::FoundFailedPods, "a pod failed");
    status.set_unhealthy(&evidence, moment(100));
    assert_eq!(status.unhealthy_since(), Some(at(1)));
    memory.wrote(&status, moment(120));
    assert_eq!(memory.moment_behind(at(1)), moment(120));
    memory.wrote(&status, moment(5_000));
    assert_eq!(memory.moment_behind(at(1)), moment(120), "a later write of the same condition moves nothing");
    assert_eq!(memory.moment_behind(at(2)), at(2), "somebody else wrote another one");

    status.set_healthy(moment(6_000));
    memory.wrote(&status, moment(6_000));
    assert_eq!(memory.moment_behind(at(1)), at(1), "it is over");

    status.set_unhealthy(&evidence, moment(9_500));
    memory.wrote(&status, moment(-60_000));
    assert_eq!(memory.moment_behind(at(10)), at(9), "a clock that was set back makes it one second at most");
}

/// Leaving a node is no retry. Every other reset needs a retry limit that allows one, whoever is at fault.
#[test]
fn without_retries_a_workload_is_reset_only_to_leave_a_node() {
    use resets::{Course, Evidence, GivenUp};
    let policy = AppWrapperPolicy {
        counting: Counting::OwnFaults,
        count_lost_nodes: false,
        ..AppWrapperPolicy::default()
    };
    let timers = Timers::of(&annotated(&[("retryLimit", "0")]), &policy);
    for (cause, leaves) in [
        (Cause::AutopilotNoExecute, true),
        (Cause::NodeLost, true),
        (Cause::CreateFailed, false),
        (Cause::MissingComponent, false),
        (Cause::FailedComponent, false),
        (Cause::FoundFailedPods, false),
        (Cause::InsufficientPodsReady, false),
        (Cause::Refused, false),
    ] {
        let evidence = Evidence { own_fault: false, ..Evidence::new(cause, "") };
        let expected =
            if leaves { Course::Reset { counted: false } } else { Course::Fail(GivenUp::NoRetries) };
        assert_eq!(Course::of(&evidence, 0, &timers, &policy), expected, "{cause}");
    }
}
