//! The certificate and key that the TLS server uses, from our own authority or from files.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use tokio_rustls::rustls::{
    self, ServerConfig,
    crypto::{CryptoProvider, ring::default_provider},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use super::x509::{Validity, validity};

#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    #[error("a certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("a key cannot be used: {0}")]
    Key(&'static str),
    /// For example because the key does not match.
    #[error("the certificate and its key cannot be used: {0}")]
    Pair(rustls::Error),
    #[error("the first certificate has no validity that can be read")]
    NoValidity,
    #[error("{path} (webhooks.certDir): {problem}")]
    File {
        path: PathBuf,
        /// What is wrong with it, and how to fix it.
        problem: String,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Serving {
    key: Arc<CertifiedKey>,
    pub(super) validity: Validity,
    /// Identifies its origin: the authority or the file content.
    pub(super) mark: String,
}

impl Serving {
    pub(super) fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        mark: String,
    ) -> Result<Self, ServingError> {
        let validity = chain.first().and_then(|leaf| validity(leaf)).ok_or(ServingError::NoValidity)?;
        let key = CertifiedKey::from_der(chain, key, &default_provider()).map_err(ServingError::Pair)?;
        Ok(Self { key: Arc::new(key), validity, mark })
    }
}

/// The certificate for the next connection. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown(Arc<RwLock<Option<Serving>>>);

impl Shown {
    pub(super) fn show(&self, serving: Serving) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(serving);
    }

    pub(super) fn now(&self) -> Option<(Validity, String)> {
        let shown = self.0.read().unwrap_or_else(PoisonError::into_inner);
        shown.as_ref().map(|serving| (serving.validity, serving.mark.clone()))
    }

    pub(super) fn tls(&self) -> Result<ServerConfig, rustls::Error> {
        let provider: Arc<CryptoProvider> = Arc::new(default_provider());
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(self.clone()));
        // The API server keeps its connections open, so session resumption gains nothing.
        tls.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        tls.send_tls13_tickets = 0;
        Ok(tls)
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let shown = self.0.read().unwrap_or_else(PoisonError::into_inner);
        shown.as_ref().map(|serving| serving.key.clone())
    }
}

/// Certificates that the administrator provides in a folder.
#[derive(Clone, Debug)]
pub(super) struct Files(PathBuf);

/// A larger file is no certificate.
const LARGEST_FILE: u64 = 1024 * 1024;

impl Files {
    pub(super) fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// The certificate that is there now, and the authority that the API server must trust for it, if there is one.
    pub(super) fn read(&self) -> Result<(Serving, Option<String>), ServingError> {
        let bad = |name: &str, problem: String| ServingError::File { path: self.0.join(name), problem };
        let needed = |name: &'static str| {
            let text = read(&self.0.join(name)).map_err(|problem| bad(name, problem))?;
            text.ok_or_else(|| {
                bad(name, "there is no such file: put tls.crt and tls.key into the folder".to_owned())
            })
        };
        let certificates = |name: &'static str, text: &str| {
            let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
            let read = read.map_err(|error| bad(name, format!("cannot be read as PEM: {error}")))?;
            if read.is_empty() {
                return Err(bad(name, "has no certificate: write PEM with BEGIN CERTIFICATE".to_owned()));
            }
            Ok(read)
        };
        let (certificate, key) = (needed("tls.crt")?, needed("tls.key")?);
        let chain = certificates("tls.crt", &certificate)?;
        let private = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|error| bad("tls.key", format!("has no private key that can be read: {error}")))?;
        let trusted = read(&self.0.join("ca.crt")).map_err(|problem| bad("ca.crt", problem))?;
        if let Some(trusted) = &trusted {
            certificates("ca.crt", trusted)?;
        }
        Ok((Serving::new(chain, private, format!("{certificate}{key}"))?, trusted))
    }
}

/// A file's text; `None` if there is no such file.
fn read(path: &Path) -> Result<Option<String>, String> {
    match std::fs::metadata(path) {
        Ok(about) if about.len() > LARGEST_FILE => {
            return Err(format!("has {} bytes, more than {LARGEST_FILE}", about.len()));
        }
        Ok(about) if !about.is_file() => return Err("is not a file".to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot be read: {error}")),
    }
    std::fs::read_to_string(path).map(Some).map_err(|error| format!("cannot be read: {error}"))
}
