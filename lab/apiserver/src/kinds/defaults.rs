//! Fields that the server fills in when the client leaves them out.

mod pods;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::table::Resource;
use crate::object::{self, object_at};

use pods::{pod_only, pod_spec};

/// Sets `key` unless it is present.
fn default(members: &mut Map<String, Value>, key: &str, value: Value) {
    let place = members.entry(key).or_insert(Value::Null);
    if place.is_null() {
        *place = value;
    }
}

fn members<'v>(value: &'v mut Value, pointer: &str) -> Option<&'v mut Map<String, Value>> {
    value.pointer_mut(pointer)?.as_object_mut()
}

/// Sets `key` of the object at a JSON pointer, if that exists and lacks the key.
fn set(value: &mut Value, pointer: &str, key: &str, field: Value) {
    if let Some(members) = members(value, pointer) {
        default(members, key, field);
    }
}

/// Like `set`, also if the present value is empty.
fn or_empty(value: &mut Value, pointer: &str, key: &str, field: &Value) {
    if let Some(members) = members(value, pointer)
        && members.get(key).is_none_or(|known| *known == json!("") || *known == json!(0) || known.is_null())
    {
        members.insert(key.to_owned(), field.clone());
    }
}

fn each<'v>(value: &'v mut Value, pointer: &str) -> impl Iterator<Item = &'v mut Value> {
    value.pointer_mut(pointer).and_then(Value::as_array_mut).into_iter().flatten()
}

pub(crate) fn apply(resource: &Resource, value: &mut Value) {
    if let Some(kind) = resource.built_in {
        (kind.defaults)(value);
    }
}

pub(super) fn pod(value: &mut Value) {
    if let Some(spec) = value.get_mut("spec") {
        pod_spec(spec);
        pod_only(spec);
    }
    let status = object_at(value, "status");
    default(status, "phase", json!("Pending"));
}

pub(super) fn node(value: &mut Value) {
    let status = object_at(value, "status");
    if let Some(capacity) = status.get("capacity").cloned() {
        default(status, "allocatable", capacity);
    }
}

pub(super) fn namespace(value: &mut Value) {
    label_namespace(value);
    default(object_at(value, "status"), "phase", json!("Active"));
}

/// Every namespace has its name as a label.
pub(crate) fn label_namespace(value: &mut Value) {
    let name = object::name(value).to_owned();
    if !name.is_empty() {
        let labels = object::metadata(value).entry("labels").or_insert_with(|| json!({}));
        labels["kubernetes.io/metadata.name"] = json!(name);
    }
}

pub(super) fn endpoints(value: &mut Value) {
    for subset in each(value, "/subsets") {
        for port in each(subset, "/ports") {
            set(port, "", "protocol", json!("TCP"));
        }
    }
}

pub(super) fn volume(value: &mut Value) {
    let spec = object_at(value, "spec");
    default(spec, "persistentVolumeReclaimPolicy", json!("Retain"));
    default(spec, "volumeMode", json!("Filesystem"));
    set(value, "/spec/hostPath", "type", json!(""));
    default(object_at(value, "status"), "phase", json!("Pending"));
}

pub(super) fn limit_range(value: &mut Value) {
    for limit in each(value, "/spec/limits") {
        if object::text(limit, "/type") != "Container" {
            continue;
        }
        for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
            let source = limit.get(from).and_then(Value::as_object).cloned().unwrap_or_default();
            let target = object_at(limit, to);
            for (name, amount) in source {
                default(target, &name, amount);
            }
        }
    }
}

/// A ReplicationController takes its selector and its labels from its template.
pub(super) fn replication_controller(value: &mut Value) {
    replicated(value);
    let labels = object::at(value, "/spec/template/metadata/labels").cloned();
    let Some(labels) = labels.filter(|labels| labels.as_object().is_some_and(|all| !all.is_empty())) else {
        return;
    };
    let is_empty = |value: &Value, pointer: &str| {
        object::at(value, pointer).and_then(Value::as_object).is_none_or(Map::is_empty)
    };
    if is_empty(value, "/spec/selector") {
        object_at(value, "spec").insert("selector".to_owned(), labels.clone());
    }
    if is_empty(value, "/metadata/labels") {
        object::set_metadata(value, "labels", labels);
    }
}

pub(super) fn replicated(value: &mut Value) {
    default(object_at(value, "spec"), "replicas", json!(1));
    template(value);
}

