//! Pods on lost nodes, with and without Salvor. The test plays the control plane, and the kubelet of Salvor's own pods.

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use salvor_testkit::{Salvor, Site};
use serde_json::{Value, json};

use crate::stage::{Stage, running};

const DELETE: &str = "kueue.x-k8s.io/safe-to-forcefully-delete";
const HEAD: &str = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
pub(crate) const ELECTION: &str =
    "leaderElection: {leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 500ms}\n";
pub(crate) const SETTINGS: &str = "
brake: {maxUnreachablePercent: 100}
failureRecoveryPolicy:
  annotatedPods: {forcefulTerminationGracePeriod: 2s, minimumForcefulTerminationGracePeriod: 1s}
";
pub(crate) const GATE: &str = "--feature-gates=FailureRecoveryPolicy=true";

pub(crate) fn consenting(wait: &str) -> Value {
    json!({"metadata": {"annotations": {DELETE: "true", "salvor.dev/termination-grace-after": wait}}})
}

fn codes(answer: &Value) -> Vec<&str> {
    answer["rootCauses"].as_array().unwrap().iter().filter_map(|cause| cause["code"].as_str()).collect()
}

fn depends_on(answer: &Value) -> &str {
    answer["expectedBack"]["dependsOn"].as_str().unwrap_or_else(|| panic!("no dependsOn: {answer:#}"))
}

/// A node whose kubelet became silent ten minutes ago.
pub(crate) async fn lost_node(stage: &Stage, name: &str) -> String {
    stage.node(name, "Unknown").await;
    let renewed = jiff::Timestamp::now() - jiff::SignedDuration::from_mins(10);
    let renewed = renewed.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {"holderIdentity": name, "renewTime": renewed, "leaseDurationSeconds": 40},
    });
    let leases: Api<Lease> = Api::namespaced(stage.client.clone(), "kube-node-lease");
    leases.patch(name, &PatchParams::apply("kubelet").force(), &Patch::Apply(lease)).await.unwrap();
    renewed
}

/// Starts a replica as a kubelet would: with the installed configuration.
async fn replica(stage: &Stage, site: Site, arguments: &[&str]) -> Salvor {
    let salvor = match site {
        Site::Embedded => stage.salvor(&format!("{ELECTION}{SETTINGS}"), arguments),
        Site::Real => {
            let get =
                ["get", "configmap", "salvor", "-n", "salvor-system", "-o", r"jsonpath={.data.config\.yaml}"];
            let file = stage.kubectl.run(&get).await.unwrap();
            let settings: Vec<&str> = file
                .lines()
                .filter(|line| !line.starts_with("apiVersion:") && !line.starts_with("kind:"))
                .collect();
            stage.salvor(&settings.join("\n"), &[])
        }
    };
    salvor.says("\"leading\"").await;
    salvor
}

