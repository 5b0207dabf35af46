//! Salvor in this cluster: whether it is there, who leads, how it is configured, and what it makes of a pod.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use salvor_api::{
    Controller, Gate,
    config::{Configuration, LeaderElection},
    names::annotations,
};
use salvor_operator::{InCluster, Next, PodInSight, Published, glance};
use serde_json::Value;

use crate::{
    answer::{Object, Remedy},
    code::Code,
    diagnosis::{Finding, Rules},
    json::{named, number, text, time},
    kinds::{CONFIG_MAP, DEPLOYMENT, LEASE},
    world::{Seen, World},
};

/// By which configuration is judged.
#[derive(Clone, Debug, Default)]
pub struct Judge {
    /// A file's, for "what if"; none to judge by what runs in the cluster.
    pub file: Option<Configuration>,
}

/// Salvor, as far as it can be seen.
pub(crate) struct Installed {
    pub(crate) configuration: Configuration,
    pub(crate) lease: Option<Lease>,
    /// Who leads, by the Lease's times.
    pub(crate) leader: Option<String>,
    /// Whether nobody leads. A file says "what if" where there is no Lease, and then somebody would.
    pub(crate) nobody_leads: bool,
}

/// Whether Salvor is in a cluster.
pub(crate) enum Presence {
    Here(Box<Installed>),
    Absent,
    Unknown,
}

/// The name of everything that an installation of Salvor brings.
const NAME: &str = "salvor";

impl Judge {
    fn election(&self) -> LeaderElection {
        self.file.clone().unwrap_or_default().leader_election
    }

    pub(crate) fn presence(&self, world: &World) -> Presence {
        let LeaderElection { lease_namespace, lease_name, .. } = self.election();
        let lease = match world.get(&LEASE, &lease_namespace, &lease_name) {
            Seen::Here(lease) => serde_json::from_value::<Lease>(lease.clone()).ok(),
            Seen::Absent => None,
            Seen::Unknown if self.file.is_none() => return Presence::Unknown,
            Seen::Unknown => None,
        };
        let leader = lease.as_ref().and_then(|lease| Published::leader(lease, world.now));
        let leader = leader.map(str::to_owned);
        if let Some(configuration) = self.file.clone() {
            let nobody_leads = lease.is_some() && leader.is_none();
            return Presence::Here(Box::new(Installed { configuration, lease, leader, nobody_leads }));
        }
        let nobody_leads = leader.is_none();
        let Some(lease) = lease else {
            // It may be installed, and nobody has led yet.
            if world.get(&DEPLOYMENT, &lease_namespace, NAME).here().is_none() {
                return Presence::Absent;
            }
            let configuration = Configuration::default();
            return Presence::Here(Box::new(Installed { configuration, lease: None, leader, nobody_leads }));
        };
        let published = Published::read(&lease).and_then(|published| published.configuration);
        let configuration = published.unwrap_or_else(|| {
            world.miss(
                "the configuration that Salvor runs with",
                format!(
                    "Lease {lease_namespace}/{lease_name} has no annotation {} that can be read: the defaults were taken",
                    annotations::STATUS
                ),
            );
            Configuration::default()
        });
        Presence::Here(Box::new(Installed { configuration, lease: Some(lease), leader, nobody_leads }))
    }

    /// By what was judged, in one line.
    pub fn told(&self, world: &World) -> String {
        if self.file.is_some() {
            return "Judged by the given configuration, and not by that of a running operator".to_owned();
        }
        let election = self.election();
        let LeaderElection { lease_namespace, lease_name, .. } = &election;
        match world.get(&LEASE, lease_namespace, lease_name) {
            Seen::Unknown => {
                let why = world.refusal_of(&LEASE, lease_namespace, lease_name).unwrap_or("it was not read");
                InCluster::unseen(&election, why).told
            }
            Seen::Absent => InCluster::of(None, &election, world.now).told,
            Seen::Here(lease) => {
                let lease = serde_json::from_value::<Lease>(lease.clone()).unwrap_or_default();
                InCluster::of(Some(&lease), &election, world.now).told
            }
        }
    }
}

