//! Maintains everything that the API server and the webhooks need to trust each other: the authority, the token and the
//! keys that replicas share, the served certificate, and the webhook configurations. Each round reads all of it and
//! repairs what differs; rounds repeat for ever.
//!
//! These writes concern no object of a recovery, so they do not go through the executor. They follow its rules: each
//! has a resourceVersion precondition, a timeout and a counter.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Method, Request};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    authority::{Authorities, SERVING_LIFE},
    configurations::{Repair, repair},
    declaration::{CONFIGURATION, SERVICE, Target, Webhook, WebhookKind},
    keyring::{Keyring, NoRandomNumbers, Secrets},
    serving::{Files, Serving, ServingError, Shown},
};
use crate::{
    client::live::brief,
    metrics::Metrics,
    time::{Time, within},
};

/// A foreign change of a configuration is undone within this time.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// Minimum interval between reads of the Secret on demand: any client can cause them with a wrong token.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
/// Lifetime of a token. An API server that cannot reach a webhook shows users its URL, with the token.
const TOKEN_LIFE: SignedDuration = SignedDuration::from_mins(10);
/// Lifetime of a token that a starting replica finds, because webhooks may have been unreachable before. Of replicas
/// that start together one replaces it.
const TOKEN_LIFE_BEFORE_US: SignedDuration = SignedDuration::from_mins(1);
/// Interval at which certificate files are read again.
const READ_EVERY: Duration = Duration::from_secs(5);
/// Backoff after a failed round. It doubles with each further failure, up to [`LOOK_EVERY`].
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Timeout of a request. It may have been applied; the next round finds out.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// After this many conflicts on the Secret in one round, wait for the next round.
const RACES: usize = 3;

#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("{what}: {}", brief(.error))]
    Api { what: String, error: kube::Error },
    #[error("{what}: no answer within {} s", ANSWER_WITHIN.as_secs())]
    Unanswered { what: String },
    #[error("{what}: there is no webhook {webhook}: apply the manifests again")]
    Missing { what: String, webhook: &'static str },
    #[error("{0}: others write it all the time")]
    Contended(String),
    #[error(transparent)]
    Serving(#[from] ServingError),
    #[error(transparent)]
    Random(#[from] NoRandomNumbers),
}

impl Trouble {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Api { error: kube::Error::Api(status), .. } => Some(status.code),
            Self::Api { .. } | Self::Unanswered { .. } | Self::Missing { .. } => None,
            Self::Contended(_) | Self::Serving(_) | Self::Random(_) => None,
        }
    }

    /// Another client wrote first.
    fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }
}

impl From<rcgen::Error> for Trouble {
    fn from(error: rcgen::Error) -> Self {
        ServingError::from(error).into()
    }
}

/// Whether the webhooks can be called yet. Clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct Readiness(Arc<Mutex<Standing>>);

#[derive(Debug)]
struct Standing {
    was_ready: bool,
    problem: Option<String>,
}

impl Readiness {
    pub(crate) fn new() -> Self {
        let problem = Some("not begun yet".to_owned());
        Self(Arc::new(Mutex::new(Standing { was_ready: false, problem })))
    }

    /// What is missing, in one line.
    pub(crate) fn problem(&self) -> Option<String> {
        self.standing().problem.clone()
    }

    /// Once everything was in place, a failed round does not make this replica unready: the API server would fail on
    /// another replica too. Only an expired certificate does.
    fn note(&self, round: &Result<(), Trouble>, certificate_expired: bool) {
        let mut standing = self.standing();
        standing.was_ready |= round.is_ok();
        standing.problem = match round {
            _ if certificate_expired => Some("the certificate has expired".to_owned()),
            Err(trouble) if !standing.was_ready => Some(trouble.to_string()),
            Ok(()) | Err(_) => None,
        };
    }

    fn was_ready(&self) -> bool {
        self.standing().was_ready
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// We create them and store the authority in a Secret, or in memory where no Secret is possible.
    Own,
    /// The administrator provides them.
    Files(Files),
}

/// The state that all replicas share.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// `None` if the administrator provides the certificates.
    authorities: Option<Authorities>,
    secrets: Secrets,
}

impl Kept {
    /// The data of the Secret. If the administrator provides the certificates, other entries are kept.
    fn data(&self, found: Option<&Value>) -> Value {
        let mut data = match &self.authorities {
            Some(authorities) => json!(authorities.data()),
            None => found
                .and_then(|found| found.get("data"))
                .filter(|it| it.is_object())
                .cloned()
                .unwrap_or(json!({})),
        };
        for (name, value) in self.secrets.data() {
            data[name] = value.into();
        }
        data
    }
}

