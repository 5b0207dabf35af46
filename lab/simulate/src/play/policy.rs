//! Policies that a scenario is played with: Salvor with a configuration, or a peer with its own rules.

use std::{borrow::Cow, collections::BTreeMap, fmt, str::FromStr};

use salvor_api::{
    Controller, ControllerList, Gate,
    config::{self, ConfigError, Configuration},
};
use serde_json::Value;

use crate::{
    json::without_nulls,
    scenario::{Scenario, Wrapping, built_in_configuration, in_simulation},
};

#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub name: String,
    /// How it is modelled, shown to users.
    pub note: String,
    /// `None` if the operator does not run.
    pub configuration: Option<Configuration>,
    /// The peer whose rules are played.
    pub(super) peer: Option<Peer>,
    repair_policies: BTreeMap<String, Value>,
    /// Choices of workload owners: a path, for example `train.consent`, and a value.
    choices: Vec<(String, String)>,
    arguments: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("{0}")]
    Configuration(#[from] ConfigError),
    #[error("workloads: {0}")]
    Workload(String),
    #[error("{0:?} is no field of the configuration: write its path, such as brake.maxUnreachablePercent")]
    Key(String),
    #[error("{key}: {value:?} cannot be read: {problem}")]
    Value {
        /// The path of the field.
        key: String,
        value: String,
        problem: String,
    },
    #[error("the scenario is played without Salvor (salvor.enabled is false), so there is nothing to set")]
    WithoutSalvor,
}

/// Another project, with its own rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Kubernetes alone.
    Kubernetes,
    /// Kueue's recovery of pods on unreachable nodes.
    Kueue,
    /// Karpenter's node repair.
    Karpenter,
    AppWrapper,
}

impl Peer {
    pub const ALL: [Self; 4] = [Self::Kubernetes, Self::Kueue, Self::Karpenter, Self::AppWrapper];

