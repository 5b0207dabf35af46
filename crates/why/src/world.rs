//! What was read of a cluster, and what is wanted besides.

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

/// The reason of a kubelet's event about a volume that it cannot mount.
pub(crate) const FAILED_MOUNT: &str = "FailedMount";

/// Something to read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Query {
    /// One object.
    Get {
        /// Its kind.
        kind: Kind,
        /// Its namespace, empty if it has none.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Objects of a kind.
    List {
        /// Their kind.
        kind: Kind,
        /// Their namespace, empty for all.
        namespace: String,
        /// The labels that they have, as `kubectl -l` takes them.
        labels: String,
        /// The fields that they have, as `kubectl --field-selector` takes them.
        fields: String,
    },
}

/// The end of a reading.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The object, or the objects.
    Found(Vec<Value>),
    /// There is none.
    Absent,
    /// It cannot be read, and why.
    Unseen(NotSeen),
}

/// One object, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen<'a> {
    Here(&'a Value),
    Absent,
    /// It was not read yet, or cannot be.
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

/// Kinds whose objects the rules look through again and again. They are few, or slim.
static LOOKED_THROUGH: [&Kind; 5] = [&ATTACHMENT, &BUDGET, &QUOTA, &VALIDATING, &MUTATING];

/// An object of many: as text, and as a value while it is looked at. A value takes ten times as much memory.
struct Slot {
    /// None if it stays a value.
    text: Option<Box<str>>,
    value: OnceCell<Value>,
}

/// All objects of one kind.
#[derive(Default)]
struct Shelf {
    slots: Vec<Slot>,
    /// The slots that hold both a text and a value.
    opened: RefCell<Vec<usize>>,
    by_name: HashMap<(Box<str>, Box<str>), usize>,
    /// By the UID of an owner; events by the UID of the object that they are about.
    by_owner: HashMap<Box<str>, Vec<usize>>,
    /// Pods by their node.
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
            // A copy, because a text that grew has room to spare, and an allocator may not take it back.
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

    /// Keeps the texts alone.
    fn close(&mut self) {
        for at in self.opened.get_mut().drain(..) {
            if let Some(slot) = self.slots.get_mut(at) {
                slot.value.take();
            }
        }
    }
}

/// What was read of a cluster.
pub struct World {
    /// The API server's time.
    pub now: Timestamp,
    known: BTreeMap<Query, Outcome>,
    whole: BTreeMap<Kind, Shelf>,
    /// Kinds that were to be read at once, and cannot be.
    unseen: BTreeMap<Kind, NotSeen>,
    /// The namespace that whole kinds were read in, none for all.
    within: Option<String>,
    wanted: RefCell<BTreeSet<Query>>,
    missed: RefCell<BTreeSet<NotSeen>>,
}

impl World {
    /// A cluster of which nothing was read yet.
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

    /// The same, with whole kinds read in one namespace only.
    pub(crate) fn within(mut self, namespace: Option<&str>) -> Self {
        self.within = namespace.map(str::to_owned);
        self
    }

    /// Whether a kind that was read at once was read in this namespace too.
    pub(crate) fn covers(&self, kind: &Kind, namespace: &str) -> bool {
        let here = self.within.as_ref().is_none_or(|within| namespace.is_empty() || within == namespace);
        here && self.was_tried(kind)
    }

    /// Takes in what was read.
    pub fn learn(&mut self, query: Query, outcome: Outcome) {
        self.known.insert(query, outcome);
    }

    /// Takes in all objects of a kind: no single one of them is wanted from then on.
    pub fn learn_all(&mut self, kind: &Kind, objects: Vec<Value>) {
        self.begin(kind);
        for object in objects {
            self.learn_one_of_all(kind, object);
        }
    }

    /// From here on a kind counts as read at once, with the objects that are told one by one.
    pub(crate) fn begin(&mut self, kind: &Kind) {
        self.whole.insert(kind.clone(), Shelf::default());
    }

    pub(crate) fn learn_one_of_all(&mut self, kind: &Kind, object: Value) {
        if let Some(shelf) = self.whole.get_mut(kind) {
            shelf.add(kind, object);
        }
    }

    /// A kind cannot be read at once: nothing is known of its objects, and not that there are none.
    pub(crate) fn cannot_see(&mut self, kind: &Kind, missed: NotSeen) {
        self.whole.remove(kind);
        self.unseen.insert(kind.clone(), missed);
    }

    /// Notes that a kind is wanted which cannot be read; whether it cannot.
    fn misses(&self, kind: &Kind) -> bool {
        let missed = self.unseen.get(kind);
        self.missed.borrow_mut().extend(missed.cloned());
        missed.is_some()
    }

    /// Forgets the values of what was looked at; their texts stay.
    pub(crate) fn close(&mut self) {
        self.whole.values_mut().for_each(Shelf::close);
    }

    /// Whether this was read.
    pub(crate) fn knows(&self, query: &Query) -> bool {
        self.known.contains_key(query)
    }

    /// What the rules wanted and did not have since this was last asked.
    pub fn wanted(&mut self) -> Vec<Query> {
        let wanted = std::mem::take(self.wanted.get_mut());
        wanted.into_iter().filter(|query| !self.known.contains_key(query)).collect()
    }

    /// What the rules wanted and nobody may see. Forgets it.
    pub fn missed(&mut self) -> Vec<NotSeen> {
        std::mem::take(self.missed.get_mut()).into_iter().collect()
    }

    /// Notes something that cannot be known from here.
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

    /// Why an object cannot be read, if it cannot.
    pub(crate) fn refusal_of(&self, kind: &Kind, namespace: &str, name: &str) -> Option<&str> {
        let query = Query::Get { kind: kind.clone(), namespace: namespace.to_owned(), name: name.to_owned() };
        match self.known.get(&query)? {
            Outcome::Unseen(missed) => Some(&missed.why),
            Outcome::Found(_) | Outcome::Absent => None,
        }
    }

    /// The objects of a kind in a namespace; none if that is not known.
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

    /// The objects of a kind that have an owner; `labels` are those that all of them have.
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

    /// The pods on a node.
    pub(crate) fn pods_on(&self, node: &str) -> Option<Vec<&Value>> {
        if let Some(shelf) = self.whole.get(&POD) {
            return Some(shelf.at(shelf.by_node.get(node)));
        }
        self.list(&POD, "", "", &format!("spec.nodeName={node}"))
    }

    /// The events about an object, newest last.
    pub(crate) fn events(&self, namespace: &str, uid: &str) -> Option<Vec<&Value>> {
        let mut events = match self.whole.get(&EVENT) {
            Some(shelf) => shelf.at(shelf.by_owner.get(uid)),
            None => self.list(&EVENT, namespace, "", &format!("involvedObject.uid={uid}"))?,
        };
        events.sort_by_key(|event| crate::admission::told_at(event));
        Some(events)
    }

    /// The events about a pod whose volumes cannot be mounted. Those of a namespace are read at once: many pods may wait.
    pub(crate) fn failed_mounts(&self, namespace: &str, uid: &str) -> Option<Vec<&Value>> {
        if self.whole.contains_key(&EVENT) {
            let events = self.events(namespace, uid)?;
            return Some(events.into_iter().filter(|event| text(event, "/reason") == FAILED_MOUNT).collect());
        }
        let all = self.list(&EVENT, namespace, "", &format!("reason={FAILED_MOUNT}"))?;
        Some(all.into_iter().filter(|event| text(event, "/involvedObject/uid") == uid).collect())
    }

    /// Whether objects of this kind were read all at once, or cannot be.
    pub(crate) fn was_tried(&self, kind: &Kind) -> bool {
        self.whole.contains_key(kind) || self.unseen.contains_key(kind)
    }

    /// The nodes of which nobody hears, of those that were read at once.
    pub(crate) fn lost_nodes(&self) -> BTreeSet<String> {
        let nodes = (0..self.count(&NODE)).filter_map(|at| self.at(&NODE, at));
        nodes.filter(|node| crate::nodes::is_unheard(node)).map(|node| name(node).to_owned()).collect()
    }

    /// The number of objects of a kind that was read at once.
    pub(crate) fn count(&self, kind: &Kind) -> usize {
        self.whole.get(kind).map_or(0, |shelf| shelf.slots.len())
    }

    /// One object of a kind that was read at once.
    pub(crate) fn at(&self, kind: &Kind, at: usize) -> Option<&Value> {
        self.whole.get(kind)?.get(at)
    }
}
