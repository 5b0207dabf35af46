//! `salvor cluster` as a person uses it: a process, a kubeconfig, kubectl, and a second terminal.

// A test whose setup fails has failed.
#![allow(clippy::unwrap_used)]

#[path = "cluster/real_programs.rs"]
mod real_programs;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use salvor_testkit::{Kubectl, Program, wait};

const SALVOR: &str = env!("CARGO_BIN_EXE_salvor");

struct Local {
    program: Program,
    folder: tempfile::TempDir,
}

impl Local {
    async fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        let out = format!("--kubeconfig-out={}", kubeconfig.display());
        let all = ["cluster", &out].into_iter().chain(arguments.iter().copied());
        let program = Program::start(Path::new(SALVOR), all, &[]);
        let local = Self { program, folder };
        local.says("Ctrl-C ends it").await;
        local
    }

    fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    fn kubectl(&self) -> Kubectl {
        Kubectl::with(&self.kubeconfig(), &self.folder.path().join("cache")).unwrap()
    }

    async fn kubectl_says(&self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        self.kubectl().run(&words).await.unwrap()
    }

    /// A Secret owned by a ConfigMap, and a namespace with an object.
    async fn family(&self) {
        self.kubectl_says("create configmap owner").await;
        let uid = self.kubectl_says("get configmap owner -o jsonpath={.metadata.uid}").await;
        let dependent = format!(
            "{{apiVersion: v1, kind: Secret, metadata: {{name: dependent, ownerReferences: [{{apiVersion: v1, kind: ConfigMap, name: owner, uid: {uid}, blockOwnerDeletion: true}}]}}}}"
        );
        let manifest = self.write("dependent.yaml", &dependent);
        self.kubectl_says(&format!("apply -f {manifest}")).await;
        self.kubectl_says("create namespace doomed").await;
        self.kubectl_says("create configmap -n doomed last").await;
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Waits for an output. It polls, because output cannot be watched.
    async fn says(&self, text: &str) {
        let until = wait::patience().until(async {
            while !self.program.output().contains(text) {
                assert!(!self.program.has_ended(), "it ended:\n{}", self.program.output());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        assert!(until.await.is_some(), "it never said {text:?}:\n{}", self.program.output());
    }

    async fn fault(&self, node: &str, fault: &str) -> (Option<i32>, String) {
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig().display());
        salvor(&["cluster", "fault", node, fault, &kubeconfig]).await
    }
}

async fn salvor(arguments: &[&str]) -> (Option<i32>, String) {
    let program = Program::start(Path::new(SALVOR), arguments, &[]);
    (program.exit_code().await, program.output())
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: web}]
  tolerations:
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
";

#[tokio::test]
async fn kubectl_runs_a_pod_and_a_second_terminal_makes_its_node_fail() {
    let local = Local::start(&["--nodes=3", "--zones=3", "--node-grace-period=2s"]).await;
    let mode = std::fs::metadata(local.kubeconfig()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "a key to everything is for its owner only");
    assert!(local.program.output().contains("for tests only"));

    let nodes = local.kubectl_says("get nodes -L topology.kubernetes.io/zone").await;
    assert_eq!(nodes.lines().count(), 4, "{nodes}");
    local.kubectl_says("wait --for=condition=Ready node/node-1 --timeout=120s").await;
    let manifest = local.write("pod.yaml", POD);
    local.kubectl_says(&format!("apply -f {manifest}")).await;
    local.kubectl_says("wait --for=condition=Ready pod/web --timeout=120s").await;
    let node = local.kubectl_says("get pod web -o jsonpath={.spec.nodeName}").await;

    assert_eq!(local.fault(&node, "partition").await, (Some(0), String::new()));
    local.kubectl_says(&format!("wait --for=condition=Ready=Unknown node/{node} --timeout=120s")).await;
    local.kubectl_says("wait --for=jsonpath={.metadata.deletionTimestamp} pod/web --timeout=120s").await;
    let taints = local.kubectl_says(&format!("get node {node} -o jsonpath={{.spec.taints[*].key}}")).await;
    assert!(taints.contains("node.kubernetes.io/unreachable"), "{taints}");
    let events = local.kubectl_says("get events").await;
    for reason in ["Scheduled", "NodeNotReady", "TaintManagerEviction"] {
        assert!(events.contains(reason), "{reason} is not among\n{events}");
    }
    assert_eq!(local.fault(&node, "heal").await, (Some(0), String::new()));
    local.kubectl_says("wait --for=delete pod/web --timeout=120s").await;
    local.kubectl_says(&format!("wait --for=condition=Ready node/{node} --timeout=120s")).await;

    let (code, complaint) = local.fault("nobody", "crash").await;
    assert_eq!(code, Some(1));
    assert!(complaint.contains("\"nobody\"") && complaint.contains("node-1"), "{complaint}");
    let (code, complaint) = local.fault("node-1", "melt").await;
    assert_eq!(code, Some(2));
    assert!(
        complaint.contains("\"melt\"") && complaint.contains("crash, partition, heal, reboot"),
        "{complaint}"
    );

    local.program.signal("TERM");
    assert_eq!(local.program.exit_code().await, Some(0), "{}", local.program.output());
}

const RANGES: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ranges.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: ranges, singular: range, kind: Range, listKind: RangeList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            x-kubernetes-validations: [{rule: self.low <= self.high, message: low must not be above high}]
            properties:
              low: {type: integer}
              high: {type: integer, x-kubernetes-validations: [{rule: self >= oldSelf, message: high may only grow}]}
";

#[tokio::test]
async fn rules_of_a_custom_resource_are_kept() {
    let local = Local::start(&["--nodes=0"]).await;
    let definition = local.write("definition.yaml", RANGES);
    local.kubectl_says(&format!("apply -f {definition}")).await;
    local.kubectl_says("wait --for=condition=Established crd/ranges.example.com --timeout=120s").await;
    let apply = async |low: i32, high: i32| {
        let range = format!(
            "apiVersion: example.com/v1\nkind: Range\nmetadata: {{name: one}}\nspec: {{low: {low}, high: {high}}}\n"
        );
        let manifest = local.write("range.yaml", &range);
        local.kubectl().run(&["apply", "-f", &manifest]).await.map_err(|refusal| refusal.to_string())
    };
    let refused = |answer: Result<String, String>, why: &str| {
        let complaint = answer.unwrap_err();
        assert!(complaint.contains(&format!("The Range \"one\" is invalid: {why}")), "{complaint}");
    };
    refused(apply(3, 2).await, "spec: Invalid value: low must not be above high");
    assert_eq!(apply(1, 2).await.unwrap(), "range.example.com/one created\n");
    refused(apply(1, 1).await, "spec.high: Invalid value: 1: high may only grow");
    assert_eq!(apply(2, 3).await.unwrap(), "range.example.com/one configured\n");
}

#[tokio::test]
async fn without_loops_nothing_moves_by_itself() {
    let local = Local::start(&["--loops=none", "--nodes=1"]).await;
    local.says("loops: none").await;
    let manifest = local.write("pod.yaml", POD);
    local.kubectl_says(&format!("apply -f {manifest}")).await;
    let taints = local.kubectl_says("get node node-1 -o jsonpath={.spec.taints[*].key}").await;
    assert_eq!(taints, "node.kubernetes.io/not-ready", "nobody took the first taint away");
    assert_eq!(local.kubectl_says("get pod web -o jsonpath={.spec.nodeName}").await, "");
    local.family().await;
    local.kubectl_says("delete configmap owner").await;
    local.kubectl_says("delete namespace doomed --wait=false").await;
    assert_eq!(local.kubectl_says("get secret dependent -o jsonpath={.metadata.name}").await, "dependent");
    let doomed =
        local.kubectl_says("get namespace doomed -o jsonpath={.status.phase}{.spec.finalizers}").await;
    assert_eq!(doomed, "Terminating[\"kubernetes\"]");
    let left = local.kubectl_says("get configmap -n doomed last -o jsonpath={.metadata.name}").await;
    assert_eq!(left, "last");
    local.program.signal("INT");
    assert_eq!(local.program.exit_code().await, Some(0));
}

#[tokio::test]
async fn what_is_deleted_goes_with_all_that_is_its_own() {
    let local = Local::start(&["--loops=garbage-collector,namespace", "--nodes=0"]).await;
    local.says("loops: garbage-collector, namespace").await;
    local.family().await;
    local.kubectl_says("delete configmap owner --cascade=foreground --timeout=60s").await;
    assert_eq!(local.kubectl_says("get secrets -o name").await, "", "the owner waited for it");
    local.kubectl_says("delete namespace doomed --timeout=120s").await;
    assert!(!local.kubectl_says("get namespaces -o name").await.contains("doomed"));
}

#[tokio::test]
async fn what_cannot_be_had_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("no/such/folder").display().to_string();
    for (arguments, code, words) in [
        (vec!["--listen", &address], 1, vec![address.as_str(), "in use"]),
        (vec!["--kubeconfig-out", &nowhere], 1, vec![nowhere.as_str(), "No such file"]),
        (vec!["--loops", "scheduler,magic"], 2, vec!["\"magic\"", "scheduler, node-lifecycle"]),
        (vec!["--node-grace-period", "0s"], 2, vec!["0s", "between 1s and 24h"]),
        (vec!["--listen", "here"], 2, vec!["here", "--listen"]),
        (vec!["--nodes", "99999999999"], 2, vec!["99999999999", "a whole number from 0 to 5000"]),
        (vec!["--zones", "0"], 2, vec!["--zones", "a whole number from 1 to 5000"]),
    ] {
        let all: Vec<&str> = ["cluster"].into_iter().chain(arguments).collect();
        let (exit, complaint) = salvor(&all).await;
        assert_eq!(exit, Some(code), "{all:?}: {complaint}");
        for word in words {
            assert!(complaint.contains(word), "{all:?}: {word:?} is not in {complaint}");
        }
    }
}

