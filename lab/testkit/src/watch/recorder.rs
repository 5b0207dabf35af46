//! Records every change of selected objects, in the order in which the API server made them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use kube::api::{Api, ListParams};
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::replica::{Replica, follow, without_managed_fields};
use super::wait::{self, Watched};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// The object existed when the recording began.
    Existed,
    Added,
    Modified,
    Deleted,
}

#[derive(Debug, Clone)]
pub struct Change {
    pub kind: ChangeKind,
    pub name: String,
    pub namespace: Option<String>,
    /// Distinguishes objects of the same name.
    pub uid: String,
    /// The resourceVersion after this change.
    pub resource_version: String,
    /// All writers of the object so far, as `manager operation [subresource]`, the latest first.
    pub written_by: Vec<String>,
    /// The object after the change (before it, when it was deleted), without managed fields.
    pub object: Value,
}

/// Records until it is dropped, on the async runtime that started it.
#[derive(Debug)]
pub struct Recorder<K> {
    api: Api<K>,
    selection: ListParams,
    shared: Arc<Mutex<Recording<K>>>,
    progress: watch::Receiver<()>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Recording<K> {
    changes: Vec<Change>,
    replica: Replica<K>,
    living: BTreeMap<String, K>,
    /// The objects that the list in progress has shown so far.
    listing: BTreeSet<String>,
    listed: bool,
    gap: bool,
}

impl<K: Watched<DynamicType = ()>> Recorder<K> {
    /// Starts to record the selected objects; returns when the existing ones have been listed, so that from here on
    /// nothing is missed.
    ///
    /// # Panics
    /// If the API server does not answer.
    pub async fn start(api: &Api<K>, selection: &ListParams) -> Self {
        let shared = Arc::new(Mutex::new(Recording::new()));
        let (tell_progress, progress) = watch::channel(());
        let task = tokio::spawn({
            let mut events = follow(api, selection);
            let shared = Arc::clone(&shared);
            async move {
                while let Some(event) = events.next().await {
                    // The watch recovers from errors by itself.
                    if let Ok(event) = event {
                        lock(&shared).take(event);
                        tell_progress.send_replace(());
                    }
                }
            }
        });
        let recorder = Self { api: api.clone(), selection: selection.clone(), shared, progress, task };
        let begun = wait::patience().until(recorder.reach(|recording| recording.listed)).await;
        assert!(begun.is_some(), "{}s cannot be recorded: the API server does not list them", K::kind(&()));
        recorder
    }

    /// All changes that had happened when this was called, and perhaps later ones.
    ///
    /// # Panics
    /// If the API server does not answer, or if changes may be missing because the watch had to relist, as it does when
    /// the API server restarts.
    pub async fn changes(&self) -> Vec<Change> {
        let changes = self.changes_despite_gaps().await;
        assert!(
            !lock(&self.shared).gap,
            "the watch had to list anew: changes may be missing from the record"
        );
        changes
    }

    /// Like `changes`, for a test that restarts the API server. Changes before a relist are recorded as one change per
    /// object, however many there were.
    ///
    /// # Panics
    /// If the API server does not answer.
    pub async fn changes_despite_gaps(&self) -> Vec<Change> {
        let end = self.api.list(&self.selection).await;
        let end = end.unwrap_or_else(|error| panic!("{}s cannot be listed: {error}", K::kind(&())));
        let caught_up = self.reach(|recording| recording.replica.has_caught_up_with(&end));
        let in_time = wait::patience().until(caught_up).await;
        let recording = lock(&self.shared);
        assert!(in_time.is_some(), "the recording does not keep up; so far: {:#?}", recording.changes);
        recording.changes.clone()
    }

