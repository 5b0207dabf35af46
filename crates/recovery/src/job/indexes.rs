//! Sets of completion indexes as a Job's status writes them: `1,3-5,7`.

use std::fmt;

/// A set of indexes, kept as runs: a Job may have a hundred thousand, and most of them next to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes(Vec<Run>);

/// Indexes from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u32,
    last: u32,
}

impl Indexes {
    /// No index.
    pub const NONE: Self = Self(Vec::new());

    /// Every index below a bound.
    pub fn below(bound: u32) -> Self {
        match bound.checked_sub(1) {
            Some(last) => Self(vec![Run { first: 0, last }]),
            None => Self::NONE,
        }
    }

    /// Reads a status field; what lies at or beyond `bound` is dropped, and so is what cannot be read, as nothing in
    /// a Job may stop for it.
    pub fn parse(text: &str, bound: u32) -> Self {
        let runs = text.split(',').filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse::<u32>().ok()?);
            (first <= last && first < bound).then(|| Run { first, last: last.min(bound - 1) })
        });
        Self::from_runs(runs.collect())
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

    /// How many there are.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|run| run.last - run.first + 1).fold(0, u32::saturating_add)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this index is one of them.
    pub fn contains(&self, index: u32) -> bool {
        let after = self.0.partition_point(|run| run.first <= index);
        after > 0 && index <= self.0[after - 1].last
    }

    /// Those in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::from_runs(self.0.iter().chain(&other.0).copied().collect())
    }

    /// Those that are not in the other.
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

    /// Those in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.minus(&self.minus(other))
    }

    /// All of them, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|run| run.first..=run.last)
    }
}

impl FromIterator<u32> for Indexes {
    fn from_iter<T: IntoIterator<Item = u32>>(indexes: T) -> Self {
        Self::from_runs(indexes.into_iter().map(|index| Run { first: index, last: index }).collect())
    }
}

/// As Kubernetes writes it: two neighbours are a list, more of them a range.
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
            assert_eq!(Indexes::parse(text, 100), set);
        }
    }

    #[test]
    fn what_lies_beyond_the_bound_or_means_nothing_is_dropped() {
        assert_eq!(Indexes::parse("0,2-9", 4).to_string(), "0,2,3");
        assert_eq!(Indexes::parse("0,5", 4).to_string(), "0");
        assert_eq!(Indexes::parse("x,,3-1,2,1-y", 4).to_string(), "2");
        assert_eq!(Indexes::parse("0", 0), Indexes::NONE);
        assert_eq!(Indexes::below(0), Indexes::NONE);
        assert_eq!(Indexes::below(u32::MAX).len(), u32::MAX);
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
            prop_assert_eq!(Indexes::parse(&a.to_string(), 100), a);
        }
    }
}
