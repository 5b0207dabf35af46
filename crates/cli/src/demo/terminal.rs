//! What the demo says in the terminal: chapters, and a line for everything that happens.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use salvor_page::{Caption, Kind, Moment, Page};

/// Alike things may still join a moment that is younger than this.
const SETTLED: SignedDuration = SignedDuration::from_secs(6);

/// Where lines go, and how they look.
pub(super) struct Terminal {
    colours: bool,
    began: Timestamp,
    /// The first moment that has not been told.
    next: u64,
}

impl Terminal {
    pub(super) fn new(began: Timestamp) -> Self {
        let wants_none = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { colours: io::stdout().is_terminal() && !wants_none, began, next: 0 }
    }

    /// A chapter begins.
    pub(super) fn chapter(&self, caption: &Caption) {
        let Caption { title, text, chapter, chapters } = caption;
        self.line("");
        self.line(&self.paint("1", &format!("{chapter}/{chapters}  {title}")));
        for line in wrapped(text, 92) {
            self.line(&self.paint("2", &format!("     {line}")));
        }
    }

    /// Tells what has happened; what may still grow is told later, unless all must be told now.
    pub(super) fn catch_up(&mut self, page: &Page, now: Timestamp, all: bool) {
        for moment in page.moments() {
            if moment.number < self.next {
                continue;
            }
            if !all && now.duration_since(moment.at) < SETTLED && moment.kind != Kind::Told {
                // In the order in which things happened.
                return;
            }
            self.next = moment.number + 1;
            self.moment(&moment);
        }
    }

    fn moment(&self, moment: &Moment) {
        let at = since(self.began, moment.at);
        let (colour, sign) = match moment.kind {
            Kind::NodeLost => ("31", "✗"),
            Kind::Stuck => ("31", "…"),
            Kind::NodeBack | Kind::WorkBack => ("32", "✓"),
            Kind::Did => ("36", "›"),
            Kind::Told => ("2", "·"),
        };
        self.line(&format!(
            "{} {}",
            self.paint("2", &at),
            self.paint(colour, &format!("{sign} {}", moment.text()))
        ));
    }

    /// Any line.
    pub(super) fn line(&self, text: &str) {
        // A reader that went away, as in `salvor demo | head`, does not end the story.
        let _ = writeln!(io::stdout().lock(), "{text}");
    }

    /// Text that is good news, or bad.
    pub(super) fn outcome(&self, good: bool, text: &str) {
        self.line(&self.paint(if good { "1;32" } else { "1;31" }, text));
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colours && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The time in a story, as minutes and seconds.
pub(super) fn since(began: Timestamp, at: Timestamp) -> String {
    let seconds = at.duration_since(began).as_secs().max(0);
    format!("{:3}:{:02}", seconds / 60, seconds % 60)
}

/// A length of time for people.
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
    fn times_are_minutes_and_seconds_of_the_story() {
        let began = Timestamp::UNIX_EPOCH;
        assert_eq!(since(began, Timestamp::from_second(125).unwrap()), "  2:05");
        assert_eq!(lasting(Duration::from_secs(125)), "2 min 5 s");
    }
}
