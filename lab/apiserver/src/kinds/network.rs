//! The kinds of `networking.k8s.io` and `discovery.k8s.io`. There is no routing here.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::table::Generation;
use super::table::Subresource::Status;
use super::validation::{self, IMMUTABLE, immutable, immutable_unshown};
use super::{ALL_METADATA, CheckUpdate, Kind, Names, NewStatus, clustered, defaults, namespaced, workloads};
use crate::object;
use crate::protocol::printing::{AGE, NAME, NONE, Row, UNSET, first_of, made, text, text_or};
use crate::protocol::status::{Cause, with_group};

const GROUP: &str = "networking.k8s.io";

pub(super) const KINDS: &[Kind] = &[
    Kind {
        generation: Generation::Of(&["/addressType", "/endpoints", "/ports", "/metadata/labels"]),
        columns: &[
            NAME,
            text("AddressType", "/addressType"),
            made("Ports", |row| json!(slice_ports(row))),
            made("Endpoints", |row| json!(slice_addresses(row))),
            AGE,
        ],
        defaults: defaults::endpoint_slice,
        check_update: CheckUpdate::Also(|current, new| immutable_unshown(current, new, &["addressType"])),
        ..namespaced("discovery.k8s.io", "EndpointSlice", "endpointslices")
    },
    Kind {
        short_names: &["ing"],
        kept_at: Some("ingress"),
        subresources: &[Status],
        generation: Generation::SPEC,
        columns: &[
            NAME,
            text_or("Class", "/spec/ingressClassName", NONE),
            made("Hosts", |row| json!(hosts(row))),
            made("Address", |row| json!(balancer_addresses(row).join(","))),
            made("Ports", |row| json!(if row.list("/spec/tls").is_empty() { "80" } else { "80, 443" })),
            AGE,
        ],
        new_status: NewStatus::As(|| json!({ "loadBalancer": {} })),
        ..namespaced(GROUP, "Ingress", "ingresses")
    },
    Kind {
        generation: Generation::SPEC,
        columns: &[
            made("Name", |row| json!(class_name(row))).formatted("name"),
            text("Controller", "/spec/controller"),
            made("Parameters", |row| json!(parameters(row))),
            AGE,
        ],
        defaults: defaults::ingress_class,
        check_update: CheckUpdate::Also(|current, new| immutable(current, new, &["spec.controller"])),
        ..clustered(GROUP, "IngressClass", "ingressclasses")
    },
    Kind {
        short_names: &["ip"],
        names: Names::PathSegment,
        columns: &[NAME, made("ParentRef", |row| json!(parent(row))), AGE.unnamed()],
        check: |address| validation::required(address, &["spec.parentRef"]),
        check_update: CheckUpdate::Also(|current, new| immutable_unshown(current, new, &["spec.parentRef"])),
        ..clustered(GROUP, "IPAddress", "ipaddresses")
    },
    Kind {
        short_names: &["netpol"],
        generation: Generation::SPEC,
        columns: &[
            NAME,
            made("Pod-Selector", |row| json!(workloads::selector(row.at("/spec/podSelector")))),
            AGE,
        ],
        defaults: defaults::network_policy,
        ..namespaced(GROUP, "NetworkPolicy", "networkpolicies")
    },
    Kind {
        subresources: &[Status],
        columns: &[NAME, made("CIDRs", |row| json!(object::strings(row.item, "/spec/cidrs").join(","))), AGE],
        status_keeps: ALL_METADATA,
        check: |range| validation::required(range, &["spec.cidrs"]),
        check_update: CheckUpdate::Only(ranges_update),
        ..clustered(GROUP, "ServiceCIDR", "servicecidrs")
    },
];

/// An address range may not change; a second one of the other family may be added.
fn ranges_update(current: &Value, new: &Value) -> Vec<Cause> {
    let ranges = |value: &Value| object::strings(value, "/spec/cidrs");
    let (old, new) = (ranges(current), ranges(new));
    if old.len() != new.len() && (old.len(), new.len()) != (1, 2) {
        return vec![Cause::invalid("spec.cidrs", &json!(new), IMMUTABLE)];
    }
    let changed = old.iter().zip(&new).enumerate().filter(|(_, (old, new))| old != new);
    changed
        .map(|(index, (_, new))| Cause::invalid(format!("spec.cidrs[{index}]"), &json!(new), IMMUTABLE))
        .collect()
}

fn slice_ports(row: &Row<'_>) -> String {
    let ports = row.list("/ports").iter().map(|port| match port.get("port") {
        Some(Value::Number(number)) => number.to_string(),
        _ => port.get("name").and_then(Value::as_str).unwrap_or("*").to_owned(),
    });
    first_of(&ports.collect::<Vec<_>>(), 3, UNSET)
}

fn slice_addresses(row: &Row<'_>) -> String {
    let endpoints = row.list("/endpoints").iter();
    let addresses = endpoints.flat_map(|endpoint| object::strings(endpoint, "/addresses"));
    first_of(&addresses.collect::<Vec<_>>(), 3, UNSET)
}

/// The addresses that a load balancer has assigned.
pub(super) fn balancer_addresses(row: &Row<'_>) -> Vec<String> {
    let points = row.list("/status/loadBalancer/ingress").iter();
    let address = |point: &Value| match object::text(point, "/ip") {
        "" => object::text(point, "/hostname").to_owned(),
        address => address.to_owned(),
    };
    let addresses: BTreeSet<String> = points.map(address).filter(|address| !address.is_empty()).collect();
    addresses.into_iter().collect()
}

fn hosts(row: &Row<'_>) -> String {
    const SHOWN: usize = 3;
    let rules = row.list("/spec/rules");
    let named = rules.iter().map(|rule| object::text(rule, "/host")).enumerate();
    let named: Vec<(usize, &str)> = named.filter(|(_, host)| !host.is_empty()).take(SHOWN).collect();
    let shown = named.iter().map(|&(_, host)| host).collect::<Vec<_>>().join(",");
    // Every rule after the third host counts, even one without a host.
    let more = match named.get(SHOWN - 1) {
        Some(&(last, _)) if last + 1 < rules.len() => rules.len() - SHOWN,
        _ => 0,
    };
    match (named.is_empty(), more) {
        (true, _) => "*".to_owned(),
        (false, 0) => shown,
        (false, more) => format!("{shown} + {more} more..."),
    }
}

fn class_name(row: &Row<'_>) -> String {
    let annotations = row.at("/metadata/annotations");
    let is_default = annotations.and_then(|all| all.get("ingressclass.kubernetes.io/is-default-class"));
    let name = object::name(row.item);
    if is_default == Some(&json!("true")) { format!("{name} (default)") } else { name.to_owned() }
}

fn parameters(row: &Row<'_>) -> String {
    row.at("/spec/parameters").map_or_else(
        || NONE.to_owned(),
        |parameters| {
            let kind = object::text(parameters, "/kind");
            let group = parameters.get("apiGroup").and_then(Value::as_str);
            let kind = group.map_or_else(|| kind.to_owned(), |group| format!("{kind}.{group}"));
            format!("{kind}/{}", object::text(parameters, "/name"))
        },
    )
}

fn parent(row: &Row<'_>) -> String {
    row.at("/spec/parentRef").map_or_else(
        || NONE.to_owned(),
        |parent| {
            let field = |key: &str| object::text(parent, key);
            let resource = with_group(field("/resource"), field("/group")).to_lowercase();
            match field("/namespace") {
                "" => format!("{resource}/{}", field("/name")),
                namespace => format!("{resource}/{namespace}/{}", field("/name")),
            }
        },
    )
}
