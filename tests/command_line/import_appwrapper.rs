//! `salvor config import-appwrapper`: converts the file of CodeFlare's controller, and reports what it cannot convert.

use super::*;

const OPERATOR: &str = "appwrapper:
  userRBACAdmissionCheck: false
  schedulerName: sakkara
  defaultQueueName: default-queue
  slackQueueName: slack-cluster-queue
  autopilot:
    monitorNodes: false
    resourceTaints:
      nvidia.com/gpu:
      - {key: autopilot.ibm.com/gpuhealth, value: ERR, effect: NoSchedule, timeAdded: null}
  faultTolerance:
    admissionGracePeriod: 120000000000
    warmupGracePeriod: 600000000000
    failureGracePeriod: 60000000000
    retryLimit: -1
    successTTLCeiling: 1h
certManagement:
  certificateDir: /tmp/certs
controllerManager:
  health: {bindAddress: ':8081'}
  metrics: {bindAddress: ':8443'}
  leaderElection: true
webhooksEnabled: true
kueueJobReconciller: {manageJobsWithoutQueueName: true}
shoeSize: 43
";

fn config_map(files: &[(&str, &str)]) -> String {
    let mut text =
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: appwrapper-operator-config\ndata:\n".to_owned();
    for (name, file) in files {
        let indented: String = file.lines().map(|line| format!("    {line}\n")).collect();
        text.push_str(&format!("  {name}: |\n{indented}"));
    }
    text
}

fn imported(text: &str) -> (String, String) {
    let (_folder, path) = folder_with("operator.yaml", text);
    let output = run(&["config", "import-appwrapper", &path]);
    let told = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(output.status.success(), "{told}");
    (stdout(&output), told)
}

#[test]
fn a_config_map_and_its_file_become_the_same() {
    let (from_map, told) = imported(&config_map(&[("config.yaml", OPERATOR)]));
    assert_eq!((from_map.clone(), told.clone()), imported(OPERATOR));
    assert_eq!(from_map, imported(&config_map(&[("any-name", OPERATOR)])).0);
    let expected = "apiVersion: config.salvor.dev/v1alpha1
appwrapper:
  autopilot:
    monitorNodes: false
    resourceTaints:
      nvidia.com/gpu:
      - effect: NoSchedule
        key: autopilot.ibm.com/gpuhealth
        value: ERR
  defaultQueueName: default-queue
  faultTolerance:
    admissionGracePeriod: 2m0s
    retryLimit: 0
    successTTLCeiling: 1h0m0s
    warmupGracePeriod: 10m0s
  schedulerName: sakkara
  userRBACAdmissionCheck: false
controllers:
- appwrapper
kind: Configuration
";
    assert_eq!(from_map, expected);
    let lines = [
        "salvor: appwrapper.slackQueueName has no counterpart: Salvor does not change lending limits",
        "salvor: appwrapper.autopilot.resourceTaints[nvidia.com/gpu][0].timeAdded has no counterpart",
        "salvor: appwrapper.faultTolerance.retryLimit is -1, which means the same as 0, and becomes 0",
        "salvor: certManagement has no counterpart: Salvor makes and renews its certificates itself",
        "salvor: controllerManager.health has no counterpart: Salvor serves metrics and health together",
        "salvor: controllerManager.metrics has no counterpart",
        "salvor: kueueJobReconciller has no counterpart: Kueue has its side",
        "salvor: shoeSize has no counterpart: the key is not known",
    ];
    for line in lines {
        assert!(told.contains(line), "{told}\nlacks {line}");
    }
    assert_eq!(told.lines().count(), lines.len(), "{told}");
}

#[test]
fn what_is_imported_checks_and_installs() {
    let (file, _) = imported(OPERATOR);
    let (_folder, path) = folder_with("c.yaml", &file);
    assert!(run(&["config", "check", &path]).status.success());
    let manifests = stdout(&run(&["manifests", "--config", &path]));
    assert!(manifests.starts_with("apiVersion: apiextensions.k8s.io/v1\n"), "{manifests}");
    assert!(manifests.contains("- pytorchjobs"), "{manifests}");
}

