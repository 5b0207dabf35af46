//! Standard output is for data, standard error for messages.
//!
//! Both contain text of other people: names, messages and annotations of objects, and the content of a Lease. A
//! terminal executes escape sequences, so all text is cleaned here, and only here.

use std::borrow::Cow;
use std::io::{self, Write};

use jiff::Timestamp;
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

/// Removes what controls a terminal: control characters other than newlines and tabs, and characters that change the
/// writing direction, which can disguise a text.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    let steers = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if text.contains(steers) { Cow::Owned(text.replace(steers, "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// Joins the lines of a text, so that it cannot imitate several lines of output.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    if text.contains('\n') { Cow::Owned(text.replace('\n', " ")) } else { Cow::Borrowed(text) }
}

/// The time between two timestamps, in the two largest units.
pub(crate) fn lasting(later: Timestamp, earlier: Timestamp) -> String {
    let seconds = later.duration_since(earlier).as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// Writes data. A reader that closes the pipe, such as `head`, is not an error.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    write_out(&clean(text))
}

/// Clears the screen first.
pub(crate) fn print_over(text: &str) -> Result<(), CliError> {
    write_out(&format!("\x1b[H\x1b[2J{}", clean(text)))
}

fn write_out(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CliError::Output(error)),
        _ => Ok(()),
    }
}

/// Prints an error to standard error.
pub(crate) fn print_error(error: &CliError) {
    // If this fails, there is no other place to report it.
    let _ = writeln!(io::stderr().lock(), "salvor: {}", clean(&story(error)));
}

/// Prints a remark to standard error.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "salvor: {}", clean(text));
}

/// Prints a text to standard error unchanged. It brings its own newline.
pub(crate) fn talk(text: &str) {
    let _ = io::stderr().lock().write_all(clean(text).as_bytes());
}

/// Overwrites the current line on standard error.
pub(crate) fn talk_over(line: &str) {
    let _ = write!(io::stderr().lock(), "\r\x1b[K{}", clean(line));
}

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
