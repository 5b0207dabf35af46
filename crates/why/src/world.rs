//! The objects that were read from a cluster, and those that the rules still need.

use std::{
    cell::{OnceCell, RefCell},
    collections::{BTreeMap, BTreeSet, HashMap},
};

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    answer::NotSeen,
    json::{is_owned_by, name, namespace, text},
    kinds::{ATTACHMENT, BUDGET, EVENT, Kind, MUTATING, NODE, POD, QUOTA, VALIDATING},
};

/// Reason of the kubelet's event about a volume that it cannot mount.
pub(crate) const FAILED_MOUNT: &str = "FailedMount";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Query {
    Get {
        kind: Kind,
        /// Empty for a cluster-scoped kind.
        namespace: String,
        name: String,
    },
    List {
        kind: Kind,
        /// Empty for all namespaces.
        namespace: String,
        /// A label selector, as `kubectl -l` takes it.
        labels: String,
        /// A field selector, as `kubectl --field-selector` takes it.
        fields: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Found(Vec<Value>),
    Absent,
    Unseen(NotSeen),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen<'a> {
    Here(&'a Value),
    Absent,
    /// Not read yet, or not readable.
    Unknown,
}

impl<'a> Seen<'a> {
    pub(crate) fn here(self) -> Option<&'a Value> {
        match self {
            Self::Here(object) => Some(object),
            Self::Absent | Self::Unknown => None,
        }
    }
}

/// Kinds whose objects the rules scan repeatedly. Their objects are few or small, so they stay parsed.
static LOOKED_THROUGH: [&Kind; 5] = [&ATTACHMENT, &BUDGET, &QUOTA, &VALIDATING, &MUTATING];

/// One of many objects, kept as text and parsed only while it is in use. A parsed value takes ten times as much memory.
struct Slot {
    /// `None` if the object stays parsed.
    text: Option<Box<str>>,
    value: OnceCell<Value>,
}

#[derive(Default)]
struct Shelf {
    slots: Vec<Slot>,
    /// The slots that hold both text and value.
    opened: RefCell<Vec<usize>>,
    by_name: HashMap<(Box<str>, Box<str>), usize>,
    /// By owner UID. Events by the UID of the object they are about.
    by_owner: HashMap<Box<str>, Vec<usize>>,
    by_node: HashMap<Box<str>, Vec<usize>>,
}

impl Shelf {
    fn add(&mut self, kind: &Kind, object: Value) {
        let at = self.slots.len();
        let mut owned_by = |owner: &str| {
            if !owner.is_empty() {
                self.by_owner.entry(owner.into()).or_default().push(at);
            }
        };
        owned_by(text(&object, "/owner"));
        if *kind == EVENT {
            owned_by(text(&object, "/involvedObject/uid"));
        }
        for owner in crate::json::list(&object, "/metadata/ownerReferences") {
            owned_by(text(owner, "/uid"));
        }
        if !crate::json::is_true(&object, "/healthy") {
            self.by_name.insert((namespace(&object).into(), name(&object).into()), at);
        }
        let node = text(&object, "/spec/nodeName");
        if *kind == POD && !node.is_empty() {
            self.by_node.entry(node.into()).or_default().push(at);
        }
        self.slots.push(match LOOKED_THROUGH.contains(&kind) {
            true => Slot { text: None, value: OnceCell::from(object) },
            // Copies the text: a string that grew has spare capacity, which an allocator may not reclaim.
            false => Slot { text: Some(object.to_string().as_str().into()), value: OnceCell::new() },
        });
    }

    fn get(&self, at: usize) -> Option<&Value> {
        let slot = self.slots.get(at)?;
        Some(slot.value.get_or_init(|| {
            self.opened.borrow_mut().push(at);
            slot.text.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
        }))
    }

    fn at<'a>(&'a self, places: Option<&'a Vec<usize>>) -> Vec<&'a Value> {
        places.into_iter().flatten().filter_map(|at| self.get(*at)).collect()
    }

    /// Drops the parsed values and keeps the texts.
    fn close(&mut self) {
        for at in self.opened.get_mut().drain(..) {
            if let Some(slot) = self.slots.get_mut(at) {
                slot.value.take();
            }
        }
    }
}

pub struct World {
    /// The API server's time.
    pub now: Timestamp,
    known: BTreeMap<Query, Outcome>,
    whole: BTreeMap<Kind, Shelf>,
    /// Kinds that should have been listed as a whole and cannot be read.
    unseen: BTreeMap<Kind, NotSeen>,
    /// The namespace of the kinds that were listed as a whole. `None` for all namespaces.
    within: Option<String>,
    wanted: RefCell<BTreeSet<Query>>,
    missed: RefCell<BTreeSet<NotSeen>>,
}

impl World {
    pub fn new(now: Timestamp) -> Self {
        Self {
            now,
            known: BTreeMap::new(),
            whole: BTreeMap::new(),
            unseen: BTreeMap::new(),
            within: None,
            wanted: RefCell::default(),
            missed: RefCell::default(),
        }
    }

    /// Restricts the kinds that are listed as a whole to one namespace.
    pub(crate) fn within(mut self, namespace: Option<&str>) -> Self {
        self.within = namespace.map(str::to_owned);
        self
    }

    /// Whether the list of a whole kind includes this namespace.
    pub(crate) fn covers(&self, kind: &Kind, namespace: &str) -> bool {
        let here = self.within.as_ref().is_none_or(|within| namespace.is_empty() || within == namespace);
        here && self.was_tried(kind)
    }

    pub fn learn(&mut self, query: Query, outcome: Outcome) {
        self.known.insert(query, outcome);
    }

    /// Stores all objects of a kind. The rules request no single object of it from then on.
    pub fn learn_all(&mut self, kind: &Kind, objects: Vec<Value>) {
        self.begin(kind);
        for object in objects {
            self.learn_one_of_all(kind, object);
        }
    }

    /// Marks a kind as listed as a whole. Its objects follow one by one.
    pub(crate) fn begin(&mut self, kind: &Kind) {
        self.whole.insert(kind.clone(), Shelf::default());
    }

    pub(crate) fn learn_one_of_all(&mut self, kind: &Kind, object: Value) {
        if let Some(shelf) = self.whole.get_mut(kind) {
            shelf.add(kind, object);
        }
    }

    /// Marks a kind as not readable. Its objects are unknown, which does not mean that there are none.
    pub(crate) fn cannot_see(&mut self, kind: &Kind, missed: NotSeen) {
        self.whole.remove(kind);
        self.unseen.insert(kind.clone(), missed);
    }

    /// Records that the rules need a kind that cannot be read. Returns whether that is so.
    fn misses(&self, kind: &Kind) -> bool {
        let missed = self.unseen.get(kind);
        self.missed.borrow_mut().extend(missed.cloned());
        missed.is_some()
    }

    /// Drops the parsed values. Their texts stay.
    pub(crate) fn close(&mut self) {
        self.whole.values_mut().for_each(Shelf::close);
    }

    pub(crate) fn knows(&self, query: &Query) -> bool {
        self.known.contains_key(query)
    }

    /// The objects that the rules needed and did not have since the last call.
    pub fn wanted(&mut self) -> Vec<Query> {
        let wanted = std::mem::take(self.wanted.get_mut());
        wanted.into_iter().filter(|query| !self.known.contains_key(query)).collect()
    }

    /// The objects that the rules needed and cannot read. Clears the record.
    pub fn missed(&mut self) -> Vec<NotSeen> {
        std::mem::take(self.missed.get_mut()).into_iter().collect()
    }

    pub(crate) fn miss(&self, what: impl Into<String>, why: impl Into<String>) {
        self.missed.borrow_mut().insert(NotSeen { what: what.into(), why: why.into() });
    }

    fn answer(&self, query: Query) -> Option<&Outcome> {
        match self.known.get(&query) {
            Some(Outcome::Unseen(missed)) => {
                self.missed.borrow_mut().insert(missed.clone());
                None
            }
            Some(outcome) => Some(outcome),
            None => {
                self.wanted.borrow_mut().insert(query);
                None
            }
        }
    }

    pub(crate) fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Seen<'_> {
        if let Some(shelf) = self.whole.get(kind).filter(|_| self.covers(kind, namespace)) {
            let at = shelf.by_name.get(&(namespace.into(), name.into()));
            return at.and_then(|at| shelf.get(*at)).map_or(Seen::Absent, Seen::Here);
        }
        if self.covers(kind, namespace) && self.misses(kind) {
            return Seen::Unknown;
        }
        let query = Query::Get { kind: kind.clone(), namespace: namespace.to_owned(), name: name.to_owned() };
        match self.answer(query) {
            Some(Outcome::Found(objects)) => objects.first().map_or(Seen::Absent, Seen::Here),
            Some(Outcome::Absent) => Seen::Absent,
            Some(Outcome::Unseen(_)) | None => Seen::Unknown,
        }
    }

    pub(crate) fn refusal_of(&self, kind: &Kind, namespace: &str, name: &str) -> Option<&str> {
        let query = Query::Get { kind: kind.clone(), namespace: namespace.to_owned(), name: name.to_owned() };
        match self.known.get(&query)? {
            Outcome::Unseen(missed) => Some(&missed.why),
            Outcome::Found(_) | Outcome::Absent => None,
        }
    }

    /// `None` if the objects are not known.
    pub(crate) fn list(
        &self,
        kind: &Kind,
        namespace: &str,
        labels: &str,
        fields: &str,
    ) -> Option<Vec<&Value>> {
        if let Some(shelf) = self.whole.get(kind) {
            let here = |object: &&Value| namespace.is_empty() || crate::json::namespace(object) == namespace;
            return Some((0..shelf.slots.len()).filter_map(|at| shelf.get(at)).filter(here).collect());
        }
        if self.misses(kind) {
            return None;
        }
        let query = Query::List {
            kind: kind.clone(),
            namespace: namespace.to_owned(),
            labels: labels.to_owned(),
            fields: fields.to_owned(),
        };
        match self.answer(query)? {
            Outcome::Found(objects) => Some(objects.iter().collect()),
            Outcome::Absent => Some(Vec::new()),
            Outcome::Unseen(_) => None,
        }
    }

    /// The objects of a kind with this owner. `labels` are the labels that all of them have.
    pub(crate) fn owned(
        &self,
        kind: &Kind,
        namespace: &str,
        owner: &str,
        labels: &str,
    ) -> Option<Vec<&Value>> {
        if let Some(shelf) = self.whole.get(kind) {
            return Some(shelf.at(shelf.by_owner.get(owner)));
        }
        let all = self.list(kind, namespace, labels, "")?;
        Some(all.into_iter().filter(|object| is_owned_by(object, owner)).collect())
    }

    pub(crate) fn pods_on(&self, node: &str) -> Option<Vec<&Value>> {
        if let Some(shelf) = self.whole.get(&POD) {
            return Some(shelf.at(shelf.by_node.get(node)));
        }
        self.list(&POD, "", "", &format!("spec.nodeName={node}"))
    }

    /// Newest last.
    pub(crate) fn events(&self, namespace: &str, uid: &str) -> Option<Vec<&Value>> {
        let mut events = match self.whole.get(&EVENT) {
            Some(shelf) => shelf.at(shelf.by_owner.get(uid)),
            None => self.list(&EVENT, namespace, "", &format!("involvedObject.uid={uid}"))?,
        };
        events.sort_by_key(|event| crate::json::told_at(event));
        Some(events)
    }

    /// The failed mounts of a pod. Reads those of the whole namespace at once, because many pods may wait.
    pub(crate) fn failed_mounts(&self, namespace: &str, uid: &str) -> Option<Vec<&Value>> {
        if self.whole.contains_key(&EVENT) {
            let events = self.events(namespace, uid)?;
            return Some(events.into_iter().filter(|event| text(event, "/reason") == FAILED_MOUNT).collect());
        }
        let all = self.list(&EVENT, namespace, "", &format!("reason={FAILED_MOUNT}"))?;
        Some(all.into_iter().filter(|event| text(event, "/involvedObject/uid") == uid).collect())
    }

    /// Whether all objects of this kind were listed, or cannot be.
    pub(crate) fn was_tried(&self, kind: &Kind) -> bool {
        self.whole.contains_key(kind) || self.unseen.contains_key(kind)
    }

    /// The nodes with silent kubelets, of those that were listed as a whole.
    pub(crate) fn lost_nodes(&self) -> BTreeSet<String> {
        let nodes = (0..self.count(&NODE)).filter_map(|at| self.at(&NODE, at));
        nodes.filter(|node| crate::json::is_unheard(node)).map(|node| name(node).to_owned()).collect()
    }

    /// The number of objects of a kind that was listed as a whole.
    pub(crate) fn count(&self, kind: &Kind) -> usize {
        self.whole.get(kind).map_or(0, |shelf| shelf.slots.len())
    }

    pub(crate) fn at(&self, kind: &Kind, at: usize) -> Option<&Value> {
        self.whole.get(kind)?.get(at)
    }
}
