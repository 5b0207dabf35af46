//! Tables: what `kubectl get` shows.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::events;
use crate::object;
use crate::render;
use crate::request::Include;
use crate::table::Resource;

const NONE: &str = "<none>";
const UNKNOWN: &str = "<unknown>";
const UNSET: &str = "<unset>";

/// Columns of one kind: those of every table first, then those that `-o wide` adds.
struct Layout {
    plain: &'static [(&'static str, &'static str)],
    wide: &'static [&'static str],
}

const NAME: (&str, &str) = ("Name", "name");
const AGE: (&str, &str) = ("Age", "string");

fn layout(resource: &Resource) -> Option<Layout> {
    let (plain, wide): (&[(&str, &str)], &[&str]) = match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => (
            &[NAME, ("Ready", "string"), ("Status", "string"), ("Restarts", "string"), AGE],
            &["IP", "Node", "Nominated Node", "Readiness Gates"],
        ),
        ("", "Node") => (
            &[NAME, ("Status", "string"), ("Roles", "string"), AGE, ("Version", "string")],
            &["Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"],
        ),
        ("", "Namespace") => (&[NAME, ("Status", "string"), AGE], &[]),
        ("", "ConfigMap") => (&[NAME, ("Data", "string"), AGE], &[]),
        ("", "Secret") => (&[NAME, ("Type", "string"), ("Data", "string"), AGE], &[]),
        ("", "Service") => (
            &[
                NAME,
                ("Type", "string"),
                ("Cluster-IP", "string"),
                ("External-IP", "string"),
                ("Port(s)", "string"),
                AGE,
            ],
            &["Selector"],
        ),
        ("", "ServiceAccount") => (&[NAME, AGE], &[]),
        ("", "PersistentVolume") => (
            &[
                NAME,
                ("Capacity", "string"),
                ("Access Modes", "string"),
                ("Reclaim Policy", "string"),
                ("Status", "string"),
                ("Claim", "string"),
                ("StorageClass", "string"),
                ("VolumeAttributesClass", "string"),
                ("Reason", "string"),
                AGE,
            ],
            &["VolumeMode"],
        ),
        ("", "PersistentVolumeClaim") => (
            &[
                NAME,
                ("Status", "string"),
                ("Volume", "string"),
                ("Capacity", "string"),
                ("Access Modes", "string"),
                ("StorageClass", "string"),
                ("VolumeAttributesClass", "string"),
                AGE,
            ],
            &["VolumeMode"],
        ),
        ("apps", "Deployment") => (
            &[NAME, ("Ready", "string"), ("Up-to-date", "string"), ("Available", "string"), AGE],
            &["Containers", "Images", "Selector"],
        ),
        ("apps", "ReplicaSet") => (
            &[NAME, ("Desired", "integer"), ("Current", "integer"), ("Ready", "integer"), AGE],
            &["Containers", "Images", "Selector"],
        ),
        ("apps", "StatefulSet") => (&[NAME, ("Ready", "string"), AGE], &["Containers", "Images"]),
        ("apps", "DaemonSet") => (
            &[
                NAME,
                ("Desired", "integer"),
                ("Current", "integer"),
                ("Ready", "integer"),
                ("Up-to-date", "integer"),
                ("Available", "integer"),
                ("Node Selector", "string"),
                AGE,
            ],
            &["Containers", "Images", "Selector"],
        ),
        ("batch", "Job") => (
            &[NAME, ("Status", "string"), ("Completions", "string"), ("Duration", "string"), AGE],
            &["Containers", "Images", "Selector"],
        ),
        ("policy", "PodDisruptionBudget") => (
            &[
                NAME,
                ("Min Available", "string"),
                ("Max Unavailable", "string"),
                ("Allowed Disruptions", "integer"),
                AGE,
            ],
            &[],
        ),
        ("coordination.k8s.io", "Lease") => (&[NAME, ("Holder", "string"), AGE], &[]),
        ("storage.k8s.io", "VolumeAttachment") => (
            &[NAME, ("Attacher", "name"), ("PV", "string"), ("Node", "string"), ("Attached", "boolean"), AGE],
            &[],
        ),
        ("storage.k8s.io", "StorageClass") => (
            &[
                NAME,
                ("Provisioner", "string"),
                ("ReclaimPolicy", "string"),
                ("VolumeBindingMode", "string"),
                ("AllowVolumeExpansion", "string"),
                AGE,
            ],
            &[],
        ),
        ("scheduling.k8s.io", "PriorityClass") => (
            &[NAME, ("Value", "integer"), ("Global-Default", "boolean"), AGE, ("PreemptionPolicy", "string")],
            &[],
        ),
        _ => return None,
    };
    Some(Layout { plain, wide })
}