/// What one pass does about the token.
#[derive(Clone, Copy)]
enum Token {
    Kept,
    /// Replace it if it is older than this. Another replica may just have replaced it.
    ReplacedAfter(SignedDuration),
}

impl Token {
    fn of(self, secrets: Secrets, now: Timestamp) -> Result<Secrets, NoRandomNumbers> {
        match self {
            Self::ReplacedAfter(life) if secrets.is_older_than(life, now) => secrets.with_new_token(now),
            Self::ReplacedAfter(_) | Self::Kept => Ok(secrets),
        }
    }
}

/// Reconciles the Secret, the certificate and the configurations.
pub(super) struct Reconciler {
    pub(super) client: Client,
    pub(super) time: Time,
    pub(super) keyring: Keyring,
    pub(super) metrics: Metrics,
    pub(super) webhooks: Vec<Webhook>,
    pub(super) target: Target,
    pub(super) namespace: String,
    /// The host names and IP addresses at which the API server may call us.
    pub(super) names: Vec<String>,
    pub(super) origin: Origin,
    pub(super) shown: Shown,
    pub(super) readiness: Readiness,
    /// The content of the Secret, as last read, written or created.
    pub(super) kept: Option<Kept>,
    /// True if it is stored in memory only.
    pub(super) alone: bool,
    pub(super) trouble: Option<String>,
}

impl Reconciler {
    /// Runs rounds until it is dropped.
    pub(super) async fn run(mut self) {
        let mut retry = FIRST_RETRY;
        loop {
            let pause = if self.look().await { LOOK_EVERY } else { retry };
            retry = if pause == LOOK_EVERY { FIRST_RETRY } else { (retry * 2).min(LOOK_EVERY) };
            tokio::select! {
                biased;
                () = self.rest(pause) => {}
                () = self.is_asked_to_look() => {}
            }
        }
    }

    async fn is_asked_to_look(&self) {
        sleep(AGAIN_AFTER).await;
        self.keyring.is_wanted().await;
    }

    /// Waits, but ends early when files have changed.
    async fn rest(&self, pause: Duration) {
        let Origin::Files(files) = &self.origin else { return sleep(pause).await };
        let mut left = pause;
        while !left.is_zero() {
            let nap = left.min(READ_EVERY);
            sleep(nap).await;
            left -= nap;
            let shown = self.shown.now().map(|(_, mark)| mark);
            // Unreadable or half-written files are reported by the next round.
            if files.read().is_ok_and(|(serving, _)| Some(serving.mark) != shown) {
                return;
            }
        }
    }

    /// Runs one round. Returns true if everything is in place.
    pub(super) async fn look(&mut self) -> bool {
        let round = self.round().await;
        let now = self.time.roughly();
        let shown = self.shown.now();
        self.readiness.note(&round, shown.as_ref().is_some_and(|(validity, _)| validity.until <= now));
        if let Some((validity, _)) = shown {
            self.metrics.certificate_expires(validity.until);
        }
        let trouble = round.err().map(|trouble| trouble.to_string());
        if self.trouble != trouble {
            match &trouble {
                Some(trouble) => tracing::warn!(error = trouble, "webhook setup failed, retrying"),
                None => tracing::info!("webhook setup complete"),
            }
            self.trouble = trouble;
        }
        self.trouble.is_none()
    }

    async fn round(&mut self) -> Result<(), Trouble> {
        self.put_in_place(Token::Kept).await?;
        self.keyring.settle();
        let life = if self.readiness.was_ready() { TOKEN_LIFE } else { TOKEN_LIFE_BEFORE_US };
        let now = self.time.roughly();
        let is_old = self.kept.as_ref().is_some_and(|kept| kept.secrets.is_older_than(life, now));
        // Two tokens are accepted at a time, never three: the configurations must hold one of them, even if they
        // cannot be written.
        if is_old && !self.keyring.overlaps() {
            self.put_in_place(Token::ReplacedAfter(life)).await?;
            self.keyring.settle();
        }
        Ok(())
    }

