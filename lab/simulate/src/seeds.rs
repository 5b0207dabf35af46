//! Plays many seeds on many threads.

use std::{
    ops::RangeInclusive,
    str::FromStr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

/// Seeds to be played: one, as in `4711`, or an inclusive range, as in `1..10000`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(pub RangeInclusive<u64>);

impl Seeds {
    pub fn count(&self) -> u64 {
        (self.0.end() - self.0.start()).saturating_add(1)
    }
}

impl Seeds {
    /// The `index`th of `count` parts of these seeds, from 0; `None` if there are fewer seeds than parts.
    pub fn shard(&self, index: u64, count: u64) -> Option<Self> {
        let (all, start) = (u128::from(self.count()), *self.0.start());
        let edge =
            |part: u64| u64::try_from(all * u128::from(part) / u128::from(count.max(1))).unwrap_or(u64::MAX);
        let (from, to) = (edge(index), edge(index.checked_add(1)?));
        (index < count && from < to).then(|| Self(start + from..=start + (to - 1)))
    }
}

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            let wrong = || format!("seeds {text:?}: {part:?} is no number; write 4711 or 1..10000");
            part.trim().parse::<u64>().map_err(|_| wrong())
        };
        let (from, to) = match text.split_once("..") {
            Some((from, to)) => (number(from)?, number(to.trim_start_matches('='))?),
            None => (number(text)?, number(text)?),
        };
        if from > to {
            return Err(format!("seeds {text:?}: {from} is more than {to}; write the smaller one first"));
        }
        Ok(Self(from..=to))
    }
}

/// Plays each seed on one thread, on as many threads as the machine has cores.
#[derive(Debug)]
pub struct Threads {
    seeds: Seeds,
    threads: usize,
    stop: AtomicBool,
    /// The number of seeds that were started.
    begun: AtomicU64,
}

impl Threads {
    pub fn new(seeds: Seeds) -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Self { seeds, threads, stop: AtomicBool::new(false), begun: AtomicU64::new(0) }
    }

    pub fn seeds(&self) -> &Seeds {
        &self.seeds
    }

    /// Starts no more seeds.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Plays all seeds and passes each result to `done`, one at a time, in the order in which they finish.
    pub fn run<T>(&self, play: impl Fn(u64) -> T + Sync, done: impl FnMut(u64, T) + Send) {
        let done = Mutex::new(done);
        let most = usize::try_from(self.seeds.count()).unwrap_or(usize::MAX);
        thread::scope(|scope| {
            for _ in 0..self.threads.min(most) {
                scope.spawn(|| {
                    while let Some(seed) = self.next() {
                        let result = play(seed);
                        done.lock().unwrap_or_else(PoisonError::into_inner)(seed, result);
                    }
                });
            }
        });
    }

    fn next(&self) -> Option<u64> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let is_left = !self.stop.load(Ordering::Relaxed) && number < self.seeds.count();
        is_left.then(|| self.seeds.0.start() + number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_one_or_a_range_and_nothing_else() {
        assert_eq!("4711".parse(), Ok(Seeds(4711..=4711)));
        assert_eq!("1..10000".parse(), Ok(Seeds(1..=10_000)));
        for wrong in ["", "a", "1..", "..2", "9..1", "1,2"] {
            let error = wrong.parse::<Seeds>().unwrap_err();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }

    #[test]
    fn shards_are_all_seeds_and_each_seed_is_in_one() {
        for (first, last, count) in [(1, 1000, 7), (5, 7, 3), (1, 2, 5), (0, 0, 1)] {
            let shards = (0..count).filter_map(|index| Seeds(first..=last).shard(index, count));
            let all: Vec<u64> = shards.flat_map(|shard| shard.0).collect();
            assert!(all.into_iter().eq(first..=last), "{first} {last} {count}");
        }
        assert_eq!(Seeds(1..=9).shard(3, 3), None);
        assert_eq!(Seeds(1..=9).shard(0, 0), None);
    }

    #[test]
    fn every_seed_is_played_once_until_told_to_stop() {
        let mut played = Vec::new();
        Threads::new(Seeds(5..=40)).run(|seed| seed * 2, |seed, double| played.push((seed, double)));
        played.sort_unstable();
        assert!(played.into_iter().eq((5..=40).map(|seed| (seed, seed * 2))));

        let threads = Threads::new(Seeds(1..=u64::MAX));
        let mut count = 0;
        threads.run(
            |_| (),
            |_, ()| {
                count += 1;
                if count == 10 {
                    threads.stop();
                }
            },
        );
        assert!((10..1000).contains(&count), "{count}");
    }
}