fn column(name: &str, kind: &str, priority: i64) -> Value {
    let (kind, format) = if kind == "name" { ("string", "name") } else { (kind, "") };
    json!({ "name": name, "type": kind, "format": format, "description": "", "priority": priority })
}

fn columns(resource: &Resource) -> Vec<Value> {
    if resource.is("", "Event") || resource.is("events.k8s.io", "Event") {
        return [
            ("Last Seen", "string", 0),
            ("Type", "string", 0),
            ("Reason", "string", 0),
            ("Object", "string", 0),
            ("Subobject", "string", 1),
            ("Source", "string", 1),
            ("Message", "string", 0),
            ("First Seen", "string", 1),
            ("Count", "string", 1),
            ("Name", "name", 1),
        ]
        .iter()
        .map(|&(name, kind, priority)| column(name, kind, priority))
        .collect();
    }
    if resource.custom.is_some() {
        let mut columns = vec![column("Name", "name", 0)];
        columns.extend(resource.columns.iter().map(|own| {
            json!({
                "name": own.name, "type": own.kind, "format": own.format,
                "description": own.description, "priority": own.priority,
            })
        }));
        if resource.columns.is_empty() {
            columns.push(column("Age", "date", 0));
        }
        return columns;
    }
    match layout(resource) {
        Some(layout) => layout
            .plain
            .iter()
            .map(|&(name, kind)| column(name, kind, 0))
            .chain(layout.wide.iter().map(|name| column(name, "string", 1)))
            .collect(),
        None => vec![column("Name", "name", 0), column("Created At", "date", 0)],
    }
}

/// A table of objects.
pub(crate) fn table<'v>(
    resource: &Resource,
    items: impl Iterator<Item = &'v Value>,
    metadata: &Value,
    include: Include,
    now: Timestamp,
) -> Value {
    let rows: Vec<Value> = items
        .map(|item| {
            let mut row = json!({ "cells": cells(resource, item, now) });
            if resource.is_pod()
                && let Some(message) = match text(item, "/status/phase") {
                    "Succeeded" => Some("The pod has completed successfully."),
                    "Failed" => Some("The pod failed."),
                    _ => None,
                }
            {
                let reason = text(item, "/status/phase");
                row["conditions"] =
                    json!([{ "type": "Completed", "status": "True", "reason": reason, "message": message }]);
            }
            match include {
                Include::None => row["object"] = Value::Null,
                Include::Metadata => {
                    row["object"] = json!({
                        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                        "metadata": item.get("metadata"),
                    });
                }
                Include::Object => {
                    row["object"] = render::typed(resource, &events::from_stored(resource, item.clone()));
                }
            }
            row
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": columns(resource), "rows": rows,
    })
}

fn text<'v>(item: &'v Value, pointer: &str) -> &'v str {
    object::text(item, pointer)
}

