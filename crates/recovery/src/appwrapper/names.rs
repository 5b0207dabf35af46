//! Names on the wire: CodeFlare's, which `salvor_api` has, and those that are Salvor's own.

pub(super) use salvor_api::names::appwrapper::{CONTROLLER_NAME, annotations};

/// Condition types.
pub(super) mod conditions {
    pub(crate) use salvor_api::names::appwrapper::conditions::*;

    /// Every annotation can be read. Only there if one could not.
    pub(crate) const ANNOTATIONS_VALID: &str = "AnnotationsValid";
    /// The rules of admission allow the components, and these are as they were admitted. Only there if that was not so.
    pub(crate) const COMPONENTS_VALID: &str = "ComponentsValid";
    /// Of a component: it has said itself that it is done.
    pub(crate) const SUCCEEDED: &str = "Succeeded";
}

/// Reasons of conditions that are not the name of a phase.
pub(super) mod reasons {
    pub(crate) use salvor_api::names::appwrapper::reasons::*;

    /// Pods are on a node that is unreachable or force-evicted.
    pub(crate) const NODE_LOST: &str = "NodeLost";
    /// A pod is not forced because its machine may run.
    pub(crate) use crate::gate::MACHINE_MAY_RUN;
    /// The component has said that it is done.
    pub(crate) const COMPONENT_SUCCEEDED: &str = "ComponentSucceeded";
    /// It could not be asked what the author of the components may create.
    pub(crate) const AUTHOR_UNKNOWN: &str = "AuthorUnknown";
    /// All annotations can be read again, or all components are allowed again and as they were admitted.
    pub(crate) const VALID: &str = "Valid";
}
