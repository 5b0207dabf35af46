//! Builds the view of an AppWrapper from the objects around it, taken from the watches or read live.

use std::collections::BTreeMap;

use salvor_recovery::{
    appwrapper::{
        AppWrapperView, Authorship, ComponentKind, ComponentView, CreateFailure, FoundComponent, Memory,
        NodeView, PodView, Seen,
        components::{PodOrigin, component_of},
    },
    gate::Copies,
    ids::NodeName,
};

use super::wire::{App, SeenPod};

#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// Each component, in order, with the resource of its kind.
    pub(super) components: Vec<(String, Seen)>,
    /// Objects that it owns; its components among them are skipped.
    pub(super) owned: Vec<FoundComponent>,
    pub(super) pods: Vec<SeenPod>,
    pub(super) pods_known: bool,
    pub(super) nodes: BTreeMap<NodeName, NodeView>,
    pub(super) nodes_known: bool,
}

pub(super) fn view(
    app: &App,
    snapshot: Snapshot,
    mut memory: Memory,
    authorship: Authorship,
) -> AppWrapperView {
    let Snapshot { components, owned, pods, pods_known, nodes, nodes_known } = snapshot;
    let components: Vec<ComponentView> = app
        .parts
        .iter()
        .zip(components)
        .map(|(part, (resource, seen))| ComponentView {
            kind: ComponentKind {
                group: part.kind.group.clone(),
                version: part.kind.version.clone(),
                kind: part.kind.kind.clone(),
                resource,
            },
            name: part.name.clone(),
            pod_sets: part.pod_sets.clone(),
            seen,
        })
        .collect();
    for (index, part) in app.parts.iter().enumerate() {
        if let Some(defect) = &part.defect {
            let failure = CreateFailure {
                message: defect.clone(),
                fatal: true,
                unanswered: false,
                at: app.created,
                attempts: 1,
            };
            memory.creation.insert(index, failure);
        }
    }
    let is_component = |object: &FoundComponent| {
        components
            .iter()
            .any(|it| matches!(&it.seen, Seen::Found(found) if found.object.uid == object.object.uid))
    };
    let strays = owned.into_iter().filter(|object| !is_component(object)).collect();
    let pods = pods.into_iter().map(|pod| placed(pod, app, &components)).collect();
    AppWrapperView {
        appwrapper: app.appwrapper.clone(),
        resource_version: app.resource_version.clone(),
        created: app.created,
        deleting: app.deleting,
        has_finalizer: app.has_finalizer,
        other_finalizers: app.other_finalizers.clone(),
        suspend: app.suspend,
        managed_by: app.managed_by.clone(),
        annotations: app.annotations.clone(),
        refused: app.refused.clone(),
        authorship,
        admitted: app.admitted.clone(),
        components,
        strays,
        pods,
        pods_known,
        nodes,
        nodes_known,
        status: app.status.clone(),
        memory,
    }
}

/// A pod, with the component that it belongs to.
fn placed(pod: SeenPod, app: &App, components: &[ComponentView]) -> PodView {
    let SeenPod { mut view, controller_uid, named, .. } = pod;
    let owners = components.iter().enumerate().filter_map(|(index, component)| {
        let found = match &component.seen {
            Seen::Found(found) => found,
            Seen::Absent { last: Some(last) } => &last.object,
            Seen::Absent { last: None } | Seen::NoSuchKind | Seen::Unknown(_) => return None,
        };
        Some((index, &component.kind, app.name_of(index), &found.object.uid))
    });
    let origin = PodOrigin {
        uid: &view.pod.uid,
        controller_uid: controller_uid.as_ref(),
        named: named.as_ref().map(|(label, value)| (*label, value.as_str())),
    };
    view.component = component_of(origin, owners);
    // A pod whose component is unknown may belong to any of them.
    let awaits = |index: usize| app.parts.get(index).is_some_and(|part| part.awaits_ends);
    let awaits = view.component.map_or_else(|| (0..app.parts.len()).any(awaits), awaits);
    if awaits && !matches!(view.work.copies, Copies::Forbidden(_)) {
        let why = "its Job waits for the end of its pods (podReplacementPolicy: Failed)";
        view.work.copies = Copies::Forbidden(why.to_owned());
    }
    view
}