    async fn reach(&self, mut condition: impl FnMut(&Recording<K>) -> bool) {
        let mut progress = self.progress.clone();
        loop {
            progress.mark_unchanged();
            if condition(&lock(&self.shared)) {
                return;
            }
            if progress.changed().await.is_err() {
                return;
            }
        }
    }
}

impl<K> Drop for Recorder<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<K: Watched<DynamicType = ()>> Recording<K> {
    fn new() -> Self {
        Self {
            changes: Vec::new(),
            replica: Replica::default(),
            living: BTreeMap::new(),
            listing: BTreeSet::new(),
            listed: false,
            gap: false,
        }
    }

    fn take(&mut self, event: Event<K>) {
        match &event {
            Event::Init => {
                self.gap = self.gap || self.listed;
                self.listing.clear();
            }
            Event::InitApply(object) => {
                self.listing.insert(uid(object));
                self.written(object);
            }
            Event::InitDone => {
                let gone = |uid: &String, _: &mut K| !self.listing.contains(uid);
                for (_, object) in self.living.extract_if(.., gone) {
                    self.changes.push(Change::new(ChangeKind::Deleted, &object));
                }
                self.listed = true;
            }
            Event::Apply(object) => self.written(object),
            Event::Delete(object) => {
                self.living.remove(&uid(object));
                self.changes.push(Change::new(ChangeKind::Deleted, object));
            }
        }
        self.replica.take(event);
    }

    fn written(&mut self, object: &K) {
        let kind = match self.living.insert(uid(object), object.clone()) {
            None if self.listed => ChangeKind::Added,
            None => ChangeKind::Existed,
            Some(former) if former.resource_version() == object.resource_version() => return,
            Some(_) => ChangeKind::Modified,
        };
        self.changes.push(Change::new(kind, object));
    }
}

impl Change {
    fn new<K: Watched<DynamicType = ()>>(kind: ChangeKind, object: &K) -> Self {
        let mut writers: Vec<_> = object.managed_fields().iter().collect();
        writers.sort_by_key(|writer| std::cmp::Reverse(writer.time.clone()));
        let written_by = writers
            .iter()
            .map(|writer| {
                let words = [&writer.manager, &writer.operation, &writer.subresource];
                words.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" ")
            })
            .collect();
        Self {
            kind,
            name: object.name_any(),
            namespace: object.namespace(),
            uid: uid(object),
            resource_version: object.resource_version().unwrap_or_default(),
            written_by,
            object: without_managed_fields(object),
        }
    }
}

fn uid<K: Resource>(object: &K) -> String {
    object.uid().unwrap_or_default()
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::ObjectMeta;

    use super::*;

    fn object(name: &str, version: u64) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                uid: Some(format!("uid of {name}")),
                resource_version: Some(version.to_string()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        }
    }

    fn list(objects: &[(&str, u64)]) -> Vec<Event<ConfigMap>> {
        let objects = objects.iter().map(|&(name, version)| Event::InitApply(object(name, version)));
        [Event::Init].into_iter().chain(objects).chain([Event::InitDone]).collect()
    }

    #[test]
    fn a_new_list_is_a_gap_and_its_differences_are_changes() {
        let mut recording = Recording::new();
        for event in list(&[("same", 1), ("changed", 2), ("gone", 3)]) {
            recording.take(event);
        }
        recording.take(Event::Apply(object("early", 4)));
        recording.take(Event::Delete(object("early", 5)));
        assert!(!recording.gap);
        for event in list(&[("same", 1), ("changed", 7), ("new", 8)]) {
            recording.take(event);
        }
        assert!(recording.gap);
        let seen: Vec<_> =
            recording.changes.iter().map(|change| (change.kind, change.name.as_str())).collect();
        assert_eq!(
            seen,
            [
                (ChangeKind::Existed, "same"),
                (ChangeKind::Existed, "changed"),
                (ChangeKind::Existed, "gone"),
                (ChangeKind::Added, "early"),
                (ChangeKind::Deleted, "early"),
                (ChangeKind::Modified, "changed"),
                (ChangeKind::Added, "new"),
                (ChangeKind::Deleted, "gone"),
            ]
        );
    }
}
