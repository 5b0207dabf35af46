//! Runs property tests: the same cases every time, or as many random ones as `PROPTEST_CASES` asks for.

mod annotations;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use serde_json::Value;

pub(crate) fn cases(cases: u32) -> Config {
    if std::env::var_os("PROPTEST_CASES").is_some() {
        return Config { failure_persistence: None, ..Config::default() };
    }
    Config { cases, rng_seed: RngSeed::Fixed(6757), failure_persistence: None, ..Config::default() }
}

/// Any JSON that prefers these words as keys and values.
pub(crate) fn json(words: &'static [&'static str]) -> impl Strategy<Value = Value> {
    let word = proptest::sample::select(words).prop_map(str::to_owned);
    let text = prop_oneof![4 => word.clone(), 1 => "\\PC{0,20}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(text.clone(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A text with one part removed or replaced.
pub(crate) fn damaged(text: &'static str) -> impl Strategy<Value = String> {
    let change =
        prop_oneof!["\\PC{0,4}", "[\\[\\]{}\":,0-9eE.-]{0,4}", Just("9".repeat(400)), Just("[".repeat(300))];
    (0..=text.len(), 0..30usize, change).prop_map(move |(at, cut, new)| {
        let start = text.floor_char_boundary(at);
        let end = text.floor_char_boundary((start + cut).min(text.len()));
        format!("{}{new}{}", &text[..start], &text[end.max(start)..])
    })
}
