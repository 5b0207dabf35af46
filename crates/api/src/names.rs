//! Every name that Salvor shares with users and other controllers, and the origin of each.

/// Annotations. The owner of a pod consents with exactly the value [`annotations::CONSENT`].
pub mod annotations {
    /// Salvor may mark the pod `Failed`. From KEP-6757; Kueue 0.15.0 to 0.15.5 read it.
    pub const SAFE_TO_FORCEFULLY_TERMINATE: &str = "kueue.x-k8s.io/safe-to-forcefully-terminate";
    /// Salvor may mark the pod `Failed` and force delete it. Read by Kueue since 0.15.6.
    pub const SAFE_TO_FORCEFULLY_DELETE: &str = "kueue.x-k8s.io/safe-to-forcefully-delete";
    /// The only value that means consent; `True`, `1` and all others do not.
    pub const CONSENT: &str = "true";
    /// The wait after the own grace period of a pod that opted in, as a Go duration. Salvor's own.
    pub const TERMINATION_GRACE_AFTER: &str = "salvor.dev/termination-grace-after";
    /// How long after its node became unreachable a pod that opted in is given up, as a Go duration. Salvor's own.
    pub const EVICT_AFTER: &str = "salvor.dev/evict-after";
    /// On a Job: by how much Salvor raised its `backoffLimit`, and for which pods, as JSON. Salvor's own.
    pub const BACKOFF_LIMIT_RAISED: &str = "salvor.dev/backoff-limit-raised";
    /// On a Node: when Salvor set the out-of-service taint. Salvor's own.
    pub const OUT_OF_SERVICE_SINCE: &str = "zombie.salvor.dev/out-of-service-since";
    /// On a node that Salvor tainted out-of-service: the boot ID of its machine at that time.
    pub const OUT_OF_SERVICE_BOOT: &str = "zombie.salvor.dev/out-of-service-boot";
    /// On a Node: the progress of its eviction, as JSON. Salvor's own.
    pub const EVICTION: &str = "eviction.salvor.dev/progress";
    /// On a node whose eviction was requested while it was Ready: this fact, and the last heartbeat of its kubelet.
    pub const EVICTION_ASKED: &str = "eviction.salvor.dev/asked";
    /// On a Node: a person wants it evicted even during an outage of its zone. JSON with `by` and `at`. Salvor's own.
    pub const DESPITE_ZONE_OUTAGE: &str = "salvor.dev/despite-zone-outage";
    /// On the Lease of the leader election: the saved state of the brake, as JSON. Salvor's own.
    pub const BRAKE: &str = "salvor.dev/brake";
    /// On the same Lease: the former value of [`BRAKE`] if it could not be parsed. Salvor's own.
    pub const BRAKE_UNREADABLE: &str = "salvor.dev/brake-unreadable";
    /// On the same Lease: a person paused everything, as JSON with `since`, `by` and `reason`. Salvor's own.
    pub const PAUSED: &str = "salvor.dev/paused";
    /// On the same Lease: the leader has stopped, as JSON with `by`, `at` and the pause that it confirms. Salvor's own.
    pub const PAUSED_ACKNOWLEDGED: &str = "salvor.dev/paused-acknowledged";
    /// On the same Lease: the leader's version and configuration, as JSON. Salvor's own.
    pub const STATUS: &str = "salvor.dev/status";
}

/// Node labels.
pub mod labels {
    /// The node does not count for the health of its zone. Kubernetes' own, read by the node lifecycle controller.
    pub const EXCLUDE_DISRUPTION: &str = "node.kubernetes.io/exclude-disruption";
}

