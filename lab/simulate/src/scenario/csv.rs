//! Reads failures from a recorded list: a CSV with the columns `at`, `kind`, `target` and `lasts`.

use std::{fs, time::Duration};

use jiff::Timestamp;
use salvor_api::GoDuration;
use serde_saphyr::Spanned;

use super::{
    Failure, Lasting, Scenario, ScenarioError, Source, Timing,
    failures::{KINDS, fault_of, named},
    file::{Target, unplaced},
    read::{LONGEST, bad, line as line_of},
};

/// The time of a failure without one.
const FIRST: Duration = Duration::from_secs(300);
const HEADER: &str = "at,kind,target,lasts";

/// The time of a row: since the beginning, or a calendar time.
enum When {
    After(Duration),
    On(Timestamp),
}

/// Reads the list of an entry. Errors name the line of the list.
pub(super) fn read(
    scenario: &Scenario,
    at: &str,
    path: &Spanned<String>,
    source: &Source,
) -> Result<Vec<Failure>, ScenarioError> {
    let field = format!("{at}.csv");
    let file = source.folder.join(&path.value);
    let text = fs::read_to_string(&file)
        .map_err(|error| bad(line_of(path), &field, format!("cannot read {}: {error}", file.display())))?;
    rows(scenario, &text).map_err(|(row, problem)| {
        bad(line_of(path), &field, format!("line {row} of {}: {problem}", file.display()))
    })
}

fn rows(scenario: &Scenario, text: &str) -> Result<Vec<Failure>, (usize, String)> {
    let mut rows = (1..)
        .zip(text.trim_start_matches('\u{feff}').lines())
        .filter(|(_, row)| !row.trim().is_empty() && !row.trim_start().starts_with('#'));
    match rows.next() {
        Some((_, header)) if header.split(',').map(str::trim).eq(HEADER.split(',')) => {}
        Some((number, header)) => {
            return Err((number, format!("{header:?} is not the header: write {HEADER}")));
        }
        None => return Err((1, format!("it is empty: begin with {HEADER}"))),
    }
    let mut first: Option<Timestamp> = None;
    let mut failures = Vec::new();
    for (number, row) in rows {
        let wrong = |problem: String| (number, problem);
        let cells: Vec<&str> = row.split(',').map(str::trim).collect();
        let [when, kind, target, lasts] = cells[..] else {
            return Err(wrong(format!("{} columns, and there must be 4: {HEADER}", cells.len())));
        };
        let fault = fault_of(kind, None, None, None, None)
            .ok_or_else(|| wrong(format!("kind: {kind:?} is not known: write {KINDS}")))?;
        let at = match time(when).map_err(wrong)? {
            When::After(at) => at,
            When::On(time) => {
                let since = time.duration_since(*first.get_or_insert(time));
                let since = Duration::try_from(since).map_err(|_| {
                    wrong(format!("at: {when} is before the first row: sort the list by time"))
                })?;
                if since > LONGEST.0 {
                    return Err(wrong(format!("at: {when} is more than {} after the first row", LONGEST.1)));
                }
                since
            }
        };
        let target = target_of(target).map_err(wrong)?;
        let nodes = nodes_of(scenario, &target).map_err(wrong)?;
        let lasting = if lasts.is_empty() {
            Lasting::ForGood
        } else {
            Lasting::Fixed(span(lasts).map_err(|problem| wrong(format!("lasts: {problem}")))?)
        };
        let timing = Timing::At { at, pick: None };
        failures.push(Failure { fault, nodes, named: named(&target), timing, lasting, one_every: None });
    }
    Ok(failures)
}

/// Reads a failure that is written in one line.
pub(super) fn line(scenario: &Scenario, text: &str) -> Result<Failure, String> {
    const USAGE: &str = "write its kind, its target and how long it lasts, such as partition zone=b 15m";
    let mut words = text.split_whitespace();
    let kind = words.next().ok_or(USAGE)?;
    let fault = fault_of(kind, None, None, None, None)
        .ok_or_else(|| format!("{kind:?} is not known: write {KINDS}"))?;
    let (mut at, mut lasting, mut targets) = (FIRST, Lasting::ForGood, Vec::new());
    for word in words {
        match word.split_once('=') {
            Some(("at", time)) => at = span(time)?,
            Some(_) => targets.push(word),
            None if lasting == Lasting::ForGood => lasting = Lasting::Fixed(span(word)?),
            None => return Err(USAGE.to_owned()),
        }
    }
    let target = target_of(&targets.join(" "))?;
    let nodes = nodes_of(scenario, &target)?;
    Ok(Failure {
        fault,
        nodes,
        named: named(&target),
        timing: Timing::At { at, pick: None },
        lasting,
        one_every: None,
    })
}

fn nodes_of(scenario: &Scenario, target: &Target) -> Result<Vec<String>, String> {
    scenario.nodes_of("target", &unplaced(target.clone())).map_err(|error| match error {
        ScenarioError::Value { field, problem, .. } => format!("{field}: {problem}"),
        ScenarioError::Yaml(problem) => problem,
    })
}

fn time(text: &str) -> Result<When, String> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(When::On(time));
    }
    span(text).map(When::After).map_err(|_| {
        format!(
            "at: {text:?} is no time: write a duration such as 5m30s, or a time such as 2026-01-31T08:15:00Z"
        )
    })
}

fn span(text: &str) -> Result<Duration, String> {
    let parsed: GoDuration = text.parse().map_err(|error| format!("{error}"))?;
    let (longest, named) = LONGEST;
    let span = Duration::try_from(jiff::SignedDuration::from(parsed)).ok();
    span.filter(|span| *span <= longest)
        .ok_or_else(|| format!("{text:?} cannot be used: write 0s to {named}"))
}

fn target_of(text: &str) -> Result<Target, String> {
    let mut target = Target::default();
    for part in text.split_whitespace() {
        let place = match part.split_once('=') {
            Some(("zone", name)) => target.zone.replace(name.to_owned()),
            Some(("node", name)) => target.node.replace(name.to_owned()),
            Some(("pool", name)) => target.pool.replace(name.to_owned()),
            Some(("rack", name)) => target.rack.replace(name.to_owned()),
            Some(("spot", "true")) => target.spot.replace(true).map(|_| String::new()),
            Some(("spot", "false")) => target.spot.replace(false).map(|_| String::new()),
            _ => {
                return Err(format!(
                    "target: {part:?} is not known: write node=, rack=, zone= or pool= and a name, or spot=true"
                ));
            }
        };
        if place.is_some() {
            return Err(format!("target: {part:?} is there twice"));
        }
    }
    Ok(target)
}
