//! The memory kept in a node's annotation: since when the node is sick, and what was tried.
//!
//! **The clock of a condition** starts at its lastTransitionTime, or when Salvor first sees it sick, whichever is
//! earlier. From then on the memory counts, so an agent that writes a newer lastTransitionTime, or switches between two
//! sick statuses, resets nothing. A lastTransitionTime in the future counts once Salvor's time has reached it: then
//! Salvor's time was wrong. The clock resets when the condition was seen healthy for `repair.healthyAfter` without
//! interruption, or for its toleration if that is shorter. An absent condition is healthy.
//!
//! **A node that healed by itself** is remembered for a while, because it shows that the cause of other nodes' sickness
//! may be passing. A node that has just booted, or that Salvor rebooted, did not heal by itself.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::repair::reasons;
use serde::{Deserialize, Serialize};

use super::action::Action;
use crate::moments::{after, to_the_second};

/// Salvor never writes a memory longer than this, so a longer one comes from another writer.
const LONGEST: usize = 16 * 1024;
/// The maximum length of an error message.
const LONGEST_PROBLEM: usize = 200;
/// The clocks of writers may differ by this much.
pub(super) const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(1);
/// A healed node is remembered for this many times the span in which it counts: while others heal one after another, it
/// counts with them.
const REMEMBERED: i32 = 10;

/// Salvor's time is the earliest that the server's clock can show, and the server reports whole seconds. A transition
/// up to this much later is not in the future.
const OUR_TIME_IS_BEHIND: SignedDuration = SignedDuration::from_secs(2);

/// The annotation on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The clocks of conditions, by `Type=Status`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sick: BTreeMap<String, Clock>,
    /// The last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tried: Option<Tried>,
    /// The end of the node's last sickness, if it passed by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healed: Option<Healed>,
    /// True if Salvor cordoned the node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cordoned: bool,
    /// The start of Salvor's drain, which is the time of the cordon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining_since: Option<Timestamp>,
    /// A token for the state that the node's condition shows, so that it is not written twice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub told: String,
}

impl Progress {
    /// The code of the hold that the node's condition shows.
    pub(super) fn blocked_by(&self) -> Option<&str> {
        let mut words = self.told.split(' ');
        (words.next() == Some(reasons::BLOCKED)).then(|| words.next())?
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Clock {
    pub since: Timestamp,
    /// When Salvor first saw it sick, if that is later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Timestamp>,
    /// Since when it is seen healthy again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy: Option<Timestamp>,
    /// True if the node had never been ready for pods when the sickness began.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub starting: bool,
    /// The earliest transition that was in the future when it was read; `since` is then Salvor's time of that read.
    /// Once Salvor's time reaches it, that time was wrong and the transition counts, even if the agent has written
    /// another one since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<Timestamp>,
}

impl Clock {
    /// A clock whose condition was seen sick from the beginning.
    pub fn new(since: Timestamp) -> Self {
        Self { since, seen: None, healthy: None, starting: false, ahead: None }
    }

    pub fn seen(&self) -> Timestamp {
        self.seen.unwrap_or(self.since).max(self.since)
    }
}

/// The end of a sickness that passed by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Healed {
    /// The condition as `Type=Status`.
    pub condition: String,
    /// When it was first seen sick.
    pub seen: Timestamp,
    /// Since when it is healthy.
    pub at: Timestamp,
    /// True if it was sick for longer than tolerated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub due: bool,
}

impl Healed {
    /// How long the node keeps counting as sick: `settle_after`, but no longer than the sickness was seen.
    pub fn span(&self, settle_after: SignedDuration) -> SignedDuration {
        self.at.duration_since(self.seen).min(settle_after).max(SignedDuration::ZERO)
    }

    pub fn forgotten_at(&self, settle_after: SignedDuration) -> Timestamp {
        after(self.at, self.span(settle_after).checked_mul(REMEMBERED).unwrap_or(SignedDuration::MAX))
    }
}

/// An attempt at a repair that leaves the node in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tried {
    /// The condition as `Type=Status`.
    pub condition: String,
    pub action: Action,
    /// The index in the ladder, from 0.
    pub rung: usize,
    /// The attempt on that rung, from 1.
    pub attempt: u32,
    pub at: Timestamp,
    /// The node's boot ID before the attempt.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
}

