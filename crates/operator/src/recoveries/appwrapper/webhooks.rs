//! The admission webhooks of AppWrappers: who created one is written down, and what could never run is refused.

use std::sync::Arc;

use futures::future::join_all;
use http::Request;
use k8s_openapi::api::authentication::v1::UserInfo;
use kube::{Client, client::Body};
use salvor_api::{
    config::Configuration,
    names::appwrapper::{
        GROUP, MUTATING_PATH, MUTATING_WEBHOOK, VALIDATING_PATH, VALIDATING_WEBHOOK, VERSION,
    },
};
use salvor_recovery::appwrapper::{
    admission::{self, Access, AdmissionPolicy, Questions, User},
    bounds::Size,
};
use serde_json::{Value, value::RawValue};

use crate::{
    live,
    webhooks::{
        AdmissionRequest, Answer, Change, FailurePolicy, Operation, Registration, Rule, Webhook, WebhookKind,
    },
};

/// The API server gives up after so many seconds. Asking about a user takes the server itself some milliseconds.
const TIMEOUT_SECONDS: u8 = 10;
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// What the API server is told of the webhooks.
pub(super) fn declared(_: &Configuration) -> Vec<Webhook> {
    let webhook = |kind, name, path, operations| Webhook {
        kind,
        name,
        path,
        rules: vec![Rule { group: GROUP, versions: &[VERSION], resources: &["appwrappers"], operations }],
        failure_policy: FailurePolicy::Fail,
        timeout_seconds: TIMEOUT_SECONDS,
    };
    vec![
        webhook(WebhookKind::Mutating, MUTATING_WEBHOOK, MUTATING_PATH, &[Operation::Create]),
        webhook(
            WebhookKind::Validating,
            VALIDATING_WEBHOOK,
            VALIDATING_PATH,
            &[Operation::Create, Operation::Update],
        ),
    ]
}

/// The webhooks with those who answer.
pub(super) fn handlers(configuration: &Configuration, client: &Client) -> Vec<Registration> {
    let policy = Arc::new(AdmissionPolicy::new(&configuration.appwrapper));
    let register = |webhook: Webhook| {
        let (policy, client) = (policy.clone(), client.clone());
        match webhook.kind {
            WebhookKind::Mutating => Registration::new(webhook, move |request| {
                let policy = policy.clone();
                async move { mutate(&request, &policy).unwrap_or_else(|refused| refused) }
            }),
            WebhookKind::Validating => Registration::new(webhook, move |request| {
                let (policy, client) = (policy.clone(), client.clone());
                async move { validate(&client, &request, &policy).await.unwrap_or_else(|refused| refused) }
            }),
        }
    };
    declared(configuration).into_iter().map(register).collect()
}

/// Refuses what is too large before it is read: in memory it is many times as large as its text.
fn of_bounded_size(request: &AdmissionRequest) -> Result<(), Answer> {
    let size = |object: &Option<Box<RawValue>>| {
        object.as_deref().and_then(|object| Size::of_text(object.get()).ok()).unwrap_or_default()
    };
    let (before, now) = (size(&request.old_object), size(&request.object));
    now.excess_since(before).map_or(Ok(()), |excess| Err(Answer::denied(403, excess.to_string())))
}

fn mutate(request: &AdmissionRequest, policy: &AdmissionPolicy) -> Result<Answer, Answer> {
    of_bounded_size(request)?;
    let object: Value = request.object()?;
    let user = user(&request.user_info);
    let asked = admission::Request {
        operation: match request.operation {
            Operation::Create => admission::Operation::Create,
            // Only creations are asked about.
            Operation::Update | Operation::Delete | Operation::Connect => return Ok(Answer::allowed()),
        },
        namespace: &request.namespace,
        user: &user,
        object: &object,
    };
    let changes = admission::mutate(&asked, policy).into_iter();
    Ok(Answer::patched(changes.map(|it| Change::Add { path: it.path, value: it.value }).collect()))
}

async fn validate(
    client: &Client,
    request: &AdmissionRequest,
    policy: &AdmissionPolicy,
) -> Result<Answer, Answer> {
    of_bounded_size(request)?;
    let object: Value = request.object()?;
    let user = user(&request.user_info);
    let old: Value;
    let operation = match request.operation {
        Operation::Create => admission::Operation::Create,
        Operation::Update => {
            old = request.old_object()?;
            admission::Operation::Update { old: &old }
        }
        // Only creations and changes are asked about.
        Operation::Delete | Operation::Connect => return Ok(Answer::allowed()),
    };
    let asked = admission::Request { operation, namespace: &request.namespace, user: &user, object: &object };
    let ruling = match admission::validate(&asked, policy) {
        admission::Answer::Allowed => Ok(()),
        admission::Answer::Refused(refusal) => Err(refusal),
        admission::Answer::Ask(questions) => {
            let answers = ask(client, &questions).await;
            questions.judge(&answers)
        }
    };
    Ok(match ruling {
        Ok(()) => Answer::allowed(),
        Err(refusal) => Answer::denied(refusal.code(), refusal.to_string()),
    })
}

/// Asks the API server what a user may do. That changes nothing there.
async fn ask(client: &Client, questions: &Questions) -> Vec<Access> {
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

fn user(info: &UserInfo) -> User {
    User {
        username: info.username.clone().unwrap_or_default(),
        uid: info.uid.clone().unwrap_or_default(),
        groups: info.groups.clone().unwrap_or_default(),
        extra: info.extra.clone().unwrap_or_default(),
    }
}
