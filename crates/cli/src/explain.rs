//! `salvor explain`: Salvor's verdict on an object now, and the reasons.

mod render;

use std::env;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use jiff::Timestamp;
use salvor_api::config::LogFormat;
use salvor_operator::{InCluster, ObjectKind, ObjectName, explained_kinds};
use tokio::runtime;
use tracing::level_filters::LevelFilter;

use self::render::{Marks, Style};
use crate::cluster::{Cluster, Source};
use crate::error::CliError;
use crate::settings::JudgingArgs;
use crate::{logging, output};

#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    subject: ExplainedObject,
}

/// An object to explain. Its kind is a subcommand, one for each kind that a recovery has verdicts on.
#[derive(Debug)]
struct ExplainedObject {
    kind: &'static ObjectKind,
    object: ObjectName,
    options: Options,
}

impl clap::Subcommand for ExplainedObject {
    fn augment_subcommands(command: Command) -> Command {
        explained_kinds().into_iter().fold(command, |command, kind| {
            let object = Arg::new(kind.word).required(true);
            let object = if kind.namespaced {
                object
                    .value_name("NAMESPACE/NAME")
                    .help("Its namespace and name")
                    .value_parser(with_namespace)
            } else {
                object.value_name("NAME").help("Its name").value_parser(without_namespace)
            };
            let explain = Options::augment_args(Command::new(kind.word).arg(object));
            // Last, because the options have a line of their own about themselves.
            command.subcommand(explain.about(kind.title))
        })
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        explained_kinds().iter().any(|kind| kind.word == name)
    }
}

impl FromArgMatches for ExplainedObject {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let found = matches.subcommand().and_then(|(word, matches)| {
            let kind = explained_kinds().into_iter().find(|kind| kind.word == word)?;
            Some((kind, matches.get_one::<ObjectName>(kind.word)?.clone(), matches))
        });
        // The parser demands both, so this is for somebody who calls it without the parser.
        let (kind, object, matches) =
            found.ok_or_else(|| clap::Error::new(clap::error::ErrorKind::MissingSubcommand))?;
        Ok(Self { kind, object, options: Options::from_arg_matches(matches)? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[derive(Debug, clap::Args)]
struct Options {
    /// The form of the answer
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: Form,
    /// The kubeconfig file [env: KUBECONFIG] [default: ~/.kube/config, else the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    judging: JudgingArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// For people
    Text,
    /// For machines
    Json,
}

#[derive(Debug, thiserror::Error)]
enum NotAName {
    #[error("write its namespace and name as NAMESPACE/NAME")]
    WithNamespace,
    #[error("write its name alone, as `kubectl get` shows it")]
    WithoutNamespace,
}

fn with_namespace(text: &str) -> Result<ObjectName, NotAName> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(ObjectName { namespace: Some(namespace.into()), name: name.into() })
        }
        _ => Err(NotAName::WithNamespace),
    }
}

fn without_namespace(text: &str) -> Result<ObjectName, NotAName> {
    if text.is_empty() || text.contains('/') {
        return Err(NotAName::WithoutNamespace);
    }
    Ok(ObjectName { namespace: None, name: text.into() })
}

pub(crate) fn execute(args: &ExplainArgs) -> Result<(), CliError> {
    let ExplainedObject { kind, object, options } = &args.subject;
    let mut configuration = options.judging.load()?;
    let mut judged_by = None;
    logging::start(LogFormat::Text, LevelFilter::WARN)?;
    let source = Source::find(options.kubeconfig.as_deref());
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Start)?;
    let explanation = runtime.block_on(async {
        let cluster = Cluster::load(&source).await?;
        let config = cluster.config.clone();
        if !options.judging.is_given() {
            let running = InCluster::read(config.clone(), &configuration.leader_election).await;
            judged_by = Some(running.told);
            if let Some(runs) = running.published.and_then(|published| published.configuration) {
                configuration = runs;
            }
        }
        let answer = salvor_operator::explain(config, &configuration, kind, object).await;
        answer.map_err(|source| CliError::Explain {
            source,
            cluster: format!("{} ({})", cluster.config.cluster_url, cluster.origin),
        })
    })?;
    let text = match options.output {
        Form::Json => {
            let json = serde_json::to_string_pretty(&explanation);
            json.map_err(|error| CliError::Output(error.into()))? + "\n"
        }
        Form::Text => {
            let style = Style {
                marks: Marks::for_terminal(|name| env::var(name).ok()),
                dry_run: configuration.dry_run,
            };
            let mut text = render::render(&explanation, Timestamp::now(), style);
            if let Some(judged_by) = judged_by {
                text.push_str(&format!("\n{judged_by}\n"));
            }
            text
        }
    };
    output::print(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_with_their_namespace_if_they_have_one() {
        let pod = with_namespace("training/worker-0").unwrap();
        assert_eq!((pod.namespace.as_deref(), pod.name.as_str()), (Some("training"), "worker-0"));
        for bad in ["worker-0", "/worker-0", "training/", "a/b/c", ""] {
            assert!(with_namespace(bad).is_err(), "{bad}");
        }
        let node = without_namespace("node-7").unwrap();
        assert_eq!((node.namespace.as_deref(), node.name.as_str()), (None, "node-7"));
        for bad in ["training/node-7", "/", ""] {
            assert!(without_namespace(bad).is_err(), "{bad}");
        }
    }
}
