//! The Helm chart creates the same objects as `salvor manifests`. The real Helm installs, upgrades, rolls back and
//! removes it completely.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use salvor_api::config::parse;
use salvor_testkit::ControlPlane;
use salvor_testkit::peers::Peer;
use serde_json::{Value, json};

const HEAD: &str = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
const GATE: &str = "featureGates: {FailureRecoveryPolicy: true}\n";
const HELMS: [Peer; 2] = [Peer::Helm, Peer::Helm3];

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/salvor")
}

/// Helm with its own home folder.
struct Helm {
    program: PathBuf,
    home: tempfile::TempDir,
}

impl Helm {
    fn new(peer: Peer) -> Self {
        let program = peer.folder().unwrap().join(peer.name());
        Self { program, home: tempfile::tempdir().unwrap() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn try_run(&self, arguments: &[&str]) -> Output {
        Command::new(&self.program)
            .args(arguments)
            .env_clear()
            .env("HOME", self.home.path())
            .env("KUBECONFIG", self.file("kubeconfig"))
            .output()
            .unwrap()
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = self.try_run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The error of a command that must fail.
    fn refusal(&self, arguments: &[&str]) -> String {
        let output = self.try_run(arguments);
        assert!(!output.status.success(), "{arguments:?} is not refused");
        String::from_utf8(output.stderr).unwrap()
    }

    fn template(&self, values: &str) -> Vec<Value> {
        let file = self.file("values.yaml");
        fs::write(&file, values).unwrap();
        let (chart, file) = (chart(), file.display().to_string());
        let chart = chart.to_str().unwrap();
        documents(&self.run(&[
            "template",
            "salvor",
            chart,
            "--namespace",
            "salvor-system",
            "--values",
            &file,
        ]))
    }
}

fn documents(text: &str) -> Vec<Value> {
    let all = serde_saphyr::from_multiple::<Value>(text).unwrap();
    all.into_iter().filter(|document| !document.is_null()).collect()
}

fn manifests(config: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    fs::write(&file, format!("{HEAD}{config}")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_salvor"));
    let output = command.env_clear().arg("manifests").arg("--config").arg(&file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    documents(&String::from_utf8(output.stdout).unwrap())
}

/// Objects by kind, namespace and name. The configuration is compared by meaning, and a digest only has to exist.
fn comparable(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for mut object in objects {
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let kind = text("/kind");
        let key = format!("{kind} {}/{}", text("/metadata/namespace"), text("/metadata/name"));
        match kind.as_str() {
            "ConfigMap" => {
                let configuration = parse(object["data"]["config.yaml"].as_str().unwrap()).unwrap();
                object["data"]["config.yaml"] = serde_json::to_value(configuration).unwrap();
            }
            "Deployment" => {
                let digest =
                    &mut object["spec"]["template"]["metadata"]["annotations"]["salvor.dev/config-digest"];
                assert_eq!(digest.as_str().unwrap().len(), 16);
                *digest = json!("a digest");
            }
            "CustomResourceDefinition" => {
                // Only Helm would delete it with all its objects.
                let metadata = object["metadata"].as_object_mut().unwrap();
                metadata
                    .get_mut("annotations")
                    .map(|all| all.as_object_mut().unwrap().remove("helm.sh/resource-policy"));
                if metadata.get("annotations").is_some_and(|all| all == &json!({})) {
                    metadata.remove("annotations");
                }
            }
            _ => {}
        }
        assert!(all.insert(key.clone(), object).is_none(), "two of {key}");
    }
    all
}

/// Values of the chart without `config`, and the configuration file, which the chart gets as `config`.
const INSTALLATIONS: &[(&str, &str)] = &[
    ("zombie", ""),
    ("job", ""),
    ("eviction", ""),
    ("appwrapper", ""),
    ("repair", ""),
    ("zombie job eviction appwrapper repair", "logFormat: json\n"),
    ("zombie job eviction appwrapper repair", "dryRun: true\n"),
    (
        "zombie",
        "failureRecoveryPolicy: {rules: [{taintNodeOutOfService: {nodeSelector: {matchLabels: {pool: gpu}}, unreachableNodeTimeout: 5m}}]}\n\
         bind: '0.0.0.0:9090'\npage: {enabled: true, bind: '[::]:8888'}\nbrake: {maxPodsPerMinute: 5}\n",
    ),
    ("zombie", "page: {enabled: true}\nleaderElection: {leaseName: other, leaseDuration: 30s}\n"),
    ("job", "job: {deleteFinishedJobs: true}\ndryRun: true\n"),
    ("job eviction", "job: {deleteFinishedJobs: true}\neviction: {removeTaint: WhenEvicted}\n"),
    (
        "appwrapper",
        "appwrapper: {wrappedKinds: [Pod, Job.batch, 'Foo.example.com:foozen', Policy.example.com, Gateway.example.com, Mesh.a.b, Box.a.b]}\n",
    ),
    ("appwrapper", "appwrapper: {userRBACAdmissionCheck: false}\n"),
    ("appwrapper", "webhooks: {enabled: false}\n"),
    ("appwrapper", "webhooks: {certDir: /certificates, bind: '0.0.0.0:7443'}\n"),
    ("appwrapper", "appwrapper: {resetWhenNodeUnreachable: false}\ndryRun: true\n"),
    ("zombie", "failureRecoveryPolicy: {jobs: {lostPods: Count}}\n"),
    ("zombie", "failureRecoveryPolicy: {jobs: {lostPods: Hold}}\n"),
    ("repair", "repair: {clusterAPI: Delete}\n"),
    ("job repair", "repair: {clusterAPI: Delete}\ndryRun: true\n"),
];

#[test]
fn the_chart_gives_the_same_objects_as_the_command() {
    for peer in HELMS {
        let helm = Helm::new(peer);
        // One case is enough for the older Helm, because the templates are the same.
        let cases = if peer == Peer::Helm { INSTALLATIONS } else { &INSTALLATIONS[5..6] };
        for (recoveries, config) in cases {
            let names: Vec<&str> = recoveries.split(' ').collect();
            let switches: String =
                names.iter().map(|name| format!("  {name}: {{enabled: true}}\n")).collect();
            let indented: String = config.lines().map(|line| format!("  {line}\n")).collect();
            let config_value =
                if config.is_empty() { "config: {}\n".to_owned() } else { format!("config:\n{indented}") };
            let values = format!("recoveries:\n{switches}createNamespace: true\n{config_value}");
            let gate = if names.contains(&"zombie") { GATE } else { "" };
            let file = format!("controllers: [{}]\n{gate}{config}", names.join(", "));
            let (chart, command) = (comparable(helm.template(&values)), comparable(manifests(&file)));
            let (keys, expected): (Vec<_>, Vec<_>) = (chart.keys().collect(), command.keys().collect());
            assert_eq!(keys, expected, "{file}");
            for (key, object) in &command {
                let is = &chart[key];
                assert!(is == object, "{file}{key} differs:\nchart {is:#}\ncommand {object:#}");
            }
        }
    }
}

#[test]
fn values_reach_what_they_are_about() {
    let helm = Helm::new(Peer::Helm);
    let objects = helm.template(
        "recoveries: {zombie: {enabled: true}}\n\
         dryRun: true\n\
         extraLabels: {team: platform}\n\
         podLabels: {tier: ops}\n\
         podAnnotations: {a: b}\n\
         tolerations: [{key: infra, operator: Exists}]\n\
         nodeSelector: {pool: infra}\n\
         priorityClassName: system-cluster-critical\n\
         resources: {limits: {memory: 1Gi}}\n\
         image: {repository: example.com/salvor, digest: 'sha256:0000000000000000000000000000000000000000000000000000000000000000', pullPolicy: Always}\n\
         networkPolicy: {metricsFrom: [{namespaceSelector: {matchLabels: {name: monitoring}}}]}\n\
         metrics: {podMonitor: {enabled: true, labels: {release: p}}, serviceMonitor: {enabled: true}}\n\
         replicas: 3\n",
    );
    let find = |kind: &str| {
        objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
    };
    assert!(objects.iter().all(|object| object["metadata"]["labels"]["team"] == "platform"), "{objects:#?}");
    let deployment = &find("Deployment")["spec"];
    assert_eq!(deployment["replicas"], 3);
    assert_eq!(deployment["selector"]["matchLabels"], json!({"app.kubernetes.io/name": "salvor"}));
    let template = &deployment["template"];
    assert_eq!(
        template["metadata"]["labels"],
        json!({"app.kubernetes.io/name": "salvor", "team": "platform", "tier": "ops"})
    );
    assert_eq!(template["metadata"]["annotations"]["a"], "b");
    let pod = &template["spec"];
    assert_eq!(pod["tolerations"], json!([{"key": "infra", "operator": "Exists"}]));
    assert_eq!(
        (&pod["nodeSelector"], &pod["priorityClassName"]),
        (&json!({"pool": "infra"}), &json!("system-cluster-critical"))
    );
    let container = &pod["containers"][0];
    assert_eq!(container["image"], format!("example.com/salvor@sha256:{}", "0".repeat(64)));
    assert_eq!(
        (&container["imagePullPolicy"], &container["resources"]),
        (&json!("Always"), &json!({"limits": {"memory": "1Gi"}}))
    );
    assert_eq!(
        find("NetworkPolicy")["spec"]["ingress"],
        json!([{"from": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}], "ports": [{"port": 8080, "protocol": "TCP"}]}])
    );
    assert_eq!(find("PodMonitor")["metadata"]["labels"]["release"], "p");
    let service = &find("Service")["metadata"]["labels"];
    let wanted = find("ServiceMonitor")["spec"]["selector"]["matchLabels"].as_object().unwrap().clone();
    assert!(wanted.iter().all(|(key, value)| service[key] == *value), "{wanted:?}");
    assert!(find("ConfigMap")["data"]["config.yaml"].as_str().unwrap().contains("dryRun: true"));
}

/// A chart must not link to files outside, so it has copies.
#[test]
fn rules_and_dashboard_are_those_of_the_deploy_folder() {
    let deploy = chart().join("../../deploy");
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    for (copy, file) in
        [("alerts.yaml", "prometheus/rules.yaml"), ("dashboard.json", "grafana/dashboard.json")]
    {
        let (copy, file) = (chart().join("files").join(copy), deploy.join(file));
        assert!(read(copy.clone()) == read(file.clone()), "copy {} to {}", file.display(), copy.display());
    }
    let helm = Helm::new(Peer::Helm);
    let objects = helm.template(
        "recoveries: {zombie: {enabled: true}}\n\
         metrics: {prometheusRule: {enabled: true}, dashboard: {enabled: true}}\n",
    );
    let rules = documents(&read(deploy.join("prometheus/rules.yaml"))).remove(0);
    let rendered = objects.iter().find(|object| object["kind"] == "PrometheusRule").unwrap();
    assert_eq!(rendered["spec"]["groups"], rules["groups"]);
    let dashboard: Value = serde_json::from_str(&read(deploy.join("grafana/dashboard.json"))).unwrap();
    let map = objects.iter().find(|object| object["metadata"]["name"] == "salvor-dashboard").unwrap();
    let rendered: Value = serde_json::from_str(map["data"]["salvor.json"].as_str().unwrap()).unwrap();
    assert_eq!(rendered, dashboard);
}

#[test]
fn bad_values_are_refused_with_their_name() {
    let on = "--set=recoveries.job.enabled=true";
    for peer in HELMS {
        let helm = Helm::new(peer);
        let chart = chart();
        let chart = chart.to_str().unwrap();
        let refusal = |flags: &[&str]| helm.refusal(&[&["template", "salvor", chart], flags].concat());
        let none = refusal(&[]);
        assert!(
            none.contains("no recovery is enabled") && none.contains("set recoveries.NAME.enabled=true"),
            "{none}"
        );
        for (flags, told) in [
            (&[on, "--set=recoveries.vampire.enabled=true"][..], "vampire"),
            (&[on, "--set=dryrun=true"], "dryrun"),
            (&[on, "--set=replicas=two"], "replicas"),
            (&["--set=recoveries.job.enabled=yes"], "enabled"),
            (&[on, "--set=config.controllers={zombie}"], "config"),
            (&[on, "--set=config.leaderElection.enabled=false"], "config.leaderElection.enabled"),
            (&[on, "--set=config.bind=127.0.0.1:8080"], "config.bind"),
            (&[on, "--set=config.webhooks.url=https://a:1"], "config.webhooks.url"),
        ] {
            let said = refusal(flags);
            assert!(said.contains(told), "{flags:?}: {said}");
        }
        let lint = helm.run(&["lint", "--strict", chart, on]);
        assert!(lint.contains("1 chart(s) linted, 0 chart(s) failed"), "{lint}");
        let all = ["zombie", "job", "eviction", "appwrapper", "repair"]
            .map(|name| format!("--set=recoveries.{name}.enabled=true"));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        helm.run(&[&["lint", "--strict", chart][..], &all].concat());
    }
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let about: Value =
        serde_saphyr::from_str(&fs::read_to_string(chart().join("Chart.yaml")).unwrap()).unwrap();
    assert_eq!(
        (&about["version"], &about["appVersion"]),
        (&json!(env!("CARGO_PKG_VERSION")), &json!(env!("CARGO_PKG_VERSION")))
    );
}

/// Every value is in the schema, and every recovery has a switch.
#[test]
fn values_and_schema_agree() {
    let read = |name: &str| fs::read_to_string(chart().join(name)).unwrap();
    let values: Value = serde_saphyr::from_str(&read("values.yaml")).unwrap();
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    for name in values.as_object().unwrap().keys() {
        assert!(schema["properties"].get(name).is_some(), "values.schema.json has no {name}");
    }
    for controller in salvor_api::Controller::ALL {
        assert_eq!(values["recoveries"][controller.name()], json!({"enabled": false}), "{controller}");
        assert!(
            schema["properties"]["recoveries"]["properties"].get(controller.name()).is_some(),
            "{controller}"
        );
    }
}

#[tokio::test]
async fn helm_installs_upgrades_rolls_back_and_leaves_nothing() {
    let plane = ControlPlane::builder().start().await.unwrap();
    let kubectl = plane.kubectl().in_namespace("");
    let chart = chart();
    let chart = chart.to_str().unwrap();
    for peer in HELMS {
        let helm = Helm::new(peer);
        plane.admin().write_kubeconfig(&helm.file("kubeconfig")).unwrap();
        let there = async |what: &str| {
            let found = kubectl
                .run(&["get", what, "-A", "-l", "app.kubernetes.io/name=salvor", "-o", "name"])
                .await
                .unwrap();
            found.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let cluster_rights = async || {
            let role = kubectl
                .run(&["get", "clusterrole", "salvor", "-o", "jsonpath={.rules[*].resources[*]}"])
                .await;
            role.unwrap()
        };
        // No controller here finishes the deletion of a namespace.
        let namespace = format!("salvor-{}", peer.name());
        let release = ["salvor", chart, "--namespace", &namespace];
        let in_namespace = ["salvor", "--namespace", &namespace];

        helm.run(
            &[&["install"][..], &release, &["--create-namespace", "--set=recoveries.zombie.enabled=true"]]
                .concat(),
        );
        assert_eq!(there("deployment").await, ["deployment.apps/salvor"]);
        let zombie = cluster_rights().await;
        assert!(zombie.contains("pods/status") && !zombie.contains("volumeattachments"), "{zombie}");

        let more = [
            "--set=recoveries.eviction.enabled=true",
            "--set=recoveries.appwrapper.enabled=true",
            "--set=crds.keep=false",
        ];
        helm.run(&[&["upgrade"][..], &release, &more].concat());
        let rights = cluster_rights().await;
        assert!(rights.contains("volumeattachments") && rights.contains("appwrappers/status"), "{rights}");
        assert_eq!(there("mutatingwebhookconfigurations,validatingwebhookconfigurations").await.len(), 2);
        kubectl.run(&["get", "crd", "appwrappers.workload.codeflare.dev"]).await.unwrap();
        // What the operator wrote into an object of the release survives an upgrade.
        let there_is = kubectl.clone().in_namespace(&namespace);
        let authority = r#"{"data": {"ca.crt": "Q0E="}}"#;
        there_is.run(&["patch", "secret", "salvor-webhooks", "--type=merge", "-p", authority]).await.unwrap();
        helm.run(&[&["upgrade"][..], &release, &more, &["--set=replicas=1"]].concat());
        let kept =
            there_is.run(&["get", "secret", "salvor-webhooks", "-o", "jsonpath={.data}"]).await.unwrap();
        assert_eq!(kept, r#"{"ca.crt":"Q0E="}"#);

        helm.run(&[&["rollback"][..], &in_namespace[..1], &["1"], &in_namespace[1..]].concat());
        assert_eq!(cluster_rights().await, zombie);
        assert!(
            there("mutatingwebhookconfigurations,validatingwebhookconfigurations,services").await.is_empty()
        );

        helm.run(&[&["uninstall"][..], &in_namespace].concat());
        kubectl
            .run(&["wait", "--for=delete", "--timeout=60s", "crd/appwrappers.workload.codeflare.dev"])
            .await
            .unwrap();
        let kinds = "deployments,poddisruptionbudgets,networkpolicies,configmaps,secrets,services,serviceaccounts,roles,rolebindings,\
                     clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,crds";
        assert_eq!(there(kinds).await, Vec::<String>::new());
        let left = kubectl.run(&["get", "secrets,crds", "-A", "-o", "name"]).await.unwrap();
        assert!(!left.contains("helm") && !left.contains("appwrapper"), "{left}");
    }
}
