//! AppWrappers: their phases, their resets, and the timeline entries about them.

use std::collections::HashSet;

use jiff::Timestamp;
use salvor_operator::watch::Change;
use salvor_recovery::appwrapper::Phase;
use serde::Serialize;

use super::{Entry, Gone, World};
use crate::{objects::AppWrapper, timeline::Kind};

/// An AppWrapper, with the part of its history that is shown.
#[derive(Debug)]
pub(super) struct Followed {
    wrapper: AppWrapper,
    /// When it entered its phase, as far as the page saw it.
    since: Timestamp,
    /// When the unfinished reset began.
    reset: Option<Timestamp>,
}

impl World {
    pub(crate) fn hear_wrappers(&mut self, change: Change<AppWrapper>, now: Timestamp) {
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

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WrapperShown<'a> {
    uid: &'a str,
    namespace: &'a str,
    name: &'a str,
    /// As in the API. Empty if the controller has not reconciled it yet.
    phase: &'a Phase,
    since: i64,
    retries: i32,
    retry_limit: i32,
    resets: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_reset: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unhealthy: Option<&'a str>,
}

impl<'a> WrapperShown<'a> {
    pub(super) fn new(Followed { wrapper, since, .. }: &'a Followed) -> Self {
        let AppWrapper { uid, namespace, name, phase, retries, retry_limit, resets, last_reset, unhealthy } =
            wrapper;
        Self {
            uid,
            namespace,
            name,
            phase,
            since: since.as_millisecond(),
            retries: *retries,
            retry_limit: *retry_limit,
            resets: *resets,
            last_reset: last_reset.as_deref(),
            unhealthy: unhealthy.as_deref(),
        }
    }
}
