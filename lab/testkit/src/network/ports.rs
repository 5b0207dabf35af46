//! Loopback ports for servers that the tests start.

use std::net::{Ipv4Addr, TcpListener};

/// Below every usual range of ephemeral ports. A port inside that range would be unsafe for a server that is killed and
/// restarted: a client that keeps dialling it while it is down can get that very port as its source port, and then it
/// is taken, or even connected to itself.
const CHOICE: std::ops::Range<u64> = 15_000..32_000;

/// A port on which nothing listens now. Another process may still take it first, so the caller must be able to retry.
pub fn free() -> u16 {
    loop {
        let span = CHOICE.end - CHOICE.start;
        let port =
            u16::try_from(CHOICE.start + crate::random::number() % span).expect("the range is one of ports");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