/// Node taints.
pub mod taints {
    /// The control plane lost contact with the node. Set by the node lifecycle controller when Ready is Unknown.
    pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
    /// The kubelet itself reports that it is not ready. Never a reason to recover a pod.
    pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
    /// The node is certainly down. Pod GC and the attach/detach controller act on it (KEP-2268).
    pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
    /// The value of the out-of-service taint in Kubernetes' documentation.
    pub const OUT_OF_SERVICE_VALUE: &str = "nodeshutdown";
    /// The effect that evicts running pods.
    pub const NO_EXECUTE: &str = "NoExecute";
    /// The effect that only keeps new pods away.
    pub const NO_SCHEDULE: &str = "NoSchedule";
    /// A person confirms that the machine is off and wants the node evicted; any value. Salvor's own, after KEP-36: the
    /// API does not accept an effect `ForceEviction`, so it is a key.
    pub const FORCE_EVICTION: &str = "salvor.dev/force-eviction";
}

/// Pod condition types.
pub mod conditions {
    /// Salvor recovered this pod. The name comes from KEP-6757.
    pub const KUEUE_FAILURE_RECOVERY: &str = "KueueFailureRecovery";
    /// The pod was disrupted from outside. podFailurePolicy rules can match it. Kubernetes' own.
    pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
}

/// Node condition types.
pub mod node_conditions {
    /// True while the eviction of the node is in progress. Salvor's own.
    pub const FORCE_EVICTION: &str = "ForceEviction";
}

/// Condition and event reasons.
pub mod reasons {
    /// Salvor marked the pod `Failed`. From KEP-6757.
    pub const KUEUE_FORCEFULLY_TERMINATED: &str = "KueueForcefullyTerminated";
    /// Salvor marked the pod `Failed` and force deleted it. Kueue since 0.15.6.
    pub const KUEUE_FORCEFULLY_DELETED: &str = "KueueForcefullyDeleted";
    /// Reason of the `DisruptionTarget` condition that Salvor adds. Salvor's own.
    pub const TERMINATION_BY_SALVOR: &str = "TerminationBySalvor";
    /// The value of the annotation `salvor.dev/termination-grace-after` is invalid. Salvor's own.
    pub const INVALID_TERMINATION_GRACE_AFTER: &str = "InvalidTerminationGraceAfter";
    /// The value of the annotation `salvor.dev/evict-after` is invalid. Salvor's own.
    pub const INVALID_EVICT_AFTER: &str = "InvalidEvictAfter";
    /// The `backoffLimit` of a Job was raised because of its lost pods. Salvor's own.
    pub const BACKOFF_LIMIT_RAISED: &str = "BackoffLimitRaised";
    /// A pod is not recovered because its Job would fail. Salvor's own.
    pub const JOB_WOULD_FAIL: &str = "JobWouldFail";
    /// A pod is not recovered because its Job cannot be read. Salvor's own.
    pub const JOB_UNREADABLE: &str = "JobUnreadable";
    /// A node was tainted out-of-service. Salvor's own.
    pub const NODE_OUT_OF_SERVICE: &str = "NodeOutOfService";
    /// The out-of-service taint was removed again. Salvor's own.
    pub const NODE_BACK_IN_SERVICE: &str = "NodeBackInService";
    /// A node came back without a reboot and keeps the out-of-service taint.
    pub const NODE_NOT_REBOOTED: &str = "NodeNotRebooted";
    /// Reason of the `DisruptionTarget` condition and of the event of a pod whose node was evicted. Salvor's own.
    pub const FORCE_EVICTION_BY_SALVOR: &str = "ForceEvictionBySalvor";
    /// Reason of the `DisruptionTarget` condition of a pod on a lost node that its AppWrapper deletes. Salvor's own.
    pub const APPWRAPPER_DELETION_BY_SALVOR: &str = "AppWrapperDeletionBySalvor";
    /// A node is evicted during an outage, as a person requested. Salvor's own.
    pub const DESPITE_ZONE_OUTAGE: &str = "DespiteZoneOutage";
    /// The brake started to block recoveries. Salvor's own.
    pub const BRAKE_ENGAGED: &str = "BrakeEngaged";
    /// The brake no longer blocks recoveries. Salvor's own.
    pub const BRAKE_RELEASED: &str = "BrakeReleased";
    /// A person paused everything. Salvor's own.
    pub const PAUSED: &str = "Paused";
    /// Salvor continues after a pause. Salvor's own.
    pub const RESUMED: &str = "Resumed";
    /// The brake's saved state on the Lease could not be read. Salvor's own.
    pub const BRAKE_MEMORY_LOST: &str = "BrakeMemoryLost";
}

