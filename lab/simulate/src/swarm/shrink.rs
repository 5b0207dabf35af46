//! Finds a shorter schedule that still breaks the same invariant.

use super::{check::Invariant, deed::Move, plan::Plan, play::play};

/// The shortest schedule found that breaks this invariant, by leaving out ever smaller parts.
pub fn shrink(plan: &Plan, broken: Invariant) -> Plan {
    let fails = |moves: &[Move]| {
        let played = play(&plan.with(moves.to_vec()));
        played.violations.iter().any(|violation| violation.invariant == broken)
    };
    plan.with(shortest(plan.moves.clone(), fails))
}

/// The shortest list for which `fails` holds that can be reached by leaving out one part after the other.
fn shortest<T: Clone>(mut all: Vec<T>, fails: impl Fn(&[T]) -> bool) -> Vec<T> {
    let mut size = all.len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < all.len() {
            let to = (from + size).min(all.len());
            let rest: Vec<T> = all[..from].iter().chain(&all[to..]).cloned().collect();
            if fails(&rest) {
                all = rest;
            } else {
                from = to;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    all
}

#[cfg(test)]
mod tests {
    use super::shortest;

    #[test]
    fn what_is_not_needed_is_left_out() {
        let all: Vec<u32> = (0..20).collect();
        let needs = |wanted: &'static [u32]| move |some: &[u32]| wanted.iter().all(|it| some.contains(it));
        assert_eq!(shortest(all.clone(), needs(&[3, 17])), [3, 17]);
        assert_eq!(shortest(all.clone(), needs(&[])), Vec::<u32>::new());
        assert_eq!(shortest(all.clone(), needs(&[0])), [0]);
        assert_eq!(shortest(all, |some: &[u32]| some.len() >= 18).len(), 18);
    }
}
