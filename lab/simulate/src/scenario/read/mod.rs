//! Turns a file into a scenario: checks every value and reports problems with their line.

mod place;
mod pools;
mod targets;
mod values;
mod workloads;

use std::time::Duration;

use serde_saphyr::Spanned;

use self::{
    pools::{long_pools, short_pools},
    workloads::workloads_of,
};
use super::{API_VERSION, KIND, Scenario, ScenarioError, Source, failures, file::File, salvor};

pub(super) use targets::condition;
pub(super) use values::{LONGEST, any_duration, bad, duration, line, long_duration};

/// Many health checks and load balancers reinstate a machine that was away for no longer than this.
const BACK_SOON: Duration = Duration::from_secs(300);

pub(super) fn scenario(text: &str, source: &Source) -> Result<Scenario, ScenarioError> {
    let file: File = serde_saphyr::from_str(text).map_err(|error| unreadable(text, &error))?;
    is_ours(file.api_version.as_ref(), "apiVersion", API_VERSION)?;
    is_ours(file.kind.as_ref(), "kind", KIND)?;
    let (pools, nodes) = match &file.pools {
        Some(pools) => {
            for (name, short) in [
                ("zones", &file.zones),
                ("nodesPerZone", &file.nodes_per_zone),
                ("gpuNodes", &file.gpu_nodes),
            ] {
                if let Some(short) = short {
                    let problem =
                        "there are pools as well: write either pools, or zones, nodesPerZone and gpuNodes"
                            .into();
                    return Err(bad(line(short), name, problem));
                }
            }
            long_pools(pools)?
        }
        None => short_pools(&file)?,
    };
    let workloads = workloads_of(&file, &pools)?;
    let is_short = file.pools.is_none();
    let salvor = salvor::settings(file.salvor.as_ref(), text, source, is_short, &pools)?;
    let mut scenario = Scenario {
        title: file.title,
        say: file.say,
        pools,
        nodes,
        workloads,
        steps: Vec::new(),
        failures: Vec::new(),
        salvor,
        patience: duration(&file.patience, "patience")?,
        end: file.end.as_ref().map(|end| any_duration(end, "end")).transpose()?,
        back_soon: file
            .back_soon
            .as_ref()
            .map(|it| any_duration(it, "backSoon"))
            .transpose()?
            .unwrap_or(BACK_SOON),
    };
    for (index, step) in file.steps.unwrap_or_default().into_iter().enumerate() {
        let step = scenario.step(&format!("steps[{index}]"), step)?;
        scenario.steps.push(step);
    }
    for (index, failure) in file.failures.iter().enumerate() {
        let more = failures::read(&scenario, &format!("failures[{index}]"), failure, source)?;
        scenario.failures.extend(more);
    }
    Ok(scenario)
}

/// The parser's message, with the line and the path of the field.
fn unreadable(text: &str, error: &serde_saphyr::Error) -> ScenarioError {
    if text.trim().is_empty() {
        return ScenarioError::Yaml("it is empty: write at least title".to_owned());
    }
    let words = error.without_snippet().to_string();
    let words = words.lines().next().unwrap_or_default().trim_end();
    let at = error.location().filter(|at| at.line() > 0);
    let problem = words.split(" at line ").next().unwrap_or_default();
    let problem = problem.split(", set DuplicateKeyPolicy").next().unwrap_or_default().to_owned();
    let Some(at) = at else { return ScenarioError::Yaml(words.to_owned()) };
    let line = at.line();
    let missing = problem.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    let field = place::path_at(text, &at).map(|path| match missing {
        Some(name) => path.beside(name),
        None => path,
    });
    match field.map(|field| field.to_string()).filter(|field| !field.is_empty()) {
        Some(field) => bad(line, &field, problem),
        None => ScenarioError::Yaml(format!("line {line}: {problem}")),
    }
}

fn is_ours(found: Option<&Spanned<String>>, field: &str, ours: &str) -> Result<(), ScenarioError> {
    match found {
        Some(found) if found.value != ours => Err(bad(
            line(found),
            field,
            format!("{:?} is not known: write {ours}, or leave it out", found.value),
        )),
        _ => Ok(()),
    }
}
