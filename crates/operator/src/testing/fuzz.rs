//! Configures property tests: the same cases every time, or random ones if `PROPTEST_CASES` is set.

use proptest::test_runner::{Config, RngSeed};

pub(crate) fn cases(cases: u32) -> Config {
    if std::env::var_os("PROPTEST_CASES").is_some() {
        return Config { failure_persistence: None, ..Config::default() };
    }
    Config { cases, rng_seed: RngSeed::Fixed(6757), failure_persistence: None, ..Config::default() }
}
