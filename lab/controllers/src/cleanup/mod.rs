//! The controllers that delete what is no longer needed.

pub(crate) mod emptying;
pub(crate) mod garbage;
pub(crate) mod namespace;
pub(crate) mod pod_gc;
pub(crate) mod ttl;