async fn a_pod_on_a_lost_node_is_told_by_whoever_may_act(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::new(&plane.admin(), plane.kubectl(), "default");
    let renewed = lost_node(&stage, "lost").await;
    stage.pod("alive", "lost", json!({}), json!({"phase": "Running"})).await;
    stage.pod("stuck", "lost", json!({}), running()).await;
    stage.delete_pod("stuck").await;

    // Without Salvor nothing may act.
    let answer = stage.until_in("pod/stuck", "NodeLost", "Node", "lost").await;
    let since: jiff::Timestamp = answer["rootCauses"][0]["since"].as_str().unwrap().parse().unwrap();
    assert_eq!(since, renewed.parse().unwrap(), "{answer:#}");
    assert!(answer["remedies"][1]["text"].as_str().unwrap().contains("twice"), "{answer:#}");
    assert!(depends_on(&answer).contains("node lost: it has to come back"), "{answer:#}");
    let answer = stage.until_in("pod/alive", "NodeLost", "Node", "lost").await;
    assert!(depends_on(&answer).contains("tolerates a lost node forever"), "{answer:#}");
    stage.until_in("node/lost", "NodeLost", "Node", "lost").await;
    stage.pod("consents", "lost", consenting("1h"), running()).await;
    stage.delete_pod("consents").await;
    stage.until_in("pod/consents", "NodeLost", "Node", "lost").await;
    let (_, said) = stage.run(&["why", "pod/consents"]).await;
    assert!(said.contains("No operator with a leader election runs here"), "{said}");

    // It is installed without a leader: its Deployment has no replicas.
    if site == Site::Real {
        let file = stage.write("salvor.yaml", &format!("{HEAD}controllers: [zombie]\n{ELECTION}{SETTINGS}"));
        let install = format!("salvor manifests --config={} | kubectl apply -f -", file.display());
        stage.shell(&install).await;
        stage
            .kubectl
            .run(&["scale", "deployment/salvor", "-n", "salvor-system", "--replicas=0"])
            .await
            .unwrap();
        let answer = stage.until_in("pod/consents", "NobodyLeads", "Node", "lost").await;
        stage.carry_out(&answer).await;
        let replicas =
            ["get", "deployment", "salvor", "-n", "salvor-system", "-o", "jsonpath={.spec.replicas}"];
        assert_eq!(stage.kubectl.run(&replicas).await.unwrap(), "2");
    }

    // With Salvor, and its gate off: consent is checked before the gate.
    let off = replica(&stage, site, &["--controllers=zombie"]).await;
    stage.until_in("pod/stuck", "NotOptedIn", "Node", "lost").await;
    stage.until_in("pod/alive", "NodeLost", "Node", "lost").await;
    let answer = stage.until_in("pod/consents", "RecoveryOff", "Node", "lost").await;
    let (_, said) = stage.run(&["why", "pod/consents"]).await;
    assert!(said.contains("Judged by the configuration of the running operator "), "{said}");
    off.program.kill().await;
    // The leader is checked before the gate.
    stage.until_in("pod/consents", "NobodyLeads", "Node", "lost").await;
    stage.until_in("pod/stuck", "NotOptedIn", "Node", "lost").await;
    if site == Site::Real {
        // The command changes the installation, and the Deployment replaces its replicas.
        stage.carry_out(&answer).await;
    }

    let on = replica(&stage, site, &["--controllers=zombie", GATE]).await;
    let waits = stage.until_in("pod/consents", "GraceRunning", "Node", "lost").await;
    let until: jiff::Timestamp = waits["rootCauses"][0]["until"].as_str().unwrap().parse().unwrap();
    assert!(until > jiff::Timestamp::now(), "{waits:#}");
    // Salvor's wait ends at a known time. Then a person has to create the pod again, because nothing owns it.
    let expected = &waits["expectedBack"];
    assert_eq!(expected["at"], waits["rootCauses"][0]["until"], "{waits:#}");
    assert_eq!(expected["phases"].as_array().unwrap().last().unwrap()["name"], "Salvor", "{waits:#}");
    assert!(depends_on(&waits).contains("nothing owns pod consents"), "{waits:#}");
    let (_, said) = stage.run(&["why", "pod/consents"]).await;
    assert!(said.contains("Expected back ") && said.contains("Salvor "), "{said}");
    let (_, said) = stage.run(&["explain", "pod/consents", "-o", "json"]).await;
    let explained: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(explained["expectedBack"]["at"], expected["at"], "{said}");

    // Everything that waits for the node, worst first.
    let all = stage.all().await;
    let groups: Vec<&str> = all["groups"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|group| group["rootCause"]["code"].as_str())
        .collect();
    assert_eq!(groups, ["NodeLost", "NotOptedIn", "GraceRunning"], "{all:#}");
    let asked = stage.why("node/lost").await;
    assert_eq!(codes(&asked), ["NotOptedIn", "GraceRunning"], "{asked:#}");

    // A command gives the consent.
    let answer = stage.until_in("pod/stuck", "NotOptedIn", "Node", "lost").await;
    assert!(depends_on(&answer).contains("who has not consented"), "{answer:#}");
    stage.carry_out(&answer).await;
    stage.until_well("pod/stuck").await;

    // A pause is reported, and a command ends it.
    assert_eq!(stage.run(&["pause", "--reason=test"]).await.0, 0);
    stage.pod("paused", "lost", consenting("1s"), running()).await;
    stage.delete_pod("paused").await;
    let answer = stage.until_in("pod/paused", "BrakeHolds", "Node", "lost").await;
    stage.carry_out(&answer).await;
    stage.until_well("pod/paused").await;

    // One line names the configuration, a file answers "what if", and the text fits one screen.
    let (code, said) = stage.run(&["why", "pod/consents"]).await;
    assert!(code == 0 && said.contains("Judged by the configuration of the running operator "), "{said}");
    assert!(said.lines().count() < 40, "{said}");
    let if_off = stage.write("off.yaml", &format!("{HEAD}controllers: [zombie]\n"));
    let if_off = format!("--config={}", if_off.display());
    let (code, said) = stage.run(&["why", "pod/consents", "-o", "json", &if_off]).await;
    let answer: Value = serde_json::from_str(&said).unwrap();
    assert!(code == 0 && codes(&answer) == ["RecoveryOff"], "{said}");
    explain_and_evict_judge_by_the_same(&stage, &if_off).await;
    on.program.kill().await;
    stage.until_in("pod/consents", "NobodyLeads", "Node", "lost").await;
    let (_, said) = stage.run(&["explain", "pod/consents"]).await;
    assert!(said.contains("Nobody leads (Lease salvor-system/salvor has run out)"), "{said}");

    for name in ["lost-too", "lost-as-well", "lost-in-the-end"] {
        lost_node(&stage, name).await;
    }
    // Too many nodes are lost, so a person who knows that the machine is off confirms it.
    let braked =
        format!("{ELECTION}{}", SETTINGS.replace("maxUnreachablePercent: 100", "maxUnreachablePercent: 20"));
    let salvor = stage.salvor(&braked, &["--controllers=zombie,eviction", GATE]);
    salvor.says("\"leading\"").await;
    let mut braked = consenting("1s");
    // A pod that tolerates the eviction taint stays.
    braked["spec"] = json!({"tolerations": []});
    stage.pod("braked", "lost", braked, running()).await;
    stage.delete_pod("braked").await;
    let answer = stage.until_in("pod/braked", "BrakeHolds", "Node", "lost").await;
    stage.carry_out(&answer).await;
    stage.until_well("pod/braked").await;
}

