//! Reads values of a file: checks each and reports problems with their line.

use std::{collections::BTreeMap, time::Duration};

use jiff::SignedDuration;
use salvor_api::{GoDuration, LabelSelector};
use serde_saphyr::Spanned;

use crate::scenario::ScenarioError;

pub(in crate::scenario) fn line<T>(spanned: &Spanned<T>) -> u64 {
    spanned.referenced.line()
}

pub(in crate::scenario) fn bad(line: u64, field: &str, problem: String) -> ScenarioError {
    ScenarioError::Value { line, field: field.to_owned(), problem }
}

pub(super) fn within(value: &Spanned<u32>, field: &str, least: u32, most: u32) -> Result<u32, ScenarioError> {
    if (least..=most).contains(&value.value) {
        return Ok(value.value);
    }
    let problem = format!("{} cannot be used: write a whole number from {least} to {most}", value.value);
    Err(bad(line(value), field, problem))
}

/// Refuses labels that the API server would refuse: nodes with such labels would never register.
pub(super) fn labelled(
    line: u64,
    field: &str,
    labels: &BTreeMap<String, String>,
) -> Result<(), ScenarioError> {
    let selector = LabelSelector { match_labels: labels.clone(), ..LabelSelector::default() };
    match selector.defects().into_iter().next() {
        Some(defect) => Err(bad(line, field, defect.message)),
        None => Ok(()),
    }
}

/// Refuses resources that the API server would refuse.
pub(super) fn amounts(
    line: u64,
    field: &str,
    amounts: &BTreeMap<String, String>,
) -> Result<(), ScenarioError> {
    let keys = amounts.keys().map(|key| (key.clone(), String::new())).collect();
    labelled(line, field, &keys)?;
    match amounts.iter().find(|(_, amount)| !is_quantity(amount)) {
        Some((resource, amount)) => {
            let problem = format!(
                "{amount:?} is no amount: write a number with a unit if need be, such as 500m, 2 or 10Gi"
            );
            Err(bad(line, &format!("{field}.{resource}"), problem))
        }
        None => Ok(()),
    }
}

fn is_quantity(text: &str) -> bool {
    const UNITS: [&str; 15] = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    number.parse::<f64>().is_ok_and(f64::is_finite) && number.len() <= 18 && UNITS.contains(&unit)
}

pub(super) fn is_plain(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty()
        && name.len() <= 40
        && name.chars().all(fits)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// A name from which names of objects are built.
pub(super) fn plain_name(name: &Spanned<String>, field: &str) -> Result<String, ScenarioError> {
    if is_plain(&name.value) {
        return Ok(name.value.clone());
    }
    let problem = format!(
        "{:?} cannot be a name: write lower case letters, digits and '-', at most 40, with a letter or digit at both ends",
        name.value
    );
    Err(bad(line(name), field, problem))
}

pub(in crate::scenario) fn duration(text: &Spanned<String>, field: &str) -> Result<Duration, ScenarioError> {
    long_duration(text, field, Duration::from_secs(24 * 3600), "24h")
}

/// The longest duration in a scenario, except for a mean time between failures: a year.
pub(in crate::scenario) const LONGEST: (Duration, &str) = (Duration::from_secs(365 * 24 * 3600), "8760h");

/// A duration of at most a year.
pub(in crate::scenario) fn any_duration(
    text: &Spanned<String>,
    field: &str,
) -> Result<Duration, ScenarioError> {
    long_duration(text, field, LONGEST.0, LONGEST.1)
}

pub(in crate::scenario) fn long_duration(
    text: &Spanned<String>,
    field: &str,
    most: Duration,
    named: &str,
) -> Result<Duration, ScenarioError> {
    let at = line(text);
    let parsed: GoDuration = text.value.parse().map_err(|error| bad(at, field, format!("{error}")))?;
    let too_long = || bad(at, field, format!("{:?} cannot be used: write 0s to {named}", text.value));
    let parsed = Duration::try_from(SignedDuration::from(parsed)).map_err(|_| too_long())?;
    if parsed > most { Err(too_long()) } else { Ok(parsed) }
}

pub(super) fn positive(
    value: Option<Duration>,
    written: Option<&Spanned<String>>,
    field: &str,
) -> Result<Option<Duration>, ScenarioError> {
    match (value, written) {
        (Some(Duration::ZERO), Some(written)) => {
            Err(bad(line(written), field, "0s cannot be used: write a time, or leave it out".into()))
        }
        (value, _) => Ok(value),
    }
}
