//! The server on a socket, for `kubectl` and for other controllers: TLS, one bearer token, and the kubeconfig that
//! contains both.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tower::Service;

use crate::cluster;
use crate::protocol::response::Reply;
use crate::protocol::status::Refusal;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {address}: {source}")]
    Address {
        address: SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    #[error("no certificate for the embedded server: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("TLS refuses the embedded server's certificate: {0}")]
    Tls(#[from] tokio_rustls::rustls::Error),
}

/// A listening cluster. It stops when this is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    kubeconfig: String,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Serves a cluster, or a cluster behind faults, on an address; port 0 chooses a free one. Only clients with the
    /// [`kubeconfig`](Self::kubeconfig) have access, and they may do everything.
    ///
    /// # Errors
    /// If the address is not available, or no certificate can be created.
    pub async fn start<S, B>(service: S, address: SocketAddr) -> Result<Self, ServerError>
    where
        S: Service<http::Request<Incoming>, Response = http::Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let listener =
            TcpListener::bind(address).await.map_err(|source| ServerError::Address { address, source })?;
        let address = listener.local_addr().map_err(|source| ServerError::Address { address, source })?;
        let credentials = Credentials::generate(address)?;
        let tls = TlsAcceptor::from(Arc::new(credentials.tls));
        let token: Arc<str> = format!("Bearer {}", credentials.token).into();
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                // Finished connections are reaped as others come.
                while connections.try_join_next().is_some() {}
                let Ok((stream, _)) = listener.accept().await else { continue };
                // Otherwise an event of a watch waits until the previous one is acknowledged, up to 40 ms.
                let _ = stream.set_nodelay(true);
                let (tls, token, service) = (tls.clone(), Arc::clone(&token), service.clone());
                connections.spawn(async move {
                    // A failed handshake concerns only that client.
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let answer =
                        service_fn(move |request| answer(service.clone(), Arc::clone(&token), request));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), answer)
                        .await;
                });
            }
        });
        Ok(Self {
            address,
            kubeconfig: kubeconfig(address, &credentials.authority, &credentials.token),
            accepting,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A self-contained kubeconfig for other processes. (JSON is YAML.)
    pub fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn answer<S, B>(
    mut service: S,
    token: Arc<str>,
    request: http::Request<Incoming>,
) -> Result<http::Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>
where
    S: Service<http::Request<Incoming>, Response = http::Response<B>>,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let given = request.headers().get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let is_open = ["/healthz", "/livez", "/readyz"].contains(&request.uri().path());
    if given != Some(&*token) && !is_open {
        let refusal = Refusal::new(401, "Unauthorized", "Unauthorized");
        let response = cluster::whole(Reply::refusal(&refusal));
        return Ok(response.map(|body| body.map_err(|never: Infallible| match never {}).boxed_unsync()));
    }
    std::future::poll_fn(|context| service.poll_ready(context)).await.map_err(Into::into)?;
    let response = service.call(request).await.map_err(Into::into)?;
    Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
}

struct Credentials {
    authority: String,
    token: String,
    tls: ServerConfig,
}

impl Credentials {
    fn generate(address: SocketAddr) -> Result<Self, ServerError> {
        let authority_key = KeyPair::generate()?;
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.distinguished_name.push(DnType::CommonName, "salvor-embedded");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let authority_certificate = authority.self_signed(&authority_key)?;
        let issuer = Issuer::new(authority, authority_key);
        let key = KeyPair::generate()?;
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), address.ip().to_string()];
        let certificate = CertificateParams::new(names)?.signed_by(&key, &issuer)?;
        let private = PrivateKeyDer::try_from(key.serialize_der())
            .map_err(|why| tokio_rustls::rustls::Error::General(why.to_owned()))?;
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)?;
        Ok(Self { authority: authority_certificate.pem(), token: secret()?, tls })
    }
}

/// A token that cannot be guessed: it uses the operating system's randomness, by way of a key that is generated only
/// for this. (The seeded randomness of a cluster would be the same in every run.)
fn secret() -> Result<String, rcgen::Error> {
    let key = KeyPair::generate()?;
    let bytes = key.serialize_der();
    // The private number of a P-256 key begins 36 bytes into its PKCS #8 form.
    let private = bytes.get(36..68).unwrap_or(&bytes);
    Ok(URL_SAFE_NO_PAD.encode(private))
}

fn kubeconfig(address: SocketAddr, authority: &str, token: &str) -> String {
    let name = "salvor-embedded";
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": name, "cluster": {
            "server": format!("https://{address}"),
            "certificate-authority-data": STANDARD.encode(authority),
        }}],
        "users": [{ "name": name, "user": { "token": token } }],
        "contexts": [{ "name": name, "context": { "cluster": name, "user": name, "namespace": "default" } }],
        "current-context": name,
    });
    config.to_string()
}
