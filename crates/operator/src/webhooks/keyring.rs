//! The secrets that only Salvor and the API server know: the token in the webhook path, and the keys that sign what
//! webhooks write.

use std::{
    collections::BTreeMap,
    fmt,
    pin::pin,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};
use salvor_recovery::signing::{KEY_LENGTH, Keys};
use serde_json::Value;
use tokio::{sync::Notify, time::Instant};

use crate::time::within;

/// The keys of the Secret.
const TOKEN: &str = "path.token";
const SINCE: &str = "path.since";
const SIGNS: &str = "stamp.key";
const SIGNED: &str = "stamp-previous.key";
const TOKEN_BYTES: usize = 32;
/// How long a replaced token is accepted after the webhook configurations hold the next one. An API server may see
/// the change late, and a replica with a stale Secret may write the old token back for a moment.
const OVERLAP: Duration = Duration::from_secs(60);
/// How long to wait for a new read of the Secret.
const READ_WITHIN: Duration = Duration::from_secs(4);

/// The secrets that replicas share besides the certificate authority.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secrets {
    /// The last part of the path that the API server calls.
    pub(super) token: String,
    /// When the token was created; `None` if unknown.
    since: Option<Timestamp>,
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

fn is_token(text: &str) -> bool {
    text.len() == 2 * TOKEN_BYTES && text.bytes().all(|it| it.is_ascii_hexdigit())
}

impl Secrets {
    /// Reads the data of a Secret and generates what is missing or malformed. A removed key still verifies what it has
    /// signed, if this process knows it.
    pub(super) fn of(
        secret: Option<&Value>,
        known: Option<&Self>,
        now: Timestamp,
    ) -> Result<Self, NoRandomNumbers> {
        let data = |name: &str| {
            let text = secret?.get("data")?.get(name)?.as_str()?;
            STANDARD.decode(text).ok()
        };
        let key = |name: &str| <[u8; KEY_LENGTH]>::try_from(data(name)?).ok();
        let text = |name: &str| String::from_utf8(data(name)?).ok();
        let (token, since) = match text(TOKEN).filter(|token| is_token(token)) {
            Some(token) => (token, text(SINCE).and_then(|since| since.parse().ok())),
            None => (new_token()?, Some(now)),
        };
        let keys = match key(SIGNS) {
            Some(current) => Keys { current, previous: key(SIGNED) },
            None => {
                Keys { current: random()?, previous: known.map(|known| known.keys.current).or(key(SIGNED)) }
            }
        };
        Ok(Self { token, since, keys })
    }

    /// True if the token is older than this, or its age is unknown.
    pub(super) fn is_older_than(&self, life: SignedDuration, now: Timestamp) -> bool {
        self.since.is_none_or(|since| now.duration_since(since).abs() >= life)
    }

    pub(super) fn with_new_token(self, now: Timestamp) -> Result<Self, NoRandomNumbers> {
        Ok(Self { token: new_token()?, since: Some(now), ..self })
    }

    pub(super) fn data(&self) -> BTreeMap<String, String> {
        let mut data = BTreeMap::from([
            (TOKEN.to_owned(), STANDARD.encode(&self.token)),
            (SIGNS.to_owned(), STANDARD.encode(self.keys.current)),
        ]);
        data.extend(self.since.map(|since| (SINCE.to_owned(), STANDARD.encode(since.to_string()))));
        data.extend(self.keys.previous.map(|key| (SIGNED.to_owned(), STANDARD.encode(key))));
        data
    }
}

/// The secrets in use. Empty until the Secret is first read. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Keyring(Arc<Ring>);

#[derive(Debug, Default)]
struct Ring {
    held: RwLock<Option<Held>>,
    /// Asks the reconciler to read the Secret again.
    wanted: Notify,
    /// Notifies waiters that the reconciler has read it.
    read: Notify,
}

#[derive(Debug)]
struct Held {
    secrets: Secrets,
    /// When the request for the Secret was sent.
    read: Instant,
    before: Option<Before>,
}

