//! A node that a policy selects, with everything that is known about it, and how far its repair has come.

use jiff::Timestamp;

use super::policy::Policy;
use super::sickness::Settings;
use super::status::Repair;
use super::veto::{Veto, veto};
use super::views::{Backend, Left, NodeView, OwnerView, PoolView, Refusal};
use crate::liveness::Lease;
use crate::moments::after;
use crate::proof::Machine;

#[derive(Clone, Debug)]
pub struct Member<'a> {
    pub node: &'a NodeView,
    pub backend: Backend,
    /// The last time the API server refused the repair.
    pub refused: Option<&'a Refusal>,
    /// None if the pods have not been counted. They are counted only where it matters.
    pub pods: Option<u32>,
    pub pool: Option<&'a PoolView>,
    /// The pods that its drain has left, if known.
    pub left: Option<Left>,
    /// What is known of its kubelet's Lease. It is read only where something proves that the machine is off.
    pub lease: Lease,
}

impl Member<'_> {
    /// What is known of its machine. A kubelet whose Lease is renewed is heard of, and then no statement that the
    /// machine is off counts; nor does one before the Lease was read.
    pub(super) fn machine(&self, now: Timestamp) -> Machine {
        let is_silent = match self.lease {
            Lease::Unread => false,
            Lease::None => true,
            Lease::Renewed { .. } => !self.lease.is_fresh(now),
        };
        match &self.node.marks().off {
            Some(proof) if is_silent => Machine::Off(proof.clone()),
            Some(_) | None => Machine::MayRun,
        }
    }

    /// True if the node, or the owner of its machine, is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.deleting().is_some()
    }

    /// The earlier deletion time of the node and the owner of its machine.
    fn deleting(&self) -> Option<Timestamp> {
        self.node.deleting().into_iter().chain(self.backend.owner().and_then(|owner| owner.deleting)).min()
    }

    /// The pool that creates the replacement; empty if there is none.
    pub fn pool(&self) -> &str {
        self.backend.owner().map(|owner| &*owner.pool).or(self.node.pool()).unwrap_or_default()
    }

    pub fn veto(&self, now: Timestamp) -> Option<Veto> {
        veto(self.node, &self.backend, self.pool, now)
    }

    /// The NodeClaim with its previous forced termination time, if Salvor set one and the NodeClaim is not being
    /// deleted.
    pub(super) fn prepared(&self) -> Option<(&OwnerView, &str)> {
        match &self.backend {
            Backend::Claim(claim) if claim.deleting.is_none() => {
                claim.termination_before.as_deref().map(|before| (claim, before))
            }
            Backend::Claim(_) | Backend::Machine(_) | Backend::Node | Backend::Missing(_) => None,
        }
    }
}

/// How far a repair in the policy's status has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// Nothing irreversible was done yet, because something blocks the repair. Its turn ends at this time: other nodes
    /// would otherwise wait forever. They cannot get turns in addition, because this repair could still begin beside
    /// theirs.
    NotBegun { lapses_at: Timestamp },
    /// The repair is in progress, and counts as stuck from this time on.
    Begun { stuck_at: Timestamp },
}

impl Course {
    /// `member` is the node of the repair. None if the node is gone and its owner is not.
    pub(super) fn of(
        repair: &Repair,
        member: Option<&Member<'_>>,
        owner_deleting: Option<Timestamp>,
        policy: &Policy,
        settings: &Settings,
        now: Timestamp,
    ) -> Self {
        let tried = member.and_then(|member| member.node.progress.as_deref()?.tried.as_ref());
        let drained = member.filter(|member| member.backend == Backend::Node && member.node.unschedulable);
        let draining = drained.and_then(|member| member.node.progress.as_deref()?.draining_since);
        let begun_at = member.map_or(owner_deleting, Member::deleting);
        let begun_at = begun_at.or(tried.map(|tried| tried.at)).or(draining);
        let has_begun = begun_at.is_some()
            || member.is_none_or(|member| {
                let is_remediated = member.backend.owner().is_some_and(|owner| owner.remediated);
                // It is unknown what was done to a node whose memory cannot be read.
                is_remediated || member.node.marks().damage.is_some()
            });
        // A time in the future counts as now.
        let from = begun_at.map_or(repair.since, |at| at.max(repair.since)).min(now);
        let until = after(from, settings.stuck_after.saturating_add(policy.termination.grace()));
        if has_begun { Self::Begun { stuck_at: until } } else { Self::NotBegun { lapses_at: until } }
    }

    /// True if the turn ended before the repair began.
    pub(super) fn has_lapsed(self, now: Timestamp) -> bool {
        matches!(self, Self::NotBegun { lapses_at } if lapses_at <= now)
    }
}
