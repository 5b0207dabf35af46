//! The garbage collector: deletes objects that have lost all their owners, and releases owners whose dependents are
//! gone.
//!
//! It sees all objects of all kinds, but keeps only those that have owners, and those that wait for dependents. Each
//! change determines which objects are reconciled; most changes concern none.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use salvor_apiserver::propagation::{FOREGROUND, ORPHAN, Propagation};
use serde::Serialize;
use serde_json::{Value, json};

use crate::calls::{Call, Sighting};
use crate::driver::{Control, Errand, Plan, Queue};
use crate::world::collection::{Collection, Kind};
use crate::world::views::{Meta, Owner, key};
use crate::world::{Change, Delta, HasMeta, World};

/// The garbage collector. It identifies objects by their UIDs.
#[derive(Debug, Default)]
pub(crate) struct GarbageCollector {
    queue: Queue,
    spots: BTreeMap<String, Spot>,
    /// Dependents by owner UID.
    dependents: BTreeMap<String, BTreeSet<String>>,
    /// Owners that were seen to be removed while they had dependents. A UID never comes back.
    gone: BTreeSet<String>,
    /// The served kinds have changed: all objects are reconciled again.
    all: bool,
}

/// The location of an object that has owners, or that waits for its dependents.
#[derive(Debug)]
struct Spot {
    collection: Collection,
    key: String,
    owners: Vec<String>,
}

/// The state of an owner reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// The owner exists and is not being deleted.
    Solid,
    /// The owner is being deleted in the foreground, after the dependents that block it.
    Waiting,
    /// The owner does not exist under this name and UID.
    Missing,
}

impl Control for GarbageCollector {
    fn follows(&self) -> &'static [Kind] {
        &Kind::WATCHED
    }

    fn follows_everything(&self) -> bool {
        true
    }

    fn observe(&mut self, change: &Change) {
        let known = Collection::Known;
        match change {
            Change::Pod(delta) => self.see(known(Kind::Pod), delta),
            Change::Node(delta) => self.see(known(Kind::Node), delta),
            Change::Lease(delta) => self.see(known(Kind::Lease), delta),
            Change::Claim(delta) => self.see(known(Kind::Claim), delta),
            Change::Volume(delta) => self.see(known(Kind::Volume), delta),
            Change::StorageClass(delta) => self.see(known(Kind::StorageClass), delta),
            Change::Attachment(delta) => self.see(known(Kind::Attachment), delta),
            Change::Workload(kind, delta) => self.see(known(*kind), delta),
            Change::Namespace(delta) => self.see(known(Kind::Namespace), delta),
            Change::Other(resource, delta) => self.see(Collection::Other(resource.clone()), delta),
            Change::Served => self.all = true,
        }
    }

    fn again(&mut self, subject: &str) {
        self.queue.add(subject);
    }

    fn decide(&mut self, world: &World, now: Timestamp) -> Plan {
        // Most changes end here. As long as not all dependents are known, no owner may be released.
        if (self.queue.is_empty() && !self.all) || !world.is_complete() {
            return Plan::default();
        }
        if std::mem::take(&mut self.all) {
            self.forget_the_vanished(world);
            self.spots.keys().for_each(|uid| self.queue.add(uid));
        }
        let due = self.queue.take(now);
        let errands = due.into_iter().filter_map(|uid| {
            let calls = self.judge(&uid, world)?;
            Some(Errand::new(uid, calls))
        });
        Plan { errands: errands.collect(), wake: None }
    }
}

fn waits(object: &Meta) -> bool {
    object.is_terminating() && (object.has_finalizer(ORPHAN) || object.has_finalizer(FOREGROUND))
}

fn waits_in_foreground(object: &Meta) -> bool {
    object.is_terminating() && object.has_finalizer(FOREGROUND)
}

fn blocks(reference: &Owner) -> bool {
    reference.block_owner_deletion == Some(true)
}

