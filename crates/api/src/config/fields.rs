//! The table of fields: the one source of what a file may contain, of its reference page and of its documented defaults.
//!
//! The reader refuses a field that is not in here, and a test compares the table with the types, so neither can drift.

use std::fmt::Write;

use crate::{Controller, Gate, names};

/// One field of the configuration file.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Where it is; `[]` stands for every entry of a list.
    pub path: &'static str,
    /// What may stand there.
    pub kind: Kind,
    /// What holds when nothing stands there.
    pub presence: Presence,
    /// What it does, in one paragraph.
    pub doc: &'static str,
}

/// What may stand in a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number between the two.
    Integer(u32, u32),
    /// A string that is not empty.
    Text,
    /// A string, which may be empty.
    TextOrNothing,
    /// A Go duration.
    Duration,
    /// A Go duration, or a number of nanoseconds, as CodeFlare's configuration has them.
    DurationOrNanoseconds,
    /// An IP address and port.
    Address,
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// A list of strings.
    TextList,
    /// A map of strings.
    TextMap,
    /// A map from the names of feature gates to booleans.
    Gates,
    /// A Kubernetes label selector.
    Selector,
    /// A map from resources to lists of taints.
    TaintMap,
    /// An object whose fields are in the table.
    Object,
    /// An object of which exactly one field is set.
    OneOf,
    /// A list whose entries are in the table.
    List,
}

/// What holds when a field is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// This value, as YAML.
    Default(&'static str),
    /// Nothing: the field must be set.
    Required,
    /// The field may be left out, and then has no effect.
    Optional,
    /// The fields inside speak for themselves.
    Parent,
}

use Kind::{
    Address, Bool, Choice, Duration, DurationOrNanoseconds, Gates, Integer, List, Object, OneOf, Selector,
    TaintMap, Text, TextList, TextMap, TextOrNothing,
};
use Presence::{Default, Optional, Parent, Required};

const fn field(path: &'static str, kind: Kind, presence: Presence, doc: &'static str) -> Field {
    Field { path, kind, presence, doc }
}

