//! Label selectors over the labels of a view.

use std::collections::BTreeMap;

use salvor_apiserver::object;
use serde_json::Value;

/// A `metav1.LabelSelector`: all requirements must hold. One without requirements selects everything.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selector(Vec<(String, Test)>);

#[derive(Debug, Clone)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

impl Selector {
    pub(crate) fn of(selector: &Value) -> Self {
        let equal = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
        let equal =
            equal.map(|(key, value)| (key.clone(), Test::In(vec![value.as_str().unwrap_or("").to_owned()])));
        let expressions = object::list(selector, "/matchExpressions").iter().map(|expression| {
            let values = object::strings(expression, "/values");
            let test = match object::text(expression, "/operator") {
                "In" => Test::In(values),
                "NotIn" => Test::NotIn(values),
                "DoesNotExist" => Test::DoesNotExist,
                _ => Test::Exists,
            };
            (object::text(expression, "/key").to_owned(), test)
        });
        Self(equal.chain(expressions).collect())
    }

    pub(crate) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|(key, test)| {
            let label = labels.get(key);
            match test {
                Test::In(values) => label.is_some_and(|label| values.contains(label)),
                Test::NotIn(values) => label.is_none_or(|label| !values.contains(label)),
                Test::Exists => label.is_some(),
                Test::DoesNotExist => label.is_none(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_requirements_must_hold() {
        let labels =
            BTreeMap::from([("app".to_owned(), "web".to_owned()), ("tier".to_owned(), "1".to_owned())]);
        for (selector, expected) in [
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "web", "tier": "2"}}), false),
            (json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["1", "2"]}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["1"]}]}), false),
            (json!({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["1"]}]}), true),
            (json!({"matchExpressions": [{"key": "none", "operator": "Exists"}]}), false),
            (json!({"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]}), true),
        ] {
            assert_eq!(Selector::of(&selector).matches(&labels), expected, "{selector}");
        }
    }
}
