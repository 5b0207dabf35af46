//! What `salvor doctor` finds in a cluster of its own, real and embedded. Each finding is provoked in turn.

use std::process::Command;

use k8s_openapi::{
    api::rbac::v1::PolicyRule,
    jiff::{SignedDuration, Timestamp},
};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use salvor_apiserver::{Effect, Fault};
use salvor_testkit::{FaultyServer, Plane, Site, on_both, peers};
use serde_json::{Value, json};

use crate::stage::{SALVOR, Stage, running};

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const CONSENT: &str = "kueue.x-k8s.io/safe-to-forcefully-terminate";
const ZOMBIE: &str = "controllers: [zombie]\nfeatureGates: {FailureRecoveryPolicy: true}\n";

/// A separate control plane, so that no objects of other tests are found.
struct Clinic {
    plane: Plane,
    stage: Stage,
}

impl Clinic {
    async fn open(site: Site) -> Self {
        let plane = site.api_server().await;
        let stage = Stage::new(&plane.admin(), plane.kubectl(), "default");
        Self { plane, stage }
    }

    /// Runs the doctor for a configuration. Returns its exit code and its output.
    async fn check(&self, configuration: &str) -> (i32, Value) {
        self.check_with(configuration, &self.stage.kubeconfig()).await
    }

    async fn check_with(&self, configuration: &str, kubeconfig: &std::path::Path) -> (i32, Value) {
        let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
        let file = self.stage.write("salvor.yaml", &format!("{head}{configuration}"));
        let config = format!("--config={}", file.display());
        let (code, said, complained) =
            self.stage.run_with(&["doctor", "-o", "json", &config], kubeconfig).await;
        let checkup: Value =
            serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said} {complained}"));
        let worst = checkup["findings"][0]["severity"].as_str();
        let expected = match worst {
            Some("error") => 1,
            Some("warning") => 3,
            _ => 0,
        };
        assert_eq!(code, expected, "{checkup:#}");
        (code, checkup)
    }

    /// Fails unless this check finds exactly these: severity, and words of the finding.
    async fn finds(&self, check: &str, configuration: &str, expected: &[(&str, &str)]) -> Value {
        let (_, checkup) = self.check(configuration).await;
        same(&checkup, check, expected);
        checkup
    }

    /// A Ready node with these labels and a fresh Lease.
    async fn node(&self, name: &str, labels: Value) {
        self.stage.node(name, "True").await;
        self.change_node(name, json!({"metadata": {"labels": labels}})).await;
        self.renew(name, 40, SignedDuration::ZERO).await;
    }

    async fn change_node(&self, name: &str, change: Value) {
        self.stage.nodes().patch(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }

    /// The control plane lost a node this long ago.
    async fn lose(&self, name: &str, ago: SignedDuration) {
        let since = (Timestamp::now() - ago).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let taints = json!([{"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": since}]);
        self.change_node(name, json!({"spec": {"taints": taints}})).await;
        let ready = json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "m", "lastTransitionTime": since});
        let status = json!({"status": {"conditions": [ready]}});
        self.stage
            .nodes()
            .patch_status(name, &PatchParams::default(), &Patch::Strategic(status))
            .await
            .unwrap();
    }

    /// A kubelet renews its Lease with a clock that is this far ahead.
    async fn renew(&self, name: &str, lasts: u32, ahead: SignedDuration) {
        let renewed = (Timestamp::now() + ahead).strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"holderIdentity": name, "renewTime": renewed, "leaseDurationSeconds": lasts},
        });
        let admin = self.plane.admin().in_namespace("kube-node-lease");
        let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
            Api::default_namespaced(admin.client("kubelet"));
        leases.patch(name, &PatchParams::apply("kubelet").force(), &Patch::Apply(lease)).await.unwrap();
    }

    /// kube-controller-manager with these arguments in its pod.
    async fn controller_manager(&self, arguments: &[&str]) {
        let admin = self.plane.admin().in_namespace("kube-system");
        let stage = Stage::new(&admin, self.plane.kubectl(), "kube-system");
        let container = json!({"name": "kube-controller-manager", "image": "k", "command": arguments});
        let pod = json!({
            "metadata": {"name": "kube-controller-manager", "labels": {"component": "kube-controller-manager"}},
            "spec": {"nodeName": "control-plane", "containers": [container]},
        });
        stage.create("", "Pod", pod).await;
    }

    async fn install(&self, crds: &[Value]) {
        let folder = tempfile::tempdir().unwrap();
        for (number, crd) in crds.iter().enumerate() {
            std::fs::write(folder.path().join(format!("{number}.yaml")), crd.to_string()).unwrap();
        }
        peers::install(&self.plane.admin(), folder.path(), |_| ()).await.unwrap();
    }

    async fn custom(&self, api: Api<DynamicObject>, object: Value) {
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }
}

