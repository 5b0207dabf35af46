//! Decides which recovery acts on a node when more than one could. One acts; the others wait and report for which.
//!
//! The taints and annotations on the node decide, so every process reaches the same decision, also after a restart. The
//! order:
//!
//! 1. **Eviction**, from the request until it is finished and its taint is gone, or until a person stops it. A request
//!    is a statement about this machine. An eviction annotation that cannot be read counts as under way: its state is
//!    unknown.
//! 2. **Out of service** (`taintNodeOutOfService` of the zombie recovery), from setting our taint until removing it. It
//!    rests on elapsed time alone, so a statement about the machine goes first. Our own taint is no such statement: it
//!    never requests an eviction.
//! 3. Otherwise the recovery that finds a reason first. Both write with the resourceVersion that they decided on, so if
//!    two begin at once one gets a conflict, and then sees the other.
//!
//! A recovery may always remove what it set itself. A recovery that is switched off blocks no other.
//!
//! **Repair** replaces the whole node, which ends what others do on it. It waits for an eviction that is requested or
//! under way, because that frees pods and volumes that would otherwise be orphaned with the node. It does not wait for
//! a finished eviction or for our out-of-service taint: both stay until the node is back, and the repair is what brings
//! it back.

use std::fmt;

use salvor_api::config::{Configuration, EvictionTrigger};
use salvor_api::names::taints;
use salvor_api::{Controller, Gate};

use crate::eviction::{Memory, Progress};
use crate::objects::Taint;
use crate::proof::fits;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeActor {
    Eviction,
    /// The rule `taintNodeOutOfService` of the zombie recovery.
    OutOfService,
}

impl fmt::Display for NodeActor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eviction => "the eviction recovery",
            Self::OutOfService => "zombie recovery, by its rule taintNodeOutOfService",
        })
    }
}

/// The progress of a node's eviction, from its annotations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionSign {
    #[default]
    None,
    /// The eviction was requested, and the taint is gone.
    Asked,
    UnderWay,
    Finished,
    /// A person stopped it.
    Stopped,
    /// The annotations cannot be read.
    Unreadable,
}

impl EvictionSign {
    pub fn read(progress: Option<&str>, asked: Option<&str>) -> Self {
        Self::in_memory(&Memory::read(progress, asked))
    }

    /// The same of annotations that were read.
    pub fn in_memory(memory: &Memory) -> Self {
        match memory {
            Memory { damage: Some(_), .. } => Self::Unreadable,
            Memory { progress: Some(progress), .. } => Self::of(progress),
            Memory { asked: Some(_), .. } => Self::Asked,
            Memory { progress: None, asked: None, damage: None } => Self::None,
        }
    }

    pub(crate) fn of(progress: &Progress) -> Self {
        match progress {
            Progress { stopped: Some(_), .. } => Self::Stopped,
            Progress { finished: Some(_), .. } => Self::Finished,
            Progress { stopped: None, finished: None, .. } => Self::UnderWay,
        }
    }
}

/// What on a node shows which recovery acts on it.
#[derive(Clone, Copy, Debug)]
pub struct NodeSigns<'a> {
    pub taints: &'a [Taint],
    pub eviction: EvictionSign,
    /// True if our annotation says that we set the out-of-service taint.
    pub out_of_service: bool,
}

/// The recoveries of this configuration that act on nodes.
#[derive(Clone, Debug, Default)]
pub struct NodeActors {
    /// Foreign taints that request an eviction; none if that recovery is switched off.
    eviction: Option<Vec<EvictionTrigger>>,
    out_of_service: bool,
}

impl NodeActors {
    pub fn new(configuration: &Configuration) -> Self {
        let controllers = &configuration.controllers;
        let evicts = controllers.enabled(Controller::Eviction);
        Self {
            eviction: evicts.then(|| configuration.eviction.triggers.clone()),
            out_of_service: controllers.enabled(Controller::Zombie)
                && configuration.feature_gates.enabled(Gate::FailureRecoveryPolicy),
        }
    }

    /// The recovery that acts on a node now; none if any recovery may begin.
    pub fn actor(&self, signs: NodeSigns<'_>) -> Option<NodeActor> {
        let marked = self.out_of_service && signs.out_of_service;
        if self.eviction.as_ref().is_some_and(|triggers| is_evicted(triggers, signs, marked)) {
            Some(NodeActor::Eviction)
        } else if marked {
            Some(NodeActor::OutOfService)
        } else {
            None
        }
    }

    /// The recovery that a repair of the node has to wait for.
    pub fn before_a_repair(&self, signs: NodeSigns<'_>) -> Option<NodeActor> {
        match signs.eviction {
            EvictionSign::Finished => None,
            EvictionSign::None
            | EvictionSign::Asked
            | EvictionSign::UnderWay
            | EvictionSign::Stopped
            | EvictionSign::Unreadable => self.actor(signs).filter(|actor| *actor == NodeActor::Eviction),
        }
    }

    /// The recovery that another one has to wait for on a node.
    pub fn another(&self, than: NodeActor, signs: NodeSigns<'_>) -> Option<NodeActor> {
        self.actor(signs).filter(|actor| *actor != than)
    }
}

