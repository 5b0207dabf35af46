//! The tasks of an operator. A simulation can stop all of them at once, as SIGSTOP or a suspended machine stops a
//! process: none of them runs, while time goes on.

use std::{
    future::poll_fn,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use tokio::task::JoinHandle;

tokio::task_local! {
    static SLEEP: Sleep;
}

/// Stops all tasks of an operator that was started within [`over`](Self::over). Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Sleep(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    asleep: bool,
    /// Tasks that were woken meanwhile.
    waiting: Vec<Waker>,
}

impl Sleep {
    /// Starts an operator whose tasks this controls.
    pub fn over<T>(&self, start: impl FnOnce() -> T) -> T {
        SLEEP.sync_scope(self.clone(), start)
    }

    /// Stops all tasks.
    pub fn begin(&self) {
        self.state().asleep = true;
    }

    /// Continues all tasks where they stopped.
    pub fn end(&self) {
        let waiting = {
            let mut state = self.state();
            state.asleep = false;
            mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// True if the calling task may not run; it is woken when it may.
    fn holds(&self, waker: &Waker) -> bool {
        let mut state = self.state();
        if state.asleep && !state.waiting.iter().any(|it| it.will_wake(waker)) {
            state.waiting.push(waker.clone());
        }
        state.asleep
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Spawns a task that belongs to the operator of the current task.
pub(crate) fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(of_this_operator(future))
}

/// A future that stops whenever the operator of the current task does.
pub(crate) fn of_this_operator<F>(future: F) -> impl Future<Output = F::Output> + Send + 'static
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let sleep = SLEEP.try_with(Clone::clone).ok();
    async move {
        let Some(sleep) = sleep else { return future.await };
        let mut future = Box::pin(SLEEP.scope(sleep.clone(), future));
        poll_fn(
            move |context| {
                if sleep.holds(context.waker()) { Poll::Pending } else { future.as_mut().poll(context) }
            },
        )
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        time::Duration,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nothing_runs_during_a_sleep_and_all_goes_on_after_it() {
        let (sleep, beats) = (Sleep::default(), Arc::new(AtomicU32::new(0)));
        let beat = |beats: Arc<AtomicU32>| async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                beats.fetch_add(1, Ordering::Relaxed);
            }
        };
        let (own, of_its_own) = (beats.clone(), beats.clone());
        sleep.over(|| {
            spawn(async move {
                // A task of a task stops as well.
                spawn(beat(of_its_own));
                beat(own).await;
            })
        });
        tokio::time::sleep(Duration::from_millis(3500)).await;
        assert_eq!(beats.load(Ordering::Relaxed), 6);
        sleep.begin();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(beats.load(Ordering::Relaxed), 6);
        sleep.end();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(beats.load(Ordering::Relaxed), 10);
    }
}
