//! `salvor explain`: what Salvor thinks of an object now, and why.

mod render;

use std::env;
use std::path::PathBuf;
use std::str::FromStr;

use jiff::Timestamp;
use salvor_api::config::LogFormat;
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
    subject: Subject,
}

#[derive(Debug, clap::Subcommand)]
enum Subject {
    /// A pod
    Pod {
        /// Its namespace and name
        #[arg(value_name = "NAMESPACE/NAME")]
        pod: NamespacedName,
        #[command(flatten)]
        options: Options,
    },
    /// A Job
    Job {
        /// Its namespace and name
        #[arg(value_name = "NAMESPACE/NAME")]
        job: NamespacedName,
        #[command(flatten)]
        options: Options,
    },
    /// A node
    Node {
        /// Its name
        #[arg(value_name = "NAME")]
        node: String,
        #[command(flatten)]
        options: Options,
    },
}

impl Subject {
    fn options(&self) -> &Options {
        match self {
            Self::Pod { options, .. } | Self::Job { options, .. } | Self::Node { options, .. } => options,
        }
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

/// An object by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamespacedName {
    namespace: String,
    name: String,
}

#[derive(Debug, thiserror::Error)]
#[error("write its namespace and name as NAMESPACE/NAME")]
struct NotANamespacedName;

impl FromStr for NamespacedName {
    type Err = NotANamespacedName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { namespace: namespace.into(), name: name.into() })
            }
            _ => Err(NotANamespacedName),
        }
    }
}

pub(crate) fn execute(args: &ExplainArgs) -> Result<(), CliError> {
    let options = args.subject.options();
    let configuration = options.judging.load()?;
    logging::start(LogFormat::Text, LevelFilter::WARN)?;
    let source = Source::find(options.kubeconfig.as_deref());
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Start)?;
    let explanation = runtime.block_on(async {
        let cluster = Cluster::load(&source).await?;
        let config = cluster.config.clone();
        let answer = match &args.subject {
            Subject::Pod { pod, .. } => {
                salvor_operator::explain_pod(config, &configuration, &pod.namespace, &pod.name).await
            }
            Subject::Job { job, .. } => {
                salvor_operator::explain_job(config, &configuration, &job.namespace, &job.name).await
            }
            Subject::Node { node, .. } => salvor_operator::explain_node(config, &configuration, node).await,
        };
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
            render::render(&explanation, Timestamp::now(), style)
        }
    };
    output::print(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_or_job_is_named_with_its_namespace() {
        let pod: NamespacedName = "training/worker-0".parse().unwrap();
        assert_eq!((&*pod.namespace, &*pod.name), ("training", "worker-0"));
        for bad in ["worker-0", "/worker-0", "training/", "a/b/c", ""] {
            assert!(bad.parse::<NamespacedName>().is_err(), "{bad}");
        }
    }
}
