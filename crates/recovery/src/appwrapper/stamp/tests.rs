use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::appwrapper::podsets::tests::any_json;
use crate::signing::KEY_LENGTH;

const KEYS: Keys = Keys { current: [1; KEY_LENGTH], previous: None };
const OTHER_KEYS: Keys = Keys { current: [2; KEY_LENGTH], previous: None };

fn now() -> Timestamp {
    "2026-11-18T10:00:00Z".parse().unwrap()
}

fn user(name: &str) -> User {
    User {
        username: name.into(),
        uid: format!("{name}-uid"),
        groups: vec!["devs".into(), "system:authenticated".into()],
        extra: BTreeMap::from([("scopes".to_owned(), vec!["a".to_owned(), "b".to_owned()])]),
    }
}

/// The object as a user sends it.
fn sent(image: &str) -> Value {
    json!({
        "metadata": {"name": "w", "labels": {"a": "b"}},
        "spec": {"suspend": true, "components": [{"template": {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "main", "image": image}]},
        }}]},
    })
}

/// The object as the API server stores it.
fn stored(mut object: Value, uid: &str) -> Value {
    let metadata = &mut object["metadata"];
    if let Some(prefix) = metadata["generateName"].as_str() {
        metadata["name"] = format!("{prefix}x7k2p").into();
    }
    metadata["namespace"] = "team".into();
    metadata["uid"] = uid.into();
    metadata["creationTimestamp"] = "2026-11-18T10:00:01Z".into();
    object
}

fn asked<'a>(operation: Operation<'a>, user: &'a User, object: &'a Value) -> Request<'a> {
    Request { operation, namespace: "team", user, object }
}

/// The object after the webhook's change of its annotation.
fn applied(mut object: Value, stamping: Stamping) -> Value {
    match stamping {
        Stamping::Keep => {}
        Stamping::Put(text) => object["metadata"]["annotations"][names::WRITTEN_BY] = text.into(),
        Stamping::Remove => {
            object["metadata"]["annotations"].as_object_mut().unwrap().remove(names::WRITTEN_BY).unwrap();
        }
    }
    object
}

/// A user creates it, and the webhook is called.
fn created(by: &str, object: Value, uid: &str) -> Value {
    let user = user(by);
    let stamping = stamp(&asked(Operation::Create, &user, &object), &KEYS, now());
    stored(applied(object, stamping), uid)
}

/// A user updates it, and the webhook is called.
fn changed(by: &str, old: &Value, change: impl FnOnce(&mut Value)) -> Value {
    let (user, mut object) = (user(by), old.clone());
    change(&mut object);
    let operation = Operation::Update { old };
    let stamping = stamp(&asked(operation, &user, &object), &KEYS, now() + SignedDuration::from_hours(1));
    applied(object, stamping)
}

fn author(object: &Value) -> Result<String, Unstamped> {
    read(object)?.author(&KEYS).map(|user| user.username.clone())
}

#[test]
fn who_creates_it_is_its_author_with_all_that_is_known_of_them() {
    let made = created("ann", sent("work"), "u1");
    assert_eq!(read(&made).unwrap().author(&KEYS), Ok(&user("ann")));
    let text = made["metadata"]["annotations"][names::WRITTEN_BY].as_str().unwrap();
    assert!(text.contains("\"username\":\"ann\""), "a person can read it: {text}");
    // A name that the API server generates.
    let mut object = sent("work");
    object["metadata"] = json!({"generateName": "w-"});
    assert_eq!(author(&created("ann", object, "u1")), Ok("ann".into()));
}

