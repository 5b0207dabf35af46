use salvor_simulate::in_virtual_time;

use super::list;
use super::outcome::Outcome;
use super::play::{Contender, play};

fn outcome(name: &str, contender: Contender) -> Outcome {
    let incident = list::all().into_iter().find(|incident| incident.name == name).unwrap();
    in_virtual_time(play(&incident, contender)).unwrap()
}

fn both(name: &str) -> (Outcome, Outcome) {
    (outcome(name, Contender::Karpenter), outcome(name, Contender::Salvor))
}

/// Both cure a plain unhealthy node.
#[test]
fn one_sick_accelerator_is_replaced_by_both() {
    let (karpenter, salvor) = both("one sick accelerator");
    for outcome in [&karpenter, &salvor] {
        assert_eq!((outcome.broken, outcome.replaced, outcome.in_vain), (1, 1, 0), "{outcome:?}");
    }
    // Salvor waits up to two seconds more, because its time may be behind the server's.
    assert!(salvor.late.abs_diff(karpenter.late) < 60 && salvor.lost == 0, "{karpenter:?} {salvor:?}");
}

#[test]
fn a_zone_outage_that_passes_costs_salvor_fewer_nodes() {
    let (karpenter, salvor) = both("zone outage");
    assert!(salvor.in_vain < karpenter.in_vain, "{karpenter:?} {salvor:?}");
    assert_eq!(salvor.frozen, 0);
}

#[test]
fn what_comes_back_node_by_node_is_left_alone() {
    assert_eq!(outcome("zone comes back node by node", Contender::Salvor).in_vain, 0);
}

/// A rollout that lasts longer than `repair.outageTimeout` costs a few nodes: one is tried after the other.
#[test]
fn an_outage_past_its_timeout_costs_one_node_at_a_time() {
    let salvor = outcome("bad rollout, node by node, one zone", Contender::Salvor);
    assert!((1..=4).contains(&salvor.in_vain), "{salvor:?}");
}

#[test]
fn repairs_that_do_not_help_stop_themselves() {
    let (karpenter, salvor) = both("bad rollout in a big pool");
    assert!(salvor.in_vain < karpenter.in_vain, "{karpenter:?} {salvor:?}");
}

#[test]
fn a_zone_that_does_not_come_back_is_replaced() {
    let salvor = outcome("zone lost for good", Contender::Salvor);
    assert_eq!((salvor.replaced, salvor.in_vain), (4, 0), "{salvor:?}");
}

#[test]
fn two_of_four_freeze_karpenter_for_ever() {
    let (karpenter, salvor) = both("two of four sick");
    assert_eq!((karpenter.replaced, salvor.replaced, salvor.in_vain), (0, 2, 0), "{karpenter:?} {salvor:?}");
    assert!(karpenter.frozen > 100 * 60, "{karpenter:?}");
}

/// The wave boots until minute 27, and Karpenter's rules requeue every 5 minutes.
#[test]
fn a_slow_boot_wave_freezes_karpenter_until_it_polls() {
    let (karpenter, salvor) = both("slow boot wave");
    assert_eq!((karpenter.replaced, salvor.replaced), (1, 1));
    assert!((19 * 60..=21 * 60).contains(&karpenter.frozen), "{karpenter:?}");
    assert!(salvor.frozen < 60, "{salvor:?}");
}

#[test]
fn the_same_incident_comes_to_the_same_end() {
    for contender in [Contender::Karpenter, Contender::Salvor] {
        assert_eq!(outcome("flapping agent", contender), outcome("flapping agent", contender));
    }
}

/// The page matches what was played: over all incidents Salvor kills fewer nodes needlessly than Karpenter's rules do.
#[test]
fn the_page_in_the_docs_has_fewer_needless_kills() {
    let page = include_str!("../../../../docs/results/repair-incidents.md");
    let in_vain = |rules: &str| -> u64 {
        let rows = page.lines().filter(|line| line.contains(rules));
        rows.map(|row| row.split('|').nth(4).unwrap().trim().parse::<u64>().unwrap()).sum()
    };
    let (karpenter, salvor) = (in_vain("| Karpenter | "), in_vain("| Salvor | "));
    assert!(salvor < karpenter, "{karpenter} {salvor}");
}

/// `make repair-incidents` rewrites the page.
#[test]
fn the_page_in_the_docs_has_these_incidents() {
    let page = include_str!("../../../../docs/results/repair-incidents.md");
    let first_cell = |line: &str| line.split('|').nth(1).unwrap_or_default().trim().to_owned();
    let with = |rules: &str| -> Vec<String> {
        page.lines().filter(|line| line.contains(rules)).map(first_cell).collect()
    };
    let names: Vec<&str> = list::all().iter().map(|incident| incident.name).collect();
    assert_eq!(with("| Karpenter | "), names);
    assert_eq!(with("| Salvor | ").len(), names.len());
    for incident in list::all() {
        let row = format!("| {} | {} |", incident.name, incident.story);
        assert!(page.lines().any(|line| line == row), "run make repair-incidents: {row}");
    }
}
