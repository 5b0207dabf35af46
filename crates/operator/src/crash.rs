//! A hook for tests: the process ends, without any cleanup, right before or after its n-th write, or stands still before it.
//! Only builds with debug assertions have it: in a release an environment variable must not be able to stop the process.
//!
//! `SALVOR_TEST_CRASH=before:3` or `after:3`. What is left behind must be what a new process goes on from.
//! `SALVOR_TEST_CRASH=hold:3:FILE` makes the file, and goes on once it is gone: the world changes between a judgement and its
//! write.

#[cfg(debug_assertions)]
pub(crate) use hook::CrashPoint;

/// Nothing ends or holds a release.
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
    /// Tells a crash on purpose from any other end.
    const EXIT_CODE: i32 = 86;
    /// The file is checked this often.
    const HOLD_POLL: Duration = Duration::from_millis(10);

    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Moment {
        Before(u64),
        After(u64),
        Hold(u64, PathBuf),
    }

    /// Counts writes, and ends or holds the process at the chosen one.
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

    /// Blocks the thread, and with it all else that the process does: as if it had been stopped.
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
