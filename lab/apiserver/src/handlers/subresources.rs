//! Subresources: status, scale, binding, eviction and a namespace's finalizers.

use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::{delete, patching, write};
use crate::admission::{self, Body, Operation, Subject};
use crate::environment::Environment;
use crate::kinds::metadata;
use crate::kinds::part::Part;
use crate::kinds::table::{Resource, Subresource};
use crate::object;
use crate::protocol::render;
use crate::protocol::request::{self, Query, Representation, Request, Target};
use crate::protocol::response::{Reply, Response};
use crate::protocol::status::{Cause, Refusal};
use crate::schema::{self, Schema};
use crate::state::Core;
use crate::store::selectors::{self, Labels};

/// If a budget has more recorded evictions than this, its controller does not keep up.
const REMEMBERED_DISRUPTIONS: usize = 2000;

pub(crate) fn answer(
    core: &mut Core,
    request: &Request,
    query: &Query,
    target: &Target,
    form: Representation,
    environment: &mut Environment<'_>,
) -> Result<Response, Refusal> {
    let resource = &target.resource;
    let subresource =
        resource.subresources.iter().copied().find(|known| known.path() == target.subresource).ok_or_else(
            || match &resource.custom {
                // For a custom resource, the error names the object, whatever subresource is requested.
                Some(_) => Refusal::not_found(resource, &target.name),
                None => Refusal::no_such_path(),
            },
        )?;
    let now = environment.now;
    let whole = |code, stored: &crate::object::Stored, warnings| {
        Response::Whole(Reply { warnings, ..Reply::new(code, render::one(resource, stored, form, now)) })
    };
    match (subresource, &request.method) {
        (Subresource::Scale, _) => scale(core, request, query, target, environment),
        (Subresource::Binding, &Method::POST) => bind(core, request, query, target, environment),
        (Subresource::Eviction, &Method::POST) => evict(core, request, query, target, environment),
        (Subresource::Log, &Method::GET) => {
            core.lookup(target)?;
            Ok(Response::Whole(Reply::text(StatusCode::OK, "")))
        }
        (
            Subresource::Status
            | Subresource::Approval
            | Subresource::Resize
            | Subresource::EphemeralContainers,
            &Method::GET,
        ) => {
            let stored = core.lookup(target)?;
            Ok(whole(StatusCode::OK, &stored, Vec::new()))
        }
        (
            Subresource::Status
            | Subresource::Approval
            | Subresource::Resize
            | Subresource::EphemeralContainers,
            &Method::PATCH,
        ) => {
            let mut warnings = Vec::new();
            let (code, stored) = patching::patch(core, target, request, query, &mut warnings, environment)?;
            Ok(whole(code, &stored, warnings))
        }
        (
            Subresource::Status
            | Subresource::Approval
            | Subresource::Finalize
            | Subresource::Resize
            | Subresource::EphemeralContainers,
            &Method::PUT,
        ) => {
            let options = write::Options::read(request, query)?;
            let value = core.decode(resource, request)?;
            let mut warnings = Vec::new();
            let mut value = write::admit_fields(resource, value, request, query, &mut warnings)?;
            metadata::check_place(&mut value, resource, &target.namespace, &target.name)?;
            let current = core.lookup(target)?;
            write::check_uid(resource, &target.name, &current.value(), &value)?;
            let part = match subresource {
                Subresource::Status | Subresource::Approval => Part::Status,
                Subresource::Finalize => {
                    object::carry(&current.value(), &mut value, "status");
                    Part::Finalizers
                }
                _ => Part::Spec,
            };
            let stored = write::update(core, target, part, &current, value, &options, environment)?;
            Ok(whole(StatusCode::OK, &stored, warnings))
        }
        _ => Err(Refusal::method_not_allowed()),
    }
}

