//! Every name that Salvor shares with users and with other controllers, and where each comes from.

/// Pod annotations by which the owner of a pod consents, value exactly [`annotations::CONSENT`].
pub mod annotations {
    /// The pod may be declared `Failed`. From KEP-6757; Kueue 0.15.0 to 0.15.5 read it.
    pub const SAFE_TO_FORCEFULLY_TERMINATE: &str = "kueue.x-k8s.io/safe-to-forcefully-terminate";
    /// The pod may be declared `Failed` and force deleted. Read by Kueue since 0.15.6.
    pub const SAFE_TO_FORCEFULLY_DELETE: &str = "kueue.x-k8s.io/safe-to-forcefully-delete";
    /// The only value that consents; `True`, `1` and all others do not.
    pub const CONSENT: &str = "true";
    /// The wait after an opted-in pod's own grace period, as a Go duration. Salvor's own.
    pub const TERMINATION_GRACE_AFTER: &str = "salvor.dev/termination-grace-after";
    /// On a Job: by how much Salvor raised its `backoffLimit`, and for which pods, as JSON. Salvor's own.
    pub const BACKOFF_LIMIT_RAISED: &str = "salvor.dev/backoff-limit-raised";
    /// On a Node: Salvor put the out-of-service taint there, at the time in the value. Salvor's own.
    pub const OUT_OF_SERVICE_SINCE: &str = "zombie.salvor.dev/out-of-service-since";
    /// On a node that Salvor tainted out-of-service: the boot of its machine then.
    pub const OUT_OF_SERVICE_BOOT: &str = "zombie.salvor.dev/out-of-service-boot";
    /// On a Node: how far its eviction has come, as JSON. Salvor's own.
    pub const EVICTION: &str = "eviction.salvor.dev/progress";
    /// On a node whose eviction was requested while it was Ready: that it was, and when its kubelet was last heard of.
    pub const EVICTION_ASKED: &str = "eviction.salvor.dev/asked";
    /// On a Node: a person wants it evicted although its zone is unreachable as well. JSON with `by` and `at`.
    /// Salvor's own.
    pub const DESPITE_ZONE_OUTAGE: &str = "salvor.dev/despite-zone-outage";
    /// On the Lease of the election: what the brake remembers, as JSON. Salvor's own.
    pub const BRAKE: &str = "salvor.dev/brake";
    /// On the same Lease: what stood in [`BRAKE`] when it could not be read. Salvor's own.
    pub const BRAKE_UNREADABLE: &str = "salvor.dev/brake-unreadable";
    /// On the same Lease: a person has paused everything, as JSON with `since`, `by` and `reason`. Salvor's own.
    pub const PAUSED: &str = "salvor.dev/paused";
    /// On the same Lease: whoever leads has stopped, as JSON with `by`, `at` and which pause it is. Salvor's own.
    pub const PAUSED_ACKNOWLEDGED: &str = "salvor.dev/paused-acknowledged";
    /// On the same Lease: the version of whoever leads and the configuration that it runs with, as JSON. Salvor's own.
    pub const STATUS: &str = "salvor.dev/status";
}

/// Node labels.
pub mod labels {
    /// The node does not count when the health of a zone is judged. Kubernetes' own, read by the node lifecycle controller.
    pub const EXCLUDE_DISRUPTION: &str = "node.kubernetes.io/exclude-disruption";
}

/// Node taints.
pub mod taints {
    /// The control plane has lost the node. Set by the node lifecycle controller when Ready is Unknown.
    pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
    /// The kubelet itself says that it is not ready. Never a reason to recover a pod.
    pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
    /// The node is down for sure; Pod GC and the attach/detach controller act on it (KEP-2268).
    pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
    /// The value that Kubernetes' documentation gives to the out-of-service taint.
    pub const OUT_OF_SERVICE_VALUE: &str = "nodeshutdown";
    /// The effect that evicts running pods.
    pub const NO_EXECUTE: &str = "NoExecute";
    /// The effect that only keeps new pods away.
    pub const NO_SCHEDULE: &str = "NoSchedule";
    /// A person says that the machine is off and the node is to be evicted; any value. Salvor's own, after KEP-36: the API accepts
    /// no effect `ForceEviction`, so it is a key.
    pub const FORCE_EVICTION: &str = "salvor.dev/force-eviction";
}

