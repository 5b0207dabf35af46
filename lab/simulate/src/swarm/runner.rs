//! Plays many seeds of the swarm.

use std::fmt;

use super::{
    check::{Deeds, Violation},
    plan::Plan,
    play::play,
    shrink::shrink,
};
use crate::seeds::{Seeds, Threads};

/// A seed that broke an invariant.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The first violation.
    pub violation: Violation,
    /// The number of all violations.
    pub violations: usize,
    pub plan: Plan,
}

impl Finding {
    /// The shortest plan found that breaks the same invariant. Takes as long as some dozens of seeds.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub played: u64,
    pub seeds: u64,
    /// Seeds that broke an invariant.
    pub broken: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub played: u64,
    /// All that the operator did in them.
    pub deeds: Deeds,
    /// The seeds that broke an invariant, in order.
    pub findings: Vec<Finding>,
}

#[derive(Debug)]
pub struct Swarm(Threads);

impl Swarm {
    /// Uses as many threads as the machine has cores.
    pub fn new(seeds: Seeds) -> Self {
        Self(Threads::new(seeds))
    }

    /// Starts no more seeds.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Plays them. Calls `progress` after each seed.
    pub fn run(&self, progress: impl Fn(Progress) + Sync) -> Report {
        let mut report = Report::default();
        let seeds = self.0.seeds().count();
        let note = |_, (plan, outcome): (Plan, super::Outcome)| {
            report.played += 1;
            report.deeds += outcome.deeds;
            report.findings.extend(outcome.violations.first().map(|violation| Finding {
                violation: violation.clone(),
                violations: outcome.violations.len(),
                plan,
            }));
            let broken = u64::try_from(report.findings.len()).unwrap_or(u64::MAX);
            progress(Progress { played: report.played, seeds, broken });
        };
        self.0.run(
            |seed| {
                let plan = Plan::of(seed);
                let outcome = play(&plan);
                (plan, outcome)
            },
            note,
        );
        report.findings.sort_by_key(|finding| finding.plan.seed);
        report
    }
}
