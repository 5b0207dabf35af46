//! The answers of webhooks to one request, as far as they are known.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

/// A call of a webhook.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    /// The whole URL, with the time that the webhook has.
    pub(crate) url: String,
    /// The certificates that the webhook's own must come from, in PEM.
    pub(crate) authorities: Vec<u8>,
    pub(crate) timeout: Duration,
    /// The `AdmissionReview`.
    pub(crate) body: Bytes,
    /// Why the network does not lead there, if it does not.
    pub(crate) unreachable: Option<String>,
}

/// The outcome of a call: the body of a good answer, or the error in the words of Go's client.
pub(crate) type Answer = Result<Bytes, String>;

/// The answers of webhooks to a request, and the webhooks that it waits for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hearing {
    answers: BTreeMap<Call, Answer>,
    open: Vec<Call>,
    warnings: Vec<String>,
}

impl Hearing {
    /// Begins the request anew, with the answers that are known.
    pub(crate) fn begin(&mut self) {
        self.open.clear();
        self.warnings.clear();
    }

    /// The answer to a call. If it is not known, the request must end without any change.
    pub(crate) fn answer_to(&mut self, call: Call) -> Option<Answer> {
        let known = self.answers.get(&call).cloned();
        if known.is_none() {
            self.open.push(call);
        }
        known
    }

    /// True if the request waits for an answer.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.open.is_empty()
    }

    /// The calls that the request waits for.
    pub(crate) fn take_open(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.open)
    }

    pub(crate) fn learn(&mut self, call: Call, answer: Answer) {
        self.answers.insert(call, answer);
    }

    /// Adds what the client is told beside the answer.
    pub(crate) fn warn(&mut self, warnings: Vec<String>) {
        self.warnings.extend(warnings);
    }

    pub(crate) fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }
}