pub(super) fn pod_template(value: &mut Value) {
    if let Some(spec) = value.pointer_mut("/template/spec") {
        pod_spec(spec);
    }
}

pub(super) fn deployment(value: &mut Value) {
    let spec = object_at(value, "spec");
    default(spec, "replicas", json!(1));
    default(spec, "revisionHistoryLimit", json!(10));
    default(spec, "progressDeadlineSeconds", json!(600));
    rolling(value, "strategy", &json!({"maxUnavailable": "25%", "maxSurge": "25%"}));
    template(value);
}

pub(super) fn daemon_set(value: &mut Value) {
    default(object_at(value, "spec"), "revisionHistoryLimit", json!(10));
    rolling(value, "updateStrategy", &json!({"maxUnavailable": 1, "maxSurge": 0}));
    template(value);
}

pub(super) fn job(value: &mut Value) {
    if let Some(spec) = value.get_mut("spec") {
        job_spec(spec);
    }
    let spec = object_at(value, "spec");
    default(spec, "manualSelector", json!(false));
}

pub(super) fn cron_job(value: &mut Value) {
    let spec = object_at(value, "spec");
    default(spec, "concurrencyPolicy", json!("Allow"));
    default(spec, "suspend", json!(false));
    default(spec, "successfulJobsHistoryLimit", json!(3));
    default(spec, "failedJobsHistoryLimit", json!(1));
    if let Some(spec) = value.pointer_mut("/spec/jobTemplate/spec/template/spec") {
        pod_spec(spec);
    }
}

pub(super) fn storage_class(value: &mut Value) {
    set(value, "", "reclaimPolicy", json!("Delete"));
    set(value, "", "volumeBindingMode", json!("Immediate"));
}

pub(super) fn csi_driver(value: &mut Value) {
    let spec = object_at(value, "spec");
    for (key, field) in [
        ("attachRequired", json!(true)),
        ("fsGroupPolicy", json!("ReadWriteOnceWithFSType")),
        ("podInfoOnMount", json!(false)),
        ("preventPodSchedulingIfMissing", json!(false)),
        ("requiresRepublish", json!(false)),
        ("seLinuxMount", json!(false)),
        ("storageCapacity", json!(false)),
        ("volumeLifecycleModes", json!(["Persistent"])),
    ] {
        default(spec, key, field);
    }
}

pub(super) fn priority_class(value: &mut Value) {
    set(value, "", "preemptionPolicy", json!("PreemptLowerPriority"));
}

pub(super) fn role_binding(value: &mut Value) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    or_empty(value, "/roleRef", "apiGroup", &json!(GROUP));
    for subject in each(value, "/subjects") {
        if ["User", "Group"].contains(&object::text(subject, "/kind")) {
            set(subject, "", "apiGroup", json!(GROUP));
        }
    }
}

/// Without metrics, an autoscaler targets 80% of the requested CPU.
pub(super) fn autoscaler(value: &mut Value) {
    const CPU: i64 = 80;
    let spec = object_at(value, "spec");
    default(spec, "minReplicas", json!(1));
    let target = json!({ "type": "Utilization", "averageUtilization": CPU });
    default(
        spec,
        "metrics",
        json!([{ "type": "Resource", "resource": { "name": "cpu", "target": target } }]),
    );
    if let Some(behavior) = members(value, "/spec/behavior") {
        let policy = |kind: &str, value: i64| json!({ "type": kind, "value": value, "periodSeconds": 15 });
        let up = [policy("Pods", 4), policy("Percent", 100)];
        let down = [policy("Percent", 100)];
        for (key, window, policies) in
            [("scaleUp", Some(0), up.as_slice()), ("scaleDown", None, down.as_slice())]
        {
            let rules = behavior.entry(key).or_insert_with(|| json!({}));
            set(rules, "", "selectPolicy", json!("Max"));
            set(rules, "", "policies", json!(policies));
            if let Some(window) = window {
                set(rules, "", "stabilizationWindowSeconds", json!(window));
            }
        }
    }
}

pub(super) fn endpoint_slice(value: &mut Value) {
    for port in each(value, "/ports") {
        set(port, "", "name", json!(""));
        set(port, "", "protocol", json!("TCP"));
    }
}

pub(super) fn ingress_class(value: &mut Value) {
    set(value, "/spec/parameters", "scope", json!("Cluster"));
}

