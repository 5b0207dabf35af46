//! A hook for tests: the process ends, without any cleanup, right before or after its n-th write.
//!
//! `SALVOR_TEST_CRASH=before:3` or `after:3`. What is left behind must be what a new process goes on from.

use std::sync::atomic::{AtomicU64, Ordering};

const VARIABLE: &str = "SALVOR_TEST_CRASH";
/// Tells a crash on purpose from any other end.
const EXIT_CODE: i32 = 86;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Before(u64),
    After(u64),
}

/// Counts writes, and ends the process at the chosen one.
#[derive(Debug, Default)]
pub(crate) struct CrashPoint {
    at: Option<Moment>,
    writes: AtomicU64,
}

impl CrashPoint {
    pub(crate) fn from_environment() -> Self {
        Self { at: std::env::var(VARIABLE).ok().and_then(|v| parse(&v)), writes: AtomicU64::new(0) }
    }

    pub(crate) fn before_write(&self) -> u64 {
        let number = self.writes.fetch_add(1, Ordering::SeqCst) + 1;
        self.crash_at(Moment::Before(number));
        number
    }

    pub(crate) fn after_write(&self, number: u64) {
        self.crash_at(Moment::After(number));
    }

    fn crash_at(&self, moment: Moment) {
        if self.at == Some(moment) {
            std::process::exit(EXIT_CODE);
        }
    }
}

fn parse(value: &str) -> Option<Moment> {
    let (when, number) = value.split_once(':')?;
    let number = number.parse().ok()?;
    match when {
        "before" => Some(Moment::Before(number)),
        "after" => Some(Moment::After(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_meant_is_a_crash_point() {
        assert_eq!(parse("before:1"), Some(Moment::Before(1)));
        assert_eq!(parse("after:12"), Some(Moment::After(12)));
        for other in ["", "before", "before:", "after:x", "during:1"] {
            assert_eq!(parse(other), None, "{other:?}");
        }
    }
}
