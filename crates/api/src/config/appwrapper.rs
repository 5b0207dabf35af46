//! The section `appwrapper`: CodeFlare's keys, unchanged for its users, and a few of Salvor's own.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

use super::eviction::TaintEffect;
use super::found::Found;
use super::problem::{Path, Problem};
use super::section::Kind::{Bool, DurationOrNanoseconds, Integer, Object, TaintMap, TextList, TextOrNothing};
use super::section::Presence::{self, Parent};
use super::section::{Field, Section, field};
use crate::label_selector::{is_dns_subdomain, key_defect, value_defect};
use crate::{GoDuration, names};

pub(super) const SECTION: Section = Section { fields: FIELDS, examples: &[] };

/// Null switches this field off.
pub(super) const AUTOPILOT: &str = "appwrapper.autopilot";

/// How AppWrappers are run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AppWrapperSettings {
    /// Whether a user needs the right to create the components that their AppWrapper wraps.
    #[serde(rename = "userRBACAdmissionCheck")]
    pub user_rbac_admission_check: bool,
    /// The scheduler of pods that name none. Empty leaves them unchanged.
    pub scheduler_name: String,
    /// The queue of AppWrappers that name none. Empty leaves them unchanged.
    pub default_queue_name: String,
    /// Accepted and ignored.
    pub slack_queue_name: String,
    /// How health checks of nodes affect workloads.
    pub autopilot: AutopilotSettings,
    /// Timers and limits.
    pub fault_tolerance: FaultTolerance,
    /// The kinds that may be wrapped, as [`WrappedKind`] reads them.
    pub wrapped_kinds: Vec<String>,
    /// The wrapped kinds that are accepted even where no webhook checks the user's rights.
    pub wrapped_kinds_without_webhooks: Vec<String>,
    /// Whether a workload with pods on an unreachable node is reset.
    pub reset_when_node_unreachable: bool,
    /// Whether a workload with pods on a force-evicted node is reset.
    pub reset_when_node_force_evicted: bool,
    /// Whether resets because of lost nodes count against the retry limit.
    pub count_lost_nodes: bool,
    /// Whether resets are counted as CodeFlare counts them.
    pub count_resets_as_upstream: bool,
}

impl Default for AppWrapperSettings {
    fn default() -> Self {
        Self {
            user_rbac_admission_check: true,
            scheduler_name: String::new(),
            default_queue_name: String::new(),
            slack_queue_name: String::new(),
            autopilot: AutopilotSettings::default(),
            fault_tolerance: FaultTolerance::default(),
            wrapped_kinds: WRAPPED_KINDS.map(str::to_owned).to_vec(),
            wrapped_kinds_without_webhooks: Vec::new(),
            reset_when_node_unreachable: true,
            reset_when_node_force_evicted: false,
            count_lost_nodes: false,
            count_resets_as_upstream: false,
        }
    }
}

/// The kinds that the manifests of CodeFlare's controller grant rights for.
const WRAPPED_KINDS: [&str; 11] = [
    "Pod",
    "Service",
    "Deployment.apps",
    "StatefulSet.apps",
    "Job.batch",
    "PodGroup.scheduling.sigs.k8s.io",
    "PodGroup.scheduling.x-k8s.io",
    "PyTorchJob.kubeflow.org",
    "RayCluster.ray.io",
    "RayJob.ray.io",
    "JobSet.jobset.x-k8s.io",
];

/// How health checks of nodes affect workloads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AutopilotSettings {
    /// Whether pods avoid nodes with sick resources.
    pub inject_anti_affinities: bool,
    /// Whether workloads that use sick resources are reset.
    pub monitor_nodes: bool,
    /// The weight of the preferred anti-affinity.
    pub prefer_no_schedule_weight: u32,
    /// By resource: the labels of a sick node, and the effect of each.
    #[serde(deserialize_with = "over_the_default_taints")]
    pub resource_taints: BTreeMap<String, Vec<ResourceTaint>>,
}

impl Default for AutopilotSettings {
    fn default() -> Self {
        Self {
            inject_anti_affinities: true,
            monitor_nodes: true,
            prefer_no_schedule_weight: 50,
            resource_taints: default_taints(),
        }
    }
}

