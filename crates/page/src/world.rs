//! The state behind the page: nodes, pods, verdicts and the timeline. It is synchronous and does no I/O. It takes
//! changes and returns the differences since a version, so that a browser gets only differences, even if it asks
//! rarely.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use jiff::{SignedDuration, Timestamp};
use salvor_operator::{Notice, watch::Change};
use salvor_recovery::Report;

use self::{
    missing::Missing,
    shown::{
        Delta, Followed, MomentShown, NodeShown, PodShown, PodState, Replacement, VerdictShown, WrapperShown,
    },
};
use crate::{
    objects::{Node, NodeState, Phase, Pod},
    timeline::{Kind, Moment, Timeline},
};

pub(crate) mod missing;
mod repairs;
mod shown;
#[cfg(test)]
mod tests;
mod wrappers;

pub use shown::Caption;

/// The number of deletions that are kept for browsers. A browser that missed more gets the whole state again.
const GONE_KEPT: usize = 20_000;
/// After this time a lost pod is no longer expected to be replaced: its owner was deleted or scaled down.
const LOST_KEPT: SignedDuration = SignedDuration::from_hours(1);

#[derive(Debug)]
struct Entry<T> {
    version: u64,
    value: T,
}

#[derive(Debug)]
enum Gone {
    Node(String),
    Pod(String),
    AppWrapper(String),
    Verdict(VerdictKey),
}

