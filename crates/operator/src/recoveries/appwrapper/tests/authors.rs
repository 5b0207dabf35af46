//! What is created depends on the permissions of the author of exactly the components that are created.

use std::time::Duration;

use salvor_api::names::appwrapper::WRITTEN_BY;
use salvor_recovery::appwrapper::{
    Authorship,
    admission::{Operation, Request, User},
    stamp::{Stamping, read, stamp},
};

use super::{super::webhooks::authors::Reviews, *};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

fn user(name: &str) -> User {
    User { username: name.into(), groups: vec!["devs".into()], ..User::default() }
}

/// Adds the stamp that the webhook writes when this user creates the object.
fn by(name: &str, keyring: &Keyring, mut object: Value) -> Value {
    let user = user(name);
    let request = Request { operation: Operation::Create, namespace: "ns", user: &user, object: &object };
    let created = "2027-01-15T07:59:59Z".parse().unwrap();
    let Stamping::Put(text) = stamp(&request, &keyring.keys().unwrap(), created) else { panic!() };
    object["metadata"]["annotations"][WRITTEN_BY] = text.into();
    object
}

/// An API server with this AppWrapper that answers access reviews with `review`.
fn server(object: Value, review: impl Fn() -> Answer + Send + Sync + 'static) -> FakeApi {
    FakeApi::new(move |asked| match asked.path.as_str() {
        REVIEWS => review(),
        path if path.ends_with("/appwrappers/w") => Answer::Json(200, object.clone()),
        path if path.ends_with("/jobs") || path.ends_with("/pods") => {
            Answer::Json(200, json!({"metadata": {"resourceVersion": "20"}, "items": []}))
        }
        _ => Answer::Refused(404, "not found"),
    })
}

fn answers(allowed: bool) -> impl Fn() -> Answer + Send + Sync + 'static {
    move || Answer::Json(201, json!({"status": {"allowed": allowed}}))
}

fn reviews(api: &FakeApi) -> Vec<Value> {
    api.asked().into_iter().filter(|asked| asked.path == REVIEWS).map(|asked| asked.body).collect()
}

#[tokio::test]
async fn the_author_is_asked_about_right_before_a_creation() {
    let keyring = Keyring::random();
    let object = by("ann", &keyring, resuming(5));
    let (recovery, subject) = knowing(recovery_with("", &keyring), &object);
    create(&recovery, &subject);
    let api = server(object, answers(true));
    let (code, steps) = look(&recovery, &subject, &api).await.unwrap();
    let [Step::CreateComponent { body: Some(_), .. }] = steps.as_slice() else { panic!("{code} {steps:?}") };
    let [review] = reviews(&api).try_into().unwrap();
    assert_eq!((&review["spec"]["user"], &review["spec"]["groups"]), (&json!("ann"), &json!(["devs"])));
    let attributes = &review["spec"]["resourceAttributes"];
    assert_eq!((&attributes["resource"], &attributes["namespace"]), (&json!("jobs"), &json!("ns")));
}

#[tokio::test]
async fn an_author_who_may_not_creates_nothing_and_is_told() {
    let keyring = Keyring::random();
    let object = by("eve", &keyring, resuming(5));
    let (recovery, subject) = knowing(recovery_with("", &keyring), &object);
    create(&recovery, &subject);
    for _ in 0..2 {
        // The second look is the one before it ends in Failed.
        let (code, steps) = look(&recovery, &subject, &server(object.clone(), answers(false))).await.unwrap();
        assert_eq!((code.as_str(), names(&steps)[0]), ("GivenUp", "PatchAppWrapperStatus"));
        let (code, steps) = asked(&recovery, &subject);
        assert_eq!(code, "GivenUp");
        let Step::PatchStatus { status, .. } = &steps[0] else { panic!("{steps:?}") };
        let message = &status.condition("Unhealthy").unwrap().message;
        assert!(message.contains("User eve is not authorized to create jobs in ns"), "{message}");
    }
    // The user was granted the permission meanwhile.
    let (code, _) = look(&recovery, &subject, &server(object, answers(true))).await.unwrap();
    assert_eq!(code, "Creating");
    create(&recovery, &subject);
}

