//! Edge cases of the rules: counts, objects that cannot be read, and unexpected objects.

use super::*;

fn merged(mut one: Value, other: Value) -> Value {
    merge(&mut one, other);
    one
}

#[test]
fn a_pod_on_a_lost_node_does_not_run_whatever_its_last_word_was() {
    let cluster = cluster()
        .with(&JOB, job(json!({})))
        .with(&POD, ready("train-0", "job"))
        .with(&POD, {
            let mut pod = ready("train-1", "job");
            pod["spec"]["nodeName"] = "lost".into();
            pod
        })
        .with(&NODE, node("node-a", "True"))
        .with(&NODE, node("lost", "Unknown"));
    first(&cluster.why(&JOB, "train"), Code::NodeLost, ("Node", "lost"), "1 of 2 pods");
    let mut world = cluster.world();
    let overview = crate::everything(&mut world, &cluster.1);
    assert_eq!(overview.groups[0].workloads[0].missing, "1 of 2 pods", "{overview:#?}");
    assert_eq!(world.lost_nodes().into_iter().collect::<Vec<_>>(), ["lost"]);
    // Pods without a node, and pods whose Node never existed, are as ready as their status says.
    for on in ["", "nowhere"] {
        let mut pod = ready("train-0", "job");
        pod["spec"]["nodeName"] = on.into();
        let one = job(json!({"spec": {"parallelism": 1}}));
        let answer = self::cluster().with(&JOB, one).with(&POD, pod).why(&JOB, "train");
        assert_eq!(answer.missing, None, "{on}: {answer:#?}");
    }
}

#[test]
fn the_taint_of_a_lost_node_counts_unless_its_kubelet_says_that_it_is_well() {
    for (ready, code) in [("True", None), ("False", Some(Code::NodeLost)), ("Unknown", Some(Code::NodeLost))]
    {
        let mut node = node("node-a", "Unknown");
        node["status"]["conditions"][0]["status"] = ready.into();
        let answer = cluster().with(&NODE, node).why(&NODE, "node-a");
        assert_eq!(answer.root_causes.first().map(|cause| cause.code), code, "{ready}: {answer:#?}");
    }
}

