//! Shows the progress of a simulation on a terminal, and handles Ctrl-C.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use salvor_simulate::Threads;

use crate::run::listen_for_signals;

/// The shortest time between two updates of the bar.
const PERIOD: Duration = Duration::from_millis(200);
const WIDTH: u64 = 30;

/// A progress bar on standard error, if that is a terminal and there is more than one run.
pub(super) struct Progress {
    total: u64,
    done: u64,
    began: Instant,
    drawn: Option<Instant>,
    is_shown: bool,
}

impl Progress {
    pub(super) fn new(total: u64) -> Self {
        let is_shown = total > 1 && io::stderr().is_terminal();
        Self { total, done: 0, began: Instant::now(), drawn: None, is_shown }
    }

    pub(super) fn step(&mut self) {
        self.done += 1;
        let is_due = self.drawn.is_none_or(|drawn| drawn.elapsed() >= PERIOD);
        if self.is_shown && (is_due || self.done == self.total) {
            self.drawn = Some(Instant::now());
            // Errors of the terminal do not matter.
            let _ =
                write!(io::stderr().lock(), "\r\x1b[2K{}", bar(self.done, self.total, self.began.elapsed()));
        }
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        if self.is_shown {
            let _ = write!(io::stderr().lock(), "\r\x1b[2K");
        }
    }
}

fn bar(done: u64, total: u64, passed: Duration) -> String {
    let full = done.saturating_mul(WIDTH) / total.max(1);
    let (full, empty) = (usize::try_from(full).unwrap_or(0), usize::try_from(WIDTH - full).unwrap_or(0));
    let left = passed.as_secs().saturating_mul(total - done) / done.max(1);
    format!("[{}{}] {done} of {total}, about {} left", "#".repeat(full), ".".repeat(empty), span(left))
}

fn span(seconds: u64) -> String {
    if seconds < 60 { format!("{seconds} s") } else { format!("{} min {} s", seconds / 60, seconds % 60) }
}

/// The first Ctrl-C lets the current runs finish and reports them. The second ends the process. Listens until the guard
/// is dropped.
pub(super) fn stop_on_signal(threads: &Arc<Threads>) -> Option<tokio_util::sync::DropGuard> {
    let (threads, over) = (threads.clone(), tokio_util::sync::CancellationToken::new());
    let guard = over.clone().drop_guard();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    thread::spawn(move || {
        runtime.block_on(async {
            let Ok(mut signals) = listen_for_signals() else { return };
            let mut asked = false;
            loop {
                let signal = tokio::select! {
                    signal = signals.recv() => signal,
                    () = over.cancelled() => return,
                };
                let Some(signal) = signal else { return };
                if asked {
                    std::process::exit(i32::from(signal.exit_code()));
                }
                asked = true;
                threads.stop();
                let _ = writeln!(
                    io::stderr().lock(),
                    "\nsalvor: stopping after the seeds that are being played; once more to end at once"
                );
            }
        });
    });
    Some(guard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_says_how_much_is_left() {
        let text = bar(250, 1000, Duration::from_secs(30));
        assert_eq!(text, "[#######.......................] 250 of 1000, about 1 min 30 s left");
        assert_eq!(bar(4, 4, Duration::from_secs(9)), format!("[{}] 4 of 4, about 0 s left", "#".repeat(30)));
    }
}
