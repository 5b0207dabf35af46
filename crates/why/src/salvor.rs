//! What Salvor does with a pod of a lost node, and how to start it or switch a recovery on.

use std::net::SocketAddr;

use jiff::Timestamp;
use salvor_api::{
    Controller, Gate,
    config::Configuration,
    names::{
        configuration,
        reasons::{JOB_UNREADABLE, JOB_WOULD_FAIL},
    },
};
use salvor_operator::{Next, PodObjects, gives_up_without_deletion, pod_verdict, why_off};
use serde_json::Value;

use crate::{
    answer::{Object, Remedy},
    code::Code,
    diagnosis::{Consent, Finding, Rules},
    json::{controller, entry, is_terminating, job_of, named, namespace, number, text, time},
    kinds::{CONFIG_MAP, DEPLOYMENT, JOB, LEASE},
    presence::{NAME, Presence},
    world::Seen,
};

/// The label and annotations that Helm sets on the objects of a release.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const HELM_RELEASE: &str = "meta.helm.sh/release-name";
const HELM_NAMESPACE: &str = "meta.helm.sh/release-namespace";
/// JobSet sets this label on its pods.
const JOB_SET_NAME: &str = "jobset.sigs.k8s.io/jobset-name";
/// The namespace of the kubelets' Leases.
pub(crate) const NODE_LEASES: &str = "kube-node-lease";

