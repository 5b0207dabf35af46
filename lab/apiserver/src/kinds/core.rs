//! The kinds of the core group, and the events of both groups.

use serde_json::{Value, json};

use super::table::Generation;
use super::table::Subresource::{
    Binding, EphemeralContainers, Eviction, Finalize, Log, Resize, Scale, Status,
};
use super::{ALL, CheckUpdate, Kind, Names, NewStatus, clustered, defaults, namespaced, pod, prepare};
use super::{pod_status, validation, workloads};
use crate::object;
use crate::protocol::printing::{
    AGE, Column, NAME, NONE, Row, UNKNOWN, UNSET, first_of, integer, made, number, or, pairs, since, text,
    text_or,
};

pub(super) const KINDS: &[Kind] = &[
    Kind {
        short_names: &["cm"],
        columns: &[NAME, made("Data", |row| json!(entries(row, "/data") + entries(row, "/binaryData"))), AGE],
        check: validation::config_map,
        check_update: CheckUpdate::Also(validation::frozen),
        ..namespaced("", "ConfigMap", "configmaps")
    },
    Kind {
        short_names: &["ep"],
        kept_at: Some("services/endpoints"),
        create_on_update: true,
        deprecated: Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
        columns: &[NAME, made("Endpoints", |row| json!(endpoints(row))), AGE],
        defaults: defaults::endpoints,
        ..namespaced("", "Endpoints", "endpoints")
    },
    Kind {
        short_names: &["ev"],
        create_on_update: true,
        selectable: &[
            ("involvedObject.kind", "/involvedObject/kind"),
            ("involvedObject.namespace", "/involvedObject/namespace"),
            ("involvedObject.name", "/involvedObject/name"),
            ("involvedObject.uid", "/involvedObject/uid"),
            ("involvedObject.apiVersion", "/involvedObject/apiVersion"),
            ("involvedObject.resourceVersion", "/involvedObject/resourceVersion"),
            ("involvedObject.fieldPath", "/involvedObject/fieldPath"),
            ("reason", "/reason"),
            ("reportingComponent", "/reportingComponent"),
            ("source", "/source/component"),
            ("type", "/type"),
        ],
        columns: EVENT,
        check: validation::event,
        ..namespaced("", "Event", "events")
    },
    Kind {
        short_names: &["ev"],
        // Events of `v1` and of `events.k8s.io` are the same stored objects.
        stored_group: Some(""),
        create_on_update: true,
        selectable: &[
            ("regarding.kind", "/involvedObject/kind"),
            ("regarding.namespace", "/involvedObject/namespace"),
            ("regarding.name", "/involvedObject/name"),
            ("regarding.uid", "/involvedObject/uid"),
            ("regarding.apiVersion", "/involvedObject/apiVersion"),
            ("regarding.resourceVersion", "/involvedObject/resourceVersion"),
            ("regarding.fieldPath", "/involvedObject/fieldPath"),
            ("reason", "/reason"),
            ("reportingController", "/reportingComponent"),
            ("type", "/type"),
        ],
        columns: EVENT,
        check: validation::new_event,
        ..namespaced("events.k8s.io", "Event", "events")
    },
    Kind {
        short_names: &["limits"],
        create_on_update: true,
        defaults: defaults::limit_range,
        ..namespaced("", "LimitRange", "limitranges")
    },
    Kind {
        short_names: &["ns"],
        subresources: &[Finalize, Status],
        returns_deleted: true,
        selectable: &[("status.phase", "/status/phase")],
        names: Names::Label,
        columns: &[NAME, text("Status", "/status/phase"), AGE],
        defaults: defaults::namespace,
        new_status: NewStatus::As(|| json!({ "phase": "Active" })),
        on_create: prepare::namespace,
        on_update: prepare::namespace_update,
        check: validation::namespace,
        check_status: validation::namespace_phase,
        ..clustered("", "Namespace", "namespaces")
    },
    Kind {
        short_names: &["no"],
        subresources: &[Status],
        kept_at: Some("minions"),
        selectable: &[("spec.unschedulable", "/spec/unschedulable")],
        columns: &[
            NAME,
            made("Status", |row| json!(node_status(row))),
            made("Roles", |row| json!(node_roles(row))),
            AGE,
            text("Version", "/status/nodeInfo/kubeletVersion"),
            made("Internal-IP", |row| json!(node_address(row, "InternalIP"))).wide(),
            made("External-IP", |row| json!(node_address(row, "ExternalIP"))).wide(),
            text_or("OS-Image", "/status/nodeInfo/osImage", UNKNOWN).wide(),
            made("Kernel-Version", |row| json!(node_kernel(row))).wide(),
            text_or("Container-Runtime", "/status/nodeInfo/containerRuntimeVersion", UNKNOWN).wide(),
        ],
        defaults: defaults::node,
        new_status: NewStatus::Kept,
        on_create: |node, _| prepare::add_not_ready_taint(node),
        check: validation::taints,
        check_update: CheckUpdate::Also(validation::node_update),
        ..clustered("", "Node", "nodes")
    },
    Kind {
        short_names: &["pv"],
        subresources: &[Status],
        returns_deleted: true,
        columns: &[
            NAME,
            made("Capacity", |row| json!(quantity(row, "/spec/capacity/storage"))),
            made("Access Modes", |row| json!(access_modes(row, "/spec/accessModes"))),
            text("Reclaim Policy", "/spec/persistentVolumeReclaimPolicy"),
            made("Status", |row| json!(phase(row))),
            made("Claim", |row| json!(claim_of(row))),
            made("StorageClass", |row| json!(storage_class(row))),
            text_or("VolumeAttributesClass", "/spec/volumeAttributesClassName", UNSET),
            text("Reason", "/status/reason"),
            AGE,
            text_or("VolumeMode", "/spec/volumeMode", UNSET).wide(),
        ],
        defaults: defaults::volume,
        on_create: prepare::volume,
        check: validation::volume,
        ..clustered("", "PersistentVolume", "persistentvolumes")
    },
    Kind {
        short_names: &["pvc"],
        subresources: &[Status],
        returns_deleted: true,
        columns: &[
            NAME,
            made("Status", |row| json!(phase(row))),
            text("Volume", "/spec/volumeName"),
            made("Capacity", |row| json!(if_bound(row, quantity(row, "/status/capacity/storage")))),
            made("Access Modes", |row| json!(if_bound(row, &access_modes(row, "/status/accessModes")))),
            made("StorageClass", |row| json!(storage_class(row))),
            text_or("VolumeAttributesClass", "/spec/volumeAttributesClassName", UNSET),
            AGE,
            text_or("VolumeMode", "/spec/volumeMode", UNSET).wide(),
        ],
        defaults: defaults::claim,
        new_status: NewStatus::As(|| json!({ "phase": "Pending" })),
        on_create: |claim, _| prepare::add_finalizer(claim, "kubernetes.io/pvc-protection"),
        check: validation::claim,
        ..namespaced("", "PersistentVolumeClaim", "persistentvolumeclaims")
    },
    Kind {
        short_names: &["po"],
        categories: ALL,
        subresources: &[Binding, EphemeralContainers, Eviction, Log, Resize, Status],
        generation: Generation::SPEC,
        returns_deleted: true,
        selectable: &[
            ("spec.nodeName", "/spec/nodeName"),
            ("spec.restartPolicy", "/spec/restartPolicy"),
            ("spec.schedulerName", "/spec/schedulerName"),
            ("spec.serviceAccountName", "/spec/serviceAccountName"),
            ("spec.hostNetwork", "/spec/hostNetwork"),
            ("status.phase", "/status/phase"),
            ("status.podIP", "/status/podIP"),
            ("status.podIPs", "/status/podIP"),
            ("status.nominatedNodeName", "/status/nominatedNodeName"),
        ],
        columns: pod::COLUMNS,
        defaults: defaults::pod,
        on_create: prepare::pod,
        on_update: prepare::pod_update,
        on_status: prepare::pod_status,
        status_keeps: &["ownerReferences", "deletionTimestamp"],
        check: validation::pod,
        check_update: CheckUpdate::Only(validation::pod_update),
        check_status: pod_status::update,
        ..namespaced("", "Pod", "pods")
    },
    Kind {
        generation: Generation::Of(&["/template"]),
        returns_deleted: true,
        columns: &[
            NAME,
            made("Containers", |row| json!(workloads::containers(row, "/template"))),
            made("Images", |row| json!(workloads::images(row, "/template"))),
            made("Pod Labels", |row| json!(pairs(row.at("/template/metadata/labels")))),
        ],
        defaults: defaults::pod_template,
        ..namespaced("", "PodTemplate", "podtemplates")
    },
    Kind {
        short_names: &["rc"],
        categories: ALL,
        subresources: &[Scale, Status],
        kept_at: Some("controllers"),
        generation: Generation::SPEC,
        orphans: true,
        selectable: &[("status.replicas", "/status/replicas")],
        columns: &[
            NAME,
            number("Desired", "/spec/replicas"),
            number("Current", "/status/replicas"),
            number("Ready", "/status/readyReplicas"),
            AGE,
            workloads::CONTAINERS,
            workloads::IMAGES,
            made("Selector", |row| json!(pairs(row.at("/spec/selector")))).wide(),
        ],
        defaults: defaults::replication_controller,
        new_status: NewStatus::As(|| json!({ "replicas": 0 })),
        ..namespaced("", "ReplicationController", "replicationcontrollers")
    },
    Kind {
        short_names: &["quota"],
        subresources: &[Status],
        returns_deleted: true,
        columns: &[
            NAME,
            made("Request", |row| json!(quota(row, false))),
            made("Limit", |row| json!(quota(row, true))),
            AGE,
        ],
        ..namespaced("", "ResourceQuota", "resourcequotas")
    },
    Kind {
        selectable: &[("type", "/type")],
        columns: &[NAME, text("Type", "/type"), made("Data", |row| json!(entries(row, "/data"))), AGE],
        defaults: defaults::secret,
        check: |secret| validation::data_keys(secret, &["data"]),
        check_update: CheckUpdate::Also(validation::secret_update),
        ..namespaced("", "Secret", "secrets")
    },
    Kind {
        short_names: &["svc"],
        categories: ALL,
        subresources: &[Status],
        kept_at: Some("services/specs"),
        create_on_update: true,
        returns_deleted: true,
        selectable: &[("spec.clusterIP", "/spec/clusterIP"), ("spec.type", "/spec/type")],
        names: Names::Label1035,
        columns: &[
            NAME,
            text("Type", "/spec/type"),
            made("Cluster-IP", |row| json!(cluster_address(row))),
            made("External-IP", |row| json!(external_addresses(row))),
            made("Port(s)", |row| json!(ports(row))),
            AGE,
            made("Selector", |row| json!(pairs(row.at("/spec/selector")))).wide(),
        ],
        defaults: defaults::service,
        new_status: NewStatus::As(|| json!({ "loadBalancer": {} })),
        on_update: prepare::service_update,
        check: validation::service,
        ..namespaced("", "Service", "services")
    },
    Kind {
        short_names: &["sa"],
        returns_deleted: true,
        columns: &[NAME, AGE],
        ..namespaced("", "ServiceAccount", "serviceaccounts")
    },
];

