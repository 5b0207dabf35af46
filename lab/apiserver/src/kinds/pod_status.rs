//! Validation of a pod's status.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::go;
use super::metadata::{qualified_name_problems, subdomain_problem};
use crate::object;
use crate::protocol::status::Cause;

/// Conditions that the server itself knows; the names of all others are checked.
const SYSTEM_CONDITIONS: [&str; 3] = ["Initialized", "PodScheduled", "Ready"];

const NO_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const ONE_PER_FAMILY: &str = "may specify no more than one IP for each IP family";
const NOT_NEGATIVE: &str = "must be a non-negative integer";

pub(crate) fn update(current: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = conditions(new);
    causes.extend(nomination(current, new));
    causes.extend(generation(&new["status"], "status"));
    let class = |pod: &Value| object::at(pod, "/status/qosClass").cloned().unwrap_or(Value::Null);
    if class(current) != class(new) {
        causes.push(Cause::invalid("status.qosClass", &class(new), "field is immutable"));
    }
    causes.extend(comebacks(current, new, "containerStatuses", Some("containers")));
    causes.extend(comebacks(current, new, "initContainerStatuses", Some("initContainers")));
    causes.extend(comebacks(current, new, "ephemeralContainerStatuses", None));
    causes.extend(address_list(current, new, "podIPs"));
    causes.extend(host_addresses(current, new));
    causes
}

fn generation(value: &Value, field: &str) -> Option<Cause> {
    let observed = value.get("observedGeneration")?;
    let is_negative = observed.as_i64().is_some_and(|number| number < 0);
    is_negative.then(|| Cause::invalid(format!("{field}.observedGeneration"), observed, NOT_NEGATIVE))
}

fn conditions(pod: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, condition) in object::list(pod, "/status/conditions").iter().enumerate() {
        let field = format!("status.conditions[{index}]");
        causes.extend(generation(condition, &field));
        let kind = object::text(condition, "/type");
        if !SYSTEM_CONDITIONS.contains(&kind) {
            // The only field that the server names as Go does.
            let problems = qualified_name_problems(kind).into_iter();
            causes.extend(problems.map(|why| Cause::invalid(format!("{field}.Type"), &json!(kind), why)));
        }
    }
    causes
}

/// A node may be nominated for a pod that has none.
fn nomination(current: &Value, new: &Value) -> Vec<Cause> {
    let nominated = |pod| object::text(pod, "/status/nominatedNodeName");
    let name = nominated(new);
    let mut causes = Vec::new();
    if name.is_empty() || name == nominated(current) {
        return causes;
    }
    let field = "status.nominatedNodeName";
    causes.extend(subdomain_problem(name).map(|why| Cause::invalid(field, &json!(name), why)));
    if !object::text(current, "/spec/nodeName").is_empty() {
        causes.push(Cause::forbidden(field, "may not be set on pods that are already bound to a node"));
    }
    causes
}

/// Containers that have terminated permanently and run again. An ephemeral container never restarts.
fn comebacks(current: &Value, new: &Value, list: &str, containers: Option<&str>) -> Vec<Cause> {
    let spec = &current["spec"];
    if containers.is_some() && all_may_restart(spec) {
        return Vec::new();
    }
    let pointer = format!("/status/{list}");
    let mut causes = Vec::new();
    for (index, old) in object::list(current, &pointer).iter().enumerate() {
        let Some(ended) = object::at(old, "/state/terminated") else { continue };
        let name = object::text(old, "/name");
        let comes_back = object::list(new, &pointer).iter().any(|status| {
            object::text(status, "/name") == name && object::at(status, "/state/terminated").is_none()
        });
        let may = containers.is_some_and(|containers| {
            let containers = object::list(spec, &format!("/{containers}")).iter();
            let container = containers.into_iter().find(|container| object::text(container, "/name") == name);
            container.is_some_and(|container| restarts(container, spec, ended))
        });
        if comes_back && !may {
            causes.push(Cause::forbidden(
                format!("status.{list}[{index}].state"),
                "may not be transitioned to non-terminated state",
            ));
        }
    }
    causes
}

/// True if the end of some container may restart all of them.
fn all_may_restart(spec: &Value) -> bool {
    ["/initContainers", "/containers"].iter().flat_map(|list| object::list(spec, list)).any(|container| {
        let rules = object::list(container, "/restartPolicyRules").iter();
        rules.into_iter().any(|rule| object::text(rule, "/action") == "RestartAllContainers")
    })
}

/// True if a container that has terminated like this is restarted.
fn restarts(container: &Value, spec: &Value, ended: &Value) -> bool {
    let code = ended.get("exitCode").and_then(Value::as_i64).unwrap_or(0);
    let own = object::text(container, "/restartPolicy");
    if !own.is_empty() {
        let rules = object::list(container, "/restartPolicyRules").iter();
        let rule = rules.into_iter().find(|rule| {
            let is_listed = object::list(rule, "/exitCodes/values").contains(&json!(code));
            match object::text(rule, "/exitCodes/operator") {
                "In" => is_listed,
                "NotIn" => !is_listed,
                _ => false,
            }
        });
        if rule
            .is_some_and(|rule| ["Restart", "RestartAllContainers"].contains(&object::text(rule, "/action")))
        {
            return true;
        }
    }
    match if own.is_empty() { object::text(spec, "/restartPolicy") } else { own } {
        "Never" => false,
        "OnFailure" => code != 0,
        _ => true,
    }
}

fn addresses<'v>(pod: &'v Value, list: &str) -> Vec<&'v str> {
    object::list(pod, &format!("/status/{list}")).iter().map(|entry| object::text(entry, "/ip")).collect()
}

/// Problems of a list of addresses by itself. Addresses that were present before may stay.
fn address_list(current: &Value, new: &Value, list: &str) -> Vec<Cause> {
    let (before, after) = (addresses(current, list), addresses(new, list));
    let mut causes = Vec::new();
    for (index, address) in after.iter().enumerate() {
        if !before.contains(address) && address.parse::<IpAddr>().is_err() {
            causes.push(Cause::invalid(format!("status.{list}[{index}]"), &json!(address), NO_ADDRESS));
        }
    }
    if after.len() > 1 {
        let families: Vec<bool> = after
            .iter()
            .filter_map(|address| address.parse().ok())
            .map(|address: IpAddr| address.is_ipv4())
            .collect();
        let is_dual = families.contains(&true) && families.contains(&false);
        if !is_dual || after.len() > 2 {
            let shown = go::addresses(&after);
            causes.push(Cause::invalid_text(format!("status.{list}"), &shown, ONE_PER_FAMILY));
        }
    }
    causes
}

fn host_addresses(current: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if let Some(first) = addresses(new, "hostIPs").first()
        && *first != object::text(new, "/status/hostIP")
    {
        causes.push(Cause::invalid("status.hostIPs[0].ip", &json!(first), "must be equal to `hostIP`"));
    }
    causes.extend(address_list(current, new, "hostIPs"));
    causes
}
