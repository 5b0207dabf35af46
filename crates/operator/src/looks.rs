//! Live looks, shared for a moment: a storm of pods on one node asks about it about once a second, not once each, and
//! does not stop while somebody looks again.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How long a live look holds.
const LOOK_HOLDS: Duration = Duration::from_secs(1);
/// From this age on, one of those who ask looks again, while the others go on with what is known: under load a look takes
/// a tenth of a second, and all would wait for it.
const LOOK_AGAIN: Duration = Duration::from_millis(800);

/// What was last seen of each object by name. Clones share it.
#[derive(Debug)]
pub(crate) struct Looks<T>(Arc<Mutex<BTreeMap<String, Arc<Look<T>>>>>);

/// What was seen, and who may look.
#[derive(Debug)]
struct Look<T> {
    seen: Mutex<Option<(Instant, Option<T>)>>,
    turn: tokio::sync::Mutex<()>,
}

impl<T> Default for Look<T> {
    fn default() -> Self {
        Self { seen: Mutex::new(None), turn: tokio::sync::Mutex::default() }
    }
}

impl<T: Clone> Look<T> {
    /// What was seen, if that is no older.
    fn within(&self, age: Duration) -> Option<Option<T>> {
        let seen = self.seen();
        seen.as_ref().filter(|(taken, _)| taken.elapsed() < age).map(|(_, seen)| seen.clone())
    }

    fn seen(&self) -> MutexGuard<'_, Option<(Instant, Option<T>)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Default for Looks<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Looks<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Clone> Looks<T> {
    /// What is there now, or was within the last moment.
    pub(crate) async fn at(
        &self,
        name: &str,
        read: impl Future<Output = kube::Result<Option<T>>>,
    ) -> kube::Result<Option<T>> {
        let look = self.looks().entry(name.to_owned()).or_default().clone();
        if let Some(seen) = look.within(LOOK_AGAIN) {
            return Ok(seen);
        }
        let turn = match (look.turn.try_lock(), look.within(LOOK_HOLDS)) {
            (Ok(turn), _) => turn,
            (Err(_), Some(seen)) => return Ok(seen),
            // Too old for all: whoever comes second waits for the first one's answer.
            (Err(_), None) => look.turn.lock().await,
        };
        if let Some(seen) = look.within(LOOK_AGAIN) {
            return Ok(seen);
        }
        let taken = Instant::now();
        let seen = read.await?;
        *look.seen() = Some((taken, seen.clone()));
        drop(turn);
        self.forget_old();
        Ok(seen)
    }

    fn forget_old(&self) {
        let is_used =
            |look: &Arc<Look<T>>| look.within(LOOK_HOLDS).is_some() || look.turn.try_lock().is_err();
        self.looks().retain(|_, look| is_used(look));
    }

    fn looks(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Look<T>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::future::join_all;
    use tokio::time::sleep;

    use super::*;

    const READ_TAKES: Duration = Duration::from_millis(100);

    /// Many who ask; how many reads that takes, and how long each of them waited.
    async fn ask(looks: &Looks<u32>, reads: &AtomicU32, askers: usize) -> Vec<(Duration, Option<u32>)> {
        let one = || async {
            let began = Instant::now();
            let read = async {
                sleep(READ_TAKES).await;
                Ok(Some(reads.fetch_add(1, Ordering::SeqCst) + 1))
            };
            let seen = looks.at("node", read).await.unwrap();
            (began.elapsed(), seen)
        };
        join_all((0..askers).map(|_| one())).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_storm_waits_for_the_first_look_and_for_no_other() {
        let (looks, reads) = (Looks::default(), AtomicU32::new(0));
        assert!(ask(&looks, &reads, 32).await.iter().all(|asked| *asked == (READ_TAKES, Some(1))));
        for look in 2..10 {
            sleep(LOOK_AGAIN).await;
            let mut asked = ask(&looks, &reads, 32).await;
            asked.sort();
            assert_eq!(asked.pop(), Some((READ_TAKES, Some(look))), "one looks again");
            assert!(asked.iter().all(|asked| *asked == (Duration::ZERO, Some(look - 1))), "{asked:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_older_than_a_second_is_told_to_nobody() {
        let (looks, reads) = (Looks::default(), AtomicU32::new(0));
        ask(&looks, &reads, 1).await;
        // The look was taken when it was asked for, not when it was answered.
        sleep(LOOK_HOLDS - READ_TAKES).await;
        let asked = ask(&looks, &reads, 3).await;
        assert_eq!(asked, [(READ_TAKES, Some(2)); 3]);
    }
}
