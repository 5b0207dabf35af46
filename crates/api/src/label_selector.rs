//! Label selectors, as Kubernetes' `metav1.LabelSelector`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::labels::Labelled;

/// Selects objects by their labels. All requirements must match.
///
/// As in Kubernetes, an empty selector matches everything. The configuration refuses it where that is dangerous.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LabelSelector {
    /// Labels that must be present with exactly these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// One requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// The operator.
    pub operator: Operator,
    /// The values that `In` and `NotIn` compare with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// The operator of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// The label is present with one of the values.
    In,
    /// The label is absent, or present with none of the values.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

/// The position of a defect in a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectorField {
    /// `matchLabels[key]`.
    MatchLabel(String),
    /// `matchExpressions[index].key`.
    Key(usize),
    /// `matchExpressions[index].values`.
    Values(usize),
    /// `matchExpressions[index].values[value]`.
    Value(usize, usize),
}

/// A defect of a selector that Kubernetes refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorDefect {
    /// The position of the defect.
    pub field: SelectorField,
    /// The value and the correct form.
    pub message: String,
}

impl LabelSelector {
    /// Whether the labels match every requirement.
    pub fn matches(&self, labels: &impl Labelled) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.label(key) == Some(value.as_str()))
            && self.match_expressions.iter().all(|requirement| requirement.matches(labels))
    }

    /// Whether the selector has no requirements and therefore matches everything.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// Whether a match proves that a label was set: at least one requirement needs a label to be present.
    pub fn demands_a_label(&self) -> bool {
        !self.match_labels.is_empty()
            || self
                .match_expressions
                .iter()
                .any(|requirement| matches!(requirement.operator, Operator::In | Operator::Exists))
    }

    /// Everything in the selector that Kubernetes refuses.
    pub fn defects(&self) -> Vec<SelectorDefect> {
        let mut found = Vec::new();
        let mut note = |field, message| found.push(SelectorDefect { field, message });
        for (key, value) in &self.match_labels {
            for defect in [key_defect(key), value_defect(value)].into_iter().flatten() {
                note(SelectorField::MatchLabel(key.clone()), defect);
            }
        }
        for (index, requirement) in self.match_expressions.iter().enumerate() {
            if let Some(defect) = key_defect(&requirement.key) {
                note(SelectorField::Key(index), defect);
            }
            let (operator, values) = (requirement.operator, &requirement.values);
            match operator {
                Operator::In | Operator::NotIn if values.is_empty() => {
                    note(
                        SelectorField::Values(index),
                        format!("is empty: operator {operator:?} needs at least one value"),
                    );
                }
                Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                    let message = format!("{values:?} cannot be used: operator {operator:?} takes no values");
                    note(SelectorField::Values(index), message);
                }
                _ => {}
            }
            for (position, value) in values.iter().enumerate() {
                if let Some(defect) = value_defect(value) {
                    note(SelectorField::Value(index, position), defect);
                }
            }
        }
        found
    }
}

