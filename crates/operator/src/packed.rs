//! Large maps that fill up in order, as from a list.

use std::collections::{BTreeMap, BTreeSet};

/// The same map with full leaves: a map that was filled in the order of its keys has leaves that are half empty.
pub(crate) fn packed<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    *map = std::mem::take(map).into_iter().collect();
}

/// The same of a set.
pub(crate) fn packed_set<T: Ord>(set: &mut BTreeSet<T>) {
    *set = std::mem::take(set).into_iter().collect();
}
