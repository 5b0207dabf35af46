use std::collections::BTreeSet;

use salvor_api::config::parse;
use salvor_operator::webhooks::{Webhook, WebhookKind};
use serde_json::json;

use super::*;

const ZOMBIE: &str = "featureGates: {FailureRecoveryPolicy: true}\ncontrollers: [zombie]\n";
const JOB: &str = "controllers: [job]\n";
const EVICTION: &str = "controllers: [eviction]\n";
const NODE_RULE: &str = "failureRecoveryPolicy: {rules: [{taintNodeOutOfService: {nodeSelector: {matchLabels: {pool: gpu}}, \
                         unreachableNodeTimeout: 5m}}]}\n";

fn yaml(installation: &Installation) -> Result<String, CliError> {
    super::yaml(&objects::all(installation)?)
}

fn configuration(rest: &str) -> Configuration {
    let text = format!("apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n{rest}");
    parse(&text).unwrap()
}

fn install(rest: &str) -> Installation {
    Installation::new(None, "salvor:test".into(), configuration(rest)).unwrap()
}

/// The objects, parsed from the YAML.
fn read_back(installation: &Installation) -> Vec<Value> {
    let text = yaml(installation).unwrap();
    text.split("---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    let object = found.next().unwrap_or_else(|| panic!("no {kind}"));
    assert!(found.next().is_none(), "more than one {kind}");
    object
}

/// Every right as `scope: verb group/resource[name]`.
fn rights(objects: &[Value]) -> BTreeSet<String> {
    let mut rights = BTreeSet::new();
    let texts = |list: &Value| -> Vec<String> {
        let list = list.as_array().cloned().unwrap_or_default();
        list.iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    for role in objects {
        let place = match role["kind"].as_str() {
            Some("ClusterRole") => "everywhere",
            Some("Role") => role["metadata"]["namespace"].as_str().unwrap(),
            _ => continue,
        };
        for rule in role["rules"].as_array().unwrap() {
            let name = texts(&rule["resourceNames"]).join(",");
            for verb in texts(&rule["verbs"]) {
                for resource in texts(&rule["resources"]) {
                    let group = texts(&rule["apiGroups"]).join(",");
                    rights.insert(format!("{place}: {verb} {group}/{resource}[{name}]"));
                }
            }
        }
    }
    rights
}

const LEADER: &[&str] = &[
    "salvor-system: create coordination.k8s.io/leases[]",
    "salvor-system: get coordination.k8s.io/leases[salvor]",
    "salvor-system: update coordination.k8s.io/leases[salvor]",
];
const READ: &[&str] = &[
    "everywhere: get /nodes[]",
    "everywhere: get /pods[]",
    "everywhere: list /nodes[]",
    "everywhere: list /pods[]",
    "everywhere: watch /nodes[]",
    "everywhere: watch /pods[]",
];
const WRITE_PODS: &[&str] =
    &["everywhere: create /events[]", "everywhere: delete /pods[]", "everywhere: patch /pods/status[]"];
const READ_NODE_LEASES: &[&str] = &["kube-node-lease: get coordination.k8s.io/leases[]"];
const WRITE_NODES: &[&str] = &["everywhere: patch /nodes[]"];
const READ_JOBS: &[&str] = &[
    "everywhere: get /pods[]",
    "everywhere: get batch/jobs[]",
    "everywhere: list /pods[]",
    "everywhere: list batch/jobs[]",
    "everywhere: watch /pods[]",
    "everywhere: watch batch/jobs[]",
];
const WRITE_JOBS: &[&str] = &[
    "everywhere: create /events[]",
    "everywhere: create /pods[]",
    "everywhere: delete /pods[]",
    "everywhere: patch /pods[]",
    "everywhere: patch batch/jobs/status[]",
    "everywhere: update batch/jobs/finalizers[]",
];

const READ_VOLUMES: &[&str] = &[
    "everywhere: get /persistentvolumeclaims[]",
    "everywhere: get batch/jobs[]",
    "everywhere: list storage.k8s.io/volumeattachments[]",
    "everywhere: watch storage.k8s.io/volumeattachments[]",
];
const READ_JOB: &[&str] = &["everywhere: get batch/jobs[]"];
const RAISE_LIMIT: &[&str] = &["everywhere: patch batch/jobs[]"];
const EVICT: &[&str] = &["everywhere: get /persistentvolumes[]", "everywhere: patch /nodes/status[]"];

const APPWRAPPER: &str =
    "controllers: [appwrapper]\nappwrapper: {wrappedKinds: [Pod, Job.batch, 'Foo.example.com:foozen']}\n";
const READ_APPWRAPPERS: &[&str] = &[
    READ_NODE_LEASES[0],
    "everywhere: get /persistentvolumeclaims[]",
    "everywhere: get workload.codeflare.dev/appwrappers[]",
    "everywhere: list workload.codeflare.dev/appwrappers[]",
    "everywhere: watch workload.codeflare.dev/appwrappers[]",
    "everywhere: get batch/jobs[]",
    "everywhere: list batch/jobs[]",
    "everywhere: watch batch/jobs[]",
    "everywhere: get example.com/foozen[]",
    "everywhere: list example.com/foozen[]",
    "everywhere: watch example.com/foozen[]",
];
const SERVE_WEBHOOKS: &[&str] = &[
    "salvor-system: get /secrets[salvor-webhooks]",
    "salvor-system: update /secrets[salvor-webhooks]",
    "everywhere: get admissionregistration.k8s.io/mutatingwebhookconfigurations[salvor]",
    "everywhere: update admissionregistration.k8s.io/mutatingwebhookconfigurations[salvor]",
    "everywhere: get admissionregistration.k8s.io/validatingwebhookconfigurations[salvor]",
    "everywhere: update admissionregistration.k8s.io/validatingwebhookconfigurations[salvor]",
];
const REVIEW: &[&str] = &["everywhere: create authorization.k8s.io/subjectaccessreviews[]"];
const WRITE_APPWRAPPERS: &[&str] = &[
    "everywhere: create /events[]",
    "everywhere: create /pods[]",
    "everywhere: delete /pods[]",
    "everywhere: patch /pods/status[]",
    "everywhere: create batch/jobs[]",
    "everywhere: delete batch/jobs[]",
    "everywhere: create example.com/foozen[]",
    "everywhere: delete example.com/foozen[]",
    "everywhere: update workload.codeflare.dev/appwrappers[]",
    "everywhere: patch workload.codeflare.dev/appwrappers[]",
    "everywhere: patch workload.codeflare.dev/appwrappers/status[]",
    "everywhere: update workload.codeflare.dev/appwrappers/finalizers[]",
];

#[test]
fn the_wrapped_kinds_and_no_others_are_granted() {
    let dry = format!("{APPWRAPPER}dryRun: true\n");
    let without = format!("{APPWRAPPER}webhooks: {{enabled: false}}\n");
    let trusting = APPWRAPPER.replace("{wrapped", "{userRBACAdmissionCheck: false, wrapped");
    let cases: &[(&str, &[&[&str]])] = &[
        (APPWRAPPER, &[LEADER, READ, READ_APPWRAPPERS, REVIEW, WRITE_APPWRAPPERS, SERVE_WEBHOOKS]),
        (&without, &[LEADER, READ, READ_APPWRAPPERS, WRITE_APPWRAPPERS]),
        (&dry, &[LEADER, READ, READ_APPWRAPPERS]),
        (&trusting, &[LEADER, READ, READ_APPWRAPPERS, WRITE_APPWRAPPERS, SERVE_WEBHOOKS]),
    ];
    for (file, expected) in cases {
        let expected: BTreeSet<_> = expected.concat().into_iter().map(String::from).collect();
        assert_eq!(rights(&read_back(&install(file))), expected, "{file}");
    }
}

#[test]
fn memory_follows_from_the_recoveries_that_run() {
    let gate = "featureGates: {FailureRecoveryPolicy: true}\n";
    for (list, gate, limit, request) in [
        ("zombie", gate, "128Mi", "64Mi"),
        // A recovery whose gate is off needs no memory.
        ("zombie", "", "96Mi", "48Mi"),
        ("job", "", "160Mi", "80Mi"),
        ("zombie, job, eviction", gate, "224Mi", "112Mi"),
        ("zombie, job, eviction, appwrapper, repair", gate, "320Mi", "160Mi"),
    ] {
        let objects = read_back(&install(&format!("controllers: [{list}]\n{gate}")));
        let container = &find(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["resources"]["limits"], json!({ "memory": limit }), "{list}");
        assert_eq!(container["resources"]["requests"], json!({"cpu": "10m", "memory": request}), "{list}");
    }
}

#[test]
fn definitions_come_first_and_only_where_they_are_needed() {
    let objects = read_back(&install(APPWRAPPER));
    assert_eq!(objects[0]["kind"], "CustomResourceDefinition");
    assert_eq!(objects[0]["metadata"]["name"], "appwrappers.workload.codeflare.dev");
    assert_eq!(objects[1]["kind"], "Namespace");
    let others = read_back(&install("controllers: ['*']\n"));
    assert!(others.iter().all(|object| object["kind"] != "CustomResourceDefinition"));
}

#[test]
fn rights_are_those_of_the_enabled_recoveries() {
    let off = format!("featureGates: {{FailureRecoveryPolicy: true}}\ncontrollers: [-zombie]\n{NODE_RULE}");
    let no_gate = "controllers: ['*', -job, -eviction]\n";
    let dry_eviction = format!("{EVICTION}dryRun: true\n");
    let no_gate_with_nodes = format!("{no_gate}{NODE_RULE}");
    let dry_job = format!("{JOB}dryRun: true\n");
    let deleting_job = format!("{JOB}job: {{deleteFinishedJobs: true}}\n");
    let with_nodes = format!("{ZOMBIE}{NODE_RULE}");
    let lost_pods = |what: &str| format!("{ZOMBIE}failureRecoveryPolicy: {{jobs: {{lostPods: {what}}}}}\n");
    let (counting, holding) = (lost_pods("Count"), lost_pods("Hold"));
    let dry = format!("{ZOMBIE}dryRun: true\n");
    let dry_with_nodes = format!("{dry}{NODE_RULE}");
    let cases: &[(&str, &[&[&str]])] = &[
        ("controllers: ['*', -eviction]\n", &[LEADER, READ_JOBS, WRITE_JOBS]),
        (EVICTION, &[LEADER, READ, WRITE_PODS, READ_NODE_LEASES, WRITE_NODES, READ_VOLUMES, EVICT]),
        (&dry_eviction, &[LEADER, READ, READ_NODE_LEASES, READ_VOLUMES]),
        (no_gate, &[LEADER]),
        (&no_gate_with_nodes, &[LEADER]),
        (JOB, &[LEADER, READ_JOBS, WRITE_JOBS]),
        (&dry_job, &[LEADER, READ_JOBS]),
        (&deleting_job, &[LEADER, READ_JOBS, WRITE_JOBS, &["everywhere: delete batch/jobs[]"]]),
        (&off, &[LEADER]),
        (ZOMBIE, &[LEADER, READ, WRITE_PODS, READ_NODE_LEASES, READ_JOB, RAISE_LIMIT]),
        (&counting, &[LEADER, READ, WRITE_PODS, READ_NODE_LEASES]),
        (&holding, &[LEADER, READ, WRITE_PODS, READ_NODE_LEASES, READ_JOB]),
        (&with_nodes, &[LEADER, READ, WRITE_PODS, READ_NODE_LEASES, WRITE_NODES, READ_JOB, RAISE_LIMIT]),
        (&dry, &[LEADER, READ, READ_NODE_LEASES, READ_JOB]),
        (&dry_with_nodes, &[LEADER, READ, READ_NODE_LEASES, READ_JOB]),
    ];
    for (file, expected) in cases {
        let expected: BTreeSet<_> = expected.concat().into_iter().map(String::from).collect();
        assert_eq!(rights(&read_back(&install(file))), expected, "{file}");
    }
}

/// The same input gives byte-identical output, because people keep it in their repositories.
#[test]
fn the_output_is_what_it_was() {
    let zombie = format!("{ZOMBIE}{NODE_RULE}");
    let job = format!("{JOB}job: {{deleteFinishedJobs: true}}\n");
    let dry_run = "featureGates: {FailureRecoveryPolicy: true}\ncontrollers: [zombie, job, eviction]\ndryRun: true\n\
                   page: {enabled: true, bind: '0.0.0.0:8081'}\n";
    let cases = [
        ("zombie", zombie.as_str(), include_str!("golden/zombie.yaml")),
        ("job", &job, include_str!("golden/job.yaml")),
        ("eviction", EVICTION, include_str!("golden/eviction.yaml")),
        ("dry-run", dry_run, include_str!("golden/dry-run.yaml")),
    ];
    for (name, file, expected) in cases {
        let text = yaml(&install(file)).unwrap();
        let differs = || text.lines().zip(expected.lines()).find(|(is, was)| is != was);
        assert!(text == expected, "golden/{name}.yaml differs, first in {:?}", differs());
    }
}

#[test]
fn every_role_is_bound_to_the_service_account() {
    let objects = read_back(&install(&format!("{ZOMBIE}{NODE_RULE}")));
    let bindings: BTreeSet<_> = objects
        .iter()
        .filter(|object| object["kind"].as_str().unwrap().ends_with("RoleBinding"))
        .map(|binding| {
            assert_eq!(
                binding["subjects"],
                json!([{"kind": "ServiceAccount", "name": "salvor", "namespace": "salvor-system"}])
            );
            (binding["roleRef"]["kind"].to_string(), binding["metadata"]["namespace"].to_string())
        })
        .collect();
    let roles: BTreeSet<_> = objects
        .iter()
        .filter(|object| object["kind"].as_str().unwrap().ends_with("Role"))
        .map(|role| (role["kind"].to_string(), role["metadata"]["namespace"].to_string()))
        .collect();
    assert_eq!(bindings, roles);
    assert_eq!(roles.len(), 3);
}

#[test]
fn objects_come_in_an_order_in_which_they_can_be_created() {
    let objects = read_back(&install(ZOMBIE));
    let kinds: Vec<_> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "Namespace",
            "ServiceAccount",
            "ClusterRole",
            "ClusterRoleBinding",
            "Role",
            "RoleBinding",
            "Role",
            "RoleBinding",
            "ConfigMap",
            "NetworkPolicy",
            "Deployment",
            "PodDisruptionBudget",
        ]
    );
}

