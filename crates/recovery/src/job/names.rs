//! Names of a Job's pods. Each name follows from the Job, the pod's index and a number, so a repeated request uses the
//! same name and the API server refuses it. No name is reused during the life of its Job.
//!
//! An annotation of the Job records the used names, together with the status, and a pod loses its finalizer only when
//! its name is recorded. So at any time and after any crash, a used name is known from its pod or from the annotation.
//! A name that was requested but whose pod was never seen is in neither, and is requested again.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::indexes::Indexes;
use super::views::{JobView, PodView, count};
use crate::fnv::Fnv;
use crate::objects::JobRef;

/// Kubernetes truncates the prefix of a generated name to this length.
const LONGEST_PREFIX: usize = 58;
/// Letters and digits that spell no words, as in every generated Kubernetes name.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 5;
/// The number of possible suffixes.
const ENDS: u64 = 27u64.pow(5);
/// All annotations of an object together may have 256 KiB, and most of that belongs to its owner.
const LONGEST_TEXT: usize = 32 * 1024;
/// Numbers are assigned in sequence. A name whose number is farther ahead only looks like one of ours: pods of the
/// built-in controller have names of the same form.
const FARTHEST: u32 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    /// None in a Job without indexes.
    pub(super) index: Option<u32>,
    /// Counts the names of that index, or of the Job.
    pub(super) number: u32,
}

/// Makes and parses the names of one Job's pods.
///
/// A number becomes a suffix by multiplication and addition modulo a power of 3, with a factor that 3 does not divide.
/// So no two numbers have the same suffix, and the number can be computed from the name.
pub(super) struct Naming<'a> {
    job: &'a JobRef,
    indexed: bool,
    /// The prefix of names in a Job without indexes.
    plain: String,
    factor: u64,
    inverse: u64,
    by_index: u64,
    shift: u64,
}

impl<'a> Naming<'a> {
    pub(super) fn of(job: &'a JobView) -> Self {
        let drawn = |what: &[u8]| {
            let mut hash = Fnv::default();
            hash.add(job.job.uid.as_str().as_bytes());
            hash.add(what);
            hash.finish() % ENDS
        };
        let unit = |drawn: u64| if drawn.is_multiple_of(3) { drawn + 1 } else { drawn };
        let factor = unit(drawn(b"factor"));
        let mut plain = format!("{}-", job.job.name);
        plain.truncate(plain.floor_char_boundary(LONGEST_PREFIX));
        Self {
            job: &job.job,
            indexed: job.spec.is_indexed(),
            plain,
            factor,
            inverse: inverse(factor),
            by_index: unit(drawn(b"index")),
            shift: drawn(b"shift"),
        }
    }

    pub(super) fn text(&self, Name { index, number }: Name) -> String {
        let mut text = self.prefix(index);
        let (round, number) = (u64::from(number) / ENDS, u64::from(number) % ENDS);
        let mut end = (number * self.factor + self.offset(index)) % ENDS;
        for _ in 0..SUFFIX {
            text.push(letter(end % 27));
            end /= 27;
        }
        // No real Job has so many pods, but it would still never reuse a name.
        let mut round = round;
        while round > 0 {
            text.push(letter(round % 27));
            round /= 27;
        }
        text
    }

    /// Parses a pod's name; none if this Job cannot have given it.
    pub(super) fn read(&self, text: &str) -> Option<Name> {
        let (index, end) =
            if self.indexed { self.split(text)? } else { (None, text.strip_prefix(&self.plain)?) };
        let (end, round) = end.as_bytes().split_at_checked(SUFFIX)?;
        let number = |letters: &[u8]| {
            letters.iter().rev().try_fold(0u64, |sum, byte| {
                let value = ALPHABET.iter().position(|letter| letter == byte)?;
                sum.checked_mul(27)?.checked_add(u64::try_from(value).ok()?)
            })
        };
        let end = number(end)? + ENDS - self.offset(index);
        let number = number(round)?.checked_mul(ENDS)?.checked_add(end % ENDS * self.inverse % ENDS)?;
        Some(Name { index, number: u32::try_from(number).ok()? })
    }

