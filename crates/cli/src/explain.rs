//! `salvor explain`: Salvor's current verdict on an object, and the reasons.

mod render;

use std::env;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use jiff::Timestamp;
use salvor_api::config::LogFormat;
use salvor_operator::{Detail, DetailLine, InCluster, ObjectKind, ObjectName, explained_kinds};
use salvor_why::{Judge, Reader, did_you_mean, near};
use tokio::runtime;
use tracing::level_filters::LevelFilter;

use self::render::{Marks, Style};
use crate::cluster::ClusterArgs;
use crate::error::CliError;
use crate::logging;
use crate::output::{self, Form};
use crate::settings::JudgingArgs;

const SHORT: [(&str, &str); 3] = [("po", "pod"), ("no", "node"), ("aw", "appwrapper")];

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ExplainArgs {
    /// The object as in kubectl, such as pod/worker-0, job/train or node/worker-7
    #[arg(value_name = "KIND/NAME", value_parser = kind_and_name, required = true)]
    about: Option<(&'static ObjectKind, String)>,
    /// Never valid. It is read so that `explain deployment web` gets the error about its kind.
    #[arg(hide = true)]
    more: Option<String>,
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    subject: Option<ExplainedObject>,
}

/// An object to explain. Each kind that a recovery decides about is a subcommand.
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
                    .help("Its name, alone or with its namespace")
                    .value_parser(with_namespace)
            } else {
                object.value_name("NAME").help("Its name").value_parser(without_namespace)
            };
            let explain = Options::augment_args(Command::new(kind.word).arg(object));
            // Set last, because the flattened options would overwrite it with their own description.
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
        // The parser requires both, so this only happens without the parser.
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
    /// The namespace [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// The form of the answer
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: Form,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    judging: JudgingArgs,
}

#[derive(Debug, thiserror::Error)]
enum NotAName {
    #[error("write its namespace and name as NAMESPACE/NAME")]
    WithNamespace,
    #[error("write its name alone, as `kubectl get` shows it")]
    WithoutNamespace,
    #[error("write its kind and its name as KIND/NAME, such as pod/worker-0")]
    NoKind,
    #[error(
        "no recovery has verdicts on the kind {word:?}: known are {known}{}. `salvor why {word}/{name}` says why it does not \
         come back",
        did_you_mean(near)
    )]
    UnknownKind { word: String, name: String, known: String, near: Vec<String> },
    #[error("{0:?} has no namespace: write it as NAMESPACE/NAME, or add -n NAMESPACE")]
    NamespaceMissing(String),
    #[error("{object} is not in namespace {flag:?}, which -n names: give the namespace once")]
    TwoNamespaces { object: ObjectName, flag: String },
}

impl From<NotAName> for CliError {
    fn from(error: NotAName) -> Self {
        Self::Usage(error.into())
    }
}

/// A kind by any of kubectl's names for it, and a name.
fn kind_and_name(text: &str) -> Result<(&'static ObjectKind, String), NotAName> {
    // `explain deployment web` arrives here with its first word only.
    let (word, name) = text.split_once('/').unwrap_or((text, "NAME"));
    if word.is_empty() || name.is_empty() || name.contains('/') {
        return Err(NotAName::NoKind);
    }
    let low = word.to_lowercase();
    let plain = low.split('.').next().unwrap_or_default();
    let called = |kind: &&ObjectKind| {
        plain == kind.word
            || plain.strip_suffix('s') == Some(kind.word)
            || SHORT.iter().any(|(short, long)| plain == *short && *long == kind.word)
    };
    let kinds = explained_kinds();
    match kinds.iter().copied().find(called) {
        Some(_) if !text.contains('/') => Err(NotAName::NoKind),
        Some(kind) => Ok((kind, name.to_owned())),
        None => {
            let known: Vec<&str> = kinds.iter().map(|kind| kind.word).collect();
            Err(NotAName::UnknownKind {
                word: word.to_owned(),
                name: name.to_owned(),
                near: near(plain, known.iter().copied()),
                known: known.join(", "),
            })
        }
    }
}

fn with_namespace(text: &str) -> Result<ObjectName, NotAName> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(ObjectName { namespace: Some(namespace.into()), name: name.into() })
        }
        None if !text.is_empty() => Ok(ObjectName { namespace: None, name: text.into() }),
        _ => Err(NotAName::WithNamespace),
    }
}

fn without_namespace(text: &str) -> Result<ObjectName, NotAName> {
    if text.is_empty() || text.contains('/') {
        return Err(NotAName::WithoutNamespace);
    }
    Ok(ObjectName { namespace: None, name: text.into() })
}

/// The object with its namespace. Uses the namespace of the context if nothing else names one and `anywhere` allows it.
fn placed(
    kind: &ObjectKind,
    object: &ObjectName,
    flag: Option<&str>,
    anywhere: Option<&str>,
) -> Result<ObjectName, NotAName> {
    if !kind.namespaced {
        return Ok(ObjectName { namespace: None, name: object.name.clone() });
    }
    let namespace = match (&object.namespace, flag) {
        (Some(own), Some(flag)) if own != flag => {
            return Err(NotAName::TwoNamespaces { object: object.clone(), flag: flag.to_owned() });
        }
        (Some(own), _) => own,
        (None, flag) => flag.or(anywhere).ok_or_else(|| NotAName::NamespaceMissing(object.name.clone()))?,
    };
    Ok(ObjectName { namespace: Some(namespace.to_owned()), name: object.name.clone() })
}

