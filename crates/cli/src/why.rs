//! `salvor why`: shows on one screen why a workload does not recover.

mod render;

use std::path::PathBuf;
use std::process::ExitCode;

use jiff::Timestamp;
use salvor_api::config::LogFormat;
use salvor_why::{Judge, Reader, WhyError};
use serde::Serialize;
use tokio::runtime;
use tracing::level_filters::LevelFilter;

use crate::cluster::ClusterArgs;
use crate::error::CliError;
use crate::output::{self, Form};
use crate::settings::JudgingArgs;
use crate::{live, logging};

#[derive(Debug, clap::Args)]
pub(crate) struct WhyArgs {
    /// The object, such as job/train, pod/train-0, node/worker-7 or pvc/data: any kind by the names that kubectl knows
    #[arg(value_name = "KIND/NAME", value_parser = about, required_unless_present = "all", conflicts_with = "all")]
    about: Option<About>,
    /// Everything that does not come back, by root cause
    #[arg(long)]
    all: bool,
    /// With --all: in all namespaces
    #[arg(short = 'A', long, requires = "all", conflicts_with_all = ["namespace", "about"])]
    all_namespaces: bool,
    /// The namespace [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// The form of the answer
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: Form,
    /// Show it again whenever it changes, until interrupted
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Judge by this configuration file, and not by what runs in the cluster
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct About {
    kind: String,
    name: String,
}

#[derive(Debug, thiserror::Error)]
#[error("write its kind and its name as KIND/NAME, such as job/train")]
struct NotAnObject;

fn about(text: &str) -> Result<About, NotAnObject> {
    match text.split_once('/') {
        Some((kind, name)) if !kind.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(About { kind: kind.to_owned(), name: name.to_owned() })
        }
        _ => Err(NotAnObject),
    }
}

pub(crate) fn execute(args: &WhyArgs) -> Result<ExitCode, CliError> {
    let file = match &args.config {
        None => None,
        Some(path) => Some(JudgingArgs { config: Some(path.clone()), ..JudgingArgs::default() }.load()?),
    };
    let judge = Judge { file };
    logging::start(LogFormat::Text, LevelFilter::WARN)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Start)?;
    runtime.block_on(async {
        let cluster = args.cluster.load().await?;
        let asked = format!("{} ({})", cluster.config.cluster_url, cluster.origin);
        let failed = |source| CliError::Why { source, cluster: asked.clone() };
        let namespace = args.namespace.clone().unwrap_or_else(|| cluster.config.default_namespace.clone());
        let mut reader = Reader::new(cluster.config.clone()).map_err(failed)?;
        if !args.watch {
            let text = answer(args, &mut reader, &judge, &namespace).await?.map_err(failed)?;
            output::print(&text)?;
            return Ok(ExitCode::SUCCESS);
        }
        let view = async || answer(args, &mut reader, &judge, &namespace).await?.map_err(failed);
        live::watch(args.output, view).await
    })
}

/// One answer as text. The outer error is Salvor's own, the inner one comes from the cluster.
async fn answer(
    args: &WhyArgs,
    reader: &mut Reader,
    judge: &Judge,
    namespace: &str,
) -> Result<Result<String, WhyError>, CliError> {
    let now = Timestamp::now();
    let Some(About { kind, name }) = &args.about else {
        let within = (!args.all_namespaces).then_some(namespace);
        return match reader.everything(judge, within).await {
            Err(error) => Ok(Err(error)),
            Ok((overview, judged_by)) => match args.output {
                Form::Json => json(&overview).map(Ok),
                Form::Text => Ok(Ok(render::overview(&overview, &judged_by, now))),
            },
        };
    };
    match reader.why(judge, kind, namespace, name).await {
        Err(error) => Ok(Err(error)),
        Ok((answer, judged_by)) => match args.output {
            Form::Json => json(&answer).map(Ok),
            Form::Text => Ok(Ok(render::answer(&answer, &judged_by, now))),
        },
    }
}

fn json(value: &impl Serialize) -> Result<String, CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CliError::Output(error.into()))?;
    Ok(text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_its_kind_and_its_name() {
        assert_eq!(about("job/train").unwrap(), About { kind: "job".into(), name: "train".into() });
        for bad in ["job", "job/", "/train", "a/b/c", "", "/"] {
            assert!(about(bad).is_err(), "{bad}");
        }
    }
}
