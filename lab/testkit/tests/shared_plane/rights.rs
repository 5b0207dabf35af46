//! Authentication, and the rights of each user.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{Api, ListParams, PostParams};
use salvor_testkit::arena;

use crate::support::config_map;

#[tokio::test]
async fn a_service_account_may_do_what_its_rules_say_and_nothing_else() {
    let arena = arena("rights").await;
    let read_config_maps = PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["configmaps".to_owned()]),
        verbs: vec!["get".to_owned(), "list".to_owned()],
        ..PolicyRule::default()
    };
    let access =
        arena.admin().service_account(arena.namespace(), "reader", vec![read_config_maps]).await.unwrap();
    let config_maps: Api<ConfigMap> = Api::default_namespaced(access.client("reader"));

    config_maps.list(&ListParams::default()).await.unwrap();
    let refusal = config_maps.create(&PostParams::default(), &config_map("mine", "1")).await.unwrap_err();
    let kube::Error::Api(status) = refusal else { panic!("not an answer of the API server: {refusal}") };
    assert_eq!(status.code, 403);
    assert!(status.message.contains("cannot create resource \"configmaps\""), "{}", status.message);
}

#[tokio::test]
async fn a_stranger_is_not_let_in() {
    let arena = arena("stranger").await;
    let mut config = arena.admin().config("stranger");
    config.auth_info.token = Some("guessed".to_owned().into());
    let config_maps: Api<ConfigMap> = Api::default_namespaced(kube::Client::try_from(config).unwrap());
    let refusal = config_maps.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&refusal, kube::Error::Api(status) if status.code == 401), "{refusal}");
}

#[tokio::test]
async fn another_ca_is_not_trusted() {
    let arena = arena("tls").await;
    let mut config = arena.admin().config("careful");
    config.root_cert = None;
    let client = kube::Client::try_from(config).unwrap();
    let refusal = client.apiserver_version().await.unwrap_err();
    assert!(!matches!(refusal, kube::Error::Api(_)), "the server was trusted: {refusal}");
}
