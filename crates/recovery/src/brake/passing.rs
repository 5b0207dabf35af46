//! Applies the brake to decisions.

use jiff::Timestamp;

use super::{Brake, Outage, disruption};
use crate::step::Step;
use crate::verdict::Decision;

impl Brake {
    /// Applies the brake for display: nothing is counted.
    #[must_use]
    pub fn review<Why, S: Step>(
        &self,
        now: Timestamp,
        decision: Decision<Why, S>,
        outage: Outage,
    ) -> Decision<Why, S> {
        let much = disruption(decision.verdict.actions(), outage);
        match much.map_or(Ok(()), |much| self.check_all(now, &much)) {
            Ok(()) => decision,
            Err(held) => decision.held_back(held),
        }
    }

    /// Applies the brake for execution: what passes is counted.
    #[must_use]
    pub fn pass<Why, S: Step>(
        &mut self,
        now: Timestamp,
        decision: Decision<Why, S>,
        outage: Outage,
    ) -> Decision<Why, S> {
        let much = disruption(decision.verdict.actions(), outage);
        match much.map_or(Ok(()), |much| self.admit_all(now, &much)) {
            Ok(()) => decision,
            Err(held) => decision.held_back(held),
        }
    }

    /// Applies the brake to a retry of an admitted decision: nothing is counted, but an outage or a pause still blocks
    /// it.
    #[must_use]
    pub fn pass_again<Why, S: Step>(
        &self,
        now: Timestamp,
        decision: Decision<Why, S>,
        outage: Outage,
    ) -> Decision<Why, S> {
        match self.check_again(now, decision.verdict.actions(), outage) {
            Ok(()) => decision,
            Err(held) => decision.held_back(held),
        }
    }
}
