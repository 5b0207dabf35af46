//! Checks that every process that writes holds the Lease of the leader election.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    Seen,
    invariants::{Invariant, Violation},
    text,
};
use crate::swarm::objects;

/// A renewal of the Lease is valid for this long.
const RENEW_DEADLINE: SignedDuration = SignedDuration::from_secs(objects::RENEW_DEADLINE);
pub(super) const LEASE: &str = "salvor";

pub(super) fn is_the_lease(seen: &Seen<'_>) -> bool {
    seen.resource == "leases"
        && seen.name() == LEASE
        && text(&seen.object["metadata"]["namespace"]) == objects::HOME
}

#[derive(Default)]
pub(super) struct Terms {
    /// The holder, and when its last renewal was sent.
    holder: Option<(Arc<str>, Timestamp)>,
}

impl Terms {
    pub(super) fn see(&mut self, seen: &Seen<'_>, wrong: &mut Vec<Violation>) {
        if is_the_lease(seen) {
            if let Some(write) = seen.by {
                let holds = text(&seen.object["spec"]["holderIdentity"]) == &*write.sent.by;
                self.holder = holds.then(|| (write.sent.by.clone(), write.sent.at));
            }
            return;
        }
        let Some(write) = seen.by.filter(|_| seen.resource != "leases" && seen.resource != "namespaces")
        else {
            return;
        };
        let sent = &write.sent;
        let why = match &self.holder {
            Some((holder, renewed)) if *holder == sent.by => {
                if sent.at.duration_since(*renewed) <= RENEW_DEADLINE {
                    return;
                }
                format!("which last renewed the Lease at {renewed}")
            }
            // A request that was sent in time may arrive late.
            Some((_, renewed)) if sent.at < *renewed => return,
            Some((holder, _)) => format!("and {holder} holds the Lease"),
            None if seen.at != sent.at => return,
            None => "and nobody holds the Lease".to_owned(),
        };
        let text = format!("{} {} was sent at {} by {}, {why}", sent.method, sent.path, sent.at, sent.by);
        wrong.push(Violation::new(Invariant::LeaseHeld, seen.at, text));
    }
}