impl Rules<'_> {
    /// A pod that is being deleted on a lost node: what Salvor makes of it, if it is here.
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
        let lease = self.world.get(&LEASE, "kube-node-lease", on).here().map(Value::to_string);
        let (pod_text, node_text) = (pod.to_string(), node.to_string());
        let seen = PodInSight {
            pod: &pod_text,
            node: Some(&node_text),
            node_lease: lease.as_deref(),
            election: installed.lease.as_ref(),
        };
        let glance = match glance(seen, &installed.configuration, self.world.now) {
            Ok(glance) => glance,
            Err(error) => {
                self.world.miss("the verdict of zombie recovery", error.to_string());
                return found(Code::NodeLost, silent);
            }
        };
        if let Some(why) = glance.without_consent {
            return found(Code::NotOptedIn, format!("{silent}; {why}"));
        }
        if installed.nobody_leads {
            return found(Code::NobodyLeads, format!("{silent}; no replica of Salvor leads"))
                .remedy(self.start_a_replica(&installed.configuration));
        }
        if let Some(off) = glance.off {
            let remedy = self.switch_on(&installed.configuration, Controller::Zombie);
            return found(Code::RecoveryOff, format!("{silent}; zombie recovery is off: {off}"))
                .remedy(remedy);
        }
        match glance.next {
            Next::Waits(until) => found(Code::GraceRunning, format!("{silent}; {}", glance.message))
                .until(Some(until))
                .advice(format!("Nothing needs to be done: Salvor looks at it again at {until}")),
            Next::Acts => {
                found(Code::GraceRunning, format!("{silent}; the wait is over, and Salvor acts now"))
                    .until(Some(self.world.now))
                    .advice("Nothing needs to be done: Salvor acts now")
            }
            Next::Held { until, paused, outage } => {
                let held = found(Code::BrakeHolds, format!("{silent}; {}", glance.message)).until(until);
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
            Next::Done => found(Code::NotOptedIn, format!("{silent}; {}", glance.message)),
            Next::Nothing => found(Code::NodeLost, format!("{silent}; {}", glance.message)),
        }
    }

    /// How a replica is started, by what is installed.
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

    /// How a recovery is switched on in an installation.
    pub(crate) fn switch_on(&self, configuration: &Configuration, controller: Controller) -> Remedy {
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
        let text = "Switch the recovery on where Salvor is installed: its replicas are then replaced, with all other settings as they are";
        Remedy::command(text, self.install(configuration, &changes))
    }

    /// The command that installs Salvor with these flags: over the configuration that is installed, if one is.
    fn install(&self, configuration: &Configuration, flags: &[String]) -> String {
        let namespace = &configuration.leader_election.lease_namespace;
        let mut manifests = "salvor manifests".to_owned();
        let installed = self.world.get(&CONFIG_MAP, namespace, NAME).here().is_some();
        if installed {
            manifests = format!(
                "kubectl get configmap {NAME} -n {namespace} -o jsonpath='{{.data.config\\.yaml}}' | {manifests} --config=/dev/stdin"
            );
        } else if !flags.iter().any(|flag| flag.starts_with("--controllers")) {
            let enabled = Controller::ALL.iter().filter(|one| configuration.controllers.enabled(**one));
            let all: Vec<&str> = enabled.map(|one| one.name()).collect();
            manifests.push_str(&format!(" --controllers={}", all.join(",")));
        }
        manifests.push_str(&format!(" --namespace={namespace}"));
        let deployment = self.world.get(&DEPLOYMENT, namespace, NAME).here();
        let image = deployment.map_or("", |one| text(one, "/spec/template/spec/containers/0/image"));
        // An image is named by whoever installed it, and stands in a command for a shell.
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
        if !image.is_empty() && image.chars().all(plain) {
            manifests.push_str(&format!(" --image={image}"));
        }
        for flag in flags {
            manifests.push_str(&format!(" {flag}"));
        }
        format!("{manifests} | kubectl apply -f -")
    }

    /// The node's silence begins with the last renewal of its Lease.
    pub(crate) fn silent_since(&self, node: &str) -> Option<Timestamp> {
        self.world
            .get(&LEASE, "kube-node-lease", node)
            .here()
            .and_then(|lease| time(lease, "/spec/renewTime"))
    }
}

pub(crate) fn silent(node: &str, since: Option<Timestamp>) -> String {
    match since {
        Some(since) => format!("node {node} is silent since {since:.0}"),
        None => format!("node {node} is lost"),
    }
}

/// The pods of a finding, by namespace, as kubectl takes them.
pub(crate) fn by_namespace(pods: &[Object]) -> Vec<(String, Vec<&str>)> {
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
