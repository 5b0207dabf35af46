//! What a control plane's parts and clients need in order to trust each other: a certificate authority, a serving
//! certificate, the key that signs service account tokens, and a static token for each user.

use std::fs;
use std::io;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

pub(crate) const CA: &str = "ca.crt";
pub(crate) const SERVING_CERTIFICATE: &str = "serving.crt";
pub(crate) const SERVING_KEY: &str = "serving.key";
pub(crate) const SERVICE_ACCOUNT_KEY: &str = "service-accounts.key";
pub(crate) const SERVICE_ACCOUNT_PUBLIC_KEY: &str = "service-accounts.pub";
pub(crate) const TOKENS: &str = "tokens.csv";

/// A user with a static token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    Admin,
    ControllerManager,
    Scheduler,
}

impl User {
    const ALL: [Self; 3] = [Self::Admin, Self::ControllerManager, Self::Scheduler];

    fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::ControllerManager => "system:kube-controller-manager",
            Self::Scheduler => "system:kube-scheduler",
        }
    }

    /// The controller manager's own role only covers the manager itself: in production each of its loops logs in as a
    /// separate service account. Here they are all one user, so that the manager starts without waiting for those.
    fn groups(self) -> &'static str {
        match self {
            Self::Admin | Self::ControllerManager => "system:masters",
            Self::Scheduler => "",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) ca_pem: String,
    pub(crate) ca_der: Vec<u8>,
    serving_pem: String,
    serving_key_pem: String,
    service_account_key: KeyPair,
    tokens: [String; User::ALL.len()],
}

impl Credentials {
    pub(crate) fn generate() -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "salvor-testkit-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;

        let mut params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, "salvor-testkit-serving");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let serving_key = KeyPair::generate()?;
        let serving = params.signed_by(&serving_key, &ca)?;

        Ok(Self {
            ca_pem: ca.pem(),
            ca_der: ca.der().to_vec(),
            serving_pem: serving.pem(),
            serving_key_pem: serving_key.serialize_pem(),
            service_account_key: KeyPair::generate()?,
            tokens: User::ALL.map(|_| crate::random::suffix(13) + &crate::random::suffix(13)),
        })
    }

    pub(crate) fn token(&self, user: User) -> &str {
        &self.tokens[user as usize]
    }

    /// Writes all files into a folder, under the names above.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        let tokens: String = User::ALL
            .into_iter()
            .map(|user| {
                let (token, name, groups) = (self.token(user), user.name(), user.groups());
                format!("{token},{name},{name},\"{groups}\"\n")
            })
            .collect();
        for (name, content) in [
            (CA, self.ca_pem.as_str()),
            (SERVING_CERTIFICATE, &self.serving_pem),
            (SERVING_KEY, &self.serving_key_pem),
            (SERVICE_ACCOUNT_KEY, &self.service_account_key.serialize_pem()),
            (SERVICE_ACCOUNT_PUBLIC_KEY, &self.service_account_key.public_key_pem()),
            (TOKENS, &tokens),
        ] {
            fs::write(folder.join(name), content)?;
        }
        Ok(())
    }
}
