//! The timeline: failures, Salvor's writes and recovered pods, in chronological order.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

/// Only this many newest moments are kept.
const KEPT: usize = 300;
/// Equal occurrences within this time become one moment, so that a lost zone is one line instead of twenty.
const TOGETHER: SignedDuration = SignedDuration::from_secs(5);
/// A new occurrence may join one of this many newest moments.
const RECENT: usize = 6;
/// A moment names at most this many subjects.
const NAMED: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// Nodes became unreachable.
    NodeLost,
    /// Nodes are reachable again.
    NodeBack,
    /// Pods are Terminating on an unreachable node, where no kubelet can end them.
    Stuck,
    /// Salvor wrote something.
    Did,
    /// Lost pods or their replacements run again.
    WorkBack,
    /// Pods of a node under repair, or their replacements, run again.
    WorkMoved,
    /// Nodes became sick by a repair policy, and their toleration is running.
    Sick,
    /// Nodes exceeded their toleration, and something blocks or forbids their repair.
    NotRepaired,
    /// Nodes are healthy again, with or without a repair.
    Healthy,
    /// A node under repair was deleted.
    NodeGone,
    /// A new node replaces one that was under repair.
    Replaced,
    Unhealthy,
    /// AppWrappers are Running again after a reset.
    ResetOver,
    /// A person or the demo did something.
    Told,
}

/// One occurrence, or several equal ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Later moments have greater numbers.
    pub number: u64,
    /// The version of the page at which it last changed.
    pub(crate) version: u64,
    /// When it began.
    pub at: Timestamp,
    pub kind: Kind,
    /// The zone, workload or action that all subjects share.
    pub about: String,
    /// The affected nodes or pods.
    pub subjects: Vec<String>,
    /// The longest time that one of the pods was not running.
    pub away: Option<SignedDuration>,
}

impl Moment {
    pub fn text(&self) -> String {
        let count = self.subjects.len();
        let names = self.names();
        let about = &self.about;
        match self.kind {
            Kind::NodeLost if count == 1 => format!("Node {names} is unreachable"),
            Kind::NodeLost => format!("{count} nodes of {about} are unreachable: {names}"),
            Kind::NodeBack if count == 1 => format!("Node {names} is reachable again"),
            Kind::NodeBack => format!("{count} nodes of {about} are reachable again: {names}"),
            Kind::Stuck if count == 1 => format!("{names} is stuck Terminating: its node is unreachable"),
            Kind::Stuck => {
                format!("{count} pods of {about} are stuck Terminating: their nodes are unreachable")
            }
            Kind::Did => format!("Salvor {about}: {names}"),
            Kind::WorkBack => {
                let away = self.away.unwrap_or_default().as_secs();
                if count == 1 {
                    format!("{names} is Running again, {away} s after its node became unreachable")
                } else {
                    format!(
                        "{count} pods of {about} are Running again, {away} s after their nodes became unreachable"
                    )
                }
            }
            Kind::WorkMoved => {
                let away = self.away.unwrap_or_default().as_secs();
                if count == 1 {
                    format!("{names} is Running again, {away} s after the repair of its node began")
                } else {
                    format!(
                        "{count} pods of {about} are Running again, {away} s after the repair of their nodes began"
                    )
                }
            }
            Kind::Sick if count == 1 => format!("Node {names} is sick: {about}"),
            Kind::Sick => format!("{count} nodes are sick, {names}: {about}"),
            Kind::NotRepaired if count == 1 => format!("Node {names} is not repaired: {about}"),
            Kind::NotRepaired => format!("{count} nodes are not repaired, {names}: {about}"),
            Kind::Healthy if count == 1 => format!("Node {names} is {about}"),
            Kind::Healthy => format!("{count} nodes are {about}: {names}"),
            Kind::NodeGone if count == 1 => format!("Node {names} is gone"),
            Kind::NodeGone => format!("{count} nodes are gone: {names}"),
            Kind::Replaced => {
                let away = self.away.unwrap_or_default().as_secs();
                format!("Node {names} replaces node {about}, {away} s after its repair began")
            }
            Kind::Unhealthy if count == 1 => format!("AppWrapper {names} is unhealthy: {about}"),
            Kind::Unhealthy => format!("{count} AppWrappers are unhealthy, {names}: {about}"),
            Kind::ResetOver => {
                let away = self.away.unwrap_or_default().as_secs();
                if count == 1 {
                    format!("AppWrapper {names} is Running again, {away} s after it was reset")
                } else {
                    format!("{count} AppWrappers are Running again, {away} s after they were reset: {names}")
                }
            }
            Kind::Told => about.clone(),
        }
    }

