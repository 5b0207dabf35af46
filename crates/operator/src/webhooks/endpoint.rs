//! Answers HTTP requests through the handlers. Any client may connect and send anything; only the API server gets an
//! answer.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{
        Method, StatusCode,
        header::{ALLOW, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    keyring::Keyring,
    registration::Registration,
    review::{self, Answer, Ruling},
};
use crate::{metrics::Metrics, time::within};

/// The API server accepts requests of up to 3 MiB, and a review contains the old and the new object.
pub(super) const LARGEST_BODY: usize = 7 * 1024 * 1024;
/// Total budget for bodies beyond [`SMALL`] that are being read or answered.
const ALL_BODIES: usize = 16 * 1024 * 1024;
/// This much of a body is read without using the budget, so that a client that fills the budget cannot block ordinary
/// requests. The number of connections bounds the total.
const SMALL: usize = 32 * 1024;
/// Larger bodies are handled one at a time, because a handler may need a multiple of their size in memory.
const LARGE: usize = 256 * 1024;
/// The unit of the budget, in bytes.
const UNIT: usize = 1024;
/// Timeout for reading a body. The API server is near and sends it in one go.
const BODY_WITHIN: Duration = Duration::from_secs(5);

struct Endpoint {
    registrations: BTreeMap<&'static str, Registration>,
    keyring: Keyring,
    metrics: Metrics,
    budget: Arc<Semaphore>,
    one_large: Semaphore,
}

pub(super) fn router(registrations: Vec<Registration>, keyring: Keyring, metrics: Metrics) -> Router {
    let registrations = registrations.into_iter().map(|it| (it.webhook.path, it)).collect();
    let budget = Arc::new(Semaphore::new(ALL_BODIES / UNIT));
    Router::new().fallback(answer).with_state(Arc::new(Endpoint {
        registrations,
        keyring,
        metrics,
        budget,
        one_large: Semaphore::new(1),
    }))
}

/// A request that does not reach its handler.
struct Refusal {
    status: StatusCode,
    outcome: &'static str,
    text: String,
}

impl Refusal {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        let outcome = if status.is_client_error() { "bad_request" } else { "error" };
        Self { status, outcome, text: text.into() }
    }
}

async fn answer(State(endpoint): State<Arc<Endpoint>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let Some(registration) = endpoint.registration(&path).await else {
        return (StatusCode::NOT_FOUND, "there is no webhook at this path\n").into_response();
    };
    let name = registration.webhook.name;
    match endpoint.attend(registration, request).await {
        Ok((outcome, review)) => {
            endpoint.metrics.admitted(name, outcome);
            ([(CONTENT_TYPE, "application/json")], review).into_response()
        }
        Err(Refusal { status, outcome, text }) => {
            endpoint.metrics.admitted(name, outcome);
            // Any client may send a bad request, so that is not worth a log line.
            if status.is_server_error() {
                tracing::warn!(
                    webhook = name,
                    status = status.as_u16(),
                    error = text,
                    "admission request failed"
                );
            }
            let mut response = (status, format!("{text}\n")).into_response();
            if status == StatusCode::METHOD_NOT_ALLOWED {
                response.headers_mut().insert(ALLOW, axum::http::HeaderValue::from_static("POST"));
            }
            response
        }
    }
}

impl Endpoint {
    /// The webhook at a path, if the path ends with the token that only the API server knows. Other clients cannot even
    /// find out which paths exist.
    async fn registration(&self, path: &str) -> Option<&Registration> {
        let (path, token) = path.rsplit_once('/')?;
        if self.keyring.lets_in(token).await { self.registrations.get(path) } else { None }
    }

    async fn attend(
        &self,
        registration: &Registration,
        request: Request,
    ) -> Result<(&'static str, String), Refusal> {
        let webhook = &registration.webhook;
        if request.method() != Method::POST {
            let text = format!("{} is not allowed: send an AdmissionReview with POST", request.method());
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, text));
        }
        let form =
            request.headers().get(CONTENT_TYPE).and_then(|form| form.to_str().ok()).unwrap_or_default();
        if form.split(';').next().is_none_or(|form| form.trim() != "application/json") {
            let text = format!("the content type is {form:?}: send application/json");
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
        }
        let Some(body) = within(BODY_WITHIN, self.body(request.into_body())).await else {
            let text = format!("the body did not arrive within {} s", BODY_WITHIN.as_secs());
            return Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, text));
        };
        let (body, _held) = body?;
        let asked = review::read(&body).map_err(|problem| Refusal::new(StatusCode::BAD_REQUEST, problem))?;
        let uid = asked.uid.clone();
        let is_large = body.len() > LARGE;
        drop(body);
        let limit = Duration::from_secs(u64::from(webhook.timeout_seconds));
        let handled = async {
            // The semaphore is never closed.
            let _turn = if is_large { self.one_large.acquire().await.ok() } else { None };
            registration.answer(asked).await
        };
        let Some(answer) = within(limit, handled).await else {
            let text = format!("no answer was found within {} s", limit.as_secs());
            return Err(Refusal { status: StatusCode::GATEWAY_TIMEOUT, outcome: "timed_out", text });
        };
        let review = review::write(webhook.kind, &uid, &answer)
            .map_err(|defect| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, defect))?;
        Ok((outcome(&answer), review.to_string()))
    }

    /// The whole body, and the permits of the budget that it holds while it is needed.
    async fn body(&self, body: Body) -> Result<(Bytes, Vec<OwnedSemaphorePermit>), Refusal> {
        let (mut read, mut held, mut units) = (Vec::new(), Vec::new(), 0);
        let mut parts = body.into_data_stream();
        while let Some(part) = parts.next().await {
            let part = part.map_err(|error| {
                Refusal::new(StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}"))
            })?;
            let length = read.len() + part.len();
            if length > LARGEST_BODY {
                let text = format!("the body has more than {LARGEST_BODY} bytes");
                return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text));
            }
            let needed = length.saturating_sub(SMALL).div_ceil(UNIT);
            if let Ok(more @ 1..) = u32::try_from(needed - units) {
                let taken = self.budget.clone().try_acquire_many_owned(more).map_err(|_| {
                    Refusal::new(
                        StatusCode::SERVICE_UNAVAILABLE,
                        "too much is being asked at once: try again",
                    )
                })?;
                units = needed;
                held.push(taken);
            }
            read.extend_from_slice(&part);
        }
        Ok((read.into(), held))
    }
}

fn outcome(answer: &Answer) -> &'static str {
    match answer.ruling {
        Ruling::Allowed => "allowed",
        Ruling::Patched(_) => "patched",
        Ruling::Denied { .. } => "denied",
    }
}
