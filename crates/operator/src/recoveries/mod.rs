//! The registry of recoveries. Nothing outside of this folder knows one of them by name: the operator starts what is in
//! here, `salvor manifests` grants the rights that are in here, `salvor explain` asks whoever is in here, and so on.
//!
//! Each recovery has an `entry.rs` in its folder. `docs/architecture.md` says how to add one.

use std::fmt;

use salvor_api::{
    Controller, Gate,
    config::{Configuration, section_name},
};

use crate::{
    explain::Explains,
    metrics::{Description, Metrics},
    rights::Right,
    running::Running,
    webhooks::{Office, Registration, Webhook},
};

pub(crate) mod appwrapper;
pub(crate) mod eviction;
pub(crate) mod job;
pub(crate) mod repair;
#[cfg(test)]
mod tests;
pub(crate) mod webhooks;
pub(crate) mod zombie;

/// One recovery, as all the rest sees it.
pub struct RecoveryEntry {
    /// Its name in flags, in the configuration file and in metrics.
    pub controller: Controller,
    /// The feature gate that it needs besides.
    pub gate: Option<Gate>,
    /// Says in words which of its settings are not at their defaults, such as `job is set`; nothing if all are.
    pub settings: fn(&Configuration) -> Option<String>,
    /// The memory that it adds to the limit of a replica, in mebibytes: about three times its peak in docs/benchmarks*.md.
    pub memory: u32,
    /// The CustomResourceDefinitions that it needs, as YAML.
    pub definitions: &'static [&'static str],
    /// The rights that it needs with this configuration, if it is switched on.
    pub(crate) rights: fn(&Configuration) -> Vec<Right>,
    /// The reporting component of its events.
    pub(crate) reporter: &'static str,
    /// The kinds of objects about which it has a verdict.
    pub(crate) explains: &'static [Explains],
    /// The metrics that only it has, in the order of the reference page.
    pub(crate) metrics: &'static [Description],
    /// Its admission webhooks, if it has any.
    pub(crate) webhooks: Option<Webhooks>,
    /// Registers these metrics, and returns what starts the recovery. Metrics are served also if it is switched off.
    pub(crate) prepare: fn(&Metrics) -> Start,
}

/// The admission webhooks of a recovery.
pub(crate) struct Webhooks {
    /// What the API server is told of them.
    pub(crate) declared: fn(&Configuration) -> Vec<Webhook>,
    /// The same with those who answer.
    pub(crate) handlers: fn(&Configuration, &Office) -> Vec<Registration>,
}

/// Starts a recovery.
pub(crate) type Start = Box<dyn FnOnce(&mut Running, &Configuration)>;

/// Why a recovery is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
    /// Its feature gate is off.
    Gate(Gate),
    /// The list of controllers leaves it out.
    Controllers,
}

impl fmt::Display for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gate(gate) => {
                write!(f, "feature gate {gate} is off; --feature-gates={gate}=true switches it on")
            }
            Self::Controllers => f.write_str("not in controllers"),
        }
    }
}

impl RecoveryEntry {
    /// Why it does not run with this configuration; nothing if it does.
    pub fn off(&self, configuration: &Configuration) -> Option<Off> {
        match self.gate.filter(|gate| !configuration.feature_gates.enabled(*gate)) {
            Some(gate) => Some(Off::Gate(gate)),
            None => (!configuration.controllers.enabled(self.controller)).then_some(Off::Controllers),
        }
    }

    /// The rights that it needs with this configuration; none if it is switched off.
    pub fn rights(&self, configuration: &Configuration) -> Vec<Right> {
        if self.off(configuration).is_some() { Vec::new() } else { (self.rights)(configuration) }
    }

    /// The name of its section in the configuration file.
    pub fn section(&self) -> &'static str {
        section_name(self.controller)
    }
}

/// The entry of a recovery.
pub(crate) fn entry(controller: Controller) -> &'static RecoveryEntry {
    match controller {
        Controller::Zombie => &zombie::ENTRY,
        Controller::Job => &job::ENTRY,
        Controller::Eviction => &eviction::ENTRY,
        Controller::AppWrapper => &appwrapper::ENTRY,
        Controller::Repair => &repair::ENTRY,
    }
}

/// Every recovery there is.
pub fn recoveries() -> impl Iterator<Item = &'static RecoveryEntry> {
    Controller::ALL.iter().map(|controller| entry(*controller))
}
