//! The objects of all kinds that AppWrappers wrap. A kind is watched from when the first AppWrapper has a component of
//! it, in one version: users may name versions that do not exist, and the objects are the same in all of them. So
//! there are at most as many watches as kinds in `appwrapper.wrappedKinds`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::Timestamp;
use salvor_api::names::appwrapper::MEMBER_LABEL;
use salvor_recovery::{
    appwrapper::{End, FoundComponent, Last, Seen},
    ids::Uid,
};

use super::{news::News, wire::Components};
use crate::{
    client::{
        discovery::{GroupKind, Kind, Served, Versions},
        revision::Told,
    },
    watch_set::{
        feeds::{Feed, KindLost, KindTarget, OfKind},
        watch::{Change, Moment},
    },
};

/// The name of the component watches in metrics.
pub(super) const COMPONENTS: &str = "appwrapper components";
/// Number of deleted UIDs to remember, for answers that arrive after the deletion.
const GONE: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Kinds {
    stores: BTreeMap<GroupKind, Store>,
    /// Number of AppWrappers with a component of the kind.
    users: BTreeMap<GroupKind, usize>,
    /// Number of watches started so far.
    begun: u64,
    changed: bool,
}

#[derive(Debug)]
pub(super) struct Store {
    number: u64,
    state: State,
    served: Option<Served>,
    /// Since when the server does not serve the kind, if known.
    unserved_since: Option<Timestamp>,
    objects: BTreeMap<Uid, FoundComponent>,
    names: BTreeMap<(String, String), Uid>,
    owned: BTreeMap<Uid, BTreeSet<Uid>>,
    gone: VecDeque<Uid>,
}

#[derive(Debug)]
enum State {
    /// Not listed yet.
    Awaited,
    /// Listed in the history with this epoch.
    Listed(u64),
    Lost(KindLost),
}

/// The effect of a change of a kind.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// UIDs of the owners of changed objects.
    pub(super) owners: BTreeSet<Uid>,
    /// The last states of deleted objects.
    pub(super) gone: Vec<Last>,
    /// True if all AppWrappers with a component of this kind are affected.
    pub(super) all: bool,
}

impl Kinds {
    /// Registers an AppWrapper with components of these kinds.
    pub(super) fn use_all(&mut self, kinds: &BTreeSet<GroupKind>) {
        for kind in kinds {
            *self.users.entry(kind.clone()).or_default() += 1;
            if !self.stores.contains_key(kind) {
                self.begun += 1;
                self.stores.insert(kind.clone(), Store::new(self.begun));
                self.changed = true;
            }
        }
    }

    /// Unregisters an AppWrapper from these kinds. A listed kind stays watched, because the next AppWrapper with that
    /// kind would have to wait for its list.
    pub(super) fn release_all(&mut self, kinds: &BTreeSet<GroupKind>) {
        for kind in kinds {
            let Some(users) = self.users.get_mut(kind) else { continue };
            *users = users.saturating_sub(1);
            if *users > 0 {
                continue;
            }
            self.users.remove(kind);
            if self.stores.get(kind).is_some_and(|store| !matches!(store.state, State::Listed(_))) {
                self.stores.remove(kind);
                self.changed = true;
            }
        }
    }

    /// Whether the set of watches changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn feeds(&self) -> Vec<Feed<News>> {
        let feed = |(kind, store): (&GroupKind, &Store)| {
            let target = KindTarget {
                kind: kind.read_as(),
                versions: Versions::Any,
                namespace: None,
                field_selector: None,
                label_selector: Some(MEMBER_LABEL.to_owned()),
            };
            let of = kind.clone();
            Feed::kind(COMPONENTS, target, store.number, Components(kind.read_as()), move |news| {
                News::Component(of.clone(), news)
            })
        };
        self.stores.iter().map(feed).collect()
    }

    pub(super) fn get(&self, kind: &Kind) -> Option<&Store> {
        self.stores.get(&kind.into())
    }

    pub(super) fn get_mut(&mut self, kind: &Kind) -> Option<&mut Store> {
        self.stores.get_mut(&kind.into())
    }

    pub(super) fn owned_by<'a>(&'a self, uid: &'a Uid) -> impl Iterator<Item = &'a FoundComponent> {
        self.stores.values().flat_map(move |store| {
            let uids = store.owned.get(uid).into_iter().flatten();
            uids.filter_map(|uid| store.objects.get(uid))
        })
    }

    pub(super) fn on_change(
        &mut self,
        kind: &GroupKind,
        news: OfKind<FoundComponent>,
        now: Timestamp,
    ) -> Turn {
        let Some(store) = self.stores.get_mut(kind) else { return Turn::default() };
        match news {
            OfKind::Served(served) => {
                store.served = Some(served);
                store.unserved_since = None;
                Turn::default()
            }
            OfKind::Lost(lost) => {
                match lost {
                    KindLost::Unserved | KindLost::NotServed => {
                        store.unserved_since.get_or_insert(now);
                    }
                    // It may have been served all along.
                    KindLost::Failed(_) => store.unserved_since = None,
                }
                store.state = State::Lost(lost);
                Turn { all: true, ..Turn::default() }
            }
            OfKind::Change(Change::Applied(object)) => store.take(object, Told::Alone),
            OfKind::Change(Change::Gone(uid)) => store.drop(&uid, End::Told),
            OfKind::Change(Change::Reset { all, revision, .. }) => store.list(all, &revision),
        }
    }
}