impl Requirement {
    fn matches(&self, labels: &impl Labelled) -> bool {
        let value = labels.label(&self.key);
        let listed = || value.is_some_and(|value| self.values.iter().any(|listed| listed == value));
        match self.operator {
            Operator::In => listed(),
            Operator::NotIn => !listed(),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

const MAX_NAME: usize = 63;
const MAX_PREFIX: usize = 253;

pub(crate) fn key_defect(key: &str) -> Option<String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let good = !name.is_empty() && is_label_text(name) && prefix.is_none_or(is_dns_subdomain);
    (!good).then(|| {
        format!(
            "{key:?} is not a label key: write name or domain/name, the name of at most {MAX_NAME} characters out of \
             letters, digits, '-', '_' and '.', with a letter or digit at both ends"
        )
    })
}

/// The defect of a label value, if it has one. Values of taints follow the same rules.
pub fn value_defect(value: &str) -> Option<String> {
    (!is_label_text(value)).then(|| {
        format!(
            "{value:?} is not a label value: write at most {MAX_NAME} characters out of letters, digits, '-', '_' and \
             '.', with a letter or digit at both ends"
        )
    })
}

fn is_label_text(text: &str) -> bool {
    let alphanumeric = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= MAX_NAME
        && alphanumeric(bytes.first())
        && alphanumeric(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// Whether the text is a valid object name, for example of a node.
pub fn is_dns_subdomain(text: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= MAX_PREFIX
        && text.split('.').map(str::as_bytes).all(|part| {
            part.first().is_some_and(alphanumeric)
                && part.last().is_some_and(alphanumeric)
                && part.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::labels::Labels;

    fn text() -> impl Strategy<Value = String> {
        prop_oneof!["[a-z./-]{0,12}", "\\PC{0,80}", "[a-zA-Z0-9._-]{60,70}"]
    }

    prop_compose! {
        fn any_selector()(
            match_labels in proptest::collection::btree_map(text(), text(), 0..4),
            expressions in proptest::collection::vec(
                (text(), proptest::sample::select(vec!["In", "NotIn", "Exists", "DoesNotExist"]), proptest::collection::vec(text(), 0..4)),
                0..4,
            ),
        ) -> LabelSelector {
            let expressions: Vec<_> = expressions
                .into_iter()
                .map(|(key, operator, values)| serde_json::json!({"key": key, "operator": operator, "values": values}))
                .collect();
            let selector = serde_json::json!({"matchLabels": match_labels, "matchExpressions": expressions});
            serde_json::from_value(selector).unwrap()
        }
    }

    proptest! {
        #![proptest_config(crate::fuzz::cases(1024))]

        #[test]
        fn any_selector_is_read_judged_and_written_back(
            selector in any_selector(),
            labels in proptest::collection::btree_map("[a-z]{0,3}", "[a-z]{0,3}", 0..4),
        ) {
            let labels: Labels = labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let _ = (selector.matches(&labels), selector.is_empty(), selector.demands_a_label());
            for defect in selector.defects() {
                prop_assert!(!defect.message.is_empty());
            }
            let written = serde_json::to_string(&selector).unwrap();
            prop_assert_eq!(serde_json::from_str::<LabelSelector>(&written).unwrap(), selector);
        }

        #[test]
        fn any_text_is_a_selector_or_is_refused(text in "\\PC{0,60}|[{}\\[\\]\":,a-zA-Z]{0,60}") {
            let _ = serde_json::from_str::<LabelSelector>(&text).map_err(|error| error.to_string());
        }
    }

    fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().copied().collect()
    }

    fn requirement(key: &str, operator: Operator, values: &[&str]) -> LabelSelector {
        let values = values.iter().map(ToString::to_string).collect();
        LabelSelector {
            match_expressions: vec![Requirement { key: key.into(), operator, values }],
            ..LabelSelector::default()
        }
    }

    #[test]
    fn requirements_mean_what_they_mean_to_kubernetes() {
        let a1 = labels(&[("a", "1")]);
        let a2 = labels(&[("a", "2"), ("b", "x")]);
        let none = labels(&[]);
        let exact = LabelSelector { match_labels: pairs(&[("a", "1")]), ..LabelSelector::default() };
        let cases = [
            (exact, [true, false, false]),
            (requirement("a", Operator::In, &["1", "3"]), [true, false, false]),
            (requirement("a", Operator::NotIn, &["1", "3"]), [false, true, true]),
            (requirement("a", Operator::Exists, &[]), [true, true, false]),
            (requirement("a", Operator::DoesNotExist, &[]), [false, false, true]),
            (LabelSelector::default(), [true, true, true]),
        ];
        for (selector, expected) in cases {
            assert_eq!([&a1, &a2, &none].map(|labels| selector.matches(labels)), expected, "{selector:?}");
        }
        let mut both = requirement("a", Operator::Exists, &[]);
        both.match_labels = pairs(&[("b", "x")]);
        assert!(both.matches(&a2) && !both.matches(&a1));
    }

    #[test]
    fn only_a_present_label_is_a_mark() {
        assert!(requirement("a", Operator::Exists, &[]).demands_a_label());
        assert!(requirement("a", Operator::In, &["1"]).demands_a_label());
        assert!(!requirement("a", Operator::NotIn, &["1"]).demands_a_label());
        assert!(!requirement("a", Operator::DoesNotExist, &[]).demands_a_label());
        assert!(!LabelSelector::default().demands_a_label());
    }

    #[test]
    fn syntax_is_that_of_kubernetes() {
        let long = "x".repeat(64);
        for good in ["a", "example.com/pod-safe_to.fail", "A", "0", &long[..63]] {
            assert_eq!(key_defect(good), None, "{good}");
        }
        for bad in ["", "/a", "a/", "a/b/c", "-a", "a-", "Example.com/a", "ex..com/a", "ä", "a b", &long] {
            assert!(key_defect(bad).is_some_and(|text| text.contains(&format!("{bad:?}"))), "{bad}");
        }
        for good in ["", "true", "a_b.c-d", &long[..63]] {
            assert_eq!(value_defect(good), None, "{good}");
        }
        for bad in ["-", "a/b", " ", ".a", &long] {
            assert!(value_defect(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn every_defect_is_named_with_its_place() {
        let mut selector = requirement("-", Operator::In, &[]);
        selector.match_labels = pairs(&[("ok", "not ok")]);
        selector.match_expressions.extend(requirement("ok", Operator::Exists, &["x"]).match_expressions);
        selector
            .match_expressions
            .extend(requirement("ok", Operator::NotIn, &["fine", "-"]).match_expressions);
        let places: Vec<_> = selector.defects().into_iter().map(|defect| defect.field).collect();
        assert_eq!(
            places,
            [
                SelectorField::MatchLabel("ok".into()),
                SelectorField::Key(0),
                SelectorField::Values(0),
                SelectorField::Values(1),
                SelectorField::Value(2, 1),
            ]
        );
    }
}