/// Every field of the file, parents before their children.
pub const FIELDS: &[Field] = &[
    field(
        "apiVersion",
        Choice(&[names::configuration::API_VERSION]),
        Required,
        "The group and version of this file's format.",
    ),
    field("kind", Choice(&[names::configuration::KIND]), Required, "The kind of this file."),
    field(
        "featureGates",
        Gates,
        Default("{}"),
        "Features switched on or off by name. A gate that is not mentioned keeps its default. The flag --feature-gates \
         has the last word on the gates it names.",
    ),
    field(
        "controllers",
        TextList,
        Default("[\"*\"]"),
        "Which recoveries run: \"*\" for all but appwrapper, a name for one; a name with a leading \"-\" switches that one off. Without \"*\" \
         only those run that are named. If a name is there more than once, its first entry counts. A recovery also needs \
         its feature gate.",
    ),
    field(
        "dryRun",
        Bool,
        Default("false"),
        "Judge and report, but write nothing to the objects judged. Verdicts appear in logs, metrics and explain as they \
         would without it.",
    ),
    field(
        "leaderElection",
        Object,
        Parent,
        "How replicas agree on the one that acts; the others keep warm and wait.",
    ),
    field(
        "leaderElection.enabled",
        Bool,
        Default("true"),
        "Elect a leader. Switch it off only where a single replica is sure to run.",
    ),
    field(
        "leaderElection.leaseName",
        Text,
        Default("salvor"),
        "The name of the Lease on which replicas agree.",
    ),
    field("leaderElection.leaseNamespace", Text, Default("salvor-system"), "The namespace of that Lease."),
    field(
        "leaderElection.leaseDuration",
        Duration,
        Default("15s"),
        "How long a claim holds that is not renewed. A replica takes over no sooner than this after it last saw a renewal. \
         Must be longer than renewDeadline.",
    ),
    field(
        "leaderElection.renewDeadline",
        Duration,
        Default("10s"),
        "How long the leader tries to renew its claim before it stops writing. Must be longer than 1.2 times retryPeriod.",
    ),
    field(
        "leaderElection.retryPeriod",
        Duration,
        Default("2s"),
        "The pause between two tries to claim or renew.",
    ),
    field(
        "bind",
        Address,
        Default("0.0.0.0:8080"),
        "The IP address and port on which /metrics, /healthz and /readyz are served.",
    ),
    field(
        "page",
        Object,
        Parent,
        "A page that shows nodes, pods, what is stuck and why, and what happened. It only shows. It watches all pods and nodes, \
         which costs memory. Only the leader's page has verdicts.",
    ),
    field("page.enabled", Bool, Default("false"), "Whether the page is served."),
    field(
        "page.bind",
        Address,
        Default("127.0.0.1:8081"),
        "The IP address and port on which the page is served. It shows the names of all nodes and pods to everybody who can \
         reach that address; there is no password. Use kubectl port-forward to look at it from elsewhere.",
    ),
    field(
        "logFormat",
        Choice(&["text", "json"]),
        Default("text"),
        "Log lines for people (text) or for machines (json).",
    ),
    field("concurrency", Object, Parent, "How much is done at once."),
    field(
        "concurrency.writes",
        Integer(1, 10_000),
        Default("32"),
        "How many requests that write may be under way at the same time: so many of zombie recovery and eviction together, \
         and as many again of Jobs. Jobs never hold up what recovers.",
    ),
    field("staleness", Object, Parent, "How old the view of the cluster may be."),
    field(
        "staleness.readyLimit",
        Duration,
        Default("3m0s"),
        "When a watch has brought neither event nor bookmark for this long, /readyz fails. API servers send a bookmark about \
         once a minute.",
    ),
    field(
        "staleness.irreversibleActionLimit",
        Duration,
        Default("1m30s"),
        "When a watch has brought neither event nor bookmark for this long, nothing irreversible is done on its word. At most \
         readyLimit, so that a replica that may not act is never called ready for long.",
    ),
    field(
        "failureRecoveryPolicy",
        Object,
        Parent,
        "The rules of zombie recovery: pods stuck terminating on an unreachable node. Needs the feature gate \
         FailureRecoveryPolicy. Pods that carry an opt-in annotation are recovered whether or not there are rules.",
    ),
    field(
        "failureRecoveryPolicy.minimumUnreachableDuration",
        Duration,
        Default("0s"),
        "How long a node must have carried the taint node.kubernetes.io/unreachable before a pod on it is recovered. \
         Protects against a taint that comes and goes.",
    ),
    field(
        "failureRecoveryPolicy.annotatedPods",
        Object,
        Parent,
        "How long pods are waited for that carry an opt-in annotation.",
    ),
    field(
        "failureRecoveryPolicy.annotatedPods.forcefulTerminationGracePeriod",
        Duration,
        Default("1m0s"),
        "How long after the end of its own grace period a stuck pod with an opt-in annotation is recovered. The minute is \
         KEP-6757's. The annotation salvor.dev/termination-grace-after on the pod, a duration such as 30s, beats it; a value \
         there that is not a duration, or is negative, is reported in an event on the pod, and this setting counts.",
    ),
    field(
        "failureRecoveryPolicy.annotatedPods.minimumForcefulTerminationGracePeriod",
        Duration,
        Default("0s"),
        "The shortest wait that the annotation salvor.dev/termination-grace-after may ask for; a pod that asks for less is \
         waited for this long. At most forcefulTerminationGracePeriod.",
    ),
    field(
        "failureRecoveryPolicy.rules",
        List,
        Default("[]"),
        "What is recovered beside annotated pods. Rules are asked in order, pods and nodes each by their own kind of rule; the \
         first that matches counts. An annotation on a pod beats every rule: it is the owner's own word.",
    ),
    field("failureRecoveryPolicy.rules[]", OneOf, Parent, "One rule: exactly one of its kinds is set."),
    field(
        "failureRecoveryPolicy.rules[].terminatePod",
        Object,
        Optional,
        "Recovers stuck pods with certain labels, one by one.",
    ),
    field(
        "failureRecoveryPolicy.rules[].terminatePod.podLabelSelector",
        Selector,
        Required,
        "Which pods. It must demand that some label is present (matchLabels, In or Exists), because that label is the owner's \
         consent: a selector that unlabelled pods match is refused.",
    ),
    field(
        "failureRecoveryPolicy.rules[].terminatePod.forcefulTerminationGracePeriod",
        Duration,
        Required,
        "How long after the end of its own grace period a stuck pod is recovered. There is no default on purpose: think about \
         how long a node of yours may be away and still come back.",
    ),
    field(
        "failureRecoveryPolicy.rules[].terminatePod.action",
        Choice(&["Fail", "FailAndDelete"]),
        Default("Fail"),
        "Fail sets the pod's phase to Failed, which is enough for a Job to replace it. FailAndDelete then force deletes it, \
         which also frees StatefulSet names and foreground deletions.",
    ),
    field(
        "failureRecoveryPolicy.rules[].taintNodeOutOfService",
        Object,
        Optional,
        "Declares unreachable nodes out of service (taint node.kubernetes.io/out-of-service=nodeshutdown:NoExecute), upon \
         which Kubernetes itself deletes every pod of the node that does not tolerate it and detaches its volumes. The taint \
         is taken off again when the node is Ready and renews its Lease, if it has one, but only where Salvor put it.",
    ),
    field(
        "failureRecoveryPolicy.rules[].taintNodeOutOfService.nodeSelector",
        Selector,
        Required,
        "Which nodes. Must not be empty: this acts on all pods of a node, so name the nodes that are meant.",
    ),
    field(
        "failureRecoveryPolicy.rules[].taintNodeOutOfService.unreachableNodeTimeout",
        Duration,
        Required,
        "How long a node must have carried the taint node.kubernetes.io/unreachable. Must be more than zero. There is no \
         default on purpose.",
    ),
    field(
        "job",
        Object,
        Parent,
        "How Jobs are run whose spec.managedBy is salvor.dev/job-controller. Which of them wait for failed pods before \
         replacing them is each Job's own podReplacementPolicy, as long as the feature gate JobPodReplacementPolicy is on.",
    ),
    field(
        "job.unmanagedJobs",
        Bool,
        Default("false"),
        "Also run Jobs that are the built-in Job controller's: those that have no spec.managedBy, or have \
         kubernetes.io/job-controller there. Only where it is switched off: two controllers on one Job undo each other's \
         work.",
    ),
    field(
        "job.deleteFinishedJobs",
        Bool,
        Default("false"),
        "Delete finished Jobs after their ttlSecondsAfterFinished. Kubernetes' own controller does that for every Job, so \
         this is for clusters without it.",
    ),
    field(
        "job.concurrentJobs",
        Integer(1, 10_000),
        Default("32"),
        "How many Jobs are worked on at the same time; the others wait their turn. All of them together make no more \
         requests at once than concurrency.writes allows.",
    ),
    field(
        "job.maxUncountedPods",
        Integer(1, 10_000),
        Default("500"),
        "How many ended pods are written into a Job's status at once before their finalizers are removed. More make fewer \
         and larger writes.",
    ),
    field(
        "job.maxPodsAtOnce",
        Integer(1, 100_000),
        Default("500"),
        "How many pods of one Job are created or deleted before the Job is judged again.",
    ),
    field(
        "job.batchPeriod",
        Duration,
        Default("1s"),
        "The least time between two writes of one Job's status that only move its counters. The first such write, and \
         every write that changes a condition, is made at once. 0s writes every change.",
    ),
    field(
        "job.backoffBase",
        Duration,
        Default("10s"),
        "How long a Job waits before it replaces a pod after the first failure; twice as long after each further one.",
    ),
    field("job.backoffMax", Duration, Default("10m0s"), "The longest such wait. At least backoffBase."),
    field(
        "eviction",
        Object,
        Parent,
        "How nodes are emptied that are down for sure: nodes with the taint salvor.dev/force-eviction (any value), which is \
         somebody's word that the machine is off.",
    ),
    field(
        "eviction.triggers",
        List,
        Default("[]"),
        "Taints of others that ask for an eviction as well. Salvor adds its own taint beside them, and never takes theirs off.",
    ),
    field("eviction.triggers[]", Object, Parent, "One taint that asks for an eviction."),
    field("eviction.triggers[].key", Text, Required, "The key that the taint must have."),
    field(
        "eviction.triggers[].value",
        Text,
        Optional,
        "The taint's value; if it is not set, any value counts.",
    ),
    field(
        "eviction.triggers[].effect",
        Choice(&["NoSchedule", "PreferNoSchedule", "NoExecute"]),
        Optional,
        "The taint's effect; if it is not set, any effect counts.",
    ),
    field(
        "eviction.triggers[].proof",
        Bool,
        Default("false"),
        "Whether this taint proves that the machine is off. Without proof pods stay of which two must never run at once: those \
         of owners in atMostOneOwners, and those with a ReadWriteOnce or ReadWriteOncePod claim. They go when somebody adds \
         salvor.dev/force-eviction, which always is proof.",
    ),
    field(
        "eviction.removeTaint",
        Choice(&["WhenReady", "WhenEvicted"]),
        Default("WhenReady"),
        "When Salvor takes its own taint off after pods and volumes are gone. WhenReady: once the node is Ready with a fresh \
         Lease, so that it is not given pods while it is down. WhenEvicted: at once, to the letter of KEP-36.",
    ),
    field(
        "eviction.detachWarningAfter",
        Duration,
        Default("1m0s"),
        "A volume that is still attached this long after it was released is reported, with its driver. It is waited for all \
         the same.",
    ),
    field(
        "eviction.atMostOneOwners",
        TextList,
        Default(
            "[StatefulSet.apps, StatefulSet.apps.kruise.io, StrimziPodSet.core.strimzi.io, Cluster.postgresql.cnpg.io, \
             InstanceSet.workloads.kubeblocks.io, VirtualMachineInstance.kubevirt.io]",
        ),
        "Kinds of owners of whose pods two must never run at once, each as Kind.group (Kind alone for the core group). Their pods \
         go only when the machine is known to be off. What is set here replaces the default, so name StatefulSet.apps again. Pods \
         with a ReadWriteOnce or ReadWriteOncePod claim need that proof whatever their owner.",
    ),
    field(
        "appwrapper",
        Object,
        Parent,
        "How AppWrappers (workload.codeflare.dev/v1beta2) are run. The recovery appwrapper runs only where controllers names it. \
         The keys of CodeFlare's own configuration are understood here as they are; salvor config import-appwrapper turns its \
         ConfigMap into this file.",
    ),
    field(
        "appwrapper.userRBACAdmissionCheck",
        Bool,
        Default("true"),
        "Whether the webhook refuses an AppWrapper whose user may not create what it wraps. Switched off, everybody who may \
         create an AppWrapper may create every kind in wrappedKinds.",
    ),
    field(
        "appwrapper.schedulerName",
        TextOrNothing,
        Default("\"\""),
        "The scheduler for pods of AppWrappers that name none. Empty leaves them as they are.",
    ),
    field(
        "appwrapper.defaultQueueName",
        TextOrNothing,
        Default("\"\""),
        "The webhook gives AppWrappers without the label kueue.x-k8s.io/queue-name this one. Empty gives none.",
    ),
    field(
        "appwrapper.slackQueueName",
        TextOrNothing,
        Default("\"\""),
        "Accepted so that old files work, and without effect: CodeFlare's controller changed the lending limit of this \
         ClusterQueue until version 1.0, and Salvor does not.",
    ),
    field(
        "appwrapper.autopilot",
        Object,
        Parent,
        "What the labels mean by which Autopilot marks nodes whose resources are sick.",
    ),
    field(
        "appwrapper.autopilot.injectAntiAffinities",
        Bool,
        Default("true"),
        "Whether pods that use such a resource get node affinities that keep them away from nodes where it is sick.",
    ),
    field(
        "appwrapper.autopilot.monitorNodes",
        Bool,
        Default("true"),
        "Whether a workload is reset at once if a pod of it uses a resource of a node that has a label with the effect NoExecute.",
    ),
    field(
        "appwrapper.autopilot.preferNoScheduleWeight",
        Integer(1, 100),
        Default("50"),
        "The weight of the node affinity that is added for labels with the effect PreferNoSchedule.",
    ),
    field(
        "appwrapper.autopilot.resourceTaints",
        TaintMap,
        Default(
            "{nvidia.com/gpu: [{key: autopilot.ibm.com/gpuhealth, value: WARN, effect: PreferNoSchedule}, \
             {key: autopilot.ibm.com/gpuhealth, value: TESTING, effect: NoSchedule}, \
             {key: autopilot.ibm.com/gpuhealth, value: EVICT, effect: NoExecute}]}",
        ),
        "For each resource the node labels that mean trouble, each with what it means for pods: key, value and effect \
         (NoSchedule, PreferNoSchedule or NoExecute). A resource that is not named keeps its default; an empty list switches \
         it off.",
    ),
    field(
        "appwrapper.faultTolerance",
        Object,
        Parent,
        "Timers and limits. Annotations of an AppWrapper change them for it, up to the ceilings. A duration may also be a whole \
         number of nanoseconds, as in CodeFlare's files.",
    ),
    field(
        "appwrapper.faultTolerance.admissionGracePeriod",
        DurationOrNanoseconds,
        Default("1m0s"),
        "How long it may take until all expected pods exist. At most warmupGracePeriod.",
    ),
    field(
        "appwrapper.faultTolerance.warmupGracePeriod",
        DurationOrNanoseconds,
        Default("5m0s"),
        "How long it may take until all expected pods run.",
    ),
    field(
        "appwrapper.faultTolerance.failureGracePeriod",
        DurationOrNanoseconds,
        Default("1m0s"),
        "How long the controllers of the wrapped resources may take to heal a workload that has failed, missing or waiting pods.",
    ),
    field(
        "appwrapper.faultTolerance.resetPause",
        DurationOrNanoseconds,
        Default("1m30s"),
        "How long a reset waits between the end of the deletion and the new creation.",
    ),
    field(
        "appwrapper.faultTolerance.retryLimit",
        Integer(0, 2_147_483_647),
        Default("3"),
        "How many resets a workload may have before it fails.",
    ),
    field(
        "appwrapper.faultTolerance.deletionGracePeriod",
        DurationOrNanoseconds,
        Default("10m0s"),
        "How long deletion may take before what is left is deleted by force.",
    ),
    field(
        "appwrapper.faultTolerance.gracePeriodCeiling",
        DurationOrNanoseconds,
        Default("24h0m0s"),
        "The longest that any of these durations may be, here and in annotations.",
    ),
    field(
        "appwrapper.faultTolerance.successTTLCeiling",
        DurationOrNanoseconds,
        Default("168h0m0s"),
        "How long the components of a workload are kept after it succeeded. An annotation can only shorten it. Must be more than \
         zero.",
    ),
    field(
        "appwrapper.wrappedKinds",
        TextList,
        Default(
            "[Pod, Service, Deployment.apps, StatefulSet.apps, Job.batch, PodGroup.scheduling.sigs.k8s.io, \
             PodGroup.scheduling.x-k8s.io, PyTorchJob.kubeflow.org, RayCluster.ray.io, RayJob.ray.io, JobSet.jobset.x-k8s.io]",
        ),
        "The kinds that may be wrapped, each as Kind.group (Kind alone for the core group). The manifests grant rights for exactly \
         these, and an AppWrapper with another kind is refused. What is set here replaces the default, so name its kinds again. A \
         resource whose name is not the usual plural is written behind a colon: Gateway.example.com:gatewaylist. The operator \
         creates these objects with its own rights, so name no kind that gives power to whoever can create it.",
    ),
    field(
        "appwrapper.wrappedKindsWithoutWebhooks",
        TextList,
        Default("[]"),
        "The kinds out of wrappedKinds that may be wrapped while webhooks.enabled is false. Without a webhook nobody knows who \
         created an AppWrapper, so nobody can ask whether that user may create what it wraps: everybody who may create an \
         AppWrapper may create these.",
    ),
    field(
        "appwrapper.resetWhenNodeUnreachable",
        Bool,
        Default("false"),
        "Also call a workload unhealthy while it has pods on a node with the taint node.kubernetes.io/unreachable. It is reset if \
         that lasts for failureGracePeriod.",
    ),
    field(
        "appwrapper.resetWhenNodeForceEvicted",
        Bool,
        Default("false"),
        "Also reset a workload at once if it has pods on a node with the taint salvor.dev/force-eviction: its machine is off.",
    ),
    field(
        "appwrapper.countResetsAsUpstream",
        Bool,
        Default("false"),
        "Count resets as CodeFlare's controller does. By default a reset does not count towards retryLimit if its cause lies \
         outside the workload: an evacuation by Autopilot, or pods for which no node had room. With true the latter count, and \
         an evacuation with no retry left fails the workload.",
    ),
    field(
        "brake",
        Object,
        Parent,
        "What holds all recoveries back when too much fails at once: then suspect the observer before the nodes. Recoveries \
         that wait say so, and go on when it is over.",
    ),
    field(
        "brake.maxPodsPerMinute",
        Integer(0, u32::MAX),
        Default("1000"),
        "At most so many pods are recovered in any minute. 0 sets no limit.",
    ),
    field(
        "brake.maxNodesPerMinute",
        Integer(0, u32::MAX),
        Default("20"),
        "At most so many evictions of nodes are begun in any minute. 0 sets no limit.",
    ),
    field(
        "brake.maxUnreachablePercent",
        Integer(0, 100),
        Default("50"),
        "Nothing is recovered while more than this share of the nodes, and more than two nodes, are unreachable; and no \
         eviction begins while that is so in the node's zone. 0 sets no limit.",
    ),
    field(
        "brake.settlePeriod",
        Duration,
        Default("50s"),
        "When fewer nodes are unreachable again, the others probably come back, too: nothing is recovered until the number of \
         unreachable nodes has not fallen for this long. Then recoveries go on gradually: one pod at first, and twice as \
         many every five seconds. The same holds for evictions in a zone. The default is the time after which a node that \
         is silent is called unreachable. 0s lets everything through at once.",
    ),
    field(
        "brake.countNodesReadyWithin",
        Duration,
        Default("24h0m0s"),
        "Which nodes count for maxUnreachablePercent: those that are Ready, or were within this time. So machines that were \
         switched off long ago hold nothing up. Nodes with the label node.kubernetes.io/exclude-disruption (with any value \
         but \"false\") never count. 0s counts all others, however long they have been away.",
    ),
];

