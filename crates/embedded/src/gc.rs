//! The garbage collector and the end of namespaces: what a control plane does behind every deletion.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::core::{Core, namespaces};
use crate::delete::{self, FOREGROUND, ORPHAN, Options, Propagation};
use crate::environment::Environment;
use crate::object;
use crate::request::Target;
use crate::store;
use crate::table::{Resource, ResourceKey};
use crate::write::{self, Part};

type Place = (ResourceKey, String);

/// Follows all that was written to its end: dependents of what is gone are deleted, those of what is orphaned are
/// let go, owners that wait for their dependents are released, and namespaces are emptied.
pub(crate) fn tend(core: &mut Core, environment: &mut Environment<'_>) {
    loop {
        let touched = core.store.take_touched();
        if touched.is_empty() {
            return;
        }
        let mut places: VecDeque<Place> = VecDeque::new();
        let mut seen: BTreeSet<Place> = BTreeSet::new();
        let mut look_at = |place: Place| {
            if seen.insert(place.clone()) {
                places.push_back(place);
            }
        };
        for touched in touched {
            if let Some(gone) = &touched.gone {
                let value = gone.value();
                for dependent in core.store.dependents(object::uid(value)) {
                    look_at(dependent);
                }
                for owner in owners(core, value) {
                    look_at(owner);
                }
                let namespace = object::namespace(value);
                if !namespace.is_empty() {
                    look_at((namespaces(), namespace.to_owned()));
                }
            } else {
                if let Some(stored) = core.store.get(&touched.resource, &touched.key) {
                    let value = stored.value();
                    for owner in owners(core, value) {
                        look_at(owner);
                    }
                    if object::is_terminating(value) {
                        for dependent in core.store.dependents(object::uid(value)) {
                            look_at(dependent);
                        }
                    }
                }
                look_at((touched.resource, touched.key));
            }
        }
        for place in places {
            attend(core, &place, environment);
        }
    }
}

/// Where an object's owners are kept.
fn owners(core: &Core, value: &Value) -> Vec<Place> {
    object::list(value, "/metadata/ownerReferences")
        .iter()
        .filter_map(|owner| owner_place(core, owner, object::namespace(value)))
        .collect()
}

/// None for a kind that is not known, and for a namespaced owner of an object of the cluster: it says no namespace.
fn owner_place(core: &Core, owner: &Value, namespace: &str) -> Option<Place> {
    let resource = core.table.by_kind(object::text(owner, "/apiVersion"), object::text(owner, "/kind"))?;
    if resource.namespaced && namespace.is_empty() {
        return None;
    }
    let namespace = if resource.namespaced { namespace } else { "" };
    Some((resource.key().clone(), store::key(namespace, object::text(owner, "/name"))))
}

fn attend(core: &mut Core, place: &Place, environment: &mut Environment<'_>) {
    let Some(resource) = core.table.by_key(&place.0).cloned() else {
        return;
    };
    let Some(stored) = core.store.get(&place.0, &place.1).cloned() else {
        return;
    };
    let value = stored.value();
    if resource.is_namespace() {
        if object::is_terminating(value) {
            empty_namespace(core, &resource, value, environment);
        }
        return;
    }
    if object::is_terminating(value) {
        let finalizers = object::finalizers(value);
        if finalizers.iter().any(|finalizer| finalizer == ORPHAN) {
            let_dependents_go(core, object::uid(value), environment);
            release(core, &resource, value, ORPHAN, environment);
        } else if finalizers.iter().any(|finalizer| finalizer == FOREGROUND) {
            delete_dependents(core, object::uid(value), environment);
            if !is_blocked(core, object::uid(value)) {
                release(core, &resource, value, FOREGROUND, environment);
            }
        }
        return;
    }
    collect(core, &resource, value, environment);
}

/// Deletes an object whose owners are all gone, or waiting for it.
fn collect(core: &mut Core, resource: &Arc<Resource>, value: &Value, environment: &mut Environment<'_>) {
    let references = object::list(value, "/metadata/ownerReferences");
    if references.is_empty() {
        return;
    }
    let mut solid = 0;
    let mut waiting: Vec<String> = Vec::new();
    let mut dangling: Vec<String> = Vec::new();
    for reference in references {
        let Some(place) = owner_place(core, reference, object::namespace(value)) else {
            // The real collector cannot find such an owner either, and leaves the object alone.
            return;
        };
        let uid = object::text(reference, "/uid");
        match core.store.get(&place.0, &place.1) {
            Some(owner) if object::uid(owner.value()) == uid => {
                let waits = object::is_terminating(owner.value())
                    && object::finalizers(owner.value()).iter().any(|finalizer| finalizer == FOREGROUND);
                if waits {
                    waiting.push(uid.to_owned());
                } else {
                    solid += 1;
                }
            }
            _ => dangling.push(uid.to_owned()),
        }
    }
    if solid > 0 {
        // Whoever is kept by one owner does not hold up another.
        dangling.extend(waiting);
        if !dangling.is_empty() {
            drop_references(core, resource, value, &dangling, environment);
        }
        return;
    }
    let propagation = if !waiting.is_empty() && !core.store.dependents(object::uid(value)).is_empty() {
        Propagation::Foreground
    } else {
        Propagation::Background
    };
    let options = Options {
        propagation: Some(propagation),
        uid: Some(object::uid(value).to_owned()),
        ..Options::default()
    };
    let (namespace, name) = (object::namespace(value), object::name(value));
    // A refusal means that somebody else was quicker.
    let _ = delete::one(core, resource, namespace, name, &options, environment);
}

