//! Checks what the swarm claims about itself.

use std::{collections::BTreeSet, fs, path::Path};

use salvor_simulate::swarm::{Invariant, Kind, Plan, play};

/// Leave-one-out and replays depend on this.
#[test]
fn a_seed_is_the_same_again() {
    let plan = Plan::of(7);
    let (once, again) = (play(&plan), play(&plan));
    assert_eq!(once.digest, again.digest);
    assert_ne!(once.digest, play(&Plan::of(8)).digest);
}

#[test]
fn every_kind_of_fault_is_in_some_seed_and_most_are_in_none() {
    let name = |debug: String| debug.split([' ', '{']).next().unwrap_or_default().to_owned();
    let mut kinds = BTreeSet::new();
    for seed in 1..=200 {
        let plan = Plan::of(seed);
        let own: BTreeSet<String> = plan.moves.iter().map(|it| name(format!("{:?}", it.deed))).collect();
        assert!(own.len() <= Kind::ALL.len() / 2, "{plan}");
        kinds.extend(own);
    }
    // Five faults of machines are one kind of deed, and so are strikes and refusals. Restores are drills.
    assert_eq!(kinds.len(), Kind::ALL.len() - 5 + 1, "{kinds:?}");
}

#[test]
fn every_invariant_is_published() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guarantees.md");
    let page = fs::read_to_string(path).unwrap();
    for invariant in Invariant::ALL {
        assert!(
            page.contains(&format!("| `{}` |", invariant.id())),
            "{invariant:?} is not in docs/guarantees.md"
        );
    }
}
