//! Checks what users have ordered: a pause, a dry run, the end of an eviction.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::{annotations, reasons, taints};
use serde_json::Value;

use super::{
    Seen,
    forces::is_marked,
    invariants::{Invariant, Violation},
    known::has_taint,
    terms::is_the_lease,
    text,
};
use crate::swarm::recorder::Write;

/// A stop takes effect this long after it was requested.
const STOP_HOLDS: SignedDuration = SignedDuration::from_secs(1);

/// The orders that are in force.
pub(super) struct Orders {
    /// The processes that were configured for a dry run.
    dry: Arc<Mutex<Vec<Arc<str>>>>,
    /// The pause, as the annotation has it, and since when it is acknowledged.
    pause: Option<(String, Option<Timestamp>)>,
    /// The acknowledgement that existed when the pause began, or the last one since.
    acknowledgement: Value,
    /// Since when the eviction of a node is stopped, by node.
    stopped: BTreeMap<String, Timestamp>,
}

impl Orders {
    pub(super) fn new(dry: Arc<Mutex<Vec<Arc<str>>>>) -> Self {
        Self { dry, pause: None, acknowledgement: Value::Null, stopped: BTreeMap::new() }
    }

    /// The API went back to an older state: processes must read all orders again, and acknowledge a pause again.
    pub(super) fn restore(&mut self, lease: Option<&Value>) {
        let note = |name: &str| lease.map_or(&Value::Null, |it| &it["metadata"]["annotations"][name]);
        self.stopped.clear();
        self.pause = note(annotations::PAUSED).as_str().map(|pause| (pause.to_owned(), None));
        self.acknowledgement = note(annotations::PAUSED_ACKNOWLEDGED).clone();
    }

    pub(super) fn see(&mut self, seen: &Seen<'_>, wrong: &mut Vec<Violation>) {
        if is_the_lease(seen) {
            self.see_lease(seen);
            return;
        }
        if seen.resource == "nodes" {
            self.see_node(seen);
        }
        let Some(write) = seen.by.filter(|_| !matches!(seen.resource, "leases" | "namespaces")) else {
            return;
        };
        self.dry_run(seen.at, write, wrong);
        if let Some((_, Some(since))) = &self.pause
            && write.sent.at > *since
        {
            let text = format!(
                "{} {} was sent at {}, and the pause is acknowledged since {since}",
                write.sent.method, write.sent.path, write.sent.at
            );
            wrong.push(Violation::new(Invariant::Paused, seen.at, text));
        }
        self.see_eviction(seen, write, wrong);
    }

    /// An event was recorded.
    pub(super) fn event(&self, at: Timestamp, write: Option<&Write>, wrong: &mut Vec<Violation>) {
        if let Some(write) = write {
            self.dry_run(at, write, wrong);
        }
    }

    fn dry_run(&self, at: Timestamp, write: &Write, wrong: &mut Vec<Violation>) {
        let is_dry = self.dry.lock().unwrap_or_else(PoisonError::into_inner).contains(&write.sent.by);
        if is_dry {
            let text = format!("{} {} by {}", write.sent.method, write.sent.path, write.sent.by);
            wrong.push(Violation::new(Invariant::DryRun, at, text));
        }
    }

    fn see_lease(&mut self, seen: &Seen<'_>) {
        let notes = &seen.object["metadata"]["annotations"];
        let acknowledgement = &notes[annotations::PAUSED_ACKNOWLEDGED];
        self.pause = match (self.pause.take(), notes[annotations::PAUSED].as_str()) {
            (_, None) => None,
            (Some((pause, since)), Some(now)) if pause == now => {
                let is_news = !acknowledgement.is_null() && *acknowledgement != self.acknowledgement;
                Some((pause, since.or(is_news.then_some(seen.at))))
            }
            (_, Some(now)) => Some((now.to_owned(), None)),
        };
        self.acknowledgement = acknowledgement.clone();
    }

    fn see_node(&mut self, seen: &Seen<'_>) {
        let is_asked = |node: &Value| has_taint(node, taints::FORCE_EVICTION);
        if is_asked(seen.object) {
            self.stopped.remove(seen.name());
        } else if seen.before.is_some_and(is_asked) && seen.by.is_none() {
            self.stopped.insert(seen.name().to_owned(), seen.at);
        }
    }

    /// A pod that is marked, or deleted, because its node is evicted.
    fn see_eviction(&self, seen: &Seen<'_>, write: &Write, wrong: &mut Vec<Violation>) {
        if seen.resource != "pods" {
            return;
        }
        let conditions = seen.object["status"]["conditions"].as_array();
        let is_evicted = is_marked(seen)
            && conditions.into_iter().flatten().any(|it| it["reason"] == reasons::FORCE_EVICTION_BY_SALVOR);
        let node = text(&seen.object["spec"]["nodeName"]);
        if let Some(since) = self.stopped.get(node)
            && is_evicted
            && write.sent.at.duration_since(*since) > STOP_HOLDS
        {
            let text = format!(
                "{} was evicted at {}, and somebody stopped that at {since}",
                seen.name(),
                write.sent.at
            );
            wrong.push(Violation::new(Invariant::Stopped, seen.at, text));
        }
    }
}
