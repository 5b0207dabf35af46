//! Waiting for objects, recording them and copying them, all by watch.

pub mod mirror;
pub mod recorder;
pub(crate) mod replica;
pub mod wait;
