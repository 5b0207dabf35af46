//! Finds workloads that opted in although their nodes, policies or settings make the consent ineffective.

use std::collections::BTreeMap;

use salvor_api::{
    Controller, Labels,
    config::{Configuration, FailureRecoveryRule},
    names::{annotations, appwrapper, job, taints},
};
use salvor_operator::recoveries;
use salvor_recovery::zombie::{AskedWait, ConsentAnnotations, ConsentSource, ZombiePolicy};
use serde_json::Value;

use super::finding::{Check, Finding, Severity, count, some_of};
use super::nodes::Node;

/// The annotations that express an owner's consent.
const CONSENTS: [&str; 2] =
    [annotations::SAFE_TO_FORCEFULLY_TERMINATE, annotations::SAFE_TO_FORCEFULLY_DELETE];
/// Marks the mirror pod of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Problems of workloads that opted in: the names of the workloads, by problem.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Pods with a consent annotation.
    annotated: Vec<String>,
    /// Pods whose annotation has a value other than `true`.
    other_value: Vec<String>,
    /// Pods with consent that Kubernetes never deletes when their node is lost.
    stay: Vec<String>,
    /// Pods of StatefulSets that consent only to being marked `Failed`.
    keep_their_name: Vec<String>,
    /// Pods with an invalid termination grace annotation.
    unreadable_wait: Vec<String>,
    mirrors: Vec<String>,
    /// Workloads with the annotation on the workload itself, where nothing reads it, instead of in the pod template.
    on_the_workload: Vec<String>,
    /// Jobs for Salvor to run.
    jobs: Vec<String>,
    /// AppWrappers that name Salvor's controller or none.
    app_wrappers: Vec<String>,
    /// The number of pods that each rule's selector matches.
    pub(super) pods_of_rule: Vec<usize>,
}

impl Seen {
    pub(super) fn new(configuration: &Configuration) -> Self {
        Self { pods_of_rule: vec![0; configuration.failure_recovery_policy.rules.len()], ..Self::default() }
    }

