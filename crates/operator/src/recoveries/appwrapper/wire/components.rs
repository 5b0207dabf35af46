//! The objects that an AppWrapper owns, of whatever kind.

use salvor_recovery::{
    appwrapper::{ComponentKind, ComponentState, FoundComponent, ObjectRef, components::Waves},
    ids::NodeName,
    objects::Deletion,
};
use serde::Deserialize;
use serde_json::Value;

use super::pods::disruption;
use crate::{
    client::{
        discovery::Kind,
        wire::{Condition, Meta, Nothing, Whole},
    },
    watch_set::watch::Project,
};

pub(crate) struct Components(pub(crate) Kind);

impl Project for Components {
    type Wire = Whole;
    type Kept = FoundComponent;

    fn keep(&self, wire: Whole) -> Option<FoundComponent> {
        found(&self.0, "", &wire.object)
            .inspect_err(|error| tracing::warn!(kind = %self.0, %error, "object skipped: unreadable"))
            .ok()
    }
}

pub(crate) fn found(
    kind: &Kind,
    resource: &str,
    object: &Value,
) -> Result<FoundComponent, serde_json::Error> {
    let metadata = Meta::<Nothing>::deserialize(&object["metadata"])?;
    let kind = ComponentKind {
        group: kind.group.clone(),
        version: kind.version.clone(),
        kind: kind.kind.clone(),
        resource: resource.to_owned(),
    };
    let is_pod = kind.group.is_empty() && kind.kind == "Pod";
    let conditions = || Vec::<Condition>::deserialize(&object["status"]["conditions"]).unwrap_or_default();
    let deletion = if is_pod {
        metadata.pod_deletion()
    } else {
        metadata
            .deletion_timestamp
            .map(|timestamp| Deletion { timestamp, grace_seconds: metadata.deletion_grace_period_seconds })
    };
    Ok(FoundComponent {
        state: ComponentState::read(&kind, &object["status"]),
        waves: Waves::read(&kind, object),
        disruption: is_pod.then(|| disruption(&conditions())).flatten(),
        node_name: object["spec"]["nodeName"].as_str().filter(|_| is_pod).map(NodeName::from),
        without_grace: is_pod && object["spec"]["terminationGracePeriodSeconds"] == 0,
        owner_uid: metadata.controller().map(|owner| owner.uid.clone()),
        deletion,
        created: metadata.creation_timestamp.unwrap_or_default(),
        resource_version: metadata.resource_version,
        finalizers: metadata.finalizers,
        object: ObjectRef { uid: metadata.uid, kind, namespace: metadata.namespace, name: metadata.name },
    })
}

/// Decodes the object in the server's answer; `None` if the answer is something else.
pub(crate) fn answered(kind: &Kind, resource: &str, text: &str) -> Option<FoundComponent> {
    let object: Value = serde_json::from_str(text).ok()?;
    (object["kind"] == *kind.kind).then(|| found(kind, resource, &object).ok()).flatten()
}
