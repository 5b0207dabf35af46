//! The names that a Job's pods have used, as far as they are recorded, remembered or seen.

use super::memory::Memory;
use super::names::{Naming, UsedNames};
use super::views::{JobView, PodView};

/// The names known at one decision.
pub(super) struct Record<'a> {
    pub(super) naming: Naming<'a>,
    /// All names known to be used: recorded, remembered, or of an existing pod.
    pub(super) used: UsedNames,
    written: Option<UsedNames>,
}

impl<'a> Record<'a> {
    pub(super) fn of(
        job: &'a JobView,
        written: Option<UsedNames>,
        pods: &[PodView],
        memory: &Memory,
    ) -> Self {
        let naming = Naming::of(job);
        let mut used = written.clone().unwrap_or_else(|| UsedNames::by_status(job));
        used.merge(&memory.names);
        used.take_in(&naming, pods);
        Self { naming, used, written }
    }

    /// The annotation's new value, if it changes.
    pub(super) fn news(&self) -> Option<String> {
        let none = UsedNames::default();
        (self.written.as_ref().unwrap_or(&none) != &self.used).then(|| self.used.text())
    }

    /// True if the name of this pod stays known after the pod is gone.
    pub(super) fn is_written(&self, pod: &PodView) -> bool {
        let name = self.naming.read(&pod.pod.name).filter(|name| self.used.contains(*name));
        name.is_none_or(|name| self.written.as_ref().is_some_and(|written| written.contains(name)))
    }
}

/// Remembers a pod's name in case the pod disappears before the name is recorded.
pub(super) fn remember(memory: &mut Memory, job: &JobView, pod: &PodView) {
    memory.names.take_in(&Naming::of(job), std::slice::from_ref(pod));
}

/// Remembers the names that the annotation records, in case the annotation is removed.
pub fn remember_names(memory: &mut Memory, job: &JobView) {
    if let Some(written) = job.used_names.as_deref().and_then(|text| UsedNames::read(text).ok()) {
        memory.names.merge(&written);
    }
}