/// Asserts the findings of one check. Findings of severity info count only if one is expected.
fn same(checkup: &Value, check: &str, expected: &[(&str, &str)]) {
    let all = checkup["findings"].as_array().unwrap().iter().filter(|finding| finding["check"] == check);
    let mut left: Vec<&Value> = all.collect();
    for (severity, words) in expected {
        let is = |finding: &&Value| {
            finding["severity"] == *severity && finding["what"].as_str().unwrap().contains(words)
        };
        let position = left.iter().position(is);
        left.remove(position.unwrap_or_else(|| panic!("{severity} {words:?}: {checkup:#}")));
    }
    assert!(left.is_empty(), "not expected: {left:#?}");
}

/// The CRD of a custom kind that accepts any fields.
fn definition(group: &str, kind: &str, plural: &str, scope: &str) -> Value {
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": anything}}],
        },
    })
}

async fn rules_of_the_configuration_that_can_never_match_are_found(site: Site) {
    let clinic = Clinic::open(site).await;
    clinic.node("n", json!({"pool": "batch"})).await;
    clinic.finds("rules", ZOMBIE, &[]).await;
    let rule = |selector: &str| {
        format!("  - terminatePod: {{podLabelSelector: {selector}, forcefulTerminationGracePeriod: 1m}}\n")
    };
    let node_rule = |pool: &str| {
        format!(
            "  - taintNodeOutOfService: {{nodeSelector: {{matchLabels: {{pool: {pool}}}}}, unreachableNodeTimeout: 5m}}\n"
        )
    };
    let rules = [
        rule("{matchLabels: {a: '1'}, matchExpressions: [{key: a, operator: NotIn, values: ['1']}]}"),
        rule("{matchExpressions: [{key: b, operator: Exists}]}"),
        rule("{matchLabels: {b: x}}"),
        node_rule("batch"),
        node_rule("bathc"),
    ];
    let configuration = format!("{ZOMBIE}failureRecoveryPolicy:\n  rules:\n{}", rules.concat());
    let checkup = clinic
        .finds(
            "rules",
            &configuration,
            &[
                ("error", "rules[0].terminatePod.podLabelSelector can never match"),
                ("info", "rules[1].terminatePod.podLabelSelector matches none of the pods"),
                (
                    "warning",
                    "rules[2].terminatePod.podLabelSelector never counts: failureRecoveryPolicy.rules[1]",
                ),
                ("warning", "rules[4].taintNodeOutOfService.nodeSelector matches no node"),
            ],
        )
        .await;
    assert_eq!(checkup["findings"][0]["severity"], "error", "worst first: {checkup:#}");
    // As soon as a pod has the label, the rule is no longer reported.
    clinic.stage.pod("labelled", "n", json!({"metadata": {"labels": {"b": "x"}}}), running()).await;
    let only = format!("{ZOMBIE}failureRecoveryPolicy:\n  rules:\n{}", rules[1]);
    clinic.finds("rules", &only, &[]).await;

    let triggers = "controllers: [eviction]\neviction: {triggers: [{key: node.cloudprovider.kubernetes.io/shutdown, value: 'true'}, {key: example.com/off, value: 'true'}]}\n";
    clinic.finds("rules", triggers, &[("warning", "eviction.triggers[0] can never match")]).await;
}

