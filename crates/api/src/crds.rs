//! The custom resource definitions that an installation needs.

/// AppWrappers, as YAML.
pub const APPWRAPPER: &str = include_str!("crds/appwrapper.yaml");

/// NodeRepairPolicies, as YAML.
pub const NODE_REPAIR_POLICY: &str = include_str!("crds/noderepairpolicy.yaml");