/// The fields of a label selector, wherever one stands.
pub(super) const SELECTOR_FIELDS: &[Field] = &[
    field("matchLabels", TextMap, Optional, "Labels that must be there with exactly these values."),
    field("matchExpressions", List, Optional, "Further requirements; all must hold."),
    field("matchExpressions[]", Object, Parent, "One requirement on one label."),
    field("matchExpressions[].key", Text, Required, "The label's key."),
    field(
        "matchExpressions[].operator",
        Choice(&["In", "NotIn", "Exists", "DoesNotExist"]),
        Required,
        "In: the label is there with one of the values. NotIn: it is absent or has none of them. Exists and DoesNotExist: it \
         is there, or is not.",
    ),
    field(
        "matchExpressions[].values",
        TextList,
        Optional,
        "The values for In and NotIn; empty for the others.",
    ),
];

/// The fields of a taint, wherever a list of them stands in a map.
pub(super) const TAINT_FIELDS: &[Field] = &[
    field("key", Text, Required, "The label's key."),
    field("value", TextOrNothing, Default("\"\""), "The label's value."),
    field(
        "effect",
        Choice(&["NoSchedule", "PreferNoSchedule", "NoExecute"]),
        Required,
        "What the label means for pods that use the resource.",
    ),
];

/// An example of what a list may hold, as it stands in a file.
pub(super) fn example(list: &str) -> &'static str {
    match list {
        "eviction.triggers" => EXAMPLE_TRIGGERS,
        _ => EXAMPLE_RULES,
    }
}