/// Reporting components and actions of Events.
pub mod events {
    /// The reporting component of zombie recovery. From KEP-6757.
    pub const POD_TERMINATION_CONTROLLER: &str = "pod-termination-controller";
    /// The action of an event on a recovered pod. As Kueue 0.18 writes it.
    pub const FORCEFUL_TERMINATION: &str = "ForcefulTermination";
    /// The action of an event on a Job whose limit was raised. Salvor's own.
    pub const RAISE_BACKOFF_LIMIT: &str = "RaiseBackoffLimit";
    /// The action of an event about the brake. Salvor's own.
    pub const HOLD_RECOVERIES: &str = "HoldRecoveries";
    /// The action of an event on a tainted node. Salvor's own.
    pub const TAINT_NODE: &str = "TaintNode";
    /// The action of an event on a node whose taint was removed. Salvor's own.
    pub const UNTAINT_NODE: &str = "UntaintNode";
    /// The reporting component of the eviction recovery. Salvor's own.
    pub const EVICTION_CONTROLLER: &str = "salvor-eviction";
    /// The action of an event on an evicted pod. Salvor's own.
    pub const EVICT_POD: &str = "EvictPod";
    /// The action of an event about the eviction of a node. Salvor's own.
    pub const EVICT_NODE: &str = "EvictNode";
}

/// Names of the Job controller.
pub mod job {
    /// `spec.managedBy` of the Jobs that Salvor runs. Salvor's own.
    pub const CONTROLLER_NAME: &str = "salvor.dev/job-controller";
    /// `spec.managedBy` of the Jobs that Kubernetes' own controller runs, if set.
    pub const BUILT_IN_CONTROLLER: &str = "kubernetes.io/job-controller";
    /// The finalizer that keeps a pod until it is counted. Salvor's own, because the built-in controller removes its
    /// own finalizer from pods whose Job it cannot find.
    pub const TRACKING_FINALIZER: &str = "job.salvor.dev/tracking";
    /// Annotation of a Job: the pod names already in use, so that none is used twice. Salvor's own.
    pub const USED_NAMES: &str = "job.salvor.dev/used-pod-names";
    /// The index of a pod, as annotation and as label. Kubernetes' own, like all below.
    pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
    /// The environment variable with the index of a container's pod.
    pub const COMPLETION_INDEX_ENV: &str = "JOB_COMPLETION_INDEX";
    /// Annotation: the earlier failures of the index that count.
    pub const INDEX_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-failure-count";
    /// Annotation: the earlier failures of the index that a policy ignores.
    pub const INDEX_IGNORED_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

    /// Job condition types.
    pub mod conditions {
        /// The Job succeeded.
        pub const COMPLETE: &str = "Complete";
        /// The Job failed.
        pub const FAILED: &str = "Failed";
        /// The Job will fail once its pods have ended.
        pub const FAILURE_TARGET: &str = "FailureTarget";
        /// The Job will succeed once its pods have ended.
        pub const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";
        /// The Job is suspended.
        pub const SUSPENDED: &str = "Suspended";
    }

    /// Reasons of Job conditions and events.
    pub mod reasons {
        /// Too many pods failed.
        pub const BACKOFF_LIMIT_EXCEEDED: &str = "BackoffLimitExceeded";
        /// The Job exceeded its active deadline.
        pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
        /// A rule of the pod failure policy failed the Job.
        pub const POD_FAILURE_POLICY: &str = "PodFailurePolicy";
        /// All indexes have ended, and some failed.
        pub const FAILED_INDEXES: &str = "FailedIndexes";
        /// Too many indexes have failed.
        pub const MAX_FAILED_INDEXES_EXCEEDED: &str = "MaxFailedIndexesExceeded";
        /// A rule of the success policy is met.
        pub const SUCCESS_POLICY: &str = "SuccessPolicy";
        /// Enough pods succeeded.
        pub const COMPLETIONS_REACHED: &str = "CompletionsReached";
        /// The Job was suspended.
        pub const JOB_SUSPENDED: &str = "JobSuspended";
        /// The Job was resumed.
        pub const JOB_RESUMED: &str = "JobResumed";
    }

