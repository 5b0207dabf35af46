//! The swarm: 200 seeds keep every invariant, and what the swarm claims about itself is true.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod found;
mod itself;

use salvor_simulate::swarm::{Seeds, Swarm};

/// `make swarm SEEDS=1..10000` plays more.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=200;

#[test]
fn the_seeds_keep_every_promise() {
    let report = Swarm::new(Seeds(SEEDS)).run(|_| {});
    if let Some(first) = report.findings.first() {
        let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        let findings = findings.join("\n");
        panic!("{findings}\nthe shortest schedule that still breaks the first:\n{}", first.shortest());
    }
    // A swarm in which nothing is recovered proves nothing.
    let deeds = report.deeds;
    let each = [
        deeds.pods_failed,
        deeds.pods_made,
        deeds.evictions,
        deeds.out_of_service,
        deeds.repairs,
        deeds.components,
    ];
    assert!(each.into_iter().all(|count| count >= 5), "{deeds:?}");
}
