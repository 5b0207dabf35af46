//! Sets of completion indexes as a Job's status writes them: `1,3-5,7`.

use std::fmt;

/// A set of indexes, stored as runs: a Job may have a hundred thousand, most of them adjacent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes(Vec<Run>);

/// Indexes from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u32,
    last: u32,
}

/// A part of a text that is neither an index nor a range of indexes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither an index nor a range of indexes")]
pub struct NoIndexes(String);

/// Accepts digits only: `parse` alone would accept a sign.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl Indexes {
    pub const NONE: Self = Self(Vec::new());

    /// Every index below a bound.
    pub fn below(bound: u32) -> Self {
        match bound.checked_sub(1) {
            Some(last) => Self(vec![Run { first: 0, last }]),
            None => Self::NONE,
        }
    }

    /// Reads a status field; indexes at or beyond `bound` are dropped.
    ///
    /// # Errors
    /// If any part of it cannot be read. Treating it as empty would repeat work that is done.
    pub fn parse(text: &str, bound: u32) -> Result<Self, NoIndexes> {
        let mut runs = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let run = number(first).zip(number(last)).filter(|(first, last)| first <= last);
            let (first, last) = run.ok_or_else(|| NoIndexes(part.to_owned()))?;
            if first < bound {
                runs.push(Run { first, last: last.min(bound - 1) });
            }
        }
        Ok(Self::from_runs(runs))
    }

    fn from_runs(mut runs: Vec<Run>) -> Self {
        runs.sort_unstable_by_key(|run| run.first);
        let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
        for run in runs {
            match joined.last_mut() {
                Some(open) if run.first <= open.last.saturating_add(1) => open.last = open.last.max(run.last),
                _ => joined.push(run),
            }
        }
        Self(joined)
    }

    pub fn len(&self) -> u32 {
        self.0.iter().map(|run| run.last - run.first + 1).fold(0, u32::saturating_add)
    }

    /// One more than the highest; 0 if the set is empty.
    pub fn end(&self) -> u32 {
        self.0.last().map_or(0, |run| run.last.saturating_add(1))
    }

    /// The first index at or after `from` that is not in the set.
    pub fn first_absent(&self, from: u32) -> u32 {
        let after = self.0.partition_point(|run| run.first <= from);
        match after.checked_sub(1).map(|at| self.0[at]) {
            Some(run) if from <= run.last => run.last.saturating_add(1),
            _ => from,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, index: u32) -> bool {
        let after = self.0.partition_point(|run| run.first <= index);
        after > 0 && index <= self.0[after - 1].last
    }

    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::from_runs(self.0.iter().chain(&other.0).copied().collect())
    }

    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let mut left = Vec::with_capacity(self.0.len());
        let mut holes = other.0.iter().copied().peekable();
        for run in &self.0 {
            let mut first = run.first;
            let mut open = true;
            while let Some(hole) = holes.peek() {
                if hole.last < first {
                    holes.next();
                } else if hole.first > run.last {
                    break;
                } else {
                    if hole.first > first {
                        left.push(Run { first, last: hole.first - 1 });
                    }
                    if hole.last >= run.last {
                        open = false;
                        break;
                    }
                    first = hole.last + 1;
                }
            }
            if open {
                left.push(Run { first, last: run.last });
            }
        }
        Self(left)
    }

    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.minus(&self.minus(other))
    }

    /// Lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|run| run.first..=run.last)
    }
}

impl FromIterator<u32> for Indexes {
    fn from_iter<T: IntoIterator<Item = u32>>(indexes: T) -> Self {
        Self::from_runs(indexes.into_iter().map(|index| Run { first: index, last: index }).collect())
    }
}

/// As Kubernetes writes it: two adjacent indexes are a list, more of them a range.
impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, Run { first, last }) in self.0.iter().enumerate() {
            let separator = if position == 0 { "" } else { "," };
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                1 => write!(f, "{separator}{first},{last}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::cases;

    #[test]
    fn the_text_is_kubernetes_own() {
        for (indexes, text) in [
            (vec![], ""),
            (vec![3], "3"),
            (vec![3, 4], "3,4"),
            (vec![5, 3, 4], "3-5"),
            (vec![0, 1, 2, 4, 6, 7], "0-2,4,6,7"),
        ] {
            let set: Indexes = indexes.iter().copied().collect();
            assert_eq!(set.to_string(), text);
            assert_eq!(Indexes::parse(text, 100), Ok(set));
        }
    }

    #[test]
    fn what_lies_beyond_the_bound_is_dropped() {
        let read = |text: &str, bound| Indexes::parse(text, bound).map(|set| set.to_string());
        assert_eq!(read("0,2-9", 4), Ok("0,2,3".into()));
        assert_eq!(read("0,5", 4), Ok("0".into()));
        assert_eq!(read("0", 0), Ok(String::new()));
        assert_eq!(Indexes::below(0), Indexes::NONE);
        assert_eq!(Indexes::below(u32::MAX).len(), u32::MAX);
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_nothing() {
        for (text, part) in [
            ("x,2", "x"),
            ("0,,2", ""),
            (",", ""),
            (" ", " "),
            ("0, 2", " 2"),
            ("+1", "+1"),
            ("3-1", "3-1"),
            ("1-y", "1-y"),
            ("1-2-3", "1-2-3"),
            ("-4", "-4"),
            ("4-", "4-"),
            ("0,99999999999", "99999999999"),
            ("٣", "٣"),
        ] {
            assert_eq!(Indexes::parse(text, 100), Err(NoIndexes(part.into())), "{text}");
        }
    }

    #[test]
    fn the_first_absent_one_is_behind_the_run_that_it_would_be_in() {
        let set = Indexes::parse("0-2,5,7-9", 100).unwrap();
        let first = [0, 2, 3, 4, 5, 6, 8, 50].map(|from| set.first_absent(from));
        assert_eq!(first, [3, 3, 3, 4, 6, 6, 10, 50]);
        assert_eq!((set.end(), Indexes::NONE.end(), Indexes::NONE.first_absent(7)), (10, 0, 7));
    }

    proptest! {
        #![proptest_config(cases(512))]

        #[test]
        fn it_is_a_set(left in prop::collection::btree_set(0u32..40, 0..20), right in prop::collection::btree_set(0u32..40, 0..20)) {
            let (a, b): (Indexes, Indexes) = (left.iter().copied().collect(), right.iter().copied().collect());
            let list = |set: &Indexes| set.iter().collect::<Vec<_>>();
            let plain = |set: BTreeSet<u32>| set.into_iter().collect::<Vec<_>>();
            prop_assert_eq!(list(&a.union(&b)), plain(&left | &right));
            prop_assert_eq!(list(&a.minus(&b)), plain(&left - &right));
            prop_assert_eq!(list(&a.intersection(&b)), plain(&left & &right));
            prop_assert_eq!(a.len() as usize, left.len());
            prop_assert!((0..45).all(|i| a.contains(i) == left.contains(&i)));
            prop_assert_eq!(Indexes::parse(&a.to_string(), 100), Ok(a));
        }
    }
}