    /// The index and the suffix of a name in an Indexed Job.
    fn split<'t>(&self, text: &'t str) -> Option<(Option<u32>, &'t str)> {
        let (head, end) = text.rsplit_once('-')?;
        let (stem, digits) = head.rsplit_once('-')?;
        let as_written =
            digits.bytes().all(|digit| digit.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
        let index = digits.parse().ok().filter(|_| as_written)?;
        (stem == cut(&self.job.name, digits.len() + 2)).then_some((Some(index), end))
    }

    fn offset(&self, index: Option<u32>) -> u64 {
        (u64::from(index.unwrap_or(0)) * self.by_index + self.shift) % ENDS
    }

    fn prefix(&self, index: Option<u32>) -> String {
        match index {
            // The Job's part of a long name is truncated, as in the built-in controller: users read the index from the
            // name.
            Some(index) => {
                let place = format!("-{index}-");
                format!("{}{place}", cut(&self.job.name, place.len()))
            }
            None => self.plain.clone(),
        }
    }
}

/// Truncates a Job's name to leave room for so many characters.
fn cut(name: &str, room: usize) -> &str {
    &name[..name.floor_char_boundary(LONGEST_PREFIX.saturating_sub(room))]
}

fn letter(value: u64) -> char {
    char::from(usize::try_from(value).ok().and_then(|value| ALPHABET.get(value)).copied().unwrap_or(b'b'))
}

/// The inverse of a multiplication modulo [`ENDS`]. Each round doubles the number of correct digits.
fn inverse(factor: u64) -> u64 {
    let mut inverse = factor % 3;
    for _ in 0..4 {
        let product = factor * inverse % ENDS;
        inverse = inverse * ((2 + ENDS - product) % ENDS) % ENDS;
    }
    inverse
}

/// The names that pods of a Job have used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsedNames {
    /// The used numbers, in a Job without indexes.
    numbers: Indexes,
    /// In an Indexed Job: by number of names, the indexes that have used at least that many.
    counts: BTreeMap<u32, Indexes>,
    /// Every index counts as having used this many.
    all: u32,
}

