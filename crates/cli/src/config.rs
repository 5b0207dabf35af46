//! `salvor config`: checks a configuration file, or prints one.

mod changed;
mod import;

use std::path::PathBuf;

use salvor_api::Gate;
use salvor_api::config::{Configuration, LogFormat, defaults_yaml};
use salvor_api::names::configuration as names;
use salvor_operator::{InCluster, recoveries};
use serde_json::Value;
use tokio::runtime;
use tracing::level_filters::LevelFilter;

pub(crate) use self::changed::changes;
use crate::error::CliError;
use crate::pause::Place;
use crate::settings::read_file;
use crate::{logging, output};

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
    /// Print the configuration that the leader runs with, as a file with the settings other than the defaults
    Show(Place),
    /// Turn the configuration of CodeFlare's AppWrapper controller into Salvor's, and say what has no counterpart
    ///
    /// Salvor's file is printed; what cannot be taken over, and why, is said on standard error.
    ImportAppwrapper {
        /// Its ConfigMap, or the one file that is in it
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

pub(crate) fn execute(command: &ConfigCommand) -> Result<(), CliError> {
    match command {
        ConfigCommand::Check { file } => {
            let configuration = read_file(file, "the command line")?;
            let mut report = format!("{}: ok\n", file.display());
            for idle in without_effect(&configuration) {
                report.push_str(&format!("# warning: {idle}\n"));
            }
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
        ConfigCommand::Show(place) => show(place),
        ConfigCommand::ImportAppwrapper { file } => import::execute(file),
    }
}

#[derive(Debug, thiserror::Error)]
enum NotShown {
    #[error("{cluster}: there is no configuration to show. {told}")]
    NotPublished { cluster: String, told: String },
}

fn show(place: &Place) -> Result<(), CliError> {
    let election = place.configuration()?.leader_election;
    logging::start(LogFormat::Text, LevelFilter::WARN)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Start)?;
    let (running, cluster) = runtime.block_on(async {
        let cluster = place.cluster.load().await?;
        let running = InCluster::read(cluster.config.clone(), &election).await;
        Ok::<_, CliError>((running, format!("{} ({})", cluster.config.cluster_url, cluster.origin)))
    })?;
    match running.published.and_then(|published| published.configuration) {
        Some(configuration) => output::print(&as_file(&configuration, &running.told)?),
        None => {
            let told = running.told;
            Err(CliError::Command(NotShown::NotPublished { cluster, told }.into()))
        }
    }
}

/// A configuration file with these settings.
fn as_file(configuration: &Configuration, told: &str) -> Result<String, CliError> {
    let mut file = changes(configuration);
    file.insert("apiVersion".to_owned(), names::API_VERSION.into());
    file.insert("kind".to_owned(), names::KIND.into());
    Ok(format!("# {}\n{}", output::one_line(told), output::yaml(&Value::Object(file))?))
}

/// Valid settings without effect, because the feature that they belong to is switched off.
fn without_effect(configuration: &Configuration) -> Vec<String> {
    let mut idle = Vec::new();
    for entry in recoveries() {
        let controller = entry.controller;
        let settings = (entry.settings)(configuration);
        let is_on = |gate: &Gate| configuration.feature_gates.enabled(*gate);
        if let (Some(settings), Some(gate)) = (&settings, entry.gate.filter(|gate| !is_on(gate))) {
            idle.push(format!(
                "{settings}, but nothing will happen: the feature gate {gate} is off. Switch it on with featureGates: \
                 {{{gate}: true}}, or start Salvor with --feature-gates={gate}=true."
            ));
        }
        let switched_on = entry.gate.filter(|gate| is_on(gate) && !gate.default_enabled());
        let what = settings.or_else(|| switched_on.map(|gate| format!("featureGates.{gate} is true")));
        if let Some(what) = what.filter(|_| !configuration.controllers.enabled(controller)) {
            let (how, entry) = if controller.is_on_by_default() {
                (format!("leaves {controller} out"), format!("{controller} or \"*\""))
            } else {
                (format!("does not name {controller}"), controller.to_string())
            };
            idle.push(format!(
                "{what}, but nothing will happen: controllers {how}. Add {entry} there, or start Salvor with \
                 --controllers={controller}."
            ));
        }
    }
    if !configuration.appwrapper.slack_queue_name.is_empty() {
        idle.push("appwrapper.slackQueueName is set, but nothing will happen: Salvor does not change lending limits.".into());
    }
    idle
}

#[cfg(test)]
mod tests {
    use salvor_api::config::parse;

    use super::*;

    #[test]
    fn settings_of_what_is_switched_off_are_named() {
        let header = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
        let gate = "featureGates: {FailureRecoveryPolicy: true}\n";
        let rule = "failureRecoveryPolicy: {rules: [{terminatePod: {podLabelSelector: {matchLabels: {a: 'true'}}, \
                    forcefulTerminationGracePeriod: 90s}}]}\n";
        let wait = "failureRecoveryPolicy: {annotatedPods: {forcefulTerminationGracePeriod: 90s}}\n";
        let no_gate = "the feature gate FailureRecoveryPolicy is off";
        let cases: &[(&[&str], &[&str])] = &[
            (&[], &[]),
            (&[gate], &[]),
            (&[gate, rule], &[]),
            (
                &[rule],
                &[&format!("failureRecoveryPolicy.rules has 1 rule, but nothing will happen: {no_gate}.")],
            ),
            (&[wait], &[&format!("failureRecoveryPolicy is set, but nothing will happen: {no_gate}.")]),
            (
                &["featureGates: {FailureRecoveryPolicy: false}\n", rule],
                &["failureRecoveryPolicy.rules has 1 rule, but nothing will happen"],
            ),
            (
                &[gate, rule, "controllers: [job]\n"],
                &[
                    "failureRecoveryPolicy.rules has 1 rule, but nothing will happen: controllers leaves zombie out.",
                ],
            ),
            (
                &[gate, "controllers: [job]\n"],
                &["featureGates.FailureRecoveryPolicy is true, but nothing will happen: controllers"],
            ),
            (&[rule, "controllers: [-zombie]\n"], &[no_gate, "controllers leaves zombie out"]),
            (
                &[
                    "controllers: ['*', -job, -eviction]\njob: {unmanagedJobs: true}\neviction: {removeTaint: WhenEvicted}\n",
                ],
                &[
                    "job is set, but nothing will happen: controllers leaves job out.",
                    "eviction is set, but nothing will happen",
                ],
            ),
            (&["controllers: ['*', appwrapper]\nappwrapper: {schedulerName: a}\n"], &[]),
            (
                &["appwrapper: {slackQueueName: a}\n"],
                &[
                    "appwrapper is set, but nothing will happen: controllers does not name appwrapper.",
                    "appwrapper.slackQueueName is set, but nothing will happen",
                ],
            ),
        ];
        for (lines, expected) in cases {
            let idle = without_effect(&parse(&format!("{header}{}", lines.concat())).unwrap());
            assert_eq!(idle.len(), expected.len(), "{lines:?}: {idle:?}");
            assert!(idle.iter().zip(*expected).all(|(is, has)| is.contains(has)), "{lines:?}: {idle:?}");
        }
    }

    #[test]
    fn what_runs_is_shown_as_a_file_that_reads_back_the_same() {
        let header = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
        for settings in ["", "controllers: [zombie]\ndryRun: true\nbrake: {maxPodsPerMinute: 5}\n"] {
            let configuration = parse(&format!("{header}{settings}")).unwrap();
            let file = as_file(&configuration, "Judged by\nsomething").unwrap();
            assert!(file.starts_with("# Judged by something\n"), "{file}");
            assert_eq!(parse(&file).unwrap(), configuration, "{file}");
        }
    }

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
