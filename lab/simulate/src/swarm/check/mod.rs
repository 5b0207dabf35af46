//! The invariants: what must hold at every revision of a cluster, whatever fails.
//!
//! The checker sees every change of every object with the request that made it, and knows what each process had read by
//! then. It does not query the operator.

mod brake;
mod forces;
mod invariants;
mod jobs;
mod known;
mod nodes;
mod orders;
mod terms;

use std::{
    hash::{DefaultHasher, Hasher as _},
    sync::{Arc, Mutex},
};

use jiff::{SignedDuration, Timestamp};
use salvor_apiserver::{Change, ChangeKind};
use serde_json::Value;

pub use self::invariants::{Invariant, Violation};
pub(super) use self::known::{Known, condition, has_taint};
use self::{brake::BrakeWindows, jobs::Jobs, known::Objects, nodes::Nodes, orders::Orders, terms::Terms};
use super::{
    objects::HOME,
    plan::Plan,
    recorder::{Ledger, Write},
    replica::Death,
};
use crate::audit::appwrapper;

/// One change of an object, with the request that caused it.
pub(super) struct Seen<'a> {
    pub(super) at: Timestamp,
    pub(super) kind: ChangeKind,
    pub(super) resource: &'a str,
    /// The object before, if it existed.
    pub(super) before: Option<&'a Value>,
    /// The object afterwards, or its last state.
    pub(super) object: &'a Value,
    /// The write, if one of our processes sent it.
    pub(super) by: Option<&'a Write>,
}

impl Seen<'_> {
    fn name(&self) -> &str {
        text(&self.object["metadata"]["name"])
    }

    fn uid(&self) -> &str {
        text(&self.object["metadata"]["uid"])
    }

    /// True if this change starts the deletion of the object, or removes it.
    fn ends(&self) -> bool {
        let is_going = |object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
        self.kind == ChangeKind::Removed || (is_going(self.object) && !self.before.is_some_and(is_going))
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// How often each recovery did something: a swarm in which nothing is recovered proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deeds {
    pub pods_failed: u32,
    pub pods_made: u32,
    /// Evictions that began.
    pub evictions: u32,
    pub out_of_service: u32,
    pub repairs: u32,
    pub components: u32,
}

impl std::ops::AddAssign for Deeds {
    fn add_assign(&mut self, more: Self) {
        self.pods_failed += more.pods_failed;
        self.pods_made += more.pods_made;
        self.evictions += more.evictions;
        self.out_of_service += more.out_of_service;
        self.repairs += more.repairs;
        self.components += more.components;
    }
}

/// The checker's knowledge of the objects, stored with a backup.
pub(super) struct Memory {
    objects: Objects,
    jobs: Jobs,
    nodes: Nodes,
    apps: appwrapper::Audit,
}

pub(super) struct Checker {
    ledger: Ledger,
    known: Known,
    terms: Terms,
    orders: Orders,
    brake: BrakeWindows,
    jobs: Jobs,
    nodes: Nodes,
    apps: appwrapper::Audit,
    lines: usize,
    deeds: Deeds,
    digest: DefaultHasher,
    wrong: Vec<Violation>,
    /// Until then some invariants are not checked, because the API went back to an older state.
    excused_until: Option<Timestamp>,
}

impl Checker {
    pub(super) fn new(plan: &Plan, ledger: Ledger, dry: Arc<Mutex<Vec<Arc<str>>>>) -> Self {
        Self {
            known: Known::new(ledger.clone()),
            ledger,
            terms: Terms::default(),
            orders: Orders::new(dry),
            brake: BrakeWindows::new(plan),
            jobs: Jobs::default(),
            nodes: Nodes::new(plan),
            apps: appwrapper::Audit::new(RETRY_LIMIT),
            lines: 0,
            deeds: Deeds::default(),
            digest: DefaultHasher::new(),
            wrong: Vec::new(),
            excused_until: None,
        }
    }

