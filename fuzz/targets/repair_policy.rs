//! The spec of a NodeRepairPolicy, with its amounts, schedules, patterns and selectors.

#![no_main]

use salvor_recovery::objects::ObjectRef;
use salvor_recovery::repair::{Head, NODE_REPAIR_POLICY, Policy, PolicyStatus, allowance};
use serde_json::Value;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(object) = serde_json::from_str::<Value>(text) else { return };
    let head = || Head {
        object: ObjectRef {
            uid: "u".into(),
            kind: NODE_REPAIR_POLICY.clone(),
            namespace: None,
            name: "p".to_owned(),
        },
        resource_version: "1".into(),
        generation: 1,
        created: jiff::Timestamp::UNIX_EPOCH,
        status: PolicyStatus::read(object.get("status")),
    };
    for policy in [Policy::read(head(), &object), Policy::read_pool(head(), &object)] {
        let _ = allowance(&policy.budgets, 10, jiff::Timestamp::UNIX_EPOCH);
    }
});
