//! Salvor in this cluster: whether it is there, who leads, how it is configured, and what it makes of a pod.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use salvor_api::{Controller, config::Configuration, names::annotations};
use salvor_operator::{Next, PodInSight, Published, glance};
use serde_json::Value;

use crate::{
    answer::{Object, Remedy},
    code::Code,
    diagnosis::{Finding, Rules},
    json::{named, time},
    kinds::LEASE,
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
    /// Who leads; nobody is asked for if there is no Lease, because a file says "what if".
    pub(crate) leader: Option<String>,
}

/// Whether Salvor is in a cluster.
pub(crate) enum Presence {
    Here(Box<Installed>),
    Absent,
    Unknown,
}

impl Judge {
    fn election(&self) -> (String, String) {
        let settings = self.file.clone().unwrap_or_default().leader_election;
        (settings.lease_namespace, settings.lease_name)
    }

    pub(crate) fn presence(&self, world: &World) -> Presence {
        let (namespace, name) = self.election();
        let lease = match world.get(&LEASE, &namespace, &name) {
            Seen::Here(lease) => serde_json::from_value::<Lease>(lease.clone()).ok(),
            Seen::Absent => None,
            Seen::Unknown if self.file.is_none() => return Presence::Unknown,
            Seen::Unknown => None,
        };
        let leader = lease.as_ref().and_then(|lease| Published::leader(lease, world.now));
        let leader = leader.map(str::to_owned);
        if let Some(configuration) = self.file.clone() {
            return Presence::Here(Box::new(Installed { configuration, lease, leader }));
        }
        let Some(lease) = lease else { return Presence::Absent };
        let published = Published::read(&lease).and_then(|published| published.configuration);
        let configuration = published.unwrap_or_else(|| {
            world.miss(
                "the configuration that Salvor runs with",
                format!("Lease {namespace}/{name} has no annotation {}: a dry run or another version wrote it, and the defaults were taken", annotations::STATUS),
            );
            Configuration::default()
        });
        Presence::Here(Box::new(Installed { configuration, lease: Some(lease), leader }))
    }

    /// By what was judged, in one line.
    pub fn told(&self, world: &World) -> String {
        let (namespace, name) = self.election();
        match self.presence(world) {
            Presence::Unknown => format!(
                "Lease {namespace}/{name} cannot be read: nobody can tell from here whether Salvor runs"
            ),
            Presence::Absent => format!("Salvor does not run here: there is no Lease {namespace}/{name}"),
            Presence::Here(_) if self.file.is_some() => {
                "Judged by the given configuration file, not by what runs in the cluster".to_owned()
            }
            Presence::Here(installed) => {
                let published = installed.lease.as_ref().and_then(Published::read);
                let version = published.map(|told| format!(" {}", told.version)).unwrap_or_default();
                match installed.leader {
                    Some(leader) => {
                        format!("Judged by what runs in the cluster: Salvor{version}, led by {leader}")
                    }
                    None => format!(
                        "Salvor{version} is installed, but nobody leads it: Lease {namespace}/{name} has run out"
                    ),
                }
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
        if installed.lease.is_some() && installed.leader.is_none() {
            return found(Code::NobodyLeads, format!("{silent}; no replica of Salvor leads"))
                .remedy(start_a_replica(&installed.configuration));
        }
        if let Some(off) = glance.off {
            let remedy = switch_on(&installed.configuration, Controller::Zombie);
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
                if !outage {
                    return held;
                }
                held.remedy(Remedy::command(
                    format!("If the machine of {on} is off for sure (else its work may run twice), empty the node all the same"),
                    format!("salvor evict {on} --despite-zone-outage"),
                ))
            }
            Next::Done => found(Code::NotOptedIn, format!("{silent}; {}", glance.message)),
            Next::Nothing => found(Code::NodeLost, format!("{silent}; {}", glance.message)),
        }
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

pub(crate) fn start_a_replica(configuration: &Configuration) -> Remedy {
    let namespace = &configuration.leader_election.lease_namespace;
    Remedy::command(
        "Start a replica of Salvor",
        format!("kubectl scale deployment/salvor -n {namespace} --replicas=2"),
    )
}

/// How a recovery is switched on in an installation.
pub(crate) fn switch_on(configuration: &Configuration, controller: Controller) -> Remedy {
    let gate = match controller {
        Controller::Zombie => " --feature-gates=FailureRecoveryPolicy=true",
        _ => "",
    };
    let mut on: Vec<&str> = Controller::ALL
        .iter()
        .filter(|one| configuration.controllers.enabled(**one))
        .map(|one| one.name())
        .collect();
    if !on.contains(&controller.name()) {
        on.push(controller.name());
    }
    Remedy::command(
        "Switch the recovery on where Salvor is installed (with the configuration that it was installed with)",
        format!("salvor manifests --controllers={}{gate} | kubectl apply -f -", on.join(",")),
    )
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
