//! `salvor completions`: completion scripts for shells, and for `kubectl salvor`.

use clap::Arg;
use clap_complete::Shell;

use crate::error::CliError;
use crate::output;

/// kubectl runs a program of this name to complete the arguments of its plugin.
const PLUGIN_SCRIPT: &str = "#!/bin/sh
# Completes `kubectl salvor`. Put it on the PATH as kubectl_complete-salvor, beside kubectl-salvor, and make it executable.
exec kubectl-salvor __complete \"$@\"
";

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell that is to complete, or kubectl, for the script kubectl_complete-salvor
    #[arg(value_name = "SHELL")]
    whom: Whom,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Whom {
    Bash,
    Elvish,
    Fish,
    #[value(name = "powershell")]
    PowerShell,
    Zsh,
    Kubectl,
}

/// The words behind `kubectl salvor`; the last is to be completed.
#[derive(Debug, clap::Args)]
pub(crate) struct CompleteArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

pub(crate) fn execute(args: &CompletionsArgs, mut salvor: clap::Command) -> Result<(), CliError> {
    let shell = match args.whom {
        Whom::Bash => Shell::Bash,
        Whom::Elvish => Shell::Elvish,
        Whom::Fish => Shell::Fish,
        Whom::PowerShell => Shell::PowerShell,
        Whom::Zsh => Shell::Zsh,
        Whom::Kubectl => return output::print(PLUGIN_SCRIPT),
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut salvor, "salvor", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// Answers kubectl: one candidate per line with its description, then a directive for the shell.
pub(crate) fn complete(args: &CompleteArgs, mut salvor: clap::Command) -> Result<(), CliError> {
    salvor.build();
    let (candidates, then) = candidates(&salvor, &args.words);
    let lines = candidates.iter().map(|(word, about)| match about.as_str() {
        "" => format!("{word}\n"),
        about => format!("{word}\t{about}\n"),
    });
    output::print(&(lines.collect::<String>() + &format!(":{}\n", then as u8)))
}

/// What the shell does after the candidates, as kubectl's numeric directives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Offer files if there are no candidates.
    Files = 0,
    Nothing = 4,
}

fn candidates(salvor: &clap::Command, words: &[String]) -> (Vec<(String, String)>, Then) {
    let (last, before) = words.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let mut command = salvor;
    let mut waiting: Option<&Arg> = None;
    for word in before {
        if waiting.take().is_some() {
            continue;
        }
        if word.starts_with('-') {
            let is_it = |flag: &&Arg| takes_next_word(flag) && flags_of(flag).contains(word);
            waiting = command.get_arguments().find(is_it);
        } else if let Some(inner) = command.find_subcommand(word) {
            command = inner;
        }
    }
    if let Some(flag) = waiting {
        return values(flag, "", last);
    }
    if let Some((name, value)) = last.split_once('=').filter(|_| last.starts_with("--")) {
        let flag = command.get_arguments().find(|flag| flags_of(flag).iter().any(|known| known == name));
        return flag.map_or((Vec::new(), Then::Nothing), |flag| values(flag, &format!("{name}="), value));
    }
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    if last.starts_with('-') {
        let long =
            arguments.filter_map(|flag| Some((format!("--{}", flag.get_long()?), help(flag.get_help()))));
        return (long.filter(|(name, _)| name.starts_with(last)).collect(), Then::Nothing);
    }
    let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help");
    let mut found: Vec<(String, String)> = inner
        .map(|inner| (inner.get_name().to_owned(), help(inner.get_about())))
        .filter(|(name, _)| name.starts_with(last))
        .collect();
    let mut then = Then::Nothing;
    for positional in arguments.filter(|argument| argument.is_positional()) {
        let (more, files) = values(positional, "", last);
        found.extend(more);
        if files == Then::Files {
            then = files;
        }
    }
    (found, then)
}

fn flags_of(flag: &Arg) -> Vec<String> {
    let long = flag.get_long().map(|long| format!("--{long}"));
    long.into_iter().chain(flag.get_short().map(|short| format!("-{short}"))).collect()
}

fn takes_next_word(flag: &Arg) -> bool {
    flag.get_action().takes_values() && !flag.is_require_equals_set()
}

/// The values of an argument that start with `word`.
fn values(argument: &Arg, before: &str, word: &str) -> (Vec<(String, String)>, Then) {
    let known = argument.get_possible_values();
    let known = known.iter().filter(|value| !value.is_hide_set() && value.get_name().starts_with(word));
    let found =
        known.map(|value| (format!("{before}{}", value.get_name()), help(value.get_help()))).collect();
    let names = argument.get_value_names().unwrap_or_default();
    let is_file = names.iter().any(|name| matches!(name.as_str(), "FILE" | "DIR"));
    (found, if is_file { Then::Files } else { Then::Nothing })
}

fn help(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default().lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(line: &str) -> (Vec<String>, Then) {
        let mut salvor = <crate::cli::Cli as clap::CommandFactory>::command();
        salvor.build();
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let (found, then) = candidates(&salvor, &words);
        (found.into_iter().map(|(word, _)| word).collect(), then)
    }

    #[test]
    fn words_are_completed_by_what_may_stand_there() {
        let nothing = Vec::<String>::new();
        for (line, expected, then) in [
            ("wh", vec!["why".to_owned()], Then::Nothing),
            ("explain po", vec!["pod".to_owned()], Then::Nothing),
            ("why job/train -o j", vec!["json".to_owned()], Then::Nothing),
            ("why --output=te", vec!["--output=text".to_owned()], Then::Nothing),
            ("uninstall --ab", vec!["--abandon-workloads".to_owned()], Then::Nothing),
            ("completions kube", vec!["kubectl".to_owned()], Then::Nothing),
            ("config check x", nothing.clone(), Then::Files),
            ("run --config ", nothing.clone(), Then::Files),
            // The value of a flag is not mistaken for a command.
            ("why --context run --ou", vec!["--output".to_owned()], Then::Nothing),
            // A switch does not consume the next word.
            ("manifests --dry-run --skip", vec!["--skip-crds".to_owned()], Then::Nothing),
            ("nothing-like-that", nothing.clone(), Then::Nothing),
            ("why --no-such=x", nothing, Then::Nothing),
        ] {
            assert_eq!(complete(line), (expected, then), "{line}");
        }
        let (commands, _) = complete("");
        assert!(
            commands.contains(&"doctor".to_owned()) && !commands.contains(&"__complete".to_owned()),
            "{commands:?}"
        );
    }
}
