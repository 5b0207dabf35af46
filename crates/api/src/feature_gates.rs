//! Feature gates, as in Kubernetes: features that an administrator switches on or off by name.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The maturity of a gated feature, which decides its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// May change or be removed. Off by default.
    Alpha,
    /// Stable. On by default.
    Stable,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alpha => "alpha",
            Self::Stable => "stable",
        })
    }
}

/// A feature that can be switched on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Gate {
    /// Zombie recovery: pods stuck terminating on an unreachable node (KEP-6757).
    FailureRecoveryPolicy,
    /// Jobs may replace pods only once they have failed, and count terminating pods (KEP-3939).
    JobPodReplacementPolicy,
}

impl Gate {
    /// All gates.
    pub const ALL: &'static [Self] = &[Self::FailureRecoveryPolicy, Self::JobPodReplacementPolicy];

    /// The name of the gate in flags and in the configuration file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FailureRecoveryPolicy => "FailureRecoveryPolicy",
            Self::JobPodReplacementPolicy => "JobPodReplacementPolicy",
        }
    }

    /// The default of the gate.
    pub const fn default_enabled(self) -> bool {
        match self {
            Self::FailureRecoveryPolicy => false,
            Self::JobPodReplacementPolicy => true,
        }
    }

    /// The maturity of the feature.
    pub const fn stage(self) -> Stage {
        match self {
            Self::FailureRecoveryPolicy => Stage::Alpha,
            Self::JobPodReplacementPolicy => Stage::Stable,
        }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Gate {
    type Err = ParseFeatureGatesError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .iter()
            .copied()
            .find(|gate| gate.name() == name)
            .ok_or_else(|| ParseFeatureGatesError::Unknown { name: name.into() })
    }
}

/// Why a list of feature gates is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseFeatureGatesError {
    /// The gate does not exist.
    #[error("unknown feature gate {name:?}: known are {}", known_gates())]
    Unknown {
        /// The name as written.
        name: String,
    },
    /// An entry is not `Name=true` or `Name=false`.
    #[error("feature gate {entry:?} must be written as Name=true or Name=false")]
    Malformed {
        /// The entry as written.
        entry: String,
    },
}

fn known_gates() -> String {
    Gate::ALL
        .iter()
        .map(|gate| format!("{gate} ({}, default {})", gate.stage(), gate.default_enabled()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The gates that are set explicitly. All others have their default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FeatureGates(BTreeMap<Gate, bool>);

impl FeatureGates {
    /// Whether a gate is on.
    pub fn enabled(&self, gate: Gate) -> bool {
        self.0.get(&gate).copied().unwrap_or(gate.default_enabled())
    }

    /// Switches a gate on or off.
    pub fn set(&mut self, gate: Gate, enabled: bool) {
        self.0.insert(gate, enabled);
    }

    /// Applies all gates of `stronger` on top, for example flags over the file.
    #[must_use]
    pub fn overridden_by(mut self, stronger: &Self) -> Self {
        self.0.extend(stronger.0.iter().map(|(gate, enabled)| (*gate, *enabled)));
        self
    }
}

/// Parses the form of the `--feature-gates` flag: `A=true,B=false`.
impl FromStr for FeatureGates {
    type Err = ParseFeatureGatesError;

    fn from_str(list: &str) -> Result<Self, Self::Err> {
        let mut gates = Self::default();
        for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let malformed = || ParseFeatureGatesError::Malformed { entry: entry.into() };
            let (name, value) = entry.split_once('=').ok_or_else(malformed)?;
            let gate = name.trim().parse()?;
            gates.set(gate, value.trim().parse().map_err(|_| malformed())?);
        }
        Ok(gates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_that_nobody_mentions_has_its_default() {
        assert!(!FeatureGates::default().enabled(Gate::FailureRecoveryPolicy));
        assert!("".parse::<FeatureGates>().unwrap() == FeatureGates::default());
    }

    #[test]
    fn the_flag_switches_and_the_last_word_counts() {
        let gates: FeatureGates = "FailureRecoveryPolicy=false, FailureRecoveryPolicy=true".parse().unwrap();
        assert!(gates.enabled(Gate::FailureRecoveryPolicy));
        let off: FeatureGates = "FailureRecoveryPolicy=false".parse().unwrap();
        assert!(!gates.clone().overridden_by(&off).enabled(Gate::FailureRecoveryPolicy));
        assert!(gates.overridden_by(&FeatureGates::default()).enabled(Gate::FailureRecoveryPolicy));
    }

    #[test]
    fn an_unknown_gate_is_refused_with_the_known_ones() {
        let error = "Foo=true".parse::<FeatureGates>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown feature gate \"Foo\": known are FailureRecoveryPolicy (alpha, default false), \
             JobPodReplacementPolicy (stable, default true)"
        );
    }

    #[test]
    fn a_malformed_entry_is_refused() {
        for list in ["FailureRecoveryPolicy", "FailureRecoveryPolicy=", "FailureRecoveryPolicy=yes"] {
            let error = list.parse::<FeatureGates>().unwrap_err();
            assert_eq!(error, ParseFeatureGatesError::Malformed { entry: list.into() });
        }
    }

    #[test]
    fn every_gate_reads_back_by_its_name() {
        for gate in Gate::ALL {
            assert_eq!(gate.name().parse(), Ok(*gate));
            assert_eq!(serde_json::to_value(gate).unwrap(), gate.name());
        }
    }
}
