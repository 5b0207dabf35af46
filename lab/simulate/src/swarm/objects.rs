//! The objects of a plan.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Pod},
};
use kube::api::DynamicObject;
use salvor_api::config::{ConfigError, Configuration};
use salvor_api::names::job::CONTROLLER_NAME;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::plan::{Consent, JobPlan, Plan, PodPlan, UnownedPolicy, Wrapped};

/// A leader stops after this many seconds without a renewal. Renewals are most of the events in a run, so they are
/// rare.
pub(super) const RENEW_DEADLINE: i64 = 20;
/// The namespace of the Lease of the leader election.
pub(super) const HOME: &str = "salvor-system";
/// The condition that agents write on unhealthy nodes.
pub(super) const SICK: &str = "BadNode";

fn typed<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("a plan describes objects that Kubernetes knows")
}

fn template(pod: &PodPlan, script: Value) -> Value {
    let mut annotations = script;
    match pod.consent {
        Consent::None => {}
        Consent::Terminate => annotations["kueue.x-k8s.io/safe-to-forcefully-terminate"] = "true".into(),
        Consent::Delete => annotations["kueue.x-k8s.io/safe-to-forcefully-delete"] = "true".into(),
    }
    let tolerated = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": pod.tolerates});
    json!({
        "metadata": {"annotations": annotations},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": pod.grace,
            "containers": [{"name": "main", "image": "work", "resources": {"requests": {"cpu": "1"}}}],
            "tolerations": [tolerated("node.kubernetes.io/unreachable"), tolerated("node.kubernetes.io/not-ready")],
        },
    })
}

/// A bare pod, which runs until it is deleted.
pub(super) fn pod(name: &str, plan: &PodPlan) -> Pod {
    let mut pod = template(plan, json!({}));
    pod["metadata"]["name"] = name.into();
    typed(pod)
}

fn job_spec(plan: &JobPlan) -> Value {
    let script = json!({
        "sim.salvor.dev/run-for": format!("{}s", plan.takes), "sim.salvor.dev/fail-first": plan.fails.to_string(),
    });
    json!({
        "managedBy": CONTROLLER_NAME,
        "completions": plan.completions, "parallelism": plan.parallelism, "backoffLimit": 30,
        "completionMode": if plan.indexed { "Indexed" } else { "NonIndexed" },
        "podReplacementPolicy": if plan.waits_for_the_end { "Failed" } else { "TerminatingOrFailed" },
        "template": template(&plan.pod, script),
    })
}

pub(super) fn job(name: &str, plan: &JobPlan) -> Job {
    typed(json!({"metadata": {"name": name}, "spec": job_spec(plan)}))
}

/// A StatefulSet with a volume for each pod.
pub(super) fn stateful_set(name: &str, replicas: usize) -> StatefulSet {
    typed(stateful_set_value(name, replicas))
}

fn stateful_set_value(name: &str, replicas: usize) -> Value {
    let mut pod = template(&PodPlan { consent: Consent::None, grace: 10, tolerates: 30 }, json!({}));
    pod["metadata"]["labels"] = json!({"app": name});
    pod["spec"]["restartPolicy"] = "Always".into();
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "serviceName": name, "selector": {"matchLabels": {"app": name}},
            "template": pod,
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": salvor_cluster::STORAGE,
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }],
        },
    })
}

fn wrapped(name: &str, what: Wrapped) -> Value {
    match what {
        Wrapped::Job => wrapped_job(name),
        Wrapped::StatefulSet => stateful_set_value(&format!("{name}-db"), 1),
        Wrapped::LeaderWorkerSet => {
            let mut set = stateful_set_value(&format!("{name}-group"), 1);
            let spec = &mut set["spec"];
            spec.as_object_mut().expect("a spec").remove("volumeClaimTemplates");
            spec["template"]["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/name"] = name.into();
            spec["template"]["spec"]["containers"][0]
                .as_object_mut()
                .expect("a container")
                .remove("volumeMounts");
            set
        }
        Wrapped::Pod => {
            let mut pod = template(&PodPlan { consent: Consent::None, grace: 10, tolerates: 30 }, json!({}));
            pod["apiVersion"] = "v1".into();
            pod["kind"] = "Pod".into();
            pod["metadata"]["name"] = format!("{name}-pod").into();
            pod["spec"]["volumes"] =
                json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim_name(name)}}]);
            pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
            pod
        }
    }
}

