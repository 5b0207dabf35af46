//! The ways in which a write fails, and what follows from each.

use std::time::Duration;

use kube::core::Status;
use salvor_recovery::{Step, step::Errors};

use crate::client::{live, recent_reads::READ_VALID_FOR, send_guard::NotSent};

/// Upper limit in seconds for a requested pause; a longer one is a mistake of the server.
const LONGEST_PAUSE: u64 = 300;

/// The status code of a refusal that carries no other code.
const FORBIDDEN: u16 = 403;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("it has changed since it was judged")]
    Stale,
    #[error("it is not there any more")]
    Gone,
    /// This process does not lead, is not certain to, or has led in another term since.
    #[error("this replica does not lead (any more)")]
    NotLeading,
    /// The second look expired before the write could be sent.
    #[error(
        "no answer within {READ_VALID_FOR:?} to a look at the live objects, or no time left to write after it"
    )]
    LookTooOld,
    #[error("this is a dry run")]
    DryRun,
    #[error("the API server asks to wait {0:?}")]
    Throttled(Duration),
    /// The server refuses, and will again until permissions change.
    #[error("not allowed to {verb} {resource}: {message}")]
    Forbidden { verb: &'static str, resource: String, message: String },
    /// The namespace accepts nothing new because it is being deleted.
    #[error("{0}")]
    NamespaceTerminating(String),
    /// A user has paused Salvor.
    #[error("Salvor is paused")]
    Paused,
    /// The server's clock changed since the decision.
    #[error("the API server told different times, and this cannot be taken back")]
    ClockUnsettled,
    /// The server went back to an earlier state since the decision.
    #[error("the API server went back to an earlier state, and this cannot be taken back")]
    JustRestored,
    /// No answer in time: the write may or may not have been applied.
    #[error("no answer within {0:?}; it may or may not have been done")]
    Unanswered(Duration),
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

    /// True if it is unknown whether the write was applied, because there was no answer.
    pub(crate) fn is_unanswered(&self) -> bool {
        match self {
            Self::Unanswered(_) => true,
            Self::Api(error) => match error {
                kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => true,
                // An answer of the server, or a request that was never sent.
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

    /// Why the server refused a step, if a retry will not help, or if its errors block only the step itself.
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

    /// The server's message, if it understood the request and rejected its content. A retry will not help before
    /// something else changes.
    pub(super) fn refusal(&self) -> Option<String> {
        match self {
            Self::Forbidden { message, .. } | Self::NamespaceTerminating(message) => Some(message.clone()),
            // Of these codes, only 429 passes by itself.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) words: String,
    pub(crate) code: u16,
    /// True if the namespace accepts nothing new because it is being deleted.
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

/// True if a 429 is about this one object and not about the server's load. An overloaded server rejects a request
/// before it reads it, in plain text. A webhook may answer anything, but the server prefixes its message with the
/// webhook's name. A limit on creating objects answers with a Status.
pub(super) fn is_admissions(status: &Status, creates: bool) -> bool {
    status.message.starts_with("admission webhook ") || (creates && !status.reason.is_empty())
}

/// True if the machine-readable causes of the answer contain this reason.
pub(super) fn has_cause(status: &Status, reason: &str) -> bool {
    status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == reason)
}

/// True if the machine-readable causes of the answer name this field.
pub(super) fn is_about(status: &Status, field: &str) -> bool {
    status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.field == field)
}