const EVENT: &[Column] = &[
    made("Last Seen", |row| json!(last_seen(row))),
    text("Type", "/type"),
    text("Reason", "/reason"),
    made("Object", |row| json!(event_object(row))),
    text("Subobject", "/involvedObject/fieldPath").wide(),
    made("Source", |row| json!(event_source(row))).wide(),
    made("Message", |row| json!(row.text("/message").trim())),
    made("First Seen", |row| json!(first_seen(row))).wide(),
    made("Count", |row| json!(event_count(row))).wide(),
    NAME.wide(),
];

fn first_seen(row: &Row<'_>) -> String {
    since(or(row.text("/firstTimestamp"), row.text("/eventTime")), row.now)
}

fn last_seen(row: &Row<'_>) -> String {
    match (row.at("/series"), row.text("/lastTimestamp")) {
        (Some(series), _) => since(object::text(series, "/lastObservedTime"), row.now),
        (None, "") => first_seen(row),
        (None, last) => since(last, row.now),
    }
}

fn event_object(row: &Row<'_>) -> String {
    let kind = row.text("/involvedObject/kind").to_lowercase();
    match row.text("/involvedObject/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    }
}

fn event_source(row: &Row<'_>) -> String {
    let component = or(row.text("/source/component"), row.text("/reportingComponent"));
    match or(row.text("/source/host"), row.text("/reportingInstance")) {
        "" => component.to_owned(),
        instance => format!("{component}, {instance}"),
    }
}

fn event_count(row: &Row<'_>) -> i64 {
    match row.at("/series") {
        Some(series) => integer(series, "/count"),
        None => row.number("/count").max(1),
    }
}

fn entries(row: &Row<'_>, pointer: &str) -> usize {
    row.at(pointer).and_then(Value::as_object).map_or(0, serde_json::Map::len)
}

fn endpoints(row: &Row<'_>) -> String {
    let subsets = row.list("/subsets");
    if subsets.is_empty() {
        return NONE.to_owned();
    }
    let mut all = Vec::new();
    for subset in subsets {
        let addresses = object::list(subset, "/addresses").iter().map(|address| object::text(address, "/ip"));
        let ports = object::list(subset, "/ports");
        if ports.is_empty() {
            all.extend(addresses.clone().map(str::to_owned));
        }
        for port in ports {
            let port = integer(port, "/port");
            all.extend(addresses.clone().map(|address| match address.contains(':') {
                true => format!("[{address}]:{port}"),
                false => format!("{address}:{port}"),
            }));
        }
    }
    first_of(&all, 3, "")
}

fn node_status(row: &Row<'_>) -> String {
    let status = match row.condition("Ready") {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    if row.flag("/spec/unschedulable") { format!("{status},SchedulingDisabled") } else { status.to_owned() }
}

fn node_roles(row: &Row<'_>) -> String {
    let labels = row.at("/metadata/labels").and_then(Value::as_object);
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None => (key == "kubernetes.io/role").then(|| value.as_str().unwrap_or("")),
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    or(&roles.join(","), NONE).to_owned()
}

fn node_address<'v>(row: &Row<'v>, kind: &str) -> &'v str {
    let mut addresses = row.list("/status/addresses").iter();
    let found = addresses.find(|address| object::text(address, "/type") == kind);
    found.map_or(NONE, |address| object::text(address, "/address"))
}