#[test]
fn the_yaml_says_what_the_objects_say() {
    for file in [&format!("{ZOMBIE}{NODE_RULE}"), APPWRAPPER] {
        let installation = install(file);
        assert_eq!(read_back(&installation), objects::all(&installation).unwrap());
    }
}

#[test]
fn the_file_in_the_config_map_is_the_effective_configuration() {
    let configuration = configuration(&format!("{ZOMBIE}{NODE_RULE}bind: '0.0.0.0:9090'\n"));
    let installation =
        Installation::new(Some("elsewhere".into()), "salvor:test".into(), configuration).unwrap();
    let objects = read_back(&installation);
    let file = find(&objects, "ConfigMap")["data"]["config.yaml"].as_str();
    let read = parse(file.unwrap()).unwrap();
    assert_eq!(read, installation.configuration);
    assert_eq!(read.leader_election.lease_namespace, "elsewhere");
    let container = &find(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["args"], json!(["run", "--config=/etc/salvor/config.yaml"]));
    assert_eq!(container["ports"][0]["containerPort"], 9090);
    assert_eq!(container["image"], "salvor:test");
}

/// Piping `kubectl get configmap` into `salvor manifests --config=/dev/stdin` gives the same installation.
#[test]
fn the_file_in_the_config_map_names_its_recoveries() {
    for list in ["'*'", "zombie, job", "'*', -job"] {
        let objects = read_back(&install(&format!("controllers: [{list}]\n")));
        let file = find(&objects, "ConfigMap")["data"]["config.yaml"].as_str().unwrap().to_owned();
        let fields: Value = serde_saphyr::from_str(&file).unwrap();
        let expected: Value = serde_saphyr::from_str(&format!("[{list}]")).unwrap();
        assert_eq!(fields["controllers"], expected);
    }
}