fn number(item: &Value, pointer: &str) -> i64 {
    item.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

fn or<'t>(text: &'t str, otherwise: &'t str) -> &'t str {
    if text.is_empty() { otherwise } else { text }
}

fn age(item: &Value, pointer: &str, now: Timestamp) -> String {
    match text(item, pointer).parse::<Timestamp>() {
        Ok(then) => human(now.duration_since(then)),
        Err(_) => UNKNOWN.to_owned(),
    }
}

/// A duration as kubectl prints it: two units at most, fewer the longer it is.
fn human(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let years = days / 365;
    let two = |big: i64, big_unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{big}{big_unit}") } else { format!("{big}{big_unit}{small}{small_unit}") }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 | 0 => "0s".to_owned(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => two(days, "d", hours % 24, "h"),
        _ if hours < 24 * 365 * 2 => format!("{days}d"),
        _ if hours < 24 * 365 * 8 => two(years, "y", days % 365, "d"),
        _ => format!("{years}y"),
    }
}

fn cells(resource: &Resource, item: &Value, now: Timestamp) -> Vec<Value> {
    let name = object::name(item);
    let aged = age(item, "/metadata/creationTimestamp", now);
    match (resource.group.as_str(), resource.kind.as_str()) {
        _ if resource.custom.is_some() => custom_cells(resource, item, now),
        ("", "Pod") => pod(item, now),
        ("", "Node") => node(item, &aged),
        ("" | "events.k8s.io", "Event") => event(item, now),
        ("", "Namespace") => vec![json!(name), json!(text(item, "/status/phase")), json!(aged)],
        ("", "ConfigMap") => {
            vec![json!(name), json!(entries(item, "data") + entries(item, "binaryData")), json!(aged)]
        }
        ("", "Secret") => {
            vec![json!(name), json!(text(item, "/type")), json!(entries(item, "data")), json!(aged)]
        }
        ("", "Service") => service(item, &aged),
        ("", "ServiceAccount") => vec![json!(name), json!(aged)],
        ("", "PersistentVolume") => vec![
            json!(name),
            json!(text(item, "/spec/capacity/storage")),
            json!(access_modes(item)),
            json!(text(item, "/spec/persistentVolumeReclaimPolicy")),
            json!(phase(item)),
            json!(claim_of(item)),
            json!(text(item, "/spec/storageClassName")),
            json!(or(text(item, "/spec/volumeAttributesClassName"), UNSET)),
            json!(text(item, "/status/reason")),
            json!(aged),
            json!(or(text(item, "/spec/volumeMode"), UNSET)),
        ],
        ("", "PersistentVolumeClaim") => vec![
            json!(name),
            json!(phase(item)),
            json!(text(item, "/spec/volumeName")),
            json!(text(item, "/status/capacity/storage")),
            json!(if text(item, "/spec/volumeName").is_empty() { String::new() } else { access_modes(item) }),
            json!(text(item, "/spec/storageClassName")),
            json!(or(text(item, "/spec/volumeAttributesClassName"), UNSET)),
            json!(aged),
            json!(or(text(item, "/spec/volumeMode"), UNSET)),
        ],
        ("apps", "Deployment") => {
            let ready =
                format!("{}/{}", number(item, "/status/readyReplicas"), number(item, "/spec/replicas"));
            let mut cells = vec![
                json!(name),
                json!(ready),
                json!(number(item, "/status/updatedReplicas")),
                json!(number(item, "/status/availableReplicas")),
                json!(aged),
            ];
            cells.extend(of_template(item, true));
            cells
        }
        ("apps", "ReplicaSet") => {
            let mut cells = vec![
                json!(name),
                json!(number(item, "/spec/replicas")),
                json!(number(item, "/status/replicas")),
                json!(number(item, "/status/readyReplicas")),
                json!(aged),
            ];
            cells.extend(of_template(item, true));
            cells
        }
        ("apps", "StatefulSet") => {
            let ready =
                format!("{}/{}", number(item, "/status/readyReplicas"), number(item, "/spec/replicas"));
            let mut cells = vec![json!(name), json!(ready), json!(aged)];
            cells.extend(of_template(item, false));
            cells
        }
        ("apps", "DaemonSet") => {
            let mut cells = vec![json!(name)];
            cells.extend(
                [
                    "desiredNumberScheduled",
                    "currentNumberScheduled",
                    "numberReady",
                    "updatedNumberScheduled",
                    "numberAvailable",
                ]
                .iter()
                .map(|key| json!(number(item, &format!("/status/{key}")))),
            );
            cells.push(json!(pairs(item.pointer("/spec/template/spec/nodeSelector"))));
            cells.push(json!(aged));
            cells.extend(of_template(item, true));
            cells
        }
        ("batch", "Job") => job(item, &aged, now),
        ("policy", "PodDisruptionBudget") => {
            let limit = |key: &str| match item.pointer(&format!("/spec/{key}")) {
                Some(Value::String(text)) => text.clone(),
                Some(number) => number.to_string(),
                None => "N/A".to_owned(),
            };
            vec![
                json!(name),
                json!(limit("minAvailable")),
                json!(limit("maxUnavailable")),
                json!(number(item, "/status/disruptionsAllowed")),
                json!(aged),
            ]
        }
        ("coordination.k8s.io", "Lease") => {
            vec![json!(name), json!(text(item, "/spec/holderIdentity")), json!(aged)]
        }
        ("storage.k8s.io", "VolumeAttachment") => vec![
            json!(name),
            json!(text(item, "/spec/attacher")),
            json!(text(item, "/spec/source/persistentVolumeName")),
            json!(text(item, "/spec/nodeName")),
            json!(item.pointer("/status/attached") == Some(&json!(true))),
            json!(aged),
        ],
        ("storage.k8s.io", "StorageClass") => {
            let is_default = item
                .pointer("/metadata/annotations/storageclass.kubernetes.io~1is-default-class")
                == Some(&json!("true"));
            let shown = if is_default { format!("{name} (default)") } else { name.to_owned() };
            vec![
                json!(shown),
                json!(text(item, "/provisioner")),
                json!(text(item, "/reclaimPolicy")),
                json!(text(item, "/volumeBindingMode")),
                json!(item.get("allowVolumeExpansion") == Some(&json!(true))),
                json!(aged),
            ]
        }
        ("scheduling.k8s.io", "PriorityClass") => vec![
            json!(name),
            json!(number(item, "/value")),
            json!(item.get("globalDefault") == Some(&json!(true))),
            json!(aged),
            json!(text(item, "/preemptionPolicy")),
        ],
        _ => vec![json!(name), json!(text(item, "/metadata/creationTimestamp"))],
    }
}