fn is_evicted(triggers: &[EvictionTrigger], signs: NodeSigns<'_>, marked: bool) -> bool {
    let has_our_key = || signs.taints.iter().any(|taint| taint.key == taints::FORCE_EVICTION);
    let is_asked_by = |taint: &Taint| {
        let is_our_own = marked && taint.key == taints::OUT_OF_SERVICE;
        !is_our_own && triggers.iter().any(|trigger| fits(trigger, taint))
    };
    match signs.eviction {
        EvictionSign::UnderWay | EvictionSign::Asked | EvictionSign::Unreadable => true,
        // The foreign taint that requested it may stay for any time.
        EvictionSign::Finished | EvictionSign::Stopped => has_our_key(),
        EvictionSign::None => has_our_key() || signs.taints.iter().any(is_asked_by),
    }
}

pub(crate) fn see_actor(actor: Option<NodeActor>) -> String {
    actor.map_or("nobody".into(), |actor| actor.to_string())
}

#[cfg(test)]
mod tests {
    use salvor_api::config::parse;

    use super::*;

    const OUT: &str = "node.kubernetes.io/out-of-service";
    const OURS: &str = "salvor.dev/force-eviction";

    fn actors(controllers: &str) -> NodeActors {
        let text = format!(
            "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\nfeatureGates: {{FailureRecoveryPolicy: true}}\n\
             controllers: {controllers}\neviction:\n  triggers:\n  - {{key: example.com/off}}\n  - {{key: {OUT}, proof: true}}\n"
        );
        NodeActors::new(&parse(&text).unwrap())
    }

    #[test]
    fn one_recovery_acts_on_a_node_and_the_order_is_the_same_for_all() {
        use EvictionSign::{Asked, Finished, None as Nothing, Stopped, UnderWay, Unreadable};
        let (eviction, out) = (Some(NodeActor::Eviction), Some(NodeActor::OutOfService));
        type Case = (&'static [&'static str], EvictionSign, bool, Option<NodeActor>, &'static str);
        let cases: &[Case] = &[
            (&[], Nothing, false, None, "nothing on it"),
            (&["x"], Nothing, false, None, "another's taint"),
            (&[OURS], Nothing, false, eviction, "asked for in person"),
            (&["example.com/off"], Nothing, false, eviction, "asked for by a trigger"),
            (&[], Asked, false, eviction, "asked for, and the taint taken off"),
            (&[], UnderWay, false, eviction, "begun; its taints were just taken off"),
            (&[], Unreadable, false, eviction, "nobody knows"),
            (&[OURS], Finished, false, eviction, "finished, its taint stands until the node is back"),
            (&["example.com/off"], Finished, false, None, "finished and forgotten by us, not by others"),
            (&["example.com/off"], Stopped, false, None, "stopped by hand"),
            (&[OURS], Stopped, false, eviction, "stopped by hand, and asked for again"),
            (&[OUT], Nothing, true, out, "out of service by us: our own taint asks for nothing"),
            (&[], Nothing, true, out, "out of service by us, the taint taken off by somebody"),
            (&[OUT], Nothing, false, eviction, "out of service by somebody's word, which is a trigger"),
            (&[OUT, OURS], Nothing, true, eviction, "out of service by us, and then somebody's word"),
            (&[OUT], UnderWay, true, eviction, "both"),
        ];
        let both = actors("[zombie, eviction]");
        for (keys, eviction, out_of_service, expected, case) in cases {
            let taint =
                |key: &&str| Taint { key: (*key).into(), value: String::new(), effect: "NoExecute".into() };
            let taints: Vec<Taint> = keys.iter().map(taint).collect();
            let signs = NodeSigns { taints: &taints, eviction: *eviction, out_of_service: *out_of_service };
            assert_eq!(both.actor(signs), *expected, "{case}");
            // At most one recovery does not have to wait.
            let free = [NodeActor::Eviction, NodeActor::OutOfService]
                .into_iter()
                .filter(|actor| both.another(*actor, signs).is_none())
                .count();
            assert_eq!(free, if expected.is_some() { 1 } else { 2 }, "{case}");
            // A repair waits for an eviction until that is finished, and for nothing else.
            let waits = both.before_a_repair(signs);
            assert_eq!(
                waits,
                expected.filter(|it| *it == NodeActor::Eviction && signs.eviction != Finished),
                "{case}"
            );
            // A recovery that is switched off blocks no other.
            assert_ne!(actors("[zombie]").actor(signs), Some(NodeActor::Eviction), "{case}");
            assert_ne!(actors("[eviction]").actor(signs), Some(NodeActor::OutOfService), "{case}");
        }
    }

    #[test]
    fn what_annotations_say_of_an_eviction() {
        let progress = |rest: &str| {
            format!(r#"{{"started":"2026-01-02T03:04:05Z","request":"{OURS}:NoSchedule"{rest}}}"#)
        };
        let cases = [
            (None, EvictionSign::None),
            (Some(progress("")), EvictionSign::UnderWay),
            (Some(progress(r#","finished":"2026-01-02T03:05:05Z""#)), EvictionSign::Finished),
            (Some(progress(r#","stopped":"2026-01-02T03:05:05Z""#)), EvictionSign::Stopped),
            (Some("{".into()), EvictionSign::Unreadable),
        ];
        for (text, expected) in cases {
            assert_eq!(EvictionSign::read(text.as_deref(), None), expected, "{text:?}");
        }
        assert_eq!(EvictionSign::read(None, Some("x")), EvictionSign::Unreadable);
    }
}