/// Pod condition types.
pub mod conditions {
    /// Salvor recovered this pod. The type's name is KEP-6757's.
    pub const KUEUE_FAILURE_RECOVERY: &str = "KueueFailureRecovery";
    /// The pod was disrupted from outside; podFailurePolicy rules match it. Kubernetes' own.
    pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
}

/// Node condition types.
pub mod node_conditions {
    /// The eviction of the node: True while it is under way. Salvor's own.
    pub const FORCE_EVICTION: &str = "ForceEviction";
}

/// Condition and event reasons.
pub mod reasons {
    /// The pod was declared `Failed`. From KEP-6757.
    pub const KUEUE_FORCEFULLY_TERMINATED: &str = "KueueForcefullyTerminated";
    /// The pod was declared `Failed` and force deleted. Kueue since 0.15.6.
    pub const KUEUE_FORCEFULLY_DELETED: &str = "KueueForcefullyDeleted";
    /// Reason of the `DisruptionTarget` condition that Salvor adds. Salvor's own.
    pub const TERMINATION_BY_SALVOR: &str = "TerminationBySalvor";
    /// The value of the annotation `salvor.dev/termination-grace-after` cannot be read. Salvor's own.
    pub const INVALID_TERMINATION_GRACE_AFTER: &str = "InvalidTerminationGraceAfter";
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
    /// On a node that is back without a reboot, and keeps the taint out-of-service.
    pub const NODE_NOT_REBOOTED: &str = "NodeNotRebooted";
    /// Reason of the `DisruptionTarget` condition of a pod whose node was evicted, and of the event about it. Salvor's own.
    pub const FORCE_EVICTION_BY_SALVOR: &str = "ForceEvictionBySalvor";
    /// Reason of the `DisruptionTarget` condition of a pod on a lost node that its AppWrapper deletes. Salvor's own.
    pub const APPWRAPPER_DELETION_BY_SALVOR: &str = "AppWrapperDeletionBySalvor";
    /// A node is evicted during an outage, at a person's request. Salvor's own.
    pub const DESPITE_ZONE_OUTAGE: &str = "DespiteZoneOutage";
    /// The brake began to hold recoveries back. Salvor's own.
    pub const BRAKE_ENGAGED: &str = "BrakeEngaged";
    /// The brake has released. Salvor's own.
    pub const BRAKE_RELEASED: &str = "BrakeReleased";
    /// A person paused everything. Salvor's own.
    pub const PAUSED: &str = "Paused";
    /// Salvor goes on after a pause. Salvor's own.
    pub const RESUMED: &str = "Resumed";
    /// The brake's saved state on the Lease could not be read. Salvor's own.
    pub const BRAKE_MEMORY_LOST: &str = "BrakeMemoryLost";
}

/// The reporter of an Event.
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
    /// The action of an event on a node that is, or is not, evicted. Salvor's own.
    pub const EVICT_NODE: &str = "EvictNode";
}

/// The marks of a Job and its pods.
pub mod job {
    /// `spec.managedBy` of the Jobs that Salvor runs. Salvor's own.
    pub const CONTROLLER_NAME: &str = "salvor.dev/job-controller";
    /// `spec.managedBy` of the Jobs that Kubernetes' own controller runs, if they have one.
    pub const BUILT_IN_CONTROLLER: &str = "kubernetes.io/job-controller";
    /// The finalizer that keeps a pod until it is counted. Salvor's own: the built-in controller takes its own off pods
    /// whose Job it cannot find.
    pub const TRACKING_FINALIZER: &str = "job.salvor.dev/tracking";
    /// Annotation of a Job: the names of its pods that are used, so that none is used again. Salvor's own.
    pub const USED_NAMES: &str = "job.salvor.dev/used-pod-names";
    /// A pod's index, as annotation and as label. Kubernetes' own, like all that follow.
    pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
    /// The environment variable by which a container learns its index.
    pub const COMPLETION_INDEX_ENV: &str = "JOB_COMPLETION_INDEX";
    /// Annotation: failures of an index before this pod that count.
    pub const INDEX_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-failure-count";
    /// Annotation: failures of an index before this pod that a policy ignores.
    pub const INDEX_IGNORED_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

