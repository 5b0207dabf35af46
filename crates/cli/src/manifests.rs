//! `salvor manifests`: prints the objects that install Salvor, with rights only for the enabled recoveries.

pub(crate) mod chart;
mod installation;
mod memory;
mod objects;
mod rbac;

use salvor_api::Controller;
use salvor_api::config::Configuration;
use salvor_operator::{Off, Right, recoveries, webhooks_in_effect};
use serde_json::Value;

use self::installation::{Installation, ManifestsError};
use crate::error::CliError;
use crate::output;
use crate::settings::{JudgingArgs, Loaded};

const LONGEST_NAMESPACE: usize = 63;

#[derive(Debug, clap::Args)]
pub(crate) struct ManifestsArgs {
    /// The namespace to install into, which also holds the leader's Lease [default: leaderElection.leaseNamespace]
    #[arg(long, value_name = "NAMESPACE", value_parser = namespace)]
    namespace: Option<String>,
    /// The container image
    #[arg(long, value_name = "IMAGE", default_value = concat!("salvor:", env!("CARGO_PKG_VERSION")), value_parser = image)]
    image: String,
    /// Leave the CustomResourceDefinitions out, as for `kubectl delete`: with a definition all its objects go
    #[arg(long)]
    skip_crds: bool,
    #[command(flatten)]
    judging: JudgingArgs,
}

/// Sets another help text for `--controllers`, which has no default in this command, unlike in others.
pub(crate) fn names_recoveries(argument: clap::Arg) -> clap::Arg {
    if argument.get_id() != "controllers" {
        return argument;
    }
    argument.help(
        "The recoveries to install, separated by commas: `name` for one, `*` for all but appwrapper and repair, `-name` to leave \
         one out; required, unless the file names them [env: SALVOR_CONTROLLERS]",
    )
}

/// No recovery is named. An installation gets only the rights that were requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no recovery is named, and nothing is installed that is not: add --controllers with one or more of {}, such as \
     --controllers zombie,job, or --controllers '*' for {} (a file of --config may name them in its field controllers)",
    names(Controller::ALL.iter().copied()),
    names(Controller::ALL.iter().copied().filter(|controller| controller.is_on_by_default()))
)]
struct NothingNamed;

fn names(controllers: impl Iterator<Item = Controller>) -> String {
    controllers.map(Controller::name).collect::<Vec<_>>().join(", ")
}

impl From<ManifestsError> for CliError {
    fn from(error: ManifestsError) -> Self {
        Self::Command(format!("cannot make manifests: {error}").into())
    }
}

/// Each right that an installation with this configuration needs, and which part of Salvor needs it.
pub(crate) fn rights(configuration: &Configuration) -> Vec<(String, Right)> {
    rbac::needed(configuration, &webhooks_in_effect(configuration))
}

pub(crate) fn execute(args: &ManifestsArgs) -> Result<(), CliError> {
    let Loaded { configuration, names_controllers } = args.judging.load_with_source()?;
    let any = Controller::ALL.iter().any(|controller| configuration.controllers.enabled(*controller));
    if !names_controllers || !any {
        return Err(CliError::Usage(NothingNamed.into()));
    }
    for (entry, off) in recoveries().filter_map(|entry| Some((entry, entry.off(&configuration)?))) {
        if let Off::Gate(_) = off
            && configuration.controllers.enabled(entry.controller)
        {
            eprintln!("salvor: the recovery {} is named and will not run: {off}", entry.controller);
        }
    }
    let installation = Installation::new(args.namespace.clone(), args.image.clone(), configuration)?;
    let mut objects = objects::all(&installation)?;
    if args.skip_crds {
        objects.retain(|object| object["kind"] != "CustomResourceDefinition");
    }
    output::print(&yaml(&objects)?)
}

fn yaml(objects: &[Value]) -> Result<String, CliError> {
    let documents: Result<Vec<_>, _> = objects.iter().map(output::yaml).collect();
    Ok(documents?.join("---\n"))
}

fn namespace(text: &str) -> Result<String, String> {
    let edge =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = text.as_bytes();
    let good = bytes.len() <= LONGEST_NAMESPACE
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| edge(Some(byte)) || *byte == b'-');
    if good {
        Ok(text.into())
    } else {
        Err(format!(
            "use at most {LONGEST_NAMESPACE} lower-case letters, digits and '-', with a letter or digit at both ends"
        ))
    }
}

fn image(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err("name an image, for example salvor:1.0".into());
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests;