async fn repair_policies_that_can_never_act_are_found(site: Site) {
    const REPAIR: &str = "controllers: [repair]\n";
    let clinic = Clinic::open(site).await;
    clinic.node("n", json!({"pool": "gpu"})).await;
    clinic.finds("rules", REPAIR, &[("info", "no NodeRepairPolicy")]).await;
    let output = Command::new(SALVOR).args(["manifests", "--controllers", "repair"]).output().unwrap();
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let crds: Vec<Value> =
        documents.into_iter().filter(|one| one["kind"] == "CustomResourceDefinition").collect();
    clinic.install(&crds).await;
    let policy = |name: &str, pool: &str, policies: Value| {
        let spec = json!({"nodeSelector": {"matchLabels": {"pool": pool}}, "policies": policies});
        json!({"apiVersion": "salvor.dev/v1alpha1", "kind": "NodeRepairPolicy", "metadata": {"name": name}, "spec": spec})
    };
    let api = || clinic.stage.cluster_api("salvor.dev", "v1alpha1", "NodeRepairPolicy");
    let ready = json!({"conditionType": "Ready", "conditionStatus": "False", "toleration": "10m"});
    clinic.custom(api(), policy("a-good", "gpu", json!([ready]))).await;
    clinic.finds("rules", REPAIR, &[]).await;
    let mut expected = vec![];

    clinic.custom(api(), policy("b-nobody", "gqu", json!([ready]))).await;
    expected.push(("warning", "NodeRepairPolicy b-nobody selects no node"));
    clinic.custom(api(), policy("c-younger", "gpu", json!([ready]))).await;
    expected.push((
        "warning",
        "NodeRepairPolicy c-younger never counts: older policies select all of its 1 node",
    ));
    let bad = json!([{"conditionType": "Ready", "conditionStatus": "False", "reasonPattern": "("}]);
    clinic.custom(api(), policy("d-broken", "gpu", bad)).await;
    expected.push(("error", "NodeRepairPolicy d-broken cannot be used"));
    clinic.finds("rules", REPAIR, &expected).await;

    // On its own nodes: a condition that none of them has, and an entry that an earlier one always overrides.
    clinic.node("m", json!({"pool": "cpu"})).await;
    let misspelt =
        json!({"conditionType": "AceleratedHardwareReady", "conditionStatus": "False", "toleration": "5m"});
    let narrow = json!({"conditionType": "Ready", "conditionStatus": "False", "reasonPattern": "^Kernel", "toleration": "5m"});
    clinic.custom(api(), policy("e-misspelt", "cpu", json!([misspelt, ready, narrow]))).await;
    expected.push(("warning", "names the condition AceleratedHardwareReady, which no node"));
    expected.push(("warning", "policies[2] of NodeRepairPolicy e-misspelt never counts"));
    clinic.finds("rules", REPAIR, &expected).await;

    // A veto on every node, and a paused policy.
    clinic.change_node("m", json!({"metadata": {"annotations": {"salvor.dev/do-not-repair": "true"}}})).await;
    expected.push(("warning", "every node of NodeRepairPolicy e-misspelt has an annotation that forbids"));
    clinic.finds("rules", REPAIR, &expected).await;
    let paused = Patch::Merge(json!({"spec": {"paused": true}}));
    api().patch("e-misspelt", &PatchParams::default(), &paused).await.unwrap();
    expected.pop();
    expected.push(("info", "NodeRepairPolicy e-misspelt is paused"));
    clinic.finds("rules", REPAIR, &expected).await;
    // Without the repair recovery nothing is reported.
    clinic.finds("rules", "controllers: [job]\n", &[]).await;
}

