//! The custom resource definitions that an installation needs.

/// AppWrappers, as YAML.
pub const APPWRAPPER: &str = include_str!("crds/appwrapper.yaml");
