//! The configuration of the eviction recovery, and the requests for evictions.

use jiff::SignedDuration;
use salvor_api::Controller;
use salvor_api::config::{Configuration, EvictionTrigger, RemoveTaint};
use salvor_api::names::taints;

use super::memory::Progress;
use super::views::{NodeView, PodView};
use crate::gate::{Gate, GatePolicy, Kubelet, may_be_forced};
use crate::objects::Taint;
use crate::one_actor::NodeActors;
use crate::proof::{Machine, ProofPolicy, Statements, fits, is_added_for, value_for};

/// The part of the configuration that the eviction recovery needs.
#[derive(Clone, Debug)]
pub struct EvictionPolicy {
    pub enabled: bool,
    /// When our taint is removed.
    pub remove_taint: RemoveTaint,
    /// A volume that is not detached after this time is reported.
    pub detach_warning_after: SignedDuration,
    /// Above this share of unreachable nodes in a zone nothing is begun there; 0 means no limit.
    pub max_unreachable_percent: u8,
    /// For that share, nodes count that are Ready, or were within this time.
    pub count_nodes_ready_within: SignedDuration,
    /// The other recoveries that act on nodes.
    pub(super) actors: NodeActors,
    triggers: Vec<EvictionTrigger>,
    pub(super) gate: GatePolicy,
    proof: ProofPolicy,
}

/// A request for an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub taint: Taint,
    /// True if it proves that the machine is off.
    pub proof: bool,
    /// True if the taint was removed, and only our annotation keeps the request.
    pub remembered: bool,
}

impl Request {
    /// True if the taint has our key, so that Salvor may remove it.
    pub fn is_ours(&self) -> bool {
        self.taint.key == taints::FORCE_EVICTION
    }

    /// The value of the taint that Salvor adds: that of the request, or for a foreign key the name of the key.
    pub(super) fn value(&self) -> &str {
        value_for(&self.taint)
    }
}

impl EvictionPolicy {
    /// True if our taint stays on a node that is back: volumes were released, and its machine has not rebooted since.
    pub(super) fn keeps_taint(&self, node: &NodeView, progress: &Progress) -> bool {
        self.remove_taint == RemoveTaint::BootChanged && progress.may_still_use_volumes(node)
    }

    pub fn new(configuration: &Configuration) -> Self {
        let settings = &configuration.eviction;
        Self {
            enabled: configuration.controllers.enabled(Controller::Eviction),
            remove_taint: settings.remove_taint,
            detach_warning_after: settings.detach_warning_after.into(),
            max_unreachable_percent: configuration.brake.max_unreachable_percent,
            count_nodes_ready_within: configuration.brake.count_nodes_ready_within.into(),
            actors: NodeActors::new(configuration),
            triggers: settings.triggers.clone(),
            gate: GatePolicy::new(configuration),
            proof: ProofPolicy::new(configuration),
        }
    }

    /// What is known of a node's machine. Once its kubelet showed life, no earlier statement counts; a new one starts
    /// the eviction again.
    pub fn machine(&self, node: &NodeView) -> Machine {
        let remembered = self.request(node).filter(|request| request.remembered);
        self.proof.machine(&statements(node, remembered.map(|request| request.taint)))
    }

    /// Whether this pod, whose kubelet is silent, may be ended by force.
    pub(super) fn may_be_forced(&self, pod: &PodView, machine: &Machine) -> Gate {
        may_be_forced(&pod.work, pod.phase, Kubelet::Silent, machine, &self.gate)
    }

    /// True if the decision about a pod depends on its claims and its Job, and those are not known for sure.
    pub fn must_read_work(&self, pod: &PodView, node: &NodeView) -> bool {
        !pod.is_mirror
            && !pod.phase.is_terminal()
            && self.gate.must_read(&pod.work)
            && self.machine(node) == Machine::MayRun
    }

    /// The settings that decide about a second copy.
    pub fn gate(&self) -> &GatePolicy {
        &self.gate
    }

    /// The same policy, extended by the taint that requested an eviction that is under way: it was a trigger when that
    /// eviction began. Whether it counts as proof is not known here.
    pub fn trusting(mut self, node: &NodeView) -> Self {
        let begun_by = node.progress.as_ref().map(|progress| progress.request.as_str());
        let unknown =
            node.taints.iter().find(|taint| begun_by == Some(&taint.to_string()) && !self.concerns(taint));
        self.triggers.extend(unknown.map(|taint| EvictionTrigger {
            key: taint.key.clone(),
            value: Some(taint.value.clone()),
            effect: None,
            proof: false,
        }));
        self
    }

    /// The request for the eviction of a node now. Our own key comes first: a person added it, and it is proof.
    pub fn request(&self, node: &NodeView) -> Option<Request> {
        let foreign = self.foreign_request(node);
        let in_person = asked_in_person(node).filter(|taint| {
            // Our annotation was lost. Beside a foreign trigger, a taint like the one that Salvor adds for it does not
            // count as a person's request.
            let is_like_ours = |request: &Request| is_added_for(taint, &request.taint);
            node.progress.is_some() || !foreign.as_ref().is_some_and(is_like_ours)
        });
        let in_person = in_person.map(|taint| self.requested_by(taint, node));
        let remembered = || {
            node.asked.as_ref().map(|asked| Request { taint: asked.taint(), proof: true, remembered: true })
        };
        in_person.or(foreign).or_else(remembered)
    }

    /// The request by a trigger, with or without our own key. Salvor never removes that taint, so it requests again and
    /// again.
    pub(super) fn foreign_request(&self, node: &NodeView) -> Option<Request> {
        let asks = |taint: &&Taint| self.triggers.iter().any(|trigger| fits(trigger, taint));
        let found = node.taints.iter().filter(asks);
        found.map(|taint| self.requested_by(taint, node)).max_by_key(|request| request.proof)
    }

    fn requested_by(&self, taint: &Taint, node: &NodeView) -> Request {
        let proof = self.proof.proves(taint, &statements(node, None));
        Request { taint: taint.clone(), proof, remembered: false }
    }

    /// True if a taint has anything to do with evictions.
    pub fn concerns(&self, taint: &Taint) -> bool {
        taint.key == taints::FORCE_EVICTION || self.triggers.iter().any(|trigger| fits(trigger, taint))
    }
}

/// What on a node may state that its machine is off.
fn statements(node: &NodeView, remembered: Option<Taint>) -> Statements<'_> {
    Statements {
        taints: &node.taints,
        progress: node.progress.as_ref(),
        remembered,
        is_damaged: node.damage.is_some(),
        out_of_service: node.out_of_service,
    }
}

/// The taint by which a person requests the eviction of a node, if there is one.
///
/// The `NoExecute` taint that Salvor added itself is no request.
pub fn asked_in_person(node: &NodeView) -> Option<&Taint> {
    let progress = node.progress.as_ref();
    let is_request = |taint: &&Taint| !progress.is_some_and(|progress| progress.has_added(taint));
    // One that does not evict by itself comes first: beside it we add one that does.
    node.ours().filter(is_request).min_by_key(|taint| taint.effect == taints::NO_EXECUTE)
}