    /// The name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Kueue => "kueue",
            Self::Karpenter => "karpenter",
            Self::AppWrapper => "appwrapper",
        }
    }

    fn note(self) -> &'static str {
        match self {
            Self::Kubernetes => {
                "Kubernetes alone: taints, eviction after the toleration, forced detach of volumes after 6 minutes. Nothing ends a pod \
                 on a node that is not heard of. AppWrappers are plain Jobs."
            }
            Self::Kueue => {
                "Kueue's rules, carried out by Salvor's operator: an opted-in pod is marked Failed one minute after its grace period if \
                 its node has the unreachable taint; no brake, no minimum time unreachable, no out-of-service taint. Kueue since 0.16.3 \
                 reads only safe-to-forcefully-delete; here both annotations count. Not modelled: that Kueue acts from its cache, \
                 without reading pod and node again."
            }
            Self::Karpenter => {
                "Karpenter 1.14's repair of nodes with the policies of AWS: Ready False or Unknown, storage, network, kernel or runtime \
                 not ready for 30 minutes, a failed accelerator for 10. Nothing is done while more than 20% of a pool, rounded up, have \
                 such a condition, within their toleration or not, and then it is looked again after 5 minutes. Else all are ended at once, \
                 forcefully. Only pools with machines are repaired. Not modelled: its other controllers. Its API calls are \
                 not counted. AppWrappers are plain Jobs."
            }
            Self::AppWrapper => {
                "CodeFlare's AppWrapper controller 1.2 with its defaults: a reset one minute after a failed pod is seen, at once if pods are \
                 missing in mid-run, at most 3 times; it looks every 60 seconds while all run. Force after 10 minutes of deletion. An \
                 unreachable node by itself is no cause. Not modelled: Autopilot, exit codes, Kueue. Its API calls are not \
                 counted. Other workloads have Kubernetes alone."
            }
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not known; write {known}", known = Peer::ALL.map(Peer::name).join(", "))]
pub struct UnknownPeer(String);

impl FromStr for Peer {
    type Err = UnknownPeer;

    fn from_str(text: &str) -> Result<Self, UnknownPeer> {
        Self::ALL.into_iter().find(|peer| peer.name() == text).ok_or_else(|| UnknownPeer(text.to_owned()))
    }
}

impl Policy {
    pub fn of(scenario: &Scenario) -> Self {
        if !scenario.salvor.enabled {
            return Self::peer(Peer::Kubernetes);
        }
        Self {
            name: "salvor".to_owned(),
            note: String::new(),
            configuration: Some(scenario.salvor.configuration.clone()),
            peer: None,
            repair_policies: scenario.salvor.repair_policies.clone(),
            choices: Vec::new(),
            arguments: Vec::new(),
        }
    }

    /// The arguments with which `salvor demo --replay` plays it.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    pub fn of_file(name: &str, text: &str, scenario: &Scenario) -> Result<Self, PolicyError> {
        let configuration = Some(in_simulation(config::parse(text)?));
        let repair_policies = scenario.salvor.repair_policies.clone();
        let arguments = vec!["--config".to_owned(), name.to_owned()];
        let (name, note, choices) = (name.to_owned(), String::new(), Vec::new());
        Ok(Self { name, note, configuration, peer: None, repair_policies, choices, arguments })
    }

    pub fn peer(peer: Peer) -> Self {
        let configuration = match peer {
            Peer::Kueue => Some(unbraked(&["job", "zombie"])),
            Peer::Kubernetes | Peer::Karpenter | Peer::AppWrapper => None,
        };
        let choices = Vec::new();
        let arguments = match peer {
            Peer::Kubernetes => vec!["--without-salvor".to_owned()],
            Peer::Kueue | Peer::Karpenter | Peer::AppWrapper => {
                vec!["--against".to_owned(), peer.name().to_owned()]
            }
        };
        let (name, note, repair_policies) = (peer.name().to_owned(), peer.note().to_owned(), BTreeMap::new());
        Self { name, note, configuration, peer: Some(peer), repair_policies, choices, arguments }
    }

    /// Sets one field: of the configuration, or of a workload (`workloads.NAME.FIELD`).
    ///
    /// # Errors
    /// If there is no such field, or it cannot have this value.
    pub fn with_setting(&self, key: &str, value: &str, scenario: &Scenario) -> Result<Self, PolicyError> {
        match key.strip_prefix("workloads.") {
            Some(path) => self.with_choice(path, value, scenario),
            None => self.with(key, value),
        }
    }

    /// Sets one field of the configuration to a value, which is YAML.
    ///
    /// # Errors
    /// If there is no such field, or it cannot have this value.
    pub fn with(&self, key: &str, value: &str) -> Result<Self, PolicyError> {
        let configuration = self.configuration.as_ref().ok_or(PolicyError::WithoutSalvor)?;
        let parsed: Value = serde_saphyr::from_str(value).map_err(|error| PolicyError::Value {
            key: key.to_owned(),
            value: value.to_owned(),
            problem: error.without_snippet().to_string().lines().next().unwrap_or_default().to_owned(),
        })?;
        let mut document = document(configuration);
        let place = place(&mut document, key).ok_or_else(|| PolicyError::Key(key.to_owned()))?;
        *place = parsed;
        let configuration = Some(in_simulation(config::parse(&document.to_string()).map_err(without_lines)?));
        let arguments = self.set_to(key, value);
        Ok(Self { name: self.named(key, value), configuration, arguments, ..self.clone() })
    }

    /// Changes a choice of a workload's owner: the path is that of [`Scenario::set`].
    ///
    /// # Errors
    /// If there is no such field, or it cannot have this value.
    pub fn with_choice(&self, path: &str, value: &str, scenario: &Scenario) -> Result<Self, PolicyError> {
        self.scenario(scenario).into_owned().set(path, value).map_err(PolicyError::Workload)?;
        let mut choices = self.choices.clone();
        choices.push((path.to_owned(), value.to_owned()));
        let key = format!("workloads.{path}");
        let arguments = self.set_to(&key, value);
        Ok(Self { name: self.named(&key, value), choices, arguments, ..self.clone() })
    }

    fn set_to(&self, key: &str, value: &str) -> Vec<String> {
        let more = ["--set".to_owned(), format!("{key}={value}")];
        self.arguments.iter().cloned().chain(more).collect()
    }

    fn named(&self, key: &str, value: &str) -> String {
        let setting = format!("{key}={value}");
        if self.name == "salvor" { setting } else { format!("{}, {setting}", self.name) }
    }

    /// Applies the choices of workload owners to the scenario.
    pub(super) fn scenario<'a>(&self, scenario: &'a Scenario) -> Cow<'a, Scenario> {
        let mut chosen = Cow::Borrowed(scenario);
        for (path, value) in &self.choices {
            // The choices were already validated against this scenario.
            let _ = chosen.to_mut().set(path, value);
        }
        chosen
    }

    pub(super) fn repair_policies(&self) -> Option<&BTreeMap<String, Value>> {
        self.configuration.as_ref().map(|_| &self.repair_policies)
    }

    pub(super) fn wrapping(&self) -> Wrapping {
        let wraps =
            self.configuration.as_ref().is_some_and(|it| it.controllers.enabled(Controller::AppWrapper));
        if wraps || self.peer == Some(Peer::AppWrapper) { Wrapping::Salvor } else { Wrapping::Nobody }
    }
}