/// The previous token, which the API server may still use.
struct Before {
    token: String,
    /// When it expires; `None` while the webhook configurations may still hold it.
    until: Option<Instant>,
}

/// Keeps the token out of logs.
impl fmt::Debug for Before {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Before").field("until", &self.until).finish_non_exhaustive()
    }
}

impl Before {
    fn is_let_in(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }
}

impl Keyring {
    /// Starts using these secrets, which were read at that time or later. A token that they replace is accepted for a
    /// while.
    pub(super) fn hold(&self, secrets: Secrets, read: Instant) {
        {
            let mut held = self.0.held.write().unwrap_or_else(PoisonError::into_inner);
            let before = held.take().and_then(|held| {
                let is_same = held.secrets.token == secrets.token;
                if is_same { held.before } else { Some(Before { token: held.secrets.token, until: None }) }
            });
            *held = Some(Held { secrets, read, before });
        }
        self.0.read.notify_waiters();
    }

    /// Starts the expiry of the previous token: the webhook configurations hold the new one.
    pub(super) fn settle(&self) {
        let mut held = self.0.held.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = held.as_mut().and_then(|held| held.before.as_mut()) {
            before.until.get_or_insert_with(|| Instant::now() + OVERLAP);
        }
    }

    /// True if the previous token is still accepted.
    pub(super) fn overlaps(&self) -> bool {
        let held = self.0.held.read().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().and_then(|held| held.before.as_ref()).is_some_and(Before::is_let_in)
    }

    /// True if the Secret was read since that time. If not, it is read again soon.
    pub(crate) fn was_read_since(&self, at: Instant) -> bool {
        let held = self.0.held.read().unwrap_or_else(PoisonError::into_inner);
        let was_read = held.as_ref().is_some_and(|held| held.read >= at);
        if !was_read {
            self.0.wanted.notify_one();
        }
        was_read
    }

    /// Waits until the reconciler has read the Secret again, up to a timeout.
    pub(crate) async fn read_again(&self) {
        let asked = Instant::now();
        let read = async {
            loop {
                let mut read = pin!(self.0.read.notified());
                read.as_mut().enable();
                if self.was_read_since(asked) {
                    return;
                }
                read.await;
            }
        };
        // After a timeout the known secrets count.
        let _ = within(READ_WITHIN, read).await;
    }

    /// Waits until another read of the Secret is requested.
    pub(super) async fn is_wanted(&self) {
        self.0.wanted.notified().await;
    }

    /// True if this is the token. An unknown token makes the reconciler read the Secret first: another replica may have
    /// replaced it.
    pub(super) async fn lets_in(&self, given: &str) -> bool {
        if !self.admits(given) && is_token(given) {
            self.read_again().await;
        }
        self.admits(given)
    }

    /// True if this is a token that is known. It compares digests, so that the timing reveals nothing about the token.
    fn admits(&self, given: &str) -> bool {
        let held = self.0.held.read().unwrap_or_else(PoisonError::into_inner);
        let tokens = held.iter().flat_map(|held| {
            let before = held.before.as_ref().filter(|before| before.is_let_in());
            [Some(&held.secrets.token), before.map(|before| &before.token)]
        });
        let of = |text: &str| digest(&SHA256, text.as_bytes());
        let given = of(given);
        tokens.flatten().any(|token| of(token).as_ref() == given.as_ref())
    }

    /// `None` before the Secret was read.
    pub fn keys(&self) -> Option<Keys> {
        let held = self.0.held.read().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map(|held| held.secrets.keys.clone())
    }

    #[cfg(test)]
    pub(crate) fn random() -> Self {
        let keyring = Self::default();
        keyring.hold(Secrets::of(None, None, Timestamp::UNIX_EPOCH).unwrap(), Instant::now());
        keyring
    }

