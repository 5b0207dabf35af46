//! Checks the budget of the brake: no window has more pods than it allows, across changes of leader.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    Seen,
    forces::{is_marked, is_taken_out_of_service},
    invariants::{Invariant, Violation},
    known::Known,
    text,
};
use crate::swarm::{deed::Deed, plan::Plan, replica::Death};

/// A write counts for a minute from when it is carried out. The clocks of processes may differ by a second.
const WINDOW: SignedDuration = SignedDuration::from_secs(58);
/// A process that dies forgets the admissions of this long before.
const FORGOTTEN: SignedDuration = SignedDuration::from_secs(2);

struct Admission {
    sent: Timestamp,
    by: Arc<str>,
    /// `None` for as many as the budget has.
    pods: Option<u32>,
    what: String,
}

pub(super) struct BrakeWindows {
    /// 0 means no limit.
    limit: u32,
    /// The most that may be sent in a window: twice the budget if a write may be counted later than it was sent.
    most: u32,
    admissions: Vec<Admission>,
}

impl BrakeWindows {
    pub(super) fn new(plan: &Plan) -> Self {
        let limit = plan.settings.pods_per_minute;
        let most = if plan.has(Deed::is_counted_late) { limit * 2 } else { limit };
        Self { limit, most, admissions: Vec::new() }
    }

    pub(super) fn see(&mut self, seen: &Seen<'_>, known: &Known) {
        let Some(write) = seen.by else { return };
        // A pod whose Node is gone was counted when a repair terminated its machine.
        let is_freed = || known.cluster_object("nodes", text(&seen.object["spec"]["nodeName"])).is_none();
        let pods = match seen.resource {
            "pods" if is_marked(seen) && !is_freed() => Some(1),
            "nodes" if is_taken_out_of_service(seen) => None,
            _ => return,
        };
        let (sent, by) = (write.sent.at, write.sent.by.clone());
        self.admissions.push(Admission { sent, by, pods, what: seen.name().to_owned() });
    }

    pub(super) fn finish(&mut self, deaths: &[Death], wrong: &mut Vec<Violation>) {
        if self.limit == 0 {
            return;
        }
        let is_forgotten = |it: &Admission| {
            deaths.iter().any(|death| death.of == it.by && death.at.duration_since(it.sent) <= FORGOTTEN)
        };
        self.admissions.retain(|it| !is_forgotten(it));
        self.admissions.sort_by_key(|it| it.sent);
        for (first, admission) in self.admissions.iter().enumerate() {
            let window = self.admissions[first..]
                .iter()
                .take_while(|it| it.sent.duration_since(admission.sent) < WINDOW);
            let window: Vec<&Admission> = window.collect();
            let pods: u32 = window.iter().map(|it| it.pods.unwrap_or(self.limit)).sum();
            if pods > self.most {
                let names: Vec<String> =
                    window.iter().map(|it| format!("{} at {} by {}", it.what, it.sent, it.by)).collect();
                let text = format!("{pods} pods with a budget of {}: {}", self.limit, names.join(", "));
                wrong.push(Violation::new(Invariant::BrakeWindow, admission.sent, text));
                return;
            }
        }
    }
}