pub(super) fn network_policy(value: &mut Value) {
    for (rules, list) in [("/spec/ingress", "/ports"), ("/spec/egress", "/ports")] {
        for rule in each(value, rules) {
            for port in each(rule, list) {
                set(port, "", "protocol", json!("TCP"));
            }
        }
    }
    let has_egress = !object::list(value, "/spec/egress").is_empty();
    let types = if has_egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
    set(value, "/spec", "policyTypes", types);
}

/// The defaults of the device requests of a claim, at a JSON pointer.
pub(super) fn device_requests(value: &mut Value, spec: &str) {
    fn request(request: &mut Value) {
        or_empty(request, "", "allocationMode", &json!("ExactCount"));
        if object::text(request, "/allocationMode") == "ExactCount" {
            or_empty(request, "", "count", &json!(1));
        }
    }
    for wanted in each(value, &format!("{spec}/devices/requests")) {
        if let Some(exactly) = wanted.get_mut("exactly").filter(|exactly| exactly.is_object()) {
            request(exactly);
        }
        each(wanted, "/firstAvailable").for_each(request);
    }
}

pub(super) fn mutating_policy(value: &mut Value) {
    set(value, "/spec", "failurePolicy", json!("Fail"));
    match_resources(value, "/spec/matchConstraints");
}

pub(super) fn validating_policy(value: &mut Value) {
    mutating_policy(value);
}

pub(super) fn policy_binding(value: &mut Value) {
    match_resources(value, "/spec/matchResources");
}

fn match_resources(value: &mut Value, pointer: &str) {
    set(value, pointer, "matchPolicy", json!("Equivalent"));
    set(value, pointer, "namespaceSelector", json!({}));
    set(value, pointer, "objectSelector", json!({}));
    for rules in ["resourceRules", "excludeResourceRules"] {
        for rule in each(value, &format!("{pointer}/{rules}")) {
            set(rule, "", "scope", json!("*"));
        }
    }
}

pub(super) fn validating_webhooks(value: &mut Value) {
    for webhook in each(value, "/webhooks") {
        for (key, field) in [
            ("failurePolicy", json!("Fail")),
            ("matchPolicy", json!("Equivalent")),
            ("namespaceSelector", json!({})),
            ("objectSelector", json!({})),
            ("timeoutSeconds", json!(10)),
        ] {
            set(webhook, "", key, field);
        }
        set(webhook, "/clientConfig/service", "port", json!(443));
        for rule in each(webhook, "/rules") {
            set(rule, "", "scope", json!("*"));
        }
    }
}

pub(super) fn mutating_webhooks(value: &mut Value) {
    validating_webhooks(value);
    for webhook in each(value, "/webhooks") {
        set(webhook, "", "reinvocationPolicy", json!("Never"));
    }
}

pub(super) fn pod_certificate(value: &mut Value) {
    const DAY: i64 = 86_400;
    set(value, "/spec", "maxExpirationSeconds", json!(DAY));
}

pub(super) fn flow_schema(value: &mut Value) {
    or_empty(value, "/spec", "matchingPrecedence", &json!(1000));
}