fn node_kernel(row: &Row<'_>) -> String {
    let kernel = or(row.text("/status/nodeInfo/kernelVersion"), UNKNOWN);
    match row.text("/status/nodeInfo/architecture") {
        "" => kernel.to_owned(),
        architecture => format!("{kernel} ({architecture})"),
    }
}

/// A quantity; missing means zero.
fn quantity<'v>(row: &Row<'v>, pointer: &str) -> &'v str {
    or(row.text(pointer), "0")
}

fn phase<'v>(row: &Row<'v>) -> &'v str {
    if object::is_terminating(row.item) { "Terminating" } else { row.text("/status/phase") }
}

fn claim_of(row: &Row<'_>) -> String {
    row.at("/spec/claimRef").map_or_else(String::new, |claim| {
        format!("{}/{}", object::text(claim, "/namespace"), object::text(claim, "/name"))
    })
}

/// The class in the legacy annotation, or in the spec.
fn storage_class<'v>(row: &Row<'v>) -> &'v str {
    let annotations = row.at("/metadata/annotations");
    let old = annotations.and_then(|all| all.get("volume.beta.kubernetes.io/storage-class"));
    old.and_then(Value::as_str).unwrap_or_else(|| row.text("/spec/storageClassName"))
}

/// Shown only for claims that have a volume.
fn if_bound<'t>(row: &Row<'_>, shown: &'t str) -> &'t str {
    if row.text("/spec/volumeName").is_empty() { "" } else { shown }
}