#[derive(Clone, Copy, Debug)]
pub struct SickNow<'a> {
    /// `Type=Status`.
    pub key: &'a str,
    pub kind: &'a str,
    /// Its lastTransitionTime.
    pub transition: Option<Timestamp>,
}

/// One reading of a node's conditions, with the settings that apply.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    pub sick: &'a [SickNow<'a>],
    /// The toleration of a condition that was sick, by `Type=Status`.
    pub toleration: &'a dyn Fn(&str) -> Option<SignedDuration>,
    /// How long a condition must be healthy to reset its clock.
    pub healthy_after: SignedDuration,
    /// How long a node that healed keeps counting as sick.
    pub settle_after: SignedDuration,
    /// True if the node has never been ready for pods.
    pub starting: bool,
    pub now: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    pub memory: Progress,
    /// When a clock resets if nothing else happens.
    pub resets_at: Option<Timestamp>,
    /// When the healing of the node is forgotten.
    pub forgets_at: Option<Timestamp>,
}

impl Progress {
    /// # Errors
    /// The text is not what Salvor writes.
    pub fn read(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("it is longer than {LONGEST} bytes"));
        }
        // serde would accept a JSON array for a struct too.
        if !text.trim_start().starts_with('{') {
            return Err("it is not a JSON object".into());
        }
        serde_json::from_str(text).map_err(|error| {
            // The error may quote the whole input.
            let mut problem = error.to_string();
            problem.truncate(problem.floor_char_boundary(LONGEST_PROBLEM));
            problem
        })
    }

    /// Reads the annotation of a node with this creation time.
    ///
    /// # Errors
    /// The text is not what Salvor writes, or an attempt is older than the node.
    pub fn read_of(text: &str, created: Option<Timestamp>) -> Result<Self, String> {
        let progress = Self::read(text)?;
        match progress.tried.as_ref().map(|tried| tried.at).zip(created) {
            Some((at, created)) if after(at, CLOCKS_DIFFER) < created => {
                Err(format!("its tried.at is {at}, and the Node was made at {created}"))
            }
            Some(_) | None => Ok(progress),
        }
    }

    /// True if no clock and no attempt is remembered.
    pub fn is_empty(&self) -> bool {
        self.sick.is_empty() && self.tried.is_none()
    }

    pub fn observe(&self, look: &Look<'_>) -> Observed {
        let Look { sick, now, .. } = *look;
        let latest = after(now, OUR_TIME_IS_BEHIND);
        let lies_ahead = |one: &SickNow<'_>| {
            let known = self.sick.get(one.key).map(|clock| clock.since);
            one.transition.min(known).is_some_and(|earlier| earlier > latest)
        };
        // Both the node's transition and the known start are in the future: Salvor's time is behind. No duration can be
        // computed, so nothing changes.
        if sick.iter().any(lies_ahead) {
            return Observed { memory: self.clone(), resets_at: None, forgets_at: None };
        }
        let mut next = Self { sick: BTreeMap::new(), healed: None, ..self.clone() };
        let mut resets_at: Option<Timestamp> = None;
        // A time in the future comes from another writer or a wrong clock. It must not delay the next attempt.
        if let Some(tried) = next.tried.as_mut().filter(|tried| now < tried.at) {
            tried.at = to_the_second(now);
        }
        next.draining_since = next.draining_since.map(|since| since.min(to_the_second(now)));
        for one in sick {
            // Salvor's time is the earliest possible. No sickness starts later than `latest`.
            let told = one.transition.map_or(latest, |transition| transition.min(latest));
            let known = self.sick.get(one.key);
            // An agent that keeps writing newer transitions moves nothing: the earliest of the future ones counts.
            let first = match known {
                None => one.transition,
                Some(clock) => {
                    clock.ahead.map(|ahead| one.transition.map_or(ahead, |other| other.min(ahead)))
                }
            };
            let (ahead, reached) = match first {
                Some(first) if first > latest => (Some(first), None),
                Some(_) | None => (None, first),
            };
            let since = reached.unwrap_or_else(|| known.map_or(told, |clock| clock.since.min(told)));
            let since = to_the_second(since);
            let seen = to_the_second(known.map_or(now, |known| known.seen().min(now)));
            let starting = known.map_or(look.starting, |known| known.starting);
            let seen = Some(seen).filter(|seen| *seen != since);
            next.sick.insert(one.key.to_owned(), Clock { since, seen, healthy: None, starting, ahead });
        }
        // A node that is sick again has not healed.
        let mut healed = self.healed.clone().filter(|healed| sick.is_empty() && healed.at <= now);
        for (key, clock) in &self.sick {
            if next.sick.contains_key(key) {
                continue;
            }
            let kind = kind_of(key);
            if sick.iter().any(|one| one.kind == kind) {
                // Another sick status of the same condition is not health.
                next.sick.insert(key.clone(), Clock { healthy: None, ..*clock });
                continue;
            }
            // A time in the future comes from another writer or a wrong clock.
            let healthy = clock.healthy.map_or(now, |healthy| healthy.min(now));
            let needed = (look.toleration)(key).map_or(look.healthy_after, |it| it.min(look.healthy_after));
            let until = after(healthy, needed);
            if now < until {
                next.sick.insert(key.clone(), Clock { healthy: Some(to_the_second(healthy)), ..*clock });
                resets_at = Some(resets_at.map_or(until, |before| before.min(until)));
            } else if sick.is_empty() {
                healed = later(healed, self.end_of(key, clock, healthy, look));
            }
        }
        if next.sick.is_empty() {
            // Attempts and drains belong to a sickness, which is over.
            next.tried = None;
            next.draining_since = None;
        }
        next.healed = healed.filter(|healed| now < healed.forgotten_at(look.settle_after));
        let forgets_at = next.healed.as_ref().map(|healed| healed.forgotten_at(look.settle_after));
        Observed { memory: next, resets_at, forgets_at }
    }

    /// The last sickness of a healthy node, if it passed by itself.
    pub fn last_healed(&self, look: &Look<'_>) -> Option<Healed> {
        let ending = self.sick.iter().filter_map(|(key, clock)| {
            let healthy = clock.healthy?;
            self.end_of(key, clock, healthy, look)
        });
        ending.fold(self.healed.clone(), |last, next| later(last, Some(next)))
    }

    /// The end of a sickness; none if it did not pass by itself.
    fn end_of(&self, key: &str, clock: &Clock, healthy: Timestamp, look: &Look<'_>) -> Option<Healed> {
        if clock.starting || self.tried.is_some() {
            return None;
        }
        let due = (look.toleration)(key).is_some_and(|toleration| after(clock.since, toleration) <= healthy);
        let (seen, at) = (clock.seen().min(healthy), to_the_second(healthy));
        Some(Healed { condition: key.to_owned(), seen, at, due })
    }
}

