//! Names on the wire. Those that `salvor_api::names::appwrapper` has as well are spelt as there.

/// `spec.managedBy` of the AppWrappers that are ours, if they have one.
pub(super) const CONTROLLER_NAME: &str = "workload.codeflare.dev/appwrapper-controller";

/// Annotations of an AppWrapper that change its timers.
pub(super) mod annotations {
    pub(crate) const ADMISSION_GRACE_PERIOD: &str =
        "workload.codeflare.dev.appwrapper/admissionGracePeriodDuration";
    pub(crate) const WARMUP_GRACE_PERIOD: &str =
        "workload.codeflare.dev.appwrapper/warmupGracePeriodDuration";
    pub(crate) const FAILURE_GRACE_PERIOD: &str =
        "workload.codeflare.dev.appwrapper/failureGracePeriodDuration";
    pub(crate) const RETRY_PAUSE_PERIOD: &str = "workload.codeflare.dev.appwrapper/retryPausePeriodDuration";
    pub(crate) const RETRY_LIMIT: &str = "workload.codeflare.dev.appwrapper/retryLimit";
    pub(crate) const FORCEFUL_DELETION_GRACE_PERIOD: &str =
        "workload.codeflare.dev.appwrapper/forcefulDeletionGracePeriodDuration";
    pub(crate) const DELETION_ON_FAILURE_GRACE_PERIOD: &str =
        "workload.codeflare.dev.appwrapper/deletionOnFailureGracePeriodDuration";
    pub(crate) const SUCCESS_TTL: &str = "workload.codeflare.dev.appwrapper/successTTLDuration";
    pub(crate) const TERMINAL_EXIT_CODES: &str = "workload.codeflare.dev.appwrapper/terminalExitCodes";
    pub(crate) const RETRYABLE_EXIT_CODES: &str = "workload.codeflare.dev.appwrapper/retryableExitCodes";
}

/// Condition types.
pub(super) mod conditions {
    pub(crate) const QUOTA_RESERVED: &str = "QuotaReserved";
    pub(crate) const RESOURCES_DEPLOYED: &str = "ResourcesDeployed";
    pub(crate) const PODS_READY: &str = "PodsReady";
    pub(crate) const UNHEALTHY: &str = "Unhealthy";
    pub(crate) const DELETING_RESOURCES: &str = "DeletingResources";
    /// Every annotation can be read. Only there if one could not. Salvor's own.
    pub(crate) const ANNOTATIONS_VALID: &str = "AnnotationsValid";
    /// Of a component: it has said itself that it is done. Salvor's own.
    pub(crate) const SUCCEEDED: &str = "Succeeded";
}

/// Reasons of conditions that are not the name of a phase.
pub(super) mod reasons {
    pub(crate) const SUFFICIENT_PODS_READY: &str = "SufficientPodsReady";
    pub(crate) const INSUFFICIENT_PODS_READY: &str = "InsufficientPodsReady";
    pub(crate) const CREATE_FAILED: &str = "CreateFailed";
    pub(crate) const MISSING_COMPONENT: &str = "MissingComponent";
    pub(crate) const FAILED_COMPONENT: &str = "FailedComponent";
    pub(crate) const FOUND_FAILED_PODS: &str = "FoundFailedPods";
    pub(crate) const FOUND_NO_FAILED_PODS: &str = "FoundNoFailedPods";
    pub(crate) const AUTOPILOT_NO_EXECUTE: &str = "AutopilotNoExecute";
    /// Pods are on a node that is unreachable or force-evicted. Salvor's own.
    pub(crate) const NODE_LOST: &str = "NodeLost";
    pub(crate) const DELETION_INITIATED: &str = "DeletionInitiated";
    pub(crate) const DELETION_COMPLETE: &str = "DeletionComplete";
    pub(crate) const DELETION_PAUSED: &str = "DeletionPaused";
    pub(crate) const COMPONENT_CREATION_INITIATED: &str = "ComponentCreationInitiated";
    pub(crate) const COMPONENT_CREATED: &str = "ComponentCreatedSuccessfully";
    pub(crate) const COMPONENT_CREATION_ERRORED: &str = "ComponentCreationErrored";
    /// The spelling is that of the wire.
    pub(crate) const COMPONENT_DELETED: &str = "CompononetDeleted";
    /// The component has said that it is done. Salvor's own.
    pub(crate) const COMPONENT_SUCCEEDED: &str = "ComponentSucceeded";
    /// The AppWrapper breaks a rule that the webhook would have told at once. Salvor's own.
    pub(crate) const REFUSED: &str = "Refused";
    /// An annotation cannot be read. Salvor's own.
    pub(crate) const INVALID_ANNOTATION: &str = "InvalidAnnotation";
    /// All annotations can be read again. Salvor's own.
    pub(crate) const VALID: &str = "Valid";
}