impl GarbageCollector {
    /// Records a change, and queues the objects that it affects.
    fn see<V: HasMeta>(&mut self, collection: Collection, delta: &Delta<V>) {
        let (old, new) = (delta.old.as_ref().map(|old| old.meta()), delta.new.as_ref().map(|new| new.meta()));
        if let (Some(old), Some(new)) = (old, new)
            && old.owner_references == new.owner_references
            && old.finalizers == new.finalizers
            && old.is_terminating() == new.is_terminating()
        {
            return;
        }
        let Some(object) = new.or(old) else { return };
        let uid = object.uid.as_str();
        let owners: Vec<String> =
            new.into_iter().flat_map(|new| &new.owner_references).map(|owner| owner.uid.clone()).collect();
        let is_kept = new.is_some_and(|new| !owners.is_empty() || waits(new));
        if !is_kept && !self.spots.contains_key(uid) && !self.dependents.contains_key(uid) {
            return;
        }
        let before = self.spots.remove(uid).map(|spot| spot.owners).unwrap_or_default();
        self.index(uid, &before, &owners);
        // An owner may wait for exactly this.
        for owner in before.iter().chain(&owners) {
            self.queue.add(owner);
        }
        if new.is_none() && self.dependents.contains_key(uid) {
            self.gone.insert(uid.to_owned());
        }
        if new.is_none_or(waits) {
            for dependent in self.dependents.get(uid).into_iter().flatten() {
                self.queue.add(dependent);
            }
        }
        if is_kept {
            self.spots.insert(uid.to_owned(), Spot { collection, key: object.key(), owners });
            self.queue.add(uid);
        }
    }