fn entries(item: &Value, key: &str) -> usize {
    item.get(key).and_then(Value::as_object).map_or(0, serde_json::Map::len)
}

fn phase(item: &Value) -> &str {
    if object::is_terminating(item) { "Terminating" } else { text(item, "/status/phase") }
}

fn claim_of(item: &Value) -> String {
    match item.pointer("/spec/claimRef") {
        Some(claim) => format!("{}/{}", text(claim, "/namespace"), text(claim, "/name")),
        None => String::new(),
    }
}

fn access_modes(item: &Value) -> String {
    let short = |mode: &str| match mode {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        "ReadWriteOncePod" => "RWOP",
        _ => "",
    };
    let modes = object::strings(item, "/spec/accessModes");
    modes.iter().map(|mode| short(mode)).collect::<Vec<_>>().join(",")
}

fn pairs(map: Option<&Value>) -> String {
    let shown: Vec<String> = map
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")))
        .collect();
    or(&shown.join(","), NONE).to_owned()
}

fn of_template(item: &Value, with_selector: bool) -> Vec<Value> {
    let containers = object::list(item, "/spec/template/spec/containers");
    let join =
        |key: &str| containers.iter().map(|container| text(container, key)).collect::<Vec<_>>().join(",");
    let mut cells = vec![json!(join("/name")), json!(join("/image"))];
    if with_selector {
        cells.push(json!(pairs(item.pointer("/spec/selector/matchLabels"))));
    }
    cells
}

