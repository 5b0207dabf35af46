//! The memory that is kept on a node: since when it is sick, and what was tried.
//!
//! **The clock of a condition** starts at its lastTransitionTime, or when we first see it sick, whichever is earlier. From then
//! on our memory counts, so that an agent that writes a newer lastTransitionTime, or switches between two sick statuses, resets
//! nothing. The clock is reset when the condition was seen healthy for `repair.healthyAfter` without a break, or for its toleration
//! if that is shorter. An absent condition is healthy.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::policy::Action;
use crate::moments::{after, to_the_second};

/// No memory is longer than this: somebody else wrote it.
const LONGEST: usize = 16 * 1024;
/// So much is said of what is wrong.
const LONGEST_PROBLEM: usize = 200;
/// The clocks of writers may differ by this much.
pub(super) const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(1);

/// What is remembered of a node, as its annotation has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The clocks of conditions, by `Type=Status`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sick: BTreeMap<String, Clock>,
    /// The last thing that was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tried: Option<Tried>,
    /// True if it is us who keep new pods away from the node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cordoned: bool,
    /// The state that the node's condition tells, so that it is not told twice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub told: String,
}

/// The clock of one sick condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Clock {
    /// Since when it is sick.
    pub since: Timestamp,
    /// Since when it has been seen healthy again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy: Option<Timestamp>,
}

/// One try at a repair that leaves the node in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tried {
    /// The condition that it was for, as `Type=Status`.
    pub condition: String,
    /// What was done.
    pub action: Action,
    /// The place in the ladder, from 0.
    pub rung: usize,
    /// Which attempt on that rung, from 1.
    pub attempt: u32,
    /// When.
    pub at: Timestamp,
    /// The boot ID before.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
}

/// A condition that is sick now.
#[derive(Clone, Copy, Debug)]
pub struct SickNow<'a> {
    /// `Type=Status`.
    pub key: &'a str,
    /// Its type.
    pub kind: &'a str,
    /// Its lastTransitionTime.
    pub transition: Option<Timestamp>,
}

