//! Go durations.

#![no_main]

use salvor_api::GoDuration;

libfuzzer_sys::fuzz_target!(|text: &str| {
    match text.parse::<GoDuration>() {
        Ok(duration) => assert_eq!(duration.to_string().parse(), Ok(duration)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
