//! The webhooks' own certificate authority: created, stored and rotated before it expires, so that the API server
//! always trusts what any replica serves.
//!
//! Replicas share authorities, not certificates: each replica signs a short-lived certificate for itself. An authority
//! is rotated in two steps. First the next one is only trusted, for [`SETTLE`]; then it signs, and the previous one
//! stays trusted until it expires. So a replica that notices the rotation late still serves a trusted certificate, and
//! the server never sees a certificate that it does not trust yet.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp, Unit};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, date_time_ymd,
};
use serde_json::Value;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use super::{
    serving::{Serving, ServingError},
    x509::{Validity, validity},
};

const DAY: SignedDuration = SignedDuration::from_hours(24);
pub(super) const AUTHORITY_LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);
/// The next authority is created when the current one is valid for no longer than this. Three months are enough to
/// notice that rotation does not work.
pub(super) const REPLACE_BEFORE: SignedDuration = SignedDuration::from_hours(90 * 24);
/// The next authority is trusted for this long before it signs. Every replica reads the Secret many times within a day.
pub(super) const SETTLE: SignedDuration = DAY;
pub(super) const SERVING_LIFE: SignedDuration = SignedDuration::from_hours(30 * 24);
/// An authority that is valid for no longer than this is replaced at once, without the settling time.
const TOO_LATE: SignedDuration = DAY;
/// Certificates are backdated by this much, because clocks differ.
pub(super) const BACKDATED: SignedDuration = SignedDuration::from_hours(1);
/// The common name of every authority. A client tries all trusted authorities with this name.
const NAME: &str = "salvor-webhooks-ca";

/// The keys of the Secret.
const CURRENT: &str = "current";
const NEXT: &str = "next";
const PREVIOUS: &str = "previous";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trusted {
    pem: String,
    validity: Validity,
}

impl Trusted {
    fn read(pem: &[u8]) -> Option<Self> {
        let der = CertificateDer::from_pem_slice(pem).ok()?;
        Some(Self { validity: validity(&der)?, pem: String::from_utf8(pem.to_vec()).ok()? })
    }

    fn expired(&self, now: Timestamp) -> bool {
        self.validity.until <= now
    }
}

/// A certificate that may be trusted, and the key that signs for it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Authority {
    trusted: Trusted,
    key: String,
}

impl Authority {
    fn make(now: Timestamp) -> Result<Self, rcgen::Error> {
        let mut params = Self::params();
        // Certificates store whole seconds, and the value must survive a round trip.
        let now = now.round(Unit::Second).unwrap_or(now);
        let validity = Validity { from: now - BACKDATED, until: now + AUTHORITY_LIFE };
        set_validity(&mut params, validity);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { trusted: Trusted { pem, validity }, key: key.serialize_pem() })
    }

    /// All parameters except the validity, which does not matter for signing.
    fn params() -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, NAME);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params
    }

    /// Reads a stored authority; `None` if it is malformed or the key does not match the certificate.
    fn read(certificate: &[u8], key: &[u8]) -> Option<Self> {
        let trusted = Trusted::read(certificate)?;
        let key = std::str::from_utf8(key).ok()?;
        let public = KeyPair::from_pem(key).ok()?.subject_public_key_info();
        let der = CertificateDer::from_pem_slice(certificate).ok()?;
        der.windows(public.len()).any(|part| part == public).then(|| Self { trusted, key: key.to_owned() })
    }

    /// Signs a certificate for these host names and IP addresses.
    pub(super) fn issue(&self, names: &[String], now: Timestamp) -> Result<Serving, ServingError> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, "salvor-webhooks");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let until = (now + SERVING_LIFE).min(self.trusted.validity.until);
        set_validity(&mut params, Validity { from: now - BACKDATED, until });
        let key = KeyPair::generate()?;
        let issuer = Issuer::new(Self::params(), KeyPair::from_pem(&self.key)?);
        let certificate = params.signed_by(&key, &issuer)?;
        let private = PrivateKeyDer::try_from(key.serialize_der()).map_err(ServingError::Key)?;
        Serving::new(vec![certificate.der().clone()], private, self.trusted.pem.clone())
    }

    /// Identifies the authority that signed a certificate.
    pub(super) fn mark(&self) -> &str {
        &self.trusted.pem
    }

    fn left(&self, now: Timestamp) -> SignedDuration {
        self.trusted.validity.until.duration_since(now)
    }

    fn age(&self, now: Timestamp) -> SignedDuration {
        now.duration_since(self.trusted.validity.from) - BACKDATED
    }

    /// True if it can sign now: it is already valid, and will be for long enough.
    fn serves(&self, now: Timestamp) -> bool {
        self.trusted.validity.from <= now && self.left(now) > TOO_LATE
    }
}