async fn opt_ins_that_are_moot_are_found(site: Site) {
    let clinic = Clinic::open(site).await;
    clinic.node("n", json!({})).await;
    let tolerations = |seconds: Value| json!([{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]);
    let pod = |annotations: Value, seconds: Value| json!({"metadata": {"annotations": annotations}, "spec": {"tolerations": tolerations(seconds)}});
    clinic.stage.pod("fine", "n", pod(json!({CONSENT: "true"}), json!(300)), running()).await;
    clinic.finds("consents", ZOMBIE, &[]).await;

    clinic.stage.pod("loud", "n", pod(json!({CONSENT: "True"}), json!(300)), running()).await;
    clinic.stage.pod("stays", "n", pod(json!({CONSENT: "true"}), Value::Null), running()).await;
    let wait = json!({CONSENT: "true", "salvor.dev/termination-grace-after": "a minute"});
    clinic.stage.pod("vague", "n", pod(wait, json!(300)), running()).await;
    let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "6a3b2a4e-0000-4000-8000-000000000000"}]);
    let mut stateful = pod(json!({CONSENT: "true"}), json!(300));
    stateful["metadata"]["ownerReferences"] = owner;
    clinic.stage.pod("db-0", "n", stateful, running()).await;
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": "work"}]}});
    let spec = json!({"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": template});
    clinic
        .stage
        .create(
            "apps",
            "Deployment",
            json!({"metadata": {"name": "web", "annotations": {CONSENT: "true"}}, "spec": spec}),
        )
        .await;
    let found = [
        ("warning", "1 pod (default/loud) have an annotation of consent with another value"),
        ("warning", "1 pod (default/stays) consent, and tolerate node.kubernetes.io/unreachable for ever"),
        ("warning", "1 pod (default/vague) have a value of salvor.dev/termination-grace-after"),
        ("warning", "1 pod (default/db-0) of StatefulSets consent with"),
        ("warning", "Deployment default/web"),
    ];
    clinic.finds("consents", ZOMBIE, &found).await;

    // A recovery that is switched off makes every opt-in ineffective.
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work"}]}});
    let spec = json!({"managedBy": "salvor.dev/job-controller", "template": template});
    clinic.stage.create("batch", "Job", json!({"metadata": {"name": "train"}, "spec": spec})).await;
    let taint = json!([{"key": "salvor.dev/force-eviction", "value": "INC-1", "effect": "NoSchedule"}]);
    clinic.change_node("n", json!({"spec": {"taints": taint}})).await;
    let off = [
        ("warning", "consent by annotation, and zombie recovery is off"),
        ("warning", "default/loud"),
        ("warning", "Deployment default/web"),
        ("warning", "1 Job (default/train) name salvor.dev/job-controller in spec.managedBy"),
        ("warning", "1 node (n) have the taint salvor.dev/force-eviction"),
    ];
    clinic.finds("consents", "controllers: [repair]\n", &off).await;
}

