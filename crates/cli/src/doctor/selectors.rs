//! Analyses label selectors without any objects: whether a selector can match at all, and whether another one covers
//! it.

use std::collections::{BTreeMap, BTreeSet};

use salvor_api::{LabelSelector, Operator};

/// All requirements of a selector on one label.
#[derive(Clone, Debug, Default)]
struct Demand<'a> {
    /// The only allowed values. `None` allows any value.
    allowed: Option<BTreeSet<&'a str>>,
    refused: BTreeSet<&'a str>,
    present: bool,
    absent: bool,
}

impl Demand<'_> {
    /// The values that remain possible. `None` if any value is possible.
    fn left(&self) -> Option<Vec<&str>> {
        let allowed = self.allowed.as_ref()?;
        Some(allowed.difference(&self.refused).copied().collect())
    }

    fn is_possible(&self) -> bool {
        !(self.present && self.absent) && self.left().is_none_or(|left| !left.is_empty())
    }

    /// Whether every label that meets `other` also meets this.
    fn follows_from(&self, other: &Self) -> bool {
        let left = other.left();
        let only = |allowed: &BTreeSet<&str>| {
            left.as_ref().is_some_and(|left| left.iter().all(|value| allowed.contains(value)))
        };
        let none_of = |value: &&str| {
            other.absent
                || other.refused.contains(value)
                || left.as_ref().is_some_and(|left| !left.contains(value))
        };
        (!self.present || other.present)
            && (!self.absent || other.absent)
            && self.allowed.as_ref().is_none_or(only)
            && self.refused.iter().all(none_of)
    }
}

fn demands(selector: &LabelSelector) -> BTreeMap<&str, Demand<'_>> {
    fn allow<'a>(demand: &mut Demand<'a>, values: BTreeSet<&'a str>) {
        demand.present = true;
        demand.allowed = Some(match demand.allowed.take() {
            Some(before) => before.intersection(&values).copied().collect(),
            None => values,
        });
    }
    let mut demands: BTreeMap<&str, Demand<'_>> = BTreeMap::new();
    for (key, value) in &selector.match_labels {
        allow(demands.entry(key).or_default(), BTreeSet::from([value.as_str()]));
    }
    for requirement in &selector.match_expressions {
        let demand = demands.entry(&requirement.key).or_default();
        let values: BTreeSet<&str> = requirement.values.iter().map(String::as_str).collect();
        match requirement.operator {
            Operator::In => allow(demand, values),
            Operator::NotIn => demand.refused.extend(values),
            Operator::Exists => demand.present = true,
            Operator::DoesNotExist => demand.absent = true,
        }
    }
    demands
}

/// The label whose requirements no value can meet. `None` if the selector can match.
pub(super) fn contradiction(selector: &LabelSelector) -> Option<&str> {
    demands(selector).into_iter().find(|(_, demand)| !demand.is_possible()).map(|(key, _)| key)
}

/// Whether `wide` matches everything that `narrow` matches.
pub(super) fn covers(wide: &LabelSelector, narrow: &LabelSelector) -> bool {
    let of_narrow = demands(narrow);
    let nothing = Demand::default();
    demands(wide).iter().all(|(key, demand)| demand.follows_from(of_narrow.get(key).unwrap_or(&nothing)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "calls read better")]
    fn selector(labels: Value, expressions: Value) -> LabelSelector {
        serde_json::from_value(json!({"matchLabels": labels, "matchExpressions": expressions})).unwrap()
    }

    fn one(key: &str, operator: &str, values: &[&str]) -> LabelSelector {
        selector(json!({}), json!([{"key": key, "operator": operator, "values": values}]))
    }

    #[test]
    fn a_selector_contradicts_itself_if_no_value_is_left() {
        let with = |expression: Value| selector(json!({"a": "1"}), json!([expression]));
        let cases = [
            (with(json!({"key": "a", "operator": "In", "values": ["1", "2"]})), None),
            (with(json!({"key": "a", "operator": "In", "values": ["2"]})), Some("a")),
            (with(json!({"key": "a", "operator": "NotIn", "values": ["1"]})), Some("a")),
            (with(json!({"key": "a", "operator": "DoesNotExist"})), Some("a")),
            (with(json!({"key": "a", "operator": "Exists"})), None),
            (with(json!({"key": "b", "operator": "DoesNotExist"})), None),
        ];
        for (selector, expected) in cases {
            assert_eq!(contradiction(&selector), expected, "{selector:?}");
        }
    }

    #[test]
    fn a_selector_covers_another_if_each_of_its_demands_follows() {
        let cases = [
            (one("a", "Exists", &[]), one("a", "In", &["1"]), true),
            (one("a", "In", &["1"]), one("a", "Exists", &[]), false),
            (one("a", "In", &["1", "2"]), one("a", "In", &["2"]), true),
            (one("a", "In", &["1"]), one("a", "In", &["1", "2"]), false),
            (one("a", "NotIn", &["3"]), one("a", "In", &["1"]), true),
            (one("a", "NotIn", &["1"]), one("a", "In", &["1"]), false),
            (one("a", "NotIn", &["1"]), one("a", "DoesNotExist", &[]), true),
            (one("a", "NotIn", &["1"]), one("a", "NotIn", &["1", "2"]), true),
            (one("a", "NotIn", &["1"]), one("b", "Exists", &[]), false),
            (one("a", "DoesNotExist", &[]), one("a", "NotIn", &["1"]), false),
            (LabelSelector::default(), one("a", "Exists", &[]), true),
            (one("a", "Exists", &[]), LabelSelector::default(), false),
        ];
        for (wide, narrow, expected) in cases {
            assert_eq!(covers(&wide, &narrow), expected, "{wide:?} {narrow:?}");
        }
    }
}