    /// Job condition types.
    pub mod conditions {
        /// All is done, and done well.
        pub const COMPLETE: &str = "Complete";
        /// All is done, and not well.
        pub const FAILED: &str = "Failed";
        /// The Job will fail once its pods have ended.
        pub const FAILURE_TARGET: &str = "FailureTarget";
        /// The Job will be complete once its pods have ended.
        pub const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";
        /// The Job is suspended.
        pub const SUSPENDED: &str = "Suspended";
    }

    /// Reasons of Job conditions and events.
    pub mod reasons {
        /// Too many pods failed.
        pub const BACKOFF_LIMIT_EXCEEDED: &str = "BackoffLimitExceeded";
        /// The Job ran for too long.
        pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
        /// A rule of its pod failure policy ended it.
        pub const POD_FAILURE_POLICY: &str = "PodFailurePolicy";
        /// Every index has ended, and some have failed.
        pub const FAILED_INDEXES: &str = "FailedIndexes";
        /// Too many indexes have failed.
        pub const MAX_FAILED_INDEXES_EXCEEDED: &str = "MaxFailedIndexesExceeded";
        /// A rule of its success policy is met.
        pub const SUCCESS_POLICY: &str = "SuccessPolicy";
        /// As many pods succeeded as were asked for.
        pub const COMPLETIONS_REACHED: &str = "CompletionsReached";
        /// Its owner suspended it.
        pub const JOB_SUSPENDED: &str = "JobSuspended";
        /// Its owner resumed it.
        pub const JOB_RESUMED: &str = "JobResumed";
    }

    /// Reasons of events only.
    pub mod events {
        /// The component that reports; as the built-in controller calls itself, so that filters on it find ours too.
        pub const JOB_CONTROLLER: &str = "job-controller";
        /// The action, the same for all.
        pub const RUN_JOB: &str = "RunJob";
        /// The Job is complete.
        pub const COMPLETED: &str = "Completed";
        /// The Job is suspended.
        pub const SUSPENDED: &str = "Suspended";
        /// The Job goes on.
        pub const RESUMED: &str = "Resumed";
        /// A pod was made.
        pub const SUCCESSFUL_CREATE: &str = "SuccessfulCreate";
        /// A pod was deleted.
        pub const SUCCESSFUL_DELETE: &str = "SuccessfulDelete";
        /// A pod was refused.
        pub const FAILED_CREATE: &str = "FailedCreate";
        /// A pod could not be deleted.
        pub const FAILED_DELETE: &str = "FailedDelete";
        /// The Job's status or annotations cannot be read, and nothing is done for the Job. Salvor's own.
        pub const UNREADABLE_STATUS: &str = "UnreadableStatus";
        /// The completion mode is not known.
        pub const UNKNOWN_COMPLETION_MODE: &str = "UnknownCompletionMode";
        /// More pods succeeded than were asked for.
        pub const TOO_MANY_SUCCEEDED_PODS: &str = "TooManySucceededPods";
    }
}

/// What an AppWrapper, its components and its pods are marked with. All of it is CodeFlare's, unless it says otherwise.
pub mod appwrapper {
    /// The API group of AppWrappers.
    pub const GROUP: &str = "workload.codeflare.dev";
    /// The only version of AppWrappers.
    pub const VERSION: &str = "v1beta2";
    /// Group and version, as `apiVersion` has them.
    pub const API_VERSION: &str = "workload.codeflare.dev/v1beta2";
    /// The kind.
    pub const KIND: &str = "AppWrapper";
    /// The resource, as paths have it.
    pub const PLURAL: &str = "appwrappers";
    /// `spec.managedBy` of the AppWrappers that are ours, if they have one.
    pub const CONTROLLER_NAME: &str = "workload.codeflare.dev/appwrapper-controller";
    /// The finalizer that keeps an AppWrapper until its components and pods are gone.
    pub const FINALIZER: &str = "workload.codeflare.dev/finalizer";
    /// Label of components and pods: the name of their AppWrapper.
    pub const MEMBER_LABEL: &str = "workload.codeflare.dev/appwrapper";
    /// Label of an AppWrapper: the name of the user who created it.
    pub const USER_LABEL: &str = "workload.codeflare.dev/user";
    /// Label of an AppWrapper: the UID of the user who created it.
    pub const USER_ID_LABEL: &str = "workload.codeflare.dev/userid";
    /// Annotation of an AppWrapper: who wrote its components, signed by Salvor's webhook.
    pub const WRITTEN_BY: &str = "appwrapper.salvor.dev/written-by";
    /// Label of an AppWrapper: its queue. Kueue's.
    pub const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
    /// The reporting component of events on AppWrappers.
    pub const EVENT_COMPONENT: &str = "appwrappers";
    /// The name of the mutating webhook.
    pub const MUTATING_WEBHOOK: &str = "mappwrapper.kb.io";
    /// The name of the validating webhook.
    pub const VALIDATING_WEBHOOK: &str = "vappwrapper.kb.io";
    /// The path at which the mutating webhook is served.
    pub const MUTATING_PATH: &str = "/mutate-workload-codeflare-dev-v1beta2-appwrapper";
    /// The path at which the validating webhook is served.
    pub const VALIDATING_PATH: &str = "/validate-workload-codeflare-dev-v1beta2-appwrapper";