    /// Reasons of events only.
    pub mod events {
        /// The reporting component: the built-in controller's name, so that existing filters also find Salvor's events.
        pub const JOB_CONTROLLER: &str = "job-controller";
        /// The action of all these events.
        pub const RUN_JOB: &str = "RunJob";
        /// The Job is complete.
        pub const COMPLETED: &str = "Completed";
        /// The Job is suspended.
        pub const SUSPENDED: &str = "Suspended";
        /// The Job was resumed.
        pub const RESUMED: &str = "Resumed";
        /// A pod was created.
        pub const SUCCESSFUL_CREATE: &str = "SuccessfulCreate";
        /// A pod was deleted.
        pub const SUCCESSFUL_DELETE: &str = "SuccessfulDelete";
        /// The creation of a pod was refused.
        pub const FAILED_CREATE: &str = "FailedCreate";
        /// A pod could not be deleted.
        pub const FAILED_DELETE: &str = "FailedDelete";
        /// The Job's status or annotations are invalid, so the Job is not reconciled. Salvor's own.
        pub const UNREADABLE_STATUS: &str = "UnreadableStatus";
        /// The completion mode is unknown.
        pub const UNKNOWN_COMPLETION_MODE: &str = "UnknownCompletionMode";
        /// More pods succeeded than requested.
        pub const TOO_MANY_SUCCEEDED_PODS: &str = "TooManySucceededPods";
    }
}

/// Names of AppWrappers, their components and their pods. All are CodeFlare's unless noted.
pub mod appwrapper {
    /// The API group of AppWrappers.
    pub const GROUP: &str = "workload.codeflare.dev";
    /// The only version of AppWrappers.
    pub const VERSION: &str = "v1beta2";
    /// Group and version, as in `apiVersion`.
    pub const API_VERSION: &str = "workload.codeflare.dev/v1beta2";
    /// The kind of AppWrappers.
    pub const KIND: &str = "AppWrapper";
    /// The resource name, as in paths.
    pub const PLURAL: &str = "appwrappers";
    /// `spec.managedBy` of the AppWrappers that Salvor runs, if set.
    pub const CONTROLLER_NAME: &str = "workload.codeflare.dev/appwrapper-controller";
    /// The finalizer that keeps an AppWrapper until its components and pods are gone.
    pub const FINALIZER: &str = "workload.codeflare.dev/finalizer";
    /// Label of components and pods: the name of their AppWrapper.
    pub const MEMBER_LABEL: &str = "workload.codeflare.dev/appwrapper";
    /// Label of an AppWrapper: the name of its creator.
    pub const USER_LABEL: &str = "workload.codeflare.dev/user";
    /// Label of an AppWrapper: the UID of its creator.
    pub const USER_ID_LABEL: &str = "workload.codeflare.dev/userid";
    /// Annotation of an AppWrapper: the user who wrote its components, signed by Salvor's webhook.
    pub const WRITTEN_BY: &str = "appwrapper.salvor.dev/written-by";
    /// Label of an AppWrapper: its queue. Kueue's.
    pub const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
    /// The reporting component of events on AppWrappers.
    pub const EVENT_COMPONENT: &str = "appwrappers";
    /// The name of the mutating webhook.
    pub const MUTATING_WEBHOOK: &str = "mappwrapper.kb.io";
    /// The name of the validating webhook.
    pub const VALIDATING_WEBHOOK: &str = "vappwrapper.kb.io";
    /// The path of the mutating webhook.
    pub const MUTATING_PATH: &str = "/mutate-workload-codeflare-dev-v1beta2-appwrapper";
    /// The path of the validating webhook.
    pub const VALIDATING_PATH: &str = "/validate-workload-codeflare-dev-v1beta2-appwrapper";

