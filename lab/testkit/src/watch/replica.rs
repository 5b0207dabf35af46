//! A copy of some objects that follows the API server by watch, and knows whether it has caught up.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::Resource;
use kube::api::{Api, ListParams, ObjectList};
use kube::runtime::utils::{Backoff, StreamBackoff};
use kube::runtime::watcher::{self, watcher};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Short, because a test's API server is local, and because tests restart it.
struct Retry;

impl Iterator for Retry {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(Duration::from_millis(50))
    }
}

impl Backoff for Retry {
    fn reset(&mut self) {}
}

/// Every change of the selected objects; survives restarts of the API server.
pub(crate) fn follow<K>(
    api: &Api<K>,
    selection: &ListParams,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + use<K>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let config = watcher::Config {
        label_selector: selection.label_selector.clone(),
        field_selector: selection.field_selector.clone(),
        // A dead connection is dropped five seconds after this; nothing else depends on it.
        timeout: Some(30),
        ..watcher::Config::default()
    };
    StreamBackoff::new(watcher(api.clone(), config), Retry).boxed()
}

/// The field selector for the object of this name.
pub(crate) fn named(name: &str) -> ListParams {
    ListParams::default().fields(&format!("metadata.name={name}"))
}

/// An object as JSON, without managedFields.
pub(crate) fn without_managed_fields<K: Serialize>(object: &K) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    value
}

type Key<'a> = (Option<&'a str>, &'a str);

/// The objects as last seen, ordered by namespace and name: a slice, so that reading thousands of them at every event
/// copies none.
#[derive(Debug)]
pub(crate) struct Replica<K> {
    objects: Vec<K>,
    relist: Vec<K>,
    complete: bool,
    newest: u64,
}

impl<K> Default for Replica<K> {
    fn default() -> Self {
        Self { objects: Vec::new(), relist: Vec::new(), complete: false, newest: 0 }
    }
}

impl<K: Resource + Clone> Replica<K> {
    pub(crate) fn take(&mut self, event: watcher::Event<K>) {
        if let watcher::Event::InitApply(object)
        | watcher::Event::Apply(object)
        | watcher::Event::Delete(object) = &event
        {
            self.newest = self.newest.max(version(object.meta().resource_version.as_ref()));
        }
        match event {
            watcher::Event::Init => self.relist.clear(),
            watcher::Event::InitApply(object) => self.relist.push(object),
            watcher::Event::InitDone => {
                self.objects = std::mem::take(&mut self.relist);
                self.objects.sort_by(|a, b| key(a).cmp(&key(b)));
                self.complete = true;
            }
            watcher::Event::Apply(object) => match self.place_of(&object) {
                Ok(place) => self.objects[place] = object,
                Err(place) => self.objects.insert(place, object),
            },
            watcher::Event::Delete(object) => {
                if let Ok(place) = self.place_of(&object) {
                    self.objects.remove(place);
                }
            }
        }
    }

    fn place_of(&self, object: &K) -> Result<usize, usize> {
        self.objects.binary_search_by(|other| key(other).cmp(&key(object)))
    }

    /// The objects, if the first list is complete.
    pub(crate) fn objects(&self) -> Option<&[K]> {
        self.complete.then_some(&self.objects)
    }

    /// The objects of a namespace whose names have this prefix, without a scan of the others.
    pub(crate) fn named_like(&self, namespace: &str, prefix: &str) -> &[K] {
        let from = self.objects.partition_point(|object| key(object) < (Some(namespace), prefix));
        let those = &self.objects[from..];
        let like = |object: &K| {
            let (place, name) = key(object);
            place == Some(namespace) && name.starts_with(prefix)
        };
        &those[..those.partition_point(like)]
    }

    /// True if the state of a list has been reached: some later event has come, or the states are equal. A quiet watch
    /// sends nothing, so this is how an observer learns that no event is still in flight (except for those that cancel
    /// each other out).
    pub(crate) fn has_caught_up_with(&self, list: &ObjectList<K>) -> bool {
        fn versions<K: Resource>(objects: &[K]) -> BTreeMap<Key<'_>, Option<&str>> {
            objects.iter().map(|o| (key(o), o.meta().resource_version.as_deref())).collect()
        }
        self.complete
            && (self.newest >= version(list.metadata.resource_version.as_ref()).max(1)
                || versions(&self.objects) == versions(&list.items))
    }
}

fn key<K: Resource>(object: &K) -> Key<'_> {
    let meta = object.meta();
    (meta.namespace.as_deref(), meta.name.as_deref().unwrap_or_default())
}

/// Resource versions of one API server are increasing numbers.
fn version(text: Option<&String>) -> u64 {
    text.and_then(|version| version.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;
    use kube::api::{ListMeta, ObjectMeta, TypeMeta};
    use watcher::Event;

    use super::*;

    fn object(name: &str, version: u64) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                resource_version: Some(version.to_string()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        }
    }

    fn list(version: u64, items: &[ConfigMap]) -> ObjectList<ConfigMap> {
        ObjectList {
            types: TypeMeta::default(),
            metadata: ListMeta { resource_version: Some(version.to_string()), ..ListMeta::default() },
            items: items.to_vec(),
        }
    }

    fn replica(events: Vec<Event<ConfigMap>>) -> Replica<ConfigMap> {
        let mut replica = Replica::default();
        events.into_iter().for_each(|event| replica.take(event));
        replica
    }

    #[test]
    fn nothing_is_known_before_the_first_list_is_complete() {
        let replica = replica(vec![Event::Init, Event::InitApply(object("a", 3))]);
        assert!(replica.objects().is_none());
        assert!(!replica.has_caught_up_with(&list(3, &[object("a", 3)])));
    }

    #[test]
    fn a_relist_forgets_what_is_gone() {
        let replica = replica(vec![
            Event::Init,
            Event::InitApply(object("a", 3)),
            Event::InitDone,
            Event::Init,
            Event::InitApply(object("b", 4)),
            Event::InitDone,
        ]);
        let names: Vec<_> = replica.objects().unwrap().iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["b"]);
    }

    #[test]
    fn caught_up_means_the_same_state_or_a_later_event() {
        let listed = || vec![Event::Init, Event::InitApply(object("a", 3)), Event::InitDone];
        let behind = replica(listed());
        assert!(behind.has_caught_up_with(&list(9, &[object("a", 3)])));
        assert!(!behind.has_caught_up_with(&list(9, &[object("a", 5)])));
        assert!(!behind.has_caught_up_with(&list(9, &[object("a", 3), object("b", 8)])));
        assert!(!behind.has_caught_up_with(&list(9, &[])));

        let mut events = listed();
        events.push(Event::Delete(object("a", 10)));
        assert!(replica(events).has_caught_up_with(&list(9, &[object("a", 5)])));
    }
}