/// The paths of the values in a scale: the wanted replicas, the present ones, and the selector.
fn scale_paths(resource: &Resource) -> (String, String, Option<String>) {
    let pointer = |path: &str| path.replace('.', "/");
    match resource.custom.as_ref().and_then(|custom| custom.scale.as_ref()) {
        Some(scale) => {
            let path = |key: &str| scale.get(key).and_then(Value::as_str).map(pointer);
            (
                path("specReplicasPath").unwrap_or_default(),
                path("statusReplicasPath").unwrap_or_default(),
                path("labelSelectorPath"),
            )
        }
        None => {
            ("/spec/replicas".to_owned(), "/status/replicas".to_owned(), Some("/spec/selector".to_owned()))
        }
    }
}

fn scale_of(resource: &Resource, value: &Value) -> Value {
    let (wanted, present, selector) = scale_paths(resource);
    let number = |pointer: &str| value.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let mut metadata = json!({});
    for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(field) = value.pointer(&format!("/metadata/{key}")) {
            metadata[key] = field.clone();
        }
    }
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {}, "status": { "replicas": number(&present) },
    });
    let replicas = number(&wanted);
    if replicas != 0 {
        scale["spec"]["replicas"] = json!(replicas);
    }
    let selector = selector.and_then(|pointer| value.pointer(&pointer).cloned());
    match selector {
        Some(Value::String(text)) => scale["status"]["selector"] = json!(text),
        // The selector of a ReplicationController is a plain map of labels.
        Some(labels) if resource.is("", "ReplicationController") => {
            scale["status"]["selector"] = json!(selectors::shown(&json!({ "matchLabels": labels })));
        }
        Some(selector) => scale["status"]["selector"] = json!(selectors::shown(&selector)),
        None => {}
    }
    scale
}

fn scale(
    core: &mut Core,
    request: &Request,
    query: &Query,
    target: &Target,
    environment: &mut Environment<'_>,
) -> Result<Response, Refusal> {
    let resource = &target.resource;
    let current = core.lookup(target)?;
    let before = scale_of(resource, &current.value());
    let after = match request.method {
        Method::GET => {
            return Ok(Response::Whole(Reply::new(StatusCode::OK, object::encode(&before))));
        }
        Method::PUT => {
            let mut scale = decode(request, "autoscaling", "Scale")?;
            metadata::check_place(&mut scale, resource, &target.namespace, &target.name)?;
            scale
        }
        Method::PATCH => {
            let mut scale = before.clone();
            let body = request.value()?;
            if request::media_type(&request.content_type) == "application/json-patch+json" {
                crate::patch::json_patch::apply(&mut scale, &body).map_err(|_| {
                    Refusal::new(
                        422,
                        "Invalid",
                        "the server rejected our request due to an error in our request",
                    )
                })?;
            } else {
                crate::patch::merge(&mut scale, &body);
            }
            let shown = json!(scale.to_string());
            schema::decode(&definition_of("autoscaling", "Scale"), scale)
                .map_err(|why| Refusal::invalid("", "", "", &[Cause::invalid("patch", &shown, &why)]))?
        }
        _ => return Err(Refusal::method_not_allowed()),
    };
    let options = write::Options::read(request, query)?;
    let after = review(core, target, after, Some(before), &options, environment)?;
    let replicas = after.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
    // A custom resource is validated by its own rules.
    if replicas < 0 && resource.custom.is_none() {
        let cause = Cause::invalid("spec.replicas", &json!(replicas), "must be greater than or equal to 0");
        return Err(Refusal::invalid("autoscaling", "Scale", &target.name, &[cause]));
    }
    let version = object::text(&after, "/metadata/resourceVersion");
    if !version.is_empty() && version != object::text(&current.value(), "/metadata/resourceVersion") {
        return Err(Refusal::modified(resource, &target.name));
    }
    let mut new = Arc::unwrap_or_clone(current.value());
    let (wanted, _, _) = scale_paths(resource);
    let path: Vec<&str> = wanted.split('/').filter(|key| !key.is_empty()).collect();
    set_field(&mut new, &path, json!(replicas))?;
    let options = options.reviewed();
    let stored = write::update(core, target, Part::Spec, &current, new, &options, environment)?;
    let scale = scale_of(resource, &stored.value());
    Ok(Response::Whole(Reply::new(StatusCode::OK, object::encode(&scale))))
}