    pub(super) fn see(&mut self, change: &Change<'_>) {
        self.add_to_digest(change);
        // Events are for users; no decision relies on them.
        if change.resource == "events" {
            self.orders.event(change.at, self.ledger.current().as_deref(), &mut self.wrong);
            return;
        }
        let write = self.ledger.current();
        let before = self.known.object(change.resource, change.value);
        let seen = Seen {
            at: change.at,
            kind: change.kind,
            resource: change.resource,
            before: before.as_deref(),
            object: change.value,
            by: write.as_deref(),
        };
        let wrong = &mut Vec::new();
        self.terms.see(&seen, wrong);
        self.orders.see(&seen, wrong);
        forces::see(&seen, &self.known, wrong);
        self.brake.see(&seen, &self.known);
        self.jobs.see(&seen, wrong);
        self.nodes.see(&seen, &self.known, wrong);
        self.lines += 1;
        let found = self.apps.read(self.lines, seen.at, seen.kind, seen.resource, seen.object);
        wrong.extend(
            found
                .into_iter()
                .map(|(rule, text)| Violation::new(Invariant::Quota, seen.at, format!("{rule:?}: {text}"))),
        );
        if self.excused_until.is_some_and(|until| change.at < until) {
            wrong.retain(|violation| violation.invariant.holds_after_a_restore());
        }
        self.wrong.append(wrong);
        self.count(&seen);
        self.known.take_in(change.at, change.kind, change.resource, change.value.clone());
    }

    /// The current knowledge, to be stored with a backup.
    pub(super) fn memory(&self) -> Memory {
        Memory {
            objects: self.known.objects(),
            jobs: self.jobs.clone(),
            nodes: self.nodes.clone(),
            apps: self.apps.clone(),
        }
    }

    /// The API went back to a backup. Requests sent and states seen until now still count.
    pub(super) fn restore(&mut self, memory: Memory, at: Timestamp) {
        let Memory { objects, jobs, nodes, apps } = memory;
        let lease = objects.get(&("leases".to_owned(), HOME.to_owned(), terms::LEASE.to_owned()));
        self.orders.restore(lease.map(Arc::as_ref));
        self.known.restore(objects, at);
        (self.jobs, self.nodes, self.apps) = (jobs, nodes, apps);
        self.excused_until = Some(at + EXCUSED);
    }

    fn count(&mut self, seen: &Seen<'_>) {
        if seen.by.is_none() {
            return;
        }
        let deeds = &mut self.deeds;
        match (seen.resource, seen.kind) {
            ("pods", ChangeKind::Added) => deeds.pods_made += 1,
            ("pods", _) => deeds.pods_failed += u32::from(forces::is_marked(seen)),
            ("jobs", ChangeKind::Added) => deeds.components += 1,
            ("nodeclaims", _) => deeds.repairs += u32::from(seen.ends()),
            ("nodes", _) => {
                deeds.out_of_service += u32::from(forces::is_taken_out_of_service(seen));
                deeds.evictions += u32::from(nodes::begins_eviction(seen));
            }
            _ => {}
        }
    }

    fn add_to_digest(&mut self, change: &Change<'_>) {
        self.digest.write_u64(change.revision);
        self.digest.write_i128(change.at.as_nanosecond());
        self.digest.write(change.object);
    }

    /// Adds a violation that was found elsewhere.
    pub(super) fn report(&mut self, violation: Violation) {
        self.wrong.push(violation);
    }

    /// Ends the run. Returns the violations, what was done, and a digest that every run of the same seed must
    /// reproduce.
    pub(super) fn finish(&mut self, deaths: &[Death]) -> (Vec<Violation>, Deeds, u64) {
        self.brake.finish(deaths, &mut self.wrong);
        if let Some((reads, by, at)) = self.ledger.most_reads()
            && reads > MOST_READS
        {
            let text = format!("{by} made {reads} reads of single objects in one minute");
            self.wrong.push(Violation::new(Invariant::Bounded, at, text));
        }
        (std::mem::take(&mut self.wrong), self.deeds, self.digest.finish())
    }

    pub(super) fn known(&self) -> &Known {
        &self.known
    }
}

/// After the API went back to an older state, processes have this long to notice.
const EXCUSED: SignedDuration = SignedDuration::from_mins(1);
/// The default retry limit of an AppWrapper.
const RETRY_LIMIT: i64 = 3;
/// A process reads no more single objects than this in a minute, in a cluster of this size.
const MOST_READS: u32 = 900;
