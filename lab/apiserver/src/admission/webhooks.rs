//! Calls admission webhooks: over TLS, or through a handler in this process.
//!
//! A handler makes webhooks work under a paused clock, where a real connection would only time out.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{Method, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, CertificateError, ClientConfig, RootCertStore};

use super::hearing::{Answer, Call};

/// A call that a handler in this process answers: the `AdmissionReview` is its body.
pub type WebhookRequest = http::Request<Bytes>;
pub type WebhookAnswer = http::Response<Bytes>;

type Handler = Arc<dyn Fn(WebhookRequest) -> BoxFuture<'static, WebhookAnswer> + Send + Sync>;

const HTTPS: u16 = 443;

#[derive(Default)]
pub(crate) struct Webhooks {
    /// By host and port.
    handlers: Mutex<BTreeMap<String, Handler>>,
}

impl std::fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhooks").finish_non_exhaustive()
    }
}

impl Webhooks {
    /// Registers a handler for all calls to a host.
    pub(crate) fn put<F, A>(&self, host: &str, handler: F)
    where
        F: Fn(WebhookRequest) -> A + Send + Sync + 'static,
        A: Future<Output = WebhookAnswer> + Send + 'static,
    {
        let host = if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
            host.to_owned()
        } else {
            format!("{host}:{HTTPS}")
        };
        let handler: Handler = Arc::new(move |request| Box::pin(handler(request)));
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner).insert(host, handler);
    }

    /// Makes a call, within its timeout.
    pub(crate) async fn call(&self, call: &Call) -> Answer {
        let answering = tokio::time::timeout(call.timeout, self.exchange(call));
        let outcome = answering.await.unwrap_or_else(|_| Err("context deadline exceeded".to_owned()));
        let answer = outcome.map_err(|why| format!("Post {:?}: {why}", call.url))?;
        if answer.status().is_success() {
            return Ok(answer.into_body());
        }
        Err(unsuccessful(&answer))
    }

    async fn exchange(&self, call: &Call) -> Result<WebhookAnswer, String> {
        let uri: Uri = call.url.parse().map_err(|why| format!("{why}"))?;
        let host = uri.host().unwrap_or("").trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(HTTPS);
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let request = http::Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(HOST, authority)
            .header(ACCEPT, "application/json, */*")
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, "kube-apiserver-admission")
            .body(call.body.clone())
            .map_err(|why| why.to_string())?;
        let handler = self.handler(&format!("{host}:{port}"));
        match (handler, &call.unreachable) {
            (Some(handler), _) => Ok(handler(request).await),
            (None, Some(why)) => Err(why.clone()),
            (None, None) => over_tls(&host, port, &call.authorities, request).await,
        }
    }

    fn handler(&self, host: &str) -> Option<Handler> {
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner).get(host).cloned()
    }
}

async fn over_tls(
    host: &str,
    port: u16,
    authorities: &[u8],
    request: WebhookRequest,
) -> Result<WebhookAnswer, String> {
    let stream = TcpStream::connect((host, port)).await.map_err(|why| match why.kind() {
        ErrorKind::ConnectionRefused => format!("dial tcp {host}:{port}: connect: connection refused"),
        _ => format!("dial tcp {host}:{port}: {why}"),
    })?;
    let _ = stream.set_nodelay(true);
    let name = ServerName::try_from(host.to_owned()).map_err(|why| why.to_string())?;
    let connector = TlsConnector::from(Arc::new(trusting(authorities).map_err(|why| why.to_string())?));
    let stream = connector.connect(name, stream).await.map_err(|why| distrust(&why))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|why| why.to_string())?;
    let exchange = async {
        let response = sender.send_request(request.map(Full::new)).await.map_err(|why| why.to_string())?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|why| why.to_string())?.to_bytes();
        Ok(http::Response::from_parts(head, body))
    };
    // The connection is driven only until the answer is complete.
    let mut connection: Pin<_> = std::pin::pin!(connection);
    tokio::select! {
        biased;
        answer = exchange => answer,
        ended = &mut connection => Err(match ended {
            Ok(()) => "EOF".to_owned(),
            Err(why) => why.to_string(),
        }),
    }
}

/// TLS that trusts certificates of these authorities, and no others.
fn trusting(authorities: &[u8]) -> Result<ClientConfig, rustls::Error> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authorities).flatten() {
        roots.add(certificate)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

fn distrust(why: &std::io::Error) -> String {
    let cause = why.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "tls: failed to verify certificate: x509: certificate signed by unknown authority".to_owned()
        }
        Some(cause) => format!("tls: {cause}"),
        None => why.to_string(),
    }
}

/// The message of Go's client for an unsuccessful answer.
fn unsuccessful(answer: &WebhookAnswer) -> String {
    let kind = answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("text/plain");
    let said = if kind.starts_with("text/") {
        String::from_utf8_lossy(answer.body()).trim().to_owned()
    } else {
        "unknown".to_owned()
    };
    match answer.status() {
        StatusCode::BAD_REQUEST => "the server rejected our request for an unknown reason".to_owned(),
        StatusCode::UNAUTHORIZED => "the server has asked for the client to provide credentials".to_owned(),
        StatusCode::FORBIDDEN => said,
        StatusCode::NOT_FOUND => "the server could not find the requested resource".to_owned(),
        StatusCode::METHOD_NOT_ALLOWED => {
            "the server does not allow this method on the requested resource".to_owned()
        }
        StatusCode::SERVICE_UNAVAILABLE => "the server is currently unable to handle the request".to_owned(),
        status if status.is_server_error() => {
            format!("an error on the server ({said:?}) has prevented the request from succeeding")
        }
        status => format!(
            "the server responded with the status code {} but did not return more information",
            status.as_u16()
        ),
    }
}