fn claim_name(app: &str) -> String {
    format!("{app}-data")
}

/// The PersistentVolumeClaim of an AppWrapper's bare pod.
pub(super) fn claim(app: &str) -> PersistentVolumeClaim {
    typed(json!({
        "metadata": {"name": claim_name(app)},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": salvor_cluster::STORAGE,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }))
}

fn wrapped_job(name: &str) -> Value {
    let pod = PodPlan { consent: Consent::Delete, grace: 5, tolerates: 20 };
    let job = JobPlan {
        pod,
        indexed: true,
        completions: 2,
        parallelism: 2,
        waits_for_the_end: true,
        takes: 240,
        fails: 0,
    };
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": format!("{name}-train")}, "spec": job_spec(&job),
    })
}

pub(super) fn app(name: &str, what: Wrapped) -> DynamicObject {
    typed(json!({
        "apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "metadata": {"name": name},
        "spec": {"suspend": false, "components": [{"template": wrapped(name, what)}]},
    }))
}

/// The policy of the nodes with NodeClaims.
pub(super) fn policy(plan: &Plan) -> DynamicObject {
    let toleration = format!("{}s", plan.settings.toleration);
    typed(json!({
        "apiVersion": "salvor.dev/v1alpha1", "kind": "NodeRepairPolicy", "metadata": {"name": "gpu"},
        "spec": {
            "nodeSelector": {"matchLabels": {"karpenter.sh/nodepool": "gpu"}},
            "policies": [{"conditionType": SICK, "conditionStatus": "False", "toleration": toleration}],
            "unhealthyLimit": "100%", "budgets": [{"nodes": plan.settings.budget}],
        },
    }))
}

/// The policy of the nodes without an owner: those that the control plane has lost are unhealthy.
pub(super) fn unowned_policy(plan: &Plan, policy: UnownedPolicy) -> DynamicObject {
    let toleration = format!("{}s", plan.settings.toleration);
    let mut spec = json!({
        "nodeSelector": {"matchLabels": {"pool": "batch"}},
        "policies": [{"conditionType": "Ready", "conditionStatus": "Unknown", "toleration": toleration}],
        "unhealthyLimit": "100%", "budgets": [{"nodes": plan.settings.budget}],
        "unownedNodes": if policy.deletes { "DeleteNode" } else { "Drain" },
    });
    if policy.graceful {
        spec["termination"] = "Graceful".into();
        spec["gracePeriod"] = "60s".into();
    }
    typed(json!({
        "apiVersion": "salvor.dev/v1alpha1", "kind": "NodeRepairPolicy", "metadata": {"name": "plain"}, "spec": spec,
    }))
}

/// The configuration of a plan.
///
/// # Errors
/// If it is invalid: then the plan is wrong.
pub(super) fn configuration(plan: &Plan, dry_run: bool) -> Result<Configuration, ConfigError> {
    let settings = &plan.settings;
    let mut controllers = vec!["job"];
    controllers.extend(settings.zombie.then_some("zombie"));
    controllers.extend(settings.eviction.then_some("eviction"));
    controllers.extend(settings.repair.then_some("repair"));
    controllers.extend((plan.workloads.apps > 0).then_some("appwrapper"));
    let rules = settings.out_of_service.map(|after| {
        format!("{{taintNodeOutOfService: {{nodeSelector: {{matchLabels: {{pool: batch}}}}, unreachableNodeTimeout: {after}s}}}}")
    });
    salvor_api::config::parse(&format!(
        "apiVersion: config.salvor.dev/v1alpha1
kind: Configuration
featureGates: {{FailureRecoveryPolicy: true}}
controllers: [{}]
dryRun: {dry_run}
concurrency: {{writes: {}}}
brake: {{maxPodsPerMinute: {}}}
failureRecoveryPolicy: {{rules: [{}]}}
webhooks: {{enabled: false}}
leaderElection: {{leaseDuration: 30s, renewDeadline: {RENEW_DEADLINE}s, retryPeriod: 8s}}
appwrapper: {{wrappedKindsWithoutWebhooks: [Job.batch, Pod, StatefulSet.apps]}}
repair: {{outageTimeout: 5m}}
",
        controllers.join(", "),
        settings.writes,
        settings.pods_per_minute,
        rules.unwrap_or_default(),
    ))
}
