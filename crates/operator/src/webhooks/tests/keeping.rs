//! The Secret, the certificate and the configurations, in paused time.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Method;
use jiff::Timestamp;
use rcgen::{CertificateParams, KeyPair};

use super::*;
use crate::{
    testing::fake_api::{Answer as ApiAnswer, Asked, FakeApi, soon},
    webhooks::x509::Validity,
};

const SECRET: &str = "/api/v1/namespaces/salvor-system/secrets/salvor-webhooks";
const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/salvor";
const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/salvor";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Objects by path, with resourceVersion preconditions on writes.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<(u64, BTreeMap<String, Value>)>>);

impl Store {
    fn get(&self, path: &str) -> Value {
        self.0.lock().unwrap().1.get(path).cloned().unwrap_or_default()
    }

    /// A change by another client.
    fn edit(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let (revision, objects) = &mut *self.0.lock().unwrap();
        let mut object = objects.remove(path).unwrap_or_else(|| json!({"metadata": {"name": "x"}}));
        change(&mut object);
        *revision += 1;
        object["metadata"]["resourceVersion"] = json!(revision.to_string());
        objects.insert(path.to_owned(), object);
    }

    fn remove(&self, path: &str) {
        self.0.lock().unwrap().1.remove(path);
    }

    fn answer(&self, asked: &Asked) -> ApiAnswer {
        let (revision, objects) = &mut *self.0.lock().unwrap();
        let (path, mut object) = (asked.path.clone(), asked.body.clone());
        let path = match asked.method {
            Method::GET => {
                return objects.get(&path).map_or(ApiAnswer::Refused(404, "not found"), |found| {
                    ApiAnswer::Json(200, found.clone())
                });
            }
            Method::POST => format!("{path}/{}", object["metadata"]["name"].as_str().unwrap()),
            _ => path,
        };
        let kept = objects.get(&path).map(|kept| kept["metadata"]["resourceVersion"].clone());
        if kept.unwrap_or_default() != object["metadata"]["resourceVersion"] {
            return ApiAnswer::Refused(409, "somebody was first");
        }
        *revision += 1;
        object["metadata"]["resourceVersion"] = json!(revision.to_string());
        objects.insert(path, object.clone());
        ApiAnswer::Json(200, object)
    }

    fn api(&self) -> FakeApi {
        let store = self.clone();
        FakeApi::new(move |asked| store.answer(asked))
    }

    /// The authorities that both configurations trust, which must be the same.
    fn trusted(&self) -> String {
        let bundle = |path: &str| {
            let bundle = self.get(path)["webhooks"][0]["clientConfig"]["caBundle"].clone();
            String::from_utf8(STANDARD.decode(bundle.as_str().unwrap_or_default()).unwrap()).unwrap()
        };
        assert_eq!(bundle(MUTATING), bundle(VALIDATING));
        bundle(MUTATING)
    }
}

fn registrations() -> Vec<Registration> {
    vec![
        Registration::new(webhook(WebhookKind::Mutating, "m.salvor.dev", "/mutate"), label),
        Registration::new(webhook(WebhookKind::Validating, "v.salvor.dev", "/validate"), label),
    ]
}

fn configuration(url: Option<&str>) -> Configuration {
    let mut configuration = Configuration::default();
    configuration.webhooks.url = url.map(str::to_owned);
    configuration
}

fn start() -> Timestamp {
    "2026-11-16T00:00:00Z".parse().unwrap()
}

fn replica(api: &FakeApi, time: &Time, configuration: &Configuration) -> Reconciler {
    let (metrics, shown) = (Metrics::new(time), Shown::default());
    let handler_context =
        HandlerContext { client: api.client.clone(), time: time.clone(), keyring: Keyring::default() };
    reconciler(&registrations(), configuration, handler_context, metrics, shown, Readiness::new())
}

fn outside() -> Configuration {
    configuration(Some("https://127.0.0.1:9443"))
}

/// The validity and the authority of the certificate that a reconciler serves.
fn shown(reconciler: &Reconciler) -> (Validity, String) {
    reconciler.shown.now().unwrap()
}

fn writes(api: &FakeApi) -> usize {
    api.asked().iter().filter(|asked| asked.method != Method::GET).count()
}

