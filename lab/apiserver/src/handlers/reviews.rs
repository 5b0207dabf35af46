//! Access and token reviews. Every authenticated client is an administrator, and the reviews say so.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::object;
use crate::protocol::request::Request;
use crate::protocol::response::Reply;
use crate::protocol::status::Refusal;
use crate::protocol::user::{GROUPS, USER};

/// A resource that can only be created, and is not stored.
pub(crate) struct Review {
    pub(crate) group: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) namespaced: bool,
    status: fn() -> Value,
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

pub(crate) const VERSION: &str = "v1";

pub(crate) const ALL: &[Review] = &[
    Review {
        group: AUTHENTICATION,
        kind: "SelfSubjectReview",
        plural: "selfsubjectreviews",
        namespaced: false,
        status: || json!({ "userInfo": { "username": USER, "groups": GROUPS } }),
    },
    Review {
        group: AUTHORIZATION,
        kind: "LocalSubjectAccessReview",
        plural: "localsubjectaccessreviews",
        namespaced: true,
        status: allowed,
    },
    Review {
        group: AUTHORIZATION,
        kind: "SelfSubjectAccessReview",
        plural: "selfsubjectaccessreviews",
        namespaced: false,
        status: allowed,
    },
    Review {
        group: AUTHORIZATION,
        kind: "SelfSubjectRulesReview",
        plural: "selfsubjectrulesreviews",
        namespaced: false,
        status: || {
            json!({
                "resourceRules": [{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] }],
                "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
                "incomplete": false,
            })
        },
    },
    Review {
        group: AUTHORIZATION,
        kind: "SubjectAccessReview",
        plural: "subjectaccessreviews",
        namespaced: false,
        status: allowed,
    },
];

fn allowed() -> Value {
    json!({ "allowed": true })
}

/// Answers a review; `None` if the request is not one.
pub(crate) fn answer(request: &Request) -> Option<Result<Reply, Refusal>> {
    if request.method != Method::POST {
        return None;
    }
    let parts: Vec<&str> = request.path.split('/').filter(|part| !part.is_empty()).collect();
    let (group, plural, namespaced) = match parts.as_slice() {
        ["apis", group, VERSION, plural] => (*group, *plural, false),
        ["apis", group, VERSION, "namespaces", _, plural] => (*group, *plural, true),
        _ => return None,
    };
    let is_asked = |review: &&Review| {
        review.group == group && review.plural == plural && review.namespaced == namespaced
    };
    let review = ALL.iter().find(is_asked)?;
    Some(request.value().map(|asked| {
        let mut answer = json!({
            "kind": review.kind, "apiVersion": format!("{}/{VERSION}", review.group),
            "metadata": {}, "status": (review.status)(),
        });
        if let Some(spec) = asked.get("spec") {
            answer["spec"] = spec.clone();
        }
        Reply::new(StatusCode::CREATED, object::encode(&answer))
    }))
}