    /// Annotations of an AppWrapper that change its timers, and of PodSets that tell Kueue their topology.
    pub mod annotations {
        /// What all of them begin with.
        pub const PREFIX: &str = "workload.codeflare.dev.appwrapper/";
        /// How long pods may take until all exist.
        pub const ADMISSION_GRACE_PERIOD: &str =
            "workload.codeflare.dev.appwrapper/admissionGracePeriodDuration";
        /// How long pods may take until all run.
        pub const WARMUP_GRACE_PERIOD: &str = "workload.codeflare.dev.appwrapper/warmupGracePeriodDuration";
        /// How long an unhealthy workload may take to heal itself.
        pub const FAILURE_GRACE_PERIOD: &str = "workload.codeflare.dev.appwrapper/failureGracePeriodDuration";
        /// The pause between deletion and creation in a reset.
        pub const RETRY_PAUSE_PERIOD: &str = "workload.codeflare.dev.appwrapper/retryPausePeriodDuration";
        /// How many resets there may be.
        pub const RETRY_LIMIT: &str = "workload.codeflare.dev.appwrapper/retryLimit";
        /// How long deletion may take before it is forced.
        pub const FORCEFUL_DELETION_GRACE_PERIOD: &str =
            "workload.codeflare.dev.appwrapper/forcefulDeletionGracePeriodDuration";
        /// How long a failed workload is left as it is, for somebody to look at.
        pub const DELETION_ON_FAILURE_GRACE_PERIOD: &str =
            "workload.codeflare.dev.appwrapper/deletionOnFailureGracePeriodDuration";
        /// How long the components of a workload that succeeded are kept.
        pub const SUCCESS_TTL: &str = "workload.codeflare.dev.appwrapper/successTTLDuration";
        /// Exit codes after which there is no reset.
        pub const TERMINAL_EXIT_CODES: &str = "workload.codeflare.dev.appwrapper/terminalExitCodes";
        /// The only exit codes after which there is a reset.
        pub const RETRYABLE_EXIT_CODES: &str = "workload.codeflare.dev.appwrapper/retryableExitCodes";
        /// On a PodSet: the pod label that has the pod's index.
        pub const TAS_POD_INDEX_LABEL: &str = "workload.codeflare.dev.appwrapper/tas-pod-index-label";
        /// On a PodSet: the pod label that has the index of the pod's group.
        pub const TAS_SUB_GROUP_INDEX_LABEL: &str =
            "workload.codeflare.dev.appwrapper/tas-sub-group-index-label";
        /// On a PodSet: how many groups of pods there are.
        pub const TAS_SUB_GROUP_COUNT: &str = "workload.codeflare.dev.appwrapper/tas-sub-group-count";
    }

    /// Condition types of an AppWrapper.
    pub mod conditions {
        /// The workload holds its quota. Kueue reads it.
        pub const QUOTA_RESERVED: &str = "QuotaReserved";
        /// Components or pods exist, or may exist. Also the condition type of each component.
        pub const RESOURCES_DEPLOYED: &str = "ResourcesDeployed";
        /// Enough pods run. Kueue reads it.
        pub const PODS_READY: &str = "PodsReady";
        /// Something is wrong with the workload.
        pub const UNHEALTHY: &str = "Unhealthy";
        /// Components and pods are being deleted.
        pub const DELETING_RESOURCES: &str = "DeletingResources";
    }