impl Store {
    fn new(number: u64) -> Self {
        Self {
            number,
            state: State::Awaited,
            served: None,
            unserved_since: None,
            objects: BTreeMap::new(),
            names: BTreeMap::new(),
            owned: BTreeMap::new(),
            gone: VecDeque::new(),
        }
    }

    /// Where its objects are served, if they are listed.
    pub(super) fn served(&self) -> Option<&Served> {
        self.served.as_ref().filter(|_| matches!(self.state, State::Listed(_)))
    }

    pub(super) fn unserved_since(&self) -> Option<Timestamp> {
        self.unserved_since
    }

    /// The resource name in paths; empty if unknown.
    pub(super) fn resource(&self) -> &str {
        self.served.as_ref().map_or("", |served| &served.resource)
    }

    /// What is known of the object with this name in the history `epoch`.
    pub(super) fn seen(&self, namespace: &str, name: &str, last: Option<&Last>, epoch: u64) -> Seen {
        match &self.state {
            State::Awaited => Seen::Unknown("objects of its kind are not listed yet".into()),
            State::Lost(KindLost::NotServed) => Seen::NoSuchKind,
            State::Lost(KindLost::Unserved) => Seen::Unknown(KindLost::Unserved.to_string()),
            State::Lost(KindLost::Failed(words)) => Seen::Unknown(words.clone()),
            State::Listed(listed) if *listed != epoch => {
                Seen::Unknown("objects of its kind are listed anew".into())
            }
            State::Listed(_) if !self.served.as_ref().is_some_and(|served| served.namespaced) => {
                Seen::Unknown("objects of its kind are in no namespace, so no AppWrapper can own them".into())
            }
            State::Listed(_) => {
                let uid = self.names.get(&(namespace.to_owned(), name.to_owned()));
                match uid.and_then(|uid| self.objects.get(uid)) {
                    Some(found) => Seen::Found(Box::new(found.clone())),
                    None => Seen::Absent { last: last.cloned() },
                }
            }
        }
    }

    /// Applies an object unless a later state or its deletion is known.
    pub(super) fn take(&mut self, mut object: FoundComponent, told: Told) -> Turn {
        let uid = object.object.uid.clone();
        let known = self.objects.get(&uid).map(|known| known.resource_version.revision());
        let old = known.is_some_and(|known| !told.replaces(object.resource_version.revision(), known));
        if old || self.gone.contains(&uid) {
            return Turn::default();
        }
        if let Some(served) = &self.served {
            // Writes use the served resource and version.
            object.object.kind.resource.clone_from(&served.resource);
            object.object.kind.version.clone_from(&served.version);
        }
        let mut owners: BTreeSet<Uid> = object.owner_uid.iter().cloned().collect();
        if let Some(before) = self.forget(&uid) {
            owners.extend(before.owner_uid);
        }
        let place = (object.object.namespace.clone(), object.object.name.clone());
        self.names.insert(place, uid.clone());
        if let Some(owner) = &object.owner_uid {
            self.owned.entry(owner.clone()).or_default().insert(uid.clone());
        }
        self.objects.insert(uid, object);
        Turn { owners, ..Turn::default() }
    }

    fn drop(&mut self, uid: &Uid, end: End) -> Turn {
        if self.gone.len() >= GONE {
            self.gone.pop_front();
        }
        self.gone.push_back(uid.clone());
        let object = self.forget(uid);
        let owners = object.iter().filter_map(|it| it.owner_uid.clone()).collect();
        let gone = object.map(|object| Last { object: Box::new(object), end }).into_iter().collect();
        Turn { owners, gone, all: false }
    }

    fn forget(&mut self, uid: &Uid) -> Option<FoundComponent> {
        let object = self.objects.remove(uid)?;
        let place = (object.object.namespace.clone(), object.object.name.clone());
        if self.names.get(&place).is_some_and(|named| named == uid) {
            self.names.remove(&place);
        }
        if let Some(owner) = &object.owner_uid
            && let Some(owned) = self.owned.get_mut(owner)
        {
            owned.remove(uid);
            if owned.is_empty() {
                self.owned.remove(owner);
            }
        }
        Some(object)
    }

    /// Applies a list of all objects. Objects that are not in it are gone, unless they are known to be later than the
    /// list.
    fn list(&mut self, all: Vec<FoundComponent>, moment: &Moment) -> Turn {
        let mut turn = Turn { all: true, ..Turn::default() };
        if moment.new_history {
            // State from another history is not comparable with this one.
            self.objects.clear();
            self.names.clear();
            self.owned.clear();
            self.gone.clear();
        }
        let listed: BTreeSet<Uid> = all.iter().map(|object| object.object.uid.clone()).collect();
        let is_later = |object: &FoundComponent| object.resource_version.revision().is_after(moment.revision);
        let missing: Vec<Uid> = self
            .objects
            .iter()
            .filter(|(uid, object)| !listed.contains(*uid) && !is_later(object))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in missing {
            turn.gone.extend(self.drop(&uid, End::Missed).gone);
        }
        for object in all {
            self.take(object, Told::ByListAt(moment.revision));
        }
        self.state = State::Listed(moment.epoch);
        turn
    }
}
