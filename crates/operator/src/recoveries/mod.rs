//! One file per recovery: what it watches and which objects wake which subject. This list is all that knows them.

pub(crate) mod eviction;
pub(crate) mod job;
pub(crate) mod zombie;
