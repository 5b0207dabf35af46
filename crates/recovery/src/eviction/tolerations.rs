//! Which pods tolerate a taint, and for how long: what Kubernetes' own taint eviction does.

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::taints;

use crate::moments::after;

/// A toleration of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toleration {
    /// The key; empty for every key.
    pub key: String,
    /// `Exists`, or `Equal`, which is also meant by nothing.
    pub operator: String,
    /// The value, if it must be equal.
    pub value: String,
    /// The effect; empty for every effect.
    pub effect: String,
    /// For how long; for ever if nothing is said.
    pub seconds: Option<i64>,
}

impl Toleration {
    /// True if it may cover a `NoExecute` taint with our key, for some value of it; nobody need keep one that may not.
    pub fn concerns_eviction(&self) -> bool {
        let all_or = |of: &str, is: &str| of.is_empty() || of == is;
        all_or(&self.effect, taints::NO_EXECUTE) && all_or(&self.key, taints::FORCE_EVICTION)
    }

    fn covers(&self, value: &str) -> bool {
        if !self.concerns_eviction() {
            return false;
        }
        match self.operator.as_str() {
            "Exists" => true,
            "" | "Equal" => !self.key.is_empty() && self.value == value,
            // Operators that compare numbers cannot be meant: the value is an incident or a ticket.
            _ => false,
        }
    }
}

/// The tolerance of a pod for the eviction of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// The pod does not tolerate it.
    None,
    /// Until then.
    Until(Timestamp),
    /// For ever.
    Forever,
}

impl Tolerance {
    /// What these tolerations mean for a `NoExecute` taint with our key and this value, set at that time. Of several that fit, the
    /// first in the pod's list counts, as for taint eviction: it uses one toleration for each taint.
    pub fn of(tolerations: &[Toleration], value: &str, since: Timestamp) -> Self {
        match tolerations.iter().find(|t| t.covers(value)).map(|t| t.seconds) {
            None => Self::None,
            Some(None) => Self::Forever,
            Some(Some(seconds)) => Self::Until(after(since, SignedDuration::from_secs(seconds.max(0)))),
        }
    }
}