const EXAMPLE_TRIGGERS: &str = "\
triggers:
- key: node.cloudprovider.kubernetes.io/shutdown
  value: \"true\"
  effect: NoSchedule
  proof: true
";

/// An example of every kind of rule, as it stands in a file.
pub(super) const EXAMPLE_RULES: &str = "\
rules:
- terminatePod:
    podLabelSelector:
      matchExpressions:
      - key: example.com/pod-safe-to-fail
        operator: In
        values: [\"true\"]
    forcefulTerminationGracePeriod: 5m
    action: Fail
- taintNodeOutOfService:
    nodeSelector:
      matchLabels:
        example.com/pool: bare-metal
    unreachableNodeTimeout: 15m
";

impl Kind {
    fn describe(self) -> String {
        match self {
            Bool => "true or false".into(),
            Integer(least, u32::MAX) => format!("whole number, at least {least}"),
            Integer(least, most) => format!("whole number, {least} to {most}"),
            Text | TextOrNothing => "string".into(),
            DurationOrNanoseconds => "duration, such as `1m30s`, or whole number of nanoseconds".into(),
            Duration => "duration, such as `1m30s`".into(),
            Address => "IP address and port".into(),
            Choice(choices) => {
                choices.iter().map(|choice| format!("`{choice}`")).collect::<Vec<_>>().join(" or ")
            }
            TextList => "list of strings".into(),
            TextMap => "map of strings".into(),
            Gates => "map from gate to true or false".into(),
            Selector => "[label selector](#label-selectors)".into(),
            TaintMap => "map from resource to list of taints".into(),
            Object => "object".into(),
            OneOf => "object with exactly one field".into(),
            List => "list".into(),
        }
    }
}

impl Field {
    fn name(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }

    fn depth(&self) -> usize {
        self.path.matches('.').count()
    }

    fn in_a_list(&self) -> bool {
        self.path.contains("[]")
    }

    fn summary(&self) -> String {
        let kind = self.kind.describe();
        match self.presence {
            Default(value) => format!("{kind}; default `{value}`"),
            Required => format!("{kind}; required"),
            Optional => format!("{kind}; optional"),
            Parent => kind,
        }
    }
}

/// The reference page of the configuration file, in Markdown.
pub fn reference() -> String {
    let mut page = format!(
        "# Configuration\n\n\
         <!-- Generated from the field table in salvor-api; change it there. -->\n\n\
         The file given by `--config` has `apiVersion: {}` and `kind: {}`. An unknown field, a value of the wrong form and \
         values that contradict each other are refused at start, each with its path and line. A flag beats an environment \
         variable, which beats this file, which beats the default.\n\n\
         Durations are written as in Go: numbers with the units `ns`, `us`, `ms`, `s`, `m` and `h`, for example `1m30s`.\n",
        names::configuration::API_VERSION,
        names::configuration::KIND,
    );
    section(&mut page, "Fields", FIELDS);
    section(&mut page, "Label selectors", SELECTOR_FIELDS);
    page.push_str("\n## Feature gates\n\n| gate | stage | default |\n|---|---|---|\n");
    for gate in Gate::ALL {
        line(&mut page, format_args!("| `{gate}` | {} | {} |", gate.stage(), gate.default_enabled()));
    }
    page.push_str("\n## Recoveries\n\nThe names for `controllers`:");
    for controller in Controller::ALL {
        page.push_str(&format!(" `{controller}`"));
    }
    page.push_str(".\n\n## Example rules\n\n```yaml\nfailureRecoveryPolicy:\n");
    for text in EXAMPLE_RULES.lines() {
        line(&mut page, format_args!("  {text}"));
    }
    page.push_str("```\n");
    page
}

fn section(page: &mut String, title: &str, fields: &[Field]) {
    line(page, format_args!("\n## {title}"));
    for field in fields {
        line(page, format_args!("\n### `{}`\n\n{}\n\n{}", field.path, field.summary(), field.doc));
    }
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(page, "{text}").expect("writing to a string does not fail");
}

/// A complete file that says what the defaults say, with every field explained.
pub fn defaults_yaml() -> String {
    let mut file = String::new();
    for field in FIELDS.iter().filter(|field| !field.in_a_list()) {
        let indent = "  ".repeat(field.depth());
        if !file.is_empty() && !file.ends_with(":\n") {
            file.push('\n');
        }
        comment(&mut file, &indent, field.doc);
        let value = match (field.presence, field.kind) {
            (Default(value), TextList) if value.len() > WIDTH / 2 => block(value, &indent),
            (Default(value), TaintMap) => taint_block(value, &indent),
            (Default(value), _) => format!(" {value}"),
            (Required, Choice(choices)) => format!(" {}", choices.join("|")),
            _ => String::new(),
        };
        line(&mut file, format_args!("{indent}{}:{value}", field.name()));
        if field.kind == List {
            comment(&mut file, &indent, "For example:");
            for text in example(field.path).lines() {
                line(&mut file, format_args!("{indent}# {text}"));
            }
        }
    }
    file
}

/// A terminal's.
const WIDTH: usize = 100;

/// A list such as `[a, b]` with a line for each entry.
fn block(list: &str, indent: &str) -> String {
    let entries = list.trim_matches(['[', ']']).split(", ");
    entries.map(|entry| format!("\n{indent}- {entry}")).collect()
}

/// A map such as `{a: [{..}, {..}]}` with a line for each taint.
fn taint_block(map: &str, indent: &str) -> String {
    let inner = map.trim_start_matches('{').trim_end_matches("]}");
    let (resource, taints) = inner.split_once(": [").unwrap_or((inner, ""));
    let taints: String =
        taints.split("}, ").map(|taint| format!("\n{indent}  - {}}}", taint.trim_end_matches('}'))).collect();
    format!("\n{indent}  {resource}:{taints}")
}

/// Breaks the text into comment lines that fit a terminal.
fn comment(file: &mut String, indent: &str, text: &str) {
    let mut row = format!("{indent}#");
    for word in text.split_whitespace() {
        if row.len() + 1 + word.len() > WIDTH {
            line(file, format_args!("{row}"));
            row = format!("{indent}#");
        }
        row.push(' ');
        row.push_str(word);
    }
    line(file, format_args!("{row}"));
}