/// Keeps the key out of logs.
impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("validity", &self.trusted.validity).finish_non_exhaustive()
    }
}

fn set_validity(params: &mut CertificateParams, Validity { from, until }: Validity) {
    // No certificate is from before 1970.
    let date = |at: Timestamp| {
        let seconds = u64::try_from(at.as_second()).unwrap_or_default();
        date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    (params.not_before, params.not_after) = (date(from), date(until));
}

/// The authorities that all replicas share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authorities {
    /// Signs.
    pub(super) current: Authority,
    /// Trusted, and will sign later.
    next: Option<Authority>,
    /// Signed before, and is trusted until it expires.
    previous: Option<Trusted>,
}

impl Authorities {
    /// Reads the data of a Secret; `None` if it holds no usable signing authority.
    pub(super) fn read(secret: &Value) -> Option<Self> {
        let data = |name: &str, part: &str| {
            let text = secret.pointer(&format!("/data/{name}.{part}"))?.as_str()?;
            STANDARD.decode(text).ok()
        };
        let authority = |name: &str| Authority::read(&data(name, "crt")?, &data(name, "key")?);
        Some(Self {
            current: authority(CURRENT)?,
            next: authority(NEXT),
            previous: data(PREVIOUS, "crt").and_then(|pem| Trusted::read(&pem)),
        })
    }

    pub(super) fn data(&self) -> BTreeMap<String, String> {
        let mut data = BTreeMap::new();
        let mut keep = |name: &str, part: &str, text: &str| {
            data.insert(format!("{name}.{part}"), STANDARD.encode(text));
        };
        for (name, authority) in [(CURRENT, Some(&self.current)), (NEXT, self.next.as_ref())] {
            if let Some(authority) = authority {
                keep(name, "crt", &authority.trusted.pem);
                keep(name, "key", &authority.key);
            }
        }
        if let Some(previous) = &self.previous {
            keep(PREVIOUS, "crt", &previous.pem);
        }
        data
    }

