//! The page: each incident, its results, and where Salvor does worse.

use std::fmt::Write;

use super::outcome::Outcome;
use super::script::{CONDITIONS, Incident};

/// An incident and its results under both rules.
pub(super) struct Played {
    pub(super) incident: Incident,
    pub(super) karpenter: Outcome,
    pub(super) salvor: Outcome,
}

const HEAD: &str = "\
# Incidents: Karpenter's repair and Salvor's, side by side

<!-- Written by `make repair-incidents`. The same code gives the same page. -->

The same incidents are played twice on an API server in memory, in virtual time. One run has the rules of Karpenter 1.14.1's own
repair (feature gate `NodeRepair`), written down again as a small client of that API. The other run has the operator of this
repository as it ships, with one NodeRepairPolicy for all nodes. Both have the same tolerations, and the same simulated Karpenter, which
ends and launches machines: a machine that is to go is gone after half a minute, and its replacement is ready 3 minutes later.
The model has no pods, so drains take no time, and no cloud that refuses anything but launches. Neither of the two knows why a node is sick.
";

const COLUMNS: &str = "\
| column | meaning |
|---|---|
| replaced | machines that broke and whose replacement was ready in the end, of all that broke |
| in vain | nodes killed although nothing was wrong with their machine (it would have passed, or the new node had it too), or although the cloud had no other machine |
| late | minutes from the end of the toleration of a broken machine until its replacement was ready, of all such machines together, while the cloud had machines |
| lost | minutes from the kill of a node in vain until its replacement was ready, of all such nodes together |
| sick | minutes that nodes stayed past their toleration, of all nodes together, for whatever cause |
| held | minutes in which nothing was done, and rightly: a repair of any node that waited would have been in vain |
| frozen | minutes in which a broken machine was past its toleration, and nothing was done in its pool |

Kills in vain, replacements, and the minutes late, lost and frozen are compared below. The minutes sick are not: they are the price of waiting
where a kill does not help, and rules that kill in vain have few of them. Mind them all the same: while a zone is away, killing its nodes
brings machines in other zones sooner than waiting does, and the page still calls it in vain, because the zone comes back.
The model looks every 10 seconds, so differences of a minute or less are not listed below.
";

fn minutes(seconds: u64) -> u64 {
    (seconds + 30) / 60
}

pub(super) fn page(all: &[Played]) -> String {
    let mut page = format!("{HEAD}\n{}\n{COLUMNS}\n## Results\n\n", tolerations());
    page.push_str("| incident | rules | replaced | in vain | late | lost | sick | held | frozen |\n");
    page.push_str("|---|---|--:|--:|--:|--:|--:|--:|--:|\n");
    for Played { incident, karpenter, salvor } in all {
        row(&mut page, incident.name, "Karpenter", karpenter);
        row(&mut page, "", "Salvor", salvor);
    }
    let total = |of: fn(&Outcome) -> u64| {
        let sum = |side: fn(&Played) -> &Outcome| all.iter().map(|it| of(side(it))).sum::<u64>();
        (sum(|it| &it.karpenter), sum(|it| &it.salvor))
    };
    let (vain, frozen) = (total(|it| it.in_vain), total(|it| minutes(it.frozen)));
    line(
        &mut page,
        format_args!(
            "\nIn all, Karpenter's rules killed {} nodes in vain and were frozen for {} minutes; Salvor killed {} in vain and was \
             frozen for {} minutes.\n\n## Where Salvor does worse\n",
            vain.0, frozen.0, vain.1, frozen.1
        ),
    );
    let worse: Vec<String> = all.iter().flat_map(worse).collect();
    if worse.is_empty() {
        page.push_str("In none of these incidents.\n");
    }
    for sentence in worse {
        line(&mut page, format_args!("- {sentence}"));
    }
    page.push_str("\n## The incidents\n\n| incident | what happens |\n|---|---|\n");
    for Played { incident, .. } in all {
        line(&mut page, format_args!("| {} | {} |", incident.name, incident.story));
    }
    page
}

fn tolerations() -> String {
    let each = CONDITIONS.iter().map(|it| format!("{}={} {} minutes", it.kind, it.sick, it.minutes));
    format!(
        "The tolerations are those of Karpenter's provider for AWS: {}. For Salvor, `startupTimeout` is 30 minutes besides.\n",
        each.collect::<Vec<_>>().join(", ")
    )
}

fn row(page: &mut String, name: &str, rules: &str, outcome: &Outcome) {
    let Outcome { broken, replaced, in_vain, late, lost, sick, held, frozen } = outcome;
    line(
        page,
        format_args!(
            "| {name} | {rules} | {replaced} of {broken} | {in_vain} | {} | {} | {} | {} | {} |",
            minutes(*late),
            minutes(*lost),
            minutes(*sick),
            minutes(*held),
            minutes(*frozen)
        ),
    );
}

/// Everything in which Salvor does worse than Karpenter in an incident.
fn worse(Played { incident, karpenter, salvor }: &Played) -> Vec<String> {
    let name = incident.name;
    let mut worse = Vec::new();
    if salvor.in_vain > karpenter.in_vain {
        worse.push(format!("{name}: it kills {} in vain, Karpenter {}.", salvor.in_vain, karpenter.in_vain));
    }
    if salvor.replaced < karpenter.replaced {
        worse.push(format!(
            "{name}: it replaces {} of {} broken machines, Karpenter {}.",
            salvor.replaced, salvor.broken, karpenter.replaced
        ));
    }
    for (what, ours, theirs) in [
        ("broken machines are late", salvor.late, karpenter.late),
        ("nodes that it killed in vain are missing", salvor.lost, karpenter.lost),
        ("it is frozen", salvor.frozen, karpenter.frozen),
    ] {
        let (ours, theirs) = (minutes(ours), minutes(theirs));
        if ours > theirs + 1 {
            worse.push(format!("{name}: {what} for {ours} minutes, with Karpenter's rules for {theirs}."));
        }
    }
    worse
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}
