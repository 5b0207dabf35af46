//! The pause switch: an annotation on the Lease by which a person stops all writes, without a restart.

use std::fmt;

use jiff::Timestamp;
use salvor_api::names::annotations;
use serde::{Deserialize, Serialize};

use crate::fnv::Fnv;

/// How much of an unreadable annotation is shown.
const SHOWN: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Pause {
    Said(Said),
    /// The annotation cannot be read; this is the beginning of its value.
    Unreadable(String),
    Unread,
}

/// The JSON value of the annotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Said {
    pub since: Timestamp,
    pub by: String,
    /// Empty if none was given.
    #[serde(default)]
    pub reason: String,
    /// When it ends by itself; none if only a person ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl Pause {
    /// Reads the annotation. An unreadable value is a pause as well: its author wanted something to stop.
    pub fn read(annotation: &str) -> Self {
        match serde_json::from_str(annotation) {
            Ok(said) if annotation.trim_start().starts_with('{') => Self::Said(said),
            _ => Self::Unreadable(annotation[..annotation.floor_char_boundary(SHOWN)].to_owned()),
        }
    }

    /// Whether it has ended by itself.
    pub fn is_over(&self, now: Timestamp) -> bool {
        match self {
            Self::Said(said) => said.until.is_some_and(|until| until <= now),
            Self::Unreadable(_) | Self::Unread => false,
        }
    }
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Said(Said { since, by, reason, until }) => {
                write!(f, "paused by {by} since {since}")?;
                if let Some(until) = until {
                    write!(f, " until {until}")?;
                }
                if reason.is_empty() { Ok(()) } else { write!(f, ": {reason}") }
            }
            Self::Unreadable(text) => write!(
                f,
                "paused: annotation {} of the Lease is {text:?}, which does not say who paused or why, but counts as a pause",
                annotations::PAUSED
            ),
            Self::Unread => f.write_str("Salvor does not know yet whether it is paused"),
        }
    }
}

/// The leader confirms that it has stopped, as JSON in another annotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PauseAcknowledged {
    pub by: String,
    pub at: Timestamp,
    /// The pause that is confirmed, by [`pause_token`].
    pub of: String,
}

/// Identifies one pause, whatever the annotation contains.
pub fn pause_token(annotation: &str) -> String {
    let mut hash = Fnv::default();
    hash.add(annotation.as_bytes());
    format!("{:016x}", hash.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_paused_and_why_is_said() {
        let cases = [
            (
                r#"{"since":"2026-11-16T03:00:00Z","by":"jane@laptop","reason":"network work"}"#,
                "paused by jane@laptop since 2026-11-16T03:00:00Z: network work",
            ),
            (
                r#" {"since":"2026-11-16T03:00:00Z","by":"jane","more":1}"#,
                "paused by jane since 2026-11-16T03:00:00Z",
            ),
            (
                r#"{"since":"2026-11-16T03:00:00Z","by":"jane","reason":"work","until":"2026-11-16T04:00:00Z"}"#,
                "paused by jane since 2026-11-16T03:00:00Z until 2026-11-16T04:00:00Z: work",
            ),
        ];
        for (annotation, said) in cases {
            assert_eq!(Pause::read(annotation).to_string(), said);
        }
    }

    #[test]
    fn only_a_pause_with_an_end_is_ever_over() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let ends = r#"{"since":"2026-11-16T03:00:00Z","by":"jane","until":"2026-11-16T04:00:00Z"}"#;
        let stays = r#"{"since":"2026-11-16T03:00:00Z","by":"jane"}"#;
        assert!(!Pause::read(ends).is_over(at("2026-11-16T03:59:59Z")));
        assert!(Pause::read(ends).is_over(at("2026-11-16T04:00:00Z")));
        assert!(!Pause::read(ends).is_over(Timestamp::MIN), "before the server's clock is known");
        for never in [stays, "garbage", r#"{"since":"2026-11-16T03:00:00Z","by":"jane","until":"soon"}"#] {
            assert!(!Pause::read(never).is_over(at("2030-01-01T00:00:00Z")), "{never}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_a_pause_as_well() {
        let long = "é".repeat(10_000);
        for garbage in
            ["", "true", "false", "{}", "[]", "null", r#"["2026-11-16T03:00:00Z","jane",""]"#, &long]
        {
            let pause = Pause::read(garbage);
            assert!(matches!(pause, Pause::Unreadable(_)), "{garbage}");
            assert!(pause.to_string().len() < 400, "{pause}");
        }
        assert_eq!(
            Pause::read("yes").to_string(),
            "paused: annotation salvor.dev/paused of the Lease is \"yes\", which does not say who paused or why, but counts as a pause"
        );
    }

    #[test]
    fn one_pause_is_told_from_another() {
        assert_eq!(pause_token("a"), pause_token("a"));
        assert_ne!(pause_token("a"), pause_token("b"));
        assert_ne!(pause_token(""), pause_token(" "));
    }
}
