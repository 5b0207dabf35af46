//! AppWrappers: their phases, their resets, and the timeline entries about them.

use std::collections::HashSet;

use jiff::Timestamp;
use salvor_operator::watch::Change;
use salvor_recovery::appwrapper::Phase;

use super::{Entry, Gone, World, shown::Followed};
use crate::{objects::AppWrapper, timeline::Kind};

impl World {
    pub(crate) fn on_wrappers(&mut self, change: Change<AppWrapper>, now: Timestamp) {
        self.version += 1;
        match change {
            Change::Applied(wrapper) => self.put_wrapper(wrapper, now),
            Change::Gone(uid) => self.remove_wrapper(uid.as_str()),
            Change::Reset { all, .. } => {
                let present: HashSet<&str> = all.iter().map(|w| w.uid.as_str()).collect();
                let gone: Vec<_> =
                    self.wrappers.keys().filter(|u| !present.contains(u.as_str())).cloned().collect();
                for uid in gone {
                    self.remove_wrapper(&uid);
                }
                for wrapper in all {
                    self.put_wrapper(wrapper, now);
                }
            }
        }
    }

    /// The cluster no longer serves AppWrappers, or denies access to them.
    pub(crate) fn forget_wrappers(&mut self) {
        if self.wrappers.is_empty() {
            return;
        }
        self.version += 1;
        for uid in std::mem::take(&mut self.wrappers).into_keys() {
            self.forget(Gone::AppWrapper(uid));
        }
    }

    fn put_wrapper(&mut self, wrapper: AppWrapper, now: Timestamp) {
        let uid = wrapper.uid.clone();
        let mut followed = Followed { since: now, reset: None, wrapper };
        if let Some(Entry { value: known, .. }) = self.wrappers.get(&uid) {
            if known.wrapper == followed.wrapper {
                return;
            }
            followed.reset = known.reset;
            let AppWrapper { name, phase, unhealthy, .. } = &followed.wrapper;
            if let (None, Some(why)) = (&known.wrapper.unhealthy, unhealthy) {
                self.timeline.add(self.version, now, Kind::Unhealthy, why, name, None);
            }
            if known.wrapper.phase == *phase {
                followed.since = known.since;
            } else {
                match phase {
                    Phase::Resetting => followed.reset = Some(now),
                    Phase::Resuming => {}
                    Phase::Running => {
                        if let Some(began) = followed.reset.take() {
                            let away = Some(now.duration_since(began));
                            self.timeline.add(self.version, now, Kind::ResetOver, "", name, away);
                        }
                    }
                    Phase::Empty
                    | Phase::Suspended
                    | Phase::Suspending
                    | Phase::Succeeded
                    | Phase::Failed
                    | Phase::Terminating
                    | Phase::Unknown(_) => followed.reset = None,
                }
            }
        }
        self.wrappers.insert(uid, Entry { version: self.version, value: followed });
    }

    fn remove_wrapper(&mut self, uid: &str) {
        if self.wrappers.remove(uid).is_some() {
            self.forget(Gone::AppWrapper(uid.to_owned()));
        }
    }
}
