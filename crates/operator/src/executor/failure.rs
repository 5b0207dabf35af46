//! The ways in which a write fails, and what follows from each.

use std::time::Duration;

use kube::core::Status;
use salvor_recovery::{Step, step::Errors};

use crate::{departure::NotSent, live, looks::LOOK_HOLDS};

/// A pause longer than this is a mistake of whoever asks for it.
const LONGEST_PAUSE: u64 = 300;

/// The status code of a refusal that says nothing else.
const FORBIDDEN: u16 = 403;

/// The way in which a write failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The object has changed since it was judged.
    #[error("it has changed since it was judged")]
    Stale,
    /// The object is not there any more.
    #[error("it is not there any more")]
    Gone,
    /// This process does not lead, or is not sure to, or has led in another term since.
    #[error("this replica does not lead (any more)")]
    NotLeading,
    /// The second look was over before the write could leave.
    #[error(
        "no answer within {LOOK_HOLDS:?} to a look at the live objects, or no time left to write after it"
    )]
    LookTooOld,
    /// A dry run writes nothing.
    #[error("this is a dry run")]
    DryRun,
    /// The server asks for a pause.
    #[error("the API server asks to wait {0:?}")]
    Throttled(Duration),
    /// The server refuses, and will again until somebody changes something.
    #[error("not allowed to {verb} {resource}: {message}")]
    Forbidden { verb: &'static str, resource: String, message: String },
    /// The namespace takes nothing new because it is being deleted.
    #[error("{0}")]
    NamespaceTerminating(String),
    /// A person has stopped everything.
    #[error("Salvor is paused")]
    Paused,
    /// Meanwhile the server told another time than before.
    #[error("the API server told different times, and this cannot be taken back")]
    ClockUnsettled,
    /// Meanwhile the server went back to an earlier state.
    #[error("the API server went back to an earlier state, and this cannot be taken back")]
    JustRestored,
    /// No answer in time: it may or may not have been done.
    #[error("no answer within {0:?}; it may or may not have been done")]
    Unanswered(Duration),
    /// Anything else.
    #[error("{}", live::brief(.0))]
    Api(kube::Error),
}

impl Failure {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Stale => "conflict",
            Self::Gone => "gone",
            Self::NotLeading => "not_leading",
            Self::LookTooOld => "look_too_old",
            Self::DryRun => "dry_run",
            Self::Throttled(_) => "throttled",
            Self::Forbidden { .. } | Self::NamespaceTerminating(_) => "forbidden",
            Self::Paused => "paused",
            Self::ClockUnsettled => "clock_unsettled",
            Self::JustRestored => "just_restored",
            Self::Unanswered(_) => "unanswered",
            Self::Api(_) => "error",
        }
    }

    /// True if nobody knows whether it was done: there was no answer.
    pub(crate) fn is_unanswered(&self) -> bool {
        match self {
            Self::Unanswered(_) => true,
            Self::Api(error) => match error {
                kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => true,
                // The server's word, or a request that never was one.
                _ => false,
            },
            Self::Stale
            | Self::Gone
            | Self::NotLeading
            | Self::LookTooOld
            | Self::DryRun
            | Self::Throttled(_)
            | Self::Forbidden { .. }
            | Self::NamespaceTerminating(_)
            | Self::Paused
            | Self::ClockUnsettled
            | Self::JustRestored => false,
        }
    }

    pub(super) fn of(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 429 => {
                let seconds = status.details.map_or(1, |details| details.retry_after_seconds);
                Self::Throttled(Duration::from_secs(u64::from(seconds).clamp(1, LONGEST_PAUSE)))
            }
            other => Self::Api(other),
        }
    }

    /// Why the server refused a step, if asking again as before will not help, or if the step holds up nothing but itself.
    pub(crate) fn refusal_of(&self, step: &impl Step) -> Option<Refusal> {
        let words = match (step.effect().errors, self) {
            (Errors::HoldTheStep, Self::Api(kube::Error::Api(status))) => Some(status.message.clone()),
            (Errors::HoldTheStep | Errors::HoldTheSubject, _) => self.refusal(),
        };
        let code = match self {
            Self::Api(kube::Error::Api(status)) => status.code,
            _ => FORBIDDEN,
        };
        let namespace_terminates = matches!(self, Self::NamespaceTerminating(_));
        words.map(|words| Refusal { words, code, namespace_terminates })
    }

    /// The server's words, if it understood the request and said no to what is in it: asking again will not help
    /// before something else has changed.
    pub(super) fn refusal(&self) -> Option<String> {
        match self {
            Self::Forbidden { message, .. } | Self::NamespaceTerminating(message) => Some(message.clone()),
            // Of these, too many requests is the only one that passes by itself.
            Self::Api(kube::Error::Api(status))
                if (400..500).contains(&status.code) && status.code != 429 =>
            {
                Some(status.message.clone())
            }
            Self::Api(_)
            | Self::Stale
            | Self::Gone
            | Self::NotLeading
            | Self::LookTooOld
            | Self::DryRun
            | Self::Throttled(_)
            | Self::Paused
            | Self::ClockUnsettled
            | Self::JustRestored
            | Self::Unanswered(_) => None,
        }
    }
}

/// Why the server refused a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The server's words.
    pub(crate) words: String,
    /// The status code of its answer.
    pub(crate) code: u16,
    /// True if the namespace takes nothing new because it is being deleted.
    pub(crate) namespace_terminates: bool,
}

#[cfg(test)]
impl Refusal {
    pub(crate) fn saying(words: &str) -> Self {
        Self { words: words.to_owned(), code: FORBIDDEN, namespace_terminates: false }
    }
}

impl From<NotSent> for Failure {
    fn from(why: NotSent) -> Self {
        match why {
            NotSent::LookTooOld => Self::LookTooOld,
            NotSent::NotLeading => Self::NotLeading,
        }
    }
}

/// True if a 429 is about this one object and not about the server's load. The server refuses what is too much for it
/// before it looks at the request, in plain text. A webhook may answer anything, but its name is put before its words; and
/// what limits the making of an object answers with a Status.
pub(super) fn is_admissions(status: &Status, creates: bool) -> bool {
    status.message.starts_with("admission webhook ") || (creates && !status.reason.is_empty())
}

/// True if the server says that this is why it refuses, in the part of its answer that is not meant for people.
pub(super) fn has_cause(status: &Status, reason: &str) -> bool {
    status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == reason)
}

/// True if the server says that this field is why it refuses.
pub(super) fn is_about(status: &Status, field: &str) -> bool {
    status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.field == field)
}
