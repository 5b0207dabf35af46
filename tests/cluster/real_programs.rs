//! The real kube-controller-manager and kube-scheduler on `salvor cluster --loops none`.

use std::time::Duration;

use salvor_testkit::{Part, Program, Site, program_of, wait};

use super::Local;

/// The Kubernetes version that the embedded server imitates in every detail.
const EMBEDDED_MINOR: &str = "1.37";

const WORKLOADS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: front}
spec:
  replicas: 3
  selector: {matchLabels: {app: front}}
  template:
    metadata: {labels: {app: front}}
    spec: {containers: [{name: main, image: front}], terminationGracePeriodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: base}
spec: {clusterIP: None, selector: {app: base}, ports: [{port: 80}]}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: disks}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk-of-node-2}
spec:
  storageClassName: disks
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  local: {path: /disk}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-2]}]}]}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk-of-node-5}
spec:
  storageClassName: disks
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  local: {path: /disk}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-5]}]}]}}
---
# One claim is for a disk of a node, which the scheduler chooses; the other is for a volume that is made and attached.
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: base}
spec:
  serviceName: base
  replicas: 2
  selector: {matchLabels: {app: base}}
  template:
    metadata: {labels: {app: base}}
    spec:
      containers: [{name: main, image: base, volumeMounts: [{name: disk, mountPath: /disk}, {name: net, mountPath: /net}]}]
  volumeClaimTemplates:
  - metadata: {name: disk}
    spec: {storageClassName: disks, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
  - metadata: {name: net}
    spec: {storageClassName: local.salvor.dev, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  completions: 3
  parallelism: 2
  template:
    metadata: {labels: {app: once}}
    spec: {restartPolicy: Never, containers: [{name: main, image: once}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: yearly}
spec:
  schedule: "0 0 1 1 *"
  jobTemplate:
    spec:
      template:
        metadata: {labels: {app: yearly}}
        spec: {restartPolicy: Never, containers: [{name: main, image: yearly}]}
"#;

/// A missed run is caught up immediately, so the test need not wait for the next minute.
const LAST_RUN: &str = r#"{"status":{"lastScheduleTime":"2019-06-01T00:00:00Z"}}"#;

/// Log lines of a program that requests a missing kind or cannot parse the answer.
const COMPLAINTS: [&str; 5] = [
    "Failed to watch",
    "could not find the requested resource",
    "no kind",
    "cannot be handled as",
    "unable to decode",
];

fn start(part: Part, local: &Local, more: &[&str]) -> Program {
    let kubeconfig = format!("--kubeconfig={}", local.kubeconfig().display());
    let common = [kubeconfig.as_str(), "--secure-port=0", "--kube-api-qps=500", "--kube-api-burst=500"];
    Program::start(&program_of(part).unwrap(), common.iter().chain(more), &[])
}

async fn running(local: &Local) -> Vec<(String, usize)> {
    let each = "-o=jsonpath={range .items[*]}{.metadata.labels.app}={.status.phase};{end}";
    let said = local.kubectl().run(&["get", "pods", each]).await.unwrap();
    let apps = ["base", "front", "once", "yearly"];
    apps.map(|app| (app.to_owned(), said.matches(&format!("{app}=Running;")).count())).to_vec()
}

#[tokio::test]
async fn the_real_controller_manager_and_scheduler_bring_workloads_to_running() {
    if salvor_testkit::kubernetes_minor() != EMBEDDED_MINOR || !Site::Embedded.is_chosen() {
        return eprintln!("the embedded server is a {EMBEDDED_MINOR}: not played with another minor");
    }
    let local = Local::start(&["--loops=none", "--nodes=6", "--zones=3"]).await;
    let folder = format!("--flex-volume-plugin-dir={}", local.folder.path().join("plugins").display());
    let manager = start(Part::ControllerManager, &local, &[&folder]);
    let scheduler = start(Part::Scheduler, &local, &[]);
    let manifest = local.write("workloads.yaml", WORKLOADS);
    local.kubectl_says(&format!("apply -f {manifest}")).await;
    let patch = ["patch", "cronjob", "yearly", "--subresource=status", "--type=merge", "-p", LAST_RUN];
    local.kubectl().run(&patch).await.unwrap();

    let expected = [("base", 2), ("front", 3), ("once", 2), ("yearly", 1)];
    let expected: Vec<(String, usize)> = expected.map(|(app, count)| (app.to_owned(), count)).to_vec();
    let mut seen = Vec::new();
    let until = wait::patience().until(async {
        while seen != expected {
            assert!(!manager.has_ended() && !scheduler.has_ended(), "one of them ended");
            tokio::time::sleep(Duration::from_millis(100)).await;
            seen = running(&local).await;
        }
    });
    let in_time = until.await;
    assert!(in_time.is_some(), "these are Running: {seen:?}\n{}", local.kubectl_says("get pods").await);

    // The scheduler chose the nodes by the disks, and the attach/detach controller attached the other volumes there.
    for pod in ["base-0", "base-1"] {
        let node = local.kubectl_says(&format!("get pod {pod} -o jsonpath={{.spec.nodeName}}")).await;
        let claim = |name: &str| format!("get pvc {name}-{pod} -o jsonpath={{.spec.volumeName}}");
        assert_eq!(local.kubectl_says(&claim("disk")).await, format!("disk-of-{node}"));
        let volume = local.kubectl_says(&claim("net")).await;
        let attached = local
            .kubectl_says("get volumeattachments --no-headers -o custom-columns=V:.spec.source.persistentVolumeName,N:.spec.nodeName,A:.status.attached")
            .await;
        let wanted = [volume.as_str(), node.as_str(), "true"];
        let is_attached = attached.lines().any(|line| line.split_whitespace().eq(wanted));
        assert!(is_attached, "{volume} is not attached to {node}:\n{attached}");
    }
    let shown = local.kubectl_says("get cronjobs").await;
    let columns = ["NAME", "SCHEDULE", "TIMEZONE", "SUSPEND", "ACTIVE", "LAST", "SCHEDULE", "AGE"];
    assert!(shown.split_whitespace().take(columns.len()).eq(columns), "{shown}");

    // Any garbage collector deletes the objects of the Deployment with it.
    local.kubectl_says("delete deployment front --cascade=foreground --timeout=120s").await;
    let left = local.kubectl_says("get replicasets,pods -l app=front -o name").await;
    assert_eq!(left, "");

    for program in [&manager, &scheduler] {
        let output = program.output();
        let complaints: Vec<&str> = output
            .lines()
            .filter(|line| COMPLAINTS.iter().any(|complaint| line.contains(complaint)))
            .collect();
        assert!(complaints.is_empty(), "they ask in vain:\n{}", complaints.join("\n"));
    }
}