fn default_taints() -> BTreeMap<String, Vec<ResourceTaint>> {
    let taint = |value: &str, effect| ResourceTaint {
        key: "autopilot.ibm.com/gpuhealth".into(),
        value: value.into(),
        effect,
    };
    let taints = vec![
        taint("WARN", TaintEffect::PreferNoSchedule),
        taint("TESTING", TaintEffect::NoSchedule),
        taint("EVICT", TaintEffect::NoExecute),
    ];
    BTreeMap::from([("nvidia.com/gpu".into(), taints)])
}

/// CodeFlare's controller decodes its file over its defaults, so a resource that the file does not name keeps its
/// taints.
fn over_the_default_taints<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Vec<ResourceTaint>>, D::Error> {
    let mut taints = default_taints();
    taints.extend(BTreeMap::<String, Vec<ResourceTaint>>::deserialize(deserializer)?);
    Ok(taints)
}

/// A node label that marks a resource of the node as sick, in the form of a taint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResourceTaint {
    /// The label's key.
    pub key: String,
    /// The label's value.
    #[serde(default)]
    pub value: String,
    /// Its effect on pods that use the resource.
    pub effect: TaintEffect,
}

/// Timers and limits of AppWrappers. Annotations of an AppWrapper can change all of them except the ceilings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct FaultTolerance {
    /// How long it may take until all pods exist.
    pub admission_grace_period: GoDuration,
    /// How long it may take until all pods run.
    pub warmup_grace_period: GoDuration,
    /// How long an unhealthy workload may take to recover by itself.
    pub failure_grace_period: GoDuration,
    /// The pause between deletion and creation in a reset.
    pub reset_pause: GoDuration,
    /// The maximum number of resets.
    pub retry_limit: u32,
    /// How long deletion may take before it is forced.
    pub deletion_grace_period: GoDuration,
    /// The maximum of all these durations.
    pub grace_period_ceiling: GoDuration,
    /// The maximum time that the components of a succeeded workload are kept.
    #[serde(rename = "successTTLCeiling")]
    pub success_ttl_ceiling: GoDuration,
}

impl Default for FaultTolerance {
    fn default() -> Self {
        Self {
            admission_grace_period: GoDuration::from_secs(60),
            warmup_grace_period: GoDuration::from_secs(5 * 60),
            failure_grace_period: GoDuration::from_secs(60),
            reset_pause: GoDuration::from_secs(90),
            retry_limit: 3,
            deletion_grace_period: GoDuration::from_secs(10 * 60),
            grace_period_ceiling: GoDuration::from_secs(24 * 3600),
            success_ttl_ceiling: GoDuration::from_secs(7 * 24 * 3600),
        }
    }
}

/// A kind that may be wrapped: `Kind.group`, or `Kind` alone for the core group. An irregular plural follows after a
/// colon, as in `Gateway.gateway.networking.k8s.io:gateways`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WrappedKind {
    /// The API group. Empty for the core group.
    pub group: String,
    /// The kind, for example `Job`.
    pub kind: String,
    /// The resource name, as in paths and RBAC rules.
    pub plural: String,
}

impl WrappedKind {
    /// A kind with a regular plural.
    pub fn new(group: &str, kind: &str) -> Self {
        Self { group: group.into(), kind: kind.into(), plural: usual_plural(kind) }
    }

    /// Whether this is the group and kind, in any version.
    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.group == group && self.kind == kind
    }
}

/// The plural by the rule that Kubernetes uses, except that a `y` after a vowel stays.
fn usual_plural(kind: &str) -> String {
    let name = kind.to_ascii_lowercase();
    let stem = name.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'i', 'o', 'u']));
    if let Some(stem) = stem {
        return format!("{stem}ies");
    }
    if name.ends_with(['s', 'x']) || name.ends_with("ch") || name.ends_with("sh") {
        return format!("{name}es");
    }
    format!("{name}s")
}

impl fmt::Display for WrappedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if self.plural != usual_plural(&self.kind) {
            write!(f, ":{}", self.plural)?;
        }
        Ok(())
    }
}

/// A text that is not a kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a kind: write Kind.group without a version (Kind alone for the core group), for example Job.batch, and \
     :plural behind it if the resource has an unusual name"
)]
pub struct ParseWrappedKindError {
    text: String,
}

