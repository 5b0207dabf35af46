//! Renders the answer for people, on one screen.

use std::collections::BTreeSet;

use jiff::Timestamp;
use salvor_recovery::expected::ExpectedBack;
use salvor_why::{Answer, Code, Group, NotSeen, Object, Overview, Remedy, RootCause, Waiting};

use crate::output::lasting;

/// Further root causes are only counted.
const MOST_CAUSES: usize = 5;
/// Limits how many workloads of a group are named.
const MOST_WORKLOADS: usize = 8;
const MOST_REMEDIES: usize = 3;
/// Limits how many nodes of the same cause are named.
const MOST_NODES: usize = 4;

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
    let causes = together(answer.root_causes.iter(), on_nodes);
    for (cause, others) in causes.iter().take(MOST_CAUSES) {
        lines.push(String::new());
        lines.extend(root_cause(cause, now));
        let names: Vec<&str> = others.iter().map(|cause| cause.object.name.as_str()).collect();
        lines.extend(also(&names, ""));
        let each = others.iter().map(|cause| cause.expected_back.clone());
        let expected = each.fold(cause.expected_back.clone(), ExpectedBack::and);
        let expected = expected.told(now).filter(|_| causes.len() > 1);
        lines.extend(expected.map(|line| format!("  {line}")));
    }
    if let Some(more) = causes.len().checked_sub(MOST_CAUSES).filter(|more| *more > 0) {
        lines.push(format!("and {more} more"));
    }
    if answer.missing.is_some() && answer.chain.len() > 1 {
        lines.extend([String::new(), "From there to the cause:".to_owned()]);
        let told = answer.root_causes.first().map(|cause| cause.message.as_str());
        for (depth, link) in answer.chain.iter().enumerate() {
            // The cause has been told above.
            let says = if told == Some(link.says.as_str()) { "see above" } else { &link.says };
            lines.push(format!("  {}{}: {}", "  ".repeat(depth), link.object, short_times(says, now)));
        }
    }
    if !answer.remedies.is_empty() {
        lines.push(String::new());
        lines.extend(remedies(&answer.remedies, "", now));
    }
    lines.extend(end(&answer.not_seen, judged_by, now));
    lines.join("\n") + "\n"
}

pub(super) fn overview(overview: &Overview, judged_by: &str, now: Timestamp) -> String {
    let mut lines = Vec::new();
    if overview.groups.is_empty() {
        lines.push("Nothing is missing: every workload has the pods that it should have".to_owned());
    }
    let same = |a: &Group, b: &Group| {
        on_nodes(&a.root_cause, &b.root_cause)
            && (a.root_cause.code == Code::BrakeHolds || a.workloads == b.workloads)
    };
    for (group, others) in together(overview.groups.iter(), same) {
        lines.extend(root_cause(&group.root_cause, now));
        let nodes: Vec<&str> = others.iter().map(|group| group.root_cause.object.name.as_str()).collect();
        let pods = group.pods + others.iter().map(|group| group.pods).sum::<usize>();
        lines.extend(also(&nodes, &format!("; {pods} pods in all")));
        let each = others.iter().map(|group| group.root_cause.expected_back.clone());
        let expected = each.fold(group.root_cause.expected_back.clone(), ExpectedBack::and);
        lines.extend(expected.told(now).map(|line| format!("  {line}")));
        let all = others.iter().flat_map(|group| &group.workloads);
        let workloads: BTreeSet<&Waiting> = group.workloads.iter().chain(all).collect();
        for workload in workloads.iter().take(MOST_WORKLOADS) {
            let object = Object {
                kind: workload.kind.clone(),
                namespace: workload.namespace.clone(),
                name: workload.name.clone(),
            };
            lines.push(format!("    {object} misses {}", workload.missing));
        }
        if let Some(more) = workloads.len().checked_sub(MOST_WORKLOADS).filter(|more| *more > 0) {
            lines.push(format!("    and {more} more"));
        }
        let few = &group.remedies[..group.remedies.len().min(MOST_REMEDIES)];
        lines.extend(remedies(few, "  ", now));
        lines.push(String::new());
    }
    lines.extend(end(&overview.not_seen, judged_by, now));
    lines.join("\n") + "\n"
}

/// Puts those that are the same behind the first of them.
fn together<'a, T>(
    all: impl Iterator<Item = &'a T>,
    same: impl Fn(&T, &T) -> bool,
) -> Vec<(&'a T, Vec<&'a T>)> {
    let mut merged: Vec<(&T, Vec<&T>)> = Vec::new();
    for one in all {
        match merged.iter_mut().find(|(first, _)| same(first, one)) {
            Some((_, others)) => others.push(one),
            None => merged.push((one, Vec::new())),
        }
    }
    merged
}

/// Whether two causes are the same thing on two nodes.
fn on_nodes(a: &RootCause, b: &RootCause) -> bool {
    a.code == b.code && a.object.kind == "Node" && b.object.kind == "Node"
}

/// The other nodes of a cause.
fn also(nodes: &[&str], and: &str) -> Option<String> {
    let (some, more) = nodes.split_at(nodes.len().min(MOST_NODES));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    (!nodes.is_empty()).then(|| {
        let plural = if nodes.len() == 1 { "" } else { "s" };
        format!("  the same on node{plural} {}{more}{and}", some.join(", "))
    })
}