/// A configuration as a JSON document.
pub fn document(configuration: &Configuration) -> Value {
    let mut document = serde_json::to_value(configuration).unwrap_or_default();
    without_nulls(&mut document);
    document
}

/// The Job controller that every cluster has.
pub(super) fn only_jobs() -> Configuration {
    unbraked(&["job"])
}

/// These recoveries with their defaults, and without any limits.
fn unbraked(controllers: &[&str]) -> Configuration {
    let mut configuration = built_in_configuration(false);
    configuration.feature_gates.set(Gate::FailureRecoveryPolicy, true);
    configuration.controllers = ControllerList::new(controllers.iter().copied());
    configuration.brake.max_pods_per_minute = 0;
    configuration.brake.max_nodes_per_minute = 0;
    configuration.brake.max_unreachable_percent = 0;
    configuration
}

/// Drops line numbers: the document was generated, so its lines mean nothing to the user.
fn without_lines(mut error: ConfigError) -> ConfigError {
    error.problems.iter_mut().for_each(|problem| problem.line = None);
    error
}

/// Resolves a path, for example `a.b[0].c`. The last field may be absent: the configuration decides whether it is
/// valid.
fn place<'a>(document: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    let mut at = document;
    let steps: Vec<&str> = key.split('.').collect();
    for (position, step) in steps.iter().enumerate() {
        let (name, indexes) = match step.split_once('[') {
            Some((name, rest)) => (name, rest.strip_suffix(']')?.split("][").collect()),
            None => (*step, Vec::new()),
        };
        if name.is_empty() {
            return None;
        }
        let fields = at.as_object_mut()?;
        at = if position + 1 == steps.len() && indexes.is_empty() {
            fields.entry(name).or_insert(Value::Null)
        } else {
            fields.get_mut(name)?
        };
        for index in indexes {
            at = at.as_array_mut()?.get_mut(index.parse::<usize>().ok()?)?;
        }
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Source;

    #[test]
    fn a_field_is_set_by_its_path_and_checked_as_in_a_file() {
        let scenario = Scenario::read("title: t\n", &Source::default()).unwrap();
        let policy = Policy::of(&scenario);
        let brake = policy.with("brake.maxUnreachablePercent", "20").unwrap();
        assert_eq!(brake.configuration.as_ref().unwrap().brake.max_unreachable_percent, 20);
        let both = brake.with("failureRecoveryPolicy.minimumUnreachableDuration", "2m").unwrap();
        assert_eq!(
            both.name,
            "brake.maxUnreachablePercent=20, failureRecoveryPolicy.minimumUnreachableDuration=2m"
        );
        assert_eq!(
            both.arguments(),
            [
                "--set",
                "brake.maxUnreachablePercent=20",
                "--set",
                "failureRecoveryPolicy.minimumUnreachableDuration=2m"
            ]
        );
        let rule = "failureRecoveryPolicy.rules[0].taintNodeOutOfService.unreachableNodeTimeout";
        assert!(policy.with(rule, "5m").is_ok());
        for (key, value, expected) in [
            ("brake.maxUnreachablePercent", "101", "brake.maxUnreachablePercent: "),
            ("brake.colour", "red", "brake.colour: "),
            ("brakes.x", "1", "\"brakes.x\" is no field of the configuration"),
            ("failureRecoveryPolicy.rules[7].x", "1", "is no field of the configuration"),
            ("brake.maxUnreachablePercent", "[", "brake.maxUnreachablePercent: \"[\" cannot be read"),
        ] {
            let error = policy.with(key, value).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_peer_is_known_by_its_name_and_says_how_it_is_modelled() {
        for peer in Peer::ALL {
            assert_eq!(peer.name().parse(), Ok(peer));
            let policy = Policy::peer(peer);
            assert!(!policy.note.is_empty());
            assert_eq!(policy.configuration.is_some(), peer == Peer::Kueue);
            assert!(!policy.arguments().is_empty(), "{peer}");
        }
        let error = "openshift".parse::<Peer>().unwrap_err().to_string();
        assert_eq!(error, "\"openshift\" is not known; write kubernetes, kueue, karpenter, appwrapper");
    }
}