/// Calls webhooks for an object that is sent but not stored, or for its change. Returns it as they left it.
fn review(
    core: &Core,
    target: &Target,
    mut object: Value,
    old: Option<Value>,
    options: &write::Options,
    environment: &mut Environment<'_>,
) -> Result<Value, Refusal> {
    let Some(shown) = options.shown.as_ref().filter(|_| admission::has_hooks(core)) else {
        return Ok(object);
    };
    if old.is_none() {
        object::set_metadata(&mut object, "namespace", json!(target.namespace));
    }
    let operation = if old.is_some() { Operation::Update } else { Operation::Create };
    let subject = Subject {
        resource: &target.resource,
        subresource: &target.subresource,
        namespace: &target.namespace,
        name: target.name.clone(),
        operation,
        body: Body::Typed { object, old },
        options: shown,
        dry_run: options.dry_run,
    };
    admission::typed(core, subject, environment)
}

fn definition_of(group: &str, kind: &str) -> Arc<Schema> {
    Schema::built_in(&format!("io.k8s.api.{group}.v1.{kind}"))
}

/// Decodes the body as a kind that is sent but not stored.
fn decode(request: &Request, group: &str, kind: &str) -> Result<Value, Refusal> {
    let value = request.value()?;
    let stated = object::text(&value, "/kind").to_owned();
    if !stated.is_empty() && stated != kind {
        return Err(Refusal::bad_request(format!(
            "{stated} in version \"v1\" cannot be handled as a {kind}: converting (v1.{stated}) to ({group}.{kind}): unknown conversion"
        )));
    }
    let mut value = schema::decode(&definition_of(group, kind), value).map_err(|why| {
        Refusal::bad_request(format!("{kind} in version \"v1\" cannot be handled as a {kind}: {why}"))
    })?;
    value["kind"] = json!(kind);
    value["apiVersion"] = json!(if group == "core" { "v1".to_owned() } else { format!("{group}/v1") });
    Ok(value)
}

/// Sets the value at a path of fields. All values on the way must be objects.
fn set_field(value: &mut Value, path: &[&str], field: Value) -> Result<(), Refusal> {
    let mut place = value;
    for (depth, key) in path.iter().enumerate() {
        if place.is_null() {
            *place = json!({});
        }
        let members = place.as_object_mut().ok_or_else(|| {
            let to_here = path[..depth].join(".");
            Refusal::internal_plain(&format!(
                "value cannot be set because .{to_here} is not a map[string]interface{{}}"
            ))
        })?;
        place = members.entry(*key).or_insert(Value::Null);
    }
    *place = field;
    Ok(())
}

/// Answers `POST namespaces/NAME/bindings`, where the body names the pod; `None` if the request is not one.
pub(crate) fn bind_by_name(
    core: &mut Core,
    request: &Request,
    query: &Query,
    environment: &mut Environment<'_>,
) -> Option<Result<Response, Refusal>> {
    let namespace = request.path.strip_prefix("/api/v1/namespaces/")?.strip_suffix("/bindings")?;
    if namespace.contains('/') {
        return None;
    }
    if request.method != Method::POST {
        return Some(Err(Refusal::method_not_allowed()));
    }
    let named = decode(request, "core", "Binding").and_then(|binding| {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{}/binding", object::name(&binding));
        request::target(&core.table, &path)
    });
    Some(named.and_then(|target| bind(core, request, query, &target, environment)))
}

