//! RBAC, leases, priorities and other cluster-wide kinds.

use serde_json::{Value, json};

use super::table::Generation;
use super::table::Subresource::{Approval, Status};
use super::validation::{self, IMMUTABLE, Style, immutable, immutable_unshown, immutable_with};
use super::{ALL_METADATA, API_EXTENSIONS, CheckUpdate, Kind, Names};
use super::{clustered, defaults, go, namespaced, prepare};
use crate::custom;
use crate::object;
use crate::protocol::printing::{
    AGE, CREATED_AT, Column, NAME, NONE, Row, flag, human, made, number, pairs, text, text_or,
};
use crate::protocol::status::{Cause, with_group};

const RBAC: &str = "rbac.authorization.k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";
const FLOW_CONTROL: &str = "flowcontrol.apiserver.k8s.io";

pub(super) const KINDS: &[Kind] = &[
    Kind {
        short_names: &["crd", "crds"],
        categories: API_EXTENSIONS,
        subresources: &[Status],
        generation: Generation::SPEC,
        unconditional_update: false,
        columns: &[
            NAME,
            text("Scope", "/spec/scope"),
            made("Versions", |row| json!(served_versions(row))),
            CREATED_AT,
            text("Group", "/spec/group").wide(),
            text("Kind", "/spec/names/kind").wide(),
            made("ShortNames", |row| json!(object::strings(row.item, "/spec/names/shortNames").join(",")))
                .wide(),
            made("Established", |row| json!(row.condition("Established") == Some("True")))
                .declared("boolean")
                .wide(),
        ],
        defaults: defaults::definition,
        on_create: prepare::definition,
        on_update: prepare::definition_update,
        check: |definition| custom::definition::check(definition, None),
        check_update: CheckUpdate::Only(|current, new| custom::definition::check(new, Some(current))),
        warnings: custom::warnings,
        ..clustered("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions")
    },
    Kind {
        short_names: &["csr"],
        subresources: &[Approval, Status],
        selectable: &[("spec.signerName", "/spec/signerName")],
        names: Names::PathSegment,
        columns: &[
            NAME,
            AGE,
            text_or("SignerName", "/spec/signerName", NONE),
            text("Requestor", "/spec/username"),
            made("RequestedDuration", |row| json!(requested_duration(row))),
            made("Condition", |row| json!(certificate_state(row))),
        ],
        on_create: prepare::certificate_request,
        on_update: |current, new, _| object::carry(current, new, "spec"),
        on_status: prepare::certificate_conditions,
        ..clustered(CERTIFICATES, "CertificateSigningRequest", "certificatesigningrequests")
    },
    Kind {
        unconditional_update: false,
        selectable: &[("spec.signerName", "/spec/signerName")],
        names: Names::PathSegment,
        columns: &[NAME, text_or("SignerName", "/spec/signerName", NONE)],
        check: trust_bundle,
        check_update: CheckUpdate::Also(|current, new| immutable(current, new, &["spec.signerName"])),
        ..clustered(CERTIFICATES, "ClusterTrustBundle", "clustertrustbundles")
    },
    Kind {
        subresources: &[Status],
        unconditional_update: false,
        selectable: &[
            ("spec.signerName", "/spec/signerName"),
            ("spec.podName", "/spec/podName"),
            ("spec.nodeName", "/spec/nodeName"),
        ],
        columns: &[
            NAME,
            text("PodName", "/spec/podName"),
            text("ServiceAccountName", "/spec/serviceAccountName"),
            text("NodeName", "/spec/nodeName"),
            text("SignerName", "/spec/signerName"),
            made("State", |row| json!(pod_certificate_state(row))),
            made("UnverifiedUserAnnotations", |row| json!(pairs(row.at("/spec/unverifiedUserAnnotations")))),
        ],
        defaults: defaults::pod_certificate,
        status_keeps: ALL_METADATA,
        check_update: CheckUpdate::Also(|current, new| immutable(current, new, &["spec"])),
        ..namespaced(CERTIFICATES, "PodCertificateRequest", "podcertificaterequests")
    },
    Kind {
        unconditional_update: false,
        create_on_update: true,
        columns: &[NAME, text("Holder", "/spec/holderIdentity"), AGE],
        check: validation::lease,
        ..namespaced("coordination.k8s.io", "Lease", "leases")
    },
    Kind {
        subresources: &[Status],
        generation: Generation::SPEC,
        columns: &[
            NAME,
            text("PriorityLevel", "/spec/priorityLevelConfiguration/name"),
            number("MatchingPrecedence", "/spec/matchingPrecedence").declared("string"),
            text_or("DistinguisherMethod", "/spec/distinguisherMethod/type", NONE),
            AGE,
            made("MissingPL", |row| json!(row.condition("Dangling").unwrap_or("?"))),
        ],
        defaults: defaults::flow_schema,
        status_keeps: ALL_METADATA,
        ..clustered(FLOW_CONTROL, "FlowSchema", "flowschemas")
    },
    Kind {
        subresources: &[Status],
        generation: Generation::SPEC,
        columns: &[
            NAME,
            text("Type", "/spec/type"),
            made("NominalConcurrencyShares", |row| or_none(row, "/spec/limited/nominalConcurrencyShares")),
            made("Queues", |row| or_none(row, "/spec/limited/limitResponse/queuing/queues")),
            made("HandSize", |row| or_none(row, "/spec/limited/limitResponse/queuing/handSize")),
            made("QueueLengthLimit", |row| {
                or_none(row, "/spec/limited/limitResponse/queuing/queueLengthLimit")
            }),
            AGE,
        ],
        defaults: defaults::priority_level,
        status_keeps: ALL_METADATA,
        ..clustered(FLOW_CONTROL, "PriorityLevelConfiguration", "prioritylevelconfigurations")
    },
    Kind {
        unconditional_update: false,
        create_on_update: true,
        columns: &[NAME, text("Handler", "/handler"), AGE],
        check: |class| validation::required(class, &["handler"]),
        check_update: CheckUpdate::Also(|current, new| immutable_unshown(current, new, &["handler"])),
        ..clustered("node.k8s.io", "RuntimeClass", "runtimeclasses")
    },
    Kind {
        create_on_update: true,
        names: Names::PathSegment,
        ..clustered(RBAC, "ClusterRole", "clusterroles")
    },
    Kind {
        columns: BINDING,
        create_on_update: true,
        names: Names::PathSegment,
        defaults: defaults::role_binding,
        check_update: CheckUpdate::Also(role_update),
        ..clustered(RBAC, "ClusterRoleBinding", "clusterrolebindings")
    },
    Kind { create_on_update: true, names: Names::PathSegment, ..namespaced(RBAC, "Role", "roles") },
    Kind {
        columns: BINDING,
        create_on_update: true,
        names: Names::PathSegment,
        defaults: defaults::role_binding,
        check_update: CheckUpdate::Also(role_update),
        ..namespaced(RBAC, "RoleBinding", "rolebindings")
    },
    Kind {
        short_names: &["pc"],
        // The generation stays 1.
        generation: Generation::Of(&[]),
        columns: &[
            NAME,
            number("Value", "/value"),
            flag("Global-Default", "/globalDefault"),
            AGE,
            text("PreemptionPolicy", "/preemptionPolicy"),
        ],
        defaults: defaults::priority_class,
        check: validation::priority_class,
        check_update: CheckUpdate::Also(|current, new| {
            immutable_with(
                current,
                new,
                &["value", "preemptionPolicy"],
                &Style::Forbidden("may not be changed in an update."),
            )
        }),
        ..clustered("scheduling.k8s.io", "PriorityClass", "priorityclasses")
    },
    Kind {
        subresources: &[Status],
        unconditional_update: false,
        columns: &[
            NAME.formatted(""),
            made("Resource", |row| {
                let field = |key: &str| row.text(&format!("/spec/resource/{key}"));
                json!(with_group(field("resource"), field("group")))
            }),
            made("Status", |row| json!(migration_state(row))),
        ],
        status_keeps: ALL_METADATA,
        check_update: CheckUpdate::Also(migration_update),
        ..clustered("storagemigration.k8s.io", "StorageVersionMigration", "storageversionmigrations")
    },
];