    async fn put_in_place(&mut self, token: Token) -> Result<(), Trouble> {
        let read = Instant::now();
        let kept = self.kept(token).await?;
        let token = kept.secrets.token.clone();
        // Accept the token before the API server learns of it.
        self.keyring.hold(kept.secrets.clone(), read);
        let authorities = kept.authorities.clone();
        self.kept = Some(kept);
        let (wanted, bundle) = match (&self.origin, authorities) {
            (Origin::Own, Some(authorities)) => {
                let wanted = if self.is_served(&authorities) {
                    None
                } else {
                    Some(authorities.current.issue(&self.names, self.time.roughly())?)
                };
                (wanted, Some(authorities.bundle()))
            }
            (Origin::Files(files), _) => {
                let (serving, bundle) = files.read()?;
                (self.unless_shown(serving), bundle)
            }
            // With our own authority this does not happen.
            (Origin::Own, None) => (None, None),
        };
        // If no valid certificate is served, serve the new one at once. Otherwise the current one is trusted, and the
        // new one may not be yet.
        let now = self.time.roughly();
        let wanted = match wanted {
            Some(serving) if self.shown.now().is_none_or(|(validity, _)| validity.until <= now) => {
                self.shown.show(serving);
                None
            }
            other => other,
        };
        for kind in WebhookKind::ALL {
            self.configuration(kind, &token, bundle.as_deref()).await?;
        }
        if let Some(serving) = wanted {
            tracing::info!(until = %serving.validity.until, "webhook certificate replaced");
            self.shown.show(serving);
        }
        Ok(())
    }

    /// True if the served certificate is signed by the current authority and valid for long enough.
    fn is_served(&self, authorities: &Authorities) -> bool {
        let Some((validity, mark)) = self.shown.now() else { return false };
        let now = self.time.roughly();
        let left = validity.until.duration_since(now);
        mark == authorities.current.mark() && validity.from <= now && left > SERVING_LIFE / 3
    }

    fn unless_shown(&self, serving: Serving) -> Option<Serving> {
        let is_shown = self.shown.now().is_some_and(|(_, mark)| mark == serving.mark);
        (!is_shown).then_some(serving)
    }

    // ---- state shared by replicas ----------------------------------------------------------------------------------

    async fn kept(&mut self, token: Token) -> Result<Kept, Trouble> {
        match self.shared(token).await {
            Err(trouble) if self.may_be_alone(&trouble) => {
                if !self.alone {
                    tracing::warn!(
                        error = %trouble,
                        "webhook authority and stamp keys kept in memory, run only one replica"
                    );
                }
                self.alone = true;
            }
            other => {
                self.alone = false;
                return other;
            }
        }
        let now = self.time.roughly();
        let (known, secrets) = match &self.kept {
            Some(kept) => (kept.authorities.as_ref(), kept.secrets.clone()),
            None => (None, Secrets::of(None, None, now)?),
        };
        let secrets = token.of(secrets, now)?;
        let authorities = match (&self.origin, known) {
            (Origin::Files(_), _) => None,
            (Origin::Own, Some(known)) => Some(known.advance(now)?.unwrap_or_else(|| known.clone())),
            (Origin::Own, None) => Some(Authorities::first(now)?),
        };
        Ok(Kept { authorities, secrets })
    }

    /// Outside a cluster, our namespace may not exist and we may lack access to Secrets.
    fn may_be_alone(&self, trouble: &Trouble) -> bool {
        matches!(self.target, Target::Url(_)) && matches!(trouble.code(), Some(403 | 404))
    }

    /// What all replicas share. The first replica that finds it out of date updates it.
    async fn shared(&self, token: Token) -> Result<Kept, Trouble> {
        let folder = format!("/api/v1/namespaces/{}/secrets", self.namespace);
        let path = format!("{folder}/{SERVICE}");
        let what = format!("Secret {}/{SERVICE}", self.namespace);
        let mut namespace_made = false;
        for _ in 0..RACES {
            let found = self.get(&path, &what).await?.filter(Value::is_object);
            let (kept, is_new) = self.brought_up_to_date(found.as_ref(), token)?;
            if !is_new {
                return Ok(kept);
            }
            let data = kept.data(found.as_ref());
            let (method, path, secret) = match found {
                Some(mut secret) => {
                    secret["data"] = data;
                    (Method::PUT, &path, secret)
                }
                None => {
                    let labels = json!({ "app.kubernetes.io/name": "salvor" });
                    let metadata = json!({ "name": SERVICE, "namespace": self.namespace, "labels": labels });
                    let secret = json!({
                        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data,
                    });
                    (Method::POST, &folder, secret)
                }
            };
            match self.write("KeepWebhookAuthority", method, path, &secret, &what).await {
                Ok(()) => {
                    tracing::info!(object = what, "webhook object updated");
                    return Ok(kept);
                }
                Err(trouble) if trouble.is_conflict() => {}
                Err(trouble) if trouble.code() == Some(404) && !namespace_made => {
                    // Stamps must outlive this process. A dry run does not get here.
                    namespace_made = self.make_namespace().await;
                    if !namespace_made {
                        return Err(trouble);
                    }
                }
                Err(trouble) => return Err(trouble),
            }
        }
        Err(Trouble::Contended(what))
    }

