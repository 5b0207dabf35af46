//! The scheduler's view of nodes and the pods on them. A cluster has many nodes and few kinds of pods, so the obstacles
//! of each kind of pod on a node are computed once and kept until the node or its load changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Affinity, Toleration};

use super::placement::{
    Alike, Amounts, Load, Obstacle, Score, add, amounts, obstacle, requests, score, subtract,
};
use crate::nodes::node_lifecycle::region_and_zone;
use crate::world::views::{Node, Pod};

/// At most this many kinds of pods are cached. With more, everything is computed again.
const MOST_KINDS: usize = 64;

/// A pod that is on a node, or assumed to be there soon.
#[derive(Debug)]
struct Placed {
    spot: usize,
    asks: Amounts,
    owner: Option<String>,
}

/// A node, or the slot of one that is gone.
#[derive(Debug)]
struct Spot {
    node: Option<Arc<Node>>,
    load: Load,
    zone: usize,
    /// The cached result for each kind of pod.
    met: Vec<Option<Met>>,
}

/// What a pod meets on a node, apart from similar pods nearby.
#[derive(Debug, Clone)]
enum Met {
    Obstacle(Obstacle),
    Score(Score),
}

/// All fields of a pod that determine the result on a node.
#[derive(Debug)]
struct PodKind {
    asks: Amounts,
    tolerations: Vec<Toleration>,
    node_selector: BTreeMap<String, String>,
    affinity: Option<Box<Affinity>>,
    /// Why no node fits, and the version of the board for which that holds.
    nowhere: Option<(u64, String)>,
}

impl PodKind {
    fn is_of(&self, pod: &Pod, asks: &Amounts) -> bool {
        self.asks == *asks
            && self.tolerations == pod.spec.tolerations
            && self.node_selector == pod.spec.node_selector
            && self.affinity == pod.spec.affinity
    }
}

#[derive(Debug, Default)]
pub(crate) struct Board {
    names: BTreeMap<String, usize>,
    spots: Vec<Spot>,
    zones: Vec<(String, String)>,
    placed: BTreeMap<String, Placed>,
    /// The number of pods of each owner, by slot.
    alike: BTreeMap<String, Vec<usize>>,
    kinds: Vec<PodKind>,
    /// Incremented with every change.
    version: u64,
}

/// The obstacle that a single pod has on a node, if any.
pub(crate) type Own<'o> = dyn Fn(&Node) -> Option<Obstacle> + 'o;

/// The best nodes, or why none fits.
pub(crate) enum Found<'b> {
    Best(Vec<&'b str>),
    None(String),
}

impl Board {
    /// Updates a node, or removes it.
    pub(crate) fn see_node(&mut self, name: &str, node: Option<&Arc<Node>>) {
        let zone = node.map_or(0, |node| self.zone_of(node));
        let spot = self.spot(name);
        spot.load.has = node.map(|node| amounts(&node.status.allocatable)).unwrap_or_default();
        spot.zone = zone;
        spot.node = node.cloned();
        spot.met.clear();
        self.version += 1;
    }

    /// Updates a node without any relevant change.
    pub(crate) fn see_same_node(&mut self, name: &str, node: &Arc<Node>) {
        self.spot(name).node = Some(Arc::clone(node));
    }

    fn zone_of(&mut self, node: &Node) -> usize {
        let (region, zone) = region_and_zone(node);
        let known =
            self.zones.iter().position(|known| (known.0.as_str(), known.1.as_str()) == (region, zone));
        known.unwrap_or_else(|| {
            self.zones.push((region.to_owned(), zone.to_owned()));
            self.zones.len() - 1
        })
    }

    fn spot(&mut self, name: &str) -> &mut Spot {
        let index = self.index(name);
        &mut self.spots[index]
    }

    fn index(&mut self, name: &str) -> usize {
        if let Some(index) = self.names.get(name) {
            return *index;
        }
        self.spots.push(Spot { node: None, load: Load::default(), zone: 0, met: Vec::new() });
        self.names.insert(name.to_owned(), self.spots.len() - 1);
        self.spots.len() - 1
    }

    /// Counts a pod on a node, and nowhere else.
    pub(crate) fn take(&mut self, pod: &Pod, node: &str) {
        let uid = &pod.metadata.uid;
        let index = self.index(node);
        if self.placed.get(uid).is_some_and(|placed| placed.spot == index) {
            return;
        }
        self.release(uid);
        let asks = requests(pod);
        let owner = pod.metadata.controller().map(|owner| owner.uid.clone());
        let spot = &mut self.spots[index];
        spot.load.pods += 1;
        add(&mut spot.load.taken, &asks);
        spot.met.clear();
        self.version += 1;
        if let Some(owner) = &owner {
            let counts = match self.alike.get_mut(owner) {
                Some(counts) => counts,
                None => self.alike.entry(owner.clone()).or_default(),
            };
            if counts.len() <= index {
                counts.resize(index + 1, 0);
            }
            counts[index] += 1;
        }
        self.placed.insert(uid.clone(), Placed { spot: index, asks, owner });
    }