    /// Annotations of an AppWrapper that change its timers, and of PodSets that describe their topology to Kueue.
    pub mod annotations {
        /// The common prefix.
        pub const PREFIX: &str = "workload.codeflare.dev.appwrapper/";
        /// How long it may take until all pods exist.
        pub const ADMISSION_GRACE_PERIOD: &str =
            "workload.codeflare.dev.appwrapper/admissionGracePeriodDuration";
        /// How long it may take until all pods run.
        pub const WARMUP_GRACE_PERIOD: &str = "workload.codeflare.dev.appwrapper/warmupGracePeriodDuration";
        /// How long an unhealthy workload may take to recover by itself.
        pub const FAILURE_GRACE_PERIOD: &str = "workload.codeflare.dev.appwrapper/failureGracePeriodDuration";
        /// The pause between deletion and creation in a reset.
        pub const RETRY_PAUSE_PERIOD: &str = "workload.codeflare.dev.appwrapper/retryPausePeriodDuration";
        /// The maximum number of resets.
        pub const RETRY_LIMIT: &str = "workload.codeflare.dev.appwrapper/retryLimit";
        /// How long deletion may take before it is forced.
        pub const FORCEFUL_DELETION_GRACE_PERIOD: &str =
            "workload.codeflare.dev.appwrapper/forcefulDeletionGracePeriodDuration";
        /// How long a failed workload is kept for debugging.
        pub const DELETION_ON_FAILURE_GRACE_PERIOD: &str =
            "workload.codeflare.dev.appwrapper/deletionOnFailureGracePeriodDuration";
        /// How long the components of a succeeded workload are kept.
        pub const SUCCESS_TTL: &str = "workload.codeflare.dev.appwrapper/successTTLDuration";
        /// Exit codes that are never followed by a reset.
        pub const TERMINAL_EXIT_CODES: &str = "workload.codeflare.dev.appwrapper/terminalExitCodes";
        /// The only exit codes that are followed by a reset.
        pub const RETRYABLE_EXIT_CODES: &str = "workload.codeflare.dev.appwrapper/retryableExitCodes";
        /// On a PodSet: the pod label with the index of the pod.
        pub const TAS_POD_INDEX_LABEL: &str = "workload.codeflare.dev.appwrapper/tas-pod-index-label";
        /// On a PodSet: the pod label with the index of the pod's group.
        pub const TAS_SUB_GROUP_INDEX_LABEL: &str =
            "workload.codeflare.dev.appwrapper/tas-sub-group-index-label";
        /// On a PodSet: the number of groups of pods.
        pub const TAS_SUB_GROUP_COUNT: &str = "workload.codeflare.dev.appwrapper/tas-sub-group-count";
    }

    /// Condition types of an AppWrapper.
    pub mod conditions {
        /// The workload has its quota. Kueue reads it.
        pub const QUOTA_RESERVED: &str = "QuotaReserved";
        /// Components or pods exist or may exist. Also a condition type of each component.
        pub const RESOURCES_DEPLOYED: &str = "ResourcesDeployed";
        /// Enough pods run. Kueue reads it.
        pub const PODS_READY: &str = "PodsReady";
        /// The workload is unhealthy.
        pub const UNHEALTHY: &str = "Unhealthy";
        /// Components and pods are being deleted.
        pub const DELETING_RESOURCES: &str = "DeletingResources";
    }

