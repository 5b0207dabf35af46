//! Decides which pods tolerate a taint, and for how long, like Kubernetes' own taint eviction.

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::taints;

use crate::moments::after;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toleration {
    /// Empty for every key.
    pub key: String,
    /// `Exists`, or `Equal`, which is also the default.
    pub operator: String,
    /// For `Equal`.
    pub value: String,
    /// Empty for every effect.
    pub effect: String,
    /// Forever if absent.
    pub seconds: Option<i64>,
}

impl Toleration {
    /// True if it may cover a `NoExecute` taint with our key, for some value of it; other tolerations need not be
    /// stored.
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
            // Operators that compare numbers do not apply: the value is an incident or a ticket.
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    None,
    Until(Timestamp),
    Forever,
}

impl Tolerance {
    /// What these tolerations mean for a `NoExecute` taint with our key and this value, set at that time. If several
    /// match, the first in the pod's list counts, as in taint eviction: it uses one toleration for each taint.
    pub fn of(tolerations: &[Toleration], value: &str, since: Timestamp) -> Self {
        match tolerations.iter().find(|t| t.covers(value)).map(|t| t.seconds) {
            None => Self::None,
            Some(None) => Self::Forever,
            Some(Some(seconds)) => Self::Until(after(since, SignedDuration::from_secs(seconds.max(0)))),
        }
    }
}
