//! Reviews: what a client may do, and who it is. Whoever has got in may do everything, and is told so.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::object;
use crate::request::{Reply, Request};
use crate::status::Refusal;

const ACCESS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const IDENTITY: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// Answers a review, or nothing if that is not the question.
pub(crate) fn answer(request: &Request) -> Option<Result<Reply, Refusal>> {
    let answer = match request.path.as_str() {
        ACCESS => access,
        IDENTITY => identity,
        _ => return None,
    };
    (request.method == Method::POST).then(|| {
        let review = request.value()?;
        Ok(Reply::new(StatusCode::CREATED, object::encode(&answer(&review))))
    })
}

fn access(review: &Value) -> Value {
    let spec = review.get("spec").cloned().unwrap_or(Value::Null);
    json!({
        "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
        "metadata": {}, "spec": spec, "status": { "allowed": true },
    })
}

fn identity(_: &Value) -> Value {
    let groups = ["system:masters", "system:authenticated"];
    json!({
        "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
        "status": { "userInfo": { "username": "admin", "groups": groups } },
    })
}