    /// Reasons of these conditions that are not names of phases.
    pub mod reasons {
        /// Enough pods run or have succeeded.
        pub const SUFFICIENT_PODS_READY: &str = "SufficientPodsReady";
        /// Not enough pods run.
        pub const INSUFFICIENT_PODS_READY: &str = "InsufficientPodsReady";
        /// A component could not be created.
        pub const CREATE_FAILED: &str = "CreateFailed";
        /// A component is missing.
        pub const MISSING_COMPONENT: &str = "MissingComponent";
        /// A component reports that it failed.
        pub const FAILED_COMPONENT: &str = "FailedComponent";
        /// Pods failed.
        pub const FOUND_FAILED_PODS: &str = "FoundFailedPods";
        /// No pod is failed any more.
        pub const FOUND_NO_FAILED_PODS: &str = "FoundNoFailedPods";
        /// Pods use a resource that Autopilot marked NoExecute.
        pub const AUTOPILOT_NO_EXECUTE: &str = "AutopilotNoExecute";
        /// The deletion started.
        pub const DELETION_INITIATED: &str = "DeletionInitiated";
        /// Nothing is left to delete.
        pub const DELETION_COMPLETE: &str = "DeletionComplete";
        /// The deletion waits, so that the failure can be debugged.
        pub const DELETION_PAUSED: &str = "DeletionPaused";
        /// A component is about to be created.
        pub const COMPONENT_CREATION_INITIATED: &str = "ComponentCreationInitiated";
        /// A component was created.
        pub const COMPONENT_CREATED: &str = "ComponentCreatedSuccessfully";
        /// A component could not be created.
        pub const COMPONENT_CREATION_ERRORED: &str = "ComponentCreationErrored";
        /// A component was deleted. The misspelling is part of the API.
        pub const COMPONENT_DELETED: &str = "CompononetDeleted";
        /// The AppWrapper breaks a rule that the webhook would have enforced. Salvor's own.
        pub const REFUSED: &str = "Refused";
        /// An annotation is invalid. Salvor's own.
        pub const INVALID_ANNOTATION: &str = "InvalidAnnotation";
    }
}

/// Names of the repair of sick nodes.
pub mod repair {
    /// The group of NodeRepairPolicies. Salvor's own.
    pub const GROUP: &str = "salvor.dev";
    /// The reporting component of events. Salvor's own.
    pub const REPAIR_CONTROLLER: &str = "salvor-repair";
    /// The action of events. Salvor's own.
    pub const REPAIR_NODE: &str = "RepairNode";

    /// The condition of a Node that reports its repair. Salvor's own.
    pub const CONDITION: &str = "SalvorRepair";
    /// The condition of a Node that asks an agent to reboot it. Salvor's own.
    pub const REBOOT_CONDITION: &str = "NodeReboot";

    /// Annotations that are read or written.
    pub mod annotations {
        /// On a Node: since when each condition is sick, and what was tried, as JSON. Salvor's own.
        pub const PROGRESS: &str = "repair.salvor.dev/progress";
        /// On a NodePool without a NodeRepairPolicy: the repairs in progress, as JSON. Salvor's own.
        pub const REPAIRS: &str = "repair.salvor.dev/repairs";
        /// On a Node, its NodeClaim or Machine, or its NodePool: forbids the repair. Empty or `true`, or the time at
        /// which the veto ends. Salvor's own.
        pub const DO_NOT_REPAIR: &str = "salvor.dev/do-not-repair";
        /// On a Node, its NodeClaim or its NodePool: the same veto, as named in Karpenter's design.
        pub const KARPENTER_DO_NOT_REPAIR: &str = "karpenter.sh/do-not-repair";
        /// On a Node: asks an agent to reboot it. The value is the time of the request. Salvor's own.
        pub const REBOOT_REQUESTED: &str = "salvor.dev/reboot-requested";
        /// On a Node: the agent has rebooted it. The value is that of the request. Salvor's own.
        pub const REBOOT_DONE: &str = "salvor.dev/reboot-done";
        /// On a NodeClaim: the time after which Karpenter terminates it by force. Karpenter's own.
        pub const TERMINATION_TIMESTAMP: &str = "karpenter.sh/nodeclaim-termination-timestamp";
        /// On a NodeClaim: the value of the annotation above before Salvor set it; empty if it was absent. Salvor's
        /// own.
        pub const TERMINATION_BEFORE: &str = "repair.salvor.dev/termination-before";
        /// On a Machine: asks its owner to replace it. Cluster API's own, like all below.
        pub const REMEDIATE_MACHINE: &str = "cluster.x-k8s.io/remediate-machine";
        /// On a Machine: forbids its remediation.
        pub const SKIP_REMEDIATION: &str = "cluster.x-k8s.io/skip-remediation";
        /// On a Machine: controllers ignore it.
        pub const PAUSED: &str = "cluster.x-k8s.io/paused";
        /// On a Node: the name of its Machine.
        pub const MACHINE: &str = "cluster.x-k8s.io/machine";
        /// On a Node: the namespace of its Machine.
        pub const CLUSTER_NAMESPACE: &str = "cluster.x-k8s.io/cluster-namespace";
    }