    /// Reasons of those conditions that are not the name of a phase.
    pub mod reasons {
        /// Enough pods run or have succeeded.
        pub const SUFFICIENT_PODS_READY: &str = "SufficientPodsReady";
        /// Not enough pods run.
        pub const INSUFFICIENT_PODS_READY: &str = "InsufficientPodsReady";
        /// A component could not be created.
        pub const CREATE_FAILED: &str = "CreateFailed";
        /// A component is gone.
        pub const MISSING_COMPONENT: &str = "MissingComponent";
        /// A component says that it failed.
        pub const FAILED_COMPONENT: &str = "FailedComponent";
        /// Pods failed.
        pub const FOUND_FAILED_PODS: &str = "FoundFailedPods";
        /// No pod is failed any more.
        pub const FOUND_NO_FAILED_PODS: &str = "FoundNoFailedPods";
        /// Pods use a resource of a node that Autopilot wants to be left.
        pub const AUTOPILOT_NO_EXECUTE: &str = "AutopilotNoExecute";
        /// Deletion has begun.
        pub const DELETION_INITIATED: &str = "DeletionInitiated";
        /// Nothing is left.
        pub const DELETION_COMPLETE: &str = "DeletionComplete";
        /// Deletion waits, so that somebody can look at what failed.
        pub const DELETION_PAUSED: &str = "DeletionPaused";
        /// A component is about to be created.
        pub const COMPONENT_CREATION_INITIATED: &str = "ComponentCreationInitiated";
        /// A component was created.
        pub const COMPONENT_CREATED: &str = "ComponentCreatedSuccessfully";
        /// A component could not be created.
        pub const COMPONENT_CREATION_ERRORED: &str = "ComponentCreationErrored";
        /// A component is deleted. The spelling is that of the wire.
        pub const COMPONENT_DELETED: &str = "CompononetDeleted";
        /// The AppWrapper breaks a rule that the webhook would have told at once. Salvor's own.
        pub const REFUSED: &str = "Refused";
        /// An annotation cannot be read. Salvor's own.
        pub const INVALID_ANNOTATION: &str = "InvalidAnnotation";
    }
}

/// The names of the repair of sick nodes.
pub mod repair {
    /// The group of NodeRepairPolicies. Salvor's own.
    pub const GROUP: &str = "salvor.dev";
    /// The reporting component of events. Salvor's own.
    pub const REPAIR_CONTROLLER: &str = "salvor-repair";
    /// The action of events. Salvor's own.
    pub const REPAIR_NODE: &str = "RepairNode";

    /// The condition of a Node that says how its repair stands. Salvor's own.
    pub const CONDITION: &str = "SalvorRepair";
    /// The condition of a Node that asks an agent to reboot it. Salvor's own.
    pub const REBOOT_CONDITION: &str = "NodeReboot";

    /// Annotations that are read or written.
    pub mod annotations {
        /// On a Node: since when which condition is sick, and what was tried, as JSON. Salvor's own.
        pub const PROGRESS: &str = "repair.salvor.dev/progress";
        /// On a NodePool without a NodeRepairPolicy: the repairs that are under way, as JSON. Salvor's own.
        pub const REPAIRS: &str = "repair.salvor.dev/repairs";
        /// On a Node, its NodeClaim or Machine, or its NodePool: nobody repairs it. Empty or `true`, or the time until which it holds. Salvor's own.
        pub const DO_NOT_REPAIR: &str = "salvor.dev/do-not-repair";
        /// On a Node, its NodeClaim or its NodePool: the same in the words of Karpenter's design.
        pub const KARPENTER_DO_NOT_REPAIR: &str = "karpenter.sh/do-not-repair";
        /// On a Node: an agent is asked to reboot it; the value is the time of the request. Salvor's own.
        pub const REBOOT_REQUESTED: &str = "salvor.dev/reboot-requested";
        /// On a Node: the agent has done so; the value is that of the request. Salvor's own.
        pub const REBOOT_DONE: &str = "salvor.dev/reboot-done";
        /// On a NodeClaim: from this time on Karpenter terminates it by force. Karpenter's own.
        pub const TERMINATION_TIMESTAMP: &str = "karpenter.sh/nodeclaim-termination-timestamp";
        /// On a NodeClaim: the value that the annotation above had before Salvor set it; empty if it was not there. Salvor's own.
        pub const TERMINATION_BEFORE: &str = "repair.salvor.dev/termination-before";
        /// On a Machine: its owner is to replace it. Cluster API's own, like all that follow.
        pub const REMEDIATE_MACHINE: &str = "cluster.x-k8s.io/remediate-machine";
        /// On a Machine: it is not to be remediated.
        pub const SKIP_REMEDIATION: &str = "cluster.x-k8s.io/skip-remediation";
        /// On a Machine: controllers leave it alone.
        pub const PAUSED: &str = "cluster.x-k8s.io/paused";
        /// On a Node: the name of its Machine.
        pub const MACHINE: &str = "cluster.x-k8s.io/machine";
        /// On a Node: the namespace of its Machine.
        pub const CLUSTER_NAMESPACE: &str = "cluster.x-k8s.io/cluster-namespace";
    }

