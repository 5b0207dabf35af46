//! Derives a cluster from a seed.

use jiff::Timestamp;
use salvor_apiserver::Settings;
use salvor_cluster::Options;

/// The options of a cluster in which all randomness follows from one seed. It begins on 2026-01-01.
pub fn cluster(seed: u64) -> Options {
    let api = Settings { seed, start: Timestamp::constant(1_767_225_600, 0) };
    let mut options = Options { api, ..Options::default() };
    // The loops have their own random streams, so that one more node does not change every UID.
    options.loops.seed = seed.rotate_left(32) ^ 0x006c_6f6f_7073;
    options
}
