//! The admission webhooks of AppWrappers: they record who created one, and refuse what could never run.

pub(super) mod authors;

use std::sync::Arc;

use k8s_openapi::api::authentication::v1::UserInfo;
use kube::Client;
use salvor_api::{
    config::Configuration,
    names::appwrapper::{
        GROUP, MUTATING_PATH, MUTATING_WEBHOOK, VALIDATING_PATH, VALIDATING_WEBHOOK, VERSION, WRITTEN_BY,
    },
};
use salvor_recovery::appwrapper::{
    admission::{self, AdmissionPolicy, User},
    bounds::Size,
    stamp::{self, Stamping},
};
use serde_json::{Value, json, value::RawValue};

use self::authors::ask;
use crate::webhooks::{
    AdmissionRequest, Answer, Change, FailurePolicy, HandlerContext, Operation, Registration, Rule, Webhook,
    WebhookKind,
};

/// Timeout of the API server. An access review takes the server a few milliseconds.
const TIMEOUT_SECONDS: u8 = 10;

pub(super) fn declared(_: &Configuration) -> Vec<Webhook> {
    let webhook = |kind, name, path, operations: &'static [Operation]| Webhook {
        kind,
        name,
        path,
        rules: vec![Rule { group: GROUP, versions: &[VERSION], resources: &["appwrappers"], operations }],
        failure_policy: FailurePolicy::Fail,
        timeout_seconds: TIMEOUT_SECONDS,
    };
    let written: &'static [Operation] = &[Operation::Create, Operation::Update];
    vec![
        webhook(WebhookKind::Mutating, MUTATING_WEBHOOK, MUTATING_PATH, written),
        webhook(WebhookKind::Validating, VALIDATING_WEBHOOK, VALIDATING_PATH, written),
    ]
}

pub(super) fn handlers(configuration: &Configuration, handler_context: &HandlerContext) -> Vec<Registration> {
    let policy = Arc::new(AdmissionPolicy::new(&configuration.appwrapper));
    let register = |webhook: Webhook| {
        let (policy, handler_context) = (policy.clone(), handler_context.clone());
        match webhook.kind {
            WebhookKind::Mutating => Registration::new(webhook, move |request| {
                let (policy, handler_context) = (policy.clone(), handler_context.clone());
                async move { mutate(&handler_context, &request, &policy).await.unwrap_or_else(|refused| refused) }
            }),
            WebhookKind::Validating => Registration::new(webhook, move |request| {
                let (policy, client) = (policy.clone(), handler_context.client.clone());
                async move { validate(&client, &request, &policy).await.unwrap_or_else(|refused| refused) }
            }),
        }
    };
    declared(configuration).into_iter().map(register).collect()
}

/// Refuses an object that is too large before it is decoded: decoded, it is many times as large as its text.
fn of_bounded_size(request: &AdmissionRequest) -> Result<(), Answer> {
    let size = |object: &Option<Box<RawValue>>| {
        object.as_deref().and_then(|object| Size::of_text(object.get()).ok()).unwrap_or_default()
    };
    let (before, now) = (size(&request.old_object), size(&request.object));
    now.excess_since(before).map_or(Ok(()), |excess| Err(Answer::denied(403, excess.to_string())))
}

async fn mutate(
    handler_context: &HandlerContext,
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
        // The webhook is registered for creations and updates only.
        Operation::Delete | Operation::Connect => return Ok(Answer::allowed()),
    };
    let asked = admission::Request { operation, namespace: &request.namespace, user: &user, object: &object };
    let changes = admission::mutate(&asked, policy).into_iter();
    let changes = changes.map(|it| Change::Add { path: it.path, value: it.value });
    // The caller knew the token, and the token is loaded together with the keys.
    let known = || {
        let keys = handler_context.keyring.keys();
        keys.ok_or_else(|| Answer::denied(503, "the keys of stamps are not known yet: try again"))
    };
    let mut keys = known()?;
    // Another replica may have signed it with a key that is newer than the keys that this one has read.
    if stamp::loses_its_stamp(&asked, &keys) {
        handler_context.keyring.read_again().await;
        keys = known()?;
    }
    let stamping = stamp::stamp(&asked, &keys, handler_context.time.roughly());
    Ok(Answer::patched(changes.chain(annotated(&object, stamping)).collect()))
}