pub(crate) fn execute(args: &ExplainArgs) -> Result<(), CliError> {
    let (kind, object, options, as_in_kubectl) = match (&args.subject, &args.about) {
        (Some(ExplainedObject { kind, object, options }), _) => (*kind, object.clone(), options, false),
        (None, Some((kind, name))) if args.more.is_none() => {
            (*kind, ObjectName { namespace: None, name: name.clone() }, &args.options, true)
        }
        (None, _) => return Err(NotAName::NoKind.into()),
    };
    let flag = options.namespace.as_deref();
    // Reports two namespaces before anything is read.
    placed(kind, &object, flag, Some(""))?;
    let mut configuration = options.judging.load()?;
    let mut judged_by = "Judged by the given configuration, and not by that of a running operator".to_owned();
    logging::start(LogFormat::Text, LevelFilter::WARN)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Start)?;
    let explanation = runtime.block_on(async {
        let cluster = match options.cluster.load().await {
            Ok(cluster) => cluster,
            Err(error) => {
                // Without a context there is no namespace to take.
                if !as_in_kubectl {
                    placed(kind, &object, flag, None)?;
                }
                return Err(error.into());
            }
        };
        let config = cluster.config.clone();
        let object = placed(kind, &object, flag, Some(&config.default_namespace))?;
        if !options.judging.is_given() {
            let running = InCluster::read(config.clone(), &configuration.leader_election).await;
            judged_by = running.told;
            if let Some(runs) = running.published.and_then(|published| published.configuration) {
                configuration = runs;
            }
        }
        let answer = salvor_operator::explain(config.clone(), &configuration, kind, &object).await;
        let mut explanation = answer.map_err(|source| CliError::Explain {
            source,
            cluster: format!("{} ({})", cluster.config.cluster_url, cluster.origin),
        })?;
        let judge = Judge { file: options.judging.is_given().then(|| configuration.clone()) };
        explanation.details.extend(expectation(config, &judge, kind, &object).await);
        Ok::<_, CliError>(explanation)
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
            format!("{}\n{judged_by}\n", render::render(&explanation, Timestamp::now(), style))
        }
    };
    output::print(&text)
}

/// When the work of the object is back, by the rules of `salvor why`. `None` if those cannot read the object.
async fn expectation(
    config: kube::Config,
    judge: &Judge,
    kind: &ObjectKind,
    object: &ObjectName,
) -> Option<Detail> {
    let mut reader = Reader::new(config).ok()?;
    let namespace = object.namespace.as_deref().unwrap_or_default();
    let (answer, _) = reader.why(judge, kind.word, namespace, &object.name).await.ok()?;
    let told = answer.expected_back.told(Timestamp::now());
    let text = told.unwrap_or_else(|| "Nothing is missing".to_owned());
    Some(Detail {
        key: "expectedBack",
        value: serde_json::to_value(&answer.expected_back).ok()?,
        title: "When its work is back".to_owned(),
        lines: vec![DetailLine { text, until: None }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_with_their_namespace_if_they_have_one() {
        let pod = with_namespace("training/worker-0").unwrap();
        assert_eq!((pod.namespace.as_deref(), pod.name.as_str()), (Some("training"), "worker-0"));
        for bad in ["/worker-0", "training/", "a/b/c", ""] {
            assert!(with_namespace(bad).is_err(), "{bad}");
        }
        let node = without_namespace("node-7").unwrap();
        assert_eq!((node.namespace.as_deref(), node.name.as_str()), (None, "node-7"));
        for bad in ["training/node-7", "/", ""] {
            assert!(without_namespace(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn objects_are_named_as_in_kubectl() {
        for (text, word) in [
            ("pod/a", "pod"),
            ("pods/a", "pod"),
            ("po/a", "pod"),
            ("Job/a", "job"),
            ("jobs.batch/a", "job"),
            ("no/a", "node"),
            ("aw/a", "appwrapper"),
        ] {
            let (kind, name) = kind_and_name(text).unwrap();
            assert_eq!((kind.word, name.as_str()), (word, "a"), "{text}");
        }
        for bad in ["pod", "pod/", "/a", "pod/a/b", "secret/a", ""] {
            assert!(kind_and_name(bad).is_err(), "{bad}");
        }
        for (text, command) in
            [("deploy/web", "`salvor why deploy/web`"), ("deployment", "`salvor why deployment/NAME`")]
        {
            let told = kind_and_name(text).map(|(kind, _)| kind.word).unwrap_err().to_string();
            assert!(told.contains(command), "{told}");
        }
        let told = kind_and_name("pood/a").map(|(kind, _)| kind.word).unwrap_err().to_string();
        assert!(told.contains("did you mean pod?"), "{told}");
    }

    #[test]
    fn the_namespace_is_given_once_or_is_that_of_the_context() {
        let kind = |word: &str| explained_kinds().into_iter().find(|kind| kind.word == word).unwrap();
        let pod = |text: &str| with_namespace(text).unwrap();
        let place = |text: &str, flag: Option<&str>, anywhere: Option<&str>| {
            placed(kind("pod"), &pod(text), flag, anywhere).ok().and_then(|object| object.namespace)
        };
        assert_eq!(place("a/p", None, Some("c")).as_deref(), Some("a"));
        assert_eq!(place("a/p", Some("a"), None).as_deref(), Some("a"));
        assert_eq!(place("a/p", Some("b"), None), None);
        assert_eq!(place("p", Some("b"), Some("c")).as_deref(), Some("b"));
        assert_eq!(place("p", None, Some("c")).as_deref(), Some("c"));
        assert_eq!(place("p", None, None), None);
        let node = ObjectName { namespace: None, name: "n".into() };
        assert_eq!(placed(kind("node"), &node, Some("b"), None).unwrap().namespace, None);
    }
}
