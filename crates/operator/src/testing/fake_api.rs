//! An API server in a closure, for tests: it records requests and answers by a script.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::body::Body;
use http::{
    Method, Request, Response,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use kube::Client;
use serde_json::{Value, json};
use tokio::time::Instant;

/// One request, as it left the client.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) at: Instant,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) content_type: String,
    pub(crate) body: Value,
}

pub(crate) enum Answer {
    Json(u16, Value),
    /// A Status with this code and message.
    Refused(u16, &'static str),
    /// 429, with this Retry-After.
    Throttled(Option<&'static str>),
    /// Applied by the server at once, answered late.
    Late(Duration, Box<Answer>),
    Never,
}

impl Answer {
    pub(crate) fn ok() -> Self {
        Self::Json(200, json!({}))
    }

    pub(crate) fn late(self, by: Duration) -> Self {
        Self::Late(by, Box::new(self))
    }
}

/// The server. It finishes every request, even when the client has given up.
pub(crate) struct FakeApi {
    pub(crate) client: Client,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl FakeApi {
    pub(crate) fn new(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        Self::behind(|| Duration::ZERO, answer)
    }

    /// A server behind a network in which each request takes some time to arrive.
    pub(crate) fn behind(
        way: impl Fn() -> Duration + Send + Sync + 'static,
        answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (heard, answer) = (asked.clone(), Arc::new(answer));
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (heard, answer, way) = (heard.clone(), answer.clone(), way());
            let at = Instant::now();
            let handling = tokio::spawn(async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let content_type = parts.headers.get(CONTENT_TYPE).map_or("", |v| v.to_str().unwrap());
                let asked = Asked {
                    at,
                    method: parts.method,
                    path: parts.uri.path().to_owned(),
                    query: parts.uri.query().unwrap_or("").to_owned(),
                    content_type: content_type.to_owned(),
                    body: serde_json::from_slice(&body).unwrap_or(Value::Null),
                };
                heard.lock().unwrap().push(asked.clone());
                if !way.is_zero() {
                    tokio::time::sleep(way).await;
                }
                respond(answer(&asked)).await
            });
            async move { Ok::<_, Infallible>(handling.await.unwrap()) }
        });
        Self { client: Client::new(service, "default"), asked }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// When requests of this method were sent.
    pub(crate) fn times(&self, method: &Method) -> Vec<Instant> {
        self.asked().iter().filter(|a| a.method == *method).map(|a| a.at).collect()
    }

    pub(crate) fn count(&self, method: &Method) -> usize {
        self.times(method).len()
    }
}

/// Waits with a timeout: otherwise virtual time would run on for ever if the event does not happen.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(600), what).await.expect("it never happened")
}

async fn respond(mut answer: Answer) -> Response<Body> {
    while let Answer::Late(by, then) = answer {
        tokio::time::sleep(by).await;
        answer = *then;
    }
    let status = |code: u16, message: &str| {
        let reason = match code {
            404 => "NotFound",
            409 => "AlreadyExists",
            _ => "Other",
        };
        json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message})
    };
    let (code, retry_after, body) = match answer {
        Answer::Json(code, body) => (code, None, body),
        Answer::Refused(code, message) => (code, None, status(code, message)),
        Answer::Throttled(retry_after) => (429, retry_after, status(429, "slow down")),
        Answer::Late(..) | Answer::Never => std::future::pending().await,
    };
    let mut response = Response::builder().status(code);
    if let Some(seconds) = retry_after {
        response = response.header(RETRY_AFTER, seconds);
    }
    response.body(Body::from(body.to_string())).unwrap()
}