fn root_cause(cause: &RootCause, now: Timestamp) -> Vec<String> {
    let mut lines = vec![
        format!("{} ({})", cause.code.name(), cause.object),
        format!("  {}", short_times(cause.message.trim(), now)),
    ];
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

/// Replaces times of the form `2026-11-16T09:48:00Z` by `09:48:00Z (12m0s ago)`.
fn short_times(text: &str, now: Timestamp) -> String {
    let mut short = String::with_capacity(text.len());
    for (at, word) in text.split(' ').enumerate() {
        if at > 0 {
            short.push(' ');
        }
        // A time may be followed by punctuation, and begin a bracket.
        let start = word.trim_start_matches(['(', '"']);
        let end = start.trim_end_matches(['.', ',', ';', ':', ')', '"']);
        match end.parse::<Timestamp>() {
            Ok(time) if end.ends_with('Z') => {
                let (before, after) = (&word[..word.len() - start.len()], &start[end.len()..]);
                let distance = match time > now {
                    true => format!("in {}", lasting(time, now)),
                    false => format!("{} ago", lasting(now, time)),
                };
                short.push_str(&format!("{before}{} ({distance}){after}", time.strftime("%H:%M:%SZ")));
            }
            _ => short.push_str(word),
        }
    }
    short
}

fn remedies(remedies: &[Remedy], indent: &str, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    if !remedies.is_empty() {
        lines.push(format!("{indent}What can be done:"));
    }
    for (at, remedy) in remedies.iter().enumerate() {
        lines.push(format!("{indent}  {}. {}", at + 1, short_times(&remedy.text, now)));
        lines.extend(remedy.command.iter().map(|command| format!("{indent}     $ {command}")));
    }
    lines
}

fn end(not_seen: &[NotSeen], judged_by: &str, now: Timestamp) -> Vec<String> {
    let mut lines = vec![String::new()];
    for NotSeen { what, why } in not_seen {
        lines.push(format!("Not seen: {what}: {why}"));
    }
    lines.extend(judged_by.lines().map(|line| short_times(line, now)));
    lines
}

#[cfg(test)]
mod tests {
    use salvor_recovery::expected::PhaseName;
    use salvor_why::Link;

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

    #[test]
    fn the_same_on_many_nodes_is_told_once_with_a_count() {
        let now: Timestamp = "2026-11-16T10:00:00Z".parse().unwrap();
        let cause = |code, node: &str| RootCause {
            code,
            object: Object::of("Node", "", node),
            message: format!(
                "node {node} is silent since 2026-11-16T09:48:00Z; it waits until 2026-11-16T10:04:12Z."
            ),
            since: None,
            until: None,
            expected_back: ExpectedBack::default(),
        };
        let waits = |name: &str| Waiting {
            kind: "Job".into(),
            namespace: Some("ns".into()),
            name: name.into(),
            missing: "60 of 60 pods".into(),
        };
        let group = |code, node: &str, name: &str| Group {
            root_cause: cause(code, node),
            pods: 10,
            workloads: vec![waits(name)],
            remedies: vec![Remedy::command("Do it", "kubectl do it")],
        };
        let mut groups: Vec<Group> =
            (0..6).map(|at| group(Code::NotOptedIn, &format!("n-{at}"), "train")).collect();
        groups.push(group(Code::NotOptedIn, "n-0", "other"));
        groups.extend([group(Code::BrakeHolds, "n-8", "a"), group(Code::BrakeHolds, "n-9", "b")]);
        let shown = overview(&Overview { groups, not_seen: Vec::new() }, "Judged by nobody", now);
        assert!(
            shown.contains("  the same on nodes n-1, n-2, n-3, n-4 and 1 more; 60 pods in all\n"),
            "{shown}"
        );
        assert_eq!(shown.matches("NotOptedIn (").count(), 2, "{shown}");
        assert_eq!(shown.matches("BrakeHolds (").count(), 1, "{shown}");
        assert!(shown.contains("Job ns/a misses") && shown.contains("Job ns/b misses"), "{shown}");
        assert!(shown.contains("  What can be done:\n    1. Do it\n       $ kubectl do it\n"), "{shown}");
        let times = "silent since 09:48:00Z (12m0s ago); it waits until 10:04:12Z (in 4m12s).";
        assert!(shown.contains(times), "{shown}");
        assert_eq!(
            short_times("v1.2 (at 2026-11-16T09:00:00Z) 12Z", now),
            "v1.2 (at 09:00:00Z (1h0m ago)) 12Z"
        );
    }

    #[test]
    fn the_message_of_the_cause_is_told_once() {
        let now: Timestamp = "2026-11-16T10:00:00Z".parse().unwrap();
        let (pod, node) = (Object::of("Pod", "ns", "a"), Object::of("Node", "", "n"));
        let message = "node n is silent".to_owned();
        let one = Answer {
            about: pod.clone(),
            missing: Some("itself".into()),
            root_causes: vec![RootCause {
                code: Code::NodeLost,
                object: node.clone(),
                message: message.clone(),
                since: None,
                until: None,
                expected_back: ExpectedBack::default(),
            }],
            expected_back: ExpectedBack::default(),
            chain: vec![Link { object: pod, says: "is on it".into() }, Link { object: node, says: message }],
            remedies: Vec::new(),
            not_seen: Vec::new(),
        };
        let shown = answer(&one, "Judged by nobody", now);
        assert_eq!(shown.matches("is silent").count(), 1, "{shown}");
        assert!(shown.contains("Node n: see above"), "{shown}");
    }
}
