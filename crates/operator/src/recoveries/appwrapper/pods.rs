//! The pods with the label of an AppWrapper, indexed by the AppWrapper that the label names.

use std::collections::{BTreeMap, BTreeSet};

use super::wire::SeenPod;
use salvor_recovery::ids::{NodeName, Uid};

/// Namespace and name of an AppWrapper.
type Place = (String, String);

#[derive(Debug, Default)]
pub(super) struct Pods {
    all: BTreeMap<Uid, SeenPod>,
    by_app: BTreeMap<Place, BTreeSet<Uid>>,
}

impl Pods {
    /// Applies a pod and returns its earlier state.
    pub(super) fn take(&mut self, pod: SeenPod) -> Option<SeenPod> {
        let uid = pod.view.pod.uid.clone();
        let before = self.drop(&uid);
        self.by_app.entry(place(&pod)).or_default().insert(uid.clone());
        self.all.insert(uid, pod);
        before
    }

    /// Removes a pod that is gone or no longer has the label.
    pub(super) fn drop(&mut self, uid: &Uid) -> Option<SeenPod> {
        let pod = self.all.remove(uid)?;
        let place = place(&pod);
        if let Some(of_app) = self.by_app.get_mut(&place) {
            of_app.remove(uid);
            if of_app.is_empty() {
                self.by_app.remove(&place);
            }
        }
        Some(pod)
    }

    /// Replaces all pods.
    pub(super) fn list(&mut self, all: Vec<SeenPod>) {
        *self = Self::default();
        for pod in all {
            self.take(pod);
        }
    }

    /// The pods whose label names an AppWrapper.
    pub(super) fn of(&self, namespace: &str, name: &str) -> impl Iterator<Item = &SeenPod> {
        let uids = self.by_app.get(&(namespace.to_owned(), name.to_owned())).into_iter().flatten();
        uids.filter_map(|uid| self.all.get(uid))
    }

    pub(super) fn has(&self, uid: &Uid) -> bool {
        self.all.contains_key(uid)
    }

    pub(super) fn on<'a>(&'a self, node: &'a NodeName) -> impl Iterator<Item = &'a SeenPod> {
        self.all.values().filter(move |pod| pod.view.node_name.as_ref() == Some(node))
    }
}

fn place(pod: &SeenPod) -> Place {
    (pod.view.pod.namespace.clone(), pod.app.clone())
}
