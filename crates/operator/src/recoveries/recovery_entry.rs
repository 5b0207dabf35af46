//! What the rest of Salvor knows of a recovery.

use std::fmt;

use salvor_api::{
    Controller, Gate,
    config::{Configuration, section_name},
};

use crate::{
    engine::running::Running,
    explain::Explains,
    metrics::{Description, Metrics},
    recoveries::rights::Right,
    webhooks::{HandlerContext, Registration, Webhook},
};

/// One recovery, as the rest of Salvor sees it.
pub struct RecoveryEntry {
    /// Its name in flags, in the configuration file and in metrics.
    pub controller: Controller,
    /// The feature gate that it also needs.
    pub gate: Option<Gate>,
    /// Names the settings that are not at their defaults, such as `job is set`; `None` if all are.
    pub settings: fn(&Configuration) -> Option<String>,
    /// The memory that it adds to the limit of a replica, in mebibytes: about three times its peak in
    /// docs/results*.md.
    pub memory: u32,
    /// The CustomResourceDefinitions that it needs, as YAML.
    pub definitions: &'static [&'static str],
    /// The permissions that it needs with this configuration, if it is enabled.
    pub(crate) rights: fn(&Configuration) -> Vec<Right>,
    /// The reporting component of its events.
    pub reporter: &'static str,
    /// The kinds of objects that it has verdicts on.
    pub(crate) explains: &'static [Explains],
    /// The metrics that only it has, in the order of the reference page.
    pub(crate) metrics: &'static [Description],
    pub(crate) webhooks: Option<Webhooks>,
    /// Registers these metrics, and returns what starts the recovery. Metrics are served even if it is disabled.
    pub(crate) prepare: fn(&Metrics) -> Start,
}

pub(crate) struct Webhooks {
    pub(crate) declared: fn(&Configuration) -> Vec<Webhook>,
    pub(crate) handlers: fn(&Configuration, &HandlerContext) -> Vec<Registration>,
}

pub(crate) type Start = Box<dyn FnOnce(&mut Running, &Configuration)>;

/// Why a recovery is disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
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
    /// Why it does not run with this configuration; `None` if it does.
    pub fn off(&self, configuration: &Configuration) -> Option<Off> {
        match self.gate.filter(|gate| !configuration.feature_gates.enabled(*gate)) {
            Some(gate) => Some(Off::Gate(gate)),
            None => (!configuration.controllers.enabled(self.controller)).then_some(Off::Controllers),
        }
    }

    /// The permissions that it needs with this configuration; empty if it is disabled.
    pub fn rights(&self, configuration: &Configuration) -> Vec<Right> {
        if self.off(configuration).is_some() { Vec::new() } else { (self.rights)(configuration) }
    }

    pub fn section(&self) -> &'static str {
        section_name(self.controller)
    }
}
