//! Pods grouped by the Job that owns or may adopt them, each group contiguous, so that a decision gets it as a slice.

use std::collections::BTreeMap;

use salvor_recovery::{
    ids::{ResourceVersion, Uid},
    job::{PodView, Stray},
};

pub(crate) trait Kept {
    fn uid(&self) -> &Uid;
    fn resource_version(&self) -> &ResourceVersion;
    fn is_tracked(&self) -> bool;
}

impl Kept for PodView {
    fn uid(&self) -> &Uid {
        &self.pod.uid
    }

    fn resource_version(&self) -> &ResourceVersion {
        &self.resource_version
    }

    fn is_tracked(&self) -> bool {
        self.tracking.is_some()
    }
}

impl Kept for Stray {
    fn uid(&self) -> &Uid {
        &self.pod.uid
    }

    fn resource_version(&self) -> &ResourceVersion {
        &self.resource_version
    }

    fn is_tracked(&self) -> bool {
        self.tracking.is_some()
    }
}

/// All objects of a group share its key.
#[derive(Debug)]
pub(crate) struct ByOwner<Home, T> {
    of: BTreeMap<Home, Vec<T>>,
    /// The position of each object, by UID.
    places: BTreeMap<Uid, (Home, usize)>,
}

impl<Home, T> Default for ByOwner<Home, T> {
    fn default() -> Self {
        Self { of: BTreeMap::new(), places: BTreeMap::new() }
    }
}

impl<Home: Ord + Clone, T: Kept> ByOwner<Home, T> {
    pub(crate) fn at(&self, home: &Home) -> &[T] {
        self.of.get(home).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn at_mut(&mut self, home: &Home) -> &mut [T] {
        self.of.get_mut(home).map_or(&mut [], Vec::as_mut_slice)
    }

    pub(crate) fn get(&self, uid: &Uid) -> Option<(&Home, &T)> {
        let (home, at) = self.places.get(uid)?;
        Some((home, self.at(home).get(*at)?))
    }

    /// Inserts an object, or replaces the one with the same UID in the same group.
    pub(crate) fn insert(&mut self, home: Home, thing: T) {
        if let Some((known, at)) = self.places.get(thing.uid())
            && *known == home
        {
            if let Some(place) = self.of.get_mut(known).and_then(|row| row.get_mut(*at)) {
                *place = thing;
            }
            return;
        }
        let home = self.of.get_key_value(&home).map_or(home, |(shared, _)| shared.clone());
        let row = self.of.entry(home.clone()).or_default();
        self.places.insert(thing.uid().clone(), (home, row.len()));
        row.push(thing);
    }

    pub(crate) fn remove(&mut self, uid: &Uid) -> Option<(Home, T)> {
        let (home, at) = self.places.remove(uid)?;
        let row = self.of.get_mut(&home)?;
        let thing = row.swap_remove(at);
        if let Some((_, moved)) = row.get(at).and_then(|moved| self.places.get_mut(moved.uid())) {
            *moved = at;
        }
        if row.is_empty() {
            self.of.remove(&home);
        }
        Some((home, thing))
    }

    pub(crate) fn homes(&self) -> impl Iterator<Item = &Home> {
        self.of.keys()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.of.values().flatten()
    }

    pub(crate) fn has_tracked(&self, home: &Home) -> bool {
        self.at(home).iter().any(Kept::is_tracked)
    }

    #[cfg(test)]
    pub(crate) fn uids(&self) -> Vec<&str> {
        self.places.keys().map(Uid::as_str).collect()
    }
}
