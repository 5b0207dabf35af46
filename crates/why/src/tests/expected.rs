//! When work is expected back.

use super::*;

fn told(answer: &Answer) -> String {
    answer.expected_back.told(NOW.parse().unwrap()).unwrap_or_default()
}

/// A pod on a node that was marked as lost at 09:58, with the tolerations that every pod gets.
fn evicted_later(more: Value) -> Cluster {
    let mut lost = node("lost", "Unknown");
    lost["spec"]["taints"][0]["timeAdded"] = "2026-11-16T09:58:00Z".into();
    let tolerations = json!([
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 20},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
    ]);
    let mut spec = json!({"spec": {"nodeName": "lost", "terminationGracePeriodSeconds": 30, "tolerations": tolerations}});
    merge(&mut spec, more);
    cluster().with(&NODE, lost).with(&LEASE, node_lease("lost")).with(&POD, pod("p", "o", spec))
}

fn owned_by(kind: &str) -> Value {
    json!({"metadata": {"ownerReferences": [{"uid": "o", "kind": kind, "name": "train", "controller": true}]}})
}

fn merged(mut one: Value, other: Value) -> Value {
    merge(&mut one, other);
    one
}

#[test]
fn a_deployments_pod_is_back_when_it_is_evicted_with_or_without_salvor() {
    for election in [None, Some(election(ALIVE, GATE))] {
        let mut cluster = evicted_later(owned_by("ReplicaSet"));
        if let Some(election) = election {
            cluster = cluster.with(&LEASE, election);
        }
        let answer = cluster.why(&POD, "p");
        assert_eq!(told(&answer), "Expected back 10:03:00 (in 3m): eviction 10:03:00");
        assert_eq!(answer.root_causes[0].expected_back, answer.expected_back);
        let value = serde_json::to_value(&answer).unwrap();
        let expected = json!({
            "at": "2026-11-16T10:03:00Z",
            "phases": [{"name": "eviction", "until": "2026-11-16T10:03:00Z"}],
            "dependsOn": null,
        });
        assert_eq!((&value["expectedBack"], &value["rootCauses"][0]["expectedBack"]), (&expected, &expected));
    }
}

#[test]
fn a_pod_that_has_to_end_is_back_when_salvor_has_ended_it() {
    let of = |more: Value| evicted_later(merged(owned_by("StatefulSet"), more));
    let consents = of(consenting(60)).with(&LEASE, election(ALIVE, GATE)).why(&POD, "p");
    assert_eq!(
        told(&consents),
        "Expected back 10:04:30 (in 4m30s): eviction 10:03:00, grace 10:03:30, Salvor 10:04:30"
    );
    let cases: Vec<(&str, Value, Option<Value>, &str)> = vec![
        ("no Salvor", consenting(60), None, "node lost: it has to come back"),
        ("no consent", json!({}), Some(election(ALIVE, GATE)), "the owner of pod p, who has not consented"),
        ("no leader", consenting(60), Some(election(DEAD, GATE)), "no replica of Salvor leads"),
        ("off", consenting(60), Some(election(ALIVE, "")), "zombie recovery is off"),
    ];
    for (case, more, election, on) in cases {
        let mut cluster = of(more);
        if let Some(election) = election {
            cluster = cluster.with(&LEASE, election);
        }
        let answer = cluster.why(&POD, "p");
        let line = told(&answer);
        assert_eq!(answer.expected_back.at, None, "{case}: {line}");
        assert!(line.starts_with("Expected back: depends on ") && line.contains(on), "{case}: {line}");
        assert!(line.ends_with("; before that: eviction 10:03:00, grace 10:03:30"), "{case}: {line}");
    }
}

#[test]
fn a_jobs_pod_waits_for_its_end_only_if_its_job_does() {
    let spec = |policy: Value| job(json!({"spec": policy}));
    for (policy, back) in [
        (json!({}), at("2026-11-16T10:03:00Z")),
        (json!({"podReplacementPolicy": "TerminatingOrFailed"}), at("2026-11-16T10:03:00Z")),
        (json!({"podReplacementPolicy": "Failed"}), at("2026-11-16T10:04:30Z")),
        (json!({"podFailurePolicy": {"rules": []}}), at("2026-11-16T10:04:30Z")),
    ] {
        let cluster = evicted_later(consenting(60))
            .with(&JOB, spec(policy.clone()))
            .with(&LEASE, election(ALIVE, GATE));
        assert_eq!(cluster.why(&POD, "p").expected_back.at, back, "{policy}");
    }
}