#[tokio::test]
async fn without_a_file_it_makes_one_and_takes_it_away() {
    let program = Program::start(Path::new(SALVOR), ["cluster", "--nodes=0"], &[]);
    let until = wait::patience().until(async {
        while !program.output().contains("Ctrl-C ends it") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(until.await.is_some(), "{}", program.output());
    let output = program.output();
    let file = output.lines().find_map(|line| line.strip_prefix("export KUBECONFIG=")).unwrap();
    assert!(Path::new(file).exists());
    program.signal("TERM");
    assert_eq!(program.exit_code().await, Some(0));
    assert!(!Path::new(file).exists(), "{file} is left behind");
}

#[tokio::test]
async fn a_signal_ends_it_while_it_still_starts() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let out = format!("--kubeconfig-out={}", kubeconfig.display());
    let program = Program::start(Path::new(SALVOR), ["cluster", &out, "--nodes=5000"], &[]);
    let until = wait::patience().until(async {
        while !catches_sigterm(program.pid()) {
            assert!(!program.has_ended(), "{}", program.output());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(until.await.is_some(), "{}", program.output());
    program.signal("TERM");
    assert_eq!(program.exit_code().await, Some(0), "{}", program.output());
    assert_eq!(program.output(), "", "it had not started yet");
    assert!(!kubeconfig.exists());
}

/// Whether a process already has a handler for SIGTERM. Before that, the signal would kill it.
fn catches_sigterm(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << 14) != 0
}

/// The whole product: `salvor run` recovers a pod that is stuck on a lost node.
#[tokio::test]
async fn salvor_run_recovers_a_zombie_on_it() {
    let local = Local::start(&["--nodes=3", "--node-grace-period=2s"]).await;
    let config = local.write(
        "config.yaml",
        "apiVersion: config.salvor.dev/v1alpha1
kind: Configuration
failureRecoveryPolicy:
  rules:
  - terminatePod:
      podLabelSelector: {matchLabels: {app: web}}
      forcefulTerminationGracePeriod: 0s
      action: FailAndDelete
",
    );
    let salvor = Program::start(
        Path::new(SALVOR),
        [
            "run",
            &format!("--kubeconfig={}", local.kubeconfig().display()),
            &format!("--config={config}"),
            "--feature-gates=FailureRecoveryPolicy=true",
            "--bind=127.0.0.1:0",
            "--leader-elect=false",
        ],
        &[],
    );
    let manifest = local.write("pod.yaml", POD);
    local.kubectl_says(&format!("apply -f {manifest}")).await;
    local.kubectl_says("wait --for=condition=Ready pod/web --timeout=120s").await;
    let node = local.kubectl_says("get pod web -o jsonpath={.spec.nodeName}").await;
    assert_eq!(local.fault(&node, "crash").await, (Some(0), String::new()));
    local.kubectl_says("wait --for=delete pod/web --timeout=120s").await;
    let events = local.kubectl_says("get events").await;
    assert!(events.contains("KueueForcefullyDeleted"), "{events}");
    salvor.signal("TERM");
    assert_eq!(salvor.exit_code().await, Some(0), "{}", salvor.output());
}