/// A node with the unreachable taint is not lost while its kubelet renews its Lease: its machine is still on.
#[test]
fn a_kubelet_that_lives_makes_a_node_sick_and_not_lost() {
    let lease = |renewed: &str| json!({"metadata": {"name": "node-a", "namespace": "kube-node-lease"}, "spec": {"renewTime": renewed, "leaseDurationSeconds": 40}});
    let fresh = || lease("2026-11-16T09:59:59.500000Z");
    let attached = |cluster: Cluster| {
        let volumes = json!({"spec": {"nodeName": "other", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}});
        cluster
            .with(&NODE, node("other", "True"))
            .with(&POD, pending(merged(volumes, json!({"metadata": {"name": "wants", "uid": "wants"}}))))
            .with(&CLAIM, json!({"metadata": {"name": "data", "namespace": "ns"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}))
            .with(&VOLUME, json!({"metadata": {"name": "pv"}, "spec": {"accessModes": ["ReadWriteOnce"]}}))
            .with(&ATTACHMENT, json!({"metadata": {"name": "csi-1"}, "spec": {"nodeName": "node-a", "source": {"persistentVolumeName": "pv"}}}))
    };
    for (case, status, lease, ready_heartbeat, code) in [
        ("Unknown, renewed", "Unknown", Some(fresh()), None, Code::NodeSick),
        ("False with the taint, renewed", "False", Some(fresh()), None, Code::NodeSick),
        ("in the future", "Unknown", Some(lease("2026-11-16T10:00:03.000000Z")), None, Code::NodeSick),
        ("silent", "Unknown", Some(lease("2026-11-16T09:59:19.000000Z")), None, Code::NodeLost),
        ("no Lease, a heartbeat", "Unknown", None, Some("2026-11-16T09:59:50Z"), Code::NodeSick),
        ("no Lease, an old heartbeat", "Unknown", None, Some("2026-11-16T09:59:00Z"), Code::NodeLost),
        ("neither", "Unknown", None, None, Code::NodeLost),
    ] {
        let mut node = node("node-a", "Unknown");
        node["status"]["conditions"][0]["status"] = status.into();
        if let Some(ready_heartbeat) = ready_heartbeat {
            node["status"]["conditions"][0]["lastHeartbeatTime"] = ready_heartbeat.into();
        }
        let mut cluster = attached(cluster())
            .with(&NODE, node)
            .with(&POD, terminating("ends", "x", json!({})))
            .with(&POD, pod("stays", "x", json!({})))
            .with(&LEASE, election(ALIVE, GATE));
        if let Some(lease) = lease {
            cluster = cluster.with(&LEASE, lease);
        }
        let lost = code == Code::NodeLost;
        for (kind, name) in [(&NODE, "node-a"), (&POD, "ends"), (&POD, "stays"), (&POD, "wants")] {
            let answer = cluster.why(kind, name);
            let cause = &answer.root_causes[0];
            let expected = match name {
                "ends" | "node-a" if lost => Code::NotOptedIn,
                "wants" => Code::VolumeAttachedElsewhere,
                _ => code,
            };
            assert_eq!(cause.code, expected, "{case}, {name}: {answer:#?}");
            let told = answer
                .remedies
                .iter()
                .any(|one| one.command.as_deref().unwrap_or("").contains("out-of-service"));
            assert!(lost || !told, "{case}, {name}: {answer:#?}");
            assert!(lost || !cause.message.contains("silent"), "{case}, {name}: {cause:?}");
        }
    }
}

/// Where Secrets cannot be read, or only a key is missing, the kubelet's event is the only source.
#[test]
fn a_volume_that_cannot_be_mounted_is_what_is_missing() {
    let waits = json!({"status": {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}]}, "spec": {"volumes": [
        {"name": "s", "secret": {"secretName": "token"}}, {"name": "c", "configMap": {"name": "settings"}},
    ]}});
    let event = |at: &str, says: &str| json!({"metadata": {"name": "e", "namespace": "ns"}, "involvedObject": {"uid": "p"}, "reason": "FailedMount", "message": says, "lastTimestamp": at});
    let late = "2026-11-16T09:59:00Z";
    let no_secret = r#"MountVolume.SetUp failed for volume "s" : secret "token" not found"#;
    let no_config = r#"MountVolume.SetUp failed for volume "c" : configmap "settings" not found"#;
    let no_key = r#"MountVolume.SetUp failed for volume "c" : references non-existent config key: app.conf"#;
    let other = r#"MountVolume.SetUp failed for volume "s" : rpc error: code = Internal"#;
    let sandbox =
        json!({"status": {"conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]}});
    let here =
        |kind: &'static Kind, name: &str| (kind, json!({"metadata": {"name": name, "namespace": "ns"}}));
    let (token, settings) = (here(&SECRET, "token"), here(&CONFIG_MAP, "settings"));
    let starting = (Code::Starting, "p");
    for (case, more, says, at, readable, expected) in [
        ("a Secret", json!({}), no_secret, late, false, (Code::ConfigMissing, "token")),
        ("a ConfigMap", json!({}), no_config, late, false, (Code::ConfigMissing, "settings")),
        ("a key", json!({}), no_key, late, true, (Code::ConfigMissing, "settings")),
        ("it was made since", json!({}), no_secret, late, true, starting),
        ("told long ago", json!({}), no_secret, "2026-11-16T09:50:00Z", false, starting),
        ("mounted since", sandbox, no_secret, late, false, starting),
        ("another trouble", json!({}), other, late, false, starting),
    ] {
        let cluster = cluster()
            .with(&NODE, node("node-a", "True"))
            .with(&POD, pending(merged(waits.clone(), more)))
            .with(&EVENT, event(at, says))
            .with(token.0, token.1.clone())
            .with(settings.0, settings.1.clone());
        let mut world = cluster.world();
        if !readable {
            for kind in [&SECRET, &CONFIG_MAP] {
                world.cannot_see(
                    kind,
                    crate::NotSeen { what: kind.kind.to_string(), why: "forbidden".into() },
                );
            }
        }
        let answer = why(&world, &cluster.1, &POD, "ns", "p").unwrap();
        let cause = &answer.root_causes[0];
        assert_eq!((cause.code, cause.object.name.as_str()), expected, "{case}: {answer:#?}");
        assert!(
            cause.code == Code::Starting || cause.message == says,
            "{case}: the kubelet's own words: {cause:?}"
        );
    }
}

#[test]
fn what_is_missing_is_counted_over_all_parts() {
    let part = |name: &str, uid: &str| {
        let owner = json!([{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "set", "uid": "set", "controller": true}]);
        job(json!({"metadata": {"name": name, "uid": uid, "ownerReferences": owner}}))
    };
    let set = json!({"metadata": {"name": "set", "namespace": "ns", "uid": "set"}, "spec": {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 2, "completions": 2}}}]}});
    let cluster = cluster()
        .with(&JOB_SET, set)
        .with(&JOB, part("a", "a"))
        .with(&JOB, part("b", "b"))
        .with(&POD, ready("a-0", "a"))
        .with(&POD, ready("a-1", "a"))
        .with(&POD, ready("b-0", "b"))
        .with(&POD, pod("b-1", "b", json!({"spec": {"nodeName": "lost"}})))
        .with(&NODE, node("lost", "Unknown"));
    let answer = cluster.why(&JOB_SET, "set");
    first(&answer, Code::NodeLost, ("Node", "lost"), "1 of 4 pods");

    let component =
        |name: &str| json!({"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}});
    let wrapper = json!({"metadata": {"name": "w", "namespace": "ns", "uid": "w"}, "spec": {"components": [component("p"), component("q")]}, "status": {"phase": "Running"}});
    let cluster = self::cluster()
        .with(&APP_WRAPPER, wrapper)
        .with(&POD, ready("p", "w"))
        .with(&POD, pod("q", "w", json!({"spec": {"nodeName": "lost"}})))
        .with(&NODE, node("node-a", "True"))
        .with(&NODE, node("lost", "Unknown"));
    first(&cluster.why(&APP_WRAPPER, "w"), Code::NodeLost, ("Node", "lost"), "1 of 2 pods");
}

#[test]
fn a_job_asks_for_no_more_than_is_left() {
    let lost = |name: &str| pod(name, "job", json!({"spec": {"nodeName": "lost"}}));
    let on = |more: Value| cluster().with(&JOB, job(more)).with(&NODE, node("lost", "Unknown"));
    // An index that failed for good is not retried.
    let indexed = json!({"spec": {"parallelism": 5, "completions": 5, "completionMode": "Indexed", "backoffLimitPerIndex": 0}, "status": {"failedIndexes": "0,2-3"}});
    let answer = on(indexed.clone()).with(&POD, ready("a", "job")).with(&POD, lost("b")).why(&JOB, "train");
    first(&answer, Code::NodeLost, ("Node", "lost"), "1 of 2 pods");
    let well = on(indexed).with(&POD, ready("a", "job")).with(&POD, ready("b", "job")).why(&JOB, "train");
    assert_eq!(well.missing, None, "{well:#?}");
    let garbage = json!({"status": {"failedIndexes": "x,5-2,-,99999999999999999999999"}});
    assert_eq!(on(garbage).why(&JOB, "train").missing.as_deref(), Some("2 of 2 pods"));
    // When all indexes failed, all pods are missing.
    let failed = json!({"status": {"failedIndexes": "0,1", "conditions": [{"type": "Failed", "status": "True", "reason": "FailedIndexes"}]}});
    first(&on(failed).why(&JOB, "train"), Code::JobFailed, ("Job", "train"), "2 of 2 pods");
    // A work queue creates no more pods after the first success. The remaining pods only have to end.
    let queue = json!({"spec": {"completions": null, "parallelism": 3}, "status": {"succeeded": 1}});
    assert_eq!(on(queue.clone()).why(&JOB, "train").missing, None);
    let answer = on(queue.clone()).with(&POD, ready("a", "job")).with(&POD, lost("b")).why(&JOB, "train");
    first(&answer, Code::NodeLost, ("Node", "lost"), "1 of 2 pods");
    let ending = terminating("b", "job", json!({"spec": {"nodeName": "lost"}}));
    first(&on(queue).with(&POD, ending).why(&JOB, "train"), Code::NodeLost, ("Node", "lost"), "1 of 1 pods");
}

#[test]
fn where_nobody_can_tell_what_was_asked_about_is_the_object() {
    let owned = json!({"metadata": {"ownerReferences": [{"uid": "cron", "kind": "CronJob", "name": "nightly", "controller": true}]}});
    let cron = json!({"metadata": {"name": "nightly", "namespace": "ns", "uid": "cron"}, "spec": {}});
    let cluster = cluster().with(&CRON_JOB, cron).with(&JOB, job(owned));
    let answer = cluster.why(&CRON_JOB, "nightly");
    first(&answer, Code::Unknown, ("CronJob", "nightly"), "2 of 2 pods");
    assert!(answer.root_causes[0].message.starts_with("Job train: "), "{answer:#?}");
    let overview = crate::everything(&mut cluster.world(), &cluster.1);
    assert_eq!(overview.groups[0].root_cause.object.kind, "CronJob", "{overview:#?}");
}

#[test]
fn a_deployment_that_recreates_waits_for_its_old_pods() {
    let deployment = json!({"metadata": {"name": "api", "namespace": "ns", "uid": "deploy"}, "spec": {"replicas": 1, "strategy": {"type": "Recreate"}}});
    let set = |name: &str| json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "ownerReferences": [{"uid": "deploy", "controller": true}]}, "spec": {"replicas": 0}});
    let cluster = cluster()
        .with(&DEPLOYMENT, deployment.clone())
        .with(&REPLICA_SET, set("old"))
        .with(&POD, terminating("old-1", "old", json!({"spec": {"nodeName": "lost"}})))
        .with(&NODE, node("lost", "Unknown"));
    let answer = cluster.why(&DEPLOYMENT, "api");
    first(&answer, Code::NodeLost, ("Node", "lost"), "1 of 1 pods");
    let kinds: Vec<&str> = answer.chain.iter().map(|link| link.object.kind.as_str()).collect();
    assert_eq!(kinds, ["Deployment", "ReplicaSet", "Pod", "Node"]);
    // A Deployment that cannot create its ReplicaSet reports so in a condition.
    let mut refused = deployment;
    let message = "replicasets.apps \"x\" is forbidden: exceeded quota: few, requested: count/replicasets.apps=1, used: count/replicasets.apps=2, limited: count/replicasets.apps=2";
    refused["status"] = json!({"conditions": [{"type": "Progressing", "status": "False", "reason": "ReplicaSetCreateError", "message": message}]});
    let hard = json!({"count/replicasets.apps": "2"});
    let quota = json!({"metadata": {"name": "few", "namespace": "ns"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": hard}});
    let answer =
        self::cluster().with(&DEPLOYMENT, refused.clone()).with(&QUOTA, quota).why(&DEPLOYMENT, "api");
    first(&answer, Code::QuotaExceeded, ("ResourceQuota", "few"), "1 of 1 pods");
    refused["status"]["conditions"][0]["message"] =
        "ValidatingAdmissionPolicy 'no' with binding 'b' denied request: no".into();
    let answer = self::cluster().with(&DEPLOYMENT, refused).why(&DEPLOYMENT, "api");
    first(&answer, Code::AdmissionRefused, ("ValidatingAdmissionPolicy", "no"), "1 of 1 pods");
}

#[test]
fn a_pod_that_is_bound_and_cannot_start_says_what_it_needs() {
    let well = || cluster().with(&NODE, node("node-a", "True"));
    let mounts =
        json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}});
    let answer = well().with(&POD, pending(mounts)).why(&POD, "p");
    first(&answer, Code::VolumeUnbound, ("PersistentVolumeClaim", "data"), "it does not run ready");
    let both = json!({"spec": {
        "containers": [{"name": "main", "envFrom": [{"configMapRef": {"name": "settings"}}]}],
        "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "token"}}]}}],
    }});
    let answer = well().with(&POD, pending(both)).why(&POD, "p");
    let missing: Vec<&str> = answer.root_causes.iter().map(|cause| cause.object.name.as_str()).collect();
    assert_eq!(missing, ["settings", "token"], "{answer:#?}");
    let init = |reason: &str, message: &str| json!({"status": {"initContainerStatuses": [{"name": "first", "state": {"waiting": {"reason": reason, "message": message}}}]}});
    for (reason, message, code, object) in [
        (
            "CreateContainerConfigError",
            "couldn't find key PORT in ConfigMap ns/settings",
            Code::ConfigMissing,
            "settings",
        ),
        ("CreateContainerConfigError", "secret \"token\" not found", Code::ConfigMissing, "token"),
        (
            "CreateContainerConfigError",
            "container has runAsNonRoot and image will run as root",
            Code::StartFailed,
            "p",
        ),
        ("CreateContainerError", "no command specified", Code::StartFailed, "p"),
        ("PodInitializing", "", Code::Starting, "p"),
    ] {
        let answer = well().with(&POD, pending(init(reason, message))).why(&POD, "p");
        let cause = &answer.root_causes[0];
        assert_eq!((cause.code, cause.object.name.as_str()), (code, object), "{answer:#?}");
    }
}

