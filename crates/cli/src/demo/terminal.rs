//! The demo's output in the terminal: chapters, and one line for each moment.

use std::env;
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use salvor_page::{Caption, Kind, Moment, Page};

/// A moment younger than this may still grow, so it is printed later.
const SETTLED: SignedDuration = SignedDuration::from_secs(6);

/// What happens when the reader of standard output goes away, as in `salvor demo | head`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WithoutReader {
    /// Stop: the next line is an error.
    End,
    /// Continue, because the exit code still matters.
    GoOn,
}

pub(super) struct Terminal {
    colours: bool,
    without_reader: WithoutReader,
    began: Timestamp,
    /// The first moment that is not printed yet.
    next: u64,
}

impl Terminal {
    pub(super) fn new(began: Timestamp, without_reader: WithoutReader) -> Self {
        let colours = io::stdout().is_terminal()
            && wants_colours(env::var_os("NO_COLOR").as_deref(), env::var_os("TERM").as_deref());
        Self { colours, without_reader, began, next: 0 }
    }

    pub(super) fn chapter(&self, caption: &Caption) -> io::Result<()> {
        let Caption { title, text, chapter, chapters } = caption;
        self.line("")?;
        self.write(&[("1", &format!("{chapter}/{chapters}  {title}"))])?;
        for line in wrapped(text, 92) {
            self.write(&[("2", &format!("     {line}"))])?;
        }
        Ok(())
    }

    /// Prints new moments. A moment that may still grow is printed later, unless `all` is set.
    pub(super) fn catch_up(&mut self, page: &Page, now: Timestamp, all: bool) -> io::Result<()> {
        for moment in page.moments() {
            if moment.number < self.next {
                continue;
            }
            if !all && now.duration_since(moment.at) < SETTLED && moment.kind != Kind::Told {
                // Keeps the chronological order.
                return Ok(());
            }
            self.next = moment.number + 1;
            self.moment(&moment)?;
        }
        Ok(())
    }

    fn moment(&self, moment: &Moment) -> io::Result<()> {
        let at = since(self.began, moment.at);
        let (colour, sign) = match moment.kind {
            Kind::NodeLost => ("31", "✗"),
            Kind::Stuck => ("31", "…"),
            Kind::NotRepaired => ("31", "!"),
            Kind::Unhealthy | Kind::Sick => ("33", "!"),
            Kind::NodeGone => ("33", "✗"),
            Kind::NodeBack
            | Kind::WorkBack
            | Kind::WorkMoved
            | Kind::Healthy
            | Kind::Replaced
            | Kind::ResetOver => ("32", "✓"),
            Kind::Did => ("36", "›"),
            Kind::Told => ("2", "·"),
        };
        self.write(&[("2", &at), ("", " "), (colour, &format!("{sign} {}", moment.text()))])
    }

    pub(super) fn line(&self, text: &str) -> io::Result<()> {
        self.write(&[("", text)])
    }

    /// Colours the text as good or bad.
    pub(super) fn outcome(&self, good: bool, text: &str) -> io::Result<()> {
        self.write(&[(if good { "1;32" } else { "1;31" }, text)])
    }

    /// Prints a line of parts, each with its colour.
    fn write(&self, parts: &[(&str, &str)]) -> io::Result<()> {
        let line: String = parts.iter().map(|(code, text)| paint(self.colours, code, text)).collect();
        match writeln!(io::stdout().lock(), "{line}") {
            Err(error)
                if error.kind() == io::ErrorKind::BrokenPipe
                    && self.without_reader == WithoutReader::GoOn =>
            {
                Ok(())
            }
            written => written,
        }
    }
}

/// Whether to use colours: respects <https://no-color.org> and terminals without colours.
fn wants_colours(no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
}

/// Colours a text. Titles come from files of other people, so control characters are replaced.
fn paint(colours: bool, code: &str, text: &str) -> String {
    let plain: String =
        text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    if colours && !code.is_empty() && !plain.is_empty() {
        format!("\x1b[{code}m{plain}\x1b[0m")
    } else {
        plain
    }
}

/// The time since the start of the story, as minutes and seconds.
pub(super) fn since(began: Timestamp, at: Timestamp) -> String {
    let seconds = at.duration_since(began).as_secs().max(0);
    format!("{:3}:{:02}", seconds / 60, seconds % 60)
}

pub(super) fn lasting(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 { format!("{seconds} s") } else { format!("{} min {} s", seconds / 60, seconds % 60) }
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_broken_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert!(wrapped("", 7).is_empty());
    }

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let wants = |no_color: Option<&'static str>, term: Option<&'static str>| {
            wants_colours(no_color.map(OsStr::new), term.map(OsStr::new))
        };
        assert!(wants(None, Some("xterm")) && wants(Some(""), None));
        assert!(!wants(Some("1"), Some("xterm")) && !wants(None, Some("dumb")));
    }

    #[test]
    fn text_cannot_steer_a_terminal() {
        assert_eq!(paint(false, "1", "a\x1b[2Jb\u{9b}c\x07"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}");
        assert_eq!(paint(true, "1", "a\rb"), "\x1b[1ma\u{fffd}b\x1b[0m");
    }

    #[test]
    fn times_are_minutes_and_seconds_of_the_story() {
        let began = Timestamp::UNIX_EPOCH;
        assert_eq!(since(began, Timestamp::from_second(125).unwrap()), "  2:05");
        assert_eq!(lasting(Duration::from_secs(125)), "2 min 5 s");
    }
}