type VerdictKey = (String, &'static str);

/// A pod whose replacement is expected.
#[derive(Debug)]
struct Lost {
    uid: String,
    node: String,
    at: Timestamp,
    why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Unreachable,
    Repair,
}

#[derive(Debug, Default)]
pub(crate) struct World {
    version: u64,
    nodes: BTreeMap<String, Entry<(Node, Timestamp)>>,
    /// Ordered by UID, so that the same history always serializes to the same text.
    pods: BTreeMap<String, Entry<Pod>>,
    pods_of: HashMap<String, BTreeSet<String>>,
    wrappers: BTreeMap<String, Entry<Followed>>,
    verdicts: BTreeMap<VerdictKey, Entry<Report>>,
    gone: VecDeque<(u64, Gone)>,
    /// Deletions before this version are not kept.
    forgotten: u64,
    timeline: Timeline,
    /// Pods whose node became unreachable or is being replaced.
    lost: HashMap<String, VecDeque<Lost>>,
    /// Replaced nodes and their replacements, oldest first.
    replacements: Option<Entry<VecDeque<Replacement>>>,
    /// All workloads that do not recover. `None` while no diagnosis runs.
    missing: Option<Entry<Missing>>,
    caption: Option<Entry<Caption>>,
    recovered: u64,
    leads: Option<bool>,
    /// The message of the pause, if a person paused Salvor.
    paused: Option<String>,
}

impl World {
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn moments(&self) -> impl Iterator<Item = &Moment> {
        self.timeline.since(0)
    }

    // ---- changes ------------------------------------------------------------------------------

    pub(crate) fn on_nodes(&mut self, change: Change<Node>, now: Timestamp) {
        self.version += 1;
        match change {
            Change::Applied(node) => self.put_node(&node, now),
            Change::Gone(uid) => {
                let name = self
                    .nodes
                    .values()
                    .find(|n| uid == n.value.0.uid.as_str())
                    .map(|n| n.value.0.name.clone());
                if let Some(name) = name {
                    self.remove_node(&name, now);
                }
            }
            Change::Reset { all, .. } => {
                let present: HashSet<&str> = all.iter().map(|n| n.name.as_str()).collect();
                let gone: Vec<_> =
                    self.nodes.keys().filter(|n| !present.contains(n.as_str())).cloned().collect();
                for name in gone {
                    self.remove_node(&name, now);
                }
                for node in all {
                    self.put_node(&node, now);
                }
            }
        }
    }

    pub(crate) fn on_pods(&mut self, change: Change<Pod>, now: Timestamp) {
        self.version += 1;
        match change {
            Change::Applied(pod) => self.put_pod(pod, now),
            Change::Gone(uid) => self.remove_pod(uid.as_str()),
            Change::Reset { all, .. } => {
                let present: HashSet<&str> = all.iter().map(|p| p.uid.as_str()).collect();
                let gone: Vec<_> =
                    self.pods.keys().filter(|u| !present.contains(u.as_str())).cloned().collect();
                for uid in gone {
                    self.remove_pod(&uid);
                }
                for pod in all {
                    self.put_pod(pod, now);
                }
            }
        }
    }

    pub(crate) fn on_notice(&mut self, notice: Notice, now: Timestamp) {
        self.version += 1;
        match notice {
            Notice::Leads(leads) => {
                self.leads = Some(leads);
                if !leads {
                    // Another replica leads from now on.
                    for key in std::mem::take(&mut self.verdicts).into_keys() {
                        self.forget(Gone::Verdict(key));
                    }
                }
            }
            Notice::Paused(paused) => {
                if self.paused != paused {
                    let text = paused.as_deref().unwrap_or("resumed");
                    self.timeline.add(self.version, now, Kind::Told, text, "", None);
                }
                self.paused = paused;
            }
            Notice::Judged { recovery, subject, report } => {
                let key = (subject, recovery);
                if self.verdicts.get(&key).is_none_or(|known| known.value != report) {
                    self.verdicts.insert(key, Entry { version: self.version, value: report });
                }
            }
            Notice::Forgotten { recovery, subject } => {
                let key = (subject, recovery);
                if self.verdicts.remove(&key).is_some() {
                    self.forget(Gone::Verdict(key));
                }
            }
            Notice::Did { headline, object, .. } => {
                if let Some(headline) = headline {
                    let object = object.to_string();
                    let name = object.split_once(' ').map_or(object.as_str(), |(_, name)| name);
                    self.timeline.add(self.version, now, Kind::Did, headline, name, None);
                }
            }
        }
    }

    /// Adds a line about something that a person or the demo did.
    pub(crate) fn tell(&mut self, text: &str, now: Timestamp) {
        self.version += 1;
        self.timeline.add(self.version, now, Kind::Told, text, "", None);
    }

    pub(crate) fn turn_page(&mut self, caption: Caption) {
        self.version += 1;
        self.caption = Some(Entry { version: self.version, value: caption });
    }

    /// Replaces the list of workloads that do not recover. `None` if no diagnosis runs any more.
    pub(crate) fn on_missing(&mut self, missing: Option<Missing>) {
        if self.missing.as_ref().map(|known| &known.value) == missing.as_ref() {
            return;
        }
        self.version += 1;
        self.missing = missing.map(|value| Entry { version: self.version, value });
    }

    fn put_node(&mut self, node: &Node, now: Timestamp) {
        let known = self.nodes.get(&node.name).map(|known| known.value.clone());
        let since = match &known {
            Some((old, _)) if old == node => return,
            Some((old, since)) if old.state == node.state => *since,
            _ => now,
        };
        let (name, zone, state) = (node.name.clone(), zone_name(&node.zone), node.state);
        let before = known.as_ref().map(|(old, _)| old.state);
        self.nodes.insert(name.clone(), Entry { version: self.version, value: (node.clone(), since) });
        self.follow_repair(known.map(|(old, _)| old), node, now);
        if before == Some(state) {
            return;
        }
        let was_lost = before == Some(NodeState::Unreachable);
        let is_lost = state == NodeState::Unreachable;
        if was_lost != is_lost {
            self.reconsider_pods_of(&name, is_lost, before.is_some(), now);
        }
        match (before, is_lost) {
            (Some(_), true) => self.timeline.add(self.version, now, Kind::NodeLost, &zone, &name, None),
            (Some(_), false) if was_lost => {
                self.timeline.add(self.version, now, Kind::NodeBack, &zone, &name, None);
            }
            _ => {}
        }
    }

    /// Marks the pods of a node as changed after the node became unreachable or reachable.
    fn reconsider_pods_of(&mut self, node: &str, is_lost: bool, was_seen_before: bool, now: Timestamp) {
        for uid in self.pods_of.get(node).cloned().unwrap_or_default() {
            let Some(entry) = self.pods.get_mut(&uid) else { continue };
            entry.version = self.version;
            let pod = &entry.value;
            if pod.phase != Phase::Running || pod.workload.kind == "DaemonSet" {
                continue;
            }
            let of_work = self.lost.entry(pod.work.clone()).or_default();
            // A pod that is not being deleted keeps running, so it is no longer lost. A Terminating pod is replaced
            // anyway.
            let lives_on = !is_lost && pod.deleted.is_none();
            of_work.retain(|lost| {
                (lost.uid != uid || !(lives_on || is_lost)) && now.duration_since(lost.at) < LOST_KEPT
            });
            if is_lost && was_seen_before {
                let node = node.to_owned();
                of_work.push_back(Lost { uid: uid.clone(), node, at: now, why: Why::Unreachable });
            }
            if of_work.is_empty() {
                self.lost.remove(&pod.work);
            }
            if is_lost && pod.deleted.is_some() {
                let (workload, name) = (pod.workload.name.clone(), pod.name.clone());
                self.timeline.add(self.version, now, Kind::Stuck, &workload, &name, None);
            }
        }
    }

    fn put_pod(&mut self, mut pod: Pod, now: Timestamp) {
        let known = self.pods.get(&pod.uid).map(|known| &known.value);
        // A finished pod stays finished, even if a kubelet that was unreachable reports an older phase.
        if let Some(phase @ (Phase::Succeeded | Phase::Failed)) = known.map(|old| old.phase) {
            pod.phase = phase;
        }
        if known == Some(&pod) {
            return;
        }
        let before = known.map(|old| (self.look(old), old.phase));
        let is_ended = known
            .is_some_and(|old| old.phase == Phase::Running && old.deleted.is_none() && pod.deleted.is_some());
        if let Some(old) = known.and_then(|old| old.node.clone()).filter(|old| Some(old) != pod.node.as_ref())
        {
            self.leave(&old, &pod.uid);
        }
        if is_ended {
            self.work_ends(&pod, now);
        }
        if let Some(node) = &pod.node {
            self.pods_of.entry(node.clone()).or_default().insert(pod.uid.clone());
        }
        let look = self.look(&pod);
        if look == PodState::Stuck && before.is_some_and(|(old, _)| old != PodState::Stuck) {
            self.timeline.add(self.version, now, Kind::Stuck, &pod.workload.name, &pod.name, None);
        }
        let began = pod.phase == Phase::Running && before.is_none_or(|(_, phase)| phase != Phase::Running);
        if began && look == PodState::Running {
            self.work_came_back(&pod, now);
        }
        self.pods.insert(pod.uid.clone(), Entry { version: self.version, value: pod });
    }

    fn work_came_back(&mut self, pod: &Pod, now: Timestamp) {
        let Some(of_work) = self.lost.get_mut(&pod.work) else { return };
        let Some(position) = of_work.iter().position(|lost| lost.uid != pod.uid) else { return };
        let Some(lost) = of_work.remove(position) else { return };
        if of_work.is_empty() {
            self.lost.remove(&pod.work);
        }
        let (kind, since) = match lost.why {
            Why::Unreachable => (Kind::WorkBack, lost.at),
            // The repair did not move a pod of a sick node that something else deleted.
            Why::Repair => match self.replaced_since(&lost.node) {
                Some(began) => (Kind::WorkMoved, began),
                None => return,
            },
        };
        self.recovered += 1;
        let away = Some(now.duration_since(since));
        self.timeline.add(self.version, now, kind, &pod.workload.name, &pod.name, away);
    }

    fn remove_node(&mut self, name: &str, now: Timestamp) {
        if let Some(Entry { value: (node, _), .. }) = self.nodes.remove(name) {
            self.node_went(&node, now);
            self.forget(Gone::Node(name.to_owned()));
        }
    }

    fn remove_pod(&mut self, uid: &str) {
        let Some(pod) = self.pods.remove(uid) else { return };
        if let Some(node) = &pod.value.node {
            self.leave(node, uid);
        }
        self.forget(Gone::Pod(uid.to_owned()));
    }

    fn leave(&mut self, node: &str, uid: &str) {
        if let Some(pods) = self.pods_of.get_mut(node) {
            pods.remove(uid);
            if pods.is_empty() {
                self.pods_of.remove(node);
            }
        }
    }

    fn forget(&mut self, gone: Gone) {
        self.gone.push_back((self.version, gone));
        if self.gone.len() > GONE_KEPT
            && let Some((version, _)) = self.gone.pop_front()
        {
            self.forgotten = version;
        }
    }

    // ---- what is shown ------------------------------------------------------------------------

    fn look(&self, pod: &Pod) -> PodState {
        let is_lost = pod.node.as_ref().and_then(|n| self.nodes.get(n)).is_some_and(|n| {
            let (node, _) = &n.value;
            node.state == NodeState::Unreachable
        });
        match (pod.phase, pod.deleted.is_some(), is_lost) {
            (Phase::Succeeded, ..) => PodState::Succeeded,
            (Phase::Failed, ..) => PodState::Failed,
            (_, true, true) => PodState::Stuck,
            (_, true, false) => PodState::Ending,
            (Phase::Running, false, true) => PodState::Silent,
            (Phase::Running, false, false) => PodState::Running,
            (Phase::Pending, false, _) => PodState::Pending,
        }
    }

    /// Whether anything on the page has changed since a version.
    pub(crate) fn has_changed_since(&self, version: u64) -> bool {
        let newer = |other: u64| other > version;
        self.nodes.values().any(|it| newer(it.version))
            || self.pods.values().any(|it| newer(it.version))
            || self.wrappers.values().any(|it| newer(it.version))
            || self.verdicts.values().any(|it| newer(it.version))
            || self.gone.back().is_some_and(|(gone, _)| newer(*gone))
            || self.timeline.since(version).next().is_some()
            || self.replacements.as_ref().is_some_and(|it| newer(it.version))
            || self.missing.as_ref().is_some_and(|it| newer(it.version))
            || self.caption.as_ref().is_some_and(|it| newer(it.version))
    }

    /// The number of pods on unreachable nodes that are not being deleted, and the number of stuck pods.
    pub(crate) fn tally(&self) -> (usize, usize) {
        let count = |state| self.pods.values().filter(|it| self.look(&it.value) == state).count();
        (count(PodState::Silent), count(PodState::Stuck))
    }

    /// All changes since a version, as JSON. Returns the whole state if the version is unknown.
    pub(crate) fn delta(&self, since: Option<u64>, now: Timestamp) -> String {
        let known = since.filter(|v| *v <= self.version && *v >= self.forgotten);
        let from = known.unwrap_or(0);
        let gone =
            || self.gone.iter().rev().take_while(|(v, _)| known.is_some() && *v > from).map(|(_, g)| g);
        let delta = Delta {
            version: self.version,
            now: now.as_millisecond(),
            reset: known.is_none(),
            leads: self.leads,
            paused: self.paused.as_deref(),
            recovered: self.recovered,
            nodes: self
                .nodes
                .values()
                .filter(|n| n.version > from || known.is_none())
                .map(|n| NodeShown::new(&n.value.0, n.value.1))
                .collect(),
            pods: self
                .pods
                .values()
                .filter(|p| p.version > from || known.is_none())
                .map(|p| PodShown::new(&p.value, self.look(&p.value)))
                .collect(),
            app_wrappers: self
                .wrappers
                .values()
                .filter(|w| w.version > from || known.is_none())
                .map(|w| WrapperShown::new(&w.value))
                .collect(),
            verdicts: self
                .verdicts
                .iter()
                .filter(|(_, v)| v.version > from || known.is_none())
                .map(|((subject, recovery), v)| VerdictShown { subject, recovery, report: &v.value })
                .collect(),
            moments: self.timeline.since(from).map(MomentShown::new).collect(),
            replacements: self
                .replacements
                .as_ref()
                .filter(|r| r.version > from || known.is_none())
                .map(|r| &r.value),
            missing: self.missing.as_ref().filter(|m| m.version > from || known.is_none()).map(|m| &m.value),
            caption: self.caption.as_ref().filter(|c| c.version > from).map(|c| &c.value),
            gone_nodes: gone()
                .filter_map(|g| if let Gone::Node(n) = g { Some(n.as_str()) } else { None })
                .collect(),
            gone_pods: gone()
                .filter_map(|g| if let Gone::Pod(u) = g { Some(u.as_str()) } else { None })
                .collect(),
            gone_app_wrappers: gone()
                .filter_map(|g| if let Gone::AppWrapper(u) = g { Some(u.as_str()) } else { None })
                .collect(),
            gone_verdicts: gone()
                .filter_map(|g| if let Gone::Verdict((s, r)) = g { Some((s.as_str(), *r)) } else { None })
                .collect(),
        };
        // Serializing strings, numbers and lists cannot fail.
        serde_json::to_string(&delta).unwrap_or_default()
    }
}

fn zone_name(zone: &str) -> String {
    if zone.is_empty() { "no zone".to_owned() } else { format!("zone {zone}") }
}