fn service(item: &Value, aged: &str) -> Vec<Value> {
    let ports: Vec<String> = object::list(item, "/spec/ports")
        .iter()
        .map(|port| {
            let node_port = number(port, "/nodePort");
            let shown = number(port, "/port");
            let protocol = text(port, "/protocol");
            if node_port > 0 {
                format!("{shown}:{node_port}/{protocol}")
            } else {
                format!("{shown}/{protocol}")
            }
        })
        .collect();
    vec![
        json!(object::name(item)),
        json!(text(item, "/spec/type")),
        json!(or(text(item, "/spec/clusterIP"), NONE)),
        json!(or(text(item, "/spec/externalName"), NONE)),
        json!(or(&ports.join(","), NONE)),
        json!(aged),
        json!(pairs(item.pointer("/spec/selector"))),
    ]
}

fn node(item: &Value, aged: &str) -> Vec<Value> {
    let ready = object::list(item, "/status/conditions")
        .iter()
        .find(|condition| text(condition, "/type") == "Ready")
        .map(|condition| text(condition, "/status"));
    let mut status = match ready {
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if item.pointer("/spec/unschedulable") == Some(&json!(true)) {
        status.push_str(",SchedulingDisabled");
    }
    let roles: Vec<&str> = item
        .pointer("/metadata/labels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) if !role.is_empty() => Some(role),
            _ => (key == "kubernetes.io/role").then(|| value.as_str().unwrap_or("")),
        })
        .collect();
    let address = |kind: &str| {
        object::list(item, "/status/addresses")
            .iter()
            .find(|address| text(address, "/type") == kind)
            .map_or(NONE, |address| text(address, "/address"))
    };
    vec![
        json!(object::name(item)),
        json!(status),
        json!(or(&roles.join(","), NONE)),
        json!(aged),
        json!(text(item, "/status/nodeInfo/kubeletVersion")),
        json!(address("InternalIP")),
        json!(address("ExternalIP")),
        json!(or(text(item, "/status/nodeInfo/osImage"), UNKNOWN)),
        json!(or(text(item, "/status/nodeInfo/kernelVersion"), UNKNOWN)),
        json!(or(text(item, "/status/nodeInfo/containerRuntimeVersion"), UNKNOWN)),
    ]
}

fn pod(item: &Value, now: Timestamp) -> Vec<Value> {
    let statuses = object::list(item, "/status/containerStatuses");
    let ready = statuses
        .iter()
        .filter(|status| {
            status.get("ready") == Some(&json!(true)) && status.pointer("/state/running").is_some()
        })
        .count();
    let restarts: i64 = statuses.iter().map(|status| number(status, "/restartCount")).sum();
    let gates = object::list(item, "/spec/readinessGates");
    let open = gates
        .iter()
        .filter(|gate| {
            object::list(item, "/status/conditions").iter().any(|condition| {
                text(condition, "/type") == text(gate, "/conditionType")
                    && text(condition, "/status") == "True"
            })
        })
        .count();
    let gates = if gates.is_empty() { NONE.to_owned() } else { format!("{open}/{}", gates.len()) };
    vec![
        json!(object::name(item)),
        json!(format!("{ready}/{}", object::list(item, "/spec/containers").len())),
        json!(pod_reason(item)),
        json!(restarts.to_string()),
        json!(age(item, "/metadata/creationTimestamp", now)),
        json!(or(text(item, "/status/podIP"), NONE)),
        json!(or(text(item, "/spec/nodeName"), NONE)),
        json!(or(text(item, "/status/nominatedNodeName"), NONE)),
        json!(gates),
    ]
}