    /// Stops counting a pod. Returns whether it was counted.
    pub(crate) fn release(&mut self, uid: &str) -> bool {
        let Some(Placed { spot: index, asks, owner }) = self.placed.remove(uid) else { return false };
        let spot = &mut self.spots[index];
        spot.load.pods = spot.load.pods.saturating_sub(1);
        subtract(&mut spot.load.taken, &asks);
        spot.met.clear();
        self.version += 1;
        if let Some(owner) = owner
            && let Some(counts) = self.alike.get_mut(&owner)
        {
            if let Some(count) = counts.get_mut(index) {
                *count = count.saturating_sub(1);
            }
            if counts.iter().all(|count| *count == 0) {
                self.alike.remove(&owner);
            }
        }
        true
    }

    /// The index of a pod's kind.
    fn kind(&mut self, pod: &Pod) -> usize {
        let asks = requests(pod);
        if let Some(known) = self.kinds.iter().position(|kind| kind.is_of(pod, &asks)) {
            return known;
        }
        if self.kinds.len() >= MOST_KINDS {
            self.kinds.clear();
            self.spots.iter_mut().for_each(|spot| spot.met.clear());
        }
        self.kinds.push(PodKind {
            asks,
            tolerations: pod.spec.tolerations.clone(),
            node_selector: pod.spec.node_selector.clone(),
            affinity: pod.spec.affinity.clone(),
            nowhere: None,
        });
        self.kinds.len() - 1
    }

    /// Finds the best nodes for a pod. It may have its own obstacles, besides those of its kind.
    pub(crate) fn find(&mut self, pod: &Pod, own: Option<&Own<'_>>) -> Found<'_> {
        let number = self.kind(pod);
        if own.is_none()
            && let Some((version, why)) = &self.kinds[number].nowhere
            && *version == self.version
        {
            return Found::None(why.clone());
        }
        let owner = pod.metadata.controller().map(|owner| &owner.uid);
        let alike_on = owner.and_then(|owner| self.alike.get(owner)).map_or(&[][..], Vec::as_slice);
        let mut alike_in = vec![0; self.zones.len()];
        for (spot, count) in self.spots.iter().zip(alike_on) {
            if spot.node.is_some() {
                alike_in[spot.zone] += count;
            }
        }
        let asks = &self.kinds[number].asks;
        let mut best: Option<Score> = None;
        let mut candidates: Vec<usize> = Vec::new();
        let mut obstacles: BTreeMap<Obstacle, usize> = BTreeMap::new();
        let mut count = 0;
        for (index, spot) in self.spots.iter_mut().enumerate() {
            let Some(node) = &spot.node else { continue };
            count += 1;
            if spot.met.len() <= number {
                spot.met.resize(number + 1, None);
            }
            let load = &spot.load;
            let met = spot.met[number].get_or_insert_with(|| match obstacle(pod, asks, node, load) {
                Some(obstacle) => Met::Obstacle(obstacle),
                None => Met::Score(score(pod, asks, node, load, Alike::default())),
            });
            let plain = match met {
                Met::Obstacle(obstacle) => Err(&*obstacle),
                Met::Score(score) => Ok(*score),
            };
            let own = plain.is_ok().then(|| own.and_then(|own| own(node))).flatten();
            let plain = match (plain, own) {
                (Ok(plain), None) => plain,
                (Err(in_the_way), _) => {
                    match obstacles.get_mut(in_the_way) {
                        Some(count) => *count += 1,
                        None => drop(obstacles.insert(in_the_way.clone(), 1)),
                    }
                    continue;
                }
                (Ok(_), Some(in_the_way)) => {
                    *obstacles.entry(in_the_way).or_default() += 1;
                    continue;
                }
            };
            let on_node = alike_on.get(index).copied().unwrap_or(0);
            let score = plain.beside(Alike { on_node, in_zone: alike_in[spot.zone] });
            if best.is_none_or(|best| score > best) {
                best = Some(score);
                candidates.clear();
            }
            if best == Some(score) {
                candidates.push(index);
            }
        }
        if candidates.is_empty() {
            let why = nowhere(count, &obstacles);
            if own.is_none() {
                self.kinds[number].nowhere = Some((self.version, why.clone()));
            }
            return Found::None(why);
        }
        let name = |index: &usize| self.spots[*index].node.as_ref().map(|node| node.metadata.name.as_str());
        let mut names: Vec<&str> = candidates.iter().filter_map(name).collect();
        // The random choice uses the sorted names, so it does not depend on the order of watch events.
        names.sort_unstable();
        Found::Best(names)
    }
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s).`
fn nowhere(nodes: usize, obstacles: &BTreeMap<Obstacle, usize>) -> String {
    if nodes == 0 {
        return "no nodes available to schedule pods".to_owned();
    }
    let mut reasons: Vec<String> =
        obstacles.iter().map(|(obstacle, count)| format!("{count} {obstacle}")).collect();
    reasons.sort();
    format!("0/{nodes} nodes are available: {}.", reasons.join(", "))
}

#[cfg(test)]
#[path = "board/tests.rs"]
mod tests;