#[tokio::test(start_paused = true)]
async fn reviews_that_fail_create_nothing_and_are_made_again() {
    type Failing = fn() -> Answer;
    for (failing, says) in [
        ((|| Answer::Refused(403, "not yours to ask")) as Failing, "not yours to ask"),
        (|| Answer::Refused(500, "later"), "later"),
        (|| Answer::Json(201, json!({"status": {}})), "the answer has no status.allowed"),
        (|| Answer::Never, "no SubjectAccessReview was answered yet"),
    ] {
        let keyring = Keyring::random();
        let object = by("ann", &keyring, resuming(5));
        let (recovery, subject) = knowing(recovery_with("", &keyring), &object);
        create(&recovery, &subject);
        for _ in 0..3 {
            let (code, steps) = look(&recovery, &subject, &server(object.clone(), failing)).await.unwrap();
            assert!(!names(&steps).contains(&"CreateComponent"), "{says}: {steps:?}");
            assert_eq!(code, "AuthorUnknown", "{says}");
            let (code, steps) = asked(&recovery, &subject);
            assert_eq!(code, "AuthorUnknown", "{says}");
            let [Step::PatchStatus { status, .. }] = steps.as_slice() else { panic!("{steps:?}") };
            assert_eq!(status.phase, Phase::Resuming);
            let condition = status.condition("ComponentsValid").unwrap();
            assert!(condition.reason == "AuthorUnknown" && condition.message.contains(says), "{condition:?}");
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (code, _) = look(&recovery, &subject, &server(object, answers(true))).await.unwrap();
        assert_eq!(code, "Creating", "{says}");
    }
}

/// The authorizer takes longer than a look may. Its answers are there for the next one, and nothing is asked twice meanwhile.
#[tokio::test(start_paused = true)]
async fn answers_that_are_late_for_one_look_count_for_the_next() {
    for (millis, allowed, expected) in
        [(800, true, "Creating"), (4_000, true, "Creating"), (800, false, "GivenUp")]
    {
        let keyring = Keyring::random();
        let object = by("ann", &keyring, resuming(5));
        let (recovery, subject) = knowing(recovery_with("", &keyring), &object);
        let answer = move || answers(allowed)().late(Duration::from_millis(millis));
        let api = server(object, answer);
        let began = tokio::time::Instant::now();
        loop {
            let asked = tokio::time::Instant::now();
            let (code, _) = look(&recovery, &subject, &api).await.unwrap();
            assert!(asked.elapsed() < crate::client::recent_reads::READ_VALID_FOR, "{:?}", asked.elapsed());
            if code == expected {
                break;
            }
            assert_eq!(code, "AuthorUnknown");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        // A review is valid for some seconds; then the permissions are reviewed again.
        assert_eq!(look(&recovery, &subject, &api).await.unwrap().0, expected);
        assert_eq!(reviews(&api).len(), 1);
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!(look(&recovery, &subject, &api).await.unwrap().0, "AuthorUnknown");
        assert_eq!(reviews(&api).len(), 2, "old answers do not count");
    }
}

/// Another replica has made a new key, and signs with it at once.
#[tokio::test]
async fn a_stamp_of_a_key_that_is_not_read_yet_is_not_forged() {
    let (keyring, next) = (Keyring::random(), Keyring::random());
    let object = by("ann", &next, resuming(5));
    let (recovery, subject) = knowing(recovery_with("", &keyring), &object);
    let api = server(object, answers(true));
    assert_eq!(asked(&recovery, &subject), ("AuthorUnknown", Vec::new()));
    assert_eq!(look(&recovery, &subject, &api).await.unwrap().0, "AuthorUnknown");
    keyring.read_from(&next);
    create(&recovery, &subject);
    assert_eq!(look(&recovery, &subject, &api).await.unwrap().0, "Creating");
}

#[tokio::test]
async fn what_no_webhook_has_stamped_is_created_only_if_its_kinds_are_named_for_that() {
    let keyring = Keyring::random();
    let stranger = Keyring::random();
    let mut replayed = by("admin", &keyring, resuming(5));
    replayed["spec"]["components"][0]["template"]["spec"]["template"]["spec"]["hostPID"] = true.into();
    let replayed = admit(replayed);
    let forged = by("admin", &stranger, resuming(5));
    for (object, says) in [
        (resuming(5), "appwrapper.salvor.dev/written-by is missing"),
        (forged, "is not signed by Salvor"),
        (replayed, "is about other components"),
    ] {
        let (recovery, subject) = knowing(recovery_with("", &keyring), &object);
        let api = server(object.clone(), answers(true));
        // The keys are read once more before a stamp counts as forged.
        asked(&recovery, &subject);
        keyring.read_from(&keyring);
        let (code, steps) = asked(&recovery, &subject);
        for (code, steps) in [(code.to_owned(), steps), look(&recovery, &subject, &api).await.unwrap()] {
            assert_eq!(code, "GivenUp");
            let Step::PatchStatus { status, .. } = &steps[0] else { panic!("{steps:?}") };
            assert_eq!(status.phase, Phase::Failed);
            let message = &status.condition("Unhealthy").unwrap().message;
            assert!(message.contains(says) && message.contains("- Job.batch"), "{message}");
        }
        assert_eq!(reviews(&api), Vec::<Value>::new(), "nobody is asked about");
        let named = "appwrapper: {wrappedKindsWithoutWebhooks: [Job.batch]}\n";
        let (recovery, subject) = knowing(recovery_with(named, &keyring), &object);
        create(&recovery, &subject);
        assert_eq!(look(&recovery, &subject, &api).await.unwrap().0, "Creating");
    }
}

/// The watch has shown an admin's version; the components differ when they are about to be created.
#[tokio::test]
async fn the_stamp_is_read_from_the_object_that_is_created_from() {
    let keyring = Keyring::random();
    let object = by("admin", &keyring, resuming(5));
    let (recovery, subject) = knowing(recovery_with("", &keyring), &object);
    create(&recovery, &subject);
    let mut changed = object;
    changed["spec"]["components"][0]["template"]["spec"]["template"]["spec"]["hostPID"] = true.into();
    // A user who may write the status accepts the change.
    let changed = admit(changed);
    let (code, steps) = look(&recovery, &subject, &server(changed, answers(true))).await.unwrap();
    assert!(!names(&steps).contains(&"CreateComponent"), "{code} {steps:?}");
}

#[tokio::test]
async fn before_the_keys_are_read_nothing_is_created_and_nothing_is_refused() {
    let (keyring, signing) = (Keyring::default(), Keyring::random());
    let (recovery, subject) = knowing(recovery_with("", &keyring), &by("ann", &signing, resuming(5)));
    assert_eq!(asked(&recovery, &subject), ("AuthorUnknown", Vec::new()));
}

#[tokio::test]
async fn where_the_administrator_wants_nobody_to_be_asked_no_stamp_is_needed() {
    let settings = "appwrapper: {userRBACAdmissionCheck: false}\n";
    let (recovery, subject) = knowing(recovery_with(settings, &Keyring::random()), &resuming(5));
    create(&recovery, &subject);
    let api = server(resuming(5), answers(false));
    assert_eq!(look(&recovery, &subject, &api).await.unwrap().0, "Creating");
    assert_eq!(reviews(&api), Vec::<Value>::new());
}

/// A denial for one stamp must not decide about an AppWrapper with another stamp.
#[tokio::test]
async fn a_denial_counts_for_the_stamp_that_it_was_asked_for() {
    let keyring = Keyring::random();
    let object = by("eve", &keyring, resuming(5));
    let (mut recovery, subject) = knowing(recovery_with("", &keyring), &object);
    look(&recovery, &subject, &server(object, answers(false))).await.unwrap();
    assert_eq!(asked(&recovery, &subject).0, "GivenUp");
    let app = app(&recovery, &by("ann", &keyring, resuming(6)));
    recovery.on_change(News::App(Change::Applied(app)), now());
    create(&recovery, &subject);
}

/// The AppWrapper ends in Failed for good if its author may not create it, so that must be certain.
#[tokio::test]
async fn a_denial_beside_a_review_that_failed_is_not_certain() {
    let keyring = Keyring::random();
    let mut object = resuming(5);
    let pod = json!({"template": {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]},
    }});
    object["spec"]["components"].as_array_mut().unwrap().push(pod);
    let object = by("eve", &keyring, object);
    let claim = read(&object).unwrap();
    let (reviews, rules) = (Reviews::default(), recovery_with("", &keyring).rules);
    for (is_answered, is_final) in [(false, false), (true, true)] {
        let api =
            FakeApi::new(move |asked| match asked.body["spec"]["resourceAttributes"]["resource"].as_str() {
                Some("pods") if !is_answered => Answer::Refused(500, "later"),
                Some("pods") => answers(true)(),
                Some("jobs") => answers(false)(),
                other => panic!("{other:?}"),
            });
        let found = reviews.ask(&api.client, &claim, &user("eve"), &object, &rules, now()).await;
        match &found {
            Authorship::Refused(_) => assert!(is_final, "{found:?}"),
            Authorship::Unanswered { .. } => assert!(!is_final, "{found:?}"),
            Authorship::Fine | Authorship::NoKeys => panic!("{found:?}"),
        }
    }
}