#[test]
fn a_failed_pod_of_a_failed_job_is_told_by_its_job() {
    let condition = |kind: &str| json!({"status": {"conditions": [{"type": kind, "status": "True", "reason": "BackoffLimitExceeded"}]}});
    let on = |more: Value| {
        cluster().with(&JOB, job(more)).with(&POD, pod("p", "job", json!({"status": {"phase": "Failed"}})))
    };
    let answer = on(condition("Failed")).why(&POD, "p");
    first(&answer, Code::BackoffLimitExceeded, ("Job", "train"), "it has failed");
    let answer = on(condition("Complete")).why(&POD, "p");
    first(&answer, Code::PodFailed, ("Pod", "p"), "it has failed");
    assert!(answer.remedies[0].text.contains("complete"), "{answer:#?}");
}

#[test]
fn a_failed_pod_of_which_nobody_says_when_it_ended_counts_from_its_creation() {
    let failed = pod(
        "a",
        "job",
        json!({"metadata": {"creationTimestamp": "2026-11-16T09:59:55Z"}, "status": {"phase": "Failed"}}),
    );
    let one = job(json!({"spec": {"parallelism": 1, "completions": 1}}));
    let cluster = cluster().with(&JOB, one).with(&POD, failed.clone());
    let answer = cluster.why(&JOB, "train");
    first(&answer, Code::BackoffRunning, ("Job", "train"), "1 of 1 pods");
    assert_eq!(answer.root_causes[0].until, at("2026-11-16T10:00:05Z"));
    let slim = crate::slim::slim(&POD, failed, &std::collections::BTreeSet::new()).unwrap();
    assert_eq!(slim["metadata"]["creationTimestamp"], "2026-11-16T09:59:55Z", "{slim}");
}