#[tokio::test(start_paused = true)]
async fn outside_a_cluster_everything_is_made_and_then_left_alone() {
    let (store, time) = (Store::default(), Time::starting_at(start()));
    let api = store.api();
    let mut reconciler = replica(&api, &time, &outside());
    assert!(reconciler.readiness.problem().is_some());
    assert!(reconciler.look().await);
    assert_eq!(reconciler.readiness.problem(), None);
    assert_eq!(writes(&api), 3);
    assert_eq!(store.trusted(), shown(&reconciler).1);
    let url = &store.get(VALIDATING)["webhooks"][0]["clientConfig"]["url"];
    assert_eq!(url, &format!("https://127.0.0.1:9443/validate/{}", reconciler.keyring.token()));
    assert!(reconciler.look().await);
    assert_eq!(writes(&api), 3);
    let metrics = reconciler.metrics.render();
    let until = shown(&reconciler).0.until.as_second();
    for line in [
        "salvor_writes_total{action=\"ConfigureWebhooks\",result=\"ok\"} 2".to_owned(),
        "salvor_writes_total{action=\"KeepWebhookAuthority\",result=\"ok\"} 1".to_owned(),
        format!("salvor_webhook_certificate_expiry_timestamp_seconds {until}"),
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
}

#[tokio::test(start_paused = true)]
async fn somebodys_change_of_a_configuration_is_undone() {
    let (store, time) = (Store::default(), Time::starting_at(start()));
    let api = store.api();
    let reconciler = replica(&api, &time, &outside());
    let (readiness, running) = (reconciler.readiness.clone(), tokio::spawn(reconciler.run()));
    let until = async |condition: &dyn Fn() -> bool| {
        soon(async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
    };
    until(&|| readiness.problem().is_none()).await;
    let (good, trusted) = (store.get(MUTATING)["webhooks"].clone(), store.trusted());
    for edit in [
        (|object| object["webhooks"][0]["clientConfig"]["caBundle"] = Value::Null) as fn(&mut Value),
        |object| object["webhooks"][0]["failurePolicy"] = json!("Ignore"),
        |object| object["webhooks"] = json!([]),
    ] {
        store.edit(MUTATING, edit);
        until(&|| store.get(MUTATING)["webhooks"] == good).await;
    }
    store.remove(MUTATING);
    until(&|| store.get(MUTATING)["webhooks"] == good).await;
    // Webhooks of others in it stay.
    store.edit(MUTATING, |object| object["webhooks"] = json!([{"name": "x.example.com"}]));
    until(&|| store.get(MUTATING)["webhooks"][1] == good[0]).await;
    assert_eq!(store.get(MUTATING)["webhooks"][0]["name"], "x.example.com");
    store.edit(MUTATING, |object| object["webhooks"] = json!([]));
    until(&|| store.get(MUTATING)["webhooks"] == good).await;
    assert_eq!(store.trusted(), trusted);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn in_a_cluster_the_manifests_bring_the_objects_and_the_bundle_is_filled_in() {
    let (store, time) = (Store::default(), Time::starting_at(start()));
    let api = store.api();
    let configuration = configuration(None);
    let mut reconciler = replica(&api, &time, &configuration);
    store.edit(SECRET, |_| {});
    assert!(!reconciler.look().await);
    let problem = reconciler.readiness.problem().unwrap();
    assert_eq!(
        problem,
        "MutatingWebhookConfiguration salvor: there is no webhook m.salvor.dev: apply the manifests again"
    );
    assert!(reconciler.shown.now().is_some(), "it serves what it has");
    let webhooks: Vec<_> = registrations().into_iter().map(|registration| registration.webhook).collect();
    let target = Target::Service { namespace: "salvor-system".to_owned() };
    for (kind, path) in [(WebhookKind::Mutating, MUTATING), (WebhookKind::Validating, VALIDATING)] {
        let object = super::configuration(kind, &webhooks, &target).unwrap();
        store.edit(path, |kept| *kept = object);
    }
    assert!(reconciler.look().await);
    assert_eq!(reconciler.readiness.problem(), None);
    assert_eq!(store.trusted(), shown(&reconciler).1);
    let path = format!("/mutate/{}", reconciler.keyring.token());
    let service = json!({"name": "salvor-webhooks", "namespace": "salvor-system", "path": path, "port": 443});
    assert_eq!(store.get(MUTATING)["webhooks"][0]["clientConfig"]["service"], service);
    // Once ready, it stays ready: another replica would be no better.
    store.remove(MUTATING);
    assert!(!reconciler.look().await);
    assert_eq!(reconciler.readiness.problem(), None);
}

/// Two replicas for three years, where the second runs an hour after the first: the API server always trusts what
/// either serves.
#[tokio::test(start_paused = true)]
async fn authorities_are_replaced_without_a_moment_in_which_something_is_not_trusted() {
    let (store, time) = (Store::default(), Time::starting_at(start()));
    let api = store.api();
    let mut replicas = [replica(&api, &time, &outside()), replica(&api, &time, &outside())];
    let (mut most, mut marks) = (0, std::collections::BTreeSet::new());
    for day in 0..3 * 365 {
        for turn in 0..2 {
            assert!(replicas[turn].look().await, "day {day}");
            for reconciler in replicas.iter().filter(|reconciler| reconciler.shown.now().is_some()) {
                let (validity, mark) = shown(reconciler);
                assert!(store.trusted().contains(&mark), "day {day}: it is not trusted");
                assert!(
                    validity.from <= time.local() && time.local() < validity.until,
                    "day {day}: {validity:?}"
                );
                marks.insert(mark);
            }
            most = most.max(store.trusted().matches("BEGIN CERTIFICATE").count());
            tokio::time::advance(if turn == 0 { DAY / 24 } else { DAY - DAY / 24 }).await;
        }
    }
    assert_eq!(
        (marks.len(), most),
        (4, 2),
        "four authorities, and two in the bundle while one replaces another"
    );
    // Each of these passes replaces the token and changes nothing else.
    let looks = 2 * 3 * 365;
    assert!(writes(&api) < 3 * looks + 100, "{} writes in three years", writes(&api));
}

#[tokio::test(start_paused = true)]
async fn of_replicas_that_start_together_one_makes_the_authority() {
    let (store, time) = (Store::default(), Time::starting_at(start()));
    let slow = {
        let store = store.clone();
        // Each reads before any writes.
        FakeApi::behind(|| Duration::from_secs(1), move |asked| store.answer(asked))
    };
    let mut replicas: Vec<_> = (0..4).map(|_| replica(&slow, &time, &outside())).collect();
    let looks = replicas.iter_mut().map(Reconciler::look);
    assert_eq!(futures::future::join_all(looks).await, [true; 4]);
    let marks: std::collections::BTreeSet<_> =
        replicas.iter().map(|reconciler| shown(reconciler).1).collect();
    assert_eq!(marks.len(), 1);
    assert_eq!(Some(store.trusted()), marks.into_iter().next());
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_removed_or_garbled_is_made_anew_and_what_is_served_stays_trusted() {
    let (store, time) = (Store::default(), Time::starting_at(start()));
    let api = store.api();
    let mut reconciler = replica(&api, &time, &outside());
    assert!(reconciler.look().await);
    for harm in [
        (|store: &Store| store.remove(SECRET)) as fn(&Store),
        |store| store.edit(SECRET, |secret| secret["data"] = Value::Null),
        |store| store.edit(SECRET, |secret| secret["data"]["current.key"] = json!("Z2FyYmFnZQ==")),
    ] {
        let before = shown(&reconciler).1;
        harm(&store);
        assert!(reconciler.look().await);
        let after = shown(&reconciler).1;
        assert_ne!(before, after);
        assert!(store.trusted().contains(&before) && store.trusted().contains(&after));
        assert!(reconciler.look().await);
        assert_eq!(shown(&reconciler).1, after);
    }
}

/// The token and the key are removed from the Secret: new ones are generated, and earlier signatures stay valid.
#[tokio::test(start_paused = true)]
async fn tokens_and_keys_are_replaced_in_one_round_and_all_replicas_have_the_same() {
    let (store, time) = (Store::default(), Time::starting_at(start()));
    let api = store.api();
    let mut replicas = [replica(&api, &time, &outside()), replica(&api, &time, &outside())];
    for reconciler in &mut replicas {
        assert!(reconciler.look().await);
    }
    let keys = |reconciler: &Reconciler| reconciler.keyring.keys().unwrap();
    assert_eq!(keys(&replicas[0]), keys(&replicas[1]));
    assert_eq!(replicas[0].keyring.token(), replicas[1].keyring.token());
    let (before, token) = (keys(&replicas[0]), replicas[0].keyring.token());
    store.edit(SECRET, |secret| {
        secret["data"].as_object_mut().unwrap().retain(|name, _| name.starts_with("current."));
    });
    for reconciler in &mut replicas {
        assert!(reconciler.look().await);
    }
    let after = keys(&replicas[0]);
    assert_eq!(after, keys(&replicas[1]));
    assert_eq!(after.previous, Some(before.current));
    assert_ne!(replicas[0].keyring.token(), token);
    let url = format!("https://127.0.0.1:9443/mutate/{}", replicas[0].keyring.token());
    assert_eq!(store.get(MUTATING)["webhooks"][0]["clientConfig"]["url"], url);
    // A configuration from a version without tokens is repaired.
    store.edit(MUTATING, |it| {
        it["webhooks"][0]["clientConfig"]["url"] = json!("https://127.0.0.1:9443/mutate");
    });
    assert!(replicas[1].look().await);
    assert_eq!(store.get(MUTATING)["webhooks"][0]["clientConfig"]["url"], url);
}

/// The configurations cannot be written: the API server keeps its trust, so the served certificate must stay.
#[tokio::test(start_paused = true)]
async fn nothing_new_is_served_before_it_can_be_trusted() {
    let (store, time) = (Store::default(), Time::starting_at(start()));
    let refusing = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let api = {
        let (store, refusing) = (store.clone(), refusing.clone());
        FakeApi::new(move |asked| {
            let refused = asked.path.contains("webhookconfigurations") && asked.method != Method::GET;
            if refused && refusing.load(std::sync::atomic::Ordering::SeqCst) {
                return ApiAnswer::Refused(403, "not allowed");
            }
            store.answer(asked)
        })
    };
    let mut reconciler = replica(&api, &time, &outside());
    assert!(reconciler.look().await);
    let before = shown(&reconciler).1;
    refusing.store(true, std::sync::atomic::Ordering::SeqCst);
    store.remove(SECRET);
    assert!(!reconciler.look().await);
    assert_eq!(shown(&reconciler).1, before);
    assert!(reconciler.metrics.render().contains("action=\"ConfigureWebhooks\",result=\"forbidden\"} 1"));
    refusing.store(false, std::sync::atomic::Ordering::SeqCst);
    assert!(reconciler.look().await);
    assert_ne!(shown(&reconciler).1, before);
}

#[tokio::test(start_paused = true)]
async fn without_secrets_the_authority_is_kept_in_memory_outside_a_cluster_only() {
    for code in [403, 404] {
        let (store, time) = (Store::default(), Time::starting_at(start()));
        let api = {
            let store = store.clone();
            FakeApi::new(move |asked| {
                let of_secrets = asked.path.contains("/secrets");
                if of_secrets { ApiAnswer::Refused(code, "no") } else { store.answer(asked) }
            })
        };
        let mut alone = replica(&api, &time, &outside());
        assert!(alone.look().await, "{code}");
        let first = shown(&alone).1;
        assert_eq!(store.trusted(), first);
        // It is renewed all the same.
        for _ in 0..400 {
            tokio::time::advance(DAY).await;
            assert!(alone.look().await);
            assert!(store.trusted().contains(&shown(&alone).1));
        }
        assert_ne!(shown(&alone).1, first);
        let mut inside = replica(&api, &time, &configuration(None));
        assert!(!inside.look().await, "{code}");
        assert!(
            inside.readiness.problem().unwrap().starts_with("Secret salvor-system/salvor-webhooks: no (")
        );
    }
}

/// As when the elector creates the namespace a moment later.
#[tokio::test(start_paused = true)]
async fn an_authority_in_memory_gives_way_to_a_shared_one_as_soon_as_there_can_be_one() {
    let (store, time) = (Store::default(), Time::starting_at(start()));
    let there = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let api = {
        let (store, there) = (store.clone(), there.clone());
        FakeApi::new(move |asked| {
            let missing = asked.path.contains("/secrets") && !there.load(std::sync::atomic::Ordering::SeqCst);
            if missing { ApiAnswer::Refused(404, "no namespace") } else { store.answer(asked) }
        })
    };
    let mut reconciler = replica(&api, &time, &outside());
    assert!(reconciler.look().await);
    let alone = shown(&reconciler).1;
    there.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(reconciler.look().await);
    let shared = shown(&reconciler).1;
    assert_ne!(alone, shared);
    assert!(store.trusted().contains(&alone) && store.trusted().contains(&shared));
    let mut other = replica(&api, &time, &outside());
    assert!(other.look().await);
    assert_eq!(shown(&other).1, shared);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_given_up_and_asked_again() {
    let (store, time) = (Store::default(), Time::starting_at(start()));
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let api = {
        let (store, asked) = (store.clone(), asked.clone());
        FakeApi::new(move |request| match asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0..3 => ApiAnswer::Never,
            3 => ApiAnswer::Refused(500, "later"),
            _ => store.answer(request),
        })
    };
    let reconciler = replica(&api, &time, &outside());
    let (readiness, running) = (reconciler.readiness.clone(), tokio::spawn(reconciler.run()));
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(readiness.problem().unwrap().ends_with("no answer within 5 s"));
    soon(async {
        while readiness.problem().is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert!(!store.trusted().is_empty());
    running.abort();
}

/// A folder that is deleted on drop.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("salvor-webhooks-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    fn settings(&self) -> Configuration {
        let mut configuration = outside();
        configuration.webhooks.cert_dir = Some(self.0.to_str().unwrap().to_owned());
        configuration
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn pair() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

#[tokio::test(start_paused = true)]
async fn given_certificates_are_served_and_read_again_when_they_change() {
    let folder = Folder::new("reload");
    let (store, time) = (Store::default(), Time::starting_at(start()));
    let api = store.api();
    let (first, second) = (pair(), pair());
    folder.write("tls.crt", &first.0);
    folder.write("tls.key", &first.1);
    folder.write("ca.crt", &first.0);
    let reconciler = replica(&api, &time, &folder.settings());
    let (readiness, shown) = (reconciler.readiness.clone(), reconciler.shown.clone());
    let running = tokio::spawn(reconciler.run());
    let serves = async |pair: &(String, String)| {
        soon(async {
            while readiness.problem().is_some()
                || shown.now().is_none_or(|(_, mark)| mark != format!("{}{}", pair.0, pair.1))
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
    };
    serves(&first).await;
    assert_eq!(store.trusted(), first.0);
    let shared = store.get(SECRET)["data"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(shared, ["path.since", "path.token", "stamp.key"], "no authority is made");
    // Half of the change: the served certificate stays.
    folder.write("tls.crt", &second.0);
    tokio::time::sleep(Duration::from_secs(60)).await;
    serves(&first).await;
    folder.write("tls.key", &second.1);
    folder.write("ca.crt", &second.0);
    serves(&second).await;
    soon(async {
        while store.trusted() != second.0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    std::fs::remove_file(folder.0.join("tls.key")).unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    serves(&second).await;
    running.abort();
}

#[test]
fn files_that_cannot_be_used_are_named_with_what_would_be_right() {
    let folder = Folder::new("bad");
    let files = Files::new(&folder.0);
    let says = || files.read().unwrap_err().to_string();
    let (good, other) = (pair(), pair());
    assert!(says().ends_with(
        "tls.crt (webhooks.certDir): there is no such file: put tls.crt and tls.key into the folder"
    ));
    folder.write("tls.crt", &good.0);
    assert!(says().contains("tls.key (webhooks.certDir): there is no such file"));
    folder.write("tls.key", "garbage");
    assert!(says().contains("tls.key (webhooks.certDir): has no private key that can be read"));
    folder.write("tls.key", &other.1);
    assert!(says().contains("the certificate and its key cannot be used"));
    folder.write("tls.key", &good.1);
    assert!(files.read().unwrap().1.is_none());
    folder.write("ca.crt", "garbage");
    assert!(
        says().ends_with("ca.crt (webhooks.certDir): has no certificate: write PEM with BEGIN CERTIFICATE")
    );
    folder.write("ca.crt", &good.0);
    assert_eq!(files.read().unwrap().1, Some(good.0));
    folder.write("tls.crt", "-----BEGIN CERTIFICATE-----\n%%%\n-----END CERTIFICATE-----\n");
    assert!(says().contains("tls.crt (webhooks.certDir): cannot be read as PEM"));
    folder.write("tls.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    assert!(says().contains("has no validity that can be read"));
    assert!(
        Files::new("/nonexistent")
            .read()
            .unwrap_err()
            .to_string()
            .starts_with("/nonexistent/tls.crt (webhooks.certDir)")
    );
}

/// The error about a webhook that cannot be reached contains its token, so the token is replaced soon.
#[tokio::test(start_paused = true)]
async fn a_token_is_replaced_every_ten_minutes_and_let_in_for_another_one() {
    let (store, time) = (Store::default(), Time::starting_at(start()));
    let api = store.api();
    let mut reconciler = replica(&api, &time, &outside());
    assert!(reconciler.look().await);
    let first = reconciler.keyring.token();
    tokio::time::advance(Duration::from_secs(599)).await;
    assert!(reconciler.look().await);
    assert_eq!(reconciler.keyring.token(), first);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(reconciler.look().await);
    let second = reconciler.keyring.token();
    assert_ne!(second, first);
    let url = format!("https://127.0.0.1:9443/mutate/{second}");
    assert_eq!(store.get(MUTATING)["webhooks"][0]["clientConfig"]["url"], url);
    assert!(reconciler.keyring.lets_in(&first).await && reconciler.keyring.lets_in(&second).await);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(!reconciler.keyring.lets_in(&first).await && reconciler.keyring.lets_in(&second).await);
    // While no replica runs, every request about an AppWrapper shows the token to its user.
    let mut started = replica(&api, &time, &outside());
    assert!(started.look().await);
    assert_ne!(started.keyring.token(), second);
    let mut beside = replica(&api, &time, &outside());
    assert!(beside.look().await);
    assert_eq!(
        beside.keyring.token(),
        started.keyring.token(),
        "of those that start together one replaces it"
    );
}

/// If the configurations cannot be written, the API server keeps using the token that they hold.
#[tokio::test(start_paused = true)]
async fn a_token_that_the_configurations_still_have_is_let_in() {
    let (store, time) = (Store::default(), Time::starting_at(start()));
    let refusing = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let api = {
        let (store, refusing) = (store.clone(), refusing.clone());
        FakeApi::new(move |asked| {
            let refused = asked.path.contains("webhookconfigurations") && asked.method != Method::GET;
            if refused && refusing.load(std::sync::atomic::Ordering::SeqCst) {
                return ApiAnswer::Refused(403, "not allowed");
            }
            store.answer(asked)
        })
    };
    let mut reconciler = replica(&api, &time, &outside());
    assert!(reconciler.look().await);
    let first = reconciler.keyring.token();
    refusing.store(true, std::sync::atomic::Ordering::SeqCst);
    for _ in 0..6 {
        tokio::time::advance(Duration::from_secs(600)).await;
        assert!(!reconciler.look().await);
        assert!(reconciler.keyring.lets_in(&first).await);
    }
    refusing.store(false, std::sync::atomic::Ordering::SeqCst);
    assert!(reconciler.look().await);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(!reconciler.keyring.lets_in(&first).await);
}

/// One replica replaces the token and the key. The other reads both on its first request, and a flood of requests
/// causes no further reads.
#[tokio::test(start_paused = true)]
async fn the_secret_is_read_again_before_a_token_is_refused() {
    let (store, time) = (Store::default(), Time::starting_at(start()));
    let api = store.api();
    let mut first = replica(&api, &time, &outside());
    assert!(first.look().await);
    let second = replica(&api, &time, &outside());
    let (keyring, readiness, running) =
        (second.keyring.clone(), second.readiness.clone(), tokio::spawn(second.run()));
    soon(async {
        while readiness.problem().is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    store.edit(SECRET, |secret| {
        secret["data"].as_object_mut().unwrap().retain(|name, _| name.starts_with("current."));
    });
    assert!(first.look().await);
    let began = tokio::time::Instant::now();
    assert!(keyring.lets_in(&first.keyring.token()).await);
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(keyring.keys(), first.keyring.keys());
    let reads = || api.asked().iter().filter(|asked| asked.path == SECRET).count();
    let (before, began) = (reads(), tokio::time::Instant::now());
    for _ in 0..5 {
        let wrong = "0".repeat(64);
        let all = (0..100).map(|_| keyring.lets_in(&wrong));
        assert_eq!(futures::future::join_all(all).await, [false; 100]);
    }
    let most = began.elapsed().as_secs() / 2 + 2;
    assert!(
        u64::try_from(reads() - before).unwrap() <= most,
        "{} in {:?}",
        reads() - before,
        began.elapsed()
    );
    running.abort();
}
