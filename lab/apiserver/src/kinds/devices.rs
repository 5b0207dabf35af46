//! The kinds of `resource.k8s.io`: devices, their allocations, and claims for them.

use serde_json::{Value, json};

use super::table::Generation;
use super::table::Subresource::Status;
use super::validation::{immutable, immutable_unshown};
use super::{ALL_METADATA, CheckUpdate, Kind, clustered, defaults, namespaced, prepare};
use crate::object;
use crate::protocol::printing::{AGE, NAME, Row, made, text};

const GROUP: &str = "resource.k8s.io";

pub(super) const KINDS: &[Kind] = &[
    Kind {
        generation: Generation::SPEC,
        returns_deleted: true,
        columns: &[NAME, AGE],
        ..clustered(GROUP, "DeviceClass", "deviceclasses")
    },
    Kind {
        subresources: &[Status],
        generation: Generation::SPEC,
        unconditional_update: false,
        columns: &[
            NAME,
            text("Key", "/spec/taint/key"),
            text("Value", "/spec/taint/value"),
            text("Effect", "/spec/taint/effect"),
            made("TimeAdded", |row| match row.at("/spec/taint/timeAdded") {
                Some(_) => json!(row.age("/spec/taint/timeAdded")),
                None => json!(""),
            }),
            AGE,
        ],
        on_create: |rule, environment| prepare::device_taint(rule, environment.now),
        on_update: prepare::device_taint_update,
        status_keeps: ALL_METADATA,
        ..clustered(GROUP, "DeviceTaintRule", "devicetaintrules")
    },
    Kind {
        subresources: &[Status],
        returns_deleted: true,
        columns: &[NAME, made("State", |row| json!(claim_state(row))), AGE],
        defaults: |claim| defaults::device_requests(claim, "/spec"),
        status_keeps: ALL_METADATA,
        check_update: CheckUpdate::Also(|current, new| immutable_unshown(current, new, &["spec"])),
        ..namespaced(GROUP, "ResourceClaim", "resourceclaims")
    },
    Kind {
        returns_deleted: true,
        columns: &[NAME, AGE],
        defaults: |template| defaults::device_requests(template, "/spec/spec"),
        check_update: CheckUpdate::Also(|current, new| immutable(current, new, &["spec"])),
        ..namespaced(GROUP, "ResourceClaimTemplate", "resourceclaimtemplates")
    },
    Kind {
        generation: Generation::SPEC,
        returns_deleted: true,
        selectable: &[
            ("spec.nodeName", "/spec/nodeName"),
            ("spec.driver", "/spec/driver"),
            ("spec.pool.name", "/spec/pool/name"),
        ],
        unknown_field: "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: {}",
        columns: &[
            NAME,
            text("Node", "/spec/nodeName"),
            text("Driver", "/spec/driver"),
            text("Pool", "/spec/pool/name"),
            AGE,
        ],
        on_create: |slice, environment| prepare::slice_taints(slice, environment.now),
        on_update: |_, slice, now| prepare::slice_taints(slice, now),
        check_update: CheckUpdate::Also(|current, new| {
            immutable(current, new, &["spec.pool.name", "spec.driver", "spec.nodeName"])
        }),
        ..clustered(GROUP, "ResourceSlice", "resourceslices")
    },
];

fn claim_state(row: &Row<'_>) -> String {
    let is_allocated = row.at("/status/allocation").is_some_and(Value::is_object);
    let mut states = Vec::new();
    match (object::is_terminating(row.item), is_allocated) {
        (true, true) => states.extend(["deleted", "allocated"]),
        (true, false) => states.push("deleted"),
        (false, true) => states.push("allocated"),
        (false, false) => states.push("pending"),
    }
    if is_allocated && !row.list("/status/reservedFor").is_empty() {
        states.push("reserved");
    }
    states.join(",")
}
