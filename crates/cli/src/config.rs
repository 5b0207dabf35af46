//! `salvor config`: checks a configuration file, or prints one.

use std::path::PathBuf;

use salvor_api::config::{Configuration, defaults_yaml};
use serde_json::{Map, Value};

use crate::error::CliError;
use crate::output;
use crate::settings::read_file;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a file as `salvor run` would, and print what it changes
    Check {
        /// The configuration file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print a file with every field, its default and what it does
    Defaults,
}

pub(crate) fn execute(command: &ConfigCommand) -> Result<(), CliError> {
    match command {
        ConfigCommand::Check { file } => {
            let configuration = read_file(file, "the command line")?;
            let mut report = format!("{}: ok\n", file.display());
            let changed = changes(&configuration);
            if changed.is_empty() {
                report.push_str("# all settings have their defaults\n");
            } else {
                report.push_str("# settings other than the defaults:\n");
                report.push_str(&output::yaml(&Value::Object(changed))?);
            }
            output::print(&report)
        }
        ConfigCommand::Defaults => output::print(&defaults_yaml()),
    }
}

/// The settings that are not at their defaults, in the shape of the file.
pub(crate) fn changes(configuration: &Configuration) -> Map<String, Value> {
    let as_json = |configuration| serde_json::to_value(configuration).unwrap_or_default();
    difference(as_json(configuration), &as_json(&Configuration::default()))
}

fn difference(value: Value, default: &Value) -> Map<String, Value> {
    let Value::Object(fields) = value else {
        return Map::new();
    };
    let changed = |(name, value): (String, Value)| {
        let default = &default[&name];
        if value == *default {
            return None;
        }
        if default.is_object() && value.is_object() {
            return Some((name, Value::Object(difference(value, default))));
        }
        Some((name, value))
    };
    fields.into_iter().filter_map(changed).collect()
}

#[cfg(test)]
mod tests {
    use salvor_api::config::parse;

    use super::*;

    #[test]
    fn only_what_differs_is_shown_and_reads_back_the_same() {
        let header = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
        let cases = [
            ("", ""),
            ("dryRun: false\nbrake: {maxPodsPerMinute: 1000}", ""),
            (
                "brake: {maxPodsPerMinute: 5}\nbind: '127.0.0.1:1'",
                "bind: 127.0.0.1:1\nbrake:\n  maxPodsPerMinute: 5\n",
            ),
            (
                "featureGates: {FailureRecoveryPolicy: true}\ncontrollers: [-zombie]",
                "controllers:\n- -zombie\nfeatureGates:\n  FailureRecoveryPolicy: true\n",
            ),
            (
                "failureRecoveryPolicy: {rules: [{terminatePod: {podLabelSelector: {matchLabels: {a: 'true'}}, \
                 forcefulTerminationGracePeriod: 90s}}]}",
                "failureRecoveryPolicy:\n  rules:\n  - terminatePod:\n      action: Fail\n      \
                 forcefulTerminationGracePeriod: 1m30s\n      podLabelSelector:\n        matchLabels:\n          a: 'true'\n",
            ),
        ];
        for (file, expected) in cases {
            let configuration = parse(&format!("{header}{file}\n")).unwrap();
            let changed = changes(&configuration);
            let shown = if changed.is_empty() {
                String::new()
            } else {
                output::yaml(&Value::Object(changed)).unwrap()
            };
            assert_eq!(shown.replace('"', "'"), expected);
            assert_eq!(parse(&format!("{header}{shown}")).unwrap(), configuration);
        }
    }
}
