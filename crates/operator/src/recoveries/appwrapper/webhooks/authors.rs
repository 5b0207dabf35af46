//! Checks who wrote the components of an AppWrapper, and whether that user may create them. Salvor creates components
//! with its own permissions, so right before a creation it asks for access reviews of the author, for exactly the
//! object that it creates.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared, join_all},
};
use http::Request;
use jiff::Timestamp;
use kube::{Client, client::Body};
use salvor_recovery::appwrapper::{
    Authorship, CreateFailure, Phase,
    admission::{self, Access, Questions, User},
    stamp::Claim,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    client::live,
    recoveries::appwrapper::wire::{App, Rules, Written},
    tasks,
    time::within,
};

const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// Timeout of the access reviews.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long a second look waits for them. It is valid for a second, and they are only a part of it. Later answers
/// serve the next look.
const LOOK_WAITS: Duration = Duration::from_millis(700);
/// How long answers count that came too late for the look that asked.
const LATE_HOLDS: Duration = Duration::from_secs(8);

/// Asks the API server what a user may do. That changes nothing there.
pub(crate) async fn ask(client: &Client, questions: &Questions) -> Vec<Access> {
    let reviews = questions.reviews();
    join_all(reviews.iter().map(|review| ask_one(client, review))).await
}

async fn ask_one(client: &Client, review: &Value) -> Access {
    let request = Request::post(ACCESS_REVIEWS)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Body::from(review.to_string().into_bytes()));
    let answer = async {
        let request = request.map_err(kube::Error::HttpError)?;
        let body = live::open(client, request).await?.whole().await?;
        serde_json::from_slice::<Value>(&body).map_err(kube::Error::SerdeError)
    };
    match answer.await {
        Ok(review) => Access::read(&review),
        Err(error) => Access::Unknown(live::brief(&error)),
    }
}

#[derive(Clone, Debug)]
enum Outcome {
    Allowed,
    Denied(String),
    Unanswered(String),
}

/// Reviews for the author of one stamp whose answers came too late for the look that asked.
#[derive(Clone, Debug)]
struct Late {
    claim: Claim,
    asked: Instant,
    outcome: Shared<BoxFuture<'static, Outcome>>,
}

impl Late {
    /// Asks in the background, so that the answers arrive even if no look waits for them any more.
    fn ask(client: &Client, claim: &Claim, questions: Questions) -> Self {
        let client = client.clone();
        let outcome = async move {
            let answers = within(ANSWER_WITHIN, ask(&client, &questions)).await;
            match answers.map(|answers| questions.judge(&answers)) {
                Some(Ok(())) => Outcome::Allowed,
                // If one review is denied and another is not answered, the result is still uncertain.
                Some(Err(refusal)) if refusal.is_certain() => Outcome::Denied(refusal.to_string()),
                Some(Err(refusal)) => Outcome::Unanswered(refusal.to_string()),
                None => Outcome::Unanswered(format!(
                    "no SubjectAccessReview was answered within {} s",
                    ANSWER_WITHIN.as_secs()
                )),
            }
        };
        let outcome = outcome.boxed().shared();
        tasks::spawn(outcome.clone());
        Self { claim: claim.clone(), asked: Instant::now(), outcome }
    }

    /// True if it has answers, and they are about the author of this stamp.
    fn is_of_use(&self, claim: &Claim) -> bool {
        let failed = matches!(self.outcome.peek(), Some(Outcome::Unanswered(_)));
        self.claim == *claim && self.asked.elapsed() < LATE_HOLDS && !failed
    }
}

/// The result of the last look's access reviews, if it prevents a creation. The next look asks again; this only records
/// the reason. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reviews(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    last: Option<Reviewed>,
    late: Option<Late>,
    /// The stamp that no known key has signed, and when it was first seen.
    doubted: Option<(Claim, Instant)>,
}

/// Access reviews for the author of one stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reviewed {
    claim: Claim,
    ruling: Ruling,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Ruling {
    Denied(String),
    Unanswered(CreateFailure),
}

impl Reviews {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of an author until the next reviews.
    fn authorship(&self, claim: &Claim) -> Authorship {
        let known = self.known();
        match known.last.as_ref().filter(|last| last.claim == *claim).map(|last| &last.ruling) {
            None => Authorship::Fine,
            Some(Ruling::Denied(message)) => Authorship::Refused(message.clone()),
            Some(Ruling::Unanswered(failure)) => {
                Authorship::Unanswered { message: failure.message.clone(), retry_at: failure.retry_at() }
            }
        }
    }

