//! Access reviews. Whoever has got in may do everything, and is told so.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::object;
use crate::request::{Reply, Request};
use crate::status::Refusal;

const PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Answers whether the client may do something, or nothing if that is not the question.
pub(crate) fn answer(request: &Request) -> Option<Result<Reply, Refusal>> {
    (request.path == PATH && request.method == Method::POST).then(|| {
        let review = request.value()?;
        let spec = review.get("spec").cloned().unwrap_or(Value::Null);
        let answer = json!({
            "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "metadata": {}, "spec": spec, "status": { "allowed": true },
        });
        Ok(Reply::new(StatusCode::CREATED, object::encode(&answer)))
    })
}