    fn index(&mut self, uid: &str, before: &[String], after: &[String]) {
        for owner in before.iter().filter(|owner| !after.contains(owner)) {
            if let Some(dependents) = self.dependents.get_mut(owner) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.dependents.remove(owner);
                    self.gone.remove(owner);
                }
            }
        }
        for owner in after {
            self.dependents.entry(owner.clone()).or_default().insert(uid.to_owned());
        }
    }

    /// Drops objects of resources that are no longer served: no watch will report their removal.
    fn forget_the_vanished(&mut self, world: &World) {
        let vanished =
            self.spots.iter().filter(|(_, spot)| world.meta(&spot.collection, &spot.key).is_none());
        let vanished: Vec<String> = vanished.map(|(uid, _)| uid.clone()).collect();
        for uid in vanished {
            if let Some(spot) = self.spots.remove(&uid) {
                self.index(&uid, &spot.owners, &[]);
            }
        }
    }

    fn find<'w>(&self, uid: &str, world: &'w World) -> Option<(&Spot, &'w Meta)> {
        let spot = self.spots.get(uid)?;
        let object = world.meta(&spot.collection, &spot.key)?;
        (object.uid == uid).then_some((spot, object))
    }

    fn dependents<'w>(&self, uid: &str, world: &'w World) -> impl Iterator<Item = (&Spot, &'w Meta)> {
        self.dependents.get(uid).into_iter().flatten().filter_map(move |uid| self.find(uid, world))
    }

    /// The action on an object, if any.
    fn judge(&self, uid: &str, world: &World) -> Option<Vec<Call>> {
        let (spot, object) = self.find(uid, world)?;
        if object.is_terminating() {
            return self.end(spot, object, world);
        }
        let mut calls = Vec::new();
        let mut standings = Vec::new();
        for reference in &object.owner_references {
            let standing = self.standing(reference, object, world, &mut calls)?;
            standings.push(standing);
        }
        if standings.iter().all(|standing| *standing == Standing::Solid) {
            return None;
        }
        let seen = Sighting::of(&spot.collection, object);
        if standings.contains(&Standing::Solid) {
            // A dependent with another solid owner does not block an owner's deletion.
            let solid = object.owner_references.iter().zip(&standings);
            let kept = solid.filter(|(_, standing)| **standing == Standing::Solid);
            let metadata = json!({ "ownerReferences": list(kept.map(|(reference, _)| reference)) });
            calls.push(Call::Amend { seen, metadata });
            return Some(calls);
        }
        let mut own_dependents = self.dependents(uid, world).peekable();
        let propagation = if standings.contains(&Standing::Waiting) && own_dependents.peek().is_some() {
            // Two objects that wait for each other would wait forever.
            if object.owner_references.iter().any(blocks)
                && own_dependents.any(|(_, dependent)| waits_in_foreground(dependent))
            {
                calls.push(Call::Amend { seen, metadata: unblocked(&object.owner_references) });
                return Some(calls);
            }
            Propagation::Foreground
        } else if object.has_finalizer(ORPHAN) {
            Propagation::Orphan
        } else if object.has_finalizer(FOREGROUND) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        calls.push(Call::Collect { seen, propagation });
        Some(calls)
    }

    /// The state of one reference. It is unknown for owners of kinds that are not served, and for namespaced owners of
    /// a cluster-scoped object, whose namespace is unknown. A missing owner whose removal was not seen is read live
    /// first.
    fn standing(
        &self,
        reference: &Owner,
        object: &Meta,
        world: &World,
        guards: &mut Vec<Call>,
    ) -> Option<Standing> {
        let kind = world.served()?.kind(&reference.api_version, &reference.kind)?;
        if kind.namespaced && object.namespace.is_empty() {
            return None;
        }
        if self.gone.contains(&reference.uid) {
            return Some(Standing::Missing);
        }
        let namespace = if kind.namespaced { object.namespace.as_str() } else { "" };
        let owner = world.meta(&kind.collection, &key(namespace, &reference.name));
        match owner.filter(|owner| owner.uid == reference.uid) {
            Some(owner) if waits_in_foreground(owner) => Some(Standing::Waiting),
            Some(_) => Some(Standing::Solid),
            None => {
                guards.push(Call::ExpectGone {
                    collection: kind.collection.clone(),
                    namespace: namespace.to_owned(),
                    name: reference.name.clone(),
                    uid: reference.uid.clone(),
                });
                Some(Standing::Missing)
            }
        }
    }

    /// The action on an object that is being deleted.
    fn end(&self, spot: &Spot, object: &Meta, world: &World) -> Option<Vec<Call>> {
        let names_it = |reference: &&Owner| reference.uid == object.uid;
        if object.has_finalizer(ORPHAN) {
            let forgets = |(spot, dependent): (&Spot, &Meta)| {
                let kept = dependent.owner_references.iter().filter(|reference| !names_it(reference));
                let seen = Sighting::of(&spot.collection, dependent);
                Call::Amend { seen, metadata: json!({ "ownerReferences": list(kept) }) }
            };
            let calls: Vec<Call> = self.dependents(&object.uid, world).map(forgets).collect();
            return Some(if calls.is_empty() { vec![release(spot, object, ORPHAN)] } else { calls });
        }
        if object.has_finalizer(FOREGROUND) {
            let is_blocked = self
                .dependents(&object.uid, world)
                .any(|(_, dependent)| dependent.owner_references.iter().filter(names_it).any(blocks));
            return (!is_blocked).then(|| vec![release(spot, object, FOREGROUND)]);
        }
        None
    }
}

/// Removes a finalizer.
fn release(spot: &Spot, object: &Meta, finalizer: &str) -> Call {
    let kept = object.finalizers.iter().filter(|known| *known != finalizer);
    let seen = Sighting::of(&spot.collection, object);
    Call::Amend { seen, metadata: json!({ "finalizers": list(kept) }) }
}

/// A list in a merge patch: an empty one becomes null.
fn list(elements: impl Iterator<Item = impl Serialize>) -> Value {
    let elements: Vec<Value> = elements.map(|element| json!(element)).collect();
    if elements.is_empty() { Value::Null } else { Value::Array(elements) }
}

/// The same references without blockOwnerDeletion.
fn unblocked(references: &[Owner]) -> Value {
    let references: Vec<Owner> = references
        .iter()
        .cloned()
        .map(|reference| Owner { block_owner_deletion: Some(false), ..reference })
        .collect();
    json!({ "ownerReferences": references })
}

#[cfg(test)]
#[path = "garbage/tests.rs"]
mod tests;
