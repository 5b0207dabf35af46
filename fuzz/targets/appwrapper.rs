//! AppWrappers as the webhooks receive them: they contain pod templates of any kind.

#![no_main]

use salvor_api::config::AppWrapperSettings;
use salvor_recovery::appwrapper::admission::{
    AdmissionPolicy, Operation, Request, User, mutate, refusal_without_webhook, validate,
};
use serde_json::Value;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(object) = serde_json::from_str::<Value>(text) else { return };
    let policy = AdmissionPolicy::new(&AppWrapperSettings::default());
    let user = User::default();
    let request = Request { operation: Operation::Create, namespace: "default", user: &user, object: &object };
    let _ = mutate(&request, &policy);
    let _ = validate(&request, &policy);
    let _ = validate(&Request { operation: Operation::Update { old: &object }, ..request }, &policy);
    let _ = refusal_without_webhook(&object, &policy).map(|refusal| refusal.to_string());
});