async fn clocks_that_differ_are_found(site: Site) {
    let clinic = Clinic::open(site).await;
    clinic.node("n", json!({})).await;
    clinic.finds("clocks", ZOMBIE, &[]).await;
    clinic.renew("n", 40, SignedDuration::from_secs(600)).await;
    clinic.node("behind", json!({})).await;
    clinic.renew("behind", 40, SignedDuration::from_secs(-600)).await;
    let kubelets = [
        ("warning", "clock that is ahead, by their Leases: n by"),
        ("warning", "clock that is behind, by their Leases: behind by"),
    ];
    clinic.finds("clocks", ZOMBIE, &kubelets).await;
    for name in ["n", "behind"] {
        clinic.renew(name, 40, SignedDuration::ZERO).await;
    }

    let server = FaultyServer::before(&clinic.plane.admin()).await;
    let kubeconfig = clinic.stage.write("faulty", &server.admin().kubeconfig());
    server.faults().add(Fault::new(Effect::ClockAhead(-3600)));
    let (_, checkup) = clinic.check_with(ZOMBIE, &kubeconfig).await;
    // By that server's clock every Lease is from the future too, unless it records when it received the writes.
    let own = checkup["findings"].as_array().unwrap().iter().find(|finding| {
        finding["check"] == "clocks"
            && finding["what"].as_str().unwrap().contains("behind the clock of this machine")
    });
    assert!(own.is_some(), "{checkup:#}");

    // The first request is for the version, and then half of those for the time.
    server.faults().clear();
    server.faults().add(Fault::new(Effect::ClockAhead(120)).path("/version").times(5));
    let (_, checkup) = clinic.check_with(ZOMBIE, &kubeconfig).await;
    same(&checkup, "clocks", &[("warning", "2 different times")]);
}

async fn timings_that_contradict_the_configuration_are_found(site: Site) {
    let clinic = Clinic::open(site).await;
    clinic.node("n", json!({})).await;
    let checkup = clinic.finds("timings", ZOMBIE, &[]).await;
    let not_seen = checkup["notSeen"].as_array().unwrap();
    assert!(not_seen.iter().any(|it| it["what"] == "the settings of kube-controller-manager"), "{checkup:#}");
    clinic.renew("n", 200, SignedDuration::ZERO).await;
    let long = ("warning", "1 node with Leases that last longer (up to 3m20s) than the 50s");
    clinic.finds("timings", ZOMBIE, &[long]).await;

    let arguments = [
        "kube-controller-manager",
        "--controllers=*,-node-lifecycle-controller",
        "--node-monitor-grace-period=4m",
        "--node-monitor-period=30s",
    ];
    clinic.controller_manager(&arguments).await;
    let configuration = format!("{ZOMBIE}brake: {{settlePeriod: 20s}}\n");
    let found = [
        ("error", "runs without its node lifecycle controller"),
        ("warning", "brake.settlePeriod=20s is shorter than --node-monitor-period=30s"),
    ];
    let checkup = clinic.finds("timings", &configuration, &found).await;
    assert_eq!(checkup["notSeen"].as_array().unwrap().len(), 0, "{checkup:#}");
    let jobs = "controllers: [job]\njob: {unmanagedJobs: true}\n";
    clinic.finds("timings", jobs, &[("error", "job.unmanagedJobs is set")]).await;
}

async fn lost_nodes_that_hold_the_brake_are_found(site: Site) {
    let clinic = Clinic::open(site).await;
    let zone = |zone: &str| json!({"topology.kubernetes.io/zone": zone});
    for number in 0..4 {
        clinic.node(&format!("a{number}"), zone("a")).await;
    }
    clinic.finds("brake", ZOMBIE, &[]).await;
    // Parked machines that still count leave no room for another failure.
    for number in 0..2 {
        clinic.lose(&format!("a{number}"), SignedDuration::from_hours(3)).await;
    }
    clinic.finds("brake", ZOMBIE, &[("info", "2 nodes unreachable for more than an hour: a0, a1")]).await;
    clinic.lose("a2", SignedDuration::from_mins(2)).await;
    let held = [(
        "warning",
        "3 of 4 nodes of the cluster are unreachable (2 of them for more than an hour): a0, a1, a2",
    )];
    clinic.finds("brake", ZOMBIE, &held).await;
    for number in 0..4 {
        clinic.node(&format!("b{number}"), zone("b")).await;
    }
    clinic.finds("brake", ZOMBIE, &[("warning", "3 of 4 nodes of zone a are unreachable")]).await;
    // Nodes that the brake does not count are not counted by the doctor either.
    for number in 0..2 {
        let excluded = json!({"node.kubernetes.io/exclude-disruption": "true"});
        clinic.change_node(&format!("a{number}"), json!({"metadata": {"labels": excluded}})).await;
    }
    clinic.finds("brake", ZOMBIE, &[]).await;
}