#[test]
fn who_changes_nothing_but_the_rest_does_not_become_its_author() {
    let made = created("ann", sent("work"), "u1");
    for change in [
        (|it| it["spec"]["suspend"] = json!(false)) as fn(&mut Value),
        |it| it["metadata"]["labels"]["a"] = json!("c"),
        |it| it["spec"]["components"][0]["podSetInfos"] = json!([{"nodeSelector": {"a": "b"}}]),
        // An update may drop the annotation, or bring another one.
        |it| it["metadata"]["annotations"] = json!({}),
        |it| it["metadata"]["annotations"][names::WRITTEN_BY] = json!("mine"),
        |_| {},
    ] {
        let after = changed("kueue", &made, change);
        assert_eq!(author(&after), Ok("ann".into()));
        // Now it is bound to its UID, and does not change any more.
        assert_eq!(
            stamp(&asked(Operation::Update { old: &after }, &user("eve"), &after), &KEYS, now()),
            Stamping::Keep
        );
        let mut again = after.clone();
        again["metadata"]["uid"] = json!("u2");
        assert_eq!(author(&again), Err(Unstamped::OfAnother));
    }
    // An AppWrapper without a stamp gets none when its suspension is lifted.
    let unstamped = stored(sent("work"), "u1");
    let after = changed("admin", &unstamped, |it| it["spec"]["suspend"] = json!(false));
    assert_eq!(author(&after), Err(Unstamped::Missing));
}

#[test]
fn who_changes_the_components_is_their_author() {
    let made = created("ann", sent("work"), "u1");
    let after =
        changed("bob", &made, |it| it["spec"]["components"] = sent("other")["spec"]["components"].clone());
    assert_eq!(author(&after), Ok("bob".into()));
}

#[test]
fn what_no_webhook_has_stamped_is_not_believed() {
    let made = created("ann", sent("work"), "u1");
    let stamp_of = |object: &Value| object["metadata"]["annotations"][names::WRITTEN_BY].clone();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut object = made.clone();
        change(&mut object);
        author(&object)
    };
    let forged = |from: &str, to: &str| {
        let text = stamp_of(&made).as_str().unwrap().to_owned();
        assert!(text.contains(from), "{text}");
        json!(text.replace(from, to))
    };
    let annotation = |it: &mut Value, value: Value| it["metadata"]["annotations"][names::WRITTEN_BY] = value;
    assert_eq!(with(&|it| it["metadata"]["annotations"] = json!({})), Err(Unstamped::Missing));
    assert_eq!(with(&|it| annotation(it, json!(""))), Err(Unstamped::Unreadable));
    assert_eq!(with(&|it| annotation(it, json!(7))), Err(Unstamped::Unreadable));
    assert_eq!(
        with(&|it| annotation(it, forged("\"version\":1", "\"version\":2"))),
        Err(Unstamped::Unreadable)
    );
    assert_eq!(with(&|it| annotation(it, forged("\"ann\"", "\"admin\""))), Err(Unstamped::Forged));
    assert_eq!(with(&|it| annotation(it, forged("\"devs\"", "\"system:masters\""))), Err(Unstamped::Forged));
    assert_eq!(with(&|it| annotation(it, forged("\"uid\":\"\"", "\"uid\":\"u1\""))), Err(Unstamped::Forged));
    assert_eq!(with(&|it| annotation(it, forged("10:00:00", "10:00:30"))), Err(Unstamped::Forged));
    // Other components, another object, another namespace, and a later object with the same name.
    let template = "/spec/components/0/template/spec/containers/0/image";
    assert_eq!(
        with(&|it| *it.pointer_mut(template).unwrap() = json!("evil")),
        Err(Unstamped::OfOtherComponents)
    );
    let more = json!([{"path": "template", "replicas": 9}]);
    assert_eq!(
        with(&|it| it["spec"]["components"][0]["podSets"] = more.clone()),
        Err(Unstamped::OfOtherComponents)
    );
    assert_eq!(with(&|it| it["metadata"]["name"] = json!("v")), Err(Unstamped::OfAnother));
    assert_eq!(with(&|it| it["metadata"]["namespace"] = json!("other")), Err(Unstamped::OfAnother));
    for late in ["2026-11-18T10:01:01Z", "2026-11-18T09:58:59Z", "never"] {
        assert_eq!(
            with(&|it| it["metadata"]["creationTimestamp"] = json!(late)),
            Err(Unstamped::OfAnother),
            "{late}"
        );
    }
    // A name that the API server made.
    let mut nameless = sent("work");
    nameless["metadata"] = json!({"generateName": "w-"});
    let named = created("ann", nameless, "u1");
    for (field, other) in [("generateName", "v-"), ("generateName", ""), ("name", "v-x7k2p")] {
        let mut object = named.clone();
        object["metadata"][field] = json!(other);
        assert_eq!(author(&object), Err(Unstamped::OfAnother), "{field} {other}");
    }
    // A stamp of another cluster, or from before the keys were replaced.
    assert_eq!(read(&made).unwrap().author(&OTHER_KEYS), Err(Unstamped::Forged));
    let replaced = Keys { previous: Some(KEYS.current), ..OTHER_KEYS };
    assert_eq!(read(&made).unwrap().author(&replaced), Ok(&user("ann")));
}

