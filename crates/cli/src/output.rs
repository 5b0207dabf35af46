//! Standard output is for data, standard error for messages.
//!
//! Both contain text of other people: names, messages and annotations of objects, and the content of a Lease. A
//! terminal executes escape sequences, so all text is cleaned here, and only here.

use std::borrow::Cow;
use std::env;
use std::io::{self, IsTerminal, Write};

use jiff::Timestamp;
use salvor_operator::story;
use salvor_why::Code;

use crate::error::CliError;

const CLEAR: &str = "\x1b[H\x1b[2J";
const BOLD: &str = "\x1b[1m";
const CYAN: &str = "\x1b[36m";
const RESET: &str = "\x1b[0m";

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

/// Writes data unchanged, unless it goes to a terminal.
pub(crate) fn print_exactly(text: &str) -> Result<(), CliError> {
    if io::stdout().is_terminal() { print(text) } else { write_out(text) }
}

/// Writes a text for people. On a terminal it is wrapped and coloured, and with `over` it replaces the screen.
pub(crate) fn show(text: &str, over: bool) -> Result<(), CliError> {
    let text = clean(text);
    if !io::stdout().is_terminal() {
        return write_out(&text);
    }
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let colours = set("NO_COLOR").is_none() && set("TERM").is_none_or(|terminal| terminal != "dumb");
    let width = terminal_size::terminal_size().map_or(usize::MAX, |(width, _)| usize::from(width.0));
    let shown = for_terminal(&text, width, colours);
    write_out(&if over { format!("{CLEAR}{shown}") } else { shown })
}

/// Wraps and colours a text whose paragraphs may begin with a root cause. Commands are left whole, to be copied.
fn for_terminal(text: &str, width: usize, colours: bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for line in text.lines() {
        let is_command = line.trim_start().starts_with("$ ");
        let is_cause =
            line.split_once(" (").is_some_and(|(word, _)| Code::ALL.iter().any(|code| code.name() == word));
        let colour = match (is_cause, is_command) {
            _ if !colours => "",
            (true, _) => BOLD,
            (false, true) => CYAN,
            (false, false) => "",
        };
        let whole = if is_command { line.to_owned() } else { wrapped(line, width) };
        let reset = if colour.is_empty() { "" } else { RESET };
        shown.push_str(&format!("{colour}{whole}{reset}\n"));
    }
    shown
}

/// Breaks a line at spaces. Further lines are indented by two more.
fn wrapped(line: &str, width: usize) -> String {
    let indent = line.len() - line.trim_start_matches(' ').len() + 2;
    // A narrow terminal wraps by itself.
    if line.chars().count() <= width || width < indent + 20 {
        return line.to_owned();
    }
    let mut whole = String::new();
    let mut length = 0;
    for word in line.split_inclusive(' ') {
        let letters = word.trim_end().chars().count();
        if length > indent && length + letters > width {
            whole.truncate(whole.trim_end().len());
            whole.push_str(&format!("\n{}", " ".repeat(indent)));
            length = indent;
        }
        whole.push_str(word);
        length += word.chars().count();
    }
    whole
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

    #[test]
    fn a_terminal_gets_wrapped_lines_and_colours_if_it_wants_them() {
        let text = "NodeLost (Node a)\n  one two three four five six seven eight\n    $ kubectl do something that is long\n";
        let plain = "NodeLost (Node a)\n  one two three four five\n    six seven eight\n    $ kubectl do something that is long\n";
        assert_eq!(for_terminal(text, 27, false), plain);
        let coloured = for_terminal(text, usize::MAX, true);
        assert!(coloured.starts_with("\x1b[1mNodeLost (Node a)\x1b[0m\n  one"), "{coloured:?}");
        assert!(
            coloured.contains("\x1b[36m    $ kubectl do something that is long\x1b[0m\n"),
            "{coloured:?}"
        );
        assert_eq!(wrapped("  a b c", 3), "  a b c", "too narrow");
    }
}
