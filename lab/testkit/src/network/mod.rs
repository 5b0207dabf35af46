//! Loopback ports, and faults between a client and the API server.

pub(crate) mod faulty;
pub(crate) mod ports;
pub mod proxy;
