//! Stores values that many objects have in common only once.

use std::{
    borrow::Borrow,
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

/// Unused values are swept when the set has grown by this much and has doubled since the last sweep.
const SWEEP: usize = 64;

/// A set of shared values. A value stays as long as it is used, and a little longer.
#[derive(Debug)]
pub(crate) struct Interned<T: ?Sized>(Mutex<Known<T>>);

#[derive(Debug)]
struct Known<T: ?Sized> {
    values: BTreeSet<Arc<T>>,
    sweep_at: usize,
}

impl<T: ?Sized> Default for Interned<T> {
    fn default() -> Self {
        Self(Mutex::new(Known { values: BTreeSet::new(), sweep_at: SWEEP }))
    }
}

impl<T: Ord + ?Sized> Interned<T> {
    /// The value of the set that is equal to this one, which is added if there is none.
    pub(crate) fn one<V: Borrow<T> + Into<Arc<T>>>(&self, value: V) -> Arc<T> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted: &T = value.borrow();
        if let Some(one) = known.values.get(wanted) {
            return one.clone();
        }
        if known.values.len() >= known.sweep_at {
            known.values.retain(|value| Arc::strong_count(value) > 1);
            known.sweep_at = 2 * known.values.len() + SWEEP;
        }
        let one: Arc<T> = value.into();
        known.values.insert(one.clone());
        one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn len(texts: &Interned<str>) -> usize {
        texts.0.lock().unwrap().values.len()
    }

    #[test]
    fn equal_values_are_one_and_what_nobody_has_is_forgotten() {
        let texts = Interned::<str>::default();
        let first = texts.one("zone-1");
        assert!(Arc::ptr_eq(&first, &texts.one("zone-1")));
        assert_eq!((&*texts.one("zone-2"), len(&texts)), ("zone-2", 2));
        for number in 0..10_000 {
            texts.one(number.to_string().as_str());
        }
        assert!(len(&texts) <= 2 * SWEEP, "{}", len(&texts));
        assert!(Arc::ptr_eq(&first, &texts.one("zone-1")));
        let kept: Vec<Arc<str>> = (0..1_000).map(|number| texts.one(number.to_string().as_str())).collect();
        assert!((1_000..2_000).contains(&len(&texts)) && kept.len() == 1_000);
    }
}