fn pod_reason(item: &Value) -> String {
    let mut reason = text(item, "/status/phase").to_owned();
    let stated = text(item, "/status/reason");
    if !stated.is_empty() {
        reason = stated.to_owned();
    }
    let gated = object::list(item, "/status/conditions").iter().any(|condition| {
        text(condition, "/type") == "PodScheduled" && text(condition, "/reason") == "SchedulingGated"
    });
    if gated {
        reason = "SchedulingGated".to_owned();
    }
    let mut any_running = false;
    for status in object::list(item, "/status/containerStatuses").iter().rev() {
        let waiting = text(status, "/state/waiting/reason");
        let ended = text(status, "/state/terminated/reason");
        if !waiting.is_empty() {
            reason = waiting.to_owned();
        } else if !ended.is_empty() {
            reason = ended.to_owned();
        } else if status.pointer("/state/terminated").is_some() {
            let signal = number(status, "/state/terminated/signal");
            reason = if signal != 0 {
                format!("Signal:{signal}")
            } else {
                format!("ExitCode:{}", number(status, "/state/terminated/exitCode"))
            };
        } else if status.get("ready") == Some(&json!(true)) && status.pointer("/state/running").is_some() {
            any_running = true;
        }
    }
    if reason == "Completed" && any_running {
        let is_ready = object::list(item, "/status/conditions")
            .iter()
            .any(|condition| text(condition, "/type") == "Ready" && text(condition, "/status") == "True");
        reason = if is_ready { "Running" } else { "NotReady" }.to_owned();
    }
    if object::is_terminating(item) {
        let is_over = ["Failed", "Succeeded"].contains(&text(item, "/status/phase"));
        if text(item, "/status/reason") == "NodeLost" {
            reason = "Unknown".to_owned();
        } else if !is_over {
            reason = "Terminating".to_owned();
        }
    }
    reason
}

fn event(item: &Value, now: Timestamp) -> Vec<Value> {
    let first = age_or(item, &["/firstTimestamp", "/eventTime"], now);
    let last =
        age_or(item, &["/series/lastObservedTime", "/lastTimestamp", "/firstTimestamp", "/eventTime"], now);
    let about = |key: &str| text(item, &format!("/involvedObject/{key}"));
    let object = format!("{}/{}", about("kind").to_lowercase(), about("name"));
    let component = or(text(item, "/source/component"), text(item, "/reportingComponent"));
    let host = text(item, "/source/host");
    let source = if host.is_empty() { component.to_owned() } else { format!("{component}, {host}") };
    let count = match (number(item, "/series/count"), number(item, "/count")) {
        (0, 0) => 1,
        (0, count) => count,
        (series, _) => series,
    };
    vec![
        json!(last),
        json!(text(item, "/type")),
        json!(text(item, "/reason")),
        json!(object),
        json!(about("fieldPath")),
        json!(source),
        json!(text(item, "/message").trim()),
        json!(first),
        json!(count),
        json!(object::name(item)),
    ]
}

fn age_or(item: &Value, pointers: &[&str], now: Timestamp) -> String {
    let found = pointers.iter().find(|pointer| !text(item, pointer).is_empty());
    found.map_or_else(|| UNKNOWN.to_owned(), |pointer| age(item, pointer, now))
}

