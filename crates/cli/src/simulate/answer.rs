//! The report for machines.

use salvor_simulate::report::{Comparison, Part, Report};
use salvor_simulate::scenario::Scenario;
use serde::Serialize;

use super::args::SimulateArgs;
use crate::error::CliError;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer<'a> {
    api_version: &'static str,
    kind: &'static str,
    scenario: &'a str,
    /// Equal for simulations that can be merged.
    fingerprint: String,
    /// The shard of all seeds that this report covers.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<Part>,
    #[serde(flatten)]
    comparison: &'a Comparison,
    /// Each run in full, if there are only a few.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reports: Vec<&'a Report>,
}

impl<'a> Answer<'a> {
    pub(super) fn of(
        args: &SimulateArgs,
        scenario: &'a Scenario,
        comparison: &'a Comparison,
        reports: Vec<&'a Report>,
    ) -> Self {
        let part = args.shard.zip(args.seeds.as_ref()).map(|(part, seeds)| Part {
            index: part.index,
            count: part.count,
            first: *seeds.0.start(),
            last: *seeds.0.end(),
        });
        let fingerprint = scenario.fingerprint();
        Self { part, ..Self::joined(&scenario.title, fingerprint, comparison, reports) }
    }

    /// The answer for merged shards.
    pub(super) fn joined(
        scenario: &'a str,
        fingerprint: String,
        comparison: &'a Comparison,
        reports: Vec<&'a Report>,
    ) -> Self {
        let (api_version, kind) = ("salvor.dev/v1alpha1", "SimulationReport");
        Self { api_version, kind, scenario, fingerprint, part: None, comparison, reports }
    }
}

/// At most this many runs are reported in full.
pub(super) const IN_FULL: usize = 10;

pub(super) fn pretty(value: &impl Serialize) -> Result<String, CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CliError::Output(error.into()))?;
    Ok(text + "\n")
}
