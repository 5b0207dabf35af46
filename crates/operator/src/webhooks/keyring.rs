//! The secrets that only Salvor and the API server know: the token in the webhook path, and the keys that sign what
//! webhooks write.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};
use salvor_recovery::signing::{KEY_LENGTH, Keys};
use serde_json::Value;

/// The keys of the Secret.
const TOKEN: &str = "path.token";
const SIGNS: &str = "stamp.key";
const SIGNED: &str = "stamp-previous.key";
const TOKEN_BYTES: usize = 32;

/// The secrets that replicas share besides the certificate authority.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secrets {
    /// The last part of the path that the API server calls.
    pub(super) token: String,
    keys: Keys,
}

/// Keeps them out of logs.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("there are no random numbers to make keys of")]
pub(super) struct NoRandomNumbers;

fn random<const N: usize>() -> Result<[u8; N], NoRandomNumbers> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomNumbers)?;
    Ok(bytes)
}

fn new_token() -> Result<String, NoRandomNumbers> {
    Ok(random::<TOKEN_BYTES>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Secrets {
    /// Reads the data of a Secret and generates what is missing or malformed. A removed key still verifies what it has
    /// signed, if this process knows it.
    pub(super) fn of(secret: Option<&Value>, known: Option<&Self>) -> Result<Self, NoRandomNumbers> {
        let data = |name: &str| {
            let text = secret?.get("data")?.get(name)?.as_str()?;
            STANDARD.decode(text).ok()
        };
        let key = |name: &str| <[u8; KEY_LENGTH]>::try_from(data(name)?).ok();
        let is_token =
            |text: &String| text.len() == 2 * TOKEN_BYTES && text.bytes().all(|it| it.is_ascii_hexdigit());
        let token = data(TOKEN).and_then(|token| String::from_utf8(token).ok()).filter(is_token);
        let token = token.map_or_else(new_token, Ok)?;
        let keys = match key(SIGNS) {
            Some(current) => Keys { current, previous: key(SIGNED) },
            None => {
                Keys { current: random()?, previous: known.map(|known| known.keys.current).or(key(SIGNED)) }
            }
        };
        Ok(Self { token, keys })
    }

    pub(super) fn data(&self) -> BTreeMap<String, String> {
        let mut data = BTreeMap::from([
            (TOKEN.to_owned(), STANDARD.encode(&self.token)),
            (SIGNS.to_owned(), STANDARD.encode(self.keys.current)),
        ]);
        data.extend(self.keys.previous.map(|key| (SIGNED.to_owned(), STANDARD.encode(key))));
        data
    }
}

/// The secrets in use. Empty until the Secret is first read. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Keyring(Arc<RwLock<Option<Held>>>);

#[derive(Debug)]
struct Held {
    secrets: Secrets,
    /// The previous token, which the API server may still use for a moment.
    token_before: Option<String>,
}

impl Keyring {
    /// Starts using these secrets. A token that they replace is accepted until the next call.
    pub(super) fn hold(&self, secrets: Secrets) {
        let mut held = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let before = held.take().map(|held| held.secrets.token).filter(|token| *token != secrets.token);
        *held = Some(Held { secrets, token_before: before });
    }

    /// True if this is the token. It compares digests, so that the timing reveals nothing about the token.
    pub(super) fn admits(&self, given: &str) -> bool {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let tokens = held.iter().flat_map(|held| [Some(&held.secrets.token), held.token_before.as_ref()]);
        let of = |text: &str| digest(&SHA256, text.as_bytes());
        let given = of(given);
        tokens.flatten().any(|token| of(token).as_ref() == given.as_ref())
    }

    /// `None` before the Secret was read.
    pub fn keys(&self) -> Option<Keys> {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map(|held| held.secrets.keys.clone())
    }

    #[cfg(test)]
    pub(crate) fn random() -> Self {
        let keyring = Self::default();
        keyring.hold(Secrets::of(None, None).unwrap());
        keyring
    }

    #[cfg(test)]
    pub(super) fn token(&self) -> String {
        self.0.read().unwrap().as_ref().unwrap().secrets.token.clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secret(secrets: &Secrets) -> Value {
        json!({ "data": secrets.data() })
    }

    #[test]
    fn what_was_kept_is_read_again_and_what_is_garbled_is_made() {
        let first = Secrets::of(None, None).unwrap();
        assert_eq!(Secrets::of(Some(&secret(&first)), None).unwrap(), first);
        assert!(!format!("{first:?}{:?}", Keyring::default()).contains(&first.token));
        for (name, value) in [
            (TOKEN, json!(null)),
            (TOKEN, json!("%%%")),
            (TOKEN, json!(STANDARD.encode("short"))),
            (TOKEN, json!(STANDARD.encode("/".repeat(64)))),
            (SIGNS, json!(7)),
            (SIGNS, json!(STANDARD.encode("short"))),
        ] {
            let mut garbled = secret(&first);
            garbled["data"][name] = value;
            let other = Secrets::of(Some(&garbled), None).unwrap();
            assert_eq!(
                (other.token != first.token, other.keys != first.keys),
                (name == TOKEN, name == SIGNS)
            );
            assert_eq!(Secrets::of(Some(&secret(&other)), None).unwrap(), other);
        }
    }

    #[test]
    fn a_key_that_is_replaced_still_counts_until_it_is_removed_too() {
        let first = Secrets::of(None, None).unwrap();
        let next = Secrets::of(Some(&json!({"data": {}})), Some(&first)).unwrap();
        assert_eq!(next.keys.previous, Some(first.keys.current));
        assert_ne!(next.keys.current, first.keys.current);
        assert_ne!(next.token, first.token);
        let mut revoked = secret(&next);
        revoked["data"].as_object_mut().unwrap().remove(SIGNED);
        let last = Secrets::of(Some(&revoked), Some(&next)).unwrap();
        assert_eq!((last.keys.current, last.keys.previous), (next.keys.current, None));
    }

    #[test]
    fn a_token_is_let_in_until_the_look_after_its_end() {
        let keyring = Keyring::default();
        assert!(!keyring.admits("") && keyring.keys().is_none());
        let (first, second) = (Secrets::of(None, None).unwrap(), Secrets::of(None, None).unwrap());
        keyring.hold(first.clone());
        assert!(keyring.admits(&first.token) && !keyring.admits(&second.token));
        keyring.hold(second.clone());
        assert!(keyring.admits(&first.token) && keyring.admits(&second.token));
        keyring.hold(second.clone());
        assert!(!keyring.admits(&first.token) && keyring.admits(&second.token));
        for other in ["", &second.token[1..], &second.token.to_uppercase(), &format!("{}0", second.token)] {
            assert_eq!(keyring.admits(other), other == second.token, "{other}");
        }
    }
}
