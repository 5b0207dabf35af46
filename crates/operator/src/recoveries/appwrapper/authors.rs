//! Checks who wrote the components of an AppWrapper, and what that user may create. Salvor creates others' objects with
//! its own permissions, so it makes access reviews right before, for the exact object that it creates from.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use http::Request;
use jiff::Timestamp;
use kube::{Client, client::Body};
use salvor_recovery::appwrapper::{
    Authorship, CreateFailure, Phase,
    admission::{self, Access, Questions, User},
    stamp::Claim,
};
use serde_json::Value;

use super::wire::{App, Rules, Written};
use crate::{live, time::within};

const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// Timeout of the access reviews. A look is valid for a second, and this is only a part of it.
const ANSWER_WITHIN: Duration = Duration::from_millis(700);

/// Asks the API server what a user may do. That changes nothing there.
pub(super) async fn ask(client: &Client, questions: &Questions) -> Vec<Access> {
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

/// The result of the last look's access reviews, if it prevents a creation. The next look asks again; this only records
/// the reason. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Reviews(Arc<Mutex<Option<Reviewed>>>);

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
    fn last(&self) -> MutexGuard<'_, Option<Reviewed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of an author until the next reviews.
    fn authorship(&self, claim: &Claim) -> Authorship {
        let last = self.last();
        match last.as_ref().filter(|last| last.claim == *claim).map(|last| &last.ruling) {
            None => Authorship::Fine,
            Some(Ruling::Denied(message)) => Authorship::Refused(message.clone()),
            Some(Ruling::Unanswered(failure)) => {
                Authorship::Unanswered { message: failure.message.clone(), retry_at: failure.retry_at() }
            }
        }
    }

    pub(super) fn forget(&self) {
        *self.last() = None;
    }

    /// Asks what the author of a stamp may create, and records what prevents it.
    pub(super) async fn ask(
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
        let answers = within(ANSWER_WITHIN, ask(client, &questions)).await;
        let ruling = match answers.map(|answers| questions.judge(&answers)) {
            Some(Ok(())) => {
                self.forget();
                return Authorship::Fine;
            }
            // If one review is denied and another is not answered, the result is still uncertain.
            Some(Err(refusal)) if refusal.is_certain() => Ok(refusal.to_string()),
            Some(Err(refusal)) => Err(refusal.to_string()),
            None => {
                Err(format!("no SubjectAccessReview was answered within {} ms", ANSWER_WITHIN.as_millis()))
            }
        };
        let mut last = self.last();
        let before = last.take().filter(|last| last.claim == *claim).map(|last| last.ruling);
        let ruling = ruling.map_or_else(
            |message| {
                let attempts = match before {
                    Some(Ruling::Unanswered(failure)) => failure.attempts,
                    Some(Ruling::Denied(_)) | None => 0,
                };
                let attempts = attempts.saturating_add(1);
                Ruling::Unanswered(CreateFailure {
                    message,
                    fatal: false,
                    unanswered: false,
                    at: now,
                    attempts,
                })
            },
            Ruling::Denied,
        );
        *last = Some(Reviewed { claim: claim.clone(), ruling });
        drop(last);
        self.authorship(claim)
    }
}

/// Whether access reviews are needed before anything is created.
pub(super) enum Standing<'a> {
    /// No: the result is known.
    Known(Authorship),
    /// Yes, for this author.
    Author { claim: &'a Claim, author: User },
}

pub(super) fn standing<'a>(app: &'a App, rules: &Rules) -> Standing<'a> {
    let refused = |refusal: Option<&String>| {
        refusal.map_or(Authorship::Fine, |refusal| Authorship::Refused(refusal.clone()))
    };
    match &app.written {
        Written::Unasked => Standing::Known(Authorship::Fine),
        Written::Unstamped { refusal } => Standing::Known(refused(refusal.as_ref())),
        Written::Claimed { claim, if_forged } => match rules.author(claim) {
            None => Standing::Known(Authorship::NoKeys),
            Some(Err(_)) => Standing::Known(refused(if_forged.as_ref())),
            Some(Ok(author)) => Standing::Author { claim, author },
        },
    }
}

/// What is known without new reviews.
pub(super) fn authorship(app: &App, rules: &Rules, reviews: &Reviews) -> Authorship {
    match standing(app, rules) {
        Standing::Known(authorship) => authorship,
        // Reviews matter only where something is to be created.
        Standing::Author { claim, .. } if app.status.phase == Phase::Resuming => reviews.authorship(claim),
        Standing::Author { .. } => Authorship::Fine,
    }
}
