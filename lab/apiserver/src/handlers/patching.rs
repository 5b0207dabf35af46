//! Patch requests: applies the patch to the present object, and writes the result.

use std::sync::Arc;

use http::StatusCode;
use serde_json::json;

use super::apply;
use super::write::{self, Options};
use crate::environment::Environment;
use crate::kinds::part::Part;
use crate::kinds::{events, metadata};
use crate::object::{self, Stored};
use crate::patch::{self, json_patch, strategic};
use crate::protocol::request::{Query, Request, Target, media_type};
use crate::protocol::status::Refusal;
use crate::state::{self, Core};

pub(crate) fn patch(
    core: &mut Core,
    target: &Target,
    request: &Request,
    query: &Query,
    warnings: &mut Vec<String>,
    environment: &mut Environment<'_>,
) -> Result<(StatusCode, Arc<Stored>), Refusal> {
    let part = match target.subresource.as_str() {
        "status" | "approval" => Part::Status,
        "" => Part::Whole,
        _ => Part::Spec,
    };
    let options = Options::read(request, query)?;
    let resource = &target.resource;
    let kind = media_type(&request.content_type);
    if kind.starts_with("application/apply-patch") {
        return apply::apply(core, target, part, request, query, &options, environment);
    }
    let supported: &[&str] = if resource.custom.is_some() {
        &["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"]
    } else {
        &[
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        ]
    };
    if !supported.contains(&kind) {
        return Err(if resource.custom.is_some() {
            Refusal::unsupported_media_type(format!(
                "the body of the request was in an unknown format - accepted media types include: {}",
                supported.join(", ")
            ))
        } else {
            Refusal::unsupported_media_type("415: Unsupported Media Type").without_details()
        });
    }
    let current = core.lookup(target)?;
    let body = request.value().map_err(|_| malformed(request))?;
    let mut patched = events::shown(resource, &current.value());
    match kind {
        "application/json-patch+json" => {
            json_patch::apply(&mut patched, &body).map_err(does_not_apply)?;
        }
        "application/merge-patch+json" => {
            if !body.is_object() {
                return Err(malformed(request));
            }
            patch::merge(&mut patched, &body);
        }
        _ => {
            if !body.is_object() {
                return Err(malformed(request));
            }
            strategic::apply(&mut patched, &body, &resource.schema).map_err(|why| {
                if why.contains("merge key") {
                    Refusal::internal_plain(&why)
                } else {
                    Refusal::bad_request(why)
                }
            })?;
        }
    }
    state::check_type(resource, &patched)?;
    let mut value = write::admit_fields(resource, patched, request, query, warnings)?;
    if object::name(&value) != target.name
        || (resource.namespaced && object::namespace(&value) != target.namespace)
    {
        metadata::check_place(&mut value, resource, &target.namespace, &target.name)?;
    }
    if object::text(&value, "/metadata/resourceVersion").is_empty() {
        let version = object::text(&current.value(), "/metadata/resourceVersion").to_owned();
        object::set_metadata(&mut value, "resourceVersion", json!(version));
    }
    let stored = write::update(core, target, part, &current, value, &options, environment)?;
    Ok((StatusCode::OK, stored))
}

fn does_not_apply(failure: json_patch::Failure) -> Refusal {
    match failure {
        json_patch::Failure::Malformed(why) => Refusal::bad_request(format!("error decoding patch: {why}")),
        json_patch::Failure::DoesNotApply => {
            Refusal::new(422, "Invalid", "the server rejected our request due to an error in our request")
                .without_details()
        }
    }
}

fn malformed(request: &Request) -> Refusal {
    let text = String::from_utf8_lossy(&request.body);
    Refusal::bad_request(format!("error decoding patch: invalid JSON: {text}"))
}
