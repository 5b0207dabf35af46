//! A webhook on loopback. The path of a call determines its behaviour.

use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// A webhook that listens until it is dropped.
pub(crate) struct Webhook {
    address: SocketAddr,
    certificate: String,
    accepting: JoinHandle<()>,
}

impl Webhook {
    pub(crate) async fn start() -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
        let tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let tls = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let tls = tls.clone();
                connections.spawn(async move {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service_fn(serve))
                        .await;
                });
            }
        });
        Self { address, certificate: certificate.pem(), accepting }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The `caBundle` that trusts it.
    pub(crate) fn bundle(&self) -> String {
        STANDARD.encode(&self.certificate)
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(request: http::Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await?.to_bytes();
    if path == "/slow" {
        std::future::pending::<()>().await;
    }
    Ok(answer(&path, &body).map(Full::new))
}

pub(crate) fn answer(path: &str, body: &Bytes) -> Response<Bytes> {
    let review: Value = serde_json::from_slice(body).unwrap();
    let request = &review["request"];
    let object = &request["object"];
    let (behaviour, argument) = path.trim_start_matches('/').split_once('/').unwrap_or((&path[1..], ""));
    let mut response = json!({ "uid": request["uid"], "allowed": true });
    let mut patch = Vec::new();
    match behaviour {
        "allow" => {}
        "label" => {
            if object["metadata"].get("labels").is_none() {
                patch.push(json!({ "op": "add", "path": "/metadata/labels", "value": {} }));
            }
            patch
                .push(json!({ "op": "add", "path": format!("/metadata/labels/{argument}"), "value": "yes" }));
        }
        // Each call appends to the list, and records the labels that it saw.
        "trace" => {
            let labels = object["metadata"]["labels"].as_object().map_or(0, serde_json::Map::len);
            let before = object["metadata"]["annotations"]["trace"].as_str().unwrap_or("").to_owned();
            let after = format!("{before}{argument}{labels} ");
            let annotations = json!({ "trace": after });
            patch.push(json!({ "op": "add", "path": "/metadata/annotations", "value": annotations }));
        }
        "echo" => {
            let seen = json!({ "seen": condensed(request) });
            patch.push(json!({ "op": "add", "path": "/metadata/annotations", "value": seen }));
        }
        "data" => patch.push(json!({ "op": "add", "path": "/data", "value": { "from": "webhook" } })),
        "unknown-field" => patch.push(json!({ "op": "add", "path": "/colour", "value": "red" })),
        "bad-label" => {
            patch.push(json!({ "op": "add", "path": "/metadata/labels", "value": { "no": "not one!" } }));
        }
        "bad-type" => patch.push(json!({ "op": "add", "path": "/data", "value": 7 })),
        "does-not-apply" => patch.push(json!({ "op": "remove", "path": "/nothing/here" })),
        "replicas" => patch.push(json!({ "op": "replace", "path": "/spec/replicas", "value": 7 })),
        "tell" => {
            response["allowed"] = json!(false);
            response["status"] = json!({ "message": condensed(request) });
        }
        "deny" => {
            response["allowed"] = json!(false);
            response["status"] = json!({ "message": "not today", "code": 403, "reason": "Forbidden" });
        }
        "deny-by-reason" => {
            response["allowed"] = json!(false);
            response["status"] = json!({ "reason": "Weather" });
        }
        "deny-silently" => response["allowed"] = json!(false),
        "deny-with-details" => {
            response["allowed"] = json!(false);
            response["status"] = json!({
                "message": "two things", "code": 422, "reason": "Invalid", "status": "Success",
                "details": { "name": "a", "kind": "Thing", "causes": [{ "reason": "Colour", "message": "red", "field": "spec.colour" }] },
            });
        }
        "warn" => response["warnings"] = json!(["first", "second \"quoted\""]),
        "deny-and-warn" => {
            response["allowed"] = json!(false);
            response["warnings"] = json!(["beware"]);
        }
        "wrong-uid" => response["uid"] = json!("another"),
        "patch-without-type" => response["patch"] = json!(STANDARD.encode("[]")),
        "type-without-patch" => response["patchType"] = json!("JSONPatch"),
        "fail" => return said(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", "out of order"),
        "missing" => return said(StatusCode::NOT_FOUND, "text/plain", "nothing here"),
        "absent" => {
            let review = json!({ "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1" });
            return said(StatusCode::OK, "application/json", &review.to_string());
        }
        "other-version" => {
            let review = json!({ "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1", "response": response });
            return said(StatusCode::OK, "application/json", &review.to_string());
        }
        other => panic!("no behaviour is called {other:?}"),
    }
    if !patch.is_empty() {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(STANDARD.encode(Value::from(patch).to_string()));
    }
    let review = json!({
        "kind": "AdmissionReview", "apiVersion": review["apiVersion"], "response": response,
    });
    said(StatusCode::OK, "application/json", &review.to_string())
}

fn said(code: StatusCode, kind: &str, text: &str) -> Response<Bytes> {
    let builder = Response::builder().status(code).header("content-type", kind);
    builder.body(Bytes::from(text.to_owned())).unwrap()
}

/// A review without values that always differ.
fn condensed(request: &Value) -> String {
    let mut request = request.clone();
    let members = request.as_object_mut().unwrap();
    members.remove("uid");
    members.remove("userInfo");
    // Absent and null are the same to a webhook.
    members.retain(|_, member| !member.is_null());
    for key in ["object", "oldObject"] {
        let Some(object) = members.get_mut(key) else { continue };
        let Some(metadata) = object["metadata"].as_object_mut() else { continue };
        metadata.remove("managedFields");
        metadata.remove("annotations");
        for key in ["uid", "resourceVersion", "creationTimestamp"] {
            if metadata.get(key).is_some_and(Value::is_null) {
                metadata.remove(key);
            }
            if let Some(field) = metadata.get_mut(key) {
                *field = json!("set");
            }
        }
    }
    request.to_string()
}