    pub(crate) fn forget(&self) {
        let mut known = self.known();
        (known.last, known.late) = (None, None);
    }

    /// When it was first seen that no known key has signed this stamp.
    fn doubted_since(&self, claim: &Claim) -> Instant {
        let mut known = self.known();
        let since = known.doubted.take().filter(|(doubted, _)| doubted == claim).map(|(_, since)| since);
        let since = since.unwrap_or_else(Instant::now);
        known.doubted = Some((claim.clone(), since));
        since
    }

    /// Asks what the author of a stamp may create, and records what prevents it.
    pub(crate) async fn ask(
        &self,
        client: &Client,
        claim: &Claim,
        author: &User,
        object: &Value,
        rules: &Rules,
        now: Timestamp,
    ) -> Authorship {
        let questions = match rules.questions(object, author) {
            admission::Answer::Allowed => {
                self.forget();
                return Authorship::Fine;
            }
            admission::Answer::Refused(refusal) => return Authorship::Refused(refusal.to_string()),
            admission::Answer::Ask(questions) => questions,
        };
        let late = self.known().late.take().filter(|late| late.is_of_use(claim));
        let is_late = late.is_some();
        let late = late.unwrap_or_else(|| Late::ask(client, claim, questions));
        let outcome = within(LOOK_WAITS, late.outcome.clone()).await;
        let mut known = self.known();
        if is_late || outcome.is_none() {
            known.late = Some(late);
        }
        let before = known.last.take().filter(|last| last.claim == *claim).map(|last| last.ruling);
        let unanswered = |message: String, attempts: u32| {
            Ruling::Unanswered(CreateFailure { message, fatal: false, unanswered: false, at: now, attempts })
        };
        let ruling = match outcome {
            Some(Outcome::Allowed) => return Authorship::Fine,
            Some(Outcome::Denied(message)) => Ruling::Denied(message),
            Some(Outcome::Unanswered(message)) => {
                let attempts = match before {
                    Some(Ruling::Unanswered(failure)) => failure.attempts,
                    Some(Ruling::Denied(_)) | None => 0,
                };
                unanswered(message, attempts.saturating_add(1))
            }
            // The reviews are in flight, so the next look does not ask again.
            None => unanswered("no SubjectAccessReview was answered yet".into(), 1),
        };
        known.last = Some(Reviewed { claim: claim.clone(), ruling });
        drop(known);
        self.authorship(claim)
    }
}

/// Whether access reviews are needed before anything is created.
pub(crate) enum Standing<'a> {
    /// No: the result is known.
    Known(Authorship),
    /// Yes, for this author.
    Author { claim: &'a Claim, author: User },
}

pub(crate) fn standing<'a>(app: &'a App, rules: &Rules, reviews: &Reviews) -> Standing<'a> {
    let refused = |refusal: Option<&String>| {
        refusal.map_or(Authorship::Fine, |refusal| Authorship::Refused(refusal.clone()))
    };
    match &app.written {
        Written::Unasked => Standing::Known(Authorship::Fine),
        Written::Unstamped { refusal } => Standing::Known(refused(refusal.as_ref())),
        Written::Claimed { claim, if_forged } => match rules.author(claim) {
            None => Standing::Known(Authorship::NoKeys),
            // Another replica may have signed it with a key that is newer than the keys that this one has read.
            Some(Err(_))
                if if_forged.is_some() && !rules.keys_were_read_since(reviews.doubted_since(claim)) =>
            {
                Standing::Known(Authorship::NoKeys)
            }
            Some(Err(_)) => Standing::Known(refused(if_forged.as_ref())),
            Some(Ok(author)) => Standing::Author { claim, author },
        },
    }
}

/// What is known without new reviews.
pub(crate) fn authorship(app: &App, rules: &Rules, reviews: &Reviews) -> Authorship {
    match standing(app, rules, reviews) {
        Standing::Known(authorship) => authorship,
        // Reviews matter only where something is to be created.
        Standing::Author { claim, .. } if app.status.phase == Phase::Resuming => reviews.authorship(claim),
        Standing::Author { .. } => Authorship::Fine,
    }
}