impl Rules<'_> {
    /// True if Salvor is installed and gives this pod up when its node is lost, although nothing deletes it.
    pub(crate) fn is_given_up(&self, pod: &Value) -> bool {
        match self.judge.presence(self.world) {
            Presence::Here(installed) => {
                gives_up_without_deletion(&pod.to_string(), &installed.configuration).unwrap_or(false)
            }
            Presence::Absent | Presence::Unknown => false,
        }
    }

    /// A pod on a lost node that is terminating, or given up without that: what Salvor does with it, if it is installed.
    pub(crate) fn stuck(&self, pod: &Value, node: &Value, since: Option<Timestamp>) -> Finding {
        let object = named("Node", node);
        let on = &object.name;
        let silent = silent(on, since);
        let found = |code, message: String| Finding::new(code, object.clone(), message).since(since);
        let installed = match self.judge.presence(self.world) {
            Presence::Here(installed) => installed,
            Presence::Absent => {
                return found(
                    Code::NodeLost,
                    format!("{silent}; Salvor does not run here, and nobody else may end what was on it"),
                );
            }
            Presence::Unknown => {
                return found(Code::NodeLost, format!("{silent}; whether Salvor runs here cannot be seen"));
            }
        };
        let lease = self.world.get(&LEASE, NODE_LEASES, on).here().map(Value::to_string);
        let (pod_text, node_text) = (pod.to_string(), node.to_string());
        let seen = PodObjects {
            pod: &pod_text,
            node: Some(&node_text),
            node_lease: lease.as_deref(),
            election: installed.lease.as_ref(),
        };
        let pod_verdict = match pod_verdict(seen, &installed.configuration, self.world.now) {
            Ok(pod_verdict) => pod_verdict,
            Err(error) => {
                self.world.miss("the verdict of zombie recovery", error.to_string());
                return found(Code::NodeLost, silent);
            }
        };
        let me = named("Pod", pod);
        if let Some(why) = pod_verdict.without_consent {
            let and = match (&pod_verdict.off, installed.no_leader) {
                (Some(off), _) => {
                    format!(" Consent alone recovers nothing here: zombie recovery is off ({off}).")
                }
                (None, true) => {
                    " Consent alone recovers nothing here: no replica of Salvor leads.".to_owned()
                }
                (None, false) => String::new(),
            };
            let message = format!("{silent}; {why}{and}");
            return found(Code::NotOptedIn, message).lacking(me, self.consent_for(pod));
        }
        if installed.no_leader {
            return found(Code::NobodyLeads, format!("{silent}; no replica of Salvor leads"))
                .remedy(self.start_a_replica(&installed.configuration));
        }
        if let Some(off) = pod_verdict.off {
            let remedy = self.switch_on(&installed.configuration, Controller::Zombie);
            return found(Code::RecoveryOff, format!("{silent}; zombie recovery is off: {off}"))
                .remedy(remedy);
        }
        match pod_verdict.next {
            Next::Waits(until) => found(Code::GraceRunning, format!("{silent}; {}", pod_verdict.message))
                .until(Some(until))
                .advice(format!("Nothing needs to be done: Salvor looks at it again at {until}")),
            Next::Acts => match self.waits_for_job(pod) {
                Some(why) => found(Code::NodeLost, format!("{silent}; {why}")).advice(
                    "Bring the node back, or give its Job room for the failure: a podFailurePolicy that ignores \
                     DisruptionTarget, or failureRecoveryPolicy.jobs.lostPods: Count",
                ),
                None => found(Code::GraceRunning, format!("{silent}; the wait is over, and Salvor acts now"))
                    .until(Some(self.world.now))
                    .advice("Nothing needs to be done: Salvor acts now"),
            },
            Next::Held { until, paused, outage } => {
                let held = found(Code::BrakeHolds, format!("{silent}; {}", pod_verdict.message)).until(until);
                if paused {
                    return held.remedy(Remedy::command("Let Salvor go on", "salvor resume"));
                }
                let held = match until {
                    Some(until) => {
                        held.advice(format!("Nothing needs to be done: there is room again at {until}"))
                    }
                    None => held.advice(
                        "Bring the lost nodes back: the brake lets go by itself when few enough are lost",
                    ),
                };
                if !outage || !installed.configuration.controllers.enabled(Controller::Eviction) {
                    return held;
                }
                held.remedy(Remedy::command(
                    format!("If the machine of {on} is off for sure (else its work may run twice), empty the node all the same"),
                    format!("salvor evict {on} --despite-zone-outage --yes"),
                ))
            }
            Next::Done => {
                found(Code::NotOptedIn, format!("{silent}; {}", pod_verdict.message)).lacking(me, Consent::Delete)
            }
            Next::Nothing => found(Code::NodeLost, format!("{silent}; {}", pod_verdict.message)),
        }
    }

    /// What Salvor has recorded about a pod that it does not mark, because its Job would fail or cannot be read. The Job's other
    /// pods decide that too, so the event is read instead of the rules.
    pub(crate) fn waits_for_job(&self, pod: &Value) -> Option<&str> {
        job_of(pod)?;
        let events = self.world.events(namespace(pod), text(pod, "/metadata/uid"))?;
        let of_job = |event: &&Value| [JOB_WOULD_FAIL, JOB_UNREADABLE].contains(&text(event, "/reason"));
        events.into_iter().rfind(of_job).map(|event| text(event, "/message"))
    }

    /// What the owner of a stuck pod has to consent to. A Job that is not being deleted replaces a Failed pod. All
    /// other owners need the name of the pod, or are deleted in the foreground, as a JobSet deletes its Jobs.
    fn consent_for(&self, pod: &Value) -> Consent {
        let Some(job) = job_of(pod) else { return Consent::Delete };
        if entry(pod, "/metadata/labels", JOB_SET_NAME).is_some() {
            return Consent::Delete;
        }
        match self.world.get(&JOB, namespace(pod), job) {
            Seen::Here(job) if is_terminating(job) || controller(job).is_some() => Consent::Delete,
            Seen::Here(_) | Seen::Absent | Seen::Unknown => Consent::Terminate,
        }
    }

    /// What else is needed for a consent to have an effect.
    pub(crate) fn needed_beside_consent(&self) -> Vec<Remedy> {
        let Presence::Here(installed) = self.judge.presence(self.world) else { return Vec::new() };
        let mut needed = Vec::new();
        if why_off(&installed.configuration).is_some() {
            needed.push(self.switch_on(&installed.configuration, Controller::Zombie));
        }
        if installed.no_leader {
            needed.push(self.start_a_replica(&installed.configuration));
        }
        needed
    }

    /// How to start a replica in this installation.
    pub(crate) fn start_a_replica(&self, configuration: &Configuration) -> Remedy {
        let namespace = &configuration.leader_election.lease_namespace;
        match self.world.get(&DEPLOYMENT, namespace, NAME).here() {
            Some(deployment) if number(deployment, "/spec/replicas") == Some(0) => Remedy::command(
                "Start replicas of Salvor: its Deployment asks for none",
                format!("kubectl scale deployment/{NAME} -n {namespace} --replicas=2"),
            ),
            Some(_) => Remedy::command(
                "Look why the replicas of Salvor do not run",
                format!("salvor why deployment/{NAME} -n {namespace}"),
            ),
            None => Remedy::command(
                "Start a replica of Salvor where it ran, or install it",
                self.install(configuration, &[]),
            ),
        }
    }

    /// How to switch on a recovery in this installation.
    pub(crate) fn switch_on(&self, configuration: &Configuration, controller: Controller) -> Remedy {
        if let Some(release) = self.helm_release(configuration) {
            return switch_on_by_helm(&release, configuration, controller);
        }
        let mut changes = Vec::new();
        if !configuration.controllers.enabled(controller) {
            let enabled = Controller::ALL.iter().filter(|one| configuration.controllers.enabled(**one));
            let all: Vec<&str> = enabled.chain([&controller]).map(|one| one.name()).collect();
            changes.push(format!("--controllers={}", all.join(",")));
        }
        let gate = Gate::FailureRecoveryPolicy;
        if controller == Controller::Zombie && !configuration.feature_gates.enabled(gate) {
            changes.push(format!("--feature-gates={}=true", gate.name()));
        }
        if configuration.dry_run {
            changes.push("--dry-run=false".to_owned());
        }
        let namespace = &configuration.leader_election.lease_namespace;
        let text = match self.world.get(&DEPLOYMENT, namespace, NAME) {
            Seen::Here(_) | Seen::Unknown => "Switch the recovery on where Salvor is installed: its replicas are then replaced, with all other settings as they are".to_owned(),
            Seen::Absent => format!(
                "Switch the recovery on: start Salvor with {} where it runs, or install it in the cluster with its settings instead",
                changes.join(" ")
            ),
        };
        Remedy::command(text, self.install(configuration, &changes))
    }

    /// The Helm release that installed Salvor, if Helm did.
    fn helm_release(&self, configuration: &Configuration) -> Option<Release> {
        let namespace = &configuration.leader_election.lease_namespace;
        let ours = |kind| self.world.get(kind, namespace, NAME).here();
        let by_helm = |object: &&Value| entry(object, "/metadata/labels", MANAGED_BY) == Some("Helm");
        let object = [&DEPLOYMENT, &CONFIG_MAP].into_iter().filter_map(ours).find(by_helm)?;
        let noted = |key, otherwise: &str| {
            let noted = entry(object, "/metadata/annotations", key);
            noted.filter(|noted| noted.chars().all(is_plain)).unwrap_or(otherwise).to_owned()
        };
        Some(Release { name: noted(HELM_RELEASE, NAME), namespace: noted(HELM_NAMESPACE, namespace) })
    }

    /// The command that installs Salvor with these flags. It is based on the installed configuration, or else on the
    /// settings that the leader runs with.
    fn install(&self, configuration: &Configuration, flags: &[String]) -> String {
        let namespace = &configuration.leader_election.lease_namespace;
        let deployment = self.world.get(&DEPLOYMENT, namespace, NAME).here();
        let installed = match self.world.get(&CONFIG_MAP, namespace, NAME) {
            Seen::Here(_) => true,
            Seen::Absent => false,
            // Installations create both the Deployment and the ConfigMap.
            Seen::Unknown => deployment.is_some(),
        };
        let settings = if installed {
            format!("kubectl get configmap {NAME} -n {namespace} -o jsonpath='{{.data.config\\.yaml}}'")
        } else {
            // A single quote would end the shell's quoted string.
            format!("printf %s '{}'", settings(configuration).to_string().replace('\'', r"'\''"))
        };
        let mut manifests =
            format!("{settings} | salvor manifests --config=/dev/stdin --namespace={namespace}");
        let image = deployment.map_or("", |one| text(one, "/spec/template/spec/containers/0/image"));
        // The image name is user input, and becomes part of a shell command.
        if !image.is_empty() && image.chars().all(is_plain) {
            manifests.push_str(&format!(" --image={image}"));
        }
        for flag in flags {
            manifests.push_str(&format!(" {flag}"));
        }
        format!("{manifests} | kubectl apply -f -")
    }

    /// A node's silence begins with the last renewal of its Lease.
    pub(crate) fn silent_since(&self, node: &str) -> Option<Timestamp> {
        self.world.get(&LEASE, NODE_LEASES, node).here().and_then(|lease| time(lease, "/spec/renewTime"))
    }
}