impl FromStr for WrappedKind {
    type Err = ParseWrappedKindError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, plural) = text.split_once(':').map_or((text, None), |(name, plural)| (name, Some(plural)));
        let (kind, group) = name.split_once('.').map_or((name, None), |(kind, group)| (kind, Some(group)));
        let is_kind = kind.starts_with(|first: char| first.is_ascii_uppercase())
            && kind.chars().all(|character| character.is_ascii_alphanumeric());
        let is_plural = plural.is_none_or(|plural| is_dns_subdomain(plural) && !plural.contains('.'));
        if !is_kind || !is_plural || !group.is_none_or(is_dns_subdomain) {
            return Err(ParseWrappedKindError { text: text.into() });
        }
        let usual = Self::new(group.unwrap_or_default(), kind);
        Ok(match plural {
            Some(plural) => Self { plural: plural.into(), ..usual },
            None => usual,
        })
    }
}

const FIELDS: &[Field] = &[
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
        Presence::Default("true"),
        "Whether the webhook refuses an AppWrapper whose user may not create what it wraps, and the controller asks again before it \
         creates that. Switched off, everybody who may create an AppWrapper may create every kind in wrappedKinds.",
    ),
    field(
        "appwrapper.schedulerName",
        TextOrNothing,
        Presence::Default("\"\""),
        "The scheduler for pods of AppWrappers that name none. Empty leaves them as they are.",
    ),
    field(
        "appwrapper.defaultQueueName",
        TextOrNothing,
        Presence::Default("\"\""),
        "The webhook gives AppWrappers without the label kueue.x-k8s.io/queue-name this one. Empty gives none.",
    ),
    field(
        "appwrapper.slackQueueName",
        TextOrNothing,
        Presence::Default("\"\""),
        "Accepted so that old files work, and without effect: CodeFlare's controller changed the lending limit of this \
         ClusterQueue until version 1.0, and Salvor does not.",
    ),
    field(
        AUTOPILOT,
        Object,
        Parent,
        "What the labels mean by which Autopilot marks nodes whose resources are sick. null switches injectAntiAffinities and \
         monitorNodes off, as in CodeFlare's configuration.",
    ),
    field(
        "appwrapper.autopilot.injectAntiAffinities",
        Bool,
        Presence::Default("true"),
        "Whether pods that use such a resource get node affinities that keep them away from nodes where it is sick.",
    ),
    field(
        "appwrapper.autopilot.monitorNodes",
        Bool,
        Presence::Default("true"),
        "Whether a workload is reset at once if a pod of it uses a resource of a node that has a label with the effect NoExecute.",
    ),
    field(
        "appwrapper.autopilot.preferNoScheduleWeight",
        Integer(1, 100),
        Presence::Default("50"),
        "The weight of the node affinity that is added for labels with the effect PreferNoSchedule.",
    ),
    field(
        "appwrapper.autopilot.resourceTaints",
        TaintMap,
        Presence::Default(
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
        Presence::Default("1m0s"),
        "How long it may take until all expected pods exist. At most warmupGracePeriod.",
    ),
    field(
        "appwrapper.faultTolerance.warmupGracePeriod",
        DurationOrNanoseconds,
        Presence::Default("5m0s"),
        "How long it may take until all expected pods run.",
    ),
    field(
        "appwrapper.faultTolerance.failureGracePeriod",
        DurationOrNanoseconds,
        Presence::Default("1m0s"),
        "How long the controllers of the wrapped resources may take to heal a workload that has failed, missing or waiting pods.",
    ),
    field(
        "appwrapper.faultTolerance.resetPause",
        DurationOrNanoseconds,
        Presence::Default("1m30s"),
        "How long a reset waits between the end of the deletion and the new creation.",
    ),
    field(
        "appwrapper.faultTolerance.retryLimit",
        Integer(0, 2_147_483_647),
        Presence::Default("3"),
        "How many resets a workload may have before it fails.",
    ),
    field(
        "appwrapper.faultTolerance.deletionGracePeriod",
        DurationOrNanoseconds,
        Presence::Default("10m0s"),
        "How long deletion may take before what is left is deleted by force.",
    ),
    field(
        "appwrapper.faultTolerance.gracePeriodCeiling",
        DurationOrNanoseconds,
        Presence::Default("24h0m0s"),
        "The longest that any of these durations may be, here and in annotations.",
    ),
    field(
        "appwrapper.faultTolerance.successTTLCeiling",
        DurationOrNanoseconds,
        Presence::Default("168h0m0s"),
        "How long the components of a workload are kept after it succeeded. An annotation can only shorten it. Must be more than \
         zero.",
    ),
    field(
        "appwrapper.wrappedKinds",
        TextList,
        Presence::Default(
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
        Presence::Default("[]"),
        "The kinds out of wrappedKinds that may be wrapped by an AppWrapper that has no valid stamp of the webhook: all of them while \
         webhooks.enabled is false, and those that were written while no webhook was asked. Nobody knows who wrote them, so nobody \
         can ask whether that user may create what they wrap: everybody who may create an AppWrapper may create these.",
    ),
    field(
        "appwrapper.resetWhenNodeUnreachable",
        Bool,
        Presence::Default("true"),
        "Also call a workload unhealthy while it has pods on a node that the control plane has lost (taint \
         node.kubernetes.io/unreachable, or Ready is Unknown) and whose kubelet does not renew its Lease. It is reset if that lasts \
         for failureGracePeriod. With false, as in CodeFlare's controller, its pods must be evicted first.",
    ),
    field(
        "appwrapper.resetWhenNodeForceEvicted",
        Bool,
        Presence::Default("false"),
        "Also reset a workload at once if it has pods on a node that is out of service or force evicted (taint \
         node.kubernetes.io/out-of-service or salvor.dev/force-eviction): its machine is off.",
    ),
    field(
        "appwrapper.countLostNodes",
        Bool,
        Presence::Default("false"),
        "Count a reset towards retryLimit although its cause is NodeLost. By default a lost node costs a workload no retry.",
    ),
    field(
        "appwrapper.countResetsAsUpstream",
        Bool,
        Presence::Default("false"),
        "Count resets as CodeFlare's controller does. By default a reset does not count towards retryLimit if its cause lies \
         outside the workload: an evacuation by Autopilot, a lost node, or pods for which no node had room. With true the latter two count, and \
         an evacuation with no retry left fails the workload.",
    ),
];

pub(super) fn check(appwrapper: &AppWrapperSettings, found: &mut Found) {
    for problem in appwrapper.problems() {
        found.add(problem);
    }
}

impl AppWrapperSettings {
    /// The kinds that may be wrapped. Parsing the file already refused invalid entries.
    pub fn kinds(&self) -> Vec<WrappedKind> {
        self.wrapped_kinds.iter().filter_map(|entry| entry.parse().ok()).collect()
    }

    /// The kinds that may be wrapped where no webhook checks the user's rights.
    pub fn kinds_without_webhooks(&self) -> Vec<WrappedKind> {
        self.wrapped_kinds_without_webhooks.iter().filter_map(|entry| entry.parse().ok()).collect()
    }

    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.fault_tolerance.problems();
        problems.extend(self.autopilot.problems());
        problems.extend(self.kind_problems());
        if let Some(defect) = value_defect(&self.default_queue_name) {
            problems.push(Problem::new(Path::of("appwrapper.defaultQueueName"), defect));
        }
        if !self.scheduler_name.is_empty() && !is_dns_subdomain(&self.scheduler_name) {
            let message = format!(
                "{:?} cannot name a scheduler: use lower-case letters, digits, '-' and '.'",
                self.scheduler_name
            );
            problems.push(Problem::new(Path::of("appwrapper.schedulerName"), message));
        }
        problems
    }

    fn kind_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut wrapped: Vec<WrappedKind> = Vec::new();
        for (index, entry) in self.wrapped_kinds.iter().enumerate() {
            let path = Path::of("appwrapper.wrappedKinds").index(index);
            match entry.parse::<WrappedKind>() {
                Err(error) => problems.push(Problem::new(path, error.to_string())),
                Ok(kind) => {
                    if let Some(why) = never_wrapped(&kind) {
                        problems.push(Problem::new(path, format!("{entry:?} cannot be wrapped: {why}")));
                    } else if wrapped.iter().any(|other| other.is(&kind.group, &kind.kind)) {
                        problems.push(Problem::new(path, format!("{entry:?} is there twice: remove one")));
                    }
                    wrapped.push(kind);
                }
            }
        }
        for (index, entry) in self.wrapped_kinds_without_webhooks.iter().enumerate() {
            let path = Path::of("appwrapper.wrappedKindsWithoutWebhooks").index(index);
            match entry.parse::<WrappedKind>() {
                Err(error) => problems.push(Problem::new(path, error.to_string())),
                Ok(kind) if !wrapped.contains(&kind) => {
                    let message = format!("{entry:?} is not among wrappedKinds: add it there, too");
                    problems.push(Problem::new(path, message));
                }
                Ok(_) => {}
            }
        }
        problems
    }
}

