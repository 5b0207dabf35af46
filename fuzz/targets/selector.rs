//! Label selectors.

#![no_main]

use salvor_api::{LabelSelector, Labels};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(selector) = serde_json::from_str::<LabelSelector>(text) else { return };
    let labels: Labels = [("a", "b"), ("pool", "gpu")].into_iter().collect();
    let _ = (selector.matches(&labels), selector.defects(), selector.demands_a_label());
    let written = serde_json::to_string(&selector).unwrap();
    assert_eq!(serde_json::from_str::<LabelSelector>(&written).unwrap(), selector);
});
