//! Compacts large maps and sets that were filled in order, as from a list.

use std::collections::{BTreeMap, BTreeSet};

/// Rebuilds the map with full leaves: inserting in key order leaves them half empty.
pub(crate) fn packed<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    *map = std::mem::take(map).into_iter().collect();
}

pub(crate) fn packed_set<T: Ord>(set: &mut BTreeSet<T>) {
    *set = std::mem::take(set).into_iter().collect();
}
