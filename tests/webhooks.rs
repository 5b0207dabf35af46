//! The webhook server with a real API server that calls it. No recovery is involved: the handlers are in this file.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use salvor_api::config::{Configuration, parse};
use salvor_operator::webhooks::{
    self, AdmissionRequest, Answer, Change, FailurePolicy, Operation, Registration, Rule, Target, Webhook,
    WebhookKind, WebhookServer,
};
use salvor_testkit::{ControlPlane, wait};
use serde_json::json;

fn free() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn configuration(address: SocketAddr, rest: &str) -> Configuration {
    parse(&format!(
        "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\nleaderElection: {{leaseNamespace: default}}\n\
         webhooks: {{bind: '{address}', url: 'https://{address}'{rest}}}\n"
    ))
    .unwrap()
}

fn webhook(kind: WebhookKind, name: &'static str, path: &'static str) -> Webhook {
    Webhook {
        kind,
        name,
        path,
        rules: vec![Rule {
            group: "",
            versions: &["v1"],
            resources: &["configmaps"],
            operations: &[Operation::Create, Operation::Update],
        }],
        failure_policy: FailurePolicy::Fail,
        timeout_seconds: 5,
    }
}

/// Records the creator.
async fn sign(request: AdmissionRequest) -> Answer {
    let data = json!({ "by": request.user_info.username, "operation": request.operation });
    Answer::patched(vec![Change::Add { path: "/data".to_owned(), value: data }])
}

/// Refuses objects named `bad`.
async fn refuse_bad(request: AdmissionRequest) -> Answer {
    match request.name.as_str() {
        "bad" => Answer::denied(422, "the name is bad: use another one"),
        _ => Answer::allowed(),
    }
}

fn registrations() -> Vec<Registration> {
    vec![
        Registration::new(webhook(WebhookKind::Mutating, "sign.example.com", "/sign"), sign),
        Registration::new(webhook(WebhookKind::Validating, "refuse.example.com", "/refuse"), refuse_bad),
    ]
}

