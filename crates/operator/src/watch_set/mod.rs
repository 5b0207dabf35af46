//! What is watched: the feeds that recoveries declare (`feeds.rs`), each a list and a watch of one resource
//! (`watch.rs`); the one watch of nodes for all of them (`nodes.rs`); and Leases, which are read and not watched
//! (`leases.rs`). `interned.rs` and `packed.rs` keep stores small.

pub(crate) mod feeds;
pub(crate) mod interned;
pub(crate) mod leases;
pub(crate) mod nodes;
pub(crate) mod packed;
pub mod watch;
