//! The command that replays a seed on the page of the demo.

use std::path::Path;

use salvor_simulate::play::Policy;

use super::args::SimulateArgs;

/// The arguments that make the demo play this policy on the same failures.
pub(super) fn arguments(args: &SimulateArgs, policy: &Policy) -> String {
    let fails = args.fail.iter().flat_map(|failure| ["--fail", failure.as_str()]);
    let all = fails.chain(policy.arguments().iter().map(String::as_str));
    all.map(quoted).collect::<Vec<_>>().join(" ")
}

/// The command for a seed. `None` if the scenario is not in a file.
pub(super) fn command(args: &SimulateArgs, arguments: &str, seed: u64) -> Option<String> {
    let file = if args.live.from_cluster { args.live.save.as_deref() } else { args.scenario.as_deref() };
    let more = if arguments.is_empty() { String::new() } else { format!(" {arguments}") };
    Some(format!("salvor demo --replay {} --seed {seed}{more}", of_file(file?)?))
}

/// The line of the table with the command. Empty if there is no command.
pub(super) fn line(args: &SimulateArgs, arguments: &str, seed: u64) -> String {
    command(args, arguments, seed).map(|it| format!("\n  Watch it: {it}\n")).unwrap_or_default()
}

/// A path that is not UTF-8 has no command.
fn of_file(file: &Path) -> Option<String> {
    file.to_str().map(quoted)
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/=:,+@%".contains(c);
    let is_plain = !word.is_empty() && word.chars().all(plain);
    if is_plain { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_with_spaces_is_one_word_for_a_shell() {
        for (word, expected) in [
            ("docs/a-1.yaml", "docs/a-1.yaml"),
            ("my file", "'my file'"),
            ("it's; rm", "'it'\\''s; rm'"),
            ("", "''"),
            ("$HOME", "'$HOME'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }
}
