//! Live reads that are shared for a moment: a storm of pods on one node reads the node about once a second, not once
//! per pod, and does not stall while one of them reads again.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use salvor_recovery::ids::NodeName;
use tokio::time::Instant;

/// A live read is valid for this long from when it was sent: later the node may be Ready again.
pub(crate) const READ_VALID_FOR: Duration = Duration::from_secs(1);
/// From this age on, one caller reads again while the others use the known result: under load a read takes a tenth of a
/// second, and all would wait for it.
pub(crate) const READ_AGAIN_AFTER: Duration = Duration::from_millis(800);

/// One second look: how old its reads are, and how old they may be.
#[derive(Debug)]
pub(crate) struct ReadAge {
    /// Reads that were sent before this instant are not used.
    from: Instant,
    /// When the oldest read was sent.
    taken: Instant,
}

impl Default for ReadAge {
    /// A look that begins now, and may share every valid read.
    fn default() -> Self {
        Self::with_time_for(Duration::ZERO)
    }
}

impl ReadAge {
    /// A look that begins now. It may share reads that stay valid for at least the duration `write`.
    pub(crate) fn with_time_for(write: Duration) -> Self {
        let taken = Instant::now();
        let from = taken.checked_sub(READ_VALID_FOR.saturating_sub(write)).unwrap_or(taken);
        Self { from, taken }
    }

    /// When the oldest read was sent.
    pub(crate) fn taken(&self) -> Instant {
        self.taken
    }

    /// Records that it uses a read sent at this time.
    fn rests_on(&mut self, taken: Instant) {
        self.taken = self.taken.min(taken);
    }
}

/// The last live read of each node by name, or of each object of another kind. Clones share it.
#[derive(Debug)]
pub(crate) struct RecentReads<T, K = NodeName>(Arc<Mutex<BTreeMap<K, Arc<Look<T>>>>>);

/// A live read, and the right to read again.
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
    /// The last live read, if it is recent enough for this look, which then depends on it.
    fn within(&self, age: Duration, sight: &mut ReadAge) -> Option<Option<T>> {
        let seen = self.seen();
        let (taken, seen) =
            seen.as_ref().filter(|(taken, _)| taken.elapsed() < age && *taken >= sight.from)?;
        sight.rests_on(*taken);
        Some(seen.clone())
    }

    fn counts(&self) -> bool {
        self.seen().as_ref().is_some_and(|(taken, _)| taken.elapsed() < READ_VALID_FOR)
    }

    fn seen(&self) -> MutexGuard<'_, Option<(Instant, Option<T>)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T, K> Default for RecentReads<T, K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T, K> Clone for RecentReads<T, K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Clone, K: Clone + Ord> RecentReads<T, K> {
    /// The live object, read now or within the last moment.
    pub(crate) async fn at(
        &self,
        name: &K,
        sight: &mut ReadAge,
        read: impl Future<Output = kube::Result<Option<T>>>,
    ) -> kube::Result<Option<T>> {
        let look = self.looks().entry(name.clone()).or_default().clone();
        if let Some(seen) = look.within(READ_AGAIN_AFTER, sight) {
            return Ok(seen);
        }
        let turn = match look.turn.try_lock() {
            Ok(turn) => turn,
            Err(_) => match look.within(READ_VALID_FOR, sight) {
                Some(seen) => return Ok(seen),
                // Too old for all: a second caller waits for the first one's answer, however long that took.
                None => {
                    let turn = look.turn.lock().await;
                    if let Some(seen) = look.within(READ_VALID_FOR, sight) {
                        return Ok(seen);
                    }
                    turn
                }
            },
        };
        if let Some(seen) = look.within(READ_AGAIN_AFTER, sight) {
            return Ok(seen);
        }
        let taken = Instant::now();
        let seen = read.await?;
        *look.seen() = Some((taken, seen.clone()));
        drop(turn);
        self.forget_old();
        Ok(seen)
    }

    /// Our own write has changed the object, so the next caller reads it again.
    pub(crate) fn forget(&self, name: &K) {
        self.looks().remove(name);
    }

    fn forget_old(&self) {
        let is_used = |look: &Arc<Look<T>>| look.counts() || look.turn.try_lock().is_err();
        self.looks().retain(|_, look| is_used(look));
    }

    fn looks(&self) -> MutexGuard<'_, BTreeMap<K, Arc<Look<T>>>> {
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

    /// Many callers: how long each of them waited, and the result.
    async fn ask(looks: &RecentReads<u32>, reads: &AtomicU32, askers: usize) -> Vec<(Duration, Option<u32>)> {
        let asked = join_all((0..askers).map(|_| one(looks, reads, Duration::ZERO, READ_TAKES))).await;
        asked.into_iter().map(|(waited, _, seen)| (waited, seen)).collect()
    }

    /// One caller: how long it waited, how old the result is, and the result.
    async fn one(
        looks: &RecentReads<u32>,
        reads: &AtomicU32,
        write: Duration,
        takes: Duration,
    ) -> (Duration, Duration, Option<u32>) {
        let began = Instant::now();
        let read = async {
            sleep(takes).await;
            Ok(Some(reads.fetch_add(1, Ordering::SeqCst) + 1))
        };
        let mut sight = ReadAge::with_time_for(write);
        let seen = looks.at(&"node".into(), &mut sight, read).await.unwrap();
        (began.elapsed(), sight.taken().elapsed(), seen)
    }

    #[tokio::test(start_paused = true)]
    async fn a_storm_waits_for_the_first_look_and_for_no_other() {
        let (looks, reads) = (RecentReads::default(), AtomicU32::new(0));
        assert!(ask(&looks, &reads, 32).await.iter().all(|asked| *asked == (READ_TAKES, Some(1))));
        for look in 2..10 {
            sleep(READ_AGAIN_AFTER).await;
            let mut asked = ask(&looks, &reads, 32).await;
            asked.sort();
            assert_eq!(asked.pop(), Some((READ_TAKES, Some(look))), "one looks again");
            assert!(asked.iter().all(|asked| *asked == (Duration::ZERO, Some(look - 1))), "{asked:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_older_than_a_second_is_told_to_nobody() {
        let (looks, reads) = (RecentReads::default(), AtomicU32::new(0));
        ask(&looks, &reads, 1).await;
        // The age counts from when the read was sent, not from its answer.
        sleep(READ_VALID_FOR - READ_TAKES).await;
        let asked = ask(&looks, &reads, 3).await;
        assert_eq!(asked, [(READ_TAKES, Some(2)); 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn everybody_knows_how_old_a_look_is_from_when_it_was_sent() {
        let (looks, reads) = (RecentReads::default(), AtomicU32::new(0));
        ask(&looks, &reads, 1).await;
        sleep(Duration::from_millis(500)).await;
        let (_, age, seen) = one(&looks, &reads, Duration::ZERO, READ_TAKES).await;
        assert_eq!((age, seen), (READ_TAKES + Duration::from_millis(500), Some(1)));
        // A caller that needs more time for its write has to read again.
        let (_, age, seen) = one(&looks, &reads, Duration::from_millis(500), READ_TAKES).await;
        assert_eq!((age, seen), (READ_TAKES, Some(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_servers_answer_serves_all_who_waited_for_it() {
        let (looks, reads) = (RecentReads::default(), AtomicU32::new(0));
        let takes = Duration::from_millis(900);
        let asked = join_all((0..5).map(|_| one(&looks, &reads, Duration::ZERO, takes))).await;
        assert_eq!(asked, [(takes, takes, Some(1)); 5]);
    }
}