#[test]
fn a_volume_is_released_six_minutes_later_unless_the_node_is_known_to_be_off() {
    let mounts =
        json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}});
    let with = |mode: &str, on: &str| {
        evicted_later(merged(merged(owned_by("StatefulSet"), consenting(60)), mounts.clone()))
            .with(&LEASE, election(ALIVE, GATE))
            .with(&CLAIM, json!({"metadata": {"name": "data", "namespace": "ns"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}))
            .with(&VOLUME, json!({"metadata": {"name": "pv"}, "spec": {"accessModes": [mode]}}))
            .with(&ATTACHMENT, json!({"metadata": {"name": "csi-1"}, "spec": {"nodeName": on, "source": {"persistentVolumeName": "pv"}}}))
    };
    let line = told(&with("ReadWriteOnce", "lost").why(&POD, "p"));
    assert!(line.ends_with("Salvor 10:04:30, volume released 10:10:30"), "{line}");
    for (mode, on) in [("ReadWriteMany", "lost"), ("ReadWriteOnce", "other")] {
        let line = told(&with(mode, on).why(&POD, "p"));
        assert!(line.ends_with("Salvor 10:04:30"), "{mode} {on}: {line}");
    }
    let mut off = with("ReadWriteOnce", "lost");
    let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
    off.0[0].1["spec"]["taints"].as_array_mut().unwrap().push(taint);
    assert_eq!(told(&off.why(&POD, "p")), "Expected back 10:00:20 (in 20s): pod GC 10:00:20");
}

#[test]
fn the_new_pod_waits_for_the_volume_of_the_old_one() {
    let created = json!({"metadata": {"creationTimestamp": "2026-11-16T09:57:00Z"}});
    let mounts =
        json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}});
    let wants = |more: Value| {
        cluster()
            .with(&NODE, node("node-a", "True"))
            .with(&NODE, node("lost", "Unknown"))
            .with(&POD, pending(merged(mounts.clone(), more)))
            .with(&CLAIM, json!({"metadata": {"name": "data", "namespace": "ns"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}))
            .with(&ATTACHMENT, json!({"metadata": {"name": "csi-1"}, "spec": {"nodeName": "lost", "source": {"persistentVolumeName": "pv"}}}))
    };
    let answer = wants(created.clone()).why(&POD, "p");
    assert_eq!(told(&answer), "Expected back 10:03:00 (in 3m): volume released 10:03:00");
    // The six minutes do not begin before the old pod has ended.
    let old = merged(mounts.clone(), json!({"spec": {"nodeName": "lost"}}));
    let answer = wants(created).with(&POD, terminating("old", "o", old)).why(&POD, "p");
    assert_eq!(told(&answer), "Expected back: depends on pod old on node lost, which has not ended");
    // After them, the answer does not promise what did not happen.
    let line = told(&wants(json!({})).why(&POD, "p"));
    assert!(line.contains("depends on the attach/detach controller"), "{line}");
}

#[test]
fn what_comes_back_by_itself_has_a_time_and_what_does_not_names_what_it_needs() {
    let forever = evicted_later(merged(
        owned_by("ReplicaSet"),
        json!({"spec": {"tolerations": [{"operator": "Exists"}]}}),
    ));
    assert!(told(&forever.why(&POD, "p")).contains("tolerates a lost node forever"));
    let daemon = evicted_later(owned_by("DaemonSet"));
    assert!(told(&daemon.why(&POD, "p")).contains("depends on its node"));
    // Without a toleration the pod is evicted at once.
    let at_once = evicted_later(merged(owned_by("ReplicaSet"), json!({"spec": {"tolerations": []}})));
    assert_eq!(told(&at_once.why(&POD, "p")), "Expected back now");
    let suspended = cluster().with(&JOB, job(json!({"spec": {"suspend": true}})));
    let answer = suspended.why(&JOB, "train");
    assert_eq!(answer.expected_back.at, None);
    assert!(
        answer.expected_back.depends_on.as_ref().is_some_and(|on| on.contains("suspended")),
        "{answer:#?}"
    );
    // Nothing is missing, so there is nothing to expect.
    let well = cluster().with(&NODE, node("node-a", "True")).why(&NODE, "node-a");
    assert!(well.expected_back.says_nothing(), "{well:#?}");
}

/// A list of everything keeps less of each pod, and tells the same.
#[test]
fn everything_expects_what_one_answer_does() {
    let lost = std::collections::BTreeSet::from(["lost".to_owned()]);
    for kind in ["ReplicaSet", "StatefulSet"] {
        let mut cluster =
            evicted_later(merged(owned_by(kind), consenting(60))).with(&LEASE, election(ALIVE, GATE));
        let one = cluster.why(&POD, "p").expected_back;
        for (kind, object) in &mut cluster.0 {
            if **kind == POD {
                *object = crate::slim::slim(&POD, object.clone(), &lost).unwrap();
                // Its owner is not in this cluster, so the pod stands for itself.
                object.as_object_mut().unwrap().remove("owner");
            }
        }
        let overview = crate::everything(&mut cluster.world(), &cluster.1);
        assert_eq!(overview.groups[0].root_cause.expected_back, one, "{kind}");
    }
}

/// Every code has an expectation, so no answer is silent about it.
#[test]
fn every_cause_says_when_or_on_what() {
    for code in Code::ALL {
        let finding = crate::diagnosis::Finding::new(code, crate::Object::of("Node", "", "n"), "m");
        let expected = finding.with_expectation().cause.expected_back;
        assert!(!expected.says_nothing(), "{code:?}");
    }
}