#[test]
fn who_suspends_a_job_from_above_is_told() {
    let owner = json!([{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "set", "uid": "set", "controller": true}]);
    let child = job(json!({"metadata": {"ownerReferences": owner}, "spec": {"suspend": true}}));
    let set = |suspend: bool| json!({"metadata": {"name": "set", "namespace": "ns", "uid": "set"}, "spec": {"suspend": suspend}});
    let answer = cluster().with(&JOB, child.clone()).with(&JOB_SET, set(true)).why(&JOB, "train");
    first(&answer, Code::Suspended, ("JobSet", "set"), "2 of 2 pods");
    let command = answer.remedies[0].command.as_deref().unwrap();
    assert!(command.starts_with("kubectl patch jobset.jobset.x-k8s.io set -n ns "), "{command}");
    let answer = cluster().with(&JOB, child).with(&JOB_SET, set(false)).why(&JOB, "train");
    first(&answer, Code::Suspended, ("Job", "train"), "2 of 2 pods");
}

#[test]
fn kueue_may_look_after_a_job_that_names_no_queue() {
    let workload = json!({
        "metadata": {"name": "w", "namespace": "ns", "uid": "w", "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job", "controller": true}]},
        "spec": {"queueName": ""}, "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": "no queue"}]},
    });
    let cluster = cluster().with(&JOB, job(json!({"spec": {"suspend": true}}))).with(&WORKLOAD, workload);
    first(&cluster.why(&JOB, "train"), Code::KueueNotAdmitted, ("Workload", "w"), "2 of 2 pods");
}

