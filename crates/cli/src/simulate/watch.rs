//! The command that shows a seed on the page of the demo.

use std::path::Path;

use salvor_simulate::play::{Peer, Policy};
use salvor_simulate::scenario::Scenario;

use super::SimulateArgs;

/// The command; none if no file has this scenario, or if the policy is neither the scenario's own nor Kubernetes alone.
pub(super) fn command(args: &SimulateArgs, scenario: &Scenario, policy: &str, seed: u64) -> Option<String> {
    let file = if args.live.from_cluster { args.live.save.as_deref() } else { args.scenario.as_deref() };
    let own = args.compare.is_empty().then(|| Policy::of(scenario).name);
    let alone = match policy {
        policy if own.as_deref() == Some(policy) => "",
        policy if policy == Peer::Kubernetes.name() => " --without-salvor",
        _ => return None,
    };
    let fails: String = args.fail.iter().map(|failure| format!(" --fail {}", quoted(failure))).collect();
    Some(format!("salvor demo --replay {} --seed {seed}{fails}{alone}", of_file(file?)?))
}

/// The line of a table about it; empty if there is no command.
pub(super) fn line(args: &SimulateArgs, scenario: &Scenario, policy: &str, seed: u64) -> String {
    command(args, scenario, policy, seed).map(|it| format!("\n  Watch it: {it}\n")).unwrap_or_default()
}

/// A file that cannot be written down as text has no command.
fn of_file(file: &Path) -> Option<String> {
    file.to_str().map(quoted)
}

/// A word as a shell takes it.
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
