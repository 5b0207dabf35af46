//! AppWrappers that are too large, kinds that are temporarily not served, and a cluster without the CRD of AppWrappers.

use k8s_openapi::{
    api::core::v1::Service,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition as Definition,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use salvor_testkit::{Salvor, Site, wait};
use serde_json::{Value, json};

use crate::{
    controller::{SALVOR, Settings, cases, install_ours},
    objects::Widget,
    stage::{Run, Stage, Wrap, members, phases, service},
};

/// One pod, and Services up to this number of components.
fn of_components(name: &str, count: usize) -> Wrap {
    (1..count).fold(Wrap::new(name).of(Run::on().pod("p")), |wrap, n| wrap.of(service(&format!("s{n}"))))
}

/// Admission refuses with the limit. Without a webhook, the controller reports it in a small status.
async fn more_components_than_the_bound_allows(site: Site) {
    let plane = site.control_plane().await;
    let kinds = json!(["Pod", "Service"]);
    let settings = Settings::default().with("wrappedKindsWithoutWebhooks", kinds);
    let stage = Stage::alone(site, &plane, 1, &settings).await;
    let too_many = of_components("w", 129).object();
    let refused = stage.wrappers.create(&PostParams::default(), &too_many).await.unwrap_err().to_string();
    assert!(refused.contains("must have at most 128 components"), "{refused}");
    let mut large = of_components("w", 1);
    large = large.component(
        json!({"template": service("s"), "podSetInfos": [{"annotations": {"a": "x".repeat(600_000)}}]}),
    );
    let refused =
        stage.wrappers.create(&PostParams::default(), &large.object()).await.unwrap_err().to_string();
    assert!(refused.contains("must have at most 524288 bytes"), "{refused}");
    drop(stage);

    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 1, &settings.without_webhooks()).await;
    stage.create(of_components("runs", 129)).await;
    stage.create(of_components("waits", 129).suspended()).await;
    let failed = stage.phase("runs", "Failed").await;
    let waits = stage
        .until("waits", "it is refused", |w| {
            w.phase() == "Suspended" && w.reason("ComponentsValid") == "Refused"
        })
        .await;
    for wrapper in [&failed, &waits] {
        let told = wrapper.condition("ComponentsValid").unwrap();
        assert_eq!(told.status, "False");
        assert!(told.message.contains("must have at most 128 components"), "{}", told.message);
        let status = wrapper.status.to_string();
        assert!(status.len() <= 8 * 1024, "{} bytes: {status}", status.len());
    }
    assert!(!failed.is("QuotaReserved") && !failed.is("ResourcesDeployed"));
    let services: Api<Service> = Api::default_namespaced(stage.arena.client());
    for name in ["runs", "waits"] {
        assert_eq!(services.list(&members(name)).await.unwrap().items.len(), 0);
        stage.delete(name).await;
        stage.gone(name).await;
    }
}

fn definition(serves: &[&str]) -> Value {
    let version = |name: &str| {
        json!({
            "name": name, "served": serves.contains(&name), "storage": name == "v1",
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList"},
            "versions": [version("v1beta1"), version("v1")],
        },
    })
}

/// The version in a template is no longer served, but another version of the same objects is. Nothing is reset, and the
/// objects are deleted through the served version.
async fn a_served_version_that_goes_away_resets_nothing(site: Site) {
    let plane = site.control_plane().await;
    let settings = Settings::default().with("wrappedKinds", json!(["Pod", "Widget.example.com"]));
    let stage = Stage::alone(site, &plane, 1, &settings).await;
    let definitions: Api<Definition> = Api::all(stage.arena.client());
    let made = serde_json::from_value(definition(&["v1beta1"])).unwrap();
    definitions.create(&PostParams::default(), &made).await.unwrap();
    let established = |it: &Definition| {
        let conditions = it.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|it| it.type_ == "Established" && it.status == "True")
    };
    wait::for_object(&definitions, "widgets.example.com", "it is established", established).await;
    let recorder = stage.record().await;
    let widget =
        json!({"apiVersion": "example.com/v1beta1", "kind": "Widget", "metadata": {"name": "x"}, "spec": {}});
    stage.create(Wrap::new("w").of(Run::on().pod("p")).of(widget)).await;
    stage.ready("w").await;

    let serve = async |versions: &[&str]| {
        let patch = Patch::Merge(definition(versions));
        definitions.patch("widgets.example.com", &PatchParams::default(), &patch).await.unwrap();
    };
    serve(&["v1"]).await;
    stage.controller().salvor().says("kind unavailable, retrying").await;
    stage.suspend("w", true).await;
    stage.released("w", "Suspended").await;
    let widgets: Api<Widget> = Api::default_namespaced(stage.arena.client());
    assert_eq!(widgets.list(&ListParams::default()).await.unwrap().items.len(), 0);

    // For a moment no version is served. A component that can never be created still gets the whole grace period.
    stage.suspend("w", false).await;
    stage.until("w", "it begins", |w| w.phase() == "Resuming").await;
    serve(&["v1", "v1beta1"]).await;
    let wrapper = stage.ready("w").await;
    let seen = phases(&recorder, "w").await;
    assert!(!seen.iter().any(|it| it == "Resetting" || it == "Failed"), "{seen:?}");
    assert_eq!(wrapper.resets(), 0);
}

/// A missing CRD does not keep a replica from being ready. The recovery starts when the CRD is installed.
async fn a_cluster_without_the_definition_is_no_reason_not_to_be_ready(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::unattended(site, &plane, 1).await;
    let config = "controllers: [appwrapper, zombie]\nwebhooks: {enabled: false}\n\
                  appwrapper: {wrappedKindsWithoutWebhooks: [Pod]}\n";
    let salvor = Salvor::start(SALVOR, &plane.admin(), config, &["--leader-elect=false"], &[]);
    salvor.until_answer("/readyz", " 200 ").await;
    install_ours(&plane.admin()).await;
    stage.create(Wrap::new("w").of(Run::on().pod("p"))).await;
    stage.ready("w").await;
}

cases!(Salvor, on both sites:
    more_components_than_the_bound_allows,
    a_served_version_that_goes_away_resets_nothing,
    a_cluster_without_the_definition_is_no_reason_not_to_be_ready,
);