fn bind(
    core: &mut Core,
    request: &Request,
    query: &Query,
    target: &Target,
    environment: &mut Environment<'_>,
) -> Result<Response, Refusal> {
    let options = write::Options::read(request, query)?;
    let binding = decode(request, "core", "Binding")?;
    let binding = review(core, target, binding, None, &options, environment)?;
    let resource = &target.resource;
    let node = object::text(&binding, "/target/name");
    if node.is_empty() {
        return Err(Refusal::internal_plain("target.name: Required value"));
    }
    let current = core.lookup(target)?;
    let value = &*current.value();
    write::check_uid(resource, &target.name, value, &binding)?;
    let refused = |why: String| Err(Refusal::conflict(resource, &target.name, &why).renamed("pods/binding"));
    if object::is_terminating(value) {
        return refused(format!("pod {} is being deleted, cannot be assigned to a host", target.name));
    }
    let assigned = object::text(value, "/spec/nodeName");
    if !assigned.is_empty() {
        return refused(format!("pod {} is already assigned to node {assigned:?}", target.name));
    }
    if !object::list(value, "/spec/schedulingGates").is_empty() {
        return refused(format!("pod {} has non-empty .spec.schedulingGates", target.name));
    }
    let mut new = value.clone();
    new["spec"]["nodeName"] = json!(node);
    for key in ["annotations", "labels"] {
        if let Some(Value::Object(added)) = binding.pointer(&format!("/metadata/{key}")) {
            let place = object::metadata(&mut new).entry(key).or_insert_with(|| json!({}));
            for (name, text) in added {
                place[name] = text.clone();
            }
        }
    }
    let scheduled = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": object::time(environment.now),
    });
    set_condition(&mut new, scheduled);
    write::update(core, target, Part::Node, &current, new, &options.reviewed(), environment)?;
    let status =
        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 });
    Ok(Response::Whole(Reply::new(StatusCode::CREATED, object::encode(&status))))
}

/// Deletes a pod if its disruption budget allows it.
fn evict(
    core: &mut Core,
    request: &Request,
    query: &Query,
    target: &Target,
    environment: &mut Environment<'_>,
) -> Result<Response, Refusal> {
    let eviction = decode(request, "policy", "Eviction")?;
    let resource = Arc::clone(&target.resource);
    let name = object::name(&eviction);
    if name != target.name {
        return Err(Refusal::bad_request("name in URL does not match name in Eviction object"));
    }
    let asked = write::Options::read(request, query)?;
    let eviction = review(core, target, eviction, None, &asked, environment)?;
    let current = core.lookup(target)?;
    let pod = Arc::unwrap_or_clone(current.value());
    let mut options = delete::Options::of(eviction.get("deleteOptions").unwrap_or(&Value::Null))?;
    options.dry_run |= asked.dry_run;
    if !ignores_budgets(&pod)
        && let Some(budget) = budget_of(core, &pod)?
        && !may_go_unhealthy(&pod, &budget)
    {
        charge(core, &budget, &pod, options.dry_run, environment)?;
    }
    // A budget is charged even if the pod's UID turns out to be another.
    options.check(&resource, &target.name, &pod)?;
    // An eviction is a deletion with a reason.
    if !options.dry_run {
        mark_disrupted(core, target, environment);
        options.resource_version = None;
    }
    delete::one(core, &resource, &target.namespace, &target.name, &options, environment)?;
    let status =
        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 });
    Ok(Response::Whole(Reply::new(StatusCode::CREATED, object::encode(&status))))
}

/// A pod that is terminal, pending or being deleted disrupts nothing.
fn ignores_budgets(pod: &Value) -> bool {
    ["Succeeded", "Failed", "Pending"].contains(&object::text(pod, "/status/phase"))
        || object::is_terminating(pod)
}

fn budget_of(core: &Core, pod: &Value) -> Result<Option<Value>, Refusal> {
    let budgets = ("policy".to_owned(), "poddisruptionbudgets".to_owned());
    let prefix = format!("{}/", object::namespace(pod));
    let matching: Vec<Value> = core
        .store
        .scan(&budgets, &prefix)
        .map(|(_, stored)| stored.value())
        .filter(|budget| {
            budget.pointer("/spec/selector").is_some_and(|selector| Labels::of_object(selector).matches(pod))
        })
        .map(Arc::unwrap_or_clone)
        .collect();
    match matching.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        _ => Err(Refusal::new(
            500,
            "",
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        )),
    }
}

