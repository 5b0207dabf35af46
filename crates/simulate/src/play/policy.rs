//! Who recovers what, and by which rules: Salvor with a configuration, or a peer by the rules that it has.

use std::{collections::BTreeMap, fmt, str::FromStr};

use salvor_api::{
    Controller, ControllerList, Gate, GoDuration,
    config::{self, ConfigError, Configuration},
    names::repair,
};
use serde_json::{Value, json};

use crate::{
    json::without_nulls,
    scenario::{Scenario, Wrapping, built_in_configuration, in_simulation},
};

/// One way to recover.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Its name in reports.
    pub name: String,
    /// How it is modelled, for people.
    pub note: String,
    /// The configuration of the operator; none if there is no operator at all.
    pub configuration: Option<Configuration>,
    repair_policies: BTreeMap<String, Value>,
}

/// Why a setting cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The configuration is wrong.
    #[error("{0}")]
    Configuration(#[from] ConfigError),
    /// The key does not lead anywhere.
    #[error("{0:?} is no field of the configuration: write its path, such as brake.maxUnreachablePercent")]
    Key(String),
    /// The value is no YAML.
    #[error("{key}: {value:?} cannot be read: {problem}")]
    Value {
        /// The path of the field.
        key: String,
        /// The value.
        value: String,
        /// What is wrong.
        problem: String,
    },
    /// There is nothing to set.
    #[error("the scenario is played without Salvor (salvor.enabled is false), so there is nothing to set")]
    WithoutSalvor,
}

/// Another project, by the rules that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Kubernetes alone.
    Kubernetes,
    /// Kueue's recovery of pods on unreachable nodes.
    Kueue,
    /// Karpenter's repair of nodes.
    Karpenter,
    /// The AppWrapper controller.
    AppWrapper,
}

impl Peer {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Kubernetes, Self::Kueue, Self::Karpenter, Self::AppWrapper];

    /// Its name, as people type it.
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
                "Karpenter's repair rules of AWS, carried out by Salvor's operator: Ready False or Unknown for 30 minutes, a failed \
                 accelerator for 10, at most 20% of a pool sick, all of them at once, forcefully. Only pools with machines are \
                 repaired. Not modelled: that Karpenter counts nodes within their toleration against the 20%, and its other controllers."
            }
            Self::AppWrapper => {
                "The AppWrapper controller's rules with its defaults, carried out by Salvor's operator: a reset after failed or missing \
                 pods, not for an unreachable node. Not modelled: the faults of its code that the tests of Salvor describe."
            }
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no peer of this name.
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
    /// That of a scenario.
    pub fn of(scenario: &Scenario) -> Self {
        if !scenario.salvor.enabled {
            return Self::peer(Peer::Kubernetes, scenario);
        }
        Self {
            name: "salvor".to_owned(),
            note: String::new(),
            configuration: Some(scenario.salvor.configuration.clone()),
            repair_policies: scenario.salvor.repair_policies.clone(),
        }
    }

    /// That of a configuration file.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn of_file(name: &str, text: &str, scenario: &Scenario) -> Result<Self, PolicyError> {
        let configuration = Some(in_simulation(config::parse(text)?));
        let repair_policies = scenario.salvor.repair_policies.clone();
        Ok(Self { name: name.to_owned(), note: String::new(), configuration, repair_policies })
    }

    /// That of a peer.
    pub fn peer(peer: Peer, scenario: &Scenario) -> Self {
        let mut repair_policies = BTreeMap::new();
        let configuration = match peer {
            Peer::Kubernetes => None,
            Peer::Kueue => Some(unbraked(&["job", "zombie"])),
            Peer::Karpenter => {
                for pool in scenario.pools.iter().filter(|pool| pool.machines.is_some()) {
                    repair_policies.insert(pool.name.clone(), karpenter_policy(&pool.name));
                }
                let mut configuration = unbraked(&["job", "repair"]);
                configuration.repair.zone_sick_percent = 0;
                configuration.repair.pool_sick_percent = 0;
                configuration.repair.settle_after = GoDuration::ZERO;
                configuration.repair.retry_after = GoDuration::ZERO;
                Some(configuration)
            }
            Peer::AppWrapper => {
                let mut configuration = unbraked(&["job", "appwrapper"]);
                configuration.appwrapper.reset_when_node_unreachable = false;
                Some(configuration)
            }
        };
        let (name, note) = (peer.name().to_owned(), peer.note().to_owned());
        Self { name, note, configuration, repair_policies }
    }

    /// The same with one field set to another value, which is YAML.
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
        let mut document = serde_json::to_value(configuration).unwrap_or_default();
        without_nulls(&mut document);
        let place = place(&mut document, key).ok_or_else(|| PolicyError::Key(key.to_owned()))?;
        *place = parsed;
        let configuration = Some(in_simulation(config::parse(&document.to_string()).map_err(without_lines)?));
        let setting = format!("{key}={value}");
        let name = if self.name == "salvor" { setting } else { format!("{}, {setting}", self.name) };
        Ok(Self { name, configuration, ..self.clone() })
    }

    pub(super) fn repair_policies(&self) -> Option<&BTreeMap<String, Value>> {
        self.configuration.as_ref().map(|_| &self.repair_policies)
    }

    pub(super) fn wrapping(&self) -> Wrapping {
        let wraps =
            self.configuration.as_ref().is_some_and(|it| it.controllers.enabled(Controller::AppWrapper));
        if wraps { Wrapping::Salvor } else { Wrapping::Nobody }
    }
}

/// The controller for Jobs that every cluster has.
pub(super) fn only_jobs() -> Configuration {
    unbraked(&["job"])
}

/// These recoveries with their defaults, and nothing that holds them back.
fn unbraked(controllers: &[&str]) -> Configuration {
    let mut configuration = built_in_configuration(false);
    configuration.feature_gates.set(Gate::FailureRecoveryPolicy, true);
    configuration.controllers = ControllerList::new(controllers.iter().copied());
    configuration.brake.max_pods_per_minute = 0;
    configuration.brake.max_nodes_per_minute = 0;
    configuration.brake.max_unreachable_percent = 0;
    configuration
}

fn karpenter_policy(pool: &str) -> Value {
    let policy = |kind: &str, status: &str, toleration: &str| json!({ "conditionType": kind, "conditionStatus": status, "toleration": toleration });
    json!({
        "nodeSelector": { "matchLabels": { repair::labels::NODE_POOL: pool } },
        "policies": [
            policy("Ready", "False", "30m"),
            policy("Ready", "Unknown", "30m"),
            policy("AcceleratedHardwareReady", "False", "10m"),
        ],
        "unhealthyLimit": "20%",
        "budgets": [{ "nodes": "100%" }],
    })
}

/// The line of a document that nobody wrote says nothing.
fn without_lines(mut error: ConfigError) -> ConfigError {
    error.problems.iter_mut().for_each(|problem| problem.line = None);
    error
}

/// The place of a path such as `a.b[0].c`. The last field may be absent: the configuration says whether it may be there.
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
        let scenario = Scenario::read("title: t\ngpuNodes: 1\n", &Source::default()).unwrap();
        for peer in Peer::ALL {
            assert_eq!(peer.name().parse(), Ok(peer));
            let policy = Policy::peer(peer, &scenario);
            assert!(!policy.note.is_empty());
            assert_eq!(policy.configuration.is_none(), peer == Peer::Kubernetes);
        }
        let error = "openshift".parse::<Peer>().unwrap_err().to_string();
        assert_eq!(error, "\"openshift\" is not known; write kubernetes, kueue, karpenter, appwrapper");
    }
}
