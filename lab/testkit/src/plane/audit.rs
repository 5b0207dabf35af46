//! Logs the requests of an embedded cluster like kube-apiserver, so that both are counted the same way.

use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io::Write;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::USER_AGENT;
use http::{Method, Request, Response};
use salvor_apiserver::Body;
use salvor_cluster::Service;
use serde_json::{Value, json};

/// A cluster whose requests are written to a file.
#[derive(Clone, Debug)]
pub(crate) struct Audited {
    service: Service,
    log: Arc<Mutex<File>>,
}

impl Audited {
    pub(crate) fn new(service: Service, log: &Path) -> std::io::Result<Self> {
        Ok(Self { service, log: Arc::new(Mutex::new(File::create(log)?)) })
    }
}

impl<B> tower::Service<Request<B>> for Audited
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: fmt::Display,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut line = describe(&request);
        let log = Arc::clone(&self.log);
        let answer = tower::Service::call(&mut self.service, request);
        Box::pin(async move {
            let response = answer.await?;
            line["responseStatus"] = json!({ "code": response.status().as_u16() });
            if let Ok(mut log) = log.lock() {
                // One write per line: a reader sees whole lines only. A full disk shows in the test that reads it.
                let _ = log.write_all(format!("{line}\n").as_bytes());
            }
            Ok(response)
        })
    }
}

fn describe<B>(request: &Request<B>) -> Value {
    let uri = request.uri();
    let agent = request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or("");
    let target = Target::of(uri.path());
    let watches = uri.query().is_some_and(|query| query.contains("watch=true") || query.contains("watch=1"));
    let verb = match (request.method(), target.as_ref().is_some_and(|target| target.is_named)) {
        (&Method::GET, false) if watches => "watch",
        (&Method::GET, false) => "list",
        (&Method::GET, true) => "get",
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        (&Method::PATCH, _) => "patch",
        (&Method::DELETE, true) => "delete",
        (&Method::DELETE, false) => "deletecollection",
        _ => "other",
    };
    let mut line = json!({
        "verb": verb,
        "requestURI": uri.path_and_query().map_or("", |path| path.as_str()),
        "userAgent": agent,
    });
    if let Some(target) = target {
        line["objectRef"] = json!({ "resource": target.resource, "subresource": target.subresource });
    }
    line
}

/// The resource in a path.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    resource: String,
    subresource: Option<String>,
    is_named: bool,
}

impl Target {
    fn of(path: &str) -> Option<Self> {
        let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let prefix = match *parts.first()? {
            "api" => 2,
            "apis" => 3,
            _ => return None,
        };
        if parts.len() <= prefix {
            return None;
        }
        parts.drain(..prefix);
        if parts[0] == "namespaces" && parts.len() > 2 {
            parts.drain(..2);
        }
        Some(Self {
            resource: parts[0].to_owned(),
            is_named: parts.len() > 1,
            subresource: parts.get(2).map(|&part| part.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_about_resources() {
        let target = |resource: &str, subresource: Option<&str>, is_named| {
            let subresource = subresource.map(str::to_owned);
            Some(Target { resource: resource.to_owned(), subresource, is_named })
        };
        for (path, expected) in [
            ("/version", None),
            ("/api/v1", None),
            ("/api/v1/pods", target("pods", None, false)),
            ("/api/v1/namespaces/d", target("namespaces", None, true)),
            ("/api/v1/namespaces/d/pods", target("pods", None, false)),
            ("/api/v1/namespaces/d/pods/p/status", target("pods", Some("status"), true)),
            ("/apis/events.k8s.io/v1/namespaces/d/events", target("events", None, false)),
            ("/api/v1/nodes/n", target("nodes", None, true)),
        ] {
            assert_eq!(Target::of(path), expected, "{path}");
        }
    }
}
