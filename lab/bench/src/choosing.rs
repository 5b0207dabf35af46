//! The tables of docs/guides/choosing.md: runs each command of the page, and replaces the text block after it with the output.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::running::build_salvor;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// A command of the page begins with this.
const COMMAND: &str = "salvor simulate ";

/// What is run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Choice {
    /// Run only commands with this text, and leave the other tables as they are
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Run this salvor instead of building one
    #[arg(long, value_name = "FILE")]
    salvor: Option<PathBuf>,
    /// The page
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/choosing.md"), value_name = "FILE", hide_default_value = true)]
    page: PathBuf,
}

/// Runs the commands of the page and writes it again.
pub(crate) fn run(choice: &Choice) -> Result<(), String> {
    let salvor = choice.salvor.clone().map_or_else(build_salvor, Ok)?;
    let salvor = salvor.canonicalize().map_err(|error| format!("{}: {error}", salvor.display()))?;
    let told = |error: std::io::Error| format!("{}: {error}", choice.page.display());
    let page = std::fs::read_to_string(&choice.page).map_err(told)?;
    let page = rewritten(&page, |command| {
        if choice.only.as_ref().is_some_and(|only| !command.contains(only)) {
            return Ok(None);
        }
        eprintln!("{command}");
        output(&salvor, command).map(Some)
    })?;
    std::fs::write(&choice.page, page).map_err(told)
}

/// The page with the output of its commands; `None` leaves a block as it is.
fn rewritten(
    page: &str,
    mut run: impl FnMut(&str) -> Result<Option<String>, String>,
) -> Result<String, String> {
    let mut text = String::new();
    let mut lines = page.lines();
    // The output for the next text block.
    let mut next: Option<String> = None;
    while let Some(line) = lines.next() {
        text.push_str(line);
        text.push('\n');
        if line.starts_with(COMMAND) {
            next = run(line)?;
        } else if line == "```text"
            && let Some(output) = next.take()
        {
            text.push_str(output.trim_end());
            text.push_str("\n```\n");
            lines.by_ref().find(|line| *line == "```").ok_or("a block of text does not end")?;
        }
    }
    Ok(text)
}

fn output(salvor: &Path, command: &str) -> Result<String, String> {
    let arguments = arguments(command);
    let run = Command::new(salvor).args(&arguments[1..]).current_dir(ROOT).output();
    let run = run.map_err(|error| format!("{}: {error}", salvor.display()))?;
    if !run.status.success() {
        return Err(format!("{command}: {}", String::from_utf8_lossy(&run.stderr)));
    }
    String::from_utf8(run.stdout).map_err(|error| format!("{command}: {error}"))
}

/// Splits at spaces; quotes keep words together.
fn arguments(command: &str) -> Vec<String> {
    let (mut words, mut quoted) = (vec![String::new()], false);
    for c in command.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().into_iter().for_each(|word| word.push(c)),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_after_a_command_becomes_its_output() {
        let page = "a\n```sh\nsalvor simulate x\n```\n\n```text\nold\nold\n```\nb\n```text\nkept\n```\n";
        let new = rewritten(page, |command| {
            assert_eq!(command, "salvor simulate x");
            Ok(Some("new\n\n".to_owned()))
        });
        let expected = "a\n```sh\nsalvor simulate x\n```\n\n```text\nnew\n```\nb\n```text\nkept\n```\n";
        assert_eq!(new.unwrap(), expected);
        assert_eq!(rewritten(page, |_| Ok(None)).unwrap(), page);
    }

    #[test]
    fn quotes_keep_words_together() {
        assert_eq!(
            arguments("salvor simulate 'a b' --c='[d, e]'"),
            ["salvor", "simulate", "a b", "--c=[d, e]"]
        );
    }
}
