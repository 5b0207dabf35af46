//! Names in the API: CodeFlare's, which `salvor_api` has, and Salvor's own.

pub(super) use salvor_api::names::appwrapper::{CONTROLLER_NAME, annotations};

pub(super) mod conditions {
    pub(crate) use salvor_api::names::appwrapper::conditions::*;

    /// Every annotation can be read. Set only after one could not be read.
    pub(crate) const ANNOTATIONS_VALID: &str = "AnnotationsValid";
    /// The admission rules allow the components, and these are unchanged since admission. Set only after that was not
    /// the case.
    pub(crate) const COMPONENTS_VALID: &str = "ComponentsValid";
    /// Of a component: it has reported that it is done.
    pub(crate) const SUCCEEDED: &str = "Succeeded";
}

/// Reasons of conditions other than the name of a phase.
pub(super) mod reasons {
    pub(crate) use salvor_api::names::appwrapper::reasons::*;

    /// Pods are on a node that is unreachable or force-evicted.
    pub(crate) const NODE_LOST: &str = "NodeLost";
    /// A pod is not forced because its machine may run.
    pub(crate) use crate::gate::MACHINE_MAY_RUN;
    /// The component has reported that it is done.
    pub(crate) const COMPONENT_SUCCEEDED: &str = "ComponentSucceeded";
    /// It could not be determined what the author of the components may create.
    pub(crate) const AUTHOR_UNKNOWN: &str = "AuthorUnknown";
    /// All annotations can be read again, or all components are allowed again and unchanged since admission.
    pub(crate) const VALID: &str = "Valid";
}