async fn others_on_the_same_ground_are_found(site: Site) {
    let clinic = Clinic::open(site).await;
    let all = "controllers: [zombie, repair]\nfeatureGates: {FailureRecoveryPolicy: true}\n";
    clinic.finds("actors", all, &[]).await;
    let deployment = |name: &str, gates: &str| {
        let container =
            json!({"name": "main", "image": "k", "env": [{"name": "FEATURE_GATES", "value": gates}]});
        let template = json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}});
        let spec = json!({"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template});
        json!({"metadata": {"name": name, "labels": {"app.kubernetes.io/name": name}}, "spec": spec})
    };
    clinic.stage.create("apps", "Deployment", deployment("karpenter", "NodeRepair=true")).await;
    let error = [("error", "Karpenter (default/karpenter) runs with its feature gate NodeRepair")];
    clinic.finds("actors", all, &error).await;
    clinic.finds("actors", ZOMBIE, &[("warning", "Karpenter (default/karpenter)")]).await;

    // Kueue's gate in its file counts, but not in a comment.
    clinic.stage.create("apps", "Deployment", deployment("kueue-controller-manager", "")).await;
    let file = |line: &str| json!({"data": {"controller_manager_config.yaml": format!("kind: Configuration\nfeatureGates:\n{line}\n")}});
    let mut map = file("#  FailureRecoveryPolicy: true");
    map["metadata"] = json!({"name": "kueue-manager-config"});
    clinic.stage.create("", "ConfigMap", map).await;
    clinic.finds("actors", all, &error).await;
    let on = Patch::Merge(file("  FailureRecoveryPolicy: true"));
    clinic
        .stage
        .api("", "v1", "ConfigMap")
        .patch("kueue-manager-config", &PatchParams::default(), &on)
        .await
        .unwrap();
    let mut found = error.to_vec();
    found.push(("error", "Kueue (default/kueue-controller-manager) runs with its own FailureRecoveryPolicy"));
    clinic.finds("actors", all, &found).await;

    // Machine health checks count once they have objects.
    clinic
        .install(&[
            definition("remediation.medik8s.io", "NodeHealthCheck", "nodehealthchecks", "Cluster"),
            definition("cluster.x-k8s.io", "Machine", "machines", "Namespaced"),
            definition("cluster.x-k8s.io", "MachineHealthCheck", "machinehealthchecks", "Namespaced"),
        ])
        .await;
    clinic.finds("actors", all, &found).await;
    let named = |group: &str, kind: &str| json!({"apiVersion": format!("{group}/v1"), "kind": kind, "metadata": {"name": "one"}});
    let medik8s = clinic.stage.cluster_api("remediation.medik8s.io", "v1", "NodeHealthCheck");
    clinic.custom(medik8s, named("remediation.medik8s.io", "NodeHealthCheck")).await;
    found.push(("warning", "there are nodehealthchecks.remediation.medik8s.io"));
    let machines = |kind: &str| clinic.stage.api("cluster.x-k8s.io", "v1", kind);
    clinic.custom(machines("Machine"), named("cluster.x-k8s.io", "Machine")).await;
    found.push(("warning", "there are Machines of Cluster API, and no MachineHealthCheck"));
    clinic.finds("actors", all, &found).await;
    clinic.custom(machines("MachineHealthCheck"), named("cluster.x-k8s.io", "MachineHealthCheck")).await;
    found.pop();
    found.push(("warning", "there are machinehealthchecks.cluster.x-k8s.io"));
    clinic.finds("actors", all, &found).await;

    // A Salvor that leads in another namespace.
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let spec = json!({"holderIdentity": "other", "renewTime": now, "leaseDurationSeconds": 3600});
    clinic
        .stage
        .create("coordination.k8s.io", "Lease", json!({"metadata": {"name": "salvor"}, "spec": spec}))
        .await;
    found.push(("error", "another Salvor leads by the Lease default/salvor"));
    clinic.finds("actors", all, &found).await;
}