const BINDING: &[Column] = &[
    NAME,
    made("Role", |row| json!(format!("{}/{}", row.text("/roleRef/kind"), row.text("/roleRef/name")))),
    AGE,
    made("Users", |row| json!(subjects(row, "User"))).wide(),
    made("Groups", |row| json!(subjects(row, "Group"))).wide(),
    made("ServiceAccounts", |row| json!(subjects(row, "ServiceAccount"))).wide(),
];

fn trust_bundle(bundle: &Value) -> Vec<Cause> {
    let (name, signer) = (object::name(bundle), object::text(bundle, "/spec/signerName"));
    let prefix = format!("{}:", signer.replace('/', ":"));
    if signer.is_empty() || name.starts_with(&prefix) {
        return Vec::new();
    }
    let why = format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}");
    vec![Cause::invalid("metadata.name", &json!(name), &why)]
}

fn role_update(current: &Value, new: &Value) -> Vec<Cause> {
    if current.get("roleRef") == new.get("roleRef") {
        return Vec::new();
    }
    vec![Cause::invalid_text("roleRef", &go::role(&new["roleRef"]), IMMUTABLE)]
}

fn migration_update(current: &Value, new: &Value) -> Vec<Cause> {
    if current.get("spec") == new.get("spec") {
        return Vec::new();
    }
    vec![Cause::invalid("spec", &json!({ "Resource": new["spec"]["resource"] }), IMMUTABLE)]
}

