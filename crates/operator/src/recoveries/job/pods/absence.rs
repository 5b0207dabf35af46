//! Pods that are no longer kept, and which of their states would bring them back.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use salvor_recovery::ids::Uid;

use crate::client::revision::{Revision, Told};

/// Number of UIDs of deleted pods to remember. The answer to our own write may arrive after the pod's deletion and
/// would bring it back for ever. Far more than can be in flight at once.
const GONE_REMEMBERED: usize = 16_384;

/// Where the state of a pod comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heard {
    /// A watch event.
    Watch,
    /// The watch's list at this revision.
    List(Revision),
    /// The server's answer to a write.
    Answer,
    /// A lookup for a new Job.
    Lookup,
}

impl Heard {
    pub(crate) fn told(self) -> Told {
        match self {
            Self::List(revision) => Told::ByListAt(revision),
            Self::Watch | Self::Answer | Self::Lookup => Told::Alone,
        }
    }
}

/// Why a pod is no longer kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Absence {
    /// The watch reported that it is gone or irrelevant. If it becomes relevant again, the watch reports that too.
    Watched,
    /// The server reported it in the answer to our write. The watch may still deliver earlier states.
    Answered,
    /// In this state it is irrelevant: its Job has ended and released it, or no Job may adopt it.
    OfNoUse(Revision),
}

impl Absence {
    /// True if this state of a pod proves that it is relevant again.
    pub(crate) fn is_over(self, revision: Revision, heard: Heard) -> bool {
        match self {
            Self::Watched => matches!(heard, Heard::Watch | Heard::List(_)),
            Self::Answered => false,
            // In this very state it may be relevant to a Job that was not known when the watch read it.
            Self::OfNoUse(known) if matches!(heard, Heard::Lookup) => !known.is_after(revision),
            Self::OfNoUse(known) => heard.told().replaces(revision, known),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Gone {
    pub(crate) of: BTreeMap<Arc<Uid>, Absence>,
    in_order: VecDeque<Arc<Uid>>,
}

impl Gone {
    pub(crate) fn insert(&mut self, uid: &Uid, why: Absence) {
        let uid = Arc::new(uid.clone());
        if self.of.insert(uid.clone(), why).is_none() {
            self.in_order.push_back(uid);
        }
        if self.in_order.len() > GONE_REMEMBERED
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.of.remove(&oldest);
        }
    }
}