async fn a_run_tells_the_errors_and_waits_for_nothing(site: Site) {
    let clinic = Clinic::open(site).await;
    let admin = clinic.plane.admin();
    let run = |access: &salvor_testkit::Access, rest: &str| {
        salvor_testkit::Salvor::start(
            SALVOR,
            access,
            &format!("{ZOMBIE}{rest}"),
            &["--leader-elect=false"],
            &[],
        )
    };
    let well = run(&admin, "");
    well.shows("salvor_doctor_errors 0").await;
    assert_eq!(well.count(&["salvor doctor:"]), 0, "{}", well.program.output());

    let rule = "failureRecoveryPolicy: {rules: [{terminatePod: {podLabelSelector: {matchLabels: {a: '1'}, matchExpressions: [{key: a, operator: DoesNotExist}]}, forcefulTerminationGracePeriod: 1m}}]}\n";
    let ill = run(&admin, rule);
    ill.shows("salvor_doctor_errors 1").await;
    assert_eq!(
        ill.count(&["\"ERROR\"", "salvor doctor:", "can never match", "\"fix\""]),
        1,
        "{}",
        ill.program.output()
    );

    // A server that never answers these requests delays nothing else.
    let server = FaultyServer::before(&admin).await;
    let silent = Fault::new(Effect::Unanswered { carried_out: false }).user_agent("salvor-doctor/");
    server.faults().add(silent);
    let ready = run(server.admin(), rule);
    ready.until_answer("/readyz", "200 OK").await;
    assert!(!ready.get("/metrics").await.contains("\nsalvor_doctor_errors"), "nothing is known yet");
}

/// With exactly the rights of an installation there is no error, although much cannot be read.
#[tokio::test]
async fn rights_that_only_the_check_would_need_are_no_errors() {
    if !Site::Real.is_chosen() {
        return;
    }
    let clinic = Clinic::open(Site::Real).await;
    let output = Command::new(SALVOR)
        .args(["manifests", "--controllers=zombie", "--feature-gates=FailureRecoveryPolicy=true"])
        .output()
        .unwrap();
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let of_roles =
        documents.iter().filter(|one| matches!(one["kind"].as_str(), Some("Role" | "ClusterRole")));
    let rules: Vec<PolicyRule> = of_roles
        .flat_map(|role| serde_json::from_value::<Vec<PolicyRule>>(role["rules"].clone()).unwrap())
        .collect();
    let access = clinic.plane.admin().service_account("default", "salvor", rules.clone()).await.unwrap();
    let salvor = salvor_testkit::Salvor::start(SALVOR, &access, ZOMBIE, &["--leader-elect=false"], &[]);
    salvor.shows("salvor_doctor_errors 0").await;
    // Without the right to mark pods as Failed there is an error.
    let fewer = rules.into_iter().filter(|rule| rule.resources != Some(vec!["pods/status".to_owned()]));
    let access = clinic.plane.admin().service_account("default", "fewer", fewer.collect()).await.unwrap();
    let salvor = salvor_testkit::Salvor::start(SALVOR, &access, ZOMBIE, &["--leader-elect=false"], &[]);
    salvor.shows("salvor_doctor_errors 1").await;
    salvor.says("may not patch pods/status").await;
}

on_both!(
    rules_of_the_configuration_that_can_never_match_are_found,
    repair_policies_that_can_never_act_are_found,
    opt_ins_that_are_moot_are_found,
    clocks_that_differ_are_found,
    timings_that_contradict_the_configuration_are_found,
    lost_nodes_that_hold_the_brake_are_found,
    others_on_the_same_ground_are_found,
    a_run_tells_the_errors_and_waits_for_nothing,
);
