//! `salvor why`: shows on one screen why a workload does not recover.

mod render;

use std::path::PathBuf;
use std::process::ExitCode;

use jiff::Timestamp;
use salvor_api::config::LogFormat;
use salvor_why::{Judge, Reader, WhyError, is_namespace};
use serde::Serialize;
use tokio::runtime;
use tracing::level_filters::LevelFilter;

use crate::cluster::ClusterArgs;
use crate::error::CliError;
use crate::output::{self, Form};
use crate::settings::JudgingArgs;
use crate::{live, logging};

/// The exit code of `--exit-code` if something is missing.
const MISSING: u8 = 4;

#[derive(Debug, clap::Args)]
pub(crate) struct WhyArgs {
    /// The object, as KIND/NAME or KIND NAME: any kind by the names that kubectl knows. Nothing means --all
    ///
    /// Such as job/train, pod/train-0, node/worker-7 or pvc/data. ns/NAME means everything in that namespace.
    #[arg(value_name = "KIND/NAME", num_args = 0..=2, conflicts_with_all = ["all", "all_namespaces"])]
    about: Vec<String>,
    /// Everything that does not come back, by root cause; this is the default
    #[arg(long)]
    all: bool,
    /// Everything in all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
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
    /// Exit with 4 if something is missing, and not with 0
    #[arg(long, conflicts_with = "watch")]
    exit_code: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Judge by this configuration file, and not by what runs in the cluster
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What the question is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum About {
    Object {
        kind: String,
        name: String,
    },
    /// Everything in a namespace: the named one, or else the one of the flags and the context.
    Everything {
        namespace: Option<String>,
    },
}

#[derive(Debug, thiserror::Error)]
enum NotAnObject {
    #[error(
        "{0:?} names no object: write its kind and its name as KIND/NAME or KIND NAME, such as job/train"
    )]
    Form(String),
    #[error("namespace {named:?} is not {flag:?}, which -n names: give the namespace once")]
    TwoNamespaces { named: String, flag: String },
}

impl From<NotAnObject> for CliError {
    fn from(error: NotAnObject) -> Self {
        Self::Usage(error.into())
    }
}

/// Reads the arguments of the question.
fn about(words: &[String], flag: Option<&str>) -> Result<About, NotAnObject> {
    let wrong = || NotAnObject::Form(words.join(" "));
    let (kind, name) = match words {
        [] => return Ok(About::Everything { namespace: None }),
        [one] => one.split_once('/').ok_or_else(wrong)?,
        [kind, name] => (kind.as_str(), name.as_str()),
        _ => return Err(wrong()),
    };
    if [kind, name].iter().any(|word| word.is_empty() || word.contains('/')) {
        return Err(wrong());
    }
    if !is_namespace(kind) {
        return Ok(About::Object { kind: kind.to_owned(), name: name.to_owned() });
    }
    match flag.filter(|flag| *flag != name) {
        Some(flag) => Err(NotAnObject::TwoNamespaces { named: name.to_owned(), flag: flag.to_owned() }),
        None => Ok(About::Everything { namespace: Some(name.to_owned()) }),
    }
}

pub(crate) fn execute(args: &WhyArgs) -> Result<ExitCode, CliError> {
    let about = about(&args.about, args.namespace.as_deref())?;
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
        let mut view = async || answer(args, &about, &mut reader, &judge, &namespace).await?.map_err(failed);
        if args.watch {
            return live::watch(args.output, async || Ok(view().await?.text)).await;
        }
        let Shown { text, complete } = view().await?;
        match args.output {
            Form::Text => output::show(&text, false)?,
            Form::Json => output::print(&text)?,
        }
        Ok(if args.exit_code && !complete { ExitCode::from(MISSING) } else { ExitCode::SUCCESS })
    })
}

/// An answer as text.
struct Shown {
    text: String,
    /// Whether nothing is missing.
    complete: bool,
}

/// The outer error is Salvor's own, the inner one comes from the cluster.
async fn answer(
    args: &WhyArgs,
    about: &About,
    reader: &mut Reader,
    judge: &Judge,
    namespace: &str,
) -> Result<Result<Shown, WhyError>, CliError> {
    let now = Timestamp::now();
    match about {
        About::Everything { namespace: named } => {
            let within = (!args.all_namespaces).then_some(named.as_deref().unwrap_or(namespace));
            let (overview, judged_by) = match reader.everything(judge, within).await {
                Ok(found) => found,
                Err(error) => return Ok(Err(error)),
            };
            let text = match args.output {
                Form::Json => json(&overview)?,
                Form::Text => render::overview(&overview, &judged_by, now),
            };
            Ok(Ok(Shown { text, complete: overview.groups.is_empty() }))
        }
        About::Object { kind, name } => {
            let (answer, judged_by) = match reader.why(judge, kind, namespace, name).await {
                Ok(found) => found,
                Err(error) => return Ok(Err(error)),
            };
            let text = match args.output {
                Form::Json => json(&answer)?,
                Form::Text => render::answer(&answer, &judged_by, now),
            };
            Ok(Ok(Shown { text, complete: answer.missing.is_none() }))
        }
    }
}

fn json(value: &impl Serialize) -> Result<String, CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CliError::Output(error.into()))?;
    Ok(text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, flag: Option<&str>) -> Result<About, NotAnObject> {
        let words: Vec<String> = line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        about(&words, flag)
    }

    #[test]
    fn a_question_is_about_an_object_or_about_everything() {
        let object = |kind: &str, name: &str| About::Object { kind: kind.into(), name: name.into() };
        let within = |name: &str| About::Everything { namespace: Some(name.into()) };
        for (line, flag, expected) in [
            ("job/train", None, object("job", "train")),
            ("job train", Some("a"), object("job", "train")),
            ("", Some("a"), About::Everything { namespace: None }),
            ("ns/x", None, within("x")),
            ("namespace x", Some("x"), within("x")),
            ("Namespaces/x", None, within("x")),
        ] {
            assert_eq!(read(line, flag).unwrap(), expected, "{line}");
        }
        for bad in ["job", "job/", "/train", "a/b/c", "/", "job/train x", "job tra/in"] {
            assert!(read(bad, None).is_err(), "{bad}");
        }
        assert!(matches!(read("ns/x", Some("y")), Err(NotAnObject::TwoNamespaces { .. })));
    }
}