fn drop_references(
    core: &mut Core,
    resource: &Arc<Resource>,
    value: &Value,
    uids: &[String],
    environment: &mut Environment<'_>,
) {
    let mut new = value.clone();
    let kept: Vec<Value> = object::list(value, "/metadata/ownerReferences")
        .iter()
        .filter(|reference| !uids.iter().any(|uid| uid == object::text(reference, "/uid")))
        .cloned()
        .collect();
    let field = if kept.is_empty() { Value::Null } else { json!(kept) };
    object::set_metadata(&mut new, "ownerReferences", field);
    save(core, resource, value, new, environment);
}

fn save(
    core: &mut Core,
    resource: &Arc<Resource>,
    current: &Value,
    new: Value,
    environment: &mut Environment<'_>,
) {
    let target = Target {
        resource: Arc::clone(resource),
        namespace: object::namespace(current).to_owned(),
        name: object::name(current).to_owned(),
        subresource: String::new(),
    };
    let Some(stored) = core.find(resource, &target.namespace, &target.name).cloned() else {
        return;
    };
    let _ = write::update(core, &target, Part::Spec, &stored, new, &write::Options::default(), environment);
}

fn release(
    core: &mut Core,
    resource: &Arc<Resource>,
    value: &Value,
    finalizer: &str,
    environment: &mut Environment<'_>,
) {
    // Its dependents may have been written in between, but not the object itself.
    let Some(stored) = core.find(resource, object::namespace(value), object::name(value)).cloned() else {
        return;
    };
    let mut new = stored.value().clone();
    let kept: Vec<String> = object::finalizers(&new).into_iter().filter(|known| known != finalizer).collect();
    object::set_finalizers(&mut new, &kept);
    save(core, resource, value, new, environment);
}

fn let_dependents_go(core: &mut Core, uid: &str, environment: &mut Environment<'_>) {
    for (place, key) in core.store.dependents(uid) {
        let (Some(resource), Some(stored)) =
            (core.table.by_key(&place).cloned(), core.store.get(&place, &key).cloned())
        else {
            continue;
        };
        drop_references(core, &resource, stored.value(), &[uid.to_owned()], environment);
    }
}

fn delete_dependents(core: &mut Core, uid: &str, environment: &mut Environment<'_>) {
    for (place, key) in core.store.dependents(uid) {
        let (Some(resource), Some(stored)) =
            (core.table.by_key(&place).cloned(), core.store.get(&place, &key).cloned())
        else {
            continue;
        };
        if !object::is_terminating(stored.value()) {
            collect(core, &resource, stored.value(), environment);
        }
    }
}

/// Whether a dependent that blocks its owner's end is there still.
fn is_blocked(core: &Core, uid: &str) -> bool {
    core.store.dependents(uid).iter().any(|(place, key)| {
        core.store.get(place, key).is_some_and(|stored| {
            object::list(stored.value(), "/metadata/ownerReferences").iter().any(|reference| {
                object::text(reference, "/uid") == uid
                    && reference.get("blockOwnerDeletion") == Some(&json!(true))
            })
        })
    })
}

/// Deletes what is in a namespace that is going away, and the namespace once it is empty.
fn empty_namespace(
    core: &mut Core,
    resource: &Arc<Resource>,
    value: &Value,
    environment: &mut Environment<'_>,
) {
    let name = object::name(value).to_owned();
    let prefix = format!("{name}/");
    let mut left = false;
    for place in core.store.resources() {
        let Some(inside) = core.table.by_key(&place).cloned().filter(|inside| inside.namespaced) else {
            continue;
        };
        let keys: Vec<String> = core
            .store
            .scan(&place, &prefix)
            .map(|(_, stored)| object::name(stored.value()).to_owned())
            .collect();
        for key in keys {
            let outcome = delete::one(core, &inside, &name, &key, &Options::background(), environment);
            left |= matches!(outcome, Ok(delete::Outcome::Kept(_)));
        }
    }
    if left {
        return;
    }
    let Some(stored) = core.namespace(&name).cloned() else {
        return;
    };
    let mut new = stored.value().clone();
    if let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("finalizers");
    }
    let target = Target {
        resource: Arc::clone(resource),
        namespace: String::new(),
        name,
        subresource: "finalize".to_owned(),
    };
    let _ =
        write::update(core, &target, Part::Finalizers, &stored, new, &write::Options::default(), environment);
}