    /// Karpenter's labels on Nodes and NodeClaims.
    pub mod labels {
        /// The name of the NodePool.
        pub const NODE_POOL: &str = "karpenter.sh/nodepool";
        /// Karpenter saw the node ready for pods.
        pub const INITIALIZED: &str = "karpenter.sh/initialized";
    }

    /// Reasons of Node conditions and of events. Salvor's own, except for the first event.
    pub mod reasons {
        /// A toleration is running.
        pub const WAITING: &str = "Waiting";
        /// The toleration has passed, and something blocks the repair.
        pub const BLOCKED: &str = "Blocked";
        /// An annotation on the node or its Machine forbids the repair.
        pub const VETOED: &str = "Vetoed";
        /// An annotation of Salvor on the node is invalid, so nothing is done.
        pub const UNREADABLE: &str = "AnnotationUnreadable";
        /// The node is being replaced.
        pub const REPAIRING: &str = "Repairing";
        /// A reboot is requested.
        pub const REBOOTING: &str = "Rebooting";
        /// The node is healthy after a repair.
        pub const REPAIRED: &str = "Repaired";
        /// The node recovered by itself.
        pub const RECOVERED: &str = "Recovered";
        /// The condition asks for a reboot.
        pub const REBOOT_REQUESTED: &str = "RebootRequested";
        /// The requested reboot is done.
        pub const REBOOTED: &str = "Rebooted";

        /// Event: something blocks a repair that is due. Karpenter's reason.
        pub const NODE_REPAIR_BLOCKED: &str = "NodeRepairBlocked";
        /// Event: a node is being replaced.
        pub const NODE_REPAIR_STARTED: &str = "NodeRepairStarted";
        /// Event: a reboot was requested.
        pub const NODE_REBOOT_REQUESTED: &str = "NodeRebootRequested";
        /// Event: a node without an owner has no pods left. Its machine was not touched.
        pub const NODE_DRAINED: &str = "NodeDrained";
        /// Event: a Node without an owner was deleted. Its machine was not touched.
        pub const NODE_DELETED: &str = "NodeDeleted";
        /// Event: a machine whose Node was deleted registered again, and its Node got back what it lacked.
        pub const NODE_CAME_BACK: &str = "NodeCameBack";
        /// Event: a repair is finished. The machine was replaced or rebooted.
        pub const NODE_REPAIRED: &str = "NodeRepaired";
        /// Reason of the `DisruptionTarget` condition of a pod whose node was replaced, and of the event about it.
        pub const NODE_REPLACED: &str = "NodeReplacedBySalvor";
        /// Event: a repair takes too long.
        pub const NODE_REPAIR_STUCK: &str = "NodeRepairStuck";
        /// Event: a policy is invalid.
        pub const INVALID_POLICY: &str = "InvalidNodeRepairPolicy";
    }
}

/// The identity of the configuration file.
pub mod configuration {
    /// The group and version of the configuration file.
    pub const API_VERSION: &str = "config.salvor.dev/v1alpha1";
    /// The kind of the configuration file.
    pub const KIND: &str = "Configuration";
}
