//! Watches: a position in the log, and how later events are shown to the watcher.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::selection::Selection;
use super::{Event, Store};
use crate::kinds::table::{Resource, ResourceKey};
use crate::object::{self, Stored};
use crate::protocol::render;
use crate::protocol::request::Representation;
use crate::protocol::status::Refusal;

/// The annotation on the bookmark that ends the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

#[derive(Debug)]
pub struct Watch {
    resource: Arc<Resource>,
    selection: Selection,
    form: Representation,
    bookmarks: bool,
    lasts: Duration,
    /// Everything up to this revision has been sent.
    told: u64,
    /// Lines that are sent before anything from the log.
    waiting: Vec<Bytes>,
    ended: bool,
    /// Column definitions are sent with the first row of a table only.
    any_row_sent: bool,
}

impl Watch {
    pub(crate) fn new(
        resource: Arc<Resource>,
        selection: Selection,
        form: Representation,
        bookmarks: bool,
        lasts: Duration,
    ) -> Self {
        Self {
            resource,
            selection,
            form,
            bookmarks,
            lasts,
            told: 0,
            waiting: Vec::new(),
            ended: false,
            any_row_sent: false,
        }
    }

    /// The group and plural that it watches.
    pub fn resource(&self) -> (String, String) {
        let key: &ResourceKey = self.resource.key();
        key.clone()
    }

    /// When it ends by itself.
    pub fn lasts(&self) -> Duration {
        self.lasts
    }

    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// True if the client wants bookmarks.
    pub fn wants_bookmarks(&self) -> bool {
        self.bookmarks
    }

    pub(crate) fn begin_after(&mut self, revision: u64) {
        self.told = revision;
    }

    pub(crate) fn begin_with_state(
        &mut self,
        store: &Store,
        at: u64,
        ends_with_bookmark: bool,
        time: Timestamp,
    ) {
        let prefix = self.selection.prefix.clone();
        let resource = self.resource.key().clone();
        let now = store.revision();
        let past = (at < now).then(|| store.snapshot(&resource, &prefix, at).ok()).flatten();
        let (at, present): (u64, Vec<Arc<Stored>>) = match past {
            Some(past) => (at, past.into_values().collect()),
            None => (now, store.scan(&resource, &prefix).map(|(_, stored)| Arc::clone(stored)).collect()),
        };
        for stored in present {
            if self.selection.matches(&stored) {
                let line = self.line("ADDED", &stored, time);
                self.waiting.push(line);
            }
        }
        self.told = at;
        if ends_with_bookmark {
            let bookmark = self.bookmark_line(at, true);
            self.waiting.push(bookmark);
        }
    }

    /// New events, and then a bookmark for a watcher that wants one: it must not be ahead of any event.
    pub(crate) fn news_and_bookmark(&mut self, store: &Store, time: Timestamp) -> Vec<Bytes> {
        let mut lines = self.news(store, time);
        if self.bookmarks && !self.ended && store.revision() >= self.told {
            lines.push(self.bookmark_line(store.revision(), false));
        }
        lines
    }

    fn bookmark_line(&self, revision: u64, ends_initial_events: bool) -> Bytes {
        let mut metadata = json!({ "resourceVersion": revision.to_string() });
        if ends_initial_events {
            metadata["annotations"] = json!({ INITIAL_EVENTS_END: "true" });
        }
        let bookmark = match self.form {
            Representation::Full => {
                let empty = json!({ "metadata": metadata });
                let shaped = if self.resource.custom.is_none() {
                    crate::schema::decode(&self.resource.schema, empty.clone()).unwrap_or(empty)
                } else {
                    empty
                };
                render::typed(&self.resource, &shaped)
            }
            Representation::Metadata => {
                json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata })
            }
            Representation::Table(_) => {
                json!({ "apiVersion": "meta.k8s.io/v1", "kind": "Table", "metadata": metadata, "columnDefinitions": null, "rows": [] })
            }
        };
        render::line("BOOKMARK", &object::encode(&bookmark))
    }

    fn line(&mut self, kind: &str, stored: &Stored, time: Timestamp) -> Bytes {
        let first = !std::mem::replace(&mut self.any_row_sent, true);
        if let (Representation::Table(_), false) = (self.form, first) {
            let body = render::one(&self.resource, stored, self.form, time);
            let mut table: Value = serde_json::from_slice(&body).unwrap_or_default();
            table["columnDefinitions"] = Value::Null;
            return render::line(kind, &object::encode(&table));
        }
        render::event(&self.resource, kind, stored, self.form, time)
    }

    pub(crate) fn news(&mut self, store: &Store, time: Timestamp) -> Vec<Bytes> {
        if self.ended {
            return Vec::new();
        }
        let mut lines = std::mem::take(&mut self.waiting);
        let events: Vec<Event> = match store.events_after(self.resource.key(), self.told) {
            Ok(events) => events.filter(|event| self.selection.covers(&event.key)).cloned().collect(),
            Err(compacted) => {
                let refusal = Refusal::expired(format!(
                    "too old resource version: {} ({})",
                    self.told, compacted.oldest
                ));
                lines.push(render::line("ERROR", &object::encode(&refusal.to_value())));
                self.ended = true;
                return lines;
            }
        };
        for event in events {
            if let Some(line) = self.tell(&event, time) {
                lines.push(line);
            }
        }
        self.told = self.told.max(store.revision());
        lines
    }

    /// The form of an event for a watcher with a selector.
    fn tell(&mut self, event: &Event, time: Timestamp) -> Option<Bytes> {
        let matched = event.before.as_ref().is_some_and(|before| self.selection.matches(before));
        let matches = !event.removed && self.selection.matches(&event.after);
        let kind = match (matched, matches) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        if kind == "DELETED" && !event.removed {
            // The watcher gets the last state that matched; only the revision is new.
            let mut last = Arc::unwrap_or_clone(event.before.as_ref()?.value());
            object::set_metadata(&mut last, "resourceVersion", json!(event.revision.to_string()));
            return Some(self.line(kind, &Stored::new(last), time));
        }
        Some(self.line(kind, &event.after, time))
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::environment::Environment;
    use crate::protocol::request::Request;
    use crate::protocol::response::Response;
    use crate::state::Core;

    /// A write may precede the bookmark of a watch that has not sent its event yet.
    #[test]
    fn a_bookmark_does_not_swallow_what_was_not_told() {
        let mut rng = fastrand::Rng::with_seed(0);
        let mut environment = Environment::new(Timestamp::UNIX_EPOCH, &mut rng);
        let mut core = Core::new(&mut environment);
        let path = "/api/v1/namespaces/default/configmaps";
        let asked = Request::get(&format!("{path}?watch=1&allowWatchBookmarks=1"));
        let Response::Watch(mut watch) = core.handle(&asked, &mut environment) else {
            panic!("a watch was asked for");
        };
        let body = json!({ "metadata": { "name": "a" } });
        core.handle(&Request::new(Method::POST, path, object::encode(&body)), &mut environment);
        let lines = core.news_and_bookmark(&mut watch, environment.now);
        let events: Vec<Value> = lines.iter().map(|line| serde_json::from_slice(line).unwrap()).collect();
        let kinds: Vec<&str> = events.iter().map(|event| object::text(event, "/type")).collect();
        assert_eq!(kinds, ["ADDED", "BOOKMARK"]);
        let revision = |event: &Value| object::text(event, "/object/metadata/resourceVersion").to_owned();
        assert_eq!(revision(&events[0]), revision(&events[1]));
    }
}
