//! The view of the cluster that all loops share, kept up to date by one watch per kind.

pub(crate) mod collection;
pub(crate) mod everything;
pub(crate) mod follow;
pub(crate) mod labels;
pub(crate) mod served;
pub(crate) mod views;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use self::collection::{Collection, Kind, Resource};
use self::served::Served;
use self::views::{
    Attachment, Bare, Claim, Lease, Meta, Namespace, Node, Pod, StorageClass, Volume, Workload,
    key as object_key,
};

pub(crate) trait HasMeta {
    fn meta(&self) -> &Meta;
}

macro_rules! has_meta {
    ($($view:ty),*) => {
        $(impl HasMeta for $view {
            fn meta(&self) -> &Meta {
                &self.metadata
            }
        })*
    };
}
has_meta!(Pod, Node, Lease, Claim, Volume, StorageClass, Attachment, Workload, Namespace, Bare);

/// An object before and after; never two objects of one name.
#[derive(Debug)]
pub(crate) struct Delta<V> {
    pub(crate) old: Option<Arc<V>>,
    pub(crate) new: Option<Arc<V>>,
}

impl<V> Clone for Delta<V> {
    fn clone(&self) -> Self {
        Self { old: self.old.clone(), new: self.new.clone() }
    }
}

impl<V> Delta<V> {
    /// The present or last state of the object.
    pub(crate) fn last(&self) -> Option<&Arc<V>> {
        self.new.as_ref().or(self.old.as_ref())
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Change {
    Pod(Delta<Pod>),
    Node(Delta<Node>),
    Lease(Delta<Lease>),
    Claim(Delta<Claim>),
    Volume(Delta<Volume>),
    StorageClass(Delta<StorageClass>),
    Attachment(Delta<Attachment>),
    Workload(Kind, Delta<Workload>),
    Namespace(Delta<Namespace>),
    Other(Arc<Resource>, Delta<Bare>),
    /// The set of served kinds has changed, or the progress of their listing.
    Served,
}

impl Change {
    /// The kind of the object, if loops know it as one.
    pub(crate) fn kind(&self) -> Option<Kind> {
        match self {
            Self::Pod(_) => Some(Kind::Pod),
            Self::Node(_) => Some(Kind::Node),
            Self::Lease(_) => Some(Kind::Lease),
            Self::Claim(_) => Some(Kind::Claim),
            Self::Volume(_) => Some(Kind::Volume),
            Self::StorageClass(_) => Some(Kind::StorageClass),
            Self::Attachment(_) => Some(Kind::Attachment),
            Self::Workload(kind, _) => Some(*kind),
            Self::Namespace(_) => Some(Kind::Namespace),
            Self::Other(..) | Self::Served => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Store<V>(BTreeMap<String, Arc<V>>);

impl<V> Default for Store<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<V> Store<V> {
    pub(crate) fn get(&self, key: &str) -> Option<&Arc<V>> {
        self.0.get(key)
    }

    pub(crate) fn named(&self, namespace: &str, name: &str) -> Option<&Arc<V>> {
        self.0.get(&object_key(namespace, name))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<V>> {
        self.0.values()
    }

    pub(crate) fn within<'s>(&'s self, namespace: &str) -> impl Iterator<Item = &'s Arc<V>> + use<'s, V> {
        let prefix = format!("{namespace}/");
        let from = self.0.range(prefix.clone()..);
        from.take_while(move |(key, _)| key.starts_with(&prefix)).map(|(_, object)| object)
    }

    /// Stores the present state of an object. Returns the changes: none, one, or the end of one object and the
    /// beginning of another with the same name.
    fn put(&mut self, object: V) -> Vec<Delta<V>>
    where
        V: HasMeta,
    {
        let object = Arc::new(object);
        let old = self.0.insert(object.meta().key(), Arc::clone(&object));
        match old {
            Some(old) if old.meta().resource_version == object.meta().resource_version => Vec::new(),
            Some(old) if old.meta().uid != object.meta().uid => {
                vec![Delta { old: Some(old), new: None }, Delta { old: None, new: Some(object) }]
            }
            old => vec![Delta { old, new: Some(object) }],
        }
    }

    fn remove(&mut self, object: &Meta) -> Vec<Delta<V>> {
        let old = self.0.remove(&object.key());
        old.into_iter().map(|old| Delta { old: Some(old), new: None }).collect()
    }

    /// Stores a complete list: objects that are not in it are gone.
    fn replace(&mut self, objects: Vec<V>) -> Vec<Delta<V>>
    where
        V: HasMeta,
    {
        let present: BTreeSet<String> = objects.iter().map(|object| object.meta().key()).collect();
        let absent: Vec<String> = self.0.keys().filter(|key| !present.contains(*key)).cloned().collect();
        let gone = absent.iter().filter_map(|key| self.0.remove(key));
        let mut deltas: Vec<Delta<V>> = gone.map(|old| Delta { old: Some(old), new: None }).collect();
        for object in objects {
            deltas.extend(self.put(object));
        }
        deltas
    }
}

/// Pods by a shared value, and by their keys.
type PodIndex = BTreeMap<String, BTreeMap<String, Arc<Pod>>>;

/// The key in the index for objects without an owner.
fn nobody_in(namespace: &str) -> String {
    format!("nobody in {namespace}")
}

/// Moves a changed pod within an index. Its key stays the same.
fn reindex<'p>(
    index: &mut PodIndex,
    old: Option<&'p Arc<Pod>>,
    new: Option<&'p Arc<Pod>>,
    place: impl Fn(&'p Pod) -> Option<Cow<'p, str>>,
) {
    let (from, to) = (old.and_then(|old| place(old)), new.and_then(|new| place(new)));
    if let (Some(from), Some(old)) = (&from, old)
        && to.as_ref() != Some(from)
        && let Some(pods) = index.get_mut(&**from)
    {
        pods.remove(&old.metadata.key());
        if pods.is_empty() {
            index.remove(&**from);
        }
    }
    if let (Some(to), Some(new)) = (to, new) {
        let pods = match index.get_mut(&*to) {
            Some(pods) => pods,
            None => index.entry(to.into_owned()).or_default(),
        };
        pods.insert(new.metadata.key(), Arc::clone(new));
    }
}

/// Where the objects of a kind are stored in the world.
pub(crate) type Place<V> = fn(&mut World) -> &mut Store<V>;

/// The state of the cluster according to the watches.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) pods: Store<Pod>,
    pub(crate) nodes: Store<Node>,
    pub(crate) leases: Store<Lease>,
    pub(crate) claims: Store<Claim>,
    pub(crate) volumes: Store<Volume>,
    pub(crate) storage_classes: Store<StorageClass>,
    pub(crate) attachments: Store<Attachment>,
    pub(crate) replica_sets: Store<Workload>,
    pub(crate) deployments: Store<Workload>,
    pub(crate) stateful_sets: Store<Workload>,
    pub(crate) jobs: Store<Workload>,
    pub(crate) budgets: Store<Workload>,
    pub(crate) namespaces: Store<Namespace>,
    /// Objects of which only the metadata is read, once they have been listed.
    others: BTreeMap<Arc<Resource>, Store<Bare>>,
    served: Option<Served>,
    pods_by_node: PodIndex,
    pods_by_owner: PodIndex,
    revisions: BTreeMap<Kind, u64>,
}

impl World {
    /// Stores the present state of an object. Returns the changes.
    pub(crate) fn put<V: HasMeta>(&mut self, kind: Kind, place: Place<V>, object: V) -> Vec<Delta<V>> {
        self.saw(kind, object.meta().revision());
        place(self).put(object)
    }

    pub(crate) fn remove<V: HasMeta>(&mut self, kind: Kind, place: Place<V>, object: &Meta) -> Vec<Delta<V>> {
        self.saw(kind, object.revision());
        place(self).remove(object)
    }

    /// Stores a complete list: objects that are not in it are gone.
    pub(crate) fn replace<V: HasMeta>(
        &mut self,
        kind: Kind,
        place: Place<V>,
        objects: Vec<V>,
        revision: u64,
    ) -> Vec<Delta<V>> {
        self.saw(kind, revision);
        place(self).replace(objects)
    }

    pub(crate) fn put_other(&mut self, resource: &Arc<Resource>, object: Bare) -> Vec<Delta<Bare>> {
        self.others.entry(Arc::clone(resource)).or_default().put(object)
    }

    pub(crate) fn remove_other(&mut self, resource: &Arc<Resource>, object: &Meta) -> Vec<Delta<Bare>> {
        self.others.get_mut(resource).map(|store| store.remove(object)).unwrap_or_default()
    }

    pub(crate) fn replace_others(
        &mut self,
        resource: &Arc<Resource>,
        objects: Vec<Bare>,
    ) -> Vec<Delta<Bare>> {
        self.others.entry(Arc::clone(resource)).or_default().replace(objects)
    }

    /// Stores which kinds the server serves now. Objects of kinds that are no longer served are dropped.
    pub(crate) fn serve(&mut self, served: Served) {
        self.others.retain(|resource, _| served.others().any(|known| known == resource));
        self.served = Some(served);
    }

    /// The served kinds; `None` before the first discovery.
    pub(crate) fn served(&self) -> Option<&Served> {
        self.served.as_ref()
    }

    /// True if all objects of all kinds have been listed.
    pub(crate) fn is_complete(&self) -> bool {
        let listed = |served: &Served| served.others().all(|resource| self.others.contains_key(resource));
        Kind::WATCHED.iter().all(|kind| self.revisions.contains_key(kind))
            && self.served.as_ref().is_some_and(listed)
    }

    /// The metadata of an object, whatever its kind.
    pub(crate) fn meta(&self, collection: &Collection, key: &str) -> Option<&Meta> {
        fn of<'s, V: HasMeta>(store: &'s Store<V>, key: &str) -> Option<&'s Meta> {
            store.get(key).map(|object| object.meta())
        }
        match collection {
            Collection::Known(Kind::Pod) => of(&self.pods, key),
            Collection::Known(Kind::Node) => of(&self.nodes, key),
            Collection::Known(Kind::Lease) => of(&self.leases, key),
            Collection::Known(Kind::Claim) => of(&self.claims, key),
            Collection::Known(Kind::Volume) => of(&self.volumes, key),
            Collection::Known(Kind::StorageClass) => of(&self.storage_classes, key),
            Collection::Known(Kind::Attachment) => of(&self.attachments, key),
            Collection::Known(Kind::ReplicaSet) => of(&self.replica_sets, key),
            Collection::Known(Kind::Deployment) => of(&self.deployments, key),
            Collection::Known(Kind::StatefulSet) => of(&self.stateful_sets, key),
            Collection::Known(Kind::Job) => of(&self.jobs, key),
            Collection::Known(Kind::Budget) => of(&self.budgets, key),
            Collection::Known(Kind::Namespace) => of(&self.namespaces, key),
            Collection::Known(Kind::Event) => None,
            Collection::Other(resource) => self.others.get(resource).and_then(|store| of(store, key)),
        }
    }

    /// The watch of a kind has reached this revision.
    pub(crate) fn saw(&mut self, kind: Kind, revision: u64) {
        let known = self.revisions.entry(kind).or_default();
        *known = revision.max(*known);
    }

    /// The revision that the watch of a kind has reached; `None` before its first list.
    pub(crate) fn revision(&self, kind: Kind) -> Option<u64> {
        self.revisions.get(&kind).copied()
    }

    /// Updates the indexes of pods.
    pub(crate) fn index(&mut self, change: &Change) {
        let Change::Pod(delta) = change else { return };
        let Delta { old, new } = delta;
        reindex(&mut self.pods_by_node, old.as_ref(), new.as_ref(), |pod| {
            pod.is_bound().then_some(Cow::Borrowed(&pod.spec.node_name))
        });
        reindex(&mut self.pods_by_owner, old.as_ref(), new.as_ref(), |pod| {
            let owner = pod.metadata.controller().map(|owner| Cow::Borrowed(owner.uid.as_str()));
            Some(owner.unwrap_or_else(|| Cow::Owned(nobody_in(&pod.metadata.namespace))))
        });
    }

    pub(crate) fn pods_on<'w>(&'w self, node: &str) -> impl Iterator<Item = &'w Arc<Pod>> + use<'w> {
        self.pods_by_node.get(node).into_iter().flat_map(BTreeMap::values)
    }

    pub(crate) fn pods_of<'w>(&'w self, owner: &str) -> impl Iterator<Item = &'w Arc<Pod>> + use<'w> {
        self.pods_by_owner.get(owner).into_iter().flat_map(BTreeMap::values)
    }

    pub(crate) fn pods_of_nobody<'w>(
        &'w self,
        namespace: &str,
    ) -> impl Iterator<Item = &'w Arc<Pod>> + use<'w> {
        self.pods_of(&nobody_in(namespace))
    }

    /// Adds an object to the world of a test.
    #[cfg(test)]
    pub(crate) fn with<V: HasMeta + serde::de::DeserializeOwned>(
        &mut self,
        kind: Kind,
        place: Place<V>,
        change: fn(Delta<V>) -> Change,
        object: serde_json::Value,
    ) -> Vec<Change> {
        let object: V = serde_json::from_value(object).unwrap();
        let changes: Vec<Change> = self.put(kind, place, object).into_iter().map(change).collect();
        for change in &changes {
            self.index(change);
        }
        changes
    }
}
