//! Plays many seeds on many threads.

use std::{
    fmt,
    ops::RangeInclusive,
    str::FromStr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use super::{
    check::{Deeds, Violation},
    plan::Plan,
    play::play,
    shrink::shrink,
};

/// Seeds to be played: one, as in `4711`, or from one to another, as in `1..10000`, both included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(pub RangeInclusive<u64>);

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

/// A seed that broke a promise.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What was broken first.
    pub violation: Violation,
    /// The number of all violations.
    pub violations: usize,
    /// The plan.
    pub plan: Plan,
}

impl Finding {
    /// The shortest plan that is found to break the same promise. Takes as long as some dozens of seeds.
    pub fn shortest(&self) -> Plan {
        shrink(&self.plan, self.violation.invariant)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { violation, violations, plan } = self;
        writeln!(f, "seed {} breaks {violation}", plan.seed)?;
        let more = violations.saturating_sub(1);
        if more > 0 {
            writeln!(f, "  and {more} more")?;
        }
        write!(f, "  replay it: make swarm SEEDS={}", plan.seed)
    }
}

/// How far a swarm is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Seeds that are played.
    pub played: u64,
    /// All seeds.
    pub seeds: u64,
    /// Seeds that broke a promise.
    pub broken: u64,
}

/// What a swarm has found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Seeds that were played.
    pub played: u64,
    /// All that the operator did in them.
    pub deeds: Deeds,
    /// The seeds that broke a promise, in order.
    pub findings: Vec<Finding>,
}

/// Many seeds.
#[derive(Debug)]
pub struct Swarm {
    seeds: Seeds,
    threads: usize,
    stop: AtomicBool,
    next: AtomicU64,
    report: Mutex<Report>,
}

impl Swarm {
    /// These seeds, on as many threads as the machine has cores.
    pub fn new(seeds: Seeds) -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let next = AtomicU64::new(*seeds.0.start());
        Self { seeds, threads, stop: AtomicBool::new(false), next, report: Mutex::default() }
    }

    /// No more seeds are begun.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Plays them. `progress` is told after each seed.
    pub fn run(&self, progress: impl Fn(Progress) + Sync) -> Report {
        thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| {
                    while let Some(seed) = self.next_seed() {
                        self.play(seed, &progress);
                    }
                });
            }
        });
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
        report.findings.sort_by_key(|finding| finding.plan.seed);
        report
    }

    fn next_seed(&self) -> Option<u64> {
        let seed = self.next.fetch_add(1, Ordering::Relaxed);
        (!self.stop.load(Ordering::Relaxed) && self.seeds.0.contains(&seed)).then_some(seed)
    }

    fn play(&self, seed: u64, progress: &impl Fn(Progress)) {
        let plan = Plan::of(seed);
        let outcome = play(&plan);
        let finding = outcome.violations.first().map(|violation| Finding {
            violation: violation.clone(),
            violations: outcome.violations.len(),
            plan: plan.clone(),
        });
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.played += 1;
        report.deeds += outcome.deeds;
        report.findings.extend(finding);
        let seeds = self.seeds.0.end() - self.seeds.0.start() + 1;
        let broken = u64::try_from(report.findings.len()).unwrap_or(u64::MAX);
        progress(Progress { played: report.played, seeds, broken });
    }
}

#[cfg(test)]
mod tests {
    use super::Seeds;

    #[test]
    fn seeds_are_one_or_a_range_and_nothing_else() {
        assert_eq!("4711".parse(), Ok(Seeds(4711..=4711)));
        assert_eq!("1..10000".parse(), Ok(Seeds(1..=10_000)));
        for wrong in ["", "a", "1..", "..2", "9..1", "1,2"] {
            let error = wrong.parse::<Seeds>().unwrap_err();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }
}
