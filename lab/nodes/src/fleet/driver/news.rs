//! The watches of pods and nodes, and which of their events reach which node.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::runtime::watcher;

use super::Driver;
use crate::pod::{PodView, resource_version};

struct NodeNews {
    taints: Vec<Taint>,
    attached: BTreeSet<String>,
    ready: bool,
    resource_version: u64,
}

impl NodeNews {
    fn of(node: &Node) -> Self {
        let status = node.status.as_ref();
        let attached = status.and_then(|s| s.volumes_attached.as_ref());
        let conditions = status.and_then(|s| s.conditions.as_ref());
        Self {
            taints: node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default(),
            attached: attached.into_iter().flatten().map(|v| v.name.clone()).collect(),
            ready: conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True"),
            resource_version: resource_version(node.metadata.resource_version.as_deref()),
        }
    }
}

impl Driver {
    pub(super) fn pod_event(&mut self, event: watcher::Event<Pod>, listed: &mut Vec<PodView>) {
        match event {
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(pod) => listed.extend(PodView::of(&pod)),
            watcher::Event::InitDone => {
                self.pods.clear();
                for view in listed.drain(..) {
                    self.pods.entry(view.node.clone()).or_default().insert(view.id.uid.clone(), view);
                }
                for node in self.slots.keys().cloned().collect::<Vec<_>>() {
                    self.show_pods(&node);
                }
            }
            watcher::Event::Apply(pod) => {
                let Some(view) = PodView::of(&pod) else {
                    return;
                };
                let now = self.clock.now();
                let key = self
                    .slots
                    .get_mut(&view.node)
                    .filter(|slot| slot.kubelet.listens())
                    .map(|slot| slot.kubelet.see_pod(&view, now));
                if let Some(key) = key {
                    self.drive(&view.node, &key);
                }
                self.pods.entry(view.node.clone()).or_default().insert(view.id.uid.clone(), view);
            }
            watcher::Event::Delete(pod) => {
                let Some(view) = PodView::of(&pod) else {
                    return;
                };
                if let Some(pods) = self.pods.get_mut(&view.node) {
                    pods.remove(&view.id.uid);
                }
                let now = self.clock.now();
                let key = self
                    .slots
                    .get_mut(&view.node)
                    .filter(|slot| slot.kubelet.listens())
                    .and_then(|slot| slot.kubelet.see_removal(&view.id, now));
                if let Some(key) = key {
                    self.drive(&view.node, &key);
                }
            }
        }
    }

    pub(super) fn show_pods(&mut self, node: &str) {
        let now = self.clock.now();
        let Some(slot) = self.slots.get_mut(node).filter(|s| s.kubelet.listens()) else {
            return;
        };
        slot.kubelet.see_all(self.pods.get(node).into_iter().flat_map(BTreeMap::values), now);
        for key in slot.kubelet.keys() {
            self.drive(node, &key);
        }
    }

    pub(super) fn node_event(&mut self, node: &Node) {
        let Some(name) = node.metadata.name.clone() else {
            return;
        };
        let Some(slot) = self.slots.get_mut(&name) else {
            return;
        };
        let news = NodeNews::of(node);
        // Taints are those of the API; an unreachable node learns of them when it comes back.
        let mut waiting = slot.kubelet.see_node(news.taints, news.attached);
        if slot.kubelet.is_starting() && news.ready && slot.kubelet.is_connected() {
            let pods = self.pods.get(&name).into_iter().flat_map(BTreeMap::values);
            slot.kubelet.begin(pods, self.clock.now());
            waiting = slot.kubelet.keys();
        }
        let told = slot.reported.as_ref().map_or(u64::MAX, |(_, at)| *at);
        if !news.ready && news.resource_version > told {
            slot.reported = None;
        }
        for key in waiting {
            self.drive(&name, &key);
        }
        self.report_node_if_changed(&name);
    }
}