/// Why a kind can never be wrapped, whatever the configuration says.
fn never_wrapped(kind: &WrappedKind) -> Option<&'static str> {
    match kind.group.as_str() {
        names::appwrapper::GROUP => Some("AppWrappers are not nested"),
        // Kubernetes only lets subjects grant rights that they have. Here Salvor would be that subject, not the user.
        "rbac.authorization.k8s.io" => Some("users could give themselves the rights that Salvor has"),
        "admissionregistration.k8s.io" => Some("users could see and change the requests of everybody"),
        _ => None,
    }
}

impl AutopilotSettings {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let weight = self.prefer_no_schedule_weight;
        if !(1..=100).contains(&weight) {
            let path = Path::of("appwrapper.autopilot.preferNoScheduleWeight");
            problems.push(Problem::new(path, format!("{weight} is no weight: set it from 1 to 100")));
        }
        for (resource, taints) in &self.resource_taints {
            let path = Path::of("appwrapper.autopilot.resourceTaints").key(resource);
            if key_defect(resource).is_some() {
                let message =
                    format!("{resource:?} cannot name a resource: write one such as nvidia.com/gpu or cpu");
                problems.push(Problem::new(path.clone(), message));
            }
            for (index, taint) in taints.iter().enumerate() {
                let path = path.index(index);
                if let Some(defect) = key_defect(&taint.key) {
                    problems.push(Problem::new(path.field("key"), defect));
                }
                if let Some(defect) = value_defect(&taint.value) {
                    problems.push(Problem::new(path.field("value"), defect));
                }
            }
        }
        problems
    }
}