    /// Takes over the secrets of another keyring, as a reconciler does.
    #[cfg(test)]
    pub(crate) fn read_from(&self, other: &Self) {
        let secrets = other.0.held.read().unwrap().as_ref().unwrap().secrets.clone();
        self.hold(secrets, Instant::now());
    }

    #[cfg(test)]
    pub(super) fn token(&self) -> String {
        self.0.held.read().unwrap().as_ref().unwrap().secrets.token.clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn secret(secrets: &Secrets) -> Value {
        json!({ "data": secrets.data() })
    }

    #[test]
    fn what_was_kept_is_read_again_and_what_is_garbled_is_made() {
        let first = Secrets::of(None, None, now()).unwrap();
        assert_eq!(Secrets::of(Some(&secret(&first)), None, now()).unwrap(), first);
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
            let other = Secrets::of(Some(&garbled), None, now()).unwrap();
            assert_eq!(
                (other.token != first.token, other.keys != first.keys),
                (name == TOKEN, name == SIGNS)
            );
            assert_eq!(Secrets::of(Some(&secret(&other)), None, now()).unwrap(), other);
        }
    }

    #[test]
    fn a_key_that_is_replaced_still_counts_until_it_is_removed_too() {
        let first = Secrets::of(None, None, now()).unwrap();
        let next = Secrets::of(Some(&json!({"data": {}})), Some(&first), now()).unwrap();
        assert_eq!(next.keys.previous, Some(first.keys.current));
        assert_ne!(next.keys.current, first.keys.current);
        assert_ne!(next.token, first.token);
        let mut revoked = secret(&next);
        revoked["data"].as_object_mut().unwrap().remove(SIGNED);
        let last = Secrets::of(Some(&revoked), Some(&next), now()).unwrap();
        assert_eq!((last.keys.current, last.keys.previous), (next.keys.current, None));
    }

    #[test]
    fn a_token_of_unknown_age_is_old() {
        let life = SignedDuration::from_mins(10);
        let first = Secrets::of(None, None, now()).unwrap();
        let at = |minutes| now() + SignedDuration::from_mins(minutes);
        assert!(!first.is_older_than(life, at(9)) && first.is_older_than(life, at(10)));
        assert!(!first.is_older_than(life, at(-9)), "clocks differ");
        for since in [json!(null), json!("%%%"), json!(STANDARD.encode("yesterday"))] {
            let mut garbled = secret(&first);
            garbled["data"][SINCE] = since;
            let read = Secrets::of(Some(&garbled), None, now()).unwrap();
            assert!(read.token == first.token && read.is_older_than(life, now()));
        }
        let next = first.clone().with_new_token(at(10)).unwrap();
        assert!(next.token != first.token && next.keys == first.keys && !next.is_older_than(life, at(10)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_let_in_for_a_minute_after_the_configurations_have_the_next_one() {
        let keyring = Keyring::default();
        assert!(!keyring.admits("") && keyring.keys().is_none());
        let of = || Secrets::of(None, None, now()).unwrap();
        let (first, second) = (of(), of());
        let hold = |secrets: &Secrets| keyring.hold(secrets.clone(), Instant::now());
        hold(&first);
        assert!(keyring.admits(&first.token) && !keyring.admits(&second.token));
        hold(&second);
        assert!(keyring.admits(&first.token) && keyring.admits(&second.token));
        tokio::time::advance(3 * OVERLAP).await;
        hold(&second);
        assert!(keyring.admits(&first.token), "the API server may know no other one");
        keyring.settle();
        tokio::time::advance(OVERLAP / 2).await;
        hold(&second);
        keyring.settle();
        assert!(keyring.admits(&first.token));
        tokio::time::advance(OVERLAP / 2).await;
        assert!(!keyring.admits(&first.token) && keyring.admits(&second.token));
        for other in ["", &second.token[1..], &second.token.to_uppercase(), &format!("{}0", second.token)] {
            assert_eq!(keyring.admits(other), other == second.token, "{other}");
        }
    }
}
