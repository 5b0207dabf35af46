//! The store: one revision counter for all resources, one map per resource, and a log of changes.

pub(crate) mod selection;
pub(crate) mod selectors;
pub(crate) mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use serde_json::json;

use crate::kinds::table::ResourceKey;
use crate::object::{self, Stored};

/// This many events of one resource are kept. A watch from an older revision must relist.
pub(crate) const REMEMBERED_EVENTS: usize = 10_000;

/// The values of this many last writes are kept beside their texts: watches and the next writes need them.
const FRESH: usize = 256;

/// A change of one object. The former state is kept, since both states determine whether a watcher sees ADDED, MODIFIED
/// or DELETED.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) revision: u64,
    pub(crate) key: Arc<str>,
    pub(crate) before: Option<Arc<Stored>>,
    /// The new state; for a removal the last state, at the revision of the removal.
    pub(crate) after: Arc<Stored>,
    pub(crate) removed: bool,
}

#[derive(Debug, Clone, Default)]
struct Shelf {
    objects: BTreeMap<Arc<str>, Arc<Stored>>,
    log: VecDeque<Event>,
    /// Events at or before this revision are dropped.
    forgotten: u64,
}

/// The log does not reach back to that revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compacted {
    pub(crate) oldest: u64,
}

/// All objects, and their recent history.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    revision: u64,
    shelves: BTreeMap<ResourceKey, Shelf>,
    remembered: usize,
    /// The resources that were written since their watchers were last woken.
    changed: BTreeSet<ResourceKey>,
    /// The last writes, oldest first.
    fresh: VecDeque<Arc<Stored>>,
}

/// `namespace/name`, which sorts like the keys in etcd; just the name for cluster-scoped objects.
pub(crate) fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

impl Store {
    pub(crate) fn new() -> Self {
        Self {
            revision: 1,
            shelves: BTreeMap::new(),
            remembered: REMEMBERED_EVENTS,
            changed: BTreeSet::new(),
            fresh: VecDeque::new(),
        }
    }

    /// The resources that were written since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<ResourceKey> {
        std::mem::take(&mut self.changed)
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn get(&self, resource: &ResourceKey, key: &str) -> Option<&Arc<Stored>> {
        self.shelves.get(resource)?.objects.get(key)
    }

    /// The objects whose key begins with `prefix`, in the order of keys.
    pub(crate) fn scan<'s>(
        &'s self,
        resource: &ResourceKey,
        prefix: &'s str,
    ) -> impl Iterator<Item = (&'s Arc<str>, &'s Arc<Stored>)> {
        self.shelves.get(resource).into_iter().flat_map(move |shelf| {
            let from = (Bound::Included(prefix), Bound::Unbounded);
            shelf.objects.range::<str, _>(from).take_while(move |(key, _)| key.starts_with(prefix))
        })
    }

    /// The objects at a revision that the log still covers.
    pub(crate) fn snapshot(
        &self,
        resource: &ResourceKey,
        prefix: &str,
        revision: u64,
    ) -> Result<BTreeMap<Arc<str>, Arc<Stored>>, Compacted> {
        let mut objects: BTreeMap<Arc<str>, Arc<Stored>> =
            self.scan(resource, prefix).map(|(key, stored)| (Arc::clone(key), Arc::clone(stored))).collect();
        let Some(shelf) = self.shelves.get(resource) else {
            return Ok(objects);
        };
        if revision < shelf.forgotten {
            return Err(Compacted { oldest: shelf.forgotten });
        }
        for event in shelf.log.iter().rev().take_while(|event| event.revision > revision) {
            if !event.key.starts_with(prefix) {
                continue;
            }
            match &event.before {
                Some(before) => objects.insert(Arc::clone(&event.key), Arc::clone(before)),
                None => objects.remove(&event.key),
            };
        }
        Ok(objects)
    }

    /// Events after a revision, oldest first.
    pub(crate) fn events_after(
        &self,
        resource: &ResourceKey,
        revision: u64,
    ) -> Result<impl Iterator<Item = &Event>, Compacted> {
        let shelf = self.shelves.get(resource);
        if let Some(shelf) = shelf
            && revision < shelf.forgotten
        {
            return Err(Compacted { oldest: shelf.forgotten });
        }
        Ok(shelf.into_iter().flat_map(move |shelf| {
            let first = shelf.log.partition_point(|event| event.revision <= revision);
            shelf.log.range(first..)
        }))
    }

    /// Stores an object under a new revision, which becomes its resourceVersion.
    pub(crate) fn put(
        &mut self,
        resource: &ResourceKey,
        key: String,
        mut value: serde_json::Value,
    ) -> Arc<Stored> {
        self.revision += 1;
        object::set_metadata(&mut value, "resourceVersion", json!(self.revision.to_string()));
        let after = Stored::new(value);
        self.note(resource, &after);
        let shelf = self.shelves.entry(resource.clone()).or_default();
        let (key, before) = match shelf.objects.get_key_value(key.as_str()) {
            Some((key, _)) => {
                let key = Arc::clone(key);
                let before = shelf.objects.insert(Arc::clone(&key), Arc::clone(&after));
                (key, before)
            }
            None => {
                let key: Arc<str> = key.into();
                shelf.objects.insert(Arc::clone(&key), Arc::clone(&after));
                (key, None)
            }
        };
        let event = Event { revision: self.revision, key, before, after: Arc::clone(&after), removed: false };
        shelf.remember(event, self.remembered);
        after
    }

    /// Removes an object. Watchers see, and the caller gets, its last state at the revision of the removal.
    pub(crate) fn remove(&mut self, resource: &ResourceKey, key: &str) -> Option<Arc<Stored>> {
        let shelf = self.shelves.get_mut(resource)?;
        let (key, before) = shelf.objects.remove_entry(key)?;
        self.revision += 1;
        let mut last = Arc::unwrap_or_clone(before.value());
        object::set_metadata(&mut last, "resourceVersion", json!(self.revision.to_string()));
        let after = Stored::new(last);
        let event = Event {
            revision: self.revision,
            key,
            before: Some(before),
            after: Arc::clone(&after),
            removed: true,
        };
        shelf.remember(event, self.remembered);
        self.note(resource, &after);
        Some(after)
    }

    /// Marks a resource as changed, and keeps the written value for its watchers.
    fn note(&mut self, resource: &ResourceKey, written: &Arc<Stored>) {
        if !self.changed.contains(resource) {
            self.changed.insert(resource.clone());
        }
        self.fresh.push_back(Arc::clone(written));
        if self.fresh.len() > FRESH
            && let Some(oldest) = self.fresh.pop_front()
        {
            oldest.forget();
        }
    }

    /// Drops all events up to now, as a compaction of etcd does.
    pub(crate) fn compact(&mut self) {
        for (resource, shelf) in &mut self.shelves {
            shelf.log.clear();
            shelf.forgotten = self.revision;
            self.changed.insert(resource.clone());
        }
    }
}

impl Shelf {
    fn remember(&mut self, event: Event, limit: usize) {
        self.log.push_back(event);
        while self.log.len() > limit {
            if let Some(oldest) = self.log.pop_front() {
                self.forgotten = oldest.revision;
            }
        }
    }
}