fn later(one: Option<Healed>, other: Option<Healed>) -> Option<Healed> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if one.at < other.at { other } else { one }),
        (one, other) => one.or(other),
    }
}

/// The type in `Type=Status`.
pub(super) fn kind_of(key: &str) -> &str {
    key.rsplit_once('=').map_or(key, |(kind, _)| kind)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

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
        memory.observe(&looked(&sick, &|_| Some(SignedDuration::from_mins(10)), now)).memory
    }

    fn looked<'a>(
        sick: &'a [SickNow<'a>],
        toleration: &'a dyn Fn(&str) -> Option<SignedDuration>,
        now: i64,
    ) -> Look<'a> {
        let settle_after = SignedDuration::from_mins(3);
        Look { sick, toleration, healthy_after: MINUTE, settle_after, starting: false, now: at(now) }
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
        let memory = look(&Progress::default(), &[(KEY, 7)], 5);
        assert_eq!(since(&memory, KEY), Some(7), "our time is behind the server's by up to two seconds");
        let memory = look(&Progress::default(), &[(KEY, 500)], 5);
        assert_eq!(since(&memory, KEY), Some(7), "a transition that lies ahead counts from now");
    }

    #[test]
    fn a_clock_that_was_behind_makes_nobody_sick_for_longer() {
        let an_hour_behind = look(&Progress::default(), &[(KEY, 3600)], 5);
        let still_behind = look(&an_hour_behind, &[(KEY, 3600)], 100);
        assert_eq!(since(&still_behind, KEY), Some(7));
        let right = look(&still_behind, &[(KEY, 3600)], 3700);
        assert_eq!((since(&right, KEY), right.sick[KEY].ahead), (Some(3600), None));
        let rewritten = look(&still_behind, &[(KEY, 3690)], 3700);
        assert_eq!(since(&rewritten, KEY), Some(3600), "an agent that writes a newer one moves nothing");
        let rewritten_while_behind = look(&still_behind, &[(KEY, 3650)], 110);
        assert_eq!(rewritten_while_behind, still_behind);
        let corrected = look(&still_behind, &[(KEY, 90)], 110);
        assert_eq!((since(&corrected, KEY), corrected.sick[KEY].ahead), (Some(90), None));
        let by_an_agent_ahead = |memory: Progress, minutes: Range<i64>| {
            minutes.fold(memory, |memory, minute| look(&memory, &[(KEY, 7200 + minute * 60)], minute * 60))
        };
        let not_reached = by_an_agent_ahead(still_behind, 2..60);
        assert_eq!(since(&not_reached, KEY), Some(7), "nor does one whose clock is ahead");
        assert_eq!(
            since(&by_an_agent_ahead(not_reached, 60..200), KEY),
            Some(3600),
            "it is moved once, at most"
        );
    }

    /// The clock of an API server is an hour behind for a while, after the sickness began and something was tried.
    #[test]
    fn a_clock_that_falls_behind_changes_nothing() {
        let (condition, boot_id) = (KEY.to_owned(), String::new());
        let tried = Tried { condition, action: Action::Reboot, rung: 0, attempt: 1, at: at(20), boot_id };
        let memory = Progress { tried: Some(tried), ..look(&Progress::default(), &[(KEY, 0)], 5) };
        let behind = look(&memory, &[(KEY, 0)], 30 - 3600);
        assert_eq!(behind, memory);
        assert_eq!(look(&behind, &[(KEY, 0)], 60), memory);
        // Only Salvor's time is in the future, not the node's, so another writer wrote it.
        let by_hand = Progress { sick: BTreeMap::from([(KEY.to_owned(), Clock::new(at(9_999)))]), ..memory };
        assert_eq!(since(&look(&by_hand, &[(KEY, 0)], 60), KEY), Some(0));
    }

    #[test]
    fn a_short_spell_of_health_resets_nothing_and_a_long_one_does() {
        let sick = look(&Progress::default(), &[(KEY, 0)], 0);
        let healthy = look(&sick, &[], 100);
        assert_eq!(healthy.sick[KEY].healthy, Some(at(100)));
        let sick_again = look(&healthy, &[(KEY, 150)], 150);
        assert_eq!((since(&sick_again, KEY), sick_again.sick[KEY].healthy), (Some(0), None));
        assert_eq!(since(&look(&healthy, &[], 159), KEY), Some(0));
        let well = look(&healthy, &[], 160);
        assert!(well.is_empty(), "{well:?}");
        assert_eq!(look(&well, &[], 100 + 10 * 100), Progress::default(), "all is forgotten");
        let anew = look(&look(&healthy, &[], 160), &[(KEY, 170)], 171);
        assert_eq!(since(&anew, KEY), Some(170));
    }

    #[test]
    fn a_short_toleration_needs_no_longer_health() {
        let sick = look(&Progress::default(), &[(KEY, 0)], 0);
        let ten_seconds = |_: &str| Some(SignedDuration::from_secs(10));
        let healthy = sick.observe(&looked(&[], &ten_seconds, 20));
        assert_eq!(healthy.resets_at, Some(at(30)));
        assert!(healthy.memory.observe(&looked(&[], &ten_seconds, 30)).memory.is_empty());
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

    /// The memory of a node that healed by itself includes for how long it counts, and whether it was past its
    /// toleration.
    #[test]
    fn a_node_that_healed_by_itself_is_remembered() {
        let memory = look(&Progress::default(), &[(KEY, 0)], 0);
        let healthy = look(&memory, &[], 700);
        let ending = healthy.last_healed(&looked(&[], &|_| Some(SignedDuration::from_mins(10)), 710));
        let ending = ending.unwrap();
        assert_eq!((ending.at, ending.due), (at(700), true), "it counts from the first moment");
        let well = look(&healthy, &[], 760);
        assert_eq!(well.healed.as_ref(), Some(&ending));
        let span = ending.span(SignedDuration::from_mins(3));
        assert_eq!((span, ending.forgotten_at(span)), (SignedDuration::from_mins(3), at(700 + 1800)));
        assert_eq!(look(&well, &[], 2499).healed, Some(ending));
        assert_eq!(look(&well, &[], 2500), Progress::default());
        assert_eq!(look(&well, &[(KEY, 800)], 800).healed, None, "it is sick again");
        let short =
            look(&look(&look(&Progress::default(), &[(KEY, 0)], 0), &[], 20), &[], 80).healed.unwrap();
        assert!(!short.due);
        assert_eq!(short.span(MINUTE), SignedDuration::from_secs(20), "no longer than it was sick");
    }

    /// A sickness that began long before Salvor saw it counts only for as long as it was seen.
    #[test]
    fn only_what_was_seen_counts() {
        let memory = look(&Progress::default(), &[(KEY, -3600)], 0);
        assert_eq!((memory.sick[KEY].since, memory.sick[KEY].seen()), (at(-3600), at(0)));
        let memory = look(&memory, &[(KEY, -7200)], 5);
        assert_eq!((memory.sick[KEY].since, memory.sick[KEY].seen()), (at(-7200), at(0)));
        let well = look(&look(&memory, &[], 10), &[], 70).healed.unwrap();
        assert_eq!(well.span(MINUTE), SignedDuration::from_secs(10));
    }

    #[test]
    fn a_boot_and_a_reboot_are_no_healing() {
        let ten = |_: &str| Some(SignedDuration::from_mins(10));
        let now = [SickNow { key: KEY, kind: "Ready", transition: Some(at(0)) }];
        let booting = Look { starting: true, ..looked(&now, &ten, 0) };
        let memory = Progress::default().observe(&booting).memory;
        assert!(memory.sick[KEY].starting);
        let memory = look(&memory, &[(KEY, 0)], 100);
        assert!(memory.sick[KEY].starting, "also if it stays sick when it has booted");
        let healthy = look(&memory, &[], 600);
        assert_eq!(healthy.last_healed(&looked(&[], &ten, 600)), None);
        assert_eq!(look(&healthy, &[], 660), Progress::default());
        let tried = Tried {
            condition: KEY.to_owned(),
            action: Action::Reboot,
            rung: 0,
            attempt: 1,
            at: at(300),
            boot_id: String::new(),
        };
        let memory = Progress { tried: Some(tried), ..look(&Progress::default(), &[(KEY, 0)], 0) };
        assert_eq!(look(&look(&memory, &[], 600), &[], 660), Progress::default());
    }

    /// Times in the future or in the wrong order never block a node forever.
    #[test]
    fn a_healing_that_somebody_else_wrote_counts_for_nothing() {
        for (seen, ended) in [(0, 500), (500, 1_000), (900, 400)] {
            let healed = Healed { condition: KEY.to_owned(), seen: at(seen), at: at(ended), due: true };
            let memory = Progress { healed: Some(healed), ..Progress::default() };
            let kept = look(&memory, &[], 450).healed;
            assert_eq!(kept, None, "seen at {seen}, healed at {ended}");
        }
        let ahead = Clock { seen: Some(at(99_999)), ..Clock::new(at(0)) };
        let memory = Progress { sick: BTreeMap::from([(KEY.to_owned(), ahead)]), ..Progress::default() };
        assert_eq!(look(&memory, &[(KEY, 0)], 10).sick[KEY].seen(), at(10));
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
        // An attempt on an earlier node with the same name does not count for this one.
        let (condition, boot_id) = (KEY.to_owned(), String::new());
        memory.tried =
            Some(Tried { condition, action: Action::Reboot, rung: 0, attempt: 1, at: at(0), boot_id });
        let text = serde_json::to_string(&memory).unwrap();
        for (created, is_believed) in [(None, true), (Some(at(60)), true), (Some(at(61)), false)] {
            assert_eq!(Progress::read_of(&text, created).is_ok(), is_believed, "{created:?}");
        }
    }
}