/// With kubectl's flags.
async fn explain_and_evict_judge_by_the_same(stage: &Stage, if_off: &str) {
    for arguments in [
        &["explain", "pod", "default/consents"][..],
        &["explain", "pod", "consents", "-n", "default"],
        &["explain", "pod", "consents"],
        &["explain", "pod/consents"],
        &["explain", "po/consents", "--namespace=default", "--context=salvor-testkit"],
    ] {
        let (code, said) = stage.run(arguments).await;
        assert_eq!(code, 0, "{arguments:?}");
        assert!(said.contains("Judged by the configuration of the running operator "), "{said}");
        assert!(!said.contains("is off"), "{said}");
    }
    let (_, said) = stage.run(&["explain", "pod/consents", if_off]).await;
    assert!(said.contains("Judged by the given configuration"), "{said}");
    for usage in [&["explain", "secret/x"][..], &["explain", "pod", "a/b", "-n", "c"], &["explain"]] {
        assert_eq!(stage.run(usage).await.0, 2, "{usage:?}");
    }
    let kubeconfig = stage.kubeconfig();
    let (code, _, talk) = stage.run_with(&["evict", "node/lost", "--dry-run"], &kubeconfig).await;
    assert_eq!(code, 0, "{talk}");
    assert!(talk.contains("running operator ") && talk.contains("controller eviction is off"), "{talk}");
    let (code, _, talk) =
        stage.run_with(&["evict", "lost", "--dry-run", "--context=no-such"], &kubeconfig).await;
    assert!(code == 1 && talk.contains("no-such"), "{talk}");
}

/// The control plane marks a node as unreachable whose kubelet renews its Lease. No remedy claims that its machine is
/// off.
async fn a_node_whose_kubelet_lives_is_not_told_as_lost(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::new(&plane.admin(), plane.kubectl(), "default");
    stage.node("sick", "Unknown").await;
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "sick"},
        "spec": {"holderIdentity": "sick", "renewTime": now, "leaseDurationSeconds": 600},
    });
    let leases: Api<Lease> = Api::namespaced(stage.client.clone(), "kube-node-lease");
    leases.patch("sick", &PatchParams::apply("kubelet").force(), &Patch::Apply(lease)).await.unwrap();
    stage.pod("stuck", "sick", json!({}), running()).await;
    stage.delete_pod("stuck").await;
    for about in ["node/sick", "pod/stuck"] {
        let answer = stage.until_in(about, "NodeSick", "Node", "sick").await;
        assert!(!answer.to_string().contains("out-of-service"), "{answer:#}");
        assert!(!answer.to_string().contains("silent"), "{answer:#}");
    }
    let all = stage.all().await;
    assert_eq!(all["groups"][0]["rootCause"]["code"], "NodeSick", "{all:#}");
}

salvor_testkit::on_both!(
    a_pod_on_a_lost_node_is_told_by_whoever_may_act,
    a_node_whose_kubelet_lives_is_not_told_as_lost,
);
