//! The runtime of a simulation.

use tokio::runtime::Builder;

/// Runs a future, and all that it spawns, on one thread with a clock that stands still while any task can make
/// progress.
///
/// It has no I/O: a socket would depend on real time.
///
/// # Panics
/// If called within a tokio runtime, or if the system cannot create a runtime.
pub fn in_virtual_time<F: Future>(future: F) -> F::Output {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O needs nothing from the system").block_on(future)
}
