//! Salvor creates what users write, with its own rights. Even without its webhooks, this must not bypass RBAC.

use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    rbac::v1::{ClusterRoleBinding, PolicyRule},
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use salvor_testkit::{Plane, Site, wait};
use serde_json::{Value, json};

use crate::{
    controller::{Controller, Settings, cases},
    objects::AppWrapper,
    stage::{Run, Stage, Wrap},
};

const WRITTEN_BY: &str = "appwrapper.salvor.dev/written-by";

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(texts(&[group])),
        resources: Some(texts(resources)),
        verbs: texts(verbs),
        ..PolicyRule::default()
    }
}

fn appwrappers() -> PolicyRule {
    rule("workload.codeflare.dev", &["appwrappers"], &["*"])
}

/// AppWrappers as seen by a user with these rights. In the embedded cluster every user may do everything.
async fn theirs(stage: &Stage<'_>, plane: &Plane, name: &str, rules: Vec<PolicyRule>) -> Api<AppWrapper> {
    match stage.site {
        Site::Real => {
            let account = plane.admin().service_account(stage.arena.namespace(), name, rules).await.unwrap();
            Api::default_namespaced(account.client(name))
        }
        Site::Embedded => stage.wrappers.clone(),
    }
}

/// A pod that no user may create with rights on AppWrappers alone.
fn privileged(name: &str) -> Value {
    let container = json!({"name": "main", "image": "work", "securityContext": {"privileged": true}});
    Run::on()
        .spec("hostPID", true.into())
        .spec("containers", json!([container]))
        .spec("volumes", json!([{"name": "host", "hostPath": {"path": "/"}}]))
        .pod(name)
}

/// How the webhooks are bypassed.
#[derive(Clone, Copy, Debug)]
enum PassedBy {
    /// The configurations are deleted, as in an emergency.
    Deleted,
    /// The configurations exclude the namespace.
    Excluded,
}

