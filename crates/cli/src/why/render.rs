//! Renders the answer for people, on one screen.

use jiff::Timestamp;
use salvor_why::{Answer, NotSeen, Object, Overview, Remedy, RootCause};

use crate::output::lasting;

/// Further root causes are only counted.
const MOST_CAUSES: usize = 5;
/// Limits how many workloads of a group are named.
const MOST_WORKLOADS: usize = 8;

pub(super) fn answer(answer: &Answer, judged_by: &str, now: Timestamp) -> String {
    let mut lines = Vec::new();
    match &answer.missing {
        None => {
            lines.push(format!("{}: nothing is missing", answer.about));
            lines.extend(answer.chain.iter().map(|link| format!("  {}", link.says)));
        }
        Some(missing) => lines.push(format!("{} misses {missing}", answer.about)),
    }
    lines.extend(answer.expected_back.told(now));
    let several = answer.root_causes.len() > 1;
    for cause in answer.root_causes.iter().take(MOST_CAUSES) {
        lines.push(String::new());
        lines.extend(root_cause(cause, now));
        let expected = cause.expected_back.told(now).filter(|_| several);
        lines.extend(expected.map(|line| format!("  {line}")));
    }
    if let Some(more) = answer.root_causes.len().checked_sub(MOST_CAUSES).filter(|more| *more > 0) {
        lines.push(format!("and {more} more"));
    }
    if answer.missing.is_some() && answer.chain.len() > 1 {
        lines.extend([String::new(), "From there to the cause:".to_owned()]);
        for (depth, link) in answer.chain.iter().enumerate() {
            lines.push(format!("  {}{}: {}", "  ".repeat(depth), link.object, link.says));
        }
    }
    lines.extend(remedies(&answer.remedies));
    lines.extend(end(&answer.not_seen, judged_by));
    lines.join("\n") + "\n"
}

pub(super) fn overview(overview: &Overview, judged_by: &str, now: Timestamp) -> String {
    let mut lines = Vec::new();
    if overview.groups.is_empty() {
        lines.push("Nothing is missing: every workload has the pods that it should have".to_owned());
    }
    for group in &overview.groups {
        lines.extend(root_cause(&group.root_cause, now));
        lines.extend(group.root_cause.expected_back.told(now).map(|line| format!("  {line}")));
        for workload in group.workloads.iter().take(MOST_WORKLOADS) {
            let object = Object {
                kind: workload.kind.clone(),
                namespace: workload.namespace.clone(),
                name: workload.name.clone(),
            };
            lines.push(format!("    {object} misses {}", workload.missing));
        }
        if let Some(more) = group.workloads.len().checked_sub(MOST_WORKLOADS).filter(|more| *more > 0) {
            lines.push(format!("    and {more} more"));
        }
        if let Some(remedy) = group.remedies.first() {
            lines.push(format!("  To do: {}", remedy.text));
            lines.extend(remedy.command.iter().map(|command| format!("    $ {command}")));
        }
        lines.push(String::new());
    }
    lines.extend(end(&overview.not_seen, judged_by));
    lines.join("\n") + "\n"
}

fn root_cause(cause: &RootCause, now: Timestamp) -> Vec<String> {
    let mut lines =
        vec![format!("{} ({})", cause.code.name(), cause.object), format!("  {}", cause.message.trim())];
    let since = cause.since.map(|since| format!("since {since:.0} ({} ago)", lasting(now, since)));
    let until = cause.until.map(|until| match until > now {
        true => format!("until {until:.0} (in {})", lasting(until, now)),
        false => format!("until {until:.0}"),
    });
    let times: Vec<String> = since.into_iter().chain(until).collect();
    if !times.is_empty() {
        lines.push(format!("  {}", times.join(", ")));
    }
    lines
}

fn remedies(remedies: &[Remedy]) -> Vec<String> {
    let mut lines = Vec::new();
    if !remedies.is_empty() {
        lines.extend([String::new(), "What can be done:".to_owned()]);
    }
    for (at, remedy) in remedies.iter().enumerate() {
        lines.push(format!("  {}. {}", at + 1, remedy.text));
        lines.extend(remedy.command.iter().map(|command| format!("     $ {command}")));
    }
    lines
}

fn end(not_seen: &[NotSeen], judged_by: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for NotSeen { what, why } in not_seen {
        lines.push(format!("Not seen: {what}: {why}"));
    }
    lines.push(judged_by.to_owned());
    lines
}

#[cfg(test)]
mod tests {
    use salvor_recovery::expected::{ExpectedBack, PhaseName};
    use salvor_why::{Code, Link};

    use super::*;

    #[test]
    fn an_answer_is_one_screen() {
        let now: Timestamp = "2026-11-16T10:00:00Z".parse().unwrap();
        let node = Object::of("Node", "", "node-7");
        let job = Object::of("Job", "team-a", "train");
        let shown = answer(
            &Answer {
                about: job.clone(),
                missing: Some("1 of 2 pods".into()),
                root_causes: vec![RootCause {
                    code: Code::NotOptedIn,
                    object: node.clone(),
                    message: "node node-7 is silent".into(),
                    since: Some("2026-11-16T09:48:00Z".parse().unwrap()),
                    until: None,
                    expected_back: ExpectedBack::depends("its owner"),
                }],
                expected_back: ExpectedBack::after(
                    PhaseName::Eviction,
                    "2026-11-16T10:04:12Z".parse().unwrap(),
                ),
                chain: vec![
                    Link { object: job, says: "misses 1 of 2 pods".into() },
                    Link { object: node, says: "is silent".into() },
                ],
                remedies: vec![Remedy::command("Do it", "kubectl do it")],
                not_seen: vec![NotSeen { what: "events".into(), why: "forbidden".into() }],
            },
            "Judged by nobody",
            now,
        );
        let expected = "Job team-a/train misses 1 of 2 pods\nExpected back 10:04:12 (in 4m12s): eviction 10:04:12\n\nNotOptedIn (Node node-7)\n  node node-7 is silent\n  \
                        since 2026-11-16T09:48:00Z (12m0s ago)\n\nFrom there to the cause:\n  Job team-a/train: misses 1 of 2 pods\n    \
                        Node node-7: is silent\n\nWhat can be done:\n  1. Do it\n     $ kubectl do it\n\n\
                        Not seen: events: forbidden\nJudged by nobody\n";
        assert_eq!(shown, expected);
    }
}
