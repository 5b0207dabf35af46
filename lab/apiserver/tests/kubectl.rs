//! The real kubectl does and shows the same on the embedded API as on the real one.

use std::net::SocketAddr;

use salvor_apiserver::{Cluster, Server, Settings};
use salvor_testkit::{ControlPlane, Kubectl};

/// The Kubernetes minor that the embedded server imitates.
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

/// An event. (Its times are fixed, so that both show the same.)
const EVENT: &str = r#"
apiVersion: v1
kind: Event
metadata: { name: happened }
involvedObject: { kind: Pod, name: web, namespace: work }
reason: Happened
message: it happened
type: Normal
count: 2
firstTimestamp: "2019-01-01T00:00:00Z"
lastTimestamp: "2019-01-01T00:00:00Z"
source: { component: somebody }
"#;

/// A budget that needs the one pod that it covers.
const GUARD: &str = r#"
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: { name: guard }
spec: { minAvailable: 1, selector: { matchLabels: { app: web } } }
"#;

/// `kubectl explain` for fields; the help texts are not imitated.
const EXPLAINED: &[&str] = &[
    "explain pods",
    "explain pod.spec.containers",
    "explain job.status",
    "explain node.spec.taints --recursive",
    "explain pdb.spec",
    "explain resourceclaim.spec.devices",
    "explain hpa.spec.metrics",
];

/// Everyday commands of kubectl. `MANIFEST` stands for the path of the manifest.
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
    "-n work wait --for=condition=Ready=False pod/web --timeout 3s",
    "-n work create -f MANIFEST",
    "-n work describe configmap settings",
    "-n work describe pdb front",
    "-n work delete pod web --grace-period 0 --force",
    "-n work delete pod web",
    "-n work delete configmap settings",
    "-n work get configmap settings",
    "-n work delete deployment front --cascade=orphan --wait=false",
    "-n work get events --field-selector involvedObject.name=web",
    "-n work create configmap flat --from-literal a=b",
    "-n work get configmap flat -o jsonpath={.data}",
    "-n work create secret generic keys --from-literal a=b",
    "-n work get secret keys -o jsonpath={.data}",
    "-n work create serviceaccount robot",
    "-n work create deployment made --image made:1 --replicas 0 --port 80",
    "-n work get deployment made -o jsonpath={.spec}",
    "-n work create job once --image once:1 -- echo hello",
    "-n work get job once -o jsonpath={.spec.template.spec}",
    "-n work create pdb made --selector app=made --min-available 50%",
    "-n work get pdb made -o jsonpath={.spec}",
    "-n work create service clusterip made --tcp 80:8080",
    "-n work get service made -o jsonpath={.spec.ports}",
    "-n work create role reader --verb get,list --resource pods",
    "-n work get role reader -o jsonpath={.rules}",
    "-n work create quota small --hard pods=3,cpu=2",
    "-n work get quota small -o jsonpath={.spec}",
    "-n work get roles,quota -o wide",
    "-n work create rolebinding reading --role reader --user somebody --serviceaccount work:robot",
    "-n work get rolebindings -o wide",
    "-n work create cronjob tick --image tick:1 --schedule @daily",
    "-n work get cronjobs",
    "-n work get cj -o wide",
    "-n work describe cronjob tick",
    "-n work autoscale deployment made --max 3",
    "-n work get hpa",
    "-n work create ingress web --rule example.com/=made:80",
    "-n work get ingress",
    "-n work describe ingress web",
    "get storageclasses,csidrivers,deviceclasses,resourceslices,runtimeclasses,ingressclasses",
    "-n work get resourceclaims,networkpolicies,csistoragecapacities",
    "get validatingadmissionpolicies,mutatingwebhookconfigurations,csr",
    "create priorityclass high --value 5 --description urgent",
    "get priorityclass high -o jsonpath={.value}",
    "create namespace other",
    "create namespace other",
    "get namespace other",
    "auth can-i delete pods",
    "-n work describe deployment made",
    "-n work describe secret keys",
    "describe namespace other",
    "describe priorityclass high",
    "-n work apply --server-side -f EVENT",
    "-n work events --for pod/web",
    "-n work get events -o name --field-selector involvedObject.name=web",
    "-n work apply -f MANIFEST",
    "-n work describe pod web",
    "-n work patch pod web --subresource status --type merge -p {\"status\":{\"phase\":\"Running\",\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}",
    "-n work apply -f GUARD",
    "-n work patch pdb guard --subresource status --type merge -p {\"status\":{\"observedGeneration\":1,\"currentHealthy\":1,\"desiredHealthy\":1,\"expectedPods\":1,\"disruptionsAllowed\":0}}",
    "drain worker --ignore-daemonsets --timeout 20s",
    "drain worker --ignore-daemonsets --force --grace-period 0 --timeout 4s",
    "-n work delete pdb guard",
    "drain worker --ignore-daemonsets --force --grace-period 0 --timeout 20s",
    "-n work get pods",
    "uncordon worker",
    "delete namespace other --wait=false",
    "get --raw /readyz",
    "delete node worker",
];

