//! Shared helpers of several tests.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;

pub(crate) fn config_map(name: &str, step: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([("step".to_owned(), step.to_owned())])),
        ..ConfigMap::default()
    }
}

pub(crate) fn step(config_map: &ConfigMap) -> Option<&str> {
    config_map.data.as_ref()?.get("step").map(String::as_str)
}