fn served_versions(row: &Row<'_>) -> String {
    let served = row.list("/spec/versions").iter().filter(|version| version["served"] == json!(true));
    let mut versions: Vec<String> = served
        .map(|version| {
            let storage = if version["storage"] == json!(true) { "(storage)" } else { "" };
            format!("{}{storage}", object::text(version, "/name"))
        })
        .collect();
    versions.sort();
    versions.join(",")
}

fn subjects(row: &Row<'_>, kind: &str) -> String {
    let subjects = row.list("/subjects").iter().filter(|subject| object::text(subject, "/kind") == kind);
    let shown = subjects.map(|subject| match (kind, object::text(subject, "/name")) {
        ("ServiceAccount", name) => format!("{}/{name}", object::text(subject, "/namespace")),
        (_, name) => name.to_owned(),
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn or_none(row: &Row<'_>, pointer: &str) -> Value {
    row.at(pointer).cloned().unwrap_or_else(|| json!(NONE))
}

fn requested_duration(row: &Row<'_>) -> String {
    let seconds = row.at("/spec/expirationSeconds").and_then(Value::as_i64);
    seconds.map_or_else(|| NONE.to_owned(), |seconds| human(jiff::SignedDuration::from_secs(seconds)))
}

fn certificate_state(row: &Row<'_>) -> String {
    let has = |kind: &str| row.condition(kind).is_some();
    let mut state = if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    }
    .to_owned();
    if has("Failed") {
        state.push_str(",Failed");
    }
    if !row.text("/status/certificate").is_empty() {
        state.push_str(",Issued");
    }
    state
}

fn pod_certificate_state(row: &Row<'_>) -> &'static str {
    let conditions = row.list("/status/conditions").iter().rev();
    let states = ["Issued", "Denied", "Failed"];
    let mut last = conditions.filter_map(|condition| {
        let kind = object::text(condition, "/type");
        states.into_iter().find(|state| *state == kind)
    });
    last.next().unwrap_or("Pending")
}

fn migration_state(row: &Row<'_>) -> &'static str {
    let conditions = row.list("/status/conditions").iter().rev();
    let states = ["Running", "Failed", "Succeeded"];
    let mut last =
        conditions.filter(|condition| object::text(condition, "/status") == "True").filter_map(|condition| {
            let kind = object::text(condition, "/type");
            states.into_iter().find(|state| *state == kind)
        });
    last.next().unwrap_or("Unknown")
}