/// The change of the annotation that records who wrote the components.
fn annotated(object: &Value, stamping: Stamping) -> Option<Change> {
    let annotations = "/metadata/annotations";
    let path = format!("{annotations}/{}", WRITTEN_BY.replace('~', "~0").replace('/', "~1"));
    match stamping {
        Stamping::Keep => None,
        Stamping::Put(text) if object["metadata"]["annotations"].is_object() => {
            Some(Change::Add { path, value: text.into() })
        }
        Stamping::Put(text) => {
            let value = json!({ WRITTEN_BY: text });
            Some(Change::Add { path: annotations.into(), value })
        }
        Stamping::Remove => Some(Change::Remove { path }),
    }
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
        // The webhook is registered for creations and updates only.
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

fn user(info: &UserInfo) -> User {
    User {
        username: info.username.clone().unwrap_or_default(),
        uid: info.uid.clone().unwrap_or_default(),
        groups: info.groups.clone().unwrap_or_default(),
        extra: info.extra.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        testing::fake_api::{self, FakeApi},
        time::Time,
        webhooks::{Keyring, Ruling},
    };

    /// A user creates an AppWrapper of so many Jobs.
    fn creation(components: usize) -> AdmissionRequest {
        let job = json!({"template": {
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
        }});
        let request = json!({
            "uid": "r", "operation": "CREATE", "namespace": "ns", "name": "w",
            "kind": {"group": GROUP, "version": VERSION, "kind": "AppWrapper"},
            "resource": {"group": GROUP, "version": VERSION, "resource": "appwrappers"},
            "userInfo": {"username": "eve"},
            "object": {
                "metadata": {"namespace": "ns", "name": "w"},
                "spec": {"suspend": true, "components": vec![job; components]},
            },
        });
        serde_json::from_str(&request.to_string()).unwrap()
    }

    fn policy() -> AdmissionPolicy {
        AdmissionPolicy::new(&Configuration::default().appwrapper)
    }

    /// The code with which it is refused.
    fn refused(answer: Result<Answer, Answer>) -> Option<u16> {
        match answer.unwrap_or_else(|refused| refused).ruling {
            Ruling::Denied { code, .. } => Some(code),
            Ruling::Allowed | Ruling::Patched(_) => None,
        }
    }

    #[tokio::test]
    async fn only_what_the_server_allows_the_user_is_let_in() {
        type Review = fn() -> fake_api::Answer;
        let cases: [(&str, Review, Option<u16>); 5] = [
            ("yes", || fake_api::Answer::Json(201, json!({"status": {"allowed": true}})), None),
            ("no", || fake_api::Answer::Json(201, json!({"status": {"allowed": false}})), Some(403)),
            ("not yours to ask", || fake_api::Answer::Refused(403, "not yours to ask"), Some(500)),
            ("later", || fake_api::Answer::Refused(500, "later"), Some(500)),
            ("nothing", || fake_api::Answer::Json(201, json!({})), Some(500)),
        ];
        for (case, review, expected) in cases {
            let api = FakeApi::new(move |_| review());
            let answer = validate(&api.client, &creation(1), &policy()).await;
            assert_eq!(refused(answer), expected, "{case}");
            assert_eq!(api.asked().len(), 1, "{case}");
        }
    }

    #[tokio::test]
    async fn what_is_too_large_or_cannot_be_stamped_is_refused() {
        let handler_context = |keyring| {
            let api = FakeApi::new(|asked| panic!("{asked:?}"));
            HandlerContext { client: api.client, time: Time::system(), keyring }
        };
        let mutated = async |keyring, components| {
            refused(mutate(&handler_context(keyring), &creation(components), &policy()).await)
        };
        assert_eq!(mutated(Keyring::random(), 128).await, None);
        assert_eq!(mutated(Keyring::random(), 129).await, Some(403));
        // The controller would never run one that was let in without a stamp.
        assert_eq!(mutated(Keyring::default(), 1).await, Some(503));
    }
}
