//! Reads how Salvor is configured in a scenario.

use std::{collections::BTreeMap, fs};

use salvor_api::{
    ControllerList, Gate, GoDuration, LabelSelector,
    config::{self, ConfigError, Configuration, FailureRecoveryRule, TaintNodeOutOfService},
    names::repair,
};
use serde_json::{Value, json};
use serde_saphyr::Spanned;

use super::{
    GPU_POOL, Pool, ScenarioError, Settings, Source, file,
    raise::ACCELERATOR_WORKS,
    read::{bad, line},
};

/// An unreachable node of the short form is tainted out-of-service after this time, so that its volumes can be attached
/// elsewhere.
const OUT_OF_SERVICE_AFTER: GoDuration = GoDuration::from_secs(150);
/// How long the short form tolerates a failed accelerator, and an unreachable node with one.
const SICK_FOR: &str = "1m";
const SILENT_FOR: &str = "5m";

const HEADER: [(&str, &str); 2] = [("apiVersion", "config.salvor.dev/v1alpha1"), ("kind", "Configuration")];

/// Without any settings, Salvor runs with all its recoveries.
pub(super) fn settings(
    written: Option<&Spanned<file::Salvor>>,
    text: &str,
    source: &Source,
    is_short: bool,
    pools: &[Pool],
) -> Result<Settings, ScenarioError> {
    let short_policies = || -> BTreeMap<String, Value> {
        let has_gpus = is_short && pools.iter().any(|pool| pool.name == GPU_POOL);
        if has_gpus { [(GPU_POOL.to_owned(), gpu_policy())].into() } else { BTreeMap::new() }
    };
    let Some(spanned) = written else {
        return Ok(Settings {
            enabled: true,
            configuration: built_in(is_short),
            repair_policies: short_policies(),
        });
    };
    let it = &spanned.value;
    let configuration = match (&it.config, &it.config_file) {
        (Some(_), Some(_)) => {
            return Err(bad(line(spanned), "salvor", "write either config or configFile".into()));
        }
        (None, None) => built_in(is_short),
        (Some(inline), None) => in_simulation(inline_configuration(inline, text)?),
        (None, Some(path)) => {
            let (at, field) = (line(path), "salvor.configFile");
            let file = source.folder.join(&path.value);
            let read = fs::read_to_string(&file)
                .map_err(|error| bad(at, field, format!("cannot read {}: {error}", file.display())))?;
            let parsed = config::parse(&read)
                .map_err(|error| bad(at, field, format!("{}: {}", file.display(), first(&error).1)))?;
            in_simulation(parsed)
        }
    };
    let repair_policies =
        if it.repair_policies.is_empty() { short_policies() } else { it.repair_policies.clone() };
    Ok(Settings { enabled: it.enabled, configuration, repair_policies })
}

/// A configuration in a scenario may leave out its header. Its errors name the lines of the scenario.
fn inline_configuration(inline: &Spanned<Value>, text: &str) -> Result<Configuration, ScenarioError> {
    let missing: Vec<_> = HEADER.iter().filter(|(key, _)| inline.value[*key].is_null()).collect();
    let (own, at) = (block(inline, text), line(inline));
    let parsed = match &own {
        // As it is in the file, with its header last, so that line numbers stay the same.
        Some(own) => {
            let header: String = missing.iter().map(|(key, value)| format!("{key}: {value}\n")).collect();
            config::parse(&format!("{own}{header}"))
        }
        None => {
            let mut value = inline.value.clone();
            missing.iter().for_each(|(key, name)| value[*key] = json!(name));
            config::parse(&value.to_string())
        }
    };
    parsed.map_err(|error| {
        let (known, problem) = first(&error);
        let (field, message) = match error.problems.first() {
            Some(first) if !first.path.segments().is_empty() => {
                (format!("salvor.config.{}", first.path), first.message.clone())
            }
            _ => ("salvor.config".to_owned(), problem),
        };
        let own_line = known.filter(|_| own.is_some()).map_or(at, u64::from);
        bad(own_line, &field, message)
    })
}

fn first(error: &ConfigError) -> (Option<u32>, String) {
    let text = error.problems.first().map(ToString::to_string).unwrap_or_default();
    (error.problems.first().and_then(|problem| problem.line), text.replace('\n', " "))
}

/// The lines of a block, unindented and preceded by as many empty lines as the file has before it; `None` if it is
/// written in braces.
fn block(inline: &Spanned<Value>, text: &str) -> Option<String> {
    let first = usize::try_from(line(inline)).ok()?.checked_sub(1)?;
    let lines: Vec<&str> = text.lines().collect();
    let indent = lines.get(first)?.find(|c: char| c != ' ')?;
    let column = usize::try_from(inline.referenced.column()).ok()?;
    if column != indent + 1 || lines[first].trim_start().starts_with('{') {
        return None;
    }
    let mut own = "\n".repeat(first);
    for line in &lines[first..] {
        let is_empty = line.trim().is_empty() || line.trim_start().starts_with('#');
        if !is_empty && line.find(|c: char| c != ' ').is_some_and(|deep| deep < indent) {
            break;
        }
        own.push_str(line.get(indent..).unwrap_or_default());
        own.push('\n');
    }
    Some(own)
}

/// A configuration as it is played: one replica, in a cluster in which all requests come from the simulation. Salvor's
/// Job controller replaces the built-in one.
pub fn in_simulation(mut configuration: Configuration) -> Configuration {
    configuration.leader_election.enabled = false;
    configuration.webhooks.enabled = false;
    configuration.job.unmanaged_jobs = true;
    if configuration.appwrapper.wrapped_kinds_without_webhooks.is_empty() {
        configuration.appwrapper.wrapped_kinds_without_webhooks = vec!["Job.batch".to_owned()];
    }
    configuration
}

/// The configuration of a scenario that has none: all recoveries, with their defaults. In the short form Salvor may
/// also taint nodes out-of-service.
pub fn built_in(is_short: bool) -> Configuration {
    let mut configuration = in_simulation(Configuration::default());
    configuration.feature_gates.set(Gate::FailureRecoveryPolicy, true);
    configuration.controllers = ControllerList::new(["*", "appwrapper", "repair"]);
    if is_short {
        let nodes = FailureRecoveryRule::TaintNodeOutOfService(TaintNodeOutOfService {
            node_selector: LabelSelector {
                match_labels: [("pool".to_owned(), "demo".to_owned())].into(),
                ..LabelSelector::default()
            },
            unreachable_node_timeout: OUT_OF_SERVICE_AFTER,
        });
        configuration.failure_recovery_policy.rules = vec![nodes];
    }
    configuration
}

fn gpu_policy() -> Value {
    json!({
        "nodeSelector": { "matchLabels": { repair::labels::NODE_POOL: GPU_POOL } },
        "policies": [
            { "conditionType": ACCELERATOR_WORKS, "conditionStatus": "False", "toleration": SICK_FOR },
            { "conditionType": "Ready", "conditionStatus": "Unknown", "toleration": SILENT_FOR },
        ],
    })
}
