//! The current objects, and what the API has shown of each kubelet.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use salvor_apiserver::ChangeKind;
use serde_json::Value;

use super::text;
use crate::swarm::recorder::{Ledger, Sent};

/// A second look is valid for this long.
const LOOK_HOLDS: SignedDuration = SignedDuration::from_secs(1);
/// A kubelet counts as alive for this long after it renewed its Lease.
const LEASE_LASTS: SignedDuration = SignedDuration::from_secs(40);
/// The number of renewals that are kept per node: a write may be in flight for a while.
const RENEWALS: usize = 8;

/// All objects, by resource, namespace and name.
pub(super) type Objects = BTreeMap<(String, String, String), Arc<Value>>;

pub(crate) struct Known {
    ledger: Ledger,
    objects: Objects,
    kubelets: BTreeMap<String, Kubelet>,
}

#[derive(Debug, Default)]
struct Kubelet {
    /// Since when the node is Ready, and until when it was.
    ready: Option<(Timestamp, Timestamp)>,
    renewals: VecDeque<Timestamp>,
}

impl Kubelet {
    /// The API shows from now on that it is Ready, or that it is not.
    fn shows(&mut self, at: Timestamp, is_ready: bool) {
        self.ready = match (self.ready, is_ready) {
            (Some((since, until)), true) if until == Timestamp::MAX => Some((since, until)),
            (_, true) => Some((at, Timestamp::MAX)),
            (Some((since, until)), false) => Some((since, until.min(at))),
            (None, false) => None,
        };
    }
}

impl Known {
    pub(super) fn new(ledger: Ledger) -> Self {
        Self { ledger, objects: BTreeMap::new(), kubelets: BTreeMap::new() }
    }

    /// The object with this name before a change.
    pub(super) fn object(&self, resource: &str, object: &Value) -> Option<Arc<Value>> {
        self.objects.get(&key(resource, object)).cloned()
    }

    /// A cluster-scoped object.
    pub(super) fn cluster_object(&self, resource: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(resource.to_owned(), String::new(), name.to_owned())).map(Arc::as_ref)
    }

    pub(super) fn objects(&self) -> Objects {
        self.objects.clone()
    }

    /// From now on these objects exist. Heartbeats that were already seen are kept.
    pub(super) fn restore(&mut self, objects: Objects, at: Timestamp) {
        self.objects = objects;
        for (name, kubelet) in &mut self.kubelets {
            let node = self.objects.get(&("nodes".to_owned(), String::new(), name.clone()));
            kubelet.shows(at, node.is_some_and(|node| is_ready(node)));
        }
    }

    pub(in crate::swarm) fn all<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |((kind, ..), _)| kind == resource).map(|(_, object)| &**object)
    }

    pub(super) fn take_in(&mut self, at: Timestamp, kind: ChangeKind, resource: &str, object: Arc<Value>) {
        let name = text(&object["metadata"]["name"]);
        match resource {
            "nodes" => {
                let kubelet = self.kubelets.entry(name.to_owned()).or_default();
                kubelet.shows(at, kind != ChangeKind::Removed && is_ready(&object));
            }
            "leases" if text(&object["metadata"]["namespace"]) == "kube-node-lease" => {
                let kubelet = self.kubelets.entry(name.to_owned()).or_default();
                kubelet.renewals.push_back(at);
                if kubelet.renewals.len() > RENEWALS {
                    kubelet.renewals.pop_front();
                }
            }
            _ => {}
        }
        let key = key(resource, &object);
        if kind == ChangeKind::Removed {
            self.objects.remove(&key);
        } else {
            self.objects.insert(key, object);
        }
    }

    /// Why a kubelet counts as alive when something was sent, according to a read that is as old as allowed.
    pub(super) fn alive(&self, node: &str, sent: Timestamp) -> Option<String> {
        // Without a Node there are no heartbeats: only a recovery that terminated the machine uses force then.
        self.cluster_object("nodes", node)?;
        let kubelet = self.kubelets.get(node)?;
        let looked = sent - LOOK_HOLDS;
        let ready = kubelet.ready.filter(|(since, until)| *since <= looked && sent < *until);
        if let Some((since, _)) = ready {
            return Some(format!("{node} is Ready since {since}"));
        }
        let renewed = kubelet.renewals.iter().rev().find(|renewed| **renewed <= looked)?;
        (sent.duration_since(*renewed) < LEASE_LASTS)
            .then(|| format!("{node} renewed its Lease at {renewed}"))
    }

    /// Whether the sender read this path within the time for which a read is valid.
    pub(super) fn looked(&self, sent: &Sent, path: &str) -> bool {
        let look = self.ledger.last_look(&sent.by, path);
        look.is_some_and(|look| sent.at.duration_since(look) <= LOOK_HOLDS)
    }
}

fn key(resource: &str, object: &Value) -> (String, String, String) {
    let metadata = &object["metadata"];
    (resource.to_owned(), text(&metadata["namespace"]).to_owned(), text(&metadata["name"]).to_owned())
}

fn is_ready(node: &Value) -> bool {
    condition(node, "Ready") == Some("True")
}

pub(in crate::swarm) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|it| it["type"] == kind)?["status"].as_str()
}

pub(in crate::swarm) fn has_taint(node: &Value, key: &str) -> bool {
    node["spec"]["taints"].as_array().into_iter().flatten().any(|taint| taint["key"] == key)
}
