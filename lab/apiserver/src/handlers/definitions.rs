//! CustomResourceDefinitions: the resources that they define are served while they exist.

use std::sync::Arc;

use serde_json::json;

use crate::custom;
use crate::environment::Environment;
use crate::kinds::table::ResourceKey;
use crate::object;
use crate::state::Core;

fn definitions() -> ResourceKey {
    ("apiextensions.k8s.io".to_owned(), "customresourcedefinitions".to_owned())
}

/// Serves the resources of a definition, and records that in its status.
pub(crate) fn register(core: &mut Core, name: &str, environment: &Environment<'_>) {
    let Some(stored) = core.store.get(&definitions(), name).cloned() else {
        return;
    };
    let definition = &*stored.value();
    core.table.remove_defined_by(name);
    let served = object::list(definition, "/spec/versions")
        .iter()
        .filter(|version| version.get("served") == Some(&json!(true)));
    for version in served {
        core.table.insert(custom::resource(name, definition, version, core.store.revision()));
    }
    let mut new = definition.clone();
    new["status"]["acceptedNames"] = definition.pointer("/spec/names").cloned().unwrap_or_default();
    let now = object::time(environment.now);
    let known = object::list(definition, "/status/conditions").to_vec();
    let condition = |kind: &str, reason: &str, message: &str| {
        let same = known
            .iter()
            .find(|known| object::text(known, "/type") == kind && object::text(known, "/status") == "True");
        same.cloned().unwrap_or_else(|| json!({
            "type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now,
        }))
    };
    new["status"]["conditions"] = json!([
        condition("NamesAccepted", "NoConflicts", "no conflicts found"),
        condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ]);
    if new != *definition {
        core.store.put(&definitions(), name.to_owned(), new);
    }
}

/// Stops serving the resources of a definition, and drops its objects.
pub(crate) fn unregister(core: &mut Core, name: &str) {
    let key = core
        .table
        .iter()
        .find(|resource| resource.custom.as_ref().is_some_and(|custom| custom.definition == name))
        .map(|resource| resource.key().clone());
    if let Some(key) = key {
        let objects: Vec<Arc<str>> = core.store.scan(&key, "").map(|(key, _)| Arc::clone(key)).collect();
        for object in objects {
            core.store.remove(&key, &object);
        }
    }
    core.table.remove_defined_by(name);
}
