//! Kinds that create pods, and kinds that limit their number.

use serde_json::{Value, json};

use super::table::Generation;
use super::table::Subresource::{Scale, Status};
use super::{ALL, CheckUpdate, Kind, NewStatus, defaults, job, job_status, namespaced, prepare, validation};
use crate::object;
use crate::protocol::printing::{
    AGE, Column, NAME, NONE, Row, UNKNOWN, UNSET, count, human, integer, made, number, pairs, text, text_or,
};
use crate::protocol::status::Cause;
use crate::store::selectors;

pub(super) const KINDS: &[Kind] = &[
    Kind {
        columns: &[
            NAME,
            made("Controller", |row| json!(controller(row))),
            number("Revision", "/revision").declared("string"),
            AGE,
        ],
        check: |revision| match revision.get("data") {
            None | Some(Value::Null) => vec![Cause::required("data", "data is mandatory")],
            Some(_) => Vec::new(),
        },
        ..namespaced("apps", "ControllerRevision", "controllerrevisions")
    },
    Kind {
        short_names: &["ds"],
        categories: ALL,
        subresources: &[Status],
        generation: Generation::SPEC,
        columns: &[
            NAME,
            number("Desired", "/status/desiredNumberScheduled"),
            number("Current", "/status/currentNumberScheduled"),
            number("Ready", "/status/numberReady"),
            number("Up-to-date", "/status/updatedNumberScheduled"),
            number("Available", "/status/numberAvailable"),
            made("Node Selector", |row| json!(pairs(row.at("/spec/template/spec/nodeSelector")))),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        defaults: defaults::daemon_set,
        new_status: NewStatus::As(|| {
            json!({
                "currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0,
                "numberReady": 0,
            })
        }),
        on_create: prepare::daemon_set,
        check: |set| validation::workload(set, false),
        check_update: CheckUpdate::Also(same_selector),
        ..namespaced("apps", "DaemonSet", "daemonsets")
    },
    Kind {
        short_names: &["deploy"],
        categories: ALL,
        subresources: &[Scale, Status],
        generation: Generation::Of(&["/spec", "/metadata/annotations"]),
        columns: &[
            NAME,
            READY,
            number("Up-to-date", "/status/updatedReplicas").declared("string"),
            number("Available", "/status/availableReplicas").declared("string"),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        defaults: defaults::deployment,
        status_keeps: &["labels"],
        check: validation::deployment,
        check_update: CheckUpdate::Also(same_selector),
        ..namespaced("apps", "Deployment", "deployments")
    },
    Kind {
        short_names: &["rs"],
        categories: ALL,
        subresources: &[Scale, Status],
        generation: Generation::SPEC,
        columns: &[
            NAME,
            number("Desired", "/spec/replicas"),
            number("Current", "/status/replicas"),
            number("Ready", "/status/readyReplicas"),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        defaults: defaults::replicated,
        new_status: NewStatus::As(|| json!({ "replicas": 0 })),
        check: |set| validation::workload(set, true),
        check_update: CheckUpdate::Also(same_selector),
        ..namespaced("apps", "ReplicaSet", "replicasets")
    },
    Kind {
        short_names: &["sts"],
        categories: ALL,
        subresources: &[Scale, Status],
        generation: Generation::SPEC,
        columns: &[NAME, READY, AGE, CONTAINERS, IMAGES],
        defaults: defaults::stateful_set,
        new_status: NewStatus::As(|| json!({ "replicas": 0, "availableReplicas": 0 })),
        check: validation::stateful_set,
        check_update: CheckUpdate::Also(validation::stateful_set_update),
        ..namespaced("apps", "StatefulSet", "statefulsets")
    },
    Kind {
        version: "v2",
        short_names: &["hpa"],
        categories: ALL,
        subresources: &[Status],
        generation: Generation::SPEC,
        columns: &[
            NAME,
            made("Reference", |row| {
                let target = |key: &str| row.text(&format!("/spec/scaleTargetRef/{key}"));
                json!(format!("{}/{}", target("kind"), target("name")))
            }),
            made("Targets", |row| json!(targets(row))),
            made("MinPods", |row| json!(least(row))),
            number("MaxPods", "/spec/maxReplicas").declared("string"),
            number("Replicas", "/status/currentReplicas").declared("string"),
            AGE,
        ],
        defaults: defaults::autoscaler,
        new_status: NewStatus::As(|| json!({ "desiredReplicas": 0 })),
        ..namespaced("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
    },
    Kind {
        short_names: &["cj"],
        categories: ALL,
        subresources: &[Status],
        generation: Generation::SPEC,
        columns: &[
            NAME,
            text("Schedule", "/spec/schedule"),
            text_or("Timezone", "/spec/timeZone", NONE),
            made("Suspend", |row| json!(suspended(row))).declared("boolean"),
            count("Active", "/status/active"),
            made("Last Schedule", |row| match row.at("/status/lastScheduleTime") {
                Some(_) => json!(row.age("/status/lastScheduleTime")),
                None => json!(NONE),
            }),
            AGE,
            made("Containers", |row| json!(containers(row, "/spec/jobTemplate/spec/template"))).wide(),
            made("Images", |row| json!(images(row, "/spec/jobTemplate/spec/template"))).wide(),
            made("Selector", |row| json!(selector(row.at("/spec/jobTemplate/spec/selector")))).wide(),
        ],
        defaults: defaults::cron_job,
        ..namespaced("batch", "CronJob", "cronjobs")
    },
    Kind {
        categories: ALL,
        subresources: &[Status],
        generation: Generation::SPEC,
        orphans: true,
        selectable: &[("status.successful", "/status/succeeded")],
        unknown_field: "field label \"{}\" not supported for Job",
        columns: &[
            NAME,
            made("Status", |row| json!(job_state(row))),
            made("Completions", |row| json!(completions(row))),
            made("Duration", |row| json!(job_duration(row))),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        defaults: defaults::job,
        on_create: |job, _| prepare::generate_selector(job),
        check: job::create,
        check_update: CheckUpdate::Only(job::update),
        check_status: job_status::update,
        warnings: job::warnings,
        ..namespaced("batch", "Job", "jobs")
    },
    Kind {
        short_names: &["pdb"],
        subresources: &[Status],
        generation: Generation::SPEC,
        unconditional_update: false,
        columns: &[
            NAME,
            made("Min Available", |row| json!(limit(row, "/spec/minAvailable"))),
            made("Max Unavailable", |row| json!(limit(row, "/spec/maxUnavailable"))),
            number("Allowed Disruptions", "/status/disruptionsAllowed"),
            AGE,
        ],
        new_status: NewStatus::As(
            || json!({ "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0 }),
        ),
        check: validation::budget,
        check_status: validation::budget_status_update,
        ..namespaced("policy", "PodDisruptionBudget", "poddisruptionbudgets")
    },
];

const READY: Column = made("Ready", |row| {
    json!(format!("{}/{}", row.number("/status/readyReplicas"), row.number("/spec/replicas")))
});

pub(super) const CONTAINERS: Column =
    made("Containers", |row| json!(containers(row, "/spec/template"))).wide();

pub(super) const IMAGES: Column = made("Images", |row| json!(images(row, "/spec/template"))).wide();

const SELECTOR: Column = made("Selector", |row| json!(selector(row.at("/spec/selector")))).wide();

fn same_selector(current: &Value, new: &Value) -> Vec<Cause> {
    validation::immutable(current, new, &["spec.selector"])
}

pub(super) fn containers(row: &Row<'_>, template: &str) -> String {
    of_containers(row, template, "/name")
}

pub(super) fn images(row: &Row<'_>, template: &str) -> String {
    of_containers(row, template, "/image")
}

fn of_containers(row: &Row<'_>, template: &str, pointer: &str) -> String {
    let containers = row.list(&format!("{template}/spec/containers")).iter();
    containers.map(|container| object::text(container, pointer)).collect::<Vec<_>>().join(",")
}

pub(super) fn selector(selector: Option<&Value>) -> String {
    let shown = selector.map(selectors::shown).unwrap_or_default();
    if shown.is_empty() { NONE.to_owned() } else { shown }
}

fn controller(row: &Row<'_>) -> String {
    let owners = row.list("/metadata/ownerReferences").iter();
    let controller = owners.into_iter().find(|owner| owner.get("controller") == Some(&json!(true)));
    controller.map_or_else(
        || NONE.to_owned(),
        |owner| {
            let kind = object::text(owner, "/kind");
            let group = object::text(owner, "/apiVersion").split_once('/').map(|(group, _)| group);
            let kind = group.map_or_else(|| kind.to_owned(), |group| format!("{kind}.{group}"));
            format!("{}/{}", kind.to_lowercase(), object::text(owner, "/name"))
        },
    )
}

fn suspended(row: &Row<'_>) -> &'static str {
    match row.at("/spec/suspend").and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => UNSET,
    }
}

fn limit(row: &Row<'_>, pointer: &str) -> String {
    match row.at(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(number) => number.to_string(),
        None => "N/A".to_owned(),
    }
}

fn completions(row: &Row<'_>) -> String {
    let succeeded = row.number("/status/succeeded");
    match (row.at("/spec/completions").and_then(Value::as_i64), row.number("/spec/parallelism")) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallelism @ 2..) => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    }
}

fn job_state(row: &Row<'_>) -> &'static str {
    let holds = |kind: &str| row.condition(kind) == Some("True");
    if holds("Complete") {
        "Complete"
    } else if holds("Failed") {
        "Failed"
    } else if object::is_terminating(row.item) {
        "Terminating"
    } else if holds("Suspended") {
        "Suspended"
    } else if holds("FailureTarget") {
        "FailureTarget"
    } else if holds("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn job_duration(row: &Row<'_>) -> String {
    let time = |pointer: &str| row.text(pointer).parse::<jiff::Timestamp>();
    let ended = time("/status/completionTime").unwrap_or(row.now);
    time("/status/startTime").map_or_else(|_| String::new(), |started| human(ended.duration_since(started)))
}

fn least(row: &Row<'_>) -> String {
    row.at("/spec/minReplicas").map_or_else(|| UNSET.to_owned(), Value::to_string)
}

/// The target and the present value of an autoscaler: at most two metrics.
fn targets(row: &Row<'_>) -> String {
    const SHOWN: usize = 2;
    let metrics = row.list("/spec/metrics");
    if metrics.is_empty() {
        return NONE.to_owned();
    }
    let present = row.list("/status/currentMetrics");
    let all: Vec<String> = metrics
        .iter()
        .enumerate()
        .map(|(index, metric)| target(metric, present.get(index).unwrap_or(&Value::Null)))
        .collect();
    let first = all[..all.len().min(SHOWN)].join(", ");
    match all.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{first} + {more} more..."),
        _ => first,
    }
}

fn target(metric: &Value, present: &Value) -> String {
    let (field, is_named) = match object::text(metric, "/type") {
        "External" => ("external", false),
        "Pods" => ("pods", false),
        "Object" => ("object", false),
        "Resource" => ("resource", true),
        "ContainerResource" => ("containerResource", true),
        _ => return "<unknown type>".to_owned(),
    };
    let wanted = |key: &str| object::text(metric, &format!("/{field}/target/{key}"));
    let found = |key: &str| {
        let found = object::text(present, &format!("/{field}/current/{key}"));
        if found.is_empty() { UNKNOWN } else { found }
    };
    let percent = |value: &Value, side: &str| {
        let pointer = format!("/{field}/{side}/averageUtilization");
        object::at(value, &pointer).map(|_| format!("{}%", integer(value, &pointer)))
    };
    let has_average = !wanted("averageValue").is_empty();
    if is_named {
        let name = object::text(metric, &format!("/{field}/name"));
        if has_average {
            return format!("{name}: {}/{}", found("averageValue"), wanted("averageValue"));
        }
        let current = percent(present, "current").unwrap_or_else(|| UNKNOWN.to_owned());
        let target = percent(metric, "target").unwrap_or_else(|| "<auto>".to_owned());
        return format!("{name}: {current}/{target}");
    }
    match (field, has_average) {
        ("pods", _) => format!("{}/{}", found("averageValue"), wanted("averageValue")),
        (_, true) => format!("{}/{} (avg)", found("averageValue"), wanted("averageValue")),
        (_, false) => format!("{}/{}", found("value"), wanted("value")),
    }
}