#[test]
fn only_a_quota_that_counts_the_pod_is_to_blame() {
    let quota = |scopes: Value, hard: Value| {
        let none = json!({"metadata": {"name": "q", "namespace": "ns"}, "spec": {"hard": hard, "scopeSelector": {"matchExpressions": scopes}}, "status": {"hard": hard, "used": {}}});
        cluster()
            .with(
                &JOB,
                job(json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "resources": {
                    "requests": {"cpu": "1"}, "limits": {"cpu": "1", "example.com/gpu": 2},
                }}]}}}})),
            )
            .with(&QUOTA, none)
            .why(&JOB, "train")
            .root_causes[0]
            .code
    };
    let scope = |name: &str| json!([{"scopeName": name, "operator": "Exists"}]);
    for (scopes, hard, code) in [
        (json!([]), json!({"pods": "0"}), Code::QuotaExceeded),
        (scope("CrossNamespacePodAffinity"), json!({"pods": "0"}), Code::Unknown),
        (scope("BestEffort"), json!({"pods": "0"}), Code::Unknown),
        (scope("NotBestEffort"), json!({"pods": "0"}), Code::QuotaExceeded),
        (scope("VolumeAttributesClass"), json!({"pods": "0"}), Code::Unknown),
        (scope("PriorityClass"), json!({"pods": "0"}), Code::Unknown),
        (json!([]), json!({"requests.example.com/gpu": "1"}), Code::QuotaExceeded),
        (json!([]), json!({"requests.example.com/gpu": "2"}), Code::Unknown),
    ] {
        assert_eq!(quota(scopes.clone(), hard.clone()), code, "{scopes} {hard}");
    }
}