#[test]
fn everything_is_in_the_namespace_that_was_asked_for() {
    let installation =
        Installation::new(Some("elsewhere".into()), "salvor:test".into(), configuration(ZOMBIE)).unwrap();
    let objects = read_back(&installation);
    assert_eq!(find(&objects, "Namespace")["metadata"]["name"], "elsewhere");
    for object in &objects {
        let namespace = object["metadata"].get("namespace");
        // The rights to read the kubelets' Leases are in the namespace of those Leases.
        let is_there = |namespace: &Value| namespace == "elsewhere" || namespace == "kube-node-lease";
        assert!(namespace.is_none_or(is_there), "{object}");
    }
    assert!(!yaml(&installation).unwrap().contains("salvor-system"));
}

#[test]
fn the_pods_are_confined_probed_and_apart() {
    let objects = read_back(&install(ZOMBIE));
    let deployment = &find(&objects, "Deployment")["spec"];
    assert_eq!(deployment["replicas"], 2);
    let pod = &deployment["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"], json!({"type": "RuntimeDefault"}));
    let container = &pod["containers"][0];
    assert_eq!(
        container["securityContext"],
        json!({
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
        })
    );
    assert_eq!(container["livenessProbe"]["httpGet"], json!({"path": "/healthz", "port": "http"}));
    assert_eq!(container["readinessProbe"]["httpGet"], json!({"path": "/readyz", "port": "http"}));
    let labels = &deployment["template"]["metadata"]["labels"];
    let apart = &pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"]
        ["labelSelector"]["matchLabels"];
    for selected in [
        apart,
        &deployment["selector"]["matchLabels"],
        &find(&objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        &find(&objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ] {
        assert_eq!(selected, labels);
    }
}

#[test]
fn only_the_ports_that_are_served_can_be_reached() {
    let cases: [(&str, &[u16]); 4] = [
        ("", &[8080]),
        ("bind: '0.0.0.0:9090'\n", &[9090]),
        // A loopback address is enough for port-forward, which connects from within the pod.
        ("page: {enabled: true}\n", &[8080]),
        ("page: {enabled: true, bind: '0.0.0.0:8888'}\n", &[8080, 8888]),
    ];
    for (file, ports) in cases {
        let objects = read_back(&install(&format!("{ZOMBIE}{file}")));
        let ports: Vec<Value> = ports.iter().map(|port| json!({"port": port, "protocol": "TCP"})).collect();
        let policy = &find(&objects, "NetworkPolicy")["spec"];
        assert_eq!(policy["ingress"], json!([{ "ports": ports }]), "{file}");
        assert_eq!(policy["policyTypes"], json!(["Ingress"]), "{file}");
        assert!(policy.get("egress").is_none(), "{file}");
    }
}

#[test]
fn another_configuration_makes_new_pods() {
    let digest = |file| {
        let objects = read_back(&install(file));
        find(&objects, "Deployment")["spec"]["template"]["metadata"]["annotations"].clone()
    };
    assert_eq!(digest(ZOMBIE), digest(ZOMBIE));
    assert_ne!(digest(ZOMBIE), digest(""));
}

#[test]
fn what_could_not_work_in_a_cluster_is_refused() {
    let refusal =
        |file: &str| Installation::new(None, "salvor:test".into(), configuration(file)).unwrap_err();
    assert_eq!(refusal("leaderElection: {enabled: false}\n"), ManifestsError::NoLeader);
    for bind in ["127.0.0.1:8080", "[::1]:8080", "0.0.0.0:0"] {
        assert_eq!(
            refusal(&format!("bind: '{bind}'\n")),
            ManifestsError::NotProbeable(bind.parse().unwrap())
        );
    }
}

#[test]
fn names_are_checked() {
    for good in ["a", "salvor-system", "0", &"x".repeat(63)] {
        assert_eq!(namespace(good).as_deref(), Ok(good));
    }
    for bad in ["", "-a", "a-", "A", "a.b", "a b", &"x".repeat(64)] {
        assert!(namespace(bad).is_err(), "{bad}");
    }
    assert!(image("salvor:1").is_ok());
    assert!(image("").is_err() && image("a b").is_err());
}

/// Example webhooks of a recovery.
fn webhooks() -> Vec<Webhook> {
    use salvor_operator::webhooks::{FailurePolicy, Operation, Rule};
    let webhook = |kind, name, path| Webhook {
        kind,
        name,
        path,
        rules: vec![Rule {
            group: "example.com",
            versions: &["v1"],
            resources: &["things"],
            operations: &[Operation::Create],
        }],
        failure_policy: FailurePolicy::Fail,
        timeout_seconds: 10,
    };
    vec![
        webhook(WebhookKind::Mutating, "mthing.example.com", "/mutate"),
        webhook(WebhookKind::Validating, "vthing.example.com", "/validate"),
    ]
}

fn with_webhooks(rest: &str) -> Result<Installation, ManifestsError> {
    Installation::with_webhooks(
        None,
        "salvor:test".into(),
        configuration(&format!("{JOB}{rest}")),
        webhooks(),
    )
}

#[test]
fn webhooks_come_with_a_service_and_rights_to_nothing_but_their_own_objects() {
    let objects = read_back(&with_webhooks("").unwrap());
    let ours: BTreeSet<_> = [
        "everywhere: get admissionregistration.k8s.io/mutatingwebhookconfigurations[salvor]",
        "everywhere: get admissionregistration.k8s.io/validatingwebhookconfigurations[salvor]",
        "everywhere: update admissionregistration.k8s.io/mutatingwebhookconfigurations[salvor]",
        "everywhere: update admissionregistration.k8s.io/validatingwebhookconfigurations[salvor]",
        "salvor-system: get /secrets[salvor-webhooks]",
        "salvor-system: update /secrets[salvor-webhooks]",
    ]
    .map(String::from)
    .into();
    let without = rights(&read_back(&install(JOB)));
    assert_eq!(&rights(&objects) - &without, ours);

    let service = find(&objects, "Service");
    assert_eq!(service["metadata"]["name"], "salvor-webhooks");
    assert_eq!(service["spec"]["ports"][0]["port"], 443);
    let container = &find(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let port =
        container["ports"].as_array().unwrap().iter().find(|port| port["containerPort"] == 9443).unwrap();
    assert_eq!(service["spec"]["ports"][0]["targetPort"], port["name"]);
    assert_eq!(service["spec"]["selector"], find(&objects, "Deployment")["spec"]["selector"]["matchLabels"]);
    assert_eq!(find(&objects, "NetworkPolicy")["spec"]["ingress"][0]["ports"][1]["port"], 9443);
    assert!(find(&objects, "Secret").get("data").is_none());

    for (kind, name) in [
        ("MutatingWebhookConfiguration", "mthing.example.com"),
        ("ValidatingWebhookConfiguration", "vthing.example.com"),
    ] {
        let configuration = find(&objects, kind);
        assert_eq!(configuration["metadata"]["name"], "salvor");
        let entry = &configuration["webhooks"][0];
        assert_eq!((&entry["name"], &entry["failurePolicy"]), (&json!(name), &json!("Fail")));
        // Applying the objects again must not remove what the operator filled in.
        let service = json!({"name": "salvor-webhooks", "namespace": "salvor-system", "port": 443});
        assert_eq!(entry["clientConfig"], json!({ "service": service }));
    }
    let kinds: Vec<_> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert!(
        kinds.ends_with(&["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"]),
        "{kinds:?}"
    );
}

#[test]
fn given_certificates_are_mounted_and_the_keys_of_stamps_are_still_shared() {
    let objects =
        read_back(&with_webhooks("webhooks: {certDir: /certificates, bind: '0.0.0.0:7443'}\n").unwrap());
    assert_eq!(find(&objects, "Secret")["metadata"]["name"], "salvor-webhooks");
    assert!(rights(&objects).contains("salvor-system: update /secrets[salvor-webhooks]"));
    let pod = &find(&objects, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(pod["volumes"][1]["secret"]["secretName"], "salvor-webhooks-tls");
    assert_eq!(pod["containers"][0]["volumeMounts"][1]["mountPath"], "/certificates");
    assert_eq!(pod["containers"][0]["volumeMounts"][1]["name"], pod["volumes"][1]["name"]);
    assert_eq!(pod["containers"][0]["ports"][1]["containerPort"], 7443);
}

#[test]
fn webhooks_that_the_api_server_could_not_call_are_refused() {
    let refusal = |rest: &str| with_webhooks(rest).unwrap_err();
    assert_eq!(refusal("webhooks: {url: 'https://10.0.0.1:9443'}\n"), ManifestsError::WebhooksUrl);
    for bind in ["127.0.0.1:9443", "0.0.0.0:0"] {
        let expected = ManifestsError::WebhooksNotReachable(bind.parse().unwrap());
        assert_eq!(refusal(&format!("webhooks: {{bind: '{bind}'}}\n")), expected);
    }
    // Without webhooks these settings do not matter.
    install(&format!("{JOB}webhooks: {{url: 'https://10.0.0.1:9443', bind: '127.0.0.1:9443'}}\n"));
}
