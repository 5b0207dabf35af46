//! What happened, in the order in which it did: failures, what Salvor did about them, and work that came back.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

/// Moments that are kept; older ones are of no use to somebody who looks at a page.
const KEPT: usize = 300;
/// Alike things that happen within this time are one moment: a zone that is lost is not twenty lines.
const TOGETHER: SignedDuration = SignedDuration::from_secs(5);
/// How far back a moment is looked for that a new thing belongs to.
const RECENT: usize = 6;
/// Subjects that a moment names.
const NAMED: usize = 4;

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// Nodes are not heard of any more.
    NodeLost,
    /// Nodes are back.
    NodeBack,
    /// Pods cannot end, because nobody is there to end them.
    Stuck,
    /// Salvor wrote something.
    Did,
    /// Work that was lost runs again.
    WorkBack,
    /// AppWrappers are unhealthy.
    Unhealthy,
    /// AppWrappers are Running again after a reset.
    ResetOver,
    /// Somebody made something happen, or told a story.
    Told,
}

/// One thing that happened, or several alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Its number; later ones are greater.
    pub number: u64,
    /// The version of the page at which it last changed.
    pub(crate) version: u64,
    /// When it began.
    pub at: Timestamp,
    /// What kind of thing.
    pub kind: Kind,
    /// What is the same for all of it: a zone, a workload, an action.
    pub about: String,
    /// To what it happened.
    pub subjects: Vec<String>,
    /// How long the work was away, at the longest.
    pub away: Option<SignedDuration>,
}

impl Moment {
    /// The moment as a sentence.
    pub fn text(&self) -> String {
        let count = self.subjects.len();
        let names = self.names();
        let about = &self.about;
        match self.kind {
            Kind::NodeLost if count == 1 => format!("Node {names} is not heard of any more"),
            Kind::NodeLost => format!("{count} nodes of {about} are not heard of any more: {names}"),
            Kind::NodeBack if count == 1 => format!("Node {names} is back"),
            Kind::NodeBack => format!("{count} nodes of {about} are back: {names}"),
            Kind::Stuck if count == 1 => format!("{names} is stuck: it must end, and its node is silent"),
            Kind::Stuck => {
                format!("{count} pods of {about} are stuck: they must end, and their nodes are silent")
            }
            Kind::Did => format!("Salvor {about}: {names}"),
            Kind::WorkBack => {
                let away = self.away.unwrap_or_default().as_secs();
                if count == 1 {
                    format!("{names} runs again, {away} s after its node was lost")
                } else {
                    format!("{count} pods of {about} run again, {away} s after their nodes were lost")
                }
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

/// The moments, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    moments: VecDeque<Moment>,
    next: u64,
}

impl Timeline {
    /// Something happened. It joins a recent moment of the same kind about the same.
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
                "5 nodes of zone b are not heard of any more: b-1, b-2, b-3, b-4 and 1 more",
                "Node c-1 is not heard of any more",
                "Node b-6 is not heard of any more",
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
            "training-1 runs again, 12 s after its node was lost"
        );
        timeline.add(2, second(1), Kind::WorkBack, "training", "training-2", away(13));
        assert_eq!(
            timeline.since(0).next().unwrap().text(),
            "2 pods of training run again, 13 s after their nodes were lost"
        );
    }

    #[test]
    fn old_moments_are_let_go() {
        let mut timeline = Timeline::default();
        for n in 0..1000 {
            timeline.add(n, second(n as i64 * 10), Kind::NodeBack, "zone", "x", None);
        }
        assert_eq!(timeline.since(0).count(), KEPT);
    }
}
