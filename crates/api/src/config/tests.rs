use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::Value as Json;

use super::*;
use crate::{Controller, Gate};

const HEADER: &str = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";

fn with(rest: &str) -> String {
    format!("{HEADER}{rest}")
}

/// The problems of a file. The header is added in front.
fn problems(rest: &str) -> Vec<String> {
    match parse(&with(rest)) {
        Ok(configuration) => panic!("accepted: {configuration:?}"),
        Err(error) => error.problems.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn a_file_with_a_header_only_is_the_default() {
    assert_eq!(parse(HEADER).unwrap(), Configuration::default());
    assert_eq!(Configuration::default().validate(), Ok(()));
}

#[test]
fn the_documented_defaults_are_the_defaults() {
    assert_eq!(parse(&defaults_yaml()).unwrap(), Configuration::default());
}

#[test]
fn a_full_file_is_read() {
    let configuration = parse(&with(
        "featureGates: {FailureRecoveryPolicy: true}
controllers: ['*', -zombie]
dryRun: true
leaderElection: {enabled: false, leaseName: x, leaseNamespace: y, leaseDuration: 1m, renewDeadline: 30s, retryPeriod: 5s}
bind: '[::1]:9090'
page: {enabled: true, bind: '127.0.0.1:9091'}
webhooks: {enabled: false, bind: '127.0.0.1:9092', url: 'https://[::1]:9092', certDir: /certs}
logFormat: json
concurrency: {writes: 4}
staleness: {readyLimit: 5m, irreversibleActionLimit: 2m}
failureRecoveryPolicy:
  minimumUnreachableDuration: 1.5s
  rules:
  - terminatePod:
      podLabelSelector: {matchLabels: {a: b}}
      forcefulTerminationGracePeriod: 5m
      action: FailAndDelete
  - taintNodeOutOfService:
      nodeSelector: {matchExpressions: [{key: pool, operator: NotIn, values: [x]}]}
      unreachableNodeTimeout: 10m
brake: {maxPodsPerMinute: 0, maxUnreachablePercent: 100}
",
    ))
    .unwrap();
    assert!(configuration.feature_gates.enabled(Gate::FailureRecoveryPolicy));
    assert!(!configuration.controllers.enabled(Controller::Zombie));
    assert!(configuration.dry_run && !configuration.leader_election.enabled);
    assert_eq!(configuration.bind.to_string(), "[::1]:9090");
    assert!(configuration.page.enabled && configuration.page.bind.port() == 9091);
    assert!(!configuration.webhooks.enabled && configuration.webhooks.bind.port() == 9092);
    assert_eq!(configuration.webhooks.url_host(), Some("::1"));
    assert_eq!(configuration.webhooks.cert_dir.as_deref(), Some("/certs"));
    assert_eq!(configuration.log_format, LogFormat::Json);
    assert_eq!(configuration.concurrency.writes, 4);
    assert_eq!(configuration.staleness.ready_limit, GoDuration::from_secs(300));
    let policy = &configuration.failure_recovery_policy;
    assert_eq!(policy.minimum_unreachable_duration, GoDuration::from_nanos(1_500_000_000));
    let [FailureRecoveryRule::TerminatePod(pods), FailureRecoveryRule::TaintNodeOutOfService(nodes)] =
        policy.rules.as_slice()
    else {
        panic!("{policy:?}")
    };
    assert_eq!(pods.action, TerminateAction::FailAndDelete);
    assert_eq!(nodes.unreachable_node_timeout, GoDuration::from_secs(600));
    assert_eq!(configuration.brake.max_pods_per_minute, 0);

    let again: Configuration = serde_json::from_value(serde_json::to_value(&configuration).unwrap()).unwrap();
    assert_eq!(again, configuration);
}

#[test]
fn a_null_is_a_field_that_is_not_set() {
    let file = with("brake:\nfailureRecoveryPolicy:\n  rules:\n  minimumUnreachableDuration: ~\n");
    assert_eq!(parse(&file).unwrap(), Configuration::default());
}

#[test]
fn each_problem_names_its_line_field_value_and_remedy() {
    let cases: &[(&str, &str)] = &[
        (
            "brakes: {}",
            "line 3: brakes: is not a known field: known are apiVersion, kind, featureGates, controllers,",
        ),
        (
            "brake: {maxPods: 1}",
            "line 3: brake.maxPods: is not a known field: known are maxPodsPerMinute, maxNodes",
        ),
        ("dryRun: maybe", "line 3: dryRun: \"maybe\" cannot be used: set it to true or false"),
        ("dryRun: [true]", "line 3: dryRun: a list cannot be used: set it to true or false"),
        (
            "eviction: {triggers: [{key: a b}]}",
            "line 3: eviction.triggers[0].key: \"a b\" is not a label key: write name or domain/name",
        ),
        (
            "eviction: {triggers: [{key: a, value: a/b}]}",
            "line 3: eviction.triggers[0].value: \"a/b\" is not a label value",
        ),
        (
            "eviction: {triggers: [{key: salvor.dev/force-eviction}]}",
            "line 3: eviction.triggers[0].key: salvor.dev/force-eviction always asks for an eviction: leave it out",
        ),
        (
            "eviction: {removeTaint: Never}",
            "line 3: eviction.removeTaint: \"Never\" cannot be used: set it to one of BootChanged, WhenReady, WhenEvicted",
        ),
        (
            "eviction: {atMostOneOwners: [StatefulSet.apps, apps/v1]}",
            "line 3: eviction.atMostOneOwners[1]: \"apps/v1\" is not a kind: write Kind.group without a version, for example StatefulSet.apps",
        ),
        (
            "eviction: {atMostOneOwners: [Cluster., Pod]}",
            "line 3: eviction.atMostOneOwners[0]: \"Cluster.\" is not a kind: write Kind.group without a version, for example StatefulSet.apps",
        ),
        (
            "eviction: {detachWarningAfter: 0s}",
            "line 3: eviction.detachWarningAfter: 0s must be more than 0s",
        ),
        (
            "webhooks: {url: 'http://10.0.0.1:9443'}",
            "line 3: webhooks.url: \"http://10.0.0.1:9443\" cannot be called: write https://HOST:PORT, with a DNS name",
        ),
        ("webhooks: {certDir: ''}", "line 3: webhooks.certDir: \"\" cannot be used: set it to "),
        ("brake: 3", "line 3: brake: 3 cannot be used: set it to a map of fields"),
        ("logFormat: xml", "line 3: logFormat: \"xml\" cannot be used: set it to one of text, json"),
        ("bind: localhost", "line 3: bind: \"localhost\" cannot be used: set it to an IP address and port"),
        (
            "featureGates:\n  Foo: true",
            "line 4: featureGates[Foo]: unknown feature gate \"Foo\": known are FailureRec",
        ),
        (
            "featureGates:\n  FailureRecoveryPolicy: 1",
            "line 4: featureGates[FailureRecoveryPolicy]: 1 cannot be used",
        ),
        (
            "controllers: ['*', ghoul]",
            "line 3: controllers[1]: unknown controller \"ghoul\": known are \"*\" (all that are on by default) and",
        ),
        ("controllers: [1]", "line 3: controllers[0]: 1 is not a string"),
        (
            "leaderElection:\n  enabled: true\n  leaseDuration: 5",
            "line 5: leaderElection.leaseDuration: 5 cannot be used: set it to a duration, for example 1m30s",
        ),
        (
            "leaderElection:\n  leaseDuration: 5s",
            "line 4: leaderElection.leaseDuration: 5s must be longer than renewDeadline",
        ),
        (
            "leaderElection:\n  leaseDuration: 10s",
            "line 4: leaderElection.leaseDuration: 10s must be longer than renewDe",
        ),
        (
            "leaderElection:\n  retryPeriod: 9s",
            "line 3: leaderElection.renewDeadline: 10s must be longer than 1.2 times",
        ),
        ("leaderElection:\n  retryPeriod: 0s", "line 4: leaderElection.retryPeriod: 0s must be more than 0s"),
        (
            "leaderElection: {leaseName: A_b}",
            "line 3: leaderElection.leaseName: \"A_b\" cannot name an object",
        ),
        (
            "leaderElection: {leaseName: ''}",
            "line 3: leaderElection.leaseName: \"\" cannot be used: set it to a string",
        ),
        (
            "concurrency: {writes: 0}",
            "line 3: concurrency.writes: 0 cannot be used: set it to a whole number from 1 to",
        ),
        ("staleness: {readyLimit: 0s}", "line 3: staleness.readyLimit: 0s must be more than 0s"),
        (
            "staleness: {readyLimit: 1m}",
            "line 3: staleness.irreversibleActionLimit: 1m30s must be at most readyLimit",
        ),
        (
            "brake:\n  maxUnreachablePercent: 101",
            "line 4: brake.maxUnreachablePercent: 101 cannot be used: set it to",
        ),
        (
            "brake:\n  maxPodsPerMinute: -1",
            "line 4: brake.maxPodsPerMinute: -1 cannot be used: set it to a whole number",
        ),
        ("brake:\n  maxPodsPerMinute: 1.5", "line 4: brake.maxPodsPerMinute: 1.5 cannot be used"),
        (
            "failureRecoveryPolicy:\n  minimumUnreachableDuration: -1s",
            "line 4: failureRecoveryPolicy.minimumUnreachableDuration: -1s must not be negative",
        ),
        (
            "failureRecoveryPolicy:\n  annotatedPods: {forcefulTerminationGracePeriod: -1s}",
            "line 4: failureRecoveryPolicy.annotatedPods.forcefulTerminationGracePeriod: -1s must not be negative",
        ),
        (
            "failureRecoveryPolicy:\n  annotatedPods:\n    minimumForcefulTerminationGracePeriod: 61s",
            "line 5: failureRecoveryPolicy.annotatedPods.minimumForcefulTerminationGracePeriod: 1m1s must be at most \
             forcefulTerminationGracePeriod, which is 1m0s",
        ),
        (
            "failureRecoveryPolicy:\n  minimumEvictAfter: -1s",
            "line 4: failureRecoveryPolicy.minimumEvictAfter: -1s must not be negative",
        ),
        (
            "failureRecoveryPolicy:\n  minimumEvictAfter: 20s\n  annotatedPods:\n    evictAfter: 10s",
            "line 6: failureRecoveryPolicy.annotatedPods.evictAfter: 10s must be at least minimumEvictAfter, which is 20s",
        ),
        (
            "failureRecoveryPolicy:\n  annotatedPods: {terminationGraceAfter: 1m}",
            "line 4: failureRecoveryPolicy.annotatedPods.terminationGraceAfter: is not a known field: known are forceful",
        ),
        (
            "failureRecoveryPolicy:\n  rules: [{}]",
            "line 4: failureRecoveryPolicy.rules[0]: is empty: set exactly one of terminatePod, taintNodeOutOfService",
        ),
        (
            "failureRecoveryPolicy: {rules: {}}",
            "line 3: failureRecoveryPolicy.rules: an object cannot be used: set it to a list",
        ),
        (
            "failureRecoveryPolicy: {rules: [~]}",
            "line 3: failureRecoveryPolicy.rules[0]: is empty: remove it or fill it in",
        ),
        (
            "failureRecoveryPolicy: {rules: [{evict: {}}]}",
            "line 3: failureRecoveryPolicy.rules[0]: is empty: set exactly",
        ),
        ("kind: Configuration", "line 3: not YAML: "),
        ("brake: [", "not YAML: "),
    ];
    for (text, expected) in cases {
        let found = problems(text);
        assert!(found[0].contains(expected), "{text:?}\n  gave {:?}\n  not {expected:?}", found[0]);
    }
}

#[test]
fn problems_in_rules_are_found_where_they_are() {
    let rule = |rest: &str| format!("failureRecoveryPolicy:\n  rules:\n  - terminatePod:\n{rest}");
    let selector = "      podLabelSelector: {matchLabels: {a: b}}\n";
    let period = "      forcefulTerminationGracePeriod: 5m\n";
    let terminate = "failureRecoveryPolicy.rules[0].terminatePod";
    let cases = [
        (rule(selector), vec![format!("line 5: {terminate}.forcefulTerminationGracePeriod: is required: set it to a duration")]),
        (rule(period), vec![format!("line 5: {terminate}.podLabelSelector: is required: set it to a label selector")]),
        (
            rule(&format!("{selector}      forcefulTerminationGracePeriod: 5")),
            vec![format!("line 7: {terminate}.forcefulTerminationGracePeriod: 5 cannot be used: set it to a duration")],
        ),
        (
            rule(&format!("{selector}      forcefulTerminationGracePeriod: 5x")),
            vec![format!("line 7: {terminate}.forcefulTerminationGracePeriod: \"5x\" has the unknown unit \"x\"")],
        ),
        (
            rule(&format!("{selector}      forcefulTerminationGracePeriod: -5s")),
            vec![format!("line 7: {terminate}.forcefulTerminationGracePeriod: -5s must not be negative")],
        ),
        (
            rule(&format!("{period}      podLabelSelector: {{}}")),
            vec![format!("line 7: {terminate}.podLabelSelector: also matches pods without any label")],
        ),
        (
            rule(&format!("{period}      podLabelSelector: {{matchExpressions: [{{key: a, operator: DoesNotExist}}]}}")),
            vec![format!("line 7: {terminate}.podLabelSelector: also matches pods without any label")],
        ),
        (
            rule(&format!("{period}      podLabelSelector:\n        matchLabels:\n          a: true")),
            vec![format!("line 9: {terminate}.podLabelSelector.matchLabels[a]: true is not a string: write it in quotes")],
        ),
        (
            rule(&format!(
                "{period}      podLabelSelector:\n        matchExpressions:\n        - key: a b\n          operator: In\n        \
                 - key: c\n          operator: Exists\n          values: [x]"
            )),
            vec![
                format!("line 9: {terminate}.podLabelSelector.matchExpressions[0].key: \"a b\" is not a label key"),
                format!("line 9: {terminate}.podLabelSelector.matchExpressions[0].values: is empty: operator In needs"),
                format!("line 13: {terminate}.podLabelSelector.matchExpressions[1].values: [\"x\"] cannot be used"),
            ],
        ),
        (
            rule(&format!("{period}      podLabelSelector: {{matchExpressions: [{{key: a, operator: Like}}]}}")),
            vec![format!(
                "line 7: {terminate}.podLabelSelector.matchExpressions[0].operator: \"Like\" cannot be used: set it to one \
                 of In, NotIn, Exists, DoesNotExist"
            )],
        ),
        (
            rule(&format!("{selector}{period}    taintNodeOutOfService: {{nodeSelector: {{}}, unreachableNodeTimeout: 0s}}")),
            vec!["line 5: failureRecoveryPolicy.rules[0]: sets terminatePod and taintNodeOutOfService: set exactly one".into()],
        ),
        (
            "failureRecoveryPolicy:\n  rules:\n  - taintNodeOutOfService:\n      nodeSelector: {}\n      unreachableNodeTimeout: 0s"
                .into(),
            vec![
                "line 6: failureRecoveryPolicy.rules[0].taintNodeOutOfService.nodeSelector: is empty and would match".into(),
                "line 7: failureRecoveryPolicy.rules[0].taintNodeOutOfService.unreachableNodeTimeout: 0s must be more".into(),
            ],
        ),
    ];
    for (text, expected) in cases {
        let found = problems(&text);
        assert_eq!(found.len(), expected.len(), "{text}\n{found:#?}");
        for (found, expected) in found.iter().zip(&expected) {
            assert!(found.starts_with(expected), "{text}\n  gave {found:?}\n  not {expected:?}");
        }
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let found = problems(
        "dryRun: 1\nlogFormat: xml\nbrake: {maxUnreachablePercent: 200}\nfoo: 1\nleaderElection: {leaseDuration: 1s}",
    );
    assert_eq!(found.len(), 5, "{found:#?}");
    assert_eq!(found.iter().filter(|problem| problem.contains("leaseDuration")).count(), 1);
}

#[test]
fn another_document_is_not_mistaken_for_a_configuration() {
    let error = parse("apiVersion: v1\nkind: ConfigMap\n").unwrap_err().to_string();
    assert_eq!(
        error,
        "line 1: apiVersion: \"v1\" cannot be used: set it to one of config.salvor.dev/v1alpha1\n\
         line 2: kind: \"ConfigMap\" cannot be used: set it to one of Configuration"
    );
    let error = parse("").unwrap_err();
    assert_eq!(error.problems.len(), 2, "{error}");
    assert!(error.problems[0].message.starts_with("is required"), "{error}");
    assert!(parse("- a\n- b\n").unwrap_err().to_string().contains("a list is not a configuration"));
}

#[test]
fn flags_after_the_file_are_validated_too() {
    let mut configuration = Configuration::default();
    configuration.brake.max_unreachable_percent = 101;
    configuration.concurrency.writes = 0;
    configuration.controllers = ControllerList::new(["ghoul"]);
    let error = configuration.validate().unwrap_err();
    let paths: Vec<_> = error.problems.iter().map(|problem| problem.path.to_string()).collect();
    assert_eq!(paths, ["controllers[0]", "concurrency.writes", "brake.maxUnreachablePercent"]);
    assert!(error.problems.iter().all(|problem| problem.line.is_none()));
}

#[test]
fn the_appwrapper_section_is_read_as_codeflare_users_have_it() {
    let file = with(
        "controllers: [appwrapper]
appwrapper:
  userRBACAdmissionCheck: false
  schedulerName: my-scheduler
  defaultQueueName: default-queue
  slackQueueName: slack-cluster-queue
  autopilot:
    injectAntiAffinities: true
    monitorNodes: false
    preferNoScheduleWeight: 7
    resourceTaints:
      amd.com/gpu: [{key: extra, value: test, effect: NoExecute}, {key: extra2, effect: NoSchedule}]
  faultTolerance:
    admissionGracePeriod: 60000000000
    warmupGracePeriod: 300000000000
    failureGracePeriod: 0
    resetPause: 1m30s
    retryLimit: 0
    deletionGracePeriod: 600000000000
    gracePeriodCeiling: 86400000000000
    successTTLCeiling: 604800000000000
",
    );
    let configuration = parse(&file).unwrap();
    assert!(configuration.controllers.enabled(Controller::AppWrapper));
    let settings = &configuration.appwrapper;
    let expected = AppWrapperSettings {
        user_rbac_admission_check: false,
        scheduler_name: "my-scheduler".into(),
        default_queue_name: "default-queue".into(),
        slack_queue_name: "slack-cluster-queue".into(),
        ..AppWrapperSettings::default()
    };
    let expected = AppWrapperSettings {
        autopilot: settings.autopilot.clone(),
        fault_tolerance: FaultTolerance {
            failure_grace_period: GoDuration::ZERO,
            retry_limit: 0,
            ..FaultTolerance::default()
        },
        ..expected
    };
    assert_eq!(*settings, expected);
    assert_eq!(settings.autopilot.prefer_no_schedule_weight, 7);
    // CodeFlare's controller decodes the file over its defaults.
    let resources: Vec<_> = settings.autopilot.resource_taints.keys().cloned().collect();
    assert_eq!(resources, ["amd.com/gpu", "nvidia.com/gpu"]);
    assert_eq!(settings.autopilot.resource_taints["amd.com/gpu"][1].value, "");
    let again: Configuration = serde_json::from_value(serde_json::to_value(&configuration).unwrap()).unwrap();
    assert_eq!(again, configuration);
}

/// A key without a value is null in YAML. For other fields, null means that the field is not set.
#[test]
fn autopilot_that_is_null_is_off_as_in_codeflares_configuration() {
    for (text, on) in [
        ("appwrapper: {autopilot: null}", false),
        ("appwrapper:\n  autopilot:\n  schedulerName: s\n", false),
        ("appwrapper: {autopilot: {}}", true),
        ("appwrapper: {autopilot: {monitorNodes: null}}", true),
        ("appwrapper: null", true),
        ("appwrapper: {}", true),
    ] {
        let autopilot = parse(&with(text)).unwrap().appwrapper.autopilot;
        assert_eq!((autopilot.inject_anti_affinities, autopilot.monitor_nodes), (on, on), "{text}");
    }
}

#[test]
fn contradictions_between_the_timers_of_appwrappers_are_refused() {
    let tolerance = |rest: &str| format!("appwrapper: {{faultTolerance: {{{rest}}}}}");
    let place = "line 3: appwrapper.faultTolerance";
    let mut cases = vec![
        (
            tolerance("admissionGracePeriod: 10s, warmupGracePeriod: 1s"),
            format!("{place}.admissionGracePeriod: 10s must be at most warmupGracePeriod, which is 1s"),
        ),
        (
            tolerance("successTTLCeiling: -1s"),
            format!("{place}.successTTLCeiling: -1s must be more than 0s"),
        ),
        (tolerance("successTTLCeiling: 0"), format!("{place}.successTTLCeiling: 0s must be more than 0s")),
        (tolerance("resetPause: -1"), format!("{place}.resetPause: -1ns must not be negative")),
        (
            tolerance("resetPause: 1d"),
            format!("{place}.resetPause: \"1d\" has the unknown unit \"d\": use one of"),
        ),
        (
            tolerance("resetPause: 1.5"),
            format!(
                "{place}.resetPause: 1.5 cannot be used: set it to a duration, for example 1m30s, or a whole number of nanoseconds"
            ),
        ),
        (
            tolerance("resetPause: 10000000000000000000"),
            format!("{place}.resetPause: 10000000000000000000 cannot be used"),
        ),
        (tolerance("retryLimit: -1"), format!("{place}.retryLimit: -1 cannot be used: set it to a whole")),
        (
            "appwrapper: {autopilot: {preferNoScheduleWeight: 0}}".into(),
            "line 3: appwrapper.autopilot.preferNoScheduleWeight: 0 cannot be used: set it to a whole".into(),
        ),
        (
            "appwrapper: {autopilot: {resourceTaints: {a/b: [{key: a b, effect: NoExecute}]}}}".into(),
            "line 3: appwrapper.autopilot.resourceTaints[a/b][0].key: \"a b\" is not a label key".into(),
        ),
        (
            "appwrapper: {autopilot: {resourceTaints: {a/b: [{key: a, effect: Evict}]}}}".into(),
            "line 3: appwrapper.autopilot.resourceTaints[a/b][0].effect: \"Evict\" cannot be used: set it to one of".into(),
        ),
        (
            "appwrapper: {autopilot: {resourceTaints: {a/b: 1}}}".into(),
            "line 3: appwrapper.autopilot.resourceTaints[a/b]: 1 cannot be used: set it to a list of taints".into(),
        ),
        (
            "appwrapper: {autopilot: {resourceTaints: {a/b: [x]}}}".into(),
            "line 3: appwrapper.autopilot.resourceTaints[a/b][0]: \"x\" is no taint: set it to key, value".into(),
        ),
        (
            "appwrapper: {wrappedKinds: [Pod, batch/v1]}".into(),
            "line 3: appwrapper.wrappedKinds[1]: \"batch/v1\" is not a kind: write Kind.group".into(),
        ),
        (
            "appwrapper: {wrappedKinds: [Pod, Pod]}".into(),
            "line 3: appwrapper.wrappedKinds[1]: \"Pod\" is there twice: remove one".into(),
        ),
        (
            "appwrapper: {wrappedKinds: [RoleBinding.rbac.authorization.k8s.io]}".into(),
            "line 3: appwrapper.wrappedKinds[0]: \"RoleBinding.rbac.authorization.k8s.io\" cannot be wrapped: users could".into(),
        ),
        (
            "appwrapper: {wrappedKinds: [AppWrapper.workload.codeflare.dev]}".into(),
            "line 3: appwrapper.wrappedKinds[0]: \"AppWrapper.workload.codeflare.dev\" cannot be wrapped: AppWrappers".into(),
        ),
        (
            "appwrapper: {wrappedKindsWithoutWebhooks: [ConfigMap]}".into(),
            "line 3: appwrapper.wrappedKindsWithoutWebhooks[0]: \"ConfigMap\" is not among wrappedKinds: add it".into(),
        ),
        (
            "appwrapper: {defaultQueueName: a/b}".into(),
            "line 3: appwrapper.defaultQueueName: \"a/b\" is not a label value".into(),
        ),
        (
            "appwrapper: {schedulerName: My_Scheduler}".into(),
            "line 3: appwrapper.schedulerName: \"My_Scheduler\" cannot name a scheduler".into(),
        ),
    ];
    for name in [
        "deletionGracePeriod",
        "resetPause",
        "failureGracePeriod",
        "admissionGracePeriod",
        "warmupGracePeriod",
    ] {
        cases.push((
            tolerance(&format!("{name}: 10s, gracePeriodCeiling: 1s")),
            format!("{place}.{name}: 10s must be at most gracePeriodCeiling, which is 1s"),
        ));
    }
    for (text, expected) in cases {
        let found = problems(&text);
        assert!(
            found.iter().any(|problem| problem.starts_with(&expected)),
            "{text}\n  gave {found:#?}\n  not {expected:?}"
        );
    }
}

/// Every path of a serialized configuration, with `[]` for list entries. Free maps and selectors are not entered.
fn paths(value: &Json, prefix: &str, into: &mut BTreeSet<String>) {
    let kind = FIELDS.iter().find(|field| field.path == prefix).map(|field| field.kind);
    match value {
        Json::Object(object) if !matches!(kind, Some(Kind::Gates | Kind::Selector | Kind::TaintMap)) => {
            for (key, value) in object {
                let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                into.insert(path.clone());
                paths(value, &path, into);
            }
        }
        Json::Array(items) if kind == Some(Kind::List) => {
            for item in items {
                let path = format!("{prefix}[]");
                into.insert(path.clone());
                paths(item, &path, into);
            }
        }
        _ => {}
    }
}

fn example() -> Configuration {
    let mut file = String::new();
    for controller in Controller::ALL {
        let examples = section_of(*controller).examples.iter().map(|(_, example)| *example);
        let lines: Vec<String> = examples.flat_map(str::lines).map(|line| format!("  {line}\n")).collect();
        if !lines.is_empty() {
            file += &format!("{}:\n{}", section_name(*controller), lines.concat());
        }
    }
    parse(&with(&file)).unwrap()
}

#[test]
fn the_rows_of_a_section_are_one_recovery_s_and_its_lists_have_examples() {
    for controller in Controller::ALL {
        let name = section_name(*controller);
        let (first, rest) = section_of(*controller).fields.split_first().unwrap();
        assert_eq!((first.path, first.kind, first.presence), (name, Kind::Object, Presence::Parent));
        for field in rest {
            assert!(field.path.starts_with(&format!("{name}.")), "{} in {name}", field.path);
        }
    }
    for list in FIELDS.iter().filter(|field| field.kind == Kind::List && !field.path.contains("[]")) {
        assert!(fields::example(list.path).is_some(), "{} has no example", list.path);
    }
}

#[test]
fn the_table_and_the_types_cover_each_other() {
    let serialized = serde_json::to_value(example()).unwrap();
    let mut in_types = BTreeSet::new();
    paths(&serialized, "", &mut in_types);
    let in_table: BTreeSet<_> = FIELDS.iter().map(|field| field.path.to_owned()).collect();
    assert_eq!(in_table.len(), FIELDS.len(), "a path is in the table twice");
    assert_eq!(in_types, in_table);
}

#[test]
fn the_table_states_the_defaults_of_the_types() {
    let defaults = serde_json::to_value(Configuration::default()).unwrap();
    for field in FIELDS.iter().filter(|field| !field.path.contains("[]")) {
        let pointer = format!("/{}", field.path.replace('.', "/"));
        let typed = defaults.pointer(&pointer).unwrap();
        match field.presence {
            Presence::Default(text) => {
                let stated: Json = serde_saphyr::from_str(text).unwrap();
                assert_eq!(&stated, typed, "{}", field.path);
            }
            Presence::Parent => assert!(typed.is_object(), "{}", field.path),
            Presence::Required => {
                assert!(matches!(field.kind, Kind::Choice([_])), "{}", field.path);
            }
            Presence::Optional => assert!(typed.is_null(), "{} has a default", field.path),
        }
    }
    let rule = &example().failure_recovery_policy.rules[0];
    let FailureRecoveryRule::TerminatePod(rule) = rule else { panic!("{rule:?}") };
    assert_eq!(rule.action, TerminateAction::default());
}

#[test]
fn the_reference_explains_every_field() {
    let page = reference();
    for field in FIELDS.iter().chain(fields::SELECTOR_FIELDS) {
        assert!(page.contains(&format!("### `{}`", field.path)), "{}", field.path);
        assert!(field.doc.ends_with('.') && field.doc.len() > 15, "{}: {:?}", field.path, field.doc);
    }
    for gate in Gate::ALL {
        assert!(page.contains(&format!("`{gate}`")));
    }
}

#[test]
fn the_defaults_file_shows_every_field() {
    let file = defaults_yaml();
    for field in FIELDS.iter() {
        let name = field.path.rsplit('.').next().unwrap().trim_end_matches("[]");
        assert!(file.contains(&format!("{name}:")), "{}", field.path);
    }
    assert!(file.lines().all(|line| line.chars().count() <= 100));
}

proptest! {
    #![proptest_config(crate::fuzz::cases(1024))]

    #[test]
    fn any_text_is_read_or_refused_without_panic(text in any::<String>()) {
        let _ = parse(&text).map_err(|error| error.to_string());
    }

    #[test]
    fn any_bytes_that_are_text_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = parse(&String::from_utf8_lossy(&bytes)).map_err(|error| error.to_string());
    }

    #[test]
    fn a_damaged_file_is_read_or_refused(at in 0usize..6000, replacement in "\\PC{0,4}|[\n:{}\\[\\]*&!|>'\"#-]{1,3}", cut in 0usize..40) {
        let mut file: Vec<char> = defaults_yaml().chars().collect();
        let start = at.min(file.len());
        let end = (start + cut).min(file.len());
        file.splice(start..end, replacement.chars());
        let text: String = file.into_iter().collect();
        if let Err(error) = parse(&text) {
            prop_assert!(!error.problems.is_empty());
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn any_value_in_a_field_is_read_or_refused_with_that_field(
        field in proptest::sample::select(FIELDS.iter().filter(|field| !field.path.contains(['.', '[']) && field.presence != Presence::Required).collect::<Vec<_>>()),
        value in "[a-z0-9 .:\\[\\]{},'\"*-]{0,20}",
    ) {
        if let Err(error) = parse(&with(&format!("{}: {value}\n", field.path))) {
            for problem in error.problems.iter().filter(|problem| !problem.path.segments().is_empty()) {
                prop_assert!(problem.path.to_string().starts_with(field.path), "{}", problem);
                prop_assert_eq!(problem.line, Some(3), "{}", problem);
            }
        }
    }
}

/// The lines that set a field and its parents to a value. Entries of lists are in the table too.
fn with_value(path: &str, value: &str) -> String {
    let mut lines = String::new();
    let mut indent = 0;
    let segments: Vec<&str> = path.split('.').collect();
    for (at, segment) in segments.iter().enumerate() {
        let (name, is_list) = match segment.strip_suffix("[]") {
            Some(name) => (name, true),
            None => (*segment, false),
        };
        let is_last = at + 1 == segments.len();
        lines.push_str(&" ".repeat(indent));
        lines.push_str(name);
        match (is_last, is_list) {
            (true, false) => lines.push_str(&format!(": {value}\n")),
            (true, true) => lines.push_str(&format!(": [{value}]\n")),
            (false, false) => lines.push_str(":\n"),
            (false, true) => {
                lines.push_str(&format!(":\n{}-\n", " ".repeat(indent)));
                indent += 2;
            }
        }
        indent += 2;
    }
    lines
}

/// Any value of a field is either accepted or refused with the name of the field (or of one inside or around it) and
/// its line.
#[test]
fn every_field_takes_a_bad_value_or_refuses_it_by_name() {
    let huge = format!("\"{}\"", "x".repeat(100_000));
    let bad = [
        "\"{not yaml\"",
        &huge,
        "\"\"",
        "",
        "null",
        "[]",
        "{}",
        "-1",
        "0",
        "18446744073709551616",
        "\"1970-01-01T00:00:00Z\"",
        "\"9999-12-31T23:59:59Z\"",
        "-9223372036854775808ns",
        "true",
        "[[[]]]",
        "{a: {b: c}}",
    ];
    let all: Vec<&Field> = FIELDS.iter().filter(|field| field.presence != Presence::Required).collect();
    assert!(all.len() > 50);
    let mut refused = 0;
    for field in all {
        for value in bad {
            let text = with(&with_value(field.path, value));
            let Err(error) = parse(&text) else { continue };
            refused += 1;
            let top = field.path.split(['.', '[']).next().unwrap();
            for problem in &error.problems {
                let said = problem.to_string();
                assert!(said.contains(top), "{} = {value:.40}: {said:.300}", field.path);
                assert!(
                    problem.line.is_some_and(|line| line >= 3),
                    "{} = {value:.40}: {said:.300}",
                    field.path
                );
            }
            assert!(error.to_string().len() < 250_000, "{}", field.path);
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn the_url_of_webhooks_is_a_host_and_a_port_and_nothing_else() {
    let host = |url: &str| {
        let settings = WebhookSettings { url: Some(url.to_owned()), ..WebhookSettings::default() };
        settings.url_host().map(str::to_owned)
    };
    for (url, expected) in [
        ("https://10.0.0.1:9443", "10.0.0.1"),
        ("https://salvor.example.com:443", "salvor.example.com"),
        ("https://[fd00::1]:1", "fd00::1"),
    ] {
        assert_eq!(host(url).as_deref(), Some(expected), "{url}");
    }
    for bad in [
        "",
        "https://",
        "https://a",
        "https://a:",
        "https://a:0",
        "https://a:65536",
        "https://a:+1",
        "https://:1",
        "HTTPS://a:1",
        "http://a:1",
        "a:1",
        "https://a:1/",
        "https://a:1/path",
        "https://a:1?x=y",
        "https://me@a:1",
        "https://a b:1",
        "https://::1:1",
        "https://[::1:1",
        "https://[a]:1",
        "https://a:1#x",
    ] {
        assert_eq!(host(bad), None, "{bad}");
    }
}
