//! Root causes that the test creates by hand, without any controller.

use kube::api::{Patch, PatchParams};
use salvor_testkit::Site;
use serde_json::{Value, json};

use crate::stage::{Stage, running};

fn waiting(reason: &str) -> Value {
    let container = json!({
        "name": "main", "image": "no-such-image", "imageID": "", "ready": false, "restartCount": 3,
        "state": {"waiting": {"reason": reason, "message": "it does not work"}},
    });
    json!({"phase": "Pending", "containerStatuses": [container]})
}

async fn each_root_cause_of_a_pod_is_told(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::new(&plane.admin(), plane.kubectl(), "default");
    stage.node("well", "True").await;
    stage.node("sick", "False").await;

    stage.pod("on-a-sick-node", "sick", json!({}), json!({"phase": "Running"})).await;
    stage.until("pod/on-a-sick-node", "NodeSick").await;
    stage.until_in("node/sick", "NodeSick", "Node", "sick").await;

    // A vetoed repair, and the command that allows it again.
    let condition =
        json!({"type": "SalvorRepair", "status": "True", "reason": "Vetoed", "message": "do-not-repair"});
    let nodes = stage.cluster_api("", "v1", "Node");
    let veto = Patch::Merge(json!({"metadata": {"annotations": {"salvor.dev/do-not-repair": ""}}}));
    nodes.patch("sick", &PatchParams::default(), &veto).await.unwrap();
    let told = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    stage.nodes().patch_status("sick", &PatchParams::default(), &told).await.unwrap();
    let answer = stage.until_in("pod/on-a-sick-node", "RepairBlocked", "Node", "sick").await;
    stage.carry_out(&answer).await;
    let left = nodes.get("sick").await.unwrap();
    assert!(left.metadata.annotations.unwrap_or_default().is_empty());

    stage.pod("image", "well", json!({}), waiting("ImagePullBackOff")).await;
    stage.until("po/image", "ImagePullFailed").await;
    stage.pod("user", "well", json!({}), waiting("CreateContainerError")).await;
    stage.until("pods.v1./user", "StartFailed").await;
    stage.pod("crash", "well", json!({}), waiting("CrashLoopBackOff")).await;
    stage.until("pods/crash", "CrashLooping").await;

    let needs = json!({"spec": {"containers": [{"name": "main", "image": "work", "envFrom": [{"configMapRef": {"name": "settings"}}]}]}});
    stage.pod("config", "well", needs, json!({"phase": "Pending"})).await;
    let answer = stage.until("pod/config", "ConfigMissing").await;
    assert_eq!(answer["rootCauses"][0]["object"]["kind"], "ConfigMap", "{answer:#}");
    stage.create("", "ConfigMap", json!({"metadata": {"name": "settings"}})).await;
    stage.until("pod/config", "Starting").await;

    // A finalizer, and the command that removes it.
    let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    stage.pod("held", "well", held.clone(), json!({"phase": "Failed"})).await;
    stage.delete_pod("held").await;
    let answer = stage.until("pod/held", "FinalizerHolds").await;
    stage.carry_out(&answer).await;
    stage.until_well("pod/held").await;

    let slow = json!({"spec": {"terminationGracePeriodSeconds": 600}});
    stage.pod("slow", "well", slow, running()).await;
    stage.delete_pod("slow").await;
    let answer = stage.until("pod/slow", "AwaitingTermination").await;
    assert!(
        answer["rootCauses"][0]["until"].is_string() && answer["rootCauses"][0]["since"].is_string(),
        "{answer:#}"
    );

    let says = json!({"phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available: 2 Insufficient cpu.",
    }]});
    stage.pod("large", "", json!({}), says.clone()).await;
    stage.until("pod/large", "Unschedulable").await;
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "no-such-class", "resources": {"requests": {"storage": "1Gi"}}},
    });
    stage.create("", "PersistentVolumeClaim", claim).await;
    let mounts =
        json!({"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}});
    stage.pod("unbound", "", mounts.clone(), says).await;
    // The pod may have been bound by hand.
    stage.pod("unbound-by-hand", "well", mounts.clone(), json!({"phase": "Pending"})).await;
    stage.until_in("pod/unbound-by-hand", "VolumeUnbound", "PersistentVolumeClaim", "data").await;
    let answer = stage.until("pod/unbound", "VolumeUnbound").await;
    assert_eq!(answer["rootCauses"][0]["object"]["name"], "data", "{answer:#}");
    stage.until("pvc/data", "VolumeUnbound").await;

    // The same claim, bound to a volume that is attached to another node.
    let volume = json!({
        "metadata": {"name": "pv"},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "csi": {"driver": "d", "volumeHandle": "h"}},
    });
    stage.create("", "PersistentVolume", volume).await;
    let claims = stage.api("", "v1", "PersistentVolumeClaim");
    let bound = Patch::Merge(json!({"spec": {"volumeName": "pv"}}));
    claims.patch("data", &PatchParams::default(), &bound).await.unwrap();
    let phase = Patch::Merge(json!({"status": {"phase": "Bound"}}));
    claims.patch_status("data", &PatchParams::default(), &phase).await.unwrap();
    let attachment = json!({"metadata": {"name": "csi-1"}, "spec": {"attacher": "d", "nodeName": "sick", "source": {"persistentVolumeName": "pv"}}});
    stage.create("storage.k8s.io", "VolumeAttachment", attachment).await;
    stage.pod("elsewhere", "well", mounts, json!({"phase": "Pending"})).await;
    let answer = stage.until("pod/elsewhere", "VolumeAttachedElsewhere").await;
    assert_eq!(
        answer["rootCauses"][0]["object"],
        json!({"kind": "VolumeAttachment", "namespace": null, "name": "csi-1"})
    );
    stage.until("pvc/data", "VolumeAttachedElsewhere").await;

    // A cordoned node whose pod must stay.
    stage.node("cordoned", "True").await;
    let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    stage.cluster_api("", "v1", "Node").patch("cordoned", &PatchParams::default(), &cordon).await.unwrap();
    assert!(stage.why("node/cordoned").await["missing"].is_null());
    stage.pod("kept", "cordoned", json!({"metadata": {"labels": {"app": "kept"}}}), running()).await;
    let budget = json!({"metadata": {"name": "keep"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}});
    stage.create("policy", "PodDisruptionBudget", budget).await;
    stage.until("no/cordoned", "DisruptionBudget").await;

    // A Job without a controller: there is none here at all.
    let job = |name: &str, more: Value| {
        let mut job = json!({"metadata": {"name": name}, "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work"}]}}}});
        crate::stage::merge(&mut job["spec"], more);
        job
    };
    stage.create("batch", "Job", job("absent", json!({"managedBy": "example.com/nobody"}))).await;
    stage.create("batch", "Job", job("ours", json!({"managedBy": "salvor.dev/job-controller"}))).await;
    stage.create("batch", "Job", job("nothing", json!({}))).await;
    let answer = stage.until("job/nothing", "Unknown").await;
    assert_eq!(answer["missing"], "1 of 1 pods", "{answer:#}");
    // The event of a refusal may have expired.
    assert!(answer["rootCauses"][0]["message"].as_str().unwrap().contains("expire"), "{answer:#}");
    stage.until("job/absent", "ControllerAbsent").await;
    stage.until("job/ours", "ControllerAbsent").await;

    // A live view shows changes.
    let mut view = stage.view(&["why", "pod/config", "--watch", "-o", "json"]);
    view.until("\"Starting\"").await;
    let ready = Patch::Merge(json!({"status": running()}));
    stage.api("", "v1", "Pod").patch_status("config", &PatchParams::default(), &ready).await.unwrap();
    view.until("\"missing\": null").await;

    // Missing objects and invalid arguments.
    assert_eq!(stage.run(&["why", "job/no-such-job"]).await.0, 1);
    assert_eq!(stage.run(&["why", "no-such-kind/x"]).await.0, 1);
    let unknown = stage.run_with(&["why", "jbo/x"], &stage.kubeconfig()).await.2;
    assert!(unknown.contains("did you mean job"), "{unknown}");
    let mistyped = stage.run_with(&["why", "job", "absnet"], &stage.kubeconfig()).await.2;
    assert!(mistyped.contains("did you mean absent?"), "{mistyped}");
    for arguments in
        [&["why", "-n", "defualt"][..], &["why", "ns/defualt"], &["why", "job/x", "-n", "defualt"]]
    {
        let (code, _, told) = stage.run_with(arguments, &stage.kubeconfig()).await;
        assert_eq!(code, 1, "{arguments:?}: {told}");
        assert!(told.contains("there is no namespace \"defualt\"; did you mean default?"), "{told}");
    }

    // Several ways to ask, and the exit code on request.
    let (code, all) = stage.run(&["why", "--all"]).await;
    assert_eq!(code, 0, "{all}");
    for arguments in [&["why"][..], &["why", "ns/default"], &["why", "namespace", "default", "-n", "default"]]
    {
        let (code, said) = stage.run(arguments).await;
        assert_eq!((code, said.contains("ControllerAbsent")), (0, true), "{arguments:?}: {said}");
    }
    assert_eq!(stage.run(&["why", "-A"]).await.0, 0);
    assert_eq!(stage.run(&["why", "job", "absent"]).await.0, 0);
    assert_eq!(stage.run(&["why", "job", "absent", "--exit-code"]).await.0, 4);
    assert_eq!(stage.run(&["why", "--exit-code"]).await.0, 4);
    assert_eq!(stage.run(&["why", "node/well", "--exit-code"]).await.0, 0);
    for usage in [
        &["why", "job"][..],
        &["why", "ns/a", "-n", "b"],
        &["why", "job/a", "--all"],
        &["why", "job/a", "-A"],
        &["why", "job/a", "-o", "yaml"],
    ] {
        assert_eq!(stage.run(usage).await.0, 2, "{usage:?}");
    }
}

salvor_testkit::on_both!(each_root_cause_of_a_pod_is_told);