    pub(super) fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|next| &next.trusted);
        let all = [Some(&self.current.trusted), next, self.previous.as_ref()];
        all.into_iter().flatten().map(|trusted| trusted.pem.as_str()).collect()
    }

    #[cfg(test)]
    pub(super) fn trusted(&self) -> usize {
        1 + usize::from(self.next.is_some()) + usize::from(self.previous.is_some())
    }

    pub(super) fn first(now: Timestamp) -> Result<Self, rcgen::Error> {
        Ok(Self { current: Authority::make(now)?, next: None, previous: None })
    }

    /// The authorities to store from now on, if they differ from these.
    pub(super) fn advance(&self, now: Timestamp) -> Result<Option<Self>, rcgen::Error> {
        let Self { current, next, previous } = self.clone();
        let previous = previous.filter(|previous| !previous.expired(now));
        let next = next.filter(|next| next.serves(now));
        let retired = (!current.trusted.expired(now)).then(|| current.trusted.clone());
        let advanced = match next {
            _ if !current.serves(now) => {
                let current = next.map_or_else(|| Authority::make(now), Ok)?;
                Self { current, next: None, previous: retired }
            }
            Some(next) if next.age(now) >= SETTLE => Self { current: next, next: None, previous: retired },
            None if current.left(now) <= REPLACE_BEFORE => {
                Self { current, next: Some(Authority::make(now)?), previous }
            }
            next => Self { current, next, previous },
        };
        Ok((advanced != *self).then_some(advanced))
    }

    /// New authorities in place of removed ones. The removed authority stays trusted until it expires, because the
    /// served certificates were signed by it.
    pub(super) fn instead_of(removed: &Self, now: Timestamp) -> Result<Self, rcgen::Error> {
        let previous = Some(removed.current.trusted.clone()).filter(|trusted| !trusted.expired(now));
        Ok(Self { current: Authority::make(now)?, next: None, previous })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(days: i64) -> Timestamp {
        "2026-11-16T00:00:00Z".parse::<Timestamp>().unwrap() + DAY * i32::try_from(days).unwrap()
    }

    fn secret(authorities: &Authorities) -> Value {
        json!({ "data": authorities.data() })
    }

    fn first() -> Authorities {
        Authorities::first(at(0)).unwrap()
    }

    #[test]
    fn what_was_kept_is_read_again() {
        let mut authorities = first();
        assert_eq!(Authorities::read(&secret(&authorities)), Some(authorities.clone()));
        authorities.next = Some(Authority::make(at(1)).unwrap());
        authorities.previous = Some(Authority::make(at(2)).unwrap().trusted);
        assert_eq!(Authorities::read(&secret(&authorities)), Some(authorities.clone()));
        assert_eq!(authorities.bundle().matches("BEGIN CERTIFICATE").count(), 3);
        assert!(!format!("{authorities:?}").contains("PRIVATE"));
    }

    #[test]
    fn garbage_is_nothing_that_was_kept() {
        let good = secret(&first());
        for (key, value) in [
            ("current.crt", json!("%%%")),
            ("current.crt", json!(STANDARD.encode("no certificate"))),
            ("current.crt", json!(STANDARD.encode([0xff, 0x00]))),
            ("current.key", json!(STANDARD.encode("no key"))),
            ("current.key", json!(7)),
            // The key, or the certificate, of another authority.
            ("current.key", secret(&first())["data"]["current.key"].clone()),
            ("current.crt", secret(&first())["data"]["current.crt"].clone()),
        ] {
            let mut bad = good.clone();
            bad["data"][key] = value;
            assert_eq!(Authorities::read(&bad), None, "{key}");
        }
        for none in [json!({}), json!({"data": null}), json!({"data": []}), json!(null)] {
            assert_eq!(Authorities::read(&none), None);
        }
        // Malformed neighbours do not affect the current one.
        let mut bad = good;
        bad["data"]["next.crt"] = json!("%%%");
        bad["data"]["previous.crt"] = json!(STANDARD.encode("x"));
        assert_eq!(Authorities::read(&bad).unwrap().trusted(), 1);
    }

    /// Every day for three years: what was served yesterday or the day before is trusted today, and what signs on a day
    /// was already trusted the day before.
    #[test]
    fn in_the_course_of_years_nothing_is_served_that_was_not_trusted_the_day_before() {
        let mut kept = first();
        let (mut trusted_before, mut marks) = (kept.bundle(), std::collections::BTreeSet::new());
        for day in 0..3 * 365 {
            let now = at(day);
            if let Some(advanced) = kept.advance(now).unwrap() {
                // A second advance changes nothing.
                assert_eq!(advanced.advance(now).unwrap(), None, "day {day}");
                assert!(
                    advanced.bundle().contains(kept.current.mark()),
                    "day {day}: what is served is not trusted"
                );
                kept = advanced;
            }
            assert!(
                trusted_before.contains(kept.current.mark()),
                "day {day}: it signs before it was trusted"
            );
            assert!(kept.current.left(now) > REPLACE_BEFORE - SETTLE * 2, "day {day}");
            assert!(kept.trusted() <= 3);
            trusted_before = kept.bundle();
            marks.insert(kept.current.mark().to_owned());
        }
        assert_eq!(marks.len(), 4, "one for each 276 days");
    }

    #[test]
    fn after_a_long_sleep_there_is_a_new_one_at_once() {
        let kept = first();
        let late = kept.advance(at(400)).unwrap().unwrap();
        assert!(late.current.serves(at(400)));
        assert_eq!(late.trusted(), 1, "what has expired is not trusted");
        // Almost expired: it stays trusted while it is valid.
        let late = kept.advance(at(364)).unwrap().unwrap();
        assert_ne!(late.current, kept.current);
        assert_eq!(late.previous.as_ref(), Some(&kept.current.trusted));
        // If there was a next one, that one signs, settled or not.
        let replacing = kept.advance(at(300)).unwrap().unwrap();
        let late = replacing.advance(at(364)).unwrap().unwrap();
        assert_eq!(Some(&late.current), replacing.next.as_ref());
    }

    #[test]
    fn one_from_the_future_is_replaced() {
        let future = Authorities::first(at(10)).unwrap();
        let now = future.advance(at(0)).unwrap().unwrap();
        assert!(now.current.serves(at(0)));
        // A clock that is behind by less than an hour is tolerated.
        let near = at(10) - SignedDuration::from_mins(50);
        assert_eq!(future.advance(near).unwrap(), None);
    }

    #[test]
    fn a_served_certificate_does_not_outlive_its_authority() {
        let authorities = first();
        let names =
            ["salvor-webhooks.salvor-system.svc".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        let serving = authorities.current.issue(&names, at(0)).unwrap();
        assert_eq!(serving.validity.from, at(0) - BACKDATED);
        assert_eq!(serving.validity.until, at(30));
        let last = authorities.current.issue(&names, at(350)).unwrap();
        assert_eq!(last.validity.until, at(365));
    }
}