impl FaultTolerance {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut note = |name: &str, message: String| {
            problems.push(Problem::new(Path::of("appwrapper.faultTolerance").field(name), message));
        };
        let ceiling = self.grace_period_ceiling;
        let periods = [
            ("admissionGracePeriod", self.admission_grace_period),
            ("warmupGracePeriod", self.warmup_grace_period),
            ("failureGracePeriod", self.failure_grace_period),
            ("resetPause", self.reset_pause),
            ("deletionGracePeriod", self.deletion_grace_period),
        ];
        for (name, period) in periods {
            if period.is_negative() {
                note(name, format!("{period} must not be negative"));
            }
            if period > ceiling {
                note(name, format!("{period} must be at most gracePeriodCeiling, which is {ceiling}"));
            }
        }
        let (admission, warmup) = (self.admission_grace_period, self.warmup_grace_period);
        if admission > warmup {
            let message = format!("{admission} must be at most warmupGracePeriod, which is {warmup}");
            note("admissionGracePeriod", message);
        }
        let ttl = self.success_ttl_ceiling;
        if ttl <= GoDuration::ZERO {
            note("successTTLCeiling", format!("{ttl} must be more than 0s"));
        }
        if i32::try_from(self.retry_limit).is_err() {
            note("retryLimit", format!("{} is too large: set it from 0 to {}", self.retry_limit, i32::MAX));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_with_their_usual_plural() {
        let cases = [
            ("Pod", "", "pods"),
            ("Job.batch", "batch", "jobs"),
            ("NetworkPolicy.networking.k8s.io", "networking.k8s.io", "networkpolicies"),
            ("Gateway.gateway.networking.k8s.io", "gateway.networking.k8s.io", "gateways"),
            ("Ingress.networking.k8s.io", "networking.k8s.io", "ingresses"),
            ("Foo.example.com:foozen", "example.com", "foozen"),
        ];
        for (text, group, plural) in cases {
            let kind: WrappedKind = text.parse().unwrap();
            assert_eq!((kind.group.as_str(), kind.plural.as_str()), (group, plural), "{text}");
            assert_eq!(kind.to_string(), text);
        }
        let bad =
            ["", "pod", "batch/v1", "Job.", "Job.batch:", "Job.batch:a/b", "Job.Batch", "Job batch", "*"];
        for text in bad {
            let error = text.parse::<WrappedKind>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} is not a kind: write Kind.group")), "{error}");
        }
    }

    #[test]
    fn every_default_kind_is_a_kind() {
        let settings = AppWrapperSettings::default();
        assert_eq!(settings.kinds().len(), WRAPPED_KINDS.len());
        let plurals: Vec<_> = settings.kinds().into_iter().map(|kind| kind.plural).collect();
        assert_eq!(
            plurals,
            [
                "pods",
                "services",
                "deployments",
                "statefulsets",
                "jobs",
                "podgroups",
                "podgroups",
                "pytorchjobs",
                "rayclusters",
                "rayjobs",
                "jobsets"
            ]
        );
    }
}