struct Release {
    name: String,
    namespace: String,
}

/// Uses the chart's values. The next upgrade would undo any change made outside of Helm.
fn switch_on_by_helm(release: &Release, configuration: &Configuration, controller: Controller) -> Remedy {
    let Release { name, namespace } = release;
    // The chart enables the feature gate together with zombie recovery.
    let mut values = format!("--set recoveries.{}.enabled=true", controller.name());
    if configuration.dry_run {
        values.push_str(" --set dryRun=false --set config.dryRun=false");
    }
    Remedy::command(
        format!(
            "Switch the recovery on in the release {name} of Helm, by the chart that it was installed from: all other values stay as they are"
        ),
        format!("helm upgrade {name} charts/salvor -n {namespace} --reuse-values {values}"),
    )
}

/// The settings that differ from the defaults, plus the controllers, which an installation must name.
fn settings(configuration: &Configuration) -> Value {
    let value = |configuration: &Configuration| serde_json::to_value(configuration).unwrap_or_default();
    let mut settings = value(configuration);
    drop_defaults(&mut settings, &value(&Configuration::default()));
    let enabled = Controller::ALL.iter().filter(|one| configuration.controllers.enabled(**one));
    settings["controllers"] = enabled.map(|one| one.name()).collect();
    settings["apiVersion"] = configuration::API_VERSION.into();
    settings["kind"] = configuration::KIND.into();
    // These addresses only make sense outside of a cluster.
    let unreachable = |bind: SocketAddr| bind.ip().is_loopback() || bind.port() == 0;
    let outside = [
        ("", "bind", unreachable(configuration.bind)),
        ("/webhooks", "bind", unreachable(configuration.webhooks.bind)),
        ("/webhooks", "url", configuration.webhooks.url.is_some()),
    ];
    for (within, field, _) in outside.into_iter().filter(|(.., outside)| *outside) {
        if let Some(section) = settings.pointer_mut(within).and_then(Value::as_object_mut) {
            section.remove(field);
        }
    }
    settings
}

