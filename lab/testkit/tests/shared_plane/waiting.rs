//! Waits for what must happen, and watches for what must not.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use salvor_testkit::wait::Patience;
use salvor_testkit::{arena, wait};

use crate::support::{config_map, step};

#[tokio::test]
async fn waiting_sees_what_exists_what_comes_and_what_goes() {
    let arena = arena("waiting").await;
    let config_maps: Api<ConfigMap> = Api::default_namespaced(arena.client());
    config_maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let existing = wait::for_object(&config_maps, "a", "it is there", |_| true).await;
    assert_eq!(step(&existing), Some("1"));

    let changed = wait::for_object(&config_maps, "a", "step 2", |map| step(map) == Some("2"));
    let change = async { config_maps.replace("a", &PostParams::default(), &config_map("a", "2")).await };
    let (changed, replaced) = tokio::join!(changed, change);
    assert_eq!(changed.resource_version(), replaced.unwrap().resource_version());

    let gone = wait::for_absence(&config_maps, "a");
    let (delete, ()) = tokio::join!(async { config_maps.delete("a", &DeleteParams::default()).await }, gone);
    delete.unwrap();
}

/// Waits for something that never comes, as briefly as this machine allows for the first list, and returns the error.
async fn in_vain(config_maps: &Api<ConfigMap>, name: &str, condition: impl Fn(&ConfigMap) -> bool) -> String {
    for seconds in [1, 5, 25, 125] {
        let patience = Patience::of(Duration::from_secs(seconds));
        let expired =
            patience.for_object(config_maps, name, "step 2 is reached", &condition).await.unwrap_err();
        let message = expired.to_string();
        if !message.contains("never answered") {
            return message;
        }
    }
    panic!("the API server does not answer");
}

#[tokio::test]
async fn waiting_in_vain_shows_what_was_awaited_and_the_last_state() {
    let arena = arena("in-vain").await;
    let config_maps: Api<ConfigMap> = Api::default_namespaced(arena.client());
    config_maps.create(&PostParams::default(), &config_map("a", "stuck here")).await.unwrap();
    let message = in_vain(&config_maps, "a", |map| step(map) == Some("2")).await;
    assert!(message.contains("in vain for: ConfigMap a: step 2 is reached"), "{message}");
    assert!(message.contains(r#""step":"stuck here""#), "{message}");
    assert!(!message.contains("managedFields"), "{message}");
}

#[tokio::test]
async fn waiting_in_vain_for_nothing_says_so() {
    let arena = arena("absent").await;
    let config_maps: Api<ConfigMap> = Api::default_namespaced(arena.client());
    let message = in_vain(&config_maps, "absent", |_| true).await;
    assert!(message.contains("no such object"), "{message}");
}

#[tokio::test]
async fn what_must_never_be_is_seen_even_when_it_does_not_last() {
    let arena = arena("never").await;
    let config_maps: Api<ConfigMap> = Api::default_namespaced(arena.client());
    config_maps.create(&PostParams::default(), &config_map("a", "good")).await.unwrap();
    let through = |steps: &'static [&'static str]| {
        let config_maps = config_maps.clone();
        async move {
            for step in steps {
                config_maps.replace("a", &PostParams::default(), &config_map("a", step)).await.unwrap();
            }
            steps.len()
        }
    };
    let bad = |map: &ConfigMap| step(map) == Some("bad");
    let all = ListParams::default();
    let steps = wait::never(&config_maps, &all, "a bad step", bad, through(&["better", "best"])).await;
    assert_eq!(steps, 2);

    let watched = config_maps.clone();
    let writes = through(&["bad", "good"]);
    let outcome = tokio::spawn(async move {
        wait::never(&watched, &ListParams::default(), "a bad step", bad, writes).await
    })
    .await;
    let panic = outcome.expect_err("the bad step was not seen").into_panic();
    let message = panic.downcast_ref::<String>().map_or("", String::as_str);
    assert!(message.contains("must never be seen: a bad step"), "{message}");
}
