//! The section `webhooks`: how admission webhooks are served.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::found::Found;
use super::problem::Path;
use crate::label_selector::is_dns_subdomain;

/// The admission webhooks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct WebhookSettings {
    /// Whether webhooks are served.
    pub enabled: bool,
    /// The address of the webhooks.
    pub bind: SocketAddr,
    /// The URL that the API server uses to reach this process, if not through a Service.
    pub url: Option<String>,
    /// A folder with the administrator's own certificates.
    pub cert_dir: Option<String>,
}

impl Default for WebhookSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            bind: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 9443)),
            url: None,
            cert_dir: None,
        }
    }
}

impl WebhookSettings {
    /// The host name or IP address in `url`, without the brackets of an IPv6 address. `None` if `url` is not set or
    /// does not have the form `https://HOST:PORT`.
    pub fn url_host(&self) -> Option<&str> {
        let authority = self.url.as_deref()?.strip_prefix("https://")?;
        let (host, port) = authority.rsplit_once(':')?;
        // `parse` alone would accept a leading plus sign.
        let is_port =
            port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => address.parse::<Ipv6Addr>().is_ok().then_some(address)?,
            None => is_dns_subdomain(host).then_some(host)?,
        };
        is_port.then_some(host)
    }
}

pub(super) fn check(webhooks: &WebhookSettings, found: &mut Found) {
    if let Some(url) = webhooks.url.as_deref().filter(|_| webhooks.url_host().is_none()) {
        let message = format!(
            "{url:?} cannot be called: write https://HOST:PORT, with a DNS name or IP address, for example https://10.0.0.1:9443"
        );
        found.note(Path::of("webhooks.url"), message);
    }
}
