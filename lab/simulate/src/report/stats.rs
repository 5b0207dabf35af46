//! Percentiles of times, some of which are infinite.

use serde::{Deserialize, Serialize};

use crate::play::Millis;

/// Percentiles in milliseconds. `None` means never: that share of the losses was not recovered before the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    pub count: u64,
    pub p50: Option<Millis>,
    pub p90: Option<Millis>,
    pub p99: Option<Millis>,
    pub max: Option<Millis>,
}

impl Percentiles {
    /// `None` is longer than all other times.
    pub fn of(times: impl IntoIterator<Item = Option<Millis>>) -> Self {
        let mut sorted: Vec<Millis> = times.into_iter().map(|time| time.unwrap_or(Millis::MAX)).collect();
        sorted.sort_unstable();
        // The smallest time that this percentage of times does not exceed.
        let at = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).copied().filter(|time| *time != Millis::MAX)
        };
        let count = u64::try_from(sorted.len()).unwrap_or(u64::MAX);
        Self { count, p50: at(50), p90: at(90), p99: at(99), max: at(100) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_time_that_was_seen() {
        let hundred = Percentiles::of((1..=100).map(Some));
        assert_eq!(
            (hundred.p50, hundred.p90, hundred.p99, hundred.max),
            (Some(50), Some(90), Some(99), Some(100))
        );
        let three = Percentiles::of([Some(3), Some(1), Some(2)]);
        assert_eq!((three.count, three.p50, three.p90, three.max), (3, Some(2), Some(3), Some(3)));
        assert_eq!(Percentiles::of([]), Percentiles::default());
    }

    #[test]
    fn a_time_that_never_came_is_the_longest() {
        let some = Percentiles::of([Some(1), Some(2), Some(3), None]);
        assert_eq!((some.p50, some.p90, some.max), (Some(2), None, None));
    }
}