fn job(item: &Value, aged: &str, now: Timestamp) -> Vec<Value> {
    let succeeded = number(item, "/status/succeeded");
    let completions = match item.pointer("/spec/completions").and_then(Value::as_i64) {
        Some(wanted) => format!("{succeeded}/{wanted}"),
        None => match number(item, "/spec/parallelism") {
            parallelism @ 2.. => format!("{succeeded}/1 of {parallelism}"),
            _ => format!("{succeeded}/1"),
        },
    };
    let holds = |kind: &str| {
        object::list(item, "/status/conditions")
            .iter()
            .any(|condition| text(condition, "/type") == kind && text(condition, "/status") == "True")
    };
    let status = if holds("Complete") {
        "Complete"
    } else if holds("Failed") {
        "Failed"
    } else if object::is_terminating(item) {
        "Terminating"
    } else if holds("Suspended") {
        "Suspended"
    } else if holds("FailureTarget") {
        "FailureTarget"
    } else if holds("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    };
    let started = text(item, "/status/startTime").parse::<Timestamp>();
    let ended = text(item, "/status/completionTime").parse::<Timestamp>().unwrap_or(now);
    let duration = started.map_or(String::new(), |started| human(ended.duration_since(started)));
    let mut cells =
        vec![json!(object::name(item)), json!(status), json!(completions), json!(duration), json!(aged)];
    cells.extend(of_template(item, true));
    cells
}

/// The cells that a definition asks for, by its simple JSON paths.
fn custom_cells(resource: &Resource, item: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = vec![json!(object::name(item))];
    if resource.columns.is_empty() {
        cells.push(json!(text(item, "/metadata/creationTimestamp")));
        return cells;
    }
    for column in &resource.columns {
        let found = at_path(item, &column.path);
        let cell = match (column.kind.as_str(), found) {
            (_, None) => Value::Null,
            ("date", Some(Value::String(time))) => match time.parse::<Timestamp>() {
                Ok(then) => json!(human(now.duration_since(then))),
                Err(_) => json!(UNKNOWN),
            },
            ("string", Some(Value::String(text))) => json!(text),
            ("string", Some(other)) => json!(other.to_string()),
            (_, Some(other)) => other.clone(),
        };
        cells.push(cell);
    }
    cells
}

/// Follows `.a.b[0]` and `.a[?(@.type=="Ready")].b`, which are the paths that definitions use.
fn at_path<'v>(item: &'v Value, path: &str) -> Option<&'v Value> {
    let mut place = item;
    let mut rest = path.trim_start_matches('.');
    while !rest.is_empty() {
        if let Some(filter) = rest.strip_prefix("[?(@.") {
            let (condition, after) = filter.split_once(")]")?;
            let (key, wanted) = condition.split_once("==")?;
            let wanted = wanted.trim().trim_matches(['"', '\'']);
            let key = key.trim();
            place = place
                .as_array()?
                .iter()
                .find(|element| object::text(element, &format!("/{key}")) == wanted)?;
            rest = after.trim_start_matches('.');
        } else if let Some(index) = rest.strip_prefix('[') {
            let (index, after) = index.split_once(']')?;
            place = match index.parse::<usize>() {
                Ok(index) => place.get(index)?,
                Err(_) => place.get(index.trim_matches(['"', '\'']))?,
            };
            rest = after.trim_start_matches('.');
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let (key, after) = rest.split_at(end);
            place = place.get(key)?;
            rest = after.strip_prefix('.').unwrap_or(after);
        }
    }
    Some(place)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use serde_json::json;

    use super::{at_path, human};

    #[test]
    fn durations_read_as_in_kubectl() {
        for (seconds, expected) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (130, "2m10s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (12_000, "3h20m"),
            (100_000, "27h"),
            (200_000, "2d7h"),
            (864_000, "10d"),
            (100_000_000, "3y62d"),
        ] {
            assert_eq!(human(SignedDuration::from_secs(seconds)), expected, "{seconds}");
        }
    }

    #[test]
    fn paths_of_printer_columns_are_followed() {
        let item = json!({"a": {"b": [{"type": "X", "v": 1}, {"type": "Ready", "v": 2}], "c.d": 3}});
        assert_eq!(at_path(&item, ".a.b[0].v"), Some(&json!(1)));
        assert_eq!(at_path(&item, ".a.b[?(@.type==\"Ready\")].v"), Some(&json!(2)));
        assert_eq!(at_path(&item, ".a['c.d']"), Some(&json!(3)));
        assert_eq!(at_path(&item, ".a.none"), None);
    }
}