#[test]
fn a_stamp_of_ones_own_making_is_replaced_or_removed() {
    let theirs = created("admin", sent("work"), "u1")["metadata"]["annotations"].clone();
    let mut object = sent("evil");
    object["metadata"]["annotations"] = theirs.clone();
    assert_eq!(author(&created("eve", object, "u2")), Ok("eve".into()));
    // Created while no webhook was called: lifting the suspension does not fix that.
    let mut object = sent("evil");
    object["metadata"]["annotations"] = theirs;
    let after = changed("admin", &stored(object, "u2"), |it| it["spec"]["suspend"] = json!(false));
    assert_eq!(author(&after), Err(Unstamped::Missing));
    // It fits, and is signed with a key of its author's own: a change must not get it Salvor's signature.
    let (admin, object) = (user("admin"), sent("evil"));
    let forged = stamp(&asked(Operation::Create, &admin, &object), &OTHER_KEYS, now());
    let object = stored(applied(object, forged), "u2");
    assert_eq!(author(&object), Err(Unstamped::Forged));
    let after = changed("kueue", &object, |it| it["spec"]["suspend"] = json!(false));
    assert_eq!(author(&after), Err(Unstamped::Missing));
}

#[test]
fn a_stamp_of_the_key_before_is_signed_again() {
    let made = created("ann", sent("work"), "u1");
    let keys = Keys { previous: Some(KEYS.current), ..OTHER_KEYS };
    let stamping = stamp(&asked(Operation::Update { old: &made }, &user("kueue"), &made), &keys, now());
    let after = applied(made, stamping);
    assert_eq!(read(&after).unwrap().author(&OTHER_KEYS), Ok(&user("ann")));
}

/// A replica that has not read the newest keys must not take off what another one has signed with them.
#[test]
fn a_stamp_that_would_be_lost_for_want_of_a_key_is_known() {
    let (ann, old) = (user("ann"), created("ann", sent("a"), "u1"));
    let request = asked(Operation::Update { old: &old }, &ann, &old);
    assert!(!loses_its_stamp(&request, &KEYS) && loses_its_stamp(&request, &OTHER_KEYS));
    assert!(matches!(stamp(&request, &OTHER_KEYS, now()), Stamping::Remove));
    assert!(!loses_its_stamp(&asked(Operation::Create, &ann, &old), &OTHER_KEYS));
    let unstamped = stored(sent("a"), "u1");
    let request = asked(Operation::Update { old: &unstamped }, &ann, &unstamped);
    assert!(!loses_its_stamp(&request, &OTHER_KEYS));
}

proptest! {
    #![proptest_config(crate::fuzz::cases(512))]

    #[test]
    fn any_text_is_a_stamp_or_is_refused(text in any::<String>(), at in 0usize..500, cut in 0usize..9, new in "\\PC{0,5}") {
        let made = created("ann", sent("work"), "u1");
        let good = made["metadata"]["annotations"][names::WRITTEN_BY].as_str().unwrap().to_owned();
        let start = good.floor_char_boundary(at);
        let end = good.floor_char_boundary((start + cut).min(good.len())).max(start);
        let damaged = format!("{}{new}{}", &good[..start], &good[end..]);
        for text in [text, damaged] {
            let mut object = made.clone();
            object["metadata"]["annotations"][names::WRITTEN_BY] = json!(text);
            match author(&object) {
                // White space between the parts does not matter.
                Ok(author) => prop_assert_eq!(author, "ann"),
                Err(why) => prop_assert!(why.to_string().len() < 120),
            }
        }
    }

    #[test]
    fn any_object_is_stamped(object in any_json(), old in any_json()) {
        let user = user("ann");
        let _ = stamp(&asked(Operation::Create, &user, &object), &KEYS, now());
        let _ = stamp(&asked(Operation::Update { old: &old }, &user, &object), &KEYS, now());
        prop_assert!(author(&object).is_err());
    }
}