    pub(super) fn pod(&mut self, pod: &Value, configuration: &Configuration, policy: &ZombiePolicy) {
        let labels: Labels = texts(&pod["metadata"]["labels"]).into_iter().collect();
        for (number, rule) in self.pods_of_rule.iter_mut().zip(&configuration.failure_recovery_policy.rules) {
            if let FailureRecoveryRule::TerminatePod(rule) = rule {
                *number += usize::from(rule.pod_label_selector.matches(&labels));
            }
        }
        let own = texts(&pod["metadata"]["annotations"]);
        let marks = ConsentAnnotations::from_annotations(&own);
        let has_ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let name = place(pod);
        let says_no = |key: &&str| own.get(*key).is_some_and(|value| value != annotations::CONSENT);
        let consent = policy.consent(&marks, &labels);
        if consent.is_none() && CONSENTS.iter().any(says_no) {
            self.other_value.push(name.clone());
        }
        let Some(consent) = consent.filter(|_| !has_ended) else { return };
        if own.contains_key(MIRROR) {
            self.mirrors.push(name);
            return;
        }
        if let ConsentSource::Annotation(_) = consent.source {
            self.annotated.push(name.clone());
            if let AskedWait::Unreadable { .. } = marks.wait {
                self.unreadable_wait.push(name.clone());
            }
            let owners = pod["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            let is_stateful = owners.into_iter().any(|owner| owner["kind"] == "StatefulSet");
            if is_stateful && marks.delete.as_deref() != Some(annotations::CONSENT) {
                self.keep_their_name.push(name.clone());
            }
        }
        if stays(pod) {
            self.stay.push(name);
        }
    }

    pub(super) fn workload(&mut self, kind: &str, workload: &Value) {
        let has = |annotated: &Value| CONSENTS.iter().any(|key| annotated["annotations"].get(key).is_some());
        let templates = ["/spec/template/metadata", "/spec/jobTemplate/spec/template/metadata"];
        let in_template = templates.iter().filter_map(|path| workload.pointer(path)).any(has);
        if has(&workload["metadata"]) && !in_template {
            self.on_the_workload.push(format!("{kind} {}", place(workload)));
        }
        let is_over =
            |it: &Value| it["status"] == "True" && (it["type"] == "Complete" || it["type"] == "Failed");
        let over = workload["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(is_over));
        if workload["spec"]["managedBy"] == job::CONTROLLER_NAME && !over {
            self.jobs.push(place(workload));
        }
    }

    pub(super) fn app_wrapper(&mut self, wrapper: &Value) {
        let managed_by = wrapper["spec"]["managedBy"].as_str();
        if managed_by.is_none_or(|by| by == appwrapper::CONTROLLER_NAME) {
            self.app_wrappers.push(place(wrapper));
        }
    }
}

fn place(object: &Value) -> String {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

fn texts(map: &Value) -> BTreeMap<String, String> {
    let entries = map.as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Whether taint eviction never deletes a pod of a lost node, because the pod tolerates the taint forever.
fn stays(pod: &Value) -> bool {
    let tolerates = |toleration: &&Value| {
        let text = |key: &str| toleration[key].as_str().unwrap_or_default();
        let any_value = text("operator") == "Exists";
        let key = text("key") == taints::UNREACHABLE || (text("key").is_empty() && any_value);
        key && matches!(text("effect"), "" | taints::NO_EXECUTE) && (any_value || text("value").is_empty())
    };
    let tolerations: Vec<&Value> =
        pod["spec"]["tolerations"].as_array().into_iter().flatten().filter(tolerates).collect();
    // The shortest toleration wins. One without seconds lasts forever.
    !tolerations.is_empty() && tolerations.iter().all(|toleration| toleration["tolerationSeconds"].is_null())
}

pub(super) fn check(seen: &Seen, nodes: Option<&[Node]>, configuration: &Configuration) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |what: String, why: &str, fix: &str| {
        findings.push(Finding::new(Severity::Warning, Check::Consents, what, why, fix));
    };
    let off = |controller: Controller| {
        let entry = recoveries().find(|entry| entry.controller == controller)?;
        entry.off(configuration).map(|off| off.to_string())
    };
    let pods = |names: &[String]| format!("{} ({})", count(names.len(), "pod"), some_of(names));
    if let Some(off) = off(Controller::Zombie) {
        if !seen.annotated.is_empty() {
            add(
                format!("{} consent by annotation, and zombie recovery is off: {off}", pods(&seen.annotated)),
                "their owners rely on a recovery that nobody does",
                "Switch it on, or tell the owners",
            );
        }
    } else {
        if !seen.stay.is_empty() {
            add(
                format!("{} consent, and tolerate {} for ever", pods(&seen.stay), taints::UNREACHABLE),
                "Kubernetes never deletes them when their node is lost, and zombie recovery acts on pods that are being deleted",
                "Give that toleration tolerationSeconds, or leave it out",
            );
        }
        if !seen.keep_their_name.is_empty() {
            add(
                format!(
                    "{} of StatefulSets consent with {} alone",
                    pods(&seen.keep_their_name),
                    annotations::SAFE_TO_FORCEFULLY_TERMINATE
                ),
                "a pod that is Failed and not deleted keeps its name, so the StatefulSet makes no other",
                "If the work may be started anew elsewhere, use kueue.x-k8s.io/safe-to-forcefully-delete",
            );
        }
        if !seen.unreadable_wait.is_empty() {
            add(
                format!(
                    "{} have a value of {} that is no duration",
                    pods(&seen.unreadable_wait),
                    annotations::TERMINATION_GRACE_AFTER
                ),
                "failureRecoveryPolicy.annotatedPods counts in its place",
                "Write a duration such as 30s or 1m30s",
            );
        }
        if !seen.mirrors.is_empty() {
            add(
                format!("{} consent, and are static pods", pods(&seen.mirrors)),
                "their kubelet makes them from a file, and nobody else starts them elsewhere",
                "Remove the annotation or label",
            );
        }
    }
    if !seen.other_value.is_empty() {
        add(
            format!(
                "{} have an annotation of consent with another value than \"true\"",
                pods(&seen.other_value)
            ),
            "they have not consented: only that exact value does",
            "Write \"true\", or remove the annotation",
        );
    }
    if !seen.on_the_workload.is_empty() {
        let names = &seen.on_the_workload;
        add(
            format!(
                "{} have the annotation of consent in their own metadata: {}",
                count(names.len(), "workload"),
                some_of(names)
            ),
            "pods consent, and these pods have no such annotation",
            "Put it into the pod template: spec.template.metadata.annotations",
        );
    }
    if let Some(off) = off(Controller::Job).filter(|_| !seen.jobs.is_empty()) {
        add(
            format!(
                "{} ({}) name {} in spec.managedBy, and the job recovery is off: {off}",
                count(seen.jobs.len(), "Job"),
                some_of(&seen.jobs),
                job::CONTROLLER_NAME
            ),
            "nobody runs them: the built-in controller leaves them alone",
            "Add job to controllers, or create them again without managedBy",
        );
    }
    if let Some(off) = off(Controller::AppWrapper).filter(|_| !seen.app_wrappers.is_empty()) {
        add(
            format!(
                "there are {} ({}), and the appwrapper recovery is off: {off}",
                count(seen.app_wrappers.len(), "AppWrapper"),
                some_of(&seen.app_wrappers)
            ),
            "nobody runs them, unless CodeFlare's own controller does",
            "Add appwrapper to controllers, if that controller does not run",
        );
    }
    if let Some(off) = off(Controller::Eviction) {
        let is_asked = |node: &&Node| node.taints.iter().any(|key| key == taints::FORCE_EVICTION);
        let asked: Vec<&str> =
            nodes.into_iter().flatten().filter(is_asked).map(|node| node.name.as_str()).collect();
        if !asked.is_empty() {
            add(
                format!(
                    "{} ({}) have the taint {}, and the eviction recovery is off: {off}",
                    count(asked.len(), "node"),
                    some_of(&asked),
                    taints::FORCE_EVICTION
                ),
                "somebody waits for an eviction that nobody does",
                "Add eviction to controllers, or remove the taint",
            );
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn configuration(rest: &str) -> Configuration {
        let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
        salvor_api::config::parse(&format!("{head}{rest}\n")).unwrap()
    }

    fn on() -> Configuration {
        configuration("featureGates: {FailureRecoveryPolicy: true}")
    }

    #[allow(clippy::needless_pass_by_value, reason = "calls read better")]
    fn pod(annotations: Value, tolerations: Value, owner: &str) -> Value {
        json!({
            "metadata": {"namespace": "ns", "name": "p", "annotations": annotations, "ownerReferences": [{"kind": owner}]},
            "spec": {"tolerations": tolerations},
        })
    }

    fn whats(seen: &Seen, configuration: &Configuration) -> Vec<String> {
        check(seen, None, configuration).into_iter().map(|finding| finding.what).collect()
    }

    fn of_pod(pod: &Value, configuration: &Configuration) -> Vec<String> {
        let mut seen = Seen::new(configuration);
        seen.pod(pod, configuration, &ZombiePolicy::new(configuration));
        whats(&seen, configuration)
    }

    #[test]
    fn a_pod_that_kubernetes_never_deletes_cannot_be_recovered() {
        let yes = json!({"kueue.x-k8s.io/safe-to-forcefully-delete": "true"});
        let with = |tolerations: Value| of_pod(&pod(yes.clone(), tolerations, "Job"), &on()).len();
        let for_a_time = json!({"key": taints::UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
        assert_eq!(with(json!([for_a_time])), 0);
        assert_eq!(with(json!([{"operator": "Exists"}, for_a_time])), 0);
        assert_eq!(with(json!([{"operator": "Exists"}])), 1);
        assert_eq!(with(json!([{"key": taints::UNREACHABLE, "operator": "Exists"}])), 1);
        assert_eq!(
            with(json!([{"key": taints::UNREACHABLE, "operator": "Exists", "effect": "NoSchedule"}])),
            0
        );
        assert_eq!(with(json!([{"key": taints::UNREACHABLE, "value": "x"}])), 0);
        assert_eq!(with(json!([])), 0);
    }

    #[test]
    fn consent_is_exact_and_needs_somebody_who_heeds_it() {
        let annotated = |key: &str, value: &str, owner: &str| pod(json!({key: value}), json!([]), owner);
        let terminate = annotations::SAFE_TO_FORCEFULLY_TERMINATE;
        let cases = [
            (annotated(terminate, "true", "Job"), on(), None),
            (annotated(terminate, "True", "Job"), on(), Some("another value")),
            (annotated(terminate, "true", "StatefulSet"), on(), Some("StatefulSets")),
            (annotated(terminate, "true", "Job"), Configuration::default(), Some("zombie recovery is off")),
            (pod(json!({}), json!([{"operator": "Exists"}]), "DaemonSet"), on(), None),
        ];
        for (pod, configuration, expected) in cases {
            let found = of_pod(&pod, &configuration);
            match expected {
                None => assert_eq!(found, Vec::<String>::new()),
                Some(words) => assert!(found.len() == 1 && found[0].contains(words), "{found:?}"),
            }
        }
    }

    #[test]
    fn an_annotation_belongs_into_the_template_and_a_job_needs_its_controller() {
        let key = annotations::SAFE_TO_FORCEFULLY_TERMINATE;
        let mut seen = Seen::default();
        seen.workload(
            "Deployment",
            &json!({"metadata": {"name": "a", "annotations": {key: "true"}}, "spec": {"template": {}}}),
        );
        seen.workload("Deployment", &json!({"metadata": {"name": "b", "annotations": {key: "true"}}, "spec": {"template": {"metadata": {"annotations": {key: "true"}}}}}));
        seen.workload(
            "Job",
            &json!({"metadata": {"name": "c"}, "spec": {"managedBy": job::CONTROLLER_NAME}}),
        );
        let found = whats(&seen, &configuration("controllers: [eviction]"));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("Deployment /a") && !found[0].contains("/b"), "{found:?}");
        assert!(found[1].contains("job recovery is off"), "{found:?}");
    }
}
