//! The configuration file.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Err(error) = salvor_api::config::parse(text) {
        assert!(!error.problems.is_empty() && !error.to_string().is_empty());
    }
});
