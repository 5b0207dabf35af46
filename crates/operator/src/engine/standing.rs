//! Counts the subjects that wait, are blocked, or lack consent, for the gauges.

use std::collections::BTreeMap;

use crate::{engine::recovery::Subject, metrics::Metrics};

/// Why a subject that may need a recovery has not been recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It waits for a time, for this reason.
    Waits(&'static str),
    /// This limit blocks it.
    Blocked(&'static str),
    /// It has no consent.
    WithoutConsent,
}

/// The state of each subject that has one. Subjects that are healthy or being acted on have none.
pub(super) struct Standings<S> {
    of: BTreeMap<S, Standing>,
    /// Includes states whose count dropped to 0, because their gauges must show that.
    counts: BTreeMap<Standing, usize>,
    changed: bool,
}

impl<S: Subject> Standings<S> {
    pub(super) fn new() -> Self {
        Self { of: BTreeMap::new(), counts: BTreeMap::new(), changed: true }
    }

    pub(super) fn set(&mut self, subject: &S, standing: Option<Standing>) {
        let before = match standing {
            Some(standing) => self.of.insert(subject.clone(), standing),
            None => self.of.remove(subject),
        };
        if before == standing {
            return;
        }
        self.changed = true;
        if let Some(count) = before.and_then(|before| self.counts.get_mut(&before)) {
            *count = count.saturating_sub(1);
        }
        if let Some(standing) = standing {
            *self.counts.entry(standing).or_default() += 1;
        }
    }

    /// Drops the subjects that are gone.
    pub(super) fn retain(&mut self, is_there: impl Fn(&S) -> bool) {
        let gone: Vec<S> = self.of.keys().filter(|subject| !is_there(subject)).cloned().collect();
        for subject in gone {
            self.set(&subject, None);
        }
    }

    /// Drops all: only the leader decides.
    pub(super) fn clear(&mut self) {
        self.retain(|_| false);
    }

    /// Updates the gauges if any count has changed. `unconsented` more subjects lack consent that are not tracked here.
    pub(super) fn show(&mut self, recovery: &'static str, unconsented: usize, metrics: &Metrics) {
        let own = self.counts.get(&Standing::WithoutConsent).copied().unwrap_or(0);
        metrics.without_consent(recovery, own + unconsented);
        if !std::mem::take(&mut self.changed) {
            return;
        }
        for (standing, count) in &self.counts {
            match standing {
                Standing::Waits(reason) => metrics.waiting(recovery, reason, *count),
                Standing::Blocked(by) => metrics.blocked(recovery, by, *count),
                Standing::WithoutConsent => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;

    #[test]
    fn numbers_follow_each_subject_and_go_back_to_zero() {
        let metrics = Metrics::new(&Time::system());
        let mut standings = Standings::new();
        let shows = |standings: &mut Standings<String>, lines: &[&str]| {
            standings.show("zombie", 2, &metrics);
            let text = metrics.render();
            for line in lines {
                assert!(text.lines().any(|l| l == *line), "{line} is not in\n{text}");
            }
        };
        for subject in ["a", "b"] {
            standings.set(&subject.to_owned(), Some(Standing::Waits("GraceRunning")));
        }
        standings.set(&"c".to_owned(), Some(Standing::WithoutConsent));
        shows(
            &mut standings,
            &[
                "salvor_waiting{recovery=\"zombie\",reason=\"GraceRunning\"} 2",
                "salvor_stuck_without_consent{recovery=\"zombie\"} 3",
            ],
        );
        standings.set(&"a".to_owned(), Some(Standing::Blocked("ZoneDown")));
        standings.set(&"a".to_owned(), Some(Standing::Blocked("ZoneDown")));
        standings.set(&"b".to_owned(), None);
        shows(
            &mut standings,
            &[
                "salvor_waiting{recovery=\"zombie\",reason=\"GraceRunning\"} 0",
                "salvor_blocked{recovery=\"zombie\",by=\"ZoneDown\"} 1",
            ],
        );
        standings.clear();
        shows(
            &mut standings,
            &[
                "salvor_blocked{recovery=\"zombie\",by=\"ZoneDown\"} 0",
                "salvor_stuck_without_consent{recovery=\"zombie\"} 2",
            ],
        );
    }
}