pub(super) fn priority_level(value: &mut Value) {
    for (kind, shares) in [("/spec/exempt", 0), ("/spec/limited", 30)] {
        set(value, kind, "nominalConcurrencyShares", json!(shares));
        set(value, kind, "lendablePercent", json!(0));
    }
    for (key, number) in [("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)] {
        or_empty(value, "/spec/limited/limitResponse/queuing", key, &json!(number));
    }
}

fn rolling(value: &mut Value, field: &str, limits: &Value) {
    let Some(spec) = value.get_mut("spec") else {
        return;
    };
    let strategy = object_at(spec, field);
    default(strategy, "type", json!("RollingUpdate"));
    if strategy.get("type") == Some(&json!("RollingUpdate")) {
        let update = strategy.entry("rollingUpdate").or_insert_with(|| json!({}));
        for (key, limit) in limits.as_object().into_iter().flatten() {
            if let Some(update) = update.as_object_mut() {
                default(update, key, limit.clone());
            }
        }
    }
}

fn template(value: &mut Value) {
    if let Some(spec) = value.pointer_mut("/spec/template/spec") {
        pod_spec(spec);
    }
}

pub(super) fn stateful_set(value: &mut Value) {
    let spec = object_at(value, "spec");
    default(spec, "replicas", json!(1));
    default(spec, "revisionHistoryLimit", json!(10));
    default(spec, "serviceName", json!(""));
    default(spec, "podManagementPolicy", json!("OrderedReady"));
    let retention = spec.entry("persistentVolumeClaimRetentionPolicy").or_insert_with(|| json!({}));
    if let Some(retention) = retention.as_object_mut() {
        default(retention, "whenDeleted", json!("Retain"));
        default(retention, "whenScaled", json!("Retain"));
    }
    rolling(value, "updateStrategy", &json!({"maxUnavailable": 1, "partition": 0}));
    template(value);
    for wanted in each(value, "/spec/volumeClaimTemplates") {
        claim(wanted);
        if let Some(wanted) = wanted.as_object_mut() {
            default(wanted, "apiVersion", json!("v1"));
            default(wanted, "kind", json!("PersistentVolumeClaim"));
        }
    }
}

pub(super) fn claim(value: &mut Value) {
    default(object_at(value, "spec"), "volumeMode", json!("Filesystem"));
    default(object_at(value, "status"), "phase", json!("Pending"));
}

fn job_spec(spec: &mut Value) {
    let Some(members) = spec.as_object_mut() else {
        return;
    };
    let is_set =
        |members: &Map<String, Value>, key: &str| members.get(key).is_some_and(|value| !value.is_null());
    if !is_set(members, "completions") && !is_set(members, "parallelism") {
        default(members, "completions", json!(1));
    }
    default(members, "parallelism", json!(1));
    let limit = if is_set(members, "backoffLimitPerIndex") { i32::MAX } else { 6 };
    default(members, "backoffLimit", json!(limit));
    default(members, "completionMode", json!("NonIndexed"));
    default(members, "suspend", json!(false));
    let policy = if is_set(members, "podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    default(members, "podReplacementPolicy", json!(policy));
    for rule in each(spec, "/podFailurePolicy/rules") {
        for condition in each(rule, "/onPodConditions") {
            if let Some(condition) = condition.as_object_mut() {
                // Decoding by the schema turns a missing text into an empty one.
                if condition.get("status") == Some(&json!("")) {
                    condition.remove("status");
                }
                default(condition, "status", json!("True"));
            }
        }
    }
    if let Some(spec) = spec.pointer_mut("/template/spec") {
        pod_spec(spec);
    }
}

pub(super) fn secret(value: &mut Value) {
    let plain = value.as_object_mut().and_then(|members| members.remove("stringData"));
    if let Some(Value::Object(plain)) = plain {
        let data = object_at(value, "data");
        for (key, text) in plain {
            data.insert(key, json!(STANDARD.encode(text.as_str().unwrap_or(""))));
        }
    }
    if let Some(secret) = value.as_object_mut() {
        default(secret, "type", json!("Opaque"));
    }
}

pub(super) fn service(value: &mut Value) {
    let spec = object_at(value, "spec");
    default(spec, "type", json!("ClusterIP"));
    default(spec, "sessionAffinity", json!("None"));
    let kind = spec["type"].as_str().unwrap_or("").to_owned();
    let has_external = spec.get("externalIPs").is_some_and(|list| list != &json!([]));
    if kind != "ExternalName" {
        default(spec, "internalTrafficPolicy", json!("Cluster"));
    }
    if ["NodePort", "LoadBalancer"].contains(&kind.as_str()) || (kind == "ClusterIP" && has_external) {
        default(spec, "externalTrafficPolicy", json!("Cluster"));
    }
    if kind == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", json!(true));
        for point in each(value, "/status/loadBalancer/ingress") {
            if !object::text(point, "/ip").is_empty() {
                set(point, "", "ipMode", json!("VIP"));
            }
        }
    }
    for port in each(value, "/spec/ports") {
        if let Some(port) = port.as_object_mut() {
            default(port, "protocol", json!("TCP"));
            let number = port.get("port").cloned().unwrap_or(Value::Null);
            default(port, "targetPort", number);
        }
    }
}

pub(super) fn definition(value: &mut Value) {
    let kind = object::text(value, "/spec/names/kind").to_owned();
    if let Some(names) = members(value, "/spec/names") {
        if !kind.is_empty() {
            default(names, "listKind", json!(format!("{kind}List")));
        }
        default(names, "singular", json!(kind.to_lowercase()));
    }
    let Some(spec) = value.get_mut("spec") else {
        return;
    };
    let conversion = object_at(spec, "conversion");
    default(conversion, "strategy", json!("None"));
}