    /// Labels of Karpenter on nodes and NodeClaims.
    pub mod labels {
        /// The NodePool.
        pub const NODE_POOL: &str = "karpenter.sh/nodepool";
        /// Karpenter has seen the node ready for pods.
        pub const INITIALIZED: &str = "karpenter.sh/initialized";
    }

    /// Reasons of the Node's conditions and of events. Salvor's own, but the first of the events.
    pub mod reasons {
        /// A toleration runs.
        pub const WAITING: &str = "Waiting";
        /// The node is past its toleration, and something holds the repair.
        pub const BLOCKED: &str = "Blocked";
        /// An annotation on the node, or its Machine, forbids the repair.
        pub const VETOED: &str = "Vetoed";
        /// An annotation of ours on the node cannot be read, so nothing is done.
        pub const UNREADABLE: &str = "AnnotationUnreadable";
        /// The node is being replaced.
        pub const REPAIRING: &str = "Repairing";
        /// A reboot is requested.
        pub const REBOOTING: &str = "Rebooting";
        /// The node is healthy after a repair.
        pub const REPAIRED: &str = "Repaired";
        /// The node became healthy by itself.
        pub const RECOVERED: &str = "Recovered";
        /// Reason of the condition that asks for a reboot, while it does.
        pub const REBOOT_REQUESTED: &str = "RebootRequested";
        /// The same after the reboot.
        pub const REBOOTED: &str = "Rebooted";

        /// Event: something holds a repair that is due. Karpenter's word.
        pub const NODE_REPAIR_BLOCKED: &str = "NodeRepairBlocked";
        /// Event: a node is being replaced.
        pub const NODE_REPAIR_STARTED: &str = "NodeRepairStarted";
        /// Event: a reboot was requested.
        pub const NODE_REBOOT_REQUESTED: &str = "NodeRebootRequested";
        /// Event: a node that nothing owns has no pods left, and its machine was not touched.
        pub const NODE_DRAINED: &str = "NodeDrained";
        /// Event: the Node of a machine that nothing owns is deleted, and its machine was not touched.
        pub const NODE_DELETED: &str = "NodeDeleted";
        /// Event: a machine whose Node was deleted has registered again, and got back what stood on it.
        pub const NODE_CAME_BACK: &str = "NodeCameBack";
        /// Event: a repair is over: the machine was replaced or rebooted.
        pub const NODE_REPAIRED: &str = "NodeRepaired";
        /// Reason of the `DisruptionTarget` condition of a pod that was freed because its node was replaced, and of the event about it.
        pub const NODE_REPLACED: &str = "NodeReplacedBySalvor";
        /// Event: a repair takes too long.
        pub const NODE_REPAIR_STUCK: &str = "NodeRepairStuck";
        /// Event: a policy cannot be read.
        pub const INVALID_POLICY: &str = "InvalidNodeRepairPolicy";
    }
}

/// The configuration file's own identity.
pub mod configuration {
    /// The group and version of the configuration file.
    pub const API_VERSION: &str = "config.salvor.dev/v1alpha1";
    /// The kind of the configuration file.
    pub const KIND: &str = "Configuration";
}
