//! Notices of the operator's verdicts and writes, for the web page: the same values that `salvor explain` prints.

use salvor_recovery::{Report, objects::ObjectRef};
use tokio::sync::mpsc;

#[derive(Clone, Debug)]
pub enum Notice {
    /// This replica began or stopped leading. Only a leader decides.
    Leads(bool),
    /// A user has paused Salvor, with this text; or resumed it.
    Paused(Option<String>),
    /// A subject was decided; the verdict may be the same as before.
    Judged {
        recovery: &'static str,
        /// The object, as a user would name it.
        subject: String,
        report: Report,
    },
    Forgotten {
        recovery: &'static str,
        /// The object that is gone.
        subject: String,
    },
    Did {
        recovery: &'static str,
        subject: String,
        /// The step as a timeline entry; `None` for routine work.
        headline: Option<&'static str>,
        /// The object that was written.
        object: ObjectRef,
    },
}

/// The channel for notices, if there is a receiver.
#[derive(Clone, Debug, Default)]
pub struct Notices(Option<mpsc::UnboundedSender<Notice>>);

impl Notices {
    /// Notices and their receiver. It must keep up, because the queue is unbounded.
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<Notice>) {
        let (sender, listener) = mpsc::unbounded_channel();
        (Self(Some(sender)), listener)
    }

    /// Sends a notice. It is built only if there is a receiver.
    pub(crate) fn say(&self, notice: impl FnOnce() -> Notice) {
        if let Some(listener) = &self.0 {
            // A receiver that is gone needs no notices.
            let _ = listener.send(notice());
        }
    }
}