async fn run(kubectl: &Kubectl, extra: &[&str], line: &str, folder: &str) -> String {
    let mut arguments: Vec<&str> = extra.to_vec();
    let files = ["MANIFEST", "EVENT", "GUARD"];
    let words: Vec<String> = line
        .split(' ')
        .map(|word| if files.contains(&word) { format!("{folder}/{word}") } else { word.to_owned() })
        .collect();
    arguments.extend(words.iter().map(String::as_str));
    match kubectl.run(&arguments).await {
        Ok(said) => said,
        Err(error) => {
            // The command line is part of the message, and differs.
            let text = error.to_string();
            text.split_once("failed: ").map_or(text.clone(), |(_, reason)| reason.to_owned())
        }
    }
}

/// Commands on one cluster after the other do not run at the same time.
fn without_times(text: &str) -> String {
    // As in `7s`, `2m10s` and `5d23h`.
    let is_age = |word: &str| {
        word.starts_with(|first: char| first.is_ascii_digit())
            && word.ends_with(['s', 'm', 'h', 'd', 'y'])
            && word.chars().all(|character| character.is_ascii_digit() || "smhdy".contains(character))
    };
    let of_line = |line: &str| {
        for moment in ["CreationTimestamp:", "Start Time:"] {
            if line.trim_start().starts_with(moment) {
                return format!("{moment} MOMENT");
            }
        }
        let words = line.split_whitespace().map(|word| match word {
            word if is_age(word) => "AGE",
            // Roles are shown with the time of their creation.
            word if word.parse::<jiff::Timestamp>().is_ok() => "MOMENT",
            word => word,
        });
        words.collect::<Vec<_>>().join(" ")
    };
    let mut lines: Vec<String> = text.lines().map(of_line).collect();
    // A repeated attempt prints its line again.
    lines.dedup();
    lines.join("\n")
}

/// Kinds, versions, names and types, without the prose.
fn fields_only(text: &str) -> String {
    let says_something = |line: &&str| {
        let line = line.trim_start();
        line.contains("\t<")
            || line.starts_with("KIND:")
            || line.starts_with("VERSION:")
            || line.starts_with("error:")
    };
    text.lines().filter(says_something).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn kubectl_does_and_shows_the_same() {
    if salvor_testkit::kubernetes_minor() != EMBEDDED_MINOR {
        return eprintln!("the embedded server is a {EMBEDDED_MINOR}: not compared with another minor");
    }
    let real = ControlPlane::builder().start().await.unwrap();
    let cluster = Cluster::new(Settings { start: wall_clock(), ..Settings::default() });
    let server = Server::start(cluster, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (config, cache, folder) = (file("kubeconfig"), file("cache"), file(""));
    std::fs::write(&config, server.kubeconfig()).unwrap();
    for (name, text) in [("MANIFEST", MANIFEST), ("EVENT", EVENT), ("GUARD", GUARD)] {
        std::fs::write(file(name), text).unwrap();
    }
    let kubectl = real.kubectl();
    let embedded = ["--kubeconfig", config.as_str(), "--cache-dir", cache.as_str()];
    let mut report = String::new();
    for line in AFTERNOON {
        let ours = without_times(&run(&kubectl, &embedded, line, &folder).await);
        let theirs = without_times(&run(&kubectl, &[], line, &folder).await);
        if ours != theirs {
            report.push_str(&format!("kubectl {line}\n--- embedded\n{ours}\n--- real\n{theirs}\n\n"));
        }
    }
    for line in EXPLAINED {
        let ours = fields_only(&run(&kubectl, &embedded, line, &folder).await);
        let theirs = fields_only(&run(&kubectl, &[], line, &folder).await);
        assert!(!theirs.is_empty(), "kubectl {line} explains nothing");
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