/// Creates it while the API server calls no webhook. Salvor restores its configurations after some seconds, and the API
/// server notices changes by watch, so this retries until it succeeds.
async fn unasked(stage: &Stage<'_>, by: PassedBy, wrappers: &Api<AppWrapper>, wrap: &Wrap) -> AppWrapper {
    let client = stage.arena.client();
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let namespaces = json!({"matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [stage.arena.namespace()]},
    ]});
    let sent = wrap.clone().object();
    let given = sent.annotations().get(WRITTEN_BY).cloned();
    let mut last = String::new();
    let created = wait::patience().until(async {
        loop {
            match by {
                PassedBy::Deleted => {
                    let _ = mutating.delete("salvor", &DeleteParams::default()).await;
                    let _ = validating.delete("salvor", &DeleteParams::default()).await;
                }
                PassedBy::Excluded => {
                    let patch =
                        json!([{"op": "add", "path": "/webhooks/0/namespaceSelector", "value": namespaces}]);
                    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
                    let _ = mutating.patch("salvor", &PatchParams::default(), &patch).await;
                    let _ = validating.patch("salvor", &PatchParams::default(), &patch).await;
                }
            }
            match wrappers.create(&PostParams::default(), &sent).await {
                Ok(made) if made.annotations().get(WRITTEN_BY) == given.as_ref() => return made,
                Ok(made) => {
                    stage.delete(&made.name_any()).await;
                    wait::for_absence(&stage.wrappers, &made.name_any()).await;
                    last = "the webhook was asked".to_owned();
                }
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
    let created = created.await;
    created.unwrap_or_else(|| panic!("{by:?}: {last}"))
}

/// Checks that it ends in Failed with this reason, and that nothing was created for it.
async fn assert_refused(stage: &Stage<'_>, name: &str, says: &str) {
    let failed = stage.released(name, "Failed").await;
    let unhealthy = failed.condition("Unhealthy").unwrap();
    assert_eq!(unhealthy.reason, "Refused", "{}", failed.status);
    assert!(unhealthy.message.contains(says), "{}", unhealthy.message);
    assert!(stage.pods.get_opt(&format!("{name}-pod")).await.unwrap().is_none());
}

fn evil(name: &str) -> Wrap {
    Wrap::new(name).of(privileged(&format!("{name}-pod")))
}

/// An AppWrapper that bypassed the webhooks gets no privileged pod.
async fn webhooks_that_are_not_asked_are_no_way_around_rights(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 1, &Settings::default()).await;
    let theirs = theirs(&stage, &plane, "eve", vec![appwrappers()]).await;
    for (name, by) in [("deleted", PassedBy::Deleted), ("excluded", PassedBy::Excluded)] {
        unasked(&stage, by, &theirs, &evil(name)).await;
        assert_refused(&stage, name, "the annotation appwrapper.salvor.dev/written-by is missing").await;
    }
}

/// It was created while webhooks were off, and is resumed later by a user who may do everything.
async fn resuming_what_nobody_has_stamped_does_not_make_it_good(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::unattended(site, &plane, 1).await;
    let without = Controller::start(site, &plane.admin(), &Settings::default().without_webhooks()).await;
    let theirs = theirs(&stage, &plane, "eve", vec![appwrappers()]).await;
    theirs.create(&PostParams::default(), &evil("waits").suspended().object()).await.unwrap();
    stage.phase("waits", "Suspended").await;
    without.kill().await;
    let _with = Controller::start(site, &plane.admin(), &Settings::default()).await;
    let is_told = |w: &AppWrapper| {
        w.condition("ComponentsValid")
            .is_some_and(|it| it.status == "False" && it.message.contains(WRITTEN_BY))
    };
    stage.until("waits", "it says that it would be refused", is_told).await;
    stage.suspend("waits", false).await;
    assert!(stage.get("waits").await.annotations().get(WRITTEN_BY).is_none());
    assert_refused(&stage, "waits", "the annotation appwrapper.salvor.dev/written-by is missing").await;
}

/// Stamps that a user writes by hand, and stamps of other AppWrappers.
async fn stamps_that_are_forged_or_copied_are_not_believed(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 1, &Settings::default()).await;
    stage.create(Wrap::new("good").suspended().of(Run::on().pod("good-pod"))).await;
    let stamp = stage.get("good").await.annotations()[WRITTEN_BY].clone();
    let theirs = theirs(&stage, &plane, "eve", vec![appwrappers()]).await;
    let forged = stamp.replace("\"namespace\":\"", "\"namespace\":\"other-");
    let renamed = stamp.replace("\"name\":\"good\"", "\"name\":\"renamed\"");
    assert!(renamed != stamp && forged != stamp, "{stamp}");
    for (name, wrap, stamp, says) in [
        ("copied", evil("copied"), &stamp, "is about another AppWrapper"),
        ("forged", evil("forged"), &forged, "is about another AppWrapper"),
        ("renamed", Wrap::new("renamed").of(Run::on().pod("good-pod")), &renamed, "is not signed by Salvor"),
        ("text", evil("text"), &"ann".to_owned(), "cannot be read"),
    ] {
        unasked(&stage, PassedBy::Deleted, &theirs, &wrap.annotation(WRITTEN_BY, stamp)).await;
        assert_refused(&stage, name, says).await;
    }
    // Other components under the name in the stamp.
    stage.delete("good").await;
    stage.gone("good").await;
    unasked(&stage, PassedBy::Deleted, &theirs, &evil("good").annotation(WRITTEN_BY, &stamp)).await;
    assert_refused(&stage, "good", "is about other components").await;
    // If the webhook is called, it replaces the stamp of the request.
    let brought =
        Wrap::new("asked").suspended().of(Run::on().pod("asked-pod")).annotation(WRITTEN_BY, &stamp);
    let replaced = wait::patience().until(async {
        loop {
            // Its configurations are restored after a while.
            let made = stage.wrappers.create(&PostParams::default(), &brought.clone().object()).await;
            match made {
                Ok(made) if made.annotations()[WRITTEN_BY] != stamp => return made,
                Ok(_) => {
                    stage.delete("asked").await;
                    wait::for_absence(&stage.wrappers, "asked").await;
                }
                Err(_) => {}
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
    assert!(replaced.await.is_some());
    stage.suspend("asked", false).await;
    stage.ready("asked").await;
}

/// Resuming, as Kueue does, does not change the author.
async fn lifting_a_suspension_keeps_the_stamp(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 1, &Settings::default()).await;
    let rules = vec![appwrappers(), rule("", &["pods"], &["create"])];
    let theirs = theirs(&stage, &plane, "ann", rules).await;
    let author = |w: &AppWrapper| -> Value {
        let stamp: Value = serde_json::from_str(&w.annotations()[WRITTEN_BY]).unwrap();
        stamp["writtenBy"]["user"]["username"].clone()
    };
    for (name, wrap) in [("named", Wrap::new("named")), ("generated", Wrap::generated("generated-"))] {
        let wrap = wrap.suspended().of(Run::on().pod(&format!("{name}-pod")));
        let made = theirs.create(&PostParams::default(), &wrap.object()).await.unwrap();
        let ann = author(&made);
        if site == Site::Real {
            assert_eq!(ann, format!("system:serviceaccount:{}:ann", stage.arena.namespace()));
        }
        let name = made.name_any();
        stage.phase(&name, "Suspended").await;
        let infos = json!([{"labels": {"from": "kueue"}}]);
        let mut components = made.spec["components"].clone();
        components[0]["podSetInfos"] = infos;
        stage.change(&name, json!({"spec": {"suspend": false, "components": components}})).await;
        let runs = stage.ready(&name).await;
        assert_eq!(author(&runs), ann);
        // It is bound to the object by now.
        assert!(runs.annotations()[WRITTEN_BY].contains(&runs.uid().unwrap()));
    }
}

/// The author's rights count when the components are created, not only when they are written.
async fn an_author_who_has_lost_the_right_creates_nothing(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 1, &Settings::default()).await;
    let rules = vec![appwrappers(), rule("", &["pods"], &["create"])];
    let theirs = theirs(&stage, &plane, "ann", rules).await;
    for name in ["may", "waits"] {
        let wrap = Wrap::new(name).suspended().of(Run::on().pod(&format!("{name}-pod")));
        theirs.create(&PostParams::default(), &wrap.object()).await.unwrap();
    }
    stage.suspend("may", false).await;
    stage.ready("may").await;
    let bindings: Api<ClusterRoleBinding> = Api::all(stage.arena.client());
    let binding = format!("{}:ann", stage.arena.namespace());
    bindings.delete(&binding, &DeleteParams::default()).await.unwrap();
    let lost = wait::patience().until(async {
        while theirs.get("waits").await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    assert!(lost.await.is_some(), "the API server knows that the right is gone");
    stage.suspend("waits", false).await;
    assert_refused(&stage, "waits", "is not authorized to create pods in").await;
}

/// A client that reaches the port learns neither what is refused nor what other users may do.
async fn only_the_api_server_is_answered(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 0, &Settings::default()).await;
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(stage.arena.client());
    let found = mutating.get("salvor").await.unwrap();
    let url = found.webhooks.unwrap().remove(0).client_config.url.unwrap();
    let (path, token) = url.rsplit_once('/').unwrap();
    let (host, path) = path.rsplit_once('/').unwrap();
    let mut config = Config::new(host.parse().unwrap());
    config.accept_invalid_certs = true;
    let client = Client::try_from(config).unwrap();
    let post = async |path: String| {
        let object = serde_json::to_value(Wrap::new("w").of(Run::on().pod("p")).object()).unwrap();
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "1", "operation": "CREATE", "name": "w", "namespace": stage.arena.namespace(),
                "kind": {"group": "workload.codeflare.dev", "version": "v1beta2", "kind": "AppWrapper"},
                "resource": {"group": "workload.codeflare.dev", "version": "v1beta2", "resource": "appwrappers"},
                "userInfo": {"username": "admin", "groups": ["system:masters"]},
                "object": object,
            },
        });
        let request = http::Request::post(path).header("content-type", "application/json");
        let request = request.body(review.to_string().into_bytes()).unwrap();
        client.request::<Value>(request).await.map_err(|error| error.to_string())
    };
    let known = post(format!("/{path}/{token}")).await.unwrap();
    assert_eq!(known["response"]["allowed"], true, "{known}");
    let validating = path.replace("mutate", "validate");
    let other = "0".repeat(token.len());
    for path in [
        format!("/{path}"),
        format!("/{path}/"),
        format!("/{path}/{other}"),
        format!("/{validating}"),
        format!("/{validating}/{other}"),
    ] {
        let refused = post(path.clone()).await.unwrap_err();
        assert!(refused.contains("there is no webhook at this path"), "{path}: {refused}");
    }
}

cases!(
    Salvor, on both sites:
    webhooks_that_are_not_asked_are_no_way_around_rights,
    resuming_what_nobody_has_stamped_does_not_make_it_good,
    stamps_that_are_forged_or_copied_are_not_believed,
    lifting_a_suspension_keeps_the_stamp,
    only_the_api_server_is_answered,
);
// Every user may do everything in the embedded cluster.
cases!(Salvor, on the real one: an_author_who_has_lost_the_right_creates_nothing);