    fn names(&self) -> String {
        let shown: Vec<_> = self.subjects.iter().take(NAMED).map(String::as_str).collect();
        match self.subjects.len().saturating_sub(NAMED) {
            0 => shown.join(", "),
            more => format!("{} and {more} more", shown.join(", ")),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Timeline {
    moments: VecDeque<Moment>,
    next: u64,
}

impl Timeline {
    /// Adds an occurrence. It joins a recent moment with the same kind and `about`.
    pub(crate) fn add(
        &mut self,
        version: u64,
        at: Timestamp,
        kind: Kind,
        about: &str,
        subject: &str,
        away: Option<SignedDuration>,
    ) {
        let recent = self.moments.iter_mut().rev().take(RECENT);
        let mut alike = recent.filter(|m| {
            m.kind == kind && m.about == about && at.duration_since(m.at) <= TOGETHER && kind != Kind::Told
        });
        if let Some(moment) = alike.next() {
            moment.version = version;
            moment.away = moment.away.max(away);
            moment.subjects.push(subject.to_owned());
            return;
        }
        let number = self.next;
        self.next += 1;
        let subjects = if subject.is_empty() { Vec::new() } else { vec![subject.to_owned()] };
        self.moments.push_back(Moment { number, version, at, kind, about: about.to_owned(), subjects, away });
        if self.moments.len() > KEPT {
            self.moments.pop_front();
        }
    }

    pub(crate) fn since(&self, version: u64) -> impl Iterator<Item = &Moment> {
        self.moments.iter().filter(move |m| m.version > version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(n: i64) -> Timestamp {
        Timestamp::from_second(n).unwrap()
    }

    #[test]
    fn a_zone_that_is_lost_is_one_line() {
        let mut timeline = Timeline::default();
        for (n, node) in ["b-1", "b-2", "b-3", "b-4", "b-5"].iter().enumerate() {
            timeline.add(n as u64 + 1, second(n as i64), Kind::NodeLost, "zone b", node, None);
        }
        timeline.add(6, second(3), Kind::NodeLost, "zone c", "c-1", None);
        timeline.add(7, second(60), Kind::NodeLost, "zone b", "b-6", None);
        let texts: Vec<_> = timeline.since(0).map(Moment::text).collect();
        assert_eq!(
            texts,
            [
                "5 nodes of zone b are unreachable: b-1, b-2, b-3, b-4 and 1 more",
                "Node c-1 is unreachable",
                "Node b-6 is unreachable",
            ]
        );
        assert_eq!(timeline.since(5).count(), 2);
    }

    #[test]
    fn work_that_is_back_says_how_long_it_was_away() {
        let mut timeline = Timeline::default();
        let away = |s| Some(SignedDuration::from_secs(s));
        timeline.add(1, second(0), Kind::WorkBack, "training", "training-1", away(12));
        assert_eq!(
            timeline.since(0).next().unwrap().text(),
            "training-1 is Running again, 12 s after its node became unreachable"
        );
        timeline.add(2, second(1), Kind::WorkBack, "training", "training-2", away(13));
        assert_eq!(
            timeline.since(0).next().unwrap().text(),
            "2 pods of training are Running again, 13 s after their nodes became unreachable"
        );
    }

    #[test]
    fn old_moments_are_dropped() {
        let mut timeline = Timeline::default();
        for n in 0..1000 {
            timeline.add(n, second(n as i64 * 10), Kind::NodeBack, "zone", "x", None);
        }
        assert_eq!(timeline.since(0).count(), KEPT);
    }
}
