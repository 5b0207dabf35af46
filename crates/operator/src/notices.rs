//! Notices of the operator's verdicts and writes, for the page: the same values as `salvor explain` prints.

use salvor_recovery::{Report, objects::ObjectRef};
use tokio::sync::mpsc;

/// One thing that the operator judged or did.
#[derive(Clone, Debug)]
pub enum Notice {
    /// This replica began to lead, or ceased to. Only a leader judges.
    Leads(bool),
    /// A person has stopped everything, in these words; or lets it go on.
    Paused(Option<String>),
    /// A subject was judged; the verdict may be the one it had before.
    Judged {
        /// The recovery's name.
        recovery: &'static str,
        /// The judged object, as a person would name it.
        subject: String,
        /// The judgement.
        report: Report,
    },
    /// A subject is not there any more.
    Forgotten {
        /// The recovery's name.
        recovery: &'static str,
        /// The object that is gone.
        subject: String,
    },
    /// A step was carried out.
    Did {
        /// The recovery's name.
        recovery: &'static str,
        /// The judged object.
        subject: String,
        /// The step in the words of a timeline; none for everyday work.
        headline: Option<&'static str>,
        /// The object that was written.
        object: ObjectRef,
    },
}

/// Where notices go: to one listener, or to nobody.
#[derive(Clone, Debug, Default)]
pub struct Notices(Option<mpsc::UnboundedSender<Notice>>);

impl Notices {
    /// Notices, and their listener. It must keep up: what it has not taken yet is kept in memory.
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<Notice>) {
        let (sender, listener) = mpsc::unbounded_channel();
        (Self(Some(sender)), listener)
    }

    /// Says something, made up only if somebody listens.
    pub(crate) fn say(&self, notice: impl FnOnce() -> Notice) {
        if let Some(listener) = &self.0 {
            // A listener that went away misses nothing that matters to us.
            let _ = listener.send(notice());
        }
    }
}