#[test]
fn many_lost_nodes_leave_room_for_commands() {
    let mut cluster = cluster()
        .with(
            &JOB,
            job(json!({"spec": {"parallelism": 9, "completions": 9, "podReplacementPolicy": "Failed"}})),
        )
        .with(&LEASE, election(ALIVE, GATE));
    for at in 0..9 {
        let (on, name) = (format!("lost-{at}"), format!("train-{at}"));
        cluster = cluster
            .with(&NODE, node(&on, "Unknown"))
            .with(&POD, terminating(&name, "job", json!({"spec": {"nodeName": on}})));
    }
    let answer = cluster.why(&JOB, "train");
    assert_eq!(answer.root_causes.len(), 9);
    assert!(answer.remedies.iter().any(|remedy| remedy.command.is_some()), "{answer:#?}");
}

#[test]
fn a_kind_that_cannot_be_seen_is_not_a_kind_without_objects() {
    let cluster = cluster().with(&JOB, job(json!({}))).with(&POD, pod("train-0", "job", json!({})));
    let mut world = cluster.world();
    let missed = crate::NotSeen { what: "nodes".into(), why: "forbidden".into() };
    world.cannot_see(&NODE, missed.clone());
    let answer = why(&world, &cluster.1, &JOB, "ns", "train").unwrap();
    assert_eq!(answer.root_causes[0].code, Code::Starting, "{answer:#?}");
    assert_eq!(world.missed(), [missed]);
    assert!(world.wanted().is_empty(), "it is not asked for again");
    assert!(world.was_tried(&NODE) && world.covers(&NODE, ""), "nor read again");
}

#[test]
fn objects_that_own_each_other_have_an_end() {
    let owner = |kind: &str, name: &str| json!([{"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": kind, "name": name, "uid": name, "controller": true}]);
    let admitted = json!({"conditions": [{"type": "Admitted", "status": "True"}]});
    let workload = json!({"metadata": {"name": "w", "namespace": "ns", "uid": "w", "ownerReferences": owner("Workload", "w")}, "spec": {}, "status": admitted});
    assert_eq!(cluster().with(&WORKLOAD, workload).why(&WORKLOAD, "w").missing, None);
    let component = json!({"template": {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "metadata": {"name": "a"}}});
    let wrapper = json!({"metadata": {"name": "a", "namespace": "ns", "uid": "a"}, "spec": {"components": [component]}, "status": {"phase": "Running"}});
    assert_eq!(cluster().with(&APP_WRAPPER, wrapper).why(&APP_WRAPPER, "a").missing, None);
}
