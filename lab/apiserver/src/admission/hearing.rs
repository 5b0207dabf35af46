//! The known answers of webhooks to one request.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    /// The whole URL, including the timeout of the webhook.
    pub(crate) url: String,
    /// The CA bundle for the webhook's certificate, in PEM.
    pub(crate) authorities: Vec<u8>,
    pub(crate) timeout: Duration,
    /// The `AdmissionReview`.
    pub(crate) body: Bytes,
    /// Why the webhook cannot be reached over the network, if so.
    pub(crate) unreachable: Option<String>,
}

/// The outcome of a call: the body of a successful answer, or the error in the words of Go's client.
pub(crate) type Answer = Result<Bytes, String>;

/// The answers of webhooks to a request, and the webhooks that it waits for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hearing {
    answers: BTreeMap<Call, Answer>,
    open: Vec<Call>,
    warnings: Vec<String>,
}

impl Hearing {
    /// Starts the request again, with the answers that are known.
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

    pub(crate) fn is_waiting(&self) -> bool {
        !self.open.is_empty()
    }

    pub(crate) fn take_open(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.open)
    }

    pub(crate) fn learn(&mut self, call: Call, answer: Answer) {
        self.answers.insert(call, answer);
    }

    /// Adds warnings to the answer of the request.
    pub(crate) fn warn(&mut self, warnings: Vec<String>) {
        self.warnings.extend(warnings);
    }

    pub(crate) fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }
}