#[test]
fn an_empty_file_is_the_defaults() {
    let expected =
        "apiVersion: config.salvor.dev/v1alpha1\ncontrollers:\n- appwrapper\nkind: Configuration\n";
    for text in [
        "{}\n",
        "appwrapper: null\n",
        "appwrapper: {faultTolerance: null}\ncontrollerManager: {leaderElection: true}\n",
    ] {
        assert_eq!(imported(text), (expected.to_owned(), String::new()), "{text}");
    }
}

#[test]
fn an_autopilot_that_is_null_is_switched_off() {
    let (file, _) = imported("appwrapper: {autopilot: null}\n");
    assert!(
        file.contains("  autopilot:\n    injectAntiAffinities: false\n    monitorNodes: false\n"),
        "{file}"
    );
    let (file, _) = imported("appwrapper: {autopilot: {preferNoScheduleWeight: null}}\n");
    assert!(file.contains("preferNoScheduleWeight: 1\n"), "{file}");
}

#[test]
fn webhooks_that_are_off_are_warned_about() {
    let (_, told) = imported("webhooksEnabled: false\n");
    assert!(told.contains("appwrapper.wrappedKindsWithoutWebhooks"), "{told}");
    let (_, told) = imported("controllerManager: {leaderElection: false}\n");
    assert!(
        told.contains("controllerManager.leaderElection has no counterpart: Salvor elects a leader"),
        "{told}"
    );
}

#[test]
fn what_cannot_be_imported_is_named() {
    let two = config_map(&[("a.yaml", "{}"), ("b.yaml", "{}")]);
    let cases = [
        (two.as_str(), "data: has the keys a.yaml, b.yaml: it must have exactly one"),
        ("kind: ConfigMap\n", "data: is empty: it must have exactly one key"),
        ("kind: ConfigMap\ndata: {a: {}}\n", "data.a: {} cannot be used: it must be a string"),
        ("kind: Deployment\n", "kind: \"Deployment\" cannot be used: give a ConfigMap"),
        ("- a\n", "it is neither a ConfigMap nor a configuration"),
        ("a: [\n", "not YAML: "),
        ("appwrapper: 3\n", "appwrapper: 3 cannot be used: it must be a map of fields"),
        ("appwrapper: {faultTolerance: []}\n", "appwrapper.faultTolerance: [] cannot be used"),
        ("webhooksEnabled: 1\n", "webhooksEnabled: 1 cannot be used: set it to true or false"),
        (
            "appwrapper: {faultTolerance: {resetPause: soon}}\n",
            "appwrapper.faultTolerance.resetPause: \"soon\" is not a duration",
        ),
        (
            "appwrapper: {faultTolerance: {admissionGracePeriod: 10000000000, warmupGracePeriod: 1000000000}}\n",
            "appwrapper.faultTolerance.admissionGracePeriod: 10s must be at most warmupGracePeriod, which is 1s",
        ),
        (
            "appwrapper: {autopilot: {resourceTaints: {a: [{key: b, effect: Never}]}}}\n",
            "appwrapper.autopilot.resourceTaints[a][0].effect: \"Never\" cannot be used",
        ),
    ];
    for (text, expected) in cases {
        let (_folder, path) = folder_with("operator.yaml", text);
        let output = run(&["config", "import-appwrapper", &path]);
        let told = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}: {told}");
        assert_eq!(stdout(&output), "");
        assert!(told.contains(&path) && told.contains(expected), "{text}\n gave {told}\n not {expected}");
    }
    let told = complaint(&run(&["config", "import-appwrapper", "/nonexistent/c.yaml"]), 1);
    assert!(told.contains("cannot read the configuration /nonexistent/c.yaml"), "{told}");
    assert_eq!(run(&["config", "import-appwrapper"]).status.code(), Some(2));
}