/// The JSON value of the annotation.
#[derive(Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Text {
    #[serde(skip_serializing_if = "String::is_empty")]
    numbers: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    counts: BTreeMap<u32, String>,
    #[serde(skip_serializing_if = "is_zero")]
    all: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl UsedNames {
    /// Reads the annotation.
    ///
    /// # Errors
    /// If Salvor cannot have written it.
    pub fn read(text: &str) -> Result<Self, String> {
        // Serde would read an empty list as a struct of defaults.
        if !text.starts_with('{') {
            return Err("it is no object".to_owned());
        }
        let Text { numbers, counts, all } = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let indexes = |text: &str| Indexes::parse(text, u32::MAX).map_err(|error| error.to_string());
        let counts = counts.iter().map(|(count, text)| Ok((*count, indexes(text)?)));
        Ok(Self { numbers: indexes(&numbers)?, counts: counts.collect::<Result<_, String>>()?, all })
    }

    /// The value of the annotation.
    pub fn text(&self) -> String {
        let counts = self.counts.iter().map(|(count, indexes)| (*count, indexes.to_string()));
        let text = Text { numbers: self.numbers.to_string(), counts: counts.collect(), all: self.all };
        // Strings and numbers always have a JSON form.
        serde_json::to_string(&text).unwrap_or_default()
    }

    pub(super) fn contains(&self, name: Name) -> bool {
        match name.index {
            Some(index) => name.number < self.count(index),
            None => self.numbers.contains(name.number),
        }
    }

    /// The number of names that an index has used.
    fn count(&self, index: u32) -> u32 {
        let listed = self.counts.iter().rev().find(|(_, indexes)| indexes.contains(index));
        listed.map_or(0, |(count, _)| *count).max(self.all)
    }

    fn add(&mut self, names: &BTreeSet<Name>) {
        let mut counts: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut numbers = Vec::new();
        for Name { index, number } in names {
            match index {
                Some(index) => counts.entry(number.saturating_add(1)).or_default().push(*index),
                None => numbers.push(*number),
            }
        }
        if !numbers.is_empty() {
            self.numbers = self.numbers.union(&numbers.into_iter().collect());
        }
        for (count, indexes) in counts {
            let known = self.counts.entry(count).or_default();
            *known = known.union(&indexes.into_iter().collect());
        }
    }

    pub fn merge(&mut self, other: &Self) {
        if self == other {
            return;
        }
        self.numbers = self.numbers.union(&other.numbers);
        self.all = self.all.max(other.all);
        for (count, indexes) in &other.counts {
            let known = self.counts.entry(*count).or_default();
            *known = known.union(indexes);
        }
        self.shorten();
    }

    /// Adds the names of these pods, if the Job can have given them.
    pub(super) fn take_in(&mut self, naming: &Naming<'_>, pods: &[PodView]) {
        let farthest = self.numbers.len().saturating_add(len(pods.len())).saturating_add(FARTHEST);
        let is_news = |name: &Name| {
            let next = match name.index {
                Some(index) => self.count(index).saturating_add(FARTHEST),
                None => farthest,
            };
            name.number < next && !self.contains(*name)
        };
        let names: BTreeSet<Name> =
            pods.iter().filter_map(|pod| naming.read(&pod.pod.name)).filter(is_news).collect();
        if !names.is_empty() {
            self.add(&names);
            self.shorten();
        }
    }

    /// Drops redundant entries. If the text is still too long for the annotation, every name below the highest counts
    /// as used. That only skips names; but a pod that was just requested and not yet seen would be requested again
    /// under another name.
    fn shorten(&mut self) {
        let mut above = Indexes::NONE;
        let all = self.all;
        let levels = std::mem::take(&mut self.counts).into_iter().rev();
        let told = levels.filter(|(count, indexes)| {
            let news = *count > all && !indexes.minus(&above).is_empty();
            above = above.union(indexes);
            news
        });
        self.counts = told.collect();
        if self.text().len() > LONGEST_TEXT {
            self.all = self.counts.keys().next_back().copied().unwrap_or(0).max(all);
            self.counts.clear();
            self.numbers = Indexes::below(self.numbers.end());
        }
    }

    /// What the status alone shows if the annotation was removed: the number of pods that have ended, and no index can
    /// have had more of them.
    pub(super) fn by_status(job: &JobView) -> Self {
        let status = &job.status;
        let waiting = status.uncounted_terminated_pods.as_ref();
        let failed = count(status.failed).saturating_add(len(waiting.map_or(0, |lists| lists.failed.len())));
        if job.spec.is_indexed() {
            return Self { all: failed, ..Self::default() };
        }
        let succeeded = len(waiting.map_or(0, |lists| lists.succeeded.len()));
        let ended = failed.saturating_add(succeeded).saturating_add(count(status.succeeded));
        Self { numbers: Indexes::below(ended), ..Self::default() }
    }
}

/// Chooses names for new pods: the first unused name for each index.
pub(super) struct Chooser<'a> {
    naming: &'a Naming<'a>,
    used: &'a UsedNames,
    /// Names that foreign pods have.
    others: &'a BTreeSet<String>,
    untried: u32,
}

impl<'a> Chooser<'a> {
    pub(super) fn new(naming: &'a Naming<'a>, used: &'a UsedNames, others: &'a BTreeSet<String>) -> Self {
        Self { naming, used, others, untried: 0 }
    }

    /// A name for the pod of this index (asked once per index), or for one more pod of a Job without indexes.
    pub(super) fn choose(&mut self, index: Option<u32>) -> String {
        let mut number = match index {
            Some(index) => self.used.count(index),
            None => self.used.numbers.first_absent(self.untried),
        };
        loop {
            let text = self.naming.text(Name { index, number });
            number = match index {
                Some(_) => number.saturating_add(1),
                None => self.used.numbers.first_absent(number.saturating_add(1)),
            };
            if !self.others.contains(&text) {
                if index.is_none() {
                    self.untried = number;
                }
                return text;
            }
        }
    }
}

fn len(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
