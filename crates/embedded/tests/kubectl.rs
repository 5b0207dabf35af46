//! The real kubectl does and shows the same on the embedded API as on the real one.

use std::net::SocketAddr;

use salvor_embedded::{Cluster, Server, Settings};
use salvor_testkit::{ControlPlane, Kubectl};

/// Which Kubernetes the embedded server is like, in every detail.
const EMBEDDED_MINOR: &str = "1.37";

#[expect(clippy::disallowed_methods, reason = "kubectl compares times with its own clock")]
fn wall_clock() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

const MANIFEST: &str = r#"
apiVersion: v1
kind: Namespace
metadata: { name: work }
---
apiVersion: v1
kind: Node
metadata: { name: worker, labels: { node-role.kubernetes.io/worker: "" } }
---
apiVersion: v1
kind: ConfigMap
metadata: { name: settings }
data: { colour: red }
---
apiVersion: v1
kind: Pod
metadata: { name: web, labels: { app: web } }
spec:
  nodeName: worker
  containers: [{ name: main, image: "web:1" }]
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: front }
spec:
  replicas: 2
  selector: { matchLabels: { app: front } }
  template:
    metadata: { labels: { app: front } }
    spec: { containers: [{ name: main, image: "front:1" }] }
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: { name: front }
spec: { minAvailable: 1, selector: { matchLabels: { app: front } } }
"#;

/// What a person does with kubectl in an afternoon. `MANIFEST` stands for the path of the manifest.
const AFTERNOON: &[&str] = &[
    "-n work apply -f MANIFEST",
    "-n work apply -f MANIFEST",
    "-n work get pods -o wide",
    "-n work get pods,deployments,pdb,configmaps settings --ignore-not-found",
    "-n work get pods,deployments,pdb",
    "get nodes -o wide",
    "-n work get pods -o name",
    "-n work get pod web -o jsonpath={.status.phase}",
    "-n work get pods -l app=web --field-selector spec.nodeName=worker -o name",
    "-n work label pod web tier=1",
    "-n work annotate pod web note=x",
    "-n work label pod web tier-",
    "-n work patch configmap settings --type merge -p {\"data\":{\"colour\":\"blue\"}}",
    "-n work patch deployment front -p {\"spec\":{\"replicas\":3}}",
    "-n work patch configmap settings --type json -p [{\"op\":\"remove\",\"path\":\"/data/colour\"}]",
    "-n work get configmap settings -o jsonpath={.data}",
    "-n work scale deployment front --replicas 1",
    "-n work set image deployment/front main=front:2",
    "-n work get deployment front -o jsonpath={.spec.template.spec.containers[0].image}",
    "-n work get deployment front -o jsonpath={.metadata.generation}",
    "taint node worker example.com/out=yes:NoExecute",
    "get node worker -o jsonpath={.spec.taints}",
    "taint node worker example.com/out:NoExecute-",
    "taint node worker example.com/out=yes:Never",
    "cordon worker",
    "get nodes",
    "uncordon worker",
    "-n work patch pod web --subresource status --type merge -p {\"status\":{\"phase\":\"Running\",\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}",
    "-n work wait --for=condition=Ready pod/web --timeout 20s",
    "-n work wait --for=jsonpath={.status.phase}=Running pod/web --timeout 20s",
    "-n work wait --for=condition=Ready=False pod/web --timeout 1s",
    "-n work create -f MANIFEST",
    "-n work describe configmap settings",
    "-n work describe pdb front",
    "-n work delete pod web --grace-period 0 --force",
    "-n work delete pod web",
    "-n work delete configmap settings",
    "-n work get configmap settings",
    "-n work delete deployment front --cascade=orphan --wait=false",
    "-n work get events",
    "drain worker --ignore-daemonsets --timeout 20s",
    "get --raw /readyz",
    "delete node worker",
];

async fn run(kubectl: &Kubectl, extra: &[&str], line: &str, manifest: &str) -> String {
    let mut arguments: Vec<&str> = extra.to_vec();
    arguments.extend(line.split(' ').map(|word| if word == "MANIFEST" { manifest } else { word }));
    match kubectl.run(&arguments).await {
        Ok(said) => said,
        Err(error) => {
            // The command line is part of the message, and differs.
            let text = error.to_string();
            text.split_once("failed: ").map_or(text.clone(), |(_, reason)| reason.to_owned())
        }
    }
}

/// Ages are those of the moment.
fn without_ages(text: &str) -> String {
    let is_age = |word: &str| {
        word.ends_with(['s', 'm'])
            && word.len() < 8
            && word.trim_end_matches(['s', 'm']).chars().all(|character| character.is_ascii_digit())
    };
    text.lines()
        .map(|line| {
            line.split_whitespace()
                .map(|word| if is_age(word) { "AGE" } else { word })
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect::<Vec<_>>()
        .join("\n")
}

#[tokio::test]
async fn kubectl_does_and_shows_the_same() {
    if salvor_testkit::kubernetes_minor() != EMBEDDED_MINOR {
        return eprintln!("the embedded server is a {EMBEDDED_MINOR}: not compared with another minor");
    }
    let real = ControlPlane::builder().start().await.unwrap();
    let cluster =
        Cluster::new(Settings { start: wall_clock(), garbage_collection: false, ..Settings::default() });
    let server = Server::start(cluster, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (config, cache, manifest) = (file("kubeconfig"), file("cache"), file("manifest.yaml"));
    std::fs::write(&config, server.kubeconfig()).unwrap();
    std::fs::write(&manifest, MANIFEST).unwrap();
    let kubectl = real.kubectl();
    let embedded = ["--kubeconfig", config.as_str(), "--cache-dir", cache.as_str()];
    let mut report = String::new();
    for line in AFTERNOON {
        let ours = without_ages(&run(&kubectl, &embedded, line, &manifest).await);
        let theirs = without_ages(&run(&kubectl, &[], line, &manifest).await);
        if ours != theirs {
            report.push_str(&format!("kubectl {line}\n--- embedded\n{ours}\n--- real\n{theirs}\n\n"));
        }
    }
    assert!(report.is_empty(), "kubectl sees a difference:\n{report}");
}

#[tokio::test]
async fn nobody_gets_in_without_the_token() {
    let cluster = Cluster::new(Settings::default());
    let server = Server::start(cluster, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let config: kube::config::Kubeconfig = serde_json::from_str(server.kubeconfig()).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(config, &options).await.unwrap();
    let version = kube::Client::try_from(config.clone()).unwrap().apiserver_version().await.unwrap();
    assert_eq!(version.major, "1");
    let mut stranger = config;
    stranger.auth_info.token = Some("wrong".to_owned().into());
    let error = kube::Client::try_from(stranger).unwrap().apiserver_version().await.unwrap_err();
    let kube::Error::Api(status) = error else { panic!("{error}") };
    assert_eq!(status.code, 401);
}
