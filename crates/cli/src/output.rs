//! Standard output is data, standard error is talk.
//!
//! Much of both was written by others: names, messages and annotations of objects, and what a Lease says. A terminal obeys what it is shown, so
//! all of it is cleaned here, and here alone.

use std::borrow::Cow;
use std::io::{self, Write};

use salvor_operator::story;

use crate::error::CliError;

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// For people
    Text,
    /// For machines
    Json,
}

/// A text without what steers a terminal: control characters other than ends of lines and tabs, and characters that turn the direction of
/// writing, so that a text looks like another one.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    let steers = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if text.contains(steers) { Cow::Owned(text.replace(steers, "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// Text from an object, on one line, so that it cannot pass for several lines of ours.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    if text.contains('\n') { Cow::Owned(text.replace('\n', " ")) } else { Cow::Borrowed(text) }
}

/// Writes data. A reader that has seen enough, such as `head`, is not an error.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    write_out(&clean(text))
}

/// The same on an empty screen.
pub(crate) fn print_anew(text: &str) -> Result<(), CliError> {
    write_out(&format!("\x1b[H\x1b[2J{}", clean(text)))
}

fn write_out(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CliError::Output(error)),
        _ => Ok(()),
    }
}

/// Says on standard error what went wrong.
pub(crate) fn complain(error: &CliError) {
    // There is nobody left to tell if this fails.
    let _ = writeln!(io::stderr().lock(), "salvor: {}", clean(&story(error)));
}

/// Says something on standard error that is no error.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "salvor: {}", clean(text));
}

/// Says something on standard error as it is, with its end of line.
pub(crate) fn talk(text: &str) {
    let _ = io::stderr().lock().write_all(clean(text).as_bytes());
}

/// The same in place of the line that was there.
pub(crate) fn talk_over(line: &str) {
    let _ = write!(io::stderr().lock(), "\r\x1b[K{}", clean(line));
}

/// A value as YAML.
pub(crate) fn yaml(value: &serde_json::Value) -> Result<String, CliError> {
    serde_saphyr::to_string(value).map_err(|error| CliError::Output(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_not_written() {
        for (text, cleaned) in [
            ("a\nb\tc ä ✓", "a\nb\tc ä ✓"),
            ("\x1b[2Jgone", "\u{fffd}[2Jgone"),
            ("\u{9b}2J\x07\x08\x7f\r", "\u{fffd}2J\u{fffd}\u{fffd}\u{fffd}\u{fffd}"),
            ("\u{202e}txt.exe\u{2066}", "\u{fffd}txt.exe\u{fffd}"),
        ] {
            assert_eq!(clean(text), cleaned);
        }
        assert_eq!(one_line("fine\n\nNext:\n  nothing"), "fine  Next:   nothing");
    }
}
