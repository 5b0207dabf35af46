//! What must hold at every revision of a cluster, for tests and for the swarm.

pub mod appwrapper;
