//! The command line: subcommands and their help.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::completions::{CompleteArgs, CompletionsArgs};
use crate::config::ConfigCommand;
use crate::demo::DemoArgs;
use crate::docs::DocsArgs;
use crate::doctor::DoctorArgs;
use crate::error::CliError;
use crate::evict::EvictArgs;
use crate::explain::ExplainArgs;
use crate::local_cluster::LocalClusterArgs;
use crate::manifests::ManifestsArgs;
use crate::opt_in::OptInArgs;
use crate::pause::{PauseArgs, ResumeArgs};
use crate::run::RunArgs;
use crate::simulate::SimulateArgs;
use crate::status::StatusArgs;
use crate::uninstall::UninstallArgs;
use crate::why::WhyArgs;
use crate::{
    completions, config, demo, docs, doctor, evict, explain, local_cluster, manifests, opt_in, output, pause,
    run, simulate, status, uninstall, why,
};

/// Recovers workloads after a Kubernetes node is lost: quickly, and never twice without consent.
#[derive(Debug, Parser)]
#[command(name = "salvor", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Watch nodes fail and their pods recover, in a cluster inside this process
    ///
    /// Starts a cluster in memory, Salvor, and a page on loopback, and plays a story. Nothing else is needed. Nothing outside
    /// of the process is touched.
    Demo(DemoArgs),
    /// Know what a policy will do: play a scenario in virtual time, and report times to recovery, lost work and what ran twice
    ///
    /// The real operator, on a cluster in memory with simulated nodes that know what really ran. One seed is one history. Compare
    /// configurations with --compare and --sweep, and peers with --against. Nothing outside of the process is touched.
    Simulate(Box<SimulateArgs>),
    /// Run the operator until SIGTERM or SIGINT
    Run(RunArgs),
    /// Show how Salvor runs here: leader, recoveries, brake, pause, what waits or is blocked, and what it did last
    ///
    /// It only reads: the Lease of the leader election, what `salvor why` reads, and Salvor's events.
    Status(StatusArgs),
    /// Show Salvor's verdict on an object now: every rule, what was observed, and what happens next
    Explain(Box<ExplainArgs>),
    /// Say why a workload does not come back: what is missing, why, since when, and what can be done now
    ///
    /// It only reads, and works on any cluster, with Salvor or without. Every root cause that it knows is described in
    /// docs/guides/why.md.
    Why(WhyArgs),
    /// Check whether this cluster and Salvor fit each other: versions, rights, and others that act on the same objects
    ///
    /// It only reads, and can be asked before installing and after. Use --as system:serviceaccount:salvor-system:salvor to
    /// check the rights of an installation. It ends with 1 after an error, with 3 after a warning, and else with 0.
    Doctor(Box<DoctorArgs>),
    /// Print manifests with what recovery needs, so that work comes back in about a minute
    ///
    /// Adds the consent and salvor.dev/evict-after to every pod template, and to Jobs what keeps lost pods from counting as
    /// failures. Comments and the order of fields stay where possible. What changed, and what it means in seconds, is said on
    /// standard error. Nothing is sent to a cluster.
    #[command(name = "opt-in")]
    OptIn(OptInArgs),
    /// Evict a node whose machine is off: shows its pods, asks, and follows until its volumes are detached
    ///
    /// It only adds the taint salvor.dev/force-eviction to the node, as `kubectl taint` would. The operator does the rest.
    Evict(EvictArgs),
    /// Pause Salvor without a restart: no replica writes to pods, nodes or Jobs until `salvor resume`
    ///
    /// It adds the annotation salvor.dev/paused to the Lease of the leader election, and waits until the leader has stopped.
    Pause(PauseArgs),
    /// Go on after `salvor pause`
    Resume(ResumeArgs),
    /// Print the YAML that installs Salvor, with rights for the enabled recoveries only
    ///
    /// The configuration comes from the same file, variables and flags as for `salvor run`, and is printed as a ConfigMap. At
    /// least one recovery must be named, by --controllers or by `controllers` in the file; an installation gets rights for
    /// what is named, and for nothing else.
    #[command(mut_args(manifests::names_recoveries))]
    Manifests(ManifestsArgs),
    /// Take everything of Salvor's off the objects of a cluster, before Salvor itself is removed
    ///
    /// Finalizers, taints, annotations, conditions and webhooks, and the Lease of the leader election. Without --yes it
    /// only prints what it would do. It is refused while an operator leads.
    Uninstall(UninstallArgs),
    /// Start a cluster in memory, for tests, until SIGTERM or SIGINT
    ///
    /// A Kubernetes API with control loops and simulated nodes, in one process. `kubectl`, `salvor run` and other
    /// people's controllers work on it as on any cluster. Nothing is kept when it ends.
    Cluster(LocalClusterArgs),
    /// Check a configuration file, or print one with every default explained
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell, or for `kubectl salvor`
    Completions(CompletionsArgs),
    /// Complete the arguments of `kubectl salvor`
    #[command(name = "__complete", hide = true, disable_help_flag = true)]
    Complete(CompleteArgs),
    /// Print the version
    Version,
    /// Write the generated reference pages into a folder
    #[command(hide = true)]
    Docs(DocsArgs),
}

impl Cli {
    /// Parses the command line. As the kubectl plugin `kubectl-salvor`, all help texts call it `kubectl salvor`.
    pub(crate) fn read() -> Self {
        let program = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
        let mut command = Self::command();
        if is_plugin(&program) {
            command = command.bin_name("kubectl salvor");
        }
        let read = Self::from_arg_matches(&command.get_matches());
        read.unwrap_or_else(|error| error.format(&mut Self::command()).exit())
    }

    pub(crate) fn execute(self) -> Result<ExitCode, CliError> {
        match self.command {
            Command::Demo(args) => return demo::execute(&args),
            Command::Simulate(args) => return simulate::execute(&args),
            Command::Run(args) => return run::execute(&args),
            Command::OptIn(args) => return opt_in::execute(&args),
            Command::Evict(args) => return evict::execute(&args),
            Command::Status(args) => return status::execute(&args),
            Command::Why(args) => return why::execute(&args),
            Command::Doctor(args) => return doctor::execute(&args),
            Command::Pause(args) => return pause::pause(&args),
            Command::Resume(args) => return pause::resume(&args),
            Command::Uninstall(args) => return uninstall::execute(&args),
            Command::Cluster(args) => return local_cluster::execute(args),
            Command::Explain(args) => explain::execute(&args)?,
            Command::Manifests(args) => manifests::execute(&args)?,
            Command::Config(command) => config::execute(&command)?,
            Command::Completions(args) => completions::execute(&args, Self::command())?,
            Command::Complete(args) => completions::complete(&args, Self::command())?,
            Command::Version => output::print(concat!("salvor ", env!("CARGO_PKG_VERSION"), "\n"))?,
            Command::Docs(args) => docs::execute(&args, Self::command())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Whether kubectl starts a program of this name as the plugin `salvor`.
fn is_plugin(program: &Path) -> bool {
    program.file_stem().is_some_and(|name| name == "kubectl-salvor")
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_plugin_is_known_by_its_name() {
        for (program, expected) in [
            ("/usr/local/bin/kubectl-salvor", true),
            ("kubectl-salvor.exe", true),
            ("salvor", false),
            ("/kubectl-salvor/salvor", false),
            ("", false),
        ] {
            assert_eq!(is_plugin(Path::new(program)), expected, "{program}");
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