async fn ready(server: &WebhookServer) {
    let ready = wait::patience().until(async {
        while server.problem().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(ready.await.is_some(), "{:?}", server.problem());
}

/// The CA that the API server trusts for the first webhook.
fn bundle(configuration: &MutatingWebhookConfiguration) -> Option<ByteString> {
    configuration.webhooks.as_ref()?.first()?.client_config.ca_bundle.clone()
}

fn named(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    }
}

async fn create(maps: &Api<ConfigMap>, name: &str) -> kube::Result<ConfigMap> {
    maps.create(&PostParams::default(), &named(name)).await
}

/// The API server notices configurations by watch, so this retries until they are in effect.
async fn signed(maps: &Api<ConfigMap>, name: &str) -> BTreeMap<String, String> {
    let mut last = String::new();
    let trying = wait::patience().until(async {
        loop {
            match create(maps, name).await {
                Ok(ConfigMap { data: Some(data), .. }) => return data,
                Ok(_) => {
                    maps.delete(name, &DeleteParams::default()).await.unwrap();
                    last = "it was not changed".to_owned();
                }
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let found = trying.await;
    found.unwrap_or_else(|| panic!("{name}: {last}"))
}

#[tokio::test]
async fn a_real_api_server_calls_and_trusts_us() {
    let plane = ControlPlane::builder().start().await.unwrap();
    let admin = plane.admin().in_namespace("default");
    let client = admin.client("webhooks-test");
    let address = free();
    let start =
        || WebhookServer::start(admin.config("salvor"), configuration(address, ""), |_| registrations());
    let server = start().await.unwrap();
    ready(&server).await;

    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let data = signed(&maps, "first").await;
    assert_eq!((data["by"].as_str(), data["operation"].as_str()), ("admin", "CREATE"));
    let refused = wait::patience().until(async {
        loop {
            match create(&maps, "bad").await {
                Err(kube::Error::Api(status)) => return status,
                other => drop(other),
            }
            maps.delete("bad", &DeleteParams::default()).await.unwrap();
        }
    });
    let refused = refused.await.expect("it is refused");
    assert_eq!(refused.code, 422);
    assert_eq!(
        refused.message,
        "admission webhook \"refuse.example.com\" denied the request: the name is bad: use another one"
    );

    // The CA bundle is removed, and the API server no longer trusts the webhook until it is restored.
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let good = bundle(&mutating.get("salvor").await.unwrap());
    let another = ByteString(Issued::new().authority.into_bytes());
    let patch = json!([{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": another}]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
    mutating.patch("salvor", &PatchParams::default(), &patch).await.unwrap();
    wait::for_object(&mutating, "salvor", "the authority is back", |found| bundle(found) == good).await;
    signed(&maps, "second").await;

    // The other configuration is deleted.
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    validating.delete("salvor", &DeleteParams::default()).await.unwrap();
    wait::for_object(&validating, "salvor", "it is made again", |_| true).await;

    // While no server listens, nothing is admitted: that is failurePolicy Fail.
    server.stop().await;
    let refused = create(&maps, "third").await.unwrap_err().to_string();
    assert!(refused.contains("failed calling webhook"), "{refused}");
    // Another process takes over with the same CA.
    let again = start().await.unwrap();
    ready(&again).await;
    signed(&maps, "third").await;
    assert_eq!(bundle(&mutating.get("salvor").await.unwrap()), good);
    let secret: Secret = Api::default_namespaced(client).get("salvor-webhooks").await.unwrap();
    let keys: Vec<_> = secret.data.unwrap().into_keys().collect();
    assert_eq!(keys, ["current.crt", "current.key", "path.since", "path.token", "stamp.key"]);
}

/// An administrator's CA and a certificate that it signed.
struct Issued {
    authority: String,
    certificate: String,
    key: String,
}

impl Issued {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap().pem();
        Self { authority: authority.pem(), certificate, key: key.serialize_pem() }
    }

    fn write(&self, folder: &Path) {
        for (name, text) in
            [("tls.crt", &self.certificate), ("tls.key", &self.key), ("ca.crt", &self.authority)]
        {
            std::fs::write(folder.join(name), text).unwrap();
        }
    }
}

#[tokio::test]
async fn without_rights_to_secrets_and_with_given_certificates_it_works_too() {
    let plane = ControlPlane::builder().start().await.unwrap();
    let admin = plane.admin().in_namespace("default");
    let client = admin.client("webhooks-test");
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let rules = serde_json::from_value(json!([{
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
        "verbs": ["get", "create", "update"],
    }]));
    let somebody = admin.service_account("default", "somebody", rules.unwrap()).await.unwrap();
    let address = free();
    let start = |settings| WebhookServer::start(somebody.config("salvor"), settings, |_| registrations());
    let server = start(configuration(address, "")).await.unwrap();
    ready(&server).await;
    signed(&maps, "first").await;
    server.stop().await;

    let folder = tempfile::tempdir().unwrap();
    let given = || configuration(address, &format!(", certDir: '{}'", folder.path().display()));
    let refused = start(given()).await.err().unwrap().to_string();
    assert!(refused.contains("tls.crt (webhooks.certDir): there is no such file"), "{refused}");
    let (first, second) = (Issued::new(), Issued::new());
    first.write(folder.path());
    let server = start(given()).await.unwrap();
    ready(&server).await;
    signed(&maps, "second").await;
    second.write(folder.path());
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client);
    wait::for_object(&mutating, "salvor", "the new authority is trusted", |found| {
        bundle(found) == Some(ByteString(second.authority.clone().into_bytes()))
    })
    .await;
    signed(&maps, "third").await;
}

/// As a pod of an installation: with rights to the objects of the manifests, and no others.
#[tokio::test]
async fn in_a_cluster_the_bundle_is_filled_in_with_rights_to_three_objects() {
    let plane = ControlPlane::builder().start().await.unwrap();
    let admin = plane.admin().in_namespace("default");
    let client = admin.client("webhooks-test");
    let mut installed = configuration(free(), "");
    installed.webhooks.url = None;
    // For a kind that does not exist, because no Service can be called here.
    let rule = Rule {
        group: "example.com",
        versions: &["v1"],
        resources: &["things"],
        operations: &[Operation::Create],
    };
    let about_things = move || {
        let mut all = registrations();
        all.iter_mut().for_each(|registration| registration.webhook.rules = vec![rule.clone()]);
        all
    };
    let rules = serde_json::from_value(json!([
        {"apiGroups": ["admissionregistration.k8s.io"],
         "resources": ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
         "resourceNames": ["salvor"], "verbs": ["get", "update"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["salvor-webhooks"], "verbs": ["get", "update"]},
    ]));
    let pod = admin.service_account("default", "salvor", rules.unwrap()).await.unwrap();
    let handlers = about_things.clone();
    let server = WebhookServer::start(pod.config("salvor"), installed, move |_| handlers()).await.unwrap();
    let says = async |text: &str| {
        let said = wait::patience().until(async {
            while !server.problem().unwrap_or_default().contains(text) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        assert!(said.await.is_some(), "{text}: {:?}", server.problem());
    };
    says("Secret default/salvor-webhooks: secrets is forbidden").await;
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let metadata = ObjectMeta { name: Some("salvor-webhooks".to_owned()), ..ObjectMeta::default() };
    secrets.create(&PostParams::default(), &Secret { metadata, ..Secret::default() }).await.unwrap();
    says("MutatingWebhookConfiguration salvor: there is no webhook sign.example.com: apply the manifests again").await;

    let webhooks: Vec<_> = about_things().into_iter().map(|registration| registration.webhook).collect();
    let target = Target::Service { namespace: "default".to_owned() };
    let object = |kind| webhooks::configuration(kind, &webhooks, &target).unwrap();
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let made = serde_json::from_value(object(WebhookKind::Mutating)).unwrap();
    mutating.create(&PostParams::default(), &made).await.unwrap();
    let made = serde_json::from_value(object(WebhookKind::Validating)).unwrap();
    validating.create(&PostParams::default(), &made).await.unwrap();
    ready(&server).await;
    let found = mutating.get("salvor").await.unwrap();
    assert!(bundle(&found).is_some_and(|bundle| bundle.0.starts_with(b"-----BEGIN CERTIFICATE-----")));
    let config = found.webhooks.unwrap().remove(0).client_config;
    let path = config.service.and_then(|service| service.path).unwrap();
    assert!(path.strip_prefix("/sign/").is_some_and(|token| token.len() == 64), "{path}");
    assert!(bundle(&mutating.get("salvor").await.unwrap()).is_some());
}