/// Removes the fields that equal the defaults. A map with the user's own keys is kept whole.
fn drop_defaults(settings: &mut Value, defaults: &Value) {
    let (Some(settings), Some(defaults)) = (settings.as_object_mut(), defaults.as_object()) else { return };
    if settings.keys().any(|key| !defaults.contains_key(key)) {
        return;
    }
    settings.retain(|key, value| {
        let default = &defaults[key];
        if value == default {
            return false;
        }
        drop_defaults(value, default);
        true
    });
}

/// Whether a character has no special meaning to a shell.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_./:@".contains(c)
}

pub(crate) fn silent(node: &str, since: Option<Timestamp>) -> String {
    match since {
        Some(since) => format!("node {node} is silent since {since:.0}"),
        None => format!("node {node} is lost"),
    }
}

/// Pod names grouped by namespace, for kubectl commands.
pub(crate) fn by_namespace<'a>(pods: impl Iterator<Item = &'a Object>) -> Vec<(String, Vec<&'a str>)> {
    let mut all: Vec<(String, Vec<&str>)> = Vec::new();
    for pod in pods {
        let namespace = pod.namespace.clone().unwrap_or_default();
        match all.iter_mut().find(|(known, _)| *known == namespace) {
            Some((_, names)) => names.push(&pod.name),
            None => all.push((namespace, vec![&pod.name])),
        }
    }
    all
}