/// A pod that is not ready may be evicted without being counted, if the budget's policy allows it or the budget is met
/// without it.
fn may_go_unhealthy(pod: &Value, budget: &Value) -> bool {
    let is_ready = object::list(pod, "/status/conditions").iter().any(|condition| {
        object::text(condition, "/type") == "Ready" && object::text(condition, "/status") == "True"
    });
    if is_ready {
        return false;
    }
    if object::text(budget, "/spec/unhealthyPodEvictionPolicy") == "AlwaysAllow" {
        return true;
    }
    let number = |key: &str| budget.pointer(&format!("/status/{key}")).and_then(Value::as_i64).unwrap_or(0);
    number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0
}

fn charge(
    core: &mut Core,
    budget: &Value,
    pod: &Value,
    dry_run: bool,
    environment: &mut Environment<'_>,
) -> Result<(), Refusal> {
    let name = object::name(budget);
    let number = |pointer: &str| budget.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let cannot = "Cannot evict pod as it would violate the pod's disruption budget.";
    let refused = |why: String| {
        Refusal::too_many_requests(cannot)
            .with_causes(json!([{ "reason": "DisruptionBudget", "message": why }]))
    };
    if number("/status/observedGeneration") < number("/metadata/generation") {
        return Err(refused(format!("The disruption budget {name} is still being processed by the server."))
            .retry_after(10));
    }
    if number("/status/disruptionsAllowed") < 0 {
        return Err(Refusal::too_many_requests("pdb disruptions allowed is negative"));
    }
    let remembered =
        budget.pointer("/status/disruptedPods").and_then(Value::as_object).map_or(0, serde_json::Map::len);
    if remembered > REMEMBERED_DISRUPTIONS {
        return Err(Refusal::too_many_requests(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if number("/status/disruptionsAllowed") == 0 {
        return Err(refused(format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            number("/status/desiredHealthy"),
            number("/status/currentHealthy")
        )));
    }
    if dry_run {
        return Ok(());
    }
    let budgets = core.table.get("policy", "v1", "poddisruptionbudgets").cloned();
    let Some(resource) = budgets else { return Ok(()) };
    let target = Target {
        resource: Arc::clone(&resource),
        namespace: object::namespace(budget).to_owned(),
        name: name.to_owned(),
        subresource: "status".to_owned(),
    };
    let current = core.lookup(&target)?;
    let mut new = Arc::unwrap_or_clone(current.value());
    let left = number("/status/disruptionsAllowed") - 1;
    new["status"]["disruptionsAllowed"] = json!(left);
    if left == 0 {
        let exhausted = json!({
            "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
            "observedGeneration": number("/status/observedGeneration"),
            "lastTransitionTime": object::time(environment.now),
        });
        set_condition(&mut new, exhausted);
    }
    let status = object::object_at(&mut new, "status");
    let disrupted = status.entry("disruptedPods").or_insert_with(|| json!({}));
    disrupted[object::name(pod)] = json!(object::time(environment.now));
    write::update(core, &target, Part::Status, &current, new, &write::Options::default(), environment)?;
    Ok(())
}

fn mark_disrupted(core: &mut Core, target: &Target, environment: &mut Environment<'_>) {
    let Ok(current) = core.lookup(target) else { return };
    let mut new = Arc::unwrap_or_clone(current.value());
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastProbeTime": null,
        "lastTransitionTime": object::time(environment.now),
    });
    set_condition(&mut new, condition);
    let _ = write::update(core, target, Part::Status, &current, new, &write::Options::default(), environment);
}

/// Replaces the condition of the same type, or appends it.
fn set_condition(value: &mut Value, condition: Value) {
    let status = object::object_at(value, "status");
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else { return };
    let kind = object::text(&condition, "/type");
    match conditions.iter().position(|known| object::text(known, "/type") == kind) {
        Some(index) => conditions[index] = condition,
        None => conditions.push(condition),
    }
}
