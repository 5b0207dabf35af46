//! The runtime of a simulation.

use tokio::runtime::Builder;

/// Runs a future, and all that it spawns, on one thread with a clock that stands still while anything is left to do.
///
/// There is no I/O in it: a socket would bring in a time that is not ours.
///
/// # Panics
/// If called within a tokio runtime, or if the system cannot give us a runtime at all.
pub fn in_virtual_time<F: Future>(future: F) -> F::Output {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O needs nothing from the system").block_on(future)
}