impl Progress {
    /// Reads the annotation.
    ///
    /// # Errors
    /// It is not what we write.
    pub fn read(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("it is longer than {LONGEST} bytes"));
        }
        // A struct would be read from a list as well.
        if !text.trim_start().starts_with('{') {
            return Err("it is not a JSON object".into());
        }
        serde_json::from_str(text).map_err(|error| {
            // An error may repeat all that it found.
            let mut problem = error.to_string();
            problem.truncate(problem.floor_char_boundary(LONGEST_PROBLEM));
            problem
        })
    }

    /// Reads the annotation of a node that was created then.
    ///
    /// # Errors
    /// It is not what we write, or something was tried before the node existed.
    pub fn read_of(text: &str, created: Option<Timestamp>) -> Result<Self, String> {
        let progress = Self::read(text)?;
        match progress.tried.as_ref().map(|tried| tried.at).zip(created) {
            Some((at, created)) if after(at, CLOCKS_DIFFER) < created => {
                Err(format!("its tried.at is {at}, and the Node was made at {created}"))
            }
            Some(_) | None => Ok(progress),
        }
    }

    /// True if nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.sick.is_empty() && self.tried.is_none()
    }

    /// The memory after one more look, and when it changes although nothing else does. `toleration` is that of a condition that
    /// is not sick now.
    pub fn observe(
        &self,
        sick: &[SickNow<'_>],
        toleration: impl Fn(&str) -> Option<SignedDuration>,
        healthy_after: SignedDuration,
        now: Timestamp,
    ) -> (Self, Option<Timestamp>) {
        let mut next = Self { sick: BTreeMap::new(), ..self.clone() };
        // A time that lies ahead was not written by us, or by a clock that was wrong. It must not put off what is tried next.
        if let Some(tried) = next.tried.as_mut().filter(|tried| now < tried.at) {
            tried.at = to_the_second(now);
        }
        let mut changes_at: Option<Timestamp> = None;
        for one in sick {
            let seen = one.transition.map_or(now, |transition| transition.min(now));
            let known = self.sick.get(one.key).map(|clock| clock.since);
            let since = to_the_second(known.map_or(seen, |known| known.min(seen)));
            next.sick.insert(one.key.to_owned(), Clock { since, healthy: None });
        }
        for (key, clock) in &self.sick {
            if next.sick.contains_key(key) {
                continue;
            }
            let kind = key.rsplit_once('=').map_or(key.as_str(), |(kind, _)| kind);
            if sick.iter().any(|one| one.kind == kind) {
                // Another status of the same condition that is sick as well is no health.
                next.sick.insert(key.clone(), Clock { healthy: None, ..*clock });
                continue;
            }
            // A time that lies ahead was not written by us, or by a clock that was wrong.
            let healthy = clock.healthy.map_or(now, |healthy| healthy.min(now));
            let needed = toleration(key).map_or(healthy_after, |toleration| toleration.min(healthy_after));
            let until = after(healthy, needed);
            if now < until {
                next.sick.insert(key.clone(), Clock { healthy: Some(to_the_second(healthy)), ..*clock });
                changes_at = Some(changes_at.map_or(until, |before| before.min(until)));
            }
        }
        if next.sick.is_empty() {
            // A node that is well has nothing behind it.
            next.tried = None;
        }
        (next, changes_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    const MINUTE: SignedDuration = SignedDuration::from_mins(1);
    const KEY: &str = "Ready=False";

    fn look(memory: &Progress, sick: &[(&str, i64)], now: i64) -> Progress {
        let sick: Vec<SickNow<'_>> = sick
            .iter()
            .map(|(key, transition)| SickNow {
                key,
                kind: key.split_once('=').unwrap().0,
                transition: Some(at(*transition)),
            })
            .collect();
        memory.observe(&sick, |_| Some(SignedDuration::from_mins(10)), MINUTE, at(now)).0
    }

    fn since(memory: &Progress, key: &str) -> Option<i64> {
        memory.sick.get(key).map(|clock| clock.since.as_second() - 1_800_000_000)
    }

    #[test]
    fn the_clock_starts_at_the_transition_and_no_agent_moves_it_on() {
        let memory = look(&Progress::default(), &[(KEY, 0)], 5);
        assert_eq!(since(&memory, KEY), Some(0));
        let memory = look(&memory, &[(KEY, 100)], 101);
        assert_eq!(since(&memory, KEY), Some(0), "rewritten");
        let memory = look(&memory, &[(KEY, -50)], 102);
        assert_eq!(since(&memory, KEY), Some(-50), "earlier is believed");
        let memory = look(&Progress::default(), &[(KEY, 500)], 5);
        assert_eq!(since(&memory, KEY), Some(5), "a transition that lies ahead counts from now");
    }

    #[test]
    fn a_short_spell_of_health_resets_nothing_and_a_long_one_does() {
        let sick = look(&Progress::default(), &[(KEY, 0)], 0);
        let healthy = look(&sick, &[], 100);
        assert_eq!(healthy.sick[KEY].healthy, Some(at(100)));
        let sick_again = look(&healthy, &[(KEY, 150)], 150);
        assert_eq!((since(&sick_again, KEY), sick_again.sick[KEY].healthy), (Some(0), None));
        assert_eq!(since(&look(&healthy, &[], 159), KEY), Some(0));
        assert_eq!(look(&healthy, &[], 160), Progress::default());
        let anew = look(&look(&healthy, &[], 160), &[(KEY, 170)], 171);
        assert_eq!(since(&anew, KEY), Some(170));
    }

    #[test]
    fn a_short_toleration_needs_no_longer_health() {
        let sick = look(&Progress::default(), &[(KEY, 0)], 0);
        let ten_seconds = |_: &str| Some(SignedDuration::from_secs(10));
        let (healthy, changes) = sick.observe(&[], ten_seconds, MINUTE, at(20));
        assert_eq!(changes, Some(at(30)));
        assert_eq!(healthy.observe(&[], ten_seconds, MINUTE, at(30)).0, Progress::default());
    }

    #[test]
    fn what_was_tried_at_a_time_that_lies_ahead_was_tried_now() {
        let (condition, boot_id) = (KEY.to_owned(), String::new());
        let tried =
            Tried { condition, action: Action::Reboot, rung: 0, attempt: 1, at: at(1_000_000), boot_id };
        let memory = look(&Progress { tried: Some(tried), ..Progress::default() }, &[(KEY, 0)], 50);
        assert_eq!(memory.tried.as_ref().map(|tried| tried.at), Some(at(50)));
        assert_eq!(look(&memory, &[(KEY, 0)], 60).tried.map(|tried| tried.at), Some(at(50)));
    }

    #[test]
    fn switching_between_two_sick_statuses_is_no_health() {
        let mut memory = Progress::default();
        for minute in 0..10 {
            let key = if minute % 2 == 0 { "Ready=False" } else { "Ready=Unknown" };
            memory = look(&memory, &[(key, minute * 60)], minute * 60);
        }
        assert_eq!(since(&memory, "Ready=False"), Some(0));
        assert_eq!(since(&memory, "Ready=Unknown"), Some(60));
    }

    #[test]
    fn garbage_is_no_memory() {
        for text in ["", "{", "[]", r#"{"sick":{"a":{"since":"x"}}}"#, &"x".repeat(100_000)] {
            assert!(Progress::read(text).is_err(), "{text:.20}");
        }
        let mut memory = look(&Progress::default(), &[(KEY, 0)], 0);
        assert_eq!(Progress::read(&serde_json::to_string(&memory).unwrap()).unwrap(), memory);
        let long = format!(r#"{{"told": {{"{}": 1}}}}"#, "é".repeat(1000));
        assert!(Progress::read(&long).unwrap_err().len() <= LONGEST_PROBLEM);
        // What was tried on another node of that name was not tried on this one.
        let (condition, boot_id) = (KEY.to_owned(), String::new());
        memory.tried =
            Some(Tried { condition, action: Action::Reboot, rung: 0, attempt: 1, at: at(0), boot_id });
        let text = serde_json::to_string(&memory).unwrap();
        for (created, is_believed) in [(None, true), (Some(at(60)), true), (Some(at(61)), false)] {
            assert_eq!(Progress::read_of(&text, created).is_ok(), is_believed, "{created:?}");
        }
    }
}