fn access_modes(row: &Row<'_>, pointer: &str) -> String {
    let modes = object::strings(row.item, pointer);
    let short = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let shown = short.iter().filter(|(mode, _)| modes.iter().any(|known| known == mode));
    shown.map(|&(_, short)| short).collect::<Vec<_>>().join(",")
}

/// The used part of a quota: requests or limits.
fn quota(row: &Row<'_>, limits: bool) -> String {
    let hard = row.at("/status/hard").and_then(Value::as_object).into_iter().flatten();
    let used = row.at("/status/used");
    let shown = hard.filter(|(name, _)| name.starts_with("limits.") == limits).map(|(name, hard)| {
        let used = used.and_then(|used| used.get(name)).and_then(Value::as_str).unwrap_or("0");
        format!("{name}: {used}/{}", hard.as_str().unwrap_or("0"))
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn cluster_address<'v>(row: &Row<'v>) -> &'v str {
    row.list("/spec/clusterIPs").first().and_then(Value::as_str).unwrap_or(NONE)
}

fn external_addresses(row: &Row<'_>) -> String {
    let external = object::strings(row.item, "/spec/externalIPs");
    match row.text("/spec/type") {
        "ClusterIP" | "NodePort" => or(&external.join(","), NONE).to_owned(),
        "LoadBalancer" => {
            let mut all = super::network::balancer_addresses(row);
            all.extend(external);
            or(&all.join(","), "<pending>").to_owned()
        }
        "ExternalName" => row.text("/spec/externalName").to_owned(),
        _ => UNKNOWN.to_owned(),
    }
}

fn ports(row: &Row<'_>) -> String {
    let shown = row.list("/spec/ports").iter().map(|port| {
        let (number, node, protocol) =
            (integer(port, "/port"), integer(port, "/nodePort"), object::text(port, "/protocol"));
        if node > 0 { format!("{number}:{node}/{protocol}") } else { format!("{number}/{protocol}") }
    });
    or(&shown.collect::<Vec<_>>().join(","), NONE).to_owned()
}
