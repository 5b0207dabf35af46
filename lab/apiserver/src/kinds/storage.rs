//! The kinds of `storage.k8s.io`.

use serde_json::{Value, json};

use super::table::Subresource::Status;
use super::validation::{self, IMMUTABLE, Style, immutable, immutable_unshown, immutable_with};
use super::{ALL_METADATA, CheckUpdate, Kind, NewStatus, clustered, defaults, namespaced, prepare};
use crate::object;
use crate::protocol::printing::{AGE, NAME, NONE, Row, UNSET, count, flag, made, text};
use crate::protocol::status::Cause;

const GROUP: &str = "storage.k8s.io";

pub(super) const KINDS: &[Kind] = &[
    Kind {
        unconditional_update: false,
        returns_deleted: true,
        columns: &[
            NAME,
            flag("AttachRequired", "/spec/attachRequired"),
            flag("PodInfoOnMount", "/spec/podInfoOnMount"),
            flag("StorageCapacity", "/spec/storageCapacity"),
            made("TokenRequests", |row| json!(audiences(row))),
            flag("RequiresRepublish", "/spec/requiresRepublish"),
            made("Modes", |row| {
                let modes = object::strings(row.item, "/spec/volumeLifecycleModes").join(",");
                if modes.is_empty() { json!(NONE) } else { json!(modes) }
            }),
            AGE,
        ],
        defaults: defaults::csi_driver,
        check_update: CheckUpdate::Also(csi_driver_update),
        ..clustered(GROUP, "CSIDriver", "csidrivers")
    },
    Kind {
        subresources: &[Status],
        unconditional_update: false,
        returns_deleted: true,
        columns: &[NAME, count("Drivers", "/spec/drivers"), AGE],
        status_keeps: ALL_METADATA,
        ..clustered(GROUP, "CSINode", "csinodes")
    },
    Kind {
        unconditional_update: false,
        check: |capacity| validation::required(capacity, &["storageClassName"]),
        check_update: CheckUpdate::Also(|current, new| {
            immutable(current, new, &["nodeTopology", "storageClassName"])
        }),
        ..namespaced(GROUP, "CSIStorageCapacity", "csistoragecapacities")
    },
    Kind {
        short_names: &["sc"],
        returns_deleted: true,
        columns: &[
            made("Name", |row| json!(class_name(row))).formatted("name"),
            text("Provisioner", "/provisioner"),
            text("ReclaimPolicy", "/reclaimPolicy"),
            text("VolumeBindingMode", "/volumeBindingMode"),
            flag("AllowVolumeExpansion", "/allowVolumeExpansion").declared("string"),
            AGE,
        ],
        defaults: defaults::storage_class,
        check: |class| validation::required(class, &["provisioner"]),
        check_update: CheckUpdate::Also(|current, new| {
            let fields = ["provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"];
            immutable_unshown(current, new, &fields)
        }),
        ..clustered(GROUP, "StorageClass", "storageclasses")
    },
    Kind {
        subresources: &[Status],
        unconditional_update: false,
        returns_deleted: true,
        columns: &[
            NAME,
            text("Attacher", "/spec/attacher").formatted("name"),
            text("PV", "/spec/source/persistentVolumeName"),
            text("Node", "/spec/nodeName"),
            flag("Attached", "/status/attached"),
            AGE,
        ],
        new_status: NewStatus::As(|| json!({ "attached": false })),
        status_keeps: ALL_METADATA,
        check: |attachment| validation::required(attachment, &["spec.attacher", "spec.nodeName"]),
        check_update: CheckUpdate::Also(|current, new| immutable_unshown(current, new, &["spec"])),
        ..clustered(GROUP, "VolumeAttachment", "volumeattachments")
    },
    Kind {
        short_names: &["vac"],
        returns_deleted: true,
        columns: &[NAME, text("DriverName", "/driverName"), AGE],
        on_create: |class, _| prepare::add_finalizer(class, "kubernetes.io/vac-protection"),
        check: |class| validation::required(class, &["driverName"]),
        check_update: CheckUpdate::Also(|current, new| {
            immutable_with(
                current,
                new,
                &["driverName", "parameters"],
                &Style::Forbidden("updates to {} are forbidden."),
            )
        }),
        ..clustered(GROUP, "VolumeAttributesClass", "volumeattributesclasses")
    },
];

fn csi_driver_update(current: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = immutable_unshown(current, new, &["spec.volumeLifecycleModes"]);
    let wanted = |driver: &Value| object::at(driver, "/spec/attachRequired").cloned();
    if wanted(current) != wanted(new) {
        // The real server spells it like this.
        let shown = wanted(new).unwrap_or(Value::Null);
        causes.insert(0, Cause::invalid("spec.attachedRequired", &shown, IMMUTABLE));
    }
    causes
}

/// In a list, the default class is marked: the newest of those with the annotation.
fn class_name(row: &Row<'_>) -> String {
    let name = object::name(row.item);
    let is_default = |class: &&&Value| {
        let annotations = object::at(class, "/metadata/annotations");
        ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"]
            .iter()
            .any(|key| annotations.and_then(|all| all.get(key)) == Some(&json!("true")))
    };
    let newest = row.all.iter().filter(is_default).min_by_key(|class| {
        let created = object::text(class, "/metadata/creationTimestamp").to_owned();
        (std::cmp::Reverse(created), object::name(class).to_owned())
    });
    match newest {
        Some(class) if object::name(class) == name => format!("{name} (default)"),
        _ => name.to_owned(),
    }
}

fn audiences(row: &Row<'_>) -> String {
    row.at("/spec/tokenRequests").map_or_else(
        || UNSET.to_owned(),
        |_| {
            let requests = row.list("/spec/tokenRequests").iter();
            requests.map(|request| object::text(request, "/audience")).collect::<Vec<_>>().join(",")
        },
    )
}
