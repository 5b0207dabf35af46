//! A hook for tests: the process exits without cleanup right before or after its n-th write, or blocks before it. Only
//! builds with debug assertions have it: an environment variable must not be able to stop a release build.
//!
//! `SALVOR_TEST_CRASH=before:3` or `after:3` exits. A new process must be able to continue from the state left behind.
//! `SALVOR_TEST_CRASH=hold:3:FILE` creates the file and continues once it is gone, so that a test can change the
//! cluster between a decision and its write.

#[cfg(debug_assertions)]
pub(crate) use hook::CrashPoint;

/// A release build has no crash point.
#[cfg(not(debug_assertions))]
#[derive(Debug)]
pub(crate) struct CrashPoint;

#[cfg(not(debug_assertions))]
impl CrashPoint {
    pub(crate) fn from_environment() -> Self {
        Self
    }

    pub(crate) fn before_write(&self) -> u64 {
        0
    }

    pub(crate) fn after_write(&self, _: u64) {}
}

#[cfg(debug_assertions)]
mod hook {
    use std::{
        fs,
        path::{Path, PathBuf},
        sync::atomic::{AtomicU64, Ordering},
        thread,
        time::Duration,
    };

    const VARIABLE: &str = "SALVOR_TEST_CRASH";
    /// Distinguishes an intended crash from any other exit.
    const EXIT_CODE: i32 = 86;
    const HOLD_POLL: Duration = Duration::from_millis(10);

    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Moment {
        Before(u64),
        After(u64),
        Hold(u64, PathBuf),
    }

    /// Counts writes, and exits or blocks at the chosen one.
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
            match &self.at {
                Some(Moment::Before(at)) if *at == number => std::process::exit(EXIT_CODE),
                Some(Moment::Hold(at, file)) if *at == number => hold(file),
                _ => {}
            }
            number
        }

        pub(crate) fn after_write(&self, number: u64) {
            if self.at == Some(Moment::After(number)) {
                std::process::exit(EXIT_CODE);
            }
        }
    }

    /// Blocks the thread and with it the whole process, as if it had been stopped.
    fn hold(file: &Path) {
        if fs::write(file, []).is_ok() {
            while file.exists() {
                thread::sleep(HOLD_POLL);
            }
        }
    }

    fn parse(value: &str) -> Option<Moment> {
        let (when, rest) = value.split_once(':')?;
        match when {
            "before" => Some(Moment::Before(rest.parse().ok()?)),
            "after" => Some(Moment::After(rest.parse().ok()?)),
            "hold" => {
                let (number, file) = rest.split_once(':')?;
                Some(Moment::Hold(number.parse().ok()?, file.into()))
            }
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
            assert_eq!(parse("hold:2:/a:b"), Some(Moment::Hold(2, "/a:b".into())));
            for other in ["", "before", "before:", "after:x", "during:1", "hold:1", "hold:x:/a"] {
                assert_eq!(parse(other), None, "{other:?}");
            }
        }
    }
}