    /// The state to share, given the Secret, and whether it differs from the Secret.
    fn brought_up_to_date(&self, found: Option<&Value>, token: Token) -> Result<(Kept, bool), Trouble> {
        let known = self.kept.as_ref();
        let now = self.time.roughly();
        let secrets = token.of(Secrets::of(found, known.map(|known| &known.secrets), now)?, now)?;
        let data = found.and_then(|found| found.get("data"));
        let has = |(name, value): (&String, &String)| data.is_some_and(|data| data[name] == **value);
        let has_secrets = secrets.data().iter().all(has);
        let (authorities, is_new) = match &self.origin {
            Origin::Files(_) => (None, false),
            Origin::Own => {
                let removed = known.and_then(|known| known.authorities.as_ref());
                let (authorities, is_new) = match (found.and_then(Authorities::read), removed) {
                    (Some(kept), _) => match kept.advance(now)? {
                        Some(advanced) => (advanced, true),
                        None => (kept, false),
                    },
                    (None, Some(removed)) => (Authorities::instead_of(removed, now)?, true),
                    (None, None) => (Authorities::first(now)?, true),
                };
                (Some(authorities), is_new)
            }
        };
        Ok((Kept { authorities, secrets }, is_new || !has_secrets))
    }

    /// Creates the namespace if we run outside a cluster and are allowed to, as the leader election does.
    async fn make_namespace(&self) -> bool {
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": self.namespace } });
        let what = format!("Namespace {}", self.namespace);
        let is_outside = matches!(self.target, Target::Url(_));
        is_outside
            && self
                .write("KeepWebhookAuthority", Method::POST, "/api/v1/namespaces", &namespace, &what)
                .await
                .is_ok()
    }

    // ---- the configurations ----------------------------------------------------------------------------------------

    async fn configuration(
        &self,
        kind: WebhookKind,
        token: &str,
        bundle: Option<&str>,
    ) -> Result<(), Trouble> {
        if !self.webhooks.iter().any(|webhook| webhook.kind == kind) {
            return Ok(());
        }
        let folder = format!("/apis/admissionregistration.k8s.io/v1/{}", kind.plural());
        let path = format!("{folder}/{CONFIGURATION}");
        let what = format!("{} {CONFIGURATION}", kind.configuration());
        for _ in 0..RACES {
            let found = self.get(&path, &what).await?;
            let repair = repair(kind, &self.webhooks, &self.target, token, bundle, found.as_ref());
            let (method, path, object) = match repair {
                Repair::Nothing => return Ok(()),
                Repair::Missing(webhook) => return Err(Trouble::Missing { what, webhook }),
                Repair::Create(object) => (Method::POST, &folder, object),
                Repair::Update(object) => (Method::PUT, &path, object),
            };
            match self.write("ConfigureWebhooks", method, path, &object, &what).await {
                Ok(()) => {
                    tracing::info!(object = what, "webhook object updated");
                    return Ok(());
                }
                Err(trouble) if trouble.is_conflict() => {}
                Err(trouble) => return Err(trouble),
            }
        }
        Err(Trouble::Contended(what))
    }

    // ---- requests --------------------------------------------------------------------------------------------------

    async fn get(&self, path: &str, what: &str) -> Result<Option<Value>, Trouble> {
        match self.send(Method::GET, path, Vec::new(), what).await {
            Ok(found) => Ok(Some(found)),
            Err(trouble) if trouble.code() == Some(404) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// Writes an object. Its `metadata.resourceVersion`, if present, is the one that was read.
    async fn write(
        &self,
        action: &'static str,
        method: Method,
        path: &str,
        object: &Value,
        what: &str,
    ) -> Result<(), Trouble> {
        let written = self.send(method, path, object.to_string().into_bytes(), what).await.map(drop);
        let result = match &written {
            Ok(()) => "ok",
            Err(trouble) if trouble.is_conflict() => "conflict",
            Err(trouble) if trouble.code() == Some(403) => "forbidden",
            Err(Trouble::Unanswered { .. }) => "unanswered",
            Err(_) => "error",
        };
        self.metrics.wrote(action, result);
        written
    }

    async fn send(&self, method: Method, path: &str, body: Vec<u8>, what: &str) -> Result<Value, Trouble> {
        let trouble = |error| Trouble::Api { what: what.to_owned(), error };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(|error| trouble(kube::Error::HttpError(error)))?;
        let answer = within(ANSWER_WITHIN, self.client.request::<Value>(request)).await;
        answer.ok_or_else(|| Trouble::Unanswered { what: what.to_owned() })?.map_err(trouble)
    }
}
